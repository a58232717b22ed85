"""The migrations whose source a migration has filled, recorded beside its control row: its clients, which do
not follow them, look there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rekey.errors import StateUnusable
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, KeyRange, Row
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.stored import column, read, written
from rekey.tables.base import TableService

_PREFIX = "next."
# After all row keys with the prefix.
_AFTER_ALL = "next/"


@dataclass(frozen=True, slots=True)
class Successor:
    """A migration of a table that another one has filled.

    Attributes:
        group: its group, "" for none.
        capture: `dual-write` or `delta`.
        control: its control row; None where it was rolled back whole, or never began.
    """

    script_id: str
    group: str = field(default="", metadata=column("Group", may_be_absent=True))
    capture: str = field(default="", metadata=column("Capture"))
    control: ControlRow | None = None

    def closes(self, before: ControlRow, *, reads: bool) -> bool:
        """Tell whether its source is written no more (`reads`: nor read) without following it. `before`: of
        the migration that has filled the source."""
        control = self.control
        # One that ended first was of an earlier table of this name.
        if control is None or control.ended_before(before):
            return False
        phase = control.unfrozen if reads else control.phase
        # Whether it follows writes of its source, or copies them in a pass: that is up to date, too.
        is_open = phase is ControlPhase.SOURCE or (
            phase is ControlPhase.DUAL_WRITE and (reads or self.capture == "delta")
        )
        return not is_open


async def add_successor(restricted: TableService, script_id: str, successor: Successor) -> None:
    """Record a successor of a migration, before clients of that one must know of it. It stays when the
    successor is rolled back: its control row says whether it has begun.

    Raises:
        ServiceError: the restricted store failed.
    """
    row = {PARTITION_KEY: script_id, ROW_KEY: _PREFIX + successor.script_id, **written(successor)}
    await restricted.table(CONTROL_TABLE).upsert(row)


async def successors_of(store: ControlStore) -> list[Successor]:
    """Return all successors that were recorded of a migration, with their control rows as they are now.

    Raises:
        StateUnusable: a row cannot be read by this program.
        ServiceError: the restricted store failed.
    """
    within = KeyRange(EntityKey(store.script_id, _PREFIX), EntityKey(store.script_id, _AFTER_ALL))
    recorded: list[Successor] = []
    async for page in store.restricted.table(CONTROL_TABLE).scan(within):
        for row in page.rows:
            successor = _from_row(row)
            control = ControlStore(store.restricted, successor.script_id, successor.group)
            recorded.append(replace(successor, control=await control.read()))
    return recorded


def _from_row(row: Row) -> Successor:
    script_id = row[ROW_KEY].removeprefix(_PREFIX)
    try:
        return Successor(script_id, **read(Successor, row))
    except (KeyError, ValueError, TypeError):
        raise StateUnusable(
            f"the row of {script_id} beside the control row of {row[PARTITION_KEY]} in {CONTROL_TABLE} cannot"
            " be read by this program",
            kept="the row, unchanged",
            hint="install the rekey that wrote it; no other program may write to the restricted store",
        ) from None
