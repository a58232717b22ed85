"""Pieces of a text: split for indexes, one part, a group of a regular expression. A row whose text lacks the
piece is refused (`no-match`); a missing piece is never taken as empty."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from rekey.core.plain import members
from rekey.declaration.keys.base import (
    Changed,
    Expression,
    Prop,
    Scope,
    invalid,
    need_int,
    need_text,
    operand,
    refuse_if,
)
from rekey.model import Row

# A compiled `Split`: from a wire row to its items.
ItemsOf: TypeAlias = Callable[[Row], list[str]]


@dataclass(frozen=True)
class Split:
    """The items of an index's `each`. Not an expression: it gives many texts. See `split`."""

    of: Expression
    separator: str

    def __post_init__(self) -> None:
        need_text("keys.split(separator)", self.separator)

    def compile(self, scope: Scope) -> ItemsOf:
        inner, separator = self.of.compile(scope), self.separator

        def items(row: Row) -> list[str]:
            pieces = [piece.strip() for piece in inner(row, "").split(separator)]
            return list(dict.fromkeys(piece for piece in pieces if piece))

        return items

    def as_json(self) -> dict[str, Any]:
        return {"op": "split", **members(self)}

    def describe(self) -> str:
        return f"split({self.of.describe()}, {json.dumps(self.separator, ensure_ascii=False)})"


@dataclass(frozen=True)
class Part(Changed, op="part"):
    """One part of a separated text. See `part`."""

    separator: str
    index: int
    of: Expression

    def __post_init__(self) -> None:
        need_text("keys.part(separator)", self.separator)
        need_int("keys.part(index)", self.index)

    def change(self, scope: Scope) -> Callable[[str], str]:
        separator, index = self.separator, self.index

        def taken(text: str) -> str:
            try:
                return text.split(separator)[index]
            except IndexError:
                problem = f"{self.of.describe()} has no part {index}"
                cure = "name a part that every row has, or fix the rows"
                raise scope.refusal("no-match", problem, cure=cure) from None

        return taken

    def describe(self) -> str:
        return f"part({json.dumps(self.separator, ensure_ascii=False)}, {self.index}, {self.of.describe()})"


@dataclass(frozen=True)
class Regex(Changed, op="regex"):
    """A group of a regular expression. See `regex`."""

    pattern: str
    group: int | str
    of: Expression

    def __post_init__(self) -> None:
        need_text("keys.regex(pattern)", self.pattern)
        try:
            compiled = re.compile(self.pattern)
        except re.error as error:
            raise invalid("keys.regex(pattern)", "no-regex", reason=error.msg, at=error.pos) from error
        if isinstance(self.group, str):
            known = self.group in compiled.groupindex
        else:
            known = 0 <= need_int("keys.regex(group)", self.group) <= compiled.groups
        refuse_if(not known, "keys.regex(group)", "no-group", group=self.group, groups=compiled.groups)

    def change(self, scope: Scope) -> Callable[[str], str]:
        search, group = re.compile(self.pattern).search, self.group

        def found_in(text: str) -> str:
            match = search(text)
            matched = match.group(group) if match is not None else None
            if matched is None:
                problem = f"{self.of.describe()} does not match the pattern"
                cure = "write a pattern that every row matches, or fix the rows"
                raise scope.refusal("no-match", problem, cure=cure)
            return str(matched)

        return found_in

    def describe(self) -> str:
        return f"regex({json.dumps(self.pattern, ensure_ascii=False)}, {self.group}, {self.of.describe()})"


def split(of: Expression | str, separator: str, default: str | None = None) -> Split:
    """Return the items for `Index(each=…)`: the text split at `separator`, stripped, without blanks and
    repetitions, in order of first appearance.

    Args:
        of: a property's name or an expression.
        separator: the text between items.
        default: the text to split for rows that lack the property (only with a property's name). `""` means
            that such a row has no items and no index rows; without it, such a row is refused.
    """
    if default is None:
        return Split(operand("keys.split", of), separator)
    if not isinstance(of, str):
        raise invalid("keys.split(default)", "default-of-expression")
    return Split(Prop(of, default), separator)


def part(separator: str, index: int, of: Expression | str) -> Expression:
    """Return one part of the text split at `separator`, counted from 0, or from the end with -1, -2, …"""
    return Part(separator, index, operand("keys.part", of))


def regex(pattern: str, group: int | str, of: Expression | str) -> Expression:
    """Return a group (number or name; 0 is all) of the first match of a `re` pattern in the text."""
    return Regex(pattern, group, operand("keys.regex", of))
