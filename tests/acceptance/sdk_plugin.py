"""A pytest plugin: Microsoft's own tests of azure-data-tables on Azurite, with the SDK's client or with ours.

It stands in for `devtools_testutils`, which is not published: accounts, names, no recordings. When a table's
client is first used, a migration of that table is begun, in the view and the phase that `SETTING` names:
`old-dual_write`, `new-dual_write`, `old-cutover` or `new-cutover`; with `plain` clients are the SDK's own.
With `proxied` they are, too, and all goes through a proxy beside; with `proxied-dual_write` and
`proxied-cutover` that carries each table, as the source of a migration that is begun before it is created.

Creating and deleting tables is left to the SDK's client: tests begin and end with it, and a dual-write client
deletes no table of a migration. What is in a table, in both views, is noted before it is deleted.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta, timezone
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from zlib import crc32

import azure.core.pipeline.transport
import azure.data.tables
import azure.data.tables._table_client as sync_clients
import azure.data.tables._table_service_client as sync_services
import azure.data.tables.aio
import azure.data.tables.aio._table_client_async as async_clients
import azure.data.tables.aio._table_service_client_async as async_services
import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import HTTPPolicy
from azure.core.pipeline.transport import RequestsTransport
from azure.data.tables import TableClient
from azure.data.tables._generated.aio.operations import TableOperations as AsyncOperations
from azure.data.tables._generated.operations import TableOperations
from azure.data.tables.aio import TableClient as AsyncTableClient

from rekey import DualWriteTableClient, Migration, Target, keys, props
from rekey.aio import DualWriteTableClient as AsyncDualWriteTableClient
from rekey.client.sdk.core import ClientCore
from rekey.client.sdk.options import ClientOptions
from rekey.core.limits import TABLE_NAME
from rekey.declaration.migration import Declared
from rekey.errors import TableMissing
from rekey.model import ROW_KEY, Row, content_of
from rekey.phases import ControlPhase
from rekey.protocol.opening import Prepared
from rekey.proxy import running as running_proxy
from rekey.proxy.route import Route, Routes, cores_of
from rekey.rehearse.azurite import Azurite, AzuriteAccount
from rekey.tables.azure import AzureTableService
from rekey.tables.credentials import SharedKey
from tests.worlds.begun_migrations import SECRETS, WRAPPING_KEY, Begun, declared_as
from tests.worlds.proxy import QUICK, config_of, proxied, through

SETTING = os.environ["SDK_SETTING"]
GIVEN = json.loads(os.environ["SDK_ACCOUNTS"])
TABLES, RESTRICTED = (AzuriteAccount(**GIVEN[name]) for name in ("tables", "restricted"))
OLD_ROW_KEY = "OldRowKey"
IS_PROXIED, IS_OLD = SETTING.startswith("proxied"), SETTING.startswith(("old-", "proxied-"))


def running() -> str:
    """Return the name of the test that runs."""
    return os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]


def mark() -> str:
    """Return what all names have that the test makes."""
    return f"{crc32(running().encode()):08x}"


# --- what the tests import --------------------------------------------------------------------------------


class AzureRecordedTestCase:
    """The names and accounts that Microsoft's test classes ask their base for."""

    is_live = True

    def get_resource_name(self, prefix: str) -> str:
        """Return a name that is the same during one test."""
        return f"{prefix}{mark()}"

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


# --- migrations of the tests' tables ----------------------------------------------------------------------


