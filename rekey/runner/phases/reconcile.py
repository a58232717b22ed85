"""reconcile: catch up with the source, sweep, and compare everything.

Rules kept here:

* The phase is done only when a full verification found no row that differs, stable or unsettled; otherwise it
  stays open and the error says how many rows differ (`rekey verify` names them, by safe id).
* Capture "delta": passes are repeated until one finds few changes, and at most `MAX_PASSES` times: a source
  that changes faster than it can be followed is not followed for ever. The watermark moves only after a whole
  pass. Only the sweep after the passes finds deleted rows.
* Capture "dual-write": there is nothing to catch up with; the journal is swept before and during the
  comparison.
"""

from __future__ import annotations

from rekey.copy.delta import delta_pass
from rekey.errors import Findings, StateUnusable
from rekey.phases import Phase
from rekey.protocol.rules import SOURCE
from rekey.runner.clients import settle_again
from rekey.runner.phases.backfill import swept_rows
from rekey.runner.run import Counters, Operation, Run, open_gate
from rekey.runner.verification import verify_full, wrong
from rekey.state.models import WATERMARK

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


async def run(run: Run) -> Counters:
    """Catch up (capture "delta") or settle intents, then verify. Raises Findings when rows differ."""
    if run.is_delta:
        counters = await catch_up(run)
    else:
        counters = {"intents_settled": await settle_again(run, side=SOURCE)}
    report = await verify_full(run)
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
    caught = await catch_up(run)
    return caught["rows_changed_by_passes"] + caught["rows_swept"]


async def undo(_run: Run) -> None:
    """Do nothing: the phase only made the targets equal to the source."""


RECONCILE = Operation(Phase.RECONCILE, gate=open_gate, run=run, undo=undo, again=again)
