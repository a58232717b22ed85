"""New keys are told for their own token, safely alone, and are those that a copy makes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from rekey import Index, Migration, Target, keys, rows
from rekey.declaration.mapper import Mapper
from rekey.errors import TableMissing, Unavailable
from rekey.model import EntityKey, Row, key_of
from rekey.proxy.server import PATH, Keys, new_keys
from tests.worlds.small import DROPPING, ticket

TOKEN = b"a token for keys, and no other"
SECRETS = {"ids": bytes(range(32))}
BY_KEY = Migration(
    source="Users",
    capture="delta",
    reverse=False,
    target=Target(
        "UsersV2",
        partition_key=keys.opaque("PartitionKey", domain="user", secret="ids"),
        row_key=keys.prop("RowKey"),
    ),
)
BY_CONTENT = Migration(
    source="Posts",
    capture="delta",
    reverse=False,
    target=Target("PostsV2", partition_key=keys.lower("Author"), row_key=keys.inverted_ticks("At")),
    indexes=[Index("PostsById", partition_key=keys.prop("PartitionKey"), row_key=keys.prop("RowKey"))],
)
OF_A_TENANT = Migration(
    source="Invoices",
    where=rows.partition_key(equals="contoso"),
    capture="delta",
    reverse=False,
    target=Target("InvoicesV2", partition_key=keys.prop("RowKey"), row_key=keys.prop("PartitionKey")),
)
OF_ANOTHER = dataclasses.replace(OF_A_TENANT, where=rows.partition_key(equals="fabrikam"))
MAPPERS = [Mapper(one, SECRETS) for one in (BY_KEY, BY_CONTENT, DROPPING, OF_A_TENANT, OF_ANOTHER)]
USERS, POSTS = MAPPERS[:2]
POST: Row = {"PartitionKey": "eu", "RowKey": "1", "Author": "Ada", "At": "2024-03-05T10:20:30.1234567Z"}
BROKEN: Row = POST | {"RowKey": "2", "At": "hidden-moment"}
BEARER = {"Authorization": f"Bearer {TOKEN.decode()}"}


async def read(table: str, key: EntityKey) -> Row | None:
    """Read a post or a ticket; the row "down" cannot be read."""
    if table == "Tickets":
        return ticket(key.row, "draft")
    assert table == "Posts", "keys of Users come from the old key alone"
    if key.row == "gone":
        raise TableMissing("hidden: the table is deleted")
    if key.row == "down":
        raise Unavailable("hidden: the account is down")
    return {key_of(row): row for row in (POST, BROKEN)}.get(key)


@asynccontextmanager
async def asking(token: bytes | None = TOKEN) -> AsyncIterator[TestClient[Any, Any]]:
    """Serve keys; yield a client."""
    application = web.Application()
    application.router.add_get(PATH, Keys(token, MAPPERS, read).answer, allow_head=False)
    server = TestServer(application)
    await server.start_server(access_log=None)  # as the proxy does
    async with TestClient(server) as client:
        yield client


async def test_keys_are_those_that_a_copy_makes() -> None:
    async with asking() as client:
        said = {"table": "users", "pk": "ada@example.org", "rk": "a b+ü"}
        async with client.get("/_rekey/keys", params=said, headers=BEARER) as answer:
            assert answer.status == 200
            assert answer.headers["Cache-Control"] == "no-store"
            assert await answer.json() == {
                "keys": [
                    {
                        "table": "UsersV2",
                        "partition_key": "n6et26tmpr2d5mp0z496c1xx2yqj451w",
                        "row_key": "a b+ü",
                    }
                ]
            }
        said = {"table": "Posts", "pk": "eu", "rk": "1"}
        async with client.get("/_rekey/keys", params=said, headers=BEARER) as answer:
            made = [(POSTS.tables[one.table], *key_of(one.row)) for one in POSTS.map(POST)]
            assert [tuple(one.values()) for one in (await answer.json())["keys"]] == made
            assert len(made) == 2


async def test_a_row_that_the_script_drops_has_none_and_the_answer_says_so() -> None:
    async with asking() as client:
        said = {"table": "Tickets", "pk": "eu", "rk": "1"}
        async with client.get("/_rekey/keys", params=said, headers=BEARER) as answer:
            assert answer.status == 404
            assert "the script drops it" in await answer.text()


def test_a_row_is_needed_where_keys_depend_on_more_than_the_old_key() -> None:
    assert new_keys(POSTS, key_of(POST), None) is None
    assert new_keys(USERS, EntityKey("a", "b"), None) is not None


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("table=Posts&pk=eu&rk=9", 404),
        ("table=Invoices&pk=hidden&rk=1", 404),
        ("table=Invoices&pk=contoso&rk=1", 200),
        ("table=Invoices&pk=fabrikam&rk=1", 200),
        ("table=Posts&pk=hidden&rk=gone", 404),
        ("table=Other&pk=eu&rk=hidden", 404),
        ("table=Posts&pk=eu&rk=2", 422),
        ("table=Posts&pk=hidden&rk=down", 503),
        ("table=Posts&pk=hidden", 400),
        ("table=Posts&pk=hidden&rk=1&rk=2", 400),
        ("table=Posts&pk=hidden&rk=1&x=1", 400),
    ],
)
async def test_no_answer_names_no_key(query: str, status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "rekey")
    caplog.set_level(logging.INFO, "aiohttp")
    async with asking() as client, client.get(f"/_rekey/keys?{query}", headers=BEARER) as answer:
        text = await answer.text()
        assert answer.status == status
    assert "hidden" not in text + caplog.text


async def test_they_are_told_for_their_token_alone() -> None:
    path = "/_rekey/keys?table=Users&pk=a&rk=b"
    async with asking() as client:
        for said in ({}, {"Authorization": "Bearer other"}, {"Authorization": TOKEN.decode()}):
            async with client.get(path, headers=said) as answer:
                assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        async with client.post(path, headers=BEARER) as answer:
            assert answer.status == 405
    async with asking(token=None) as client, client.get(path, headers=BEARER) as answer:
        assert answer.status == 403


async def test_over_http_they_are_told_to_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web.Request, "remote", "192.0.2.7")
    path = "/_rekey/keys?table=Users&pk=a&rk=b"
    async with asking() as client:
        async with client.get(path, headers=BEARER) as answer:
            assert answer.status == 403
        monkeypatch.setattr(web.Request, "secure", True)
        async with client.get(path, headers=BEARER) as answer:
            assert answer.status == 200
