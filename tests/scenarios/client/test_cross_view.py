"""Dual writes in the view that is not the authority's: conditions, ETags and answers mean what they mean to
the view, and what the other table cannot express is refused before anything is written."""

from __future__ import annotations

import pytest

from rekey import Migration, Target, keys, props
from rekey.errors import ConditionFailed, RequestRejected, RowExists, RowMissing, RowRefused
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
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
    upsert,
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


@pytest.mark.parametrize("migration", [USERS, TAGGED], ids=["one target", "index table"])
async def test_every_verb_in_new_view_before_cutover(memory: MemoryTableService, migration: object) -> None:
    world = await memory_world(migration, memory).prepare([user(ANN.row, Age=1)])  # type: ignore[arg-type]
    writer = world.writer(View.NEW)
    row = target_row(world, user(ANN.row))
    key = key_of(row)
    [etag] = await writer.write([replace({**row, "Age": 2}, world.etag("UsersV2", key))])
    assert etag == world.etag("UsersV2", key)
    await world.assert_quiet()
    [ann] = memory.dump("Users")
    assert (ann["Age"], ann["Ssn"]) == (2, "x-1")
    [etag] = await writer.write([merge({**key_row(key), "Name": "Ann"}, etag)])
    assert etag == world.etag("UsersV2", key)
    await world.assert_quiet()
    assert memory.dump("Users")[0]["Nm"] == "Ann"
    new = target_row(world, user("new@example.com", Age=7))
    [etag] = await writer.write([insert(new)])
    assert etag == world.etag("UsersV2", key_of(new))
    await writer.write([upsert({**new, "Age": 8})])
    await writer.write([upsert({**key_row(key_of(new)), "Age": 9}, merging=True)])
    await world.assert_quiet()
    assert await writer.write([delete(key)]) == [None]
    await world.assert_quiet()
    assert [row["Age"] for row in memory.dump("Users")] == [9]
    assert world.counters.left == 0


async def test_answers_in_the_new_view_are_those_of_its_rows(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row)])
    writer = world.writer(View.NEW)
    row = target_row(world, user(ANN.row))
    stale = world.etag("UsersV2", key_of(row))
    await world.writer().write([replace(user(ANN.row, Age=5))])
    missing = target_row(world, user("bob@example.com"))
    for operation, error in [
        (insert(row), RowExists),
        (replace({**row, "Age": 6}, stale), ConditionFailed),
        (merge(key_row(key_of(row)), stale), ConditionFailed),
        (delete(key_of(row), stale), ConditionFailed),
        (replace(missing), RowMissing),
        (merge(missing), RowMissing),
        (delete(key_of(missing)), RowMissing),
        (delete(key_of(row), 'W/"another table\'s"'), ConditionFailed),
    ]:
        with pytest.raises(error):
            await writer.write([operation])
    await world.assert_quiet()
    assert memory.dump("Users")[0]["Age"] == 5


async def test_a_new_row_that_does_not_say_its_old_key_is_refused(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare()
    row = target_row(world, user(ANN.row))
    del row["ContactEmail"]
    with pytest.raises(RowRefused) as refused:
        await world.writer(View.NEW).write([insert(row)])
    assert refused.value.code == "no-old-key"
    with pytest.raises(RowRefused):
        await world.writer(View.NEW).write([insert({**row, "ContactEmail": "bob@example.com"})])
    assert memory.dump("Users") == memory.dump("UsersV2") == []
    await world.assert_quiet()


async def test_what_the_source_cannot_express_is_refused_in_the_new_view(memory: MemoryTableService) -> None:
    world = await memory_world(POSTS, memory).prepare([post("hello", "2024-01")])
    writer = world.writer(View.NEW)
    row = target_row(world, post("hello", "2024-01"))
    for operation, code in [
        (replace({**row, "Month": "2024-02"}), "not-reversible"),
        (replace({**row, "Blog": "other"}), "not-reversible"),
        (insert(target_row(world, post("hello", "2024-02"))), "key-taken"),
    ]:
        with pytest.raises(RowRefused) as refused:
            await writer.write([operation])
        assert refused.value.code == code
    await writer.write([replace({**row, "Tags": "c", "Title": "t"})])
    await world.assert_quiet()


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
    other, done = world.writer(View.OLD, "c2"), False

    async def interfere(call: Call) -> None:
        nonlocal done
        if call.action == "replace" and call.table == "Users" and not done:
            done = True
            await other.write([merge({**key_row(ANN), "Extra": 1})])

    memory.gate = interfere
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


@pytest.mark.parametrize("migration", [USERS, TAGGED], ids=["one target", "index table"])
async def test_every_verb_in_old_view_after_cutover(memory: MemoryTableService, migration: object) -> None:
    world = await memory_world(migration, memory).prepare([user(ANN.row, Age=1)])  # type: ignore[arg-type]
    world.permits.move(ControlPhase.CUTOVER)
    writer = world.writer(View.OLD)
    [etag] = await writer.write([replace(user(ANN.row, Age=2), world.etag("Users", ANN))])
    assert etag == world.etag("Users", ANN)
    await world.assert_quiet()
    [etag] = await writer.write([merge({**key_row(ANN), "Age": 3, "Ssn": "new"}, etag)])
    assert etag == world.etag("Users", ANN)
    await world.assert_quiet()
    assert memory.dump("Users")[0]["Ssn"] == "new"
    with pytest.raises(RowExists):
        await writer.write([insert(user(ANN.row))])
    with pytest.raises(ConditionFailed):
        await writer.write([delete(ANN, 'W/"another table\'s"')])
    await writer.write([insert(user("bob@example.com"))])
    await writer.write([upsert(user("bob@example.com", Age=4))])
    await writer.write([upsert(user("eve@example.com"), merging=True)])
    await world.assert_quiet()
    assert await writer.write([delete(ANN)]) == [None]
    await world.assert_quiet()
    assert {row["RowKey"] for row in memory.dump("Users")} == {"bob@example.com", "eve@example.com"}
    await writer.write([insert(user(ANN.row, Age=9))])
    await world.assert_quiet()
    assert world.counters.left == 0


async def test_a_move_within_a_partition_is_one_transaction(memory: MemoryTableService) -> None:
    world = await memory_world(USERS_BY_NAME, memory).prepare([user(ANN.row)])
    world.permits.move(ControlPhase.CUTOVER)
    calls: list[str] = []

    async def note(call: Call) -> None:
        if call.table == "UsersV2" and call.writes:
            calls.append(call.action)

    memory.gate = note
    [etag] = await world.writer().write([merge({**key_row(ANN), "Nm": "anna"})])
    assert etag == world.etag("Users", ANN)
    assert calls == ["transact"]
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
