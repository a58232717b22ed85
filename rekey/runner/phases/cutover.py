"""cutover: authority moves to the target.

Rules kept here, in capture "dual-write" (ADR 0019):

* The gate asks for a clean full verification that is younger than the last way back, and for clients: all
  live ones current, and at least one unless the operator says that nothing writes.
* Both ways go through a freeze of seconds (`cross`). Slow work is done before it, while writes go on: clients
  that went silent are waited for, old intents are settled. No table is scanned under freeze.
* Under freeze every live client acknowledges (from then on no client begins a write), the journal is drained,
  and only then does the control row move on. Every intent is settled then, so every replica equals its
  authority.
* Without a live client, or when no client was registered at the last verification, the journal proves
  nothing: then all is compared under freeze. In the first case no client waits meanwhile; in the second the
  operator has said that nothing writes.
* Claims of target keys that passed to another source key since the verification began are read again before
  the freeze, and those that passed since then under it: two rows that both map to such a key are a collision.
* A freeze that is not drained within `[gates] freeze_timeout`, or that fails in any other way, goes back to
  the phase that it came from; nothing is lost, and the error says what the freeze waited for.
* The way back is refused while rows are known to differ: it would make the source's rows the true ones.

Of a group (ADR 0043):

* All members are frozen at once, proved or drained one after the other under the same freeze, and moved at
  once; where one refuses, all go back. The run of whichever member comes first does that for all.
* What is slow, or can refuse, before the freeze is done for all members before the first move.
* Stray writers of all members are looked for when the last one is compared.

In capture "delta" (writers stop, a last pass, a last proof):

* The freeze time is a whole second of the service's clock that lies after every write made before the
  operator said that writers have stopped; the final pass begins after it. A source row newer than it is a
  stray writer: refused, back to `dual_write`, nothing lost.
* Order under freeze: one comparison that brings what differs, look for strays, move (ADR 0036). No request
  is in flight unanswered when the comparison begins (`until_quiet`). It proves the tables equal if every sum
  is equal with the rows that it brought, as they were seen after the last of its writes, and none of its
  writes is open. Otherwise all is compared once more, when nothing can take effect any more.
* With workers, or where too much differs to be brought row by row: a final pass, a sweep and a full
  verification in place of the one comparison.
* A stop that would be longer than the operator allows is not begun (`stop`).
* A freeze that a killed run left does not last: the next command that works on the migration leaves it, and
  then begins the cutover again or goes back.
* Undo copies the target rows written since cutover back to the source: first a check of every row that writes
  nothing, then the copy. Nothing written after cutover is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial

from rekey.copy.back import BackPropagator
from rekey.copy.delta import fresh_second, written_since
from rekey.copy.sweep import gone
from rekey.core.clock import earlier, format_ticks
from rekey.core.concurrency import for_each
from rekey.core.limits import is_elsewhere
from rekey.errors import Findings, GateClosed, RekeyError, RowRefused, ServiceError, WriterAtWork
from rekey.model import EntityKey, Row, key_of
from rekey.next_steps import after_findings, next_step
from rekey.phases import ControlPhase, Phase
from rekey.present.text import counted, differing, duration, moment
from rekey.protocol.control import ControlRow
from rekey.protocol.rules import SOURCE, TARGET, Side
from rekey.runner.clients import (
    Deadline,
    closed_by_clients,
    drain,
    open_s,
    quiet_in_s,
    settle_again,
    settle_stale,
    unsettled_hint,
    until_quiet,
    wait_for_clients,
    wait_until_heard,
)
from rekey.runner.hooks import HookEvent
from rekey.runner.phases.reconcile import catch_up
from rekey.runner.refusals import refusal
from rekey.runner.remaining import closed_by_source, closed_by_tables, require_few_deletes
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
from rekey.verify.full import TooMany
from rekey.verify.report import FullReport

# Fact: the freeze time of capture "delta"; `retire` compares with it.
FROZEN_AT = "frozen_at"
# Fact: the same by the clock of the target's account, where that is another one.
TARGET_FROZEN_AT = "target_frozen_at"
# By how many seconds the clocks of a machine and of the service may differ.
_CLOCKS_S = 300.0
# How many rows an error names at most.
_NAMED = 20
_NOT_STOPPED = "nobody has confirmed that the application's writers are stopped (--writers-stopped)"


async def gate(run: Run) -> list[str]:
    """Return the reasons that keep the authority from moving to the target."""
    now = await run.control.read()
    if now is None:
        return ["the control row is gone from the restricted store"]
    if now.phase is ControlPhase.CUTOVER:
        return []
    reasons = await closed_by_tables(run, authority=run.source) or closed_by_verification(run, now)
    if run.is_delta:
        reasons += [] if run.options.writers_stopped else [_NOT_STOPPED]
        reasons += await _closed_by_a_long_stop(run)
    if not run.is_delta:
        reasons += await closed_by_clients(run, now)
    return reasons


async def _closed_by_a_long_stop(run: Run) -> list[str]:
    """Return the reason that writers would stand still for longer than allowed (`--stop-at-most`), if so."""
    allowed_s = run.options.stop_at_most_s
    if allowed_s is None or run is not run.together[0]:
        return []
    expected_s = expected_stop_s(run)
    apply = f"`rekey apply {run.declared.named}`"
    again = f"let the writers go on; {apply} brings the targets up to date and measures"
    if expected_s is None:
        return [f"how long the writers would stand still is not known (--stop-at-most): {again} it"]
    expected_s += max([await quiet_in_s(one) for one in run.together])
    if expected_s <= allowed_s:
        return []
    longer = f"for about {duration(expected_s)}, longer than {duration(allowed_s)} (--stop-at-most)"
    return [f"the writers would stand still {longer}: {again} again; or allow more"]


async def run(run: Run) -> Counters:
    """Freeze; verify (capture "delta") or drain the journal ("dual-write"); move. On failure return to
    `dual_write`."""
    now = await run.control.read()
    if now is not None and now.phase is ControlPhase.CUTOVER:
        return run.crossed
    for one in run.together:
        await until_quiet(one)  # before the freeze: requests of earlier runs take effect before the last pass
    if not run.is_delta:
        await cross(run, ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER)
        return run.crossed
    if now is not None and now.phase is ControlPhase.DUAL_WRITE:
        await _about_to_freeze(run, ControlPhase.CUTOVER)
        await run.control.move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
    try:
        await _prove_under_freeze(run.together)
    except Exception as error:
        await leave_freeze(run, ControlPhase.DUAL_WRITE)
        if isinstance(error, Findings):
            await run.tell(HookEvent.DIVERGENCE)
        raise
    await run.control.move(ControlPhase.FREEZE, ControlPhase.CUTOVER)
    return run.crossed


async def _prove_under_freeze(runs: Sequence[Run]) -> None:
    frozen_at: dict[bool, str] = {}  # by the clock of each account that holds a source
    for one in runs:
        elsewhere = is_elsewhere(one.source.name)
        if elsewhere not in frozen_at:
            frozen_at[elsewhere] = await fresh_second(one.source_time, one.clock)
        one.state.set_fact(one.script_id, FROZEN_AT, frozen_at[elsewhere])
        # Timestamps of the target are by the clock of its own account.
        if one.declared.migration.is_elsewhere:
            one.state.set_fact(one.script_id, TARGET_FROZEN_AT, await one.target_time())
    reports = []
    for one in runs:
        with of_member(one):
            counters, report = await _compare_under_freeze(one)
        one.crossed = {**counters, "rows_compared": report.source_rows}
        reports.append(report)
        if report.findings:
            break
    for one in runs[: len(reports)]:  # asked first: rows that are still written differ, too, and no repair
        strays = []  # ends that; and asked when all is compared, so that nothing is written meanwhile
        async for row in written_since(one.source, frozen_at[is_elsewhere(one.source.name)]):
            one.check()
            strays.append(one.ids.short(one.source.name, key_of(row)))
        if strays:
            said = f"{len(strays)} source rows were written after the freeze: {', '.join(strays[:_NAMED])}"
            step = next_step("still-writing", script=one.declared.named, source=one.source.name)
            with of_member(one):
                raise WriterAtWork("cutover", [said], hint=str(step))
    for one, report in zip(runs, reports, strict=False):
        if report.findings:
            step = after_findings(one.script_id, one.source.name, report.as_json())
            with of_member(one):
                phase = one.declared.migration.shown(Phase.DUAL_WRITE)
                raise refusal("rows-differ-frozen", rows=wrong(report), next=step, phase=phase)


async def _compare_under_freeze(run: Run) -> tuple[Counters, FullReport]:
    """Bring the targets up to date for the last time, and prove it."""
    counters: Counters | None = None
    if run.pool is None:
        with suppress(TooMany):
            report = await verify_full(run, brings=True)
            counters = {"rows_brought": report.found.brought}
            # What was brought is proved by the sums it was put back into, if it can change no more.
            if report.findings or (report.equal and not open_s(run)):
                return counters, report
    counters = counters or await catch_up(run, max_passes=1)
    await until_quiet(run)
    return counters, await verify_full(run)


async def _about_to_freeze(run: Run, end: ControlPhase) -> None:
    """Tell the hook that writes are about to wait; the move after the freeze is to `end`. Raises GateClosed
    when the time for that is over, or the hook failed before the cutover."""
    by = run.options.freeze_by
    if by is not None and run.clock.ticks() >= by:
        late = f"the window closed at {moment(format_ticks(by))}, before writes were made to wait"
        raise GateClosed(end, [late], hint=asks_again(run, Phase.CUTOVER))
    for one in run.together:
        await one.tell(HookEvent.FREEZE, before=Phase.CUTOVER if end is ControlPhase.CUTOVER else None)


# --- freezes -----------------------------------------------------------------------------------------------


async def cross(run: Run, start: ControlPhase, end: ControlPhase) -> None:
    """Move the authority from the side of `start` to the side of `end`, through a freeze; keep the figures in
    `crossed` of each run.

    Args:
        run: the migration, capture "dual-write".
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
    runs = run.together
    checked: dict[str, str] = {}
    for one in runs:
        control = await one.control.read()
        if control is None or control.phase is not start:
            raise refusal("not-in-phase", script=one.script_id, phase=start)
        await wait_until_heard(one, control)
        with of_member(one):
            settled = await settle_stale(one, side)
            if settled.failed:
                unsettled = f"{settled.failed} intents of the journal cannot be settled"
                raise GateClosed(end, [unsettled], hint=unsettled_hint(one))
        one.crossed = {"clients": 0, "intents_settled": settled.settled}
        if end is ControlPhase.CUTOVER:
            checked[one.script_id] = await one.restricted.server_time()
            last = one.state.latest_verification(one.script_id)
            with of_member(one):
                await _require_claims(one, control.updated_at if last is None else last.started_at)
    await _about_to_freeze(run, end)
    deadline = Deadline(run.clock, run.config.gates.freeze_timeout_s)
    frozen = await run.control.move(start, ControlPhase.FREEZE)
    try:
        for one in runs:
            with of_member(one):
                await _drained(one, await _as_moved(one, run, frozen), side, end, deadline)
                if end is ControlPhase.CUTOVER:
                    await _require_claims(one, checked[one.script_id])
        run.check()
        after = await run.control.move(ControlPhase.FREEZE, end)
    except Exception as error:
        left = await leave_freeze(run, start, only=frozen.move_id)
        frozen_ms = round(deadline.elapsed_s * 1000)
        details = {"to": start, "error": type(error).__name__, "freeze_ms": frozen_ms}
        for one in runs:
            one.state.audit("freeze-given-up", one.script_id, details)
        if left and isinstance(error, RekeyError):
            kept = (error.kept or "everything").rstrip(".")
            error.kept = (
                f"{kept}; the migration is back in `{run.declared.migration.shown(start)}`, and writes go on"
            )
        if isinstance(error, Findings):
            await run.tell(HookEvent.DIVERGENCE)
        raise
    frozen_ms = round(deadline.elapsed_s * 1000)
    for one in runs:
        await wait_for_clients(one, await _as_moved(one, run, after))
        one.crossed |= {"freeze_ms": frozen_ms, "followed_ms": round(deadline.elapsed_s * 1000)}
        one.state.audit("freeze", one.script_id, {"to": end, **one.crossed})


