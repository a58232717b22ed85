"""reconcile: catch up with the source, sweep, and compare everything.

Rules kept here:

* The phase is done only when a full verification found no stable divergence; otherwise it stays open and
  the command says which rows differ, by safe id.
* Capture "dual-write": there is nothing to catch up with; the journal is swept before and beside the
  comparison.
"""

from __future__ import annotations

from rekey.errors import Findings
from rekey.phases import Phase
from rekey.protocol.rules import SOURCE
from rekey.runner.capture import catch_up
from rekey.runner.intents import sweep_journal
from rekey.runner.phases.backfill import swept_rows
from rekey.runner.phases.operation import Counters, Operation, open_gate
from rekey.runner.run import Run
from rekey.runner.verification import verify_full, wrong


async def run(run: Run) -> Counters:
    """Catch up, verify; raises Findings when rows differ."""
    counters = await _caught_up(run)
    report = await verify_full(run)
    if report.findings:
        raise Findings(
            f"full verification found {wrong(report)} rows that differ",
            kept="both tables as they are; the migration stays in `reconcile`",
            hint=f"`rekey verify {run.script_id} --mode full` names them, `--repair` mends them;"
            " then `rekey apply` again",
        )
    return {**counters, "rows_compared": report.source_rows}


async def _caught_up(run: Run) -> Counters:
    """Bring the targets up to date before they are compared."""
    if not run.is_delta:
        return {"intents_settled": (await sweep_journal(run, SOURCE)).settled}
    caught = await catch_up(run)
    return {
        "passes": caught.passes,
        "rows_changed_by_passes": caught.changed,
        "rows_swept": await swept_rows(run),
    }


async def undo(_run: Run) -> None:
    """Nothing to undo: the phase wrote only what the source says."""


RECONCILE = Operation(Phase.RECONCILE, gate=open_gate, run=run, undo=undo)
