"""Sizes of partitions, from rows in key order or in no order, in bounded memory. Counts name partitions by
key and stay in memory. Pure."""

from __future__ import annotations

import heapq
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise

LARGEST = 10
# Upper bounds of the size classes, in rows; the last class is unbounded.
CLASSES = (1, 9, 99, 999, 9_999, 99_999, 999_999)


@dataclass(frozen=True, slots=True)
class Large:
    """A large partition: its key, its rows seen, whether all of it was seen."""

    partition: str
    rows: int
    whole: bool


# The size classes as text: `1`, `2 to 9`, ..., `1,000,000 and more`.
CLASS_NAMES = (
    "1",
    *(f"{low + 1:,} to {high:,}" for low, high in pairwise(CLASSES)),
    f"{CLASSES[-1] + 1:,} and more",
)


@dataclass(slots=True)
class _Run:
    """The rows of one partition that follow each other without a gap."""

    partition: str | None = None
    rows: int = 0
    # False when the partition may have rows before the first one read.
    from_start: bool = True
    # After a gap: the partition of the key after which the next rows begin.
    after: str | None = None


class PartitionRuns:
    """Counts partitions by the PartitionKeys of rows in key order, with `cut` at gaps. A run between two
    other partitions is a whole partition; one that is cut off counts with its rows seen, as not whole.

    Attributes:
        rows: rows counted.
        met: partitions met.
        longest: most rows of a partition counted without a gap.
        ends: partitions seen to end, which estimates their number in a sample.
        sizes: whole partitions by size class.
    """

    def __init__(self, *, gaps: bool) -> None:
        """Create an empty count. `gaps`: rows are left out, so partitions met are remembered."""
        self.rows = self.met = self.longest = self.ends = 0
        self.sizes = [0] * (len(CLASSES) + 1)
        self._gaps = gaps
        self._met: set[str] = set()
        self._run = _Run()
        self._largest: list[tuple[int, str]] = []
        self._cut_off: Counter[str] = Counter()

    def add(self, partitions: Iterable[str]) -> list[str]:
        """Count rows that follow the previous ones without a gap; return the partitions not met before."""
        new, run = [], self._run
        for partition, group in groupby(partitions):
            if partition != run.partition:
                if run.partition is not None:
                    self._close(whole=run.from_start)
                    self.ends += 1
                    run.from_start = True
                elif partition != run.after:
                    # The read began before this partition, so its first row was read.
                    run.from_start = True
                run.partition = partition
                if partition not in self._met:
                    new.append(partition)
                if self._gaps:
                    self._met.add(partition)
            rows = len(list(group))
            self.rows += rows
            run.rows += rows
            self.longest = max(self.longest, run.rows)
        self.met += len(new)
        return new

    def cut(self, after: str) -> None:
        """End the run at a gap; the next rows begin after a key of the partition `after`."""
        self._close(whole=False)
        self._run.after, self._run.from_start = after, False

    def finish(self, *, whole: bool) -> None:
        """End the last run; `whole`: the table ends with it."""
        self._close(whole=whole and self._run.from_start)

    @property
    def largest(self) -> list[Large]:
        """The largest partitions seen, the largest first."""
        seen = [Large(partition, rows, True) for rows, partition in self._largest]
        seen += [Large(partition, rows, False) for partition, rows in self._cut_off.items()]
        return sorted(seen, key=lambda large: (-large.rows, large.partition))[:LARGEST]

    def _close(self, *, whole: bool) -> None:
        rows, partition = self._run.rows, self._run.partition
        self._run.rows, self._run.partition = 0, None
        if partition is None:
            return
        if not whole:
            self._cut_off[partition] += rows  # it may be met again after a gap
            return
        self.sizes[bisect_left(CLASSES, rows)] += 1
        if len(self._largest) < LARGEST:
            heapq.heappush(self._largest, (rows, partition))
        elif rows > self._largest[0][0]:
            heapq.heapreplace(self._largest, (rows, partition))


# --- rows in no order ----------------------------------------------------------------------------------

TALLIED_PARTITIONS = 50_000
SIZED_PARTITIONS = 20_000
# Most pages of which the partitions are kept.
SPREAD_PAGES = 128


