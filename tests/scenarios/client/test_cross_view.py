"""Dual writes in the view that is not the authority's: conditions, ETags and answers mean what they mean to
the view (verbs, and what is refused: `test_views.py`)."""

from __future__ import annotations

import pytest

from rekey import Migration, Target, keys, props
from rekey.errors import ConditionFailed, RequestRejected, RowExists, RowRefused
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.interference import before, noted
from tests.fakes.memory import MemoryTableService
from tests.worlds.dual_write import (
    TAGGED,
    DualWorld,
    delete,
    insert,
    key_row,
    memory_world,
    merge,
    replace,
)
from tests.worlds.small import POSTS, USERS, post, user

ANN = EntityKey("eu", "ann@example.com")
HELLO = EntityKey("blog", "hello")


USERS_BY_NAME = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.prop("Nm"),
        properties=[props.copy("RowKey", to="Mail")],
    ),
    capture="dual-write",
)
"""The row key depends on content, the partition does not."""


def target_row(world: DualWorld, source_row: Row) -> Row:
    """The main target row of a source row."""
    return content_of(world.mapper.map(source_row)[0].row)


# --- the new view while the source is the authority ---------------------------------------------------------


async def test_a_view_that_was_left_behind_is_brought_in_step_first(memory: MemoryTableService) -> None:
    """The source moved on and its writer died: a caller who names a version is told, another is served."""
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    row = target_row(world, user(ANN.row))
    await world.source.replace(user(ANN.row, Age=2))
    with pytest.raises(ConditionFailed):
        await world.writer(View.NEW).write([replace(row, world.etag("UsersV2", key_of(row)))])
    world.assert_in_step()
    await world.source.replace(user(ANN.row, Age=3, Extra=1))
    await world.writer(View.NEW).write([merge({**key_row(key_of(row)), "Name": "A"})])
    await world.assert_quiet()
    [ann] = memory.dump("Users")
    assert (ann["Age"], ann["Extra"], ann["Nm"]) == (3, 1, "A")


