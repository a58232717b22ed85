"""Why a gate is closed, and the operator's setting: code and figures in, one text of `reasons.toml` out."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rekey.core.texts import Catalogue, catalogue, filled


@cache
def _texts() -> Catalogue:
    return catalogue(Path(__file__).with_name("reasons.toml"))


def reason(code: str, /, **values: object) -> str:
    """Return a text of `reasons.toml`. `values`: by the names in braces; they hold no key."""
    return filled(_texts()[code], values, "text")[0]
