"""Other migrations of the rows that clients write, and from when on these may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rekey.errors import StateUnusable
from rekey.mapping.rows import CONTROL_TABLE
from rekey.phases import ControlPhase as P
from rekey.protocol.control import ControlRow, ControlStore, Maintainer
from rekey.protocol.other_migrations import OtherMigration, add_other, others_of
from rekey.protocol.rules import View
from tests.fakes.memory import MemoryTableService

FIRST, SECOND = "0001_first", "0002_second"
NOON, LATER = "2024-01-01T12:00:00.0000000Z", "2024-01-01T13:00:00.0000000Z"


def control(phase: P, script_id: str = SECOND, **more: object) -> ControlRow:
    row = ControlRow(script_id, phase, 1, "run", "digest", "UsersV2", ("UsersV3",), {}, id_key=bytes(32))
    return replace(row, **more)  # type: ignore[arg-type]


OWN = control(P.COMPLETE, FIRST, completed_at=NOON)


def other(capture: str, now: ControlRow | None, *, is_next: bool) -> OtherMigration:
    return OtherMigration(SECOND, "", capture, is_next, "run", now)


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
def test_what_the_next_migration_closes_to_clients_of_the_new_view(
    phase: P, came_from: P | None, dual_write: str, delta: str
) -> None:
    now = control(phase, came_from=came_from, completed_at=LATER)
    for capture, closed in (("dual-write", dual_write), ("delta", delta)):
        following = other(capture, now, is_next=True)
        assert following.closes(OWN, View.NEW) is (closed != ""), capture
        assert following.closes(OWN, View.NEW, reads=True) is (closed == "both"), capture
        assert not following.closes(OWN, View.OLD), "they write the source of their own"
        assert not following.closes(control(P.CUTOVER, FIRST), View.NEW), "it cannot have begun"


@pytest.mark.parametrize(
    ("phase", "dual_write", "delta"),
    [
        (P.SOURCE, False, False),
        (P.DUAL_WRITE, True, False),
        (P.FREEZE, True, True),
        (P.CUTOVER, True, True),
        (P.COMPLETE, False, False),
        (P.RETIRED, False, False),
    ],
)
@pytest.mark.parametrize("view", list(View))
@pytest.mark.parametrize("own", [None, control(P.DUAL_WRITE, FIRST)], ids=["not begun", "begun"])
def test_what_a_migration_of_the_same_rows_closes(
    phase: P, dual_write: bool, delta: bool, view: View, own: ControlRow | None
) -> None:
    now = control(phase, completed_at=LATER)
    assert other("dual-write", now, is_next=False).closes(own, view) is dual_write
    assert other("delta", now, is_next=False).closes(own, view) is delta
    assert not other("dual-write", now, is_next=False).closes(own, view, reads=True)


def test_one_that_never_began_or_ended_before_closes_nothing() -> None:
    assert not other("dual-write", None, is_next=True).closes(OWN, View.NEW)
    ended = control(P.RETIRED, completed_at="2024-01-01T11:00:00.0000000Z")
    assert not other("dual-write", ended, is_next=True).closes(OWN, View.NEW)


@pytest.mark.parametrize("is_next", [True, False])
def test_one_that_was_begun_again_closes_nothing_until_it_is_recorded_again(is_next: bool) -> None:
    """Its script may name other tables by then."""
    now, view = control(P.CUTOVER), View.NEW if is_next else View.OLD
    own = OWN if is_next else None
    assert other("dual-write", now, is_next=is_next).closes(own, view)
    assert not other("dual-write", replace(now, run_id="later"), is_next=is_next).closes(own, view)


@pytest.mark.parametrize("phase", [P.COMPLETE, P.RETIRED])
def test_a_migration_of_the_same_rows_does_not_close_the_new_table_of_one_that_is_over(phase: P) -> None:
    now = other("dual-write", control(P.DUAL_WRITE), is_next=False)
    assert not now.closes(replace(OWN, phase=phase), View.NEW)
    assert now.closes(replace(OWN, phase=phase), View.OLD)
    assert now.closes(replace(OWN, maintainer=Maintainer.CLIENTS), View.NEW), "the source follows its writes"


@pytest.mark.asyncio
async def test_other_migrations_are_read_with_the_control_rows_of_their_groups(
    service: MemoryTableService,
) -> None:
    grouped = ControlStore(service, SECOND, "billing")
    await grouped.create(control(P.SOURCE, group="billing"))
    third_one = OtherMigration("0003_third", capture="dual-write", is_next=True)
    for each in (OtherMigration(SECOND, "billing", "delta", run_id="run"), third_one):
        await add_other(service, FIRST, each)
        await add_other(service, FIRST, each)
    second, third = await others_of(ControlStore(service, FIRST))
    assert (second.script_id, second.group, second.capture, second.is_next, second.run_id) == (
        SECOND, "billing", "delta", False, "run",
    )  # fmt: skip
    assert second.control == await grouped.read()
    assert second.control is not None
    assert third == third_one
    assert await others_of(ControlStore(service, SECOND)) == []


@pytest.mark.asyncio
async def test_a_row_that_cannot_be_read_is_an_error(service: MemoryTableService) -> None:
    await service.create_table(CONTROL_TABLE)
    await service.table(CONTROL_TABLE).insert({"PartitionKey": FIRST, "RowKey": f"other.{SECOND}"})
    with pytest.raises(StateUnusable, match=f"the row of {SECOND} beside the control row of {FIRST}"):
        await others_of(ControlStore(service, FIRST))


@pytest.fixture
def service() -> MemoryTableService:
    return MemoryTableService()
