"""A migration that is followed on tables in memory, and what happens meanwhile."""

from __future__ import annotations

import json
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rekey.core.progress import Progress
from rekey.protocol.rules import View
from rekey.runner import commands, steering
from rekey.runner.hooks import run_hook
from rekey.runner.run import Options, StopFlag
from rekey.runner.session import Caller, Session
from rekey.runner.status import read_status
from rekey.state.models import Verification
from rekey.state.store import State
from rekey.status.facts import FOLLOWING, Sources
from rekey.status.judge import Status
from tests.fakes.clock import time_stands_still
from tests.worlds.company import Client, Company

Then = Callable[[], Awaitable[object]]


def keep_real_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runner lease last, which is renewed in real time: the fake clock leaves none. And let that
    clock stand still while a hook runs, or it makes days of a process that starts slowly."""
    monkeypatch.setattr("rekey.status.facts.lease_is_over", lambda _row, _now: False)

    async def run_held(*args: Any) -> str:
        with time_stands_still():
            return await run_hook(*args)

    monkeypatch.setattr("rekey.runner.session.run_hook", run_held)


class Told(Progress):
    """Keeps what is told."""

    def __init__(self, ours: Company) -> None:
        super().__init__(ours.project.clock)
        self.notes: list[tuple[str, str]] = []

    def note(self, text: str, event: str = "note", **figures: object) -> None:
        self.notes.append((event, text))

    def of(self, event: str) -> list[str]:
        return [text for name, text in self.notes if name == event]


class Following:
    """A migration that is followed, and what happens meanwhile, by the fake clock."""

    def __init__(self, ours: Company) -> None:
        self.ours, self.stop = ours, StopFlag()
        self.told = Told(ours)
        self.session: Session | None = None

    def configure(self, text: str) -> None:
        path = self.ours.project.folder / "rekey.toml"
        path.write_text(f"{path.read_text('utf-8')}{text}\n", "utf-8")

    def hook(self, text: str) -> Path:
        """Configure a hook that keeps the documents it gets; return their folder."""
        folder = self.ours.project.folder
        (folder / "told").mkdir()
        script = folder / "hook.sh"
        script.write_text(f'#!/bin/sh\ntold=$(mktemp told/XXXXXXXX)\ncat > "$told"\n{text}\n', "utf-8")
        script.chmod(stat.S_IRWXU)
        self.configure('[hooks]\ncommand = ["./hook.sh"]\ntimeout = "20s"')
        return folder / "told"

    def proceed(self, *, writers_stopped: bool = False) -> None:
        steering.proceed(self.ours.project.config.state, self.ours.script_id, writers_stopped=writers_stopped)

    def __call__(self, *events: tuple[float, Then], options: Options | None = None) -> commands.Applied:
        """Follow until it has cut over; after so many seconds each something happens. A fault in that ends
        it."""
        ours, project = self.ours, self.ours.project
        self.told, self.stop = Told(ours), StopFlag()

        async def happen() -> None:
            try:
                while not self.told.of("following"):
                    await project.clock.sleep(1)
                for seconds, then in events:
                    for _ in range(round(2 * seconds)):  # the clock jumps no further at a time
                        await project.clock.sleep(0.5)
                    await then()
            except BaseException:
                self.stop.request()
                raise

        with Session(
            project.config, project.scripts, options=options or Options(follow=True), progress=self.told,
            stop=self.stop, caller=Caller(project.connect, project.clock, ours.loop),
        ) as self.session:  # fmt: skip
            ours.writes(happen())
            [happening] = ours.traffic
            try:
                return commands.apply(self.session, ours.script_id)
            finally:
                ours.traffic.clear()
                if happening.done():
                    happening.result()
                else:
                    happening.cancel()

    def client_of(self, name: str) -> Client:
        """A client that is yet to be started."""
        return Client(self.ours, View.OLD, name)

    async def status(self) -> Status:
        """The status as others see it now."""
        session, project = self.session, self.ours.project
        assert session is not None
        session.beat()
        declared = project.scripts[self.ours.script_id]
        sources = Sources(project.config, project.scripts, session.state, session.accounts, project.clock)
        return await read_status(sources, declared)

    @property
    def verified(self) -> Sequence[Verification]:
        with State.open(self.ours.project.config.state, read_only=True) as state:
            return state.verifications(self.ours.script_id)

    @property
    def fact(self) -> dict[str, Any] | None:
        with State.open(self.ours.project.config.state, read_only=True) as state:
            kept = state.get_fact(self.ours.script_id, FOLLOWING)
        return None if kept is None else json.loads(kept)


def said(work: Callable[[], object]) -> Then:
    async def then() -> None:
        work()

    return then
