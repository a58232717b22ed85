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
from typing import Any, Literal, TypeAlias

from rekey.core.joint import is_joint, names_in, spoken
from rekey.core.key_space import KeySpace
from rekey.core.limits import is_in_target_account
from rekey.core.plain import exclude, json_field, members
from rekey.declaration.inverse import KeyInverse
from rekey.declaration.key_space import filled_keys, key_space_of, space_of
from rekey.declaration.keys.base import Expression, constant_prefix, invalid, need, need_list, refuse_if
from rekey.declaration.keys.hashes import Opaque
from rekey.declaration.kinds import (
    LEAVE,
    REFUSE,
    Otherwise,
    RowKind,
    checked_kinds,
    checked_otherwise,
    target_of,
    targets_in,
)
from rekey.declaration.query import Query
from rekey.declaration.requirements import checked_load, checked_queries, checked_waive
from rekey.declaration.rows import Condition, Drop, all_of, any_of, every
from rekey.declaration.targets import Index, Target, check_table
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey
from rekey.phases import shown

Capture: TypeAlias = Literal["dual-write", "delta"]
CAPTURES = ("dual-write", "delta")
Keeping: TypeAlias = Literal["plain", "sealed", "none"]
MAPPINGS = ("plain", "sealed", "none")

FORMAT = "rekey/declaration/v1"
# The name under which a script declares several migrations.
MANY = "migrations"
_NAME_THEM = 'name the tables, ["OrdersDE", "OrdersFR"]; `rekey new NAME --each "Orders*"` finds them'
_PART = re.compile(r"[0-9A-Za-z]{1,60}")
_GROUP = re.compile(r"[0-9A-Za-z_-]{0,120}")
_OMIT_DEFAULT = json_field(omit_default=True)


