"""The pages of queries: the next one is fetched while one is worked on.

Rules kept here:

* The same filter and selection are sent again with every continuation; the row key of a continuation may be
  missing.
* While one page is worked on the next is fetched; a scan that is given up leaves no request behind.
* What was fetched waits as bytes. It becomes rows when they are asked for, and nobody here holds the rows
  before them by then: so they take the memory of those, which is in the processor's cache.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TypeVar

from rekey.errors import RowMissing, TableMissing
from rekey.tables.readers import Fetched, read_body, read_page
from rekey.tables.requests import Requester
from rekey.tables.transport import Answer, Request
from rekey.tables.wire import COMMON_HEADERS, query_string

T = TypeVar("T")
Parameters = Sequence[tuple[str, str]]


async def read_queries(
    requester: Requester, table: str, queries: Iterable[Parameters]
) -> AsyncGenerator[tuple[Fetched, bool], None]:
    """Iterate over the pages of several queries of a table, one query after the other.

    Args:
        requester: sends requests.
        table: the table's name.
        queries: the parameters of each.

    Yields:
        A page, and whether more follow.

    Raises:
        ServiceError: a page could not be read; TableMissing where there is no such table.
    """
    left = deque(queries)

    def following(continuation: Parameters | None) -> _Ahead | None:
        if continuation is None:
            left.popleft()
        return _Ahead(requester, table, [*left[0], *(continuation or ())]) if left else None

    ahead = following(()) if left else None
    try:
        while ahead is not None:
            fetched = await ahead.page()
            ahead = following(fetched.continuation)
            yield fetched, ahead is not None
            del fetched
    finally:
        if ahead is not None:
            await ahead.give_up()


class _Ahead:
    """A page that is being fetched."""

    def __init__(self, requester: Requester, table: str, parameters: Parameters) -> None:
        self._requester, self._table = requester, table
        doing = f"read a page of {table}"
        self._request = Request("GET", f"{table}()" + query_string(parameters), doing, COMMON_HEADERS)
        self._answer = asyncio.ensure_future(self._ask(read_body))

    async def page(self) -> Fetched:
        """Return the page. It becomes rows now."""
        answer = await self._answer
        try:
            return read_page(answer, self._request.doing)
        except ValueError:
            # No page, so not even its continuation means anything: asked again, and as patiently as is usual.
            return await self._ask(read_page)

    async def give_up(self) -> None:
        """Leave nothing under way."""
        self._answer.cancel()
        await asyncio.gather(self._answer, return_exceptions=True)

    async def _ask(self, read: Callable[[Answer, str], T]) -> T:
        request = self._request
        try:
            return await self._requester.read(request, lambda answer: read(answer, request.doing))
        except RowMissing as missing:
            # Some versions of the service say "resource" of a table.
            raise TableMissing(
                f"there is no table {self._table} ({missing.code})", code=missing.code, status=missing.status
            ) from None
