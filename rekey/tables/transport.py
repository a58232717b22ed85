"""One attempt of one request, and what is known when it fails. Nothing is sent twice in one attempt: the
answer to a repetition ("busy, nothing was done") would be taken for the answer to the first sending."""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import urlsplit
from uuid import uuid4

from rekey.errors import CredentialRefused
from rekey.tables import allowance
from rekey.tables.answers import Answer
from rekey.tables.connections import Connection, Connections
from rekey.tables.credentials import Credential, NoToken, Signer, TokenUnreachable
from rekey.tables.sent import RequestKind, Sent, kind_of

_LOG = logging.getLogger("rekey.tables")
_EVENT = {"event": "request"}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long one attempt may take, in seconds."""

    # To connect.
    connect: float = 5.0
    # To wait for (more of) an answer.
    read: float = 40.0
    # How long the service may work on a request before it gives up (its `timeout` parameter, 1 to 30): a
    # request takes effect within this time, or not at all. None: the service's own limit, 30 s.
    service: int | None = None

    def address(self, endpoint: str, path: str, service: int | None = None) -> str:
        """Return the address of a request below an endpoint. `service`: for this one request."""
        if service is None or (self.service is not None and self.service < service):
            service = self.service
        if service is None:
            return f"{endpoint}/{path}"
        return f"{endpoint}/{path}{'&' if '?' in path else '?'}timeout={service}"


@dataclass(frozen=True, slots=True)
class Network:
    """How the connections to an endpoint are made."""

    timeouts: Timeouts = field(default_factory=Timeouts)
    # At most this many at a time; further requests wait for one.
    connections: int = 64
    # Address of the proxy by scheme; overrides the environment.
    proxies: Mapping[str, str] = field(default_factory=dict)
    # Whether the server's certificate is checked, or a file of those to trust.
    verify: bool | str = True


@dataclass(frozen=True, slots=True)
class Request:
    """A request."""

    method: str
    # Address below the endpoint.
    path: str = field(repr=False)
    # Description without keys, for messages.
    doing: str
    # All but those that every attempt adds.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    # It is conditional on a certain ETag of a row, which every write changes: once a later attempt is
    # answered, no earlier one can take effect any more.
    on_version: bool = False
    # Most seconds that the service may work on it; None for the usual limit (`Timeouts`).
    service_s: int | None = None


class _Failed(Exception):
    """An attempt that failed: the failure's name, and the endpoint, without a credential."""

    def __init__(self, code: str, endpoint: str = "the endpoint") -> None:
        super().__init__(code)
        self.endpoint = endpoint


class NotSent(_Failed):
    """The attempt failed before anything was sent."""


class NoAnswer(_Failed):
    """Something was sent, and no (complete) answer came."""


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
        agent: beginning of the User-Agent; `AZURE_HTTP_USER_AGENT` is appended.
    """

    def __init__(self, endpoint: str, credential: Credential, network: Network, *, agent: str) -> None:
        self._endpoint, self._network = endpoint, network
        self._signer = Signer(credential)
        self._proxy = network.proxies.get(urlsplit(endpoint).scheme) or environment_proxy(endpoint)
        added = os.environ.get("AZURE_HTTP_USER_AGENT", "")
        self._agent = f"{agent} Python/{platform.python_version()} ({sys.platform}) {added}".rstrip()
        process = uuid4()
        self._request_ids = (f"{process}-{number}" for number in count())
        self._opened: Connections | None = None
        self._closed = False
        # Called for every answer, with the kind of request, its status (0 where none came in time) and the
        # seconds it took.
        self.listener: Callable[[RequestKind, int, float], None] | None = None
        # Awaited before each attempt.
        self.admit: Callable[[RequestKind], Awaitable[None]] | None = None
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
            "x-ms-client-request-id": next(self._request_ids),
        }

        def going_out(_: Connection) -> None:
            if sending.writes:
                # Only now, after signing and waiting for a connection: the process may have been suspended
                # meanwhile.
                allowance.check()
            sending.begun = True

        async def exchange(signed: str, signed_headers: Mapping[str, str]) -> Answer:
            sending.begun = False  # or it was answered with a challenge for a token
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
            # Only its name, e.g. `ConnectionRefusedError`; its text may hold an address.
            outcome = str(failed) if isinstance(failed, TokenUnreachable) else type(failed).__name__
            if self.listener is not None and sending.begun and isinstance(failed, TimeoutError):
                self.listener(kind, 0, time.monotonic() - started)
            parts = urlsplit(self._endpoint)
            shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
            raise (NoAnswer if sending.begun else NotSent)(outcome, shown) from None
        finally:
            self._sendings.discard(sending)
            # Never log a request's address: it holds keys.
            took_ms = 1000 * (time.monotonic() - started)
            _LOG.debug("%s -> %s in %.0f ms", request.doing, outcome, took_ms, extra=_EVENT)

    @property
    def timeouts(self) -> Timeouts:
        return self._network.timeouts

    @property
    def any_sent(self) -> bool:
        """Whether a request was sent and is not answered yet."""
        return any(sending.begun for sending in self._sendings)

    @property
    def signature_valid_s(self) -> float:
        return self._signer.signature_valid_s

    async def close(self) -> None:
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
                most=self._network.connections,
                connect_s=self.timeouts.connect,
                read_s=self.timeouts.read,
                proxy=self._proxy,
                verify=self._network.verify,
            )
        return self._opened


def environment_proxy(endpoint: str) -> str | None:
    """Return the proxy that the environment names for an endpoint (HTTPS_PROXY, NO_PROXY, ...), or None."""
    # Only on macOS and Windows do the system's settings name one, too.
    has_proxy = any(name.lower().endswith("_proxy") for name in os.environ)
    if sys.platform not in ("darwin", "win32") and not has_proxy:
        return None
    import urllib.request  # imports `http` and `email`: slow

    parts = urlsplit(endpoint)
    proxy = urllib.request.getproxies().get(parts.scheme)
    return None if proxy is None or urllib.request.proxy_bypass(parts.hostname or "") else proxy
