"""EDM types and the canonical text of wire values. Values are compared as (EDM type, canonical text),
never as Python values: in Python `3.0 == 3`, `True == 1` and `NaN != NaN`, and a datetime loses the 100
ns digit."""

from __future__ import annotations

import math
import re
from datetime import datetime, time, timedelta

from rekey.model import TYPE_SUFFIX, Row, property_names

STRING = "Edm.String"
INT32 = "Edm.Int32"
INT64 = "Edm.Int64"
DOUBLE = "Edm.Double"
BOOLEAN = "Edm.Boolean"
DATETIME = "Edm.DateTime"
GUID = "Edm.Guid"
BINARY = "Edm.Binary"
TYPES = frozenset({STRING, INT32, INT64, DOUBLE, BOOLEAN, DATETIME, GUID, BINARY})

INT_RANGES = {INT32: range(-(2**31), 2**31), INT64: range(-(2**63), 2**63)}
GUID_TEXT = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DATETIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:T(\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,7}))?)?)?(?:Z|([+-])(\d\d):(\d\d))?", re.ASCII
)
# Doubles that JSON has no number for; they are sent as annotated text.
NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})


def utc_text(text: str) -> str | None:
    """Return a DateTime in the service's form, `2020-11-16T09:25:03.5Z`; None for undocumented forms.

    Source: "Formatting DateTime values" in the Azure documentation: a date, optionally with hours and
    minutes, seconds, up to 7 fractional digits, and `Z` or an offset of less than a day. Without `Z` and
    offset the service takes it as UTC (Azurite's EdmDateTime says so, and "Insert Entity" shows it).
    """
    match = _DATETIME.fullmatch(text)
    if match is None:
        return None
    date, minutes, seconds, fraction, sign, hours_off, minutes_off = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{minutes or '00:00'}:{seconds or '00'}")
        if sign is not None:
            offset = time.fromisoformat(f"{hours_off}:{minutes_off}")
            difference = timedelta(hours=offset.hour, minutes=offset.minute)
            moment = moment - difference if sign == "+" else moment + difference
    except (ValueError, OverflowError):
        return None
    return f"{moment.isoformat()}{'.' + fraction if fraction else ''}Z"


def edm_type(row: Row, name: str) -> str:
    """Return the EDM type of a property of a wire row: its annotation, else the type of its JSON form
    ("Payload Format for Table Service Operations", Azure documentation). Raises KeyError when the row lacks
    the property."""
    value = row[name]
    annotated = row.get(name + TYPE_SUFFIX)
    if annotated is not None:
        return str(annotated)
    if isinstance(value, str):
        return STRING
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int):
        return INT32
    return DOUBLE


def canonical_text(edm: str, value: object) -> str:
    """Return the canonical text of a wire value, or its own text when it is not of the type `edm`.

    DateTimes get all 7 fractional digits, in UTC: a service may store them as sent (Azurite does).
    """
    if edm == DOUBLE:
        try:
            number = float(value) if isinstance(value, str | int | float) else math.nan
        except (ValueError, OverflowError):
            return str(value)
        if math.isnan(number):
            return "NaN"
        if math.isinf(number):
            return "Infinity" if number > 0 else "-Infinity"
        return repr(number)
    if edm == BOOLEAN:
        if isinstance(value, str):
            return value.lower()
        return "true" if value else "false"
    if edm in (INT32, INT64):
        try:
            return str(int(value)) if isinstance(value, str | int) else str(value)
        except ValueError:
            return str(value)
    text = str(value)
    if edm == DATETIME:
        # The service's own form needs no parsing; this runs for every compared value.
        is_returned = text[-1:] == "Z" and text[19:20] in (".", "Z")
        utc = text if is_returned else utc_text(text)
        if utc is not None:
            head, _, fraction = utc[:-1].partition(".")
            return f"{head}.{fraction.ljust(7, '0')}Z"
    return text


def canonical(row: Row, name: str) -> tuple[str, str]:
    """Return (EDM type, canonical text) of one property. Raises KeyError when the row lacks it."""
    edm = edm_type(row, name)
    return edm, canonical_text(edm, row[name])


def canonical_content(row: Row) -> list[tuple[str, str, str]]:
    """Return (name, EDM type, canonical text) of all custom properties, sorted by name."""
    return [(name, *canonical(row, name)) for name in sorted(property_names(row))]
