"""Where the rows of a migration are after later ones, and which other migrations work with its tables: in a
chain the target of one is the source of the next, which may be retired first."""

from __future__ import annotations

from collections.abc import Iterable

from rekey.core.joint import names_in
from rekey.declaration.migration import Declared
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow
from rekey.runner.refusals import refusal
from rekey.runner.run import Run
from rekey.tables.base import Table


async def retired_since(run: Run, declared: Declared) -> dict[str, Declared]:
    """Return the migrations that retired a target of a completed one after that had filled it, by the table's
    name in lower case. One that retired a part left the table."""
    after = [each for each in run.scripts if each.migration.where is None and each.builds_on(declared)]
    mine, retired = await run.control_of(declared) if after else None, dict[str, Declared]()
    if mine is None:
        return {}
    for later in after:
        theirs = await run.control_of(later)
        # An earlier one retired a table of the same name, which the completed one then filled anew.
        if theirs is not None and theirs.phase is ControlPhase.RETIRED and mine.ended_before(theirs):
            retired[later.migration.source.lower()] = later
    return retired


async def tables_with_its_rows(run: Run) -> list[Table]:
    """Return the tables that hold the rows of a completed migration: its main target or, in place of a table
    that a later migration retired, the main target of that one. They need not exist."""
    tables, left = list[Table](), [run.declared]
    while left:
        declared = left.pop()
        retired = await retired_since(run, declared)
        if declared is run.declared and not retired:
            return [run.targets[0]]
        for name in names_in(declared.migration.tables[0]):
            if later := retired.get(name.lower()):
                left.append(later)
            else:
                tables.append(run.tables.table(name))
    return tables


async def moved_since(run: Run) -> list[tuple[Declared, ControlRow]]:
    """Return the migrations that have moved rows of a target on since a completed one filled it, with their
    control rows."""
    mine, later = await run.control.read() if run.built_on_by else None, list[tuple[Declared, ControlRow]]()
    for other in run.built_on_by:
        theirs = await run.control_of(other)
        if mine is not None and theirs is not None and theirs.has_moved_on(mine):
            later.append((other, theirs))
    return later


async def require_unfollowed(run: Run, others: Iterable[Declared]) -> None:
    """Raise Refused when one of some migrations copies or follows the rows of its source: nothing may be
    changed there past its clients."""
    for other in others:
        now = await run.control_of(other)
        if now is not None and now.is_followed:
            raise refusal("target-is-a-source", source=other.migration.source, other=other, phase=now.phase)
