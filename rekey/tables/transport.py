"""One attempt of one request, by aiohttp, and what is known when it fails.

Rules kept here:

* A failed attempt says whether anything was sent, and no write is sent twice in one attempt: aiohttp would
  repeat PUT and DELETE by itself when a kept connection turns out to be closed, and the answer to the
  repetition ("busy, nothing was done") would be taken for the answer to the first sending.
* Whether a write may still be sent is asked when its first bytes are about to go out, after it was signed and
  has waited for a connection (`rekey.tables.allowance`): the process may have been suspended in between.
* Addresses hold keys: no policy here logs an address, and the address goes out exactly as it was made and
  signed, without being normalised on the way.
* Timeouts are explicit; connections are bounded. A connection that was idle for 4 seconds is not used again
  (servers close them from 5 seconds on).
* Proxies are given, or come from the environment, as in azure-core, and are looked up once; so is
  the User-Agent. azure-core's pipeline is not used: with it each request took twice the processor.
"""

from __future__ import annotations

import io
import logging
import ssl
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import aiohttp
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.core.pipeline.policies import UserAgentPolicy
from yarl import URL

from rekey.errors import CredentialRefused
from rekey.tables import allowance
from rekey.tables.answers import Answer
from rekey.tables.credentials import Credential, Signer
from rekey.tables.sent import Kind, Sent, kind_of

_LOG = logging.getLogger("rekey.tables")
_EVENT = {"event": "request"}
_IDLE_SECONDS = 4.0
_STREAMED_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long one attempt may take, in seconds.

    Attributes:
        connect: to connect.
        read: to wait for (more of) an answer.
        service: how long the service may work on a request before it gives it up by itself (its `timeout`
            parameter, 1 to 30): what was sent takes effect within this time or not at all. None leaves it at
            the service's own limit, 30 s.
    """

    connect: float = 5.0
    read: float = 40.0
    service: int | None = None

    def address(self, endpoint: str, path: str, service: int | None = None) -> str:
        """Return the address of a request below an endpoint. `service`: for this one request."""
        limits = [one for one in (self.service, service) if one is not None]
        if not limits:
            return f"{endpoint}/{path}"
        return f"{endpoint}/{path}{'&' if '?' in path else '?'}timeout={min(limits)}"


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        method: of HTTP.
        path: address below the endpoint.
        doing: description without keys, for messages.
        headers: all but those that every attempt adds.
        body: None where there is none.
        on_version: it is conditional on a certain ETag of a row, which every write changes. So once a later
            attempt is answered, no earlier one can take effect any more.
        service_s: most seconds that the service may work on it; None for the usual limit (`Timeouts`).
    """

    method: str
    path: str = field(repr=False)
    doing: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    on_version: bool = False
    service_s: int | None = None


class _Failed(Exception):
    """An attempt that failed: the failure's name, and the endpoint that was meant, without a credential."""

    def __init__(self, code: str, endpoint: str = "the endpoint") -> None:
        super().__init__(code)
        self.endpoint = endpoint


class NotSent(_Failed):
    """The attempt failed before anything was sent."""


class NoAnswer(_Failed):
    """Something was sent, and no (whole) answer came."""


@dataclass(eq=False, slots=True)
class Sending:
    """An attempt: whether it writes, and whether its first bytes went out."""

    writes: bool
    begun: bool = False


