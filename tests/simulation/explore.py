"""Exhaustive search: every order in which calls can take effect, with crashes, lost answers and time.

Rules kept here:

* Depth first, without a stack of live runs: a branch is a list of choices, replayed from the beginning.
* A state that was seen is not entered again: what follows is a function of it (see `scheduler`). States are
  remembered by a hash of 64 bits; that two of a hundred thousand share one has a chance of 3e-10.
* A crash is offered where a write of the actor is about to take effect. Between two writes nothing that
  outlives the actor changes, so a crash before a read leaves the same behind as one before the next write.
* An answer is lost in three ways: the write took effect; it did not; it will, at some later moment.
* Where all that an actor is about to do concerns tables that nobody else touches, the others' next calls are
  put off: they commute with it, so every other order ends in the same states.
* Where two calls that wait at the same time commute, one order of the two is enough: whoever is first by a
  fixed order goes first, and the other order, which ends in the same state, is not followed. (With a bound on
  preemptions only for calls of one process, because there it matters who goes first.)
* A call that commutes with all that anybody else does in any run is let go at once, and alone: reads of what
  nobody writes, writes of a scenario's `unseen` tables that nobody else reads. Who touches what is learned:
  a search begins with what the one before it met, until one meets nothing new. One that knows less may take
  the beginning of a call for later than it was, so what it finds is looked at once more.
* A preemption is to go on with another actor although the last one could. With a bound, runs with few
  preemptions come first, so that a state is first seen with the fewest it can be reached with. Late
  requests, crashes and time are no preemptions. A search that was not cut anywhere says that it is complete.
* Time passes only where nothing else would be waited for, or as a choice, as often as the scenario says. A
  request takes effect within `Scenario.longest` seconds or never (see `rekey.tables.transport`).
* A sleeper is stopped at any of its calls, for as long as the search likes. Of a timer of its own that is due
  it hears before its next answer, or behind it, as the search chooses.
* In every state the scenario's invariant is asked; at the end of every run, when all that was under way has
  landed or is lost, its final work is done and its final state judged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import Any

from tests.simulation.loop import SimulatedLoop
from tests.simulation.scenario import Budget, Scenario, Searched, TooMany
from tests.simulation.scheduler import Actor, Held, HeldService, Scheduler, busy, unreachable
from tests.simulation.touched import Touched

MAX_STATES = 100_000
LEAST_STATES = 1_500
"""Visited by a search whose time is up, unless there are fewer."""


@dataclass(frozen=True)
class _Choice:
    """One thing that can happen next."""

    kind: str
    held: Held | None = None
    actor: Actor | None = None
    cost: int = 0
    event: str = ""
    quiet: bool = False
    """Whether its call commutes with all that anybody else does."""


_Step = tuple[str, Hashable, int, bool]
"""A choice as it is written down: its kind, what its call is about, which of those (or which actor), and
whether that is quiet."""
_Branch = tuple[_Step, ...]
_Told = tuple[str, Held | Actor | str | None, bool]
"""What happened, to whom, and whether nobody waited for it any more: to be put in words if a reader asks."""


class Search:
    """Searches all runs of a scenario."""

    def __init__(self, make: Callable[[Scheduler], Scenario], budget: Budget) -> None:
        self._make = make
        self._budget = budget
        self._seen: set[int] = set()
        self._prepared: Any = None
        self._touched, self._met = Touched(), Touched()
        self._meets_new = False
        self._open: dict[int, list[_Branch]] = {0: [()]}
        """Branches by the preemptions they hold."""
        self.result = Searched()

    def run(self, most_states: int = MAX_STATES, most_seconds: float = inf) -> Searched:
        """Search until everything was visited, a loss is found or the time is up."""
        ends = monotonic() + most_seconds
        while True:
            self._search(most_states, ends)
            if self.result.loss or self.result.ended is not None or not self._meets_new:
                return self.result
            self._touched, self._met, self._meets_new = self._met, deepcopy(self._met), False
            self._seen, self._open, self.result = set(), {0: [()]}, Searched()

    def _search(self, most_states: int, ends: float) -> None:
        while self._open and not self.result.loss:
            fewest = min(self._open)
            if monotonic() > ends and self.result.states >= LEAST_STATES:
                self.result.ended = fewest
                return
            branches = self._open[fewest]
            if not branches:
                del self._open[fewest]
                continue
            self._one(branches.pop(), fewest)
            if self.result.states > most_states:
                raise TooMany(f"more than {most_states:,} states")

    @contextmanager
    def _begun(self) -> Iterator[_Run]:
        """Begin a run, and end it with the context."""
        with SimulatedLoop() as loop:
            run = _Run(Scheduler(loop), self._make, self._budget, self)
            self._prepared = run.begin(self._prepared)
            try:
                yield run
            finally:
                run.end()

    def _one(self, branch: _Branch, preemptions: int) -> None:
        """Replay a branch and follow its first continuation to the end; note the other continuations."""
        told: list[_Told] = []
        path = list(branch)
        with self._begun() as run:
            told += [run.take(run.choice(step), replayed=True) for step in branch[:-1]]
            told += [run.take(run.choice(step)) for step in branch[-1:]]
            self.result.steps += len(branch)
            if not self._follow(run, path, preemptions, told):
                return
            self.result.schedules += 1
            run.finish()
            self.result.ends.add(hash(run.scenario.ending()))
            wrong = run.scenario.wrong() or run.scenario.broken()
        if wrong and (wrong := self._again(path)):
            self._lost(wrong, told)

    def _again(self, path: list[_Step]) -> str:
        """Repeat a run, and note of each call when it really began; return what is wrong at its end."""
        with self._begun() as run:
            for step in path:
                run.take(replace(run.choice(step), quiet=False), replayed=True)
            run.finish()
            return run.scenario.wrong() or run.scenario.broken()

    def _follow(self, run: _Run, path: list[_Step], preemptions: int, told: list[_Told]) -> bool:
        """Go on until the run's end (True) or into a state that was seen or is broken."""
        while True:
            run.look()
            choices = run.choices()
            state = hash(run.state())
            if state in self._seen:
                return False
            self._seen.add(state)
            self.result.states += 1
            if broken := run.scenario.broken():
                self._lost(broken, told)
                return False
            if not choices:
                return run.is_over()
            first = self._note_others(run, choices, path, preemptions)
            if first is None:
                return False
            path.append(run.step(choices[first]))
            told.append(run.take(choices[first]))
            self.result.steps += 1

    def _note_others(
        self, run: _Run, choices: list[_Choice], path: list[_Step], preemptions: int
    ) -> int | None:
        """Return which choice to follow, one that costs nothing; the others are for later."""
        first = next((number for number, one in enumerate(choices) if not one.cost), None)
        bound = self._budget.preemptions
        for number in range(len(choices) - 1, -1, -1):
            if number != first:
                cost = preemptions + choices[number].cost
                if bound is not None and cost > bound:
                    self.result.bounded = bound
                else:
                    counted = cost if bound is not None else 0
                    self._open.setdefault(counted, []).append((*path, run.step(choices[number])))
        return first

    def meet(self, one: Held) -> None:
        """Learn what a call is about."""
        self._meets_new = self._met.add(one) or self._meets_new

    def is_alone(self, one: Held, *, only: bool) -> bool:
        """Tell whether a call commutes with all that was met so far."""
        return self._touched.is_alone(one, only=only)

    def _lost(self, what: str, told: list[_Told]) -> None:
        self.result.loss, self.result.schedule = what, [_in_words(one) for one in told]


