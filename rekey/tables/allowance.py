"""What counts for every attempt of a request, not once: what is sent again after a wait is sent now.

Rules kept here:

* Where work is allowed for a limited time, whether a write may still be sent is asked before every attempt,
  when its first bytes are about to go out: a process may stand still until then.
* Who took of a rate for a request hears when the service refuses it, and takes again before it is sent again.
  Else all that was refused in one moment would come on top of what is sent anyway, be refused again, and so
  on for as long as the service has less left over than comes.
* Both travel with the task that asks (context variables), so processes that share one connection for several
  pieces of work ask each for its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


def always() -> None:
    """Allow everything: the default."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken of a rate for a request.

    Attributes:
        refused: told that the service refused the request, and did nothing.
        again: returns when it may be sent again.
    """

    refused: Callable[[], None]
    again: Callable[[], Awaitable[None]]


_MAY_WRITE: ContextVar[Callable[[], None]] = ContextVar("may_write", default=always)
_TAKEN: ContextVar[Taken | None] = ContextVar("taken", default=None)


def while_allowed(may_write: Callable[[], None]) -> AbstractContextManager[None]:
    """Have `may_write` called before each write that is sent within; it raises to forbid one."""
    return _within(_MAY_WRITE, may_write)


def while_also(may_write: Callable[[], None]) -> AbstractContextManager[None]:
    """Have `may_write` called besides what is called already."""
    before = _MAY_WRITE.get()

    def both() -> None:
        before()
        may_write()

    return _within(_MAY_WRITE, both)


def at_a_rate(taken: Taken) -> AbstractContextManager[None]:
    """Have `taken` hear of each refusal, and asked before each further attempt, of requests sent within."""
    return _within(_TAKEN, taken)


@contextmanager
def _within(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def check() -> None:
    """Ask the allowance that is set; it raises when nothing may be sent any more."""
    _MAY_WRITE.get()()


def refused() -> None:
    """Say that a request was refused, or never sent: nothing was done for it."""
    if (taken := _TAKEN.get()) is not None:
        taken.refused()


async def again() -> None:
    """Return when a request that was refused may be sent again."""
    if (taken := _TAKEN.get()) is not None:
        await taken.again()
