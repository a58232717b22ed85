"""Load over time: lanes of partitions by the moment in the keys, in bounded memory and without keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rekey import Index, Migration, RowKind, Target, keys, props, rows
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.declaration.rows import Condition
from rekey.inspect.inventory import HEAD, Weights
from rekey.model import EntityKey, Row
from rekey.plan import portrait
from rekey.plan.portrait import LANES, TIMES, Portrayer
from rekey.plan.result import TableFill

IDS = SafeIds(bytes(32))
WHOLE = Weights((0, 0), 0)
"""Of a table that was read whole."""
IDS_KEY = EntityKey("all", "")
BY_MONTH = Migration(
    source="Events",
    target=Target(
        "EventsByMonth",
        partition_key=keys.date("yyyy-MM", "At"),
        row_key=keys.prop("RowKey"),
        properties=[props.copy("PartitionKey", to="Old"), props.copy("RowKey", to="OldRow")],
    ),
    capture="delta",
)


def events(months: int, each: int = 3) -> Iterator[Row]:
    for month in range(months):
        for number in range(each):
            yield {
                "PartitionKey": "all",
                "RowKey": f"{month:04}-{number:02}",
                "At": f"{2000 + month // 12}-{month % 12 + 1:02}-0{number + 1}T00:00:00Z",
                "At@odata.type": "Edm.DateTime",
            }


def portrayed(what: Migration, rows: Iterator[Row]) -> Portrayer:
    mapper, portrayer = Mapper(what, {}), Portrayer(what)
    for row in rows:
        mapped = mapper.map(row)
        tables: list[list[Row]] = [[] for _ in portrayer.partitions]
        for number, one in [(0, row), *((1 + table, target) for table, target in mapped)]:
            tables[number].append(one)
        portrayer.count(HEAD, tables, [Counter(one["PartitionKey"] for one in table) for table in tables])
    return portrayer


def test_the_source_is_one_lane_and_the_target_runs_down_like_stairs() -> None:
    before, after = portrayed(BY_MONTH, events(24)).loads(IDS, WHOLE)
    assert before.today and not after.today and before.times == after.times
    assert len(before.times) == 24 and before.times[0] == "2000-01"
    [(name, rows)] = before.lanes
    assert rows == (3,) * 24 and name == IDS.short("Events", IDS_KEY)
    assert [lane[1].index(3) for lane in after.lanes] == list(range(24))
    assert set(before.busiest) == {1.0}


def test_more_partitions_than_lanes_are_summed_up() -> None:
    _, after = portrayed(BY_MONTH, events(100)).loads(IDS, WHOLE)
    assert len(after.lanes) == LANES and after.others == 100 - LANES
    assert sum(after.others_rows) == 3 * (100 - LANES)
    assert len(after.times) <= TIMES, "years, where months were too many"


def test_a_stretch_without_rows_is_as_long_as_it_was() -> None:
    """Columns are all equally long and leave nothing out: a plot shows when nothing was written."""
    year = [row for row in events(12) if not "0003-00" <= row["RowKey"] < "0010-00"]
    before, _ = portrayed(BY_MONTH, iter(year)).loads(IDS, WHOLE)
    assert before.times == tuple(f"2000-{month:02}" for month in range(1, 13))
    assert before.lanes[0][1] == (3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 3, 3)
    assert [share > 0 for share in before.busiest] == [rows > 0 for rows in before.lanes[0][1]]


def test_a_time_far_from_all_others_costs_no_memory() -> None:
    """A DateTime that was never set is of year 1: columns are years then."""
    rows = [*events(2), {**next(events(1)), "RowKey": "never", "At": "0001-01-01T00:00:00Z"}]
    before, after = portrayed(BY_MONTH, iter(rows)).loads(IDS, WHOLE)
    assert (before.times[0], before.times[-1], len(before.times)) == ("0001", "2000", 2_000)
    assert sum(sum(rows) for _, rows in after.lanes) == 7


def test_beyond_the_bound_small_partitions_merge_but_rows_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes are lower bounds then, and the load says so; all rows are in some column."""
    few, _ = portrayed(BY_MONTH, events(24)).loads(IDS, WHOLE)
    monkeypatch.setattr(portrait, "CELLS", 10)
    before, after = portrayed(BY_MONTH, events(24)).loads(IDS, WHOLE)
    assert few.partitions_exact and not after.partitions_exact
    for load in (before, after):
        assert sum(load.others_rows) + sum(sum(rows) for _, rows in load.lanes) == 3 * 24


def test_the_load_of_a_joint_table_names_its_tables() -> None:
    def of_rows(when: Condition, table: str) -> RowKind:
        return RowKind(table, when=when, target=replace(BY_MONTH.target, table=table))

    first = rows.row_key(prefix="0000")
    apart = replace(
        BY_MONTH, target=None, indexes=(), kinds=[of_rows(first, "Firsts"), of_rows(rows.every(), "Others")]
    )
    portrayer = portrayed(apart, events(24))
    assert [load.table for load in portrayer.loads(IDS, WHOLE)] == ["Events", "Firsts and Others"]


def test_a_moment_in_a_row_key_or_an_index_counts_and_none_is_no_load() -> None:
    target = BY_MONTH.target
    by_row = replace(
        BY_MONTH,
        target=replace(
            target,
            partition_key=keys.prop("PartitionKey"),
            row_key=keys.join("_", keys.inverted_ticks("At"), keys.prop("RowKey")),
        ),
    )
    assert len(portrayed(by_row, events(5)).loads(IDS, WHOLE)) == 2
    plain = replace(
        BY_MONTH, target=replace(target, partition_key=keys.prop("PartitionKey"), row_key=keys.prop("RowKey"))
    )
    assert portrayed(plain, events(5)).loads(IDS, WHOLE) == ()
    index = Index("ByDay", partition_key=keys.date("yyyy-MM-dd", "At"), row_key=keys.prop("RowKey"))
    assert len(portrayed(replace(plain, indexes=(index,)), events(5)).loads(IDS, WHOLE)) == 2


def test_a_portrait_names_partitions_by_safe_id() -> None:
    portrayer = portrayed(BY_MONTH, events(3))
    fill = TableFill("EventsByMonth", 9, 3, 3, True, 3, 0.0, fills={3: 3})
    source, target = portrayer.portraits(IDS, [fill], WHOLE)
    assert source.largest == ((IDS.short("Events", IDS_KEY), 9),) and source.sizes == {"1": 0, "2 to 9": 1}
    assert target.sizes == {"1": 0, "2 to 9": 3} and target.fills == {3: 3} and not source.fills
    assert source.lengths == {"PartitionKey": {0: 9}, "RowKey": {0: 9}} and source.key_bytes == 2 * (3 + 7)
