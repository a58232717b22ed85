"""Audit events: a chain in which every event holds the hash of the one before it.

Rules kept here:

* An event is one line of RFC 8785 JSON: format, seq, at, actor, host, command, event, script_id, details and
  prev. Its hash is SHA-256 over the line; `prev` is the hash of the line before. The same lines are the
  leaves of the Merkle tree that a checkpoint signs (`rekey.evidence`).
* Events of format 1 (before host and command were recorded) keep the line they were hashed with: sorted
  names, no white space, UTF-8, seven members. A chain may begin with them and goes on in format 2.
* Integers beyond 2^53 stand as strings, because RFC 8785 has no numbers for them; NaN is refused.
* Events are only ever added; the database refuses updates and deletes, and the chain shows those that were
  made in spite of that. The chain alone cannot show that its end was cut off: checkpoints do.
* Details name rows by safe id; they hold no old key and no secret. The command is recorded without the texts
  that were typed (`COMMAND`).
* An erasure is two events: one before anything is deleted, with what is to be erased and why, and one after
  it, with what was deleted. The second names the first. An erasure without a second event is not ended, and
  the next command ends it.
* The mapping is compared with what the log says was erased: a row or a data key that exists again was put
  back.
"""

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
# The format of new events.
FORMAT = 2
_HASHED = ("seq", "at", "actor", "event", "script_id", "details", "prev")
_LARGEST_INTEGER = 2**53 - 1

# Events that the gate before `retire` looks for.
EVIDENCE_EXPORTED = "evidence-exported"
EVIDENCE_VERIFIED = "evidence-verified"

# Event: index tables were handed over to the application after `complete`.
HANDED_OVER = "handed-over"

# Events before and after each erasure from a mapping (`Erasures`).
ERASURE_BEGUN = "erasure-begun"
ERASURE_ENDED = "erasure-ended"
# Kinds of erasures: subjects by their rows, cohorts by their data keys, a mapping in the clear entirely.
SUBJECTS, COHORTS, MAPPING = "subjects", "cohorts", "mapping"

# The command that runs in this context, as events record it; set by the command line.
COMMAND: ContextVar[str | None] = ContextVar("COMMAND", default=None)


@dataclass(frozen=True)
class AuditEvent:
    """One audit event: something that was done.

    Attributes:
        seq: 1, 2, 3, ... without a gap.
        at: UTC, ISO 8601 with microseconds.
        actor: the operating system's user.
        event: what was done, e.g. `phase-done`.
        script_id: the migration, None for events that belong to no single migration.
        details: JSON-able.
        prev: hash of the event before, 64 zeros for the first.
        hash: of this event, hex SHA-256.
        host: the machine's name; None in format 1.
        command: the command, without the texts that were typed; None in format 1, and when no command runs.
        format: 1 or 2; it decides what the line holds.
    """

    seq: int
    at: str
    actor: str
    event: str
    script_id: str | None
    details: Mapping[str, Any]
    prev: str
    hash: str
    host: str | None = None
    command: str | None = None
    format: int = 1

    @cached_property
    def line(self) -> bytes:
        """The bytes that are hashed, without a line end."""
        content: dict[str, Any] = {name: getattr(self, name) for name in _HASHED}
        if self.format == 1 and self.host is None and self.command is None:
            return canonical_json(content).encode()
        content |= {"format": self.format, "host": self.host, "command": self.command}
        return rfc8785.dumps(content)

    def computed_hash(self) -> str:
        """Return the hash that this event's content must have."""
        return hashlib.sha256(self.line).hexdigest()


def chained(
    last: AuditEvent | None, at: str, event: str, script_id: str | None, details: Mapping[str, Any]
) -> AuditEvent:
    """Return the event that follows `last` in the chain, by this user, machine and command.

    Raises:
        ValueError: NaN or an infinity in the details.
    """
    seq = 1 if last is None else last.seq + 1
    prev = FIRST_PREV if last is None else last.hash
    # the hash must match what is read back from the file: tuples become lists before hashing
    plain = json.loads(rfc8785.dumps(expressible(dict(details))))
    actor, host, command = shown(current_actor()), shown(current_host()), shown(COMMAND.get())
    bare = AuditEvent(seq, at, actor, event, script_id, plain, prev, "", host, command, FORMAT)
    return replace(bare, hash=bare.computed_hash())


def first_broken(events: Iterable[AuditEvent]) -> int | None:
    """Return the seq at which the chain breaks first (changed, removed, inserted), None when it holds."""
    prev = FIRST_PREV
    for seq, event in enumerate(events, start=1):
        if event.seq != seq or event.prev != prev or event.hash != event.computed_hash():
            return seq
        prev = event.hash
    return None


@dataclass(frozen=True, slots=True)
class Erasures:
    """The erasures of one migration, as the audit log records them.

    Attributes:
        rows: the day on which the mapping rows of a source row were erased, by safe id.
        cohorts: the day on which a cohort's data key was shredded, by cohort.
        whole: the day on which a mapping in the clear was erased as a whole, "" if it was not.
        open: the first events of erasures that were begun and not ended.
    """

    rows: dict[str, str] = field(default_factory=dict)
    cohorts: dict[str, str] = field(default_factory=dict)
    whole: str = ""
    open: tuple[AuditEvent, ...] = ()


def erasures(events: Iterable[AuditEvent]) -> Erasures:
    """Return the erasures that the events of one migration record.

    Args:
        events: the events, in order.
    """
    rows: dict[str, str] = {}
    cohorts: dict[str, str] = {}
    whole, begun = "", dict[int, AuditEvent]()
    for event in events:
        if event.event == ERASURE_BEGUN:
            begun[event.seq] = event
        if event.event != ERASURE_ENDED:
            continue
        said = event.details
        begun.pop(said["begun"], None)
        rows.update(dict.fromkeys(said.get("rows", ()), said["on"]))
        cohorts.update(dict.fromkeys(said.get("cohorts", ()), said["on"]))
        if said["kind"] == MAPPING and not said["kept_rows"]:
            whole = said["on"]
    return Erasures(rows, cohorts, whole, tuple(begun.values()))


def expressible(value: Any) -> Any:
    """Return a value in a form that RFC 8785 has: large integers as strings, lone surrogates escaped."""
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
    """Return JSON with sorted names and no white space, as columns hold it. Raises ValueError for NaN."""
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
