"""Rows of the control table as frozen dataclasses: the column of each field, and how it is written. What
version 0.1.0 wrote is read, and written back byte for byte. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from rekey.core import edm
from rekey.model import TYPE_SUFFIX, Row


@dataclass(frozen=True, slots=True)
class ColumnCodec:
    """How values of one kind are written and read, and their EDM type where JSON alone does not show it."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    edm: str = ""


def _as_it_is(value: Any) -> Any:
    return value


PLAIN = ColumnCodec(_as_it_is, _as_it_is)
TEXT = ColumnCodec(str, _as_it_is)
WHOLE = ColumnCodec(_as_it_is, int)
INT64 = ColumnCodec(str, int, edm.INT64)
MOMENT = ColumnCodec(str, _as_it_is, edm.DATETIME)
MAPPING = ColumnCodec(lambda value: json.dumps(dict(value), sort_keys=True), json.loads)
# Written in whole milliseconds, rounded up: too long is safe.
SECONDS = ColumnCodec(lambda value: math.ceil(value * 1000), lambda value: int(value) / 1000)


def column(name: str, codec: ColumnCodec = PLAIN, *, may_be_absent: bool = False) -> dict[str, Any]:
    """Return the dataclass metadata of a field that is stored. `may_be_absent`: another version, or an
    earlier phase, has no such column; the field has a default, and is not written where it is None or ""."""
    return {"column": name, "kind": codec, "may_be_absent": may_be_absent}


def written(value: Any) -> Row:
    """Return the columns of a dataclass instance, with their type annotations."""
    row: Row = {}
    of: type = type(value)
    for field, metadata in _columns(of):
        content = getattr(value, field)
        if metadata["may_be_absent"] and content in (None, ""):
            continue
        name, codec = metadata["column"], metadata["kind"]
        row[name] = codec.write(content)
        if codec.edm:
            row[name + TYPE_SUFFIX] = codec.edm
    return row


def read(of: type, row: Row) -> dict[str, Any]:
    """Return the fields of the dataclass `of` that a row holds, by name. Raises KeyError, ValueError,
    TypeError, AttributeError for an absent or invalid column."""
    return {
        name: metadata["kind"].read(row[metadata["column"]])
        for name, metadata in _columns(of)
        if metadata["column"] in row or not metadata["may_be_absent"]
    }


@cache
def _columns(of: type) -> list[tuple[str, Mapping[str, Any]]]:
    return [(field.name, field.metadata) for field in fields(of) if "column" in field.metadata]
