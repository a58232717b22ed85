"""Several processes that generate load together.

Rules kept here:

* A process gets whole requests, its part of each step; its connections outlast a step.
* The processes leave the terminal's signals to this one, end with it however it ends (`executors.Processes`),
  and are killed when the test ends: none of them sends a request afterwards.
* A process that ends before ends the test with an error: what it had sent is unknown.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from functools import cache

from rekey.core.clock import SystemClock
from rekey.errors import WorkersFailed
from rekey.executors import Processes
from rekey.project.config import Account, account_key
from rekey.stress.load import MOST_WAITING, InProcess
from rekey.stress.requests import Offered, Request
from rekey.tables.azure import AzureTableService
from rekey.tables.credentials import credential_of
from rekey.tables.requests import RetryPolicy
from rekey.tables.transport import Timeouts

_ANSWER_SECONDS = 10


def open_loaded(account: Account) -> AzureTableService:
    """Return an account as a stress test loads it: nothing is tried again, and many requests may wait."""
    return AzureTableService.open(
        account.endpoint,
        credential_of(account.name, account_key(account)),
        retry=RetryPolicy(attempts=1, connect_attempts=1),
        timeouts=Timeouts(read=_ANSWER_SECONDS, service=_ANSWER_SECONDS),
        connections=MOST_WAITING,
    )


class LoadProcesses:
    """Load generator of several processes, each with its part of every step."""

    def __init__(self, count: int, account: Account, table: str) -> None:
        """Create the generator for the test table `table`; entering it starts `count` processes."""
        # Pools of one process each: a pool of several may give one of them two parts of a step.
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
        """Kill the processes."""
        for process in set(multiprocessing.active_children()) - self._others:
            process.kill()
            process.join()

    async def offer(self, requests: Sequence[Request]) -> Offered:
        """Send requests, ordered by when they are due, and wait for all responses; see `Generator`."""
        loop, count = asyncio.get_running_loop(), len(self._pools)
        try:  # a pool whose process has ended refuses a part at once
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
        # A process that used up its core is the limit, however idle the others are.
        processor = max(part.processor for part in offered)
        return Offered([response for part in offered for response in part.responses], processor)


# --- in such a process -----------------------------------------------------------------------------------


@cache
def _generator(account: Account, table: str) -> tuple[asyncio.Runner, InProcess]:
    return asyncio.Runner(), InProcess(open_loaded(account).table(table), SystemClock())


def _offer(account: Account, table: str, requests: Sequence[Request]) -> Offered:
    runner, generator = _generator(account, table)
    return runner.run(generator.offer(requests))
