"""prepare: the restricted store's rows of this migration, and the empty target tables.

Rules kept here:

* A target table must be new or empty, unless this migration itself filled it: rows of somebody else would be
  taken for copies.
* Undo drops the targets and everything the restricted store knows of the migration, or keeps both, as the
  operator chose; half of it would leave rows that nothing accounts for.
"""

from __future__ import annotations

from contextlib import suppress

from rekey.errors import ConfigurationError, TableBeingDeleted, TableMissing
from rekey.mapping.rows import JOURNAL_TABLE, MAPPING_TABLE
from rekey.model import Row
from rekey.phases import Phase
from rekey.runner.phases.operation import Counters, Operation
from rekey.runner.quiet import until_quiet
from rekey.runner.run import Run
from rekey.tables.base import MAX_BATCH_OPERATIONS, Table, Verb
from rekey.tables.base import Operation as Write


async def gate(run: Run) -> list[str]:
    """Check that the source exists and that no target holds rows of somebody else."""
    if not await run.tables.table_exists(run.source.name):
        raise ConfigurationError(
            f"the source table {run.source.name} does not exist in this account",
            hint=f"check [tables] endpoint, and `source=` in {run.declared.path.name}",
        )
    reasons = []
    for number, target in enumerate(run.targets):
        if await run.tables.table_exists(target.name) and await _holds_foreign_row(run, number, target):
            reasons.append(f"target table {target.name} holds rows that this migration did not write")
    return reasons


async def _holds_foreign_row(run: Run, number: int, target: Table) -> bool:
    """Look at the first row: the targets of a run that was cut off are all ours or all foreign."""
    first = await first_row(target)
    if first is None:
        return False
    return not await run.mapping.owns(number, first)


async def first_row(table: Table) -> Row | None:
    """Return the first row of a table, None when it is empty."""
    async for page in table.scan(page_rows=1):
        if page.rows:
            return page.rows[0]
    return None


async def run(run: Run) -> Counters:
    """Create what is missing; everything here may be there already."""
    await until_quiet(run)  # of a run before this one, which was taken back
    for name in (MAPPING_TABLE, JOURNAL_TABLE):
        await run.restricted.create_table(name)
    made = 0
    for target in run.targets:
        try:
            made += await run.tables.create_table(target.name)
        except TableBeingDeleted:
            raise TableBeingDeleted(
                f"target table {target.name} is still being deleted by the service",
                code="TableBeingDeleted",
                status=409,
                hint="a deleted table's name is taken for 40 seconds and more; run the same command later",
            ) from None
    return {"tables_created": made}


async def undo(run: Run) -> None:
    """Drop the targets, the mapping and the journal, or keep all."""
    if not run.options.drop_targets:
        return
    await until_quiet(run)  # a batch that lands later would leave rows that nothing accounts for
    for target in run.targets:
        await run.tables.delete_table(target.name)
    with suppress(TableMissing):  # cut off before there was one
        await forget_mapping(run)
    if not run.is_delta:
        with suppress(TableMissing):
            await run.journal.clear()


async def forget_mapping(run: Run) -> None:
    """Delete all mapping rows of this migration."""
    for direction in ("f", "r"):
        async for page in run.mapping.scan(direction):
            partitions: dict[str, list[Write]] = {}
            for row in page.rows:
                partitions.setdefault(row["PartitionKey"], []).append(Write(Verb.DELETE, row, "*"))
            for writes in partitions.values():
                for start in range(0, len(writes), MAX_BATCH_OPERATIONS):
                    await run.mapping.table.transact(writes[start : start + MAX_BATCH_OPERATIONS])


PREPARE = Operation(Phase.PREPARE, gate=gate, run=run, undo=undo)
