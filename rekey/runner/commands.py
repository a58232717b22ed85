"""What the commands apply, verify, rollback and retire do to migrations: synchronous calls on a session."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import rfc8785

from rekey import errors
from rekey.core.joint import spoken
from rekey.core.progress import Interruptible
from rekey.core.spill import free_bytes
from rekey.next_steps import apply_to, next_step
from rekey.phases import GATED, ORDER, ControlPhase, Phase, following
from rekey.plan.plan import make_plan
from rekey.plan.result import EVERY_ROW, SAMPLED, SKIPPED, Plan
from rekey.plan.subject import PlanOptions, subject_of
from rekey.present.text import counted
from rekey.project.config import RowCheck
from rekey.protocol.control import ControlRow
from rekey.protocol.rules import SOURCE, authority
from rekey.runner.backup import closed_by_backup
from rekey.runner.clients import until_quiet, wait_for_present, while_sweeping
from rekey.runner.erase.expiry import expire_removed
from rekey.runner.following import Follower
from rekey.runner.hooks import HookEvent
from rekey.runner.phases import PHASES
from rekey.runner.phases.retire import closed_by
from rekey.runner.references import require_droppable_mapping
from rekey.runner.refusals import refusal
from rekey.runner.remaining import closed_by_count, require_droppable
from rekey.runner.retired import tables_with_its_rows
from rekey.runner.run import Run, asks_again, of_member
from rekey.runner.session import Session
from rekey.runner.stop import expected_stop_s
from rekey.runner.verification import compares_indexes, context, rows_to_read, verify_full, verify_indexes
from rekey.state.audit import expressible
from rekey.state.models import BACKFILL, OVERHEAD, PLAN_FACT
from rekey.status.facts import ESTIMATED_ROWS, FOLLOWING
from rekey.status.notes import note
from rekey.status.reasons import reason
from rekey.tables.sent import Overhead
from rekey.verify.context import Keys
from rekey.verify.count import count
from rekey.verify.report import Report
from rekey.verify.sample import sample


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply` did for one migration."""

    script_id: str
    # Phases carried out now, in order.
    phases: tuple[Phase, ...]
    # When no phase was left to carry out: rows brought up to date in the targets, or intents settled.
    caught_up: int
    # The phase after the last one applied; None when all are.
    next_phase: Phase | None
    # What the gate before `next_phase` asks for; empty when it is open, or `apply` enters the phase unasked.
    asks: tuple[str, ...]
    # Measured estimate of the write downtime at cutover, in seconds (capture "delta"); None: not measured, or
    # it does not apply.
    stop_s: float | None = None


class Mode(StrEnum):
    """How much `verify` compares."""

    COUNT = "count"
    SAMPLE = "sample"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Draw:
    """What a sample draws."""

    # How many rows in each direction, and the seed of the random choice.
    rows: int = 3000
    seed: int = 0
    # Sample even where that takes more requests than a full verification.
    always: bool = False


def apply(session: Session, script_id: str, *, to: Phase | None = None, check_rows: bool = True) -> Applied:
    """Carry out a migration's phases up to the next gate, or through gates up to `to`.

    Args:
        session: the open session.
        script_id: the migration.
        to: the last phase to carry out; None stops at the next gate.
        check_rows: map every source row before the first write: a row that is refused or collides stops the
            migration before anything is written.

    Raises:
        GateClosed: the gate of a phase on the way is closed.
        Findings: the plan found rows that cannot be migrated, or a verification found differences.
        RekeyError: what the phases raise; everything done so far is kept.
    """
    if to in GATED or session.options.follow:
        selector = session.scripts[script_id].cli_selector
        _require_alone(session, script_id, apply_to(selector, to or Phase.CUTOVER))
    return _apply(session, [script_id], to, check_rows=check_rows)[0]


def apply_group(
    session: Session, group: str, *, to: Phase | None = None, check_rows: bool = True
) -> list[Applied]:
    """Carry out the phases of all scripts of a group as `apply` does; return what was done for each, in the
    order in which scripts are applied. No gate is passed unless those of all members are open.

    Raises:
        GateClosed: the gate of a member is closed.
        Refused: a member's file is gone, or the members are not where a group can be.
    """
    script_ids = members_of(session, group)
    _require_group(session, group, script_ids)
    return _apply(session, script_ids, to, check_rows=check_rows)


