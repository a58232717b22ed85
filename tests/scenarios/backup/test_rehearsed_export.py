"""`rekey rehearse --data FOLDER` takes the rows of an export, all of which are checked before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rekey.errors import ExitCode
from tests.asserts.command_line import Commands
from tests.worlds.backups import ROWS, canonical, contents, filled, parts_of, small_parts
from tests.worlds.projects import Project

SCRIPT = Path(__file__).parents[3] / "migrations" / "0001_users_opaque_ids.py"


class _Started(Exception):
    """The rehearsal was called."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a rehearsal is called with; it ends at once."""
    given: list[Any] = []

    def rehearsed(_script: Path, *, data: Any, **_more: Any) -> None:
        given.append(data)
        raise _Started

    monkeypatch.setattr("rekey.cli.rehearse.rehearsed", rehearsed)
    return given


@pytest.fixture
def world(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    small_parts(monkeypatch)
    return filled(project)


@pytest.mark.parametrize("plainly", [(), ("--plain",)], ids=["sealed", "plain"])
def test_a_rehearsal_takes_all_rows_of_an_export(
    world: Project, rekey: Commands, tmp_path: Path, started: list[Any], plainly: tuple[str, ...]
) -> None:
    rekey("export", "Users", str(tmp_path / "out"), *plainly)
    rekey("rehearse", str(SCRIPT), "--data", str(tmp_path / "out"), code=ExitCode.SERVICE)
    [data] = started
    rows = list(data.rows())
    assert len(rows) == ROWS
    assert canonical(rows) == canonical(contents(world, "Users"))
    assert "from out, an export of Users begun at" in data.described


def test_an_export_in_the_clear_is_rehearsed_without_a_configuration(
    world: Project, rekey: Commands, tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rekey("export", "Users", str(tmp_path / "out"), "--plain")
    monkeypatch.setenv("REKEY_CONFIG", str(tmp_path / "none.toml"))
    rekey("rehearse", str(SCRIPT), "--data", str(tmp_path / "out"), code=ExitCode.SERVICE)
    assert len(started) == 1


def test_a_changed_export_is_not_rehearsed(
    world: Project, rekey: Commands, tmp_path: Path, started: list[Any]
) -> None:
    rekey("export", "Users", str(tmp_path / "out"))
    last = list(parts_of(tmp_path / "out"))[-1]
    (tmp_path / "out" / last).write_bytes(b"changed")
    said = rekey("rehearse", str(SCRIPT), "--data", str(tmp_path / "out"), code=ExitCode.REFUSED)
    assert last in said.err
    assert not started
