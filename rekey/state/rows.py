"""Rows of the state file, read as the values of `models`, and written from them.

Rules kept here:

* What one function writes the other one reads: nothing else knows how a value is laid out in columns.
* Lists and mappings stand as canonical JSON, so that a chained event hashes alike after it was read back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from rekey.state.audit import AuditEvent, canonical_json
from rekey.state.keytexts import KeyTexts
from rekey.state.models import (
    REQUESTS,
    MigrationRecord,
    PhaseRun,
    Segment,
    StoredCheckpoint,
    Verification,
)


def migration(row: Row[Any]) -> MigrationRecord:
    """Read a row of `migration`."""
    return MigrationRecord(
        script_id=row.script_id,
        digest=row.digest,
        source=row.source,
        run_id=row.run_id,
        endpoint_id=row.endpoint_id,
        secret_fingerprints=json.loads(row.secret_fingerprints),
        registered_at=row.registered_at,
    )


def segment(row: Row[Any], keys: KeyTexts) -> Segment:
    """Read a row of `segment`, whose keys stand there as `keys` says."""
    return Segment(
        id=row.id,
        script_id=row.script_id,
        purpose=row.purpose,
        after=keys.from_text("after", row.after_key),
        upto=keys.from_text("upto", row.upto_key),
        cursor=keys.from_text("cursor", row.cursor_key),
        rows=row.row_count,
        bytes=row.byte_count,
        done=bool(row.done),
    )


def phase_run(row: Row[Any]) -> PhaseRun:
    """Read a row of `phase_run`."""
    counted: dict[str, int] = json.loads(row.counters)
    return PhaseRun(
        id=row.id,
        script_id=row.script_id,
        phase=row.phase,
        started_at=row.started_at,
        finished_at=row.finished_at,
        outcome=row.outcome,
        counters={name: number for name, number in counted.items() if not name.startswith(REQUESTS)},
        requests={
            name.removeprefix(REQUESTS): number
            for name, number in counted.items()
            if name.startswith(REQUESTS)
        },
    )


def of_counters(counters: Mapping[str, int], requests: Mapping[str, int]) -> str:
    """Return both kinds of counters of a phase run as they are stored."""
    return canonical_json({**counters, **{REQUESTS + name: number for name, number in requests.items()}})


def verification(row: Row[Any]) -> Verification:
    """Read a row of `verification`."""
    return Verification(
        mode=row.mode,
        started_at=row.started_at,
        finished_at=row.finished_at,
        digest=row.digest,
        rows_source=row.rows_source,
        rows_target=row.rows_target,
        divergences=row.divergences,
        transient=row.transient,
        report=json.loads(row.report),
        number=row.id,
    )


def of_verification(script_id: str, verification: Verification) -> dict[str, Any]:
    """Return the columns of a row of `verification`."""
    return {
        "script_id": script_id,
        "mode": verification.mode,
        "started_at": verification.started_at,
        "finished_at": verification.finished_at,
        "digest": verification.digest,
        "rows_source": verification.rows_source,
        "rows_target": verification.rows_target,
        "divergences": verification.divergences,
        "transient": verification.transient,
        "report": canonical_json(dict(verification.report)),
    }


def audit_event(row: Row[Any]) -> AuditEvent:
    """Read a row of `audit_event`."""
    return AuditEvent(
        seq=row.seq,
        at=row.at,
        actor=row.actor,
        event=row.event,
        script_id=row.script_id,
        details=json.loads(row.details),
        prev=row.prev,
        hash=row.hash,
        host=row.host,
        command=row.command,
        format=row.format,
    )


def stored_checkpoint(row: Row[Any]) -> StoredCheckpoint:
    """Read a row of `audit_checkpoint`."""
    return StoredCheckpoint(size=row.size, at=row.at, note=row.note, remark=row.remark)


def of_audit_event(event: AuditEvent) -> dict[str, Any]:
    """Return the columns of a row of `audit_event`."""
    return {
        "seq": event.seq,
        "at": event.at,
        "actor": event.actor,
        "event": event.event,
        "script_id": event.script_id,
        "details": canonical_json(event.details),
        "prev": event.prev,
        "hash": event.hash,
        "format": event.format,
        "host": event.host,
        "command": event.command,
    }
