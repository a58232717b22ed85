"""Logging: what is shown on standard error, and what is withheld.

Rules kept here:

* Only rekey's own loggers are shown with their text. Their records hold no key, no secret and no address.
* Of other libraries (azure, aiohttp, asyncio, ...) a record's text may hold an address, and an address holds
  keys: from WARNING on it is shown that there was a record, never its text; below WARNING nothing is shown.
* No traceback is printed with a record: what the text of an exception holds is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rekey.errors import one_line


class _Own(logging.Formatter):
    """Formatter of rekey's own records, one line each; of an exception it shows only the type."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        """Return the type of the exception."""
        kind = ei[0] if isinstance(ei, tuple) else None
        return f"({kind.__name__})" if isinstance(kind, type) else ""

    def formatStack(self, stack_info: str) -> str:  # noqa: ARG002, N802 - logging's name
        """Return "": a stack shows source lines of scripts."""
        return ""


class _Withheld(logging.Formatter):
    """Formatter of other libraries' records, which withholds their text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return level and logger."""
        return f"{record.levelname} {record.name}: (text withheld: it may hold keys)"


class _Stream(logging.StreamHandler[TextIO]):
    """Handler for what is standard error when it is made; failures to write (to a closed one) are ignored."""

    def __init__(self, formatter: logging.Formatter, level: int) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.setLevel(level)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Ignore the failure: the usual handling prints the record with its arguments."""


@contextmanager
def configured() -> Iterator[None]:
    """Log as the rules say within the context, and as before after it."""
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
