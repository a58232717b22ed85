"""The wire format: addresses, filters, JSON, `$batch` bodies and their answers, as pure functions. Sources
(Azure documentation): "Performing entity group transactions", "Payload format for Table service
operations"."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from rekey.core.edm import DOUBLE
from rekey.core.key_order import first_above
from rekey.errors import RequestRejected
from rekey.model import (
    ETAG,
    LAST_ROW,
    PARTITION_KEY,
    ROW_KEY,
    TIMESTAMP,
    TYPE_SUFFIX,
    EntityKey,
    KeyRange,
    Row,
    content_of,
)
from rekey.tables.base import Operation, Verb, rejected

API_VERSION = "2020-12-06"  # the oldest that takes tokens; Azurite 3.35 knows it
ACCEPT = "application/json;odata=minimalmetadata"

# Headers of every request.
COMMON_HEADERS = {"Accept": ACCEPT, "DataServiceVersion": "3.0", "x-ms-version": API_VERSION}

_PART_HEAD = b"Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
_JSON_HEAD = (
    b" HTTP/1.1\r\nAccept: application/json;odata=minimalmetadata\r\nContent-Type: application/json\r\n"
    b"DataServiceVersion: 3.0\r\n"
)
_INSERT_HEAD = _JSON_HEAD + b"Prefer: return-no-content\r\n\r\n"
_PLAIN_HEAD = b" HTTP/1.1\r\nAccept: application/json;odata=minimalmetadata\r\nDataServiceVersion: 3.0\r\n"
# `Verb.INSERT` would be looked up in the class each time, for every copied row.
_INSERT = Verb.INSERT
METHODS = {
    Verb.INSERT: "POST",
    Verb.REPLACE: "PUT",
    Verb.MERGE: "PATCH",
    Verb.INSERT_OR_REPLACE: "PUT",
    Verb.INSERT_OR_MERGE: "PATCH",
    Verb.DELETE: "DELETE",
}
CONDITIONAL = frozenset({Verb.REPLACE, Verb.MERGE, Verb.DELETE})
# The first byte of U+2028 and U+2029 in UTF-8.
_SEPARATORS_BEGIN = 0xE2
# No piece of a body that Azurite decodes by itself is shorter.
_LEAST_CHUNK = 16 << 10
_TIMESTAMP_TYPE = TIMESTAMP + TYPE_SUFFIX
_PLAIN_CLASSES = frozenset({str, bool, int, type(None)})
_WIRE_CLASSES = _PLAIN_CLASSES | {float}
_ANSWER = re.compile(rb"^HTTP/1\.1 (\d{3})[^\r\n]*\r?\n((?:[^\r\n]+\r?\n)*)", re.MULTILINE)
_ETAG_HEADER = re.compile(rb"^ETag: ?([^\r\n]+)", re.MULTILINE | re.IGNORECASE)
# The ETag header as the service spells it: much faster to find than all spellings that HTTP allows.
_ETAG_LINE = re.compile(r"\nETag: (\S+)\r?\n")
_BARE = re.compile(r"[A-Za-z0-9_.~-]*")
_APPLIED = b"HTTP/1.1 204 "
_INDEXED = re.compile(r"(\d{1,3}):")
_XML_CODE = re.compile(rb'<(?:m:)?error [^>]*/dataservices/metadata"><(?:m:)?code>(\w{1,80})<')

# Most bytes of a query's address. http.sys, in front of the service, and Node.js, below Azurite, take 16 KiB
# for the request line and all headers together ("Http.sys registry settings for Windows", `MaxRequestBytes`;
# Node.js, `--max-http-header-size`). The rest is for the headers: a token of Entra ID takes 1 to 3 KiB.
MAX_ADDRESS_BYTES = 12 * 1024

# Most bytes of a percent-encoded filter before its upper bound is shortened. Leaves room for the two keys of
# a continuation: 512 CJK characters are 2 KiB of base64.
_MOST_FILTER_BYTES = 7 * 1024

# Sorts after every character but U+FFFE and U+FFFF, even astral ones; clients and servers accept it.
_HIGH = "\ufffd"

# Bytes that separate two operations of a batch: `--changeset_<32 hex>` and two line ends.
BOUNDARY_BYTES = len("--changeset_") + 32 + 4


# --- addresses -----------------------------------------------------------------------------------------


def escape(value: str) -> str:
    """Return text percent-encoded for a path or a query; only `A-Za-z0-9_.-~` stay bare, so that nothing on
    the way has anything left to decode twice."""
    return value if _BARE.fullmatch(value) else quote(value, safe="", errors="strict")


def entity_path(table: str, key: EntityKey) -> str:
    """Return the path of one row below the account's endpoint: `T(PartitionKey='p',RowKey='r')`. Raises
    RequestRejected for a key that is no text or cannot be encoded (a lone surrogate)."""
    try:
        partition = escape(key.partition.replace("'", "''"))
        row = escape(key.row.replace("'", "''"))
    except (UnicodeEncodeError, AttributeError, TypeError):
        raise _unaddressable() from None
    return f"{table}(PartitionKey='{partition}',RowKey='{row}')"


def query_string(parameters: Sequence[tuple[str, str]]) -> str:
    """Return `?name=value&…` with values percent-encoded, "" without parameters."""
    return "?" + "&".join(f"{name}={escape(value)}" for name, value in parameters) if parameters else ""


# --- filters -------------------------------------------------------------------------------------------


def quoted(value: str) -> str:
    """Return a string literal of OData: `it's` → `'it''s'`. Nothing else is escaped."""
    return "'" + value.replace("'", "''") + "'"


def range_filters(within: KeyRange) -> list[str]:
    """Return the filters whose results, one after the other, are the range in service order. Rows beyond the
    range's end may follow. An empty string means "no filter"; an empty list means that the range is empty."""
    # Each query is contiguous in the service's index; a single one with `or` would scan the whole partition.
    after, upto = within.after, within.upto
    if after is None:
        return [""] if upto is None else _up_to("", upto)
    if upto is not None and upto.order <= after.order:
        return []
    if upto is not None and after.partition == upto.partition:
        return [_at_most(_rest_of_partition(after), "RowKey", upto.row)]
    first = first_above(after.partition) if after.row == LAST_ROW else None
    if first is not None and upto is not None and upto.partition == first:
        return [_at_most(f"PartitionKey eq {quoted(first)}", "RowKey", upto.row)]
    rest = [] if after.row == LAST_ROW else [_rest_of_partition(after)]
    beyond = _above("PartitionKey", after.partition)
    return [*rest, *([beyond] if upto is None else _up_to(beyond, upto))]


