"""What a dual write costs: round trips one after the other until the caller has its answer, and requests.

A gate holds all calls of one moment and lets them go together: each time it does is a round trip.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace as replace_fields

import pytest

from rekey.client import route
from rekey.client.parts import Acknowledge
from rekey.client.route import Writer
from rekey.declaration.migration import Migration
from rekey.model import Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from rekey.tables.base import Operation
from tests.fakes.faults import Call
from tests.fakes.memory import MemoryTableService, open_gate
from tests.worlds.dual_write import (
    TAGGED,
    DualWorld,
    delete,
    insert,
    key_row,
    memory_world,
    merge,
    replace,
    upsert,
)
from tests.worlds.small import POSTS, USERS, post, user


class Rounds:
    """Counts the round trips of a call: whatever can be under way at the same time is one."""

    def __init__(self, world: DualWorld) -> None:
        self.world = world
        self.count = 0
        self.calls: Counter[str] = Counter()
        self._waiting: list[asyncio.Future[None]] = []

    async def hold(self, call: Call) -> None:
        self.calls[call.action] += 1
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(released)
        await released

    async def of(self, view: View, *operations: Operation, by: Writer | None = None) -> int:
        """Return how many round trips one write takes until it returns."""
        writer = by or self.world.writer(view)
        self.world.service.gate = self.hold
        self.count = 0
        self.calls.clear()
        writing = asyncio.ensure_future(writer.write(operations))
        while not writing.done():
            await self._let_run()
            if writing.done():
                break
            self._release()
            self.count += 1
            await self._let_run()
        answered = self.count
        settling = asyncio.ensure_future(writer.settle())
        while not settling.done():
            await self._let_run()
            self._release()
            await self._let_run()
        self.world.service.gate = open_gate
        await writing
        await self.world.assert_quiet()
        return answered

    async def _let_run(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for released in waiting:
            released.set_result(None)


def first_row(migration: Migration) -> Row:
    """A source row of a migration's world."""
    return post("hello") if migration is POSTS else user("ann@example.com")


MIGRATIONS = pytest.mark.parametrize(
    "migration", [USERS, TAGGED, POSTS], ids=["key-derived", "key-derived with index", "content-derived"]
)


@MIGRATIONS
async def test_old_view_takes_three_round_trips(memory: MemoryTableService, migration: Migration) -> None:
    row = first_row(migration)
    key = key_of(row)
    world = await memory_world(migration, memory).prepare([row])
    rounds = Rounds(world)
    other = {**row, "RowKey": "other"}
    assert await rounds.of(View.OLD, replace({**row, "Title": "2"})) == 3
    assert await rounds.of(View.OLD, upsert({**row, "Title": "3"})) == 3
    assert await rounds.of(View.OLD, insert(other)) == 3
    assert await rounds.of(View.OLD, delete(key)) == 3
    trips = 4 if migration is POSTS else 3  # more where the main key comes from content
    assert await rounds.of(View.OLD, insert(row)) == trips, "its claims are there, and are reserved"
    assert await rounds.of(View.OLD, replace({**row, "Title": "4"}), delete(key_of(other))) == 3
    assert await rounds.of(View.OLD, merge({**key_row(key), "Title": "5"})) == trips
    assert world.counters.fast == world.counters.writes


async def test_a_moving_row_takes_one_round_trip_more(memory: MemoryTableService) -> None:
    """A new main key is claimed together with the reads. Index keys are new only as the row that was read
    tells, and a key that the row had before is claimed already."""
    world = await memory_world(POSTS, memory).prepare([post("hello", "2024-01", "a,b")])
    rounds = Rounds(world)
    assert await rounds.of(View.OLD, replace(post("hello", "2024-02", "b"))) == 3
    assert await rounds.of(View.OLD, replace(post("hello", "2024-03", "b,c"))) == 4
    assert await rounds.of(View.OLD, replace(post("hello", "2024-01", "b"))) == 4


