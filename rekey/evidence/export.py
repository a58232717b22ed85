"""Making a bundle of what the state file knows of a migration.

Rules kept here:

* No service is asked, and no table is read: what is exported was recorded when it happened.
* The audit log is checked first; one that does not hold together is not exported.
* That it is exported is an event, too, before the checkpoint is made; that it was written, with the hash of
  its statement, is another one behind it, which the bundle does not hold.
* Before a bundle is written all its files are searched for the secrets and account keys that this
  configuration names: a script that holds one is refused, not handed to an auditor.
"""

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

from rekey.core.distribution import DISTRIBUTION, installed_version
from rekey.declaration.migration import Declared
from rekey.errors import ConfigurationError, Findings, Moved, Refused, RekeyError, SecretMissing
from rekey.evidence import bag, contents, timestamp
from rekey.evidence.bag import Draft, require_free
from rekey.evidence.checkpoints import problems_of, signed_over
from rekey.evidence.keys import Signer
from rekey.evidence.report import render
from rekey.evidence.verify import Verdict
from rekey.migration.opening import read_wrapping
from rekey.phases import ORDER, ledger_id
from rekey.project.config import Config, account_key, resolve_secret
from rekey.project.secrets_source import SecretKind
from rekey.state.audit import EVIDENCE_EXPORTED, EVIDENCE_VERIFIED, AuditEvent
from rekey.state.backend import sqlite_version
from rekey.state.models import PLAN_FACT
from rekey.state.store import State

EXPORTING = "evidence-export"
PURPOSES = ("backfill",)
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_CONNECTION_STRING = re.compile(
    rb"(?i)AccountKey=[A-Za-z0-9+/]{20}|SharedAccessSignature=|[?&]sig=[^&\s]{20}"
)


@dataclass(frozen=True, slots=True)
class Exported:
    """A bundle that was written.

    Attributes:
        folder: where it is.
        script_id: the migration.
        files: how many files it has.
        events: how many events of the audit log it holds.
        statement_sha256: of the statement's file.
        key_id: of the key that signed, "" when nobody did.
        stamped: whether an authority stamped it.
    """

    folder: Path
    script_id: str
    files: int
    events: int
    statement_sha256: str
    key_id: str
    stamped: bool


def export(
    config: Config,
    declared: Declared,
    state: State,
    folder: Path,
    *,
    signer: Signer | None,
    authority: str | None = None,
) -> Exported:
    """Write the evidence of a migration.

    Args:
        config: the configuration.
        declared: the migration.
        state: the state file, open for writing.
        folder: where the bundle is to stand; must not be there, or be empty.
        signer: signs checkpoint and statement; None leaves them unsigned.
        authority: URL of a time stamp authority.

    Raises:
        Refused: nothing is known of the migration, or something is in the folder.
        Moved: the script is not the one that was applied.
        Findings: the audit log does not hold together, or a file would hold a secret.
        RekeyError: the key, the authority or the disk failed. Nothing is left of the bundle.
    """
    require_free(folder)
    script_id = declared.script_id
    _require_known(state, declared)
    key_id = "" if signer is None else signer.public.key_id
    state.audit(EXPORTING, script_id, {"signed": signer is not None, "key_id": key_id})
    events = state.audit_events()
    checkpoint = signed_over(events, signer)
    source = _source(declared, state, events, checkpoint)
    state.add_checkpoint(len(events), checkpoint.text, f"{script_id}: evidence exported")
    read = [json.loads(line) for line in source.lines]
    files = contents.files(source, read)
    files[contents.REPORT] = render(files).encode()
    _refuse_secrets(config, files)
    draft = Draft(folder)
    try:
        draft.write(files, _info(source))
        stamped = authority is not None
        made = draft.state(_predicate(declared, source, read[-1]["at"], signer, stamped=stamped), signer)
        if authority is not None:
            draft.stamp(timestamp.ask(authority, made.data), signer)
        draft.publish()
    finally:
        draft.discard()
    done = Exported(
        folder=folder,
        script_id=script_id,
        files=len(bag.names(folder)),
        events=len(events),
        statement_sha256=hashlib.sha256(made.data).hexdigest(),
        key_id=key_id,
        stamped=stamped,
    )
    _record(state, done)
    return done


def exports_of(state: State, statement_sha256: str) -> list[AuditEvent]:
    """Return the events that say that this project exported a statement."""
    return [
        event
        for event in state.audit_events()
        if event.event == EVIDENCE_EXPORTED and event.details.get("statement_sha256") == statement_sha256
    ]


def record_verified(state: State, verdict: Verdict) -> bool:
    """Record that a bundle was verified and is right; tell whether it is one that this project exported."""
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


def _info(source: contents.Source) -> dict[str, str]:
    """Return what `bag-info.txt` says."""
    log = source.checkpoint.checkpoint.log
    return {"External-Identifier": source.script_id, "Bag-Group-Identifier": log}


