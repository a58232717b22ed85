"""A target key passes from one source row to another: what a propagate of the one does for the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from rekey import Migration, keys
from rekey.errors import Collision, Findings, RowRefused, Unavailable
from rekey.mapping.rows import JOURNAL_TABLE, Reservation, TargetKey
from rekey.model import EntityKey, Row, content_of, etag_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol import propagate
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import View
from tests.fakes.faults import Call
from tests.fakes.memory import MemoryTableService, instant_gate
from tests.worlds.dual_write import insert, memory_world
from tests.worlds.small import BENCHES, HANDLES, LOWERED, World, user

ANN, UPPER = EntityKey("eu", "ann@example.com"), EntityKey("eu", "Ann@example.com")
BOB, DEE, EVE, FAY = (EntityKey("p", name) for name in ("Bob", "Dee", "Eve", "Fay"))
MAIN, SEAT = EntityKey("p", "U:one"), EntityKey("p", "S:1")


def guest(key: EntityKey, handle: str = "one", seat: str = "1") -> Row:
    return {"PartitionKey": key.partition, "RowKey": key.row, "Handle": handle, "Seat": seat}


async def reserve(world: World, target: TargetKey, for_key: EntityKey) -> None:
    """Let the claim of a target key pass on to another source key, as one call does that moves it."""
    owner = await world.mapping.owner(target.key)
    assert owner is not None
    reservation = Reservation(for_key, frozenset({"a write"}), 30.0)
    assert await world.mapping.take(owner.source, target, owner, reservation)


async def named_in_the_target(world: World, key: EntityKey, target: EntityKey = MAIN) -> None:
    """Let the main row name another old key, as a transaction of the new view's authority leaves it."""
    await world.mapping.extend(key, None, {TargetKey(0, *target)})
    row = await world.targets[0].get(target)
    assert row is not None
    await world.targets[0].replace({**content_of(row), "OldRowKey": key.row}, etag=etag_of(row))


def before_each(
    memory: MemoryTableService, look: Callable[[Call], Awaitable[None]]
) -> Callable[[Call], Awaitable[None]]:
    """Return a gate that looks before each call, but not before the calls of the look itself."""

    async def gate(call: Call) -> None:
        memory.gate = instant_gate
        await look(call)
        memory.gate = gate

    return gate


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_a_client_announces_the_other_key_before_it_writes_its_rows(
    memory: MemoryTableService, phase: ControlPhase
) -> None:
    """It may be killed with the request on its way: only an intent that names the key leads to that row."""
    world = await memory_world(LOWERED, memory).prepare([user(UPPER.row)])
    world.permits.move(phase)
    reverse = world.writer().finisher.reverse
    propagator = reverse if phase is ControlPhase.CUTOVER else reverse.forward
    if phase is ControlPhase.CUTOVER:
        await named_in_the_target(world, ANN, ANN)
        await reserve(world, TargetKey(0, *ANN), ANN)
    else:
        await world.source.delete(UPPER)
        await world.source.insert(user(ANN.row))
        await reserve(world, TargetKey(0, *ANN), ANN)
    table, announced = ("Users" if phase is ControlPhase.CUTOVER else "UsersV2"), list[set[str]]()

    async def look(call: Call) -> None:
        if call.writes and call.table == table:
            announced.append({row["KeyRow"] for row in memory.dump(JOURNAL_TABLE)})

    memory.gate = before_each(memory, look)
    await propagator.propagate(UPPER if phase is ControlPhase.DUAL_WRITE else ANN)
    memory.gate = instant_gate
    other = ANN if phase is ControlPhase.DUAL_WRITE else UPPER
    assert announced and other.row in announced[0]
    assert memory.dump(JOURNAL_TABLE) == []
    assert [row["OldRowKey"] for row in memory.dump("UsersV2")] == [ANN.row]
    assert [row["RowKey"] for row in memory.dump("Users")] == [ANN.row]


async def test_what_another_key_gave_up_is_its_new_owners(memory: MemoryTableService) -> None:
    """A third row takes the handle and the seat that the second one leaves for the first one's."""
    world = await World(memory, HANDLES).prepare([guest(BOB), guest(DEE, "two", "2")])
    for key in (BOB, DEE):
        await world.propagator.propagate(key)
    await world.source.delete(BOB)
    await world.source.replace(guest(DEE))
    await reserve(world, TargetKey(0, *MAIN), DEE)
    done = list[Call]()

    async def look(call: Call) -> None:
        if not done and any(one.key == EntityKey("p", "S:2") for one in call.operations):
            done.append(call)
            await world.source.insert(guest(EVE, "two", "2"))
            await world.propagator.propagate(EVE)

    memory.gate = before_each(memory, look)
    await world.propagator.propagate(BOB)
    memory.gate = instant_gate
    assert done
    world.assert_in_step()


