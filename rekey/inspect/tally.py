"""Counting rows of partitions in bounded memory. Pure.

Rules kept here:

* The largest partitions are counted by Misra and Gries ("Finding repeated elements", 1982): exact while there
  are few partitions, a lower bound beyond.
* How many partitions are of which size is told by those whose CRC-32 falls into a share of all: such a
  partition is counted whole or not at all, so the share tells of the others.
* Counts name partitions by their keys; they stay in memory.
"""

from __future__ import annotations

import zlib

from rekey.inspect.partitions import class_names, size_class

TALLIED_PARTITIONS = 50_000
SIZED_PARTITIONS = 20_000


class PartitionTally:
    """Counts rows per partition.

    Exact while there are at most `capacity` partitions; beyond, `largest` is a lower bound.
    """

    def __init__(self, capacity: int = TALLIED_PARTITIONS) -> None:
        """Take how many partitions are kept."""
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

    def top(self, number: int) -> list[tuple[str, int]]:
        """Return the largest partitions with their rows, the largest first."""
        return sorted(self._counts.items(), key=lambda one: (-one[1], one[0]))[:number]


class PartitionSizes:
    """Tells how many partitions are of which size."""

    def __init__(self, capacity: int = SIZED_PARTITIONS) -> None:
        """Take how many partitions are kept."""
        self._capacity = capacity
        self._counts: dict[str, int] = {}
        self._mask = 0

    def add(self, partition: str) -> None:
        """Count one row."""
        if self._mask and _rank(partition) & self._mask:
            return
        self._counts[partition] = self._counts.get(partition, 0) + 1
        while len(self._counts) > self._capacity:
            self._mask = 2 * self._mask + 1
            self._counts = {name: rows for name, rows in self._counts.items() if not _rank(name) & self._mask}

    @property
    def by_class(self) -> dict[str, int]:
        """Return how many partitions there are of each size class, all classes up to the largest in use."""
        names = class_names()
        counted = [0] * len(names)
        for rows in self._counts.values():
            counted[size_class(rows)] += self._mask + 1
        used = max((number for number, count in enumerate(counted) if count), default=-1)
        return dict(zip(names[: used + 1], counted[: used + 1], strict=True))


def _rank(partition: str) -> int:
    return zlib.crc32(partition.encode("utf-8", "surrogatepass"))
