"""cutover: authority moves to the target.

Rules kept here, in capture "dual-write":

* The gate asks for a clean full verification that is younger than the last way back, and for clients: all
  live ones current, and at least one unless the operator says that nobody writes.
* Both ways go through a freeze of seconds (`rekey.runner.freeze`); no table is scanned in it.
* The way back is not gone with rows that are known to differ: it would make the source's the truth.

In capture "delta" (writers stop, a last pass, a last proof):

* The freeze time is a whole second of the service's clock that lies behind every write made before the
  operator said that writers have stopped; the final pass begins after it. A source row newer than it is a
  stray writer: refused, back to `dual_write`, nothing lost.
* Order under freeze: final pass, sweep, full verification, stray check, move. Each sees what the one before
  it could have missed. Nothing that was sent and not answered is under way when the pass begins, nor when
  the verification does (`rekey.runner.quiet`).
* A freeze that a killed run left behind is no state to stay in: the next run starts the cutover again, or
  goes back.
* Undo copies what was written to the target since cutover back to the source, first as a check that writes
  nothing, then for real; nothing written after cutover is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from rekey.copy.back import BackPropagator
from rekey.copy.delta import earlier, fresh_second
from rekey.copy.sweep import gone
from rekey.core.clock import ticks_of
from rekey.core.concurrency import for_each
from rekey.errors import Findings, GateClosed, RowRefused
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, Row, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.control import ControlRow
from rekey.runner.capture import catch_up
from rekey.runner.client_barrier import closed_by_clients
from rekey.runner.freeze import cross, leave_freeze
from rekey.runner.phases.backfill import swept_rows
from rekey.runner.phases.operation import Counters, Operation
from rekey.runner.quiet import until_quiet
from rekey.runner.run import Run
from rekey.runner.verification import (
    closed_by_difference,
    closed_by_verification,
    last_number,
    verify_full,
    wrong,
)
from rekey.state.models import WATERMARK
from rekey.status.facts import RETURNED_AFTER
from rekey.tables.base import Table
from rekey.verify.report import FullReport

FROZEN_AT = "frozen_at"
_NAMED = 20
"""How many rows a refusal names."""


async def gate(run: Run) -> list[str]:
    """Collect what keeps authority from moving to the target."""
    now = await run.control.read()
    if now is None:
        return ["the control row is gone from the restricted store"]
    if now.phase is ControlPhase.CUTOVER:
        return []
    reasons = closed_by_verification(run)
    if run.is_delta and not run.options.writers_stopped:
        reasons.append("nobody has confirmed that the application's writers are stopped (--writers-stopped)")
    if not run.is_delta:
        reasons += await closed_by_clients(run, now)
    return reasons


async def run(run: Run) -> Counters:
    """Freeze, prove or drain, move; on any failure go back to `dual_write`."""
    now = await run.control.read()
    if now is not None and now.phase is ControlPhase.CUTOVER:
        return {}
    await until_quiet(run)  # while writes go on: what was cut off before lands before the last pass
    if not run.is_delta:
        return await cross(run, ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER)
    if now is not None and now.phase is ControlPhase.DUAL_WRITE:
        await run.control.move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
    try:
        counters = await _prove_under_freeze(run)
    except Exception:
        await leave_freeze(run, ControlPhase.DUAL_WRITE)
        raise
    await run.control.move(ControlPhase.FREEZE, ControlPhase.CUTOVER)
    return counters


async def _prove_under_freeze(run: Run) -> Counters:
    frozen_at = await _freeze_time(run)
    caught = await catch_up(run, max_passes=1)
    swept = await swept_rows(run)
    await until_quiet(run)
    report = await verify_full(run)
    if report.findings:
        raise Findings(
            f"full verification under freeze found {wrong(report)} rows that differ",
            kept="both tables; the migration is back in `dual_write`, the source is the authority",
            hint=f"writers may go on; `rekey verify {run.script_id} --mode full` names the rows",
        )
    strays = await _newer_than(run, frozen_at)
    if strays:
        raise GateClosed(
            "cutover",
            [f"{len(strays)} source rows were written after the freeze: {', '.join(strays[:_NAMED])}"],
            hint="a writer is still running: find it, stop it, and cut over again",
        )
    return {
        "rows_changed_by_last_pass": caught.changed,
        "rows_swept": swept,
        "rows_compared": report.source_rows,
    }


async def _freeze_time(run: Run) -> str:
    """Choose the freeze time and wait until it is over; keep it, `retire` compares with it."""
    frozen_at = await fresh_second(run.tables.server_time, run.clock)
    run.state.set_fact(run.script_id, FROZEN_AT, frozen_at)
    return frozen_at


async def _newer_than(run: Run, moment: str) -> list[str]:
    """Return the safe ids of source rows written at or after `moment`."""
    found = []
    async for row in written_since(run.source, moment):
        run.check()
        found.append(run.ids.short(run.source.name, key_of(row)))
    return found


async def written_since(table: Table, moment: str) -> AsyncIterator[Row]:
    """Iterate over the rows (key, ETag and Timestamp) written at or after `moment`, to the 100 ns.

    A service may filter more coarsely (Azurite: by the millisecond) and return rows that are a little older.
    """
    async for page in table.scan(modified_from=moment, select=[PARTITION_KEY, ROW_KEY]):
        for row in page.rows:
            if ticks_of(row[TIMESTAMP]) >= ticks_of(moment):
                yield row


async def undo(run: Run) -> None:
    """Go back to `dual_write` with everything the target has seen since cutover."""
    now = await run.control.read()
    if now is None or now.phase is ControlPhase.DUAL_WRITE:
        return
    if not run.declared.migration.reverse:
        raise GateClosed(
            "dual_write",
            ["the declaration says reverse=False: there is no way back after cutover"],
            hint="stay with the target and go on to `complete`",
        )
    if not run.is_delta:
        reasons = await closed_by_difference(run)
        if reasons:
            raise GateClosed(
                "dual_write",
                reasons,
                hint=f"when nothing differs any more: `rekey rollback {run.script_id}` again",
            )
        # Before anything moves: what was verified until now says nothing about what comes back.
        run.state.set_fact(run.script_id, RETURNED_AFTER, str(last_number(run)))
        await cross(run, ControlPhase.CUTOVER, ControlPhase.DUAL_WRITE)
        return
    await _undo_delta(run, now)


async def _undo_delta(run: Run, now: ControlRow) -> None:
    """Copy back what was written to the target since cutover."""
    if not run.options.writers_stopped:
        raise GateClosed(
            "dual_write",
            ["nobody has confirmed that the application's writers are stopped (--writers-stopped)"],
            hint="stop whatever writes to the target, then `rekey rollback --writers-stopped`",
        )
    since = _written_since(run, now)
    back = BackPropagator(run.propagator)
    await _refuse_what_cannot_go_back(run, back, since)
    if now.phase is ControlPhase.CUTOVER:
        await run.control.move(ControlPhase.CUTOVER, ControlPhase.FREEZE)
    try:
        await _copy_back(run, back, since)
        await until_quiet(run)
        report = await verify_full(run)
        if report.findings and _only_index_tables(run, report):
            # The application kept the index tables itself; from now on they follow the source again.
            await verify_full(run, repair=True)
            await until_quiet(run)
            report = await verify_full(run)
        if report.findings:
            raise Findings(
                f"after copying back, {wrong(report)} rows differ between source and targets",
                kept="the target is still the authority; nothing was deleted from it",
                hint="run `rekey rollback` again; if it stays so, see the runbook on divergences",
            )
    except Exception:
        await leave_freeze(run, ControlPhase.CUTOVER)
        raise
    run.state.set_fact(run.script_id, WATERMARK, await run.tables.server_time())
    await run.control.move(ControlPhase.FREEZE, ControlPhase.DUAL_WRITE)


def _written_since(run: Run, now: ControlRow) -> str:
    """Return a moment before the application's first write to the target.

    The freeze time is of the same account's clock; the control row's is of the restricted account's.
    """
    frozen_at = run.state.get_fact(run.script_id, FROZEN_AT)
    return earlier(frozen_at or now.cutover_at or now.updated_at, run.config.gates.margin_s)


def _only_index_tables(run: Run, report: FullReport) -> bool:
    """Tell whether every divergence is in an index table; the main target is the authority: never mended."""
    listed = report.found.listed
    indexes = {table.name for table in run.targets[1:]}
    return len(listed) == wrong(report) and all(divergence.table in indexes for divergence in listed)


async def _refuse_what_cannot_go_back(run: Run, back: BackPropagator, since: str) -> None:
    """Look at every changed target row before anything is written."""
    refused: list[RowRefused] = []

    async def look(row: Row) -> None:
        try:
            await back.check(row)
        except RowRefused as problem:
            refused.append(problem)

    with run.progress.task("check the way back") as advance:
        async for page in run.targets[0].scan(modified_from=since):
            run.check()
            limit = run.config.limits.concurrency
            await for_each(await back.differing(page.rows, limit=limit), look, limit=limit)
            advance(len(page.rows))
    if refused:
        listed = "; ".join(f"{problem.row_id}: {problem.problem}" for problem in refused[:_NAMED])
        raise GateClosed(
            "dual_write",
            [f"{len(refused)} target rows cannot go back: {listed}"],
            hint=refused[0].cure,
        )


async def _copy_back(run: Run, back: BackPropagator, since: str) -> None:
    """Copy changed and new target rows to the source, then remove what was deleted in the target."""

    async def settle(source_key: EntityKey) -> None:
        if await back.propagate(source_key):
            # The index tables follow the source again.
            await run.propagator.propagate(source_key)

    async def bring(row: Row) -> None:
        await settle(await back.claim_new(row))

    with run.progress.task("copy back") as advance:
        async for page in run.targets[0].scan(modified_from=since):
            run.check()
            limit = run.config.limits.concurrency
            await for_each(await back.differing(page.rows, limit=limit), bring, limit=limit)
            advance(len(page.rows))
    with run.progress.task("copy deletes back") as advance:
        portions = gone(run.targets[0], run.ids, run.mapping, "r", advance=advance, check=run.check)
        async with aclosing(portions):
            async for portion in portions:
                await for_each(portion, settle, limit=run.config.limits.concurrency)


CUTOVER = Operation(Phase.CUTOVER, gate=gate, run=run, undo=undo)
