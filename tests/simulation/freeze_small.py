"""A small world for the freeze of capture "delta": one comparison brings the targets up to date and
proves it.

Rules kept here:

* The runner's work is the program's own: the backfill, the comparison of `reconcile` and the whole of
  `cutover`. What the state file keeps is kept in memory, and survives a crash.
* A runner that is killed is succeeded by one that does what a session does first: it reckons with requests of
  the one before it for the margin, and leaves a freeze that was left open.
* Behind the cutover the application works on the target, which nobody follows: a user of it deletes rows.
* Judged is what the application was told: where the target is the authority, it holds what the source says,
  but for what was deleted since; where the cutover was refused, nothing was promised. Nor is it of what a
  writer that had not stopped writes when all was compared: that is why it has to stop.
* Sums have few buckets: what is searched does not depend on how many, and the search does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from rekey.copy import delta
from rekey.copy.throttle import Throttle
from rekey.declaration.migration import Migration
from rekey.errors import Findings, GateClosed, Moved, RowMissing, ServiceError
from rekey.model import Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol import control, term
from rekey.protocol.term import Term
from rekey.runner import clients
from rekey.runner.phases import backfill, cutover, reconcile
from rekey.runner.run import Run
from rekey.state.models import WATERMARK, Segment, StoredDigests, Verification
from rekey.verify import bucket_digests, digest, trace
from tests.fakes.faults import Call
from tests.simulation.late_small import ALL_S, LateWorld, StateFile
from tests.simulation.scheduler import Scheduler
from tests.simulation.small import Do
from tests.worlds.small import SCRIPT

ATTEMPTS = 3


class FullStateFile(StateFile):
    """Of verifications, too."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: StoredDigests | None = None
        self.frozen = asyncio.Event()
        self.verified = 0

    def set_fact(self, script_id: str, name: str, value: str | None) -> None:
        """Keep a fact."""
        super().set_fact(script_id, name, value)
        if name == cutover.FROZEN_AT:
            self.frozen.set()

    def stored_digests(self, _script_id: str) -> StoredDigests | None:
        """Return the sums of a verification that was cut off."""
        return self.stored

    def keep_digests(self, _script_id: str, stored: StoredDigests | None) -> None:
        """Keep them."""
        self.stored = stored

    def add_verification(self, _script_id: str, _made: Verification) -> None:
        """Note that there is one: the gate is not asked here."""
        self.verified += 1

    def latest_verification(self, _script_id: str) -> None:
        """Return none: how many rows will be read is not known."""

    def split_segment(self, *_: object) -> Segment:
        """Split nothing: the table is small."""
        raise AssertionError


