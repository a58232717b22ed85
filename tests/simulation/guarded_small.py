"""Small worlds of a process that follows a migration with capture "delta" by its guard, while a runner moves
the authority: forward, under writes of the old view, or back, under writes of the new one.

Rules kept here:

* The process is the program's: `carrier_of`, its client and its guard. So are the runner's moves of the
  control row. Under the freeze it copies row by row, and then looks for nothing that came later.
* Writers are not stopped. When the guard looks at the control row, and when a write begins, is a choice of
  the search.
* At the end every row whose write was acknowledged is in the table that decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

from rekey.client.lease import ClientLease
from rekey.client.sdk import guard as guard_module
from rekey.client.sdk.guard import PartGuard
from rekey.client.sdk.options import ClientOptions
from rekey.client.sdk.router import PartRouter, carrier_of
from rekey.copy.back import BackPropagator
from rekey.errors import RekeyError
from rekey.mapping.rows import JOURNAL_TABLE, MAPPING_TABLE
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, ControlStore, from_row
from rekey.protocol.opening import Prepared, open_migration
from rekey.protocol.propagate import Propagator
from rekey.protocol.rules import View
from rekey.tables.base import Accounts
from tests.simulation import parts_small
from tests.simulation.dual_moves import TIMES
from tests.simulation.one_store import FollowingWorld
from tests.simulation.scheduler import Scheduler
from tests.worlds.begun_migrations import declared_as
from tests.worlds.dual_write import upsert
from tests.worlds.merged_tables import DE, FR, merging, order
from tests.worlds.parts_of_a_table import NORTH, SOUTH, part, row
from tests.worlds.small import go_on

# The migration that has clients, which has not begun; and the one that has guards, in each view.
OLD = (
    declared_as("0001_north", part("Rows", NORTH, "North")),
    declared_as("0001_south", part("Rows", SOUTH, "South", capture="delta")),
)
NEW = (
    declared_as("0001_de", merging(DE, "OrdersDE", "Orders")),
    declared_as("0001_fr", merging(FR, "OrdersFR", "Orders", capture="delta")),
)


class GuardedWorld(FollowingWorld):
    """A process that writes rows of a guarded migration, and a runner that moves that."""

    longest = TIMES.longest_operation_s

    def __init__(
        self, scheduler: Scheduler, view: View, *, looks: int = 0, moves: int = 2, begins: bool = False
    ) -> None:
        """Take the world.

        Args:
            scheduler: of the search.
            view: of the process. Of the old one the runner cuts over, of the new one it rolls back.
            looks: how often the guard looks at the control row after its first look.
            moves: how often the runner moves the control row; each second move ends a freeze.
            begins: whether the runner begins the migration first; else it is in the phase before.
        """
        super().__init__(scheduler)
        self.view, self.looks, self.moves, self.begins = view, looks, moves, begins
        self.declared = OLD if view is View.OLD else NEW

    @property
    def moved(self) -> Any:
        """The declaration of the guarded migration."""
        return self.declared[1]

    @property
    def control(self) -> ControlStore:
        return ControlStore(self.store, self.moved.script_id)

    async def prepare(self) -> None:
        tables = {JOURNAL_TABLE, MAPPING_TABLE}
        for declared in self.declared:
            tables |= {declared.migration.source, *declared.migration.table_names}
        for name in sorted(tables):
            await self.store.create_table(name)
        await self.store.table(self.moved.migration.source).insert(self._old())
        if self.begins:
            return
        await self._begin()
        if self.view is View.NEW:
            await self.control.move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
            await self.control.move(ControlPhase.FREEZE, ControlPhase.CUTOVER)

    def actors(self) -> dict[str, Callable[[], object]]:
        return {"process": self._work, "runner": self._move}

    def wrong(self) -> str:
        rows = [each for each in self.store.dump("rekeycontrol") if each["RowKey"] == "control"]
        phase = None if not rows else from_row(rows[0]).came_from or from_row(rows[0]).phase
        migration = self.moved.migration
        decides = migration.target.table if phase is ControlPhase.CUTOVER else migration.source
        there = {each["RowKey"]: each["Value"] for each in self.store.dump(decides)}
        lost = any(there.get(key) != value for key, value in self.acknowledged)
        return f"an acknowledged write is lost in {phase}" if lost else ""

    # --- the process ---------------------------------------------------------------------------------------

    def _old(self) -> Row:
        return row(SOUTH) if self.view is View.OLD else order()

    def _changed(self) -> Row:
        """Return what the process writes over the only row."""
        place = {"PartitionKey": f"{FR}_c1", "Customer": "c1"} if self.view is View.NEW else {}
        return {**self._old(), **place, "Value": 2}

    async def _work(self) -> None:
        migration = self.moved.migration
        carrier = carrier_of(
            [
                ClientOptions(
                    Prepared(declared, {}.__getitem__, go_on),
                    migration.source if self.view is View.OLD else migration.target.table,
                    settings=TIMES,
                    shadow_reads=0.0,
                )
                for declared in self.declared
            ],
            lambda _options: Accounts(self.store, self.store),
        )
        assert isinstance(carrier, PartRouter)
        with suppress(RekeyError):
            await carrier.open()
        looking = asyncio.ensure_future(self._look(carrier._parts[1]))
        await self.gate("begins")
        with suppress(RekeyError, TimeoutError):
            await carrier.write([upsert(self._changed())])
            self.acknowledged.add(("1", 2))
        await looking

    async def _look(self, guard: Any) -> None:
        for _ in range(self.looks):
            await self.gate("looks")
            with suppress(RekeyError):
                await (await guard.open()).poll()

    # --- the runner ----------------------------------------------------------------------------------------

    async def _move(self) -> None:
        with suppress(RekeyError):
            if self.begins:
                await self._begin()
            back = self.view is View.NEW
            for _ in range(0, self.moves, 2):
                before, after = ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER
                before, after = (after, before) if back else (before, after)
                await self.control.move(before, ControlPhase.FREEZE)
                await (self._copy_back() if back else self._copy())
                await self.control.move(ControlPhase.FREEZE, after)
                back = not back

    async def _begin(self) -> None:
        declared = self.moved
        migration = declared.migration
        await self.control.create(
            ControlRow(
                declared.script_id, ControlPhase.SOURCE, 1, "run", declared.digest, migration.source,
                migration.table_names, {}, id_key=bytes(32),
                part=migration.capture if migration.where is not None else "",
            )
        )  # fmt: skip
        await self.control.move(ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)
        await self._copy()

    async def _propagator(self) -> Propagator:
        prepared = Prepared(self.moved, {}.__getitem__, go_on)
        migration = open_migration(prepared, Accounts(self.store, self.store))
        made = ControlRow(self.moved.script_id, ControlPhase.SOURCE, 1, "run", "", "", (), {}, bytes(32))
        return migration.propagator(await migration.mapping(made), self.store.table)

    async def _copy(self) -> None:
        propagator = await self._propagator()
        for key in await _keys(propagator.source):
            await propagator.propagate(key)

    async def _copy_back(self) -> None:
        back = BackPropagator(await self._propagator())
        target = back.forward.targets[0]
        for key in await _keys(target):
            there = await target.get(key)
            assert there is not None
            await back.propagate(await back.claim_new(there))


async def _keys(table: Any) -> list[EntityKey]:
    return [key_of(each) async for page in table.scan() for each in page.rows]


@contextmanager
def at_work() -> Iterator[None]:
    """As `parts_small.at_work`, for guards as well."""

    def lease(control: ControlStore, registry: Any, facts: Any, **more: Any) -> ClientLease:
        time = asyncio.get_running_loop().time
        return ClientLease(
            control, registry, facts, client_id="a1", monotonic=time, jitter=lambda: 0.5, **more
        )

    with parts_small.at_work(), mock.patch.object(guard_module, "ClientLease", lease):
        yield


# --- rules switched off ------------------------------------------------------------------------------------


def writes_are_answered_without_another_look() -> Any:
    """Trust what the guard read before the write, as long as the lease says."""

    async def nothing(*_: object) -> None:
        return

    return mock.patch.object(PartGuard, "before_answer", nothing)


def a_freeze_between_may_be_over() -> Any:
    """Answer a write if writes pass after it, whatever lay between."""
    return mock.patch.object(guard_module, "_is_without_freeze", lambda *_: True)
