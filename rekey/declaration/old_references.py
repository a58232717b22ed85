"""Properties that only the source holds, since the new row holds a reference in their place
(`props.reference(…, keep_old=False)`): which row's old key each of them is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from rekey.core.edm import STRING, canonical, edm_type
from rekey.core.joint import is_joint, prefix_of
from rekey.core.limits import check_key
from rekey.declaration.keys.base import Evaluator, Expression, Scope, invalid, refuse_if
from rekey.declaration.props import Compute
from rekey.declaration.references import Reference
from rekey.errors import RowRefused
from rekey.model import PARTITION_KEY, ROW_KEY, EntityKey, Row

# What removed properties were, by their names.
OldValues: TypeAlias = Mapping[str, str]
NOTHING_LOOKED_UP: OldValues = {}

_COLUMNS = (PARTITION_KEY, ROW_KEY)


class ReferredKey(NamedTuple):
    """The row that a reference names: the script that migrates it, and its key in that script's main target,
    which may be joint."""

    via: str
    key: EntityKey


@dataclass(frozen=True)
class OldReference:
    """A property that only the source holds. Created by `old_reference_of`."""

    # The property's name in the source.
    name: str
    # The field of the declaration, for errors.
    field: str
    reference: Reference
    # What says the other row's new key: by its column, the property of the new row that holds it, or an
    # expression of the source row that does not need the removed property.
    columns: Mapping[str, str | Expression]

    @property
    def properties(self) -> tuple[str, ...]:
        """The properties of the new row that the removed one was turned into."""
        return tuple(column for column in self.columns.values() if isinstance(column, str))

    def is_same(self, target: Row, other: Row) -> bool:
        """Tell whether two new rows hold the same reference, or both hold none."""
        return all(_value(target, name) == _value(other, name) for name in self.properties)

    def is_in(self, target: Row) -> bool:
        """Tell whether a new row holds the reference, or a part of it."""
        return any(target.get(name) is not None for name in self.properties)

    def compile(self, scope: Scope) -> Callable[[Row, Row], ReferredKey | None]:
        """Return the function that gives the row which a new row refers to. It takes the new row, and the
        source row as far as the new row gives it back; it returns None if there is no such row."""
        evaluators = {
            name: column.compile(scope)
            for name, column in self.columns.items()
            if isinstance(column, Expression)
        }
        prefix = prefix_of(self.reference.target) if is_joint(self.reference.to.main) else ""

        def referred(target: Row, source: Row) -> ReferredKey | None:
            texts = {name: self._text(name, target, source, evaluators) for name in _COLUMNS}
            partition, row_key = texts[PARTITION_KEY], texts[ROW_KEY]
            if partition is None or row_key is None:
                return None
            return ReferredKey(self.reference.via, EntityKey(prefix + partition, row_key))

        return referred

    def _text(self, name: str, target: Row, source: Row, evaluators: Mapping[str, Evaluator]) -> str | None:
        column, text = self.columns[name], None
        with suppress(RowRefused):
            if isinstance(column, str):
                value = target.get(column)
                text = value if isinstance(value, str) and edm_type(target, column) == STRING else None
            else:
                text = evaluators[name](source, "")
            if text is not None:
                check_key(text, self.field, allow_empty=True)
                return text
        return None

    def unknown(self, scope: Scope) -> RowRefused:
        """Return the error for a new row whose old reference cannot be looked up."""
        via, to = self.reference.via, self.properties[-1]
        problem = f"{via} does not know the row that {to} names, so its old key could not be found again"
        cure = (
            f"refer to a row that {via} has copied or that its clients have created, and create that row"
            " first; or wait until this migration is complete"
        )
        return scope.refusal("no-old-reference", problem, cure=cure)


def old_reference_of(
    operation: Compute,
    computed: Mapping[str, Compute],
    can_read: Callable[[str], bool],
    casts: Mapping[str, object],
) -> OldReference:
    """Return what is needed to look up the property that a reference removes.

    Args:
        operation: the reference.
        computed: the operations that compute properties of the new row, by those.
        can_read: tells whether the new row says what a property of the source is.
        casts: names of the new row's properties that are cast.

    Raises:
        InvalidDeclaration: two old keys may have one new key, or the new row does not say the other row's
            whole key.
    """
    reference, name = operation.reference, operation.removes
    if reference is None:
        raise ValueError("it is no reference")
    field = f"props.reference({operation.name})(keep_old)"
    refuse_if(not operation.of.distinguishes(name), field, "reference-not-unique", computed=operation)
    columns: dict[str, str | Expression] = {}
    for key in _COLUMNS:
        holder = operation.name if key == reference.column else _holder(reference, key, computed)
        if holder is not None:
            refuse_if(holder in casts, field, "holder-cast", holder=holder)
            columns[key] = holder
            continue
        expression = reference.new_key.get(key)
        if expression is None:
            raise invalid(field, "new-key-undeclared", key=key, via=reference.via)
        unread = ", ".join(sorted(each for each in expression.inputs() if each == name or not can_read(each)))
        refuse_if(unread, field, "new-key-unread", key=key, via=reference.via, unread=unread, name=name)
        columns[key] = expression
    return OldReference(name, field, reference, columns)


def _holder(reference: Reference, key: str, computed: Mapping[str, Compute]) -> str | None:
    """Return the property of the new row that holds the other column of the new key; None if none does."""
    for name, operation in computed.items():
        other = operation.reference
        if other is not None and other.column == key and _names_same_row(other, reference):
            return name
    return None


def _names_same_row(first: Reference, second: Reference) -> bool:
    # Rows of several kinds share a table; the new keys are those of the kind that each reference names.
    return (first.via, first.target, first.name) == (second.via, second.target, second.name) and (
        (first.old_key, first.new_key) == (second.old_key, second.new_key)
    )


def _value(row: Row, name: str) -> tuple[str, str] | None:
    return None if row.get(name) is None else canonical(row, name)
