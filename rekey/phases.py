"""The phases: which exist, in which order, and which moves are legal. Tables only, and look-ups in them.

Rules kept here:

* A *runner phase* is one entry of the yoyo ledger; a *control phase* is what the control row says to
  clients. `LEAVES` says for every runner phase in which control phase it leaves the migration.
* Two clients may be one epoch apart, never two; so a control move is always one step of `MOVES`.
* After `complete` there is no way back: the source is no longer written.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """A runner phase: one entry of the ledger, in this order."""

    PREPARE = "prepare"
    DUAL_WRITE = "dual_write"
    BACKFILL = "backfill"
    RECONCILE = "reconcile"
    CUTOVER = "cutover"
    COMPLETE = "complete"
    RETIRE = "retire"


ORDER: tuple[Phase, ...] = tuple(Phase)


class ControlPhase(StrEnum):
    """A control phase: what the control row says, and clients act on."""

    SOURCE = "source"
    DUAL_WRITE = "dual_write"
    FREEZE = "freeze"
    CUTOVER = "cutover"
    COMPLETE = "complete"
    RETIRED = "retired"


MOVES: dict[ControlPhase, frozenset[ControlPhase]] = {
    ControlPhase.SOURCE: frozenset({ControlPhase.DUAL_WRITE}),
    ControlPhase.DUAL_WRITE: frozenset({ControlPhase.FREEZE, ControlPhase.SOURCE}),
    # A freeze goes forward, or back to the phase that it came from when draining fails or on rollback.
    ControlPhase.FREEZE: frozenset({ControlPhase.CUTOVER, ControlPhase.DUAL_WRITE}),
    ControlPhase.CUTOVER: frozenset({ControlPhase.COMPLETE, ControlPhase.FREEZE}),
    ControlPhase.COMPLETE: frozenset({ControlPhase.RETIRED}),
    ControlPhase.RETIRED: frozenset(),
}

# Control phases in which the replicas follow what clients write.
FOLLOWED = frozenset({ControlPhase.DUAL_WRITE, ControlPhase.FREEZE, ControlPhase.CUTOVER})

LEAVES: dict[Phase, ControlPhase] = {
    Phase.PREPARE: ControlPhase.SOURCE,
    Phase.DUAL_WRITE: ControlPhase.DUAL_WRITE,
    Phase.BACKFILL: ControlPhase.DUAL_WRITE,
    Phase.RECONCILE: ControlPhase.DUAL_WRITE,
    Phase.CUTOVER: ControlPhase.CUTOVER,
    Phase.COMPLETE: ControlPhase.COMPLETE,
    Phase.RETIRE: ControlPhase.RETIRED,
}

# Phases that `apply` never enters by itself: the operator names them (`--to`, or `rekey retire`).
GATED: frozenset[Phase] = frozenset({Phase.CUTOVER, Phase.COMPLETE, Phase.RETIRE})

# Phases from which `rollback` goes back.
REVERSIBLE: frozenset[Phase] = frozenset(ORDER[: ORDER.index(Phase.CUTOVER) + 1])


def is_legal(now: ControlPhase, then: ControlPhase) -> bool:
    """Tell whether the control row may move from `now` to `then`."""
    return then in MOVES[now]


def following(phase: Phase) -> Phase | None:
    """Return the phase after `phase`, None for the last."""
    position = ORDER.index(phase) + 1
    return ORDER[position] if position < len(ORDER) else None


# What people are told in place of `dual_write` where nothing is written twice.
FOLLOWING = "following"


def shown(phase: str, capture: str) -> str:
    """Return the name by which people are told of a phase: what it does in this capture. Ledger, control row,
    audit log and JSON keep its id."""
    return FOLLOWING if phase == Phase.DUAL_WRITE and capture == "delta" else str(phase)


def ledger_id(script_id: str, phase: Phase) -> str:
    """Return the id of one ledger entry: `<script>.<phase>`."""
    return f"{script_id}.{phase}"
