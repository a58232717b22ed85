"""The inventory of a source table: read whole, or estimated from a limited number of page reads."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

from rekey.core.plain import exclude, json_field, members
from rekey.inspect.partitions import PartitionRuns
from rekey.inspect.sampling import RowEstimate, Sizer, Stretch, Units, key_from, units_of
from rekey.model import ETAG, PARTITION_KEY, TIMESTAMP, EntityKey, KeyRange, Row, key_of
from rekey.present.text import counted
from rekey.tables.base import MAX_PAGE_ROWS, Table

# Rows of a full read after which the table's size is estimated, and the number of probes for that.
GUESS_ROWS, GUESS_PROBES = 100_000, 15
# Most requests of a sample for the rows of its largest partition: 20,000 rows, ten seconds of its target.
LARGEST_PAGES = 20


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How much a sampled inventory reads."""

    # Rows read from the beginning, without gaps, so that batches can be packed as in backfill.
    head_rows: int = 30_000
    # Pages read elsewhere. A probe costs one request, two when its key is absent.
    probes: int = 45
    # Most such pages where `probes` are too few to estimate how many rows there are; a fifth of all at most.
    most_probes: int = 1_000
    # Maximum number of requests, head included; None: only `probes` limits them.
    requests: int | None = None


# The parts of a sample: the beginning of the table without gaps, and single pages elsewhere.
PARTS = (HEAD, PROBED) = (0, 1)

