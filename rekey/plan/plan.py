"""Makes plans: reads the source, maps its rows, estimates and judges the migration. Nothing is written except
sealed temporary files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import compress

from rekey.core.clock import Clock, SystemClock, format_ticks
from rekey.core.limits import PARTITION_TARGET, is_in_target_account
from rekey.core.progress import Progress
from rekey.core.severity import Severity
from rekey.core.spill import OverBound
from rekey.errors import TableMissing
from rekey.inspect.inventory import Inventory, read_sample, read_whole
from rekey.model import Row, key_of
from rekey.phases import ControlPhase
from rekey.plan.absent import spelling_of
from rekey.plan.advice.access import rated
from rekey.plan.advice.advise import advise
from rekey.plan.advice.gather import facts_of_declaration
from rekey.plan.estimate import Batches, Workload, estimate
from rekey.plan.problems import (
    declaration_problems,
    disk_problems,
    expired_problems,
    no_room,
    ordered,
    reference_problems,
    row_problems,
    table_problems,
    time_problems,
)
from rekey.plan.references import look_up
from rekey.plan.result import (
    EVERY_ROW,
    SAMPLED,
    SKIPPED,
    Advice,
    Basis,
    Disk,
    Figures,
    MappingResult,
    MigrationPlan,
    Plan,
    Problem,
    ReferredRows,
    TableFill,
    TableState,
)
from rekey.plan.subject import PlanOptions, Subject
from rekey.plan.survey import RowSample, Survey
from rekey.project.config import RowCheck
from rekey.tables.base import Table, TableService
from rekey.tables.joint import apart, opened
from rekey.tables.part import part_of, parts_of
from rekey.tables.similar import similar_tables

# From the freeze on the application may write rows to the targets that the mapping does not know.
_WRITTEN = frozenset(ControlPhase) - {ControlPhase.SOURCE, ControlPhase.DUAL_WRITE}


async def make_plan(
    subjects: Sequence[Subject],
    tables: TableService,
    options: PlanOptions,
    *,
    one_reading: bool = False,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Plan migrations, in the order in which they would be applied. A missing table or secret, a row that
    cannot be mapped and a collision are findings of the plan, not errors.

    Args:
        subjects: the migrations.
        tables: the account.
        options: how to plan.
        one_reading: they are designs of one migration, planned on one reading of their source.
        clock: gives the time at which the plan was made.
        progress: receives the rows as they are read.

    Raises:
        CredentialRefused, EndpointDown, Unavailable: the service could not be asked.
        MachineFailed: the disk could not take the temporary files.
    """
    progress = progress or Progress()
    planned: list[MigrationPlan] = []
    makers: dict[str, str] = {}
    for group in [subjects] if one_reading else [[subject] for subject in subjects]:
        planned += await _plan(group, tables, options, makers, progress)
        for subject in group:
            script_id, created = subject.declared.script_id, subject.declared.migration.table_names
            makers |= dict.fromkeys(map(str.lower, created), script_id)
    made_at = format_ticks((clock or SystemClock()).ticks())
    ids_hold = all(subject.ids_hold for subject in subjects)
    return Plan(made_at, options.exact, ids_hold, options.show_keys, tuple(planned))


def plan_offline(subjects: Sequence[Subject], options: PlanOptions, clock: Clock) -> Plan:
    """Plan migrations by their declarations alone, asking no account; arguments as for `make_plan`."""
    planned = []
    for subject in subjects:
        migration = subject.declared.migration
        facts = facts_of_declaration(migration)
        states = tuple(TableState(name, False, False) for name in migration.table_names)
        plan = _without_rows(subject, options, None, states, ())
        planned.append(replace(plan, advice=advise(facts), queries=rated(facts)))
    return Plan(format_ticks(clock.ticks()), False, False, False, tuple(planned), offline=True)


