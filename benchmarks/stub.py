"""A table service that answers at once, so that the client is what is measured.

It is no table service: every insert succeeds and nothing is kept but counts. What it does properly is what a
scan and a limit need: it reads any key range of a made-up source (`Shape`) and of the target that it maps to
(`Mapped`), page by page with continuations; it can take its time (latency), refuse with 503 what goes beyond
the service's documented targets, or beyond other limits of account and partitions, which may change while it
runs, and refuse a share of all requests whatever they ask.

    python -m benchmarks.stub ROWS [--latency S] [--limits] ...      prints its port, ends with its input

GET /stats tells what came: rows read and written, requests of each kind, refused ones, most written per
partition, and the seconds between the first request and the last.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import gc
import json
import random
import re
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, unquote

from benchmarks.process import ServerProcess
from benchmarks.project import PARTITIONS, USERS
from benchmarks.shape import Mapped, Shape

ACCOUNT = "stub"
KEY = "a2V5a2V5a2V5a2V5"
ACCOUNT_RATE = 20_000
PARTITION_RATE = 2_000
_BURST_SECONDS = 0.25
"""How much of a second's allowance may come at once before the stub refuses."""

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_TERM = re.compile(r"(PartitionKey|RowKey) (eq|gt|le|lt) '((?:[^']|'')*)'")
_PARTITION = re.compile(rb'"PartitionKey": ?"([^"]*)"')
_ROW = re.compile(rb'"RowKey": ?"([^"]*)"')
_TABLE = re.compile(rb"(?:POST|PUT|PATCH|DELETE) \S+/(\w+)[ (]")
_ETAG = b"W/\"datetime'2024-01-01T00%3A00%3A00.0000000Z'\""
_PART = (
    b"--changesetresponse_1\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
    b"HTTP/1.1 204 No Content\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-cache\r\n"
    b"Preference-Applied: return-no-content\r\nDataServiceVersion: 3.0;\r\n"
    b"Location: http://127.0.0.1/stub/T(PartitionKey='p',RowKey='r')\r\n"
    b"DataServiceId: http://127.0.0.1/stub/T(PartitionKey='p',RowKey='r')\r\nETag: " + _ETAG + b"\r\n\r\n\r\n"
)
_BATCHES = [
    b"--batchresponse_1\r\nContent-Type: multipart/mixed; boundary=changesetresponse_1\r\n\r\n"
    + _PART * count
    + b"--changesetresponse_1--\r\n--batchresponse_1--\r\n"
    for count in range(101)
]
_JSON = b"Content-Type: application/json;odata=minimalmetadata\r\n"
_MULTIPART = b"Content-Type: multipart/mixed; boundary=batchresponse_1\r\n"
POINTS = "Points"
"""The table of which every row is there."""
_POINT = json.dumps(
    {"odata.metadata": "http://127.0.0.1/stub/$metadata#Points/@Element", "PartitionKey": "p", "RowKey": "r"}
    | {f"Property{number}": "x" * 20 for number in range(10)}
).encode()


def _error(code: str) -> bytes:
    return json.dumps({"odata.error": {"code": code, "message": {"lang": "en-US", "value": code}}}).encode()