def _record(state: State, done: Exported) -> None:
    """Record that a bundle was written; the bundle itself cannot hold this."""
    details = {"statement_sha256": done.statement_sha256, "signed": bool(done.key_id), "key_id": done.key_id}
    state.audit(
        EVIDENCE_EXPORTED, done.script_id, {**details, "events": done.events, "stamped": done.stamped}
    )


def _require_known(state: State, declared: Declared) -> None:
    """Refuse what nothing can be shown of."""
    events = state.audit_events()
    if not any(event.script_id == declared.script_id for event in events):
        raise Refused(
            f"{declared.script_id} has not begun: there is nothing to show of it",
            kept="everything; nothing was exported",
            hint=f"`rekey apply {declared.script_id}` begins it",
        )
    found = problems_of(events, state.checkpoints())
    if found:
        raise Findings(
            f"the audit log cannot be shown: {'; '.join(found)}",
            kept="the state file, unchanged",
            hint="keep the state file as it is; runbooks/evidence.md says what to do",
        )
    record = state.migration(declared.script_id)
    if record is not None and record.digest != declared.digest:
        raise Moved(
            f"the script {declared.script_id} was edited after its first phase",
            kept="everything; nothing was exported",
            hint="put the script back as it was",
        )


def _source(
    declared: Declared, state: State, events: Sequence[AuditEvent], checkpoint: Any
) -> contents.Source:
    script_id = declared.script_id
    ids = set(state.ledger_ids())
    facts = state.facts(script_id)
    plan = facts.pop(PLAN_FACT, None)
    return contents.Source(
        script_id=script_id,
        title=declared.doc.partition("\n")[0],
        declaration=declared.migration.canonical_json().encode(),
        script=_script(declared.path),
        plan=None if plan is None else plan.encode(),
        lines=[event.line() for event in events],
        checkpoint=checkpoint,
        earlier=state.checkpoints(),
        state=contents.snapshot(
            state.migration(script_id),
            [str(phase) for phase in ORDER if ledger_id(script_id, phase) in ids],
            state.phase_runs(script_id),
            [one for purpose in PURPOSES for one in state.segments(script_id, purpose, keys=False)],
            facts,
        ),
        versions=versions(state.schema_version),
    )


def versions(schema: int) -> dict[str, Any]:
    """Return what runs here: rekey, Python, the packages rekey is built on, the schema of the state file."""
    found = {}
    for wanted in requires(DISTRIBUTION) or []:
        name = _NAME.match(wanted)
        if name is None or "extra ==" in wanted:
            continue
        found[name[0]] = version(name[0])
    with suppress(PackageNotFoundError):  # an extra that is not installed signed nothing
        found["azure-keyvault-keys"] = version("azure-keyvault-keys")
    return {
        "rekey": installed_version(),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": platform.system(),
        "sqlite": sqlite_version(),
        "state_schema": schema,
        "packages": found,
    }


def _predicate(
    declared: Declared, source: contents.Source, at: str, signer: Signer | None, *, stamped: bool
) -> dict[str, Any]:
    record = source.state["migration"]
    return {
        "script_id": source.script_id,
        "title": source.title,
        "run_id": None if record is None else record["run_id"],
        "declaration_sha256": declared.digest,
        "exported_at": at,
        "phases": source.state["phases"],
        "log": source.checkpoint.checkpoint.named,
        "key": None if signer is None else signer.public.named,
        "stamped": stamped,
        "rekey": source.versions["rekey"],
    }


def _script(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"the script {path} cannot be read ({error.strerror or 'I/O error'})",
            hint="make it readable by this user",
        ) from None


def _refuse_secrets(config: Config, files: Mapping[str, bytes]) -> None:
    """Refuse files that hold a secret, an account key or a connection string. Names the file only."""
    known = [form for secret in _secrets(config) for form in forms(secret)]
    guilty = sorted(
        name
        for name, data in files.items()
        if _CONNECTION_STRING.search(data) or any(form in data for form in known)
    )
    if guilty:
        raise Findings(
            f"a secret, an account key or a connection string would stand in {', '.join(guilty)}",
            kept="everything; nothing was exported",
            hint="take it out of the script, and renew it: it was in a file that is no place for it",
        )


def _secrets(config: Config) -> list[bytes]:
    """Return the secrets and keys that can be had here; one that cannot is not needed to export."""
    found = []
    for wrapping in (config.sealing.key, config.sealing.previous):
        if wrapping is not None and wrapping.kind is not SecretKind.KEY_VAULT:
            with suppress(SecretMissing):
                found.append(read_wrapping(wrapping))
    for name in config.secrets:
        try:
            found.append(resolve_secret(config, name))
        except RekeyError:
            continue
    for account in (config.tables, config.restricted):
        try:
            key = account_key(account)
        except RekeyError:
            continue
        if key is not None:
            found.append(key.encode())
    return found


def forms(secret: bytes) -> list[bytes]:
    """Return how a secret could stand in a file: plain, hex, base64 at each alignment."""
    encoded = []
    for before in range(3):
        text = base64.b64encode(b"\0" * before + secret)
        encoded.append(text[-(-before * 8 // 6) : len(text) - 4])
    return [secret, secret.hex().encode(), *encoded]
