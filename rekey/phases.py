"""The phases, their order and the legal moves, as data. A *runner phase* is an entry of the yoyo ledger; a
*control phase* is what the control row says to clients."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """A runner phase: an entry of the ledger, in this order."""

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


# One step per epoch: two clients may be one epoch apart, never two. From COMPLETE rollback is not possible,
# because the source is no longer written.
MOVES: dict[ControlPhase, frozenset[ControlPhase]] = {
    ControlPhase.SOURCE: frozenset({ControlPhase.DUAL_WRITE}),
    ControlPhase.DUAL_WRITE: frozenset({ControlPhase.FREEZE, ControlPhase.SOURCE}),
    # Forward, or back to the phase it came from when draining fails or on rollback.
    ControlPhase.FREEZE: frozenset({ControlPhase.CUTOVER, ControlPhase.DUAL_WRITE}),
    ControlPhase.CUTOVER: frozenset({ControlPhase.COMPLETE, ControlPhase.FREEZE}),
    ControlPhase.COMPLETE: frozenset({ControlPhase.RETIRED}),
    ControlPhase.RETIRED: frozenset(),
}

# Control phases in which the replicas follow what clients write.
FOLLOWED = frozenset({ControlPhase.DUAL_WRITE, ControlPhase.FREEZE, ControlPhase.CUTOVER})

# The control phase in which each runner phase leaves the migration.
LEAVES: dict[Phase, ControlPhase] = {
    Phase.PREPARE: ControlPhase.SOURCE,
    Phase.DUAL_WRITE: ControlPhase.DUAL_WRITE,
    Phase.BACKFILL: ControlPhase.DUAL_WRITE,
    Phase.RECONCILE: ControlPhase.DUAL_WRITE,
    Phase.CUTOVER: ControlPhase.CUTOVER,
    Phase.COMPLETE: ControlPhase.COMPLETE,
    Phase.RETIRE: ControlPhase.RETIRED,
}

# Phases that only the operator enters (`--to`, or `rekey retire`).
GATED: frozenset[Phase] = frozenset({Phase.CUTOVER, Phase.COMPLETE, Phase.RETIRE})

# Phases that `rollback` can undo.
REVERSIBLE: frozenset[Phase] = frozenset(ORDER[: ORDER.index(Phase.CUTOVER) + 1])


def is_legal(now: ControlPhase, then: ControlPhase) -> bool:
    """Tell whether the control row may move from `now` to `then`."""
    return then in MOVES[now]


def following(phase: Phase) -> Phase | None:
    """Return the phase after `phase`, None for the last."""
    position = ORDER.index(phase) + 1
    return ORDER[position] if position < len(ORDER) else None


# The name of `dual_write` for people in capture "delta", where nothing is written twice.
FOLLOWING = "following"


def shown(phase: str, capture: str) -> str:
    """Return a phase's name for people in a capture. Ledger, control row, audit log and JSON keep its id."""
    return FOLLOWING if phase == Phase.DUAL_WRITE and capture == "delta" else str(phase)


def ledger_id(script_id: str, phase: Phase) -> str:
    """Return the id of a ledger entry: `<script>.<phase>`."""
    return f"{script_id}.{phase}"
