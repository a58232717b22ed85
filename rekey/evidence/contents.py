"""The files of a bundle: their paths, and contents made from values alone. JSON is RFC 8785. `evidence
verify` makes the contents that repeat others (gates, verifications, proofs) again and compares."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import rfc8785

from rekey.evidence import merkle, note
from rekey.state.audit import expressible

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
LIVE = "doctor-live.dsse.json"
LIVE_SCHEMA = 1
# Files of every bundle. The plan is added when it is known, the report of `rekey doctor --live` when it is
# signed by the same key.
ALWAYS = (
    *(EVENTS, CHECKPOINT, EARLIER, PROOFS, DECLARATION, SCRIPT),
    *(GATES, RECONCILIATION, STATE, VERSIONS, REPORT),
)


def live_path(state: Path) -> Path:
    """Return the path of the report of `rekey doctor --live`, from that of the state file."""
    return state.with_name(f"{state.name}.live")


# An event as parsed from its line.
Event = Mapping[str, Any]


def details_of(events: Iterable[Event], script_id: str, kind: str) -> list[dict[str, Any]]:
    """Return the details of a migration's events of one kind, each with its `seq` and `at`."""
    own = (event for event in events if event["event"] == kind and event["script_id"] == script_id)
    return [{"seq": event["seq"], "at": event["at"], **event["details"]} for event in own]


def proofs(
    script_id: str, lines: Sequence[bytes], events: Sequence[Event], checkpoint: note.Checkpoint
) -> dict[str, Any]:
    """Return inclusion proofs for the events of a migration, so that each can be shown without the others."""
    leaves = [merkle.leaf_hash(line) for line in lines]
    indexes = [number for number, event in enumerate(events) if event["script_id"] == script_id]
    shown = []
    for index, path in zip(indexes, merkle.inclusion_proofs(leaves, indexes), strict=True):
        leaf, *siblings = (base64.b64encode(digest).decode() for digest in (leaves[index], *path))
        shown.append({"seq": index + 1, "leaf": leaf, "path": siblings})
    return {"log": checkpoint.log, "size": checkpoint.size, "root": checkpoint.named["root"], "proofs": shown}


def as_json(value: Any) -> bytes:
    """Return RFC 8785 JSON."""
    return rfc8785.dumps(expressible(value))
