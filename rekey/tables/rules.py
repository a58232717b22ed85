"""What the table service itself refuses, as pure checks.

Rules kept here:

* Sources: "Understanding the Table service data model", "Performing entity group transactions" and "Table
  service error codes" in the Azure documentation. Azurite leaves many of these unchecked, so the in-memory
  service is the strict one.
* Where documentation and observation differ the stricter value is kept: keys have at most 512 UTF-16 units
  (documented both as 1 KiB and as 1,024 characters); a string or binary value of 65,536 bytes is refused.
* A refusal carries the service's error code and never a key or a value.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

from rekey.core.clock import ticks_of
from rekey.core.edm import BOOLEAN, DATETIME, DOUBLE, GUID, INT32, INT64, STRING, TYPES
from rekey.core.limits import (
    MAX_ENTITY_BYTES,
    MAX_KEY_UNITS,
    MAX_NAME_CHARACTERS,
    MAX_PROPERTIES,
    MAX_VALUE_BYTES,
    entity_bytes,
    utf16_units,
)
from rekey.errors import RequestRejected
from rekey.model import PARTITION_KEY, ROW_KEY, TYPE_SUFFIX, Row, is_custom
from rekey.tables.base import MAX_BATCH_OPERATIONS, Operation

_REFUSED = re.compile("[/\\\\#?\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NAME = re.compile(r"[^\W\d]\w*")
_TABLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{2,62}")
_GUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_INT32_RANGE = range(-(2**31), 2**31)
_INT64_RANGE = range(-(2**63), 2**63)


def check_table_name(name: str) -> None:
    """Raise RequestRejected when the service would refuse a table name."""
    if not _TABLE_NAME.fullmatch(name) or name.lower() == "tables":
        raise _rejected("InvalidResourceName", f"the service refuses the table name {name!r}")


def check_key_part(value: object) -> None:
    """Raise RequestRejected when the service would refuse a PartitionKey or RowKey."""
    if not isinstance(value, str):
        raise _rejected("PropertiesNeedValue", "a row lacks PartitionKey or RowKey")
    if utf16_units(value) > MAX_KEY_UNITS:
        raise _rejected("KeyValueTooLarge", f"a key is longer than {MAX_KEY_UNITS} UTF-16 units")
    if _REFUSED.search(value):
        raise _rejected("OutOfRangeInput", "a key has a character that the service refuses")


def check_batch(operations: Sequence[Operation]) -> None:
    """Raise RequestRejected for a transaction the service refuses as a whole (its size is counted apart)."""
    if not operations:
        raise _rejected("InvalidInput", "a transaction needs at least one operation")
    if len(operations) > MAX_BATCH_OPERATIONS:
        raise _rejected("InvalidInput", f"a transaction has more than {MAX_BATCH_OPERATIONS} operations")
    partition = operations[0].row.get(PARTITION_KEY)
    seen = set()
    for index, operation in enumerate(operations):
        row_key = operation.row.get(ROW_KEY)
        if operation.row.get(PARTITION_KEY) != partition:
            raise _rejected(
                "CommandsInBatchActOnDifferentPartitions",
                "the operations of a transaction have different PartitionKeys",
                index,
            )
        if row_key in seen:
            raise _rejected("InvalidDuplicateRow", "a transaction has two operations on one row", index)
        seen.add(row_key)


def stored_form(row: Row) -> Row:
    """Return what the service keeps of a written row, or raise RequestRejected.

    Nulls are not kept, nor what the server owns; values take the JSON form and the annotation in which the
    service returns them.
    """
    check_key_part(row.get(PARTITION_KEY))
    check_key_part(row.get(ROW_KEY))
    kept: Row = {PARTITION_KEY: row[PARTITION_KEY], ROW_KEY: row[ROW_KEY]}
    properties = 0
    for name, value in row.items():
        if not is_custom(name) or value is None:
            continue
        properties += 1
        _check_name(name)
        edm = row.get(name + TYPE_SUFFIX)
        form, annotation = _value_form(value, edm)
        if annotation is not None:
            kept[name + TYPE_SUFFIX] = annotation
        kept[name] = form
    if properties > MAX_PROPERTIES:
        raise _rejected("TooManyProperties", f"a row has more than {MAX_PROPERTIES} properties")
    if entity_bytes(kept) > MAX_ENTITY_BYTES:
        raise _rejected("EntityTooLarge", "a row is larger than 1 MiB")
    return kept


def merged(before: Row, changes: Row) -> Row:
    """Return a row's content after a merge; the annotation of a changed value never stays behind.

    Raises:
        RequestRejected: what the service would refuse.
    """
    after = dict(before)
    for name in changes:
        if is_custom(name):
            after.pop(name + TYPE_SUFFIX, None)
    after.update(changes)
    return stored_form(after)


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME_CHARACTERS:
        raise _rejected(
            "PropertyNameTooLong", f"a property name is longer than {MAX_NAME_CHARACTERS} characters"
        )
    if not _NAME.fullmatch(name):
        raise _rejected("PropertyNameInvalid", "a property name is not an identifier")


def _value_form(value: object, edm: str | None) -> tuple[object, str | None]:
    """Return the JSON form and the annotation in which the service gives a value back."""
    if edm is not None and edm not in TYPES:
        raise _invalid()
    if isinstance(value, bool):
        return _boolean_form(value, edm)
    if isinstance(value, str):
        return _text_form(value, edm)
    if isinstance(value, int):
        return _whole_form(value, edm)
    if isinstance(value, float):
        return _double_form(value, edm)
    raise _invalid()


def _boolean_form(value: bool, edm: str | None) -> tuple[object, str | None]:
    if edm not in (None, BOOLEAN):
        raise _invalid()
    return value, None


def _whole_form(value: int, edm: str | None) -> tuple[object, str | None]:
    if edm == DOUBLE:
        return float(value), None
    if edm not in (None, INT32) or value not in _INT32_RANGE:
        raise _invalid()
    return value, None


def _double_form(value: float, edm: str | None) -> tuple[object, str | None]:
    # JSON has no NaN and no infinities: they travel as annotated text.
    if edm not in (None, DOUBLE) or value != value or value in (float("inf"), float("-inf")):
        raise _invalid()
    return value, None


def _text_form(value: str, edm: str | None) -> tuple[object, str | None]:
    if edm in (None, STRING):
        if 2 * utf16_units(value) > MAX_VALUE_BYTES:
            raise _rejected("PropertyValueTooLarge", "a string is longer than 64 KiB")
        return value, None
    if edm == DOUBLE:
        return _double_text_form(value)
    if edm == BOOLEAN:
        if value.lower() not in ("true", "false"):
            raise _invalid()
        return value.lower() == "true", None
    if edm == INT32:
        if not _is_whole(value, _INT32_RANGE):
            raise _invalid()
        return int(value), None
    if not _valid_text(value, str(edm)):
        raise _invalid()
    return value, edm


def _double_text_form(value: str) -> tuple[object, str | None]:
    if value in ("NaN", "Infinity", "-Infinity"):
        return value, DOUBLE
    try:
        return float(value), None
    except ValueError:
        raise _invalid() from None


def _valid_text(value: str, edm: str) -> bool:
    if edm == INT64:
        return _is_whole(value, _INT64_RANGE)
    if edm == GUID:
        return _GUID.fullmatch(value) is not None
    if edm == DATETIME:
        return _is_datetime(value)
    return _is_binary(value)


def _is_whole(text: str, within: range) -> bool:
    return re.fullmatch(r"-?\d{1,20}", text, re.ASCII) is not None and int(text) in within


def _is_datetime(text: str) -> bool:
    try:
        ticks_of(text)
    except ValueError:
        return False
    return text >= "1601-01-01"


def _is_binary(text: str) -> bool:
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    if len(decoded) > MAX_VALUE_BYTES:
        raise _rejected("PropertyValueTooLarge", "a binary value is longer than 64 KiB")
    return True


def _invalid() -> RequestRejected:
    return _rejected("InvalidInput", "a value is not of its EDM type")


def _rejected(code: str, what: str, index: int | None = None) -> RequestRejected:
    return RequestRejected(f"{what} ({code})", code=code, status=400, index=index)
