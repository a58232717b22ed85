"""Keeping up with the source in capture "delta", as the phases need it.

Rules kept here:

* The watermark moves only after a whole pass.
* `catch_up` repeats passes until one finds little to do, and at most `MAX_PASSES` times: a source that
  changes faster than it can be followed is said to, not followed for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from rekey.copy.delta import delta_pass
from rekey.errors import StateUnusable
from rekey.runner.run import Run
from rekey.state.models import WATERMARK

MAX_PASSES = 5
_LITTLE = 100
"""Changed rows of a pass after which another pass is not worth its scan."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What catching up did: passes made, rows that changed in the targets, and the new watermark."""

    passes: int
    changed: int
    watermark: str


async def begin_watermark(run: Run) -> None:
    """Store the first watermark if there is none: before the backfill reads its first row."""
    if run.state.get_fact(run.script_id, WATERMARK) is None:
        run.state.set_fact(run.script_id, WATERMARK, await run.tables.server_time())


async def catch_up(run: Run, *, max_passes: int = MAX_PASSES) -> CaughtUp:
    """Make delta passes until one changes little."""
    changed = 0
    for number in range(1, max_passes + 1):
        watermark = run.state.get_fact(run.script_id, WATERMARK)
        if watermark is None:
            raise StateUnusable(
                "the state file knows no watermark for this migration",
                hint="run `rekey apply` again: it copies everything again, which is safe",
            )
        with run.progress.task(f"delta pass {number}") as advance:
            result = await delta_pass(
                run.source,
                run.copier,
                server_time=run.tables.server_time,
                clock=run.clock,
                watermark=watermark,
                margin_seconds=run.config.gates.margin_s,
                size=run.window,
                stop_requested=run.stop.requested,
                advance=advance,
            )
        if not result.whole:
            run.stop.check()
        run.check()
        run.state.set_fact(run.script_id, WATERMARK, result.started_at)
        now = result.copied.inserted + result.copied.changed
        changed += now
        if now <= _LITTLE:
            break
    return CaughtUp(number, changed, result.started_at)
