"""Why a gate is closed, and the operator's setting: code and figures in, one text of `reasons.toml` out."""

from __future__ import annotations

from pathlib import Path

from rekey.core.texts import catalogue, filled

_TEXTS = Path(__file__).with_name("reasons.toml")


def reason(code: str, /, **values: object) -> str:
    """Return a text of `reasons.toml`. `values`: by the names in braces; they hold no key."""
    return filled(catalogue(_TEXTS)[code], values, "text")[0]
