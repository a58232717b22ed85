"""The mapper: applies a declaration to rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

import orjson

from rekey.core.edm import STRING, edm_type
from rekey.core.limits import SURELY_ADDRESSED, SURELY_SMALL_FIELDS, check_address, check_key, check_row
from rekey.declaration.keys.base import Evaluator, Expression, Literal, PageEvaluator, Scope
from rekey.declaration.keys.hashes import Opaque
from rekey.declaration.migration import MAIN_PARTITION_KEY, MAIN_ROW_KEY, POINTER, Index, Migration, Target
from rekey.declaration.property_mapping import Step
from rekey.errors import RowRefused
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, Row, key_of

_OLD_KEY_CURE = (
    "write the old keys into the row's copied properties when creating rows in the new table, or create them"
    " in the old view"
)


# Secondary rows in the partition of their main row. One transaction has 100 operations: it must be able to
# delete the main row with all its secondary rows and write as many new ones.
MOST_SECONDARY = 49
# JSON bytes of the main row and these rows; keys and headers of 100 operations fit into what remains of the 4
# MiB of a transaction.
MOST_TRANSACTION_BYTES = 3 * 1024 * 1024
# Rows mapped at once: as many as stay in the processor's cache.
_ROWS_AT_ONCE = 100

_make = tuple.__new__


class TargetRow(NamedTuple):
    """A row for one of the migration's tables: 0 is the main target, 1 and up the indexes as declared."""

    table: int
    row: Row


class TableRows(NamedTuple):
    """Rows for one of the migration's tables, and the source row of each."""

    rows: list[Row]
    sources: list[Row]


