"""Judges a migration: its stage, whether it is safe right now, and what to do next. Rules only, no I/O: a
verdict is a code and figures; its texts are in `verdicts.toml`."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.core.joint import is_joint, names_in
from rekey.core.plain import json_field, plain
from rekey.core.texts import catalogue, filled
from rekey.errors import Collision, RowRefused, SealedUnreadable, WriterAtWork, in_words
from rekey.next_steps import TEXTS as STEPS
from rekey.next_steps import apply_to, code_after_findings, with_names
from rekey.phases import ORDER, ControlPhase, Phase
from rekey.present.text import counted, moment
from rekey.protocol.control import ControlRow
from rekey.protocol.registry import ClientRow, Standing, over_at, refused_at, standing
from rekey.protocol.rules import SOURCE, View, authority
from rekey.state.audit import SUBJECTS
from rekey.state.models import BACKFILL, OVERHEAD, PLAN_FACT, WATERMARK, PhaseRun
from rekey.status.facts import (
    DIFFERING_SO_FAR,
    ESTIMATED_ROWS,
    Facts,
    handover_problem,
    took_s,
    verification_problem,
)
from rekey.status.progress import Following, Progress, following, progress_of
from rekey.tables.sent import OPERATIONS, Overhead, apart, requests_in

# Unsettled intents of dead clients need attention so many seconds after they are due: by then the last of
# many live clients has begun to settle them.
OVERDUE_S = 90.0
# The entries `sentence`, `command` and `remark` of verdicts and of what follows them.
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
    # Until when the service accepts what it had signed, in case it is only suspended; "": no longer.
    heard_of_until: str

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
    # Requests beyond an undisturbed run, by reason (`Overhead`).
    overhead: Mapping[str, int] = field(metadata=json_field("on_top"))
    # All phases that were begun, in order.
    phases: tuple[PhaseCost, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgment on the facts, as codes and figures; the words are in `TEXTS` and `STEPS`."""

    # A key of `TEXTS`.
    code: str
    # By the names in braces in the texts; the verdict that a sentence goes on from is `before`.
    values: Mapping[str, object]
    # Nothing is at risk, and no action is needed now.
    safe: bool = True
    # What to do next, where it is not the verdict's own command: a key of `TEXTS` or `STEPS`.
    step: str = ""

    @property
    def sentence(self) -> str:
        """Whether the migration is safe, and what that means; what is at risk comes first."""
        return self._text(self.code, "sentence")

    @property
    def command(self) -> str:
        """The next command's words after `rekey`, only one; "": nothing to do."""
        return self._text(self.step or self.code, "command")

    @property
    def remark(self) -> str:
        """What to do first, to know, or to do instead."""
        return self._text(self.step or self.code, "remark")

    def _text(self, code: str, part: str) -> str:
        return filled({**STEPS.get(code, {}), **TEXTS.get(code, {})}, self.values, part)[0]

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a migration."""

    facts: Facts
    verdict: Verdict
    # The phase it is in, in words for people.
    stage: str
    # None before the copy began.
    backfill: Backfill | None
    # Seconds since the last full verification read its first row.
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
    def verification_max_age_s(self) -> float | None:
        """How old the last full verification may be at cutover."""
        last = self.facts.state.verification
        return None if last is None else self.facts.gates.max_age_s(took_s(last))

    @property
    def differing_so_far(self) -> int:
        """How many rows an unfinished full verification has seen to differ."""
        return int(self.facts.state.facts.get(DIFFERING_SO_FAR, 0))

    @property
    def not_migrated_rows(self) -> int:
        """How many source rows that the script drops the last full verification counted."""
        last = self.facts.state.verification
        return 0 if last is None else last.report.get("not_migrated_rows", 0)

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
            "divergences_so_far": self.differing_so_far,
            "phases": plain(facts.phases),
            "control": None if control is None else {"phase": str(control.phase), "epoch": control.epoch},
            "runner": plain(facts.store.lease),
            "backfill": plain(self.backfill),
            "verification": None
            if last is None
            else {
                "begun_at": last.started_at,
                "finished_at": last.finished_at,
                "age_s": self.verification_age_s,
                "max_age_s": self.verification_max_age_s,
                "divergences": last.divergences,
                "rows_source": last.rows_source,
                "rows_target": last.rows_target,
                **({"not_migrated_rows": self.not_migrated_rows} if self.not_migrated_rows else {}),
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
    closed = verification_problem(
        last, facts.state.facts, now=facts.now, gates=facts.gates, control=facts.store.control
    )
    counted = Counter[str](facts.store.ended)
    for row in facts.store.clients:
        counted.update(row.counters)
    return Status(
        facts=facts,
        verdict=_verdict(facts, closed),
        stage=_stage(facts),
        backfill=_backfill(facts),
        verification_age_s=None if last is None else facts.since(last.started_at),
        verification_closes=closed,
        lag_s=_lag(facts),
        retention_ends_at=None if retention is None else format_ticks(retention),
        clients=tuple(
            Client(
                row,
                facts.is_current(row),
                standing(row, facts.now),
                over_at=format_ticks(over_at(row)),
                heard_of_until=format_ticks(until) if (until := refused_at(row)) > facts.now else "",
            )
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
    """Return the runs of phases since `prepare` was last rolled back, oldest first."""
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
    expected.pop(Phase.PREPARE, None)  # that of the row check, which comes before the phase
    entered: dict[str, list[PhaseRun]] = {}
    for run in _this_life(facts):
        entered.setdefault(run.phase, []).append(run)
    phases, overhead = [], Counter[str](json.loads(facts.state.facts.get(OVERHEAD, "{}")))
    for phase in (phase for phase in ORDER if phase in entered):
        planned, sent, took, done = +estimated.get(phase, Counter()), Counter[str](), 0, False
        # Runs that were cut off count: their requests were sent. What a killed run sent after its last
        # checkpoint, and what lost tasks sent, is not known.
        for run in entered[phase]:
            undisturbed, extra = apart(run.requests)
            overhead.update(extra)
            if done:
                overhead[Overhead.REPEATS] += requests_in(undisturbed)
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
        overhead={str(why): overhead[why] for why in Overhead if overhead[why]},
        phases=tuple(phases),
    )


# --- is it safe, and what is next --------------------------------------------------------------------------

# Codes whose command names the whole group, if the migration has one.
_OF_A_GROUP = (
    *("not-begun", "source", "not-copied", "copy-cut-off", "cut-over", "cut-over-stopped", "clients-missing"),
    *("still-writing", "freeze-cut-off", "no-way-back", "way-back", "way-back-by-copying", "old-view-left"),
    "way-back-old-view",
)


def _verdict_of(facts: Facts, code: str, *, safe: bool = True, step: str = "", **values: object) -> Verdict:
    return Verdict(code, _named(facts, step or code, values), safe, step)


def _then(verdict: Verdict, facts: Facts, step: str, **values: object) -> Verdict:
    """Return a verdict with another next step."""
    return replace(verdict, step=step, values=_named(facts, step, {**verdict.values, **values}))


def _but(verdict: Verdict, code: str, **values: object) -> Verdict:
    """Return a verdict whose sentence goes on with that of `code`; the next step stays."""
    values = {**verdict.values, **values, "before": verdict}
    return replace(verdict, code=code, values=values, step=verdict.step or verdict.code)


def _named(facts: Facts, code: str, values: Mapping[str, object]) -> dict[str, object]:
    script = facts.declared.cli_selector if code in _OF_A_GROUP else facts.script_id
    source = facts.declared.migration.source_label
    named = {**values, "script": script, "source": source, "table": facts.source, "target": facts.target}
    are = is_joint(facts.declared.migration.tables[0])
    named["target_is"] = f"{facts.target} {'are' if are else 'is'}"
    named["target_is_copy"] = f"{facts.target} {'are copies' if are else 'is a copy'}"
    named["target_has"] = f"{facts.target} {'have' if are else 'has'}"
    authority = values.get("authority")
    named["authority_is"] = named["target_is"] if authority == facts.target else f"{authority} is"
    return with_names(named)


def _verdict(facts: Facts, closed: str) -> Verdict:
    """Return whether the migration is safe and what to do next. `closed`: why the last full verification
    keeps the gate before cutover closed."""
    doubtful = _doubtful(facts)
    if doubtful is not None:
        return doubtful
    verdict, refused, control = _undoubted(facts, closed), facts.store.refused, facts.store.control
    if control is not None and control.phase is ControlPhase.RETIRED:
        return verdict
    if facts.declared.is_kept:
        path, fault = facts.declared.path, facts.declared.fault
        if fault:
            return _verdict_of(facts, "script-broken", safe=verdict.safe, before=verdict, fault=fault)
        names = {"file": path.name, "path": shlex.quote(str(path))}
        return _verdict_of(facts, "script-gone", safe=verdict.safe, before=verdict, **names)
    if isinstance(refused, SealedUnreadable) and control and authority(control.unfrozen) == SOURCE:
        return _verdict_of(facts, "root-key-gone", safe=False, what=refused.what)
    if refused:
        names = {"what": refused.what, "hint": refused.hint}
        safe = control is None
        return _verdict_of(facts, "secrets-refused", safe=safe, before=verdict, **names)
    return verdict


def _undoubted(facts: Facts, closed: str) -> Verdict:
    """Return the verdict on known facts, of a script that is as it was begun."""
    control = facts.store.control
    if control is None:
        return _not_begun(facts)
    match control.phase:
        case ControlPhase.FREEZE:
            verdict = _in_freeze(facts, control)
        case ControlPhase.COMPLETE if control.maintained:
            return _with_clients(facts, control.phase, _maintained(facts, closed))
        case ControlPhase.COMPLETE:
            return _erasing(facts) or _in_complete(facts)
        case ControlPhase.RETIRED:
            is_over = facts.due and not facts.store.needed_by
            return _erasing(facts) or _verdict_of(facts, "mapping-over" if is_over else "retired")
        case _:
            verdict = _between_freezes(facts, control.phase, closed)
    if facts.paused:
        verdict = _then(verdict, facts, "paused")
    return verdict if facts.is_delta else _with_clients(facts, control.phase, verdict)


def _doubtful(facts: Facts) -> Verdict | None:
    """Return the verdict when facts are not known or contradict each other, else None."""
    store, file = facts.store, facts.declared.path.name
    if store.unreachable:
        return _verdict_of(facts, "unreachable", safe=False, why=store.unreachable)
    if store.taken:
        return _verdict_of(facts, "name-taken", safe=not facts.state.applied, taken=store.taken)
    if store.control is None:
        if facts.state.begun_as:
            return _verdict_of(facts, "begun-as", began=facts.state.begun_as, file=file)
        return _verdict_of(facts, "unknown-to-store", safe=False) if facts.state.applied else None
    phase = store.control.phase
    if store.control.digest != facts.declared.digest and phase is not ControlPhase.RETIRED:
        return _verdict_of(facts, "script-edited", safe=phase is not ControlPhase.FREEZE, file=file)
    return _without_tables(facts, phase) if store.missing else None


def _without_tables(facts: Facts, phase: ControlPhase) -> Verdict:
    missing = facts.store.missing
    gone = f"{', '.join(missing)} {'does' if len(missing) == 1 else 'do'} not exist"
    target_is_authority = phase in (ControlPhase.CUTOVER, ControlPhase.COMPLETE, ControlPhase.RETIRED)
    sides = (facts.target, facts.source) if target_is_authority else (facts.source, facts.target)
    names = dict(zip(("authority", "other"), sides, strict=True))
    # The main target may be several tables: without one of them rows of it are gone.
    lost = {facts.source: facts.source in missing}
    lost[facts.target] = not set(names_in(facts.declared.migration.tables[0])).isdisjoint(missing)
    if lost[names["authority"]]:
        no_copy = lost[names["other"]] or phase is ControlPhase.SOURCE
        code = "rows-missing" if no_copy else "authority-missing"
    else:
        code = "replica-missing" if phase is ControlPhase.DUAL_WRITE else "table-missing"
    return _verdict_of(facts, code, safe=False, gone=gone, **names)


# What to do about a client that refuses, by why it does.
_REMEDIES = {"digest-moved": "client-script", "secret-moved": "client-secrets"}


def _with_clients(facts: Facts, phase: ControlPhase, verdict: Verdict) -> Verdict:
    """Return a verdict changed by the clients (capture "dual-write"): one refuses writes, or none is live."""
    refusing = [row for row in facts.live_clients if row.refuses]
    if refusing:
        reason, begins = refusing[0].refuses, phase is ControlPhase.SOURCE
        # Its writes fail right now, even if everything else is well.
        return _verdict_of(
            facts,
            "client-will-refuse" if begins else "client-refuses",
            safe=verdict.safe and begins,
            step=_REMEDIES.get(reason, "client-restart"),
            before=verdict,
            client=_first_of(refusing),
            refusal=reason,
        )
    if phase is not ControlPhase.SOURCE and not facts.live_clients:
        verdict = _but(verdict, "unfollowed")
    return _with_abandoned(facts, verdict) if facts.clients_settle else verdict


def _with_abandoned(facts: Facts, before: Verdict) -> Verdict:
    """Return a verdict changed by writes that dead clients left unfinished, where neither the runner nor live
    clients finish them."""
    abandoned = None if facts.store.intents is None else facts.store.intents.abandoned
    if abandoned is None or facts.at_work:
        return before
    settlers, due_at = facts.settlers, abandoned.due_at
    values: dict[str, Any] = {
        "before": before,
        "writes": counted(abandoned.intents, "write"),
        "since": moment(format_ticks(abandoned.since)),
        "due": moment(format_ticks(due_at)),
    }
    if not settlers:
        verdict = _verdict_of(facts, "abandoned", safe=False, **values)
        if before.command.startswith("verify"):  # which settles them as well
            return replace(verdict, step=before.step or before.code, values={**before.values, **values})
        return verdict if facts.now >= due_at else _then(verdict, facts, "abandoned-early")
    if facts.now < due_at + round(OVERDUE_S * TICKS_PER_SECOND):
        return before
    return _verdict_of(facts, "abandoned-overdue", safe=False, client=_first_of(settlers), **values)


def _first_of(rows: Sequence[ClientRow]) -> str:
    """Return name and process of the first client, and how many more there are."""
    first = rows[0]
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{first.name} (process {first.pid} on {first.host}){more}"


def _not_begun(facts: Facts) -> Verdict:
    if facts.state.waits_for:
        first = facts.state.waits_for[0]
        needed = apply_to(first.cli_selector or first.script_id, first.phase)
        return _verdict_of(facts, "not-begun", step="waits-for", needed=needed)
    return _verdict_of(facts, "not-begun", step="begins" if facts.at_work else "")


def _between_freezes(facts: Facts, phase: ControlPhase, closed: str) -> Verdict:
    if phase is ControlPhase.SOURCE:
        verdict = _verdict_of(facts, "source")
    elif phase is ControlPhase.DUAL_WRITE:
        followed = following(facts) if facts.at_work else None
        if followed is not None:
            return _followed(facts, closed, followed)
        verdict = _verdict_of(facts, "dual-write") if facts.at_work else _in_dual_write(facts, closed)
    elif not facts.declared.migration.reverse:
        verdict = _old_view_left(_verdict_of(facts, "no-way-back"), facts, "old-view-left")
    else:
        verdict = _verdict_of(facts, "way-back-by-copying") if facts.is_delta else _way_back(facts, closed)
    return _then(verdict, facts, "at-work") if facts.at_work else verdict


def _way_back(facts: Facts, closed: str) -> Verdict:
    """Return the verdict after cutover in capture "dual-write": rollback and `complete` are refused while the
    last full verification found rows that differ."""
    last = facts.state.verification
    if last is None or not last.divergences:
        return _old_view_left(_verdict_of(facts, "way-back"), facts, "way-back-old-view")
    step = code_after_findings(last.report)
    return _verdict_of(facts, "way-back-closed", safe=False, step=step, closed=closed)


def _old_view_left(verdict: Verdict, facts: Facts, step: str) -> Verdict:
    """Return a verdict after cutover. Where clients of the old view are left, `complete` waits for them, and
    `step` names them. Of a part they may stay, since they write the rows beside it."""
    old = [row for row in facts.live_clients if row.view == View.OLD]
    if facts.is_delta or facts.declared.migration.where is not None or not old:
        return verdict
    return _then(verdict, facts, step, client=_first_of(old))


def _followed(facts: Facts, closed: str, how: Following) -> Verdict:
    """Return the verdict while `apply --follow` is at work before the gate of cutover."""
    runs, last = facts.state.runs, facts.state.verification
    written = bool(runs) and runs[-1].outcome == WriterAtWork.__name__
    if last is not None and last.divergences and not written:
        step = code_after_findings(last.report, following=True)
        return _verdict_of(facts, "divergent", step=step, closed=closed)
    verdict = _verdict_of(facts, "following", step="proceed-stopped" if facts.is_delta else "proceed")
    if how.refused:
        verdict = _but(verdict, "cutover-refused", refused="; ".join(how.refused))
    if closed:
        return _then(_but(verdict, "closed", closed=closed), facts, "followed")
    if behind := facts.clients_behind:
        return _then(verdict, facts, "client-behind", client=_first_of(behind))
    return verdict


# Outcomes that running the same command again would repeat.
_OF_ROWS = (Collision.__name__, RowRefused.__name__)


def _in_dual_write(facts: Facts, closed: str) -> Verdict:
    last = facts.state.verification
    run = facts.state.runs[-1] if facts.state.runs else None
    if last is not None and last.divergences:
        if run is not None and run.outcome == WriterAtWork.__name__:
            return _verdict_of(facts, "still-writing", closed=closed)
        return _verdict_of(facts, "divergent", step=code_after_findings(last.report), closed=closed)
    values: dict[str, Any] = {}
    if run is not None and run.outcome in _OF_ROWS and run.phase not in facts.phases:
        step = "collision"
    elif following(facts) is not None:
        step = "follow"
    elif Phase.RECONCILE not in facts.phases:
        step = "copy-cut-off" if facts.state.segments else "not-copied"
    elif closed:
        step, values = "verify-first", {"closed": closed}
    elif behind := facts.clients_behind:
        step, values = "client-behind", {"client": _first_of(behind)}
    elif facts.is_delta:
        step = "cut-over-stopped"
    else:
        step = "cut-over" if facts.live_clients else "clients-missing"
    return _verdict_of(facts, "dual-write", step=step, **values)


def _in_freeze(facts: Facts, control: ControlRow) -> Verdict:
    back = control.came_from is ControlPhase.CUTOVER
    authority, what = facts.target if back else facts.source, "rollback" if back else "cutover"
    if not facts.at_work:
        return _verdict_of(facts, "freeze-cut-off", safe=False, what=what, authority=authority)
    return _waiting(_verdict_of(facts, "in-freeze", what=what, authority=authority), facts, control)


def _waiting(verdict: Verdict, facts: Facts, control: ControlRow) -> Verdict:
    """Return the verdict on a freeze with the clients it waits for, and until when at most."""
    behind = facts.clients_behind
    if not behind:
        return verdict
    silent = [row for row in behind if standing(row, facts.now) is not Standing.LIVE]
    if not silent:
        return _then(verdict, facts, "freeze-waits", client=_first_of(behind))
    over, step = max(over_at(row) for row in silent), "freeze-waits-for-silent"
    values: dict[str, object] = {"client": _first_of(silent), "until": moment(format_ticks(over))}
    if frozen_at := control.freeze_began_at:
        ends = ticks_of(frozen_at) + round(facts.gates.freeze_timeout_s * TICKS_PER_SECOND)
        if ends < over:
            step, values = "freeze-times-out", {**values, "ends": moment(format_ticks(ends))}
    return _then(verdict, facts, step, **values)


def _maintained(facts: Facts, closed: str) -> Verdict:
    last, kept = facts.state.verification, ", ".join(facts.declared.migration.index_labels)
    verdict = _verdict_of(facts, "complete-maintained", step="hand-over", kept=kept)
    if facts.at_work:
        return _then(verdict, facts, "at-work")
    if last is not None and last.divergences:
        verdict = replace(_but(verdict, "closed", closed=closed), safe=False)
        return _then(verdict, facts, code_after_findings(last.report))
    problem = handover_problem(
        last, facts.state.facts, now=facts.now, gates=facts.gates, control=facts.store.control
    )
    return _then(verdict, facts, "verify-for-handover", closed=problem) if problem else verdict


def _in_complete(facts: Facts) -> Verdict:
    ends, kept = facts.retention_ends_at, ", ".join(facts.declared.migration.index_labels)
    compared = facts.indexes_verified
    if kept and compared is not None and compared[1] and not facts.store.moved_by:
        return _verdict_of(facts, "indexes-differ", safe=False, kept=kept, rows=counted(compared[1], "row"))
    verdict = _verdict_of(facts, "complete-handed-over" if kept else "complete", kept=kept)
    if not facts.proved:
        return _then(verdict, facts, "evidence-missing")
    if ends is not None and facts.now < ends:
        return _then(verdict, facts, "retained", end=moment(format_ticks(ends)))
    return verdict


def _erasing(facts: Facts) -> Verdict | None:
    """Return the verdict about an erasure that was cut off; None when there is none or a runner works."""
    if not facts.erasing or facts.at_work:
        return None
    first = facts.erasing[0]
    verdict = _verdict_of(facts, "erasure-cut-off", safe=False, day=first.at[:10])
    if first.details["kind"] != SUBJECTS:
        return verdict
    details = first.details
    named = [*details["rows"], *details.get("unknown", ()), *details.get("erased_before", ())]
    return _then(verdict, facts, "erase-again", row_id=named[0] if named else "?")
