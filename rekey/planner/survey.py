"""Trying the mapping on source rows without writing: refusals, collisions, examples, fill of batches.

Rules kept here:

* Rows are mapped by the very `Mapper` that backfill uses and packed by its rules (one partition, 100
  operations, 4 MiB); windows end where backfill's end, at a page's end. So a whole read counts the batches
  that backfill will send.
* A sample packs only the stretch read from the table's beginning; single pages would make batches look
  emptier than they get.
* Constant memory: one window's partitions, a bounded tally, digests on disk.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from rekey.backfill.packing import SizeOf
from rekey.backfill.reading import row_bytes
from rekey.errors import RowRefused
from rekey.limits import utf16_units
from rekey.mapping.ids import SafeIds
from rekey.model import EntityKey, Row, key_of
from rekey.planner.collisions import CollisionSearch
from rekey.planner.result import Example, NewKey, RefusedRows
from rekey.tables.base import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, Operation, Verb

EXAMPLES = 5
FIRST_ROWS = 20
MAPPING_PARTITIONS = 32
TALLIED_PARTITIONS = 50_000

Witness: TypeAlias = Callable[[Row, Sequence[tuple[int, Row]]], None]
"""Is shown a source row and (table number, row) of each of its target rows."""


class MapsRows(Protocol):
    """What a plan needs of a `rekey.mapper.Mapper`."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the target tables, main first."""

    @property
    def reversible(self) -> bool:
        """Tell whether old keys can be found again from target rows."""

    def map(self, row: Row) -> Sequence[tuple[int, Row]]:
        """Return (table number, row) of every target row. Raises RowRefused."""


class PartitionTally:
    """Counts rows per partition in bounded memory (Misra and Gries, "Finding repeated elements", 1982).

    Exact while there are at most `capacity` partitions; beyond, `largest` is a lower bound.
    """

    def __init__(self, capacity: int = TALLIED_PARTITIONS) -> None:
        self._capacity = capacity
        self._counts: dict[str, int] = {}
        self._seen = 0
        self.exact = True

    def add(self, partition: str, rows: int) -> None:
        """Count rows of a partition."""
        if partition in self._counts:
            self._counts[partition] += rows
            return
        self._seen += 1
        self._counts[partition] = rows
        if len(self._counts) > self._capacity:
            self.exact = False
            # Taking the median from all drops half of them: each is paid for by rows counted before.
            less = sorted(self._counts.values())[len(self._counts) // 2]
            self._counts = {name: count - less for name, count in self._counts.items() if count > less}

    @property
    def partitions(self) -> int:
        """Return how many partitions were met; when not exact, how many there are at least."""
        return self._seen if self.exact else self._capacity

    @property
    def largest(self) -> int:
        """Return the rows of the largest partition."""
        return max(self._counts.values(), default=0)


@dataclass(slots=True)
class TablePacking:
    """What packing counted for one target table."""

    rows: int = 0
    batches: int = 0
    hottest: int = 0
    """Sum over windows of the rows of the window's largest partition."""
    tally: PartitionTally = field(default_factory=PartitionTally)


class _Window:
    """The partitions of one window: operations and bytes of the open batch, batches closed."""

    def __init__(self, tables: int) -> None:
        self.rows = 0
        self.bytes = 0
        self.open: list[dict[str, list[int]]] = [{} for _ in range(tables)]
        self.mapping = [0] * (2 * MAPPING_PARTITIONS)

    def add(self, table: int, partition: str, size: int) -> None:
        batch = self.open[table].get(partition)
        if batch is None:
            self.open[table][partition] = [1, size, 1, 1]
            return
        operations, held, batches, total = batch
        if operations == MAX_BATCH_OPERATIONS or held + size > MAX_BATCH_BYTES:
            operations, held, batches = 0, 0, batches + 1
        batch[:] = operations + 1, held + size, batches, total + 1


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
        window_rows: int,
        window_bytes: int,
        show_keys: bool = False,
        advance: Callable[[int], None] = lambda _rows: None,
        witness: Witness = lambda _row, _mapped: None,
    ) -> None:
        """Take the mapping, the safe ids, the source's name, and where target keys go.

        Args:
            size_of: for each target table, the bytes an operation takes in a batch to it.
            window_rows: rows of a window of backfill.
            window_bytes: bytes of one, whichever is reached first.
            show_keys: keep the keys of example rows and of refused rows in the result.
            advance: told the rows of every page.
            witness: shown every source row that could be mapped, with its target rows.
        """
        self._mapper = mapper
        self._ids = ids
        self._source = source
        self._search = search
        self._window_rows = window_rows
        self._window_bytes = window_bytes
        self._show_keys = show_keys
        self._advance = advance
        self._witness = witness
        self._size_of = size_of
        self._window = _Window(len(mapper.tables))
        self._packing_ended = False
        self._examples: list[tuple[bytes, EntityKey, tuple[tuple[int, EntityKey], ...]]] = []
        self._refused: dict[tuple[str, str], tuple[RowRefused, int, list[EntityKey]]] = {}
        self.rows = 0
        self.refused_rows = 0
        self.target_rows = [0] * len(mapper.tables)
        self.packed_rows = 0
        self.packing = [TablePacking() for _ in mapper.tables]
        self.mapping_batches = 0

    def take(self, rows: Sequence[Row], continues: bool) -> None:
        """Map the rows of one page; `continues`: they follow the page before without a gap."""
        if not continues and self.rows:
            self._end_packing()
        for row in rows:
            self._take_row(row)
        self.rows += len(rows)
        if not self._packing_ended:
            self.packed_rows += len(rows)
            self._window.rows += len(rows)
            self._window.bytes += sum(map(row_bytes, rows))
            if self._window.rows >= self._window_rows or self._window.bytes >= self._window_bytes:
                self._close_window()
        self._advance(len(rows))

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the target tables, main first."""
        return self._mapper.tables

    def finish(self) -> None:
        """Close the last window."""
        self._end_packing()

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
        for (number, target_key), target in targets.items():
            self._search.add(number, target_key, raw)
            self.target_rows[number] += 1
            if not self._packing_ended:
                size = self._size_of[number](Operation(Verb.INSERT, target))
                self._window.add(number, target_key.partition, size)
        if not self._packing_ended:
            owner = self._ids.raw(self._mapper.tables[0], key_of(mapped[0][1]))
            self._window.mapping[raw[0] >> 3] += 1
            self._window.mapping[MAPPING_PARTITIONS + (owner[0] >> 3)] += 1
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

    def _end_packing(self) -> None:
        if not self._packing_ended:
            self._close_window()
            self._packing_ended = True

    def _close_window(self) -> None:
        for packing, partitions in zip(self.packing, self._window.open, strict=True):
            hottest = 0
            for partition, (_, _, batches, total) in partitions.items():
                packing.rows += total
                packing.batches += batches
                packing.tally.add(partition, total)
                hottest = max(hottest, total)
            packing.hottest += hottest
        self.mapping_batches += sum(-(-count // MAX_BATCH_OPERATIONS) for count in self._window.mapping)
        self._window = _Window(len(self.packing))


def _inverted(rank: bytes) -> bytes:
    return bytes(255 - byte for byte in rank)
