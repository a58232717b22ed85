"""Counting the batches that backfill will send, by backfill's own rules. Nothing is sent.

Rules kept here:

* The same `BatchBuffer` that backfill uses decides which batches are full, which rows are held back for rows
  of later windows, and for how long; only sizes go in, no rows.
* Windows end where backfill's end: at a page's end, and pages are no larger than a window.
* Reading is assumed as far ahead of writing as it may be: the first windows have all begun before the first
  target row is sent. From then on a window's target rows follow its mapping rows, which are durable when the
  next window has begun. At the end nothing is held back.
* Of a sample only the stretch from the table's beginning is packed; single pages would make batches look
  emptier than they get. Where that stretch is long enough, rows still held at its end are left out: rows that
  would have filled their batches were not read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, cast

from rekey.copy.batches import BatchBuffer, Partitions, sort_out
from rekey.copy.map import Write
from rekey.copy.scan import WindowSize, row_bytes
from rekey.copy.write import GATHERED_WINDOWS, MAPPING_WINDOWS, TARGET_WINDOWS
from rekey.mapping.ids import DIGEST_BYTES
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row
from rekey.tables.base import MAX_PAGE_ROWS, Verb

STEADY_WINDOWS = GATHERED_WINDOWS + 1
"""After so many windows the batches counted are typical of the rest of the table."""
_MAPPING_BYTES = 2_000
"""Assumed size; a mapping row is nearly always smaller: its batches end at 100 operations, not at 4 MiB."""


@dataclass(slots=True, kw_only=True)
class _Sized(Write):
    """A write of which only the size is known."""

    size: int


_SIZES = SimpleNamespace(encoded_size=attrgetter("size"))
"""Replaces the table of a `BatchBuffer`, which asks it for sizes only."""
_NO_SOURCE = EntityKey("", "")


class Sends:
    """The batches of one table, counted.

    Attributes:
        rows: rows in the batches.
        fills: number of batches by the rows in a batch; a batch of one row is a single insert.
        given: rows that were added, including those still held.
        hottest: sum over windows of the rows of the window's largest partition.
    """

    def __init__(self, windows: int, numbers: Collection[int] = ()) -> None:
        """Create an empty count.

        Args:
            windows: how many windows rows may wait for others of their partition.
            numbers: the target tables whose rows are counted.
        """
        self.rows = self.given = self.hottest = 0
        self.fills: Counter[int] = Counter()
        self._held = BatchBuffer(cast(Any, _SIZES), windows, numbers)

    def add(self, writes: Sequence[Write]) -> None:
        """Pack the writes of one window; rows that fill no batch are held."""
        partitions: Partitions = defaultdict(list)
        sort_out(writes, partitions)
        for partition, members in partitions.items():
            full, _ = self._held.add(partition, members)
            self._send(full)
        self.given += len(writes)
        self.hottest += max(map(len, partitions.values()), default=0)

    def release(self, newest: int | None = None) -> None:
        """Count as sent the rows held long enough when window `newest` begins; None: all rows held."""
        self._send(self._held.release_all() if newest is None else self._held.release(newest))

    def _send(self, batches: Iterable[list[Write]]) -> None:
        for batch in batches:
            self.rows += len(batch)
            self.fills[len(batch)] += 1


class Packing:
    """Takes the rows of windows (`target` and `mapping` for each, then `page`) and counts batches."""

    def __init__(self, tables: int, window: WindowSize, together: Collection[int] = ()) -> None:
        """Create empty counts for so many targets; `window` says when a window is full, `together` which
        targets share the main target's table."""
        self.page_rows = min(window.rows, MAX_PAGE_ROWS)
        self.mapping_sends = Sends(MAPPING_WINDOWS)
        self.sends = [Sends(TARGET_WINDOWS, () if number else together) for number in range(tables)]
        """For each target table; what is one table is sent with the first."""
        self.open = True
        """Whether rows are still taken."""
        self._size = window
        self._together = together
        self._waiting: list[list[list[Write]]] = []
        """Target rows of earlier windows, by target table: sent after the mapping rows of their window."""
        self._number = 0
        self._open_window()

    def _open_window(self) -> None:
        self._number += 1
        self._window = cast(Any, SimpleNamespace(number=self._number))
        self._rows = self._bytes = 0
        self._mapping: list[Write] = []
        self._targets: list[list[Write]] = [[] for _ in self.sends]

    @property
    def steady(self) -> bool:
        """Tell whether enough windows were packed to be typical of the rest of the table."""
        return self._number > STEADY_WINDOWS

    def target(self, table: int, key: EntityKey, size: int, source: EntityKey = _NO_SOURCE) -> None:
        """Take one row of a target, the bytes it takes in a batch, and the source key it comes from."""
        number = 0 if table in self._together else table
        self._targets[number].append(self._write(key.partition, key.row, size, source))

    def mapping(self, digest: bytes, *, reverse: bool) -> None:
        """Take one mapping row, by the raw safe id that is its key."""
        partition = f"{'r' if reverse else 'f'}{digest[0] >> 3}"
        self._mapping.append(self._write(partition, digest[:DIGEST_BYTES].hex(), _MAPPING_BYTES))

    def page(self, rows: Sequence[Row]) -> None:
        """End a page of source rows, at most `page_rows`, and its window when that is full."""
        self._rows += len(rows)
        self._bytes += sum(map(row_bytes, rows))
        if self._rows >= self._size.rows or self._bytes >= self._size.bytes:
            self._end_window()
            self._open_window()

    def end(self, *, whole: bool) -> None:
        """End packing; `whole`: the table ends here, else the rows that follow are not known."""
        if not self.open:
            return
        self.open = False
        if not whole and self.steady:
            return
        if self._rows:
            self._end_window()
        self.mapping_sends.release()
        for window in self._waiting:
            for sends, writes in zip(self.sends, window, strict=True):
                sends.add(writes)
        for sends in self.sends:
            sends.release()

    def _end_window(self) -> None:
        """Pack a window that has been read: its mapping rows, then target rows of the windows before it."""
        self.mapping_sends.add(self._mapping)
        self.mapping_sends.release(self._number)
        if self._number >= GATHERED_WINDOWS:
            for window in self._waiting:
                for sends, writes in zip(self.sends, window, strict=True):
                    sends.add(writes)
                    sends.release(self._number)
            self._waiting = []
        self._waiting.append(self._targets)

    def _write(self, partition: str, row: str, size: int, source: EntityKey = _NO_SOURCE) -> Write:
        place: Row = {PARTITION_KEY: partition, ROW_KEY: row}
        return _Sized(Verb.INSERT, place, source=source, window=self._window, size=size)
