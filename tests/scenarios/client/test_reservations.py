"""After cutover, where keys come from content: of all the keys that an old key can have, one has a row.

No condition of the service spans two rows. So whoever makes a row reserves its key first, in the forward row
of its old key, and whoever makes one under another key waits for the reservation to end.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from rekey.client.parts import MAX_IN_FLIGHT_S
from rekey.errors import RekeyError, RowExists, RowRefused, Unavailable
from rekey.mapping.rows import MAPPING_TABLE, Reservation
from rekey.mapping.store import MARGIN_S
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol.operations import may_take_effect
from rekey.protocol.rules import View
from rekey.tables.base import Operation
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.memory import MemoryTableService, open_gate
from tests.worlds.dual_write import (
    DualWorld,
    delete,
    insert,
    memory_world,
    merge,
    replace,
    sleep_forever,
    upsert,
)
from tests.worlds.small import LOWERED, POSTS, post, user

HELLO = EntityKey("blog", "hello")
JANUARY = EntityKey("2024-01", "hello")
LONGEST_S = 30.0
RESERVED_S = LONGEST_S + MAX_IN_FLIGHT_S


async def after_cutover(memory: MemoryTableService, *rows: Row) -> DualWorld:
    world = await memory_world(POSTS, memory).prepare(rows)
    world.permits.move(ControlPhase.CUTOVER)
    return world


def in_month(world: DualWorld, month: str, title: str = "hello") -> Row:
    """Return the main target row of the post in a month."""
    return content_of(world.mapper.map({**post("hello", month), "Title": title})[0].row)


async def reserved(world: DualWorld) -> Reservation | None:
    """Return what the forward row of the post reserves."""
    forward = await world.mapping.forward(HELLO)
    return forward.reserved


async def cut_off(world: DualWorld, operation: Operation) -> None:
    """Write, and never hear of it."""
    lost = Fault(FaultKind.LOST_REQUEST)
    world.service.faults = PlannedFaults(Planned(lost, "insert", "PostsV2", times=100))
    writer = world.writer(View.NEW, "gone", longest=LONGEST_S)
    writer.client.sleep = sleep_forever  # it waits until nothing is late, and its caller does not
    write = asyncio.ensure_future(writer.write([operation]))
    for _ in range(200):
        await asyncio.sleep(0)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    world.service.faults = PlannedFaults()


async def test_two_rows_of_one_old_key_are_never_both_acknowledged(memory: MemoryTableService) -> None:
    """Two clients that both find none, and make one under different keys, at the same moment."""
    world = await after_cutover(memory)
    waiting = 0

    async def gate(_call: Call) -> None:
        nonlocal waiting
        waiting += 1
        for _ in range(10):
            await asyncio.sleep(0)

    memory.gate = gate
    writers = [world.writer(View.NEW, name, sleep=sleep_forever) for name in ("one", "two")]
    rows = [in_month(world, "2024-01"), in_month(world, "2024-02")]
    answers = await asyncio.gather(
        *(writer.write([insert(row)]) for writer, row in zip(writers, rows, strict=True)),
        return_exceptions=True,
    )
    memory.gate = open_gate
    assert waiting
    told = [one for one in answers if isinstance(one, list)]
    refused = [one for one in answers if isinstance(one, RowRefused | Unavailable)]
    assert (len(told), len(refused)) == (1, 1)
    await world.assert_quiet()
    assert len(memory.dump("PostsV2")) == 1


async def test_a_write_that_was_cut_off_keeps_other_keys_for_a_time(memory: MemoryTableService) -> None:
    world = await after_cutover(memory)
    await cut_off(world, insert(in_month(world, "2024-01")))
    held = await reserved(world)
    assert held.key == JANUARY
    writer = world.writer(View.NEW, "next", sleep=sleep_forever)
    with pytest.raises(Unavailable, match="under another key") as refused:
        await writer.write([insert(in_month(world, "2024-02"))])
    assert (refused.value.code, refused.value.hint[:20]) == ("RowTooBusy", "repeat the operation")
    assert "nothing was written" in refused.value.what and not may_take_effect(refused.value)
    assert memory.dump("PostsV2") == []
    await world.sweep("target")
    await world.assert_quiet()


async def test_a_write_that_was_cut_off_does_not_keep_its_own_key(memory: MemoryTableService) -> None:
    world = await after_cutover(memory)
    await cut_off(world, insert(in_month(world, "2024-01")))
    await world.writer(View.NEW, "next", sleep=sleep_forever).write(
        [insert(in_month(world, "2024-01", "again"))]
    )
    held = await reserved(world)
    assert len(held.writers) == 1, "that of the write that was cut off: it may still take effect"
    assert [row["Title"] for row in memory.dump("PostsV2")] == ["again"]
    await world.sweep("target")
    await world.assert_quiet()


async def test_a_former_owner_does_not_take_back_a_key_that_a_transaction_passed_on(
    memory: MemoryTableService,
) -> None:
    """Not on its second attempt either, when it knows the claim, which names it and is reserved."""
    upper, lower = user("Ann@example.com", "eu", Age=1), user("ann@example.com", "eu", Age=2)
    world = await memory_world(LOWERED, memory).prepare([upper])
    next_writer = world.writer(View.OLD, "next", sleep=sleep_forever)
    with pytest.raises(RowExists):
        await next_writer.write([insert(upper)])
    passed, go = asyncio.Event(), asyncio.Event()

    async def gate(call: Call) -> None:
        if passed.is_set():
            await go.wait()
        if (call.action, call.table) == ("transact", "Users"):
            passed.set()

    memory.gate = gate
    passing = asyncio.ensure_future(
        world.writer(View.OLD, "passing", sleep=sleep_forever).write([delete(key_of(upper)), insert(lower)])
    )
    await passed.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    memory.gate = open_gate  # it stands still; what others send goes through
    for _ in range(3):
        with pytest.raises(RekeyError):
            await next_writer.write([insert(upper)])
    assert [row["RowKey"] for row in memory.dump("Users")] == ["ann@example.com"]
    go.set()
    await passing
    await world.assert_quiet()


async def test_reservations_expire(memory: MemoryTableService, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is timed from when it was first seen, by this client's own clock."""
    world = await after_cutover(memory)
    await cut_off(world, insert(in_month(world, "2024-01")))
    writer = world.writer(View.NEW, "next", sleep=sleep_forever)
    other = insert(in_month(world, "2024-02"))
    loop = asyncio.get_running_loop()
    first_seen = loop.time()
    for passed in (0.0, RESERVED_S, RESERVED_S + MARGIN_S):
        monkeypatch.setattr(loop, "time", lambda passed=passed: first_seen + passed)
        with pytest.raises(Unavailable):
            await writer.write([other])
    monkeypatch.setattr(loop, "time", lambda: first_seen + RESERVED_S + MARGIN_S + 0.1)
    await writer.write([other])
    monkeypatch.undo()
    await writer.settle()
    await world.sweep("target")
    assert await reserved(world) is None
    await world.assert_quiet()
    assert [row["Month"] for row in memory.dump("PostsV2")] == ["2024-02"]


