"""Judges a migration: its stage, whether it is safe right now, and what to do next. Rules only, no I/O; the
texts of verdicts are in `verdicts.toml`."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.core.plain import json_field, plain
from rekey.core.texts import catalogue, filled
from rekey.errors import Collision, RowRefused, WriterAtWork, in_words
from rekey.next_steps import TEXTS as STEPS
from rekey.next_steps import NextStep, after_findings, apply_to, next_step, with_names
from rekey.phases import ORDER, ControlPhase, Phase
from rekey.present.text import counted, moment
from rekey.protocol.control import ControlRow
from rekey.protocol.registry import ClientRow, Standing, over_at, standing
from rekey.state.audit import SUBJECTS
from rekey.state.models import BACKFILL, ON_TOP, PLAN_FACT, WATERMARK, PhaseRun
from rekey.status.facts import ESTIMATED_ROWS, Facts, verification_problem
from rekey.status.progress import Following, Progress, following, progress_of
from rekey.tables.sent import OPERATIONS, OnTop, apart, requests_in

# Unsettled intents of dead clients need attention so many seconds after they are due: by then the last of
# many live clients has begun to settle them.
OVERDUE_S = 90.0
# The entries `sentence`, `command` and `remark` of all verdicts.
TEXTS = catalogue(Path(__file__).with_name("verdicts.toml"))


@dataclass(frozen=True, slots=True)
class Backfill:
    """Progress of the copy. `rate` (rows a second) and `seconds_left` are None when not known."""

    rows: int
    estimated_rows: int | None
    segments_done: int
    segments: int
    rate: float | None = field(metadata=json_field("rows_per_second", digits=1))
    seconds_left: float | None = field(metadata=json_field(digits=0))


@dataclass(frozen=True, slots=True)
class Client:
    """Status of a client."""

    row: ClientRow
    # It has acknowledged the control row's epoch.
    current: bool
    # By the age of its last heartbeat.
    standing: Standing
    # When it is over for certain, unless it sends a heartbeat; by the service's clock.
    over_at: str

    def as_json(self) -> dict[str, Any]:
        row = plain(self.row)
        judged = {"current": self.current, "standing": str(self.standing), "over_at": self.over_at}
        return {name: row[name] for name in _OF_A_CLIENT} | judged | {name: row[name] for name in _COUNTED}


_OF_A_CLIENT = ("client_id", "name", "view", "host", "pid", "version", "epoch")
_COUNTED = ("in_flight", "left", "refuses", "counters")


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Requests and duration of one phase, over its runs up to the first that was done. As JSON its members
    have the order of the fields."""

    phase: str
    done: bool
    # Requests; `sent` without what came on top. By kind also the operations of batches.
    estimated: int
    sent: int
    estimated_by_kind: Mapping[str, int]
    sent_by_kind: Mapping[str, int]
    # Seconds; None where the plan does not say.
    expected_s: float | None
    # Seconds of these runs that have ended.
    took_s: float = field(metadata=json_field(digits=3))


