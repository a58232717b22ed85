"""A migration with client processes writing through it: the stage, the fleet of processes, the comparison.

Rules kept here:

* Processes are real and their ends are kills, but they are forked: see `forking`.
* A comparison is made while all clients stand still (and only then): the ledgers against the authority's
  table over the raw wire, past the proxy, and every replica against what the authority's rows give.
* What a client that was killed has left open is the runner's to settle; the comparison waits for no runner,
  so it is made after a command that drained.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script
from rekey.model import Row, content_of, key_of
from rekey.protocol.registry import SAFETY_S
from rekey.state.store import State as StateFile
from tests.acceptance.dualwriting_client import Task, main
from tests.acceptance.dualwriting_clients import Where, mapper_of
from tests.acceptance.dualwriting_ledger import COUNTER, State, Verdict, entries_of, judge, lines_of
from tests.acceptance.dualwriting_proxy import ProxyProcess
from tests.acceptance.dualwriting_worlds import SLOT, WORLDS, View, World, split
from tests.acceptance.forking import forked
from tests.acceptance.support import Project

_SECONDS = 60.0
_DRAIN_SECONDS = 12.0
_DRAINS = 8
SECRETS = {"users": b"0123456789abcdef0123456789abcdef"}
"""As `Project` puts it into the environment of the commands."""


def waited_for(what: str, happened: Any, seconds: float = _SECONDS) -> None:
    """Wait until something has happened. Raises AssertionError when it does not."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"waited for: {what}"
        time.sleep(0.02)


class Fleet:
    """The client processes of one test."""

    def __init__(self, folder: Path, where: Where, world: str) -> None:
        """Take the control folder, what clients are given, and which application they are."""
        self.folder, self._where, self._world = folder, where, world
        folder.mkdir()
        self.tasks: dict[str, Task] = {}
        self._living: dict[str, BaseProcess] = {}
        self._ended: list[BaseProcess] = []

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._living.values():
            process.kill()
            process.join()

    def start(self, name: str, view: View, rows: Sequence[Sequence[str]], **more: Any) -> None:
        """Start one client process; it is told what is its own."""
        task = Task(
            name, self._world, view, self._where, self.folder, tuple(tuple(each) for each in rows), **more
        )
        self.tasks[name] = task
        self._living[name] = forked(main, task, name=name)

    def pid(self, name: str) -> int:
        """Return the id of a client's process."""
        pid = self._living[name].pid
        assert pid is not None
        return pid

    def kill(self, name: str, *, then: str = "") -> None:
        """End a client by SIGKILL; another process goes on with its rows, when it is named."""
        process = self._living.pop(name)
        process.kill()
        process.join()
        if then:
            task = self.tasks[name]
            self.start(
                then,
                task.view,
                task.rows,
                shared=task.shared,
                seed=task.seed + 1,
                sync=task.sync,
                pause=task.pause,
            )

    def acknowledged(self, name: str) -> int:
        """Return how many writes of a client were acknowledged so far."""
        return sum(line["what"] == "acknowledged" for line in lines_of(self.tasks[name].ledger))

    def until_writing(self, *names: str, more: int = 5) -> None:
        """Wait until clients (all that live) have had some more writes acknowledged."""
        for name in names or tuple(self._living):
            enough = self.acknowledged(name) + more

            def wrote(name: str = name, enough: int = enough) -> bool:
                assert self._living[name].is_alive(), f"client {name} ended by itself"
                return self.acknowledged(name) >= enough

            waited_for(f"{more} acknowledged writes of {name}", wrote)

    def pause(self) -> None:
        """Let all clients stand still; returns when they do."""
        before = {name: self._count(name, "paused") for name in self._living}
        (self.folder / "pause").touch()
        for name, times in before.items():
            waited_for(
                f"{name} standing still",
                lambda name=name, times=times: self._count(name, "paused") > times,  # type: ignore[misc]
            )

    def resume(self) -> None:
        """Let all clients write again."""
        (self.folder / "pause").unlink()

    def end(self, *names: str) -> None:
        """End clients as an application ends; returns when they have ended."""
        for name in names:
            (self.folder / f"stop-{name}").touch()
        for name in names:
            process = self._living.pop(name)
            process.join(_SECONDS)
            assert process.exitcode == 0, f"client {name} ended with {process.exitcode}"

    def stop(self) -> None:
        """End all clients."""
        self.end(*self._living)

    @property
    def ledgers(self) -> list[Path]:
        """The files of all that ever lived."""
        return [task.ledger for task in self.tasks.values()]

    def _count(self, name: str, what: str) -> int:
        return sum(line["what"] == what for line in lines_of(self.tasks[name].ledger))


