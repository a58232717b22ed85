"""Whatever bytes come over whatever connections: the proxy answers in the service's form, in bounded time and
size, carries nothing out without a valid credential, nothing but what a credential is for, and no request
that is hidden in another. Through aiohttp's reading of HTTP and the whole handler, on a transport in memory.

Requests are made of pieces, shown with a credential that is valid or not, and some are damaged then. What may
be carried out is known from the way they were made, never asked of the code that judges them.

Soak: a million requests.
Reason, and what `make test` covers: ten minutes; 2,000, made in the same way.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import os
import random
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, cast
from urllib.parse import unquote

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import TableSasPermissions, generate_table_sas
from multidict import CIMultiDict

from rekey.client.reading import LeaseSettings
from rekey.client.sdk.core import ClientCore
from rekey.project.config import ProxyLimits
from rekey.proxy.access import Access
from rekey.proxy.forward import Upstream
from rekey.proxy.handler import Handler
from rekey.proxy.meter import Meter
from rekey.proxy.route import Route, Routes
from rekey.proxy.server import ProxySockets
from rekey.tables.base import Operation

ACCOUNT = "acct"
KEY = base64.b64encode(b"a key of an application of 32 bytes").decode()
OTHER = base64.b64encode(b"another key that nobody configured").decode()
MOST_S, MOST_BYTES = 10.0, 200_000
READ_ONLY = generate_table_sas(
    AzureNamedKeyCredential(ACCOUNT, KEY),
    "Plain",
    permission=TableSasPermissions(read=True),
    expiry="2200-01-01T00:00:00Z",
)
_STATUSES = "100 200 201 202 204 400 403 404 405 408 409 412 413 414 415 417 431 500 501 503"
STATUSES = set(map(int, _STATUSES.split()))


# --- the proxy, on a transport in memory -------------------------------------------------------------------


class Answer:
    """The account's answer to anything."""

    status, reason = 200, "OK"
    headers = CIMultiDict({"Content-Type": "application/json"})

    def __init__(self) -> None:
        self.content, self._body = self, b'{"value":[]}'

    async def readany(self) -> bytes:
        """Return the whole body."""
        return self._body

    read = readany

    def at_eof(self) -> bool:
        """There is no more."""
        return True


class World:
    """A handler whose account and whose client of the table Moved tell what they were asked."""

    def __init__(self, *, tokens: bool = False) -> None:
        self.passed: list[tuple[str, str]] = []
        self.carried: list[Operation] = []
        self.endpoint = "http://upstream/acct"
        self.options, self.is_open = self, True
        self.settings = LeaseSettings()
        routes = Routes({}, {}, {})
        routes._routes[""]["moved"] = Route("Moved", cast(ClientCore, self))
        self.meter = Meter()
        self.handler = Handler(
            ACCOUNT,
            cast(Upstream, self),
            routes,
            Access(ACCOUNT, {"application": base64.b64decode(KEY)}, tokens),
            self.meter,
            holds_restricted=True,
            limits=ProxyLimits(body=65_536, line=8_192, idle_s=5.0, request_s=MOST_S),
        )
        self.sockets = ProxySockets(self.handler)

    @asynccontextmanager
    async def send(self, method: str, path: str, _headers: Any, body: Any, **_: Any) -> AsyncIterator[Answer]:
        """Be the account."""
        self.passed.append((method, path))
        if body is not None and not isinstance(body, bytes):
            async for _chunk in body.iter_any():
                pass
        yield Answer()

    @asynccontextmanager
    async def reading(self, key: object = None, asked: object = None) -> AsyncIterator[None]:
        """Be the client: a permit."""
        yield

    async def write(self, operations: Sequence[Operation]) -> list[str | None]:
        """Be the client: a write."""
        self.carried += operations
        return ["W/\"datetime'2024-01-01T00%3A00%3A00Z'\""] * len(operations)

    async def deleting_table(self) -> None:
        """Be the client: the table may go."""

    def shadows(self) -> bool:
        """Be the client: reads are not compared."""
        return False


