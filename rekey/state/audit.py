"""Audit events: a chain in which every event holds the hash of the one before it.

Rules kept here:

* hash = SHA-256 over the canonical JSON of seq, at, actor, event, script_id, details and prev. Canonical:
  names sorted, no white space, UTF-8, no NaN.
* Events are only ever added; the database refuses updates and deletes, and the chain shows what was done
  behind its back. What the chain alone cannot show is that its end was cut off: evidence anchors its head.
* Details name rows by safe id; no legacy key, no secret.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

FIRST_PREV = "0" * 64


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One thing that was done.

    Attributes:
        seq: 1, 2, 3, ... without a gap.
        at: UTC, ISO 8601 with microseconds.
        actor: the operating system's user.
        event: what was done, e.g. `phase.finished`.
        script_id: the migration, None for events of the whole state.
        details: JSON-able.
        prev: hash of the event before, 64 zeros for the first.
        hash: of this event, hex SHA-256.
    """

    seq: int
    at: str
    actor: str
    event: str
    script_id: str | None
    details: Mapping[str, Any]
    prev: str
    hash: str

    def computed_hash(self) -> str:
        """Return the hash that this event's content must have."""
        content = {
            "seq": self.seq,
            "at": self.at,
            "actor": self.actor,
            "event": self.event,
            "script_id": self.script_id,
            "details": self.details,
            "prev": self.prev,
        }
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def chained(
    last: AuditEvent | None,
    *,
    at: str,
    actor: str,
    event: str,
    script_id: str | None,
    details: Mapping[str, Any],
) -> AuditEvent:
    """Return the event that follows `last` in the chain."""
    seq = 1 if last is None else last.seq + 1
    prev = FIRST_PREV if last is None else last.hash
    # what is hashed is what will be read back: tuples become lists here, not later
    plain = json.loads(canonical_json(details))
    bare = AuditEvent(seq, at, actor, event, script_id, plain, prev, "")
    return AuditEvent(seq, at, actor, event, script_id, plain, prev, bare.computed_hash())


def first_broken(events: Iterable[AuditEvent]) -> int | None:
    """Return the seq at which the chain breaks first (changed, removed, inserted), None when it holds."""
    prev = FIRST_PREV
    for seq, event in enumerate(events, start=1):
        if event.seq != seq or event.prev != prev or event.hash != event.computed_hash():
            return seq
        prev = event.hash
    return None


def canonical_json(value: object) -> str:
    """Return canonical JSON: sorted names, no white space. Raises ValueError for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def current_actor() -> str:
    """Return the operating system's user, or `uid-N` in a container whose user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"


def utc_text(moment: datetime) -> str:
    """Return a moment as `2024-01-31T12:00:00.123456Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def utc_now() -> datetime:
    """Return this machine's clock, UTC."""
    return datetime.now(UTC)
