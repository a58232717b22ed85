"""Where the rows of a migration are after later ones: in a chain the target of one is the source of the next,
which may be retired first."""

from __future__ import annotations

from rekey.core.joint import names_in
from rekey.declaration.migration import Declared
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, ControlStore
from rekey.runner.run import Run
from rekey.tables.base import Table


async def retired_since(run: Run, declared: Declared) -> dict[str, Declared]:
    """Return the migrations that retired a target of a completed one after that had filled it, by the table's
    name in lower case. One that retired a part left the table."""
    mine, retired = await _control(run, declared), {}
    for later in run.scripts:
        if later.migration.where is None and later.builds_on(declared):
            theirs = await _control(run, later)
            is_retired = theirs is not None and theirs.phase is ControlPhase.RETIRED
            # An earlier one retired a table of the same name, which the completed one then filled anew.
            if is_retired and mine is not None and theirs is not None and mine.ended_before(theirs):
                retired[later.migration.source.lower()] = later
    return retired


async def tables_with_its_rows(run: Run) -> list[Table]:
    """Return the tables that hold the rows of a completed migration: its main target or, in place of a table
    that a later migration retired, the main target of that one. They need not exist."""
    if not await retired_since(run, run.declared):
        return [run.targets[0]]
    tables, left = [], [run.declared]
    while left:
        declared = left.pop()
        retired = await retired_since(run, declared)
        for name in names_in(declared.migration.tables[0]):
            if later := retired.get(name.lower()):
                left.append(later)
            else:
                tables.append(run.tables.table(name))
    return tables


async def _control(run: Run, declared: Declared) -> ControlRow | None:
    return await ControlStore(run.restricted, declared.script_id, declared.migration.group).read()
