"""Conditions on source rows: data, not code. A condition reads a row's keys and properties and never raises:
a property that is missing, or of another type, does not meet it.

A script writes `rows.row_key(prefix="U_")`, `rows.prop("Status", equals="open")`, and combines conditions
with `rows.all_of`, `rows.any_of` and `rows.none_of`; `rows.every()` is met by every row. `rows.drop` says
that the rows which no kind takes are not migrated.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from rekey.core.edm import (
    BOOLEAN,
    DATETIME,
    DOUBLE,
    GUID,
    INT32,
    INT64,
    STRING,
    canonical_text,
    edm_type,
    utc_text,
)
from rekey.core.plain import json_field, members
from rekey.declaration.keys.base import invalid, need, need_text, refuse_if
from rekey.declaration.props import edm_name, typed_constant
from rekey.model import PARTITION_KEY, ROW_KEY, SYSTEM_PROPERTIES, Row, utf16_order

Test: TypeAlias = Callable[[Row], bool]

_NUMBERS = frozenset({INT32, INT64, DOUBLE})
# Types whose values have an order.
_ORDERED = frozenset({*_NUMBERS, STRING, DATETIME})
_OMIT_DEFAULT = json_field(omit_default=True)
_LONGEST_REASON = 500
_CONDITION_CURE = 'write rows.row_key(prefix="…") or rows.prop("…", equals="…")'


@dataclass(frozen=True)
class Condition(ABC):
    """A condition on a source row. Make one with the functions of this module."""

    # Its name in canonical data.
    op: ClassVar[str]

    def __init_subclass__(cls, op: str = "") -> None:
        cls.op = op

    @abstractmethod
    def compile(self) -> Test:
        """Return the function that tells whether a row meets it."""

    @abstractmethod
    def inputs(self) -> frozenset[str]:
        """Return the names of the keys and properties that it reads."""

    @abstractmethod
    def describe(self) -> str:
        """Return a short form for people."""

    def prefix_of(self, key: str) -> str:  # noqa: ARG002 - most say nothing about keys
        """Return the text with which `key` (PartitionKey or RowKey) of every row begins that meets it."""
        return ""

    def excluded_prefixes(self, key: str) -> frozenset[str]:  # noqa: ARG002 - as above
        """Return beginnings of `key` that no row has that does not meet it."""
        return frozenset()

    def as_json(self) -> dict[str, Any]:
        return {"op": self.op, **members(self)}


@dataclass(frozen=True)
class Value:
    """A typed constant, as the canonical text of its EDM type."""

    edm: str = field(metadata=json_field("type"))
    text: str = field(metadata=json_field("value"))

    @property
    def comparable(self) -> Any:
        return _comparable(self.edm, self.text)


@dataclass(frozen=True)
class Bounds:
    """What a value is compared with. Of those that are set, all must hold.

    Attributes:
        one_of: the value is one of these.
        at_least: it is not below this.
        below: it is below this.
    """

    one_of: tuple[Value, ...] = field(default=(), metadata=_OMIT_DEFAULT)
    at_least: Value | None = field(default=None, metadata=_OMIT_DEFAULT)
    below: Value | None = field(default=None, metadata=_OMIT_DEFAULT)

    def as_json(self) -> dict[str, Any]:
        return members(self)

    def compile(self) -> Callable[[str, object], bool]:
        """Return the function that tells whether a value, as its EDM type and wire value, is within."""
        chosen = frozenset(value.comparable for value in self.one_of)
        bounds = (self.at_least, self.below)
        least, below = (None if bound is None else bound.comparable for bound in bounds)

        def is_within(edm: str, value: object) -> bool:
            compared = _comparable(edm, value)
            if chosen and compared not in chosen:
                return False
            sort, text = compared
            # NaN is neither below a bound nor above it.
            if least is not None and not (sort == least[0] and text >= least[1]):
                return False
            return below is None or (sort == below[0] and text < below[1])

        return is_within

    def describe(self) -> str:
        parts = []
        if self.one_of:
            values = ", ".join(value.text for value in self.one_of)
            parts.append(f"is {values}" if len(self.one_of) == 1 else f"is one of {values}")
        if self.at_least is not None:
            parts.append(f"is at least {self.at_least.text}")
        if self.below is not None:
            parts.append(f"is below {self.below.text}")
        return " and ".join(parts)


@dataclass(frozen=True)
class KeyIs(Condition, op="key"):
    """A condition on PartitionKey or RowKey. See `partition_key`, `row_key`."""

    name: str
    prefix: str = field(default="", metadata=_OMIT_DEFAULT)
    pattern: str = field(default="", metadata=_OMIT_DEFAULT)
    bounds: Bounds = field(default=Bounds(), metadata=json_field(flat=True))

    def compile(self) -> Test:
        name, prefix = self.name, self.prefix
        if self == KeyIs(name, prefix):
            return lambda row: row[name].startswith(prefix)
        matches = re.compile(self.pattern).fullmatch if self.pattern else None
        is_within = self.bounds.compile()

        def test(row: Row) -> bool:
            key = row[name]
            if not key.startswith(prefix) or not is_within(STRING, key):
                return False
            return matches is None or matches(key) is not None

        return test

    def inputs(self) -> frozenset[str]:
        return frozenset({self.name})

    def prefix_of(self, key: str) -> str:
        if key != self.name:
            return ""
        chosen = _common([value.text for value in self.bounds.one_of])
        return max(self.prefix, chosen, key=len)

    def excluded_prefixes(self, key: str) -> frozenset[str]:
        return frozenset({self.prefix} if self == KeyIs(key, self.prefix) else ())

    def describe(self) -> str:
        # Whole keys may be personal data.
        parts = [f"begins with {self.prefix}" if self.prefix else ""]
        chosen = len(self.bounds.one_of)
        parts.append("" if not chosen else "is a certain one" if chosen == 1 else f"is one of {chosen} keys")
        parts.append("is in a range" if self.bounds.at_least or self.bounds.below else "")
        parts.append(f"matches {self.pattern}" if self.pattern else "")
        return f"{self.name} {' and '.join(filter(None, parts))}"


@dataclass(frozen=True)
class PropIs(Condition, op="prop"):
    """A condition on a property. See `prop`."""

    name: str
    edm: str = field(default="", metadata=json_field("type", omit_default=True))
    bounds: Bounds = field(default=Bounds(), metadata=json_field(flat=True))

    def compile(self) -> Test:
        name, edm, is_any = self.name, self.edm, self.bounds == Bounds()
        is_within = self.bounds.compile()

        def test(row: Row) -> bool:
            if row.get(name) is None:
                return False
            has = edm_type(row, name)
            return (not edm or has == edm) and (is_any or is_within(has, row[name]))

        return test

    def inputs(self) -> frozenset[str]:
        return frozenset({self.name})

    def describe(self) -> str:
        parts = [f"is of type {self.edm}" if self.edm else "", self.bounds.describe()]
        return f"{self.name} {' and '.join(filter(None, parts)) or 'is present'}"


@dataclass(frozen=True)
class Combined(Condition):
    """A combination of conditions."""

    of: tuple[Condition, ...]

    def __post_init__(self) -> None:
        for condition in self.of:
            need_condition(f"rows.{self.op}", condition)

    def inputs(self) -> frozenset[str]:
        return frozenset[str]().union(*(condition.inputs() for condition in self.of))

    def describe(self) -> str:
        described = "; ".join(condition.describe() for condition in self.of)
        return f"{self.op.replace('_', ' ')} ({described})"


@dataclass(frozen=True)
class AllOf(Combined, op="all_of"):
    """All of the conditions hold."""

    def compile(self) -> Test:
        tests = [condition.compile() for condition in self.of]
        return lambda row: all(test(row) for test in tests)

    def prefix_of(self, key: str) -> str:
        return max((condition.prefix_of(key) for condition in self.of), key=len, default="")

    def excluded_prefixes(self, key: str) -> frozenset[str]:
        # A row that meets not all of several may have any key.
        return self.of[0].excluded_prefixes(key) if len(self.of) == 1 else frozenset()


@dataclass(frozen=True)
class AnyOf(Combined, op="any_of"):
    """At least one of the conditions holds."""

    def compile(self) -> Test:
        tests = [condition.compile() for condition in self.of]
        return lambda row: any(test(row) for test in tests)

    def prefix_of(self, key: str) -> str:
        return _common([condition.prefix_of(key) for condition in self.of])

    def excluded_prefixes(self, key: str) -> frozenset[str]:
        return frozenset[str]().union(*(condition.excluded_prefixes(key) for condition in self.of))


@dataclass(frozen=True)
class NoneOf(Combined, op="none_of"):
    """None of the conditions holds; with none at all, every row meets it."""

    def compile(self) -> Test:
        tests = [condition.compile() for condition in self.of]
        return lambda row: not any(test(row) for test in tests)

    def excluded_prefixes(self, key: str) -> frozenset[str]:  # noqa: ARG002 - of any key
        return frozenset() if self.of else frozenset({""})

    def describe(self) -> str:
        return super().describe() if self.of else "every row"


@dataclass(frozen=True)
class Drop:
    """Rows that no kind takes are not migrated. See `drop`."""

    reason: str

    def as_json(self) -> dict[str, Any]:
        return {"op": "drop", **members(self)}


def need_condition(field: str, value: object) -> Condition:
    """Return `value` if it is a condition. Raises InvalidDeclaration."""
    return need(field, value, Condition, "is not a condition", cure=_CONDITION_CURE)  # type: ignore[type-abstract]


def partition_key(
    *,
    prefix: str = "",
    equals: str | None = None,
    one_of: Sequence[str] = (),
    at_least: str | None = None,
    below: str | None = None,
    pattern: str = "",
) -> Condition:
    """Return a condition on the PartitionKey. All that is given must hold.

    Args:
        prefix: the text it begins with.
        equals: the whole key.
        one_of: the keys it may be.
        at_least: the least key, in the service's order (UTF-16 code units).
        below: the first key that is too large.
        pattern: a regular expression that the whole key matches.
    """
    values = {"equals": equals, "one_of": one_of, "at_least": at_least, "below": below}
    return _key_is(PARTITION_KEY, "rows.partition_key", prefix, pattern, values)


def row_key(
    *,
    prefix: str = "",
    equals: str | None = None,
    one_of: Sequence[str] = (),
    at_least: str | None = None,
    below: str | None = None,
    pattern: str = "",
) -> Condition:
    """Return a condition on the RowKey. Arguments as for `partition_key`."""
    values = {"equals": equals, "one_of": one_of, "at_least": at_least, "below": below}
    return _key_is(ROW_KEY, "rows.row_key", prefix, pattern, values)


def prop(
    name: str,
    *,
    type: str | None = None,  # noqa: A002 - the natural name
    equals: object = None,
    one_of: Sequence[object] = (),
    at_least: object = None,
    below: object = None,
) -> Condition:
    """Return a condition on a property: that the row has it, and all that is given.

    Numbers are compared by value, whichever of Int32, Int64 and Double they are; all else by type and value.

    Args:
        name: the property.
        type: its EDM type: string, int32, int64, double, boolean, datetime, guid or binary.
        equals: its value: str, bool, int, float, bytes, `uuid.UUID` or an aware `datetime`; with `type`, also
            the text of such a value.
        one_of: the values it may have.
        at_least: the least value: text, a number or a moment.
        below: the first value that is too large.
    """
    field = f"rows.prop({name})"
    text = need_text("rows.prop(name)", name)
    refuse_if(text in SYSTEM_PROPERTIES or "@" in text, field, "no-condition-property")
    edm = "" if type is None else edm_name(field, type)
    values = {"equals": equals, "one_of": one_of, "at_least": at_least, "below": below}
    bounds = _bounds(field, values, lambda where, value: _value(where, value, type))
    return PropIs(text, edm, bounds)


def all_of(*conditions: Condition) -> Condition:
    """Return the condition that all of these hold."""
    refuse_if(not conditions, "rows.all_of", "all-of-nothing")
    return AllOf(conditions)


def any_of(*conditions: Condition) -> Condition:
    """Return the condition that at least one of these holds."""
    refuse_if(not conditions, "rows.any_of", "any-of-nothing")
    return AnyOf(conditions)


def none_of(*conditions: Condition) -> Condition:
    """Return the condition that none of these holds."""
    refuse_if(not conditions, "rows.none_of", "none-of-nothing")
    return NoneOf(conditions)


def every() -> Condition:
    """Return the condition that every row meets: the last kind of a table takes the rows that are left."""
    return NoneOf(())


def drop(*, reason: str) -> Drop:
    """Return what `Migration(otherwise=…)` says of rows that no kind takes: they are not migrated. They stay
    in the source as they are until `retire` deletes it.

    Args:
        reason: why nobody needs them: text of at most 500 characters for plans and evidence, without keys.
    """
    field = "rows.drop(reason)"
    text = need_text(field, reason)
    is_reason = bool(text.strip()) and len(text) <= _LONGEST_REASON and text.isprintable()
    refuse_if(not is_reason, field, "drop-reason", longest=_LONGEST_REASON)
    return Drop(text.strip())


def _key_is(name: str, field: str, prefix: object, pattern: object, asked: dict[str, Any]) -> Condition:
    text = need_text(f"{field}(prefix)", prefix, empty=True)
    expression = need_text(f"{field}(pattern)", pattern, empty=True)
    try:
        re.compile(expression)
    except re.error as error:
        raise invalid(f"{field}(pattern)", "pattern-error", error=error) from None
    bounds = _bounds(field, asked, lambda where, value: Value(STRING, need_text(where, value, empty=True)))
    refuse_if(not text and not expression and bounds == Bounds(), field, "says-nothing")
    return KeyIs(name, text, expression, bounds)


def _bounds(field: str, asked: dict[str, Any], value_of: Callable[[str, object], Value]) -> Bounds:
    many = asked["one_of"]
    is_list = isinstance(many, Sequence) and not isinstance(many, str | bytes)
    refuse_if(not is_list, f"{field}(one_of)", "one-of-no-list")
    refuse_if(asked["equals"] is not None and many, field, "equals-and-one-of")
    chosen = many if asked["equals"] is None else [asked["equals"]]
    values = tuple(value_of(f"{field}(one_of)" if many else f"{field}(equals)", value) for value in chosen)
    for value in values:
        refuse_if(value == Value(DOUBLE, "NaN"), field, "equals-nan")
    least, below = (
        None if asked[name] is None else value_of(f"{field}({name})", asked[name])
        for name in ("at_least", "below")
    )
    _check_range(field, least, below)
    return Bounds(values, least, below)


def _check_range(field: str, least: Value | None, below: Value | None) -> None:
    for name, bound in (("at_least", least), ("below", below)):
        unordered = bound is not None and (bound.edm not in _ORDERED or bound.text == "NaN")
        refuse_if(unordered, f"{field}({name})", "no-order")
    if least is not None and below is not None:
        (sort, first), (other, last) = least.comparable, below.comparable
        refuse_if(sort != other, field, "bounds-of-types")
        refuse_if(first >= last, field, "empty-range")


def _value(field: str, value: object, type_name: str | None) -> Value:
    is_moment = isinstance(value, str) and type_name is not None and edm_name(field, type_name) == DATETIME
    edm, wire = typed_constant(field, utc_text(str(value)) or value if is_moment else value, type_name)
    return Value(edm, canonical_text(edm, wire))


def _common(texts: Sequence[str]) -> str:
    """Return the text with which all of these begin."""
    if not texts:
        return ""
    first, last = min(texts), max(texts)
    same = (at for at, character in enumerate(first) if last[at : at + 1] != character)
    return first[: next(same, len(first))]


def _comparable(edm: str, value: object) -> tuple[str, Any]:
    """Return a value as what is compared: values of different sorts are never equal, nor in order."""
    text = canonical_text(edm, value)
    if edm in _NUMBERS:
        try:
            return "number", float(text) if edm == DOUBLE else int(text)
        except ValueError:
            return "none", text
    if edm == STRING:
        return edm, utf16_order(text)
    return edm, text.lower() if edm in (GUID, BOOLEAN) else text


__all__ = ["Condition", "all_of", "any_of", "drop", "every", "none_of", "partition_key", "prop", "row_key"]
