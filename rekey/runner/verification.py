"""Verification within a migration: the context of a comparison, its record in the state file, and what the
last one means for gates. README.md of this folder says which verification counts."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rekey.copy.delta import fresh_second
from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.core.joint import names_in
from rekey.core.limits import ACCOUNT_TARGET
from rekey.core.progress import Advance
from rekey.errors import StateUnusable
from rekey.mapping.removed import RemovedRows
from rekey.mapping.rows import TargetKey, targets_of
from rekey.model import TIMESTAMP, EntityKey, Row
from rekey.next_steps import after_findings, next_step
from rekey.phases import ControlPhase
from rekey.present.text import differing
from rekey.protocol.control import ControlRow
from rekey.protocol.rules import SOURCE, TARGET, authority
from rekey.runner.clients import InFlight, heard_of_until, read_clients, until_quiet, while_sweeping
from rekey.runner.hooks import HookEvent
from rekey.runner.indexes import compare_indexes, index_context
from rekey.runner.refusals import refusal
from rekey.runner.remaining import require_main_rows, require_rows
from rekey.runner.retired import moved_since
from rekey.runner.run import Run
from rekey.runner.workers import Workers
from rekey.state.models import PLAN_FACT, WATERMARK, StoredDigests, Verification
from rekey.status import facts
from rekey.status.notes import note
from rekey.status.reasons import reason
from rekey.tables.allowance import while_allowed
from rekey.verify.bucket_digests import Partial, readings, rows_in
from rekey.verify.context import Keys, MappedRows, ReconcileContext, RowReads, never
from rekey.verify.full import TooMany, full
from rekey.verify.ranges import Ranges, compare_ranges
from rekey.verify.report import FullReport

_POLL_S = 1.0
# Rows of both sides from which on a comparison is made by ranges: some ten minutes at an account's target.
RANGED_ROWS = 10_000_000
# Fact: the service's time before the last repairing comparison read its first row.
COMPARING_SINCE = "comparing_since"
# Fact: the seconds of work in the stored digests. Neither a pause is work, nor the time until it was resumed.
WORKED_S = "comparing_worked_s"


def context(
    run: Run,
    control: ControlPhase,
    advance: Advance,
    *,
    propagate_first: bool = False,
    since: str | None = None,
    keys: Keys | None = None,
) -> ReconcileContext:
    """Return the context of a comparison for a migration.

    Args:
        run: the migration.
        control: the control phase, which says which side is the authority.
        advance: called with the number of rows as they are read.
        propagate_first: propagate rows that differ, and compare them again (capture "delta").
        since: the service's time after which changes are left to a later pass; None: that of the last pass.
        keys: takes the keys of rows that the report names.
    """
    watermark = since or run.state.get_fact(run.script_id, WATERMARK)

    async def pending(source_key: EntityKey, table: int, key: EntityKey) -> bool:
        """Tell whether a source row changed after the last pass began, or is gone: the next pass handles it,
        of one that is gone what its forward row lists."""
        row = await run.source.get(source_key, select=[TIMESTAMP])
        if row is None:
            return TargetKey(table, *key) in targets_of(await run.mapping.forward(source_key))
        return watermark is not None and ticks_of(row[TIMESTAMP]) >= ticks_of(watermark)

    from_target = not run.is_delta and authority(control) == TARGET
    return ReconcileContext(
        source=run.source,
        targets=run.targets,
        mapper=run.mapper,
        ids=run.ids,
        rows=MappedRows(
            owner=run.propagator.owner_of,
            propagate=run.reverse.propagate if from_target else run.propagator.propagate,
            in_flight=never if run.is_delta else InFlight(run),
            pending=pending if run.is_delta and control is ControlPhase.DUAL_WRITE else never,
            keep_removed=RemovedRows(run.mapping).keep,
        ),
        folder=Path(tempfile.gettempdir()),
        reads=RowReads(
            concurrency=run.config.limits.concurrency,
            scans=2 * run.config.limits.scans,  # all that the account allows is for reading
            prefetch=run.share == 1 and not run.copier.throttle.has_rates,
            wait=_within_share(run),
            advance=advance,
            stop=run.check,
        ),
        clock=run.clock,
        keys=keys,
        propagate_first=propagate_first,
        authority_is_target=from_target,
    )


def _within_share(run: Run) -> Callable[[str, int, Hashable | None], Awaitable[None]]:
    """Return a function that lets pages through at the rates in force, or the run's share of them."""
    throttle, due = run.copier.throttle, run.clock.monotonic()

    async def take(table: str, rows: int, partition: Hashable | None) -> None:
        nonlocal due
        if run.share < 1:
            rate = (throttle.poll().account or ACCOUNT_TARGET) * run.share
            due = max(due, run.clock.monotonic()) + rows / rate
        own = due
        while run.share < 1 and (left := own - run.clock.monotonic()) > 0:
            run.check()
            await run.clock.sleep(min(left, _POLL_S))
        await throttle.arrived_from(table, rows, partition)

    return take