@dataclass(frozen=True)
class Migration:
    """The declaration of one migration script, under the name `migration` in the script.

    Args:
        source: the old table; one that an earlier migration moved to the target account is named as there,
            `Users@targets`.
        target: the new table. With `kinds`, it and `indexes` are left out.
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
            that `[sealing]` names), `plain`, or `none` (nothing is stored: the new keys alone say the old
            ones); the default is sealed if a key is `keys.opaque`, else plain.
        kinds: kinds of rows (`RowKind`), each with its own target and indexes; in one table or in several.
        otherwise: what becomes of a row that no kind takes: `refuse` (it is refused, `no-kind`), `leave` (it
            stays in the source: the same as `where` with the conditions of all kinds, which read keys alone)
            or `rows.drop(reason=…)` (it is not migrated, and goes when `retire` deletes the source).
        where: a condition on keys (`rows.partition_key`, `rows.row_key`): only this part of the table is
            migrated, and all other rows stay where they are, as they are. Default: the whole table.

    Raises:
        InvalidDeclaration: with field, problem and cure.
    """

    source: str
    target: Target = None  # type: ignore[assignment]  # `_set_kinds` sets or refuses it
    indexes: Sequence[Index] = ()
    capture: Capture = field(kw_only=True)
    reverse: bool = field(default=True, kw_only=True)
    queries: Sequence[Query] = field(default=(), kw_only=True, metadata=_OMIT_DEFAULT)
    load: Mapping[str, float] = field(default_factory=dict, kw_only=True, hash=False, metadata=_OMIT_DEFAULT)
    waive: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False, metadata=_OMIT_DEFAULT)
    group: str = field(default="", kw_only=True, metadata=_OMIT_DEFAULT)
    mapping: Keeping | None = field(default=None, kw_only=True, metadata=exclude)
    kinds: Sequence[RowKind] = field(default=(), kw_only=True, metadata=_OMIT_DEFAULT)
    otherwise: Otherwise = field(default=REFUSE, kw_only=True, metadata=exclude)
    where: Condition | None = field(default=None, kw_only=True, metadata=_OMIT_DEFAULT)

    def __post_init__(self) -> None:
        check_table("source", self.source)
        self._set_kinds()
        need("target", self.target, Target, "is not a Target", cure="write target=Target(…)")
        object.__setattr__(self, "indexes", tuple(self.indexes))
        for index in self.indexes:
            need("indexes", index, Index, "is not an Index", cure="write indexes=[Index(…)]")
        _check_choice("capture", self.capture, CAPTURES)
        if self.mapping is None:
            seals = any(_opaques(self.key_expressions()))
            object.__setattr__(self, "mapping", "sealed" if seals else "plain")
        _check_choice("mapping", self.mapping, MAPPINGS)
        refuse_if(not isinstance(self.reverse, bool), "reverse", "reverse-no-bool")
        is_name = isinstance(self.group, str) and _GROUP.fullmatch(self.group)
        refuse_if(not is_name, "group", "group-name")
        self._set_otherwise()
        object.__setattr__(self, "queries", checked_queries(self.queries))
        object.__setattr__(self, "load", checked_load(self.load))
        object.__setattr__(self, "waive", checked_waive(self.waive))
        self.key_space  # noqa: B018 - raises
        self._check_tables()
        self._check_shared_tables()
        self.key_spaces  # noqa: B018 - raises
        self.inverse  # noqa: B018 - raises
        if self.reverse:
            self._check_reversible()

    def _set_kinds(self) -> None:
        """Make the one target and the indexes of all kinds, if there are any."""
        if isinstance(self.kinds, Sequence) and not self.kinds:
            refuse_if(self.target is None, "target", "no-target")
            return
        kinds = checked_kinds(self.kinds)
        refuse_if(any((self.target, self.indexes)), "target", "kinds-and-target")
        object.__setattr__(self, "kinds", kinds)
        object.__setattr__(self, "target", target_of(kinds))
        object.__setattr__(self, "indexes", tuple(index for kind in kinds for index in kind.indexes))

    def _set_otherwise(self) -> None:
        """Check what becomes of rows that no kind takes. To leave them is to migrate the part that kinds
        take."""
        otherwise = checked_otherwise(self.otherwise, self.kinds)
        if otherwise == LEAVE:
            taken = any_of(*(kind.when for kind in self.kinds))
            object.__setattr__(self, "where", taken if self.where is None else all_of(self.where, taken))
            otherwise = REFUSE
        object.__setattr__(self, "otherwise", otherwise)

    @cached_property
    def key_space(self) -> KeySpace | None:
        """The keys of the rows that are migrated; None for the whole table. Raises InvalidDeclaration."""
        return None if self.where is None else key_space_of(self.where)

    @cached_property
    def filled_keys(self) -> Mapping[str, Condition]:
        """What the keys meet of all rows that are written to tables which others fill too, by table. Raises
        InvalidDeclaration."""
        shared = {filled.table for _, filled in self.declared_tables if filled.shared}
        part = every() if self.where is None else self.where
        fills: dict[str, list[tuple[Target | Index, Condition]]] = {}
        for number, (target, indexes) in enumerate(self.rules):
            taken = all_of(part, self.kinds[number].when) if self.kinds else part
            filling: tuple[Target | Index, ...] = (target, *indexes)
            for filled in filling:
                if filled.table in shared:
                    fills.setdefault(filled.table, []).append((filled, taken))
        return {table: filled_keys(filled) for table, filled in fills.items()}

    @cached_property
    def key_spaces(self) -> Mapping[str, KeySpace]:
        """The keys of the rows that this migration reads or writes, by table, where others use that table
        too. Raises InvalidDeclaration."""
        source = {} if self.key_space is None else {self.source: self.key_space}
        return source | {table: space_of(keys) for table, keys in self.filled_keys.items()}

    def has(self, source_key: EntityKey) -> bool:
        """Tell whether a row of the source with this key is migrated."""
        return self.key_space is None or source_key in self.key_space

    @property
    def source_label(self) -> str:
        """The source in text for people: `Orders`, or `part of Orders (PartitionKey begins with a)`."""
        return self.source if self.where is None else f"part of {self.source} ({self.where.describe()})"

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables the migration fills, by number: the main target first, which may be joint
        (`rekey.core.joint`), then the indexes as declared. An index of secondary rows repeats the main
        target's table."""
        return tuple(target.table for target in self.filled)

    @property
    def labels(self) -> tuple[str, ...]:
        """The tables' names for people, by number; kinds of rows in one table differ: `Races`, `Races
        AGE:`."""
        return tuple(
            " ".join([spoken(name), *filter(None, self.beginnings.get(number, ()))])
            for number, name in enumerate(self.tables)
        )

    @property
    def table_names(self) -> tuple[str, ...]:
        """The names of the tables the migration fills, each once; those of a joint table one by one."""
        return tuple(dict.fromkeys(name for table in self.tables for name in names_in(table)))

    @cached_property
    def _index_beginnings(self) -> Mapping[int, tuple[str, str]]:
        """The constant beginnings of index rows' PartitionKeys and RowKeys, by table number."""
        beginnings = [kind.beginnings_of(index) for kind in self.kinds for index in kind.indexes]
        if not self.kinds:
            beginnings = [
                (constant_prefix(index.partition_key), constant_prefix(index.row_key))
                for index in self.indexes
            ]
        return dict(enumerate(beginnings, start=1))

    @cached_property
    def secondary(self) -> Mapping[int, str]:
        """The constant beginning of secondary rows' RowKeys, by table number; empty if there are none."""
        return {
            number: row_key
            for number, (_, row_key) in self._index_beginnings.items()
            if self.tables[number] == self.target.table
        }

    @cached_property
    def beginnings(self) -> Mapping[int, tuple[str, str]]:
        """The constant beginnings of PartitionKeys and RowKeys in shared tables, by table number: of
        secondary rows the RowKeys', of index rows both."""
        beginnings = {number: ("", begins) for number, begins in self.secondary.items()}
        indexes = [number for number in self._index_beginnings if number not in beginnings]
        tables = [self.tables[number] for number in indexes]
        for number, table in zip(indexes, tables, strict=True):
            if tables.count(table) > 1:
                beginnings[number] = self._index_beginnings[number]
        return beginnings

    @cached_property
    def sharing(self) -> Mapping[int, Mapping[int, tuple[str, str]]]:
        """For each shared table, by its first number: the beginnings of the other numbers' keys. A row with
        none of them belongs to the first number."""
        sharing: dict[int, dict[int, tuple[str, str]]] = {}
        for number, begins in self.beginnings.items():
            first = self.tables.index(self.tables[number])
            if number != first:
                sharing.setdefault(first, {})[number] = begins
        return sharing

    def number_of(self, table: int, key: EntityKey) -> int:
        """Return the table number of a row that was read with those of table number `table`."""
        for number, (partition, row) in self.sharing.get(table, {}).items():
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

    @cached_property
    def inverse(self) -> KeyInverse | None:
        """Inverts its target keys (`mapping="none"`); None where the mapping is stored. Raises
        InvalidDeclaration: they cannot be inverted, as far as it proves."""
        if self.mapping != "none":
            return None
        refuse_if(self.indexes, "mapping", "inverse-with-indexes")
        refuse_if(self.kinds, "mapping", "inverse-with-kinds")
        return KeyInverse(self.target.partition_key, self.target.row_key, self.target.where)

    @property
    def dropped(self) -> Drop | None:
        """What the script says of rows that no kind takes, if it drops them."""
        return self.otherwise if isinstance(self.otherwise, Drop) else None

    @cached_property
    def looked_up_in(self) -> Mapping[str, Declared]:
        """The migrations, by id, whose mappings a rollback looks old references up in; empty with
        `reverse=False`."""
        mappings = [target.property_mapping for _, target in targets_in(self.target)] if self.reverse else []
        old_references = [old for mapping in mappings for old in mapping.old_references]
        return {old.reference.via: old.reference.to.declared for old in old_references}

    @property
    def rules(self) -> tuple[tuple[Target, Sequence[Index]], ...]:
        """Target and indexes of each kind, or of all rows where there are no kinds."""
        if self.kinds:
            return tuple((kind.target, kind.indexes) for kind in self.kinds)
        return ((self.target, self.indexes),)

    @cached_property
    def declared_tables(self) -> tuple[tuple[str, Target | Index], ...]:
        """Every target and index as it was declared, with its name in errors: `target`, `index[ByTag]`,
        `kinds[user].target`."""
        return (*targets_in(self.target), *((index.where, index) for index in self.indexes))

    def key_expressions(self) -> Iterator[tuple[str, Expression]]:
        """Yield every key expression with its field, e.g. `target.row_key` or `index[ByTag].each`."""
        for where, table in self.declared_tables:
            if isinstance(table, Index) and table.each is not None:
                yield f"{where}.each", table.each.of
            yield f"{where}.partition_key", table.partition_key
            yield f"{where}.row_key", table.row_key

    def expressions(self) -> Iterator[tuple[str, Expression]]:
        """Yield the key expressions, then those of computed properties, each with its field."""
        yield from self.key_expressions()
        for where, table in self.declared_tables:
            for name, computed in table.property_mapping.computed.items():
                yield f"{where}.properties({name})", computed.of

    @property
    def key_inputs(self) -> frozenset[str]:
        """The properties that the keys are made of, and those that say of which kind a row is; contains `*`
        when a custom function may read any."""
        inputs = [expression.inputs() for _, expression in self.key_expressions()]
        return frozenset[str]().union(*inputs, *(kind.when.inputs() for kind in self.kinds))

    def canonical(self) -> dict[str, Any]:
        """Return the declaration as JSON-able data."""
        # Group, mapping, kinds, `otherwise` and `where` are named only where they differ from the default, so
        # that scripts older than these fields keep their digests.
        kept = {} if self.mapping == "plain" else {"mapping": self.mapping}
        dropped = {"otherwise": self.dropped.as_json()} if self.dropped else {}
        declared = {"format": FORMAT, **members(self), **kept, **dropped}
        for name in ("target", "indexes") if self.kinds else ():
            del declared[name]  # they are in the kinds
        return declared

    def canonical_json(self) -> str:
        return json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def digest(self) -> str:
        """Return the SHA-256 of the canonical form in UTF-8, as 64 hex digits: equal on every machine and
        Python version. For `keys.custom` it also covers the function's source."""
        return hashlib.sha256(self.canonical_json().encode("utf-8")).hexdigest()

    def _check_tables(self) -> None:
        seen = {self.source.lower(): "source"}
        places = [(f"{filled.where}.table", filled.table) for filled in self.filled]
        if is_joint(self.target.table):
            kinds = {kind.target.table: kind.where for kind in reversed(self.kinds)}
            places[:1] = [(f"{kinds[name]}.target.table", name) for name in names_in(self.target.table)]
        for number, (place, table) in enumerate(places):
            if table in [earlier for _, earlier in places[:number]]:
                continue  # `_check_shared_tables` checks that the rows can be told apart
            earlier = seen.get(table.lower())
            cure = "give the new table a new name: keys cannot be changed in place"
            if earlier == "target.table":
                cure = f"spell it {self.target.table} if its rows are to be secondary rows of that table"
            elif earlier is not None and earlier != "source":
                cure = "give it a new name, or spell both alike if their rows are to share that table"
            refuse_if(earlier, place, "table-twice", table=table, earlier=earlier, cure=cure)
            seen[table.lower()] = place

    def _check_shared_tables(self) -> None:
        """Refuse rows of several kinds in one table unless their keys' constant beginnings tell them apart:
        the RowKeys' in the main target's table, PartitionKey's or RowKey's in an index table."""
        kinds = [(f"{kind.where}.target", kind.prefixes[ROW_KEY]) for kind in self.kinds]
        kinds = kinds or [(self.target.where, constant_prefix(self.target.row_key))]
        mains = len(kinds)
        kinds += [(self.filled[number].where, prefix) for number, prefix in self.secondary.items()]
        for number, (where, prefix) in enumerate(kinds[mains:], start=mains):
            for _, other in kinds[:number]:
                if prefix.startswith(other) or other.startswith(prefix):
                    problem = f"{prefix!r} and {other!r} do not tell them apart"
                    if not (prefix and other):
                        problem = f"of {where if other else kinds[0][0]} they begin with no constant text"
                    raise invalid(f"{where}.row_key", "main-rows-alike", table=self.target.table, why=problem)
        shared = [number for number in self.beginnings if number not in self.secondary]
        for first, second in combinations(shared, 2):
            table = self.tables[first]
            if table == self.tables[second] and not _apart(self.beginnings[first], self.beginnings[second]):
                raise invalid(f"{self.filled[second].where}.row_key", "index-rows-alike", table=table)

    def _check_reversible(self) -> None:
        for where, target in targets_in(self.target):
            holders = (
                () if self.inverse else zip((PARTITION_KEY, ROW_KEY), target.old_key_fields(), strict=True)
            )
            for key, holder in holders:
                row = "a target row" if where == target.where else f"a row of {where}"
                refuse_if(holder is None, "reverse", "old-key-lost", key=key, row=row)
            for cast in target.property_mapping.casts.values():
                refuse_if(cast.inverse() is None, "reverse", "cast-without-inverse", cast=cast.describe())
            target.property_mapping.old_references  # noqa: B018 - raises
            keys = target.partition_key, target.row_key
            for computed, name in target.property_mapping.unrecoverable(keys):
                raise invalid("reverse", "input-lost", name=name, computed=computed.name)
        for where, expression in self.key_expressions():
            refuse_if(TIMESTAMP in expression.inputs(), where, "key-of-timestamp")


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
        refers_to: ids of the scripts whose new keys it computes (`props.reference`).
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
    refers_to: frozenset[str] = frozenset()

    @property
    def cli_selector(self) -> str:
        """The arguments that select it in commands that move the authority: the script's id, or its group."""
        return f"--group {self.migration.group}" if self.migration.group else self.script_id

    def is_beside(self, other: Declared) -> bool:
        """Tell whether the other script migrates another part of the same source."""
        is_same_source = self.migration.source.lower() == other.migration.source.lower()
        is_part = self.migration.where is not None
        return is_part and is_same_source and self.script_id != other.script_id

    def shares_rows_with(self, other: Declared) -> bool:
        """Tell whether the other script may migrate the same rows of the same source."""
        mine, theirs = self.migration.key_space, other.migration.key_space
        is_same_source = self.migration.source.lower() == other.migration.source.lower()
        is_apart = mine is not None and theirs is not None and mine.is_apart_from(theirs)
        return is_same_source and not is_apart and self.script_id != other.script_id

    @property
    def fills(self) -> frozenset[str]:
        """The names of the target tables in lower case, because table names are case-insensitive."""
        return frozenset(name.lower() for name in self.migration.table_names)

    def builds_on(self, other: Declared) -> bool:
        """Tell whether the other script may fill rows of this one's source."""
        part, source = self.migration.key_space, self.migration.source.lower()
        spaces = [
            other.migration.key_spaces.get(n) for n in other.migration.table_names if n.lower() == source
        ]
        return any(part is None or space is None or not space.is_apart_from(part) for space in spaces)

    def collides_in(self, other: Declared) -> str:
        """Return the name of a table that both fill, perhaps under the same keys; "" if there is none."""
        theirs = {name.lower(): other.migration.key_spaces.get(name) for name in other.migration.table_names}
        for name in self.migration.table_names:
            mine, space = self.migration.key_spaces.get(name), theirs.get(name.lower())
            is_apart = mine is not None and space is not None and mine.is_apart_from(space)
            if name.lower() in theirs and not is_apart:
                return name
        return ""


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
    refuse_if(not names, MANY, "no-table-named", cure=_NAME_THEM)
    migrations = _for_each(names, make)
    for name, migration in migrations.items():
        refuse_if(migration.source != name, MANY, "other-source", name=name, source=migration.source)
    return migrations


