"""The commands through the whole life of a migration, on tables in memory."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import EntityKey, Row, key_of
from rekey.phases import Phase
from rekey.state.ledger import ledger_id
from rekey.state.store import State
from tests.asserts.command_line import Commands, CommandsOn
from tests.asserts.every import every
from tests.fakes.faults import Call
from tests.fakes.memory import instant_gate
from tests.worlds.evidence import exported, with_key
from tests.worlds.kills import killed
from tests.worlds.projects import USERS_SCRIPT, Project, applied, project_of
from tests.worlds.small import post, user

SCRIPT = "0001_users"
ROWS = 120


def users(count: int = ROWS) -> list[Row]:
    return [user(f"user{number:04}@example.com", f"p{number % 5}") for number in range(count)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_of(tmp_path, USERS_SCRIPT, users())


@pytest.fixture
def at_gate(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    """The commands of the project at the gate of cutover."""
    return commands_on(applied(tmp_path, USERS_SCRIPT, users()))


def everything(project: Project) -> dict[str, object]:
    """All that a command without side effects must leave as it is."""
    tables = {
        f"{account}.{name}": service.dump(name)
        for account, service in (("tables", project.tables), ("restricted", project.restricted))
        for name in ("Users", "UsersV2", CONTROL_TABLE, "rekeymap")
        if asyncio.run(service.table_exists(name))
    }
    return tables | {path.name: path.read_bytes() for path in project.folder.glob("state.sqlite*")}


def prove_it(rekey: Commands) -> None:
    """Export evidence and verify it."""
    with_key(rekey.project.folder)
    folder = str(exported(rekey))
    assert "recorded" in rekey("evidence", "verify", folder).out


def test_the_whole_life_step_by_step(rekey: Commands) -> None:
    assert "Nothing was written" in rekey("plan", "--exact").out
    applied = rekey("apply", "0001")
    assert "Stopped before cutover. Still required:" in applied.out
    assert "rekey apply 0001_users --to cutover --writers-stopped" in applied.out
    assert "target rows inserted 120" in applied.out
    assert "rows caught up" in rekey("apply").out
    assert "Every row and every property" in rekey("verify").out
    assert "--writers-stopped" in rekey("apply", "--to", "cutover", code=3).err
    rekey("apply", "--to", "cutover", "--writers-stopped")
    assert "the gate" in rekey("rollback", code=3).err
    assert "rolled back: cutover" in rekey("rollback", "--writers-stopped").out
    done = rekey("apply", "--to", "complete", "--writers-stopped", "--yes", SCRIPT)
    assert "rekey evidence export evidence-0001_users 0001_users" in done.out
    assert "rollback is not possible" in rekey("rollback", "--writers-stopped", code=3).err
    assert "no signed evidence" in rekey("retire", "--table", "Users", "--no-backup", "a test", code=3).err
    prove_it(rekey)
    assert "rekey retire 0001_users --table Users" in rekey("status").out
    assert "typed" in rekey("retire", "--table", "UsersV2", "--no-backup", "a test", code=3).err
    assert "Users is deleted" in rekey("retire", "--table", "Users", "--no-backup", "a test").out
    assert "Users is deleted" in rekey("status").out
    assert "Nothing to apply" in rekey("apply").out
    assert "Nothing to plan" in rekey("plan").out


def test_the_same_life_in_json(rekey: Commands) -> None:
    plan = rekey("plan", "--json").json
    assert (plan["exit_code"], plan["migrations"][0]["script_id"]) == (0, SCRIPT)
    [applied] = rekey("apply", "--json").json["migrations"]
    assert [one["phase"] for one in applied["phases"]] == ["prepare", "dual_write", "backfill", "reconcile"]
    assert applied["phases"][2]["counters"]["source_rows"] == ROWS
    assert applied["next_phase"] == "cutover"
    assert applied["next"]["command"] == "rekey apply 0001_users --to cutover --writers-stopped"
    verified = rekey("verify", "--json").json
    assert (verified["script_id"], verified["mode"], verified["exit_code"]) == (SCRIPT, "full", 0)
    assert rekey("apply", "--to", "cutover", "--json", code=3).json["error"] == "GateClosed"
    rekey("apply", "--to", "cutover", "--writers-stopped", "--json")
    back = rekey("rollback", "--writers-stopped", "--json").json
    assert (back["undone"], back["status"]["control"]["phase"]) == (["cutover"], "dual_write")
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", SCRIPT, "--json")
    prove_it(rekey)
    assert rekey("retire", "--table", "Users", "--no-backup", "a test", "--json").json["deleted"] == "Users"
    [status] = rekey("status", "--json").json["migrations"]
    assert (status["control"]["phase"], status["safe"]) == ("retired", True)


def test_plan_status_and_help_write_nothing(rekey: Commands, project: Project) -> None:
    before = everything(project)
    for _ in range(2):
        rekey("plan")
        rekey("plan", "--exact", "--show-keys", "--json")
        rekey("status")
        assert everything(project) == before
        rekey("apply", "--to", "backfill")
        before = everything(project)


def test_no_key_is_printed_unless_asked_for(rekey: Commands, project: Project) -> None:
    said = ""
    for words in (
        ("plan", "--exact"),
        ("apply",),
        ("status",),
        ("verify",),
        ("apply", "--to", "cutover", "--writers-stopped"),
        ("rollback", "--writers-stopped"),
        ("status", "--json"),
    ):
        said += rekey(*words, "-vv").all
    row = project.rows("UsersV2")[0]
    asyncio.run(project.tables.table("UsersV2").delete(key_of(row)))
    said += rekey("verify", "-vv", code=1).all
    assert "@example.com" not in said
    assert row["RowKey"] not in said
    shown = rekey("plan", "--show-keys").out
    assert "@example.com" in shown
    assert "operator's eyes" in shown


def test_verify_finds_mends_and_proves(at_gate: Commands) -> None:
    rekey, project = at_gate, at_gate.project
    row = project.rows("UsersV2")[7]
    asyncio.run(project.tables.table("UsersV2").delete(key_of(row)))
    found = rekey("verify", "--json", code=1).json
    assert (found["stable"], found["by_kind"]) == (1, {"missing": 1})
    assert "Next:" in rekey("verify", code=1).out
    assert "cutover stays closed" in rekey("status").out
    assert "this proves it" in rekey("verify", "--repair", code=1).out
    rekey("verify")
    rekey("verify", "--mode", "count")
    first = rekey("verify", "--mode", "sample", "--rows", "20", "--seed", "7", "--json").json
    assert (first["seed"], first["asked"]) == (7, 20)
    said = rekey("verify", "--mode", "sample", "--rows", "20")
    assert "would ask for more requests than a full verification, which proves more" in said.err
    assert rekey("verify", "--mode", "sample", "--rows", "20", "--json").json["mode"] == "full"
    assert "--mode full" in rekey("verify", "--mode", "count", "--repair", code=2).err


def test_what_was_done_is_told_also_when_something_stops_it(rekey: Commands, project: Project) -> None:
    async def full(call: Call) -> None:
        if call.table == "UsersV2" and call.action == "page":
            raise OSError(28, "No space left on device")

    rekey("apply", "--to", "backfill")
    project.tables.gate = full
    failed = rekey("apply", "--json", code=4).json
    [told] = failed["migrations"]
    assert failed["error"] == "MachineFailed"
    assert [(one["phase"], one["outcome"]) for one in told["phases"]] == [("reconcile", "OSError")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_checkpoints_and_exits_130(rekey: Commands, project: Project, number: int) -> None:
    sent = False
    asyncio.run(project.fill("Users", [user(f"more{number:04}@example.com", "q") for number in range(200)]))

    async def interrupt(call: Call) -> None:
        nonlocal sent
        if call.action == "transact" and call.table == "UsersV2" and not sent:
            sent = True
            os.kill(os.getpid(), number)

    project.tables.gate = interrupt
    stopped = rekey("apply", "--json", code=130)
    assert stopped.json["error"] == "Interrupted"
    assert "again" in stopped.json["next"]
    project.tables.gate = instant_gate
    [status] = rekey("status", "--json").json["migrations"]
    assert status["stage"].startswith("following done; backfill stopped")
    assert 0 < status["backfill"]["rows"] < ROWS + 200
    rekey("apply")
    assert len(project.rows("UsersV2")) == ROWS + 200


def test_a_signal_during_the_row_check_writes_nothing(rekey: Commands, project: Project) -> None:
    async def interrupt(call: Call) -> None:
        if call.table == "Users":
            os.kill(os.getpid(), signal.SIGTERM)

    project.tables.gate = interrupt
    rekey("apply", code=130)
    assert not asyncio.run(project.tables.table_exists("UsersV2"))
    assert not asyncio.run(project.restricted.table_exists(CONTROL_TABLE))


def test_a_plan_file_binds_apply(rekey: Commands, project: Project, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    rekey("plan", "--exact", "--show-keys", "--out", path)
    assert "@example.com" not in Path(path).read_text("utf-8")
    asyncio.run(project.tables.table("Users").insert(user("new@example.com")))
    assert "since the plan was made" in rekey("apply", "--plan", path, code=3).err
    assert not asyncio.run(project.restricted.table_exists(CONTROL_TABLE))
    rekey("plan", "--exact", "--out", path)
    rekey("apply", "--plan", path)
    asyncio.run(project.tables.table("Users").insert(user("newer@example.com")))
    rekey("apply", "--plan", path)  # begun: its own targets are there now, and the guards watch the rest


def test_a_plan_with_errors_is_not_applied(rekey: Commands, project: Project, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    asyncio.run(project.fill("UsersV2", [user("somebody@example.com")]))
    rekey("plan", "--out", path, code=1)
    assert "lists 1 error" in rekey("apply", "--plan", path, code=1).err
    Path(path).write_text("{}", "utf-8")
    rekey("apply", "--plan", path, code=2)


def test_retire_asks_on_a_terminal_and_wants_the_name_elsewhere(
    rekey: Commands, project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", SCRIPT)
    prove_it(rekey)
    assert "--table NAME" in rekey("retire", code=2).err
    asked: list[str] = []

    def answer(question: str, *, err: bool) -> str:
        assert err  # a question is no result: standard output stays clean
        asked.append(question)
        return "Users"

    monkeypatch.setattr("click.prompt", answer)
    assert (
        run(
            ["retire", "--no-backup", "a test"],
            Surroundings(project.connect, project.clock, is_terminal=True),
        )
        == 0
    )
    assert len(asked) == 1
    assert "Users is deleted" in capsys.readouterr().out


def test_complete_needs_the_name(at_gate: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    rekey, project = at_gate, at_gate.project
    to_complete, terminal = (
        ("apply", "--to", "complete", "--writers-stopped"),
        Surroundings(project.connect, project.clock, is_terminal=True),
    )
    assert f"--yes {SCRIPT}" in rekey(*to_complete, code=2).err
    answers = ["0001", SCRIPT]

    def answer(question: str, *, err: bool) -> str:
        assert err
        assert "makes rollback of" in question
        return answers.pop(0)

    monkeypatch.setattr("click.prompt", answer)
    assert run(to_complete, terminal) == 2
    assert "reconcile done" in rekey("status").out, "not even the cutover on the way was done"
    assert run(to_complete, terminal) == 0
    assert run((*to_complete, SCRIPT), terminal) == 0
    assert answers == []


def test_a_rollback_to_the_source_wants_to_know_about_the_targets(at_gate: Commands) -> None:
    rekey, project = at_gate, at_gate.project
    assert "--drop-targets or --keep-targets" in rekey("rollback", code=2).err
    assert "rolled back: reconcile, backfill, following, prepare" in rekey("rollback", "--drop-targets").out
    assert not asyncio.run(project.tables.table_exists("UsersV2"))
    assert "not begun" in rekey("status").out
    project.clock.advance(60)  # a deleted table's name is taken for a while
    rekey("apply")
    assert len(project.rows("UsersV2")) == ROWS


@pytest.mark.parametrize(
    "words",
    [("verify",), ("rollback", "--drop-targets"), ("retire", "--table", "Users", "--no-backup", "a test")],
)
def test_a_command_before_begin_fails(rekey: Commands, project: Project, words: tuple[str, ...]) -> None:
    assert "has not begun" in rekey(*words, code=3).err
    assert not asyncio.run(project.restricted.table_exists(CONTROL_TABLE))


def test_apply_leaves_a_freeze_that_status_shows(at_gate: Commands) -> None:
    rekey, project = at_gate, at_gate.project

    def is_frozen(_call: Call) -> bool:
        return any(row.get("Phase") == "freeze" for row in project.restricted.dump(CONTROL_TABLE))

    with killed(project, when=is_frozen):
        rekey("apply", "--to", "cutover", "--writers-stopped")
    told = rekey("status", "-v").out
    assert "ATTENTION" in told
    assert "left the freeze behind" in told
    assert "control row   `freeze`" in told
    assert "left the freeze" in rekey("apply").err
    assert "ATTENTION" not in rekey("status").out


def test_lookup_answers_both_ways_and_by_safe_id_and_is_recorded(at_gate: Commands) -> None:
    rekey, project = at_gate, at_gate.project
    old = project.rows("Users")[3]
    [found] = rekey("lookup", "--old", old["PartitionKey"], old["RowKey"], "--reason", "t", "--json").json[
        "rows"
    ]
    new = found["new"][0]
    assert new["table"] == "UsersV2"
    row = asyncio.run(project.tables.table("UsersV2").get(EntityKey(new["partition_key"], new["row_key"])))
    assert row["ContactEmail"] == old["RowKey"]
    back = rekey("lookup", "--new", new["partition_key"], new["row_key"], "--reason", "ticket 4711").out
    assert old["RowKey"] in back
    assert rekey("lookup", "--id", found["row_id"], "--reason", "t", "--json").json["rows"] == [found]
    nobody = ("--old", "p0", "nobody@example.com")
    assert "no such row" in rekey("lookup", *nobody, "--reason", "t", code=1).err
    with State.open(project.config.state, read_only=True) as state:
        events = [event.details for event in state.audit_events(SCRIPT) if event.event == "lookup"]
        assert state.check_chain() is None
    assert [event["by"] for event in events] == ["old", "new", "id", "old"]
    assert events[1]["reason"] == "ticket 4711"
    assert [event["found"] for event in events] == [True, True, True, False]
    assert every(events[number]["rows"] == [found["row_id"]] for number in (0, 2))
    assert events[1]["rows"] != [found["row_id"]], (
        "what was asked for, by its own safe id: nothing was opened yet"
    )
    assert "@example.com" not in str(events)


def test_lookup_refuses_reasons_with_the_key(at_gate: Commands) -> None:
    rekey, project = at_gate, at_gate.project
    old = project.rows("Users")[3]
    key = ("--old", old["PartitionKey"], old["RowKey"])
    rekey("lookup", *key, "--reason", f"asked for {old['RowKey'].upper()}", code=2)
    rekey("lookup", "--reason", "ticket 4711", code=2)
    rekey("lookup", *key, "--id", "abc", "--reason", "ticket 4711", code=2)
    assert "--reason" in rekey("lookup", *key, code=2).err
    rekey("lookup", *key, "--reason", "  ", code=2)
    rekey("lookup", "--id", "3m9k2v7c0q1x", "--reason", "for a@b.example", code=2)
    with State.open(project.config.state, read_only=True) as state:
        assert not [event for event in state.audit_events(SCRIPT) if event.event == "lookup"]


def test_lookup_finds_the_owner_of_an_index_row(tmp_path: Path, commands_on: CommandsOn) -> None:
    from tests.worlds.projects import POSTS_SCRIPT

    project = Project(tmp_path)
    project.script(POSTS_SCRIPT, "0001_posts.py")
    asyncio.run(project.fill("Posts", [post("first", tags="red,blue"), post("second", tags="red")]))
    rekey = commands_on(project)
    assert "has not begun" in rekey("lookup", "--new", "red", "first", "--reason", "t", code=3).err
    rekey("apply")
    [found] = rekey("lookup", "--new", "blue", "first", "--reason", "t", "--json").json["rows"]
    assert found["old"] == {"partition_key": "blog", "row_key": "first"}
    assert [one["table"] for one in found["new"]] == ["PostsV2", "PostsByTag", "PostsByTag"]


def test_a_ledger_id_is_what_status_reads(rekey: Commands, project: Project) -> None:
    rekey("apply", "--to", "prepare")
    with State.open(project.config.state, read_only=True) as state:
        assert ledger_id(SCRIPT, Phase.PREPARE) in state.ledger_ids()
    assert rekey("status", "--json").json["migrations"][0]["phases"] == ["prepare"]
