"""Going on with a full verification that was cut off.

Rules kept here:

* Sums are gone on from only where they mean what new ones would: of the same run, declaration and epoch (so
  never across a move, and never from before a freeze), with the same side as the authority, and with clients
  registered or not as then.
* And only while the first row that went into them was read less than `[gates] verification_max_age` ago: a
  verification that is older than that opens no gate anyhow.
* Under live writes rows change behind the cursor. That is so within one sitting as well: what differs is
  looked at again before it counts, and the report says what was read when.
* What cannot be gone on from is forgotten, and said to be.
"""

from __future__ import annotations

import json

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.errors import StateUnusable
from rekey.phases import ControlPhase
from rekey.runner.run import Run
from rekey.state.models import StoredSums
from rekey.verify.sums import Partial


async def made_now(run: Run, control: ControlPhase, *, followed: bool) -> str:
    """Return what sums are made under now, as it is compared.

    Args:
        run: the migration.
        control: the phase that says which side is the authority.
        followed: whether clients are registered that follow, or none is needed.
    """
    row = await run.control.read()
    return json.dumps(
        {
            "run_id": "" if row is None else row.run_id,
            "epoch": 0 if row is None else row.epoch,
            "digest": run.declared.digest,
            "control": control,
            "followed": followed,
        },
        sort_keys=True,
    )


def keep(run: Run, under: str, work: Partial) -> None:
    """Store sums durably."""
    run.still_alone()
    run.state.keep_sums(run.script_id, StoredSums(under, work.begun_at, work.as_state()))


def resumed(run: Run, under: str) -> Partial | None:
    """Return the sums to go on from, None to begin anew."""
    try:
        stored = run.state.sums(run.script_id)
        if stored is None:
            return None
        work = Partial.from_state(stored.sums, targets=len(run.targets))
    except StateUnusable:
        stored, work = None, None
    if stored is not None and work is not None and stored.basis == under:
        age = (run.clock.ticks() - ticks_of(stored.begun_at)) / TICKS_PER_SECOND
        if age < run.config.gates.verification_max_age_s:
            run.progress.note(
                f"{run.script_id}: the verification begun at {stored.begun_at} goes on behind"
                f" {sum(one.rows for one in work.reads.values()):,} rows"
            )
            return work
    run.state.keep_sums(run.script_id, None)
    run.progress.note(
        f"{run.script_id}: an earlier verification cannot be gone on with; this one begins anew"
    )
    return None