class Transport:
    """Sender of single attempts to one endpoint.

    Args:
        endpoint: the account's endpoint without a trailing slash.
        credential: closed with the transport when it is a token credential.
        timeouts: how long to wait.
        connections: at most this many at a time.
        agent: what the User-Agent begins with.
        proxies: address of the proxy by scheme, before what the environment names.
        verify: whether the server's certificate is checked, or a file of those to trust.
        signs_whole: whether a key signs by Shared Key, not Shared Key Lite.
    """

    def __init__(
        self,
        endpoint: str,
        credential: Credential,
        *,
        timeouts: Timeouts,
        connections: int,
        agent: str,
        proxies: Mapping[str, str] = MappingProxyType({}),
        verify: bool | str = True,
        signs_whole: bool = False,
    ) -> None:
        self._endpoint = endpoint
        parts = urlsplit(endpoint)
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._signer = Signer(credential, whole=signs_whole)
        self.timeouts = timeouts
        self._connections = connections
        self._options: dict[str, Any] = {
            "proxy": proxies.get(parts.scheme) or environment_proxy(endpoint),
            "timeout": aiohttp.ClientTimeout(sock_connect=timeouts.connect, sock_read=timeouts.read),
            "allow_redirects": False,
        }
        self._verify = verify
        self._agent = UserAgentPolicy(base_user_agent=agent).user_agent
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        # Called for every answer, with the kind of request, its status and the seconds it took; with the
        # status 0 where none came in time.
        self.listener: Callable[[Kind, int, float], None] | None = None
        # Awaited before each attempt.
        self.admit: Callable[[Kind], Awaitable[None]] | None = None
        self.sent = Sent()
        self._sendings: set[Sending] = set()

    async def send(self, request: Request) -> Answer:
        """Send once. Raises NotSent, NoAnswer, CredentialRefused (no token)."""
        kind = kind_of(request.method, request.path)
        if self.admit is not None:
            await self.admit(kind)
        session, sending = self._open(), Sending(request.method != "GET")
        self._sendings.add(sending)
        address = self.timeouts.address(self._endpoint, request.path, request.service_s)
        headers = {**request.headers, "User-Agent": self._agent, "x-ms-client-request-id": str(uuid4())}
        body: Any = request.body
        if body is not None and len(body) > _STREAMED_BYTES:
            body = io.BytesIO(body)  # aiohttp warns of larger bodies in one piece

        async def exchange(signed: str, signed_headers: Mapping[str, str]) -> Answer:
            # As it was signed: aiohttp would decode some escapes of the address.
            async with session.request(
                request.method,
                URL(signed, encoded=True),
                headers=signed_headers,
                data=body,
                ssl=self._trusted,
                trace_request_ctx=sending,
                **self._options,
            ) as response:
                return Answer(response.status, response.headers, await response.read())

        started = time.monotonic()
        outcome = "cancelled"
        self.sent.add(kind.value)
        try:
            answer = await self._signer.send(request.method, address, headers, exchange)
            outcome = str(answer.status)
            self.sent.charge(answer.headers.get("x-ms-request-charge", ""))
            if self.listener is not None:
                self.listener(kind, answer.status, time.monotonic() - started)
            return answer
        except ClientAuthenticationError:
            outcome = "no token"
            raise CredentialRefused(
                f"{request.doing}: no token could be had for this identity",
                code="NoToken",
                hint="run `az login`, or give the process a managed identity, or name a key with `key_env`",
            ) from None
        except (AzureError, aiohttp.ClientError, OSError, TimeoutError) as failed:
            # Its name alone, e.g. `ClientConnectorDNSError`; its text may hold an address.
            inner = getattr(failed, "inner_exception", None) or failed
            outcome = type(inner).__name__
            if self.listener is not None and sending.begun and isinstance(inner, TimeoutError):
                self.listener(kind, 0, time.monotonic() - started)
            raise (NoAnswer if sending.begun else NotSent)(outcome, self._shown) from None
        finally:
            self._sendings.discard(sending)
            # What is logged of a request never holds its address: that holds keys.
            took_ms = 1000 * (time.monotonic() - started)
            _LOG.debug("%s -> %s in %.0f ms", request.doing, outcome, took_ms, extra=_EVENT)

    @property
    def any_sent(self) -> bool:
        """Whether a request was sent and is not answered yet."""
        return any(one.begun for one in self._sendings)

    @property
    def late_s(self) -> float:
        """Seconds for which the service accepts a request that is signed now."""
        return self._signer.accepted_s

    async def close(self) -> None:
        """Close connections and a token credential. Idempotent."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await self._signer.close()

    @cached_property
    def _trusted(self) -> bool | ssl.SSLContext:
        """What decides whether the server is trusted. A file that cannot be read fails the attempt."""
        verify = self._verify
        return verify if isinstance(verify, bool) else ssl.create_default_context(cafile=verify)

    def _open(self) -> aiohttp.ClientSession:
        """Return the session. It belongs to the running loop: the first request makes it."""
        if self._closed:
            raise RuntimeError("the table service is closed")
        if self._session is None:
            self._session = open_session(self._connections)
        return self._session


def environment_proxy(endpoint: str) -> str | None:
    """Return the proxy that the environment names for an endpoint (HTTPS_PROXY, NO_PROXY, ...), or None."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    proxy = urllib.request.getproxies().get(parts.scheme)
    return None if proxy is None or urllib.request.proxy_bypass(host) else proxy


class ConnectionDropped(aiohttp.ClientError):
    """A kept connection turned out to be closed, and aiohttp was about to repeat the request by itself."""


def open_session(connections: int, *, auto_decompress: bool = True) -> aiohttp.ClientSession:
    """Return a session that repeats no write; its requests have a `Sending` as their `trace_request_ctx`.

    Args:
        connections: at most this many at a time.
        auto_decompress: whether answers are decompressed, or read as they come.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=_IDLE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[_before_sending()],
        auto_decompress=auto_decompress,
    )


def _before_sending() -> aiohttp.TraceConfig:
    """Return the hook that aiohttp calls when the headers of a request are complete, right before sending."""

    async def check(_session: Any, context: Any, _parameters: Any) -> None:
        sending = context.trace_request_ctx
        if sending.writes:
            if sending.begun:
                raise ConnectionDropped
            allowance.check()
        sending.begun = True

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(check)
    return trace
