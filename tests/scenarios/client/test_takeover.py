"""What a dead client left in the journal: who settles it, when, and what becomes of its intents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace as changed
from pathlib import Path

import pytest

from rekey.client import takeover
from rekey.client.route import Writer
from rekey.client.takeover import ATTEMPT_S, TURN_S, Sweep, TakeOver
from rekey.core.clock import TICKS_PER_SECOND
from rekey.mapping.rows import CONTROL_TABLE, JOURNAL_TABLE
from rekey.model import EntityKey, Row
from rekey.phases import ControlPhase
from rekey.protocol.registry import SAFETY_S, ClientRow, Registry, over_at
from rekey.protocol.sweeper import Company
from rekey.runner.commands import Mode
from rekey.tables.base import SIGNED_S
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.memory import MemoryTableService, open_gate
from tests.worlds.company import company as company_of
from tests.worlds.dual_write import DualWorld, memory_world, replace, sleep_forever
from tests.worlds.projects import USERS_SCRIPT
from tests.worlds.small import SCRIPT, USERS, go_on, user

BUSY = Fault(FaultKind.NOT_SENT)


def client_row(name: str, beat_at: int) -> ClientRow:
    """Return the row of a client."""
    return ClientRow(name, name, "old", "host", 1, "0", 1, 15.0, 30.0, beat_at=beat_at)


async def left_by_a_dead_client(memory: MemoryTableService, names: Iterable[str]) -> DualWorld:
    """Return a world in which the client `dead` has written rows, and no replica."""
    rows = [user(f"{name}@example.com", Age=1) for name in names]
    world = await memory_world(USERS, memory).prepare(rows)
    dead = world.writer(client="dead", sleep=sleep_forever)
    memory.faults = PlannedFaults(Planned(BUSY, table="UsersV2", times=1_000))
    for row in rows:
        await dead.write([replace({**row, "Age": 2})])
    await dead.finisher.wait()
    memory.faults = PlannedFaults()
    return world


def company(memory: MemoryTableService, seconds: float, *rows: ClientRow) -> Company:
    """Return who is there so many seconds from now."""
    now = memory.clock.ticks() + round(seconds * TICKS_PER_SECOND)
    return Company.of(rows or [client_row("dead", memory.clock.ticks())], now, usual_s=30.0)


async def take_over(world: DualWorld, writer: Writer, company: Company, turn: int = 0) -> Sweep:
    """Let a client settle what is due."""
    permit = world.permits.current()
    assert permit is not None
    return await TakeOver(writer.finisher).settle(company, turn, permit)


async def test_a_client_settles_what_a_dead_one_left_and_marks_its_intent() -> None:
    """The other view catches up although no command runs. The dead process may only be suspended, so the
    runner removes the intent."""
    memory = MemoryTableService(clock=FakeClock())
    world = await left_by_a_dead_client(memory, ["ann"])
    living = world.writer(client="living")
    alive = company(memory, 60, client_row("dead", memory.clock.ticks() + 60 * TICKS_PER_SECOND))
    for early in (company(memory, 49), alive):
        assert await take_over(world, living, early) == Sweep(), "its requests may take effect, or it lives"
    assert await take_over(world, living, company(memory, 50)) == Sweep(1)
    assert memory.dump("UsersV2")[0]["Age"] == 2
    [intent] = memory.dump(JOURNAL_TABLE)
    assert (intent["Settled"], intent["ClaimedBy"]) == (True, "living")
    assert await take_over(world, living, company(memory, 200)) == Sweep(), "settled once"
    await world.sweep()
    await world.assert_quiet()


async def test_each_turn_begins_a_little_later() -> None:
    memory = MemoryTableService(clock=FakeClock())
    world = await left_by_a_dead_client(memory, ["ann"])
    third = world.writer(client="third")
    assert await take_over(world, third, company(memory, 50 + 2 * TURN_S - 0.1), turn=2) == Sweep()
    assert await take_over(world, third, company(memory, 50 + 2 * TURN_S), turn=2) == Sweep(1)


async def test_of_two_clients_that_come_at_once_one_settles_each_key() -> None:
    memory = MemoryTableService(clock=FakeClock())
    names = [f"u{number}" for number in range(20)]
    world = await left_by_a_dead_client(memory, names)
    writers = [world.writer(client=name) for name in ("one", "other")]
    came = await asyncio.gather(*(take_over(world, one, company(memory, 60)) for one in writers))
    assert sum(one.settled for one in came) == len(names)
    assert min(one.settled for one in came) > 0, "they share the work"
    assert {row["ClaimedBy"] for row in memory.dump(JOURNAL_TABLE)} == {"one", "other"}
    await world.sweep()
    await world.assert_quiet()


async def test_a_claim_holds_until_nothing_of_its_client_can_take_effect() -> None:
    """Its client is killed in the middle: another one waits for it, not for a whole operation."""
    memory = MemoryTableService(clock=FakeClock())
    world = await left_by_a_dead_client(memory, ["ann"])
    killed, next_one = world.writer(client="killed"), world.writer(client="next")
    stands = asyncio.Event()

    async def gate(call: Call) -> None:
        if call.table == "UsersV2" and call.writes:
            stands.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    memory.gate = gate
    takes = asyncio.ensure_future(take_over(world, killed, company(memory, 60)))
    await stands.wait()
    takes.cancel()
    await asyncio.wait([takes])
    memory.gate = open_gate
    held_s = ATTEMPT_S + next_one.client.max_in_flight_s + SAFETY_S
    dead = client_row("dead", memory.clock.ticks() - 100 * TICKS_PER_SECOND)
    assert await take_over(world, next_one, company(memory, held_s - 0.1, dead)) == Sweep()
    assert await take_over(world, next_one, company(memory, held_s + 0.1, dead)) == Sweep(1)
    [intent] = memory.dump(JOURNAL_TABLE)
    assert intent["ClaimedBy"] == "killed,next"
    await world.sweep()
    await world.assert_quiet()


async def test_an_intent_is_kept_while_a_client_that_claimed_it_may_only_be_suspended() -> None:
    """Also where the service refuses already what the client had signed that left it."""
    memory = MemoryTableService(clock=FakeClock())
    world = await left_by_a_dead_client(memory, ["ann"])
    await take_over(world, world.writer(client="claimer"), company(memory, 60))
    began = memory.clock.ticks()
    long_dead = client_row("dead", began - 3600 * TICKS_PER_SECOND)
    claimer = client_row("claimer", began)
    refused_s = (over_at(claimer) - began) / TICKS_PER_SECOND + SIGNED_S

    async def swept(seconds: float, *rows: ClientRow) -> int:
        rows = rows or (long_dead, claimer)
        await world.sweeper.sweep("source", company(memory, seconds, *rows), concurrency=4, check=go_on)
        return world.intents

    assert await swept(refused_s - 1) == 1
    ended_in_order = await swept(100, long_dead)
    assert ended_in_order == 0
    await world.assert_quiet()


async def test_a_client_settles_its_own_intents_that_it_does_not_try_any_more() -> None:
    """The epoch in which it tried has ended, or there were too many: they would wait for a command."""
    memory = MemoryTableService(clock=FakeClock())
    world = await memory_world(USERS, memory).prepare([user("ann@example.com", Age=1)])
    writer = world.writer(client="own", sleep=sleep_forever)
    memory.faults = PlannedFaults(Planned(BUSY, table="UsersV2", times=1_000))
    await writer.write([replace(user("ann@example.com", Age=2))])
    await writer.finisher.wait()
    own = client_row("own", memory.clock.ticks() + 60 * TICKS_PER_SECOND)
    assert await take_over(world, writer, company(memory, 60, own)) == Sweep(), "it is tried already"
    world.permits.move(ControlPhase.DUAL_WRITE)
    await writer.settle()
    assert (writer.left, world.intents) == (0, 1)
    memory.faults = PlannedFaults()
    assert await take_over(world, writer, company(memory, 20, own)) == Sweep(), "its write may be in flight"
    assert await take_over(world, writer, company(memory, 60, own)) == Sweep(1)
    assert world.intents == 0
    await world.assert_quiet()


async def test_where_the_service_fails_a_client_stops_asking_until_its_next_look() -> None:
    memory = MemoryTableService(clock=FakeClock())
    world = await left_by_a_dead_client(memory, [f"u{number}" for number in range(30)])
    writer = world.writer(client="living")
    memory.faults = PlannedFaults(Planned(BUSY, table="UsersV2", times=1_000))
    assert await take_over(world, writer, company(memory, 60)) == Sweep()
    claimed = [row for row in memory.dump(JOURNAL_TABLE) if "ClaimedBy" in row]
    assert len(claimed) == takeover._AT_ONCE
    memory.faults = PlannedFaults()
    assert await take_over(world, writer, company(memory, 120)) == Sweep(30)


async def test_more_than_one_look_collects_is_settled_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "_MOST", 8)
    memory = MemoryTableService(clock=FakeClock())
    world = await left_by_a_dead_client(memory, [f"u{number}" for number in range(20)])
    writer, looks = world.writer(client="living"), []
    while not looks or looks[-1].more:
        looks.append(await take_over(world, writer, company(memory, 60)))
    assert [one.settled for one in looks] == [8, 8, 4]
    await world.sweep()
    await world.assert_quiet()


async def test_nothing_is_begun_under_another_epoch_than_was_read() -> None:
    memory = MemoryTableService(clock=FakeClock())
    world = await left_by_a_dead_client(memory, ["ann"])
    writer, permit = world.writer(client="living"), world.permits.current()
    assert permit is not None
    world.permits.move(ControlPhase.CUTOVER)
    assert await TakeOver(writer.finisher).settle(company(memory, 60), 0, permit) == Sweep()
    assert memory.dump("UsersV2")[0]["Age"] == 1
    freeze = changed(permit, phase=ControlPhase.FREEZE)
    world.permits.phase, world.permits.epoch = ControlPhase.FREEZE, permit.epoch
    assert await TakeOver(writer.finisher).settle(company(memory, 60), 0, freeze) == Sweep()


async def test_a_key_that_this_client_is_writing_is_left_alone_for_a_while() -> None:
    memory = MemoryTableService(clock=FakeClock())
    world = await left_by_a_dead_client(memory, ["ann"])
    writer = world.writer(client="living")
    row: Row = user("ann@example.com")
    writer.client.in_flight.begun["source", _key(row)] += 1
    takes = TakeOver(writer.finisher)
    permit = world.permits.current()
    assert permit is not None
    looks = [(await takes.settle(company(memory, 60), 0, permit)).settled for _ in range(6)]
    assert looks == [0, 0, 0, 0, 0, 1]


def _key(row: Row) -> EntityKey:
    return EntityKey(row["PartitionKey"], row["RowKey"])


@pytest.mark.parametrize(
    ("phase", "reverse", "settles"),
    [
        (ControlPhase.SOURCE, True, False),
        (ControlPhase.DUAL_WRITE, False, True),
        (ControlPhase.FREEZE, True, False),
        (ControlPhase.CUTOVER, True, True),
        (ControlPhase.CUTOVER, False, False),
        (ControlPhase.COMPLETE, True, True),
        (ControlPhase.RETIRED, True, False),
    ],
)
async def test_clients_settle_unless_frozen(phase: ControlPhase, reverse: bool, settles: bool) -> None:
    """After a cutover without a way back a settled key would be deleted from the source, or fail."""
    memory = MemoryTableService(clock=FakeClock())
    world = memory_world(changed(USERS, reverse=reverse), memory)
    await world.prepare()
    await memory.create_table(CONTROL_TABLE)
    registry = Registry(memory, SCRIPT)
    await registry.beat(client_row("living", 0))
    world.permits.move(phase)
    scans = []

    async def gate(call: Call) -> None:
        scans.append(call.table)
        await asyncio.sleep(0)

    memory.gate = gate
    await TakeOver(world.writer(client="living").finisher).sweep(registry)
    assert (JOURNAL_TABLE in scans) is settles


def test_the_command_that_status_names_where_nobody_lives_settles(tmp_path: Path) -> None:
    with company_of(tmp_path, USERS_SCRIPT, [user("ann@example.com", Nm="old")]) as ours:
        client = ours.client()
        ours.apply()
        ours.project.tables.faults = PlannedFaults(Planned(BUSY, table="UsersV2", times=1_000))
        ours.do(client.write(replace(user("ann@example.com", Nm="new"))))
        ours.do(client.die())
        ours.project.tables.faults = PlannedFaults()
        ours.live(20)
        early = ours.status().verdict
        assert not early.safe
        assert early.remark.startswith("not before "), "it would be young for the command, too"
        ours.live(60)
        verdict = ours.status().verdict
        assert (verdict.safe, verdict.command) == (False, f"verify {ours.script_id} --mode sample")
        ours.verify(Mode.SAMPLE)
        ours.assert_in_step()
        settled = ours.status()
        assert settled.facts.store.intents.abandoned is None
        assert settled.verdict.safe
