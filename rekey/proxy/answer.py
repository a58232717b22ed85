"""Responses as the Table service words them: headers, rows with the requested metadata, errors in JSON or
XML. An error has code and message, never an address, a key or a stack."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4
from xml.etree.ElementTree import Element, SubElement, tostring

import orjson

from rekey.client.sdk.answers import Answer, done_answer
from rekey.client.sdk.calls import Write
from rekey.core.edm import DATETIME
from rekey.model import ETAG, TIMESTAMP, TYPE_SUFFIX, Row
from rekey.proxy.batch import Batch, write_answers
from rekey.proxy.parse import Incoming
from rekey.tables.base import Operation, Verb
from rekey.tables.rules import written_form
from rekey.tables.wire import API_VERSION, entity_path, loads

_NO_CONTENT = "return-no-content"
_FULL, _NONE = "fullmetadata", "nometadata"
# Headers of every answer, and of every part of one.
_ALWAYS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
_TIME = re.compile(r"W/\"datetime'(?P<time>[0-9TZ%A.:-]+)'\"")
_LEVEL = re.compile(r"odata=(nometadata|minimalmetadata|fullmetadata)", re.IGNORECASE)
_TOLD = ("odata.metadata", "odata.id", "odata.type", "odata.editLink", "odata.nextLink", "TableName")
_ADDRESS = re.compile(r"https?://[^\s;,()]+")
_SCHEMA = "http://schemas.microsoft.com/ado/2007/08/dataservices/metadata"


@dataclass(frozen=True, slots=True)
class Reply:
    """A response."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes = field(default=b"", repr=False)


def is_atom(asked: Incoming) -> bool:
    """Tell whether a write is in Atom, or asks for it; only old versions of the service accept that."""
    formats = (asked.headers.get("content-type", ""), asked.headers.get("accept", ""))
    return any("atom+xml" in accepted.lower() and "json" not in accepted.lower() for accepted in formats)


def reply_to_write(
    asked: Incoming, write: Write, etags: Sequence[str | None], base: str, account: str, batch: Batch | None
) -> Reply:
    """Return the response to a successful write.

    Args:
        asked: the request.
        write: what it asked for.
        etags: the new ETags, in the operations' order.
        base: the address below which the client names tables.
        account: the account's name.
        batch: the transaction, if it is one.
    """
    requests = (asked,) if batch is None else batch.parts
    answers = [
        _as_service_answers(
            incoming, operation, done_answer(operation, etag, _preference(incoming)), base, account
        )
        for incoming, operation, etag in zip(requests, write.operations, etags, strict=True)
    ]
    answer = answers[0] if batch is None else Answer(HTTPStatus.ACCEPTED, parts=tuple(answers))
    return reply_of(asked.headers, answer, batch)


def reply_of(headers: Mapping[str, str], answer: Answer, batch: Batch | None = None) -> Reply:
    """Return a response to be sent: one of the writer, or an error. `headers`: the request's."""
    request_id = str(uuid4())
    common = {
        "Server": "rekey",
        "Date": formatdate(usegmt=True),
        "x-ms-request-id": request_id,
        "x-ms-version": headers.get("x-ms-version", API_VERSION),
        **_ALWAYS,
    }
    if "x-ms-client-request-id" in headers:
        common["x-ms-client-request-id"] = headers["x-ms-client-request-id"]
    if answer.status == HTTPStatus.ACCEPTED:
        ids = [part.headers.get("content-id", "") for part in batch.parts] if batch is not None else []
        parts = []
        for number, part in enumerate(answer.parts):
            done = _worded(part, request_id, "")
            # A failed one stands for the whole changeset and is identified by its index.
            own = {"Content-ID": ids[number]} if len(ids) == len(answer.parts) and ids[number] else {}
            part_headers = {**own, **_ALWAYS, "DataServiceVersion": "3.0;", **done.headers}
            parts.append((done.status, list(part_headers.items()), done.body))
        content_type, body = write_answers(parts)
        return Reply(answer.status, list({**common, "Content-Type": content_type}.items()), body)
    done = _worded(answer, request_id, headers.get("accept", "application/json"))
    return Reply(done.status, list({**common, **done.headers}.items()), done.body)


def _worded(answer: Answer, request_id: str, accept: str) -> Answer:
    """Return an error in the service's words and format; any other response unchanged."""
    if answer.status < HTTPStatus.BAD_REQUEST:
        return answer
    error = orjson.loads(answer.body)["odata.error"]
    code, text = error["code"], _ADDRESS.sub("the account", error["message"]["value"])
    if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
        # Whatever the reason for another attempt: this is what the SDKs' retries look for.
        text, code = f"The server is busy. {code}: {text}", "ServerBusy"
    text = f"{text}\nRequestId:{request_id}\nTime:{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    headers = {**answer.headers, "x-ms-error-code": code}
    if "xml" in accept and "json" not in accept:
        headers["Content-Type"] = "application/xml;charset=utf-8"
        document = Element("error", xmlns=_SCHEMA)
        SubElement(document, "code").text = code
        SubElement(document, "message", {"xml:lang": "en-US"}).text = text
        return replace(answer, headers=headers, body=tostring(document, "utf-8", xml_declaration=True))
    body = {"odata.error": {"code": code, "message": {"lang": "en-US", "value": text}}}
    return replace(answer, headers=headers, body=orjson.dumps(body))


def _preference(asked: Incoming) -> str:
    text = asked.headers.get("prefer", "").lower()
    return text if text in ("return-content", _NO_CONTENT) else ""


