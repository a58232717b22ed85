"""Key expressions on moments: dates, ticks, inversions; no digit is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekey import keys
from rekey.core.clock import MAX_TICKS
from rekey.declaration.keys import InvalidDeclaration
from rekey.declaration.keys.moments import parse_ticks
from rekey.inspect.shapes import Shape, shape_of
from rekey.model import Row
from tests.asserts.expression_values import evaluate, refused

moments = st.builds(
    lambda moment, tenth: f"{moment.isoformat(timespec='microseconds')}{tenth}Z",
    st.datetimes(),
    st.integers(0, 9),
)


def at(text: str) -> Row:
    return {"At": text, "At@odata.type": "Edm.DateTime"}


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        # values of System.DateTime.Ticks
        ("0001-01-01T00:00:00Z", 0),
        ("1601-01-01T00:00:00Z", 504911232000000000),
        ("1970-01-01T00:00:00Z", 621355968000000000),
        # 951825600 is the Unix time of that noon
        ("2000-02-29T12:00:00.0000001Z", 621355968000000000 + 951825600 * 10_000_000 + 1),
        ("9999-12-31T23:59:59.9999999Z", MAX_TICKS),
    ],
)
def test_ticks_are_those_of_dotnet(text: str, ticks: int) -> None:
    assert parse_ticks(text) == ticks
    assert evaluate(keys.ticks("At"), at(text)) == f"{ticks:019d}"
    assert evaluate(keys.inverted_ticks("At"), at(text)) == f"{MAX_TICKS - ticks:019d}"


def test_the_seventh_digit_decides() -> None:
    one, two = at("2024-01-02T03:04:05.1234567Z"), at("2024-01-02T03:04:05.1234568Z")
    assert int(evaluate(keys.ticks("At"), two)) - int(evaluate(keys.ticks("At"), one)) == 1


@given(moments, moments)
def test_inverted_ticks_sort_newest_first_and_ticks_oldest_first(one: str, other: str) -> None:
    ticks = [evaluate(keys.ticks("At"), at(text)) for text in (one, other)]
    inverted = [evaluate(keys.inverted_ticks("At"), at(text)) for text in (one, other)]
    assert (one < other) == (ticks[0] < ticks[1]) == (inverted[0] > inverted[1])
    assert {len(text) for text in ticks + inverted} == {19}
    assert int(ticks[0]) + int(inverted[0]) == MAX_TICKS


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("yyyy", "2024"),
        ("yyyy-MM", "2024-03"),
        ("yyyy-MM-dd", "2024-03-05"),
        ("yyyy-MM-dd-HH", "2024-03-05-23"),
    ],
)
def test_date_writes_the_utc_date(form: str, text: str) -> None:
    assert evaluate(keys.date(form, "At"), at("2024-03-05T23:20:30.1234567Z")) == text
    assert evaluate(keys.date(form, "At"), At="2024-03-05T23:20:30+00:00") == text, (
        "text of that form does as well"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2024-03-05",
        "2024-03-05T10:20Z",
        "2024-03-05T10:20:30",
        "2024-03-05T10:20:30+02:00",
        "2024-03-05T10:20:30.12345678Z",
        "2024-02-30T10:20:30Z",
        "2023-02-29T10:20:30Z",
        "2024-13-05T10:20:30Z",
        "0000-01-05T10:20:30Z",
        "2024-03-05T24:00:00Z",
        "2024-03-05T10:20:60Z",
        "٢٠٢٤-03-05T10:20:30Z",
        "2024-03-05T10:20:30Z\n",
    ],
)
@pytest.mark.parametrize(
    "expression",
    [
        keys.date("yyyy", "At"),
        keys.ticks("At"),
        keys.inverted_ticks("At"),
        keys.inverted_seconds(9999999999, "At"),
    ],
)
def test_what_is_no_utc_moment_is_refused(expression: keys.Expression, text: str) -> None:
    assert refused(expression, At=text).code == "not-a-date"


def test_inverted_seconds_count_down_from_the_maximum() -> None:
    expression = keys.inverted_seconds(9999999999, "At")
    assert evaluate(expression, at("1970-01-01T00:00:00Z")) == "9999999999"
    assert evaluate(expression, at("2001-09-09T01:46:40.9999999Z")) == "8999999999"
    assert evaluate(expression, at("2286-11-20T17:46:39Z")) == "0000000000"


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59.9999999Z", "2286-11-20T17:46:40Z"])
def test_inverted_seconds_refuse_what_is_out_of_range(text: str) -> None:
    assert refused(keys.inverted_seconds(9999999999, "At"), at(text)).code == "out-of-range"


def test_unknown_formats_are_refused_and_the_known_ones_listed() -> None:
    with pytest.raises(InvalidDeclaration, match="yyyy, yyyy-MM, yyyy-MM-dd, yyyy-MM-dd-HH"):
        keys.date("MM-yyyy", "At")
    with pytest.raises(InvalidDeclaration, match="max"):
        keys.inverted_seconds(0, "At")


@pytest.mark.parametrize("is_inverted", [False, True])
@pytest.mark.parametrize("width", [18, 19])
def test_a_date_is_made_of_ticks_that_inspect_recognizes(width: int, is_inverted: bool) -> None:
    ticks = parse_ticks("2024-03-05T23:59:59.9999999Z")
    assert ticks is not None
    text = f"{MAX_TICKS - ticks if is_inverted else ticks:0{width}d}"
    shape = Shape.INVERTED_TICKS if is_inverted else Shape.TICKS
    assert shape_of(text) is shape
    assert evaluate(keys.date("yyyy-MM-dd-HH", "At"), {"At": text}) == "2024-03-05-23"
    assert evaluate(keys.date("yyyy", "At"), {"At": text, "At@odata.type": "Edm.Int64"}) == "2024"


@pytest.mark.parametrize(
    "text", ["504911232000000000", "12345678901234567", "63845000000000000000", "20240305"]
)
def test_other_digits_are_no_date(text: str) -> None:
    """Ticks of 1601, 17 and 20 digits, a date without hyphens."""
    assert refused(keys.date("yyyy", "At"), {"At": text}).code == "not-a-date"