class FreezeWorld(LateWorld):
    """A writer on the source, a runner that migrates and cuts over, and a user of the target behind that."""

    crashing = frozenset({"runner"})

    def __init__(
        self, scheduler: Scheduler, migration: Migration, before: Sequence[Row], operations: Sequence[Do],
        *, deleted: Sequence[Row] = (), foreign: Sequence[Row] = (), stray: bool = False,
        reconciles: bool = False,
    ) -> None:  # fmt: skip
        """Take the world.

        Args:
            scheduler, migration, before, operations: as `DeltaWorld` does.
            deleted: source rows whose target rows a user deletes behind the cutover.
            foreign: index rows that no source row gives, from the beginning.
            stray: whether the writer writes behind the freeze, although it was said to have stopped.
            reconciles: whether the comparison of `reconcile` is made, too.
        """
        # Time may pass once while the writer could go on: it writes while `reconcile` compares.
        super().__init__(
            scheduler, migration, before, operations, follows=False, passages=int(reconciles), fine=True
        )
        self.foreign = foreign
        self.deleted, self.stray, self.reconciles = deleted, stray, reconciles
        self.learns = not stray  # whether a comparison ended before or behind a write is of importance
        self.file: FullStateFile = FullStateFile()
        self.moved = asyncio.Event()
        self.begun = 0
        self.used = self.unpromised = False
        _moves[0] = 0

    async def prepare(self) -> None:
        await super().prepare()
        for row in self.foreign:
            await self.targets[1].insert(row)

    def actors(self) -> dict[str, Callable[[], object]]:
        users = {"user": self._use} if self.deleted else {}
        return {**super().actors(), **users}

    def events(self) -> dict[str, Callable[[], None]]:
        return {}

    def lasts(self) -> bool:
        return True

    def marks(self) -> Hashable:
        return (self.file.verified, self.unpromised)

    def is_sleeper(self, _name: str) -> bool:
        return False

    def ticking(self, call: Call) -> bool:
        """The source's clock moves with every write, so that what was written later is told by it."""
        return call.writes and call.table == self.source.name

    def durable(self) -> Hashable:
        stored = self.file.stored and (self.file.stored.begun_at, str(self.file.stored.digests["parts"]))
        return (
            super().durable(),
            stored,
            self.moved.is_set(),
            self.begun,
            self.used,
            self.unpromised,
            self.file.verified,
        )

    async def _write(self) -> None:
        if self.stray:
            await self.file.frozen.wait()
        await super()._write()
        self.unpromised = self.stray and self.file.verified > 0

    async def _migrate(self) -> None:
        self.others.last_open = self.sources.last_open = None  # those of another process, if there was one
        run = self._run()
        self.begun += 1
        if self.begun > 1:
            await Term(run.restricted, run.script_id).extend(await run.restricted.server_time())
        for _ in range(ATTEMPTS):
            with suppress(Moved, ServiceError):  # whoever operates it runs the command again
                with suppress(GateClosed, Findings):
                    await self._carry_on(run)
                break
        self.moved.set()

    async def _carry_on(self, run: Run) -> None:
        await cutover.leave_freeze(run, ControlPhase.DUAL_WRITE)
        if await self._is_moved():
            return
        if self.file.get_fact(SCRIPT, WATERMARK) is None:
            self.file.set_fact(SCRIPT, WATERMARK, await self.sources.server_time())
        await backfill._copy_and_sweep(run)
        if self.reconciles:
            with suppress(Findings):
                await reconcile.run(run)
        if not self.stray:
            await self.stopped.wait()
        await cutover.run(run)

    async def _is_moved(self) -> bool:
        row = await self.store.read()
        return row is not None and row.phase is ControlPhase.CUTOVER

    async def _use(self) -> None:
        await self.moved.wait()
        if not await self._is_moved():
            return
        self.used = True
        for row in self.deleted:
            with suppress(RowMissing):
                await self.targets[0].delete(key_of(self.mapper.map(row)[0].row))

    async def finish(self) -> None:
        self.is_moved = await self._is_moved()

    def wrong(self) -> str:
        if not self.is_moved or self.unpromised:
            return ""
        gone = {key_of(row) for row in self.deleted if self.used}
        kept = [row for row in self.sources.dump(self.source.name) if key_of(row) not in gone]
        with mock.patch.object(self.sources, "dump", lambda _name: kept):
            return super().wrong()

    def _run(self) -> Run:
        found = cast(Any, self.run("lease"))
        found.pool, found.state, found.targets = None, self.file, found.propagator.targets
        found.mapper, found.ids, found.reverse = self.mapper, self.mapping.rows.ids, None
        found.config.limits = SimpleNamespace(concurrency=1, scans=1)
        found.config.gates = replace(found.config.gates, verification_max_age_s=ALL_S)
        found.config.targets = None
        found.window, found.by_workers, found.scripts = WINDOW, None, ()
        found.copier = found.copier.__class__(found.propagator, 1, Throttle())
        found.declared.migration = self.mapper.migration
        return cast(Run, found)


def _token_hex(_bytes: int) -> str:
    _moves[0] += 1
    return f"move {_moves[0]}"


_moves = [0]
WINDOW = SimpleNamespace(rows=100, bytes=1_000_000)


@contextmanager
def at_work() -> Iterator[None]:
    """Let the program work by the clock of these worlds, and in few buckets."""
    patch = mock.patch.object
    few = 8
    with ExitStack() as stack:
        for replaced in (
            patch(delta, "_POLL_SECONDS", 1.0),
            patch(term, "_POLL_S", ALL_S),
            patch(clients, "_POLL_S", ALL_S),
            patch(control, "secrets", SimpleNamespace(token_hex=_token_hex)),
            patch(digest, "BUCKET_MASK", few - 1),
            patch(bucket_digests, "BUCKETS", few),
            patch(trace, "_SHIFT", 0),
        ):
            stack.enter_context(replaced)
        yield
