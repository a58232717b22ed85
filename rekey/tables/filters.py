"""OData filters for key ranges, as pure functions.

Rules kept here:

* A quote inside a value doubles; nothing else is escaped, and no value is ever pasted unquoted. (The Azure
  SDK's own parameters break on parentheses, double spaces and None.)
* A range becomes up to three queries, each contiguous in the service's index. One query with `or` would turn
  into a scan of the whole partition. One of whole partitions (`LAST_ROW`) is a single query.
"""

from __future__ import annotations

from rekey.model import LAST_ROW, EntityKey, KeyRange


def quoted(value: str) -> str:
    """Return a string literal of OData: `it's` → `'it''s'`."""
    return "'" + value.replace("'", "''") + "'"


def range_filters(within: KeyRange) -> list[str]:
    """Return the filters whose results, one after the other, are the range in service order.

    An empty string means "no filter"; an empty list means that the range is empty.
    """
    after, upto = within.after, within.upto
    if after is None:
        return [""] if upto is None else _up_to(upto)
    if upto is not None and upto.order <= after.order:
        return []
    if upto is not None and after.partition == upto.partition:
        return [_rest_of_partition(after) + ("" if upto.row == LAST_ROW else f" and {_up_to_row(upto)}")]
    rest = [] if after.row == LAST_ROW else [_rest_of_partition(after)]
    beyond = f"PartitionKey gt {quoted(after.partition)}"
    if upto is None:
        return [*rest, beyond]
    between, *start = _up_to(upto)
    return [*rest, f"{beyond} and {between}", *start]


def modified_filter(modified_from: str) -> str:
    """Return the filter for rows whose Timestamp is at or after a UTC time."""
    return f"Timestamp ge datetime{quoted(modified_from)}"


def both(first: str, second: str) -> str:
    """Return the filter that holds when both hold; either may be empty."""
    return f"{first} and {second}" if first and second else first or second


def _up_to(upto: EntityKey) -> list[str]:
    if upto.row == LAST_ROW:
        return [f"PartitionKey le {quoted(upto.partition)}"]
    start = f"PartitionKey eq {quoted(upto.partition)} and {_up_to_row(upto)}"
    return [f"PartitionKey lt {quoted(upto.partition)}", start] if upto.partition else [start]


def _up_to_row(upto: EntityKey) -> str:
    return f"RowKey le {quoted(upto.row)}"


def _rest_of_partition(after: EntityKey) -> str:
    return f"PartitionKey eq {quoted(after.partition)} and RowKey gt {quoted(after.row)}"
