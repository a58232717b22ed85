"""Catalogues of texts, and other tables: TOML files of the package that hold what is told about each code.

Rules kept here:

* A code whose texts are missing is a fault of the program: the catalogue raises KeyError.
* White space in a text counts as one space, so that files may break lines anywhere.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

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
