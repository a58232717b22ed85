"""Where a migration stands, whether it is safe right now, and what to do next. Rules only, no I/O.

Rules kept here:

* `judge` puts together what is told of a migration, for people and as JSON; nothing of it holds a key.
* A figure that nobody can know (the rate after a kill) is left out.
* How far replicas are behind is told by the age of the oldest intent: what is older is in them.
* The sentence says what is at risk before it says anything else; its reader may have been woken up.
* Only one command is named, the one that is right now; what else there is, is a remark.
* A client that refuses writes is somebody's error right now, whatever else is well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.phases import FOLLOWED, ControlPhase, Phase
from rekey.protocol.control import ControlRow
from rekey.protocol.registry import ClientRow, Standing, over_at, standing
from rekey.state.audit import SUBJECTS
from rekey.state.models import PLAN_FACT, WATERMARK
from rekey.status.facts import ESTIMATED_ROWS, Facts, verification_problem
from rekey.status.spent import Spent, spent


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


# --- is it safe, and what is next --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether it is safe, what that means, the next command's words, and what to add to them."""

    safe: bool
    sentence: str
    command: str
    remark: str = ""


def verdict(facts: Facts, closed: str) -> Verdict:
    """Say whether it is safe and what comes next.

    Args:
        facts: what is known.
        closed: why the last full verification keeps the gate before cutover closed, "" when it opens it.
    """
    doubtful = _doubtful(facts)
    if doubtful is not None:
        return doubtful
    if facts.control is None:
        return _not_begun(facts)
    found = _by_phase(facts, facts.control, closed)
    return _with_clients(facts, facts.control.phase, found)


def _by_phase(facts: Facts, control: ControlRow, closed: str) -> Verdict:
    match control.phase:
        case ControlPhase.SOURCE:
            return _in_source(facts)
        case ControlPhase.DUAL_WRITE:
            return _in_dual_write(facts, closed)
        case ControlPhase.FREEZE:
            return _in_freeze(facts, control)
        case ControlPhase.CUTOVER:
            return _in_cutover(facts)
        case ControlPhase.COMPLETE:
            return _erasing(facts) or _in_complete(facts)
        case ControlPhase.RETIRED:
            return _erasing(facts) or _in_retired(facts)


def _doubtful(facts: Facts) -> Verdict | None:
    """Return what to say when it cannot be known, or does not fit together."""
    name, control = facts.script_id, facts.control
    if facts.unreachable:
        return Verdict(
            False,
            f"Not known: {facts.unreachable}; what is shown is what the state file says.",
            f"status {name}",
            "first mend the connection or the credential",
        )
    if control is None and facts.applied:
        return Verdict(
            False,
            "Not known: the state file says it is begun, the restricted store does not know it.",
            f"status {name}",
            "first check [restricted] endpoint; apply nothing before the store is found (runbooks/resume.md)",
        )
    if (
        control is not None
        and control.digest != facts.declared.digest
        and control.phase is not ControlPhase.RETIRED
    ):
        return Verdict(
            control.phase is not ControlPhase.FREEZE,
            "Nothing is lost, but the script was edited after the first phase: every command refuses it.",
            f"status {name}",
            f"first put {facts.declared.path.name} back as it was",
        )
    return None


def _with_clients(facts: Facts, phase: ControlPhase, found: Verdict) -> Verdict:
    """Add what the clients of the application make of it, in capture "dual-write"."""
    if facts.is_delta or phase in (ControlPhase.COMPLETE, ControlPhase.RETIRED):
        return found
    refusing = facts.clients_refusing
    if refusing:
        when = "will refuse writes" if phase is ControlPhase.SOURCE else "refuses writes"
        return replace(
            found,
            safe=found.safe and phase is ControlPhase.SOURCE,
            sentence=f"{found.sentence} But {_named(refusing)} {when} (`{refusing[0].refuses}`).",
            command=f"status {facts.script_id}",
            remark=f"first {_REMEDIES.get(refusing[0].refuses, _RESTART)}",
        )
    if phase is not ControlPhase.SOURCE and not facts.live_clients:
        sentence = f"{found.sentence} No client of the application is registered: no write is followed."
        return replace(found, sentence=sentence)
    return found


_RESTART = "see what that client logs, and restart it"
_REMEDIES = {
    "digest-moved": "deploy the script that the migration was begun with, unchanged",
    "secret-moved": "give it the secrets that the migration was begun with",
}


def _named(rows: Sequence[ClientRow]) -> str:
    """Return who the first one is, and how many more there are."""
    first = rows[0]
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{first.name} (process {first.pid} on {first.host}){more}"


def _not_begun(facts: Facts) -> Verdict:
    name = facts.script_id
    safe = f"Nothing has been written; the application works on {facts.source} as always."
    if facts.waits_for:
        first = facts.waits_for[0]
        return Verdict(True, safe, f"apply {first.script_id} --to {first.phase}", f"{name} waits for that")
    if facts.at_work:
        return Verdict(True, safe, f"status {name}", "a runner begins it just now; look again")
    return Verdict(True, safe, f"apply {name}", f"first read what it will do: rekey plan {name}")


def _in_source(facts: Facts) -> Verdict:
    name = facts.script_id
    sentence = f"{facts.source} is the authority; nothing is copied yet that anybody reads."
    if facts.at_work:
        return Verdict(True, sentence, f"status {name}", "a runner is at work; look again")
    return Verdict(True, sentence, f"apply {name}")