class Wire(asyncio.Transport):
    """A connection that keeps what is written."""

    def __init__(self, *, secure: bool) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), **({"sslcontext": True} if secure else {})})
        self.written, self.closed = bytearray(), False

    def write(self, data: Any) -> None:
        """Keep it."""
        self.written += data

    def writelines(self, parts: Any) -> None:
        """Keep them."""
        self.written += b"".join(parts)

    def close(self) -> None:
        """Take no more."""
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        """Tell whether it takes no more."""
        return self.closed

    def pause_reading(self) -> None:
        """Everything was sent already."""

    resume_reading = pause_reading


async def exchange(world: World, pieces: Sequence[bytes], *, secure: bool = False) -> bytes:
    """Send bytes over one connection, piece by piece, then end it; return what was answered."""
    wire, connection = Wire(secure=secure), world.sockets()
    world.meter.connections += 1  # as where it is accepted
    connection._lingering_time = 0.0  # else it waits ten seconds for the rest of a body
    connection.connection_made(wire)
    task = connection._task_handler
    for piece in pieces:
        if wire.closed:
            break
        connection.data_received(piece)
        for _ in range(12):
            await asyncio.sleep(0)
    waited = 0
    while not wire.closed and connection._current_request is not None and waited < 50:
        waited += 1  # for the rest of a body, which does not come
        await asyncio.sleep(0)
    connection.connection_lost(None)
    if task is not None:
        await asyncio.wait([task], timeout=MOST_S)
        assert task.done(), "a connection that is gone is served"
    return bytes(wire.written)


# --- requests ----------------------------------------------------------------------------------------------

TABLES = ("Plain", "Moved", "moved", "rekeycontrol", "REKEYMAP", "Tables", "$batch", "x", "Other")
KEYS = (
    "a",
    "o''b",
    "",
    "%27%27",
    "%2F",
    "%252F",
    "%0d%0a",
    "a%20b",
    "%C3%BC",
    "%ff",
    "/",
    "\\",
    "%5c",
    "%00",
    ")",
)
QUERIES = (
    *("", "$top=1", "$filter=RowKey%20eq%20'a'", "$filter=(((('", "$select=A", "comp=acl", "comp=acl&comp=x"),
    *(
        "Comp=acl",
        "restype=service&comp=properties",
        "timeout=1",
        "&&=&",
        "%",
        "$filter=a&%24filter=b",
        "sig=x",
    ),
    *("$top=1&$top=2", "NextRowKey=%00", "x=" + "y" * 9_000, "si=a&sig=b&sv=2019-02-02&tn=Plain"),
)
METHODS = (
    *("GET", "GET", "POST", "PUT", "MERGE", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT"),
    "get",
)
HEADERS = (
    *(
        "Accept: application/json",
        "Accept: application/atom+xml",
        "If-Match: *",
        "If-Match: ",
        "If-Match: nonsense",
    ),
    *(
        "Prefer: return-no-content",
        "X-HTTP-Method: MERGE",
        "X-HTTP-Method: ",
        "X-HTTP-Method: DELETE",
        "Host: b",
    ),
    *(
        "Content-Type: application/json",
        "Connection: close",
        "Connection: authorization",
        "Expect: 100-continue",
    ),
    *(
        "Expect: x",
        "Upgrade: websocket",
        "Content-Encoding: gzip",
        "x-ms-version: 2011-08-18",
        "Date: x",
        " Folded: x",
    ),
    *(
        "X-Bad\x00: 1",
        "No colon",
        "Content-Type: multipart/mixed; boundary=b",
        "Range: bytes=0-1",
        "A: \xff",
        ": ",
    ),
)
ROWS = (
    *(
        b"{}",
        b"",
        b'{"PartitionKey":"p","RowKey":"r","A":1}',
        b"[" * 3_000,
        b'{"PartitionKey":1,"RowKey":"r"}',
        b"\xff",
    ),
    *(b'{"PartitionKey":"p","RowKey":"r","A":"x","A@odata.type":"Edm.Nothing"}', b"null", b'{"RowKey":"r"}'),
    *(
        b'{"PartitionKey":"p","RowKey":"\\ud800"}',
        b'{"a":1,"a":2}',
        b'{"TableName":"rekeymap"}',
        b'{"TableName":7}',
    ),
)
DAMAGE = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\x00",
    b" ",
    b":",
    b"%",
    b"'",
    b"--b",
    b"\xff",
    b"0\r\n\r\n",
    b"Host: z\r\n",
    b"/",
    b"?",
)


