"""Status says that a migration is not safe when a secret or the wrapping key is missing or another one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.example_rows import users
from tests.worlds.plans import fill
from tests.worlds.projects import USERS_SCRIPT, Project, lived

OTHER = "ab" * 32


@pytest.fixture
def rekey(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    """A migration with a sealed mapping, ready for cutover."""

    def live(project: Project) -> None:
        project.script(USERS_SCRIPT)
        asyncio.run(fill(project.tables, "Users", users(60)))
        project.clock.advance(3600)
        commands = commands_on(project)
        commands("apply")
        assert "next rekey apply 0001_users --to cutover" in words(commands("status").out)

    return commands_on(lived(__name__, tmp_path, live))


def words(text: str) -> str:
    return " ".join(text.split())


CASES = [
    pytest.param("users.secret", None, "secret `users`: the file", "put it there", id="secret missing"),
    pytest.param("users.secret", "short", "secret `users` is too short", "make one", id="secret too short"),
    pytest.param(
        "users.secret",
        OTHER,
        "the secret `users` is not the one that 0001_users started with",
        "configure the secret of the start",
        id="secret changed",
    ),
    pytest.param(
        "sealing.key", None, "the wrapping key: the file", "put it where", id="wrapping key missing"
    ),
    pytest.param(
        "sealing.key",
        OTHER,
        "the mapping is sealed with the wrapping key",
        "put the wrapping key back",
        id="wrapping key changed",
    ),
]


@pytest.mark.parametrize(("file", "content", "what", "step"), CASES)
@pytest.mark.parametrize("phase", ["dual_write", "cutover", "complete"])
def test_a_begun_migration_whose_key_is_not_what_it_was_is_not_safe(
    rekey: Commands, phase: str, file: str, content: str | None, what: str, step: str
) -> None:
    if phase != "dual_write":
        named = ("--yes", "0001_users") if phase == "complete" else ()
        rekey("apply", "--to", phase, "--writers-stopped", *named)
    path = rekey.project.folder / file
    before = path.read_bytes()
    path.unlink() if content is None else path.write_text(content, "utf-8")
    [found] = rekey("status", "--json").json["migrations"]
    assert not found["safe"] and what in found["sentence"] and step in found["next"]["remark"]
    assert found["next"]["command"] == "rekey status 0001_users"
    assert found["refused"].startswith(what)
    said = words(rekey("status").out)
    assert "ATTENTION" in said and "--to cutover" not in said and " safe " not in said
    assert OTHER not in said
    assert rekey("verify", code=None).err, "what status says is what a command says"
    path.write_bytes(before)
    [mended] = rekey("status", "--json").json["migrations"]
    assert mended["safe"] and not mended["refused"]


def test_before_begin_nothing_is_at_risk_and_the_secret_is_named(rekey: Commands) -> None:
    rekey("rollback", "--to", "source", "--drop-targets")
    (rekey.project.folder / "users.secret").unlink()
    [found] = rekey("status", "--json").json["migrations"]
    assert found["safe"] and "Nothing has been written" in found["sentence"]
    assert "secret `users`: the file" in found["sentence"] and "put it there" in found["next"]["remark"]


def test_a_key_that_was_replaced_and_is_named_as_the_previous_one_is_safe(rekey: Commands) -> None:
    folder = rekey.project.folder
    (folder / "old.key").write_bytes((folder / "sealing.key").read_bytes())
    (folder / "sealing.key").write_text(OTHER, "utf-8")
    config = folder / "rekey.toml"
    config.write_text(f'{config.read_text("utf-8")}\n[sealing.previous]\nfile = "old.key"\n', "utf-8")
    [found] = rekey("status", "--json").json["migrations"]
    assert found["safe"] and not found["refused"]


def test_when_the_source_is_deleted_no_key_is_asked_for(rekey: Commands) -> None:
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", "0001_users")
    (rekey.project.folder / "users.secret").unlink()
    assert "started with" not in rekey("status").out
