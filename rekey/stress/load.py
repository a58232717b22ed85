"""Sends the requests of a step when they are due and records their responses, from one or several processes.

Requests are due at fixed moments, whether earlier ones were answered or not, and latency counts from the
moment a request was due: a stall of the service counts for all requests that would have met it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from rekey.core.clock import Clock, SystemClock
from rekey.errors import Ambiguous, EndpointDown, Unavailable, WorkersFailed
from rekey.executors import Processes
from rekey.model import EntityKey, KeyRange
from rekey.project.config import Account, account_key
from rekey.stress.mix import OperationKind
from rekey.stress.requests import UNSENT, Offered, Request, Response
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Operation, Table, Verb
from rekey.tables.credentials import credential_of
from rekey.tables.requests import RetryPolicy
from rekey.tables.transport import Network, Timeouts

# Maximum requests in flight; one that is due beyond that is not sent, and counted.
MOST_WAITING = 256
_ANSWER_SECONDS = 10
_EXPECTED = (Unavailable, Ambiguous, EndpointDown)
# Sorts after every generated RowKey.
_AFTER_ROWS = "~"


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
    """A load generator: this process, or several others."""

    async def offer(self, requests: Sequence[Request]) -> Offered:
        """Send requests, ordered by when they are due, and wait for all responses. No request is retried:
        refusals are measured.

        Raises:
            ServiceError: an error other than load: the table is gone, a credential is refused.
            WorkersFailed: a process that generates load ended, and what it had sent is unknown.
        """


@dataclass(frozen=True)
class InProcess:
    """A load generator in this process."""

    # The test table, by a connection without retries.
    table: Table
    # Tells when requests are due.
    clock: Clock
    # Seconds of processor time that this process has used.
    processor: Callable[[], float] = time.process_time

    async def offer(self, requests: Sequence[Request]) -> Offered:
        responses: list[Response] = []
        waiting = 0
        began, used = self.clock.monotonic(), self.processor()

        def now() -> float:
            return self.clock.monotonic() - began

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
                    # Also when late, so that responses are read.
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


# --- several processes -------------------------------------------------------------------------------------


def open_loaded(account: Account) -> AzureTableService:
    """Return an account's tables without retries and with many connections."""
    return AzureTableService.open(
        account.endpoint,
        credential_of(account.name, account_key(account)),
        retry=RetryPolicy(attempts=1, connect_attempts=1),
        network=Network(Timeouts(read=_ANSWER_SECONDS, service=_ANSWER_SECONDS), MOST_WAITING),
    )


class LoadProcesses:
    """A load generator of several processes, each with its part of every step. They are killed when the test
    ends, so that none sends a request afterwards."""

    def __init__(self, count: int, account: Account, table: str) -> None:
        # Pools of one process each: a larger pool could give one process two parts of a step.
        self._pools = [Processes(1) for _ in range(count)]
        self._about = account, table
        self._others = set(multiprocessing.active_children())

    async def __aenter__(self) -> LoadProcesses:
        """Start the processes and wait until they are ready. Raises WorkersFailed."""
        try:
            await self.offer([])
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in set(multiprocessing.active_children()) - self._others:
            process.kill()
            process.join()

    async def offer(self, requests: Sequence[Request]) -> Offered:
        loop, count = asyncio.get_running_loop(), len(self._pools)
        try:  # a pool whose process has ended raises at once
            parts = [
                loop.run_in_executor(pool, _offer, *self._about, requests[first::count])
                for first, pool in enumerate(self._pools)
            ]
            offered = await asyncio.gather(*parts)
        except BrokenExecutor:
            raise WorkersFailed(
                "a process that generates load ended",
                kept="everything; the test table is removed",
                hint="see whether this machine has memory left, then repeat the command; or set [load]"
                " processes lower",
            ) from None
        # A process that used up its core is the limit, even if the others are idle.
        processor = max(part.processor for part in offered)
        return Offered([response for part in offered for response in part.responses], processor)


@cache
def _generator(account: Account, table: str) -> tuple[asyncio.Runner, InProcess]:
    return asyncio.Runner(), InProcess(open_loaded(account).table(table), SystemClock())


def _offer(account: Account, table: str, requests: Sequence[Request]) -> Offered:
    runner, generator = _generator(account, table)
    return runner.run(generator.offer(requests))
