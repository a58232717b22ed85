"""Kinds of rows: one table whose rows are told apart by conditions, each kind with keys, properties and
indexes of its own. Each row of the new tables proves its kind: by its table, its keys or constants."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Literal, TypeAlias

from rekey.core.edm import canonical, canonical_text
from rekey.core.joint import joint_name
from rekey.core.limits import is_in_target_account
from rekey.core.plain import exclude
from rekey.declaration.keys.base import (
    Concat,
    Evaluator,
    Expression,
    Join,
    Prop,
    Scope,
    constant_prefix,
    need,
    need_list,
    refuse_if,
)
from rekey.declaration.rows import Condition, Drop, need_condition
from rekey.declaration.targets import Index, Target
from rekey.model import PARTITION_KEY, ROW_KEY, Row

_NAME = re.compile(r"[0-9A-Za-z_-]{1,60}")
NO_KIND = "no kind takes the row"
NO_KIND_CURE = (
    "widen the `when` of a kind, add a last kind with when=rows.every(), or give up such rows with"
    " otherwise=rows.drop(reason=…)"
)

# What becomes of rows that no kind takes.
Otherwise: TypeAlias = Literal["refuse", "leave"] | Drop
REFUSE: Otherwise = "refuse"
LEAVE: Otherwise = "leave"


@dataclass(frozen=True)
class RowKind:
    """Rows of one kind, and what they become.

    Args:
        name: its name in plans and errors: 1 to 60 letters, digits, _ and -.
        when: the rows that are of this kind (`rekey.declaration.rows`); a row that meets the conditions of
            several kinds is of the first.
        target: the new table, the same for all kinds or this kind's own, with its keys and properties.
        indexes: further tables filled from rows of this kind. Where kinds have tables of their own, the
            pointer's `MainPartitionKey` begins with the name of the main row's table and a colon.
    """

    name: str
    when: Condition = field(kw_only=True)
    target: Target = field(kw_only=True)
    indexes: Sequence[Index] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        is_name = isinstance(self.name, str) and _NAME.fullmatch(self.name)
        refuse_if(not is_name, "kinds", "kind-name", name=self.name)
        need_condition(f"{self.where}.when", self.when)
        need(f"{self.where}.target", self.target, Target, "is not a Target", cure="write target=Target(…)")
        indexes = need_list(f"{self.where}.indexes", self.indexes, Index, "indexes", cure="write [Index(…)]")
        for index in indexes:
            need(f"{self.where}.indexes", index, Index, "is not an Index", cure="write indexes=[Index(…)]")
        object.__setattr__(self, "indexes", indexes)

    @property
    def where(self) -> str:
        """Its name in errors: `kinds[user]`."""
        return f"kinds[{self.name}]"

    @cached_property
    def prefixes(self) -> dict[str, str]:
        """The constant beginnings of its main rows' PartitionKey and RowKey; "" if there is none."""
        return dict(zip((PARTITION_KEY, ROW_KEY), self.beginnings_of(self.target), strict=True))

    def beginnings_of(self, table: Target | Index) -> tuple[str, str]:
        """Return the constant beginnings of the PartitionKeys and RowKeys of its rows in a table; "" if there
        is none."""
        prefix_of = self.when.prefix_of
        return constant_prefix(table.partition_key, prefix_of), constant_prefix(table.row_key, prefix_of)

    @property
    def keys(self) -> dict[str, Expression]:
        return {PARTITION_KEY: self.target.partition_key, ROW_KEY: self.target.row_key}

    @cached_property
    def constants(self) -> Mapping[str, tuple[str, str]]:
        """The properties that all its main rows hold, with EDM type and canonical text."""
        constants = self.target.property_mapping.constants.values()
        return {each.name: (each.edm, canonical_text(each.edm, each.value)) for each in constants}

    def may_have_made(self, target_row: Row) -> bool:
        """Tell whether a main row can be of this kind, by the beginnings of its keys and its constants."""
        return all(
            target_row[key].startswith(prefix) and not _never_begins(self.keys[key], target_row[key])
            for key, prefix in self.prefixes.items()
        ) and all(
            target_row.get(name) is not None and canonical(target_row, name) == value
            for name, value in self.constants.items()
        )

    def never_has_key_of(self, earlier: RowKind) -> bool:
        """Tell whether, provably, no main row of this kind has the key of one of an earlier kind."""
        for key, prefix in earlier.prefixes.items():
            mine = self.prefixes[key]
            if not (mine.startswith(prefix) or prefix.startswith(mine)):
                return True
            if any(_never_begins(a, b) for a, b in ((self.keys[key], prefix), (earlier.keys[key], mine))):
                return True
            # Rows that reach this kind do not meet the earlier kind's condition.
            excluded = earlier.when.excluded_prefixes(key) if self.keys[key] == Prop(key) else ()
            if any(begins and prefix.startswith(begins) for begins in excluded):
                return True
        return False

    def is_apart_from(self, earlier: RowKind) -> bool:
        """Tell whether, provably, no main row of this kind can be taken for one of an earlier kind."""
        if self.never_has_key_of(earlier):
            return True
        mapping = self.target.property_mapping
        return any(
            self.constants[name] != value
            if name in self.constants
            else not mapping.carries(name) and name not in mapping.created
            for name, value in earlier.constants.items()
        )

    def is_hidden_by(self, earlier: RowKind) -> bool:
        """Tell whether an earlier kind provably takes every row of this one."""
        return self.when == earlier.when or any(
            self.when.prefix_of(key).startswith(prefix)
            for key in self.keys
            for prefix in earlier.when.excluded_prefixes(key)
        )


