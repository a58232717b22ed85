"""dual_write: from here on what changes in the source reaches the targets.

Rules kept here:

* Capture "delta": the watermark is read from the service's clock and stored before the first row is copied,
  so that what changes after it is seen again by a pass.
* Only then does the control row move: a later phase never begins without a watermark.
* Capture "dual-write": the row moves together with the clients; when the phase is done, all of them announce
  and propagate what they write.
"""

from __future__ import annotations

from functools import partial

from rekey.core.clock import format_ticks
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import SOURCE
from rekey.runner.clients import forget_ended, heard_of_until, look, move, settle_again
from rekey.runner.run import Counters, Operation, Run
from rekey.state.models import WATERMARK
from rekey.status.facts import LATE_UNTIL


async def gate(run: Run) -> list[str]:
    """Collect the clients that would refuse to write from here on."""
    return [] if run.is_delta else (await look(run)).closed_by_refusing()


async def begin_watermark(run: Run) -> None:
    """Store the first watermark if there is none: before the backfill reads its first row."""
    if run.state.get_fact(run.script_id, WATERMARK) is None:
        run.state.set_fact(run.script_id, WATERMARK, await run.tables.server_time())


async def run(run: Run) -> Counters:
    """Store the first watermark, then move the control row."""
    if run.is_delta:
        await begin_watermark(run)
    now = await run.control.read()
    if now is not None and now.phase is ControlPhase.SOURCE:
        await forget_ended(run)
        await move(run, ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)
    if run.is_delta:
        return {}
    # What clients that were given up wrote before had no intent: only a verification that begins when they
    # can be heard of no more finds it.
    until = await heard_of_until(run, await run.control.read())
    run.state.set_fact(run.script_id, LATE_UNTIL, None if until is None else format_ticks(until))
    clients = len((await look(run)).live)
    if not clients:
        run.progress.note(
            f"{run.script_id}: no client of the application is registered; what is written to"
            f" {run.source.name} now is not followed, and verification will find it"
        )
    return {"clients": clients}


async def undo(run: Run) -> None:
    """Stop following: the control row goes back to `source`, the watermark is forgotten."""
    now = await run.control.read()
    if now is not None and now.phase is ControlPhase.DUAL_WRITE:
        await move(run, ControlPhase.DUAL_WRITE, ControlPhase.SOURCE)
    run.state.set_fact(run.script_id, WATERMARK, None)


DUAL_WRITE = Operation(
    Phase.DUAL_WRITE, gate=gate, run=run, undo=undo, again=partial(settle_again, side=SOURCE)
)
