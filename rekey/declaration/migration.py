"""The declaration: the content of one migration script, as a value. Everything that can be wrong without
looking at a row is refused here, with field and cure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from rekey.core.limits import TABLE_NAME_CURE, is_in_target_account, table_name_problem
from rekey.core.plain import exclude, json_field, members
from rekey.declaration.keys.base import (
    KEEP_CURE,
    KEEPS_WHOLE_KEYS,
    Expression,
    InvalidDeclaration,
    Item,
    Kept,
    Prop,
    constant_prefix,
    need,
    need_expression,
    need_list,
    refuse_if,
)
from rekey.declaration.keys.hashes import Opaque
from rekey.declaration.keys.pieces import Split
from rekey.declaration.property_mapping import PropertyMapping, property_mapping_of
from rekey.declaration.props import Operation
from rekey.declaration.query import Query
from rekey.declaration.requirements import checked_load, checked_queries, checked_waive
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey
from rekey.phases import shown

Capture: TypeAlias = Literal["dual-write", "delta"]
CAPTURES = ("dual-write", "delta")
Keeping: TypeAlias = Literal["plain", "sealed"]
MAPPINGS = ("plain", "sealed")

FORMAT = "rekey/declaration/v1"
# The name under which a script declares several migrations.
MANY = "migrations"
_NAME_THEM = 'name the tables, ["OrdersDE", "OrdersFR"]; `rekey new NAME --each "Orders*"` finds them'
_GROUP = re.compile(r"[0-9A-Za-z_-]{0,120}")
MAIN_PARTITION_KEY = "MainPartitionKey"
MAIN_ROW_KEY = "MainRowKey"
_HELD_BY = {"partition_key": PARTITION_KEY, "row_key": ROW_KEY}
# Properties of every index row: the key of the main target row.
POINTER = frozenset({MAIN_PARTITION_KEY, MAIN_ROW_KEY})
_OMIT_DEFAULT = json_field(omit_default=True)


@dataclass(frozen=True)
class _Filled:
    """A table that the migration fills: base of `Target` and `Index`."""

    table: str
    partition_key: Expression = field(kw_only=True)
    row_key: Expression = field(kw_only=True)
    properties: Sequence[Operation] = field(default=(), kw_only=True)
    allow_empty: bool = field(default=False, kw_only=True)

    kind: ClassVar[str]
    # Whether properties that no operation names are copied into the new row.
    carries_all: ClassVar[bool]

    def __post_init__(self) -> None:
        _check_table(f"{self.kind}.table", self.table)
        for name, key in self._keys():
            field = f"{self.where}.{name}"
            need_expression(field, key)
            if isinstance(key, Kept):
                object.__setattr__(self, name, Prop(_HELD_BY[name]))
            elif key.contains(Kept):
                raise InvalidDeclaration(field, KEEPS_WHOLE_KEYS, cure=KEEP_CURE)
        cure = "write properties=[props.…]"
        where = f"{self.where}.properties"
        properties = need_list(where, self.properties, Operation, "property operations", cure=cure)
        object.__setattr__(self, "properties", properties)

    @property
    def where(self) -> str:
        """This table's name in errors: `target`, `index[UsersByTag]`."""
        return self.kind

    @cached_property
    def property_mapping(self) -> PropertyMapping:
        """The property operations, checked."""
        return property_mapping_of(f"{self.where}.properties", self.properties, everything=self.carries_all)

    def _keys(self) -> tuple[tuple[str, Expression], ...]:
        return ("partition_key", self.partition_key), ("row_key", self.row_key)

    def _keys_of_items(self) -> list[str]:
        return [name for name, key in self._keys() if key.contains(Item)]


@dataclass(frozen=True)
class Target(_Filled):
    """The new table, filled with one row for each source row.

    Args:
        table: its name; `Users@targets` for the table Users in the target account (`[targets]`).
        partition_key: the new PartitionKey.
        row_key: the new RowKey.
        properties: property operations (`rekey.declaration.props`); without any, every property is copied.
        allow_empty: whether keys may be empty (`keys.literal("")` always may).
    """

    kind: ClassVar[str] = "target"
    carries_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self._keys_of_items():
            problem = "keys.item() has no meaning in the main target"
            raise InvalidDeclaration(f"target.{name}", problem, cure="use it in an Index")
        _ = self.property_mapping  # checks the operations

    def old_key_fields(self) -> tuple[str | None, str | None]:
        """Return the fields of a target row that hold the old PartitionKey and RowKey; None if not held."""
        return self._holder_of(PARTITION_KEY), self._holder_of(ROW_KEY)

    def _holder_of(self, key: str) -> str | None:
        # a key comes first: a row's key cannot change, a copied property can
        if self.partition_key == Prop(key):
            return PARTITION_KEY
        if self.row_key == Prop(key):
            return ROW_KEY
        return self.property_mapping.copy_of_key(key)


