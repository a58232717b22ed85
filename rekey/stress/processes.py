"""Several processes that generate load together.

Rules kept here:

* A process is told whole requests, a line of JSON for each step, and answers with a line. It knows nothing of
  earlier steps, and has read its own credential.
* They do not get the terminal's signals, and end with their input: with this process, however it ends.
* A process that ends before it is told to ends the test, which says so: what it had sent is unknown.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson

from rekey.core.clock import SystemClock
from rekey.core.concurrency import cancel
from rekey.errors import ServiceError, WorkersFailed
from rekey.migration.opening import credential_for
from rekey.project.config import Account
from rekey.stress.load import MOST_WAITING, InProcess
from rekey.stress.mix import OperationKind
from rekey.stress.requests import Offered, Request, Response
from rekey.tables.azure import AzureTableService
from rekey.tables.requests import RetryPolicy
from rekey.tables.transport import Timeouts

_ANSWER_SECONDS = 10
_MOST_LINE = 1 << 30
_PROGRAM = "import sys; sys.path[:] = {path!r}; from rekey.stress.processes import main; main()"


def open_loaded(account: Account) -> AzureTableService:
    """Return an account as it is loaded: nothing is tried again, and many requests wait side by side."""
    return AzureTableService.open(
        account.endpoint,
        credential_for(account),
        retry=RetryPolicy(attempts=1, connect_attempts=1),
        timeouts=Timeouts(read=_ANSWER_SECONDS, service=_ANSWER_SECONDS),
        connections=MOST_WAITING,
    )


class Processes:
    """Processes that send requests, each its part of every step."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        """Take processes that are ready."""
        self._processes = processes

    async def offer(self, requests: Sequence[Request]) -> Offered:
        """Send requests, ordered by when they are due, and wait for all answers; see `Generator`."""
        parts = [requests[first :: len(self._processes)] for first in range(len(self._processes))]
        asked = [
            asyncio.ensure_future(_ask(process, [tuple(request) for request in part]))
            for process, part in zip(self._processes, parts, strict=True)
            if part
        ]
        try:
            answers = await asyncio.gather(*asked)
        finally:
            await cancel(asked)
        responses = [
            Response(_request(request), *result)
            for answer in answers
            for request, *result in answer["responses"]
        ]
        # What one process lacks in processor, another one cannot give it.
        return Offered(responses, max(answer["processor"] for answer in answers))


@asynccontextmanager
async def processes(count: int, account: Account, table: str, row_bytes: int) -> AsyncIterator[Processes]:
    """Start processes, and end them.

    Args:
        count: how many.
        account: the account that is loaded.
        table: the test table.
        row_bytes: how large written rows are.

    Raises:
        WorkersFailed: one of them did not start.
    """
    about = {"endpoint": account.endpoint, "key_env": account.key_env, "table": table, "row_bytes": row_bytes}
    started: list[asyncio.subprocess.Process] = []
    try:
        for _ in range(count):
            program = _PROGRAM.format(path=sys.path)
            started.append(
                await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-c",
                    program,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                    limit=_MOST_LINE,
                    start_new_session=True,
                )
            )
        for process in started:
            await _ask(process, about)
        yield Processes(started)
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
        for process in started:
            await process.wait()


async def _ask(process: asyncio.subprocess.Process, message: object) -> Any:
    """Tell a process something, and return its answer."""
    line = b""
    if process.stdin is not None and process.stdout is not None:  # they are pipes
        with suppress(ConnectionError):
            process.stdin.write(orjson.dumps(message) + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
    if not line.endswith(b"\n"):
        code = await process.wait()
        raise WorkersFailed(
            f"a process that generates load ended ({f'signal {-code}' if code < 0 else f'exit code {code}'})",
            kept="everything; the test table is removed",
            hint="see whether this machine has memory left, then repeat the command; or set [load] processes"
            " lower",
        )
    answer = orjson.loads(line)
    if "error" in answer:
        # The classes of services' errors differ in nothing that this process goes by.
        told = answer["error"]
        raise ServiceError(told["what"], code=told["code"], status=told["status"], hint=told["next"])
    return answer


def _request(told: Sequence[Any]) -> Request:
    due, kind, partition, number, size = told
    return Request(due, OperationKind(kind), partition, number, size)


# --- in such a process -----------------------------------------------------------------------------------


def main() -> None:
    """Send what the input says until it ends."""
    asyncio.run(_serve())


async def _serve() -> None:
    reader = asyncio.StreamReader(limit=_MOST_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    with os.fdopen(1, "wb") as output:
        about = orjson.loads(await reader.readline())
        async with open_loaded(Account(about["endpoint"], about["key_env"])) as service:
            table = service.table(about["table"])
            generator = InProcess(table, SystemClock(), row_bytes=about["row_bytes"])
            answer: object = {}
            while True:
                output.write(orjson.dumps(answer) + b"\n")
                output.flush()
                if not (line := await reader.readline()):
                    return
                step = asyncio.ensure_future(_step(generator, [_request(one) for one in orjson.loads(line)]))
                # The input ends also while a step is under way: with the process that wanted its answers.
                ended = asyncio.ensure_future(_end(reader))
                await asyncio.wait({step, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not step.done():
                    return
                await cancel([ended])
                answer = step.result()


async def _end(reader: asyncio.StreamReader) -> None:
    """Wait until the input ends: nothing is said in the midst of a step."""
    await reader.read(1)


async def _step(generator: InProcess, requests: Sequence[Request]) -> dict[str, object]:
    try:
        offered = await generator.offer(requests)
    except ServiceError as error:
        told = {"what": error.what, "code": error.code, "status": error.status, "next": error.hint}
        return {"error": told}
    responses = [(tuple(one.request), *one[1:]) for one in offered.responses]
    return {"responses": responses, "processor": offered.processor}
