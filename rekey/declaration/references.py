"""References to rows of other migrations: what the new keys of those are, while a script is being read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

from rekey.core.key_space import KeySpace
from rekey.declaration.keys.base import Expression, invalid, refuse_if

# The expressions of a migration's new keys, by the key and by the name of the kind; None: without kinds.
NewKeys: TypeAlias = Mapping[str | None, Mapping[str, Expression]]


@dataclass(frozen=True)
class Referred:
    """Another migration, as far as references need it."""

    new_keys: NewKeys
    source: str
    # The tables of its main rows, by the name of the kind; None: without kinds.
    targets: Mapping[str | None, str]
    # The keys of its part of the source; None: it migrates the whole table.
    key_space: KeySpace | None
    group: str
    # Its main table, which may be joint.
    main: str
    # All of it, a `Declared`, for looking up its mapping. Its module knows of references, not this one of it.
    declared: Any


@dataclass(frozen=True)
class Reference:
    """Where the row is to which a property refers, by expressions of the row that has the property.

    Attributes:
        name: the property with the old RowKey.
        via: the script that migrates the row.
        to: what is known of that script's tables.
        target: the table that it is migrated to.
        old_key: expressions of the row's old key; without PartitionKey, where that is not declared.
        new_key: expressions of its new key, as far as they follow from the old one.
        column: which of the new keys the reference is.
    """

    name: str
    via: str
    to: Referred
    target: str
    old_key: Mapping[str, Expression]
    new_key: Mapping[str, Expression]
    column: str


@dataclass(frozen=True)
class _Reading:
    """A script that is being read."""

    # Ids of the scripts that are being read, this one last.
    scripts: tuple[str, ...]
    referred: Callable[[str], Referred]
    # Ids of the scripts that it refers to, so far.
    refers_to: set[str]


_READING: ContextVar[_Reading | None] = ContextVar("reading", default=None)


@contextmanager
def reading(script_id: str, referred: Callable[[str], Referred]) -> Iterator[set[str]]:
    """Let references of a script that is executed within the context find other migrations. Yield the ids of
    the scripts that it refers to, as they are found.

    Args:
        script_id: the script's id.
        referred: returns another script's migration; raises InvalidDeclaration.
    """
    outer = _READING.get()
    scripts = () if outer is None else outer.scripts
    now = _Reading((*scripts, script_id), referred, set())
    before = _READING.set(now)
    try:
        yield now.refers_to
    finally:
        _READING.reset(before)


def referred_by(field: str, via: str, kind: str | None) -> tuple[Referred, Mapping[str, Expression]]:
    """Return another migration, and the expressions of the new keys of its main rows.

    Args:
        field: where in the declaration, for errors.
        via: the id of its script.
        kind: the name of a kind; None for a migration without kinds.

    Raises:
        InvalidDeclaration: it is not in a script; it refers to itself, or in a circle; there is no such kind;
            the other script cannot be used.
    """
    now = _READING.get()
    if now is None:
        raise invalid(field, "no-script-read")
    refuse_if(via == now.scripts[-1], field, "own-script")
    refuse_if(via in now.scripts, field, "references-circle", circle=" → ".join([*now.scripts, via]))
    referred = now.referred(via)
    now.refers_to.add(via)
    keys = referred.new_keys
    kinds = [name for name in keys if name is not None]
    there = f"{via} has the kinds {', '.join(kinds)}" if kinds else f"{via} has no kinds"
    refuse_if(kind is None and kinds, field, "kind-not-said", problem=there)
    refuse_if(kind not in keys, field, "no-such-kind", kind=kind, there=there)
    return referred, keys[kind]
