"""An event loop for simulations: no sockets, no real time, and nobody waits inside of it.

Rules kept here:

* `drain` runs callbacks in the order they became due until none is left, then returns: between two drains the
  whole world stands still, and whoever drives it stands outside.
* Time moves only when the driver says so. Timers (asyncio.timeout, asyncio.sleep) fire then, in their order;
  those of an owner that is stopped at any time fire whenever the driver says so, or never.
* Every task knows its owner, inherited from whoever made it: a process is all tasks of one owner.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
import weakref
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

OWNER: ContextVar[Any] = ContextVar("owner", default=None)
"""Who the running task belongs to; None is whoever drives the simulation. An owner has `made(task, by)`."""


class Handle:
    """A callback that is due."""

    __slots__ = ("args", "callback", "cancelled", "context")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.cancelled = False

    def cancel(self) -> None:
        """Do not run it."""
        self.cancelled = True


class Timer(Handle):
    """A callback that will be due."""

    __slots__ = ("at",)

    def __init__(
        self, at: float, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None
    ) -> None:
        super().__init__(callback, args, context)
        self.at = at

    def when(self) -> float:
        """Return the moment it is due."""
        return self.at


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs tasks while somebody drains it. Use it as a context manager: it is the running loop inside."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fired: Callable[[Any], None] = lambda _owner: None
        """Told the owner of each timer that fires."""
        self.is_sleeper: Callable[[Any], bool] = lambda _owner: False
        """Tells whether an owner's timers wait for `fire_overdue` when their time has come."""
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._overdue: list[tuple[Any, Timer]] = []
        self._serial = 0
        self._tasks: dict[asyncio.Task[Any], Any] = {}
        self._generators: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()
        self._hooks: Any = None

    def __enter__(self) -> SimulatedLoop:
        events._set_running_loop(self)
        self._hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._generators.add, finalizer=self._close_generator)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for generator in list(self._generators):
                self._close_generator(generator)
            self.drain()
        finally:
            sys.set_asyncgen_hooks(*self._hooks)
            events._set_running_loop(None)

    # --- driving it ------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Run until everybody waits for something that only the driver can bring about."""
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if not handle.cancelled:
                handle.context.run(handle.callback, *handle.args)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something that waits for nothing to its end, on the driver's behalf."""
        task = self.create_task(work, context=Context())
        self.drain()
        if not task.done():
            task.cancel()
            self.drain()
            raise AssertionError("the driver's own work waits for something that nobody brings about")
        return task.result()

    def pass_time(self, seconds: float) -> None:
        """Let time pass; timers fire in order, each before the next is looked at."""
        self.drain()  # what was started a moment ago begins now, not with the next timer
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            self.now, _, timer = heapq.heappop(self._timers)
            owner = timer.context.get(OWNER)
            if timer.cancelled:
                continue
            if self.is_sleeper(owner):
                self._overdue.append((owner, timer))
            else:
                self._fire(owner, timer)
        self.now = until

    def overdue(self, owner: Any) -> bool:
        """Tell whether timers of an owner wait for `fire_overdue`."""
        return any(whose is owner and not timer.cancelled for whose, timer in self._overdue)

    def fire_overdue(self, owner: Any) -> None:
        """Fire the timers of an owner whose time has come."""
        due = [timer for whose, timer in self._overdue if whose is owner]
        self._overdue = [one for one in self._overdue if one[0] is not owner]
        for timer in due:
            if not timer.cancelled:
                self._fire(owner, timer)

    def next_timer(self) -> float | None:
        """Return how many seconds are left until the next timer, None when nobody waits for time.

        Those of sleepers count only where there are no others: they need not be heard in time.
        """
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        heard = [
            timer.at
            for _, _, timer in self._timers
            if not timer.cancelled and not self.is_sleeper(timer.context.get(OWNER))
        ]
        return min(heard, default=self._timers[0][0]) - self.now

    def has_tasks(self, owner: Any) -> bool:
        """Tell whether any task of an owner goes on."""
        return any(whose is owner for whose in self._tasks.values())

    def cancel_all(self, owner: Any) -> None:
        """Cancel all tasks of an owner and let them end."""
        for task in [task for task, whose in self._tasks.items() if whose is owner]:
            task.cancel()
        self.drain()

    # --- what asyncio asks -----------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Timer:
        timer = Timer(when, callback, args, context)
        self._serial += 1
        heapq.heappush(self._timers, (when, self._serial, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Timer:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        owner = OWNER.get() if context is None else context.get(OWNER)
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self._tasks[task] = owner
        task.add_done_callback(self._ended)
        if owner is not None:
            owner.made(task, asyncio.current_task(self) if context is None else None)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that nobody took is no business of a simulation: what it led to is."""

    def _fire(self, owner: Any, timer: Timer) -> None:
        self.fired(owner)
        self._ready.append(timer)
        self.drain()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.discard(generator)
        self.create_task(generator.aclose(), context=Context())
