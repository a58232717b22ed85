"""Two projects with a script of the same id in one restricted store: the second is told whose it is, and
leaves it alone. A script that was edited after it began is told as edited, before anything else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT, Project
from tests.worlds.small import post, user

ID = "0001_users"
TAKEN = f"another project's migration {ID} is in this restricted store: Users -> UsersV2"
PLAIN = """
from rekey import Migration, Target, keys

__depends__ = set()
migration = Migration(
    source="Users",
    target=Target("UsersV2", partition_key=keys.prop("PartitionKey"), row_key=keys.lower("RowKey")),
    capture="delta",
    mapping="plain",
    reverse=False,
    waive={"personal-data": "made up", "merged-keys": "on purpose"},
)
"""


@pytest.fixture
def first(tmp_path: Path, commands_on: CommandsOn) -> Project:
    """A project that is at the gate before cutover."""
    project = Project(tmp_path / "first")
    project.script(USERS_SCRIPT)
    asyncio.run(project.fill("Users", [user(f"user{number}@example.com") for number in range(8)]))
    commands_on(project)("apply")
    return project


@pytest.fixture
def second(first: Project, tmp_path: Path, commands_on: CommandsOn) -> Commands:
    """Another project with the same restricted store, that has begun nothing."""
    project = Project(tmp_path / "second", clock=first.clock)
    project.restricted = first.restricted
    return commands_on(project)


def test_the_second_project_is_told_whose_migration_is_there(first: Project, second: Commands) -> None:
    second.project.script(POSTS_SCRIPT)
    asyncio.run(second.project.fill("Posts", [post("a", tags="x")]))
    before = first.restricted.dump("rekeycontrol"), first.restricted.dump("rekeymap")
    told = second("status")
    assert TAKEN in " ".join(told.out.split())
    assert "not begun" in told.out and "reconcile" not in told.out
    [document] = second("status", "--json").json["migrations"]
    assert (document["phases"], document["control"], document["clients"]) == ([], None, [])
    plan = " ".join(second("plan", code=1).out.split())
    assert TAKEN in plan and "declaration-moved" not in plan
    for words in (("apply",), ("verify",), ("rollback", "--to", "source", "--drop-targets")):
        refused = second(*words, ID, code=3)
        assert TAKEN in refused.err and "give 0001_users.py another name" in refused.err
        assert "edited after" not in refused.err
    looked = second("lookup", ID, "--id", "3m9k2v7c0q1x", "--reason", "ticket 4711", code=3)
    assert TAKEN in looked.err
    assert (first.restricted.dump("rekeycontrol"), first.restricted.dump("rekeymap")) == before


def test_with_another_name_the_second_project_goes_on(second: Commands) -> None:
    second.project.script(POSTS_SCRIPT, "0001_posts.py")
    asyncio.run(second.project.fill("Posts", [post("a", tags="x")]))
    second("apply")


def test_the_same_script_on_another_account_is_another_migration(first: Project, second: Commands) -> None:
    """As staging and production that share a store: nothing of the one may be taken for the other's."""
    second.project.script(USERS_SCRIPT)
    path = second.project.folder / "rekey.toml"
    text = path.read_text("utf-8").replace("10002/devstoreaccount1", "10002/another", 1)
    path.write_text(text.replace('"\n[restricted]', '"\nkey_env = "KEY"\n[restricted]', 1), "utf-8")
    asyncio.run(second.project.fill("Users", [user("other@example.com")]))
    refused = second("apply", code=3)
    assert f"{TAKEN} in http://127.0.0.1:10002/devstoreaccount1" in refused.err
    assert not asyncio.run(second.project.tables.table_exists("UsersV2"))


def test_the_same_script_on_the_same_account_is_the_same_migration(first: Project, second: Commands) -> None:
    """Another machine, or a state file that was lost; an emulator may have another host there."""
    second.project.script(USERS_SCRIPT)
    second.project.tables = first.tables
    path = second.project.folder / "rekey.toml"
    path.write_text(path.read_text("utf-8").replace("127.0.0.1", "[::1]"), "utf-8")
    second("apply")
    assert second("status", "--json").json["migrations"][0]["control"]["phase"] == "dual_write"


def test_an_edit_is_reported_without_a_state_file(first: Project, second: Commands) -> None:
    """It is of the same tables. One of other tables may be another project's: both are told."""
    second.project.script(USERS_SCRIPT.replace('props.drop("Ssn")', 'props.keep("Ssn")'))
    second.project.tables = first.tables
    assert "was edited after its first phase" in second("apply", code=3).err
    second.project.script(USERS_SCRIPT.replace('"UsersV2"', '"UsersV3"'))
    assert "whose state file was lost and whose script was edited since" in second("apply", code=3).err


def test_an_edit_that_needs_a_key_is_reported(tmp_path: Path, commands_on: CommandsOn) -> None:
    """It has no root key, nor a secret, and needs both now: nobody took them away."""
    rekey = commands_on(Project(tmp_path))
    rekey.project.script(PLAIN)
    asyncio.run(rekey.project.fill("Users", [user(f"user{number}@example.com") for number in range(8)]))
    rekey("apply")
    edited = PLAIN.replace(
        'keys.lower("RowKey")', 'keys.opaque("RowKey", domain="user", secret="unknown")'
    ).replace('    mapping="plain",\n', "")
    rekey.project.script(edited)
    plan = " ".join(rekey("plan", code=1).out.split())
    assert "the script was edited after the migration was begun" in plan
    assert plan.index("edited after") < plan.index("`unknown`")
    assert "root key" not in plan and "report it" not in plan
    assert "was edited after the first phase" in " ".join(rekey("status").out.split())
    for words in (
        ("apply",),
        ("verify",),
        ("rollback", "--to", "source", "--drop-targets"),
        ("lookup", "--id", "3m9k2v7c0q1x", "--reason", "ticket 4711"),
    ):
        refused = rekey(*words, code=3)
        assert "was edited after its first phase" in refused.err, words
        assert "root key" not in refused.err.partition("Next:")[0]
