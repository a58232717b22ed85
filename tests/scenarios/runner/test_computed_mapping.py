"""A migration that stores no mapping: the keys alone say which rows belong together. `test_lifecycle.py` has
its whole life, and kills all the way.

Soak: 5 of 6 moments of a kill in a rollback.
Reason, and what `make test` covers: one moment.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rekey.errors import Findings, Refused
from rekey.mapping.rows import CONTROL_TABLE, JOURNAL_TABLE, MAPPING_TABLE
from rekey.model import EntityKey, Row, content_of, etag_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.runner import commands, restore
from rekey.runner.run import Options
from rekey.state.audit import ERASURE_BEGUN, erasures
from rekey.state.store import State
from tests.asserts.command_line import Commands, CommandsOn
from tests.fakes.clock import Skewed
from tests.fakes.faults import Call
from tests.fakes.interference import noted
from tests.scenarios.runner.test_lifecycle import (
    actual,
    apply,
    control_phase,
    expected,
    rollback,
    verify,
)
from tests.soaking import others_in_soak
from tests.worlds.erasure import by_id, by_old
from tests.worlds.evidence import prove
from tests.worlds.kills import killed
from tests.worlds.projects import INVERTED_SCRIPT, Project, applied, project_of
from tests.worlds.small import user

SCRIPT = "0001_users"
STOPPED = Options(writers_stopped=True)
ROWS = 120  # of three windows
WHY = ("--reason", "ticket 4711")


def users(count: int = ROWS) -> list[Row]:
    return [user(f"user{number:04}@example.com", f"p{number % 5}") for number in range(count)]


FIRST = users(1)[0]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_of(tmp_path, INVERTED_SCRIPT, users())


@pytest.fixture
def at_gate(tmp_path: Path) -> Project:
    return applied(tmp_path, INVERTED_SCRIPT, users())


@pytest.fixture
def cut_over(tmp_path: Path) -> Project:
    return applied(tmp_path, INVERTED_SCRIPT, users(), Phase.CUTOVER)


@pytest.fixture
def complete(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    """The commands of a migration that is complete, a minute later."""
    project = applied(tmp_path, INVERTED_SCRIPT, users(), Phase.COMPLETE)
    project.clock.advance(60)
    return commands_on(project)


def mapping_rows(project: Project) -> list[str]:
    """Return the parts of the mapping table that hold rows."""
    return sorted(
        {row["PartitionKey"].removeprefix(SCRIPT) for row in project.restricted.dump(MAPPING_TABLE)}
    )


def target_key(row: Row) -> EntityKey:
    return EntityKey(f"DE_{row['PartitionKey']}", f"U:{row['RowKey']}")


def test_copying_writes_the_targets_and_not_one_mapping_row(project: Project) -> None:
    written = noted(project.restricted, lambda call: call.writes and call.table == MAPPING_TABLE)
    apply(project)
    assert actual(project) == expected(project)
    assert len(written) == 1, "the mark that the targets were empty"
    assert mapping_rows(project) == [".t"]


@pytest.mark.parametrize("at", others_in_soak(range(1, 7), kept=[3]))
def test_a_rollback_that_is_killed_anywhere_is_finished_by_the_next(cut_over: Project, at: int) -> None:
    target = cut_over.tables.table("UsersV2")
    for row in cut_over.rows("UsersV2")[:2]:
        asyncio.run(target.delete(key_of(row)))
    with killed(cut_over, at, lambda call: call.writes):
        rollback(cut_over)
    rollback(cut_over)
    assert len(cut_over.rows("Users")) == ROWS - 2
    assert actual(cut_over) == expected(cut_over)


def test_rows_that_a_killed_rollback_copied_back_are_deleted_with_their_target_rows(
    cut_over: Project,
) -> None:
    """Their Timestamps are newer than the freeze. What a stray writer wrote before stays."""
    target = cut_over.tables.table("UsersV2")
    cut_over.clock.advance(60)
    changed = cut_over.rows("UsersV2")[:4]
    for row in changed:
        asyncio.run(target.replace({**content_of(row), "Name": "changed"}, etag=etag_of(row)))
    for row in changed[:2]:
        with killed(cut_over, 2, lambda call: call.writes and call.table == "Users"):
            rollback(cut_over)
        cut_over.clock.advance(60)
        asyncio.run(target.delete(key_of(row)))
    asyncio.run(cut_over.tables.table("Users").insert(user("stray@example.com")))
    with pytest.raises(Findings):
        rollback(cut_over)
    cut_over.clock.advance(60)
    asyncio.run(target.delete(key_of(changed[2])))
    asyncio.run(cut_over.tables.table("Users").delete(key_of(user("stray@example.com"))))
    rollback(cut_over)
    assert len(cut_over.rows("Users")) == ROWS - 3
    assert actual(cut_over) == expected(cut_over)
    assert mapping_rows(cut_over) == [".t", ".x"], "they are kept: what says that they were copied is a time"


def test_a_source_row_that_a_stray_writer_wrote_after_cutover_stops_the_rollback(cut_over: Project) -> None:
    """Nothing says whether it was copied and deleted in the target since, so it is never deleted."""
    cut_over.clock.advance(60)
    asyncio.run(cut_over.tables.table("Users").insert(user("stray@example.com")))
    for _ in range(2):
        with pytest.raises(Findings, match="UsersV2 has no row for 1 row of Users: ") as left:
            rollback(cut_over)
        assert "delete in Users those that the application deleted in UsersV2" in left.value.hint
        assert control_phase(cut_over) is ControlPhase.CUTOVER
        assert len(cut_over.rows("Users")) == ROWS + 1
    asyncio.run(cut_over.tables.table("Users").delete(key_of(user("stray@example.com"))))
    rollback(cut_over)
    assert control_phase(cut_over) is ControlPhase.DUAL_WRITE


def test_a_source_row_that_is_written_after_a_rollback_was_given_up_is_not_taken_for_its_copy(
    cut_over: Project,
) -> None:
    """The first rollback copied a row, and stopped at a stray one."""
    target, source = cut_over.tables.table("UsersV2"), cut_over.tables.table("Users")
    cut_over.clock.advance(60)
    asyncio.run(source.insert(user("stray@example.com")))
    [changed] = [row for row in cut_over.rows("UsersV2") if key_of(row) == target_key(FIRST)]
    asyncio.run(target.replace({**content_of(changed), "Name": "changed"}, etag=etag_of(changed)))
    with pytest.raises(Findings, match="UsersV2 has no row for 1 row of Users"):
        rollback(cut_over)
    asyncio.run(source.insert(user("later@example.com")))
    cut_over.clock.advance(5)
    with pytest.raises(Findings, match="UsersV2 has no row for 2 rows of Users"):
        rollback(cut_over)
    assert len(cut_over.rows("Users")) == ROWS + 2
    assert mapping_rows(cut_over) == [".t"], "nothing was removed"


def test_many_deletes_are_swept(at_gate: Project) -> None:
    """More than a comparison repairs row by row."""
    table = at_gate.tables.table("Users")
    for row in users()[:80]:
        asyncio.run(table.delete(key_of(row)))
    assert apply(at_gate).caught_up
    assert actual(at_gate) == expected(at_gate)
    assert len(at_gate.rows("UsersV2")) == ROWS - 80


def test_a_target_row_without_a_source_row_is_kept_before_it_is_removed(at_gate: Project) -> None:
    """It may be somebody else's: no mapping row says that it was copied."""
    row = {"PartitionKey": "DE_x", "RowKey": "U:early@example.com", "Name": "early"}
    asyncio.run(at_gate.tables.table("UsersV2").insert(row))
    configured = at_gate.folder / "rekey.toml"
    configured.write_text(configured.read_text("utf-8").replace('"0s"', '"7d"'), "utf-8")
    apply(at_gate)
    assert actual(at_gate) == expected(at_gate)
    with at_gate.session() as session:
        restored = restore.restore(session, SCRIPT, kept_name(at_gate))
    assert restored.verify_again
    assert row in map(content_of, at_gate.rows("UsersV2"))


