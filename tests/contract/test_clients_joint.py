"""Clients and a proxy where kinds of rows have tables of their own: each table is addressed by its name and
its own keys, by the SDK's methods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

from rekey import DualWriteRefused, Index, Migration, RowKind, Target, keys, props, rows
from rekey.phases import ControlPhase
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from tests.asserts.client_pairs import Driver, ours
from tests.worlds.begun_migrations import SECRETS, Begun, declared_as
from tests.worlds.proxy import between, changeset, config_of

pytestmark = [pytest.mark.azurite]
KEY = ("eu", "it's 1")
CLOSED_KEY = ("EU", "it's 1")


@dataclass
class Setting:
    """A migration of tickets: open and closed ones have a table each, and open ones an index table."""

    azurite: Azurite
    begun: Begun
    old: str
    opened: str
    closed: str
    index: str

    def client(self, table: str, *, sync: bool = False, **more: Any) -> Any:
        return ours(self.azurite, table, self.begun.declared, SECRETS, sync=sync, **more)

    async def reach(self, phase: ControlPhase) -> None:
        await self.begun.begin()
        await self.begun.move(ControlPhase.DUAL_WRITE, copied=True)
        if phase is ControlPhase.CUTOVER:
            await self.begun.move(ControlPhase.FREEZE, ControlPhase.CUTOVER)

    async def keys_in(self, table: str) -> list[tuple[str, str]]:
        scan = self.begun.tables.table(table).scan()
        return [(row["PartitionKey"], row["RowKey"]) async for page in scan for row in page.rows]


@pytest.fixture
async def setting(
    azurite: Azurite,
    tables_service: AzureTableService,
    restricted_service: AzureTableService,
    table_name: Callable[[str], str],
) -> Setting:
    names = "Tickets", "TicketsOpen", "TicketsClosed", "TicketsByNumber"
    old, opened, closed, index = map(table_name, names)
    old_key = [props.copy("PartitionKey", to="Region")]
    migration = Migration(
        old,
        kinds=[
            RowKind(
                "closed",
                when=rows.prop("Status", equals="closed"),
                target=Target(
                    closed,
                    partition_key=keys.upper("PartitionKey"),
                    row_key=keys.keep(),
                    properties=old_key,
                ),
            ),
            RowKind(
                "open",
                when=rows.every(),
                target=Target(opened, partition_key=keys.keep(), row_key=keys.keep(), properties=old_key),
                indexes=[
                    Index(
                        index,
                        partition_key=keys.literal("all"),
                        row_key=keys.join("-", "RowKey", "PartitionKey"),
                    )
                ],
            ),
        ],
        capture="dual-write",
    )
    begun = Begun(declared_as(table_name("s"), migration), tables_service, restricted_service)
    return Setting(azurite, await begun.create_tables(), old, opened, closed, index)


def ticket(status: str = "open", **more: Any) -> dict[str, Any]:
    return {"PartitionKey": KEY[0], "RowKey": KEY[1], "Status": status, **more}


@pytest.fixture
async def clients(setting: Setting) -> AsyncIterator[Callable[[str], Any]]:
    async with AsyncExitStack() as stack:

        async def client(table: str, **more: Any) -> Driver:
            return await stack.enter_async_context(setting.client(table, **more))  # type: ignore[no-any-return]

        yield client


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_each_table_of_the_new_view_is_read_and_written_under_its_own_keys(
    setting: Setting, clients: Any, phase: ControlPhase, sync: bool
) -> None:
    await setting.reach(phase)
    old, opened, closed = [
        await clients(name, sync=sync) for name in (setting.old, setting.opened, setting.closed)
    ]
    await old.raw("create_entity", ticket(Note="first"))
    row = await opened.raw("get_entity", *KEY)
    assert (row["Note"], row["Region"]) == ("first", "eu")
    await opened.raw("update_entity", {**row, "Note": "second"})
    assert (await old.raw("get_entity", *KEY))["Note"] == "second"
    [[listed]] = await opened.raw("query_entities", "PartitionKey eq 'eu'")
    assert (listed["PartitionKey"], listed["RowKey"]) == KEY
    assert await closed.raw("query_entities", "PartitionKey eq 'eu'") in ([], [[]])
    # The row has one key: it is deleted in one table before it is in the other.
    moved = {**ticket("closed", Region="eu"), "PartitionKey": "EU"}
    with pytest.raises((DualWriteRefused, ResourceExistsError)):
        await closed.raw("create_entity", moved)
    await opened.raw("submit_transaction", [("delete", row), ("create", {**row, "RowKey": "2"})])
    await closed.raw("create_entity", moved)
    assert (await old.raw("get_entity", *KEY))["Status"] == "closed"
    assert await setting.keys_in(setting.opened) == [("eu", "2")]
    assert await setting.keys_in(setting.closed) == [CLOSED_KEY]
    with pytest.raises(ResourceNotFoundError):
        await opened.raw("get_entity", *KEY)


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_an_index_row_says_which_client_reads_its_row(
    setting: Setting, clients: Any, phase: ControlPhase
) -> None:
    await setting.reach(phase)
    old, index = await clients(setting.old), await clients(setting.index)
    by_table = {name: await clients(name) for name in (setting.opened, setting.closed)}
    await old.raw("create_entity", ticket(Note="first"))
    index_key = ("all", "it's 1-eu")
    found = await index.raw("get_entity", *index_key)
    table, _, partition = found["MainPartitionKey"].partition(":")
    row = await by_table[table].raw("get_entity", partition, found["MainRowKey"])
    assert (table, row["Note"]) == (setting.opened, "first")
    await by_table[setting.opened].raw("delete_entity", *KEY)
    await by_table[setting.closed].raw(
        "create_entity", {**ticket("closed", Region="eu"), "PartitionKey": "EU"}
    )
    assert (await old.raw("get_entity", *KEY))["Status"] == "closed"
    with pytest.raises(ResourceNotFoundError):
        await index.raw("get_entity", *index_key)
    with pytest.raises(DualWriteRefused) as refused:
        await index.raw("upsert_entity", {**found})
    assert refused.value.code == "index-table"


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_reads_of_each_table_are_compared_with_the_old_rows(
    setting: Setting, clients: Any, phase: ControlPhase
) -> None:
    await setting.reach(phase)
    old, opened = await clients(setting.old), await clients(setting.opened, shadow_reads=1.0)
    await old.raw("create_entity", ticket())
    await opened.raw("get_entity", *KEY)
    await opened.raw("list_entities")
    core = opened.client._core
    await core._working.shadow.idle()
    assert (core.counters.matched, core.counters.mismatched) == (2, 0)
    past_the_clients = {"PartitionKey": KEY[0], "RowKey": KEY[1], "Note": "past the clients"}
    await setting.begun.tables.table(setting.old).merge(past_the_clients)
    await opened.raw("get_entity", *KEY)
    await core._working.shadow.idle()
    assert (core.counters.matched, core.counters.mismatched) == (2, 1)


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_an_update_in_the_old_view_moves_a_row_to_another_table_until_cutover(
    setting: Setting, clients: Any, phase: ControlPhase
) -> None:
    await setting.reach(phase)
    old, opened = await clients(setting.old), await clients(setting.opened)
    await old.raw("create_entity", ticket())
    if phase is ControlPhase.CUTOVER:
        with pytest.raises(DualWriteRefused) as refused:
            await old.raw("upsert_entity", ticket("closed"))
        assert refused.value.code == "key-moves"
        assert await setting.keys_in(setting.opened) == [KEY]
        return
    await old.raw("upsert_entity", ticket("closed"))
    assert await setting.keys_in(setting.opened) == []
    assert await setting.keys_in(setting.closed) == [CLOSED_KEY]
    both = [("upsert", ticket()), ("upsert", {**ticket("closed"), "RowKey": "2"})]
    await old.raw("submit_transaction", both)
    assert await setting.keys_in(setting.opened) == [KEY]
    assert await setting.keys_in(setting.closed) == [("EU", "2")]
    assert (await opened.raw("get_entity", *KEY))["Status"] == "open"


async def test_a_transaction_of_the_old_view_over_two_tables_is_refused_after_cutover(
    setting: Setting, clients: Any
) -> None:
    await setting.reach(ControlPhase.CUTOVER)
    old = await clients(setting.old)
    both = [("upsert", ticket()), ("upsert", {**ticket("closed"), "RowKey": "2"})]
    with pytest.raises(HttpResponseError) as refused:
        await old.raw("submit_transaction", both)
    assert "CommandsInBatchActOnDifferentPartitions" in str(refused.value.error_code)
    assert [await setting.keys_in(name) for name in (setting.opened, setting.closed)] == [[], []]


async def test_a_proxy_carries_writes_to_each_table(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await setting.reach(ControlPhase.DUAL_WRITE)
    config = config_of(tmp_path, setting.azurite, monkeypatch)
    async with between(config, setting.azurite, setting.begun.declared) as (direct, behind):
        assert (await behind.ask("POST", setting.old, ticket())).status == 201
        place = f"{setting.opened}(PartitionKey='eu',RowKey='it''s%201')"
        assert (await direct.ask("GET", place)).json["Region"] == "eu"
        answer = await behind.ask("MERGE", place, {"Note": "new"}, {"If-Match": "*"})
        assert answer.status == 204
        old_place = f"{setting.old}(PartitionKey='eu',RowKey='it''s%201')"
        assert (await behind.ask("GET", old_place)).json["Note"] == "new"
        moved = {**ticket("closed", Region="eu"), "PartitionKey": "EU", "RowKey": "3"}
        assert (await behind.ask("POST", setting.closed, moved)).json["PartitionKey"] == "EU"
        assert (await direct.ask("GET", f"{setting.old}(PartitionKey='eu',RowKey='3')")).status == 200
        wrong = await behind.ask("POST", setting.opened, {**moved, "RowKey": "4"})
        assert wrong.status == 400


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_a_proxy_carries_a_transaction_of_one_of_the_tables(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: ControlPhase
) -> None:
    await setting.reach(phase)
    config = config_of(tmp_path, setting.azurite, monkeypatch)
    async with between(config, setting.azurite, setting.begun.declared) as (direct, behind):

        async def batch(*operations: tuple[str, str, Any, dict[str, str]]) -> tuple[int, bytes]:
            answer = await behind.ask("POST", "$batch", *changeset(behind.endpoint, operations))
            return answer.status, answer.body

        opened = [("POST", setting.opened, {**ticket(Region="eu"), "RowKey": key}, {}) for key in "ab"]
        status, body = await batch(*opened)
        assert (status, body.count(b"HTTP/1.1 20")) == (202, 2), body
        rows = (await direct.ask("GET", f"{setting.old}()")).json["value"]
        assert [(row["PartitionKey"], row["RowKey"], row["Status"]) for row in rows] == [
            ("eu", "a", "open"),
            ("eu", "b", "open"),
        ]
        closed = {**ticket("closed", Region="eu"), "PartitionKey": "EU", "RowKey": "c"}
        _, body = await batch(*opened[:1], ("POST", setting.closed, closed, {}))
        assert b"CommandsInBatchActOnDifferentPartitions" in body
        taken = ("POST", setting.opened, {**ticket(Region="eu"), "RowKey": "c"}, {})
        _, body = await batch(taken, *opened[1:])
        assert b"1:" in body and b"EntityAlreadyExists" in body, body
        assert await setting.keys_in(setting.opened) == [("eu", "a"), ("eu", "b")]
        assert await setting.keys_in(setting.closed) == []
