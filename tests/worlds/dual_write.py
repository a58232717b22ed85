"""Dual writes at work on tables in memory: writers of both views, with permits that a test moves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from rekey import Index, Migration, Target, keys, props
from rekey.client.lease import Permit
from rekey.client.parts import MAX_IN_FLIGHT_S, Acknowledge, ClientParts, Counters
from rekey.client.route import Writer
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol.journal import Journal
from rekey.protocol.propagate import Propagator
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import View
from rekey.protocol.sweeper import Company, Sweeper, Swept
from rekey.tables.base import Operation, Verb
from tests.fakes.memory import MemoryTableService
from tests.worlds.small import SCRIPT, World, go_on

TAGGED = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque(keys.prop("RowKey"), domain="user", secret="users"),
        properties=[props.copy("RowKey", to="ContactEmail"), props.rename("Nm", "Name"), props.drop("Ssn")],
    ),
    indexes=[
        Index(
            "UsersByMail",
            partition_key=keys.literal("all"),
            row_key=keys.prop("RowKey"),
            properties=[props.keep("Age")],
        )
    ],
    capture="dual-write",
)
"""Keys from keys alone, and an index table."""


class StandingPermits:
    """Permits of a client that always holds its lease; the test moves phase and epoch."""

    def __init__(self, phase: ControlPhase | None = ControlPhase.DUAL_WRITE, *, copied: bool = True) -> None:
        self.phase, self.epoch, self.copied = phase, 1, copied
        self.trusted, self.maintained = True, False
        self.in_use = 0
        self.most_in_use = 0

    def move(self, phase: ControlPhase, *, maintained: bool = False) -> None:
        """Let the control row say something else."""
        self.phase, self.epoch, self.maintained = phase, self.epoch + 1, maintained

    @asynccontextmanager
    async def operation(self, *, writes: bool, waits: bool = True) -> AsyncIterator[Permit]:
        permit = Permit(self.phase, self.epoch, self.copied, maintained=self.maintained)
        with self.hold(permit):
            yield permit

    @contextmanager
    def hold(self, permit: Permit) -> Iterator[None]:
        self.in_use += 1
        self.most_in_use = max(self.most_in_use, self.in_use)
        try:
            yield
        finally:
            self.in_use -= 1

    def check(self, permit: Permit) -> None:
        return

    def require_known_parts(self, *, reads: bool = False) -> None:
        return

    def require_same_part(self) -> None:
        return

    def in_time(self, permit: Permit) -> bool:
        return True

    def current(self) -> Permit | None:
        return Permit(self.phase, self.epoch, self.copied) if self.trusted else None


@dataclass
class DualWorld(World):
    """A world with a journal, and writers of both views."""

    permits: StandingPermits = field(default_factory=StandingPermits)
    journal: Journal = field(init=False)
    counters: Counters = field(init=False)
    sweeper: Sweeper = field(init=False)
    _writers: list[Writer] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.propagator = Propagator(
            self.propagator.source, self.propagator.targets, self.mapper, self.mapping, width=8
        )
        self.journal = Journal(self.service.table(JOURNAL_TABLE), SCRIPT)
        self.counters = Counters()
        self.sweeper = Sweeper(self.journal, ReversePropagator(self.propagator))

    async def prepare(self, rows: Iterable[Row] = ()) -> DualWorld:
        """Create all tables, fill the source and copy it."""
        await super().prepare(rows)
        await self.service.create_table(JOURNAL_TABLE)
        for row in self.service.dump(self.source.name):
            await self.propagator.propagate(key_of(row))
        return self

    def writer(
        self,
        view: View = View.OLD,
        client: str = "c1",
        *,
        sleep: Callable[[float], Awaitable[object]] | None = None,
        longest: float = 30.0,
        acknowledge: Acknowledge = Acknowledge.BOTH,
    ) -> Writer:
        """Return a writer as one client has it. `sleep`: its pauses between attempts at what is left; what is
        late is waited for in no time."""
        pauses = sleep or self.service.clock.sleep

        async def waits(seconds: float) -> object:
            return await (self.service.clock.sleep if seconds == MAX_IN_FLIGHT_S else pauses)(seconds)

        made = Writer(
            ClientParts(
                view,
                client,
                propagator=self.propagator,
                journal=self.journal,
                permits=self.permits,
                counters=self.counters,
                sleep=waits,
                longest_operation_s=longest,
                acknowledge=acknowledge,
            )
        )
        self._writers.append(made)
        return made

    async def sweep(self, authority: str = "source") -> Swept:
        """Settle all intents, whatever their age."""
        side = "target" if authority == "target" else "source"
        return await self.sweeper.sweep(side, Company(sys.maxsize), concurrency=4, check=go_on)  # type: ignore[arg-type]

    @property
    def intents(self) -> int:
        """How many intents the journal holds."""
        return len(self.service.dump(JOURNAL_TABLE))

    def rows(self, table: str) -> dict[EntityKey, Row]:
        """Return a table's content."""
        return {key_of(row): content_of(row) for row in self.service.dump(table)}

    def etag(self, table: str, key: EntityKey) -> str:
        """Return the ETag of a row."""
        return next(row["odata.etag"] for row in self.service.dump(table) if key_of(row) == key)

    async def close(self) -> None:
        """End what the writers do in the background."""
        for writer in self._writers:
            await writer.close()

    async def assert_quiet(self) -> None:
        """Everything in the background has ended, nothing is left, all tables are in step."""
        await self.close()
        left = self.service.dump(JOURNAL_TABLE)
        assert [row for row in left if "Settled" not in row] == []
        assert self.permits.in_use == 0
        self.assert_in_step()


def key_row(key: EntityKey) -> Row:
    """A row that is only a key."""
    return {"PartitionKey": key.partition, "RowKey": key.row}


def insert(row: Row) -> Operation:
    """Insert."""
    return Operation(Verb.INSERT, row)


def replace(row: Row, etag: str | None = None) -> Operation:
    """Replace."""
    return Operation(Verb.REPLACE, row, etag)


def merge(row: Row, etag: str | None = None) -> Operation:
    """Merge."""
    return Operation(Verb.MERGE, row, etag)


def upsert(row: Row, *, merging: bool = False) -> Operation:
    """Insert or replace, or insert or merge."""
    return Operation(Verb.INSERT_OR_MERGE if merging else Verb.INSERT_OR_REPLACE, row)


def delete(key: EntityKey, etag: str | None = None) -> Operation:
    """Delete."""
    return Operation(Verb.DELETE, key_row(key), etag)


def memory_world(migration: Migration, service: MemoryTableService) -> DualWorld:
    """A world in `dual_write`, its backfill done."""
    return DualWorld(service, migration)


async def sleep_forever(_seconds: float) -> None:
    """A pause that does not end: nothing is tried again."""
    await asyncio.Event().wait()
