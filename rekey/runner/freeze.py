"""The freeze of capture "dual-write": authority passes from one side to the other, in either direction.

Rules kept here (ADR 0019):

* Whatever may take long is done while writes go on: clients that went silent are waited for, old intents are
  settled. Under freeze there is no scan of a table.
* Under freeze: every live client acknowledges (from then on nobody begins a write), the journal is drained,
  and only then does the row move on. The last intent is gone, so every replica says what its authority says.
* Without a live client, or when none was there at the last verification, the journal proves nothing: then all
  is compared under freeze. Nobody waits for it, or the operator has said that nobody writes.
* A freeze that is not drained within `[gates] freeze_timeout`, or that fails in any other way, is left to
  where it came from; nothing is lost by it, and it is said what it waited for.
* A freeze that a killed runner left behind is left the same way by the next command.
"""

from __future__ import annotations

from rekey.errors import Findings, GateClosed, Moved, RekeyError, ServiceError
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow
from rekey.protocol.rules import authority
from rekey.runner.client_barrier import Deadline, wait_for_clients, wait_until_heard
from rekey.runner.intents import drain, settle_stale, unsettled_hint
from rekey.runner.run import Run
from rekey.runner.verification import unfollowed, verify_full, wrong


async def cross(run: Run, start: ControlPhase, end: ControlPhase) -> dict[str, int]:
    """Move the authority from the side of `start` to the side of `end`, through a freeze.

    Args:
        run: the migration, capture "dual-write".
        start: where the control row is: `dual_write` or `cutover`.
        end: where it is to be: the other one.

    Raises:
        GateClosed: intents cannot be settled; nothing was frozen.
        Findings: there is no client that vouches for it, and rows differ.
        Refused: clients did not follow, or the journal was not drained; the row is in `start` again (or, if
            clients did not follow at the very end, in `end`).
    """
    side = authority(start)
    control = await run.control.read()
    if side is None or control is None or control.phase is not start:
        raise Moved(
            f"the control row of {run.script_id} does not say `{start}` any more",
            kept="everything; nothing was changed",
            hint=f"`rekey status {run.script_id}` shows where the migration is",
        )
    await wait_until_heard(run, control)
    settled = await settle_stale(run, side)
    if settled.failed:
        raise GateClosed(
            end,
            [f"{settled.failed} intents of the journal cannot be settled"],
            hint=unsettled_hint(run),
        )
    deadline = Deadline(run.clock, run.config.gates.freeze_timeout_s)
    frozen = await run.control.move(start, ControlPhase.FREEZE)
    try:
        clients = await wait_for_clients(run, frozen, deadline)
        drained = await drain(run, side, deadline)
        if not clients or (end is ControlPhase.CUTOVER and unfollowed(run)):
            await _prove(run)
        run.check()
        after = await run.control.move(ControlPhase.FREEZE, end)
    except Exception as error:
        await _give_up(run, frozen, start, error, deadline)
        raise
    frozen_ms = round(deadline.elapsed_s * 1000)
    await wait_for_clients(run, after)
    counters = {
        "clients": clients,
        "intents_settled": settled.settled + drained,
        "freeze_ms": frozen_ms,
        "followed_ms": round(deadline.elapsed_s * 1000),
    }
    run.state.audit("freeze", run.script_id, {"to": end, **counters})
    return counters


async def _prove(run: Run) -> None:
    """Compare everything; raise Findings when rows differ."""
    report = await verify_full(run)
    if report.findings:
        raise Findings(
            f"full verification under freeze found {wrong(report)} rows that differ",
            kept="both tables",
            hint="whoever wrote them did not write through a client;"
            f" `rekey verify {run.script_id} --mode full --repair` mends them, then verify again and run the"
            " same command again",
        )


async def _give_up(
    run: Run, frozen: ControlRow, back_to: ControlPhase, error: Exception, deadline: Deadline
) -> None:
    """Leave the freeze, and say in the error that it was left."""
    left = await leave_freeze(run, back_to, only=frozen.move_id)
    run.state.audit(
        "freeze-given-up",
        run.script_id,
        {"to": back_to, "error": type(error).__name__, "freeze_ms": round(deadline.elapsed_s * 1000)},
    )
    if left and isinstance(error, RekeyError):
        error.kept = f"{error.kept or 'everything'}; the migration is back in `{back_to}`, and writes go on"


async def leave_freeze(run: Run, back_to: ControlPhase, *, only: str = "") -> bool:
    """Leave a freeze the way it was entered; tell whether the row was moved.

    If the service fails now, the next run does it.

    Args:
        run: the migration.
        back_to: where the freeze came from.
        only: the id of the move that froze: a freeze of another runner is not ours to leave.
    """
    try:
        now = await run.control.read()
        if now is None or now.phase is not ControlPhase.FREEZE or (only and now.move_id != only):
            return False
        await run.control.move(ControlPhase.FREEZE, back_to)
    except ServiceError:
        run.progress.note("the control row still says `freeze`; the next `rekey` command on it puts it back")
        return False
    return True


async def leave_old_freeze(run: Run, frozen: ControlRow) -> ControlRow:
    """Leave a freeze that a run which was cut off left behind; return the row as moved."""
    back_to = frozen.came_from or ControlPhase.DUAL_WRITE
    after = await run.control.move(ControlPhase.FREEZE, back_to)
    run.progress.note(f"{run.script_id}: left the freeze of a run that was cut off; back in `{back_to}`")
    return after
