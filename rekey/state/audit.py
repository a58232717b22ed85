"""The audit log: a chain in which every event holds the hash of the one before it. The chain shows events
that were changed or removed in the middle; that its end was cut off is shown by checkpoints
(`rekey.evidence`), whose Merkle tree has the same lines as leaves."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import rfc8785

FIRST_PREV = "0" * 64
# The format of new events. Format 1, before host and command were recorded, keeps the line it was hashed
# with; a chain may begin with it.
FORMAT = 2
_HASHED = ("seq", "at", "actor", "event", "script_id", "details", "prev")
_LARGEST_INTEGER = 2**53 - 1

# Events that the gate before `retire` looks for.
EVIDENCE_EXPORTED = "evidence-exported"
EVIDENCE_VERIFIED = "evidence-verified"

# Event: the export that was compared with the source before `retire` deletes it, or why there is none.
BACKED_UP = "retire-backup"

# Event: index tables were handed over to the application after `complete`.
HANDED_OVER = "handed-over"

# Events before and after each erasure from a mapping (`Erasures`): what is to be erased and why; what was
# deleted. An erasure without the second event is finished by the next command.
ERASURE_BEGUN = "erasure-begun"
ERASURE_ENDED = "erasure-ended"
# Kinds of erasures: subjects by their rows, cohorts by their data keys, a mapping in the clear entirely.
SUBJECTS, COHORTS, MAPPING = "subjects", "cohorts", "mapping"

# The command that runs in this context, without the texts that were typed; set by the command line.
COMMAND: ContextVar[str | None] = ContextVar("COMMAND", default=None)


@dataclass(frozen=True)
class AuditEvent:
    """One audit event. Its details name rows by safe id and hold no old key and no secret."""

    # 1, 2, 3, ... without a gap.
    seq: int
    # UTC, ISO 8601 with microseconds.
    at: str
    # The operating system's user.
    actor: str
    event: str
    # None for events that belong to no single migration.
    script_id: str | None
    details: Mapping[str, Any]
    # Hash of the event before, hex SHA-256; 64 zeros for the first.
    prev: str
    hash: str
    # None in format 1; `command` also when no command runs.
    host: str | None = None
    command: str | None = None
    format: int = 1

    @cached_property
    def line(self) -> bytes:
        """The bytes that are hashed, without a line end: RFC 8785 JSON in format 2."""
        content: dict[str, Any] = {name: getattr(self, name) for name in _HASHED}
        if self.format == 1 and self.host is None and self.command is None:
            return canonical_json(content).encode()
        content |= {"format": self.format, "host": self.host, "command": self.command}
        return rfc8785.dumps(content)

    def computed_hash(self) -> str:
        return hashlib.sha256(self.line).hexdigest()


def chained(
    last: AuditEvent | None, at: str, event: str, script_id: str | None, details: Mapping[str, Any]
) -> AuditEvent:
    """Return the event that follows `last` in the chain, by this user, machine and command. Raises ValueError
    for NaN or an infinity in the details."""
    seq = 1 if last is None else last.seq + 1
    prev = FIRST_PREV if last is None else last.hash
    # The hash must match what is read back from the file: tuples become lists before hashing.
    plain = json.loads(rfc8785.dumps(expressible(dict(details))))
    actor, host, command = shown(current_actor()), shown(current_host()), shown(COMMAND.get())
    bare = AuditEvent(seq, at, actor, event, script_id, plain, prev, "", host, command, FORMAT)
    return replace(bare, hash=bare.computed_hash())


def first_broken(events: Iterable[AuditEvent]) -> int | None:
    """Return the seq at which the chain first breaks (changed, removed, inserted); None: it holds."""
    prev = FIRST_PREV
    for seq, event in enumerate(events, start=1):
        if event.seq != seq or event.prev != prev or event.hash != event.computed_hash():
            return seq
        prev = event.hash
    return None


@dataclass(frozen=True, slots=True)
class Erasures:
    """The erasures of one migration, as the audit log records them; days by safe id and by cohort. A row or
    data key of these that exists again was put back."""

    rows: dict[str, str] = field(default_factory=dict)
    cohorts: dict[str, str] = field(default_factory=dict)
    # The day on which a mapping in the clear was erased as a whole; "": it was not.
    whole: str = ""
    # First events of erasures that were begun and not ended.
    open: tuple[AuditEvent, ...] = ()


def erasures(events: Iterable[AuditEvent]) -> Erasures:
    """Return the erasures that the events of one migration, in order, record."""
    rows: dict[str, str] = {}
    cohorts: dict[str, str] = {}
    whole, begun = "", dict[int, AuditEvent]()
    for event in events:
        if event.event == ERASURE_BEGUN:
            begun[event.seq] = event
        if event.event != ERASURE_ENDED:
            continue
        details = event.details
        begun.pop(details["begun"], None)
        rows.update(dict.fromkeys(details.get("rows", ()), details["on"]))
        cohorts.update(dict.fromkeys(details.get("cohorts", ()), details["on"]))
        if details["kind"] == MAPPING and not details["kept_rows"]:
            whole = details["on"]
    return Erasures(rows, cohorts, whole, tuple(begun.values()))


def expressible(value: Any) -> Any:
    """Return a value as RFC 8785 can express it: large integers as strings, lone surrogates escaped."""
    if isinstance(value, Mapping):
        return {shown(str(name)): expressible(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [expressible(member) for member in value]
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST_INTEGER:
        return str(value)
    return value


def shown(text: Any) -> Any:
    """Return a text with lone surrogates, which UTF-8 cannot encode, escaped; other values unchanged."""
    return text.encode("utf-8", "backslashreplace").decode() if isinstance(text, str) else text


def canonical_json(value: object) -> str:
    """Return JSON with sorted names and no white space. Raises ValueError for NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def current_actor() -> str:
    """Return the operating system's user, or `uid-N` in a container whose user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"


def current_host() -> str:
    """Return this machine's own name for itself, without a network request."""
    return socket.gethostname()


def utc_text(moment: datetime) -> str:
    """Return a moment as `2024-01-31T12:00:00.123456Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def utc_now() -> datetime:
    """Return the time of this machine's clock, in UTC."""
    return datetime.now(UTC)
