"""A small world for the cutover and the way back of a group: what its control rows say in every order.

Rules kept here:

* The moves are the program's own (`cutover.run`, `cutover.undo`, `leave_freeze`, `ControlStore`); of the work
  under freeze there is one request for each member, and whether one refuses. What it does to rows is searched
  in other worlds.
* A runner that is killed is succeeded by one that leaves the freeze which it finds, as a session does. At any
  moment a command on another member may do the same, also while the first runner is only suspended: leases
  are not relied on here.
* Once the runner was told that nothing moved, and the control row says so, the application writes to the
  source. A move that comes behind that without another comparison loses the write.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from rekey.errors import Findings, GateClosed, Moved, ServiceError
from rekey.mapping.rows import CONTROL_TABLE
from rekey.phases import ControlPhase
from rekey.protocol import control
from rekey.protocol.control import ControlRow, ControlStore, from_row
from rekey.runner.phases import cutover
from rekey.runner.run import Options, Run, tell_nobody
from tests.simulation.one_store import OneStoreWorld, numbered_moves
from tests.simulation.scheduler import Scheduler

GROUP = "billing"
MEMBERS = ("0001_a", "0002_b")


class GroupWorld(OneStoreWorld):
    """A runner that moves a group, a command on another member, and the application."""

    crashing = frozenset({"runner"})

    def __init__(self, scheduler: Scheduler, *, back: bool = False, refuses: str = "") -> None:
        """Take the world.

        Args:
            scheduler: of the search.
            back: the runner goes back from the cutover.
            refuses: the member that refuses under freeze.
        """
        super().__init__(scheduler)
        self.refuses = refuses
        self.start, self.end = ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER
        if back:
            self.start, self.end = self.end, self.start
        self.told = self.unproved = False
        self._read: tuple[Hashable, list[ControlRow]] = None, []

    def control(self, script_id: str) -> ControlStore:
        """Return the control row of a member."""
        store = ControlStore(self.store, script_id, GROUP)
        store.group_ids = frozenset(MEMBERS)
        return store

    def rows(self) -> list[ControlRow]:
        """Return the control rows as they are now: read again where they have changed."""
        content = self.store.content()
        if self._read[0] != content:
            self._read = content, [from_row(row) for row in self.store.dump(CONTROL_TABLE)]
        return self._read[1]

    async def prepare(self) -> None:
        for one in MEMBERS:
            row = ControlRow(one, ControlPhase.SOURCE, 1, "run", "digest", one, (), {}, id_key=bytes(32))
            await self.control(one).create(row)
            await self.control(one).move(ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)
        if self.start is ControlPhase.CUTOVER:
            await self.control(MEMBERS[0]).move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
            await self.control(MEMBERS[0]).move(ControlPhase.FREEZE, ControlPhase.CUTOVER)

    def actors(self) -> dict[str, Callable[[], object]]:
        return {"runner": self._migrate, "another": self._align, "application": self._write}

    def durable(self) -> Hashable:
        rows = tuple((one.script_id, str(one.phase), one.epoch, one.move_id) for one in self.rows())
        return rows, self.told, self.unproved

    async def finish(self) -> None:
        await self._leave(MEMBERS[0])

    def broken(self) -> str:
        """A group is mixed where its rows do not all say the same."""
        phases = {str(one.phase) for one in self.rows()}
        return f"a mixed group: {', '.join(sorted(phases))}" if len(phases) > 1 else ""

    def wrong(self) -> str:
        phase = self.rows()[0].phase
        if phase is self.end and self.unproved:
            return "moved behind a write that nothing compared"
        return self.broken() or ("a freeze that nothing leaves" if phase is ControlPhase.FREEZE else "")

    # --- the actors ----------------------------------------------------------------------------------------

    async def _leave(self, script_id: str) -> None:
        """Leave a freeze, as a session does that opens a member."""
        row = await self.control(script_id).read()
        if row is not None and row.phase is ControlPhase.FREEZE:
            await self.control(script_id).move(ControlPhase.FREEZE, row.came_from or self.start)

    async def _migrate(self) -> None:
        runs = [self._run(one) for one in MEMBERS]
        for run in runs:
            cast(Any, run).run_group = runs
        with suppress(Moved, ServiceError, Findings, GateClosed):
            await self._leave(MEMBERS[0])
            await (cutover.run if self.end is ControlPhase.CUTOVER else cutover.undo)(runs[0])
        self.told = True

    async def _align(self) -> None:
        with suppress(Moved, ServiceError):
            await self._leave(MEMBERS[1])

    async def _write(self) -> None:
        row = await self.control(MEMBERS[1]).read()
        if self.told and row is not None and row.phase is self.start:
            self.unproved = True

    async def _work(self, run: Run) -> None:
        """What is done under freeze for one member."""
        await run.control.read()
        if run.script_id == self.refuses:
            raise Findings("it differs")
        self.unproved = False

    def _run(self, script_id: str) -> Run:
        options = Options(writers_stopped=True)
        migration = SimpleNamespace(reverse=True, shown=str)
        run = SimpleNamespace(
            script_id=script_id, control=self.control(script_id), is_delta=True, options=options,
            switchover={}, tell=tell_nobody, group=(),
            declared=SimpleNamespace(cli_selector=script_id, migration=migration),
            source_time=self.store.server_time, state=SimpleNamespace(set_fact=lambda *_: None), world=self,
            progress=SimpleNamespace(note=lambda *_: None),
        )  # fmt: skip
        return cast(Run, run)


@contextmanager
def at_work() -> Iterator[None]:
    """Let the program make its moves in these worlds."""

    async def nothing(*_: object) -> None:
        return

    async def open_gate(*_: object) -> list[str]:
        return []

    async def each(run: Run, *_: object) -> None:
        await cast(Any, run).world._work(run)

    async def prove(runs: Sequence[Run], *_: object) -> None:
        for one in runs:
            await each(one)

    with ExitStack() as stack:
        for name, work in (
            ("until_quiet", nothing),
            ("closed_by_source", open_gate),
            ("_check_back", nothing),
            ("_bring_back", each),
            ("_prove_rollback", nothing),
            ("_prove_under_freeze", prove),
        ):
            stack.enter_context(mock.patch.object(cutover, name, work))
        stack.enter_context(numbered_moves())
        yield


@contextmanager
def one_by_one() -> Iterator[None]:
    """Move the rows of a group one after the other, as if each had a partition of its own."""
    move, is_joint = ControlStore.move, control.is_joint

    async def each(self: ControlStore, now: ControlPhase, then: ControlPhase) -> ControlRow:
        if not is_joint(now, then):
            return await move(self, now, then)
        for one in await self.members():
            row = await move(ControlStore(self.restricted, one.script_id, self.group), now, then)
        return row

    with (
        mock.patch.object(ControlStore, "move", each),
        mock.patch.object(control, "is_joint", lambda *_: False),
    ):
        yield


@contextmanager
def unconditional() -> Iterator[None]:
    """Move whatever the rows are by then."""

    def write(verb: Any, row: Any, _etag: str) -> Any:
        return operation(verb, row, "*")

    operation = control.Operation
    with mock.patch.object(control, "Operation", write):
        yield
