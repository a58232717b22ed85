"""Reading segments: several at a time; idle readers split the rest of the largest.

Rules kept here:

* One reader a segment, so a segment's rows come in order, and all rows up to its cursor have been read.
* A split is stored (shrunk and new segment in one transaction) before the new segment is read, and lies only
  after what has been read: no row is read by two readers, and every row by one.
* Which segment is the largest is not known. The one that gave the most rows since it was last split is likely
  to have the most left; below `LEAST_PAGES` pages nothing is split. Where partitions have a rate, one page is
  enough until there was a split for every reader: one scan alone would be held up by its partition.
* Where there are rates, a page is requested when they allow for it, not before.
* A partition that has a rate has one reader: more readers would get no more rows, only refusals.
* Readers split only while the consumer waits for pages: where writing takes the time, more scans would not
  help.
* Bounded memory: at most as many pages as there are readers wait for the consumer, and no further page is
  added once they have a window's bytes. A reader holds one page more, and one that is fetched ahead, of about
  2 MiB at most each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from rekey.copy.throttle import Throttle
from rekey.core.concurrency import cancel, together
from rekey.model import PARTITION_KEY, EntityKey, Row
from rekey.project.config import Limits
from rekey.state.models import Segment
from rekey.tables.base import MAX_PAGE_ROWS, Page, Table
from rekey.tables.split import find_middle

# Pages a segment must have given since it was last split before it is split again.
LEAST_PAGES = 3

# Stores durably that a segment ends at a key, and a new segment for the rest; returns the new one.
Split = Callable[[Segment, EntityKey], Segment]


@dataclass(frozen=True, slots=True)
class WindowSize:
    """When a window is full: at `rows` rows or about `bytes` bytes of wire JSON, whichever comes first."""

    rows: int
    bytes: int


def window_of(limits: Limits) -> WindowSize:
    """Return the size of a window of the backfill: half the limits, as several windows are under way."""
    return WindowSize(max(1, limits.window_rows // 2), max(1, limits.window_bytes // 2))


@dataclass(slots=True)
class Window:
    """Rows read and, by id, each segment they came from as it will be once they are durable."""

    rows: list[Row] = field(default_factory=list)
    bytes: int = 0
    segments: dict[int, Segment] = field(default_factory=dict)


def row_bytes(row: Row) -> int:
    """Return about how many bytes a row has on the wire (cheap: lengths of names and texts)."""
    return sum(len(name) + (len(value) if isinstance(value, str) else 8) + 6 for name, value in row.items())


@dataclass(slots=True)
class _Active:
    """A segment that is being read.

    Attributes:
        now: the segment, its cursor and figures as of the last page read.
        expected: rows that its next page is likely to have; 0 after a page that was not full.
        fresh_rows: rows read since it was begun or split.
        shrunk: its end was moved after its scan began.
        probed: a reader is looking for a key to split it at.
        whole: it is not split: the rest lies in one partition, which has a rate.
        partition: the partition in which its last page ended; None before, and where partitions have no rate.
        within: the last page held rows of this partition alone, and the page before ended in it.
    """

    now: Segment
    expected: int
    fresh_rows: int = 0
    shrunk: bool = False
    probed: bool = False
    whole: bool = False
    partition: str | None = None
    within: bool = False

    def follow(self, rows: Sequence[Row]) -> int:
        """Note the partition in which a page ends; return how many of its last rows are of that partition."""
        last = rows[-1][PARTITION_KEY]
        of_last = next((at for at, row in enumerate(reversed(rows)) if row[PARTITION_KEY] != last), len(rows))
        self.within = self.partition == last and of_last == len(rows)
        self.partition = last
        return of_last

    def take(self, page: Page) -> tuple[list[Row], bool]:
        """Move the cursor past a page; return its rows in the segment, and whether the segment ends there."""
        rows, cursor, ended = page.cut(self.now.upto if self.shrunk else None)
        size = page.bytes or sum(map(row_bytes, rows))
        self.now = replace(
            self.now,
            cursor=cursor or self.now.cursor,
            rows=self.now.rows + len(rows),
            bytes=self.now.bytes + size,
        )
        self.fresh_rows += len(rows)
        return rows, ended


@dataclass(eq=False)
class Reading:
    """All readers of one source.

    Attributes:
        source: the table to scan.
        segments: the key ranges to read; finished ones are skipped.
        readers: how many scans at a time.
        split: stores a split; None: segments are not split.
        page_rows: rows a page.
        modified_from: only rows whose Timestamp is at or after this.
        throttle: limits the rate of reading; a scan fetches ahead only if there were no rates when it began.
    """

    source: Table
    segments: Sequence[Segment]
    readers: int = 1
    split: Split | None = None
    page_rows: int = MAX_PAGE_ROWS
    modified_from: str | None = None
    throttle: Throttle | None = None

    def __post_init__(self) -> None:
        self.readers = max(1, self.readers)
        self.throttle = None if self.throttle is None else self.throttle.of(self.source.name)
        self._open = deque(segment for segment in self.segments if not segment.done)
        self._active: dict[int, _Active] = {}
        self._read: deque[tuple[list[Row], int, Segment]] = deque()
        self._read_bytes, self._most_bytes = 0, 0
        self._hungry = False
        self._eager = self.readers - 1 if self._has_partition_rate else 0
        self._changed = asyncio.Event()

    async def windows(self, size: WindowSize) -> AsyncGenerator[Window, None]:
        """Yield full windows; the last one may be small. Iterate within `aclosing`."""
        self._most_bytes = size.bytes
        readers = together(self._reader() for _ in range(self.readers))
        working: asyncio.Future[None] = asyncio.ensure_future(readers)
        working.add_done_callback(lambda _: self._tell())
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
        """Return the next rows, their bytes and their segment; None at the end.

        While it waits, idle readers may split. Raises what the first failing reader raised.
        """
        while not self._read or working.done():
            if working.done():
                working.result()
                if not self._read:
                    return None
                break
            self._hungry = True
            await self._changed.wait()
        self._hungry = False
        self._tell()
        read = self._read.popleft()
        self._read_bytes -= read[1]
        return read

    async def _reader(self) -> None:
        while (active := await self._take()) is not None:
            try:
                while await self._scan(active):
                    pass
                await self._put([], 0, replace(active.now, done=True))
            finally:
                del self._active[active.now.id]
                self._tell()

    async def _scan(self, active: _Active) -> bool:
        """Read a segment; tell whether a split ended that before its end was reached."""
        active.shrunk = False
        pages = self.source.scan(
            active.now.rest,
            modified_from=self.modified_from,
            page_rows=self.page_rows,
            ahead=self.throttle is None or not self.throttle.has_rates,
        )
        async with aclosing(pages):  # type: ignore[type-var]  # all scans are generators
            while (page := await self._page(active, pages)) is not None:
                before = active.now.bytes
                rows, ended = active.take(page)
                await self._put(rows, active.now.bytes - before, active.now)
                if ended or active.shrunk:
                    return not ended
        return False

    async def _page(self, active: _Active, pages: AsyncIterator[Page]) -> Page | None:
        """Return the next page when the rates allow for it; None at the end."""
        throttle = self.throttle
        if throttle is None:
            return await anext(pages, None)
        # After a page that was not full the next one is likely to be empty, or small.
        asked = active.expected
        partition = None if active.partition is None else (self.source.name, active.partition)
        if asked and partition is not None:
            await throttle.made_up(partition)
        # A partition that fills whole pages takes longest: its next page goes before the queue.
        await throttle.take(asked, first=active.within)
        with throttle.taken(asked, partition):
            page = await anext(pages, None)
        rows = [] if page is None else page.rows
        throttle.give_back(asked - len(rows))
        active.expected = len(rows) if page is not None and page.full else 0
        if rows and throttle.limits_partitions:
            throttle.count(active.follow(rows), (self.source.name, rows[-1][PARTITION_KEY]))
        return page

    async def _put(self, rows: list[Row], size: int, segment: Segment) -> None:
        while len(self._read) >= self.readers or self._read_bytes >= self._most_bytes:
            await self._changed.wait()
        self._read.append((rows, size, segment))
        self._read_bytes += size
        self._tell()

    async def _take(self) -> _Active | None:
        """Return the next segment to read, if need be one split off another; None when there is none."""
        while True:
            if self._open:
                active = _Active(self._open.popleft(), self.page_rows)
                self._active[active.now.id] = active
                return active
            if self.split is None or not self._active:
                return None
            least = (1 if self._eager else LEAST_PAGES) * self.page_rows
            worth = [
                one
                for one in self._active.values()
                if one.fresh_rows >= least and not (one.probed or one.whole)
            ]
            if worth and self._hungry:
                await self._divide(max(worth, key=lambda one: one.fresh_rows), self.split)
            else:
                await self._changed.wait()

    async def _divide(self, active: _Active, split: Split) -> None:
        """Look for a key in the middle of the rest of a segment, and split it there."""
        active.probed = True
        try:
            apart = self._has_partition_rate
            middle = await find_middle(
                self.source, active.now.rest, active.now.cursor, partitions_apart=apart
            )
        finally:
            active.probed = False
        active.fresh_rows = 0
        self._eager = max(0, self._eager - 1)
        active.whole = apart and middle is None
        # Meanwhile its reader may have passed that key, or reached the end. From here on nothing is awaited,
        # so the cursor stands still.
        if middle is None or self._active.get(active.now.id) is not active or middle not in active.now.rest:
            return
        self._open.append(split(active.now, middle))
        active.now = replace(active.now, upto=middle)
        active.shrunk = True
        self._tell()

    @property
    def _has_partition_rate(self) -> bool:
        return self.throttle is not None and self.throttle.limits_partitions

    def _tell(self) -> None:
        """Wake all that wait for a change; each checks whether its own condition holds now."""
        self._changed.set()
        self._changed = asyncio.Event()
