"""Small worlds for exhaustive search: one key, a few operations, everything else is the implementation.

Rules kept here:

* The runner's work is the runner's code: `copy_segments`, `Copier`, `sweep`, `delta_pass`, `Propagator`. Only
  what a state file keeps (checkpoint, watermark) is two fields here, which survive a crash.
* The source has a clock of its own that moves with every write, and passes are made without a margin: a pass
  sees exactly what was written since the watermark, and nothing by luck.
* Partitions of the mapping table that no key of the world falls into are left out: empty pages teach nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rekey.copy.delta import delta_pass
from rekey.copy.pipeline import Callbacks, copy_segments
from rekey.copy.scan import WindowSize
from rekey.copy.sweep import sweep
from rekey.copy.write import Copier
from rekey.core.clock import TICKS_PER_SECOND
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Migration
from rekey.declaration.row_makers import TargetRow
from rekey.errors import RowExists, RowMissing
from rekey.mapping.computed import ComputedMapping
from rekey.mapping.rows import MAPPING_TABLE, MappingRows, pointer_of
from rekey.mapping.store import MappingStore
from rekey.model import TIMESTAMP, EntityKey, Row, content_of, key_of
from rekey.protocol.propagate import Propagator
from rekey.state.models import Segment
from rekey.tables.addresses import is_addressable
from rekey.tables.base import Operation, Table, Verb
from rekey.tables.joint import opened
from rekey.tables.kinds import by_number
from rekey.tables.part import part_of
from rekey.verify.context import MappedRows, ReconcileContext
from rekey.verify.full import full
from rekey.verify.report import FullReport
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call
from tests.fakes.memory import Mood
from tests.simulation.explore import Scenario
from tests.simulation.scheduler import HeldService, Scheduler
from tests.worlds.small import SCRIPT, SECRET, contents, go_on, halves, mapped, nothing

SIZE = WindowSize(rows=100, bytes=1_000_000)


@dataclass(frozen=True)
class Do:
    """One operation of the application on the source."""

    verb: str
    row: Row

    async def on(self, table: Table) -> None:
        """Carry it out. What the service refuses has not happened."""
        with suppress(RowExists, RowMissing):
            if self.verb != "insert" and not is_addressable(key_of(self.row)):
                # Whatever rekey does with such keys, the application writes the row that it names.
                await table.transact([Operation(Verb(self.verb), self.row, "*")])
            elif self.verb == "insert":
                await table.insert(self.row)
            elif self.verb == "replace":
                await table.replace(self.row)
            else:
                await table.delete(key_of(self.row))


class SomePartitions(MappingRows):
    """Mapping rows of a world whose keys are all known."""

    known: frozenset[str] = frozenset()

    def partitions(self, direction: str) -> list[str]:
        return [name for name in super().partitions(direction) if name in self.known]


class DigestsInMemory:
    """Stands for the sweep's parts on disk, which see no other process and slow a search down."""

    def __init__(self, _folder: object = None) -> None:
        self._digests: set[str] = set()

    def __enter__(self) -> DigestsInMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self._digests.clear()

    def add(self, digest: str) -> None:
        self._digests.add(digest)

    def read(self, prefix: str) -> set[str]:
        return {digest for digest in self._digests if digest.startswith(prefix)}


@dataclass
class Durable:
    """What the state file keeps."""

    segment: Segment = field(
        default_factory=lambda: Segment(
            id=1, script_id=SCRIPT, purpose="backfill", after=None, upto=None, cursor=None, rows=0, bytes=0,
            done=False,
        )
    )  # fmt: skip
    watermark: str = ""


@dataclass(frozen=True)
class Parts:
    """The implementation's parts; a test that switches a rule off puts another one in."""

    propagator: Callable[..., Propagator] = Propagator
    copier: Callable[..., Copier] = Copier
    delta_pass: Callable[..., Awaitable[Any]] = delta_pass
    sweep: Callable[..., Awaitable[int]] = sweep
    concurrency: int = 1
    checkpoint_first: bool = False
    """Store the checkpoint before the rows are copied."""
    mood: Mood = Mood.AZURITE
    """Like which service the tables answer."""


