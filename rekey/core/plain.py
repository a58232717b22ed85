"""Dataclasses as JSON-able data, for reports and plans. Members have the names and the order of the fields,
so the order of fields is part of a format; a field whose JSON differs says so with
`field(metadata=told(...))`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def told(
    name: str = "",
    *,
    digits: int | None = None,
    if_any: bool = False,
    key: bool = False,
    flat: bool = False,
    form: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """Return the metadata of a field whose JSON differs from the default.

    Args:
        name: its name in JSON; default: the field's own.
        digits: decimals to round a number to; 0 makes it whole.
        if_any: omit the member when it is empty, zero or None.
        key: it holds keys of rows: omit it when it is empty, and when keys are not asked for.
        flat: put its members beside those of the value that has the field.
        form: converts a content that is not None.
    """
    said = {"name": name, "digits": digits, "if_any": if_any or key, "key": key, "flat": flat}
    return {**said, "form": form}


# The metadata of a field that is never in the JSON.
UNTOLD: dict[str, Any] = {"untold": True}


def plain(value: Any, *, keys: bool = True) -> Any:
    """Return a value as JSON-able data: dataclasses as objects (by their `as_json` if they have one), tuples
    as lists, enums by their text. `keys=False` omits fields that hold keys of rows."""
    if is_dataclass(value) and not isinstance(value, type):
        return value.as_json() if hasattr(value, "as_json") else members(value, keys=keys)
    if isinstance(value, Mapping):
        return {str(name): plain(one, keys=keys) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one, keys=keys) for one in value]
    return str(value) if isinstance(value, Enum) else value


def members(value: Any, *, keys: bool = True) -> dict[str, Any]:
    """Return the fields of a dataclass as a JSON object. Arguments as for `plain`."""
    found: dict[str, Any] = {}
    for field in fields(value):
        said, content = field.metadata, getattr(value, field.name)
        if "untold" in said or (said.get("key") and not keys) or (said.get("if_any") and not content):
            continue
        if said.get("digits") is not None and content is not None:
            content = round(content, said["digits"] or None)
        if said.get("form") is not None and content is not None:
            content = said["form"](content)
        content = plain(content, keys=keys)
        found |= content if said.get("flat") else {said.get("name") or field.name: content}
    return found
