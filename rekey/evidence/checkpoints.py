"""Checkpoints over the audit log of a state file: made at every phase boundary and for every bundle.

Rules kept here:

* A checkpoint covers every event that is in the state file when it is made. It is added to the state file
  and never changed there.
* No checkpoint is made over a log that does not hold together: not when the chain is broken, not when an
  earlier checkpoint covers more events, or another root. So nothing is ever signed that contradicts what was
  signed before.
* Without a key a checkpoint is not signed, and says so. When a key is configured and cannot sign just now
  (Key Vault is away), the phase that was done stays done: the checkpoint is recorded unsigned, with the
  reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from rekey.core.progress import Progress
from rekey.errors import RekeyError
from rekey.evidence import merkle, note
from rekey.evidence.keys import Signer
from rekey.evidence.log import contradictions
from rekey.state.audit import AuditEvent, first_broken
from rekey.state.models import StoredCheckpoint
from rekey.state.store import State

UNSIGNED = "not signed: no key is configured"


def checkpoint_over(lines: Sequence[bytes], first_hash: str) -> note.Checkpoint:
    """Return the checkpoint over events.

    Args:
        lines: their lines, at least one.
        first_hash: the hash of the first event.
    """
    return note.Checkpoint(
        note.log_name(first_hash), len(lines), merkle.root([merkle.leaf_hash(line) for line in lines])
    )


def problems_of(events: Sequence[AuditEvent], stored: Sequence[StoredCheckpoint]) -> list[str]:
    """Return why a log and its checkpoints do not hold together; empty when they do."""
    found = []
    broken = first_broken(events)
    if broken is not None:
        found.append(f"the audit log is broken at event {broken}: it was changed, removed or inserted")
    leaves = [merkle.leaf_hash(event.line()) for event in events]
    name = note.log_name(events[0].hash) if events else ""
    for one in stored:
        try:
            said = note.parsed(one.note).checkpoint
        except ValueError as error:
            found.append(f"the checkpoint over {one.size} events cannot be read: {error}")
            continue
        found += [what for _, what in contradictions(said, leaves, name)]
    return found


def signed_over(events: Sequence[AuditEvent], signer: Signer | None) -> note.Note:
    """Return the checkpoint over events, at least one; without a signer it is not signed.

    Raises:
        RekeyError: what the signer raises.
    """
    checkpoint = checkpoint_over([event.line() for event in events], events[0].hash)
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
