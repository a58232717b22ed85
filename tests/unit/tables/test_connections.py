"""HTTP connections against real sockets: what counts as an answer, which connections are used again, what is
never sent, and that nothing hangs or is left behind."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rekey.tables import connections as module
from rekey.tables.answers import Answer
from rekey.tables.connections import Connection, Connections, Disconnected, Malformed, ProxyRefused
from rekey.tables.credentials import SharedKey
from rekey.tables.transport import Network, NoAnswer, NotSent, Request, Transport
from tests.asserts.every import every
from tests.unit.tables.test_probe import certificate

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
MB = 1 << 20


@dataclass
class Served:
    """Where a server listens, the requests in order, and the number of connections."""

    port: int = 0
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0

    @property
    def paths(self) -> list[str]:
        return [head.split(" ")[1] for head in self.heads]

    async def take(self, reader: asyncio.StreamReader) -> str:
        """Read a request and return its head. Raises IncompleteReadError at the end of the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        lines = [line.partition(": ") for line in head.split("\r\n")]
        length = next((int(value) for name, _, value in lines if name == "Content-Length"), 0)
        self.bodies.append(await reader.readexactly(length))
        return head


Talk = Callable[[Served, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(
    talk: Talk, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Served]:
    """A server that talks on each connection as it is told, and closes it then."""
    served, tasks = Served(), set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        tasks.add(asyncio.current_task())
        try:
            await talk(served, reader, writer)
            writer.close()
            await writer.wait_closed()
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass  # the other side, or the test, is done with this connection
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(accept, host, 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


def saying(*answers: bytes, closes: bool = False) -> Talk:
    """Give one answer after the other, a request each, the last one for ever; or close after the first."""

    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await served.take(reader)
            writer.write(answers[min(len(served.heads), len(answers)) - 1])
            await writer.drain()
            if closes:
                return

    return talk


saying_and_closing = partial(saying, closes=True)


class Silent:
    """Takes requests and answers none; tells when a connection ended."""

    def __init__(self) -> None:
        self.asked, self.ended = asyncio.Event(), asyncio.Event()

    async def __call__(
        self, served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await served.take(reader)
            self.asked.set()
            await reader.read()
        finally:
            self.ended.set()


async def echo(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await served.take(reader)
        body = served.bodies[-1]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()


class Client:
    """Connections, and the connection that the last request went out on."""

    def __init__(self, endpoint: str, **options: Any) -> None:
        self.endpoint = endpoint
        self.connections = Connections(endpoint, **{"most": 2, "connect_s": 5.0, "read_s": 20.0, **options})
        self.used: Connection | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connections.close()

    async def ask(
        self,
        path: str = "/rows",
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        return await self.connections.exchange(
            method, f"{self.endpoint}{path}", headers or {}, body, self._going_out
        )

    def _going_out(self, connection: Connection) -> None:
        self.used = connection


def client_of(served: Served, **options: Any) -> Client:
    return Client(f"http{'s' * ('verify' in options)}://127.0.0.1:{served.port}", **options)


Reached = Callable[..., AbstractAsyncContextManager[tuple[Served, Client]]]


@pytest.fixture
def reached(encrypted: bool, tmp_path: Path) -> Reached:
    """Serve, and return the server and a client of it, over TLS if `encrypted`."""

    @asynccontextmanager
    async def serve(talk: Talk, **options: Any) -> AsyncIterator[tuple[Served, Client]]:
        tls, trusting = certificate(tmp_path) if encrypted else (None, None)
        options |= {"verify": trusting} if encrypted else {}
        async with serving(talk, tls=tls) as served, client_of(served, **options) as client:
            yield served, client

    return serve


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


@pytest.fixture
async def go_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let the loop's clock go on by some seconds at once."""
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0

    def go(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    monkeypatch.setattr(loop, "time", lambda: real() + ahead)
    return go


# --- what counts as an answer --------------------------------------------------------------------------

WHOLE = {
    "Content-Length": (OK, 200, b"ok"),
    "no body": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;a=b\r\nk\r\n0\r\nT: t\r\n\r\n",
        200,
        b"ok",
    ),
    "204": (b"HTTP/1.1 204 No Content\r\nETag: x\r\n\r\n", 204, b""),
    "304 with a length": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", 304, b""),
    "after 100": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok"),
    "after 103 and 100": (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK,
        200,
        b"ok",
    ),
    "an error": (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", 503, b"busy"),
}


@pytest.mark.parametrize("pieces", ["whole", "byte by byte"])
@pytest.mark.parametrize("form", WHOLE)
async def test_an_answer_in_pieces_is_read_and_its_connection_reused(form: str, pieces: str) -> None:
    raw, status, body = WHOLE[form]

    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            await served.take(reader)
            for piece in [raw] if pieces == "whole" else [bytes([byte]) for byte in raw]:
                writer.write(piece)
                await asyncio.sleep(0)

    async with serving(talk) as served, client_of(served) as client:
        for _ in range(2):
            answer = await client.ask()
            assert (answer.status, answer.body) == (status, body)
    assert (served.connections, len(served.heads)) == (1, 2)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: Close\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
)
async def test_an_answer_that_ends_its_connection_counts(raw: bytes) -> None:
    async with serving(saying_and_closing(raw)) as served, client_of(served) as client:
        for _ in range(2):
            answer = await client.ask()
            assert (answer.status, answer.body) == (200, b"ok")
    assert served.connections == 2


async def test_headers_are_case_insensitive_and_the_first_wins() -> None:
    raw = b"HTTP/1.1 204 X\r\nETAG: one\r\nx-ms-a:  b c \r\nETag: two\r\n\r\n"
    async with serving(saying(raw)) as served, client_of(served) as client:
        answer = await client.ask()
    assert (answer.headers.get("etag"), answer.headers.get("X-MS-A")) == ("one", "b c")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhalf",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200",
    ],
)
async def test_a_truncated_answer_raises_disconnected(raw: bytes) -> None:
    async with serving(saying_and_closing(raw)) as served, client_of(served) as client:
        with pytest.raises(Disconnected):
            await client.ask()
    assert served.connections == 1, "a request is sent once"


async def test_a_reset_connection_is_no_answer_and_nothing_is_resent() -> None:
    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await served.take(reader)
        at_once = b"\1\0\0\0\0\0\0\0"  # SO_LINGER: closed with a reset
        writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        writer.transport.abort()

    async with serving(talk) as served, client_of(served) as client:
        with pytest.raises(OSError):
            await client.ask(method="PUT", body=b"row")
    assert len(served.heads) == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"220 mail.example ESMTP\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nok\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxx",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03",
    ],
)
async def test_malformed_http_raises_and_ends_the_connection(raw: bytes) -> None:
    async with serving(saying(raw, OK)) as served, client_of(served) as client:
        with pytest.raises(Malformed):
            await client.ask()
        assert (await client.ask()).body == b"ok"
    assert served.connections == 2


@pytest.mark.parametrize("form", ["Content-Length", "chunked", "204"])
@pytest.mark.parametrize(
    "behind",
    [OK, OK[:-1], b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"x"],
)
async def test_bytes_after_an_answer_answer_no_other_request(form: str, behind: bytes) -> None:
    raw, status, body = WHOLE[form]
    own = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown"
    async with serving(saying(raw + behind, own)) as served, client_of(served) as client:
        answer = await client.ask()
        assert (answer.status, answer.body) == (status, body)
        assert (await client.ask()).body == b"own"
    assert served.connections == 2


async def test_unsolicited_bytes_end_the_connection() -> None:
    ended = asyncio.Event()

    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await served.take(reader)
        writer.write(OK)
        await until(lambda: answered)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray")
        try:
            await reader.read()
        finally:
            ended.set()

    answered: list[Answer] = []
    async with serving(talk) as served, client_of(served) as client:
        answered.append(await client.ask())
        await ended.wait()
        assert (await client.ask()).body == b"ok"
    assert served.connections == 2


@pytest.mark.parametrize("encrypted", [False, True])
async def test_an_early_answer_counts_and_ends_the_connection(reached: Reached) -> None:
    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.Event().wait()

    async with reached(talk) as (served, client):
        for _ in range(2):
            assert (await client.ask(method="POST", body=bytes(32 * MB))).status == 413
    assert served.connections == 2


async def test_a_silent_server_times_out_and_frees_the_place() -> None:
    silent = Silent()
    async with serving(silent) as served, client_of(served, most=1, read_s=0.05) as client:
        with pytest.raises(TimeoutError):
            await client.ask()
        await silent.ended.wait()
        with pytest.raises(TimeoutError):
            await client.ask()  # the place is free
    assert served.connections == 2


async def test_the_read_timeout_counts_from_the_last_bytes(go_on: Callable[[float], None]) -> None:
    pieces = [OK[:10], OK[10:20], OK[20:30], OK[30:-1]]
    more = asyncio.Semaphore(0)

    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await served.take(reader)
        for piece in pieces:
            await more.acquire()
            writer.write(piece)
        await reader.read()

    async with serving(talk) as served, client_of(served, read_s=100) as client:
        asking = asyncio.create_task(client.ask())
        await until(lambda: served.heads)
        used = client.used
        for _ in pieces:
            go_on(60)
            progress_at = used._progress_at
            more.release()
            await until(lambda before=progress_at: used._progress_at > before)
        assert not asking.done()
        go_on(101)
        with pytest.raises(TimeoutError):
            await asking


@pytest.mark.parametrize("encrypted", [False, True])
async def test_the_read_timeout_does_not_run_while_sending(
    reached: Reached, go_on: Callable[[float], None]
) -> None:
    more = asyncio.Semaphore(0)
    taken = 0

    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await reader.readuntil(b"\r\n\r\n")
        while True:
            await more.acquire()
            await reader.readexactly(4 * MB)
            taken += 1

    async with reached(talk, read_s=100) as (_, client):
        asking = asyncio.create_task(client.ask(method="POST", body=bytes(48 * MB)))
        await until(lambda: client.used is not None)
        used = client.used
        for number in range(1, 6):
            unsent = used._buffered()
            assert unsent > 0
            more.release()
            await until(lambda before=unsent, number=number: taken == number and used._buffered() < before)
            go_on(60)
            await asyncio.sleep(0.01)
            assert not asking.done()
        go_on(101)
        go_on(101)
        with pytest.raises(TimeoutError):
            await asking


async def test_a_connection_idle_for_four_seconds_is_not_reused(go_on: Callable[[float], None]) -> None:
    async with serving(saying(OK)) as served, client_of(served) as client:
        await client.ask()
        go_on(module.IDLE_SECONDS - 0.5)
        await client.ask()
        assert served.connections == 1
        go_on(module.IDLE_SECONDS + 0.1)
        await client.ask()
        assert served.connections == 2


async def test_closing_cancels_the_timers_of_connections() -> None:
    silent = Silent()
    async with serving(silent) as served, client_of(served) as client:
        asking = asyncio.create_task(client.ask())
        await silent.asked.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    assert not [timer for timer in scheduled if not timer.cancelled() and "Connection." in repr(timer)]


async def test_a_canceled_request_frees_its_place_and_ends_its_connection() -> None:
    silent = Silent()

    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (silent if served.connections == 1 else saying(OK))(served, reader, writer)

    async with serving(talk) as served, client_of(served, most=1) as client:
        asking = asyncio.create_task(client.ask())
        await silent.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await silent.ended.wait()
        assert (await client.ask()).body == b"ok"
    assert served.connections == 2


async def test_a_request_canceled_before_sending_frees_its_place() -> None:
    heard = asyncio.Semaphore(0)

    async def talk(_: Served, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)  # TLS begins: the client knows that it is connected
        heard.release()
        await reader.read()

    async with serving(talk) as served:
        async with Client(f"https://127.0.0.1:{served.port}", most=1) as client:
            connecting, waiting = (asyncio.create_task(client.ask()) for _ in range(2))
            await heard.acquire()
            waiting.cancel()
            connecting.cancel()
            ended = await asyncio.gather(connecting, waiting, return_exceptions=True)
            assert every(isinstance(error, asyncio.CancelledError) for error in ended)
            last = asyncio.create_task(client.ask())
            await heard.acquire()
            last.cancel()
            await asyncio.gather(last, return_exceptions=True)
        assert client.used is None


async def test_connections_are_bounded_and_first_come_first_served() -> None:
    go = asyncio.Semaphore(0)
    under_way = most = 0

    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        while True:
            await served.take(reader)
            under_way += 1
            most = max(most, under_way)
            await go.acquire()
            under_way -= 1
            writer.write(OK)

    async with serving(talk) as served, client_of(served, most=2) as client:
        asking = [asyncio.create_task(client.ask(f"/{number}")) for number in range(9)]
        for expected in [2, 3, 4, 5, 6, 7, 8, 9, 9]:
            await until(lambda expected=expected: len(served.heads) == expected)
            go.release()
        assert every(answer.body == b"ok" for answer in await asyncio.gather(*asking))
    assert (served.connections, most) == (2, 2)
    assert sorted(served.paths[:2]) == ["/0", "/1"]
    assert served.paths[2:] == [f"/{number}" for number in range(2, 9)]


async def test_a_connection_closed_while_idle_is_not_used() -> None:
    async with serving(saying_and_closing(OK)) as served, client_of(served) as client:
        for _ in range(3):
            await client.ask()
            used = client.used
            await until(lambda used=used: not used.usable)
    assert served.connections == 3


async def test_a_request_forbidden_at_sending_keeps_the_connection() -> None:
    def forbid(_: Connection) -> None:
        raise LookupError("not any more")

    async with serving(saying(OK)) as served, client_of(served, most=1) as client:
        for _ in range(2):
            with pytest.raises(LookupError):
                await client.connections.exchange("PUT", f"{client.endpoint}/no", {}, b"row", forbid)
            assert (await client.ask()).body == b"ok"
    assert (served.connections, served.paths) == (1, ["/rows", "/rows"])


async def test_nothing_is_sent_on_a_closed_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(saying(OK)) as served, client_of(served) as client:
        connect = client.connections._connect

        async def lost() -> Connection:
            connection = await connect()
            connection.close()
            return connection

        monkeypatch.setattr(client.connections, "_connect", lost)
        with pytest.raises(Disconnected):
            await client.ask()
    assert client.used is None and served.heads == []


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/a", {"If-Match": "x\r\nHost: elsewhere"}),
        ("/a", {"If-Match": "x\n"}),
        ("/a", {"If-Match": "x\r"}),
        ("/a", {"If-Match\r\n": "x"}),
        ("/a", {"User-Agent": "\udc80"}),
        ("/a b", {}),
        ("/a HTTP/1.1\r\nHost: elsewhere\r\n\r\n", {}),
        ("/ä", {}),
    ],
)
async def test_a_request_that_would_be_split_is_not_sent(path: str, headers: dict[str, str]) -> None:
    async with serving(saying(OK)) as served, client_of(served) as client:
        with pytest.raises(Malformed):
            await client.ask(path, headers=headers)
    assert served.connections == 0 and client.used is None


