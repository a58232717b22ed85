"""The steps by which a new row is filled from a source row. Each is compiled once and runs for every row.

Rules kept here:

* A value is carried with its annotation, as it stands on the wire.
* Nothing a row carries is overwritten by a rename or a copy: such a row is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from rekey.core.edm import DATETIME, edm_type
from rekey.declaration.casts import ANNOTATED, Lossy, cast_value
from rekey.declaration.keys.base import Scope
from rekey.declaration.props import Cast, Set
from rekey.model import TIMESTAMP, TYPE_SUFFIX, Row

Step: TypeAlias = Callable[[Row, Row], None]
"""Reads the source row, fills the new row."""

_KNOWN_SHAPES = 4096


def wire_fields(name: str) -> tuple[str, str]:
    """Return the two fields a property can have on the wire: its value and its annotation."""
    return name, name + TYPE_SUFFIX


def carrying_only(names: Iterable[str]) -> Step:
    """Return the step that carries the named properties."""
    wanted = [field for name in names for field in wire_fields(name)]

    def carry_kept(row: Row, out: Row) -> None:
        for name in wanted:
            if row.get(name) is not None:
                out[name] = row[name]

    return carry_kept


def carrying_all_but(names: Iterable[str]) -> Step:
    """Return the step that carries every property except the named ones."""
    skipped = frozenset(field for name in names for field in wire_fields(name))
    # Rows of one table have few shapes (tuples of field names): what a shape carries is worked out once.
    shapes: dict[tuple[str, ...], tuple[str, ...]] = {}

    def carry_all(row: Row, out: Row) -> None:
        shape = tuple(row)
        carried = shapes.get(shape)
        if carried is None:
            if len(shapes) >= _KNOWN_SHAPES:
                shapes.clear()
            carried = tuple(name for name in shape if name not in skipped and not name.startswith("odata."))
            shapes[shape] = carried
        for name in carried:
            value = row[name]
            # the service stores no nulls, so a null an application sent is not a property
            if value is not None:
                out[name] = value

    return carry_all


def moving(old: str, new: str, scope: Scope) -> Step:
    """Return the step that carries property `old` under the name `new`."""
    annotation, new_annotation = old + TYPE_SUFFIX, new + TYPE_SUFFIX

    def move(row: Row, out: Row) -> None:
        value = row.get(old)
        if value is None:
            return
        if new in out:
            raise scope.refusal(
                "bad-property-name",
                f"the row already has a property {new}",
                cure=f'drop it (props.drop("{new}")), rename it, or choose another name',
            )
        out[new] = value
        edm = row.get(annotation)
        if edm is not None:
            out[new_annotation] = edm

    return move


def copying(source: str, to: str, scope: Scope) -> Step:
    """Return the step that copies a property, a key or Timestamp to the name `to`."""
    move = moving(source, to, scope)
    if source != TIMESTAMP:
        return move
    annotation = to + TYPE_SUFFIX

    def copy_timestamp(row: Row, out: Row) -> None:
        if row.get(TIMESTAMP) is None:
            raise scope.refusal(
                "missing-property",
                "the row has no Timestamp",
                cure="read the row from the table first: only the service sets Timestamp",
            )
        move(row, out)
        out[annotation] = DATETIME

    return copy_timestamp


def setting(constant: Set) -> Step:
    """Return the step that sets a constant."""
    name, value, edm = constant.name, constant.value, constant.edm
    annotation = name + TYPE_SUFFIX

    def put(_: Row, out: Row) -> None:
        out[name] = value
        if edm in ANNOTATED:
            out[annotation] = edm

    return put


def casting(cast: Cast, scope: Scope) -> Step:
    """Return the step that casts a property of the new row."""
    name, to, was = cast.name, cast.to, cast.was
    annotation = name + TYPE_SUFFIX

    def change(_: Row, out: Row) -> None:
        if name not in out:
            return
        edm = edm_type(out, name)
        if edm == to and was is None:
            return
        try:
            if was is not None and edm != was:
                raise Lossy
            out[name] = cast_value(out[name], edm, to)
        except Lossy:
            raise scope.refusal(
                "bad-cast",
                f"{name} is {edm} with a value that cannot become {to} without loss"
                if was is None or edm == was
                else f"{name} is {edm}, not {was} as the cast declares",
                cure="mend the rows, or leave the cast out",
            ) from None
        out.pop(annotation, None)
        if to in ANNOTATED:
            out[annotation] = to

    return change
