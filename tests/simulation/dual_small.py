"""Small worlds of dual writes for exhaustive search: two clients on one key, everything else is the program.

Rules kept here:

* Clients write through the program's `Writer`, with a journal, mapping and propagators of their own, as
  processes have. Their permit is fixed: the authority does not move in these worlds (see `dual_moves`).
* A client that is killed does not come back. Its requests under way land later or never, its intents are
  swept when they are old.
* At the end, when nothing is under way any more and intents are old, the sweeper sweeps. Then the journal is
  empty, the replicas are what the authority says, the mapping accounts for every target row, and what the
  clients were told fits one row that changes at once. Without a failure no target key is reserved any more.
* What a backfill has under way when it is killed, or hears nothing, lands at once or never here: the runner's
  sweep waits until nothing can land behind it (`tests/scenarios/copy/test_late_copies.py`).
* Random words and times in row keys are drawn from what names the actor: a run can be repeated.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from rekey.client.lease import Permit
from rekey.client.parts import MAX_IN_FLIGHT_S, ClientParts, Counters
from rekey.client.route import Writer
from rekey.copy.sweep import settle_moved
from rekey.core.clock import format_ticks
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Migration
from rekey.mapping.rows import JOURNAL_TABLE, MAPPING_TABLE, TargetKey
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.journal import Journal
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import SOURCE, TARGET, Side, View
from rekey.protocol.sweeper import Company, Sweeper
from rekey.runner.clients import announcing
from rekey.tables.base import Operation
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call
from tests.simulation.repeating import Repeating
from tests.simulation.scheduler import Held, HeldTable, Scheduler, Waits
from tests.simulation.small import Parts, SmallWorld
from tests.simulation.witness import DELETE, READ, Client, Do, Step, Witness
from tests.worlds.small import SCRIPT, contents, go_on, nothing

LONGEST_S = 30.0
"""The longest operation."""


@dataclass(frozen=True)
class Works:
    """What one client does: its steps. Rows are given as source rows, whatever the view."""

    view: View
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class DualParts(Parts):
    """The program's parts; a test that switches a rule off puts another one in."""

    writer: Callable[..., Writer] = Writer
    journal: Callable[..., Journal] = Journal
    reverse: Callable[..., ReversePropagator] = ReversePropagator
    sweeper: Callable[..., Sweeper] = Sweeper
    moved: Callable[..., Awaitable[int]] = settle_moved
    older_than_s: float = LONGEST_S
    """How old an intent is when the sweeper takes it."""


class FixedPermits:
    """Permits of a phase that does not end."""

    def __init__(self, permit: Permit) -> None:
        self.permit = permit

    @asynccontextmanager
    async def operation(self, *, writes: bool, waits: bool = True) -> AsyncIterator[Permit]:
        yield self.permit

    @contextmanager
    def hold(self, permit: Permit) -> Iterator[None]:
        yield

    def require_known_parts(self, *, reads: bool = False) -> None:
        return

    def require_same_part(self) -> None:
        return

    def in_time(self, permit: Permit) -> bool:
        return True

    def check(self, permit: Permit) -> None:
        return

    def current(self) -> Permit | None:
        return self.permit


