"""Catalogues of texts, and other tables: TOML files of the package that hold what is told about each code.

Rules kept here:

* A code whose texts are missing is a fault of the program: the catalogue raises KeyError.
* White space in a text counts as one space, so that files may break lines anywhere.
* The texts of errors are read when the first error is made: a command that succeeds does not wait for them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from rekey import errors

# The texts by code, and of each code by the name of the part.
Catalogue: TypeAlias = Mapping[str, Mapping[str, str]]


def table(path: Path) -> dict[str, Any]:
    """Read a file of the package."""
    return tomllib.loads(path.read_text("utf-8"))


def catalogue(path: Path) -> Catalogue:
    """Read the texts of a file of the package."""
    return {
        code: {part: " ".join(text.split()) for part, text in texts.items()}
        for code, texts in table(path).items()
    }


def filled(texts: Mapping[str, str], values: Mapping[str, object], *parts: str) -> list[str]:
    """Return the parts of a code's texts, with values for the names in braces.

    Args:
        texts: the texts of one code; a part that is not in them is "".
        values: by name; a value that has the name of a part replaces that whole text.
        parts: which parts, in the order in which they are returned.
    """
    return [str(values[part]) if part in values else texts.get(part, "").format_map(values) for part in parts]


class Errors(Protocol):
    """Makes the errors of a catalogue."""

    def __call__(self, code: str, **values: object) -> errors.RekeyError:
        """Return (not raise) an error.

        Args:
            code: its entry: the class in `rekey.errors` (`error`), and the texts `what`, `kept` and `hint`.
            values: by the names in the texts. They hold no old key and no secret. One that has the name of a
                part (`hint=`) replaces that whole text.
        """


def errors_of(path: Path) -> Errors:
    """Return the function that makes the errors whose texts are in a file of the package."""
    texts = cache(lambda: catalogue(path))

    def made(code: str, **values: object) -> errors.RekeyError:
        entry = texts()[code]
        parts = [part for part in ("what", "kept", "hint") if part in entry or part in values]
        said = dict(zip(parts, filled(entry, values, *parts), strict=True))
        kind: type[errors.RekeyError] = getattr(errors, entry["error"])
        return kind(**said)

    return made
