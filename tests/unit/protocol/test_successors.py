"""Which migrations move on what another one has filled, and from when on that closes its table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rekey.errors import StateUnusable
from rekey.mapping.rows import CONTROL_TABLE
from rekey.phases import ControlPhase as P
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.successors import Successor, add_successor, successors_of
from tests.fakes.memory import MemoryTableService

FIRST, SECOND = "0001_first", "0002_second"
NOON, LATER = "2024-01-01T12:00:00.0000000Z", "2024-01-01T13:00:00.0000000Z"


def control(phase: P, script_id: str = SECOND, **more: object) -> ControlRow:
    row = ControlRow(script_id, phase, 1, "run", "digest", "UsersV2", ("UsersV3",), {}, id_key=bytes(32))
    return replace(row, **more)  # type: ignore[arg-type]


BEFORE = control(P.COMPLETE, FIRST, completed_at=NOON)


@pytest.mark.parametrize(
    ("phase", "came_from", "dual_write", "delta"),
    [
        (P.SOURCE, None, "", ""),
        (P.DUAL_WRITE, None, "writes", ""),
        (P.FREEZE, P.DUAL_WRITE, "writes", "writes"),
        (P.FREEZE, P.CUTOVER, "both", "both"),
        (P.CUTOVER, None, "both", "both"),
        (P.COMPLETE, None, "both", "both"),
        (P.RETIRED, None, "both", "both"),
    ],
)
def test_what_a_successor_closes(phase: P, came_from: P | None, dual_write: str, delta: str) -> None:
    now = control(phase, came_from=came_from, completed_at=LATER)
    for capture, closed in (("dual-write", dual_write), ("delta", delta)):
        successor = Successor(SECOND, capture=capture, control=now)
        assert successor.closes(BEFORE, reads=False) is (closed != ""), capture
        assert successor.closes(BEFORE, reads=True) is (closed == "both"), capture


def test_one_that_never_began_or_ended_before_closes_nothing() -> None:
    assert not Successor(SECOND, capture="dual-write").closes(BEFORE, reads=False)
    ended = control(P.RETIRED, completed_at="2024-01-01T11:00:00.0000000Z")
    assert not Successor(SECOND, capture="dual-write", control=ended).closes(BEFORE, reads=False)


@pytest.mark.asyncio
async def test_successors_are_read_with_the_control_rows_of_their_groups(service: MemoryTableService) -> None:
    grouped = ControlStore(service, SECOND, "billing")
    await grouped.create(control(P.SOURCE, group="billing"))
    for successor in (Successor(SECOND, "billing", "delta"), Successor("0003_third", capture="dual-write")):
        await add_successor(service, FIRST, successor)
        await add_successor(service, FIRST, successor)
    second, third = await successors_of(ControlStore(service, FIRST))
    assert (second.script_id, second.group, second.capture) == (SECOND, "billing", "delta")
    assert second.control == await grouped.read()
    assert second.control is not None
    assert (third.script_id, third.group, third.capture, third.control) == (
        "0003_third",
        "",
        "dual-write",
        None,
    )
    assert await successors_of(ControlStore(service, SECOND)) == []


@pytest.mark.asyncio
async def test_a_row_that_cannot_be_read_is_an_error(service: MemoryTableService) -> None:
    await service.create_table(CONTROL_TABLE)
    await service.table(CONTROL_TABLE).insert({"PartitionKey": FIRST, "RowKey": f"next.{SECOND}"})
    with pytest.raises(StateUnusable, match=f"the row of {SECOND} beside the control row of {FIRST}"):
        await successors_of(ControlStore(service, FIRST))


@pytest.fixture
def service() -> MemoryTableService:
    return MemoryTableService()
