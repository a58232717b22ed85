"""Restores a row that a repair removed, within `[gates] retention`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rekey.core.clock import later, ticks_of
from rekey.core.joint import place_of
from rekey.core.safe_ids import SHORT_CHARACTERS
from rekey.declaration.migration import Declared
from rekey.errors import RowRefused
from rekey.evidence.log import make_checkpoint
from rekey.mapping.removed import Kept, Removed, RemovedRows, is_over
from rekey.model import TIMESTAMP, key_of
from rekey.phases import ControlPhase
from rekey.present.text import shortened
from rekey.protocol.effects import Outcome, apply_for_etags
from rekey.protocol.replicas import SOURCE_TABLE, same_content
from rekey.runner.erase.targets import MAX_ROUNDS, usable
from rekey.runner.refusals import refusal
from rekey.runner.retired import moved_since
from rekey.runner.run import Run
from rekey.runner.session import Session
from rekey.tables.allowance import while_allowed
from rekey.tables.base import Operation, Verb

ROW_RESTORED = "row-restored"
# Not `cutover`: the targets are the authority then, and a row written past the clients would be missing in
# the source.
_PHASES = (ControlPhase.DUAL_WRITE, ControlPhase.COMPLETE, ControlPhase.RETIRED)


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored row. `verify_again`: cutover asks for a new full verification. `moved_by`: the later
    migration that has moved the rows of its table on, so that the application does not read it there; ""
    if none has."""

    row_id: str
    table: str
    removed_at: str
    verify_again: bool
    moved_by: str


def restore(session: Session, script_id: str, row: str, reason: str = "") -> Restored:
    """Insert again a row that a repair removed. `row`: its safe id, or the name it is kept under. `reason`
    is recorded.

    Raises:
        Refused: the phase forbids it; no row, or more than one, is kept under that id; its retention is over;
            another row is at its key; another migration follows its table or, without a reason, has moved
            its rows on.
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
        verify_again = phase is ControlPhase.DUAL_WRITE
        copy = await removed.open(kept)
        if copy.table == SOURCE_TABLE and not verify_again:
            copy = _in_target(run, kept, copy)  # which decides by now
        label = _label(run, copy)
        if not await _exists(run, copy):
            raise refusal("restore-no-table", table=label, until=_until(run, kept))
        moved_by = await _moved_by(run, copy)
        if moved_by is not None and not reason:
            raise refusal(
                "restore-unread", table=label, row=kept.name, other=moved_by, until=_until(run, kept)
            )
        with while_allowed(run.still_alone):
            await _insert(run, kept, copy, marked=verify_again)
            if copy.table == SOURCE_TABLE:
                await run.propagator.propagate(key_of(copy.row))
        details = {"row": kept.name, "table": label, "removed_at": kept.at, "reason": reason}
        run.state.audit(ROW_RESTORED, script_id, details)
        # After it is recorded.
        await removed.delete(kept)
        return Restored(kept.name, label, kept.at, verify_again, moved_by.script_id if moved_by else "")

    done = session.do(work())
    make_checkpoint(session.state, session.signer, f"{script_id}: row restored", session.progress)
    return done


def _in_target(run: Run, kept: Kept, copy: Removed) -> Removed:
    """Return a removed source row as the main target row that it maps to. Raises RowRefused."""
    try:
        number, row = run.mapper.map({**copy.row, TIMESTAMP: kept.at})[0]
    except RowRefused as refused:
        raise refused.for_row(kept.name) from None
    return replace(copy, table=number, row=row)


def _label(run: Run, copy: Removed) -> str:
    if copy.table == SOURCE_TABLE:
        return run.source.name
    return run.mapper.label_of(copy.table, key_of(copy.row))


async def _exists(run: Run, copy: Removed) -> bool:
    """Tell whether the table of a removed row exists and is this migration's."""
    if copy.table == SOURCE_TABLE:
        return await run.tables.table_exists(run.source.name)
    name, _ = place_of(run.mapper.tables[copy.table], key_of(copy.row))
    return name in await usable(run, to_write=True)


async def _moved_by(run: Run, copy: Removed) -> Declared | None:
    """Return the later migration that has moved the rows of a removed row's table on; None: none has."""
    if copy.table == SOURCE_TABLE:
        return None
    name, key = place_of(run.mapper.tables[copy.table], key_of(copy.row))
    for other, _ in await moved_since(run):
        if other.migration.source.lower() == name.lower() and other.migration.has(key):
            return other
    return None


def _until(run: Run, kept: Kept) -> str:
    return later(kept.at, run.config.gates.retention_s)


async def _find(run: Run, removed: RemovedRows, row_id: str) -> Kept:
    """Return the removed row that is meant. Raises Refused."""
    matches = await removed.find(row_id)
    now = ticks_of(await run.restricted.server_time())
    if not matches:
        there = sorted(removed_row.name for removed_row in await removed.all())
        if not there:
            raise refusal("restore-none-kept", script=run.script_id)
        raise refusal("restore-unknown", script=run.script_id, rows=shortened(there))
    if len(matches) > 1:
        by_time = sorted(matches, key=lambda match: match.at)
        listed = ", ".join(f"{match.name} (removed at {match.at})" for match in by_time)
        row = matches[0].name[:SHORT_CHARACTERS]
        raise refusal("restore-ambiguous", row=row, times=len(by_time), rows=listed)
    [kept] = matches
    if is_over(kept.at, now, run.config.gates.retention_s):
        raise refusal("restore-over", row=kept.name, until=_until(run, kept))
    return kept


async def _insert(run: Run, kept: Kept, copy: Removed, *, marked: bool) -> None:
    """Insert a row if there is none. `marked`: first mark that earlier verifications do not cover it: a row
    without a source row must not go live unseen. Raises Refused when another row is there."""
    table, row = run.propagator.table(copy.table), copy.row
    write = Operation(Verb.INSERT, row)
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
        if outcome is Outcome.UNKNOWN and copy.table == SOURCE_TABLE:
            break  # sent again, one of the two could bring a row back that a client deletes in between
    raise refusal("insert-open")
