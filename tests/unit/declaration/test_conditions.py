"""Conditions on rows: what each is met by, and what no condition can say."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from rekey import rows
from rekey.declaration.keys.base import InvalidDeclaration
from rekey.declaration.rows import Condition
from rekey.model import Row

ROW: Row = {
    "PartitionKey": "tenant-1",
    "RowKey": "U_ann",
    "Status": "open",
    "Age": 30,
    "Visits": "12345678901",
    "Visits@odata.type": "Edm.Int64",
    "Score": 30.0,
    "NotANumber": "NaN",
    "NotANumber@odata.type": "Edm.Double",
    "Active": True,
    "Joined": "2024-03-01T00:00:00.5Z",
    "Joined@odata.type": "Edm.DateTime",
    "Id": "0F8FAD5B-D9CB-469F-A165-70867728950E",
    "Id@odata.type": "Edm.Guid",
    "Photo": "AAE=",
    "Photo@odata.type": "Edm.Binary",
    "Nothing": None,
}
MET = {
    "a prefix": rows.row_key(prefix="U_"),
    "a whole key": rows.partition_key(equals="tenant-1"),
    "one of several keys": rows.partition_key(one_of=["tenant-0", "tenant-1"]),
    "a range of keys": rows.partition_key(at_least="tenant-1", below="tenant-2"),
    "a pattern of the whole key": rows.row_key(pattern="U_[a-z]+"),
    "all that is said of a key": rows.row_key(prefix="U_", pattern=".*n", at_least="U"),
    "a property that is present": rows.prop("Status"),
    "a type": rows.prop("Visits", type="int64"),
    "text": rows.prop("Status", equals="open"),
    "one of several texts": rows.prop("Status", one_of=["new", "open"]),
    "a range of text": rows.prop("Status", at_least="o", below="p"),
    "an Int32": rows.prop("Age", equals=30),
    "an Int64": rows.prop("Visits", equals=12345678901, type="int64"),
    "a Double by its value": rows.prop("Score", equals=30),
    "an Int32 by its value as a Double": rows.prop("Age", equals=30.0),
    "a range of numbers over types": rows.prop("Visits", at_least=30.5),
    "the least number itself": rows.prop("Age", at_least=30, below=31),
    "a Boolean": rows.prop("Active", equals=True),
    "a moment": rows.prop("Joined", equals=datetime(2024, 3, 1, 0, 0, 0, 500_000, tzinfo=UTC)),
    "a range of moments": rows.prop("Joined", at_least="2024-03-01", below="2024-04-01", type="datetime"),
    "a Guid in another case": rows.prop("Id", equals=uuid.UUID("0f8fad5b-d9cb-469f-a165-70867728950e")),
    "a Binary": rows.prop("Photo", equals=b"\0\1"),
    "all of several": rows.all_of(rows.prop("Status"), rows.row_key(prefix="U")),
    "any of several": rows.any_of(rows.prop("Missing"), rows.row_key(prefix="U")),
    "none of several": rows.none_of(rows.prop("Missing"), rows.row_key(prefix="C")),
    "every row": rows.every(),
}
NOT_MET = {
    "another prefix": rows.row_key(prefix="C_"),
    "a part of the key": rows.row_key(equals="U_"),
    "a pattern of a part of the key": rows.row_key(pattern="U_"),
    "the first key beyond a range": rows.partition_key(below="tenant-1"),
    "one thing that is not so": rows.row_key(prefix="U_", below="A"),
    "a missing property": rows.prop("Missing"),
    "a null": rows.prop("Nothing"),
    "another type": rows.prop("Age", type="int64"),
    "text that reads like the number": rows.prop("Age", equals="30"),
    "a number that reads like the Boolean": rows.prop("Active", equals=1),
    "a value beside NaN": rows.prop("NotANumber", at_least=0),
    "a moment in a range of text": rows.prop("Joined", at_least="2"),
    "a tick before the moment": rows.prop("Joined", below="2024-03-01T00:00:00.5Z", type="datetime"),
    "all of several but one": rows.all_of(rows.prop("Status"), rows.prop("Missing")),
    "none of several but one": rows.none_of(rows.prop("Status"), rows.prop("Missing")),
}


@pytest.mark.parametrize("condition", MET.values(), ids=MET)
def test_a_row_meets_a_condition(condition: Condition) -> None:
    assert condition.compile()(ROW)
    assert not rows.none_of(condition).compile()(ROW)


@pytest.mark.parametrize("condition", NOT_MET.values(), ids=NOT_MET)
def test_a_row_does_not_meet_a_condition(condition: Condition) -> None:
    assert not condition.compile()(ROW)
    assert rows.none_of(condition).compile()(ROW)


IMPOSSIBLE: dict[str, tuple[Callable[[], Condition], str]] = {
    "a condition that says nothing": (lambda: rows.row_key(), "says nothing about the key"),
    "a list that is text": (lambda: rows.row_key(one_of="abc"), "not a list of values"),
    "equals beside one_of": (lambda: rows.row_key(equals="a", one_of=["b"]), "contradict"),
    "a range without a key": (lambda: rows.row_key(at_least="b", below="a"), "no value is in that range"),
    "a broken pattern": (lambda: rows.row_key(pattern="("), "in the pattern"),
    "a key that is a number": (lambda: rows.row_key(equals=1), "is not text"),  # type: ignore[arg-type]
    "a key as a property": (lambda: rows.prop("RowKey", equals="a"), "no custom property"),
    "the Timestamp": (lambda: rows.prop("Timestamp"), "no custom property"),
    "an unknown type": (lambda: rows.prop("A", type="text"), "not an EDM type"),
    "a value of another type": (lambda: rows.prop("A", equals="a", type="int32"), "not of type Edm.Int32"),
    "a value without a type": (lambda: rows.prop("A", equals=object()), "has no EDM type"),
    "NaN as a value": (lambda: rows.prop("A", equals=float("nan")), "NaN equals nothing"),
    "NaN as a bound": (lambda: rows.prop("A", below=float("nan")), "has no order"),
    "a range of Booleans": (lambda: rows.prop("A", at_least=True), "has no order"),
    "bounds of two types": (lambda: rows.prop("A", at_least=1, below="b"), "different types"),
    "no condition in all_of": (lambda: rows.all_of(), "holds no condition"),
    "no condition in any_of": (lambda: rows.any_of(), "holds no condition"),
    "no condition in none_of": (lambda: rows.none_of(), "holds no condition"),
    "text as a condition": (lambda: rows.all_of("U_"), "is not a condition"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("make", "problem"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_impossible_condition_is_refused(make: Callable[[], Condition], problem: str) -> None:
    with pytest.raises(InvalidDeclaration, match=problem) as refused:
        make()
    assert refused.value.cure


def test_conditions_have_canonical_data_and_words() -> None:
    condition = rows.all_of(
        rows.row_key(prefix="U_"),
        rows.prop("Age", at_least=18, type="int32"),
        rows.none_of(rows.prop("Gone")),
    )
    assert condition.as_json() == {
        "op": "all_of",
        "of": [
            {"op": "key", "name": "RowKey", "prefix": "U_"},
            {
                "op": "prop",
                "name": "Age",
                "type": "Edm.Int32",
                "at_least": {"type": "Edm.Int32", "value": "18"},
            },
            {"op": "none_of", "of": [{"op": "prop", "name": "Gone"}]},
        ],
    }
    age = "Age is of type Edm.Int32 and is at least 18"
    assert condition.describe() == f"all of (RowKey begins with U_; {age}; none of (Gone is present))"
    assert condition.inputs() == {"RowKey", "Age", "Gone"}
    assert rows.every().describe() == "every row"
    whole = rows.partition_key(one_of=["ann@x.example", "bob@x.example"], below="c")
    assert whole.describe() == "PartitionKey is one of 2 keys and is in a range", "no whole key is told"
