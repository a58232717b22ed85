"""Bad weather between clients and Azurite, drawn from a seed: a proxy, in this process or as one of its own.

    python -m tests.fakes.weather '{"upstream": ["127.0.0.1", 10002], "seed": 1, "parties": {...}}'

Rules kept here:

* Each party (the runner, the application's clients) has a port and a weather of its own, because the longest
  time that a request may be under way is the party's: its `timeout` parameter if it has one, as the service
  keeps it, and never more than the weather's `held_s`, which stands for the service's own limit.
* A request that is held arrives whoever is gone by then: its caller loses the connection at once or after a
  while, and what was sent takes effect later, behind whatever was done meanwhile.
* A request that was applied and whose connection was cut is what an HTTP library sends again by itself.
* Only writes are held.
* Everything that is not simply passed on is written to a log, which a failure is read with.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tests.fakes.fault_proxy import Answered, batch_error_answer, error_answer, wire_form

_ROOT = Path(__file__).parents[2]
_LIMIT = 8 * 1024 * 1024
_ASKED_WITHIN_S = 30.0
_TIMEOUT = re.compile(r"[?&]timeout=(\d+)")
_WITHIN_BATCH = re.compile(rb"\r\n\r\n((?:POST|PUT|PATCH|MERGE|DELETE) [^\r\n]+) HTTP/1.1")
_NAMED = 3


@dataclass(frozen=True)
class Weather:
    """How often a request meets what: shares of all requests, the rest pass. Times in seconds.

    Attributes:
        hold: it arrives late, and its caller is not answered.
        drop: it never arrives, and its connection is cut.
        repeat: it is applied, and the connection is cut instead of an answer.
        delay: it, or its answer, waits for a moment.
        busy: 503 ServerBusy, nothing is applied.
        failed: 500 InternalError, nothing is applied.
        timed_out: 408 without a code, nothing is applied.
        held_s: a write arrives this long after it was sent, or before, or never.
        delay_s: the longest moment.
    """

    hold: float = 0.0
    drop: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0
    busy: float = 0.0
    failed: float = 0.0
    timed_out: float = 0.0
    held_s: float = 5.0
    delay_s: float = 0.4

    def draw(self, lot: random.Random, *, writes: bool) -> str:
        """Draw what one request meets, "" for nothing."""
        drawn = lot.random()
        for what in ("hold", "drop", "repeat", "delay", "busy", "failed", "timed_out"):
            drawn -= getattr(self, what)
            if drawn < 0:
                return what if writes or what != "hold" else ""
        return ""


CALM = Weather()


@dataclass
class Message:
    """One HTTP message as it came: head and body, byte for byte."""

    first: str
    headers: dict[str, str]
    data: bytes


async def _read_message(reader: asyncio.StreamReader) -> Message:
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


@dataclass
class _Party:
    name: str
    weather: Weather
    port: int = 0


class WeatherProxy:
    """Passes requests on to `upstream`, each party's through its own weather."""

    def __init__(
        self, upstream: tuple[str, int], parties: Mapping[str, Weather], seed: int, log: Path | None = None
    ) -> None:
        self._upstream = upstream
        self._parties = {name: _Party(name, weather) for name, weather in parties.items()}
        self._lot = random.Random(seed)
        self._log = log
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: Counter[str] = Counter()
        self.dealt: Counter[str] = Counter()

    async def start(self) -> dict[str, int]:
        """Listen for each party on a free port of 127.0.0.1; return the ports."""
        for party in self._parties.values():

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, party: _Party = party
            ) -> None:
                await self._serve(party, reader, writer)

            server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_LIMIT)
            self._servers.append(server)
            party.port = int(server.sockets[0].getsockname()[1])
        return {party.name: party.port for party in self._parties.values()}

    def change(self, name: str, weather: Weather) -> None:
        """Let a party meet another weather from now on."""
        self._parties[name].weather = weather

    def figures(self) -> dict[str, Any]:
        """Return what was dealt out so far, and how many writes of each party are held now."""
        return {"dealt": dict(self.dealt), "held": dict(+self._held)}

    async def stop(self) -> None:
        """Cut all connections; what is held is gone."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- one connection, one request ---------------------------------------------------------------------

    async def _serve(self, party: _Party, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while True:
                asked = await _read_message(reader)
                if upstream is None:
                    upstream = await asyncio.open_connection(*self._upstream, limit=_LIMIT)
                if not await self._serve_one(party, asked, upstream, writer):
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
        party: _Party,
        asked: Message,
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Serve one request; False when the connection is to be cut."""
        weather = party.weather
        meets = weather.draw(self._lot, writes=not asked.first.startswith("GET "))
        self.dealt["requests"] += 1
        self.dealt[meets or "passed"] += 1
        most = min([weather.held_s, *(float(one) for one in _TIMEOUT.findall(asked.first))])
        if meets == "hold":
            late = self._lot.uniform(0.2 * most, 0.95 * most)
            deliver = asyncio.create_task(self._deliver(party, asked, late, time.monotonic() + most))
            self._tasks.add(deliver)
            deliver.add_done_callback(self._tasks.discard)
            if self._lot.random() < 0.3:
                await asyncio.sleep(self._lot.uniform(0, late))
            return False
        if meets == "drop":
            self._note(party, "dropped", asked)
            if self._lot.random() < 0.3:
                await asyncio.sleep(self._lot.uniform(0, weather.delay_s))
            return False
        if meets == "repeat":
            await _ask(asked, upstream)
            self._note(party, "applied, not answered", asked)
            return False
        if meets in ("busy", "failed", "timed_out"):
            writer.write(wire_form(_refusal(asked, meets)))
            await writer.drain()
            return True
        before = meets == "delay" and self._lot.random() < 0.5
        if before:
            await asyncio.sleep(self._lot.uniform(0, min(weather.delay_s, most)))
        answered = await _ask(asked, upstream)
        if meets == "delay" and not before:
            await asyncio.sleep(self._lot.uniform(0, weather.delay_s))
        writer.write(answered)
        await writer.drain()
        return True

    async def _deliver(self, party: _Party, asked: Message, late: float, until: float) -> None:
        """Let a request arrive, over a connection of its own.

        Where the machine is too busy to do so in its time, it is given up, as the service does.
        """
        self._held[party.name] += 1
        self._note(party, f"held for {late:.2f} s", asked)
        try:
            await asyncio.sleep(late)
            upstream = await asyncio.open_connection(*self._upstream, limit=_LIMIT)
            try:
                if time.monotonic() > until:
                    self._note(party, "given up", asked)
                    return
                answered = await _ask(asked, upstream)
            finally:
                upstream[1].transport.abort()
            status = answered.split(b"\r\n", 1)[0].decode("latin-1")
            if "$batch" in asked.first:
                found = re.findall(rb"\r\nHTTP/1.1 (\d+)", answered)
                status += f" {sorted({one.decode() for one in found})}"
            self._note(party, f"arrived: {status}", asked)
        except (asyncio.IncompleteReadError, OSError) as failed:
            self._note(party, f"could not arrive: {failed!r}", asked)
        finally:
            self._held[party.name] -= 1

    def _note(self, party: _Party, what: str, asked: Message) -> None:
        if self._log is None:
            return
        inner = [one.decode("latin-1").split("/", 3)[-1] for one in _WITHIN_BATCH.findall(asked.data)]
        more = f" {len(inner)}: {inner[:_NAMED]}" if inner else ""
        line = f"{time.monotonic_ns()} {party.name} {what}: {asked.first}{more}\n"
        with self._log.open("a") as log:
            log.write(line)


