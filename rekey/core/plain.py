"""Frozen values as JSON-able data: one function for all dataclasses that a report or a plan consists of.

Rules kept here:

* Members come in the order of the fields, under their names: the order of fields is a format.
* A field that differs from that says so: `field(metadata=told(...))`. A value whose JSON has another form
  altogether has a method `as_json`.
"""

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
    """Return the metadata of a field whose form in JSON is not the default.

    Args:
        name: its name in JSON; the field's own by default.
        digits: decimals that a number is rounded to; 0 makes it whole.
        if_any: leave it out when it is empty, zero or None.
        key: it holds keys of rows: leave it out when it is empty, and when keys are not asked for.
        flat: its members stand among those of the value that has the field.
        form: returns what stands for a content that is not None.
    """
    said = {"name": name, "digits": digits, "if_any": if_any or key, "key": key, "flat": flat}
    return {**said, "form": form}


# The metadata of a field that is left out.
UNTOLD: dict[str, Any] = {"untold": True}


def plain(value: Any, *, keys: bool = True) -> Any:
    """Return a value as JSON-able data: dataclasses as objects, tuples as lists, enums by their text.

    Args:
        value: the value.
        keys: False leaves out fields that hold keys of rows.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return value.as_json() if hasattr(value, "as_json") else members(value, keys=keys)
    if isinstance(value, Mapping):
        return {str(name): plain(one, keys=keys) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one, keys=keys) for one in value]
    return str(value) if isinstance(value, Enum) else value


def members(value: Any, *, keys: bool = True) -> dict[str, Any]:
    """Return the fields of a dataclass as a JSON object. Arguments as of `plain`."""
    found: dict[str, Any] = {}
    for one in fields(value):
        said, content = one.metadata, getattr(value, one.name)
        if "untold" in said or (said.get("key") and not keys) or (said.get("if_any") and not content):
            continue
        if said.get("digits") is not None and content is not None:
            content = round(content, said["digits"] or None)
        if said.get("form") is not None and content is not None:
            content = said["form"](content)
        content = plain(content, keys=keys)
        found |= content if said.get("flat") else {said.get("name") or one.name: content}
    return found