@dataclass(frozen=True)
class Index(_Filled):
    """Further rows made from the same source rows, in a table of their own or next to the main rows; they
    point to the main row.

    Every row holds `MainPartitionKey` and `MainRowKey`, and the properties that `properties` makes. In the
    main target's table its rows are secondary rows: written in one transaction with their main row if that
    has the same PartitionKey.

    Args:
        table: its name; the main target's if the RowKeys of both begin with constant text that tells them
            apart, e.g. `keys.literal("AGE:") + …`; another index's if PartitionKeys or RowKeys of both do.
        each: `keys.split(…)`: one index row for each item; `keys.item()` is that item in the keys. Without
            `each`, one index row for each source row.
        partition_key: PartitionKey of the index row.
        row_key: RowKey of the index row.
        properties: property operations that give the row more than the pointer: `props.keep`, `keep_all`,
            `copy`, `rename`, `set`, `compute`, `cast`.
        allow_empty: whether keys may be empty.
    """

    each: Split | None = field(default=None, kw_only=True)

    kind: ClassVar[str] = "index"
    carries_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        where, used, cure = self.where, self._keys_of_items(), 'each=keys.split("Property", ",")'
        if self.each is None:
            for name in used:
                raise InvalidDeclaration(f"{where}.{name}", "keys.item() needs each=", cure=f"add {cure}")
        else:
            need(f"{where}.each", self.each, Split, "does not give items", cure=f"write {cure}")
            problem = "no key uses keys.item(), so all items would give the same row"
            cure = "use keys.item() in a key, or leave each= out"
            refuse_if(not used, f"{where}.each", problem, cure=cure)
            problem = "keys.item() cannot make the items"
            refuse_if(self.each.of.contains(Item), f"{where}.each", problem, cure="split a property")
        hidden = POINTER & (self.property_mapping.created | (self.property_mapping.kept or set()))
        problem = f"{', '.join(sorted(hidden))} is the pointer to the main row"
        cure = 'choose another name, e.g. props.rename("MainRowKey", "OldMainRowKey")'
        refuse_if(hidden, f"{where}.properties", problem, cure=cure)

    @property
    def where(self) -> str:
        """This index's name in errors: `index[UsersByTag]`, with the constant beginning of its RowKeys if
        there is one: `index[Races AGE:]`."""
        return f"index[{f'{self.table} {constant_prefix(self.row_key)}'.rstrip()}]"


