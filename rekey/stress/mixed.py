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
    mix_saturation,
    mix_step,
    partition_saturation,
)
from rekey.stress.ramp import FIRST, MOST, Ramped, ramp
from rekey.stress.requests import Population, Request
from rekey.stress.run import Notes, test_table
from rekey.stress.spread import ONE_PARTITION, Spread, filling
from rekey.stress.steps import RISE, Bounds, Limit, saturation
from rekey.tables.base import Table, TableService

_BESIDE = 0.5
"""Part of what the mix carries that the other kinds are held at while one rises."""
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
            # Each kind may need a ramp of its own, but on one partition, which is about the partition.
            left = len(spreads) - number
            stages.append(await stage.run(of_each_kind=number > 0, later=left * len(mix.shares)))
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

    async def run(self, *, of_each_kind: bool, later: int) -> MixStage:
        """Load the rows, and try the mix; then each kind. `later`: ramps that other stages may need."""
        mix, expected = self._mix, self._spread.expected
        with self._progress.task(f"load rows for {self._spread.name}") as advance:
            await self._write(self._population.loading(), advance)
        most = (self._load.bounds.most or expected * MOST) / mix.entities
        whole = await ramp(
            self._load,
            partial(self._offer, lambda rate: {kind: share * rate for kind, share in mix.shares.items()}),
            judge_mix,
            first=expected / mix.entities / FIRST,
            most=most,
            # Twice the part of a ramp of one kind: more has to be found.
            share=(later + len(mix.shares) + 1) / 2 if of_each_kind else later + 1,
            told=f"{self._spread.name}, the mix",
            progress=self._progress,
            entities=mix.entities,
        )
        judged = judge_kinds(whole.steps)
        found = mix_saturation(whole.judged, judged, mix)
        steps = list(whole.steps)
        if of_each_kind and found.limit is Limit.SERVICE and found.clean is not None:
            rest = [kind for kind in mix.shares if saturation(judged[kind]).limit is Limit.NOTHING]
            for number, kind in enumerate(rest):
                alone = await self._rising(kind, found.clean, later + len(rest) - number)
                steps += alone.steps
                judged[kind] = [*judged[kind], *alone.judged]
        clean = [
            step for step, one in zip(whole.steps, whole.judged, strict=True) if one.limit is Limit.NOTHING
        ]
        highest = max(clean, key=lambda step: step.rate, default=None)
        return MixStage(
            self._spread,
            self._population.spread.partitions,
            self._population.rows,
            found,
            tuple(
                KindFound(
                    kind,
                    share,
                    saturation(judged[kind]),
                    None if highest is None else highest.kinds[kind],
                )
                for kind, share in mix.shares.items()
            ),
            partition_saturation(steps),
            tuple(whole.steps),
            tuple(whole.judged),
            whole.bounded,
        )

    async def _rising(self, kind: OperationKind, clean: float, share: int) -> Ramped[MixStep]:
        """Raise the rate of one kind, with the others at a part of a rate that the mix carries."""
        mix, expected = self._mix, self._spread.expected
        beside = {one: _BESIDE * clean * part for one, part in mix.shares.items() if one is not kind}
        most = (self._load.bounds.most or expected * MOST) / mix.entities_of(kind)
        return await ramp(
            self._load,
            partial(self._offer, lambda rate: {**beside, kind: rate}),
            partial(judge_mix, varied=kind),
            first=clean * mix.shares[kind] * RISE,
            most=most,
            share=share,
            told=f"{self._spread.name}, {kind}",
            progress=self._progress,
            entities=mix.entities_of(kind),
            beside=sum(rate * mix.entities_of(one) for one, rate in beside.items()),
        )

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

        await for_each(batches, write, limit=_LOADING)
