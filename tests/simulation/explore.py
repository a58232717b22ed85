"""Exhaustive search: every order in which calls can take effect, with crashes and lost answers.

Rules kept here:

* Depth first, without a stack of live runs: a branch is a list of choices, replayed from the beginning.
* A state that was seen is not entered again: what follows is a function of it (see `scheduler`).
* A crash is offered where a write of the actor is about to take effect. Between two writes nothing that
  outlives the actor changes, so a crash before a read leaves the same behind as one before the next write.
* Where all that an actor is about to do concerns tables that nobody else touches, the others' next calls are
  put off: they commute with it, so every other order ends in the same states.
* In every state the scenario's invariant is asked; at the end of every run, when all that was under way has
  landed, its final work is done and its final state judged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from rekey.tables.faults import Call
from tests.simulation.scheduler import Actor, CountingLoop, Held, HeldService, Scheduler

MAX_STATES = 100_000


class Scenario(ABC):
    """A small world under search. Made anew for every run."""

    crashing: frozenset[str] = frozenset()
    """The actors that may be killed (each begins again with what is durable), and lose answers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        scheduler.ticking = self.ticking

    @abstractmethod
    async def prepare(self) -> None:
        """Create tables and rows. Nothing is held yet."""

    @abstractmethod
    def actors(self) -> dict[str, Callable[[], object]]:
        """Return the work of each actor, as coroutine functions; the same function begins again."""

    @abstractmethod
    def durable(self) -> Hashable:
        """Return all that survives a crash: the content of tables and files."""

    @abstractmethod
    async def finish(self) -> None:
        """Do what is done when everybody has come to an end."""

    @abstractmethod
    def wrong(self) -> str:
        """Say what is wrong at the end, "" if nothing is."""

    def broken(self) -> str:
        """Say what is wrong in a state in the middle, "" if nothing is."""
        return ""

    def is_private(self, _call: Call) -> bool:
        """Tell whether a call concerns only what no actor but its own ever touches."""
        return False

    def ticking(self, _call: Call) -> bool:
        """Tell whether time passes after a call."""
        return False


@dataclass(frozen=True)
class Budget:
    """What may go wrong in one run."""

    crashes: int = 0
    late_requests: bool = False
    """Whether requests of a killed actor may land at any later moment."""
    lost_answers: int = 0


@dataclass
class Searched:
    """What a search visited, and the first loss it found."""

    schedules: int = 0
    """Runs that came to an end of their own."""
    states: int = 0
    steps: int = 0
    loss: str = ""
    schedule: list[str] = field(default_factory=list)
    """The choices that lead to the loss, for a reader."""


@dataclass(frozen=True)
class _Choice:
    """One thing that can happen next."""

    kind: str
    text: str
    held: Held | None = None
    actor: Actor | None = None


