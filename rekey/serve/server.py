"""The server: what may be asked, by whom, and how it is answered.

Rules kept here:

* Nothing is changed through it: it knows GET and HEAD only, and holds nothing that writes.
* On the loopback addresses alone it is open; anywhere else it needs a token and TLS. Without a token only
  requests that name a loopback address as their host are answered: a page on the web whose name was pointed
  to this machine could read along otherwise (DNS rebinding).
* The token goes as `Authorization: Bearer`, or as the password of basic authentication, which browsers ask
  for; it is compared in constant time. `/health/` needs none, and tells nothing but whether it works.
* The page loads nothing from elsewhere, and a content security policy forbids it. All values get to the page
  as JSON and are shown as text.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from rekey.core.concurrency import cancel
from rekey.errors import ConfigurationError, reason_of
from rekey.serve.metrics import exposed, families
from rekey.serve.sockets import Bounds, Counts, Site, Sockets
from rekey.serve.watch import Watch

if TYPE_CHECKING:
    from prometheus_client.core import Metric

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_PAGE = Path(__file__).with_name("page")
_FILES = {"/": "index.html", "/page.js": "page.js", "/page.css": "page.css"}
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_OPEN = "/health/"
# Most streams at a time.
MAX_WATCHERS = 64
# It is ready as long as what it tells is not older.
FRESH_S = 30.0
_ENDING_S = 1.0

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Paths:
    """Answers GET and HEAD by the path of a request. A look-up: aiohttp's router tries every prefix of a path
    before any credential is judged, which is quadratic in its length."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        handler = self._handlers.get(request.path)
        if handler is None:
            return said(HTTPStatus.NOT_FOUND, "nothing is at this path")
        if request.method not in ("GET", "HEAD"):
            return said(HTTPStatus.METHOD_NOT_ALLOWED, "GET alone")
        return await handler(request)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens.

    Attributes:
        host: a name or an address.
        port: 0 for any free one.
    """

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """Return the address `HOST:PORT`, `[HOST]:PORT` or `PORT`. Raises ConfigurationError."""
        host, colon, port = text.rpartition(":")
        host = host.strip("[]") if colon else "127.0.0.1"
        if not port.isdigit() or int(port) > 0xFFFF or not host:
            hint = "write HOST:PORT, for example 127.0.0.1:9460"
            raise ConfigurationError(f"{text!r} is not an address to listen on", hint=hint)
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine itself, by its name or address alone."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask.

    Attributes:
        token: what a request has to show; None: nothing.
        certificate, key: PEM files for TLS; None: http.
    """

    token: bytes | None = field(default=None, repr=False)
    certificate: Path | None = None
    key: Path | None = None

    def check(self, address: Address) -> None:
        """Raise ConfigurationError for an address that others reach, where token or TLS is missing."""
        if not address.is_loopback and (self.token is None or self.certificate is None):
            what = f"{address.host} can be reached by others, and a token or a certificate is missing"
            hint = "configure both in [serve] of rekey.toml, or listen on 127.0.0.1"
            raise ConfigurationError(what, hint=hint)

    def tls(self) -> ssl.SSLContext | None:
        """Return the context for TLS. Raises ConfigurationError when a file cannot be used."""
        if self.certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key, password="")  # never ask at the terminal
        except (OSError, ssl.SSLError) as error:
            what = f"the certificate {self.certificate} cannot be used ({type(error).__name__})"
            hint = "certificate and key name PEM files that belong together, the key without a password"
            raise ConfigurationError(what, hint=hint) from None
        return context

    def allows(self, request: web.BaseRequest) -> bool:
        """Tell whether a request shows the token; without one, whether it names this machine as its host."""
        if self.token is None:
            host = request.host.rpartition(":")[0] if ":" in request.host.rpartition("]")[2] else request.host
            return is_loopback(host)
        return hmac.compare_digest(_shown(request.headers.get("Authorization", "")), self.token)