async def _ask(asked: Message, upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    """Pass a request on and return the answer."""
    upstream[1].write(asked.data)
    await upstream[1].drain()
    answer = await _read_message(upstream[0])
    while answer.first.split(" ")[1] == "100":
        answer = await _read_message(upstream[0])
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


class WeatherProcess:
    """The proxy as a process of its own."""

    def __init__(self, upstream: str, parties: Mapping[str, Weather], seed: int, log: Path) -> None:
        """Take Azurite's address (`http://127.0.0.1:PORT/...`) and each party's weather."""
        parts = urlsplit(upstream)
        self._words = json.dumps(
            {
                "upstream": [parts.hostname, parts.port],
                "parties": {name: asdict(weather) for name, weather in parties.items()},
                "seed": seed,
                "log": str(log),
            }
        )
        self._process: subprocess.Popen[str] | None = None
        self.ports: dict[str, int] = {}
        self.dealt: Counter[str] = Counter()

    def address(self, party: str, endpoint: str) -> str:
        """Return an account's endpoint as a party sees it."""
        return f"http://127.0.0.1:{self.ports[party]}{urlsplit(endpoint).path}"

    def change(self, party: str, weather: Weather) -> None:
        """Let a party meet another weather from now on."""
        self._tell({"party": party, "weather": asdict(weather)})

    def held(self, party: str | None = None) -> int:
        """Return how many writes (of a party) are held now."""
        found = self._tell({})
        self.dealt = Counter(found["dealt"])
        held: dict[str, int] = found["held"]
        return sum(held.values()) if party is None else held.get(party, 0)

    def __enter__(self) -> WeatherProcess:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, self._words],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.ports = json.loads(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        try:
            if kind is None:
                self.held()
        finally:
            try:
                self._process.communicate(timeout=_ASKED_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()

    def _tell(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        answered: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answered


async def _main(upstream: list[Any], parties: dict[str, Any], seed: int, log: str) -> None:
    weathers = {name: Weather(**weather) for name, weather in parties.items()}
    proxy = WeatherProxy((upstream[0], upstream[1]), weathers, seed, Path(log))
    print(json.dumps(await proxy.start()), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        said = json.loads(line)
        if "party" in said:
            proxy.change(said["party"], Weather(**said["weather"]))
        print(json.dumps(proxy.figures()), flush=True)
    await proxy.stop()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(**json.loads(sys.argv[1])))
