"""The mapper backward: the source row a target row stands for, or a refusal; nothing is lost silently."""

from __future__ import annotations

import base64
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekey import Migration, Target, keys, props
from rekey.core.edm import canonical_content, canonical_text
from rekey.declaration.mapper import Mapper
from rekey.declaration.props import Operation
from rekey.errors import RowRefused
from rekey.model import EntityKey, Row, content_of, key_of

COPIES = (props.copy("PartitionKey", to="OldPk"), props.copy("RowKey", to="OldRk"))


def mapper(*operations: Operation, reverse: bool = True, copies: tuple[Operation, ...] = COPIES) -> Mapper:
    target = Target(
        "New",
        partition_key=keys.bucket(4, "crc32", "PartitionKey"),
        row_key=keys.opaque("RowKey", domain="user", secret="ids"),
        properties=[*copies, *operations],
    )
    migration = Migration(source="Old", target=target, capture="delta", reverse=reverse)
    return Mapper(migration, {"ids": b"0123456789abcdef"})


def read(**properties: Any) -> Row:
    """A row as it is read from the service."""
    return {
        "odata.etag": "e",
        "PartitionKey": "p",
        "RowKey": "Alice",
        "Timestamp": "2024-05-06T07:08:09Z",
        **properties,
    }


def there(made: Mapper, row: Row, **changes: Any) -> Row:
    """The target row of `row` as it is read back, after an application changed it (None removes)."""
    target = {"odata.etag": "f", "Timestamp": "2025-01-01T00:00:00Z", **made.map(row)[0].row, **changes}
    return {name: value for name, value in target.items() if value is not None}


def back(made: Mapper, target: Row, source: Row | None) -> Row:
    """The source row that the target row stands for."""
    return made.reverse(target, made.source_key(target), source)


def not_reversible(made: Mapper, target: Row, source: Row | None) -> RowRefused:
    with pytest.raises(RowRefused) as caught:
        made.reverse(target, EntityKey("p", "Alice"), source)
    assert caught.value.code == "not-reversible"
    assert "Alice" not in str(caught.value)
    return caught.value


def test_the_old_key_is_found_in_the_copies() -> None:
    made = mapper()
    assert made.source_key(made.map(read())[0].row) == EntityKey("p", "Alice")


def test_the_old_key_is_found_in_keys_that_are_used_as_they_were() -> None:
    target = Target("New", partition_key=keys.prop("RowKey"), row_key=keys.prop("PartitionKey"))
    made = Mapper(Migration(source="Old", target=target, capture="delta"), {})
    assert made.source_key(made.map(read())[0].row) == EntityKey("p", "Alice")


def test_a_computed_property_is_computed_again_on_the_way_back() -> None:
    """The source row keeps the value that it had under that name."""
    made = mapper(props.compute("Search", keys.lower("Name")))
    source = read(Name="Ann", Search="as the old application wrote it")
    target = there(made, source)
    assert target["Search"] == "ann"
    assert back(made, target, source)["Search"] == "as the old application wrote it"
    created = back(made, there(made, read(Name="Bob")), None)
    assert content_of(created) == {"PartitionKey": "p", "RowKey": "Alice", "Name": "Bob"}


@pytest.mark.parametrize("change", [{"Search": "other"}, {"Search": None}, {"Name": None}])
def test_a_computed_property_that_no_source_row_gives_is_not_reversible(change: dict[str, Any]) -> None:
    made = mapper(props.compute("Search", keys.lower("Name")))
    refused = not_reversible(made, there(made, read(Name="Ann"), **change), None)
    assert "Search" in refused.problem


def test_what_a_property_is_computed_from_may_be_kept_in_a_copy() -> None:
    made = mapper(props.copy("Mail", to="OldMail"), props.compute("Mail", keys.lower("Mail")))
    target = there(made, read(Mail="Ann@Example.com"))
    assert (target["Mail"], target["OldMail"]) == ("ann@example.com", "Ann@Example.com")
    assert back(made, target, None)["Mail"] == "Ann@Example.com"


@pytest.mark.parametrize(
    "change",
    [{"OldRk": None}, {"OldRk": 5}, {"OldRk": "x/y"}, {"OldRk": "5", "OldRk@odata.type": "Edm.Int64"}],
)
def test_a_row_without_its_old_key_is_refused(change: dict[str, Any]) -> None:
    made = mapper()
    with pytest.raises(RowRefused) as caught:
        made.source_key(there(made, read(), **change))
    assert caught.value.code == "no-old-key"
    assert caught.value.hint


def test_an_old_key_may_be_empty() -> None:
    made = mapper()
    assert made.source_key(there(made, read(), OldPk="")) == EntityKey("", "Alice")


def test_without_any_place_for_old_keys_every_row_is_refused() -> None:
    made = mapper(reverse=False, copies=())
    with pytest.raises(RowRefused) as caught:
        made.source_key(made.map(read())[0].row)
    assert caught.value.code == "no-old-key"


