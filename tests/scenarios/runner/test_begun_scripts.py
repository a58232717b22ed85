"""Migrations that have begun are known without their script files; the files can be put back as they were."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from rekey.state.store import State
from tests.asserts.command_line import Commands, CommandsOn
from tests.asserts.every import every
from tests.worlds.example_rows import users
from tests.worlds.plans import fill
from tests.worlds.projects import USERS_SCRIPT, Project, lived

ID = "0001_users"


@pytest.fixture
def rekey(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    """A migration whose rows are copied, and its script where it belongs."""

    def live(project: Project) -> None:
        project.script(USERS_SCRIPT)
        asyncio.run(fill(project.tables, "Users", users(60)))
        project.clock.advance(3600)
        commands_on(project)("apply", ID)

    return commands_on(lived(__name__, tmp_path, live))


def path_of(rekey: Commands, script_id: str = ID) -> Path:
    return rekey.project.folder / "migrations" / f"{script_id}.py"


def rename(rekey: Commands) -> None:
    path_of(rekey).rename(path_of(rekey, "0001_people"))


def rename_and_edit(rekey: Commands) -> None:
    rename(rekey)
    path = path_of(rekey, "0001_people")
    path.write_text(path.read_text("utf-8").replace('domain="user"', 'domain="person"'), "utf-8")


def delete(rekey: Commands) -> None:
    path_of(rekey).unlink()


GONE = [pytest.param(one, id=one.__name__) for one in (rename, rename_and_edit, delete)]


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("go", GONE)
def test_status_names_the_command_for_the_script(rekey: Commands, go: Callable[[Commands], None]) -> None:
    content = path_of(rekey).read_bytes()
    go(rekey)
    said = rekey("status")
    assert "Users is the authority and rekey only reads it; UsersV2 is a copy" in words(said.out)
    assert "But its script 0001_users.py is gone" in words(said.out)
    assert "Nothing has been written" not in said.all
    [one] = [one for one in rekey("status", "--json").json["migrations"] if one["script_id"] == ID]
    assert one["stage"] == "reconcile done"
    command = one["next"]["command"].split()
    path_of(rekey, "0001_people").unlink(missing_ok=True)
    rekey(*command[1:])
    assert path_of(rekey).read_bytes() == content, "byte for byte"
    rekey("apply", ID)
    assert "gone" not in rekey("status").out


@pytest.mark.parametrize("go", GONE)
def test_what_writes_refuses_says_what_is_gone_and_never_to_empty_a_table(
    rekey: Commands, go: Callable[[Commands], None]
) -> None:
    go(rekey)
    before = rekey.project.rows("UsersV2")
    for command in (
        ("apply",),
        ("apply", ID),
        ("apply", ID, "--to", "cutover", "--writers-stopped"),
        ("verify", ID, "--mode", "full"),
        ("rollback", ID, "--to", "source", "--drop-targets"),
    ):
        said = words(rekey(*command, code=3).err)
        assert "0001_users has begun, and its script 0001_users.py is gone: renamed or deleted" in said
        assert "rekey show 0001_users --script --out" in said and "empty" not in said
        assert rekey.project.rows("UsersV2") == before, command


def test_a_script_under_a_new_name_is_told_under_which_it_was_begun(rekey: Commands) -> None:
    rename(rekey)
    for name in ("0001_people", "0001"):
        said = words(rekey("status", name).out)
        assert (
            "it fills the tables of 0001_users, which has begun, and whose file 0001_users.py is gone" in said
        )
        assert "rekey status 0001_users" in said
        assert "0001_people fills the same tables" in words(rekey("apply", name, code=3).err)
    path_of(rekey, "0001_people").rename(path_of(rekey))
    rekey("apply", ID)


def test_a_table_that_another_program_filled_is_not_to_be_emptied(rekey: Commands) -> None:
    """The state file may be lost, and with it what was begun: whose rows these are is not known."""
    rename(rekey)
    (rekey.project.folder / "state.sqlite").unlink()
    said = rekey("apply", "0001_people", code=3).err
    assert "holds rows that this migration did not write" in words(said) and "empty" not in said
    assert "rekey history" in words(said)


def test_history_lists_phases_and_times_also_of_what_was_rolled_back(rekey: Commands) -> None:
    rekey("rollback", ID, "--to", "source", "--drop-targets")
    said = words(rekey("history").out)
    assert said.startswith("0001_users: Users -> UsersV2 begun")
    for phase in ("prepare", "following", "backfill", "reconcile"):
        assert f" {phase} " in said
    assert "dual_write" not in said
    assert "rolled back" in said and "no phase of it is applied now" in said and "as it was begun" in said
    rekey.project.clock.advance(60)
    rekey("apply", ID)
    delete(rekey)
    [one] = rekey("history", "--json").json["migrations"]
    assert one["script"] == "gone" and one["targets"] == ["UsersV2"]
    assert one["phases"] == ["prepare", "dual_write", "backfill", "reconcile"]
    outcomes = [(step["phase"], step["outcome"]) for step in one["steps"]]
    assert outcomes[3:5] == [("reconcile", "done"), ("reconcile", "taken back")]
    assert outcomes[8:] == [(phase, "done") for phase in one["phases"]]
    assert every(step["at"] <= step["ended_at"] for step in one["steps"])


def test_a_script_that_was_edited_is_told_and_shown_as_it_was(rekey: Commands) -> None:
    path = path_of(rekey)
    before = path.read_text("utf-8")
    path.write_text(before.replace('domain="user"', 'domain="person"'), "utf-8")
    assert "0001_users.py was edited since" in words(rekey("history").out)
    assert rekey("show", ID, "--script").out == before
    assert rekey("show", "0001", "--script", "--json").json["script"] == before
    path.write_text("not Python at all", "utf-8")
    assert "0001_users.py cannot be read" in words(rekey("history", "0001").out)
    assert rekey("show", ID, "--script").out == before


def test_what_was_edited_after_the_beginning_is_not_kept_in_its_place(rekey: Commands) -> None:
    """A comment does not change the digest: the run goes on, and what is kept stays."""
    path = path_of(rekey)
    before = path.read_bytes()
    path.write_bytes(before + b"# a later remark\n")
    rekey("apply", ID)
    assert rekey("show", ID, "--script").out.encode() == before


def test_a_script_is_never_written_over_a_file(rekey: Commands) -> None:
    path = path_of(rekey)
    before = path.read_bytes()
    said = rekey("show", ID, "--script", "--out", str(path), code=2).err
    assert "does not exist" in said and path.read_bytes() == before


def test_a_name_that_was_never_begun_is_refused_with_those_that_were(rekey: Commands) -> None:
    said = rekey("show", "0009", code=2).err
    assert "no migration '0009' was begun; begun were: 0001_users" in words(said)
    assert "--out goes with --script" in rekey("show", ID, "--out", "x.py", code=2).err


def test_a_migration_of_a_version_that_kept_no_script_is_named_all_the_same(rekey: Commands) -> None:
    with closing(sqlite3.connect(rekey.project.folder / "state.sqlite")) as state:
        state.execute("DELETE FROM script")
        state.commit()
    content = path_of(rekey).read_bytes()
    delete(rekey)
    said = rekey("status")
    assert "its script is gone" in words(said.out) and "ATTENTION" in said.out
    assert rekey("status", "--json").json["lost"] == [ID]
    for command in (("apply",), ("apply", ID), ("verify", ID), ("rollback",), ("status", "0001")):
        assert "put 0001_users.py back there, as it was" in words(rekey(*command, code=3).err)
    assert "kept no script" in words(rekey("show", ID, "--script", code=3).err)
    path_of(rekey).write_bytes(content)
    rekey("apply", ID)
    delete(rekey)
    assert rekey("show", ID, "--script").out.encode() == content, "the next command kept it"


def test_a_kept_script_that_cannot_be_read_any_more_hides_nothing(rekey: Commands) -> None:
    with closing(sqlite3.connect(rekey.project.folder / "state.sqlite")) as state:
        state.execute("UPDATE script SET content = ?", (b"import no_such_module",))
        state.commit()
    delete(rekey)
    assert "its script is gone" in words(rekey("status").out)


def test_a_dependent_without_a_file_still_blocks_a_rollback(rekey: Commands) -> None:
    asyncio.run(fill(rekey.project.tables, "Members", users(10)))
    script = USERS_SCRIPT.replace('"UsersV2"', '"MembersV2"').replace('"Users"', '"Members"')
    rekey.project.script(f'{script}\n__depends__ = {{"0001_users"}}\n', "0002_next.py")
    rekey("apply", ID, "--to", "cutover", "--writers-stopped")
    rekey("apply", "0002")
    path_of(rekey, "0002_next").unlink()
    said = rekey("rollback", ID, "--to", "source", "--drop-targets", "--writers-stopped", code=3).err
    assert "0002_next builds on 0001_users" in words(said)


def test_only_its_owner_reads_what_the_state_file_keeps(rekey: Commands) -> None:
    path = rekey.project.folder / "state.sqlite"
    assert path.stat().st_mode & 0o077 == 0
    with State.open(path, read_only=True) as state:
        [kept] = state.kept_scripts()
    secret = (rekey.project.folder / "users.secret").read_bytes().strip()
    assert secret not in kept.content and "opaque" not in repr(kept)
