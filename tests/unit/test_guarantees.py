"""What is sent to Cosmos DB for Table is what it was recorded to take; what it refuses is refused before."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from rekey.core.guarantees import COSMOS, STORAGE, guarantees_of
from rekey.errors import RowRefused
from rekey.model import EVERYTHING, EntityKey, KeyRange, Row
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Operation, Verb
from rekey.tables.credentials import SharedKey
from rekey.tables.sent import charged, requests_in
from rekey.tables.wire import Encoder, partition_filters
from tests.fakeclock import FakeClock

ROW = {"PartitionKey": "p", "RowKey": "r", "A": 1}
ENDPOINT = "https://acme.table.cosmos.azure.com"


def test_the_endpoint_says_which_service_an_account_is() -> None:
    for endpoint in (ENDPOINT, f"{ENDPOINT}:443", "https://acme.table.cosmosdb.azure.com"):
        assert guarantees_of(endpoint) is COSMOS
    for endpoint in (
        "https://acme.table.core.windows.net",
        "http://127.0.0.1:10002/acme",
        "https://table.cosmos.azure.com.example.org",
    ):
        assert guarantees_of(endpoint) is STORAGE


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({**ROW, "PartitionKey": ""}, "empty-key"),
        ({**ROW, "RowKey": ""}, "empty-key"),
        ({**ROW, "RowKey": "x" * 256}, "key-too-long"),
        ({**ROW, "RowKey": "é" * 128}, "key-too-long"),
        ({**ROW, "PartitionKey": "漢" * 342}, "key-too-long"),
        ({**ROW, "Id": 1}, "bad-property-name"),
        ({**ROW, "ResourceId": "x"}, "bad-property-name"),
        ({**ROW, "RowKey": "x" * 255}, None),
        ({**ROW, "RowKey": "é" * 127, "PartitionKey": "x" * 1024}, None),
        ({**ROW, "Etag": 1}, "bad-property-name"),
        ({**ROW, "Identity": 1, "ETags": 1, "a": 1}, None),
    ],
)
def test_rows_that_cosmos_refuses_are_refused_with_a_code_and_without_the_key(
    row: Row, code: str | None
) -> None:
    STORAGE.check_row(row, "target")
    if code is None:
        COSMOS.check_row(row, "target")
        return
    with pytest.raises(RowRefused) as raised:
        COSMOS.check_row(row, "target")
    assert raised.value.code == code
    assert raised.value.cure
    assert "xx" not in str(raised.value) and "漢" not in str(raised.value)


def test_a_range_is_asked_for_by_its_partition_or_not_at_all() -> None:
    """An equal PartitionKey is recorded; comparisons of PartitionKeys are not."""
    low, high, other = EntityKey("p'", "a"), EntityKey("p'", "b"), EntityKey("q", "a")
    assert partition_filters(KeyRange(low, high)) == ["PartitionKey eq 'p'''"]
    assert partition_filters(KeyRange(low, other)) == [""]
    assert partition_filters(EVERYTHING) == partition_filters(KeyRange(low)) == [""]
    assert partition_filters(KeyRange(high, low)) == []


def test_a_merge_in_a_transaction_is_the_post_that_was_recorded() -> None:
    """python test_table_batch_cosmos.test_new_batch_all_operations_together: PATCH was refused with 400."""
    encoder = Encoder(ENDPOINT, "T", COSMOS)
    for verb in (Verb.MERGE, Verb.INSERT_OR_MERGE):
        part = encoder.encode(Operation(verb, ROW)).decode().split("\r\n")
        assert f"POST {ENDPOINT}/T(PartitionKey='p',RowKey='r') HTTP/1.1" in part
        assert "X-HTTP-Method: MERGE" in part
        assert ("If-Match: *" in part) is (verb is Verb.MERGE)
    assert b"PATCH" in Encoder(ENDPOINT, "T").encode(Operation(Verb.MERGE, ROW))


STAMP = "2021-05-26T17:08:28.2570760Z"
TOKEN = '{"token":"+RID:~oJF7AM4mMuMCAAAAAAAAAA==#RT:1","range":{"min":"","max":"FF"}}'
PAGES = {
    False: ([{"RowKey": "z", "A": 1}, {"RowKey": "b", "A": 1}], TOKEN),
    True: ([{"RowKey": "a", "A": 1, "B": 2}, {"RowKey": "m"}], ""),
}
"""Two pages of a partition, in no order."""


@dataclass
class Stub:
    """A service that plays Cosmos DB: it says 429 to what comes first, then "done", and what that cost."""

    endpoint: str
    requests: list[web.Request]


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    """The stub, on loopback."""
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        seen.append(request)
        if request.method == "GET":
            rows, token = PAGES["NextPartitionKey" in request.query]
            body = {
                "value": [{"odata.etag": "1", "Timestamp": STAMP, "PartitionKey": "p", **row} for row in rows]
            }
            named = {"x-ms-continuation-NextPartitionKey": token, "x-ms-continuation-NextRowKey": "NA"}
            return web.json_response(body, headers=named if token else {})
        if len(seen) == 1:
            return web.Response(status=429, headers={"x-ms-retry-after-ms": "1500"})
        return web.Response(status=204, headers={"ETag": 'W/"1"', "x-ms-request-charge": "5.33"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield Stub(f"http://127.0.0.1:{port}/acme", seen)
    await runner.cleanup()


async def test_a_request_is_signed_as_the_sdks_do_waits_as_told_and_its_price_is_summed(stub: Stub) -> None:
    """Shared Key: over method, content type, date and address; the version is that of the recordings."""
    clock, credential = FakeClock(), SharedKey("acme", b"key")
    async with AzureTableService.open(stub.endpoint, credential, clock=clock, guarantees=COSMOS) as service:
        began = clock.rising()
        await service.table("Users").merge(ROW)
        assert clock.rising() - began >= 1.5
        await service.table("Users").upsert(ROW)
        service.sent.charge("none")
        assert charged(service.sent.counts) == 10.66
        assert requests_in(service.sent.counts) == 3
    for request, method, merge in zip(
        stub.requests, ("POST", "POST", "PUT"), ("MERGE", "MERGE", None), strict=True
    ):
        assert (request.method, request.headers.get("X-HTTP-Method")) == (method, merge)
        assert request.headers.get("If-Match") == ("*" if merge else None)
        assert request.headers["x-ms-version"] == "2019-02-02"
        signed = (
            f"{method}\n\napplication/json\n{request.headers['x-ms-date']}\n/acme{request.rel_url.raw_path}"
        )
        mac = base64.b64encode(hmac.new(b"key", signed.encode(), hashlib.sha256).digest()).decode()
        assert request.headers["Authorization"] == f"SharedKey acme:{mac}"


async def test_rows_are_chosen_from_all_that_come_and_the_token_alone_says_what_follows(
    stub: Stub,
) -> None:
    """Whatever is asked of a scan, the service is asked for no range, no Timestamp, no selection."""
    async with AzureTableService.open(stub.endpoint, SharedKey("acme", b"key"), guarantees=COSMOS) as service:
        table = service.table("Users")

        async def found(within: KeyRange, **how: Any) -> list[Row]:
            pages = [page async for page in table.scan(within, **how)]
            assert [page.cursor for page in pages if page.cursor is not None] == []
            return [row for page in pages for row in page.rows]

        partition = KeyRange(EntityKey("p", ""), EntityKey("p", "m"))
        assert [row["RowKey"] for row in await found(partition)] == ["b", "a", "m"]
        assert [row["RowKey"] for row in await found(KeyRange(EntityKey("p", "b")))] == ["z", "m"]
        [row] = await found(KeyRange(EntityKey("p", ""), EntityKey("p", "a")), select=["B"])
        assert "A" not in row and row["B"] == 2
        assert await found(EVERYTHING, modified_from="2021-05-26T17:08:28.2570761Z") == []
        assert len(await found(EVERYTHING, modified_from=STAMP)) == 4
    asked = [{**request.query} for request in stub.requests]
    assert {name for query in asked for name in query} == {
        "$top",
        "$filter",
        "NextPartitionKey",
        "NextRowKey",
    }
    assert {query["$filter"] for query in asked if "$filter" in query} == {"PartitionKey eq 'p'"}
    assert {query["NextPartitionKey"] for query in asked if "NextRowKey" in query} == {TOKEN}
