"""Dual writes without a stored mapping: clients find rows by inversion, and rows that were written past them
are kept before they are removed. Whole lives are in `test_lifecycle.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as with_fields
from pathlib import Path

import pytest

from rekey.errors import RowExists, RowMissing, RowRefused, Unavailable
from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.runner import restore
from rekey.tables.base import Operation, Verb
from tests.asserts.command_line import CommandsOn
from tests.fakes.faults import Fault, FaultKind, NoFaults, Planned, PlannedFaults
from tests.fakes.interference import noted
from tests.fakes.memory import MemoryTableService
from tests.worlds.company import Company, company
from tests.worlds.dual_write import DualWorld, delete, insert, memory_world, merge, replace, upsert
from tests.worlds.erasure import WHY, by_old
from tests.worlds.projects import INVERTED_SCRIPT
from tests.worlds.small import INVERTED, user

SCRIPT = "0001_subject"
STRAY = user("stray@example.com", "p0")


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Company]:
    rows = [user(f"user{number:03}@example.com", f"p{number % 3}") for number in range(60)]
    with company(tmp_path, INVERTED_SCRIPT, rows) as ours:
        yield ours


def stored(ours: Company) -> set[str]:
    """Return the parts of the mapping table that hold rows, without those of removed rows."""
    rows = ours.project.restricted.dump(MAPPING_TABLE)
    return {row["PartitionKey"].removeprefix(SCRIPT) for row in rows} - {".x"}


# --- rows that were written past the clients ----------------------------------------------------------------


def kept_name(ours: Company) -> str:
    [row] = [row for row in ours.project.restricted.dump(MAPPING_TABLE) if row["PartitionKey"].endswith(".x")]
    return str(row["RowKey"])[:12]


def with_a_stray_source_row(ours: Company) -> None:
    """Let a client meet a source row that another program wrote after cutover."""
    path = ours.project.folder / "rekey.toml"
    path.write_text(path.read_text("utf-8").replace('retention = "0s"', 'retention = "7d"'), "utf-8")
    client = ours.client()
    ours.apply()
    ours.verify()
    ours.apply(Phase.CUTOVER)
    ours.do(ours.project.tables.table("Users").insert(STRAY))
    with pytest.raises(RowMissing):  # the new table decides, and has no such row
        ours.do(client.write(Operation(Verb.DELETE, content_of(STRAY), "*")))
    ours.settle()
    assert key_of(STRAY) not in {key_of(row) for row in ours.project.rows("Users")}
    ours.assert_in_step()


def test_a_stray_source_row_is_kept_before_it_follows_the_target_and_can_be_restored(users: Company) -> None:
    """It may be the copy of a row that was deleted: no mapping row says that it never had one."""
    with_a_stray_source_row(users)
    users.rollback()
    with users.session() as session:
        restored = restore.restore(session, SCRIPT, kept_name(users))
    assert (restored.table, restored.verify_again) == ("Users", True)
    rows = {key_of(row): content_of(row) for row in users.project.rows("Users")}
    assert rows[key_of(STRAY)] == STRAY
    users.assert_in_step()


def test_after_complete_a_stray_source_row_is_restored_as_its_target_row(users: Company) -> None:
    with_a_stray_source_row(users)
    users.do(users.clients[0].close())
    users.apply(Phase.COMPLETE)
    with users.session() as session:
        assert restore.restore(session, SCRIPT, kept_name(users)).table == "UsersV2"
    rows = {key_of(row): content_of(row) for row in users.project.rows("UsersV2")}
    [(_, row)] = users.mapper.map(STRAY)
    assert rows[key_of(row)] == row


def test_a_restore_to_the_source_that_stayed_open_is_not_sent_twice(users: Company) -> None:
    """Of two inserts one could come late, and bring a row back that a client deleted in between."""
    with_a_stray_source_row(users)
    users.rollback()
    lost = Planned(Fault(FaultKind.LOST_ANSWER), action="insert", table="Users", times=2)
    users.project.tables.faults = PlannedFaults(lost)
    with users.session() as session, pytest.raises(Unavailable, match="stayed open"):
        restore.restore(session, SCRIPT, kept_name(users))
    assert lost.seen == 1
    users.project.tables.faults = NoFaults()
    with users.session() as session:
        restore.restore(session, SCRIPT, kept_name(users))
    assert key_of(STRAY) in {key_of(row) for row in users.project.rows("Users")}
    users.assert_in_step()


def test_a_subject_is_erased_after_complete(users: Company, commands_on: CommandsOn) -> None:
    client = users.client()
    users.apply()
    users.do(client.write(Operation(Verb.INSERT, STRAY)))
    users.apply(Phase.CUTOVER)
    users.do(client.write(Operation(Verb.DELETE, STRAY, "*")))
    users.do(client.close())
    users.apply(Phase.COMPLETE)
    assert stored(users) == {".t"}, "the mark, and not one mapping row"
    users.live(120)
    subject = user("user000@example.com", "p0")
    said = commands_on(users.project)("erase", *by_old(subject), "--with-targets", *WHY, "--json")
    assert len(said.json["rows"]) == 1
    assert key_of(subject) not in {key_of(row) for row in users.project.rows("Users")}
    assert len(users.project.rows("UsersV2")) == 59
    assert stored(users) > {".t"}, "tombstones"


# --- one write ----------------------------------------------------------------------------------------------

ANN = user("ann@example.com", Age=1)
BOB = user("bob@example.com")
DUAL = with_fields(INVERTED, capture="dual-write")


async def begun(memory: MemoryTableService, phase: ControlPhase, *rows: Row) -> DualWorld:
    world = await memory_world(DUAL, memory).prepare(rows)
    world.permits.move(phase)
    return world


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
@pytest.mark.parametrize("view", [View.OLD, View.NEW])
async def test_every_verb_is_followed_and_no_mapping_row_is_read_or_written(
    memory: MemoryTableService, phase: ControlPhase, view: View
) -> None:
    world = await begun(memory, phase, ANN)
    asked = noted(memory, lambda call: call.table == MAPPING_TABLE)
    writer = world.writer(view)

    def row(of: Row) -> Row:
        return of if view is View.OLD else world.mapper.map(of)[0].row

    await writer.write([merge(row({**ANN, "Nm": "ANNA"}))])
    await writer.write([insert(row(BOB))])
    with pytest.raises(RowExists):
        await writer.write([insert(row(BOB))])
    await writer.write([replace(row({**BOB, "Age": 7}))])
    await writer.write([upsert(row(user("cy@example.com")))])
    await writer.write([delete(key_of(row(ANN)))])
    with pytest.raises(RowMissing):
        await writer.write([delete(key_of(row(ANN)))])
    await world.close()
    assert asked == []
    assert world.rows("UsersV2") == world.expected()["UsersV2"]
    assert sorted(row["Nm"] for row in memory.dump("Users")) == ["bob", "cy"]
    assert world.intents == 0


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_a_row_of_the_new_view_under_a_key_of_no_old_one_is_refused(
    memory: MemoryTableService, phase: ControlPhase
) -> None:
    world = await begun(memory, phase)
    new = world.writer(View.NEW)
    with pytest.raises(RowRefused) as refused:
        await new.write([insert({"PartitionKey": "DE_eu", "RowKey": "ann@example.com"})])
    assert refused.value.code == "no-old-key"
    await world.close()
    assert memory.dump("Users") == memory.dump("UsersV2") == []
    assert world.intents == 0


async def test_a_target_row_of_somebody_else_is_kept_before_propagate_removes_it(
    memory: MemoryTableService,
) -> None:
    world = await begun(memory, ControlPhase.DUAL_WRITE)
    [(_, stray)] = world.mapper.map(ANN)
    await memory.table("UsersV2").insert(stray)
    await world.propagator.propagate(key_of(ANN))
    assert memory.dump("UsersV2") == []
    assert [row["PartitionKey"] for row in memory.dump(MAPPING_TABLE)] == ["0001_users.x"]
