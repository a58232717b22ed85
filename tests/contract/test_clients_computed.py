"""Clients and a proxy of a migration that stores no mapping, on Azurite: rows are found by inversion, in both
views, by the SDK's methods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceModifiedError, ResourceNotFoundError

from rekey import Migration, Target, keys, props
from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import KeyRange
from rekey.phases import ControlPhase
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from tests.asserts.client_pairs import Driver, ours
from tests.worlds.begun_migrations import Begun, declared_as
from tests.worlds.proxy import between, config_of

pytestmark = [pytest.mark.azurite]
OLD_KEY = ("eu", "7")
NEW_KEY = ("p:eu", "000007")
PHASES = [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER]


@dataclass
class Setting:
    """A migration that adds a prefix and pads numbers with zeros."""

    azurite: Azurite
    begun: Begun
    old: str
    new: str

    def client(self, table: str, *, sync: bool) -> Any:
        return ours(self.azurite, table, self.begun.declared, {}, sync=sync)

    async def reach(self, phase: ControlPhase) -> None:
        await self.begun.begin()
        await self.begun.move(ControlPhase.DUAL_WRITE, copied=True)
        if phase is ControlPhase.CUTOVER:
            await self.begun.move(ControlPhase.FREEZE, ControlPhase.CUTOVER)

    async def rows_in(self, table: str) -> dict[tuple[str, str], Any]:
        scan = self.begun.tables.table(table).scan()
        rows = [row async for page in scan for row in page.rows]
        return {(row["PartitionKey"], row["RowKey"]): row["Note"] for row in rows}

    async def mapping_rows(self) -> int:
        """Return the number of rows in the mapping's partitions, forward and reverse."""
        script_id, count = self.begun.declared.script_id, 0
        for direction in "fr":
            for first in "0123456789abcdefghjkmnpqrstvwxyz":
                bounds = KeyRange.of_rows(f"{script_id}.{direction}.{first}")
                pages = self.begun.restricted.table(MAPPING_TABLE).scan(bounds)
                count += sum([len(page.rows) async for page in pages])
        return count


@pytest.fixture
async def setting(
    azurite: Azurite,
    tables_service: AzureTableService,
    restricted_service: AzureTableService,
    table_name: Callable[[str], str],
) -> Setting:
    old, new = table_name("Orders"), table_name("OrdersV2")
    migration = Migration(
        old,
        target=Target(
            new,
            partition_key=keys.literal("p:") + keys.prop("PartitionKey"),
            row_key=keys.zero_pad(6, "RowKey"),
            properties=[props.rename("Text", "Note")],
        ),
        capture="dual-write",
        mapping="none",
    )
    begun = Begun(declared_as(table_name("s"), migration), tables_service, restricted_service)
    return Setting(azurite, await begun.create_tables(), old, new)


@pytest.fixture
async def clients(setting: Setting) -> AsyncIterator[Callable[[str], Any]]:
    async with AsyncExitStack() as stack:

        async def client(table: str, *, sync: bool = False) -> Driver:
            return await stack.enter_async_context(setting.client(table, sync=sync))  # type: ignore[no-any-return]

        yield client


def order(text: str, key: tuple[str, str] = OLD_KEY) -> dict[str, Any]:
    return {"PartitionKey": key[0], "RowKey": key[1], "Text": text}


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("phase", PHASES)
async def test_both_views_see_each_others_writes(
    setting: Setting, clients: Any, phase: ControlPhase, sync: bool
) -> None:
    await setting.reach(phase)
    old, new = await clients(setting.old, sync=sync), await clients(setting.new, sync=sync)
    await old.raw("create_entity", order("first"))
    row = await new.raw("get_entity", *NEW_KEY)
    assert row["Note"] == "first"
    held = {"etag": row.metadata["etag"], "match_condition": MatchConditions.IfNotModified}
    await new.raw("update_entity", {**row, "Note": "second"}, **held)
    with pytest.raises(ResourceModifiedError):
        await new.raw("update_entity", {**row, "Note": "third"}, **held)
    assert (await old.raw("get_entity", *OLD_KEY))["Text"] == "second"
    await new.raw("create_entity", {"PartitionKey": "p:eu", "RowKey": "000012", "Note": "new"})
    assert (await old.raw("get_entity", "eu", "12"))["Text"] == "new"
    batch = [("delete", order("")), ("upsert", order("batch", ("eu", "8")))]
    await old.raw("submit_transaction", batch)
    with pytest.raises(ResourceNotFoundError):
        await new.raw("get_entity", *NEW_KEY)
    assert await setting.rows_in(setting.new) == {("p:eu", "000008"): "batch", ("p:eu", "000012"): "new"}
    assert await setting.mapping_rows() == 0


@pytest.mark.parametrize("phase", PHASES)
async def test_a_key_of_the_new_view_that_no_old_key_gives_is_refused(
    setting: Setting, clients: Any, phase: ControlPhase
) -> None:
    await setting.reach(phase)
    new = await clients(setting.new)
    for partition, row in (("eu", "000007"), ("p:eu", "7"), ("p:eu", "0000007")):
        with pytest.raises(HttpResponseError):
            await new.raw("create_entity", {"PartitionKey": partition, "RowKey": row, "Note": "x"})
    assert await setting.rows_in(setting.new) == {}


@pytest.mark.parametrize("phase", PHASES)
async def test_a_proxy_carries_writes_of_both_views(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: ControlPhase
) -> None:
    await setting.reach(phase)
    config = config_of(tmp_path, setting.azurite, monkeypatch)
    async with between(config, setting.azurite, setting.begun.declared) as (direct, behind):
        assert (await behind.ask("POST", setting.old, order("first"))).status == 201
        place = f"{setting.new}(PartitionKey='p:eu',RowKey='000007')"
        assert (await direct.ask("GET", place)).json["Note"] == "first"
        answer = await behind.ask("MERGE", place, {"Note": "second"}, {"If-Match": "*"})
        assert answer.status == 204
        old_place = f"{setting.old}(PartitionKey='eu',RowKey='7')"
        assert (await direct.ask("GET", old_place)).json["Text"] == "second"
        deleted = await behind.ask("DELETE", place, headers={"If-Match": "*"})
        assert deleted.status == 204
        assert (await direct.ask("GET", old_place)).status == 404
        wrong = {"PartitionKey": "p:eu", "RowKey": "7", "Note": "x"}
        assert (await behind.ask("POST", setting.new, wrong)).status == 400
    assert await setting.mapping_rows() == 0
