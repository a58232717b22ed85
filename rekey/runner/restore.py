"""Restores a row that a repair removed, within `[gates] retention`."""

from __future__ import annotations

from dataclasses import dataclass

from rekey.core.clock import later, ticks_of
from rekey.core.joint import place_of
from rekey.core.safe_ids import SHORT_CHARACTERS
from rekey.evidence.log import make_checkpoint
from rekey.mapping.removed import Kept, RemovedRows, is_over
from rekey.model import key_of
from rekey.phases import ControlPhase
from rekey.protocol.effects import Outcome, apply_for_etags
from rekey.protocol.replicas import same_content
from rekey.runner.erase.targets import MAX_ROUNDS, usable
from rekey.runner.refusals import refusal
from rekey.runner.run import Run
from rekey.runner.session import Session
from rekey.tables.allowance import while_allowed
from rekey.tables.base import Operation, Verb

ROW_RESTORED = "row-restored"
# Not `cutover`: the targets are the authority then, and a row written past the clients would be missing in
# the source.
_PHASES = (ControlPhase.DUAL_WRITE, ControlPhase.COMPLETE, ControlPhase.RETIRED)
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored row. `verify_again`: cutover asks for a new full verification."""

    row_id: str
    table: str
    removed_at: str
    verify_again: bool


def restore(session: Session, script_id: str, row: str, reason: str = "") -> Restored:
    """Insert again a row that a repair removed. `row`: its safe id, or the name it is kept under. `reason`
    is recorded.

    Raises:
        Refused: the phase forbids it; no row, or more than one, is kept under that id; its retention is over;
            or another row is at its key.
        Erased: it was removed in a month whose data key was shredded.
    """
    run = session.resume(script_id)

    async def work() -> Restored:
        control = await run.control.read()
        phase = control.phase if control is not None else ControlPhase.SOURCE
        if phase not in _PHASES or (control is not None and control.maintained):
            now, following = map(run.declared.migration.shown, (phase, ControlPhase.DUAL_WRITE))
            raise refusal("restore-in-phase", script=script_id, phase=now, following=following)
        removed = RemovedRows(run.mapping)
        kept = await _find(run, removed, row)
        copy = await removed.open(kept)
        label = run.mapper.label_of(copy.table, key_of(copy.row))
        name, _ = place_of(run.mapper.tables[copy.table], key_of(copy.row))
        if name not in await usable(run, to_write=True):
            raise refusal("restore-no-table", table=label, until=_until(run, kept))
        verify_again = phase is ControlPhase.DUAL_WRITE
        with while_allowed(run.still_alone):
            await _insert(run, kept, copy.table, copy.row, marked=verify_again)
        details = {"row": kept.name, "table": label, "removed_at": kept.at, "reason": reason}
        run.state.audit(ROW_RESTORED, script_id, details)
        # After it is recorded.
        await removed.delete(kept)
        return Restored(kept.name, label, kept.at, verify_again)

    done = session.do(work())
    make_checkpoint(session.state, session.signer, f"{script_id}: row restored", session.progress)
    return done


def _until(run: Run, kept: Kept) -> str:
    return later(kept.at, run.config.gates.retention_s)


async def _find(run: Run, removed: RemovedRows, row_id: str) -> Kept:
    """Return the removed row that is meant. Raises Refused."""
    matches = await removed.find(row_id)
    now = ticks_of(await run.restricted.server_time())
    if not matches:
        there = sorted(removed_row.name for removed_row in await removed.all())
        listed = ", ".join(there[:_LISTED]) + (", …" if len(there) > _LISTED else "")
        if not there:
            raise refusal("restore-none-kept", script=run.script_id)
        raise refusal("restore-unknown", script=run.script_id, rows=listed)
    if len(matches) > 1:
        by_time = sorted(matches, key=lambda match: match.at)
        listed = ", ".join(f"{match.name} (removed at {match.at})" for match in by_time)
        row = matches[0].name[:SHORT_CHARACTERS]
        raise refusal("restore-ambiguous", row=row, times=len(by_time), rows=listed)
    [kept] = matches
    if is_over(kept.at, now, run.config.gates.retention_s):
        raise refusal("restore-over", row=kept.name, until=_until(run, kept))
    return kept


async def _insert(run: Run, kept: Kept, number: int, row: dict[str, object], *, marked: bool) -> None:
    """Insert a row if there is none. `marked`: first mark that earlier verifications do not cover it: a row
    without a source row must not go live unseen. Raises Refused when another row is there."""
    table, write = run.targets[number], Operation(Verb.INSERT, row)
    for _ in range(MAX_ROUNDS):
        there = await table.get(key_of(row))
        # Inserted by an attempt whose answer was lost, or by a command that was cut off.
        if there is not None and same_content(there, row):
            return
        if there is not None:
            raise refusal("restore-taken", row=kept.name, until=_until(run, kept))
        if marked:
            await run.control.mark_changed()
            marked = False
        outcome, _ = await apply_for_etags(table, [write])
        if outcome is Outcome.DONE:
            return
    raise refusal("insert-open")
