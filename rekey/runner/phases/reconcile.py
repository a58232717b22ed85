"""reconcile: catches up with the source, and compares everything. The phase is done when a full verification
finds no difference (capture "delta": ADR 0036)."""

from __future__ import annotations

from rekey.copy.delta import delta_pass, written_since
from rekey.copy.pipeline import Callbacks
from rekey.core.clock import TICKS_PER_SECOND, earlier, format_ticks, ticks_of
from rekey.next_steps import after_findings
from rekey.protocol.rules import SOURCE
from rekey.runner.clients import settle_again
from rekey.runner.phases.backfill import swept_rows
from rekey.runner.refusals import refusal
from rekey.runner.run import Counters, Run, open_gate
from rekey.runner.stop import ASSUMED_BRING_S, Measured, keep, measured, reading_s
from rekey.runner.verification import verify_full, wrong
from rekey.state.models import WATERMARK
from rekey.tables.sent import Overhead, overhead
from rekey.verify.full import TooMany
from rekey.verify.report import FullReport

# A source that changes faster than passes follow is not followed for ever.
MAX_PASSES = 5
# A pass that changed at most this many rows is the last: another is not worth its scan.
_LITTLE = 100
# Minimum repaired rows before the measured time per row counts.
_ENOUGH = 20


async def catch_up(run: Run, *, max_passes: int = MAX_PASSES) -> Counters:
    """Make delta passes until one changes few rows, then sweep: passes do not see deleted rows."""
    changed = 0
    for number in range(1, max_passes + 1):
        now = await bring_changes(run, number)
        changed += now
        if now <= _LITTLE:
            break
    return {"passes": number, "rows_changed_by_passes": changed, "rows_swept": await swept_rows(run)}


async def bring_changes(run: Run, number: int = 1) -> int:
    """Make a delta pass; return how many rows it changed."""
    with run.progress.task(f"delta pass {number}") as advance:
        result = await delta_pass(
            run.source,
            run.copier,
            server_time=run.source_time,
            clock=run.clock,
            since=earlier(_watermark(run), run.config.gates.margin_s),
            size=run.window,
            callbacks=Callbacks(stop_requested=run.stop.requested, advance=advance),
        )
    if not result.whole:
        run.stop.check()
    run.check()
    # Only after a whole pass.
    run.state.set_fact(run.script_id, WATERMARK, result.started_at)
    return result.copied.inserted + result.copied.changed


def _watermark(run: Run) -> str:
    watermark = run.state.get_fact(run.script_id, WATERMARK)
    if watermark is None:
        raise refusal("no-watermark", script=run.script_id)
    return watermark


async def compare(run: Run) -> tuple[Counters, FullReport]:
    """Bring the targets up to date and prove it (capture "delta"), by one comparison that repairs.

    With workers, and where too much differs to repair row by row, passes and a sweep do it in bulk first, and
    a comparison follows that repairs nothing.
    """
    if run.pool is not None:
        return await catch_up(run), await verify_full(run)
    try:
        report = await verify_full(run, propagate_first=True)
        return {"rows_brought": report.differences.propagated}, report
    except TooMany:
        with overhead(Overhead.CHANGES):
            return await catch_up(run), await verify_full(run)


async def follow(run: Run, *, passes: bool = True) -> tuple[Counters, FullReport]:
    """Compare, then make passes until the next would find little; store the estimate of the write downtime.
    `passes`: False when others make passes meanwhile."""
    since, began, paused_s = _watermark(run), run.clock.monotonic(), run.copier.throttle.paused_s()
    counters, report = await compare(run)
    took_s = run.clock.monotonic() - began - (run.copier.throttle.paused_s() - paused_s)
    repaired = _changed(counters)
    # Passes and a sweep before it would be made under freeze as well.
    read_s = min(took_s, reading_s(report)) if "rows_brought" in counters else took_s
    bring_s = (took_s - read_s) / repaired if repaired >= _ENOUGH else ASSUMED_BRING_S
    rows = report.source_rows + report.target_rows
    before_it = measured(run)
    if run.share < 1 and before_it is not None and before_it.rows:
        # Under freeze the full rate is used: as long as the last reading at the full rate.
        read_s = min(read_s, before_it.read_s * rows / before_it.rows)
    covered = (ticks_of(_watermark(run)) - ticks_of(since)) / TICKS_PER_SECOND
    waiting, look_s = await _written(run)
    for number in range(1, MAX_PASSES if passes else 1):
        if waiting <= _LITTLE:
            break
        with overhead(Overhead.CHANGES):
            passed = await bring_changes(run, number)
            counters["rows_changed_by_passes"] = counters.get("rows_changed_by_passes", 0) + passed
            before = waiting
            waiting, look_s = await _written(run)
        # The source changes as fast as it is followed.
        if waiting > before / 2:
            break
    open_s = (run.clock.ticks() - ticks_of(_watermark(run))) / TICKS_PER_SECOND
    at, changes_per_s = run.clock.ticks(), max(repaired / max(1.0, covered), waiting / max(1.0, open_s))
    keep(run, Measured(format_ticks(at), read_s, look_s, bring_s, waiting, changes_per_s, rows))
    return counters, report


async def _written(run: Run) -> tuple[int, float]:
    """Return how many rows were written since the last pass began, and the seconds that counting took."""
    began, rows = run.clock.monotonic(), 0
    async for _ in written_since(run.source, _watermark(run)):
        run.check()
        rows += 1
    return rows, run.clock.monotonic() - began


def _changed(counters: Counters) -> int:
    return sum(counters[name] for name in counters.keys() - {"passes"})


async def run(run: Run) -> Counters:
    """Catch up (capture "delta") or settle intents, then compare. Raises Findings when rows differ."""
    if run.is_delta:
        counters, report = await follow(run)
    else:
        counters, report = {"intents_settled": await settle_again(run, side=SOURCE)}, await verify_full(run)
    _require_equal(run, report)
    return {**counters, "rows_compared": report.source_rows}


def _require_equal(run: Run, report: FullReport) -> None:
    if report.findings:
        step = after_findings(run.script_id, run.source.name, report.as_json())
        raise refusal("rows-differ", rows=wrong(report), hint=step)


async def again(run: Run) -> int:
    """Catch up with later changes (capture "delta") or settle intents; return how many rows or intents.
    Raises Findings when rows differ that cannot be repaired."""
    if not run.is_delta:
        return await settle_again(run, side=SOURCE)
    counters, report = await follow(run)
    _require_equal(run, report)
    return _changed(counters)


async def undo(_run: Run) -> None:
    """Do nothing: the phase only made the targets equal to the source."""


gate = open_gate