class Crowding:
    """Tells how much of what a copy writes at a time goes into one partition: it reads several source
    partitions at a time. Keeps what a few pages give, each of another one, spread over those taken."""

    def __init__(self) -> None:
        # By the source partition that has most of the page.
        self._pages: dict[str, Mapping[str, int]] = {}
        self._seen, self._every = 0, 1

    def add(self, source: Mapping[str, int], partitions: Mapping[str, int]) -> None:
        """Take the rows of a page and those that they give the table, by partition."""
        most = max(source, key=lambda partition: source[partition], default=None)
        if most is None or most in self._pages:
            return
        if self._seen % self._every == 0:
            self._pages[most] = partitions
        self._seen += 1
        if len(self._pages) > SPREAD_PAGES:
            self._pages = dict(list(self._pages.items())[::2])
            self._every *= 2

    def share(self, readers: int) -> float:
        """Return the share of the busiest partition in what so many readers give at a time; 0: no rows."""
        pages = list(self._pages.values())
        groups = max(1, len(pages) // readers)
        at_a_time = [sum(map(Counter, pages[first::groups]), Counter[str]()) for first in range(groups)]
        rows = sum(partitions.total() for partitions in at_a_time)
        return sum(max(partitions.values(), default=0) for partitions in at_a_time) / rows if rows else 0.0


class PartitionTally:
    """Counts rows per partition in no order, by Misra and Gries ("Finding repeated elements", 1982): exact up
    to `capacity` partitions; beyond, `largest` is a lower bound."""

    def __init__(self, capacity: int = TALLIED_PARTITIONS) -> None:
        self._capacity = capacity
        self._counts: Counter[str] = Counter()
        self._seen = 0
        self.exact = True

    def add(self, rows: Mapping[str, int]) -> None:
        """Add rows by partition, at most a page's."""
        self._seen += sum(partition not in self._counts for partition in rows)
        self._counts.update(rows)
        while len(self._counts) > self._capacity:
            self.exact = False
            # Subtracting the median from all counts drops half of them.
            less = sorted(self._counts.values())[len(self._counts) // 2]
            kept = {name: count - less for name, count in self._counts.items() if count > less}
            self._counts = Counter(kept)

    @property
    def partitions(self) -> int:
        """The number of partitions met; a lower bound when not exact."""
        return self._seen if self.exact else self._capacity

    @property
    def largest(self) -> int:
        """The rows of the largest partition; a lower bound when not exact."""
        return max(self._counts.values(), default=0)

    def top(self, number: int) -> list[tuple[str, int]]:
        """Return the largest partitions with their rows, the largest first."""
        return sorted(self._counts.items(), key=lambda entry: (-entry[1], entry[0]))[:number]


class PartitionSizes:
    """Counts partitions by size class. Beyond `capacity` partitions it counts those whose CRC-32 falls into a
    share of all values, each whole or not at all, and scales up."""

    def __init__(self, capacity: int = SIZED_PARTITIONS) -> None:
        self._capacity = capacity
        self._counts: Counter[str] = Counter()
        self._mask = 0

    def add(self, rows: Mapping[str, int]) -> None:
        """Add rows by partition, at most a page's."""
        self._counts.update(self._sized(rows) if self._mask else rows)
        while len(self._counts) > self._capacity:
            self._mask = 2 * self._mask + 1
            self._counts = Counter(self._sized(self._counts))

    def _sized(self, rows: Mapping[str, int]) -> dict[str, int]:
        ranked = ((zlib.crc32(name.encode("utf-8", "surrogatepass")), name) for name in rows)
        return {name: rows[name] for rank, name in ranked if not rank & self._mask}

    @property
    def mean_rows(self) -> float:
        """The mean rows of a partition; 0.0 without rows."""
        return sum(self._counts.values()) / len(self._counts) if self._counts else 0.0

    @property
    def by_class(self) -> dict[str, int]:
        """The number of partitions by size class, for all classes up to the largest in use."""
        counted = Counter(bisect_left(CLASSES, rows) for rows in self._counts.values())
        used = range(max(counted, default=-1) + 1)
        return {CLASS_NAMES[number]: counted[number] * (self._mask + 1) for number in used}