class Mapper:
    """Maps source rows to target and index rows, and target rows back. The same row always gives the same
    rows; they hold keys and properties, no ETag and no Timestamp. `map_all` and `map_tables` are the hot
    paths.

    Attributes:
        tables: names of the tables filled, main target first.
        content_derived: whether any key depends on more than the source's PartitionKey and RowKey, so that a
            write can change target keys.
        needs_timestamp: whether `map` needs rows with the service's Timestamp, i.e. rows that were read.
        co_located: numbers of the tables whose rows are in the main target's table: 0 and those of secondary
            rows; empty without secondary rows.
        shared: numbers of the tables in which, as far as the declaration proves, two source keys may map to
            the same key: keys that fold spellings together or come from content.
        timestamp_copies: for each table, the properties that hold the source's Timestamp. Once the target is
            the authority, writing back gives the source row another one: do not compare these then.
    """

    def __init__(self, migration: Migration, secrets: Mapping[str, bytes]) -> None:
        """Compile the declaration: whatever does not depend on a row is computed here, once.

        Args:
            migration: the declaration.
            secrets: secret bytes by name, at least those of `required_secrets(migration)`.

        Raises:
            SecretMissing: a secret is absent or shorter than 16 bytes.
        """
        self.migration = migration
        self.tables = migration.tables
        self.content_derived = bool(migration.key_inputs - {PARTITION_KEY, ROW_KEY})
        self.co_located = frozenset({0, *migration.secondary} if migration.secondary else ())
        self.shared = frozenset(
            number
            for number, table in enumerate(migration.filled)
            if not {PARTITION_KEY, ROW_KEY} <= table.partition_key.determines() | table.row_key.determines()
        )
        self.timestamp_copies = tuple(target.property_mapping.from_timestamp for target in migration.filled)
        self.needs_timestamp = any(self.timestamp_copies) or TIMESTAMP in migration.key_inputs
        self._main_scope = Scope("target.properties", secrets)
        self._main = _RowMaker(migration.target, "target", secrets)
        self._indexes = [
            (number, _IndexMaker(index, secrets)) for number, index in enumerate(migration.indexes, start=1)
        ]
        # The properties of a main row that hold the old PartitionKey and RowKey, if any.
        self._old_key_holders = migration.target.old_key_fields()

    @property
    def labels(self) -> tuple[str, ...]:
        """The tables' names in text for people."""
        return self.migration.labels

    @property
    def reversible(self) -> bool:
        """Whether the migration can be rolled back after cutover (`reverse=True`)."""
        return self.migration.reverse

    def map(self, row: Row) -> list[TargetRow]:
        """Return the rows that a source row maps to: the main row first, then index rows. Rows that the
        service would refuse are refused here, before anything is written.

        Raises:
            RowRefused: the declaration cannot be applied to this row. It names the place in the declaration,
                never a value of the row.
        """
        [target_rows] = self._map((row,))
        return target_rows

    def map_all(
        self, rows: Sequence[Row], refused: Callable[[Row, RowRefused], object]
    ) -> Iterator[tuple[Row, list[TargetRow]]]:
        """Yield each row with what `map` returns for it. A row it refuses is passed to `refused` instead."""
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            chunk = rows[start : start + _ROWS_AT_ONCE]
            try:
                yield from zip(chunk, self._map(chunk), strict=True)
            except RowRefused:  # map one by one to find the refused rows
                for row in chunk:
                    try:
                        target_rows = self.map(row)
                    except RowRefused as refusal:
                        refused(row, refusal)
                    else:
                        yield row, target_rows

    def map_tables(
        self, rows: Sequence[Row], refused: Callable[[Row, RowRefused], object], most: int | None = None
    ) -> Iterator[list[TableRows]]:
        """Yield the rows that many rows map to, by table number: all at once, or whenever there are at least
        `most`, since a row may map to many. `refused` as for `map_all`."""
        tables = [TableRows([], []) for _ in self.tables]
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            if most is not None and sum([len(table.rows) for table in tables]) >= most:
                yield tables
                tables = [TableRows([], []) for _ in self.tables]
            chunk = rows[start : start + _ROWS_AT_ONCE]
            if not self._indexes:
                with suppress(RowRefused):
                    tables[0].rows.extend(self._map_main(chunk))
                    tables[0].sources.extend(chunk)
                    continue
            for row, target_rows in self.map_all(chunk, refused):
                for number, target in target_rows:
                    tables[number].rows.append(target)
                    tables[number].sources.append(row)
        yield tables

    def _map_main(self, rows: Sequence[Row]) -> list[Row]:
        for row in rows:
            if len(row[PARTITION_KEY]) + len(row[ROW_KEY]) > SURELY_ADDRESSED:
                check_address(row, "source")
        return self._main.make_page(rows)

    def _map(self, rows: Sequence[Row]) -> list[list[TargetRow]]:
        # Without the cost of a constructor, as in `rekey.model.key_of`.
        mapped = [[_make(TargetRow, (0, main))] for main in self._map_main(rows)]
        for row, target_rows in zip(rows, mapped, strict=True) if self._indexes else ():
            for number, index in self._indexes:
                target_rows += [
                    TargetRow(number, index_row) for index_row in index.make_all(row, target_rows[0].row)
                ]
            if self.co_located:
                self._check_transaction(target_rows)
        return mapped

    def kind_of(self, row_key: str) -> int:
        """Return the table number of a row in the main target's table: 0, or that of its secondary rows."""
        return next(
            (number for number, prefix in self.migration.secondary.items() if row_key.startswith(prefix)), 0
        )

    @property
    def read_once(self) -> list[int]:
        """Numbers of the tables to read to see every row once."""
        return [number for number, name in enumerate(self.tables) if name not in self.tables[:number]]

    def number_of(self, table: int, row: Row) -> int:
        """Return the table number of a row that was read with those of table number `table`."""
        return table if table not in self.migration.kinds else self.migration.number_of(table, key_of(row))

    def is_shared(self, table: int) -> bool:
        """Tell whether the table with a number also holds rows of other numbers."""
        return table in self.migration.kinds

    def target_keys(self, source_key: EntityKey) -> list[tuple[int, EntityKey]] | None:
        """Return the table number and key of every row that a source key maps to, without reading its row;
        None when keys depend on more than the old key, or the declaration cannot be applied to it."""
        if self.content_derived:
            return None
        row = {PARTITION_KEY: source_key.partition, ROW_KEY: source_key.row}
        try:
            keys = [(0, key) for key in self._main.keys(row)]
            keys += [(number, key) for number, index in self._indexes for key in index.keys(row)]
        except RowRefused:
            return None
        return keys

    def source_key(self, target_row: Row) -> EntityKey:
        """Return the old key of a main target row, from the row itself. Raises RowRefused (`no-old-key`)."""
        partition, row = self._old_key_holders
        return EntityKey(
            self._old_key(target_row, partition, PARTITION_KEY), self._old_key(target_row, row, ROW_KEY)
        )

    def reverse(self, target_row: Row, old_key: EntityKey, source_row: Row | None) -> Row:
        """Return the source row that maps to a main target row. Mapping it gives the target row's content
        again; the caller checks its key, whose inputs may have changed. If the declaration copies Timestamp,
        it carries one, for mapping it again; writers leave it out (`content_of`).

        Args:
            target_row: the main target row.
            old_key: the key of the source row.
            source_row: the current source row, or None: it keeps properties that the mapping does not carry,
                and the spelling of unchanged values.

        Raises:
            RowRefused: `not-reversible`.
        """
        if not self.reversible:
            problem = "the declaration says reverse=False"
            cure = "this migration cannot be rolled back after cutover"
            raise self._main_scope.refusal("not-reversible", problem, cure=cure)
        mapping = self.migration.target.property_mapping
        return mapping.undo(target_row, old_key, source_row, self._main.fill, self._main_scope)

    @cached_property
    def index_inputs_lost(self) -> tuple[str, ...]:
        """The properties of source rows that index rows are made of and that a main target row does not hold
        unchanged, sorted; with any, index rows cannot be made from main rows alone. Empty for most
        declarations."""
        mapping = self.migration.target.property_mapping
        preserved = {old for old, new in mapping.renames.items() if new not in mapping.casts}
        preserved |= {old for to, old in mapping.restored.items() if to not in mapping.casts}
        keys = zip((PARTITION_KEY, ROW_KEY), self._old_key_holders, strict=True)
        preserved |= {key for key, holder in keys if holder is not None}
        needed = self._index_inputs
        if needed is None:
            lost = mapping.dropped | mapping.casts.keys() | mapping.replaced
            return tuple(sorted(lost - preserved)) if mapping.kept is None else ("*",)
        carried = {name for name in needed if mapping.carries(name) and name not in mapping.casts}
        return tuple(sorted(needed - preserved - carried - {TIMESTAMP}))

    @cached_property
    def _index_inputs(self) -> frozenset[str] | None:
        """The properties and keys of source rows that index rows are made of; None: all of them."""
        inputs = set[str]()
        for index in self.migration.indexes:
            mapping = index.property_mapping
            if mapping.kept is None:
                return None
            keys = [index.partition_key, index.row_key, *([] if index.each is None else [index.each.of])]
            inputs |= frozenset[str]().union(*(key.inputs() for key in keys))
            inputs |= {*mapping.kept, *mapping.renames, *mapping.copies.values()}
            inputs |= frozenset[str]().union(
                *(computed.of.inputs() for computed in mapping.computed.values())
            )
        return None if "*" in inputs else frozenset(inputs)

    def index_rows(self, target_row: Row) -> list[TargetRow]:
        """Return the index rows of a main target row, made from that row alone as an application makes them.
        Copies of the source's Timestamp hold a different moment. Raises RowRefused."""
        needed = self._index_inputs
        try:
            old_key = self.source_key(target_row)
        except RowRefused:
            if needed is None or needed & {PARTITION_KEY, ROW_KEY}:
                raise
            old_key = EntityKey("", "")
        mapping = self.migration.target.property_mapping
        row = mapping.source_properties(target_row, old_key, needed, self._main_scope)
        row[TIMESTAMP] = target_row.get(TIMESTAMP)
        return [
            TargetRow(number, index_row)
            for number, index in self._indexes
            for index_row in index.make_all(row, target_row)
        ]

    def _check_transaction(self, target_rows: Sequence[TargetRow]) -> None:
        """Raise RowRefused if one transaction could not replace a partition's main and secondary rows."""
        partition = target_rows[0].row[PARTITION_KEY]
        co_located = [
            target_row
            for target_row in target_rows
            if target_row.table in self.co_located and target_row.row[PARTITION_KEY] == partition
        ]
        problem = ""
        if len(co_located) > MOST_SECONDARY + 1:
            problem = f"the row has more than {MOST_SECONDARY} secondary rows in its partition"
        elif sum(len(orjson.dumps(target_row.row)) for target_row in co_located) > MOST_TRANSACTION_BYTES:
            problem = f"the row and its secondary rows are larger than {MOST_TRANSACTION_BYTES} bytes"
        if problem:
            where = self.migration.indexes[co_located[-1].table - 1].where
            problem += ", and could not be changed in one transaction"
            cure = "carry less (props.keep instead of keep_all), or give the index a table of its own"
            raise RowRefused("row-too-large", where, problem, cure=cure)

    def _old_key(self, target_row: Row, holder: str | None, key: str) -> str:
        value = None if holder is None else target_row.get(holder)
        field = f"target.properties({holder})" if holder else "target.properties"
        if holder is None or not isinstance(value, str) or edm_type(target_row, holder) != STRING:
            raise RowRefused("no-old-key", field, f"the row does not hold its old {key}", cure=_OLD_KEY_CURE)
        try:
            check_key(value, field, allow_empty=True)
        except RowRefused as refused:
            problem = f"what the row holds as its old {key} is no key"
            raise RowRefused("no-old-key", field, problem, cure=refused.cure) from None
        return value


