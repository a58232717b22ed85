"""The structure of key expressions: parts, moments, random parts. Pure."""

from __future__ import annotations

from rekey.declaration.keys.base import WHOLE_ROW, Concat, Expression, Item, Join, Literal, Prop, Scope
from rekey.declaration.keys.hashes import Bucket, Hashed, Opaque
from rekey.declaration.keys.moments import Date, InvertedSeconds, InvertedTicks, Ticks
from rekey.declaration.keys.pieces import Part, Regex, Split
from rekey.declaration.keys.text import Lower, Normalize, Slug, Strip, Upper, ZeroPad
from rekey.declaration.migration import Migration, required_secrets
from rekey.declaration.targets import Index, Target

RISING = (Date, Ticks)
FALLING = (InvertedTicks, InvertedSeconds)
MOMENTS = (*RISING, *FALLING)
# Parts that keep no order that could be asked for.
SCRAMBLED = (Opaque, Hashed, Bucket)
FOLDING = (Lower, Upper, Strip, Normalize, Slug, Part, Regex, Date)


def counting_scope(field: str, migration: Migration) -> Scope:
    """Return a scope that compiles expressions only for counting, with made-up secrets."""
    return Scope(field, dict.fromkeys(required_secrets(migration), b"made up for counting only"))


def parts_of(expression: Expression) -> tuple[Expression, ...]:
    """Return the parts of a key (of `join` and `+`) from left to right, without constants."""
    if isinstance(expression, Join | Concat):
        return tuple(inner for part in expression.parts for inner in parts_of(part))
    return () if isinstance(expression, Literal) else (expression,)


def inputs_of(expression: Expression, of: Target | Index | None) -> frozenset[str]:
    """Return the properties that a key is made of, with those of `each` where the key uses the item."""
    inputs = expression.inputs()
    each: Split | None = of.each if isinstance(of, Index) else None
    if each is not None and expression.contains(Item):
        inputs |= each.of.inputs()
    return inputs


def is_known(expression: Expression, of: Target | Index | None, known: frozenset[str]) -> bool:
    """Tell whether a key can be computed from the properties `known` alone."""
    inputs = inputs_of(expression, of)
    return WHOLE_ROW not in inputs and inputs <= known


def sorts_as(part: Expression, by: str | None) -> bool:
    """Tell whether a part sorts as property `by` does, rising or falling; None: whether it is a moment."""
    if by is None:
        return isinstance(part, MOMENTS)
    return part == Prop(by) or (isinstance(part, (*MOMENTS, ZeroPad)) and part.of == Prop(by))


def folds(expression: Expression) -> bool:
    """Tell whether an expression can turn different texts into one."""
    return expression.contains(*FOLDING)
