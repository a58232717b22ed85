"""Property operations: what a target or index row carries besides its key.

Operations describe the new row as a whole: each names properties of the source row and the name it makes in
the new one, so their order does not matter; `cast` names the property as it is called in the new row. A main
target carries every property that no operation removes, an index row only what operations give it. An
operation on a property that a row lacks does nothing for that row; one that would overwrite a property the
row carries is refused, except `set` and `compute`. Rollback undoes a rename, a copy, and a cast that declares
`was`; whatever else operations remove is in the source only.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from rekey.core.edm import BINARY, BOOLEAN, DATETIME, DOUBLE, GUID, INT32, STRING, TYPES, canonical_text
from rekey.core.limits import MAX_VALUE_BYTES, property_name_problem, value_bytes
from rekey.core.plain import exclude, json_field, members
from rekey.declaration.casts import PAIRS, Lossy, casts_from, wire_value
from rekey.declaration.keys.base import (
    Expression,
    InvalidDeclaration,
    Item,
    Kept,
    Prop,
    invalid,
    need_text,
    operand,
    refuse_if,
)
from rekey.declaration.references import Reference, referred_by
from rekey.model import PARTITION_KEY, ROW_KEY, SYSTEM_PROPERTIES, TIMESTAMP


@dataclass(frozen=True)
class Operation:
    """One property operation, created with the functions of this module."""

    # Its name in canonical data: `class Rename(Operation, op="rename", creates="new")`.
    op: ClassVar[str]
    # The field that names the property it creates in the new row, "" for none.
    creates: ClassVar[str]
    # Format of its fields in `describe`.
    shown: ClassVar[str]

    def __init_subclass__(cls, op: str, creates: str = "", shown: str = "") -> None:
        cls.op, cls.creates, cls.shown = op, creates, shown

    def as_json(self) -> dict[str, Any]:
        return {"op": self.op, **members(self)}

    def describe(self) -> str:
        """Return a short form for people, without constants: `rename(A, B)`."""
        values = {
            name: ", ".join(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
        }
        return f"{self.op}({self.shown.format(**values)})"

    @property
    def created(self) -> str | None:
        """The property it creates in the new row, if any."""
        return str(getattr(self, self.creates)) if self.creates else None


@dataclass(frozen=True)
class Keep(Operation, op="keep", shown="{names}"):
    """Only these source properties are copied. No inverse: the others remain in the source only."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class KeepAll(Operation, op="keep_all"):
    """An index row copies every source property that no other operation removes."""


