"""Sends slices of work to the workers of an executor until all of it is done. Any
`concurrent.futures.Executor` will do; `Pool` describes two optional attributes."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import secrets
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rekey.copy.throttle import Rates
from rekey.copy.workers.refusals import refusal
from rekey.copy.workers.tasks import Ended, Plain, Result, Task, read_result
from rekey.copy.workers.work import work
from rekey.core.clock import TICKS_PER_SECOND, Clock, format_ticks, monotonic_seconds, ticks_of
from rekey.errors import RekeyError, WorkersFailed
from rekey.project.config import is_factory
from rekey.protocol.term import Term
from rekey.tables.base import TableService

_LOG = logging.getLogger(__name__)
TRIES = 3
LEAST_GRACE_S = 5.0
# Seconds after the term by which a task that has not answered counts as lost.
LOST_AFTER_S = 15.0
_POLL_S = 0.5
S = TypeVar("S")
Factory = Callable[[], Executor]


def load_factory(text: str, folder: Path) -> Factory:
    """Return the callable that `module:callable` names. `folder`: of the project, searched for modules, too.
    Raises ConfigurationError: there is no such callable, or it cannot be imported."""
    if not is_factory(text):
        raise refusal("no-callable")
    module, _, name = text.partition(":")
    sys.path.insert(0, str(folder))
    try:
        factory: Factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise refusal("executor-not-imported", executor=text, error=type(error).__name__) from None
    finally:
        sys.path.remove(str(folder))
    if not callable(factory):
        raise refusal("executor-not-callable", executor=text)
    return factory


class Pool:
    """An executor to which tasks are submitted. Use as an asynchronous context manager."""

    def __init__(self, factory: Factory, tasks: int | None = None) -> None:
        """Create the pool.

        Args:
            factory: begins an executor.
            tasks: how many tasks it is given at a time; None: its own `tasks`, else the number of processors.
        """
        self._factory = factory
        self._tasks = tasks
        self._executor: Executor | None = None

    async def __aenter__(self) -> Pool:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    @property
    def tasks(self) -> int:
        """How many tasks the executor is given at a time."""
        return max(1, int(self._tasks or getattr(self._executor, "tasks", None) or os.cpu_count() or 1))

    @property
    def runs_once(self) -> bool:
        """Whether the executor says that a task runs in one place only, and has ended when it was answered,
        or with the executor at the latest."""
        return getattr(self._executor, "runs_once", False) is True

    async def begin(self) -> None:
        """Begin an executor. Raises ConfigurationError when the factory fails."""
        try:
            executor = await asyncio.to_thread(self._factory)
        except RekeyError:
            raise
        except Exception as error:  # noqa: BLE001 - any error of a library; its text may hold the task
            raise refusal("executor-not-begun", error=type(error).__name__) from None
        if not isinstance(executor, Executor):
            raise refusal("no-executor", kind=type(executor).__name__)
        self._executor = executor

    async def end(self) -> None:
        """End the executor, in a thread, since it may wait for its running tasks."""
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.to_thread(executor.__exit__, None, None, None)

    def submit(self, task: Task) -> asyncio.Future[Plain]:
        """Submit a task; return the future of its result. Raises BrokenExecutor when it is not taken."""
        if self._executor is None:
            raise BrokenExecutor("no executor")
        try:
            submitted: Future[Plain] = self._executor.submit(work, task.plain())
        except RuntimeError as error:  # BrokenExecutor is one, too
            raise BrokenExecutor(type(error).__name__) from None
        return asyncio.wrap_future(submitted)


class Job(Protocol[S]):
    """Work that consists of pieces."""

    async def split(self, piece: S) -> tuple[S, S] | None:
        """Split the rest of a piece in two; return None when it cannot be split."""

    def task(self, piece: S) -> Task:
        """Return the task for the rest of a piece; the driver adds its id, rates, slice and term."""

    def take(self, piece: S, result: Result) -> S | None:
        """Store a result durably; return the rest of the piece, None when it is done. Raises ValueError: the
        result is not of that piece."""


@dataclass(slots=True, eq=False)
class _Piece(Generic[S]):
    """A piece of work, how often in a row it failed, and whether it may still be split."""

    work: S
    failed: int = 0
    may_split: bool = True


@dataclass(eq=False)
class Driver(Generic[S]):
    """Sends the pieces of a job to workers, as tasks. A piece is with one worker at a time."""

    job: Job[S]
    pool: Pool
    # Tells the service's time.
    tables: TableService
    # The migration's term; None for work that writes nothing.
    term: Term | None
    # Waits while the operator has paused the work.
    clock: Clock
    # Seconds of a slice.
    slice_s: float
    # Polled: the rates of all tasks together, and whether they are paused.
    rates: Callable[[], Rates] = Rates
    # Tells whether a partition's rate is divided among the tasks, too.
    divides_partition: Callable[[], bool] = lambda: False
    # Counts the requests that tasks sent, by kind; those of a lost task are unknown.
    requests: Counter[str] = field(default_factory=Counter)
    # Polled; raises when the work must end at once.
    check: Callable[[], None] = lambda: None
    # Tells that no more tasks are to be submitted; those in flight are waited for, and count.
    stop_requested: Callable[[], bool] = lambda: False
    # Seconds of a monotonic clock.
    monotonic: Callable[[], float] = monotonic_seconds

    def __post_init__(self) -> None:
        self.submitted = self.lost = self._broken = 0
        self.open = False
        self._waiting: deque[_Piece[S]] = deque()
        # By future: the piece, the task, and the monotonic time from which on it is lost.
        self._in_flight: dict[asyncio.Future[Plain], tuple[_Piece[S], Task, float]] = {}
        self._error: RekeyError | None = None

    async def carry_out(self, pieces: Iterable[S]) -> bool:
        """Send pieces to workers until all are done; return False when stopped on request.

        Raises:
            Moved: workers found another control row or runner lease than the tasks were made under.
            WorkersFailed: the executor or its workers keep failing.
            RekeyError: a worker met an error that is not transient; see `Failure`.
        """
        self._waiting.extend(_Piece(piece) for piece in pieces)
        try:
            while self._in_flight or (self._waiting and not self._is_ending):
                self.check()
                await self._submit()
                await self._collect()
        finally:
            for future in self._in_flight:
                future.cancel()
        if self._error is not None:
            raise self._error
        return not self._waiting

    @property
    def _is_ending(self) -> bool:
        return self._error is not None or self.stop_requested()

    async def _submit(self) -> None:
        """Submit tasks until the pool is full, or the work is paused or ends."""
        most = self.pool.tasks
        while self._waiting and len(self._in_flight) < most and not self._is_ending:
            if self.rates().paused:
                break
            await self._split(most)
            piece = self._waiting[0]
            task = self.task(piece.work, await self.tables.server_time(), most, piece.failed)
            if self.term is not None:
                # Durable before a task is submitted that may write under it.
                await self.term.extend(task.until)
            self.check()
            self._waiting.popleft()
            lost_at = self.monotonic() + self._term_s(piece.failed) + LOST_AFTER_S
            try:
                future = self.pool.submit(task)
            except BrokenExecutor:
                self._waiting.appendleft(piece)
                await self._begin_again()
                continue
            self.submitted += 1
            self._in_flight[future] = (piece, task, lost_at)

    async def _split(self, most: int) -> None:
        """Split the next piece when there are fewer pieces than tasks that may be at work."""
        while len(self._waiting) + len(self._in_flight) < most and not self._is_ending:
            piece = self._waiting[0]
            halves = await self.job.split(piece.work) if piece.may_split else None
            if halves is None:
                piece.may_split = False
                return
            self._waiting.popleft()
            # The upper half is queued before the lower one, so it is split first.
            self._waiting.extend(_Piece(half, piece.failed) for half in reversed(halves))

    def task(self, work: S, now: str, most: int, failed: int = 0) -> Task:
        """Return the next task of a piece of work.

        Args:
            work: the rest of the piece.
            now: the service's time.
            most: how many tasks share the rates.
            failed: how often in a row the piece failed.
        """
        rates = self.rates()
        account, partition = rates.account, rates.partition
        if partition and self.divides_partition():
            partition = max(1, partition // most)
        return replace(
            self.job.task(work),
            id=secrets.token_hex(16),
            seconds=self.slice_s,
            until=format_ticks(ticks_of(now) + round(self._term_s(failed) * TICKS_PER_SECOND)),
            entities_per_second=0 if account is None else max(1, account // most),
            partition_entities_per_second=partition or 0,
            begins=0 if rates.begins is None else max(1, rates.begins // most),
        )

    def _term_s(self, failed: int) -> float:
        """Return for how many seconds from its submission a task may write: it waits for a worker, works for
        its slice, and finishes the windows in flight."""
        # Doubled after each failure: a worker that begins, or a busy machine, may need longer than a slice
        # for its first rows, and would need it again.
        return (self.slice_s + max(LEAST_GRACE_S, 2 * self.slice_s)) * 2.0**failed

    async def _collect(self) -> None:
        """Wait for answers, at most half a second, and handle them; then give up the tasks that are lost."""
        if not self._in_flight:
            if self._waiting and not self._is_ending:
                await self.clock.sleep(_POLL_S)  # paused
            return
        done, _ = await asyncio.wait(self._in_flight, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
        broken = False
        for future in done:
            piece, task, _ = self._in_flight.pop(future)
            problem = None if future.cancelled() else future.exception()
            if isinstance(problem, BrokenExecutor):
                broken = self.open = True
                self.lost += 1
                self._waiting.appendleft(piece)
            elif future.cancelled() or problem is not None:
                self._lose(piece, "cancelled" if problem is None else type(problem).__name__)
            elif (result := read_result(future.result(), task)) is None:
                self._lose(piece, "an answer of another program")
            else:
                self._take(piece, result)
        now = self.monotonic()
        for future, (piece, _, lost_at) in list(self._in_flight.items()):
            if now >= lost_at:
                del self._in_flight[future]
                future.cancel()
                self._lose(piece, "no answer")
        if broken and not self._in_flight:
            await self._begin_again()

    def _take(self, piece: _Piece[S], result: Result) -> None:
        self.open |= result.open
        self.requests.update(result.sent)
        if result.ended is Ended.SUPERSEDED:
            self.check()
            self._error = self._error or refusal("superseded")
        if result.ended is Ended.FAILED:
            self._failed(piece, result)
            return
        self.check()
        try:
            left = self.job.take(piece.work, result)
        except ValueError:
            self._lose(piece, "an answer about something else")
            return
        if result.rows or result.ended is Ended.DONE:
            self._broken = piece.failed = 0
        else:
            self._count(piece, f"nothing was done in its {self._term_s(piece.failed):.0f} s ({result.ended})")
        if left is not None:
            self._waiting.append(_Piece(left, piece.failed))

    def _failed(self, piece: _Piece[S], result: Result) -> None:
        failure = result.failure
        if failure is None:
            self._error = self._error or WorkersFailed("a worker failed without an error")
        else:
            if not failure.may_pass or piece.failed + 1 >= TRIES:
                self._error = self._error or failure.raised()
            _LOG.info("a task failed (%s): %s", failure.error, failure.what, extra={"event": "task-failed"})
        piece.failed += 1
        self._waiting.append(piece)

    def _lose(self, piece: _Piece[S], why: str) -> None:
        self.lost += 1
        self.open = True
        self._waiting.append(piece)
        self._count(piece, f"it was lost ({why})")

    def _count(self, piece: _Piece[S], what: str) -> None:
        """Count one more failure of a piece in a row; the last of `TRIES` ends the work."""
        piece.failed += 1
        text = "a task failed: %s; failure %d in a row for its range"
        _LOG.info(text, what, piece.failed, extra={"event": "task-failed"})
        if piece.failed >= TRIES:
            self._error = self._error or refusal("task-given-up", tries=TRIES, last=what)

    async def _begin_again(self) -> None:
        """Replace an executor that broke; the last of `TRIES` breaks ends the work. Tasks submitted to it are
        lost, but their writes stay."""
        self._broken += 1
        if self._broken >= TRIES:
            self._error = self._error or refusal("executor-broke", tries=TRIES)
            return
        _LOG.warning("the executor broke; starting another one", extra={"event": "executor-broke"})
        await self.pool.end()
        await self.pool.begin()
