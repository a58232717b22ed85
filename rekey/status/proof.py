"""Whether a migration's evidence is there: what `retire` asks for before it deletes the source.

Rules kept here:

* A bundle counts when it was exported after `complete`, was signed, and was verified on this machine: the
  audit log says all three. What was exported before `complete` does not show how it ended.
* Where the audit log does not know when the migration was completed (the state file was lost since), every
  bundle that it knows counts: it was exported later than that.
"""

from __future__ import annotations

from collections.abc import Iterable

from rekey.phases import Phase
from rekey.state.audit import EVIDENCE_VERIFIED, AuditEvent

MISSING = (
    "no signed evidence was exported since `complete` and verified"
    " (`rekey evidence export`, then `rekey evidence verify`)"
)


def is_proved(events: Iterable[AuditEvent]) -> bool:
    """Tell whether evidence that counts was verified.

    Args:
        events: the events of one migration, in order.
    """
    completed, proved = 0, False
    for event in events:
        if event.event == "phase-done" and event.details.get("phase") == Phase.COMPLETE:
            completed, proved = event.seq, False
        if event.event == EVIDENCE_VERIFIED and event.details["signed"]:
            proved = proved or event.details["exported"] > completed
    return proved
