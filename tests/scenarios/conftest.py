"""A project in a folder of its own, and commands on it. Modules that need more override these fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.erasure import Lives
from tests.worlds.projects import Project


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the scenarios of a file in one process: what `lived` keeps is lived once there."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem}"))


@pytest.fixture
def commands_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandsOn:
    return lambda project: Commands(project, capsys, monkeypatch)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def rekey(project: Project, commands_on: CommandsOn) -> Commands:
    return commands_on(project)


@pytest.fixture
def lives(tmp_path: Path, commands_on: CommandsOn, monkeypatch: pytest.MonkeyPatch) -> Lives:
    return Lives(tmp_path, commands_on, monkeypatch)
