"""Index rows made from main rows alone are those that the source row gave, or it is known what is lost."""

from __future__ import annotations

from itertools import compress, product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rekey import Index, Migration, Target, keys, props, rows
from rekey.declaration.keys.base import Expression, InvalidDeclaration
from rekey.declaration.keys.escape import custom
from rekey.declaration.kinds import RowKind
from rekey.declaration.mapper import Mapper
from rekey.declaration.property_mapping import property_mapping_of
from rekey.declaration.props import Operation, compute
from rekey.errors import RowRefused
from rekey.model import Row, content_of, key_of

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


WHOLE = index(props.keep_all())
AMBIGUOUS: dict[str, tuple[tuple[Operation, ...], Index]] = {
    "the new name of a renamed one": ((props.rename("A", "Y"),), WHOLE),
    "the name of a copy whose source is dropped": ((props.copy("A", to="Y"), props.drop("A")), WHOLE),
    "the name of a copy whose source is replaced": (
        (props.copy("A", to="Y"), props.set("A", "new")),
        index(key=keys.prop("A", default="none")),
    ),
    "the name of a copy beside a property with its source's name": (
        (props.copy("A", to="Y"), props.rename("B", "A")),
        index(props.keep_all(), props.drop("A")),
    ),
    "a new name, and the index needs the old one": (
        (props.rename("A", "Y"),),
        index(props.compute("Found", keys.prop("RowKey"), needed=("A",))),
    ),
}


@pytest.mark.parametrize(("operations", "of"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_a_row_whose_new_row_does_not_say_whose_a_property_is_is_refused(
    operations: tuple[Operation, ...], of: Index
) -> None:
    made = mapper(*operations, index=of)
    row = read({"PartitionKey": "p", "RowKey": "r", "Y": "own", "B": "b"})
    assert made.index_inputs_lost == ()
    refusals: list[RowRefused] = []
    assert [*made.map_all([row], lambda _, refusal: refusals.append(refusal))] == []
    [tables] = made.map_tables([row], lambda _, refusal: refusals.append(refusal))
    assert [table.rows for table in tables] == [[], []]
    for refusal in refusals:
        assert (refusal.code, refusal.field) == ("bad-property-name", "target.properties")
        assert "a property Y of its own and no A" in refusal.problem
        assert 'props.drop("Y")' in refusal.hint
    assert len(refusals) == 2
    plain = {name: value for name, value in row.items() if name != "Y"}
    main, *index_rows = made.map(plain)
    assert made.index_rows(read(main.row)) == index_rows


def test_a_row_that_has_a_new_name_already_is_mapped_where_its_index_rows_do_not_depend_on_it() -> None:
    row = read({"PartitionKey": "p", "RowKey": "r", "Y": "own", "N": 5})
    made = mapper(props.rename("A", "Y"), index=index(props.keep("N")))
    main, *index_rows = made.map(row)
    assert main.row["Y"] == "own"
    assert made.index_rows(read(main.row)) == index_rows
    # Index rows are not compared with main rows that lack what they are made of.
    made = mapper(props.rename("A", "Y"), props.drop("N"), index=WHOLE)
    assert made.index_inputs_lost == ("N",)
    assert made.map(row)[1].row["Y"] == "own"


def test_a_row_of_a_kind_is_mapped_where_main_rows_of_another_kind_lack_what_index_rows_are_made_of() -> None:
    def kind(name: str, table: str, *operations: Operation) -> RowKind:
        target = Target(
            "New",
            partition_key=keys.keep(),
            row_key=keys.literal(name) + keys.prop("RowKey"),
            properties=[*OLD_KEYS, *operations],
        )
        of = Index(table, partition_key=keys.literal("x"), row_key=CONSTANT, properties=[props.keep_all()])
        return RowKind(name, when=rows.partition_key(prefix=name), target=target, indexes=[of])

    renaming = kind("a", "ByA", props.rename("A", "Y"))
    row = read({"PartitionKey": "a", "RowKey": "r", "Y": "own"})
    for others, refused in [((), True), (("N",), False)]:
        other = kind("b", "ByB", *(props.drop(name) for name in others))
        made = Mapper(Migration(source="Old", kinds=[renaming, other], capture="delta"), {})
        assert made.index_inputs_lost == others
        if refused:
            with pytest.raises(RowRefused) as caught:
                made.map(row)
            assert (caught.value.code, caught.value.field) == (
                "bad-property-name",
                "kinds[a].target.properties",
            )
        else:
            assert made.map(row)[1].row["Y"] == "own"


NAMES = "ABC"
names = st.sampled_from(NAMES)
expressions = st.one_of(
    st.builds(keys.prop, names, default=st.just("none")), st.builds(keys.lower, names), st.just(ANY)
)
pairs = st.permutations(NAMES).map(lambda names: names[:2])
moves = pairs.map(lambda pair: props.rename(*pair)) | pairs.map(lambda pair: props.copy(pair[0], to=pair[1]))
any_operation = st.one_of(
    moves,
    names.map(lambda name: props.copy("Timestamp", to=name)),
    st.builds(props.drop, names),
    st.builds(props.set, names, st.just("constant")),
    st.builds(props.compute, names, expressions, needed=st.tuples(names) | st.just(())),
    st.builds(props.cast, names, st.just("string"), was=st.sampled_from(["int32", None])),
)
values = st.sampled_from(["a,b", "a", "", 5, True])


@st.composite
def agreeing(draw: st.DrawFn, *first: Operation, main: bool) -> list[Operation]:
    """Random operations after the first ones, those that contradict earlier ones left out."""
    operations = [*first]
    for operation in draw(st.lists(moves | any_operation if main else any_operation, max_size=3)):
        try:
            property_mapping_of("properties", [*operations, operation], everything=main)
        except InvalidDeclaration:
            continue
        operations.append(operation)
    return operations


@st.composite
def declared_mappers(draw: st.DrawFn) -> Mapper:
    first = draw(st.sampled_from([(), (props.keep_all(),), (props.keep_all(),), (props.keep("A"),)]))
    each = draw(st.none() | st.builds(keys.split, names, st.just(","), default=st.sampled_from(["", None])))
    key = draw(st.just(CONSTANT) | expressions) if each is None else keys.item()
    of = index(*draw(agreeing(*first, main=False)), key=key, each=each, allow_empty=True)
    reversible = draw(st.booleans())
    operations = draw(agreeing(*OLD_KEYS, main=True))[len(OLD_KEYS) :]
    if not reversible:
        return mapper(*operations, index=of, old_keys=ROW_KEY_ONLY)
    operations = [operation for operation in operations if operation.op != "cast"]
    try:
        return mapper(*operations, index=of)
    except InvalidDeclaration as error:
        assume(
            error.field != "reverse"
        )  # what a property is made of is dropped, and the property does not tell it
        raise


@given(declared_mappers(), st.fixed_dictionaries(dict.fromkeys(NAMES, values)))
def test_main_rows_alone_give_the_index_rows_of_every_row_that_is_mapped(
    made: Mapper, properties: dict[str, Any]
) -> None:
    for present in product([False, True], repeat=len(NAMES)):
        own = dict(compress(properties.items(), present))
        row = read({"PartitionKey": "p", "RowKey": "r", **own})
        try:
            main, *index_rows = made.map(row)
        except RowRefused:
            continue
        if not made.index_inputs_lost:
            assert made.index_rows(read(main.row)) == index_rows
        if made.reversible:
            assert content_of(made.reverse(read(main.row), key_of(row), row)) == content_of(row)
