"""complete: the old view ends, rollback is no longer possible, and the source is no longer written. With
index tables or secondary rows in capture "dual-write", clients go on as in `cutover` until the handover
(`rekey.runner.handover`), so that these rows are always maintained by somebody."""

from __future__ import annotations

from rekey.client.reading import LeaseSettings
from rekey.copy.delta import fresh_second
from rekey.core.clock import later, ticks_of
from rekey.errors import Findings, GateClosed
from rekey.phases import ControlPhase, Phase
from rekey.protocol.control import ControlRow
from rekey.protocol.registry import SAFETY_S
from rekey.protocol.rules import TARGET
from rekey.runner import clients
from rekey.runner.clients import Deadline
from rekey.runner.remaining import closed_by_emptied, closed_by_tables
from rekey.runner.run import Counters, Run, asks_again, of_member
from rekey.runner.verification import closed_by_difference, last_number
from rekey.status.facts import COMPLETED_AFTER
from rekey.status.notes import note
from rekey.status.reasons import reason

# Fact: the service's time from which on no client and no runner writes to the source.
QUIET_AT = "quiet_at"


async def gate(run: Run) -> list[str]:
    """Return why the migration cannot be completed: it is not cut over, or clients, of it or of others,
    still write the source."""
    now = await run.control.read()
    if now is None or now.phase not in (ControlPhase.CUTOVER, ControlPhase.COMPLETE):
        return [reason("other-phase", phase=now.phase if now else "nothing", needed=ControlPhase.CUTOVER)]
    reasons = await closed_by_tables(run, authority=run.targets[0])
    if run.is_delta or reasons:
        return reasons
    reasons = await _closed_by_clients(run, now)
    # Without `reverse` the source is not current any more.
    is_current = now.phase is ControlPhase.CUTOVER and run.mapper.reversible
    return reasons or (await closed_by_emptied(run) if is_current else [])


async def _closed_by_clients(run: Run, now: ControlRow) -> list[str]:
    """Return as reasons the clients that still use the old view, and those of other migrations that write the
    source."""
    reasons: list[str] = []
    if now.phase is ControlPhase.CUTOVER:
        # What they write of this part would be over with the source.
        reasons = await clients.closed_by_others(run)
    seen = await clients.read_clients(run)
    old = [row for row in seen.live if row.view == "old"]
    if old and run.declared.migration.where is not None:
        # They go on writing the rows beside the part, which this migration does not end.
        values = {"source": run.source.name, "clients": clients.named(old, seen.now)}
        note(run.progress, "old-view-beside", {"script": run.script_id, **values})
        return reasons
    return [*reasons, *([reason("old-view", clients=clients.named(old, seen.now))] if old else [])]


async def run(run: Run) -> Counters:
    """Move the control row; the retention period begins.

    Raises:
        GateClosed: rows are known to differ, or intents cannot be settled.
    """
    now = await run.control.read()
    await clients.until_quiet(run)
    if now is not None and now.phase is ControlPhase.CUTOVER:
        for member in run.run_group:
            with of_member(member):
                # Of a group all members are settled before all move.
                await _settle_before(member)
        for member in run.run_group:
            if member.declared.migration.is_maintained:
                member.state.set_fact(member.script_id, COMPLETED_AFTER, str(last_number(member)))
                await member.control.keep_maintaining()
        await clients.move(run, ControlPhase.CUTOVER, ControlPhase.COMPLETE)
    now = await run.control.read()
    counters = {} if now is not None and now.maintained else await end_following(run)
    # Nothing is copied after this: the state file needs no keys of checkpoints.
    run.state.forget_keys(run.script_id)
    return counters


async def end_following(run: Run, cut_off: ControlRow | None = None) -> Counters:
    """Settle what was announced while replicas followed, once every client has acknowledged that nothing
    follows any more; record since when the source is not written, with which `retire` compares rows.
    `cut_off`: the control row, where an earlier run moved it and was cut off, or its state file is lost."""
    if run.is_delta:
        return {}
    counters = {"intents_settled": await _drain(run) if run.declared.migration.reverse else 0}
    # The remaining intents are settled and kept, or (without `reverse`) the source does not follow.
    await run.journal.clear()
    await clients.forget_ended(run)
    quiet_at = await fresh_second(run.source_time, run.clock)
    if cut_off is not None:
        # A row that somebody has written in the meantime must not count as older.
        quiet_at = min(quiet_at, quiet_by(cut_off), key=ticks_of)
    run.state.set_fact(run.script_id, QUIET_AT, quiet_at)
    return counters


def quiet_by(now: ControlRow) -> str:
    """Return the time from which on no client writes to the source, by the control row alone."""
    # Every client has acknowledged by now; none could take longer than this.
    settings = LeaseSettings()
    longest = settings.lease_s + settings.longest_operation_s + SAFETY_S
    return later(now.ended_at or now.updated_at, longest)


async def _settle_before(run: Run) -> None:
    """Settle all intents before the move: after it one that fails can only be given up."""
    await clients.until_quiet(run)
    await clients.wait_for_present(run)
    if run.is_delta or not run.declared.migration.reverse:
        return
    reasons = await closed_by_difference(run)
    reasons += await clients.closed_by_intents(run)
    if reasons:
        raise GateClosed(Phase.COMPLETE, reasons, hint=asks_again(run, Phase.COMPLETE))


async def _drain(run: Run) -> int:
    """Settle the intents announced before the move; return how many were removed."""

    # After `complete` the source need not follow. Kept, an intent whose row the source cannot express could
    # never be ended by any command.
    async def give_up(error: Findings) -> None:
        run.state.audit("intent-given-up", run.script_id, {"error": type(error).__name__, "what": error.what})
        note(run.progress, "intent-given-up", {"script": run.script_id, "what": error.what})

    return await clients.drain(run, TARGET, Deadline(run.clock, run.config.gates.clients_timeout_s), give_up)


async def undo(_run: Run) -> None:
    """Raise GateClosed: rows written after `complete` are not in the source."""
    raise GateClosed("cutover", [reason("complete")], hint=reason("write-new-script"))


async def again(run: Run) -> int:
    """Settle the remaining intents; without `reverse` no replica follows, and they are removed. End what an
    earlier run began that was cut off after the move, or a handover."""
    now = await run.control.read()
    ended = run.is_delta or run.state.get_fact(run.script_id, QUIET_AT) is not None
    if now is not None and not now.maintained and not ended:
        await clients.until_quiet(run)
        # Until each has acknowledged, an intent of its may announce a write that replicas follow.
        await clients.wait_for_present(run)
        return (await end_following(run, now)).get("intents_settled", 0)
    if run.declared.migration.reverse:
        return await clients.settle_again(run, side=TARGET)
    if not run.is_delta:
        await run.journal.clear()  # a run of the phase that was cut off may have left them
    return 0