async def test_a_request_is_sent_unchanged() -> None:
    async with serving(saying(OK)) as served, client_of(served) as client:
        await client.ask("/a%2Fb/../T(PartitionKey='%27')?a=b%20c&d=+", headers={"If-Match": "*", "x": ""})
        await client.ask("/", method="DELETE")
        await client.ask("/$batch", method="POST", body=b"row")
    host = f"Host: 127.0.0.1:{served.port}\r\n"
    assert served.heads == [
        f"GET /a%2Fb/../T(PartitionKey='%27')?a=b%20c&d=+ HTTP/1.1\r\n{host}If-Match: *\r\nx: \r\n\r\n",
        f"DELETE / HTTP/1.1\r\n{host}Content-Length: 0\r\n\r\n",
        f"POST /$batch HTTP/1.1\r\n{host}Content-Length: 3\r\n\r\n",
    ]
    assert served.bodies == [b"", b"", b"row"]


@pytest.mark.parametrize(
    ("endpoint", "proxy"),
    [
        ("http://a..b", None),
        (f"http://{'a' * 64}.example", None),
        ("http://127.0.0.1:99999", None),
        ("http://127.0.0.1:port", None),
        ("http://", None),
        ("ftp://127.0.0.1", None),
        ("https://.example", None),
        ("http://account.example", "http://proxy.example:port"),
        ("https://account.example", "http://proxy.example:port"),
        ("https://account.example", "http://"),
        ("https://account.example", "http://[proxy"),
        ("https://account.example", "socks5://127.0.0.1:1080"),
        ("https://account..example", "http://127.0.0.1:9"),
    ],
)
async def test_an_unusable_address_is_refused_as_unreachable(endpoint: str, proxy: str | None) -> None:
    async with Client(endpoint, proxy=proxy) as client:
        with pytest.raises(OSError):
            await client.ask()
    assert client.used is None


