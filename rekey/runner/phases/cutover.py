"""cutover: moves the authority to the target, and back. Both ways go through a freeze (ADR 0019, ADR 0036;
groups: ADR 0043). README.md of `rekey/runner` says what holds under a freeze."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial

from rekey.copy.back import BackPropagator
from rekey.copy.delta import fresh_second, written_since
from rekey.copy.sweep import gone, source_keys, unmatched
from rekey.core.clock import TICKS_PER_SECOND, earlier, format_ticks, ticks_of
from rekey.core.concurrency import for_each
from rekey.core.limits import is_in_target_account
from rekey.errors import Findings, GateClosed, RekeyError, RowRefused, ServiceError, WriterAtWork
from rekey.mapping.computed import ComputedMapping
from rekey.model import TIMESTAMP, EntityKey, Row, key_of
from rekey.next_steps import after_findings, next_step
from rekey.phases import ControlPhase, Phase
from rekey.present.text import counted, differing, duration, moment
from rekey.protocol.control import ControlRow
from rekey.protocol.rules import SOURCE, TARGET, Side
from rekey.runner.clients import (
    Deadline,
    closed_by_clients,
    closed_by_others,
    drain,
    open_s,
    quiet_in_s,
    settle_again,
    settle_stale,
    until_quiet,
    wait_for_clients,
    wait_until_heard,
)
from rekey.runner.hooks import HookEvent
from rekey.runner.phases.reconcile import catch_up
from rekey.runner.references import closed_by_references
from rekey.runner.refusals import refusal
from rekey.runner.remaining import (
    closed_by_emptied,
    closed_by_mapping,
    closed_by_source,
    closed_by_tables,
    require_few_deletes,
)
from rekey.runner.run import Counters, Run, asks_again, of_member
from rekey.runner.stop import expected_stop_s
from rekey.runner.verification import (
    closed_by_difference,
    closed_by_verification,
    last_number,
    unfollowed,
    verify_full,
    wrong,
)
from rekey.state.models import WATERMARK
from rekey.status.facts import RETURNED_AFTER
from rekey.status.notes import note
from rekey.status.reasons import reason
from rekey.verify.full import TooMany
from rekey.verify.report import DifferenceKind, FullReport

# Fact: the freeze time of capture "delta"; `retire` compares with it.
FROZEN_AT = "frozen_at"
# Fact: which freeze these times are of, as the control row says (`frozen_at`).
FROZEN_UNDER = "frozen_under"
# Fact: the same by the clock of the target account, where there is one.
TARGET_FROZEN_AT = "target_frozen_at"
# Fact: from when until when rollbacks copied rows to the source since the cutover, where no mapping is
# stored: pairs of the source's times, as JSON.
COPIED_BACK = "copied_back"
# For how long such a record holds, in ticks, before it is renewed.
_SPAN = 60 * TICKS_PER_SECOND
# Seconds by which the clocks of a machine and of the service may differ.
_CLOCKS_S = 300.0
# Most rows that an error names.
_NAMED = 20


async def gate(run: Run) -> list[str]:
    """Return the reasons that keep the authority from moving to the target."""
    now = await run.control.read()
    if now is None:
        return [reason("control-row-gone")]
    if now.phase is ControlPhase.CUTOVER:
        return []
    reasons = await closed_by_tables(run, authority=run.source) or closed_by_verification(run, now)
    reasons += await closed_by_references(run)
    if run.is_delta:
        reasons += [] if run.options.writers_stopped else [reason("writers-not-stopped")]
        reasons += await _closed_by_a_long_stop(run)
    if not run.is_delta:
        reasons += await closed_by_clients(run, now) + await closed_by_others(run)
        reasons = reasons or await closed_by_emptied(run)  # capture "delta" compares everything in the freeze
    return reasons or await closed_by_mapping(run)


async def _closed_by_a_long_stop(run: Run) -> list[str]:
    """Return, as a list, the reason that the estimated write downtime exceeds `--stop-at-most`."""
    allowed_s = run.options.stop_at_most_s
    if allowed_s is None or run is not run.run_group[0]:
        return []
    expected_s = expected_stop_s(run)
    if expected_s is None:
        return [reason("downtime-unknown", script=run.declared.cli_selector)]
    expected_s += max([await quiet_in_s(member) for member in run.run_group])
    if expected_s <= allowed_s:
        return []
    expected, allowed = duration(expected_s), duration(allowed_s)
    return [reason("downtime-too-long", script=run.declared.cli_selector, expected=expected, allowed=allowed)]


async def run(run: Run) -> Counters:
    """Freeze; verify (capture "delta") or drain the journal; move. On failure return to `dual_write`."""
    now = await run.control.read()
    if now is not None and now.phase is ControlPhase.CUTOVER:
        return run.switchover
    for member in run.run_group:
        await until_quiet(member)  # requests of earlier runs take effect before the freeze
    if not run.is_delta:
        await switch_over(run, ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER)
        return run.switchover
    if now is not None and now.phase is ControlPhase.DUAL_WRITE:
        await _about_to_freeze(run, ControlPhase.CUTOVER)
        now = await run.control.move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
    try:
        await _prove_under_freeze(run.run_group, now)
    except Exception as error:
        await leave_freeze(run, ControlPhase.DUAL_WRITE)
        if isinstance(error, Findings):
            await run.tell(HookEvent.DIVERGENCE)
        raise
    await run.control.move(ControlPhase.FREEZE, ControlPhase.CUTOVER)
    return run.switchover


async def _prove_under_freeze(runs: Sequence[Run], control: ControlRow | None) -> None:
    """Repair the targets of all runs for the last time, and prove them equal. `control`: the control row of
    one of them; they were frozen at once."""
    # A whole second of the service's clock after every write made before the operator confirmed that writers
    # have stopped: a source row newer than it is from a stray writer.
    seconds: dict[bool, str] = {}  # by the clock of each account that holds a source
    for member in runs:
        in_target_account = is_in_target_account(member.source.name)
        if in_target_account not in seconds:
            seconds[in_target_account] = await fresh_second(member.source_time, member.clock)
        member.state.set_fact(member.script_id, FROZEN_UNDER, None if control is None else control.frozen_at)
        member.state.set_fact(member.script_id, FROZEN_AT, seconds[in_target_account])
        # Timestamps of the target are by the clock of its own account.
        if member.declared.migration.uses_target_account:
            member.state.set_fact(member.script_id, TARGET_FROZEN_AT, await member.target_time())
    reports = []
    for member in runs:
        with of_member(member):
            counters, report = await _compare_under_freeze(member)
        member.switchover = {**counters, "rows_compared": report.source_rows}
        reports.append(report)
        if report.findings:
            break
    # Strays before differences are reported: rows still being written differ as well, and no repair ends
    # that. And only when all is compared, so that nothing is written meanwhile.
    for member in runs[: len(reports)]:
        strays = []
        async for row in written_since(member.source, seconds[is_in_target_account(member.source.name)]):
            member.check()
            strays.append(member.ids.short(member.source.name, key_of(row)))
        if strays:
            text = reason("still-writing", number=len(strays), rows=", ".join(strays[:_NAMED]))
            step = next_step("still-writing", script=member.declared.cli_selector, source=member.source.name)
            with of_member(member):
                raise WriterAtWork("cutover", [text], hint=str(step))
    for member, report in zip(runs, reports, strict=False):
        if report.findings:
            step = after_findings(member.script_id, member.source.name, report.as_json())
            with of_member(member):
                phase = member.declared.migration.shown(Phase.DUAL_WRITE)
                raise refusal("rows-differ-frozen", rows=wrong(report), next=step, phase=phase)


def frozen_at(run: Run, now: ControlRow, fact: str = FROZEN_AT) -> str | None:
    """Return a time (`fact`) of the freeze before the present cutover; None where the state file has none of
    that: it was lost, or another machine has cut over since."""
    facts = run.state.facts(run.script_id)
    under = facts.get(FROZEN_UNDER)  # not stored by earlier versions
    if under is None or now.frozen_at is None:
        return facts.get(fact)
    # Compared as times: the service may write one that was sent with zeros after the second without them.
    return facts.get(fact) if ticks_of(under) == ticks_of(now.frozen_at) else None


async def _compare_under_freeze(run: Run) -> tuple[Counters, FullReport]:
    """Repair the targets for the last time, and prove them equal."""
    counters: Counters | None = None
    if run.pool is None:
        with suppress(TooMany):
            report = await verify_full(run, propagate_first=True)
            counters = {"rows_brought": report.differences.propagated}
            # Repaired rows are proved by the digests they were put back into, unless an unanswered write may
            # change them.
            if report.findings or (report.equal and not open_s(run)):
                return counters, report
    counters = counters or await catch_up(run, max_passes=1)
    await until_quiet(run)
    return counters, await verify_full(run)


async def _about_to_freeze(run: Run, end: ControlPhase) -> None:
    """Tell the hook that writes are about to wait. Raises GateClosed when the window for that is over, or the
    hook failed before the cutover."""
    by = run.options.freeze_by
    if by is not None and run.clock.ticks() >= by:
        over = reason("window-over", closed=moment(format_ticks(by)))
        raise GateClosed(end, [over], hint=asks_again(run, Phase.CUTOVER))
    for member in run.run_group:
        await member.tell(HookEvent.FREEZE, before=Phase.CUTOVER if end is ControlPhase.CUTOVER else None)


# --- freezes -----------------------------------------------------------------------------------------------


async def switch_over(run: Run, start: ControlPhase, end: ControlPhase) -> None:
    """Move the authority from the side of `start` to the side of `end`, through a freeze; keep the figures in
    `switchover` of each run. For capture "dual-write".

    Args:
        run: the migration.
        start: the control row's phase now: `dual_write` or `cutover`.
        end: its phase afterwards: the other one.

    Raises:
        Moved: the control row is gone or not in `start`.
        GateClosed: intents cannot be settled; nothing was frozen.
        Findings: everything had to be compared under freeze, and rows differ.
        Refused: clients did not follow, or the journal was not drained; the control row is in `start` again
            (or in `end`, if clients did not follow after the last move).
    """
    side: Side = SOURCE if start is ControlPhase.DUAL_WRITE else TARGET
    runs = run.run_group
    checked: dict[str, str] = {}
    for member in runs:
        control = await member.control.read()
        if control is None or control.phase is not start:
            raise refusal("not-in-phase", script=member.script_id, phase=start)
        # Slow work, and all that can refuse, before the freeze and for all members, while writes go on.
        await wait_until_heard(member, control)
        with of_member(member):
            settled = await settle_stale(member, side)
            if settled.failed:
                unsettled = reason("intents-fail", number=settled.failed)
                raise GateClosed(end, [unsettled], hint=reason("fix-rows", script=member.script_id))
        member.switchover = {"clients": 0, "intents_settled": settled.settled}
        if end is ControlPhase.CUTOVER:
            checked[member.script_id] = await member.restricted.server_time()
            last = member.state.latest_verification(member.script_id)
            with of_member(member):
                await _require_claims(member, control.updated_at if last is None else last.started_at)
    await _about_to_freeze(run, end)
    deadline = Deadline(run.clock, run.config.gates.freeze_timeout_s)
    frozen = await run.control.move(start, ControlPhase.FREEZE)
    try:
        for member in runs:
            with of_member(member):
                # No table is scanned here, except where the journal proves nothing (`_drained`).
                await _drained(member, await _as_moved(member, run, frozen), side, end, deadline)
                if end is ControlPhase.CUTOVER:
                    await _require_claims(member, checked[member.script_id])
        run.check()
        after = await run.control.move(ControlPhase.FREEZE, end)
    except Exception as error:
        left = await leave_freeze(run, start, only=frozen.move_id)
        frozen_ms = round(deadline.elapsed_s * 1000)
        details = {"to": start, "error": type(error).__name__, "freeze_ms": frozen_ms}
        for member in runs:
            member.state.audit("freeze-given-up", member.script_id, details)
        if left and isinstance(error, RekeyError):
            kept = (error.kept or "everything").rstrip(".")
            error.kept = (
                f"{kept}; the migration is back in `{run.declared.migration.shown(start)}`, and writes go on"
            )
        if isinstance(error, Findings):
            await run.tell(HookEvent.DIVERGENCE)
        raise
    frozen_ms = round(deadline.elapsed_s * 1000)
    for member in runs:
        await wait_for_clients(member, await _as_moved(member, run, after))
        member.switchover |= {"freeze_ms": frozen_ms, "followed_ms": round(deadline.elapsed_s * 1000)}
        member.state.audit("freeze", member.script_id, {"to": end, **member.switchover})


async def _as_moved(run: Run, mover: Run, row: ControlRow) -> ControlRow:
    """Return the control row of a migration after a move of its group; `row` is that of `mover`."""
    return row if run is mover else await run.control.read() or row


async def _drained(run: Run, frozen: ControlRow, side: Side, end: ControlPhase, deadline: Deadline) -> None:
    """Wait until no write is in flight under the freeze, and compare where the journal proves nothing.

    Raises:
        Findings: rows differ.
        Refused: clients did not follow, or the journal was not drained in time.
    """
    clients = await wait_for_clients(run, frozen, deadline)
    drained = await drain(run, side, deadline)
    run.switchover = {"clients": clients, "intents_settled": run.switchover["intents_settled"] + drained}
    # No live client: nobody waits meanwhile. None registered at the last verification: its writes had no
    # intents, and the operator confirmed that nothing writes now.
    if not clients or (end is ControlPhase.CUTOVER and unfollowed(run)):
        report = await verify_full(run)
        if report.findings:
            step = after_findings(run.script_id, run.source.name, report.as_json())
            raise refusal("rows-differ-drained", rows=wrong(report), next=step)


async def _require_claims(run: Run, since: str) -> None:
    """Raise Collision if a target key that passed to another source key since then has a row of both."""
    # The clocks of machine and service may differ.
    async for target, former, owner in run.mapping.passed(earlier(since, _CLOCKS_S)):
        run.check()
        if former == owner:
            continue
        if await run.propagator.still_owns(former, target) and await run.propagator.still_owns(owner, target):
            raise run.mapping.collision(target, former, owner)


async def leave_freeze(run: Run, back_to: ControlPhase, *, only: str = "") -> bool:
    """Move the control row from `freeze` back to `back_to`; return whether it was moved. If the service
    fails, the next command on the migration does it. `only`: the id of the move that froze; a freeze by
    another move stays; "": any."""
    try:
        now = await run.control.read()
        if now is None or now.phase is not ControlPhase.FREEZE or (only and now.move_id != only):
            return False
        await run.control.move(ControlPhase.FREEZE, back_to)
    except ServiceError:
        note(run.progress, "freeze-left-behind")
        return False
    return True


# --- rollback ----------------------------------------------------------------------------------------------


async def undo(run: Run) -> Counters | None:
    """Go back to `dual_write` with everything written to the target since cutover; return figures (capture
    "delta").

    Raises:
        GateClosed: the declaration has no rollback, `--writers-stopped` was not given (capture "delta"), rows
            cannot go back, or rows are known to differ.
    """
    now = await run.control.read()
    if now is None or now.phase is ControlPhase.DUAL_WRITE:
        return run.switchover or None
    for member in run.run_group:
        with of_member(member):
            await _require_rollback(member)
    if run.is_delta:
        await _copy_back(run, now)
        return run.switchover
    for member in run.run_group:
        # Before the control row moves: verifications up to now do not open the gate of a later cutover.
        member.state.set_fact(member.script_id, RETURNED_AFTER, str(last_number(member)))
        await member.control.mark_changed()  # nor those in the state file of another machine
    await switch_over(run, ControlPhase.CUTOVER, ControlPhase.DUAL_WRITE)
    for member in run.run_group:
        member.switchover = {}
        with of_member(member):
            await _follow_timestamps(member, now)
    return None


async def _require_rollback(run: Run) -> None:
    """Raise GateClosed, as `undo` does, before anything is written."""
    name, phase = run.declared.cli_selector, run.declared.migration.shown(Phase.DUAL_WRITE)
    if not run.declared.migration.reverse:
        hint = reason("stay", step=next_step("no-way-back", script=name))
        raise GateClosed(phase, [reason("no-way-back")], hint=hint)
    if run.is_delta and not run.options.writers_stopped:
        step = next_step("go-back", script=name, target=run.targets[0].name)
        raise GateClosed(phase, [reason("writers-not-stopped")], hint=str(step))
    reasons = await closed_by_source(run)
    if not reasons and not run.is_delta:
        # Rolling back over differences would make the source's rows the true ones.
        reasons = await closed_by_difference(run)
    if reasons:
        raise GateClosed(phase, reasons, hint=reason("roll-back-again", script=name))


async def _copy_back(run: Run, now: ControlRow) -> None:
    """Copy the target rows written since cutover to the source, verify, then move the control row."""
    for member in run.run_group:
        with of_member(member):
            await _check_back(member, now)
    if now.phase is ControlPhase.CUTOVER:
        await _about_to_freeze(run, ControlPhase.DUAL_WRITE)
        await run.control.move(ControlPhase.CUTOVER, ControlPhase.FREEZE)
    try:
        for member in run.run_group:
            with of_member(member):
                await _bring_back(member, now)
                await _prove_rollback(member)
    except Exception:
        await leave_freeze(run, ControlPhase.CUTOVER)
        raise
    for member in run.run_group:
        member.state.set_fact(member.script_id, WATERMARK, await member.source_time())
    await run.control.move(ControlPhase.FREEZE, ControlPhase.DUAL_WRITE)
    for member in run.run_group:
        member.state.set_fact(member.script_id, COPIED_BACK, None)


async def _check_back(run: Run, now: ControlRow) -> None:
    """Map every row that would be copied back; nothing is written. Raises GateClosed."""
    back, refused = BackPropagator(run.propagator), list[RowRefused]()

    async def check(row: Row) -> None:
        try:
            await back.check(row)
        except RowRefused as problem:
            refused.append(problem)

    await _each_changed(run, now, "check rollback", back, check)
    if refused:
        listed = "; ".join(f"{problem.row_id}: {problem.problem}" for problem in refused[:_NAMED])
        closed = reason("cannot-go-back", rows=counted(len(refused), "target row"), listed=listed)
        raise GateClosed(run.declared.migration.shown(Phase.DUAL_WRITE), [closed], hint=refused[0].cure)


async def _bring_back(run: Run, now: ControlRow) -> None:
    async with _recorded(run) as record:
        await _copy_changes(run, now, record)


async def _copy_changes(run: Run, now: ControlRow, record: Callable[[], None]) -> None:
    """Copy the changes of the target to the source. `record`: called before each row."""
    back, limit = BackPropagator(run.propagator, _keeps(run, now)), run.config.limits.concurrency
    run.switchover = counters = {"rows_copied_back": 0, "rows_deleted_in_source": 0}

    async def settle(what: str, source_key: EntityKey) -> None:
        record()
        written = await back.propagate(source_key)
        counters[what] += written
        # The index tables follow the source again, and so do copies of its Timestamp.
        if written or any(run.mapper.timestamp_copies):
            await run.propagator.propagate(source_key)

    async def bring(row: Row) -> None:
        await settle("rows_copied_back", await back.claim_new(row))

    await _each_changed(run, now, "copy back", back, bring)
    with run.progress.task("copy deletes back") as advance:
        target_rows = 0

        def count(rows: int) -> None:
            nonlocal target_rows
            target_rows += rows
            advance(rows)

        deleted: list[EntityKey] = []
        async with aclosing(_deleted(run, now, count)) as portions:
            async for portion in portions:
                deleted += portion
        await require_few_deletes(run, deleted, target_rows)
        await for_each(deleted, partial(settle, "rows_deleted_in_source"), limit=limit)


def _deleted(
    run: Run, now: ControlRow, advance: Callable[[int], None]
) -> AsyncGenerator[list[EntityKey], None]:
    """Yield the source keys whose target rows are gone since cutover."""
    mapping, target = run.mapping, run.targets[0]
    if not isinstance(mapping, ComputedMapping):
        return gone(target, mapping, "r", advance=advance, check=run.check)
    was_copied = _was_copied(run, now)

    def copied(rows: Sequence[Row]) -> list[EntityKey]:
        keys = [key_of(row) for row in rows if was_copied(row)]
        return [key for key in keys if mapping.target_of(key) is not None]

    present = source_keys(target, mapping.sources_of, advance=advance, check=run.check)
    return unmatched(source_keys(run.source, copied, check=run.check), present)


def _was_copied(run: Run, now: ControlRow) -> Callable[[Row], bool]:
    """Return the function that tells of a source row, by its Timestamp, that the target has had it since
    cutover, where no mapping row says so."""
    # Which rows were copied is not listed: all that stood at the freeze were. A source row that was written
    # later stays, and is found missing in the target.
    frozen = frozen_at(run, now)
    if frozen is None and now.stopped_at is not None:
        # This is by the clock of another account, and may be later than the freeze.
        frozen = earlier(now.stopped_at, run.config.gates.margin_s)
    spans = [(ticks_of(since), ticks_of(until)) for since, until in _copied_back(run)]
    spans += [] if frozen is None else [(0, ticks_of(frozen))]

    def was_copied(row: Row) -> bool:
        written_at = ticks_of(row[TIMESTAMP])
        return any(since <= written_at < until for since, until in spans)

    return was_copied


def _keeps(run: Run, now: ControlRow) -> Callable[[Row], bool]:
    """Return the function that tells of a source row that only its Timestamp says was copied: not by a
    mapping row, nor by the comparison under the freeze."""
    frozen = frozen_at(run, now)
    proved = 0 if frozen is None else ticks_of(frozen)
    return lambda row: not run.mapping.is_stored and ticks_of(row[TIMESTAMP]) >= proved


def _copied_back(run: Run) -> list[tuple[str, str]]:
    """Return from when until when rollbacks copied rows to the source since the cutover."""
    return [
        (since, until) for since, until in json.loads(run.state.get_fact(run.script_id, COPIED_BACK) or "[]")
    ]


@asynccontextmanager
async def _recorded(run: Run) -> AsyncIterator[Callable[[], None]]:
    """Yield the function to call before a row is copied back: where no mapping is stored, it records until
    when that may take effect. Once nothing is copied any more, that is recorded too: what is written to the
    source from then on is not by this rollback."""
    if run.mapping.is_stored:
        yield lambda: None
        return
    before, since = _copied_back(run), await fresh_second(run.source_time, run.clock)
    until = 0

    def store(moment: int) -> None:
        nonlocal until
        until = moment
        spans = [*before, (since, format_ticks(until))]
        run.state.set_fact(run.script_id, COPIED_BACK, json.dumps(spans))

    def record() -> None:
        now, in_flight = run.clock.ticks(), round(run.config.gates.margin_s * TICKS_PER_SECOND)
        if now + in_flight + _SPAN // 2 >= until:
            store(now + in_flight + _SPAN)

    async def end() -> None:
        # Where a request may still take effect, or the service fails, the record stays as it is.
        if not until or open_s(run):
            return
        with suppress(ServiceError):
            store(min(ticks_of(await fresh_second(run.source_time, run.clock)), until))

    try:
        yield record
    except Exception:
        await end()
        raise
    await end()


async def _each_changed(
    run: Run, now: ControlRow, label: str, back: BackPropagator, work: Callable[[Row], Awaitable[None]]
) -> None:
    """Await `work` for each target row that was written since cutover and differs."""
    # A time before the application's first write to the target. The freeze time is by the clock of the
    # target's account; the control row's times, by the restricted account's, are second best.
    fact = TARGET_FROZEN_AT if run.declared.migration.uses_target_account else FROZEN_AT
    since = earlier(frozen_at(run, now, fact) or now.cutover_at or now.updated_at, run.config.gates.margin_s)
    limit = run.config.limits.concurrency
    with run.progress.task(label) as advance:
        async for page in run.targets[0].scan(modified_from=since):
            run.check()
            await for_each(await back.differing(page.rows, limit=limit), work, limit=limit)
            advance(len(page.rows))


async def _follow_timestamps(run: Run, now: ControlRow) -> None:
    """Bring copies of the source's Timestamp up to date, which the service set anew whenever the source
    followed the target. `now`: the control row before the rollback."""
    if not any(run.mapper.timestamp_copies):
        return
    back, limit = BackPropagator(run.propagator), run.config.limits.concurrency
    since = earlier(now.cutover_at or now.updated_at, run.config.gates.margin_s)

    async def follow(row: Row) -> None:
        with suppress(Findings):  # a verification reports it
            await run.propagator.propagate(await back.owner_of(row))

    with run.progress.task("follow timestamps") as advance:
        async for page in run.targets[0].scan(modified_from=since):
            run.check()
            await for_each(page.rows, follow, limit=limit)
            advance(len(page.rows))


async def _prove_rollback(run: Run) -> None:
    """Compare everything; repair the index tables, which the application wrote itself since cutover.

    Raises:
        Findings: rows differ that are not only index rows, or that repair did not fix.
    """
    await until_quiet(run)
    report = await verify_full(run)
    listed, indexes = report.differences.listed, run.mapper.labels[1:]
    # The main target is the authority: a difference in it is never repaired.
    in_indexes = len(listed) == wrong(report) and all(divergence.table in indexes for divergence in listed)
    if report.findings and in_indexes:
        await verify_full(run, repair=True)
        await until_quiet(run)
        report = await verify_full(run)
        listed = report.differences.listed
    if report.findings:
        step = next_step("go-back-again", script=run.declared.cli_selector)
        are_missing = all(divergence.kind is DifferenceKind.MISSING for divergence in listed)
        if not run.mapping.is_stored and len(listed) == wrong(report) and are_missing:
            rows, named = counted(len(listed), "row"), ", ".join(each.source_id for each in listed[:_NAMED])
            raise refusal(
                "rows-left-in-source",
                rows=rows,
                listed=named,
                step=step.command,
                source=run.source,
                target=run.targets[0],
            )
        raise refusal("rows-differ-back", differ=differing(wrong(report)), hint=step)


async def again(run: Run) -> int:
    """Settle the remaining intents, if the source follows (`reverse`)."""
    return await settle_again(run, side=TARGET) if run.declared.migration.reverse else 0
