"""Tries the mapping on source rows without writing: refusals, collisions, examples, fill of batches. Every
row is mapped by backfill's `Mapper`; advice, sizes, examples and plots come from a bounded sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import mul
from typing import Self, TypeAlias

from rekey.copy.scan import row_bytes, window_of
from rekey.core.limits import entity_bytes, utf16_units
from rekey.core.safe_ids import SafeIds, new_key
from rekey.declaration.mapper import Made, Mapper
from rekey.errors import RowRefused
from rekey.inspect.inventory import ELSEWHERE, PARTS, Inventory, Weights
from rekey.mapping.rows import MappingRows, TargetKey, target_key
from rekey.mapping.sealing import Sealer, new_data_key
from rekey.model import PARTITION_KEY, EntityKey, Row, key_of
from rekey.plan.absent import explained, named_properties
from rekey.plan.advice.gather import Gatherer
from rekey.plan.collisions import CollisionSearch
from rekey.plan.packing import Filled, Packing
from rekey.plan.portrait import Portrayer
from rekey.plan.result import Collisions, Example, NewKey, RefusedRows
from rekey.plan.subject import PlanOptions, Subject
from rekey.tables.base import Operation, TableService, Verb

# The key of a source row, and the keys that it becomes.
Mapped: TypeAlias = tuple[EntityKey, list[TargetKey]]

EXAMPLES = 5
FIRST_ROWS = 20
MEASURED_ROWS = 500
# One of so many rows of a page is measured, for windows and batches.
SIZED = 50
# Bounds of the sample.
MOST_ROWS = 5_000
MOST_BYTES = 8 * 1024 * 1024
# Partition of a mapping row by a byte of its id: 32 of each direction.
_FORWARD = bytes(byte >> 3 for byte in range(256))
_REVERSE = bytes(32 + (byte >> 3) for byte in range(256))


class RowSample:
    """Takes the rows of all pages (`take`) and keeps every n-th, in order. When there are too many every
    other one is dropped and n doubles: the sample is even, needs no count, and is repeatable."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._bytes = self._seen = 0
        self._every = 1

    def take(self, rows: Sequence[Row]) -> None:
        drawn = rows[-self._seen % self._every :: self._every]
        self._seen += len(rows)
        self.rows += drawn
        self._bytes += sum(map(row_bytes, drawn))
        while len(self.rows) > MOST_ROWS or (self._bytes > MOST_BYTES and len(self.rows) > 1):
            self.rows = self.rows[::2]
            self._bytes //= 2
            self._every *= 2

    def parts(self, inventory: Inventory) -> tuple[list[Row], list[Row]]:
        """Return the rows drawn of each part of the reading (`rekey.inspect.inventory.PARTS`)."""
        head = -(-inventory.head_rows // self._every)
        return self.rows[:head], self.rows[head:]

    def stored_bytes(self, inventory: Inventory) -> int:
        """Return the bytes that the service bills for all rows of the table."""
        means = [sum(map(entity_bytes, part)) / len(part) if part else 0.0 for part in self.parts(inventory)]
        weights = inventory.weights
        return round(weights.sum(mean * rows for mean, rows in zip(means, weights.read, strict=True)))


class Survey:
    """Takes source rows page by page (`take`) and keeps a plan's figures about them. A context manager."""

    def __init__(self, subject: Subject, mapper: Mapper, tables: TableService, options: PlanOptions) -> None:
        """No request is sent here. Raises MachineFailed when there is no place for temporary files."""
        self.subject, self.options = subject, options
        migration = subject.declared.migration
        self.labels = mapper.labels
        self.rows = self.looked_at = 0
        # Rows that the mapping does not refuse, for each part of the reading (`PARTS`); as `target_rows`, by
        # target table.
        self.mapped = [0 for _ in PARTS]
        self.target_rows = [[0] * len(mapper.tables) for _ in PARTS]
        self.packing = Packing(len(mapper.tables), window_of(options.limits), mapper.together)
        self.gatherer = Gatherer(migration, mapper.map, prices=options.prices)
        self.portrayer = Portrayer(migration)
        # `together`: the numbers of the targets that are one table.
        self._mapper, self.together = mapper, mapper.together
        # Names a source row.
        self._name = partial(subject.ids.short, migration.source)
        self._size_of = [tables.table(name).encoded_size for name in mapper.tables]
        # To measure the size of mapping rows, with a made-up key that is not kept.
        sealer = None
        if migration.is_sealed:
            sealer = Sealer()
            sealer.use(new_data_key("0000-00"))
        self._mapping_rows = MappingRows(
            subject.declared.script_id, migration.source, mapper.tables, SafeIds(new_key()), sealer
        )
        # For each part of the reading, the mean bytes of a row of each target table.
        self._row_bytes: list[list[float]] = []
        # For each part of the reading, the mean bytes of the mapping rows of a source row.
        self._mapping_bytes: list[float] = []
        self.examples: tuple[Example, ...] = ()
        self._refused: dict[tuple[str, str], tuple[RowRefused, int, list[EntityKey]]] = {}
        # None until the survey is finished.
        self.collisions = Collisions(0, 0, exact=False)
        self._search = CollisionSearch()
        # Names of the properties that rows of the sample have.
        self.there: set[str] = set()
        self._named = named_properties(migration)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._search.__exit__(*ended)

    def take(self, rows: Sequence[Row], part: int) -> None:
        """Map the rows of one page, which belongs to a part of the reading (`PARTS`)."""
        # Only the stretch from the table's beginning is packed: single pages make batches look emptier than
        # they get.
        if part == ELSEWHERE:
            self.packing.end(whole=False)
        for start in range(0, len(rows), self.packing.page_rows):
            self._take(rows[start : start + self.packing.page_rows], part)
        self.rows += len(rows)

    def _take(self, rows: Sequence[Row], part: int) -> None:
        [made] = self._mapper.map_tables(rows, self._refuse)
        mapped = made[0].sources
        digests, *_ = [self._search.take(number, *one) for number, one in enumerate(made)]
        tables = [mapped, *(one.rows for one in made)]
        today, *counts = [Counter([row[PARTITION_KEY] for row in of_table]) for of_table in tables]
        self.portrayer.count(part, tables, [today, *counts])
        self.mapped[part] += len(mapped)
        met = self.target_rows[part]
        self.target_rows[part] = [rows + len(one.rows) for rows, one in zip(met, made, strict=True)]
        if self.packing.open:
            unit = self._rows_together(made)
            filled = []
            for number, (partitions, one) in enumerate(zip(counts, made, strict=True)):
                sizes = [self._size_of[number](Operation(Verb.INSERT, row)) for row in one.rows[::SIZED]]
                filled.append(Filled(partitions, _mean(sizes), unit if number in self.together else 1.0))
            # Ids are digests, too: any digests show how mapping rows spread over 32 partitions a direction.
            joined = b"".join([digest[:2] for digest in digests])
            spread = Counter(joined[::2].translate(_FORWARD) + joined[1::2].translate(_REVERSE))
            wire_bytes = round(len(rows) * _mean(list(map(row_bytes, rows[::SIZED]))))
            self.packing.page(len(rows), wire_bytes, filled, Filled(spread))

    def _rows_together(self, made: Sequence[Made]) -> float:
        """Return how many rows of the main target's table a source row gives one partition, on average."""
        partitions = Counter(
            (id(source), row[PARTITION_KEY])
            for number in self.together
            for row, source in zip(*made[number], strict=True)
        )
        return _mean(list(partitions.values())) or 1.0

    def _refuse(self, row: Row, refused: RowRefused) -> None:
        reason = refused.code, refused.field
        refusal, count, first = self._refused.get(reason, (refused, 0, []))
        self._refused[reason] = refusal, count + 1, first
        if len(first) < FIRST_ROWS:
            first.append(key_of(row))

    def finish(self, sample: Sequence[Sequence[Row]], *, exact: bool) -> None:
        """End the survey: evaluate the sample, and find collisions among all rows taken.

        Args:
            sample: rows spread over those taken, of each part of the reading (`PARTS`).
            exact: every row of the source was taken.
        """
        self.packing.end(whole=exact)
        mappable: list[Mapped] = []
        for rows in sample:
            self.looked_at += len(rows)
            self.there.update(*rows)
            sizes: list[list[int]] = [[] for _ in self.labels]
            found: list[Mapped] = []
            for row, mapped in self._mapper.map_all(rows, lambda *_: None):
                with suppress(RowRefused):
                    self.gatherer.take(row, mapped)
                    found.append((key_of(row), [target_key(*target_row) for target_row in mapped]))
                    for number, target in mapped:
                        sizes[number].append(entity_bytes(target))
            self._row_bytes.append(list(map(_mean, sizes)))
            self._mapping_bytes.append(_mean([*self._measured(_some(found, MEASURED_ROWS))]))
            mappable += found
        self.examples = tuple(self._example(*one) for one in _some(mappable, EXAMPLES))
        self.collisions = self._search.finish(
            self.labels, self._name, exact=exact, show_keys=self.options.show_keys
        )

    def _measured(self, mapped: Iterable[Mapped]) -> Iterator[int]:
        """Yield the bytes of the forward and the reverse mapping row of each source row."""
        for key, targets in mapped:
            with suppress(RowRefused):
                forward = self._mapping_rows.forward_row(key, targets)
                reverse = self._mapping_rows.reverse_row(key, targets[0].key)
                yield entity_bytes(forward) + entity_bytes(reverse)

    def _example(self, key: EntityKey, targets: Sequence[TargetKey]) -> Example:
        shown, new_keys = self.options.show_keys, []
        for target in targets:
            row_id = self.subject.ids.short(self._mapper.tables[target.table], target.key)
            units = utf16_units(target.partition), utf16_units(target.row)
            new_keys.append(NewKey(self.labels[target.table], row_id, *units, target.key if shown else None))
        return Example(self._name(key), key if shown else None, tuple(new_keys))

    def stored_bytes(self, number: int, weights: Weights) -> int:
        """Return the bytes that the service will bill for the rows of a target table, by its number."""
        rows, means = self.target_rows, self._row_bytes
        return round(weights.sum(means[part][number] * rows[part][number] for part in PARTS))

    def mapping_bytes(self, weights: Weights) -> int:
        """Return the bytes that the service will bill for the mapping rows of all source rows."""
        return round(weights.sum(map(mul, self._mapping_bytes, self.mapped)))

    @property
    def refused(self) -> tuple[RefusedRows, ...]:
        """The refusals by reason, the most frequent first."""
        refused = []
        for row_refused, count, first in sorted(self._refused.values(), key=lambda one: -one[1]):
            ids, keys = tuple(map(self._name, first)), tuple(first) if self.options.show_keys else None
            rows = RefusedRows(
                row_refused.code, row_refused.field, row_refused.problem, row_refused.cure, count, ids, keys
            )
            refused.append(explained(rows, self.rows, self.absent, self.there))
        return tuple(refused)

    @property
    def absent(self) -> dict[str, str]:
        """The properties that the declaration names and no row of the sample has; and where."""
        named = self._named if self.looked_at else {}
        return {name: where for name, where in named.items() if name not in self.there}


def _some(mapped: Sequence[Mapped], most: int) -> Sequence[Mapped]:
    """Return at most so many, drawn evenly."""
    return mapped[:: -(-len(mapped) // most) or 1]


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
