"""Hooks of a whole command: which events there are; and one that fails stops nothing but a cutover."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from rekey.tables.base import Table
from tests.asserts.command_line import Commands
from tests.fakes.faults import Call
from tests.scenarios.status.test_progress import check
from tests.worlds.followed import keep_real_time_out
from tests.worlds.projects import USERS_SCRIPT, Project
from tests.worlds.small import user

STOPPED = "--writers-stopped"


class Hooked(Commands):
    """The commands of a project with a hook that keeps what it gets."""

    def configure(self, text: str, *more: str) -> None:
        folder = self.project.folder
        (folder / "told").mkdir()
        hook = folder / "hook.sh"
        hook.write_text(
            f'#!/bin/sh\ntold=$(mktemp XXXXXXXX)\ncat > "$told" && mv "$told" told\n{text}\n', "utf-8"
        )
        hook.chmod(stat.S_IRWXU)
        config = folder / "rekey.toml"
        lines = [config.read_text("utf-8"), "[hooks]", 'command = ["./hook.sh"]', *more]
        config.write_text("\n".join(lines) + "\n", "utf-8")

    @property
    def told(self) -> list[dict[str, Any]]:
        """The documents that the hook got, in order."""
        paths = sorted((self.project.folder / "told").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return [check(json.loads(path.read_text())) for path in paths]

    @property
    def events(self) -> list[str]:
        return [one["event"]["name"] for one in self.told]


@pytest.fixture
def rekey(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Hooked:
    keep_real_time_out(monkeypatch)
    project = Project(tmp_path)
    project.script(USERS_SCRIPT)
    asyncio.run(project.fill("Users", [user(f"user{number}@example.com") for number in range(8)]))
    return Hooked(project, capsys, monkeypatch)


def users(rekey: Hooked, name: str) -> Table:
    return rekey.project.tables.table(name)


def test_a_hook_that_fails_is_told_and_stops_nothing_but_a_cutover(rekey: Hooked) -> None:
    rekey.configure("exit 4")
    said = rekey("apply").err
    assert "0001_users: [hooks] command ended with exit code 4, at `phase-begun`; the work goes on" in said
    assert rekey.events.count("phase-ended") == 4 and rekey.events[-1] == "done"
    refused = rekey("apply", "--to", "cutover", STOPPED, code=3).err
    assert "the gate before `cutover` is closed: [hooks] command ended with exit code 4" in refused
    assert "fix what it runs, or take it out" in refused
    assert f"`rekey apply 0001_users --to cutover {STOPPED}`" in refused
    (rekey.project.folder / "hook.sh").write_text("#!/bin/sh\nexit 0\n", "utf-8")
    rekey("apply", "--to", "cutover", STOPPED)


def test_a_gate_that_refuses_and_rows_that_differ_are_told(rekey: Hooked) -> None:
    rekey("apply")
    rekey.configure("exit 0")
    rekey("apply", "--to", "cutover", code=3)
    [event] = [one["event"] for one in rekey.told]
    assert (event["name"], event["phase"]) == ("gate-refused", "cutover")
    assert "--writers-stopped" in event["reasons"][0]
    row = rekey.project.rows("UsersV2")[3]
    asyncio.run(users(rekey, "UsersV2").merge({**row, "Name": "altered"}))
    rekey("verify", code=1)
    last = rekey.told[-1]
    assert (last["event"]["name"], last["event"]["rows"]) == ("divergence", 1)
    assert last["migrations"][0]["divergences"] == 1


def test_a_pass_that_stalls_is_told_while_it_stalls(rekey: Hooked) -> None:
    rekey.configure("exit 0", 'stalled_after = "2m"')
    stalled = 0

    async def gate(call: Call) -> None:
        nonlocal stalled
        if call.table == "UsersV2" and call.action == "transact" and not stalled:
            while "stalled" not in rekey.events:
                stalled += 1
                await rekey.project.clock.sleep(10)

    rekey.project.tables.gate = gate
    rekey("apply")
    assert stalled > 6
    [told] = [one for one in rekey.told if one["event"]["name"] == "stalled"]
    assert told["migrations"][0]["phase"]["name"] == "backfill"
    assert told["migrations"][0]["phase"]["state"] == "at-work"
