"""One event loop on a thread of its own, for callers that have none: the synchronous client's coroutines run
here while the caller's thread waits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from rekey.client.reading import CLOSED
from rekey.core.concurrency import cancel
from rekey.errors import WritesRefused

T = TypeVar("T")
_NAME = "rekey-dualwrite"
FORKED = "forked"


class LoopThread:
    """A thread that runs coroutines on an event loop of its own. The first use starts it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = False

    @property
    def started(self) -> bool:
        return self._loop is not None and self._pid == os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result. An interrupted caller cancels it."""
        try:
            loop = self._started()
        except WritesRefused:
            work.close()
            raise
        waiting = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    @contextmanager
    def holding(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
        """Hold an asynchronous context, in one task of the loop, during the caller's `with` block."""
        loop = self._started()
        released = asyncio.Event()
        entered: concurrent.futures.Future[T] = concurrent.futures.Future()

        async def hold() -> None:
            async with make() as value:
                entered.set_result(value)
                await released.wait()

        holding = asyncio.run_coroutine_threadsafe(hold(), loop)
        either: list[concurrent.futures.Future[Any]] = [entered, holding]
        try:
            concurrent.futures.wait(either, return_when=concurrent.futures.FIRST_COMPLETED)
        except BaseException:
            holding.cancel()
            raise
        if not entered.done():
            holding.result()
        try:
            yield entered.result()
        finally:
            loop.call_soon_threadsafe(released.set)
        holding.result()

    def post(self, call: Callable[..., None], *args: Any) -> None:
        self._started().call_soon_threadsafe(call, *args)

    def close(self) -> None:
        """End the thread, for good. Idempotent."""
        if not self.started:
            self._closed = True
            return
        with self._guard:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._guard:
            if self._closed:
                raise WritesRefused(CLOSED, "this client is closed", hint="open another one")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                # A daemon: a program that forgets to close its client still ends.
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name=_NAME, daemon=True)
                self._thread.start()
            # A thread does not survive a fork: raise an error instead of waiting for ever.
            elif self._pid != os.getpid():
                raise WritesRefused(
                    FORKED,
                    "this client was made before the process was forked, and its thread stayed behind",
                    hint="make the client in the child process (a server's `post_fork` hook, for example)",
                )
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, then cancel its remaining tasks and close it."""
    # Not asyncio.Runner: at its end it waits for calls in executor threads, and so would `close`.
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(cancel(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