@dataclass(frozen=True)
class Drop(Operation, op="drop", shown="{names}"):
    """These source properties are not copied. No inverse: they remain in the source only."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Rename(Operation, op="rename", creates="new", shown="{old}, {new}"):
    """A property under another name. Inverse: the reverse rename."""

    old: str
    new: str


@dataclass(frozen=True)
class Copy(Operation, op="copy", creates="to", shown="{source}, to={to}"):
    """A property or a key copied under another name. Inverse: the copy is dropped."""

    source: str
    to: str


@dataclass(frozen=True)
class Set(Operation, op="set", creates="name", shown="{name}, {edm}"):
    """A typed constant. No inverse: what it replaces remains in the source only.

    Attributes:
        name: the property.
        edm: its EDM type.
        value: its wire value.
    """

    name: str
    edm: str
    value: str | int | float | bool

    def as_json(self) -> dict[str, Any]:
        """JSON has no NaN, so the value is text."""
        text = canonical_text(self.edm, self.value)
        return {"op": self.op, "name": self.name, "type": self.edm, "value": text}


@dataclass(frozen=True)
class Compute(Operation, op="compute", creates="name", shown="{name}, {of}"):
    """The text of a key expression. No inverse: what it replaces remains in the source only.

    Attributes:
        name: the property.
        of: the expression.
        needed: source properties; a row that lacks one of them has no such property in the new row.
        on_missing: "refuse", of a reference; else "".
        removes: the source property whose place a reference takes (`keep_old=False`); "" where it stays.
        via: the script whose mapping says what that property was; "" where it stays.
        reference: the row that a reference names.
    """

    name: str
    of: Expression
    needed: tuple[str, ...] = field(default=(), metadata=json_field(omit_default=True))
    # What becomes of a plan whose rows refer to rows that are not there, if not "compute".
    on_missing: str = field(default="", metadata=json_field(omit_default=True))
    removes: str = field(default="", metadata=json_field(omit_default=True))
    via: str = field(default="", metadata=json_field(omit_default=True))
    # The row that it refers to. All that rows depend on is in `of`.
    reference: Reference | None = field(default=None, compare=False, repr=False, metadata=exclude)

    def describe(self) -> str:
        return f"{self.op}({self.name}, {self.of.describe()})"

    def inputs(self) -> frozenset[str]:
        """Return the names of the keys and properties that the property depends on; contains `WHOLE_ROW` when
        it may be any."""
        return self.of.inputs().union(self.needed)


@dataclass(frozen=True)
class Cast(Operation, op="cast", shown="{name}, {to}"):
    """Another EDM type. Inverse: the cast back to `was`, none when `was` is not declared."""

    name: str
    to: str
    was: str | None = None

    def inverse(self) -> Cast | None:
        return None if self.was is None else Cast(self.name, self.was, self.to)


# What a plan makes of references to rows that are not there.
_ON_MISSING = ("compute", "refuse")
_SHORT_TYPES = {edm.removeprefix("Edm.").lower(): edm for edm in TYPES}


def edm_name(field: str, name: object) -> str:
    """Return the EDM type that `Edm.Int64`, `Int64` or `int64` names. Raises InvalidDeclaration."""
    edm = _SHORT_TYPES.get(name.removeprefix("Edm.").lower()) if isinstance(name, str) else None
    if edm is None:
        raise invalid(field, "no-edm-type", name=name, types=", ".join(sorted(TYPES)))
    return edm


def keep(*names: str) -> Operation:
    """Copy only these source properties (and what other operations make). No inverse."""
    return Keep(_names("props.keep", names))


def keep_all() -> Operation:
    """Copy the whole source row into an index row, except what `drop` and `rename` remove. (A main target
    always does.)"""
    return KeepAll()


def drop(*names: str) -> Operation:
    """Do not copy these source properties. No inverse: they remain in the source only."""
    return Drop(_names("props.drop", names))


def rename(old: str, new: str) -> Operation:
    """Copy the source's property `old` under the name `new`. Inverse: the reverse rename."""
    _source_name("props.rename(old)", old)
    _new_name("props.rename(new)", new)
    refuse_if(old == new, "props.rename", "renamed-to-itself", old=old)
    return Rename(old, new)


def copy(source: str, *, to: str) -> Operation:
    """Copy a value under the additional name `to`. Inverse: the copy is dropped.

    Args:
        source: a source property, or `PartitionKey`, `RowKey` (both become Edm.String) or `Timestamp`
            (becomes Edm.DateTime: when the source row was last written, which the new row cannot keep
            otherwise). A copied key is how old keys are recovered from target rows.
        to: the name in the new row.
    """
    if source not in SYSTEM_PROPERTIES:
        _source_name("props.copy(source)", source)
    _new_name("props.copy(to)", to)
    refuse_if(source == to, "props.copy", "copied-to-itself", source=source)
    return Copy(source, to)


def set(name: str, value: object, type: str | None = None) -> Operation:  # noqa: A001, A002 - the natural names
    """Set the property `name` to a constant, which replaces the source row's value. No inverse.

    Args:
        name: the property in the new row.
        value: str, bool, int (Int32 unless `type` is int64), float, bytes, `uuid.UUID`, an aware `datetime`;
            or, with `type`, its text: `set("At", "2024-01-02T03:04:05.1234567Z", type="datetime")`.
        type: EDM type: string, int32, int64, double, boolean, datetime, guid or binary (as base64 text).
    """
    _new_name("props.set(name)", name)
    field = f"props.set({name})"
    edm, wire = typed_constant(field, value, type)
    refuse_if(value_bytes(edm, wire) > MAX_VALUE_BYTES, field, "value-too-large")
    return Set(name, edm, wire)


