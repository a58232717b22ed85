"""The rows of one key in all its tables, and what makes them equal. Pure.

Rules kept here:

* A replica is named by table number and key: 0 the main target, 1 and up the index tables, `SOURCE_TABLE` the
  source, which is a replica too once the target is the authority.
* Every write of a replica is conditional on what was read: replace and delete on the ETag, insert on absence.
* What was read before the authority was written is older than that write, so it may be overwritten. What was
  read beside it may be somebody's newer row: it is overwritten only if it holds what was expected before.
* A row that is as it should be is written all the same right after a write of the authority: its new ETag
  stops whoever read it before and would overwrite it.
* Where there is nothing to write because nothing was found, that has to be looked at once more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rekey.core.edm import canonical_content
from rekey.mapping.rows import TargetKey
from rekey.model import EntityKey, Row, etag_of
from rekey.tables.base import Operation, Verb

SOURCE_TABLE = -1
"""The table number of the source, where it is a replica."""

Rows = dict[TargetKey, Row]
Seen = Mapping[TargetKey, Row | None]
"""Replica rows as read; None for those that were not there."""


@dataclass(frozen=True, slots=True)
class Follow:
    """The writes of the replicas that follow one write of the authority.

    `look_again` says that a row was not there, or not ours, and nothing is written in its place.
    """

    writes: list[tuple[TargetKey, Operation]]
    look_again: bool


def source_place(source_key: EntityKey) -> TargetKey:
    """Return how the source row of a key is named where it is a replica."""
    return TargetKey(SOURCE_TABLE, *source_key)


def follow(
    expected: Rows, early: Seen, late: Seen, before: Rows, ours: Collection[TargetKey]
) -> Follow | None:
    """Return the writes that follow the authority's; None when propagate has to find out.

    Args:
        expected: the rows as they should be now.
        early: rows read before the authority was written.
        late: rows read beside that.
        before: the rows as they should have been before the write, as far as known.
        ours: rows of `early` and `late` that belong to this key. Others are left alone.
    """
    writes: list[tuple[TargetKey, Operation]] = []
    look_again = False
    for target, row in expected.items():
        if target not in early and target not in late:
            return None
        present = early.get(target) or late.get(target)
        if present is None:
            writes.append((target, Operation(Verb.INSERT, row)))
        elif target not in ours or not _is_older(target, present, early, before):
            return None
        else:
            writes.append((target, Operation(Verb.REPLACE, row, etag_of(present))))
    for target, present in {**late, **early}.items():
        if target in expected:
            continue
        if present is None or target not in ours:
            look_again = True
        elif not _is_older(target, present, early, before):
            return None
        else:
            writes.append((target, Operation(Verb.DELETE, present, etag_of(present))))
    return Follow(writes, look_again)


def _is_older(target: TargetKey, present: Row, early: Seen, before: Rows) -> bool:
    """Tell whether a row that was read is surely no newer than the authority's write."""
    return target in early or (target in before and same_content(before[target], present))


def same_content(one: Row, other: Row, ignoring: frozenset[str] = frozenset()) -> bool:
    """Compare two rows' custom properties as (name, EDM type, canonical text)."""
    ours, theirs = canonical_content(one), canonical_content(other)
    if ours == theirs or not ignoring:
        return ours == theirs
    return all(name in ignoring for name, *_ in set(ours) ^ set(theirs))


def difference(
    expected: Rows, found: Rows, ignoring: Mapping[int, frozenset[str]] = MappingProxyType({})
) -> list[tuple[int, Operation]]:
    """Return the conditional writes, each with its table, that turn `found` into `expected`.

    Args:
        expected: the rows as they should be.
        found: the rows as they were read.
        ignoring: by table number, properties whose difference is none.
    """
    writes: list[tuple[int, Operation]] = []
    for target, row in expected.items():
        present = found.get(target)
        if present is None:
            writes.append((target.table, Operation(Verb.INSERT, row)))
        elif not same_content(row, present, ignoring.get(target.table, frozenset())):
            writes.append((target.table, Operation(Verb.REPLACE, row, etag_of(present))))
    for target, present in found.items():
        if target not in expected:
            writes.append((target.table, Operation(Verb.DELETE, present, etag_of(present))))
    return writes