def key_filter(key: EntityKey) -> str:
    """Return the filter for one row. Raises RequestRejected for a key that cannot be encoded."""
    try:
        filtered = f"PartitionKey eq {quoted(key.partition)} and RowKey eq {quoted(key.row)}"
        filtered.encode()
    except (UnicodeEncodeError, AttributeError, TypeError):
        raise _unaddressable() from None
    return filtered


def modified_filter(modified_from: str) -> str:
    """Return the filter for rows whose Timestamp is at or after a UTC time."""
    return f"Timestamp ge datetime{quoted(modified_from)}"


def both(first: str, second: str) -> str:
    """Return the filter that holds when both hold; either may be empty."""
    return f"{first} and {second}" if first and second else first or second


def _up_to(beyond: str, upto: EntityKey) -> list[str]:
    before = both(beyond, f"PartitionKey lt {quoted(upto.partition)}")
    if upto.row == LAST_ROW or len(escape(before)) > _MOST_FILTER_BYTES:
        return [_at_most(beyond, "PartitionKey", upto.partition)]
    start = _at_most(f"PartitionKey eq {quoted(upto.partition)}", "RowKey", upto.row)
    return [before, start] if upto.partition else [start]


def _at_most(condition: str, name: str, bound: str) -> str:
    """Return a condition with an upper bound. A `bound` that is too long is replaced by a shorter one that
    sorts no lower, or left out if there is no room for that either."""
    if bound == LAST_ROW:
        return condition
    if (end := first_above(bound)) is not None and len(escape(end)) < _MOST_FILTER_BYTES // 2:
        return both(condition, f"{name} lt {quoted(end)}")
    exact = both(condition, f"{name} le {quoted(bound)}")
    if len(escape(exact)) <= _MOST_FILTER_BYTES:
        return exact
    left = _MOST_FILTER_BYTES - len(escape(both(condition, f"{name} le {quoted(_HIGH)}")))
    if left < 0:
        return condition
    # By characters, not UTF-16 units: no surrogate pair is split.
    cut = 0
    while (left := left - len(escape(bound[cut].replace("'", "''")))) >= 0:
        cut += 1
    while cut >= 0 and bound[cut] >= _HIGH and bound[cut] <= "\uffff":
        cut -= 1
    return condition if cut < 0 else both(condition, f"{name} le {quoted(bound[:cut] + _HIGH)}")


