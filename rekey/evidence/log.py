"""An exported audit log, held against its checkpoints.

Rules kept here:

* The bytes of the lines count, not what they mean: each line's hash is the next one's `prev`, and the lines
  are the leaves of the tree.
* The log must be exactly as long as its checkpoint says: one that was cut off at its end is found, and so is
  one that goes on behind it.
* Every earlier checkpoint must hold for the beginning of the log. One that is signed must be by a key that
  was given: a log does not change its keys unseen.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from rekey.evidence import merkle, note
from rekey.evidence.contents import Event, as_json
from rekey.evidence.keys import PublicKey
from rekey.state.audit import FIRST_PREV

Problem = tuple[str, str]
"""A stable code and a sentence."""

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
) -> list[Problem]:
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
        return [("log-unreadable", f"the audit log cannot be read: {error}")]
    found = list(_chain(lines, read))
    leaves = [merkle.leaf_hash(line) for line in lines]
    name = note.log_name(hashlib.sha256(lines[0]).hexdigest())
    if head.checkpoint.size != len(lines):
        covered = head.checkpoint.size
        found.append(("log-cut", f"the audit log has {len(lines)} events, its checkpoint covers {covered}"))
    for one in (*before, head):
        found += _held(one, leaves, name, keys)
    if head.checkpoint.size == len(lines):
        found += _proved(proofs, leaves, read, head.checkpoint)
    return found


def problems_with_kept(events: bytes, kept: str, keys: Sequence[PublicKey]) -> list[Problem]:
    """Return why a checkpoint that was kept from before does not hold for this log; empty when it does."""
    try:
        one = note.parsed(kept)
        lines = lines_of(events)
    except ValueError as error:
        return [("log-unreadable", f"the checkpoint that was kept, or the log, cannot be read: {error}")]
    if one.checkpoint.size > len(lines):
        covered = one.checkpoint.size
        return [("log-cut", f"the audit log has {len(lines)} events, the kept checkpoint covers {covered}")]
    name = note.log_name(hashlib.sha256(lines[0]).hexdigest())
    return _held(one, [merkle.leaf_hash(line) for line in lines], name, keys)


def contradictions(said: note.Checkpoint, leaves: Sequence[bytes], name: str) -> list[Problem]:
    """Return why a checkpoint does not hold for the beginning of a log; empty when it does.

    Args:
        said: the checkpoint.
        leaves: the leaf hashes of the log's events.
        name: the log's name.
    """
    found = []
    if said.log != name:
        found.append(("checkpoint", f"the checkpoint over {said.size} events is of another log"))
    if said.size > len(leaves):
        cut = f"the audit log ends at event {len(leaves)}, a checkpoint covers {said.size}"
        found.append(("log-cut", cut))
    elif said.size < 1 or said.root != merkle.root(leaves[: said.size]):
        found.append(("checkpoint", f"the first {said.size} events are not those that a checkpoint covers"))
    return found


def _chain(lines: Sequence[bytes], events: Sequence[Event]) -> Iterator[Problem]:
    prev = FIRST_PREV
    for seq, (line, event) in enumerate(zip(lines, events, strict=True), start=1):
        if event["seq"] != seq or event["prev"] != prev:
            yield "chain", f"the chain breaks at line {seq}: an event was changed, removed, inserted or moved"
            return
        prev = hashlib.sha256(line).hexdigest()


def _held(one: note.Note, leaves: Sequence[bytes], name: str, keys: Sequence[PublicKey]) -> list[Problem]:
    """Hold one checkpoint, and who signed it, against the log."""
    said = one.checkpoint
    found = contradictions(said, leaves, name)
    if one.is_signed and not any(one.is_by(key) for key in keys):
        unknown = f"the checkpoint over {said.size} events is not by a key that was given"
        found.insert(0, ("checkpoint-key", unknown))
    return found


def _proved(
    proofs: bytes, leaves: Sequence[bytes], events: Sequence[Event], head: note.Checkpoint
) -> Iterator[Problem]:
    """Check the inclusion proofs: of every event of the migration, and of nothing else."""
    try:
        content: dict[str, Any] = json.loads(proofs)
        script_id = events[-1]["script_id"]
        wanted = [int(event["seq"]) for event in events if event["script_id"] == script_id]
        about = {"log": head.log, "size": head.size, "root": head.named["root"], "proofs": content["proofs"]}
        if as_json(about) != proofs or [one["seq"] for one in content["proofs"]] != wanted:
            yield "proof", "the inclusion proofs are not those of the migration's events"
            return
        for one in content["proofs"]:
            path = [base64.b64decode(step, validate=True) for step in one["path"]]
            leaf = base64.b64decode(one["leaf"], validate=True)
            right = leaf == leaves[one["seq"] - 1]
            if not right or not merkle.is_included(leaf, one["seq"] - 1, head.size, path, head.root):
                yield "proof", f"the inclusion proof of event {one['seq']} does not lead to the root"
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, binascii.Error):
        yield "proof", "the inclusion proofs cannot be read"
