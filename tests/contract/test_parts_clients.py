"""Parts of one table, on Azurite: the SDK's methods of one client, and its own client through a proxy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.data.tables.aio import TableClient

from rekey import DualWriteRefused, DualWriteTableClient
from rekey.errors import ConfigurationError
from rekey.phases import ControlPhase
from rekey.protocol.registry import Registry
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from tests.asserts.client_pairs import credential, ours
from tests.worlds.parts_of_a_table import FREE, NORTH, SOUTH, Parts, row
from tests.worlds.proxy import config_of, proxied

pytestmark = [pytest.mark.azurite]
DUAL, FREEZE, CUTOVER, COMPLETE = list(ControlPhase)[1:5]
TENANTS = (NORTH, SOUTH, FREE)
both_kinds = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


@pytest.fixture
async def parts(
    tables_service: AzureTableService,
    restricted_service: AzureTableService,
    table_name: Callable[[str], str],
) -> Parts:
    return await Parts.create(tables_service, table_name, restricted=restricted_service)


def of(tenant: str) -> str:
    return f"PartitionKey eq '{tenant}'"


@both_kinds
async def test_one_client_writes_and_reads_rows_of_all_parts(
    azurite: Azurite, parts: Parts, sync: bool
) -> None:
    await parts.begin(NORTH, DUAL)
    await parts.begin(SOUTH, DUAL, FREEZE, CUTOVER)
    declared: Any = parts.declared(NORTH, SOUTH)
    async with ours(azurite, parts.source, declared, {}, sync=sync) as client:
        for tenant in TENANTS:
            await client.raw("create_entity", row(tenant))
            await client.raw("update_entity", row(tenant, value=2))
            both = [("upsert", row(tenant, value=3)), ("create", row(tenant, "2"))]
            await client.raw("submit_transaction", both)
            with pytest.raises(ResourceExistsError):
                await client.raw("create_entity", row(tenant))
            assert (await client.raw("get_entity", tenant, "1"))["Value"] == 3
        [listed] = await client.raw("list_entities")
        assert len(listed) == 6
    for tenant in (NORTH, SOUTH):
        assert await parts.moved(tenant) == {(tenant, "1"): 3, (tenant, "2"): 1}


@both_kinds
async def test_one_client_refuses_what_has_moved_on_and_answers_queries_of_other_rows(
    azurite: Azurite, parts: Parts, sync: bool
) -> None:
    await parts.begin(NORTH, DUAL, FREEZE, CUTOVER, COMPLETE)
    await parts.begin(SOUTH, DUAL)
    declared: Any = parts.declared(NORTH, SOUTH)
    async with ours(azurite, parts.source, declared, {}, sync=sync) as client:
        await client.raw("create_entity", row(SOUTH))
        for call in (
            ("create_entity", row(NORTH)),
            ("get_entity", NORTH, "1"),
            ("list_entities",),
            ("query_entities", of(NORTH)),
            ("query_entities", f"{of(NORTH)} or {of(SOUTH)}"),
            ("query_entities", "RowKey eq '1'"),
        ):
            with pytest.raises(DualWriteRefused) as refused:
                await client.raw(*call)
            assert (refused.value.code, refused.value.status_code) == ("part-moved", 403)
        for condition in (of(SOUTH), f"({of(SOUTH)}) and RowKey ge '1'", "PartitionKey gt 'north'"):
            [listed] = await client.raw("query_entities", condition)
            assert [each["PartitionKey"] for each in listed] == [SOUTH]


async def test_a_client_of_the_new_view_follows_one_migration(azurite: Azurite, parts: Parts) -> None:
    def client(table: str, *scripts: Any) -> DualWriteTableClient:
        return DualWriteTableClient(
            azurite.tables.endpoint,
            table,
            credential=credential(azurite.tables),
            migration=scripts,
            restricted_endpoint=azurite.restricted.endpoint,
            restricted_credential=credential(azurite.restricted),
            secrets={},
        )

    north, south = parts.declared(NORTH, SOUTH)
    for scripts, problem in (((north, north), "twice"), ((), "no migration")):
        with pytest.raises(ConfigurationError, match=problem):
            client(parts.source, *scripts)
    with pytest.raises(ConfigurationError, match="no table of this migration"):
        client(north.migration.target.table, north, south)
    client(north.migration.target.table, north).close()


@pytest.mark.parametrize("named", [(NORTH, SOUTH), (SOUTH,)], ids=["all scripts", "one script"])
async def test_a_proxy_carries_rows_of_all_parts(
    azurite: Azurite,
    parts: Parts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: tuple[str, ...],
) -> None:
    await parts.begin(NORTH, DUAL)
    await parts.begin(SOUTH, DUAL)
    config = config_of(tmp_path, azurite, monkeypatch)
    others = [tenant for tenant in (NORTH, SOUTH) if tenant not in named]
    async with (
        proxied(config, *parts.declared(*named), not_followed=parts.declared(*others)) as proxy,
        TableClient(
            f"{proxy.url}/{azurite.tables.name}", parts.source, credential=credential(azurite.tables)
        ) as client,
    ):
        for tenant in TENANTS:
            await client.create_entity(row(tenant))
            await client.upsert_entity(row(tenant, "2"))
            await client.submit_transaction([("update", row(tenant, value=2)), ("delete", row(tenant, "2"))])
        assert len([each async for each in client.list_entities()]) == 3
        for tenant in (NORTH, SOUTH):
            assert await parts.moved(tenant) == {(tenant, "1"): 2}
            [registered] = await Registry(parts.restricted, parts.begun[tenant].declared.script_id).list()
            assert len(registered.parts or ()) == 2
        await parts.begin(NORTH, FREEZE, CUTOVER, COMPLETE)
    async with (
        proxied(config, *parts.declared(*named), not_followed=parts.declared(*others)) as proxy,
        TableClient(
            f"{proxy.url}/{azurite.tables.name}", parts.source, credential=credential(azurite.tables)
        ) as client,
    ):
        with pytest.raises(HttpResponseError) as refused:
            await client.upsert_entity(row(NORTH))
        assert (refused.value.status_code, refused.value.error_code) == (403, "part-moved")
        await client.upsert_entity(row(SOUTH, value=5))
        assert [each["Value"] async for each in client.query_entities(of(SOUTH))] == [5]
        with pytest.raises(HttpResponseError) as refused:
            [each async for each in client.query_entities(of(NORTH))]
        assert (refused.value.status_code, refused.value.error_code) == (403, "part-moved")
    assert await parts.rows(parts.source) == {(NORTH, "1"): 2, (SOUTH, "1"): 5, (FREE, "1"): 2}
