"""New keys for application code, told at the admin address: `GET /_rekey/keys?table=…&pk=…&rk=…`.

Rules kept here:

* Keys are told for a token of their own and for nothing else: without one configured, to nobody. Over http
  they are told to this machine alone.
* They are computed as for the copy: from the old key, or from the row that is read under it where they depend
  on more. The mapping is not opened: that is for `rekey lookup`, which records it.
* No key is in an error, and nothing is logged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeAlias

import orjson
from aiohttp import web

from rekey.declaration.mapper import Mapper
from rekey.errors import RekeyError, RowRefused, TableMissing
from rekey.model import EntityKey, Row, key_of
from rekey.serve.server import HEADERS, Access, is_loopback

PATH = "/_rekey/keys"
# Reads a row of a source, by the table's name and its key.
Read: TypeAlias = Callable[[str, EntityKey], Awaitable[Row | None]]
_ASKED = ["pk", "rk", "table"]


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

    def mount(self, application: web.Application) -> None:
        """Add the path to the application of the admin address."""
        application.router.add_get(PATH, self._answer, allow_head=False)

    async def _answer(self, request: web.Request) -> web.Response:
        if self._token is None:
            return _said(HTTPStatus.FORBIDDEN, "keys are told where [proxy.access.token] is configured")
        if not request.secure and not is_loopback(request.remote or ""):
            return _said(HTTPStatus.FORBIDDEN, "over http keys are told to the proxy's own machine alone")
        if not Access(self._token).allows(request):
            refusal = _said(HTTPStatus.UNAUTHORIZED, "a token is needed")
            refusal.headers["WWW-Authenticate"] = "Bearer"
            return refusal
        if sorted(name for name, _ in request.query.items()) != _ASKED:
            return _said(HTTPStatus.BAD_REQUEST, "give table, pk and rk, each once")
        table, mapper = self._mappers.get(request.query["table"].lower(), ("", None))
        if mapper is None:
            return _said(HTTPStatus.NOT_FOUND, "no migration of this proxy has this source")
        key, found = EntityKey(request.query["pk"], request.query["rk"]), None
        try:
            found = new_keys(mapper, key, None)
            if found is None and (row := await self._read(table, key)) is not None:
                found = new_keys(mapper, key, row)
        except TableMissing:
            pass
        except RowRefused as refused:
            return _said(HTTPStatus.UNPROCESSABLE_ENTITY, f"the script refuses this row ({refused.code})")
        except (RekeyError, TimeoutError):
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, "the account could not be asked")
        if found is None:
            return _said(
                HTTPStatus.NOT_FOUND, "the source has no such row, and its key alone says too little"
            )
        return web.Response(body=orjson.dumps({"keys": found}), headers=_JSON)


_JSON = {**HEADERS, "Content-Type": "application/json"}


def _said(status: HTTPStatus, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=HEADERS)
