"""How far a migration is and what holds it back now: the changing part of its status. Pure. What is in
progress comes from the runner's pulse, what is durable from the state file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, format_ticks
from rekey.core.eta import Eta
from rekey.core.plain import json_field
from rekey.core.progress import Held, Holds
from rekey.phases import ControlPhase, Phase
from rekey.present.text import counted, duration
from rekey.state.models import CHECKPOINT_AT
from rekey.status.facts import ESTIMATED_ROWS, FOLLOWING, Facts
from rekey.status.pulse import Pass

# The spread of an estimate is shown from so many seconds on.
_SPREAD_S = 10.0


@dataclass(frozen=True, slots=True)
class PhaseNow:
    """The phase that a migration is in."""

    # None before the first one.
    name: str | None
    # `not-begun`, `at-work`, `done`, `stopped` (by an error, or on request) or `cut-off` (killed).
    state: str
    # None where that is not known.
    since: str | None


@dataclass(frozen=True, slots=True)
class Ends:
    """When a pass ends: in how many seconds, at least and at most, and at what time."""

    seconds: float = field(metadata=json_field(digits=0))
    least_s: float = field(metadata=json_field(digits=0))
    most_s: float = field(metadata=json_field(digits=0))
    at: str


@dataclass(frozen=True, slots=True)
class Onward:
    """A pass over a table; figures are None where not known, as without a pulse."""

    # What it does: `backfill`, `verify`, ...
    label: str
    # By the runner's machine.
    began_at: str | None
    rows: int
    estimated_rows: int | None
    # Recent rows a second.
    rate: float | None = field(metadata=json_field("rows_per_second", digits=1))
    eta: Ends | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last checkpoint: after a kill, the work goes on from there."""

    at: str
    age_s: float


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What holds a migration back."""

    # `pause`, `account`, `partition`, `refusals`, `lease` or `wait`.
    by: str
    text: str
    since: str | None = None
    # At most.
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """When a migration may cut over by itself: the window that is open, or the next one."""

    opens_at: str
    closes_at: str


@dataclass(frozen=True, slots=True)
class Following:
    """How a migration is followed before its cutover."""

    since: str
    # `apply --follow` is at work; False: it was cut off.
    at_work: bool
    # Why its last cutover was refused.
    refused: tuple[str, ...]
    # When it cuts over by itself; None: only on request.
    window: Window | None


@dataclass(frozen=True, slots=True)
class Progress:
    """The changing part of a migration's status."""

    phase: PhaseNow
    work: Onward | None
    checkpoint: Checkpoint | None
    held_back: tuple[HeldBack, ...]
    following: Following | None


def progress_of(facts: Facts) -> Progress:
    """Return how far a migration is."""
    saved = facts.state.facts.get(CHECKPOINT_AT)
    return Progress(
        phase=_phase(facts),
        work=_work(facts),
        checkpoint=None if saved is None else Checkpoint(saved, facts.since(saved)),
        held_back=tuple(_held_back(facts)),
        following=following(facts),
    )


def following(facts: Facts) -> Following | None:
    """Return how a migration is followed before its cutover; None where it is not."""
    kept = facts.state.facts.get(FOLLOWING)
    phase = None if facts.store.control is None else facts.store.control.phase
    if kept is None or phase not in (ControlPhase.DUAL_WRITE, ControlPhase.FREEZE):
        return None
    stored: dict[str, Any] = json.loads(kept)
    window = None if facts.window is None else Window(*map(format_ticks, facts.window))
    return Following(stored["since"], facts.at_work, tuple(stored["refused"]), window)


def _phase(facts: Facts) -> PhaseNow:
    last, at_work = (
        (facts.state.runs[-1] if facts.state.runs else None),
        facts.at_work or facts.pulse is not None,
    )
    if last is not None and last.outcome != "done" and last.phase not in facts.phases:
        if last.finished_at is not None:
            return PhaseNow(str(last.phase), "stopped", last.finished_at)
        return PhaseNow(str(last.phase), "at-work" if at_work else "cut-off", last.started_at)
    if not facts.phases:
        return PhaseNow(str(Phase.PREPARE), "at-work", None) if at_work else PhaseNow(None, "not-begun", None)
    done = facts.phases[-1]
    ends = [run.finished_at for run in facts.state.runs if run.phase == done and run.outcome == "done"]
    return PhaseNow(str(done), "done", ends[-1] if ends else None)


def _work(facts: Facts) -> Onward | None:
    """Return the pass in progress; without a pulse, the durable progress of the copy while it is not done."""
    if facts.pulse is not None:
        return None if facts.pulse.work is None else _of_pulse(facts.pulse.work, facts.now)
    if not facts.state.segments or all(segment.done for segment in facts.state.segments):
        return None
    estimated = facts.state.facts.get(ESTIMATED_ROWS)
    rows = sum(segment.rows for segment in facts.state.segments)
    return Onward("backfill", None, rows, int(estimated) if estimated else None, None, None)


def _of_pulse(work: Pass, now: int) -> Onward:
    ends = None
    if work.eta is not None:
        at = format_ticks(now + round(work.eta.seconds * TICKS_PER_SECOND))
        ends = Ends(work.eta.seconds, work.eta.least_s, work.eta.most_s, at)
    return Onward(work.label, format_ticks(work.began_at), work.rows, work.total, work.rate, ends)


def _held_back(facts: Facts) -> Iterable[HeldBack]:
    pulse, lease = facts.pulse, facts.store.lease
    if pulse is None:
        if lease is not None and lease.live:
            text = f"process {lease.pid} on {lease.host} holds the lease of the runner, unless it ends"
            yield HeldBack("lease", text, None, lease.ends_at)
        return
    for hold in pulse.limits:
        yield HeldBack(str(hold.by), _limit_text(hold))
    for wait in pulse.waits:
        until = None if wait.until is None else format_ticks(wait.until)
        yield HeldBack("wait", f"waiting for {wait.what}", format_ticks(wait.since), until)


def _limit_text(limit: Held) -> str:
    rate = f"{limit.entities_per_second:,} entities/s"
    return {
        Holds.PAUSE: "paused by the operator until `rekey resume`",
        Holds.REFUSALS: f"the service refuses requests or answers slowly: {rate} for now",
        Holds.ACCOUNT: f"the account is at its rate, {rate}",
        Holds.PARTITION: f"{counted(limit.partitions, 'partition')} at the rate of a partition, {rate}",
    }[limit.by]


def how_far(rows: int, total: int | None, rate: float | None, eta: Eta | Ends | None) -> str:
    """Return in words how far a pass is: rows, share of `total`, rows a second, estimated time remaining."""
    parts = [f"{rows:,} rows"]
    if total:
        parts = [f"{rows:,} of about {total:,} rows ({min(1.0, rows / total):.0%})"]
    if rate is not None:
        parts.append(f"{rate:,.0f} rows/s")
    if eta is not None:
        spread = f" ({duration(eta.least_s)} to {duration(eta.most_s)})" if eta.seconds >= _SPREAD_S else ""
        parts.append(f"about {duration(eta.seconds)} left{spread}")
    return ", ".join(parts)
