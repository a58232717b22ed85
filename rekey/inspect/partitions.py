"""Sizes of partitions, from rows in key order. Pure.

Rules kept here:

* Rows of one partition stand together, so a run that begins and ends within what was read is a whole
  partition. A run that is cut off is counted with what was seen of it, and said to be cut off.
* Of a sample, partitions are counted by how often one ends within what was read.
* Memory: the largest few, counters by size class, and the runs at the ends of what was read.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

LARGEST = 10
CLASSES = (1, 9, 99, 999, 9_999, 99_999, 999_999)
"""Upper bounds of the size classes, in rows; the last class is open."""


@dataclass(frozen=True, slots=True)
class Large:
    """A large partition: its key, its rows seen, whether all of it was seen."""

    partition: str
    rows: int
    whole: bool


def size_class(rows: int) -> int:
    """Return the number of the size class."""
    return next((number for number, upto in enumerate(CLASSES) if rows <= upto), len(CLASSES))


def class_names() -> list[str]:
    """Return the size classes for people: `1`, `2 to 9`, ..., `1,000,000 and more`."""
    lower = [1, *(upto + 1 for upto in CLASSES)]
    names = [
        f"{low:,}" if low == high else f"{low:,} to {high:,}"
        for low, high in zip(lower, CLASSES, strict=False)
    ]
    return [*names, f"{lower[-1]:,} and more"]


class PartitionRuns:
    """Takes PartitionKeys of rows in key order, with `cut` wherever rows were left out."""

    def __init__(self) -> None:
        self.rows = 0
        self.ends = 0
        """How often a partition was seen to end because another one follows."""
        self.sizes = [0] * (len(CLASSES) + 1)
        """Whole partitions by size class."""
        self._partition: str | None = None
        self._run = 0
        self._behind: str | None = None
        self._from_start = True
        self._largest: list[tuple[int, str]] = []
        self._ends: dict[str, int] = {}

    def add(self, partitions: Sequence[str]) -> list[str]:
        """Count rows that follow those before without a gap; return the partitions met newly here."""
        self.rows += len(partitions)
        new = []
        for partition in partitions:
            if partition != self._partition:
                if self._partition is not None:
                    self._close(whole=self._from_start)
                    self.ends += 1
                    self._from_start = True
                elif partition != self._behind:
                    # Reading began before this partition, so its first row is there.
                    self._from_start = True
                self._partition = partition
                new.append(partition)
            self._run += 1
        return new

    def cut(self, behind: str) -> None:
        """Take note that rows were left out, and that the next ones begin somewhere behind a PartitionKey."""
        if self._partition is not None:
            self._close(whole=False)
        self._partition = None
        self._behind = behind
        self._from_start = False

    def finish(self) -> None:
        """Take note that the table ends behind the rows before."""
        if self._partition is not None:
            self._close(whole=self._from_start)
        self._partition = None

    @property
    def whole(self) -> int:
        """Return how many partitions were seen from beginning to end."""
        return sum(self.sizes)

    @property
    def largest(self) -> list[Large]:
        """Return the largest partitions seen, the largest first."""
        seen = [Large(partition, rows, True) for rows, partition in self._largest]
        seen += [Large(partition, rows, False) for partition, rows in self._ends.items()]
        return sorted(seen, key=lambda one: (-one.rows, one.partition))[:LARGEST]

    def _close(self, *, whole: bool) -> None:
        rows, partition = self._run, self._partition or ""
        self._run = 0
        if not whole:
            # The same partition may be met again behind a gap.
            self._ends[partition] = self._ends.get(partition, 0) + rows
            return
        self.sizes[size_class(rows)] += 1
        if len(self._largest) < LARGEST:
            heapq.heappush(self._largest, (rows, partition))
        elif rows > self._largest[0][0]:
            heapq.heapreplace(self._largest, (rows, partition))
