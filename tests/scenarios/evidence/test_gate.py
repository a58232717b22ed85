"""`retire` asks for evidence: signed, exported after `complete`, and verified on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rekey.evidence.keys import PublicKey
from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.evidence import TO_CUTOVER, exported, rows, with_key
from tests.worlds.projects import USERS_SCRIPT, Project, lived

RETIRE = ("retire", "0001", "--table", "Users", "--no-backup", "a test")
MISSING = "no signed evidence"


@pytest.fixture
def rekey(tmp_path: Path, commands_on: CommandsOn) -> Commands:
    def live(project: Project) -> None:
        project.script(USERS_SCRIPT)
        asyncio.run(project.fill("Users", rows(10)))
        rekey = commands_on(project)
        rekey("apply", "0001")
        rekey(*TO_CUTOVER)

    return commands_on(lived(__name__, tmp_path, live))


@pytest.fixture
def key(rekey: Commands) -> PublicKey:
    return with_key(rekey.project.folder)


def complete(rekey: Commands) -> None:
    rekey("apply", "0001", "--to", "complete", "--yes", "0001_users")


def test_exported_and_verified_since_complete_opens_the_gate(rekey: Commands, key: PublicKey) -> None:
    complete(rekey)
    assert MISSING in rekey(*RETIRE, code=3).err
    folder = exported(rekey)
    assert MISSING in rekey(*RETIRE, code=3).err, "nobody has verified it"
    rekey("evidence", "verify", str(folder))
    assert "is deleted" in rekey(*RETIRE).out


def test_a_bundle_of_before_complete_does_not_count(rekey: Commands, key: PublicKey) -> None:
    before = exported(rekey, "before")
    rekey("evidence", "verify", str(before))
    complete(rekey)
    assert MISSING in rekey(*RETIRE, code=3).err
    rekey("evidence", "verify", str(before))
    assert MISSING in rekey(*RETIRE, code=3).err, "verified again, it still does not show how it ended"


def test_a_bundle_that_nobody_signed_does_not_count(rekey: Commands) -> None:
    complete(rekey)
    folder = exported(rekey)
    key = with_key(rekey.project.folder)
    assert key
    rekey("evidence", "verify", str(folder), code=1)
    assert MISSING in rekey(*RETIRE, code=3).err


def test_a_bundle_that_was_tampered_with_does_not_count(rekey: Commands, key: PublicKey) -> None:
    complete(rekey)
    folder = exported(rekey)
    (folder / "data/more").write_text("x", "utf-8")
    rekey("evidence", "verify", str(folder), code=1)
    assert MISSING in rekey(*RETIRE, code=3).err


def test_a_bundle_of_another_project_does_not_count(rekey: Commands, key: PublicKey, tmp_path: Path) -> None:
    complete(rekey)
    folder = exported(rekey)
    state = rekey.project.config.state
    kept = state.read_bytes()
    rekey("evidence", "verify", str(folder))
    assert kept != state.read_bytes() or state.with_name(state.name + "-wal").exists()
    other = exported(rekey, "other")
    said = rekey("evidence", "verify", str(other), "--json").json
    assert said["recorded"] is True
    (tmp_path / "elsewhere").mkdir()
    public = str(rekey.project.folder / "evidence.pub.pem")
    config = tmp_path / "elsewhere" / "rekey.toml"
    config.write_text((rekey.project.folder / "rekey.toml").read_text("utf-8"), "utf-8")
    words = ("evidence", "verify", str(other), "--key", public, "--config", str(config), "--json")
    assert rekey(*words).json["recorded"] is False