async def take_basis(subject: Subject, tables: TableService, options: PlanOptions) -> Basis:
    """Return the basis of a plan made now, advice included: for `apply --plan`."""
    [plan] = await _plan([subject], tables, options, {}, Progress())
    return plan.basis


async def _plan(
    subjects: Sequence[Subject],
    tables: TableService,
    options: PlanOptions,
    makers: Mapping[str, str],
    progress: Progress,
) -> list[MigrationPlan]:
    """Plan migrations on one reading of their source, on a sample of it where reading every row takes more
    temporary files than allowed. `makers`: scripts by the lower-case table they make."""
    try:
        return await _plan_once(subjects, tables, options, makers, progress)
    except OverBound:
        if options.planning.row_check is RowCheck.FULL:
            raise no_room(options.free_disk) from None
    planning = replace(options.planning, row_check=RowCheck.SAMPLE)
    sampled = replace(options, exact=False, most_disk=None, planning=planning)
    return await _plan_once(subjects, tables, sampled, makers, progress)


async def _plan_once(
    subjects: Sequence[Subject],
    tables: TableService,
    options: PlanOptions,
    makers: Mapping[str, str],
    progress: Progress,
) -> list[MigrationPlan]:
    migration = subjects[0].declared.migration
    source = part_of(tables.table(migration.source), migration.key_space)
    named = ", ".join(subject.declared.script_id for subject in subjects)
    targets = [await _target_states(subject, tables) for subject in subjects]
    with ExitStack() as stack:
        advance = stack.enter_context(progress.task(f"{named}: read {source.name}"))
        surveys = [
            None
            if subject.mapper is None
            else stack.enter_context(Survey(subject, subject.mapper, tables, options))
            for subject in subjects
        ]
        sample = RowSample()

        def take(rows: Sequence[Row], part: int) -> None:
            sample.take(rows)
            for survey in filter(None, surveys):
                survey.take(rows, part)
            advance(len(rows))

        def expect(rows: int) -> None:
            progress.expect(rows)
            for survey in filter(None, surveys):
                survey.require_room(rows)

        inventory = None
        with suppress(TableMissing):  # a problem of the plan
            if options.exact:
                inventory = await read_whole(source, take, expect)
            else:
                inventory = await read_sample(source, options.sample, take)
            inventory = replace(inventory, stored_bytes=sample.stored_bytes(inventory))
        plans = []
        for subject, states, survey in zip(subjects, targets, surveys, strict=True):
            maker = makers.get(source.name.lower())
            similar = "" if inventory or maker else await similar_tables(tables, source.name)
            problems = table_problems(subject.declared, inventory is not None, maker, states, similar)
            plan = _without_rows(subject, options, inventory, states, problems)
            if survey is not None and inventory is not None:
                mapping = survey.finish(sample.parts(inventory), exact=inventory.exact)
                referred = await _referred(subject, sample.rows, tables, options)
                mapping = replace(mapping, references=referred)
                plan = _with_rows(plan, survey, mapping, inventory)
            plans.append(plan)
        return plans


async def _referred(
    subject: Subject, rows: Sequence[Row], tables: TableService, options: PlanOptions
) -> tuple[ReferredRows, ...]:
    """Look for the rows that references of these rows name."""
    migration, referred_rows = subject.declared.migration, []
    for lookup in subject.lookups:
        referred, missing = await look_up(lookup, rows, migration.kinds, tables, options.limits.concurrency)
        row_ids = tuple(subject.ids.short(migration.source, key_of(row)) for row in missing)
        referred_rows.append(replace(referred, row_ids=row_ids))
    return tuple(referred_rows)