@dataclass(frozen=True)
class Migration:
    """The declaration of one migration script, under the name `migration` in the script.

    Args:
        source: the old table; one that an earlier migration moved to the target account is named as there,
            `Users@targets`.
        target: the new table.
        indexes: further tables filled from the same rows.
        capture: `dual-write` (the application writes through rekey's client or proxy) or `delta` (no change
            to the application; a short write downtime at the end).
        reverse: whether the migration can be rolled back after cutover. True needs old keys that can be
            recovered from target rows.
        queries: the application's queries (`rekey.declaration.query`); a plan rates keys by them.
        load: the application's load, e.g. `{"writes_per_second": 500}`
            (`rekey.declaration.requirements.LOADS`).
        waive: advice to ignore, by its code, each with a reason.
        group: scripts with the same group cut over, roll back and complete together.
        mapping: `sealed` (old keys are encrypted in the restricted store and the state file, under the key
            that `[sealing]` names) or `plain`; the default is sealed if a key is `keys.opaque`.

    Raises:
        InvalidDeclaration: with field, problem and cure.
    """

    source: str
    target: Target
    indexes: Sequence[Index] = ()
    capture: Capture = field(kw_only=True)
    reverse: bool = field(default=True, kw_only=True)
    queries: Sequence[Query] = field(default=(), kw_only=True, metadata=_OMIT_DEFAULT)
    load: Mapping[str, float] = field(default_factory=dict, kw_only=True, hash=False, metadata=_OMIT_DEFAULT)
    waive: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False, metadata=_OMIT_DEFAULT)
    group: str = field(default="", kw_only=True, metadata=_OMIT_DEFAULT)
    mapping: Keeping | None = field(default=None, kw_only=True, metadata=exclude)

    def __post_init__(self) -> None:
        _check_table("source", self.source)
        need("target", self.target, Target, "is not a Target", cure="write target=Target(…)")
        object.__setattr__(self, "indexes", tuple(self.indexes))
        for index in self.indexes:
            need("indexes", index, Index, "is not an Index", cure="write indexes=[Index(…)]")
        _check_choice("capture", self.capture, CAPTURES)
        if self.mapping is None:
            seals = any(_opaques(self.key_expressions()))
            object.__setattr__(self, "mapping", "sealed" if seals else "plain")
        _check_choice("mapping", self.mapping, MAPPINGS)
        is_bool = isinstance(self.reverse, bool)
        refuse_if(not is_bool, "reverse", "not True or False", cure="write reverse=True or False")
        is_name = isinstance(self.group, str) and _GROUP.fullmatch(self.group)
        cure = 'write group="billing": letters, digits, _ and -'
        refuse_if(not is_name, "group", "it is not a name of at most 120 characters", cure=cure)
        object.__setattr__(self, "queries", checked_queries(self.queries))
        object.__setattr__(self, "load", checked_load(self.load))
        object.__setattr__(self, "waive", checked_waive(self.waive))
        self._check_tables()
        self._check_kinds()
        if self.reverse:
            self._check_reversible()

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables the migration fills, by number: the main target first, then the indexes as declared. An
        index of secondary rows repeats the main target's table."""
        return tuple(target.table for target in self.filled)

    @property
    def labels(self) -> tuple[str, ...]:
        """The tables' names for people, by number; kinds of rows in one table differ: `Races`, `Races
        AGE:`."""
        return tuple(
            " ".join([name, *filter(None, self.beginnings.get(number, ()))])
            for number, name in enumerate(self.tables)
        )

    @property
    def table_names(self) -> tuple[str, ...]:
        """The names of the tables the migration fills, each once."""
        return tuple(dict.fromkeys(self.tables))

    @cached_property
    def secondary(self) -> Mapping[int, str]:
        """The constant beginning of secondary rows' RowKeys, by table number; empty if there are none."""
        return {
            number: constant_prefix(index.row_key)
            for number, index in enumerate(self.indexes, start=1)
            if index.table == self.target.table
        }

    @cached_property
    def beginnings(self) -> Mapping[int, tuple[str, str]]:
        """The constant beginnings of PartitionKeys and RowKeys in shared tables, by table number: of
        secondary rows the RowKeys', of index rows both."""
        beginnings = {number: ("", begins) for number, begins in self.secondary.items()}
        indexes = [
            (number, index) for number, index in enumerate(self.indexes, start=1) if number not in beginnings
        ]
        tables = [index.table for _, index in indexes]
        for number, index in indexes:
            if tables.count(index.table) > 1:
                beginnings[number] = constant_prefix(index.partition_key), constant_prefix(index.row_key)
        return beginnings

    @cached_property
    def kinds(self) -> Mapping[int, Mapping[int, tuple[str, str]]]:
        """For each shared table, by its first number: the beginnings of the other numbers' keys. A row with
        none of them belongs to the first number."""
        kinds: dict[int, dict[int, tuple[str, str]]] = {}
        for number, begins in self.beginnings.items():
            first = self.tables.index(self.tables[number])
            if number != first:
                kinds.setdefault(first, {})[number] = begins
        return kinds

    def number_of(self, table: int, key: EntityKey) -> int:
        """Return the table number of a row that was read with those of table number `table`."""
        for number, (partition, row) in self.kinds.get(table, {}).items():
            if key.partition.startswith(partition) and key.row.startswith(row):
                return number
        return table

    @property
    def uses_target_account(self) -> bool:
        """Whether any of its tables is in the target account."""
        return any(map(is_in_target_account, (self.source, *self.tables)))

    @property
    def is_maintained(self) -> bool:
        """Whether clients keep maintaining index and secondary rows after `complete`, until the handover."""
        return self.capture == "dual-write" and self.reverse and bool(self.indexes)

    @property
    def index_labels(self) -> tuple[str, ...]:
        return self.labels[1:]

    @property
    def filled(self) -> tuple[Target | Index, ...]:
        """The target, then the indexes as declared."""
        return (self.target, *self.indexes)

    def shown(self, phase: str) -> str:
        """Return the name of a phase of this migration in text for people."""
        return shown(phase, self.capture)

    @property
    def is_sealed(self) -> bool:
        """Whether old keys are encrypted in the restricted store and the state file."""
        return self.mapping == "sealed"

    def key_expressions(self) -> Iterator[tuple[str, Expression]]:
        """Yield every key expression with its field, e.g. `target.row_key` or `index[ByTag].each`."""
        for target in self.filled:
            if isinstance(target, Index) and target.each is not None:
                yield f"{target.where}.each", target.each.of
            yield f"{target.where}.partition_key", target.partition_key
            yield f"{target.where}.row_key", target.row_key

    def expressions(self) -> Iterator[tuple[str, Expression]]:
        """Yield the key expressions, then those of computed properties, each with its field."""
        yield from self.key_expressions()
        for target in self.filled:
            for name, computed in target.property_mapping.computed.items():
                yield f"{target.where}.properties({name})", computed.of

    @property
    def key_inputs(self) -> frozenset[str]:
        """The properties that the keys are made of; contains `*` when a custom function may read any."""
        return frozenset[str]().union(*(expression.inputs() for _, expression in self.key_expressions()))

    def canonical(self) -> dict[str, Any]:
        """Return the declaration as JSON-able data."""
        # Group and mapping are named only where they differ from the default, so that scripts older than
        # these fields keep their digests.
        sealed = {"mapping": self.mapping} if self.is_sealed else {}
        return {"format": FORMAT, **members(self), **sealed}

    def canonical_json(self) -> str:
        return json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def digest(self) -> str:
        """Return the SHA-256 of the canonical form in UTF-8, as 64 hex digits: equal on every machine and
        Python version. For `keys.custom` it also covers the function's source."""
        return hashlib.sha256(self.canonical_json().encode("utf-8")).hexdigest()

    def _check_tables(self) -> None:
        seen = {self.source.lower(): "source"}
        for target in self.filled:
            place, table = f"{target.where}.table", target.table
            if isinstance(target, Index) and table in self.tables[: self.filled.index(target)]:
                continue  # `_check_kinds` checks that the rows can be told apart
            earlier = seen.get(table.lower())
            cure = "give the new table a new name: keys cannot be changed in place"
            if earlier == "target.table":
                cure = f"spell it {self.target.table} if its rows are to be secondary rows of that table"
            elif earlier is not None and earlier != "source":
                cure = "give it a new name, or spell both alike if their rows are to share that table"
            problem = f"{table} is also the {earlier} (table names are the same whatever their case)"
            refuse_if(earlier, place, problem, cure=cure)
            seen[table.lower()] = place

    def _check_kinds(self) -> None:
        """Refuse rows of several kinds in one table unless their keys' constant beginnings tell them apart:
        the RowKeys' in the main target's table, PartitionKey's or RowKey's in an index table."""
        co_located = [target for target in self.filled if target.table == self.target.table]
        kinds = [(target.where, constant_prefix(target.row_key)) for target in co_located]
        for number, (where, prefix) in enumerate(kinds):
            for _, other in kinds[:number]:
                if prefix.startswith(other) or other.startswith(prefix):
                    problem = f"{prefix!r} and {other!r} do not tell them apart"
                    if not (prefix and other):
                        problem = f"of {where if other else kinds[0][0]} they begin with no constant text"
                    must = f"the RowKeys of rows that share {self.target.table} must say which kind they are"
                    own = 'begin each with constant text of its own, keys.literal("AGE:") + …'
                    cure = f"{own}, or give the index a table of its own"
                    raise InvalidDeclaration(f"{where}.row_key", f"{must}, and {problem}", cure=cure)
        shared = [number for number in self.beginnings if number not in self.secondary]
        for first, second in combinations(shared, 2):
            table = self.tables[first]
            if table == self.tables[second] and not _apart(self.beginnings[first], self.beginnings[second]):
                must = f"the keys of rows that share {table} must say which kind they are"
                problem = "no constant text at their beginnings tells them apart"
                own = 'begin PartitionKey or RowKey of each with text of its own, keys.literal("EMAIL:") + …'
                cure = f"{own}, or give each index a table of its own"
                raise InvalidDeclaration(
                    f"{self.filled[second].where}.row_key", f"{must}, and {problem}", cure=cure
                )

    def _check_reversible(self) -> None:
        for key, holder in zip((PARTITION_KEY, ROW_KEY), self.target.old_key_fields(), strict=True):
            lost = f"the old {key} cannot be found again from a target row, so it could not be rolled back"
            cure = f'add props.copy("{key}", to="Old{key}") to the properties, or say reverse=False'
            refuse_if(holder is None, "reverse", lost, cure=cure)
        for cast in self.target.property_mapping.casts.values():
            lost = f"{cast.describe()} has no inverse: the type the property had is not declared"
            cure = "add was= to the cast, or say reverse=False"
            refuse_if(cast.inverse() is None, "reverse", lost, cure=cure)
        moves = "the key is made of Timestamp, which changes when a row is written back"
        cure = "make the key of a property of the row, or say reverse=False"
        for where, expression in self.key_expressions():
            refuse_if(TIMESTAMP in expression.inputs(), where, moves, cure=cure)


