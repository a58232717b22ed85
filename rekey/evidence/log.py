"""Checkpoints over an audit log: made at every phase boundary and for every bundle, and checked in a bundle.
Lines are compared as bytes, not by meaning: each line's hash is the next one's `prev`, and lines are the
tree's leaves."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rekey.core.progress import Progress
from rekey.errors import RekeyError
from rekey.evidence import merkle, note
from rekey.evidence.contents import Event, as_json
from rekey.evidence.keys import PublicKey, Signer
from rekey.state.audit import FIRST_PREV, AuditEvent, first_broken
from rekey.state.models import StoredCheckpoint
from rekey.state.store import State


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: a stable code and a sentence."""

    code: str
    what: str


_MEMBERS = {"seq", "at", "actor", "event", "script_id", "details", "prev"}
UNSIGNED = "not signed: no key is configured"


def lines_of(data: bytes) -> list[bytes]:
    """Return the lines of a log. Raises ValueError when it is empty, or the last line has no line end."""
    if not data.endswith(b"\n"):
        raise ValueError("the last line is not whole")
    return data[:-1].split(b"\n")


def read_events(data: bytes) -> list[Event]:
    """Return the events of a log. Raises ValueError when a line is no event."""
    events = list[Event]()
    for line in lines_of(data):
        event = json.loads(line)
        if not isinstance(event, dict) or not set(event) >= _MEMBERS or not isinstance(event["seq"], int):
            raise ValueError("a line is no event")
        if not isinstance(event["details"], dict):
            raise ValueError("an event has no details")
        events.append(event)
    return events


class Tree:
    """The Merkle tree over the lines of a log, to compare checkpoints with.

    Attributes:
        name: the log's name, "" without a line.
        leaves: the leaf hashes of the lines.
    """

    def __init__(self, lines: Sequence[bytes]) -> None:
        self.name = note.log_name(lines[0]) if lines else ""
        self.leaves = [merkle.leaf_hash(line) for line in lines]
        # Makes checking a checkpoint cheap: a hostile bundle may contain any number of them.
        self._levels = merkle.levels_of(self.leaves)

    @property
    def checkpoint(self) -> note.Checkpoint:
        """The checkpoint over the whole log, unsigned."""
        return note.Checkpoint(self.name, len(self.leaves), merkle.root(self.leaves))

    def contradictions(self, checkpoint: note.Checkpoint) -> Iterator[Finding]:
        """Yield why a checkpoint does not hold for the beginning of the log."""
        if checkpoint.log != self.name:
            yield Finding("checkpoint", f"the checkpoint over {checkpoint.size} events is of another log")
        if checkpoint.size > len(self.leaves):
            cut = f"the audit log ends at event {len(self.leaves)}, a checkpoint covers {checkpoint.size}"
            yield Finding("log-cut", cut)
        elif checkpoint.size < 1 or checkpoint.root != merkle.root_of_first(self._levels, checkpoint.size):
            other = f"the first {checkpoint.size} events are not those that a checkpoint covers"
            yield Finding("checkpoint", other)

    def problems_with(self, signed_note: note.Note, keys: Sequence[PublicKey]) -> Iterator[Finding]:
        """Yield why a checkpoint does not hold: it contradicts the log, or no given key signed it. A log must
        not change its keys unnoticed."""
        if signed_note.is_signed and not any(signed_note.is_by(key) for key in keys):
            unknown = (
                f"the checkpoint over {signed_note.checkpoint.size} events is not by a key that was given"
            )
            yield Finding("checkpoint-key", unknown)
        yield from self.contradictions(signed_note.checkpoint)


# --- in a bundle --------------------------------------------------------------------------------------------


def problems(
    events: bytes, checkpoint: bytes, earlier: bytes, proofs: bytes, keys: Sequence[PublicKey]
) -> list[Finding]:
    """Return what is wrong with the log, its checkpoints and its inclusion proofs.

    Args:
        events, checkpoint, earlier, proofs: the files of the bundle.
        keys: the keys that may have signed.
    """
    try:
        lines = lines_of(events)
        read = read_events(events)
        head = note.parsed(checkpoint.decode())
        before = [note.parsed(str(json.loads(line)["note"])) for line in earlier.splitlines()]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return [Finding("log-unreadable", f"the audit log cannot be read: {error}")]
    findings: list[Finding] = []
    prev = FIRST_PREV
    for seq, (line, event) in enumerate(zip(lines, read, strict=True), start=1):
        if event["seq"] != seq or event["prev"] != prev:
            what = f"the chain breaks at line {seq}: an event was changed, removed, inserted or moved"
            findings.append(Finding("chain", what))
            break
        prev = hashlib.sha256(line).hexdigest()
    tree, covered = Tree(lines), head.checkpoint.size
    # Finds a log that was truncated at its end, and one that continues after it.
    if covered != len(lines):
        text = f"the audit log has {len(lines)} events, its checkpoint covers {covered}"
        findings.append(Finding("log-cut", text))
    for checkpoint_note in (*before, head):
        findings += tree.problems_with(checkpoint_note, keys)
    if covered == len(lines):
        findings += _proved(proofs, tree.leaves, read, head.checkpoint)
    return findings


