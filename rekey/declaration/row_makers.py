"""Makes target and index rows of one kind from source rows, and source rows from main rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import NamedTuple

from rekey.core.edm import STRING, canonical_content, edm_type
from rekey.core.joint import own_row
from rekey.core.limits import (
    MAX_KEY_UNITS,
    SURELY_ADDRESSED,
    SURELY_SMALL_FIELDS,
    check_address,
    check_key,
    check_row,
    utf16_units,
)
from rekey.declaration.inverse import KeyInverse
from rekey.declaration.keys.base import WHOLE_ROW, Evaluator, Expression, Literal, PageEvaluator, Scope
from rekey.declaration.keys.hashes import Opaque
from rekey.declaration.old_references import OldValues, ReferredKey
from rekey.declaration.property_mapping import Backward, Step
from rekey.declaration.rows import Condition, every
from rekey.declaration.targets import MAIN_PARTITION_KEY, MAIN_ROW_KEY, POINTER, Index, Target
from rekey.errors import RowRefused
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, Row, key_of

_OLD_KEY_CURE = (
    "write the old keys into the row's copied properties when creating rows in the new table, or, before"
    " `complete`, create them in the old view"
)
_NO_IMAGE_CURE = "create rows in the new table under keys as the declaration makes them, or in the old view"
EVERY_ROW = every()
_KNOWN_NAMES = 4096
_make = tuple.__new__


class TargetRow(NamedTuple):
    """A row for one of the migration's tables: 0 is the main target, 1 and up the indexes as declared."""

    table: int
    row: Row


class OfKind(NamedTuple):
    """What a kind says of its main rows."""

    # The target's name in errors.
    where: str
    # The source rows that are of the kind.
    when: Condition = EVERY_ROW
    # How their PartitionKeys begin in a joint table; "" if the table is not joint.
    prefix: str = ""
    # Inverts main keys; None where main rows hold the old keys.
    inverse: KeyInverse | None = None


