"""A life of which nothing is drawn: who does what when, and which request goes its own way, is the test's.

Rules kept here:

* Everything else is as in lives (`tests.simulation.dual_life`): the program itself, sessions as commands open
  them, clients as applications do, requests that take their time.
* Whoever operates it does as the messages say: repeats what did not get done, waits for a lease, mends what a
  verification names.
* Judged is what counts: the journal ends, replicas are what the authority says, the mapping accounts for them
  and for nothing of another run, and what the application was told is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from functools import partial
from typing import Any, ClassVar

from rekey.client.reading import LeaseSettings
from rekey.errors import (
    Findings,
    GateClosed,
    Locked,
    Refused,
    RekeyError,
    ServiceError,
    StateUnusable,
)
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import TARGET, View, authority
from rekey.runner import commands
from rekey.runner.commands import Mode
from rekey.runner.run import Options
from rekey.runner.session import Session
from rekey.tables.base import Operation, Verb
from tests.simulation.dual_life import RUNNER_REQUEST_S, SCRIPT, Life
from tests.simulation.dual_people import Application, Client, Users
from tests.simulation.reasons import asks_for_reason, with_reason
from tests.simulation.storm import SIGNED_S, Fate, MachineClock, Process
from tests.worlds.projects import INVERTED_SCRIPT, USERS_SCRIPT, Project
from tests.worlds.scripts import under_writes
from tests.worlds.small import Killed

DELTA, DUAL = "delta", "dual-write"
COMPUTED = ", computed mapping"
"""Added to a kind: nothing of its mapping is stored."""
ATTEMPTS = 8


def person(number: int, **more: object) -> Row:
    """Return a row of the source."""
    return {"PartitionKey": "p0", "RowKey": f"u{number:02}@example.com", "Nm": f"n{number}", **more}


VICTIM = person(20, PartitionKey="p1")
"""A row in a partition of its own: it is copied by a request of its own."""


class Stage(Life):
    """One migration of a few rows."""

    kinds: ClassVar[dict[str, tuple[str, type[Application]]]] = {
        DELTA: (USERS_SCRIPT, Users),
        DUAL: (under_writes(USERS_SCRIPT), Users),
        DELTA + COMPUTED: (INVERTED_SCRIPT, Users),
        DUAL + COMPUTED: (under_writes(INVERTED_SCRIPT), Users),
    }
    moves = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settings = LeaseSettings(poll_s=1.0, lease_s=4.0, longest_operation_s=9.0, freeze_wait_s=5.0)
        self.failing = 0.0
        self.told: dict[EntityKey, Row | None] = {}
        """What must be there, by source key, as the application was told."""

    @property
    def is_delta(self) -> bool:
        """Whether writers are stopped for each move."""
        return self.declared.migration.capture == DELTA

    @contextmanager
    def opened(self, rows: int = 12) -> Iterator[Stage]:
        """Begin with some rows in the source."""
        with self.made_repeatable(), self.loop:
            self.nature = self.loop.create_task(self.project.clock.sleep(math.inf))
            with self._all_ending():
                self.storm.calm = True
                self._make_table()
                for row in [*(person(number) for number in range(rows)), VICTIM]:
                    self.write(Operation(Verb.INSERT, row))
                self.pass_(1)
                yield self

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self._pass(seconds)

    # --- the network ---------------------------------------------------------------------------------------

    def fate(self, process: str, action: str = "", table: str = "", **more: Any) -> Fate:
        """Plan what becomes of a request, see `Fate`."""
        fate = Fate(process, action, table, **more)
        self.storm.fates.append(fate)
        return fate

    def kill(self, process: Process) -> None:
        """End a process: what it has under way besides what has a fate of its own lands as usual."""
        self.loop.kill(process)

    def stand_still(self, process: Process, seconds: float) -> None:
        """Stop a process with what it has just decided to send; it goes on by itself."""
        self.storm.stop(process, unsent=1.0)
        self.loop.call_later(seconds, self.storm.go_on, process, context=Context())

    # --- the application -----------------------------------------------------------------------------------

    def write(self, operation: Operation, client: Client | None = None) -> None:
        """Do one write: through a client, or (None) straight to the source, whose writers nobody follows."""
        if client is None:
            self.loop.run(_on(self.project.tables.table(self.source), operation))
        else:
            task = self.begin(operation, client)
            while not task.done():
                self.pass_(0.1)
            task.result()
        done = None if operation.verb is Verb.DELETE else operation.row
        self.told[self._source_key(operation.row)] = done

    def begin(self, operation: Operation, client: Client) -> Any:
        """Begin a write of which nobody knows the outcome yet: nothing is held against its row."""
        self.told.pop(self._source_key(operation.row), None)
        return self.storm.start(client.process, client.core.write([operation]))

    def write_target(self, operation: Operation) -> None:
        """Write the main target, when it is the authority and nobody follows (capture "delta")."""
        self.loop.run(_on(self.project.tables.table(self.main), operation))
        done = None if operation.verb is Verb.DELETE else operation.row
        source = self.mapper.reverse(done, self._source_key(operation.row), None) if done else None
        self.told[self._source_key(operation.row)] = source

    def opened_client(self, view: View) -> Client:
        """Return a client that is registered."""
        client = self.client(view)
        self.storm.start(client.process, client.core.open())
        self.pass_(3)
        return client

    def close(self, client: Client) -> None:
        """Let a client end in order."""
        self.storm.start(client.process, client.core.close())
        self.pass_(3)

    def as_target(self, row: Row) -> Row:
        """Return a source row as the new view shows it."""
        return self.mapper.map(row)[0].row

    def _source_key(self, row: Row) -> EntityKey:
        known = [VICTIM, *(person(number) for number in range(50))]
        by_target = {key_of(self.as_target(each)): key_of(each) for each in known}
        return by_target.get(key_of(row), key_of(row))

    # --- who operates it -----------------------------------------------------------------------------------

    def run(
        self,
        work: Callable[[Session], object],
        options: Options | None = None,
        *,
        ahead_s: float = 0.0,
        project: Project | None = None,
        also: Callable[[], None] | None = None,
        unasked: float = 0.0,
    ) -> None:
        """Run one command. Raises what it raises, and Killed."""
        self.commands["all"] += 1
        process = Process(f"runner {self.commands['all']}", RUNNER_REQUEST_S, unasked=unasked)
        options = options or Options(writers_stopped=True)
        machine = MachineClock(self.loop, ahead_s)
        self.running = process
        self.command(
            process, work, options, machine=machine, project=project or self.project, also=also
        )  # fmt: skip

    def until_done(self, work: Callable[[Session], object], options: Options | None = None) -> None:
        """Run a command until it is done, and do meanwhile what its messages say."""
        for _ in range(ATTEMPTS):
            try:
                self.run(work, options)
            except Locked:
                self.pass_(70)
            except (Findings, GateClosed) as error:
                said = error
                with suppress(RekeyError):
                    self.run(partial(verify, repair=True))
            except (Refused, ServiceError) as error:
                said = error
                if asks_for_reason(error, options):
                    options = with_reason(options or Options(writers_stopped=True))
                self.pass_(30)
            else:
                return
        self.require(False, f"not done after {ATTEMPTS} attempts: {said}")

    def killed(self, work: Callable[[Session], object], **more: Any) -> None:
        """Run a command that is killed. `more` as `run` takes it."""
        try:
            self.run(work, **more)
        except Killed:
            return
        self.require(False, "nobody killed it")

    def apply(self) -> None:
        """Copy, and catch up."""
        self.until_done(apply)

    def verify(self) -> None:
        """Compare everything."""
        self.until_done(verify)

    def cut_over(self) -> None:
        """Make the target the authority."""
        if not self.is_delta:
            self.verify()
        self.until_done(cut_over)
        self._expect_phase(ControlPhase.CUTOVER)

    def roll_back(self) -> None:
        """Make the source the authority again."""
        self.until_done(self.back)
        self._expect_phase(ControlPhase.DUAL_WRITE)

    def back(self, one: Session) -> object:
        """Take the cutover back unless that is done."""
        if self.control is not None and self.control.phase is ControlPhase.DUAL_WRITE:
            return None
        return commands.rollback(one, SCRIPT, to=ControlPhase.DUAL_WRITE, drop=None)

    def drop(self) -> None:
        """Take everything back, targets included."""

        def go_back(one: Session) -> object:
            return self.control and commands.rollback(one, SCRIPT, to=ControlPhase.SOURCE, drop=True)

        self.until_done(go_back, Options(writers_stopped=True, drop_targets=True))

    def beside(self, work: Callable[[Session], object], attempts: int = 2) -> None:
        """Let somebody in another folder try a command."""
        for _ in range(attempts):
            try:
                self.run(work, project=self.other_folder())
            except Locked:
                self.pass_(70)
            except (Refused, ServiceError, Findings, StateUnusable):
                self.pass_(5)
            else:
                return

    # --- judging -------------------------------------------------------------------------------------------

    def judge(self, when: str = "at the end") -> None:
        """Let everything that is under way end, settle what is announced, and judge. What was planned must
        have happened: otherwise the story is another one."""
        unmet = [(fate.process, fate.action, fate.table) for fate in self.storm.fates if fate.seen < fate.nth]
        assert not unmet, unmet
        self.pass_(2 * RUNNER_REQUEST_S)
        for wait in (30, 30, 2 * SIGNED_S, 30):
            if not self._rows(JOURNAL_TABLE, self.project.restricted):
                break
            self.apply()
            self.pass_(wait)
        self._judge(when)

    def _judge(self, when: str) -> None:
        if self.is_delta and authority(self.control.phase) == TARGET:  # type: ignore[union-attr]
            self._judge_target(when)
        else:
            super()._judge(when)

    def _judge_target(self, when: str) -> None:
        """The target is the authority, and nothing follows: it holds what the application was told."""
        rows = self._contents(self.main)
        for key, row in self.told.items():
            mapped = self.as_target(row or person(0, PartitionKey=key.partition, RowKey=key.row))
            there = rows.pop(key_of(mapped), None)
            self.require(there == (mapped if row else None), f"{when} {key} is {there} in the target")
        self.require(not rows, f"{when} the target holds {sorted(rows)}")

    def _judge_told(self, when: str) -> None:
        rows = self._contents(self.source)
        for key, row in self.told.items():
            self.require(rows.get(key) == row, f"{when} {key} is {rows.get(key)}, and was to be {row}")


def apply(one: Session) -> object:
    """Copy, and catch up."""
    return commands.apply(one, SCRIPT)


def cut_over(one: Session) -> object:
    """Move the authority to the target."""
    return commands.apply(one, SCRIPT, to=Phase.CUTOVER)


def verify(one: Session, *, repair: bool = False) -> object:
    """Compare everything. Raises Findings when rows differ."""
    report = commands.verify(one, SCRIPT, mode=Mode.FULL, repair=repair)
    if report.findings and not repair:
        raise Findings("verification found rows that differ")
    return report


async def _on(table: Any, operation: Operation) -> None:
    if operation.verb is Verb.INSERT:
        await table.insert(operation.row)
    elif operation.verb is Verb.DELETE:
        await table.delete(operation.key)
    else:
        await table.replace(operation.row)
