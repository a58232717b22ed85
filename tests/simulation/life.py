"""One life of a migration, drawn from a seed: the implementation itself, in the hands of an adversary.

Rules kept here:

* Commands are run as the program runs them: a session each, with lock, lease, ledger and state file.
* Whoever operates it repeats a command until it is done, as the messages say. Only failures of the service
  and kills excuse a command that did not get done; collisions are finds, and so are findings, unless a
  request of a killed runner landed late: then they are repaired, as the message says.
* A step that is refused because it would delete rows gets a reason once the authority is seen to hold what
  the application was told: then the application deleted them.
* They wait for nothing that no message names: neither after a kill nor before they move the authority.
* Judged is what counts: targets equal the mapping of the source, every row is accounted for, and the rows are
  those that the application was told are there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from rekey.core.limits import TARGET_ACCOUNT_SUFFIX
from rekey.declaration.mapper import Mapper
from rekey.errors import Collision, Findings, Interrupted, Locked, RekeyError, ServiceError
from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import EntityKey, Row
from rekey.phases import ControlPhase, Phase
from rekey.plan import subject
from rekey.protocol import lease
from rekey.protocol.control import ControlStore
from rekey.protocol.rules import TARGET, authority
from rekey.runner import commands, session
from rekey.runner.commands import Mode
from rekey.runner.run import Options
from rekey.runner.session import Session
from tests.fakes.clock import Skewed
from tests.simulation.adversary import LONGEST_REQUEST_S, Adversary, Connected
from tests.simulation.applications import Application, Names, Posts, Races, Users
from tests.simulation.judging import (
    Found,
    PairsWatch,
    draw_limits,
    elsewhere_or_not,
    left_of_other_runs,
    main_rows,
    rows_of,
    wrong_mapping,
    wrong_targets,
)
from tests.simulation.reasons import asks_for_reason, with_reason
from tests.simulation.repeating import Repeating
from tests.worlds.projects import ELSEWHERE as TARGETS
from tests.worlds.projects import (
    FOLDED_SCRIPT,
    INVERTED_SCRIPT,
    POSTS_SCRIPT,
    SECONDARY_FROM_KEYS_SCRIPT,
    SECONDARY_SCRIPT,
    SKEW_S,
    USERS_SCRIPT,
    Project,
)
from tests.worlds.small import SECRET, Killed, contents

SCRIPT = "0001_subject"
PATIENCE = 14
"""How often a command is repeated before the adversary is held back."""

KINDS: dict[str, tuple[str, type[Application]]] = {
    "keys from keys": (USERS_SCRIPT, Users),
    "keys that say the old ones": (INVERTED_SCRIPT, Users),
    "keys from content": (POSTS_SCRIPT, Posts),
    "keys that pass": (FOLDED_SCRIPT, Names),
    "keys from keys, secondary rows": (SECONDARY_FROM_KEYS_SCRIPT, Races),
    "keys from content, secondary rows": (SECONDARY_SCRIPT, Races),
}


@dataclass
class Life:
    """One migration's life."""

    folder: Path
    kind: str
    seed: int
    moves: bool = True
    """Whether it is drawn that the main target is in another account."""
    goes_on: bool = False
    """Whether the application goes on to write the target when a rollback did not get done."""
    random: random.Random = field(init=False)
    project: Project = field(init=False)
    adversary: Adversary = field(init=False)
    application: Application = field(init=False)
    commands: Counter[str] = field(default_factory=Counter)
    _late_seen: int = 0
    _refused: RekeyError | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.kind} {self.seed}")
        script, application = KINDS[self.kind]
        self.project = Project(self.folder)
        clock = self.project.clock
        self.project.tables, self.project.restricted = Connected(clock=clock), Connected(clock=clock)
        self.project.targets = Connected(clock=Skewed(clock, -SKEW_S), is_target_account=True)
        script = elsewhere_or_not(script, f"{self.kind} {self.seed}") if self.moves else script
        self.elsewhere = TARGET_ACCOUNT_SUFFIX in script
        self.project.script(script, f"{SCRIPT}.py")
        draw_limits(self.folder, self.random)
        with (self.folder / "rekey.toml").open("a", encoding="utf-8") as toml:
            toml.write(f'margin = "{self.random.choice((30, 60))}s"\n')
        self.mapper = Mapper(self.project.scripts[SCRIPT].migration, {"users": SECRET})
        self.adversary = Adversary(self.random, self.project.clock)
        self.adversary.swift = self.random.random() < 0.5
        if self.elsewhere:
            self.project.move_elsewhere(TARGETS)
            self.adversary.own(self.project.targets)
            self.adversary.may_be_away = self.project.targets
        self.adversary.own(self.project.tables)
        self.adversary.own(self.project.restricted)
        self.application = application(self.random, self.mapper)
        self.pairs = PairsWatch(self.mapper)
        tables = self.project.connect(self.project.config).tables
        self.source: Any = tables.table(self.mapper.migration.source)
        self.main: Any = tables.table(self.mapper.tables[0])

    # --- the life ----------------------------------------------------------------------------------------

    def live(self) -> None:
        """Live it whole. Raises Found."""
        with ExitStack() as stack:
            # Sealing draws too, and where rows stand follows from it.
            words = random.Random(f"{self.kind} {self.seed} words")
            stack.enter_context(mock.patch("secrets.token_bytes", words.randbytes))
            stack.enter_context(mock.patch.object(session, "new_key", lambda: self.random.randbytes(32)))
            stack.enter_context(mock.patch.object(subject, "new_key", lambda: self.random.randbytes(32)))
            stack.enter_context(mock.patch.object(lease, "_PROCESS", ""))
            stack.enter_context(self.pairs.watching())
            self._begin()
            self._copy_under_writes()
            if self.random.random() < 0.25:
                self._go_back_to_the_beginning()
                self._copy_under_writes()
            self._cut_over()
            for _ in range(self.random.randint(1, 2)):
                self._work_on_the_target()
                self._roll_back()
                self._work_on_the_source(self.random.randrange(8))
                self._cut_over()

    def _begin(self) -> None:
        self.adversary.quietly(lambda: self.project.tables.create_table(self.source.name))
        self._work_on_the_source(self.random.randint(0, 90))

    def _copy_under_writes(self) -> None:
        self.adversary.write = lambda: self.application.write_source(self.source)
        if self.random.random() < 0.3 and not self._attempt("apply", _apply):
            self._go_back_to_the_beginning(drop=True)
            self.adversary.write = lambda: self.application.write_source(self.source)
        self._until_done("apply", _apply)
        if self.random.random() < 0.4:
            self._until_done("verify", self._verify)
        self.adversary.write = None
        self._judge_source()

    def _go_back_to_the_beginning(self, *, drop: bool | None = None) -> None:
        """Take it back, also right after a kill; the service deletes tables slowly."""
        drop = self.random.random() < 0.5 if drop is None else drop
        options = Options(writers_stopped=True, drop_targets=drop)
        self.adversary.write = lambda: self.application.write_source(self.source)
        self._until_done("rollback to source", lambda one: self._back_to_source(one, drop), options)
        self.adversary.write = None
        self.project.clock.advance(self.random.choice((0, 60)))

    def _cut_over(self) -> None:
        options = Options(writers_stopped=True)

        def cut_over(one: Session) -> object:
            return commands.apply(one, SCRIPT, to=Phase.CUTOVER)

        self._until_done("cutover", cut_over, options)
        self._expect_phase(ControlPhase.CUTOVER)
        self.adversary.let_all_land()
        self._judge_source()
        self._judge("after cutover")

    def _work_on_the_target(self) -> None:
        self.application.rows = main_rows(self.mapper, self._contents(self.main.name))
        for _ in range(self.random.randrange(25)):
            self.project.clock.advance(self.random.random())
            self.adversary.quietly(lambda: self.application.write_target(self.main))

    def _roll_back(self) -> None:
        def roll_back(one: Session) -> object:
            if self._phase() is ControlPhase.DUAL_WRITE:
                return None  # a run before, which did not hear of it, did it
            if self.goes_on:
                self._go_on_with_the_target()
            return commands.rollback(one, SCRIPT, to=ControlPhase.DUAL_WRITE, drop=None)

        self._until_done("rollback", roll_back, Options(writers_stopped=True))
        self._expect_phase(ControlPhase.DUAL_WRITE)
        wanted = self.application.rows
        after = main_rows(self.mapper, self._contents(self.main.name))
        self._require(after == wanted, "rollback changed the target")
        self._judge("after rollback")
        self.application.rows = self._contents(self.source.name)

    def _go_on_with_the_target(self) -> None:
        """Write the target, where it stays the authority whatever is under way."""
        self.adversary.let_all_land()
        if self._phase() in (ControlPhase.CUTOVER, ControlPhase.FREEZE):
            for _ in range(self.random.randrange(6)):
                self.adversary.quietly(lambda: self.application.write_target(self.main))

    def _work_on_the_source(self, writes: int) -> None:
        for _ in range(writes):
            self.project.clock.advance(self.random.random())
            self.adversary.quietly(lambda: self.application.write_source(self.source))

    # --- commands ----------------------------------------------------------------------------------------

    def _until_done(
        self, name: str, work: Callable[[Session], object], options: Options | None = None
    ) -> None:
        for attempt in range(PATIENCE + 3):
            self.adversary.hostile = attempt < PATIENCE
            self.commands[name] += 1
            with mock.patch.object(lease, "_PROCESS", f"process {sum(self.commands.values())}"):
                if self._attempt(name, work, options):
                    return
            if asks_for_reason(self._refused, options):
                self._judge_authority()
                self.adversary.happened["reason given"] += 1
                options = with_reason(options)
                continue
            if self.random.random() < 0.5:
                self.project.clock.advance(self.random.random() * 2 * LONGEST_REQUEST_S)
        raise Found(f"{self}: `{name}` was not done after {PATIENCE + 3} attempts")

    def _attempt(self, name: str, work: Callable[[Session], object], options: Options | None = None) -> bool:
        self._refused = None
        self.adversary.begin_command()
        machine = self.adversary.machine
        for service in (self.project.tables, self.project.targets, self.project.restricted):
            service.repeating = Repeating(self.project.clock, self.random)  # type: ignore[attr-defined]
        try:
            with mock.patch.object(self.project, "clock", machine), self.project.session(options) as one:
                work(one)
        except (Killed, ServiceError, Interrupted):
            return False
        except Locked:
            self.project.clock.advance(70)
            return False
        except Findings as error:
            if isinstance(error, Collision) or not self._landed_late():
                raise Found(f"{self}: `{name}` said {type(error).__name__}: {error}") from error
            self.commands["repair"] += 1
            self._until_done("verify --repair", self._repair)
            return False
        except RekeyError as error:
            if asks_for_reason(error, options):
                self._refused = error
                return False
            raise Found(f"{self}: `{name}` said {type(error).__name__}: {error}") from error
        return True

    def _landed_late(self) -> bool:
        """Tell whether a late request landed since this was last asked."""
        before, self._late_seen = self._late_seen, self.adversary.happened["late request"]
        return self._late_seen > before

    def _repair(self, one: Session) -> object:
        commands.verify(one, SCRIPT, mode=Mode.FULL, repair=True)
        return commands.verify(one, SCRIPT, mode=Mode.FULL)

    def _verify(self, one: Session) -> object:
        report = commands.verify(one, SCRIPT, mode=Mode.FULL)
        self._require(not report.findings, f"a false alarm under writes: {report.as_json()}")
        return None

    def _back_to_source(self, one: Session, drop: bool) -> object:
        if self._phase() is None:
            return None
        return commands.rollback(one, SCRIPT, to=ControlPhase.SOURCE, drop=drop)

    # --- judging -------------------------------------------------------------------------------------------

    def _judge_source(self) -> None:
        """The source holds what the application was told, and nothing else."""
        self._require(self._contents(self.source.name) == self.application.rows, "the source was changed")

    def _judge_authority(self) -> None:
        """The table that is the authority holds what the application was told, and nothing else."""
        phase = self._phase()
        if phase is None or authority(phase) != TARGET:
            self._judge_source()
            return
        rows = main_rows(self.mapper, self._contents(self.main.name))
        self._require(rows == self.application.rows, "the target was changed")

    def _judge(self, when: str) -> None:
        self._require(not self.pairs.wrong, "; ".join(self.pairs.wrong[:1]))
        for wrong in wrong_targets(self.mapper, self._rows(self.source.name), self._contents):
            raise Found(f"{self}: {when} {wrong}")
        control = self.adversary.quietly(lambda: ControlStore(self.project.restricted, SCRIPT).read())
        mapping = self.project.restricted.dump(MAPPING_TABLE)
        rows = rows_of(control, self.mapper.migration, mapping)  # type: ignore[arg-type]
        for wrong in wrong_mapping(self.mapper, rows, mapping, self._rows(self.source.name)):
            raise Found(f"{self}: {when} {wrong}")
        for wrong in left_of_other_runs(rows, mapping):
            raise Found(f"{self}: {when} {wrong}")

    def _rows(self, table: str) -> list[Row]:
        return list(self.project.rows(table))

    def _contents(self, table: str) -> dict[EntityKey, Row]:
        return contents(self._rows(table))

    def _phase(self) -> ControlPhase | None:
        control = self.adversary.quietly(lambda: ControlStore(self.project.restricted, SCRIPT).read())
        return None if control is None else control.phase  # type: ignore[attr-defined,no-any-return]

    def _expect_phase(self, phase: ControlPhase) -> None:
        self._require(self._phase() is phase, f"the control row says {self._phase()}, not {phase}")

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Found(f"{self}: {what}")

    def __str__(self) -> str:
        return f"kind {self.kind!r}, seed {self.seed}"


def _apply(one: Session) -> object:
    return commands.apply(one, SCRIPT)