def _shown(header: str) -> bytes:
    """Return the token that a header shows, b"" for none."""
    scheme, _, given = header.partition(" ")
    if scheme.lower() == "bearer":
        return given.strip().encode("utf-8", "surrogateescape")  # as aiohttp decodes headers
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(given.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


class Server:
    """Answers requests from what a watch has seen."""

    def __init__(self, watch: Watch, access: Access) -> None:
        """Create it. `access`: who may ask."""
        self.watch, self.access = watch, access
        self._watchers = 0

    def paths(self) -> Paths:
        """Return what answers."""
        handlers = {
            "/progress": self._progress,
            "/progress/history": self._history,
            "/progress/stream": self._stream,
            "/metrics": self._metrics,
            "/health/liveness": alive,
            "/health/readiness": self._readiness,
            **dict.fromkeys(_FILES, self._file),
        }
        return Paths({path: partial(self._guard, handler) for path, handler in handlers.items()})

    async def _guard(self, handler: Handler, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.startswith(_OPEN) or self.access.allows(request):
            return await handler(request)
        if self.access.token is None:
            return said(HTTPStatus.FORBIDDEN, "asked under the name of another host")
        return said(HTTPStatus.UNAUTHORIZED, "a token is needed", 'Basic realm="rekey"')

    async def _progress(self, _request: web.BaseRequest) -> web.Response:
        if self.watch.document is None:
            return said(HTTPStatus.SERVICE_UNAVAILABLE, self.watch.problem or "no look yet")
        return in_json(self.watch.document)

    async def _history(self, _request: web.BaseRequest) -> web.Response:
        return in_json(self.watch.history())

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._watchers >= MAX_WATCHERS:
            return said(HTTPStatus.SERVICE_UNAVAILABLE, "too many watch already")
        self._watchers += 1
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        try:
            await answer.prepare(request)
            async for document, problem in self.watch.updates():
                failed = document is None or problem
                event, told = (b"problem", problem) if failed else (b"progress", document)
                await answer.write(b"event: %b\ndata: %b\n\n" % (event, orjson.dumps(told)))
        except ConnectionError:
            pass  # it has gone
        finally:
            self._watchers -= 1
        return answer

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        return told_metrics(partial(families, self.watch), request)

    async def _readiness(self, _request: web.BaseRequest) -> web.Response:
        if self.watch.age_s is None or self.watch.age_s > FRESH_S:
            return said(HTTPStatus.SERVICE_UNAVAILABLE, "what is told is too old")
        return said(HTTPStatus.OK, "ready")

    async def _file(self, request: web.BaseRequest) -> web.Response:
        path = _PAGE / _FILES[request.path]
        kind = f"{_TYPES[path.suffix]}; charset=utf-8"
        return web.Response(body=path.read_bytes(), headers={**HEADERS, "Content-Type": kind})


@asynccontextmanager
async def serving(address: Address, watch: Watch, access: Access) -> AsyncIterator[str]:
    """Look and serve while the context lasts; yield the address as a URL.

    Raises:
        ConfigurationError: others reach the address without token and TLS, or it cannot be listened on.
    """
    access.check(address)
    tls = access.tls()
    runner = web.ServerRunner(
        Sockets(Server(watch, access).paths(), Bounds(), Counts()), shutdown_timeout=_ENDING_S
    )
    await runner.setup()
    looking = asyncio.create_task(watch.run())
    try:
        yield await listen(runner, address, tls)
    finally:
        await cancel([looking])
        await watch.close()
        await runner.cleanup()


async def listen(
    runner: web.ServerRunner, address: Address, tls: ssl.SSLContext | None, *, shared: bool = False
) -> str:
    """Listen on an address until the runner is cleaned up; return it as a URL.

    Args:
        runner: of `Sockets`, set up.
        address: port 0: any that is free.
        tls: None: http.
        shared: whether several processes listen on the address.

    Raises:
        ConfigurationError: it cannot be listened on.
    """
    site = Site(runner, address.host, address.port, tls, shared=shared)
    try:
        await site.start()
    except OSError as error:
        what = f"{address.host}:{address.port} cannot be listened on ({reason_of(error)})"
        raise ConfigurationError(what, hint="give another address with a free port") from None
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{'http' if tls is None else 'https'}://{host}:{site.port}/"


def told_metrics(families: Callable[[], Iterator[Metric]], request: web.BaseRequest) -> web.Response:
    """Return the answer to a scrape."""
    try:
        body, content_type = exposed(families, request.headers.get("Accept", ""))
    except ConfigurationError as error:
        return said(HTTPStatus.NOT_IMPLEMENTED, f"{error.what}\nNext: {error.hint}")
    return web.Response(body=body, headers={**HEADERS, "Content-Type": content_type})


async def alive(_request: web.BaseRequest) -> web.Response:
    """Answer that the process lives."""
    return said(HTTPStatus.OK, "alive")


def in_json(value: object) -> web.Response:
    """Return an answer in JSON."""
    return web.Response(body=orjson.dumps(value), headers={**HEADERS, "Content-Type": "application/json"})


def said(status: HTTPStatus, text: str, challenge: str = "") -> web.Response:
    """Return an answer in a sentence. `challenge`: how a request that showed no token can show one."""
    headers = HEADERS | ({"WWW-Authenticate": challenge} if challenge else {})
    return web.Response(status=status, text=f"{text}\n", headers=headers)