def _apply(
    session: Session, script_ids: Sequence[str], to: Phase | None, *, check_rows: bool
) -> list[Applied]:
    if to is Phase.RETIRE:
        raise refusal("apply-does-not-retire", script=script_ids[0])
    session.count_anew()
    if session.options.accept_data_keys:
        # Before the plans: making one opens data keys.
        _begun([script_id for script_id in script_ids if session.has_begun(script_id)], session.begin)
    # All that can be refused, of all members, is refused before the first write.
    planned = {
        script_id: _plan_before_first_write(session, script_id, check_rows=check_rows)
        for script_id in script_ids
        if not session.ledger.applied(script_id)
    }
    runs = _begun(script_ids, session.begin)
    for run in runs:
        if (plan := planned.get(run.script_id)) is not None:
            _keep_plan(run, plan)
    before = {script_id: session.ledger.applied(script_id) for script_id in script_ids}
    if session.options.follow and Phase.CUTOVER in before[script_ids[0]]:
        raise refusal("cut-over-already", script=script_ids[0])
    if not session.options.follow:
        for run in runs:
            run.state.set_fact(run.script_id, FOLLOWING, None)
    nearest = min(before.values(), key=len)
    last = to or (Phase.RECONCILE if len(nearest) < ORDER.index(Phase.CUTOVER) else nearest[-1])
    for phase in ORDER[: ORDER.index(last) + 1]:
        left = [run for run in runs if phase not in session.ledger.applied(run.script_id)]
        # All members are at the gate before it is asked, and all gates are asked before one is passed. A gate
        # that is only shown (`_applied`) is not recorded.
        closed = {run.script_id: session.do(PHASES[phase].gate(run)) for run in left}
        if any(closed.values()) or (phase in GATED and left):
            session.do(_pass_gates(left, phase, closed, asks_again(left[0], phase)))
        for run in left:
            with _naming_rows(session, run):
                session.carry_out(run.script_id, phase)
    if session.options.follow:
        _follow_to_cutover(session, runs[0])
    return [_applied(session, run, before[run.script_id]) for run in runs]


def _begun(script_ids: Sequence[str], begin: Callable[[str], Run]) -> list[Run]:
    """Open migrations by `session.begin` or `session.resume`, as one group if they are several."""
    # In the order of ids: two runners that want the same group cannot wait for each other's leases.
    opened = {script_id: begin(script_id) for script_id in sorted(script_ids)}
    runs = [opened[script_id] for script_id in script_ids]
    lease_checks = [run.still_alone for run in runs]

    # Losing the lease of one member stops the work on all.
    def all_held() -> None:
        for check in lease_checks:
            check()

    if len(runs) > 1:
        for run in runs:
            run.group, run.still_alone, run.control.group_ids = runs, all_held, frozenset(script_ids)
    return runs


def members_of(session: Session, group: str) -> list[str]:
    """Return the ids of a group's scripts, in the order in which they are applied."""
    return [script_id for script_id, declared in session.scripts.items() if declared.migration.group == group]


def _require_alone(session: Session, script_id: str, instead: str) -> None:
    declared = session.scripts[script_id]
    if declared.migration.group:
        others = [member for member in members_of(session, declared.migration.group) if member != script_id]
        listed = ", ".join(others) or "whatever joins it"
        raise refusal("of-a-group", declared=declared, others=listed, instead=instead)


def _require_group(session: Session, group: str, script_ids: Sequence[str]) -> None:
    """Raise Refused unless the group is whole: no file is gone, and all its scripts are in this project."""
    # A script that joins later is refused when its control row would be made (`ControlStore.create`).
    stores = [session.opened(script_id).control for script_id in script_ids]
    strange = sorted({row.script_id for row in session.do(stores[0].members())} - set(script_ids))
    if strange:
        raise refusal("group-not-whole", group=group, scripts=", ".join(strange))


