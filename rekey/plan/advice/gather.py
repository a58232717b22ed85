"""Counting what advice is judged from, while rows are mapped. Pure.

Rules kept here:

* Memory is bounded: counters, samples of keys, at most 50,000 partitions a table.
* Of a large table every eighth row is counted here once 20,000 were: shares need no more, and `apply` tries
  every row. What is counted exactly elsewhere (rows, partitions, collisions) is taken from there.
* Hashes are evaluated with made-up secrets: only what goes into them is looked at.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from rekey.core.limits import entity_bytes
from rekey.declaration.keys.base import Evaluator, Join, Scope
from rekey.declaration.keys.hashes import Hashed
from rekey.declaration.keys.pieces import ItemsOf
from rekey.declaration.migration import (
    MAIN_PARTITION_KEY,
    MAIN_ROW_KEY,
    Index,
    Migration,
    Target,
    required_secrets,
)
from rekey.errors import RowRefused
from rekey.inspect.columns import KeyColumn
from rekey.inspect.inventory import Inventory
from rekey.inspect.profile import Order, Signs, TableProfile
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, Row, key_of, property_names, utf16_order
from rekey.plan.advice.facts import Facts, HashInput, TableFacts
from rekey.plan.advice.structure import MOMENTS, parts_of
from rekey.plan.result import TableFill

MapRow: TypeAlias = Callable[[Row], Sequence[tuple[int, Row]]]
ALL_ROWS = 20_000
STRIDE = 8
REPEATED = 200
HASHED_ROWS = 2_000
ITEMS = 5
PARTITIONS = 50_000
STAMPS = 2_000
_SECRET = b"made up for counting only"


class Tally:
    """What is counted of one table's rows."""

    def __init__(self) -> None:
        self.partition_keys = KeyColumn()
        self.row_keys = KeyColumn()
        self.rows = 0
        self.bytes = 0
        self.largest_row_bytes = 0
        self.most_properties = 0
        self.property_names: set[str] = set()
        self.pointer_rows = 0
        self.streams: dict[str, int] = {}
        self._partitions: set[str] = set()
        self._rows_till_full = 0
        self._stamps: dict[str, str] = {}

    def add(self, row: Row, stamp: str, stream: str) -> None:
        """Count one row, written at `stamp`, that goes with others of its `stream`."""
        partition, names = row[PARTITION_KEY], property_names(row)
        full = len(self._partitions) >= PARTITIONS
        self._rows_till_full += not full
        if not full and partition not in self._partitions:
            self._partitions.add(partition)
            self.partition_keys.add(partition)
            if zlib.crc32(partition.encode("utf-8", "surrogatepass")) % 16 == 0 or len(self._stamps) < STAMPS:
                self._stamps[partition] = stamp
        self.row_keys.add(row[ROW_KEY])
        size = entity_bytes(row)
        self.rows += 1
        self.bytes += size
        self.largest_row_bytes = max(self.largest_row_bytes, size)
        self.most_properties = max(self.most_properties, len(names))
        if len(self.property_names) < PARTITIONS:
            self.property_names.update(names)
        self.pointer_rows += MAIN_PARTITION_KEY in row and MAIN_ROW_KEY in row
        if stream in self.streams or len(self.streams) < PARTITIONS:
            self.streams[stream] = self.streams.get(stream, 0) + 1

    @property
    def rows_met_together(self) -> float:
        """Return how many rows were met for each partition met, while all of those were remembered."""
        return self._rows_till_full / len(self._partitions) if self._partitions else 0.0

    @property
    def hottest_share(self) -> float:
        """Return the largest stream's share of rows."""
        return max(self.streams.values(), default=0) / self.rows if self.rows else 0.0

    @property
    def partition_order(self) -> Order:
        """Return where new partitions go, by the Timestamps of their first rows met."""
        signs = Signs()
        ordered = sorted((utf16_order(partition), stamp) for partition, stamp in self._stamps.items())
        for (_, before), (_, after) in pairwise(ordered):
            signs.add(before, after)
        return signs.order

    def facts(
        self,
        table: str,
        *,
        rows: int,
        partitions: int,
        largest: int,
        exact: bool,
        declared: Target | Index | None = None,
    ) -> TableFacts:
        """Return the facts, with what was counted elsewhere."""
        return TableFacts(
            table=table,
            today=declared is None,
            rows=rows,
            looked_at=self.rows,
            partitions=partitions,
            largest_partition=largest,
            partition_keys=self.partition_keys,
            row_keys=self.row_keys,
            mean_row_bytes=self.bytes / self.rows if self.rows else 0.0,
            largest_row_bytes=self.largest_row_bytes,
            most_properties=self.most_properties,
            property_names=frozenset(self.property_names),
            pointer_rows=self.pointer_rows,
            hottest_share=self.hottest_share,
            rows_met_together=self.rows_met_together,
            partitions_exact=exact,
            partition_order=self.partition_order,
            declared=declared,
        )


