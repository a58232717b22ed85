"""Small worlds of two parts of one table: a process that writes rows of both, and runners that move them.

Rules kept here:

* The process is the program's: `carrier_of` and its clients, with lease, registry and journal. The runner's
  moves are the program's, too (`clients.move`, `cutover.switch_over`), and so are its questions to clients of
  other parts. What it copies, it propagates row by row.
* When a client looks at the control rows after it began, and when it begins a write, is a choice of the
  search; it looks a few times and then no more. Time passes where everybody waits for it.
* At the end every row whose write was acknowledged is in the table that decides about its part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from rekey.client.lease import ClientLease
from rekey.client.sdk import core as core_module
from rekey.client.sdk.core import ClientCore
from rekey.client.sdk.options import ClientOptions
from rekey.client.sdk.router import PartRouter, carrier_of
from rekey.core.progress import Progress
from rekey.declaration.migration import Declared
from rekey.errors import RekeyError
from rekey.mapping.rows import JOURNAL_TABLE, MAPPING_TABLE
from rekey.model import EntityKey, key_of
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.journal import Journal
from rekey.protocol.opening import OpenMigration, Prepared, open_migration
from rekey.protocol.registry import Registry
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import View
from rekey.protocol.sweeper import Sweeper
from rekey.runner import clients
from rekey.runner.phases import backfill, cutover, dual_write
from rekey.runner.run import Options, tell_nobody
from rekey.tables.base import Accounts
from tests.simulation import dual_moves
from tests.simulation.dual_moves import OVER_S, TIMES
from tests.simulation.one_store import FollowingWorld
from tests.simulation.scheduler import Scheduler, Waits
from tests.worlds.begun_migrations import declared_as
from tests.worlds.dual_write import insert
from tests.worlds.parts_of_a_table import NORTH, SOUTH, part, row
from tests.worlds.small import go_on

SOURCE = "Rows"
TARGETS = {NORTH: "North", SOUTH: "South"}
DECLARED = {
    tenant: declared_as(f"0001_{tenant}", part(SOURCE, tenant, target)) for tenant, target in TARGETS.items()
}


class PartsWorld(FollowingWorld):
    """A process that follows some parts, and a runner for each part that moves."""

    longest = TIMES.longest_operation_s
    view = View.OLD

    def __init__(
        self,
        scheduler: Scheduler,
        follows: Sequence[Declared],
        writes: Sequence[str],
        moves: Sequence[str] = (SOUTH,),
        *,
        absent: Sequence[str] = (),
        looks: int = 0,
        ends: bool = False,
    ) -> None:
        """Take the world.

        Args:
            scheduler: of the search.
            follows: the scripts of the process.
            writes: of which parts it writes a row, one after the other.
            moves: parts that a runner begins to move, up to the cutover. The others are in `dual_write`.
            absent: parts whose migration has not begun.
            looks: how often the process looks at the control rows after its first look.
            ends: whether the process ends after its last write.
        """
        super().__init__(scheduler)
        self.follows, self.writes, self.moves = follows, writes, moves
        self.absent, self.looks, self.ends = absent, looks, ends

    def control(self, tenant: str) -> ControlStore:
        return ControlStore(self.store, DECLARED[tenant].script_id)

    async def prepare(self) -> None:
        for name in (SOURCE, *TARGETS.values(), JOURNAL_TABLE, MAPPING_TABLE):
            await self.store.create_table(name)
        for tenant, declared in DECLARED.items():
            await self.store.table(SOURCE).insert(row(tenant, "0"))
            if tenant in self.absent:
                continue
            migration = declared.migration
            control = ControlRow(
                declared.script_id, ControlPhase.SOURCE, 1, "run", declared.digest, SOURCE,
                migration.table_names, {}, id_key=bytes(32), part=migration.capture,
            )  # fmt: skip
            await self.control(tenant).create(control)
            if tenant not in self.moves:
                await self.control(tenant).move(ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)
                await self._copy(tenant)

    def actors(self) -> dict[str, Callable[[], object]]:
        runners = {f"runner of {tenant}": partial(self._migrate, tenant) for tenant in self.moves}
        return {"process": self._work, **runners}

    def wrong(self) -> str:
        for tenant, declared in DECLARED.items():
            controls = [each for each in self.store.dump("rekeycontrol") if _is_of(each, declared.script_id)]
            phases = [each["CameFrom" if each["Phase"] == "freeze" else "Phase"] for each in controls]
            is_moved = phases == ["cutover"]
            rows = self.store.dump(TARGETS[tenant] if is_moved else SOURCE)
            there = {EntityKey(each.get("Tenant", each["PartitionKey"]), each["RowKey"]) for each in rows}
            if any(key.partition == tenant and key not in there for key, _ in self.acknowledged):
                return f"a row of the part {tenant} is lost"
        return ""

    # --- the process ---------------------------------------------------------------------------------------

    async def _work(self) -> None:
        carrier = carrier_of(
            [
                ClientOptions(
                    Prepared(declared, {}.__getitem__, go_on),
                    SOURCE,
                    self.view,
                    settings=TIMES,
                    shadow_reads=0.0,
                )
                for declared in self.follows
            ],
            lambda _options: Accounts(self.store, self.store),
        )
        cores = carrier._cores if isinstance(carrier, PartRouter) else (carrier,)
        for number, core in enumerate(cores):
            core.number = number  # type: ignore[attr-defined]
        with suppress(RekeyError):
            await carrier.open()
        looking = asyncio.ensure_future(self._look(cores))
        for number, tenant in enumerate(self.writes, start=1):
            await self.gate("begins")
            operation = insert(row(tenant, str(number)))
            with suppress(RekeyError, TimeoutError):
                await carrier.write([operation])
                self.acknowledged.add((key_of(operation.row), number))
        await looking
        if self.ends:
            await carrier.close()
            return
        for core in cores:
            if core._working is not None:
                await core._working.writer.settle()

    async def _look(self, cores: Sequence[ClientCore]) -> None:
        for _ in range(self.looks):
            await self.gate("looks")
            for core in cores:
                with suppress(RekeyError):
                    await (await core.open()).poll()

    # --- the runner ----------------------------------------------------------------------------------------

    async def _migrate(self, tenant: str) -> None:
        run = await self._run(tenant)
        with suppress(RekeyError):
            if await dual_write.gate(run):
                return
            now = await run.control.read()
            await clients.announce_to_others(run, now)
            await clients.move(run, ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)
            if await backfill.gate(run):
                return
            await self._copy(tenant)
            if await clients.closed_by_others(run):
                return
            await cutover.switch_over(run, ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER)

    async def _copy(self, tenant: str) -> None:
        propagator = (await self._run(tenant)).propagator
        async for page in propagator.source.scan():
            for each in page.rows:
                await propagator.propagate(key_of(each))
        await self.control(tenant).mark_copied()

    async def _opened(self, tenant: str) -> tuple[OpenMigration, Any]:
        prepared = Prepared(DECLARED[tenant], {}.__getitem__, go_on)
        migration = open_migration(prepared, Accounts(self.store, self.store))
        row = ControlRow(
            prepared.declared.script_id, ControlPhase.SOURCE, 1, "run", "", SOURCE, (), {}, bytes(32)
        )
        return migration, await migration.mapping(row)

    async def _run(self, tenant: str) -> Any:
        """Return of an open migration what moving its authority asks for."""
        migration, mapping = await self._opened(tenant)
        script_id = DECLARED[tenant].script_id
        propagator = migration.propagator(mapping, self.store.table)
        journal = Journal(self.store.table(JOURNAL_TABLE), script_id, now=lambda: 0, token=f"runner {tenant}")
        propagator.announce = clients.announcing(journal, Waits(self.scheduler))
        gates = SimpleNamespace(clients_timeout_s=2 * OVER_S, freeze_timeout_s=2 * OVER_S, margin_s=OVER_S)
        run = SimpleNamespace(
            script_id=script_id,
            declared=SimpleNamespace(cli_selector=script_id, migration=DECLARED[tenant].migration),
            source=self.store.table(SOURCE),
            builds_on=(),
            of_same_rows=(),
            beside=[declared for other, declared in DECLARED.items() if other != tenant],
            group=(),
            is_delta=False,
            control=self.control(tenant),
            registry=Registry(self.store, script_id),
            restricted=self.store,
            journal=journal,
            mapping=mapping,
            sweeper=Sweeper(journal, ReversePropagator(propagator)),
            config=SimpleNamespace(
                gates=gates, limits=SimpleNamespace(concurrency=1), tables=SimpleNamespace(endpoint="")
            ),
            clock=Waits(self.scheduler),
            check=go_on,
            still_alone=go_on,
            checkpointed=lambda **_: None,
            progress=Progress(),
            state=SimpleNamespace(audit=lambda *_: None, latest_verification=lambda _script_id: None),
            propagator=propagator,
            options=Options(),
            tell=tell_nobody,
        )
        run.run_group = (run,)
        return run


def _is_of(control: dict[str, Any], script_id: str) -> bool:
    return control["PartitionKey"] == script_id and control["RowKey"] == "control"


@contextmanager
def at_work() -> Iterator[None]:
    """Let the program work in these worlds: by the loop's time, without looks of its own, and without words
    that are drawn."""

    async def start(self: ClientLease) -> None:
        await self._note("read", self.poll())

    async def nothing(*_: object) -> None:
        return

    def lease(control: ControlStore, registry: Registry, facts: Any, **more: Any) -> ClientLease:
        loop = asyncio.get_running_loop()
        return ClientLease(
            control, registry, facts, client_id=control.script_id[-5:].encode().hex(), monotonic=loop.time,
            jitter=lambda: 0.5, **more,
        )  # fmt: skip

    with ExitStack() as stack:
        stack.enter_context(dual_moves.repeatable())
        stack.enter_context(mock.patch.object(ClientLease, "start", start))
        stack.enter_context(mock.patch.object(core_module, "ClientLease", lease))
        stack.enter_context(
            mock.patch.object(core_module, "Journal", partial(Journal, now=lambda: 0, token="process"))
        )
        for name in ("_check_credential", "_take_over"):
            stack.enter_context(mock.patch.object(ClientCore, name, nothing))
        yield


# --- rules switched off ------------------------------------------------------------------------------------


def every_row_is_the_first_clients() -> Any:
    """Let one client write the rows of all parts, those of others as rows of no part."""
    return mock.patch.object(PartRouter, "_owner", lambda self, _key: self._cores[0])


def unknown_parts_are_not_asked_for() -> Any:
    """Write rows outside the own part whoever may be migrating them."""
    return mock.patch.object(ClientLease, "require_known_parts", lambda *_args, **_named: None)


@contextmanager
def gates_ask_no_clients_of_other_parts() -> Iterator[None]:
    """Begin, and cut over, whoever writes rows of the part unfollowed."""

    async def none(_run: object) -> list[str]:
        return []

    with (
        mock.patch.object(clients, "closed_by_others", none),
        mock.patch.object(dual_write, "closed_by_others", none),
        mock.patch.object(backfill, "closed_by_others", none),
    ):
        yield


def the_copy_asks_no_clients_of_other_parts() -> Any:
    """Copy whoever may not know that the part has begun."""

    async def none(_run: object) -> list[str]:
        return []

    return mock.patch.object(backfill, "gate", none)


@contextmanager
def clients_look_before_they_register() -> Iterator[None]:
    """Read which parts are migrated before the client can be seen."""
    beat, parts = Registry.beat, ControlStore.parts
    seen: dict[str, Any] = {}  # of the process of the run that is made

    async def look_and_beat(self: Registry, client: Any) -> None:
        seen[self.script_id] = await parts(ControlStore(self._service, self.script_id))
        await beat(self, client)

    async def as_seen(self: ControlStore) -> Any:
        return seen[self.script_id] if self.script_id in seen else await parts(self)  # a runner's

    with (
        mock.patch.object(Registry, "beat", look_and_beat),
        mock.patch.object(ControlStore, "parts", as_seen),
    ):
        yield
