"""The clients in every phase, on Azurite: both views see each other's writes, and what must not be done is
refused with an error that is the SDK's, says what to do, and wrote nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from azure.core import MatchConditions
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import (
    AzureError,
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from azure.data.tables import (
    AccountSasPermissions,
    ResourceTypes,
    TableSasPermissions,
    TableTransactionError,
    generate_account_sas,
    generate_table_sas,
)

from rekey import DualWriteRefused, DualWriteTableClient, Index, LeaseSettings, Migration, Target, keys, props
from rekey.aio import DualWriteTableClient as AsyncDualWriteTableClient
from rekey.client.route import OtherRun
from rekey.declaration.mapper import Mapper
from rekey.errors import ConfigurationError, DeclarationError, SecretMissing, Unavailable
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.mapping.store import MappingStore
from rekey.model import EntityKey
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow
from rekey.protocol.journal import IntentAge, Journal
from rekey.protocol.opening import OpenMigration
from rekey.protocol.registry import ClientRow, Registry
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Operation, Verb
from tests.asserts.client_pairs import QUICK, Driver, credential, ours
from tests.fakes.fault_proxy import Answered, Fault, FaultProxy
from tests.worlds.begun_migrations import SECRETS, WRAPPING_KEY, Begun, declared_as

pytestmark = [pytest.mark.azurite]

DUAL, FREEZE, CUTOVER, COMPLETE = (
    ControlPhase.DUAL_WRITE,
    ControlPhase.FREEZE,
    ControlPhase.CUTOVER,
    ControlPhase.COMPLETE,
)
WAYS: dict[str, tuple[tuple[ControlPhase, ...], bool]] = {
    "dual_write": ((DUAL,), True),
    "cutover": ((FREEZE, CUTOVER), False),
    "complete": ((COMPLETE,), False),
}
both_kinds = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
IF_UNCHANGED = MatchConditions.IfNotModified


class Setting:
    """A migration of posts by month (keys from content, with an index by tag), and clients for it."""

    def __init__(self, azurite: Azurite, begun: Begun) -> None:
        self.azurite = azurite
        self.begun = begun
        migration = begun.declared.migration
        self.source, (self.main, self.by_tag) = migration.source, migration.tables

    @asynccontextmanager
    async def client(self, table: str, *, sync: bool = False, **more: Any) -> AsyncIterator[Driver]:
        """Open a client of a table."""
        declared = more.pop("declared", self.begun.declared)
        secrets = more.pop("secrets", SECRETS)
        async with ours(self.azurite, table, declared, secrets, sync=sync, **more) as driver:
            yield driver

    async def reach(self, *ways: str) -> None:
        """Begin, and go so far."""
        if await self.begun.store.read() is None:
            await self.begun.begin()
        for way in ways:
            phases, copied = WAYS[way]
            await self.begun.move(*phases, copied=copied)

    async def rows(self, table: str) -> dict[EntityKey, dict[str, Any]]:
        """Return the rows of a table by key, without the rest of what a read says."""
        found = {}
        async for page in self.begun.tables.table(table).scan():
            for row in page.rows:
                found[EntityKey(row["PartitionKey"], row["RowKey"])] = {
                    name: value for name, value in row.items() if "odata" not in name and name != "Timestamp"
                }
        return found

    async def intents(self) -> list[IntentAge]:
        """Return the intents of the migration; tests beside this one use the same table."""
        journal = Journal(self.begun.restricted.table(JOURNAL_TABLE), self.begun.declared.script_id)
        return [each async for ages in journal.ages() for each in ages]

    async def clients(self) -> list[ClientRow]:
        """Return the clients that are registered."""
        return await Registry(self.begun.restricted, self.begun.declared.script_id).list()


@pytest.fixture
async def setting(
    azurite: Azurite,
    tables_service: AzureTableService,
    restricted_service: AzureTableService,
    table_name: Callable[[str], str],
) -> Setting:
    """A migration that has tables and no control row."""
    migration = Migration(
        table_name("Posts"),
        Target(
            table_name("PostsV2"),
            partition_key=keys.prop("Month"),
            row_key=keys.opaque("RowKey", domain="post", secret="users"),
            properties=[props.copy("PartitionKey", to="Blog"), props.copy("RowKey", to="Slug")],
        ),
        indexes=[
            Index(
                table_name("PostsByTag"),
                each=keys.split("Tags", ","),
                partition_key=keys.item(),
                row_key=keys.prop("RowKey"),
            )
        ],
        capture="dual-write",
    )
    begun = Begun(declared_as(table_name("s"), migration), tables_service, restricted_service)
    return Setting(azurite, await begun.create_tables())


def post(slug: str = "one", month: str = "2024-01", **more: Any) -> dict[str, Any]:
    """Return a post as the old version writes it."""
    return {"PartitionKey": "blog", "RowKey": slug, "Month": month, "Tags": "a", **more}


async def refused(call: Awaitable[Any], code: str, status: int = 403) -> DualWriteRefused:
    """Assert that a call is refused with a code and a hint, as an error of the SDK."""
    with pytest.raises(DualWriteRefused) as caught:
        await call
    error = caught.value
    assert isinstance(error, HttpResponseError)
    assert (error.code, error.status_code) == (code, status), error
    assert error.hint
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    return error


# --- two views --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["dual_write", "cutover"])
async def test_canceled_writes_leave_nothing_that_a_freeze_would_wait_for(
    setting: Setting, phase: str
) -> None:
    """Each is done whole or not at all, and the client gives its lease back when it is closed."""
    await setting.reach(*(["dual_write"] if phase == "dual_write" else ["dual_write", "cutover"]))
    slugs = [f"p{number}" for number in range(24)]
    async with setting.client(setting.source) as old:
        await old.raw("list_entities")
        for number, slug in enumerate(slugs):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.001 * number):
                    await old.raw("upsert_entity", post(slug))
    assert not await setting.clients()
    assert not await setting.intents()
    written = {key.row for key in await setting.rows(setting.source)}
    assert written <= set(slugs)
    assert {row["Slug"] for row in (await setting.rows(setting.main)).values()} == written


@both_kinds
@pytest.mark.parametrize("phase", ["dual_write", "cutover"])
async def test_each_view_sees_what_the_other_wrote(setting: Setting, phase: str, sync: bool) -> None:
    await setting.reach(*(["dual_write"] if phase == "dual_write" else ["dual_write", "cutover"]))
    async with (
        setting.client(setting.source, sync=sync) as old,
        setting.client(setting.main, sync=sync) as new,
    ):
        await old.raw("create_entity", post(Title="first"))
        [[seen]] = await new.raw("list_entities")
        assert (seen["Blog"], seen["Slug"], seen["Title"]) == ("blog", "one", "first")

        mine = {**seen, "Title": "second"}
        etag = seen.metadata["etag"]
        await new.raw("update_entity", mine, etag=etag, match_condition=IF_UNCHANGED)
        again = await old.raw("get_entity", "blog", "one")
        assert again["Title"] == "second"
        again["Title"] = "third"
        await old.raw("update_entity", again, match_condition=IF_UNCHANGED)
        with pytest.raises(ResourceModifiedError):
            await new.raw("update_entity", mine, etag=etag, match_condition=IF_UNCHANGED)

        await new.raw("delete_entity", seen["PartitionKey"], seen["RowKey"])
        with pytest.raises(ResourceNotFoundError):
            await old.raw("get_entity", "blog", "one")
        assert await setting.rows(setting.by_tag) == {}

        made = {"PartitionKey": "2024-02", "RowKey": seen["RowKey"], "Month": "2024-02", "Tags": "b"}
        await new.raw("create_entity", {**made, "Blog": "blog", "Slug": "one"})
        assert (await old.raw("get_entity", "blog", "one"))["Month"] == "2024-02"
        with pytest.raises(ResourceExistsError):
            await old.raw("create_entity", post())
        assert list(await setting.rows(setting.by_tag)) == [EntityKey("b", "one")]


@pytest.mark.parametrize("phase", ["dual_write", "cutover"])
async def test_an_etag_of_the_other_view_does_not_match(setting: Setting, phase: str) -> None:
    await setting.reach(*(["dual_write"] if phase == "dual_write" else ["dual_write", "cutover"]))
    async with setting.client(setting.source) as old, setting.client(setting.main) as new:
        await old.raw("create_entity", post())
        [[of_new]] = await new.raw("list_entities")
        of_old = await old.raw("get_entity", "blog", "one")
        assert of_old.metadata["etag"] != of_new.metadata["etag"]
        for driver, entity, etag in (
            (old, of_old, of_new.metadata["etag"]),
            (new, of_new, of_old.metadata["etag"]),
        ):
            with pytest.raises(ResourceModifiedError):
                await driver.raw("update_entity", entity, etag=etag, match_condition=IF_UNCHANGED)


@pytest.mark.parametrize("phase", ["dual_write", "cutover"])
async def test_the_etag_of_a_write_is_that_of_its_view(setting: Setting, phase: str) -> None:
    await setting.reach(*(["dual_write"] if phase == "dual_write" else ["dual_write", "cutover"]))
    async with setting.client(setting.source) as old, setting.client(setting.main) as new:
        made = await old.raw("create_entity", post(N=1))
        moved = await old.raw(
            "update_entity", post(N=2), mode="replace", etag=made["etag"], match_condition=IF_UNCHANGED
        )
        [[seen]] = await new.raw("list_entities")
        again = await new.raw(
            "update_entity", {**seen, "N": 3}, match_condition=IF_UNCHANGED, etag=seen.metadata["etag"]
        )
        await new.raw("update_entity", {**seen, "N": 4}, match_condition=IF_UNCHANGED, etag=again["etag"])
        with pytest.raises(ResourceModifiedError):
            await old.raw("delete_entity", post(), etag=moved["etag"], match_condition=IF_UNCHANGED)
        assert (await old.raw("get_entity", "blog", "one"))["N"] == 4


async def test_the_new_view_opens_when_all_is_copied_and_is_alone_in_the_end(setting: Setting) -> None:
    await setting.begun.begin()
    async with setting.client(setting.source) as old, setting.client(setting.main) as new:
        for copied in (False, True):
            await setting.begun.move(*(() if copied else (DUAL,)), copied=False)
            await refused(new.raw("list_entities"), "new-view-closed")
            await refused(new.raw("get_entity", "p", "r"), "new-view-closed")
            await refused(new.raw("create_entity", post()), "new-view-closed")
            await refused(new.raw("submit_transaction", [("upsert", post())]), "new-view-closed")
            await refused(new.raw("delete_entity", "p", "r"), "new-view-closed")
            await old.raw("upsert_entity", post())
    await setting.begun.move(copied=True)
    await setting.reach("cutover")
    await setting.reach("complete")
    async with setting.client(setting.source) as old, setting.client(setting.main) as new:
        await refused(old.raw("upsert_entity", post()), "old-view-over")
        await refused(old.raw("get_entity", "blog", "one"), "old-view-over")
        [[seen]] = await new.raw("list_entities")
        await new.raw("upsert_entity", {**seen, "Title": "alone"})
        assert "Title" not in (await setting.rows(setting.source))[EntityKey("blog", "one")]


async def test_an_index_table_is_read_and_not_written_before_the_end(setting: Setting) -> None:
    await setting.reach("dual_write")
    async with setting.client(setting.source) as old, setting.client(setting.by_tag) as index:
        await old.raw("create_entity", post())
        [[seen]] = await index.raw("list_entities")
        assert seen["RowKey"] == "one"
        await refused(index.raw("upsert_entity", seen), "index-table")
        await refused(index.raw("submit_transaction", [("delete", seen)]), "index-table")
    await setting.reach("cutover", "complete")
    async with setting.client(setting.by_tag) as index:
        await index.raw("upsert_entity", {**seen, "Own": 1})
        assert (await index.raw("get_entity", "a", "one"))["Own"] == 1


@both_kinds
async def test_index_rows_follow_each_write_after_complete_until_the_handover(
    setting: Setting, sync: bool
) -> None:
    await setting.reach("dual_write", "cutover")
    await setting.begun.store.keep_maintaining()
    await setting.reach("complete")

    async def index_rows() -> list[tuple[str, str]]:
        found = (await setting.rows(setting.by_tag)).items()
        return sorted((key.partition, row["MainRowKey"][:5]) for key, row in found)

    def new_row(slug: str, tags: str) -> dict[str, Any]:
        return dict(Mapper(setting.begun.declared.migration, SECRETS).map(post(slug, Tags=tags))[0].row)

    one, two = new_row("one", "a,b"), new_row("two", "d")
    first, second = one["RowKey"][:5], two["RowKey"][:5]
    async with setting.client(setting.main, sync=sync) as new, setting.client(setting.by_tag) as index:
        await new.raw("create_entity", one)
        assert await index_rows() == [("a", first), ("b", first)]
        await new.raw("update_entity", {**one, "Tags": "b,c"}, mode="replace")
        assert await index_rows() == [("b", first), ("c", first)]
        pointer = {"MainPartitionKey": one["PartitionKey"], "MainRowKey": one["RowKey"]}
        await index.raw("upsert_entity", {"PartitionKey": "c", "RowKey": "one", "Own": 1, **pointer})
        found = await setting.rows(setting.by_tag)
        assert "Own" not in found[EntityKey("c", "one")], "put right by its main row"
        await new.raw("submit_transaction", [("delete", one), ("create", two)])
        assert await index_rows() == [("d", second)]
        await setting.begun.store.hand_over()
        await asyncio.sleep(3 * QUICK.poll_s)
        await new.raw("delete_entity", two)
        assert await index_rows() == [("d", second)], "the application's own"


# --- refusals ---------------------------------------------------------------------------------------------


@both_kinds
async def test_in_a_freeze_reads_go_on_and_writes_wait(setting: Setting, sync: bool) -> None:
    await setting.reach("dual_write")
    async with setting.client(setting.source, sync=sync) as old:
        await old.raw("create_entity", post())
        await setting.begun.move(FREEZE)
    patient = replace(QUICK, freeze_wait_s=30.0)
    async with (
        setting.client(setting.source, sync=sync) as hasty,
        setting.client(setting.source, sync=sync, settings=patient) as waits,
    ):
        assert (await hasty.raw("get_entity", "blog", "one"))["Month"] == "2024-01"
        error = await refused(hasty.raw("update_entity", post(N=1)), "frozen", 503)
        assert error.retryable
        assert error.response is not None
        assert error.response.headers["Retry-After"]
        waiting = asyncio.ensure_future(waits.raw("update_entity", post(N=2)))
        await waits.raw("get_entity", "blog", "one")
        assert not waiting.done()
        await setting.begun.move(CUTOVER)
        await waiting
    [row] = (await setting.rows(setting.main)).values()
    assert row["N"] == 2


@both_kinds
async def test_another_declaration_or_secret_is_refused_before_anything_is_written(
    setting: Setting, sync: bool
) -> None:
    await setting.reach("dual_write")
    moved = replace(setting.begun.declared, digest="0" * 64)
    async with setting.client(setting.source, sync=sync, declared=moved) as client:
        await refused(client.raw("create_entity", post()), "digest-moved")
    secret = {"users": b"another secret, also long enough"}
    async with setting.client(setting.source, sync=sync, secrets=secret) as client:
        await refused(client.raw("submit_transaction", [("upsert", post())]), "secret-moved")
    with pytest.raises(SecretMissing, match="users"):
        async with setting.client(setting.source, sync=sync, secrets={}):
            raise AssertionError("no client without its secret")
    for table in (setting.source, setting.main, setting.by_tag):
        assert await setting.rows(table) == {}


async def test_without_the_restricted_store_nothing_is_read_or_written(setting: Setting) -> None:
    nowhere = "http://127.0.0.1:9/nowhere"
    async with setting.client(setting.source, sync=True, restricted_endpoint=nowhere) as client:
        error = await refused(client.raw("create_entity", post()), "lease-lost", 503)
        assert error.retryable
        await refused(client.raw("get_entity", "blog", "one"), "lease-lost", 503)
    assert await setting.rows(setting.source) == {}


@both_kinds
@pytest.mark.parametrize("failures", [1, 1_000], ids=["once", "always"])
async def test_opening_while_the_restricted_store_is_busy_tries_again(
    setting: Setting, sync: bool, failures: int
) -> None:
    """What stays so is an error that `AzureError` catches, and leaves no session, no thread and no client."""
    await setting.reach("dual_write")
    failing = iter(range(failures))
    mapping_of = OpenMigration.mapping

    async def mapping(self: OpenMigration, control: ControlRow) -> MappingStore:
        if next(failing, None) is not None:
            raise Unavailable("busy", code="ServerBusy", status=503)
        return await mapping_of(self, control)

    async with setting.client(setting.source, sync=sync) as driver:
        client = driver.client
        with mock.patch.object(OpenMigration, "mapping", mapping):
            entering = asyncio.to_thread(client.__enter__) if sync else client.__aenter__()
            if failures == 1:
                await entering
                await driver.raw("create_entity", post())
                return
            with pytest.raises(AzureError) as refused:
                await entering
    assert isinstance(refused.value, DualWriteRefused)
    assert refused.value.retryable
    assert await setting.clients() == []


async def test_a_client_without_a_credential_is_a_value_error(setting: Setting) -> None:
    for kind in (DualWriteTableClient, AsyncDualWriteTableClient):
        with pytest.raises(ValueError, match="no credential for the restricted account"):
            kind(
                setting.azurite.tables.endpoint,
                setting.source,
                credential=credential(setting.azurite.tables),
                migration=setting.begun.declared,
                secrets=SECRETS,
                wrapping_key=WRAPPING_KEY,
                restricted_endpoint=setting.azurite.restricted.endpoint,
                restricted_credential=None,
            )


@both_kinds
async def test_rows_that_cannot_be_keyed_are_refused_by_operation(setting: Setting, sync: bool) -> None:
    await setting.reach("dual_write")
    nameless = {"PartitionKey": "blog", "RowKey": "x", "Tags": "a"}
    async with (
        setting.client(setting.source, sync=sync) as old,
        setting.client(setting.main, sync=sync) as new,
    ):
        await refused(old.raw("create_entity", nameless), "missing-property", 400)
        await refused(old.raw("upsert_entity", nameless, mode="replace"), "missing-property", 400)
        error = await refused(
            old.raw("submit_transaction", [("create", post()), ("create", nameless)]), "missing-property", 400
        )
        assert isinstance(error, TableTransactionError)
        assert error.index == 1
        orphan = {"PartitionKey": "2024-01", "RowKey": "x", "Month": "2024-01", "Tags": ""}
        await refused(new.raw("create_entity", orphan), "no-old-key", 400)
    for table in (setting.source, setting.main, setting.by_tag):
        assert await setting.rows(table) == {}


async def test_the_table_of_a_migration_is_not_deleted_through_a_client(setting: Setting) -> None:
    await setting.reach("dual_write")
    async with setting.client(setting.source) as old, setting.client(setting.main) as new:
        await refused(old.raw("delete_table"), "table-in-use")
        await refused(new.raw("delete_table"), "table-in-use")
    await setting.reach("cutover", "complete")
    async with setting.client(setting.main) as new:
        await new.raw("delete_table")
    assert await setting.begun.tables.table_exists(setting.source)
    assert not await setting.begun.tables.table_exists(setting.main)


@both_kinds
async def test_acknowledged_by_the_authority_writes_are_on_both_sides_when_the_client_is_closed(
    setting: Setting, sync: bool
) -> None:
    await setting.reach("dual_write")
    names = [f"n{number}" for number in range(20)]
    async with setting.client(setting.source, sync=sync, acknowledge="authority") as old:
        for name in names:
            await old.raw("create_entity", post(name))
        await old.raw("delete_entity", "blog", names[0])
        moved = [("delete", post(names[1])), ("create", post("moved"))]
        await old.raw("submit_transaction", moved)
    async with setting.client(setting.main, sync=sync) as new:
        there = {row["Slug"] for page in await new.raw("list_entities") for row in page}
    assert there == {*names[2:], "moved"}


# --- what a client is -------------------------------------------------------------------------------------


@both_kinds
async def test_a_client_registers_counts_and_leaves(setting: Setting, sync: bool) -> None:
    await setting.reach("dual_write")
    one = setting.client(setting.source, sync=sync, name="billing-api", shadow_reads=1.0)
    async with one as client, setting.client(setting.source, sync=sync):
        assert await setting.clients() == []  # nothing is connected before the first use
        await client.raw("create_entity", post())
        await client.raw("get_entity", "blog", "one")
        await client.raw("list_entities", select=["Month"])
        compared = client.client._core._working.shadow.idle()
        await (asyncio.to_thread(client.client._thread.run, compared) if sync else compared)
        counters = client.client._core.counters
        assert (counters.writes, counters.matched, counters.mismatched) == (1, 1, 0)
        bare = {"Accept": "application/json;odata=nometadata"}  # without what a comparison needs
        await client.raw("get_entity", "blog", "one", headers=bare)
        await client.raw("list_entities", headers=bare)
        await client.raw("get_entity", "blog", "one")
        compared = client.client._core._working.shadow.idle()
        await (asyncio.to_thread(client.client._thread.run, compared) if sync else compared)
        assert (counters.matched, counters.mismatched, counters.ignored) == (2, 0, 1)
        [row] = await setting.clients()
        assert (row.name, row.view) == ("billing-api", "old")
    assert await setting.clients() == []
    registry = Registry(setting.begun.restricted, setting.begun.declared.script_id)
    assert (await registry.ended())["writes"] == 1, "rekey status still counts it"
    await refused(client.raw("create_entity", post("two")), "closed")
    await refused(client.raw("get_entity", "blog", "one"), "closed")


async def test_a_context_registers_at_once_and_a_client_made_in_any_way_is_the_same(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await setting.reach("dual_write")
    account, restricted = setting.azurite.tables, setting.azurite.restricted
    common: dict[str, Any] = {
        "migration": setting.begun.declared,
        "restricted_endpoint": restricted.endpoint,
        "restricted_credential": credential(restricted),
        "secrets": SECRETS,
        "wrapping_key": WRAPPING_KEY,
        "settings": QUICK,
    }
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={account.name};AccountKey={account.key};"
        f"TableEndpoint={account.endpoint}"
    )
    async with AsyncDualWriteTableClient.from_connection_string(connection, setting.source, **common) as made:
        assert len(await setting.clients()) == 1
        await made.create_entity(post("a"))
    url = f"{account.endpoint}/{setting.source}"
    async with AsyncDualWriteTableClient.from_table_url(
        url, credential=credential(account), **common
    ) as made:
        await made.create_entity(post("b"))
    sas = AzureSasCredential(signature(setting))
    async with AsyncDualWriteTableClient(account.endpoint, setting.source, credential=sas, **common) as made:
        await made.create_entity(post("c"))

    monkeypatch.setenv("TABLES", account.key)
    monkeypatch.setenv("RESTRICTED", restricted.key)
    monkeypatch.setenv("USERS", SECRETS["users"].decode())
    monkeypatch.setenv("WRAPPING", WRAPPING_KEY.decode())
    (tmp_path / "rekey.toml").write_text(
        f'[tables]\nendpoint = "{account.endpoint}"\nkey_env = "TABLES"\n'
        f'[restricted]\nendpoint = "{restricted.endpoint}"\nkey_env = "RESTRICTED"\n'
        '[secrets.users]\nenv = "USERS"\n[sealing]\nenv = "WRAPPING"\n'
    )
    script = tmp_path / "migrations" / f"{setting.begun.declared.script_id}.py"
    script.parent.mkdir()
    script.write_text(script_of(setting.begun.declared.migration))
    name = setting.begun.declared.script_id
    async with AsyncDualWriteTableClient.from_config(tmp_path / "rekey.toml", name, view="new") as made:
        assert len([one async for one in made.list_entities()]) == 3

    def synchronously() -> int:
        with DualWriteTableClient.from_config(
            str(tmp_path / "rekey.toml"), name, table=setting.by_tag, settings=LeaseSettings(poll_s=0.1)
        ) as client:
            return len(list(client.list_entities()))

    assert await asyncio.to_thread(synchronously) == 3
    with pytest.raises(DeclarationError):
        AsyncDualWriteTableClient.from_config(tmp_path / "rekey.toml", "0002_none", view="new")
    with pytest.raises(ConfigurationError, match="no table of this migration"):
        AsyncDualWriteTableClient(account.endpoint, "Others", credential=credential(account), **common)


def signature(setting: Setting) -> str:
    """Return a shared access signature for the whole account."""
    account = setting.azurite.tables
    return generate_account_sas(
        AzureNamedKeyCredential(account.name, account.key),
        resource_types=ResourceTypes(service=True, container=True, object=True),
        permission=AccountSasPermissions(
            read=True, write=True, add=True, update=True, delete=True, list=True
        ),
        expiry="2100-01-01T00:00:00Z",
    )


def script_of(migration: Migration) -> str:
    """Return the migration as a script."""
    [index] = migration.indexes
    return f"""
