"""What an answer of the service says: a row, a page, ETags, the time; or which error. Pure functions.

Rules kept here:

* Every reader raises the ServiceError that an error answer stands for, and ValueError for an answer that is
  not what was asked for: such an answer counts as none.
* A continuation is given back as the service gave it. Its row key may be missing, also as an empty header,
  which the service refuses to get back (400, AzureStorageExplorer #5434 and #5584).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from rekey.model import Row
from rekey.tables.answers import error_of
from rekey.tables.base import Operation, Verb
from rekey.tables.transport import Answer
from rekey.tables.wire import BatchFailure, decode_row, decode_rows, error_code, parse_batch


class Fetched(NamedTuple):
    """One answer of a query and the parameters that continue it (None: the query is at its end)."""

    rows: list[Row]
    continuation: list[tuple[str, str]] | None
    bytes: int
    full: bool = False


def _check(answer: Answer, doing: str) -> None:
    if answer.status >= 300:
        code, _ = error_code(answer.body)
        raise error_of(answer.status, code or answer.headers.get("x-ms-error-code", ""), doing)


def read_done(answer: Answer, doing: str) -> bool:
    """Return True for an answer without an error, whatever it holds."""
    _check(answer, doing)
    return True


def read_body(answer: Answer, doing: str) -> Answer:
    """Return an answer without an error as it is: what it holds is read later."""
    _check(answer, doing)
    return answer


def read_time(answer: Answer, doing: str) -> str:
    """Return the service's clock as it stands on any answer, also on "you may not do this" (403)."""
    if answer.status not in (200, 403):
        _check(answer, doing)
    moment = parsedate_to_datetime(answer.headers.get("Date", ""))
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.0000000Z")


def read_row(answer: Answer, doing: str) -> Row:
    """Return the row of a point read."""
    _check(answer, doing)
    return decode_row(answer.body)


def read_page(answer: Answer, doing: str) -> Fetched:
    """Return the rows of a query's answer and how to go on."""
    _check(answer, doing)
    partition = answer.headers.get("x-ms-continuation-NextPartitionKey")
    row = answer.headers.get("x-ms-continuation-NextRowKey")
    if partition is None or not (partition or row):
        return Fetched(decode_rows(answer.body), None, len(answer.body))
    # Azurite's header for an empty PartitionKey is empty and means that; the service's is `1!0!`.
    continuation = [("NextPartitionKey", partition), *([("NextRowKey", row)] if row else [])]
    return Fetched(decode_rows(answer.body), continuation, len(answer.body))


def read_etag(answer: Answer, doing: str, operation: Operation) -> list[str | None]:
    """Return the new ETag of one write (None of a delete), as a list like that of a batch."""
    _check(answer, doing)
    return [_etag_after(operation, answer.headers.get("ETag"))]


def read_batch(answer: Answer, doing: str, operations: Sequence[Operation]) -> list[str | None]:
    """Return the new ETags of a batch (None of deletes), in the order of its operations."""
    _check(answer, doing)
    read = parse_batch(answer.body, len(operations))
    if isinstance(read, BatchFailure):
        raise error_of(read.status, read.code, doing, index=read.index)
    return [_etag_after(operation, etag) for operation, etag in zip(operations, read, strict=True)]


def _etag_after(operation: Operation, etag: str | None) -> str | None:
    if operation.verb is Verb.DELETE:
        return None
    if not etag:
        raise ValueError("the answer to a write has no ETag")
    return etag
