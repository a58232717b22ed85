"""Looks for the rows that references name: a bounded number of reads, in the table that the other migration
reads, or after its cutover in the one that it fills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from rekey.core.concurrency import for_each
from rekey.core.key_space import KeySpace
from rekey.core.limits import check_key, is_in_target_account
from rekey.declaration.keys.base import Evaluator, Expression, Scope
from rekey.declaration.kinds import RowKind, kind_numbers
from rekey.declaration.migration import Migration
from rekey.declaration.props import Compute
from rekey.declaration.references import Reference
from rekey.errors import CredentialRefused, RowRefused, SecretMissing, TableBeingDeleted, TableMissing
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row, key_of
from rekey.plan.problems import NAMED_ROWS
from rekey.plan.result import ReferredRows, Requests
from rekey.present.text import counted
from rekey.protocol.control import ControlStore
from rekey.protocol.opening import OpenMigration
from rekey.protocol.rules import TARGET, authority
from rekey.tables.base import MAX_PAGE_ROWS, Accounts, Table, TableService, TwoAccounts
from rekey.tables.part import part_of
from rekey.tables.sent import RequestKind

# Rows that are read one by one, or pages of keys where a reference says but one of the two keys.
MOST_KEYS, MOST_PAGES = 1_000, 50
PREPARE = "prepare"

# The keys of a row as a reference says them: "" for the one that it does not say.
Name = tuple[str, str]


@dataclass(frozen=True)
class Lookup:
    """Where the rows are that a property refers to, and what the row with the property says of their keys."""

    operation: Compute
    reference: Reference
    kind: RowKind | None
    table: str
    key_space: KeySpace | None
    # By the key: PartitionKey, RowKey or both.
    key: Mapping[str, Evaluator]

    def name_in(self, row: Row) -> Name | None:
        """Return what a row says of the other row's key; None if it refers to none."""
        if any(row.get(name) is None for name in self.operation.needed):
            return None
        with suppress(RowRefused):  # refused by the mapping, too
            key = {name: evaluate(row, "") for name, evaluate in self.key.items()}
            return key.get(PARTITION_KEY, ""), key.get(ROW_KEY, "")
        return None


async def lookups_of(migration: OpenMigration) -> tuple[Lookup, ...]:
    """Return where to look for the rows that a migration's references name, without looking. Raises
    CredentialRefused, EndpointDown, Unavailable: a control row could not be read."""
    lookups = []
    for kind, operation, reference in _references(migration.prepared.declared.migration):
        in_target = await _is_cut_over(migration.accounts, reference)
        expressions = reference.new_key if in_target else reference.old_key
        key = _evaluators(expressions, reference.column, migration.prepared.known_secrets)
        if key is None:
            continue  # its secret is missing, which the plan says
        to = reference.to
        lookups.append(
            Lookup(
                operation,
                reference,
                kind,
                reference.target if in_target else to.source,
                None if in_target else to.key_space,
                key,
            )
        )
    return tuple(lookups)


def _references(migration: Migration) -> Iterator[tuple[RowKind | None, Compute, Reference]]:
    """Yield the references of a migration, each once, with the kind of the rows that have it."""
    seen: set[tuple[str, Compute]] = set()
    for number, (target, indexes) in enumerate(migration.rules):
        kind = migration.kinds[number] if migration.kinds else None
        for table in (target, *indexes):
            for operation in table.property_mapping.computed.values():
                entry = "" if kind is None else kind.name, operation
                if operation.reference is not None and entry not in seen:
                    seen.add(entry)
                    yield kind, operation, operation.reference


async def _is_cut_over(accounts: Accounts, reference: Reference) -> bool:
    """Tell whether the other migration's target is the authority."""
    control = await ControlStore(accounts.restricted, reference.via, reference.to.group).read()
    if control is None or control.source.lower() != reference.to.source.lower():
        return False
    return authority(control.unfrozen) is TARGET


def _evaluators(
    expressions: Mapping[str, Expression], column: str, secrets: Mapping[str, bytes]
) -> Mapping[str, Evaluator] | None:
    """Return what gives the other row's keys; None without the secret of the reference itself."""
    evaluators = {}
    for key, expression in expressions.items():
        try:
            evaluators[key] = expression.compile(Scope("references", secrets))
        except SecretMissing:
            if key == column:
                return None
    return evaluators


