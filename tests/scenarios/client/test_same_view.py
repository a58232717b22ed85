"""Dual writes in the view of the authority: replicas follow, in both directions (verbs: `test_views.py`)."""

from __future__ import annotations

import pytest

from rekey import Migration, Target, keys, props
from rekey.errors import (
    Collision,
    RequestRejected,
    RowExists,
    RowRefused,
    WritesRefused,
)
from rekey.mapping.rows import TargetKey, pointer_of
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from tests.fakes.memory import MemoryTableService
from tests.worlds.dual_write import TAGGED, delete, insert, memory_world, merge, replace, upsert
from tests.worlds.small import LOWERED, POSTS, USERS, post, user

ANN = EntityKey("eu", "ann@example.com")
HELLO = EntityKey("blog", "hello")


@pytest.mark.parametrize("units", [513, 1024])
async def test_keys_of_more_than_512_characters_are_followed(memory: MemoryTableService, units: int) -> None:
    """The service takes them, Azurite does not (dotnet/orleans #11257 has such keys)."""
    world = await memory_world(USERS, memory).prepare()
    writer, key = world.writer(), "a" * units
    await writer.write([insert(user(key, Age=1))])
    await writer.write([merge({**user(key), "Age": 2})])
    await world.assert_quiet()
    assert [row["Age"] for row in memory.dump("UsersV2")] == [2]
    with pytest.raises(RequestRejected, match="KeyValueTooLarge"):
        await writer.write([insert(user("a" * 1025))])
    with pytest.raises(RowRefused) as refused:
        await writer.write([insert(user("\u6f22" * 1024))])
    assert (refused.value.code, refused.value.field) == ("key-too-long", "source")
    await world.assert_quiet()


DOCUMENTED = {
    "2020-11-16T04:25:03-05:00": "2020-11-16T09:25:03Z",
    "2020-11-16T04:25Z": "2020-11-16T04:25:00Z",
    "2020-11-16": "2020-11-16T00:00:00Z",
}


@pytest.mark.parametrize(("sent", "kept"), DOCUMENTED.items())
async def test_every_datetime_form_is_stored_in_utc(memory: MemoryTableService, sent: str, kept: str) -> None:
    """ "Formatting DateTime values" in the Azure documentation."""
    world = await memory_world(USERS, memory).prepare()
    typed = {"At": sent, "At@odata.type": "Edm.DateTime"}
    await world.writer().write([insert(user(ANN.row, **typed))])
    await world.writer().write([merge({**_key(ANN), **typed})])
    assert [memory.dump(table)[0]["At"] for table in ("Users", "UsersV2")] == [kept] * 2
    assert world.counters.propagated == 0
    await world.assert_quiet()


@pytest.mark.parametrize(
    "values",
    [
        {"A": "x" * 32_768},
        {"A": "AAAA" * 21_845 + "AA==", "A@odata.type": "Edm.Binary"},
    ],
    ids=["32,768 characters", "65,536 bytes"],
)
async def test_the_service_judges_values_of_64_kib(memory: MemoryTableService, values: Row) -> None:
    """Orleans writes chunks of 64 KiB. A value that is longer gets the service's own refusal."""
    world = await memory_world(USERS, memory).prepare()
    await world.writer().write([insert(user(ANN.row, **values))])
    await world.assert_quiet()
    assert memory.dump("UsersV2")[0]["A"] == values["A"]
    longer = {**values, "A": "AAAA" + values["A"]}
    with pytest.raises(RequestRejected, match="PropertyValueTooLarge"):
        await world.writer().write([insert(user("bob@example.com", **longer))])
    assert len(memory.dump("Users")) == len(memory.dump("UsersV2")) == 1
    await world.assert_quiet()


@pytest.mark.parametrize("view", View)
@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
@pytest.mark.parametrize("migration", [USERS, POSTS], ids=["key-derived", "content-derived"])
async def test_replicas_hold_what_the_service_made_of_a_value_in_no_documented_form(
    memory: MemoryTableService, migration: Migration, phase: ControlPhase, view: View
) -> None:
    """Here a whole number beyond Int32 without a type, which becomes a Double: whatever the service makes of
    a value, all tables hold the same."""
    row = user(ANN.row) if migration is USERS else post("hello", "2024-01", "a")
    world = await memory_world(migration, memory).prepare([row])
    world.permits.move(phase)
    table = migration.source if view is View.OLD else migration.target.table
    [there] = [content_of(one) for one in memory.dump(table)]
    writer = world.writer(view)
    await writer.write([replace({**there, "A": 3_000_000_000})])
    found = [memory.dump(one)[0]["A"] for one in (migration.source, migration.target.table)]
    assert [(type(one), one) for one in found] == [(float, 3e9)] * 2
    await writer.write([merge({**_key(key_of(there)), "A": 4_000_000_000})])
    await world.assert_quiet()
    assert [memory.dump(one)[0]["A"] for one in (migration.source, migration.target.table)] == [4e9] * 2
    with pytest.raises(RequestRejected, match="InvalidInput"):
        await writer.write([merge({**_key(key_of(there)), "A": "x", "A@odata.type": "Edm.Int64"})])
    await world.assert_quiet()


