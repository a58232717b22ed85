"""Answers to writes, as responses of azure-core. Status, headers and body are those of the table service, so
that the SDK's own code makes return values and exceptions of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from azure.core.exceptions import HttpResponseError
from azure.core.rest import AsyncHttpResponse, HttpRequest, HttpResponse
from azure.core.utils import case_insensitive_dict

from rekey.client.sdk.calls import Write
from rekey.errors import RekeyError
from rekey.model import ETAG
from rekey.tables.base import Operation, Verb

_JSON = "application/json;odata=minimalmetadata;streaming=true;charset=utf-8"
_RETURN_CONTENT = "return-content"
_RETURN_NO_CONTENT = "return-no-content"
_RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. `parts`: of a transaction; `refusal`: set when rekey refuses, for the client to raise."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    parts: tuple[Answer, ...] = ()
    refusal: RekeyError | None = None
    index: int | None = None


def answer_of(write: Write, etags: Sequence[str | None]) -> Answer:
    """Return the answer to a write that was done, with the new ETags in the operations' order."""
    parts = [
        done_answer(operation, etag, write.prefer)
        for operation, etag in zip(write.operations, etags, strict=True)
    ]
    return answer_in_parts(parts) if write.batch else parts[0]


def answer_in_parts(parts: Sequence[Answer]) -> Answer:
    """Return the answer to a transaction, made of the answers to its operations."""
    return Answer(HTTPStatus.ACCEPTED, parts=tuple(parts))


def error_answer(
    status: int, code: str, message: str, *, index: int | None = None, refusal: RekeyError | None = None
) -> Answer:
    """Return the answer to a request that failed.

    Args:
        status, code, message: as the service words them.
        index: of the failing operation of a transaction, None when unknown.
        refusal: set when rekey refuses the request, and not the service.
    """
    body = {"odata.error": {"code": code, "message": {"lang": "en-US", "value": message}}}
    headers = {"Content-Type": _JSON, "x-ms-error-code": code}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(_RETRY_AFTER_S)
    return Answer(status, headers, json.dumps(body).encode("ascii"), refusal=refusal, index=index)


def done_answer(operation: Operation, etag: str | None, prefer: str) -> Answer:
    """Return the answer to one operation that was done. `etag`: the row's new one, None after a delete;
    `prefer`: the `Prefer` header."""
    headers = {} if etag is None else {"ETag": etag}
    if operation.verb is not Verb.INSERT:
        return Answer(HTTPStatus.NO_CONTENT, headers)
    if prefer:
        headers["Preference-Applied"] = prefer
    if prefer == _RETURN_NO_CONTENT:
        return Answer(HTTPStatus.NO_CONTENT, headers)
    body = json.dumps({**operation.row, ETAG: etag}).encode("ascii") if prefer == _RETURN_CONTENT else b""
    return Answer(HTTPStatus.CREATED, {**headers, "Content-Type": _JSON}, body)


class _Answer:
    """The common part of both responses: azure-core's interface over a body in memory."""

    is_closed = is_stream_consumed = True
    encoding: str | None = "utf-8"
    content_type: str | None = None
    status_code, reason, url, content = 0, "", "", b""
    request: Any = None
    headers: MutableMapping[str, str] = case_insensitive_dict()

    def __init__(self, request: HttpRequest, answer: Answer) -> None:
        self.request = request
        self.answer = answer
        self.status_code, self.url, self.content = int(answer.status), request.url, answer.body
        self.reason = HTTPStatus(answer.status).phrase
        self.content_type = answer.headers.get("Content-Type")
        self.headers = case_insensitive_dict(
            {
                "Date": formatdate(usegmt=True),
                "x-ms-version": request.headers.get("x-ms-version", ""),
                "x-ms-request-id": str(uuid4()),
                **answer.headers,
            }
        )
        client_request_id = request.headers.get("x-ms-client-request-id")
        if client_request_id is not None:
            self.headers["x-ms-client-request-id"] = client_request_id

    def raise_for_status(self) -> None:
        """Raise HttpResponseError for an error status."""
        response: Any = self
        if self.status_code >= HTTPStatus.BAD_REQUEST:
            raise HttpResponseError(response=response)

    def body(self) -> bytes:
        return self.content

    def text(self, encoding: str | None = None) -> str:
        return self.content.decode(encoding or "utf-8")

    def json(self) -> Any:
        return json.loads(self.content)


class SyncAnswer(_Answer, HttpResponse):
    """An answer in the synchronous pipeline."""

    def parts(self) -> Iterator[SyncAnswer]:
        return iter([SyncAnswer(self.request, part) for part in self.answer.parts])

    def read(self) -> bytes:
        return self.content

    def iter_raw(self, **_kwargs: Any) -> Iterator[bytes]:
        return iter([self.content])

    iter_bytes = iter_raw

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> SyncAnswer:
        return self

    def __exit__(self, *_args: object) -> None:
        pass


class AsyncAnswer(_Answer, AsyncHttpResponse):
    """An answer in the asynchronous pipeline."""

    async def parts(self) -> AsyncIterator[AsyncAnswer]:
        for part in self.answer.parts:
            yield AsyncAnswer(self.request, part)

    async def read(self) -> bytes:
        return self.content

    async def iter_raw(self, **_kwargs: Any) -> AsyncIterator[bytes]:
        yield self.content

    iter_bytes = iter_raw

    async def close(self) -> None:
        """Do nothing."""

    async def __aexit__(self, *_args: object) -> None:
        pass
