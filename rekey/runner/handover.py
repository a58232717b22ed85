"""The handover of index tables and secondary rows to the application after `complete` (ADR 0046). Until then
rekey's clients maintain them."""

from __future__ import annotations

from rekey.errors import GateClosed
from rekey.evidence.log import make_checkpoint
from rekey.next_steps import next_step
from rekey.phases import ControlPhase
from rekey.protocol.control import Maintainer
from rekey.runner import clients
from rekey.runner.phases.complete import QUIET_AT, end_following
from rekey.runner.refusals import refusal
from rekey.runner.run import Counters, Run
from rekey.runner.session import Session
from rekey.runner.verification import handover_closed_by_verification
from rekey.state.audit import HANDED_OVER
from rekey.status.reasons import reason
from rekey.tables.allowance import while_allowed


def hand_over(session: Session, script_id: str) -> Counters:
    """End the clients' maintenance of a completed migration's index tables, and begin retention; return
    figures. The same call again finishes a handover that was cut off. It cannot be rolled back: later rows
    may be unknown to the mapping.

    Raises:
        Refused: it is not complete, or has nothing to hand over; or clients did not follow in time.
        GateClosed: rows are not known to be right, or intents cannot be settled.
    """
    run = session.resume(script_id)

    async def work() -> Counters:
        with while_allowed(run.still_alone):
            return await _hand_over(run)

    counters = session.do(work())
    make_checkpoint(session.state, session.signer, f"{script_id}: handed over", session.progress)
    return counters


async def _hand_over(run: Run) -> Counters:
    now, name = await run.control.read(), run.script_id
    if now is None or now.phase not in (ControlPhase.COMPLETE, ControlPhase.RETIRED):
        raise refusal("hand-over-in-phase", script=name, phase="nothing" if now is None else now.phase)
    if now.maintainer is None:
        raise refusal("nothing-to-hand-over", script=name)
    is_repeated = not now.maintained
    if not is_repeated:
        await clients.until_quiet(run)
        await clients.wait_for_present(run)
        reasons = handover_closed_by_verification(run, now)
        reasons += await clients.closed_by_intents(run)
        if reasons:
            step = next_step("hand-over", script=name)
            raise GateClosed("handover", reasons, hint=reason("once-mended", step=step))
        now = await run.control.hand_over()
    elif now.phase is ControlPhase.RETIRED or run.state.get_fact(name, QUIET_AT) is not None:
        return {}
    # Clients acknowledge, then the journal is drained: after that nothing of rekey writes an index row, and
    # nothing writes the source.
    followed = await clients.wait_for_clients(run, now)
    counters = {"clients": followed, **await end_following(run, now if is_repeated else None)}
    details = {"maintainer": Maintainer.APPLICATION, "at": now.handed_over_at, "counters": counters}
    run.state.audit(HANDED_OVER, name, details)
    return counters
