"""What the service refuses to store, for the tables in memory: the documented limits, all of them.

Source: "Understanding the Table service data model" and "Table service error codes" in the Azure
documentation. Azurite leaves most of these unchecked. Where the documentation leaves open what becomes of a
value, one answer is taken here that rekey does not foresee: a whole number beyond Int32 without a type
becomes a Double.
"""

from __future__ import annotations

from rekey.core import edm, limits
from rekey.model import TYPE_SUFFIX, Row, is_custom, property_names
from rekey.tables.base import rejected
from rekey.tables.rules import merged, written_form

_FIRST_DATETIME = "1601-01-01"


def stored_form(row: Row) -> Row:
    """Return what the service keeps of a written row, or raise RequestRejected as it would."""
    kept, is_foreseen = written_form(row)
    if not is_foreseen:
        kept, is_foreseen = written_form({**kept, **_doubles(kept)})
    # No value is larger than its row: most are measured but once.
    row_bytes = limits.entity_bytes(kept) if is_foreseen else 0
    for name in property_names(kept):
        if len(name) > limits.MAX_NAME_CHARACTERS:
            raise rejected("PropertyNameTooLong", "a property name is too long")
        if not name.isidentifier():
            raise rejected("PropertyNameInvalid", "a property name is not an identifier")
        value = kept[name]
        is_datetime = kept.get(name + TYPE_SUFFIX) == edm.DATETIME
        if not is_foreseen or (is_datetime and value < _FIRST_DATETIME):
            raise rejected("InvalidInput", "a value is not of its EDM type")
        if row_bytes > limits.MAX_VALUE_BYTES and (
            limits.value_bytes(edm.edm_type(kept, name), value) > limits.MAX_VALUE_BYTES
        ):
            raise rejected("PropertyValueTooLarge", "a value is longer than 64 KiB")
    if len(property_names(kept)) > limits.MAX_PROPERTIES:
        raise rejected("TooManyProperties", "a row has too many properties")
    if row_bytes > limits.MAX_ENTITY_BYTES:
        raise rejected("EntityTooLarge", "a row is larger than 1 MiB")
    return kept


def stored_merge(before: Row, changes: Row) -> Row:
    """Return what the service keeps after a merge, or raise RequestRejected as it would."""
    return stored_form(merged(before, changes))


def _doubles(row: Row) -> Row:
    """Return the whole numbers beyond Int32 of a row as Doubles."""
    return {
        name: float(value)
        for name, value in row.items()
        if type(value) is int
        and value not in edm.INT_RANGES[edm.INT32]
        and is_custom(name)
        and name + TYPE_SUFFIX not in row
    }
