"""What a request of the SDK asks for: a write, a read, or something about the table itself. Pure.

Rules kept here:

* The request is read, never the caller's arguments: the SDK's treatment of types, None, conditions and modes
  applies. The keys are those of the address, as for the service.
* A row is the JSON that would have been sent, without the annotations that only repeat the type of the JSON
  value (`Edm.String` of a string) and without nulls, which the service does not keep.
* A request that is not understood is an error; it is never sent on as if it were a read.
* The service refuses before it looks at a row: more than 4 MiB (413), and an If-Match that is no weak ETag
  (400, recorded by azure-storage-go's TestDelete; "weak" as Azurite, which names parity with Azure).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from azure.core.rest import HttpRequest

from rekey.core.edm import STRING
from rekey.errors import RequestRejected
from rekey.model import PARTITION_KEY, ROW_KEY, TYPE_SUFFIX, EntityKey, Row, content_of
from rekey.tables.base import MAX_BATCH_BYTES, Operation, Verb, rejected

_ENTITY = re.compile(r"(?P<table>[^(]+)\(PartitionKey='(?P<partition>[^']*)',RowKey='(?P<row>[^']*)'\)")
_ETAG = re.compile(r'\*|[wW]/"[^"]*"')
_TABLE = re.compile(r"Tables\('[^']*'\)")
_UPDATES = {
    "PUT": (Verb.REPLACE, Verb.INSERT_OR_REPLACE),
    "PATCH": (Verb.MERGE, Verb.INSERT_OR_MERGE),
    "MERGE": (Verb.MERGE, Verb.INSERT_OR_MERGE),
}
"""Method to verb: with a condition, and without."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write, or a transaction.

    Attributes:
        operations: what to do; none for a transaction without operations.
        batch: whether it came as a transaction, and must be answered as one.
        prefer: the `Prefer` header: `return-content`, `return-no-content` or "".
    """

    operations: tuple[Operation, ...]
    batch: bool = False
    prefer: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """A read: of one row (`key`), or a page of a query. `partial` tells that properties were selected."""

    key: EntityKey | None = field(default=None, repr=False)
    partial: bool = False


class Table(StrEnum):
    """A request about the table itself."""

    CREATE = "create"
    DELETE = "delete"
    POLICY = "policy"


Call: TypeAlias = Write | Read | Table


def call_of(request: HttpRequest, table: str) -> Call:
    """Return what a request asks for.

    Args:
        request: as the SDK made it.
        table: the table of the client.

    Raises:
        RequestRejected: the service would refuse the request (a row without a key).
        ValueError: the request is for another table, or of a kind no `TableClient` makes.
    """
    address = urlsplit(request.url)
    resource = address.path.rpartition("/")[2]
    query = parse_qs(address.query)
    parts = getattr(request, "multipart_mixed_info", None)
    changes = _changes(parts) if resource == "$batch" and parts else None
    if sum(len(one.content or "") for one in ([request] if changes is None else changes)) > MAX_BATCH_BYTES:
        raise rejected("RequestBodyTooLarge", "the request has more than 4 MiB", status=413)
    if changes is not None:
        return Write(tuple(_operations(changes, table)), batch=True)
    if "acl" in query.get("comp", ()):
        return Table.POLICY
    if resource == "Tables" and request.method == "POST":
        return Table.CREATE
    if _TABLE.fullmatch(unquote(resource)) and request.method == "DELETE":
        return Table.DELETE
    if request.method in ("GET", "HEAD"):
        found = _ENTITY.fullmatch(resource)
        _check_table(found["table"] if found else resource.removesuffix("()"), table)
        return Read(_key(found) if found else None, partial="$select" in query)
    return Write((_operation(request, table),), prefer=request.headers.get("Prefer", ""))


def row_of(body: Any) -> Row:
    """Return the wire row of a request's body."""
    sent: Row = content_of(json.loads(body))
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


def _operations(changes: Sequence[HttpRequest], table: str) -> Iterator[Operation]:
    for index, one in enumerate(changes):
        try:
            yield _operation(one, table)
        except RequestRejected as refused:
            refused.index = index if len(changes) > 1 else None
            raise


def _operation(request: HttpRequest, table: str) -> Operation:
    resource = urlsplit(request.url).path.rpartition("/")[2]
    headers: Mapping[str, str] = request.headers
    method = headers.get("X-HTTP-Method", request.method).upper()
    found = _ENTITY.fullmatch(resource)
    if found is None:
        if method != "POST":
            raise ValueError(f"a {method} request that no TableClient makes")
        _check_table(resource, table)
        row = row_of(request.content)
        for name in (PARTITION_KEY, ROW_KEY):
            if name not in row:
                raise rejected("PropertiesNeedValue", "the entity has no key")
            if not isinstance(row[name], str):
                raise rejected("InvalidInput", "a key is not text")
        return Operation(Verb.INSERT, row)
    _check_table(found["table"], table)
    key = _key(found)
    etag = headers.get("If-Match")
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


def _key(found: re.Match[str]) -> EntityKey:
    return EntityKey(*(unquote(found[name]).replace("''", "'") for name in ("partition", "row")))


def _check_table(asked: str, table: str) -> None:
    if unquote(asked).lower() != table.lower():
        raise ValueError(f"this client writes to and reads from {table} alone")
