"""Logging: what may be read on standard error, and what may not.

Rules kept here:

* Only rekey's own loggers are shown with their text. Their records hold no key, no secret and no address.
* Of other libraries (azure, aiohttp, asyncio, ...) a record's text may hold an address, and an address holds
  keys: from WARNING on it is said that there was one, never what it said; below WARNING nothing is said.
* No traceback is printed with a record: the text of an exception is not ours to vouch for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rekey.errors import one_line


class _Own(logging.Formatter):
    """Formats our own records, one line each; of an exception only its type."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        """Return the type of the exception."""
        kind = ei[0] if isinstance(ei, tuple) else None
        return f"({kind.__name__})" if isinstance(kind, type) else ""

    def formatStack(self, stack_info: str) -> str:  # noqa: ARG002, N802 - logging's name
        """Return nothing: a stack shows source lines of scripts."""
        return ""


class _Withheld(logging.Formatter):
    """Says that a library logged something."""

    def format(self, record: logging.LogRecord) -> str:
        """Return level and logger."""
        return f"{record.levelname} {record.name}: (text withheld: it may hold keys)"


class _Stream(logging.StreamHandler[TextIO]):
    """Writes to what standard error is now, and gives up quietly when it is closed."""

    def __init__(self, formatter: logging.Formatter, level: int) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.setLevel(level)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say nothing: the usual answer prints the record with its arguments."""


@contextmanager
def configured() -> Iterator[None]:
    """Log as the rules say for the time of one call, then as before."""
    root, own = logging.getLogger(), logging.getLogger("rekey")
    before = (own.level, own.propagate)
    ours = _Stream(_Own("%(levelname)s %(name)s: %(message)s"), logging.DEBUG)
    theirs = _Stream(_Withheld(), logging.WARNING)
    own.addHandler(ours)
    own.propagate = False
    own.setLevel(logging.WARNING)
    root.addHandler(theirs)
    try:
        yield
    finally:
        root.removeHandler(theirs)
        own.removeHandler(ours)
        own.setLevel(before[0])
        own.propagate = before[1]