def _rest_of_partition(after: EntityKey) -> str:
    return f"PartitionKey eq {quoted(after.partition)} and {_above('RowKey', after.row)}"


def _above(name: str, bound: str) -> str:
    first = first_above(bound)
    return f"{name} gt {quoted(bound)}" if first is None else f"{name} ge {quoted(first)}"


# --- JSON ----------------------------------------------------------------------------------------------


def encode_alone(row: Row) -> bytes:
    """Return the JSON to send for a row outside a transaction; as `encode_row`."""
    data = encode_row(row)
    if len(data) < _LEAST_CHUNK or data.isascii():
        return data
    # Azurite decodes a large body piece by piece, and loses characters that stand in two pieces.
    return json.dumps(orjson.loads(data), separators=(",", ":")).encode("ascii")


def encode_row(row: Row) -> bytes:
    """Return the JSON to send for a row: content only, without what the server owns. Raises RequestRejected
    for values that are not wire values, which JSON would change silently (NaN, UUID, datetime, bytes)."""
    if ETAG in row or TIMESTAMP in row:
        row = content_of(row)
    if row.get(PARTITION_KEY).__class__ is not str or row.get(ROW_KEY).__class__ is not str:
        raise rejected("PropertiesNeedValue", "a row needs PartitionKey and RowKey, both text")
    if not _PLAIN_CLASSES.issuperset(map(type, row.values())):
        row = _annotated(row)
    try:
        data = orjson.dumps(row)
    except TypeError:
        # Lone surrogates, and numbers beyond 64 bits, which the service then refuses itself.
        try:
            (row[PARTITION_KEY] + row[ROW_KEY]).encode()
        except UnicodeEncodeError:
            raise _unaddressable() from None
        data = json.dumps(row, separators=(",", ":"), allow_nan=False).encode("ascii")
    # Azurite ends a body at U+2028 and U+2029. Otherwise not ASCII-escaped: CJK characters take half as many
    # bytes. Searching for one byte is fast; searching for three takes longer than making the JSON.
    if _SEPARATORS_BEGIN in data and (b"\xe2\x80\xa8" in data or b"\xe2\x80\xa9" in data):
        data = data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return data


def _annotated(row: Row) -> Row:
    """Return a row with whole Doubles annotated, as servers may read them as Int32. Raises
    RequestRejected."""
    if not _WIRE_CLASSES.issuperset(map(type, row.values())):
        raise _not_a_wire_value()
    whole = {}
    for name, value in row.items():
        if value.__class__ is float:
            if value - value != 0.0:
                raise _not_a_wire_value()
            if value.is_integer() and name + TYPE_SUFFIX not in row:
                whole[name + TYPE_SUFFIX] = DOUBLE
    return {**row, **whole} if whole else row


def decode_rows(body: bytes) -> list[Row]:
    """Return the rows of one page. Raises ValueError when the body is not such a page."""
    page = loads(body)
    if not isinstance(page, dict) or not isinstance(page.get("value"), list):
        raise ValueError("not a page of rows")
    rows: list[Row] = page["value"]
    for row in rows:
        row.pop(_TIMESTAMP_TYPE, None)
    return rows


def decode_row(body: bytes) -> Row:
    """Return the row of a point read. Raises ValueError when the body is not a row."""
    row: Row = loads(body)
    if not isinstance(row, dict) or ETAG not in row:
        raise ValueError("not a row")
    row.pop("odata.metadata", None)
    row.pop(_TIMESTAMP_TYPE, None)
    return row


def projected(row: Row, select: Sequence[str]) -> Row:
    """Return a read row with the properties that `select` names; a missing one is absent, not null."""
    kept = {ETAG, PARTITION_KEY, ROW_KEY, TIMESTAMP, *select, *(name + TYPE_SUFFIX for name in select)}
    return {name: value for name, value in row.items() if name in kept and value is not None}


