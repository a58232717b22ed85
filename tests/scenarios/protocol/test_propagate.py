"""propagate(k): targets equal what the source says now, whatever was there before."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest

from rekey import Index, keys
from rekey.errors import Ambiguous, Collision, CredentialRefused, EndpointDown, RekeyError, RowRefused
from rekey.mapping.rows import TargetKey
from rekey.model import EntityKey, Row, etag_of, key_of
from rekey.protocol.reverse import ReversePropagator
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.interference import before, noted
from tests.fakes.memory import MemoryTableService
from tests.worlds.small import LOWERED, POSTS, USERS, World, post, user

ANN = EntityKey("eu", "ann@example.com")
HELLO = EntityKey("blog", "hello")


async def test_a_row_never_seen_is_claimed_in_the_mapping_and_inserted(memory: MemoryTableService) -> None:
    world = await World(memory, USERS).prepare([user("ann@example.com")])
    done = await world.propagator.propagate(ANN)
    assert (done.inserted, done.replaced, done.deleted) == (1, 0, 0)
    world.assert_in_step()
    again = await world.propagator.propagate(ANN)
    assert not again.changed


async def test_a_changed_source_row_replaces_its_target_row(memory: MemoryTableService) -> None:
    world = await World(memory, USERS).prepare([user("ann@example.com")])
    await world.propagator.propagate(ANN)
    await world.source.merge({"PartitionKey": "eu", "RowKey": ANN.row, "Nm": "Ann"})
    done = await world.propagator.propagate(ANN)
    assert (done.inserted, done.replaced, done.deleted) == (0, 1, 0)
    world.assert_in_step()


async def test_a_deleted_source_row_takes_its_target_row_along(memory: MemoryTableService) -> None:
    world = await World(memory, USERS).prepare([user("ann@example.com")])
    await world.propagator.propagate(ANN)
    await world.source.delete(ANN)
    assert (await world.propagator.propagate(ANN)).deleted == 1
    world.assert_in_step()


async def test_a_key_that_another_row_took_since_the_row_was_read_is_no_collision(
    memory: MemoryTableService,
) -> None:
    """The row was read, then deleted, and the row that takes its target key was copied first."""
    upper = EntityKey("eu", "Ann@example.com")
    for number in range(20):
        memory = MemoryTableService()
        world = await World(memory, LOWERED).prepare([user(upper.row)])
        memory.gate = _before(number, partial(_exchange, world, upper))
        await world.propagator.propagate(upper)
        if world.service.dump("Users")[0]["RowKey"] == ANN.row:
            world.assert_in_step()
    assert world.service.dump("Users")[0]["RowKey"] == upper.row, "all its calls were tried"


async def test_a_row_whose_key_a_failed_write_has_claimed_goes_with_its_source_row(
    memory: MemoryTableService,
) -> None:
    """The claimant did not list the key, so no row there is its own; nobody else would delete this one."""
    upper = EntityKey("eu", "Ann@example.com")
    world = await World(memory, LOWERED).prepare([user(upper.row)])
    await world.propagator.propagate(upper)
    await world.source.delete(upper)
    assert await world.mapping.take(ANN, TargetKey(0, *ANN), await world.mapping.owner(ANN))
    await world.propagator.propagate(upper)
    assert memory.dump("UsersV2") == []


async def test_after_cutover_a_key_passes_on_behind_its_former_owners_source_row(
    memory: MemoryTableService,
) -> None:
    """Whoever is killed in between, nothing would lead from the key to that row any more."""
    upper = EntityKey("eu", "Ann@example.com")
    world = await World(memory, LOWERED).prepare([user(upper.row)])
    await world.propagator.propagate(upper)
    await world.mapping.extend(ANN, None, {TargetKey(0, *ANN)})
    [target] = memory.dump("UsersV2")
    await world.targets[0].replace({**target, "OldRowKey": ANN.row}, etag=etag_of(target))
    calls = noted(memory)
    await ReversePropagator(world.propagator).propagate(ANN)
    written = [f"{call.action} {call.table}" for call in calls]
    assert written.index("delete Users") < written.index("replace rekeymap")
    assert [key_of(row) for row in memory.dump("Users")] == [ANN]
    assert (await world.mapping.owner(ANN)).source == ANN


@pytest.mark.parametrize("error", [EndpointDown, CredentialRefused, RowRefused])
async def test_an_error_after_a_write_with_an_unknown_outcome_tells_that(
    memory: MemoryTableService, error: type[RekeyError]
) -> None:
    """Each of these alone means that nothing can take effect any more."""
    world = await World(memory, USERS).prepare([user(ANN.row)])
    memory.faults = PlannedFaults(Planned(Fault(FaultKind.LOST_REQUEST), action="insert", table="UsersV2"))
    written = list[Call]()

    async def gate(call: Call) -> None:
        if written and call.table == "Users":
            if error is RowRefused:
                raise RowRefused("no-value", "Name", "it is missing", cure="give it one")
            raise error("no answer", code="Code")
        written.extend([call] if call.table == "UsersV2" and call.writes else [])

    memory.gate = gate
    with pytest.raises(Ambiguous):
        await world.propagator.propagate(ANN)
    assert written


def _before(number: int, act: Callable[[], Awaitable[None]]) -> Callable[[Call], Awaitable[None]]:
    calls = itertools.count()

    async def gate(_call: Call) -> None:
        if next(calls) == number:
            await act()

    return gate


async def _exchange(world: World, upper: EntityKey) -> None:
    await world.source.delete(upper)
    await world.source.insert(user(ANN.row))
    await world.propagator.propagate(ANN)


async def test_a_changed_key_property_moves_row_and_index_rows(memory: MemoryTableService) -> None:
    world = await World(memory, POSTS).prepare([post("hello", "2024-01", "a,b")])
    await world.propagator.propagate(HELLO)
    await world.source.replace(post("hello", "2024-02", "b,c"))
    await world.propagator.propagate(HELLO)
    world.assert_in_step()
    forward = await world.mapping.forward(HELLO)
    assert forward.targets == {
        TargetKey(0, "2024-01", "hello"),
        TargetKey(0, "2024-02", "hello"),
        *(TargetKey(1, tag, "hello") for tag in "abc"),
    }


async def test_a_changed_type_is_a_difference(memory: MemoryTableService) -> None:
    world = await World(memory, USERS).prepare([user("ann@example.com", Age=3)])
    await world.propagator.propagate(ANN)
    [target] = memory.dump("UsersV2")
    await world.targets[0].replace({**target, "Age": 3.0}, etag=etag_of(target))
    assert (await world.propagator.propagate(ANN)).replaced == 1
    [mended] = memory.dump("UsersV2")
    assert type(mended["Age"]) is int


async def test_a_target_key_collision_overwrites_nothing(memory: MemoryTableService) -> None:
    world = await World(memory, LOWERED).prepare([user("ann@example.com"), user("Ann@example.com")])
    await world.propagator.propagate(ANN)
    before = memory.dump("UsersV2")
    with pytest.raises(Collision) as collision:
        await world.propagator.propagate(EntityKey("eu", "Ann@example.com"))
    assert memory.dump("UsersV2") == before
    ids = world.mapping.rows.ids
    assert ids.short("Users", ANN) in str(collision.value)
    assert ids.short("Users", EntityKey("eu", "Ann@example.com")) in str(collision.value)
    assert "example" not in str(collision.value)


async def test_a_key_whose_owner_is_gone_passes_to_the_next_row(memory: MemoryTableService) -> None:
    world = await World(memory, LOWERED).prepare([user("ann@example.com")])
    await world.propagator.propagate(ANN)
    await world.source.delete(ANN)
    other = EntityKey("eu", "Ann@example.com")
    await world.source.insert(user(other.row))
    await world.propagator.propagate(other)
    # The sweep asks for the old key as well: it must not delete what the new owner wrote.
    await world.propagator.propagate(ANN)
    world.assert_in_step()


async def test_sweeping_a_former_owner_keeps_the_index_row(memory: MemoryTableService) -> None:
    """The former owner lists both keys, and the index row points to the main key that it lists."""
    by_mail = Index("ByMail", partition_key=keys.literal("all"), row_key=keys.lower("RowKey"))
    world = await World(memory, replace(LOWERED, indexes=[by_mail])).prepare([user("Ann@example.com")])
    await world.propagator.propagate(EntityKey("eu", "Ann@example.com"))
    await world.source.delete(EntityKey("eu", "Ann@example.com"))
    await world.source.insert(user(ANN.row))
    await world.propagator.propagate(ANN)
    world.assert_in_step()
    await world.propagator.propagate(EntityKey("eu", "Ann@example.com"))
    world.assert_in_step()


async def test_a_returning_row_collides_with_its_successor(memory: MemoryTableService) -> None:
    world = await World(memory, LOWERED).prepare([user("ann@example.com")])
    await world.propagator.propagate(ANN)
    await world.source.delete(ANN)
    await world.source.insert(user("Ann@example.com"))
    await world.propagator.propagate(EntityKey("eu", "Ann@example.com"))
    await world.source.insert(user("ann@example.com"))
    with pytest.raises(Collision):
        await world.propagator.propagate(ANN)


async def test_an_index_key_of_two_live_rows_is_a_collision(memory: MemoryTableService) -> None:
    rows = [post("hello", tags="a"), {**post("hello", "2024-02", tags="a"), "PartitionKey": "other"}]
    world = await World(memory, POSTS).prepare(rows)
    await world.propagator.propagate(HELLO)
    with pytest.raises(Collision, match="PostsByTag"):
        await world.propagator.propagate(EntityKey("other", "hello"))


async def test_a_row_the_mapping_cannot_key_is_refused_by_safe_id(memory: MemoryTableService) -> None:
    broken: Row = {"PartitionKey": "blog", "RowKey": "hello", "Tags": "a"}
    world = await World(memory, POSTS).prepare([broken])
    with pytest.raises(RowRefused) as refused:
        await world.propagator.propagate(HELLO)
    assert refused.value.row_id == world.mapping.rows.ids.short("Posts", HELLO)
    assert "hello" not in str(refused.value)
    assert memory.dump("PostsV2") == memory.dump("rekeymap") == []


async def test_a_target_row_exists_only_after_its_mapping_rows(memory: MemoryTableService) -> None:
    """The invariant "a target row always has a mapping row", looked at before every single effect."""
    world = await World(memory, POSTS).prepare([post("hello")])

    async def look(_call: Call) -> None:
        assert world.unaccounted() == []

    memory.gate = look
    await world.propagator.propagate(HELLO)
    await world.source.replace(post("hello", "2024-02"))
    await world.propagator.propagate(HELLO)


async def test_a_slow_propagate_does_not_bring_an_older_state_back(memory: MemoryTableService) -> None:
    """Between its reading of the authority and its write, the row changes and another propagate runs: the
    slow one's condition fails and it looks again. (Unconditional writes lose here.)"""
    world = await World(memory, USERS).prepare([user("ann@example.com")])
    await world.propagator.propagate(ANN)
    await world.source.merge({"PartitionKey": "eu", "RowKey": ANN.row, "Nm": "second"})

    async def change_again() -> None:
        await world.source.merge({"PartitionKey": "eu", "RowKey": ANN.row, "Nm": "third"})
        await world.propagator.propagate(ANN)

    change = before(memory, "replace", "UsersV2", change_again)
    await world.propagator.propagate(ANN)
    assert change.happened
    world.assert_in_step()


async def test_a_row_deleted_while_it_is_inserted_does_not_stay(memory: MemoryTableService) -> None:
    """Absence is no version: after an insert-if-absent the authority is read again."""
    world = await World(memory, USERS).prepare([user("ann@example.com")])
    deletion = before(memory, "insert", "UsersV2", lambda: world.source.delete(ANN))
    await world.propagator.propagate(ANN)
    assert deletion.happened
    assert memory.dump("UsersV2") == []


def test_keys_of_the_world_are_as_the_scenarios_say() -> None:
    assert key_of(user("ann@example.com")) == ANN
    assert key_of(post("hello")) == HELLO
