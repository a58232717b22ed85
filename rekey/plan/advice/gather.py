"""Counts the facts that advice is judged from, on a sample of the rows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TypeAlias

from rekey.declaration.keys.base import Evaluator, Join
from rekey.declaration.keys.hashes import Bucket, Hashed
from rekey.declaration.keys.pieces import ItemsOf
from rekey.declaration.kinds import kind_numbers
from rekey.declaration.migration import Migration
from rekey.declaration.targets import MAIN_PARTITION_KEY, MAIN_ROW_KEY, Index, Target
from rekey.errors import RowRefused
from rekey.inspect.inventory import Inventory
from rekey.inspect.profile import KeyColumn, RowCounts, Signs, TableProfile
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, Row, key_of, property_names, utf16_order
from rekey.plan.advice.facts import Facts, HashInput, TableFacts
from rekey.plan.advice.structure import MOMENTS, counting_scope, parts_of
from rekey.plan.result import TableFill
from rekey.project.prices import Prices

MapRow: TypeAlias = Callable[[Row], Sequence[tuple[int, Row]]]
REPEATED = 200
ITEMS = 5


class Tally(RowCounts):
    """Counts of one table's rows."""

    def __init__(self) -> None:
        super().__init__()
        self._pointer_rows = 0
        self._streams: Counter[str] = Counter()
        self._stamps: dict[str, str] = {}

    def add(self, row: Row, stamp: str, stream: str) -> None:
        """Count one row of the sample, last written at `stamp`; `stream` names the stream it belongs to."""
        partition = row[PARTITION_KEY]
        self.count(row, property_names(row))
        if partition not in self._stamps:
            self._stamps[partition] = stamp
            self.partition_keys.add(partition)
        self._pointer_rows += MAIN_PARTITION_KEY in row and MAIN_ROW_KEY in row
        self._streams[stream] += 1

    def facts(
        self, fill: TableFill, rows_per_partition: float, declared: Target | Index | None
    ) -> TableFacts:
        """Return the facts of the table.

        Args:
            fill: rows and partitions as counted on all rows.
            rows_per_partition: their mean among the rows read.
            declared: the target or index; None for the source.
        """
        signs = Signs()
        signs.add_neighbors((utf16_order(name), stamp) for name, stamp in self._stamps.items())
        return TableFacts(
            table=fill.table,
            counts=self,
            rows=fill.rows,
            partitions=max(fill.partitions, self.partition_keys.keys),
            largest_partition=fill.largest_partition,
            partitions_exact=fill.partitions_exact,
            rows_met_together=rows_per_partition,
            pointer_rows=self._pointer_rows,
            hottest_share=max(self._streams.values(), default=0) / self.rows if self.rows else 0.0,
            partition_order=signs.order,
            declared=declared,
        )


