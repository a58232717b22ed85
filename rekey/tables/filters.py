"""OData filters for key ranges, as pure functions.

Rules kept here:

* A quote inside a value doubles; nothing else is escaped, and no value is ever pasted unquoted. (The Azure
  SDK's own parameters break on parentheses, double spaces and None.)
* A range becomes up to three queries, each contiguous in the service's index. One query with `or` would turn
  into a scan of the whole partition. One of whole partitions (`LAST_ROW`) is a single query.
* A filter is part of an address, whose length is limited: three keys of 512 CJK characters take 13.5 KiB. The
  lower bound is always exact. An upper bound that is too long is replaced by a shorter one that sorts no
  lower, so the last query of a range may go on beyond its end, and the reader has to stop there.
"""

from __future__ import annotations

from rekey.model import LAST_ROW, EntityKey, KeyRange
from rekey.tables.wire import escape

MAX_ADDRESS_BYTES = 12 * 1024
"""What a query's address may take. http.sys, in front of the service, and Node.js, below Azurite, take 16 KiB
for the request line and all headers together ("Http.sys registry settings for Windows", `MaxRequestBytes`;
Node.js, `--max-http-header-size`). What is left is for the headers: a token of Entra ID takes 1 to 3 KiB."""

_MOST_FILTER_BYTES = 7 * 1024
"""Beyond this the upper bound is shortened. Leaves room for the two keys of a continuation: 512 CJK
characters are 2 KiB of base64."""

_HIGH = "\ufffd"
"""Sorts behind every character but U+FFFE and U+FFFF, also behind astral ones, and every way takes it."""


def quoted(value: str) -> str:
    """Return a string literal of OData: `it's` → `'it''s'`."""
    return "'" + value.replace("'", "''") + "'"


def range_filters(within: KeyRange) -> list[str]:
    """Return the filters whose results, one after the other, are the range in service order.

    Rows beyond the range's end may follow. An empty string means "no filter"; an empty list means that the
    range is empty.
    """
    after, upto = within.after, within.upto
    if after is None:
        return [""] if upto is None else _up_to("", upto)
    if upto is not None and upto.order <= after.order:
        return []
    if upto is not None and after.partition == upto.partition:
        return [_at_most(_rest_of_partition(after), "RowKey", upto.row)]
    rest = [] if after.row == LAST_ROW else [_rest_of_partition(after)]
    beyond = f"PartitionKey gt {quoted(after.partition)}"
    return [*rest, *([beyond] if upto is None else _up_to(beyond, upto))]


def modified_filter(modified_from: str) -> str:
    """Return the filter for rows whose Timestamp is at or after a UTC time."""
    return f"Timestamp ge datetime{quoted(modified_from)}"


def both(first: str, second: str) -> str:
    """Return the filter that holds when both hold; either may be empty."""
    return f"{first} and {second}" if first and second else first or second


def _up_to(beyond: str, upto: EntityKey) -> list[str]:
    before = both(beyond, f"PartitionKey lt {quoted(upto.partition)}")
    if upto.row == LAST_ROW or len(escape(before)) > _MOST_FILTER_BYTES:
        return [_at_most(beyond, "PartitionKey", upto.partition)]
    start = _at_most(f"PartitionKey eq {quoted(upto.partition)}", "RowKey", upto.row)
    return [before, start] if upto.partition else [start]


def _at_most(condition: str, name: str, bound: str) -> str:
    """Add an upper bound to a condition: one that sorts no lower where it is too long, none without room."""
    if bound == LAST_ROW:
        return condition
    exact = both(condition, f"{name} le {quoted(bound)}")
    if len(escape(exact)) <= _MOST_FILTER_BYTES:
        return exact
    left = _MOST_FILTER_BYTES - len(escape(both(condition, f"{name} le {quoted(_HIGH)}")))
    if left < 0:
        return condition
    # By characters, not UTF-16 units: no surrogate pair is split.
    cut = 0
    while (left := left - len(escape(bound[cut].replace("'", "''")))) >= 0:
        cut += 1
    while cut >= 0 and bound[cut] >= _HIGH and bound[cut] <= "\uffff":
        cut -= 1
    return condition if cut < 0 else both(condition, f"{name} le {quoted(bound[:cut] + _HIGH)}")


def _rest_of_partition(after: EntityKey) -> str:
    return f"PartitionKey eq {quoted(after.partition)} and RowKey gt {quoted(after.row)}"
