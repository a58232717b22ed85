"""One stress test: a table of its own, a ramp on one partition, then one for each distribution.

The published procedure ("Designing a scalable partitioning strategy for Azure Table storage"): make a test
table, load it, aim peak load at a single partition, and look at the throughput against the partition's
target; then do it with the distribution that is planned.

Rules kept here:

* Nothing is read or written but the test table, and it is removed however the test ends. What could not be
  removed stays noted (`notes.py`) for the next test.
* Time and rows are bounded for the whole test; stages that are still to come get their part.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from rekey.core.clock import TICKS_PER_SECOND, Clock
from rekey.core.progress import Progress
from rekey.errors import RekeyError, ServiceError
from rekey.stress.load import Offer, offer
from rekey.stress.notes import Notes, new_name
from rekey.stress.report import Bounds, Stage, StressReport
from rekey.stress.spread import ONE_PARTITION, MadeUp, Spread
from rekey.stress.steps import Judged, Limit, Step, judge_all, next_rate
from rekey.tables.base import Table, TableService

_FIRST = 8.0
"""A ramp begins at this part of what the targets allow."""
_MOST = 2.0
"""And ends at so many times as much, if nothing ends it before."""
_LOAD_SECONDS, _LOAD_SHARE = 2.0, 0.05
"""What is not measured at the beginning of a ramp, at most: seconds, and a share of its time and rows."""
_LEAST_STEP_SECONDS = 1.0
_REST_SECONDS = 1.0
"""What a service that refused is given to recover."""


class _Purse:
    """What is left of time and rows."""

    def __init__(self, bounds: Bounds, clock: Clock) -> None:
        self.bounds = bounds
        self._clock = clock
        self._began = clock.ticks()
        self.sent = 0

    @property
    def spent(self) -> float:
        """Return the seconds since the beginning."""
        return (self._clock.ticks() - self._began) / TICKS_PER_SECOND

    def share(self, stages: int) -> tuple[float, int]:
        """Return until which second, and up to which row, the first of so many stages may go."""
        seconds, rows = self.bounds.seconds - self.spent, self.bounds.rows - self.sent
        return self.spent + seconds / stages, self.sent + rows // stages


async def stress(
    service: TableService,
    loaded: TableService,
    spreads: Sequence[Spread],
    bounds: Bounds,
    *,
    notes: Notes,
    endpoint: str,
    clock: Clock,
    progress: Progress,
    processor: Callable[[], float] = time.process_time,
) -> StressReport:
    """Run one stress test. Whoever calls holds the lock of the notes.

    Args:
        service: the account: makes and removes the test table.
        loaded: the same account, by a connection that tries nothing again.
        spreads: distributions to try after the single partition.
        bounds: of time, rows and load.
        notes: where test tables are noted.
        endpoint: the account's, for the notes.
        clock: tells when requests are due.
        progress: told of every step.
        processor: seconds of processor that this process has used.

    Raises:
        ServiceError: the account cannot be used; the test table is removed all the same.
        MachineFailed: the notes cannot be written.
    """
    removed = await remove_leftovers(service, notes, endpoint)
    purse = _Purse(bounds, clock)
    stages: list[Stage] = []
    async with _test_table(service, notes, endpoint) as name:
        table = loaded.table(name)
        for number, spread in enumerate([ONE_PARTITION, *spreads]):
            ramp = _Ramp(table, MadeUp(spread, number), spread, purse, clock, processor)
            stages.append(await ramp.run(len(spreads) + 1 - number, progress))
    return StressReport(tuple(stages), table.name, tuple(removed), purse.sent, purse.spent, bounds.batch)


async def remove_leftovers(service: TableService, notes: Notes, endpoint: str) -> list[str]:
    """Remove the test tables that are noted for an account; return those that were there."""
    removed = []
    for name in notes.tables(endpoint):
        if await service.delete_table(name):
            removed.append(name)
        notes.drop(name)
    return removed


@contextlib.asynccontextmanager
async def _test_table(service: TableService, notes: Notes, endpoint: str) -> AsyncIterator[str]:
    name = new_name()
    notes.add(name, endpoint)
    try:
        await service.create_table(name)
        yield name
    finally:
        try:
            await service.delete_table(name)
        except ServiceError as error:
            raise RekeyError(
                f"the test table could not be removed ({error.code or error.status})",
                kept=f"the test table {name}, which holds made-up rows only",
                hint="repeat the command, which removes it first; or delete it by hand",
            ) from error
        notes.drop(name)


class _Ramp:
    """One stage: rates one after the other, as `next_rate` says."""

    def __init__(
        self,
        table: Table,
        rows: MadeUp,
        spread: Spread,
        purse: _Purse,
        clock: Clock,
        processor: Callable[[], float],
    ) -> None:
        self._table, self._rows, self._spread = table, rows, spread
        self._purse, self._clock, self._processor = purse, clock, processor
        self._steps: list[Step] = []

    async def run(self, stages: int, progress: Progress) -> Stage:
        """Ramp up until it saturates, or `1/stages` of what is left is used up."""
        purse, spread = self._purse, self._spread
        until, upto = purse.share(stages)
        name = spread.table or "one partition"
        first, most = spread.expected / _FIRST, purse.bounds.most or spread.expected * _MOST
        bounded = ""
        judged: list[Judged] = []
        with progress.task(f"stress {name}") as advance:
            await self._load(min(first, most), until, upto)
            while (rate := next_rate(judged, first=first, most=most)) is not None:
                seconds = min(purse.bounds.step_seconds, until - purse.spent, (upto - purse.sent) / rate)
                if seconds < min(_LEAST_STEP_SECONDS, purse.bounds.step_seconds):
                    bounded = "rows" if (upto - purse.sent) / rate <= until - purse.spent else "seconds"
                    break
                before = purse.sent
                self._steps.append(await self._offer(rate, seconds))
                advance(purse.sent - before)
                judged = judge_all(self._steps)
                if judged[-1].limit is not Limit.NOTHING:
                    await self._clock.sleep(_REST_SECONDS)
        return Stage(name, spread, spread.expected, tuple(judged), bounded)

    async def _load(self, rate: float, until: float, upto: int) -> None:
        """Put the first rows into the table; what connecting and making partitions takes goes here."""
        purse = self._purse
        bounds = _LOAD_SECONDS, _LOAD_SHARE * (until - purse.spent), _LOAD_SHARE * (upto - purse.sent) / rate
        await self._offer(rate, min(bounds))

    async def _offer(self, rate: float, seconds: float) -> Step:
        purse = self._purse
        given = Offer(rate, seconds, purse.bounds.batch)
        purse.sent += given.requests * given.batch
        return await offer(self._table, self._rows, given, self._clock, processor=self._processor)