@dataclass(frozen=True)
class Declared:
    """A migration script as read.

    Attributes:
        script_id: the file's stem.
        path: the file.
        doc: the script's docstring, "" if it has none.
        depends: ids of the scripts that must be done before: those in `__depends__`, and the one that fills
            its source table.
        migration: the declaration.
        digest: its digest.
        content: the file as it was executed.
        is_kept: the file is gone or cannot be read; this is the copy stored when the migration began.
        fault: why the file cannot be read; "" where it is gone.
    """

    script_id: str
    path: Path
    doc: str
    depends: frozenset[str]
    migration: Migration
    digest: str
    content: bytes = field(default=b"", repr=False, compare=False)
    is_kept: bool = False
    fault: str = ""

    @property
    def cli_selector(self) -> str:
        """The arguments that select it in commands that move the authority: the script's id, or its group."""
        return f"--group {self.migration.group}" if self.migration.group else self.script_id

    @property
    def fills(self) -> frozenset[str]:
        """The names of the target tables in lower case, because table names are case-insensitive."""
        return frozenset(name.lower() for name in self.migration.tables)


def _apart(first: tuple[str, str], second: tuple[str, str]) -> bool:
    """Tell whether no key can have both beginnings."""
    pairs = zip(first, second, strict=True)
    return any(not mine.startswith(theirs) and not theirs.startswith(mine) for mine, theirs in pairs)


