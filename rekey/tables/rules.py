"""Pure checks for what the table service itself refuses.

Rules kept here:

* Sources: "Understanding the Table service data model", "Performing entity group transactions" and "Table
  service error codes" in the Azure documentation. Azurite leaves many of these unchecked, so the in-memory
  service is the strict one.
* Where documentation and observation differ the stricter value is kept: a string or binary value of 65,536
  bytes is refused. Keys are the exception (`rekey.core.limits`): applications have longer ones.
* What the service takes in several spellings has the one in which it comes back: a DateTime ends with Z
  ("Insert Entity" sends one without), a Guid has lower case and hyphens, an Int64 no sign +, no spaces and no
  leading zeros.
* A refusal carries the service's error code and never a key or a value.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Sequence
from uuid import UUID

from rekey.core import edm, limits
from rekey.core.clock import ticks_of
from rekey.core.guarantees import Guarantees
from rekey.errors import RequestRejected
from rekey.model import PARTITION_KEY, ROW_KEY, TYPE_SUFFIX, Row, is_custom
from rekey.tables.base import MAX_BATCH_OPERATIONS, Operation, rejected

_WHOLE = re.compile(r"\s*[+-]?\d{1,20}\s*", re.ASCII)
_DIGITS = re.compile("[0-9a-fA-F]{32}")


def check_table_name(name: str, *, elsewhere: bool = False) -> None:
    """Raise RequestRejected when the service would refuse a table name, or the table is not in this account.

    Args:
        name: as in the declaration.
        elsewhere: whether this is the account of `[targets]`.
    """
    own = limits.own_name(name) if elsewhere else name
    fits = limits.TABLE_NAME.fullmatch(own) and own.lower() != "tables"
    if not fits or limits.is_elsewhere(name) != elsewhere:
        raise rejected("InvalidResourceName", f"the service refuses the table name {name!r}")


def check_key_part(value: object) -> None:
    """Raise RequestRejected when the service would refuse a PartitionKey or RowKey."""
    if not isinstance(value, str):
        raise rejected("PropertiesNeedValue", "a row lacks PartitionKey or RowKey")
    if limits.utf16_units(value) > limits.MAX_KEY_UNITS:
        raise rejected("KeyValueTooLarge", f"a key is longer than {limits.MAX_KEY_UNITS} UTF-16 units")
    if limits.REFUSED_IN_KEYS.search(value):
        raise rejected("OutOfRangeInput", "a key has a character that the service refuses")


def too_large(guarantees: Guarantees) -> RequestRejected:
    """Return the error for a transaction with more bytes than the service takes."""
    most = (guarantees.batch_bytes + 1024) // 1024**2
    return rejected("RequestBodyTooLarge", f"a transaction has more than {most} MiB", status=413)


def check_batch(operations: Sequence[Operation]) -> None:
    """Raise RequestRejected for a transaction the service refuses as a whole (its size is checked apart)."""
    if not operations:
        raise rejected("InvalidInput", "a transaction needs at least one operation")
    if len(operations) > MAX_BATCH_OPERATIONS:
        problem = f"a transaction has more than {MAX_BATCH_OPERATIONS} operations"
        raise rejected("InvalidInput", problem, MAX_BATCH_OPERATIONS - 1)  # as the service counts
    partition = operations[0].row.get(PARTITION_KEY)
    alike = [operation.row.get(PARTITION_KEY) for operation in operations].count(partition)
    if alike == len(operations) == len({operation.row.get(ROW_KEY) for operation in operations}):
        return
    seen = set()
    for index, operation in enumerate(operations):
        row_key = operation.row.get(ROW_KEY)
        if operation.row.get(PARTITION_KEY) != partition:
            problem = "the operations of a transaction have different PartitionKeys"
            raise rejected("CommandsInBatchActOnDifferentPartitions", problem, index)
        if row_key in seen:
            raise rejected("InvalidDuplicateRow", "a transaction has two operations on one row", index)
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
        if len(name) > limits.MAX_NAME_CHARACTERS:
            problem = f"a property name is longer than {limits.MAX_NAME_CHARACTERS} characters"
            raise rejected("PropertyNameTooLong", problem)
        if not name.isidentifier():
            raise rejected("PropertyNameInvalid", "a property name is not an identifier")
        form, annotation = _value_form(value, row.get(name + TYPE_SUFFIX))
        if annotation is not None:
            kept[name + TYPE_SUFFIX] = annotation
        kept[name] = form
    if properties > limits.MAX_PROPERTIES:
        raise rejected("TooManyProperties", f"a row has more than {limits.MAX_PROPERTIES} properties")
    if len(kept) > limits.SURELY_SMALL_FIELDS and limits.entity_bytes(kept) > limits.MAX_ENTITY_BYTES:
        raise rejected("EntityTooLarge", "a row is larger than 1 MiB")
    return kept


def merged(before: Row, changes: Row) -> Row:
    """Return a row's content after a merge; a changed value does not keep its old annotation.

    Raises:
        RequestRejected: what the service would refuse.
    """
    after = dict(before)
    for name in changes:
        if is_custom(name):
            after.pop(name + TYPE_SUFFIX, None)
    after.update(changes)
    return stored_form(after)


def _value_form(value: object, kind: str | None) -> tuple[object, str | None]:
    """Return the JSON form and the annotation in which the service gives a value back."""
    if isinstance(value, str):
        return _text_form(value, kind)
    if isinstance(value, bool):
        fits = kind in (None, edm.BOOLEAN)
    elif isinstance(value, int):
        if kind == edm.DOUBLE:
            return float(value), None
        fits = kind in (None, edm.INT32) and value in edm.INT_RANGES[edm.INT32]
    else:
        fits = isinstance(value, float) and kind in (None, edm.DOUBLE) and math.isfinite(value)
    if not fits:
        raise _invalid()
    return value, None


def _text_form(value: str, kind: str | None) -> tuple[object, str | None]:
    if kind in (None, edm.STRING):
        if 2 * limits.utf16_units(value) > limits.MAX_VALUE_BYTES:
            raise rejected("PropertyValueTooLarge", "a string is longer than 64 KiB")
        return value, None
    if kind == edm.DOUBLE and value not in edm.NOT_FINITE:
        try:
            return float(value), None
        except ValueError:
            raise _invalid() from None
    if kind == edm.BOOLEAN and value.lower() in ("true", "false"):
        return value.lower() == "true", None
    if kind == edm.INT32 and _is_whole(value, kind):
        return int(value), None
    try:
        return _STAYS_TEXT[str(kind)](value), kind
    except (KeyError, ValueError):
        raise _invalid() from None


def _is_whole(text: str, kind: str) -> bool:
    return _WHOLE.fullmatch(text) is not None and int(text) in edm.INT_RANGES[kind]


def _int64(text: str) -> str:
    if not _is_whole(text, edm.INT64):
        raise ValueError("no Int64")
    return str(int(text))


def _not_finite(text: str) -> str:
    if text not in edm.NOT_FINITE:
        raise ValueError("a finite number")
    return text


def _guid(text: str) -> str:
    bare = text[1:-1] if text[:1] + text[-1:] in ("{}", "()") else text
    if not (edm.GUID_TEXT.fullmatch(bare) or _DIGITS.fullmatch(text)):
        raise ValueError("no Guid")
    return str(UUID(bare))


def _datetime(text: str) -> str:
    utc = text if text.endswith("Z") else f"{text}Z"
    ticks_of(utc)
    if utc < "1601-01-01":
        raise ValueError("before the service's first day")
    return utc


def _binary(text: str) -> str:
    if len(base64.b64decode(text, validate=True)) > limits.MAX_VALUE_BYTES:
        raise rejected("PropertyValueTooLarge", "a binary value is longer than 64 KiB")
    return text


# Types whose values the service gives back as annotated text, each with what makes that text of a value, or
# raises ValueError.
_STAYS_TEXT: dict[str, Callable[[str], str]] = {
    edm.INT64: _int64,
    edm.DOUBLE: _not_finite,
    edm.GUID: _guid,
    edm.DATETIME: _datetime,
    edm.BINARY: _binary,
}


def _invalid() -> RequestRejected:
    return rejected("InvalidInput", "a value is not of its EDM type")
