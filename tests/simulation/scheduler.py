"""A scheduler that owns the gate of tables in memory: which call takes effect next is its choice alone.

Rules kept here:

* Between two choices every task runs until all of them wait at the gate: so a run is a list of choices, and
  the same list gives the same run.
* An actor is a process: all tasks that its first task made, and theirs. It may have several calls at the gate
  at once, which take effect, and are answered, in any order.
* A write that was sent goes its own way: when its sender dies, gives up waiting or loses the connection, the
  request is late: it lands at some later moment, or never.
* What an actor is doing is a function of what its tasks were answered and when: the chains of their answers,
  with the content of the tables and the time, name a state. Two runs in the same state have the same future,
  and one of them is enough. Each task has a chain of its own, named by who made it, when, and as which: so
  nothing depends on the order in which a process iterates over anything. What is taken for granted: a
  process does not remember in which order answers came that several of its tasks waited for at once (a test
  compares with a search that does not take it for granted).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from rekey.errors import Ambiguous, EndpointDown, ServiceError, Unavailable
from rekey.model import EVERYTHING, EntityKey, KeyRange, Row
from rekey.tables.base import Operation, Page
from rekey.tables.rules import check_key_part
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call
from tests.fakes.memory import MemoryTable, MemoryTableService, Mood, StoredRows, _prepare
from tests.simulation.loop import OWNER, SimulatedLoop


@dataclass(eq=False)
class Actor:
    """A process that works on the tables, and what it was answered: one chain for each of its tasks."""

    name: str
    task: asyncio.Task[Any] | None = None
    dead: bool = False
    in_order: bool = False
    """Whether the order of answers to different tasks is kept apart as well."""
    answers: int = 0
    """The sum over the chains of all tasks that ever were: the order of summands is of no importance."""
    _chains: dict[asyncio.Task[Any] | None, tuple[int, int, int]] = field(default_factory=dict)
    """Of each task: its name, its chain, and how many tasks it made."""

    def made(self, task: asyncio.Task[Any], by: asyncio.Task[Any] | None) -> None:
        """Note a new task and who made it."""
        name, chain, number = self._chains.get(by, (0, 0, 0))
        self._chains[by] = (name, chain, number + 1)
        self._chains[task] = (hash((name, chain, number)), 0, 0)

    def learn(self, task: asyncio.Task[Any] | None, what: str, answer: object, now: float) -> None:
        """Add an answer to a task's chain."""
        name, chain, number = self._chains.get(task, (0, 0, 0))
        then = hash((chain, what, repr(answer), now))
        self._chains[task] = (name, then, number)
        if self.in_order:
            self.answers = hash((self.answers, name, then))
        else:
            self.answers += hash((name, then)) - (hash((name, chain)) if chain else 0)

    def forget(self, but: Hashable) -> None:
        """Note that of all that was learned only so much matters for what is done from here on."""
        self._chains = {task: (name, 0, number) for task, (name, _, number) in self._chains.items()}
        self.answers = hash(but)

    @property
    def ended(self) -> bool:
        """Tell whether its work is done (tasks that it left behind may go on)."""
        return self.task is not None and self.task.done()


@dataclass(eq=False)
class Held:
    """A call at the gate.

    Attributes:
        task: its caller.
        answer: what its caller waits for.
        effect: does it; None for calls that the caller does itself as soon as it may go on.
        late: nobody waits for the answer any more.
        since: when it came to the gate.
        key: what a get is about.
    """

    actor: Actor
    call: Call
    task: asyncio.Task[Any] | None
    answer: asyncio.Future[Any]
    effect: Callable[[], Any] | None
    since: float
    key: EntityKey | None = None
    late: bool = False
    _text: str = ""

    @property
    def text(self) -> str:
        """What the call does, the same for the same call in every run."""
        if not self._text:
            call = self.call
            writes = [(one.verb, one.row, one.etag) for one in call.operations]
            self._text = f"{call.action} {call.table} {writes}" if writes else f"{call.action} {call.table}"
        return self._text

    @property
    def about(self) -> Hashable:
        """What tells the call from others at the gate, cheaply: all but the content of what it writes."""
        call = self.call
        key = call.operations[0].key if call.operations else None
        return (self.actor.name, self.late, call.action, call.table, key)

    def commutes(self, other: Held) -> bool:
        """Tell whether the two may take effect in either order with the same answers and the same content."""
        mine, others = self.call, other.call
        if not (mine.writes or others.writes) or mine.table != others.table:
            return True
        ours, theirs = self.keys(), other.keys()
        return bool(ours and theirs) and not ours & theirs

    def keys(self) -> set[EntityKey]:
        """Return the keys it concerns, none when it concerns more than its keys say."""
        if self.key is not None:
            return {self.key}
        return {one.key for one in self.call.operations}


