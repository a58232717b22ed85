"""Computed properties through a whole life: they follow what they are computed from, in both views."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace as with_fields
from pathlib import Path

import pytest

from rekey import keys, props
from rekey.errors import RowRefused
from rekey.model import Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from tests.asserts.command_line import CommandsOn
from tests.fakes.memory import MemoryTableService
from tests.worlds.dual_write import DualWorld, delete, insert, memory_world, merge, replace
from tests.worlds.projects import USERS_SCRIPT, project_of
from tests.worlds.small import USERS, user

ANN = user("Ann@Example.com", Age=1)
COMPUTED = with_fields(
    USERS,
    target=with_fields(
        USERS.target,
        properties=[*USERS.target.properties, props.compute("Search", keys.lower(keys.prop("Nm")))],
    ),
)
SCRIPT = USERS_SCRIPT.replace(
    'props.drop("Ssn")',
    'props.drop("Ssn"), props.compute("Search", keys.lower("Nm")),'
    ' props.compute("Digest", keys.hashed("sha256", "RowKey"))',
)


def target_row(world: DualWorld, source_row: Row) -> Row:
    """What an application of the new view writes for a source row."""
    return world.mapper.map(source_row)[0].row


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_a_computed_property_follows_writes_of_both_views(
    memory: MemoryTableService, phase: ControlPhase
) -> None:
    world = await memory_world(COMPUTED, memory).prepare([ANN])
    world.permits.move(phase)
    old, new = world.writer(View.OLD), world.writer(View.NEW, "c2")
    await old.write([merge({**ANN, "Nm": "ANNA"})])
    await world.assert_quiet()
    [row] = memory.dump("UsersV2")
    assert row["Search"] == "anna"
    await new.write([replace({**target_row(world, ANN), "Name": "Anne", "Search": "anne"})])
    await new.write([insert(target_row(world, user("Bob@Example.com")))])
    await world.assert_quiet()
    assert sorted(row["Nm"] for row in memory.dump("Users")) == ["Anne", "Bob"]
    await old.write([delete(key_of(ANN))])
    await world.assert_quiet()
    assert [row["Search"] for row in memory.dump("UsersV2")] == ["bob"]


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_a_write_of_the_new_view_that_computes_otherwise_is_refused(
    memory: MemoryTableService, phase: ControlPhase
) -> None:
    world = await memory_world(COMPUTED, memory).prepare([ANN])
    world.permits.move(phase)
    with pytest.raises(RowRefused) as refused:
        await world.writer(View.NEW).write([replace({**target_row(world, ANN), "Name": "Anne"})])
    assert (refused.value.code, "Search" in refused.value.problem) == ("not-reversible", True)
    await world.assert_quiet()


def independently(row: Row) -> Row:
    """What a row becomes, without the mapper."""
    email = str(row["RowKey"])
    digest = hashlib.sha256(email.encode()).hexdigest()
    return {"Name": row["Nm"], "ContactEmail": email, "Search": str(row["Nm"]).lower(), "Digest": digest}


def test_computed_properties_are_right_through_a_whole_life(commands_on: CommandsOn, tmp_path: Path) -> None:
    project = project_of(tmp_path, SCRIPT, [user(f"User{number}@Example.com") for number in range(30)])
    rekey = commands_on(project)

    def compare() -> None:
        rows = [
            {name: row[name] for name in ("Name", "ContactEmail", "Search", "Digest")}
            for row in project.rows("UsersV2")
        ]
        wanted = map(independently, project.rows("Users"))
        assert sorted(rows, key=str) == sorted(wanted, key=str)

    rekey("apply")
    compare()
    rekey("apply", "--to", "cutover", "--writers-stopped")
    changed = {**project.rows("UsersV2")[0], "Name": "OTHER", "Search": "other"}
    asyncio.run(project.tables.table("UsersV2").upsert(changed))
    rekey("rollback", "--writers-stopped")
    assert "OTHER" in {row["Nm"] for row in project.rows("Users")}
    compare()
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", "0001_users")
    compare()


def test_a_row_that_the_application_computes_otherwise_keeps_the_way_back_closed(
    commands_on: CommandsOn, tmp_path: Path
) -> None:
    project = project_of(tmp_path, SCRIPT, [user("Ann@Example.com")])
    rekey = commands_on(project)
    rekey("apply", "--to", "cutover", "--writers-stopped")
    [row] = project.rows("UsersV2")
    asyncio.run(project.tables.table("UsersV2").upsert({**row, "Name": "other"}))
    refused = rekey("rollback", "--writers-stopped", code=3)
    assert "Search" in refused.err
    assert "Ann" not in refused.err