def test_an_unchanged_row_comes_back_as_it_was_with_what_was_dropped() -> None:
    made = mapper(
        props.rename("Nm", "Name"),
        props.drop("Ssn"),
        props.set("V", 2),
        props.cast("N", "int64", was="int32"),
        props.copy("Nm", to="Also"),
    )
    row = read(Nm="Ann", Ssn="123", V="one", N=5)
    assert back(made, there(made, row), row) == content_of(row)


def test_what_an_application_changed_comes_back_and_what_it_removed_is_gone() -> None:
    made = mapper(props.rename("Nm", "Name"), props.drop("Ssn"), props.cast("N", "int64", was="int32"))
    row = read(Nm="Ann", Ssn="123", N=5, Gone="x", Gone2="x")
    target = there(made, row, Name="Anne", N="6", New=True, Gone=None, **{"At@odata.type": "Edm.DateTime"})
    target["At"] = "2024-01-02T03:04:05.1234567Z"
    assert back(made, target, row) == {
        "PartitionKey": "p",
        "RowKey": "Alice",
        "Nm": "Anne",
        "Ssn": "123",
        "N": 6,
        "Gone2": "x",
        "New": True,
        "At": "2024-01-02T03:04:05.1234567Z",
        "At@odata.type": "Edm.DateTime",
    }


def test_a_row_that_is_new_in_the_target_comes_back_without_what_the_mapping_drops() -> None:
    made = mapper(props.rename("Nm", "Name"), props.drop("Ssn"), props.set("V", 2))
    row = read(Nm="Ann", Ssn="123")
    assert back(made, there(made, row), None) == {"PartitionKey": "p", "RowKey": "Alice", "Nm": "Ann"}


def test_a_property_that_only_a_copy_carries_comes_back_from_the_copy() -> None:
    made = mapper(props.copy("A", to="B"), props.drop("A"))
    row = read(**{"A": "5", "A@odata.type": "Edm.Int64"})
    assert back(made, there(made, row), None) == content_of(row)
    assert back(made, there(made, row, B="6"), row)["A"] == "6"


def test_the_sources_own_spelling_is_kept_where_the_value_is_the_same() -> None:
    made = mapper(props.cast("D", "double", was="string"), props.rename("At", "When"))
    row = read(**{"D": "1.50", "At": "2024-01-02T03:04:05Z", "At@odata.type": "Edm.DateTime", "T": "x"})
    row["T@odata.type"] = "Edm.String"
    target = there(made, row)
    target["When"] = "2024-01-02T03:04:05.0000000Z"
    del target["T@odata.type"]
    assert back(made, target, row) == content_of(row)
    assert back(made, {**target, "D": 1.75}, row)["D"] == "1.75"


def test_a_source_row_that_cannot_be_mapped_any_more_does_not_stand_in_the_way() -> None:
    made = mapper(props.cast("N", "int64", was="int32"), props.drop("Ssn"))
    target = there(made, read(N=5))
    assert back(made, target, read(N="broken", Ssn="1")) == {
        "PartitionKey": "p",
        "RowKey": "Alice",
        "N": 5,
        "Ssn": "1",
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"OldRk": "Bob"}, "OldRk"),
        ({"V": 3}, "V"),
        ({"V": None}, "V"),
        ({"Also": "other"}, "Also"),
        ({"Ssn": "123"}, "Ssn"),
        ({"Nm": "x"}, "Nm"),
        ({"N": "99999999999"}, "N"),
        ({"N": "text", "N@odata.type": None}, "N"),
    ],
)
def test_a_change_that_the_source_cannot_hold_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    made = mapper(
        props.rename("Nm", "Name"),
        props.drop("Ssn"),
        props.set("V", 2),
        props.copy("Text", to="Also"),
        props.cast("N", "int64", was="int32"),
    )
    row = read(Nm="Ann", Text="t", N=5)
    found = not_reversible(made, there(made, row, **change), row)
    assert f"differs in {named}" in found.problem


def test_properties_outside_a_keep_list_cannot_be_written_back() -> None:
    made = mapper(props.keep("A"))
    row = read(A=1, B=2)
    assert back(made, there(made, row), row) == content_of(row)
    not_reversible(made, there(made, row, C=1), row)


def test_a_long_list_of_differences_is_cut() -> None:
    made = mapper(props.keep("A"))
    found = not_reversible(made, there(made, read(), C=1, D=1, E=1, F=1), None)
    assert "differs in C, D, E, …" in found.problem


def test_a_copied_timestamp_comes_back_as_timestamp_so_that_mapping_again_agrees() -> None:
    made = mapper(props.copy("Timestamp", to="Modified"))
    row = read(A=1)
    target = there(made, row)
    returned = back(made, target, row)
    assert returned == {**content_of(row), "Timestamp": row["Timestamp"]}
    assert made.map(returned)[0].row == content_of(target)


def test_a_row_that_is_new_in_the_target_lends_its_own_timestamp() -> None:
    made = mapper(props.copy("Timestamp", to="Modified"))
    target = there(made, read(A=1), **{"Modified": None, "Modified@odata.type": None})
    assert back(made, target, None)["Timestamp"] == "2025-01-01T00:00:00Z"
    del target["Timestamp"]
    assert "Timestamp" not in back(made, target, None)


