"""Trying the mapping on source rows without writing: refusals, collisions, examples, fill of batches.

Rules kept here:

* Rows are mapped by the very `Mapper` that backfill uses and packed by its rules (`packing`).
* What mapping rows take is measured on the first rows, built and, if the mapping is sealed, sealed as
  backfill does; the key is made up and forgotten.
* Constant memory: a few windows' keys, bounded tallies, digests on disk.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from rekey.copy.batches import SizeOf
from rekey.copy.scan import WindowSize
from rekey.core.limits import entity_bytes, utf16_units
from rekey.errors import RowRefused
from rekey.inspect.tally import PartitionTally
from rekey.mapping.ids import SafeIds, new_key
from rekey.mapping.rows import MappingRows, TargetKey
from rekey.mapping.sealing import Sealer, new_data_key
from rekey.model import EntityKey, Row, key_of
from rekey.plan.collisions import CollisionSearch
from rekey.plan.packing import Packing
from rekey.plan.result import Example, NewKey, RefusedRows
from rekey.tables.base import Operation, Verb

EXAMPLES = 5
FIRST_ROWS = 20
MEASURED_ROWS = 500

Witness: TypeAlias = Callable[[Row, Sequence[tuple[int, Row]]], None]
"""Is shown a source row and (table number, row) of each of its target rows."""


class MapsRows(Protocol):
    """What a plan needs of a `rekey.declaration.mapper.Mapper`."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the target tables, main first."""

    @property
    def reversible(self) -> bool:
        """Tell whether old keys can be found again from target rows."""

    def map(self, row: Row) -> Sequence[tuple[int, Row]]:
        """Return (table number, row) of every target row. Raises RowRefused."""


class MappingSizes:
    """Measures what mapping rows take, on the first rows."""

    def __init__(self, script_id: str, source: str, tables: Sequence[str], *, sealed: bool) -> None:
        """Take what the rows are made of, and whether they are sealed."""
        sealer = None
        if sealed:
            sealer = Sealer()
            sealer.use(new_data_key("0000-00"))
        self._rows = MappingRows(script_id, source, tables, SafeIds(new_key()), sealer)
        self._measured = 0
        self._bytes = 0

    def take(self, key: EntityKey, targets: Iterable[tuple[int, EntityKey]]) -> None:
        """Measure the forward and the reverse row of one source row, unless enough were."""
        if self._measured == MEASURED_ROWS:
            return
        listed = [TargetKey(number, *target) for number, target in targets]
        try:
            forward = self._rows.forward_row(key, listed)
        except RowRefused:
            return
        self._measured += 1
        self._bytes += entity_bytes(forward) + entity_bytes(self._rows.reverse_row(key, listed[0].key))

    @property
    def mean(self) -> float:
        """Return the bytes that the service bills for the mapping rows of one source row; 0.0 without any."""
        return self._bytes / self._measured if self._measured else 0.0


