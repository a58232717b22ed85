"""One stress test: a table of its own, a ramp on one partition, then ramps for each distribution.

The published procedure ("Designing a scalable partitioning strategy for Azure Table storage"): make a test
table, load it, aim peak load at a single partition, and compare the throughput with the partition's target;
then repeat with the planned distribution and "all the required queries and storage operations".
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from rekey.core.clock import Clock
from rekey.core.concurrency import for_each
from rekey.core.progress import Advance, Progress
from rekey.errors import MachineFailed, RekeyError, ServiceError, reason_of
from rekey.project.privatefiles import write_whole
from rekey.stress.judge import RISE, Judged, Limit, Step, judge_ramp, measure, next_rate, saturation
from rekey.stress.load import Generator, carry_out
from rekey.stress.mix import Mix, OperationKind
from rekey.stress.report import Stage, StressReport
from rekey.stress.requests import Population, Request
from rekey.stress.spread import ONE_PARTITION, Spread
from rekey.tables.base import TableService

# A ramp begins and ends at these multiples of what the targets allow.
_FIRST, _MOST = 1 / 8, 2.0
# Share of the mix's clean rate at which the other kinds stay while one rises.
_OTHERS_SHARE = 0.5
# Limits of the unmeasured warm-up of a ramp (connections, new partitions): seconds, and a share of its time
# and rows.
_WARM_SECONDS, _WARM_SHARE = 2.0, 0.05
_LEAST_STEP_SECONDS = 1.0
# Seconds for the service to recover after refusals.
_REST_SECONDS = 1.0
# Concurrent batches that load rows.
_LOADING = 8
PREFIX = "rekeystress"
_SUFFIX = ".stress"
_NOTE = re.compile(rf"({PREFIX}[0-9a-f]{{16}}) (\S+)")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a stress test."""

    # Of the whole test.
    seconds: float = 300.0
    # Entities sent or asked for in the whole test.
    rows: int = 300_000
    # Of one step.
    step_seconds: float = 5.0
    # Maximum entities per second to offer; None: twice what the targets allow.
    most: float | None = None


def new_name() -> str:
    """Return a unique name for a test table."""
    return PREFIX + secrets.token_hex(8)


class Notes:
    """The existing test tables of a project: noted durably before they are created, so that the next test
    removes what a killed one left. Only noted tables are ever removed. The caller holds the lock of the
    notes."""

    def __init__(self, state: Path) -> None:
        """Create them next to the state file `state`."""
        self.path = state.with_name(state.name + _SUFFIX)

    @asynccontextmanager
    async def table(self, service: TableService, endpoint: str) -> AsyncIterator[tuple[str, tuple[str, ...]]]:
        """Create a test table, and delete it at the end; tables that an earlier test left are deleted before.

        Yields:
            The table's name, and the names of the tables that were left.

        Raises:
            ServiceError: the account cannot be used.
            MachineFailed: the notes cannot be written.
            RekeyError: the table could not be deleted at the end.
        """
        removed = []
        for left in self.tables(endpoint):
            if await service.delete_table(left):
                removed.append(left)
            self.drop(left)
        name = new_name()
        self.add(name, endpoint)
        try:
            await service.create_table(name)
            yield name, tuple(removed)
        finally:
            try:
                await service.delete_table(name)
            except ServiceError as error:
                raise RekeyError(
                    f"the test table could not be removed ({error.code or error.status})",
                    kept=f"the test table {name}, which holds made-up rows only",
                    hint="repeat the command, which removes it first; or delete it by hand",
                ) from error
            self.drop(name)

    def tables(self, endpoint: str) -> list[str]:
        """Return the noted tables of an account. Raises MachineFailed."""
        return [name for name, where in self._read() if where == endpoint]

    def add(self, name: str, endpoint: str) -> None:
        """Note a table that is about to be created. Raises MachineFailed."""
        self._write([*self._read(), (name, endpoint)])

    def drop(self, name: str) -> None:
        """Remove the note of a deleted table. Raises MachineFailed."""
        left = [note for note in self._read() if note[0] != name]
        if left:
            self._write(left)
        else:
            self.path.unlink(missing_ok=True)

    def _read(self) -> list[tuple[str, str]]:
        try:
            text = self.path.read_text("utf-8")
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise self._failed("read", error) from None
        # A truncated line is of a table that was not created.
        matches = [_NOTE.fullmatch(line) for line in text.split("\n")[:-1]]
        return [(match[1], match[2]) for match in matches if match]

    def _write(self, notes: list[tuple[str, str]]) -> None:
        text = "".join(f"{name} {endpoint}\n" for name, endpoint in notes)
        try:
            write_whole(self.path, text.encode("utf-8"))
        except OSError as error:
            raise self._failed("written", error) from None

    def _failed(self, what: str, error: Exception) -> MachineFailed:
        return MachineFailed(
            f"{self.path} cannot be {what} ({reason_of(error)})",
            kept="No test table was made.",
            hint="make the state file's folder writable: test tables are noted there before they are made",
        )


