"""Building the plan of one migration while the rows of its source go by.

Rules kept here:

* Rows are given, not read: one reading of a source may serve several designs.
* A migration whose secret is missing takes no rows; its plan says what is known without.
* Keys are kept only when `show_keys` was asked for; otherwise nothing of the result holds one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from rekey.copy.scan import window_of
from rekey.core.limits import PARTITION_TARGET
from rekey.core.progress import Advance
from rekey.core.severity import Severity
from rekey.inspect.inventory import Inventory
from rekey.model import EntityKey, Row, key_of
from rekey.plan.advice.advise import advise
from rekey.plan.advice.facts import Facts
from rekey.plan.advice.gather import Gatherer
from rekey.plan.advice.queries import rated
from rekey.plan.collisions import CollisionSearch, Found
from rekey.plan.estimate import estimate
from rekey.plan.portrait import Portrayer
from rekey.plan.problems import (
    declaration_problems,
    ordered,
    row_problems,
    sealing_problems,
    table_problems,
)
from rekey.plan.requests import Batches, Workload
from rekey.plan.result import Advice, Basis, CollisionGroup, Collisions, MigrationPlan, TableFill, TableState
from rekey.plan.subject import PlanOptions, Subject
from rekey.plan.survey import MappingSizes, Survey
from rekey.tables.base import Table, TableService

Keys = Mapping[bytes, EntityKey]
"""Keys of source rows by their raw safe ids: for collisions that are to be shown with keys."""


class PlanBuilder:
    """Builds the plan of one migration. Use it as a context manager."""

    def __init__(
        self,
        subject: Subject,
        tables: TableService,
        options: PlanOptions,
        *,
        targets: tuple[TableState, ...],
        maker: str | None,
        advance: Advance,
    ) -> None:
        """Take the migration, the tables, and what was asked of the target tables.

        Args:
            subject: the migration.
            tables: the account; nothing is asked of it here.
            options: how to plan.
            targets: the target tables as they are.
            maker: the script among those planned before that makes the source, None when there is none.
            advance: told the rows of every page.
        """
        self.subject = subject
        self.targets = targets
        self.found: Found | None = None
        self._options = options
        self._maker = maker
        self._stack = ExitStack()
        self._search: CollisionSearch | None = None
        self._survey: Survey | None = None
        migration = subject.declared.migration
        mapper = subject.mapper
        if mapper is None:
            return
        self._gatherer = Gatherer(migration, mapper.map, is_cosmos=options.is_cosmos)
        self._portrayer = Portrayer(migration)
        self._search = self._stack.enter_context(CollisionSearch())
        self._survey = Survey(
            mapper,
            subject.ids,
            migration.source,
            self._search,
            size_of=[tables.table(name).encoded_size for name in migration.tables],
            window=window_of(options.limits),
            mapping=MappingSizes(
                subject.declared.script_id, migration.source, migration.tables, sealed=migration.is_sealed
            ),
            show_keys=options.show_keys,
            advance=advance,
            witness=self._witness,
        )

    def __enter__(self) -> PlanBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take(self, rows: Sequence[Row], continues: bool) -> None:
        """Take the rows of one page; `continues`: they follow the page before without a gap."""
        if self._survey is not None:
            self._survey.take(rows, continues)

    def end(self, inventory: Inventory | None) -> None:
        """End the taking of rows; from here on `found` tells of collisions."""
        if self._survey is not None and self._search is not None and inventory is not None:
            self._survey.finish(whole=inventory.exact)
            self.found = self._search.finish()

    def plan(self, inventory: Inventory | None, keys: Keys) -> MigrationPlan:
        """Return the plan, after `end`."""
        declared, subject = self.subject.declared, self.subject
        problems = (
            *declaration_problems(
                declared, subject.started, subject.missing_secrets, subject.secret_fingerprints
            ),
            *sealing_problems(subject.no_wrapping_key),
            *table_problems(declared, inventory is not None, self._maker, self.targets),
        )
        plan = MigrationPlan(
            script_id=declared.script_id,
            path=declared.path,
            title=declared.doc.strip().partition("\n")[0],
            basis=basis_of(subject, inventory, self.targets, self._options),
            inventory=inventory,
            problems=ordered(problems),
        )
        if self._survey is None or self.found is None or inventory is None:
            return plan
        collisions = self._collisions(self.found, keys, exact=inventory.exact)
        return self._with_rows(plan, self._survey, inventory, collisions)

    def _witness(self, row: Row, mapped: Sequence[tuple[int, Row]]) -> None:
        self._gatherer.take(row, mapped)
        self._portrayer.take(row, mapped)

    def _collisions(self, found: Found, keys: Keys, *, exact: bool) -> Collisions:
        names = self.subject.declared.migration.tables
        groups = tuple(
            CollisionGroup(
                table=names[group.table],
                rows=group.rows,
                row_ids=group.row_ids,
                old_keys=tuple(keys[source] for source in group.sources if source in keys)
                if self._options.show_keys
                else None,
            )
            for group in found.first
        )
        return Collisions(found.keys, found.rows, exact, groups)

    def _with_rows(
        self, plan: MigrationPlan, survey: Survey, inventory: Inventory, collisions: Collisions
    ) -> MigrationPlan:
        """Return the plan with what trying the mapping on rows has shown."""
        fills = _fills(survey, inventory)
        facts = None
        if survey.target_rows[0]:
            facts = self._facts(inventory, fills, collisions)
            fills = _with_bytes(fills, facts)
        more = row_problems(inventory, survey.refused, collisions, fills, self.subject.ids_hold)
        plan = replace(
            plan,
            problems=ordered([*plan.problems, *more]),
            mapped_rows=survey.rows,
            examples=survey.examples,
            refused=survey.refused,
            collisions=collisions,
            fills=fills,
            estimate=estimate(
                self._workload(survey, inventory, fills),
                self._options.limits,
                retention_s=self._options.gates.retention_s,
                prices=self._options.prices,
            ),
        )
        if facts is None:
            return plan
        columns = [(one.partition_keys, one.row_keys) for one in facts.tables]
        found = advise(facts)
        return replace(
            plan,
            basis=replace(plan.basis, advice=weighty(found)),
            advice=found,
            queries=rated(facts),
            portraits=self._portrayer.portraits(self.subject.ids, columns, fills),
            loads=self._portrayer.loads(self.subject.ids),
        )

    def _facts(self, inventory: Inventory, fills: Sequence[TableFill], collisions: Collisions) -> Facts:
        """Return what advice is judged from."""
        colliding: dict[int, int] = {}
        for group in collisions.first:
            number = next(at for at, fill in enumerate(fills) if fill.table == group.table)
            colliding[number] = colliding.get(number, 0) + group.rows
        facts = self._gatherer.facts(inventory, fills, colliding)
        return replace(facts, prices=self._options.prices)

    def _workload(self, survey: Survey, inventory: Inventory, fills: Sequence[TableFill]) -> Workload:
        migration = self.subject.declared.migration
        sends, rows = survey.packing.mapping_sends, inventory.rows.rows
        return Workload(
            source_rows=rows,
            largest_source_partition=inventory.largest_partition,
            mapping=Batches.of(
                2 * _scaled(survey.rows - survey.refused_rows, rows, survey.rows), sends.fills
            ),
            fills=fills,
            page_rows=survey.packing.page_rows,
            follows=migration.capture == "delta",
            sealed=migration.is_sealed,
            tries_rows=self._options.tries_rows,
            source_bytes=inventory.stored_bytes,
            mapping_bytes=round(survey.mapping.mean * rows),
        )


def basis_of(
    subject: Subject, inventory: Inventory | None, targets: tuple[TableState, ...], options: PlanOptions
) -> Basis:
    """Return what a plan rests on, but for its advice."""
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


def weighty(found: Sequence[Advice]) -> dict[str, Severity]:
    """Return what of advice a plan rests on: the codes of errors and warnings on planned keys, each with its
    highest severity. Figures and notes change with every row; what the script waives stays."""
    rests: dict[str, Severity] = {}
    for one in found:
        if not one.today and one.severity is not Severity.NOTE:
            known = rests.get(one.code, one.severity)
            rests[one.code] = min(known, one.severity, key=lambda severity: severity.place)
    return dict(sorted(rests.items()))


async def keys_of(wanted: set[bytes], source: Table, subject: Subject) -> Keys:
    """Return the keys of raw safe ids by reading the source again: digests cannot be turned back."""
    keys: dict[bytes, EntityKey] = {}
    if not wanted:
        return keys
    async for page in source.scan(select=["PartitionKey", "RowKey"]):
        for row in page.rows:
            key = key_of(row)
            raw = subject.ids.raw(source.name, key)
            if raw in wanted:
                keys[raw] = key
        if len(keys) == len(wanted):
            break
    return keys


def _fills(survey: Survey, inventory: Inventory) -> tuple[TableFill, ...]:
    """Return what each target gets, scaled from what was looked at to the whole source.

    Partitions are not scaled: whether rows further on share those met so far is not known.
    """
    fills = []
    for name, target_rows, sends, tally in zip(
        survey.tables, survey.target_rows, survey.packing.sends, survey.partitions, strict=True
    ):
        rows = _scaled(target_rows, inventory.rows.rows, survey.rows)
        hottest = sends.hottest * (rows / sends.given if sends.given else 0.0)
        fills.append(
            TableFill(
                table=name,
                rows=rows,
                batches=Batches.of(rows, sends.fills).requests,
                partitions=tally.partitions,
                partitions_exact=inventory.exact and tally.exact,
                largest_partition=tally.largest,
                hottest_seconds=hottest / PARTITION_TARGET,
                fills=dict(sends.fills),
            )
        )
    return tuple(fills)


def _with_bytes(fills: Sequence[TableFill], facts: Facts) -> tuple[TableFill, ...]:
    """Return the fills with the bytes that the service will bill, by the rows looked at."""
    return tuple(
        replace(fill, stored_bytes=round(fill.rows * table.mean_row_bytes))
        for fill, table in zip(fills, facts.planned, strict=True)
    )


def _scaled(counted: int, rows: int, looked_at: int) -> int:
    """Return a count made over `looked_at` rows as it is likely to be over `rows`."""
    return round(counted * rows / looked_at) if looked_at else 0
