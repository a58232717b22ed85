"""Rows of the mapping that somebody deleted after cutover: the row of the old key is neither taken for one
that is gone, nor left without its replicas."""

from __future__ import annotations

import pytest

from rekey.declaration.migration import Migration
from rekey.model import Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from rekey.tables.base import Operation
from tests.fakes.memory import MemoryTableService
from tests.scenarios.client.test_renames import BY_MAIL, RENAMED, ROW
from tests.worlds.dual_write import DualWorld, delete, insert, memory_world, merge, replace
from tests.worlds.small import DROPPING, LOWERED, USERS, ticket, user

WORLDS: dict[str, tuple[Migration, Row]] = {
    "keys that say no old key": (USERS, user("ann@example.com")),
    "rows that name their old key": (BY_MAIL, ROW),
}
LOST = ["forward", "reverse", "both"]
WRITES = {
    "replace": lambda row: replace({**row, "Note": "new"}),
    "merge": lambda row: merge({**row, "Note": "new"}),
    "delete": lambda row: delete(key_of(row)),
}


async def lose(world: DualWorld, row: Row, lost: str) -> None:
    """Delete mapping rows of a source row."""
    rows, table = world.mapping.rows, world.mapping.table
    if lost != "reverse":
        await table.delete(rows.forward_key(key_of(row)))
    if lost != "forward":
        await table.delete(rows.reverse_key(key_of(world.mapper.map(row)[0].row)))


async def cut_over(memory: MemoryTableService, migration: Migration, row: Row) -> DualWorld:
    world = await memory_world(migration, memory).prepare([row])
    world.permits.move(ControlPhase.CUTOVER)
    return world


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", WORLDS)
async def test_a_write_in_the_old_view_finds_its_row_and_maps_it_again(
    memory: MemoryTableService, kind: str, write: str, lost: str
) -> None:
    migration, row = WORLDS[kind]
    world = await cut_over(memory, migration, row)
    await lose(world, row, lost)
    operation: Operation = WRITES[write](row)
    await world.writer(View.OLD).write([operation])
    await world.sweep("target")
    await world.assert_quiet()
    [note] = {row.get("Note") for row in world.rows("Users").values()} or {"none"}
    assert note == ("none" if write == "delete" else "new")
    if write != "delete":
        assert (await world.mapping.forward(key_of(row))) is not None
        assert await world.propagator.is_owner(key_of(row), key_of(world.mapper.map(row)[0].row))


@pytest.mark.parametrize("kind", WORLDS)
async def test_a_delete_in_the_new_view_of_a_row_without_a_claim_takes_the_source_row_along(
    memory: MemoryTableService, kind: str
) -> None:
    """It would be back after a rollback."""
    migration, row = WORLDS[kind]
    world = await cut_over(memory, migration, row)
    await lose(world, row, "reverse")
    await world.writer(View.NEW).write([delete(key_of(world.mapper.map(row)[0].row))])
    await world.sweep("target")
    await world.assert_quiet()
    assert world.rows("Users") == {}


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("kind", WORLDS)
async def test_settling_deletes_no_replica_of_a_row_that_exists(
    memory: MemoryTableService, kind: str, lost: str
) -> None:
    migration, row = WORLDS[kind]
    world = await cut_over(memory, migration, row)
    await lose(world, row, lost)
    await world.journal.begin("dead", 2, "source", [key_of(row)])
    await world.sweep("target")
    await world.assert_quiet()
    assert world.rows("Users") == {key_of(row): row}


async def test_a_source_row_that_was_written_past_the_client_is_not_mapped(
    memory: MemoryTableService,
) -> None:
    """Nor is it deleted: its key was never claimed."""
    world = await cut_over(memory, USERS, user("ann@example.com"))
    stray = user("bob@example.com")
    await world.source.insert(stray)
    await world.journal.begin("dead", 2, "source", [key_of(stray)])
    await world.sweep("target")
    assert key_of(stray) in world.rows("Users")
    assert await world.mapping.forward(key_of(stray)) is None


async def test_a_source_row_that_no_kind_takes_stays_as_it_is(memory: MemoryTableService) -> None:
    draft = ticket("1", "draft")
    world = await cut_over(memory, DROPPING, draft)
    await world.journal.begin("dead", 2, "source", [key_of(draft)])
    await world.sweep("target")
    assert list(world.rows("Tickets")) == [key_of(draft)]


PASSED: dict[str, tuple[Migration, Row, Row]] = {
    "folded": (LOWERED, user("Ann@x"), user("ann@x")),
    "renamed": (BY_MAIL, ROW, RENAMED),
}


@pytest.mark.parametrize("first", ["the former owner", "the owner"])
@pytest.mark.parametrize("kind", PASSED)
async def test_a_claim_that_was_lost_after_it_passed_on_goes_to_the_key_that_the_row_names(
    memory: MemoryTableService, kind: str, first: str
) -> None:
    migration, former, row = PASSED[kind]
    world = await cut_over(memory, migration, former)
    writer = world.writer(View.OLD)
    await writer.write([delete(key_of(former))])
    await writer.write([insert(row)])
    await lose(world, row, "reverse")
    settled = former if first == "the former owner" else row
    await world.journal.begin("dead", 2, "source", [key_of(settled)])
    await world.sweep("target")
    await world.assert_quiet()
    assert list(world.rows("Users")) == [key_of(row)]
    assert not await world.propagator.is_owner(key_of(former), key_of(world.mapper.map(row)[0].row))