def _as_service_answers(
    asked: Incoming, operation: Operation, answer: Answer, base: str, account: str
) -> Answer:
    if operation.verb is not Verb.INSERT:
        prefers = _preference(asked) == _NO_CONTENT and operation.verb is not Verb.DELETE
        headers = {"Preference-Applied": _NO_CONTENT} if prefers else {}
        return replace(answer, headers={**answer.headers, **headers})
    path = entity_path(asked.table, operation.key).replace("%27", "'")  # as the service writes it
    headers = {**answer.headers, "Location": f"{base}/{path}"}
    if answer.status == HTTPStatus.NO_CONTENT:
        return replace(answer, headers={**headers, "DataServiceId": f"{base}/{path}"})
    match = _LEVEL.search(asked.headers.get("accept", ""))
    level = match[1].lower() if match else "minimalmetadata"
    headers["Content-Type"] = f"application/json;odata={level};streaming=true;charset=utf-8"
    row = _row(operation.row, answer.headers.get("ETag", ""), level, base, account, asked.table, path)
    return replace(answer, headers=headers, body=json.dumps(row).encode("ascii"))


def _row(row: Row, etag: str, level: str, base: str, account: str, table: str, path: str) -> dict[str, Any]:
    """Return a row as the service returns it right after the insert, in its stored form. The Timestamp is
    that in the ETag, if it has the service's form; else it is left out."""
    kept = written_form(row).row
    if level == _NONE:
        kept = {name: value for name, value in kept.items() if not name.endswith(TYPE_SUFFIX)}
    if match := _TIME.fullmatch(etag):
        kept |= {TIMESTAMP + TYPE_SUFFIX: DATETIME} if level == _FULL else {}
        kept[TIMESTAMP] = unquote(match["time"])
    if level == _NONE:
        return kept
    members = {"odata.metadata": f"{base}/$metadata#{table}/@Element", ETAG: etag}
    if level == _FULL:
        members |= {"odata.type": f"{account}.{table}", "odata.id": f"{base}/{path}", "odata.editLink": path}
    return {**members, **kept}


# --- addresses -----------------------------------------------------------------------------------------


_PLACES = ("location", "dataserviceid", "content-location")
_ORIGIN = r"https?:\\?/\\?/[^/\\\"<>\s]+"
_METADATA = r"\"odata\.(?:metadata|id|nextLink|editLink|readLink)\"\s*:\s*\""
_IN_HEADERS = r"^(?:Location|DataServiceId|Content-Location):[ \t]*"
_IN_XML = r"<[^<>]*\sxml:base=\"|<id>|<link\s[^<>]*href=\""


class Readdressing:
    """Rewrites the addresses in a response to those that the application uses: one that follows an address of
    the account itself would bypass the replicas. No value of a row is touched: inside a JSON value quotation
    marks and line ends are escaped; in Atom "<" is, and a property is an element of another name."""

    def __init__(self, endpoint: str, base: str) -> None:
        """Take the account's endpoint, and the address below which the application names tables."""
        origin = f"{_ORIGIN}(?:{re.escape(urlsplit(endpoint).path.rstrip('/'))})?"
        self._address = re.compile(f"^{origin}(?=[/?#]|$)")
        self._json = re.compile(f"({_METADATA}){origin}".encode())
        self._parts = re.compile(f"(?im)({_IN_HEADERS}|{_METADATA}|{_IN_XML}){origin}".encode())
        self._xml = re.compile(f"({_IN_XML}){origin}".encode())
        self._base = base

    def headers(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        return [
            (name, self._address.sub(lambda _: self._base, value) if name.lower() in _PLACES else value)
            for name, value in headers
        ]

    def body(self, body: bytes, content_type: str) -> bytes:
        form = content_type.lower()
        places = self._parts if form.startswith("multipart/") else self._json if "json" in form else self._xml
        return places.sub(lambda match: match[1] + self._base.encode(), body)


# --- aliases -------------------------------------------------------------------------------------------


class Renaming:
    """Puts the application's name for a table into metadata, links and headers, not into keys or values."""

    def __init__(self, table: str, alias: str) -> None:
        self._name = re.compile(rf"(^|[/#.]|Tables\('){re.escape(table)}(?=$|[/(@']|%28)", re.IGNORECASE)
        self._line = re.compile(rb"(?im)^(?:Location|DataServiceId): [^\r\n]+")
        self._metadata = re.compile(rb'"odata\.metadata":"[^"]+"')
        self._alias = alias

    def text(self, value: str) -> str:
        """Return a value that names the table, renamed."""
        return self._name.sub(lambda match: match[1] + self._alias, value, count=1)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {
            name: self.text(value) if name.lower() in _PLACES else value for name, value in headers.items()
        }

    def body(self, body: bytes, content_type: str) -> bytes:
        if content_type.startswith("multipart/"):

            def within(match: re.Match[bytes]) -> bytes:
                return self.text(match[0].decode()).encode()

            return self._metadata.sub(within, self._line.sub(within, body))
        if "json" not in content_type or _NONE in content_type:
            return body
        try:
            document = loads(body)
        except ValueError:
            return body
        rows = document.get("value", ()) if isinstance(document, dict) else ()
        for entity in (document, *rows):
            for name in _TOLD:
                if isinstance(entity, dict) and isinstance(entity.get(name), str):
                    entity[name] = self.text(entity[name])
        return json.dumps(document, separators=(",", ":")).encode("ascii")
