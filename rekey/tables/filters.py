"""OData filters for key ranges, as pure functions.

Rules kept here:

* A quote inside a value doubles; nothing else is escaped, and no value is ever pasted unquoted. (The Azure
  SDK's own parameters break on parentheses, double spaces and None.)
* A range becomes up to three queries, each contiguous in the service's index. One query with `or` would turn
  into a scan of the whole partition.
"""

from __future__ import annotations

from rekey.model import EntityKey, KeyRange


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
    if upto is None:
        return [_rest_of_partition(after), f"PartitionKey gt {quoted(after.partition)}"]
    if upto.order <= after.order:
        return []
    if after.partition == upto.partition:
        return [f"{_rest_of_partition(after)} and RowKey le {quoted(upto.row)}"]
    between = f"PartitionKey gt {quoted(after.partition)} and PartitionKey lt {quoted(upto.partition)}"
    return [_rest_of_partition(after), between, _start_of_partition(upto)]


def modified_filter(modified_from: str) -> str:
    """Return the filter for rows whose Timestamp is at or after a UTC time."""
    return f"Timestamp ge datetime{quoted(modified_from)}"


def both(first: str, second: str) -> str:
    """Return the filter that holds when both hold; either may be empty."""
    return f"{first} and {second}" if first and second else first or second


def _up_to(upto: EntityKey) -> list[str]:
    if not upto.partition:
        return [_start_of_partition(upto)]
    return [f"PartitionKey lt {quoted(upto.partition)}", _start_of_partition(upto)]


def _rest_of_partition(after: EntityKey) -> str:
    return f"PartitionKey eq {quoted(after.partition)} and RowKey gt {quoted(after.row)}"


def _start_of_partition(upto: EntityKey) -> str:
    return f"PartitionKey eq {quoted(upto.partition)} and RowKey le {quoted(upto.row)}"