class HeldService(MemoryTableService):
    """Tables in memory whose every call waits for the scheduler."""

    def __init__(self, scheduler: Scheduler, clock: FakeClock, mood: Mood = Mood.AZURITE) -> None:
        super().__init__(clock=clock, gate=scheduler.hold, mood=mood)
        self.scheduler = scheduler
        self._texts: dict[str, str] = {}

    def table(self, name: str) -> MemoryTable:
        return HeldTable(self, name)

    async def server_time(self) -> str:
        answer = await super().server_time()
        self.scheduler.answered("server_time", answer)
        return answer

    def content(self) -> Hashable:
        """Return all that is in the tables, versions of deleted rows included."""
        return tuple(self._text(name) for name in sorted(self._tables))

    def snapshot(self) -> dict[str, StoredRows]:
        """Return a copy of all tables."""
        return {name: _copied(rows) for name, rows in self._tables.items()}

    def restore(self, snapshot: dict[str, StoredRows]) -> None:
        """Hold what was copied."""
        self._tables = {name: _copied(rows) for name, rows in snapshot.items()}

    def changed(self, name: str) -> None:
        """Note that a table is not what it was."""
        self._texts.pop(name.lower(), None)

    def _text(self, name: str) -> str:
        text = self._texts.get(name)
        if text is None:
            rows = self._tables[name]
            found = sorted((place, row.content, row.ticks) for place, row in rows.rows.items())
            self._texts[name] = text = repr((name, found, sorted(rows.last_ticks.items())))
        return text


class HeldTable(MemoryTable):
    """A table of a `HeldService`."""

    _service: HeldService

    async def _read(self, key: EntityKey, select: Sequence[str] | None) -> Row | None:
        scheduler = self._service.scheduler
        actor = scheduler.acting()
        if actor is None:
            return await super()._read(key, select)
        check_key_part(key.partition)
        check_key_part(key.row)

        def effect() -> Row | None:
            stored = self._service.rows(self.name).rows.get(key.order)
            return None if stored is None else stored.as_read(select)

        found: Row | None = await scheduler.call(actor, Call(f"get {key}", self.name, (), 0), effect, key)
        return found

    async def scan(self, within: KeyRange = EVERYTHING, **how: Any) -> AsyncIterator[Page]:
        scheduler = self._service.scheduler
        async for page in super().scan(within, **how):
            scheduler.answered(f"page {self.name}", page.rows)
            yield page
        scheduler.answered(f"page {self.name}", "end")

    async def _run(self, action: str, operations: tuple[Operation, ...]) -> list[str | None]:
        scheduler = self._service.scheduler
        actor = scheduler.acting()
        if actor is None:
            etags = await super()._run(action, operations)
            self._service.changed(self.name)
            return etags
        places = range(len(operations)) if action == "transact" else [None] * len(operations)
        prepared = [_prepare(one, place) for one, place in zip(operations, places, strict=True)]

        def effect() -> list[str | None]:
            self._service.changed(self.name)
            return self._apply(action, operations, prepared)

        try:
            done: list[str | None] = await scheduler.call(
                actor, Call(action, self.name, operations, 0), effect
            )
        except Ambiguous:
            self._service.last_open = scheduler.loop.now
            raise
        return done


def _copied(rows: StoredRows) -> StoredRows:
    return StoredRows(dict(rows.rows), list(rows.order), dict(rows.last_ticks), rows.mood)


