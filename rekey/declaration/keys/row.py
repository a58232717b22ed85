"""Where text comes from: a property of the row, a constant, the item of an index.

Rules kept here:

* `prop` yields the canonical text (`rekey.core.edm`) of a property whatever its EDM type: an Int64 its
  digits, a DateTime its ISO text with all 7 fractional digits, a Double its shortest text, a Boolean `true` or `false`.
* A missing property is refused; nothing is defaulted that the declaration does not default.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from rekey.core.edm import canonical_text, edm_type
from rekey.declaration.keys.base import Evaluator, Expression, InvalidDeclaration, Scope, need_text
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, TYPE_SUFFIX, Row


@dataclass(frozen=True)
class Prop(Expression):
    """The canonical text of a property. See `prop`."""

    name: str
    default: str | None = None
    op: ClassVar[str] = "prop"

    def __post_init__(self) -> None:
        need_text("keys.prop(name)", self.name)
        if "@" in self.name or self.name.startswith("odata."):
            raise InvalidDeclaration(
                "keys.prop(name)", "annotations and metadata are not properties", cure="name a property"
            )
        if self.default is not None:
            need_text("keys.prop(default)", self.default, empty=True)
            if self.name in (PARTITION_KEY, ROW_KEY):
                raise InvalidDeclaration(
                    "keys.prop(default)", f"{self.name} is never missing", cure="leave default= out"
                )

    def compile(self, scope: Scope) -> Evaluator:
        """Return the closure; keys are read without further checks because every row has them."""
        name, default, annotation = self.name, self.default, self.name + TYPE_SUFFIX
        if name in (PARTITION_KEY, ROW_KEY):
            return lambda row, _: row[name]
        if name == TIMESTAMP:
            cure = "read the row from the table first: only the service sets Timestamp"
        else:
            cure = (
                f'say what to use where it is missing, keys.prop("{name}", default="…"), or mend the rows'
                ' (an index with each= may say default="" to give such rows no index row)'
            )

        def evaluate(row: Row, _: str) -> str:
            value = row.get(name)
            if value is None:
                if default is None:
                    raise scope.refusal("missing-property", f"the row has no property {name}", cure=cure)
                return default
            if type(value) is str and annotation not in row and name != TIMESTAMP:
                return value
            return property_text(row, name, value)

        return evaluate

    def inputs(self) -> frozenset[str]:
        """Return the property's name."""
        return frozenset({self.name})

    def describe(self) -> str:
        """Return the property's name, with its default if there is one."""
        return self.name if self.default is None else f"{self.name} or {json.dumps(self.default)}"


def property_text(row: Row, name: str, value: Any) -> str:
    """Return the canonical text of a property that is there; `Timestamp` is a DateTime without annotation."""
    edm = "Edm.DateTime" if name == TIMESTAMP else edm_type(row, name)
    return canonical_text(edm, value)


@dataclass(frozen=True)
class Literal(Expression):
    """Constant text. See `literal`."""

    text: str
    op: ClassVar[str] = "literal"

    def __post_init__(self) -> None:
        need_text("keys.literal(text)", self.text, empty=True)

    def compile(self, scope: Scope) -> Evaluator:  # noqa: ARG002 - it needs nothing
        """Return a closure that ignores the row."""
        text = self.text
        return lambda *_: text

    def describe(self) -> str:
        """Return the text in quotes."""
        return json.dumps(self.text, ensure_ascii=False)


@dataclass(frozen=True)
class Item(Expression):
    """The item of the index's `each`. See `item`."""

    op: ClassVar[str] = "item"

    def compile(self, scope: Scope) -> Evaluator:  # noqa: ARG002 - it needs nothing
        """Return a closure that hands the item through."""
        return lambda _, item: item

    def describe(self) -> str:
        """Return `item`."""
        return "item"


def prop(name: str, default: str | None = None) -> Expression:
    """Return the canonical text of the property `name`, `PartitionKey`, `RowKey` or `Timestamp`.

    Args:
        name: the property's name, as it is in the source.
        default: text to use where a row lacks the property; without it such a row is refused
            (`missing-property`). A property that is there but empty is not missing.
    """
    return Prop(name, default)


def literal(text: str) -> Expression:
    """Return constant text. As a whole key, `literal("")` says that the key is meant to be empty."""
    return Literal(text)


def item() -> Expression:
    """Return the item an index row is made for: one piece of the index's `each=keys.split(…)`."""
    return Item()
