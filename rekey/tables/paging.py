"""The pages of a key range; the next page is fetched while the caller works on one, if allowed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

from rekey.core.concurrency import cancel
from rekey.core.limits import own_name
from rekey.errors import RowMissing, TableMissing
from rekey.model import EntityKey, KeyRange, key_of
from rekey.tables.answers import Answer, Fetched, checked, read_page
from rekey.tables.base import MAX_PAGE_ROWS, Page
from rekey.tables.requests import Requester
from rekey.tables.transport import Request
from rekey.tables.wire import COMMON_HEADERS, MAX_ADDRESS_BYTES, query_string

T = TypeVar("T")
Parameters = Sequence[tuple[str, str]]

# Most bytes that a page should have. The service limits pages to 1,000 rows and 5 seconds, not by bytes
# ("Query Timeout and Pagination"). Rows of up to 2 KiB still come a thousand at a time.
PAGE_BYTES = 2 * 1024 * 1024
# Rows to ask for while fewer than this were seen: each may have 1 MiB.
FIRST_PAGE_ROWS = 8


class PageSize:
    """The number of rows to ask for in a page, from the rows and bytes of the pages before it. `unsure`:
    until this many rows were seen, no more than `FIRST_PAGE_ROWS` are asked for."""

    def __init__(self, unsure: int = FIRST_PAGE_ROWS) -> None:
        self._unseen = unsure
        self._rows = self._bytes = 0.0

    def next_rows(self, most: int) -> int:
        """Return how many rows to ask for, 1 to `most`."""
        if self._unseen > 0:
            most = min(most, FIRST_PAGE_ROWS)
        return max(1, min(most, int(PAGE_BYTES * self._rows / self._bytes))) if self._rows else most

    def saw(self, rows: int, size: int) -> None:
        """Record a page of `rows` rows and `size` bytes. Every page halves the weight of those before it."""
        if rows:
            self._unseen -= rows
            self._rows, self._bytes = self._rows / 2 + rows, self._bytes / 2 + size


async def read_range(
    requester: Requester,
    table: str,
    within: KeyRange,
    queries: Callable[[KeyRange], Sequence[Parameters]],
    *,
    size: PageSize,
    most: int = MAX_PAGE_ROWS,
    ahead: bool = True,
) -> AsyncGenerator[tuple[Fetched, bool], None]:
    """Iterate over the pages of a key range of a table; yields a page, and whether more follow.

    Args:
        table: the table's name as declared.
        queries: returns the parameters of the queries whose rows, one query after the other, are a range.
        size: the page size of this table and selection; every page is recorded in it.
        most: most rows in a page.
        ahead: whether a page may be requested while the caller still works on the one before it.

    Raises:
        ServiceError: a page could not be read; TableMissing where there is no such table.
    """
    left = list(queries(within))

    def asked(continuation: Parameters = ()) -> _Asked | None:
        rows = size.next_rows(most)
        top = [("$top", str(rows))] if rows < MAX_PAGE_ROWS else []
        parameters = [*top, *left[0], *continuation] if left else None
        return None if parameters is None else _Asked(requester, table, rows, parameters)

    def following(continuation: Parameters | None, last: EntityKey | None) -> _Asked | None:
        if continuation is None:
            del left[0]
            return asked()
        upcoming = asked(continuation)
        too_long = upcoming is not None and upcoming.address_bytes > MAX_ADDRESS_BYTES
        if too_long and last is not None:
            # Query and continuation are too long for an address: make a new query from the last row on.
            left[:] = queries(within.behind(last))
            return asked()
        return upcoming

    upcoming = asked()
    try:
        while upcoming is not None:
            fetched = await upcoming.page()
            last = key_of(fetched.rows[-1]) if fetched.rows else None
            size.saw(len(fetched.rows), fetched.bytes)
            # The last query may return rows beyond the range.
            rows, _, ended = Page(fetched.rows, last).cut(within.upto)
            fetched = fetched._replace(rows=rows, full=len(fetched.rows) == upcoming.rows)
            upcoming = None if ended else following(fetched.continuation, last)
            if upcoming is not None and ahead:
                upcoming.begin()
            yield fetched, upcoming is not None
            # The rows of the next page reuse this memory, which is in the processor's cache.
            del fetched, rows
    finally:
        if upcoming is not None:
            await upcoming.give_up()


class _Asked:
    """The request for one page, sent ahead (`begin`) or when the page is wanted (`page`)."""

    def __init__(self, requester: Requester, table: str, rows: int, parameters: Parameters) -> None:
        self._requester, self._table, self.rows = requester, table, rows
        doing = f"read a page of {table}"
        path = f"{own_name(table)}()" + query_string(parameters)
        self._request = Request("GET", path, doing, COMMON_HEADERS)
        self.address_bytes = len(self._request.path)
        self._answer: asyncio.Future[Answer] | None = None

    def begin(self) -> None:
        self._answer = asyncio.ensure_future(self._ask(checked))

    async def page(self) -> Fetched:
        """Return the page. Its rows are decoded only now."""
        if self._answer is None:
            return await self._ask(read_page)
        answer = await self._answer
        try:
            return read_page(answer, self._request.doing)
        except ValueError:
            # Malformed, so not even its continuation can be used: request it again, with the usual retries.
            return await self._ask(read_page)

    async def give_up(self) -> None:
        if self._answer is not None:
            await cancel([self._answer])

    async def _ask(self, read: Callable[[Answer, str], T]) -> T:
        try:
            return await self._requester.read(self._request, read)
        except RowMissing as missing:
            # Some versions of the service answer "ResourceNotFound" for a table.
            raise TableMissing(
                f"there is no table {self._table} ({missing.code})", code=missing.code, status=missing.status
            ) from None
