"""The control row: moves are legal, one at a time, and known to have happened or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rekey.errors import Ambiguous, Moved, Refused, StateUnusable, Unavailable
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import content_of
from rekey.phases import MOVES, ControlPhase
from rekey.protocol.control import ControlRow, ControlStore, Maintainer, from_row, moved, to_row
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call, Fault, FaultKind
from tests.fakes.interference import before
from tests.fakes.memory import MemoryTableService

SOURCE, DUAL_WRITE, FREEZE, CUTOVER, COMPLETE, RETIRED = ControlPhase

NEW = ControlRow(
    script_id="0001_users",
    phase=SOURCE,
    epoch=1,
    run_id="run-1",
    digest="d1",
    source="Users",
    targets=("UsersV2", "UsersByTag"),
    fingerprints={"users": "f1"},
    id_key=bytes(range(32)),
)


class OnWrite:
    """The next write of the control row goes wrong in this way."""

    def __init__(self) -> None:
        self.kind: FaultKind | None = None

    def decide(self, call: Call) -> Fault | None:
        if self.kind is None or not call.writes:
            return None
        kind, self.kind = self.kind, None
        return Fault(kind)


@pytest.fixture
def faults() -> OnWrite:
    return OnWrite()


@pytest.fixture
def service(clock: FakeClock, faults: OnWrite) -> MemoryTableService:
    return MemoryTableService(clock=clock, faults=faults)


@pytest.fixture
def store(service: MemoryTableService) -> ControlStore:
    return ControlStore(service, "0001_users")


async def move_along(store: ControlStore, *phases: ControlPhase) -> ControlRow:
    row = await store.create(NEW)
    for phase in phases:
        row = await store.move(row.phase, phase)
    return row


def test_a_row_survives_the_wire() -> None:
    full = replace(
        NEW,
        phase=FREEZE,
        epoch=2**53 + 1,
        copied=True,
        came_from=CUTOVER,
        frozen_at="2024-01-01T00:00:00.1234567Z",
        cutover_at="2024-01-01T00:00:01.0000000Z",
        completed_at="2024-01-01T00:00:02.0000000Z",
        updated_at="2024-01-01T00:00:03.0000000Z",
        move_id="m",
        change_id="c",
        maintainer=Maintainer.APPLICATION,
        handed_over_at="2024-01-01T00:00:04.0000000Z",
        etag="e",
    )
    assert from_row({**to_row(full), "odata.etag": "e"}) == full
    assert from_row(to_row(NEW)) == NEW
    assert to_row(full)["Epoch"] == "9007199254740993", "Int64 goes as text, beyond what a double holds"


def test_no_repr_shows_the_key_of_the_safe_ids() -> None:
    assert repr(NEW.id_key) not in repr(NEW)
    assert "id_key" not in repr(NEW)


@pytest.mark.parametrize(
    "change",
    [{"Format": 3}, {"Phase": "limbo"}, {"Epoch": "x"}, {"IdKey": "?"}, {"Targets": "["}, {"CameFrom": "x"}],
)
def test_a_row_of_a_newer_program_or_somebody_else_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(StateUnusable, match="cannot be read"):
        from_row({**to_row(NEW), **change})


def test_only_the_moves_of_the_table_are_made() -> None:
    for now in ControlPhase:
        for then in ControlPhase:
            row = replace(NEW, phase=now)
            if then in MOVES[now]:
                assert moved(row, then, at="t", move_id="m").epoch == 2
            else:
                with pytest.raises(Refused, match=f"from `{now}` to `{then}`"):
                    moved(row, then, at="t", move_id="m")


async def test_there_is_nothing_before_the_row_is_made(store: ControlStore) -> None:
    assert await store.read() is None
    with pytest.raises(Moved, match="gone"):
        await store.move(SOURCE, DUAL_WRITE)


async def test_the_row_is_made_once_and_then_found(store: ControlStore, service: MemoryTableService) -> None:
    made = await store.create(NEW)
    assert (made.phase, made.epoch, made.id_key) == (SOURCE, 1, NEW.id_key)
    assert await store.create(replace(NEW, run_id="run-2", id_key=b"x" * 32)) == made
    assert await store.read() == made
    assert len(service.dump(CONTROL_TABLE)) == 1


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.TIMED_OUT])
async def test_a_lost_insert_is_settled(store: ControlStore, faults: OnWrite, kind: FaultKind) -> None:
    faults.kind = kind
    assert (await store.create(NEW)).run_id == "run-1"


@pytest.mark.parametrize(
    ("kind", "error"), [(FaultKind.LOST_REQUEST, Ambiguous), (FaultKind.BUSY, Unavailable)]
)
async def test_a_row_that_was_not_made_is_not_claimed(
    store: ControlStore, faults: OnWrite, kind: FaultKind, error: type[Exception]
) -> None:
    faults.kind = kind
    with pytest.raises(error):
        await store.create(NEW)
    assert await store.read() is None


async def test_every_move_adds_one_to_the_epoch_and_keeps_the_rest(store: ControlStore) -> None:
    row = await move_along(store, DUAL_WRITE, FREEZE, CUTOVER, COMPLETE, RETIRED)
    assert (row.phase, row.epoch) == (RETIRED, 6)
    assert await store.read() == row
    unchanged = ("run_id", "digest", "source", "targets", "fingerprints", "id_key")
    assert [getattr(row, name) for name in unchanged] == [getattr(NEW, name) for name in unchanged]


async def test_times_are_the_services_at_each_phase(store: ControlStore, clock: FakeClock) -> None:
    row = await move_along(store, DUAL_WRITE)
    for phase in (FREEZE, CUTOVER, COMPLETE):
        clock.advance(60)
        row = await store.move(row.phase, phase)
    assert row.frozen_at == "2024-01-01T00:01:00.0000000Z"
    assert row.cutover_at == "2024-01-01T00:02:00.0000000Z"
    assert row.completed_at == row.updated_at == "2024-01-01T00:03:00.0000000Z"


async def test_an_aborted_rollback_keeps_the_cutover_time(store: ControlStore, clock: FakeClock) -> None:
    """Everything written to the target since then still has to go back, next time."""
    row = await move_along(store, DUAL_WRITE, FREEZE, CUTOVER)
    clock.advance(3600)
    frozen = await store.move(CUTOVER, FREEZE)
    assert frozen.came_from is CUTOVER
    again = await store.move(FREEZE, CUTOVER)
    assert again.cutover_at == row.cutover_at
    assert again.came_from is None


async def test_the_source_counts_as_stopped_since_the_freeze_before_cutover_where_a_rollback_froze_again(
    store: ControlStore, clock: FakeClock
) -> None:
    row = await move_along(store, DUAL_WRITE)
    assert row.stopped_at is None
    clock.advance(60)
    row = await store.move(DUAL_WRITE, FREEZE)
    assert row.stopped_at == row.frozen_at == "2024-01-01T00:01:00.0000000Z"
    clock.advance(60)
    row = await store.move(FREEZE, CUTOVER)
    assert row.stopped_at == row.frozen_at
    clock.advance(60)
    row = await store.move(CUTOVER, FREEZE)
    assert row.freeze_began_at == "2024-01-01T00:03:00.0000000Z"
    row = await store.move(FREEZE, CUTOVER)
    assert row.stopped_at == "2024-01-01T00:01:00.0000000Z"
    older = replace(row, frozen_at="2024-01-01T00:03:00.0000000Z")
    assert older.stopped_at == row.cutover_at == "2024-01-01T00:02:00.0000000Z"


async def test_dual_write_forgets_later_phases(store: ControlStore, service: MemoryTableService) -> None:
    row = await move_along(store, DUAL_WRITE, FREEZE, CUTOVER, FREEZE, DUAL_WRITE)
    assert (row.frozen_at, row.cutover_at, row.came_from) == (None, None, None)
    [stored] = service.dump(CONTROL_TABLE)
    assert "CutoverAt" not in content_of(stored)


async def test_a_move_from_where_the_row_is_not_is_refused(store: ControlStore) -> None:
    await move_along(store, DUAL_WRITE)
    with pytest.raises(Moved, match="says `dual_write`, not `source`"):
        await store.move(SOURCE, DUAL_WRITE)
    with pytest.raises(Refused, match="from `dual_write` to `cutover`"):
        await store.move(DUAL_WRITE, CUTOVER)


async def test_of_two_runners_that_move_at_once_one_is_refused(service: MemoryTableService) -> None:
    first, second = ControlStore(service, "0001_users"), ControlStore(service, "0001_users")
    await first.create(NEW)
    before(service, "replace", "", lambda: second.move(SOURCE, DUAL_WRITE))
    with pytest.raises(Moved, match="another runner"):
        await first.move(SOURCE, DUAL_WRITE)
    row = await first.read()
    assert row.epoch == 2


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.TIMED_OUT])
async def test_a_lost_move_is_settled(store: ControlStore, faults: OnWrite, kind: FaultKind) -> None:
    await store.create(NEW)
    faults.kind = kind
    row = await store.move(SOURCE, DUAL_WRITE)
    assert (row.phase, row.epoch) == (DUAL_WRITE, 2)
    assert (await store.move(DUAL_WRITE, FREEZE)).epoch == 3


@pytest.mark.parametrize(
    ("kind", "error"), [(FaultKind.LOST_REQUEST, Ambiguous), (FaultKind.BUSY, Unavailable)]
)
async def test_a_move_that_did_not_happen_is_not_claimed(
    store: ControlStore, faults: OnWrite, kind: FaultKind, error: type[Exception]
) -> None:
    await store.create(NEW)
    faults.kind = kind
    with pytest.raises(error):
        await store.move(SOURCE, DUAL_WRITE)
    row = await store.read()
    assert (row.phase, row.epoch) == (SOURCE, 1)


async def test_a_row_is_deleted_only_if_it_is_still_the_one_that_was_read(store: ControlStore) -> None:
    made = await store.create(NEW)
    await store.move(SOURCE, DUAL_WRITE)
    with pytest.raises(Moved, match="another runner"):
        await store.delete(made)
    now = await store.read()
    assert now is not None
    await store.delete(now)
    await store.delete(now)
    assert await store.read() is None


async def test_copied_is_said_without_a_move_and_ends_on_the_way_back(store: ControlStore) -> None:
    before = await move_along(store, DUAL_WRITE)
    marked = await store.mark_copied()
    assert (marked.copied, marked.epoch, marked.move_id) == (True, before.epoch, before.move_id)
    assert await store.mark_copied() == marked, "said twice, it is said once"
    for now, then in ((DUAL_WRITE, FREEZE), (FREEZE, CUTOVER), (CUTOVER, FREEZE), (FREEZE, DUAL_WRITE)):
        assert (await store.move(now, then)).copied
    assert not (await store.move(DUAL_WRITE, SOURCE)).copied


async def test_only_where_rows_are_copied_can_they_be_said_to_be(store: ControlStore) -> None:
    with pytest.raises(Moved, match="gone"):
        await store.mark_copied()
    await store.create(NEW)
    with pytest.raises(Refused, match="where nothing is copied"):
        await store.mark_copied()


async def test_with_its_answer_lost_what_was_said_is_read_back(store: ControlStore, faults: OnWrite) -> None:
    await move_along(store, DUAL_WRITE)
    faults.kind = FaultKind.LOST_ANSWER
    assert (await store.mark_copied()).copied
    await store.move(DUAL_WRITE, SOURCE)
    await store.move(SOURCE, DUAL_WRITE)
    faults.kind = FaultKind.LOST_REQUEST
    with pytest.raises(Ambiguous):
        await store.mark_copied()


@pytest.mark.parametrize("kind", [None, FaultKind.LOST_ANSWER, FaultKind.BUSY])
async def test_a_change_is_settled(store: ControlStore, faults: OnWrite, kind: FaultKind | None) -> None:
    before = await move_along(store, DUAL_WRITE)
    faults.kind = kind
    if kind is FaultKind.BUSY:
        with pytest.raises(Unavailable):
            await store.mark_changed()
        assert (await store.read()) == before
        return
    marked = await store.mark_changed()
    assert marked == await store.read() != before
    assert replace(marked, change_id="", etag="") == replace(before, etag="")
    assert (await store.mark_changed()).change_id != marked.change_id
    assert (await store.move(DUAL_WRITE, FREEZE)).change_id, "a move keeps it"


async def test_a_return_to_source_is_a_change_that_no_verification_covers(store: ControlStore) -> None:
    assert (await move_along(store, DUAL_WRITE)).change_id == ""
    assert (await store.move(DUAL_WRITE, SOURCE)).change_id
