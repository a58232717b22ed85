"""What a life is up against: writers, kills, lost answers, late requests, odd pages and a slow clock.

Rules kept here:

* Everything is drawn from one seeded generator, at the gate: before each effect of the runner anything may
  happen, and nothing happens anywhere else. So a seed is a life.
* An application's write is one effect; it happens between two effects of the runner.
* A kill leaves nothing behind but what is durable. A request under way then may land up to
  `LONGEST_REQUEST_S` later, also when the next runner is at work.
* So may one whose connection broke, while the runner has sent it again and goes on: its connections repeat
  as the program's own do.
* The clock of the machine that a command runs on may be wrong, and may be set while it runs.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from rekey.core.clock import TICKS_PER_SECOND
from rekey.errors import ServiceError
from rekey.tables.base import Operation
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call, Fault, FaultKind
from tests.fakes.memory import MemoryTable, MemoryTableService
from tests.simulation.repeating import Repeating
from tests.worlds.small import Killed

LONGEST_REQUEST_S = 30.0
_PAGES = (FaultKind.EMPTY_PAGE, FaultKind.SHORT_PAGE)
_OPEN = (FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST)
_FATAL = (FaultKind.BUSY, FaultKind.TIMED_OUT, FaultKind.NOT_SENT)
_OF_TABLES = frozenset({"create_table", "delete_table"})


class Machine(FakeClock):
    """The clock of one machine, as its operator set it, beside the service's."""

    def __init__(self, service: FakeClock, ahead_s: float = 0.0) -> None:
        super().__init__()
        self._service = service
        self.ahead_s = ahead_s

    def ticks(self) -> int:
        return self._service.ticks() + round(self.ahead_s * TICKS_PER_SECOND)

    def advance(self, seconds: float) -> None:
        self._service.advance(seconds)

    async def sleep(self, seconds: float) -> None:
        await self._service.sleep(seconds)


class Connected(MemoryTableService):
    """Tables in memory as a runner sees them: connections repeat what was not answered."""

    repeating: Repeating | None = None

    def table(self, name: str) -> MemoryTable:
        return _Repeated(self, name)

    def multi_writer_table(self, name: str) -> MemoryTable:
        """Return a handle that repeats no open write and takes no content for a proof."""
        return MemoryTable(self, name)


class _Repeated(MemoryTable):
    _service: Connected

    async def _run(self, action: str, operations: tuple[Operation, ...]) -> list[str | None]:
        run = super()._run
        if self._service.repeating is None:
            return await run(action, operations)
        return await self._service.repeating.write(self, operations, lambda: run(action, operations))


@dataclass
class _Faults:
    """The source of faults of one account."""

    adversary: Adversary
    service: MemoryTableService

    def decide(self, call: Call) -> Fault | None:
        """Choose what goes wrong with a call of the runner."""
        return self.adversary.decide(self.service, call)


@dataclass
class _Late:
    service: MemoryTableService
    call: Call
    deadline: int


