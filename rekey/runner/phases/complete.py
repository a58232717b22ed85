"""complete: the source is no longer written; from here there is no way back.

Rules kept here:

* Only from `cutover`, and only when the operator names the phase.
* Nothing is copied any more: the keys of the checkpoints leave the state file.
* What the journal holds is settled before the control row moves, while the source still follows. An intent
  that could not be, and that the source cannot express any more, is given up after that and recorded: else
  no command could ever end it.
* Capture "dual-write": not before the last client of the old view has ended. The source is written until
  every client has acknowledged and the journal is drained; that moment is kept, `retire` compares with it.
"""

from __future__ import annotations

from rekey.copy.delta import fresh_second
from rekey.errors import Findings, GateClosed
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import TARGET
from rekey.runner.clients import (
    Deadline,
    drain,
    forget_ended,
    look,
    move,
    named,
    settle_again,
    settle_stale,
    unsettled_hint,
)
from rekey.runner.run import Counters, Operation, Run, until_quiet
from rekey.runner.verification import closed_by_difference

QUIET_AT = "quiet_at"
"""Fact: the service's time from which on no client and no runner writes to the source."""


async def gate(run: Run) -> list[str]:
    """Only a migration that is cut over can be completed."""
    now = await run.control.read()
    if now is None or now.phase not in (ControlPhase.CUTOVER, ControlPhase.COMPLETE):
        return [f"the control row says `{now.phase if now else 'nothing'}`, not `cutover`"]
    if run.is_delta:
        return []
    clients = await look(run)
    old = [row for row in clients.live if row.view == "old"]
    if not old:
        return []
    return [f"clients still use the old view, which `complete` ends: {named(old, clients.now)}"]


async def run(run: Run) -> Counters:
    """Move the control row; the retention period begins.

    Raises:
        GateClosed: rows are known to differ, or intents cannot be settled.
    """
    now = await run.control.read()
    await until_quiet(run)
    follows = not run.is_delta and run.declared.migration.reverse
    if now is not None and now.phase is ControlPhase.CUTOVER:
        if follows:  # what can be settled now, while the source still follows, can later only be given up
            reasons = await closed_by_difference(run)
            settled = await settle_stale(run, TARGET)
            if settled.failed:
                hint = unsettled_hint(run)
                reasons.append(f"{settled.failed} intents of the journal cannot be settled; {hint}")
            if reasons:
                again = f"`rekey apply {run.script_id} --to complete` again"
                raise GateClosed(Phase.COMPLETE, reasons, hint=f"when that is mended: {again}")
        await move(run, ControlPhase.CUTOVER, ControlPhase.COMPLETE)
    counters: Counters = {}
    if not run.is_delta:
        counters["intents_settled"] = await _drain(run) if follows else 0
        # What is left was settled and kept, or is from before a cutover after which nothing followed.
        await run.journal.clear()
        await forget_ended(run)
        run.state.set_fact(run.script_id, QUIET_AT, await fresh_second(run.tables.server_time, run.clock))
    run.state.forget_keys(run.script_id)
    return counters


async def _drain(run: Run) -> int:
    """Finish what was announced before the end; return how many intents were settled.

    What the source cannot express any more is given up, and recorded: since `complete` it need not.
    """

    async def give_up(error: Findings) -> None:
        run.state.audit("intent-given-up", run.script_id, {"error": type(error).__name__, "what": error.what})
        run.progress.note(f"{run.script_id}: given up, the source keeps an older row: {error.what}")

    return await drain(run, TARGET, Deadline(run.clock, run.config.gates.clients_timeout_s), give_up)


async def undo(_run: Run) -> None:
    """Refuse: what was written after `complete` is not in the source."""
    raise GateClosed(
        "cutover",
        ["the migration is complete: the source has not been written since"],
        hint="to change keys again, write a new migration script from today's table",
    )


async def again(run: Run) -> int:
    """Settle what is left; where nothing followed the target, it is of no use any more."""
    if run.declared.migration.reverse:
        return await settle_again(run, side=TARGET)
    if not run.is_delta:
        await run.journal.clear()  # a run that was cut off did not get that far
    return 0


COMPLETE = Operation(Phase.COMPLETE, gate=gate, run=run, undo=undo, again=again)
