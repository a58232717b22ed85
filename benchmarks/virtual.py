"""Simulated time: an event loop whose clock jumps to the next timer, and the stub within this process.

What is measured in it depends on limits and latencies alone, not on the machine: nothing takes time but what
waits for the clock.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from multidict import CIMultiDict

from benchmarks.stub import ACCOUNT, Stub
from rekey.core.clock import TICKS_PER_SECOND
from rekey.tables.answers import Answer
from rekey.tables.azure import AzureTableService
from rekey.tables.requests import Requester, RetryPolicy
from rekey.tables.sent import RequestKind, Sent, kind_of
from rekey.tables.transport import Request

T = TypeVar("T")


class _Loop(asyncio.SelectorEventLoop):
    """Runs what is ready, then jumps to the earliest timer. Threads and sockets are not waited for."""

    def __init__(self) -> None:
        super().__init__(_Selector(self))
        self.seconds = 0.0

    def time(self) -> float:
        """Return the simulated time in seconds."""
        return self.seconds


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: _Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        """Let the time go by that the loop would wait."""
        if timeout is None:
            raise RuntimeError("all tasks wait, and no timer is set")
        self._loop.seconds += max(0.0, timeout)
        return []


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in simulated time, from 0 on."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)


class VirtualClock:
    """The running loop's time, as a `rekey.core.clock.Clock`."""

    def ticks(self) -> int:
        """Return ticks since the loop began."""
        return round(self.monotonic() * TICKS_PER_SECOND)

    def monotonic(self) -> float:
        """Return seconds since the loop began; 0 before."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 0.0

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        await asyncio.sleep(seconds)


class StubTransport:
    """Asks a stub of this process; an answer takes `latency` seconds. In the place of a `Transport`."""

    signature_valid_s = 0.0

    def __init__(self, stub: Stub, latency: float) -> None:
        self._stub, self._latency, self._clock = stub, latency, VirtualClock()
        self.listener: Callable[[RequestKind, int, float], None] | None = None
        self.admit: Callable[[RequestKind], Awaitable[None]] | None = None
        self.sent = Sent()

    async def send(self, request: Request) -> Answer:
        """Send once."""
        kind = kind_of(request.method, request.path)
        if self.admit is not None:
            await self.admit(kind)
        self.sent.add(kind.value)
        await self._clock.sleep(self._latency / 2)
        head = f"{request.method} /{ACCOUNT}/{request.path} HTTP/1.1\r\n\r\n".encode()
        status, headers, body = self._stub.answer(head, request.body or b"")
        await self._clock.sleep(self._latency / 2)
        code = int(status.split()[0])
        if self.listener is not None:
            self.listener(kind, code, self._latency)
        lines = [line.split(": ", 1) for line in headers.decode().split("\r\n") if line]
        return Answer(code, CIMultiDict((name, value) for name, value in lines), body)

    async def close(self) -> None:
        """Do nothing."""


def service_of(stub: Stub, latency: float) -> AzureTableService:
    """Return a service whose requests a stub answers in simulated time."""
    transport: Any = StubTransport(stub, latency)
    requester = Requester(transport, RetryPolicy(), VirtualClock(), random.Random(1))
    return AzureTableService(f"http://127.0.0.1/{ACCOUNT}", transport, requester)
