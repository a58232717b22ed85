"""What a query's filter proves about the keys of the rows that it can return."""

from __future__ import annotations

import itertools

import pytest
from azure.core.rest import HttpRequest

from rekey import rows
from rekey.client.sdk.calls import Read, call_in
from rekey.client.sdk.filters import keys_asked
from rekey.declaration.key_space import key_space_of
from rekey.model import EntityKey

B = key_space_of(rows.partition_key(equals="b"))
B_ROWS = key_space_of(rows.all_of(rows.partition_key(equals="b"), rows.row_key(prefix="r")))


@pytest.mark.parametrize(
    "condition",
    [
        "PartitionKey eq 'a'",
        "PartitionKey eq 'b0'",
        "PartitionKey eq 'B'",
        "PartitionKey lt 'b'",
        "PartitionKey gt 'b'",
        "(PartitionKey eq 'a')",
        "((PartitionKey eq 'a') and (RowKey ge 'r'))",
        "PartitionKey ge 'a' and PartitionKey lt 'b'",
        "Value gt 1 and PartitionKey eq 'a'",
        "(Value gt 1 or Name eq 'b') and PartitionKey eq 'a'",
        "not (Value gt 1) and PartitionKey eq 'a'",
        "Name eq 'x'' or PartitionKey eq ''b' and PartitionKey eq 'a'",
        "PartitionKey eq 'it''s'",
        "PartitionKey   eq    'a'",
    ],
)
def test_a_filter_proves_that_no_row_of_a_part_is_asked_for(condition: str) -> None:
    asked = keys_asked(condition)
    assert asked is not None
    assert asked.is_apart_from(B)


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "PartitionKey eq 'b'",
        "PartitionKey le 'b'",
        "PartitionKey ge 'b'",
        "PartitionKey ge 'a' and PartitionKey lt 'c'",
        "PartitionKey ne 'b'",
        "RowKey eq 'a'",
        "Name eq 'PartitionKey eq ''a'''",
        "PartitionKey eq 'a' or PartitionKey eq 'b'",
        "PartitionKey eq 'a' or Value gt 1 and PartitionKey eq 'a'",
        "PartitionKey eq 'a' OR PartitionKey eq 'b'",
        "Value gt 1 OR PartitionKey eq 'b' and PartitionKey eq 'a'",
        "not PartitionKey eq 'a'",
        "not (PartitionKey eq 'a')",
        "(PartitionKey eq 'a') or (PartitionKey eq 'b')",
        "(PartitionKey eq 'a' or PartitionKey eq 'b') and RowKey eq 'r'",
        "partitionkey eq 'a'",
        "'a' eq PartitionKey",
        "PartitionKey eq guid'a'",
        "PartitionKey eq 'a' eq false",
        "PartitionKey eq 'a",
        "PartitionKey eq 'a') or (PartitionKey eq 'b'",
        "(PartitionKey eq 'a'",
    ],
)
def test_nothing_is_proved_where_a_row_of_the_part_may_be_asked_for(condition: str) -> None:
    asked = keys_asked(condition)
    assert asked is None or not asked.is_apart_from(B)


def test_a_filter_proves_that_rows_of_one_part_alone_are_asked_for() -> None:
    for condition, of_b, of_rows in (
        ("PartitionKey eq 'b'", True, False),
        ("PartitionKey eq 'b' and RowKey eq 'r1'", True, True),
        ("PartitionKey eq 'b' and RowKey ge 'r' and RowKey lt 's'", True, True),
        ("PartitionKey eq 'b' and RowKey ge 'r' and RowKey le 's'", True, False),
        ("PartitionKey ge 'b' and PartitionKey lt 'c'", False, False),
        ("RowKey eq 'r1'", False, False),
    ):
        asked = keys_asked(condition)
        assert asked is not None
        assert (asked.is_within(B), asked.is_within(B_ROWS)) == (of_b, of_rows), condition


def test_every_key_that_meets_comparisons_is_in_the_ranges() -> None:
    """Against a second reading of the comparisons."""
    texts = ["", "a", "a\0", "aa", "b", "B", "\ud7ff", "\ue000", "\U0001f600", "é"]
    tests = {
        "eq": lambda key, text: key == text,
        "ge": lambda key, text: order(key) >= order(text),
        "gt": lambda key, text: order(key) > order(text),
        "le": lambda key, text: order(key) <= order(text),
        "lt": lambda key, text: order(key) < order(text),
    }

    def order(text: str) -> bytes:
        return text.encode("utf-16-be", "surrogatepass")

    for operator, text, partition in itertools.product(tests, texts, texts):
        asked = keys_asked(f"PartitionKey {operator} '{text}'")
        assert asked is not None
        in_range = any(EntityKey(partition, "r") in each for each in asked.ranges)
        if text or operator != "lt":  # nothing is below the empty text: any range is right
            assert in_range == tests[operator](partition, text), (operator, text, partition)


@pytest.mark.parametrize(
    ("query", "is_apart"),
    [
        ("$filter=PartitionKey%20eq%20%27a%27", True),
        ("$filter=PartitionKey+eq+%27a%27&$top=3&NextPartitionKey=x", True),
        ("$filter=PartitionKey%20eq%20%27a%27&$filter=PartitionKey%20eq%20%27b%27", False),
        ("$top=3", False),
    ],
)
def test_the_filter_is_read_from_the_request(query: str, is_apart: bool) -> None:
    call = call_in(HttpRequest("GET", f"http://127.0.0.1/account/Rows()?{query}"), "Rows")
    assert isinstance(call, Read)
    assert (call.asked is not None and call.asked.is_apart_from(B)) is is_apart