def _applied(session: Session, run: Run, before: list[Phase]) -> Applied:
    script_id, after = run.script_id, session.ledger.applied(run.script_id)
    with _naming_rows(session, run):
        caught_up = session.do(PHASES[after[-1]].again(run)) if before == after else 0
    upcoming = following(after[-1])
    asks = session.do(PHASES[upcoming].gate(run)) if upcoming in GATED and upcoming else []
    if before == after:
        session.add_overhead(script_id, Overhead.REPEATS)
    session.do(run.tell(HookEvent.DONE))
    stop_s = expected_stop_s(run) if run.is_delta and upcoming is Phase.CUTOVER else None
    return Applied(script_id, tuple(after[len(before) :]), caught_up, upcoming, tuple(asks), stop_s)


def _follow_to_cutover(session: Session, run: Run) -> None:
    """Follow a migration and cut over when that is requested or its window opens. A refusal is reported, and
    the migration is followed on.

    Raises:
        Interrupted: on request, between two requests.
        RekeyError: what passes, comparisons and the cutover raise, except refusals and findings.
    """
    follower, own, script_id = Follower(run), run.options, run.script_id
    session.at_work.following = follower.since
    session.beat()
    while True:
        try:
            with _naming_rows(session, run):
                call = session.do(follower.until_called())
        except errors.Interrupted as stopped:
            follower.ended()
            stopped.hint = str(next_step("follow", script=script_id))
            raise
        finally:
            session.add_overhead(script_id, Overhead.REPEATS)
        run.options = follower.options(call)
        try:
            reasons = session.do(PHASES[Phase.CUTOVER].gate(run)) + follower.outlasts(call)
            session.do(_pass_gate(run, Phase.CUTOVER, reasons, asks_again(run, Phase.CUTOVER)))
            follower.enters(call)
            with _naming_rows(session, run):
                session.carry_out(script_id, Phase.CUTOVER)
            break
        except (errors.Refused, errors.Findings) as problem:
            if isinstance(problem, errors.Locked | errors.Moved):
                raise
            follower.refused(problem)
        finally:
            run.options = own
    follower.ended()
    session.at_work.following = ""


@contextmanager
def _naming_rows(session: Session, run: Run) -> Iterator[None]:
    """Add to an error about source rows how to see and fix them: such rows are in no mapping, so `lookup`
    does not know them, and an edited script would be refused."""
    try:
        yield
    except (errors.Collision, errors.RowRefused) as problem:
        if Phase.CUTOVER not in session.ledger.applied(run.script_id):
            segments = run.state.segments(run.script_id, BACKFILL, keys=False)
            copied = counted(sum(segment.rows for segment in segments), "source row")
            kept = problem.kept or "all rows; nothing was written for this row"
            problem.kept = f"{kept}; {copied} copied so far"
            problem.hint = str(next_step("collision", script=run.script_id, source=run.source.name))
        raise


# By `Disk.row_check` of the plan, for the audit log.
_ROW_CHECKS = {
    EVERY_ROW: "every source row was tried",
    SAMPLED: "a sample of the source rows was tried ([plan] row_check)",
    SKIPPED: "skipped (--skip-row-check)",
}


def _keep_plan(run: Run, planned: Plan) -> None:
    """Store the plan that a migration begins with (it holds no keys), and the number of source rows."""
    from rekey.plan.planfile import plan_document  # imported here: the import is slow

    [migration] = planned.migrations
    document = rfc8785.dumps(expressible(plan_document(planned)))
    run.state.set_fact(run.script_id, PLAN_FACT, document.decode())
    run.state.set_fact(run.script_id, OVERHEAD, None)  # left from a migration that was rolled back
    details = {
        "plan_sha256": hashlib.sha256(document).hexdigest(),
        "row_check": _ROW_CHECKS[estimate.disk.row_check if (estimate := migration.estimate) else SKIPPED],
        "digest": migration.basis.declaration,
    }
    run.state.audit("planned", run.script_id, details)
    if migration.inventory is not None:
        run.state.set_fact(run.script_id, ESTIMATED_ROWS, str(migration.inventory.rows.rows))


