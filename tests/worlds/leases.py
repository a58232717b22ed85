"""A restricted store, its control row and clients, on a clock that only a test moves."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest

from rekey.client.lease import ClientLease
from rekey.client.reading import ClientFacts
from rekey.errors import WritesRefused
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.registry import ClientRow, Registry
from tests.fakes.faults import Call, Fault, FaultKind
from tests.fakes.memory import MemoryTableService
from tests.scenarios.protocol.test_lease import HandClock

SCRIPT = "0001_users"
S, D, F, C = (
    ControlPhase.SOURCE,
    ControlPhase.DUAL_WRITE,
    ControlPhase.FREEZE,
    ControlPhase.CUTOVER,
)
LEASE_S, LONGEST_S = 15.0, 30.0
FACTS = ClientFacts(SCRIPT, "digest", {}, "old", "web")


class Weather:
    """What goes wrong with the restricted store: all of it, or the calls that are named, once."""

    def __init__(self) -> None:
        self.down = False
        self.next: dict[str, FaultKind] = {}

    def decide(self, call: Call) -> Fault | None:
        if self.down:
            return Fault(FaultKind.NOT_SENT)
        kind = self.next.pop(call.action, None)
        return None if kind is None else Fault(kind)


class World:
    """A restricted store, its control row, and clients on a clock that only the test moves."""

    def __init__(self) -> None:
        self.hand = HandClock()
        self.weather = Weather()
        self.service = MemoryTableService(clock=self.hand, faults=self.weather)
        self.store = ControlStore(self.service, SCRIPT)
        self.registry = Registry(self.service, SCRIPT)
        self.settled: list[int] = []
        self.leases = AsyncExitStack()

    def lease(self, facts: ClientFacts = FACTS, **more: Any) -> ClientLease:
        more.setdefault("settle", self.settle)
        more.setdefault("monotonic", self.hand.monotonic)
        made = ClientLease(
            self.store, self.registry, facts, sleep=self.hand.sleep, jitter=lambda: 0.5, **more
        )
        self.leases.push_async_callback(made.close)
        return made

    async def started(self, facts: ClientFacts = FACTS, **more: Any) -> ClientLease:
        made = self.lease(facts, **more)
        await made.start()
        return made

    async def settle(self) -> None:
        [row] = await self.clients()
        self.settled.append(row.epoch)

    async def begin(self, *through: ControlPhase, run_id: str = "run-1", **more: Any) -> ControlRow:
        made = ControlRow(SCRIPT, S, 1, run_id, "digest", "Users", ("UsersV2",), {}, bytes(32), **more)
        control = await self.store.create(made)
        for phase in through:
            control = await self.move(phase)
        return control

    async def move(self, then: ControlPhase) -> ControlRow:
        return await self.store.move((await self.read()).phase, then)

    async def read(self) -> ControlRow:
        control = await self.store.read()
        assert control is not None
        return control

    async def clients(self) -> list[ClientRow]:
        return await self.registry.list()

    async def client(self) -> ClientRow:
        [row] = await self.clients()
        return row

    async def pass_time(self, seconds: float) -> None:
        for _ in range(3):
            await self.hand.pass_time(0)
        await self.hand.pass_time(seconds)
        for _ in range(3):
            await self.hand.pass_time(0)


async def epoch_of(lease: ClientLease, *, writes: bool = True) -> int:
    async with lease.operation(writes=writes) as permit:
        return permit.epoch


async def refused(lease: ClientLease, code: str, *, writes: bool = True) -> WritesRefused:
    with pytest.raises(WritesRefused) as caught:
        await epoch_of(lease, writes=writes)
    assert caught.value.code == code
    assert caught.value.hint
    return caught.value
