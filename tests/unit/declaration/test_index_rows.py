"""Index rows made from main rows alone are those that the source row gave, or it is known what is lost."""

from __future__ import annotations

from typing import Any

import pytest

from rekey import Index, Migration, Target, keys, props
from rekey.declaration.keys.base import Expression
from rekey.declaration.keys.escape import custom
from rekey.declaration.mapper import Mapper
from rekey.declaration.props import Operation, compute
from rekey.errors import RowRefused
from rekey.model import Row

ROW_KEY_ONLY = (props.copy("RowKey", to="OldRow"),)
OLD_KEYS = (*ROW_KEY_ONLY, props.copy("PartitionKey", to="OldPartition"))


CONSTANT = keys.literal("i")


def whole(row: Row) -> str:
    """A custom key that reads any property."""
    return str(row["A"])


ANY = custom(f"{__name__}:whole", version=1)
SOURCE: Row = {"PartitionKey": "p", "RowKey": "r", "A": "a", "B": "b", "N": 5}


def mapper(*operations: Operation, index: Index, old_keys: tuple[Operation, ...] = OLD_KEYS) -> Mapper:
    target = Target(
        "New",
        partition_key=keys.literal("x"),
        row_key=keys.opaque("RowKey", domain="d", secret="s"),
        properties=[*old_keys, *operations],
    )
    both = old_keys == OLD_KEYS
    declared = Migration(source="Old", target=target, indexes=[index], capture="delta", reverse=both)
    return Mapper(declared, {"s": b"a secret of this test"})


def index(*operations: Operation, key: Expression = CONSTANT, **more: Any) -> Index:
    return Index("ByKey", partition_key=keys.literal("x"), row_key=key, properties=operations, **more)


def read(row: Row) -> Row:
    """A row as the service returns it."""
    return {"odata.etag": "e", "Timestamp": "2024-05-06T07:08:09Z", **row}


NEEDED = compute("Low", keys.lower("A"), needed=("B",))
SAME: dict[str, tuple[tuple[Operation, ...], Index]] = {
    "a property that a computed one needs": ((), index(NEEDED)),
    "one that is renamed": ((props.rename("B", "NewB"),), index(NEEDED)),
    "one that is only in a copy": ((props.copy("B", to="KeptB"), props.drop("B")), index(NEEDED)),
    "one that is in a copy and renamed": (
        (props.copy("B", to="AlsoB"), props.rename("B", "NewB")),
        index(NEEDED),
    ),
    "a key": ((), index(key=keys.prop("RowKey"))),
    "a whole row": ((props.rename("B", "NewB"),), index(props.keep_all())),
    "a whole row without what is dropped": ((props.drop("B"),), index(props.keep_all(), props.drop("B"))),
    "a whole row beside a copy with another type": (
        (props.copy("N", to="M"), props.cast("M", "string", was="int32")),
        index(props.keep_all()),
    ),
    "any property": ((), index(key=ANY)),
    "items of a property": ((), index(each=keys.split("A", ","), key=keys.item())),
}


@pytest.mark.parametrize(("operations", "of"), SAME.values(), ids=SAME)
@pytest.mark.parametrize("without", ["", "A", "B"])
def test_index_rows_of_a_main_row_are_those_of_its_source_row(
    operations: tuple[Operation, ...], of: Index, without: str
) -> None:
    made = mapper(*operations, index=of)
    row = {name: value for name, value in SOURCE.items() if name != without}
    try:
        main, *index_rows = made.map(read(row))
    except RowRefused:
        assert without == "A", "what the key or the property is made of"
        return
    assert made.index_inputs_lost == ()
    assert made.index_rows(read(main.row)) == index_rows


LOST: dict[str, tuple[tuple[Operation, ...], Index, tuple[str, ...]]] = {
    "a property that a computed one needs": ((props.drop("B"),), index(NEEDED), ("B",)),
    "one that is computed anew": ((compute("B", keys.lower("A")),), index(NEEDED), ("B",)),
    "one with another type": ((props.cast("B", "int32"),), index(NEEDED), ("B",)),
    "one under a name with another type": (
        (props.rename("B", "NewB"), props.cast("NewB", "int32")),
        index(NEEDED),
        ("B",),
    ),
    "one under a name that a copy has": ((props.copy("A", to="B"),), index(NEEDED), ("B",)),
    "one that is not kept": ((props.keep("A"),), index(NEEDED), ("B",)),
    "any, and one is dropped": ((props.drop("B"),), index(key=ANY), ("B",)),
    "any, and some are kept": ((props.keep("A"),), index(props.keep_all()), ("*",)),
    "a whole row with a property that is dropped": ((props.drop("B"),), index(props.keep_all()), ("B",)),
    "a whole row with a renamed property of another type": (
        (props.rename("B", "NewB"), props.cast("NewB", "int32")),
        index(props.keep_all()),
        ("B",),
    ),
}


@pytest.mark.parametrize(("operations", "of", "lost"), LOST.values(), ids=LOST)
def test_what_a_main_row_does_not_hold_is_known(
    operations: tuple[Operation, ...], of: Index, lost: tuple[str, ...]
) -> None:
    target = Target("New", partition_key=keys.keep(), row_key=keys.keep(), properties=operations)
    declared = Migration(source="Old", target=target, indexes=[of], capture="delta", reverse=False)
    assert Mapper(declared, {}).index_inputs_lost == lost


@pytest.mark.parametrize(
    ("key", "lost"),
    [("RowKey", ()), ("PartitionKey", ("PartitionKey",)), ("Timestamp", ("Timestamp",)), ("A", ())],
)
def test_an_old_key_that_main_rows_do_not_hold_is_lost_only_to_indexes_made_of_it(
    key: str, lost: tuple[str, ...]
) -> None:
    made = mapper(index=index(key=keys.prop(key)), old_keys=ROW_KEY_ONLY)
    assert made.index_inputs_lost == lost
    main, *index_rows = made.map(read(SOURCE))
    if not lost:
        assert made.index_rows(read(main.row)) == index_rows


def test_a_property_under_the_name_of_a_copy_is_the_rows_own_where_the_copys_source_is_absent() -> None:
    mapped = mapper(props.copy("A", to="B"), index=index(props.keep_all()))
    row: Row = {"PartitionKey": "p", "RowKey": "r", "B": "own", "N": 5}
    main, *index_rows = mapped.map(row)
    assert mapped.index_rows(read(main.row)) == index_rows
    assert mapped.reverse(main.row, mapped.source_key(main.row), None) == row


def test_what_an_index_leaves_out_may_be_anything_in_a_main_row() -> None:
    casts = (props.cast("B", "binary"), props.cast("N", "string", was="int32"))
    made = mapper(*casts, index=index(props.keep_all(), props.drop("B", "N")), old_keys=ROW_KEY_ONLY)
    assert made.index_inputs_lost == ()
    main, *index_rows = made.map(read({**SOURCE, "B": "Yg=="}))
    assert made.index_rows(read({**main.row, "N": "no number"})) == index_rows