@dataclass
class Case:
    """Bytes for one connection, and what they may have carried out.

    Attributes:
        sent: the bytes.
        may: "nothing"; "all" of `resource`; "read" of the table Plain.
        resource: what was signed, decoded; "" for anything.
        method: what was signed with it; "" for any.
    """

    sent: bytes
    may: str
    resource: str = ""
    method: str = ""


def signed(key: str, path: str, method: str, *, lite: bool, kind: str = "") -> list[str]:
    """Return the headers of a signature with a key, made apart from the code that is tested."""
    date, plain = formatdate(usegmt=True), path.partition("?")
    comp = re.search(r"(?:^|&)comp=([^&]*)", plain[2])
    resource = f"/{ACCOUNT}{plain[0]}" + (f"?comp={unquote(comp[1])}" if comp else "")
    text = f"{date}\n{resource}" if lite else f"{method}\n\n{kind}\n{date}\n{resource}"
    mac = base64.b64encode(
        hmac.digest(base64.b64decode(key), text.encode("latin-1"), hashlib.sha256)
    ).decode()
    return [f"x-ms-date: {date}", f"Authorization: SharedKey{'Lite' if lite else ''} {ACCOUNT}:{mac}"]


def batch(draw: random.Random) -> bytes:
    """Return a body of a batch, whole or not."""
    parts = []
    for number in range(draw.choice((0, 1, 2, 3, 101))):
        table = draw.choice(("Plain", "Moved", "Moved", "rekeymap"))
        line = f"{draw.choice(METHODS)} /acct/{table}(PartitionKey='p',RowKey='{number}') HTTP/1.1"
        inner = "".join(f"{draw.choice(HEADERS)}\r\n" for _ in range(draw.randrange(3)))
        parts.append(f"--c\r\nContent-Type: application/http\r\n\r\n{line}\r\n{inner}\r\n".encode("latin-1"))
        parts[-1] += draw.choice(ROWS) + b"\r\n"
    changes = b"".join(parts) + b"--c--\r\n"
    if draw.random() < 0.2:
        changes = b"Content-Type: application/http\r\n\r\nGET /acct/Moved() HTTP/1.1\r\n\r\n\r\n"
        return b"--b\r\n" + changes + b"--b--\r\n"
    return b"--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n" + changes + b"--b--\r\n"


def framed(draw: random.Random, body: bytes) -> tuple[list[str], bytes]:
    """Return headers that say where a body ends, and how it is sent, also so that readers could differ."""
    size, chunks = str(len(body)), b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    forms: tuple[tuple[list[str], bytes], ...] = (
        ([f"Content-Length: {size}"], body),
        ([f"Content-Length: {size}"], body),
        (["Transfer-Encoding: chunked"], chunks),
        ([f"Content-Length: {size}", "Transfer-Encoding: chunked"], chunks),
        (["Content-Length: 0", "Transfer-Encoding: chunked"], chunks),
        ([f"Content-Length: {size}", "Content-Length: 0"], body),
        ([f"Content-Length: 0, {size}"], body),
        ([f"Content-Length: +{size}"], body),
        (["Transfer-Encoding: chunked, identity", "Content-Length: 0"], chunks),
        (["Transfer-Encoding : chunked"], chunks),
        (["Transfer-Encoding: \x0bchunked", "Content-Length: 0"], chunks),
        (["Transfer-Encoding: xchunked", "Content-Length: 0"], chunks),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], chunks),
        (["Transfer-Encoding: chunked"], chunks.replace(b"\r\n", b"\n")),
        (["Transfer-Encoding: chunked"], chunks.replace(b"\r\n", b";x=\r\n", 1)),
        (["Transfer-Encoding: chunked"], b"-1\r\n" + chunks),
        (["Transfer-Encoding: chunked"], b"f" * 17 + b"\r\n" + chunks),
    )
    return draw.choice(forms)


