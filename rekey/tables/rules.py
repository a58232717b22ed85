"""What is checked of a request before it is sent, and the form in which the service stores it. Only what the
service certainly refuses, or what no address can carry, is refused here, with the service's error code and
never a key or a value. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from rekey.core import edm, limits
from rekey.errors import RequestRejected
from rekey.model import PARTITION_KEY, ROW_KEY, TYPE_SUFFIX, Row, is_custom
from rekey.tables.base import MAX_BATCH_OPERATIONS, Operation, rejected

_WHOLE = re.compile(r"\s*[+-]?\d{1,20}\s*", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DIGITS = re.compile("[0-9a-fA-F]{32}")
_BASE64 = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


class Written(NamedTuple):
    """A row as it is sent. `is_foreseen`: whether the service keeps it in this form, if it accepts it."""

    row: Row
    is_foreseen: bool


def check_table_name(name: str, *, in_target_account: bool = False) -> None:
    """Raise RequestRejected when the service would refuse a table name, or the table is not in this account
    (`in_target_account`: the target account).

    Source: "Understanding the Table service data model": `^[A-Za-z][A-Za-z0-9]{2,62}$`; `tables` is reserved.
    """
    own = limits.own_name(name) if in_target_account else name
    fits = limits.TABLE_NAME.fullmatch(own) and own.lower() != "tables"
    if not fits or limits.is_in_target_account(name) != in_target_account:
        raise rejected("InvalidResourceName", f"the service refuses the table name {name!r}")


def check_key_part(value: object) -> None:
    """Raise RequestRejected when the service would refuse a PartitionKey or RowKey.

    Sources: "Understanding the Table service data model" for the characters and the 1,024 characters, "Table
    service error codes" for the codes. Half a surrogate pair has no UTF-8: no address can name it.
    """
    if not isinstance(value, str):
        raise rejected("PropertiesNeedValue", "a row lacks PartitionKey or RowKey")
    if limits.utf16_units(value) > limits.MAX_KEY_UNITS:
        raise rejected("KeyValueTooLarge", f"a key is longer than {limits.MAX_KEY_UNITS} UTF-16 units")
    if limits.REFUSED_IN_KEYS.search(value):
        raise rejected("OutOfRangeInput", "a key has a character that the service refuses")


def too_large() -> RequestRejected:
    """Return the error for a transaction of more than 4 MiB ("Performing entity group transactions")."""
    return rejected("RequestBodyTooLarge", "a transaction has more than 4 MiB", status=413)


def check_batch(operations: Sequence[Operation]) -> None:
    """Raise RequestRejected for a transaction the service refuses as a whole (its size is checked
    separately).

    Source: "Performing entity group transactions": one PartitionKey, each entity once, at most 100 operations
    (recordings: index 99 for 101).
    """
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


def written_form(row: Row) -> Written:
    """Return a row as it is sent, or raise RequestRejected for its keys. Nulls are left out, which the
    service does not keep ("Payload format for Table service operations"), and what the server owns."""
    check_key_part(row.get(PARTITION_KEY))
    check_key_part(row.get(ROW_KEY))
    kept: Row = {PARTITION_KEY: row[PARTITION_KEY], ROW_KEY: row[ROW_KEY]}
    is_foreseen = True
    for name, value in row.items():
        if not is_custom(name) or value is None:
            continue
        annotation = row.get(name + TYPE_SUFFIX)
        form = _value_form(value, annotation)
        is_foreseen = is_foreseen and form is not None
        kept[name], annotation = form or (value, annotation)
        if annotation is not None:
            kept[name + TYPE_SUFFIX] = annotation
    return Written(kept, is_foreseen)


def merged(before: Row, changes: Row) -> Row:
    """Return a row's content after a merge; a changed value does not keep its old annotation."""
    after = dict(before)
    for name in changes:
        if is_custom(name):
            after.pop(name + TYPE_SUFFIX, None)
    after.update(changes)
    return written_form(after).row


def _value_form(value: object, kind: str | None) -> tuple[object, str | None] | None:
    """Return the JSON form and the annotation in which the service returns a value; None where that is
    unknown, or it refuses the value."""
    if isinstance(value, str):
        return _text_form(value, kind)
    if isinstance(value, bool):
        fits = kind in (None, edm.BOOLEAN)
    elif isinstance(value, int):
        if kind == edm.DOUBLE and abs(value) <= 2**53:
            return float(value), None
        fits = kind in (None, edm.INT32) and value in edm.INT_RANGES[edm.INT32]
    else:
        fits = isinstance(value, float) and kind in (None, edm.DOUBLE) and math.isfinite(value)
    return (value, None) if fits else None


def _text_form(value: str, kind: str | None) -> tuple[object, str | None] | None:
    if kind in (None, edm.STRING):
        return value, None
    if kind == edm.DOUBLE and _DECIMAL.fullmatch(value):
        return (float(value), None) if math.isfinite(float(value)) else None
    if kind == edm.BOOLEAN and value.lower() in ("true", "false"):
        return value.lower() == "true", None
    if kind == edm.INT32 and _is_whole(value, kind):
        return int(value), None
    stays = _STAYS_TEXT.get(str(kind))
    text = None if stays is None else stays(value)
    return None if text is None else (text, kind)


def _is_whole(text: str, kind: str) -> bool:
    return _WHOLE.fullmatch(text) is not None and int(text) in edm.INT_RANGES[kind]


def _guid(text: str) -> str | None:
    bare = text[1:-1] if text[:1] + text[-1:] in ("{}", "()") else text
    is_one = edm.GUID_TEXT.fullmatch(bare) or _DIGITS.fullmatch(text)
    return str(UUID(bare)) if is_one else None


# Types whose values the service returns as annotated text, each with what makes the canonical text of a
# value; None where it is unknown.
_STAYS_TEXT: dict[str, Callable[[str], str | None]] = {
    edm.INT64: lambda text: str(int(text)) if _is_whole(text, edm.INT64) else None,
    edm.DOUBLE: lambda text: text if text in edm.NOT_FINITE else None,
    edm.GUID: _guid,
    edm.DATETIME: edm.utc_text,
    edm.BINARY: lambda text: text if _BASE64.fullmatch(text) else None,
}
