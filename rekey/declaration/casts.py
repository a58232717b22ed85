"""Casts of wire values between EDM types. A cast works on text, never through a type that could lose digits,
and refuses whatever would change the value. Pure."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from itertools import permutations
from typing import Any

from rekey.core import edm
from rekey.core.limits import MAX_VALUE_BYTES, value_bytes
from rekey.declaration.keys.moments import parse_ticks

# Types that rekey annotates when it makes a value: their JSON form alone does not tell the type (the Double
# 3.0 would become Int32).
ANNOTATED = frozenset({edm.INT64, edm.DOUBLE, edm.DATETIME, edm.GUID, edm.BINARY})

_INTEGER = re.compile("0|-?[1-9][0-9]{0,18}")
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")
_BOOLEANS_AND_NUMBERS = {"true": "1", "false": "0", "1": "true", "0": "false"}
_FIRST_DATETIME = "1601-01-01"

# The supported casts, as pairs of EDM types: from, to. Binary and String convert as base64 text, the form of
# Binary on the wire.
PAIRS: frozenset[tuple[str, str]] = frozenset(
    {(edm.STRING, other) for other in edm.TYPES - {edm.STRING}}
    | {(other, edm.STRING) for other in edm.TYPES - {edm.STRING}}
    | {*permutations((edm.INT32, edm.INT64, edm.DOUBLE), 2)}
    | {(edm.BOOLEAN, edm.INT32), (edm.BOOLEAN, edm.INT64), (edm.INT32, edm.BOOLEAN), (edm.INT64, edm.BOOLEAN)}
)


def casts_from(was: str) -> list[str]:
    """Return the EDM types that a value of type `was` can be cast to, in order."""
    return sorted(to for before, to in PAIRS if before == was)


class Lossy(ValueError):
    """The value cannot be converted to the other type without loss. The error does not hold the value."""


def is_text_of(kind: str, text: str) -> bool:
    """Tell whether some value of an EDM type has this text."""
    return _IS[kind](text)


def wire_value(kind: str, text: str) -> Any:
    """Return the wire JSON value of an EDM type from its text. Raises Lossy when no value has that text."""
    if not is_text_of(kind, text):
        raise Lossy
    return _FROM_TEXT.get(kind, str)(text)


def cast_value(value: object, was: str, to: str) -> Any:
    """Return a wire value of type `was` as a wire value of type `to`.

    A different spelling of the same value is no loss: `1.50` is the Double 1.5, `True` the Boolean true, a
    DateTime with fewer fractional digits the same moment. Casting it back gives the canonical spelling.

    Raises:
        Lossy: there is no such cast; the value would change (Int64 to Double beyond 2^53 unless exact, `007`
            to a number, -0.0 to an integer); or the result exceeds 64 KiB.
    """
    if was == to:
        return value
    if (was, to) not in PAIRS:
        raise Lossy
    text = edm.canonical_text(was, value)
    if edm.BOOLEAN in (was, to) and edm.STRING not in (was, to):
        text = _BOOLEANS_AND_NUMBERS.get(text, "")  # "" is not valid text of a Boolean or a number
    elif was == edm.DOUBLE and to in edm.INT_RANGES:
        number = float(text)
        if not number.is_integer() or (number == 0 and text.startswith("-")):
            raise Lossy
        text = str(int(number))
    elif was in edm.INT_RANGES and to == edm.DOUBLE:
        if int(float(text)) != int(text):
            raise Lossy
        text = repr(float(text))
    converted = wire_value(to, text)
    if value_bytes(to, converted) > MAX_VALUE_BYTES:
        raise Lossy
    return converted


def _is_integer(kind: str) -> Callable[[str], bool]:
    return lambda text: _INTEGER.fullmatch(text) is not None and int(text) in edm.INT_RANGES[kind]


def _is_double(text: str) -> bool:
    """Tell whether a text is a Double, or a decimal that a Double represents exactly."""
    if text in edm.NOT_FINITE:
        return True
    if _DECIMAL.fullmatch(text) is None or not math.isfinite(float(text)):
        return False
    try:
        return Decimal(repr(float(text))) == Decimal(text)
    except InvalidOperation:
        return False


def _is_binary(text: str) -> bool:
    try:
        return base64.b64encode(base64.b64decode(text, validate=True)).decode("ascii") == text
    except (binascii.Error, ValueError):
        return False


_IS: dict[str, Callable[[str], bool]] = {
    edm.STRING: lambda _text: True,
    edm.INT32: _is_integer(edm.INT32),
    edm.INT64: _is_integer(edm.INT64),
    edm.DOUBLE: _is_double,
    edm.BOOLEAN: lambda text: text.lower() in ("true", "false"),
    edm.DATETIME: lambda text: parse_ticks(text) is not None and text >= _FIRST_DATETIME,
    edm.GUID: lambda text: edm.GUID_TEXT.fullmatch(text) is not None,
    edm.BINARY: _is_binary,
}
# From text to wire value, for types whose wire value is not this text.
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    edm.INT32: int,
    edm.DOUBLE: lambda text: text if text in edm.NOT_FINITE else float(text),
    edm.BOOLEAN: lambda text: text.lower() == "true",
    edm.DATETIME: lambda text: text.replace("+00:00", "Z"),
}