@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_a_proxy_gets_the_absolute_address_and_the_password(scheme: str) -> None:
    async with serving(saying(OK)) as served:
        proxy = f"{scheme}me:p%40ss@127.0.0.1:{served.port}"
        async with Client("http://tables.example:81/account", proxy=proxy) as client:
            assert (await client.ask("/Users()?a=%2F", headers={"A": "b"})).body == b"ok"
    words = base64.b64encode(b"me:p@ss").decode()
    [head] = served.heads
    assert head == (
        "GET http://tables.example:81/account/Users()?a=%2F HTTP/1.1\r\nHost: tables.example:81\r\n"
        f"A: b\r\nProxy-Authorization: Basic {words}\r\n\r\n"
    )


def tunnelling(before: bytes = b"") -> Talk:
    """Connect to whom a proxy is asked for. `before`: said before that is done."""

    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await served.take(reader)
        host, _, port = head.split(" ")[1].rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(before + b"HTTP/1.1 200 Connection established\r\nProxy-Agent: x\r\n\r\n")

        async def pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while data := await source.read(MB):
                to.write(data)
                await to.drain()

        ways = [pass_on(reader, far_writer), pass_on(far_reader, writer)]
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            far_writer.transport.abort()

    return talk


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 100 Continue\r\n\r\n"])
@pytest.mark.parametrize("secured", [False, True], ids=["http proxy", "https proxy"])
async def test_a_tunnel_hides_the_proxys_password(secured: bool, before: bytes, tmp_path: Path) -> None:
    tls, trusting = certificate(tmp_path)
    async with (
        serving(echo, tls=tls) as served,
        serving(tunnelling(before), tls=tls if secured else None) as by,
    ):
        proxy = f"{'https' if secured else 'http'}://me:secret@127.0.0.1:{by.port}"
        async with Client(f"https://127.0.0.1:{served.port}", proxy=proxy, verify=trusting) as client:
            body = bytes(range(256)) * 4096
            for _ in range(2):
                assert (await client.ask(method="POST", body=body)).body == body
            assert client.used.get_extra_info("ssl_object").version().startswith("TLSv1.")
    target, words = f"127.0.0.1:{served.port}", base64.b64encode(b"me:secret").decode()
    assert by.heads == [
        f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {words}\r\n\r\n"
    ]
    assert len(served.heads) == 2 and not [head for head in served.heads if "Proxy" in head]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.1 407 Who are you\r\nContent-Length: 100000\r\n\r\nhalf", ProxyRefused),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", ProxyRefused),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", ProxyRefused),
        (b"HTTP/1.1 100 Continue\r\n\r\n", Disconnected),
        (b"SSH-2.0-x\r\n", Malformed),
        (b"", Disconnected),
        (b"HTTP/1.1 200 OK\r\n\r\n", OSError),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", OSError),
    ],
)
async def test_a_failed_tunnel_sends_no_request(reply: bytes, error: type[OSError]) -> None:
    async with serving(saying_and_closing(reply)) as by:
        proxy = f"http://127.0.0.1:{by.port}"
        async with Client("https://account.example", proxy=proxy) as client:
            with pytest.raises(error):
                await client.ask()
            assert client.used is None
    assert by.paths == ["account.example:443"]


