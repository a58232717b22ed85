"""A pytest plugin: Microsoft's own tests of azure-data-tables on Azurite, with the SDK's client or with ours.

It stands in for `devtools_testutils`, which is not published: accounts, names, no recordings. Where a table's
client is made, a migration of that table is begun, in the view and the phase that `SETTING` names:
`plain`, `old-dual_write`, `new-dual_write`, `old-cutover` or `new-cutover`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

import azure.data.tables
import azure.data.tables._table_service_client as sync_services
import azure.data.tables.aio
import azure.data.tables.aio._table_service_client_async as async_services
import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import TableClient
from azure.data.tables.aio import TableClient as AsyncTableClient

from rekey import DualWriteTableClient, Migration, Target, keys, props
from rekey.aio import DualWriteTableClient as AsyncDualWriteTableClient
from rekey.client.reading import LeaseSettings
from rekey.core.limits import TABLE_NAME
from rekey.declaration.migration import Declared
from rekey.phases import ControlPhase
from rekey.rehearse.azurite import AzuriteAccount
from rekey.tables.azure import AzureTableService
from rekey.tables.credentials import SharedKey
from tests.begun import SECRETS, WRAPPING_KEY, Begun, declared_as

SETTING = os.environ["SDK_SETTING"]
GIVEN = json.loads(os.environ["SDK_ACCOUNTS"])
TABLES, RESTRICTED = (AzuriteAccount(**GIVEN[name]) for name in ("tables", "restricted"))
QUICK = LeaseSettings(poll_s=0.5, lease_s=15.0, longest_operation_s=30.0, freeze_wait_s=0.3)
MARK = crc32(SETTING.encode())


# --- what the tests import --------------------------------------------------------------------------------


class AzureRecordedTestCase:
    """The names and accounts that Microsoft's test classes ask their base for."""

    is_live = True

    def get_resource_name(self, prefix: str) -> str:
        """Return a name that is the same during one test."""
        return f"{prefix}{crc32(os.environ['PYTEST_CURRENT_TEST'].encode()):08x}{MARK:08x}"

    def create_random_name(self, prefix: str) -> str:
        """Return a name that is the same during one test."""
        return self.get_resource_name(prefix)

    def sleep(self, seconds: float) -> None:
        """Go on: Azurite deletes tables at once."""

    def generate_sas(self, make: Callable[..., str], *args: Any, **kwargs: Any) -> str:
        """Return a shared access signature."""
        kwargs.pop("fake_value", None)
        return make(*args, **kwargs)

    def get_credential(self, *_args: Any, **_kwargs: Any) -> Any:
        """Return no identity: Azurite takes none without HTTPS."""
        pytest.skip("Azurite takes no identity without HTTPS")


class PowerShellPreparer:
    """Gives tests the account."""

    def __init__(self, _folder: str, **_fakes: Any) -> None:
        pass

    def __call__(self, test: Callable[..., Any]) -> Callable[..., Any]:
        """Return a test with the account's name and key."""
        account = {
            "tables_storage_account_name": TABLES.name,
            "tables_primary_storage_account_key": TABLES.key,
            "variables": {},
        }
        if inspect.iscoroutinefunction(test):

            async def run_async(self: Any) -> None:
                await test(self, **account)

            return run_async

        def run(self: Any) -> None:
            test(self, **account)

        return run


def _unchanged(test: Callable[..., Any]) -> Callable[..., Any]:
    return test


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    pass


class ResponseCallback:
    """Changes the status of answers, as `devtools_testutils` does."""

    def __init__(self, status: int | None = None, new_status: int | None = None) -> None:
        self.status, self.new_status, self.first, self.count = status, new_status, True, 0

    def override_first_status(self, response: Any) -> None:
        """Change the status of the first answer that has it."""
        if self.first and response.http_response.status_code == self.status:
            response.http_response.status_code, self.first = self.new_status, False
        self.count += 1

    def override_status(self, response: Any) -> None:
        """Change the status of answers that have it."""
        if response.http_response.status_code == self.status:
            response.http_response.status_code = self.new_status
        self.count += 1


def _module(name: str, **content: Any) -> None:
    sys.modules[name] = module = ModuleType(name)
    vars(module).update(content)


@pytest.fixture(scope="session")
def _no_proxy() -> None:
    """Record nothing."""


_module(
    "devtools_testutils",
    AzureRecordedTestCase=AzureRecordedTestCase,
    PowerShellPreparer=PowerShellPreparer,
    ResponseCallback=ResponseCallback,
    recorded_by_proxy=_unchanged,
    is_live=lambda: True,
    get_credential=AzureRecordedTestCase().get_credential,
    set_custom_default_matcher=_nothing,
    add_general_regex_sanitizer=_nothing,
    add_body_key_sanitizer=_nothing,
    add_oauth_response_sanitizer=_nothing,
    remove_batch_sanitizers=_nothing,
    test_proxy=_no_proxy,
)
_module("devtools_testutils.aio", recorded_by_proxy_async=_unchanged)
_module("dateutil")
_module(
    "dateutil.tz",
    tzutc=lambda: timezone.utc,  # noqa: UP017 - by the name that tests look for
    tzoffset=lambda name, seconds: timezone(timedelta(seconds=seconds), name or "offset"),
)


# --- clients in place of the SDK's ------------------------------------------------------------------------


