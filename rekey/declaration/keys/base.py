"""The base of all key expressions, and the basic ones: properties, constants, items, concatenation."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

from rekey.core.edm import DATETIME, canonical_text, edm_type
from rekey.core.plain import members
from rekey.core.texts import catalogue, filled
from rekey.errors import RowRefused, SecretMissing
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, TYPE_SUFFIX, Row

T = TypeVar("T")
# A compiled expression: (wire row, item of the index's `each` or "") to text. It runs for every row, so
# whatever can be decided before the first row (types, secrets, patterns) is decided when it is compiled.
Evaluator: TypeAlias = Callable[[Row, str], str]
# The same for many rows, without an item.
PageEvaluator: TypeAlias = Callable[[Sequence[Row]], list[str]]

# In `inputs`: the expression may read any property.
WHOLE_ROW = "*"

MIN_SECRET_BYTES = 16


class InvalidDeclaration(ValueError):
    """A declaration contradicts itself or cannot work; raised while it is built.

    A `Migration` is built before its script's name is known; `rekey.declaration.scripts` raises it again as
    `DeclarationError` with that name.

    Attributes:
        field: where, e.g. `target.row_key` or `keys.bucket(count)`.
        problem: what is wrong with it.
        cure: the edit that fixes it.
        fault: text of the exception that the script raised, "" when it raised none.
    """

    def __init__(self, field: str, problem: str, *, cure: str, fault: str = "") -> None:
        super().__init__(f"{field}: {problem}; {cure}")
        self.fault = fault
        self.field = field
        self.problem = problem
        self.cure = cure


@dataclass(frozen=True)
class Scope:
    """The context in which an expression compiles.

    Attributes:
        field: where in the declaration, e.g. `target.row_key`; errors name it.
        secrets: secret bytes by name.
        inverts: whether results are read back (`mapping="none"`): text that would be read back as another one
            is refused.
    """

    field: str
    secrets: Mapping[str, bytes]
    inverts: bool = False

    def refusal(self, code: str, problem: str, *, cure: str) -> RowRefused:
        """Return (do not raise) the error for one row at this place of the declaration."""
        return RowRefused(code, self.field, problem, cure=cure)

    def secret(self, name: str) -> bytes:
        """Return a secret. Raises SecretMissing when it is absent or shorter than 16 bytes."""
        secret = self.secrets.get(name, b"")
        if len(secret) < MIN_SECRET_BYTES:
            state = f"shorter than {MIN_SECRET_BYTES} bytes" if secret else "not configured or empty"
            raise SecretMissing(
                f"the secret {name!r} that {self.field} needs is {state}",
                hint=f"say where it comes from under [secrets.{name}] in rekey.toml: env, file or key_vault",
            )
        return secret


@dataclass(frozen=True)
class Expression(ABC):
    """A pure, deterministic, declared function from a row to the text of a key.

    Compose with `+` or `keys.join`. Make one with the functions of `rekey.declaration.keys`. An expression is
    a value: equal expressions have equal canonical JSON on every machine. Evaluation raises RowRefused for a
    row that it cannot map; no error holds a value of the row.
    """

    # Its name in canonical data: `class Lower(Changed, op="lower")`.
    op: ClassVar[str]
    # Every result is one or more of these characters; "" where they are not known.
    alphabet: ClassVar[str] = ""

    def __init_subclass__(cls, op: str = "") -> None:
        cls.op = op

    @abstractmethod
    def compile(self, scope: Scope) -> Evaluator:
        """Return the function that evaluates this expression."""

    def compile_page(self, scope: Scope) -> PageEvaluator:
        """Return the function that evaluates this expression for many rows."""
        evaluate = self.compile(scope)
        return lambda rows: [evaluate(row, "") for row in rows]

    def describe(self) -> str:
        """Return a short form for people, e.g. `date(yyyy-MM, Created)`; it holds no row's value.

        By default the operation with its fields up to the first expression, or the operation alone.
        """
        arguments: list[str] = []
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if isinstance(value, Expression):
                return f"{self.op}({', '.join([*arguments, value.describe()])})"
            arguments.append(str(value))
        return self.op

    def as_json(self) -> dict[str, Any]:
        return {"op": self.op, **members(self)}

    def operands(self) -> tuple[Expression, ...]:
        values = [getattr(self, field.name) for field in fields(self)]
        parts = chain.from_iterable(value if isinstance(value, tuple) else [value] for value in values)
        return tuple(part for part in parts if isinstance(part, Expression))

    def walk(self) -> Iterator[Expression]:
        yield self
        for operand in self.operands():
            yield from operand.walk()

    def contains(self, *kinds: type[Expression]) -> bool:
        """Tell whether it, or an expression in it, is of one of these classes."""
        return any(isinstance(node, kinds) for node in self.walk())

    def inputs(self) -> frozenset[str]:
        """Return the names of the properties it reads; contains `WHOLE_ROW` when it may read any."""
        return frozenset[str]().union(*(operand.inputs() for operand in self.operands()))

    def with_props(self, props: Mapping[str, Expression]) -> Expression:
        """Return the expression with other expressions in place of the properties that are named."""
        replaced: dict[str, Any] = {}
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if isinstance(value, Expression):
                replaced[name] = value.with_props(props)
            elif isinstance(value, tuple) and any(isinstance(part, Expression) for part in value):
                replaced[name] = tuple(
                    part.with_props(props) if isinstance(part, Expression) else part for part in value
                )
        return replace(self, **replaced) if replaced else self

    def determines(self) -> frozenset[str]:
        """Return the properties that the key determines: rows that differ in one never have the same key."""
        return frozenset()

    def distinguishes(self, name: str) -> bool:
        """Tell whether the results of rows differ whenever the texts of a property of theirs differ."""
        read = [node for node in self.walk() if isinstance(node, Prop)]
        if any(node.name == name and node.default is not None for node in read):
            return False  # a row that lacks it has a text as well
        # What determines a key determines the text of a property in its place.
        others: dict[str, Expression] = {node.name: Prop(f"{node.name}_") for node in read}
        return ROW_KEY in self.with_props({**others, name: Prop(ROW_KEY)}).determines()

    @property
    def fixed_length(self) -> int | None:
        """The number of characters of every result; None if it varies or is unknown."""
        return None

    def __add__(self, other: Expression) -> Expression:
        for side in (self, other):
            if not isinstance(side, Expression):
                raise not_an_expression("+", side)
        flat = [side.parts if isinstance(side, Concat) else (side,) for side in (self, other)]
        return Concat(tuple(chain.from_iterable(flat)))

    def __radd__(self, other: object) -> Expression:
        raise not_an_expression("+", other)


class Changed(Expression):
    """Changes the text of another expression, its field `of`."""

    of: Expression

    @abstractmethod
    def change(self, scope: Scope) -> Callable[[str], str]:
        """Return the function that changes the text; it raises `scope.refusal` for text it cannot change."""

    def compile(self, scope: Scope) -> Evaluator:
        inner, change = self.of.compile(scope), self.change(scope)
        return lambda row, item: change(inner(row, item))


@dataclass(frozen=True)
class Plain(Changed):
    """A change of text without parameters."""

    of: Expression


_PROBLEMS = Path(__file__).parent.with_name("problems.toml")


def invalid(field: str, code: str, *, fault: str = "", **values: Any) -> InvalidDeclaration:
    """Return (do not raise) an error.

    Args:
        field: as in InvalidDeclaration, like `fault`.
        code: the entry of its texts in `problems.toml`.
        values: by the names in the texts; one named like a part (`cure=`) replaces that whole text.
    """
    problem, cure = filled(catalogue(_PROBLEMS)[code], values, "problem", "cure")
    return InvalidDeclaration(field, problem, cure=cure, fault=fault)


def refuse_if(wrong: object, field: str, code: str, **values: Any) -> None:
    """Raise InvalidDeclaration if `wrong`; arguments as for `invalid`."""
    if wrong:
        raise invalid(field, code, **values)


def not_an_expression(field: str, value: object) -> InvalidDeclaration:
    """Return the error for a value that is not an expression where one is needed."""
    cure = 'write keys.prop("…") for a property'
    if isinstance(value, list | tuple):
        cure = 'write keys.join("_", "PartitionKey", "RowKey") for a key of several properties'
    if isinstance(value, str):
        cure = 'write keys.literal("…") for constant text or keys.prop("…") for a property'
    return InvalidDeclaration(field, f"a {type(value).__name__} is not a key expression", cure=cure)


def need_expression(field: str, value: object) -> Expression:
    """Return `value` if it is an expression. Raises InvalidDeclaration."""
    if not isinstance(value, Expression):
        raise not_an_expression(field, value)
    return value


def need(field: str, value: object, kind: type[T], problem: str, *, cure: str) -> T:
    """Return `value` if it is of class `kind`. Raises InvalidDeclaration (its type, then `problem`)."""
    if not isinstance(value, kind):
        raise InvalidDeclaration(field, f"a {type(value).__name__} {problem}", cure=cure)
    return value


def need_list(field: str, value: object, kind: type, what: str, *, cure: str) -> tuple[Any, ...]:
    """Return a list as a tuple. Raises InvalidDeclaration, also for text or a bare `kind`."""
    if isinstance(value, kind | str) or not isinstance(value, Sequence):
        raise InvalidDeclaration(field, f"it is not a list of {what}", cure=cure)
    return tuple(value)


def need_text(field: str, value: object, *, empty: bool = False) -> str:
    """Return `value` if it is UTF-8 text, not empty unless `empty`. Raises InvalidDeclaration."""
    text = need(field, value, str, "is not text", cure="write a string")
    refuse_if(not text and not empty, field, "empty-text")
    refuse_if(any("\ud800" <= character <= "\udfff" for character in text), field, "half-surrogate")
    return text


def need_int(field: str, value: object, *, least: int | None = None, most: int | None = None) -> int:
    """Return `value` if it is an integer within the bounds. Raises InvalidDeclaration."""
    refuse_if(isinstance(value, bool), field, "no-integer")
    number = need(field, value, int, "is not an integer", cure="write an integer")
    outside = (least is not None and number < least) or (most is not None and number > most)
    bounds = f"at least {least}" if most is None else f"between {least} and {most}"
    refuse_if(outside, field, "out-of-range", number=number, bounds=bounds)
    return number


def need_one_of(field: str, value: object, allowed: Mapping[str, Any]) -> str:
    """Return `value` if it is one of the allowed names. Raises InvalidDeclaration, which lists them."""
    if not isinstance(value, str) or value not in allowed:
        raise invalid(field, "not-known", value=value, allowed=", ".join(allowed))
    return value


def operand(field: str, value: Expression | str) -> Expression:
    """Return an operand: an expression as it is, a string as the property of that name."""
    return Prop(need_text(field, value)) if isinstance(value, str) else need_expression(field, value)


# --- where text comes from ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prop(Expression, op="prop"):
    """The canonical text of a property. See `prop`."""

    name: str
    default: str | None = None

    def __post_init__(self) -> None:
        field, name = "keys.prop(name)", need_text("keys.prop(name)", self.name)
        refuse_if("@" in name or name.startswith("odata."), field, "no-property")
        if self.default is not None:
            need_text("keys.prop(default)", self.default, empty=True)
            refuse_if(name in (PARTITION_KEY, ROW_KEY), "keys.prop(default)", "never-missing", name=name)

    def compile(self, scope: Scope) -> Evaluator:
        name, default, annotation = self.name, self.default, self.name + TYPE_SUFFIX
        if name in (PARTITION_KEY, ROW_KEY):
            # Every row has its keys.
            return lambda row, _: row[name]
        if name == TIMESTAMP:
            cure = "read the row from the table first: only the service sets Timestamp"
        else:
            cure = (
                f'say what to use where it is missing, keys.prop("{name}", default="…"), or fix the rows'
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
            return canonical_text(DATETIME if name == TIMESTAMP else edm_type(row, name), value)

        return evaluate

    def compile_page(self, scope: Scope) -> PageEvaluator:
        name = self.name
        if name in (PARTITION_KEY, ROW_KEY):
            return lambda rows: [row[name] for row in rows]
        return super().compile_page(scope)

    def inputs(self) -> frozenset[str]:
        return frozenset({self.name})

    def with_props(self, props: Mapping[str, Expression]) -> Expression:
        return props.get(self.name, self)

    def determines(self) -> frozenset[str]:
        """Only keys: other properties can have the same text with different EDM types."""
        return self.inputs() & {PARTITION_KEY, ROW_KEY}

    def describe(self) -> str:
        return self.name if self.default is None else f"{self.name} or {json.dumps(self.default)}"


@dataclass(frozen=True)
class Literal(Expression, op="literal"):
    """Constant text. See `literal`."""

    text: str

    def __post_init__(self) -> None:
        need_text("keys.literal(text)", self.text, empty=True)

    def compile(self, scope: Scope) -> Evaluator:  # noqa: ARG002 - it needs nothing
        text = self.text
        return lambda *_: text

    @property
    def fixed_length(self) -> int:
        return len(self.text)

    def describe(self) -> str:
        return json.dumps(self.text, ensure_ascii=False)


@dataclass(frozen=True)
class Item(Expression, op="item"):
    """The item of the index's `each`. See `item`."""

    def compile(self, scope: Scope) -> Evaluator:  # noqa: ARG002 - it needs nothing
        return lambda _, item: item