async def _target_states(subject: Subject, tables: TableService) -> tuple[TableState, ...]:
    states = []
    migration = subject.declared.migration
    for table, name in enumerate(migration.tables):
        if name in migration.tables[:table]:
            continue
        is_written = subject.started is not None and subject.started.phase in _WRITTEN
        for each in apart(opened(name, parts_of(migration.key_spaces, tables.table))):
            exists = await tables.table_exists(each.name)
            first = await _first_row(each) if exists and not is_written else None
            foreign = first is not None and subject.started is None
            if first is not None and subject.owns_row is not None:
                number = table if subject.mapper is None else subject.mapper.number_of(table, first)
                foreign = not await subject.owns_row(number, first)
            states.append(TableState(each.name, exists, holds_rows=foreign))
    return tuple(states)


async def _first_row(table: Table) -> Row | None:
    with suppress(TableMissing):  # the table was deleted since it was found to exist: it holds nothing
        async for page in table.scan(page_rows=1):
            if page.rows:
                return page.rows[0]
    return None


def _without_rows(
    subject: Subject,
    options: PlanOptions,
    inventory: Inventory | None,
    targets: tuple[TableState, ...],
    found_problems: Iterable[Problem],
) -> MigrationPlan:
    """Return what is known of a migration before its mapping was tried on any row. `inventory`: of the
    source, None when it does not exist; `found_problems`: of the tables."""
    declared, started, fingerprints = subject.declared, subject.started, subject.secret_fingerprints
    problems = declaration_problems(
        *(declared, started, subject.missing_secrets, fingerprints, subject.no_wrapping_key, subject.taken),
        key_ranges=options.key_ranges,
    )
    expired = expired_problems(declared.migration, subject.expired)
    return MigrationPlan(
        script_id=declared.script_id,
        title=declared.doc.strip().partition("\n")[0],
        group=declared.migration.group,
        capture=declared.migration.capture,
        basis=Basis(
            script_id=declared.script_id,
            declaration=declared.digest,
            secrets=dict(sorted(fingerprints.items())),
            source=declared.migration.source,
            source_exists=inventory is not None,
            # A sample that happens to be the whole table still counts as a sample.
            exact=options.exact,
            rows=0 if inventory is None else inventory.rows.rows,
            inventory=inventory.digest if inventory is not None and options.exact else None,
            targets=targets,
            part="" if declared.migration.where is None else declared.migration.where.describe(),
        ),
        inventory=inventory,
        problems=ordered([*problems, *expired, *found_problems]),
    )


def _with_rows(
    plan: MigrationPlan, survey: Survey, mapping: MappingResult, inventory: Inventory
) -> MigrationPlan:
    """Return the plan with the results of mapping rows: problems, figures, estimate, advice."""
    subject, options, counts = survey.subject, survey.options, survey.counts
    migration, weights = subject.declared.migration, inventory.weights
    fills = _fills(survey, inventory)
    other_account = [
        is_in_target_account(table) != is_in_target_account(migration.source) for table in migration.tables
    ]
    disk_bytes = survey.needed_bytes(sum(fill.rows for fill in fills))
    row_check = _row_check(options, disk_bytes)
    mapping_rows = 0 if migration.inverse else 2 * round(weights.sum(counts.source_rows))
    work = Workload(
        source_rows=inventory.rows.rows,
        largest_source_partition=inventory.largest_partition,
        mapping=Batches.of(mapping_rows, survey.packing.mapping_sends.fills),
        fills=fills,
        page_rows=survey.packing.page_rows,
        follows=migration.capture == "delta",
        keeping=migration.mapping or "plain",
        tries_rows=row_check == EVERY_ROW,
        source_bytes=inventory.stored_bytes,
        mapping_bytes=survey.bytes.of_mapping(counts, weights),
        rows_elsewhere=sum(fill.rows for fill in compress(fills, other_account)),
        mapping_with_tables=options.mapping_with_tables,
    )
    by_kind, left = survey.kinds(weights), survey.not_migrated(weights)
    mapping = replace(mapping, fills=fills, kinds=by_kind, not_migrated=left)
    named = survey.absent if mapping.sampled_rows else {}
    absent = {name: (where, spelling_of(name, survey.present)) for name, where in named.items()}
    gates = options.gates
    estimated = estimate(
        work,
        options.limits,
        retention_s=gates.retention_s,
        prices=options.prices,
        referring=[requests for referred in mapping.references for requests in referred.requests],
    )
    estimated = replace(estimated, disk=Disk(row_check, disk_bytes, work.comparison_bytes))
    problems = [
        *row_problems(inventory, mapping, subject.ids_hold, absent),
        *reference_problems(inventory.table, mapping.references),
        *time_problems(estimated, gates, work.source_rows),
        *disk_problems(estimated.disk, options.planning, options.free_disk),
    ]
    plan = replace(plan, problems=ordered([*plan.problems, *problems]), mapping=mapping, estimate=estimated)
    if not sum(counts.source_rows):
        return plan
    colliding: Counter[str] = Counter()
    for group in mapping.collisions.first if mapping.collisions else ():
        colliding[group.table] += group.rows
    rows_per_partition = [sizes.mean_rows for sizes in survey.portrayer.sizes]
    facts = survey.gatherer.facts(inventory, fills, colliding, rows_per_partition)
    advice = advise(facts)
    return replace(
        plan,
        basis=replace(plan.basis, advice=basis_advice(advice)),
        advice=advice,
        queries=rated(facts),
        figures=Figures(
            survey.portrayer.portraits(subject.ids, fills, weights),
            survey.portrayer.loads(subject.ids, weights),
        ),
    )