async def _pass_gates(
    runs: Sequence[Run], phase: Phase, closed: Mapping[str, Sequence[str]], hint: str
) -> None:
    refusals: list[errors.GateClosed] = []
    for run in runs:
        try:
            await _pass_gate(run, phase, closed[run.script_id], hint)
        except errors.GateClosed as error:
            refusals.append(error)
    if len(runs) == 1 and refusals:
        raise refusals[0]
    if refusals:
        asked: dict[str, list[str]] = {}
        for run in runs:
            for reason in closed[run.script_id]:
                asked.setdefault(reason, []).append(run.script_id)
        reasons = [f"{', '.join(members)}: {reason}" for reason, members in asked.items()]
        raise errors.GateClosed(phase, reasons, hint=hint)


async def _pass_gate(run: Run, phase: Phase, reasons: Sequence[str], hint: str) -> None:
    """Record a gate in the audit log, with reasons and the facts it saw. Raises GateClosed if closed."""
    control = await run.control.read()
    last = run.state.latest_verification(run.script_id)
    saw: dict[str, Any] = {
        "control": None if control is None else {"phase": str(control.phase), "epoch": control.epoch},
        "digest": run.declared.digest,
        "writers_stopped": run.options.writers_stopped,
        "table_name_typed": run.options.typed_table == run.source.name,
        "verification": None
        if last is None
        else {
            "finished_at": last.finished_at,
            "divergences": last.divergences,
            "content_digest": last.digest,
        },
    }
    details = {"phase": str(phase), "open": not reasons, "reasons": list(reasons), "saw": saw}
    run.state.audit("gate", run.script_id, details)
    if reasons:
        await run.tell(HookEvent.GATE_REFUSED, phase=str(phase), reasons=list(reasons))
        raise errors.GateClosed(phase, list(reasons), hint=hint)


def _plan_before_first_write(session: Session, script_id: str, *, check_rows: bool) -> Plan | None:
    migration = session.opened(script_id)
    control = session.do(session.require_same(migration))
    migration.prepared.require()
    if control is not None and control.phase is ControlPhase.RETIRED:
        return None  # the state file was lost, and there is no source left to plan with
    # Not compared here with what the migration started with: `Session.begin` refuses what has changed since.
    subject = replace(session.do(subject_of(migration)), started=None)
    planning = session.config.plan
    exact, free = check_rows and planning.row_check is not RowCheck.SAMPLE, free_bytes()
    bounds = [free, planning.row_check_disk if planning.row_check is RowCheck.AUTO else None]
    most = min((bound for bound in bounds if bound is not None), default=None)
    options = PlanOptions.of(
        session.config, exact=exact, tries_rows=check_rows, most_disk=most, free_disk=free
    )
    progress = Interruptible(session.progress, session.stop.check)
    plan = session.do(make_plan([subject], session.accounts.tables, options, progress=progress))
    [planned] = plan.migrations
    if planned.errors:
        first = planned.errors[0]
        what = "; ".join(
            problem.message + (f" (rows {', '.join(problem.row_ids)})" if problem.row_ids else "")
            for problem in planned.errors
        )
        kind = _ERRORS.get(first.code, errors.Findings)
        raise kind(f"{planned.script_id}: {what}", kept="Nothing was written.", hint=first.cure)
    return plan


# The error for a plan that begins with this problem; Findings for any other.
_ERRORS: dict[str, type[errors.RekeyError]] = {
    "secret-missing": errors.SecretMissing,
    "source-missing": errors.ConfigurationError,
    "wrapping-key-missing": errors.ConfigurationError,
    "indexes-cannot-follow": errors.ConfigurationError,
    **dict.fromkeys(
        ("target-holds-rows", "declaration-moved", "secret-moved", "referred-expired"), errors.Refused
    ),
}


