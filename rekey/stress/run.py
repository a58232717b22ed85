"""One stress test: a table of its own, a ramp on one partition, then ramps for each distribution.

The published procedure ("Designing a scalable partitioning strategy for Azure Table storage"): make a test
table, load it, aim peak load at a single partition, and look at the throughput against the partition's
target; then do it with the distribution that is planned, with "all the required queries and storage
operations".

Rules kept here:

* Nothing is written but the test table, which `notes` removes however the test ends.
* Rows are loaded before anything is measured, by a connection that tries again. A step whose requests would
  need rows that are not there loads them first.
* Where the mix saturates, one of its kinds does. What the others carry is found out afterwards, with one kind
  rising and the others at a rate that the mix carries with ease.
* Time and rows are bounded for the whole test; stages that are still to come get their part.
* Connecting, and what the service does for new partitions, is not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from rekey.core.clock import Clock
from rekey.core.concurrency import for_each
from rekey.core.progress import Advance, Progress
from rekey.stress.judge import (
    RISE,
    Judged,
    Limit,
    judge_kinds,
    judge_ramp,
    next_rate,
    saturation,
)
from rekey.stress.load import Generator, carry_out
from rekey.stress.mix import Mix, OperationKind
from rekey.stress.notes import Notes
from rekey.stress.report import Stage, StressReport
from rekey.stress.requests import Offered, Population, Request
from rekey.stress.spread import ONE_PARTITION, Spread
from rekey.stress.steps import Step, measure
from rekey.tables.base import Table, TableService

_FIRST, _MOST = 1 / 8, 2.0
"""A ramp begins and ends at these parts of what the targets allow, if nothing ends it before."""
_HELD = 0.5
"""Part of what the mix carries that the other kinds are held at while one rises."""
_WARM_SECONDS, _WARM_SHARE = 2.0, 0.05
"""What is not measured at the beginning of a ramp, at most: seconds, and a share of its time and rows."""
_LEAST_STEP_SECONDS = 1.0
_REST_SECONDS = 1.0
"""Time that a service that refused is given to recover."""
_LOADING = 8
"""Batches that load rows at the same time."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a stress test.

    Attributes:
        seconds: of the whole test.
        rows: entities sent or asked for in the whole test.
        step_seconds: of one step.
        most: entities a second to offer at most; None: twice what the targets allow.
    """

    seconds: float = 300.0
    rows: int = 300_000
    step_seconds: float = 5.0
    most: float | None = None


async def stress(
    service: TableService,
    generators: Callable[[str], AbstractAsyncContextManager[Generator]],
    mix: Mix,
    spreads: Sequence[Spread],
    bounds: Bounds,
    *,
    notes: Notes,
    endpoint: str,
    clock: Clock,
    progress: Progress,
) -> StressReport:
    """Run one stress test. The caller holds the lock of the notes.

    Args:
        service: the account: makes, loads and removes the test table.
        generators: opens a load generator for the table of a name, on connections that try nothing again.
        mix: operations to send.
        spreads: distributions to try after the single partition.
        bounds: of time, rows and load.
        notes: where test tables are noted.
        endpoint: the account's, for the notes.
        clock: tells when requests are due.
        progress: told of every step.

    Raises:
        ServiceError: the account cannot be used; the test table is removed before.
        WorkersFailed: a process that generates load ended; the test table is removed before.
        MachineFailed: the notes cannot be written.
        RekeyError: the test table could not be removed.
    """
    stages: list[Stage] = []
    async with notes.table(service, endpoint) as (name, removed), generators(name) as generator:
        load = _Load(generator, bounds, clock)
        for number, spread in enumerate([ONE_PARTITION, *spreads]):
            population = Population(spread, number, mix)
            stage = _Stage(load, service.table(name), population, progress)
            stages.append(await stage.run(len(spreads) + 1 - number))
    return StressReport(name, removed, mix, load.sent, load.spent, tuple(stages))


class _Load:
    """The load of one test, and what is left of its time and rows."""

    def __init__(self, generator: Generator, bounds: Bounds, clock: Clock) -> None:
        self.bounds = bounds
        self.clock = clock
        self.sent = 0
        self._generator = generator
        self._began = clock.rising()

    @property
    def spent(self) -> float:
        return self.clock.rising() - self._began

    def share(self, parts: int) -> tuple[float, int]:
        """Return the second, and the row, up to which the next of so many parts may go."""
        seconds, rows = self.bounds.seconds - self.spent, self.bounds.rows - self.sent
        return self.spent + seconds / parts, self.sent + rows // parts

    async def send(self, requests: Sequence[Request]) -> Offered:
        self.sent += sum(request.size for request in requests)
        return await self._generator.offer(requests)


class _Stage:
    """One distribution that is tried."""

    def __init__(self, load: _Load, table: Table, population: Population, progress: Progress) -> None:
        self._load = load
        self._table = table
        self._population = population
        self._progress = progress
        self._mix = population.mix
        self._spread = population.spread

    async def run(self, left: int) -> Stage:
        """Load the rows, and try the mix; then each kind of operation. `left`: stages to come, with this."""
        mix, spread = self._mix, self._spread
        if mix.rows:
            with self._progress.task(f"load rows for {spread.name}") as advance:
                await self._write(self._population.loading(), advance)
        first = spread.expected * _FIRST / mix.entities(mix.operations)
        # Half of what a stage may use is for ramps of each kind.
        parts = 2 if len(mix.shares) > 1 else 1
        ramped, bounded = await self._ramp(mix.operations, {}, first=first, parts=left * parts)
        found, steps = saturation(ramped), [one.step for one in ramped]
        if spread.table and found.saturated is not None:
            # Beyond its saturation the mix overloads what all kinds have in common.
            steps = [step for step in steps if step.offered <= found.saturated]
        of_kinds, risen = judge_kinds(steps), dict[OperationKind, list[Judged]]()
        # Kinds are not tried on one partition: that stage is about the partition.
        if spread.table and found.limit is Limit.SERVICE and found.clean is not None:
            rest = [kind for kind, judged in of_kinds.items() if saturation(judged).limit is Limit.NOTHING]
            for number, kind in enumerate(rest):
                held = {one: _HELD * found.clean * share for one, share in mix.shares.items() if one != kind}
                first = found.clean * mix.shares[kind] * RISE
                parts = left * (len(rest) - number)
                risen[kind], _ = await self._ramp({kind: 1.0}, held, first=first, parts=parts)
        kinds = {kind: saturation([*of_kinds.get(kind, ()), *risen.get(kind, ())]) for kind in mix.shares}
        return Stage(mix, spread, self._population.rows, tuple(ramped), kinds, risen, bounded)

    async def _ramp(
        self,
        varied: Mapping[OperationKind, float],
        held: Mapping[OperationKind, float],
        *,
        first: float,
        parts: int,
    ) -> tuple[list[Judged], str]:
        """Offer rates one after the other until one saturates, or a part of what is left is used up.

        Args:
            varied: operations of each kind in a rate of 1.
            held: operations a second of other kinds, at any rate.
            first: the first rate.
            parts: what is left of time and rows is for so many ramps.

        Returns:
            The steps, and what ended the ramp early: `rows`, `seconds` or "".
        """
        load, bounds, mix = self._load, self._load.bounds, self._mix
        unit, beside = mix.entities(varied), mix.entities(held)
        most = (bounds.most or self._spread.expected * _MOST) / unit
        until, upto = load.share(parts)
        steps: list[Step] = []
        judged: list[Judged] = []

        async def offer(rate: float, seconds: float) -> Step:
            rates = {**held, **{kind: part * rate for kind, part in varied.items()}}
            loading, requests = self._population.plan(rates, seconds)
            await self._write(loading, lambda _rows: None)
            offered = await load.send(requests)
            return measure(offered, rate, seconds, varied, by_row=mix.by_row)

        rising = f", {next(iter(varied)).label}" if held else ""
        with self._progress.task(f"stress {self._spread.name}{rising}") as advance:
            begin = min(first, most)
            left_s, rows_s = until - load.spent, (upto - load.sent) / (begin * unit + beside)
            await offer(begin, min(_WARM_SECONDS, _WARM_SHARE * left_s, _WARM_SHARE * rows_s))
            several = self._spread.partitions > 1
            while (rate := next_rate(judged, first=first, most=most, overload=several)) is not None:
                left_s, rows_s = until - load.spent, (upto - load.sent) / (rate * unit + beside)
                seconds = min(bounds.step_seconds, left_s, rows_s)
                if seconds < min(_LEAST_STEP_SECONDS, bounds.step_seconds):
                    return judged, "rows" if rows_s <= left_s else "seconds"
                before = load.sent
                steps.append(await offer(rate, seconds))
                advance(load.sent - before)
                judged = judge_ramp(steps)
                if judged[-1].limit is not Limit.NOTHING:
                    await load.clock.sleep(_REST_SECONDS)
        return judged, ""

    async def _write(self, batches: Iterable[Request], advance: Advance) -> None:
        async def write(batch: Request) -> None:
            advance(await carry_out(self._table, batch))

        # One at a time into one partition: together they would go beyond what it takes.
        await for_each(batches, write, limit=min(_LOADING, self._spread.partitions))
