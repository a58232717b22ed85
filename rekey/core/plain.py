"""Dataclasses as JSON-able data, for reports and plans. Members have the names and the order of the fields,
so the order of fields is part of a format; a field whose JSON differs says so with
`field(metadata=json_field(...))`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def json_field(
    name: str = "",
    *,
    digits: int | None = None,
    omit_default: bool = False,
    key: bool = False,
    flat: bool = False,
    form: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """Return the metadata of a field whose JSON differs from the default.

    Args:
        name: its name in JSON; default: the field's own.
        digits: decimals to round a number to; 0 makes it whole.
        omit_default: omit the member when it is empty, zero or None.
        key: it holds keys of rows: omit it when it is empty, and when keys are not asked for.
        flat: put its members beside those of the value that has the field.
        form: converts a content that is not None.
    """
    options = {"name": name, "digits": digits, "omit_default": omit_default or key, "key": key, "flat": flat}
    return {**options, "form": form}


# The metadata of a field that is never in the JSON.
exclude: dict[str, Any] = {"exclude": True}


def plain(value: Any, *, keys: bool = True) -> Any:
    """Return a value as JSON-able data: dataclasses as objects (by their `as_json` if they have one), tuples
    as lists, enums by their text. `keys=False` omits fields that hold keys of rows."""
    if is_dataclass(value) and not isinstance(value, type):
        return value.as_json() if hasattr(value, "as_json") else members(value, keys=keys)
    if isinstance(value, Mapping):
        return {str(name): plain(member, keys=keys) for name, member in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item, keys=keys) for item in value]
    return str(value) if isinstance(value, Enum) else value


def members(value: Any, *, keys: bool = True) -> dict[str, Any]:
    """Return the fields of a dataclass as a JSON object. Arguments as for `plain`."""
    as_json: dict[str, Any] = {}
    for field in fields(value):
        options, content = field.metadata, getattr(value, field.name)
        if (
            "exclude" in options
            or (options.get("key") and not keys)
            or (options.get("omit_default") and not content)
        ):
            continue
        if options.get("digits") is not None and content is not None:
            content = round(content, options["digits"] or None)
        if options.get("form") is not None and content is not None:
            content = options["form"](content)
        content = plain(content, keys=keys)
        as_json |= content if options.get("flat") else {options.get("name") or field.name: content}
    return as_json