async def test_a_reservation_ends_with_the_answer_of_the_authority(memory: MemoryTableService) -> None:
    """Also when the answer is that there is such a row, or that the operation is refused."""
    world = await after_cutover(memory, post("other"))
    writer = world.writer(View.NEW, sleep=sleep_forever)
    january, february = in_month(world, "2024-01"), in_month(world, "2024-02")
    await writer.write([insert(january)])
    assert await reserved(world) is None
    with pytest.raises(RowExists):
        await writer.write([insert(january)])
    with pytest.raises(RowRefused):
        await writer.write([insert(february)])
    await writer.write([delete(JANUARY)])
    with pytest.raises(RowExists):
        other = content_of(world.mapper.map(post("other"))[0].row)
        await writer.write([insert({**other, "PartitionKey": "2024-01"}), insert(january)])
    await writer.settle()
    assert await reserved(world) is None
    await writer.write([insert(february)])
    await world.assert_quiet()


async def test_a_refused_write_releases_a_lost_reservation(memory: MemoryTableService) -> None:
    world = await after_cutover(memory)
    writer = world.writer(View.NEW)
    lost = Planned(Fault(FaultKind.LOST_ANSWER), "insert", MAPPING_TABLE, nth=4)  # the forward row
    refused = Planned(Fault(FaultKind.BUSY), "insert", "PostsV2", times=100)
    world.service.faults = PlannedFaults(lost, refused)
    with pytest.raises(Unavailable):
        await writer.write([insert(in_month(world, "2024-01"))])
    world.service.faults = PlannedFaults()
    await writer.settle()
    assert await reserved(world) is None
    await world.writer(View.NEW, "other").write([insert(in_month(world, "2024-02"))])


