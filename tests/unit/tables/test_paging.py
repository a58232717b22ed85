"""Pages of a range: one is fetched ahead and waits as bytes, and a scan that is given up leaves nothing.

Neither an address nor a page becomes too large: what is asked for depends on what came before.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import pytest

from rekey.model import EVERYTHING, EntityKey, KeyRange
from rekey.tables import answers
from rekey.tables.answers import Answer
from rekey.tables.paging import FIRST_PAGE_ROWS, PAGE_BYTES, PageSize, read_range
from rekey.tables.transport import Request
from rekey.tables.wire import MAX_ADDRESS_BYTES, decode_rows, range_filters
from tests.asserts.every import every


class Pages:
    """Answers queries with pages of one row, numbered as they are asked for."""

    def __init__(self, *ends: int) -> None:
        self.ends = ends
        self.asked: list[str] = []
        self.bodies: list[bytes | None] = []
        self.row_keys: dict[int, str] = {}

    async def read(self, request: Request, read: Callable[[Answer, str], Any]) -> Any:
        number = len(self.asked)
        self.asked.append(request.path)
        await asyncio.sleep(0)
        following = {} if number in self.ends else {"x-ms-continuation-NextPartitionKey": str(number)}
        if number in self.row_keys:
            following["x-ms-continuation-NextRowKey"] = self.row_keys[number]
        body = page((str(number), ""))
        answer = Answer(200, following, self.bodies.pop(0) or body if self.bodies else body)
        return read(answer, request.doing)


def page(*rows: tuple[str, str]) -> bytes:
    """A page of rows: their RowKeys and what is in them."""
    found = [{"PartitionKey": "p", "RowKey": key, "Text": text} for key, text in rows]
    return json.dumps({"value": found}).encode()


def page_of(partition: str, row: str) -> bytes:
    """A page of one row."""
    return json.dumps({"value": [{"PartitionKey": partition, "RowKey": row}]}).encode()


def scan(pages: Pages, *queries: str, ahead: bool = True) -> Any:
    """All rows, by queries with these filters; so many were read before that a page may be full."""
    seen = PageSize(0)
    filters = [[("$filter", one)] for one in queries]
    return read_range(pages, "Users", EVERYTHING, lambda _: filters, size=seen, ahead=ahead)  # type: ignore[arg-type]


def scan_range(pages: Pages, within: KeyRange, size: PageSize) -> Any:
    """A range, by its filters."""

    def queries(rest: KeyRange) -> list[list[tuple[str, str]]]:
        return [[("$filter", one)] if one else [] for one in range_filters(rest)]

    return read_range(pages, "Users", within, queries, size=size)  # type: ignore[arg-type]


async def test_queries_are_read_to_their_ends_one_after_the_other() -> None:
    pages = Pages(1, 2)
    async with aclosing(scan(pages, "a", "b")) as found:
        read = [(fetched.rows[0]["RowKey"], more) async for fetched, more in found]
    assert read == [("0", True), ("1", True), ("2", False)]
    assert pages.asked == ["Users()?$filter=a", "Users()?$filter=a&NextPartitionKey=0", "Users()?$filter=b"]
    assert [one async for one in scan(pages)] == []


async def test_one_page_is_prefetched(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def decode(body: bytes) -> Any:
        decoded.append(body)
        return decode_rows(body)

    monkeypatch.setattr(answers, "decode_rows", decode)
    pages = Pages()
    async with aclosing(scan(pages, "a")) as found:
        await anext(found)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(pages.asked) == 2
        assert len(decoded) == 1
        await anext(found)
        assert len(decoded) == 2


async def test_no_page_is_asked_for_before_it_is_wanted_where_that_is_not_allowed() -> None:
    pages = Pages(1)
    async with aclosing(scan(pages, "a", ahead=False)) as found:
        assert (await anext(found))[1]
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(pages.asked) == 1
        assert not (await anext(found))[1]
    assert len(pages.asked) == 2


async def test_what_is_no_page_is_asked_for_again_before_anything_that_follows() -> None:
    """Its continuation, or that it has none, means nothing."""
    pages = Pages(1, 3)
    pages.bodies = [None, b"<html>"]
    async with aclosing(scan(pages, "a")) as found:
        read = [fetched.rows[0]["RowKey"] async for fetched, _ in found]
    assert read == ["0", "2", "3"]
    follows = "Users()?$filter=a&NextPartitionKey="
    assert pages.asked == ["Users()?$filter=a", f"{follows}0", f"{follows}0", f"{follows}2"]


async def test_a_scan_that_is_given_up_leaves_no_request_behind() -> None:
    async with aclosing(scan(Pages(), "a")) as found:
        await anext(found)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_empty_next_row_key_is_not_sent_back() -> None:
    """The service refuses it: recorded in AzureStorageExplorer #5434 and #5584."""
    pages = Pages(1)
    pages.row_keys = {0: ""}
    assert len([one async for one in scan(pages, "a")]) == 2
    assert pages.asked[1] == "Users()?$filter=a&NextPartitionKey=0"