from rekey import Index, Migration, Target, keys, props
migration = Migration(
    "{migration.source}",
    Target(
        "{migration.target.table}",
        partition_key=keys.prop("Month"),
        row_key=keys.opaque("RowKey", domain="post", secret="users"),
        properties=[props.copy("PartitionKey", to="Blog"), props.copy("RowKey", to="Slug")],
    ),
    indexes=[
        Index(
            "{index.table}",
            each=keys.split("Tags", ","),
            partition_key=keys.item(),
            row_key=keys.prop("RowKey"),
        )
    ],
    capture="dual-write",
)
"""


@both_kinds
async def test_a_migration_may_begin_under_a_client_that_writes_already(setting: Setting, sync: bool) -> None:
    async with setting.client(setting.source, sync=sync) as old:
        await old.raw("create_entity", post("before"))
        await setting.begun.begin()
        await setting.begun.move(DUAL)
        await seen_by(old, DUAL)
        await old.raw("create_entity", post("after"))
    assert [key.row for key in await setting.rows(setting.source)] == ["after", "before"]
    assert len(await setting.rows(setting.main)) == 1


async def test_a_migration_may_begin_anew_while_nothing_followed_yet(setting: Setting) -> None:
    """The ids of the mapping are another run's then: a writer of the first run must not go on."""
    await setting.begun.begin()
    async with setting.client(setting.source) as old:
        await old.raw("create_entity", post("first"))
        working = old.client._core._working
        control = await setting.begun.store.read()
        assert control is not None
        await setting.begun.store.delete(control)
        await setting.begun.begin("2" * 32)
        await setting.begun.move(DUAL)
        await seen_by(old, DUAL)
        with pytest.raises(OtherRun):
            await working.writer.write([Operation(Verb.INSERT, post("lost"))])
        await old.raw("create_entity", post("second"))
        assert old.client._core._working.run_id == "2" * 32
    assert [key.row for key in await setting.rows(setting.source)] == ["first", "second"]
    assert len(await setting.rows(setting.main)) == 1


