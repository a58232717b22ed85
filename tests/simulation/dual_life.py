"""One life of a dual-write migration, drawn from a seed: the implementation itself, application and runner.

Rules kept here:

* The application writes from before the migration until after its end, through clients of both views that
  start, end, are killed, and stop for a while. The runner is killed as well, and run again; while it stands
  still, another one may begin in another folder, which is of the same host, path and process id.
* Each command runs on a machine whose clock may be wrong, and may be set while it runs.
* Whoever operates it repeats a command until it is done, as the messages say. What a verification finds is a
  find, unless a client that had stood still has sent something late; so is a command that does not get done
  once nothing fails any more, and a cutover with nothing verified since the way back.
* When the life pauses, all that is open ends, and everything is judged: the journal is empty, the replicas
  are what the authority says, every target row is accounted for, and what clients were told of a key fits one
  row that changes at once, ending with what is there.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from rekey.client.reading import ClientFacts, LeaseSettings
from rekey.client.sdk.core import ClientCore
from rekey.client.sdk.options import timeouts_for
from rekey.core.limits import TARGET_ACCOUNT_SUFFIX, is_in_target_account
from rekey.declaration.mapper import Mapper
from rekey.errors import (
    Collision,
    Findings,
    GateClosed,
    Interrupted,
    Locked,
    Refused,
    RekeyError,
    ServiceError,
)
from rekey.mapping.rows import (
    CONTROL_TABLE,
    JOURNAL_TABLE,
    MAPPING_TABLE,
    MappingRows,
)
from rekey.mapping.sealing import LocalWrappingKey
from rekey.model import EntityKey, Row
from rekey.phases import ControlPhase, Phase
from rekey.protocol import lease
from rekey.protocol.control import ControlRow, from_row
from rekey.protocol.opening import Prepared, joined
from rekey.protocol.rules import SOURCE, View, authority
from rekey.runner import commands, verification
from rekey.runner.commands import Mode
from rekey.runner.run import Options
from rekey.runner.session import Session
from tests.simulation.driving import Driver
from tests.simulation.dual_people import (
    Application,
    Client,
    Doing,
    Notes,
    Posts,
    Races,
    Standing,
    Users,
    options_for,
)
from tests.simulation.dual_shared import FOLDED, SEATED, Guests, drawn, drawn_folded
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
from tests.simulation.linearizable import Undecided
from tests.simulation.reasons import asks_for_reason, with_reason
from tests.simulation.repeatable import made_repeatable
from tests.simulation.shared_keys import SharedKeysWatch
from tests.simulation.storm import (
    SIGNED_S,
    MachineClock,
    Process,
    Storm,
    StormClock,
    StormLoop,
    StormService,
)
from tests.worlds.projects import (
    INVERTED_SCRIPT,
    POSTS_SCRIPT,
    SECONDARY_FROM_KEYS_SCRIPT,
    SECONDARY_SCRIPT,
    USERS_SCRIPT,
    WRAPPING_KEY,
    Project,
)
from tests.worlds.scripts import under_writes
from tests.worlds.small import SECRET, Killed, contents

SCRIPT = "0001_subject"
PATIENCE = 8
"""How often a command is repeated before nothing fails any more."""
RUNNER_REQUEST_S = 30.0
"""The service's own limit to what a request of the runner may take."""

_INDEX = """    indexes=[
        Index("UsersByMail", partition_key=keys.literal("all"), row_key=keys.prop("RowKey"),
              properties=[props.keep("Age")]),
    ],
    waive={"personal-data": "made-up addresses"},
    capture="delta","""

_INDEXED_SCRIPT = USERS_SCRIPT.replace('    capture="delta",', _INDEX).replace(
    "Migration,", "Index, Migration,"
)

Script = str | Callable[[object], str]
"""A script, or what draws one from a seed."""

KINDS: dict[str, tuple[Script, type[Application]]] = {
    "keys from keys": (under_writes(USERS_SCRIPT), Users),
    "keys that say the old ones": (under_writes(INVERTED_SCRIPT), Users),
    "keys from keys, indexed": (under_writes(_INDEXED_SCRIPT), Users),
    "keys from content": (under_writes(POSTS_SCRIPT), Posts),
    "keys from keys, secondary rows": (under_writes(SECONDARY_FROM_KEYS_SCRIPT), Races),
    "keys from content, secondary rows": (under_writes(SECONDARY_SCRIPT), Races),
    "folded keys": (FOLDED, Guests),
    "a unique index": (SEATED, Guests),
    "drawn keys": (drawn, Guests),
    "drawn keys, folded": (drawn_folded, Guests),
}


