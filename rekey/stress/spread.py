"""How rows spread over partitions: shares of a table, and rows made up so that they have the same. Pure.

Rules kept here:

* Nothing of an application's row is kept but how many rows its partition had: keys and values are made up.
* Made-up partitions stand in the order in which the real ones were met, so that neighbours stay neighbours.
* Which partition is next is decided by a sequence that gives each its share in every stretch (the fractional
  parts of multiples of the golden ratio), not by lot: a limit that is found does not depend on a draw.
* Memory is bounded: beyond `MOST_PARTITIONS` further ones are taken to have one row each.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from rekey.core.limits import ACCOUNT_TARGET, PARTITION_TARGET

MOST_PARTITIONS = 50_000
ROW_BYTES = 1024
"""The service's targets are stated for rows of this size."""
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class Spread:
    """Shares of partitions.

    Attributes:
        table: whose they are; "" for a single partition.
        counts: rows met of each partition, in the order in which the partitions were met.
        others: rows met of partitions beyond these; one row each.
    """

    table: str
    counts: tuple[int, ...]
    others: int = 0

    @property
    def name(self) -> str:
        """Return what a stage with these shares is called."""
        return self.table or "one partition"

    @property
    def rows(self) -> int:
        """Return the rows that the shares rest on."""
        return sum(self.counts) + self.others

    @property
    def partitions(self) -> int:
        """Return how many partitions were met."""
        return len(self.counts) + self.others

    @property
    def largest_share(self) -> float:
        """Return the largest partition's share of rows, 0.0 without rows."""
        return max(self.counts, default=1) / self.rows if self.rows else 0.0

    @property
    def expected(self) -> float:
        """Return the rows a second that the service's targets allow: of the account, and of the largest."""
        return min(ACCOUNT_TARGET, PARTITION_TARGET / self.largest_share) if self.rows else 0.0

    def folded(self, most: int) -> Spread:
        """Return it with at most so many partitions: neighbours are put together, as evenly as can be."""
        counts = (*self.counts, *(1,) * self.others)
        size = math.ceil(len(counts) / most)
        return Spread(self.table, tuple(sum(counts[at : at + size]) for at in range(0, len(counts), size)))


class SpreadCount:
    """Counts rows by partition."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._counts: dict[str, int] = {}
        self._others = 0

    def add(self, partition: str) -> None:
        """Count a row."""
        if partition in self._counts or len(self._counts) < MOST_PARTITIONS:
            self._counts[partition] = self._counts.get(partition, 0) + 1
        else:
            self._others += 1

    @property
    def spread(self) -> Spread:
        """Return the shares."""
        return Spread(self.table, tuple(self._counts.values()), self._others)


ONE_PARTITION = Spread("", (1,))
"""Everything in one partition."""


class Turns:
    """Partitions, each when it is its turn."""

    def __init__(self, spread: Spread) -> None:
        """Take the shares. Raises ValueError without any."""
        if not spread.rows:
            raise ValueError("there are no rows to take shares from")
        self._ends = list(accumulate(spread.counts))
        self._rows = spread.rows
        self._turn = 0

    def next(self) -> int:
        """Return the number of the partition whose turn it is, from 0."""
        self._turn += 1
        place = math.floor(self._turn * _GOLDEN % 1.0 * self._rows)
        return bisect_right(self._ends, place) if self._ends and place < self._ends[-1] else place


class MadeUp:
    """Rows made up for a test table, each in the partition whose turn it is."""

    def __init__(self, spread: Spread, stage: int) -> None:
        """Take the shares, and a number that keeps partitions of several stages apart. Raises ValueError."""
        self._turns = Turns(spread)
        self._stage = stage
        self._made = 0

    def take(self, count: int) -> tuple[str, int]:
        """Return where so many new rows go: their PartitionKey, and the number of the first."""
        first, self._made = self._made, self._made + count
        return partition_key(self._stage, self._turns.next()), first


def partition_key(stage: int, place: int) -> str:
    """Return the PartitionKey of a made-up partition: of a stage of the test, by its number."""
    return f"{stage}.{place:07d}"


def place_of(partition: str) -> int:
    """Return the number of a made-up partition, from 0."""
    return int(partition.partition(".")[2])


def row_key(number: int) -> str:
    """Return the RowKey of a made-up row."""
    return f"{number:010d}"


def filling(row_bytes: int = ROW_BYTES) -> str:
    """Return the value that makes a row so large, in bytes.

    Text takes two bytes a character where it is stored; keys and names take the rest.
    """
    return "x" * ((row_bytes - 64) // 2)
