"""Counting the batches that backfill will send, by backfill's own rules. Nothing is sent.

Rules kept here:

* What is full, what is held back for rows of later windows and for how long is decided by the very
  `BatchBuffer` that backfill uses; only sizes go in, no rows.
* Windows end where backfill's end: at a page's end, and pages are no larger than a window.
* Reading is ahead of writing as far as it may be: the first windows have all begun before the first target
  row goes out. From then on a window's target rows follow its mapping rows, which are durable when the next
  window has begun. At the end nothing is held back.
* Of a sample only the stretch from the table's beginning is packed; single pages would make batches look
  emptier than they get. Where that stretch is long enough, what is still held at its end is left out: rows
  that would have filled it were not read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from rekey.copy.batches import BatchBuffer, Partitions, sort_out
from rekey.copy.map import Write
from rekey.copy.scan import WindowSize, row_bytes
from rekey.copy.write import GATHERED_WINDOWS, MAPPING_WINDOWS, TARGET_WINDOWS
from rekey.mapping.ids import DIGEST_BYTES
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row
from rekey.tables.base import MAX_PAGE_ROWS, Operation, Verb

STEADY_WINDOWS = GATHERED_WINDOWS + 1
"""After so many windows what was sent tells how it goes on."""
_MAPPING_BYTES = 2_000
"""More than a mapping row nearly ever takes: a batch of them ends at 100 operations, not at 4 MiB."""


@dataclass(slots=True)
class Sends:
    """What is sent of one table's rows.

    Attributes:
        rows: rows in the batches.
        fills: how many batches have so many rows; one alone is a single insert.
        given: rows that were to be sent, those included that are still held.
        hottest: sum over windows of the rows of the window's largest partition.
    """

    rows: int = 0
    given: int = 0
    fills: Counter[int] = field(default_factory=Counter)
    hottest: int = 0


@dataclass(slots=True, kw_only=True)
class _Sized(Write):
    """A write of which only the size is known."""

    size: int


class _Sizes:
    """Stands for a table where only sizes are asked for."""

    @staticmethod
    def encoded_size(write: Operation) -> int:
        return cast(_Sized, write).size


@dataclass(slots=True)
class _Numbered:
    """Stands for a window."""

    number: int


class Packing:
    """Takes the rows of windows (`page`, then `target` and `mapping` for each) and counts batches."""

    def __init__(self, tables: int, window: WindowSize) -> None:
        """Take how many target tables there are, and when a window is full."""
        self._size = window
        self.page_rows = min(window.rows, MAX_PAGE_ROWS)
        self._mapping = BatchBuffer(cast(Any, _Sizes()), MAPPING_WINDOWS)
        self._targets = [BatchBuffer(cast(Any, _Sizes()), TARGET_WINDOWS) for _ in range(tables)]
        self.mapping_sends = Sends()
        self.sends = [Sends() for _ in range(tables)]
        self.open = True
        """Whether rows are still taken."""
        self._number = 1
        self._rows = self._bytes = 0
        self._fresh_mapping: list[Write] = []
        self._fresh_targets: list[list[Write]] = [[] for _ in range(tables)]
        self._waiting: list[list[list[Write]]] = []
        """Of the windows before: the rows of each target table, which their mapping rows go ahead of."""

    @property
    def steady(self) -> bool:
        """Tell whether enough windows were packed to say how it goes on."""
        return self._number > STEADY_WINDOWS

    def target(self, table: int, key: EntityKey, size: int) -> None:
        """Take one row of a target table, and the bytes it takes in a batch."""
        self._fresh_targets[table].append(self._write(key.partition, key.row, size))

    def mapping(self, digest: bytes, *, reverse: bool) -> None:
        """Take one mapping row, by the raw safe id that is its key."""
        partition = f"{'r' if reverse else 'f'}{digest[0] >> 3}"
        self._fresh_mapping.append(self._write(partition, digest[:DIGEST_BYTES].hex(), _MAPPING_BYTES))

    def page(self, rows: Sequence[Row]) -> None:
        """Take note that the rows of one page were given, at most `page_rows`."""
        self._rows += len(rows)
        self._bytes += sum(map(row_bytes, rows))
        if self._rows >= self._size.rows or self._bytes >= self._size.bytes:
            self._begin_window()
            self._number += 1

    def end(self, *, whole: bool) -> None:
        """End packing; `whole`: the table ends here, else the rows that follow are not known."""
        if not self.open:
            return
        self.open = False
        if not whole and self.steady:
            return
        if self._rows:
            self._begin_window()
        self._send(self.mapping_sends, self._mapping.release_all())
        for window in self._waiting:
            self._add_targets(window)
        for sends, held in zip(self.sends, self._targets, strict=True):
            self._send(sends, held.release_all())

    def _begin_window(self) -> None:
        """Do what is done when a window has been read: its mapping rows, the targets of the one before."""
        self._add(self.mapping_sends, self._mapping, self._fresh_mapping)
        self._send(self.mapping_sends, self._mapping.release(self._number))
        if self._number >= GATHERED_WINDOWS:
            for window in self._waiting:
                self._add_targets(window)
                for sends, held in zip(self.sends, self._targets, strict=True):
                    self._send(sends, held.release(self._number))
            self._waiting = []
        self._waiting.append(self._fresh_targets)
        self._fresh_mapping = []
        self._fresh_targets = [[] for _ in self._targets]
        self._rows = self._bytes = 0

    def _add_targets(self, window: Sequence[list[Write]]) -> None:
        for sends, held, writes in zip(self.sends, self._targets, window, strict=True):
            sends.given += len(writes)
            sends.hottest += self._add(sends, held, writes)

    def _add(self, sends: Sends, held: BatchBuffer, writes: list[Write]) -> int:
        """Pack writes; return how many are of the partition that has most of them."""
        partitions: Partitions = defaultdict(list)
        sort_out(writes, partitions)
        for partition, members in partitions.items():
            full, _ = held.add(partition, members)
            self._send(sends, full)
        return max(map(len, partitions.values()), default=0)

    @staticmethod
    def _send(sends: Sends, batches: Iterable[list[Write]]) -> None:
        for batch in batches:
            sends.rows += len(batch)
            sends.fills[len(batch)] += 1

    def _write(self, partition: str, row: str, size: int) -> Write:
        place: Row = {PARTITION_KEY: partition, ROW_KEY: row}
        window = cast(Any, _Numbered(self._number))
        return _Sized(Verb.INSERT, place, source=_NO_SOURCE, window=window, size=size)


_NO_SOURCE = EntityKey("", "")