async def test_a_tunnel_to_ipv6_has_brackets() -> None:
    async with (
        serving(saying_and_closing(b"HTTP/1.1 403 No\r\n\r\n")) as by,
        Client("https://[::1]/account", proxy=f"http://127.0.0.1:{by.port}") as client,
    ):
        with pytest.raises(ProxyRefused):
            await client.ask()
    assert by.heads == ["CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n\r\n"]


async def test_the_transport_separates_not_sent_from_not_answered() -> None:
    async def sent(endpoint: str, **options: Any) -> None:
        transport = Transport(
            endpoint, SharedKey("account", b"k"), Network(connections=1, **options), agent="test/1"
        )
        try:
            await transport.send(Request("PUT", "Users()", "write", body=b"{}"))
        finally:
            await transport.close()

    refusing = saying_and_closing(b"HTTP/1.1 407 Who are you\r\n\r\n")
    async with serving(refusing) as by, serving(saying_and_closing(b"HTTP/1.1 100 C\r\n\r\n")) as served:
        with pytest.raises(NotSent, match="ProxyRefused"):
            await sent("https://account.example", proxies={"https": f"http://127.0.0.1:{by.port}"})
        with pytest.raises(NotSent, match="Malformed"):
            await sent("https://account.example", proxies={"https": "http://127.0.0.1:port"})
        with pytest.raises(NotSent, match="Malformed"):
            await sent("http://a..b")
        with pytest.raises(NotSent, match="ConnectionRefusedError"):
            await sent("http://127.0.0.1:1", proxies={})
        with pytest.raises(NoAnswer, match="Disconnected"):
            await sent(f"http://127.0.0.1:{served.port}")