@dataclass
class StressTest:
    """One stress test, run once. The caller holds the lock of the notes."""

    # The account: creates, loads and deletes the test table.
    service: TableService
    # Opens a load generator for the table of a name, without retries.
    generators: Callable[[str], AbstractAsyncContextManager[Generator]]
    # Operations to send.
    mix: Mix
    # Of time, rows and load.
    bounds: Bounds
    _: KW_ONLY
    # Where test tables are noted.
    notes: Notes
    # The account's, for the notes.
    endpoint: str
    # Tells when requests are due.
    clock: Clock
    # Reports every step.
    progress: Progress

    async def run(self, spreads: Sequence[Spread]) -> StressReport:
        """Run it, on a single partition and then on these distributions. The test table is always deleted.

        Raises:
            ServiceError: the account cannot be used.
            WorkersFailed: a process that generates load ended.
            MachineFailed: the notes cannot be written.
            RekeyError: the test table could not be deleted.
        """
        stages: list[Stage] = []
        making = self.notes.table(self.service, self.endpoint)
        async with making as (name, removed), self.generators(name) as self._generator:
            self._table, self._began, self._sent = self.service.table(name), self.clock.monotonic(), 0
            for number, spread in enumerate([ONE_PARTITION, *spreads]):
                population = Population(spread, number, self.mix)
                stages.append(await self._stage(population, len(spreads) + 1 - number))
        return StressReport(name, removed, self.mix, self._sent, self._spent, tuple(stages))

    @property
    def _spent(self) -> float:
        return self.clock.monotonic() - self._began

    async def _stage(self, population: Population, left: int) -> Stage:
        """Load a distribution's rows, and try the mix, then each kind. `left`: stages from this one on."""
        mix, spread = self.mix, population.spread
        if mix.rows:
            with self.progress.task(f"load rows for {spread.name}") as advance:
                await self._write(population.loading(), spread, advance)
        first = spread.expected * _FIRST / mix.entities(mix.operations)
        # Half of a stage's budget is for the ramps of each kind.
        parts = 2 if len(mix.shares) > 1 else 1
        ramped, bounded = await self._ramp(population, mix.operations, {}, first=first, parts=left * parts)
        reached, risen = saturation(ramped), dict[OperationKind, list[Judged]]()
        # Above its saturation the mix overloads what all kinds share, as one partition always does.
        ceiling = reached.saturated if spread.table and reached.saturated is not None else math.inf
        of_kinds = {
            kind: [judgment.kinds[kind] for judgment in ramped if judgment.step.offered <= ceiling]
            for kind in mix.shares
        }
        # Not on one partition: that stage is about the partition.
        if spread.table and reached.limit is Limit.SERVICE and reached.clean is not None:
            rest = [kind for kind, judged in of_kinds.items() if saturation(judged).limit is Limit.NOTHING]
            for number, kind in enumerate(rest):
                others = {
                    other: _OTHERS_SHARE * reached.clean * share
                    for other, share in mix.shares.items()
                    if other != kind
                }
                first = reached.clean * mix.shares[kind] * RISE
                parts = left * (len(rest) - number)
                risen[kind], _ = await self._ramp(population, {kind: 1.0}, others, first=first, parts=parts)
                of_kinds[kind] += risen[kind]
        kinds = {kind: saturation(judged) for kind, judged in of_kinds.items()}
        return Stage(mix, spread, population.rows, tuple(ramped), kinds, risen, bounded)

    async def _ramp(
        self,
        population: Population,
        varied: Mapping[OperationKind, float],
        others: Mapping[OperationKind, float],
        *,
        first: float,
        parts: int,
    ) -> tuple[list[Judged], str]:
        """Offer rates one after the other until one saturates, or its part of the budget is used up.

        Args:
            population: the rows.
            varied: operations of each kind in a rate of 1.
            others: operations per second of other kinds, at any rate.
            first: the first rate.
            parts: number of equal parts of the remaining time and rows; the ramp has one.

        Returns:
            The steps, and what ended the ramp early: `rows`, `seconds` or "".
        """
        bounds, mix, spread = self.bounds, self.mix, population.spread
        unit, fixed = mix.entities(varied), mix.entities(others)
        most = (bounds.most or spread.expected * _MOST) / unit
        until = self._spent + (bounds.seconds - self._spent) / parts
        upto = self._sent + (bounds.rows - self._sent) // parts
        steps: list[Step] = []
        judged: list[Judged] = []

        def left(rate: float) -> tuple[float, float]:
            return until - self._spent, (upto - self._sent) / (rate * unit + fixed)

        async def offer(rate: float, seconds: float) -> Step:
            rates = {**others, **{kind: part * rate for kind, part in varied.items()}}
            loading, requests = population.plan(rates, seconds)
            await self._write(loading, spread, lambda _rows: None)
            self._sent += sum(request.size for request in requests)
            offered = await self._generator.offer(requests)
            return measure(offered, rate, seconds, varied, by_row=mix.by_row)

        rising = f", {next(iter(varied)).label}" if others else ""
        with self.progress.task(f"stress {spread.name}{rising}") as advance:
            begin = min(first, most)
            await offer(begin, min(_WARM_SECONDS, *(_WARM_SHARE * seconds for seconds in left(begin))))
            several = spread.partitions > 1
            while (rate := next_rate(judged, first=first, most=most, overload=several)) is not None:
                left_s, rows_s = left(rate)
                seconds = min(bounds.step_seconds, left_s, rows_s)
                if seconds < min(_LEAST_STEP_SECONDS, bounds.step_seconds):
                    return judged, "rows" if rows_s <= left_s else "seconds"
                before = self._sent
                steps.append(await offer(rate, seconds))
                advance(self._sent - before)
                judged = judge_ramp(steps)
                if judged[-1].limit is not Limit.NOTHING:
                    await self.clock.sleep(_REST_SECONDS)
        return judged, ""

    async def _write(self, batches: Iterable[Request], spread: Spread, advance: Advance) -> None:
        async def write(batch: Request) -> None:
            advance(await carry_out(self._table, batch))

        # One at a time into one partition: concurrent ones would exceed its limit.
        await for_each(batches, write, limit=min(_LOADING, spread.partitions))
