"""Handles one request: judges it, routes it, has a client carry it or forwards it, and answers."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import unquote
from xml.etree.ElementTree import ParseError

from aiohttp import web
from azure.core.exceptions import AzureError, ServiceRequestError

from rekey.client.abandoned import to_its_end
from rekey.client.sdk.answers import Answer, answer_in_parts, error_answer
from rekey.client.sdk.calls import Read, Write, call_in, row_of
from rekey.client.sdk.errors import OutcomeOpen, answer_to_error
from rekey.client.sdk.router import Carrier
from rekey.core.limits import is_in_target_account, own_name
from rekey.errors import Ambiguous, RekeyError, Unavailable
from rekey.model import EntityKey, key_of
from rekey.project.config import ProxyLimits
from rekey.project.entra import View
from rekey.proxy.access import Access, Asked, Granted, PolicyUnread, TokenUnverified, judge, needs
from rekey.proxy.answer import Readdressing, Renaming, Reply, is_atom, reply_of, reply_to_write
from rekey.proxy.batch import Batch, read_batch, write_batch
from rekey.proxy.forward import Upstream, passed_back, passed_on
from rekey.proxy.meter import Meter
from rekey.proxy.parse import Incoming, ResourceKind, host_in, parse, unsigned
from rekey.proxy.route import RESTRICTED, Route, Routes
from rekey.proxy.sas import confined, policies_in, refused, unauthenticated
from rekey.proxy.tenant_keys import TokenVerifier
from rekey.tables.base import rejected
from rekey.tables.wire import API_VERSION, entity_path, loads

_LOG = logging.getLogger("rekey.proxy")
_JUDGED = (HTTPStatus.OK, HTTPStatus.NOT_FOUND)
_HOLDS_ADDRESSES = re.compile(r"json|xml|multipart/", re.IGNORECASE)
# A body up to this size is read before it is forwarded.
_BUFFERED_BYTES = 64 * 1024
# Seconds for which stored access policies are cached, and for how many tables.
_POLICIES_S, _POLICIES_KEPT = 5.0, 1_000
Policies: TypeAlias = Mapping[str, Mapping[str, str]]
_OPEN = "OperationTimedOut"
# "Payload format for Table service operations": Atom in versions before 2015-12-11.
_NO_ATOM = (
    "This proxy carries writes in JSON alone. The service itself takes Atom in versions before 2015-12-11."
)
# "Setting timeouts for Table service operations": seconds; more than 30 count as 30.
_TIMEOUT = re.compile(r"[0-9]{1,9}(?:\.[0-9]+)?", re.ASCII)
_RANGE_UNDER_ALIAS = "with a signature for a key range: under this name rows have new keys"
_STOPPED = "RequestTimeout"
_STOPPED_SAID = "The body of the request did not arrive in time; nothing was done."
_OPEN_SAID = "The operation could not be completed within the permitted time; it may have been applied."


@dataclass(eq=False)
class Handler:
    """Answers requests."""

    # The name of the account upstream.
    account: str
    upstream: Upstream
    routes: Routes
    access: Access
    meter: Meter
    _: KW_ONLY
    # Whether the restricted store is in the same account.
    holds_restricted: bool
    limits: ProxyLimits
    # The target account, if there is one.
    target_upstream: Upstream | None = None
    # Verifies tokens; None: `access` names no tenant.
    verifier: TokenVerifier | None = None

    def __post_init__(self) -> None:
        self._policies: dict[str, tuple[float, Policies]] = {}

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        began, exchange = time.monotonic(), _Exchange(request)
        try:
            async with asyncio.timeout(self.limits.request_s):
                answered = await self._answered(exchange)
        except (RekeyError, TimeoutError) as error:
            answered = self._refused(exchange, error)
        except ConnectionError:
            raise  # the client is gone
        except Exception as fault:  # noqa: BLE001 - no response shows an exception
            _LOG.error("a request failed in rekey (%s)", type(fault).__name__, extra={"event": "error"})
            answered = self._refused(exchange, None)
        if self.meter.is_ending:
            # RFC 9112, 9.6: a client that reuses the connection would lose the request that it sends when the
            # process ends.
            answered.force_close()
        kind = "unread" if exchange.asked is None else exchange.asked.kind
        carried = exchange.route is not None and exchange.route.core is not None
        seconds = time.monotonic() - began
        self.meter.count(kind, answered.status, seconds, carried=carried)
        figures = {"status": answered.status, "ms": round(1000 * seconds), "carried": carried}
        text = "GET" if exchange.asked is None else exchange.asked.method
        _LOG.info("%s %s -> %d", text, kind, answered.status, extra={"event": "proxied", "figures": figures})
        return answered

    def _refused(self, exchange: _Exchange, error: BaseException | None) -> web.StreamResponse:
        """Return the response to a request that failed; without an error, by a bug in rekey."""
        if exchange.streaming is not None and exchange.streaming.prepared:
            # A partial response must not look complete.
            if exchange.request.transport is not None:
                exchange.request.transport.abort()
            return exchange.streaming
        table = exchange.route.table if exchange.route is not None else ""
        is_read = exchange.asked is not None and exchange.asked.is_read
        answer = error_answer(500, "InternalError", "The server encountered an internal error. Please retry.")
        if error is not None:
            indexed = getattr(error, "index", None) is not None
            answer = answer_to(error, table, reads=is_read, batch=exchange.batch is not None or indexed)
            content = exchange.request.content
            if (
                exchange.request.body_exists
                and not content.is_eof()
                and isinstance(error, TimeoutError | Ambiguous)
            ):
                # The account received nothing, or an incomplete body, which it does not apply (RFC 9110,
                # 15.5.9).
                answer = error_answer(HTTPStatus.REQUEST_TIMEOUT, _STOPPED, _STOPPED_SAID)
        if answer.status == HTTPStatus.UNAUTHORIZED and self.access.entra is not None:
            challenge = {"WWW-Authenticate": self.access.entra.challenge}
            answer = replace(answer, headers={**answer.headers, **challenge})
        if exchange.route is not None and exchange.route.alias:
            answer = _under(answer, table.encode(), exchange.route.alias.encode())
        headers = (
            {"accept": exchange.request.headers.get("Accept", "")}
            if exchange.asked is None
            else exchange.asked.headers
        )
        is_last = exchange.asked is None or answer.status == HTTPStatus.REQUEST_TIMEOUT
        return response_of(reply_of(headers, answer, exchange.batch), close=is_last)

    async def _answered(self, exchange: _Exchange) -> web.StreamResponse:
        request = exchange.request
        exchange.asked = asked = parse(
            request.method, request.raw_path, request.headers.items(), self.account
        )
        inserts = asked.kind is ResourceKind.ROWS and asked.method == "POST"
        granted = await self._judged(
            exchange, asked, () if inserts or asked.kind is ResourceKind.BATCH else (asked,)
        )
        self._check_length(int(asked.headers.get("content-length", "0")))
        if asked.headers.get("expect"):
            if asked.headers["expect"].lower() != "100-continue":
                raise rejected("InvalidHeaderValue", "this expectation is not met", status=417)
            if request.transport is not None:
                request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if asked.kind is ResourceKind.BATCH:
            return await self._batch(exchange, asked)
        if inserts:
            if granted.within is not None:
                exchange.asked = asked = replace(asked, content=await self._body(request))
            await self._judged(exchange, asked, (asked,))
        asked = _confined(asked, granted)
        if asked.kind is ResourceKind.TABLES and asked.method == "POST":
            return await self._create(exchange, asked)
        if not asked.table:
            return await self._pass(exchange, asked, Route(""))
        exchange.route = route = self._route(asked.table, exchange.caller)
        core = route.core
        if core is None or asked.comp == "acl" or asked.kind is ResourceKind.TABLE:
            if core is not None and asked.kind is ResourceKind.TABLE and asked.method == "DELETE":
                return await self._delete(exchange, asked, route, core)
            return await self._pass(exchange, asked, route, asked.content or None)
        if asked.is_read:
            return response_of(await self._read(exchange, asked, route, core))
        exchange.asked = asked = replace(asked, content=asked.content or await self._body(request))
        return response_of(await self._write(exchange, asked, core, None))

    async def _judged(self, exchange: _Exchange, asked: Incoming, operations: Sequence[Incoming]) -> Granted:
        """Return whose request it is. `operations`: itself or the parts of a batch; none while unknown."""
        resource, rights, keys = "o", set[str](), list[EntityKey | None]()
        for each in operations:
            conditional = bool(each.headers.get("if-match"))  # an empty one might be ignored
            resource, needed = needs(each.kind, each.method, each.comp, conditional=conditional)
            rights |= needed
            keys.append(each.key or inserted_key(each))
        known = [key for key in keys if key is not None]
        request = exchange.request
        judged = Asked(
            *(
                request.method,
                asked.path,
                asked.parameters,
                asked.headers,
                request.remote or "",
                request.secure,
            ),
            (operations[0].table if operations else asked.table) or None,
            resource,
            frozenset(rights),
            keys=known if len(known) == len(keys) and keys else None,
            confines=True,
        )
        try:
            exchange.granted = judge(judged, self.access, time.time())
        except PolicyUnread as unread:
            route = self._route(unread.table, unread.name)
            judged = replace(judged, policies=await self._policies_of(route))
            exchange.granted = judge(judged, self.access, time.time())
        except TokenUnverified as unverified:
            assert self.verifier is not None  # noqa: S101 - `access` names a tenant
            principal = await self.verifier.principal(unverified.token)
            exchange.granted = judge(judged, self.access, time.time(), principal)
        route = self._route(judged.table, exchange.caller) if judged.table else Route("")
        self._check_view(exchange, route)
        if exchange.granted.within is not None and route.alias:
            # Compared as text with new keys, a range of old keys would select other rows.
            raise refused(using=_RANGE_UNDER_ALIAS)
        return exchange.granted

    async def _policies_of(self, route: Route) -> Policies:
        """Return the stored access policies of a table, at most `_POLICIES_S` old."""
        read_at, policies = self._policies.get(route.table, (-_POLICIES_S, {}))
        if time.monotonic() - read_at < _POLICIES_S:
            return policies
        upstream, path = self._upstream_of(route), f"{own_name(route.table)}?comp=acl"
        headers = {"x-ms-version": API_VERSION, "Accept": "application/xml"}
        async with upstream.send("GET", path, headers, None, reads=True) as response:
            body = await response.read()
        if response.status != HTTPStatus.OK:
            text = "stored access policies could not be read (%d)"
            _LOG.warning(text, response.status, extra={"event": "policies"})
        if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise Unavailable("the stored access policies could not be read", code=str(response.status))
        try:
            policies = policies_in(body if response.status == HTTPStatus.OK else b"")
        except ParseError:
            raise unauthenticated("The stored access policy cannot be read.") from None
        if len(self._policies) >= _POLICIES_KEPT:
            self._policies.clear()
        self._policies[route.table] = time.monotonic(), policies
        return policies

    def _check_view(self, exchange: _Exchange, route: Route) -> None:
        """Raise RequestRejected for a table of a migration that is not of the view the caller may use."""
        view = View.BOTH if exchange.granted is None else exchange.granted.view
        views = self.routes.views_of(route.table)
        if view is not View.BOTH and views and view not in views:
            raise refused("AuthorizationPermissionMismatch", f"on a table without the {view} keys")

    def _route(self, table: str, caller: str) -> Route:
        """Return a caller's route of a name. Raises RequestRejected for a table of the restricted store."""
        route = self.routes.of(table, caller)
        if self.holds_restricted and route.table.lower() in RESTRICTED:
            raise refused()
        return route

    # --- bodies -------------------------------------------------------------------------------------------

    def _check_length(self, length: int) -> None:
        if length > self.limits.body:
            raise rejected("RequestBodyTooLarge", "the request is too large", status=413)

    async def _body(self, request: web.BaseRequest) -> bytes:
        if "content-encoding" in request.headers:
            raise rejected("InvalidHeaderValue", "a body must not be encoded", status=415)
        body = bytearray()
        async for chunk in request.content.iter_any():
            body += chunk
            self._check_length(len(body))
        return bytes(body)

    # --- what passes --------------------------------------------------------------------------------------

    async def _pass(
        self, exchange: _Exchange, asked: Incoming, route: Route, body: bytes | None = None
    ) -> web.StreamResponse:
        """Forward a request and its response; a response without addresses is streamed."""
        request, headers = exchange.request, passed_on(asked.headers)
        data: Any = body or None
        if body is None and request.body_exists:
            length = asked.headers.get("content-length")
            if length is not None and int(length) > _BUFFERED_BYTES:
                data, headers["Content-Length"] = request.content, length
            else:
                data = await self._body(request)
        if body is None and data is None and not asked.is_read:
            headers["Content-Length"] = "0"
        headers.pop("accept-encoding", None)  # addresses in the response are rewritten
        async with self._upstream_of(route).send(
            asked.sent_method,
            self._path(asked, route),
            headers,
            data,
            reads=asked.is_read,
            token=exchange.token,
        ) as response:
            if route.alias or _HOLDS_ADDRESSES.search(response.headers.get("Content-Type", "")):
                return response_of(await self._whole(exchange, response, route))
            begun = await response.content.readany()
            if response.content.at_eof():  # it fits into one piece
                return response_of(Reply(response.status, self._ours(exchange, response, route), begun))
            exchange.streaming = streaming = web.StreamResponse(
                status=response.status, reason=response.reason
            )
            if self.meter.is_ending:
                streaming.force_close()
            headers_back = passed_back(response.headers.items())
            streaming.headers.extend(self._readdressing(exchange, route).headers(headers_back))
            await streaming.prepare(request)
            await streaming.write(begun)
            async for chunk in response.content.iter_any():
                await streaming.write(chunk)
            await streaming.write_eof()
            return streaming

    def _upstream_of(self, route: Route) -> Upstream:
        return (
            self.target_upstream
            if self.target_upstream and is_in_target_account(route.table)
            else self.upstream
        )

    def _path(self, asked: Incoming, route: Route) -> str:
        resource, query, own = asked.resource, unsigned(asked.query), own_name(route.table)
        if route.alias and asked.kind is ResourceKind.TABLE:
            resource = f"Tables('{own}')"
        elif asked.key is not None and (route.alias or route.core):
            # Azurite reads keys by position and ignores their names.
            resource = entity_path(own, asked.key)
        elif route.alias and asked.kind is ResourceKind.ROWS:
            resource = own + ("()" if unquote(resource).endswith("()") else "")
        return f"{resource}?{query}" if query else resource

    def _base(self, exchange: _Exchange) -> str:
        prefix = f"/{exchange.asked.prefix}" if exchange.asked is not None and exchange.asked.prefix else ""
        host = host_in(exchange.request.raw_path) or exchange.request.host
        return f"{exchange.request.scheme}://{host}{prefix}"

    def _readdressing(self, exchange: _Exchange, route: Route) -> Readdressing:
        return Readdressing(self._upstream_of(route).endpoint, self._base(exchange))

    def _ours(self, exchange: _Exchange, response: Any, route: Route) -> list[tuple[str, str]]:
        kept = [each for each in passed_back(response.headers.items()) if each[0].lower() != "content-length"]
        return self._readdressing(exchange, route).headers(kept)

    async def _whole(self, exchange: _Exchange, response: Any, route: Route) -> Reply:
        """Return the account's response, read completely, with the client's addresses and table name."""
        body, headers = await response.read(), self._ours(exchange, response, route)
        content_type = response.headers.get("Content-Type", "")
        if route.alias:
            renaming = Renaming(own_name(route.table), route.alias)
            headers = list(renaming.headers(dict(headers)).items())
            body = renaming.body(body, content_type)
        return Reply(response.status, headers, self._readdressing(exchange, route).body(body, content_type))

    async def _create(self, exchange: _Exchange, asked: Incoming) -> web.StreamResponse:
        body = await self._body(exchange.request)
        try:
            exchange.route = route = self._route(str(loads(body)["TableName"]), exchange.caller)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise rejected("InvalidInput", "the body names no table") from None
        self._check_view(exchange, route)
        if route.alias:
            body = b'{"TableName":"%b"}' % own_name(route.table).encode()
        return await self._pass(exchange, asked, route, body)

    async def _delete(
        self, exchange: _Exchange, asked: Incoming, route: Route, core: Carrier
    ) -> web.StreamResponse:
        if (refusal := await self._not_accepted(exchange, asked, route, core)) is not None:
            return response_of(refusal)
        await core.deleting_table()
        return await self._pass(exchange, asked, route)

    # --- what a client carries ----------------------------------------------------------------------------

    async def _read(
        self, exchange: _Exchange, asked: Incoming, route: Route, core: Carrier, body: bytes | None = None
    ) -> Reply:
        """Read under a permit of the client; `body`: of a query in a batch. The response is read completely
        before the permit is returned, so that no slow reader delays a freeze."""
        call = None if body is not None else call_in(asked, asked.table)
        headers = passed_on(asked.headers)
        headers.pop("accept-encoding", None)
        if (refusal := await self._not_accepted(exchange, asked, route, core)) is not None:
            return refusal
        upstream = self._upstream_of(route)
        path = "$batch" if body is not None else self._path(asked, route)
        async with (
            core.reading(*((call.key, call.asked) if isinstance(call, Read) else ())),
            asyncio.timeout(core.options.settings.longest_operation_s),  # a freeze waits for the permit
            upstream.send(
                asked.sent_method, path, headers, body, reads=True, token=exchange.token
            ) as response,
        ):
            reply = await self._whole(exchange, response, route)
        if isinstance(call, Read) and not exchange.token and reply.status in _JUDGED and core.shadows():
            core.shadow(call, reply.status, reply.body)
        return reply

    async def _not_accepted(
        self, exchange: _Exchange, asked: Incoming, route: Route, core: Carrier
    ) -> Reply | None:
        """Return the account's response to a token that may not read this table: such a token must not make
        the proxy a client of the view. None if the account accepts it, or the proxy is a client already."""
        if not exchange.token or core.is_open:
            return None
        path, headers = f"{own_name(route.table)}()?$top=1", passed_on(asked.headers)
        upstream = self._upstream_of(route)
        async with upstream.send("GET", path, headers, None, reads=True, token=exchange.token) as response:
            return None if response.status == HTTPStatus.OK else await self._whole(exchange, response, route)

    async def _write(self, exchange: _Exchange, asked: Incoming, core: Carrier, batch: Batch | None) -> Reply:
        requests = (asked,) if batch is None else batch.parts
        if exchange.token:
            text = "This proxy takes no bearer token for writes that it carries: it cannot verify one."
            raise rejected("AuthorizationFailure", text, status=403)
        for each in (asked, *requests):
            if not _TIMEOUT.fullmatch(each.parameters.get("timeout", "0")):
                text = "The value of the parameter timeout is no number of seconds."
                raise rejected("InvalidQueryParameterValue", text)
        for each in requests:
            if is_atom(each):
                raise rejected("AtomFormatNotSupported", _NO_ATOM, status=415)
            if each.method == "DELETE" and "if-match" not in each.headers:
                raise rejected("MissingRequiredHeader", "DELETE needs the header If-Match")
        table = requests[0].table
        try:
            call = call_in(asked, table, None if batch is None else batch.parts)
        except ValueError:
            raise rejected("NotImplemented", "the operation is not implemented", status=501) from None
        if not isinstance(call, Write):
            raise rejected("NotImplemented", "the operation is not implemented", status=501)
        etags = await to_its_end(core.write(call.operations))
        return reply_to_write(asked, call, etags, self._base(exchange), self.account, batch)

    async def _batch(self, exchange: _Exchange, asked: Incoming) -> web.StreamResponse:
        exchange.asked = asked = replace(asked, content=await self._body(exchange.request))
        batch = read_batch(asked, self.account)
        granted = await self._judged(exchange, asked, batch.parts)
        batch = replace(batch, parts=tuple(_confined(part, granted) for part in batch.parts))
        exchange.route = route = self._route(batch.table, exchange.caller) if batch.table else Route("")
        if route.core is not None and not batch.is_query:
            exchange.batch = batch
            return response_of(await self._write(exchange, asked, route.core, batch))
        endpoint = self._upstream_of(route).endpoint
        content_type, body = write_batch(batch, lambda part: f"{endpoint}/{self._path(part, route)}")
        sent = replace(asked, headers={**asked.headers, "content-type": content_type})
        if route.core is None:
            return await self._pass(exchange, sent, route, body)
        return response_of(await self._read(exchange, sent, route, route.core, body))