class Tables:
    """The migrations of tables that tests make, begun when a client is first used; and what is in tables when
    they are deleted."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._begun: dict[str, Declared] = {}
        self._services: list[AzureTableService] = []
        self._carried: dict[str, ClientCore] = {}
        self.left: dict[str, dict[str, list[list[Row]]]] = {}
        self.apart: dict[str, list[str]] = {}

    def begin(self, declared: Declared) -> None:
        """Begin a migration, if that was not done."""
        table = table_of(declared).lower()
        if table not in self._begun:
            self._begun[table] = declared
            self._wait(self._begin(declared))

    def proxy(self) -> str:
        """Start a proxy; return its endpoint for the account."""
        azurite = cast(Azurite, SimpleNamespace(tables=TABLES, restricted=RESTRICTED))
        self._config = config_of(Path(mkdtemp()), azurite, pytest.MonkeyPatch())
        self._proxy = proxied(self._config)
        return through(self._wait(self._proxy.__aenter__()), azurite)

    def carry(self, table: str) -> None:
        """Let the proxy carry a table, as the source of a migration."""
        if IS_OLD and TABLE_NAME.fullmatch(table) and mark() in table:
            self.begin(declared(table))
            prepared = Prepared.of(self._config, declared(table))
            cores = cores_of(
                self._config, [prepared], lambda one, name: ClientOptions(one, name, settings=QUICK)
            )
            self._carried[table.lower()] = core = cores[table]
            ROUTES[0]._routes[""][table.lower()] = Route(table, core)

    def drop(self, table: str) -> bool:
        """Delete a table that the proxy carries, and refuses to delete; tell whether it was one."""
        core = self._carried.pop(table.lower(), None)
        if core is not None:
            self._wait(core.close())
            del ROUTES[0]._routes[""][table.lower()]
        return core is not None

    def end_carrying(self) -> None:
        """Carry no table any more: its client would look at its control row for ever."""
        for table in [*self._carried]:
            self.drop(table)

    def note(self, table: str) -> None:
        """Note a table of the test that is about to be deleted; and whether the other view had its rows."""
        if any(table == other_of(one) for one in self._begun.values()) or mark() not in table:
            return
        rows = self._wait(self._rows(table))
        if rows is None:
            return
        self.left.setdefault(running(), {}).setdefault(table, []).append(rows)
        declared = self._begun.get(table.lower())
        if declared is not None and self._wait(self._rows(other_of(declared))) != rows:
            self.apart.setdefault(running(), []).append(table)

    def close(self) -> None:
        """Close the connections."""
        if IS_PROXIED:
            self._wait(self._proxy.__aexit__(None, None, None))
        for one in self._services:
            self._wait(one.close())

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _opened(self) -> list[AzureTableService]:
        if not self._services:
            self._services = [
                AzureTableService.open(one.endpoint, SharedKey.of(one.name, one.key))
                for one in (TABLES, RESTRICTED)
            ]
        return self._services

    async def _begin(self, declared: Declared) -> None:
        tables, restricted = await self._opened()
        begun = Begun(declared, tables, restricted)
        there = await tables.table_exists(table_of(declared))
        await begun.create_tables()
        if not there:
            await tables.delete_table(table_of(declared))  # the test creates it
        await begun.begin()
        await begun.move(ControlPhase.DUAL_WRITE, copied=True)
        if SETTING.endswith("cutover"):
            await begun.move(ControlPhase.FREEZE, ControlPhase.CUTOVER)

    async def _rows(self, table: str) -> list[Row] | None:
        """Return a table's rows by their old keys, None if there is no such table."""
        tables, _ = await self._opened()
        try:
            rows = [content_of(row) async for page in tables.table(table).scan() for row in page.rows]
        except TableMissing:
            return None
        for row in rows:
            if OLD_ROW_KEY in row:
                row[ROW_KEY] = row.pop(OLD_ROW_KEY)
        return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def declared(table: str) -> Declared:
    """Return the migration of a table."""
    return declared_as(f"s{crc32(table.lower().encode()):08x}", migration_of(table))


