"""Whether a write may still be sent: asked before every attempt, by whoever works for a limited time.

Rules kept here:

* The question travels with the task that asks (a context variable), so processes that share one connection
  for several pieces of work ask each for its own.
* It is asked before every attempt, not once for every write: what is sent again after a wait is sent now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


def always() -> None:
    """Allow everything: what counts where nobody says otherwise."""


_MAY_WRITE: ContextVar[Callable[[], None]] = ContextVar("may_write", default=always)


@contextmanager
def while_allowed(may_write: Callable[[], None]) -> Iterator[None]:
    """Have `may_write` called before each write that is sent within; it raises to forbid one."""
    token = _MAY_WRITE.set(may_write)
    try:
        yield
    finally:
        _MAY_WRITE.reset(token)


def check() -> None:
    """Raise what whoever set the allowance raises when nothing may be sent any more."""
    _MAY_WRITE.get()()
