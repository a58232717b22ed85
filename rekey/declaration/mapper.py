"""The mapper: applies a declaration to rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import count
from typing import NamedTuple, TypeVar

import orjson

from rekey.core.joint import is_joint, own_key, own_row, prefix_of
from rekey.declaration.keys.base import Prop
from rekey.declaration.kinds import NO_KIND, NO_KIND_CURE, RowKind, keys_are_apart, kind_numbers, targets_in
from rekey.declaration.migration import Migration
from rekey.declaration.old_references import NOTHING_LOOKED_UP, OldValues, ReferredKey
from rekey.declaration.row_makers import KindMapper, OfKind, TargetRow
from rekey.declaration.targets import Index, Target
from rekey.errors import RowRefused
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, Row, key_of

T = TypeVar("T")

# Secondary rows in the partition of their main row. One transaction has 100 operations: it must be able to
# delete the main row with all its secondary rows and write as many new ones.
MOST_SECONDARY = 49
# JSON bytes of the main row and these rows; keys and headers of 100 operations fit into what remains of the 4
# MiB of a transaction.
MOST_TRANSACTION_BYTES = 3 * 1024 * 1024
# Rows of one kind mapped at once: as many as stay in the processor's cache.
_ROWS_AT_ONCE = 100


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
        drops: whether rows that no kind takes are not migrated: `map` returns no rows for them.
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
        targets = [target for _, target in targets_in(migration.target)]
        folding = {number for number, index in enumerate(migration.indexes, start=1) if _folds(index)}
        if any(map(_folds, targets)) or not keys_are_apart(migration.kinds):
            folding.add(0)
        self.shared = frozenset() if migration.inverse else frozenset(folding)
        # Kinds that copy Timestamp copy it to the same properties.
        tables = (targets[0], *migration.indexes)
        self.timestamp_copies = tuple(table.property_mapping.from_timestamp for table in tables)
        self.needs_timestamp = any(self.timestamp_copies) or TIMESTAMP in migration.key_inputs
        self._mappers = list(_mappers(migration, secrets))
        self._number_of_kind = kind_numbers(migration.kinds)
        self.drops = migration.dropped is not None
        self._rows_at_once = _ROWS_AT_ONCE * len(self._mappers)

    @property
    def labels(self) -> tuple[str, ...]:
        """The tables' names in text for people."""
        return self.migration.labels

    def label_of(self, table: int, key: EntityKey) -> str:
        """Return the name in text for people of the table that holds a target row; in a joint table that of
        the table itself. `table`: the row's number; `key`: as in the table of that number."""
        name = self.tables[table]
        return own_key(key)[0] if is_joint(name) else self.labels[table]

    @property
    def reversible(self) -> bool:
        """Whether the migration can be rolled back after cutover (`reverse=True`)."""
        return self.migration.reverse

    def map(self, row: Row) -> list[TargetRow]:
        """Return the rows that a source row maps to: the main row first, then index rows; none for a row that
        is not migrated (`is_dropped`). Rows that the service would refuse are refused here, before anything
        is written.

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
        for start in range(0, len(rows), self._rows_at_once):
            chunk = rows[start : start + self._rows_at_once]
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
        for start in range(0, len(rows), self._rows_at_once):
            if most is not None and sum([len(table.rows) for table in tables]) >= most:
                yield tables
                tables = [TableRows([], []) for _ in self.tables]
            chunk = rows[start : start + self._rows_at_once]
            if not self.migration.indexes:
                with suppress(RowRefused):
                    taken = [row for row in chunk if not self.is_dropped(row)] if self.drops else chunk
                    tables[0].rows.extend(self._by_kind(taken, KindMapper.map_main))
                    tables[0].sources.extend(taken)
                    continue
            for row, target_rows in self.map_all(chunk, refused):
                for number, target in target_rows:
                    tables[number].rows.append(target)
                    tables[number].sources.append(row)
        yield tables

    def _map(self, rows: Sequence[Row]) -> list[list[TargetRow]]:
        # Nothing compares index rows with main rows where those do not hold what they are made of.
        apply = KindMapper.map if self.index_inputs_lost else KindMapper.map_comparable
        mapped = self._by_kind(rows, apply, list)
        for target_rows in mapped if self.co_located else ():
            if target_rows:
                self._check_transaction(target_rows)
        return mapped

    def _by_kind(
        self,
        rows: Sequence[Row],
        apply: Callable[[KindMapper, Sequence[Row]], list[T]],
        nothing: Callable[[], T] | None = None,
    ) -> list[T]:
        """Return what the mappers of the rows' kinds give for them, and `nothing()` for rows that are not
        migrated. Raises RowRefused."""
        if not self.migration.kinds:
            return apply(self._mappers[0], rows)
        places: list[list[int]] = [[] for _ in self._mappers]
        in_order: list[T] = [None] * len(rows)  # type: ignore[list-item]  # each place is filled below
        for place, number in enumerate(map(self._number_of_kind, rows)):
            if number is not None:
                places[number].append(place)
            elif self.drops and nothing is not None:
                in_order[place] = nothing()
            else:
                raise RowRefused("no-kind", "kinds", NO_KIND, cure=NO_KIND_CURE)
        for mapper, own in zip(self._mappers, places, strict=True):
            for place, result in zip(own, apply(mapper, [rows[place] for place in own]), strict=True):
                in_order[place] = result
        return in_order

    def kind_of(self, row: Row) -> RowKind | None:
        """Return the kind of a source row; None if none takes it, or the migration has no kinds."""
        number = self._number_of_kind(row)
        return None if number is None else self.migration.kinds[number]

    @property
    def kind_inputs(self) -> list[str]:
        """The keys and properties of a source row that `kind_of` and `is_dropped` read."""
        return sorted({PARTITION_KEY, ROW_KEY}.union(*(kind.when.inputs() for kind in self.migration.kinds)))

    def is_dropped(self, row: Row) -> bool:
        """Tell whether a source row is not migrated: no kind takes it, and the script drops such rows."""
        return self.drops and self._number_of_kind(row) is None

    def _mapper_of(self, target_row: Row) -> KindMapper:
        """Return the mapper of a main target row's kind, which the row itself proves. Raises RowRefused."""
        if not self.migration.kinds:
            return self._mappers[0]
        table, row = None, target_row
        if is_joint(self.tables[0]):
            (table, _), row = own_key(key_of(target_row)), own_row(target_row)
        for kind, mapper in zip(self.migration.kinds, self._mappers, strict=True):
            if table in (None, kind.target.table) and kind.may_have_made(row):
                return mapper
        problem, cure = "the row of the new table is of no kind", "give it the keys and constants of a kind"
        raise RowRefused("no-kind", "kinds", problem, cure=cure)

    def number_by_row_key(self, row_key: str) -> int:
        """Return the table number of a row in the main target's table: 0, or that of its secondary rows."""
        return next(
            (number for number, prefix in self.migration.secondary.items() if row_key.startswith(prefix)), 0
        )

    @property
    def keeps_partitions(self) -> bool:
        """Whether all rows that a source row maps to have its PartitionKey; in a joint table none has."""
        if is_joint(self.tables[0]):
            return False
        filled = [*(target for _, target in targets_in(self.migration.target)), *self.migration.indexes]
        return all(table.partition_key == Prop(PARTITION_KEY) for table in filled)

    @property
    def read_once(self) -> list[int]:
        """Numbers of the tables to read to see every row once."""
        return [number for number, name in enumerate(self.tables) if name not in self.tables[:number]]

    def number_of(self, table: int, row: Row) -> int:
        """Return the table number of a row that was read with those of table number `table`."""
        return table if table not in self.migration.sharing else self.migration.number_of(table, key_of(row))

    def target_keys(self, source_key: EntityKey) -> list[tuple[int, EntityKey]] | None:
        """Return the table number and key of every row that a source key maps to, without reading its row;
        None when keys depend on more than the old key, or the declaration cannot be applied to it; empty for
        a row that is not migrated."""
        if self.content_derived:
            return None
        row = {PARTITION_KEY: source_key.partition, ROW_KEY: source_key.row}
        try:
            [keys] = self._by_kind([row], lambda mapper, rows: [mapper.keys(row) for row in rows], list)
        except RowRefused:
            return None
        return keys

    def source_key(self, target_row: Row) -> EntityKey:
        """Return the old key of a main target row, from the row itself. Raises RowRefused (`no-old-key`,
        `no-kind`, `outside-part`)."""
        key = self._mapper_of(target_row).source_key(target_row)
        if not self.migration.has(key):
            problem = f"its old key would be outside the part of {self.migration.source} that is migrated"
            cure = "write such a row in the old table: it is not in the new one"
            raise RowRefused("outside-part", "where", problem, cure=cure)
        return key

    def reverse(
        self,
        target_row: Row,
        old_key: EntityKey,
        source_row: Row | None,
        old_values: OldValues = NOTHING_LOOKED_UP,
    ) -> Row:
        """Return the source row that maps to a main target row. Mapping it gives the target row's content
        again; the caller checks its key, whose inputs may have changed. If the declaration copies Timestamp,
        it carries one, for mapping it again; writers leave it out (`content_of`).

        Args:
            target_row: the main target row.
            old_key: the key of the source row.
            source_row: the current source row, or None: it keeps properties that the mapping does not carry,
                and the spelling of unchanged values.
            old_values: what was looked up of `to_look_up`.

        Raises:
            RowRefused: `not-reversible`; `no-old-reference` if one of `to_look_up` is not known.
        """
        if not self.reversible:
            problem = "the declaration says reverse=False"
            cure = "this migration cannot be rolled back after cutover"
            raise RowRefused("not-reversible", "target.properties", problem, cure=cure)
        return self._mapper_of(target_row).reverse(target_row, old_key, source_row, old_values)

    @property
    def looks_up(self) -> bool:
        """Whether `reverse` may need old keys that only the mappings of other migrations hold."""
        return self.reversible and bool(self.migration.looked_up_in)

    def to_look_up(
        self, target_row: Row, old_key: EntityKey, source_row: Row | None
    ) -> Mapping[str, ReferredKey]:
        """Return the rows of other migrations whose old keys `reverse` needs, by the property of the source
        that holds the old RowKey. Arguments as for `reverse`. Raises RowRefused."""
        return (
            self._mapper_of(target_row).to_look_up(target_row, old_key, source_row) if self.looks_up else {}
        )

    def without_old_references(self, source_row: Row) -> Row:
        """Return a source row without what only the source holds of it where there are references."""
        targets = [target for _, target in targets_in(self.migration.target)]
        names = frozenset[str]().union(*(target.property_mapping.removed for target in targets))
        return {field: value for field, value in source_row.items() if field not in names}

    def changes_reference(self, target_row: Row, before: Row | None) -> bool:
        """Tell whether a main target row holds a reference whose old value only the source holds, and that
        the row `before` (None: there was none) does not hold. Raises RowRefused."""
        return self.looks_up and self._mapper_of(target_row).changes_reference(target_row, before)

    @cached_property
    def index_inputs_lost(self) -> tuple[str, ...]:
        """The properties of source rows that index rows are made of and that a main target row does not hold
        unchanged, sorted; with any, index rows cannot be made from main rows alone. Empty for most
        declarations."""
        return tuple(sorted(frozenset[str]().union(*(mapper.index_inputs_lost for mapper in self._mappers))))

    def index_rows(self, target_row: Row) -> list[TargetRow]:
        """Return the index rows of a main target row, made from that row alone as an application makes them.
        Copies of the source's Timestamp hold a different moment. Raises RowRefused."""
        return self._mapper_of(target_row).index_rows(target_row)

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


def _folds(table: Target | Index) -> bool:
    """Tell whether two source keys may map to one key, as far as the declaration proves."""
    determined = table.partition_key.determines() | table.row_key.determines()
    return not {PARTITION_KEY, ROW_KEY} <= determined


def _mappers(migration: Migration, secrets: Mapping[str, bytes]) -> Iterator[KindMapper]:
    """Yield the mapper of each kind, or that of all rows."""
    if not migration.kinds:
        indexes = list(enumerate(migration.indexes, start=1))
        yield KindMapper(OfKind("target", inverse=migration.inverse), migration.target, indexes, secrets)
    numbers = count(1)
    joint = is_joint(migration.target.table)
    for kind in migration.kinds:
        indexes = [(next(numbers), index) for index in kind.indexes]
        of_kind = OfKind(f"{kind.where}.target", kind.when, prefix_of(kind.target.table) if joint else "")
        yield KindMapper(of_kind, kind.target, indexes, secrets)