def kept_name(project: Project) -> str:
    [row] = [row for row in project.restricted.dump(MAPPING_TABLE) if row["PartitionKey"].endswith(".x")]
    return str(row["RowKey"])[:12]


def test_a_row_under_a_key_that_no_source_key_maps_to_is_nobodys(at_gate: Project) -> None:
    asyncio.run(at_gate.tables.table("UsersV2").insert({"PartitionKey": "other", "RowKey": "x"}))
    with pytest.raises(Findings):
        apply(at_gate)
    assert verify(at_gate, repair=True)
    assert not verify(at_gate)
    assert actual(at_gate) == expected(at_gate)


def test_targets_that_held_rows_before_are_not_taken_for_copies(project: Project) -> None:
    """Their keys are those that the mapping gives."""
    row = {"PartitionKey": "DE_p0", "RowKey": "U:user0000@example.com", "Name": "not ours"}
    asyncio.run(project.fill("UsersV2", [row]))
    with pytest.raises(Refused, match="holds rows"):
        apply(project)
    assert [content_of(row) for row in project.rows("UsersV2")] == [row]


def test_rows_that_somebody_wrote_before_prepare_ended_are_not_taken_for_copies(project: Project) -> None:
    with killed(project, when=lambda call: (call.action, call.table) == ("create_table", "UsersV2")):
        apply(project)
    assert control_phase(project) is ControlPhase.SOURCE
    asyncio.run(project.fill("UsersV2", [{"PartitionKey": "DE_p0", "RowKey": "U:user0000@example.com"}]))
    with pytest.raises(Refused, match="did not write"):
        apply(project)
    assert len(project.rows("UsersV2")) == 1