async def _as_moved(run: Run, mover: Run, row: ControlRow) -> ControlRow:
    """Return the control row of a migration that was moved with that of `mover`, which is `row`."""
    return row if run is mover else await run.control.read() or row


async def _drained(run: Run, frozen: ControlRow, side: Side, end: ControlPhase, deadline: Deadline) -> None:
    """Wait until nothing is under way under the freeze, and compare where the journal proves nothing.

    Raises:
        Findings: rows differ.
        Refused: clients did not follow, or the journal was not drained in time.
    """
    clients = await wait_for_clients(run, frozen, deadline)
    drained = await drain(run, side, deadline)
    run.crossed = {"clients": clients, "intents_settled": run.crossed["intents_settled"] + drained}
    if not clients or (end is ControlPhase.CUTOVER and unfollowed(run)):
        report = await verify_full(run)
        if report.findings:
            step = after_findings(run.script_id, run.source.name, report.as_json())
            raise refusal("rows-differ-drained", rows=wrong(report), next=step)


async def _require_claims(run: Run, since: str) -> None:
    """Raise Collision if a target key that passed to another source key has a row of both.

    Args:
        run: the migration; the source is the authority.
        since: from when on the key passed; the clocks of machine and service may differ by `_CLOCKS_S`.
    """
    async for target, former, owner in run.mapping.passed(earlier(since, _CLOCKS_S)):
        run.check()
        if former == owner:
            continue
        if await run.propagator.still_owns(former, target) and await run.propagator.still_owns(owner, target):
            raise run.mapping.collision(target, former, owner)


