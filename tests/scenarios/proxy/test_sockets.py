"""A proxy's sockets: bytes that are no request or could be read in two ways, too much of anything, an account
that does not answer, the end. No answer shows more than the service would.

Soak: many bytes.
Reason, and what `make test` covers: as long as allowed; 150 made-up connections.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import AccountSasPermissions, ResourceTypes, generate_account_sas
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rekey.project.config import AZURITE_ACCOUNT, AZURITE_KEY, Config, load_config
from rekey.proxy.running import Listening
from rekey.rehearse.azurite import AzuriteAccount
from tests.worlds.proxy import Wired, proxied, wired

SIGNED = generate_account_sas(
    AzureNamedKeyCredential(AZURITE_ACCOUNT, AZURITE_KEY),
    ResourceTypes(service=True, container=True, object=True),
    AccountSasPermissions(read=True, write=True, delete=True, list=True, add=True, update=True, create=True),
    datetime(2200, 1, 1, tzinfo=UTC),
)
HEAD = "GET /devstoreaccount1/Plain() HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n"


def closed_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def config_in(folder: Path, more: str = "", port: int | None = None) -> Config:
    """Return a configuration whose account listens on a port; None: on none."""
    endpoint = f"http://127.0.0.1:{port or closed_port()}/devstoreaccount1"
    (folder / "rekey.toml").write_text(
        f'[tables]\nendpoint = "{endpoint}"\n[restricted]\nendpoint = "{endpoint}"\n'
        f'[proxy]\ndrain = "0s"\n{more}',
        "utf-8",
    )
    return load_config(folder / "rekey.toml")


@asynccontextmanager
async def asking(found: Listening) -> AsyncIterator[Wired]:
    """Open a way to a proxy, with the account's key."""
    async with wired(found.url, AzuriteAccount(AZURITE_ACCOUNT, found.url, AZURITE_KEY)) as wire:
        yield wire


async def exchange(found: Listening, sent: bytes, quiet_s: float = 20.0) -> bytes:
    """Send bytes on a connection of their own; return all that comes until it is closed, or quiet."""
    port = int(found.url.rsplit(":", 1)[1].strip("/"))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    came = b""
    try:
        while more := await asyncio.wait_for(reader.read(65536), quiet_s):
            came += more
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return came


def said(answer: bytes) -> tuple[int, str]:
    """Return status and error code of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), str(json.loads(body)["odata.error"]["code"])


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        HEAD + "Content-Length: +3\r\n\r\nabc",
        HEAD + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        HEAD + "If-Match: a\r\nIf-Match: b\r\n\r\n",
        HEAD + " folded: x\r\n\r\n",
        HEAD + "No-Colon\r\n\r\n",
        HEAD + "Space : x\r\n\r\n",
        HEAD.replace("Plain()", "Pl ain()") + "\r\n",
        HEAD.replace("Plain()", "Plain(PartitionKey='a%2fb',RowKey='x')") + "\r\n",
        HEAD.replace("Plain()", "Plain(PartitionKey='a%0d%0a',RowKey='x')") + "\r\n",
        HEAD.replace("GET", "TRACE") + "\r\n",
        HEAD.replace("GET", "MAKE") + "\r\n",
        HEAD.replace("HTTP/1.1", "HTTP/9.9") + "\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        HEAD + "X-Long: " + "x" * 70_000 + "\r\n\r\n",
        HEAD.replace("Plain()", "Plain()?" + "x" * 70_000) + "\r\n",
    ],
)
async def test_ambiguous_bytes_are_refused_and_not_repeated(sent: str, tmp_path: Path) -> None:
    async with proxied(config_in(tmp_path)) as found:
        answer = await exchange(found, sent.encode("latin-1"))
    assert len(re.findall(rb"HTTP/1\.[01] 4", answer)) == 1, "what follows was taken for a request"
    assert said(answer)[0] in (400, 405, 414, 431)
    assert b"xxxx" not in answer


BYTES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *(
                    b"GET ",
                    b"POST ",
                    b"MERGE ",
                    b"/devstoreaccount1/Plain()",
                    b" HTTP/1.1\r\n",
                    b"Host: x\r\n",
                ),
                *(
                    b"Content-Length: 5\r\n",
                    b"Transfer-Encoding: chunked\r\n",
                    b"\r\n",
                    b"5\r\nhello\r\n0\r\n\r\n",
                ),
                *(
                    b"/$batch",
                    b"Content-Type: multipart/mixed; boundary=b\r\n",
                    b"--b\r\n",
                    b"{}",
                    b"%00",
                    b"\n",
                ),
                *(b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Upgrade: websocket\r\n"),
            ]
        ),
        st.binary(max_size=12),
    ),
    max_size=24,
)


@pytest.fixture
async def listening(tmp_path: Path) -> AsyncIterator[Listening]:
    """A proxy whose account does not answer."""
    async with proxied(config_in(tmp_path)) as found:
        yield found


def check_whatever(found: Listening, sent: bytes, loop: asyncio.AbstractEventLoop) -> None:
    """Send bytes; every answer is one of the service's, and shows nothing of the program."""
    answer = loop.run_until_complete(exchange(found, sent, quiet_s=0.05))
    assert b"Traceback" not in answer
    assert b".py" not in answer
    for status in re.findall(rb"HTTP/1\.[01] (\d+) ", answer):
        assert int(status) in (100, 400, 403, 405, 413, 414, 415, 417, 431, 500, 503), answer


