"""Property operations: made with care, and refused where they cannot work."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rekey import keys, props
from rekey.declaration.keys import InvalidDeclaration
from rekey.declaration.props import Cast, Set


@pytest.mark.parametrize(
    ("value", "kind", "edm", "wire"),
    [
        ("text", None, "Edm.String", "text"),
        ("", None, "Edm.String", ""),
        (True, None, "Edm.Boolean", True),
        (5, None, "Edm.Int32", 5),
        (5, "int64", "Edm.Int64", "5"),
        (2**62, "Edm.Int64", "Edm.Int64", str(2**62)),
        (5, "double", "Edm.Double", 5.0),
        (1.5, None, "Edm.Double", 1.5),
        (float("nan"), None, "Edm.Double", "NaN"),
        (float("-inf"), None, "Edm.Double", "-Infinity"),
        (b"\0\1\2", None, "Edm.Binary", "AAEC"),
        ("AAEC", "binary", "Edm.Binary", "AAEC"),
        (uuid.UUID(int=1), None, "Edm.Guid", "00000000-0000-0000-0000-000000000001"),
        ("0F9A0A2B-5E4B-4C1E-9C0A-0123456789AB", "Guid", "Edm.Guid", "0F9A0A2B-5E4B-4C1E-9C0A-0123456789AB"),
        (datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC), None, "Edm.DateTime", "2024-01-02T03:04:05.0000060Z"),
        (
            datetime(2024, 1, 2, 1, tzinfo=timezone(timedelta(hours=2))),
            None,
            "Edm.DateTime",
            "2024-01-01T23:00:00.0000000Z",
        ),
        ("2024-01-02T03:04:05.1234567Z", "datetime", "Edm.DateTime", "2024-01-02T03:04:05.1234567Z"),
    ],
)
def test_set_makes_a_typed_constant(value: object, kind: str | None, edm: str, wire: Any) -> None:
    made = props.set("A", value, kind)
    assert isinstance(made, Set)
    assert (made.edm, made.value, type(made.value)) == (edm, wire, type(wire))


@pytest.mark.parametrize(
    ("value", "kind", "cure"),
    [
        (2**31, None, "int64"),
        (2**63, "int64", "value"),
        ("x", "int32", "value"),
        (1.5, "int32", "text"),
        (True, "int32", "text"),
        ("x", "float", "use one of"),
        (None, None, "use str"),
        ([], None, "use str"),
        (datetime(2024, 1, 2), None, "aware"),  # noqa: DTZ001 - naive is the point
        (datetime(1600, 1, 2, tzinfo=UTC), None, "value"),
        ("x" * 32_769, None, "smaller"),
        ("\ud800", None, "whole"),
    ],
)
def test_set_refuses_what_is_no_value_of_the_type(value: object, kind: str | None, cure: str) -> None:
    with pytest.raises(InvalidDeclaration) as caught:
        props.set("A", value, kind)
    assert cure in caught.value.cure
    assert caught.value.field.startswith("props.set(")


def test_a_cast_has_an_inverse_if_it_says_what_the_type_was() -> None:
    known, unknown = props.cast("A", "int64", was="int32"), props.cast("A", "int64")
    assert isinstance(known, Cast)
    assert isinstance(unknown, Cast)
    assert known.inverse() == Cast("A", "Edm.Int32", "Edm.Int64")
    assert unknown.inverse() is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: props.keep(),
        lambda: props.drop("A", "A"),
        lambda: props.drop("RowKey"),
        lambda: props.keep("A@odata.type"),
        lambda: props.drop(3),
        lambda: props.rename("RowKey", "B"),
        lambda: props.rename("A", "RowKey"),
        lambda: props.rename("A", "Timestamp"),
        lambda: props.rename("A", "A"),
        lambda: props.rename("A", "1a"),
        lambda: props.copy("A", to="A"),
        lambda: props.copy("A", to="PartitionKey"),
        lambda: props.copy("A", to=None),
        lambda: props.set("RowKey", "x"),
        lambda: props.cast("Timestamp", "string"),
        lambda: props.cast("A", "text"),
        lambda: props.cast("A", "datetime", was="guid"),
        lambda: props.compute("RowKey", keys.prop("A")),
        lambda: props.compute("A", keys.item()),
        lambda: props.compute("A", keys.keep()),
        lambda: props.compute("A", keys.date("yyyy", "Timestamp")),
    ],
)
def test_impossible_operations_are_refused_when_they_are_made(make: Any) -> None:
    with pytest.raises(InvalidDeclaration) as caught:
        make()
    assert caught.value.field.startswith("props.")
    assert caught.value.cure


def test_a_cast_that_there_is_not_says_which_there_are() -> None:
    with pytest.raises(InvalidDeclaration) as unknown:
        props.cast("A", "text")
    assert "use one of Edm.Binary, Edm.Boolean, Edm.DateTime" in unknown.value.cure
    with pytest.raises(InvalidDeclaration) as missing:
        props.cast("A", "datetime", was="boolean")
    assert "from Edm.Boolean it can become Edm.Int32, Edm.Int64, Edm.String; or drop it" in missing.value.cure


def test_operations_describe_themselves_without_values() -> None:
    described = [
        operation.describe()
        for operation in (
            props.keep("A", "B"),
            props.drop("A"),
            props.rename("A", "B"),
            props.copy("RowKey", to="B"),
            props.set("A", "value"),
            props.cast("A", "int64"),
        )
    ]
    assert described == [
        "keep(A, B)",
        "drop(A)",
        "rename(A, B)",
        "copy(RowKey, to=B)",
        "set(A, Edm.String)",
        "cast(A, Edm.Int64)",
    ]
