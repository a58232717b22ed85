"""What lives with late requests are lived on: project, proxy, the application's processes, time that passes.

Rules kept here:

* Times are scaled as a whole. The longest time that a request of the runner is under way (`Scale.held`)
  stands for the service's 30 s; `[gates] margin` is longer, as it is in the field. A runner's lease is 6 s
  and not 60. A client's requests are under way for as long as its own `timeout` says.
* While time passes (`tick`), processes that ended are begun again, some are killed or stopped, those that
  were stopped go on, and it is noted where the authority is.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script
from rekey.model import Row, key_of
from rekey.phases import ControlPhase
from rekey.rehearse.azurite import Azurite
from tests.acceptance.late_group import Group
from tests.fakes.weather import CALM, Weather, WeatherProcess
from tests.worlds.application_clients import Where
from tests.worlds.applications import WORLDS, View, World
from tests.worlds.azurite_projects import Project
from tests.worlds.fleet import SECRETS, Stage
from tests.worlds.late_client import RESTART, Job
from tests.worlds.late_command import DURATION, RENEW, SIGNED
from tests.worlds.late_ledger import Look, lines_of
from tests.worlds.late_machines import Client, Runner, environment_of, namespaces_work

LIFE_SECONDS = 480.0
_TICK = 0.05
_LOOK_EVERY = 0.25
_MOST_BEGUN_AGAIN = 200
BEYOND = "beyond"
"""All who reach the account of targets: what is beyond is one account for all of them, or it is refused."""
_OLD_SIDE = (ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)


@dataclass(frozen=True)
class Scale:
    """How long things take, in seconds.

    Attributes:
        held: a request of the runner, or of an application without a client, is under way at most this long.
        margin: `[gates] margin`.
        stop: the longest time a process stands still.
        client: settings of the clients' leases.
        rows, hot: how many rows there are, and how many of them are written.
        kills: how often one command is disturbed at most.
        blow_every: pauses between two blows at clients, shortest and longest.
        blows: how many of them there are at most.
    """

    held: float = 5.0
    margin: int = 6
    stop: float = 17.0
    client: dict[str, float] = field(
        default_factory=lambda: {
            "poll_s": 0.3,
            "lease_s": 2.0,
            "longest_operation_s": 4.0,
            "freeze_wait_s": 5.0,
        }
    )
    runner_lease: int = 6
    rows: int = 150
    hot: int = 24
    kills: int = 2
    blow_every: tuple[float, float] = (3.0, 9.0)
    blows: int = 9


USUAL = Scale()
QUICK = Scale(
    held=1.0,
    margin=2,
    stop=3.0,
    client={"poll_s": 0.2, "lease_s": 1.0, "longest_operation_s": 2.0, "freeze_wait_s": 3.0},
    runner_lease=3,
    rows=30,
    hot=10,
    kills=1,
    blow_every=(2.0, 4.0),
    blows=1,
)
SUM = (
    *("commands", "exits 0", "refusals", "kills of runners", "stops of runners", "second runners"),
    *("kills of workers", "stops of workers", "kills of clients", "stops of clients"),
    *("times away", "hold", "drop", "repeat", "delay", "busy", "failed", "requests"),
    *("acknowledged", "open", "failed", "reads", "rests", "findings"),
)
"""The figures of a life, in the order in which they are printed."""


@dataclass
class Outcome:
    """What came of a life."""

    seed: int
    kind: str
    seconds: float = 0.0
    figures: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = ", ".join(f"{name} {self.figures[name]:,}" for name in SUM if self.figures[name])
        verdict = "WRONG" if self.wrong else "nothing lost, doubled or revived"
        lines = [f"life {self.seed} ({self.kind}), {self.seconds:.0f} s: {told}: {verdict}"]
        return "\n".join([*lines, *(f"  {one}" for one in self.wrong)])


class Stuck(Exception):
    """The operator could not get on."""


class Stand:
    """Where a life is lived: project, proxy and writers, and the time that passes with what happens in it."""

    def __init__(
        self, folder: Path, azurite: Azurite, seed: int, *, scale: Scale = USUAL, route: Sequence[str] = ()
    ) -> None:
        self.seed, self.scale, self.folder = seed, scale, folder
        self.lot = random.Random(seed)
        self.capture = ("dual-write", "delta")[seed % 2]
        self.world_name = ("users", "posts")[seed // 2 % 2]
        self.two = not route and self.lot.random() < 0.5
        self.contained = self.two and self.lot.random() < 0.75 and namespaces_work()
        self.workers = not route and self.lot.random() < 0.25
        self.route = list(route) or self._draw_route()
        # Drawn by itself, so that a seed keeps its way through the phases.
        self.elsewhere = not route and random.Random(f"{seed} elsewhere").random() < 0.5
        kind = [self.capture, self.world_name, "two runners" if self.two else ""]
        kind += ["containers" if self.contained else "", "workers" if self.workers else ""]
        kind += ["another account" if self.elsewhere else ""]
        is_grouped = not route and random.Random(f"{seed} group").random() < 0.5
        kind += ["a group" if is_grouped else ""]
        self.outcome = Outcome(seed, ", ".join(filter(None, [*kind, " ".join(self.route)])))
        self.figures = self.outcome.figures
        self.project = Project(
            folder / "project", azurite, elsewhere=azurite.targets if self.elsewhere else None
        )
        self.group = Group(self.project) if is_grouped else None
        self.control_folder = folder / "clients"
        self.control_folder.mkdir(parents=True)
        (folder / "printed").mkdir()
        self.proxy = WeatherProcess(
            azurite.tables.endpoint,
            {"runner": CALM, "clients": CALM, BEYOND: CALM},
            seed,
            folder / "proxy.log",
        )
        self._back_at, self._beyond = 0.0, CALM
        self.clients: dict[str, Client] = {}
        self._ended: list[Job] = []
        self._generation: Counter[str] = Counter()
        self._runners: list[Runner] = []
        self._to_go_on: list[tuple[float, Client | Runner]] = []
        self._next_look = self._next_blow = 0.0
        self._looks: list[Look] = []
        self._home = 0
        self._began = time.monotonic()
        self._blows = False

    def _draw_route(self) -> list[str]:
        """Draw the way through the phases."""
        route = ["apply"]
        turn = self.lot.random()
        if turn < 0.4:
            route += [self.lot.choice(("drop", "drop and look")), "apply"]
        route.append("cutover")
        if turn > 0.6:
            route += ["back", "cutover"]
        if self.capture == "dual-write" and self.world_name == "users" and self.lot.random() < 0.5:
            route.append(
                "complete"
            )  # where keys come from content, rows under two of them are two from then on
        return route

    # --- the stage ---------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.proxy.__enter__()
        project, azurite, world = self.project, self.project.azurite, WORLDS[self.world_name]
        script = world.script.replace('capture="dual-write"', f'capture="{self.capture}"')
        if self.group is not None:
            script = self.group.joined(script)
            self.group.declare(self.capture)
        self.script = project.script(script)
        self.homes = [project.folder, self.folder / "other"]
        self.homes[1].mkdir()
        shutil.copytree(project.migrations, self.homes[1] / "migrations")
        # In a container the other home stands in the place of the first one, its state file too.
        own = self.homes[0] if self.contained else self.homes[1]
        self._configure(self.homes[0], self.homes[0], "runner")
        self._configure(self.homes[1], own, "runner")
        (self.folder / "application").mkdir()
        shutil.copytree(project.migrations, self.folder / "application" / "migrations")
        self._configure(self.folder / "application", self.folder / "application", "clients")
        self.environment = environment_of(
            {
                **project.environment,
                "TMPDIR": str(project.folder / "tmp"),
                DURATION: str(self.scale.runner_lease),
                SIGNED: str(self.scale.stop + self.scale.held),
                RENEW: str(self.scale.runner_lease / 4),
            }
        )
        through = self.proxy.address
        self.where = Where(
            tables=replace(azurite.tables, endpoint=through("clients", azurite.tables.endpoint)),
            restricted=replace(azurite.restricted, endpoint=through("clients", azurite.restricted.endpoint)),
            targets=replace(azurite.targets, endpoint=through(BEYOND, azurite.targets.endpoint)),
            script=self.script,
            source=project.source,
            target=project.target,
            secrets=SECRETS,
            config=self.folder / "application" / "rekey.toml",
            environment={**project.environment, SIGNED: self.environment[SIGNED]},
            settings=self.scale.client,
            plain=self.capture == "delta",
        )
        self.mapper = Mapper(load_script(self.script).migration, SECRETS)
        self.world: World = world(self._new_key)
        self.stage = _Comparing(project, self.mapper, self.group)
        # Half of what is written is there from the beginning; the rest of the table is only copied.
        self.hot = [f"r{number}" for number in range(self.scale.hot)]
        there = self.hot[::2] + [f"r{number}" for number in range(self.scale.hot, self.scale.rows)]
        self.initial = self.world.loaded(there)
        project.fill([self.world.entity(row, "old", content or {}) for row, content in self.initial.items()])
        return self

    @property
    def titled(self) -> str:
        """The property that every write sets, as the new view names it."""
        return next(iter(self.world.part("new", {self.world.title: ""})))

    def _new_key(self, row: dict[str, Any]) -> tuple[str, str]:
        return key_of(self.mapper.map(row)[0].row)

    @property
    def _targets(self) -> str:
        if not self.elsewhere:
            return ""
        endpoint = self.proxy.address(BEYOND, self.project.azurite.targets.endpoint)
        return f'[targets]\nendpoint = "{endpoint}"\nkey_env = "ACCEPTANCE_TARGETS_KEY"'

    def _configure(self, folder: Path, state: Path, party: str) -> None:
        through, azurite = self.proxy.address, self.project.azurite
        (folder / "rekey.toml").write_text(
            f"""\
