"""Tables in memory behind a network: processes that die and stop, requests that go their own way.

Rules kept here:

* Time is the loop's, and passes only while everybody waits. Every request takes some, so all that is under
  way takes effect in an order that the seed draws.
* What was sent goes its own way: it takes effect within the time a request can take, or never, whatever
  became of its sender: killed, stopped, told of a broken connection, or tired of waiting.
* A process that is killed does nothing any more; one that is stopped does nothing for a while, and then goes
  on where it was: its timers fire late, its answers are heard late.
* What happens to a request is drawn from what the request is, not from how many came before: so a seed is a
  life, whatever order sets are iterated in.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from rekey.errors import Ambiguous, ServiceError
from rekey.model import EVERYTHING, EntityKey, KeyRange, Row
from rekey.tables.base import MAX_PAGE_ROWS, Operation, Page
from rekey.tables.clock import TICKS_PER_SECOND, FakeClock, ticks_of
from rekey.tables.faults import Call, Fault, FaultKind
from rekey.tables.memory import MemoryTable, MemoryTableService, _prepare
from rekey.tables.rules import check_key_part
from tests.simulation.loop import OWNER, Handle, SimulatedLoop
from tests.worlds import Killed

_READS = (FaultKind.NOT_SENT, FaultKind.BUSY)
_WRITES = (*_READS, FaultKind.TIMED_OUT, FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST)
_PAGES = (FaultKind.EMPTY_PAGE, FaultKind.SHORT_PAGE)
_MAY_LAND_LATER = frozenset({FaultKind.TIMED_OUT, FaultKind.LOST_ANSWER})


@dataclass(eq=False)
class Process:
    """A process, as the owner of its tasks (`tests.simulation.loop.OWNER`).

    Attributes:
        name: unique.
        request_s: within how many seconds a request takes effect, or never.
        faults: the share of its requests that fail.
        slowness: how much slower than usual its requests are.
        dies_at: the number of the request before which it is killed, 0 for never.
    """

    name: str
    request_s: float
    faults: float = 0.0
    slowness: float = 1.0
    dies_at: int = 0
    dead: bool = False
    stopped: bool = False
    calls: int = 0
    held: list[Handle] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def made(self, _task: asyncio.Task[Any], _by: asyncio.Task[Any] | None) -> None:
        """Nothing is kept of tasks."""


@dataclass(eq=False)
class _Flight:
    process: Process
    sent: float
    land: Callable[[], None]
    timer: Handle


class StormLoop(SimulatedLoop):
    """A loop in which processes can be stopped for a while."""

    def drain(self) -> None:
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if handle.cancelled:
                continue
            owner = handle.context.get(OWNER)
            if owner is not None and owner.stopped:
                owner.held.append(handle)
            else:
                handle.context.run(handle.callback, *handle.args)

    def go_on(self, process: Process) -> None:
        """Let a stopped process go on."""
        process.stopped = False
        self._ready.extend(process.held)
        process.held.clear()

    def kill(self, process: Process) -> None:
        """End a process; its handlers still run, but whatever they ask for is not done."""
        process.dead = True
        self.go_on(process)
        for task in [task for task, owner in self._tasks.items() if owner is process]:
            task.cancel()


class StormClock(FakeClock):
    """The loop's time as ticks."""

    def __init__(self, loop: StormLoop) -> None:
        super().__init__()
        self._loop = loop
        self._start = ticks_of("2024-01-01T00:00:00Z")

    def ticks(self) -> int:
        return self._start + round(self._loop.now * TICKS_PER_SECOND)

    def advance(self, seconds: float) -> None:
        self._loop.pass_time(seconds)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass
class Storm:
    """The network between processes and tables.

    Attributes:
        seed: everything is drawn from it.
        calm: nothing fails any more (what is under way goes on).
        happened: what happened, counted.
        trace: a sum over all that took effect, to tell two lives apart.
    """

    seed: str
    loop: StormLoop
    calm: bool = False
    happened: Counter[str] = field(default_factory=Counter)
    trace: int = 0
    _flights: dict[_Flight, None] = field(default_factory=dict)
    """In the order in which they were sent."""

    def start(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of a process."""
        context = Context()
        context.run(OWNER.set, process)
        return self.loop.create_task(work, context=context)

    def kill(self, process: Process) -> None:
        """End a process. Its requests under way land whenever they do, or never."""
        self.happened["kill"] += 1
        self.loop.kill(process)
        draw = random.Random(f"{self.seed} {process.name} dies")
        for flight in [one for one in self._flights if one.process is process]:
            flight.timer.cancel()
            if draw.random() < 0.4:
                del self._flights[flight]
                continue
            self.happened["late request"] += 1
            lands = max(self.loop.now, flight.sent + draw.random() ** 2 * process.request_s)
            flight.timer = self.loop.call_at(lands, flight.land, context=Context())

    # --- requests ------------------------------------------------------------------------------------------

    async def request(self, process: Process, call: Call, text: str, effect: Callable[[], Any]) -> Any:
        """Send a request and wait for its answer."""
        draw = self._sends(process, text)
        fault = self._fault(process, call, draw)
        lands, hears = self._delays(process, draw)
        if fault is not None:
            self.happened[fault.kind] += 1
            if fault.kind in _MAY_LAND_LATER and draw.random() < 0.6:
                hears = lands * draw.random()  # told before it takes effect
                lands = max(lands, draw.random() ** 2 * process.request_s)
        answer: asyncio.Future[Any] = self.loop.create_future()

        def told(given: Any, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(given)
            else:
                answer.set_exception(error)

        error = None if fault is None else fault.error()
        if fault is None or fault.applied:
            self._fly(process, text, lands, effect, told, hears if error is None else None)
        if error is not None:
            self.loop.call_later(hears, told, None, error, context=Context())
        return await answer

    async def wait(self, process: Process, call: Call) -> Fault | None:
        """Let a request take its time that its caller then does itself (pages, tables, the time)."""
        draw = self._sends(process, f"{call.action} {call.table}")
        await asyncio.sleep(self._delays(process, draw)[0])
        if process.dead:
            raise asyncio.CancelledError
        fault = self._fault(process, call, draw)
        if fault is not None:
            self.happened[fault.kind] += 1
        return fault

    def _sends(self, process: Process, text: str) -> random.Random:
        if process.dead:
            raise asyncio.CancelledError
        process.calls += 1
        if process.calls == process.dies_at:
            self.kill(process)
            raise asyncio.CancelledError
        process.seen[text] += 1
        return random.Random(f"{self.seed} {process.name} {text} {process.seen[text]}")

    def _fly(
        self,
        process: Process,
        text: str,
        lands: float,
        effect: Callable[[], Any],
        told: Callable[[Any, BaseException | None], None],
        hears: float | None,
    ) -> None:
        def land() -> None:
            self._flights.pop(flight, None)
            self.trace = zlib.crc32(f"{process.name} {text}".encode(), self.trace)
            given: Any = None
            refused: ServiceError | None = None
            try:
                given = effect()
            except ServiceError as error:
                refused = error
            if hears is not None:
                self.loop.call_later(hears, told, given, refused, context=Context())

        timer = self.loop.call_later(lands, land, context=Context())
        flight = _Flight(process, self.loop.now, land, timer)
        self._flights[flight] = None

    def _delays(self, process: Process, draw: random.Random) -> tuple[float, float]:
        """Return after how many seconds a request takes effect, and how many more its answer takes."""
        lot = draw.random()
        lands = 0.001 + 0.03 * draw.random() * process.slowness
        if not self.calm and lot > 0.995:
            self.happened[FaultKind.SLOW] += 1
            lands = draw.random() * process.request_s
        elif not self.calm and lot > 0.95:
            lands = min(process.request_s, draw.random() * process.slowness)
        return lands, 0.001 + 0.01 * draw.random() * process.slowness

    def _fault(self, process: Process, call: Call, draw: random.Random) -> Fault | None:
        lot, which = draw.random(), draw.random()
        if self.calm:
            return None
        if call.action == "page" and lot < 0.2:
            return Fault(_PAGES[int(which * len(_PAGES))])
        if lot > 1 - process.faults:
            kinds = _WRITES if call.writes else _READS
            if call.action == "transact" and which < 0.25:
                return Fault(FaultKind.INSIDE_BATCH, index=int(draw.random() * len(call.operations)))
            return Fault(kinds[int(which * len(kinds))])
        return None


class StormService(MemoryTableService):
    """Tables in memory, reached through a storm. Without an owner (set-up, judging) a call passes at once."""

    def __init__(self, storm: Storm, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.storm = storm

    def table(self, name: str) -> MemoryTable:
        return StormTable(self, name)

    async def enter(self, action: str, table: str, operations: tuple[Operation, ...] = ()) -> Fault | None:
        process: Process | None = OWNER.get()
        if process is None:
            return None
        fault = await self.storm.wait(process, Call(action, table, operations, 0))
        if fault is not None and not fault.applied:
            self.leave(fault)
        return fault


class StormTable(MemoryTable):
    """A table of a `StormService`."""

    _service: StormService

    async def get(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        process: Process | None = OWNER.get()
        if process is None:
            return await super().get(key, select=select)
        check_key_part(key.partition)
        check_key_part(key.row)

        def effect() -> Row | None:
            stored = self._service.rows(self.name).rows.get(key.order)
            return None if stored is None else stored.as_read(select)

        call = Call("get", self.name, (), 0)
        found: Row | None = await self._service.storm.request(
            process, call, f"get {self.name} {key}", effect
        )  # fmt: skip
        return found

    async def scan(
        self,
        within: KeyRange = EVERYTHING,
        *,
        select: Sequence[str] | None = None,
        modified_from: str | None = None,
        page_rows: int = MAX_PAGE_ROWS,
        ahead: bool = True,
    ) -> AsyncIterator[Page]:
        few = page_rows if OWNER.get() is None else min(page_rows, 7)
        async for page in super().scan(
            within, select=select, modified_from=modified_from, page_rows=few, ahead=ahead
        ):
            yield page

    async def _run(self, action: str, operations: tuple[Operation, ...]) -> list[str | None]:
        process: Process | None = OWNER.get()
        if process is None:
            return await super()._run(action, operations)
        places = range(len(operations)) if action == "transact" else [None] * len(operations)
        prepared = [_prepare(one, place) for one, place in zip(operations, places, strict=True)]
        text = f"{action} {self.name} {[tuple(one.key) for one in operations]}"

        def effect() -> list[str | None]:
            return self._apply(action, operations, prepared)

        call = Call(action, self.name, operations, 0)
        try:
            done: list[str | None] = await self._service.storm.request(process, call, text, effect)
        except Ambiguous:
            self._service.last_open = self._service.clock.ticks()
            raise
        return done


class Driver:
    """Runs the work of one command of the runner, and everybody else meanwhile (as an `asyncio.Runner`)."""

    LONGEST_S = 3_600.0

    def __init__(self, storm: Storm, process: Process) -> None:
        self._storm = storm
        self._process = process

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run it to its end. Raises Killed when the process is killed meanwhile."""
        loop, process = self._storm.loop, self._process
        if process.dead:
            work.close()
            raise Killed
        task = self._storm.start(process, work)
        loop.drain()
        until = loop.now + self.LONGEST_S
        while not task.done() and not process.dead:
            pause = loop.next_timer()
            if pause is None or loop.now > until:
                raise AssertionError("a command of the runner waits for what never comes")
            loop.pass_time(pause + 1e-6)
        if process.dead:
            loop.drain()
            raise Killed
        return task.result()
