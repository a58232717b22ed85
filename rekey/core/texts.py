"""Catalogues of texts: TOML files of the package that hold the wording for each code."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypeAlias

from rekey import errors
from rekey.core.joint import JointName, spoken

# The texts of each code, by the name of the part.
Catalogue: TypeAlias = Mapping[str, Mapping[str, str]]


def table(path: Path) -> dict[str, Any]:
    """Read a TOML file of the package."""
    return tomllib.loads(path.read_text("utf-8"))


@cache
def catalogue(path: Path) -> Catalogue:
    """Return a catalogue of the package; its file is read once."""
    return {
        # Files may break lines anywhere.
        code: {part: " ".join(text.split()) for part, text in texts.items()}
        for code, texts in table(path).items()
    }


def filled(texts: Mapping[str, str], values: Mapping[str, object], *parts: str) -> list[str]:
    """Return parts of a code's texts with values filled in.

    Args:
        texts: the texts of one code; a part that is missing is "".
        values: by the names in braces; a value named like a part replaces that whole text.
        parts: the parts to return, in this order.
    """
    values = {name: _for_people(value) for name, value in values.items()}
    return [str(values[part]) if part in values else texts.get(part, "").format_map(values) for part in parts]


def _for_people(value: object) -> object:
    """Return a value of a text with the name of a joint table as people read it."""
    if isinstance(value, JointName):
        return spoken(value)
    name = getattr(value, "name", None)
    return SimpleNamespace(name=spoken(name)) if isinstance(name, JointName) else value


class Errors(Protocol):
    """Makes the errors of a catalogue."""

    def __call__(self, code: str, **values: object) -> errors.RekeyError:
        """Return (do not raise) an error.

        Args:
            code: its entry: the class in `rekey.errors` (`error`), and the texts `what`, `kept` and `hint`.
            values: by the names in the texts; they hold no legacy key and no secret. A value named like a
                part (`hint=`) replaces that whole text.

        Raises:
            KeyError: the catalogue has no such code: a bug in rekey.
        """


def errors_of(path: Path) -> Errors:
    """Return the function that makes the errors of a catalogue file."""

    def error(code: str, **values: object) -> errors.RekeyError:
        # Read on the first error, so that a command that succeeds does not pay for it.
        entry = catalogue(path)[code]
        parts = [part for part in ("what", "kept", "hint") if part in entry or part in values]
        message = dict(zip(parts, filled(entry, values, *parts), strict=True))
        error_class: type[errors.RekeyError] = getattr(errors, entry["error"])
        return error_class(**message)

    return error
