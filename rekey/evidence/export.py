"""Makes a bundle from a migration's records in the state file. No service is asked and no table is read:
everything was recorded when it happened."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from rekey.core.distribution import DISTRIBUTION, VERSION
from rekey.core.plain import members
from rekey.declaration.migration import Declared
from rekey.errors import RekeyError, SecretMissing, reason_of
from rekey.evidence import bag, contents, log, note, report, statement
from rekey.evidence.keys import Signer
from rekey.evidence.refusals import refusal
from rekey.evidence.verify import Verdict
from rekey.phases import ORDER, ledger_id
from rekey.project.config import Config, account_key, resolve_secret
from rekey.project.secrets_source import SecretKind, read_wrapping
from rekey.state.audit import EVIDENCE_EXPORTED, EVIDENCE_VERIFIED, AuditEvent
from rekey.state.files import sqlite_version
from rekey.state.models import PLAN_FACT
from rekey.state.store import State

EXPORTING = "evidence-export"
# Fields of a migration's record, and of each run of a phase, in the snapshot of the state.
_RECORD = ("script_id", "digest", "source", "run_id", "secret_fingerprints", "registered_at")
_RUN = ("phase", "started_at", "finished_at", "outcome", "counters")
_HARMLESS = re.compile(r"\d{1,20}|\d{4}-\d\d-\d\d[T ][\d:.]{8,18}Z?|true|false", re.IGNORECASE)
_CONNECTION_STRING = re.compile(
    rb"(?i)AccountKey=[A-Za-z0-9+/]{20}|SharedAccessSignature=|[?&]sig=[^&\s]{20}"
)


@dataclass(frozen=True, slots=True)
class Exported:
    """A bundle that was written."""

    script_id: str  # the migration
    files: int  # number of files
    events: int  # number of audit log events in it
    statement_sha256: str  # SHA-256 of the statement's file
    key_id: str  # id of the signing key, "" if unsigned
    stamped: bool  # whether an authority stamped the statement
    live: bool  # whether it includes a report of `rekey doctor --live`


def export(
    config: Config,
    declared: Declared,
    state: State,
    folder: Path,
    *,
    signer: Signer | None,
    authority: str | None = None,
    group: Mapping[str, str] | None = None,
) -> Exported:
    """Write the evidence of a migration.

    Args:
        config: the configuration.
        declared: the migration.
        state: the state file, open for writing.
        folder: the bundle's folder; must not exist, or be empty.
        signer: signs checkpoint, statement and time stamp; None leaves them unsigned.
        authority: URL of a time stamp authority; None: no time stamp.
        group: the digests of the declarations of its group, by script; None without a group.

    Raises:
        Refused: the migration has not begun, or the folder is not empty.
        Moved: the script is not the one that was applied.
        Findings: the audit log is broken or contradicts its checkpoints, or a file would contain a secret.
        RekeyError: the key, the authority or the disk failed. Nothing is left of the bundle.
    """
    bag.require_free(folder)
    script_id = declared.script_id
    _require_known(state, declared)
    key_id = "" if signer is None else signer.public.key_id
    # The export is an event too, covered by the checkpoint.
    state.audit(EXPORTING, script_id, {"signed": signer is not None, "key_id": key_id})
    events = state.audit_events()
    checkpoint = log.signed_over(events, signer)
    live = _live(config, signer)
    files = _files(declared, state, events, checkpoint, live)
    state.add_checkpoint(len(events), checkpoint.text, f"{script_id}: evidence exported")
    _refuse_secrets(config, files)
    known = json.loads(files[contents.STATE])
    group_entry = {"name": declared.migration.group, "declarations_sha256": dict(group)} if group else None
    predicate = {
        "script_id": script_id,
        "title": declared.doc.partition("\n")[0],
        "run_id": known["migration"] and known["migration"]["run_id"],
        "declaration_sha256": declared.digest,
        **({"group": group_entry} if group_entry else {}),
        "exported_at": events[-1].at,
        "phases": known["phases"],
        "log": checkpoint.checkpoint.named,
        "key": None if signer is None else signer.public.named,
        "stamped": authority is not None,
        "rekey": VERSION,
    }
    info = {"External-Identifier": script_id, "Bag-Group-Identifier": checkpoint.checkpoint.log}
    envelope = bag.write(folder, files, info, predicate, signer=signer, authority=authority)
    done = Exported(
        script_id=script_id,
        files=len(bag.names(folder)),
        events=len(events),
        statement_sha256=hashlib.sha256(envelope.data).hexdigest(),
        key_id=key_id,
        stamped=authority is not None,
        live=bool(live),
    )
    # The bundle cannot contain this event, which has the hash of its statement.
    details = {name: getattr(done, name) for name in ("statement_sha256", "key_id", "events", "stamped")}
    state.audit(EVIDENCE_EXPORTED, script_id, {**details, "signed": bool(key_id)})
    return done


def exports_of(state: State, statement_sha256: str) -> list[AuditEvent]:
    """Return the events by which this project exported a bundle with this statement."""
    exports = [event for event in state.audit_events() if event.event == EVIDENCE_EXPORTED]
    return [event for event in exports if event.details.get("statement_sha256") == statement_sha256]


def record_verified(state: State, verdict: Verdict) -> bool:
    """Record that a right bundle of this project was verified; tell whether it was recorded."""
    ours = exports_of(state, verdict.statement_sha256)
    if not ours or not verdict.is_right:
        return False
    details = {
        "statement_sha256": verdict.statement_sha256,
        "signed": verdict.signed,
        "key_id": verdict.key_id,
        "exported": ours[-1].seq,
    }
    state.audit(EVIDENCE_VERIFIED, ours[-1].script_id, details)
    return True


def _require_known(state: State, declared: Declared) -> None:
    """Raise when there is nothing to export: the migration has not begun (Refused), its audit log is broken
    (Findings), or its script was edited (Moved)."""
    events = state.audit_events()
    if not any(event.script_id == declared.script_id for event in events):
        raise refusal("not-begun", script=declared.script_id)
    if problems := log.problems_of(events, state.checkpoints()):
        raise refusal("log-not-shown", problems="; ".join(problems))
    record = state.migration(declared.script_id)
    if record is not None and record.digest != declared.digest:
        raise refusal("script-edited", script=declared.script_id)


def _files(
    declared: Declared,
    state: State,
    events: Sequence[AuditEvent],
    checkpoint: note.Note,
    live: Mapping[str, bytes],
) -> dict[str, bytes]:
    """Return the files of a bundle, by path below `data/`. `live`: what `_live` returned."""
    script_id = declared.script_id
    lines = [event.line for event in events]
    read = [json.loads(line) for line in lines]
    facts = state.facts(script_id)
    plan = facts.pop(PLAN_FACT, None)
    earlier = [members(checkpoint) for checkpoint in state.checkpoints()]
    try:
        script = declared.path.read_bytes()
    except OSError as error:
        raise refusal("script-not-read", path=declared.path, reason=reason_of(error)) from None
    files = {
        contents.EVENTS: b"".join(line + b"\n" for line in lines),
        contents.CHECKPOINT: checkpoint.text.encode(),
        contents.EARLIER: b"".join(contents.as_json(stored) + b"\n" for stored in earlier),
        contents.PROOFS: contents.as_json(contents.proofs(script_id, lines, read, checkpoint.checkpoint)),
        contents.DECLARATION: declared.migration.canonical_json().encode(),
        contents.SCRIPT: script,
        contents.GATES: contents.as_json(contents.details_of(read, script_id, "gate")),
        contents.RECONCILIATION: contents.as_json(contents.details_of(read, script_id, "verification")),
        contents.STATE: contents.as_json(_snapshot(state, script_id, facts)),
        contents.VERSIONS: contents.as_json(versions(state.schema_version)),
        **live,
    }
    if plan is not None:
        files[contents.PLAN] = plan.encode()
    return {**files, contents.REPORT: report.render(files).encode()}


def _live(config: Config, signer: Signer | None) -> dict[str, bytes]:
    """Return the report of `rekey doctor --live` on this project's accounts by the key that signs this
    bundle, by its path; {} without one."""
    try:
        data = contents.live_path(config.state).read_bytes()
        live = statement.parsed(data)
        about = live.statement(statement.LIVE_TYPE).predicate
    except (OSError, ValueError):
        return {}
    ours = not live.is_signed if signer is None else live.is_by(signer.public, high_s=True)
    live_of = about.get("schema"), about.get("endpoints")
    accounts = " ".join(account.endpoint for account in config.accounts.values())
    return {contents.LIVE: data} if ours and live_of == (contents.LIVE_SCHEMA, accounts) else {}


def _snapshot(state: State, script_id: str, facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the records of a migration in the state file, without keys: counts of segments, and only facts
    that are a time, a number or a Boolean; other facts are only named."""
    record, applied = state.migration(script_id), set(state.ledger_ids())
    segments = state.segments(script_id, "backfill", keys=False)
    shown = {name: value for name, value in facts.items() if _HARMLESS.fullmatch(value)}

    def pick(value: object, *names: str) -> dict[str, Any]:
        return {name: getattr(value, name) for name in names}

    return {
        "migration": record and {**pick(record, *_RECORD), "accounts": record.endpoint_id},
        "phases": [str(phase) for phase in ORDER if ledger_id(script_id, phase) in applied],
        "phase_runs": [pick(run, *_RUN) for run in state.phase_runs(script_id)],
        "segments": [pick(segment, "purpose", "rows", "bytes", "done") for segment in segments],
        "facts": shown,
        "facts_not_shown": sorted(set(facts) - set(shown)),
    }


