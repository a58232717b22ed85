"""The policies that stand first in the SDK's pipeline: writes end here, reads go on to the service.

Rules kept here:

* A write never reaches the policies behind this one: no retry of the SDK repeats it, no transport sends it.
  The hooks a caller gave for it (`raw_request_hook`, `raw_response_hook`) are called here.
* A read goes on only after the lease allowed it, and counts as an operation until it is answered.
* Whatever decides something is a coroutine on the loop of the core; the synchronous policy only waits.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

from azure.core.exceptions import ServiceResponseTimeoutError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import AsyncHTTPPolicy, ContentDecodePolicy, CustomHookPolicy, HTTPPolicy
from azure.core.rest import AsyncHttpResponse, HttpRequest, HttpResponse

from rekey.client.sdk.answers import Answer, AsyncAnswer, SyncAnswer, answer_of, answer_to_problem
from rekey.client.sdk.calls import Call, Read, Table, Write, call_of
from rekey.client.sdk.errors import problem_of
from rekey.client.sdk.thread import LoopThread
from rekey.errors import RekeyError, RequestRejected
from rekey.protocol.permits import Permit
from rekey.tables.base import Operation

Decided = TypeVar("Decided", bound=Answer | None)
_JUDGED = (HTTPStatus.OK, HTTPStatus.NOT_FOUND)
_DECODE = ContentDecodePolicy(response_encoding="utf-8")


class Core(Protocol):
    """What the policies ask of the core. Everything but `shadows` runs on the core's loop."""

    @property
    def table(self) -> str:
        """The table of the client."""

    async def write(self, operations: Sequence[Operation]) -> list[str | None]:
        """Do one write, or a transaction; return the new ETags. Raises RekeyError."""

    def reading(self) -> AbstractAsyncContextManager[Permit]:
        """Hold the permit of one read. Raises RekeyError on entering."""

    async def deleting_table(self) -> None:
        """Raise RekeyError when the table must not be deleted."""

    def shadows(self) -> bool:
        """Draw whether this read is also done on the replica."""

    def shadow(self, read: Read, status: int, body: bytes) -> None:
        """Do a read that was answered on the replica too, some time."""


async def answer_to(core: Core, write: Write) -> Answer:
    """Hand a write to the core and return the answer. Raises AzureError when there is none to give."""
    if not write.operations:
        refused = RequestRejected("a transaction without operations", code="InvalidInput", status=400)
        return _refused(refused, core.table)
    try:
        etags = await core.write(write.operations)
    except RekeyError as error:
        return answer_to_problem(problem_of(error, core.table), batch=write.batch)
    except TimeoutError:
        raise ServiceResponseTimeoutError(
            "the write took longer than the longest operation; it may have been applied"
        ) from None
    return answer_of(write, etags)


async def refusal_to_delete(core: Core) -> Answer | None:
    """Return the answer to a request for deleting the table when it must not be; None when it may."""
    try:
        await core.deleting_table()
    except RekeyError as refused:
        return _refused(refused, core.table)
    return None


def _understood(request: HttpRequest, table: str) -> Call | Answer:
    """Return what a request asks for, or the answer to one that the service would refuse as it stands."""
    try:
        return call_of(request, table)
    except RequestRejected as refused:
        return _refused(refused, table)


def _refused(error: RekeyError, table: str) -> Answer:
    """Return the answer to a request that was refused as a whole."""
    return answer_to_problem(problem_of(error, table), batch=False)


class AsyncPolicy(AsyncHTTPPolicy[HttpRequest, AsyncHttpResponse]):
    """The policy of the asynchronous client."""

    def __init__(self, core: Core, hooks: CustomHookPolicy[Any, Any]) -> None:
        super().__init__()
        self._core = core
        self._hooks = hooks

    async def send(
        self, request: PipelineRequest[HttpRequest]
    ) -> PipelineResponse[HttpRequest, AsyncHttpResponse]:
        """Do a write, or send anything else on."""
        call = _understood(request.http_request, self._core.table)
        if isinstance(call, Read):
            return await self._read(request, call)
        answer = call if isinstance(call, Answer) else None
        if isinstance(call, Write):
            self._hooks.on_request(request)
            answer = await answer_to(self._core, call)
        elif call is Table.DELETE:
            answer = await refusal_to_delete(self._core)
        return self._answered(request, answer) if answer else await self.next.send(request)

    async def _read(
        self, request: PipelineRequest[HttpRequest], read: Read
    ) -> PipelineResponse[HttpRequest, AsyncHttpResponse]:
        try:
            async with self._core.reading():
                response = await self.next.send(request)
        except RekeyError as refused:
            return self._answered(request, _refused(refused, self._core.table))
        found = response.http_response
        if found.status_code in _JUDGED and self._core.shadows():
            self._core.shadow(read, found.status_code, found.content)
        return response

    def _answered(
        self, request: PipelineRequest[HttpRequest], answer: Answer
    ) -> PipelineResponse[HttpRequest, AsyncHttpResponse]:
        found = AsyncAnswer(request.http_request, answer)
        response: PipelineResponse[HttpRequest, AsyncHttpResponse] = PipelineResponse(
            request.http_request, found, request.context
        )
        _DECODE.on_response(request, response)
        self._hooks.on_response(request, response)
        return response


class SyncPolicy(HTTPPolicy[HttpRequest, HttpResponse]):
    """The policy of the synchronous client."""

    def __init__(self, core: Core, thread: LoopThread, hooks: CustomHookPolicy[Any, Any]) -> None:
        super().__init__()
        self._core = core
        self._thread = thread
        self._hooks = hooks

    def send(self, request: PipelineRequest[HttpRequest]) -> PipelineResponse[HttpRequest, HttpResponse]:
        """Do a write, or send anything else on."""
        call = _understood(request.http_request, self._core.table)
        if isinstance(call, Read):
            return self._read(request, call)
        answer = call if isinstance(call, Answer) else None
        if isinstance(call, Write):
            self._hooks.on_request(request)
            answer = self._ask(answer_to(self._core, call))
        elif call is Table.DELETE:
            answer = self._ask(refusal_to_delete(self._core))
        return self._answered(request, answer) if answer else self.next.send(request)

    def _ask(self, deciding: Coroutine[Any, Any, Decided]) -> Decided | Answer:
        try:
            return self._thread.run(deciding)
        except RekeyError as refused:  # closed, or left behind by a fork
            return _refused(refused, self._core.table)

    def _read(
        self, request: PipelineRequest[HttpRequest], read: Read
    ) -> PipelineResponse[HttpRequest, HttpResponse]:
        try:
            with self._thread.holding(self._core.reading):
                response = self.next.send(request)
        except RekeyError as refused:
            return self._answered(request, _refused(refused, self._core.table))
        found = response.http_response
        if found.status_code in _JUDGED and self._core.shadows():
            self._thread.post(self._core.shadow, read, found.status_code, found.content)
        return response

    def _answered(
        self, request: PipelineRequest[HttpRequest], answer: Answer
    ) -> PipelineResponse[HttpRequest, HttpResponse]:
        found = SyncAnswer(request.http_request, answer)
        response: PipelineResponse[HttpRequest, HttpResponse] = PipelineResponse(
            request.http_request, found, request.context
        )
        _DECODE.on_response(request, response)
        self._hooks.on_response(request, response)
        return response