def _row_check(options: PlanOptions, needed_bytes: int) -> str:
    """Return which rows `apply` tries before the first write. `needed_bytes`: of files, to try all."""
    planning, free = options.planning, options.free_disk
    if not options.tries_rows:
        return SKIPPED
    if options.exact and options.most_disk is not None:  # this plan is the check, and within its bound
        return EVERY_ROW
    most = planning.row_check_disk if free is None else min(planning.row_check_disk, free)
    samples = planning.row_check is RowCheck.AUTO and needed_bytes > most
    return SAMPLED if samples or planning.row_check is RowCheck.SAMPLE else EVERY_ROW


def _fills(survey: Survey, inventory: Inventory) -> tuple[TableFill, ...]:
    """Return rows, batches and partitions of each target. Partitions are not scaled: unread rows may share
    those met so far."""
    fills = []
    weights, secondary = inventory.weights, survey.mapper.co_located - {0}
    rows_of = [round(weights.sum(met)) for met in zip(*survey.counts.target_rows, strict=True)]
    for number, (name, rows, sends, tally) in enumerate(
        zip(survey.mapper.labels, rows_of, survey.packing.sends, survey.portrayer.partitions[1:], strict=True)
    ):
        with_main = number in secondary
        others = sum(rows_of[index] for index in secondary) if number == 0 else 0
        written = 0 if with_main else rows + others
        share = survey.portrayer.crowding[number + 1].share(survey.options.limits.scans)
        hottest = 0.0 if with_main else max(written * share, tally.largest)
        fills.append(
            TableFill(
                table=name,
                rows=rows,
                batches=Batches.of(written, sends.fills).requests,
                partitions=tally.partitions,
                partitions_exact=inventory.exact and tally.exact,
                largest_partition=tally.largest,
                hottest_seconds=hottest / PARTITION_TARGET,
                stored_bytes=survey.bytes.of_target(number, survey.counts, weights),
                fills=dict(sends.fills),
                secondary_rows=others,
                with_main=with_main,
            )
        )
    return tuple(fills)


def basis_advice(advice: Sequence[Advice]) -> dict[str, Severity]:
    """Return the advice of a plan's basis: codes of errors and warnings on planned keys, waived ones too,
    with the highest severity. Figures and notes change with every row."""
    entries = [piece for piece in advice if not piece.today and piece.severity is not Severity.NOTE]
    # The highest severity of a code comes last.
    entries.sort(key=lambda piece: (piece.code, -piece.severity.place))
    return {piece.code: piece.severity for piece in entries}
