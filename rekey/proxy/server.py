"""The sockets of a proxy: who is listened to, how much is taken of whom, health and metrics, and the end.

Rules kept here:

* What is no HTTP is refused in the service's form; nothing of it is repeated, and the connection is closed.
* Bounds: `rekey/serve/sockets.py`, and (in the handler) the body and the time of a request.
* `/health/readiness` says no from SIGTERM on; requests are still answered for `drain`, each answer the last
  on its connection, then listening ends, requests in flight are finished, and every client returns its lease.
  Neither health depends on the account.
* The admin address serves health, metrics and new keys (`GET /_rekey/keys?table=…&pk=…&rk=…`), and is not for
  the application.
* Keys are told for a token of their own and for nothing else: without one configured, to nobody. Over http
  they are told to this machine alone.
* They are computed as for the copy: from the old key, or from the row that is read under it where they depend
  on more. The mapping is not opened: that is for `rekey lookup`, which records it.
* No key is in an error, and nothing is logged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import web

from rekey.client.sdk.answers import error_answer
from rekey.declaration.mapper import Mapper
from rekey.errors import RekeyError, RowRefused, TableMissing
from rekey.model import EntityKey, Row, key_of
from rekey.proxy.answer import reply_of
from rekey.proxy.handler import Handler, response_of
from rekey.proxy.meter import Meter
from rekey.serve.server import Access, Paths, alive, in_json, is_loopback, said, told_metrics
from rekey.serve.sockets import Bounds, Connection, Sockets

PATH = "/_rekey/keys"
# Reads a row of a source, by the table's name and its key.
Read = Callable[[str, EntityKey], Awaitable[Row | None]]
_ASKED = ["pk", "rk", "table"]


class _Connection(Connection):
    """One connection of an application."""

    def __init__(self, sockets: Sockets, meter: Meter) -> None:
        super().__init__(sockets)
        self._meter = meter

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,  # noqa: ARG002 - may hold what was sent
        message: str | None = None,  # noqa: ARG002 - the same
    ) -> web.StreamResponse:
        """Return the answer to what was no request. It was told to nobody what it held."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        code = "InvalidInput" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "InternalError"
        self._meter.count("unread", status, 0.0, carried=False)
        answer = error_answer(status, code, "The request could not be read.")
        return response_of(reply_of({}, answer), close=True)


class ProxySockets(Sockets):
    """Makes connections of applications."""

    def __init__(self, handler: Handler) -> None:
        limits = handler.limits
        bounds = Bounds(limits.connections, limits.idle_s, limits.request_s, limits.line)
        super().__init__(handler, bounds, handler.meter)
        self._meter = handler.meter

    def __call__(self) -> Connection:
        """Return what serves a new connection."""
        return _Connection(self, self._meter)


def new_keys(mapper: Mapper, key: EntityKey, row: Row | None) -> list[dict[str, Any]] | None:
    """Return the new keys of a row, main row first, as JSON-able data; None where its row is needed.

    Args:
        mapper: of the migration.
        key: its old key.
        row: the row, if it was read.

    Raises:
        RowRefused: the declaration cannot be applied to the row.
    """
    found = mapper.target_keys(key)
    if found is None and row is not None:
        found = [(made.table, key_of(made.row)) for made in mapper.map(row)]
    if found is None:
        return None
    return [
        {"table": mapper.tables[table], "partition_key": new.partition, "row_key": new.row}
        for table, new in found
    ]


class Keys:
    """Tells new keys."""

    def __init__(self, token: bytes | None, mappers: Mapping[str, Mapper], read: Read) -> None:
        """Take the parts.

        Args:
            token: what a request has to show; None: keys are told to nobody.
            mappers: of the migrations, by the names of their sources.
            read: reads a row of a source with the proxy's own rights.
        """
        self._token, self._read = token, read
        self._mappers = {name.lower(): (name, mapper) for name, mapper in mappers.items()}

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer a request."""
        if self._token is None:
            return said(HTTPStatus.FORBIDDEN, "keys are told where [proxy.access.token] is configured")
        if not request.secure and not is_loopback(request.remote or ""):
            return said(HTTPStatus.FORBIDDEN, "over http keys are told to the proxy's own machine alone")
        if not Access(self._token).allows(request):
            return said(HTTPStatus.UNAUTHORIZED, "a token is needed", "Bearer")
        if sorted(name for name, _ in request.query.items()) != _ASKED:
            return said(HTTPStatus.BAD_REQUEST, "give table, pk and rk, each once")
        table, mapper = self._mappers.get(request.query["table"].lower(), ("", None))
        if mapper is None:
            return said(HTTPStatus.NOT_FOUND, "no migration of this proxy has this source")
        key, found = EntityKey(request.query["pk"], request.query["rk"]), None
        try:
            found = new_keys(mapper, key, None)
            if found is None and (row := await self._read(table, key)) is not None:
                found = new_keys(mapper, key, row)
        except TableMissing:
            pass
        except RowRefused as refused:
            return said(HTTPStatus.UNPROCESSABLE_ENTITY, f"the script refuses this row ({refused.code})")
        except (RekeyError, TimeoutError):
            return said(HTTPStatus.SERVICE_UNAVAILABLE, "the account could not be asked")
        if found is None:
            return said(HTTPStatus.NOT_FOUND, "the source has no such row, and its key alone says too little")
        return in_json({"keys": found})


class Health:
    """Whether the proxy takes requests."""

    def __init__(self, meter: Meter, keys: Keys) -> None:
        self._meter, self._keys = meter, keys

    @property
    def ready(self) -> bool:
        """Whether the proxy is to be sent requests."""
        return not self._meter.is_ending

    @ready.setter
    def ready(self, is_ready: bool) -> None:
        self._meter.is_ending = not is_ready

    def paths(self) -> Paths:
        """Return what answers at the admin address."""
        return Paths(
            {
                "/health/liveness": alive,
                "/health/readiness": self._readiness,
                "/metrics": self._metrics,
                PATH: self._keys.answer,
            }
        )

    async def _readiness(self, _request: web.BaseRequest) -> web.Response:
        ready, ending = (HTTPStatus.OK, "ready"), (HTTPStatus.SERVICE_UNAVAILABLE, "ending")
        return said(*(ready if self.ready else ending))

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        return told_metrics(self._meter.families, request)
