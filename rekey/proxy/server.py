"""A proxy's connections, its health and metrics, and the endpoint for new keys. The admin address is not for
the application. No key is in an error, and nothing is logged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any

from aiohttp import web

from rekey.client.sdk.answers import error_answer
from rekey.core.joint import place_of
from rekey.declaration.mapper import Mapper
from rekey.errors import RekeyError, RowRefused, TableMissing
from rekey.model import EntityKey, Row, key_of
from rekey.proxy.answer import reply_of
from rekey.proxy.handler import Handler, response_of
from rekey.proxy.meter import Meter
from rekey.serve.server import Access, Paths, alive, in_json, is_loopback, text_response, told_metrics
from rekey.serve.sockets import Bounds, Connection, Sockets

PATH = "/_rekey/keys"
# Reads a row of a source, by the table's name and its key.
Read = Callable[[str, EntityKey], Awaitable[Row | None]]
_ASKED = ["pk", "rk", "table"]


class _Connection(Connection):
    """A connection of an application."""

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
        """Return the service's error for what was no HTTP, repeating nothing of it."""
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
        return _Connection(self, self._meter)


def new_keys(mapper: Mapper, key: EntityKey, row: Row | None) -> list[dict[str, Any]] | None:
    """Return a row's new keys as JSON-able data, main row first, none if it is not migrated; None if it needs
    `row`. May raise RowRefused."""
    keys = mapper.target_keys(key)
    if keys is None and row is not None:
        keys = [(target_row.table, key_of(target_row.row)) for target_row in mapper.map(row)]
    if keys is None:
        return None
    places = [place_of(mapper.tables[table], new) for table, new in keys]
    return [{"table": table, "partition_key": new.partition, "row_key": new.row} for table, new in places]


class Keys:
    """Serves new keys (`GET /_rekey/keys?table=…&pk=…&rk=…`), computed as in the copy: from the old key, or
    from the row with that key. The mapping is not opened; that is for `rekey lookup`, which records it."""

    def __init__(self, token: bytes | None, mappers: Sequence[Mapper], read: Read) -> None:
        """Create it. Without a token nobody gets keys; over http only this machine does."""
        self._token, self._mappers, self._read = token, mappers, read

    def _mapper_of(self, table: str, key: EntityKey) -> Mapper | None:
        """Return the mapper of the migration that has a row of a source, of which each may migrate a part."""
        own = (mapper for mapper in self._mappers if mapper.migration.source.lower() == table.lower())
        return next((mapper for mapper in own if mapper.migration.has(key)), None)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        if self._token is None:
            return text_response(
                HTTPStatus.FORBIDDEN, "keys are told where [proxy.access.token] is configured"
            )
        if not request.secure and not is_loopback(request.remote or ""):
            return text_response(
                HTTPStatus.FORBIDDEN, "over http keys are told to the proxy's own machine alone"
            )
        if not Access(self._token).allows(request):
            return text_response(HTTPStatus.UNAUTHORIZED, "a token is needed", "Bearer")
        if sorted(name for name, _ in request.query.items()) != _ASKED:
            return text_response(HTTPStatus.BAD_REQUEST, "give table, pk and rk, each once")
        key, new = EntityKey(request.query["pk"], request.query["rk"]), None
        if (mapper := self._mapper_of(request.query["table"], key)) is None:
            text = "no migration of this proxy has this source, or this row in its part of it"
            return text_response(HTTPStatus.NOT_FOUND, text)
        try:
            new = new_keys(mapper, key, None)
            if new is None and (row := await self._read(mapper.migration.source, key)) is not None:
                new = new_keys(mapper, key, row)
        except TableMissing:
            pass
        except RowRefused as refused:
            return text_response(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"the script refuses this row ({refused.code})"
            )
        except (RekeyError, TimeoutError):
            return text_response(HTTPStatus.SERVICE_UNAVAILABLE, "the account could not be asked")
        if new is None:
            return text_response(
                HTTPStatus.NOT_FOUND, "the source has no such row, and its key alone says too little"
            )
        if not new:
            return text_response(HTTPStatus.NOT_FOUND, "no kind takes this row, and the script drops it")
        return in_json({"keys": new})


class Health:
    """Whether the proxy accepts requests. Neither health depends on the account."""

    def __init__(self, meter: Meter, keys: Keys) -> None:
        self._meter, self._keys = meter, keys

    @property
    def ready(self) -> bool:
        return not self._meter.is_ending

    @ready.setter
    def ready(self, is_ready: bool) -> None:
        self._meter.is_ending = not is_ready

    def paths(self) -> Paths:
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
        return text_response(*(ready if self.ready else ending))

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        return told_metrics(self._meter.families, request)