async def test_a_replica_is_mapped_from_what_the_service_made_of_a_value(memory: MemoryTableService) -> None:
    """As text the Double that is stored differs from the whole number that was sent."""
    described = Migration(
        "Users",
        Target(
            "UsersV2",
            partition_key=keys.keep(),
            row_key=keys.literal("u-") + keys.prop("RowKey"),
            properties=[props.copy("RowKey", to="Old"), props.cast("A", "String")],
        ),
        capture="dual-write",
        reverse=False,
    )
    world = await memory_world(described, memory).prepare()
    await world.writer().write([insert({**_key(ANN), "A": 3_000_000_000})])
    assert memory.dump("UsersV2")[0]["A"] == "3000000000.0"
    await world.writer().write([replace({**_key(ANN), "A": 4_000_000_000})])
    assert memory.dump("UsersV2")[0]["A"] == "4000000000.0"
    await world.assert_quiet()


async def test_rows_keyed_by_content_have_moved_when_the_answer_is_there(memory: MemoryTableService) -> None:
    world = await memory_world(POSTS, memory).prepare([post("hello", "2024-01", "a,b")])
    writer = world.writer()
    await writer.write([replace(post("hello", "2024-02", "b,c"))])
    world.assert_in_step()
    await world.assert_quiet()
    await writer.write([merge({**_key(HELLO), "Month": "2024-03", "Tags": "d"})])
    world.assert_in_step()
    await world.assert_quiet()
    await writer.write([delete(HELLO)])
    world.assert_in_step()
    await world.assert_quiet()
    assert memory.dump("PostsV2") == memory.dump("PostsByTag") == []
    forward = await world.mapping.forward(HELLO)
    assert TargetKey(0, "2024-02", "hello") in forward.targets


