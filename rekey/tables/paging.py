"""The pages of queries: the next one is fetched while one is worked on, where it may be.

Rules kept here:

* The same filter and selection are sent again with every continuation; the row key of a continuation may be
  missing.
* While one page is worked on the next is fetched, unless the caller wants none ahead; a scan that is given up
  leaves no request behind.
* What was fetched waits as bytes. It becomes rows when they are asked for, and nobody here holds the rows
  before them by then: so they take the memory of those, which is in the processor's cache.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TypeVar

from rekey.concurrency import cancel
from rekey.errors import RowMissing, TableMissing
from rekey.tables.readers import Fetched, read_body, read_page
from rekey.tables.requests import Requester
from rekey.tables.transport import Answer, Request
from rekey.tables.wire import COMMON_HEADERS, query_string

T = TypeVar("T")
Parameters = Sequence[tuple[str, str]]


async def read_queries(
    requester: Requester, table: str, queries: Iterable[Parameters], *, ahead: bool = True
) -> AsyncGenerator[tuple[Fetched, bool], None]:
    """Iterate over the pages of several queries of a table, one query after the other.

    Args:
        requester: sends requests.
        table: the table's name.
        queries: the parameters of each.
        ahead: a page may be asked for before it is wanted.

    Yields:
        A page, and whether more follow.

    Raises:
        ServiceError: a page could not be read; TableMissing where there is no such table.
    """
    left = deque(queries)

    def following(continuation: Parameters | None) -> _Asked | None:
        if continuation is None:
            left.popleft()
        return _Asked(requester, table, [*left[0], *(continuation or ())]) if left else None

    upcoming = following(()) if left else None
    try:
        while upcoming is not None:
            fetched = await upcoming.page()
            upcoming = following(fetched.continuation)
            if upcoming is not None and ahead:
                upcoming.begin()
            yield fetched, upcoming is not None
            del fetched
    finally:
        if upcoming is not None:
            await upcoming.give_up()


class _Asked:
    """A page that is asked for, now or when it is wanted."""

    def __init__(self, requester: Requester, table: str, parameters: Parameters) -> None:
        self._requester, self._table = requester, table
        doing = f"read a page of {table}"
        self._request = Request("GET", f"{table}()" + query_string(parameters), doing, COMMON_HEADERS)
        self._answer: asyncio.Future[Answer] | None = None

    def begin(self) -> None:
        """Ask for it now."""
        self._answer = asyncio.ensure_future(self._ask(read_body))

    async def page(self) -> Fetched:
        """Return the page. It becomes rows now."""
        if self._answer is None:
            return await self._ask(read_page)
        answer = await self._answer
        try:
            return read_page(answer, self._request.doing)
        except ValueError:
            # No page, so not even its continuation means anything: asked again, and as patiently as is usual.
            return await self._ask(read_page)

    async def give_up(self) -> None:
        """Leave nothing under way."""
        if self._answer is not None:
            await cancel([self._answer])

    async def _ask(self, read: Callable[[Answer, str], T]) -> T:
        request = self._request
        try:
            return await self._requester.read(request, lambda answer: read(answer, request.doing))
        except RowMissing as missing:
            # Some versions of the service say "resource" of a table.
            raise TableMissing(
                f"there is no table {self._table} ({missing.code})", code=missing.code, status=missing.status
            ) from None
