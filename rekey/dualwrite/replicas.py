"""Rows of one key in all its tables: reading them, and the conditional writes that make them equal.

Rules kept here:

* A replica is named by table number and key: 0 the main target, 1 and up the index tables, `SOURCE_TABLE` the
  source, which is a replica too once the target is the authority.
* Every write of a replica is conditional on what was read: replace and delete on the ETag, insert on absence.
* A write ends in one of three ways: done; the condition did not hold; or nobody knows, and it may yet happen.
  The last is never taken for one of the others.
* Calls made side by side are all waited for before the first error is raised: a request that is under way is
  never given up only because another failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar

from rekey.edm import canonical_content
from rekey.errors import Ambiguous, ConditionFailed, RowExists, RowMissing
from rekey.mapping.rows import TargetKey
from rekey.model import Row, etag_of
from rekey.tables.base import Operation, Table, Verb

SOURCE_TABLE = -1
"""The table number of the source, where it is a replica."""

Rows = dict[TargetKey, Row]

T = TypeVar("T")


class Outcome(Enum):
    """What became of one conditional write. True only when it is known to be done."""

    DONE = "done"
    STALE = "stale"
    """Its condition did not hold (any more): nothing was written."""
    OPEN = "open"
    """Nobody knows: it was written, or was not, or will be yet."""

    def __bool__(self) -> bool:
        return self is Outcome.DONE


async def side_by_side(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """Await all at the same time; when all have ended, return their results or raise the first error."""
    waiting = list(calls)
    if len(waiting) == 1:
        return [await waiting[0]]
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    return ended


async def in_turns(calls: Sequence[Callable[[], Awaitable[T]]], width: int) -> list[T]:
    """Make calls, at most `width` at a time; results in the calls' order."""
    results: list[T] = []
    for start in range(0, len(calls), width):
        results += await side_by_side(call() for call in calls[start : start + width])
    return results


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


async def apply_one(table: Table, operation: Operation) -> Outcome:
    """Apply one conditional operation. Raises what else the table answers."""
    outcome, _ = await apply_for_etag(table, operation)
    return outcome


async def apply_for_etag(table: Table, operation: Operation) -> tuple[Outcome, str | None]:
    """Apply one conditional operation; return also the row's new ETag, None for deletes and failures."""
    etag: str | None = None
    try:
        if operation.verb is Verb.INSERT:
            etag = await table.insert(operation.row)
        elif operation.verb is Verb.DELETE:
            await table.delete(operation.key, etag=operation.etag or "*")
        else:
            etag = await table.replace(operation.row, etag=operation.etag or "*")
    except (RowExists, RowMissing, ConditionFailed):
        return Outcome.STALE, None
    except Ambiguous:
        return Outcome.OPEN, None
    return Outcome.DONE, etag
