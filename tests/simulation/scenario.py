"""What is searched: a small world with its actors, what may go wrong in it, and what a search reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.faults import Call
from tests.simulation.scheduler import Held, Scheduler


class TooMany(AssertionError):
    """More states than a search that is to be exhaustive, within its bound, may have."""


class Scenario(ABC):
    """A small world under search. Made anew for every run."""

    crashing: frozenset[str] = frozenset()
    """The actors that may be killed, and lose answers."""
    mortal: frozenset[str] = frozenset()
    """Those of them that do not begin again with what is durable."""
    punctual: frozenset[str] = frozenset()
    """Those whose requests land at once or never, also when they are killed or hear nothing."""
    connected: frozenset[str] = frozenset()
    """Those that always find a connection: without one their command ends, and lives repeat it."""
    unseen: frozenset[str] = frozenset()
    """Tables about which the invariant says nothing."""
    learns: bool = False
    """Whether calls that commute with all others are let go at once."""
    passages: int = 0
    """How often time may pass although somebody could go on."""
    passage_s: float = 0.0
    """Of one passage; 0: each is as long as it takes until the next timer."""
    longest: float = 1e9
    """How many seconds a request may be under way."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        scheduler.ticking = self.ticking

    @abstractmethod
    async def prepare(self) -> None:
        """Create tables and rows. Nothing is held yet."""

    def snapshot(self) -> Any:
        """Return what `prepare` made, for `restore` in other runs; None to prepare each run anew."""
        return None

    def restore(self, snapshot: Any) -> None:
        """Take what another run's `prepare` made."""
        raise NotImplementedError

    @abstractmethod
    def actors(self) -> dict[str, Callable[[], object]]:
        """Return the work of each actor, as coroutine functions; the same function begins again."""

    @abstractmethod
    def durable(self) -> Hashable:
        """Return all that survives a crash: the content of tables and files."""

    def ending(self) -> Hashable:
        """Return what a run has come to: what is durable, and what was told to whom."""
        return self.durable()

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

    def is_sleeper(self, _name: str) -> bool:
        """Tell whether an actor may be stopped anywhere, for any time; its timers fire when it goes on."""
        return False

    def lasts(self) -> bool:
        """Tell whether time may pass now although somebody could go on."""
        return True

    def events(self) -> dict[str, Callable[[], None]]:
        """Return what else may happen now, by what a reader is told. How much of it is left is `durable`."""
        return {}

    def marks(self) -> Hashable:
        """Return what is noted beside tables and answers, and depends on the order of calls that commute."""
        return None

    def released(self, _one: Held) -> None:
        """A call is about to take effect that does not commute with all others."""
        return

    def is_marking(self, _one: Held) -> bool:
        """Tell whether a call is noted in `marks` when it takes effect."""
        return False

    def ticking(self, _call: Call) -> bool:
        """Tell whether the tables' clock moves after a call."""
        return False


@dataclass(frozen=True)
class Budget:
    """What may go wrong in one run."""

    crashes: int = 0
    late_requests: bool = False
    """Whether requests of a killed actor, or whose answer is lost, may land at any later moment."""
    lost_answers: int = 0
    failures: int = 0
    """Calls, reads as well, that the service refuses as too busy."""
    unreachable: bool = False
    """Whether a failing call finds no connection instead: an error that is known to have changed nothing."""
    preemptions: int | None = None
    all_orders: bool = False
    """Whether orders that are taken for equal are followed all the same: to show that they are."""


@dataclass
class Searched:
    """What a search visited, and the first loss it found."""

    schedules: int = 0
    """Runs that came to an end of their own."""
    states: int = 0
    steps: int = 0
    bounded: int | None = None
    """The bound on preemptions, if it cut anything."""
    ended: int | None = None
    """With how many preemptions the time was up, None if everything was visited."""
    ends: set[int] = field(default_factory=set)
    """What all runs came to."""
    loss: str = ""
    schedule: list[str] = field(default_factory=list)
    """The choices that lead to the loss, for a reader."""

    def __str__(self) -> str:
        cut = "complete" if self.bounded is None else f"at most {self.bounded} preemptions"
        if self.ended is not None:
            cut = f"time was up at {self.ended} preemptions"
        return f"{self.schedules:,} schedules, {self.states:,} states, {self.steps:,} effects ({cut})"