class Survey:
    """Takes source rows page by page (`take`) and keeps what a plan says about them."""

    def __init__(
        self,
        mapper: MapsRows,
        ids: SafeIds,
        source: str,
        search: CollisionSearch,
        *,
        size_of: Sequence[SizeOf],
        window: WindowSize,
        mapping: MappingSizes,
        show_keys: bool = False,
        advance: Callable[[int], None] = lambda _rows: None,
        witness: Witness = lambda _row, _mapped: None,
    ) -> None:
        """Take the mapping, the safe ids, the source's name, and where target keys go.

        Args:
            size_of: for each target table, the bytes an operation takes in a batch to it.
            window: when a window of backfill is full.
            mapping: measures mapping rows.
            show_keys: keep the keys of example rows and of refused rows in the result.
            advance: told the rows of every page.
            witness: shown every source row that could be mapped, with its target rows.
        """
        self._mapper = mapper
        self._ids = ids
        self._source = source
        self._search = search
        self._show_keys = show_keys
        self._advance = advance
        self._witness = witness
        self._size_of = size_of
        self.mapping = mapping
        self.packing = Packing(len(mapper.tables), window)
        self.partitions = [PartitionTally() for _ in mapper.tables]
        self._examples: list[tuple[bytes, EntityKey, tuple[tuple[int, EntityKey], ...]]] = []
        self._refused: dict[tuple[str, str], tuple[RowRefused, int, list[EntityKey]]] = {}
        self.rows = 0
        self.refused_rows = 0
        self.target_rows = [0] * len(mapper.tables)

    def take(self, rows: Sequence[Row], continues: bool) -> None:
        """Map the rows of one page; `continues`: they follow the page before without a gap."""
        if not continues and self.rows:
            self.packing.end(whole=False)
        for start in range(0, len(rows), self.packing.page_rows):
            page = rows[start : start + self.packing.page_rows]
            for row in page:
                self._take_row(row)
            if self.packing.open:
                self.packing.page(page)
        self.rows += len(rows)
        self._advance(len(rows))

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the target tables, main first."""
        return self._mapper.tables

    def finish(self, *, whole: bool) -> None:
        """End; `whole`: the rows taken are all there are."""
        self.packing.end(whole=whole)

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
        """Return five rows drawn evenly from all that were mapped (fewer if there are fewer)."""
        return tuple(self._example(key, targets) for _, key, targets in sorted(self._examples))

    def _take_row(self, row: Row) -> None:
        key = key_of(row)
        raw = self._ids.raw(self._source, key)
        try:
            mapped = self._mapper.map(row)
        except RowRefused as refused:
            self._note_refusal(refused, key)
            return
        self._witness(row, mapped)
        targets = {(number, key_of(target)): target for number, target in mapped}
        packing = self.packing if self.packing.open else None
        for (number, target_key), target in targets.items():
            self._search.add(number, target_key, raw)
            self.target_rows[number] += 1
            self.partitions[number].add(target_key.partition, 1)
            if packing is not None:
                packing.target(number, target_key, self._size_of[number](Operation(Verb.INSERT, target)))
        self.mapping.take(key, targets)
        if packing is not None:
            packing.mapping(raw, reverse=False)
            packing.mapping(self._ids.raw(self._mapper.tables[0], key_of(mapped[0][1])), reverse=True)
        self._draw(raw, key, tuple(targets))

    def _note_refusal(self, refused: RowRefused, key: EntityKey) -> None:
        self.refused_rows += 1
        reason = refused.code, refused.field
        refusal, count, first = self._refused.get(reason, (refused, 0, []))
        if len(first) < FIRST_ROWS:
            first.append(key)
        self._refused[reason] = refusal, count + 1, first

    def _draw(self, raw: bytes, key: EntityKey, targets: tuple[tuple[int, EntityKey], ...]) -> None:
        # The lowest of evenly spread ranks: a fair draw that needs no count beforehand and can be repeated.
        rank = hashlib.blake2b(raw, digest_size=8).digest()
        if len(self._examples) < EXAMPLES:
            heapq.heappush(self._examples, (_inverted(rank), key, targets))
        elif _inverted(rank) > self._examples[0][0]:
            heapq.heapreplace(self._examples, (_inverted(rank), key, targets))

    def _example(self, key: EntityKey, targets: tuple[tuple[int, EntityKey], ...]) -> Example:
        return Example(
            row_id=self._ids.short(self._source, key),
            new_keys=tuple(
                NewKey(
                    table=self._mapper.tables[number],
                    row_id=self._ids.short(self._mapper.tables[number], target),
                    partition_units=utf16_units(target.partition),
                    row_units=utf16_units(target.row),
                    new_key=target if self._show_keys else None,
                )
                for number, target in targets
            ),
            old_key=key if self._show_keys else None,
        )


def _inverted(rank: bytes) -> bytes:
    return bytes(255 - byte for byte in rank)
