"""Sending slices of work to workers until all of it is done.

Rules kept here:

* A piece of work is with one worker at a time. Where it stands moves only by a result that answers the very
  task it was given, and within the range of that task.
* A term is durable before a task is submitted that needs it.
* What a worker did not finish goes back to those that wait. Pieces are split while there are fewer of them
  than tasks at a time.
* A task that is lost (its worker died, it was cancelled, it does not answer) is submitted again; so is one
  that failed in a way that may pass. Each piece, and the executor, may fail `TRIES` times in a row without
  progress.
* Every time a piece fails, its next term is twice as long: a worker that begins, or a machine that is busy,
  may need longer than a slice for its first rows, and would need it again.
* A stop, and a failure that will not pass: nothing more is submitted, what is under way is waited for and
  counts.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from rekey.copy.throttle import Rates
from rekey.copy.workers.pool import Pool
from rekey.copy.workers.tasks import Ended, Plain, Result, Task, read_result
from rekey.core.clock import TICKS_PER_SECOND, Clock, format_ticks, rising_seconds, ticks_of
from rekey.errors import Moved, RekeyError, WorkersFailed
from rekey.protocol.term import Term
from rekey.tables.base import TableService

_LOG = logging.getLogger(__name__)
TRIES = 3
LEAST_GRACE_S = 5.0
LOST_AFTER_S = 15.0
"""Beyond the term: a task that has not answered by then is lost."""
_LOOK_S = 0.5
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a task needs besides its range: a random id, until when it may write, its share of the rates."""

    id: str
    until: str
    seconds: float
    rates: Rates


class Job(Protocol[S]):
    """A kind of work that consists of pieces."""

    async def split(self, piece: S) -> tuple[S, S] | None:
        """Split what is left of a piece; None when it cannot be."""

    def task(self, piece: S, ticket: Ticket) -> Task:
        """Return the task for what is left of a piece."""

    def take(self, piece: S, result: Result) -> S | None:
        """Store what a result says durably; return what is left of the piece, None when it is done.

        Raises:
            ValueError: the result is not of that piece.
        """


@dataclass(slots=True, eq=False)
class _Piece(Generic[S]):
    """A piece, and how often in a row it failed."""

    work: S
    failed: int = 0
    may_split: bool = True


@dataclass(frozen=True, slots=True)
class _Flight(Generic[S]):
    piece: _Piece[S]
    task: Task
    lost_at: float


@dataclass(slots=True)
class Sent:
    """What became of all tasks.

    Attributes:
        tasks: submitted.
        lost: of those, not answered.
        open: a write may still be under way that nobody waits for.
    """

    tasks: int = 0
    lost: int = 0
    open: bool = False


