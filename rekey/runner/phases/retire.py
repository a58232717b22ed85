"""retire: deletes the source table, or only its unchanged rows if some changed after freeze or `complete`, or
if a part of the table was migrated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rekey.copy.delta import written_since
from rekey.core.clock import later, ticks_of
from rekey.core.concurrency import for_each
from rekey.core.joint import names_in
from rekey.errors import ConditionFailed, RowMissing
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, Row, etag_of, key_of
from rekey.next_steps import next_step
from rekey.phases import ControlPhase
from rekey.present.text import counted
from rekey.protocol.control import ControlRow
from rekey.runner.backup import backup_folder
from rekey.runner.clients import any_intent, move
from rekey.runner.phases.backfill import estimated_rows
from rekey.runner.phases.complete import QUIET_AT, quiet_by
from rekey.runner.phases.complete import undo as refuse
from rekey.runner.phases.cutover import frozen_at
from rekey.runner.probe_tables import require_two_accounts
from rekey.runner.refusals import refusal
from rekey.runner.remaining import COUNTED, NOT_MIGRATED
from rekey.runner.retired import tables_with_its_rows
from rekey.runner.run import Counters, Run, nothing_left
from rekey.status.facts import is_proved
from rekey.status.notes import note
from rekey.status.reasons import reason
from rekey.tables.base import Table

_NAMED = 20


async def gate(run: Run) -> list[str]:
    """Return the reasons that keep the source from being deleted."""
    return await closed_by(run, await tables_with_its_rows(run))


async def closed_by(run: Run, tables: Sequence[Table]) -> list[str]:
    """Return what `gate` does; `tables`: those with the migration's rows (`tables_with_its_rows`)."""
    now = await run.control.read()
    if now is None or now.phase not in (ControlPhase.COMPLETE, ControlPhase.RETIRED):
        return [reason("other-phase", phase=now.phase if now else "nothing", needed=ControlPhase.COMPLETE)]
    reasons = await _needed_by_others(run) if now.phase is ControlPhase.COMPLETE else []
    if now.maintained:
        kept = ", ".join(run.declared.migration.index_labels)
        step = next_step("hand-over", script=run.script_id)
        reasons.append(reason("still-maintained", kept=kept, step=step))
    if now.phase is ControlPhase.COMPLETE and now.ended_at is not None:
        over_at = later(now.ended_at, run.config.gates.retention_s)
        if ticks_of(await run.source_time()) < ticks_of(over_at):
            reasons.append(reason("retained", until=over_at))
    if run.options.typed_table != run.source.name:
        reasons.append(reason("table-not-typed"))
    if not is_proved(run.state.audit_events(run.script_id)):
        reasons.append(reason("evidence-missing"))
    if not run.is_delta and await any_intent(run):
        reasons.append(reason("intents-left", script=run.script_id))
    is_named = run.options.backup is not None or run.options.no_backup
    if not is_named and await run.tables.table_exists(run.source.name):
        reasons.append(reason("no-backup", source=run.source, folder=backup_folder(run.script_id)))
    for table in tables:
        reasons += [
            reason("target-missing", target=name)
            for name in names_in(table.name)
            if not await run.tables.table_exists(name)
        ]
    return reasons


async def _needed_by_others(run: Run) -> list[str]:
    """Return a reason for each migration of the same rows that has begun and is not over: the source is its
    authority, or follows its clients."""
    reasons = []
    for other in run.of_same_rows:
        theirs = await run.control_of(other)
        if theirs is not None and theirs.ended_at is None:
            reasons.append(reason("source-of-other", source=run.source, other=other, phase=theirs.phase))
    return reasons


async def run(run: Run) -> Counters:
    """Drop the source if no row of it changed after `quiet_at`; otherwise, or of a part, delete the unchanged
    rows. Raises Findings when rows changed: they stay."""
    now = await run.control.read()
    if now is None or now.phase is ControlPhase.RETIRED:
        return {}
    await require_two_accounts(run)
    counters: Counters = {"rows_deleted": 0}
    if await run.tables.table_exists(run.source.name):
        _name_dropped(run, counters)
        since_then, is_part = quiet_at(run, now), run.declared.migration.where is not None
        changed: list[str] = []
        if is_part or await _is_written(run, since_then):
            changed = await _delete_all_unchanged(run, since_then, counters)
        if changed:
            since = "the freeze" if run.is_delta else "`complete`"
            rows = f"{len(changed)} source rows changed after {since}"
            listed, deleted = ", ".join(changed[:_NAMED]), counters["rows_deleted"]
            raise refusal("source-changed", rows=rows, listed=listed, table=run.source, deleted=deleted)
        if not is_part:
            await run.tables.delete_table(run.source.name)
    await move(run, ControlPhase.COMPLETE, ControlPhase.RETIRED)
    return counters


async def _is_written(run: Run, moment: str) -> bool:
    async for _ in written_since(run.source, moment):
        return True
    return False


def _name_dropped(run: Run, counters: Counters) -> None:
    """Report how many rows go that were not migrated, as the gate counted them."""
    drop, events = run.declared.migration.dropped, run.state.audit_events(run.script_id, event=COUNTED)
    rows = events[-1].details.get(NOT_MIGRATED, 0) if events else 0
    if drop is not None and rows:
        counters[NOT_MIGRATED] = rows
        named = {"rows": counted(rows, "row"), "source": run.source.name, "reason": drop.reason}
        note(run.progress, "rows-not-migrated", {"script": run.script_id, **named})


def quiet_at(run: Run, now: ControlRow) -> str:
    """Return the moment from which on no write to the source is expected, by the service's clock."""
    if run.is_delta:
        # Where the state file does not know it, the beginning of the freeze: earlier, so fewer rows are
        # deleted.
        return frozen_at(run, now) or now.stopped_at or now.updated_at
    return run.state.get_fact(run.script_id, QUIET_AT) or quiet_by(now)  # a run that was cut off stored none


def is_changed(row: Row, moment: str) -> bool:
    """Tell whether a source row was written at or after `moment`."""
    return ticks_of(row[TIMESTAMP]) >= ticks_of(moment)


async def delete_unchanged(run: Run, row: Row, moment: str) -> Literal["deleted", "gone", "changed"]:
    """Delete a source row by its ETag, unless it was written at or after `moment`; "gone": it did not exist
    any more, "changed": it was written, and stays."""
    if is_changed(row, moment):
        return "changed"
    try:
        await run.source.delete(key_of(row), etag=etag_of(row))
    except RowMissing:
        return "gone"
    except ConditionFailed:
        return "changed"
    return "deleted"


async def _delete_all_unchanged(run: Run, moment: str, counters: Counters) -> list[str]:
    """Delete all source rows older than `moment`; return the safe ids of the others."""
    changed: list[str] = []

    async def remove(row: Row) -> None:
        became = await delete_unchanged(run, row, moment)
        counters["rows_deleted"] += became == "deleted"
        if became == "changed":
            changed.append(run.ids.short(run.source.name, key_of(row)))

    with run.progress.task("delete source rows", total=estimated_rows(run)) as advance:
        async for page in run.source.scan(select=[PARTITION_KEY, ROW_KEY]):
            run.check()
            await for_each(page.rows, remove, limit=run.config.limits.concurrency)
            advance(len(page.rows))
    return changed


undo, again = refuse, nothing_left