def test_rows_that_somebody_wrote_while_prepare_ran_are_not_taken_for_copies(project: Project) -> None:
    """Its gate saw no table. It may wait for a minute until nothing of an earlier run is in flight."""
    row: Row = {"PartitionKey": "DE_p0", "RowKey": "U:somebody@example.com", "Name": "not ours"}

    async def gate(call: Call) -> None:
        if (call.action, call.table) == ("create_table", JOURNAL_TABLE):
            await project.tables.create_table("UsersV2")
            await project.tables.table("UsersV2").insert(row)

    project.restricted.gate = gate
    with pytest.raises(Refused, match="holds rows"):
        apply(project)
    assert [content_of(each) for each in project.rows("UsersV2")] == [row]
    assert mapping_rows(project) == []


def test_targets_may_be_kept_and_are_taken_up_again_or_dropped(at_gate: Project) -> None:
    rollback(at_gate, drop=False)
    asyncio.run(at_gate.tables.table("Users").delete(key_of(FIRST)))
    apply(at_gate)
    assert actual(at_gate) == expected(at_gate)
    rollback(at_gate, drop=True)
    assert at_gate.restricted.dump(MAPPING_TABLE) == []
    refused_with_rows_of_others(at_gate)


def refused_with_rows_of_others(project: Project) -> None:
    """Require that a row that somebody put into the target, which was dropped, is not taken for a copy."""
    project.clock.advance(120)
    asyncio.run(project.fill("UsersV2", [{"PartitionKey": "DE_p0", "RowKey": "U:x"}]))
    with pytest.raises(Refused, match="holds rows"):
        apply(project)
    assert len(project.rows("UsersV2")) == 1


def lose_state(project: Project) -> None:
    for file in project.folder.glob("state.sqlite*"):
        file.unlink()


