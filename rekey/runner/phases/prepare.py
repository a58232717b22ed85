"""prepare: the restricted store's rows of this migration, and the empty target tables.

Rules kept here:

* A target table must be new or empty, unless this migration itself filled it: foreign rows would be taken
  for copies.
* Whether odd keys arrive as they are is tried on a throw-away table of each account that holds the source or
  a target, before anything is copied. Misread addresses are a note: such rows are read by queries. Misread
  queries are refused: rows would be copied, compared and deleted by what another key says.
* Undo drops the targets and the migration's rows in the mapping and the journal, or keeps all of them, as the
  operator chose: dropping only some would leave rows that nothing accounts for. (Control row and data keys
  are deleted after it, by `rekey.runner.commands.rollback`.)
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from rekey.core.limits import ELSEWHERE, is_elsewhere
from rekey.errors import CredentialRefused, TableBeingDeleted, TableMissing
from rekey.mapping.removed import RemovedRows
from rekey.mapping.rows import JOURNAL_TABLE, MAPPING_TABLE
from rekey.model import KeyRange
from rekey.next_steps import next_step
from rekey.protocol.control import ControlStore
from rekey.runner.clients import until_quiet
from rekey.runner.refusals import refusal
from rekey.runner.remaining import require_source, tables_with_rows
from rekey.runner.run import Counters, Run, nothing_left
from rekey.tables.base import MAX_BATCH_OPERATIONS, Operation, Verb
from rekey.tables.kinds import whole
from rekey.tables.odd_keys import probe_odd_keys
from rekey.tables.sent import OnTop, on_top
from rekey.tables.similar import similar_tables

# What the name of a throw-away table begins with.
PROBE_TABLE = "rekeyprobe"


async def gate(run: Run) -> list[str]:
    """Return the targets that hold rows which this migration did not write, as reasons.

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
    reasons = await _still_maintained(run)
    for table in run.mapper.read_once:
        target = whole(run.targets[table])
        if not await run.tables.table_exists(target.name):
            continue
        async for page in target.scan(page_rows=1):
            if not page.rows:
                continue
            # One row suffices: after a run that was cut off, a target's rows are all ours or all foreign.
            if not await run.mapping.owns(run.mapper.number_of(table, page.rows[0]), page.rows[0]):
                reasons.append(f"target table {target.name} holds rows that this migration did not write")
            break
    return reasons


async def _still_maintained(run: Run) -> list[str]:
    """Return a reason for each earlier migration whose clients still maintain index tables of the source:
    what is written through clients of this one would be missing there."""
    reasons = []
    for other in run.builds_on:
        now = await ControlStore(run.restricted, other.script_id, other.migration.group).read()
        if now is not None and now.maintained:
            kept = ", ".join(other.migration.index_labels)
            step = next_step("hand-over", script=other.script_id)
            reasons.append(f"clients of {other.script_id} still maintain {kept}; {step}")
    return reasons


async def run(run: Run) -> Counters:
    """Create the mapping table, the journal table and the targets, those that are missing."""
    await until_quiet(run)  # an earlier run that was rolled back may have requests in flight
    for name in (MAPPING_TABLE, JOURNAL_TABLE):
        await run.restricted.create_table(name)
    made = 0
    for name in run.declared.migration.table_names:
        try:
            made += await run.tables.create_table(name)
        except TableBeingDeleted:
            what = f"target table {name} is still being deleted by the service"
            hint = "a deleted table's name is taken for 40 seconds and more; run the same command later"
            raise TableBeingDeleted(what, code="TableBeingDeleted", status=409, hint=hint) from None
    names = (run.source.name, *run.declared.migration.table_names)
    for elsewhere in sorted({is_elsewhere(name) for name in names}):
        with on_top(OnTop.PROBES):
            await _try_odd_keys(run, f"{PROBE_TABLE}{secrets.token_hex(8)}{ELSEWHERE if elsewhere else ''}")
    return {"tables_created": made}


async def _try_odd_keys(run: Run, name: str) -> None:
    """Try odd keys in a table of this name, which is deleted again.

    Raises:
        ConfigurationError: queries return other rows than they ask for.
    """
    account = run.config.holding(name)[1]
    try:
        await run.tables.create_table(name)
        try:
            misread = await probe_odd_keys(run.tables.table(name))
        finally:
            await run.tables.delete_table(name)
    except CredentialRefused:
        said = "odd keys were not tried: the credential may not make a table of its own"
        run.progress.note(f"{account.name}: {said}; `rekey doctor --live` tries them", "odd-keys-untried")
        return
    if misread.in_queries:
        raise refusal("keys-misread", account=account, keys=", ".join(misread.in_queries))
    if misread.at_addresses:
        said = f"addresses of rows are misread on the way to {account.name}, of keys with"
        done = "such rows are read by queries, and written by transactions"
        run.progress.note(f"{said} {', '.join(misread.at_addresses)}: {done}", "addresses-misread")


async def undo(run: Run) -> None:
    """Drop the targets and delete the mapping and the journal of the migration, or keep all of them.

    The caller has waited until nothing is in flight: a batch that takes effect later would leave rows that
    nothing accounts for.
    """
    if not run.options.drop_targets:
        return
    if await tables_with_rows(run):
        await require_source(run)  # asked before as well, and some time has passed
    for name in run.declared.migration.table_names:
        await run.tables.delete_table(name)
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


again = nothing_left
