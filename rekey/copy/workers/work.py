"""The one function that executors call, `work`: a task in, a result out, both plain data."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from rekey.copy.workers.copying import copy_slice
from rekey.copy.workers.opened import Opened, identity_of, open_for
from rekey.copy.workers.summing import find_slice, sum_slice
from rekey.copy.workers.tasks import Basis, Ended, Failure, Plain, Result, Task, TaskKind, read_task
from rekey.core.distribution import VERSION
from rekey.errors import RekeyError
from rekey.project.config import Config
from rekey.protocol.opening import connect
from rekey.tables.base import Accounts
from rekey.tables.sent import tallied

T = TypeVar("T")
_CLOSING_S = 5.0


class Host:
    """The event loop of a worker process, on its own thread, and the migrations that it has opened."""

    def __init__(self, connect_to: Callable[[Config], Accounts]) -> None:
        """Start the loop. `connect_to` connects the accounts of a configuration."""
        self.process = os.getpid()
        self._connect = connect_to
        self._loop = asyncio.new_event_loop()
        self._opening = asyncio.Lock()
        self._opened: list[Opened] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="rekey worker", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, from another thread, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def opened(self, basis: Basis) -> Opened:
        """Return the migration of a basis; open it if need be, after closing idle ones. Raises as
        `open_for`."""
        async with self._opening:
            wanted = identity_of(basis)
            for opened in self._opened:
                if opened.identity == wanted:
                    return opened
            for opened in [opened for opened in self._opened if not opened.at_work]:
                self._opened.remove(opened)
                await opened.accounts.close()
            opened = await open_for(basis, wanted, self._connect)
            self._opened.append(opened)
            return opened

    def close(self) -> None:
        if self._loop.is_closed():
            return

        async def close() -> None:
            while self._opened:
                await self._opened.pop().accounts.close()

        self.run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_S)
        self._loop.close()


_host: Host | None = None
_making = threading.Lock()


def host(connect_to: Callable[[Config], Accounts] = connect) -> Host:
    """Return this process's host; the first call decides how it connects. A forked process makes its own."""
    global _host
    with _making:
        if _host is None or _host.process != os.getpid():
            _host = Host(connect_to)
        return _host


@atexit.register
def close_host() -> None:
    """Close this process's host, if it has one."""
    global _host
    with _making:
        if _host is not None and _host.process == os.getpid():
            _host.close()
        _host = None


def work(plain: Mapping[str, Any]) -> Plain:
    """Carry out a task, both it and its result as they travel. Blocks until it has ended. Raises none of
    rekey's own errors; any exception is a bug, and holds no key."""
    try:
        task = read_task(plain, version=VERSION)
    except RekeyError as error:
        return Result(str(plain.get("id")), Ended.FAILED, failure=Failure.of(error)).plain()
    here = host()
    return here.run(carry_out(here, task)).plain()


async def carry_out(here: Host, task: Task) -> Result:
    """Carry out a task and return its result, with the requests it sent. Rekey's errors become results."""
    with tallied() as sent:
        try:
            opened = await here.opened(task.basis)
            with opened.working_on(task):
                result = await _WORK[task.kind](opened, task)
        except RekeyError as error:
            result = Result(task.id, Ended.FAILED, failure=Failure.of(error), open=True)
    return replace(result, sent=dict(sent))


_WORK: dict[TaskKind, Callable[[Opened, Task], Coroutine[Any, Any, Result]]] = {
    TaskKind.COPY: copy_slice,
    TaskKind.SUM: sum_slice,
    TaskKind.FIND: find_slice,
}
