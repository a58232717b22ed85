"""What an inspection tells, as values and as JSON-able data. Pure.

Rules kept here:

* No value holds a key, except `partition` of a large partition, which stays None unless keys were asked for.
* What a sample cannot know exactly stands beside its interval, or is called `at_least`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rekey.inspect.columns import KeyColumn, Lengths, Mark
from rekey.inspect.confidence import Share, poisson_upper, share_of
from rekey.inspect.inventory import Inventory
from rekey.inspect.order import Order, Signs
from rekey.inspect.partitions import class_names
from rekey.inspect.profile import TableProfile
from rekey.inspect.schemas import PropertyUse
from rekey.inspect.shapes import Shape
from rekey.mapping.ids import SafeIds
from rekey.model import EntityKey

FACTOR = 3.0
"""How far an estimate of the rows may be off, either way. Of 90 tables of 15 kinds of keys, with up to
120,000 rows, 93 of 100 estimates lay within it; the others were too high, most of them of very uneven
partitions (`tests/unit/test_inspection_confidence.py` repeats the trials)."""
MARKS = {
    Mark.LOWER: "lower-case",
    Mark.UPPER: "upper-case",
    Mark.DIGITS: "digits",
    Mark.PLAIN: "-._~",
    Mark.SPACE: "spaces",
    Mark.SPECIAL: "special",
    Mark.NON_ASCII: "non-ascii",
    Mark.EDGE: "leading-or-trailing-space",
    Mark.LOOSE: "not-composed",
}


@dataclass(frozen=True, slots=True)
class ShapeUse:
    """Keys with one shape: how many of those looked at; of RowKeys the share in the table."""

    shape: Shape
    keys: int
    share: Share | None


@dataclass(frozen=True, slots=True)
class KeyReport:
    """What one of the two keys looks like: keys looked at, lengths, characters, shapes, order."""

    keys: int
    empty: int
    lengths: Lengths
    marks: Mapping[str, int]
    specials: Mapping[str, int]
    shapes: tuple[ShapeUse, ...]
    order: Order
    pairs: int


@dataclass(frozen=True, slots=True)
class LargePartition:
    """A large partition by safe id; its key only when asked for."""

    partition_id: str
    rows: int
    whole: bool
    share: float
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """Partitions: how many, by size, the largest.

    Attributes:
        count: how many; an estimate unless the inspection is exact.
        between: where `count` is likely to lie.
        met: how many were met.
        sizes: whole partitions by size class.
        cut: partitions met of which a part was seen only; counted in no class.
        largest: the largest first.
    """

    count: int
    between: tuple[int, int]
    met: int
    sizes: Mapping[str, int]
    cut: int
    largest: tuple[LargePartition, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is in a table.

    Attributes:
        inventory: rows, bytes, requests, and how sure they are.
        largest_row_bytes: of the rows read.
        most_properties: of the rows read.
        properties: those of most rows first.
        schemas: rows of each schema, the most frequent first.
        schemas_complete: whether each schema was counted for itself.
        shows_keys: partitions are named by key: for the operator's eyes only.
    """

    inventory: Inventory
    largest_row_bytes: int
    most_properties: int
    partitions: PartitionReport
    partition_key: KeyReport
    row_key: KeyReport
    properties: tuple[PropertyUse, ...]
    schemas: tuple[int, ...]
    schemas_complete: bool
    shows_keys: bool

    @property
    def exact(self) -> bool:
        """Tell whether every row was read."""
        return self.inventory.exact

    @property
    def rows_read(self) -> int:
        """Return the rows that shares are of."""
        return self.inventory.rows.at_least

    @property
    def rows_interval(self) -> tuple[int, int]:
        """Return between which numbers the rows are likely to lie: `FACTOR` either way unless exact."""
        rows = self.inventory.rows
        if self.exact:
            return rows.rows, rows.rows
        return max(rows.at_least, round(rows.rows / FACTOR)), round(rows.rows * FACTOR)

    @property
    def varying(self) -> tuple[PropertyUse, ...]:
        """Return the properties that come with more than one type."""
        return tuple(use for use in self.properties if len(use.types) > 1)

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        rows = self.inventory.rows
        return {
            "table": self.inventory.table,
            "exact": self.exact,
            "shows_keys": self.shows_keys,
            "requests": self.inventory.requests,
            "basis": self.inventory.basis,
            "rows": rows.rows,
            "rows_read": self.rows_read,
            "rows_between": list(self.rows_interval),
            "settled": rows.settled,
            "stored_bytes": self.inventory.stored_bytes,
            "largest_row_bytes": self.largest_row_bytes,
            "most_properties": self.most_properties,
            "partitions": _partitions_json(self.partitions),
            "partition_key": _key_json(self.partition_key),
            "row_key": _key_json(self.row_key),
            "properties": [
                {"name": use.name, "rows": use.rows, "types": dict(sorted(use.types.items()))}
                for use in self.properties
            ],
            "varying_properties": [use.name for use in self.varying],
            "schemas": list(self.schemas),
            "schemas_complete": self.schemas_complete,
        }