async def verify_full(
    run: Run, *, repair: bool = False, propagate_first: bool = False, keys: Keys | None = None
) -> FullReport:
    """Compare everything, from the stored digests of a verification that was cut off where they still apply,
    and record the result.

    Args:
        run: the migration.
        repair: repair stable divergences.
        propagate_first: propagate rows that differ, and compare them again (capture "delta", without
            workers). While writers may run the watermark moves to the time before the first row was read.
        keys: takes the keys of rows that the report names.

    Raises:
        Refused: with `repair` or `propagate_first`: the authority is empty, and the other side is not.
        Collision, RowRefused: with `propagate_first`: of a row that cannot be propagated.
        TooMany: with `propagate_first`: too many rows differ to propagate them one by one; nothing was
            recorded.
    """
    row = await run.control.read()
    control = ControlPhase.SOURCE if row is None else row.phase
    if row is not None and control is ControlPhase.FREEZE and not run.is_delta:
        control = row.unfrozen
    change_id = "" if row is None else row.change_id
    if change_id and change_id != facts.change_covered(
        run.state.latest_verification(run.script_id), run.state.facts(run.script_id)
    ):
        # Whoever changed the rows may have been killed with a request in flight, which takes effect after
        # this read.
        await until_quiet(run)
    if repair or propagate_first:
        sides = run.source, run.targets[0]
        await require_rows(
            run, *(sides[::-1] if not run.is_delta and authority(control) == TARGET else sides)
        )
    followed = run.is_delta or bool((await read_clients(run)).live)
    basis = _basis(row, control, run.declared.digest, followed=followed, propagate_first=propagate_first)
    work = _resumed(run, basis, rereads=repair or keys is not None)
    writers_run = propagate_first and control is ControlPhase.DUAL_WRITE
    since = await _begun(run, anew=work is None) if writers_run else None
    label, done = "compare" if propagate_first else "verify", 0 if work is None else rows_in(work.reads)
    with run.progress.task(label, total=rows_to_read(run), done=done) as advance:
        ctx = context(run, control, advance, propagate_first=propagate_first, since=since, keys=keys)
        ctx = _marked(run, ctx) if repair else ctx
        worked_s = _stopwatch(run, 0.0 if work is None else _worked_s(run, work))
        store = partial(keep, run, basis, worked_s)
        if work is None and not propagate_first and _is_read_by_ranges(run):
            work = Ranges.fresh(len(run.targets))
        comparing: Coroutine[Any, Any, FullReport]
        if isinstance(work, Ranges):
            comparing = compare_ranges(ctx, work, checkpoint=store, repair=repair)
        else:
            reader = None if run.pool is None else await Workers.of(run, run.pool, writes=False)
            comparing = full(ctx, partial=work, checkpoint=store, repair=repair, reader=reader)
        try:
            with while_allowed(run.still_alone):
                report = await while_sweeping(run, authority(control) or SOURCE, comparing)
        except TooMany:
            _forget(run)
            raise
    report = replace(report, took_s=round(worked_s(), 3))
    record(run, report)
    _record_facts(run, change_id, since, followed=followed)
    if wrong(report) and (row is None or row.phase is not ControlPhase.FREEZE):
        await run.tell(HookEvent.DIVERGENCE, rows=wrong(report))  # else when the freeze is left
    return report