def versions(schema: int) -> dict[str, Any]:
    """Return the versions of rekey, Python, the packages rekey depends on, and the state file's schema."""
    wanted = map(Requirement, requires(DISTRIBUTION) or [])
    needed = [
        requirement.name
        for requirement in wanted
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    packages = {name: version(name) for name in needed}
    with suppress(PackageNotFoundError):  # without the extra, it signed nothing
        packages["azure-keyvault-keys"] = version("azure-keyvault-keys")
    return {
        "rekey": VERSION,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": platform.system(),
        "sqlite": sqlite_version(),
        "state_schema": schema,
        "packages": packages,
    }


def _refuse_secrets(config: Config, files: Mapping[str, bytes]) -> None:
    """Raise Findings when a file (a script, say) contains a secret, an account key or a connection string."""
    known = [form for secret in _secrets(config) for form in forms(secret)]

    def has_secret(data: bytes) -> bool:
        return _CONNECTION_STRING.search(data) is not None or any(form in data for form in known)

    if offending := sorted(name for name, data in files.items() if has_secret(data)):
        raise refusal("secret-in-bundle", files=", ".join(offending))


def _secrets(config: Config) -> list[bytes]:
    """Return the secrets and keys that can be read here; an export needs none of them."""
    secrets = []
    for wrapping in (config.sealing.key, config.sealing.previous):
        if wrapping is not None and wrapping.kind is not SecretKind.KEY_VAULT:
            with suppress(SecretMissing):
                secrets.append(read_wrapping(wrapping))
    for name in config.secrets:
        with suppress(RekeyError):
            secrets.append(resolve_secret(config, name))
    for account in (config.tables, config.restricted):
        with suppress(RekeyError):
            secrets.append((account_key(account) or "").encode())
    return list(filter(None, secrets))


def forms(secret: bytes) -> list[bytes]:
    """Return the forms in which a file could contain a secret: plain, hex, base64 at each alignment."""
    encoded = []
    for before in range(3):
        text = base64.b64encode(b"\0" * before + secret)
        encoded.append(text[-(-before * 8 // 6) : len(text) - 4])
    return [secret, secret.hex().encode(), *encoded]
