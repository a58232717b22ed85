"""References to rows of other migrations: what the new keys of those are, while a script is being read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

from rekey.declaration.keys.base import Expression, InvalidDeclaration, refuse_if
from rekey.model import PARTITION_KEY, ROW_KEY

# The expressions of a migration's new keys, by the key and by the name of the kind; None: without kinds.
NewKeys: TypeAlias = Mapping[str | None, Mapping[str, Expression]]


@dataclass(frozen=True)
class _Reading:
    """A script that is being read."""

    # Ids of the scripts that are being read, this one last.
    scripts: tuple[str, ...]
    new_keys_of: Callable[[str], NewKeys]
    # Ids of the scripts that it refers to, so far.
    refers_to: set[str]


_READING: ContextVar[_Reading | None] = ContextVar("reading", default=None)


@contextmanager
def reading(script_id: str, new_keys_of: Callable[[str], NewKeys]) -> Iterator[set[str]]:
    """Let references of a script that is executed within the context find other migrations. Yield the ids of
    the scripts that it refers to, as they are found.

    Args:
        script_id: the script's id.
        new_keys_of: returns the new keys of another script's migration; raises InvalidDeclaration.
    """
    outer = _READING.get()
    scripts = () if outer is None else outer.scripts
    now = _Reading((*scripts, script_id), new_keys_of, set())
    before = _READING.set(now)
    try:
        yield now.refers_to
    finally:
        _READING.reset(before)


def new_key_of(field: str, via: str, kind: str | None, *, to_partition: bool) -> Expression:
    """Return the expression of the new RowKey, or PartitionKey, of another migration's main rows.

    Args:
        field: where in the declaration, for errors.
        via: the id of its script.
        kind: the name of a kind; None for a migration without kinds.
        to_partition: return that of the PartitionKey.

    Raises:
        InvalidDeclaration: it is not in a script; it refers to itself, or in a circle; there is no such kind;
            the other script cannot be used.
    """
    now, cure = _READING.get(), "write it in a script of the migrations folder"
    if now is None:
        raise InvalidDeclaration(field, "no script is being read", cure=cure)
    cure = "write props.compute(…) with the same key expression"
    refuse_if(via == now.scripts[-1], field, "it refers to its own script", cure=cure)
    problem = f"references in a circle: {' → '.join([*now.scripts, via])}"
    refuse_if(
        via in now.scripts,
        field,
        problem,
        cure="write props.compute(…) with the key expression in one of them",
    )
    keys = now.new_keys_of(via)
    now.refers_to.add(via)
    kinds = [name for name in keys if name is not None]
    there = f"{via} has the kinds {', '.join(kinds)}" if kinds else f"{via} has no kinds"
    refuse_if(kind is None and kinds, field, there, cure='name that of the row, kind="user"')
    refuse_if(kind not in keys, field, f"there is no kind {kind!r}: {there}", cure="name one of them")
    return keys[kind][PARTITION_KEY if to_partition else ROW_KEY]
