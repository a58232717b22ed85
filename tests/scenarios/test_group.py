"""Several scripts, one cutover: the whole life of a group, its refusals and its kills, on tables in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rekey.errors import Findings, GateClosed, Refused, WriterAtWork
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import EntityKey
from rekey.phases import ControlPhase, Phase
from rekey.protocol.control import ControlStore
from rekey.runner import commands
from rekey.runner.run import Options
from tests.projects import USERS_SCRIPT, Project
from tests.worlds import user

STOPPED = Options(writers_stopped=True)
GROUP = "billing"


def script_of(source: str, target: str, group: str = GROUP) -> str:
    """Return a script of the group for one table."""
    made = USERS_SCRIPT.replace('"Users"', f'"{source}"').replace('"UsersV2"', f'"{target}"')
    return made.replace("    capture=", f'    group="{group}",\n    capture=')


def grouped(folder: Path, members: int = 3, rows: int = 12) -> Project:
    """Return a project whose scripts are one group, with filled sources."""
    made = Project(folder)
    for number in range(members):
        made.script(script_of(f"Users{number}", f"Users{number}V2"), f"000{number}_users.py")
        asyncio.run(made.fill(f"Users{number}", [user(f"a{row}@{number}.com") for row in range(rows)]))
    return made


def phases(project: Project) -> list[ControlPhase]:
    """Return what the control rows of the group say."""
    store = ControlStore(project.restricted, "0000_users", GROUP)
    return [row.phase for row in asyncio.run(store.members())]


def apply(
    project: Project, to: Phase | None = Phase.CUTOVER, options: Options = STOPPED
) -> list[commands.Applied]:
    with project.session(options) as session:
        return commands.apply_group(session, GROUP, to=to)


def test_a_group_cuts_over_goes_back_and_completes_as_one(tmp_path: Path) -> None:
    project = grouped(tmp_path)
    done = apply(project)
    assert [one.next_phase for one in done] == [Phase.COMPLETE] * 3
    assert phases(project) == [ControlPhase.CUTOVER] * 3
    rows = [row for row in project.restricted.dump(CONTROL_TABLE) if "MoveId" in row]
    assert len({row["MoveId"] for row in rows}) == 1
    with project.session(STOPPED) as session:
        undone = commands.rollback_group(session, GROUP, to=None, drop=None)
    assert set(map(tuple, undone.values())) == {(Phase.CUTOVER,)}
    assert phases(project) == [ControlPhase.DUAL_WRITE] * 3
    apply(project, Phase.COMPLETE)
    assert phases(project) == [ControlPhase.COMPLETE] * 3
