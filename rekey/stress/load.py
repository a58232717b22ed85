"""Sending the requests of a step when they are due, and recording their responses.

Rules kept here:

* Requests are due at fixed moments, whether earlier ones were answered or not, and latency counts from the
  moment a request was due: a stall of the service counts for all requests that would have met it.
* No request is sent again: refusals are measured.
* Requests that wait for responses are bounded. One that is due while too many wait is not sent, and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from rekey.core.clock import Clock
from rekey.errors import Ambiguous, EndpointDown, Unavailable
from rekey.model import EntityKey, KeyRange
from rekey.stress.mix import OperationKind
from rekey.stress.requests import UNSENT, Offered, Request, Response
from rekey.tables.base import Operation, Table, Verb

MOST_WAITING = 256
_EXPECTED = (Unavailable, Ambiguous, EndpointDown)
_AFTER_ROWS = "~"
"""Sorts after every made-up RowKey."""


async def carry_out(table: Table, request: Request) -> int:
    """Send one request; return how many entities were written or returned. Raises ServiceError."""
    match request.kind:
        case OperationKind.POINT_READ:
            await table.get(request.key)
        case OperationKind.RANGE_QUERY:
            within = KeyRange(request.before, EntityKey(request.key.partition, _AFTER_ROWS))
            async with aclosing(table.scan(within, page_rows=request.size, ahead=False)) as pages:  # type: ignore[type-var]
                page = await anext(pages, None)
                return len(page.rows) if page else 0
        case OperationKind.INSERT:
            await table.insert(request.rows[0])
        case OperationKind.UPDATE:
            await table.replace(request.rows[0])
        case OperationKind.DELETE:
            await table.delete(request.key)
        case OperationKind.BATCH:
            await table.transact([Operation(Verb.INSERT, row) for row in request.rows])
    return request.size


class Generator(Protocol):
    """Load generator: this process, or several others."""

    async def offer(self, requests: Sequence[Request]) -> Offered:
        """Send requests, ordered by when they are due, and wait for all responses.

        Raises:
            ServiceError: something other than load is wrong: the table is gone, a credential is refused.
            WorkersFailed: a process that generates load ended.
        """


@dataclass(frozen=True)
class InProcess:
    """Load generator in this process.

    Attributes:
        table: the test table, by a connection that tries nothing again.
        clock: tells when requests are due.
        processor: seconds of processor that this process has used.
    """

    table: Table
    clock: Clock
    processor: Callable[[], float] = time.process_time

    async def offer(self, requests: Sequence[Request]) -> Offered:
        """Send requests and wait for all responses; see `Generator`."""
        responses: list[Response] = []
        waiting = 0
        began, used = self.clock.rising(), self.processor()

        def now() -> float:
            return self.clock.rising() - began

        async def send(request: Request) -> None:
            nonlocal waiting
            status: int | None = None
            sent, entities = now(), request.size
            try:
                entities = await carry_out(self.table, request)
            except _EXPECTED as error:
                status = error.status
            finally:
                waiting -= 1
            responses.append(Response(request, sent, now(), status, entities))

        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    # Also when it is late: responses must be taken in.
                    await self.clock.sleep(max(0.0, request.due - now()))
                    if waiting >= MOST_WAITING:
                        responses.append(Response(request, now(), now(), UNSENT, request.size))
                        continue
                    waiting += 1
                    group.create_task(send(request))
                lasted, used = now(), self.processor() - used
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        # The last request is due at the end of a step, or is the only one.
        return Offered(responses, used / max(lasted, 1.0))
