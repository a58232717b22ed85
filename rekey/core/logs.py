"""Logging to standard error. Only rekey's own records show their text, and they hold no key, secret or
address. Other libraries' texts may hold addresses, and addresses hold keys: from WARNING up only level and
logger are shown, below nothing."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rekey.core.clock import format_ticks
from rekey.errors import one_line

# Event names are stable, their texts are not. `docs/reference/commands.md` describes each event.
EVENTS = (
    *("phase-begun", "phase-done", "phase-stopped", "phase-undone"),
    *("pass-begun", "pass", "pass-done", "verification-resumed", "verification-anew"),
    *("wait", "answers-again", "following", "proceed-heard", "cutover-refused", "hook-failed"),
    *("steered", "freeze-left", "freeze-left-behind", "intent-given-up"),
    *("keys-rewrapped", "keys-proved", "root-key-gone"),
    *("clients-not-purged", "erasure-finished", "compares-first"),
    *("odd-keys-untried", "addresses-misread", "rows-not-migrated"),
    *("request", "request-retried", "lease-not-returned", "task-failed", "executor-broke", "worker-broken"),
    *("shadow-read-failed", "shadow-read-differs", "replicas-behind", "client-row-left", "client-lease"),
    *("pushed-back", "serving", "proxied", "certificate", "policies", "signing-keys"),
    *("warning", "error", "stopping", "note", "library", "output-withheld"),
)
WITHHELD = "text withheld: it may hold keys"


def json_line(event: str, text: str, level: str = "info", **figures: object) -> str:
    """Return an event as one line of ASCII JSON.

    Args:
        event: its name, from `EVENTS`.
        text: the sentence for people.
        level: `debug`, `info`, `warning` or `error`.
        figures: further members.
    """
    at = format_ticks(time.time_ns() // 100)
    return json.dumps({"at": at, "level": level, "event": event, "text": text, **figures}, default=str)


class _Own(logging.Formatter):
    """Formats rekey's own records, one line each; of exceptions only the type, as texts may hold anything."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return one_line(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        kind = ei[0] if isinstance(ei, tuple) else None
        return f"({kind.__name__})" if isinstance(kind, type) else ""

    def formatStack(self, stack_info: str) -> str:  # noqa: ARG002, N802 - logging's name
        """Return "": a stack shows source lines of scripts."""
        return ""


class _Withheld(logging.Formatter):
    """Formats other libraries' records without their text."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname} {record.name}: ({WITHHELD})"


class _OwnAsJson(_Own):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        event, figures = getattr(record, "event", "note"), getattr(record, "figures", {})
        return json_line(event, record.message, record.levelname.lower(), logger=record.name, **figures)


class _WithheldAsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json_line("library", WITHHELD, record.levelname.lower(), logger=record.name)


class _Stream(logging.StreamHandler[TextIO]):
    """Handler for the stream that is standard error when it is made."""

    def __init__(self, formatter: logging.Formatter, level: int) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.setLevel(level)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Ignore failed writes: the default handling prints the record with its arguments."""


@contextmanager
def configured() -> Iterator[Callable[[TextIO], None]]:
    """Configure logging within the context and restore it afterwards.

    Yields:
        A function that switches logging to JSON on the given stream.
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
