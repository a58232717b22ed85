"""The service's limits: keys, names, sizes."""

from __future__ import annotations

import base64

import pytest

from rekey.core.limits import (
    MAX_ENTITY_BYTES,
    MAX_PROPERTIES,
    check_key,
    check_row,
    entity_bytes,
    property_name_problem,
    table_name_problem,
    value_bytes,
)
from rekey.errors import RowRefused
from rekey.model import Row


@pytest.mark.parametrize(
    "key", ["a", "it's", "100%", "a+b", " a ", "a.", "ä", "e\u0301", "\U0001f600" * 512, "a" * 1024]
)
def test_keys_the_service_takes(key: str) -> None:
    check_key(key, "target.row_key")


@pytest.mark.parametrize(
    "character", ["/", "\\", "#", "?", "\0", "\t", "\n", "\x1f", "\x7f", "\x85", "\x9f", "\ud83d"]
)
def test_characters_the_service_refuses_are_named_by_code_point(character: str) -> None:
    with pytest.raises(RowRefused) as refused:
        check_key(f"alice{character}bob", "target.row_key")
    assert refused.value.code == "refused-character"
    assert f"U+{ord(character):04X}" in refused.value.problem
    assert "alice" not in str(refused.value)


@pytest.mark.parametrize("key", ["a" * 1025, "\U0001f600" * 513, "a" + "\U0001f600" * 512])
def test_length_is_counted_in_utf16_units(key: str) -> None:
    with pytest.raises(RowRefused) as refused:
        check_key(key, "target.row_key")
    assert refused.value.code == "key-too-long"


@pytest.mark.parametrize(
    ("partition", "row", "taken"),
    [
        ("a" * 1024, "b" * 1024, True),
        ("漢" * 512, "字" * 512, True),
        ("漢" * 1024, "", True),
        ("漢" * 1024, "a", False),
        ("漢" * 513, "字" * 512, False),
        ("'" * 1024, "'" * 512, True),
        ("'" * 1024, "'" * 1024, False),
    ],
)
def test_keys_that_no_address_can_hold_are_refused(partition: str, row: str, taken: bool) -> None:
    """The service takes them; a query that names them would be too long."""
    keys = {"PartitionKey": partition, "RowKey": row}
    if taken:
        check_row(keys, "source")
        return
    with pytest.raises(RowRefused) as refused:
        check_row(keys, "source")
    assert refused.value.code == "key-too-long"


def test_an_empty_key_must_be_meant() -> None:
    with pytest.raises(RowRefused) as refused:
        check_key("", "target.row_key")
    assert refused.value.code == "empty-key"
    assert "allow_empty=True" in refused.value.cure
    check_key("", "target.row_key", allow_empty=True)


@pytest.mark.parametrize("name", ["Abc", "a12", "A" * 63])
def test_table_names_the_service_takes(name: str) -> None:
    assert table_name_problem(name) is None


@pytest.mark.parametrize(
    "name", ["", "ab", "1ab", "a-b", "a_b", "ä12", "A" * 64, "Tables", "RekeyMap", "Abc\n", None, 3]
)
def test_table_names_that_cannot_be_used(name: object) -> None:
    assert table_name_problem(name)


@pytest.mark.parametrize("name", ["A", "_a", "größe", "a" * 255])
def test_property_names_the_service_takes(name: str) -> None:
    assert property_name_problem(name) is None


@pytest.mark.parametrize(
    "name", ["", "1a", "a b", "a-b", "a.b", "a@odata.type", "a" * 256, "PartitionKey", "timestamp", 3]
)
def test_property_names_that_cannot_be_made(name: object) -> None:
    assert property_name_problem(name)


def test_the_documented_formula_for_the_size_of_an_entity() -> None:
    """4 + 2 x (keys) + for each property 8 + 2 x name + value."""
    row: Row = {
        "odata.etag": 'W/"x"',
        "PartitionKey": "pp",
        "RowKey": "r",
        "Timestamp": "2024-01-01T00:00:00Z",
        "S": "a\U0001f600",
        "I": 5,
        "L": "5",
        "L@odata.type": "Edm.Int64",
        "D": 1.5,
        "B": True,
        "T": "2024-01-01T00:00:00Z",
        "T@odata.type": "Edm.DateTime",
        "G": "00000000-0000-0000-0000-000000000000",
        "G@odata.type": "Edm.Guid",
        "X": base64.b64encode(b"12345").decode(),
        "X@odata.type": "Edm.Binary",
    }
    values = (3 * 2 + 4) + 4 + 8 + 8 + 1 + 8 + 16 + (5 + 4)
    assert entity_bytes(row) == 4 + 3 * 2 + 8 * (8 + 2) + values


@pytest.mark.parametrize("length", range(7))
def test_binary_is_counted_in_bytes_not_in_base64(length: int) -> None:
    assert value_bytes("Edm.Binary", base64.b64encode(b"x" * length).decode()) == length


def full_row(properties: int, value: object = 1) -> Row:
    return {"PartitionKey": "p", "RowKey": "r", **{f"P{number}": value for number in range(properties)}}


def test_252_properties_are_the_most() -> None:
    check_row(full_row(MAX_PROPERTIES), "target")
    annotated = full_row(MAX_PROPERTIES, "1") | {
        f"P{number}@odata.type": "Edm.Int64" for number in range(MAX_PROPERTIES)
    }
    check_row(annotated, "target")  # annotations are not properties
    with pytest.raises(RowRefused) as refused:
        check_row(full_row(MAX_PROPERTIES + 1), "target")
    assert refused.value.code == "too-many-properties"


@pytest.mark.parametrize("text", ["a", "é", "\U0001f600"])
def test_one_mebibyte_is_the_most(text: str) -> None:
    row = full_row(32, "")
    room = (MAX_ENTITY_BYTES - entity_bytes(row)) // 2
    units = len(text.encode("utf-16-le")) // 2
    for number in range(32):
        row[f"P{number}"] = text * (room // 32 // units)
    row["P0"] += "x" * ((MAX_ENTITY_BYTES - entity_bytes(row)) // 2)
    assert entity_bytes(row) == MAX_ENTITY_BYTES
    check_row(row, "target")
    row["P0"] += "x"
    with pytest.raises(RowRefused) as refused:
        check_row(row, "target")
    assert refused.value.code == "row-too-large"
