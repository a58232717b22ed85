"""How long the service may work on a request goes with every request, and changes nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rekey.model import EntityKey
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Operation, Verb
from rekey.tables.credentials import SharedKey
from rekey.tables.transport import Network, Timeouts
from tests.fakes.fault_proxy import FaultProxy


@pytest.mark.azurite
async def test_every_kind_of_request_says_how_long_it_may_take(
    azurite: Azurite, table_name: Callable[[str], str]
) -> None:
    account = azurite.tables
    async with FaultProxy(f"http://127.0.0.1:{azurite.port}") as proxy:
        service = AzureTableService.open(
            f"{proxy.address}/{account.name}",
            SharedKey.of(account.name, account.key),
            network=Network(Timeouts(service=10)),
        )
        async with service:
            table = service.table(table_name("Timed"))
            await service.create_table(table.name)
            row = {"PartitionKey": "p", "RowKey": "r", "N": 1}
            etag = await table.insert(row)
            await table.replace({**row, "N": 2}, etag=etag)
            await table.transact([Operation(Verb.MERGE, {"PartitionKey": "p", "RowKey": "r", "M": 3}, "*")])
            [page] = [
                page async for page in table.scan(select=["N", "M"], modified_from="2020-01-01T00:00:00Z")
            ]
            found = await table.get(EntityKey("p", "r"), select=["N"])
            await table.delete(EntityKey("p", "r"))
            await service.delete_table(table.name)
    assert found is not None
    assert (found["N"], page.rows[0]["M"]) == (2, 3)
    assert len(proxy.asked) == 8
    assert [asked.method for asked in proxy.asked if "timeout=10" not in asked.target] == []


def test_without_it_the_address_stays_as_it_is() -> None:
    assert Timeouts().address("https://account", "Users()?$top=1") == "https://account/Users()?$top=1"