class Migrations:
    """Migrations of the tables that tests make, begun when a client first names them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._known: dict[str, Declared] = {}
        self._services: list[AzureTableService] = []

    def of(self, table: str, *, begun: bool) -> Declared:
        """Return the migration of a table, the source or the target as the setting says."""
        key = f"{table.lower()}{begun}"
        if key not in self._known:
            self._known[key] = declared = declared_as(f"s{crc32(key.encode()):08x}", migration_of(table))
            if begun:
                asyncio.run_coroutine_threadsafe(self._begin(declared), self._loop).result()
        return self._known[key]

    async def _begin(self, declared: Declared) -> None:
        if not self._services:
            self._services = [
                AzureTableService.open(one.endpoint, SharedKey.of(one.name, one.key))
                for one in (TABLES, RESTRICTED)
            ]
        begun = Begun(declared, *self._services)
        if await begun.store.read() is None:
            there = await self._services[0].table_exists(table_of(declared))
            await begun.create_tables()
            if not there:
                await self._services[0].delete_table(table_of(declared))  # the test creates it
            await begun.begin()
            await begun.move(ControlPhase.DUAL_WRITE, copied=True)
            if SETTING.endswith("cutover"):
                await begun.move(ControlPhase.FREEZE, ControlPhase.CUTOVER)


def migration_of(table: str) -> Migration:
    """Return a migration of a table: its RowKeys become opaque ids; or, from the new view, keys stay."""
    if SETTING.startswith("old-"):
        target = Target(
            f"{table[:60]}New",
            partition_key=keys.prop("PartitionKey"),
            row_key=keys.opaque(keys.prop("RowKey"), domain="user", secret="users"),
            properties=[props.copy("RowKey", to="OldRowKey")],
            allow_empty=True,
        )
        return Migration(table, target, capture="dual-write")
    target = Target(
        table,
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.prop("RowKey"),
        allow_empty=True,
    )
    return Migration(f"{table[:60]}Old", target, capture="dual-write")


def table_of(declared: Declared) -> str:
    """Return the table that the tests write to."""
    migration = declared.migration
    return migration.source if SETTING.startswith("old-") else migration.target.table


MIGRATIONS = Migrations()


def in_place_of(plain: type[Any], dual: type[Any]) -> Callable[..., Any]:
    """Return a class that makes the dual-write client where the SDK's was asked for."""

    class Ours(dual):  # type: ignore[misc]
        def __init__(self, endpoint: str, table_name: str, **kwargs: Any) -> None:
            if "pipeline" in kwargs:  # from a service client: its connection is not for writes
                for name in ("pipeline", "location_mode", "_hosts", "api_version"):
                    kwargs.pop(name, None)
            here = str(endpoint).startswith(TABLES.endpoint)
            super().__init__(
                endpoint,
                table_name,
                migration=MIGRATIONS.of(table_name, begun=here),
                secrets=SECRETS,
                wrapping_key=WRAPPING_KEY,
                restricted_endpoint=RESTRICTED.endpoint,
                restricted_credential=AzureNamedKeyCredential(RESTRICTED.name, RESTRICTED.key),
                settings=QUICK,
                shadow_reads=0.0,
                **kwargs,
            )

        def __new__(cls, endpoint: str, table_name: str, **kwargs: Any) -> Any:
            """Make the SDK's client for its own service client, which creates and deletes tables; and for a
            name that no table, so no migration, can have: it refuses that."""
            if INSIDE.get() or not (isinstance(table_name, str) and TABLE_NAME.fullmatch(table_name)):
                return plain(endpoint, table_name, **kwargs)
            return super().__new__(cls)

    Ours.__name__ = Ours.__qualname__ = "TableClient"
    return Ours


INSIDE = ContextVar("INSIDE", default=False)
"""Whether a method of the SDK's service client runs."""


def with_plain_clients(service: type[Any], name: str) -> None:
    """Let a method of a service client use the SDK's client, and return ours where it returned one."""
    method = getattr(service, name)

    def after(self: Any, found: Any) -> Any:
        return found if found is None else self.get_table_client(found.table_name)

    @contextmanager
    def inside() -> Iterator[None]:
        before = INSIDE.set(True)
        try:
            yield
        finally:
            INSIDE.reset(before)

    async def waiting(self: Any, *args: Any, **kwargs: Any) -> Any:
        with inside():
            found = await method(self, *args, **kwargs)
        return after(self, found)

    def calling(self: Any, *args: Any, **kwargs: Any) -> Any:
        with inside():
            found = method(self, *args, **kwargs)
        return after(self, found)

    setattr(service, name, waiting if inspect.iscoroutinefunction(inspect.unwrap(method)) else calling)


if SETTING != "plain":
    for service in (sync_services.TableServiceClient, async_services.TableServiceClient):
        for name in ("create_table", "create_table_if_not_exists", "delete_table"):
            with_plain_clients(service, name)
    sync_client = in_place_of(TableClient, DualWriteTableClient)
    async_client = in_place_of(AsyncTableClient, AsyncDualWriteTableClient)
    for module, kind in (
        (azure.data.tables, sync_client),
        (sync_services, sync_client),
        (azure.data.tables.aio, async_client),
        (async_services, async_client),
    ):
        vars(module)["TableClient"] = kind


# --- the run ----------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makemodule(module_path: Path) -> Iterator[Any]:
    """Point the tests' accounts at Azurite, as soon as they can be imported."""
    collector = yield
    from _shared.testcase import TableTestCase  # type: ignore[import-not-found]

    TableTestCase.account_url = lambda _self, _account, _kind: TABLES.endpoint
    return collector


OUTCOMES: dict[str, str] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the outcome of each test."""
    if report.when == "call" or report.outcome != "passed":
        OUTCOMES[report.nodeid.partition("/")[2] or report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Write the outcomes down."""
    Path(os.environ["SDK_OUTCOMES"]).write_text(json.dumps(OUTCOMES), encoding="utf-8")
