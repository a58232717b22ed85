"""Checks a bundle with nothing but the bundle and what the auditor supplies: key, root certificate and
earlier checkpoint never come from the bundle, and none of its code runs. The page
`docs/guides/verify-by-hand.md` has the same checks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rekey.core.plain import exclude, json_field, members
from rekey.evidence import bag, contents, log, note, statement, timestamp
from rekey.evidence.keys import PublicKey
from rekey.evidence.refusals import refusal

# Files whose digest is in an event: the kind of event, and the member.
_NAMED = ((contents.DECLARATION, "phase-begun", "digest"), (contents.PLAN, "planned", "plan_sha256"))


@dataclass(frozen=True, slots=True)
class Trusted:
    """What an auditor supplies."""

    # Public keys, any of which may have signed.
    keys: Sequence[PublicKey]
    # Root certificate of the time stamp authority, PEM; None if not available.
    root: bytes | None = None
    # Do not check the authority's signature on a time stamp.
    ignore_timestamp: bool = False
    # An earlier checkpoint that the auditor kept, as text; None without one.
    earlier: str | None = None


@dataclass(slots=True)
class Verdict:
    """The result of checking a bundle."""

    # Everything that is wrong; empty when the bundle is right. An unsigned bundle is never right.
    findings: list[log.Finding] = field(default_factory=list)
    # The checks that passed, a sentence each.
    checked: list[str] = field(default_factory=list)
    # The statement's predicate; {} when it cannot be read.
    predicate: dict[str, Any] = field(default_factory=dict, metadata=exclude)
    # SHA-256 of the statement's file, "" without one.
    statement_sha256: str = ""
    # Full id of the signing key; "" if unsigned, or not signed by a given key.
    key_id: str = ""
    # Where that key came from.
    key_origin: str = field(default="", metadata=json_field("key_from"))
    signed: bool = False
    # When an authority stamped the statement; None if there is no stamp, or it was not checked or is wrong.
    stamped_at: str | None = None

    @property
    def is_right(self) -> bool:
        return not self.findings

    def wrong(self, code: str, what: str) -> None:
        """Add a finding."""
        self.findings.append(log.Finding(code, what))

    def as_json(self) -> dict[str, Any]:
        # The predicate is not converted: it may be nested too deep for a recursive function.
        return {"right": self.is_right, "about": self.predicate, **members(self)}


def verify(folder: Path, trusted: Trusted) -> Verdict:
    """Check a bundle completely: one finding does not hide the next.

    Raises:
        ConfigurationError: there is no such folder; or it has a time stamp, no root is given, and
            `ignore_timestamp` is not set.
    """
    verdict = Verdict(statement_sha256=bag.statement_sha256(folder))
    if (envelope := _statement(folder, trusted, verdict)) is not None:
        _files(folder, envelope, trusted, verdict)
    if not verdict.is_right:
        pass  # bagit reads whatever is there, without limits; the bundle is known to be wrong already
    elif problem := bag.bag_problem(folder):
        verdict.wrong("bag", f"it is no valid bag: {problem}")
    else:
        verdict.checked.append("it is a valid bag")
    files = bag.payload(folder)
    try:
        _log(files, trusted, verdict)
        _consistent(files, verdict)
    except (RecursionError, ValueError):
        # JSON that can be read but not written again: infinite numbers, or very deep nesting.
        verdict.wrong("log-unreadable", "the audit log cannot be read: it is nested too deep, or no JSON")
    _live(files, trusted, verdict)
    _stamp(folder, trusted, verdict)
    return verdict


def _statement(folder: Path, trusted: Trusted, verdict: Verdict) -> statement.Envelope | None:
    path = folder / bag.STATEMENT
    if not path.is_file():
        verdict.wrong("statement-missing", f"there is no {bag.STATEMENT}")
        return None
    try:
        envelope = statement.parsed(bag.read(path))
    except ValueError as error:
        verdict.wrong("statement-unreadable", str(error))
        return None
    verdict.signed = envelope.is_signed
    high_s = envelope.is_of_before_low_s
    by = next((key for key in trusted.keys if envelope.is_by(key, high_s=high_s)), None)
    if by is not None:
        verdict.key_id, verdict.key_origin = by.key_id, by.origin
        verdict.checked.append("the statement is signed by a key that was given")
    elif envelope.is_signed:
        verdict.wrong("signature", "the statement is not signed by a key that was given")
    else:
        verdict.wrong("unsigned", "the statement is not signed: anyone who can edit the files can forge it")
    return envelope


def _files(folder: Path, envelope: statement.Envelope, trusted: Trusted, verdict: Verdict) -> None:
    """Compare the files with the statement."""
    try:
        stated = envelope.statement()
    except ValueError as error:
        verdict.wrong("statement-unreadable", str(error))
        return
    verdict.predicate = dict(stated.predicate)
    signers = [key.named for key in trusted.keys if key.key_id == verdict.key_id]
    if signers and verdict.predicate.get("key") not in signers:
        verdict.wrong("not-as-stated", "the statement names another key than the one that signed it")
    before = len(verdict.findings)
    there = bag.digests(folder)
    for name in sorted({*stated.digests, *there, *bag.ALWAYS}):
        if name not in there:
            verdict.wrong("file-missing", f"{name} is gone")
        elif name not in stated.digests or name not in bag.KNOWN:
            verdict.wrong("file-added", f"{name} does not belong to the bundle")
        elif stated.digests[name] != there[name]:
            verdict.wrong("file-altered", f"{name} is not what was stated")
    for name in bag.strange(folder):
        verdict.wrong("file-added", f"{name} is no plain file of the bundle, or too large")
    if bag.overflows(folder):
        verdict.wrong("file-added", "there are more files and folders than belong to any bundle")
    if len(verdict.findings) == before:
        verdict.checked.append(f"{len(there)} files are those that the statement names")


def _log(files: dict[str, bytes], trusted: Trusted, verdict: Verdict) -> None:
    before = len(verdict.findings)
    names = (contents.EVENTS, contents.CHECKPOINT, contents.EARLIER, contents.PROOFS)
    if any(name not in files for name in names):
        verdict.wrong("log-unreadable", "the audit log is not whole")
        return
    events, checkpoint, earlier, proofs = (files[name] for name in names)
    verdict.findings += log.problems(events, checkpoint, earlier, proofs, trusted.keys)
    if trusted.earlier is not None:
        verdict.findings += log.problems_with_kept(events, trusted.earlier, trusted.keys)
    if len(verdict.findings) == before:
        size = note.parsed(checkpoint.decode()).checkpoint.size
        verdict.checked.append(f"{size:,} events are those that the checkpoints cover")


def _consistent(files: dict[str, bytes], verdict: Verdict) -> None:
    """Compare the files that repeat events of the audit log or the statement."""
    before = len(verdict.findings)
    try:
        events = log.read_events(files[contents.EVENTS])
        script_id = str(events[-1]["script_id"])
    except (KeyError, ValueError, IndexError, TypeError, RecursionError):
        return  # reported by `_log`
    for name, kind in ((contents.GATES, "gate"), (contents.RECONCILIATION, "verification")):
        if files.get(name) != contents.as_json(contents.details_of(events, script_id, kind)):
            verdict.wrong("not-as-logged", f"{name} is not what the audit log says")
    for name, kind, member in _NAMED:
        details = contents.details_of(events, script_id, kind)
        expected = name in files or name in contents.ALWAYS
        if (
            expected
            and details
            and details[-1].get(member) != hashlib.sha256(files.get(name, b"")).hexdigest()
        ):
            verdict.wrong("not-as-logged", f"{name} is not the one that the audit log names")
    if verdict.predicate and verdict.predicate.get("script_id") != script_id:
        verdict.wrong("not-as-logged", "the statement is about another migration than the audit log's end")
    head = log.Tree(log.lines_of(files[contents.EVENTS])).checkpoint
    if verdict.predicate and verdict.predicate.get("log") != head.named:
        verdict.wrong("not-as-stated", "the statement is about another audit log than the one that is here")
    if len(verdict.findings) == before:
        verdict.checked.append("declaration, plan, gates and verifications are those of the audit log")


def _live(files: dict[str, bytes], trusted: Trusted, verdict: Verdict) -> None:
    """Check form, type and signature of the report of `rekey doctor --live`, if there is one."""
    if contents.LIVE not in files:
        return
    try:
        report = statement.parsed(files[contents.LIVE])
        report.statement(statement.LIVE_TYPE)
    except ValueError as error:
        verdict.wrong("live", f"{contents.LIVE}: {error}")
        return
    if verdict.signed and not any(report.is_by(key, high_s=True) for key in trusted.keys):
        verdict.wrong("live", f"{contents.LIVE} is not signed by a key that was given")
    else:
        verdict.checked.append(f"{contents.LIVE} is a report of `rekey doctor --live`")


def _stamp(folder: Path, trusted: Trusted, verdict: Verdict) -> None:
    path, wrong = folder / bag.TIMESTAMP, partial(verdict.wrong, "timestamp")
    if not path.is_file():
        if verdict.predicate.get("stamped") or (folder / bag.TIMESTAMP_SIGNATURE).exists():
            wrong("the time stamp is gone: the statement announces it, or its signature is there")
        if trusted.root is not None:
            wrong("there is no time stamp, and a root certificate was given to check one")
        return
    # The authority does not sign every byte of its answer; the evidence key does.
    signature = folder / bag.TIMESTAMP_SIGNATURE
    if verdict.signed or signature.exists():
        by_key = bag.read(signature) if signature.is_file() else b""
        answer, high_s = bag.read(path), str(verdict.predicate.get("rekey")).startswith(("0.1.", "0.2."))
        if not any(key.verifies(by_key, answer, high_s=high_s) for key in trusted.keys):
            wrong("the time stamp is not the one that the holder of the key put there")
    if trusted.ignore_timestamp:
        return
    if trusted.root is None:
        raise refusal("stamp-unchecked")
    try:
        at = timestamp.check(bag.read(path), bag.read(folder / bag.STATEMENT), trusted.root)
    except (ValueError, OSError) as error:
        wrong(f"the time stamp does not vouch for the statement: {error}")
        return
    verdict.stamped_at = at.isoformat()
    verdict.checked.append(f"an authority saw the statement at {verdict.stamped_at}")