def for_each_table(tables: Sequence[str], make: Callable[[str], Migration]) -> dict[str, Migration]:
    """Return a migration for each table, for the name `migrations` in a script. Each has its own digest, and
    the id `script_id-table`. Tables are named, never matched by a pattern, so that a table that appears later
    changes nothing; `rekey new --each` finds them.

    Args:
        tables: names of source tables.
        make: returns the migration of a table.

    Raises:
        InvalidDeclaration: no table is named, one is named twice, or a migration has another source.
    """
    names = need_list(MANY, tables, str, "table names", cure=_NAME_THEM)
    refuse_if(not names, MANY, "no table is named", cure=_NAME_THEM)
    migrations: dict[str, Migration] = {}
    for name in names:
        migration = make(name)
        need(MANY, migration, Migration, "is no Migration", cure="let the function return Migration(…)")
        problem = f"the migration for {name} has the source {migration.source}"
        refuse_if(migration.source != name, MANY, problem, cure="write source=name in it")
        twice = name.lower() in map(str.lower, migrations)
        refuse_if(twice, MANY, f"{name} is named twice", cure="name every table once")
        migrations[name] = migration
    return migrations


def required_secrets(migration: Migration) -> list[str]:
    """Return the names of the secrets that the declaration's expressions need, sorted."""
    return sorted({node.secret for node in _opaques(migration.expressions())})


def _opaques(expressions: Iterable[tuple[str, Expression]]) -> Iterator[Opaque]:
    for _, expression in expressions:
        yield from (node for node in expression.walk() if isinstance(node, Opaque))


def _check_choice(where: str, value: object, choices: tuple[str, ...]) -> None:
    cure = " or ".join(f'{where}="{choice}"' for choice in choices)
    refuse_if(value not in choices, where, f"{value!r} is not known", cure=f"write {cure}")


def _check_table(where: str, name: object) -> None:
    problem = table_name_problem(name, qualified=True)
    cure = f'{TABLE_NAME_CURE}; for a table of the account of [targets], "@targets" after it'
    refuse_if(problem, where, problem or "", cure=cure if "@" in str(name) else TABLE_NAME_CURE)
