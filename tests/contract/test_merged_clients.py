"""A table that two migrations fill, on Azurite: the SDK's methods of one client, and its own client through
one proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.data.tables.aio import TableClient

from rekey import DualWriteRefused
from rekey.errors import ConfigurationError
from rekey.model import EntityKey
from rekey.phases import ControlPhase
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from tests.asserts.client_pairs import credential, ours
from tests.worlds.begun_migrations import declared_as
from tests.worlds.merged_tables import DE, FR, FREE, Merged, order
from tests.worlds.proxy import config_of, proxied

pytestmark = [pytest.mark.azurite]
DUAL, FREEZE, CUTOVER, COMPLETE = list(ControlPhase)[1:5]
TO_CUTOVER = (DUAL, FREEZE, CUTOVER)
both_kinds = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


@pytest.fixture
async def merged(
    tables_service: AzureTableService,
    restricted_service: AzureTableService,
    table_name: Callable[[str], str],
) -> Merged:
    return await Merged.create(tables_service, table_name, restricted=restricted_service)


@both_kinds
async def test_one_client_writes_and_reads_rows_of_both_migrations(
    azurite: Azurite, merged: Merged, sync: bool
) -> None:
    await merged.begin(DE, DUAL)
    await merged.begin(FR, *TO_CUTOVER)
    declared: Any = merged.declared(DE, FR)
    async with ours(azurite, merged.target, declared, {}, sync=sync) as client:
        for region in (DE, FR):
            await client.raw("create_entity", merged.new(region))
            await client.raw("update_entity", merged.new(region, value=2))
            both = [("upsert", merged.new(region, value=3)), ("create", merged.new(region, number="2"))]
            await client.raw("submit_transaction", both)
            with pytest.raises(ResourceExistsError):
                await client.raw("create_entity", merged.new(region))
            assert (await client.raw("get_entity", f"{region}_c1", "1"))["Value"] == 3
        [listed] = await client.raw("list_entities")
        assert len(listed) == 4
        with pytest.raises(DualWriteRefused) as refused:
            await client.raw("create_entity", merged.new(FREE))
        assert (refused.value.code, refused.value.status_code) == ("others-row", 403)
        assert "with the SDK's own TableClient, at the account's own endpoint" in str(refused.value)
    assert await merged.in_sources() == {region: {("c1", "1"): 3, ("c1", "2"): 1} for region in (DE, FR)}


@both_kinds
async def test_one_client_refuses_rows_that_are_not_copied_and_answers_queries_of_others(
    azurite: Azurite, merged: Merged, sync: bool
) -> None:
    await merged.begin(DE, *TO_CUTOVER, COMPLETE)
    await merged.begin(FR, DUAL, copied=False)
    declared: Any = merged.declared(DE, FR)
    async with ours(azurite, merged.target, declared, {}, sync=sync) as client:
        await client.raw("create_entity", merged.new(DE))
        for call in (
            ("create_entity", merged.new(FR)),
            ("get_entity", "FR_c1", "1"),
            ("list_entities",),
            ("query_entities", "PartitionKey eq 'FR_c1'"),
            ("query_entities", "RowKey eq '1'"),
        ):
            with pytest.raises(DualWriteRefused) as refused:
                await client.raw(*call)
            assert (refused.value.code, refused.value.status_code) == ("new-view-closed", 403)
        for condition in ("PartitionKey eq 'DE_c1'", "PartitionKey lt 'FR_' and Value gt 0"):
            [listed] = await client.raw("query_entities", condition)
            assert [each["PartitionKey"] for each in listed] == ["DE_c1"]
        with pytest.raises(HttpResponseError):
            await client.raw("get_entity", "US_c1", "1")  # it is not there, and asking is allowed


@asynccontextmanager
async def applications(
    azurite: Azurite, proxy_url: str, *tables: str
) -> AsyncIterator[tuple[TableClient, ...]]:
    """Open the SDK's own clients of tables, at a proxy."""
    endpoint, key = f"{proxy_url}/{azurite.tables.name}", credential(azurite.tables)
    clients = [TableClient(endpoint, table, credential=key) for table in tables]
    try:
        yield tuple(clients)
    finally:
        for client in clients:
            await client.close()


async def refusal_of(work: Any) -> str | None:
    with pytest.raises(HttpResponseError) as refused:
        await work
    assert refused.value.status_code == 403
    return refused.value.error_code


