"""Checkpoints over an audit log: made at every phase boundary and for every bundle, and checked in a bundle.

Rules kept here:

* A checkpoint covers every event that is in the state file when it is made. It is added to the state file
  and never changed there.
* No checkpoint is made over a log that does not hold together: not when the chain is broken, not when an
  earlier checkpoint covers more events, or another root. So nothing is ever signed that contradicts what was
  signed before.
* Without a key a checkpoint is not signed, and says so. When a key is configured and cannot sign just now
  (Key Vault is away), the phase that was done stays done: the checkpoint is recorded unsigned, with the
  reason.
* The bytes of the lines count, not what they mean: each line's hash is the next one's `prev`, and the lines
  are the leaves of the tree.
* The log must be exactly as long as its checkpoint says: one that was cut off at its end is found, and so is
  one that goes on after it.
* Every earlier checkpoint must hold for the beginning of the log. One that is signed must be by a key that
  was given: a log does not change its keys unseen.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rekey.core.progress import Progress
from rekey.errors import RekeyError
from rekey.evidence import merkle, note
from rekey.evidence.contents import Event, as_json
from rekey.evidence.keys import PublicKey, Signer
from rekey.state.audit import FIRST_PREV, AuditEvent, first_broken
from rekey.state.models import StoredCheckpoint
from rekey.state.store import State


class Finding(NamedTuple):
    """Something that is not as it must be: a stable code, and one sentence."""

    code: str
    what: str


_MEMBERS = {"seq", "at", "actor", "event", "script_id", "details", "prev"}


def read_events(data: bytes) -> list[Event]:
    """Return the events of a log. Raises ValueError when a line is no event."""
    events = [json.loads(line) for line in lines_of(data)]
    if not all(isinstance(event, dict) and set(event) >= _MEMBERS for event in events):
        raise ValueError("a line is no event")
    if not all(isinstance(event["details"], dict) for event in events):
        raise ValueError("an event has no details")
    return events


def lines_of(data: bytes) -> list[bytes]:
    """Return the lines of a log. Raises ValueError when the last one has no end, or there is none."""
    if not data.endswith(b"\n"):
        raise ValueError("the last line is not whole")
    return data[:-1].split(b"\n")


def problems(
    events: bytes, checkpoint: bytes, earlier: bytes, proofs: bytes, keys: Sequence[PublicKey]
) -> list[Finding]:
    """Return all that does not hold together; empty when all does.

    Args:
        events, checkpoint, earlier, proofs: the files of the bundle.
        keys: the keys that may have signed.
    """
    try:
        lines = lines_of(events)
        read = read_events(events)
        head = note.parsed(checkpoint.decode())
        before = [note.parsed(json.loads(line)["note"]) for line in earlier.splitlines()]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return [Finding("log-unreadable", f"the audit log cannot be read: {error}")]
    found = list(_chain(lines, read))
    leaves = [merkle.leaf_hash(line) for line in lines]
    name = note.log_name(lines[0])
    if head.checkpoint.size != len(lines):
        covered = head.checkpoint.size
        said = f"the audit log has {len(lines)} events, its checkpoint covers {covered}"
        found.append(Finding("log-cut", said))
    for one in (*before, head):
        found += _held(one, leaves, name, keys)
    if head.checkpoint.size == len(lines):
        found += _proved(proofs, leaves, read, head.checkpoint)
    return found


def problems_with_kept(events: bytes, kept: str, keys: Sequence[PublicKey]) -> list[Finding]:
    """Return why a checkpoint that was kept from before does not hold for this log; empty when it does."""
    try:
        one = note.parsed(kept)
        lines = lines_of(events)
    except ValueError as error:
        said = f"the checkpoint that was kept, or the log, cannot be read: {error}"
        return [Finding("log-unreadable", said)]
    if one.checkpoint.size > len(lines):
        covered = one.checkpoint.size
        said = f"the audit log has {len(lines)} events, the kept checkpoint covers {covered}"
        return [Finding("log-cut", said)]
    name = note.log_name(lines[0])
    return _held(one, [merkle.leaf_hash(line) for line in lines], name, keys)


def contradictions(said: note.Checkpoint, leaves: Sequence[bytes], name: str) -> list[Finding]:
    """Return why a checkpoint does not hold for the beginning of a log; empty when it does.

    Args:
        said: the checkpoint.
        leaves: the leaf hashes of the log's events.
        name: the log's name.
    """
    found = []
    if said.log != name:
        found.append(Finding("checkpoint", f"the checkpoint over {said.size} events is of another log"))
    if said.size > len(leaves):
        cut = f"the audit log ends at event {len(leaves)}, a checkpoint covers {said.size}"
        found.append(Finding("log-cut", cut))
    elif said.size < 1 or said.root != merkle.root(leaves[: said.size]):
        other = f"the first {said.size} events are not those that a checkpoint covers"
        found.append(Finding("checkpoint", other))
    return found


def _chain(lines: Sequence[bytes], events: Sequence[Event]) -> Iterator[Finding]:
    prev = FIRST_PREV
    for seq, (line, event) in enumerate(zip(lines, events, strict=True), start=1):
        if event["seq"] != seq or event["prev"] != prev:
            what = f"the chain breaks at line {seq}: an event was changed, removed, inserted or moved"
            yield Finding("chain", what)
            return
        prev = hashlib.sha256(line).hexdigest()


def _held(one: note.Note, leaves: Sequence[bytes], name: str, keys: Sequence[PublicKey]) -> list[Finding]:
    """Hold one checkpoint, and who signed it, against the log."""
    said = one.checkpoint
    found = contradictions(said, leaves, name)
    if one.is_signed and not any(one.is_by(key) for key in keys):
        unknown = f"the checkpoint over {said.size} events is not by a key that was given"
        found.insert(0, Finding("checkpoint-key", unknown))
    return found


def _proved(
    proofs: bytes, leaves: Sequence[bytes], events: Sequence[Event], head: note.Checkpoint
) -> Iterator[Finding]:
    """Check the inclusion proofs: of every event of the migration, and of nothing else."""
    try:
        content: dict[str, Any] = json.loads(proofs)
        script_id = events[-1]["script_id"]
        wanted = [int(event["seq"]) for event in events if event["script_id"] == script_id]
        about = {"log": head.log, "size": head.size, "root": head.named["root"], "proofs": content["proofs"]}
        if as_json(about) != proofs or [one["seq"] for one in content["proofs"]] != wanted:
            yield Finding("proof", "the inclusion proofs are not those of the migration's events")
            return
        for one in content["proofs"]:
            path = [base64.b64decode(step, validate=True) for step in one["path"]]
            leaf = base64.b64decode(one["leaf"], validate=True)
            right = leaf == leaves[one["seq"] - 1]
            if not right or not merkle.is_included(leaf, one["seq"] - 1, head.size, path, head.root):
                said = f"the inclusion proof of event {one['seq']} does not lead to the root"
                yield Finding("proof", said)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, binascii.Error):
        yield Finding("proof", "the inclusion proofs cannot be read")


# --- over a state file --------------------------------------------------------------------------------------

UNSIGNED = "not signed: no key is configured"


def checkpoint_over(lines: Sequence[bytes]) -> note.Checkpoint:
    """Return the checkpoint over the lines of events, at least one."""
    root = merkle.root([merkle.leaf_hash(line) for line in lines])
    return note.Checkpoint(note.log_name(lines[0]), len(lines), root)


def problems_of(events: Sequence[AuditEvent], stored: Sequence[StoredCheckpoint]) -> list[str]:
    """Return why the log of a state file and its checkpoints do not hold together; empty when they do."""
    found = []
    broken = first_broken(events)
    if broken is not None:
        found.append(f"the audit log is broken at event {broken}: it was changed, removed or inserted")
    leaves = [merkle.leaf_hash(event.line()) for event in events]
    name = note.log_name(events[0].line()) if events else ""
    for one in stored:
        try:
            said = note.parsed(one.note).checkpoint
        except ValueError as error:
            found.append(f"the checkpoint over {one.size} events cannot be read: {error}")
            continue
        found += [one.what for one in contradictions(said, leaves, name)]
    return found


def signed_over(events: Sequence[AuditEvent], signer: Signer | None) -> note.Note:
    """Return the checkpoint over events, at least one; without a signer it is not signed.

    Raises:
        RekeyError: what the signer raises.
    """
    checkpoint = checkpoint_over([event.line() for event in events])
    if signer is None:
        return note.Note(checkpoint)
    return note.signed(checkpoint, signer.public, signer.sign)


def seal(state: State, signer: Signer | None, reason: str) -> note.Note | None:
    """Make a checkpoint over all events, record it, and return it.

    Args:
        state: the state file.
        signer: signs; None leaves the checkpoint unsigned.
        reason: why it is made, e.g. the phase that was left.

    Returns:
        None when there is no event, or the log does not hold together; `evidence export` says how.
    """
    events = state.audit_events()
    if not events or problems_of(events, state.checkpoints()):
        return None
    remark = reason if signer is not None else f"{reason}; {UNSIGNED}"
    try:
        made = signed_over(events, signer)
    except RekeyError as error:
        made, remark = signed_over(events, None), f"{reason}; not signed: {type(error).__name__}"
    state.add_checkpoint(len(events), made.text, remark)
    return made


def make_checkpoint(state: State, signer: Signer | None, reason: str, progress: Progress) -> None:
    """Make a checkpoint over the audit log; say it when the log does not hold together."""
    if seal(state, signer, reason) is None:
        for problem in problems_of(state.audit_events(), state.checkpoints()):
            progress.note(f"warning: {problem}; no checkpoint was made")