async def test_an_uncopied_row_takes_three_round_trips(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare()
    await world.source.insert(user("ann@example.com"))
    assert await Rounds(world).of(View.OLD, replace(user("ann@example.com", Age=2))) == 3


@MIGRATIONS
async def test_new_view_takes_three_round_trips(memory: MemoryTableService, migration: Migration) -> None:
    world = await memory_world(migration, memory).prepare([first_row(migration)])
    world.permits.move(ControlPhase.CUTOVER)
    rounds = Rounds(world)
    [row] = [content_of(row) for row in memory.dump(world.mapper.tables[0])]
    new = content_of(world.mapper.map({**first_row(migration), "RowKey": "new"})[0].row)
    assert await rounds.of(View.NEW, replace({**row, "Title": "2"})) == 3
    assert await rounds.of(View.NEW, insert(new)) == 3
    assert await rounds.of(View.NEW, upsert({**new, "Title": "3"})) == 3
    merged = merge({**key_row(key_of(row)), "Title": "4"})
    assert await rounds.of(View.NEW, merged) == 4
    again = merge({**key_row(key_of(row)), "Title": "5"})
    assert await rounds.of(View.NEW, again, by=world._writers[-1]) == 3, "the owner of its key was seen"
    assert await rounds.of(View.NEW, delete(key_of(row))) == 3


@MIGRATIONS
async def test_a_new_view_replace_rereads_nothing(memory: MemoryTableService, migration: Migration) -> None:
    """What was written by conditions alone is not propagated again after the answer."""
    world = await memory_world(migration, memory).prepare([first_row(migration)])
    world.permits.move(ControlPhase.CUTOVER)
    [row] = [content_of(row) for row in memory.dump(world.mapper.tables[0])]
    writer = world.writer(View.NEW)
    await writer.write([replace({**row, "Title": "2"})])
    await writer.settle()
    assert (world.counters.fast, world.counters.propagated) == (1, 0)


async def test_a_recreated_row_takes_one_round_trip_more(memory: MemoryTableService) -> None:
    """Its old key is in the mapping already: its new key is reserved there, on what the mapping says. Who
    deleted the row has seen that and reserves at once; another client reads it first."""
    world = await memory_world(replace_fields(POSTS, indexes=()), memory).prepare([post("hello")])
    world.permits.move(ControlPhase.CUTOVER)
    rounds = Rounds(world)
    [row] = [content_of(row) for row in memory.dump("PostsV2")]
    assert await rounds.of(View.NEW, delete(key_of(row))) == 3
    assert await rounds.of(View.NEW, insert(row)) == 4
    [first, *_] = world._writers
    assert await rounds.of(View.NEW, delete(key_of(row)), by=first) == 3
    moved = content_of(world.mapper.map(post("hello", "2024-02"))[0].row)
    assert await rounds.of(View.NEW, insert(moved), by=first) == 3


async def test_what_a_replace_asks_of_the_service(memory: MemoryTableService) -> None:
    """Eight requests, six of them before the answer. A second write of a row claims nothing again."""
    world = await memory_world(USERS, memory).prepare([user("ann@example.com")])
    writer = world.writer()
    calls: Counter[str] = Counter()

    async def note(call: Call) -> None:
        calls[f"{call.action} {call.table}"] += 1

    await writer.write([replace(user("ann@example.com", Age=2))])
    await writer.settle()
    memory.gate = note
    await writer.write([replace(user("ann@example.com", Age=3))])
    await writer.settle()
    assert calls == {
        "insert rekeyjournal": 1,
        "get rekeymap": 2,
        "get UsersV2": 1,
        "replace Users": 1,
        "replace UsersV2": 1,
        "get Users": 1,
        "delete rekeyjournal": 1,
    }


@MIGRATIONS
async def test_authority_ack_takes_two_round_trips(memory: MemoryTableService, migration: Migration) -> None:
    row = first_row(migration)
    world = await memory_world(migration, memory).prepare([row])
    rounds, writer = Rounds(world), world.writer(acknowledge=Acknowledge.AUTHORITY)
    assert await rounds.of(View.OLD, replace({**row, "Title": "2"}), by=writer) == 2
    assert await rounds.of(View.OLD, delete(key_of(row)), by=writer) == 2
    assert await rounds.of(View.OLD, insert(row), by=writer) == 2
    world.permits.move(ControlPhase.CUTOVER)
    changed = replace({**row, "Title": "3"})
    assert await rounds.of(View.OLD, changed, by=writer) > 3, "its ETag is the one of a replica"


async def test_callers_bound_replicas(memory: MemoryTableService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "MAX_BEHIND", 0)
    row = user("ann@example.com")
    world = await memory_world(USERS, memory).prepare([row])
    rounds, writer = Rounds(world), world.writer(acknowledge=Acknowledge.AUTHORITY)
    assert await rounds.of(View.OLD, replace({**row, "Age": 2}), by=writer) == 3