def problems_with_kept(events: bytes, kept: str, keys: Sequence[PublicKey]) -> list[Finding]:
    """Return why a checkpoint that the auditor kept does not hold for this log."""
    try:
        kept_note = note.parsed(kept)
        lines = lines_of(events)
    except ValueError as error:
        text = f"the checkpoint that was kept, or the log, cannot be read: {error}"
        return [Finding("log-unreadable", text)]
    covered = kept_note.checkpoint.size
    if covered > len(lines):
        text = f"the audit log has {len(lines)} events, the kept checkpoint covers {covered}"
        return [Finding("log-cut", text)]
    return list(Tree(lines).problems_with(kept_note, keys))


def _proved(
    proofs: bytes, leaves: Sequence[bytes], events: Sequence[Event], head: note.Checkpoint
) -> Iterator[Finding]:
    """Yield what is wrong with the inclusion proofs: one for each event of the migration, and no others."""
    try:
        content: dict[str, Any] = json.loads(proofs)
        script_id = events[-1]["script_id"]
        wanted = [int(event["seq"]) for event in events if event["script_id"] == script_id]
        about = {"log": head.log, "size": head.size, "root": head.named["root"], "proofs": content["proofs"]}
        if as_json(about) != proofs or [proof["seq"] for proof in content["proofs"]] != wanted:
            yield Finding("proof", "the inclusion proofs are not those of the migration's events")
            return
        for proof in content["proofs"]:
            path = [base64.b64decode(step, validate=True) for step in proof["path"]]
            leaf = base64.b64decode(proof["leaf"], validate=True)
            right = leaf == leaves[proof["seq"] - 1]
            if not right or not merkle.is_included(leaf, proof["seq"] - 1, head.size, path, head.root):
                text = f"the inclusion proof of event {proof['seq']} does not lead to the root"
                yield Finding("proof", text)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        yield Finding("proof", "the inclusion proofs cannot be read")


# --- over a state file --------------------------------------------------------------------------------------


def problems_of(events: Sequence[AuditEvent], stored: Sequence[StoredCheckpoint]) -> list[str]:
    """Return where the log of a state file is broken or contradicts its checkpoints."""
    problems = []
    if (broken := first_broken(events)) is not None:
        problems.append(f"the audit log is broken at event {broken}: it was changed, removed or inserted")
    tree = Tree([event.line for event in events])
    for stored_checkpoint in stored:
        try:
            checkpoint = note.parsed(stored_checkpoint.note).checkpoint
        except ValueError as error:
            problems.append(f"the checkpoint over {stored_checkpoint.size} events cannot be read: {error}")
            continue
        problems += [contradiction.what for contradiction in tree.contradictions(checkpoint)]
    return problems


def signed_over(events: Sequence[AuditEvent], signer: Signer | None) -> note.Note:
    """Return the checkpoint over events (at least one), unsigned without a signer. Raises RekeyError."""
    return note.signed(Tree([event.line for event in events]).checkpoint, signer)


def make_checkpoint(state: State, signer: Signer | None, reason: str, progress: Progress) -> note.Note | None:
    """Record a checkpoint over the whole audit log and return it; None when there is no event, or when the
    log is broken or contradicts a checkpoint, so that no signed checkpoint ever contradicts an earlier one.

    Args:
        state: the state file.
        signer: signs the checkpoint; None leaves it unsigned, and the remark says so.
        reason: why it is made, e.g. the phase that was left.
        progress: reports what is wrong with the log.
    """
    events = state.audit_events()
    problems = problems_of(events, state.checkpoints())
    for problem in problems:
        progress.note(f"warning: {problem}; no checkpoint was made", "warning")
    if problems or not events:
        return None
    remark = reason if signer is not None else f"{reason}; {UNSIGNED}"
    try:
        checkpoint = signed_over(events, signer)
    except RekeyError as error:
        # The phase is done all the same: record the checkpoint unsigned, with the reason.
        checkpoint, remark = signed_over(events, None), f"{reason}; not signed: {type(error).__name__}"
    state.add_checkpoint(len(events), checkpoint.text, remark)
    return checkpoint