class _Exchange:
    """One request and what is known about it so far."""

    def __init__(self, request: web.BaseRequest) -> None:
        self.request = request
        self.asked: Incoming | None = None
        self.route: Route | None = None
        self.batch: Batch | None = None
        self.streaming: web.StreamResponse | None = None
        self.granted: Granted | None = None

    @property
    def caller(self) -> str:
        return "" if self.granted is None else self.granted.name

    @property
    def token(self) -> str:
        """What authorizes the request upstream in place of the proxy's credential."""
        return "" if self.granted is None else self.granted.token


def answer_to(error: BaseException, table: str, *, reads: bool, batch: bool = False) -> Answer:
    """Return the response to a failed request: for an unknown outcome 500 `OperationTimedOut` as the service
    does, for what was not done and may be repeated 503 `ServerBusy` (ADR 0040).

    Args:
        error: what the client of the table, or the account, raised.
        table: the table.
        reads: whether the request changes nothing.
        batch: whether it is a transaction.
    """
    try:
        if isinstance(error, RekeyError):
            return _in_transaction(answer_to_error(error, table, batch=batch), batch=batch)
    except OutcomeOpen:
        pass
    except ServiceRequestError:  # its text contains the account's address
        return error_answer(503, "NotConnected", "nothing was done: an account cannot be reached")
    except AzureError:
        return error_answer(503, "NoCredential", "the proxy's own credential is refused")
    if reads:
        return error_answer(503, "TimedOut", "nothing was answered in time")
    return error_answer(500, _OPEN, _OPEN_SAID)