async def test_certificates_are_verified_as_configured(tmp_path: Path) -> None:
    tls, trusting = certificate(tmp_path)
    (tmp_path / "junk.pem").write_text("no certificate")
    accepted: list[Any] = [False, str(tmp_path / "server.pem"), trusting]
    refused: list[tuple[Any, type[OSError]]] = [
        (True, ssl.SSLCertVerificationError),
        (str(tmp_path / "none.pem"), FileNotFoundError),
        (str(tmp_path / "junk.pem"), ssl.SSLError),
    ]
    async with serving(saying(OK), tls=tls) as served:
        for verify in accepted:
            async with Client(f"https://127.0.0.1:{served.port}", verify=verify) as client:
                assert (await client.ask()).body == b"ok"
        for verify, error in refused:
            async with Client(f"https://127.0.0.1:{served.port}", verify=verify) as client:
                for _ in range(2):
                    with pytest.raises(error):
                        await client.ask()
                assert client.used is None
        async with Client(f"https://localhost:{served.port}", verify=trusting) as client:  # another name
            with pytest.raises(ssl.SSLCertVerificationError):
                await client.ask()
    assert len(served.heads) == 3


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
async def test_a_failed_handshake_sends_no_request(reply: bytes) -> None:
    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(reply)

    async with serving(talk) as served, Client(f"https://127.0.0.1:{served.port}") as client:
        with pytest.raises(OSError):
            await client.ask()
        assert client.used is None