@dataclass
class Driver:
    """What sending needs.

    Attributes:
        pool: takes tasks.
        tables: tells the service's time.
        term: of the migration; None for work that writes nothing.
        clock: what waiting for the operator is asked of.
        slice_s: seconds of a slice.
        rates: asked again and again: what all tasks together may do, and whether they may do anything.
        divides_partition: whether the rate of a partition is shared, too.
        requests: those that tasks sent are added to it, by kind; a task that is lost tells nothing of them.
        check: called again and again; raises when the work must end at once.
        stop_requested: tells that nothing more is to be submitted.
    """

    pool: Pool
    tables: TableService
    term: Term | None
    clock: Clock
    slice_s: float
    rates: Callable[[], Rates] = Rates
    divides_partition: Callable[[], bool] = lambda: False
    requests: Counter[str] = field(default_factory=Counter)
    check: Callable[[], None] = lambda: None
    stop_requested: Callable[[], bool] = lambda: False
    monotonic: Callable[[], float] = rising_seconds
    sent: Sent = field(default_factory=Sent)

    def term_s(self, failed: int = 0) -> float:
        """Return the seconds from a task's submission on in which it may write: to be taken up by a worker,
        for its slice, and to finish what is under way.

        Args:
            failed: how often in a row its piece failed.
        """
        return (self.slice_s + max(LEAST_GRACE_S, 2 * self.slice_s)) * 2.0**failed

    async def carry_out(self, job: Job[S], pieces: list[S]) -> bool:
        """Send pieces to workers until all are done; return False when stopped on request.

        Raises:
            Moved: workers found another control row or runner lease than there was.
            WorkersFailed: the executor or its workers fail again and again.
            RekeyError: what a worker met that will not pass; see `Failure`.
        """
        work = _Work(self, job, deque(_Piece(one) for one in pieces))
        try:
            while work.goes_on:
                self.check()
                await work.submit()
                await work.hear()
        finally:
            for future in work.flying:
                future.cancel()
        if work.error is not None:
            raise work.error
        return not work.waiting

    def ticket(self, now: str, most: int, failed: int = 0) -> Ticket:
        """Return what the next task may do, of `most` at a time, when its piece failed so often in a row."""
        rates = self.rates()
        until = ticks_of(now) + round(self.term_s(failed) * TICKS_PER_SECOND)
        partition = rates.partition
        if partition and self.divides_partition():
            partition = max(1, partition // most)
        return Ticket(
            secrets.token_hex(16),
            format_ticks(until),
            self.slice_s,
            Rates(None if rates.account is None else max(1, rates.account // most), partition),
        )


class _Work(Generic[S]):
    """One `carry_out`."""

    def __init__(self, driver: Driver, job: Job[S], waiting: deque[_Piece[S]]) -> None:
        self._driver, self._job = driver, job
        self.waiting = waiting
        self.flying: dict[asyncio.Future[Plain], _Flight[S]] = {}
        self.error: RekeyError | None = None
        self._broken = 0

    @property
    def goes_on(self) -> bool:
        """Whether there is anything to wait for."""
        return bool(self.flying) or (bool(self.waiting) and not self._ends)

    @property
    def _ends(self) -> bool:
        return self.error is not None or self._driver.stop_requested()

    async def submit(self) -> None:
        """Submit as many tasks as may be at work."""
        driver = self._driver
        most = driver.pool.tasks
        while self.waiting and len(self.flying) < most and not self._ends:
            if driver.rates().paused:
                break
            await self._split(most)
            failed = self.waiting[0].failed
            ticket = driver.ticket(await driver.tables.server_time(), most, failed)
            if driver.term is not None:
                await driver.term.extend(ticket.until)
            driver.check()
            piece = self.waiting.popleft()
            task = self._job.task(piece.work, ticket)
            lost_at = driver.monotonic() + driver.term_s(failed) + LOST_AFTER_S
            try:
                future = driver.pool.submit(task)
            except BrokenExecutor:
                self.waiting.appendleft(piece)
                await self._begin_again()
                continue
            driver.sent.tasks += 1
            self.flying[future] = _Flight(piece, task, lost_at)

    async def _split(self, most: int) -> None:
        """Split the next piece when there are fewer pieces than tasks that may be at work."""
        while len(self.waiting) + len(self.flying) < most and not self._ends:
            piece = self.waiting[0]
            if not piece.may_split:
                return
            halves = await self._job.split(piece.work)
            if halves is None:
                piece.may_split = False
                return
            self.waiting.popleft()
            # The lower half waits behind the upper one: next time it is the other one's turn to be split.
            self.waiting.extend(_Piece(half, piece.failed) for half in reversed(halves))

    async def hear(self) -> None:
        """Wait for an answer, or for a while."""
        if not self.flying:
            if self.waiting and not self._ends:
                await self._driver.clock.sleep(_LOOK_S)  # paused
            return
        done, _ = await asyncio.wait(self.flying, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        broken = False
        for future in done:
            flight = self.flying.pop(future)
            broken = self._heard(future, flight) or broken
        now = self._driver.monotonic()
        for future, flight in list(self.flying.items()):
            if now >= flight.lost_at:
                del self.flying[future]
                future.cancel()
                self._lost(flight.piece, "no answer")
        if broken and not self.flying:
            await self._begin_again()

    def _heard(self, future: asyncio.Future[Plain], flight: _Flight[S]) -> bool:
        """Take an answer; return whether the executor broke."""
        piece = flight.piece
        if future.cancelled():
            self._lost(piece, "cancelled")
            return False
        problem = future.exception()
        if isinstance(problem, BrokenExecutor):
            self._driver.sent.lost += 1
            self._driver.sent.open = True
            self.waiting.appendleft(piece)
            return True
        if problem is not None:
            self._lost(piece, type(problem).__name__)
            return False
        result = read_result(future.result(), flight.task)
        if result is None:
            self._lost(piece, "an answer of another program")
        else:
            self._take(piece, result)
        return False

    def _take(self, piece: _Piece[S], result: Result) -> None:
        self._driver.sent.open |= result.open
        self._driver.requests.update(result.sent)
        if result.ended is Ended.SUPERSEDED:
            self._driver.check()
            self.error = self.error or Moved(
                "workers found that the control row or the runner lease is not what it was",
                kept="everything up to the last checkpoint",
                hint="see that no other runner is at work, then run the same command again",
            )
        if result.ended is Ended.FAILED:
            self._failed(piece, result)
            return
        self._driver.check()
        try:
            left = self._job.take(piece.work, result)
        except ValueError:
            self._lost(piece, "an answer about something else")
            return
        if result.rows or result.ended is Ended.DONE:
            self._broken = 0
            piece.failed = 0
        else:
            given_s = self._driver.term_s(piece.failed)
            self._count(piece, f"nothing was done in its {given_s:.0f} s ({result.ended})")
        if left is not None:
            self.waiting.append(_Piece(left, piece.failed, may_split=True))

    def _failed(self, piece: _Piece[S], result: Result) -> None:
        failure = result.failure
        if failure is None or not failure.may_pass or piece.failed + 1 >= TRIES:
            error = (
                WorkersFailed("a worker failed without saying why") if failure is None else failure.raised()
            )
            self.error = self.error or error
        piece.failed += 1
        self.waiting.append(piece)
        if failure is not None:
            _LOG.info("a task failed (%s): %s", failure.error, failure.what)

    def _lost(self, piece: _Piece[S], why: str) -> None:
        self._driver.sent.lost += 1
        self._driver.sent.open = True
        self.waiting.append(piece)
        self._count(piece, f"it was lost ({why})")

    def _count(self, piece: _Piece[S], what: str) -> None:
        """Count one more failure of a piece in a row."""
        piece.failed += 1
        _LOG.info("a task came to nothing: %s; failure %d in a row of its range", what, piece.failed)
        if piece.failed >= TRIES:
            self.error = self.error or WorkersFailed(
                f"a task was given up after {TRIES} attempts; of the last one: {what}",
                kept="everything up to the last checkpoint",
                hint="see that the workers run, that they have the runner's version of rekey and enough"
                " memory, that there are as many as [executor] tasks says, and that they are not busy with"
                " something else (or write a longer [executor] slice); then run the same command again, if"
                " need be without --executor",
            )

    async def _begin_again(self) -> None:
        self._broken += 1
        if self._broken >= TRIES:
            self.error = self.error or WorkersFailed(
                f"the executor broke {TRIES} times in a row: its workers end before they have done anything",
                kept="everything up to the last checkpoint",
                hint="see why its processes end (memory, a module that is not installed), then run the same"
                " command again, if need be without --executor",
            )
            return
        _LOG.warning("the executor broke; another one is begun")
        await self._driver.pool.again()