def verify(
    session: Session,
    script_id: str,
    *,
    mode: Mode,
    repair: bool = False,
    draw: Draw = Draw(),
    keys: Keys | None = None,
) -> Report:
    """Compare source and targets.

    Args:
        session: the open session.
        script_id: the migration.
        mode: a sample that would take more requests than a full verification is replaced by one.
        repair: fix what a full verification finds; other modes ignore it.
        draw: what a sample draws.
        keys: takes the keys of rows that the report names.

    Raises:
        Refused: in this phase source and targets are not meant to be equal, or the migration has not begun.
        ConfigurationError: `--executor` names workers where only index rows are compared.
    """
    run = session.resume(script_id)
    control = session.do(run.control.read())
    phase = control.phase if control is not None else ControlPhase.SOURCE
    indexes = control is not None and compares_indexes(run, control)
    if indexes and mode is not Mode.FULL:
        target = run.targets[0].name
        raise refusal("indexes-only-in-full", script=script_id, phase=phase, target=target)
    if indexes and session.options.executor:
        raise refusal("no-workers-for-indexes", script=script_id, phase=phase)
    if not indexes:
        _require_comparable(run, control)
    try:
        if indexes:
            return session.do(verify_indexes(run, repair=repair, keys=keys))
        if mode is not Mode.FULL:
            total = rows_to_read(run) if mode is Mode.COUNT else None
            with session.progress.task(f"verify {mode}", total=total) as advance:
                ctx = context(run, phase, advance, keys=keys)
                compare: Coroutine[Any, Any, Report | None]
                if mode is Mode.COUNT:
                    compare = count(ctx)
                else:
                    compare = sample(ctx, draw.rows, draw.seed, session.progress.note, always=draw.always)
                report = session.do(while_sweeping(run, authority(phase) or SOURCE, compare))
            if report is not None:
                session.state.audit("verification", script_id, report.as_json())
                return report
            note(session.progress, "full-instead-of-sample", {"rows": counted(draw.rows, "row")})
        return session.do(verify_full(run, repair=repair and mode is Mode.FULL, keys=keys))
    finally:
        session.add_overhead(script_id, Overhead.REPEATS)


def _require_comparable(run: Run, control: ControlRow | None) -> None:
    phase = ControlPhase.SOURCE if control is None else control.phase
    if phase is ControlPhase.SOURCE:
        raise refusal("nothing-to-compare", script=run.script_id)
    what, hint, target = "", f"`rekey status {run.script_id}` says what is next", spoken(run.targets[0].name)
    if run.is_delta and phase is not ControlPhase.DUAL_WRITE:
        writes = f'the application writes to {target}, and with capture "delta" nothing follows it'
        what = f"{writes}, so differences say nothing"
        if phase is ControlPhase.CUTOVER:
            code = "way-back-by-copying" if run.declared.migration.reverse else "no-way-back"
            hint = str(next_step(code, script=run.script_id, target=target))
    elif not run.is_delta:
        ended = control is not None and control.ended_at is not None
        if ended or (phase is ControlPhase.CUTOVER and not run.declared.migration.reverse):
            what = f"nothing follows {target} any more, so differences say nothing"
    if what:
        kept = "the verification that opened the gate; `rekey status` shows it"
        raise errors.Refused(f"{run.script_id} is in `{phase}`: {what}", kept=kept, hint=hint)


def rollback(session: Session, script_id: str, *, to: ControlPhase | None, drop: bool | None) -> list[Phase]:
    """Roll a migration back and return the phases rolled back, last first.

    Args:
        session: the open session.
        script_id: the migration.
        to: `dual_write` or `source`; None: from cutover to `dual_write`, from anything before to `source`.
            The same call again finishes a rollback that was cut off; it goes no further back.
        drop: whether target tables are dropped on the way to `source`; None: not stated.

    Raises:
        Refused: no rollback from here, or another migration builds on this one.
        ConfigurationError: `drop` is None and the rollback leads to `source`, or the other way round.
    """
    return _rollback(session, [script_id], to=to, drop=drop, whole=False)[script_id]


def rollback_group(
    session: Session, group: str, *, to: ControlPhase | None, drop: bool | None
) -> dict[str, list[Phase]]:
    """Take a group back as `rollback` does, from cutover all members at once; return the phases by script.
    Members that have not begun stay as they are."""
    script_ids = members_of(session, group)
    _require_group(session, group, script_ids)
    known = {row.script_id for row in session.do(session.opened(script_ids[0]).control.members())}
    begun = [script_id for script_id in script_ids if script_id in known or session.ledger.applied(script_id)]
    return _rollback(session, begun or script_ids, to=to, drop=drop, whole=True)


