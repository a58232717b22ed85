"""Rows, keys and key ranges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

# A wire row: the service's own JSON, with `PartitionKey`, `RowKey`, the custom properties and their
# `<name>@odata.type` annotations; read from a service also `odata.etag` and `Timestamp`. Values are not
# decoded and encoded again, so Int64, 100 ns DateTimes, Guid case, Double specials and Binary stay byte for
# byte.
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
        """A sort key in the service's order: by UTF-16 code unit, PartitionKey first. Python's order of code
        points differs above U+FFFF."""
        return utf16_order(self.partition), utf16_order(self.row)


# The end of a partition: no RowKey sorts after it (RowKeys have at most 1,024 UTF-16 units,
# `rekey.core.limits`).
LAST_ROW = "\uffff" * 1024

_make = tuple.__new__


def utf16_order(text: str) -> bytes:
    """Return bytes that compare like `text` by UTF-16 code unit."""
    return text.encode("utf-16-be", "surrogatepass")


def key_of(row: Row) -> EntityKey:
    """Return the key of a wire row."""
    # Like `EntityKey(...)`, without the cost of a constructor: this runs for every row.
    return _make(EntityKey, (row[PARTITION_KEY], row[ROW_KEY]))


def etag_of(row: Row) -> str:
    """Return the ETag of a row that was read. Opaque: compare for equality only."""
    etag: str = row[ETAG]
    return etag


def is_custom(name: str) -> bool:
    """Tell whether a wire field is the value of a custom property."""
    return name not in SYSTEM_PROPERTIES and "@" not in name and not name.startswith("odata.")


def property_names(row: Row) -> tuple[str, ...]:
    """Return the names of the custom properties of a wire row, in wire order."""
    return _custom_of(tuple(row))


@lru_cache(1_000)
def _custom_of(fields: tuple[str, ...]) -> tuple[str, ...]:
    # Rows of a table have few shapes, and this runs for every measured row.
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
    """A range of keys in service order: `after < key <= upto`; None means unbounded. With `after` at a cursor
    it is the rest of a segment."""

    after: EntityKey | None = None
    upto: EntityKey | None = None

    @classmethod
    def of_rows(cls, partition: str) -> KeyRange:
        """Return the range of a partition's keys, except the one with an empty RowKey."""
        return cls(EntityKey(partition, ""), EntityKey(partition, LAST_ROW))

    def behind(self, cursor: EntityKey) -> KeyRange:
        """Return the rest of this range after `cursor`."""
        return replace(self, after=cursor)

    def split(self, middle: EntityKey) -> tuple[KeyRange, KeyRange]:
        """Split at `middle`, which belongs to the lower part."""
        return replace(self, upto=middle), replace(self, after=middle)

    def common(self, other: KeyRange) -> KeyRange | None:
        """Return the keys that are in both, None when there are none."""
        afters = [each.after for each in (self, other) if each.after is not None]
        uptos = [each.upto for each in (self, other) if each.upto is not None]
        after = max(afters, key=lambda key: key.order, default=None)
        upto = min(uptos, key=lambda key: key.order, default=None)
        is_empty = after is not None and upto is not None and upto.order <= after.order
        return None if is_empty else KeyRange(after, upto)

    def __contains__(self, key: EntityKey) -> bool:
        if self.after is not None and key.order <= self.after.order:
            return False
        return self.upto is None or key.order <= self.upto.order


EVERYTHING = KeyRange()