def test_without_its_state_file_it_copies_again_and_can_be_rolled_back(at_gate: Project) -> None:
    at_gate.clock.advance(120)
    apply(at_gate, Phase.CUTOVER, STOPPED)
    lose_state(at_gate)
    asyncio.run(at_gate.tables.table("UsersV2").delete(target_key(FIRST)))
    rollback(at_gate)
    assert actual(at_gate) == expected(at_gate)
    assert len(at_gate.rows("Users")) == ROWS - 1
    assert mapping_rows(at_gate) == [".t", ".x"], "a row that the target lacks may be newer than the freeze"


def on_another_machine(project: Project, folder: Path) -> Project:
    """Return the same project with a state file of its own."""
    other = Project(folder, clock=project.clock)
    other.tables, other.restricted = project.tables, project.restricted
    other.script((project.folder / "migrations" / f"{SCRIPT}.py").read_text("utf-8"))
    return other


def cut_over_again(project: Project, folder: Path, new: Row) -> None:
    """Roll back and cut over on another machine; the application writes a source row in between, and deletes
    it in the target afterwards."""
    other = on_another_machine(project, folder)
    project.clock.advance(120)
    rollback(other)
    project.clock.advance(120)
    asyncio.run(project.tables.table("Users").insert(new))
    project.clock.advance(120)
    apply(other, Phase.CUTOVER, STOPPED)
    project.clock.advance(120)
    asyncio.run(project.tables.table("UsersV2").delete(target_key(new)))


def test_a_state_file_of_an_earlier_cutover_says_nothing_of_a_later_one(
    cut_over: Project, tmp_path: Path
) -> None:
    """By the freeze that it knows a row that was copied since would be a stray writer's."""
    cut_over_again(cut_over, tmp_path / "other", user("new@example.com"))
    rollback(cut_over)
    assert len(cut_over.rows("Users")) == ROWS
    assert actual(cut_over) == expected(cut_over)


def test_retire_with_a_state_file_of_an_earlier_cutover_deletes_what_was_copied(
    cut_over: Project, tmp_path: Path
) -> None:
    cut_over_again(cut_over, tmp_path / "other", user("new@example.com"))
    apply(cut_over, Phase.COMPLETE, STOPPED)
    with cut_over.session(Options(typed_table="Users", no_backup="a test", reason="a test")) as session:
        prove(session.config, session.scripts[SCRIPT], session.state)
        commands.retire(session, SCRIPT)
    assert not asyncio.run(cut_over.tables.table_exists("Users"))


def test_without_its_state_file_no_source_row_is_deleted_that_is_newer_by_any_clock(at_gate: Project) -> None:
    """The time of the cutover is by the clock of the restricted account, which is ahead."""
    at_gate.restricted.clock = Skewed(at_gate.clock, 40.0)
    at_gate.clock.advance(120)
    apply(at_gate, Phase.CUTOVER, STOPPED)
    at_gate.clock.advance(10)
    asyncio.run(at_gate.tables.table("Users").insert(user("stray@example.com")))
    lose_state(at_gate)
    at_gate.clock.advance(60)
    with pytest.raises(Findings):
        rollback(at_gate)
    assert len(at_gate.rows("Users")) == ROWS + 1


def cut_over_beside(at_gate: Project, stray: Row) -> None:
    """Cut over while somebody writes a source row. Comparing takes longer than the margin, and what looks for
    such rows has passed this one."""
    at_gate.clock.advance(120)
    control_calls: list[str] = []

    async def gate(call: Call) -> None:
        if call.table != CONTROL_TABLE:
            return
        control_calls.append(call.action)
        if control_calls[-3:] == ["replace", "get", "get"]:  # frozen, and about to move on
            await at_gate.tables.table("Users").insert(stray)
            at_gate.clock.advance(600)

    at_gate.restricted.gate = gate
    apply(at_gate, Phase.CUTOVER, STOPPED)
    at_gate.restricted.gate = at_gate.tables.gate
    assert len(at_gate.rows("Users")) == ROWS + 1


def test_without_its_state_file_no_source_row_is_deleted_that_was_written_while_all_was_compared(
    at_gate: Project,
) -> None:
    cut_over_beside(at_gate, user("stray@example.com"))
    lose_state(at_gate)
    at_gate.clock.advance(60)
    with pytest.raises(Findings):
        rollback(at_gate)
    assert len(at_gate.rows("Users")) == ROWS + 1


