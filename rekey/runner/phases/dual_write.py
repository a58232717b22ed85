"""dual_write: from here on changes of the source reach the targets."""

from __future__ import annotations

from rekey.core.clock import format_ticks
from rekey.phases import ControlPhase
from rekey.protocol.rules import SOURCE
from rekey.runner.clients import (
    announce_to_others,
    closed_by_others,
    forget_ended,
    move,
    read_clients,
    settle_again,
    unannounced_until,
)
from rekey.runner.run import Counters, Run
from rekey.state.models import WATERMARK
from rekey.status.facts import LATE_UNTIL
from rekey.status.notes import note


async def gate(run: Run) -> list[str]:
    """Return as a reason the clients that would refuse to write from here on; none in capture "delta"."""
    if run.is_delta:
        return []
    return [*(await read_clients(run)).closed_by_refusing(), *await closed_by_others(run)]


async def run(run: Run) -> Counters:
    """Store the first watermark (capture "delta"), then move the control row to `dual_write`."""
    if run.is_delta:
        await _begin_watermark(run)
    now = await run.control.read()
    if now is not None and now.phase is ControlPhase.SOURCE:
        await forget_ended(run)
        await announce_to_others(run, now)
        await move(run, ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)
    if run.is_delta:
        return {}
    # Earlier writes of clients that were given up had no intents: only a verification that begins when no
    # such client can send requests any more finds them.
    until = await unannounced_until(run, await run.control.read())
    run.state.set_fact(run.script_id, LATE_UNTIL, None if until is None else format_ticks(until))
    clients = len((await read_clients(run)).live)
    if not clients:
        note(run.progress, "unfollowed", {"script": run.script_id, "source": run.source.name})
    return {"clients": clients}


async def again(run: Run) -> int:
    """Store a watermark lost with the state file (capture "delta"), or settle intents; return how many."""
    if not run.is_delta:
        return await settle_again(run, side=SOURCE)
    await _begin_watermark(run)
    return 0


async def _begin_watermark(run: Run) -> None:
    """Store the first watermark if there is none, by the service's clock."""
    # Before the backfill reads its first row, so that a delta pass sees every change after it, and before the
    # control row moves, so that no later phase begins without one.
    if run.state.get_fact(run.script_id, WATERMARK) is None:
        run.state.set_fact(run.script_id, WATERMARK, await run.source_time())


async def undo(run: Run) -> None:
    """Move the control row back to `source` and remove the watermark."""
    now = await run.control.read()
    if now is not None and now.phase is ControlPhase.DUAL_WRITE:
        await move(run, ControlPhase.DUAL_WRITE, ControlPhase.SOURCE)
    run.state.set_fact(run.script_id, WATERMARK, None)
