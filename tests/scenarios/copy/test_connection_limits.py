"""What a peer without a credential can hold of a proxy: connections are counted from the moment they are
accepted, and one that takes nothing, or never ends a TLS handshake, is given up.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from rekey.project.config import Config
from rekey.proxy.access import Access
from rekey.proxy.meter import Meter
from rekey.proxy.running import Listeners, Listening, proxying
from rekey.serve import sockets
from tests.scenarios.proxy.test_sockets import HEAD, config_in, exchange
from tests.worlds.proxy import ANYWHERE

REQUEST = (HEAD + "\r\n").encode()
# More than two kernels take for a peer that reads nothing.
FLOOD = REQUEST * 20_000


def certificate_in(folder: Path) -> ssl.SSLContext:
    """Return the context of a server with a certificate of its own."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += [
        "-days",
        "1",
        "-subj",
        "/CN=proxy",
        "-keyout",
        str(folder / "key"),
        "-out",
        str(folder / "pem"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "pem", folder / "key")
    return context


@asynccontextmanager
async def proxied(
    config: Config, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Listening, Meter]]:
    """Run a proxy whose requests and connections end after a second."""
    limits = replace(config.proxy.limits, request_s=1, idle_s=1)
    config = replace(config, proxy=replace(config.proxy, limits=limits))
    access = Access(config.tables.name, {"application": b"x" * 32})
    async with proxying(config, [], access, Listeners(ANYWHERE, ANYWHERE, tls)) as found:
        yield found, found.health._meter


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; it is given up after a time that is long for what should take a second."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.05)


async def connected(found: Listening) -> asyncio.StreamWriter:
    """Return a connection of which nothing is read."""
    port = int(found.url.rsplit(":", 1)[1].strip("/"))
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect(("127.0.0.1", port))
    return (await asyncio.open_connection(sock=one))[1]


async def test_a_client_that_pipelines_and_reads_nothing_is_aborted(tmp_path: Path) -> None:
    async with proxied(config_in(tmp_path)) as (found, meter):
        writer = await connected(found)
        writer.transport.pause_reading()
        writer.write(FLOOD)
        await until(lambda: meter.connections == 1)
        await until(lambda: meter.connections == 0)
        assert sum(meter.requests.values()) < 20_000, (
            "all was answered: it is not shown that nothing was read"
        )
        writer.transport.abort()


@pytest.mark.parametrize("address", ["admin", "url"])
async def test_stalled_readers_aborted(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekey.proxy.running.Bounds", lambda: sockets.Bounds(1, 1.0, 1.0))
    async with proxied(config_in(tmp_path, "connections = 1")) as (found, _):
        found = replace(found, url=getattr(found, address))
        writer = await connected(found)
        writer.transport.pause_reading()
        writer.write(FLOOD.replace(b"/devstoreaccount1/Plain()", b"/metrics"))
        assert (await exchange(found, REQUEST)).startswith(b"HTTP/1.1 503 ")
        statuses = [b"503"]
        while statuses[-1] == b"503":
            await asyncio.sleep(0.1)
            statuses.append(
                (await exchange(found, REQUEST[:-2] + b"Connection: close\r\n\r\n")).split(b" ")[1]
            )
        assert statuses[-1] in (b"403", b"404")
        writer.transport.abort()


async def test_tls_handshakes_count_and_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "HANDSHAKE_S", 2.0)
    config = config_in(tmp_path, "connections = 3")
    async with proxied(config, certificate_in(tmp_path)) as (found, meter):
        held = [await connected(found) for _ in range(3)]
        await until(lambda: meter.connections == 3)
        assert await exchange(found, b"") == b"", "one more is closed at once"
        assert (meter.connections, meter.turned_away) == (3, 1)
        await until(lambda: meter.connections == 0)
        for writer in held:
            writer.close()
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        port = int(found.url.rsplit(":", 1)[1].strip("/"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(REQUEST)
        assert (await reader.readline()).startswith(b"HTTP/1.1 403 ")
        assert meter.connections == 1
        writer.close()
        await until(lambda: meter.connections == 0)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b""])