async def seen_by(driver: Driver, phase: ControlPhase) -> None:
    """Wait until a client goes by a phase."""
    for _ in range(500):
        lease = driver.client._core._lease
        if lease.control is not None and lease.control.phase is phase:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the client never saw it")


@both_kinds
async def test_what_a_caller_gives_for_the_pipeline_still_counts(setting: Setting, sync: bool) -> None:
    seen: list[str] = []

    class Custom:
        """A policy of the caller, which stands before ours."""

        def on_request(self, request: Any) -> None:
            seen.append(request.http_request.method)

    from azure.core.pipeline.policies import SansIOHTTPPolicy

    policy = type("Policy", (Custom, SansIOHTTPPolicy), {})()
    hooked: list[int] = []
    async with setting.client(
        setting.source,
        sync=sync,
        per_call_policies=[policy],
        raw_response_hook=lambda response: hooked.append(response.http_response.status_code),
    ) as client:
        await client.raw("create_entity", post(), timeout=5, headers={"x-own": "1"})
        await client.raw("get_entity", "blog", "one")
        await client.raw("upsert_entity", post(), raw_response_hook=lambda _: hooked.append(1))
    assert seen == ["POST", "GET", "PATCH"]
    assert hooked == [201, 200, 1]


@pytest.mark.parametrize(
    "given",
    [
        {"transport": object()},
        {"per_retry_policies": [object()]},
        {"connection_cert": "client.pem"},
        {"location_mode": "secondary"},
        {"api_version": "2019-02-02"},
    ],
    ids=lambda given: next(iter(given)),
)
@both_kinds
async def test_what_would_hold_for_reads_alone_is_refused_when_the_client_is_made(
    setting: Setting, sync: bool, given: dict[str, Any]
) -> None:
    for error in (ValueError, ConfigurationError):
        with pytest.raises(error, match=f"{next(iter(given))}=.* would not hold for writes"):
            async with setting.client(setting.source, sync=sync, **given):
                raise AssertionError("it was made")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("shadow_read", "shadow_reads"), ("acknowledged", "acknowledge"), ("seting", "settings")],
)
@both_kinds
async def test_a_misspelled_keyword_is_refused_with_the_right_one(
    setting: Setting, sync: bool, given: str, meant: str
) -> None:
    """The SDK ignores keywords that it does not know."""
    with pytest.raises(ConfigurationError, match=f"there is no argument {given}=") as refused:
        async with setting.client(setting.source, sync=sync, **{given: 0.5}):
            raise AssertionError("it was made")
    assert refused.value.hint == f"write {meant}="


