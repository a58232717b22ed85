"""Scans: key ranges, order, pages, cursors, Timestamps, on every implementation."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from typing import Any

import pytest

from rekey import rows
from rekey.core.clock import ticks_of
from rekey.declaration.key_space import key_space_of
from rekey.declaration.rows import Condition
from rekey.errors import RequestRejected
from rekey.model import EVERYTHING, LAST_ROW, EntityKey, KeyRange, key_of
from rekey.tables.base import Operation, Table, TableService, Verb
from rekey.tables.part import PartOfTable
from rekey.tables.sent import RequestKind
from tests.asserts.every import every

PARTITIONS = ["", "a", "a'b", "b", "\uff5e", "😀"]
ROWS = ["", "1", "1'", "2"]
GRID = [EntityKey(partition, row) for partition in PARTITIONS for row in ROWS]


async def fill(table: Table, keys: list[EntityKey]) -> None:
    for _, members in itertools.groupby(keys, key=lambda key: key.partition):
        rest = [Operation(Verb.INSERT, {"PartitionKey": key.partition, "RowKey": key.row}) for key in members]
        for start in range(0, len(rest), 100):
            await table.transact(rest[start : start + 100])


async def keys_in(table: Table, within: KeyRange = EVERYTHING, **options: Any) -> list[EntityKey]:
    return [key_of(row) async for page in table.scan(within, **options) for row in page.rows]


ORDERED = sorted(GRID, key=lambda key: key.order)


async def test_every_range_holds_exactly_its_keys_in_service_order(table: Table) -> None:
    """Every pair of bounds out of the keys there are and some that are not, unbounded sides included.

    The order is that of UTF-16 code units, in which 😀 (U+1F600) stands before ～ (U+FF5E).
    """
    await fill(table, GRID)
    bounds = [
        None,
        GRID[0],
        GRID[5],
        EntityKey("a", "15"),
        EntityKey("a'", "x"),
        GRID[-1],
        EntityKey("zz", ""),
        EntityKey("a", LAST_ROW),
        EntityKey("a'", LAST_ROW),
    ]
    for after, upto in itertools.product(bounds, bounds):
        within = KeyRange(after, upto)
        assert await keys_in(table, within) == [key for key in ORDERED if key in within], within


@pytest.mark.parametrize(
    "condition",
    [
        rows.partition_key(equals="a"),
        rows.partition_key(one_of=["", "😀", "b"]),
        rows.partition_key(prefix="a"),
        rows.partition_key(at_least="a'", below="😀"),
        rows.none_of(rows.partition_key(prefix="a")),
        rows.all_of(rows.partition_key(equals="a'b"), rows.row_key(prefix="1")),
        rows.row_key(equals="1'"),
    ],
    ids=["equals", "one of", "prefix", "range", "others", "within a partition", "row keys"],
)
async def test_a_part_holds_exactly_the_rows_of_its_condition(table: Table, condition: Condition) -> None:
    await fill(table, GRID)
    test = condition.compile()
    wanted = [key for key in ORDERED if test({"PartitionKey": key.partition, "RowKey": key.row})]
    assert wanted
    assert await keys_in(PartOfTable(table, key_space_of(condition))) == wanted


async def test_pages_are_no_larger_than_asked_for_and_carry_a_cursor(table: Table) -> None:
    await fill(table, GRID)
    seen: list[EntityKey] = []
    async for page in table.scan(page_rows=5):
        assert len(page.rows) <= 5
        seen += map(key_of, page.rows)
        assert page.cursor == seen[-1]
    assert seen == ORDERED


@pytest.mark.parametrize("within", [EVERYTHING, KeyRange(EntityKey("a", "1"), EntityKey("b", "1'"))])
async def test_a_scan_resumed_behind_any_cursor_neither_repeats_nor_skips(
    table: Table, within: KeyRange
) -> None:
    await fill(table, GRID)
    everything = await keys_in(table, within)
    assert everything == [key for key in ORDERED if key in within]
    async for page in table.scan(within, page_rows=3):
        assert page.cursor is not None
        done = everything.index(page.cursor) + 1
        assert await keys_in(table, within.behind(page.cursor), page_rows=3) == everything[done:]


async def test_a_scan_goes_on_past_1000_rows(table: Table) -> None:
    keys = [EntityKey("p", f"{number:05}") for number in range(2_150)]
    await fill(table, keys)
    sizes = [len(page.rows) async for page in table.scan()]
    assert sum(sizes) == 2_150
    assert max(sizes) == 1_000
    assert await keys_in(table) == keys


@pytest.mark.parametrize("ahead", [True, False])
async def test_a_page_is_asked_for_before_it_is_wanted_only_where_that_is_allowed(
    service: TableService, table: Table, ahead: bool
) -> None:
    await fill(table, GRID)
    before = service.sent.counts[RequestKind.SCAN]
    asked, found = [], []
    async with aclosing(table.scan(page_rows=10, ahead=ahead)) as pages:  # type: ignore[type-var]
        async for page in pages:
            found += map(key_of, page.rows)
            await asyncio.sleep(0.05 if ahead else 0)
            asked.append(service.sent.counts[RequestKind.SCAN] - before)
    assert found == await keys_in(table)
    assert len(asked) > 1
    if not ahead:
        assert asked == list(range(1, len(asked) + 1))


async def test_an_empty_table_or_range_gives_no_rows(table: Table) -> None:
    assert await keys_in(table) == []
    first, second = GRID[:2]
    await fill(table, [first, second])
    assert await keys_in(table, KeyRange(second, second)) == []
    assert await keys_in(table, KeyRange(second, first)) == []


@pytest.mark.parametrize("page_rows", [0, 1001])
async def test_a_page_size_outside_1_to_1000_is_refused(table: Table, page_rows: int) -> None:
    with pytest.raises(RequestRejected):
        await anext(table.scan(page_rows=page_rows))


async def test_modified_from_finds_what_was_written_at_or_after_a_time(table: Table) -> None:
    """Azurite compares to the millisecond and may give rows of the same one too; the service's and the
    in-memory tables' 100 ns are shown in tests/tools/test_memory.py."""
    for number in range(6):
        await table.insert({"PartitionKey": "p", "RowKey": f"{number}"})
    await table.merge({"PartitionKey": "p", "RowKey": "1", "A": 1})
    stamps = {key_of(row).row: row["Timestamp"] async for page in table.scan() for row in page.rows}
    ticks = {name: ticks_of(stamp) for name, stamp in stamps.items()}
    for name, since in stamps.items():
        found = {key.row for key in await keys_in(table, modified_from=since)}
        assert found >= {other for other in ticks if ticks[other] >= ticks[name]}
        assert every(ticks[other] // 10_000 >= ticks[name] // 10_000 for other in found)
    assert await keys_in(table, modified_from="9999-01-01T00:00:00Z") == []
    assert len(await keys_in(table, modified_from="1601-01-01T00:00:00.0000000Z")) == 6


async def test_modified_from_works_within_a_range_and_with_a_selection(table: Table) -> None:
    await fill(table, GRID)
    within = KeyRange(EntityKey("a", "1"), EntityKey("b", "1"))
    found = await keys_in(table, within, modified_from="1601-01-01T00:00:00Z", select=["Nothing"])
    assert found == [key for key in ORDERED if key in within]


async def test_rows_without_text_in_a_property_can_be_left_out(table: Table) -> None:
    for number, properties in enumerate(
        [
            {"Part": "delta"},
            {},
            {"Part": ""},
            {"Other": "delta"},
            {"Part": " "},
        ]
    ):
        await table.insert({"PartitionKey": "p", "RowKey": f"{number}", **properties})
    assert [key.row for key in await keys_in(table, with_text_in="Part")] == ["0", "4"]
    within = KeyRange(EntityKey("p", "0"), EntityKey("p", "9"))
    assert [key.row for key in await keys_in(table, within, with_text_in="Part", select=["Other"])] == ["4"]
    since = "1601-01-01T00:00:00Z"
    found = await keys_in(table, with_text_in="Part", modified_from=since, page_rows=1)
    assert [key.row for key in found] == ["0", "4"]


async def test_a_scan_may_be_given_up_after_any_page(table: Table) -> None:
    """Nothing may be left behind: no task, no request, no warning (warnings are errors here)."""
    await fill(table, GRID)
    async for page in table.scan(page_rows=2):
        assert page.rows
        break
    pages = table.scan(page_rows=2)
    await anext(pages)
    await pages.aclose()  # type: ignore[attr-defined]
    assert await keys_in(table) == ORDERED


async def test_writing_while_scanning_never_repeats_a_row(table: Table) -> None:
    """Scans are not snapshots: what is written ahead of the cursor may or may not appear, once."""
    await fill(table, GRID)
    seen: list[EntityKey] = []
    async for page in table.scan(page_rows=4):
        seen += map(key_of, page.rows)
        for key in seen[-4:]:
            await table.replace({"PartitionKey": key.partition, "RowKey": key.row, "A": 1})
    assert seen == ORDERED