def compute(name: str, of: Expression | str, *, needed: tuple[str, ...] = ()) -> Compute:
    """Set the property `name` to the text of a key expression, as an Edm.String, which replaces the source
    row's value. No inverse: rollback computes it again from the row that is written back, and the source row
    keeps the value that it had. A value that must survive in rows of the new table needs a `copy`.

    Args:
        name: the property in the new row.
        of: a key expression (`rekey.declaration.keys`), evaluated on the source row as for a key: a row that
            lacks a property of it is refused, unless `keys.prop` has a `default`.
        needed: source properties; a row that lacks one of them has no such property in the new row.
    """
    _new_name("props.compute(name)", name)
    for each in needed:
        _source_name(f"props.compute({name})(needed)", each)
    field = f"props.compute({name})"
    expression = operand(field, of)
    refuse_if(expression.contains(Kept), field, "keeps-whole-key")
    refuse_if(expression.contains(Item), field, "item-in-property")
    refuse_if(TIMESTAMP in expression.inputs(), field, "computed-from-timestamp", name=name)
    return Compute(name, expression, tuple(needed))


def reference(
    name: str,
    *,
    to: str,
    via: str,
    partition: Expression | str | None = None,
    to_partition: bool = False,
    kind: str | None = None,
    on_missing: str = "compute",
    keep_old: bool = True,
) -> Operation:
    """Set the property `to` to the new key of a row of another migration, whose old RowKey is in the property
    `name`: computed by that migration's own expression and secret, without reading its tables. A row that
    lacks `name` has no property `to`. The old property stays, unless `keep_old=False` or `drop` removes it;
    with `drop` a rollback cannot bring back references that were written after cutover. Inverse: none while
    the old property stays; with `keep_old=False` a look-up in the other migration's mapping.

    Args:
        name: the property with the old RowKey.
        to: the property in the new row.
        via: the id of the other migration's script, in the same folder.
        partition: the old PartitionKey of that row, a property or an expression; needed where its new key is
            made of it. A row that lacks a property of it has no property `to` either, but where `keys.prop`
            has a `default`.
        to_partition: `to` is the new PartitionKey, not the new RowKey.
        kind: of a migration with kinds, the name of that row's kind.
        on_missing: what it means that `rekey plan` finds references to rows that are not there: `compute`, a
            warning, or `refuse`, an error. In both cases such a row has the new key that the other row would
            have had: whether it is there can change at any moment, so to keep the old value instead, each
            row would have to be looked up whenever it is copied, written or compared.
        keep_old: False: the new row does not carry `name`. A rollback, and clients as long as there is one,
            look the old key up by the new one in the mapping of `via`, in the restricted account. `name` must
            be an Edm.String in every row, and none may have it without what `partition` needs: neither
            reference would be left. Two old keys must not have one new key, and the row must say the other
            row's whole new key: `partition=`, or a second reference with `to_partition=True`. Between cutover
            and `complete` clients refuse a new reference to a row that `via` does not know.
    """
    _source_name("props.reference(name)", name)
    _new_name("props.reference(to)", to)
    field = f"props.reference({to})"
    needed = {name}
    old_partition = None if partition is None else operand(f"{field}(partition)", partition)
    if old_partition is not None:
        refuse_if(old_partition.contains(Kept), f"{field}(partition)", "keeps-whole-key")
        read = [node for node in old_partition.walk() if isinstance(node, Prop)]
        needed |= {node.name for node in read if node.default is None} - SYSTEM_PROPERTIES
    refuse_if(on_missing not in _ON_MISSING, f"{field}(on_missing)", "on-missing-not-known", value=on_missing)
    refuse_if(not isinstance(keep_old, bool), f"{field}(keep_old)", "keep-old-no-bool")
    via = need_text(f"{field}(via)", via)
    referred, new_keys = referred_by(field, via, kind)
    column = PARTITION_KEY if to_partition else ROW_KEY
    old_keys = {ROW_KEY: Prop(name)} | ({} if old_partition is None else {PARTITION_KEY: old_partition})
    inputs = new_keys[column].inputs()
    others = sorted(inputs - {PARTITION_KEY, ROW_KEY})
    refuse_if(others, field, "reference-inputs", via=via, inputs=", ".join(others))
    refuse_if(inputs - old_keys.keys(), field, "reference-partition", via=via)
    new_key = {
        key: expression.with_props(old_keys)
        for key, expression in new_keys.items()
        if expression.inputs() <= old_keys.keys()
    }
    return replace(
        compute(to, new_key[column], needed=tuple(sorted(needed))),
        on_missing="" if on_missing == "compute" else on_missing,
        removes="" if keep_old else name,
        via="" if keep_old else via,
        reference=Reference(name, via, referred, referred.targets[kind], old_keys, new_key, column),
    )


