"""Pages of queries: one is fetched ahead and waits as bytes, and a scan that is given up leaves nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from rekey.tables import readers
from rekey.tables.paging import read_queries
from rekey.tables.transport import Answer, Request
from rekey.tables.wire import decode_rows


class Pages:
    """Answers queries with pages of one row, numbered as they are asked for."""

    def __init__(self, *ends: int) -> None:
        self.ends = ends
        self.asked: list[str] = []
        self.bodies: list[bytes | None] = []

    async def read(self, request: Request, read: Callable[[Answer], Any]) -> Any:
        number = len(self.asked)
        self.asked.append(request.path)
        await asyncio.sleep(0)
        following = {} if number in self.ends else {"x-ms-continuation-NextPartitionKey": str(number)}
        body = json.dumps({"value": [{"RowKey": str(number)}]}).encode()
        return read(Answer(200, following, self.bodies.pop(0) or body if self.bodies else body, False))


def scan(pages: Pages, *queries: str) -> Any:
    return read_queries(pages, "Users", [[("$filter", one)] for one in queries])  # type: ignore[arg-type]


async def test_queries_are_read_to_their_ends_one_after_the_other() -> None:
    pages = Pages(1, 2)
    async with aclosing(scan(pages, "a", "b")) as found:
        read = [(fetched.rows[0]["RowKey"], more) async for fetched, more in found]
    assert read == [("0", True), ("1", True), ("2", False)]
    assert pages.asked == [
        "Users()?$filter=a",
        "Users()?$filter=a&NextPartitionKey=0",
        "Users()?$filter=b",
    ]
    assert [one async for one in scan(pages)] == []


async def test_one_page_is_fetched_ahead_and_becomes_rows_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[bytes] = []

    def decode(body: bytes) -> Any:
        decoded.append(body)
        return decode_rows(body)

    monkeypatch.setattr(readers, "decode_rows", decode)
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
    async with aclosing(read_queries(pages, "Users", [[]], ahead=False)) as found:  # type: ignore[arg-type]
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