[tables]
endpoint = "{through(party, azurite.tables.endpoint)}"
key_env = "ACCEPTANCE_TABLES_KEY"
{self._targets}
[restricted]
endpoint = "{through(party, azurite.restricted.endpoint)}"
key_env = "ACCEPTANCE_RESTRICTED_KEY"
[state]
path = "{state / "state" / "state.sqlite"}"
[secrets.users]
env = "ACCEPTANCE_SECRET"
[sealing]
env = "ACCEPTANCE_WRAPPING_KEY"
[limits]
window_rows = 20
scans = 2
[executor]
tasks = 2
slice = "1s"
[gates]
retention = "1s"
margin = "{self.scale.margin}s"
clients_timeout = "60s"
freeze_timeout = "40s"
""",
            "utf-8",
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in [*self.clients.values(), *self._runners]:
            one.end()
        self.proxy.__exit__(kind, error, trace)
        self.figures.update(self.proxy.dealt)
        self.outcome.seconds = time.monotonic() - self._began

    # --- writers -----------------------------------------------------------------------------------------

    def _join_writers(self, view: View) -> None:
        """Start the application's processes: in capture "dual-write" of both views, otherwise of one."""
        if self.capture == "delta":
            for number in range(2):
                self._join(f"{view}-{number}", view)
            return
        self._join("old-a", "old")
        self._join("old-b", "old", sync=True)
        self._join("new-a", "new")
        self._join("new-b", "new")

    def _join(self, base: str, view: View, *, sync: bool = False) -> None:
        self._generation[base] += 1
        job = Job(
            name=f"{base}-{self._generation[base]}",
            world=self.world_name,
            view=view,
            where=self.where,
            folder=str(self.control_folder),
            rows=self.hot,
            seed=str(self.seed),
            tasks=1 if sync else 2,
            sync=sync,
        )
        self.clients[base] = Client(job, self.folder / "printed" / job.name)

    def _until_opened(self) -> None:
        """Wait until all writers are at work."""
        while any("opened" not in self._noted(client) for client in self.clients.values()):
            self._tick()

    @staticmethod
    def _noted(client: Client) -> list[str]:
        return [line["what"] for line in lines_of(client.job.ledger)]

    def _jobs(self) -> list[Job]:
        return [*self._ended, *(one.job for one in self.clients.values())]

    def _lose(self, base: str, *, again: bool) -> None:
        client = self.clients.pop(base)
        self._to_go_on = [one for one in self._to_go_on if one[1] is not client]
        client.end()
        self._ended.append(client.job)
        if again:
            self._join(base, client.job.view, sync=client.job.sync)

    def _end_client(self, base: str) -> None:
        """End a client as an application ends."""
        client = self.clients[base]
        client.go_on()
        (self.control_folder / f"stop-{client.job.name}").touch()
        deadline = time.monotonic() + 60
        while client.alive and time.monotonic() < deadline:
            self._tick(without=base)
        self._lose(base, again=False)

    def _stop_writers(self) -> None:
        """End all writers of capture "delta", and wait until nothing of them is under way any more."""
        for base in list(self.clients):
            self._end_client(base)
        while self.proxy.held("clients") or self.proxy.held(BEYOND):
            self._tick()
        time.sleep(0.5)

    def _attend_clients(self, without: str = "") -> None:
        """Start those again that ended: killed, or told to be restarted, or not let in by the weather."""
        for base, client in list(self.clients.items()):
            if base == without or client.alive:
                continue
            code = client.code
            noted = self._noted(client)
            if code != RESTART and "opened" in noted and "closed" not in noted:
                said = client.said()[-1500:]
                self.outcome.wrong.append(f"client {client.job.name} ended by itself with {code}: {said}")
            self.figures["clients begun again"] += 1
            self._lose(base, again=True)
            if self.figures["clients begun again"] > _MOST_BEGUN_AGAIN:
                raise Stuck("clients end again and again")

    def _go_away(self, now: float) -> None:
        """Let the account of targets answer nobody for a while."""
        self.figures["times away"] += 1
        self.proxy.change(BEYOND, Weather(drop=1.0))
        self._back_at = now + self.lot.uniform(0.5, self.scale.held)

    def _come_back(self) -> None:
        self._back_at = 0.0
        self.proxy.change(BEYOND, self._beyond)

    def _blow_at_clients(self, now: float) -> None:
        """Kill a client, or stop one for a while."""
        if not self._blows or now < self._next_blow or not self.clients:
            return
        first, self._next_blow = not self._next_blow, now + self.lot.uniform(*self.scale.blow_every)
        base = self.lot.choice(sorted(self.clients))
        client = self.clients[base]
        if self.elsewhere and not first and self.lot.random() < 0.3:
            self._go_away(now)
            return
        dealt = self.figures["kills of clients"] + self.figures["stops of clients"]
        if first or client.stopped or dealt >= self.scale.blows:
            return
        if self.lot.random() < 0.4:
            self.figures["kills of clients"] += 1
            self._lose(base, again=True)
        else:
            self.figures["stops of clients"] += 1
            client.stop()
            self._later(self.lot.uniform(0.2, self.lot.choice((1.5, 1.5, self.scale.stop))), client)

    # --- time --------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _later(self, seconds: float, stopped: Client | Runner) -> None:
        self._to_go_on.append((time.monotonic() + seconds, stopped))

    def _tick(self, without: str = "") -> None:
        """Let a moment pass, in which happens what is due."""
        time.sleep(_TICK)
        now = time.monotonic()
        if self._now() > LIFE_SECONDS:
            raise Stuck(f"not at the end of {self.route} after {LIFE_SECONDS:.0f} s")
        for due in [one for one in self._to_go_on if one[0] <= now]:
            self._to_go_on.remove(due)
            due[1].go_on()
        if now >= self._next_look:
            self._next_look = now + _LOOK_EVERY
            self._look()
        if self._back_at and now >= self._back_at:
            self._come_back()
        self._attend_clients(without)
        self._blow_at_clients(now)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._tick()

    def _look(self) -> None:
        """Note where the authority is, as of now."""
        before = time.monotonic_ns()
        if self.group is not None and (mixed := self.group.mixed()) and not self.outcome.wrong:
            self.outcome.wrong += mixed
        control = self.stage.control()
        phase = control.get("Phase")
        side: str | None = None
        if phase is None or phase in _OLD_SIDE:
            side = "old"
        elif phase in ("cutover", "complete"):
            side = "new"
        self._looks.append(Look(before, side, f"{phase} {control.get('Epoch')} {control.get('RunId')}"))

    def _let_write(self, seconds: float) -> None:
        self._pause(seconds if self.scale is USUAL else seconds / 2)

    def _weather(self, *, on: bool) -> None:
        """Let the weather be bad, or calm."""
        if not on:
            self.proxy.change("runner", CALM)
            self.proxy.change("clients", CALM)
            self._beyond = CALM
            self._come_back()
            return
        held = self.scale.held
        self._beyond = Weather(
            hold=self.lot.uniform(0.01, 0.06),
            drop=0.004,
            repeat=0.012,
            delay=0.04,
            busy=0.01,
            failed=0.004,
            held_s=held,
            delay_s=0.3,
        )
        self.proxy.change("runner", self._beyond)
        self.proxy.change(BEYOND, self._beyond)
        self.proxy.change(
            "clients",
            Weather(
                hold=self.lot.uniform(0.004, 0.015),
                drop=0.003,
                repeat=0.008,
                delay=0.04,
                busy=0.01,
                failed=0.004,
                held_s=held,
                delay_s=0.3,
            ),
        )


