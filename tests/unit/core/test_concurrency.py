"""Bounded fan-out: a bound that holds, one error that ends everything."""

from __future__ import annotations

import asyncio

import pytest

from rekey.core.concurrency import for_each, gather


async def test_never_more_than_the_limit_are_under_way() -> None:
    under_way = peak = 0

    async def work(_item: int) -> None:
        nonlocal under_way, peak
        under_way += 1
        peak = max(peak, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    await for_each(range(50), work, limit=7)
    assert peak == 7
    assert under_way == 0


async def test_every_item_is_worked_on_once() -> None:
    seen = []

    async def work(item: int) -> None:
        await asyncio.sleep(0)
        seen.append(item)

    await for_each(iter(range(20)), work, limit=3)
    assert sorted(seen) == list(range(20))


async def test_the_first_error_is_raised_itself_and_the_others_are_cancelled() -> None:
    cancelled = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError("the first")

    with pytest.raises(LookupError, match="the first"):
        await gather([hang(), fail(), hang()])
    assert cancelled == [True, True]


async def test_nothing_to_do_is_done_at_once() -> None:
    await gather([])