def _never_begins(expression: Expression, text: str) -> bool:
    """Tell whether, provably, no result of an expression begins with a text."""
    first = expression.parts[0] if isinstance(expression, Join | Concat) else expression
    return bool(text and first.alphabet) and text[0] not in first.alphabet


@dataclass(frozen=True)
class ByKind(Expression, op="by_kind"):
    """A key whose expression depends on the row's kind."""

    kinds: tuple[RowKind, ...]
    key: str

    def compile(self, scope: Scope) -> Evaluator:
        number_of = kind_numbers(self.kinds)
        evaluators = [
            expression.compile(replace(scope, field=f"{kind.where}.{scope.field}"))
            for kind, expression in zip(self.kinds, self.operands(), strict=True)
        ]

        def evaluate(row: Row, item: str) -> str:
            number = number_of(row)
            if number is None:
                raise scope.refusal("no-kind", NO_KIND, cure=NO_KIND_CURE)
            return evaluators[number](row, item)

        return evaluate

    def operands(self) -> tuple[Expression, ...]:
        return tuple(kind.keys[self.key] for kind in self.kinds)

    def inputs(self) -> frozenset[str]:
        return super().inputs().union(*(kind.when.inputs() for kind in self.kinds))

    def determines(self) -> frozenset[str]:
        return frozenset.intersection(*(expression.determines() for expression in self.operands()))

    def describe(self) -> str:
        pairs = zip(self.kinds, self.operands(), strict=True)
        return "; ".join(f"{kind.name}: {expression.describe()}" for kind, expression in pairs)


@dataclass(frozen=True)
class KindsTarget(Target):
    """The main table of several kinds: keys by kind; properties are those of each kind's own target. It is
    joint where kinds have tables of their own (`rekey.core.joint`)."""

    kinds: tuple[RowKind, ...] = field(default=(), kw_only=True, metadata=exclude)

    def __post_init__(self) -> None:
        """Do nothing: each kind's target has been checked."""


def target_of(kinds: tuple[RowKind, ...]) -> Target:
    """Return the main table of several kinds, checked. Raises InvalidDeclaration."""
    seen: dict[str, RowKind] = {}
    first = kinds[0].target
    for number, kind in enumerate(kinds):
        refuse_if(kind.name.lower() in seen, "kinds", "kind-twice", name=kind.name)
        seen[kind.name.lower()] = kind
        differs = kind.target.shared != first.shared
        refuse_if(differs, f"{kind.where}.target.shared", "kinds-share", first=kinds[0])
        for earlier in kinds[:number]:
            _check_pair(kind, earlier)
    tables = tuple(dict.fromkeys(kind.target.table for kind in kinds))
    if len(tables) > 1:
        _check_tables(kinds)
    return KindsTarget(
        joint_name(tables),
        partition_key=_key_of_all(kinds, PARTITION_KEY),
        row_key=_key_of_all(kinds, ROW_KEY),
        shared=first.shared,
        kinds=kinds,
    )


