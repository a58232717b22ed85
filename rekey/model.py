"""The values that travel through rekey: rows, keys, key ranges.

Rules kept here:

* A row stays the service's own JSON: a dict with `PartitionKey`, `RowKey`, the custom properties and their
  `<name>@odata.type` annotations. Nothing is decoded and encoded again that need not be, so Int64, 100 ns
  DateTime, Guid case, Double specials and Binary survive byte for byte.
* Keys are ordered as the service orders them: by UTF-16 code unit, PartitionKey first (not by Python's
  code point order, which differs above U+FFFF).
* A key range is a frozen value, open below and closed above: `after < key <= upto`. The same value serves
  as a segment's bounds and, with `after` moved to a cursor, as the rest of the segment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

# A wire row. Read from a service it also carries `odata.etag` and `Timestamp`.
Row: TypeAlias = dict[str, Any]

ETAG = "odata.etag"
TIMESTAMP = "Timestamp"
PARTITION_KEY = "PartitionKey"
ROW_KEY = "RowKey"
TYPE_SUFFIX = "@odata.type"
SYSTEM_PROPERTIES = frozenset({PARTITION_KEY, ROW_KEY, TIMESTAMP})


class EntityKey(NamedTuple):
    """PartitionKey and RowKey of one row."""

    partition: str
    row: str

    @property
    def order(self) -> tuple[bytes, bytes]:
        """Return the sort key that orders as the service does (UTF-16 code units)."""
        return utf16_order(self.partition), utf16_order(self.row)


# The end of a partition: no RowKey sorts after it (RowKeys have at most 1,024 UTF-16 units, see
# `rekey.core.limits`).
LAST_ROW = "\uffff" * 1024

_make = tuple.__new__


def utf16_order(text: str) -> bytes:
    """Return bytes that compare like `text` by UTF-16 code unit."""
    return text.encode("utf-16-be", "surrogatepass")


def key_of(row: Row) -> EntityKey:
    """Return the key of a wire row."""
    # Like `EntityKey(...)`, without the cost of calling a constructor in Python: this runs for every row.
    return _make(EntityKey, (row[PARTITION_KEY], row[ROW_KEY]))


def etag_of(row: Row) -> str:
    """Return the ETag a read row carries. Opaque: compare for equality only."""
    etag: str = row[ETAG]
    return etag


def is_custom(name: str) -> bool:
    """Tell whether a wire field is a custom property's value (not system, annotation or metadata)."""
    return name not in SYSTEM_PROPERTIES and "@" not in name and not name.startswith("odata.")


def property_names(row: Row) -> tuple[str, ...]:
    """Return the names of the custom properties of a wire row, in wire order."""
    return _custom_of(tuple(row))


@lru_cache(1_000)
def _custom_of(fields: tuple[str, ...]) -> tuple[str, ...]:
    # Rows of one table have few shapes, and this is asked of every row that is measured.
    return tuple(name for name in fields if is_custom(name))


def content_of(row: Row) -> Row:
    """Return key and custom properties with their annotations, as a write sends them: without what the server
    owns (`Timestamp`, `odata.*`)."""
    return {
        name: value
        for name, value in row.items()
        if not name.startswith((TIMESTAMP + "@", "odata.", PARTITION_KEY + "@", ROW_KEY + "@"))
        and name != TIMESTAMP
    }


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of keys in service order: `after < key <= upto`; None means unbounded."""

    after: EntityKey | None = None
    upto: EntityKey | None = None

    @classmethod
    def of_rows(cls, partition: str) -> KeyRange:
        """Return the range of a partition's keys, but for that with an empty RowKey."""
        return cls(EntityKey(partition, ""), EntityKey(partition, LAST_ROW))

    def behind(self, cursor: EntityKey) -> KeyRange:
        """Return the rest of this range once everything up to and including `cursor` is done."""
        return replace(self, after=cursor)

    def split(self, middle: EntityKey) -> tuple[KeyRange, KeyRange]:
        """Split at `middle`, which goes to the lower part."""
        return replace(self, upto=middle), replace(self, after=middle)

    def __contains__(self, key: EntityKey) -> bool:
        if self.after is not None and key.order <= self.after.order:
            return False
        return self.upto is None or key.order <= self.upto.order


EVERYTHING = KeyRange()
