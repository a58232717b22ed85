"""A server's connections, limited in number and time. A connection counts from the moment it is accepted,
before a TLS handshake; excess ones are closed at once. It is aborted when it does not finish its handshake,
send a request, or read its response in time."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

# Timeout of a TLS handshake.
HANDSHAKE_S = 10.0
# Timeout of handshakes after listening has ended.
_LAST_S = 1.0
# Seconds until connections are accepted again after file descriptors ran out.
_RETRY_S = 1.0
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of connections."""

    # Maximum number, including those in TLS handshakes.
    connections: int = 256
    # Timeout for starting a request, for closing, and for reading any of a response.
    idle_s: float = 75.0
    # Timeout for reading a whole response.
    request_s: float = 60.0
    # Longest request line and longest header, in bytes.
    line: int = 8190


class Counts:
    """Number of connections, from accepting on, and of refused ones."""

    def __init__(self) -> None:
        self.connections = 0
        self.turned_away = 0


class Connection(RequestHandler):
    """One connection."""

    def __init__(self, sockets: Sockets) -> None:
        super().__init__(
            sockets,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=sockets.bounds.idle_s,
            max_line_size=sockets.bounds.line,
            max_field_size=sockets.bounds.line,
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]
        )
        self._sockets = sockets
        self.is_made = False
        self._open: asyncio.WriteTransport | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_made = True
        if isinstance(transport, asyncio.WriteTransport):
            self._open = transport
        super().connection_made(transport)
        self._abort_later("unused")

    def connection_lost(self, exc: BaseException | None) -> None:
        self._sockets.counts.connections -= 1
        self._open = None
        for timer in self._timers.values():  # each timer keeps the connection in memory
            timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._request_count:
            self._timers["unused"].cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_later("full")

    def resume_writing(self) -> None:
        super().resume_writing()
        self._timers["full"].cancel()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the response to what was no request. aiohttp would log bytes of it, possibly a credential,
        and a dozen lines for whoever sends anything."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return super().handle_error(request, status, exc, message)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        answer = web.Response(status=status, text="the request could not be read\n")
        answer.force_close()
        return answer

    async def start(self) -> None:
        try:
            await super().start()
        finally:
            if self._open is not None:
                # Closing waits until everything is sent: forever, if the peer reads nothing.
                self._abort_later("ending")

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            async with asyncio.timeout(self._sockets.bounds.request_s):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            self._abort()
            return resp, True

    def _abort_later(self, why: str) -> None:
        loop = asyncio.get_running_loop()
        self._timers[why] = loop.call_later(self._sockets.bounds.idle_s, self._abort)

    def _abort(self) -> None:
        if self._open is not None:
            self._open.abort()


class Sockets(web.Server):
    """Makes connections."""

    def __init__(self, handler: Any, bounds: Bounds, counts: Counts) -> None:
        super().__init__(handler)
        self.bounds, self.counts = bounds, counts

    def __call__(self) -> Connection:
        return Connection(self)


class Site(web.BaseSite):
    """An address that a runner of `Sockets` listens on. asyncio's servers report a connection only after its
    TLS handshake, and `web.TCPSite` has no handshake timeout, so this accepts connections itself."""

    def __init__(
        self, runner: web.ServerRunner, host: str, port: int, tls: ssl.SSLContext | None, *, shared: bool
    ) -> None:
        super().__init__(runner, ssl_context=tls, backlog=1024)
        self._host, self.port, self._tls, self._shared = host, port, tls, shared
        self._listening: list[socket.socket] = []
        self._beginning: set[asyncio.Task[None]] = set()
        assert isinstance(runner.server, Sockets)  # noqa: S101 - for mypy
        self._sockets = runner.server

    @property
    def name(self) -> str:
        return f"{self._host}:{self.port}"

    async def start(self) -> None:
        """Listen. Raises OSError."""
        await super().start()
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(self._host, self.port, type=socket.SOCK_STREAM)
        unusable: OSError | None = None
        for family, *_, address in dict.fromkeys(addresses):
            try:
                listening = socket.create_server(
                    address, family=family, backlog=self._backlog, reuse_port=self._shared
                )
            except OSError as error:
                # `localhost` has an IPv6 address also where IPv6 is off.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                unusable = error
                continue
            listening.setblocking(False)
            self._listening.append(listening)
            self._accept_on(listening)
        if unusable is not None and not self._listening:
            raise unusable
        self.port = self._listening[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening; connections that wait to be accepted are served."""
        for listening in self._listening:
            asyncio.get_running_loop().remove_reader(listening)
            self._accept(listening)
            listening.close()
        self._listening.clear()
        if self._beginning:
            await asyncio.wait(self._beginning, timeout=_LAST_S)
        for task in self._beginning:
            task.cancel()
        await super().stop()

    def _accept_on(self, listening: socket.socket) -> None:
        if listening in self._listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop, counts = asyncio.get_running_loop(), self._sockets.counts
        for _ in range(self._backlog):
            try:
                peer, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of file descriptors
                loop.remove_reader(listening)
                loop.call_later(_RETRY_S, self._accept_on, listening)
                return
            peer.setblocking(False)
            if counts.connections >= self._sockets.bounds.connections:
                counts.turned_away += 1
                with suppress(OSError), peer:
                    if self._tls is None:
                        peer.send(_FULL)
                continue
            counts.connections += 1
            task = loop.create_task(self._begin(peer))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, peer: socket.socket) -> None:
        connection, secured = self._sockets(), self._tls is not None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                peer,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_S if secured else None,
            )
        except OSError:
            pass  # no handshake, or the peer is gone
        finally:
            if not connection.is_made:
                self._sockets.counts.connections -= 1
