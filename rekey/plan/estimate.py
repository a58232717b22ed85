"""What a migration costs: requests of its phases, durations, storage, money. Pure; arithmetic only. It is of
an undisturbed run without changes, each phase once, by the commands of the runbooks;
`tests/scenarios/plan/test_against_actual.py` compares the requests with runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rekey.core.limits import ACCOUNT_TARGET, GATE_SAMPLE, PARTITION_TARGET, USED_SHARE
from rekey.core.texts import table
from rekey.declaration.migration import Keeping
from rekey.inspect.inventory import GUESS_PROBES, GUESS_ROWS
from rekey.plan.result import Duration, Estimate, Money, OtherAccount, Requests, Storage, TableFill
from rekey.project.config import Limits
from rekey.project.prices import Prices
from rekey.tables.base import MAX_PAGE_ROWS
from rekey.tables.sent import OPERATIONS, RequestKind

PREPARE, DUAL_WRITE, BACKFILL, RECONCILE = "prepare", "dual_write", "backfill", "reconcile"
CUTOVER, COMPLETE, RETIRE = "cutover", "complete", "retire"

ASSUMED_REQUEST_SECONDS = 0.05
NO_PRICES = Prices()
# One forward, one reverse.
MAPPING_ROWS_PER_SOURCE_ROW = 2
DAY_S = 86_400.0
# Rows a second that one processor copies with their mapping rows, and compares (`benchmarks/README.md`).
COPIED_A_SECOND, COMPARED_A_SECOND = 25_000, 165_000
# Bytes of a temporary file for each row that a comparison notes (`rekey.verify.trace`).
TRACED_BYTES = 20
MAPPING_PARTITIONS_A_DIRECTION = 32
# A scan for changed rows reads all and returns few: the service answers after 5 seconds at the latest ("Query
# timeout and pagination"), and is assumed to get through so many rows in that time.
FILTERED_ROWS = 50_000
# From so many pages of the copy on (small windows make small pages), idle readers split what is unread.
SPLIT_PAGES = 12
# Requests that all splits of one copy add, to find keys in the middle and for pages that end early: thirty
# where writing waits for reading, none where reading waits for writing, which is not known beforehand.
SPLIT_REQUESTS = 15
# Seconds between two sweeps of the journal while the runner works (`rekey.runner.clients`).
SWEEP_SECONDS = 5.0

# Counted in runs. The service's clock has whole seconds and is read until it has moved on: half a second of
# requests on average.
_CONTROL: Mapping[str, Mapping[str, Mapping[str, int]]]
_CONTROL = table(Path(__file__).with_name("control_requests.toml"))


@dataclass(frozen=True, slots=True)
class Batches:
    """Requests that write rows: batches, single inserts, and the rows in the batches."""

    batches: int
    singles: int
    operations: int

    @classmethod
    def of(cls, rows: int, fills: Mapping[int, int]) -> Batches:
        """Return the requests that write `rows` rows in batches as full as those of `fills` (number of
        batches by rows in a batch)."""
        packed = sum(fill * number for fill, number in fills.items())
        if not packed:
            return cls(0, 0, 0)
        # A batch of one row is sent as a single insert.
        singles = round(fills.get(1, 0) * rows / packed)
        batches = round(sum(number for fill, number in fills.items() if fill > 1) * rows / packed)
        return cls(batches, singles, max(0, rows - singles) if batches else 0)

    @property
    def requests(self) -> int:
        """The number of requests."""
        return self.batches + self.singles


@dataclass(frozen=True, slots=True)
class Workload:
    """The rows to be moved, and how."""

    source_rows: int
    largest_source_partition: int
    # The requests that write the mapping rows; `fills`: what each target table gets.
    mapping: Batches
    fills: Sequence[TableFill]
    # Rows of a page of the copy; fewer than 1,000 where windows are smaller.
    page_rows: int = MAX_PAGE_ROWS
    # Capture "delta": repairing comparisons follow the source; else clients do.
    follows: bool = True
    keeping: Keeping = "plain"
    # `apply` maps every row before the first write.
    tries_rows: bool = True
    # As the service bills them (`rekey.core.limits.entity_bytes`).
    source_bytes: int = 0
    mapping_bytes: int = 0
    # Target rows in another account than the source.
    rows_elsewhere: int = 0
    # The restricted store is in the account of the source.
    mapping_with_tables: bool = False

    def through_account(self, scans: int = 1, *, mapping_rows: int = 0) -> int:
        """Return the rows that pass through the busier account, with the source read `scans` times and
        `mapping_rows` written."""
        here = scans * self.source_rows + self.target_rows - self.rows_elsewhere
        here += mapping_rows if self.mapping_with_tables else 0
        return max(here, self.rows_elsewhere)

    @property
    def mapping_rows(self) -> int:
        return 0 if self.keeping == "none" else MAPPING_ROWS_PER_SOURCE_ROW * self.source_rows

    @property
    def comparison_bytes(self) -> int:
        """The bytes of temporary files of a comparison that repairs: it notes each row of both sides."""
        return 2 * self.target_rows * TRACED_BYTES if self.follows else 0

    @property
    def tables(self) -> list[tuple[TableFill, int]]:
        """The target tables, each with all its rows."""
        return [(fill, fill.table_rows) for fill in self.fills if not fill.with_main]

    @property
    def target_rows(self) -> int:
        return sum(fill.rows for fill in self.fills)

    @property
    def last_partition_s(self) -> float:
        """Seconds in which only one partition is left to read: a partition has one reader, and which one is
        read last is chance. Half of what the largest takes, as counted in `benchmarks/scale.py`."""
        return self.largest_source_partition / PARTITION_TARGET / 2

    @property
    def source_pages(self) -> int:
        """The requests of reading the source."""
        return pages(self.source_rows)

    @property
    def compared_pages(self) -> int:
        """The requests of a full verification."""
        return self.source_pages + sum(pages(rows) for _, rows in self.tables)

    @property
    def filtered_pages(self) -> int:
        """The requests of a scan for changed rows that finds none."""
        return max(1, -(-self.source_rows // FILTERED_ROWS))


def pages(rows: int) -> int:
    """Return the number of requests that read so many rows of one range: at least one."""
    return max(1, -(-rows // MAX_PAGE_ROWS))


def requests_of(work: Workload, backfill_seconds: float) -> Iterator[Requests]:
    """Yield the requests of all phases in order; some counts may be 0. `backfill_seconds`: expected duration
    of the copy, during which the journal is read every `SWEEP_SECONDS`."""
    if work.tries_rows:
        yield Requests(PREPARE, "try every row: read the source", RequestKind.SCAN, work.source_pages)
        if work.source_rows > GUESS_ROWS:
            yield Requests(PREPARE, "try every row: how many there are", RequestKind.SCAN, GUESS_PROBES)
    tables = len(work.tables)
    yield Requests(PREPARE, "look at target tables", RequestKind.SCAN, 2 * tables)
    yield Requests(PREPARE, "make target tables", RequestKind.TABLE, tables)
    yield from _control(PREPARE, work)
    yield from _control(DUAL_WRITE, work)
    since = "look for rows written since: read the source"
    copied = max(1, -(-work.source_rows // work.page_rows))
    split = SPLIT_REQUESTS if copied >= SPLIT_PAGES else 0
    yield Requests(BACKFILL, "copy: read the source", RequestKind.SCAN, copied + split)
    yield from _writes("the mapping", work.mapping)
    for fill, rows in work.tables:
        yield from _writes(fill.table, Batches.of(rows, fill.fills))
    if not work.follows:
        each = -(-work.source_rows // MAPPING_PARTITIONS_A_DIRECTION)
        swept = work.source_pages + MAPPING_PARTITIONS_A_DIRECTION * pages(each)
        yield Requests(BACKFILL, "sweep: read source and mapping", RequestKind.SCAN, 1 + swept)
        yield Requests(BACKFILL, "rows that moved: read the source", RequestKind.SCAN, work.filtered_pages)
        rounds = 1 + int(backfill_seconds / SWEEP_SECONDS)
        yield Requests(BACKFILL, "journal: clients and intents", RequestKind.SCAN, 2 * rounds)
        yield Requests(BACKFILL, "journal: the service's clock", RequestKind.TABLE, rounds)
    yield from _control(BACKFILL, work)
    yield Requests(RECONCILE, "comparison: read source and targets", RequestKind.SCAN, work.compared_pages)
    if work.follows:
        yield Requests(RECONCILE, since, RequestKind.SCAN, work.filtered_pages)
        yield Requests(RECONCILE, "see that the source is not empty", RequestKind.SCAN, 1)
    yield from _control(RECONCILE, work)
    if work.follows:
        yield Requests(CUTOVER, "see that the source is not empty", RequestKind.SCAN, 1)
        yield Requests(CUTOVER, "comparison: read source and targets", RequestKind.SCAN, work.compared_pages)
        yield Requests(
            CUTOVER, "look for stray writers: read the source", RequestKind.SCAN, work.filtered_pages
        )
    yield Requests(CUTOVER, "see that source and targets are there", RequestKind.SCAN, 1 + tables)
    if work.keeping != "none":
        looked_up = MAPPING_ROWS_PER_SOURCE_ROW * min(work.source_rows, GATE_SAMPLE)
        yield Requests(CUTOVER, "see that a sample is in the mapping: read the source", RequestKind.SCAN, 1)
        yield Requests(CUTOVER, "see that a sample is in the mapping", RequestKind.READ, looked_up)
    yield from _control(CUTOVER, work)
    yield Requests(COMPLETE, "see that the targets are there", RequestKind.SCAN, tables)
    yield from _control(COMPLETE, work)
    yield Requests(RETIRE, "backup: export the source", RequestKind.SCAN, work.source_pages + split)
    yield Requests(RETIRE, "backup: compare the source with it", RequestKind.SCAN, work.source_pages)
    counted = work.source_pages + pages(work.tables[0][1])
    yield Requests(RETIRE, "count: read keys of source and main target", RequestKind.SCAN, counted)
    yield Requests(RETIRE, since, RequestKind.SCAN, work.filtered_pages)
    yield Requests(RETIRE, "drop the source", RequestKind.TABLE, 1)
    yield from _control(RETIRE, work)


def _writes(table: str, sent: Batches) -> Iterator[Requests]:
    yield Requests(BACKFILL, f"write batches to {table}", RequestKind.BATCH, sent.batches, sent.operations)
    yield Requests(BACKFILL, f"write single rows to {table}", RequestKind.WRITE, sent.singles)


def _control(phase: str, work: Workload) -> Iterator[Requests]:
    kept = ["delta" if work.follows else "dual-write", *(["sealed"] if work.keeping == "sealed" else [])]
    for kind in RequestKind:
        count = sum(_CONTROL[section].get(phase, {}).get(kind, 0) for section in kept)
        yield Requests(phase, "locks, phases, clients, clock", kind, count)


def estimate(
    work: Workload,
    limits: Limits,
    *,
    retention_s: float = 0.0,
    prices: Prices = NO_PRICES,
    referring: Iterable[Requests] = (),
) -> Estimate:
    """Return the requests, durations, storage and money of a migration.

    Args:
        work: what is moved, and how.
        limits: those in force.
        retention_s: seconds from `complete` to `retire`.
        prices: of the service.
        referring: the requests that look for rows which are referred to.
    """
    durations = durations_of(work, limits)
    likely_s = sum(duration.at_limits_s for duration in durations)
    [backfill_s] = [duration.at_limits_s for duration in durations if duration.phase == BACKFILL]
    every = (*referring, *requests_of(work, backfill_s))
    requests = tuple(requests for requests in every if requests.count)
    days = (likely_s + retention_s) / DAY_S
    target_bytes = sum(fill.stored_bytes for fill in work.fills)
    storage = Storage(work.source_bytes, target_bytes, work.mapping_bytes, days)
    return Estimate(
        requests=requests,
        durations=tuple(durations),
        storage=storage,
        money=money_of(requests, storage, prices),
        prices_missing=prices.missing,
        mapping_rows=work.mapping_rows,
        other_accounts=tuple(_other_accounts(work, limits, likely_s)),
    )


def durations_of(work: Workload, limits: Limits) -> list[Duration]:
    """Return how long each phase takes that reads or writes all rows."""
    durations = [_row_check(work)] if work.tries_rows else []
    durations.append(_backfill(work, limits))
    if not work.follows:
        return [*durations, _comparing(RECONCILE, work, limits, scans=1)]
    return durations + [_comparing(phase, work, limits, scans=2) for phase in (RECONCILE, CUTOVER)]


def _other_accounts(work: Workload, limits: Limits, likely_s: float) -> Iterator[OtherAccount]:
    """Yield the accounts of their own that would save a tenth of a migration of a day and more."""
    others = {
        "targets": replace(work, rows_elsewhere=work.target_rows),
        "restricted": replace(work, mapping_with_tables=False),
    }
    for section, other in others.items():
        takes_s = sum(duration.at_limits_s for duration in durations_of(other, limits))
        if likely_s >= DAY_S and takes_s <= 0.9 * likely_s:
            yield OtherAccount(section, takes_s)


def counts_of(requests: Iterable[Requests]) -> Counter[str]:
    """Return requests by kind, as the runner counts those that it sends."""
    counts: Counter[str] = Counter()
    for request in requests:
        counts[request.kind.value] += request.count
        counts[OPERATIONS] += request.operations
    return counts


def money_of(requests: Iterable[Requests], storage: Storage, prices: Prices) -> Money | None:
    """Return what requests and storage cost; None when a price is missing."""
    counts = counts_of(requests)
    as_one = prices.requests(counts, batch_each=False)
    each = prices.requests(counts, batch_each=True)
    stored = prices.stored(storage.added_bytes, storage.days)
    if as_one is None or each is None or stored is None or prices.currency is None:
        return None
    return Money(prices.currency, as_one, each, stored)


def _backfill(work: Workload, limits: Limits) -> Duration:
    rows, mapping_rows = work.source_rows, work.mapping_rows
    both, last_s = work.through_account(mapping_rows=mapping_rows), work.last_partition_s
    source_hottest = work.largest_source_partition / PARTITION_TARGET
    hottest = sum(fill.hottest_seconds for fill in work.fills)
    targets = {
        "20,000 entities/s of the account": both / ACCOUNT_TARGET + last_s,
        "20,000 entities/s of the restricted account": mapping_rows / ACCOUNT_TARGET,
        "2,000 entities/s of the largest source partition": source_hottest,
        "2,000 entities/s of the targets' hottest partitions": hottest,
    }
    writes = (work.mapping.requests + sum(fill.batches for fill in work.fills)) * ASSUMED_REQUEST_SECONDS
    reads = work.source_pages * ASSUMED_REQUEST_SECONDS
    # A scan of one range is serial, page after page; the copy reads several ranges at a time.
    bounds = {
        **targets,
        f"{limits.concurrency} requests at a time": writes / limits.concurrency,
        f"source pages, {limits.scans} at a time": reads / min(limits.scans, work.source_pages),
        f"{COPIED_A_SECOND:,} rows/s of one processor": rows / COPIED_A_SECOND,
    }
    rate, partition_rate = limits.account_rate, limits.partition_entities_per_second
    if rate is not None:
        bounds[f"{rate:,} entities/s configured"] = both / (rate * USED_SHARE) + last_s
    if partition_rate is not None:
        slowest = PARTITION_TARGET / (partition_rate * USED_SHARE) * max(hottest, source_hottest)
        bounds[f"{partition_rate:,} entities/s of a partition configured"] = slowest
    return _duration(BACKFILL, targets, bounds, swept=None if work.follows else rows)


def _row_check(work: Workload) -> Duration:
    """Return how long reading the source once and mapping its rows takes."""
    targets = {
        "20,000 entities/s of the account": work.source_rows / ACCOUNT_TARGET,
        "2,000 entities/s of the largest source partition": work.largest_source_partition / PARTITION_TARGET,
    }
    pages_read = {"pages, one after another": work.source_pages * ASSUMED_REQUEST_SECONDS}
    return _duration(PREPARE, targets, targets | pages_read, swept=None)


def _comparing(phase: str, work: Workload, limits: Limits, *, scans: int) -> Duration:
    """Return the duration of a phase that reads the source `scans` times, to compare it with the targets and
    for rows written since, and the targets once."""
    rows, last_s = work.through_account(scans), work.last_partition_s
    hottest = scans * work.largest_source_partition / PARTITION_TARGET
    targets = {
        "20,000 entities/s of the account": rows / ACCOUNT_TARGET + last_s,
        "2,000 entities/s of the largest source partition": hottest,
    }
    bounds = {
        **targets,
        "pages, one after another": scans * work.source_pages * ASSUMED_REQUEST_SECONDS,
        f"{COMPARED_A_SECOND:,} rows/s of one processor": rows / COMPARED_A_SECOND,
    }
    if (rate := limits.account_rate) is not None:
        bounds[f"{rate:,} entities/s configured"] = rows / (rate * USED_SHARE) + last_s
    return _duration(phase, targets, bounds, swept=None)


def _duration(
    phase: str, targets: dict[str, float], limits: dict[str, float], *, swept: int | None
) -> Duration:
    """Return the duration by the slowest of each kind of bounds, plus the sweep's walk through `swept`
    mapping rows of one direction, page after page; None: no sweep."""
    by_target = max(targets, key=lambda name: targets[name])
    by_limit = max(limits, key=lambda name: limits[name])
    quickest = slowest = 0.0
    if swept is not None:
        quickest = swept / ACCOUNT_TARGET
        slowest = max(quickest, pages(swept) * ASSUMED_REQUEST_SECONDS)
    return Duration(phase, targets[by_target] + quickest, by_target, limits[by_limit] + slowest, by_limit)
