"""prepare: creates this migration's rows in the restricted store, and the empty target tables."""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from operator import itemgetter

from rekey.core.limits import TARGET_ACCOUNT_SUFFIX, is_in_target_account
from rekey.errors import CredentialRefused, GateClosed, TableBeingDeleted, TableMissing
from rekey.mapping.removed import RemovedRows
from rekey.mapping.rows import JOURNAL_TABLE, MAPPING_TABLE
from rekey.model import PARTITION_KEY, ROW_KEY, KeyRange, etag_of
from rekey.next_steps import next_step
from rekey.phases import ControlPhase, Phase
from rekey.runner.clients import any_intent, until_quiet
from rekey.runner.probe_tables import probe_name, probe_table, require_two_accounts
from rekey.runner.refusals import refusal
from rekey.runner.remaining import require_source, tables_with_rows
from rekey.runner.run import Counters, Run, asks_again, nothing_left
from rekey.status.notes import note
from rekey.status.reasons import reason
from rekey.tables.base import MAX_BATCH_OPERATIONS, Operation, Table, Verb
from rekey.tables.joint import apart
from rekey.tables.kinds import whole
from rekey.tables.odd_keys import probe_odd_keys
from rekey.tables.sent import Overhead, overhead
from rekey.tables.similar import similar_tables


async def gate(run: Run) -> list[str]:
    """Return as reasons the targets that hold rows which this migration did not write: they would be taken
    for copies.

    Raises:
        ConfigurationError: the source does not exist.
    """
    if not await run.tables.table_exists(run.source.name):
        section, account = run.config.holding(run.source.name)
        file = run.declared.path.name
        similar = await similar_tables(run.tables, run.source.name)
        raise refusal(
            "source-missing", table=run.source, account=account, section=section, file=file, similar=similar
        )
    reasons = [*await _still_maintained(run), *await _begun_before(run), *await _out_of_date(run)]
    return [*reasons, *await _held_by_others(run)]


async def _held_by_others(run: Run) -> list[str]:
    """Return a reason for each target that holds rows which this migration did not write."""
    return [
        reason("target-holds-rows", target=target)
        for table in run.mapper.read_once
        for target in apart(whole(run.targets[table]))
        if await run.tables.table_exists(target.name) and await _is_foreign(run, table, target)
    ]


async def _is_foreign(run: Run, number: int, target: Table) -> bool:
    """Tell whether a target holds a row that this migration did not write. `number`: of its table."""
    async for page in target.scan(page_rows=1):
        if page.rows:
            # One row suffices: after a run that was cut off, a table's rows are all ours or all foreign.
            return not await run.mapping.owns(run.mapper.number_of(number, page.rows[0]), page.rows[0])
    return False


async def _still_maintained(run: Run) -> list[str]:
    """Return a reason for each earlier migration whose clients still maintain index tables of the source:
    they would lack what clients of this one write; or whose end was cut off, so that index rows will be
    written past this one's clients."""
    reasons = []
    for other in run.builds_on:
        now = await run.control_of(other)
        if now is not None and now.maintained:
            kept = ", ".join(other.migration.index_labels)
            step = next_step("hand-over", script=other.script_id)
            reasons.append(reason("maintained-by-other", script=other.script_id, kept=kept, step=step))
        elif now is not None and now.handed_over_at is not None and await any_intent(run, other):
            reasons.append(reason("unsettled-by-other", script=other.script_id))
    return reasons


async def _out_of_date(run: Run) -> list[str]:
    """Return a reason for each migration that is complete and has moved the same rows on: the application
    does not write them to the source any more."""
    reasons = []
    for other in run.of_same_rows:
        now = await run.control_of(other)
        if now is not None and now.phase is ControlPhase.COMPLETE and not now.maintained:
            source, target = other.migration.source, other.migration.target
            reasons.append(reason("out-of-date", script=other.script_id, source=source, target=target))
    return reasons


async def _begun_before(run: Run) -> list[str]:
    """Return a reason for each migration that has begun and whose source this one would fill: it would not
    follow what is written there past its clients."""
    reasons = []
    for other in run.built_on_by:
        now = await run.control_of(other)
        if now is not None and now.phase is not ControlPhase.RETIRED:
            source, target = other.migration.source, other.migration.target
            reasons.append(reason("target-is-moved", script=other.script_id, source=source, target=target))
    return reasons