def made(draw: random.Random) -> Case:
    """Make one request up."""
    method, table, query = draw.choice(METHODS), draw.choice(TABLES), draw.choice(QUERIES)
    path = f"/{draw.choice((ACCOUNT, ACCOUNT, 'other', '', '/'))}/{table}".replace(
        "//", "/", draw.randrange(2)
    )
    is_usual = draw.random() < 0.6  # but for its credential, its body and what is damaged
    if is_usual:
        places = [
            "Plain()",
            "Plain",
            "Moved()",
            "Moved(PartitionKey='p',RowKey='r')",
            "$batch",
            "Tables",
            "Other",
        ]
        table = draw.choice([*places, "Plain(PartitionKey='a%20b',RowKey='o''b')"])
        verbs = {"(": ("GET", "PUT", "MERGE", "PATCH", "DELETE"), "b": ("POST",), ")": ("GET",)}
        method = draw.choice(verbs["(" if "=" in table else "b" if table == "$batch" else ")"])
        method = "POST" if table in ("Plain", "Other") else method
        query, path = draw.choice(QUERIES[:5]) if method == "GET" else "", f"/{ACCOUNT}/{table}"
    elif draw.random() < 0.5 and table not in ("Tables", "$batch"):
        path += f"(PartitionKey='{draw.choice(KEYS)}',RowKey='{draw.choice(KEYS)}')"
    elif table == "Tables" and draw.random() < 0.5:
        path += f"('{draw.choice(TABLES)}')"
    kind = "multipart/mixed; boundary=b" if table == "$batch" and draw.random() < 0.9 else ""
    body = batch(draw) if kind else draw.choice(ROWS)
    if draw.random() < 0.3:  # a request within the body, with a credential that is good
        hidden = "\r\n".join(signed(KEY, f"/{ACCOUNT}/Hidden()", "GET", lite=True))
        body += f"\r\nGET /{ACCOUNT}/Hidden() HTTP/1.1\r\nHost: x\r\n{hidden}\r\n\r\n".encode()
    shows = draw.choice(("none", "lite", "lite", "key", "wrong", "sas", "other sas", "token", "two"))
    case, shown = Case(b"", "nothing"), list[str]()
    if shows in ("lite", "key"):
        asked = f"{path}?{query}"
        shown = signed(KEY, asked, method, lite=shows == "lite", kind=kind)
        resource = unquote(path.rpartition("/")[2]) if "/" not in path[path.find("(") :] else ""
        case = Case(b"", "all", resource, method if shows == "key" else "")
    elif shows == "wrong":
        shown = signed(OTHER, f"{path}?{query}", method, lite=draw.random() < 0.5)
    elif shows == "sas":
        query, case = f"{query}&{READ_ONLY}".strip("&"), Case(b"", "read")
    elif shows == "other sas":
        query = f"{query}&{re.sub('sp=r', 'sp=raud', READ_ONLY)}".strip("&")
    elif shows == "token":
        shown = ["Authorization: Bearer " + base64.b64encode(b"a token").decode()]
    elif shows == "two":
        shown = [*signed(OTHER, path, method, lite=True), signed(KEY, path, method, lite=True)[1]]
    body = b"" if is_usual and method in ("GET", "DELETE") else body
    lengths, sent = framed(draw, body) if body else ([], b"")
    lines = [f"{method} {path}{'?' if query else ''}{query} HTTP/1.1", "Host: x", *shown, *lengths]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += ["If-Match: *"] * (method == "DELETE" and is_usual)
    lines += [draw.choice(HEADERS) for _ in range(draw.choice((0, 0, 0, 1, 2, 4)))]
    whole = "\r\n".join([*lines, "", ""]).encode("latin-1") + sent
    if b"Hidden" not in body and draw.random() < 0.5:  # else what hides it could be damaged
        head = whole.index(b"\r\n\r\n")
        for _ in range(draw.randrange(1, 4)):
            # Not the blank line nor the body: what follows it would be a request that nobody hid.
            at = draw.randrange(head)
            less = draw.choice((0, 0, 1))
            new = draw.choice(DAMAGE)
            if b"\n" in new or b"\r" in new or b"Content-Length" in whole[:head]:
                new = new.replace(b"\n", b" ").replace(b"\r", b" ")
            whole, head = whole[:at] + new + whole[at + less :], head + len(new) - less
        if shows == "two":  # one of them may be none any more
            case = Case(b"", "all", unquote(path.rpartition("/")[2]))
    case.sent = whole
    return case


