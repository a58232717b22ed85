"""Old keys that another migration's rollback looks up in a mapping (`props.reference(…, keep_old=False)`):
its cutover waits for that mapping, and the mapping stays as long as it may be needed."""

from __future__ import annotations

from collections.abc import Callable

from rekey.declaration.migration import Declared
from rekey.mapping.rows import day_of
from rekey.mapping.store import keys_gone_since
from rekey.next_steps import apply_to, next_step
from rekey.phases import ControlPhase, Phase
from rekey.protocol.control import ControlRow
from rekey.protocol.references import own_control, referring_controls
from rekey.runner.refusals import refusal
from rekey.runner.run import Run
from rekey.state.audit import COHORTS, MAPPING, erasures
from rekey.status.reasons import reason

_AUTHORITY_MOVED = (ControlPhase.CUTOVER, ControlPhase.COMPLETE, ControlPhase.RETIRED)


async def closed_by_references(run: Run) -> list[str]:
    """Return a reason for each migration whose mapping a rollback needs and that has not copied its rows, or
    whose mapping was erased, or a month of it."""
    reasons = []
    for via, declared in sorted(run.declared.migration.looked_up_in.items()):
        control = await own_control(run.restricted, declared)
        phase = None if control is None else control.unfrozen
        is_copied = phase in _AUTHORITY_MOVED
        if phase is ControlPhase.DUAL_WRITE:
            # What shows that the backfill is done: the control row with capture "dual-write", else a full
            # verification without differences; one can also be asked for before it.
            verifications = run.state.verifications(via, mode="full")
            is_clean = any(verification.divergences == 0 for verification in verifications)
            is_copied = (control is not None and control.copied) or is_clean
        source = declared.migration.source
        if not is_copied:
            reasons.append(reason("referred-not-copied", script=via, source=source))
        elif day := await _gone_since(run, declared):
            reasons.append(reason("referred-expired", script=via, source=source, day=day, own=run.script_id))
    return reasons


async def _gone_since(run: Run, declared: Declared) -> str:
    """Return the day on which old keys of a mapping began to be erased as a whole or by month; "": none
    were. A data key that was put back counts as shredded, as in the look-up."""
    recorded = erasures(run.state.audit_events(declared.script_id))
    begun = [day_of(event.at) for event in recorded.open if event.details["kind"] in (COHORTS, MAPPING)]
    days = [
        await keys_gone_since(run.restricted, declared.script_id),
        recorded.whole,
        *recorded.cohorts.values(),
        *begun,
    ]
    return min(filter(None, days), default="")


async def require_droppable_mapping(run: Run) -> None:
    """Refuse to delete the mapping, which can be made again, while a rollback of another migration may need
    it. Members of the same group do not count: they are rolled back before anything is deleted."""
    members = {member.script_id for member in run.run_group}
    await _require_unneeded(run, _may_go_back, members, "go back, `rekey {back}{stopped}`")


async def require_expirable_mapping(run: Run) -> None:
    """Refuse to erase the mapping for good while another migration in progress looks keys up in it."""
    # In `source` it begins again with a plan, which refuses a mapping that is gone.
    free = "roll it back, `rekey {back} --to source --drop-targets{stopped}`"
    await _require_unneeded(run, lambda control: control.is_followed, set(), free)


async def _require_unneeded(
    run: Run, needs: Callable[[ControlRow], bool], without: set[str], free: str
) -> None:
    """Refuse while other migrations need the mapping. `free`: the way out beside completing the first."""
    controls = await referring_controls(run.restricted, run.scripts, run.script_id)
    scripts = [other for other, control in controls.items() if other not in without and needs(control)]
    if not scripts:
        return
    # The step is that of the first; the same command names the next one after it.
    first = next(script for script in run.scripts if script.script_id == scripts[0])
    control, selector, others = controls[first.script_id], first.cli_selector, ", ".join(scripts)
    if control.maintained:
        step = next_step("hand-over", script=first.script_id)
        raise refusal("looked-up-until-handover", script=run.script_id, others=others, handover=step)
    must_stop = first.migration.capture == "delta" and _may_go_back(control)
    free = free.format(back=f"rollback {selector}", stopped=" --writers-stopped" if must_stop else "")
    complete = apply_to(selector, Phase.COMPLETE)
    raise refusal("looked-up", script=run.script_id, others=others, complete=complete, free=free)


def _may_go_back(control: ControlRow) -> bool:
    return control.phase in (ControlPhase.FREEZE, ControlPhase.CUTOVER) or control.maintained