class DualWorld(SmallWorld):
    """Clients that write dual, beside a backfill or a sweeper if so wished."""

    longest = MAX_IN_FLIGHT_S
    learns = True
    punctual = frozenset({"backfill"})
    connected = frozenset({"backfill", "sweeper"})
    unseen = frozenset({JOURNAL_TABLE})

    def __init__(
        self,
        scheduler: Scheduler,
        migration: Migration,
        before: Sequence[Row],
        clients: Sequence[Works],
        parts: DualParts,
        *,
        phase: ControlPhase = ControlPhase.DUAL_WRITE,
        copied: bool = True,
        backfill: bool = False,
        sweeps: int = 0,
        open_sweeps: bool = False,
        repeats: bool = False,
        abandoned: Sequence[EntityKey] = (),
        earlier: Sequence[Row] = (),
    ) -> None:
        """Take the rows at the beginning (source rows) and what the clients do.

        Args:
            scheduler, migration, before, clients, parts: the world and the parts it is made of.
            phase: `dual_write`, `cutover`, or `complete` while clients maintain index tables; throughout.
            copied: whether all rows are copied at the beginning.
            backfill: whether a backfill runs beside the clients.
            sweeps: how often a sweeper sweeps beside the clients.
            open_sweeps: whether requests of the sweeper may stay unanswered, too.
            repeats: whether the sweeper sends such requests again, as connections of the runner do.
            abandoned: source keys whose intents somebody left behind long ago.
            earlier: how rows were before, when they were copied for the first time. One that is not in
                `before` was deleted since: its claims are left, and its row is gone.
        """
        self.dual = parts
        rows = [*before, *(do.row for one in clients for step in one.steps for do in step)]
        super().__init__(scheduler, migration, before, rows, parts)
        self.clients = {
            f"client {number}": in_view(one, self.mapper) for number, one in enumerate(clients, start=1)
        }
        self.mortal = self.crashing = frozenset(self.clients)
        if backfill:
            self.crashing |= {"backfill"}
        if open_sweeps:
            self.crashing |= {"sweeper"}
        self.repeats, self.open_sweeps = repeats, open_sweeps
        self.announcing = itertools.count()
        self.permit = Permit(phase, 2, copied, maintained=phase is ControlPhase.COMPLETE)
        self.copied, self.backfill, self.sweeps = copied, backfill, sweeps
        self.abandoned = abandoned
        self.earlier = earlier
        self.witness = Witness(self.mapper, sorted({key_of(row) for row in rows}), lambda: scheduler.failures)
        self.journal_table = self.others.table(JOURNAL_TABLE)
        self.unswept = 0

    @property
    def authority(self) -> Side:
        """The side that decides."""
        return TARGET if self.permit.phase in (ControlPhase.CUTOVER, ControlPhase.COMPLETE) else SOURCE

    # --- the scenario --------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        await self.others.create_table(JOURNAL_TABLE)
        await super().prepare()
        present = {key_of(row) for row in self.before}
        for row in self.earlier:
            if key_of(row) in present:
                await self.source.replace(row)
            else:
                await self.source.insert(row)
            await self.propagator().propagate(key_of(row))
            if key_of(row) not in present:
                await self.source.delete(key_of(row))
                await self.propagator().propagate(key_of(row))
        if self.copied:
            for row in self.before:
                if self.earlier:
                    await self.source.replace(row)
                await self.propagator().propagate(key_of(row))
        if self.abandoned:
            await self.journal("abandoned").begin("abandoned", 1, SOURCE, self.abandoned)
            self.scheduler.clock.advance(2 * LONGEST_S)
            self.others.clock.advance(2 * LONGEST_S)  # type: ignore[attr-defined]

    def actors(self) -> dict[str, Callable[[], object]]:
        found: dict[str, Callable[[], object]] = {
            name: lambda name=name: self._work(name)  # type: ignore[misc]
            for name in self.clients
        }
        if self.backfill:
            found["backfill"] = self._backfill
        if self.sweeps:
            found["sweeper"] = self._sweep_once
        return found

    def marks(self) -> Hashable:
        return self.witness.marks()

    def durable(self) -> Hashable:
        return (super().durable(), self.witness.marks())

    def ending(self) -> Hashable:
        return (super().durable(), self.witness.told())

    def is_marking(self, one: Held) -> bool:
        return self.witness.is_beginning(one.actor.name)

    def ticking(self, _call: Call) -> bool:
        return False

    async def finish(self) -> None:
        """Everything that was under way is over, intents are old: sweep until nothing is left."""
        self.others.clock.advance(10 * LONGEST_S)  # type: ignore[attr-defined]
        for _ in range(3):
            swept = await self.sweep()
            self.unswept = swept.left
            if not swept.left:
                return

    def wrong(self) -> str:
        if self.unswept:
            return f"{self.unswept} intents are left"
        if left := self.others.dump(JOURNAL_TABLE):
            return f"the journal holds {len(left)} intents"
        failed = self.scheduler.failures or any(actor.dead for actor in self.scheduler.actors)
        kept = [row for row in self.others.dump(MAPPING_TABLE) if "ReservedBy" in row]
        if kept and not failed:
            return f"{len(kept)} target keys are reserved, and every write has ended"
        rows = self.sources.dump(self.source.name)
        places = [TargetKey(number, *key_of(made)) for row in rows for number, made in self.mapper.map(row)]
        if len(set(places)) < len(places):
            return "two rows of the source map to one target key"
        if self.permit.phase is ControlPhase.COMPLETE and (rotten := self.rotten()):
            return rotten
        if wrong := super().wrong():
            return wrong
        history = self.witness.history(self.before, self.sources.dump(self.source.name))
        return "" if history.is_linearizable() else f"clients were told what cannot be:\n{history}"

    def rotten(self) -> str:
        """Tell which index rows are not what the main rows give by themselves, "" if all are."""
        for name, expected in self.given_by_main_rows().items():
            actual = contents(self.others.dump(name))
            if name == self.mapper.tables[0]:
                actual = {key: row for key, row in actual.items() if self.mapper.number_by_row_key(key.row)}
            if actual != expected:
                return f"the index rows of {name} are not what their main rows give"
        return ""

    def given_by_main_rows(self) -> dict[str, dict[EntityKey, Row]]:
        """Return what index tables should hold, from what the main target holds."""
        tables = self.mapper.tables
        given: dict[str, dict[EntityKey, Row]] = {name: {} for name in tables[1:]}
        for row in self.others.dump(tables[0]):
            if not self.mapper.number_by_row_key(row["RowKey"]):
                for number, made in self.mapper.index_rows(row):
                    given[tables[number]][key_of(made)] = made
        return given

    # --- the actors ----------------------------------------------------------------------------------------

    def writer(self, name: str, view: View) -> Writer:
        """Return a writer of one's own, as each process has."""
        return self.dual.writer(
            ClientParts(
                view,
                name.replace(" ", ""),
                propagator=self.propagator(),
                journal=self.journal(name),
                permits=FixedPermits(self.permit),
                counters=Counters(),
            )
        )

    def journal(self, name: str) -> Journal:
        """Return a journal whose row keys depend on nothing but who writes them."""
        return self.dual.journal(self.journal_table, SCRIPT, now=lambda: 0, token=f"{name}-0")

    async def sweep(self) -> Any:
        """Sweep once, as the runner does."""
        propagator = self.propagator()
        if self.repeats and self.scheduler.acting() is not None:
            source, targets = repeated(self.source), [repeated(table) for table in self.targets]
            propagator = self.parts.propagator(source, targets, self.mapper, self.mapping)
        if self.open_sweeps:
            journal = self.journal(f"announcing {next(self.announcing)}")
            propagator.announce = announcing(journal, Waits(self.scheduler))
        sweeper = self.dual.sweeper(self.journal("sweeper"), self.dual.reverse(propagator))
        company = Company(self.others.clock.ticks(), usual_s=self.dual.older_than_s)
        return await sweeper.sweep(self.authority, company, concurrency=1, check=go_on)

    async def _work(self, name: str) -> None:
        works = self.clients[name]
        writer = self.writer(name, works.view)
        client = Client(
            name,
            works.view,
            self.witness,
            table=self.source if works.view is View.OLD else self.targets[0],
            write=writer.write,
            is_replica=lambda: works.view.side != self.authority,
        )
        for step in works.steps:
            await client.do(step)
        await writer.settle()

    async def _backfill(self) -> None:
        propagator = self.propagator()
        # As the runner: a copy that meets a client's write is not yet a collision.
        propagator.mapping = replace(propagator.mapping, patience_s=inf)
        copier = self.parts.copier(propagator, self.parts.concurrency)
        since = format_ticks(self.sources.clock.ticks())
        async for page in propagator.source.scan():
            await copier.copy(page.rows)
        if propagator.mapper.content_derived:
            await self.dual.moved(
                propagator.source, propagator.propagate_moved, since=since,
                concurrency=self.parts.concurrency, advance=nothing, check=go_on,
            )  # fmt: skip
        await self._sweep()

    async def _sweep_once(self) -> None:
        for _ in range(self.sweeps):
            await self.sweep()

    def released(self, one: Held) -> None:
        self.witness.released(one.actor.name)


class _AtOnce(FakeClock):
    async def sleep(self, _seconds: float) -> None:
        """Take no time: when a request is sent again is a choice of the search."""


class _Repeated(HeldTable):
    async def _run(self, action: str, operations: tuple[Operation, ...]) -> list[str | None]:
        run = super()._run
        return await Repeating(_AtOnce(), random.Random(1)).write(
            self, operations, lambda: run(action, operations)
        )


def repeated(table: Any) -> HeldTable:
    """Return a handle that repeats what was not answered."""
    return _Repeated(table._service, table.name)


def in_view(works: Works, mapper: Mapper) -> Works:
    """Return what a client does with its rows, given as source rows, as they are in its view."""

    def seen(do: Do) -> Do:
        row = do.row if works.view is View.OLD else mapper.map(do.row)[0].row
        if do.verb in (DELETE, READ):
            row = dict(zip((PARTITION_KEY, ROW_KEY), key_of(row), strict=True))
        return replace(do, row=row)

    return replace(works, steps=tuple(tuple(seen(do) for do in step) for step in works.steps))
