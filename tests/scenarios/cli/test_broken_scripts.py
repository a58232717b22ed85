"""A script that cannot be used is no fault of the others: commands on one migration load that migration.

Soak: a syntax error, and a script without a migration.
Reason, and what `make test` covers: a script that raises takes the same way.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.asserts.command_line import Commands, CommandsOn
from tests.soaking import others_in_soak
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT, Project
from tests.worlds.small import user

ID = "0001_users"
BROKEN = {
    "syntax error": "x = (",
    "raises": "raise ValueError('secret text')",
    "no migration": "x = 1",
    "the same target": USERS_SCRIPT.replace('"Users"', '"Others"'),
    "an unknown dependency": POSTS_SCRIPT + '__depends__ = {"0009_none"}\n',
}
COMMANDS = (
    ("status", "0001"),
    ("plan", "0001"),
    ("verify", "0001"),
    ("apply", "0001"),
    ("apply", "0001", "--to", "cutover", "--writers-stopped"),
    ("rollback", "0001", "--writers-stopped"),
    ("rollback", "0001", "--to", "source", "--drop-targets"),
)


@pytest.fixture
def rekey(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    """A project at the gate before cutover."""
    project = Project(tmp_path)
    project.script(USERS_SCRIPT)
    asyncio.run(project.fill("Users", [user(f"user{number}@example.com") for number in range(8)]))
    rekey = commands_on(project)
    rekey("apply")
    return rekey


@pytest.mark.parametrize(
    "how", others_in_soak(BROKEN, kept=("raises", "the same target", "an unknown dependency"))
)
def test_commands_on_a_migration_work_next_to_a_script_that_cannot_be_used(rekey: Commands, how: str) -> None:
    rekey.project.script(BROKEN[how], "0002_wip.py")
    for words in COMMANDS:
        said = rekey(*words)
        assert "warning: 0002_wip: " in said.err and "it is left out" in said.err
        assert "secret text" not in said.all
    for words in (("status", "0002"), ("apply", "0002_wip"), ("plan", "migrations/0002_wip.py"), ("apply",)):
        refused = rekey(*words, code=2)
        assert "0002_wip: " in refused.err and "Next: " in refused.err


def test_status_of_all_migrations_names_the_script_that_cannot_be_used(rekey: Commands) -> None:
    rekey.project.script("x = (", "0002_wip.py")
    said = " ".join(rekey("status").out.split())
    assert "0002_wip ATTENTION Its script cannot be used: 0002_wip: syntax error in line 1" in said
    assert f"{ID}: " in said


def test_a_script_with_a_lower_id_is_at_fault_where_the_other_has_begun(rekey: Commands) -> None:
    """Whoever has begun to fill a table goes on."""
    rekey.project.script(BROKEN["the same target"], "0000_wip.py")
    assert f"warning: 0000_wip: target: {ID} fills the table UsersV2 too" in rekey("apply", ID).err
    assert "fills the table UsersV2 too" in rekey("apply", "0000", code=2).err


def test_the_command_that_shows_a_syntax_error_names_the_file_from_here(
    rekey: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = rekey.project.folder / "migrations/0002_wip.py"
    path.write_text("x = (", "utf-8")
    monkeypatch.chdir(rekey.project.folder)
    assert "`python -m py_compile migrations/0002_wip.py`" in rekey("apply", "0002", code=2).err
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert f"`python -m py_compile {path}`" in rekey("apply", "0002", code=2).err


def test_a_script_that_depends_on_one_that_cannot_be_used_waits_for_it(rekey: Commands) -> None:
    rekey.project.script("x = (", "0002_wip.py")
    rekey.project.script(POSTS_SCRIPT + '__depends__ = {"0002_wip"}\n', "0003_posts.py")
    refused = rekey("apply", "0003", code=2)
    assert "0003_posts: __depends__: 0002_wip cannot be used" in refused.err
    rekey("status", "0001")


@pytest.fixture
def chain(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    """A migration that was cut over, and one that depends on it and is copied."""
    rekey = commands_on(Project(tmp_path))
    rekey.project.script(USERS_SCRIPT)
    rekey.project.script(POSTS_SCRIPT + f'__depends__ = {{"{ID}"}}\n', "0002_posts.py")
    asyncio.run(rekey.project.fill("Users", [user("a@example.com")]))
    asyncio.run(rekey.project.fill("Posts", []))
    rekey("apply", ID)
    rekey("apply", ID, "--to", "cutover", "--writers-stopped")
    rekey("apply", "0002")
    return rekey


def test_a_begun_migration_needs_no_usable_dependency(chain: Commands) -> None:
    rekey = chain
    rekey.project.script("x = (")
    said = rekey("status", "0002")
    assert f"warning: {ID}: syntax error" in said.err
    rekey("verify", "0002")
    whole = " ".join(rekey("status").out.split())
    assert f"its script cannot be used ({ID}: syntax error" in whole
    refused = rekey("rollback", ID, "--writers-stopped", code=2)
    assert "syntax error" in refused.err
    rekey("rollback", "0002", "--to", "source", "--drop-targets")


def test_an_unreadable_dependent_blocks_a_rollback(chain: Commands) -> None:
    chain.project.script("x = (", "0002_posts.py")
    assert "0002_posts builds on 0001_users" in chain("rollback", ID, "--writers-stopped", code=3).err


def test_a_group_is_not_taken_for_whole_while_a_script_cannot_be_used(rekey: Commands) -> None:
    """It may be one of the group."""
    rekey.project.script("x = (", "0002_wip.py")
    assert "0002_wip: syntax error" in rekey("status", "--group", "billing", code=2).err
