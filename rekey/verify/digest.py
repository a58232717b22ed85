"""Digests of rows, by which two tables are compared without sorting them. They find accidents and faulty
writers; they are no defense against an attacker who chooses the content of very many rows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from hashlib import blake2b
from itertools import repeat
from math import isfinite
from operator import itemgetter
from typing import Any
from zlib import crc32

import orjson

from rekey.core import edm
from rekey.model import PARTITION_KEY, ROW_KEY, TYPE_SUFFIX, Row, is_custom

# Buckets per table: 3,000,000 rows give 183 rows a bucket, and the digests take about 2 MB per table.
BUCKETS = 1 << 14
BUCKET_MASK = BUCKETS - 1
DIGEST_BYTES = 16

_AS_IT_IS = frozenset({edm.STRING, edm.GUID, edm.BINARY})
_MOMENT = 28  # characters: 2024-01-02T03:04:05.1234567Z
_FRACTION_POINT = 19
_TEXT_OF_BOOLEAN = {False: "false", True: "true"}


def bucket_of(partition: str, row_key: str) -> int:
    """Return the bucket of a key, 0 up to `BUCKETS`: the CRC-32 of `PartitionKey ‖ 0 ‖ RowKey` in UTF-8,
    modulo `BUCKETS`. It depends on the key alone, so both versions of an altered row share a bucket."""
    return crc32(f"{partition}\0{row_key}".encode("utf-8", "surrogatepass")) & BUCKET_MASK


def buckets_of(rows: Sequence[Row]) -> list[int]:
    """Return the buckets of rows by their keys."""
    partitions, keys = [row[PARTITION_KEY] for row in rows], [row[ROW_KEY] for row in rows]
    # A page mostly has few partitions: the checksum of each is begun once.
    begun = {
        partition: crc32(f"{partition}\0".encode("utf-8", "surrogatepass")) for partition in set(partitions)
    }
    try:
        checksums = list(map(crc32, map(str.encode, keys), map(begun.__getitem__, partitions)))
    except UnicodeEncodeError:
        return list(map(bucket_of, partitions, keys))
    return [checksum & BUCKET_MASK for checksum in checksums]


NOTHING: Set[str] = frozenset()


def message(table: str, row: Row, without: Set[str] = NOTHING) -> bytes:
    """Return the message of a row, from which an auditor can recompute all figures; `digester` computes it
    faster.

    It is the JSON array of strings `[table, PartitionKey, RowKey, name, type, text, name, type, text, ...]`:
    one triple per custom property not in `without`, in order of the names' code points, with the EDM type and
    canonical text of `rekey.core.edm`. It is serialized without blanks, in UTF-8, with the escapes of RFC
    8785 (https://www.rfc-editor.org/rfc/rfc8785, section 3.2.2.2), a lone surrogate as its three bytes
    ("surrogatepass"). JSON delimits every string, so two different rows never share a message.
    """
    return _serialise([table, row[PARTITION_KEY], row[ROW_KEY], *_content(row, without)])


def content_digest(row: Row, without: Set[str] = NOTHING) -> bytes:
    """Return the 16-byte digest of a row's content alone: its message without table and key."""
    return blake2b(_serialise(_content(row, without)), digest_size=DIGEST_BYTES).digest()


class Digester:
    """Digests of rows of one table, a page at a time: BLAKE2b of `message` with 16 bytes (RFC 7693; `b2sum -l
    128`).

    Values of one property are made canonical by column, in loops that are not Python's own; values that are
    not all as the service sends them go through `rekey.core.edm` one by one.
    """

    def __init__(self, table: str, without: Set[str] = NOTHING) -> None:
        self._table, self._without = table, without

    def digests(self, rows: Sequence[Row]) -> list[bytes]:
        """Return the digests of rows, in their order."""
        if not rows:
            return []
        fields = self._alike(rows) or self._mixed(rows)
        try:
            # No message is kept: each is made in a buffer of 1 KiB, and a thousand of them make the heap grow
            # and shrink again, which can take ten times as long as making them.
            return _hashed(map(orjson.dumps, fields))
        except TypeError:  # a lone surrogate
            return _hashed(message(self._table, row, self._without) for row in rows)

    def _alike(self, rows: Sequence[Row]) -> Iterable[Sequence[str]] | None:
        """Return the message fields of rows that all have the same properties; None for others."""
        names = tuple(rows[0])
        if set(map(len, rows)) != {len(names)}:
            return None
        try:
            columns = dict(zip(names, zip(*map(itemgetter(*names), rows), strict=True), strict=True))
        except KeyError:
            return None
        fields: list[Iterable[str]] = [repeat(self._table), columns[PARTITION_KEY], columns[ROW_KEY]]
        for name in self._compared(names):
            annotations = columns.get(name + TYPE_SUFFIX)
            fields += (repeat(name), *_typed(name, rows, columns[name], annotations))
        return zip(*fields)  # noqa: B905 - `repeat` has no end

    def _mixed(self, rows: Sequence[Row]) -> Iterable[Sequence[str]]:
        fields = [[self._table, row[PARTITION_KEY], row[ROW_KEY]] for row in rows]
        holders: defaultdict[str, list[int]] = defaultdict(list)
        for place, row in enumerate(rows):
            for name in row:
                holders[name].append(place)
        for name in self._compared(holders):
            places, annotation = holders[name], name + TYPE_SUFFIX
            having = [rows[place] for place in places]
            annotations = [row.get(annotation) for row in having] if annotation in holders else None
            typed = _typed(name, having, [row[name] for row in having], annotations)
            for place, kind, text in zip(places, *typed):  # noqa: B905 - `repeat` has no end
                fields[place] += (name, kind, text)
        return fields

    def _compared(self, names: Iterable[str]) -> list[str]:
        """Return the properties that are compared, in the order of the message."""
        return sorted(name for name in names if is_custom(name) and name not in self._without)


def _hashed(messages: Iterable[bytes]) -> list[bytes]:
    begin_hash = blake2b(digest_size=DIGEST_BYTES).copy  # copying a fresh hash is cheaper
    digests = []
    for text in messages:
        hashing = begin_hash()
        hashing.update(text)
        digests.append(hashing.digest())
    return digests


def _typed(
    name: str, rows: Sequence[Row], values: Sequence[Any], annotations: Sequence[Any] | None
) -> tuple[Iterable[str], Iterable[str]]:
    """Return the EDM types and the canonical texts of one property of rows, given its columns."""
    kinds = set(map(type, values))
    if annotations is None:
        if kinds == {str}:
            return repeat(edm.STRING), values
        if kinds == {int}:
            return repeat(edm.INT32), map(str, values)
        if kinds == {bool}:
            return repeat(edm.BOOLEAN), map(_TEXT_OF_BOOLEAN.__getitem__, values)
        if kinds == {float} and all(map(isfinite, values)):
            return repeat(edm.DOUBLE), map(repr, values)
    elif kinds == {str} and annotations.count(annotations[0]) == len(values):
        annotated = annotations[0]
        if annotated in _AS_IT_IS or (annotated in _IS_CANONICAL and _IS_CANONICAL[annotated](values)):
            return repeat(annotated), values
        if annotated == edm.INT64:
            return repeat(annotated), map(str, map(int, values))
    return tuple(zip(*(edm.canonical(row, name) for row in rows), strict=True))  # type: ignore[return-value]  # a pair


def _are_numbers(values: Sequence[str]) -> bool:
    """Tell whether all are positive integers without a sign or leading zeros."""
    # Bytes are searched several times as fast as text, and only ASCII digits are digits.
    return "".join(values).encode("utf-8", "surrogatepass").isdigit() and min(values) >= "1"


def _are_moments(values: Sequence[str]) -> bool:
    """Tell whether all are times with seven digits after the seconds."""
    all_of_them, count = "".join(values), len(values)
    marks = all_of_them[_FRACTION_POINT::_MOMENT] + all_of_them[_MOMENT - 1 :: _MOMENT]
    return set(map(len, values)) == {_MOMENT} and marks == "." * count + "Z" * count


# By EDM type, whether texts on the wire are canonical as they are.
_IS_CANONICAL = {edm.INT64: _are_numbers, edm.DATETIME: _are_moments}


def _content(row: Row, without: Set[str]) -> list[str]:
    return [text for triple in edm.canonical_content(row) if triple[0] not in without for text in triple]


def _serialise(fields: Sequence[str]) -> bytes:
    try:
        return orjson.dumps(fields)
    except TypeError:
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "surrogatepass")
