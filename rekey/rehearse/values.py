"""Turning what data files hold into wire values; what had to be guessed is noted.

Rules kept here:

* A type that is said is kept. What has none gets the type its JSON form has on the wire; a whole number that
  does not fit Int32 becomes Int64.
* The Azure CLI prints DateTime as an ISO text without its type and cut to microseconds, Guid and Binary as
  plain text. Only the first can be told from a string, by its form; it is taken for a DateTime.
* Values are never part of a `BadRow`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from rekey.core.edm import DATETIME, DOUBLE, INT64, STRING, TYPES
from rekey.declaration.casts import ANNOTATED, Lossy, wire_value
from rekey.model import ETAG, PARTITION_KEY, ROW_KEY, TIMESTAMP, TYPE_SUFFIX, Row

_INT32 = range(-(2**31), 2**31)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,7})?(Z|\+00:00)", re.ASCII)
_CLI_SERVER = frozenset({"etag", TIMESTAMP, ETAG})


class Note(IntEnum):
    """What was assumed, in the order in which it is told."""

    DATETIME_BY_FORM = 1
    PLAIN_TEXT = 2
    INT64_BY_SIZE = 3
    NO_TYPE_IN_HEADER = 4
    EMPTY_CELL = 5
    NULL = 6
    SERVER_OWNED = 7
    MORE_PAGES = 8


NOTES = {
    Note.DATETIME_BY_FORM: (
        "text of the form 2024-01-31T12:00:00.123456+00:00 was taken for a DateTime; the Azure CLI cuts"
        " DateTimes to microseconds, so the last digit of 100 ns is lost"
    ),
    Note.PLAIN_TEXT: (
        "other text was taken for Edm.String; the Azure CLI prints Guid and Binary as plain text too"
    ),
    Note.INT64_BY_SIZE: "a whole number without a type that does not fit Int32 was taken for Int64",
    Note.NO_TYPE_IN_HEADER: "a CSV column without a type was taken for Edm.String",
    Note.EMPTY_CELL: "an empty CSV cell was taken for a property that the row lacks",
    Note.NULL: "null was taken for a property that the row lacks",
    Note.SERVER_OWNED: "Timestamp and etag are the server's own and were left out",
    Note.MORE_PAGES: "nextMarker is set: the file holds a part of the table only",
}

Noting = Callable[[Note], None]


class BadRow(ValueError):
    """A row of a data file cannot be understood. Holds names of properties, no values."""

    def __init__(self, problem: str, cure: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.cure = cure


def from_azure_cli(item: object, note: Noting) -> Row:
    """Return an item of `az storage entity query -o json` as a wire row. Raises BadRow."""
    source = _object(item)
    row: Row = {}
    for name, value in source.items():
        if name in _CLI_SERVER:
            note(Note.SERVER_OWNED)
        elif name in (PARTITION_KEY, ROW_KEY):
            row[name] = value
        elif isinstance(value, str):
            guessed = DATETIME if _MOMENT.fullmatch(value) else STRING
            note(Note.DATETIME_BY_FORM if guessed == DATETIME else Note.PLAIN_TEXT)
            _put(row, name, guessed, value)
        else:
            _put_json(row, name, value, note)
    return _keyed(row)


def from_json_line(item: object, note: Noting) -> Row:
    """Return a wire row, or a plain object, as a wire row. Raises BadRow."""
    source = _object(item)
    row: Row = {}
    for name, value in source.items():
        if name in (TIMESTAMP, TIMESTAMP + TYPE_SUFFIX) or name.startswith("odata."):
            note(Note.SERVER_OWNED)
        elif name.endswith(TYPE_SUFFIX):
            continue
        elif name in (PARTITION_KEY, ROW_KEY):
            row[name] = value
        elif value is not None and (said := source.get(name + TYPE_SUFFIX)) is not None:
            _put(row, name, type_named(str(said)), _said_text(value))
        elif isinstance(value, str):
            row[name] = value
        else:
            _put_json(row, name, value, note)
    return _keyed(row)


def put_text(row: Row, name: str, edm: str, text: str) -> None:
    """Set a property from text of a known type. Raises BadRow."""
    _put(row, name, edm, text)


def type_named(name: str) -> str:
    """Return the EDM type of a name, `Edm.Int32` or `int32`. Raises BadRow."""
    wanted = name.strip().lower().removeprefix("edm.")
    for edm in TYPES:
        if edm.removeprefix("Edm.").lower() == wanted:
            return edm
    raise BadRow("a type is none of the service's own", f"use one of {', '.join(sorted(TYPES))}")


def _put(row: Row, name: str, edm: str, text: str) -> None:
    try:
        value = wire_value(edm, text)
    except Lossy:
        raise BadRow(f"{name} holds no {edm}", "mend the value, or give the property another type") from None
    row[name] = value
    if edm in ANNOTATED:
        row[name + TYPE_SUFFIX] = edm


def _put_json(row: Row, name: str, value: object, note: Noting) -> None:
    """Set a property from a JSON value that is not text."""
    if value is None:
        note(Note.NULL)
    elif isinstance(value, bool):
        row[name] = value
    elif isinstance(value, int):
        if value in _INT32:
            row[name] = value
        else:
            note(Note.INT64_BY_SIZE)
            _put(row, name, INT64, str(value))
    elif isinstance(value, float):
        _put(row, name, DOUBLE, _double_text(value))
    elif isinstance(value, dict) and {"edm_type", "value"} >= value.keys() and "value" in value:
        _put(row, name, type_named(str(value.get("edm_type", ""))), _said_text(value["value"]))
    else:
        raise BadRow(f"{name} is a list or an object", "a property holds one value")


def _said_text(value: object) -> str:
    """Return the text of a JSON value whose type is said beside it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double_text(value)
    return str(value)


def _double_text(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return repr(number)


def _object(item: object) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise BadRow("this is not an object", "a row is a JSON object with PartitionKey and RowKey")
    return item


def _keyed(row: Row) -> Row:
    for key in (PARTITION_KEY, ROW_KEY):
        if not isinstance(row.get(key), str):
            raise BadRow(f"{key} is missing or not text", f"every row needs {PARTITION_KEY} and {ROW_KEY}")
    return row