def whatever(folder: Path, examples: int) -> None:
    """Run a proxy and send it what hypothesis makes up."""
    loop = asyncio.new_event_loop()
    context = proxied(config_in(folder))
    found = loop.run_until_complete(context.__aenter__())
    try:
        limits = settings(max_examples=examples, suppress_health_check=list(HealthCheck))
        limits(given(sent=BYTES.map(b"".join))(lambda sent: check_whatever(found, sent, loop)))()
    finally:
        loop.run_until_complete(context.__aexit__(None, None, None))
        loop.close()


def test_whatever_bytes_come_they_are_answered_as_the_service_answers(tmp_path: Path) -> None:
    whatever(tmp_path, 150)


@pytest.mark.soak
def test_whatever_many_bytes_come(tmp_path: Path) -> None:
    whatever(tmp_path, int(os.environ.get("SOAK_SECONDS", "600")) * 10)


async def test_an_account_that_cannot_be_reached_is_503_with_retry_after(listening: Listening) -> None:
    async with asking(listening) as wire:
        for request in (
            wire.ask("GET", "Plain()"),
            wire.ask("POST", "Plain", {"PartitionKey": "p", "RowKey": "r"}),
            wire.ask("GET", "?restype=service&comp=properties"),
        ):
            answer = await request
            assert (answer.status, answer.code) == (503, "ServerBusy")
            assert answer.headers["retry-after"]


async def test_nothing_is_carried_out_without_a_credential(listening: Listening) -> None:
    async with aiohttp.ClientSession() as session:
        for method, path in (("GET", "Plain()"), ("POST", "$batch"), ("POST", "Tables"), ("GET", "Tables")):
            async with session.request(method, listening.url + path) as answer:
                assert answer.status == 403
                assert (await answer.json())["odata.error"]["code"] == "AuthenticationFailed"


async def test_errors_are_xml_for_who_asks_for_it(listening: Listening) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            listening.url + "1", headers={"Accept": "application/atom+xml,application/xml"}
        ) as answer,
    ):
        assert answer.status == 400
        assert answer.content_type == "application/xml"
        assert "<code>InvalidUri</code>" in await answer.text()


