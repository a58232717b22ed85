"""Properties that a declaration names and that no row has: mostly misspelled names. Pure. Holds no values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from difflib import get_close_matches

from rekey.declaration.keys.base import WHOLE_ROW
from rekey.declaration.migration import Migration
from rekey.declaration.props import Cast, Compute, Copy, Drop, Keep, Operation, Rename
from rekey.model import ETAG, TYPE_SUFFIX
from rekey.plan.result import RefusedRows
from rekey.present.text import shortened

_OWN = ("PartitionKey", "RowKey", "Timestamp", WHOLE_ROW)
_LISTED = 12


def named_properties(migration: Migration) -> dict[str, str]:
    """Return the properties of the source that a declaration names, and where."""
    named: dict[str, str] = {}
    for field, expression in migration.expressions():
        for name in sorted(expression.inputs()):
            named.setdefault(name, field)
    for kind in migration.kinds:
        for name in sorted(kind.when.inputs()):
            named.setdefault(name, f"{kind.where}.when")
    for _, table in migration.declared_tables:
        created = {operation.created for operation in table.properties}
        for operation in table.properties:
            for name in _names(operation):
                if not (
                    isinstance(operation, Cast) and name in created
                ):  # it casts what another operation creates
                    named.setdefault(name, f"props.{operation.op}")
    return {name: where for name, where in named.items() if name not in _OWN}


def _names(operation: Operation) -> tuple[str, ...]:
    match operation:
        case Keep() | Drop():
            return operation.names
        case Rename():
            return (operation.old,)
        case Copy():
            return (operation.source,)
        case Cast():
            return (operation.name,)
        case Compute():
            return operation.needed
    return ()


def spelling_of(name: str, present: Collection[str]) -> str:
    """Return what to do about a name in the script; `present`: the rows' properties, with annotations."""
    names = sorted(each for each in present if each != ETAG and not each.endswith(TYPE_SUFFIX))
    listed = f"rows have: {shortened(names, _LISTED)}"
    if not name.isidentifier() or not any(map(str.isalpha, name)):
        return f'constant text is keys.literal("{name}"); {listed}'
    plain = {name.lower(): name for name in names}
    near = [plain[close] for close in get_close_matches(name.lower(), plain, 1, 0.6)]
    return f"write {near[0]}, or check the spelling; {listed}" if near else f"check the spelling; {listed}"


def explained(
    refused: RefusedRows, rows: int, absent: Mapping[str, str], present: Collection[str]
) -> RefusedRows:
    """Return a refusal, with its cause where every row was refused for a property that no row has.

    Args:
        refused: the rows.
        rows: how many rows were tried.
        absent: properties that no row has, and where they are named.
        present: names of the properties that rows have.
    """
    names = [name for name, where in absent.items() if refused.problem.endswith(f" {name}")]
    if refused.code != "missing-property" or refused.rows != rows or not names:
        return refused
    return replace(refused, problem=f"no row has a property {names[0]}", cure=spelling_of(names[0], present))