async def run(run: Run) -> Counters:
    """Create the missing ones of the mapping table, the journal table and the targets. Raises GateClosed:
    somebody has filled a target since the gate was asked."""
    await until_quiet(run)  # an earlier run that was rolled back may have requests in flight
    await require_two_accounts(run)
    for name in (MAPPING_TABLE, JOURNAL_TABLE):
        await run.restricted.create_table(name)
    created = 0
    for name in run.declared.migration.table_names:
        try:
            created += await run.tables.create_table(name)
        except TableBeingDeleted:
            what = f"target table {name} is still being deleted by the service"
            hint = "a deleted table's name is taken for 40 seconds and more; run the same command later"
            raise TableBeingDeleted(what, code="TableBeingDeleted", status=409, hint=hint) from None
    # From the mark on, rows in the targets are this migration's.
    if not run.mapping.is_stored and (reasons := await _held_by_others(run)):
        raise GateClosed(Phase.PREPARE, reasons, hint=asks_again(run, Phase.PREPARE))
    await run.mapping.begin()
    names = (run.source.name, *run.declared.migration.table_names)
    for in_target_account in sorted({is_in_target_account(name) for name in names}):
        account = TARGET_ACCOUNT_SUFFIX if in_target_account else ""
        with overhead(Overhead.PROBES):
            await _try_odd_keys(run, probe_name(run) + account)
    return {"tables_created": created}


async def _try_odd_keys(run: Run, name: str) -> None:
    """Try odd keys in a throw-away table of this name. Raises ConfigurationError when queries return other
    rows than they ask for: rows would be copied, compared and deleted by what another key says."""
    account = run.config.holding(name)[1]
    try:
        async with probe_table(run, name) as there:
            misread = await probe_odd_keys(run.tables.table(there))
    except CredentialRefused:
        note(run.progress, "odd-keys-untried", {"account": account.name})
        return
    if misread.in_queries:
        raise refusal("keys-misread", account=account, keys=", ".join(misread.in_queries))
    if misread.at_addresses:
        keys = ", ".join(misread.at_addresses)
        note(run.progress, "addresses-misread", {"account": account.name, "keys": keys})


async def undo(run: Run) -> None:
    """Drop the targets and delete the migration's mapping and journal rows, or keep all of them: dropping
    only some would leave rows that nothing accounts for. `rekey.runner.commands` deletes control row and data
    keys after it.

    The caller has waited until no request is in flight.
    """
    if not run.options.drop_targets:
        return
    if await tables_with_rows(run):
        await require_source(run)  # again: some time has passed since it was checked
    await run.mapping.disown()
    for table in {table.name: table for target in run.targets for table in apart(whole(target))}.values():
        if table.name in run.declared.migration.filled_keys:
            await _delete_rows(run, table)
        else:
            await run.tables.delete_table(table.name)
    with suppress(TableMissing):  # the run was cut off before it made the mapping table
        for partition in run.mapping.rows.all_partitions:
            async for page in run.mapping.table.scan(KeyRange.of_rows(partition)):
                writes = [Operation(Verb.DELETE, row, "*") for row in page.rows]
                for start in range(0, len(writes), MAX_BATCH_OPERATIONS):
                    await run.mapping.table.transact(writes[start : start + MAX_BATCH_OPERATIONS])
        await RemovedRows(run.mapping).forget()
    if not run.is_delta:
        with suppress(TableMissing):
            await run.journal.clear()


async def _delete_rows(run: Run, table: Table) -> None:
    """Delete this migration's rows of a table that others fill too."""
    with suppress(TableMissing):
        async for page in table.scan(select=[PARTITION_KEY, ROW_KEY]):
            run.check()
            for _, rows in groupby(page.rows, itemgetter(PARTITION_KEY)):
                deletes = [Operation(Verb.DELETE, row, etag_of(row)) for row in rows]
                for start in range(0, len(deletes), MAX_BATCH_OPERATIONS):
                    await table.transact(deletes[start : start + MAX_BATCH_OPERATIONS])


again = nothing_left
