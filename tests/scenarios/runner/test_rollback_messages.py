"""A rollback says how many rows came back, and what became of the targets; status fits the terminal."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path

import pytest

from rekey.cli.main import run
from rekey.cli.shell import Surroundings
from rekey.model import key_of
from tests.asserts.command_line import Commands, CommandsOn
from tests.unit.cli.test_shell import Terminal
from tests.worlds.evidence import rows
from tests.worlds.plans import fill
from tests.worlds.projects import USERS_SCRIPT, Project, applied
from tests.worlds.scripts import under_writes


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project at the gate of cutover."""
    return applied(tmp_path, USERS_SCRIPT, rows(60))


def words(text: str) -> str:
    return " ".join(text.split())


async def write_target(project: Project, *, changed: int, deleted: int) -> None:
    """The application changes rows of the target, and deletes others."""
    table, rows = project.tables.table("UsersV2"), list(project.rows("UsersV2"))
    for row in rows[:changed]:
        await table.merge({"PartitionKey": row["PartitionKey"], "RowKey": row["RowKey"], "Name": "changed"})
    for row in rows[changed : changed + deleted]:
        await table.delete(key_of(row))


@pytest.mark.parametrize(
    ("changed", "deleted", "said"),
    [
        (7, 2, "7 rows came back to Users, 2 rows deleted there"),
        (1, 1, "1 row came back to Users, 1 row deleted there"),
        (0, 0, "0 rows came back to Users, 0 rows deleted there"),
    ],
)
def test_a_rollback_says_how_many_rows_came_back(
    rekey: Commands, project: Project, changed: int, deleted: int, said: str
) -> None:
    rekey("apply", "--to", "cutover", "--writers-stopped")
    project.clock.advance(60)
    asyncio.run(write_target(project, changed=changed, deleted=deleted))
    project.clock.advance(60)
    assert said in words(rekey("rollback", "--writers-stopped").out)
    assert len(project.rows("Users")) == 60 - deleted
    assert sum(row["Nm"] == "changed" for row in project.rows("Users")) == changed
    [event] = [
        one
        for one in rekey("history", "--json").json["migrations"][0]["steps"]
        if one["outcome"] == "taken back"
    ]
    assert event["phase"] == "cutover"


def test_the_document_of_a_rollback_has_the_counts(rekey: Commands, project: Project) -> None:
    rekey("apply", "--to", "cutover", "--writers-stopped")
    project.clock.advance(60)
    asyncio.run(write_target(project, changed=3, deleted=1))
    document = rekey("rollback", "--writers-stopped", "--json").json
    assert document["counters"] == {"rows_copied_back": 3, "rows_deleted_in_source": 1}
    assert rekey("rollback", "--to", "source", "--drop-targets", "--json").json["counters"] == {}


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--drop-targets", "UsersV2 dropped, and what was known of the keys"),
        ("--keep-targets", "UsersV2 kept as before"),
    ],
)
def test_a_rollback_to_source_names_the_targets(rekey: Commands, option: str, said: str) -> None:
    out = words(rekey("rollback", option).out)
    assert f"targets {said}" in out and "came back" not in out


def test_dual_write_needs_no_copy_back(tmp_path: Path, commands_on: CommandsOn) -> None:
    rekey = commands_on(applied(tmp_path, under_writes(USERS_SCRIPT), rows(60)))
    rekey("apply", "--to", "cutover", "--writers-stopped")
    said = words(rekey("rollback").out)
    assert "none had to come back: what was written to the target since cutover is in Users already" in said


def test_status_on_a_terminal(rekey: Commands, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = {}
    for columns in (60, 120):
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("NO_COLOR", "1")
        assert run(["status"], Surroundings(project.connect, project.clock)) == 0
        lines = [one for one in screen.getvalue().splitlines() if not one.startswith("  next")]
        widths[columns] = max(map(len, lines))
    assert widths[60] <= 60 < widths[120] <= 120
    assert isinstance(screen, io.StringIO)


def test_migrations_that_are_not_safe_come_first(rekey: Commands, project: Project) -> None:
    script = USERS_SCRIPT.replace('"UsersV2"', '"MembersV2"').replace('"Users"', '"Members"')
    project.script(script.replace('secret="users"', 'secret="members"'), "0002_members.py")
    asyncio.run(fill(project.tables, "Members", rows(5)))
    config, secret = project.folder / "rekey.toml", project.folder / "members.secret"
    secret.write_text("abcd" * 8, "utf-8")
    text = config.read_text("utf-8").replace(
        "[sealing]", '[secrets.members]\nfile = "members.secret"\n[sealing]'
    )
    config.write_text(text, "utf-8")
    project.clock.advance(3600)
    rekey("apply")
    assert rekey("status").out.startswith("0001_users")
    secret.unlink()
    assert rekey("status").out.startswith("0002_members")