def report_of(profile: TableProfile, inventory: Inventory, ids: SafeIds, *, show_keys: bool) -> Inspection:
    """Return the report of a table whose rows went through a profile."""

    def share(shape: Shape) -> Share:
        pages = [(rows, shapes[shape]) for rows, shapes in profile.pages]
        if inventory.exact:
            pages = [(profile.row_keys.keys, profile.row_keys.shapes[shape])]
        return share_of(pages, exact=inventory.exact)

    return Inspection(
        inventory=inventory,
        largest_row_bytes=profile.largest_row_bytes,
        most_properties=profile.schemas.most_properties,
        partitions=_partitions(profile, inventory, ids, show_keys=show_keys),
        partition_key=_key(profile.partition_keys, profile.partition_order, lambda _shape: None),
        row_key=_key(profile.row_keys, profile.row_order, share),
        properties=tuple(profile.schemas.properties),
        schemas=tuple(rows for _, rows in profile.schemas.schemas),
        schemas_complete=profile.schemas.complete,
        shows_keys=show_keys,
    )


def _key(column: KeyColumn, signs: Signs, share: Callable[[Shape], Share | None]) -> KeyReport:
    return KeyReport(
        keys=column.keys,
        empty=column.empty,
        lengths=column.lengths,
        marks={name: column.marked(mark) for mark, name in MARKS.items() if column.marked(mark)},
        specials=dict(sorted(column.specials.items(), key=lambda one: (-one[1], one[0]))),
        shapes=tuple(
            ShapeUse(shape, keys, share(shape))
            for shape, keys in sorted(column.shapes.items(), key=lambda one: (-one[1], one[0]))
        ),
        order=signs.order,
        pairs=signs.pairs,
    )


def _partitions(
    profile: TableProfile, inventory: Inventory, ids: SafeIds, *, show_keys: bool
) -> PartitionReport:
    runs, met = profile.partitions, profile.partition_keys.keys
    count = most = met
    if not inventory.exact and runs.rows:
        likely = inventory.rows.rows / runs.rows
        count = max(met, round(runs.ends * likely))
        most = max(met, round(poisson_upper(runs.ends) * likely * FACTOR))
    return PartitionReport(
        count=count,
        between=(met, most),
        met=met,
        sizes={name: size for name, size in zip(class_names(), runs.sizes, strict=True) if size},
        cut=met - runs.whole,
        largest=tuple(
            LargePartition(
                partition_id=ids.short(inventory.table, EntityKey(large.partition, "")),
                rows=large.rows,
                whole=large.whole,
                share=large.rows / runs.rows,
                partition=large.partition if show_keys else None,
            )
            for large in runs.largest
        ),
    )


def _partitions_json(partitions: PartitionReport) -> dict[str, Any]:
    return {
        "count": partitions.count,
        "between": list(partitions.between),
        "met": partitions.met,
        "sizes": dict(partitions.sizes),
        "cut": partitions.cut,
        "largest": [
            {
                "partition_id": large.partition_id,
                "rows_at_least" if not large.whole else "rows": large.rows,
                "share_of_rows_read": round(large.share, 4),
                **({"partition": large.partition} if large.partition is not None else {}),
            }
            for large in partitions.largest
        ],
    }


def _key_json(key: KeyReport) -> dict[str, Any]:
    return {
        "keys": key.keys,
        "empty": key.empty,
        "units": {
            "least": key.lengths.least,
            "median": key.lengths.median,
            "most": key.lengths.most,
            "mean": round(key.lengths.mean, 2),
        },
        "characters": dict(key.marks),
        "special_characters": dict(key.specials),
        "shapes": [
            {
                "shape": str(use.shape),
                "keys": use.keys,
                **({"share": [round(part, 4) for part in _parts(use.share)]} if use.share else {}),
            }
            for use in key.shapes
        ],
        "order": str(key.order),
        "order_pairs": key.pairs,
    }


def _parts(share: Share) -> tuple[float, float, float]:
    return share.value, share.low, share.high
