"""Old keys that another migration's rollback looks up in a mapping (`props.reference(…, keep_old=False)`):
its cutover waits for that mapping, and the mapping stays as long as it may be needed."""

from __future__ import annotations

from rekey.declaration.migration import Declared
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, ControlStore
from rekey.runner.refusals import refusal
from rekey.runner.run import Run
from rekey.status.reasons import reason

_AUTHORITY_MOVED = (ControlPhase.CUTOVER, ControlPhase.COMPLETE, ControlPhase.RETIRED)


async def closed_by_references(run: Run) -> list[str]:
    """Return a reason for each migration whose mapping a rollback needs and that has not copied its rows."""
    reasons = []
    for via, declared in sorted(run.declared.migration.looked_up_in.items()):
        control = await _control_row(run, declared)
        phase = None if control is None else control.came_from or control.phase
        is_copied = phase in _AUTHORITY_MOVED
        if phase is ControlPhase.DUAL_WRITE:
            # What shows that the backfill is done: the control row with capture "dual-write", else a full
            # verification without differences; one can also be asked for before it.
            verifications = run.state.verifications(via, mode="full")
            is_clean = any(verification.divergences == 0 for verification in verifications)
            is_copied = (control is not None and control.copied) or is_clean
        if not is_copied:
            reasons.append(reason("referred-not-copied", script=via, source=declared.migration.source))
    return reasons


async def require_not_looked_up(run: Run) -> None:
    """Refuse to delete the mapping while a rollback of another migration may need it."""
    others = [script for script in run.scripts if run.script_id in script.migration.looked_up_in]
    scripts = [script.script_id for script in others if await _may_go_back(run, script)]
    if scripts:
        raise refusal("looked-up", script=run.script_id, others=", ".join(scripts))


async def _may_go_back(run: Run, script: Declared) -> bool:
    control = await _control_row(run, script)
    needs = (ControlPhase.FREEZE, ControlPhase.CUTOVER)
    return control is not None and (control.phase in needs or control.maintained)


async def _control_row(run: Run, declared: Declared) -> ControlRow | None:
    control = await ControlStore(run.restricted, declared.script_id, declared.migration.group).read()
    is_other = control is None or control.source.lower() != declared.migration.source.lower()
    return None if is_other else control
