"""What a request asks for: a write, a read, or something about the table itself. The request is read, never
the caller's arguments, so that the SDK's treatment of types, None, conditions and modes applies. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from rekey.client.sdk.filters import keys_asked
from rekey.core.edm import STRING
from rekey.core.key_space import KeySpace
from rekey.errors import RequestRejected
from rekey.model import PARTITION_KEY, ROW_KEY, TYPE_SUFFIX, EntityKey, Row, content_of
from rekey.tables.base import MAX_BATCH_BYTES, Operation, Verb, rejected
from rekey.tables.wire import loads

if TYPE_CHECKING:
    from azure.core.rest import HttpRequest

# Possessive: what matched is not tried anew, which would take some 200 bytes of memory for each character.
_LITERAL = "'([^']*+(?:''[^']*+)*+)'"
# The two keys may come in either order (OData 3.0, "Key Predicate": pairs of names and values).
_ENTITY = re.compile(
    rf"(?P<table>[^('?]+)"
    rf"\((?:PartitionKey={_LITERAL}, ?RowKey={_LITERAL}|RowKey={_LITERAL}, ?PartitionKey={_LITERAL})\)"
)
_ETAG = re.compile(r'\*|[wW]/"[^"]*"')
_TABLE = re.compile(r"Tables\('[^']*'\)")
# Method to verb: with a condition, and without.
_UPDATES = {
    "PUT": (Verb.REPLACE, Verb.INSERT_OR_REPLACE),
    "PATCH": (Verb.MERGE, Verb.INSERT_OR_MERGE),
    "MERGE": (Verb.MERGE, Verb.INSERT_OR_MERGE),
}


class Message(Protocol):
    """A request: the SDK's, or one that the proxy has read."""

    @property
    def method(self) -> str:
        """The HTTP method."""

    @property
    def url(self) -> str:
        """The address; the resource is the last segment of its path."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; looked up in lower case."""

    @property
    def content(self) -> Any:
        """The body: text, bytes, or None."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write, or a transaction.

    Attributes:
        operations: none for a transaction without operations.
        batch: whether it came as a transaction, and must be answered as one.
        prefer: the `Prefer` header: `return-content`, `return-no-content` or "".
    """

    operations: tuple[Operation, ...]
    batch: bool = False
    prefer: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """A read: of one row (`key`), or a page of a query. `partial`: properties were selected; `asked`: the
    keys that the query can return, None for any."""

    key: EntityKey | None = field(default=None, repr=False)
    partial: bool = False
    asked: KeySpace | None = field(default=None, repr=False)


class Table(StrEnum):
    """A request about the table itself."""

    CREATE = "create"
    DELETE = "delete"
    POLICY = "policy"


Call: TypeAlias = Write | Read | Table


def call_of(request: HttpRequest, table: str) -> Call:
    """Return what a request of the SDK asks for; as `call_in`."""
    parts = getattr(request, "multipart_mixed_info", None)
    is_batch = urlsplit(request.url).path.endswith("/$batch")
    return call_in(request, table, _changes(parts) if parts and is_batch else None)


def call_in(request: Message, table: str, changes: Sequence[Message] | None = None) -> Call:
    """Return what a request asks for. `changes`: the requests of a transaction.

    Raises:
        RequestRejected: the service would refuse the request (a row without a key).
        ValueError: the request is for another table, or of a kind no `TableClient` makes. It is never sent on
            as if it were a read.
    """
    address, resource = urlsplit(request.url), _resource(request)
    query = parse_qs(address.query)
    # The service checks this before it looks at a row.
    if (
        sum(len(message.content or "") for message in ([request] if changes is None else changes))
        > MAX_BATCH_BYTES
    ):
        raise rejected("RequestBodyTooLarge", "the request has more than 4 MiB", status=413)
    if changes is not None:
        return Write(tuple(_operations(changes, table)), batch=True)
    if "acl" in query.get("comp", ()):
        return Table.POLICY
    if resource == "Tables" and request.method == "POST":
        return Table.CREATE
    if _TABLE.fullmatch(resource) and request.method == "DELETE":
        return Table.DELETE
    if request.method in ("GET", "HEAD"):
        match = _ENTITY.fullmatch(resource)
        _check_table(match["table"] if match else resource.removesuffix("()"), table)
        if match:
            return Read(_key(match), partial="$select" in query)
        conditions = query.get("$filter", ())
        # Of two filters it is not known which the service takes.
        asked = keys_asked(conditions[0]) if len(conditions) == 1 else None
        return Read(None, partial="$select" in query, asked=asked)
    return Write((_operation(request, table),), prefer=request.headers.get("prefer", ""))