def migration_of(table: str) -> Migration:
    """Return a migration of a table: its RowKeys become opaque ids; or, from the new view, keys stay."""
    if IS_OLD:
        target = Target(
            f"{table[:60]}New",
            partition_key=keys.prop("PartitionKey"),
            row_key=keys.opaque(keys.prop("RowKey"), domain="user", secret="users"),
            properties=[props.copy("RowKey", to=OLD_ROW_KEY)],
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
    return migration.source if IS_OLD else migration.target.table


def other_of(declared: Declared) -> str:
    """Return the table of the other view."""
    migration = declared.migration
    return migration.target.table if IS_OLD else migration.source


NOTED = Tables()


def noting(delete: Callable[..., Any]) -> Callable[..., Any]:
    """Return the SDK's deletion of a table that notes before what is in it."""

    def noted(self: Any, table: str, **kwargs: Any) -> Any:
        NOTED.note(table)
        NOTED.drop(table)  # from now on it passes
        return delete(self, table, **kwargs)

    return noted


def carrying(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return the SDK's creation of a table that lets the proxy carry the table first."""

    def carried(self: Any, table_properties: Any, *args: Any, **kwargs: Any) -> Any:
        if IS_PROXIED:
            NOTED.carry(table_properties.table_name)
        return create(self, table_properties, *args, **kwargs)

    return carried


for operations in (TableOperations, AsyncOperations):
    operations.delete = noting(operations.delete)  # type: ignore[method-assign]
    operations.create = carrying(operations.create)  # type: ignore[method-assign]


class Known(Routes):
    """The routes of the proxy, known to the tests."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        ROUTES.append(self)


ROUTES: list[Known] = []
running_proxy.Routes = Known  # type: ignore[misc]
ENDPOINT = NOTED.proxy() if IS_PROXIED else TABLES.endpoint
"""What the SDK's clients are given."""


# --- clients in place of the SDK's ------------------------------------------------------------------------


class Shown(RequestsTransport):
    """What tests derive transports from: requests go to `going_on`, where that is set, not to the service."""

    going_on: Callable[[], Any] | None = None

    def send(self, request: Any, **kwargs: Any) -> Any:
        """Send a request."""
        return super().send(request, **kwargs) if self.going_on is None else self.going_on()


class ShownFirst(HTTPPolicy[Any, Any]):
    """Shows requests to a transport that only looks at them: writes of ours never come to a transport."""

    def __init__(self, transport: Shown) -> None:
        super().__init__()
        self._transport = transport

    def send(self, request: PipelineRequest[Any]) -> PipelineResponse[Any, Any]:
        """Show a request, and go on."""
        options = request.context.options
        asked = {name: options.pop(name) for name in [*options] if name.startswith("verify_")}
        self._transport.going_on = lambda: self.next.send(request).http_response
        response = self._transport.send(request.http_request, **asked)
        return PipelineResponse(request.http_request, response, request.context)


MADE: list[DualWriteTableClient] = []
USED: set[str] = set()
"""Tests in which a client of ours did an operation."""


def in_place_of(plain: type[Any], dual: type[Any]) -> Callable[..., Any]:
    """Return a class that makes the dual-write client where the SDK's was asked for."""

    class Ours(dual):  # type: ignore[misc]
        def __init__(self, endpoint: str, table_name: str, **kwargs: Any) -> None:
            # It looks at requests. Others make requests fail: refused, because writes would not follow them.
            looks = type(kwargs.get("transport")).__name__ == "EncoderVerificationTransport"
            shown = {"per_call_policies": ShownFirst(kwargs.pop("transport"))} if looks else {}
            kwargs.pop("migration", None)
            given = {**kwargs}
            if "pipeline" in given:  # from a service client: its connection is not for writes
                for name in ("pipeline", "location_mode", "_hosts", "api_version"):
                    kwargs.pop(name, None)
            super().__init__(
                endpoint,
                table_name,
                migration=declared(table_name),
                secrets=SECRETS,
                wrapping_key=WRAPPING_KEY,
                restricted_endpoint=RESTRICTED.endpoint,
                restricted_credential=AzureNamedKeyCredential(RESTRICTED.name, RESTRICTED.key),
                shadow_reads=0.0,
                **shown,
                **kwargs,
            )
            self._plain = plain(endpoint, table_name, **given)
            self._own.append(self._plain)
            if dual is DualWriteTableClient:
                MADE.append(self)

        def __new__(cls, endpoint: str, table_name: str, **kwargs: Any) -> Any:
            """Make the SDK's client for a name that no table, so no migration, can have: it refuses that."""
            if not (isinstance(table_name, str) and TABLE_NAME.fullmatch(table_name)):
                return plain(endpoint, table_name, **kwargs)
            return super().__new__(cls)

        @classmethod
        def _made_by(cls, name: str, *args: Any, **kwargs: Any) -> Any:
            """Make a client from an address or a connection string, for a migration as ours ask."""
            return super()._made_by(name, *args, migration=None, **kwargs)

        def create_table(self, **kwargs: Any) -> Any:
            """Create the table, with the SDK's client."""
            return self._plain.create_table(**kwargs)

        def delete_table(self, **kwargs: Any) -> Any:
            """Delete the table, with the SDK's client."""
            return self._plain.delete_table(**kwargs)

    Ours.__name__ = Ours.__qualname__ = "TableClient"
    return Ours


def used(opened: Callable[..., Any]) -> Callable[..., Any]:
    """Begin the migration, and note the tests in which a client of ours is used."""

    def noted(self: ClientCore) -> Any:
        USED.add(running())
        NOTED.begin(self.options.declared)
        return opened(self)

    return noted


if IS_PROXIED:
    open_core = ClientCore.open

    def used_by_proxy(self: ClientCore) -> Any:
        """Note the tests in which the proxy carries something."""
        USED.add(running())
        return open_core(self)

    ClientCore.open = used_by_proxy  # type: ignore[method-assign]
elif SETTING != "plain":
    azure.core.pipeline.transport.RequestsTransport = Shown  # type: ignore[misc]
    ClientCore.open = used(ClientCore.open)  # type: ignore[method-assign]
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
    """Point the tests' account at Azurite, as soon as the tests can be imported."""
    collector = yield
    from _shared.testcase import TableTestCase  # type: ignore[import-not-found]

    if TableTestCase.account_url is not account_url:
        ADDRESSES.append(TableTestCase.account_url)
        TableTestCase.account_url = account_url
    return collector


ADDRESSES: list[Callable[..., str]] = []


def account_url(self: Any, account: str, kind: str) -> str:
    """Return Azurite's address, and for accounts that tests only name what the tests would."""
    return ENDPOINT if account == TABLES.name else ADDRESSES[0](self, account, kind)


def connection_of(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Return the SDK's reading of connection strings, with Azurite's address for its account."""

    def parsed(*args: Any, **kwargs: Any) -> Any:
        address, credential = parse(*args, **kwargs)
        return (ENDPOINT if f"//{TABLES.name}.table." in address else address), credential

    return parsed


for module in (sync_clients, sync_services, async_clients, async_services):
    vars(module)["parse_connection_str"] = connection_of(vars(module)["parse_connection_str"])


OUTCOMES: dict[str, str] = {}


def pytest_runtest_teardown() -> None:
    """Close the clients that a test left open: they would look at their control rows for ever."""
    NOTED.end_carrying()
    while MADE:
        MADE.pop().close()


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the outcome of each test."""
    if report.when == "call" or report.outcome != "passed":
        OUTCOMES[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Write down what was seen."""
    NOTED.close()
    seen = {"outcomes": OUTCOMES, "tables": NOTED.left, "apart": NOTED.apart, "used": sorted(USED)}
    Path(os.environ["SDK_SEEN"]).write_text(json.dumps(seen), encoding="utf-8")
