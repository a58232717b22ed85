"""Requests and durations follow from what was counted, by the service's published targets."""

from __future__ import annotations

import pytest

from rekey.planner.estimate import Pace, Workload, estimate, pages
from rekey.planner.result import TableFill


def work(rows: int, *, largest: int = 100, batches: int | None = None, hottest: float = 0.0) -> Workload:
    fill = TableFill("T", rows, batches or -(-rows // 100), 10, True, largest, hottest)
    return Workload(rows, largest, 2 * -(-rows // 100), [fill])


def test_requests_are_counted_by_kind() -> None:
    counted = {(one.phase, one.kind): one.count for one in estimate(work(100_000), Pace(16)).requests}
    assert counted["backfill", "read source pages"] == 100
    assert counted["backfill", "write mapping batches"] == 2_000
    assert counted["backfill", "write batches to T"] == 1_000
    assert counted["backfill", "sweep: read source and mapping"] == 100 + 32 * 4
    assert counted["cutover", "verification: read source and targets"] == 200
    assert counted["cutover", "look for stray writers: read source"] == 100


@pytest.mark.parametrize(
    ("workload", "pace", "seconds", "bound"),
    [
        (work(2_000_000), Pace(1_000), 200.0, "20,000 entities/s of the account"),
        (work(100_000, largest=100_000), Pace(1_000), 50.0, "largest source partition"),
        (work(100_000, hottest=70.0), Pace(1_000), 70.0, "hottest partitions"),
        (work(100_000, batches=100_000), Pace(4), 1_275.0, "4 requests at a time"),
        (work(100_000), Pace(1_000, entities_per_second=100), 1_000.0, "100 entities/s configured"),
    ],
    ids=["account", "one source partition", "hot target", "batches of one", "configured rate"],
)
def test_backfill_is_as_slow_as_its_tightest_bound(
    workload: Workload, pace: Pace, seconds: float, bound: str
) -> None:
    backfill = estimate(workload, pace).durations[0]
    sweep = backfill.at_limits_s - seconds
    assert bound in backfill.at_limits_bound
    assert 0 < sweep <= 0.05 * pages(workload.source_rows)
    assert backfill.at_targets_s <= backfill.at_limits_s


def test_an_empty_table_costs_a_request_a_scan_and_no_time() -> None:
    cost = estimate(work(0, largest=0), Pace(16))
    assert all(one.at_targets_s == 0 for one in cost.durations)
    assert cost.requests_total > 0
