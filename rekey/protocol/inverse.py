"""The source row that a main target row stands for. Pure.

Rules kept here:

* A target row is expressed in the source only if mapping the source row forward again gives exactly this
  target row, key and content. What would lose anything is refused.
* Properties that hold the source's Timestamp are left out of that: the service sets it, nobody foresees it.
* A source row that says the same already is kept as it is, with its own spelling.
"""

from __future__ import annotations

from rekey.core.edm import canonical_content
from rekey.declaration.mapper import Mapper
from rekey.errors import RowRefused
from rekey.model import TIMESTAMP, EntityKey, Row, key_of

STAND_IN = "2000-01-01T00:00:00.0000000Z"
"""A Timestamp for rows that were not written yet, where a mapping wants one."""

CURE = (
    "mend the row in the target so that it can be expressed in the source, or stay with the target and"
    " go on to `complete`"
)


def inverse(
    mapper: Mapper, source_key: EntityKey, target_row: Row, source_row: Row | None, *, cure: str = CURE
) -> Row:
    """Return the source row that a main target row stands for.

    Args:
        mapper: the declaration at work.
        source_key: the old key.
        target_row: the main target row.
        source_row: the source row as it is now, None when there is none.
        cure: what to do about a row that cannot be expressed.

    Returns:
        `source_row` itself when it stands for the target row already; otherwise a new row, with a Timestamp
        for mapping it again. What is written is its `content_of`.

    Raises:
        RowRefused: `not-reversible`, without the row's safe id.
    """
    if source_row is not None and stands_for(mapper, source_row, target_row):
        return source_row
    desired = mapper.reverse(target_row, source_key, source_row)
    # What the server will set cannot be foreseen; the old value stands in for a copied Timestamp.
    desired[TIMESTAMP] = (source_row or target_row).get(TIMESTAMP, STAND_IN)
    problem = lost(mapper, desired, target_row)
    if problem is not None:
        raise RowRefused("not-reversible", "target", problem, cure=cure)
    return desired


def lost(mapper: Mapper, source_row: Row, target_row: Row) -> str | None:
    """Map a source row forward; say what of the main target row it does not reproduce, None if nothing.

    Raises:
        RowRefused: the source row cannot be mapped.
    """
    main = mapper.map(source_row)[0].row
    if key_of(main) != key_of(target_row):
        return "mapped forward again, it would stand under another key"
    now, then = canonical_content(target_row), canonical_content(main)
    timed = mapper.timestamp_copies[0]
    names = {name for name, *_ in set(now) ^ set(then) if name not in timed}
    if names:
        return f"the way back would lose or change these properties: {', '.join(sorted(names))}"
    return None


def stands_for(mapper: Mapper, source_row: Row, target_row: Row) -> bool:
    """Tell whether a source row says what the target row says; one that cannot be mapped does not."""
    try:
        return lost(mapper, source_row, target_row) is None
    except RowRefused:
        return False
