"""Settling an ambiguous write: did it land? Decided from what is there now, as pure functions.

An attempt whose answer was lost may have been applied. Repeating it then meets its own effect: an insert gets
409, a conditional update 412, a delete 404. What is read back decides.

Rules kept here:

* The row holds what was written: it landed. Another writer may have written the very same content, or deleted
  the row as well; nothing tells the two apart, and then the request may be under way still. Whoever shares
  rows with others leaves it open (`by_content=False`).
* The row still has the ETag that the write was conditional on, or is absent after an insert: it did not land.
  ETags change with every write, so the first is proof.
* Anything else stays open, and is said to be: it may have landed and been overwritten since.
* A transaction lands whole or not at all: one operation that did not land speaks for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from rekey.core.edm import canonical, canonical_content
from rekey.model import Row, etag_of, property_names
from rekey.tables.base import Operation, Verb
from rekey.tables.rules import stored_form

_MERGES = frozenset({Verb.MERGE, Verb.INSERT_OR_MERGE})


class Landed(Enum):
    """Whether an ambiguous write was applied."""

    YES = "yes"
    NO = "no"
    OPEN = "open"


def landed(operation: Operation, now: Row | None, *, by_content: bool = True) -> Landed:
    """Tell whether a write was applied.

    Args:
        operation: the write.
        now: the row that is there now, None when there is none.
        by_content: whether what is there proves who wrote it.
    """
    claimed = Landed.YES if by_content else Landed.OPEN
    if now is None:
        # Of an update: whatever it wrote is gone too, which is how "there is no such row" is answered.
        return claimed if operation.verb is Verb.DELETE else Landed.NO
    if operation.etag is not None and etag_of(now) == operation.etag:
        return Landed.NO
    if operation.verb is not Verb.DELETE and _holds(operation, now):
        return claimed
    return Landed.OPEN


def all_landed(
    operations: Sequence[Operation], now: Sequence[Row | None], *, by_content: bool = True
) -> Landed:
    """Tell whether a transaction was applied, from the rows that are there now, in the same order."""
    found = [
        landed(operation, row, by_content=by_content) for operation, row in zip(operations, now, strict=True)
    ]
    if Landed.NO in found:
        return Landed.NO
    return Landed.YES if all(one is Landed.YES for one in found) else Landed.OPEN


def _holds(operation: Operation, now: Row) -> bool:
    """Tell whether a row holds what an operation writes (of a merge: at least that)."""
    written = stored_form(operation.row)
    if operation.verb not in _MERGES:
        return canonical_content(written) == canonical_content(now)
    return all(
        name in now and canonical(written, name) == canonical(now, name) for name in property_names(written)
    )
