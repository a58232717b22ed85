"""What a bundle holds, as bytes by path: made from values alone.

Rules kept here:

* Everything that is said twice is made from one source: gates and verifications from the events of the audit
  log, inclusion proofs from its tree. `evidence verify` makes them again and compares.
* Events stand as the lines that were hashed, one a line; the last line ends with a line end, too.
* The snapshot of the state holds no key: of segments their counts, of facts those that are a time or a
  number; other facts are named, not shown.
* JSON is RFC 8785.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import rfc8785

from rekey.evidence import merkle, note
from rekey.state.audit import expressible
from rekey.state.models import MigrationRecord, PhaseRun, Segment

EVENTS = "audit/events.jsonl"
CHECKPOINT = "audit/checkpoint"
EARLIER = "audit/checkpoints.jsonl"
PROOFS = "audit/proofs.json"
DECLARATION = "declaration.json"
SCRIPT = "script.py"
PLAN = "plan.json"
GATES = "gates.json"
RECONCILIATION = "reconciliation.json"
STATE = "state.json"
VERSIONS = "versions.json"
REPORT = "report.html"
ALWAYS = (
    *(EVENTS, CHECKPOINT, EARLIER, PROOFS, DECLARATION, SCRIPT),
    *(GATES, RECONCILIATION, STATE, VERSIONS, REPORT),
)
"""What every bundle holds; the plan is there when it is known."""

_HARMLESS = re.compile(r"\d{1,20}|\d{4}-\d\d-\d\d[T ][\d:.]{8,18}Z?|true|false", re.IGNORECASE)

Event = Mapping[str, Any]
"""An event as its line says it."""


def told(events: Iterable[Event], script_id: str, kind: str) -> list[dict[str, Any]]:
    """Return what the events of one kind tell about a migration, with their seq and moment."""
    return [
        {"seq": event["seq"], "at": event["at"], **event["details"]}
        for event in events
        if event["event"] == kind and event["script_id"] == script_id
    ]


def proofs(
    script_id: str, lines: Sequence[bytes], events: Sequence[Event], checkpoint: note.Checkpoint
) -> dict[str, Any]:
    """Return inclusion proofs for the events of a migration, so that one can be shown without the others."""
    leaves = [merkle.leaf_hash(line) for line in lines]
    indexes = [number for number, event in enumerate(events) if event["script_id"] == script_id]
    return {
        "log": checkpoint.log,
        "size": checkpoint.size,
        "root": base64.b64encode(checkpoint.root).decode(),
        "proofs": [
            {
                "seq": index + 1,
                "leaf": base64.b64encode(leaves[index]).decode(),
                "path": [base64.b64encode(one).decode() for one in path],
            }
            for index, path in zip(indexes, merkle.inclusion_proofs(leaves, indexes), strict=True)
        ],
    }


def snapshot(
    record: MigrationRecord | None,
    phases: Sequence[str],
    runs: Sequence[PhaseRun],
    segments: Sequence[Segment],
    facts: Mapping[str, str],
) -> dict[str, Any]:
    """Return what the state file knows of a migration, without keys."""
    shown = {name: value for name, value in sorted(facts.items()) if _HARMLESS.fullmatch(value)}
    return {
        "migration": None
        if record is None
        else {
            "script_id": record.script_id,
            "digest": record.digest,
            "source": record.source,
            "run_id": record.run_id,
            "accounts": record.endpoint_id,
            "secret_fingerprints": dict(record.secret_fingerprints),
            "registered_at": record.registered_at,
        },
        "phases": list(phases),
        "phase_runs": [
            {
                "phase": run.phase,
                "started_at": run.started_at,
                "finished_at": run.finished_at,
                "outcome": run.outcome,
                "counters": dict(run.counters),
            }
            for run in runs
        ],
        "segments": [
            {"purpose": one.purpose, "rows": one.rows, "bytes": one.bytes, "done": one.done}
            for one in segments
        ],
        "facts": shown,
        "facts_not_shown": sorted(set(facts) - set(shown)),
    }


def as_json(value: Any) -> bytes:
    """Return RFC 8785 JSON."""
    return rfc8785.dumps(expressible(value))
