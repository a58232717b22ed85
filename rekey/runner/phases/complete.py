"""complete: the source is no longer written; from here there is no way back.

Rules kept here:

* Only from `cutover`, and only when the operator names the phase.
"""

from __future__ import annotations

from rekey.errors import GateClosed
from rekey.phases import ControlPhase, Phase
from rekey.runner.phases.operation import Counters, Operation
from rekey.runner.run import Run


async def gate(run: Run) -> list[str]:
    """Only a migration that is cut over can be completed."""
    now = await run.control.read()
    if now is None or now.phase not in (ControlPhase.CUTOVER, ControlPhase.COMPLETE):
        return [f"the control row says `{now.phase if now else 'nothing'}`, not `cutover`"]
    return []


async def run(run: Run) -> Counters:
    """Move the control row; the retention period begins."""
    now = await run.control.read()
    if now is not None and now.phase is ControlPhase.CUTOVER:
        await run.control.move(ControlPhase.CUTOVER, ControlPhase.COMPLETE)
    return {}


async def undo(_run: Run) -> None:
    """Refuse: what was written after `complete` is not in the source."""
    raise GateClosed(
        "cutover",
        ["the migration is complete: the source has not been written since"],
        hint="to change keys again, write a new migration script from today's table",
    )


COMPLETE = Operation(Phase.COMPLETE, gate=gate, run=run, undo=undo)
