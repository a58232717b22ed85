"""The policies that come first in the SDK's pipeline: writes end here, reads go on to the service. Decisions
are made in coroutines on the core's loop; the synchronous policy only waits."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import AsyncHTTPPolicy, ContentDecodePolicy, CustomHookPolicy, HTTPPolicy
from azure.core.rest import AsyncHttpResponse, HttpRequest, HttpResponse

from rekey.client.abandoned import to_its_end
from rekey.client.sdk.answers import Answer, AsyncAnswer, SyncAnswer, answer_of
from rekey.client.sdk.calls import Call, Read, Table, Write, call_of
from rekey.client.sdk.errors import OutcomeOpen, answer_to_error
from rekey.client.sdk.router import Carrier
from rekey.client.sdk.thread import LoopThread
from rekey.core.limits import own_name
from rekey.errors import RekeyError, RequestRejected

R = TypeVar("R", HttpResponse, AsyncHttpResponse)
_JUDGED = (HTTPStatus.OK, HTTPStatus.NOT_FOUND)
_DECODE = ContentDecodePolicy(response_encoding="utf-8")


class _Policy:
    """The common part of both policies: what a request asks for, and how it is answered."""

    def __init__(self, core: Carrier, hooks: CustomHookPolicy[Any, Any]) -> None:
        super().__init__()
        self._core = core
        self._hooks = hooks

    def _understood(self, request: PipelineRequest[HttpRequest]) -> Call | Answer | None:
        """Return what a request asks for; None for one that goes on unchanged; or the answer to one that the
        service would refuse."""
        try:
            call = call_of(request.http_request, own_name(self._core.table))
        except RequestRejected as refused:
            batch = bool(getattr(request.http_request, "multipart_mixed_info", None))
            return answer_to_error(refused, self._core.table, batch=batch)
        if isinstance(call, Write):
            # A write never reaches the later policies, so that no retry of the SDK repeats it: the caller's
            # hooks are called here.
            self._hooks.on_request(request)
        return None if call in (Table.CREATE, Table.POLICY) else call

    async def _answer_to(self, call: Write | Table) -> Answer | None:
        """Hand a write to the core and return the answer; for a deletion of the table, return the answer that
        refuses it, None if it may go on. Raises AzureError when no answer can be given."""
        try:
            if isinstance(call, Table):
                await self._core.deleting_table()
                return None
            if not call.operations:
                empty = RequestRejected("a transaction without operations", code="InvalidInput", status=400)
                return answer_to_error(empty, self._core.table)
            return answer_of(call, await to_its_end(self._core.write(call.operations)))
        except RekeyError as error:
            return answer_to_error(error, self._core.table, batch=isinstance(call, Write) and call.batch)
        except TimeoutError:
            raise OutcomeOpen(
                "the write took longer than the longest operation; it may have been applied"
            ) from None

    def _answered(
        self, request: PipelineRequest[HttpRequest], http_response: R
    ) -> PipelineResponse[HttpRequest, R]:
        response: PipelineResponse[HttpRequest, R] = PipelineResponse(
            request.http_request, http_response, request.context
        )
        _DECODE.on_response(request, response)
        self._hooks.on_response(request, response)
        return response


class AsyncPolicy(_Policy, AsyncHTTPPolicy[HttpRequest, AsyncHttpResponse]):
    """The policy of the asynchronous client."""

    async def send(
        self, request: PipelineRequest[HttpRequest]
    ) -> PipelineResponse[HttpRequest, AsyncHttpResponse]:
        call = self._understood(request)
        if isinstance(call, Read):
            try:
                async with self._core.reading(call.key, call.asked):
                    response = await self.next.send(request)
            except RekeyError as refused:
                call = answer_to_error(refused, self._core.table)
            else:
                answer = response.http_response
                if answer.status_code in _JUDGED and self._core.shadows():
                    self._core.shadow(call, answer.status_code, answer.content)
                return response
        if isinstance(call, Write | Table):
            call = await self._answer_to(call)
        if call is None:
            return await self.next.send(request)
        return self._answered(request, AsyncAnswer(request.http_request, call))


class SyncPolicy(_Policy, HTTPPolicy[HttpRequest, HttpResponse]):
    """The policy of the synchronous client."""

    def __init__(self, core: Carrier, thread: LoopThread, hooks: CustomHookPolicy[Any, Any]) -> None:
        super().__init__(core, hooks)
        self._thread = thread

    def send(self, request: PipelineRequest[HttpRequest]) -> PipelineResponse[HttpRequest, HttpResponse]:
        call = self._understood(request)
        if isinstance(call, Read):
            try:
                with self._thread.holding(partial(self._core.reading, call.key, call.asked)):
                    response = self.next.send(request)
            except RekeyError as refused:
                call = answer_to_error(refused, self._core.table)
            else:
                answer = response.http_response
                if answer.status_code in _JUDGED and self._core.shadows():
                    self._thread.post(self._core.shadow, call, answer.status_code, answer.content)
                return response
        if isinstance(call, Write | Table):
            try:
                call = self._thread.run(self._answer_to(call))
            except RekeyError as refused:  # closed, or left behind by a fork
                call = answer_to_error(refused, self._core.table)
        if call is None:
            return self.next.send(request)
        return self._answered(request, SyncAnswer(request.http_request, call))
