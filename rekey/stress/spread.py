"""Distribution of rows over partitions: a table's shares, and generated partitions with them. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count

from rekey.core.limits import ACCOUNT_TARGET, PARTITION_TARGET

MOST_PARTITIONS = 50_000
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class Spread:
    """Shares of partitions."""

    # The table or file that has them; "" for a single partition.
    table: str
    # Rows of each partition, in the order in which they were met, so that neighbors stay neighbors.
    counts: tuple[int, ...]
    # Further partitions, counted as one row each to limit memory.
    others: int = 0

    @property
    def name(self) -> str:
        return self.table or "one partition"

    @property
    def rows(self) -> int:
        return sum(self.counts) + self.others

    @property
    def partitions(self) -> int:
        return len(self.counts) + self.others

    @property
    def largest_share(self) -> float:
        """The largest partition's share of rows, 0.0 without rows."""
        return max(self.counts, default=1) / self.rows if self.rows else 0.0

    @property
    def expected(self) -> float:
        """The rows per second that the service's targets for account and largest partition allow."""
        return min(ACCOUNT_TARGET, PARTITION_TARGET / self.largest_share) if self.rows else 0.0

    def folded(self, most: int) -> Spread:
        """Return the shares of at most `most` partitions: neighbors are merged, equally many at a time."""
        counts = (*self.counts, *(1,) * self.others)
        size = math.ceil(len(counts) / most)
        return Spread(self.table, tuple(sum(counts[at : at + size]) for at in range(0, len(counts), size)))


# Everything in one partition.
ONE_PARTITION = Spread("", (1,))


class SpreadCount:
    """Counts rows by partition."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._counts: dict[str, int] = {}
        self._others = 0

    def add(self, partition: str) -> None:
        if partition in self._counts or len(self._counts) < MOST_PARTITIONS:
            self._counts[partition] = self._counts.get(partition, 0) + 1
        else:
            self._others += 1

    @property
    def spread(self) -> Spread:
        return Spread(self.table, tuple(self._counts.values()), self._others)


def turns(spread: Spread) -> Iterator[int]:
    """Yield numbers of partitions, from 0, so that each gets its share in every stretch, by fractional
    parts of multiples of the golden ratio: results do not depend on a random draw. Raises ValueError
    without rows."""
    ends, rows = list(accumulate(spread.counts)), spread.rows
    if not rows:
        raise ValueError("there are no rows to take shares from")
    for turn in count(1):
        place = math.floor(turn * _GOLDEN % 1.0 * rows)
        yield bisect_right(ends, place) if ends and place < ends[-1] else place
