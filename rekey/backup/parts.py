"""The rows of a part: wire JSON, one row a line, compressed by gzip. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from operator import lt

from rekey.core.limits import MAX_ENTITY_BYTES
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, KeyRange, Row, content_of, key_of
from rekey.tables.wire import encode_row, loads
from rekey.verify.digest import buckets_of

# A part ends after a row in one of the first buckets of the digest: 1 in 8,192 rows, wherever a scan began.
# So the same rows give the same parts, however often the export was killed and whichever ranges were read at
# a time.
_LAST_BUCKETS = 2
# A part also ends when its lines have so many bytes.
MOST_BYTES = 8 * 1024 * 1024
# Most bytes of one line: JSON takes at most six bytes for a UTF-16 unit, which counts two.
_MOST_LINE = 4 * MAX_ENTITY_BYTES
# Fast: at level 6, rows take three times the processor for files that are a sixth smaller.
_LEVEL = 1
# Window and header of gzip. zlib writes no time into the header: the same lines give the same bytes.
_GZIP = 31


class Unreadable(ValueError):
    """The content of a part is not what an export writes. The text holds no key and no value."""


def ends_part(rows: Sequence[Row]) -> list[bool]:
    """Tell of each row whether a part ends after it."""
    return [bucket < _LAST_BUCKETS for bucket in buckets_of(rows)]


def lines_of(rows: Sequence[Row]) -> list[bytes]:
    """Return the lines of rows. What the server owns is left out, and removed from the rows."""
    for row in rows:
        for name in _server_owned(tuple(row)):
            del row[name]
    return [encode_row(row) + b"\n" for row in rows]


@lru_cache(1_000)
def _server_owned(fields: tuple[str, ...]) -> tuple[str, ...]:
    # Rows of a table have few shapes.
    kept = content_of(dict.fromkeys(fields))
    return tuple(name for name in fields if name not in kept)


def compressed(lines: bytes) -> bytes:
    """Return the lines compressed; equal lines give equal bytes."""
    return zlib.compress(lines, _LEVEL, _GZIP)


def decompressed(data: bytes, size: int) -> bytes:
    """Return the lines of what `compressed` returned. Raises Unreadable when they are not `size` bytes."""
    if size > MOST_BYTES + _MOST_LINE:
        raise Unreadable("it is larger than any part")
    unpacking = zlib.decompressobj(_GZIP)
    try:
        lines = unpacking.decompress(data, size + 1)
    except zlib.error:
        raise Unreadable("it cannot be decompressed") from None
    if len(lines) != size or not unpacking.eof or unpacking.unused_data:
        raise Unreadable("it has more or fewer bytes than it had")
    return lines


def rows_of(lines: bytes, within: KeyRange, count: int) -> list[Row]:
    """Return the rows of lines. Raises Unreadable unless they are `count` rows of the range, in order."""
    try:
        # No line feed is within a line: JSON escapes it.
        rows: list[Row] = loads(b"[%b]" % lines.removesuffix(b"\n").replace(b"\n", b","))
        keys = [_key(row) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unreadable("a line is no row") from None
    if len(rows) != count:
        raise Unreadable("it has more or fewer rows than it had")
    if keys and not (keys[0] in within and keys[-1] in within):
        raise Unreadable("it has rows of another part")
    # ASCII sorts as UTF-16 does, and most keys are ASCII.
    is_ascii = lines.isascii() and b"\\u" not in lines
    orders: Sequence[tuple[object, object]] = keys if is_ascii else [key.order for key in keys]
    if not all(map(lt, orders, orders[1:])):
        raise Unreadable("its rows are not in order")
    return rows


def _key(row: Row) -> EntityKey:
    if row[PARTITION_KEY].__class__ is not str or row[ROW_KEY].__class__ is not str:
        raise TypeError("a key is no text")
    return key_of(row)