class Gatherer:
    """Takes source rows with their target rows (`take`), then gives `facts`."""

    def __init__(self, migration: Migration, map_row: MapRow, *, prices: Prices | None = None) -> None:
        """Create empty counts. `map_row` maps a row; the first rows are mapped with it a second time."""
        # One for the source, then one for each target table.
        self.tallies = [Tally() for _ in (migration.source, *migration.filled)]
        self._migration = migration
        self._map = map_row
        self._prices = prices or Prices()
        self._repeated = self._unrepeatable = 0
        self._streams = [_stream_of(target, migration) for target in migration.filled]
        self._number_of_kind = kind_numbers(migration.kinds)
        self._hashes = [
            (number if migration.kinds else None, *hashed)
            for number, (target, indexes) in enumerate(migration.rules)
            for hashed in chain(
                _hashes_of(target, migration), *(_hashes_of(index, migration) for index in indexes)
            )
        ]

    def take(self, row: Row, mapped: Sequence[tuple[int, Row]]) -> None:
        """Count one source row of the sample and its target rows."""
        if self._repeated < REPEATED:
            self._repeated += 1
            again = None
            with suppress(RowRefused):
                again = [(number, key_of(target)) for number, target in self._map(row)]
            self._unrepeatable += again != [(number, key_of(target)) for number, target in mapped]
        stamp = row.get(TIMESTAMP, "")
        self.tallies[0].add(row, stamp, row[PARTITION_KEY])
        for number, target in mapped:
            stream = self._streams[number]
            named = target[PARTITION_KEY] if stream is None else stream(row)
            self.tallies[1 + number].add(target, stamp, named)
        kind = self._number_of_kind(row)
        for of_kind, hash_input, evaluate, items in self._hashes:
            if of_kind != kind:
                continue
            for item in [""] if items is None else items(row)[:ITEMS]:
                # The row was mapped, so only a branch that its own key does not use can refuse.
                with suppress(RowRefused):
                    hash_input.inputs.add(evaluate(row, item))

    def facts(
        self,
        inventory: Inventory,
        fills: Sequence[TableFill],
        colliding: Mapping[str, int],
        rows_per_partition: Sequence[float],
    ) -> Facts:
        """Return the facts.

        Args:
            inventory: of the source.
            fills: rows and partitions of each target table.
            colliding: by table, rows that share a target key, in the first groups of collisions.
            rows_per_partition: their mean among the rows read, the source first.
        """
        rows, exact, largest = inventory.rows.rows, inventory.exact, inventory.largest_partition
        source = TableFill(inventory.table, rows, 0, inventory.partitions, exact, largest, 0.0)
        sizes = zip([source, *fills], rows_per_partition, [None, *self._migration.filled], strict=True)
        tables = []
        for tally, (fill, mean, declared) in zip(self.tallies, sizes, strict=True):
            if exact and not fill.partitions_exact:  # too many to count each
                fill = replace(fill, partitions=round(fill.rows / mean), partitions_exact=True)
            tables.append(tally.facts(fill, mean, declared))
        return Facts(
            today=tables[0],
            planned=tuple(tables[1:]),
            migration=self._migration,
            colliding=colliding,
            repeated=self._repeated,
            unrepeatable=self._unrepeatable,
            hash_inputs=tuple(hash_input for _, hash_input, _, _ in self._hashes),
            prices=self._prices,
        )


def facts_of_profile(profile: TableProfile, inventory: Inventory) -> Facts:
    """Return the facts of a table that was inspected."""

    def scaled(counted: int) -> int:
        return round(counted * inventory.rows.rows / profile.rows) if profile.rows else 0

    met = profile.partition_keys.keys
    largest = max((large.rows for large in profile.partitions.largest), default=0)
    today = TableFacts(
        table=inventory.table,
        counts=profile,
        rows=inventory.rows.rows,
        partitions=met if inventory.exact else max(met, scaled(profile.partitions.ends)),
        largest_partition=scaled(largest),
        # In a sample `partitions` is an estimate, not a lower bound.
        partitions_exact=True,
        hottest_share=largest / profile.rows if profile.rows else 0.0,
        partition_order=profile.partition_order.order,
    )
    return Facts(today=today)


def facts_of_declaration(migration: Migration) -> Facts:
    """Return the facts that are known before any row is read."""
    tables = zip((migration.source, *migration.labels), (None, *migration.filled), strict=True)
    today, *planned = (TableFacts(label, RowCounts(), declared=declared) for label, declared in tables)
    return Facts(today=today, planned=tuple(planned), migration=migration)


def _hashes_of(
    filled: Target | Index, migration: Migration
) -> Iterator[tuple[HashInput, Evaluator, ItemsOf | None]]:
    """Yield, for each unkeyed hash in the keys of a table, the counter of its inputs, the evaluator of its
    input, and the function that returns the items of a row (None: no items)."""
    for key, expression in ((PARTITION_KEY, filled.partition_key), (ROW_KEY, filled.row_key)):
        scope = counting_scope(f"{filled.table} {key}", migration)
        items = filled.each.compile(scope) if isinstance(filled, Index) and filled.each is not None else None
        for node in expression.walk():
            if isinstance(node, Hashed | Bucket):
                buckets = node.count if isinstance(node, Bucket) else None
                yield (
                    HashInput(scope.field, node.describe(), KeyColumn(), buckets),
                    node.of.compile(scope),
                    items,
                )


def _stream_of(filled: Target | Index, migration: Migration) -> Callable[[Row], str] | None:
    """Return the function that names a row's stream: its PartitionKey without the moments, if any."""
    parts = parts_of(filled.partition_key)
    lasting = [part for part in parts if not isinstance(part, MOMENTS)]
    if len(lasting) == len(parts):
        return None
    if not lasting:
        return lambda _row: ""
    evaluate = Join("\0", tuple(lasting)).compile(counting_scope(f"{filled.table} PartitionKey", migration))
    return lambda row: evaluate(row, "")
