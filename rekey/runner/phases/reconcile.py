"""reconcile: catch up with the source, sweep, and compare everything.

Rules kept here:

* The phase is done only when a full verification found no row that differs, stable or unsettled; otherwise it
  stays open and the error says how many rows differ (`rekey verify` names them, by safe id).
* Capture "delta": one comparison reads source and targets, brings what is missing, extra or changed by
  propagate, and compares that again (ADR 0035). It is pass, sweep and verification at once.
* Where too much differs to be brought row by row, and with workers, delta passes bring it first. They are
  repeated until one finds few changes, and at most `MAX_PASSES` times: a source that changes faster than it
  can be followed is not followed for ever. The watermark moves only after a whole pass. Only the sweep after
  the passes finds deleted rows.
* Capture "dual-write": there is nothing to catch up with; the journal is swept before and during the
  comparison.
"""

from __future__ import annotations

from contextlib import suppress

from rekey.copy.delta import delta_pass
from rekey.errors import Findings, StateUnusable
from rekey.phases import Phase
from rekey.protocol.rules import SOURCE
from rekey.runner.clients import settle_again
from rekey.runner.phases.backfill import swept_rows
from rekey.runner.run import Counters, Operation, Run, open_gate
from rekey.runner.verification import verify_full, wrong
from rekey.state.models import WATERMARK
from rekey.verify.full import TooMany
from rekey.verify.report import FullReport

MAX_PASSES = 5
_LITTLE = 100
"""A pass that changed at most this many rows is the last: another would not be worth its scan."""


async def catch_up(run: Run, *, max_passes: int = MAX_PASSES) -> Counters:
    """Make delta passes until one changes few rows, then sweep."""
    changed = 0
    for number in range(1, max_passes + 1):
        watermark = run.state.get_fact(run.script_id, WATERMARK)
        if watermark is None:
            raise StateUnusable(
                "the state file knows no watermark for this migration",
                hint="run `rekey apply` again: it copies everything again, which is safe",
            )
        with run.progress.task(f"delta pass {number}") as advance:
            result = await delta_pass(
                run.source,
                run.copier,
                server_time=run.tables.server_time,
                clock=run.clock,
                watermark=watermark,
                margin_seconds=run.config.gates.margin_s,
                size=run.window,
                stop_requested=run.stop.requested,
                advance=advance,
            )
        if not result.whole:
            run.stop.check()
        run.check()
        run.state.set_fact(run.script_id, WATERMARK, result.started_at)
        now = result.copied.inserted + result.copied.changed
        changed += now
        if now <= _LITTLE:
            break
    return {"passes": number, "rows_changed_by_passes": changed, "rows_swept": await swept_rows(run)}


async def compare(run: Run) -> tuple[Counters, FullReport]:
    """Bring the targets up to date and prove it (capture "delta"): by one comparison that brings.

    With workers, and where more differs than is worth bringing row by row, passes and a sweep bring it in
    bulk first, and a comparison follows that brings nothing.
    """
    if run.factory is None:
        with suppress(TooMany):
            report = await verify_full(run, brings=True)
            return {"rows_brought": report.found.brought}, report
    counters = await catch_up(run)
    return counters, await verify_full(run)


async def run(run: Run) -> Counters:
    """Compare everything, and bring it up to date (capture "delta") or settle intents first. Raises Findings
    when rows differ."""
    if run.is_delta:
        counters, report = await compare(run)
    else:
        counters, report = {"intents_settled": await settle_again(run, side=SOURCE)}, await verify_full(run)
    if report.findings:
        raise Findings(
            f"full verification found {wrong(report)} rows that differ",
            kept="both tables as they are; the migration stays in `reconcile`",
            hint=f"`rekey verify {run.script_id} --mode full` names them, `--repair` mends them;"
            " then `rekey apply` again",
        )
    return {**counters, "rows_compared": report.source_rows}


async def again(run: Run) -> int:
    """Catch up with later changes (capture "delta") or settle intents; return how many rows or intents."""
    if not run.is_delta:
        return await settle_again(run, side=SOURCE)
    counters, _ = await compare(run)
    return sum(counters[name] for name in counters.keys() - {"passes"})


async def undo(_run: Run) -> None:
    """Do nothing: the phase only made the targets equal to the source."""


RECONCILE = Operation(Phase.RECONCILE, gate=open_gate, run=run, undo=undo, again=again)
