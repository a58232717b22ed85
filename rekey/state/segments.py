"""Segments in the state file: statements of one transaction each, which `store` opens.

Rules kept here:

* A split is one transaction: the segment that ends earlier and the one that begins there appear together, so
  whoever reads the file at any moment finds every key in exactly one segment.
* Keys stand in the file as the `keys` of the migration write them.
* A checkpoint moves cursors and counts, never bounds: it may come from before a split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, insert, or_, select, update

from rekey.errors import StateUnusable
from rekey.model import EntityKey, KeyRange
from rekey.state import rows
from rekey.state.keytexts import KeyTexts
from rekey.state.models import SEGMENT, Segment


def listed(connection: Connection, script_id: str, purpose: str, keys: KeyTexts) -> list[Segment]:
    """Return the segments of one purpose in the order in which they were added."""
    found = connection.execute(
        select(SEGMENT)
        .where(SEGMENT.c.script_id == script_id, SEGMENT.c.purpose == purpose)
        .order_by(SEGMENT.c.id)
    )
    return [rows.segment(row, keys) for row in found]


def add(
    connection: Connection, script_id: str, purpose: str, ranges: Iterable[KeyRange], keys: KeyTexts
) -> None:
    """Add one segment for each range."""
    values = [
        {
            "script_id": script_id,
            "purpose": purpose,
            "after_key": keys.to_text("after", within.after),
            "upto_key": keys.to_text("upto", within.upto),
            "row_count": 0,
            "byte_count": 0,
            "done": 0,
        }
        for within in ranges
    ]
    if values:
        connection.execute(insert(SEGMENT), values)


def save(connection: Connection, segments: Sequence[Segment], keys: KeyTexts) -> None:
    """Save cursors, counts and done."""
    for segment in segments:
        connection.execute(
            update(SEGMENT)
            .where(SEGMENT.c.id == segment.id)
            .values(
                cursor_key=keys.to_text("cursor", segment.cursor),
                row_count=segment.rows,
                byte_count=segment.bytes,
                done=int(segment.done),
            )
        )


def forget_keys(connection: Connection, script_id: str) -> int:
    """Take the keys of a migration's segments away, of all purposes; return how many segments had any."""
    keys = (SEGMENT.c.after_key, SEGMENT.c.upto_key, SEGMENT.c.cursor_key)
    done = connection.execute(
        update(SEGMENT)
        .where(SEGMENT.c.script_id == script_id, or_(*(key.is_not(None) for key in keys)))
        .values(after_key=None, upto_key=None, cursor_key=None)
    )
    return done.rowcount


def split(connection: Connection, segment: Segment, middle: EntityKey, keys: KeyTexts) -> Segment:
    """End a segment at a key and add one for what lies behind it; return the new one.

    Raises:
        StateUnusable: the file has another segment, or one that is done or already beyond that key.
    """
    found = connection.execute(select(SEGMENT).where(SEGMENT.c.id == segment.id)).one_or_none()
    known = None if found is None else rows.segment(found, keys)
    if known is None or known.done or known.script_id != segment.script_id or middle not in known.rest:
        raise StateUnusable(
            "the state file does not hold the segment that was to be split",
            kept="all checkpoints",
            hint="run the same command again: it goes on from the last checkpoint",
        )
    lower, upper = KeyRange(known.after, known.upto).split(middle)
    shortened = keys.to_text("upto", lower.upto)
    connection.execute(update(SEGMENT).where(SEGMENT.c.id == known.id).values(upto_key=shortened))
    add(connection, known.script_id, known.purpose, [upper], keys)
    return listed(connection, known.script_id, known.purpose, keys)[-1]
