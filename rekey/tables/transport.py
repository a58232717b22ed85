"""One attempt of one request, and what is known when it fails.

Rules kept here:

* A failed attempt says whether anything was sent, and nothing is sent twice in one attempt: the answer to a
  repetition ("busy, nothing was done") would be taken for the answer to the first sending.
* Whether a write may still be sent is asked when its first bytes are about to go out, after it was signed and
  has waited for a connection (`rekey.tables.allowance`): the process may have been suspended in between.
* Addresses hold keys: no policy here logs an address, and the address goes out exactly as it was made and
  signed, without being normalised on the way.
* Timeouts are explicit; connections are bounded (`connections.py`).
* Proxies are given, or come from the environment, as in azure-core, and are looked up once; so is
  what `AZURE_HTTP_USER_AGENT` adds to the User-Agent.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from urllib.parse import urlsplit
from uuid import uuid4

from rekey.errors import CredentialRefused
from rekey.tables import allowance
from rekey.tables.answers import Answer
from rekey.tables.connections import Connection, Connections
from rekey.tables.credentials import Credential, NoToken, Signer, TokenUnreachable
from rekey.tables.sent import Kind, Sent, kind_of

_LOG = logging.getLogger("rekey.tables")
_EVENT = {"event": "request"}


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
        if service is None or (self.service is not None and self.service < service):
            service = self.service
        if service is None:
            return f"{endpoint}/{path}"
        return f"{endpoint}/{path}{'&' if '?' in path else '?'}timeout={service}"


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
    ) -> None:
        self._endpoint = endpoint
        parts = urlsplit(endpoint)
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._signer = Signer(credential)
        self.timeouts = timeouts
        self._connections = connections
        self._proxy = proxies.get(parts.scheme) or environment_proxy(endpoint)
        self._verify = verify
        added = os.environ.get("AZURE_HTTP_USER_AGENT", "")
        self._agent = f"{agent} Python/{platform.python_version()} ({sys.platform}) {added}".rstrip()
        self._id, self._numbers = uuid4(), count()
        self._opened: Connections | None = None
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
        connections, sending = self._open(), Sending(request.method != "GET")
        self._sendings.add(sending)
        address = self.timeouts.address(self._endpoint, request.path, request.service_s)
        headers = {
            **request.headers,
            "User-Agent": self._agent,
            "x-ms-client-request-id": f"{self._id}-{next(self._numbers)}",
        }

        def going_out(_: Connection) -> None:
            if sending.writes:
                allowance.check()
            sending.begun = True

        async def exchange(signed: str, signed_headers: Mapping[str, str]) -> Answer:
            sending.begun = False  # or it was answered: with a challenge, to which a token belongs
            return await connections.exchange(request.method, signed, signed_headers, request.body, going_out)

        started = time.monotonic()
        outcome = "cancelled"
        self.sent.add(kind)
        try:
            answer = await self._signer.send(request.method, address, headers, exchange)
            outcome = str(answer.status)
            if self.listener is not None:
                self.listener(kind, answer.status, time.monotonic() - started)
            return answer
        except NoToken:
            outcome = "no token"
            raise CredentialRefused(
                f"Could not get a token for this identity ({request.doing})",
                code="NoToken",
                hint="run `az login`, or give the process a managed identity, or name a key with `key_env`",
            ) from None
        except OSError as failed:
            # Its name alone, e.g. `ConnectionRefusedError`; its text may hold an address.
            outcome = str(failed) if isinstance(failed, TokenUnreachable) else type(failed).__name__
            if self.listener is not None and sending.begun and isinstance(failed, TimeoutError):
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
        connections, self._opened = self._opened, None
        if connections is not None:
            await connections.close()
        await self._signer.close()

    def _open(self) -> Connections:
        """Return the connections. They belong to the running loop: the first request makes them."""
        if self._closed:
            raise RuntimeError("the table service is closed")
        if self._opened is None:
            self._opened = Connections(
                self._endpoint,
                most=self._connections,
                connect_s=self.timeouts.connect,
                read_s=self.timeouts.read,
                proxy=self._proxy,
                verify=self._verify,
            )
        return self._opened


def environment_proxy(endpoint: str) -> str | None:
    """Return the proxy that the environment names for an endpoint (HTTPS_PROXY, NO_PROXY, ...), or None."""
    # Only on macOS and Windows do the system's settings name one, too.
    told = any(name.lower().endswith("_proxy") for name in os.environ)
    if sys.platform not in ("darwin", "win32") and not told:
        return None
    import urllib.request  # with `http` and `email`: slow to import

    parts = urlsplit(endpoint)
    proxy = urllib.request.getproxies().get(parts.scheme)
    return None if proxy is None or urllib.request.proxy_bypass(parts.hostname or "") else proxy
