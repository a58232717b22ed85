"""One stress test: a table of its own, a ramp on one partition, then ramps for each distribution.

The published procedure ("Designing a scalable partitioning strategy for Azure Table storage"): make a test
table, load it, aim peak load at a single partition, and look at the throughput against the partition's
target; then do it with the distribution that is planned, with "all the required queries and storage
operations".

Rules kept here:

* Nothing is written but the test table, which is removed however the test ends.
* A test table is noted, durably, before it is made, and the note is removed after the table, however the
  test ends: the next test finds what a killed one left.
* Only noted tables are ever removed. A note names the endpoint, too: a table of another account stays.
* Rows are loaded before anything is measured, by a connection that tries again. A step whose requests would
  need rows that are not there loads them first.
* Where the mix saturates, one of its kinds does. The limits of the others are found afterwards, with one kind
  rising and the others held at a rate well below the mix's saturation.
* Time and rows are bounded for the whole test; stages that are still to come get their part.
* Connecting, and what the service does for new partitions, is not measured.
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

# A ramp begins and ends at these parts of what the targets allow, if nothing ends it before.
_FIRST, _MOST = 1 / 8, 2.0
# Part of what the mix carries that the other kinds are held at while one rises.
_HELD = 0.5
# Bounds of the beginning of a ramp, which is not measured: seconds, and a share of its time and rows.
_WARM_SECONDS, _WARM_SHARE = 2.0, 0.05
_LEAST_STEP_SECONDS = 1.0
# Time that a service that refused is given to recover.
_REST_SECONDS = 1.0
# Batches that load rows at the same time.
_LOADING = 8
PREFIX = "rekeystress"
_SUFFIX = ".stress"
_NOTE = re.compile(rf"({PREFIX}[0-9a-f]{{16}}) (\S+)")


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


def new_name() -> str:
    """Return a name for a test table, that no other test has."""
    return PREFIX + secrets.token_hex(8)


class Notes:
    """Test tables of one project, noted until they are removed.

    The caller holds the lock of the notes, so that no noted table is of a test that still runs.
    """

    def __init__(self, state: Path) -> None:
        """Create them next to the state file `state`."""
        self.path = state.with_name(state.name + _SUFFIX)

    @asynccontextmanager
    async def table(self, service: TableService, endpoint: str) -> AsyncIterator[tuple[str, tuple[str, ...]]]:
        """Make a test table, and remove it at the end; tables that an earlier test left are removed before.

        Yields:
            The table's name, and the names of the tables that were left.

        Raises:
            ServiceError: the account cannot be used.
            MachineFailed: the notes cannot be written.
            RekeyError: the table could not be removed at the end.
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
        """Note a table that is about to be made. Raises MachineFailed."""
        self._write([*self._read(), (name, endpoint)])

    def drop(self, name: str) -> None:
        """Remove the note of a table that is gone. Raises MachineFailed."""
        left = [one for one in self._read() if one[0] != name]
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
        # A line that was cut off is of a table that was not made.
        found = [_NOTE.fullmatch(line) for line in text.split("\n")[:-1]]
        return [(one[1], one[2]) for one in found if one]

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
    """One stress test, run once. The caller holds the lock of the notes.

    Attributes:
        service: the account: makes, loads and removes the test table.
        generators: opens a load generator for the table of a name, on connections that try nothing again.
        mix: operations to send.
        bounds: of time, rows and load.
        notes: where test tables are noted.
        endpoint: the account's, for the notes.
        clock: tells when requests are due.
        progress: told of every step.
    """

    service: TableService
    generators: Callable[[str], AbstractAsyncContextManager[Generator]]
    mix: Mix
    bounds: Bounds
    _: KW_ONLY
    notes: Notes
    endpoint: str
    clock: Clock
    progress: Progress

    async def run(self, spreads: Sequence[Spread]) -> StressReport:
        """Run it, on a single partition and then on these distributions.

        Raises:
            ServiceError: the account cannot be used; the test table is removed before.
            WorkersFailed: a process that generates load ended; the test table is removed before.
            MachineFailed: the notes cannot be written.
            RekeyError: the test table could not be removed.
        """
        stages: list[Stage] = []
        making = self.notes.table(self.service, self.endpoint)
        async with making as (name, removed), self.generators(name) as self._generator:
            self._table, self._began, self._sent = self.service.table(name), self.clock.rising(), 0
            for number, spread in enumerate([ONE_PARTITION, *spreads]):
                population = Population(spread, number, self.mix)
                stages.append(await self._stage(population, len(spreads) + 1 - number))
        return StressReport(name, removed, self.mix, self._sent, self._spent, tuple(stages))

    @property
    def _spent(self) -> float:
        return self.clock.rising() - self._began

    async def _stage(self, population: Population, left: int) -> Stage:
        """Load the rows of a distribution, and try the mix, then each kind of operation.

        Args:
            population: the rows.
            left: number of stages from this one on.
        """
        mix, spread = self.mix, population.spread
        if mix.rows:
            with self.progress.task(f"load rows for {spread.name}") as advance:
                await self._write(population.loading(), spread, advance)
        first = spread.expected * _FIRST / mix.entities(mix.operations)
        # Half of what a stage may use is for ramps of each kind.
        parts = 2 if len(mix.shares) > 1 else 1
        ramped, bounded = await self._ramp(population, mix.operations, {}, first=first, parts=left * parts)
        found, risen = saturation(ramped), dict[OperationKind, list[Judged]]()
        # Beyond its saturation the mix overloads what all kinds have in common, as one partition always does.
        ceiling = found.saturated if spread.table and found.saturated is not None else math.inf
        of_kinds = {
            kind: [one.kinds[kind] for one in ramped if one.step.offered <= ceiling] for kind in mix.shares
        }
        # Kinds are not tried on one partition: that stage is about the partition.
        if spread.table and found.limit is Limit.SERVICE and found.clean is not None:
            rest = [kind for kind, judged in of_kinds.items() if saturation(judged).limit is Limit.NOTHING]
            for number, kind in enumerate(rest):
                held = {one: _HELD * found.clean * share for one, share in mix.shares.items() if one != kind}
                first = found.clean * mix.shares[kind] * RISE
                parts = left * (len(rest) - number)
                risen[kind], _ = await self._ramp(population, {kind: 1.0}, held, first=first, parts=parts)
                of_kinds[kind] += risen[kind]
        kinds = {kind: saturation(judged) for kind, judged in of_kinds.items()}
        return Stage(mix, spread, population.rows, tuple(ramped), kinds, risen, bounded)

    async def _ramp(
        self,
        population: Population,
        varied: Mapping[OperationKind, float],
        held: Mapping[OperationKind, float],
        *,
        first: float,
        parts: int,
    ) -> tuple[list[Judged], str]:
        """Offer rates one after the other until one saturates, or its part of the bounds is used up.

        Args:
            population: the rows.
            varied: operations of each kind in a rate of 1.
            held: operations a second of other kinds, at any rate.
            first: the first rate.
            parts: number of equal parts of the time and rows that are left; the ramp has one.

        Returns:
            The steps, and the bound that ended the ramp early: `rows`, `seconds` or "".
        """
        bounds, mix, spread = self.bounds, self.mix, population.spread
        unit, fixed = mix.entities(varied), mix.entities(held)
        most = (bounds.most or spread.expected * _MOST) / unit
        until = self._spent + (bounds.seconds - self._spent) / parts
        upto = self._sent + (bounds.rows - self._sent) // parts
        steps: list[Step] = []
        judged: list[Judged] = []

        def left(rate: float) -> tuple[float, float]:
            return until - self._spent, (upto - self._sent) / (rate * unit + fixed)

        async def offer(rate: float, seconds: float) -> Step:
            rates = {**held, **{kind: part * rate for kind, part in varied.items()}}
            loading, requests = population.plan(rates, seconds)
            await self._write(loading, spread, lambda _rows: None)
            self._sent += sum(request.size for request in requests)
            offered = await self._generator.offer(requests)
            return measure(offered, rate, seconds, varied, by_row=mix.by_row)

        rising = f", {next(iter(varied)).label}" if held else ""
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

        # One at a time into one partition: together they would go beyond what it takes.
        await for_each(batches, write, limit=min(_LOADING, spread.partitions))
