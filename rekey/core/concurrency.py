"""Bounded concurrency for the engines. The first error cancels the other tasks and is raised itself, not in
an ExceptionGroup, so that one failed request looks the same alone and among a thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[object]], *, limit: int) -> None:
    """Await `work(item)` for every item, at most `limit` at once. Raises the first error."""
    queue = iter(items)

    async def worker() -> None:
        # The iterator is shared: each worker takes the next item when it is free.
        for item in queue:
            await work(item)

    await gather(worker() for _ in range(limit))


async def gather(coroutines: Iterable[Awaitable[object]]) -> None:
    """Await all; on the first error cancel the others, await them, then raise it."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION) if tasks else (set(), set())
        for task in done:
            task.result()
    finally:
        await cancel(tasks)


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended; their errors are ignored."""
    pending = list(tasks)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


async def first_of(event: asyncio.Event, sleep: Awaitable[object]) -> None:
    """Wait for an event, or until `sleep` returns."""
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(sleep)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(waits)
