"""Requests and durations follow from what was counted, by the service's published targets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rekey.plan.estimate import SPLIT_REQUESTS, Batches, Workload, counts_of, estimate, pages
from rekey.plan.result import Duration, TableFill
from rekey.project.config import Limits
from rekey.tables.sent import OPERATIONS, RequestKind


def limits(concurrency: int, **rates: int) -> Limits:
    """Configured limits, with one part of the source read at a time unless said."""
    return Limits(concurrency=concurrency, **{"scans": 1, **rates})


def work(rows: int, *, fill: int = 100, largest: int = 100, hottest: float = 0.0, **more: object) -> Workload:
    """Rows into one table, in batches of `fill`; the mapping in full ones."""
    fills = {fill: -(-rows // fill)} if rows else {}
    target = TableFill(
        "T", rows, Batches.of(rows, fills).requests, 10, True, largest, hottest, 200 * rows, fills
    )
    mapping = Batches.of(2 * rows, {100: 1})
    return Workload(
        rows, largest, mapping, [target], source_bytes=100 * rows, mapping_bytes=500 * rows, **more
    )  # type: ignore[arg-type]


def counted(what: Workload) -> dict[tuple[str, str], int]:
    """Requests by phase and purpose, locks and the like left out."""
    return {
        (one.phase, one.what): one.count
        for one in estimate(what, limits(16)).requests
        if not one.what.startswith("locks")
    }


def duration_of(workload: Workload, pace: Limits, phase: str = "backfill") -> Duration:
    [duration] = [each for each in estimate(workload, pace).durations if each.phase == phase]
    return duration


def test_requests_are_counted_by_phase_and_purpose() -> None:
    found = counted(work(100_000))
    assert found["prepare", "try every row: read the source"] == 100
    assert found["backfill", "copy: read the source"] >= 100
    assert found["backfill", "write batches to the mapping"] == 2_000
    assert found["backfill", "write batches to T"] == 1_000
    assert found["reconcile", "comparison: read source and targets"] == 200
    assert found["reconcile", "look for rows written since: read the source"] == 2
    assert found["cutover", "comparison: read source and targets"] == 200
    assert found["cutover", "look for stray writers: read the source"] == 2
    assert found["retire", "backup: export the source"] >= 100
    assert found["retire", "backup: compare the source with it"] == 100
    assert found["retire", "drop the source"] == 1


def test_what_depends_on_the_way_of_following_is_left_out_where_it_is_not_done() -> None:
    found = counted(work(10_000, follows=False, tries_rows=False))
    assert ("prepare", "try every row: read the source") not in found
    sampled = "see that a sample is in the mapping"
    assert {what: count for (phase, what), count in found.items() if phase == "cutover"} == {
        "see that source and targets are there": 2,
        f"{sampled}: read the source": 1,
        sampled: 200,
    }
    assert ("cutover", sampled) not in counted(work(10_000, keeping="none"))
    assert ("reconcile", "look for rows written since: read the source") not in found
    assert found["backfill", "sweep: read source and mapping"] == 1 + 10 + 32
    assert found["backfill", "journal: clients and intents"] > 1
    assert found["backfill", "rows that moved: read the source"] == 1


def test_rows_alone_are_single_writes_and_batches_carry_their_rows() -> None:
    assert Batches.of(1_000, {1: 50, 100: 5, 50: 9}) == Batches(14, 50, 950)
    assert Batches.of(2_000, {1: 50, 100: 5, 50: 9}) == Batches(28, 100, 1_900), "scaled"
    assert Batches.of(10, {1: 4}) == Batches(0, 10, 0)
    assert Batches.of(0, {}) == Batches(0, 0, 0)
    counts = counts_of(estimate(work(1_000, fill=1), limits(16)).requests)
    assert counts[OPERATIONS] == 2_000 and counts[RequestKind.WRITE] >= 1_000


def test_small_windows_read_small_pages() -> None:
    usual, small = counted(work(8_000)), counted(work(8_000, page_rows=100))
    assert usual["backfill", "copy: read the source"] == 8
    assert small["backfill", "copy: read the source"] == 80 + SPLIT_REQUESTS


def test_both_tables_are_stored_until_the_retention_is_over() -> None:
    storage = estimate(work(1_000), limits(16), retention_s=30 * 86_400).storage
    assert (storage.source_bytes, storage.target_bytes, storage.mapping_bytes) == (100_000, 200_000, 500_000)
    assert storage.added_bytes == 700_000
    assert 30 < storage.days < 30.01


@pytest.mark.parametrize(
    ("workload", "pace", "seconds", "bound"),
    [
        (
            work(2_000_000, largest=10_000),
            limits(1_000, scans=100),
            200 + 2.5,
            "20,000 entities/s of the account",
        ),
        (work(100_000, largest=100_000), limits(1_000), 50.0, "largest source partition"),
        (work(100_000, hottest=70.0), limits(1_000), 70.0, "hottest partitions"),
        (work(100_000, fill=1), limits(4), 1_275.0, "4 requests at a time"),
        (
            work(100_000, largest=4_000),
            limits(1_000, entities_per_second=100),
            2_000 / 0.98 + 1,
            "100 entities/s configured",
        ),
        (
            work(100_000, largest=50_000),
            limits(1_000, partition_entities_per_second=100),
            500 / 0.98,
            "100 entities/s of a partition configured",
        ),
    ],
    ids=["account", "one partition", "hot target", "batches of one", "rate", "partition rate"],
)
def test_backfill_has_its_slowest_rate(workload: Workload, pace: Limits, seconds: float, bound: str) -> None:
    backfill = duration_of(workload, pace)
    assert bound in backfill.at_limits_bound
    assert backfill.at_limits_s == pytest.approx(seconds)
    sweep = duration_of(replace(workload, follows=False), pace).at_limits_s - seconds
    assert 0 < sweep <= 0.05 * pages(workload.source_rows)
    assert backfill.at_targets_s <= backfill.at_limits_s


@pytest.mark.parametrize("phase", ["reconcile", "cutover"])
def test_comparing_has_its_slowest_rate(phase: str) -> None:
    workload = work(100_000, largest=4_000)
    assert duration_of(workload, limits(16), phase).at_limits_s == pytest.approx(15.0 + 1), "two scans"
    slow = duration_of(workload, limits(16, entities_per_second=100), phase)
    assert slow.at_limits_bound == "100 entities/s configured"
    assert slow.at_limits_s == pytest.approx(3_000 / 0.98 + 1), "the part of a rate that is used"


def test_the_row_check_takes_its_time_unless_it_is_left_out() -> None:
    workload = work(1_000_000)
    assert duration_of(workload, limits(16), "prepare").at_limits_s == pytest.approx(50.0)
    assert estimate(replace(workload, tries_rows=False), limits(16)).takes_s("prepare") == 0


def test_an_account_of_its_own_is_named_where_it_saves_a_tenth_of_days() -> None:
    pace = limits(32).with_targets()
    large = work(10**9)
    [targets] = estimate(large, pace).other_accounts
    assert targets.section == "targets"
    spread = estimate(replace(large, rows_elsewhere=large.target_rows), pace)
    assert targets.at_limits_s == pytest.approx(spread.likely_s) and not spread.other_accounts
    beside = estimate(replace(large, mapping_with_tables=True), pace)
    assert {other.section for other in beside.other_accounts} == {"restricted", "targets"}
    assert not estimate(work(10**6), pace).other_accounts


def test_an_empty_table_costs_a_request_a_scan_and_no_time() -> None:
    cost = estimate(work(0, largest=0), limits(16))
    assert [one.at_targets_s for one in cost.durations] == [0, 0, 0, 0]
    assert cost.requests_total > 0


def test_two_accounts_share_the_rows_and_the_busier_one_bounds_the_time() -> None:
    """Half of them here and half elsewhere take half as long, where the account's rate is the bound."""
    rate = limits(1000, entities_per_second=10)
    one, two = (duration_of(work(1000, largest=0, rows_elsewhere=rows), rate) for rows in (0, 1000))
    assert one.at_limits_bound == two.at_limits_bound == "10 entities/s configured"
    assert one.at_limits_s == pytest.approx(2 * two.at_limits_s)
