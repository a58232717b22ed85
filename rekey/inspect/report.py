"""The report of an inspection, as values and as JSON-able data. Pure.

Rules kept here:

* No value holds a key, except `partition` of a large partition, which stays None unless keys were asked for.
* A figure that a sample cannot know exactly stands next to its interval, or is called `at_least`.
* Rows of one page resemble each other, so pages are counted as draws, not rows: the interval is that of a
  ratio over clusters (Cochran, "Sampling Techniques", on cluster sampling).
* A feature that no page shows has a share of at most 3 / pages, at 95 % (the rule of three).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from rekey.core.plain import UNTOLD, members, told
from rekey.core.safe_ids import SafeIds
from rekey.inspect.inventory import Inventory
from rekey.inspect.partitions import CLASS_NAMES, Large
from rekey.inspect.profile import MARKS, KeyColumn, Lengths, Order, PropertyUse, Signs, TableProfile
from rekey.inspect.shapes import Shape
from rekey.model import EntityKey

# The factor by which an estimate of the rows may be off, either way. Of 90 tables of 15 kinds of keys, with
# up to 120,000 rows, 93 of 100 estimates lay within it; the others were too high, most of them of very uneven
# partitions (`tests/unit/test_inspection_confidence.py` repeats the trials).
FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Share:
    """A share of rows with its 95 % interval, all 0.0 to 1.0."""

    value: float
    low: float
    high: float

    def as_json(self) -> list[float]:
        """Return the share and both ends of the interval."""
        return [round(part, 4) for part in astuple(self)]


@dataclass(frozen=True, slots=True)
class ShapeUse:
    """One shape: the number of keys looked at that have it; for RowKeys also its share in the table."""

    shape: Shape
    keys: int
    share: Share | None = field(metadata=told(if_any=True))


@dataclass(frozen=True, slots=True)
class KeyReport:
    """Figures of one of the two keys: keys looked at, lengths, characters, shapes, order."""

    keys: int
    empty: int
    lengths: Lengths = field(metadata=told("units"))
    marks: Mapping[str, int] = field(metadata=told("characters"))
    specials: Mapping[str, int] = field(metadata=told("special_characters"))
    shapes: tuple[ShapeUse, ...]
    order: Order
    pairs: int = field(metadata=told("order_pairs"))


@dataclass(frozen=True, slots=True)
class LargePartition:
    """A large partition by safe id; its key only when asked for."""

    partition_id: str
    rows: int
    whole: bool
    share: float
    partition: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "partition_id": self.partition_id,
            "rows" if self.whole else "rows_at_least": self.rows,
            "share_of_rows_read": round(self.share, 4),
            **({} if self.partition is None else {"partition": self.partition}),
        }


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """Partitions: how many, by size, the largest.

    Attributes:
        count: how many; an estimate unless the inspection is exact.
        between: the bounds between which their number is likely to lie.
        met: how many were met.
        sizes: whole partitions by size class.
        cut: partitions met of which only a part was seen; counted in no class.
        largest: the largest partitions, the largest first.
    """

    count: int
    between: tuple[int, int]
    met: int
    sizes: Mapping[str, int]
    cut: int
    largest: tuple[LargePartition, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """The report of a table.

    Attributes:
        inventory: rows, bytes, requests, and how certain they are.
        largest_row_bytes: bytes of the largest row read.
        most_properties: the most properties of a row read.
        properties: the properties, the most frequent first.
        varying: names of the properties that come with more than one type.
        schemas: rows of each schema, the most frequent first.
        schemas_complete: whether each schema was counted separately.
        shows_keys: partitions are named by key: for the operator's eyes only.
    """

    inventory: Inventory = field(metadata=UNTOLD)
    largest_row_bytes: int
    most_properties: int
    partitions: PartitionReport
    partition_key: KeyReport
    row_key: KeyReport
    properties: tuple[PropertyUse, ...]
    varying: tuple[str, ...] = field(metadata=told("varying_properties"))
    schemas: tuple[int, ...]
    schemas_complete: bool
    shows_keys: bool = field(metadata=UNTOLD)

    @property
    def exact(self) -> bool:
        """Tell whether every row was read."""
        return self.inventory.exact

    @property
    def rows_read(self) -> int:
        """Return the number of rows read; shares refer to these."""
        return self.inventory.rows.at_least

    @property
    def rows_interval(self) -> tuple[int, int]:
        """Return the bounds between which the number of rows is likely to lie: `FACTOR` either way unless
        exact, but no fewer than were read."""
        rows = self.inventory.rows
        if self.exact:
            return rows.rows, rows.rows
        return max(rows.at_least, round(rows.rows / FACTOR)), round(rows.rows * FACTOR)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        return {
            "table": self.inventory.table,
            "exact": self.exact,
            "shows_keys": self.shows_keys,
            "requests": self.inventory.requests,
            "basis": self.inventory.basis,
            "rows": self.inventory.rows.rows,
            "rows_read": self.rows_read,
            "rows_between": list(self.rows_interval),
            "settled": self.inventory.rows.settled,
            "stored_bytes": self.inventory.stored_bytes,
            **members(self),
        }


def report_of(profile: TableProfile, inventory: Inventory, ids: SafeIds, *, show_keys: bool) -> Inspection:
    """Return the report of a table from the profile and the inventory of its rows."""

    def share(shape: Shape) -> Share:
        pages = [(rows, shapes[shape]) for rows, shapes in profile.pages]
        if inventory.exact:
            pages = [(profile.row_keys.keys, profile.row_keys.shapes[shape])]
        return share_of(pages, exact=inventory.exact)

    def large(one: Large) -> LargePartition:
        partition_id = ids.short(inventory.table, EntityKey(one.partition, ""))
        shown = one.partition if show_keys else None
        return LargePartition(partition_id, one.rows, one.whole, one.rows / runs.rows, shown)

    runs, met = profile.partitions, profile.partition_keys.keys
    count = most = met
    if not inventory.exact and runs.rows:
        likely = inventory.rows.rows / runs.rows
        count = max(met, round(runs.ends * likely))
        most = max(met, round(poisson_upper(runs.ends) * likely * FACTOR))
    properties = tuple(profile.schemas.properties)
    return Inspection(
        inventory=inventory,
        largest_row_bytes=profile.largest_row_bytes,
        most_properties=profile.most_properties,
        partitions=PartitionReport(
            count=count,
            between=(met, most),
            met=met,
            sizes={name: size for name, size in zip(CLASS_NAMES, runs.sizes, strict=True) if size},
            cut=met - sum(runs.sizes),
            largest=tuple(map(large, runs.largest)),
        ),
        partition_key=_key(profile.partition_keys, profile.partition_order, lambda _shape: None),
        row_key=_key(profile.row_keys, profile.row_order, share),
        properties=properties,
        varying=tuple(use.name for use in properties if len(use.types) > 1),
        schemas=profile.schemas.rows,
        schemas_complete=profile.schemas.complete,
        shows_keys=show_keys,
    )


def _key(column: KeyColumn, signs: Signs, share: Callable[[Shape], Share | None]) -> KeyReport:
    def most_first(counted: Mapping[Any, int]) -> list[tuple[Any, int]]:
        return sorted(counted.items(), key=lambda one: (-one[1], one[0]))

    return KeyReport(
        keys=column.keys,
        empty=column.empty,
        lengths=column.lengths,
        marks={mark: column.marked(mark) for mark in MARKS if column.marked(mark)},
        specials=dict(most_first(column.specials)),
        shapes=tuple(ShapeUse(shape, keys, share(shape)) for shape, keys in most_first(column.shapes)),
        order=signs.order,
        pairs=signs.pairs,
    )


# --- intervals -----------------------------------------------------------------------------------------

_Z = 1.96
_NONE_SEEN = 3.0


def poisson_upper(events: int) -> float:
    """Return the upper end of the 95 % interval of the expected number of events when `events` were seen
    (Wilson and Hilferty's approximation)."""
    more = events + 1
    return more * (1 - 1 / (9 * more) + _Z / (3 * math.sqrt(more))) ** 3


def share_of(pages: Sequence[tuple[int, int]], *, exact: bool) -> Share:
    """Return the share of rows that have a feature, with its interval.

    Args:
        pages: for each page read, its rows and how many of them have the feature.
        exact: the pages are the whole table: then both ends of the interval are the share.
    """
    rows, hits = sum(page[0] for page in pages), sum(page[1] for page in pages)
    if not rows:
        return Share(0.0, 0.0, 0.0 if exact else 1.0)
    value = hits / rows
    if exact:
        return Share(value, value, value)
    count = len(pages)
    if hits == 0:
        return Share(0.0, 0.0, min(1.0, _NONE_SEEN / count))
    if hits == rows:
        return Share(1.0, max(0.0, 1.0 - _NONE_SEEN / count), 1.0)
    if count < 2:
        return Share(value, 0.0, 1.0)
    spread = sum((hit - value * size) ** 2 for size, hit in pages) / (count * (count - 1))
    variance = spread / (rows / count) ** 2
    # `draws`: the number of independent rows whose share would vary as much as that of these pages. For them
    # Wilson's interval, which is not symmetric: near 0 and 1 a symmetric one would miss the truth too often.
    draws = value * (1 - value) / variance if variance else float(rows)
    centre = (value + _Z**2 / (2 * draws)) / (1 + _Z**2 / draws)
    half = _Z * math.sqrt(value * (1 - value) / draws + (_Z / (2 * draws)) ** 2) / (1 + _Z**2 / draws)
    return Share(value, max(0.0, centre - half), min(1.0, centre + half))
