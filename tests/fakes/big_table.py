"""A table of any size that is made up while it is read: for tests of what must not grow with it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence

from rekey.model import EVERYTHING, EntityKey, KeyRange, Row
from rekey.tables.base import Page

MakeKey = Callable[[int], EntityKey]


def by_thousands(number: int) -> EntityKey:
    """A thousand rows for each partition, padded numbers."""
    return EntityKey(f"p-{number // 1000:05d}", f"{number:010d}")


class MadeUpTable:
    """The reading half of `rekey.tables.base.Table`: row n has the key `key(n)`, which must rise with n.

    Answers as the service does: a partition is read to its end by one query, what follows by another, so that
    a page behind a key that is not there costs two requests.
    """

    def __init__(self, rows: int, key: MakeKey = by_thousands, name: str = "Big") -> None:
        self.name = name
        self.requests = 0
        self._rows = rows
        self._key = key

    def row(self, number: int) -> Row:
        """Row number n, with ten properties' worth of bytes."""
        partition, row = self._key(number)
        return {
            "PartitionKey": partition,
            "RowKey": row,
            "Timestamp": f"2024-01-01T00:00:00.{number:07d}Z",
            "odata.etag": f'W/"{number}"',
            "Name": "a name of some length",
            "Number": number,
            "Moment": "2024-03-05T10:20:30.1234567Z",
            "Moment@odata.type": "Edm.DateTime",
        }

    async def scan(
        self,
        within: KeyRange = EVERYTHING,
        *,
        select: Sequence[str] | None = None,
        modified_from: str | None = None,
        with_text_in: str | None = None,
        page_rows: int = 1000,
        ahead: bool = True,
    ) -> AsyncIterator[Page]:
        """Yield pages, counting requests."""
        at, stops = 0, [self._rows]
        if within.after is not None:
            order = within.after.order
            at = bisect_right(range(self._rows), order, key=lambda number: self._key(number).order)
            end = bisect_right(range(self._rows), order[0], key=lambda number: self._key(number).order[0])
            stops = [max(at, end), self._rows]
        for number, stop in enumerate(stops):
            while True:
                self.requests += 1
                rows = [self.row(one) for one in range(at, min(stop, at + page_rows))]
                at += len(rows)
                last = number == len(stops) - 1 and at >= stop
                if rows or not last:
                    yield Page(rows, self._key(at - 1) if at else None)
                if at >= stop:
                    break