def assert_retire_leaves(project: Project, stray: Row) -> None:
    """Give a rollback up, lose the state file and complete: retire reports the stray row, and leaves it."""
    with pytest.raises(Findings):
        rollback(project)
    new = {"PartitionKey": "DE_p9", "RowKey": "U:new@example.com", "Name": "new"}
    asyncio.run(project.tables.table("UsersV2").insert(new))
    lose_state(project)
    apply(project, Phase.COMPLETE, STOPPED)
    with project.session(Options(typed_table="Users", no_backup="a test")) as session:
        prove(session.config, session.scripts[SCRIPT], session.state)
        with pytest.raises(Findings, match="1 source rows changed after the freeze"):
            commands.retire(session, SCRIPT)
    assert [content_of(row) for row in project.rows("Users")] == [stray]


def test_retire_without_its_state_file_leaves_a_row_that_was_written_before_a_rollback_was_given_up(
    cut_over: Project,
) -> None:
    """The freeze of that rollback is not the one before the cutover."""
    cut_over.clock.advance(60)
    stray = user("stray@example.com")
    asyncio.run(cut_over.tables.table("Users").insert(stray))
    cut_over.clock.advance(60)
    assert_retire_leaves(cut_over, stray)


def test_retire_without_its_state_file_leaves_a_row_that_was_written_while_all_was_compared(
    at_gate: Project,
) -> None:
    """Neither the freeze of a rollback that was given up nor the cutover says when the proof began."""
    stray = user("stray@example.com")
    cut_over_beside(at_gate, stray)
    at_gate.clock.advance(60)
    assert_retire_leaves(at_gate, stray)


def test_targets_kept_after_a_drop_that_was_cut_off_are_not_taken_for_copies(at_gate: Project) -> None:
    """The drop took the mark away, so their rows may be anybody's by now."""
    with killed(at_gate, when=lambda call: call.action == "delete_table" and call.table == "UsersV2"):
        rollback(at_gate, drop=True)
    assert mapping_rows(at_gate) == []
    rollback(at_gate, drop=False)
    before = at_gate.rows("UsersV2")
    with pytest.raises(Refused, match="holds rows"):
        apply(at_gate)
    assert at_gate.rows("UsersV2") == before
    rollback(at_gate, drop=True)
    at_gate.clock.advance(120)
    apply(at_gate)
    assert actual(at_gate) == expected(at_gate)


def test_rows_of_others_are_safe_where_a_drop_was_cut_off(at_gate: Project) -> None:
    """The mark that the targets are ours ends before they do."""
    dropped = False

    def writes_after(call: Call) -> bool:
        nonlocal dropped
        if dropped and call.writes:
            return True
        dropped |= call.action == "delete_table" and call.table == "UsersV2"
        return False

    with killed(at_gate, when=writes_after):
        rollback(at_gate, drop=True)
    assert dropped
    refused_with_rows_of_others(at_gate)


PART_SCRIPT = (
    INVERTED_SCRIPT.replace("Target, keys, props", "Target, keys, props, rows")
    .replace('source="Users",', 'source="Users", where=rows.partition_key(equals="p1"),')
    .replace('"UsersV2",', '"UsersV2", shared=True,')
)
OF_OTHERS: list[Row] = [
    {"PartitionKey": "DE_p2", "RowKey": "U:user0002@example.com", "Name": "of another part"},
    {"PartitionKey": "DE_p10", "RowKey": "U:x", "Name": "of a longer name"},
]


