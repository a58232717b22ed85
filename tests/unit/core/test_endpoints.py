"""What an endpoint tells of its account, and what it does not."""

from __future__ import annotations

import pytest

from rekey.core.endpoints import are_other_accounts

SHOP = "https://shop.table.core.windows.net"
AZURITE = "http://127.0.0.1:10002/devstoreaccount1"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SHOP, "https://store.table.core.windows.net"),
        (SHOP, "https://shop.table.core.chinacloudapi.cn"),
        (SHOP, "https://shop.table.core.usgovcloudapi.net"),
        (SHOP, "https://shop.table.core.cloudapi.de"),
        (SHOP, "https://store.privatelink.table.core.windows.net"),
        (SHOP, "https://store.z12.table.storage.azure.net"),
        (SHOP, "https://shop2.table.core.windows.net:443"),
        (SHOP, AZURITE),
        (SHOP, "http://azurite:10002/devstoreaccount1"),
        (SHOP, "http://shop.table.localhost:10002"),
        ("https://shop.z1.table.storage.azure.net", "https://store.z1.table.storage.azure.net"),
        ("https://shop.table.core.chinacloudapi.cn", "https://store.table.core.chinacloudapi.cn"),
        ("http://one.table.localhost:10002", "http://two.table.localhost:10002"),
        ("http://one.table.localhost:10002", AZURITE),
        ("http://127.0.0.1:10002/one", "http://127.0.0.1:10002/two"),
        ("http://127.0.0.1:10002/one", "http://localhost:10002/two"),
        ("http://localhost:10002/one", "http://[::1]:10002/two"),
        ("https://127.0.0.1:10002/one", "https://127.0.0.1:10002/two"),
        ("http://azurite:10002/one", "http://azurite:10002/two/"),
        ("https://azurite/one", "https://azurite:443/two"),
        ("https://gateway.example.com/one", "https://GATEWAY.example.com/two"),
    ],
)
def test_two_accounts_are_told_apart(one: str, other: str) -> None:
    assert are_other_accounts(one, other)
    assert are_other_accounts(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SHOP, SHOP),
        (SHOP, "https://SHOP.table.core.windows.net:443/"),
        (SHOP, "https://shop.privatelink.table.core.windows.net"),
        (SHOP, "https://shop.z1.table.storage.azure.net"),
        ("https://shop.z1.table.storage.azure.net", "https://shop.privatelink.z1.table.storage.azure.net"),
        (SHOP, ""),
        (SHOP, "https://tables.example.com"),
        (SHOP, "https://table.example.com"),
        (SHOP, "https://data.table.example.com"),
        (SHOP, "https://data.table.region.stack.example.com"),
        (SHOP, "https://gateway.example.com/tables"),
        (SHOP, "http://gateway/tables"),
        (SHOP, "http://127.0.0.1:10102/tables"),
        (SHOP, "http://127.0.0.1:10102/shop"),
        (SHOP, "http://127.0.0.1:10102"),
        (SHOP, "https://10.0.0.4"),
        (AZURITE, AZURITE),
        (AZURITE, "http://localhost:10002/devstoreaccount1/"),
        (AZURITE, "http://azurite:20002/devstoreaccount1"),
        (AZURITE, "https://127.0.0.1:10002/devstoreaccount1"),
        (AZURITE, "http://devstoreaccount1.table.localhost:10002"),
        ("http://127.0.0.1:10002/one", "http://azurite:10002/two"),
        ("http://127.0.0.1:10002/one", "http://127.0.0.1:10003/two"),
        ("http://127.0.0.1:10002/one", "http://127.0.0.1:10002"),
        ("", ""),
    ],
)
def test_what_may_be_one_account_is_not_told_apart(one: str, other: str) -> None:
    """Two emulators, or two ports, may be one: a container maps its port to another one."""
    assert not are_other_accounts(one, other)
    assert not are_other_accounts(other, one)