async def test_a_silent_handshake_times_out() -> None:
    silent = Silent()
    async with serving(silent) as served:
        async with Client(f"https://127.0.0.1:{served.port}", connect_s=0.05) as client:
            with pytest.raises(TimeoutError):
                await client.ask()
            assert client.used is None
        await silent.ended.wait()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_large_bodies_are_sent_both_ways_at_once(reached: Reached) -> None:
    body = bytes(range(256)) * (8 * MB // 256)
    async with reached(echo) as (served, client):
        for _ in range(2):
            answers = await asyncio.gather(*(client.ask(method="POST", body=body) for _ in range(2)))
            assert every(answer.body == body for answer in answers)
    assert served.connections == 2


async def test_an_endpoint_is_reached_by_ipv6_and_by_name() -> None:
    async with serving(saying(OK)) as served, Client(f"http://localhost:{served.port}") as client:
        assert (await client.ask()).body == b"ok"
    assert f"Host: localhost:{served.port}\r\n" in served.heads[0]
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    async with serving(saying(OK), host="::1") as served, Client(f"http://[::1]:{served.port}") as client:
        assert (await client.ask()).body == b"ok"
    assert f"Host: [::1]:{served.port}\r\n" in served.heads[0]


async def test_closing_ends_running_and_waiting_requests() -> None:
    silent = Silent()
    async with serving(silent) as served, client_of(served, most=1) as client:
        asking = [asyncio.create_task(client.ask()) for _ in range(3)]
        await silent.asked.wait()
        await client.connections.close()
        await client.connections.close()
        ended = await asyncio.gather(*asking, return_exceptions=True)
        assert every(isinstance(error, Disconnected) for error in ended)
        await silent.ended.wait()
        with pytest.raises(Disconnected):
            await client.ask()
    assert served.connections == 1 == len(served.heads)


async def test_a_connection_made_during_close_is_closed_unused() -> None:
    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await served.take(reader)
        await closed.wait()
        writer.write(b"HTTP/1.1 502 X\r\n\r\n")

    closed = asyncio.Event()
    async with serving(talk) as by:
        async with Client("https://account.example", proxy=f"http://127.0.0.1:{by.port}") as client:
            asking = asyncio.create_task(client.ask())
            await until(lambda: by.heads)
        closed.set()
        with pytest.raises(OSError):
            await asking
    assert client.used is None


async def test_a_body_without_length_is_no_answer_after_close() -> None:
    async def talk(served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await served.take(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await reader.read()

    async with serving(talk) as served, client_of(served) as client:
        asking = asyncio.create_task(client.ask())
        await until(lambda: client.used is not None and client.used._body)
        await client.connections.close()
        with pytest.raises(Disconnected):
            await asking
