"""HTTP connections to one endpoint: a request goes out in one piece, exactly as it was made, and its answer
is read completely. Nothing is sent twice, and every failure is an OSError."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, cast
from urllib.parse import SplitResult, unquote, urlsplit

import httptools

from rekey.tables.answers import Answer

# For how many seconds an idle connection is reused: servers close them from 5 seconds on.
IDLE_SECONDS = 4.0
# After this time a second address of a host is tried in parallel (RFC 8305, section 5).
_SECOND_ADDRESS_S = 0.25
# How often progress is checked while a request is going out.
_PROGRESS_EVERY_S = 1.0
_PORTS = {"http": 80, "https": 443}


class Disconnected(OSError):
    """The connection ended before the answer did."""


class Malformed(OSError):
    """The answer is not HTTP, or the request cannot be sent."""


class ProxyRefused(OSError):
    """The proxy makes no connection to the endpoint."""


class Headers(Mapping[str, str]):
    """The headers of an answer, by name in any case; of equal ones the first. Decoded on access."""

    __slots__ = ("_raw",)

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> str:
        return self._raw[name.lower().encode("latin-1")].decode("latin-1").strip(" \t")

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)


class Connection(asyncio.Protocol):
    """One connection, with at most one request in flight. It is used again only after an answer that was read
    to its end, with nothing behind it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read_s: float) -> None:
        self._loop, self._read_s = loop, read_s
        # The TCP connection; TLS above it; TLS through that, where the proxy is reached by TLS, too.
        self._layers: list[asyncio.Transport] = []
        self._parser = httptools.HttpResponseParser(self)
        # Of the request in flight; done where there is none.
        self._outcome: asyncio.Future[Answer | Exception] = loop.create_future()
        self._outcome.cancel()
        self._timer: asyncio.TimerHandle | None = None
        self._progress_at = self.idle_since = 0.0
        self._unsent = 0
        self._free = self._tunnels = False
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._status = 0
        self.closed: asyncio.Future[None] = loop.create_future()

    @property
    def usable(self) -> bool:
        """Whether a request can be sent."""
        return self._free and not (self._layers[0].is_closing() or self._layers[-1].is_closing())

    async def exchange(self, request: bytes, going_out: Callable[[Connection], None]) -> Answer:
        """Send a request and return its answer. Raises OSError, and what `going_out` raises."""
        if not self.usable:
            raise Disconnected("before the request")
        # Nothing is awaited between this check and the first byte.
        going_out(self)
        self._outcome = self._loop.create_future()
        self._free, self._progress_at = False, self._loop.time()
        self._layers[-1].write(request)
        self._unsent = self._buffered()
        if self._timer is None or self._unsent:
            self._check_progress()
        outcome = await self._outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def tunnel(self, request: bytes) -> None:
        """Ask a proxy for a tunnel; everything sent from then on goes through it. Raises OSError."""
        self._tunnels = True
        answer = await self.exchange(request, lambda _: None)
        if answer.status // 100 != 2:
            raise ProxyRefused(answer.status)
        self._tunnels, self._parser, self._free = False, httptools.HttpResponseParser(self), True

    async def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Use TLS from now on, with a host of that name. Raises OSError, ValueError."""
        # `start_tls` would wait for ever if the end was reported already, and returns None if it comes
        # without an error during the handshake.
        secured = None
        if self.usable:
            secured = await self._loop.start_tls(self._layers[-1], self, context, server_hostname=host)
        if secured is None:
            raise Disconnected("before it was encrypted")
        self._layers.append(secured)

    def get_extra_info(self, name: str) -> Any:
        """Return what asyncio knows about the connection, e.g. its `ssl_object`."""
        return self._layers[-1].get_extra_info(name)

    def close(self) -> None:
        self._free = False
        self._stop_timer()
        if self._layers:
            self._layers[-1].abort()

    # --- called by asyncio ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._layers, self._free = [cast(asyncio.Transport, transport)], True

    def data_received(self, data: bytes) -> None:
        if self._outcome.done():  # no request, or it is answered already
            self.close()
            return
        self._progress_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end(Malformed("no HTTP"))
            self.close()

    def eof_received(self) -> None:
        """End the connection; also the answer, if its length was not given."""
        self._free = False
        framed_by = {b"content-length", b"transfer-encoding"} & self._headers.keys()
        if self._status >= 200 and not framed_by:
            self._complete()
        self._end(Disconnected("before the end of an answer"))

    def connection_lost(self, error: Exception | None) -> None:
        self._free = False
        self._stop_timer()
        self._end(error if isinstance(error, OSError) else Disconnected("before the end of an answer"))
        if not self.closed.done():
            self.closed.set_result(None)

    # --- called by the parser -------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers, self._body, self._status = {}, [], 0
        if self._outcome.done():  # a second one
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._tunnels and self._status >= 200:
            self._complete()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        """End an answer, unless it only announces another one."""
        if self._status >= 200 and not self._outcome.done():
            # No other request is sent behind what is still going out of this one.
            self._free = self._parser.should_keep_alive() and not self._buffered()
            self._complete()

    # --------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._end(Answer(self._status, Headers(self._headers), body))
        self._status, self._body = 0, []

    def _end(self, outcome: Answer | Exception) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def _buffered(self) -> int:
        """Return how many bytes wait for the socket; those above TLS pass all layers at once."""
        return sum([layer.get_write_buffer_size() for layer in self._layers])

    def _check_progress(self) -> None:
        """End the exchange if nothing has come or gone out for too long; otherwise check again later."""
        self._stop_timer()
        if self._outcome.done():
            return
        unsent, now = self._buffered(), self._loop.time()
        if unsent < self._unsent:
            self._unsent, self._progress_at = unsent, now
        left = self._progress_at + self._read_s - now
        if left <= 0:
            self._end(TimeoutError())
        else:
            self._timer = self._loop.call_later(
                min(left, _PROGRESS_EVERY_S) if unsent else left, self._check_progress
            )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Connections:
    """The connections to one endpoint, kept and reused. They belong to the running event loop.

    Args:
        endpoint: `https://HOST[:PORT][/PATH]`, or http.
        most: at most this many at a time; further requests wait for one.
        connect_s: seconds for making a connection.
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
        self._to = urlsplit(endpoint)
        self._origin = len(f"{self._to.scheme}://{self._to.netloc}")
        self._encrypted = self._to.scheme == "https"
        self._proxy, self._verify = proxy, verify
        self._connect_s, self._read_s = connect_s, read_s
        self._places = asyncio.Semaphore(most)
        self._all: set[Connection] = set()
        self._idle: deque[Connection] = deque()
        self._closed = False

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
            address: the whole address, percent-encoded.
            headers: all but Host and Content-Length.
            body: None for none.
            going_out: called with the connection right before the first byte goes out; may raise to prevent
                that.

        Raises:
            OSError: no connection, or no answer; of this, TimeoutError: not in time.
        """
        try:
            request = self._request(method, address, headers, body)
        except ValueError:  # something cannot be encoded, or the proxy's address is invalid
            raise Malformed("no request") from None
        async with self._places:
            connection = self._reusable() or await self._connect()
            try:
                return await connection.exchange(request, going_out)
            finally:
                if connection.usable:
                    connection.idle_since = asyncio.get_running_loop().time()
                    self._idle.append(connection)
                else:
                    connection.close()

    async def close(self) -> None:
        """Close all connections; requests that are in flight or wait fail. Idempotent."""
        self._closed = True
        for connection in self._all:
            connection.close()
        if self._all:
            await asyncio.wait([connection.closed for connection in self._all])

    @cached_property
    def _via(self) -> SplitResult | None:
        """The proxy's address. Raises ValueError."""
        proxy = self._proxy
        return None if proxy is None else urlsplit(proxy if "//" in proxy else f"http://{proxy}")

    @cached_property
    def _to_proxy(self) -> str:
        """The header with the credential for the proxy, "" for none."""
        via = self._via
        if via is None or via.username is None:
            return ""
        words = f"{unquote(via.username)}:{unquote(via.password or '')}"
        return f"Proxy-Authorization: Basic {base64.b64encode(words.encode()).decode()}\r\n"

    @cached_property
    def _host_line(self) -> str:
        return f"Host: {self._to.netloc.rpartition('@')[2].encode('idna').decode()}\r\n"

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
        """Return a new connection. Raises OSError."""
        if self._closed:
            raise Disconnected("closed")
        connection = Connection(asyncio.get_running_loop(), self._read_s)
        try:
            async with asyncio.timeout(self._connect_s):
                await self._reach(connection)
            if self._closed:
                raise Disconnected("closed")
        except BaseException as failed:
            connection.close()
            # The host name or port is invalid. (A refused certificate is a ValueError and an OSError.)
            if isinstance(failed, ValueError) and not isinstance(failed, OSError):
                raise Malformed("no address") from None
            raise
        self._all.add(connection)
        connection.closed.add_done_callback(lambda _: self._all.discard(connection))
        return connection

    async def _reach(self, connection: Connection) -> None:
        """Connect to the endpoint, or through the proxy to it. Raises OSError, ValueError."""
        loop, (host, port) = asyncio.get_running_loop(), _place(self._to)
        first, via = self._to if self._via is None else self._via, self._via
        if "https" in (first.scheme, self._to.scheme):
            _ = self._trusting  # report an unreadable file before using the network
        options: dict[str, Any] = {}
        if isinstance(loop, asyncio.BaseEventLoop):  # uvloop tries one address after the other
            options["happy_eyeballs_delay"] = _SECOND_ADDRESS_S
        await loop.create_connection(lambda: connection, *_place(first), **options)
        # TLS is started here and not by `create_connection`, so that the layer below can be asked for unsent
        # bytes.
        if first.scheme == "https":
            await connection.encrypt(self._trusting, _place(first)[0])
        if via is not None and self._encrypted:
            target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            asked = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{self._to_proxy}\r\n"
            await connection.tunnel(asked.encode())
            await connection.encrypt(self._trusting, host)

    def _request(self, method: str, address: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """Return the bytes of a request. Raises Malformed, ValueError."""
        plainly_proxied = self._via is not None and not self._encrypted
        target = address if plainly_proxied else address[self._origin :]
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        if method != "GET" or body is not None:
            lines.append(f"Content-Length: {len(body or b'')}\r\n")
        more = self._to_proxy if plainly_proxied else ""
        head = f"{method} {target} HTTP/1.1\r\n{self._host_line}{''.join(lines)}{more}\r\n"
        ends = len(lines) + 3 + bool(more)
        if head.count("\n") != ends or head.count("\r") != ends or " " in target or not target.isascii():
            raise Malformed("no address, or a line end in a header")
        return head.encode() + (body or b"")

    def _reusable(self) -> Connection | None:
        """Return the reusable connection that was used last, if any."""
        since = asyncio.get_running_loop().time() - IDLE_SECONDS
        while self._idle and self._idle[0].idle_since < since:
            self._idle.popleft().close()
        while self._idle:
            if (connection := self._idle.pop()).usable:
                return connection
        return None


def _place(parts: SplitResult) -> tuple[str, int]:
    """Return host and port of an address. Raises ValueError."""
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("neither http nor https, or no host")
    return parts.hostname.encode("idna").decode(), parts.port or _PORTS[parts.scheme]