def _in_transaction(answer: Answer, *, batch: bool) -> Answer:
    """Return the answer to a row that the mapping refuses as the service answers such a row of a transaction:
    in a part, with the operation's index. SDKs make their exceptions for transactions of that alone."""
    if not batch or answer.refusal is None or answer.status != HTTPStatus.BAD_REQUEST:
        return answer
    error = json.loads(answer.body)["odata.error"]
    index = "" if answer.index is None else f"{answer.index}:"
    text = f"{index}{error['message']['value']}"
    return answer_in_parts([error_answer(answer.status, error["code"], text, index=answer.index)])


def inserted_key(asked: Incoming) -> EntityKey | None:
    """Return the key in the body of an insert; None while unread, or if a name occurs twice (the account
    might use the other value)."""
    try:
        names = [name for name, _ in json.loads(asked.content, object_pairs_hook=list)]
        key = key_of(row_of(asked.content))
    except (RekeyError, KeyError, ValueError, TypeError, RecursionError):
        return None
    is_text = isinstance(key.partition, str) and isinstance(key.row, str)
    return key if is_text and len(names) == len(set(names)) else None


def _confined(asked: Incoming, granted: Granted) -> Incoming:
    if granted.within is None or asked.kind is not ResourceKind.ROWS or not asked.is_read:
        return asked
    return replace(asked, query=confined(asked.query, granted.within))


def _under(answer: Answer, table: bytes, alias: bytes) -> Answer:
    parts = tuple(_under(part, table, alias) for part in answer.parts)
    return replace(answer, body=answer.body.replace(table, alias), parts=parts)


def response_of(reply: Reply, *, close: bool = False) -> web.Response:
    """Return a reply for aiohttp. `close` the connection if what comes next on it may not be a request."""
    response = web.Response(status=reply.status, body=reply.body)
    response.headers.clear()
    response.headers.extend(reply.headers)
    if close:
        response.force_close()
    return response