class _Run:
    """One run: a scenario, its actors, and what may still go wrong."""

    def __init__(
        self, scheduler: Scheduler, make: Callable[[Scheduler], Scenario], budget: Budget, search: Search
    ) -> None:
        self.scheduler = scheduler
        self._search = search
        scheduler.in_order = budget.all_orders
        self.scenario = make(scheduler)
        scheduler.loop.is_sleeper = self._is_sleeper
        self._budget = budget
        self._crashes, self._lost_answers = budget.crashes, budget.lost_answers
        self._failures, self._passages = budget.failures, self.scenario.passages
        self._current: Actor | None = None
        """Who did the last step; noted only where preemptions are counted."""
        self._works: dict[str, Callable[[], object]] = {}
        self._able_now: list[Held] = []
        self._alone: dict[Held, bool] = {}
        """Of calls at the gate, as far as it was asked: whether each may go at once, and alone."""
        self._last: Held | None = None
        """The last call, if all it did was to take effect."""
        self._waited: frozenset[Held] = frozenset()
        """What waited at the gate beside it."""

    def begin(self, prepared: Any) -> Any:
        """Begin with what was prepared, for the next run too."""
        if prepared is None:
            self.scheduler.loop.run(self.scenario.prepare())
            prepared = self.scenario.snapshot()
        else:
            self.scenario.restore(prepared)
        self._works = self.scenario.actors()
        for name, work in self._works.items():
            self.scheduler.start(name, work)  # type: ignore[arg-type]
        return prepared

    def finish(self) -> None:
        self.scheduler.loop.run(self.scenario.finish())

    def end(self) -> None:
        for actor in self.scheduler.actors:
            self.scheduler.kill(actor, late=False)

    def state(self) -> Hashable:
        left = (self._crashes, self._lost_answers, self._failures, self._passages)
        current = "" if self._current is None else self._current.name
        return (self.scheduler.state(), self.scenario.durable(), left, current)

    # --- what can happen ---------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at who waits at the gate. Raises what an actor fell over."""
        self._raise_faults()
        self._alone.clear()
        self._able_now = self._able()

    def is_over(self) -> bool:
        """Tell whether nobody waits for anything (otherwise all that can happen is followed elsewhere)."""
        return not self._able_now

    def choices(self) -> list[_Choice]:
        """Return all that can happen next, in an order that depends on the state alone."""
        choices: list[_Choice] = []
        able = self._able_now
        for one in able:
            self._release_choices(one, choices)
        alone = able[0] if len(able) == 1 and self.scenario.learns and self.is_alone(able[0]) else None
        if self._crashes:
            self._kill_choices(choices, alone)
        if not alone:
            choices += [_Choice("happens", event=name) for name in self.scenario.events()]
            choices += [
                _Choice("timer", actor=actor)
                for actor in self.scheduler.actors
                if not actor.dead and self.scheduler.loop.overdue(actor)
            ]
        if self._passages and any(not one.late for one in self.scheduler.held) and self.scenario.lasts():
            choices.append(_Choice("passage"))
        if able and all(one.late for one in self.scheduler.held):
            # Nobody is left to go on but what is under way: it lands, or time goes by without it.
            choices.insert(0, self._waiting_choice() or _Choice("never"))
        elif not able and (waiting := self._waiting_choice()):
            choices.append(waiting)
        return choices

    def _release_choices(self, one: Held, choices: list[_Choice]) -> None:
        quiet = self.scenario.learns and self.is_alone(one)
        cost = 0 if one.late or quiet else self._cost_of(one.actor)
        kinds = [] if self._goes_first(one) else ["release"]
        if not one.late and self._may_crash(one.actor):
            if self._lost_answers and one.call.writes:
                kinds += ["lose", "drop"]
                if self._budget.late_requests and one.actor.name not in self.scenario.punctual:
                    kinds.append("break")
            refused = self._failures and one.call.action not in SPOKEN
            if refused and not (self._budget.unreachable and one.actor.name in self.scenario.connected):
                kinds.append("fail")
        choices += [_Choice(kind, one, cost=cost, quiet=quiet) for kind in kinds]

    def _kill_choices(self, choices: list[_Choice], alone: Held | None) -> None:
        for actor in self.scheduler.actors:
            if alone or not self._may_crash(actor):
                continue
            writing = [one for one in self.scheduler.held if one.actor is actor and one.call.writes]
            if not any(not one.late for one in writing):
                continue
            late = self._budget.late_requests and actor.name not in self.scenario.punctual
            kind = "kill late" if late else "kill"
            choices.append(_Choice(kind, actor=actor))

    def _waiting_choice(self) -> _Choice | None:
        """Return the passing of time until the next timer of somebody who has not come to an end."""
        waits = self.scheduler.loop.next_timer()
        if waits is None or all(actor.ended or actor.dead for actor in self.scheduler.actors):
            return None
        return _Choice("wait")

    def _able(self) -> list[Held]:
        """Return the calls to choose from: all, or those of one actor that nobody can get in the way of."""
        held = self.scheduler.held
        for name in self._works:
            # With what an earlier life of the actor left under way.
            own = [one for one in held if one.actor.name == name]
            if own and all(self.scenario.is_private(one.call) for one in own):
                return own
        if self.scenario.learns and not self._budget.all_orders:
            for one in held:
                if self.is_alone(one):
                    return [one]
        return sorted(held, key=self._order)

    def is_alone(self, one: Held) -> bool:
        """Tell whether a call may go at once, and alone."""
        if one not in self._alone:
            self._alone[one] = self._is_alone(one)
        return self._alone[one]

    def _is_alone(self, one: Held) -> bool:
        if one.late or one.call.action in SPOKEN:
            return False
        if self._passages and self.scenario.is_sleeper(one.actor.name):
            return False  # what it does next depends on the time at which it goes on
        if one.call.action == "server_time":
            return not self._passages
        if one.call.writes and (one.call.table not in self.scenario.unseen or self._dies(one.actor)):
            return False
        only = not any(
            other.actor.name == one.actor.name and other is not one for other in self.scheduler.held
        )
        if not self._search.is_alone(one, only=only):
            return False
        return all(one is other or one.commutes(other) for other in self.scheduler.held)

    def _order(self, one: Held) -> tuple[bool, bool]:
        """Whoever did the last step goes first: the first continuation has no preemption."""
        return (one.late, one.actor is not self._current)

    def _goes_first(self, one: Held) -> bool:
        """Tell whether a call commutes with the last one and should have gone before it."""
        last = self._last
        if last is None or one not in self._waited or not one.commutes(last) or one.late != last.late:
            return False
        if self._budget.all_orders or len(self._able_now) == 1:
            return False
        if one.actor is not last.actor and (
            self._budget.preemptions is not None or self.scenario.is_marking(one)
        ):
            return False
        return self._rank(one) < self._rank(last)

    @staticmethod
    def _rank(one: Held) -> tuple[str, str]:
        return (one.actor.name, one.text)

    def _cost_of(self, actor: Actor) -> int:
        current = self._current
        if self._budget.preemptions is None or current is None or actor is current:
            return 0
        return int(any(one.actor is current and not one.late for one in self.scheduler.held))

    def _may_crash(self, actor: Actor) -> bool:
        return actor.name in self.scenario.crashing and not actor.dead

    def _is_sleeper(self, actor: Actor | None) -> bool:
        return actor is not None and self.scenario.is_sleeper(actor.name)

    def _dies(self, actor: Actor) -> bool:
        """Tell whether an actor may yet be killed: then it matters which of its requests were sent."""
        return bool(self._crashes) and self._may_crash(actor)

    # --- what happens ------------------------------------------------------------------------------------

    def step(self, choice: _Choice) -> _Step:
        """Write a choice down."""
        if choice.held is not None:
            about = choice.held.about
            alike = [one for one in self.scheduler.held if one.about == about]
            return choice.kind, about, alike.index(choice.held), choice.quiet
        if choice.event:
            return choice.kind, choice.event, 0, False
        place = -1 if choice.actor is None else self.scheduler.actors.index(choice.actor)
        return choice.kind, None, place, False

    def choice(self, step: _Step) -> _Choice:
        """Return a choice that was written down in the same place of another run."""
        kind, about, place, quiet = step
        if kind == "happens":
            return _Choice(kind, event=str(about))
        if about is None:
            return _Choice(kind, actor=None if place < 0 else self.scheduler.actors[place])
        # Not by its place at the gate: a process may make its calls in an order of its own each time.
        held = [one for one in self.scheduler.held if one.about == about][place]
        return _Choice(kind, held, quiet=quiet)

    def take(self, choice: _Choice, *, replayed: bool = False) -> _Told:
        """Let it happen; return what happened, for a reader."""
        one, scheduler = choice.held, self.scheduler
        told = (choice.kind, one or choice.actor or choice.event, one is not None and one.late)
        if not replayed:
            waited, marks = frozenset(scheduler.held), self.scenario.marks()
        self._last = None
        if one is not None:
            quiet = choice.quiet
            if self.scenario.learns and not replayed:
                self._search.meet(one)
            scheduler.released = _nothing if quiet else self.scenario.released
            if self._budget.preemptions is not None and not one.late and not quiet:
                self._current = one.actor
            ticks = scheduler.clock.ticks()
            self._answer(choice.kind, one)
            plain = not replayed and choice.kind == "release" and scheduler.clock.ticks() == ticks
            if plain and not quiet and self.scenario.marks() == marks:
                self._last, self._waited = one, waited
        elif choice.kind == "timer" and choice.actor is not None:
            scheduler.loop.fire_overdue(choice.actor)
        elif choice.event:
            self.scenario.events()[choice.event]()
            scheduler.loop.drain()
        elif choice.actor is not None:
            self._crashes -= 1
            scheduler.kill(choice.actor, late=choice.kind == "kill late")
            if choice.actor is self._current:
                self._current = None
            if choice.actor.name not in self.scenario.mortal:
                scheduler.start(choice.actor.name, self._works[choice.actor.name])  # type: ignore[arg-type]
        elif choice.kind == "never":
            for late in list(scheduler.held):
                scheduler.drop(late)
        else:
            self._passages -= choice.kind == "passage"
            short = choice.kind == "passage" and self.scenario.passage_s
            self._pass(short or scheduler.loop.next_timer() or 0.0)
        return told

    def _answer(self, kind: str, one: Held) -> None:
        if kind == "fail":
            self._failures -= 1
            self.scheduler.refuse(one, unreachable() if self._budget.unreachable else busy())
        elif kind == "release":
            self.scheduler.release(one)
        else:
            self._lost_answers -= 1
            if kind == "lose":
                self.scheduler.release(one, lose_answer=True)
            else:
                self.scheduler.disconnect(one)
                if kind == "drop":
                    self.scheduler.drop(one)

    def _pass(self, seconds: float) -> None:
        """Let time pass. What is under way for too long afterwards never lands."""
        scheduler = self.scheduler
        scheduler.pass_time(seconds)
        for one in list(scheduler.held):
            over = one.since + self.scenario.longest <= scheduler.loop.now
            if over and one.call.writes and not one.late and self._is_sleeper(one.actor):
                scheduler.disconnect(one)
            if over and one.late:
                scheduler.drop(one)

    def _raise_faults(self) -> None:
        """An actor that fell over is a fault of the scenario, or a find: say so at once."""
        for actor in self.scheduler.actors:
            if not actor.dead and actor.task is not None and actor.task.done():
                actor.task.result()


