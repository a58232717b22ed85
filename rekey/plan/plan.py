"""Making plans: read the source, try the mapping, say what will happen. Nothing is written anywhere.

Rules kept here:

* Tables are only read, the state is not touched; temporary files hold keyed digests and go with the plan.
* A missing table, a missing secret, a row that cannot be mapped, a collision are findings of the plan, not
  errors of the command. A credential that is refused or an endpoint that is down is an error.
* Designs that are compared see the very same rows: the source is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from rekey.core.clock import Clock, SystemClock, format_ticks
from rekey.core.progress import Progress, Silent
from rekey.errors import TableMissing
from rekey.inspect.inventory import Inventory, read_sample, read_whole
from rekey.model import Row
from rekey.plan.builder import PlanBuilder, keys_of
from rekey.plan.result import Basis, MigrationPlan, Plan, TableState
from rekey.plan.subject import PlanOptions, Subject
from rekey.tables.base import Table, TableService


async def make_plan(
    subjects: Sequence[Subject],
    tables: TableService,
    options: PlanOptions,
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Plan migrations, in the order in which they would be applied.

    Raises:
        CredentialRefused, EndpointDown, Unavailable: the service could not be asked.
        MachineFailed: the disk could not take the temporary files.
    """
    planned: list[MigrationPlan] = []
    makers: dict[str, str] = {}
    for subject in subjects:
        planned += await _plan([subject], tables, options, makers, progress or Silent())
        for table in subject.declared.migration.tables:
            makers[table.lower()] = subject.declared.script_id
    return _plan_of(planned, subjects, options, clock)


async def compare_designs(
    subjects: Sequence[Subject],
    tables: TableService,
    options: PlanOptions,
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Plan several designs of one migration, all from the same source, on one reading of it. Raises as
    `make_plan`."""
    planned = await _plan(subjects, tables, options, {}, progress or Silent())
    return _plan_of(planned, subjects, options, clock)


async def take_basis(subject: Subject, tables: TableService, options: PlanOptions) -> Basis:
    """Return what a plan made now would rest on, advice included: for `apply --plan`."""
    [plan] = await _plan([subject], tables, options, {}, Silent())
    return plan.basis


def _plan_of(
    planned: Sequence[MigrationPlan],
    subjects: Sequence[Subject],
    options: PlanOptions,
    clock: Clock | None,
) -> Plan:
    return Plan(
        made_at=format_ticks((clock or SystemClock()).ticks()),
        exact=options.exact,
        ids_hold=all(subject.ids_hold for subject in subjects),
        shows_keys=options.show_keys,
        migrations=tuple(planned),
    )


async def _plan(
    subjects: Sequence[Subject],
    tables: TableService,
    options: PlanOptions,
    makers: Mapping[str, str],
    progress: Progress,
) -> list[MigrationPlan]:
    """Plan migrations from one source, on one reading of it."""
    source = tables.table(subjects[0].declared.migration.source)
    named = ", ".join(subject.declared.script_id for subject in subjects)
    with ExitStack() as stack:
        advance = stack.enter_context(progress.task(f"{named}: read {source.name}"))
        builders = [
            stack.enter_context(
                PlanBuilder(
                    subject,
                    tables,
                    options,
                    targets=await _target_states(subject, tables),
                    maker=makers.get(source.name.lower()),
                    advance=_ignored if number else advance,
                )
            )
            for number, subject in enumerate(subjects)
        ]
        inventory = await _inventory(source, options, builders)
        plans = []
        for builder in builders:
            builder.end(inventory)
            wanted: set[bytes] = set()
            if options.show_keys and builder.found is not None:
                wanted = {one for group in builder.found.first for one in group.sources}
            plans.append(builder.plan(inventory, await keys_of(wanted, source, builder.subject)))
        return plans


async def _inventory(
    source: Table, options: PlanOptions, builders: Sequence[PlanBuilder]
) -> Inventory | None:
    """Read the source; None when there is no such table."""

    def take(rows: Sequence[Row], continues: bool) -> None:
        for builder in builders:
            builder.take(rows, continues)

    try:
        if options.exact:
            return await read_whole(source, take)
        return await read_sample(source, options.sample, take)
    except TableMissing:
        return None


async def _target_states(subject: Subject, tables: TableService) -> tuple[TableState, ...]:
    states = []
    for number, name in enumerate(subject.declared.migration.tables):
        exists = await tables.table_exists(name)
        first = await _first_row(tables.table(name)) if exists else None
        foreign = first is not None and not await _is_ours(subject, number, first)
        states.append(TableState(name, exists, holds_rows=foreign))
    return tuple(states)


async def _is_ours(subject: Subject, number: int, row: Row) -> bool:
    if subject.owns_row is not None:
        return await subject.owns_row(number, row)
    return subject.started is not None


async def _first_row(table: Table) -> Row | None:
    try:
        async for page in table.scan(page_rows=1):
            if page.rows:
                return page.rows[0]
    except TableMissing:
        # It went between the two questions: then it holds nothing.
        return None
    return None


def _ignored(_rows: int) -> None:
    """Progress of further designs of the same rows: it is not shown."""
