"""A scheduler that owns the gate of tables in memory: which call takes effect next is its choice alone.

Rules kept here:

* Between two choices every task runs until all of them wait at the gate: so a run is a list of choices, and
  the same list gives the same run.
* A write that was sent goes its own way: when its sender dies it stays at the gate, and lands later or never.
* What an actor is doing is a function of what it was answered: the chain of its answers, with the content of
  the tables, names a state. Two runs in the same state have the same future, and one of them is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from rekey.model import EVERYTHING, EntityKey, KeyRange, Row
from rekey.tables.base import MAX_PAGE_ROWS, Operation, Page
from rekey.tables.clock import FakeClock
from rekey.tables.faults import Call, Fault, FaultKind
from rekey.tables.memory import MemoryTable, MemoryTableService

_ACTING: ContextVar[Actor | None] = ContextVar("acting", default=None)


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that can say whether anybody is able to run now."""

    def is_idle(self) -> bool:
        """Tell whether no callback is due (asked from the only task that runs)."""
        return not self._ready  # type: ignore[attr-defined]


@dataclass(eq=False)
class Actor:
    """A task that works on the tables, and the chain of what it was answered."""

    name: str
    task: asyncio.Task[Any] | None = None
    answers: int = 0
    dead: bool = False

    def learn(self, call: Call, answer: object) -> None:
        """Add an answer to the chain."""
        self.answers = hash((self.answers, describe(call), repr(answer)))


@dataclass(eq=False)
class Held:
    """A call at the gate."""

    actor: Actor
    call: Call
    released: asyncio.Future[None]
    effect: asyncio.Task[Any] | None
    """The task that carries the write out; None for reads, which end with their caller."""


def describe(call: Call) -> str:
    """Return what a call does, the same for the same call in every run."""
    return repr((call.action, call.table, [(one.verb, one.row, one.etag) for one in call.operations]))


class HeldService(MemoryTableService):
    """Tables in memory whose every call waits for the scheduler."""

    def __init__(self, scheduler: Scheduler, clock: FakeClock) -> None:
        super().__init__(clock=clock, gate=scheduler.hold, faults=scheduler)
        self.scheduler = scheduler

    def table(self, name: str) -> MemoryTable:
        return HeldTable(self, name)

    async def server_time(self) -> str:
        answer = await super().server_time()
        self.scheduler.answered(Call("server_time", "", (), 0), answer)
        return answer

    def content(self) -> Hashable:
        """Return all that is in the tables, versions of deleted rows included."""
        return repr(
            [
                (name, sorted((p, r.content, r.ticks) for p, r in rows.rows.items()), rows.last_ticks)
                for name, rows in sorted(self._tables.items())
            ]
        )


class HeldTable(MemoryTable):
    """A table of a `HeldService`."""

    _service: HeldService

    async def get(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        row = await super().get(key, select=select)
        self._service.scheduler.answered(Call(f"get {key}", self.name, (), 0), row)
        return row

    async def scan(
        self,
        within: KeyRange = EVERYTHING,
        *,
        select: Sequence[str] | None = None,
        modified_from: str | None = None,
        page_rows: int = MAX_PAGE_ROWS,
    ) -> AsyncIterator[Page]:
        call = Call(f"page {within}", self.name, (), 0)
        pages = super().scan(within, select=select, modified_from=modified_from, page_rows=page_rows)
        async for page in pages:
            self._service.scheduler.answered(call, page.rows)
            yield page
        self._service.scheduler.answered(call, "end")

    async def _run(self, action: str, operations: tuple[Operation, ...]) -> list[str | None]:
        call = Call(action, self.name, operations, 0)
        scheduler = self._service.scheduler
        if _ACTING.get() is None:
            return await super()._run(action, operations)
        effect = asyncio.ensure_future(super()._run(action, operations))
        effect.add_done_callback(_taken_note_of)
        try:
            etags = await asyncio.shield(effect)
        except Exception as error:
            scheduler.answered(call, type(error).__name__)
            raise
        scheduler.answered(call, etags)
        return etags


def _taken_note_of(effect: asyncio.Task[Any]) -> None:
    """What became of a write is nobody's business any more when its sender is dead."""
    if not effect.cancelled():
        effect.exception()


@dataclass
class Scheduler:
    """Holds calls at the gate and lets them go one by one. It is the tables' source of faults as well."""

    loop: CountingLoop
    held: list[Held] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    loses: Call | None = None
    """The call whose answer gets lost."""
    ticking: Callable[[Call], bool] = lambda _call: False
    clock: FakeClock = field(default_factory=FakeClock)

    # --- what the tables ask ---------------------------------------------------------------------------

    async def hold(self, call: Call) -> None:
        """Wait for the scheduler; set-up and checks, which are no actors, pass."""
        actor = _ACTING.get()
        if actor is None:
            return
        if actor.dead:
            raise asyncio.CancelledError
        effect = asyncio.current_task() if call.writes else None
        one = Held(actor, call, self.loop.create_future(), effect)
        self.held.append(one)
        try:
            await one.released
        finally:
            self.held.remove(one)

    def decide(self, call: Call) -> Fault | None:
        """Lose the answer of a call that is to lose it."""
        return Fault(FaultKind.LOST_ANSWER) if call is self.loses else None

    def answered(self, call: Call, answer: object) -> None:
        """Note an answer that reached its caller."""
        actor = _ACTING.get()
        if actor is not None:
            actor.learn(call, answer)

    # --- what whoever explores asks ----------------------------------------------------------------------

    async def settle(self) -> None:
        """Let everybody run until all wait at the gate or have ended."""
        while not self.loop.is_idle():
            await asyncio.sleep(0)

    async def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Actor:
        """Start an actor and let it run to its first call."""
        actor = Actor(name)

        async def act() -> None:
            _ACTING.set(actor)
            await work()

        actor.task = self.loop.create_task(act())
        self.actors.append(actor)
        await asyncio.sleep(0)
        await self.settle()
        return actor

    async def release(self, one: Held, *, lose_answer: bool = False) -> None:
        """Let a call take effect."""
        if lose_answer:
            self.loses = one.call
        one.released.set_result(None)
        await asyncio.sleep(0)
        await self.settle()
        if self.ticking(one.call):
            self.clock.advance(1.0)

    async def kill(self, actor: Actor, *, late: bool) -> None:
        """End an actor at once. Its requests under way land later, or (`late` False) never."""
        actor.dead = True
        if not late:
            for one in [one for one in self.held if one.actor is actor and one.effect is not None]:
                one.effect.cancel()
        if actor.task is not None:
            actor.task.cancel()
        await asyncio.sleep(0)
        await self.settle()

    def state(self) -> Hashable:
        """Return what everybody knows and what is under way."""
        alive = [(actor.name, actor.answers, _ended(actor)) for actor in self.actors if not actor.dead]
        waiting = sorted((one.actor.name, one.actor.dead, describe(one.call)) for one in self.held)
        return (tuple(alive), tuple(waiting), self.clock.ticks())


def _ended(actor: Actor) -> bool:
    return actor.task is not None and actor.task.done()
