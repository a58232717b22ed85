"""Kinds of rows: which kind takes a row, what it becomes and how it comes back, and what cannot be proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rekey import Index, Migration, RowKind, Target, keys, props, rows
from rekey.declaration.keys.base import Expression, InvalidDeclaration
from rekey.declaration.mapper import Mapper
from rekey.declaration.rows import Condition
from rekey.errors import RowRefused
from rekey.model import EntityKey, Row, key_of

KEPT = keys.keep()
OLD_KEYS = [props.copy("PartitionKey", to="OldPartition"), props.copy("RowKey", to="OldRow")]


def kind(
    name: str,
    when: Condition,
    *,
    partition: Expression = KEPT,
    row: Expression = KEPT,
    properties: Any = (),
    table: str = "New",
    indexes: Any = (),
) -> RowKind:
    target = Target(table, partition_key=partition, row_key=row, properties=[*OLD_KEYS, *properties])
    return RowKind(name, when=when, target=target, indexes=indexes)


def migration(*kinds: RowKind, **more: Any) -> Migration:
    return Migration(source="Old", kinds=kinds, capture="delta", **more)


def mapper(*kinds: RowKind, **more: Any) -> Mapper:
    return Mapper(migration(*kinds, **more), {"s": b"a secret of this test"})


USER = kind(
    "user",
    rows.row_key(prefix="U_"),
    partition=keys.literal("user:") + keys.prop("RowKey"),
    indexes=[Index("ByMail", partition_key=keys.prop("Mail"), row_key=keys.prop("RowKey"))],
)
CLAIM = kind(
    "claim",
    rows.row_key(prefix="C_"),
    properties=[props.rename("Type", "ClaimType"), props.drop("Noise")],
    indexes=[
        Index("ByTag", each=keys.split("Tags", ","), partition_key=keys.item(), row_key=keys.prop("RowKey"))
    ],
)
OTHER = kind("other", rows.every(), row=keys.literal("other:") + keys.prop("PartitionKey"))
INDEX_BY_CONTENT = Index("ByX", partition_key=KEPT, row_key=keys.prop("X"))
SHARED: dict[str, Any] = {
    "partition_key": keys.literal("b:") + keys.prop("PartitionKey"),
    "row_key": KEPT,
    "properties": OLD_KEYS,
    "shared": True,
}
BESIDE = Index("New", partition_key=KEPT, row_key=keys.literal("B_") + keys.prop("X"))
HAS_X = rows.prop("X")
EVERY = kind("b", rows.every())

SOURCE: list[tuple[str, Row]] = [
    ("user", {"PartitionKey": "eu", "RowKey": "U_ann", "Mail": "ann@x.example"}),
    ("claim", {"PartitionKey": "eu", "RowKey": "C_1", "Type": "admin", "Noise": 1, "Tags": "a,b"}),
    ("other", {"PartitionKey": "eu", "RowKey": "settings", "Type": "kept"}),
]


def test_each_row_becomes_what_its_kind_says() -> None:
    user, claim, other = mapper(USER, CLAIM, OTHER).map_all([row for _, row in SOURCE], print)
    old = {"OldPartition": "eu", "OldRow": "U_ann"}
    pointer = {"MainPartitionKey": "user:U_ann", "MainRowKey": "U_ann"}
    assert user[1] == [
        (0, {"PartitionKey": "user:U_ann", "RowKey": "U_ann", "Mail": "ann@x.example", **old}),
        (1, {"PartitionKey": "ann@x.example", "RowKey": "U_ann", **pointer}),
    ]
    assert [(number, key_of(row)) for number, row in claim[1]] == [
        (0, ("eu", "C_1")),
        (2, ("a", "C_1")),
        (2, ("b", "C_1")),
    ]
    assert {"ClaimType": "admin"}.items() <= claim[1][0].row.items()
    assert "Noise" not in claim[1][0].row
    assert key_of(other[1][0].row) == ("eu", "other:eu")
    assert other[1][0].row["Type"] == "kept"


def test_rows_of_all_kinds_keep_their_order_in_a_page() -> None:
    page = [{**row, "PartitionKey": f"p{number}"} for number in range(40) for _, row in SOURCE]
    made = mapper(USER, CLAIM, OTHER)
    assert [row for row, _ in made.map_all(page, print)] == page
    [tables] = made.map_tables(page, print)
    assert tables[0].sources == page
    plain = mapper(kind("user", rows.row_key(prefix="U_")), OTHER)
    assert [tables[0].sources for tables in plain.map_tables(page, print)] == [page]


@pytest.mark.parametrize(("name", "row"), SOURCE, ids=[name for name, _ in SOURCE])
def test_each_row_comes_back_from_its_main_row_alone(name: str, row: Row) -> None:
    made = mapper(USER, CLAIM, OTHER)
    taken = made.kind_of(row)
    main = made.map(row)[0].row
    assert taken is not None
    assert taken.name == name
    assert made.source_key(main) == key_of(row)
    assert made.reverse(main, key_of(row), row) == row
    without = {field: value for field, value in row.items() if field != "Noise"}
    assert made.reverse(main, key_of(row), None) == without


def test_the_first_kind_whose_condition_a_row_meets_takes_it() -> None:
    row = {"PartitionKey": "p", "RowKey": "U_1", "Open": True}
    opened = kind("open", rows.prop("Open"), row=keys.literal("O:") + keys.prop("RowKey"))
    users = kind("user", rows.row_key(prefix="U_"), row=keys.literal("U:") + keys.prop("RowKey"))
    assert mapper(opened, users).map(row)[0].row["RowKey"] == "O:U_1"
    assert mapper(users, opened).map(row)[0].row["RowKey"] == "U:U_1"


def test_a_row_that_no_kind_takes_is_refused_and_its_neighbors_are_mapped() -> None:
    made = mapper(USER, CLAIM)
    refused: list[tuple[Row, RowRefused]] = []
    taken = list(made.map_all([row for _, row in SOURCE], lambda *each: refused.append(each)))
    assert [row for row, _ in taken] == [row for _, row in SOURCE[:2]]
    [(row, refusal)] = refused
    assert (row, refusal.code, refusal.field) == (SOURCE[2][1], "no-kind", "kinds")
    assert "settings" not in str(refusal)
    assert made.target_keys(EntityKey("eu", "settings")) is None


def test_a_row_of_the_new_table_that_is_of_no_kind_is_refused() -> None:
    made = mapper(USER, CLAIM)
    for row in ({"PartitionKey": "eu", "RowKey": "settings"}, {"PartitionKey": "x", "RowKey": "U_ann"}):
        with pytest.raises(RowRefused) as refused:
            made.source_key(row)
        assert refused.value.code == "no-kind"


def test_refusals_name_the_kind() -> None:
    with pytest.raises(RowRefused) as refused:
        mapper(CLAIM, kind("rest", rows.every(), partition=keys.literal("r:") + keys.prop("Missing"))).map(
            {"PartitionKey": "p", "RowKey": "r"}
        )
    assert refused.value.field == "kinds[rest].target.partition_key"


def test_keys_follow_from_old_keys_alone_unless_a_condition_reads_a_property() -> None:
    plain = kind("user", rows.row_key(prefix="U_"), row=keys.literal("U:") + keys.prop("RowKey"))
    rest = kind("rest", rows.every(), row=keys.literal("R:") + keys.prop("RowKey"))
    by_key = mapper(plain, rest)
    assert not by_key.content_derived
    assert by_key.target_keys(EntityKey("p", "U_1")) == [(0, ("p", "U:U_1"))]
    assert by_key.target_keys(EntityKey("p", "x")) == [(0, ("p", "R:x"))]
    by_property = mapper(kind("open", rows.prop("Open"), row=plain.target.row_key), rest)
    assert by_property.content_derived
    assert by_property.target_keys(EntityKey("p", "U_1")) is None


APART_BY_CONSTANTS = (
    kind("a", rows.prop("A"), properties=[props.set("Kind", "a")]),
    kind("b", rows.every(), properties=[props.set("Kind", "b")]),
)
DIFFERENT = [props.set("Kind", "b")]
FOLDING = (
    kind("a", rows.row_key(prefix="A"), row=keys.literal("A") + keys.lower("RowKey")),
    kind("b", rows.every(), row=keys.literal("B") + keys.prop("RowKey")),
)


@pytest.mark.parametrize(
    ("kinds", "shared"),
    [((kind("a", rows.row_key(prefix="A_")), EVERY), set()), (APART_BY_CONSTANTS, {0}), (FOLDING, {0})],
    ids=["apart by keys", "apart by a constant: keys may be equal", "folded keys in one kind"],
)
def test_main_keys_are_shared_where_two_rows_can_have_one(
    kinds: tuple[RowKind, ...], shared: set[int]
) -> None:
    assert mapper(*kinds).shared & {0, 1} == shared


PROVED = {
    "constant beginnings of RowKeys": FOLDING,
    "constant beginnings of PartitionKeys": (
        kind("a", rows.prop("A"), partition=keys.literal("a:") + keys.prop("PartitionKey")),
        kind("b", rows.every(), partition=keys.literal("b:") + keys.prop("PartitionKey")),
    ),
    "kept keys with prefixes": (
        kind("a", rows.row_key(prefix="A_")),
        kind("b", rows.all_of(rows.prop("X"), rows.row_key(prefix="B_"))),
        kind("c", rows.any_of(rows.row_key(equals="C_1"), rows.row_key(prefix="C_2"))),
    ),
    "kept keys that lack an earlier kind's prefix": (
        kind("a", rows.row_key(prefix="A_")),
        kind("b", rows.every()),
    ),
    "an opaque key beside text that no opaque key begins with": (
        kind("a", rows.prop("A"), partition=keys.literal("E_") + keys.prop("RowKey")),
        kind("b", rows.every(), partition=keys.opaque("PartitionKey", domain="d", secret="s")),
    ),
    "text that no opaque key begins with behind an opaque key": (
        kind(
            "a",
            rows.prop("A"),
            partition=keys.opaque("PartitionKey", domain="d", secret="s"),
            properties=[props.rename("X", "Y")],
        ),
        kind("b", rows.every(), partition=keys.literal("E_") + keys.prop("RowKey")),
    ),
    "constants that differ": APART_BY_CONSTANTS,
    "a constant that the other kind drops": (
        kind("a", rows.prop("A"), properties=[props.set("Kind", "a")]),
        kind("b", rows.every(), properties=[props.drop("Kind")]),
    ),
}


@pytest.mark.parametrize("kinds", PROVED.values(), ids=PROVED)
def test_a_kind_that_main_rows_prove_is_taken(kinds: tuple[RowKind, ...]) -> None:
    made = mapper(*kinds)
    candidates: list[Row] = [
        {"PartitionKey": partition, "RowKey": row, **more}
        for partition in ("p", "E_x")
        for row in ("A_1", "B_1", "C_1", "C_2x", "a", "x")
        for more in ({}, {"A": 1}, {"X": 1, "Kind": "a"}, {"Y": 1})
    ]
    for row, target_rows in made.map_all(candidates, lambda *_: None):
        main = target_rows[0].row
        assert made.source_key(main) == key_of(row)
        assert made.reverse(main, key_of(row), row) == row


def targeted(target: Any) -> RowKind:
    return RowKind("b", when=rows.row_key(prefix="B"), target=target)


def listed(kinds: Any) -> Migration:
    return Migration(source="Old", kinds=kinds, capture="delta")


def simple(name: Any, prefix: str, **more: Any) -> RowKind:
    return kind(name, rows.row_key(prefix=prefix), **more)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "kinds that are no list": (lambda: listed(1), "not a list of kinds"),
    "one kind that is no list": (lambda: listed(USER), "not a list of kinds"),
    "something else in the list": (lambda: migration("user"), "is not a RowKind"),  # type: ignore[arg-type]
    "neither target nor kinds": (lambda: Migration(source="Old", capture="delta"), "there is none"),
    "kinds beside a target": (lambda: migration(USER, target=USER.target), "beside kinds="),
    "kinds beside indexes": (lambda: migration(USER, indexes=list(USER.indexes)), "beside kinds="),
    "a name that is no name": (lambda: simple("a user", "U"), "no name of a kind"),
    "a name that is no text": (lambda: simple(1, "U"), "no name of a kind"),
    "one name twice": (lambda: migration(simple("a", "A"), simple("A", "B")), "two kinds are called A"),
    "a condition that is text": (lambda: kind("a", "U_"), "is not a condition"),  # type: ignore[arg-type]
    "a target that is an index": (lambda: targeted(USER.indexes[0]), "not a Target"),
    "an index that is a target": (lambda: simple("a", "A", indexes=[USER.target]), "is not an Index"),
    "indexes that are no list": (lambda: simple("a", "A", indexes=USER.indexes[0]), "not a list of indexes"),
    "a table of its own in another spelling": (
        lambda: migration(simple("a", "A"), simple("b", "B", table="NEW")),
        "NEW is the same table as New",
    ),
    "a table of its own in another account": (
        lambda: migration(simple("a", "A"), simple("b", "B", table="Other@targets")),
        "in another account than New",
    ),
    "a table of its own that is shared": (
        lambda: migration(
            RowKind("a", when=rows.row_key(prefix="A"), target=Target("New", **SHARED)),
            targeted(Target("Other", **SHARED)),
        ),
        "shared table beside",
    ),
    "a table of its own with secondary rows": (
        lambda: migration(simple("a", "A", indexes=[BESIDE]), simple("b", "B", table="Other")),
        "secondary rows in New, beside main rows of kinds with tables of their own",
    ),
    "a table of its own with an index in the table of another kind": (
        lambda: migration(
            simple("a", "A", indexes=[replace(INDEX_BY_CONTENT, table="Other")]),
            simple("b", "B", table="Other"),
        ),
        "secondary rows in Other, beside",
    ),
    "an index in the table of another kind, spelled otherwise": (
        lambda: migration(
            simple("a", "A", table="Other"), simple("b", "B", indexes=[replace(BESIDE, table="other")])
        ),
        "secondary rows in other, beside",
    ),
    "kinds with tables of their own and one index table": (
        lambda: migration(
            simple("a", "A", indexes=[INDEX_BY_CONTENT]),
            simple("b", "B", table="Other", indexes=[INDEX_BY_CONTENT]),
        ),
        "no constant text at their beginnings",
    ),
    "a table of its own with an index in the source": (
        lambda: migration(
            simple("a", "A", table="Other"),
            simple("b", "B", indexes=[replace(INDEX_BY_CONTENT, table="Old")]),
        ),
        "Old is also the source",
    ),
    "the source as the table of one kind": (
        lambda: migration(simple("a", "A"), simple("b", "B", table="OLD")),
        "OLD is also the source",
    ),
    "a table of its own for two of three kinds": (
        lambda: migration(
            kind("a", HAS_X, table="Other"), kind("b", rows.prop("Y"), table="Other"), kind("c", rows.every())
        ),
        "cannot be told from one of a",
    ),
    "a name of a table of its own that is no name": (
        lambda: migration(simple("a", "A"), simple("b", "B", table="a+b")),
        "not a table name",
    ),
    "one condition twice": (lambda: migration(simple("a", "A"), simple("b", "A")), "a takes them all"),
    "a kind behind every row": (lambda: migration(EVERY, simple("c", "B")), "b takes them all"),
    "a longer prefix behind a shorter": (
        lambda: migration(simple("a", "A"), simple("b", "AB")),
        "a takes them all",
    ),
    "a whole key behind its prefix": (
        lambda: migration(simple("a", "A"), kind("b", rows.row_key(one_of=["AB", "AC"]))),
        "a takes them all",
    ),
    "a kind behind any of several": (
        lambda: migration(kind("a", rows.any_of(HAS_X, rows.row_key(prefix="A"))), simple("b", "AB")),
        "a takes them all",
    ),
    "kept keys and a condition on a property": (
        lambda: migration(kind("a", rows.prop("A")), kind("b", rows.every())),
        "cannot be told from one of a",
    ),
    "kept keys and a wider condition": (
        lambda: migration(
            kind("a", rows.all_of(rows.row_key(prefix="A"), rows.prop("X"))), kind("b", rows.every())
        ),
        "cannot be told from one of a",
    ),
    "a beginning that contains the other": (
        lambda: migration(
            kind("a", HAS_X, row=keys.literal("A") + keys.prop("RowKey")),
            kind("b", rows.every(), row=keys.literal("AB") + keys.prop("RowKey")),
        ),
        "cannot be told from one of a",
    ),
    "keys that are not kept whole": (
        lambda: migration(
            simple("a", "A"), kind("b", rows.every(), row=keys.prop("RowKey") + keys.literal("x"))
        ),
        "cannot be told from one of a",
    ),
    "equal constants": (
        lambda: migration(
            kind("a", rows.prop("A"), properties=[props.set("Kind", 1)]),
            kind("b", rows.every(), properties=[props.set("Kind", 1)]),
        ),
        "cannot be told from one of a",
    ),
    "a constant that the other kind may carry": (
        lambda: migration(kind("a", HAS_X, properties=[props.set("Kind", 1)]), EVERY),
        "cannot be told from one of a",
    ),
    "an old key that one kind loses": (
        lambda: migration(
            simple("a", "A"),
            targeted(Target("New", partition_key=KEPT, row_key=keys.literal("B"))),
        ),
        r"row of kinds\[b\]\.target",
    ),
    "a cast without an inverse in one kind": (
        lambda: migration(simple("a", "A", properties=[props.cast("N", "int64")]), simple("b", "B")),
        "no inverse",
    ),
    "Timestamp copied by one kind": (
        lambda: migration(simple("a", "A", properties=[props.copy("Timestamp", to="At")]), simple("b", "B")),
        "copies Timestamp",
    ),
    "an index in the main table without a beginning": (
        lambda: migration(
            simple("a", "A", indexes=[Index("New", partition_key=KEPT, row_key=keys.prop("X"))]),
            simple("b", "B"),
        ),
        "do not tell them apart|no constant text",
    ),
    "an index beside rows of another kind with its beginning": (
        lambda: migration(
            simple("a", "A", indexes=[BESIDE]),
            simple("b", "B_"),
        ),
        "do not tell them apart",
    ),
    "two kinds with one index table": (
        lambda: migration(
            simple("a", "A", indexes=[INDEX_BY_CONTENT]),
            simple("b", "B", indexes=[INDEX_BY_CONTENT]),
        ),
        "no constant text at their beginnings",
    ),
    "the source as the target": (lambda: migration(simple("a", "A", table="Old")), "also the source"),
}


@pytest.mark.parametrize(("make", "problem"), BAD.values(), ids=BAD)
def test_a_declaration_that_cannot_be_proved_is_refused(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(InvalidDeclaration, match=problem) as refused:
        make()
    assert refused.value.field
    assert refused.value.cure


OPEN = kind("open", rows.none_of(rows.prop("Closed")), table="Open")
CLOSED = kind("closed", rows.every(), partition=keys.lower("PartitionKey"), table="Closed")


def test_kinds_with_tables_of_their_own_fill_one_joint_table() -> None:
    made = mapper(OPEN, CLOSED)
    assert made.tables == ("Open+Closed",)
    assert made.migration.table_names == ("Open", "Closed")
    assert made.labels == ("Open and Closed",)
    assert made.content_derived
    assert made.shared == {0}  # `keys.lower` folds
    for more, prefix in (({}, "Open:Eu"), ({"Closed": True}, "Closed:eu")):
        row: Row = {"PartitionKey": "Eu", "RowKey": "1", **more}
        [(number, main)] = made.map(row)
        assert (number, key_of(main)) == (0, (prefix, "1"))
        assert made.source_key(main) == key_of(row)
        assert made.reverse(main, key_of(row), None) == row
        [tables] = made.map_tables([row], print)
        assert tables[0].rows == [main]


def test_the_partitions_of_a_joint_table_are_not_those_of_the_source() -> None:
    """A comparison by ranges of PartitionKeys would look for rows where they cannot be."""
    kinds = [kind("a", rows.row_key(prefix="A")), kind("b", rows.every())]
    assert mapper(*kinds).keeps_partitions
    apart = [kind("a", rows.row_key(prefix="A"), table="TableA"), kind("b", rows.every(), table="TableB")]
    assert not mapper(*apart).keeps_partitions


def test_equal_keys_in_tables_of_their_own_are_no_collision() -> None:
    by_key = mapper(
        kind("a", rows.row_key(prefix="A"), row=keys.literal("x"), table="TableA"),
        kind("b", rows.every(), row=keys.literal("x"), table="TableB"),
    )
    assert [by_key.target_keys(EntityKey("p", row)) for row in ("A1", "B1")] == [
        [(0, ("TableA:p", "x"))],
        [(0, ("TableB:p", "x"))],
    ]


def test_a_row_of_a_joint_table_is_of_a_kind_of_its_table() -> None:
    made = mapper(kind("c", rows.row_key(prefix="C"), table="Other"), *APART_BY_CONSTANTS)
    kinds = {"New:p": ["a", "b"], "Other:p": ["c"]}
    for partition, names in kinds.items():
        for name in names:
            row = {"PartitionKey": partition, "RowKey": "C1", "OldPartition": "p", "OldRow": "r"}
            constant = {} if name == "c" else {"Kind": name}
            assert made.source_key({**row, **constant}) == ("p", "C1")
    for partition in ("p", "New:p", "Old:p", "new:p", "Other"):
        with pytest.raises(RowRefused) as refused:
            made.source_key({"PartitionKey": partition, "RowKey": "r"})
        assert refused.value.code == "no-kind"


@pytest.mark.parametrize("key", ["x" * 1019, "😀" * 509 + "x"], ids=["ASCII", "astral"])
def test_a_key_may_be_as_long_as_its_tables_name_leaves(key: str) -> None:
    made = mapper(OPEN, CLOSED)
    row = {"PartitionKey": key, "RowKey": "1"}
    assert made.map(row)[0].row["PartitionKey"] == f"Open:{key}"
    assert made.target_keys(EntityKey(key, "1")) is None
    with pytest.raises(RowRefused) as refused:
        made.map({**row, "PartitionKey": key + "x"})
    assert (refused.value.code, refused.value.field) == (
        "key-too-long",
        "kinds[open].target.partition_key",
    )


def by_owner(begins: str, table: str = "ByOwner") -> Index:
    """An index whose keys hold both old keys, and its rows a property."""
    row = keys.literal(begins) + keys.join("_", "PartitionKey", "RowKey")
    return Index(table, partition_key=keys.prop("Owner"), row_key=row, properties=[props.keep("N")])


@pytest.mark.parametrize("properties", [OLD_KEYS, []], ids=["old keys copied", "old keys kept"])
def test_pointers_to_rows_of_tables_of_their_own_name_the_table(properties: list[Any]) -> None:
    """Also where the main row's own PartitionKey is the old one: the table's name is no part of it."""
    target = {
        name: Target(name, partition_key=KEPT, row_key=KEPT, properties=properties)
        for name in ("Open", "Closed")
    }
    made = mapper(
        RowKind("open", when=OPEN.when, target=target["Open"], indexes=[by_owner("O:")]),
        RowKind("closed", when=rows.every(), target=target["Closed"], indexes=[by_owner("C:")]),
    )
    assert made.tables == ("Open+Closed", "ByOwner", "ByOwner")
    assert made.labels == ("Open and Closed", "ByOwner O:", "ByOwner C:")
    assert made.co_located == frozenset()
    assert made.index_inputs_lost == ()
    for number, more in ((1, {}), (2, {"Closed": True})):
        row: Row = {"PartitionKey": "a:b", "RowKey": "1", "Owner": "ann", "N": 7, **more}
        main, index_row = made.map(row)
        table, begins = ("Closed", "C:") if more else ("Open", "O:")
        assert main.row["PartitionKey"] == f"{table}:a:b"
        assert index_row == (
            number,
            {
                "PartitionKey": "ann",
                "RowKey": f"{begins}a:b_1",
                "N": 7,
                "MainPartitionKey": f"{table}:a:b",
                "MainRowKey": "1",
            },
        )
        assert made.index_rows(main.row) == [index_row]
        assert made.number_of(1, index_row.row) == number
        assert made.label_of(number, key_of(index_row.row)) == f"ByOwner {begins}"
        assert made.source_key(main.row) == key_of(row)


def test_kinds_are_part_of_the_digest_and_nothing_is_in_it_twice() -> None:
    declared = migration(USER, CLAIM)
    data = declared.canonical()
    assert [each["name"] for each in data["kinds"]] == ["user", "claim"]
    assert not {"target", "indexes"} & data.keys()
    assert data["kinds"][0]["when"] == {"op": "key", "name": "RowKey", "prefix": "U_"}
    others = [migration(CLAIM, USER), migration(USER), migration(USER, CLAIM, OTHER)]
    assert declared.digest() == migration(USER, CLAIM).digest()
    assert declared.digest() not in {other.digest() for other in others}


def test_all_kinds_give_what_a_declaration_is_asked() -> None:
    declared = migration(USER, CLAIM)
    assert declared.tables == ("New", "ByMail", "ByTag")
    assert [where for where, _ in declared.key_expressions()][:3] == [
        "kinds[user].target.partition_key",
        "kinds[user].target.row_key",
        "kinds[claim].target.partition_key",
    ]
    assert declared.key_inputs == {"PartitionKey", "RowKey", "Mail", "Tags"}
    assert mapper(USER, CLAIM).index_inputs_lost == ()
    lost = kind("a", rows.row_key(prefix="U_"), properties=[props.drop("Mail")], indexes=USER.indexes)
    assert mapper(lost, CLAIM).index_inputs_lost == ("Mail",)


def test_a_key_that_all_kinds_make_alike_is_not_made_of_what_tells_them_apart() -> None:
    first, second = APART_BY_CONSTANTS
    target = migration(first, kind("b", second.when, row=keys.literal("B"), properties=DIFFERENT)).target
    assert target.partition_key.inputs() == {"PartitionKey"}
    assert target.row_key.inputs() == {"RowKey", "A"}


def test_index_rows_follow_from_main_rows_of_each_kind() -> None:
    made = mapper(USER, CLAIM)
    for _, row in SOURCE[:2]:
        main, *index_rows = made.map(row)
        assert made.index_rows(main.row) == index_rows


def beside(letter: str, row: Expression = KEPT, table: str = "New") -> RowKind:
    """A kind whose index rows keep the RowKey, in the main table or together."""
    prefix = f"{letter}_"
    key = keys.literal(f"main:{letter}:") + keys.prop("RowKey")
    indexes = [Index(table, partition_key=KEPT, row_key=row, properties=[props.keep("N")])]
    return kind(letter.lower(), rows.row_key(prefix=prefix), row=key, indexes=indexes)


@pytest.mark.parametrize(
    "row", [KEPT, keys.prop("RowKey") + keys.literal("!")], ids=["kept", "begins with it"]
)
@pytest.mark.parametrize("table", ["New", "Together"])
def test_index_rows_are_told_apart_by_what_the_conditions_say_of_a_kept_key(
    table: str, row: Expression
) -> None:
    made = mapper(beside("U", row, table), beside("C", row, table))
    beginnings = {1: ("", "U_"), 2: ("", "C_")}
    assert made.migration.beginnings == beginnings
    assert made.labels[1:] == (f"{table} U_", f"{table} C_")
    for number, name in ((1, "U_1"), (2, "C_1")):
        main, index_row = made.map({"PartitionKey": "p", "RowKey": name, "N": 1})
        assert index_row.table == number
        assert made.number_of(0 if table == "New" else 1, index_row.row) == number
        assert made.number_by_row_key(main.row["RowKey"]) == 0
        assert made.index_rows(main.row) == [index_row]


def test_a_main_row_with_an_old_key_of_another_kind_gives_no_index_rows() -> None:
    """They would be taken for rows of that kind."""
    made = mapper(beside("U"), beside("C"))
    main = made.map({"PartitionKey": "p", "RowKey": "U_1"})[0].row
    with pytest.raises(RowRefused) as refused:
        made.index_rows({**main, "OldRow": "C_1"})
    assert refused.value.code == "no-old-key"


def test_kept_keys_of_indexes_whose_conditions_do_not_tell_them_apart_are_refused() -> None:
    first, second = beside("U"), beside("C")
    unclear = kind("c", rows.prop("X"), row=keys.literal("main:C:"), indexes=second.indexes)
    for kinds in ((first, unclear), (unclear, first)):
        with pytest.raises(InvalidDeclaration, match="must say which kind they are"):
            migration(*kinds)