async def test_a_write_claims_and_copies_an_uncopied_row(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare()
    await world.source.insert(user(ANN.row))
    await world.writer().write([replace(user(ANN.row, Age=2))])
    await world.assert_quiet()


async def test_an_unmappable_row_is_refused_before_any_write(memory: MemoryTableService) -> None:
    world = await memory_world(POSTS, memory).prepare([post("hello")])
    before = {name: memory.dump(name) for name in ("Posts", "PostsV2", "PostsByTag")}
    writer = world.writer()
    broken = post("hello")
    del broken["Month"]
    for operation in (replace(broken), insert({**broken, "RowKey": "new"}), upsert(broken)):
        with pytest.raises(RowRefused) as refused:
            await writer.write([operation])
        assert refused.value.row_id
        assert "hello" not in str(refused.value)
    with pytest.raises(RowRefused):
        await writer.write([merge({**_key(HELLO), "Month": ""})])
    await writer.settle()
    assert {name: memory.dump(name) for name in before} == before
    assert world.intents == 0


async def test_a_collision_is_refused_before_anything_is_written(memory: MemoryTableService) -> None:
    world = await memory_world(LOWERED, memory).prepare([user("ann@example.com")])
    writer = world.writer()
    with pytest.raises(Collision) as collision:
        await writer.write([insert(user("Ann@example.com"))])
    assert "example" not in str(collision.value)
    assert len(memory.dump("Users")) == 1
    await world.assert_quiet()


async def test_an_index_row_of_another_row_is_a_collision(memory: MemoryTableService) -> None:
    world = await memory_world(POSTS, memory).prepare([post("hello", tags="a")])
    with pytest.raises(Collision, match="PostsByTag"):
        await world.writer().write([insert({**post("hello", "2024-02", "a"), "PartitionKey": "other"})])
    assert len(memory.dump("Posts")) == 1
    await world.assert_quiet()


@pytest.mark.parametrize("propagates", [False, True], ids=["client", "propagate"])
async def test_a_former_index_key_collides(memory: MemoryTableService, *, propagates: bool) -> None:
    """Main key and index key of a row have passed to another one; now the first wants its index key back."""
    world = await memory_world(POSTS, memory).prepare([post("hello", tags="a")])
    writer = world.writer()
    await writer.write([replace(post("hello", "2024-02", "b"))])
    await writer.write([insert({**post("hello", tags="a"), "PartitionKey": "other"})])
    await world.assert_quiet()
    back = post("hello", "2024-02", "a")
    with pytest.raises(Collision, match="PostsByTag"):
        if propagates:
            await world.source.replace(back)
            await world.propagator.propagate(HELLO)
        else:
            await writer.write([replace(back)])
    [index] = [row for row in memory.dump("PostsByTag") if row["PartitionKey"] == "a"]
    assert pointer_of(index) == ("2024-01", "hello")


async def test_a_key_passes_on_when_its_owner_is_gone(memory: MemoryTableService) -> None:
    world = await memory_world(LOWERED, memory).prepare([user("ann@example.com")])
    writer = world.writer()
    await writer.write([delete(ANN)])
    await writer.write([insert(user("Ann@example.com"))])
    await world.assert_quiet()
    assert [row["OldRowKey"] for row in memory.dump("UsersV2")] == ["Ann@example.com"]


async def test_a_transaction_is_all_or_nothing_and_is_followed(memory: MemoryTableService) -> None:
    world = await memory_world(TAGGED, memory).prepare([user("a@x.org"), user("b@x.org"), user("c@x.org")])
    writer = world.writer()
    etags = await writer.write(
        [
            replace(user("a@x.org", Age=1)),
            merge({"PartitionKey": "eu", "RowKey": "b@x.org", "Age": 2}),
            delete(EntityKey("eu", "c@x.org")),
            insert(user("d@x.org", Age=4)),
            upsert({"PartitionKey": "eu", "RowKey": "e@x.org", "Age": 5}, merging=True),
        ]
    )
    assert [etag is None for etag in etags] == [False, False, True, False, False]
    await world.assert_quiet()
    before = world.rows("Users")
    with pytest.raises(RowExists) as exists:
        await writer.write([replace(user("a@x.org", Age=9)), insert(user("b@x.org"))])
    assert exists.value.index == 1
    assert world.rows("Users") == before
    await world.assert_quiet()
    assert world.counters.writes == 5


async def test_a_refused_row_of_a_transaction_is_named_by_its_index(memory: MemoryTableService) -> None:
    world = await memory_world(POSTS, memory).prepare()
    broken = post("two")
    del broken["Month"]
    with pytest.raises(RowRefused) as refused:
        await world.writer().write([insert(post("one")), insert(broken)])
    assert refused.value.index == 1
    await world.assert_quiet()
    assert memory.dump("Posts") == []


# --- after cutover -----------------------------------------------------------------------------------------


async def test_after_cutover_content_moves_index_rows_but_never_the_row(memory: MemoryTableService) -> None:
    world = await memory_world(POSTS, memory).prepare([post("hello", "2024-01", "a,b")])
    world.permits.move(ControlPhase.CUTOVER)
    writer = world.writer(View.NEW)
    [row] = [content_of(row) for row in memory.dump("PostsV2")]
    await writer.write([replace({**row, "Tags": "b,c"})])
    world.assert_in_step()
    await world.assert_quiet()
    with pytest.raises(RowRefused) as refused:
        await writer.write([replace({**row, "Month": "2024-02"})])
    assert refused.value.code == "not-reversible"
    await writer.write([delete(key_of(row))])
    await world.assert_quiet()
    assert memory.dump("Posts") == memory.dump("PostsByTag") == []


async def test_after_cutover_a_key_passes_on_with_its_source_row(memory: MemoryTableService) -> None:
    """The former owner's delete was cut off before the source followed; the key's new owner must not make
    that row unfindable."""
    world = await memory_world(LOWERED, memory).prepare([user("ann@example.com")])
    world.permits.move(ControlPhase.CUTOVER)
    await world.targets[0].delete(ANN)
    await world.writer(View.NEW).write([insert({**user("ann@example.com"), "OldRowKey": "ANN@example.com"})])
    await world.assert_quiet()
    assert [row["RowKey"] for row in memory.dump("Users")] == ["ANN@example.com"]


# --- routes ------------------------------------------------------------------------------------------------


async def test_plain_phases_write_the_views_table_alone(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare()
    world.permits.move(ControlPhase.SOURCE)
    await world.writer().write([insert(user(ANN.row))])
    await world.writer().write([replace(user(ANN.row, Age=2))])
    assert memory.dump("UsersV2") == []
    world.permits.move(ControlPhase.COMPLETE)
    await world.writer(View.NEW).write([insert({"PartitionKey": "eu", "RowKey": "anything"})])
    assert len(memory.dump("Users")) == 1
    assert world.intents == 0


async def test_routes_that_are_refused_write_nothing(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare()
    world.permits.copied = False
    for phase, view, code in [
        (ControlPhase.DUAL_WRITE, View.NEW, "new-view-closed"),
        (ControlPhase.FREEZE, View.OLD, "frozen"),
        (ControlPhase.COMPLETE, View.OLD, "old-view-over"),
    ]:
        world.permits.move(phase)
        with pytest.raises(WritesRefused) as refused:
            await world.writer(view).write([insert(user(ANN.row))])
        assert refused.value.code == code
    assert world.intents == 0
    assert memory.dump("Users") == memory.dump("UsersV2") == []


def _key(key: EntityKey) -> Row:
    return {"PartitionKey": key.partition, "RowKey": key.row}