async def leave_freeze(run: Run, back_to: ControlPhase, *, only: str = "") -> bool:
    """Move the control row from `freeze` back to `back_to`; return whether it was moved.

    If the service fails now, the next command on the migration does it.

    Args:
        run: the migration.
        back_to: the phase that the freeze came from.
        only: the id of the move that froze; a freeze by another move is not left. "": any freeze is left.
    """
    try:
        now = await run.control.read()
        if now is None or now.phase is not ControlPhase.FREEZE or (only and now.move_id != only):
            return False
        await run.control.move(ControlPhase.FREEZE, back_to)
    except ServiceError:
        said = "the control row still says `freeze`; the next `rekey` command on it puts it back"
        run.progress.note(said, "freeze-left-behind")
        return False
    return True


# --- the way back ------------------------------------------------------------------------------------------


async def undo(run: Run) -> Counters | None:
    """Go back to `dual_write`, with everything that was written to the target since cutover.

    Returns:
        How many rows of the source were written and deleted for that (capture "delta").

    Raises:
        GateClosed: the declaration has no way back, writers are not confirmed to be stopped (capture
            "delta"), rows cannot go back, or rows are known to differ.
    """
    now = await run.control.read()
    if now is None or now.phase is ControlPhase.DUAL_WRITE:
        return run.crossed or None
    for one in run.together:
        with of_member(one):
            await _require_way_back(one)
    if run.is_delta:
        await _copy_back(run, now)
        return run.crossed
    for one in run.together:
        # Set before the control row moves: verifications up to now do not open the gate of a later cutover.
        one.state.set_fact(one.script_id, RETURNED_AFTER, str(last_number(one)))
        await one.control.mark_changed()  # nor those in the state file of another machine
    await cross(run, ControlPhase.CUTOVER, ControlPhase.DUAL_WRITE)
    for one in run.together:
        one.crossed = {}
    return None