@pytest.mark.parametrize("refused", [RowRefused, Collision])
@pytest.mark.parametrize("first", [BOB, DEE], ids=["by another key", "by itself"])
async def test_what_a_refused_key_gave_up_is_its_new_owners(
    memory: MemoryTableService, first: EntityKey, refused: type[Findings]
) -> None:
    """The second row leaves its keys to a third one. Then it changes, and cannot be propagated any more."""
    world = await World(memory, HANDLES).prepare(
        [guest(BOB), guest(DEE, "two", "2"), guest(FAY, "four", "4")]
    )
    for key in (BOB, DEE, FAY):
        await world.propagator.propagate(key)
    await world.source.delete(BOB)
    await world.source.replace(guest(DEE))
    await reserve(world, TargetKey(0, *MAIN), DEE)
    stuck = guest(DEE, "four", "3")
    if refused is RowRefused:
        del stuck["Handle"]
    done = list[Call]()

    async def look(call: Call) -> None:
        if not done and any(one.key == EntityKey("p", "S:2") for one in call.operations):
            done.append(call)
            await world.source.insert(guest(EVE, "two", "2"))
            await world.propagator.propagate(EVE)
            await world.source.replace(stuck)

    memory.gate = before_each(memory, look)
    with nullcontext() if first == BOB else pytest.raises(refused):
        await world.propagator.propagate(first)
    memory.gate = instant_gate
    assert done
    assert EntityKey("p", "S:2") in world.actual()["GuestsBySeat"], "an equal row was left alone before"
    assert EntityKey("p", "U:two") in world.actual()["GuestsV2"]


async def test_a_former_owners_secondary_row_goes_though_the_main_rows_are_equal(
    memory: MemoryTableService,
) -> None:
    """Nothing of the main row says whose it is."""
    migration = replace(
        BENCHES,
        reverse=False,
        target=replace(BENCHES.target, properties=[]),
        indexes=[replace(BENCHES.indexes[0], row_key=keys.literal("S:") + keys.prop("RowKey"))],
    )
    world = await World(memory, migration).prepare([guest(BOB)])
    await world.propagator.propagate(BOB)
    await world.source.delete(BOB)
    await world.source.insert(guest(DEE))
    await world.propagator.propagate(DEE)
    assert {key_of(row).row for row in memory.dump("GuestsV2")} == {"U:one", "S:Dee"}


@pytest.mark.parametrize("authority", ["source", "target"])
async def test_a_secondary_row_that_both_want_is_never_missing(
    memory: MemoryTableService, authority: str
) -> None:
    world = await World(memory, BENCHES).prepare([guest(BOB)])
    await world.propagator.propagate(BOB)
    if authority == "target":
        await named_in_the_target(world, DEE)
    else:
        await world.source.delete(BOB)
        await world.source.insert(guest(DEE))
        await reserve(world, TargetKey(0, *MAIN), DEE)

    async def look(_call: Call) -> None:
        assert SEAT in {key_of(row) for row in memory.dump("GuestsV2")}

    memory.gate = before_each(memory, look)
    if authority == "target":
        await ReversePropagator(world.propagator).propagate(DEE)
    else:
        await world.propagator.propagate(BOB)
    memory.gate = instant_gate
    assert [key_of(row) for row in memory.dump("Guests")] == [DEE]
    world.assert_in_step()


async def test_a_client_announces_the_former_owner_of_a_key_that_it_claims(
    memory: MemoryTableService,
) -> None:
    """Its target row is gone and its source row is not: whoever deleted it was killed."""
    world = await memory_world(LOWERED, memory).prepare([user(UPPER.row)])
    world.permits.move(ControlPhase.CUTOVER)
    await world.targets[0].delete(ANN)
    announced = list[set[str]]()

    async def look(call: Call) -> None:
        if call.action == "delete" and call.table == "Users":
            announced.append({row["KeyRow"] for row in memory.dump(JOURNAL_TABLE)})

    memory.gate = before_each(memory, look)
    await world.writer(View.NEW).write([insert({**user(ANN.row), "OldRowKey": ANN.row})])
    memory.gate = instant_gate
    [names] = announced
    assert UPPER.row in names
    assert [key_of(row) for row in memory.dump("Users")] == [ANN]
    await world.assert_quiet()


async def shifted(memory: MemoryTableService, migration: Migration, number: int) -> World:
    """Copied guests, of whom each has what the next one had, in the source."""
    names = [EntityKey("p", f"{place:04}") for place in range(number)]
    world = await World(memory, migration).prepare(
        [guest(key, str(place), str(place)) for place, key in enumerate(names)]
    )
    for key in names:
        await world.propagator.propagate(key)
    for place, key in enumerate(names, start=1):
        row = guest(key, str(place if migration is HANDLES else place - 1), str(place))
        await world.source.replace(row, etag="*")
    return world


async def test_a_row_without_changes_does_not_lead_to_all_later_owners() -> None:
    """What was left to do for them, their own announcements lead to."""
    calls = []
    for number in (4, 12):
        memory = MemoryTableService()
        world = await shifted(memory, HANDLES, number)
        for place in reversed(range(number)):
            await world.propagator.propagate(EntityKey("p", f"{place:04}"))
        world.assert_in_step()
        seen = list[Call]()

        async def count(call: Call, seen: list[Call] = seen) -> None:
            seen.append(call)

        memory.gate = count
        await world.propagator.propagate(EntityKey("p", f"{number - 1:04}"))
        calls.append(len(seen))
    assert calls[0] == calls[1]


async def test_a_chain_of_waiting_rows_never_fills_the_stack(memory: MemoryTableService) -> None:
    """The first of too many is told to try again; after the last ones it can be propagated."""
    world = await shifted(memory, BENCHES, propagate._MAX_NESTED + 20)
    with pytest.raises(Unavailable):
        await world.propagator.propagate(EntityKey("p", "0000"))
    await world.propagator.propagate(EntityKey("p", "0100"))
    await world.propagator.propagate(EntityKey("p", "0000"))
    world.assert_in_step()