class SmallWorld(Scenario):
    """Tables, mapping and parts that all scenarios here share."""

    def __init__(
        self, scheduler: Scheduler, migration: Migration, before: Sequence[Row], ever: Sequence[Row],
        parts: Parts,
    ) -> None:  # fmt: skip
        """Take the migration, the rows that are there at the beginning and all rows that ever may be."""
        super().__init__(scheduler)
        self.parts = parts
        self.before = before
        self.mapper = mapper_of(migration)
        self.sources = HeldService(scheduler, scheduler.clock, parts.mood)
        # Targets and mapping on a clock that stands still: their versions count writes, nothing else.
        self.others = HeldService(scheduler, FakeClock(), parts.mood)
        self.source = self.sources.table(migration.source)
        self.targets: list[Any] = [opened(name, self.others.table) for name in self.mapper.tables]
        rows = SomePartitions(SCRIPT, migration.source, self.mapper.tables, IDS)
        rows.known = frozenset(
            partition
            for row in (*before, *ever)
            for partition in (
                rows.forward_key(key_of(row)).partition,
                *(rows.reverse_key(key_of(made), number).partition for number, made in self.mapper.map(row)),
            )
        )
        table = self.others.table(MAPPING_TABLE)
        is_computed = migration.inverse is not None
        self.mapping = (
            ComputedMapping(table, rows, mapper=self.mapper) if is_computed else MappingStore(table, rows)
        )

    async def prepare(self) -> None:
        await self.sources.create_table(self.source.name)
        for name in (*self.mapper.migration.table_names, MAPPING_TABLE):
            await self.others.create_table(name)
        for row in self.before:
            await self.source.insert(row)
        self.scheduler.clock.advance(1.0)  # they are older than any watermark

    def snapshot(self) -> Any:
        clocks = [service.clock.ticks() for service in (self.sources, self.others)]
        return self.sources.snapshot(), self.others.snapshot(), clocks

    def restore(self, snapshot: Any) -> None:
        sources, others, clocks = snapshot
        self.sources.restore(sources)
        self.others.restore(others)
        for service, ticks in zip((self.sources, self.others), clocks, strict=True):
            service.clock.advance((ticks - service.clock.ticks()) / TICKS_PER_SECOND)  # type: ignore[attr-defined]

    def propagator(self) -> Propagator:
        """Return a propagator of one's own, as each process has."""
        targets = by_number(self.mapper.tables, self.mapper.migration.beginnings, self.others.table)
        return self.parts.propagator(self.part, targets, self.mapper, self.mapping)

    @property
    def part(self) -> Table:
        """The rows of the source that are migrated."""
        return part_of(self.source, self.mapper.migration.key_space)

    def ticking(self, call: Call) -> bool:
        return call.writes and call.table == self.source.name

    def durable(self) -> Hashable:
        return (self.sources.content(), self.others.content())

    def broken(self) -> str:
        """A target row exists that the mapping does not account for, or half a pair."""
        known = {key_of(row) for row in self.others.dump(MAPPING_TABLE)}
        rows, there = self.mapping.rows, self.others.dump(self.mapper.tables[0])
        if self.mapper.co_located and halves(self.mapper, there):
            return "a row stands without the row that it goes with"
        if wrong := [row for row in there if not self._goes_with_main(row, there)]:
            return f"{len(wrong)} secondary rows are not what their main rows give"
        for row in there:
            if self.mapper.number_by_row_key(row["RowKey"]):
                continue
            if self.mapping.is_stored and rows.reverse_key(key_of(row)) not in known:
                return "a target row has no mapping row"
        return ""

    def _goes_with_main(self, row: Row, there: Sequence[Row]) -> bool:
        if not self.mapper.number_by_row_key(row["RowKey"]):
            return True
        main = next(main for main in there if key_of(main) == pointer_of(row))
        made = [
            content_of(one)
            for number, one in self.mapper.index_rows(main)
            if number in self.mapper.co_located
        ]
        return content_of(row) in made

    def wrong(self) -> str:
        has, rows = self.mapper.migration.has, self.sources.dump(self.source.name)
        for name, expected in mapped(self.mapper, [row for row in rows if has(key_of(row))]).items():
            actual = contents(self.others.dump(name))
            if extra := actual.keys() - expected.keys():
                return f"{name} holds {len(extra)} rows that no source row gives"
            if missing := expected.keys() - actual.keys():
                return f"{name} lacks {len(missing)} rows"
            if actual != expected:
                return f"{name} holds an older row"
        return ""

    async def _sweep(self) -> None:
        to = self.propagator()
        await self.parts.sweep(to, concurrency=self.parts.concurrency, advance=nothing, check=go_on)


