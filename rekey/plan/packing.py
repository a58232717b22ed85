"""Counts the batches that backfill will send, by its own rules (`rekey.copy.batches`); nothing is sent. Rows
are counted, not kept. Reading is assumed to be as far ahead of writing as it may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekey.copy.scan import WindowSize
from rekey.copy.write import GATHERED_WINDOWS, MAPPING_WINDOWS, TARGET_WINDOWS
from rekey.tables.base import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, MAX_PAGE_ROWS

# After so many windows the batches counted are typical of the rest of the table.
STEADY_WINDOWS = GATHERED_WINDOWS + 1


@dataclass(frozen=True, slots=True)
class Filled:
    """The rows that one page of source rows gives one table."""

    # Their number by partition.
    partitions: Mapping[Any, int]
    # Mean bytes of a row in a batch.
    row_bytes: float = 0.0
    # Mean number of rows of one source row that go in one batch.
    unit: float = 1.0

    @property
    def rows(self) -> int:
        """The number of all rows."""
        return sum(self.partitions.values())


class Sends:
    """The batches of one table, counted."""

    def __init__(self, windows: int) -> None:
        """`windows`: how many windows rows may wait for others of their partition."""
        # Rows, including those that still wait.
        self.added = 0
        # Number of batches by the rows in a batch; a batch of one row is a single insert.
        self.fills: Counter[int] = Counter()
        self._windows = windows
        # By partition, the rows of a batch that is not full, and the window of the first of them.
        self._partial: dict[Any, tuple[int, int]] = {}

    def add(self, window: int, pages: Sequence[Filled]) -> None:
        """Pack the rows of one window; rows that fill no batch wait for more."""
        most, partitions = _full_batch(pages), Counter[Any]()
        for page in pages:
            partitions.update(page.partitions)
        for partition, more in partitions.items():
            waiting, since = self._partial.pop(partition, (0, window))
            full, rest = divmod(waiting + more, most)
            if not rest and most < MAX_BATCH_OPERATIONS:
                full, rest = full - 1, most  # one more row may be small enough to fit in
            if full:
                self.fills[most] += full
            if rest:
                self._partial[partition] = rest, window if full else since
        self.added += partitions.total()

    def release(self, newest: int | None = None) -> None:
        """Count as sent the rows that have waited long enough when window `newest` begins; None: all rows."""
        limit = None if newest is None else newest - self._windows
        due = [name for name, (_, since) in self._partial.items() if limit is None or since <= limit]
        for name in due:
            self.fills[self._partial.pop(name)[0]] += 1


def _full_batch(pages: Sequence[Filled]) -> int:
    """Return the rows of a full batch of a window's rows, page by page."""
    rows = sum(page.rows for page in pages)
    size = sum(page.rows * page.row_bytes for page in pages)
    units = sum(page.rows / page.unit for page in pages)
    most = min(MAX_BATCH_OPERATIONS, MAX_BATCH_BYTES * rows // size) if size else MAX_BATCH_OPERATIONS
    unit = rows / units if units else 1.0
    return max(1, round(most // unit * unit))


class Packing:
    """Takes what pages of source rows give each table (`page`) and counts batches."""

    def __init__(self, tables: int, window: WindowSize, co_located: Collection[int] = ()) -> None:
        """`window` says when a window is full, `co_located` which targets share the main target's table."""
        self.page_rows = min(window.rows, MAX_PAGE_ROWS)
        self.mapping_sends = Sends(MAPPING_WINDOWS)
        # For each target table; rows that share the main target's table are sent with it.
        self.sends = [Sends(TARGET_WINDOWS) for _ in range(tables)]
        # Whether rows are still taken.
        self.open = True
        self._size = window
        self._co_located = co_located
        # Earlier windows with their target rows by target table: sent after the mapping rows of their window
        # are durable.
        self._waiting: list[tuple[int, list[list[Filled]]]] = []
        self._number = 0
        self._open_window()

    def _open_window(self) -> None:
        self._number += 1
        self._rows = self._bytes = 0
        self._mapping: list[Filled] = []
        self._targets: list[list[Filled]] = [[] for _ in self.sends]

    @property
    def steady(self) -> bool:
        """Whether enough windows were packed to be typical of the rest of the table."""
        return self._number > STEADY_WINDOWS

    def page(self, rows: int, wire_bytes: int, targets: Sequence[Filled], mapping: Filled) -> None:
        """Take one page, and end its window when that is full.

        Args:
            rows: its source rows, at most `page_rows`.
            wire_bytes: their bytes, as `rekey.copy.scan.row_bytes` counts them.
            targets: what it gives each target table.
            mapping: what it gives the mapping table.
        """
        for table, filled in enumerate(targets):
            self._targets[0 if table in self._co_located else table].append(filled)
        self._mapping.append(mapping)
        self._rows += rows
        self._bytes += wire_bytes
        if self._rows >= self._size.rows or self._bytes >= self._size.bytes:
            self._end_window()
            self._open_window()

    def end(self, *, whole: bool) -> None:
        """End packing; `whole`: the table ends here, else the rows that follow are not known."""
        if not self.open:
            return
        self.open = False
        # Rows that still wait are left out: the rows that would have filled their batches were not read.
        if not whole and self.steady:
            return
        if self._rows:
            self._end_window()
        self._send_waiting()
        for sends in (self.mapping_sends, *self.sends):
            sends.release()

    def _end_window(self) -> None:
        """Pack a window that has been read: its mapping rows, then target rows of the windows before it."""
        self.mapping_sends.add(self._number, self._mapping)
        self.mapping_sends.release(self._number)
        if self._number >= GATHERED_WINDOWS:
            self._send_waiting(self._number)
        self._waiting.append((self._number, self._targets))

    def _send_waiting(self, newest: int | None = None) -> None:
        """Pack the target rows that wait; with `newest`, also count what has waited long enough."""
        for number, targets in self._waiting:
            for sends, rows in zip(self.sends, targets, strict=True):
                sends.add(number, rows)
                if newest is not None:
                    sends.release(newest)
        self._waiting = []
