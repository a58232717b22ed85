"""Tokens of an identity: requested, kept and renewed by azure-core's policy alone. Imported only where an
identity signs: azure-core takes a tenth of a command's start time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

from azure.core.credentials_async import AsyncTokenCredential
from azure.core.pipeline import PipelineContext, PipelineRequest, PipelineResponse, policies
from azure.core.pipeline.transport import HttpRequest


class BearerToken(policies.AsyncBearerTokenCredentialPolicy[HttpRequest, Any]):
    """azure-core's token policy alone: it requests a token, keeps it, and answers a challenge."""

    def __init__(self, credential: AsyncTokenCredential, scope: str) -> None:
        super().__init__(credential, scope)
        self.next = _Exchanging()

    async def exchange(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str],
        exchange: Callable[[str, Mapping[str, str]], Awaitable[Any]],
    ) -> Any:
        """Give a request a token and let `exchange` carry it out; return its answer. Raises AzureError."""
        message = HttpRequest(method, address, dict(headers))
        ran = await self.send(PipelineRequest(message, PipelineContext(None, exchange=exchange)))
        return ran.http_response.answer

    @property
    def expires_on(self) -> int | None:
        """The token's expiry, in seconds since the Unix epoch; None before the first token."""
        return None if self._token is None else int(self._token.expires_on)


class _Exchanging(policies.AsyncHTTPPolicy[HttpRequest, Any]):
    """The end of that pipeline: the exchange of one attempt."""

    async def send(self, request: PipelineRequest[HttpRequest]) -> PipelineResponse[HttpRequest, Any]:
        message = request.http_request
        answer = await request.context.options["exchange"](message.url, message.headers)
        shown = SimpleNamespace(status_code=answer.status, headers=answer.headers, answer=answer)
        return PipelineResponse(message, shown, request.context)