class _RowMaker:
    """Makes the rows of one table."""

    def __init__(self, of: Target | Index, where: str, secrets: Mapping[str, bytes]) -> None:
        self._where = where
        self._partition, self._partitions = _key_makers(
            of.partition_key, f"{where}.partition_key", secrets, of.allow_empty
        )
        self._row, self._rows = _key_makers(of.row_key, f"{where}.row_key", secrets, of.allow_empty)
        self.fill: Step = of.property_mapping.compile(Scope(f"{where}.properties", secrets))

    def keys(self, row: Row) -> list[EntityKey]:
        return [EntityKey(self._partition(row, ""), self._row(row, ""))]

    def make(self, row: Row, item: str, pointer: Row) -> Row:
        """Return one new row, with `pointer` among its properties."""
        out: Row = {PARTITION_KEY: self._partition(row, item), ROW_KEY: self._row(row, item), **pointer}
        self._fill((row,), (out,))
        return out

    def make_page(self, rows: Sequence[Row]) -> list[Row]:
        keys = zip(self._partitions(rows), self._rows(rows), strict=True)
        target_rows: list[Row] = [{PARTITION_KEY: partition, ROW_KEY: row_key} for partition, row_key in keys]
        self._fill(rows, target_rows)
        return target_rows

    def _fill(self, rows: Sequence[Row], target_rows: Sequence[Row]) -> None:
        self.fill(rows, target_rows)
        for out in target_rows:
            keys_units = len(out[PARTITION_KEY]) + len(out[ROW_KEY])
            if len(out) > SURELY_SMALL_FIELDS or keys_units > SURELY_ADDRESSED:
                check_row(out, self._where)


