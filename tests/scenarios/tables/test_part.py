"""A part of a table: what a scan of it returns and asks for, from any cursor on, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rekey import rows
from rekey.declaration.key_space import key_space_of
from rekey.declaration.rows import Condition
from rekey.model import EVERYTHING, EntityKey, KeyRange, Row, key_of
from rekey.runner.remaining import rows_up_to
from rekey.tables.part import PartOfTable, part_of, whole_of
from rekey.tables.split import find_middle
from tests.fakes.interference import noted
from tests.fakes.memory import MemoryTableService

PARTITIONS = ["", "a", "a\ufffd", "b", "b\uffff", "b0", "b1", "c", "d"]
PARTS = {
    "a partition": rows.partition_key(equals="b"),
    "the partition without a name": rows.partition_key(equals=""),
    "a prefix": rows.partition_key(prefix="b"),
    "several": rows.partition_key(one_of=["d", "a", "nowhere"]),
    "the others": rows.none_of(rows.partition_key(prefix="b")),
    "within a partition": rows.all_of(rows.partition_key(equals="b"), rows.row_key(prefix="1")),
    "within each": rows.row_key(one_of=["", "3"]),
    "a pattern": rows.partition_key(pattern="[ab]."),
}


async def part(memory: MemoryTableService, condition: Condition) -> PartOfTable:
    await memory.create_table("Tab")
    table = memory.table("Tab")
    for partition in PARTITIONS:
        for row_key in ("", "1", "11", "2", "3"):
            await table.insert({"PartitionKey": partition, "RowKey": row_key})
    return PartOfTable(table, key_space_of(condition))


@pytest.mark.parametrize("condition", PARTS.values(), ids=PARTS)
async def test_a_scan_returns_the_rows_of_the_part_once_from_any_cursor_on(
    memory: MemoryTableService, condition: Condition
) -> None:
    table = await part(memory, condition)
    test = condition.compile()
    wanted = [key_of(row) for row in memory.dump("Tab") if test(row)]
    pages = [page async for page in table.scan(page_rows=2)]
    assert [key_of(row) for page in pages for row in page.rows] == wanted
    assert wanted
    cursors = [page.cursor for page in pages]
    assert None not in cursors
    assert all(first.order <= second.order for first, second in pairwise(filter(None, cursors))) is True
    returned = 0
    for page in pages:
        assert page.cursor is not None
        returned += len(page.rows)
        rest = [row async for each in table.scan(KeyRange(after=page.cursor)) for row in each.rows]
        assert [key_of(row) for row in rest] == wanted[returned:]
    for key in wanted:
        assert await table.get(key) is not None


async def test_no_row_beside_the_part_is_read_or_written(memory: MemoryTableService) -> None:
    table = await part(memory, PARTS["a partition"])
    beside = EntityKey("c", "1")
    calls = noted(memory)
    assert await table.get(beside) is None
    assert await table.find(beside) is None
    assert calls == []
    row: Row = {"PartitionKey": "c", "RowKey": "1"}
    for write in (table.insert(row), table.replace(row), table.upsert(row), table.delete(beside)):
        with pytest.raises(AssertionError):
            await write
    assert calls == []
    await table.replace({"PartitionKey": "b", "RowKey": "1", "New": 1})
    assert len(calls) == 1


async def test_a_scan_asks_for_the_pages_of_the_part_alone(memory: MemoryTableService) -> None:
    table = await part(memory, PARTS["several"])
    pages = noted(memory, lambda call: call.action == "page")
    read = [row async for page in table.scan() for row in page.rows]
    assert (len(read), len(pages)) == (10, 3)  # one for each partition that is named


async def test_a_range_is_split_at_a_key_of_the_part(memory: MemoryTableService) -> None:
    for name in ("a partition", "a prefix", "several"):
        service = MemoryTableService()
        table = await part(service, PARTS[name])
        middle = await find_middle(table, EVERYTHING)
        assert middle is not None
        halves = EVERYTHING.split(middle)
        sizes = [len([row async for page in table.scan(half) for row in page.rows]) for half in halves]
        assert min(sizes) > 0, name


async def test_few_pages_are_read_to_split_a_part_of_few_rows_among_many(memory: MemoryTableService) -> None:
    """Its ranges hold many other rows, which pages of one row would read one by one."""
    await memory.create_table("Tab")
    table = memory.table("Tab")
    for number in range(400):
        await table.insert({"PartitionKey": f"p{number % 4}", "RowKey": f"{number:03}"})
    few = PartOfTable(table, key_space_of(rows.row_key(one_of=["300", "399"])))
    pages = noted(memory, lambda call: call.action == "page")
    middle = await find_middle(few, EVERYTHING)
    assert len(pages) <= 20
    assert middle is not None
    assert await rows_up_to(few, 1) == 1
    assert len(pages) <= 21


def test_the_whole_table_is_no_part(memory: MemoryTableService) -> None:
    table = memory.table("Tab")
    assert part_of(table, None) is table
    assert whole_of(part_of(table, key_space_of(PARTS["a prefix"]))) is table
