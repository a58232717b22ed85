"""The requests of a migration's phases, by what they are for. Pure; arithmetic only.

Rules kept here:

* They are those of an undisturbed run with nothing changing meanwhile, each phase once, by the commands of
  the runbooks: `apply` to the gate, `apply --to cutover`, `apply --to complete`, `retire`. Changes, retries,
  verifications by hand and repeated `apply` come on top.
* A scan of a range is a request for each 1,000 rows, at least one. A scan for what changed goes through all
  rows and returns few: the service answers after 5 seconds at the latest ("Query timeout and pagination"),
  and is taken to get through `FILTERED_ROWS` in that time.
* A batch of one row is a single insert, as it is sent.
* The service's clock tells whole seconds and is asked until it has moved on: half a second's questions on
  average, for each pass and each freeze. Locks, control row and clients cost what was counted;
  `tests/scenarios/test_plan_against_actual.py` holds that against runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rekey.plan.result import Requests, TableFill
from rekey.tables.base import MAX_PAGE_ROWS
from rekey.tables.sent import Kind

PREPARE, DUAL_WRITE, BACKFILL, RECONCILE = "prepare", "dual_write", "backfill", "reconcile"
CUTOVER, COMPLETE, RETIRE = "cutover", "complete", "retire"

MAPPING_PARTITIONS_A_DIRECTION = 32
FILTERED_ROWS = 50_000
SPLIT_PAGES = 12
"""Pages of the copy, which are smaller where windows are, from which on readers that wait split the rest."""
SPLIT_REQUESTS = 15
"""Questions for keys in the middle, and pages that end early, of all splits of one copying: thirty where
reading is waited for, none where writing is what takes time. Which it will be is not known beforehand."""
SWEEP_SECONDS = 5.0
"""Seconds between two looks into the journal while the runner works (`rekey.runner.clients`)."""

_Control = Mapping[str, Mapping[Kind, int]]
_CONTROL_DELTA: _Control = {
    PREPARE: {Kind.READ: 5, Kind.SCAN: 1, Kind.TABLE: 5, Kind.WRITE: 2},
    DUAL_WRITE: {Kind.READ: 2, Kind.TABLE: 2, Kind.WRITE: 1},
    BACKFILL: {Kind.READ: 3, Kind.TABLE: 1},
    RECONCILE: {Kind.READ: 2, Kind.TABLE: 5},
    CUTOVER: {Kind.READ: 11, Kind.TABLE: 15, Kind.WRITE: 4},
    COMPLETE: {Kind.READ: 8, Kind.TABLE: 4, Kind.WRITE: 3},
    RETIRE: {Kind.READ: 9, Kind.SCAN: 2, Kind.TABLE: 6, Kind.WRITE: 3},
}
_CONTROL_DUAL: _Control = {
    PREPARE: {Kind.READ: 6, Kind.SCAN: 2, Kind.TABLE: 6, Kind.WRITE: 2},
    DUAL_WRITE: {Kind.READ: 4, Kind.SCAN: 6, Kind.TABLE: 7, Kind.WRITE: 1},
    BACKFILL: {Kind.READ: 2, Kind.SCAN: 2, Kind.TABLE: 3, Kind.WRITE: 1},
    RECONCILE: {Kind.READ: 2, Kind.SCAN: 6, Kind.TABLE: 5},
    CUTOVER: {Kind.READ: 12, Kind.SCAN: 13, Kind.TABLE: 16, Kind.WRITE: 4},
    COMPLETE: {Kind.READ: 10, Kind.SCAN: 7, Kind.TABLE: 17, Kind.WRITE: 3},
    RETIRE: {Kind.READ: 11, Kind.SCAN: 6, Kind.TABLE: 10, Kind.WRITE: 3},
}
_SEALED: _Control = {
    PREPARE: {Kind.READ: 3, Kind.SCAN: 1, Kind.TABLE: 1, Kind.WRITE: 1},
    BACKFILL: {Kind.READ: 1, Kind.WRITE: 1},
    CUTOVER: {Kind.READ: 3, Kind.SCAN: 1},
    COMPLETE: {Kind.READ: 2, Kind.SCAN: 1},
    RETIRE: {Kind.READ: 2, Kind.SCAN: 1},
}


@dataclass(frozen=True, slots=True)
class Batches:
    """Requests that write rows: batches, single inserts, and the rows in the batches."""

    batches: int
    singles: int
    operations: int

    @classmethod
    def of(cls, rows: int, fills: Mapping[int, int]) -> Batches:
        """Return what `rows` rows take when batches are as full as `fills` says (rows in one, how many)."""
        packed = sum(fill * number for fill, number in fills.items())
        if not packed:
            return cls(0, 0, 0)
        singles = round(fills.get(1, 0) * rows / packed)
        batches = round(sum(number for fill, number in fills.items() if fill > 1) * rows / packed)
        return cls(batches, singles, max(0, rows - singles) if batches else 0)

    @property
    def requests(self) -> int:
        """Return the number of requests."""
        return self.batches + self.singles


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to be moved.

    Attributes:
        source_rows: rows of the source.
        largest_source_partition: rows of its largest partition.
        mapping: the requests that write the mapping rows.
        fills: what each target table gets.
        page_rows: rows of a page of the copy; smaller than 1,000 where windows are.
        follows: capture "delta": passes and sweeps follow the source; else clients do.
        sealed: the mapping is sealed.
        tries_rows: `apply` tries every row before the first write.
        source_bytes, mapping_bytes: as the service bills them.
    """

    source_rows: int
    largest_source_partition: int
    mapping: Batches
    fills: Sequence[TableFill]
    page_rows: int = MAX_PAGE_ROWS
    follows: bool = True
    sealed: bool = False
    tries_rows: bool = True
    source_bytes: int = 0
    mapping_bytes: int = 0

    @property
    def target_rows(self) -> int:
        """Return the rows of all target tables."""
        return sum(fill.rows for fill in self.fills)

    @property
    def target_batches(self) -> int:
        """Return the requests that write to all target tables."""
        return sum(fill.batches for fill in self.fills)

    @property
    def source_pages(self) -> int:
        """Return the requests of reading the source."""
        return pages(self.source_rows)

    @property
    def swept_pages(self) -> int:
        """Return the requests of a sweep: the source, and the mapping of one direction."""
        each = -(-self.source_rows // MAPPING_PARTITIONS_A_DIRECTION)
        return self.source_pages + MAPPING_PARTITIONS_A_DIRECTION * pages(each)

    @property
    def compared_pages(self) -> int:
        """Return the requests of a full verification."""
        return self.source_pages + sum(pages(fill.rows) for fill in self.fills)

    @property
    def filtered_pages(self) -> int:
        """Return the requests of a scan for what changed, where nothing did."""
        return max(1, -(-self.source_rows // FILTERED_ROWS))


def pages(rows: int) -> int:
    """Return how many requests reading so many rows of one range takes: at least one."""
    return max(1, -(-rows // MAX_PAGE_ROWS))


def requests_of(work: Workload, backfill_seconds: float) -> tuple[Requests, ...]:
    """Return the requests of all phases, in their order.

    Args:
        work: what is to be moved.
        backfill_seconds: how long the copy is expected to take: the journal is looked into meanwhile.
    """
    return tuple(one for one in _all(work, backfill_seconds) if one.count)


def _all(work: Workload, backfill_seconds: float) -> Iterator[Requests]:
    if work.tries_rows:
        yield Requests(PREPARE, "try every row: read the source", Kind.SCAN, work.source_pages)
    tables = len(work.fills)
    yield Requests(PREPARE, "look at target tables", Kind.SCAN, 2 * tables)
    yield Requests(PREPARE, "make target tables", Kind.TABLE, tables)
    yield from _control(PREPARE, work)
    yield from _control(DUAL_WRITE, work)
    copied = max(1, -(-work.source_rows // work.page_rows))
    split = SPLIT_REQUESTS if copied >= SPLIT_PAGES else 0
    yield Requests(BACKFILL, "copy: read the source", Kind.SCAN, copied + split)
    yield from _writes("the mapping", work.mapping)
    for fill in work.fills:
        yield from _writes(fill.table, Batches.of(fill.rows, fill.fills))
    yield Requests(BACKFILL, "sweep: read source and mapping", Kind.SCAN, work.swept_pages)
    if not work.follows:
        yield Requests(BACKFILL, "rows that moved: read the source", Kind.SCAN, work.filtered_pages)
        looks = 1 + int(backfill_seconds / SWEEP_SECONDS)
        yield Requests(BACKFILL, "journal: clients and intents", Kind.SCAN, 2 * looks)
        yield Requests(BACKFILL, "journal: the service's clock", Kind.TABLE, looks)
    yield from _control(BACKFILL, work)
    if work.follows:
        yield Requests(RECONCILE, "delta pass: read the source for changes", Kind.SCAN, work.filtered_pages)
        yield Requests(RECONCILE, "sweep: read source and mapping", Kind.SCAN, work.swept_pages)
    yield Requests(RECONCILE, "verification: read source and targets", Kind.SCAN, work.compared_pages)
    yield from _control(RECONCILE, work)
    if work.follows:
        yield Requests(CUTOVER, "last pass: read the source for changes", Kind.SCAN, work.filtered_pages)
        yield Requests(CUTOVER, "sweep: read source and mapping", Kind.SCAN, work.swept_pages)
        yield Requests(CUTOVER, "verification: read source and targets", Kind.SCAN, work.compared_pages)
        yield Requests(CUTOVER, "look for stray writers: read the source", Kind.SCAN, work.filtered_pages)
    yield from _control(CUTOVER, work)
    yield from _control(COMPLETE, work)
    yield Requests(RETIRE, "look for rows written since: read the source", Kind.SCAN, work.filtered_pages)
    yield Requests(RETIRE, "drop the source", Kind.TABLE, 1)
    yield from _control(RETIRE, work)


def _writes(table: str, sent: Batches) -> Iterator[Requests]:
    yield Requests(BACKFILL, f"write batches to {table}", Kind.BATCH, sent.batches, sent.operations)
    yield Requests(BACKFILL, f"write single rows to {table}", Kind.WRITE, sent.singles)


def _control(phase: str, work: Workload) -> Iterator[Requests]:
    costs = [(_CONTROL_DELTA if work.follows else _CONTROL_DUAL)[phase]]
    if work.sealed:
        costs.append(_SEALED.get(phase, {}))
    for kind in Kind:
        count = sum(cost.get(kind, 0) for cost in costs)
        yield Requests(phase, "locks, control row, clients, clock", kind, count)