async def _require_way_back(run: Run) -> None:
    """Raise GateClosed, as `undo` does, before anything is written."""
    name = run.declared.named
    if not run.declared.migration.reverse:
        reason = "the declaration says reverse=False: there is no way back after cutover"
        hint = f"stay with the target: {next_step('no-way-back', script=name)}"
        raise GateClosed(run.declared.migration.shown(Phase.DUAL_WRITE), [reason], hint=hint)
    if run.is_delta and not run.options.writers_stopped:
        step = next_step("go-back", script=name, target=run.targets[0].name)
        raise GateClosed(run.declared.migration.shown(Phase.DUAL_WRITE), [_NOT_STOPPED], hint=str(step))
    reasons = await closed_by_source(run)
    if not reasons and not run.is_delta:
        reasons = await closed_by_difference(run)
    if reasons:
        hint = f"when nothing differs any more: `rekey rollback {name}` again"
        raise GateClosed(run.declared.migration.shown(Phase.DUAL_WRITE), reasons, hint=hint)


async def _copy_back(run: Run, now: ControlRow) -> None:
    """Copy the target rows written since cutover back to the source, verify, then move the control row."""
    for one in run.together:
        with of_member(one):
            await _check_back(one, now)
    if now.phase is ControlPhase.CUTOVER:
        await _about_to_freeze(run, ControlPhase.DUAL_WRITE)
        await run.control.move(ControlPhase.CUTOVER, ControlPhase.FREEZE)
    try:
        for one in run.together:
            with of_member(one):
                await _bring_back(one, now)
                await _prove_the_way_back(one)
    except Exception:
        await leave_freeze(run, ControlPhase.CUTOVER)
        raise
    for one in run.together:
        one.state.set_fact(one.script_id, WATERMARK, await one.source_time())
    await run.control.move(ControlPhase.FREEZE, ControlPhase.DUAL_WRITE)


