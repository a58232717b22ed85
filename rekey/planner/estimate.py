"""Requests and durations, from what was counted; arithmetic only.

Rules kept here:

* Targets of the service: 20,000 entities/s an account, 2,000 entities/s a partition ("Scalability and
  performance targets for Table storage"). What they allow is a lower bound on time: a promise of nothing.
* A scan of one range is serial: page after page. The request time assumed is `ASSUMED_REQUEST_SECONDS`, and
  the plan says so.
* Requests are those of an undisturbed run in capture "delta" with nothing changing meanwhile: every pass,
  sweep and verification reads all of its tables once. Changes and retries come on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rekey.limits import ACCOUNT_TARGET, PARTITION_TARGET
from rekey.planner.result import Duration, Estimate, Requests, TableFill
from rekey.tables.base import MAX_PAGE_ROWS

ASSUMED_REQUEST_SECONDS = 0.05
MAPPING_ROWS_PER_SOURCE_ROW = 2
"""One forward, one reverse."""
MAPPING_PARTITIONS_A_DIRECTION = 32

BACKFILL, RECONCILE, CUTOVER = "backfill", "reconcile", "cutover"


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to be moved.

    Attributes:
        source_rows: rows of the source.
        largest_source_partition: rows of its largest partition.
        mapping_batches: transactions that write the mapping rows.
        fills: what each target table gets.
    """

    source_rows: int
    largest_source_partition: int
    mapping_batches: int
    fills: Sequence[TableFill]

    @property
    def target_rows(self) -> int:
        """Return the rows of all target tables."""
        return sum(fill.rows for fill in self.fills)

    @property
    def target_batches(self) -> int:
        """Return the batches of all target tables."""
        return sum(fill.batches for fill in self.fills)


@dataclass(frozen=True, slots=True)
class Pace:
    """The configured limits: requests in flight, and target rows a second (None: no limit)."""

    concurrency: int
    entities_per_second: int | None = None


def estimate(work: Workload, pace: Pace) -> Estimate:
    """Return the requests and durations of a migration."""
    source_pages = pages(work.source_rows)
    mapping_pages = MAPPING_PARTITIONS_A_DIRECTION * pages(
        -(-work.source_rows // MAPPING_PARTITIONS_A_DIRECTION)
    )
    target_pages = sum(pages(fill.rows) for fill in work.fills)
    backfill = [
        Requests(BACKFILL, "read source pages", source_pages),
        Requests(BACKFILL, "write mapping batches", work.mapping_batches),
        *(Requests(BACKFILL, f"write batches to {fill.table}", fill.batches) for fill in work.fills),
        Requests(BACKFILL, "sweep: read source and mapping", source_pages + mapping_pages),
    ]
    after = [
        Requests(phase, kind, count)
        for phase in (RECONCILE, CUTOVER)
        for kind, count in (
            ("delta pass: read source pages", source_pages),
            ("sweep: read source and mapping", source_pages + mapping_pages),
            ("verification: read source and targets", source_pages + target_pages),
        )
    ]
    strays = Requests(CUTOVER, "look for stray writers: read source", source_pages)
    return Estimate(
        requests=(*backfill, *after, strays),
        durations=(
            _backfill(work, pace, source_pages),
            _reading(RECONCILE, work, scans=3),
            _reading(CUTOVER, work, scans=4),
        ),
    )


def pages(rows: int) -> int:
    """Return how many requests reading so many rows of one range takes: at least one."""
    return max(1, -(-rows // MAX_PAGE_ROWS))


def _backfill(work: Workload, pace: Pace, source_pages: int) -> Duration:
    rows = work.source_rows
    swept = _scan_seconds(rows)
    targets = {
        "20,000 entities/s of the account": (rows + work.target_rows) / ACCOUNT_TARGET,
        "20,000 entities/s of the restricted account": MAPPING_ROWS_PER_SOURCE_ROW * rows / ACCOUNT_TARGET,
        "2,000 entities/s of the largest source partition": work.largest_source_partition / PARTITION_TARGET,
        "2,000 entities/s of the targets' hottest partitions": sum(
            fill.hottest_seconds for fill in work.fills
        ),
    }
    writes = work.mapping_batches + work.target_batches
    limits = {
        **targets,
        f"{pace.concurrency} requests at a time": writes * ASSUMED_REQUEST_SECONDS / pace.concurrency,
        "source pages, one after another": source_pages * ASSUMED_REQUEST_SECONDS,
    }
    if pace.entities_per_second is not None:
        limits[f"{pace.entities_per_second:,} entities/s configured"] = (
            work.target_rows / pace.entities_per_second
        )
    return _duration(BACKFILL, targets, limits, swept, swept_at_limits=_scan_seconds(rows, serial=True))


def _reading(phase: str, work: Workload, *, scans: int) -> Duration:
    """A phase that reads the source `scans` times, the mapping and the targets once."""
    rows = scans * work.source_rows + work.target_rows
    targets = {
        "20,000 entities/s of the account": rows / ACCOUNT_TARGET,
        "2,000 entities/s of the largest source partition": scans
        * work.largest_source_partition
        / PARTITION_TARGET,
    }
    limits = {
        **targets,
        "pages, one after another": scans * pages(work.source_rows) * ASSUMED_REQUEST_SECONDS,
    }
    mapping = work.source_rows / ACCOUNT_TARGET
    return _duration(
        phase, targets, limits, mapping, swept_at_limits=_scan_seconds(work.source_rows, serial=True)
    )


def _scan_seconds(rows: int, *, serial: bool = False) -> float:
    """Return how long reading all mapping rows of one direction takes."""
    quickest = rows / ACCOUNT_TARGET
    return max(quickest, pages(rows) * ASSUMED_REQUEST_SECONDS) if serial else quickest


def _duration(
    phase: str,
    targets: dict[str, float],
    limits: dict[str, float],
    swept: float,
    *,
    swept_at_limits: float,
) -> Duration:
    """Return the slowest of each kind of bounds, plus the sweep's walk through the mapping."""
    by_target = max(targets, key=lambda name: targets[name])
    by_limit = max(limits, key=lambda name: limits[name])
    return Duration(
        phase=phase,
        at_targets_s=targets[by_target] + swept,
        at_targets_bound=by_target,
        at_limits_s=limits[by_limit] + swept_at_limits,
        at_limits_bound=by_limit,
    )