SPOKEN = frozenset({"begins", "looks"})
"""Calls that are no calls on a table: moments at which an actor goes on."""


def _nothing(_one: Held) -> None:
    return


_WORDS = {
    "release": "",
    "lose": ", the answer is lost",
    "drop": ", the request is lost",
    "break": ", the connection breaks on the way",
    "fail": ", it fails and changes nothing",
    "kill": " is killed",
    "kill late": " is killed, its requests are on their way",
    "never": "what is under way never lands",
    "passage": "time passes",
    "wait": "time passes until somebody's timer",
    "timer": " hears that its time is up",
    "happens": "",
}


def _in_words(told: _Told) -> str:
    kind, whom, late = told
    if isinstance(whom, Held):
        late_too = " (late)" if late else ""
        return f"{whom.actor.name}: {whom.call.action} {whom.call.table}{late_too}{_WORDS[kind]}"
    return (whom.name if isinstance(whom, Actor) else whom or "") + _WORDS[kind]


def search(
    make: Callable[[Scheduler], Scenario],
    budget: Budget | None = None,
    most_states: int = MAX_STATES,
    most_seconds: float = inf,
) -> Searched:
    """Visit every run of a scenario, those with few preemptions first. Stop at the first loss, or when the
    time is up and `LEAST_STATES` were visited, so that a slow machine searches longer and not less."""
    return Search(make, budget or Budget()).run(most_states, most_seconds)


def service_of(scheduler: Scheduler) -> HeldService:
    """Return tables whose clock is the scheduler's."""
    return HeldService(scheduler, scheduler.clock)
