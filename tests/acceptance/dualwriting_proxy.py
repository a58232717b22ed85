"""A fault proxy as a process of its own: bad weather between clients and Azurite, drawn from a seed.

    python -m tests.acceptance.dualwriting_proxy '{"upstream": ["127.0.0.1", 10002], "seed": 1, "lost": 0.01}'

Rules kept here:

* It prints the port it listens on, serves until its standard input ends, and prints what it dealt out. A line
  on its standard input is the weather from then on.
* It reads as little of HTTP as it must (where a message ends), and keeps one connection to Azurite for each
  one of a client: hundreds of requests a second go through it at full speed.
* What a request meets is drawn before it is passed on. A request that was read is passed on or not, as drawn,
  also when the client is gone by then: killing a client does not undo what it sent.
* `late` requests arrive after their connection was cut. Only those are held that a newer write makes void
  (conditional on one ETag): late unconditional writes overwrite newer ones in a plain table, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tests.fakes.fault_proxy import Answered, batch_error_answer, error_answer, wire_form

_ROOT = Path(__file__).parents[2]
LIMIT = 8 * 1024 * 1024


@dataclass(frozen=True)
class Weather:
    """How often a request meets what: shares of all requests, the rest pass. Times in seconds.

    Attributes:
        seed: of the draws.
        delayed, delay: how many wait before they are passed on, and how long at most.
        lost: applied, then the connection is cut instead of an answer.
        cut: the connection is cut, nothing was applied.
        busy: 503 ServerBusy, nothing was applied.
        failed: 500 InternalError, nothing was applied.
        timed_out: 408 without a code, nothing was applied.
        applied_and_failed: applied, then 500 OperationTimedOut.
        late: the connection is cut, and the request arrives up to `delay` later.
    """

    seed: int = 0
    delayed: float = 0.0
    delay: float = 0.2
    lost: float = 0.0
    cut: float = 0.0
    busy: float = 0.0
    failed: float = 0.0
    timed_out: float = 0.0
    applied_and_failed: float = 0.0
    late: float = 0.0

    def draw(self, lot: random.Random, *, conditional: bool) -> str:
        """Draw what one request meets, "" for nothing."""
        drawn = lot.random()
        for what in ("delayed", "lost", "cut", "busy", "failed", "timed_out", "applied_and_failed", "late"):
            drawn -= getattr(self, what)
            if drawn < 0:
                return what if conditional or what != "late" else "cut"
        return ""


STORMY = Weather(
    delayed=0.05, lost=0.01, cut=0.005, busy=0.01, failed=0.005, applied_and_failed=0.005, late=0.005
)
"""One request of twenty-five goes wrong: a write of a client takes about eight."""
BREEZY = Weather(delayed=0.05, busy=0.02)
"""Nothing stays open: every request is applied and answered, or turned away."""


@dataclass
class Message:
    """One HTTP message as it came: head and body, byte for byte."""

    first: str
    headers: dict[str, str]
    data: bytes

    @property
    def conditional(self) -> bool:
        return self.headers.get("if-match", "*") != "*"


async def read_message(reader: asyncio.StreamReader) -> Message:
    """Read one message. Raises asyncio.IncompleteReadError at the end of the stream."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    data = bytearray(head)
    if headers.get("transfer-encoding", "").lower() == "chunked":
        size = 1
        while size:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            data += line + await reader.readexactly(size + 2)
    else:
        data += await reader.readexactly(int(headers.get("content-length", "0")))
    return Message(first, headers, bytes(data))


class SeededProxy:
    """Passes requests on to `upstream`, through the weather."""

    def __init__(self, upstream: tuple[str, int], weather: Weather) -> None:
        self._upstream = upstream
        self._weather = weather
        self._lot = random.Random(weather.seed)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.dealt: Counter[str] = Counter()

    def change(self, weather: Weather) -> None:
        """Let requests meet another weather from now on; its seed is of no account."""
        self._weather = weather

    async def start(self) -> int:
        """Listen on a free port of 127.0.0.1 and return it."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=LIMIT)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Cut all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while True:
                asked = await read_message(reader)
                if upstream is None:
                    upstream = await asyncio.open_connection(*self._upstream, limit=LIMIT)
                if not await self._serve_one(asked, upstream, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # one of the sides is done with this connection
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            if upstream is not None:
                upstream[1].transport.abort()

    async def _serve_one(
        self,
        asked: Message,
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Serve one request; False when the connection is to be cut."""
        meets = self._weather.draw(self._lot, conditional=asked.conditional)
        self.dealt["requests"] += 1
        if meets:
            self.dealt[meets] += 1
        if meets in ("delayed", "late"):
            wait = self._lot.uniform(0, self._weather.delay)
            if meets == "late":
                writer.transport.abort()
            await asyncio.sleep(wait)
        if meets == "cut":
            return False
        if meets in ("busy", "failed", "timed_out"):
            writer.write(wire_form(_refusal(asked, meets)))
            await writer.drain()
            return True
        answered = await ask(asked, upstream)
        if meets in ("lost", "late"):
            return False
        if meets == "applied_and_failed":
            answered = wire_form(error_answer(500, "OperationTimedOut"))
        writer.write(answered)
        await writer.drain()
        return True


async def ask(asked: Message, upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    """Pass a request on and return the answer."""
    upstream[1].write(asked.data)
    await upstream[1].drain()
    answer = await read_message(upstream[0])
    while answer.first.split(" ")[1] == "100":
        answer = await read_message(upstream[0])
    return answer.data


def _refusal(asked: Message, meets: str) -> Answered:
    if meets == "failed":
        return error_answer(500, "InternalError")
    if meets == "timed_out":
        return error_answer(408)
    if "$batch" in asked.first:
        return batch_error_answer(503, "ServerBusy", 0)
    return error_answer(503, "ServerBusy")


# --- the process ------------------------------------------------------------------------------------------


class ProxyProcess:
    """The proxy of one test, as a process; `dealt` is known after its end."""

    def __init__(self, upstream: str, weather: Weather) -> None:
        """Take Azurite's address (`http://127.0.0.1:PORT/…`) and the weather."""
        parts = urlsplit(upstream)
        self._words = json.dumps({"upstream": [parts.hostname, parts.port], **asdict(weather)})
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.dealt: dict[str, int] = {}

    def instead_of(self, endpoint: str) -> str:
        """Return an account's endpoint behind the proxy."""
        return f"http://127.0.0.1:{self.port}{urlsplit(endpoint).path}"

    def change(self, weather: Weather) -> None:
        """Let requests meet another weather from now on."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(weather)) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> ProxyProcess:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, self._words],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        out, _ = self._process.communicate(timeout=30)
        self.dealt = json.loads(out)


async def _main(upstream: list[Any], **weather: Any) -> None:
    proxy = SeededProxy((upstream[0], upstream[1]), Weather(**weather))
    print(await proxy.start(), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        proxy.change(Weather(**json.loads(line)))
    await proxy.stop()
    print(json.dumps(proxy.dealt))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(**json.loads(sys.argv[1])))
