"""Joint tables: several tables as one. That each of them reads and writes as a table alone is shown in
`tests/contract`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest

from rekey.errors import RequestRejected, TableBeingDeleted
from rekey.model import EVERYTHING, LAST_ROW, EntityKey, KeyRange, Row, key_of
from rekey.tables.base import Operation, Page, Table, TableWrapper, Verb
from rekey.tables.joint import JointTable, apart, existing, opened
from tests.fakes.memory import MemoryTableService

# The service's order of the beginnings `Orders1:`, `Orders2:`, `Orders:` and `Ordersx:`.
NAMES = ("Orders", "Ordersx", "Orders1", "Orders2")
IN_ORDER = ("Orders1", "Orders2", "Orders", "Ordersx")
PARTITIONS = ("", "a", "a:b", "z")


async def joint(memory: MemoryTableService) -> JointTable:
    for name in NAMES:
        await memory.create_table(name)
        for partition, row in product(PARTITIONS, ("1", "2")) if name != "Orders2" else ():
            await memory.table(name).insert({"PartitionKey": partition, "RowKey": row, "In": name})
    table = opened("+".join(NAMES), memory.table)
    assert isinstance(table, JointTable)
    return table


KEYS = [
    EntityKey(f"{name}:{partition}", row)
    for name in IN_ORDER
    if name != "Orders2"
    for partition, row in product(PARTITIONS, ("1", "2"))
]


async def rows_in(table: Table, within: KeyRange, page_rows: int = 1_000) -> list[Row]:
    return [row async for page in table.scan(within, page_rows=page_rows) for row in page.rows]


async def test_any_range_holds_exactly_its_rows_in_order(memory: MemoryTableService) -> None:
    table = await joint(memory)
    assert sorted(KEYS, key=lambda key: key.order) == KEYS
    between = [EntityKey("", ""), EntityKey("Orders1", LAST_ROW), EntityKey("Orders2:", "x")]
    ends = [None, *between, EntityKey("Orders:a\uffff", ""), EntityKey("zzz", "")]
    for after, upto in product([*ends, *KEYS[::3]], repeat=2):
        within = KeyRange(after, upto)
        assert list(map(key_of, await rows_in(table, within))) == [key for key in KEYS if key in within]


@pytest.mark.parametrize("page_rows", [1, 3, 8])
async def test_a_cursor_covers_what_was_read_and_no_more(memory: MemoryTableService, page_rows: int) -> None:
    table = await joint(memory)
    seen: list[EntityKey] = []
    async for page in table.scan(page_rows=page_rows):
        seen += map(key_of, page.rows)
        assert page.cursor == seen[-1]
        rest = await rows_in(table, KeyRange(page.cursor))
        assert [*seen, *map(key_of, rest)] == KEYS


class BeginsEmpty(TableWrapper):
    """A table whose scans begin with a page that has not reached any key."""

    async def scan(self, within: KeyRange = EVERYTHING, **options: Any) -> AsyncIterator[Page]:
        yield Page([], None)
        async for page in self.inner.scan(within, **options):
            yield page


async def test_a_page_that_has_not_reached_a_key_keeps_the_cursor_of_the_table_before(
    memory: MemoryTableService,
) -> None:
    await joint(memory)
    table = opened("+".join(NAMES), lambda name: BeginsEmpty(memory.table(name)))
    first, *cursors = [page.cursor async for page in table.scan()]
    assert first is None
    whole = [EntityKey(f"{name}:z", "2") for name in IN_ORDER if name != "Orders2"]
    assert cursors == [whole[0], whole[0], whole[0], whole[1], whole[1], whole[2]]


async def test_the_same_key_in_two_tables_is_two_rows(memory: MemoryTableService) -> None:
    table = await joint(memory)
    for name in ("Orders", "Ordersx"):
        row = await table.get(EntityKey(f"{name}:a", "1"))
        assert row is not None
        assert row["In"] == name
        assert key_of(row) == EntityKey(f"{name}:a", "1")
    await table.delete(EntityKey("Orders:a", "1"))
    assert await table.get(EntityKey("Orders:a", "1")) is None
    assert await memory.table("Ordersx").get(EntityKey("a", "1")) is not None


async def test_what_begins_with_the_name_of_no_table_is_absent_and_never_written(
    memory: MemoryTableService,
) -> None:
    table = await joint(memory)
    for partition in ("a", "Other:a", "Orders", "orders:a"):
        assert await table.get(EntityKey(partition, "1")) is None
        assert await table.find(EntityKey(partition, "1")) is None
        with pytest.raises(AssertionError):
            await table.insert({"PartitionKey": partition, "RowKey": "9"})


async def test_a_transaction_over_two_tables_is_refused(memory: MemoryTableService) -> None:
    table = await joint(memory)
    rows = [{"PartitionKey": f"{name}:a", "RowKey": "9"} for name in ("Orders", "Ordersx")]
    with pytest.raises(RequestRejected) as refused:
        await table.transact([Operation(Verb.INSERT, row) for row in rows])
    assert refused.value.code == "CommandsInBatchActOnDifferentPartitions"
    assert len(await rows_in(table, KeyRange())) == len(KEYS)


async def test_what_is_left_of_it_is_read_until_all_tables_are_gone(memory: MemoryTableService) -> None:
    table = await joint(memory)
    await memory.delete_table("Ordersx")
    with pytest.raises(TableBeingDeleted):
        await rows_in(table, KeyRange())
    left = await existing(memory, table)
    assert left is not None
    assert left.name == table.name
    assert [key_of(row) for row in await rows_in(left, KeyRange())] == [
        key for key in KEYS if not key.partition.startswith("Ordersx:")
    ]
    for name in NAMES:
        await memory.delete_table(name)
    assert await existing(memory, table) is None


async def test_each_of_its_tables_stands_alone_under_its_keys(memory: MemoryTableService) -> None:
    parts = apart(await joint(memory))
    assert [part.name for part in parts] == list(IN_ORDER)
    assert [key_of(row) for part in parts for row in await rows_in(part, KeyRange())] == KEYS
    alone = memory.table("Orders")
    assert apart(alone) == [alone]