def _rollback(
    session: Session, script_ids: Sequence[str], *, to: ControlPhase | None, drop: bool | None, whole: bool
) -> dict[str, list[Phase]]:
    # Read before `resume`: a rollback that was cut off after the move of the control row leaves `cutover` in
    # the ledger, and `resume` removes it.
    cut_over = any(Phase.CUTOVER in session.ledger.applied(script_id) for script_id in script_ids)
    runs = _begun(script_ids, session.resume)
    applied = [phase for script_id in script_ids for phase in session.ledger.applied(script_id)]
    if not whole and Phase.CUTOVER in applied:
        stopped = " --writers-stopped" if runs[0].is_delta else ""
        _require_alone(session, script_ids[0], f"rollback {runs[0].declared.cli_selector}{stopped}")
    from_cutover = cut_over or Phase.CUTOVER in applied
    goal = to or (ControlPhase.DUAL_WRITE if from_cutover else ControlPhase.SOURCE)
    downto = Phase.RECONCILE if goal is ControlPhase.DUAL_WRITE else None
    if goal is ControlPhase.SOURCE and Phase.COMPLETE not in applied and drop is None:
        targets = ", ".join(name for run in runs for name in run.declared.migration.table_names)
        selector = runs[0].declared.cli_selector if whole else script_ids[0]
        raise refusal("targets-undecided", script=selector, targets=targets)
    if goal is ControlPhase.DUAL_WRITE and Phase.COMPLETE not in applied and drop is not None:
        phase = runs[0].declared.migration.shown(Phase.DUAL_WRITE)
        raise refusal("targets-stay", phase=phase, option="--drop-targets" if drop else "--keep-targets")
    for script_id in script_ids:
        session.ledger.require_rollback(script_id, downto)
    undone: dict[str, list[Phase]] = {script_id: [] for script_id in script_ids}
    if goal is ControlPhase.SOURCE and drop:
        for run in runs:
            with of_member(run):
                # Before anything is rolled back; `require_droppable` asks again.
                session.do(require_droppable_mapping(run))
        for run in runs:
            if Phase.CUTOVER in session.ledger.applied(run.script_id):
                # First to `reconcile`: the proof below needs a source that the rollback has brought up to
                # date.
                undone[run.script_id] = session.ledger.rollback(run.script_id, Phase.RECONCILE)
        for run in runs:
            with of_member(run):
                session.do(require_droppable(run))
    return {
        run.script_id: _roll_back(session, run, goal, downto, undone[run.script_id], drop=drop)
        for run in runs
    }


def _roll_back(
    session: Session,
    run: Run,
    goal: ControlPhase,
    downto: Phase | None,
    before: list[Phase],
    *,
    drop: bool | None,
) -> list[Phase]:
    script_id = run.script_id
    run.state.set_fact(script_id, FOLLOWING, None)
    undone = before + session.ledger.rollback(script_id, downto)
    if goal is ControlPhase.SOURCE and drop:
        # A client must have acknowledged `source` before tables and control row are deleted.
        session.do(wait_for_present(run))
        session.do(until_quiet(run))
        if Phase.PREPARE not in undone:
            # An earlier rollback kept the targets; this one drops them.
            session.do(PHASES[Phase.PREPARE].undo(run))
            session.do(until_quiet(run))  # a delayed drop could hit a table created again
        control = session.do(run.control.read())
        if control is not None:
            session.do(run.control.delete(control))
        if run.mapping.keyring is not None:
            session.do(run.mapping.keyring.forget())
        session.state.forget(script_id)
    session.state.audit("rolled-back", script_id, {"to": goal, "phases": [str(phase) for phase in undone]})
    return undone


def retire(session: Session, script_id: str) -> None:
    """Delete the source of a completed migration.

    Raises:
        GateClosed: the gate before `retire` is closed.
        Findings: rows that changed after the freeze were not deleted.
    """
    session.count_anew()
    run = session.resume(script_id)
    tables = session.do(tables_with_its_rows(run))  # once for the gate and the count
    reasons = session.do(closed_by(run, tables))
    if Phase.COMPLETE not in session.ledger.applied(script_id):
        reasons = [reason("not-complete", script=script_id)]
    reasons = reasons or session.do(closed_by_count(run, tables))
    reasons = reasons or session.do(closed_by_backup(run))
    session.do(_pass_gate(run, Phase.RETIRE, reasons, reason("see-what-is-missing", script=script_id)))
    session.carry_out(script_id, Phase.RETIRE)
    session.do(expire_removed(run))