async def test_a_body_beyond_the_limit_is_413_also_when_its_length_is_not_said(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 1024

    async with proxied(config_in(tmp_path, 'body = "16KiB"')) as found, aiohttp.ClientSession() as session:
        for data in (b"x" * 20_000, chunks()):
            async with session.post(f"{found.url}Plain?{SIGNED}", data=data) as answer:
                status, code = answer.status, (await answer.json())["odata.error"]["code"]
                assert (status, code) == (413, "RequestBodyTooLarge")


@pytest.mark.parametrize("length", [100, 200_000], ids=["read first", "streamed"])
async def test_a_write_whose_body_stops_was_not_done_and_is_told_so(tmp_path: Path, length: int) -> None:
    """Nothing acts on half a body: "may have been applied" would send an operator after it."""
    async with account(b"") as port:
        config = config_in(tmp_path, port=port)
        limits = replace(config.proxy.limits, request_s=1)
        async with proxied(replace(config, proxy=replace(config.proxy, limits=limits))) as found:
            head = f"POST /Plain?{SIGNED} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n"
            answer = await exchange(found, f'{head}Content-Type: application/json\r\n\r\n{{"Part'.encode())
    assert said(answer) == (408, "RequestTimeout")
    assert b"nothing was done" in answer
    assert b"connection: close" in answer.lower()


async def test_from_sigterm_on_every_answer_ends_its_connection(tmp_path: Path) -> None:
    """RFC 9112, 9.6: a client that was not told loses the request that it sends when the process is gone."""
    page = b'{"value":[]}' * 1000
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n"
    asked = f"GET /Plain()?{SIGNED} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    for answers in (b"", head % len(page) + page):
        async with account(answers) as port, proxied(config_in(tmp_path, port=port)) as found:
            before = await exchange(found, asked + asked, quiet_s=1.0)
            found.health.ready = False
            after = await exchange(found, asked + asked, quiet_s=5.0)
        count = [len(re.findall(rb"HTTP/1\.1 [25]", one)) for one in (before, after)]
        assert count == [2, 1], "the second request of a connection is not answered"
        assert b"connection: close" not in before.lower()
        assert b"connection: close" in after.lower()


async def test_a_request_on_an_open_connection_is_answered_when_listening_has_ended(tmp_path: Path) -> None:
    """It was on its way when the time of `[proxy] drain` was over."""
    async with account(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as port:
        async with proxied(config_in(tmp_path, port=port)) as found:
            address = ("127.0.0.1", int(found.url.rsplit(":", 1)[1].strip("/")))
            reader, writer = await asyncio.open_connection(*address)
            found.health.ready = False

            async def late() -> bytes:
                await asyncio.sleep(0.3)
                with pytest.raises(ConnectionError):
                    await asyncio.open_connection(*address)
                writer.write(f"GET /Plain()?{SIGNED} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                return await reader.read()

            waiting = asyncio.create_task(late())
            await asyncio.sleep(0)
        assert (await waiting).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_connections_beyond_the_limit_are_turned_away_and_idle_ones_closed(tmp_path: Path) -> None:
    async with proxied(config_in(tmp_path, 'connections = 2\nidle = "1s"')) as found:
        port = int(found.url.rsplit(":", 1)[1].strip("/"))
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert (await exchange(found, (HEAD + "\r\n").encode())).startswith(b"HTTP/1.1 503 ")
        assert [await reader.read() for reader, _ in held] == [b"", b""]  # neither sent anything
        for _, writer in held:
            writer.close()
        code = said(await exchange(found, (HEAD + "Connection: close\r\n\r\n").encode()))[1]
        assert code == "AuthenticationFailed", "it is answered again"


@asynccontextmanager
async def account(answer: bytes) -> AsyncIterator[int]:
    """Listen as an account that answers every request with these bytes and hangs up; yield the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_write_that_was_sent_and_not_answered_is_told_as_open(tmp_path: Path) -> None:
    """As the service says it: 500 OperationTimedOut, not 503, which means that nothing was done."""
    async with account(b"") as port, proxied(config_in(tmp_path, port=port)) as found, asking(found) as wire:
        answer = await wire.ask("POST", "Plain", {"PartitionKey": "p", "RowKey": "r"})
        assert (answer.status, answer.code) == (500, "OperationTimedOut")
        answer = await wire.ask("GET", "Plain()")
        assert (answer.status, answer.code) == (503, "ServerBusy")


async def test_half_an_answer_does_not_look_like_a_whole_one(tmp_path: Path) -> None:
    half = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"val\r\n'
    async with account(half) as port, proxied(config_in(tmp_path, port=port)) as found, asking(found) as wire:
        with pytest.raises(aiohttp.ClientError):
            await wire.ask("GET", "Plain()")


@pytest.mark.parametrize("odd", [b"\xff", b"\xc3\xbc", b"a \xff b", b"\xed\xa0\x80"])
async def test_non_utf8_admins_refused(odd: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS_TOKEN", "a token of sixteen bytes")
    async with proxied(config_in(tmp_path, '[proxy.access.token]\nenv = "KEYS_TOKEN"')) as found:
        admin = replace(found, url=found.admin)
        for line, status in (
            (b"GET /_rekey/keys?table=a&pk=b&rk=c HTTP/1.1\r\nAuthorization: Bearer " + odd, 401),
            (b"GET /_rekey/keys?table=a&pk=b&rk=c HTTP/1.1\r\nAuthorization: Basic " + odd, 401),
            (b"GET /_rekey/keys?table=" + odd + b" HTTP/1.1", 400),
            (b"GET /" + odd + b" HTTP/1.1", 400),
            (b"GET /health/liveness HTTP/1.1\r\nHost: " + odd, 200),
            (b"GET /metrics HTTP/1.1\r\nAccept: " + odd, 200),
            (b"GET /metrics HTTP/1.1\r\nCookie: a=" + odd, 200),
        ):
            host = b"" if b"Host" in line else b"\r\nHost: x"
            answer = await exchange(admin, line + host + b"\r\nConnection: close\r\n\r\n")
            assert answer.split(b" ")[1] == str(status).encode(), line


async def test_readiness_ends_before_requests_do(listening: Listening) -> None:
    async with aiohttp.ClientSession() as session:

        async def status(path: str) -> int:
            async with session.get(listening.admin + path) as answer:
                return answer.status

        assert [await status("health/liveness"), await status("health/readiness")] == [200, 200]
        listening.health.ready = False
        assert [await status("health/liveness"), await status("health/readiness")] == [200, 503]
        async with asking(listening) as wire:
            assert (await wire.ask("GET", "Plain()")).status == 503
        async with session.get(listening.admin + "metrics") as answer:
            text = await answer.text()
        assert 'rekey_proxy_requests_total{how="passed",resource="rows",status="503"} 1.0' in text
        assert "Plain" not in text


async def test_tables_of_the_restricted_store_are_reached_by_nobody(listening: Listening) -> None:
    """They are in the same account here."""
    batch = "\r\n".join(
        (
            *("--b", "Content-Type: application/http", "", "GET /RekeyMap() HTTP/1.1", "Accept: */*", "", ""),
            *("--b--", ""),
        )
    )
    async with asking(listening) as wire:
        for method, path, data, kind in (
            ("GET", "rekeymap()", None, ""),
            ("GET", "devstoreaccount1/ReKeyControl(PartitionKey='a',RowKey='b')", None, ""),
            ("DELETE", "Tables('rekeyjournal')", None, ""),
            ("POST", "Tables", b'{"TableName":"rekeymap"}', "application/json"),
            ("POST", "$batch", batch.encode(), "multipart/mixed; boundary=b"),
        ):
            answer = await wire.ask(method, path, data, {"Content-Type": kind} if kind else {})
            assert (answer.status, answer.code) == (403, "AuthorizationFailure"), path


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("http://localhost:10002/devstoreaccount1", id="host"),
        pytest.param("https://tables.example.com", id="domain"),
    ],
)
async def test_tables_of_the_restricted_store_are_closed_under_another_address(
    tmp_path: Path, address: str
) -> None:
    """The restricted account may be that of the tables, unless the addresses say that it is not."""
    config = config_in(tmp_path)
    other = replace(config.restricted, endpoint=address)
    async with proxied(replace(config, restricted=other)) as found, asking(found) as wire:
        answer = await wire.ask("GET", "rekeymap()")
        assert (answer.status, answer.code) == (403, "AuthorizationFailure")
