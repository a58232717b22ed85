"""A freeze that a killed runner had sent, and that arrives while the next runner is at work: it is refused.

So the command goes on without an error, and no writes are refused until somebody comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from rekey.errors import ConditionFailed, ServiceError
from rekey.phases import ControlPhase, Phase
from rekey.protocol import lease
from rekey.runner import commands
from rekey.runner.run import Options
from rekey.tables.base import Operation
from tests.fakes.faults import Call
from tests.worlds.company import Company, application, company
from tests.worlds.projects import USERS_SCRIPT, Project
from tests.worlds.small import Killed, user

STOPPED = Options(writers_stopped=True)


@pytest.fixture(params=["delta", "dual-write"])
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Company]:
    rows = [user(f"user{number:03}@example.com") for number in range(20)]
    if request.param == "delta":
        project = Project(tmp_path)
        made = Company(project, project.script(USERS_SCRIPT))
        made.do(project.fill("Users", rows))
    else:
        made = company(tmp_path, USERS_SCRIPT, rows)
        made.client()
    made.apply()
    yield made
    made.close()


class HeldFreeze:
    """The next move to `freeze` is held and its sender killed; it arrives in the next one's first wait."""

    def __init__(self, ours: Company, monkeypatch: pytest.MonkeyPatch) -> None:
        self.restricted, self.clock = ours.project.restricted, ours.project.clock
        self.held: list[tuple[str, tuple[Operation, ...]]] = []
        self.answer: ServiceError | None = None
        self._sleep = self.clock.sleep
        self.restricted.gate, self._open = self._hold, self.restricted.gate
        monkeypatch.setattr(self.clock, "sleep", self._sleep_and_arrive)

    async def _hold(self, call: Call) -> None:
        await asyncio.sleep(0)
        if application.get():
            return
        if self.held:
            raise Killed
        if any(one.row.get("Phase") == ControlPhase.FREEZE for one in call.operations):
            self.held.append((call.table, call.operations))
            raise Killed

    def go_on(self) -> None:
        """Begin the next runner's time."""
        assert self.held
        self.restricted.gate = self._open

    async def _sleep_and_arrive(self, seconds: float) -> None:
        if self.held and self.restricted.gate is self._open and seconds > 0:
            [(table, [operation])] = self.held
            self.held.clear()
            with pytest.raises(ServiceError) as refused:
                await self.restricted.table(table).write(operation)
            self.answer = refused.value
        await self._sleep(seconds)


@pytest.mark.parametrize("goal", [ControlPhase.CUTOVER, ControlPhase.DUAL_WRITE, ControlPhase.COMPLETE])
def test_a_delayed_freeze_fails(ours: Company, goal: ControlPhase, monkeypatch: pytest.MonkeyPatch) -> None:
    def move(goal: ControlPhase) -> None:
        with ours.session(STOPPED) as session:
            if goal is ControlPhase.DUAL_WRITE:
                commands.rollback(session, ours.script_id, to=goal, drop=None)
            else:
                commands.apply(session, ours.script_id, to=Phase(goal))

    if goal is not ControlPhase.CUTOVER:
        ours.apply(Phase.CUTOVER, STOPPED)
    held = HeldFreeze(ours, monkeypatch)
    with pytest.raises(Killed), mock.patch.object(lease, "_PROCESS", "killed"):
        move(ControlPhase.CUTOVER if goal is ControlPhase.CUTOVER else ControlPhase.DUAL_WRITE)
    if goal is ControlPhase.COMPLETE:
        for client in ours.clients:  # of the old view: waited for until it is given up
            ours.do(client.close())
    held.go_on()
    move(goal)
    assert isinstance(held.answer, ConditionFailed)
    assert ours.phase is goal
    if goal is not ControlPhase.COMPLETE:
        ours.assert_in_step()
