"""A stress test with an application's own mix of operations.

"All the required queries and storage operations" ("Designing a scalable partitioning strategy for Azure Table
storage") are tried together: at the shares that the application has, first on one partition, then on the
distribution that a table, a script or the file gives.

Rules kept here:

* Kinds are judged each by itself. Where the mix saturates, one of them does; what the others carry is found
  out afterwards, with one rising and the others at a rate that the mix carries with ease.
* Rows are loaded before anything is measured, by a connection that tries again. A step whose requests would
  need rows that are not there loads them first.
* The test table is made, noted and removed as in `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import compress

from rekey.core.clock import Clock
from rekey.core.concurrency import for_each
from rekey.core.progress import Advance, Progress
from rekey.stress.load import Generator, Load, carry_out
from rekey.stress.mix import Mix, OperationKind
from rekey.stress.mixreport import KindFound, MixReport, MixStage
from rekey.stress.mixsteps import (
    MixStep,
    judge_kinds,
    judge_mix,
    limiting,
    mix_saturation,
    mix_step,
    refusing,
    within,
)
from rekey.stress.ramp import FIRST, MOST, REST_SECONDS, Ramped, ramp
from rekey.stress.requests import Population, Request
from rekey.stress.run import Notes, test_table
from rekey.stress.spread import ONE_PARTITION, Spread, filling
from rekey.stress.steps import RISE, Bounds, Judged, Limit, saturation
from rekey.tables.base import Table, TableService

_BESIDE = 0.5
"""Part of what the mix carries that the other kinds are held at while one rises."""
_OVERLOAD = 1.5
"""Times the rate at which a ramp saturated that is offered once, to see what refuses."""
_LOADING = 8
"""Batches that load rows at the same time."""


async def stress_mix(
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
) -> MixReport:
    """Run one stress test. The caller holds the lock of the notes.

    Args:
        service: the account: makes, loads and removes the test table.
        generators: opens what sends requests to a table of this name, by connections that try nothing again.
        mix: what is sent.
        spreads: distributions to try after the single partition.
        bounds: of time, rows and load; `batch` is not used.
        notes: where test tables are noted.
        endpoint: the account's, for the notes.
        clock: tells when requests are due.
        progress: told of every step.

    Raises:
        ServiceError: the account cannot be used; the test table is removed all the same.
        WorkersFailed: a process that generates load ended; the test table is removed all the same.
        MachineFailed: the notes cannot be written.
    """
    stages: list[MixStage] = []
    async with (
        test_table(service, notes, endpoint) as (name, removed),
        generators(name) as generator,
    ):
        load = Load(generator, bounds, clock)
        for number, spread in enumerate([ONE_PARTITION, *spreads]):
            stage = _Stage(load, service.table(name), Population(spread, number, mix), spread, progress)
            # Kinds are not tried on one partition: that stage is about the partition.
            stages.append(await stage.run(of_each_kind=number > 0, left=len(spreads) + 1 - number))
    return MixReport(name, removed, mix, load.sent, load.spent, tuple(stages))


class _Stage:
    """One distribution, tried."""

    def __init__(
        self, load: Load, table: Table, population: Population, spread: Spread, progress: Progress
    ) -> None:
        self._load = load
        self._table = table
        self._population = population
        self._spread = spread
        self._progress = progress
        self._mix = population.mix
        self._value = filling(self._mix.row_bytes)

    async def run(self, *, of_each_kind: bool, left: int) -> MixStage:
        """Load the rows, and try the mix; then each kind. `left`: stages to come, this one included."""
        mix = self._mix
        with self._progress.task(f"load rows for {self._spread.name}") as advance:
            await self._write(self._population.loading(), advance)
        whole = await self._ramp(
            lambda rate: {kind: share * rate for kind, share in mix.shares.items()},
            first=self._spread.expected / mix.entities / FIRST,
            share=2 * left,  # half of what a stage may use: the rest is for each kind
        )
        found = mix_saturation(whole.steps, whole.judged, mix)
        judged: dict[OperationKind, list[Judged]] = {kind: [] for kind in mix.shares}
        judged |= judge_kinds(whole.steps)
        if of_each_kind:
            # Beyond its saturation the mix overloads what kinds have in common: that says nothing of one.
            held = [within(step, found) for step in whole.steps]
            judged = {kind: [*compress(steps, held)] for kind, steps in judged.items()}
        partitions, risen = refusing(whole.steps), dict[OperationKind, list[Judged]]()
        if of_each_kind and found.limit is Limit.SERVICE and found.clean is not None:
            rest = [kind for kind in mix.shares if saturation(judged[kind]).limit is Limit.NOTHING]
            for number, kind in enumerate(rest):
                alone = await self._rising(kind, found.clean, left * (len(rest) - number))
                for place, rate in refusing(alone.steps).items():
                    partitions[place] = min(rate, partitions.get(place, rate))
                risen[kind] = alone.judged
        clean = [
            step for step, one in zip(whole.steps, whole.judged, strict=True) if one.limit is Limit.NOTHING
        ]
        highest = max(clean, key=lambda step: step.rate, default=None)
        return MixStage(
            self._spread,
            self._population.spread.partitions,
            self._population.rows,
            found,
            limiting(whole.steps, found),
            tuple(
                KindFound(
                    kind,
                    share,
                    saturation([*judged[kind], *risen.get(kind, ())]),
                    None if highest is None else highest.kinds[kind],
                    tuple(risen.get(kind, ())),
                )
                for kind, share in mix.shares.items()
            ),
            partitions,
            tuple(whole.steps),
            tuple(whole.judged),
            whole.bounded,
        )

    async def _rising(self, kind: OperationKind, clean: float, share: int) -> Ramped[MixStep]:
        """Raise the rate of one kind, with the others at a part of a rate that the mix carries."""
        mix = self._mix
        beside = {one: _BESIDE * clean * part for one, part in mix.shares.items() if one is not kind}
        return await self._ramp(
            lambda rate: {**beside, kind: rate},
            first=clean * mix.shares[kind] * RISE,
            share=share,
            varied=kind,
        )

    async def _ramp(
        self,
        rates: Callable[[float], dict[OperationKind, float]],
        *,
        first: float,
        share: int,
        varied: OperationKind | None = None,
    ) -> Ramped[MixStep]:
        """Offer rates one after the other until the mix no longer holds.

        Args:
            rates: of each kind, for the rate that the ramp varies.
            first: where to begin.
            share: see `ramp`.
            varied: the kind whose rate the ramp varies; None: that of the whole mix.
        """
        mix = self._mix

        def entities(rate: float) -> float:
            return sum(part * mix.entities_of(kind) for kind, part in rates(rate).items())

        beside = entities(0.0)
        most = (self._load.bounds.most or self._spread.expected * MOST) / (entities(1.0) - beside)
        judge = partial(judge_mix, varied=varied)
        ramped = await ramp(
            self._load,
            partial(self._offer, rates),
            judge,
            first=first,
            most=most,
            share=share,
            told=f"{self._spread.name}, {varied or 'the mix'}",
            progress=self._progress,
            entities=entities(1.0) - beside,
            beside=beside,
        )
        found = saturation(ramped.judged)
        if found.saturated is None or not any(one.refused for one in ramped.judged):
            return ramped
        # A step just beyond a limit is refused a few requests: too few to tell which partition refuses them.
        more = min(most, _OVERLOAD * found.saturated)
        bounds = self._load.bounds
        left_s, rows_s = bounds.seconds - self._load.spent, (bounds.rows - self._load.sent) / entities(more)
        if max(step.rate for step in ramped.steps) < more and min(left_s, rows_s) >= bounds.step_seconds:
            ramped.steps.append(await self._offer(rates, more, bounds.step_seconds))
            await self._load.clock.sleep(REST_SECONDS)
        return ramped._replace(judged=judge(ramped.steps))

    async def _offer(
        self, rates: Callable[[float], dict[OperationKind, float]], rate: float, seconds: float
    ) -> MixStep:
        """Offer each kind at its rate for some seconds, and wait for all answers."""
        loading, requests = self._population.plan(rates(rate), seconds)
        await self._write(loading, lambda _rows: None)
        offered = await self._load.send(requests)
        self._population.done(offered.responses)
        return mix_step(offered, rate, seconds)

    async def _write(self, batches: Iterable[Request], advance: Advance) -> None:
        async def write(batch: Request) -> None:
            advance(await carry_out(self._table, batch, self._value))

        # One at a time into one partition: together they would go beyond what it takes.
        await for_each(batches, write, limit=min(_LOADING, self._population.spread.partitions))
