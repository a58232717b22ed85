"""Reading segments into windows: several readers at a time; idle ones split the largest segment."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from rekey.copy.throttle import Throttle
from rekey.core.concurrency import cancel
from rekey.model import PARTITION_KEY, EntityKey, Row
from rekey.project.config import Limits
from rekey.state.models import Segment
from rekey.tables.base import MAX_PAGE_ROWS, Page, Table
from rekey.tables.parallel import ParallelScan, Reader

# Pages that must be read of a segment since its last split before it is split again.
LEAST_PAGES = 3

# Stores durably, in one transaction, that a segment ends at a key, and a new segment for the rest; returns
# the new one, which is read only then.
Split = Callable[[Segment, EntityKey], Segment]


@dataclass(frozen=True, slots=True)
class WindowSize:
    """When a window is full: at `rows` rows or about `bytes` bytes of wire JSON, whichever comes first."""

    rows: int
    bytes: int


def window_of(limits: Limits) -> WindowSize:
    """Return the size of a window of the backfill: half the limits, as several windows are in flight."""
    return WindowSize(max(1, limits.window_rows // 2), max(1, limits.window_bytes // 2))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How segments are read."""

    # Segments read at a time.
    readers: int = 1
    # Stores a split of a segment; None: segments are read as they are.
    split: Split | None = None
    # Only rows whose Timestamp is at or after this (a delta pass).
    modified_from: str | None = None
    # Limits the rate of reading; a scan fetches ahead only if there were no rates when it began.
    throttle: Throttle | None = None


@dataclass(slots=True)
class Window:
    """Rows read and, by id, each segment they came from as it will be once they are durable."""

    rows: list[Row] = field(default_factory=list)
    bytes: int = 0
    segments: dict[int, Segment] = field(default_factory=dict)


def row_bytes(row: Row) -> int:
    """Return about how many bytes a row has on the wire (cheap: lengths of names and texts)."""
    return sum(len(name) + (len(value) if isinstance(value, str) else 8) + 6 for name, value in row.items())


@dataclass(eq=False)
class _SegmentReader(Reader):
    """A segment that is read."""

    # Its cursor and figures as of the last page read.
    segment: Segment = field(kw_only=True)
    # Rows that its next page is likely to have; 0 after a page that was not full.
    expected: int = field(kw_only=True)
    # The partition in which its last page ended; None before, and where partitions have no rate.
    partition: str | None = None
    # The last page held rows of this partition alone, and the page before ended in it.
    within: bool = False

    def follow(self, rows: Sequence[Row]) -> int:
        """Record the partition in which a page ends; return how many of its last rows it has."""
        last = rows[-1][PARTITION_KEY]
        of_last = next((at for at, row in enumerate(reversed(rows)) if row[PARTITION_KEY] != last), len(rows))
        self.within = self.partition == last and of_last == len(rows)
        self.partition = last
        return of_last


