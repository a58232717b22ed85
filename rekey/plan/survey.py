"""Trying the mapping on source rows without writing: refusals, collisions, examples, fill of batches.

Rules kept here:

* Every row is mapped by the same `Mapper` that backfill uses, its new keys are looked at for collisions, its
  partitions are counted and packed by backfill's rules (`packing`).
* What advice, sizes, examples and plots show comes from a sample of these rows, which are mapped once more.
* The size of mapping rows is measured on rows of the sample: they are built and, if the mapping is sealed,
  sealed as backfill does, with a made-up key that is not kept.
* Constant memory: a few windows' partitions, bounded tallies, the sample, records on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from rekey.copy.scan import row_bytes, window_of
from rekey.core.limits import entity_bytes, utf16_units
from rekey.declaration.mapper import Mapper, TargetRow
from rekey.errors import RowRefused
from rekey.mapping.ids import SafeIds, new_key
from rekey.mapping.rows import MappingRows, TargetKey
from rekey.mapping.sealing import Sealer, new_data_key
from rekey.model import PARTITION_KEY, EntityKey, Row, key_of
from rekey.plan.advice.gather import Gatherer
from rekey.plan.collisions import CollisionSearch
from rekey.plan.packing import Filled, Packing
from rekey.plan.portrait import Portrayer
from rekey.plan.result import Collisions, Example, NewKey, RefusedRows
from rekey.plan.subject import PlanOptions, Subject
from rekey.tables.base import Operation, TableService, Verb

EXAMPLES = 5
FIRST_ROWS = 20
MEASURED_ROWS = 500
SIZED = 50
"""Of so many rows of a page one is measured, for windows and batches."""


class Survey:
    """Takes source rows page by page (`take`) and keeps a plan's figures about them. A context manager.

    Attributes:
        labels: what the target tables are called, main first.
        together: the numbers of those that are one table; empty where there is no such.
        rows: source rows taken.
        refused_rows: rows taken that the mapping refuses.
        looked_at: rows of the sample.
        target_rows: rows for each target table.
        examples: up to five rows of the sample.
        packing: counts the batches of the rows.
        gatherer: counts the facts that advice is judged from, in the sample.
        portrayer: counts the figures that plots show.
    """

    def __init__(self, subject: Subject, mapper: Mapper, tables: TableService, options: PlanOptions) -> None:
        """Create a survey of no rows. `tables`: the account, to which no request is sent here.

        Raises MachineFailed when there is no place for temporary files.
        """
        migration = subject.declared.migration
        self.labels = mapper.labels
        self.rows = 0
        self.refused_rows = self.looked_at = 0
        self.target_rows = [0] * len(mapper.tables)
        self.packing = Packing(len(mapper.tables), window_of(options.limits), mapper.together)
        self.gatherer = Gatherer(migration, mapper.map, is_cosmos=options.is_cosmos, prices=options.prices)
        self.portrayer = Portrayer(migration)
        self._mapper, self.together = mapper, mapper.together
        self._ids = subject.ids
        self._source = migration.source
        self._show_keys = options.show_keys
        self._is_cosmos = options.is_cosmos
        self._size_of = [tables.table(name).encoded_size for name in mapper.tables]
        sealer = None
        if migration.is_sealed:
            sealer = Sealer()
            sealer.use(new_data_key("0000-00"))
        self._mapping_rows = MappingRows(
            subject.declared.script_id, migration.source, mapper.tables, SafeIds(new_key()), sealer
        )
        self._measured = self._mapping_bytes = 0
        self.examples: tuple[Example, ...] = ()
        self._refused: dict[tuple[str, str], tuple[RowRefused, int, list[EntityKey]]] = {}
        self._search = CollisionSearch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._search.__exit__(*ended)

    def take(self, rows: Sequence[Row], continues: bool) -> None:
        """Map the rows of one page; `continues`: they follow the previous page without a gap."""
        if not continues and self.rows:
            self.packing.end(whole=False)
        for start in range(0, len(rows), self.packing.page_rows):
            self._take(rows[start : start + self.packing.page_rows])
        self.rows += len(rows)

    def _take(self, rows: Sequence[Row]) -> None:
        mapped: list[tuple[list[TargetRow], Row]] = []
        map_row = self._mapper.map
        for row in rows:
            try:
                mapped.append((map_row(row), row))
            except RowRefused as refused:
                self._refuse(refused, key_of(row))
        made = [[(of_row[0][1], row) for of_row, row in mapped]]
        made += [
            [(target, row) for of_row, row in mapped for table, target in of_row if table == number]
            for number in range(1, len(self.labels))
        ]
        digests, *_ = [self._search.take(number, pairs) for number, pairs in enumerate(made)]
        counts = [Counter([target[PARTITION_KEY] for target, _ in pairs]) for pairs in made]
        self.portrayer.count([Counter([row[PARTITION_KEY] for _, row in made[0]]), *counts])
        self.target_rows = [rows + len(pairs) for rows, pairs in zip(self.target_rows, made, strict=True)]
        if self._is_cosmos:
            for of_row, _ in mapped:
                self.gatherer.limit(of_row)
        if self.packing.open:
            unit = self._rows_together(mapped)
            filled = [
                Filled(
                    partitions,
                    _mean([self._size_of[number](Operation(Verb.INSERT, row)) for row, _ in pairs[::SIZED]]),
                    unit if number in self.together else 1.0,
                )
                for number, (partitions, pairs) in enumerate(zip(counts, made, strict=True))
            ]
            # Ids are digests, too: any digests show how mapping rows spread over 32 partitions a direction.
            forward = Counter([digest[0] >> 3 for digest in digests])
            reverse = Counter([~(digest[1] >> 3) for digest in digests])
            wire_bytes = round(len(rows) * _mean(list(map(row_bytes, rows[::SIZED]))))
            self.packing.page(len(rows), wire_bytes, filled, Filled(forward + reverse))

    def _rows_together(self, mapped: Sequence[tuple[Sequence[TargetRow], Row]]) -> float:
        """Return how many rows of the main target's table a source row gives one partition, on average."""
        partitions = Counter(
            (number, row[PARTITION_KEY])
            for number, (of_row, _) in enumerate(mapped if self.together else ())
            for table, row in of_row
            if table in self.together
        )
        return _mean(list(partitions.values())) or 1.0

    def _refuse(self, refused: RowRefused, key: EntityKey) -> None:
        self.refused_rows += 1
        reason = refused.code, refused.field
        refusal, count, first = self._refused.get(reason, (refused, 0, []))
        self._refused[reason] = refusal, count + 1, first
        if len(first) < FIRST_ROWS:
            first.append(key)

    def _look_at(self, sample: Sequence[Row]) -> None:
        """Look at rows that were taken before, for all that is not asked of every row."""
        self.looked_at = len(sample)
        mappable = []
        for row in sample:
            with suppress(RowRefused):
                mapped = self._mapper.map(row)
                self.gatherer.take(row, mapped)
                self.portrayer.take(row, mapped)
                mappable.append((key_of(row), [(number, key_of(target)) for number, target in mapped]))
        for key, targets in mappable[:: -(-len(mappable) // MEASURED_ROWS) or 1]:
            self._measure(key, targets)
        self.examples = tuple(self._example(*one) for one in mappable[:: -(-len(mappable) // EXAMPLES) or 1])

    def _measure(self, key: EntityKey, targets: Sequence[tuple[int, EntityKey]]) -> None:
        """Measure the forward and the reverse mapping row of one source row."""
        with suppress(RowRefused):
            forward = self._mapping_rows.forward_row(key, [TargetKey(table, *to) for table, to in targets])
            self._measured += 1
            self._mapping_bytes += entity_bytes(forward)
            self._mapping_bytes += entity_bytes(self._mapping_rows.reverse_row(key, targets[0][1]))

    def _example(self, key: EntityKey, targets: Sequence[tuple[int, EntityKey]]) -> Example:
        return Example(
            row_id=self._ids.short(self._source, key),
            new_keys=tuple(
                NewKey(
                    table=self.labels[number],
                    row_id=self._ids.short(self._mapper.tables[number], target),
                    partition_units=utf16_units(target.partition),
                    row_units=utf16_units(target.row),
                    new_key=target if self._show_keys else None,
                )
                for number, target in targets
            ),
            old_key=key if self._show_keys else None,
        )

    def finish(self, sample: Sequence[Row], *, exact: bool) -> Collisions:
        """End the survey and return the collisions of all rows taken.

        Args:
            sample: rows spread over those taken.
            exact: every row of the source was taken.
        """
        self.packing.end(whole=exact)
        self._look_at(sample)
        return self._search.finish(
            self.labels,
            lambda key: self._ids.short(self._source, key),
            exact=exact,
            show_keys=self._show_keys,
        )

    def scaled(self, counted: int, rows: int) -> int:
        """Return a count over the rows taken, scaled to `rows` rows; 0 without rows taken."""
        return round(counted * rows / self.rows) if self.rows else 0

    @property
    def mean_mapping_bytes(self) -> float:
        """Return the mean bytes that the service bills for the mapping rows of a source row; 0.0 if none was
        measured."""
        return self._mapping_bytes / self._measured if self._measured else 0.0

    @property
    def refused(self) -> tuple[RefusedRows, ...]:
        """Return the refusals by reason, the most frequent first."""
        return tuple(
            RefusedRows(
                refusal.code,
                refusal.field,
                refusal.problem,
                refusal.cure,
                count,
                tuple(self._ids.short(self._source, key) for key in first),
                tuple(first) if self._show_keys else None,
            )
            for refusal, count, first in sorted(self._refused.values(), key=lambda one: -one[1])
        )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