class Gatherer:
    """Takes source rows with what they are mapped to (`take`), then gives `facts`."""

    def __init__(self, migration: Migration, map_row: MapRow, *, is_cosmos: bool = False) -> None:
        """Take the declaration, and what maps a row: a few rows are mapped twice."""
        self._migration = migration
        self._map = map_row
        self._is_cosmos = is_cosmos
        self._declared: tuple[Target | Index, ...] = (migration.target, *migration.indexes)
        self._source = Tally()
        self._tallies = [Tally() for _ in self._declared]
        self._seen = 0
        self._repeated = 0
        self._unrepeatable = 0
        secrets = dict.fromkeys(required_secrets(migration), _SECRET)
        self._streams = [_stream_of(one, secrets) for one in self._declared]
        self._hashes = [hashed for one in self._declared for hashed in _hashes_of(one, secrets)]

    def take(self, row: Row, mapped: Sequence[tuple[int, Row]]) -> None:
        """Count one source row and its target rows."""
        self._seen += 1
        if self._seen > ALL_ROWS and self._seen % STRIDE:
            return
        if self._repeated < REPEATED:
            self._repeat(row, mapped)
        stamp = row.get(TIMESTAMP, "")
        self._source.add(row, stamp, row[PARTITION_KEY])
        for number, target in mapped:
            stream = self._streams[number]
            self._tallies[number].add(target, stamp, target[PARTITION_KEY] if stream is None else stream(row))
        if self._seen <= HASHED_ROWS:
            for hashed in self._hashes:
                hashed.take(row)

    def facts(self, inventory: Inventory, fills: Sequence[TableFill], colliding: Mapping[int, int]) -> Facts:
        """Return the facts.

        Args:
            inventory: of the source.
            fills: what each target table gets.
            colliding: rows that share a target key with another, by number of the table.
        """
        today = self._source.facts(
            inventory.table,
            rows=inventory.rows.rows,
            partitions=max(inventory.partitions, self._source.partition_keys.keys),
            largest=inventory.largest_partition,
            exact=inventory.exact,
        )
        planned = [
            tally.facts(
                fill.table,
                rows=fill.rows,
                partitions=max(fill.partitions, tally.partition_keys.keys),
                largest=fill.largest_partition,
                exact=fill.partitions_exact,
                declared=one,
            )
            for tally, fill, one in zip(self._tallies, fills, self._declared, strict=True)
        ]
        return Facts(
            today=today,
            planned=tuple(planned),
            migration=self._migration,
            colliding=colliding,
            repeated=self._repeated,
            unrepeatable=self._unrepeatable,
            hash_inputs=tuple(hashed.facts for hashed in self._hashes),
            is_cosmos=self._is_cosmos,
        )

    def _repeat(self, row: Row, mapped: Sequence[tuple[int, Row]]) -> None:
        self._repeated += 1
        try:
            again = [(number, key_of(target)) for number, target in self._map(row)]
        except RowRefused:
            self._unrepeatable += 1
            return
        self._unrepeatable += again != [(number, key_of(target)) for number, target in mapped]


def facts_of_profile(profile: TableProfile, inventory: Inventory, *, is_cosmos: bool = False) -> Facts:
    """Return the facts of a table that was inspected."""
    rows = profile.rows
    runs = profile.partitions
    partitions = profile.partition_keys.keys
    if not inventory.exact and rows:
        partitions = max(partitions, round(runs.ends * inventory.rows.rows / rows))
    largest = max((large.rows for large in runs.largest), default=0)
    names = {use.name for use in profile.schemas.properties}
    today = TableFacts(
        table=inventory.table,
        today=True,
        rows=inventory.rows.rows,
        looked_at=rows,
        partitions=partitions,
        largest_partition=round(largest * inventory.rows.rows / rows) if rows else 0,
        partition_keys=profile.partition_keys,
        row_keys=profile.row_keys,
        mean_row_bytes=profile.stored_bytes / rows if rows else 0.0,
        largest_row_bytes=profile.largest_row_bytes,
        most_properties=profile.schemas.most_properties,
        property_names=frozenset(names),
        pointer_rows=0,
        hottest_share=largest / rows if rows else 0.0,
        rows_met_together=rows / profile.partition_keys.keys if rows else 0.0,
        # Of a sample their number is an estimate of its own, not a lower bound.
        partitions_exact=True,
        partition_order=profile.partition_order.order,
    )
    return Facts(today=today, is_cosmos=is_cosmos)


class _Hash:
    """What goes into one unkeyed hash."""

    def __init__(self, where: str, node: Hashed, evaluate: Evaluator, items: ItemsOf | None) -> None:
        self.facts = HashInput(where, node.describe(), KeyColumn())
        self._evaluate = evaluate
        self._items = items

    def take(self, row: Row) -> None:
        items = self._items(row)[:ITEMS] if self._items is not None else [""]
        for item in items:
            try:
                self.facts.inputs.add(self._evaluate(row, item))
            except RowRefused:
                # Only a branch that the row's own key does not use can be refused here: the row was mapped.
                continue


def _hashes_of(one: Target | Index, secrets: Mapping[str, bytes]) -> list[_Hash]:
    each = one.each if isinstance(one, Index) else None
    found = []
    for key, expression in (("PartitionKey", one.partition_key), ("RowKey", one.row_key)):
        scope = Scope(f"{one.table} {key}", secrets)
        items = each.compile(scope) if each is not None else None
        found += [
            _Hash(scope.field, node, node.of.compile(scope), items)
            for node in expression.walk()
            if isinstance(node, Hashed)
        ]
    return found


def _stream_of(one: Target | Index, secrets: Mapping[str, bytes]) -> Callable[[Row], str] | None:
    """Return what names the stream of a row: its PartitionKey without moments; None: the whole of it."""
    parts = parts_of(one.partition_key)
    lasting = [part for part in parts if not isinstance(part, MOMENTS)]
    if len(lasting) == len(parts):
        return None
    if not lasting:
        return lambda _row: ""
    evaluate = Join("\0", tuple(lasting)).compile(Scope(f"{one.table} PartitionKey", secrets))
    return lambda row: evaluate(row, "")
