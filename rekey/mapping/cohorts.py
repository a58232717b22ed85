"""For how long what the mapping knows is kept: reads the partition of the data keys, and opens nothing."""

from __future__ import annotations

from rekey.errors import TableMissing
from rekey.mapping.keyring import data_key_rows
from rekey.mapping.retention import Cohort, cohorts
from rekey.mapping.rows import MAPPING_TABLE
from rekey.phases import ControlPhase
from rekey.project.bounds import Gates
from rekey.protocol.control import ControlRow
from rekey.tables.base import TableService


async def look(
    restricted: TableService, script_id: str, control: ControlRow | None, *, sealed: bool, gates: Gates
) -> tuple[Cohort, ...]:
    """Return the cohorts of a migration, oldest first; none before it is complete. Nothing is opened."""
    if control is None or control.phase not in (ControlPhase.COMPLETE, ControlPhase.RETIRED):
        return ()
    try:
        rows = await data_key_rows(restricted.table(MAPPING_TABLE), script_id)
    except TableMissing:
        return ()
    completed_at = control.completed_at or control.updated_at
    return cohorts(rows, sealed=sealed, completed_at=completed_at, keep_s=gates.mapping_retention_s)
