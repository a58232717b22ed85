"""Other migrations of the rows that clients of a migration write, recorded beside its control row: its
clients, which do not follow them, look there (ADR 0070)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rekey.errors import StateUnusable, TableMissing
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, KeyRange, Row
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.rules import View
from rekey.protocol.stored import column, read, written
from rekey.tables.base import TableService

_PREFIX = "other."
# After all row keys with the prefix.
_AFTER_ALL = "other/"


@dataclass(frozen=True, slots=True)
class OtherMigration:
    """A migration of the source of another one, or of a table that the other one has filled.

    Attributes:
        group: its group, "" for none.
        capture: `dual-write` or `delta`.
        run_id: of its control row. A later run may be of other tables, and is recorded anew.
        is_next: whether the other one has filled its source; else both have the same source.
        control: its control row; None where it was rolled back whole, or never began.
    """

    script_id: str
    group: str = field(default="", metadata=column("Group", may_be_absent=True))
    capture: str = field(default="", metadata=column("Capture"))
    is_next: bool = field(default=False, metadata=column("IsNext"))
    run_id: str = field(default="", metadata=column("RunId"))
    control: ControlRow | None = None

    def closes(self, own: ControlRow | None, view: str, *, reads: bool = False) -> bool:
        """Tell whether clients of a migration may not write (`reads`: nor read), as they do not follow this
        one. `own`: the control row of theirs."""
        theirs = self.control
        if theirs is None or theirs.run_id != self.run_id or theirs.phase is ControlPhase.SOURCE:
            return False
        # Capture "delta" copies in a pass what is written before its freeze.
        is_open = theirs.phase is ControlPhase.DUAL_WRITE and self.capture == "delta"
        if not self.is_next:
            if view == View.NEW and own is not None and own.ended_at is not None:
                return False  # they do not write the source any more
            # It may be over, and the source of use to the clients' own migration alone.
            return not (is_open or reads or theirs.ended_at is not None)
        # One that ended before theirs was of an earlier table of that name.
        if view != View.NEW or own is None or own.ended_at is None or theirs.ended_before(own):
            return False
        return theirs.has_moved_on(own) if reads else not is_open


async def add_other(restricted: TableService, script_id: str, other: OtherMigration) -> None:
    """Record another migration beside the control row of `script_id`, before clients of that one must know of
    it. The record stays when the other one is rolled back: its control row says whether it has begun.

    Raises:
        ServiceError: the restricted store failed.
    """
    row = {PARTITION_KEY: script_id, ROW_KEY: _PREFIX + other.script_id, **written(other)}
    await restricted.table(CONTROL_TABLE).upsert(row)


async def others_of(store: ControlStore) -> list[OtherMigration]:
    """Return the migrations that were recorded beside a control row, with their own as they are now.

    Raises:
        StateUnusable: a row cannot be read by this program.
        ServiceError: the restricted store failed.
    """
    within = KeyRange(EntityKey(store.script_id, _PREFIX), EntityKey(store.script_id, _AFTER_ALL))
    others: list[OtherMigration] = []
    try:
        async for page in store.restricted.table(CONTROL_TABLE).scan(within):
            others += [_from_row(row) for row in page.rows]
    except TableMissing:
        return []
    stores = [ControlStore(store.restricted, other.script_id, other.group) for other in others]
    return [replace(other, control=await own.read()) for other, own in zip(others, stores, strict=True)]


def _from_row(row: Row) -> OtherMigration:
    script_id = row[ROW_KEY].removeprefix(_PREFIX)
    try:
        return OtherMigration(script_id, **read(OtherMigration, row))
    except (KeyError, ValueError, TypeError):
        raise StateUnusable(
            f"the row of {script_id} beside the control row of {row[PARTITION_KEY]} in {CONTROL_TABLE} cannot"
            " be read by this program",
            kept="the row, unchanged",
            hint="install the rekey that wrote it; no other program may write to the restricted store",
        ) from None
