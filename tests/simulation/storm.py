"""Tables in memory behind a network: processes that die and stop, requests that go their own way.

Rules kept here:

* Time is the loop's, and passes only while everybody waits. Every request takes some, so all that is under
  way takes effect in an order that the seed draws.
* What was sent goes its own way: it takes effect within the time a request can take, or never, whatever
  became of its sender: killed, stopped, told of a broken connection, or tired of waiting.
* A process that is killed does nothing any more; one that is stopped does nothing for a while, and then goes
  on where it was: its timers fire late, its answers are heard late. Of what it was about to send when it was
  stopped, some stood at the socket: that goes out when it goes on, if the service still takes what was signed
  so long ago. A connection of the program asks once more in that moment whether it may be sent (all but a
  `Process.unasked` share, for what stood behind that question).
* A connection repeats nothing unseen. With `Storm.repeats_unseen` it does, as HTTP libraries do with PUT and
  DELETE: what was sent first takes effect whenever it does, and the caller has the answer of the second.
* Handles of a process that repeats (`StormService.seen_by`) send again as the program's own connections do;
  those that `shared` gives never do, and neither do those of anybody else.
* What happens to a request is drawn from what the request is, not from how many came before: so a seed is a
  life, whatever order sets are iterated in.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import random
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.core.limits import is_in_target_account
from rekey.errors import Ambiguous, CredentialRefused, ServiceError, Unavailable
from rekey.model import EVERYTHING, EntityKey, KeyRange, Row
from rekey.tables import allowance
from rekey.tables.answers import may_be_applied
from rekey.tables.base import MAX_PAGE_ROWS, MULTI_WRITER_SERVICE_S, Operation, Page
from rekey.tables.rules import check_key_part, check_table_name
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call, Fault, FaultKind
from tests.fakes.memory import MemoryTable, MemoryTableService, StoredRows, _prepare
from tests.simulation.loop import OWNER, Handle, SimulatedLoop
from tests.simulation.repeating import Repeating

_READS = (FaultKind.NOT_SENT, FaultKind.BUSY)
_WRITES = (*_READS, FaultKind.TIMED_OUT, FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST)
_PAGES = (FaultKind.EMPTY_PAGE, FaultKind.SHORT_PAGE)
_MAY_LAND_LATER = frozenset({FaultKind.TIMED_OUT, FaultKind.LOST_ANSWER})
_OF_TABLES = frozenset({"create_table", "delete_table"})
_SENT_AGAIN_BELOW = frozenset({"replace", "insert_or_replace", "delete"})
"""Requests that HTTP libraries take for such as may be repeated."""
SIGNED_S = 900.0
"""For so long the service takes a request after it was signed."""
_AT_THE_SOCKET_S = 0.05
"""What was decided so shortly before its process was stopped may not have been sent."""


@dataclass(eq=False)
class Process:
    """A process, as the owner of its tasks (`tests.simulation.loop.OWNER`).

    Attributes:
        name: unique.
        request_s: within how many seconds a request takes effect, or never.
        faults: the share of its requests that fail.
        failing_reads: the share of its reads that do, if it is another one: no handle here repeats them.
        slowness: how much slower than usual its requests are.
        dies_at: the number of the request before which it is killed, 0 for never.
        unasked: the share of what stood at the socket while it was stopped that goes out without being asked
            for again.
    """

    name: str
    request_s: float
    faults: float = 0.0
    slowness: float = 1.0
    dies_at: int = 0
    unasked: float = 0.0
    failing_reads: float | None = None
    dead: bool = False
    stopped: bool = False
    calls: int = 0
    stops: int = 0
    held: list[Handle] = field(default_factory=list)
    unsent: list[_Flight] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def made(self, _task: asyncio.Task[Any], _by: asyncio.Task[Any] | None) -> None:
        """Nothing is kept of tasks."""


@dataclass(eq=False)
class _Flight:
    process: Process
    sent: float
    land: Callable[[], None]
    timer: Handle
    asked: Callable[[], None]
    """Raises when it may not be sent (any more)."""
    told: Callable[[Any, BaseException | None], None]
    longest_s: float


@dataclass
class Fate:
    """What becomes of one request, by plan: the `nth` one of a process that it fits.

    Attributes:
        process: how the process's name begins.
        action, table: of its call; "" fits all.
        lands_s: after how many seconds it takes effect; None: as usual; inf: never.
        told: whether its sender has the answer; otherwise the connection breaks, at once.
        repeated: whether the connection broke, and sends it again unseen if connections do such things.
        then: is called when it was sent.
    """

    process: str
    action: str = ""
    table: str = ""
    nth: int = 1
    lands_s: float | None = None
    told: bool = False
    repeated: bool = False
    then: Callable[[], None] = lambda: None
    seen: int = 0

    def fits(self, process: Process, call: Call) -> bool:
        """Tell whether it is about this request, counting it if it may be."""
        if not process.name.startswith(self.process) or self.seen >= self.nth:
            return False
        if self.action not in ("", call.action) or self.table not in ("", call.table):
            return False
        self.seen += 1
        return self.seen == self.nth


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

    def next_timer(self) -> float | None:
        """Return how many seconds are left until the next timer. Nobody here is a sleeper."""
        timers = self._timers
        while timers and timers[0][2].cancelled:
            heapq.heappop(timers)
        return timers[0][0] - self.now if timers else None

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

    def monotonic(self) -> float:
        return self._loop.now

    def advance(self, seconds: float) -> None:
        self._loop.pass_time(seconds)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class MachineClock(StormClock):
    """The clock of one machine, as its operator set it: it may be wrong, and jump."""

    def __init__(self, loop: StormLoop, ahead_s: float = 0.0) -> None:
        super().__init__(loop)
        self.ahead_s = ahead_s

    def ticks(self) -> int:
        return super().ticks() + round(self.ahead_s * TICKS_PER_SECOND)

    def jump(self, seconds: float) -> None:
        """Set it, forward or back."""
        self.ahead_s += seconds


@dataclass
class Storm:
    """The network between processes and tables.

    Attributes:
        seed: everything is drawn from it.
        calm: nothing fails any more (what is under way goes on).
        away_until: until when, by the loop's time, the account of targets is not reached.
        happened: what happened, counted.
        trace: a sum over all that took effect, to tell two lives apart.
        repeats_unseen: whether connections send PUT and DELETE again without a word.
        asks_again: whether connections ask once more before they send what stood at the socket.
        fates: requests whose fate is no draw.
    """

    seed: str
    loop: StormLoop
    calm: bool = False
    away_until: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)
    trace: int = 0
    repeats_unseen: ClassVar[bool] = False
    asks_again: ClassVar[bool] = True
    fates: list[Fate] = field(default_factory=list)
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
        process.unsent.clear()
        self.loop.kill(process)
        draw = random.Random(f"{self.seed} {process.name} dies")
        for flight in [one for one in self._flights if one.process is process]:
            flight.timer.cancel()
            if draw.random() < 0.4:
                del self._flights[flight]
                continue
            self.happened["late request"] += 1
            lands = max(self.loop.now, flight.sent + draw.random() ** 2 * flight.longest_s)
            flight.timer = self.loop.call_at(lands, flight.land, context=Context())

    def stop(self, process: Process, *, unsent: float = 0.5) -> None:
        """Stop a process. A share of what it has just decided to send is not sent yet."""
        process.stopped = True
        process.stops += 1
        draw = random.Random(f"{self.seed} {process.name} stops {process.stops}")
        for flight in [one for one in self._flights if one.process is process]:
            if self.loop.now - flight.sent <= _AT_THE_SOCKET_S and draw.random() < unsent:
                self.happened["at the socket"] += 1
                flight.timer.cancel()
                del self._flights[flight]
                process.unsent.append(flight)

    def go_on(self, process: Process) -> None:
        """Let a stopped process go on. What stood at the socket goes out now."""
        draw = random.Random(f"{self.seed} {process.name} goes on {process.stops}")
        unsent, process.unsent = process.unsent, []
        for flight in unsent:
            self._goes_out(flight, asked=self.asks_again and draw.random() >= process.unasked)
        self.loop.go_on(process)

    def _goes_out(self, flight: _Flight, *, asked: bool) -> None:
        error: Exception | None = None
        if self.loop.now - flight.sent > SIGNED_S:
            error = CredentialRefused("signed too long ago", code="AuthenticationFailed", status=403)
        elif asked:
            try:
                flight.asked()
            except Exception as refused:  # noqa: BLE001 - whatever forbids it, its sender is told
                error = refused
        if error is not None:
            self.loop.call_later(0.001, flight.told, None, error, context=Context())
            return
        self.happened["sent late"] += 1
        self._flights[flight] = None
        flight.timer = self.loop.call_later(0.01, flight.land, context=Context())

    # --- requests ------------------------------------------------------------------------------------------

    async def request(
        self,
        process: Process,
        call: Call,
        text: str,
        effect: Callable[[], Any],
        service_s: float = math.inf,
    ) -> Any:
        """Send a request and wait for its answer. `service_s`: it takes effect within that time, or never."""
        draw = self._sends(process, text)
        longest_s = min(process.request_s, service_s)
        fate = next((one for one in self.fates if one.fits(process, call)), None)
        fault = self._fault(process, call, draw)
        lands, hears = self._delays(process, draw, longest_s)
        if fault is not None:
            self.happened[fault.kind] += 1
            if fault.kind in _MAY_LAND_LATER and draw.random() < 0.6:
                hears = lands * draw.random()  # told before it takes effect
                lands = max(lands, draw.random() ** 2 * longest_s)
        answer: asyncio.Future[Any] = self.loop.create_future()

        def told(given: Any, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(given)
            else:
                answer.set_exception(error)

        error = None if fault is None else fault.error()
        applied = fault is None or fault.applied
        if fate is not None:
            self.happened["fate"] += 1
            applied, error = (
                fate.lands_s != math.inf,
                None if fate.told else Fault(FaultKind.LOST_ANSWER).error(),
            )
            lands, hears = lands if fate.lands_s is None else min(fate.lands_s, longest_s), 0.001
        if (
            isinstance(error, Ambiguous)
            and self.repeats_unseen
            and call.action in _SENT_AGAIN_BELOW
            and (fate is None or fate.repeated)
        ):
            self.happened["repeated unseen"] += 1
            if applied:
                self._fly(process, text, lands, effect, lambda *_: None, None, longest_s)
            applied, error, lands = True, None, 0.01
        if applied:
            self._fly(process, text, lands, effect, told, hears if error is None else None, longest_s)
        if error is not None:
            self.loop.call_later(hears, told, None, error, context=Context())
        if fate is not None:
            fate.then()
        return await answer

    async def wait(self, process: Process, call: Call) -> Fault | None:
        """Let a request take its time that its caller then does itself (pages, tables, the time)."""
        draw = self._sends(process, f"{call.action} {call.table}")
        await asyncio.sleep(self._delays(process, draw, process.request_s)[0])
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
        longest_s: float,
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
        asked = contextvars.copy_context()
        flight = _Flight(
            process, self.loop.now, land, timer, lambda: asked.run(allowance.check), told, longest_s
        )
        self._flights[flight] = None

    def _delays(self, process: Process, draw: random.Random, longest_s: float) -> tuple[float, float]:
        """Return after how many seconds a request takes effect, and how many more its answer takes."""
        lot = draw.random()
        lands = 0.001 + 0.03 * draw.random() * process.slowness
        if not self.calm and lot > 0.995:
            self.happened[FaultKind.SLOW] += 1
            lands = draw.random() * longest_s
        elif not self.calm and lot > 0.95:
            lands = min(longest_s, draw.random() * process.slowness)
        return lands, 0.001 + 0.01 * draw.random() * process.slowness

    def _fault(self, process: Process, call: Call, draw: random.Random) -> Fault | None:
        lot, which = draw.random(), draw.random()
        if self.calm:
            return None
        if is_in_target_account(call.table) and self.loop.now < self.away_until:
            writes = call.writes or call.action in _OF_TABLES
            return Fault(FaultKind.LOST_REQUEST if writes and which < 0.5 else FaultKind.NOT_SENT)
        if call.action == "page" and lot < 0.2:
            return Fault(_PAGES[int(which * len(_PAGES))])
        writes = call.writes or call.action in _OF_TABLES
        share = process.faults if writes or process.failing_reads is None else process.failing_reads
        if lot > 1 - share:
            kinds = _WRITES if writes else _READS
            if call.action == "transact" and which < 0.25:
                return Fault(FaultKind.INSIDE_BATCH, index=int(draw.random() * len(call.operations)))
            return Fault(kinds[int(which * len(kinds))])
        return None


class StormService(MemoryTableService):
    """Tables in memory, reached through a storm. Without an owner (set-up, judging) a call passes at once."""

    def __init__(self, storm: Storm, clock: FakeClock, *, is_target_account: bool = False) -> None:
        super().__init__(clock=clock, is_target_account=is_target_account)
        self.storm = storm
        self.machine: FakeClock = clock
        self.repeating: Repeating | None = None

    def seen_by(self, process: Process, machine: FakeClock) -> StormService:
        """Return the same tables as a process that repeats sees them, through connections of its own."""
        seen = StormService(self.storm, self.clock, is_target_account=self.is_target_account)  # type: ignore[arg-type]
        seen._tables, seen._being_deleted = self._tables, self._being_deleted
        seen.machine = machine
        seen.repeating = Repeating(machine, random.Random(f"{self.storm.seed} {process.name} repeats"))
        return seen

    def table(self, name: str) -> MemoryTable:
        return StormTable(self, name, self.repeating)

    def multi_writer_table(self, name: str) -> MemoryTable:
        """Return a handle that repeats no open write and takes no content for a proof."""
        return StormTable(self, name, service_s=MULTI_WRITER_SERVICE_S)

    def left_open(self) -> None:
        """Note that an attempt to write was left without an answer."""
        self.last_open = self.machine.monotonic()

    async def create_table(self, name: str) -> bool:
        def effect() -> bool:
            self._refuse_deleted(name)
            made = name.lower() not in self._tables
            self._tables.setdefault(name.lower(), StoredRows())
            return made

        return await self._on_tables("create_table", name, effect, super().create_table)

    async def delete_table(self, name: str) -> bool:
        def effect() -> bool:
            dropped = self._tables.pop(name.lower(), None) is not None
            if dropped:
                self._being_deleted[name.lower()] = self.clock.ticks() + self._deletion_ticks
            return dropped

        return await self._on_tables("delete_table", name, effect, super().delete_table)

    async def _on_tables(
        self,
        action: str,
        name: str,
        effect: Callable[[], bool],
        unseen: Callable[[str], Coroutine[Any, Any, bool]],
    ) -> bool:
        """Make or drop a table by a request that goes its own way."""
        process: Process | None = OWNER.get()
        if process is None:
            return await unseen(name)
        check_table_name(name, in_target_account=self.is_target_account)
        allowance.check()
        try:
            done: bool = await self.storm.request(
                process, Call(action, name, (), 0), f"{action} {name}", effect
            )
        except Ambiguous:
            self.left_open()
            raise
        return done

    async def enter(
        self, action: str, table: str, operations: tuple[Operation, ...] = (), read: str | None = None
    ) -> Fault | None:
        process: Process | None = OWNER.get()
        if process is None:
            return None
        fault = await self.storm.wait(process, Call(action, table, operations, 0, read))
        if fault is not None and not fault.applied:
            self.leave(fault)
        return fault


class StormTable(MemoryTable):
    """A table of a `StormService`."""

    _service: StormService

    def __init__(
        self,
        service: StormService,
        name: str,
        repeating: Repeating | None = None,
        service_s: float = math.inf,
    ) -> None:
        super().__init__(service, name)
        self._repeating, self._service_s = repeating, service_s

    async def _read(self, key: EntityKey, select: Sequence[str] | None) -> Row | None:
        process: Process | None = OWNER.get()
        if process is None:
            return await super()._read(key, select)
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
        self, within: KeyRange = EVERYTHING, *, page_rows: int = MAX_PAGE_ROWS, **how: Any
    ) -> AsyncIterator[Page]:
        few = page_rows if OWNER.get() is None else min(page_rows, 7)
        async for page in super().scan(within, page_rows=few, **how):
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

        async def attempt() -> list[str | None]:
            try:
                done: list[str | None] = await self._service.storm.request(
                    process, Call(action, self.name, operations, 0), text, effect, self._service_s
                )
            except (Ambiguous, Unavailable, asyncio.CancelledError) as error:
                if not isinstance(error, Unavailable) or may_be_applied(error):
                    self._service.left_open()
                raise
            return done

        if self._repeating is not None:
            return await self._repeating.write(self, operations, attempt)
        allowance.check()
        return await attempt()
