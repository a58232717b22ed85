"""Putting texts together.

Rules kept here:

* `join` and `+` are plain concatenation: whether two rows can give one text is the author's to think of, and
  `plan --exact` shows it; `keys.opaque` and `keys.hashed` over several parts frame them with lengths instead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from rekey.declaration.keys.base import (
    Evaluator,
    Expression,
    InvalidDeclaration,
    Scope,
    need_expression,
    need_text,
)


@dataclass(frozen=True)
class Join(Expression):
    """Texts with a separator between them. See `join`."""

    separator: str
    parts: tuple[Expression, ...]
    op: ClassVar[str] = "join"

    def __post_init__(self) -> None:
        need_text("keys.join(separator)", self.separator, empty=True)
        if not self.parts:
            raise InvalidDeclaration(
                "keys.join", "there is nothing to join", cure="name the expressions to join"
            )
        for part in self.parts:
            need_expression("keys.join", part)

    def compile(self, scope: Scope) -> Evaluator:
        """Return the closure."""
        return _joined(self.separator, [part.compile(scope) for part in self.parts])

    def describe(self) -> str:
        """Return `join("_", A, B)`."""
        inner = ", ".join(part.describe() for part in self.parts)
        return f"join({json.dumps(self.separator, ensure_ascii=False)}, {inner})"


@dataclass(frozen=True)
class Concat(Expression):
    """Texts one after the other: what `+` makes."""

    parts: tuple[Expression, ...]
    op: ClassVar[str] = "concat"

    def compile(self, scope: Scope) -> Evaluator:
        """Return the closure."""
        return _joined("", [part.compile(scope) for part in self.parts])

    def describe(self) -> str:
        """Return `A + B`."""
        return " + ".join(part.describe() for part in self.parts)


def _joined(separator: str, parts: list[Evaluator]) -> Evaluator:
    if len(parts) == 2:
        first, second = parts
        return lambda row, item: first(row, item) + separator + second(row, item)
    return lambda row, item: separator.join([part(row, item) for part in parts])


def join(separator: str, *parts: Expression) -> Expression:
    """Return the parts with `separator` between them."""
    return Join(separator, tuple(parts))