def same_table(resource: str) -> str:
    """Return a resource with its table's name in lower case: the service takes no notice of case there."""
    table, bracket, key = resource.partition("(")
    return table.lower() + bracket + key


def check(case: Case, world: World, answered: bytes) -> None:
    """Check what was carried out for a request, and what was answered."""
    passed, carried = list(world.passed), list(world.carried)
    world.passed.clear()
    world.carried.clear()
    assert len(answered) < MOST_BYTES
    for shown in (b"Traceback", b".py", b'File "', KEY.encode(), b"a key of an application"):
        assert shown not in answered
    for status in re.findall(rb"(?:^|\r\n\r\n|\})HTTP/1\.[01] (\d+) ", answered):
        assert int(status) in STATUSES
    assert b"InternalError" not in answered, "a fault of the program"
    for _, path in passed:
        assert "Hidden" not in path, "a request that was hidden in another"
        assert not re.search(r"%(2f|5c|[01].|7f)|\\", path.partition("?")[0], re.IGNORECASE), (
            "read in two ways"
        )
        table = unquote(path).partition("?")[0].partition("(")[0].lower()
        assert not table.startswith("rekey"), "the restricted store"
    if case.may == "nothing":
        assert not passed and not carried
    elif case.may == "read":
        assert not carried
        for method, path in passed:
            assert method == "GET" or path.partition("?")[0] == "$batch"
            assert path.partition("?")[0].partition("(")[0] in ("Plain", "$batch")
            assert "sig=" not in path
    for method, path in passed:
        sent = unquote(path.partition("?")[0])
        if case.resource and "$batch" not in (sent, case.resource):
            assert same_table(sent) == same_table(case.resource), "another resource than was signed"
        assert method == (case.method or method)


async def tried(draw: random.Random, requests: int) -> int:
    """Try requests, each on a connection of its own, in pieces; return how many came to the account."""
    world, reached = World(), 0
    for _ in range(requests):
        case = made(draw)
        cuts = sorted(draw.randrange(len(case.sent)) for _ in range(draw.choice((0, 0, 1, 3))))
        pieces = [case.sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(case.sent)], strict=True)]
        began = time.monotonic()
        answered = await exchange(world, pieces)
        assert time.monotonic() - began < MOST_S
        reached += bool(world.passed or world.carried)
        try:
            check(case, world, answered)
        except AssertionError:
            print(f"sent: {case!r}\nanswered: {answered!r}")
            raise
    assert world.meter.connections == 0
    return reached


def test_whatever_comes_nothing_is_carried_out_that_was_not_granted(caplog: pytest.LogCaptureFixture) -> None:
    """Some hundreds reach the account: it is no test of refusals alone."""
    caplog.set_level(logging.ERROR)
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    assert asyncio.run(tried(random.Random(seed), 2_000)) > 50
    assert "a request failed in rekey" not in caplog.text


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_whatever_comes_a_million_times() -> None:
    seed, requests = random.SystemRandom().randrange(2**32), int(os.environ.get("FUZZ_REQUESTS", "1000000"))
    print(f"seed {seed}")
    logging.getLogger("rekey.proxy").setLevel(logging.CRITICAL)
    reached = asyncio.run(tried(random.Random(seed), requests))
    print(f"{requests:,} requests, of which {reached:,} reached the account")
    assert reached > requests / 40
