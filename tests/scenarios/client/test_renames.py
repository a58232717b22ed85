"""A row is moved by deleting it and creating it under another key in one transaction: in both views, before
cutover and after it, also where both rows have the same key on the other side."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from rekey import Index, Migration, Target, keys, props
from rekey.errors import Ambiguous, Collision, RequestRejected, Unavailable
from rekey.model import Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from tests.fakes.faults import Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.memory import MemoryTableService
from tests.worlds.dual_write import DualWorld, delete, insert, memory_world
from tests.worlds.small import LOWERED, RACES, racer, user

BY_MAIL = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.literal("all"),
        row_key=keys.prop("Mail"),
        properties=[props.copy("PartitionKey", to="Tenant"), props.copy("RowKey", to="Id")],
    ),
    indexes=[
        Index("UsersByTeam", partition_key=keys.prop("PartitionKey"), row_key=keys.prop("Team")),
    ],
    capture="dual-write",
)
"""The source's key is not part of the target's: a row that is renamed keeps its target key."""
ROW: Row = {"PartitionKey": "p", "RowKey": "r1", "Mail": "m", "Team": "t"}
RENAMED = {**ROW, "RowKey": "r2"}
PHASES = [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER]

Call = tuple[str, Row]
OLD: dict[str, tuple[Migration, list[Row], list[Call]]] = {
    "same target key": (BY_MAIL, [ROW], [("delete", ROW), ("insert", RENAMED)]),
    "insert first": (BY_MAIL, [ROW], [("insert", RENAMED), ("delete", ROW)]),
    "same index key": (BY_MAIL, [ROW], [("delete", ROW), ("insert", {**RENAMED, "Mail": "n"})]),
    "folded": (LOWERED, [user("Ann@x")], [("delete", user("Ann@x")), ("insert", user("ann@x"))]),
    "secondary rows": (RACES, [racer("1", 20)], [("delete", racer("1", 20)), ("insert", racer("2", 20))]),
}
NEW: dict[str, tuple[Migration, list[Row], list[Call]]] = {
    "same old key": (BY_MAIL, [ROW], [("delete", ROW), ("insert", {**ROW, "Mail": "n"})]),
    "same old key, insert first": (BY_MAIL, [ROW], [("insert", {**ROW, "Mail": "n"}), ("delete", ROW)]),
    "secondary rows": (RACES, [racer("1", 20)], [("delete", racer("1", 20)), ("insert", racer("2", 20))]),
}


async def world_in(
    memory: MemoryTableService, phase: ControlPhase, migration: Migration, rows: Sequence[Row]
) -> DualWorld:
    world = await memory_world(migration, memory).prepare(rows)
    if phase is ControlPhase.CUTOVER:
        world.permits.move(phase)
    return world


async def moved(world: DualWorld, view: View, calls: Sequence[Call]) -> None:
    """Make the transaction in a view; rows are given as source rows."""
    rows = [row if view is View.OLD else dict(world.mapper.map(row)[0].row) for _, row in calls]
    await world.writer(view).write(
        [
            delete(key_of(row)) if what == "delete" else insert(row)
            for (what, _), row in zip(calls, rows, strict=True)
        ]
    )


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("case", OLD)
async def test_rename_in_old_view(memory: MemoryTableService, phase: ControlPhase, case: str) -> None:
    migration, rows, calls = OLD[case]
    world = await world_in(memory, phase, migration, rows)
    await moved(world, View.OLD, calls)
    await world.assert_quiet()
    created = next(row for what, row in calls if what == "insert")
    assert [key_of(row) for row in memory.dump(migration.source)] == [key_of(created)]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("case", NEW)
async def test_rename_in_new_view(memory: MemoryTableService, phase: ControlPhase, case: str) -> None:
    migration, rows, calls = NEW[case]
    world = await world_in(memory, phase, migration, rows)
    await moved(world, View.NEW, calls)
    await world.assert_quiet()
    assert len(memory.dump(migration.source)) == 1


@pytest.mark.parametrize("phase", PHASES)
async def test_a_failed_move_leaves_the_target_key(memory: MemoryTableService, phase: ControlPhase) -> None:
    world = await world_in(memory, phase, BY_MAIL, [ROW])
    table = "Users" if phase is ControlPhase.DUAL_WRITE else "UsersV2"
    memory.faults = PlannedFaults(Planned(Fault(FaultKind.BUSY), table=table, times=1, action="transact"))
    if phase is ControlPhase.CUTOVER:
        memory.faults = PlannedFaults(Planned(Fault(FaultKind.BUSY), table=table, times=1, action="replace"))
    with pytest.raises(Unavailable):
        await moved(world, View.OLD, OLD["same target key"][2])
    memory.faults = PlannedFaults()
    await world.assert_quiet()
    owner = await world.mapping.owner(key_of(world.mapper.map(ROW)[0].row))
    assert owner.source == key_of(ROW)


@pytest.mark.parametrize("fault", [FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("case", ["same target key", "same index key", "folded"])
async def test_a_move_whose_answer_is_lost_is_done_or_told_as_open(
    memory: MemoryTableService, phase: ControlPhase, case: str, fault: FaultKind
) -> None:
    migration, rows, calls = OLD[case]
    world = await world_in(memory, phase, migration, rows)
    table = world.mapper.tables[0] if phase is ControlPhase.CUTOVER else migration.source
    memory.faults = PlannedFaults(
        *(Planned(Fault(fault), table=table, action=action) for action in ("transact", "replace"))
    )
    with suppress(Ambiguous):
        await moved(world, View.OLD, calls)
    memory.faults = PlannedFaults()
    await world.sweep("target" if phase is ControlPhase.CUTOVER else "source")
    await world.assert_quiet()
    assert len(memory.dump(migration.source)) == 1


async def test_a_key_of_a_row_that_stays_does_not_pass_on(memory: MemoryTableService) -> None:
    other = {**ROW, "RowKey": "r9", "Mail": "other", "Team": "u"}
    world = await world_in(memory, ControlPhase.DUAL_WRITE, BY_MAIL, [ROW, other])
    with pytest.raises(Collision):
        await moved(world, View.OLD, [("delete", other), ("insert", RENAMED)])
    await world.assert_quiet()
    assert len(memory.dump("Users")) == 2


async def test_two_rows_that_would_be_one_in_the_authority_are_refused(memory: MemoryTableService) -> None:
    world = await world_in(memory, ControlPhase.CUTOVER, LOWERED, [])
    with pytest.raises((Collision, RequestRejected)):
        await moved(world, View.OLD, [("insert", user("Ann@x")), ("insert", user("ann@x"))])
    await world.assert_quiet()
    assert memory.dump("Users") == []