def key_in(resource: str) -> tuple[str, EntityKey] | None:
    """Return table and key of a decoded resource that names one row, None for any other."""
    match = _ENTITY.fullmatch(resource)
    return None if match is None else (match["table"], _key(match))


def row_of(body: Any) -> Row:
    """Return the wire row of a request's body."""
    try:
        sent: Row = content_of(loads(body))
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise rejected("InvalidInput", "the body is no JSON object") from None
    # Without nulls, which the service does not keep, and annotations that only repeat the JSON type.
    row = {name: value for name, value in sent.items() if value is not None}
    for annotation in [name for name in row if name.endswith(TYPE_SUFFIX)]:
        value = sent.get(annotation.removesuffix(TYPE_SUFFIX))
        if value is None or (row[annotation] == STRING and isinstance(value, str)):
            del row[annotation]
    return row


def _changes(parts: Sequence[Any]) -> Sequence[HttpRequest]:
    """Return the requests of a transaction: those of the one changeset that the SDK puts into it."""
    requests: Sequence[Any] = parts[0]
    if len(requests) == 1 and getattr(requests[0], "multipart_mixed_info", None):
        inner: Sequence[HttpRequest] = requests[0].multipart_mixed_info[0]
        return inner
    return [] if len(requests) == 1 and not requests[0].url else requests


def _operations(changes: Sequence[Message], table: str) -> Iterator[Operation]:
    for index, message in enumerate(changes):
        try:
            yield _operation(message, table)
        except RequestRejected as refused:
            refused.index = index if len(changes) > 1 else None
            raise


def _operation(request: Message, table: str) -> Operation:
    resource, headers = _resource(request), request.headers
    method = headers.get("x-http-method", request.method).upper()
    match = _ENTITY.fullmatch(resource)
    if match is None:
        if method != "POST":
            raise ValueError(f"a {method} request that no TableClient makes")
        _check_table(resource.removesuffix("()"), table)
        row = row_of(request.content)
        for name in (PARTITION_KEY, ROW_KEY):
            if name not in row:
                raise rejected("PropertiesNeedValue", "the entity has no key")
            if not isinstance(row[name], str):
                raise rejected("InvalidInput", "a key is not text")
        return Operation(Verb.INSERT, row)
    _check_table(match["table"], table)
    key = _key(match)
    etag = headers.get("if-match")
    # Refused before any row is looked at (recorded by azure-storage-go's TestDelete; "weak" as Azurite, which
    # names parity with Azure).
    if etag is not None and not _ETAG.fullmatch(etag):
        raise rejected("InvalidInput", "If-Match is no ETag")
    place: Row = {PARTITION_KEY: key.partition, ROW_KEY: key.row}
    if method == "DELETE":
        return Operation(Verb.DELETE, place, etag or "*")
    if method not in _UPDATES:
        raise ValueError(f"a {method} request that no TableClient makes")
    conditional, unconditional = _UPDATES[method]
    row = {**row_of(request.content), **place}
    return Operation(unconditional, row) if etag is None else Operation(conditional, row, etag)


def _resource(request: Message) -> str:
    return unquote(urlsplit(request.url).path.rpartition("/")[2])


def _key(match: re.Match[str]) -> EntityKey:
    _, *parts = match.groups()
    partition, row = parts[:2] if parts[0] is not None else (parts[3], parts[2])
    return EntityKey(partition.replace("''", "'"), row.replace("''", "'"))


def _check_table(asked: str, table: str) -> None:
    if asked.lower() != table.lower():
        raise ValueError(f"this client writes to and reads from {table} alone")