class KindMapper:
    """Maps the rows of one kind to main and index rows, and its main rows back."""

    def __init__(
        self, kind: OfKind, target: Target, indexes: Sequence[tuple[int, Index]], secrets: Mapping[str, bytes]
    ) -> None:
        """Compile the expressions.

        Args:
            kind: what is known of the kind.
            target: keys and properties of main rows.
            indexes: the kind's indexes with their table numbers.
            secrets: secret bytes by name.

        Raises:
            SecretMissing: a secret is absent or shorter than 16 bytes.
        """
        (self._where, self._when, self._prefix, self._inverse), self._mapping = kind, target.property_mapping
        self._scope = Scope(f"{kind.where}.properties", secrets)
        self._main = RowMaker(target, kind.where, secrets, inverts=kind.inverse is not None)
        self._indexes = [(number, IndexMaker(index, secrets)) for number, index in indexes]
        self._declared = [index for _, index in indexes]
        # The properties of a main row that hold the old PartitionKey and RowKey, if any.
        self._old_key_holders = target.old_key_fields()

    def map_main(self, rows: Sequence[Row]) -> list[Row]:
        """Return the main row of each source row. Raises RowRefused."""
        for row in rows:
            if len(row[PARTITION_KEY]) + len(row[ROW_KEY]) > SURELY_ADDRESSED:
                check_address(row, "source")
        mains = self._main.make_page(rows)
        for main in mains if self._prefix else ():
            main[PARTITION_KEY] = self._joint(main[PARTITION_KEY])
        return mains

    def map(self, rows: Sequence[Row]) -> list[list[TargetRow]]:
        """Return for each source row its main row, then its index rows. Raises RowRefused."""
        # Without the cost of a constructor, as in `rekey.model.key_of`.
        mapped = [[_make(TargetRow, (0, main))] for main in self.map_main(rows)]
        for row, target_rows in zip(rows, mapped, strict=True) if self._indexes else ():
            target_rows += self._index_rows(row, target_rows[0].row)
        return mapped

    def map_comparable(self, rows: Sequence[Row]) -> list[list[TargetRow]]:
        """As `map`, but also refuse a row whose main row alone would give other index rows."""
        mapped = self.map(rows)
        for row, target_rows in zip(rows, mapped, strict=True) if self._ambiguous else ():
            own = {
                name: old
                for name, old in self._ambiguous.items()
                if row.get(name) is not None and row.get(old) is None
            }
            if own and not self._gives_index_rows(row, target_rows):
                owned = " and ".join(
                    f"a property {name} of its own and no {old}" for name, old in own.items()
                )
                problem = f"the row has {owned}, so its index rows could not be made from its new row alone"
                cure = f'drop it (props.drop("{min(own)}")), rename it, or choose another name'
                raise self._scope.refusal("bad-property-name", problem, cure=cure)
        return mapped

    def keys(self, row: Row) -> list[tuple[int, EntityKey]]:
        """Return table number and key of every row that a source row maps to. Raises RowRefused."""
        keys = [
            (0, EntityKey(self._joint(partition), row_key)) for partition, row_key in self._main.keys(row)
        ]
        return keys + [(number, key) for number, index in self._indexes for key in index.keys(row)]

    def source_key(self, target_row: Row) -> EntityKey:
        """Return the old key of a main row, from the row itself. Raises RowRefused (`no-old-key`)."""
        if self._inverse is not None:
            return self._inverted(target_row)
        partition, row = self._old_key_holders
        target_row = self._own(target_row)
        return EntityKey(
            self._old_key(target_row, partition, PARTITION_KEY), self._old_key(target_row, row, ROW_KEY)
        )

    def reverse(
        self, target_row: Row, old_key: EntityKey, source_row: Row | None, old_values: OldValues
    ) -> Row:
        """Return the source row that maps to a main row (`Mapper.reverse`)."""
        return self._mapping.undo(self._own(target_row), old_key, source_row, self._backward, old_values)

    def to_look_up(
        self, target_row: Row, old_key: EntityKey, source_row: Row | None
    ) -> Mapping[str, ReferredKey]:
        """Return what `reverse` needs to know (`Mapper.to_look_up`)."""
        return self._mapping.to_look_up(self._own(target_row), old_key, source_row, self._backward)

    def changes_reference(self, target_row: Row, before: Row | None) -> bool:
        """Tell whether a main row holds a reference that it did not hold before (`Mapper`)."""
        after = self._own(target_row)
        return any(
            old.is_in(after) and (before is None or not old.is_same(after, self._own(before)))
            for old, _ in self._backward.old_references
        )

    @cached_property
    def _backward(self) -> Backward:
        looked_up = [(old, old.compile(self._scope)) for old in self._mapping.old_references]
        return Backward(self._main.fill, self._scope, looked_up)

    def index_rows(self, target_row: Row) -> list[TargetRow]:
        """Return the index rows of a main row, made from that row alone. Raises RowRefused."""
        inputs, (partition, row_key), own = self._index_inputs, self._old_key_holders, self._own(target_row)
        old_key = EntityKey(
            self._old_key(own, partition, PARTITION_KEY) if PARTITION_KEY in inputs else "",
            self._old_key(own, row_key, ROW_KEY) if ROW_KEY in inputs else "",
        )
        for key, text in zip((PARTITION_KEY, ROW_KEY), old_key, strict=True):
            # Otherwise index rows could have keys that say that they are of another table number.
            if key in inputs and not text.startswith(self._when.prefix_of(key)):
                problem = f"what the row holds as its old {key} is not that of a row of its kind"
                raise RowRefused("no-old-key", f"{self._where}.properties", problem, cure=_OLD_KEY_CURE)
        row = self._mapping.source_properties(own, old_key, self._needed, self._scope)
        row[TIMESTAMP] = target_row.get(TIMESTAMP)
        return self._index_rows(row, target_row)  # the pointer says which table holds the row

    @cached_property
    def index_inputs_lost(self) -> frozenset[str]:
        """The keys and properties of source rows that index rows are made of and that a main row does not
        hold unchanged; `*` where they may be made of any."""
        return frozenset[str]().union(*map(self._lost_to, self._declared))

    @cached_property
    def _ambiguous(self) -> Mapping[str, str]:
        return self._mapping.ambiguous if self._indexes else {}

    def _gives_index_rows(self, row: Row, target_rows: Sequence[TargetRow]) -> bool:
        main, *index_rows = target_rows
        try:
            again = self.index_rows({**main.row, TIMESTAMP: row.get(TIMESTAMP)})
        except RowRefused:
            return False
        return [*map(_content, again)] == [*map(_content, index_rows)]

    def _lost_to(self, index: Index) -> set[str]:
        main, carried = self._mapping, index.property_mapping
        reads_any = WHOLE_ROW in index.inputs
        holders = zip((PARTITION_KEY, ROW_KEY), self._old_key_holders, strict=True)
        old_keys = {WHOLE_ROW, *(key for key, holder in holders if holder is not None)}
        lost = {name for name in index.inputs - old_keys if not main.gives_back(name)}
        if (reads_any or carried.kept is None) and main.kept is not None:
            return lost | {WHOLE_ROW}
        if reads_any:
            return lost | main.lost
        return lost | {name for name in main.lost if carried.kept is None and carried.carries(name)}

    @cached_property
    def _index_inputs(self) -> frozenset[str]:
        return frozenset[str]().union(*(index.inputs for index in self._declared))

    @cached_property
    def _needed(self) -> Callable[[str], bool]:
        inputs, carried = self._index_inputs, [index.property_mapping for index in self._declared]

        @lru_cache(_KNOWN_NAMES)
        def is_needed(name: str) -> bool:
            """Tell whether index rows are made of a source property."""
            return bool(inputs & {name, WHOLE_ROW}) or any(mapping.carries(name) for mapping in carried)

        return is_needed

    def _index_rows(self, row: Row, main: Row) -> list[TargetRow]:
        return [
            TargetRow(number, index_row)
            for number, index in self._indexes
            for index_row in index.make_all(row, main)
        ]

    def _inverted(self, target_row: Row) -> EntityKey:
        target_key = key_of(target_row)
        source_key = None if self._inverse is None else self._inverse.read(target_key)
        if source_key is not None:
            with suppress(RowRefused):
                row = {PARTITION_KEY: source_key.partition, ROW_KEY: source_key.row}
                if self._main.keys(row) == [target_key]:
                    return source_key
        problem = "no old key maps to the row's key"
        raise RowRefused("no-old-key", self._where, problem, cure=_NO_IMAGE_CURE)

    def _joint(self, partition: str) -> str:
        """Return the PartitionKey in the main target, which may be joint, of a row of the kind's table."""
        if self._prefix and utf16_units(partition) > MAX_KEY_UNITS - len(self._prefix):
            problem = f"the key is longer than {MAX_KEY_UNITS - len(self._prefix)} UTF-16 units"
            cure = "shorten it: beside other tables, the table's name and the key count together"
            raise RowRefused("key-too-long", f"{self._where}.partition_key", problem, cure=cure)
        return self._prefix + partition

    def _own(self, target_row: Row) -> Row:
        return own_row(target_row) if self._prefix else target_row

    def _old_key(self, target_row: Row, holder: str | None, key: str) -> str:
        value = None if holder is None else target_row.get(holder)
        field = f"{self._where}.properties({holder})" if holder else f"{self._where}.properties"
        if holder is None or not isinstance(value, str) or edm_type(target_row, holder) != STRING:
            raise RowRefused("no-old-key", field, f"the row does not hold its old {key}", cure=_OLD_KEY_CURE)
        try:
            check_key(value, field, allow_empty=True)
        except RowRefused as refused:
            problem = f"what the row holds as its old {key} is no key"
            raise RowRefused("no-old-key", field, problem, cure=refused.cure) from None
        return value


class RowMaker:
    """Makes the rows of one table."""

    def __init__(
        self, of: Target | Index, where: str, secrets: Mapping[str, bytes], *, inverts: bool = False
    ) -> None:
        self._where = where
        scopes = [Scope(f"{where}.{name}", secrets, inverts) for name in ("partition_key", "row_key")]
        self._partition, self._partitions = _key_makers(of.partition_key, scopes[0], of.allow_empty)
        self._row, self._rows = _key_makers(of.row_key, scopes[1], of.allow_empty)
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


class IndexMaker(RowMaker):
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


def _content(target_row: TargetRow) -> tuple[int, EntityKey, list[tuple[str, str, str]]]:
    return target_row.table, key_of(target_row.row), canonical_content(target_row.row)


def _key_makers(expression: Expression, scope: Scope, allow_empty: bool) -> tuple[Evaluator, PageEvaluator]:
    """Return a key's evaluators, for one row and for many, with the checks of the service."""
    where = scope.field
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
