"""Offering rates to a table, each for some seconds, and recording what comes of it.

Rules kept here:

* Requests are due at fixed moments, whether earlier ones were answered or not, and latency counts from the
  moment a request was due: a service that stalls is not spared the requests that would have met it.
* Nothing is tried again: what is refused is what is measured.
* What waits for answers is bounded. A request that is due while too many wait is not sent, and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from rekey.core.clock import Clock
from rekey.errors import Ambiguous, EndpointDown, Unavailable
from rekey.model import EntityKey, KeyRange
from rekey.stress.mix import OperationKind
from rekey.stress.requests import UNSENT, Offered, Request, Response
from rekey.stress.spread import MadeUp, filling, row_key
from rekey.stress.steps import Bounds, Step, measure
from rekey.tables.base import Operation, Table, Verb

MOST_WAITING = 256
_EXPECTED = (Unavailable, Ambiguous, EndpointDown)
_BEYOND_ROWS = "~"
"""Sorts after every made-up RowKey."""


async def carry_out(table: Table, request: Request, value: str) -> int:
    """Send one request; return how many entities were written or returned. Raises ServiceError.

    Args:
        table: the test table.
        request: what to do.
        value: what rows are filled with.
    """
    match request.kind:
        case OperationKind.POINT_READ:
            await table.get(request.key)
        case OperationKind.RANGE_QUERY:
            before = EntityKey(request.partition, row_key(request.number - 1) if request.number else "")
            within = KeyRange(before, EntityKey(request.partition, _BEYOND_ROWS))
            async with aclosing(table.scan(within, page_rows=request.size, ahead=False)) as pages:  # type: ignore[type-var]
                async for page in pages:
                    return len(page.rows)
            return 0
        case OperationKind.INSERT:
            await table.insert(request.rows(value)[0])
        case OperationKind.UPDATE:
            await table.replace(request.rows(value)[0])
        case OperationKind.DELETE:
            await table.delete(request.key)
        case OperationKind.BATCH:
            await table.transact([Operation(Verb.INSERT, row) for row in request.rows(value)])
    return request.size


class Generator(Protocol):
    """What sends the requests of a step: this process, or several others."""

    async def offer(self, requests: Sequence[Request]) -> Offered:
        """Send requests, ordered by when they are due, and wait for all answers.

        Raises:
            ServiceError: something other than load is wrong: the table is gone, a credential is refused.
            WorkersFailed: a process ended.
        """


class InProcess:
    """Sends requests from this process."""

    def __init__(
        self,
        table: Table,
        clock: Clock,
        *,
        row_bytes: int,
        processor: Callable[[], float] = time.process_time,
    ) -> None:
        """Take the test table.

        Args:
            table: the test table, by a connection that tries nothing again.
            clock: tells when requests are due.
            row_bytes: how large written rows are.
            processor: seconds of processor that this process has used.
        """
        self._table = table
        self._clock = clock
        self._value = filling(row_bytes)
        self._processor = processor

    async def offer(self, requests: Sequence[Request]) -> Offered:
        """Send requests and wait for all answers; see `Generator`."""
        responses: list[Response] = []
        waiting = 0
        began, used = self._clock.rising(), self._processor()

        def now() -> float:
            return self._clock.rising() - began

        async def send(request: Request) -> None:
            nonlocal waiting
            status: int | None = None
            sent, entities = now(), request.size
            try:
                entities = await carry_out(self._table, request, self._value)
            except _EXPECTED as error:
                status = error.status
            finally:
                waiting -= 1
            responses.append(Response(request, sent, now(), status, entities))

        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    # Also when it is late: answers must be taken in.
                    await self._clock.sleep(max(0.0, request.due - now()))
                    if waiting >= MOST_WAITING:
                        responses.append(Response(request, now(), now(), UNSENT, request.size))
                        continue
                    waiting += 1
                    group.create_task(send(request))
                lasted, used = now(), self._processor() - used
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return Offered(responses, used / max(lasted, requests[-1].due, 0.001))


class Load:
    """What is offered in one test, and what is left of its time and rows.

    Attributes:
        bounds: of the whole test.
        clock: tells when requests are due.
        sent: rows sent or asked for so far.
    """

    def __init__(self, generator: Generator, bounds: Bounds, clock: Clock) -> None:
        """Take what sends, and the bounds; the test begins now."""
        self.bounds = bounds
        self.clock = clock
        self.sent = 0
        self._generator = generator
        self._began = clock.rising()

    @property
    def spent(self) -> float:
        """Return the seconds since the beginning."""
        return self.clock.rising() - self._began

    def share(self, stages: int) -> tuple[float, int]:
        """Return until which second, and up to which row, the first of so many stages may go."""
        seconds, rows = self.bounds.seconds - self.spent, self.bounds.rows - self.sent
        return self.spent + seconds / stages, self.sent + rows // stages

    async def send(self, requests: Sequence[Request]) -> Offered:
        """Send requests and wait for all answers. Raises as `Generator.offer` does."""
        self.sent += sum(request.size for request in requests)
        return await self._generator.offer(requests)

    async def offer(self, rows: MadeUp, rate: float, seconds: float) -> Step:
        """Insert at a rate for some seconds, and wait for all answers.

        Args:
            rows: where rows go.
            rate: rows a second.
            seconds: how long.

        Raises:
            ServiceError: something other than load is wrong: the table is gone, a credential is refused.
        """
        batch = self.bounds.batch
        kind = OperationKind.INSERT if batch == 1 else OperationKind.BATCH
        requests = [
            Request(number * batch / rate, kind, *rows.take(batch), batch)
            for number in range(max(1, round(rate * seconds / batch)))
        ]
        sent = await self.send(requests)
        return measure(sent.responses, seconds, offered=rate, processor=sent.processor)
