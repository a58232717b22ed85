"""What is checked for every attempt of a request, not once per request: permission to write, and rate limits.
Both travel with the asyncio task that sends (context variables), so that pieces of work that share a
connection have checks of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


def always() -> None:
    """Allow every write: the default."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The callbacks of a request that took from a rate limit."""

    # Called when the service refused the request, or it was never sent: nothing was done for it.
    refused: Callable[[], None]
    # Awaited before the next attempt; returns when it may be sent. Otherwise requests refused at one moment
    # would all be resent on top of the usual ones, and be refused again.
    again: Callable[[], Awaitable[None]]
    # Which partition it asks, None if unknown.
    partition: Hashable = None


_MAY_WRITE: ContextVar[Callable[[], None]] = ContextVar("may_write", default=always)
_TAKEN: ContextVar[Taken | None] = ContextVar("taken", default=None)


def while_allowed(may_write: Callable[[], None]) -> AbstractContextManager[None]:
    """Return a context in which `may_write` is called before each attempt to write; it forbids one by raising
    an error. The process may have been suspended until then."""
    return _within(_MAY_WRITE, may_write)


def while_also(may_write: Callable[[], None]) -> AbstractContextManager[None]:
    """Return a context in which `may_write` is called after the check that is already set."""
    before = _MAY_WRITE.get()

    def both() -> None:
        before()
        may_write()

    return _within(_MAY_WRITE, both)


def at_a_rate(taken: Taken) -> AbstractContextManager[None]:
    """Return a context in which `taken` is called on each refusal, and before the next attempt."""
    return _within(_TAKEN, taken)


@contextmanager
def _within(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def check() -> None:
    """Call the check that is set (`while_allowed`); it raises when nothing may be sent any more."""
    _MAY_WRITE.get()()


def taken() -> Taken | None:
    """Return what was taken for the request that is being sent; None where nothing was."""
    return _TAKEN.get()


def refused() -> None:
    """Tell the rate limit that a request was refused, or never sent."""
    if (taken := _TAKEN.get()) is not None:
        taken.refused()


async def again() -> None:
    """Wait until the rate limit lets a refused request be sent again."""
    if (taken := _TAKEN.get()) is not None:
        await taken.again()