async def test_the_old_view_reserves_as_well(memory: MemoryTableService) -> None:
    world = await after_cutover(memory)
    await cut_off(world, insert(in_month(world, "2024-01")))
    old = world.writer(View.OLD, "old", sleep=sleep_forever)
    with pytest.raises(Unavailable, match="under another key"):
        await old.write([insert(post("hello", "2024-02"))])
    await old.write([insert(post("hello", "2024-01"))])
    await world.sweep("target")
    await world.assert_quiet()
    assert [row["Month"] for row in memory.dump("PostsV2")] == ["2024-01"]


async def test_the_etag_is_returned_while_replicas_are_delayed(memory: MemoryTableService) -> None:
    """A made-up one would make the caller's next conditional write fail."""
    world = await after_cutover(memory, post("hello", "2024-01"))

    async def hang(call: Call) -> None:
        if call.table == "PostsByTag" and call.writes:
            await asyncio.Event().wait()

    world.service.gate = hang
    writer = world.writer(View.OLD, "late", longest=0.3)
    [etag] = await writer.write([replace({**post("hello", "2024-01"), "Title": "new"})])
    assert etag == world.etag("Posts", HELLO)
    world.service.gate = None


async def test_only_what_makes_a_row_reserves(memory: MemoryTableService) -> None:
    """An upsert of a row that is there is sent on the condition that it still is: late, it makes none."""
    world = await after_cutover(memory, post("hello"))
    writer = world.writer(View.NEW, sleep=sleep_forever)
    calls: Counter[str] = Counter()

    async def note(call: Call) -> None:
        calls[f"{call.action} {call.table}"] += 1

    memory.gate = note
    for operation in (
        upsert(in_month(world, "2024-01", "1")),
        upsert(in_month(world, "2024-01", "2"), merging=True),
        replace(in_month(world, "2024-01", "3")),
        merge(in_month(world, "2024-01", "4")),
        delete(JANUARY),
    ):
        await writer.write([operation])
    await writer.settle()
    memory.gate = open_gate
    assert calls["replace rekeymap"] == 0
    assert not any(name.startswith("insert_or") for name in calls if name.endswith("PostsV2"))
    await world.assert_quiet()


async def test_an_upsert_rereads_when_the_row_came_or_went(memory: MemoryTableService) -> None:
    world = await after_cutover(memory)
    other = world.writer(View.NEW, "other", sleep=sleep_forever)
    meanwhile = [insert(in_month(world, "2024-01", "other")), delete(JANUARY)]

    async def gate(call: Call) -> None:
        if meanwhile and call.table == "PostsV2" and call.writes:
            memory.gate = open_gate
            await other.write([meanwhile.pop(0)])
            await other.settle()
            memory.gate = gate

    memory.gate = gate
    writer = world.writer(View.NEW, sleep=sleep_forever)
    await writer.write([upsert(in_month(world, "2024-01", "upserted"))])
    memory.gate = open_gate
    assert not meanwhile
    await world.assert_quiet()
    assert [row["Title"] for row in memory.dump("PostsV2")] == ["upserted"]
    assert key_of(memory.dump("PostsV2")[0]) == JANUARY