async def look_up(
    lookup: Lookup, rows: Sequence[Row], others: Sequence[RowKind], service: TableService, concurrency: int
) -> tuple[ReferredRows, list[Row]]:
    """Return how many of these rows refer to rows that are not there, and these rows, the first ones alone.

    Args:
        lookup: where to look.
        rows: source rows.
        others: all kinds of the migration.
        service: the account of the tables.
        concurrency: requests at a time.

    Raises:
        EndpointDown, Unavailable: the service could not be asked.
    """
    number_of = kind_numbers(others)
    mine = None if lookup.kind is None else others.index(lookup.kind)
    named = [(name, row) for row in rows if number_of(row) == mine and (name := lookup.name_in(row))]
    names = list(dict.fromkeys(name for name, _ in named))
    search = _Search(part_of(service.table(lookup.table), lookup.key_space), concurrency)
    if is_in_target_account(lookup.table) and not isinstance(service, TwoAccounts):
        search.reason = f"{lookup.table} is in the account of [targets], which is not configured"
    elif names:
        await search.run(names, by_key=len(lookup.key) == 2)
    decided = [(name, row) for name, row in named if name in search.there or name in search.missing]
    missing = [row for name, row in decided if name in search.missing]
    referred = ReferredRows(
        name=lookup.reference.name,
        to=lookup.operation.name,
        via=lookup.reference.via,
        table=lookup.table,
        rows=len(named),
        rows_looked_up=len(decided),
        rows_missing=len(missing),
        not_looked_up=search.reason,
        refuses=lookup.operation.on_missing == "refuse",
        removes=bool(lookup.operation.removes),
        requests=tuple(
            Requests(PREPARE, "look for rows that are referred to", kind, count)
            for kind, count in sorted(search.sent.items())
        ),
    )
    return referred, missing[:NAMED_ROWS]


class _Search:
    """Looks for rows in one table."""

    def __init__(self, table: Table, concurrency: int) -> None:
        self.there: set[Name] = set()
        self.missing: set[Name] = set()
        # Why some rows were not looked for.
        self.reason = ""
        self.sent: Counter[RequestKind] = Counter()
        self._table, self._concurrency = table, concurrency

    async def run(self, names: Sequence[Name], *, by_key: bool) -> None:
        """Look for the rows of these names: keys, or one key of each."""
        try:
            if by_key:
                await self._read(names[:: -(-len(names) // MOST_KEYS)])
            else:
                await self._scan(names)
        except (TableMissing, TableBeingDeleted):
            self.reason = f"there is no table {self._table.name}"
        except CredentialRefused:
            self.reason = f"there is no right to read {self._table.name}"
        if self.reason:
            self.missing.clear()

    async def _read(self, names: Sequence[Name]) -> None:
        async def read(name: Name) -> None:
            if not _may_be_key(name):
                self.missing.add(name)
                return
            self.sent[RequestKind.READ] += 1
            row = await self._table.get(EntityKey(*name), select=[PARTITION_KEY])
            (self.missing if row is None else self.there).add(name)

        await for_each(names, read, limit=self._concurrency)

    async def _scan(self, names: Collection[Name]) -> None:
        wanted = set(names)
        scan = self._table.scan(select=[PARTITION_KEY])
        async with aclosing(scan) as pages:  # type: ignore[type-var]  # all scans are generators
            async for page in pages:
                if self.sent[RequestKind.SCAN] >= MOST_PAGES:
                    least = counted(MOST_PAGES * MAX_PAGE_ROWS, "row")
                    self.reason = f"{self._table.name} has more than {least}, and partition= is not said"
                    return
                self.sent[RequestKind.SCAN] += 1
                for key in map(key_of, page.rows):
                    self.there |= wanted & {("", key.row), (key.partition, "")}
                if self.there == wanted:
                    return
        self.missing = wanted - self.there


def _may_be_key(name: Name) -> bool:
    try:
        for key in name:
            check_key(key, "", allow_empty=True)
    except RowRefused:
        return False
    return True