class _Comparing(Stage):
    """What a stage knows of tables and the control row, for a project whose endpoints are set by a life."""

    def __init__(self, project: Project, mapper: Mapper, group: Group | None) -> None:
        self.project, self.mapper, self.group = project, mapper, group

    def control(self) -> Row:
        """Return the control row; {} when there is none."""
        if self.group is None:
            return super().control()
        return self.group.controls().get(self.project.script_id, {})

    def unmapped(self) -> list[str]:
        """Return which rows of the main target are not listed by the mapping, or belong to another row."""
        if self.phase() not in ("dual_write", "freeze"):
            return []  # in capture "delta" nobody keeps it after cutover
        listed = self.project.mapping()
        forward = {
            tuple(old): {tuple(one) for one in targets} for kind, old, targets in listed if kind == "forward"
        }
        reverse = {tuple(new): tuple(old) for kind, old, new in _turned(listed) if kind == "reverse"}
        wrong = []
        for row in self.project.wire.rows(self.project.source):
            old = key_of(row)
            made = self.mapper.map(row)
            new = key_of(made[0].row)
            if (0, *new) not in forward.get(old, set()):
                wrong.append(f"the mapping does not list {new} of {old}")
            if reverse.get(new) != old:
                wrong.append(f"{new} belongs to {reverse.get(new)} in the mapping, not to {old}")
        return wrong


def _turned(listed: Sequence[tuple[Any, ...]]) -> list[tuple[Any, Any, Any]]:
    return [(one[0], one[1], one[2]) for one in listed]