def cast(name: str, to: str, was: str | None = None) -> Operation:
    """Convert a property to another EDM type; a value that would change is refused (`bad-cast`).

    Args:
        name: the property as it is called in the new row.
        to: the new EDM type, `Edm.Int64` or `int64`: Binary, Boolean, DateTime, Double, Guid, Int32, Int64,
            String. Every type can be cast to and from String, numbers to each other, Booleans to integers and
            back.
        was: the EDM type in the source; a row with any other type is refused. Without it the cast has no
            inverse, so a declaration with `reverse=True` needs it.
    """
    _source_name("props.cast(name)", name)
    target = edm_name("props.cast(to)", to)
    before = None if was is None else edm_name("props.cast(was)", was)
    unknown = before is not None and (before, target) not in PAIRS
    casts = ", ".join(casts_from(before or ""))
    refuse_if(unknown, f"props.cast({name})", "no-such-cast", before=before, target=target, casts=casts)
    return Cast(name, target, before)


def _names(field: str, names: tuple[str, ...]) -> tuple[str, ...]:
    refuse_if(not names, field, "no-names")
    for name in names:
        _source_name(field, name)
    refuse_if(len(frozenset(names)) != len(names), field, "names-twice")
    return names


def _source_name(field: str, name: object) -> None:
    text = need_text(field, name)
    refuse_if(text in SYSTEM_PROPERTIES or "@" in text, field, "no-custom-property", text=text)


def _new_name(field: str, name: object) -> None:
    if problem := property_name_problem(name):
        raise InvalidDeclaration(field, problem, cure="choose another name")


def typed_constant(field: str, value: object, type_name: str | None) -> tuple[str, Any]:
    """Return the EDM type and wire value of a Python constant; `type_name`: its type, None for the natural
    one. Raises InvalidDeclaration."""
    natural, text = _constant(field, value)
    edm = natural if type_name is None else edm_name(field, type_name)
    other = edm != natural and natural not in (STRING, INT32)
    refuse_if(other, field, "value-of-other-type", natural=natural, edm=edm)
    try:
        return edm, wire_value(edm, text)
    except Lossy:
        cure = "write a value of that type" + (', or type="int64"' if edm == INT32 else "")
        raise InvalidDeclaration(field, f"the value is not of type {edm}", cure=cure) from None


def _constant(field: str, value: object) -> tuple[str, str]:
    """Return the natural EDM type of a Python constant, and its text."""
    match value:
        case bool():
            return BOOLEAN, "true" if value else "false"
        case str():
            return STRING, need_text(field, value, empty=True)
        case int():
            return INT32, str(value)
        case float():
            return DOUBLE, canonical_text(DOUBLE, value)
        case bytes():
            return BINARY, base64.b64encode(value).decode("ascii")
        case uuid.UUID():
            return GUID, str(value)
        case datetime() if value.tzinfo is not None:
            moment = value.astimezone(UTC)
            return DATETIME, f"{moment:%Y-%m-%dT%H:%M:%S.%f}0Z"
    raise invalid(field, "no-edm-value", kind=type(value).__name__)


__all__ = ["Operation", "cast", "compute", "copy", "drop", "keep", "keep_all", "reference", "rename", "set"]
