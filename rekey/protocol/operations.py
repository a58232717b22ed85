"""What one operation does to one row, and what the service's answers imply for it. Pure."""

from __future__ import annotations

from dataclasses import replace

from rekey.errors import (
    Collision,
    ConditionFailed,
    CredentialRefused,
    EndpointDown,
    RekeyError,
    RequestRejected,
    RowExists,
    RowMissing,
    RowRefused,
    RowTooBusy,
    TableBeingDeleted,
    TableMissing,
    WritesRefused,
)
from rekey.model import Row, etag_of
from rekey.tables.answers import error_of
from rekey.tables.base import Operation, Verb
from rekey.tables.rules import check_key_part, merged, written_form

# Verbs that carry the whole row.
FULL = frozenset({Verb.INSERT, Verb.REPLACE, Verb.INSERT_OR_REPLACE})
MERGES = frozenset({Verb.MERGE, Verb.INSERT_OR_MERGE})
# Verbs that can create a row.
CREATES = frozenset({Verb.INSERT, Verb.INSERT_OR_REPLACE, Verb.INSERT_OR_MERGE})

# Errors after which the request certainly changed nothing, and never will. After any other the outcome is
# unknown.
NOT_APPLIED = (
    RowExists,
    RowMissing,
    ConditionFailed,
    RequestRejected,
    TableMissing,
    TableBeingDeleted,
    CredentialRefused,
    EndpointDown,
    RowRefused,
    Collision,
    RowTooBusy,
    WritesRefused,
)


def as_stored(operation: Operation) -> tuple[Operation, bool]:
    """Return an operation with its row as it is sent, and whether the service stores it in that form. Raises
    RequestRejected: the service would refuse the row's key."""
    if operation.verb is Verb.DELETE:
        check_key_part(operation.row.get("PartitionKey"))
        check_key_part(operation.row.get("RowKey"))
        return operation, True
    row, is_foreseen = written_form(operation.row)
    return replace(operation, row=row), is_foreseen


def is_conditional(operation: Operation) -> bool:
    """Tell whether the caller gave the ETag of the row it wants to change (`*` is none)."""
    return operation.etag not in (None, "", "*")


def row_after(operation: Operation, before: Row | None) -> Row | None:
    """Return a row's content after an operation, None when it is deleted. `before`: the row as read, None
    when there is none. Raises RowExists, RowMissing, ConditionFailed as the service would answer."""
    if operation.verb is Verb.INSERT:
        if before is not None:
            raise error_of(409, "EntityAlreadyExists", "the row is there")
        return operation.row
    if operation.verb in CREATES:
        merges = before is not None and operation.verb is Verb.INSERT_OR_MERGE
        return merged(before, operation.row) if merges and before is not None else operation.row
    if before is None:
        raise error_of(404, "ResourceNotFound", "the row is not there")
    if is_conditional(operation) and operation.etag != etag_of(before):
        raise error_of(412, "UpdateConditionNotSatisfied", "the row was changed meanwhile")
    if operation.verb is Verb.DELETE:
        return None
    return merged(before, operation.row) if operation.verb is Verb.MERGE else operation.row


def as_sent(operation: Operation, before: Row | None) -> Operation:
    """Return an operation as sent on the condition of the row read, or as an insert where there was none."""
    if before is None:
        return Operation(Verb.INSERT, operation.row)
    if operation.verb is Verb.DELETE:
        return Operation(Verb.DELETE, operation.row, etag_of(before))
    # Only a conditional merge has a known result, which can be mapped.
    verb = Verb.MERGE if operation.verb in MERGES else Verb.REPLACE
    return Operation(verb, operation.row, etag_of(before))


def is_lost_race(error: RekeyError, requested: Operation, sent: Operation) -> bool:
    """Tell whether an operation failed only on a condition that the caller never set, and is retried."""
    raced = isinstance(error, RowExists | RowMissing | ConditionFailed)
    return raced and sent is not requested and not is_conditional(requested)


def may_take_effect(error: BaseException) -> bool:
    """Tell whether a request that ended with this error may have been applied, or may yet be."""
    return not isinstance(error, NOT_APPLIED)
