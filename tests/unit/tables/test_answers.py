"""From status and code to an error with a choice behind it."""

from __future__ import annotations

import pytest

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
from rekey.tables.answers import error_of, may_be_applied, note_length


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (409, "EntityAlreadyExists", RowExists),
        (409, "TableBeingDeleted", TableBeingDeleted),
        (409, "TableAlreadyExists", RequestRejected),
        (409, "", RequestRejected),
        (404, "ResourceNotFound", RowMissing),
        (404, "TableNotFound", TableMissing),
        (404, "", RequestRejected),
        (412, "UpdateConditionNotSatisfied", ConditionFailed),
        (412, "", ConditionFailed),
        (400, "InvalidInput", RequestRejected),
        (413, "RequestBodyTooLarge", RequestRejected),
        (501, "NotImplemented", RequestRejected),
        (401, "InvalidAuthenticationInfo", CredentialRefused),
        (403, "AuthorizationPermissionMismatch", CredentialRefused),
        (407, "", CredentialRefused),
        (408, "", Unavailable),
        (429, "TooManyRequests", Unavailable),
        (500, "OperationTimedOut", Unavailable),
        (500, "", Unavailable),
        (502, "", Unavailable),
        (503, "ServerBusy", Unavailable),
        (504, "", Unavailable),
    ],
)
def test_status_and_code_decide(status: int, code: str, kind: type[ServiceError]) -> None:
    error = error_of(status, code, "insert into Users", index=3)
    assert type(error) is kind
    assert (error.status, error.code, error.index) == (status, code, 3)
    assert "insert into Users" in str(error)


def test_what_does_not_look_like_a_code_is_not_repeated() -> None:
    error = error_of(400, "row ada@example.org is bad", "insert into Users")
    assert error.code == ""
    assert "ada" not in str(error)


@pytest.mark.parametrize(
    ("status", "code", "maybe"),
    [(503, "ServerBusy", False), (429, "", False), (500, "OperationTimedOut", True), (503, "", True)],
)
def test_only_being_turned_away_says_that_nothing_was_applied(status: int, code: str, maybe: bool) -> None:
    assert may_be_applied(error_of(status, code, "x")) is maybe


@pytest.mark.parametrize(
    ("status", "path", "is_too_long"),
    [
        (400, "Users()?$filter=" + "x" * 8_000, True),
        (400, "Users()", False),
        (414, "", True),
        (431, "", True),
    ],
)
def test_a_request_that_was_too_long_says_what_to_do(status: int, path: str, is_too_long: bool) -> None:
    """http.sys, in front of the service, says 400 without a code; to a short request something else did."""
    error = error_of(status, "", "read a page of Users")
    note_length(error, path)
    assert type(error) is RequestRejected
    assert ("16 KiB" in error.hint and "`key_env`" in error.hint) is is_too_long
    assert ("gateways and proxies on the way" in error.hint) is not is_too_long
    assert "16 KiB" not in error_of(400, "InvalidInput", "read a page of Users").hint