def tops(pages: Pages) -> list[str]:
    """How many rows each request asked for, "" for as many as there may be."""
    return [one.partition("$top=")[2].partition("&")[0] for one in pages.asked]


async def test_pages_of_large_rows_are_small() -> None:
    """The first page as well; from then on a page has 2 MiB at most as long as rows stay as large."""
    pages, size = Pages(3), PageSize()
    row = "x" * 981_000
    pages.bodies = [
        page(*[(str(n), row) for n in range(FIRST_PAGE_ROWS)]),
        *[page(("a", row), ("b", row))] * 3,
    ]
    async for fetched, _ in scan_range(pages, EVERYTHING, size):
        assert fetched.full
        assert fetched.bytes <= FIRST_PAGE_ROWS * 2**20
    assert tops(pages) == ["8", "2", "2", "2"]
    assert tops(pages)[1] == str(PAGE_BYTES // 981_000)
    # What one scan saw counts in the next one.
    again = Pages(0)
    assert not (await anext(scan_range(again, EVERYTHING, size)))[1]
    assert tops(again) == ["2"]


async def test_pages_of_small_rows_are_full_behind_the_first_of_a_table() -> None:
    pages, size = Pages(2), PageSize()
    pages.bodies = [page(*[(str(n), "x" * 1_000) for n in range(FIRST_PAGE_ROWS)])]
    assert [fetched.full async for fetched, _ in scan_range(pages, EVERYTHING, size)] == [True, False, False]
    assert tops(pages) == ["8", "", ""]
    again = Pages(0)
    assert not (await anext(scan_range(again, EVERYTHING, size)))[1]
    assert tops(again) == [""]


def test_a_few_odd_rows_change_little_and_few_rows_prove_nothing() -> None:
    size = PageSize()
    size.saw(1, 100)
    assert size.next_rows(1000) == FIRST_PAGE_ROWS
    for _ in range(10):
        size.saw(1000, 500_000)
    size.saw(1, 2**20)
    assert size.next_rows(1000) > 500
    size.saw(1000, 500_000)
    assert size.next_rows(1000) == 1000
    assert size.next_rows(5) == 5
    size = PageSize()
    for _ in range(10):
        size.saw(1, 3 * 2**20)
        assert size.next_rows(1000) == 1


async def test_where_a_continuation_is_too_long_the_query_is_made_again_behind_the_last_row() -> None:
    """Its keys would come on top of those of the filter."""
    partition, begin = "漢" * 512, "字" * 500
    pages = Pages(2)
    pages.row_keys = dict.fromkeys(range(3), "x" * 4_000)
    pages.bodies = [page_of(partition, begin + "1"), page_of(partition, begin + "2")]
    within = KeyRange(EntityKey(partition, begin + "0"), EntityKey(partition, begin + "9"))
    read = [row["RowKey"][-1] async for one, _ in scan_range(pages, within, PageSize(0)) for row in one.rows]
    assert read[:2] == ["1", "2"]
    assert every(len(one) <= MAX_ADDRESS_BYTES and "NextRowKey" not in one for one in pages.asked)
    assert [quote(begin + end) in one for one, end in zip(pages.asked, "012", strict=True)] == [True] * 3


async def test_behind_an_empty_page_its_continuation_is_all_there_is() -> None:
    partition, begin = "漢" * 512, "字" * 512
    pages = Pages(1)
    pages.row_keys = {0: "x" * 4_000}
    pages.bodies = [page()]
    within = KeyRange(EntityKey(partition, begin), None)
    async with aclosing(scan_range(pages, within, PageSize(0))) as found:
        assert (await anext(found))[1]
        await anext(found)
    assert "NextRowKey=xxx" in pages.asked[1]


async def test_nothing_is_asked_for_behind_the_end_of_a_range() -> None:
    """A bound that was shortened lets rows beyond it through."""
    pages = Pages()
    pages.bodies = [page(("a", ""), ("b", "")), page(("c", ""), ("d", ""), ("e", ""))]
    within = KeyRange(EntityKey("p", ""), EntityKey("p", "d"))
    read = [
        ([row["RowKey"] for row in one.rows], more)
        async for one, more in scan_range(pages, within, PageSize(0))
    ]
    assert read == [(["a", "b"], True), (["c", "d"], False)]
    assert len(pages.asked) == 2
