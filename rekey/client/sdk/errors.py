"""Refusals as the caller of a client gets them: errors of rekey and of azure-core at once. An error of the
service becomes the answer from which the SDK makes its own exceptions."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, TypeVar

from azure.core.async_paging import AsyncItemPaged
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.paging import ItemPaged
from azure.core.rest import AsyncHttpResponse, HttpResponse
from azure.data.tables import TableTransactionError

from rekey.client.sdk.answers import Answer, AsyncAnswer, SyncAnswer, answer_in_parts, error_answer
from rekey.errors import (
    Ambiguous,
    Collision,
    CredentialRefused,
    EndpointDown,
    RekeyError,
    RowRefused,
    RowTooBusy,
    ServiceError,
    TableMissing,
    Unavailable,
    WritesRefused,
)

C = TypeVar("C")
E = TypeVar("E", bound=AzureError)

_CALLS = (
    *("create_entity", "delete_entity", "get_entity", "update_entity", "upsert_entity", "submit_transaction"),
    *("create_table", "delete_table", "get_table_access_policy", "set_table_access_policy"),
)
_LISTS = ("list_entities", "query_entities")

NOTHING_WRITTEN = "nothing was written"
OPEN = "open"
OUTCOME_OPEN = "outcome-open"
UNAVAILABLE = "unavailable"
NOT_CONNECTED = "not-connected"
CREDENTIAL_REFUSED = "credential-refused"
TABLE_MISSING = "table-missing"
MAPPING_UNUSABLE = "mapping-unusable"
# Stable codes: never the class name of a library below.
_CODES = {
    EndpointDown: NOT_CONNECTED,
    Collision: "collision",
    CredentialRefused: CREDENTIAL_REFUSED,
    TableMissing: TABLE_MISSING,
}

# The service's own messages, by code: programs and people search for them.
_SAID_BY_THE_SERVICE = {
    "EntityAlreadyExists": "The specified entity already exists.",
    "ResourceNotFound": "The specified resource does not exist.",
    "EntityNotFound": "The specified entity does not exist.",
    "TableNotFound": "The table specified does not exist.",
    "UpdateConditionNotSatisfied": "The update condition specified in the request was not satisfied.",
    "ConditionNotMet": "The condition specified using HTTP conditional header(s) is not met.",
    "TableBeingDeleted": "The specified table is being deleted. Try operation later.",
    "RequestBodyTooLarge": "The request body is too large and exceeds the maximum permissible limit.",
    "InvalidDuplicateRow": "The batch request contains multiple changes with same row key.",
    "PropertiesNeedValue": "The values are not specified for all properties in the entity.",
}


class DualWriteRefused(RekeyError, HttpResponseError):
    """A dual write client refused to write or read; nothing was written.

    Attributes:
        code: stable: `frozen`, `new-view-closed`, `old-view-over`, `digest-moved`, ..., or what is wrong with
            the row: `missing-property`, `collision`, ...
        retryable: whether the same call may succeed later, with nothing done meanwhile.
        refusal: the error of rekey it stands for.
        outcome: `nothing was written`.
    """

    outcome = NOTHING_WRITTEN

    def __init__(self, refusal: RekeyError, response: HttpResponse | AsyncHttpResponse | None = None) -> None:
        """Create the exception for a refusal and the answer that the SDK was given for it."""
        self.what, self.kept, self.hint = refusal.what, refusal.kept, refusal.hint
        if isinstance(refusal, Unavailable) and NOTHING_WRITTEN not in self.what:
            self.what = f"{NOTHING_WRITTEN}: {self.what}"
        HttpResponseError.__init__(self, message=RekeyError.__str__(self), response=response)
        self.refusal = refusal
        self.code = self.error_code = code_of(refusal)
        self.retryable = isinstance(refusal, Unavailable | EndpointDown) or (
            isinstance(refusal, WritesRefused) and refusal.retryable
        )


class OutcomeOpen(ServiceResponseError):
    """A write was sent and not answered, and it could not be settled in time whether it was applied. Its code
    is `outcome-open`, its outcome `open`."""

    code = OUTCOME_OPEN
    outcome = OPEN


class TransactionRefused(DualWriteRefused, TableTransactionError):
    """A transaction was refused because of one operation. `index`: its position; 0 when the refusal is about
    no single operation."""

    def __init__(
        self, refusal: RekeyError, response: HttpResponse | AsyncHttpResponse | None, index: int
    ) -> None:
        DualWriteRefused.__init__(self, refusal, response)
        self.index = index


def code_of(refusal: RekeyError) -> str:
    """Return the stable code of a refusal."""
    if isinstance(refusal, WritesRefused | RowRefused):
        return refusal.code
    if isinstance(refusal, Unavailable):
        return refusal.code if isinstance(refusal, RowTooBusy) else UNAVAILABLE
    return next((code for kind, code in _CODES.items() if isinstance(refusal, kind)), MAPPING_UNUSABLE)


def answer_to_error(error: RekeyError, table: str, *, batch: bool = False) -> Answer:
    """Return the answer to give for an error of the writer, as the service would word it.

    Args:
        table: the table of the client. "No such table", about another one, must not be taken for this one.
        batch: whether it is the answer to a transaction.

    Raises:
        AzureError: there is no answer to give: the request was not sent, or its outcome is unknown.
    """
    if isinstance(error, Ambiguous):
        raise OutcomeOpen(str(error))
    if isinstance(error, EndpointDown):
        raise _with_outcome(ServiceRequestError(f"{NOTHING_WRITTEN}: {error}"), NOT_CONNECTED)
    if isinstance(error, CredentialRefused) and not error.status:
        raise _with_outcome(ClientAuthenticationError(str(error)), code_of(error))
    if (
        not isinstance(error, ServiceError)
        or isinstance(error, Unavailable)
        or (isinstance(error, TableMissing | CredentialRefused) and not _is_about(error, table))
    ):
        # 503: repeating it later is right (a freeze). 400: this row can never be written as it is. 403: this
        # client may not write now. Never 404, 409 or 412, which mean something else to an application.
        status = HTTPStatus.FORBIDDEN
        if isinstance(error, RowRefused | Collision):
            status = HTTPStatus.BAD_REQUEST
        elif isinstance(error, Unavailable) or (isinstance(error, WritesRefused) and error.retryable):
            status = HTTPStatus.SERVICE_UNAVAILABLE
        return error_answer(status, code_of(error), str(error), index=error.index, refusal=error)
    message = _SAID_BY_THE_SERVICE.get(error.code, error.what)
    if error.hint and error.code not in _SAID_BY_THE_SERVICE:
        message = f"{message}\nNext: {error.hint}"
    answered = error.status or HTTPStatus.BAD_REQUEST
    whole = answered in (401, 403, 413) or answered >= 500
    if not batch or whole:
        return error_answer(answered, error.code, message, index=error.index)
    if error.index is not None:
        message = f"{error.index}:{message}"
    return answer_in_parts([error_answer(answered, error.code, message, index=error.index)])


def _with_outcome(error: E, code: str = "") -> E:
    """Record in an error of the SDK that nothing was written, and a stable code."""
    error.outcome = NOTHING_WRITTEN  # type: ignore[attr-defined]
    if code:
        error.code = code  # type: ignore[attr-defined]
    return error


def _is_about(error: ServiceError, table: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(table)}(?![\w@])", error.what, re.IGNORECASE) is not None


# --- how a refusal gets past the SDK -----------------------------------------------------------------------


def raising_refusals(client: type[C]) -> type[C]:
    """Make the methods that a client class inherits from the SDK raise refusals as `DualWriteRefused`."""
    for name in _CALLS:
        inherited = getattr(client, name)
        transaction = name == "submit_transaction"
        if inspect.iscoroutinefunction(inspect.unwrap(inherited)):
            setattr(client, name, _awaited(inherited, transaction=transaction))
        else:
            setattr(client, name, _raising(transaction=transaction)(inherited))
    for name in _LISTS:
        setattr(client, name, _listed(getattr(client, name)))
    return client


def refusal_in(error: HttpResponseError, *, transaction: bool = False) -> DualWriteRefused | None:
    """Return the refusal that an error of the SDK stands for, None for an error of the service or table."""
    response = error.response
    if not isinstance(response, SyncAnswer | AsyncAnswer) or response.answer.refusal is None:
        return None
    if transaction:
        return TransactionRefused(response.answer.refusal, response, response.answer.index or 0)
    return DualWriteRefused(response.answer.refusal, response)


@contextmanager
def _raising(*, transaction: bool = False) -> Iterator[None]:
    try:
        yield
    except HttpResponseError as error:
        refusal = refusal_in(error, transaction=transaction)
        if refusal is not None:
            raise refusal from None
        if isinstance(error.response, SyncAnswer | AsyncAnswer):
            _with_outcome(error)
        raise


def _awaited(method: Callable[..., Any], *, transaction: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    async def calling(*args: Any, **kwargs: Any) -> Any:
        with _raising(transaction=transaction):
            return await method(*args, **kwargs)

    return calling


def _listed(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def calling(*args: Any, **kwargs: Any) -> Any:
        paged = method(*args, **kwargs)
        kind: Any = AsyncItemPaged if isinstance(paged, AsyncItemPaged) else ItemPaged

        def by_page(continuation_token: Any = None) -> Any:
            return _Pages(paged.by_page(continuation_token))

        return kind(page_iterator_class=by_page)

    return calling


class _Pages(Iterator[Any], AsyncIterator[Any]):
    """An SDK iterator over pages, of either client, that raises refusals as `DualWriteRefused`."""

    def __init__(self, pages: Any) -> None:
        self._pages = pages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pages, name)

    def __next__(self) -> Any:
        with _raising():
            return next(self._pages)

    async def __anext__(self) -> Any:
        with _raising():
            return await anext(self._pages)
