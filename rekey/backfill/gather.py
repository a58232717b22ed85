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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rekey.backfill.packing import cut, in_order
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey
from rekey.tables.base import MAX_BATCH_OPERATIONS, Operation, Table

if TYPE_CHECKING:
    from rekey.backfill.copier import CopyWindow


@dataclass(slots=True, kw_only=True)
class Write(Operation):
    """An insert on behalf of a source row, read in a window."""

    source: EntityKey = field(repr=False)
    window: CopyWindow = field(repr=False)


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

    def add(self, writes: Iterable[Write]) -> tuple[list[list[Write]], list[Write]]:
        """Take writes; return batches that are full now, and writes whose key is held already."""
        partitions: defaultdict[str, list[Write]] = defaultdict(list)
        for write in writes:
            partitions[write.row[PARTITION_KEY]].append(write)
        full: list[list[Write]] = []
        twice: list[Write] = []
        for partition, members in partitions.items():
            held = self._held.pop(partition, [])
            if held:
                known = {write.row[ROW_KEY] for write in held}
                twice += [write for write in members if write.row[ROW_KEY] in known]
                members = [write for write in members if write.row[ROW_KEY] not in known]
            batches = list(cut(held + in_order(members), self.table.encoded_size))
            if len(batches[-1]) < MAX_BATCH_OPERATIONS:
                self._held[partition] = batches.pop()
            full += batches
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
