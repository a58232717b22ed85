"""Casts between EDM types: another type, never another value."""

from __future__ import annotations

import base64
import math
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekey.core.edm import BINARY, BOOLEAN, DATETIME, DOUBLE, INT32, INT64, STRING, canonical_text
from rekey.core.edm import GUID as EDM_GUID
from rekey.declaration.casts import PAIRS, Lossy, cast_value

GUID = "0f9A0a2b-5e4b-4c1e-9c0a-0123456789AB"


@pytest.mark.parametrize(
    ("value", "was", "to", "expected"),
    [
        ("12", STRING, INT32, 12),
        ("-12", STRING, INT64, "-12"),
        ("9223372036854775807", STRING, INT64, "9223372036854775807"),
        ("1.50", STRING, DOUBLE, 1.5),
        ("5", STRING, DOUBLE, 5.0),
        ("NaN", STRING, DOUBLE, "NaN"),
        ("-Infinity", STRING, DOUBLE, "-Infinity"),
        ("1e3", STRING, DOUBLE, 1000.0),
        ("True", STRING, BOOLEAN, True),
        ("false", STRING, BOOLEAN, False),
        ("2024-01-02T03:04:05.1234567Z", STRING, DATETIME, "2024-01-02T03:04:05.1234567Z"),
        ("2024-01-02T03:04:05+00:00", STRING, DATETIME, "2024-01-02T03:04:05Z"),
        (GUID, STRING, EDM_GUID, GUID),
        ("AAEC", STRING, BINARY, "AAEC"),
        (12, INT32, STRING, "12"),
        ("12", INT64, STRING, "12"),
        (3.0, DOUBLE, STRING, "3.0"),
        (True, BOOLEAN, STRING, "true"),
        ("2024-01-02T03:04:05.5Z", DATETIME, STRING, "2024-01-02T03:04:05.5000000Z"),
        (GUID, EDM_GUID, STRING, GUID),
        ("AAEC", BINARY, STRING, "AAEC"),
        (12, INT32, INT64, "12"),
        ("2147483647", INT64, INT32, 2147483647),
        (12, INT32, DOUBLE, 12.0),
        ("9007199254740993", INT64, DOUBLE, None),
        ("9007199254740992", INT64, DOUBLE, 9007199254740992.0),
        (12.0, DOUBLE, INT32, 12),
        (1e15, DOUBLE, INT64, "1000000000000000"),
        (True, BOOLEAN, INT32, 1),
        ("0", INT64, BOOLEAN, False),
        ("2147483648", INT64, INT32, None),
        (12.5, DOUBLE, INT32, None),
        (-0.0, DOUBLE, INT32, None),
        ("NaN", DOUBLE, INT64, None),
        (1e300, DOUBLE, INT64, None),
        (2, INT32, BOOLEAN, None),
        ("007", STRING, INT32, None),
        ("+7", STRING, INT32, None),
        ("-0", STRING, INT64, None),
        (" 7", STRING, INT32, None),
        ("٧", STRING, INT32, None),
        ("9223372036854775808", STRING, INT64, None),
        ("0.1000000000000000055", STRING, DOUBLE, None),
        ("1e999", STRING, DOUBLE, None),
        ("nan", STRING, DOUBLE, None),
        ("yes", STRING, BOOLEAN, None),
        ("2024-01-02", STRING, DATETIME, None),
        ("1600-12-31T00:00:00Z", STRING, DATETIME, None),
        ("2024-01-02T03:04:05+02:00", STRING, DATETIME, None),
        ("{" + GUID + "}", STRING, EDM_GUID, None),
        ("AAE", STRING, BINARY, None),
        ("AAF=", STRING, BINARY, None),
        (GUID, EDM_GUID, BINARY, None),
        (5, INT32, DATETIME, None),
        (base64.b64encode(b"x" * 40_000).decode(), BINARY, STRING, None),
    ],
)
def test_a_cast_keeps_the_value_or_is_refused(value: Any, was: str, to: str, expected: Any) -> None:
    if expected is None:
        with pytest.raises(Lossy):
            cast_value(value, was, to)
        return
    made = cast_value(value, was, to)
    assert (made, type(made)) == (expected, type(expected))


values = {
    STRING: st.text(max_size=20) | st.integers().map(str) | st.floats().map(repr),
    INT32: st.integers(-(2**31), 2**31 - 1),
    INT64: st.integers(-(2**63), 2**63 - 1).map(str),
    DOUBLE: st.floats().map(
        lambda number: number if math.isfinite(number) else canonical_text(DOUBLE, number)
    ),
    BOOLEAN: st.booleans(),
    DATETIME: st.builds(
        lambda moment, tenth: f"{moment.isoformat(timespec='microseconds')}{tenth}Z",
        st.datetimes(min_value=datetime(1601, 1, 1)),  # noqa: DTZ001
        st.integers(0, 9),
    ),
    EDM_GUID: st.uuids().map(str),
    BINARY: st.binary(max_size=40).map(lambda data: base64.b64encode(data).decode()),
}


@given(st.sampled_from(sorted(PAIRS)).flatmap(lambda pair: st.tuples(st.just(pair), values[pair[0]])))
def test_every_accepted_cast_comes_back_as_the_same_value(case: tuple[tuple[str, str], Any]) -> None:
    (was, to), value = case
    try:
        made = cast_value(value, was, to)
    except Lossy:
        return
    back = cast_value(made, to, was)
    if was == STRING and to == DOUBLE and value not in ("NaN", "Infinity", "-Infinity"):
        assert Decimal(back) == Decimal(value), "another spelling of the same number"
    elif was == STRING and to in (BOOLEAN, DATETIME):
        assert back.lower() == canonical_text(to, made).lower()
    else:
        assert canonical_text(was, back) == canonical_text(was, value)


@given(st.sampled_from(sorted(values)).flatmap(lambda edm: st.tuples(st.just(edm), values[edm])))
def test_every_value_but_binary_becomes_text_and_comes_back(case: tuple[str, Any]) -> None:
    edm, value = case
    text = cast_value(value, edm, STRING)
    assert text == canonical_text(edm, value)
    assert canonical_text(edm, cast_value(text, STRING, edm)) == canonical_text(edm, value)
