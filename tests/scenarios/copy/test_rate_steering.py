"""Pause, resume and other limits are said from a second terminal and count while a runner works."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from rekey.copy.throttle import Rates
from rekey.core.clock import TICKS_PER_SECOND
from rekey.errors import MachineFailed
from rekey.phases import Phase
from rekey.runner import commands, steering
from rekey.runner.steering import Steering
from rekey.state.store import State
from tests.asserts.command_line import Commands
from tests.fakes.faults import Call
from tests.worlds.projects import USERS_SCRIPT, Project, project_of
from tests.worlds.small import user

SCRIPT = "0001_users"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    rows = [user(f"user{number:04}@example.com", f"p{number % 5}") for number in range(120)]
    return project_of(tmp_path, USERS_SCRIPT, rows)


def test_what_is_said_is_read_back_and_whoever_said_it(tmp_path: Path) -> None:
    state = tmp_path / "new" / "state.sqlite"
    assert steering.read(state) == Steering()
    said = steering.say(state, Steering(paused=True, partition_entities_per_second=7))
    assert said.said_at and said.said_by
    assert steering.read(state) == said
    assert said.over(Rates(100, 50)) == Rates(100, 7, paused=True)
    assert said.over(Rates(begins=20_000)) == Rates(None, 7, paused=True, begins=20_000)
    assert [path.name for path in state.parent.iterdir()] == ["state.sqlite.steering.json"]


def test_a_failed_setting_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    state = tmp_path / "state.sqlite"
    said = steering.say(state, Steering(paused=True))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineFailed, match="cannot be written"):
        steering.say(state, Steering())
    assert steering.read(state) == said
    assert list(tmp_path.iterdir()) == [steering.path_of(state)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"paused": true}', "\x00"])
def test_a_file_that_cannot_be_understood_changes_nothing(tmp_path: Path, text: str) -> None:
    state = tmp_path / "state.sqlite"
    told: list[Steering] = []
    rates = steering.follow(state, lambda said, _: told.append(said), Steering())
    steering.say(state, Steering(paused=True))
    assert rates(Rates(5)).paused
    steering.path_of(state).write_text(text)
    assert rates(Rates(5)).paused
    assert len(told) == 1


@pytest.mark.parametrize("rate", [0, -1, 1.5, "7", True])
def test_an_invalid_rate_is_refused(tmp_path: Path, rate: object) -> None:
    state = tmp_path / "state.sqlite"
    said = {**asdict(Steering()), "entities_per_second": rate}
    steering.path_of(state).write_text(json.dumps(said))
    assert steering.read(state) is None


def test_a_runner_holds_while_it_is_paused_and_goes_on_when_it_is_resumed(project: Project) -> None:
    state = project.config.state
    steering.say(state, Steering(paused=True))
    began = project.clock.ticks()
    resumed_at = 0
    early: list[str] = []
    asked = 0
    read = steering.read

    async def gate(call: Call) -> None:
        if call.table == "UsersV2" and call.action in ("transact", "insert") and not resumed_at:
            early.append(call.action)

    def reading(path: Path) -> Steering | None:
        nonlocal asked, resumed_at
        asked += 1
        if asked == 20:
            resumed_at = project.clock.ticks()
            steering.say(path, Steering(entities_per_second=5000))
        return read(path)

    project.tables.gate = gate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steering, "read", reading)
        with project.session() as session:
            commands.apply(session, SCRIPT, to=Phase.BACKFILL)
    assert early == []
    assert resumed_at - began > 5 * TICKS_PER_SECOND
    assert len(project.rows("UsersV2")) == 120
    with State.open(state, read_only=True) as seen:
        said = [event.details for event in seen.audit_events() if event.event == "steered"]
    assert [(one["paused"], one["entities_per_second"]) for one in said] == [(True, None), (False, 5000)]


def steered(project: Project) -> list[int | None]:
    with State.open(project.config.state, read_only=True) as seen:
        return [one.details["entities_per_second"] for one in seen.audit_events(event="steered")]


def test_a_setting_is_recorded_once_and_shown(rekey: Commands, project: Project) -> None:
    rekey("apply")
    rekey("throttle", "5000")
    for _ in range(2):
        assert "from now on: at most 5,000 entities/s" in rekey("verify").err
        assert steered(project) == [5000]
    rekey("throttle", "--off")
    assert "from now on: limits from rekey.toml" in rekey("verify").err
    for _ in range(2):
        assert "from now on" not in rekey("verify").err
        rekey("resume")
    assert steered(project) == [5000, None]


def test_commands_say_it_and_status_shows_it(rekey: Commands) -> None:
    assert "PAUSED" in rekey("pause").out
    assert "PAUSED" in rekey("status").out
    assert "limits from rekey.toml" in rekey("resume").out
    assert "5,000 entities/s of the account" in rekey("throttle", "5000").out
    assert "500 entities/s of a partition" in rekey("throttle", "--partition", "500").out
    shown = rekey("throttle", "--json")
    assert shown.json["steering"]["entities_per_second"] == 5000
    assert "throttle" in rekey("status").out
    assert rekey("status", "--json").json["steering"]["partition_entities_per_second"] == 500
    rekey("throttle", "--off")
    assert "throttle" not in rekey("status").out
    assert "stands alone" in rekey("throttle", "--off", "5", code=2).err
