"""What one piece of work sends, counted beside what its whole account does.

Rules kept here:

* The count travels with the task that works (a context variable) and with those that it makes, so processes
  that share one connection for several pieces of work count each for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_TALLY: ContextVar[Counter[str] | None] = ContextVar("tally", default=None)


@contextmanager
def tallied() -> Iterator[Counter[str]]:
    """Count the requests that are sent within, by kind (`rekey.tables.sent`)."""
    tally = Counter[str]()
    token = _TALLY.set(tally)
    try:
        yield tally
    finally:
        _TALLY.reset(token)


def current() -> Counter[str] | None:
    """Return where whoever works now counts what is sent; None where nobody does."""
    return _TALLY.get()
