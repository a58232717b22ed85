"""A migration with client processes writing through it: the stage, the fleet of processes, the comparison.

Rules kept here:

* Processes are real, but they are forked: see `forking`.
* A comparison is made while all clients stand still (and only then): the ledgers against the authority's
  table over the raw wire, past the proxy, and every replica against what the authority's rows give.
* What a client that was killed has left open is the runner's to settle; the comparison waits for no runner,
  so it is made after a command that drained.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.declaration.mapper import Mapper
from rekey.declaration.scripts import load_script
from rekey.model import Row, content_of, key_of
from rekey.protocol.registry import SAFETY_S
from rekey.state.store import State as StateFile
from tests.worlds.application_clients import Where, mapper_of
from tests.worlds.applications import WORLDS, View, World
from tests.worlds.azurite_projects import Project
from tests.worlds.late_client import Job
from tests.worlds.late_ledger import READ, Did, State, Verdict, did, judge, lines_of
from tests.worlds.late_machines import Client

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
        time.sleep(0.1)


class Fleet:
    """The client processes of one test, which write the same rows at once."""

    def __init__(self, folder: Path, where: Where, world: str, rows: Sequence[str]) -> None:
        """Take the control folder, what clients are given, which application they are, what they write."""
        self.folder, self._where, self._world, self._rows = folder, where, world, list(rows)
        folder.mkdir()
        self.jobs: dict[str, Job] = {}
        self._living: dict[str, Client] = {}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._living.values():
            client.end()

    def start(self, name: str, view: View, **more: Any) -> None:
        """Start one client process."""
        job = Job(name, self._world, view, self._where, str(self.folder), self._rows, seed=name, **more)
        self.jobs[name] = job
        self._living[name] = Client(job, self.folder / f"{name}.printed")

    def pid(self, name: str) -> int:
        """Return the id of a client's process."""
        return self._living[name].pid

    def acknowledged(self, name: str) -> int:
        """Return how many writes of a client were acknowledged so far."""
        written = did([self.jobs[name].ledger])
        return sum(one.outcome == "acknowledged" and one.verb != READ for one in written)

    def until_writing(self, *names: str, more: int = 5) -> None:
        """Wait until clients (all that live) have had some more writes acknowledged."""
        for name in names or tuple(self._living):
            enough = self.acknowledged(name) + more

            def wrote(name: str = name, enough: int = enough) -> bool:
                assert self._living[name].alive, f"client {name} ended: {self._living[name].said()}"
                return self.acknowledged(name) >= enough

            waited_for(f"{more} acknowledged writes of {name}", wrote)

    def pause(self) -> None:
        """Let all clients stand still; returns when they do."""
        before = {name: self._paused(name) for name in self._living}
        (self.folder / "pause").touch()
        for name, times in before.items():
            waited_for(
                f"{name} standing still",
                lambda name=name, times=times: self._paused(name) > times,  # type: ignore[misc]
            )

    def resume(self) -> None:
        """Let all clients write again."""
        (self.folder / "pause").unlink()

    def end(self, *names: str) -> None:
        """End clients as an application ends; returns when they have ended."""
        for name in names:
            (self.folder / f"stop-{name}").touch()
        for name in names:
            client = self._living.pop(name)
            waited_for(f"the end of {name}", lambda client=client: not client.alive)  # type: ignore[misc]
            assert client.code == 0, f"client {name} ended with {client.code}: {client.said()}"

    def stop(self) -> None:
        """End all clients."""
        self.end(*self._living)

    @property
    def done(self) -> list[Did]:
        """What all that ever lived did."""
        return did(job.ledger for job in self.jobs.values())

    def _paused(self, name: str) -> int:
        return sum(line["what"] == "paused" for line in lines_of(self.jobs[name].ledger))


@dataclass
class Stage:
    """A project whose application are client processes, and what its tables must hold."""

    project: Project
    world_name: str
    initial: dict[str, State] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        azurite = self.project.azurite
        self.script = self.project.script(WORLDS[self.world_name].script)
        self.where = Where(
            tables=azurite.tables,
            restricted=azurite.restricted,
            script=self.script,
            source=self.project.source,
            target=self.project.target,
            secrets=SECRETS,
            settings=self.settings,
            config=self.project.folder / "rekey.toml",
            environment=self.project.environment,
        )
        # Shorter than a test waits for a command: the command itself says whom it has waited for.
        self.project.configure(window_rows=50, more='clients_timeout = "60s"')
        self.world: World = WORLDS[self.world_name](mapper_of(self.where))
        self.mapper = Mapper(load_script(self.script).migration, SECRETS)

    def load(self, rows: Iterable[str]) -> None:
        """Fill the source."""
        self.initial = self.world.loaded(rows)
        self.project.fill(
            [self.world.entity(row, "old", content or {}) for row, content in self.initial.items()]
        )

    def compare(self, fleet: Fleet, authority: View) -> Verdict:
        """Let all clients stand still; what they were told must be in the tables, and replicas like them."""
        fleet.pause()
        table = self.project.source if authority == "old" else self.project.target
        found, twice = self.world.states(authority, self.project.wire.rows(table))
        # What was read or refused while the authority may have moved is no evidence.
        verdict = judge(self.initial, fleet.done, found, lambda _: False)
        assert not verdict.wrong and not twice, (str(verdict), twice)
        if self.phase() != "complete":
            self.drained()
            unlike = self.unlike(authority)
            assert not unlike, f"{unlike[:5]} and {len(unlike)} in all"
        fleet.resume()
        return verdict

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
