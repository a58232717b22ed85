"""Distribution of rows over partitions: shares of a table, and made-up partitions with the same shares. Pure.

Rules kept here:

* Of an application's row only its partition is counted: keys and values are made up.
* Made-up partitions stand in the order in which the real ones were met, so that neighbours stay neighbours.
* Which partition is next is decided by a sequence that gives each its share in every stretch (the fractional
  parts of multiples of the golden ratio), not by lot: a limit that is found does not depend on a draw.
* Memory is bounded: beyond `MOST_PARTITIONS` further ones are taken to have one row each.
"""

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
    """Shares of partitions.

    Attributes:
        table: the table or file that has them; "" for a single partition.
        counts: rows of each partition, in the order in which the partitions were met.
        others: rows of partitions beyond these; one row each.
    """

    table: str
    counts: tuple[int, ...]
    others: int = 0

    @property
    def name(self) -> str:
        """Return the name of a stage with these shares."""
        return self.table or "one partition"

    @property
    def rows(self) -> int:
        """Return the rows from which the shares were counted."""
        return sum(self.counts) + self.others

    @property
    def partitions(self) -> int:
        """Return the number of partitions."""
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
        """Return the shares of at most `most` partitions: neighbours are merged, equally many at a time."""
        counts = (*self.counts, *(1,) * self.others)
        size = math.ceil(len(counts) / most)
        return Spread(self.table, tuple(sum(counts[at : at + size]) for at in range(0, len(counts), size)))


# Everything in one partition.
ONE_PARTITION = Spread("", (1,))


class SpreadCount:
    """Counter of rows by partition."""

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


def turns(spread: Spread) -> Iterator[int]:
    """Yield numbers of partitions, from 0, so that each has its share. Raises ValueError without rows."""
    ends, rows = list(accumulate(spread.counts)), spread.rows
    if not rows:
        raise ValueError("there are no rows to take shares from")
    for turn in count(1):
        place = math.floor(turn * _GOLDEN % 1.0 * rows)
        yield bisect_right(ends, place) if ends and place < ends[-1] else place