class _IndexMaker(_RowMaker):
    """Makes the rows of one index, each with the pointer to its main row."""

    def __init__(self, index: Index, secrets: Mapping[str, bytes]) -> None:
        super().__init__(index, index.where, secrets)
        self._hidden = [name for name in sorted(POINTER) if index.property_mapping.carries(name)]
        scope = Scope(f"{index.where}.each", secrets)
        self._items = None if index.each is None else index.each.compile(scope)

    def keys(self, row: Row) -> list[EntityKey]:
        if self._items is None:
            return super().keys(row)
        keys = [EntityKey(self._partition(row, item), self._row(row, item)) for item in self._items(row)]
        return list(dict.fromkeys(keys))

    def make_all(self, row: Row, main: Row) -> list[Row]:
        """Return the index rows of a source row, each key once."""
        for name in self._hidden:
            if row.get(name) is not None:
                problem = (
                    f"the row has a property {name}, which is the pointer to the main row in an index row"
                )
                cure = f'drop or rename it there: props.drop("{name}")'
                raise RowRefused("bad-property-name", f"{self._where}.properties", problem, cure=cure)
        pointer = {MAIN_PARTITION_KEY: main[PARTITION_KEY], MAIN_ROW_KEY: main[ROW_KEY]}
        if self._items is None:
            return [self.make(row, "", pointer)]
        # Two items with the same key give equal rows: content does not depend on the item.
        index_rows = [self.make(row, item, pointer) for item in self._items(row)]
        return list({(out[PARTITION_KEY], out[ROW_KEY]): out for out in index_rows}.values())


def _key_makers(
    expression: Expression, where: str, secrets: Mapping[str, bytes], allow_empty: bool
) -> tuple[Evaluator, PageEvaluator]:
    """Return a key's evaluators, for one row and for many, with the checks of the service."""
    scope = Scope(where, secrets)
    evaluate, evaluate_page = expression.compile(scope), expression.compile_page(scope)
    if isinstance(expression, Opaque):
        return evaluate, evaluate_page  # 32 digits and letters are always valid
    may_be_empty = allow_empty or expression == Literal("")

    def make(row: Row, item: str) -> str:
        key = evaluate(row, item)
        check_key(key, where, allow_empty=may_be_empty)
        return key

    def make_page(rows: Sequence[Row]) -> list[str]:
        keys = evaluate_page(rows)
        for key in {*keys}:  # check each distinct key once: rows share their PartitionKey
            check_key(key, where, allow_empty=may_be_empty)
        return keys

    return make, make_page
