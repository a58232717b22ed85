"""Trying the mapping on source rows without writing: refusals, collisions, examples, fill of batches.

Rules kept here:

* Rows are mapped by the same `Mapper` that backfill uses and packed by its rules (`packing`).
* The size of mapping rows is measured on the first rows: they are built and, if the mapping is sealed, sealed
  as backfill does, with a made-up key that is not kept.
* Constant memory: a few windows' keys, bounded tallies, digests on disk.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from typing import Self

from rekey.copy.scan import window_of
from rekey.core.limits import entity_bytes, utf16_units
from rekey.declaration.mapper import Mapper, TargetRow
from rekey.errors import RowRefused
from rekey.mapping.ids import SafeIds, new_key
from rekey.mapping.rows import MappingRows, TargetKey
from rekey.mapping.sealing import Sealer, new_data_key
from rekey.model import EntityKey, Row, key_of
from rekey.plan.advice.gather import Gatherer
from rekey.plan.collisions import CollisionSearch
from rekey.plan.packing import Packing
from rekey.plan.portrait import Portrayer
from rekey.plan.result import Collisions, Example, NewKey, RefusedRows
from rekey.plan.subject import PlanOptions, Subject
from rekey.tables.base import Operation, TableService, Verb

EXAMPLES = 5
FIRST_ROWS = 20
MEASURED_ROWS = 500


class Survey:
    """Takes source rows page by page (`take`) and keeps a plan's figures about them. A context manager.

    Attributes:
        labels: what the target tables are called, main first.
        together: the numbers of those that are one table; empty where there is no such.
        rows: source rows taken.
        refused_rows: rows taken that the mapping refuses.
        target_rows: rows for each target table.
        packing: counts the batches of the rows.
        gatherer: counts the facts that advice is judged from.
        portrayer: counts the figures that plots show.
    """

    def __init__(self, subject: Subject, mapper: Mapper, tables: TableService, options: PlanOptions) -> None:
        """Create a survey of no rows. `tables`: the account, to which no request is sent here.

        Raises MachineFailed when there is no place for temporary files.
        """
        migration = subject.declared.migration
        self.labels = mapper.labels
        self.rows = 0
        self.refused_rows = 0
        self.target_rows = [0] * len(mapper.tables)
        self.packing = Packing(len(mapper.tables), window_of(options.limits), mapper.together)
        self.gatherer = Gatherer(migration, mapper.map, is_cosmos=options.is_cosmos, prices=options.prices)
        self.portrayer = Portrayer(migration)
        self._mapper, self.together = mapper, mapper.together
        self._ids = subject.ids
        self._source = migration.source
        self._show_keys = options.show_keys
        self._size_of = [tables.table(name).encoded_size for name in mapper.tables]
        sealer = None
        if migration.is_sealed:
            sealer = Sealer()
            sealer.use(new_data_key("0000-00"))
        self._mapping_rows = MappingRows(
            subject.declared.script_id, migration.source, mapper.tables, SafeIds(new_key()), sealer
        )
        self._measured = self._mapping_bytes = 0
        self._examples: list[tuple[bytes, EntityKey, list[tuple[int, EntityKey]]]] = []
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
            page = rows[start : start + self.packing.page_rows]
            for row in page:
                key = key_of(row)
                try:
                    mapped = self._mapper.map(row)
                except RowRefused as refused:
                    self.refused_rows += 1
                    reason = refused.code, refused.field
                    refusal, count, first = self._refused.get(reason, (refused, 0, []))
                    self._refused[reason] = refusal, count + 1, first
                    if len(first) < FIRST_ROWS:
                        first.append(key)
                else:
                    self._take_mapped(row, key, mapped)
            if self.packing.open:
                self.packing.page(page)
        self.rows += len(rows)

    def _take_mapped(self, row: Row, key: EntityKey, mapped: Sequence[TargetRow]) -> None:
        self.gatherer.take(row, mapped)
        self.portrayer.take(row, mapped)
        raw = self._ids.raw(self._source, key)
        targets = [(number, key_of(target)) for number, target in mapped]
        for (number, target_key), (_, target) in zip(targets, mapped, strict=True):
            self._search.add(number, target_key, raw)
            self.target_rows[number] += 1
            if self.packing.open:
                size = self._size_of[number](Operation(Verb.INSERT, target))
                self.packing.target(number, target_key, size, key)
        if self._measured < MEASURED_ROWS:
            self._measure(key, targets)
        if self.packing.open:
            self.packing.mapping(raw, reverse=False)
            self.packing.mapping(self._ids.raw(self._mapper.tables[0], targets[0][1]), reverse=True)
        # The rows of lowest rank, a hash of the safe id: an even draw that needs no count beforehand and can
        # be repeated. Ranks are inverted because `heapreplace` removes the lowest.
        rank = bytes(255 - byte for byte in hashlib.blake2b(raw, digest_size=8).digest())
        if len(self._examples) < EXAMPLES:
            heapq.heappush(self._examples, (rank, key, targets))
        elif rank > self._examples[0][0]:
            heapq.heapreplace(self._examples, (rank, key, targets))

    def _measure(self, key: EntityKey, targets: Sequence[tuple[int, EntityKey]]) -> None:
        """Measure the forward and the reverse mapping row of one source row."""
        try:
            forward = self._mapping_rows.forward_row(key, [TargetKey(table, *to) for table, to in targets])
        except RowRefused:
            return
        self._measured += 1
        self._mapping_bytes += entity_bytes(forward)
        self._mapping_bytes += entity_bytes(self._mapping_rows.reverse_row(key, targets[0][1]))

    def finish(self, *, exact: bool) -> Collisions:
        """Return the collisions of all rows taken; `exact`: every row of the source was taken."""
        self.packing.end(whole=exact)
        return self._search.finish(self.labels, exact=exact)

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

    @property
    def examples(self) -> tuple[Example, ...]:
        """Return five rows drawn evenly from all mapped rows (fewer if there are fewer)."""
        return tuple(
            Example(
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
            for _, key, targets in sorted(self._examples)
        )
