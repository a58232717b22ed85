"""Small worlds of a chain: a process that writes the new table of a migration that is complete, and a runner
that moves rows of that table on. Otherwise as `parts_small`."""

from __future__ import annotations

from typing import Any
from unittest import mock

from rekey import Migration, Target, keys
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.rules import View
from rekey.runner import clients
from tests.simulation.parts_small import SOURCE, PartsWorld
from tests.simulation.scheduler import Scheduler
from tests.worlds.begun_migrations import declared_as
from tests.worlds.parts_of_a_table import NORTH, SOUTH

FIRST = declared_as(
    "0000_first",
    Migration(
        "Before",
        Target(SOURCE, partition_key=keys.keep(), row_key=keys.keep()),
        capture="dual-write",
    ),
)
_PHASES = (ControlPhase.DUAL_WRITE, ControlPhase.FREEZE, ControlPhase.CUTOVER, ControlPhase.COMPLETE)


class ChainWorld(PartsWorld):
    """A process of the first migration, in the new view, and the runner of the next one."""

    view = View.NEW

    def __init__(self, scheduler: Scheduler, *, looks: int = 0, ends: bool = False) -> None:
        super().__init__(scheduler, (FIRST,), (SOUTH,), absent=(NORTH,), looks=looks, ends=ends)

    async def prepare(self) -> None:
        await super().prepare()
        store = ControlStore(self.store, FIRST.script_id)
        await store.create(
            ControlRow(
                FIRST.script_id, ControlPhase.SOURCE, 1, "run", FIRST.digest, FIRST.migration.source,
                FIRST.migration.table_names, {}, id_key=bytes(32), copied=True,
            )
        )  # fmt: skip
        now = ControlPhase.SOURCE
        for then in _PHASES:
            await store.move(now, then)
            now = then

    async def _run(self, tenant: str) -> Any:
        run = await super()._run(tenant)
        run.builds_on = (FIRST,)
        return run


# --- rules switched off ------------------------------------------------------------------------------------


def the_first_clients_are_not_told() -> Any:
    """Begin without a record beside the control row of the first migration."""

    async def nothing(_run: object, _control: object) -> None:
        return

    return mock.patch.object(clients, "announce_to_others", nothing)