def test_without_a_declared_way_back_there_is_none() -> None:
    made = mapper(reverse=False)
    found = not_reversible(made, made.map(read())[0].row, None)
    assert "reverse=False" in found.problem


wire_values = st.one_of(
    st.tuples(st.just(None), st.text(max_size=8) | st.integers(-(2**31), 2**31 - 1) | st.booleans()),
    st.tuples(st.just(None), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just("Edm.String"), st.text(max_size=8)),
    st.tuples(st.just("Edm.Int64"), st.integers(-(2**63), 2**63 - 1).map(str)),
    st.tuples(
        st.just("Edm.Double"),
        st.floats().map(lambda x: x if math.isfinite(x) else canonical_text("Edm.Double", x)),
    ),
    st.tuples(
        st.just("Edm.DateTime"),
        st.builds(
            lambda moment, digits: f"{moment.isoformat(timespec='seconds')}{digits}Z",
            st.datetimes().filter(lambda moment: moment.year >= 1601),
            st.sampled_from(["", ".1", ".1234567", ".0000001"]),
        ),
    ),
    st.tuples(st.just("Edm.Guid"), st.uuids().map(str) | st.uuids().map(lambda guid: str(guid).upper())),
    st.tuples(st.just("Edm.Binary"), st.binary(max_size=8).map(lambda data: base64.b64encode(data).decode())),
)
key_texts = st.text(
    st.characters(blacklist_categories=["Cc", "Cs"], blacklist_characters="/\\#?"), min_size=1, max_size=20
)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """A random row with random properties out of A to H, of every EDM type."""
    row: Row = {"PartitionKey": draw(key_texts), "RowKey": draw(key_texts)}
    for name in draw(st.sets(st.sampled_from("ABCDEFGH"))):
        edm, value = draw(wire_values)
        row[name] = value
        if edm is not None:
            row[name + "@odata.type"] = edm
    return row


@st.composite
def operations(draw: st.DrawFn) -> list[Operation]:
    """Random operations that do not contradict one another."""
    made: list[Operation] = []
    if draw(st.booleans()):
        made.append(props.drop("A"))
    if draw(st.booleans()):
        made.append(props.rename("B", "B2"))
    if draw(st.booleans()):
        made += [props.rename("C", "D"), props.rename("D", "C")]
    if draw(st.booleans()):
        made.append(props.copy("E", to="E2"))
    if draw(st.booleans()):
        made.append(props.set("F", draw(st.sampled_from([1, "x", 2.0]))))
    if draw(st.booleans()) and not any(operation.op == "drop" for operation in made):
        made.append(props.keep("G", "H"))
    return draw(st.permutations(made))


def exactly(row: Row) -> list[tuple[str, str, str]]:
    return sorted((name, type(value).__name__, repr(value)) for name, value in row.items())


@given(rows(), operations())
def test_every_row_round_trips_through_reversible_declarations(row: Row, made_of: list[Operation]) -> None:
    made = mapper(*made_of)
    target = made.map(row)[0].row
    assert made.source_key(target) == key_of(row)
    assert exactly(made.reverse(target, key_of(row), row)) == exactly(row)


@given(rows(), operations(), rows())
def test_mapping_a_reversed_row_gives_the_target_row(row: Row, made_of: list[Operation], old: Row) -> None:
    """Also when the source row is another by now, or gone."""
    made = mapper(*made_of)
    target = made.map(row)[0].row
    for source in (None, {**old, "PartitionKey": row["PartitionKey"], "RowKey": row["RowKey"]}):
        again = made.map(made.reverse(target, key_of(row), source))[0].row
        assert key_of(again) == key_of(target)
        assert canonical_content(again) == canonical_content(target)


@given(rows(), rows(), operations())
def test_a_changed_target_row_reverses_or_refuses(row: Row, changed: Row, made_of: list[Operation]) -> None:
    made = mapper(*made_of)
    target = {**changed, **{name: row[name] for name in ("PartitionKey", "RowKey")}}
    target |= {"OldPk": row["PartitionKey"], "OldRk": row["RowKey"]}
    try:
        returned = made.reverse(target, key_of(row), row)
    except RowRefused as refusal:
        assert refusal.code == "not-reversible"
        return
    assert canonical_content(made.map(returned)[0].row) == canonical_content(target)


@pytest.mark.parametrize(
    "operations",
    [(props.rename("Mail", "Email"),), (props.copy("Mail", to="Email"), props.drop("Mail"))],
    ids=["renamed", "copied and dropped"],
)
def test_a_row_that_has_a_property_under_its_new_name_already_goes_back(
    operations: tuple[Operation, ...],
) -> None:
    made = mapper(*operations)
    already = content_of(read(Email="a@x.example", Name="Ann"))
    assert back(made, there(made, already), already) == already
    changed = back(made, there(made, already, Name="Bob"), already)
    assert changed == {**already, "Name": "Bob"}
    old = content_of(read(Mail="a@x.example", Name="Ann"))
    assert back(made, there(made, old, Name="Bob"), old) == {**old, "Name": "Bob"}