def _basis(
    row: ControlRow | None, control: ControlPhase, digest: str, *, followed: bool, propagate_first: bool
) -> str:
    """Return what digests are made under. Stored ones continue only where new ones would mean the same: never
    across a move or from before a freeze."""
    run_id, epoch, change_id = ("", 0, "") if row is None else (row.run_id, row.epoch, row.change_id)
    made_under = {"run_id": run_id, "epoch": epoch, "digest": digest, "control": control}
    made_under |= {"followed": followed, **({"brings": True} if propagate_first else {})}
    made_under |= {"change": change_id} if change_id else {}
    return json.dumps(made_under, sort_keys=True)


def _record_facts(run: Run, change_id: str, since: str | None, *, followed: bool) -> None:
    """Record what the full verification just recorded covers, and forget its digests.

    Args:
        run: the migration.
        change_id: that of the control row when it began.
        since: the service's time before it read its first row, where it moves the watermark.
        followed: whether clients were registered, or need not be.
    """
    covered = f"{last_number(run)} {change_id}" if change_id else None
    run.state.set_fact(run.script_id, facts.VERIFIED_UNDER, covered)
    if since is not None:
        # A pass made meanwhile has covered what changed before it, too.
        passed = run.state.get_fact(run.script_id, WATERMARK)
        run.state.set_fact(run.script_id, WATERMARK, max(since, passed or since, key=ticks_of))
    # Of a version before 0.2, about an earlier rollback; left, it would keep the gate closed for good.
    run.state.set_fact(run.script_id, facts.RETURNED_AT, None)
    _forget(run)
    if not followed:
        run.state.set_fact(run.script_id, facts.UNFOLLOWED, str(last_number(run)))


def _marked(run: Run, ctx: ReconcileContext) -> ReconcileContext:
    """Return a context whose first write marks the control row: after a repair that is cut off no earlier
    verification may count, whatever machine holds it."""
    lock, marked = asyncio.Lock(), False

    async def mark() -> None:
        nonlocal marked
        async with lock:
            if not marked:
                await run.control.mark_changed()
                marked = True

    async def propagate(source_key: EntityKey) -> object:
        await mark()
        return await ctx.rows.propagate(source_key)

    async def keep_removed(table: int, row: Row, source_key: EntityKey | None) -> None:
        await mark()
        await ctx.rows.keep_removed(table, row, source_key)

    return replace(ctx, rows=replace(ctx.rows, propagate=propagate, keep_removed=keep_removed))


def rows_to_read(run: Run) -> int | None:
    """Return how many rows a comparison of everything reads, by the last one or the plan; None: unknown."""
    last = run.state.latest_verification(run.script_id)
    if last is not None:
        return last.rows_source + last.rows_target
    plan, source_rows = (
        run.state.get_fact(run.script_id, name) for name in (PLAN_FACT, facts.ESTIMATED_ROWS)
    )
    try:
        [planned] = json.loads(plan or "")["plan"]["migrations"]
        rows = [target["rows"] + target.get("secondary_rows", 0) for target in planned["targets"]]
        return int(source_rows or "") + int(sum(rows))
    except (ValueError, KeyError, TypeError):
        return None


def _is_read_by_ranges(run: Run) -> bool:
    """Tell whether a comparison can be made range by range, and is large enough for that."""
    is_large = (rows_to_read(run) or 0) >= RANGED_ROWS
    return is_large and run.pool is None and run.mapper.keeps_partitions


async def _begun(run: Run, *, anew: bool) -> str:
    """Return the service's time before a comparison reads its first row; stored, in case it is cut off."""
    since = None if anew else run.state.get_fact(run.script_id, COMPARING_SINCE)
    if since is None:
        since = await fresh_second(run.source_time, run.clock)
        run.state.set_fact(run.script_id, COMPARING_SINCE, since)
    return since


