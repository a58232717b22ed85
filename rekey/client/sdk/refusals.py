"""How a refusal gets past the SDK: the SDK's methods, raising what the answer carries.

Rules kept here:

* The SDK decodes every error answer into an exception of its own. Where the answer stands for a refusal of
  rekey, the caller gets that: with its code and its text, and still an `HttpResponseError`.
* The SDK's methods keep their signatures, and nothing else about them changes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from azure.core.async_paging import AsyncItemPaged
from azure.core.exceptions import HttpResponseError
from azure.core.paging import ItemPaged

from rekey.client.sdk.answers import AsyncAnswer, SyncAnswer
from rekey.client.sdk.errors import DualWriteRefused, TransactionRefused

C = TypeVar("C")

_CALLS = (
    "create_entity",
    "create_table",
    "delete_entity",
    "delete_table",
    "get_entity",
    "get_table_access_policy",
    "set_table_access_policy",
    "submit_transaction",
    "update_entity",
    "upsert_entity",
)
_LISTS = ("list_entities", "query_entities")


def raising_refusals(client: type[C]) -> type[C]:
    """Make the methods a client class inherits from the SDK raise refusals as such."""
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
    """Return the refusal that an error of the SDK stands for, None when the service (or table) said it."""
    response = error.response
    if not isinstance(response, SyncAnswer | AsyncAnswer) or response.answer.refusal is None:
        return None
    if transaction:
        return TransactionRefused(response.answer.refusal, response, response.answer.index or 0)
    return DualWriteRefused(response.answer.refusal, response)


@contextmanager
def _raising(*, transaction: bool = False) -> Iterator[None]:
    """Raise an error of the SDK that stands for a refusal as that."""
    try:
        yield
    except HttpResponseError as error:
        refusal = refusal_in(error, transaction=transaction)
        if refusal is None:
            raise
        raise refusal from None


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
        pages: Any = _AsyncPages if isinstance(paged, AsyncItemPaged) else _Pages

        def by_page(continuation_token: Any = None) -> Any:
            return pages(paged.by_page(continuation_token))

        return kind(page_iterator_class=by_page)

    return calling


class _PagesOfTheSDK:
    """One of the SDK's iterators over pages."""

    def __init__(self, pages: Any) -> None:
        self._pages = pages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pages, name)


class _Pages(_PagesOfTheSDK, Iterator[Any]):
    """Pages, raising refusals as such."""

    def __next__(self) -> Any:
        with _raising():
            return next(self._pages)


class _AsyncPages(_PagesOfTheSDK, AsyncIterator[Any]):
    """Pages of the asynchronous client, raising refusals as such."""

    async def __anext__(self) -> Any:
        with _raising():
            return await anext(self._pages)