class DeltaWorld(SmallWorld):
    """Capture "delta": a writer on the source, and a runner that backfills, sweeps, passes and sweeps.

    At the end, with writers stopped, a last pass and a last sweep are made, as cutover does. With `verifies`
    the full verification follows, which closes the gate on what it finds; what it finds is repaired.
    """

    crashing = frozenset({"runner"})

    def __init__(
        self, scheduler: Scheduler, migration: Migration, before: Sequence[Row], operations: Sequence[Do],
        parts: Parts, *, verifies: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(scheduler, migration, before, [one.row for one in operations], parts)
        self.operations = operations
        self.kept = Durable()
        self.verifies = verifies
        self.gate_closed = False

    def actors(self) -> dict[str, Callable[[], object]]:
        return {"writer": self._write, "runner": self._migrate}

    def durable(self) -> Hashable:
        segment = self.kept.segment
        return (super().durable(), segment.cursor, segment.done, self.kept.watermark)

    def is_private(self, call: Call) -> bool:
        """The writer knows the source only; so targets and mapping are the runner's, while it is alone."""
        return call.table not in ("", self.source.name)

    async def finish(self) -> None:
        await self._pass()
        await self._sweep()
        if self.verifies:
            report = await self._verify()
            self.gate_closed = report.findings

    async def _write(self) -> None:
        for operation in self.operations:
            await operation.on(self.source)

    async def _migrate(self) -> None:
        if not self.kept.watermark:
            self.kept.watermark = await self.sources.server_time()
        await self._backfill()
        await self._sweep()
        await self._pass()
        await self._sweep()

    async def _backfill(self) -> None:
        copier = self._copier()
        segment = self.kept.segment

        def checkpoint(moved: list[Segment]) -> None:
            [self.kept.segment] = moved

        async def copy(rows: Sequence[Row]) -> Any:
            if self.parts.checkpoint_first:
                self.kept.segment = Segment(**{**_fields(segment), "done": True})
            return await copier.copy(rows)

        await copy_segments(self.part, [segment], copy, SIZE, callbacks=Callbacks(checkpoint))

    async def _pass(self) -> None:
        result = await self.parts.delta_pass(
            self.part, self._copier(), server_time=self.sources.server_time, clock=self.scheduler.clock,
            since=self.kept.watermark, size=SIZE, callbacks=Callbacks(),
        )  # fmt: skip
        self.kept.watermark = result.started_at

    async def _verify(self) -> FullReport:
        propagator = self.propagator()

        async def owner(target_key: EntityKey) -> EntityKey | None:
            found = await self.mapping.owner(target_key)
            return None if found is None else found.source

        context = ReconcileContext(
            source=self.part, targets=propagator.targets, mapper=self.mapper, ids=self.mapping.rows.ids,
            rows=MappedRows(owner=owner, propagate=propagator.propagate),
            folder=Path(tempfile.gettempdir()), clock=self.scheduler.clock,
        )  # fmt: skip
        return await full(context, repair=True)

    def _copier(self) -> Copier:
        return self.parts.copier(self.propagator(), self.parts.concurrency)


class FollowingWorld(SmallWorld):
    """Writers that propagate what they wrote, as clients of a dual-write migration do, and a backfill.

    Each writer does one operation on the authority and propagates the key; the backfill copies what it
    scanned and sweeps. Nothing is repaired at the end: when all have come to an end, all must be right. A
    writer that is killed leaves an intent, which is a propagate at the end.
    """

    def __init__(
        self, scheduler: Scheduler, migration: Migration, before: Sequence[Row], operations: Sequence[Do],
        parts: Parts, *, copied: bool, backfill: bool,
    ) -> None:  # fmt: skip
        super().__init__(scheduler, migration, before, [one.row for one in operations], parts)
        self.operations = operations
        self.copied = copied
        self.backfill = backfill
        self.intents: set[EntityKey] = set()

    async def prepare(self) -> None:
        await super().prepare()
        if self.copied:
            for row in self.before:
                await self.propagator().propagate(key_of(row))

    def actors(self) -> dict[str, Callable[[], object]]:
        found: dict[str, Callable[[], object]] = {
            f"writer {number}": lambda operation=operation: self._write(operation)  # type: ignore[misc]
            for number, operation in enumerate(self.operations, start=1)
        }
        if self.backfill:
            found["backfill"] = self._backfill
        return found

    async def finish(self) -> None:
        return

    async def _write(self, operation: Do) -> None:
        await operation.on(self.source)
        await self.propagator().propagate(key_of(operation.row))

    async def _backfill(self) -> None:
        propagator = self.propagator()
        copier = self.parts.copier(propagator, self.parts.concurrency)
        async for page in self.source.scan():
            await copier.copy(page.rows)
        await self._sweep()


_mappers: dict[int, Mapper] = {}


def mapper_of(migration: Migration) -> Mapper:
    """Return the mapper of a migration, made once: it is a pure value."""
    if id(migration) not in _mappers:
        _mappers[id(migration)] = RememberingMapper(migration, {"users": SECRET})
    return _mappers[id(migration)]


class RememberingMapper(Mapper):
    """A mapper that works every row out once: a search maps the same few rows again and again."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._made: dict[Hashable, list[TargetRow]] = {}

    def map(self, row: Row) -> list[TargetRow]:
        content = tuple(
            (name, row[name]) for name in row if not name.startswith("odata.") and name != TIMESTAMP
        )
        if self.needs_timestamp:
            return super().map(row)
        if content not in self._made:
            self._made[content] = super().map(row)
        return [TargetRow(number, dict(made)) for number, made in self._made[content]]


class RememberingIds(SafeIds):
    """Ids that are worked out once."""

    def __init__(self) -> None:
        super().__init__(bytes(32))
        self._found: dict[tuple[str, EntityKey], str] = {}

    def long(self, table: str, key: EntityKey) -> str:
        found = self._found.get((table, key))
        if found is None:
            self._found[table, key] = found = super().long(table, key)
        return found


IDS = RememberingIds()


def _fields(segment: Segment) -> dict[str, Any]:
    return {name: getattr(segment, name) for name in segment.__dataclass_fields__}