def test_a_part_in_a_shared_target_leaves_all_other_rows(tmp_path: Path) -> None:
    project = project_of(tmp_path, PART_SCRIPT, users())
    asyncio.run(project.fill("UsersV2", OF_OTHERS))
    apply(project, Phase.CUTOVER, STOPPED)
    source, target = project.tables.table("Users"), project.tables.table("UsersV2")
    deleted, changed = [row for row in project.rows("UsersV2") if row["PartitionKey"] == "DE_p1"][:2]
    project.clock.advance(60)

    async def work() -> None:
        await target.delete(key_of(deleted))
        await target.replace({**content_of(changed), "Name": "changed"}, etag=etag_of(changed))
        await source.insert(user("beside@example.com", "p2"))
        await source.delete(key_of(users(4)[3]))

    asyncio.run(work())
    rollback(project)
    rows = {key_of(row): row for row in project.rows("Users")}
    assert len(rows) == ROWS - 1
    assert EntityKey("p1", deleted["RowKey"][2:]) not in rows
    assert rows[EntityKey("p1", changed["RowKey"][2:])]["Nm"] == "changed"
    rollback(project, to=ControlPhase.SOURCE, drop=True)
    assert sorted(map(key_of, project.rows("UsersV2"))) == sorted(map(key_of, OF_OTHERS))
    assert mapping_rows(project) == []


# --- looking up and erasing --------------------------------------------------------------------------------


def test_keys_are_looked_up_by_inversion_and_by_safe_id(complete: Commands) -> None:
    named = [by_old(FIRST), ("--new", *target_key(FIRST)), by_id(complete, FIRST)]
    answers = [complete("lookup", *words, *WHY, "--json").json["rows"] for words in named]
    assert answers[0] == answers[1] == answers[2]
    [answer] = answers[0]
    assert answer["old"] == {"partition_key": "p0", "row_key": "user0000@example.com"}
    assert answer["new"][0]["row_key"] == "U:user0000@example.com"


@pytest.mark.parametrize(
    "words", [("--old", "p0", "nobody"), ("--new", "DE_p0", "nobody"), ("--id", "0" * 12)]
)
def test_a_row_that_is_not_there_is_unknown(complete: Commands, words: tuple[str, ...]) -> None:
    complete("lookup", *words, *WHY, code=1)
    said = complete("erase", *words, "--with-targets", *WHY, "--json", code=1)
    assert said.json["unknown"] == 1


@pytest.mark.parametrize("by", [by_old, by_id], ids=["old key", "safe id"])
def test_a_subject_is_erased_from_both_tables(complete: Commands, by: object) -> None:
    words = by_old(FIRST) if by is by_old else by_id(complete, FIRST)
    row_id = by_id(complete, FIRST)[1]
    said = complete("erase", *words, "--with-targets", *WHY, "--json")
    assert said.json["rows"] == [row_id]
    project = complete.project
    assert key_of(FIRST) not in {key_of(row) for row in project.rows("Users")}
    assert target_key(FIRST) not in {key_of(row) for row in project.rows("UsersV2")}
    assert len(project.rows("UsersV2")) == ROWS - 1
    # What was erased is told as erased, and so is a row that was put back.
    erased = complete("lookup", *by_old(FIRST), *WHY, code=1)
    assert "was erased on" in erased.err
    again = complete("erase", "--id", row_id, "--with-targets", *WHY, "--json")
    assert [row["row_id"] for row in again.json["erased_before"]] == [row_id]
    key = target_key(FIRST)
    back = {"PartitionKey": key.partition, "RowKey": key.row, "Name": "back"}
    asyncio.run(project.tables.table("UsersV2").insert(back))
    returned = complete("lookup", *by_old(FIRST), *WHY, code=1)
    assert "stands there again" in returned.err


def test_an_erasure_must_take_the_target_rows(complete: Commands) -> None:
    said = complete("erase", *by_old(FIRST), *WHY, code=3)
    assert "--with-targets" in said.err
    assert len(complete.project.rows("Users")) == ROWS


def test_rows_of_one_table_alone_and_removed_rows_are_erased_too(complete: Commands) -> None:
    project = complete.project
    asyncio.run(project.tables.table("UsersV2").delete(target_key(FIRST)))
    said = complete("erase", *by_old(FIRST), "--with-targets", *WHY, "--json")
    assert said.json["source_rows"] == 1
    assert len(project.rows("Users")) == ROWS - 1