def _key_of_all(kinds: tuple[RowKind, ...], key: str) -> Expression:
    """Return the expression of a key: that of all kinds where they agree, whatever tells the kinds apart."""
    expressions = {kind.keys[key] for kind in kinds}
    return expressions.pop() if len(expressions) == 1 else ByKind(kinds, key)


def _check_tables(kinds: Sequence[RowKind]) -> None:
    """Check kinds with tables of their own."""
    spelled: dict[str, str] = {}
    first = kinds[0].target
    mains = {kind.target.table.lower() for kind in kinds}
    for kind in kinds:
        where, table = f"{kind.where}.target.table", kind.target.table
        before = spelled.setdefault(table.lower(), table)
        refuse_if(before != table, where, "table-respelled", table=table, before=before)
        other = is_in_target_account(table) != is_in_target_account(first.table)
        refuse_if(other, where, "kinds-accounts", table=table, first=first.table)
        refuse_if(kind.target.shared, f"{kind.where}.target.shared", "kinds-shared-table")
        # Keys of secondary rows are made as those of index tables, without the beginning that says the table.
        for index in kind.indexes:
            is_beside = index.table.lower() in mains
            refuse_if(is_beside, f"{kind.where}.indexes", "kinds-index-beside", table=index.table)


def _check_pair(kind: RowKind, earlier: RowKind) -> None:
    refuse_if(kind.is_hidden_by(earlier), f"{kind.where}.when", "kind-hidden", earlier=earlier.name)
    is_apart = kind.target.table != earlier.target.table or kind.is_apart_from(earlier)
    refuse_if(not is_apart, f"{kind.where}.target", "kinds-not-apart", earlier=earlier.name)
    timed, before = (each.target.property_mapping.from_timestamp for each in (kind, earlier))
    refuse_if(timed != before, f"{kind.where}.target.properties", "kinds-timestamps", earlier=earlier.name)


def kind_numbers(kinds: Sequence[RowKind]) -> Callable[[Row], int | None]:
    """Return the function that gives the number of a source row's kind; None if no kind takes it."""
    tests = list(enumerate(kind.when.compile() for kind in kinds))
    if not tests:
        return lambda _row: None

    def number_of(row: Row) -> int | None:
        for number, test in tests:
            if test(row):
                return number
        return None

    return number_of


def keys_are_apart(kinds: Sequence[RowKind]) -> bool:
    """Tell whether, provably, main rows of different kinds never have the same key."""
    return all(
        later.target.table != earlier.target.table or later.never_has_key_of(earlier)
        for earlier, later in combinations(kinds, 2)
    )


def checked_kinds(kinds: Any) -> tuple[RowKind, ...]:
    """Return the kinds of a migration. Raises InvalidDeclaration."""
    checked = need_list("kinds", kinds, RowKind, "kinds", cure='write kinds=[RowKind("user", when=…), …]')
    for kind in checked:
        need("kinds", kind, RowKind, "is not a RowKind", cure='write RowKind("user", when=…, target=…)')
    return checked


def checked_otherwise(otherwise: Any, kinds: Sequence[RowKind]) -> Otherwise:
    """Return what a migration does with rows that no kind takes. Raises InvalidDeclaration."""
    if otherwise == REFUSE:
        return REFUSE
    cure = (
        'write otherwise="refuse", "leave" to leave the rows that no kind takes where they are, or'
        ' rows.drop(reason="…") to give them up'
    )
    problem = 'is neither "refuse" nor "leave" nor rows.drop(…)'
    checked: Otherwise = (
        LEAVE if otherwise == LEAVE else need("otherwise", otherwise, Drop, problem, cure=cure)
    )
    refuse_if(not kinds, "otherwise", "otherwise-without-kinds")
    for kind in kinds:
        takes_all = "" in kind.when.excluded_prefixes(PARTITION_KEY)
        refuse_if(takes_all, "otherwise", "no-row-left", name=kind.name)
        read = ", ".join(sorted(kind.when.inputs() - {PARTITION_KEY, ROW_KEY}))
        refuse_if(checked == LEAVE and read, "otherwise", "left-by-properties", kind=kind, read=read)
    return checked


def targets_in(target: Target) -> Iterator[tuple[str, Target]]:
    """Yield each target as it was declared, with its name in errors."""
    if isinstance(target, KindsTarget):
        yield from ((f"{kind.where}.target", kind.target) for kind in target.kinds)
    else:
        yield target.where, target
