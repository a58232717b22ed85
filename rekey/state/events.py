"""Audit events in the state file: statements of one transaction each, which `store` opens.

Rules kept here:

* An event follows the newest one that the file holds in the same transaction: two processes never add two
  events behind one.
* How many there were of late is counted in the file: a new process does not begin at nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, func, insert, select

from rekey.state import audit, rows
from rekey.state.audit import AuditEvent
from rekey.state.models import AUDIT_EVENT


def add(
    connection: Connection, at: str, event: str, script_id: str | None, details: Mapping[str, Any]
) -> AuditEvent:
    """Add an event to the chain and return it."""
    newest = select(AUDIT_EVENT).order_by(AUDIT_EVENT.c.seq.desc()).limit(1)
    last = connection.execute(newest).one_or_none()
    added = audit.chained(
        None if last is None else rows.audit_event(last),
        at=at,
        actor=audit.current_actor(),
        event=event,
        script_id=script_id,
        details=details,
        host=audit.current_host(),
        command=audit.COMMAND.get(),
    )
    connection.execute(insert(AUDIT_EVENT).values(rows.of_audit_event(added)))
    return added


def count(connection: Connection, event: str, since: str) -> int:
    """Return how many events of a name were added after a moment; of all migrations."""
    wanted = select(func.count()).where(AUDIT_EVENT.c.event == event, AUDIT_EVENT.c.at > since)
    return int(connection.execute(wanted).scalar_one())
