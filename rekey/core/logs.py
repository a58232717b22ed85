"""Logging: what is shown on standard error, and what is withheld.

Rules kept here:

* Only rekey's own loggers are shown with their text. Their records hold no key, no secret and no address.
* Of other libraries (azure, aiohttp, asyncio, ...) a record's text may hold an address, and an address holds
  keys: from WARNING on it is shown that there was a record, never its text; below WARNING nothing is shown.
* No traceback is printed with a record: what the text of an exception holds is not known.
* As JSON each record, note and error is one event on one line, with a name of `EVENTS`: names stay, words may
  change. What else reaches standard error (a script that prints) is told as an event without its text.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rekey.core.clock import format_ticks
from rekey.errors import one_line

# The names of all events; `docs/reference/commands.md` says what each one tells.
EVENTS = (
    *("phase-begun", "phase-done", "phase-stopped", "phase-undone"),
    *("pass-begun", "pass", "pass-done", "verification-resumed", "verification-anew"),
    *("wait", "answers-again", "following", "proceed-heard", "cutover-refused", "hook-failed"),
    *("steered", "freeze-left", "freeze-left-behind", "intent-given-up"),
    *("keys-rewrapped", "keys-proved", "clients-not-purged", "erasure-finished", "compares-first"),
    *("request", "request-retried", "lease-not-returned", "task-failed", "executor-broke", "worker-broken"),
    *("shadow-read-failed", "shadow-read-differs", "replicas-behind", "client-row-left", "client-lease"),
    *("pushed-back", "serving", "proxied", "certificate", "policies"),
    *("warning", "error", "stopping", "note", "library", "output-withheld"),
)
WITHHELD = "text withheld: it may hold keys"


def json_line(event: str, text: str, level: str = "info", **figures: object) -> str:
    """Return an event as one line of JSON, in ASCII.

    Args:
        event: its name, of `EVENTS`.
        text: the sentence for people.
        level: of its logger: `debug`, `info`, `warning` or `error`.
        figures: further members.
    """
    at = format_ticks(time.time_ns() // 100)
    return json.dumps({"at": at, "level": level, "event": event, "text": text, **figures}, default=str)


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
        return f"{record.levelname} {record.name}: ({WITHHELD})"


class _OwnAsJson(_Own):
    """Formatter of rekey's own records as events."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the event."""
        event, figures = getattr(record, "event", "note"), getattr(record, "figures", {})
        return json_line(event, record.message, record.levelname.lower(), logger=record.name, **figures)


class _WithheldAsJson(logging.Formatter):
    """Formatter of other libraries' records as events."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the event."""
        return json_line("library", WITHHELD, record.levelname.lower(), logger=record.name)


class _Stream(logging.StreamHandler[TextIO]):
    """Handler for what is standard error when it is made; failures to write (to a closed one) are ignored."""

    def __init__(self, formatter: logging.Formatter, level: int) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.setLevel(level)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Ignore the failure: the usual handling prints the record with its arguments."""


@contextmanager
def configured() -> Iterator[Callable[[TextIO], None]]:
    """Log as the rules say within the context, and as before after it.

    Yields:
        Function that logs as JSON from then on, to a stream.
    """
    root, own = logging.getLogger(), logging.getLogger("rekey")
    before = (own.level, own.propagate)
    ours = _Stream(_Own("%(levelname)s %(name)s: %(message)s"), logging.DEBUG)
    theirs = _Stream(_Withheld(), logging.WARNING)

    def as_json(stream: TextIO) -> None:
        for handler, formatter in ((ours, _OwnAsJson()), (theirs, _WithheldAsJson())):
            handler.setFormatter(formatter)
            handler.setStream(stream)

    own.addHandler(ours)
    own.propagate = False
    own.setLevel(logging.WARNING)
    root.addHandler(theirs)
    try:
        yield as_json
    finally:
        root.removeHandler(theirs)
        own.removeHandler(ours)
        logging.getLogger("rekey.tables").setLevel(logging.NOTSET)
        own.setLevel(before[0])
        own.propagate = before[1]