def _resumed(run: Run, basis: str, *, rereads: bool) -> Partial | Ranges | None:
    """Return the stored digests to go on from; None: begin anew. Unusable ones are removed. `rereads`: rows
    that differ are to be repaired, or their keys named."""
    try:
        stored = run.state.stored_digests(run.script_id)
        if stored is None:
            return None
        kind = Ranges if "large" in stored.digests else Partial
        work = kind.from_state(stored.digests, targets=len(run.targets))
        is_ours = isinstance(work, Partial) or (
            run.pool is None  # workers do not compare ranges
            and (not rereads or work.compare_again())
        )
        age = (run.clock.ticks() - ticks_of(stored.begun_at)) / TICKS_PER_SECOND
        if is_ours and stored.basis == basis and age < _resumable_s(run, work):
            values = {"begun_at": stored.begun_at, "rows": f"{rows_in(work.reads):,}"}
            note(run.progress, "verification-resumed", {"script": run.script_id, **values})
            return work
    except StateUnusable:
        pass  # unreadable digests are treated as those of another basis
    _forget(run)
    note(run.progress, "verification-anew", {"script": run.script_id})
    return None


def _forget(run: Run) -> None:
    """Forget the digests of an unfinished comparison, and what was noted about it."""
    run.state.keep_digests(run.script_id, None)
    run.state.set_fact(run.script_id, WORKED_S, None)
    run.state.set_fact(run.script_id, facts.DIFFERING_SO_FAR, None)


def _resumable_s(run: Run, work: Partial | Ranges) -> float:
    """Return how many seconds after its begin a comparison may be resumed: the age at which it would open no
    gate, by what the last one took, else by the plan; and by its own work so far, which may exceed both."""
    last = run.state.latest_verification(run.script_id)
    plan = run.state.get_fact(run.script_id, PLAN_FACT)
    expected_s = facts.planned_s(plan) if last is None else facts.took_s(last)
    return run.config.gates.max_age_s(max(expected_s, _worked_s(run, work)))


def _worked_s(run: Run, work: Partial | Ranges) -> float:
    """Return for how many seconds stored digests were worked on."""
    if (stored := run.state.get_fact(run.script_id, WORKED_S)) is not None:
        return float(stored)
    # Stored by an earlier version.
    return facts.seconds_read(readings(work.reads))


def _stopwatch(run: Run, before_s: float) -> Callable[[], float]:
    """Return a function that tells for how many seconds a comparison has worked, pauses left out.
    `before_s`: up to now."""
    throttle = run.copier.throttle
    began, paused_s = run.clock.monotonic(), throttle.paused_s()

    def worked_s() -> float:
        return before_s + max(0.0, run.clock.monotonic() - began - (throttle.paused_s() - paused_s))

    return worked_s


def keep(run: Run, basis: str, worked_s: Callable[[], float], work: Partial | Ranges) -> None:
    """Store digests durably in the state file. Raises Locked when the runner lease was lost."""
    run.still_alone()
    rows = work.differing_rows if isinstance(work, Ranges) else 0
    run.state.set_fact(run.script_id, WORKED_S, f"{worked_s():.3f}")
    run.state.set_fact(run.script_id, facts.DIFFERING_SO_FAR, str(rows) if rows else None)
    run.state.keep_digests(run.script_id, StoredDigests(basis, work.begun_at, work.as_state()))
    run.checkpointed()


def record(run: Run, report: FullReport) -> None:
    """Record a full verification in the state file and in the audit log, also a failed one."""
    run.state.add_verification(
        run.script_id,
        Verification(
            mode=report.mode,
            started_at=report.started_at,
            finished_at=report.finished_at,
            digest=report.digest,
            rows_source=report.source_rows,
            rows_target=report.target_rows,
            divergences=wrong(report),
            transient=report.differences.transient,
            report=report.as_json(),
        ),
    )
    run.state.audit("verification", run.script_id, report.as_json())


def wrong(report: FullReport) -> int:
    """Return how many rows differ, stable or unsettled, or buckets that no row explains; 0: clean."""
    return report.differences.stable + report.differences.unsettled + report.unexplained


# --- what the last one says to the gates -------------------------------------------------------------------


def unfollowed(run: Run) -> bool:
    """Tell whether the last full verification was made while no client was registered."""
    last = run.state.latest_verification(run.script_id)
    return last is not None and facts.is_unfollowed(last, run.state.facts(run.script_id))


def compares_indexes(run: Run, control: ControlRow) -> bool:
    """Tell whether index rows are compared with main rows alone: nothing follows the main target."""
    delta = run.is_delta and control.phase is ControlPhase.CUTOVER
    over = control.phase in (ControlPhase.COMPLETE, ControlPhase.RETIRED) and not control.maintained
    return bool(run.declared.migration.indexes) and (delta or over)


