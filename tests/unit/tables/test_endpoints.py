"""Endpoints that no account may be named by (`rekey.core.endpoints`)."""

from __future__ import annotations

import pytest

from rekey.core.endpoints import COSMOS_REFUSED, endpoint_problem, is_cosmos


@pytest.mark.parametrize(
    "text",
    [
        "https://shop.table.cosmos.azure.com",
        "HTTPS://SHOP.TABLE.COSMOS.AZURE.COM:443/",
        "https://shop-secondary.table.cosmos.azure.com",
        "https://shop.table.cosmos.azure.cn/Users",
        "https://shop.table.cosmos.azure.us?sig=x",
        "shop.table.cosmosdb.azure.com",
        "https://shop.documents.azure.com:443/",
        "http://localhost:8902/",
        "http://127.0.0.1:8902",
        "AccountName=a;AccountKey=b;TableEndpoint=https://a.table.cosmos.azure.com:443/;",
        "AccountName=localhost;AccountKey=b;TableEndpoint=http://localhost:8902/;",
        "AccountEndpoint=https://localhost:8081/;AccountKey=b",
    ],
)
def test_cosmos_db_is_recognized_in_every_cloud_emulator_and_connection_string(text: str) -> None:
    assert is_cosmos(text)
    assert endpoint_problem(text) == COSMOS_REFUSED


@pytest.mark.parametrize(
    "text",
    [
        "https://shop.table.core.windows.net",
        "https://cosmos.table.core.windows.net",
        "https://documents.table.core.windows.net",
        "https://table.cosmos.azure.com.example.org",
        "https://gate.example/a.table.cosmos.azure.com.html",
        "http://127.0.0.1:8902/devstoreaccount1",
    ],
)
def test_an_account_of_table_storage_is_not_taken_for_one_of_cosmos_db(text: str) -> None:
    assert not is_cosmos(text)
    assert endpoint_problem(text) is None
