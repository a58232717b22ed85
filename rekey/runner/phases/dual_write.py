"""dual_write: from here on what changes in the source reaches the targets.

Rules kept here:

* Capture "delta": the watermark is read from the service's clock and stored before the first row is copied,
  so that whatever changes after it is seen again by a pass.
* Only then does the control row move: a later phase never begins without a watermark.
"""

from __future__ import annotations

from rekey.phases import ControlPhase, Phase
from rekey.runner.capture import WATERMARK, begin_watermark
from rekey.runner.phases.operation import Counters, Operation, open_gate
from rekey.runner.run import Run


async def run(run: Run) -> Counters:
    """Store the first watermark, then move the control row."""
    await begin_watermark(run)
    now = await run.control.read()
    if now is not None and now.phase is ControlPhase.SOURCE:
        await run.control.move(ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)
    return {}


async def undo(run: Run) -> None:
    """Stop following: the control row goes back to `source`, the watermark is forgotten."""
    now = await run.control.read()
    if now is not None and now.phase is ControlPhase.DUAL_WRITE:
        await run.control.move(ControlPhase.DUAL_WRITE, ControlPhase.SOURCE)
    run.state.set_fact(run.script_id, WATERMARK, None)


DUAL_WRITE = Operation(Phase.DUAL_WRITE, gate=open_gate, run=run, undo=undo)