@dataclass(frozen=True, slots=True)
class Spent:
    """Requests of the phases that are done, against the estimate of the plan that the migration began with.
    As JSON its members have the order of the fields."""

    estimated_of_phases_done: int
    sent_in_phases_done: int
    estimated_whole: int
    # Requests beyond an undisturbed run, by reason (`OnTop`).
    on_top: Mapping[str, int]
    # All phases that were begun, in order.
    phases: tuple[PhaseCost, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgment on the facts."""

    # Whether the migration is safe, and what that means; what is at risk comes first.
    sentence: str
    # The next command's words after `rekey`, only one; "": nothing to do.
    command: str
    # What to do first, to know, or to do instead.
    remark: str = ""
    # Nothing is at risk, and no action is needed now.
    safe: bool = True


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a migration."""

    facts: Facts
    verdict: Verdict
    # The phase it is in, in words for people.
    stage: str
    # None before the copy began.
    backfill: Backfill | None
    # Seconds since the last full verification.
    verification_age_s: float | None
    # Why that verification keeps the gate before cutover closed; "": it opens it.
    verification_closes: str
    # By how many seconds replicas are behind at most: since the last delta pass began, or the oldest intent
    # was made (older writes are in the replicas).
    lag_s: float | None
    # From then on `retire` may delete the source.
    retention_ends_at: str | None
    clients: tuple[Client, ...]
    # Sums of all clients' counters, also of those that are over or closed.
    counted: Mapping[str, int]
    # None: no estimate was stored.
    spent: Spent | None
    progress: Progress

    @property
    def next(self) -> dict[str, str]:
        """The next command and its remark, as a JSON object."""
        command = self.verdict.command
        return {"command": f"rekey {command}" if command else "", "remark": self.verdict.remark}

    def as_json(self) -> dict[str, Any]:
        facts, control, last = self.facts, self.facts.store.control, self.facts.state.verification
        return {
            "script_id": facts.script_id,
            "source": facts.source,
            "targets": list(facts.declared.migration.table_names),
            "capture": facts.declared.migration.capture,
            "group": facts.declared.migration.group,
            "stage": self.stage,
            **plain(self.progress),
            "divergences": None if last is None else last.divergences,
            "phases": plain(facts.phases),
            "control": None if control is None else {"phase": str(control.phase), "epoch": control.epoch},
            "runner": plain(facts.store.lease),
            "backfill": plain(self.backfill),
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
            "clients": plain(self.clients),
            "counted": dict(self.counted),
            "journal": plain(facts.store.intents),
            "watermark": facts.state.facts.get(WATERMARK),
            "lag_s": self.lag_s,
            "retention_ends_at": self.retention_ends_at,
            "indexes": plain(self.facts.indexes),
            "mapping": [
                {
                    "cohort": cohort.name,
                    "over_at": format_ticks(cohort.over_at),
                    "over": cohort.is_due(facts.now),
                    "erased_on": cohort.erased_on,
                }
                for cohort in facts.store.cohorts
            ],
            "requests": plain(self.spent),
            "waits_for": plain(facts.state.waits_for),
            "refused": facts.store.refused.what if facts.store.refused else "",
            "unreachable": facts.store.unreachable,
            "missing": list(facts.store.missing),
            "safe": self.verdict.safe,
            "sentence": self.verdict.sentence,
            "next": self.next,
        }


def judge(facts: Facts) -> Status:
    """Return the status of a migration, for people and as JSON; it holds no key."""
    last, retention = facts.state.verification, facts.retention_ends_at
    max_age_s = facts.gates.verification_max_age_s
    closed = verification_problem(
        last, facts.state.facts, now=facts.now, max_age_s=max_age_s, control=facts.store.control
    )
    counted = Counter[str](facts.store.ended)
    for row in facts.store.clients:
        counted.update(row.counters)
    return Status(
        facts=facts,
        verdict=_verdict(facts, closed),
        stage=_stage(facts),
        backfill=_backfill(facts),
        verification_age_s=None if last is None else facts.since(last.finished_at),
        verification_closes=closed,
        lag_s=_lag(facts),
        retention_ends_at=None if retention is None else format_ticks(retention),
        clients=tuple(
            Client(row, facts.is_current(row), standing(row, facts.now), format_ticks(over_at(row)))
            for row in facts.store.clients
        ),
        counted=dict(sorted(counted.items())),
        spent=_spent(facts),
        progress=progress_of(facts),
    )


# --- stage and figures ------------------------------------------------------------------------------------


def _stage(facts: Facts) -> str:
    """Return the last phase that is done and, if the last run is of another phase, how that run went."""
    stage, shown = facts.last_done, facts.declared.migration.shown
    last = facts.state.runs[-1] if facts.state.runs else None
    if last is None or last.outcome == "done" or last.phase in facts.phases:
        return stage
    if last.finished_at is None:
        how = "at work since" if facts.at_work else "was cut off; it began"
        return f"{stage}; {shown(last.phase)} {how} {moment(last.started_at)}"
    return f"{stage}; {shown(last.phase)} stopped {moment(last.finished_at)} ({in_words(last.outcome)})"


def _lag(facts: Facts) -> float | None:
    """Return by how many seconds replicas are behind at most; None where none follow or it is not known."""
    phase = None if facts.store.control is None else facts.store.control.phase
    if facts.is_delta:
        watermark = facts.state.facts.get(WATERMARK)
        following = phase in (ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
        return facts.since(watermark) if watermark and following else None
    if facts.store.intents is None or facts.store.control is None or not facts.store.control.is_followed:
        return None
    oldest = facts.store.intents.oldest_at
    return 0.0 if oldest is None else facts.since(format_ticks(oldest))


def _backfill(facts: Facts) -> Backfill | None:
    if not facts.state.segments:
        return None
    rows = sum(segment.rows for segment in facts.state.segments)
    done = sum(segment.done for segment in facts.state.segments)
    fact = facts.state.facts.get(ESTIMATED_ROWS)
    estimated = int(fact) if fact else None
    rate, left = _rate(facts, rows), None
    if rate and estimated is not None and done < len(facts.state.segments):
        left = max(0, estimated - rows) / rate
    work = None if facts.pulse is None else facts.pulse.work
    if work is not None and work.label == BACKFILL and work.eta is not None:
        left = work.eta.seconds  # which accounts for slower partitions
    return Backfill(rows, estimated, done, len(facts.state.segments), rate, left)


def _rate(facts: Facts, rows: int) -> float | None:
    """Return rows a second over all runs of the backfill; None without rows or with a run of unknown end."""
    seconds = 0.0
    for run in _this_life(facts):
        if run.phase != Phase.BACKFILL:
            continue
        if run.finished_at is not None:
            seconds += (ticks_of(run.finished_at) - ticks_of(run.started_at)) / TICKS_PER_SECOND
        elif facts.at_work and run is facts.state.runs[-1]:
            seconds += facts.since(run.started_at)
        else:
            return None
    return rows / seconds if seconds > 0 and rows else None


def _this_life(facts: Facts) -> list[PhaseRun]:
    """Return the runs of phases since `prepare` was last taken back, oldest first."""
    undone = (event for event in facts.state.events if event.event == "phase-undo")
    began = max(
        (audit_event.at for audit_event in undone if audit_event.details["phase"] == Phase.PREPARE),
        default="",
    )
    return [run for run in facts.state.runs if run.started_at >= began]


def _spent(facts: Facts) -> Spent | None:
    """Return requests sent and estimated; None: no plan was stored, or by a version that counted
    otherwise."""
    try:
        plan = json.loads(facts.state.facts.get(PLAN_FACT, ""))["plan"]
        estimate: dict[str, Any] = plan["migrations"][0]["estimate"]
        known = all("what" in request for request in estimate["requests"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    if not known:
        return None
    estimated: dict[str, Counter[str]] = {}
    for request in estimate["requests"]:
        kinds = estimated.setdefault(request["phase"], Counter())
        kinds[request["kind"]] += request["count"]
        kinds[OPERATIONS] += request.get("operations", 0)
    expected = {phase["phase"]: float(phase["at_limits_s"]) for phase in estimate["durations"]}
    entered: dict[str, list[PhaseRun]] = {}
    for run in _this_life(facts):
        entered.setdefault(run.phase, []).append(run)
    phases, on_top = [], Counter[str](json.loads(facts.state.facts.get(ON_TOP, "{}")))
    for phase in (phase for phase in ORDER if phase in entered):
        planned, sent, took, done = +estimated.get(phase, Counter()), Counter[str](), 0, False
        # Runs that were cut off count: their requests were sent. What a killed run sent after its last
        # checkpoint, and what lost tasks sent, is not known.
        for run in entered[phase]:
            undisturbed, extra = apart(run.requests)
            on_top.update(extra)
            if done:
                on_top[OnTop.REPEATS] += requests_in(undisturbed)
                continue
            sent.update(undisturbed)
            if run.finished_at is not None:
                took += ticks_of(run.finished_at) - ticks_of(run.started_at)
            done = run.outcome == "done"
        phases.append(
            PhaseCost(
                phase=str(phase),
                done=done,
                estimated=requests_in(planned),
                sent=requests_in(sent),
                estimated_by_kind=planned,
                sent_by_kind=sent,
                expected_s=expected.get(phase),
                took_s=took / TICKS_PER_SECOND,
            )
        )
    over = [phase for phase in phases if phase.done]
    return Spent(
        estimated_of_phases_done=sum(cost.estimated for cost in over),
        sent_in_phases_done=sum(phase.sent for phase in over),
        estimated_whole=sum(requests_in(kinds) for kinds in estimated.values()),
        on_top={str(why): on_top[why] for why in OnTop if on_top[why]},
        phases=tuple(phases),
    )


# --- is it safe, and what is next --------------------------------------------------------------------------


def _verdict(facts: Facts, closed: str) -> Verdict:
    """Return whether the migration is safe and what to do next. `closed`: why the last full verification
    keeps the gate before cutover closed."""
    doubtful = _doubtful(facts)
    if doubtful is not None:
        return doubtful
    verdict = _undoubted(facts, closed)
    if facts.store.control is not None and facts.store.control.phase is ControlPhase.RETIRED:
        return verdict
    if facts.declared.is_kept:
        path = facts.declared.path
        if facts.declared.fault:
            values = {"found": verdict.sentence, "fault": facts.declared.fault}
            return _make_verdict("script-broken", facts, safe=verdict.safe, **values)
        values = {"found": verdict.sentence, "file": path.name, "path": shlex.quote(str(path))}
        return _make_verdict("script-gone", facts, safe=verdict.safe, **values)
    if facts.store.refused:
        values = {
            "found": verdict.sentence,
            "what": facts.store.refused.what,
            "hint": facts.store.refused.hint,
        }
        return _make_verdict("secrets-refused", facts, safe=facts.store.control is None, **values)
    return verdict


def _undoubted(facts: Facts, closed: str) -> Verdict:
    """Return the verdict on known facts, of a script that is as it was begun."""
    if facts.store.control is None:
        return _not_begun(facts)
    match facts.store.control.phase:
        case ControlPhase.FREEZE:
            verdict = _in_freeze(facts, facts.store.control)
        case ControlPhase.COMPLETE if facts.store.control.maintained:
            return _with_clients(facts, facts.store.control.phase, _maintained(facts, closed))
        case ControlPhase.COMPLETE:
            return _erasing(facts) or _in_complete(facts)
        case ControlPhase.RETIRED:
            return _erasing(facts) or _make_verdict("mapping-over" if facts.due else "retired", facts)
        case _:
            verdict = _between_freezes(facts, facts.store.control.phase, closed)
    if facts.paused:
        step = next_step("paused")
        verdict = replace(verdict, command=step.command, remark=step.remark)
    return verdict if facts.is_delta else _with_clients(facts, facts.store.control.phase, verdict)


def _doubtful(facts: Facts) -> Verdict | None:
    """Return the verdict when facts are not known or contradict each other, else None."""
    control = facts.store.control
    if facts.store.unreachable:
        return _make_verdict("unreachable", facts, safe=False, why=facts.store.unreachable)
    if facts.store.taken:
        return _make_verdict("name-taken", facts, safe=not facts.state.applied, taken=facts.store.taken)
    if control is None:
        if facts.state.begun_as:
            return _make_verdict("begun-as", facts, began=facts.state.begun_as, file=facts.declared.path.name)
        return _make_verdict("unknown-to-store", facts, safe=False) if facts.state.applied else None
    if control.digest != facts.declared.digest and control.phase is not ControlPhase.RETIRED:
        safe = control.phase is not ControlPhase.FREEZE
        return _make_verdict("script-edited", facts, safe=safe, file=facts.declared.path.name)
    return _without_tables(facts, control.phase) if facts.store.missing else None


def _without_tables(facts: Facts, phase: ControlPhase) -> Verdict:
    missing, listed = set(facts.store.missing), ", ".join(facts.store.missing)
    gone = f"{listed} {'does' if len(facts.store.missing) == 1 else 'do'} not exist"
    values: dict[str, object] = {"gone": gone}
    target_is_authority = phase in (ControlPhase.CUTOVER, ControlPhase.COMPLETE, ControlPhase.RETIRED)
    authority = facts.target if target_is_authority else facts.source
    if authority in missing:
        other = facts.source if target_is_authority else facts.target
        copy = f"{other} may hold the only copy of its rows: drop nothing"
        if other in missing or phase is ControlPhase.SOURCE:
            copy = "nothing of this migration holds a copy of its rows"
        return _make_verdict("authority-missing", facts, safe=False, authority=authority, copy=copy, **values)
    if phase is ControlPhase.DUAL_WRITE:
        return _make_verdict("replica-missing", facts, safe=False, **values)
    return _make_verdict("table-missing", facts, safe=False, authority=authority, **values)


def _with_clients(facts: Facts, phase: ControlPhase, verdict: Verdict) -> Verdict:
    """Return a verdict changed by the clients (capture "dual-write"): one refuses writes, or none is live."""
    refusing = facts.clients_refusing
    if refusing:
        when = "will refuse writes" if phase is ControlPhase.SOURCE else "refuses writes"
        # Its writes fail right now, even if everything else is well.
        code, safe = refusing[0].refuses, verdict.safe and phase is ControlPhase.SOURCE
        values = {"client": _named(refusing), "when": when, "remedy": _REMEDIES.get(code, _RESTART)}
        return _make_verdict("client-refuses", facts, safe=safe, found=verdict.sentence, code=code, **values)
    if phase is not ControlPhase.SOURCE and not facts.live_clients:
        sentence = f"{verdict.sentence} No client of the application is registered: no write is followed."
        verdict = replace(verdict, sentence=sentence)
    return _with_abandoned(facts, verdict) if facts.clients_settle else verdict


def _with_abandoned(facts: Facts, before: Verdict) -> Verdict:
    """Return a verdict changed by writes that dead clients left unfinished, where neither the runner nor live
    clients finish them."""
    abandoned = None if facts.store.intents is None else facts.store.intents.abandoned
    if abandoned is None or facts.at_work:
        return before
    settlers, due = facts.settlers, moment(format_ticks(abandoned.due_at))
    values: dict[str, Any] = {
        "found": before.sentence,
        "writes": counted(abandoned.intents, "write"),
        "since": moment(format_ticks(abandoned.since)),
    }
    if not settlers:
        verdict = _make_verdict("abandoned", facts, safe=False, **values)
        if before.command.startswith("verify"):  # which settles them as well
            return replace(verdict, command=before.command, remark=before.remark)
        if facts.now >= abandoned.due_at:
            return verdict
        return replace(verdict, remark=f"not before {due}: until then requests of those clients may arrive")
    if facts.now < abandoned.due_at + round(OVERDUE_S * TICKS_PER_SECOND):
        return before
    return _make_verdict("abandoned-overdue", facts, safe=False, client=_named(settlers), due=due, **values)


_RESTART = "see what that client logs, and restart it"
_REMEDIES = {
    "digest-moved": "deploy the script that the migration was begun with, unchanged",
    "secret-moved": "give it the secrets that the migration was begun with",
}


def _named(rows: Sequence[ClientRow]) -> str:
    """Return name and process of the first client, and how many more there are."""
    first = rows[0]
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{first.name} (process {first.pid} on {first.host}){more}"


def _make_verdict(verdict: str, facts: Facts, *, safe: bool = True, **values: object) -> Verdict:
    """Return a verdict of `TEXTS`; `values` are for the names in braces in its texts."""
    script = facts.declared.named if verdict in _OF_A_GROUP else facts.script_id
    values = with_names({"script": script, "source": facts.source, "target": facts.target, **values})
    texts = {**STEPS.get(verdict, {}), **TEXTS[verdict]}
    sentence, command, remark = filled(texts, values, "sentence", "command", "remark")
    return Verdict(sentence, command, remark, safe)


# Verdicts whose command names the whole group, if the migration has one.
_OF_A_GROUP = (
    "not-begun",
    "source",
    "still-writing",
    "freeze-cut-off",
    "no-way-back",
    "way-back",
    "way-back-by-copying",
)


def _not_begun(facts: Facts) -> Verdict:
    verdict, name = _make_verdict("not-begun", facts), facts.script_id
    if facts.state.waits_for:
        first = facts.state.waits_for[0]
        command = apply_to(first.named or first.script_id, first.phase)
        return replace(verdict, command=command, remark=f"{name} waits for that")
    if facts.at_work:
        return replace(verdict, command=f"status {name}", remark="a runner begins it just now; look again")
    return verdict


def _between_freezes(facts: Facts, phase: ControlPhase, closed: str) -> Verdict:
    if phase is ControlPhase.SOURCE:
        verdict = _make_verdict("source", facts)
    elif phase is ControlPhase.DUAL_WRITE:
        followed = following(facts) if facts.at_work else None
        if followed is not None:
            return _followed(facts, closed, followed)
        verdict = _make_verdict("dual-write", facts) if facts.at_work else _in_dual_write(facts, closed)
    elif not facts.declared.migration.reverse:
        verdict = _make_verdict("no-way-back", facts)
    else:
        verdict = _make_verdict("way-back-by-copying" if facts.is_delta else "way-back", facts)
    if facts.at_work:
        return replace(verdict, command=f"status {facts.script_id}", remark="a runner is at work; look again")
    return verdict


def _followed(facts: Facts, closed: str, how: Following) -> Verdict:
    """Return the verdict while `apply --follow` is at work before the gate of cutover."""
    name, last = facts.script_id, facts.state.verification
    refused = f" Its last cutover was refused: {'; '.join(how.refused)}." if how.refused else ""
    written = bool(facts.state.runs) and facts.state.runs[-1].outcome == WriterAtWork.__name__
    if last is not None and last.divergences and not written:
        step = after_findings(name, facts.source, last.report, following=True)
        return _make_verdict("divergent", facts, closed=closed, command=step.command, remark=step.remark)
    step = next_step("proceed-stopped" if facts.is_delta else "proceed", script=name)
    if closed:
        step, refused = next_step("followed", script=name), f"{refused} But {closed}."
    elif behind := facts.clients_behind:
        step = NextStep(f"status {name}", f"first see why {_named(behind)} does not follow")
    return _make_verdict("following", facts, refused=refused, command=step.command, remark=step.remark)


# Outcomes that running the same command again would repeat.
_OF_ROWS = (Collision.__name__, RowRefused.__name__)


def _in_dual_write(facts: Facts, closed: str) -> Verdict:
    name, last, safe = facts.script_id, facts.state.verification, _make_verdict("dual-write", facts)
    if last is not None and last.divergences:
        if facts.state.runs and facts.state.runs[-1].outcome == WriterAtWork.__name__:
            return _make_verdict("still-writing", facts, closed=closed)
        step = after_findings(name, facts.source, last.report)
        return _make_verdict("divergent", facts, closed=closed, command=step.command, remark=step.remark)
    if (
        facts.state.runs
        and facts.state.runs[-1].outcome in _OF_ROWS
        and facts.state.runs[-1].phase not in facts.phases
    ):
        step = next_step("collision", script=name, source=facts.source)
        return replace(safe, command=step.command, remark=step.remark)
    if following(facts) is not None:
        step = next_step("follow", script=name)
        return replace(safe, command=step.command, remark=step.remark)
    if Phase.RECONCILE not in facts.phases:
        goes_on = "it goes on after its last checkpoint" if facts.state.segments else ""
        return replace(safe, command=f"apply {facts.declared.named}", remark=goes_on)
    if closed:
        remark = f"{closed}, and cutover asks for one"
        return replace(safe, command=f"verify {name} --mode full", remark=remark)
    step = next_step("cut-over-stopped" if facts.is_delta else "cut-over", script=facts.declared.named)
    command, remark = step.command, step.remark
    if behind := facts.clients_behind:
        command, remark = f"status {name}", f"first see why {_named(behind)} does not follow"
    elif not facts.is_delta and not facts.live_clients:
        remark = "first start the application's clients; --writers-stopped goes without"
    return replace(safe, command=command, remark=remark)


def _in_freeze(facts: Facts, control: ControlRow) -> Verdict:
    back = control.came_from is ControlPhase.CUTOVER
    authority = facts.target if back else facts.source
    values: dict[str, Any] = {"what": "rollback" if back else "cutover", "authority": authority}
    if facts.at_work:
        remark = _waiting(facts, control) or "look again in a few seconds"
        return _make_verdict("in-freeze", facts, remark=remark, **values)
    return _make_verdict("freeze-cut-off", facts, safe=False, **values)


def _waiting(facts: Facts, control: ControlRow) -> str:
    """Return which clients a freeze waits for, and until when at most; "" when it waits for none."""
    behind = facts.clients_behind
    if not behind:
        return ""
    silent = [row for row in behind if standing(row, facts.now) is not Standing.LIVE]
    if not silent:
        return f"it waits for {_named(behind)} to end what it has begun"
    over = max(over_at(row) for row in silent)
    text = f"{_named(silent)} is silent, and is waited for until {moment(format_ticks(over))} at most"
    if control.frozen_at is not None:
        left = ticks_of(control.frozen_at) + round(facts.gates.freeze_timeout_s * TICKS_PER_SECOND)
        if left < over:
            return f"{text}; the freeze is aborted at {moment(format_ticks(left))}, and writes go on then"
    return text


def _maintained(facts: Facts, closed: str) -> Verdict:
    name, last, kept = (
        facts.script_id,
        facts.state.verification,
        ", ".join(facts.declared.migration.index_labels),
    )
    verdict = _make_verdict("complete-maintained", facts, kept=kept)
    if facts.at_work:
        return replace(verdict, command=f"status {name}", remark="a runner is at work; look again")
    if last is not None and last.divergences:
        step = after_findings(name, facts.source, last.report)
        sentence = f"{verdict.sentence} But {closed}."
        return replace(verdict, sentence=sentence, command=step.command, remark=step.remark, safe=False)
    step = next_step("hand-over", script=name)
    return replace(verdict, command=step.command, remark=step.remark)


def _in_complete(facts: Facts) -> Verdict:
    name, ends, kept = facts.script_id, facts.retention_ends_at, facts.declared.migration.index_labels
    listed = ", ".join(kept)
    verdict = (
        _make_verdict("complete-handed-over", facts, kept=listed)
        if kept
        else _make_verdict("complete", facts)
    )
    compared = facts.indexes_verified
    if kept and compared is not None and compared[1]:
        text = f"{counted(compared[1], 'row')} differed"
        return _make_verdict("indexes-differ", facts, safe=False, kept=listed, differ=text)
    if not facts.proved:
        export = f"evidence export evidence-{name} {name}"
        return replace(verdict, command=export, remark="then verify it; `retire` asks for that")
    if ends is not None and facts.now < ends:
        end = moment(format_ticks(ends))
        return replace(verdict, remark=f"not before {end}, when the retention period ends")
    return verdict


def _erasing(facts: Facts) -> Verdict | None:
    """Return the verdict about an erasure that was cut off; None when there is none or a runner works."""
    if not facts.erasing or facts.at_work:
        return None
    first, values = facts.erasing[0], dict[str, object]()
    if first.details["kind"] == SUBJECTS:
        details = first.details
        named = [*details["rows"], *details.get("unknown", ()), *details.get("erased_before", ())]
        row_id = named[0] if named else "?"
        values = {"command": f"erase {facts.script_id} --id {row_id} --reason 'goes on'"}
    return _make_verdict("erasure-cut-off", facts, safe=False, day=first.at[:10], **values)