class Reading(ParallelScan[_SegmentReader]):
    """All readers of one source. Memory holds at most a page for each reader, or a window's bytes, for the
    consumer, and two pages of about 2 MiB in each reader."""

    begins_anew = True

    def __init__(
        self, source: Table, segments: Sequence[Segment], options: ReadOptions, page_rows: int = MAX_PAGE_ROWS
    ) -> None:
        """Create it. `segments`: the key ranges to read; finished ones are skipped."""
        self.source, self.options, self.page_rows = source, options, page_rows
        super().__init__(self._reader(segment) for segment in segments if not segment.done)
        self.throttle = None if options.throttle is None else options.throttle.of(source.name)
        self.least, self.least_eager = LEAST_PAGES * page_rows, page_rows
        # Where partitions have a rate, one page is enough to split a segment until each reader has one, and a
        # partition has one reader: more would get no more rows, only refusals.
        self.eager = options.readers - 1 if self.partitions_apart else 0
        self.may_split = False
        self._read: deque[tuple[list[Row], int, Segment]] = deque()
        self._read_bytes, self._most_bytes = 0, 0

    def _reader(self, segment: Segment) -> _SegmentReader:
        return _SegmentReader(self.source, segment.rest, segment=segment, expected=self.page_rows)

    async def windows(self, size: WindowSize) -> AsyncGenerator[Window, None]:
        """Yield full windows; the last one may be small. Iterate within `aclosing`."""
        self._most_bytes = size.bytes
        working: asyncio.Future[None] = asyncio.ensure_future(self.run(self.options.readers))
        working.add_done_callback(lambda _: self.tell())
        window = Window()
        try:
            while (read := await self._next(working)) is not None:
                rows, count, segment = read
                window.rows.extend(rows)
                window.bytes += count
                window.segments[segment.id] = segment
                if len(window.rows) >= size.rows or window.bytes >= size.bytes:
                    yield window
                    window = Window()
            if window.segments:
                yield window
        finally:
            await cancel([working])

    async def _next(self, working: asyncio.Future[None]) -> tuple[list[Row], int, Segment] | None:
        """Return the next rows, their bytes and segment; None at the end. Raises the first reader's error."""
        while not self._read or working.done():
            if working.done():
                working.result()
                if not self._read:
                    return None
                break
            # Readers split only while the consumer waits for pages: where writing is the bottleneck, more
            # scans would not help.
            self.may_split = self.options.split is not None
            await self.change()
        self.may_split = False
        self.tell()
        read = self._read.popleft()
        self._read_bytes -= read[1]
        return read

    @property
    def partitions_apart(self) -> bool:  # type: ignore[override]
        """Whether each partition has a rate."""
        return self.throttle is not None and self.throttle.limits_partitions

    def pages(self, reader: _SegmentReader) -> AsyncIterator[Page]:
        return self.source.scan(
            reader.rest,
            modified_from=self.options.modified_from,
            page_rows=self.page_rows,
            ahead=self.throttle is None or not self.throttle.has_rates,
        )

    async def next_page(self, reader: _SegmentReader, pages: AsyncIterator[Page]) -> Page | None:
        """Return the next page, requested when the rates allow it; None at the end."""
        throttle = self.throttle
        if throttle is None:
            return await anext(pages, None)
        # After a page that was not full the next one is likely to be empty, or small.
        asked = reader.expected
        partition = None if reader.partition is None else (self.source.name, reader.partition)
        if asked and partition is not None:
            await throttle.made_up(partition)
        # A partition that fills whole pages takes longest: its next page skips the queue.
        await throttle.take(asked, first=reader.within)
        with throttle.taken(asked, partition):
            page = await anext(pages, None)
        rows = [] if page is None else page.rows
        throttle.give_back(asked - len(rows))
        reader.expected = len(rows) if page is not None and page.full else 0
        if rows and throttle.limits_partitions:
            throttle.count(reader.follow(rows), (self.source.name, rows[-1][PARTITION_KEY]))
        return page

    async def take(
        self, reader: _SegmentReader, page: Page, rows: list[Row], cursor: EntityKey | None
    ) -> None:
        segment, size = reader.segment, page.bytes or sum(map(row_bytes, rows))
        reader.segment = replace(
            segment,
            cursor=cursor or segment.cursor,
            rows=segment.rows + len(rows),
            bytes=segment.bytes + size,
        )
        await self._put(rows, size, reader.segment)

    async def finish(self, reader: _SegmentReader) -> None:
        await self._put([], 0, replace(reader.segment, done=True))

    def split(self, reader: _SegmentReader, middle: EntityKey) -> _SegmentReader:
        """Store that a segment ends at a key, and return its rest."""
        upper = self.options.split(reader.segment, middle)  # type: ignore[misc]  # `may_split` is False without
        reader.segment = replace(reader.segment, upto=middle)
        return self._reader(upper)

    async def _put(self, rows: list[Row], size: int, segment: Segment) -> None:
        while len(self._read) >= self.options.readers or self._read_bytes >= self._most_bytes:
            await self.change()
        self._read.append((rows, size, segment))
        self._read_bytes += size
        self.tell()
