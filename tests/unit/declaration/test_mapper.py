"""The mapper forward: what rows become, byte for byte, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rekey import Index, Migration, Target, keys, props
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import required_secrets
from rekey.declaration.props import Operation
from rekey.errors import RowRefused, SecretMissing
from rekey.model import Row, content_of

PARTITION, ROW = keys.prop("PartitionKey"), keys.prop("RowKey")

EVERY_TYPE: Row = {
    "Text": "ü'%\U0001f600",
    "Empty": "",
    "Marked": "x",
    "Marked@odata.type": "Edm.String",
    "Int32": 5,
    "Int64": "9007199254740993",
    "Int64@odata.type": "Edm.Int64",
    "SmallInt64": "5",
    "SmallInt64@odata.type": "Edm.Int64",
    "Whole": 3.0,
    "Double": 1.5,
    "NaN": "NaN",
    "NaN@odata.type": "Edm.Double",
    "Infinite": "-Infinity",
    "Infinite@odata.type": "Edm.Double",
    "MinusZero": -0.0,
    "True": True,
    "At": "2024-01-02T03:04:05.1234567Z",
    "At@odata.type": "Edm.DateTime",
    "Year1601": "1601-01-01T00:00:00Z",
    "Year1601@odata.type": "Edm.DateTime",
    "Year9999": "9999-12-31T23:59:59.9999999Z",
    "Year9999@odata.type": "Edm.DateTime",
    "Guid": "0F9a0A2B-5E4B-4C1E-9C0A-0123456789aB",
    "Guid@odata.type": "Edm.Guid",
    "Binary": "AAEC",
    "Binary@odata.type": "Edm.Binary",
}


def read(**properties: Any) -> Row:
    """A row as it is read from the service."""
    return {
        "odata.etag": "W/\"datetime'x'\"",
        "PartitionKey": "p",
        "RowKey": "Alice@Example.com",
        "Timestamp": "2024-05-06T07:08:09.1234567Z",
        **properties,
    }


def mapper(
    *operations: Operation,
    row_key: keys.Expression = ROW,
    indexes: tuple[Index, ...] = (),
    reverse: bool = False,
    allow_empty: bool = False,
) -> Mapper:
    target = Target(
        "New", partition_key=PARTITION, row_key=row_key, properties=operations, allow_empty=allow_empty
    )
    migration = Migration(source="Old", target=target, indexes=indexes, capture="delta", reverse=reverse)
    return Mapper(migration, {"ids": b"0123456789abcdef"})


def main(made: Mapper, row: Row) -> Row:
    """The main target row."""
    mapped = made.map(row)
    assert mapped[0].table == 0
    return mapped[0].row


def exactly(row: Row) -> list[tuple[str, str, str]]:
    """The row so that 3 and 3.0, True and 1, and the order of fields all count as they should."""
    return sorted((name, type(value).__name__, repr(value)) for name, value in row.items())


def refusal(made: Mapper, row: Row) -> RowRefused:
    """The refusal that a row meets."""
    with pytest.raises(RowRefused) as caught:
        made.map(row)
    assert "Alice" not in str(caught.value)
    return caught.value


def test_values_of_every_type_are_carried_byte_for_byte() -> None:
    row = read(**EVERY_TYPE)
    made = main(mapper(), row)
    assert exactly(made) == exactly(content_of(row))
    assert "odata.etag" not in made
    assert "Timestamp" not in made
    assert list(made)[:2] == ["PartitionKey", "RowKey"]


@pytest.mark.parametrize(
    "of",
    [
        keys.opaque("RowKey", domain="user", secret="ids"),
        keys.join("-", keys.date("yyyy-MM", "At"), "Int64"),
        keys.prop("Missing", default="none"),
        keys.part("@", 1, "RowKey") + keys.literal("!"),
    ],
    ids=str,
)
def test_a_computed_property_is_the_text_that_a_key_would_be(of: keys.Expression) -> None:
    """Also in the place of a property of another type."""
    made = mapper(props.compute("Int64", of), props.compute("Made", of), row_key=of)
    target = main(made, read(**EVERY_TYPE))
    assert (target["Int64"], target["Made"]) == (target["RowKey"], target["RowKey"])
    assert "Int64@odata.type" not in target


def test_a_computed_property_counts_as_part_of_the_declaration() -> None:
    declared = mapper(props.compute("Id", keys.opaque("RowKey", domain="user", secret="ids"))).migration
    assert required_secrets(declared) == ["ids"]
    assert declared.mapping == "plain", "old keys in the mapping are sealed where new keys hide them"
    [operation] = declared.canonical()["target"]["properties"]
    assert (operation["op"], operation["name"], operation["of"]["op"]) == ("compute", "Id", "opaque")
    [shown] = declared.target.properties
    assert shown.describe() == "compute(Id, opaque(RowKey, domain=user))"


def test_a_row_that_a_property_cannot_be_computed_from_is_refused() -> None:
    refused = refusal(mapper(props.compute("Id", keys.lower("Mail"))), read())
    assert (refused.code, refused.field) == ("missing-property", "target.properties")
    assert "default=" in refused.cure


def test_an_index_row_computes_from_the_source_row() -> None:
    index = Index(
        "ByMail",
        partition_key=keys.literal("mail"),
        row_key=ROW,
        properties=[props.compute("Domain", keys.part("@", 1, "Mail"))],
    )
    made = mapper(props.rename("Mail", "Address"), indexes=(index,), reverse=True)
    target, by_mail = [row for _, row in made.map(read(Mail="ann@example.com"))]
    assert by_mail["Domain"] == "example.com"
    assert [row["Domain"] for _, row in made.index_rows(target)] == ["example.com"]


def test_what_only_the_service_writes_is_not_carried() -> None:
    made = main(
        mapper(), read(**{"Timestamp@odata.type": "Edm.DateTime", "odata.type": "x", "odata.id": "y"})
    )
    assert made == {"PartitionKey": "p", "RowKey": "Alice@Example.com"}


def test_a_null_that_an_application_sends_is_no_property() -> None:
    assert "A" not in main(mapper(), read(A=None))
    assert "B" not in main(mapper(props.rename("A", "B")), read(A=None))
    assert "A" not in main(mapper(props.keep("A")), read(A=None))


def test_the_source_row_is_left_as_it_was() -> None:
    row = read(**EVERY_TYPE)
    before = dict(row)
    mapper(props.rename("Int64", "N"), props.cast("Int32", "int64"), props.drop("Guid")).map(row)
    assert row == before


def test_rename_copy_and_drop_take_annotations_along() -> None:
    made = main(
        mapper(props.rename("Int64", "N"), props.copy("Guid", to="Id"), props.drop("At")), read(**EVERY_TYPE)
    )
    assert (made["N"], made["N@odata.type"]) == ("9007199254740993", "Edm.Int64")
    assert (made["Id"], made["Id@odata.type"]) == (EVERY_TYPE["Guid"], "Edm.Guid")
    assert made["Guid"] == EVERY_TYPE["Guid"]
    assert not {"Int64", "Int64@odata.type", "At", "At@odata.type"} & set(made)


def test_copies_of_keys_are_strings_and_a_copy_of_timestamp_a_datetime() -> None:
    made = main(
        mapper(
            props.copy("PartitionKey", to="OldPk"),
            props.copy("RowKey", to="OldRk"),
            props.copy("Timestamp", to="Modified"),
        ),
        read(),
    )
    assert made == {
        "PartitionKey": "p",
        "RowKey": "Alice@Example.com",
        "OldPk": "p",
        "OldRk": "Alice@Example.com",
        "Modified": "2024-05-06T07:08:09.1234567Z",
        "Modified@odata.type": "Edm.DateTime",
    }


def test_keep_carries_the_named_properties_and_what_operations_make() -> None:
    made = main(
        mapper(props.keep("Int64", "Gone"), props.rename("Text", "T"), props.set("V", 2)), read(**EVERY_TYPE)
    )
    assert set(made) == {"PartitionKey", "RowKey", "Int64", "Int64@odata.type", "T", "V"}


def test_order_of_operations_does_not_matter_and_names_can_be_swapped() -> None:
    swap = [props.rename("A", "B"), props.rename("B", "A")]
    for operations in (swap, swap[::-1]):
        made = main(mapper(*operations), read(**{"A": 1, "B": "2", "B@odata.type": "Edm.Int64"}))
        assert (made["A"], made["A@odata.type"], made["B"]) == ("2", "Edm.Int64", 1)
        assert "B@odata.type" not in made


def test_set_overwrites_value_and_annotation() -> None:
    row = read(**{"A": "5", "A@odata.type": "Edm.Int64"})
    assert main(mapper(props.set("A", "x")), row) == {**content_of(read()), "A": "x"}
    made = main(mapper(props.set("A", 1.0)), row)
    assert (repr(made["A"]), made["A@odata.type"]) == ("1.0", "Edm.Double")


def test_cast_applies_to_the_name_in_the_new_row() -> None:
    made = main(mapper(props.rename("A", "B"), props.cast("B", "int64", was="int32")), read(A=5))
    assert (made["B"], made["B@odata.type"]) == ("5", "Edm.Int64")
    made = main(mapper(props.cast("A", "string")), read(**{"A": "5", "A@odata.type": "Edm.Int64"}))
    assert made["A"] == "5"
    assert "A@odata.type" not in made


def test_operations_on_what_a_row_lacks_do_nothing() -> None:
    operations = [props.rename("A", "B"), props.copy("A", to="C"), props.cast("B", "int64"), props.drop("D")]
    assert main(mapper(*operations), read()) == content_of(read())


@pytest.mark.parametrize(
    ("operations", "row"),
    [
        ([props.cast("A", "int64")], {"A": "Alice"}),
        ([props.cast("A", "int64", was="int32")], {"A": "5"}),
        ([props.cast("A", "int64", was="int32")], {"A": "5", "A@odata.type": "Edm.Int64"}),
        ([props.cast("A", "int32")], {"A": "2147483648", "A@odata.type": "Edm.Int64"}),
    ],
)
def test_a_cast_that_would_change_a_value_is_refused(operations: list[Operation], row: Row) -> None:
    found = refusal(mapper(*operations), read(**row))
    assert (found.code, found.field) == ("bad-cast", "target.properties")


@pytest.mark.parametrize("operation", [props.rename("A", "B"), props.copy("A", to="B")])
def test_nothing_is_overwritten_by_rename_or_copy(operation: Operation) -> None:
    found = refusal(mapper(operation), read(A=1, B="Alice"))
    assert found.code == "bad-property-name"
    assert 'props.drop("B")' in found.hint
    assert main(mapper(operation, props.drop("B")), read(A=1, B="Alice"))["B"] == 1


@pytest.mark.parametrize(
    ("expression", "properties", "code"),
    [
        (keys.prop("A"), {}, "missing-property"),
        (keys.prop("A"), {"A": ""}, "empty-key"),
        (keys.prop("A"), {"A": "Alice/x"}, "refused-character"),
        (keys.prop("A"), {"A": "Alice" * 205}, "key-too-long"),
        (keys.ticks("A"), {"A": "Alice"}, "not-a-date"),
        (keys.zero_pad(3, "A"), {"A": "Alice"}, "not-a-number"),
        (keys.part("_", 1, "A"), {"A": "Alice"}, "no-match"),
    ],
)
def test_unkeyable_rows_refused(expression: keys.Expression, properties: dict[str, Any], code: str) -> None:
    found = refusal(mapper(row_key=expression), read(**properties))
    assert (found.code, found.field) == (code, "target.row_key")
    assert found.hint


def test_an_empty_key_is_taken_when_it_is_meant() -> None:
    row = {**read(), "PartitionKey": ""}
    assert refusal(mapper(), row).field == "target.partition_key"
    assert main(mapper(allow_empty=True), row)["PartitionKey"] == ""
    assert main(mapper(row_key=keys.literal("")), read())["RowKey"] == ""


def test_a_row_that_would_pass_a_limit_of_the_service_is_refused() -> None:
    many = read(**{f"P{number}": 1 for number in range(252)})
    assert len(main(mapper(), many)) == 254
    assert refusal(mapper(props.set("Extra", 1)), many).code == "too-many-properties"
    large = read(**{f"P{number}": "x" * 32_000 for number in range(16)}, Rest="x" * 10_000)
    assert main(mapper(), large)
    assert refusal(mapper(props.copy("P1", to="Extra")), large).code == "row-too-large"


def test_index_rows_hold_the_pointer_and_what_they_ask_for() -> None:
    by_author = Index("ByAuthor", partition_key=keys.prop("Author"), row_key=ROW)
    by_year = Index(
        "ByYear",
        partition_key=keys.date("yyyy", "At"),
        row_key=ROW,
        properties=[
            props.keep("At"),
            props.rename("Int64", "N"),
            props.copy("PartitionKey", to="Blog"),
            props.set("V", 1),
            props.cast("N", "string", was="int64"),
        ],
    )
    made = mapper(row_key=keys.lower("RowKey"), indexes=(by_author, by_year)).map(
        read(**EVERY_TYPE, Author="Ann")
    )
    pointer = {"MainPartitionKey": "p", "MainRowKey": "alice@example.com"}
    assert [row.table for row in made] == [0, 1, 2]
    assert made[1].row == {"PartitionKey": "Ann", "RowKey": "Alice@Example.com", **pointer}
    assert made[2].row == {
        "PartitionKey": "2024",
        "RowKey": "Alice@Example.com",
        **pointer,
        "At": EVERY_TYPE["At"],
        "At@odata.type": "Edm.DateTime",
        "N": "9007199254740993",
        "Blog": "p",
        "V": 1,
    }


def test_each_gives_one_row_for_each_item_and_one_for_items_with_one_key() -> None:
    by_tag = Index("ByTag", each=keys.split("Tags", ","), partition_key=keys.slug(keys.item()), row_key=ROW)
    made = mapper(indexes=(by_tag,)).map(read(Tags="Red, blue,red,, C#, C"))
    assert [row.row["PartitionKey"] for row in made[1:]] == ["red", "blue", "c"]
    assert {row.table for row in made[1:]} == {1}
    assert len(mapper(indexes=(by_tag,)).map(read(Tags=" , "))) == 1


def test_a_row_without_the_property_of_each_is_refused_unless_it_has_a_default() -> None:
    def by_tag(**default: str) -> Index:
        return Index("ByTag", each=keys.split("Tags", ",", **default), partition_key=keys.item(), row_key=ROW)

    found = refusal(mapper(indexes=(by_tag(),)), read())
    assert (found.code, found.field) == ("missing-property", "index[ByTag].each")
    assert 'default=""' in found.hint
    assert len(mapper(indexes=(by_tag(default=""),)).map(read())) == 1


def secondary(*operations: Operation, **more: Any) -> Index:
    return Index(
        "New",
        **{
            "partition_key": PARTITION,
            "row_key": keys.literal("AT:") + keys.prop("RowKey"),
            "properties": operations,
            **more,
        },
    )


def test_a_secondary_row_carries_the_whole_row_if_asked_to() -> None:
    whole = secondary(props.keep_all(), props.drop("Int64"), props.rename("Text", "Said"))
    made = mapper(row_key=keys.literal("ID:") + ROW, indexes=(whole,))
    [_, (table, row)] = made.map(read(Text="x", Int64="1", Other=2))
    assert (table, row) == (
        1,
        {
            "PartitionKey": "p",
            "RowKey": "AT:Alice@Example.com",
            "MainPartitionKey": "p",
            "MainRowKey": "ID:Alice@Example.com",
            "Said": "x",
            "Other": 2,
        },
    )
    assert made.co_located == {0, 1}
    assert [made.number_by_row_key(key) for key in ("ID:a", "AT:a", "AT", "stray")] == [0, 1, 0, 0]


def test_a_property_that_would_hide_the_pointer_of_a_whole_secondary_row_is_refused() -> None:
    made = mapper(row_key=keys.literal("ID:") + ROW, indexes=(secondary(props.keep_all()),))
    found = refusal(made, read(MainRowKey="x"))
    assert (found.code, found.field) == ("bad-property-name", "index[New AT:].properties")
    assert 'props.drop("MainRowKey")' in found.hint
    dropping = mapper(
        row_key=keys.literal("ID:") + ROW, indexes=(secondary(props.keep_all(), props.drop("MainRowKey")),)
    )
    assert dropping.map(read(MainRowKey="x"))[1].row["MainRowKey"] == "ID:Alice@Example.com"


def test_more_secondary_rows_than_one_transaction_can_change_are_refused() -> None:
    by_tag = secondary(each=keys.split("Tags", ","), row_key=keys.literal("TAG:") + keys.item())
    made = mapper(row_key=keys.literal("ID:") + ROW, indexes=(by_tag,))
    tags = [f"{number}" for number in range(50)]
    assert len(made.map(read(Tags=",".join(tags[:49])))) == 50
    found = refusal(made, read(Tags=",".join(tags)))
    assert (found.code, found.field) == ("row-too-large", "index[New TAG:]")
    assert "one transaction" in str(found)
    spread = replace(by_tag, partition_key=keys.item())
    assert (
        len(mapper(row_key=keys.literal("ID:") + ROW, indexes=(spread,)).map(read(Tags=",".join(tags)))) == 51
    )


def test_secondary_rows_too_large_for_one_transaction_are_refused() -> None:
    def with_secondary(kinds: int) -> Mapper:
        whole = [secondary(props.keep_all(), row_key=keys.literal(f"{n}:") + ROW) for n in range(kinds)]
        return mapper(row_key=keys.literal("ID:") + ROW, indexes=tuple(whole))

    large = read(**{f"P{number}": "x" * 30_000 for number in range(15)})
    assert len(with_secondary(5).map(large)) == 6
    found = refusal(with_secondary(6), large)
    assert (found.code, found.field) == ("row-too-large", "index[New 5:]")


def test_index_refusals_name_the_index() -> None:
    by_author = Index("ByAuthor", partition_key=keys.prop("Author"), row_key=ROW)
    assert refusal(mapper(indexes=(by_author,)), read()).field == "index[ByAuthor].partition_key"


def test_the_mapper_says_what_it_depends_on() -> None:
    by_author = Index("ByAuthor", partition_key=keys.prop("Author", default="-"), row_key=ROW)
    plain = mapper(props.rename("A", "B"), reverse=True)
    assert (plain.tables, plain.reversible, plain.content_derived) == (("New",), True, False)
    assert not plain.needs_timestamp
    indexed = mapper(indexes=(by_author,))
    assert (indexed.tables, indexed.reversible, indexed.content_derived) == (("New", "ByAuthor"), False, True)
    timed = mapper(props.copy("Timestamp", to="Modified"), indexes=(by_author,))
    assert timed.needs_timestamp
    assert timed.timestamp_copies == (frozenset({"Modified"}), frozenset())
    assert mapper(row_key=keys.ticks("Timestamp")).needs_timestamp
    assert mapper(row_key=keys.ticks("Timestamp")).content_derived


def test_a_row_that_was_not_read_has_no_timestamp_to_copy() -> None:
    row = read()
    del row["Timestamp"]
    found = refusal(mapper(props.copy("Timestamp", to="Modified")), row)
    assert found.code == "missing-property"
    assert "read the row" in found.hint


def test_a_missing_secret_is_found_before_the_first_row() -> None:
    target = Target("New", partition_key=PARTITION, row_key=keys.opaque("RowKey", domain="d", secret="other"))
    migration = Migration(source="Old", target=target, capture="delta", reverse=False)
    with pytest.raises(SecretMissing, match="'other'"):
        Mapper(migration, {"ids": b"0123456789abcdef"})


def test_mapping_is_deterministic() -> None:
    by_tag = Index("ByTag", each=keys.split("Tags", ","), partition_key=keys.item(), row_key=ROW)
    row = read(Tags="b,a,c", **EVERY_TYPE)
    first = mapper(props.copy("RowKey", to="Mail"), indexes=(by_tag,)).map(row)
    again = mapper(props.copy("RowKey", to="Mail"), indexes=(by_tag,)).map(dict(reversed(row.items())))
    assert [(table, exactly(made)) for table, made in first] == [
        (table, exactly(made)) for table, made in again
    ]


@pytest.mark.parametrize("of", [keys.prop, lambda name: keys.opaque(name, domain="d", secret="ids")])
def test_a_key_of_a_property_that_a_row_lacks_is_refused_by_its_place(of: Callable[[str], Any]) -> None:
    assert refusal(mapper(row_key=of("Mail")), read()).field == "target.row_key"


@pytest.mark.parametrize("key", [ROW, keys.opaque("RowKey", domain="d", secret="ids")])
def test_many_rows_are_mapped_as_one_by_one_and_those_that_are_refused_are_told(key: keys.Expression) -> None:
    """Also in portions in which none is refused, and in a last one that is not full."""
    by_tag = Index("ByTag", each=keys.split("Tags", ","), partition_key=keys.item(), row_key=ROW)
    made = mapper(props.copy("RowKey", to="Mail"), row_key=key, indexes=(by_tag,))
    rows = [read(Tags="b,a") | {"RowKey": f"{number:04}"} for number in range(333)]
    missing = [rows[7], rows[99], rows[211]]
    for row in missing:
        del row["Tags"]
    refused: list[tuple[Row, str]] = []
    mapped = list(made.map_all(rows, lambda row, error: refused.append((row, error.code))))
    assert refused == [(row, refusal(made, row).code) for row in missing]
    assert mapped == [(row, made.map(row)) for row in rows if "Tags" in row]


@pytest.mark.parametrize("is_indexed", [False, True])
@pytest.mark.parametrize("most", [None, 150])
def test_rows_by_table_equal_those_of_each_row(is_indexed: bool, most: int | None) -> None:
    """Each stands beside its source row; rows that are refused are told."""
    by_tag = Index("ByTag", each=keys.split("Tags", ","), partition_key=keys.item(), row_key=ROW)
    made = mapper(props.copy("RowKey", to="Mail"), indexes=(by_tag,) if is_indexed else ())
    rows = [read(Tags="b,a") | {"RowKey": f"{number:04}"} for number in range(333)]
    for number in (7, 211):
        rows[number]["Mail"] = "taken"
    refused: list[Row] = []
    parts = list(made.map_tables(rows, lambda row, _: refused.append(row), most))
    assert refused == [rows[7], rows[211]]
    assert (len(parts) > 1) is (most is not None)
    for number in range(len(made.tables)):
        expected = [
            (target, row)
            for row in rows
            if row not in refused
            for table, target in made.map(row)
            if table == number
        ]
        assert [pair for part in parts for pair in zip(*part[number], strict=True)] == expected
        assert len(expected) == 331 * (1 + number)
