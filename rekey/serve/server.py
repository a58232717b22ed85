"""The progress server: its endpoints, and who may use them. It knows only GET and HEAD and cannot write."""

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
    # The page loads nothing from elsewhere; all values reach it as JSON and are shown as text.
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
# Maximum number of streams.
MAX_WATCHERS = 64
# Seconds after which the document is too old to be ready.
FRESH_S = 30.0
_ENDING_S = 1.0

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Paths:
    """Answers GET and HEAD by the path of a request. A dict: aiohttp's router tries every prefix of a path,
    which is quadratic in its length, before any credential is judged."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        handler = self._handlers.get(request.path)
        if handler is None:
            return text_response(HTTPStatus.NOT_FOUND, "nothing is at this path")
        if request.method not in ("GET", "HEAD"):
            return text_response(HTTPStatus.METHOD_NOT_ALLOWED, "GET alone")
        return await handler(request)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens. Port 0 is any free one."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """Parse `HOST:PORT`, `[HOST]:PORT` or `PORT`. Raises ConfigurationError."""
        host, colon, port = text.rpartition(":")
        host = host.strip("[]") if colon else "127.0.0.1"
        if not port.isdigit() or int(port) > 0xFFFF or not host:
            hint = "write HOST:PORT, for example 127.0.0.1:9460"
            raise ConfigurationError(f"{text!r} is not an address to listen on", hint=hint)
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine, by its name or address alone."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the server."""

    # What a request must present, as `Authorization: Bearer` or as the password of basic authentication,
    # which browsers ask for; None: nothing.
    token: bytes | None = field(default=None, repr=False)
    # PEM files for TLS; None: http.
    certificate: Path | None = None
    key: Path | None = None

    def check(self, address: Address) -> None:
        """Raise ConfigurationError for an address that others can reach, without token or TLS."""
        if not address.is_loopback and (self.token is None or self.certificate is None):
            what = f"{address.host} can be reached by others, and a token or a certificate is missing"
            hint = "configure both in [serve] of rekey.toml, or listen on 127.0.0.1"
            raise ConfigurationError(what, hint=hint)

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context. Raises ConfigurationError when a file cannot be used."""
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
        """Tell whether a request presents the token."""
        if self.token is None:
            # Without a token, only requests to a loopback host name: else a web page whose name was pointed
            # to this machine (DNS rebinding) could read along.
            host = request.host.rpartition(":")[0] if ":" in request.host.rpartition("]")[2] else request.host
            return is_loopback(host)
        # In constant time.
        return hmac.compare_digest(_shown(request.headers.get("Authorization", "")), self.token)


def _shown(header: str) -> bytes:
    """Return the token in a header, b"" without one."""
    scheme, _, credential = header.partition(" ")
    if scheme.lower() == "bearer":
        return credential.strip().encode("utf-8", "surrogateescape")  # as aiohttp decodes headers
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(credential.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


class Server:
    """Answers requests from what a watch has seen."""

    def __init__(self, watch: Watch, access: Access) -> None:
        self.watch, self.access = watch, access
        self._watchers = 0

    def paths(self) -> Paths:
        """Return the handlers. `/health/` needs no token and says only whether it works."""
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
            return text_response(HTTPStatus.FORBIDDEN, "the request names another host")
        return text_response(HTTPStatus.UNAUTHORIZED, "a token is needed", 'Basic realm="rekey"')

    async def _progress(self, _request: web.BaseRequest) -> web.Response:
        if self.watch.document is None:
            return text_response(HTTPStatus.SERVICE_UNAVAILABLE, self.watch.problem or "nothing was read yet")
        return in_json(self.watch.document)

    async def _history(self, _request: web.BaseRequest) -> web.Response:
        return in_json(self.watch.history())

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._watchers >= MAX_WATCHERS:
            return text_response(HTTPStatus.SERVICE_UNAVAILABLE, "too many watch already")
        self._watchers += 1
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        try:
            await answer.prepare(request)
            async for document, problem in self.watch.updates():
                failed = document is None or problem
                event, data = (b"problem", problem) if failed else (b"progress", document)
                await answer.write(b"event: %b\ndata: %b\n\n" % (event, orjson.dumps(data)))
        except ConnectionError:
            pass  # the client is gone
        finally:
            self._watchers -= 1
        return answer

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        return told_metrics(partial(families, self.watch), request)

    async def _readiness(self, _request: web.BaseRequest) -> web.Response:
        if self.watch.age_s is None or self.watch.age_s > FRESH_S:
            return text_response(HTTPStatus.SERVICE_UNAVAILABLE, "the newest status is too old")
        return text_response(HTTPStatus.OK, "ready")

    async def _file(self, request: web.BaseRequest) -> web.Response:
        path = _PAGE / _FILES[request.path]
        kind = f"{_TYPES[path.suffix]}; charset=utf-8"
        return web.Response(body=path.read_bytes(), headers={**HEADERS, "Content-Type": kind})


@asynccontextmanager
async def serving(address: Address, watch: Watch, access: Access) -> AsyncIterator[str]:
    """Watch and serve within the context; yield the address as a URL.

    Raises:
        ConfigurationError: others can reach the address without token and TLS, or it cannot be listened on.
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
        address: port 0: any free one.
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
    """Return the response to a scrape."""
    try:
        body, content_type = exposed(families, request.headers.get("Accept", ""))
    except ConfigurationError as error:
        return text_response(HTTPStatus.NOT_IMPLEMENTED, f"{error.what}\nNext: {error.hint}")
    return web.Response(body=body, headers={**HEADERS, "Content-Type": content_type})


async def alive(_request: web.BaseRequest) -> web.Response:
    """Answer that the process is alive."""
    return text_response(HTTPStatus.OK, "alive")


def in_json(value: object) -> web.Response:
    """Return a JSON response."""
    return web.Response(body=orjson.dumps(value), headers={**HEADERS, "Content-Type": "application/json"})


def text_response(status: HTTPStatus, text: str, challenge: str = "") -> web.Response:
    """Return a one-sentence response. `challenge`: how to authenticate."""
    headers = HEADERS | ({"WWW-Authenticate": challenge} if challenge else {})
    return web.Response(status=status, text=f"{text}\n", headers=headers)