async def found(client: TableClient, condition: str = "PartitionKey ge ''") -> list[str]:
    return [row["PartitionKey"] async for row in client.query_entities(condition)]


async def test_one_proxy_carries_both_old_tables_and_the_new_one(
    azurite: Azurite, merged: Merged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await merged.begin(DE, *TO_CUTOVER)
    await merged.begin(FR, DUAL, copied=False)
    config = config_of(tmp_path, azurite, monkeypatch)
    german, french = merged.source(DE), merged.source(FR)
    async with (
        proxied(config, *merged.declared(DE, FR)) as proxy,
        applications(azurite, proxy.url, german, french, merged.target) as (old_de, old_fr, new),
    ):
        await old_de.create_entity(order())
        await old_fr.create_entity(order())
        await new.upsert_entity(merged.new(DE, number="2"))
        await new.submit_transaction(
            [("update", merged.new(DE, value=4)), ("create", merged.new(DE, number="3"))]
        )
        assert await refusal_of(new.upsert_entity(merged.new(FR, number="2"))) == "new-view-closed"
        assert await refusal_of(new.upsert_entity(merged.new(FREE))) == "others-row"
        assert await refusal_of(found(new)) == "new-view-closed"
        assert await found(new, "PartitionKey lt 'FR_'") == ["DE_c1"] * 3
        await merged.begun[FR].store.mark_copied()
    async with (
        proxied(config, *merged.declared(DE, FR)) as proxy,
        applications(azurite, proxy.url, german, french, merged.target) as (old_de, old_fr, new),
    ):
        await new.create_entity(merged.new(FR, number="2"))
        await new.delete_entity("DE_c1", "3")
        assert await found(new) == ["DE_c1"] * 2 + ["FR_c1"] * 2
        assert [row["Value"] async for row in old_de.list_entities()] == [4, 1]
        assert len(await found(old_fr)) == 2
    assert await merged.in_sources() == {
        DE: {("c1", "1"): 4, ("c1", "2"): 1},
        FR: {("c1", "1"): 1, ("c1", "2"): 1},
    }
    assert len(await merged.values(merged.target)) == 4


async def test_one_proxy_shows_the_new_table_under_the_name_of_an_old_one(
    azurite: Azurite, merged: Merged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await merged.begin(DE, *TO_CUTOVER, COMPLETE)
    await merged.begin(FR, *TO_CUTOVER)
    aliases = f'[proxy.views]\n{merged.source(DE)} = "{merged.target}"\n'
    config = config_of(tmp_path, azurite, monkeypatch, aliases)
    async with (
        proxied(config, *merged.declared(DE, FR)) as proxy,
        applications(azurite, proxy.url, merged.source(DE)) as (client,),
    ):
        for region in (DE, FR):
            await client.create_entity(merged.new(region))
        assert await found(client) == ["DE_c1", "FR_c1"]
    assert await merged.in_sources() == {DE: {}, FR: {("c1", "1"): 1}}


@pytest.mark.parametrize("named", [DE, FR])
async def test_a_proxy_of_one_of_the_migrations_refuses_rows_of_the_other(
    azurite: Azurite, merged: Merged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    other = FR if named == DE else DE
    for region in (DE, FR):
        await merged.begin(region, *TO_CUTOVER)
    config = config_of(tmp_path, azurite, monkeypatch)
    async with (
        proxied(config, *merged.declared(named), not_followed=merged.declared(other)) as proxy,
        applications(azurite, proxy.url, merged.target) as (client,),
    ):
        await client.create_entity(merged.new(named))
        assert await refusal_of(client.upsert_entity(merged.new(other))) == "others-row"
    assert await merged.values(merged.target) == {EntityKey(f"{named}_c1", "1"): 1}


async def test_scripts_that_do_not_tell_their_rows_apart_are_refused(
    azurite: Azurite, merged: Merged
) -> None:
    [german] = merged.declared(DE)
    whole = changed(german.migration, target=changed(german.migration.target, shared=False))
    for migration, problem in ((german.migration, "may fill the same rows"), (whole, "fills all of")):
        both: Any = [german, declared_as("0009_another", migration)]
        with pytest.raises(ConfigurationError, match=problem):
            ours(azurite, merged.target, both, {}, sync=True)
