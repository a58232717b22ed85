"""Driving TableClients alike, whichever they are: the SDK's or ours, asynchronous or not."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import AzureError
from azure.data.tables import TableClient, TableEntity
from azure.data.tables.aio import TableClient as AsyncTableClient

from rekey import DualWriteTableClient
from rekey.aio import DualWriteTableClient as AsyncDualWriteTableClient
from rekey.client.reading import LeaseSettings
from rekey.declaration.migration import Declared
from rekey.rehearse.azurite import Azurite, AzuriteAccount
from tests.worlds.begun_migrations import WRAPPING_KEY

QUICK = LeaseSettings(poll_s=0.05, lease_s=15.0, longest_operation_s=30.0, freeze_wait_s=0.3)
LISTING = frozenset({"list_entities", "query_entities"})


@dataclass(frozen=True)
class Outcome:
    """What a call gave: in a form in which two clients can be compared."""

    call: str
    result: Any = None
    error: tuple[Any, ...] | None = None


def described(value: Any) -> Any:
    """Return a result without what differs from run to run (ETags, dates), but with that it was there."""
    if isinstance(value, TableEntity):
        metadata = {name: type(one).__name__ for name, one in value.metadata.items()}
        return ("entity", {name: typed(one) for name, one in value.items()}, metadata)
    if isinstance(value, Mapping):
        return {name: shape(name, one) for name, one in value.items()}
    if isinstance(value, list):
        return [described(one) for one in value]
    return value if value is None else repr(value)


def typed(value: Any) -> Any:
    """Return a value with its type, and the digits of a time that Python's datetime lacks."""
    return type(value).__name__, repr(value), getattr(value, "tables_service_value", None)


def shape(name: str, value: Any) -> Any:
    """Return what can be compared of one piece of metadata."""
    if name in ("etag", "odata.etag"):
        return value is not None and value.startswith('W/"')
    if name in ("date", "version"):
        return type(value).__name__
    return value


def failure(error: Exception) -> tuple[Any, ...]:
    """Return what programs look at in an exception."""
    if not isinstance(error, AzureError):
        return type(error).__name__, str(error)[:40]
    code = getattr(error, "error_code", None)
    return (
        type(error).__name__,
        getattr(error, "status_code", None),
        None if code is None else str(getattr(code, "value", code)),
        getattr(error, "index", None),
    )


class Driver:
    """Calls a client's methods, awaits what must be awaited, and keeps what came of each call."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.log: list[Outcome] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = await self.raw(name, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
                self.log.append(Outcome(name, error=failure(error)))
                return None
            shown = dict(result) if name == "create_entity" else result
            if name == "create_entity" and "response_preference" not in kwargs:
                # Azurite says that it applied what nobody asked for; the service does not.
                shown.pop("preference_applied", None)
                shown.pop("content", None)
            self.log.append(Outcome(name, described(shown)))
            return result

        return call

    async def raw(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method; what it raises is raised. Pages are read to the end, page by page."""
        method = getattr(self.client, name)
        if isinstance(self.client, AsyncTableClient):
            found = method(*args, **kwargs)
            if name in LISTING:
                return [[one async for one in page] async for page in found.by_page()]
            return await found if inspect.isawaitable(found) else found

        def work() -> Any:
            found = method(*args, **kwargs)
            return [list(page) for page in found.by_page()] if name in LISTING else found

        return await asyncio.to_thread(work)


class Closing:
    """A client, closed whichever kind it is."""

    def __init__(self, client: Any) -> None:
        self.driver = Driver(client)

    async def __aenter__(self) -> Driver:
        return self.driver

    async def __aexit__(self, *_args: object) -> None:
        await self.driver.raw("close")


def credential(account: AzuriteAccount) -> AzureNamedKeyCredential:
    """Return the credential of an account."""
    if not account.key:
        pytest.skip("needs the account's key")
    return AzureNamedKeyCredential(account.name, account.key)


def plain(azurite: Azurite, table: str, *, sync: bool) -> AbstractAsyncContextManager[Driver]:
    """Open the SDK's own client."""
    kind = TableClient if sync else AsyncTableClient
    return Closing(kind(azurite.tables.endpoint, table, credential=credential(azurite.tables)))


def ours(
    azurite: Azurite, table: str, declared: Declared, secrets: Mapping[str, bytes], *, sync: bool, **more: Any
) -> AbstractAsyncContextManager[Driver]:
    """Open the dual write client."""
    kind = DualWriteTableClient if sync else AsyncDualWriteTableClient
    usual: dict[str, Any] = {
        "credential": credential(azurite.tables),
        "restricted_endpoint": azurite.restricted.endpoint,
        "restricted_credential": credential(azurite.restricted),
        "wrapping_key": WRAPPING_KEY,
        "settings": QUICK,
        "shadow_reads": 0.0,
    }
    endpoint = more.pop("endpoint", azurite.tables.endpoint)
    return Closing(kind(endpoint, table, migration=declared, secrets=secrets, **{**usual, **more}))