@dataclass
class Stage:
    """A project whose commands and clients go through a proxy, and what its tables must hold."""

    project: Project
    world_name: str
    proxy: ProxyProcess
    initial: dict[str, State] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        azurite, through = self.project.azurite, self.proxy.instead_of
        self.script = self.project.script(WORLDS[self.world_name].script)
        self.where = Where(
            tables=replace(azurite.tables, endpoint=through(azurite.tables.endpoint)),
            restricted=replace(azurite.restricted, endpoint=through(azurite.restricted.endpoint)),
            script=self.script,
            source=self.project.source,
            target=self.project.target,
            secrets=SECRETS,
            settings=self.settings,
            config=self.project.folder / "rekey.toml",
            environment=self.project.environment,
        )
        self.project.configure(
            window_rows=50,
            tables=self.where.tables.endpoint,
            restricted=self.where.restricted.endpoint,
            # Shorter than a test waits for a command: the command itself says whom it has waited for.
            more='clients_timeout = "60s"',
        )
        self.world: World = WORLDS[self.world_name](mapper_of(self.where))
        self.mapper = Mapper(load_script(self.script).migration, SECRETS)

    def load(self, rows: Iterable[str], shared: Iterable[str] = ()) -> None:
        """Fill the source."""
        contents = self.world.loaded(rows)
        contents |= {
            row: {**(content or {}), COUNTER: 0} for row, content in self.world.loaded(shared).items()
        }
        self.project.fill([self.world.entity(row, "old", content or {}) for row, content in contents.items()])
        self.initial = split(contents)

    def judged(self, fleet: Fleet, view: View) -> Verdict:
        """Compare the ledgers with the table of a view, which is the authority's."""
        table = self.project.source if view == "old" else self.project.target
        found, twice = self.world.states(view, self.project.wire.rows(table))
        verdict = judge(self.initial, entries_of(fleet.ledgers), self._with_slots(found))
        verdict.wrong += twice
        return verdict

    def _with_slots(self, found: dict[str, State]) -> dict[str, State]:
        # A slot that no write of a ledger explains counts as wrong; one that nobody wrote yet is no row.
        return {row: state for row, state in found.items() if row in self.initial or state or SLOT not in row}

    def unlike(self, authority: View) -> list[str]:
        """Return how replicas differ from what the authority's rows give, row by row."""
        project, wire = self.project, self.project.wire
        source = {key_of(row): row for row in map(content_of, wire.rows(project.source))}
        main = {key_of(row): row for row in map(content_of, wire.rows(project.target))}
        index = {key_of(row): row for row in map(content_of, wire.rows(project.index))}
        if authority == "new":
            wanted_source = {}
            for row in main.values():
                old_key = self.mapper.source_key(row)
                wanted_source[old_key] = content_of(self.mapper.reverse(row, old_key, source.get(old_key)))
            if len(wanted_source) != len(main):
                return ["two main target rows stand for one source row"]
            wrong = differences("source", wanted_source, source)
        else:
            wanted_source, wrong = source, []
        wanted: tuple[dict[Any, Row], dict[Any, Row]] = ({}, {})
        for row in wanted_source.values():
            for table, made in self.mapper.map(row):
                wanted[table][key_of(made)] = made
        return wrong + differences("main target", wanted[0], main) + differences("index", wanted[1], index)

    # --- what the restricted store and the state file say -------------------------------------------------

    def control(self) -> Row:
        """Return the control row; {} when there is none."""
        rows = [row for row in self.project.restricted_rows("rekeycontrol") if row["RowKey"] == "control"]
        return content_of(rows[0]) if rows else {}

    def phase(self) -> str:
        """Return what the control row says to clients."""
        return str(self.control().get("Phase", ""))

    def at(self, name: str) -> float:
        """Return a time of the control row, in seconds of the service's clock."""
        return _seconds(self.control()[name])

    def living(self, view: View) -> list[dict[str, Any]]:
        """Return the clients of a view that the command waits for, whose clock tells whole seconds."""
        now = time.time() - 1
        return [one for one in self.clients() if one["view"] == view and one["over_at"] > now]

    def clients(self) -> list[dict[str, Any]]:
        """Return the rows of the clients, with their last beat in seconds of the service's clock."""
        rows = self.project.restricted_rows("rekeycontrol")
        return [
            {
                "name": row["Name"],
                "epoch": row["Epoch"],
                "refuses": row["Refuses"],
                "view": row["View"],
                "beat_at": _seconds(row["Timestamp"]),
                "over_at": _seconds(row["Timestamp"]) + (row["LeaseMs"] + row["LongestMs"]) / 1000 + SAFETY_S,
            }
            for row in rows
            if row["RowKey"].startswith("client.")
        ]

    def refusing(self) -> list[str]:
        """Return what keeps clients from writing, as they say themselves."""
        return [client["refuses"] for client in self.clients() if client["refuses"]]

    def counters(self, phase: str) -> dict[str, int]:
        """Return the counters of the last run of a phase."""
        with StateFile.open(self.project.state, read_only=True) as state:
            runs = [run for run in state.phase_runs(self.project.script_id) if run.phase == phase]
        return dict(runs[-1].counters)

    def drained(self) -> None:
        """Wait until the journal is empty, while clients stand still.

        Clients settle what they left open; an intent whose own writing stayed open is left to the command.
        """
        for _ in range(_DRAINS):
            settle_by = time.monotonic() + _DRAIN_SECONDS
            while time.monotonic() < settle_by:
                if not self.open_intents():
                    return
                time.sleep(0.1)
            self.project.run("apply").ended(0)
        assert not self.open_intents(), f"the journal was not empty after {_DRAINS} commands"

    def open_intents(self) -> int:
        """Return how many intents of this migration are not settled; those of killed clients stay longer."""
        return sum("Settled" not in row for row in self.project.restricted_rows("rekeyjournal"))


def _seconds(moment: str) -> float:
    return ticks_of(moment) / TICKS_PER_SECOND


def differences(name: str, wanted: Mapping[Any, Row], found: Mapping[Any, Row]) -> list[str]:
    """Return how the rows of a table differ from those wanted, key by key."""
    wrong = [f"{name}: {key} is missing" for key in wanted.keys() - found.keys()]
    wrong += [f"{name}: {key} must not be there" for key in found.keys() - wanted.keys()]
    wrong += [
        f"{name}: {key} is {found[key]}, must be {wanted[key]}"
        for key in wanted.keys() & found.keys()
        if found[key] != wanted[key]
    ]
    return wrong
