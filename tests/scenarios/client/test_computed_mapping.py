"""Dual writes without a stored mapping: clients find rows by inversion, through whole migrations with kills.

Soak: 5 of 7 moments of a kill.
Reason, and what `make test` covers: two moments; drawn ones in `tests/simulation/test_dual_lives.py`, every
order in `tests/simulation/test_dual_every_order.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace as with_fields
from pathlib import Path

import pytest

from rekey.core.concurrency import cancel
from rekey.errors import RowExists, RowMissing, RowRefused, Unavailable
from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.runner import restore
from rekey.tables.base import Operation, Verb
from tests.asserts.command_line import CommandsOn
from tests.fakes.faults import Call, Fault, FaultKind, NoFaults, Planned, PlannedFaults
from tests.fakes.memory import MemoryTableService
from tests.soaking import others_in_soak
from tests.worlds.company import ApplicationFaults, Company, Ledger, application, company, traffic
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


def old_user(rng: random.Random, _key: EntityKey) -> Row:
    return {"Nm": f"name-{rng.random()}"}


def new_user(rng: random.Random, _key: EntityKey) -> Row:
    return {"Name": f"name-{rng.random()}"}


def own_keys(name: str, partition: str, count: int = 8) -> list[EntityKey]:
    return [EntityKey(partition, f"{name}-{number}@example.com") for number in range(count)]


def in_new_view(keys: list[EntityKey]) -> list[EntityKey]:
    return [EntityKey(f"DE_{key.partition}", f"U:{key.row}") for key in keys]


def assert_kept(ours: Company, ledger: Ledger, table: str, carried: str) -> None:
    """Every acknowledged write is in a table, under the key it was written under."""
    there = {key_of(row): row[carried] for row in ours.project.rows(table)}
    told = {key: None if row is None else row[carried] for key, row in ledger.rows.items()}
    assert told == {key: there.get(key) for key in told}
    assert ledger.writes > 20


def stored(ours: Company) -> set[str]:
    """Return the parts of the mapping table that hold rows, without those of removed rows."""
    rows = ours.project.restricted.dump(MAPPING_TABLE)
    return {row["PartitionKey"].removeprefix(SCRIPT) for row in rows} - {".x"}


# --- the whole life ----------------------------------------------------------------------------------------


def test_both_versions_of_an_application_write_through_a_migration_and_back(users: Company) -> None:
    old, new = Ledger(), Ledger()
    users.writes(traffic(users.client(name="version-1"), own_keys("old", "p0"), old_user, old, seed=1))
    users.live(2)
    users.apply()
    keys = in_new_view(own_keys("new", "p1"))
    users.writes(traffic(users.client(View.NEW, "version-2"), keys, new_user, new, seed=2))
    users.live(10)
    report = users.verify()
    assert (report.findings, report.differences.unsettled) == (False, 0), "no false alarm while clients write"
    users.apply(Phase.CUTOVER)
    users.live(10)
    assert not users.verify().findings, "the source follows the target now"
    assert users.rollback() == [Phase.CUTOVER]
    users.live(10)
    assert not users.verify().findings
    users.apply(Phase.CUTOVER)
    users.live(10)
    users.settle()
    assert users.intents == []
    users.assert_in_step()
    assert_kept(users, old, "Users", "Nm")
    assert_kept(users, new, "UsersV2", "Name")
    assert stored(users) == {".t"}, "the mark, and not one mapping row"
    [first, _] = users.clients
    users.do(first.close())
    users.apply(Phase.COMPLETE)
    users.retire("rows were deleted since `complete`")
    assert users.phase is ControlPhase.RETIRED


@pytest.mark.parametrize("at", others_in_soak([25, 45, 60, 75, 90, 105, 120], kept=[45, 90]))
def test_a_killed_runner_resumes_while_clients_write(users: Company, at: int) -> None:
    ledger = Ledger()
    users.writes(traffic(users.client(), own_keys("w", "p0"), old_user, ledger, seed=at))
    users.live(2)
    with users.killing_the_runner(at):
        users.apply(Phase.CUTOVER)
        users.rollback()
        users.verify()
    users.live(70)
    users.apply()
    if users.phase is ControlPhase.DUAL_WRITE:
        assert not users.verify().findings
        users.apply(Phase.CUTOVER)
    assert not users.verify().findings
    users.settle()
    users.assert_in_step()
    assert_kept(users, ledger, "Users", "Nm")


@pytest.mark.parametrize("view", [View.OLD, View.NEW])
@pytest.mark.parametrize("to", [None, Phase.CUTOVER], ids=["dual_write", "cutover"])
def test_a_client_that_is_killed_in_the_middle_of_its_writes_loses_nothing(
    users: Company, view: View, to: Phase | None
) -> None:
    ledger = Ledger()
    users.client()
    users.apply()
    users.verify()
    if to is not None:
        users.apply(to)
    dying = users.client(view, name="dying")
    keys, change = own_keys("w", "p0"), old_user
    if view is View.NEW:
        keys, change = in_new_view(keys), new_user
    users.writes(traffic(dying, keys, change, ledger, seed=7))
    users.live(5)
    calls = 0
    follows = "Users" if to else "UsersV2"

    async def kill(call: Call) -> None:
        nonlocal calls
        await asyncio.sleep(0)
        calls += call.table == follows and call.writes and application.get() == "dying"
        if calls >= 2 and application.get() == "dying":
            await asyncio.Event().wait()

    users.project.tables.gate = users.project.restricted.gate = kill
    users.live(5)
    users.do(dying.die())
    users.do(cancel(users.traffic))
    users.traffic.clear()
    assert users.intents, "it was in the middle of something"
    users.rollback() if to else users.apply(Phase.CUTOVER)
    assert users.unsettled == []
    users.assert_in_step()
    table, carried = ("Users", "Nm") if view is View.OLD else ("UsersV2", "Name")
    there = {key_of(row): row[carried] for row in users.project.rows(table)}
    told = {key: None if row is None else row[carried] for key, row in ledger.rows.items()}
    assert len([key for key in told if told[key] != there.get(key)]) <= 1, "but for the write under way"


def test_what_clients_left_open_is_finished_before_the_authority_moves(users: Company) -> None:
    ledgers = [Ledger(), Ledger()]
    for number, ledger in enumerate(ledgers):
        keys = own_keys(f"w{number}", f"p{number}", 30)
        users.writes(traffic(users.client(), keys, old_user, ledger, seed=number))
    faults = ApplicationFaults(1, rate=0.03, table="Users")
    users.project.tables.faults = faults
    users.live(3)
    users.apply()
    users.live(20)
    users.apply(Phase.CUTOVER)
    users.live(20)
    users.rollback()
    faults.end()
    users.live(60)
    users.settle()
    users.apply()
    users.assert_in_step()
    assert faults.unanswered is not None
    for ledger in ledgers:
        assert_kept(users, ledger, "Users", "Nm")


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
    users.apply(Phase.CUTOVER)
    users.do(client.close())
    users.apply(Phase.COMPLETE)
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
    asked: list[str] = []

    async def gate(call: Call) -> None:
        if call.table == MAPPING_TABLE:
            asked.append(call.action)

    memory.gate = gate
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
