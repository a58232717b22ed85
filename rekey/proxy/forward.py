"""Requests forwarded to the account, signed anew, and their responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from yarl import URL

from rekey.errors import Ambiguous, CredentialRefused, Unavailable
from rekey.tables import allowance
from rekey.tables.connections import IDLE_SECONDS
from rekey.tables.credentials import NoToken, Signer
from rekey.tables.transport import Sending, environment_proxy

_HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade", "expect"),
    )
)
# The oldest version known to accept tokens (recorded by azure-data-tables' test_table_aad).
_TAKES_IDENTITIES = "2019-02-02"
# Request headers that are made anew.
_OURS = frozenset({"host", "authorization", "date", "x-ms-date", "content-length"})


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the request headers to forward, without those of the connection (RFC 9110, 7.6.1)."""
    return {name: value for name, value in headers.items() if name not in _HOP_BY_HOP | _OURS}


def passed_back(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the response headers for the client."""
    return [(name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP]


class Upstream:
    """The account's table service."""

    def __init__(
        self, endpoint: str, signer: Signer, *, connections: int, connect_s: float, read_s: float
    ) -> None:
        """Take the endpoint, without a trailing slash; connects nothing. `signer` is closed with it.

        Args:
            endpoint: the account's.
            signer: signs requests.
            connections: maximum number.
            connect_s: timeout for connecting.
            read_s: timeout for more of a response.
        """
        self.endpoint = endpoint
        self._signer, self._connections = signer, connections
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=read_s)
        self._proxy = environment_proxy(endpoint)
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: Any, *, reads: bool, token: str = ""
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield its response, with its body unread.

        Args:
            method: the method.
            path: resource and query, below the endpoint.
            headers: `passed_on`.
            body: bytes, or something that yields them; None for none.
            reads: whether it changes nothing.
            token: the caller's own authorization, used in place of the proxy's credential.

        Raises:
            Unavailable: nothing was done.
            Ambiguous: it was sent and not answered: unknown outcome.
            CredentialRefused: the proxy has no token.
        """
        if self._session is None:
            self._session = open_session(self._connections)
        url = f"{self.endpoint}/{path}"
        if self._signer.is_identity and not token:
            headers = {**headers, "x-ms-version": max(_TAKES_IDENTITIES, headers.get("x-ms-version", ""))}
        sending = Sending(writes=not reads)
        session = self._session

        async def exchange(signed: str, with_headers: Mapping[str, str]) -> aiohttp.ClientResponse:
            return await session.request(
                method,
                URL(signed, encoded=True),
                headers=with_headers,
                skip_auto_headers=("User-Agent", "Content-Type", "Accept", "Accept-Encoding"),
                data=body,
                allow_redirects=False,
                timeout=self._timeout,
                proxy=self._proxy,
                trace_request_ctx=sending,
            )

        try:
            if token:
                response = await exchange(url, {**headers, "Authorization": token})
            else:
                response = await self._signer.send(method, url, dict(headers), exchange)
            async with response:
                yield response
        except NoToken:
            raise CredentialRefused("the proxy could get no token for its identity", code="NoToken") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as failed:
            name = type(failed).__name__
            if reads or not sending.begun:
                text = f"nothing was done: the account did not answer ({name})"
                raise Unavailable(text, code=name) from None
            raise Ambiguous(f"the account was asked and did not answer ({name})", code=name) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._signer.close()


class ConnectionDropped(aiohttp.ClientError):
    """A kept connection was closed, and aiohttp was about to repeat the request."""


def open_session(connections: int) -> aiohttp.ClientSession:
    """Return a session with at most `connections` that leaves responses compressed and never sends a write
    twice. Its requests have a `Sending` as their `trace_request_ctx`."""

    async def before_sending(_session: Any, context: Any, _parameters: Any) -> None:
        sending = context.trace_request_ctx
        if sending.writes:
            if sending.begun:
                raise ConnectionDropped
            allowance.check()
        sending.begun = True

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(before_sending)  # called when headers are complete but not sent
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=IDLE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[trace],
        auto_decompress=False,
    )