class Bucket:
    """An allowance that refills: entities a second."""

    def __init__(self, rate: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.rate = rate
        self._left, self._at = rate * _BURST_SECONDS, now()

    @property
    def gives(self) -> bool:
        """Whether anything is left."""
        now = self._now()
        self._left = min(self.rate * _BURST_SECONDS, self._left + (now - self._at) * self.rate)
        self._at = now
        return self._left > 0

    def take(self, count: int) -> bool:
        """Take `count`. What is left may be overdrawn once, by a request of any size: nobody knows before how
        many rows a page will have. Then nothing is given until it is made up for."""
        if not self.gives:
            return False
        self._left -= count
        return True


class Stub:
    """What the service knows and counts. `now`: tells seconds."""

    def __init__(self, options: argparse.Namespace, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.shape = Shape(options.rows, huge=options.huge, partitions=options.partitions)
        self.options = options
        self.random = random.Random(1)
        self.counts: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.keys: dict[str, set[tuple[bytes, bytes]]] = defaultdict(set)
        self.first = self.last = 0.0
        self.account = Bucket(options.account_rate[0][1], now)
        self.partitions: defaultdict[tuple[str, str], Bucket] = defaultdict(
            lambda: Bucket(options.partition_rate, now)
        )
        self.taken: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.target = Mapped(self.shape) if options.target else Shape(0)

    def answer(self, head: bytes, body: bytes) -> tuple[bytes, bytes, bytes]:
        """Return status, headers and body for a request."""
        method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        if target == "/stats":
            return b"200 OK", _JSON, json.dumps(self.stats()).encode()
        self.last = self._now()
        self.first = self.first or self.last
        if self.options.busy and self.random.random() < self.options.busy:
            self.counts["busy"] += 1
            return b"503 Server Busy", _JSON, _error("ServerBusy")
        path, _, query = target.partition("?")
        if path.endswith("/$batch"):
            return self._batch(body)
        if method == "GET" and path.endswith("()"):
            return self._page(path.rpartition("/")[2][:-2], dict(parse_qsl(query)))
        self.counts["others"] += 1
        if method == "GET" and f"/{POINTS}(" in path:
            return b"200 OK", _JSON + b"ETag: " + _ETAG + b"\r\n", _POINT
        if method == "GET":
            return b"404 Not Found", _JSON, _error("ResourceNotFound")
        if "/Tables" in path:
            return b"204 No Content", b"", b""
        table = path.rpartition("/")[2].partition("(")[0]
        self.counts["written"] += 1
        self.written[table] += 1
        self.requests[table] += 1
        if self.options.remember:
            self.keys[table].update(zip(_PARTITION.findall(body), _ROW.findall(body), strict=True))
        return b"204 No Content", b"ETag: " + _ETAG + b"\r\n", b""

    def stats(self) -> dict[str, Any]:
        """Return all counts."""
        return {
            **self.counts,
            "tables": dict(self.written),
            "requests": dict(self.requests),
            "distinct_of": {table: len(keys) for table, keys in self.keys.items()},
            "seconds": self.last - self.first,
            "taken_in_second": dict(self.taken),
            "refused_in_second": dict(self.refused),
        }

    def _allowed(self, partition: tuple[str, str], count: int) -> bool:
        if not self.options.limits:
            return True
        since = self._now() - self.first
        self.account.rate = [rate for begins, rate in self.options.account_rate if begins <= since][-1]
        asked = (self.partitions[partition], self.account)
        if not all(one.gives for one in asked):
            # Then nothing is taken: not of the partition either where the account refuses.
            self.counts["refused"] += 1
            self.refused[int(since)] += 1
            return False
        for one in asked:
            one.take(count)
        self.taken[int(since)] += count
        return True

    def _batch(self, body: bytes) -> tuple[bytes, bytes, bytes]:
        count = body.count(b"Content-Transfer-Encoding: binary")
        found, named = _PARTITION.search(body), _TABLE.search(body)
        assert found is not None and named is not None
        table = named[1].decode()
        if table != "rekeymap" and not self._allowed((table, found[1].decode()), count):
            return b"503 Server Busy", _JSON, _error("ServerBusy")
        self.counts["batches"] += 1
        self.counts["written"] += count
        self.written[table] += count
        self.requests[table] += 1
        if self.options.remember:
            self.keys[table].update(zip(_PARTITION.findall(body), _ROW.findall(body), strict=True))
        return b"202 Accepted", _MULTIPART, _BATCHES[count]

    def _page(self, table: str, query: dict[str, str]) -> tuple[bytes, bytes, bytes]:
        self.counts["pages"] += 1
        self.counts["probes"] += query.get("$top") == "1"
        shape = self.shape if table == USERS.source else self.target
        filtered = unquote(query.get("$filter", ""))
        if "Timestamp ge" in filtered:  # no row was written since any moment that is asked about
            return b"200 OK", _JSON, shape.page(0, 0)
        first, last = _bounds(shape, filtered)
        first = max(first, int(query.get("NextRowKey", 0)))
        end = min(last, first + int(query.get("$top", 1000)))
        if first < end and not self._allowed((table, shape.key(first)[0]), end - first):
            return b"503 Server Busy", _JSON, _error("ServerBusy")
        self.counts["read"] += max(0, end - first)
        return b"200 OK", _JSON + (_continued(end) if end < last else b""), shape.page(first, end)


def _bounds(shape: Shape | Mapped, text: str) -> tuple[int, int]:
    """Return the numbers of the rows that a filter of a key range asks for."""
    terms = {(name, verb): value.replace("''", "'") for name, verb, value in _TERM.findall(text)}
    low, high = 0, shape.rows
    numbers, key = range(shape.rows), shape.key
    if (partition := terms.get(("PartitionKey", "eq"))) is not None:
        low = bisect.bisect_left(numbers, partition, key=lambda n: key(n)[0])
        high = bisect.bisect_right(numbers, partition, key=lambda n: key(n)[0])
        if (row := terms.get(("RowKey", "gt"))) is not None:
            low = bisect.bisect_right(numbers, (partition, row), low, high, key=key)
        if (row := terms.get(("RowKey", "le"))) is not None:
            high = bisect.bisect_right(numbers, (partition, row), low, high, key=key)
    if (partition := terms.get(("PartitionKey", "gt"))) is not None:
        low = bisect.bisect_right(numbers, partition, key=lambda n: key(n)[0])
    if (partition := terms.get(("PartitionKey", "lt"))) is not None:
        high = bisect.bisect_left(numbers, partition, key=lambda n: key(n)[0])
    if (partition := terms.get(("PartitionKey", "le"))) is not None:
        high = bisect.bisect_right(numbers, partition, key=lambda n: key(n)[0])
    return low, high


def _continued(number: int) -> bytes:
    return b"x-ms-continuation-NextPartitionKey: p\r\nx-ms-continuation-NextRowKey: %d\r\n" % number


class _Connection(asyncio.Protocol):
    def __init__(self, stub: Stub) -> None:
        self._stub, self._got = stub, b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what to write to."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every whole request."""
        self._got += data
        while (end := self._got.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._got, 0, end + 2)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._got) < whole:
                return
            head, body, self._got = self._got[:end], self._got[end + 4 : whole], self._got[whole:]
            status, headers, answer = self._stub.answer(head, body)
            self._send(
                b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\nDate: %s\r\n\r\n%s"
                % (status, headers, len(answer), formatdate(usegmt=True).encode(), answer)
            )

    def _send(self, answer: bytes) -> None:
        assert self._transport is not None
        if self._stub.options.latency:
            asyncio.get_running_loop().call_later(self._stub.options.latency, self._transport.write, answer)
        else:
            self._transport.write(answer)


async def serve(stub: Stub) -> None:
    """Print the port, and answer until the input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(stub), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


class StubProcess(ServerProcess):
    """The stub as a process of its own. `options` are those of the command line."""

    module = "benchmarks.stub"

    def __init__(self, rows: int, *options: str) -> None:
        """Take how many rows the source has, and further options."""
        super().__init__(self.module, rows, *options)

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def stats(self) -> dict[str, Any]:
        """Return what it counted."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/stats") as answer:
            return dict(json.load(answer))