@dataclass
class Scheduler:
    """Holds calls at the gate and lets them go one by one."""

    loop: SimulatedLoop
    held: list[Held] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    ticking: Callable[[Call], bool] = lambda _call: False
    released: Callable[[Held], None] = lambda _one: None
    """Told of every call that is about to take effect."""
    failures: int = 0
    """How many calls failed, or lost their answer."""
    in_order: bool = False
    """Whether states are kept apart by the order of answers that one process waits for at once."""
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.loop.fired = self._timer_fired

    # --- what the tables ask ---------------------------------------------------------------------------

    @staticmethod
    def acting() -> Actor | None:
        """Return the actor that runs now; None for set-up and checks, which pass."""
        actor: Actor | None = OWNER.get()
        return actor

    async def call(
        self, actor: Actor, call: Call, effect: Callable[[], Any] | None, key: EntityKey | None = None
    ) -> Any:
        """Wait at the gate; return what the call gave when it took effect."""
        if actor.dead:
            raise asyncio.CancelledError
        task = asyncio.current_task()
        one = Held(actor, call, task, self.loop.create_future(), effect, self.loop.now, key)
        self.held.append(one)
        try:
            return await one.answer
        except asyncio.CancelledError:
            if one in self.held:
                self._abandon(one)
            raise

    async def hold(self, call: Call) -> None:
        """Wait for the scheduler with a call that its caller does itself (pages, tables, the time)."""
        actor = self.acting()
        if actor is not None:
            await self.call(actor, call, None)

    def answered(self, what: str, answer: object) -> None:
        """Note an answer that reached its caller."""
        actor = self.acting()
        if actor is not None:
            actor.learn(asyncio.current_task(), what, answer, self.loop.now)

    # --- what whoever explores asks ----------------------------------------------------------------------

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Actor:
        """Start an actor and let it run to its first call."""
        actor = self.begin(name, work)
        self.loop.drain()
        return actor

    def begin(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Actor:
        """Start an actor, also from within another one: it runs when that waits."""
        actor = Actor(name, in_order=self.in_order)
        context = Context()
        context.run(OWNER.set, actor)
        actor.task = self.loop.create_task(work(), context=context)
        self.actors.append(actor)
        return actor

    def release(self, one: Held, *, lose_answer: bool = False) -> None:
        """Let a call take effect; its caller gets the answer, or hears that the connection broke."""
        self.held.remove(one)
        self.released(one)
        error: Exception | None = None
        given: Any = None
        if one.effect is not None:
            try:
                given = one.effect()
            except ServiceError as refused:
                error = refused
        if lose_answer:
            self.failures += 1
            error = _lost()
        self._answer(one, given, error)
        if self.ticking(one.call):
            self.clock.advance(1.0)

    def refuse(self, one: Held, error: Exception) -> None:
        """Fail a call that does not take effect."""
        self.held.remove(one)
        self.failures += 1
        self._answer(one, None, error)

    def disconnect(self, one: Held) -> None:
        """Break a caller's connection; its request is on its way still."""
        one.late = True
        self.failures += 1
        self._answer(one, None, _lost(), left=True)

    def drop(self, one: Held) -> None:
        """A late request never lands."""
        self.held.remove(one)

    def kill(self, actor: Actor, *, late: bool) -> None:
        """End an actor at once. Its requests under way land later, or (`late` False) never."""
        actor.dead = True
        for one in [one for one in self.held if one.actor is actor and not one.late]:
            if late and one.call.writes:
                one.late = True
            else:
                self.held.remove(one)
        self.loop.cancel_all(actor)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, on the loop and on the tables' clock."""
        self.clock.advance(seconds)
        self.loop.pass_time(seconds)

    def state(self) -> Hashable:
        """Return what everybody knows and what is under way."""
        alive = [
            (actor.name, 0 if self._is_gone(actor) else actor.answers, actor.ended)
            for actor in self.actors
            if not actor.dead
        ]
        waiting = sorted(("" if one.late else one.actor.name, one.since, one.text) for one in self.held)
        return (tuple(alive), tuple(waiting), self.clock.ticks(), self.loop.now)

    def _answer(self, one: Held, given: Any, error: Exception | None, *, left: bool = False) -> None:
        if one.late and not left:
            return
        if one.effect is not None or error is not None:
            # A call that its caller does itself is noted when that is done.
            answer = given if error is None else type(error).__name__
            one.actor.learn(one.task, one.text, answer, self.loop.now)
        if error is None:
            one.answer.set_result(given)
        else:
            one.answer.set_exception(error)
        self.loop.drain()

    def _abandon(self, one: Held) -> None:
        if one.call.writes:
            one.late = True
        else:
            self.held.remove(one)

    def _is_gone(self, actor: Actor) -> bool:
        """Tell whether a sleeper has come to its end: what it knew is of no importance any more."""
        return actor.ended and self.loop.is_sleeper(actor) and not self.loop.has_tasks(actor)

    def _timer_fired(self, owner: Actor | None) -> None:
        if owner is not None:
            owner.learn(None, "timer", "", self.loop.now)


class Waits:
    """The runner's clock: the tables' time, and waiting as timers of the loop."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def ticks(self) -> int:
        return self._scheduler.clock.ticks()

    def monotonic(self) -> float:
        return self._scheduler.loop.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _lost() -> Ambiguous:
    return Ambiguous("the connection broke before the answer", code="ConnectionLost")


def busy() -> Unavailable:
    """Return the error of a service that was too busy and did nothing."""
    return Unavailable("the service is busy (ServerBusy)", code="ServerBusy", status=503)


def unreachable() -> EndpointDown:
    """Return the error of a request that found no connection: it was not sent."""
    return EndpointDown("no connection to the account", code="ConnectionRefused")
