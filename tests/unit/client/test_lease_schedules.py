"""Random schedules of clients and a runner: nobody is overtaken by more than an epoch, and rules are needed.

Every call takes a random while before and after its effect, answers get lost, lost requests land late, stores
go away, clocks run at different rates, clients start, end and die at any moment. The runner waits as it does,
and then an oracle looks at what is really under way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from rekey.client.lease import ClientLease, Permit
from rekey.client.reading import LeaseSettings
from rekey.errors import Unavailable, WritesRefused
from rekey.model import EntityKey, Row
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.registry import Registry, is_current, is_over
from tests.fakes.memory import MemoryTable, MemoryTableService
from tests.scenarios.protocol.test_lease import HandClock
from tests.worlds.leases import FACTS, SCRIPT, C, D, F, S

SETTINGS = LeaseSettings(poll_s=1.0, lease_s=6.0, longest_operation_s=4.0, freeze_wait_s=4.0)
WAY = (D, F, C, F, D, S)
"""There, and back again."""


class Hand(HandClock):
    """Lets everybody go on as far as they can before time does."""

    async def _settle(self) -> None:
        loop: Any = asyncio.get_running_loop()
        await asyncio.sleep(0)
        while loop._ready:
            await asyncio.sleep(0)


class Overtaken(AssertionError):
    """Something of an older epoch is under way although the runner knows that it is not."""


@dataclass
class Line:
    """What lies between one client and the restricted store."""

    draw: random.Random
    hand: HandClock
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    slowest: float
    lossy: float
    down: bool = False

    async def carry(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Do a call: late, its answer late or lost, or itself landing after its sender gave it up."""
        await self.hand.sleep(self.draw.random() ** 2 * self.slowest)
        if self.down or self.draw.random() < self.lossy:
            raise Unavailable("away", code="ServerBusy")
        if self.draw.random() < self.lossy:
            self.spawn(self._late(call))
            raise Unavailable("given up", code="OperationTimedOut")
        answer = await call()
        await self.hand.sleep(self.draw.random() ** 2 * self.slowest)
        if self.draw.random() < self.lossy:
            raise Unavailable("the answer was lost", code="OperationTimedOut")
        return answer

    async def _late(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        await self.hand.sleep(self.draw.random() * 10)
        with suppress(Exception):
            await call()


class FarTable(MemoryTable):
    """A table at the other end of a line."""

    line: Line

    async def get(self, key: EntityKey, **more: Any) -> Row | None:
        found: Row | None = await self.line.carry(lambda: super(FarTable, self).get(key, **more))
        return found

    async def _run(self, action: str, operations: Any) -> Any:
        return await self.line.carry(lambda: super(FarTable, self)._run(action, operations))


class FarService:
    """The tables of the restricted account, at the other end of a line."""

    def __init__(self, service: MemoryTableService, line: Line) -> None:
        self._service, self._line = service, line

    def table(self, name: str) -> FarTable:
        made = FarTable(self._service, name)
        made.line = self._line
        return made

    async def create_table(self, name: str) -> bool:
        return await self._service.create_table(name)


@dataclass
class Play:
    """One schedule, drawn from a seed, with the lease that is to be tried."""

    seed: int
    lease: type[ClientLease] = ClientLease
    under_way: dict[object, tuple[int, str]] = field(default_factory=dict)
    """What may still take effect: the epoch it goes by, and what it is."""

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.hand = Hand()
        self.service = MemoryTableService(clock=self.hand)
        self.store = ControlStore(self.service, SCRIPT)
        self.tasks: set[asyncio.Task[None]] = set()
        self.epoch = self.sure = 0
        """The control row's epoch, and the one that the runner knows to be acknowledged."""
        self.overtaken = ""
        self.began = self.clients = self.entered = 0

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)

    async def live(self) -> None:
        """Play it. Raises Overtaken."""
        made = ControlRow(SCRIPT, S, 1, "run-1", FACTS.digest, "Users", ("UsersV2",), {}, bytes(32))
        for _ in range(self.draw.randint(1, 3)):
            self.spawn(self.client())
        await self.hand.pass_time(self.draw.random() * 3)
        await self.store.create(made)
        self.epoch = 1
        runner = asyncio.create_task(self.runner())
        try:
            while not runner.done():
                await self.hand.pass_time(2.0)
                for task in [task for task in self.tasks if task.done()]:
                    self.tasks.discard(task)
                    task.result()
                if self.clients < 2 or self.draw.random() < 0.03:
                    self.spawn(self.client())
            runner.result()
            self.check()
        finally:
            while everybody := asyncio.all_tasks() - {asyncio.current_task()}:
                for one in everybody:
                    one.cancel()
                await asyncio.gather(*everybody, return_exceptions=True)

    # --- the runner ---------------------------------------------------------------------------------------

    async def runner(self) -> None:
        now = S
        for then in WAY:
            await self.wait_for_clients()
            control = await self.store.move(now, then)
            self.epoch, now = control.epoch, then
            self.check()
            await self.wait_for_clients()
            await self.hand.sleep(self.draw.random() * 5)

    async def wait_for_clients(self) -> None:
        """Wait as the runner does, then look at what is really under way."""
        registry = Registry(self.service, SCRIPT)
        while True:
            now = self.hand.ticks()
            await self.hand.sleep(self.draw.random() * 0.2)
            rows = await registry.list()
            await self.hand.sleep(self.draw.random() * 0.2)
            if all(is_over(row, now) or is_current(row, "run-1", self.epoch) for row in rows):
                break
            await self.hand.sleep(0.2)
        self.sure = self.epoch
        self.check()

    def check(self) -> None:
        older = [what for epoch, what in self.under_way.values() if epoch < self.sure]
        if older or self.overtaken:
            raise Overtaken(f"seed {self.seed}: {self.sure} is acknowledged; {older} {self.overtaken}")

    # --- the clients --------------------------------------------------------------------------------------

    async def client(self) -> None:
        self.began += 1
        name, draw = f"client {self.began}", random.Random(self.draw.random())
        rate, offset = draw.uniform(0.97, 1.03), draw.uniform(-1e4, 1e4)
        line = Line(
            draw, self.hand, self.spawn, draw.choice((0.02, 0.5, 5.0, 12.0)), draw.choice((0.0, 0.05))
        )
        service: Any = FarService(self.service, line)
        made = self.lease(
            ControlStore(service, SCRIPT),
            Registry(service, SCRIPT),
            FACTS,
            settings=SETTINGS,
            settle=lambda: line.hand.sleep(draw.random()),
            monotonic=lambda: self.hand.monotonic() * rate + offset,
            sleep=lambda seconds: self.hand.sleep(seconds / rate),
            jitter=draw.random,
        )
        await made.start()
        writers = [asyncio.create_task(self.writer(made, draw, f"{name}.{n}")) for n in range(2)]
        self.clients += 1
        for _ in range(draw.randint(2, 20)):
            await self.hand.sleep(draw.random() * (40 if line.down else 10))
            line.down = not line.down and draw.random() < 0.25
        self.clients -= 1
        for task in writers:
            task.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        if draw.random() < 0.7:
            await made.close()
            return
        for task in made._tasks.values():
            task.cancel()  # it dies: nobody says good-bye

    async def writer(self, made: ClientLease, draw: random.Random, name: str) -> None:
        while True:
            await self.hand.sleep(draw.random() * 0.5)
            try:
                async with made.operation(writes=True) as permit:
                    await self.write(made, draw, permit, name)
            except (WritesRefused, Unavailable):
                continue

    async def write(self, made: ClientLease, draw: random.Random, permit: Any, name: str) -> None:
        """Write for a while; go on in the background; what is given up, or dies, lands at the last moment."""
        self.entered += 1
        token = object()
        assert permit.phase is not F
        if permit.epoch < self.sure:
            self.overtaken = f"seed {self.seed}: {name} begins in {permit.epoch}, {self.sure} is acknowledged"
        ends = SETTINGS.longest_operation_s / 1.03
        began = self.hand.monotonic()
        self.under_way[token] = (permit.epoch, f"{name} in {permit.phase}")

        async def land_late(seconds: float) -> None:
            await self.hand.sleep(seconds)
            self.under_way.pop(token, None)

        try:
            await self.hand.sleep(draw.choice((0.02, 0.2, 1.0)) * draw.random() * ends * 0.6)
            if draw.random() < 0.1 and permit.phase in (None, S):
                # With an intent a late landing is the sweeper's; without one it is the lease's.
                raise Unavailable("open")
            if draw.random() < 0.5:
                hold = made.hold(permit)
                hold.__enter__()
                self.spawn(self.background(hold, token, draw.choice((0.1, 1.0)) * ends * 0.4))
            else:
                self.under_way.pop(token, None)
        except BaseException:
            self.spawn(land_late(began + ends - self.hand.monotonic()))
            if permit.phase not in (None, S):
                self.under_way.pop(token, None)
            raise

    async def background(self, hold: Any, token: object, seconds: float) -> None:
        try:
            await self.hand.sleep(seconds)
        finally:
            self.under_way.pop(token, None)
            hold.__exit__(None, None, None)


SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_older_is_under_way_when_the_runner_goes_on(seed: int) -> None:
    play = Play(seed)
    await play.live()
    assert play.epoch == 1 + len(WAY), "it came to its end"
    assert play.entered > 20, "it tried something"


# --- each rule is needed ------------------------------------------------------------------------------------


class ReadsFirst(ClientLease):
    """Reads, then beats."""

    async def _beat_and_read(self) -> None:
        began = self.monotonic()
        read = await self.store.read()
        await self.registry.beat(self._row())
        self._take(read)
        self._trusted_until = began + self.settings.lease_s


class TrustsFromTheEnd(ClientLease):
    """Counts its lease from the answer."""

    async def _beat_and_read(self) -> None:
        await super()._beat_and_read()
        self._trusted_until = self.monotonic() + self.settings.lease_s


class TrustsTheBeat(ClientLease):
    """Takes a beat for a reading."""

    async def _beat_and_read(self) -> None:
        began = self.monotonic()
        try:
            await super()._beat_and_read()
        except Unavailable:
            self._trusted_until = began + self.settings.lease_s
            raise


class WaitsForNothing(ClientLease):
    """Acknowledges what it has read at once."""

    def _is_quiesced(self, view: Permit) -> bool:
        return True


class ForgetsOpenWrites(ClientLease):
    """Takes a write without an answer for one that never was."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._in_flight.failed = lambda permit, error: None  # type: ignore[method-assign]


class NeverOver(ClientLease):
    """Trusts for ever what it has read."""

    @property
    def trusted(self) -> bool:
        return self._trusted_until > float("-inf")


@pytest.mark.parametrize(
    ("broken", "first"),
    [
        (ReadsFirst, 10),
        (TrustsFromTheEnd, 6),
        (TrustsTheBeat, 0),
        (WaitsForNothing, 2),
        (ForgetsOpenWrites, 6),
        (NeverOver, 0),
    ],
)
async def test_without_any_of_the_rules_something_is_overtaken(broken: type[ClientLease], first: int) -> None:
    for seed in range(first, first + 100):
        try:
            await Play(seed, broken).live()
        except Overtaken:
            return
    pytest.fail(f"{broken.__name__} was never found out")
