"""complete: the source is no longer written; from here there is no way back.

Rules kept here:

* Only from `cutover`, and only when the operator names the phase.
* Nothing is copied any more: the keys of the checkpoints leave the state file.
* Capture "dual-write": not before the last client of the old view has ended. The source is written until
  every client has acknowledged and the journal is drained; that moment is kept, `retire` compares with it.
"""

from __future__ import annotations

from rekey.delta.passes import fresh_second
from rekey.dualwrite.rules import TARGET
from rekey.errors import GateClosed
from rekey.phases import ControlPhase, Phase
from rekey.runner.following import Deadline, closed_by_old_view, forget_ended, move
from rekey.runner.intents import drain
from rekey.runner.phases.operation import Counters, Operation
from rekey.runner.run import Run

QUIET_AT = "quiet_at"
"""Fact: the service's time from which on no client and no runner writes to the source."""


async def gate(run: Run) -> list[str]:
    """Only a migration that is cut over can be completed."""
    now = await run.control.read()
    if now is None or now.phase not in (ControlPhase.CUTOVER, ControlPhase.COMPLETE):
        return [f"the control row says `{now.phase if now else 'nothing'}`, not `cutover`"]
    return [] if run.is_delta else await closed_by_old_view(run)


async def run(run: Run) -> Counters:
    """Move the control row; the retention period begins."""
    now = await run.control.read()
    if now is not None and now.phase is ControlPhase.CUTOVER:
        await move(run, ControlPhase.CUTOVER, ControlPhase.COMPLETE)
    counters = {} if run.is_delta else await _quiet(run)
    run.state.forget_keys(run.script_id)
    return counters


async def _quiet(run: Run) -> Counters:
    """Finish what was announced before the end; keep the moment from which on nobody writes the source."""
    if run.declared.migration.reverse:
        settled = await drain(run, TARGET, Deadline(run.clock, run.config.gates.clients_timeout_s))
    else:
        await run.journal.clear()  # nothing followed since cutover; what is left is from before it
        settled = 0
    await forget_ended(run)
    run.state.set_fact(run.script_id, QUIET_AT, await fresh_second(run.tables.server_time, run.clock))
    return {"intents_settled": settled}


async def undo(_run: Run) -> None:
    """Refuse: what was written after `complete` is not in the source."""
    raise GateClosed(
        "cutover",
        ["the migration is complete: the source has not been written since"],
        hint="to change keys again, write a new migration script from today's table",
    )


COMPLETE = Operation(Phase.COMPLETE, gate=gate, run=run, undo=undo)
