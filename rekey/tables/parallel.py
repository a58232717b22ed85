"""Reading key ranges with several scans at a time; idle scans split the rest of the largest range."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from rekey.core.concurrency import gather
from rekey.model import EntityKey, KeyRange, Row
from rekey.tables.base import Page, Table
from rekey.tables.split import find_middle


@dataclass(eq=False)
class Reader:
    """A range that is read, or is about to be. One scan reads it, so its rows come in order."""

    table: Table
    # What is still to be read.
    rest: KeyRange
    # Rows read since it was begun or split.
    fresh: int = 0
    # Its end was moved after its scan began.
    shrunk: bool = False
    # Another scan is looking for a key to split it at.
    probed: bool = False
    # No key was found to split it at between partitions, and none will be.
    whole: bool = False


R = TypeVar("R", bound=Reader)


class ParallelScan(ABC, Generic[R]):
    """Several scans at a time, each of one range."""

    # Rows that must be read of a range since its last split before it is split again.
    least: int
    # So many splits are made where so many rows of a range were read.
    eager = least_eager = 0
    # Whether an idle scan may split a range now; call `tell` when that changes.
    may_split = True
    # Whether ranges are split only between partitions.
    partitions_apart = False
    # Whether the scan of a split range restarts: then none of its pages reaches into another scan's range, at
    # the cost of one more query with a page of its own.
    begins_anew = False

    def __init__(self, readers: Iterable[R]) -> None:
        self._open = deque(readers)
        self._active: list[R] = []
        self._changed = asyncio.Event()

    @abstractmethod
    def pages(self, reader: R) -> AsyncIterator[Page]:
        """Begin to scan the rest of a range."""

    async def next_page(self, _reader: R, pages: AsyncIterator[Page]) -> Page | None:
        """Return the next page of a scan, None at its end."""
        return await anext(pages, None)

    @abstractmethod
    async def take(self, reader: R, page: Page, rows: list[Row], cursor: EntityKey | None) -> None:
        """Take the rows of a page that are in the range, and its cursor, in step with `Reader.rest`: before
        anything is awaited."""

    @abstractmethod
    async def finish(self, reader: R) -> None:
        """Record that a range was read to its end."""

    @abstractmethod
    def split(self, reader: R, middle: EntityKey) -> R:
        """Store that a range ends at a key, and return a range for its rest."""

    async def middle(self, reader: R) -> EntityKey | None:
        """Return a key at which the rest of a range may be split, None if there is none."""
        rest, apart = reader.rest, self.partitions_apart
        return await find_middle(reader.table, rest, rest.after, partitions_apart=apart)

    async def run(self, scans: int) -> None:
        """Read all ranges with so many scans at a time."""
        await gather(self._read_ranges() for _ in range(max(1, scans)))

    def tell(self) -> None:
        """Wake all that wait for a change; each checks its own condition."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        await self._changed.wait()

    async def _read_ranges(self) -> None:
        while (reader := await self._next_range()) is not None:
            try:
                while await self._scan(reader):
                    pass
            finally:
                self._active.remove(reader)
                self.tell()
            # Only now: a range that was read to its end is not split while that is recorded.
            await self.finish(reader)

    async def _scan(self, reader: R) -> bool:
        """Scan the rest of a range; tell whether the scan must restart."""
        reader.shrunk = False
        async with aclosing(self.pages(reader)) as pages:  # type: ignore[type-var]  # all scans are generators
            while (page := await self.next_page(reader, pages)) is not None:
                rows, cursor, ended = page.cut(reader.rest.upto if reader.shrunk else None)
                if cursor is not None:
                    reader.rest = reader.rest.behind(cursor)
                reader.fresh += len(rows)
                if self._is_worth_splitting(reader):
                    self.tell()
                await self.take(reader, page, rows, cursor)
                if ended or (reader.shrunk and self.begins_anew):
                    return not ended
                del page, rows  # free their memory before the next page comes
        return False

    def _is_worth_splitting(self, reader: R) -> bool:
        least = self.least_eager if self.eager else self.least
        return reader.fresh >= least and not (reader.probed or reader.whole)

    async def _next_range(self) -> R | None:
        """Return the next range to read, if need be one split off another; None when there is none."""
        while self._open or self._active:
            if self._open:
                self._active.append(self._open.popleft())
                return self._active[-1]
            worth = [reader for reader in self._active if self._is_worth_splitting(reader)]
            if worth and self.may_split:
                # It is unknown how much of a range is left: the one with the most rows since its last split
                # probably has most.
                await self._divide(max(worth, key=lambda reader: reader.fresh))
            else:
                await self.change()
        return None

    async def _divide(self, reader: R) -> None:
        """Look for a key in the middle of the rest of a range, and split it there."""
        reader.probed = True
        try:
            middle = await self.middle(reader)
        finally:
            reader.probed = False
        reader.fresh = 0
        reader.whole = self.partitions_apart and middle is None
        self.eager = max(0, self.eager - 1)
        # Meanwhile its scan may have passed that key, or reached the end. From here on nothing is awaited, so
        # the cursor does not move.
        if middle is None or reader not in self._active or middle not in reader.rest:
            return
        self._open.append(self.split(reader, middle))
        reader.rest, _ = reader.rest.split(middle)
        reader.shrunk = True
        self.tell()