@dataclass
class Adversary:
    """Owns the gates of both accounts, and is their source of faults.

    Attributes:
        random: where everything is drawn from.
        clock: the service's clock.
        write: does one write of the application; None while writers are stopped.
        hostile: whether kills and failures happen at all.
        may_be_away: an account that is not reached at times, for some calls.
        swift: whether commands take hardly any time, so that what is late is late for many of them.
        happened: what happened, counted.
    """

    random: random.Random
    clock: FakeClock
    write: Callable[[], object] | None = None
    hostile: bool = True
    may_be_away: MemoryTableService | None = None
    swift: bool = False
    happened: Counter[str] = field(default_factory=Counter)
    trace: int = 0
    """A hash over all calls, to tell two lives apart."""
    machine: Machine | None = None
    """The clock of the machine on which the present command runs."""
    _dead: bool = False
    _kill_in: int = 0
    _busy: bool = False
    _waiting: list[tuple[MemoryTableService, Call]] = field(default_factory=list)
    _late: list[_Late] = field(default_factory=list)

    def own(self, service: MemoryTableService) -> None:
        """Take over the gate and the faults of an account."""

        async def gate(call: Call) -> None:
            await self._gate(service, call)

        service.gate, service.faults = gate, _Faults(self, service)

    def begin_command(self) -> None:
        """A new process begins; in a hostile life it may be killed before any of its effects."""
        self._dead = False
        self._away = 0
        self._waiting.clear()
        kills = self.hostile and self.random.random() < 0.4
        self._kill_in = self.random.randint(1, 220) if kills else 0
        self.machine = Machine(self.clock, self.random.choice((0.0, 0.0, 300.0, -300.0)) if kills else 0.0)

    def let_all_land(self) -> None:
        """Wait as long as a request can take, if any is on its way."""
        if self._late:
            self.clock.advance(LONGEST_REQUEST_S)
            self._land()

    def quietly(self, work: Callable[[], object]) -> object:
        """Do something on the tables at once, seen by no gate and no fault. `work` returns a coroutine."""
        self._busy = True
        coroutine = work()
        try:
            coroutine.send(None)  # type: ignore[attr-defined]
        except StopIteration as done:
            return done.value
        finally:
            self._busy = False
        raise AssertionError("an effect on tables in memory takes one step")

    # --- what the tables ask ---------------------------------------------------------------------------

    async def _gate(self, service: MemoryTableService, call: Call) -> None:
        if self._busy:
            return
        self._die_if_dead()
        self.trace = hash((self.trace, call.action, call.table))
        mine = (service, call)
        self._waiting.append(mine)
        try:
            # Whoever waits longer is overtaken: calls under way take effect in any order.
            for _ in range(self.random.choice((0, 0, 1, 2, 5))):
                await asyncio.sleep(0)
                self._die_if_dead()
            self._happen()
        finally:
            if not self._dead:
                self._waiting.remove(mine)

    def decide(self, service: MemoryTableService, call: Call) -> Fault | None:
        """Choose what goes wrong with a call of the runner."""
        if self._busy or not self.hostile:
            return None
        if service is self.may_be_away:
            if not self._away and self.random.random() < 0.003:
                self.happened["account away"] += 1
                self._away = self.random.randint(1, 30)
            if self._away:
                self._away -= 1
                return Fault(FaultKind.NOT_SENT)
        draw = self.random.random()
        kind: FaultKind | None = None
        if call.action == "page" and draw < 0.2:
            kind = self.random.choice(_PAGES)
        elif call.writes and draw < (0.05 if self.swift else 0.02):
            kind = self.random.choice(_OPEN)
        elif draw > 0.9985:
            kind = self.random.choice(_FATAL if call.writes else (FaultKind.BUSY, FaultKind.NOT_SENT))
        elif draw > 0.98 and not self.swift:
            return Fault(FaultKind.SLOW, seconds=self.random.random() * 20)
        if kind is None:
            return None
        self.happened[kind] += 1
        if kind is FaultKind.LOST_REQUEST and self.random.random() < 0.7:
            self._lands_late(service, call)
        return Fault(kind)

    # --- what happens ------------------------------------------------------------------------------------

    def _happen(self) -> None:
        longest = 0.002 if self.swift else 0.4
        self.clock.advance(self.random.choice((0.0, 0.0, 0.001, longest / 40, longest)))
        self._land()
        while self.write is not None and self.random.random() < 0.3:
            self.happened["write"] += 1
            self.quietly(self.write)  # type: ignore[arg-type]
        if self.machine is not None and self.hostile and self.random.random() < 0.0005:
            self.happened["clock set"] += 1
            self.machine.ahead_s += self.random.choice((300.0, -300.0))
        if self._kill_in:
            self._kill_in -= 1
            if not self._kill_in:
                self._kill()

    def _kill(self) -> None:
        self._dead = True
        self.happened["kill"] += 1
        for service, call in self._waiting:
            if (call.writes or call.action in _OF_TABLES) and self.random.random() < 0.5:
                self._lands_late(service, call)
        raise Killed

    def _lands_late(self, service: MemoryTableService, call: Call) -> None:
        wait = max(self.random.random(), self.random.random() * self.swift) * LONGEST_REQUEST_S
        self._late.append(_Late(service, call, self.clock.ticks() + round(wait * TICKS_PER_SECOND)))

    def _die_if_dead(self) -> None:
        if self._dead:
            raise Killed

    def _land(self) -> None:
        for one in [one for one in self._late if one.deadline <= self.clock.ticks()]:
            self._late.remove(one)
            self.happened["late request"] += 1
            with suppress(ServiceError):
                self.quietly(lambda one=one: _landing(one))


def _landing(late: _Late) -> object:
    service, call = late.service, late.call
    if call.action in _OF_TABLES:
        return getattr(service, call.action)(call.table)
    return MemoryTable(service, call.table)._run(call.action, call.operations)