def rates(text: str) -> list[tuple[float, int]]:
    """Read `20000` or `20000,30:60000,60:10000`: a rate, and others from so many seconds on."""
    steps = [part.rpartition(":") for part in text.split(",")]
    return [(float(begins or 0), int(rate)) for begins, _, rate in steps]


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stub")
    parser.add_argument("rows", type=int, help="rows of the source")
    parser.add_argument("--huge", action="store_true", help="half of the rows lie in one partition")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help="of the source, without --huge")
    parser.add_argument("--target", action="store_true", help="the target holds what a migration makes")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before every answer")
    parser.add_argument("--limits", action="store_true", help="refuse beyond the rates")
    parser.add_argument(
        "--account-rate", type=rates, default=str(ACCOUNT_RATE), metavar="N[,S:N]...", help="entities/s"
    )
    parser.add_argument("--partition-rate", type=int, default=PARTITION_RATE, help="entities/s of each")
    parser.add_argument("--busy", type=float, default=0.0, help="share of requests that are refused")
    parser.add_argument("--remember", action="store_true", help="count distinct rows written")
    return parser


def main() -> None:
    """Serve until the input ends."""
    gc.disable()  # it makes no cycles; looking through millions of remembered keys for some stops it for long
    asyncio.run(serve(Stub(parser().parse_args())))


if __name__ == "__main__":
    main()
