"""Requests, durations, storage and money, from what was counted; arithmetic only. Pure.

Rules kept here:

* Targets of the service: 20,000 entities/s an account, 2,000 entities/s a partition ("Scalability and
  performance targets for Table storage"). What they allow is a lower bound on time: a promise of nothing.
* A scan of one range is serial: page after page; the copy reads several ranges at a time. The request time
  assumed is `ASSUMED_REQUEST_SECONDS`, and the plan says so.
* A configured rate counts source rows read and target rows written, as the throttle does.
* Storage is billed by the documented formula (`rekey.core.limits.entity_bytes`); target and mapping come on
  top of the source until `retire`, which the retention period puts off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rekey.core.limits import ACCOUNT_TARGET, PARTITION_TARGET
from rekey.plan.requests import BACKFILL, CUTOVER, RECONCILE, Workload, pages, requests_of
from rekey.plan.result import Duration, Estimate, Money, Requests, Storage
from rekey.project.config import Limits
from rekey.project.prices import Prices
from rekey.tables.sent import OPERATIONS

ASSUMED_REQUEST_SECONDS = 0.05
NO_PRICES = Prices()
MAPPING_ROWS_PER_SOURCE_ROW = 2
"""One forward, one reverse."""
_DAY = 86_400.0


def estimate(
    work: Workload, limits: Limits, *, retention_s: float = 0.0, prices: Prices = NO_PRICES
) -> Estimate:
    """Return the requests, durations, storage and money of a migration.

    Args:
        work: what is to be moved.
        limits: as configured.
        retention_s: seconds from `complete` to `retire`.
        prices: as configured.
    """
    reading = [_reading(RECONCILE, work, scans=3 if work.follows else 1)]
    if work.follows:
        reading.append(_reading(CUTOVER, work, scans=4))
    durations = (_backfill(work, limits), *reading)
    requests = tuple(one for one in requests_of(work, durations[0].at_limits_s) if one.count)
    expected = sum(one.at_limits_s for one in durations)
    storage = Storage(
        source_bytes=work.source_bytes,
        target_bytes=sum(fill.stored_bytes for fill in work.fills),
        mapping_bytes=work.mapping_bytes,
        days=(expected + retention_s) / _DAY,
    )
    return Estimate(
        requests=requests,
        durations=durations,
        storage=storage,
        money=money_of(requests, storage, prices),
        prices_missing=prices.missing,
    )


def counts_of(requests: Iterable[Requests]) -> Counter[str]:
    """Return requests by kind, as the runner counts those that it sends."""
    counts: Counter[str] = Counter()
    for one in requests:
        counts[one.kind.value] += one.count
        counts[OPERATIONS] += one.operations
    return counts


def money_of(requests: Iterable[Requests], storage: Storage, prices: Prices) -> Money | None:
    """Return what it costs, None when a price is missing."""
    counts = counts_of(requests)
    as_one = prices.requests(counts, batch_each=False)
    each = prices.requests(counts, batch_each=True)
    stored = prices.stored(storage.added_bytes, storage.days)
    if as_one is None or each is None or stored is None or prices.currency is None:
        return None
    return Money(prices.currency, as_one, each, stored)


def _backfill(work: Workload, limits: Limits) -> Duration:
    rows, both = work.source_rows, work.source_rows + work.target_rows
    source_hottest = work.largest_source_partition / PARTITION_TARGET
    hottest = sum(fill.hottest_seconds for fill in work.fills)
    targets = {
        "20,000 entities/s of the account": both / ACCOUNT_TARGET,
        "20,000 entities/s of the restricted account": MAPPING_ROWS_PER_SOURCE_ROW * rows / ACCOUNT_TARGET,
        "2,000 entities/s of the largest source partition": source_hottest,
        "2,000 entities/s of the targets' hottest partitions": hottest,
    }
    writes = (work.mapping.requests + work.target_batches) * ASSUMED_REQUEST_SECONDS
    reads = work.source_pages * ASSUMED_REQUEST_SECONDS
    bounds = {
        **targets,
        f"{limits.concurrency} requests at a time": writes / limits.concurrency,
        f"source pages, {limits.scans} at a time": reads / min(limits.scans, work.source_pages),
    }
    rate, partition_rate = limits.entities_per_second, limits.partition_entities_per_second
    if rate is not None:
        bounds[f"{rate:,} entities/s configured"] = both / rate
    if partition_rate is not None:
        slowest = PARTITION_TARGET / partition_rate * max(hottest, source_hottest)
        bounds[f"{partition_rate:,} entities/s of a partition configured"] = slowest
    return _duration(BACKFILL, targets, bounds, swept=rows)


def _reading(phase: str, work: Workload, *, scans: int) -> Duration:
    """A phase that reads the source `scans` times, the mapping and the targets once."""
    rows = scans * work.source_rows + work.target_rows
    hottest = scans * work.largest_source_partition / PARTITION_TARGET
    targets = {
        "20,000 entities/s of the account": rows / ACCOUNT_TARGET,
        "2,000 entities/s of the largest source partition": hottest,
    }
    pages_read = {"pages, one after another": scans * work.source_pages * ASSUMED_REQUEST_SECONDS}
    return _duration(phase, targets, targets | pages_read, swept=work.source_rows if work.follows else None)


def _duration(
    phase: str, targets: dict[str, float], limits: dict[str, float], *, swept: int | None
) -> Duration:
    """Return the slowest of each kind of bounds, plus the sweep's walk through `swept` mapping rows of one
    direction, page after page; None: there is no sweep."""
    by_target = max(targets, key=lambda name: targets[name])
    by_limit = max(limits, key=lambda name: limits[name])
    quickest = slowest = 0.0
    if swept is not None:
        quickest = swept / ACCOUNT_TARGET
        slowest = max(quickest, pages(swept) * ASSUMED_REQUEST_SECONDS)
    return Duration(
        phase=phase,
        at_targets_s=targets[by_target] + quickest,
        at_targets_bound=by_target,
        at_limits_s=limits[by_limit] + slowest,
        at_limits_bound=by_limit,
    )