def for_each_part(parts: Sequence[str], make: Callable[[str], Migration]) -> dict[str, Migration]:
    """Return a migration for each part of a table, for the name `migrations` in a script: one table becomes
    several. Each has its own digest, and the id `script_id-part`.

    Args:
        parts: names of the parts: letters and digits.
        make: returns the migration of a part, with `where=`.

    Raises:
        InvalidDeclaration: no part is named, one is named twice, or a migration has no `where`.
    """
    cure = 'name the parts, ["202401", "202402"]: letters and digits'
    names = need_list(MANY, parts, str, "names of parts", cure=cure)
    refuse_if(not names, MANY, "no-part-named", cure=cure)
    for name in names:
        refuse_if(not _PART.fullmatch(name), MANY, "part-name", name=name, cure=cure)
    migrations = _for_each(names, make)
    for name, migration in migrations.items():
        refuse_if(migration.where is None, MANY, "whole-table", name=name)
    return migrations


def _for_each(names: Sequence[str], make: Callable[[str], Migration]) -> dict[str, Migration]:
    migrations: dict[str, Migration] = {}
    for name in names:
        refuse_if(name.lower() in map(str.lower, migrations), MANY, "named-twice", name=name)
        cure = "let the function return Migration(…)"
        migrations[name] = need(MANY, make(name), Migration, "is no Migration", cure=cure)
    return migrations


def required_secrets(migration: Migration) -> list[str]:
    """Return the names of the secrets that the declaration's expressions need, sorted."""
    return sorted({node.secret for node in _opaques(migration.expressions())})


def _opaques(expressions: Iterable[tuple[str, Expression]]) -> Iterator[Opaque]:
    for _, expression in expressions:
        yield from (node for node in expression.walk() if isinstance(node, Opaque))


def _check_choice(where: str, value: object, choices: tuple[str, ...]) -> None:
    cure = " or ".join(f'{where}="{choice}"' for choice in choices)
    refuse_if(value not in choices, where, "choice-not-known", value=value, choices=cure)
