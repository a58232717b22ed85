"""What an answer of the service means: a row, a page, ETags, the time; or which of rekey's errors. Source:
"Table service error codes" and "Status and error codes" in the Azure documentation. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from rekey import errors
from rekey.model import Row
from rekey.tables.base import Operation, Verb
from rekey.tables.wire import BatchFailure, decode_row, decode_rows, error_code, parse_batch

_CODE = re.compile(r"[A-Za-z0-9_.]{1,80}")
# A 404 or 409 without its code says nothing about a row, since a proxy may have answered; and 409 means "the
# row exists" only with its code, as a table that is being deleted answers 409, too.
_BY_CODE: dict[str, type[errors.ServiceError]] = {
    "EntityAlreadyExists": errors.RowExists,
    "TableBeingDeleted": errors.TableBeingDeleted,
    "TableNotFound": errors.TableMissing,
    "ResourceNotFound": errors.RowMissing,
    "EntityNotFound": errors.RowMissing,
    "UpdateConditionNotSatisfied": errors.ConditionFailed,
    "ConditionNotMet": errors.ConditionFailed,
    "ServerBusy": errors.Unavailable,
    "OperationTimedOut": errors.Unavailable,
    "InternalError": errors.Unavailable,
}
_BY_STATUS: dict[int, type[errors.ServiceError]] = {
    401: errors.CredentialRefused,
    403: errors.CredentialRefused,
    407: errors.CredentialRefused,
    408: errors.Unavailable,
    412: errors.ConditionFailed,
    429: errors.Unavailable,
}
_HINTS: dict[type[errors.ServiceError], str] = {
    errors.CredentialRefused: "check the account's key, or that the identity has the role Storage Table Data"
    " Contributor on this account (new roles take up to 30 minutes)",
    errors.TableMissing: "check the table's name and the endpoint",
    errors.TableBeingDeleted: "wait a minute and repeat, or use another name",
    errors.Unavailable: "the service is busy or failing; repeat the command, which goes on where it stopped",
}
_NO_CODE = (
    "the answer names no error code, so the service itself may not have given it: check the endpoint, and"
    " gateways and proxies on the way"
)
# From this length on a path may, with the longest token of an identity, be too long for a server.
_LONG_PATH = 4 * 1024
_TOO_LONG = (
    "address and headers may have been longer than 16 KiB, as keys of hundreds of characters outside ASCII"
    " can make them; use the account's key (`key_env`) or an identity in fewer groups: its token is shorter"
)

# Our own code for a write that was not sent, because it was no longer allowed (`rekey.tables.allowance`).
NOT_SENT = "NotSent"
# Codes of retryable errors of a request for which no work was done.
NOT_APPLIED_CODES = frozenset({"ServerBusy", "TooManyRequests", NOT_SENT})


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def moment_of(header: str) -> datetime | None:
    """Return the time in a header of an answer, None when there is none."""
    try:
        moment = parsedate_to_datetime(header)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def clean_code(code: str) -> str:
    """Return an error code, "" when the text is not one: it could echo a key."""
    return code if _CODE.fullmatch(code) else ""


def error_of(status: int, code: str, doing: str, *, index: int | None = None) -> errors.ServiceError:
    """Return the error that an answer of status 300 or above stands for.

    Args:
        code: the service's error code, "" when there was none.
        doing: what was asked, for the message, e.g. `insert into UsersV2`. No keys.
        index: position in a transaction.
    """
    code = clean_code(code)
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = errors.Unavailable if status >= 500 and status != 501 else errors.RequestRejected
    text = f"{status} {code}" if code else str(status)
    hint = _HINTS.get(kind, "")
    if status in (414, 431):
        hint = _TOO_LONG
    elif status == 400 and not code:
        hint = _NO_CODE
    return kind(f"{doing}: {text}", code=code, status=status, index=index, hint=hint)


def note_length(error: errors.ServiceError, path: str) -> None:
    """Note in an error that its request may have been too long."""
    # http.sys, in front of the service, answers 400 without a code then (Node.js 431).
    if error.status == 400 and not error.code and len(path) > _LONG_PATH:
        error.hint = _TOO_LONG


def may_be_applied(error: errors.ServiceError) -> bool:
    """Tell whether a request may have been applied although its answer is a retryable error."""
    return error.code not in NOT_APPLIED_CODES and error.status != 429


class Fetched(NamedTuple):
    """One answer of a query and the parameters that continue it (None: the query is at its end)."""

    rows: list[Row]
    continuation: list[tuple[str, str]] | None
    bytes: int
    full: bool = False


def checked(answer: Answer, doing: str) -> Answer:
    """Return an answer without an error undecoded. Raises ServiceError for an error, as every `read_...`
    function does; these raise ValueError for an answer of an unexpected form, which counts as none."""
    if answer.status >= 300:
        code, _ = error_code(answer.body)
        raise error_of(answer.status, code or answer.headers.get("x-ms-error-code", ""), doing)
    return answer


def read_done(answer: Answer, doing: str) -> bool:
    """Return True for an answer without an error; its content does not matter."""
    checked(answer, doing)
    return True


def read_time(answer: Answer, doing: str) -> str:
    """Return the service's time, from the `Date` header of an answer without an error or of a 403."""
    if answer.status not in (200, 403):
        checked(answer, doing)
    moment = parsedate_to_datetime(answer.headers.get("Date", ""))
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.0000000Z")


