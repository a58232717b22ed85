"""Gathering inserts until a batch of their partition is full, across the windows they were read in.

Rules kept here:

* What fills no batch is held back for a few windows, then written all the same: a rare partition must not
  keep checkpoints behind it for ever.
* Memory holds what those windows left over, no more.
* No key stands twice in a batch. Two rows that want one key are no business of packing: the later one is
  given back, and propagate decides.
* New rows are sorted before they are cut, so that the keys of a batch lie close together and a conflict
  costs one range query.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from rekey.copy.packing import cut, in_order
from rekey.copy.window import CopyWindow
from rekey.model import ROW_KEY, EntityKey
from rekey.tables.base import MAX_BATCH_OPERATIONS, Operation, Table


@dataclass(slots=True, kw_only=True)
class Write(Operation):
    """An insert on behalf of a source row, read in a window."""

    source: EntityKey = field(repr=False)
    window: CopyWindow = field(repr=False)


Partitions = defaultdict[str, list[Write]]


class Held:
    """What is held back of one table.

    Args:
        table: where it will be written.
        windows: for how many windows.
    """

    def __init__(self, table: Table, windows: int) -> None:
        self.table = table
        self._windows = windows
        self._held: dict[str, list[Write]] = {}

    def add(self, partition: str, members: list[Write]) -> tuple[list[list[Write]], list[Write]]:
        """Take writes of a partition; return batches full now, and writes whose key is held already."""
        held = self._held.pop(partition, [])
        twice: list[Write] = []
        if held:
            known = {write.row[ROW_KEY] for write in held}
            twice = [write for write in members if write.row[ROW_KEY] in known]
            members = [write for write in members if write.row[ROW_KEY] not in known]
        full = list(cut(held + in_order(members), self.table.encoded_size))
        if len(full[-1]) < MAX_BATCH_OPERATIONS:
            self._held[partition] = full.pop()
        return full, twice

    def release(self, newest: int) -> Iterator[list[Write]]:
        """Yield the batches in which something has been held long enough when window `newest` begins."""
        # Windows may overtake each other on their way here, so the first write held need not be the oldest.
        limit = newest - self._windows
        due = [
            name
            for name, writes in self._held.items()
            if min([write.window.number for write in writes]) <= limit
        ]
        for name in due:
            yield self._held.pop(name)

    def release_all(self) -> Iterator[list[Write]]:
        """Yield everything."""
        held, self._held = self._held, {}
        yield from held.values()