@dataclass
class Life:
    """One migration's life. `live` lives it whole."""

    folder: Path
    kind: str
    seed: int
    harsh: bool = True
    kinds: ClassVar[Mapping[str, tuple[Script, type[Application]]]] = KINDS
    moves: ClassVar[bool] = True
    """Whether it is drawn that the main target is in another account."""
    whole: ClassVar[bool] = True
    """Whether it goes on after the first cutover."""
    random: random.Random = field(init=False)
    commands: Counter[str] = field(default_factory=Counter)
    clients: list[Client] = field(default_factory=list)
    operations: int = 0
    quiet: bool = False
    only_new: bool = False
    verified: int = 0
    """How many full verifications were recorded."""
    returned: int | None = None
    """How many of them before a way back, if none came behind it."""
    sent_late: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.kind} {self.seed}")
        self.loop = StormLoop()
        self.storm = Storm(f"{self.kind} {self.seed}", self.loop)
        script, application = self.kinds[self.kind]
        script = script if isinstance(script, str) else script(f"{self.kind} {self.seed}")
        self.project = Project(self.folder, StormClock(self.loop))
        self.project.tables = StormService(self.storm, self.project.clock)
        self.project.restricted = StormService(self.storm, self.project.clock)
        self.project.targets = StormService(self.storm, self.project.clock, is_target_account=True)
        script = elsewhere_or_not(script, f"{self.kind} {self.seed}") if self.moves else script
        self.elsewhere = TARGET_ACCOUNT_SUFFIX in script
        if self.elsewhere:
            self.project.move_elsewhere()
        self.project.script(script, f"{SCRIPT}.py")
        draw_limits(self.folder, self.random)
        self.declared = self.project.scripts[SCRIPT]
        self.mapper = Mapper(self.declared.migration, {"users": SECRET})
        self.application = application(self.mapper)
        self.pairs = PairsWatch(self.mapper)
        self.shared = SharedKeysWatch(
            self.mapper, lambda: self._standing().side, lambda: self.loop.now, self._mapping_rows
        )
        self.settings = self.random.choice(
            (
                LeaseSettings(poll_s=1.0, lease_s=4.0, longest_operation_s=9.0, freeze_wait_s=5.0),
                LeaseSettings(poll_s=0.5, lease_s=10.0, longest_operation_s=15.0, freeze_wait_s=30.0),
            )
        )
        self.failing = self.random.choice((0.0, 0.003, 0.02))
        self.notes = Notes(self.mapper, group=self.application.group)
        self.source = self.declared.migration.source
        self.main = self.mapper.tables[0]
        self.before: dict[EntityKey, Row] = {}
        self._numbers = itertools.count(1)
        self._other: Project | None = None

    # --- the life ----------------------------------------------------------------------------------------

    def live(self) -> None:
        """Live it whole. Raises Found."""
        with (
            self.made_repeatable(),
            self.pairs.watching(),
            self.shared.watching() if self.application.shares else nullcontext(),
            self.loop,
            self._all_ending(),
        ):
            self._begin()
            self._apply()
            if self.random.random() < 0.15:
                self._share_nothing()
                self._go_back_to_the_beginning()
                self._apply()
            self._work(20)
            self._cut_over()
            self._work(20)
            if not self.whole:
                self._pause("at the end")
                return
            for _ in range(self.random.choice((0, 1, 1, 2))):
                self._roll_back()
                self._work(15)
                self._cut_over()
                self._work(15)
            self._complete()

    def _begin(self) -> None:
        self._make_table()
        self.application.settle({}, self.random)
        for key in self.application.keys:
            if self.random.random() < 0.6 and self.application.may_create(key):
                row = self.application.row(self.random, key)
                self.loop.run(self.project.tables.table(self.source).insert(row))
        self.before = self._contents(self.source)
        self._start_client(View.OLD)
        self._start_client(View.OLD)
        self.nature = self.loop.create_task(self._nature())
        self._work(self.random.choice((2, 10)))

    def _make_table(self) -> None:
        self.loop.run(self.project.tables.create_table(self.source))

    def _apply(self) -> None:
        if self.random.random() < 0.15 and not self._attempt(
            "apply", lambda one: commands.apply(one, SCRIPT)
        ):
            self._go_back_to_the_beginning(drop=True)
        self._until_done("apply", lambda one: commands.apply(one, SCRIPT))
        self._expect_phase(ControlPhase.DUAL_WRITE)
        self.application.share()
        if self.random.random() < 0.5:
            self._pause("after apply")
        self._verify()

    def _share_nothing(self) -> None:
        """Before no client knows of the others' target keys any more."""
        if self.application.shares:
            self._pause("before nothing is shared")
            self.application.settle(self._contents(self.source), self.random)

    def _go_back_to_the_beginning(self, *, drop: bool | None = None) -> None:
        """Take it back, also right after a kill; the service deletes tables slowly."""
        drop = self.random.random() < 0.5 if drop is None else drop

        def go_back(one: Session) -> object:
            if self.control is None or (self.control.phase is ControlPhase.SOURCE and not drop):
                return None
            return commands.rollback(one, SCRIPT, to=ControlPhase.SOURCE, drop=drop)

        self._until_done("rollback to source", go_back, Options(drop_targets=drop))
        self._pass(self.random.choice((0, 60)))

    def _verify(self) -> None:
        def verify(one: Session) -> object:
            report = commands.verify(one, SCRIPT, mode=Mode.FULL)
            if report.findings and self._was_sent_late():
                commands.verify(one, SCRIPT, mode=Mode.FULL, repair=True)
                report = commands.verify(one, SCRIPT, mode=Mode.FULL)
            self.require(not report.findings, f"a false alarm under writes: {report.as_json()}")
            return None

        self._until_done("verify", verify)

    def _was_sent_late(self) -> bool:
        """Tell whether a process that had stood still has sent something since this was last asked."""
        before, self.sent_late = self.sent_late, self.storm.happened["sent late"]
        return self.sent_late > before

    def _cut_over(self) -> None:
        if self.returned == self.verified and self.random.random() < 0.5:
            work = self._attempt(
                "cutover unverified", lambda one: commands.apply(one, SCRIPT, to=Phase.CUTOVER)
            )
            self.require(not work, "cut over, and nothing was verified since the way back")
        self._verify()
        self._until_done("cutover", lambda one: commands.apply(one, SCRIPT, to=Phase.CUTOVER))
        self._expect_phase(ControlPhase.CUTOVER)
        if self.random.random() < 0.6:
            self._pause("after cutover")

    def _roll_back(self) -> None:
        def roll_back(one: Session) -> object:
            if self.control is not None and self.control.phase is ControlPhase.DUAL_WRITE:
                return None  # a run before, which did not hear of it, did it
            return commands.rollback(one, SCRIPT, to=ControlPhase.DUAL_WRITE, drop=None)

        self.returned = self.verified
        self._until_done("rollback", roll_back)
        self._expect_phase(ControlPhase.DUAL_WRITE)
        if self.random.random() < 0.6:
            self._pause("after rollback")

    def _complete(self) -> None:
        """End the old version of the application, then the migration."""
        self.only_new = True
        for client in self.clients:
            if client.view is View.OLD and client.live:
                client.close()
        self._start_client(View.NEW)
        self._pause("before complete")
        rows = main_rows(self.mapper, self._contents(self.main))
        old = {self.mapper.source_key(row): row for row in rows.values()}
        self.application.fixed = {
            key: {name: row[name] for name in self.application.in_keys}
            for key in self.application.keys
            for row in [old.get(key) or self.mapper.map(self.application.row(self.random, key))[0].row]
        }
        self.notes = Notes(self.mapper, plain=True)
        self.before = rows
        self.pairs.paused = self.shared.paused = True
        self._until_done("complete", lambda one: commands.apply(one, SCRIPT, to=Phase.COMPLETE))
        self._expect_phase(ControlPhase.COMPLETE)
        self._work(10)
        self._pause("after complete")

    # --- the application ---------------------------------------------------------------------------------

    def _start_client(self, view: View) -> Client:
        client = self.client(view)
        client.start()
        return client

    def client(self, view: View) -> Client:
        """Return a client that has not begun to work."""
        name = f"{view}-{next(self._numbers)}"
        service = timeouts_for(self.settings).service or 0
        draw = random.Random(f"{self.kind} {self.seed} {name}")
        slowness = draw.choice((1.0, 1.0, 1.0, 10.0))
        process = Process(name, float(service), self.failing, slowness, unasked=0.5)
        targets = self.project.config.targets
        prepared = Prepared(
            self.declared,
            {"users": SECRET}.__getitem__,
            lambda: LocalWrappingKey(WRAPPING_KEY.encode()),
            "" if targets is None else targets.endpoint,
        )
        facts = ClientFacts(
            SCRIPT, self.declared.digest, prepared.fingerprints, str(view), name, prepared.target_account
        )
        options = options_for(prepared, facts, self.settings, 0.0)
        # Not `project.connect`: while a command is at work that gives its own handles, which repeat.
        own = self.project.targets if self.elsewhere else None
        accounts = joined(tables=self.project.tables, targets=own, restricted=self.project.restricted)
        client = Client(
            process,
            view,
            ClientCore(options, lambda: accounts),
            accounts.tables.table(options.table),  # type: ignore[arg-type]
            self.application,
            self.storm,
            notes=lambda: self.notes,
            standing=self._standing,
            quiet=lambda: self.quiet,
            random=draw,
            refused=self._judge_refusal,
        )
        self.clients.append(client)
        self.storm.happened["client started"] += 1
        return client

    async def _nature(self) -> None:
        """Let clients come and go."""
        draw = random.Random(f"{self.kind} {self.seed} nature")
        while True:
            await self.project.clock.sleep(draw.expovariate(1 / 6))
            if self.storm.calm or self.quiet:
                continue
            living = [one for one in self.clients if one.live]
            lot = draw.random()
            if len(living) < 2 or (lot < 0.3 and len(living) < 4):
                new = self.only_new or (self._opens_soon() and draw.random() < 0.5)
                self._start_client(View.NEW if new else View.OLD)
                continue
            client = draw.choice(living)
            if lot < 0.5 and self.harsh:
                self.storm.kill(client.process)
            elif lot < 0.8:
                self._stop(client.process, draw.choice((1.0, 5.0, 20.0, 60.0, 600.0)) * draw.random())
            elif lot < 0.9 and len(living) > 2:
                self.storm.happened["client closed"] += 1
                client.close()
            elif lot >= 0.97 and self.elsewhere:
                self.storm.happened["account away"] += 1
                self.storm.away_until = self.loop.now + draw.choice((1.0, 5.0, 20.0)) * draw.random()

    def _opens_soon(self) -> bool:
        return self.control is not None

    def _stop(self, process: Process, seconds: float) -> None:
        if process.stopped or process.dead:
            return
        self.storm.happened["process stopped"] += 1
        if seconds > self.settings.lease_s:
            self.storm.happened["lease expired"] += 1
        self.storm.stop(process)
        self.loop.call_later(seconds, self.storm.go_on, process, context=Context())

    def _work(self, seconds: float) -> None:
        self._pass(seconds * self.random.random())

    def _pass(self, seconds: float) -> None:
        self.loop.pass_time(seconds)
        self._raise_faults()

    def _raise_faults(self) -> None:
        for wrong in (*self.pairs.wrong, *self.shared.wrong):
            raise Found(f"{self}: {wrong}")
        for client in self.clients:
            if client.faults:
                raise Found(f"{self}: a client fell over") from client.faults[0]
        if self.nature.done() and not self.nature.cancelled():
            self.nature.result()

    # --- commands ----------------------------------------------------------------------------------------

    def _until_done(
        self, name: str, work: Callable[[Session], object], options: Options | None = None
    ) -> None:
        for attempt in range(PATIENCE + 6):
            self.storm.calm = attempt >= PATIENCE
            if self._attempt(name, work, options):
                self.storm.calm = False
                return
            if asks_for_reason(self._refused, options):
                self.storm.happened["reason given"] += 1
                options = with_reason(options)
            self._pass(self.random.random() * 40)
        raise Found(f"{self}: `{name}` was not done after {PATIENCE + 6} attempts: {self._said}")

    def _attempt(
        self,
        name: str,
        work: Callable[[Session], object],
        options: Options | None = None,
        *,
        beside: bool = False,
    ) -> bool:
        self._refused = None
        self.commands[name] += 1
        number = sum(self.commands.values())
        process = Process(
            f"runner {number}", RUNNER_REQUEST_S, self.failing / 3, failing_reads=self.failing / 20
        )
        if self.harsh and not self.storm.calm and self.random.random() < 0.35:
            process.dies_at = self.random.randint(1, 300)
        also: Callable[[], None] | None = None
        if not self.storm.calm and self.random.random() < 0.25:
            self.loop.call_later(self.random.random() * 10, self._stop, process, self.random.random() * 90)
            if not beside and name in ("apply", "verify", "cutover") and self.random.random() < 0.5:
                also = partial(self._second_runner, name, work, options)
        project = self.other_folder() if beside else self.project
        try:
            self.command(process, work, options, machine=self._machine(process), project=project, also=also)
        except Killed:
            self.storm.happened["runner killed"] += 1
            return False
        except Locked:
            self._pass(70)
            return False
        except GateClosed as error:
            self._said = f"{error}"
            if "was given up" in self._said:
                self._pass(SIGNED_S)  # only what is verified behind that time counts
            if "rekey verify" in self._said and name != "verify":
                self._verify()
            return False
        except (ServiceError, Interrupted, Refused) as error:
            self._said, self._refused = f"{error}", error
            return False
        except Findings as error:
            if isinstance(error, Collision) or not self._was_sent_late():
                raise Found(f"{self}: `{name}` said {type(error).__name__}: {error}") from error
            self._said = f"{error}"
            self._verify()
            return False
        except RekeyError as error:
            raise Found(f"{self}: `{name}` said {type(error).__name__}: {error}") from error
        self._raise_faults()
        return True

    def command(
        self,
        process: Process,
        work: Callable[[Session], object],
        options: Options | None = None,
        *,
        machine: MachineClock,
        project: Project,
        also: Callable[[], None] | None = None,
    ) -> None:
        """Run one command as a process of its own; somebody else does `also` while that stands still."""
        driver: Any = Driver(self.storm, process, also)
        tables, targets, restricted = (
            one.seen_by(process, machine)  # type: ignore[attr-defined]
            for one in (self.project.tables, self.project.targets, self.project.restricted)
        )
        own = targets if self.elsewhere else None
        accounts = joined(tables=tables, targets=own, restricted=restricted)
        with (
            mock.patch.object(lease, "_PROCESS", process.name),
            mock.patch.multiple(project, clock=machine, connect=lambda _: accounts),
            project.session(options, loop=driver) as one,
        ):
            work(one)

    def _second_runner(self, name: str, work: Callable[[Session], object], options: Options | None) -> None:
        """Somebody starts the command in another folder, while the first one stands still."""
        self.storm.happened["second runner"] += 1
        self._other = None
        for _ in range(3):
            if self._attempt(name, work, options, beside=True):
                return

    def other_folder(self) -> Project:
        """Return a folder with a state file of its own: another container's, mounted under the same path."""
        if self._other is None:
            folder = self.folder / f"other-{sum(self.commands.values())}"
            self._other = Project(folder, self.project.clock)
            self._other.script(self.declared.path.read_text("utf-8"), self.declared.path.name)
            toml = (self.folder / "rekey.toml").read_text("utf-8")
            (folder / "rekey.toml").write_text(toml, "utf-8")
        return self._other

    def _machine(self, process: Process) -> MachineClock:
        """Return the clock of the machine on which a command runs."""
        draw = random.Random(f"{self.kind} {self.seed} {process.name} clock")
        machine = MachineClock(self.loop, draw.choice((0.0, 0.0, 0.0, 300.0, -300.0)))
        if not self.storm.calm and draw.random() < 0.1:
            self.storm.happened["clock set"] += 1
            self.loop.call_later(20 * draw.random(), machine.jump, draw.choice((300.0, -300.0)))
        return machine

    _said = ""
    _refused: RekeyError | None = None

    # --- pausing and judging -------------------------------------------------------------------------------

    def _pause(self, when: str) -> None:
        """Let everything that is open end, judge, and begin a new chapter."""
        self.quiet = self.storm.calm = True
        for client in self.clients:
            self.storm.go_on(client.process)
        for _ in range(40):
            self._pass(5)
            if not any(client.busy for client in self.clients if not client.process.dead):
                break
        else:
            raise Found(f"{self}: {when} clients are still busy")
        self._pass(2 * RUNNER_REQUEST_S)
        for wait in (30, 30, 2 * SIGNED_S, 30):
            if not self._rows(JOURNAL_TABLE, self.project.restricted):
                break
            self._attempt("apply", lambda one: commands.apply(one, SCRIPT))
            self._pass(wait)
        self._judge(when)
        self.notes = Notes(self.mapper, self.notes.plain, self.application.group)
        self.quiet = self.storm.calm = False

    def _judge(self, when: str) -> None:
        intents = self._rows(JOURNAL_TABLE, self.project.restricted)
        self.require(not intents, f"{when} the journal holds {len(intents)} intents")
        control = self.control
        if control is not None and control.phase in (ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER):
            for wrong in wrong_targets(self.mapper, self._rows(self.source), self._contents):
                raise Found(f"{self}: {when} {wrong}")
            self._judge_mapping(when, control)
        self._judge_told(when)

    def _judge_refusal(self, process: Process, step: list[Doing], view: View, began: float) -> None:
        self.shared.judge(process, [one.do for one in step], view.side, began)

    def _mapping_rows(self) -> MappingRows | None:
        """Return what reads the mapping rows; None where there is no control row."""
        control, service = self.control, self.project.restricted
        if control is None or MAPPING_TABLE not in service._tables:
            return None
        return rows_of(control, self.declared.migration, service.dump(MAPPING_TABLE))

    def _judge_mapping(self, when: str, control: ControlRow) -> None:
        mapping = self._rows(MAPPING_TABLE, self.project.restricted)
        rows = rows_of(control, self.declared.migration, mapping)
        for wrong in wrong_mapping(self.mapper, rows, mapping, self._rows(self.source)):
            raise Found(f"{self}: {when} {wrong}")
        for wrong in left_of_other_runs(rows, mapping):
            raise Found(f"{self}: {when} {wrong}")

    def _judge_told(self, when: str) -> None:
        """What clients were told of each key fits one row that changes at once."""
        plain = self.notes.plain
        after = main_rows(self.mapper, self._contents(self.main)) if plain else self._contents(self.source)
        there = {self.notes.keys_of(key) for key in self.before.keys() | after.keys()}
        for keys in sorted(there | self.notes.by_keys.keys()):
            witness = self.notes.of_keys(keys)
            self.operations += len(witness.noted)
            history = witness.history(_only(self.before, keys), _only(after, keys))
            try:
                fits = history.is_linearizable()
            except Undecided:
                self.storm.happened["history not decided"] += 1
                continue
            self.require(
                fits, f"{when} clients were told of {', '.join(map(str, keys))} what cannot be:\n{history}"
            )
        self.before = after

    def _rows(self, table: str, service: StormService | None = None) -> list[Row]:
        there = self.project.targets if is_in_target_account(table) else self.project.tables
        service = service or there  # type: ignore[assignment]
        if not self.loop.run(service.table_exists(table)):  # type: ignore[union-attr]
            return []
        return service.dump(table)  # type: ignore[union-attr]

    def _contents(self, table: str) -> dict[EntityKey, Row]:
        return contents(self._rows(table))

    @property
    def control(self) -> ControlRow | None:
        """The control row as it stands."""
        tables = self.project.restricted._tables
        if CONTROL_TABLE not in tables:
            return None
        rows = [row for row in self.project.restricted.dump(CONTROL_TABLE) if row["RowKey"] == "control"]
        return from_row(rows[0]) if rows else None

    def _standing(self) -> Standing:
        control = self.control
        if control is None:
            return Standing(SOURCE, 0)
        phase = control.phase
        if phase is ControlPhase.FREEZE:
            phase = control.came_from or ControlPhase.DUAL_WRITE
        return Standing(authority(phase) or SOURCE, control.epoch)

    def _expect_phase(self, phase: ControlPhase) -> None:
        now = self.control.phase if self.control is not None else None
        self.require(now is phase, f"the control row says {now}, not {phase}")

    def require(self, holds: bool, what: str) -> None:
        """Raise Found unless something holds."""
        if not holds:
            raise Found(f"{self}: {what}")

    @contextmanager
    def _all_ending(self) -> Iterator[None]:
        """End everything that still runs, also when something was found."""
        try:
            yield
        finally:
            self.nature.cancel()
            for client in self.clients:
                self.loop.kill(client.process)
            self.loop.drain()

    def made_repeatable(self) -> AbstractContextManager[None]:
        """Put the simulation's time and draws where the program takes the machine's."""
        words = random.Random(f"{self.kind} {self.seed} words")
        return made_repeatable(words, self.loop.time, self.project.clock.ticks, self._record)

    def _record(self, *given: Any) -> None:
        self.verified += 1
        _record(*given)

    def __str__(self) -> str:
        return f"kind {self.kind!r}, seed {self.seed}"


class ToCutover(Life):
    """A life that ends some time after the cutover."""

    whole = False


_record = verification.record


def _only(rows: dict[EntityKey, Row], keys: Sequence[EntityKey]) -> Sequence[Row]:
    return [rows[key] for key in keys if key in rows]
