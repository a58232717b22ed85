"""A client lets go of an epoch while its application goes on writing at full speed."""

from __future__ import annotations

import asyncio

import pytest

from rekey.errors import Unavailable
from tests.dualwriting import insert, memory_world
from tests.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.memory import MemoryTableService
from tests.worlds import USERS, user


async def test_settling_does_not_wait_for_writes_that_began_after_it() -> None:
    """Under steady load there is always something under way: waiting until there is nothing would never end,
    no epoch would be acknowledged, and no phase could be moved."""
    world = await memory_world(USERS, MemoryTableService()).prepare()
    writer = world.writer()
    stopped = asyncio.Event()

    async def write_on(name: str) -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            await writer.write([insert(user(f"{name}.{number}@example.com"))])

    application = [asyncio.ensure_future(write_on(name)) for name in ("ann", "bob", "eve")]
    await asyncio.sleep(0.01)
    await asyncio.wait_for(writer.settle(), timeout=10)
    still_writing = not any(one.done() for one in application)
    stopped.set()
    await asyncio.gather(*application)
    assert still_writing
    await world.assert_quiet()


async def test_settling_waits_for_the_running_attempt_not_for_the_pause_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key that is being tried while an epoch ends, and fails again, must not hold the epoch up for long."""
    memory = MemoryTableService()
    world = await memory_world(USERS, memory).prepare()
    tried, fails, slept = asyncio.Event(), asyncio.Event(), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 1:
            await asyncio.Event().wait()

    writer = world.writer(sleep=sleep)

    async def settle(*_: object) -> None:
        tried.set()
        await fails.wait()
        raise Unavailable("busy", code="ServerBusy", status=503)

    monkeypatch.setattr(writer.finisher.reverse, "settle", settle)
    memory.faults = PlannedFaults(Planned(Fault(FaultKind.NOT_SENT), table="UsersV2", times=1_000))
    await writer.write([insert(user("ann@example.com"))])
    await tried.wait()
    settling = asyncio.ensure_future(writer.settle())
    await asyncio.sleep(0)
    fails.set()
    await asyncio.wait_for(settling, timeout=10)
    await writer.close()
    monkeypatch.undo()
    memory.faults = PlannedFaults()
    await world.sweep()
    await world.assert_quiet()


async def test_a_transaction_cut_off_after_its_answer_leaves_all_its_intents(
    memory: MemoryTableService,
) -> None:
    """One key was settled already, the other not: none of the intents is removed, none forgotten."""
    world = await memory_world(USERS, memory).prepare()
    rows = [user("ann@example.com"), user("bob@example.com")]
    writer = world.writer(longest=0.3, sleep=_never)
    held = 0

    async def gate(call: Call) -> None:
        nonlocal held
        if (call.action, call.table) == ("get", "Users"):
            held += 1
            if held == len(rows):
                await asyncio.sleep(30)  # until the operation's time is over
        await asyncio.sleep(0)

    memory.gate = gate
    await writer.write([insert(row) for row in rows])
    await writer.finisher.wait()
    assert (world.intents, writer.left) == (2, 2)
    memory.gate = _pass
    await writer.settle()
    assert (world.intents, writer.left) == (0, 0), "what was cut off is waited for, then settled"
    await world.assert_quiet()


async def _never(_seconds: float) -> None:
    await asyncio.Event().wait()


async def _pass(_call: Call) -> None:
    await asyncio.sleep(0)