def loads(body: bytes) -> Any:
    """Return a JSON value. Raises ValueError."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        # A lone surrogate, which JSON can write as \ud800 and orjson does not read.
        return json.loads(body)


def _unaddressable() -> RequestRejected:
    return rejected("OutOfRangeInput", "a key cannot be written into an address")


def _not_a_wire_value() -> RequestRejected:
    hint = "NaN and infinities travel as annotated text, as do Guid, DateTime and Binary"
    return rejected("InvalidInput", "a row holds a value that is not a wire value", hint=hint)


# --- batches -------------------------------------------------------------------------------------------


class Encoder:
    """Encoder of the operations on one table. `endpoint` has no trailing slash."""

    def __init__(self, endpoint: str, table: str) -> None:
        self._base = f"{endpoint}/".encode()
        self._table = table
        self._insert_head = _PART_HEAD + b"POST " + self._base + table.encode() + _INSERT_HEAD

    def encode(self, operation: Operation) -> bytes:
        """Return an operation as one part of a batch body, encoding it only the first time."""
        kept = operation.encoded
        if kept is not None and kept[0] is self:
            return kept[1]
        if operation.verb is _INSERT:  # inlined: this runs for every copied row
            part = self._insert_head + encode_row(operation.row) + b"\r\n"
        else:
            part = self._encode(operation)
        operation.encoded = (self, part)  # a cache; the value is unchanged
        return part

    def size(self, operation: Operation) -> int:
        """Return how many bytes an operation takes in a batch body, its boundary included."""
        return len(self.encode(operation)) + BOUNDARY_BYTES

    def _encode(self, operation: Operation) -> bytes:
        verb = operation.verb
        path = entity_path(self._table, operation.key).encode()
        condition = b""
        if verb in CONDITIONAL:
            condition = b"If-Match: %b\r\n" % ("*" if operation.etag is None else operation.etag).encode()
        if verb is Verb.DELETE:
            return b"".join((_PART_HEAD, b"DELETE ", self._base, path, _PLAIN_HEAD, condition, b"\r\n"))
        asked = b"%b %b%b" % (METHODS[verb].encode(), self._base, path)
        body = encode_row(operation.row)
        return b"".join((_PART_HEAD, asked, _JSON_HEAD, condition, b"\r\n", body, b"\r\n"))


def batch_body(parts: Sequence[bytes], mark: str) -> bytes:
    """Return a `$batch` body of encoded operations of one partition. `mark`: 32 random hex digits, which no
    row can hold by accident."""
    separator = b"--changeset_" + mark.encode() + b"\r\n"
    head = f"--batch_{mark}\r\nContent-Type: multipart/mixed; boundary=changeset_{mark}\r\n\r\n".encode()
    tail = f"--changeset_{mark}--\r\n--batch_{mark}--\r\n".encode()
    return b"".join((head, separator, (b"\r\n" + separator).join(parts), b"\r\n", tail))


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """The failing operation of a batch: HTTP status, error code, its index (None if not given)."""

    status: int
    code: str
    index: int | None


def parse_batch(body: bytes, count: int) -> list[str | None] | BatchFailure:
    """Return the ETags of a batch answer, or its failure. Raises ValueError: not one for `count`
    operations."""
    etags: list[str | None] = []
    if body.count(_APPLIED) == count:
        # All applied; unless deletes are among them, every part has an ETag: no need to check each part.
        found_all: list[str | None] = _ETAG_LINE.findall(body.decode("latin-1"))
        if len(found_all) == count:
            return found_all
    for answer in _ANSWER.finditer(body):
        status = int(answer[1])
        if status >= 400:
            code, index = error_code(body[answer.end() :].lstrip(), batch=True)
            return BatchFailure(status, code, index)
        match = _ETAG_HEADER.search(answer[2])
        etags.append(None if match is None else match[1].decode("latin-1").strip())
    if len(etags) != count:
        raise ValueError(f"the answer to a batch of {count} has {len(etags)} parts")
    return etags


def error_code(body: bytes, *, batch: bool = False) -> tuple[str, int | None]:
    """Return the error code of an answer, and the index of the failing operation when it is named. A refusal
    may come as XML (tests/fixtures/service/refusals.toml)."""
    try:
        described, _ = json.JSONDecoder().raw_decode(body.decode("utf-8", "replace").lstrip("\ufeff"))
        error = described["odata.error"]
        code = str(error["code"])
        # Read only for the index: it can echo keys.
        message = str(error["message"]["value"])
    except (ValueError, KeyError, TypeError):
        in_xml = _XML_CODE.search(body)
        return "" if in_xml is None else in_xml[1].decode("ascii"), None
    indexed = _INDEXED.match(message) if batch else None
    return code, None if indexed is None else int(indexed[1])
