"""Key expressions: pure, deterministic, declared functions from a row to the text of a key.

A string as an operand is the name of a property: `keys.lower("Email")` is `keys.lower(keys.prop("Email"))`.
Constant text is always `keys.literal("…")`. Expressions compose with `+` and `keys.join`.
"""

from __future__ import annotations

from rekey.declaration.keys.base import Expression, InvalidDeclaration, item, join, keep, literal, prop
from rekey.declaration.keys.escape import custom
from rekey.declaration.keys.hashes import bucket, hashed, opaque
from rekey.declaration.keys.moments import date, inverted_seconds, inverted_ticks, ticks
from rekey.declaration.keys.pieces import Split, part, regex, split
from rekey.declaration.keys.text import lower, normalize, slug, strip, upper, zero_pad

__all__ = [
    "Expression",
    "InvalidDeclaration",
    "Split",
    "bucket",
    "custom",
    "date",
    "hashed",
    "inverted_seconds",
    "inverted_ticks",
    "item",
    "join",
    "keep",
    "literal",
    "lower",
    "normalize",
    "opaque",
    "part",
    "prop",
    "regex",
    "slug",
    "split",
    "strip",
    "ticks",
    "upper",
    "zero_pad",
]
