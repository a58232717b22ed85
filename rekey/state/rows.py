"""Rows of the state file, read as the values of `models`."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Row

from rekey.state.audit import AuditEvent
from rekey.state.models import MigrationRecord, PhaseRun, Segment, Verification, key_from_text


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


def segment(row: Row[Any]) -> Segment:
    """Read a row of `segment`."""
    return Segment(
        id=row.id,
        script_id=row.script_id,
        purpose=row.purpose,
        after=key_from_text(row.after_key),
        upto=key_from_text(row.upto_key),
        cursor=key_from_text(row.cursor_key),
        rows=row.row_count,
        bytes=row.byte_count,
        done=bool(row.done),
    )


def phase_run(row: Row[Any]) -> PhaseRun:
    """Read a row of `phase_run`."""
    return PhaseRun(
        id=row.id,
        script_id=row.script_id,
        phase=row.phase,
        started_at=row.started_at,
        finished_at=row.finished_at,
        outcome=row.outcome,
        counters=json.loads(row.counters),
    )


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
    )


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
    )