@dataclass(frozen=True)
class Kept(Expression, op="keep"):
    """The key as it is; a table of a declaration replaces it by `Prop`. See `keep`."""

    def compile(self, scope: Scope) -> Evaluator:
        raise invalid(scope.field, "keeps-whole-key")


def keep() -> Expression:
    """Return the key as it is in the source: `partition_key=keys.keep()` is the old PartitionKey,
    `row_key=keys.keep()` the old RowKey."""
    return Kept()


def prop(name: str, default: str | None = None) -> Expression:
    """Return the canonical text of the property `name`, `PartitionKey`, `RowKey` or `Timestamp`: an Int64's
    digits, a DateTime's ISO text with all 7 fractional digits, a Double's shortest text, a Boolean's `true`
    or `false`.

    Args:
        name: the property's name in the source.
        default: text for rows that lack the property; without it such a row is refused (`missing-property`).
            An empty property is not missing.
    """
    return Prop(name, default)


def literal(text: str) -> Expression:
    """Return constant text. As a whole key, `literal("")` says that the key is meant to be empty."""
    return Literal(text)


def item() -> Expression:
    """Return the item an index row is made for: one piece of the index's `each=keys.split(…)`."""
    return Item()


# --- putting texts together --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Join(Expression, op="join"):
    """Texts with a separator between them. See `join`."""

    separator: str
    parts: tuple[Expression, ...]

    def __post_init__(self) -> None:
        need_text("keys.join(separator)", self.separator, empty=True)
        refuse_if(not self.parts, "keys.join", "nothing-to-join")
        for part in self.parts:
            need_expression("keys.join", part)

    def compile(self, scope: Scope) -> Evaluator:
        return _joined(self.separator, self.parts, scope)

    def determines(self) -> frozenset[str]:
        return _told_apart(self.parts)

    def describe(self) -> str:
        inner = ", ".join(part.describe() for part in self.parts)
        return f"join({json.dumps(self.separator, ensure_ascii=False)}, {inner})"


