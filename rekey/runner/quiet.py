"""Waiting until nothing can take effect any more that a runner or a worker has sent.

Rules kept here:

* A request that was sent and not answered takes effect within `[gates] margin`, or never. So nothing that
  relies on what the tables hold (a sweep, a move of the authority, a way back, dropping tables) begins while
  one that was left open, or whose sender was cut off, is younger than that.
* What this process has left open it knows by its own clock, which only rises. What earlier runners and
  workers may have under way stands in the restricted store, by the service's clock (`rekey.protocol.term`).
"""

from __future__ import annotations

from rekey.core.clock import Clock
from rekey.errors import ServiceError
from rekey.protocol.term import Term
from rekey.runner.run import Run
from rekey.tables.base import Accounts

_LOOK_S = 1.0


async def until_quiet(run: Run) -> None:
    """Return when nothing can take effect any more that was sent before; at once if all was answered."""
    term, margin_s = Term(run.restricted, run.script_id), run.config.gates.margin_s
    accounts = Accounts(run.tables, run.restricted)
    theirs = await term.left(margin_s)
    seconds = max(theirs, open_s(accounts, run.clock, margin_s))
    if seconds:
        run.progress.note(
            f"{run.script_id}: waiting {seconds:.0f} s: what was sent and not answered may still take effect"
        )
    if theirs:
        await term.wait(margin_s, run.clock, run.check)
    while (left := open_s(accounts, run.clock, margin_s)) > 0:
        run.check()
        await run.clock.sleep(min(_LOOK_S, left))


def open_s(accounts: Accounts, clock: Clock, margin_s: float) -> float:
    """Return for how many seconds more something may take effect that this process has left open."""
    opened = [at for at in (accounts.tables.last_open, accounts.restricted.last_open) if at is not None]
    return max(0.0, max(opened) + margin_s - clock.rising()) if opened else 0.0


async def hand_over(run: Run) -> bool:
    """Tell whoever comes next what this process has left open; False if that could not be said."""
    if not open_s(Accounts(run.tables, run.restricted), run.clock, run.config.gates.margin_s):
        return True
    try:
        await Term(run.restricted, run.script_id).extend(await run.restricted.server_time())
    except ServiceError:
        return False
    return True
