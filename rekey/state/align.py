"""Bringing ledger and control row together: which phases count as applied, given what the control row says.

Rules kept here:

* The control row is the truth, because clients act on it; the ledger follows. They differ only when a run was
  killed between the two writes of a move, or when the state file was lost.
* Work inside `dual_write` (backfill, reconcile) leaves no trace in the control row, so there the ledger is
  believed, and without a ledger the work is done again, which is safe.
"""

from __future__ import annotations

from collections.abc import Sequence

from rekey.phases import ORDER, ControlPhase, Phase

_LEAST: dict[ControlPhase, Phase | None] = {
    ControlPhase.SOURCE: None,
    ControlPhase.DUAL_WRITE: Phase.DUAL_WRITE,
    ControlPhase.FREEZE: Phase.DUAL_WRITE,
    ControlPhase.CUTOVER: Phase.CUTOVER,
    ControlPhase.COMPLETE: Phase.COMPLETE,
    ControlPhase.RETIRED: Phase.RETIRE,
}
_MOST: dict[ControlPhase, Phase] = {
    ControlPhase.SOURCE: Phase.PREPARE,
    ControlPhase.DUAL_WRITE: Phase.RECONCILE,
    ControlPhase.FREEZE: Phase.RECONCILE,
    ControlPhase.CUTOVER: Phase.CUTOVER,
    ControlPhase.COMPLETE: Phase.COMPLETE,
    ControlPhase.RETIRED: Phase.RETIRE,
}


def aligned(control: ControlPhase, applied: Sequence[Phase]) -> tuple[Phase, ...]:
    """Return the phases that count as applied.

    Args:
        control: what the control row says (a freeze has been left before this is asked).
        applied: what the ledger says, in order.
    """
    least, most = _LEAST[control], _MOST[control]
    known = len(applied)
    shortest = ORDER.index(least) + 1 if least is not None else 0
    longest = ORDER.index(most) + 1
    return ORDER[: max(shortest, min(known, longest))]
