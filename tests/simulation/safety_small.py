"""Small worlds for what a command must know before it gives something up: a row that is written outside
propagate beside a verification and a cutover, and a table that vanishes beside a rollback that drops targets.

Rules kept here:

* The commands' work is the program's own: `verify_full`, the gate's question to the last verification, the
  insert of `restore-row`, `require_droppable` and the undo of `prepare`.
* Commands do not overlap: one that finds another at work is refused. What a killed one had sent may land
  later; the next one reckons with that for the margin, as a session does.
* The gate that lets the authority move compares nothing, as in capture "dual-write".
* A table vanishes at any moment before the command has looked for the last time. What somebody deletes behind
  that, while the targets are being dropped, no look can find.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from rekey.errors import Moved, Refused, ServiceError
from rekey.mapping.removed import Kept, Removed
from rekey.model import Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.term import Term
from rekey.runner import remaining, restore
from rekey.runner.phases import prepare
from rekey.runner.run import Options, Run
from rekey.runner.verification import closed_by_verification, verify_full
from rekey.state.models import Verification
from tests.fakes.faults import Call
from tests.simulation.freeze_small import FreezeWorld, FullStateFile
from tests.simulation.freeze_small import at_work as freezes_at_work
from tests.simulation.late_small import Account
from tests.simulation.scheduler import Actor, Scheduler
from tests.simulation.small import DigestsInMemory
from tests.worlds.small import SCRIPT, USERS, user

ANN = user("ann@example.com")
GHOST: Row = {"PartitionKey": "p0", "RowKey": "ghost", "Name": "of no source row"}


class GateFile(FullStateFile):
    """A state file that the gate is asked of."""

    last: Verification | None = None

    def add_verification(self, script_id: str, made: Verification) -> None:
        """Keep it."""
        super().add_verification(script_id, made)
        self.last = replace(made, number=self.verified)

    def latest_verification(self, _script_id: str) -> Any:
        """Return it."""
        return self.last

    def facts_of(self) -> dict[str, str]:
        """Return all facts that have a value."""
        return {name: value for name, value in self.facts.items() if value is not None}


class GateWorld(FreezeWorld):
    """An operator restores a row that no source row gives; a runner verifies, and cuts over if that opens the
    gate."""

    crashing = frozenset({"operator"})

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler, USERS, [ANN], [])
        self.file = GateFile()
        self.learns = False  # the lease orders calls that have nothing to do with each other
        self.holder: Actor | None = None
        self.cut_off = False

    async def prepare(self) -> None:
        await super().prepare()
        await self.propagator().propagate(key_of(ANN))

    def actors(self) -> dict[str, Callable[[], object]]:
        return {"runner": self._migrate, "operator": self._restore}

    def durable(self) -> Hashable:
        last = self.file.last and (self.file.last.number, self.file.last.divergences)
        return super().durable(), self.cut_off, self.is_held, last

    def broken(self) -> str:
        """Say nothing: the restored row is in no mapping."""
        return ""

    @property
    def is_held(self) -> bool:
        """Whether a command is at work."""
        return self.holder is not None and not self.holder.dead

    @asynccontextmanager
    async def _command(self) -> AsyncIterator[Run]:
        await self.scheduler.hold(Call("begins", "", (), 0))
        if self.is_held:
            raise Refused("another runner is at work")
        self.holder = self.scheduler.acting()
        run = self._run()
        if self.cut_off:
            await Term(run.restricted, SCRIPT).extend(await run.restricted.server_time())
        self.cut_off = True
        yield run
        self.cut_off, self.holder = False, None

    async def _migrate(self) -> None:
        with suppress(Moved, Refused, ServiceError):
            async with self._command() as run:
                await verify_full(run)
            async with self._command() as run:
                row = await self.store.read()
                if row is not None and not closed_by_verification(run, row):
                    await self.store.move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
                    await self.store.move(ControlPhase.FREEZE, ControlPhase.CUTOVER)

    async def _restore(self) -> None:
        with suppress(Moved, Refused, ServiceError):
            async with self._command() as run:
                row = await self.store.read()
                if row is not None and row.phase is ControlPhase.DUAL_WRITE:
                    kept = Kept("ghost", "", 1, key_of(GHOST))
                    await restore._insert(run, kept, Removed(0, None, GHOST), marked=True)

    def _run(self) -> Run:
        run = super()._run()
        facts = cast(Any, self.file)
        cast(Any, run).state = _WithFacts(facts)
        return run


class _WithFacts:
    """The state file as a run has it: `facts` is a call there."""

    def __init__(self, file: GateFile) -> None:
        self._file = file

    def facts(self, _script_id: str) -> dict[str, str]:
        """Return all facts."""
        return self._file.facts_of()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class VanishingWorld(FreezeWorld):
    """An operator rolls back and drops the targets, while somebody deletes the source."""

    crashing = frozenset()

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler, USERS, [ANN], [])
        self.vanished = self.looked = False
        self.learns = False  # an event concerns what the operator reads

    async def prepare(self) -> None:
        await super().prepare()
        await self.propagator().propagate(key_of(ANN))

    def actors(self) -> dict[str, Callable[[], object]]:
        return {"operator": self._roll_back}

    def events(self) -> dict[str, Callable[[], None]]:
        return {} if self.vanished or self.looked else {"somebody deletes the source": self._vanish}

    def durable(self) -> Hashable:
        return super().durable(), self.vanished, self.looked

    def _vanish(self) -> None:
        self.vanished = True
        self.sources._tables.pop(self.source.name.lower())

    async def _roll_back(self) -> None:
        run = self._run()
        run.options = Options(drop_targets=True)
        with suppress(Refused, ServiceError):
            await remaining.require_droppable(run)
            await prepare.undo(run)

    def wrong(self) -> str:
        tables = ((self.sources, self.source.name), (self.others, self.mapper.tables[0]))
        held = any(account._tables.get(name.lower()) and account.dump(name) for account, name in tables)
        return "" if held else "no table holds the row"

    def broken(self) -> str:
        return ""

    def _run(self) -> Run:
        run = cast(Any, super()._run())
        run.tables = _Tables(self)
        run.declared.migration = self.mapper.migration
        return cast(Run, run)


class _Tables(Account):
    """Both accounts as one, which note what the operator has looked at for the last time."""

    def _of(self, name: str) -> Any:
        world = self._world
        return world.sources if name == world.source.name else world.others

    async def table_exists(self, name: str) -> bool:
        """Tell whether a table exists."""
        found: bool = await self._of(name).table_exists(name)
        self._world.scheduler.answered("table_exists", str(found))
        return found

    async def delete_table(self, name: str) -> bool:
        """Delete a table."""
        cast(VanishingWorld, self._world).looked = True
        deleted: bool = await self._of(name).delete_table(name)
        return deleted


class _Parts(DigestsInMemory):
    """Stands for the parts on disk."""

    def prefixes(self) -> list[str]:
        """Return what digests begin with."""
        return sorted({digest[:2] for digest in self._digests})


@contextmanager
def at_work() -> Iterator[None]:
    """Let the program work in these worlds."""
    looks = prepare.require_source

    async def last_look(run: Run) -> None:
        await looks(run)
        cast(Any, run.tables)._world.looked = True

    with (
        freezes_at_work(),
        mock.patch.object(remaining, "DigestParts", _Parts),
        mock.patch.object(prepare, "require_source", last_look),
        mock.patch.object(prepare, "RemovedRows", lambda _mapping: SimpleNamespace(forget=_nothing)),
    ):
        yield


async def _nothing() -> None:
    return
