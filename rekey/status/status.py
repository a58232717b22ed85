"""Where a migration stands, whether it is safe right now, and what to do next. Rules only, no I/O.

Rules kept here:

* `judge` puts together what is told of a migration, for people and as JSON; nothing of it holds a key.
* A figure that nobody can know (the rate after a kill) is left out.
* How far replicas are behind is told by the age of the oldest intent: whatever is older is in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.phases import FOLLOWED, ControlPhase, Phase
from rekey.protocol.registry import ClientRow, Standing, over_at, standing
from rekey.state.models import PLAN_FACT, WATERMARK
from rekey.status.facts import ESTIMATED_ROWS, Facts, verification_problem
from rekey.status.spent import Spent, spent
from rekey.status.verdict import verdict


@dataclass(frozen=True, slots=True)
class Backfill:
    """How far the copying is. `rate` in rows a second and `seconds_left` are None when not known."""

    rows: int
    estimated_rows: int | None
    segments_done: int
    segments: int
    rate: float | None
    seconds_left: float | None

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "rows": self.rows,
            "estimated_rows": self.estimated_rows,
            "segments_done": self.segments_done,
            "segments": self.segments,
            "rows_per_second": None if self.rate is None else round(self.rate, 1),
            "seconds_left": None if self.seconds_left is None else round(self.seconds_left),
        }


@dataclass(frozen=True, slots=True)
class Client:
    """What is told of a client.

    Attributes:
        row: what it says of itself.
        current: it has acknowledged what the control row says.
        standing: what the age of its last beat says.
        over_at: when it is over for sure, unless it beats again; the service's time.
    """

    row: ClientRow
    current: bool
    standing: Standing
    over_at: str

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        row = self.row
        return {
            "client_id": row.client_id,
            "name": row.name,
            "host": row.host,
            "pid": row.pid,
            "view": row.view,
            "version": row.version,
            "epoch": row.epoch,
            "current": self.current,
            "standing": str(self.standing),
            "over_at": self.over_at,
            "in_flight": row.in_flight,
            "left": row.left,
            "refuses": row.refuses,
            "counters": dict(row.counters),
        }


@dataclass(frozen=True, slots=True)
class Status:
    """What is told of a migration.

    Attributes:
        facts: what it was made from.
        stage: the phase it is in, in words for people.
        backfill: how far the copying is, None before it began.
        verification_age_s: seconds since the last full verification.
        verification_closes: why that verification keeps the gate closed; "" when it opens it.
        lag_s: how far replicas are behind at most, in seconds: since the last delta pass began, or since the
            oldest intent was made.
        clients: of the application, in capture "dual-write".
        counted: what all of them have counted, those that are over included.
        retention_ends_at: from when on `retire` may delete the source.
        safe: nothing is at risk and nobody has to act now.
        sentence: what that means.
        command: the next command's words behind `rekey`, "" when there is nothing to do.
        remark: what to do first, to know, or to do instead; "" when there is nothing to add.
        spent: requests estimated and sent, None when no estimate was kept.
    """

    facts: Facts
    stage: str
    backfill: Backfill | None
    verification_age_s: float | None
    verification_closes: str
    lag_s: float | None
    retention_ends_at: str | None
    safe: bool
    sentence: str
    command: str
    remark: str = ""
    clients: tuple[Client, ...] = ()
    counted: Mapping[str, int] = field(default_factory=dict)
    spent: Spent | None = None

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object without keys."""
        facts = self.facts
        control, lease, last = facts.control, facts.lease, facts.verification
        return {
            "script_id": facts.script_id,
            "source": facts.declared.migration.source,
            "targets": list(facts.declared.migration.tables),
            "capture": facts.declared.migration.capture,
            "stage": self.stage,
            "phases": [str(phase) for phase in facts.phases],
            "control": None if control is None else {"phase": str(control.phase), "epoch": control.epoch},
            "runner": None
            if lease is None
            else {"host": lease.host, "pid": lease.pid, "lease_ends_at": lease.ends_at, "live": lease.live},
            "backfill": None if self.backfill is None else self.backfill.as_json(),
            "verification": None
            if last is None
            else {
                "finished_at": last.finished_at,
                "age_s": self.verification_age_s,
                "divergences": last.divergences,
                "rows_source": last.rows_source,
                "rows_target": last.rows_target,
                "opens_cutover": not self.verification_closes,
            },
            "clients": [client.as_json() for client in self.clients],
            "counted": dict(self.counted),
            "journal": None
            if facts.intents is None
            else {
                "depth": facts.intents.depth,
                "oldest_at": None
                if facts.intents.oldest_at is None
                else format_ticks(facts.intents.oldest_at),
                "kept": facts.intents.kept,
            },
            "watermark": facts.facts.get(WATERMARK),
            "lag_s": self.lag_s,
            "retention_ends_at": self.retention_ends_at,
            "mapping": [
                {
                    "cohort": one.name,
                    "over_at": format_ticks(one.over_at),
                    "over": one.is_due(facts.now),
                    "erased_on": one.erased_on,
                }
                for one in facts.cohorts
            ],
            "requests": None if self.spent is None else self.spent.as_json(),
            "waits_for": [{"script_id": one.script_id, "phase": str(one.phase)} for one in facts.waits_for],
            "unreachable": facts.unreachable,
            "safe": self.safe,
            "sentence": self.sentence,
            "next": {"command": f"rekey {self.command}" if self.command else "", "remark": self.remark},
        }


