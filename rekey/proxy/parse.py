"""Parses a request of the Table service's REST protocol strictly: what two readers could read in two ways is
refused, never repaired. It runs on anybody's bytes before any credential is judged, so the work is linear and
bounded. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from rekey.client.sdk.calls import key_in
from rekey.model import EntityKey
from rekey.proxy.sas import NAMES
from rekey.tables.base import rejected

METHODS = frozenset({"GET", "POST", "PUT", "MERGE", "PATCH", "DELETE"})
_TUNNELLED = frozenset({"PUT", "MERGE", "PATCH", "DELETE"})
# Headers that may be repeated: lists that decide nothing.
_LISTS = frozenset({"accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "via"})
# Values allowed in Connection: another header that it names would be dropped on the way, after a request was
# judged by it.
_CONNECTION = frozenset({"", "close", "keep-alive", "te", "upgrade", "http2-settings"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TEXT = re.compile(r"[\t\x20-\x7e]*")
_TARGET = re.compile(r"/[\x21\x22\x24-\x7e]*")
_ABSOLUTE = re.compile(
    r"https?://(?P<host>[A-Za-z0-9._~:\[\]-]+)(?P<rest>[/?][\x21\x22\x24-\x7e]*)?", re.IGNORECASE
)
# The name of a read-only replica in another region.
_SECONDARY = "-secondary"
_BROKEN = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HIDDEN = re.compile(r"%(?:2[Ff]|5[Cc]|[01][0-9A-Fa-f]|7[Ff])|\\")
# Parameters that decide what is asked. In another case the account might accept them too.
_EXACT = NAMES | {"comp", "restype", "$filter", "$select", "$top", "$format"}
_TABLE = re.compile(r"[A-Za-z][A-Za-z0-9]{2,62}")
# The service has about thirty parameters, and clients send about as many headers.
MAX_PARAMETERS, MAX_HEADERS = 100, 128
_ONE_TABLE = re.compile(r"Tables\('(?P<table>[A-Za-z][A-Za-z0-9]{2,62})'\)")


class ResourceKind(StrEnum):
    """The kind of resource that a request names."""

    SERVICE = "service"
    TABLES = "tables"
    TABLE = "table"
    ROWS = "rows"
    ROW = "row"
    BATCH = "batch"


# What operations need, by kind of resource and method: a type of resource (service, container, object), then
# rights on it, in the letters of an account SAS. Source: "Create an account SAS", permissions by operation.
OPERATIONS: Mapping[str, Mapping[str, str]] = {
    ResourceKind.SERVICE: {"GET": "sr", "PUT": "sw"},
    ResourceKind.TABLES: {"GET": "cl", "POST": "cc"},
    ResourceKind.TABLE: {"GET": "cl", "DELETE": "cd"},
    ResourceKind.ROWS: {"GET": "or", "POST": "oa"},
    ResourceKind.ROW: {"GET": "or", "PUT": "ou", "MERGE": "ou", "PATCH": "ou", "DELETE": "od"},
    ResourceKind.BATCH: {"POST": "o"},  # those of its operations, once known
}


@dataclass(frozen=True, slots=True)
class Incoming:
    """A parsed request; it is a `Message` of `rekey.client.sdk.calls`."""

    # The method, after `X-HTTP-Method`.
    method: str
    # As sent; the query without its question mark.
    path: str = field(repr=False)
    query: str = field(repr=False)
    # Of the query, decoded.
    parameters: Mapping[str, str] = field(repr=False)
    # By their names in lower case.
    headers: Mapping[str, str] = field(repr=False)
    kind: ResourceKind
    # The last segment of the path, as sent; "" for the service itself.
    resource: str = field(repr=False)
    # The name in the resource, "" without one.
    table: str = ""
    # Of a request about one row.
    key: EntityKey | None = field(default=None, repr=False)
    # The path before the resource: the account's name as sent, or nothing.
    prefix: str = ""
    # The body, once read.
    content: bytes = field(default=b"", repr=False)

    @property
    def url(self) -> str:
        return f"/{self.resource}?{self.query}"

    @property
    def sent_method(self) -> str:
        return "POST" if "x-http-method" in self.headers else self.method

    @property
    def is_read(self) -> bool:
        return self.method == "GET"

    @property
    def comp(self) -> str:
        return self.parameters.get("comp", "")


def parse(method: str, target: str, headers: Iterable[tuple[str, str]], account: str) -> Incoming:
    """Return a request without its body.

    Args:
        method, target: of the request line.
        headers: as sent, in order.
        account: name of the upstream's account, which may be the first segment of the path.

    Raises:
        RequestRejected: it can be read in more than one way, or not at all. Repeats nothing of the request.
    """
    read = read_headers(headers)
    if "content-length" in read and "transfer-encoding" in read:
        raise rejected("InvalidHeaderValue", "Content-Length and Transfer-Encoding exclude each other")
    if read.get("transfer-encoding", "chunked").lower() != "chunked":
        raise rejected("InvalidHeaderValue", "the transfer encoding is not chunked")
    if not {option.strip().lower() for option in read.get("connection", "").split(",")} <= _CONNECTION:
        raise rejected("InvalidHeaderValue", "Connection names a header")
    if not read.get("content-length", "0").isdigit():
        raise rejected("InvalidHeaderValue", "Content-Length is no number")
    target = origin_form(target)
    if not _TARGET.fullmatch(target) or _BROKEN.search(target):
        raise rejected("InvalidUri", "the address is not encoded as it must be")
    path, _, query = target.partition("?")
    if _HIDDEN.search(path):
        raise rejected("InvalidUri", "the path holds an encoded slash, backslash or control character")
    query_parameters = parameters(query)
    tunnelled = read.get("x-http-method", "").upper()
    tunnels = "x-http-method" in read  # even if empty: upstream it would be a POST
    if method not in METHODS or (tunnels and (method != "POST" or tunnelled not in _TUNNELLED)):
        raise rejected("UnsupportedHttpVerb", "the resource does not support this HTTP verb", status=405)
    prefix, resource = _split(path, query_parameters, account)
    try:
        decoded = unquote(resource, errors="strict")
    except UnicodeDecodeError:
        raise rejected("InvalidUri", "the path is no UTF-8") from None
    kind, table, key = _named(decoded)
    asked = Incoming(
        tunnelled or method, path, query, query_parameters, read, kind, resource, table, key, prefix
    )
    _check_verb(asked)
    if prefix.endswith(_SECONDARY) and not asked.is_read:
        raise rejected("InsufficientAccountPermissions", "Write operations are not allowed.", status=403)
    return asked


def host_in(target: str) -> str:
    """Return host and port of a request target that is a whole URL; "" for any other target."""
    match = _ABSOLUTE.fullmatch(target)
    return "" if match is None else match["host"]


def origin_form(target: str) -> str:
    """Return path and query of a target that is a whole URL (RFC 9112, 3.2.2), else the target."""
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        return target
    rest = match["rest"] or "/"
    return rest if rest.startswith("/") else f"/{rest}"


def read_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by their names in lower case. Raises RequestRejected for duplicates and for too many."""
    by_name: dict[str, list[str]] = {}
    for number, (name, value) in enumerate(headers):
        if number == MAX_HEADERS:
            raise rejected("InvalidHeaderValue", f"there are more than {MAX_HEADERS} headers", status=431)
        lower = name.lower()
        if not _NAME.fullmatch(name) or not _TEXT.fullmatch(value):
            raise rejected("InvalidHeaderValue", "a header is not written in ASCII")
        if lower in by_name and lower not in _LISTS:
            raise rejected("InvalidHeaderValue", "a header is there twice")
        by_name.setdefault(lower, []).append(value.strip())
    return {name: ", ".join(values) for name, values in by_name.items()}


