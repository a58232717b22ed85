"""What is done beside judging and carrying: whose token opens a client, which version goes upstream."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential
from azure.data.tables import generate_table_sas

from rekey.client.sdk.core import ClientCore
from rekey.proxy.forward import Upstream
from rekey.proxy.route import Route
from rekey.tables.credentials import Signer
from tests.unit.proxy.test_fuzz import ACCOUNT, KEY, Answer, Wire, World, exchange

TOKEN = "Bearer a-token"
UNDER_POLICY = generate_table_sas(AzureNamedKeyCredential(ACCOUNT, KEY), "Moved", policy_id="readers")


@pytest.mark.parametrize(
    ("method", "status", "is_open", "asked", "permits"),
    [
        ("GET", 403, False, ["Moved()?$top=1"], 0),
        ("GET", 401, False, ["Moved()?$top=1"], 0),
        ("GET", 503, False, ["Moved()?$top=1"], 0),
        ("GET", 200, False, ["Moved()?$top=1", "Moved()"], 1),
        ("GET", 403, True, ["Moved()"], 1),
        ("DELETE", 403, False, ["Moved()?$top=1"], 0),
        ("DELETE", 200, False, ["Moved()?$top=1", "Tables('Moved')"], 1),
    ],
)
async def test_a_token_that_the_account_refuses_makes_the_proxy_no_client(
    method: str, status: int, is_open: bool, asked: list[str], permits: int
) -> None:
    """With each client `complete` would wait for a view that nobody uses."""

    class Asked(World):
        permits = 0

        @asynccontextmanager
        async def send(self, *words: Any, **options: Any) -> Any:
            assert options["token"] == TOKEN
            async with super().send(*words, **options) as answer:
                cast(Any, answer).status = status
                yield answer

        @asynccontextmanager
        async def reading(self, key: object = None, asked: object = None) -> Any:
            self.permits += 1
            yield

        async def deleting_table(self) -> None:
            self.permits += 1

    world = Asked(tokens=True)
    cast(Any, world).is_open = is_open
    place = "Moved()" if method == "GET" else "Tables('Moved')"
    sent = f"{method} /acct/{place} HTTP/1.1\r\nHost: x\r\nAuthorization: {TOKEN}\r\n\r\n".encode()
    answered = await exchange(world, [sent], secure=True)
    assert answered.startswith(f"HTTP/1.1 {status} ".encode())
    assert ([path for _, path in world.passed], world.permits) == (asked, permits)


@pytest.mark.parametrize(
    ("signed", "header", "asked"),
    [
        ("", f"Authorization: {TOKEN}\r\n", ["New()?$top=1", "New()"]),
        (f"?{UNDER_POLICY}", "", ["New?comp=acl"]),
    ],
    ids=["token", "stored policy"],
)
async def test_another_accounts_tables_get_their_tokens(signed: str, header: str, asked: list[str]) -> None:
    """The source's account must not see a token for another one, and has not that table's policies."""
    world, there = World(tokens=True), World()
    cast(Any, world).is_open = False
    world.handler.target_upstream = cast(Upstream, there)
    world.handler.routes._routes[""]["moved"] = Route("New@targets", cast(ClientCore, world), "Moved")
    sent = f"GET /acct/Moved(){signed} HTTP/1.1\r\nHost: x\r\n{header}\r\n".encode()
    await exchange(world, [sent], secure=True)
    assert ([path for _, path in there.passed], world.passed) == (asked, [])


async def test_a_connection_that_is_gone_is_kept_by_no_timer() -> None:
    """Many short ones would fill the memory for as long as one may be idle."""
    connection = World().sockets()
    connection.connection_made(Wire(secure=False))
    timer = cast(Any, connection)._timers["unused"]
    assert not timer.cancelled()
    connection.connection_lost(None)
    assert timer.cancelled()


class Identity:
    """A credential that is an identity."""

    async def get_token(self, *_: str, **__: Any) -> AccessToken:
        """Return a token that holds for long."""
        return AccessToken("ours", 2**40)

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("came", "token", "went"),
    [
        ({"x-ms-version": "2015-12-11"}, "", "2019-02-02"),
        ({}, "", "2019-02-02"),
        ({"x-ms-version": "2020-12-06"}, "", "2020-12-06"),
        ({"x-ms-version": "2015-12-11"}, TOKEN, "2015-12-11"),
    ],
)
async def test_an_identity_signs_no_version_that_takes_none(
    came: dict[str, str], token: str, went: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller's own token goes upstream as it came, and so does its version."""
    seen: list[Any] = []

    class Session:
        async def request(self, *_: Any, headers: Any, **__: Any) -> Any:
            seen.append(headers)
            return Response()

        async def close(self) -> None:
            pass

    class Response(Answer):
        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("rekey.proxy.forward.open_session", lambda *_, **__: Session())
    signer = Signer(cast(Any, Identity()))
    upstream = Upstream("https://a.example", signer, connections=1, connect_s=1.0, read_s=1.0)
    async with upstream.send("GET", "T()", came, None, reads=True, token=token):
        pass
    await upstream.close()
    [headers] = seen
    assert headers["x-ms-version"] == went
    assert headers["Authorization"] == (token or "Bearer ours")