async def _check_back(run: Run, now: ControlRow) -> None:
    """Try every row that would be copied back; nothing is written. Raises GateClosed."""
    back, refused = BackPropagator(run.propagator), list[RowRefused]()

    async def check(row: Row) -> None:
        try:
            await back.check(row)
        except RowRefused as problem:
            refused.append(problem)

    await _each_changed(run, now, "check the way back", back, check)
    if refused:
        listed = "; ".join(f"{problem.row_id}: {problem.problem}" for problem in refused[:_NAMED])
        reason = f"{counted(len(refused), 'target row')} cannot go back: {listed}"
        raise GateClosed(run.declared.migration.shown(Phase.DUAL_WRITE), [reason], hint=refused[0].cure)


async def _bring_back(run: Run, now: ControlRow) -> None:
    """Copy to the source what was written to the target, and deleted there, since cutover."""
    back, limit = BackPropagator(run.propagator), run.config.limits.concurrency
    run.crossed = counters = {"rows_copied_back": 0, "rows_deleted_in_source": 0}

    async def settle(what: str, source_key: EntityKey) -> None:
        if await back.propagate(source_key):
            counters[what] += 1
            # The index tables follow the source again: bring them up to date.
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
        portions = gone(run.targets[0], run.mapping, "r", advance=count, check=run.check)
        async with aclosing(portions):
            async for portion in portions:
                deleted += portion
        await require_few_deletes(run, deleted, target_rows)
        await for_each(deleted, partial(settle, "rows_deleted_in_source"), limit=limit)


async def _each_changed(
    run: Run, now: ControlRow, label: str, back: BackPropagator, work: Callable[[Row], Awaitable[None]]
) -> None:
    """Await work for each target row that was written since cutover and differs."""
    # A time before the application's first write to the target. The freeze time is preferred: it is by the
    # clock of the target's account, the control row's times are by the restricted account's.
    facts = run.state.facts(run.script_id)
    frozen_at = facts.get(TARGET_FROZEN_AT if run.declared.migration.is_elsewhere else FROZEN_AT)
    since = earlier(frozen_at or now.cutover_at or now.updated_at, run.config.gates.margin_s)
    limit = run.config.limits.concurrency
    with run.progress.task(label) as advance:
        async for page in run.targets[0].scan(modified_from=since):
            run.check()
            await for_each(await back.differing(page.rows, limit=limit), work, limit=limit)
            advance(len(page.rows))


async def _prove_the_way_back(run: Run) -> None:
    """Compare everything; mend the index tables, which the application wrote itself since cutover.

    Raises:
        Findings: rows differ that are not only index rows, or that repair did not mend.
    """
    await until_quiet(run)
    report = await verify_full(run)
    listed, indexes = report.found.listed, run.mapper.labels[1:]
    # A difference in the main target is never mended: the main target is the authority.
    in_indexes = len(listed) == wrong(report) and all(one.table in indexes for one in listed)
    if report.findings and in_indexes:
        await verify_full(run, repair=True)
        await until_quiet(run)
        report = await verify_full(run)
    if report.findings:
        step = next_step("go-back-again", script=run.declared.named)
        raise refusal("rows-differ-back", differ=differing(wrong(report)), hint=step)


async def again(run: Run) -> int:
    """Settle the intents that are left, if the source follows (`reverse`)."""
    return await settle_again(run, side=TARGET) if run.declared.migration.reverse else 0