def read_row(answer: Answer, doing: str) -> Row:
    """Return the row of a point read."""
    return decode_row(checked(answer, doing).body)


def read_tables(answer: Answer, doing: str) -> tuple[list[str], str | None]:
    """Return names of tables, and the continuation of the list; None at its end."""
    names = [listed["TableName"] for listed in json.loads(checked(answer, doing).body)["value"]]
    return names, answer.headers.get("x-ms-continuation-NextTableName") or None


def read_page(answer: Answer, doing: str) -> Fetched:
    """Return the rows of a query's answer and its continuation."""
    checked(answer, doing)
    partition = answer.headers.get("x-ms-continuation-NextPartitionKey")
    row = answer.headers.get("x-ms-continuation-NextRowKey")
    if partition is None or not (partition or row):
        return Fetched(decode_rows(answer.body), None, len(answer.body))
    # Azurite's header for an empty PartitionKey is empty and means that; the service's is `1!0!`. The row key
    # may be missing, or an empty header, which the service would refuse if sent back (400,
    # AzureStorageExplorer #5434 and #5584).
    continuation = [("NextPartitionKey", partition), *([("NextRowKey", row)] if row else [])]
    return Fetched(decode_rows(answer.body), continuation, len(answer.body))


def read_etag(answer: Answer, doing: str, operations: Sequence[Operation]) -> list[str | None]:
    """Return the new ETag of one write (None of a delete), as a list like that of a batch."""
    checked(answer, doing)
    return _etags_after(operations, [answer.headers.get("ETag")])


def read_batch(answer: Answer, doing: str, operations: Sequence[Operation]) -> list[str | None]:
    """Return the new ETags of a batch (None of deletes), in the order of its operations."""
    checked(answer, doing)
    read = parse_batch(answer.body, len(operations))
    if isinstance(read, BatchFailure):
        raise error_of(read.status, read.code, doing, index=read.index)
    return _etags_after(operations, read)


def _etags_after(operations: Sequence[Operation], etags: Sequence[str | None]) -> list[str | None]:
    pairs = list(zip(operations, etags, strict=True))
    if any(not etag for operation, etag in pairs if operation.verb is not Verb.DELETE):
        raise ValueError("the answer to a write has no ETag")
    return [None if operation.verb is Verb.DELETE else etag for operation, etag in pairs]
