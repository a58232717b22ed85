"""The profile of a table: counts for an inspection, made page by page in key order while its rows are read.
Memory is bounded for a table of any size. Pure."""

from __future__ import annotations

import unicodedata
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, pairwise
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

from rekey.core.edm import edm_type
from rekey.core.limits import MAX_KEY_UNITS, entity_bytes, utf16_units
from rekey.core.plain import json_field
from rekey.inspect.kinds import KindCounts
from rekey.inspect.partitions import PartitionRuns
from rekey.inspect.shapes import Shape, shapes_in
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, Row, property_names, utf16_order

# Pages whose shapes are counted separately: enough for a sample; a full read needs only the sums.
_MOST_PAGES = 100
# Partitions of a sample whose first Timestamp is kept.
_MOST_FIRSTS = 10_000


# --- one of the two keys ---------------------------------------------------------------------------------

SAMPLED_KEYS = 2_000


# Kinds of characters in a key, by their names in reports: bits of an integer.
MARKS = {
    "lower-case": 1,
    "upper-case": 2,
    "digits": 4,
    "-._~": 8,  # never escaped in addresses
    "spaces": 16,
    "special": 32,  # other ASCII characters: escaped in addresses, or with a meaning in filters
    "non-ascii": 64,
    "leading-or-trailing-space": 128,
    "not-composed": 256,  # not in Unicode's composed form: two keys may look alike and differ
}
_LOWER, _UPPER, _DIGITS, _PLAIN, _SPACE, _SPECIAL, _NON_ASCII, _EDGE, _LOOSE = MARKS.values()
_MARK_OF = {
    **dict.fromkeys(ascii_lowercase, _LOWER),
    **dict.fromkeys(ascii_uppercase, _UPPER),
    **dict.fromkeys(digits, _DIGITS),
    **dict.fromkeys("-._~", _PLAIN),
    " ": _SPACE,
}
# The marks of ASCII characters, by code, as a table for `bytes.translate`.
_MARK_OF_BYTE = bytes(_MARK_OF.get(chr(code), _SPECIAL) for code in range(256))


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of keys in UTF-16 units."""

    least: int
    median: int
    most: int
    mean: float = field(metadata=json_field(digits=2))


class KeyColumn:
    """Counts keys, one by one (`add`), and keeps a sample of them."""

    def __init__(self) -> None:
        self.keys = self.empty = 0
        self.shapes: Counter[Shape] = Counter()
        self.specials: Counter[str] = Counter()
        self._units: Counter[int] = Counter()
        self._total_units = 0
        self._marks: Counter[int] = Counter()
        self._sample: list[tuple[int, str]] = []
        self._bar = 1 << 32

    def add(self, key: str) -> None:
        self.keys += 1
        units = utf16_units(key)
        self._units[min(units, MAX_KEY_UNITS + 1)] += 1
        self._total_units += units
        in_ascii = key.encode("ascii", "ignore")
        marks = 0
        for mark in set(in_ascii.translate(_MARK_OF_BYTE)):
            marks |= mark
        if len(in_ascii) < len(key):
            marks |= _NON_ASCII | (0 if unicodedata.is_normalized("NFC", key) else _LOOSE)
        if marks & _SPECIAL:
            self.specials.update(chr(code) for code in set(in_ascii) if _MARK_OF_BYTE[code] == _SPECIAL)
        if marks & _SPACE and key != key.strip(" "):
            marks |= _EDGE
        self._marks[marks] += 1
        if not key:
            self.empty += 1
            return
        for shape in shapes_in(key):
            self.shapes[shape] += 1
        # Keep the keys with the lowest CRC-32, so that the sample does not depend on their order.
        rank = zlib.crc32(key.encode("utf-8", "surrogatepass"))
        if rank < self._bar:
            self._sample.append((rank, key))
            if len(self._sample) > 2 * SAMPLED_KEYS:
                self._sample = sorted(self._sample)[:SAMPLED_KEYS]
                self._bar = self._sample[-1][0]

    @property
    def lengths(self) -> Lengths:
        """The lengths of the keys added; zeros without any."""
        if not self.keys:
            return Lengths(0, 0, 0, 0.0)
        used = sorted(self._units)
        keys_up_to = list(accumulate(self._units[units] for units in used))
        median = used[bisect_left(keys_up_to, (self.keys + 1) // 2)]
        return Lengths(used[0], median, used[-1], self._total_units / self.keys)

    @property
    def sample(self) -> list[str]:
        """Up to `SAMPLED_KEYS` of the keys, drawn evenly; for rules of advice, never for reports."""
        return [key for _, key in sorted(self._sample)[:SAMPLED_KEYS]]

    def marked(self, mark: str) -> int:
        """Return how many keys have one of `MARKS`."""
        return sum(count for marks, count in self._marks.items() if marks & MARKS[mark])

    def share(self, *shapes: Shape) -> float:
        """Return the share of keys with a shape, 0.0 to 1.0; for several shapes the sum, at most 1.0."""
        return min(1.0, sum(self.shapes[shape] for shape in shapes) / self.keys) if self.keys else 0.0


# --- rows ------------------------------------------------------------------------------------------------


class RowCounts:
    """Counts of rows in any order: how many, their bytes, their keys."""

    def __init__(self) -> None:
        self.rows = self.stored_bytes = 0
        self.largest_row_bytes = self.most_properties = 0
        # One key per counted partition; the caller decides which ones.
        self.partition_keys = KeyColumn()
        self.row_keys = KeyColumn()

    @property
    def mean_row_bytes(self) -> float:
        """The billed bytes of a row; 0.0 without rows."""
        return self.stored_bytes / self.rows if self.rows else 0.0

    def count(self, row: Row, names: Sequence[str]) -> None:
        """Count one row with these properties."""
        size = entity_bytes(row)
        self.rows += 1
        self.most_properties = max(self.most_properties, len(names))
        self.stored_bytes += size
        self.largest_row_bytes = max(self.largest_row_bytes, size)
        self.row_keys.add(row[ROW_KEY])


class TableProfile(RowCounts):
    """Counts the rows of a table in key order: `take` for each page, then `finish`."""

    def __init__(self, *, gaps: bool) -> None:
        """Create an empty profile. `gaps`: rows are left out, so a partition may be met again."""
        super().__init__()
        self.partitions = PartitionRuns(gaps=gaps)
        self.partition_order = Signs()
        self.row_order = Signs()
        self.schemas = Schemas()
        self.kinds = KindCounts()
        # For each page of a sample: rows, and RowKeys by shape.
        self.pages: list[tuple[int, Counter[Shape]]] = []
        self._gaps = gaps
        # Of a sample: PartitionKeys, as bytes in the service's order, each with a Timestamp; compared in
        # `finish`.
        self._firsts: list[tuple[bytes, str]] = []
        self._last: Row | None = None
        self._last_first: str | None = None

    def jump(self, after: EntityKey) -> None:
        """Mark a gap; the next rows begin after the key `after`."""
        self.partitions.cut(after.partition)
        self._last = None

    def take(self, rows: Sequence[Row]) -> None:
        """Count the rows of one page, which follow the previous page or the last jump."""
        before = Counter(self.row_keys.shapes) if len(self.pages) < _MOST_PAGES else None
        for partition in self.partitions.add(row[PARTITION_KEY] for row in rows):
            self.partition_keys.add(partition)
            self.kinds.add_partition(partition)
        for row in rows:
            names = property_names(row)
            self.count(row, names)
            self.schemas.add(row, names)
            self.kinds.add(row, names)
            partition, stamp, last = row[PARTITION_KEY], row.get(TIMESTAMP, ""), self._last
            if last is not None and last[PARTITION_KEY] == partition:
                self.row_order.add(last.get(TIMESTAMP, ""), stamp)
            elif not self._gaps:
                if self._last_first is not None:
                    self.partition_order.add(self._last_first, stamp)
                self._last_first = stamp
            elif len(self._firsts) < _MOST_FIRSTS:
                self._firsts.append((utf16_order(partition), stamp))
            self._last = row
        if before is not None and rows:
            self.pages.append((len(rows), Counter(self.row_keys.shapes) - before))

    def finish(self, *, whole: bool) -> None:
        """End the counting; `whole`: the table ends after the last row."""
        self.partitions.finish(whole=whole)
        self.partition_order.add_neighbors(self._firsts)


# --- order of writing ----------------------------------------------------------------------------------

LEAST_PAIRS = 20
CLEAR = 0.9


class Order(StrEnum):
    """Where new keys go."""

    APPEND = "append-only"
    PREPEND = "prepend-only"
    SCATTERED = "scattered"
    UNKNOWN = "not to be told"


class Signs:
    """Counts pairs of neighbors in key order whose Timestamps rise or fall. Equal ones (one batch) do not
    count. A Timestamp is that of the last write: updates and imports change it."""

    def __init__(self) -> None:
        self.rising = self.falling = 0

    def add(self, before: str, after: str) -> None:
        """Compare two Timestamps as the service writes them."""
        # without the Z: the fraction may be missing, and `.` sorts before Z
        earlier, later = before.rstrip("Z"), after.rstrip("Z")
        self.rising += earlier < later
        self.falling += earlier > later

    def add_neighbors(self, stamped: Iterable[tuple[bytes, str]]) -> None:
        """Compare the Timestamps of neighbors in the order of their keys."""
        for (_, before), (_, after) in pairwise(sorted(stamped)):
            self.add(before, after)

    @property
    def pairs(self) -> int:
        """The number of pairs whose Timestamps differ."""
        return self.rising + self.falling

    @property
    def order(self) -> Order:
        """The order of writing that the pairs show; unknown below `LEAST_PAIRS`."""
        if self.pairs < LEAST_PAIRS:
            return Order.UNKNOWN
        if self.rising >= CLEAR * self.pairs:
            return Order.APPEND
        return Order.PREPEND if self.falling >= CLEAR * self.pairs else Order.SCATTERED


# --- properties and schemas ----------------------------------------------------------------------------

MAX_SCHEMAS = 1_000
MAX_PROPERTIES = 2_000

Schema = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PropertyUse:
    """A property: rows that have it, by EDM type."""

    name: str
    types: dict[str, int]

    @property
    def rows(self) -> int:
        return sum(self.types.values())

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "rows": self.rows, "types": dict(sorted(self.types.items()))}


class Schemas:
    """Counts properties, types and schemas: sets of a row's properties with their types. Beyond `MAX_SCHEMAS`
    schemas or `MAX_PROPERTIES` properties the rest is counted together."""

    def __init__(self) -> None:
        # Whether every schema and every property was counted separately.
        self.complete = True
        self._schemas: Counter[Schema] = Counter()
        # Of rows whose schema is not counted separately: rows by property and EDM type.
        self._loose: dict[str, Counter[str]] = {}

    def add(self, row: Row, names: Sequence[str]) -> None:
        """Count one wire row with these properties."""
        schema = tuple([(name, edm_type(row, name)) for name in names])
        if schema not in self._schemas:
            schema = tuple(sorted(schema))
        if schema in self._schemas or len(self._schemas) < MAX_SCHEMAS:
            self._schemas[schema] += 1
            return
        self.complete = False
        for name, edm in schema:
            if name in self._loose or len(self._loose) < MAX_PROPERTIES:
                self._loose.setdefault(name, Counter())[edm] += 1

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of each schema, the most frequent first."""
        return tuple(sorted(self._schemas.values(), reverse=True))

    @property
    def properties(self) -> list[PropertyUse]:
        """The properties, the most frequent first."""
        types = {name: Counter(counted) for name, counted in self._loose.items()}
        for schema, rows in self._schemas.items():
            for name, edm in schema:
                types.setdefault(name, Counter())[edm] += rows
        uses = [PropertyUse(name, dict(counted)) for name, counted in types.items()]
        return sorted(uses, key=lambda use: (-use.rows, use.name))