Counted = TypeVar("Counted", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Weights:
    """How many rows of the table a row that was read stands for: one of the beginning for itself, one read
    elsewhere for its share of all others. Otherwise the densely read beginning would count most."""

    read: tuple[int, int]  # rows read in each of `PARTS`
    rows: int  # rows of the table

    @property
    def each(self) -> tuple[float, float]:
        """The weight of a row of each of `PARTS`."""
        head, probed = self.read
        return 1.0, (self.rows - head) / probed if probed else 1.0

    def sum(self, counts: Iterable[float]) -> float:
        """Return the weighted sum of counts in each of `PARTS`."""
        return sum(weight * count for weight, count in zip(self.each, counts, strict=True))

    def merged(self, counts: Iterable[Mapping[Counted, int]]) -> dict[Counted, float]:
        """Return the weighted sums of counts in each of `PARTS`, by what was counted."""
        merged: defaultdict[Counted, float] = defaultdict(float)
        for weight, part in zip(self.each, counts, strict=True):
            for what, count in part.items():
                merged[what] += weight * count
        return merged


@dataclass(frozen=True, slots=True)
class Inventory:
    """Figures of a source table."""

    table: str
    # Estimated number of rows.
    rows: RowEstimate = field(metadata=json_field(flat=True))
    # Billed bytes; 0 until measured.
    stored_bytes: int
    pages: int = field(metadata=json_field("pages_read"))
    # Partitions met; all of them when exact.
    partitions: int = field(metadata=json_field("partitions_met"))
    # Rows of the largest partition; a lower bound unless exact.
    largest_partition: int
    # 40 hexadecimal digits over every row's ETag and Timestamp in key order; None for a sample. Every change
    # changes it, and it cannot be used to test guesses of keys.
    digest: str | None = field(metadata=exclude)
    # Requests sent; more than `pages` if responses were empty.
    requests: int = field(default=0, metadata=exclude)
    # Rows read from the beginning without a gap.
    head_rows: int = field(default=0, metadata=exclude)

    @property
    def exact(self) -> bool:
        """Whether every row was read."""
        return self.rows.exact

    @property
    def basis(self) -> str:
        """What the figures are based on, as text."""
        if self.exact:
            return f"every row was read ({counted(self.pages, 'page')})"
        return (
            f"sampled: {counted(self.rows.at_least, 'row')} in {counted(self.pages, 'page')} were read; "
            "rows, bytes and all that follows from them are estimates"
        )

    @property
    def weights(self) -> Weights:
        return Weights((self.head_rows, self.rows.at_least - self.head_rows), self.rows.rows)

    def as_json(self) -> dict[str, Any]:
        return {**members(self), "basis": self.basis}


# Takes the rows of one page, and their part (`PARTS`).
Take = Callable[[Sequence[Row], int], None]

# Takes the key after which the next rows begin, after a gap.
Jump = Callable[[EntityKey], None]


async def read_whole(
    table: Table, take: Take, likely: Callable[[int], None] = lambda _rows: None
) -> Inventory:
    """Read every row of a table, passing pages to `take`. Raises TableMissing and service errors.

    Args:
        table: the table.
        take: takes the rows.
        likely: called with the estimated number of rows, once so many were read that estimating
            (`GUESS_PROBES` probes) is cheap in comparison; not called for a smaller table.
    """
    reading, probing = _Reading(table, take, gaps=False), None
    async with aclosing(table.scan()) as pages:  # type: ignore[type-var]  # all scans are generators
        async for page in pages:
            reading.take_page(page.rows, True)
            if probing is None and page.rows and reading.rows >= GUESS_ROWS:
                probing = _Reading(table, lambda _rows, _continues: None, gaps=True)
                sizer = Sizer(partial(probing.read_stretch, most=None), GUESS_PROBES)
                last = [units_of(key_of(row)) for row in page.rows]
                likely(reading.rows + round(await sizer.rows_after(last, reading.rows)))
    reading.requests = reading.pages + (0 if probing is None else probing.requests)
    return reading.inventory(reading.rows, exact=True, settled=True)


async def read_sample(table: Table, size: SampleSize, take: Take, jump: Jump | None = None) -> Inventory:
    """Read a bounded part of a table, passing pages to `take`. A table no longer than the head is read whole.
    Raises TableMissing and service errors."""
    reading = _Reading(table, take, gaps=True)
    page, whole = await reading.read_head(size.head_rows)
    if whole:
        return reading.inventory(reading.rows, exact=True, settled=True)

    def left() -> int | None:
        # One request is reserved for an empty response after the last page of a table.
        return None if size.requests is None else size.requests - 1 - reading.requests

    async def read(after: Units) -> Stretch:
        if jump is not None:
            jump(key_from(after))
        return await reading.read_stretch(after, left())

    def more(rows: float) -> int:
        fifth = min(size.most_probes, int((reading.rows + rows) / MAX_PAGE_ROWS / 5))
        return max(0, fifth - size.probes) if size.requests is None else 0

    probes, most = size.probes, left()
    sizer = Sizer(read, probes if most is None else min(probes, most), more)
    likely = reading.rows + round(await sizer.rows_after(page, reading.rows))
    await reading.read_largest(left())
    return reading.inventory(max(likely, reading.rows), exact=False, settled=sizer.settled, error=sizer.error)


class _Reading:
    """Reads parts of one table, passes on each row once, and sums up the rows read. Memory grows with a
    sample's partitions and requests, not with a full read's."""

    def __init__(self, table: Table, take: Take, *, gaps: bool) -> None:
        self.rows = self.head_rows = self.pages = self.requests = 0
        self._part = HEAD
        self._table = table
        self._take = take
        self._runs = PartitionRuns(gaps=gaps)
        self._largest = 0
        self._digest = blake2b(digest_size=20)
        # The stretches that were read: their last keys, and the keys after which they begin.
        self._read_upto: list[Units] = []
        self._read_after: list[Units] = []

    def take_page(self, rows: Sequence[Row], continues: bool) -> None:
        """Count rows and pass them on; `continues`: they follow the previous ones without a gap."""
        self.pages += 1
        if not continues:
            self._runs.cut("")
            self._part = PROBED
        stamps = [f"{row.get(ETAG, '')}\0{row.get(TIMESTAMP, '')}\0" for row in rows]
        self._digest.update("".join(stamps).encode())
        self._runs.add(row[PARTITION_KEY] for row in rows)
        self.rows += len(rows)
        self.head_rows += len(rows) if self._part == HEAD else 0
        self._take(rows, self._part)

    async def read_head(self, head_rows: int) -> tuple[list[Units], bool]:
        """Read the beginning of the table; return the last page's keys, and whether the table ends there."""
        last: list[Units] = []
        async with aclosing(self._table.scan()) as pages:  # type: ignore[type-var]  # as above
            async for page in pages:
                self.requests += 1
                # The page after the head shows whether the table continues; its rows count too.
                beyond = bool(page.rows) and self.rows >= head_rows
                self.take_page(page.rows, True)
                last = [units_of(key_of(row)) for row in page.rows] or last
                if beyond:
                    self._mark((), last[-1])
                    return last, False
        self.requests += 1
        return last, True

    async def read_stretch(self, after: Units, most: int | None) -> Stretch:
        """Read one page's worth of rows after a key; only rows not read before are passed on. At most `most`
        responses are read; None reads on until there are enough rows or the table ends, and counts as one
        request."""
        keys: list[Units] = []
        ended = True
        sent = 0
        start = key_from(after)  # just before `after` if that is no valid text
        async with aclosing(self._table.scan(KeyRange(after=start))) as pages:  # type: ignore[type-var]
            async for page in pages:
                sent += 1
                keys_read = [units_of(key_of(row)) for row in page.rows]
                fresh = [
                    row for row, key in zip(page.rows, keys_read, strict=True) if not self._was_read(key)
                ]
                self.take_page(fresh, bool(keys))
                keys += keys_read
                if len(keys) >= MAX_PAGE_ROWS or sent == most:
                    ended = False
                    break
        if keys:
            self._mark(min(after, units_of(start)), keys[-1])
        sent += ended
        self.requests += sent
        return Stretch(keys, ended, 1 if most is None else sent)

    async def read_largest(self, most: int | None) -> None:
        """Count the rows of the partition of which most were read, as far as `LARGEST_PAGES` and `most`
        requests go. They are not passed on: a sample has its rows from everywhere."""
        self._runs.cut("")
        largest = next(iter(self._runs.largest), None)
        pages = LARGEST_PAGES if most is None else min(LARGEST_PAGES, most)
        if largest is None or largest.whole or pages <= 0:
            return
        scan = self._table.scan(KeyRange.of_rows(largest.partition))
        async with aclosing(scan) as read:  # type: ignore[type-var]  # as above
            async for page in read:
                self.requests += 1
                self._largest += len(page.rows)
                pages -= 1
                if not pages:
                    break

    def _mark(self, after: Units, upto: Units) -> None:
        """Record that all rows after `after` up to and including `upto` were read."""
        first = bisect_left(self._read_upto, after)
        behind = bisect_right(self._read_after, upto)
        # Those that it touches become one with it, so that stretches never overlap.
        touched = slice(first, behind)
        after, upto = min([after, *self._read_after[touched]]), max([upto, *self._read_upto[touched]])
        self._read_after[touched], self._read_upto[touched] = [after], [upto]

    def _was_read(self, key: Units) -> bool:
        at = bisect_left(self._read_upto, key)
        return at < len(self._read_after) and self._read_after[at] < key

    def inventory(self, rows: int, *, exact: bool, settled: bool, error: float = 0.0) -> Inventory:
        return Inventory(
            table=self._table.name,
            rows=RowEstimate(rows, self.rows, exact, settled, error),
            stored_bytes=0,
            pages=self.pages,
            partitions=self._runs.met,
            largest_partition=max(self._largest, self._runs.longest),
            digest=self._digest.hexdigest() if exact else None,
            requests=self.requests,
            head_rows=self.head_rows,
        )