def test_a_removed_row_of_a_subject_is_erased(tmp_path: Path, commands_on: CommandsOn) -> None:
    project = applied(tmp_path, INVERTED_SCRIPT, users())
    asyncio.run(project.tables.table("Users").delete(key_of(FIRST)))
    apply(project, Phase.CUTOVER, STOPPED)
    apply(project, Phase.COMPLETE)
    project.clock.advance(60)
    assert mapping_rows(project) == [".t", ".x"]
    said = commands_on(project)("erase", *by_old(FIRST), "--with-targets", *WHY, "--json")
    assert said.json["removed_rows"] == 1
    assert ".x" not in mapping_rows(project)


@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("in_target", [True, False], ids=["in both tables", "in the source"])
def test_an_erasure_that_was_killed_is_finished_by_the_next(
    complete: Commands, at: int, in_target: bool
) -> None:
    project = complete.project
    if not in_target:
        asyncio.run(project.tables.table("UsersV2").delete(target_key(FIRST)))
    [row_id] = by_id(complete, FIRST)[1:] if in_target else [safe_id(project)]
    with killed(project, at, lambda call: writes_once_recorded(project, call)):
        complete("erase", *by_old(FIRST), "--with-targets", *WHY)
    complete("erase", *by_old(users(2)[1]), "--with-targets", *WHY)
    assert len(project.rows("Users")) == ROWS - 2
    assert len(project.rows("UsersV2")) == ROWS - 2
    with State.open(project.config.state, read_only=True) as state:
        recorded = erasures(state.audit_events(SCRIPT))
    assert row_id in recorded.rows
    assert not recorded.open


def begun(project: Project) -> bool:
    with State.open(project.config.state, read_only=True) as state:
        return any(event.event == ERASURE_BEGUN for event in state.audit_events(SCRIPT))


def writes_once_recorded(project: Project, call: Call) -> bool:
    return call.writes and call.table != CONTROL_TABLE and begun(project)


def safe_id(project: Project) -> str:
    return asyncio.run(project.mapping(SCRIPT)).rows.ids.short("Users", key_of(FIRST))


@pytest.mark.parametrize("table", ["Users", "UsersV2"])
def test_an_import_leaves_out_an_erased_subject(complete: Commands, table: str) -> None:
    """Tombstones are all that the mapping holds; the audit log is not needed."""
    folder = str(complete.project.folder / "export")
    complete("export", table, folder)
    complete("erase", *by_old(FIRST), "--with-targets", *WHY)
    complete.project.config.state.unlink()
    assert complete("import", folder, table, "--json").json["erased"] == 1
    assert len(complete.project.rows(table)) == ROWS - 1


@pytest.mark.parametrize("effects", [1, 2, 3])
def test_an_erasure_of_a_source_row_that_was_cut_off_keeps_it_from_an_import(
    complete: Commands, effects: int
) -> None:
    project = complete.project
    folder = str(project.folder / "export")
    complete("export", "UsersV2", folder)
    asyncio.run(project.tables.table("UsersV2").delete(target_key(FIRST)))
    with killed(project, effects, lambda call: writes_once_recorded(project, call)):
        complete("erase", *by_old(FIRST), "--with-targets", *WHY)
    complete("erase", *by_old(users(2)[1]), "--with-targets", *WHY)
    complete("import", folder, "UsersV2")
    is_erased = key_of(FIRST) not in {key_of(row) for row in project.rows("Users")}
    assert (target_key(FIRST) in {key_of(row) for row in project.rows("UsersV2")}) != is_erased


def test_there_is_nothing_to_expire(complete: Commands) -> None:
    complete.project.clock.advance(10 * 365 * 86_400)
    said = complete("expire", "--confirm", SCRIPT)
    assert "nothing to erase" in said.out
    assert "kept until" not in complete("status", SCRIPT).out
