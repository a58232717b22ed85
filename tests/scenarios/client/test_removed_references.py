"""References in whose place only the source holds the old key (`keep_old=False`), through clients of both
views: what is new is looked up before anything is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rekey.client.parts import Acknowledge
from rekey.errors import RowRefused, Unavailable
from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import EntityKey, Row, content_of
from rekey.phases import ControlPhase
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import View
from rekey.protocol.sweeper import Sweeper
from rekey.tables.base import Operation
from tests.fakes.faults import Call, Fault, FaultKind, Faults, NoFaults
from tests.fakes.memory import MemoryTableService
from tests.worlds.dual_write import DualWorld, delete, insert, memory_world, merge, replace, upsert
from tests.worlds.referring import (
    ANN,
    GHOST,
    ORDERS,
    USERS_ID,
    ZED,
    map_user,
    old_references_in,
    order,
    user_row,
)

KEY = EntityKey("eu", "1")


async def shop(memory: MemoryTableService, phase: ControlPhase, *rows: Row) -> DualWorld:
    """Return a world of orders in a phase, beside users of whom `ann` is mapped."""
    world = memory_world(ORDERS, memory)
    world.propagator.references = old_references_in(memory)
    world.sweeper = Sweeper(world.journal, ReversePropagator(world.propagator))
    await memory.create_table("UsersV2")
    await world.prepare(rows)
    await map_user(memory, ANN)
    world.permits.move(phase)
    return world


def new_row(world: DualWorld, row: Row) -> Row:
    return content_of(world.mapper.map(row)[0].row)


def source(memory: MemoryTableService) -> list[Row]:
    return [content_of(row) for row in memory.dump("Orders")]


class Unreachable(Faults):
    """Calls that find no connection."""

    def __init__(self, matches: Callable[[Call], bool]) -> None:
        self._matches = matches

    def decide(self, call: Call) -> Fault | None:
        return Fault(FaultKind.NOT_SENT) if self._matches(call) else None


BOTH_PHASES = pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])


@BOTH_PHASES
async def test_the_source_gets_the_old_reference_of_each_write_in_the_new_view(
    memory: MemoryTableService, phase: ControlPhase
) -> None:
    world = await shop(memory, phase, order(1, GHOST))
    writer = world.writer(View.NEW)
    await writer.write([insert(new_row(world, order(1, ANN, "2")))])
    assert source(memory)[1] == order(1, ANN, "2")
    await writer.write([replace(new_row(world, order(2, ANN)))])
    assert source(memory)[0] == order(2, ANN)
    await writer.write([upsert(new_row(world, order(3, None)))])
    assert source(memory)[0] == order(3, None)
    await writer.write([merge(new_row(world, order(4, ANN)))])
    assert source(memory)[0] == order(4, ANN)
    await world.assert_quiet()


@BOTH_PHASES
@pytest.mark.parametrize("operation", [replace, upsert, merge], ids=["replace", "upsert", "merge"])
async def test_an_unchanged_reference_to_nobody_stays(
    memory: MemoryTableService, phase: ControlPhase, operation: object
) -> None:
    world = await shop(memory, phase, order(1, GHOST))
    await world.writer(View.NEW).write([operation(new_row(world, order(2, GHOST)))])  # type: ignore[operator]
    await world.assert_quiet()
    assert source(memory) == [order(2, GHOST)]


@BOTH_PHASES
async def test_a_new_reference_to_nobody_is_refused_in_the_new_view(
    memory: MemoryTableService, phase: ControlPhase
) -> None:
    world = await shop(memory, phase, order(1, ANN))
    writer = world.writer(View.NEW)
    before = source(memory), world.rows("OrdersV2")
    for operation in (
        insert(new_row(world, order(1, GHOST, "2"))),
        replace(new_row(world, order(2, GHOST))),
        upsert(new_row(world, order(2, GHOST))),
        merge(new_row(world, order(2, GHOST))),
    ):
        with pytest.raises(RowRefused) as refused:
            await writer.write([operation])
        assert refused.value.code == "no-old-reference" and refused.value.row_id
        assert "@" not in str(refused.value)
    assert (source(memory), world.rows("OrdersV2")) == before
    await world.assert_quiet()


async def test_a_new_reference_to_nobody_is_refused_in_the_old_view_after_cutover(
    memory: MemoryTableService,
) -> None:
    world = await shop(memory, ControlPhase.DUAL_WRITE, order(1, ANN))
    writer = world.writer(View.OLD)
    await writer.write([insert(order(1, GHOST, "2"))])  # the source is the authority
    world.permits.move(ControlPhase.CUTOVER)
    for operation in (insert(order(1, ZED, "3")), replace(order(2, ZED)), upsert(order(2, ZED))):
        with pytest.raises(RowRefused) as refused:
            await writer.write([operation])
        assert refused.value.code == "no-old-reference"
    await writer.write([replace(order(2, GHOST, "2"))])
    await map_user(memory, ZED)
    await writer.write([replace(order(3, ZED))])
    await world.assert_quiet()
    assert source(memory) == [order(3, ZED), order(2, GHOST, "2")]


@pytest.mark.parametrize("view", [View.OLD, View.NEW])
async def test_what_a_killed_client_wrote_is_settled_by_looking_up(
    memory: MemoryTableService, view: View
) -> None:
    world = await shop(memory, ControlPhase.CUTOVER)
    row = order(1, ANN)
    writer = world.writer(view, acknowledge=Acknowledge.AUTHORITY)
    memory.faults = Unreachable(lambda call: call.writes and call.table == "Orders")
    await writer.write([insert(row if view is View.OLD else new_row(world, row))])
    await world.close()
    assert source(memory) == [] and world.intents
    memory.faults = NoFaults()
    await world.sweep("target")
    assert source(memory) == [row]
    world.assert_in_step()


async def test_nothing_is_written_while_the_restricted_account_cannot_be_read(
    memory: MemoryTableService,
) -> None:
    world = await shop(memory, ControlPhase.CUTOVER, order(1, GHOST))

    memory.faults = Unreachable(
        lambda call: call.table == MAPPING_TABLE and (call.read or "").startswith(USERS_ID)
    )
    before = source(memory), world.rows("OrdersV2")
    for view, row in ((View.NEW, new_row(world, order(2, ANN))), (View.OLD, order(2, ANN))):
        with pytest.raises(Unavailable, match="nothing was written"):
            await world.writer(view).write([replace(row)])
    assert (source(memory), world.rows("OrdersV2")) == before
    # What needs no look-up goes on.
    await world.writer(View.NEW).write([replace(new_row(world, order(3, GHOST)))])
    memory.faults = NoFaults()
    await world.assert_quiet()
    assert source(memory) == [order(3, GHOST)]


async def test_a_user_of_the_new_table_says_its_old_key_itself(memory: MemoryTableService) -> None:
    world = await shop(memory, ControlPhase.CUTOVER)
    await memory.table("UsersV2").insert(user_row(ZED))
    await world.writer(View.NEW).write([insert(new_row(world, order(1, ZED)))])
    await world.assert_quiet()
    assert source(memory) == [order(1, ZED)]


async def test_an_old_key_that_was_looked_up_is_remembered_for_a_minute(
    memory: MemoryTableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await shop(memory, ControlPhase.CUTOVER)
    writer = world.writer(View.NEW)
    await writer.write([insert(new_row(world, order(1, ANN)))])
    for row in memory.dump(MAPPING_TABLE):
        if row["PartitionKey"].startswith(USERS_ID):
            await memory.table(MAPPING_TABLE).delete(EntityKey(row["PartitionKey"], row["RowKey"]))
    await writer.write([insert(new_row(world, order(1, ANN, "2")))])
    monkeypatch.setattr("rekey.protocol.references.REMEMBERED_S", 0.0)
    with pytest.raises(RowRefused):
        await writer.write([insert(new_row(world, order(1, ANN, "3")))])
    await world.assert_quiet()


async def test_a_deleted_row_does_not_come_back_with_a_reference_to_nobody(
    memory: MemoryTableService,
) -> None:
    world = await shop(memory, ControlPhase.CUTOVER, order(1, GHOST))
    writer = world.writer(View.NEW)
    row = new_row(world, order(1, GHOST))
    operations: list[Operation] = [delete(KEY)]
    await writer.write(operations)
    with pytest.raises(RowRefused):
        await writer.write([insert(row)])
    await world.assert_quiet()
    assert source(memory) == []
