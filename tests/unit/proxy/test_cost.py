"""What bytes cost a proxy before a credential is judged, or with a token that only the account can verify:
steps and memory are bounded by the number of bytes. Made-up requests, of which something is there many times,
through aiohttp's reading of HTTP and the whole handler, on a transport in memory.

Soak: as long as allowed.
Reason, and what `make test` covers: 60 made-up requests.
"""

from __future__ import annotations

import asyncio
import email.utils
import gc
import logging
import random
import time
import tracemalloc
import urllib.parse
from collections.abc import Iterable, Sequence
from email.utils import formatdate
from typing import Any

import pytest

from rekey.client.sdk import calls
from rekey.proxy import access, answer, batch, handler, parse, sas
from tests.asserts.steps import Text, counted
from tests.soaking import soak_seconds
from tests.unit.proxy.test_fuzz import ACCOUNT, DAMAGE, HEADERS, READ_ONLY, ROWS, World, exchange
from tests.unit.proxy.test_fuzz import batch as batch_of

MODULES = (parse, access, sas, batch, calls, answer, handler, urllib.parse, email.utils)
# For a request as such, and for each of its bytes. Most steps are of regular expressions, most memory is of
# what is percent-encoded, which Python decodes as one object for each escape.
STEPS, STEPS_A_BYTE = 15_000, 40
BYTES, BYTES_A_BYTE = 200_000, 120
IN_TARGET = (
    *("a", "&a#=1", "&#", "&$filter=", "%41", "%C3%BC", "'", "''", "(", ")", "/", "+", "=", "&"),
    *("%2F", ";"),
)
IN_HEADER = (*IN_TARGET, " ", "; ", ",", '"', "boundary=", "GMT", "1", "multipart/mixed;")
IN_BODY = (
    *IN_HEADER,
    *HEADERS,
    "\r\n",
    "--b",
    "--b\r\n",
    "--c\r\n\r\n",
    "\r\n\r\n",
    "[",
    '{"a":',
    "0.1,",
    "\x00",
)
RESOURCES = (
    "Plain()",
    "Moved()",
    "Plain(PartitionKey='a',RowKey='b')",
    "Tables('Plain')",
    "Tables",
    "$batch",
    "",
)
SHOWN = (
    "Bearer x",
    "Bearer x",
    "Bearer x",
    "SharedKey acct:x",
    "SharedKeyLite acct:x",
    "Basic x",
    "SharedKey",
)
NAMES = ("Accept", "Content-Type", "x-ms-date", "Date", "If-Match", "x-ms-version", "TE", "Prefer")


def repeated(draw: random.Random, text: str, pieces: Sequence[str]) -> str:
    """Return a text with something put in, once in a while very often; # is its number."""
    at, times = draw.randrange(len(text) + 1), draw.choice((0, 0, 1, 3, 60, 900))
    piece = draw.choice(pieces)
    return text[:at] + "".join(piece.replace("#", str(number)) for number in range(times)) + text[at:]


def request(draw: random.Random) -> bytes:
    """Make a request up."""
    resource = draw.choice(RESOURCES)
    method = draw.choice(("GET", "GET", "POST", "PUT")) if resource != "$batch" else "POST"
    query = draw.choice(("", "$top=1", "$filter=RowKey%20eq%20'a'", READ_ONLY, "timeout=1&comp=acl"))
    path = f"/{ACCOUNT}/{resource}"
    path = repeated(draw, path, IN_TARGET) if draw.random() < 0.2 else path
    target = f"{path}?{repeated(draw, query, IN_TARGET)}"
    headers = [f"Host: {repeated(draw, 'x', 'a1.') if draw.random() < 0.1 else 'x'}"]
    if draw.random() < 0.8:
        shown = draw.choice(SHOWN)
        headers.append(f"Authorization: {repeated(draw, shown, IN_HEADER) if draw.random() < 0.3 else shown}")
    kind = "multipart/mixed; boundary=b" if resource == "$batch" else "application/json"
    for name in draw.sample(NAMES, draw.randrange(4)):
        value = {"Content-Type": kind, "x-ms-date": formatdate(usegmt=True)}.get(name, "a")
        headers.append(f"{name}: {repeated(draw, value, IN_HEADER)}")
    headers += [
        f"{draw.choice(('Accept', 'x-a#'))}: b".replace("#", str(number))
        for number in range(draw.choice((0, 0, 90, 300)))
    ]
    body = batch_of(draw) if resource == "$batch" else draw.choice(ROWS)
    body = repeated(draw, body.decode("latin-1"), IN_BODY).encode("latin-1") if method != "GET" else b""
    head = f"{method} {target} HTTP/1.1\r\n" + "\r\n".join([*headers, f"Content-Length: {len(body)}", "", ""])
    sent = head.encode("latin-1") + body
    at, damage = draw.randrange(len(sent)), draw.choice(DAMAGE)
    return sent[:at] + damage + sent[at:] if draw.random() < 0.1 else sent


