"""What a query's filter proves about the keys of the rows that it can return."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from azure.core.rest import HttpRequest
from hypothesis import given
from hypothesis import strategies as st

from rekey import rows
from rekey.client.sdk.calls import Read, call_in
from rekey.client.sdk.filters import keys_asked
from rekey.declaration.key_space import key_space_of
from rekey.model import EntityKey, key_of, utf16_order

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
        "Value eq -1.5e+3 and At ge datetime'2024-01-01T00:00:00Z' and Größe lt 5L and PartitionKey eq 'a'",
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
        "Value eq 5or Value eq 6 and PartitionKey eq 'a'",
        "Value eq 5L,or Value eq 6 and PartitionKey eq 'a'",
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

    for by, text, partition in itertools.product(tests, texts, texts):
        asked = keys_asked(f"PartitionKey {by} '{text}'")
        assert asked is not None
        in_range = any(EntityKey(partition, "r") in each for each in asked.ranges)
        if text or by != "lt":  # nothing is below the empty text: any range is right
            assert in_range == tests[by](partition, text), (by, text, partition)


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


# --- any filter, against what it says of rows ---------------------------------------------------------------

Test = Callable[[Mapping[str, Any]], bool]
LITERALS = {
    "N": (["5", "-1", "5L", "1.5", "2e3"], [5, -1, 5, 1.5, 2e3]),
    "B": (["true", "false"], [True, False]),
    "D": (["datetime'2024-01-01T00:00:00Z'", "datetime'2025-01-01T00:00:00Z'"], ["2024", "2025"]),
    "G": (["guid'aa'", "guid'bb'"], ["aa", "bb"]),
    "X": (["X'61'", "binary'62'"], ["61", "62"]),
}
"""By property: constants of its type as a filter has them, and their values here."""
OPERATORS = ["eq", "ne", "lt", "le", "gt", "ge"]
# Quotation marks, keywords, parentheses, and both sides of the surrogates.
texts = st.one_of(
    st.sampled_from(["a", "b", "b", "b0", "r", ""]),
    st.sampled_from(["'", "''", "') or (RowKey eq '", " or ", "PartitionKey eq 'b'"]),
    st.text(st.sampled_from("abr'() \ud7ff\ue000\uffff\U00010000\U0010ffff"), max_size=3),
)


@dataclass(frozen=True)
class Filter:
    """A filter as text, what it says of a row, and how tightly its outermost operator binds."""

    text: str
    test: Test
    binds: int = 3


@st.composite
def comparisons(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from(["PartitionKey"] * 4 + ["RowKey"] * 2 + ["T", *LITERALS]))
    by = draw(st.sampled_from(["eq", *OPERATORS]))
    compare = getattr(operator, by)
    if name in LITERALS:
        literals, values = LITERALS[name]
        number = draw(st.integers(0, len(literals) - 1))
        literal, value = literals[number], values[number]
        return Filter(f"{name} {by} {literal}", lambda row: name in row and compare(row[name], value))
    text, space = draw(texts), draw(st.sampled_from([" ", "  "]))
    quoted = "'" + text.replace("'", "''") + "'"

    def test(row: Mapping[str, Any]) -> bool:
        return name in row and compare(utf16_order(row[name]), utf16_order(text))

    return Filter(f"{name}{space}{by}{space}{quoted}", test)


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    """A filter, with the parentheses that it needs and others."""

    def within(each: Filter, binds: int) -> str:
        is_bare = each.binds >= binds and draw(st.booleans())
        return f" {each.text} " if is_bare else draw(st.sampled_from(["({})", " ({}) "])).format(each.text)

    def combined(depth: int) -> Filter:
        kind = draw(st.sampled_from(["and"] * 4 + ["or", "not", ""])) if depth else ""
        if not kind:
            return draw(comparisons())
        first = combined(depth - 1)
        if kind == "not":
            return Filter(f"not ({first.text})", lambda row: not first.test(row), 2)
        second, binds = combined(depth - 1), 1 if kind == "and" else 0
        word = draw(st.sampled_from([kind, kind.upper()]))
        test: Test = lambda row: first.test(row) and second.test(row)  # noqa: E731
        if kind == "or":
            test = lambda row: first.test(row) or second.test(row)  # noqa: E731
        return Filter(f"{within(first, binds)}{word}{within(second, binds)}", test, binds)

    return combined(3)


any_rows = st.lists(
    st.fixed_dictionaries(
        {"PartitionKey": texts, "RowKey": texts},
        optional={"T": texts, **{name: st.sampled_from(values) for name, (_, values) in LITERALS.items()}},
    ),
    max_size=12,
)
parts = st.sampled_from(
    [
        B,
        B_ROWS,
        key_space_of(rows.partition_key(prefix="b")),
        key_space_of(rows.partition_key(at_least="\ue000")),
        key_space_of(rows.partition_key(equals="")),
        key_space_of(rows.none_of(rows.partition_key(one_of=["a", "\U00010000"]))),
        key_space_of(rows.row_key(pattern="r.*")),
    ]
)


@given(filters(), any_rows, parts)
def test_no_row_that_meets_a_filter_is_outside_the_keys_that_it_asks_for(
    asking: Filter, candidates: list[dict[str, Any]], part: Any
) -> None:
    asked = keys_asked(asking.text)
    if asked is None:
        return
    for row in candidates:
        if not asking.test(row):
            continue
        key = key_of(row)
        assert any(key in each for each in asked.ranges), asking.text
        assert not (asked.is_apart_from(part) and key in part), asking.text
        assert not asked.is_within(part) or any(key in each for each in part.ranges), asking.text
