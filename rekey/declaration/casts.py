"""Casts of wire values between EDM types. Pure.

Rules kept here:

* A cast works on text and never through a type that could lose digits; what would become another value is
  refused (`bad-cast`): Int64 to Double past 2^53 unless exact, `007` to a number, -0.0 to an integer.
* Another spelling of the same value is no loss: `1.50` is the Double 1.5, `True` the Boolean true, a DateTime
  with fewer than 7 digits of fraction the same moment. Casting it back gives the canonical spelling.
* Binary and Edm.String convert as base64 text, which is how Binary stands on the wire.
* What is made is annotated whenever its JSON form alone would not say its type.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from rekey.core.edm import (
    BINARY,
    BOOLEAN,
    DATETIME,
    DOUBLE,
    GUID,
    GUID_TEXT,
    INT32,
    INT64,
    INT_RANGES,
    NOT_FINITE,
    STRING,
    canonical_text,
)
from rekey.core.limits import MAX_VALUE_BYTES, value_bytes
from rekey.declaration.keys.moments import parse_ticks

ANNOTATED = frozenset({INT64, DOUBLE, DATETIME, GUID, BINARY})
"""Types that rekey annotates when it makes a value. Without it, the Double 3.0 would become Int32."""

_INTEGER = re.compile("0|-?[1-9][0-9]{0,18}")
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")
_BOOLEANS_AND_NUMBERS = {"true": "1", "false": "0", "1": "true", "0": "false"}
_FIRST_DATETIME = "1601-01-01"

PAIRS: frozenset[tuple[str, str]] = frozenset(
    {(STRING, other) for other in (INT32, INT64, DOUBLE, BOOLEAN, DATETIME, GUID, BINARY)}
    | {(other, STRING) for other in (INT32, INT64, DOUBLE, BOOLEAN, DATETIME, GUID, BINARY)}
    | {(one, other) for one in (INT32, INT64, DOUBLE) for other in (INT32, INT64, DOUBLE) if one != other}
    | {(BOOLEAN, INT32), (BOOLEAN, INT64), (INT32, BOOLEAN), (INT64, BOOLEAN)}
)
"""From and to: the casts that exist."""


class Lossy(ValueError):
    """The value cannot be had in the other type without loss. Holds no value."""


def wire_value(edm: str, text: str) -> Any:
    """Return the wire JSON value of a type from its text. Raises Lossy when the text is none of that type."""
    return _MAKERS[edm](text)


def cast_value(value: object, was: str, to: str) -> Any:
    """Return a wire value of type `was` as a wire value of type `to`.

    Raises Lossy when there is no such cast, when it would lose something, or when the result is over 64 KiB.
    """
    if was == to:
        return value
    if (was, to) not in PAIRS:
        raise Lossy
    text = canonical_text(was, value)
    if BOOLEAN in (was, to) and STRING not in (was, to):
        text = _BOOLEANS_AND_NUMBERS.get(text, "")  # "" is no value of either
    elif was == DOUBLE and to in INT_RANGES:
        number = float(text)
        if not number.is_integer() or (number == 0 and text.startswith("-")):
            raise Lossy
        text = str(int(number))
    elif was in INT_RANGES and to == DOUBLE:
        if int(float(text)) != int(text):
            raise Lossy
        text = repr(float(text))
    made = wire_value(to, text)
    if value_bytes(to, made) > MAX_VALUE_BYTES:
        raise Lossy
    return made


def _integer(edm: str) -> Callable[[str], Any]:
    def make(text: str) -> Any:
        if _INTEGER.fullmatch(text) is None or int(text) not in INT_RANGES[edm]:
            raise Lossy
        return text if edm == INT64 else int(text)

    return make


def _double(text: str) -> Any:
    if text in NOT_FINITE:
        return text
    if _DECIMAL.fullmatch(text) is None:
        raise Lossy
    number = float(text)
    try:
        same = math.isfinite(number) and Decimal(repr(number)) == Decimal(text)
    except InvalidOperation:
        same = False
    if not same:
        raise Lossy
    return number


def _boolean(text: str) -> Any:
    if text.lower() not in ("true", "false"):
        raise Lossy
    return text.lower() == "true"


def _datetime(text: str) -> Any:
    if parse_ticks(text) is None or text < _FIRST_DATETIME:
        raise Lossy
    return text.replace("+00:00", "Z")


def _guid(text: str) -> Any:
    if GUID_TEXT.fullmatch(text) is None:
        raise Lossy
    return text


def _binary(text: str) -> Any:
    try:
        same = base64.b64encode(base64.b64decode(text, validate=True)).decode("ascii") == text
    except (binascii.Error, ValueError):
        same = False
    if not same:
        raise Lossy
    return text


_MAKERS: dict[str, Callable[[str], Any]] = {
    STRING: lambda text: text,
    INT32: _integer(INT32),
    INT64: _integer(INT64),
    DOUBLE: _double,
    BOOLEAN: _boolean,
    DATETIME: _datetime,
    GUID: _guid,
    BINARY: _binary,
}