def judge(facts: Facts) -> Status:
    """Say where a migration stands, whether that is safe, and what to do next."""
    last = facts.verification
    closed = verification_problem(
        last, facts.facts, now=facts.now, max_age_s=facts.gates.verification_max_age_s
    )
    said = verdict(facts, closed)
    retention = facts.retention_ends_at
    return Status(
        facts=facts,
        stage=_stage(facts),
        backfill=_backfill(facts),
        verification_age_s=None if last is None else facts.since(last.finished_at),
        verification_closes=closed,
        lag_s=_lag(facts),
        retention_ends_at=None if retention is None else format_ticks(retention),
        safe=said.safe,
        sentence=said.sentence,
        command=said.command,
        remark=said.remark,
        clients=tuple(_client(facts, row) for row in facts.clients),
        counted=_counted(facts.clients),
        spent=spent(facts.facts.get(PLAN_FACT), facts.runs),
    )


# --- stage and figures ------------------------------------------------------------------------------------


def _stage(facts: Facts) -> str:
    if not facts.phases:
        return "not begun" if not facts.runs else _with_last_run(facts, "not begun")
    return _with_last_run(facts, f"{facts.phases[-1]} done")


def _with_last_run(facts: Facts, stage: str) -> str:
    """Add how the last run of a phase that is still open went."""
    last = facts.runs[-1] if facts.runs else None
    if last is None or last.outcome == "done" or last.phase in facts.phases:
        return stage
    if last.finished_at is None:
        how = "at work since" if facts.at_work else "was cut off; it began"
        return f"{stage}; {last.phase} {how} {last.started_at}"
    return f"{stage}; {last.phase} stopped {last.finished_at} ({last.outcome})"


def _lag(facts: Facts) -> float | None:
    """Return how far replicas are behind at most, None where none follow or nobody knows."""
    phase = None if facts.control is None else facts.control.phase
    if facts.is_delta:
        watermark = facts.facts.get(WATERMARK)
        following = phase in (ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
        return facts.since(watermark) if watermark and following else None
    if facts.intents is None or phase not in FOLLOWED:
        return None
    oldest = facts.intents.oldest_at
    return 0.0 if oldest is None else facts.since(format_ticks(oldest))


def _client(facts: Facts, row: ClientRow) -> Client:
    return Client(row, facts.is_current(row), standing(row, facts.now), format_ticks(over_at(row)))


def _counted(rows: Iterable[ClientRow]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row.counters)
    return dict(sorted(total.items()))


def _backfill(facts: Facts) -> Backfill | None:
    if not facts.segments:
        return None
    rows = sum(segment.rows for segment in facts.segments)
    done = sum(segment.done for segment in facts.segments)
    fact = facts.facts.get(ESTIMATED_ROWS)
    estimated = int(fact) if fact else None
    rate = _rate(facts, rows)
    left = None
    if rate and estimated is not None and done < len(facts.segments):
        left = max(0, estimated - rows) / rate
    return Backfill(rows, estimated, done, len(facts.segments), rate, left)


def _rate(facts: Facts, rows: int) -> float | None:
    """Return rows a second over all runs of the backfill; None when a run's end is not known."""
    seconds = 0.0
    for run in facts.runs:
        if run.phase != Phase.BACKFILL:
            continue
        if run.finished_at is not None:
            seconds += (ticks_of(run.finished_at) - ticks_of(run.started_at)) / TICKS_PER_SECOND
        elif facts.at_work and run is facts.runs[-1]:
            seconds += facts.since(run.started_at)
        else:
            return None
    return rows / seconds if seconds > 0 and rows else None
