"""The tables that a migration fills: the main target and indexes, with their keys and properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from rekey.core.limits import TABLE_NAME_CURE, check_key, table_name_problem
from rekey.core.plain import json_field
from rekey.declaration.keys.base import (
    WHOLE_ROW,
    Expression,
    InvalidDeclaration,
    Item,
    Kept,
    Prop,
    constant_prefix,
    invalid,
    need,
    need_expression,
    need_list,
    refuse_if,
)
from rekey.declaration.keys.pieces import Split
from rekey.declaration.property_mapping import PropertyMapping, property_mapping_of
from rekey.declaration.props import Operation
from rekey.errors import RowRefused
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, Row

MAIN_PARTITION_KEY = "MainPartitionKey"
MAIN_ROW_KEY = "MainRowKey"
_HELD_BY = {"partition_key": PARTITION_KEY, "row_key": ROW_KEY}
# Properties of every index row: the key of the main target row.
POINTER = frozenset({MAIN_PARTITION_KEY, MAIN_ROW_KEY})


@dataclass(frozen=True)
class _Filled:
    """A table that the migration fills: base of `Target` and `Index`."""

    table: str
    partition_key: Expression = field(kw_only=True)
    row_key: Expression = field(kw_only=True)
    properties: Sequence[Operation] = field(default=(), kw_only=True)
    allow_empty: bool = field(default=False, kw_only=True)
    shared: bool = field(default=False, kw_only=True, metadata=json_field(omit_default=True))

    kind: ClassVar[str]
    # Whether properties that no operation names are copied into the new row.
    carries_all: ClassVar[bool]

    def __post_init__(self) -> None:
        check_table(f"{self.kind}.table", self.table)
        for name, key in self._keys():
            field = f"{self.where}.{name}"
            need_expression(field, key)
            if isinstance(key, Kept):
                object.__setattr__(self, name, Prop(_HELD_BY[name]))
            elif key.contains(Kept):
                raise invalid(field, "keeps-whole-key")
        refuse_if(not isinstance(self.shared, bool), f"{self.where}.shared", "shared-no-bool")
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
        shared: whether the table also holds rows that are not this migration's: the application's, or those
            that another migration writes. The PartitionKeys must say which are this one's
            (`rekey.declaration.key_space`); all others stay as they are.
    """

    kind: ClassVar[str] = "target"
    carries_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self._keys_of_items():
            raise invalid(f"target.{name}", "item-in-target")
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
        shared: as of `Target`.
    """

    each: Split | None = field(default=None, kw_only=True)

    kind: ClassVar[str] = "index"
    carries_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        where, used = self.where, self._keys_of_items()
        if self.each is None:
            for name in used:
                raise invalid(f"{where}.{name}", "item-without-each")
        else:
            cure = 'write each=keys.split("Property", ",")'
            need(f"{where}.each", self.each, Split, "does not give items", cure=cure)
            refuse_if(not used, f"{where}.each", "each-without-item")
            refuse_if(self.each.of.contains(Item), f"{where}.each", "item-of-item")
        hidden = POINTER & (self.property_mapping.created | (self.property_mapping.kept or set()))
        refuse_if(hidden, f"{where}.properties", "pointer-name", hidden=", ".join(sorted(hidden)))

    @cached_property
    def inputs(self) -> frozenset[str]:
        """The keys and properties of a source row that its rows are made of, as far as they are named, except
        Timestamp where it is only copied; contains `WHOLE_ROW` where a custom function may read any."""
        expressions = [self.partition_key, self.row_key, *([] if self.each is None else [self.each.of])]
        keys = frozenset[str]().union(*(expression.inputs() for expression in expressions))
        inputs = keys | (self.property_mapping.inputs - {TIMESTAMP})
        return inputs | {PARTITION_KEY, ROW_KEY} if WHOLE_ROW in inputs else inputs

    @property
    def where(self) -> str:
        """This index's name in errors: `index[UsersByTag]`, with the constant beginning of its RowKeys if
        there is one: `index[Races AGE:]`."""
        return f"index[{f'{self.table} {constant_prefix(self.row_key)}'.rstrip()}]"


def check_table(where: str, name: object) -> None:
    """Raise InvalidDeclaration if `name` is no name of a table, with or without `@targets`."""
    if problem := table_name_problem(name, qualified=True):
        there = '; for a table of the account of [targets], "@targets" after it' if "@" in str(name) else ""
        raise InvalidDeclaration(where, problem, cure=f"{TABLE_NAME_CURE}{there}")


def named_main(index_row: Row) -> EntityKey | None:
    """Return the main target key that an index row names, None where what it holds can be no key: anybody may
    have written the row, and no table can be asked for such a key."""
    partition, row = index_row.get(MAIN_PARTITION_KEY), index_row.get(MAIN_ROW_KEY)
    if not isinstance(partition, str) or not isinstance(row, str):
        return None
    try:
        check_key(partition, MAIN_PARTITION_KEY, allow_empty=True)
        check_key(row, MAIN_ROW_KEY, allow_empty=True)
    except RowRefused:
        return None
    return EntityKey(partition, row)
