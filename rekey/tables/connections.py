"""HTTP connections to one endpoint: a request goes out in one piece, and its answer is read whole.

Rules kept here:

* Nothing is sent twice: a connection that turns out to be closed ends the exchange with an error.
* The caller is asked right before the first byte goes out, with nothing awaited in between (`going_out`).
* A connection carries one request at a time, and is used again only after an answer that was read to its end.
  One that was idle for 4 seconds is not used again (servers close them from 5 seconds on).
* A request goes out as it was made: its address is neither decoded nor normalised.
* Answers are parsed by httptools, which is Node.js's parser: what is no HTTP ends the exchange.
* A proxy is asked for the address itself (http) or for a tunnel to its host (https).
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import httptools

from rekey.tables.answers import Answer

# For how long a connection may be idle and be used again.
IDLE_SECONDS = 4.0
# After this time a second address of a host is tried beside the first (RFC 8305, section 5).
_SECOND_ADDRESS_S = 0.25
_PORTS = {"http": 80, "https": 443}


class Disconnected(OSError):
    """The connection ended before the answer did."""


class Malformed(OSError):
    """What came is no HTTP, or what was to be sent cannot be."""


class ProxyRefused(OSError):
    """The proxy makes no connection to the endpoint."""


class NoToken(Exception):
    """An identity is given no token."""


class TokenUnreachable(OSError):
    """Those who give an identity its tokens did not answer; says the name of the error."""


class Headers(Mapping[str, str]):
    """The headers of an answer, by name in any case; of equal ones the last. Decoded when asked for."""

    __slots__ = ("_raw",)

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        """Take values by names in lower case."""
        self._raw = raw

    def __getitem__(self, name: str) -> str:
        return self._raw[name.lower().encode("latin-1")].decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)


class Connection(asyncio.Protocol):
    """One connection, with at most one request under way."""

    _transport: asyncio.Transport  # from `connection_made` on

    def __init__(self, loop: asyncio.AbstractEventLoop, read_s: float) -> None:
        self._loop, self._read_s = loop, read_s
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[Answer] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = self.idle_since = 0.0
        self._unsent = 0
        self._tunnels = False
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._status = 0
        self.closed: asyncio.Future[None] = loop.create_future()
        # Whether another request can be sent.
        self.usable = False

    async def exchange(self, request: bytes) -> Answer:
        """Send a request and return its answer. Raises OSError, TimeoutError."""
        waiting: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting = waiting
        self.usable, self._heard = False, time.monotonic()
        if self._timer is None:
            self._timer = self._loop.call_later(self._read_s, self._look)
        self._transport.write(request)
        self._unsent = self._transport.get_write_buffer_size()
        try:
            return await waiting
        finally:
            self._waiting = None

    async def tunnel(self, request: bytes, context: ssl.SSLContext, host: str) -> None:
        """Ask a proxy for a tunnel to a host, and encrypt what goes through it. Raises OSError."""
        self._tunnels = True
        answer = await self.exchange(request)
        if answer.status // 100 != 2:
            raise ProxyRefused(answer.status)
        self._tunnels, self._parser = False, httptools.HttpResponseParser(self)
        secured = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        self._transport, self.usable = cast(asyncio.Transport, secured), True

    def get_extra_info(self, name: str) -> Any:
        """Return what asyncio knows of the connection, e.g. its `ssl_object`."""
        return self._transport.get_extra_info(name)

    def close(self) -> None:
        """Close the connection at once. Idempotent."""
        self.usable = False
        if hasattr(self, "_transport"):
            self._transport.abort()

    # --- called by asyncio ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport, self.usable = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        """Take more of an answer."""
        if self._waiting is None:  # nothing was asked
            self.close()
            return
        self._heard = time.monotonic()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(Malformed("no HTTP"))

    def connection_lost(self, error: Exception | None) -> None:
        """End: also the answer, where its length was not told."""
        told = {b"content-length", b"transfer-encoding"} & self._headers.keys()
        if self._status and not told and error is None:
            self._complete()
        self.usable = False
        self._fail(error or Disconnected("before the end of an answer"))
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    # --- called by the parser -------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin an answer."""
        self._headers, self._body, self._status = {}, [], 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Take the status."""
        self._status = self._parser.get_status_code()
        if self._tunnels:
            self._complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """End an answer, unless it only announces another one."""
        if self._status >= 200:
            unsent = self._transport.get_write_buffer_size()
            self.usable = not unsent and self._parser.should_keep_alive()
            self._complete()

    # --------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._waiting.set_result(Answer(self._status, Headers(self._headers), body))
        self._status, self._body = 0, []

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def _look(self) -> None:
        """End the exchange if nothing has come, and nothing more has gone out, for too long."""
        self._timer = None
        if self._waiting is None:
            return
        unsent, now = self._transport.get_write_buffer_size(), time.monotonic()
        if unsent < self._unsent:
            self._unsent, self._heard = unsent, now
        left = self._heard + self._read_s - now
        if left <= 0:
            self._fail(TimeoutError())
        else:
            self._timer = self._loop.call_later(left, self._look)


class Connections:
    """The connections to one endpoint, kept and used again. They belong to the running event loop.

    Args:
        endpoint: `https://HOST[:PORT][/PATH]`, or http.
        most: at most this many at a time; further requests wait for one.
        connect_s: seconds in which a connection is made.
        read_s: seconds to wait for (more of) an answer.
        proxy: address of a proxy; a user and password in it are sent to the proxy.
        verify: whether the server's certificate is checked, or a file of those to trust, or the TLS settings.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        most: int,
        connect_s: float,
        read_s: float,
        proxy: str | None = None,
        verify: bool | str | ssl.SSLContext = True,
    ) -> None:
        parts = urlsplit(endpoint)
        self._encrypted = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        self._origin = len(f"{parts.scheme}://{parts.netloc}")
        self._proxy = None if proxy is None else urlsplit(proxy if "//" in proxy else f"http://{proxy}")
        authority = parts.netloc.rpartition("@")[2]
        self._host_line = f"Host: {authority}\r\n"
        self._to_proxy = ""
        if self._proxy is not None and self._proxy.username is not None:
            words = f"{unquote(self._proxy.username)}:{unquote(self._proxy.password or '')}"
            self._to_proxy = f"Proxy-Authorization: Basic {base64.b64encode(words.encode()).decode()}\r\n"
        self._connect_s, self._read_s, self._verify = connect_s, read_s, verify
        self._places = asyncio.Semaphore(most)
        self._all: set[Connection] = set()
        self._idle: deque[Connection] = deque()

    async def exchange(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str],
        body: bytes | None,
        going_out: Callable[[Connection], None],
    ) -> Answer:
        """Send a request and return its answer.

        Args:
            method: of HTTP.
            address: the whole address, percent-encoded.
            headers: all but Host and Content-Length.
            body: None for none.
            going_out: called with the connection right before the first byte goes out; may raise to prevent
                that.

        Raises:
            OSError, TimeoutError: no connection, or no answer.
        """
        request = self._request(method, address, headers, body)
        async with self._places:
            connection = self._kept() or await self._connect()
            try:
                going_out(connection)
                return await connection.exchange(request)
            finally:
                self._put_back(connection)

    @cached_property
    def _trusting(self) -> ssl.SSLContext:
        """How the server's certificate is checked. Raises OSError for a file that cannot be read."""
        verify = self._verify
        if isinstance(verify, ssl.SSLContext):
            return verify
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
        if verify is False:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["http/1.1"])
        return context

    async def _connect(self) -> Connection:
        """Return a new connection. Raises OSError, TimeoutError."""
        loop, proxy = asyncio.get_running_loop(), self._proxy
        made = Connection(loop, self._read_s)
        host, port, encrypted = self._host, self._port, self._encrypted
        if proxy is not None:
            host, encrypted = proxy.hostname or "", proxy.scheme == "https"
            port = proxy.port or _PORTS.get(proxy.scheme, _PORTS["http"])
        try:
            async with asyncio.timeout(self._connect_s):
                await loop.create_connection(
                    lambda: made,
                    host,
                    port,
                    ssl=self._trusting if encrypted else None,
                    happy_eyeballs_delay=_SECOND_ADDRESS_S,
                )
                if proxy is not None and self._encrypted:
                    target = f"{self._host}:{self._port}"
                    asked = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{self._to_proxy}\r\n"
                    await made.tunnel(asked.encode(), self._trusting, self._host)
        except BaseException:
            made.close()
            raise
        self._all.add(made)
        return made

    async def close(self) -> None:
        """Close all connections."""
        closing, self._all = self._all, set()
        self._idle.clear()
        for connection in closing:
            connection.close()
        if closing:
            await asyncio.wait([connection.closed for connection in closing])

    def _request(self, method: str, address: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        plainly_proxied = self._proxy is not None and not self._encrypted
        target = address if plainly_proxied else address[self._origin :]
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}\r\n")
        more = self._to_proxy if plainly_proxied else ""
        head = f"{method} {target} HTTP/1.1\r\n{self._host_line}{''.join(lines)}{more}\r\n"
        ends = len(lines) + 3 + bool(more)
        if head.count("\n") != ends or head.count("\r") != ends or " " in target or not target.isascii():
            raise Malformed("no address, or a line end in a header")
        return head.encode() + (body or b"")

    def _kept(self) -> Connection | None:
        """Return a connection that can be used again, the one that was used last."""
        since = time.monotonic() - IDLE_SECONDS
        while self._idle and self._idle[0].idle_since < since:
            self._drop(self._idle.popleft())
        while self._idle:
            if (connection := self._idle.pop()).usable:
                return connection
            self._drop(connection)
        return None

    def _put_back(self, connection: Connection) -> None:
        if connection.usable:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._all.discard(connection)