async def test_a_handshake_that_fails_gives_its_connection_back(sent: bytes, tmp_path: Path) -> None:
    async with proxied(config_in(tmp_path), certificate_in(tmp_path)) as (found, meter):
        for _ in range(20):
            writer = await connected(found)
            writer.write(sent)
            writer.close()
        await until(lambda: meter.connections == 0)


class Stuck(asyncio.Transport):
    """A connection whose peer takes nothing: closing it ends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.aborted = b"", asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.aborted.set()


async def answer(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="an answer")


async def stream(request: web.BaseRequest) -> web.StreamResponse:
    made = web.StreamResponse()
    await made.prepare(request)
    while True:
        await made.write(b"more")
        await asyncio.sleep(0)


@asynccontextmanager
async def served(handler: object, bounds: sockets.Bounds) -> AsyncIterator[tuple[sockets.Connection, Stuck]]:
    """Make a connection to a handler, over which a request came."""
    counts, stuck = sockets.Counts(), Stuck()
    counts.connections += 1
    connection = sockets.Sockets(handler, bounds, counts)()
    connection.connection_made(stuck)
    connection.data_received(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(60):
        while not stuck.written:
            await asyncio.sleep(0)
        yield connection, stuck
    connection.connection_lost(None)
    await asyncio.sleep(0.01)
    assert counts.connections == 0


async def test_of_what_is_no_request_nothing_is_logged_or_repeated(caplog: pytest.LogCaptureFixture) -> None:
    counts, stuck = sockets.Counts(), Stuck()
    counts.connections += 1
    connection = sockets.Sockets(answer, sockets.Bounds(), counts)()
    connection.connection_made(stuck)
    connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\x01\r\n\r\n")
    async with asyncio.timeout(60):
        while not stuck.written:
            await asyncio.sleep(0)
    connection.connection_lost(None)
    await asyncio.sleep(0.01)
    assert b" 400 " in stuck.written and b"secret" not in stuck.written
    assert caplog.records == []


async def test_an_answer_that_is_left_at_the_end_of_a_connection_is_given_up() -> None:
    """Closing waits for the peer to take what is left, and asyncio sets no time for that."""
    async with served(answer, sockets.Bounds(1, 0.1, 1_000.0)) as (_, stuck):
        await stuck.aborted.wait()
        assert stuck.written.endswith(b"an answer")


async def test_a_write_buffer_that_stays_full_is_given_up_and_one_that_empties_is_not() -> None:
    async with served(stream, sockets.Bounds(1, 0.1, 1_000.0)) as (connection, stuck):
        connection.pause_writing()
        connection.resume_writing()
        await asyncio.sleep(0.3)
        assert not stuck.aborted.is_set()
        connection.pause_writing()
        await stuck.aborted.wait()


async def test_an_answer_that_is_taken_too_slowly_is_given_up() -> None:
    """Some of it is taken again and again, as `resume_writing` says."""
    whole, bounds = "x" * 100_000, sockets.Bounds(1, 1_000.0, 0.1)

    async def large(_: web.BaseRequest) -> web.StreamResponse:
        asyncio.get_running_loop().call_soon(connection.pause_writing)
        await asyncio.sleep(0.01)
        return web.Response(text=whole)

    counts, stuck = sockets.Counts(), Stuck()
    counts.connections += 1
    connection = sockets.Sockets(large, bounds, counts)()
    connection.connection_made(stuck)
    connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(60):
        await stuck.aborted.wait()
    connection.connection_lost(None)
    await asyncio.sleep(0.01)


async def test_a_connection_that_waits_to_be_accepted_at_the_end_is_answered(tmp_path: Path) -> None:
    async with proxied(config_in(tmp_path)) as (found, _):
        port = int(found.url.rsplit(":", 1)[1].strip("/"))
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(REQUEST)
        found.health.ready = False
    with one:
        assert one.recv(1024).startswith(b"HTTP/1.1 403 ")
