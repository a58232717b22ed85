"""From an answer of the service to one of rekey's errors: the one place where that is decided.

Rules kept here:

* Decided by status and error code, never by the message; of the message nothing is kept, since it can echo
  keys. A code that does not look like one is dropped.
* A 404 or 409 without its code says nothing about a row: something on the way may have answered. And a 409
  means "the row exists" only when its code says so: a table that is being deleted answers 409 too.
* Source: "Table service error codes" and "Status and error codes" in the Azure documentation.
"""

from __future__ import annotations

import re

from rekey.errors import (
    ConditionFailed,
    CredentialRefused,
    RequestRejected,
    RowExists,
    RowMissing,
    ServiceError,
    TableBeingDeleted,
    TableMissing,
    Unavailable,
)

_CODE = re.compile(r"[A-Za-z0-9_.]{1,80}")
_BY_CODE: dict[str, type[ServiceError]] = {
    "EntityAlreadyExists": RowExists,
    "TableBeingDeleted": TableBeingDeleted,
    "TableNotFound": TableMissing,
    "ResourceNotFound": RowMissing,
    "EntityNotFound": RowMissing,
    "UpdateConditionNotSatisfied": ConditionFailed,
    "ConditionNotMet": ConditionFailed,
    "ServerBusy": Unavailable,
    "OperationTimedOut": Unavailable,
    "InternalError": Unavailable,
}
_BY_STATUS: dict[int, type[ServiceError]] = {
    401: CredentialRefused,
    403: CredentialRefused,
    407: CredentialRefused,
    408: Unavailable,
    412: ConditionFailed,
    429: Unavailable,
}
_HINTS: dict[type[ServiceError], str] = {
    CredentialRefused: "check the account's key, or that the identity has the role Storage Table Data"
    " Contributor on this account (new roles take up to 30 minutes)",
    TableMissing: "check the table's name and the endpoint",
    TableBeingDeleted: "wait a minute and repeat, or use another name",
    Unavailable: "the service is busy or failing; repeat the command, which goes on where it stopped",
}
_TOO_LONG = (
    "address and headers may have been longer than 16 KiB, as keys of hundreds of characters outside ASCII"
    " can make them; use the account's key (`key_env`) or an identity in fewer groups: its token is shorter"
)

NOT_APPLIED_CODES = frozenset({"ServerBusy", "TooManyRequests"})
"""Codes of retryable answers that say that the request was turned away before any work was done."""


def clean_code(code: str) -> str:
    """Return an error code, "" when the text is not one."""
    return code if _CODE.fullmatch(code) else ""


def error_of(status: int, code: str, doing: str, *, index: int | None = None) -> ServiceError:
    """Return the error that an answer of 300 and more stands for.

    Args:
        status: HTTP status.
        code: the service's error code, "" when there was none.
        doing: what was asked, for the message, e.g. `insert into UsersV2`. No keys.
        index: position in a transaction.
    """
    code = clean_code(code)
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = Unavailable if status >= 500 and status != 501 else RequestRejected
    said = f"{status} {code}" if code else str(status)
    # http.sys, in front of the service, says 400 without a code; Node.js 431.
    too_long = status in (414, 431) or (status == 400 and not code)
    hint = _TOO_LONG if too_long else _HINTS.get(kind, "")
    return kind(f"{doing}: {said}", code=code, status=status, index=index, hint=hint)


def may_be_applied(error: ServiceError) -> bool:
    """Tell whether the request behind a retryable answer may have been applied all the same."""
    return error.code not in NOT_APPLIED_CODES and error.status != 429
