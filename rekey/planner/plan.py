"""Making a plan: read the source, try the mapping, say what will happen. Nothing is written anywhere.

Rules kept here:

* Tables are only read, the state is not touched; temporary files hold keyed digests and go with the plan.
* A missing table, a missing secret, a row that cannot be mapped, a collision are findings of the plan, not
  errors of the command. A credential that is refused or an endpoint that is down is an error.
* Keys are kept only when `show_keys` was asked for; otherwise nothing of the result holds one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rekey.advice.advise import advise
from rekey.advice.gather import Gatherer
from rekey.advice.queries import rated
from rekey.bounds import Limits
from rekey.declaration import Declared
from rekey.errors import TableMissing
from rekey.limits import PARTITION_TARGET
from rekey.mapping.ids import SafeIds
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row, key_of
from rekey.planner.collisions import CollisionSearch, Found
from rekey.planner.estimate import Pace, Workload, estimate
from rekey.planner.inventory import Inventory, SampleSize, read_sample, read_whole
from rekey.planner.problems import (
    Started,
    declaration_problems,
    ordered,
    row_problems,
    sealing_problems,
    table_problems,
)
from rekey.planner.result import (
    Basis,
    CollisionGroup,
    Collisions,
    MigrationPlan,
    Plan,
    TableFill,
    TableState,
)
from rekey.planner.survey import MapsRows, Survey
from rekey.progress import Advance, Progress, Silent
from rekey.tables.base import Table, TableService
from rekey.tables.clock import Clock, SystemClock, format_ticks

OwnsRow = Callable[[int, Row], Awaitable[bool]]
"""Tells whether this migration wrote a row of its target table with that number (0: main)."""


@dataclass(frozen=True)
class Subject:
    """One migration to plan, with what the caller knows of it.

    Attributes:
        declared: the script.
        mapper: None when a secret is missing: then no row can be mapped.
        ids: the migration's safe ids, or ephemeral ones.
        ids_hold: whether `ids` are the migration's own.
        secret_fingerprints: of the secrets that were found, by name.
        missing_secrets: names of those that were not.
        no_wrapping_key: why the wrapping key of a sealed mapping cannot be used; "" when it can, or none is
            needed.
        started: what is known of it when it was begun before.
        owns_row: asked about the first row of a target that holds rows; None: every such row is foreign,
            unless the migration was begun before.
    """

    declared: Declared
    mapper: MapsRows | None
    ids: SafeIds
    ids_hold: bool = False
    secret_fingerprints: Mapping[str, str] = field(default_factory=dict)
    missing_secrets: tuple[str, ...] = ()
    no_wrapping_key: str = ""
    started: Started | None = None
    owns_row: OwnsRow | None = None


@dataclass(frozen=True)
class PlanOptions:
    """How to plan.

    Attributes:
        exact: read every row instead of a sample.
        show_keys: keep keys of examples and collisions in the result, for the operator's eyes only.
        sample: how much a sample reads.
        limits: the configured limits: window size, concurrency, rate.
        spill: folder for temporary files, the system's by default.
        is_cosmos: the endpoint is Cosmos DB's, which has limits of its own.
    """

    exact: bool = False
    show_keys: bool = False
    sample: SampleSize = field(default_factory=SampleSize)
    limits: Limits = field(default_factory=Limits)
    spill: Path | None = None
    is_cosmos: bool = False


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
        planned.append(await _plan_one(subject, tables, options, makers, progress or Silent()))
        for table in subject.declared.migration.tables:
            makers[table.lower()] = subject.declared.script_id
    return Plan(
        made_at=format_ticks((clock or SystemClock()).ticks()),
        exact=options.exact,
        ids_hold=all(subject.ids_hold for subject in subjects),
        shows_keys=options.show_keys,
        migrations=tuple(planned),
    )


async def take_basis(subject: Subject, tables: TableService, options: PlanOptions) -> Basis:
    """Return what a plan made now would rest on, without trying the mapping: for `apply --plan`."""
    targets = await _target_states(subject, tables)
    return _basis(subject, await _inventory(subject, tables, options, None), targets, options)


async def _plan_one(
    subject: Subject,
    tables: TableService,
    options: PlanOptions,
    makers: Mapping[str, str],
    progress: Progress,
) -> MigrationPlan:
    declared = subject.declared
    targets = await _target_states(subject, tables)
    problems = declaration_problems(
        declared, subject.started, subject.missing_secrets, subject.secret_fingerprints
    )
    problems += sealing_problems(subject.no_wrapping_key)
    label = f"{declared.script_id}: read {declared.migration.source}"
    with CollisionSearch(options.spill) as search, progress.task(label) as advance:
        gatherer = _gatherer(subject, options)
        survey = _survey(subject, tables, options, search, advance, gatherer)
        inventory = await _inventory(subject, tables, options, survey)
        maker = makers.get(declared.migration.source.lower())
        problems += table_problems(declared, inventory is not None, maker, targets)
        plan = MigrationPlan(
            script_id=declared.script_id,
            path=declared.path,
            title=declared.doc.strip().partition("\n")[0],
            basis=_basis(subject, inventory, targets, options),
            inventory=inventory,
            problems=ordered(problems),
        )
        if survey is None or inventory is None or gatherer is None:
            return plan
        survey.finish()
        collisions = await _collisions(subject, tables, search.finish(), inventory, options)
    plan = _with_rows(plan, survey, inventory, collisions, options.limits, ids_hold=subject.ids_hold)
    return _with_advice(plan, gatherer, inventory, collisions) if survey.target_rows[0] else plan


def _gatherer(subject: Subject, options: PlanOptions) -> Gatherer | None:
    """Return what counts for advice while rows are mapped, None when a secret is missing."""
    if subject.mapper is None:
        return None
    return Gatherer(subject.declared.migration, subject.mapper.map, is_cosmos=options.is_cosmos)


def _with_advice(
    plan: MigrationPlan, gatherer: Gatherer, inventory: Inventory, collisions: Collisions
) -> MigrationPlan:
    """Return the plan with advice on the keys, and with how declared queries are answered."""
    colliding: dict[int, int] = {}
    for group in collisions.first:
        number = next(at for at, fill in enumerate(plan.fills) if fill.table == group.table)
        colliding[number] = colliding.get(number, 0) + group.rows
    facts = gatherer.facts(inventory, plan.fills, colliding)
    return replace(plan, advice=advise(facts), queries=rated(facts))


def _survey(
    subject: Subject,
    tables: TableService,
    options: PlanOptions,
    search: CollisionSearch,
    advance: Advance,
    gatherer: Gatherer | None,
) -> Survey | None:
    """Return what tries the mapping on rows, None when a secret is missing."""
    if subject.mapper is None or gatherer is None:
        return None
    migration = subject.declared.migration
    return Survey(
        subject.mapper,
        subject.ids,
        migration.source,
        search,
        size_of=[tables.table(name).encoded_size for name in migration.tables],
        window_rows=options.limits.window_rows,
        window_bytes=options.limits.window_bytes,
        show_keys=options.show_keys,
        advance=advance,
        witness=gatherer.take,
    )


def _with_rows(
    plan: MigrationPlan,
    survey: Survey,
    inventory: Inventory,
    collisions: Collisions,
    limits: Limits,
    *,
    ids_hold: bool,
) -> MigrationPlan:
    """Return the plan with what trying the mapping on rows has shown."""
    fills = _fills(survey, inventory)
    work = Workload(
        source_rows=inventory.rows.rows,
        largest_source_partition=inventory.largest_partition,
        mapping_batches=_scaled(survey.mapping_batches, inventory.rows.rows, survey.packed_rows),
        fills=fills,
    )
    more = row_problems(inventory, survey.refused, collisions, fills, ids_hold)
    return replace(
        plan,
        problems=ordered([*plan.problems, *more]),
        mapped_rows=survey.rows,
        examples=survey.examples,
        refused=survey.refused,
        collisions=collisions,
        fills=fills,
        estimate=estimate(work, Pace(limits.concurrency, limits.entities_per_second)),
    )


async def _inventory(
    subject: Subject, tables: TableService, options: PlanOptions, survey: Survey | None
) -> Inventory | None:
    """Read the source; None when there is no such table."""
    source = tables.table(subject.declared.migration.source)
    take = survey.take if survey is not None else _ignore
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


async def _collisions(
    subject: Subject, tables: TableService, found: Found, inventory: Inventory, options: PlanOptions
) -> Collisions:
    names = subject.declared.migration.tables
    keys: Mapping[bytes, EntityKey] = {}
    if options.show_keys and found.first:
        wanted = {source for group in found.first for source in group.sources}
        keys = await _keys_of(wanted, tables.table(subject.declared.migration.source), subject.ids)
    groups = tuple(
        CollisionGroup(
            table=names[group.table],
            rows=group.rows,
            row_ids=group.row_ids,
            old_keys=tuple(keys[source] for source in group.sources if source in keys)
            if options.show_keys
            else None,
        )
        for group in found.first
    )
    return Collisions(found.keys, found.rows, groups, exact=inventory.exact)


async def _keys_of(wanted: set[bytes], source: Table, ids: SafeIds) -> dict[bytes, EntityKey]:
    """Return the keys behind raw safe ids by reading the source again: digests cannot be turned back."""
    keys: dict[bytes, EntityKey] = {}
    async for page in source.scan(select=[PARTITION_KEY, ROW_KEY]):
        for row in page.rows:
            key = key_of(row)
            raw = ids.raw(source.name, key)
            if raw in wanted:
                keys[raw] = key
        if len(keys) == len(wanted):
            break
    return keys


def _basis(
    subject: Subject, inventory: Inventory | None, targets: tuple[TableState, ...], options: PlanOptions
) -> Basis:
    declared = subject.declared
    return Basis(
        script_id=declared.script_id,
        declaration=declared.digest,
        secrets=dict(sorted(subject.secret_fingerprints.items())),
        source=declared.migration.source,
        source_exists=inventory is not None,
        # A sample that happened to be the whole table promises no more than a sample.
        exact=options.exact,
        rows=inventory.rows.rows if inventory is not None else 0,
        inventory=inventory.digest if inventory is not None and options.exact else None,
        targets=targets,
    )


def _fills(survey: Survey, inventory: Inventory) -> tuple[TableFill, ...]:
    """Return what each target gets, scaled from what was looked at to the whole source.

    Partitions are not scaled: whether rows further on share those met so far, nobody knows.
    """
    rows, exact = inventory.rows.rows, inventory.exact
    return tuple(
        TableFill(
            table=name,
            rows=_scaled(target_rows, rows, survey.rows),
            batches=_scaled(packing.batches, rows, survey.packed_rows),
            partitions=packing.tally.partitions,
            partitions_exact=exact and packing.tally.exact,
            largest_partition=packing.tally.largest,
            hottest_seconds=packing.hottest
            * (rows / survey.packed_rows if survey.packed_rows else 0.0)
            / PARTITION_TARGET,
        )
        for name, target_rows, packing in zip(survey.tables, survey.target_rows, survey.packing, strict=True)
    )


def _scaled(counted: int, rows: int, looked_at: int) -> int:
    """Return a count made over `looked_at` rows as it is likely to be over `rows`."""
    return round(counted * rows / looked_at) if looked_at else 0


def _ignore(_rows: Sequence[Row], _continues: bool) -> None:
    """Take no interest in rows."""