def _in_dual_write(facts: Facts, closed: str) -> Verdict:
    name = facts.script_id
    safe = f"{facts.source} is the authority and rekey only reads it; {facts.target} is a copy."
    if facts.at_work:
        return Verdict(True, safe, f"status {name}", "a runner is at work; look again")
    last = facts.verification
    if last is not None and last.divergences and last.report.get("repair") is not None:
        return Verdict(True, safe, f"verify {name} --mode full", "the last one mended rows; this proves it")
    if last is not None and last.divergences:
        return Verdict(
            True,
            f"{safe} But {closed}: cutover stays closed.",
            f"verify {name} --mode full --repair",
            "it mends the rows and names them; then verify again (runbooks/divergences.md)",
        )
    if Phase.RECONCILE not in facts.phases:
        return Verdict(
            True, safe, f"apply {name}", "it goes on behind its last checkpoint" if facts.segments else ""
        )
    if closed:
        return Verdict(True, safe, f"verify {name} --mode full", f"{closed}, and cutover asks for one")
    words = f"apply {name} --to cutover"
    if facts.is_delta:
        return Verdict(True, safe, f"{words} --writers-stopped", "first stop the application's writers")
    behind = facts.clients_behind
    if behind:
        return Verdict(True, safe, f"status {name}", f"first see why {_named(behind)} does not follow")
    if not facts.live_clients:
        return Verdict(
            True, safe, words, "first start the application's clients; --writers-stopped goes without"
        )
    return Verdict(True, safe, words)


def _in_freeze(facts: Facts, control: ControlRow) -> Verdict:
    name = facts.script_id
    back = control.came_from is ControlPhase.CUTOVER
    authority = facts.target if back else facts.source
    what = "rollback" if back else "cutover"
    if facts.at_work:
        return Verdict(
            True,
            f"A {what} is under way: writes wait, nothing is lost; {authority} is still the authority.",
            f"status {name}",
            _waiting(facts, control) or "look again in a few seconds",
        )
    return Verdict(
        False,
        f"A {what} was cut off and left the freeze behind: writes wait until it is left. Nothing is lost;"
        f" {authority} is still the authority.",
        f"apply {name}",
        "it goes back to where the freeze came from, and changes no row for that",
    )


def _waiting(facts: Facts, control: ControlRow) -> str:
    """Return which clients a freeze waits for, and until when at most; "" when it waits for none."""
    behind = facts.clients_behind
    if not behind:
        return ""
    silent = [row for row in behind if standing(row, facts.now) is not Standing.LIVE]
    if not silent:
        return f"it waits for {_named(behind)} to end what it has begun"
    over = max(over_at(row) for row in silent)
    said = f"{_named(silent)} is silent, and is waited for until {format_ticks(over)} at most"
    frozen = control.frozen_at
    if frozen is not None:
        left = ticks_of(frozen) + round(facts.gates.freeze_timeout_s * TICKS_PER_SECOND)
        if left < over:
            return f"{said}; the freeze is given up at {format_ticks(left)}, and writes go on then"
    return said


def _in_cutover(facts: Facts) -> Verdict:
    name, source, target = facts.script_id, facts.source, facts.target
    if not facts.declared.migration.reverse:
        sentence = f"{target} is the authority. There is no way back (reverse=False)."
        rollback = ""
    else:
        follows = (
            f"what is written now is in {target} only, until a rollback copies it to {source}"
            if facts.is_delta
            else f"clients keep {source} current"
        )
        sentence = f"{target} is the authority, and there is a way back: {follows}."
        stopped = " --writers-stopped" if facts.is_delta else ""
        rollback = f"or go back, which `complete` ends: rekey rollback {name}{stopped}"
    if facts.at_work:
        return Verdict(True, sentence, f"status {name}", "a runner is at work; look again")
    return Verdict(True, sentence, f"apply {name} --to complete", rollback)


def _in_complete(facts: Facts) -> Verdict:
    source, target, ends = facts.source, facts.target, facts.retention_ends_at
    waiting = ""
    if ends is not None and facts.now < ends:
        waiting = f"not before {format_ticks(ends)}, when the retention period ends"
    sentence = f"{target} is the authority; {source} is no longer written and is no way back any more."
    if not facts.proved:
        name = facts.script_id
        export = f"evidence export evidence-{name} {name}"
        return Verdict(True, sentence, export, "then verify it; `retire` asks for that")
    return Verdict(
        True,
        sentence,
        f"retire {facts.script_id} --table {source}",
        waiting or f"this deletes {source}",
    )


def _in_retired(facts: Facts) -> Verdict:
    sentence = f"{facts.source} is deleted, {facts.target} has taken over."
    if not facts.due:
        return Verdict(True, sentence, "")
    command = f"expire {facts.script_id} --confirm {facts.script_id}"
    return Verdict(True, sentence, command, "what the mapping knows is kept longer than it should be")


def _erasing(facts: Facts) -> Verdict | None:
    """Return what to say of an erasure that was cut off, None when there is none."""
    if not facts.erasing or facts.at_work:
        return None
    first, name = facts.erasing[0], facts.script_id
    command = f"expire {name} --confirm {name}"
    if first.details["kind"] == SUBJECTS:
        named = first.details["rows"] or [first.details.get("unknown", ["?"])[0]]
        command = f"erase {name} --id {named[0]} --reason 'goes on'"
    sentence = (
        f"{facts.target} is the authority; but an erasure that was begun on {first.at[:10]} was cut off."
    )
    return Verdict(False, sentence, command, "it ends what was begun, all that was meant then")