async def verify_indexes(run: Run, *, repair: bool = False, keys: Keys | None = None) -> FullReport:
    """Compare index rows with the main rows, `repair` those that differ stably, and record the result in the
    audit log.

    Raises:
        Refused: index rows are made of properties that main rows do not hold; a later migration has moved
            rows of a target on or, with `repair`, follows those of an index table; or a repair would delete
            all index rows because the main table is empty.
    """
    kept = ", ".join(run.declared.migration.index_labels)
    # What stands under a name that was retired may be another table.
    for other, now in await moved_since(run):
        raise refusal("rows-moved-on", script=run.script_id, rows=kept, other=other, phase=now.phase)
    if repair:
        await _require_unfollowed_indexes(run)
    if lost := run.mapper.index_inputs_lost:
        raise refusal("indexes-not-comparable", script=run.script_id, rows=kept, lost=", ".join(lost))
    for index in run.targets[1:] if repair else ():
        await require_main_rows(run, index)
    with run.progress.task("compare index rows") as advance:
        reconcile_context = context(run, ControlPhase.CUTOVER, advance, keys=keys)
        report = await compare_indexes(
            index_context(reconcile_context, RemovedRows(run.mapping).keep), repair=repair
        )
    run.state.audit("index-verification", run.script_id, report.as_json())
    figures = {"at": report.finished_at, "divergences": report.differences.stable}
    run.state.set_fact(run.script_id, facts.INDEXES_VERIFIED, json.dumps(figures))
    return report


async def _require_unfollowed_indexes(run: Run) -> None:
    """Refuse to repair an index table, or the secondary rows of the main target, past the clients of a
    migration whose source it is."""
    indexes = {name.lower() for index in run.mapper.tables[1:] for name in names_in(index)}
    for other in run.built_on_by:
        now = await run.control_of(other) if other.migration.source.lower() in indexes else None
        if now is not None and now.is_followed:
            raise refusal("repair-past-clients", script=run.script_id, other=other, phase=now.phase)


def last_number(run: Run) -> int:
    """Return the number of the last full verification; 0: none."""
    last = run.state.latest_verification(run.script_id)
    return 0 if last is None else last.number


async def closed_by_difference(run: Run) -> list[str]:
    """Return why rollback and `complete` are closed: the last full verification found rows that differ."""
    # A client that was given up may have written without the last verification seeing it.
    until = await heard_of_until(run)
    if until is not None:
        note(run.progress, "compares-first", {"script": run.script_id, "until": format_ticks(until)})
        await verify_full(run)
    last = run.state.latest_verification(run.script_id)
    if last is None or not last.divergences:
        return []
    return _then_again(run, last, reason("rows-differ", rows=differing(last.divergences, " that ")))


def closed_by_verification(run: Run, control: ControlRow) -> list[str]:
    """Return why the last full verification keeps the gate before cutover closed; empty when it opens it."""
    last = run.state.latest_verification(run.script_id)
    problem = facts.verification_problem(
        last,
        run.state.facts(run.script_id),
        now=run.clock.ticks(),
        gates=run.config.gates,
        control=control,
        writers_stopped=run.options.writers_stopped,
    )
    return _then_again(run, last, problem) if problem else []


def handover_closed_by_verification(run: Run, control: ControlRow) -> list[str]:
    """Return why the last full verification keeps the handover closed; empty when it opens it."""
    last, known = run.state.latest_verification(run.script_id), run.state.facts(run.script_id)
    now, gates = run.clock.ticks(), run.config.gates
    problem = facts.handover_problem(last, known, now=now, gates=gates, control=control)
    return _then_again(run, last, problem) if problem else []


def _then_again(run: Run, last: Verification | None, problem: str) -> list[str]:
    """Return a problem of the last verification with the command that leads to one that finds nothing."""
    again = next_step("name-rows", script=run.script_id)
    if last is not None and last.divergences:
        again = after_findings(run.script_id, run.source.name, last.report)
    return [reason("verify-again", problem=problem, command=again.command)]
