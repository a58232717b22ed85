"""Key expressions: pure, deterministic, declared functions from a row to the text of a key.

Where an operand is asked for, a string is the name of a property: `keys.lower("Email")` is
`keys.lower(keys.prop("Email"))`. Constant text is always `keys.literal("…")`. Expressions compose with `+`
and `keys.join`. One file per family: `row`, `combine`, `text`, `pieces`, `moments`, `hashes`, `keyed`,
`escape`.
"""

from __future__ import annotations

from rekey.keys.base import Expression, InvalidDeclaration
from rekey.keys.combine import join
from rekey.keys.escape import custom
from rekey.keys.hashes import bucket, hashed
from rekey.keys.keyed import opaque
from rekey.keys.moments import date, inverted_seconds, inverted_ticks, ticks
from rekey.keys.pieces import Split, part, regex, split
from rekey.keys.row import item, literal, prop
from rekey.keys.text import lower, normalize, slug, strip, upper, zero_pad

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