async def send(pieces: Sequence[bytes]) -> None:
    """Send a request to a proxy that takes bearer tokens."""
    await exchange(World(tokens=True), pieces, secure=True)


def measured(draw: random.Random, patch: pytest.MonkeyPatch) -> tuple[bytes, int, int]:
    """Send a made-up request; return it, the steps it took, and the most memory."""
    sent = request(draw)
    cuts = sorted(draw.randrange(len(sent)) for _ in range(draw.choice((0, 0, 1, 5))))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    asyncio.run(send(pieces))
    gc.collect()
    tracemalloc.start()
    asyncio.run(send(pieces))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with counted(patch, *MODULES) as steps:
        plain = parse.parse

        def counting(method: str, target: str, headers: Iterable[tuple[str, str]], account: str) -> Any:
            return plain(method, Text.of(target, steps), Text.of(list(headers), steps), account)

        for module in (handler, batch):
            patch.setattr(module, "parse", counting)
        asyncio.run(send(pieces))
    patch.undo()
    return sent, steps.taken, peak


def search(seed: int, seconds: float, most: int, patch: pytest.MonkeyPatch) -> int:
    """Send made-up requests; return how many."""
    logging.getLogger("rekey.proxy").setLevel(logging.CRITICAL)
    draw, ends, count = random.Random(seed), time.monotonic() + seconds, 0
    worst = [0.0, 0.0]
    # What other tests left need not be gone through for each request: that took a second and a half.
    gc.collect()
    gc.freeze()
    while count < most and time.monotonic() < ends:
        sent, steps, memory = measured(draw, patch)
        worst = [max(worst[0], (steps - STEPS) / len(sent)), max(worst[1], (memory - BYTES) / len(sent))]
        said = (
            f"seed {seed}, request {count}: {len(sent):,} bytes, {steps:,} steps, {memory:,} bytes of memory"
        )
        assert steps <= STEPS + STEPS_A_BYTE * len(sent), f"{said}: {sent!r}"
        assert memory <= BYTES + BYTES_A_BYTE * len(sent), f"{said}: {sent!r}"
        count += 1
    print(f"seed {seed}: {count:,} requests; at most {worst[0]:.0f} steps, {worst[1]:.0f} bytes a byte")
    return count


def test_what_is_not_judged_yet_costs_steps_and_memory_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(random.SystemRandom().randrange(2**32), float("inf"), 60, monkeypatch) == 60


def test_a_long_key_costs_memory_by_its_size() -> None:
    """A repeated group of a regular expression keeps 200 bytes for each character that it may take back."""
    sent = b"GET /acct/Plain(PartitionKey='a',RowKey='%b') HTTP/1.1\r\nHost: x\r\n\r\n" % (b"&$filter=" * 900)
    asyncio.run(send([sent]))
    tracemalloc.start()
    asyncio.run(send([sent]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= BYTES + BYTES_A_BYTE * len(sent)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_whatever_comes_costs_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search(random.SystemRandom().randrange(2**32), soak_seconds(), 10**9, monkeypatch) > 0