class Search:
    """Searches all runs of a scenario."""

    def __init__(self, make: Callable[[Scheduler], Scenario], budget: Budget) -> None:
        self._make = make
        self._budget = budget
        self._seen: set[Hashable] = set()
        self.result = Searched()

    def run(self) -> Searched:
        """Search until everything was visited or a loss is found."""
        loop = CountingLoop()
        try:
            open_branches: list[tuple[int, ...]] = [()]
            while open_branches and not self.result.loss:
                branch = open_branches.pop()
                open_branches += loop.run_until_complete(self._one(loop, branch))
                if self.result.states > MAX_STATES:
                    raise AssertionError("too many states for a search that is to be exhaustive")
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        return self.result

    async def _one(self, loop: CountingLoop, branch: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Replay a branch, follow its first continuation to the end, return the other continuations."""
        run = _Run(Scheduler(loop), self._make, self._budget)
        await run.begin()
        found: list[tuple[int, ...]] = []
        path, texts = list(branch), []
        try:
            for depth in range(1_000_000):
                choices = run.choices()
                replayed = depth < len(branch)
                if not replayed:
                    state = run.state()
                    if state in self._seen:
                        return found
                    self._seen.add(state)
                    self.result.states += 1
                    if broken := run.scenario.broken():
                        self._lost(broken, texts)
                        return []
                    if not choices:
                        break
                    found += [(*path, other) for other in range(1, len(choices))]
                    path.append(0)
                choice = choices[path[depth]]
                texts.append(choice.text)
                await run.take(choice)
                self.result.steps += 1
            self.result.schedules += 1
            await run.scenario.finish()
            if wrong := run.scenario.wrong() or run.scenario.broken():
                self._lost(wrong, texts)
        finally:
            await run.end()
        return found

    def _lost(self, what: str, texts: list[str]) -> None:
        self.result.loss, self.result.schedule = what, texts


class _Run:
    """One run: a scenario, its actors, and what may still go wrong."""

    def __init__(self, scheduler: Scheduler, make: Callable[[Scheduler], Scenario], budget: Budget) -> None:
        self.scheduler = scheduler
        self.scenario = make(scheduler)
        self._budget = budget
        self._crashes, self._lost_answers = budget.crashes, budget.lost_answers

    async def begin(self) -> None:
        await self.scenario.prepare()
        for name, work in self.scenario.actors().items():
            await self.scheduler.start(name, work)  # type: ignore[arg-type]

    def state(self) -> Hashable:
        return (self.scheduler.state(), self.scenario.durable(), self._crashes, self._lost_answers)

    def choices(self) -> list[_Choice]:
        """Return all that can happen next, in an order that depends on the state alone."""
        self._raise_faults()
        choices = []
        able = self._able()
        for one in able:
            text = f"{one.actor.name}: {one.call.action} {one.call.table}"
            late = " (late)" if one.actor.dead else ""
            choices.append(_Choice("release", text + late, held=one))
            if self._lost_answers and one.call.writes and self._may_crash(one.actor):
                choices.append(_Choice("lose", text + ", the answer is lost", held=one))
        if self._crashes:
            for actor in self.scheduler.actors:
                if self._may_crash(actor) and self._is_writing(actor):
                    choices.append(_Choice("kill", f"{actor.name} is killed", actor=actor))
                    if self._budget.late_requests:
                        text = f"{actor.name} is killed, its requests are on their way"
                        choices.append(_Choice("kill late", text, actor=actor))
        return choices

    def _able(self) -> list[Held]:
        """Return the calls to choose from: all, or those of one actor that nobody can get in the way of."""
        held = self.scheduler.held
        for name in self.scenario.actors():
            # With what an earlier life of the actor left under way.
            own = [one for one in held if one.actor.name == name]
            if own and all(self.scenario.is_private(one.call) for one in own):
                return own
        return held

    async def take(self, choice: _Choice) -> None:
        if choice.held is not None:
            lose = choice.kind == "lose"
            self._lost_answers -= lose
            await self.scheduler.release(choice.held, lose_answer=lose)
        elif choice.actor is not None:
            self._crashes -= 1
            await self.scheduler.kill(choice.actor, late=choice.kind == "kill late")
            name = choice.actor.name
            await self.scheduler.start(name, self.scenario.actors()[name])  # type: ignore[arg-type]

    async def end(self) -> None:
        for actor in self.scheduler.actors:
            await self.scheduler.kill(actor, late=False)
        for one in list(self.scheduler.held):
            one.released.cancel()
        await self.scheduler.settle()

    def _may_crash(self, actor: Actor) -> bool:
        return actor.name in self.scenario.crashing and not actor.dead

    def _is_writing(self, actor: Actor) -> bool:
        return any(one.actor is actor and one.call.writes for one in self.scheduler.held)

    def _raise_faults(self) -> None:
        """An actor that fell over is a fault of the scenario, or a find: say so at once."""
        for actor in self.scheduler.actors:
            if not actor.dead and actor.task is not None and actor.task.done():
                actor.task.result()


def search(make: Callable[[Scheduler], Scenario], budget: Budget | None = None) -> Searched:
    """Visit every run of a scenario; stop at the first loss."""
    return Search(make, budget or Budget()).run()


def service_of(scheduler: Scheduler) -> HeldService:
    """Return tables whose clock is the scheduler's."""
    return HeldService(scheduler, scheduler.clock)
