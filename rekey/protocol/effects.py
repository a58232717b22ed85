"""Requests to tables, as dual writes send them: concurrently, and conditional writes with three outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import Any, TypeVar

from rekey.errors import Ambiguous, ConditionFailed, RowExists, RowMissing, Unavailable
from rekey.tables.answers import may_be_applied
from rekey.tables.base import Operation, Table, Verb

T = TypeVar("T")


class Outcome(Enum):
    """The outcome of one conditional write. True only when the write is known to be done."""

    DONE = "done"
    # Its condition did not hold: nothing was written.
    STALE = "stale"
    # Unknown: the write was applied, or was not, or may yet be. Never treated as one of the others.
    UNKNOWN = "open"

    def __bool__(self) -> bool:
        return self is Outcome.DONE


async def side_by_side(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """Await calls concurrently; when all have ended, return their results, or raise the first error, in the
    order of the calls."""
    waiting = list(calls)
    if len(waiting) == 1:
        return [await waiting[0]]
    # A request in flight is never abandoned only because another one failed.
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    for result in ended:
        if isinstance(result, BaseException):
            raise result
    return ended


async def in_turns(calls: Sequence[Callable[[], Awaitable[T]]], width: int) -> list[T]:
    """Make calls in groups of at most `width` concurrent ones; return the results in the calls' order."""
    results: list[T] = []
    for start in range(0, len(calls), width):
        results += await side_by_side(call() for call in calls[start : start + width])
    return results


async def apply_for_etags(table: Table, operations: Sequence[Operation]) -> tuple[Outcome, list[str | None]]:
    """Apply conditional operations, several as one transaction; return the outcome, one for all, and the
    rows' new ETags (None if deleted or not done). Raises table errors that are none of the three outcomes."""
    try:
        return Outcome.DONE, await apply_operations(table, operations)
    except (RowExists, RowMissing, ConditionFailed):
        outcome = Outcome.STALE
    except Ambiguous:
        outcome = Outcome.UNKNOWN
    except Unavailable as error:
        if not may_be_applied(error):
            raise
        outcome = Outcome.UNKNOWN
    return outcome, [None] * len(operations)


async def apply_operation(table: Table, operation: Operation) -> str | None:
    """Send one operation; return the row's new ETag, None for a delete. Raises as tables do."""
    verb, row, etag = operation.verb, operation.row, operation.etag or "*"
    if verb is Verb.INSERT:
        return await table.insert(row)
    if verb is Verb.REPLACE:
        return await table.replace(row, etag=etag)
    if verb is Verb.MERGE:
        return await table.merge(row, etag=etag)
    if verb is Verb.DELETE:
        await table.delete(operation.key, etag=etag)
        return None
    return await table.upsert(row, merge=verb is Verb.INSERT_OR_MERGE)


async def apply_operations(table: Table, operations: Sequence[Operation]) -> list[str | None]:
    """Send one operation by itself, or several as one transaction; return the rows' new ETags."""
    if len(operations) == 1:
        return [await apply_operation(table, operations[0])]
    return await table.transact(operations)
