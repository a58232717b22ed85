"""`rekey apply --follow`, `rekey proceed` and hooks: the installed command on Azurite."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from rekey.rehearse.azurite import Azurite
from tests.scenarios.status.test_progress import check
from tests.worlds.azurite_projects import Project
from tests.worlds.projects import USERS_SCRIPT
from tests.worlds.small import user

pytestmark = pytest.mark.azurite
ROWS = 300
HOOK = """\
#!/bin/sh
told=$(mktemp told/XXXXXXXX)
cat > "$told.part"
env > "$told.env"
mv "$told.part" "$told.json"
"""


@pytest.fixture
def project(tmp_path: Path, azurite: Azurite) -> Project:
    made = Project(tmp_path, azurite)
    script = USERS_SCRIPT.replace("UsersV2", made.target).replace('source="Users"', f'source="{made.source}"')
    (made.migrations / f"{made.script_id}.py").write_text(script, "utf-8")
    made.configure(
        more='[follow]\nevery = "1s"\ncompare_every = "3s"\nshare = 0.5\n'
        '[hooks]\ncommand = ["./hook.sh"]\ntimeout = "20s"'
    )
    (tmp_path / "told").mkdir()
    hook = tmp_path / "hook.sh"
    hook.write_text(HOOK, "utf-8")
    hook.chmod(stat.S_IRWXU)
    made.fill([user(f"user{number}@example.com", f"p{number % 3}") for number in range(ROWS)])
    return made


def told(project: Project) -> list[dict[str, Any]]:
    """What the hook got so far, in order."""
    documents = [json.loads(path.read_text()) for path in (project.folder / "told").glob("*.json")]
    return sorted(documents, key=lambda one: str(one["event"]["at"]))


def status(project: Project) -> dict[str, Any]:
    [one] = project.run("status", "--json").ended(0).document["migrations"]
    return dict(one)


def test_it_follows_in_the_background_is_stopped_goes_on_and_cuts_over_when_it_is_told(
    project: Project,
) -> None:
    def follows() -> bool:
        following = status(project)["following"]
        return following is not None and following["at_work"]

    def is_there(name: str) -> bool:
        return any(row.get("Name") == name for row in project.wire.rows(project.target))

    following = project.start("apply", "--follow")
    assert following.until(follows)
    project.wire.insert(project.source, user("late@example.com", "p1"))
    assert following.until(lambda: is_there("late"))
    seen = status(project)
    assert seen["next"]["command"] == f"rekey proceed {project.script_id} --writers-stopped"
    assert seen["lag_s"] < 60
    stopped = following.signal(signal.SIGINT).ended(130, f"rekey apply {project.script_id} --follow")
    assert "followed since" in stopped.err
    assert status(project)["following"] is None

    again = project.start("apply", "--follow")
    assert again.until(follows)
    before = status(project)["verification"]["finished_at"]
    project.wire.delete(project.source, ("p0", "user0@example.com"))
    assert again.until(lambda: status(project)["verification"]["finished_at"] > before)
    assert again.until(lambda: not is_there("user0")), "what was deleted goes with a comparison"
    project.run("proceed").ended(0, "it was told to cut over")
    assert again.until(lambda: bool(status(project)["following"]["refused"])), "nobody confirmed it"
    project.run("status").ended(0, "--writers-stopped", "its last cutover was refused")
    project.run("proceed", "--writers-stopped").ended(0)
    done = again.wait().ended(0, "cutover", "Stopped before complete.")
    assert "`rekey proceed` of" in done.err and "was heard" in done.err
    assert project.run("status").ended(0).said.count("is the authority") == 1
    assert len(project.wire.rows(project.target)) == ROWS

    documents = told(project)
    for document in documents:
        check(document)
        assert "@example.com" not in json.dumps(document)
    events = [(one["event"]["name"], one["event"].get("phase", "")) for one in documents]
    begun = [phase for name, phase in events if name == "phase-begun"]
    assert begun == ["prepare", "dual_write", "backfill", "reconcile", "cutover"]
    assert [phase for name, phase in events if name == "phase-ended"] == begun
    assert events.index(("freeze", "")) == events.index(("phase-begun", "cutover")) + 1
    assert [name for name, _ in events if name in ("gate-refused", "done")] == ["gate-refused", "done"]
    [refused] = [one["event"] for one in documents if one["event"]["name"] == "gate-refused"]
    assert "--writers-stopped" in refused["reasons"][0]
    ended = next(one for one in documents if one["event"] | {"phase": "cutover"} == one["event"])
    assert ended["migrations"][0]["following"]["at_work"] and ended["migrations"][0]["runner"]["live"]


def test_a_hook_gets_the_environment_of_the_command_and_no_more(project: Project) -> None:
    """A shell adds three variables of its own."""
    project.run("apply", "--to", "prepare").ended(0)
    [first, *_] = (project.folder / "told").glob("*.env")
    names = {line.partition("=")[0] for line in first.read_text().splitlines() if "=" in line}
    given = {*project.environment, "COLUMNS", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_"}
    assert names - given <= set(os.environ)
