"""Where a migration stands, whether it is safe right now, and what to do next. Rules only, no I/O.

Rules kept here:

* One plain sentence says whether it is safe and what is at risk; one command says what to do. Whoever reads
  it may have been woken up for it.
* The control row is believed before the ledger (`align`). What could not be asked is said to be unknown,
  never guessed.
* Nothing here holds a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rekey.config import Gates
from rekey.declaration import Declared
from rekey.phases import ControlPhase, Phase
from rekey.runner.align import aligned
from rekey.runner.capture import WATERMARK
from rekey.runner.control import ControlRow
from rekey.runner.ledger import LedgerScript, applied_phases, handover
from rekey.state.models import PhaseRun, Segment, Verification
from rekey.tables.clock import TICKS_PER_SECOND, format_ticks, ticks_of


@dataclass(frozen=True, slots=True)
class Lease:
    """The runner lease as read.

    Attributes:
        host, pid: who holds it.
        ends_at: when it ends unless it is renewed, the service's time.
        live: it has not ended, and its process is not known to be gone.
    """

    host: str
    pid: int
    ends_at: str
    live: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """A script that another one waits for, and the phase that it must have reached."""

    script_id: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of one migration.

    Attributes:
        declared: the script as it is now.
        known: the state file knows the migration.
        applied: the ledger's phases, in order.
        control: the control row, None when there is none or it could not be read.
        lease: the runner lease, None when nobody holds it.
        runs: runs of phases, oldest first.
        segments: of the backfill.
        facts: small facts of the state file.
        verification: the last full one.
        gates: what the gates ask for.
        now: ticks of the service's clock; this machine's when the service could not be asked.
        waits_for: scripts that must come further before this one begins.
        unreachable: why the service could not be asked, "" when it was.
    """

    declared: Declared
    known: bool
    applied: tuple[Phase, ...]
    control: ControlRow | None
    lease: Lease | None
    runs: tuple[PhaseRun, ...]
    segments: tuple[Segment, ...]
    facts: Mapping[str, str]
    verification: Verification | None
    gates: Gates
    now: int
    waits_for: tuple[Wait, ...] = ()
    unreachable: str = ""

    @property
    def script_id(self) -> str:
        """The migration's id."""
        return self.declared.script_id

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that count as applied."""
        if self.control is None or self.control.phase is ControlPhase.FREEZE:
            return self.applied
        return aligned(self.control.phase, self.applied)

    @property
    def is_delta(self) -> bool:
        """Whether the targets follow by delta passes."""
        return self.declared.migration.capture == "delta"

    @property
    def at_work(self) -> bool:
        """Whether a runner works on it."""
        return self.lease is not None and self.lease.live


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
class Status:
    """What is told of a migration.

    Attributes:
        facts: what it was made from.
        stage: the phase it is in, in words for people.
        backfill: how far the copying is, None before it began.
        verification_age_s: seconds since the last full verification.
        verification_opens: why that verification keeps the gate closed; "" when it opens it.
        lag_s: seconds since the last delta pass began; changes since then are not in the targets yet.
        retention_ends_at: from when on `retire` may delete the source.
        safe: nothing is at risk and nobody has to act now.
        sentence: what that means.
        command: the next command's words behind `rekey`, "" when there is nothing to do.
        remark: what to do first, to know, or to do instead; "" when there is nothing to add.
    """

    facts: Facts
    stage: str
    backfill: Backfill | None
    verification_age_s: float | None
    verification_opens: str
    lag_s: float | None
    retention_ends_at: str | None
    safe: bool
    sentence: str
    command: str
    remark: str = ""

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
                "opens_cutover": not self.verification_opens,
            },
            "watermark": facts.facts.get(WATERMARK),
            "lag_s": self.lag_s,
            "retention_ends_at": self.retention_ends_at,
            "waits_for": [{"script_id": one.script_id, "phase": str(one.phase)} for one in facts.waits_for],
            "unreachable": facts.unreachable,
            "safe": self.safe,
            "sentence": self.sentence,
            "next": {"command": f"rekey {self.command}" if self.command else "", "remark": self.remark},
        }


def waits(script: Declared, scripts: Mapping[str, Declared], ledger_ids: Iterable[str]) -> tuple[Wait, ...]:
    """Return what a script waits for before it can begin; the ledger refuses it for the same reasons."""
    ids = set(ledger_ids)
    if applied_phases(ids, script.script_id):
        return ()
    ours = LedgerScript.of(script)
    needed = [
        Wait(other, handover(LedgerScript.of(scripts[other]), ours)) for other in sorted(script.depends)
    ]
    return tuple(one for one in needed if one.phase not in applied_phases(ids, one.script_id))


def judge(facts: Facts) -> Status:
    """Say where a migration stands, whether that is safe, and what to do next."""
    closed = _verification_problem(facts)
    verdict = _verdict(facts, closed)
    control, watermark = facts.control, facts.facts.get(WATERMARK)
    following = control is not None and control.phase in (ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
    retention = None
    if control is not None and control.phase is ControlPhase.COMPLETE:
        since = ticks_of(control.completed_at or control.updated_at)
        retention = format_ticks(since + round(facts.gates.retention_s * TICKS_PER_SECOND))
    last = facts.verification
    return Status(
        facts=facts,
        stage=_stage(facts),
        backfill=_backfill(facts),
        verification_age_s=None if last is None else _since(facts, last.finished_at),
        verification_opens=closed,
        lag_s=_since(facts, watermark) if watermark and following and facts.is_delta else None,
        retention_ends_at=retention,
        safe=verdict.safe,
        sentence=verdict.sentence,
        command=verdict.command,
        remark=verdict.remark,
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


def _backfill(facts: Facts) -> Backfill | None:
    if not facts.segments:
        return None
    rows = sum(segment.rows for segment in facts.segments)
    done = sum(segment.done for segment in facts.segments)
    fact = facts.facts.get("estimated_rows")
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
            seconds += _since(facts, run.started_at)
        else:
            return None
    return rows / seconds if seconds > 0 and rows else None


def _since(facts: Facts, moment: str) -> float:
    return max(0.0, round((facts.now - ticks_of(moment)) / TICKS_PER_SECOND, 1))


def _verification_problem(facts: Facts) -> str:
    """Return why the last full verification keeps the gate before cutover closed, "" when it opens it."""
    last = facts.verification
    if last is None:
        return "nothing has been verified in full"
    if last.divergences:
        return f"the last full verification found {last.divergences:,} rows that differ"
    if _since(facts, last.finished_at) > facts.gates.verification_max_age_s:
        return "the last full verification is too old"
    return ""


# --- the verdict --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Verdict:
    safe: bool
    sentence: str
    command: str
    remark: str = ""


def _verdict(facts: Facts, closed: str) -> _Verdict:
    doubtful = _doubtful(facts)
    if doubtful is not None:
        return doubtful
    if facts.control is None:
        return _not_begun(facts)
    match facts.control.phase:
        case ControlPhase.SOURCE:
            return _in_source(facts)
        case ControlPhase.DUAL_WRITE:
            return _in_dual_write(facts, closed)
        case ControlPhase.FREEZE:
            return _in_freeze(facts, facts.control)
        case ControlPhase.CUTOVER:
            return _in_cutover(facts)
        case ControlPhase.COMPLETE:
            return _in_complete(facts, facts.control)
        case ControlPhase.RETIRED:
            return _Verdict(True, f"{_source(facts)} is deleted, {_target(facts)} has taken over.", "")


def _source(facts: Facts) -> str:
    return facts.declared.migration.source


def _target(facts: Facts) -> str:
    return facts.declared.migration.tables[0]


def _doubtful(facts: Facts) -> _Verdict | None:
    """Return what to say when it cannot be known, or does not fit together."""
    name, control = facts.script_id, facts.control
    if facts.unreachable:
        return _Verdict(
            False,
            f"Not known: {facts.unreachable}; what is shown is what the state file says.",
            f"status {name}",
            "first mend the connection or the credential",
        )
    if control is None and facts.applied:
        return _Verdict(
            False,
            "Not known: the state file says it is begun, the restricted store does not know it.",
            f"status {name}",
            "first check [restricted] endpoint; apply nothing before the store is found (runbooks/resume.md)",
        )
    if control is not None and control.digest != facts.declared.digest and not _is_over(control):
        return _Verdict(
            control.phase is not ControlPhase.FREEZE,
            "Nothing is lost, but the script was edited after the first phase: every command refuses it.",
            f"status {name}",
            f"first put {facts.declared.path.name} back as it was",
        )
    return None


def _is_over(control: ControlRow) -> bool:
    return control.phase is ControlPhase.RETIRED


def _not_begun(facts: Facts) -> _Verdict:
    name = facts.script_id
    safe = f"Nothing has been written; the application works on {_source(facts)} as always."
    if facts.waits_for:
        first = facts.waits_for[0]
        return _Verdict(True, safe, f"apply {first.script_id} --to {first.phase}", f"{name} waits for that")
    if facts.at_work:
        return _Verdict(True, safe, f"status {name}", "a runner begins it just now; look again")
    return _Verdict(True, safe, f"apply {name}", f"first read what it will do: rekey plan {name}")


def _in_source(facts: Facts) -> _Verdict:
    name = facts.script_id
    sentence = f"{_source(facts)} is the authority; nothing is copied yet that anybody reads."
    if facts.at_work:
        return _Verdict(True, sentence, f"status {name}", "a runner is at work; look again")
    return _Verdict(True, sentence, f"apply {name}")


def _in_dual_write(facts: Facts, closed: str) -> _Verdict:
    name = facts.script_id
    safe = f"{_source(facts)} is the authority and rekey only reads it; {_target(facts)} is a copy."
    if facts.at_work:
        return _Verdict(True, safe, f"status {name}", "a runner is at work; look again")
    last = facts.verification
    if last is not None and last.divergences:
        return _Verdict(
            True,
            f"{safe} But {closed}: cutover stays closed.",
            f"verify {name} --mode full --repair",
            "it mends the rows and names them; then verify again (runbooks/divergences.md)",
        )
    if Phase.RECONCILE not in facts.phases:
        return _Verdict(
            True, safe, f"apply {name}", "it goes on behind its last checkpoint" if facts.segments else ""
        )
    if closed:
        return _Verdict(True, safe, f"verify {name} --mode full", f"{closed}, and cutover asks for one")
    words = f"apply {name} --to cutover"
    if facts.is_delta:
        return _Verdict(True, safe, f"{words} --writers-stopped", "first stop the application's writers")
    return _Verdict(True, safe, words)


def _in_freeze(facts: Facts, control: ControlRow) -> _Verdict:
    name = facts.script_id
    back = control.came_from is ControlPhase.CUTOVER
    authority = _target(facts) if back else _source(facts)
    what = "rollback" if back else "cutover"
    if facts.at_work:
        return _Verdict(
            True,
            f"A {what} is under way: writes wait, nothing is lost; {authority} is still the authority.",
            f"status {name}",
            "look again in a few seconds",
        )
    return _Verdict(
        False,
        f"A {what} was cut off and left the freeze behind: writes wait until it is left. Nothing is lost;"
        f" {authority} is still the authority.",
        f"apply {name}",
        "it goes back to where the freeze came from, and changes no row for that",
    )


def _in_cutover(facts: Facts) -> _Verdict:
    name, source, target = facts.script_id, _source(facts), _target(facts)
    if not facts.declared.migration.reverse:
        sentence = f"{target} is the authority. There is no way back (reverse=False)."
        rollback = ""
    else:
        sentence = (
            f"{target} is the authority, and there is a way back: what is written now is in {target} only,"
            f" until a rollback copies it to {source}."
        )
        stopped = " --writers-stopped" if facts.is_delta else ""
        rollback = f"or go back, which `complete` ends: rekey rollback {name}{stopped}"
    if facts.at_work:
        return _Verdict(True, sentence, f"status {name}", "a runner is at work; look again")
    return _Verdict(True, sentence, f"apply {name} --to complete", rollback)


def _in_complete(facts: Facts, control: ControlRow) -> _Verdict:
    source, target = _source(facts), _target(facts)
    since = ticks_of(control.completed_at or control.updated_at)
    ends = since + round(facts.gates.retention_s * TICKS_PER_SECOND)
    waiting = f"not before {format_ticks(ends)}, when the retention period ends" if facts.now < ends else ""
    return _Verdict(
        True,
        f"{target} is the authority; {source} is no longer written and is no way back any more.",
        f"retire {facts.script_id} --table {source}",
        waiting or f"this deletes {source}",
    )
