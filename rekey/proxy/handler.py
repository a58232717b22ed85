"""What is done with one request: judged, routed, carried by a client or passed on, and answered.

Rules kept here:

* A request is judged before anything is done for it, and a batch once more when its operations are known.
  What cannot be judged is refused.
* Of a table that a migration works with, reads go on under a permit of its client and are read whole before
  it is given back, so that no slow reader holds a freeze up. Writes are the client's. Nothing else passes.
* Everything else passes, streaming.
* A write whose outcome is open is answered as the service answers one, 500 `OperationTimedOut`; what was not
  done and may be repeated, 503 `ServerBusy` (ADR 0040).
* No exception reaches an answer: of one that is not foreseen the type is logged, and nothing is told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import unquote

from aiohttp import web
from azure.core.exceptions import AzureError, ServiceRequestError

from rekey.client.sdk.answers import Answer, error_answer
from rekey.client.sdk.calls import Read, Write, call_in
from rekey.client.sdk.core import ClientCore
from rekey.client.sdk.errors import OutcomeOpen, answer_to_error
from rekey.errors import RekeyError
from rekey.proxy.answer import Renaming, Reply, is_atom, reply_of, reply_to_write
from rekey.proxy.batch import Batch, read_batch, write_batch
from rekey.proxy.forward import Upstream, passed_back, passed_on
from rekey.proxy.meter import Meter
from rekey.proxy.parse import Incoming, Kind, parse, unsigned
from rekey.proxy.route import RESTRICTED, Route, Routes
from rekey.tables.base import rejected
from rekey.tables.wire import entity_path, loads

_LOG = logging.getLogger("rekey.proxy")
_JUDGED = (HTTPStatus.OK, HTTPStatus.NOT_FOUND)
_BUFFERED_BYTES = 64 * 1024
"""A body up to this size is read before it is sent on."""
_OPEN = "OperationTimedOut"
_OPEN_SAID = "The operation could not be completed within the permitted time; it may have been applied."


@dataclass(frozen=True, slots=True)
class Account:
    """The account upstream: its name, and whether the restricted store is in it as well."""

    name: str
    holds_restricted: bool


class Judge(Protocol):
    """Judges whether a request may be carried out."""

    def __call__(self, request: web.BaseRequest, asked: Incoming, batch: Batch | None) -> str:
        """Return the caller's own authorisation if it is to be used upstream, else "".

        Raises:
            RekeyError: the request is refused.
        """


class Handler:
    """Answers requests."""

    def __init__(
        self,
        account: Account,
        upstream: Upstream,
        routes: Routes,
        judge: Judge,
        meter: Meter,
        *,
        body_bytes: int,
        request_s: float,
    ) -> None:
        """Take the parts.

        Args:
            account, upstream, routes, judge, meter: the parts.
            body_bytes: the largest body.
            request_s: how long a request may take.
        """
        self._account, self._upstream, self._routes = account, upstream, routes
        self._judge, self._meter = judge, meter
        self._body_bytes, self._request_s = body_bytes, request_s

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        began, one = time.monotonic(), _One(request)
        try:
            async with asyncio.timeout(self._request_s):
                answered = await self._answered(one)
        except (RekeyError, TimeoutError) as error:
            answered = self._refused(one, error)
        except ConnectionError:
            raise  # the client is gone
        except Exception as fault:  # noqa: BLE001 - whatever it is, no answer shows it
            _LOG.error("a request failed in rekey (%s)", type(fault).__name__, extra={"event": "error"})
            answered = self._refused(one, None)
        kind = "unread" if one.asked is None else one.asked.kind
        carried = one.route is not None and one.route.core is not None
        seconds = time.monotonic() - began
        self._meter.count(kind, answered.status, seconds, carried=carried)
        figures = {"status": answered.status, "ms": round(1000 * seconds), "carried": carried}
        said = "GET" if one.asked is None else one.asked.method
        _LOG.info("%s %s -> %d", said, kind, answered.status, extra={"event": "proxied", "figures": figures})
        return answered

    def _refused(self, one: _One, error: BaseException | None) -> web.StreamResponse:
        """Return the answer to a request that failed; None: by a fault of rekey."""
        if (
            one.streaming is not None and one.streaming.prepared
        ):  # half an answer must not look like a whole one
            if one.request.transport is not None:
                one.request.transport.abort()
            return one.streaming
        table = one.route.table if one.route is not None else ""
        is_read = one.asked is not None and one.asked.is_read
        answer = error_answer(500, "InternalError", "The server encountered an internal error. Please retry.")
        if error is not None:
            answer = answer_to(error, table, reads=is_read, batch=one.batch is not None)
        return response_of(reply_of(one.asked, answer, one.batch), close=one.asked is None)

    async def _answered(self, one: _One) -> web.StreamResponse:
        request = one.request
        one.asked = asked = parse(
            request.method, request.raw_path, list(request.headers.items()), self._account.name
        )
        one.token = self._judge(request, asked, None)
        self._check_length(asked)
        if asked.headers.get("expect"):
            if asked.headers["expect"].lower() != "100-continue":
                raise rejected("InvalidHeaderValue", "this expectation is not met", status=417)
            if request.transport is not None:
                request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if asked.kind is Kind.BATCH:
            return await self._batch(one, asked)
        if asked.kind is Kind.TABLES and asked.method == "POST":
            return await self._create(one, asked)
        if not asked.table:
            return await self._pass(one, asked, Route(""))
        one.route = route = self._route(asked.table)
        core = route.core
        if core is None or asked.comp == "acl" or asked.kind is Kind.TABLE:
            if core is not None and asked.kind is Kind.TABLE and asked.method == "DELETE":
                await core.deleting_table()
            return await self._pass(one, asked, route)
        if asked.is_read:
            return response_of(await self._read(one, asked, route, core))
        one.asked = asked = replace(asked, content=await self._body(request))
        return response_of(await self._write(one, asked, core, None))

    def _route(self, table: str) -> Route:
        """Return the route of a name. Raises RequestRejected for a table of the restricted store."""
        route = self._routes.of(table)
        if self._account.holds_restricted and route.table.lower() in RESTRICTED:
            said = "This request is not authorized to perform this operation."
            raise rejected("AuthorizationFailure", said, status=403)
        return route

    # --- bodies -------------------------------------------------------------------------------------------

    def _check_length(self, asked: Incoming) -> None:
        if int(asked.headers.get("content-length", "0")) > self._body_bytes:
            raise rejected("RequestBodyTooLarge", "the request is too large", status=413)

    async def _body(self, request: web.BaseRequest) -> bytes:
        """Read a body whole. Raises RequestRejected for one that is too large."""
        if "content-encoding" in request.headers:
            raise rejected("InvalidHeaderValue", "a body must not be encoded", status=415)
        body = bytearray()
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > self._body_bytes:
                raise rejected("RequestBodyTooLarge", "the request is too large", status=413)
        return bytes(body)

    # --- what passes --------------------------------------------------------------------------------------

    async def _pass(
        self, one: _One, asked: Incoming, route: Route, body: bytes | None = None
    ) -> web.StreamResponse:
        """Send a request on, and its answer back."""
        request, headers = one.request, passed_on(asked.headers)
        data: Any = body or None
        if body is None and request.body_exists:
            length = asked.headers.get("content-length")
            if length is not None and int(length) > _BUFFERED_BYTES:
                data, headers["Content-Length"] = request.content, length
            else:
                data = await self._body(request)
        if body is None and data is None and not asked.is_read:
            headers["Content-Length"] = "0"
        if route.alias:
            headers.pop("accept-encoding", None)
        async with self._upstream.send(
            asked.sent_method, self._path(asked, route), headers, data, reads=asked.is_read, token=one.token
        ) as response:
            if route.alias:
                return response_of(await _whole(response, route))
            one.streaming = streaming = web.StreamResponse(status=response.status, reason=response.reason)
            for name, value in passed_back(response.headers.items()):
                streaming.headers.add(name, value)
            await streaming.prepare(request)
            async for chunk in response.content.iter_any():
                await streaming.write(chunk)
            await streaming.write_eof()
            return streaming

    def _path(self, asked: Incoming, route: Route) -> str:
        """Return resource and query upstream."""
        resource, query = asked.resource, unsigned(asked.query)
        if route.alias and asked.kind is Kind.TABLE:
            resource = f"Tables('{route.table}')"
        elif route.alias and asked.key is not None:
            resource = entity_path(route.table, asked.key)
        elif route.alias:
            resource = route.table + ("()" if unquote(resource).endswith("()") else "")
        return f"{resource}?{query}" if query else resource

    async def _create(self, one: _One, asked: Incoming) -> web.StreamResponse:
        """Create a table: it passes, under its own name."""
        body = await self._body(one.request)
        try:
            document = loads(body)
            one.route = route = self._route(str(document["TableName"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise rejected("InvalidInput", "the body names no table") from None
        if route.alias:
            body = b'{"TableName":"%b"}' % route.table.encode()
        return await self._pass(one, asked, route, body)

    # --- what a client carries ----------------------------------------------------------------------------

    async def _read(
        self, one: _One, asked: Incoming, route: Route, core: ClientCore, body: bytes | None = None
    ) -> Reply:
        """Read under a permit; `body`: of a query in a batch."""
        call = None if body is not None else call_in(asked, asked.table)
        headers = passed_on(asked.headers)
        headers.pop("accept-encoding", None)
        async with (
            core.reading(),
            self._upstream.send(
                asked.sent_method,
                "$batch" if body is not None else self._path(asked, route),
                headers,
                body,
                reads=True,
                token=one.token,
            ) as response,
        ):
            reply = await _whole(response, route)
        if isinstance(call, Read) and reply.status in _JUDGED and core.shadows():
            core.shadow(call, reply.status, reply.body)
        return reply

    async def _write(self, one: _One, asked: Incoming, core: ClientCore, batch: Batch | None) -> Reply:
        requests = (asked,) if batch is None else batch.parts
        for each in requests:
            if is_atom(each):
                raise rejected("AtomFormatNotSupported", "Atom format is not supported.", status=415)
            if each.method == "DELETE" and "if-match" not in each.headers:
                raise rejected("MissingRequiredHeader", "DELETE needs the header If-Match")
        table = requests[0].table
        try:
            call = call_in(asked, table, None if batch is None else batch.parts)
        except ValueError:
            raise rejected("NotImplemented", "the operation is not implemented", status=501) from None
        if not isinstance(call, Write):
            raise rejected("NotImplemented", "the operation is not implemented", status=501)
        etags = await core.write(call.operations)
        base = _base(one.request, asked, self._account.name)
        return reply_to_write(asked, call, etags, base, self._account.name, batch)

    async def _batch(self, one: _One, asked: Incoming) -> web.StreamResponse:
        one.asked = asked = replace(asked, content=await self._body(one.request))
        batch = read_batch(asked, self._account.name)
        one.token = self._judge(one.request, asked, batch)
        one.route = route = self._route(batch.table) if batch.table else Route("")
        if route.core is not None and not batch.is_query:
            one.batch = batch
            return response_of(await self._write(one, asked, route.core, batch))
        endpoint = self._upstream.endpoint
        content_type, body = write_batch(batch, lambda part: f"{endpoint}/{self._path(part, route)}")
        sent = replace(asked, headers={**asked.headers, "content-type": content_type})
        if route.core is None:
            return await self._pass(one, sent, route, body)
        return response_of(await self._read(one, sent, route, route.core, body))


class _One:
    """What is known of one request so far."""

    def __init__(self, request: web.BaseRequest) -> None:
        self.request = request
        self.asked: Incoming | None = None
        self.route: Route | None = None
        self.batch: Batch | None = None
        self.streaming: web.StreamResponse | None = None
        self.token = ""


def answer_to(error: BaseException, table: str, *, reads: bool, batch: bool = False) -> Answer:
    """Return the answer to a request that failed.

    Args:
        error: what the client of the table, or the account, raised.
        table: the table it is about.
        reads: whether the request changes nothing.
        batch: whether it is a transaction.
    """
    try:
        if isinstance(error, RekeyError):
            return answer_to_error(error, table, batch=batch)
    except OutcomeOpen:
        pass
    except ServiceRequestError as unsent:
        return error_answer(503, "NotConnected", str(unsent))
    except AzureError:
        return error_answer(503, "NoCredential", "the proxy's own credential is refused")
    if reads:
        return error_answer(503, "TimedOut", "nothing was answered in time")
    return error_answer(500, _OPEN, _OPEN_SAID)


async def _whole(response: Any, route: Route) -> Reply:
    """Return an answer of the account, read to its end; under an alias it names the application's table."""
    body = await response.read()
    headers = [one for one in passed_back(response.headers.items()) if one[0].lower() != "content-length"]
    if route.alias:
        renaming = Renaming(route.table, route.alias)
        headers = list(renaming.headers(dict(headers)).items())
        body = renaming.body(body, response.headers.get("Content-Type", ""))
    return Reply(response.status, headers, body)


def response_of(reply: Reply, *, close: bool = False) -> web.Response:
    """Return a reply for aiohttp. `close`: the connection, as what comes next on it may not be a request."""
    made = web.Response(status=reply.status, body=reply.body)
    made.headers.clear()
    for name, value in reply.headers:
        made.headers.add(name, value)
    if close:
        made.force_close()
    return made


def _base(request: web.BaseRequest, asked: Incoming, account: str) -> str:
    """Return the address below which the client names tables."""
    prefix = f"/{account}" if asked.path.startswith(f"/{account}/") else ""
    return f"{request.scheme}://{asked.headers.get('host', '')}{prefix}"