@both_kinds
async def test_keywords_of_the_sdk_are_taken(setting: Setting, sync: bool) -> None:
    given = {
        "retry_total": 1,
        "user_agent": "ours",
        "logging_enable": False,
        "headers": {},
        "read_timeout": 9,
    }
    async with setting.client(setting.source, sync=sync, connection_timeout=9, **given) as client:
        await client.raw("create_entity", post())


@both_kinds
async def test_proxies_hold_for_writes_and_reads(setting: Setting, sync: bool) -> None:
    async with FaultProxy("http://127.0.0.1:9") as proxy:
        proxy.faults.append(Fault(answer=Answered(403), times=1_000))
        client = setting.client(
            setting.source, sync=sync, proxies={"http": proxy.address}, api_version="2020-12-06"
        )
        async with client as c:
            with pytest.raises(AzureError):
                await c.raw("create_entity", post())
        assert {asked.method for asked in proxy.asked} - {"GET"}, "what is written goes through it"


@pytest.mark.parametrize("began", [False, True], ids=["before", "dual_write"])
@both_kinds
async def test_a_sas_for_one_table_is_refused_when_the_client_opens(
    setting: Setting, sync: bool, began: bool
) -> None:
    """Otherwise every write would leave its replicas behind."""
    if began:
        await setting.reach("dual_write")
    signed = generate_table_sas(
        credential(setting.azurite.tables),
        setting.source,
        permission=TableSasPermissions(read=True, add=True, update=True, delete=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
        protocol="https,http",
    )
    async with setting.client(setting.source, sync=sync, credential=AzureSasCredential(signed)) as c:
        with pytest.raises(DualWriteRefused) as caught:
            await c.raw("create_entity", post())
    assert caught.value.status_code == 403
    for words in ("the tables account refused", setting.main, "a SAS for one table is not enough"):
        assert words in str(caught.value)
    assert await setting.rows(setting.source) == {}


@both_kinds
async def test_a_wrong_key_of_the_tables_account_is_told_as_that(setting: Setting, sync: bool) -> None:
    await setting.reach("dual_write")
    wrong = AzureNamedKeyCredential(setting.azurite.tables.name, setting.azurite.restricted.key)
    async with setting.client(setting.source, sync=sync, credential=wrong) as c:
        for call in ("update_entity", "create_entity"):
            with pytest.raises(HttpResponseError) as caught:
                await c.raw(call, post())
            assert caught.value.status_code == 403
            assert "the tables account refused" in str(caught.value)


async def test_an_endpoint_that_is_down_is_the_sdks_error_for_that(setting: Setting) -> None:
    nowhere = AzureNamedKeyCredential("nowhere", setting.azurite.tables.key)
    down = setting.client(setting.source, endpoint="http://127.0.0.1:9/nowhere", credential=nowhere)
    async with down as client:
        with pytest.raises(ServiceRequestError):
            await client.raw("create_entity", post())