async def test_a_writer_of_the_old_view_in_between_is_not_overwritten(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    key = key_of(target_row(world, user(ANN.row)))
    other = world.writer(View.OLD, "c2")
    before(memory, "replace", "Users", lambda: other.write([merge({**key_row(ANN), "Extra": 1})]))
    await world.writer(View.NEW).write([merge({**key_row(key), "Age": 2})])
    await world.assert_quiet()
    [ann] = memory.dump("Users")
    assert (ann["Age"], ann["Extra"]) == (2, 1)


async def test_a_missing_view_row_has_an_etag_that_never_matches(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    row = target_row(world, user(ANN.row))
    memory.faults = PlannedFaults(
        Planned(Fault(FaultKind.BUSY), action="replace", table="UsersV2", times=100),
    )
    writer = world.writer(View.NEW)
    [etag] = await writer.write([replace({**row, "Age": 2})])
    assert etag.startswith('W/"rekey-')
    memory.faults = PlannedFaults()
    await world.sweep()
    world.assert_in_step()
    with pytest.raises(ConditionFailed):
        await writer.write([replace(row, etag)])
    await writer.close()
    await world.sweep()
    await world.assert_quiet()


async def test_a_transaction_of_the_new_view(memory: MemoryTableService) -> None:
    world = await memory_world(TAGGED, memory).prepare([user("a@x.org"), user("b@x.org")])
    writer = world.writer(View.NEW)
    a, b, c = (target_row(world, user(f"{name}@x.org", Age=1)) for name in "abc")
    etags = await writer.write([replace(a), delete(key_of(b)), insert(c)])
    assert etags == [world.etag("UsersV2", key_of(a)), None, world.etag("UsersV2", key_of(c))]
    await world.assert_quiet()
    with pytest.raises(RowExists) as exists:
        await writer.write([replace({**a, "Age": 3}), insert(c)])
    assert exists.value.index == 1
    await world.assert_quiet()
    assert memory.dump("Users")[0]["Age"] == 1


async def test_a_transaction_over_partitions_of_the_authority_is_refused(memory: MemoryTableService) -> None:
    rows = [post("one"), {**post("two"), "PartitionKey": "other"}]
    world = await memory_world(POSTS, memory).prepare(rows)
    changes = [replace({**target_row(world, row), "Title": "new"}) for row in rows]
    before = world.rows("Posts")
    with pytest.raises(RequestRejected) as refused:
        await world.writer(View.NEW).write(changes)
    assert refused.value.code == "CommandsInBatchActOnDifferentPartitions"
    assert world.rows("Posts") == before
    await world.assert_quiet()


# --- the old view after cutover -----------------------------------------------------------------------------


async def test_a_move_within_a_partition_is_one_transaction(memory: MemoryTableService) -> None:
    world = await memory_world(USERS_BY_NAME, memory).prepare([user(ANN.row)])
    world.permits.move(ControlPhase.CUTOVER)
    calls = noted(memory, lambda call: call.table == "UsersV2" and call.writes)
    [etag] = await world.writer().write([merge({**key_row(ANN), "Nm": "anna"})])
    assert etag == world.etag("Users", ANN)
    assert [call.action for call in calls] == ["transact"]
    await world.assert_quiet()
    assert [row["RowKey"] for row in memory.dump("UsersV2")] == ["anna"]


async def test_an_old_view_write_into_another_partition_is_refused(memory: MemoryTableService) -> None:
    world = await memory_world(POSTS, memory).prepare([post("hello", "2024-01")])
    world.permits.move(ControlPhase.CUTOVER)
    writer = world.writer()
    with pytest.raises(RowRefused) as refused:
        await writer.write([replace(post("hello", "2024-02"))])
    assert refused.value.code == "key-moves"
    await writer.write([replace(post("hello", "2024-01", "x,y"))])
    await world.assert_quiet()
    await writer.write([delete(HELLO)])
    await writer.write([insert(post("hello", "2024-02"))])
    await world.assert_quiet()


async def test_views_see_each_others_writes_after_cutover(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    world.permits.move(ControlPhase.CUTOVER)
    old, new = world.writer(), world.writer(View.NEW, "c2")
    key = key_of(memory.dump("UsersV2")[0])
    stale = world.etag("Users", ANN)
    await new.write([merge({**key_row(key), "Age": 2})])
    with pytest.raises(ConditionFailed):
        await old.write([merge({**key_row(ANN), "Age": 3}, stale)])
    await old.write([merge({**key_row(ANN), "Extra": 1})])
    await world.assert_quiet()
    [row] = memory.dump("UsersV2")
    assert (row["Age"], row["Extra"]) == (2, 1)


async def test_a_transaction_of_the_old_view_after_cutover(memory: MemoryTableService) -> None:
    world = await memory_world(TAGGED, memory).prepare([user("a@x.org"), user("b@x.org")])
    world.permits.move(ControlPhase.CUTOVER)
    await world.writer().write(
        [
            replace(user("a@x.org", Age=1)),
            delete(EntityKey("eu", "b@x.org")),
            insert(user("c@x.org", Age=3)),
        ]
    )
    await world.assert_quiet()


TIMED = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque(keys.prop("RowKey"), domain="user", secret="users"),
        properties=[props.copy("RowKey", to="Mail"), props.copy("Timestamp", to="WrittenAt")],
    ),
    capture="dual-write",
)
"""The targets hold a moment that nobody can foresee."""


async def test_a_copied_timestamp_follows_both_views(memory: MemoryTableService, clock: FakeClock) -> None:
    world = await memory_world(TIMED, memory).prepare([user(ANN.row, Age=1)])
    [row] = [content_of(row) for row in memory.dump("UsersV2")]
    old, new = world.writer(), world.writer(View.NEW, "c2")
    clock.advance(1.0)
    await old.write([replace(user(ANN.row, Age=2))])
    await world.assert_quiet()
    clock.advance(1.0)
    [etag] = await new.write([replace({**row, "Age": 3})])
    assert etag == world.etag("UsersV2", key_of(row))
    await world.assert_quiet()
    world.permits.move(ControlPhase.CUTOVER)
    written_at = memory.dump("UsersV2")[0]["WrittenAt"]
    for writer, key in ((new, key_of(row)), (old, ANN)):
        clock.advance(1.0)
        await writer.write([merge({**key_row(key), "Age": 4})])
        for one in (old, new):
            await one.settle()
        assert world.intents == 0
        [target] = memory.dump("UsersV2")
        assert (memory.dump("Users")[0]["Age"], target["Age"], target["WrittenAt"]) == (4, 4, written_at)