def parameters(query: str) -> dict[str, str]:
    """Return the decoded parameters of a query. Raises RequestRejected, also for ambiguous ones."""
    if query.count("&") >= MAX_PARAMETERS:
        raise rejected("InvalidQueryParameterValue", f"there are more than {MAX_PARAMETERS} parameters")
    values, names = dict[str, str](), set[str]()
    try:
        for part in query.split("&") if query else ():
            name, _, value = part.replace("+", " ").partition("=")
            name = unquote(name, errors="strict")
            if (lower := name.lower()) in names:
                raise rejected("InvalidQueryParameterValue", "a parameter is there twice")
            names.add(lower)
            if (known := name.strip().lower()) in _EXACT and name != known:
                raise rejected("InvalidQueryParameterValue", "a parameter is not spelled as it must be")
            values[name] = unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise rejected("InvalidQueryParameterValue", "a parameter is no UTF-8") from None
    return values


def unsigned(query: str) -> str:
    """Return a query, as sent, without the parameters of a shared access signature."""
    parts = [part for part in query.split("&") if unquote(part.partition("=")[0]).lower() not in NAMES]
    return "&".join(parts)


def inner_target(url: str) -> str:
    """Return path and query of an address in a batch: absolute, from the root, or relative."""
    if url.lower().startswith(("http://", "https://")):
        try:
            parts = urlsplit(url)
        except ValueError:
            raise rejected("InvalidUri", "an address in the batch is none") from None
        return f"{parts.path}?{parts.query}" if parts.query else parts.path
    return url if url.startswith("/") else f"/{url}"


def _split(path: str, query_parameters: Mapping[str, str], account: str) -> tuple[str, str]:
    segments = path.strip("/").split("/", 3) if path.strip("/") else []
    if path.count("/") > 3 or "" in segments:
        raise rejected("InvalidUri", "the path has empty segments")
    prefix = ""
    named = segments[:1] in ([account], [account + _SECONDARY])
    if named and (
        len(segments) == 2
        or "restype" in query_parameters
        or query_parameters.get("comp") in ("properties", "stats")
    ):
        prefix, *segments = segments
    if len(segments) > 1:
        raise rejected("InvalidUri", "the path names no resource of this account")
    return prefix, segments[0] if segments else ""


def _named(resource: str) -> tuple[ResourceKind, str, EntityKey | None]:
    if not resource:
        return ResourceKind.SERVICE, "", None
    if resource == "$batch":
        return ResourceKind.BATCH, "", None
    if resource in ("Tables", "Tables()"):
        return ResourceKind.TABLES, "", None
    if match := _ONE_TABLE.fullmatch(resource):
        return ResourceKind.TABLE, match["table"], None
    row = key_in(resource)
    name = resource.removesuffix("()") if row is None else row[0]
    if not _TABLE.fullmatch(name) or name.lower() == "tables":
        raise rejected("InvalidUri", "the path names no resource of a table service")
    return (ResourceKind.ROWS, name, None) if row is None else (ResourceKind.ROW, name, row[1])


def _check_verb(asked: Incoming) -> None:
    verbs: Collection[str] = OPERATIONS[asked.kind]
    comp = asked.parameters.get("comp")
    if asked.kind is ResourceKind.ROWS and comp == "acl":
        verbs = ("GET", "PUT")
    elif comp is not None and asked.kind is not ResourceKind.SERVICE:
        raise rejected("InvalidQueryParameterValue", "the parameter comp does not apply to this resource")
    if asked.method not in verbs:
        raise rejected("UnsupportedHttpVerb", "the resource does not support this HTTP verb", status=405)
