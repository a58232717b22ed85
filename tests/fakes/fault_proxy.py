"""An HTTP proxy in front of Azurite that loses answers, delays, refuses, and tells what it was asked.

Azurite never throttles, times out or breaks a connection: what it cannot show, this does, on a real wire.
Requests are read and answers written by hand, so that a connection can be cut at any point.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType

import aiohttp
from yarl import URL

_PASSED_ON = {"content-type", "etag", "date", "server"}


@dataclass
class Asked:
    """One request as it came over the wire."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    reused_connection: bool


@dataclass
class Answered:
    """One answer."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Fault:
    """What goes wrong with requests of one method whose target holds a text.

    Attributes:
        method: e.g. `POST`; "" for all.
        target: a part of the request's target; "" for all.
        applied: pass the request on to Azurite first.
        answer: what to answer; None cuts the connection.
        truncated: pass on half of Azurite's answer, then cut the connection.
        stalls: say nothing more, and keep the connection open.
        meanwhile: awaited before the answer: what somebody else does in between.
        times: how many requests are hit; `skip` matching ones go through before.
        only_reused: hit requests on connections that have served one before.
    """

    method: str = ""
    target: str = ""
    applied: bool = False
    answer: Answered | None = None
    truncated: bool = False
    stalls: bool = False
    meanwhile: Callable[[], Awaitable[object]] | None = None
    times: int = 1
    skip: int = 0
    only_reused: bool = False

    def hits(self, asked: Asked) -> bool:
        """Tell whether a request is hit, counting it."""
        if self.method not in ("", asked.method) or self.target not in asked.target or self.times == 0:
            return False
        if self.only_reused and not asked.reused_connection:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class FaultProxy:
    """Listens on a free port of 127.0.0.1 and passes on to `upstream` (`http://127.0.0.1:PORT`)."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._server: asyncio.Server | None = None
        self._session: aiohttp.ClientSession | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []

    @property
    def address(self) -> str:
        """`http://127.0.0.1:PORT`."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def count(self, method: str, target: str = "") -> int:
        """Return how many requests of a method came whose target holds a text."""
        return sum(asked.method == method and target in asked.target for asked in self.asked)

    async def __aenter__(self) -> FaultProxy:
        # Azurite closes connections that were idle for 5 seconds; one that is about to be is not used again.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        assert self._session is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._session.close()

    async def stop_listening(self) -> None:
        """Refuse connections from now on, and cut those that are open and idle."""
        assert self._server is not None
        self._server.close()
        current = asyncio.current_task()
        for task in self._connections:
            if task is not current:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            reused = False
            while await self._serve_one(reader, writer, reused):
                reused = True
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the other side, or the test, is done with this connection
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reused: bool
    ) -> bool:
        """Serve one request; False when the connection is to be cut."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        method, target, _ = first.split(" ", 2)
        headers = dict(line.split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers.get("Content-Length", "0")))
        asked = Asked(method, target, headers, body, reused)
        self.asked.append(asked)
        fault = next((one for one in self.faults if one.hits(asked)), None)
        if fault is None:
            writer.write(wire_form(await self._pass_on(asked)))
            await writer.drain()
            return True
        return await self._go_wrong(fault, asked, writer)

    async def _go_wrong(self, fault: Fault, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        real = await self._pass_on(asked) if fault.applied else None
        if fault.meanwhile is not None:
            await fault.meanwhile()
        if fault.stalls:
            await asyncio.sleep(3600)
        if fault.truncated and real is not None:
            data = wire_form(real)
            writer.write(data[: len(data) - len(real.body) // 2 - 1])
            await writer.drain()
            return False
        if fault.answer is None:
            return False
        writer.write(wire_form(fault.answer))
        await writer.drain()
        return True

    async def _pass_on(self, asked: Asked) -> Answered:
        assert self._session is not None
        url = URL(self._upstream + asked.target, encoded=True)
        headers = {name: value for name, value in asked.headers.items() if name != "Host"}
        # aiohttp warns of larger bodies in one piece.
        body = io.BytesIO(asked.body) if len(asked.body) > 1 << 20 else asked.body or None
        async with self._session.request(
            asked.method, url, headers=headers, data=body, skip_auto_headers=["Content-Type"]
        ) as response:
            kept = {
                name: value
                for name, value in response.headers.items()
                if name.lower() in _PASSED_ON or name.lower().startswith("x-ms-")
            }
            return Answered(response.status, kept, await response.read())


def wire_form(answer: Answered) -> bytes:
    """Return the bytes of an answer."""
    lines = [f"HTTP/1.1 {answer.status} Status"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    if answer.status != 204:
        lines.append(f"Content-Length: {len(answer.body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + answer.body


def error_answer(status: int, code: str = "", **headers: str) -> Answered:
    """Return an error as the service writes it; its message echoes a key, as some messages do."""
    body = b'{"odata.error":{"code":"%b","message":{"lang":"en-US","value":"key ada@example.org"}}}'
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answered(status, named, body % code.encode() if code else b"<html>Bad Gateway</html>")


def batch_error_answer(status: int, code: str, index: int) -> Answered:
    """Return an answer to a batch whose only part is an error."""
    error = b'{"odata.error":{"code":"%b","message":{"lang":"en-US","value":"%d:ada@example.org"}}}'
    body = (
        b"--batchresponse_1\r\nContent-Type: multipart/mixed; boundary=changesetresponse_1\r\n\r\n"
        b"--changesetresponse_1\r\nContent-Type: application/http\r\n"
        b"Content-Transfer-Encoding: binary\r\n\r\n"
        b"HTTP/1.1 %d Status\r\nContent-Type: application/json;odata=minimalmetadata\r\n\r\n%b\r\n"
        b"--changesetresponse_1--\r\n--batchresponse_1--\r\n"
    ) % (status, error % (code.encode(), index))
    return Answered(202, {"Content-Type": "multipart/mixed; boundary=batchresponse_1"}, body)