@dataclass(frozen=True)
class Concat(Expression, op="concat"):
    """Texts one after the other, as `+` makes them."""

    parts: tuple[Expression, ...]

    def compile(self, scope: Scope) -> Evaluator:
        return _joined("", self.parts, scope)

    def determines(self) -> frozenset[str]:
        return _told_apart(self.parts)

    def describe(self) -> str:
        return " + ".join(part.describe() for part in self.parts)


def _told_apart(parts: tuple[Expression, ...]) -> frozenset[str]:
    """Return what parts determine if at most one of them varies in length, so that each can be identified."""
    if sum(part.fixed_length is None for part in parts) > 1:
        return frozenset()
    return frozenset[str]().union(*(part.determines() for part in parts))


def _joined(separator: str, of: tuple[Expression, ...], scope: Scope) -> Evaluator:
    parts = [part.compile(scope) for part in of]
    if len(parts) == 2:
        first, second = parts
        return lambda row, item: first(row, item) + separator + second(row, item)
    return lambda row, item: separator.join([part(row, item) for part in parts])


def join(separator: str, *parts: Expression | str) -> Expression:
    """Return the parts with `separator` between them. Different parts may give the same text (`plan --exact`
    finds such rows); `keys.opaque` of several parts frames them with their lengths instead.

    Args:
        separator: constant text; may be empty.
        parts: property names or expressions.
    """
    names = any(isinstance(part, str) for part in parts)
    forgotten = names and (len(parts) == 1 or separator in (PARTITION_KEY, ROW_KEY, TIMESTAMP))
    refuse_if(forgotten, "keys.join", "separator-forgotten", separator=separator)
    return Join(separator, tuple(operand("keys.join", part) for part in parts))


def constant_prefix(expression: Expression, prefix_of: Callable[[str], str] = lambda _: "") -> str:
    """Return the constant text that every result provably begins with; "" if there is none. `prefix_of`: the
    text with which the source's PartitionKey or RowKey begins."""
    return beginning(expression, lambda key: (prefix_of(key), False))[0]


def beginning(expression: Expression, beginning_of: Callable[[str], tuple[str, bool]]) -> tuple[str, bool]:
    """Return the constant beginning of an expression, and whether that is all of it. `beginning_of`: the same
    of the source's PartitionKey or RowKey."""
    if isinstance(expression, Literal):
        return expression.text, True
    if isinstance(expression, Prop) and expression.name in (PARTITION_KEY, ROW_KEY):
        return beginning_of(expression.name)
    if not isinstance(expression, Join | Concat):
        return "", False
    separator = expression.separator if isinstance(expression, Join) else ""
    text = ""
    for number, part in enumerate(expression.parts):
        begins, whole = beginning(part, beginning_of)
        text += (separator if number else "") + begins
        if not whole:
            return text, False
    return text, True
