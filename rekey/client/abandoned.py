"""Calls whose callers are gone: a call that is cancelled ends by itself, and sends nothing new."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from rekey.errors import WritesRefused

T = TypeVar("T")
ABANDONED = "abandoned"


@dataclass(eq=False, slots=True)
class _Call:
    # Whether its caller was cancelled.
    abandoned: bool = False


_CALL: ContextVar[_Call | None] = ContextVar("call", default=None)
# The event loop keeps weak references alone.
_RUNNING: set[asyncio.Future[Any]] = set()


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await a call. If its caller is cancelled, the call goes on in the background: to the sending of its
    write, or to its end if that is behind it."""
    # A request that is cut off has an unknown outcome: its intent would stay for as long as it may take
    # effect, and a freeze would wait for that.
    call = _Call()
    token = _CALL.set(call)
    try:
        task = asyncio.ensure_future(work)  # with a copy of the context
    finally:
        _CALL.reset(token)
    _RUNNING.add(task)
    task.add_done_callback(_ended)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        call.abandoned = True
        raise
    return task.result()


def require_caller() -> None:
    """Raise WritesRefused if the caller of the call is gone."""
    call = _CALL.get()
    if call is not None and call.abandoned:
        raise WritesRefused(ABANDONED, "nothing was written: the caller is gone", hint="write again")


def _ended(task: asyncio.Future[Any]) -> None:
    _RUNNING.discard(task)
    if not task.cancelled():
        task.exception()  # of no interest if nobody waits for it
