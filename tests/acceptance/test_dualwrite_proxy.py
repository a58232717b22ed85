"""The weather of the dual-write tests does what it says: what is applied, answered, and counted."""

from __future__ import annotations

import asyncio
import http.client
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from rekey.rehearse.azurite import Azurite
from tests.acceptance.dualwriting_proxy import STORMY, ProxyProcess, SeededProxy, Weather
from tests.acceptance.support import Wire

pytestmark = pytest.mark.azurite
_LOST = (ConnectionError, http.client.HTTPException)


@pytest.mark.parametrize(
    ("meets", "answered", "applied"),
    [
        ("delayed", 204, True),
        ("lost", None, True),
        ("cut", None, False),
        ("busy", 503, False),
        ("failed", 500, False),
        ("applied_and_failed", 500, True),
        ("late", None, True),
    ],
)
async def test_each_kind_of_weather_applies_and_answers_as_it_says(
    azurite: Azurite, table_name: Callable[[str], str], meets: str, answered: int | None, applied: bool
) -> None:
    table = table_name("Weather")
    direct = Wire(azurite.tables)
    direct.create(table)
    direct.insert(table, {"PartitionKey": "p", "RowKey": "r", "Value": 1})
    [row] = direct.rows(table)
    proxy = SeededProxy(("127.0.0.1", azurite.port), Weather(**{meets: 1.0, "delay": 0.01}))
    port = await proxy.start()
    account = replace(azurite.tables, endpoint=f"http://127.0.0.1:{port}/{azurite.tables.name}")
    changed = {"PartitionKey": "p", "RowKey": "r", "Value": 2}
    try:
        status, _, _ = await asyncio.to_thread(
            Wire(account).ask,
            "PUT",
            f"{table}(PartitionKey='p',RowKey='r')",
            changed,
            {"If-Match": row["odata.etag"]},
        )
        assert status == answered
    except _LOST:
        assert answered is None
    while applied and direct.rows(table)[0]["Value"] == 1:
        await asyncio.sleep(0.01)
    await proxy.stop()
    assert direct.rows(table)[0]["Value"] == (2 if applied else 1)
    assert proxy.dealt == {"requests": 1, meets: 1}


def test_only_conditional_requests_are_held_until_late() -> None:
    """A late unconditional write overwrites a newer one in any table: that would prove nothing."""
    lot = random.Random(0)
    assert Weather(late=1.0).draw(lot, conditional=True) == "late"
    assert Weather(late=1.0).draw(lot, conditional=False) == "cut"


def test_as_a_process_it_passes_most_requests_on_and_says_what_it_dealt_out(
    azurite: Azurite, table_name: Callable[[str], str]
) -> None:
    """The same seed deals out the same."""
    table = table_name("Weather")
    Wire(azurite.tables).create(table)
    dealt = []
    for _ in range(2):
        with ProxyProcess(azurite.tables.endpoint, replace(STORMY, seed=7, delay=0.001)) as proxy:
            wire = Wire(replace(azurite.tables, endpoint=proxy.instead_of(azurite.tables.endpoint)))
            passed = 0
            for _ in range(100):
                try:
                    passed += wire.ask("GET", f"{table}()")[0] == 200
                except _LOST:
                    continue
        dealt.append(proxy.dealt)
        went_wrong = sum(proxy.dealt.values()) - proxy.dealt["requests"] - proxy.dealt["delayed"]
        assert proxy.dealt["requests"] == 100
        assert passed == 100 - went_wrong
    assert dealt[0] == dealt[1]
