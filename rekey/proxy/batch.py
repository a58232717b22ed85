"""Bodies of `$batch`, read strictly and written anew. Source: "Performing entity group transactions" in the
Azure documentation. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TypeAlias
from uuid import uuid4

from rekey.errors import RequestRejected
from rekey.proxy.parse import MAX_HEADERS, Incoming, ResourceKind, inner_target, parse, read_headers
from rekey.tables.base import MAX_BATCH_OPERATIONS, rejected

_BOUNDARY = re.compile(
    r'multipart/mixed\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,100})"|([^\s;"]{1,100}))\s*(?:;.*)?', re.IGNORECASE
)
_BLANK = re.compile(rb"\r?\n\r?\n|\A\r?\n")
_LINE = re.compile(rb"\r?\n")
_REQUEST = re.compile(r"([A-Z]{1,32}) (\S{1,32768}) HTTP/1\.[01]")
_WITHIN = (ResourceKind.ROWS, ResourceKind.ROW)
_HEAD = ("Content-Type: application/http", "Content-Transfer-Encoding: binary")
# First line, headers and body of a request or a response.
_Part: TypeAlias = tuple[str, Iterable[tuple[str, str]], bytes]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch: one changeset, or one query."""

    parts: tuple[Incoming, ...]  # the operations of its changeset; or the one query
    is_query: bool  # whether it is a query

    @property
    def table(self) -> str:
        """The table that all parts name, in the first one's spelling; "" without parts."""
        return self.parts[0].table if self.parts else ""


def read_batch(asked: Incoming, account: str) -> Batch:
    """Return the content of a `$batch` request. Called before the account has verified a bearer token, so
    parts and headers are counted before they are parsed. Raises RequestRejected for what the service would
    refuse."""
    parts = _parts(asked.content, asked.headers.get("content-type", ""), 1)
    if len(parts) != 1:
        raise _invalid("a batch has one changeset, or one query")
    headers, content = _head(parts[0])
    is_query = not headers.get("content-type", "").lower().startswith("multipart/")
    inner = [(headers, content)]
    if not is_query:
        operations = _parts(content, headers.get("content-type", ""), MAX_BATCH_OPERATIONS)
        if len(operations) > MAX_BATCH_OPERATIONS:
            text = "The batch request operation exceeds the maximum 100 changes per change set."
            raise rejected("InvalidInput", text, MAX_BATCH_OPERATIONS - 1)  # the service's index
        inner = [_head(part) for part in operations]
    messages = [_request(headers, content, account) for headers, content in inner]
    for incoming in messages:
        if incoming.is_read is not is_query:
            raise _invalid("a changeset has writes alone, and a query stands alone")
        if is_query and incoming.content:  # it could contain another request line
            raise _invalid("a query has no body")
        if incoming.table.lower() != messages[0].table.lower():
            raise rejected("CommandsInBatchActOnDifferentPartitions", "all commands must name one table")
    return Batch(tuple(messages), is_query)


def write_batch(batch: Batch, address: Callable[[Incoming], str]) -> tuple[str, bytes]:
    """Return Content-Type and body of a batch for the account. It is written anew from what was read, so that
    the account cannot read it differently; `address` returns a part's address upstream."""
    mark, parts = uuid4().hex, list[_Part]()
    for part in batch.parts:
        length = {"content-length": str(len(part.content))} if part.content else {}
        line = f"{part.sent_method} {address(part)} HTTP/1.1"
        parts.append((line, {**part.headers, **length}.items(), part.content))
    outer = f"batch_{mark}"
    return _multipart(outer, outer if batch.is_query else f"changeset_{mark}", parts)


def write_answers(answers: Iterable[tuple[int, Sequence[tuple[str, str]], bytes]]) -> tuple[str, bytes]:
    """Return Content-Type and body of the response to a changeset; `answers`: status, headers, body."""
    mark = uuid4()
    parts = [
        (f"HTTP/1.1 {int(status)} {HTTPStatus(status).phrase}", headers, body)
        for status, headers, body in answers
    ]
    return _multipart(f"batchresponse_{mark}", f"changesetresponse_{mark}", parts)


def _multipart(outer: str, inner: str, parts: Iterable[_Part]) -> tuple[str, bytes]:
    """Return Content-Type and body of requests or responses. `outer` is the boundary, `inner` that of their
    changeset or `outer` again."""
    written: list[bytes] = []
    if inner != outer:
        written.append(f"--{outer}\r\nContent-Type: multipart/mixed; boundary={inner}\r\n".encode())
    for line, headers, body in parts:
        head = [f"--{inner}", *_HEAD, "", line, *(f"{name}: {value}" for name, value in headers), ""]
        written += ["\r\n".join(head).encode(), body]
    ends = [f"--{boundary}--".encode() for boundary in dict.fromkeys((inner, outer))]
    return f"multipart/mixed; boundary={outer}", b"\r\n".join([*written, *ends, b""])


def _parts(body: bytes, content_type: str, most: int) -> list[bytes]:
    """Return the parts of a multipart body, at most one more than `most`. Boundaries are whole lines, ended
    by CRLF or, as some clients write them, LF."""
    match = _BOUNDARY.fullmatch(content_type.strip())
    if match is None:
        raise _invalid("the content type names no boundary")
    mark = re.escape((match[1] or match[2]).encode())
    pieces = re.split(rb"(?:\A|\r?\n)--" + mark + rb"(--)?[ \t]*(?=\r?\n|\Z)", body, maxsplit=most + 2)
    if len(pieces) == 2 * (most + 2) + 1:
        return pieces[2 : 2 * (most + 2) : 2]
    # The preamble; then alternately whether a boundary is the last one, and what follows it.
    closed, parts = [end is not None for end in pieces[1::2]], pieces[2::2]
    if sum(closed) != 1 or not closed[-1]:
        raise _invalid("the parts are not closed by their boundary")
    return [_LINE.sub(b"", part, count=1) for part in parts[:-1]]


def _head(part: bytes) -> tuple[dict[str, str], bytes]:
    match = _BLANK.search(part)
    if match is None:
        raise _invalid("a part has no end of its headers")
    return _headers(part[: match.start()]), part[match.end() :]


def _headers(lines: bytes) -> dict[str, str]:
    pairs = []
    for line in _LINE.split(lines, MAX_HEADERS) if lines else ():
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise _invalid("a header has no colon")
        pairs.append((name, value))
    return read_headers(pairs)


def _request(part: dict[str, str], content: bytes, account: str) -> Incoming:
    """Return the request in a part. Like the service (recordings), ignore the part's own Content-ID."""
    if not part.get("content-type", "").lower().startswith("application/http"):
        raise _invalid("a part is no application/http")
    line, _, rest = content.partition(b"\n")
    match = _REQUEST.fullmatch(line.rstrip(b"\r").decode("latin-1"))
    if match is None:
        raise _invalid("a part begins with no request line")
    headers, body = _head(rest) if _BLANK.search(rest) else (_headers(rest.strip()), b"")
    asked = parse(match[1], inner_target(match[2]), headers.items(), account)
    if asked.kind not in _WITHIN:
        raise _invalid("a batch has operations on rows alone")
    return replace(asked, content=body.strip())


def _invalid(what: str) -> RequestRejected:
    return rejected("InvalidInput", what)
