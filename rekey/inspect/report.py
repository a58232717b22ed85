"""The report of an inspection, as values and as JSON. Uncertain figures have intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from rekey.core.plain import exclude, json_field, members
from rekey.core.safe_ids import SafeIds
from rekey.inspect.inventory import Inventory
from rekey.inspect.kinds import SeenKind
from rekey.inspect.partitions import CLASS_NAMES, Large
from rekey.inspect.profile import MARKS, KeyColumn, Lengths, Order, PropertyUse, Signs, TableProfile
from rekey.inspect.shapes import Shape
from rekey.model import EntityKey

# The factor by which an estimate of the rows may be wrong. Of 90 tables with 15 kinds of keys and up to
# 120,000 rows, 93 % of the estimates were within it; the others were too high, mostly for very uneven
# partitions (`tests/unit/inspect/test_inspection_confidence.py` repeats the trials).
FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Share:
    """A share of rows with its 95 % interval, all 0.0 to 1.0."""

    value: float
    low: float
    high: float

    def as_json(self) -> list[float]:
        return [round(part, 4) for part in astuple(self)]


@dataclass(frozen=True, slots=True)
class ShapeUse:
    """A shape: the number of examined keys that have it; for RowKeys also its share in the table."""

    shape: Shape
    keys: int
    share: Share | None = field(metadata=json_field(omit_default=True))


@dataclass(frozen=True, slots=True)
class KeyReport:
    """Figures of one of the two keys: keys examined, lengths, characters, shapes, order."""

    keys: int
    empty: int
    lengths: Lengths = field(metadata=json_field("units"))
    marks: Mapping[str, int] = field(metadata=json_field("characters"))
    specials: Mapping[str, int] = field(metadata=json_field("special_characters"))
    shapes: tuple[ShapeUse, ...]
    order: Order
    pairs: int = field(metadata=json_field("order_pairs"))


@dataclass(frozen=True, slots=True)
class LargePartition:
    """A large partition by safe id; its key only when asked for."""

    partition_id: str
    rows: int
    whole: bool
    share: float
    partition: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "partition_id": self.partition_id,
            "rows" if self.whole else "rows_at_least": self.rows,
            "share_of_rows_read": round(self.share, 4),
            **({} if self.partition is None else {"partition": self.partition}),
        }


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """Partitions."""

    count: int  # how many; an estimate unless exact
    between: tuple[int, int]  # the likely bounds of their number
    met: int  # how many were met
    sizes: Mapping[str, int]  # whole partitions by size class
    cut: int  # partitions met of which only a part was seen; in no class
    largest: tuple[LargePartition, ...]  # the largest partitions, the largest first


@dataclass(frozen=True, slots=True)
class Inspection:
    """The report of a table."""

    # Rows, bytes, requests, and how certain they are.
    inventory: Inventory = field(metadata=exclude)
    largest_row_bytes: int
    # The most properties of a row read.
    most_properties: int
    partitions: PartitionReport
    partition_key: KeyReport
    row_key: KeyReport
    # The properties, the most frequent first.
    properties: tuple[PropertyUse, ...]
    # Properties with more than one type.
    varying: tuple[str, ...] = field(metadata=json_field("varying_properties"))
    # Rows of each schema, the most frequent first.
    schemas: tuple[int, ...]
    # Whether each schema was counted separately.
    schemas_complete: bool
    # Kinds of rows that the rows read show, in the order in which a script tries them; none for one kind.
    kinds: tuple[SeenKind, ...]
    # Whether partitions are named by key, for the operator only.
    shows_keys: bool = field(metadata=exclude)

    @property
    def exact(self) -> bool:
        return self.inventory.exact

    @property
    def rows_read(self) -> int:
        """The number of rows read; shares refer to it."""
        return self.inventory.rows.at_least

    @property
    def rows_interval(self) -> tuple[int, int]:
        """The likely bounds of the number of rows: unless exact, `FACTOR` either way."""
        rows = self.inventory.rows
        if self.exact:
            return rows.rows, rows.rows
        return max(rows.at_least, round(rows.rows / FACTOR)), round(rows.rows * FACTOR)

    def as_json(self) -> dict[str, Any]:
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

    def large(partition: Large) -> LargePartition:
        partition_id = ids.short(inventory.table, EntityKey(partition.partition, ""))
        shown = partition.partition if show_keys else None
        return LargePartition(
            partition_id, partition.rows, partition.whole, partition.rows / runs.rows, shown
        )

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
        kinds=profile.kinds.kinds,
        shows_keys=show_keys,
    )


def _key(column: KeyColumn, signs: Signs, share: Callable[[Shape], Share | None]) -> KeyReport:
    def most_first(counted: Mapping[Any, int]) -> list[tuple[Any, int]]:
        return sorted(counted.items(), key=lambda entry: (-entry[1], entry[0]))

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
    """Return the share of rows that have a feature, with its interval. Rows of a page resemble each other, so
    pages are the draws, not rows: the interval of a ratio over clusters (Cochran, "Sampling Techniques").

    Args:
        pages: for each page read, its rows and how many of them have the feature.
        exact: the pages are the whole table, so the interval is the share itself.
    """
    rows, hits = sum(page[0] for page in pages), sum(page[1] for page in pages)
    if not rows:
        return Share(0.0, 0.0, 0.0 if exact else 1.0)
    value = hits / rows
    if exact:
        return Share(value, value, value)
    count = len(pages)
    if hits == 0:
        # The rule of three: a feature on no page has a share of at most 3 / pages, at 95 %.
        return Share(0.0, 0.0, min(1.0, _NONE_SEEN / count))
    if hits == rows:
        return Share(1.0, max(0.0, 1.0 - _NONE_SEEN / count), 1.0)
    if count < 2:
        return Share(value, 0.0, 1.0)
    spread = sum((hit - value * size) ** 2 for size, hit in pages) / (count * (count - 1))
    variance = spread / (rows / count) ** 2
    # `draws`: the number of independent rows whose share would vary as much. For them Wilson's interval,
    # because a symmetric one misses the truth too often near 0 and 1.
    draws = value * (1 - value) / variance if variance else float(rows)
    center = (value + _Z**2 / (2 * draws)) / (1 + _Z**2 / draws)
    half = _Z * math.sqrt(value * (1 - value) / draws + (_Z / (2 * draws)) ** 2) / (1 + _Z**2 / draws)
    return Share(value, max(0.0, center - half), min(1.0, center + half))
