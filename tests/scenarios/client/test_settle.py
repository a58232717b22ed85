"""A client lets go of an epoch while its application goes on writing at full speed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from rekey.client.parts import MAX_IN_FLIGHT_S
from rekey.errors import Ambiguous, ConditionFailed, EndpointDown, RowExists, RowMissing, Unavailable
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.model import key_of
from rekey.phases import ControlPhase
from rekey.protocol.effects import apply_operations
from rekey.tables.base import Operation, Verb
from rekey.tables.requests import WriteApplied, write_applied
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.interference import noted
from tests.fakes.memory import MemoryTableService, open_gate
from tests.worlds.dual_write import delete, insert, key_row, memory_world, replace, sleep_forever
from tests.worlds.small import USERS, user


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


async def test_settling_awaits_an_attempt_but_not_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_canceled_transaction_leaves_all_its_intents(memory: MemoryTableService) -> None:
    """One key was settled already, the other not: none of the intents is removed, none forgotten."""
    world = await memory_world(USERS, memory).prepare()
    rows = [user("ann@example.com"), user("bob@example.com")]
    writer = world.writer(longest=0.3, sleep=sleep_forever)
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
    memory.gate = open_gate
    await writer.settle()
    assert (world.intents, writer.left) == (0, 0), "what was cut off is waited for, then settled"
    await world.assert_quiet()


@pytest.mark.parametrize("fails", [False, True])
async def test_intents_of_calls_that_end_while_others_are_removed_go_in_one_transaction(fails: bool) -> None:
    """Where that fails it is the failure of one of them: the others try again, the last one alone."""
    memory = MemoryTableService()
    world = await memory_world(USERS, memory).prepare()
    writer, removed, first_ends = world.writer(sleep=sleep_forever), [], asyncio.Event()

    async def gate(call: Call) -> None:
        if call.table == JOURNAL_TABLE and call.action in ("delete", "transact"):
            removed.append(call.action)
            if len(removed) == 1:
                await first_ends.wait()
        await asyncio.sleep(0)

    memory.gate = gate
    await writer.write([insert(user("ann@example.com"))])
    while not removed:
        await asyncio.sleep(0)
    for name in ("bob", "eve", "joe"):
        await writer.write([insert(user(f"{name}@example.com"))])
    if fails:
        lost = Fault(FaultKind.NOT_SENT)
        memory.faults = PlannedFaults(Planned(lost, table=JOURNAL_TABLE, action="transact", times=1_000))
    for _ in range(100):
        await asyncio.sleep(0)
    assert (removed, world.intents) == (["delete"], 4)
    first_ends.set()
    await writer.finisher.wait()
    assert removed[:2] == ["delete", "transact"]
    assert (world.intents, writer.left) == ((2, 2) if fails else (0, 0))
    memory.faults = PlannedFaults()
    await writer.settle()
    await world.assert_quiet()


async def test_a_refused_write_whose_intent_is_still_there_tells_nothing_of_the_next_one() -> None:
    """Its intent may wait to be removed with others: a lost answer is settled all the same."""
    memory = MemoryTableService()
    world = await memory_world(USERS, memory).prepare()
    writer, goes_on = world.writer(sleep=_pass_by), asyncio.Event()
    removing = 0

    async def gate(call: Call) -> None:
        nonlocal removing
        if call.table == JOURNAL_TABLE and call.action in ("delete", "transact"):
            removing += 1
            await goes_on.wait()
        await asyncio.sleep(0)

    memory.gate = gate
    [etag] = await writer.write([insert(user("ann@example.com"))])
    while not removing:
        await asyncio.sleep(0)
    with pytest.raises(RowExists):
        await writer.write([insert(user("ann@example.com"))])
    assert world.intents == 2
    memory.faults = PlannedFaults(Planned(Fault(FaultKind.LOST_ANSWER), table="Users", action="replace"))
    await writer.write([replace(user("ann@example.com", Nm="Ann"), etag)])
    goes_on.set()
    await writer.settle()
    assert (world.intents, writer.left) == (0, 0)
    await world.assert_quiet()


async def _pass_by(_seconds: float) -> None:
    await asyncio.sleep(0)


async def test_a_freeze_awaits_an_unknown_outcome_for_a_bounded_time(memory: MemoryTableService) -> None:
    """Then the key is settled, and its intent does not hold up the runner until it is old."""
    world = await memory_world(USERS, memory).prepare()
    writer, waited = world.writer(sleep=sleep_forever), list[float]()

    async def waits(seconds: float) -> None:
        waited.append(seconds)
        if seconds != MAX_IN_FLIGHT_S:
            await asyncio.Event().wait()

    writer.client.sleep = waits
    memory.faults = PlannedFaults(
        Planned(Fault(FaultKind.LOST_REQUEST), action="insert", table="UsersV2", times=1)
    )
    await writer.write([insert(user("ann@example.com"))])
    await writer.finisher.wait()
    assert (world.intents, writer.left) == (1, 1), "the lost insert may yet land"
    world.permits.move(ControlPhase.FREEZE)
    await writer.settle()
    assert waited[-1] == MAX_IN_FLIGHT_S
    assert world.intents == 0
    await world.assert_quiet()


async def test_an_intent_that_met_an_unfinished_write_stays(memory: MemoryTableService) -> None:
    """Who deletes a row that has no replica yet has met the write that makes it."""
    world = await memory_world(USERS, memory).prepare()
    await world.source.insert(user("ann@example.com"))
    writer = world.writer(sleep=sleep_forever)
    await writer.write([delete(key_of(user("ann@example.com")))])
    await writer.finisher.wait()
    [intent] = memory.dump(JOURNAL_TABLE)
    assert intent["Settled"] is True
    assert writer.left == 1
    await writer.settle()
    assert world.intents == 1, "a settled intent holds up nothing, so it is not waited for"
    await world.sweep()
    await world.assert_quiet()


@pytest.mark.parametrize(
    ("fails", "left"),
    [("merge", 1), ("delete", 2)],
    ids=["it cannot be marked as settled", "the others cannot be removed"],
)
async def test_only_lasting_intents_of_a_call_stay(memory: MemoryTableService, fails: str, left: int) -> None:
    """Only the deleted row, which had no replica yet, has met an unfinished write."""
    world = await memory_world(USERS, memory).prepare()
    ann, bob = user("ann@example.com"), user("bob@example.com")
    await world.source.insert(ann)
    writer = world.writer(sleep=sleep_forever)
    memory.faults = PlannedFaults(Planned(Fault(FaultKind.BUSY), action=fails, table=JOURNAL_TABLE))
    await writer.write([delete(key_of(ann)), insert(bob)])
    await writer.finisher.wait()
    assert ["Settled" in intent for intent in memory.dump(JOURNAL_TABLE)] == [False] * left
    assert writer.left == left
    memory.faults = PlannedFaults()
    await writer.settle()
    assert (world.intents, writer.left) == (1, 1), "that of the row that met another write stays for a while"
    await world.sweep()
    await world.assert_quiet()


class LateRequest:
    """The `nth` such write to the journal: its answer is lost, and it takes effect when the test says."""

    def __init__(self, memory: MemoryTableService, *actions: str, nth: int = 1) -> None:
        self._memory, self._actions, self._left = memory, actions, nth
        self._operations: tuple[Operation, ...] = ()
        memory.gate = self._gate

    async def _gate(self, call: Call) -> None:
        if call.table == JOURNAL_TABLE and call.action in self._actions:
            if call.action == "transact" and call.operations[0].verb is not Verb.DELETE:
                return
            self._left -= 1
            if self._left > 0:
                raise EndpointDown("no connection", code="ConnectError")
            if self._left == 0:
                self._operations = call.operations
                raise Ambiguous("the connection broke before the answer", code="ConnectionLost")
        await asyncio.sleep(0)

    async def takes_effect(self) -> None:
        self._memory.gate = open_gate
        assert self._operations, "nothing was sent"
        with suppress(ConditionFailed, RowMissing):
            await apply_operations(self._memory.table(JOURNAL_TABLE), self._operations)


@pytest.mark.parametrize(
    ("rows", "nth"), [(1, 1), (2, 1), (1, 2)], ids=["of a write", "of a transaction", "of a retry"]
)
async def test_a_late_removal_leaves_an_intent_that_was_written_again(
    memory: MemoryTableService, rows: int, nth: int
) -> None:
    """The retry settles what another client has just written, with an unknown outcome. If the client is
    killed now, nothing but the intent leads to that."""
    names = [f"{name}@example.com" for name in ("ann", "bob")[:rows]]
    world = await memory_world(USERS, memory).prepare([user(name, Age=1) for name in names])
    writer = world.writer(sleep=sleep_forever)
    removal = LateRequest(memory, "delete", "transact", nth=nth)
    await writer.write([replace(user(name, Age=2)) for name in names])
    await writer.finisher.wait()
    for _ in range(nth - 1):
        await writer.settle()
    assert writer.left == world.intents == rows
    for name in names:
        await world.source.merge({**key_row(key_of(user(name))), "Age": 3})
    lost = Planned(Fault(FaultKind.LOST_REQUEST), action="replace", table="UsersV2", times=rows)
    memory.faults = PlannedFaults(lost)
    await writer.settle()
    await removal.takes_effect()
    assert writer.left == world.intents == rows
    await world.close()
    await world.sweep()
    world.assert_in_step()


async def test_a_late_mark_does_not_settle_an_intent_that_was_written_again(
    memory: MemoryTableService,
) -> None:
    """An intent that is kept for a while is marked as settled; then it is tried once more, and that has an
    unknown outcome."""
    world = await memory_world(USERS, memory).prepare()
    ann, pauses = user("ann@example.com"), list[float]()
    await world.source.insert(ann)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)
        if len(pauses) == 1:
            await world.source.insert(ann)
        elif len(pauses) > 2:
            await asyncio.Event().wait()

    writer, mark = world.writer(sleep=sleep), LateRequest(memory, "merge")
    memory.faults = PlannedFaults(Planned(Fault(FaultKind.LOST_REQUEST), action="insert", table="UsersV2"))
    await writer.write([delete(key_of(ann))])
    while len(pauses) < 3:
        await asyncio.sleep(0)
    await mark.takes_effect()
    [intent] = memory.dump(JOURNAL_TABLE)
    assert "Settled" not in intent
    await world.close()
    await world.sweep()
    world.assert_in_step()


async def test_a_touch_of_unknown_outcome_is_not_taken_for_applied(memory: MemoryTableService) -> None:
    """The intent as it was before holds the same key and epoch: its version would be one that a late removal
    may still name."""
    world = await memory_world(USERS, memory).prepare()
    [intent] = await world.journal.begin("c1", 1, "source", [key_of(user("ann@example.com"))])
    touched = [await world.journal.touch(intent, 1) for _ in range(2)]
    [row] = memory.dump(JOURNAL_TABLE)
    assert row["odata.etag"] == touched[1].etag
    calls = noted(memory)
    await world.journal.touch(intent, 1)
    memory.gate = open_gate
    assert write_applied(calls[0].operations[0], row) is not WriteApplied.YES
