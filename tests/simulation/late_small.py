"""Small worlds with workers for exhaustive search: a task that is stopped anywhere, and its runner.

Rules kept here:

* The runner's work is the program's backfill with an executor (`rekey.runner.phases.backfill`): it sends a
  task, waits for the term, settles what moved, and sweeps. The worker's is `rekey.copy.workers.work`. Only
  the executor, the state file and what a session opens are things of this world.
* Each task is a process of its own, whatever becomes of the runner. The first one is a sleeper: at any of its
  requests it may be stopped for any length of time, and its timers fire when it goes on. Only what it has
  sent lands within the longest request or never: a process that is stopped between asking and sending is
  what no fence can help against (ADR 0029).
* The executor may say at any moment that a task is lost, which runs on all the same: so the runner gives it
  up, and its range to another worker. Or it says nothing, and the runner waits for as long as it does.
* Time passes while nobody but the writer and the late task could go on: what others do takes none.
* Nothing is repaired behind the last sweep. In capture "dual-write" (`follows`) that is the one of the
  backfill, and the writer propagates as a client does. In "delta" writers are stopped then, the control row
  moves on to `freeze`, and a last pass and a sweep follow, as at the cutover.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from rekey.copy import sweep
from rekey.copy.workers import copying, driver
from rekey.copy.workers.driver import Driver
from rekey.copy.workers.fence import Fence
from rekey.copy.workers.opened import Opened, travel_key
from rekey.copy.workers.tasks import Basis, Plain, Task
from rekey.copy.workers.work import Host, carry_out
from rekey.copy.write import Copier
from rekey.core.progress import Progress
from rekey.declaration.migration import Migration
from rekey.mapping.rows import CONTROL_TABLE, LEASE_ROW_KEY
from rekey.mapping.sealing import SealedKeys
from rekey.model import PARTITION_KEY, ROW_KEY, Row, key_of
from rekey.phases import ControlPhase
from rekey.project.config import Config, Gates, Limits
from rekey.protocol import control, term
from rekey.protocol.control import ControlRow, ControlStore
from rekey.runner import clients, workers
from rekey.runner.phases import backfill
from rekey.runner.run import Options, Run, StopFlag, tell_nobody
from rekey.state.models import Segment
from rekey.tables.base import Accounts, Table, TableService
from tests.fakes.faults import Call
from tests.simulation.scheduler import Actor, Scheduler, Waits
from tests.simulation.small import DeltaWorld, DigestsInMemory, Do, Parts
from tests.worlds.small import SCRIPT, go_on

LATE = "worker 1"
DIGEST, RUN_ID = "digest", "run"
LIMITS = Limits(concurrency=1, scans=1)
SLICE_S = 2.0
LONGEST_S = 30.0
"""The longest request, and the margin for it."""
POLL_S = 25.0
"""Longer than the runner waits for an answer: it looks once, and gives the task up."""
ALL_S = 1e9
"""Whoever waits for a moment looks when it has come."""


@dataclass(frozen=True, eq=False)
class Flight:
    """A task under way: who waits for it, and for what."""

    runner: Actor
    answer: asyncio.Future[Plain]

    @property
    def is_waited_for(self) -> bool:
        """Tell whether its answer would be heard."""
        return not (self.runner.dead or self.answer.done())

    def hear(self, what: str) -> None:
        """Note what the runner is about to hear."""
        self.runner.learn(None, "answer", what, self.answer.get_loop().time())


class Executor:
    """Stands for the pool: begins a process for each task."""

    tasks = 1
    runs_once = False

    def __init__(self, world: LateWorld) -> None:
        self._world = world

    async def __aenter__(self) -> Executor:
        return self

    async def __aexit__(self, *_: object) -> None:
        """All segments are done: how that came to be is of no importance for the rest of the run."""
        runner = self._world.scheduler.acting()
        if runner is not None:
            runner.forget(self._world.began)

    def submit(self, task: Task) -> asyncio.Future[Plain]:
        """Begin a process for a task."""
        world = self._world
        runner = world.scheduler.acting()
        if runner is None:
            raise AssertionError("only a runner submits tasks")
        flight = Flight(runner, world.scheduler.loop.create_future())
        world.flights.append(flight)
        if len(world.flights) > 1 and not world.fine:
            world.at_once(self._work(task, flight))
        else:
            world.scheduler.begin(f"worker {len(world.flights)}", lambda: self._work(task, flight))
        return flight.answer

    async def _work(self, task: Task, flight: Flight) -> None:
        result = await carry_out(cast(Host, self._world), task)
        if flight.is_waited_for:
            flight.hear(f"{result.ended} {result.rows} {result.open}")
            flight.answer.set_result(result.plain())


class StateFile:
    """What the state file keeps of a backfill."""

    def __init__(self) -> None:
        self.kept: list[Segment] = []
        self.facts: dict[str, str | None] = {}

    def segments(self, _script_id: str, _purpose: str) -> list[Segment]:
        """Return the segments as they were checkpointed last."""
        return list(self.kept)

    def add_segments(self, script_id: str, purpose: str, _ranges: object) -> list[Segment]:
        """Begin with one segment, the whole table."""
        self.kept = [Segment(1, script_id, purpose)]
        return self.segments(script_id, purpose)

    def checkpoint(self, moved: list[Segment]) -> None:
        """Keep where a segment stands."""
        self.kept = list(moved)

    def get_fact(self, _script_id: str, name: str) -> str | None:
        """Return a fact."""
        return self.facts.get(name)

    def set_fact(self, _script_id: str, name: str, value: str | None) -> None:
        """Keep a fact."""
        self.facts[name] = value

    def audit(self, *_: object) -> None:
        """Note nothing."""


class LateWorld(DeltaWorld):
    """A writer, a runner that has its backfill done by workers, and those, one after the other."""

    learns = True
    longest = LONGEST_S

    def __init__(
        self, scheduler: Scheduler, migration: Migration, before: Sequence[Row], operations: Sequence[Do],
        *, follows: bool, passages: int, losses: int = 1, kills: int = 0, sleeps: bool = False,
        fine: bool = False,
    ) -> None:  # fmt: skip
        """Take the world.

        Args:
            scheduler, migration, before, operations: as `DeltaWorld` does.
            follows: whether the writer propagates what it writes, as a client does.
            passages: how often time may pass although somebody could go on.
            losses: how often the executor says that a task is lost.
            kills: how often the runner is killed while a worker works for it.
            sleeps: whether a worker's own clock stands still while it is stopped.
            fine: whether the writer, and workers behind the first one, are interleaved call by call, too;
                otherwise each of them does all that it does in one moment.
        """
        super().__init__(scheduler, migration, before, operations, Parts())
        self.others.clock = scheduler.clock
        self.follows, self.passages, self.sleeps, self.fine = follows, passages, sleeps, fine
        self.losses, self.kills = losses, kills
        self.flights: list[Flight] = []
        self.leases = itertools.count(1)
        self.began = 0.0
        self.store = ControlStore(self.others, SCRIPT)
        self.file = StateFile()
        self.stopped = asyncio.Event()
        _current[:] = [self]

    def monotonic(self) -> float:
        """Return the time by a worker's own clock."""
        return 0.0 if self.sleeps else self.scheduler.loop.now

    # --- the scenario --------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        await super().prepare()
        await self.store.create(
            ControlRow(
                SCRIPT, ControlPhase.SOURCE, 1, RUN_ID, DIGEST, self.source.name, self.mapper.tables, {},
                id_key=bytes(32),
            )
        )  # fmt: skip
        await self.store.move(ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)

    def durable(self) -> Hashable:
        kept = tuple((one.cursor, one.done) for one in self.file.kept)
        facts = tuple(sorted(self.file.facts.items()))
        return (super().durable(), kept, facts, self.losses, self.kills, self.stopped.is_set())

    def is_private(self, call: Call) -> bool:
        return False

    def is_sleeper(self, name: str) -> bool:
        return name == LATE

    def ticking(self, call: Call) -> bool:
        return False

    def lasts(self) -> bool:
        return all(one.late or one.actor.name in (LATE, "writer") for one in self.scheduler.held)

    def events(self) -> dict[str, Callable[[], None]]:
        if not self.flights or not self.flights[-1].is_waited_for:
            return {}
        found: dict[str, Callable[[], None]] = {}
        if self.losses:
            found["the executor says that the task is lost"] = self._lose
        if self.kills:
            found["the runner is killed, another one begins"] = self._kill
        return found

    async def finish(self) -> None:
        return

    def _lose(self) -> None:
        self.losses -= 1
        self.flights[-1].hear("lost")
        self.flights[-1].answer.set_exception(RuntimeError())

    def _kill(self) -> None:
        self.kills -= 1
        self.scheduler.kill(self.flights[-1].runner, late=True)
        self.scheduler.start("runner", self._migrate)

    # --- the actors ----------------------------------------------------------------------------------------

    async def _write(self) -> None:
        for operation in self.operations:
            if self.fine:
                await self._write_one(operation)
            else:
                await self.scheduler.hold(Call("begins", "", (), 0))
                await self.at_once(self._write_one(operation))
        self.stopped.set()

    async def _write_one(self, operation: Do) -> None:
        await operation.on(self.source)
        if self.follows:
            await self.propagator().propagate(key_of(operation.row))

    def at_once(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin what happens in one moment: it is nobody's, so no call of it waits at the gate."""
        return self.scheduler.loop.create_task(work, context=Context())

    async def _migrate(self) -> None:
        lease_id, self.began = f"lease {next(self.leases)}", self.scheduler.loop.now
        await self.others.table(CONTROL_TABLE).upsert(
            {PARTITION_KEY: SCRIPT, ROW_KEY: LEASE_ROW_KEY, "LeaseId": lease_id}
        )
        if not self.kept.watermark:
            self.kept.watermark = await self.sources.server_time()
        await backfill._copy_and_sweep(self.run(lease_id))
        if self.follows:
            return
        await self.stopped.wait()
        await self.store.move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
        await self._pass()
        await self._sweep()

    def run(self, lease_id: str) -> Run:
        """Return of an open migration what the backfill asks for."""
        propagator = self.propagator()
        config = SimpleNamespace(
            path=Path("rekey.toml"), endpoints="here",
            gates=Gates(margin_s=LONGEST_S),
            limits=LIMITS, rates=LIMITS,
            executor=SimpleNamespace(slice_s=SLICE_S),
        )  # fmt: skip
        run = SimpleNamespace(
            script_id=SCRIPT, is_delta=not self.follows,
            declared=SimpleNamespace(digest=DIGEST, cli_selector=SCRIPT, migration=SimpleNamespace(group="")),
            tables=self.sources, restricted=self.others, control=self.store, mapper=propagator.mapper,
            targets=self.targets,
            mapping=self.mapping, source=self.source, propagator=propagator, copier=Copier(propagator, 1),
            state=self.file, config=config, clock=Waits(self.scheduler), progress=Progress(),
            pool=Executor(self), stop=StopFlag(), lease_id=lease_id,
            still_alone=go_on, check=go_on, keep_count=go_on,
            checkpointed=lambda **_: None, by_workers=Counter(),
            options=Options(), tell=tell_nobody, share=1.0, source_time=self.sources.server_time,
        )  # fmt: skip
        run.run_group, run.group, run.switchover = (run,), (), {}
        return cast(Run, run)

    # --- what a worker asks of its host --------------------------------------------------------------------

    async def opened(self, basis: Basis) -> Opened:
        """Return the migration as a worker opens it."""
        row = await self.store.read()
        if row is None:
            raise AssertionError("there is a control row")
        return Opened(
            identity=(basis.run_id,),
            config=cast(Config, SimpleNamespace(limits=LIMITS, targets=None)),
            mapper=self.mapper,
            accounts=Accounts(cast(TableService, Account(self)), self.others),
            control=self.store,
            mapping=self.mapping,
            keys=SealedKeys(SCRIPT, travel_key(self.mapping, row)),
        )


class Account:
    """Source and targets, which this world keeps apart, as one account."""

    last_open: float | None = None

    def __init__(self, world: LateWorld) -> None:
        self._world = world
        self.server_time = world.sources.server_time

    def multi_writer_table(self, name: str) -> Table:
        """Return the same: nothing is sent again here."""
        return self.table(name)

    def table(self, name: str) -> Table:
        """Return a handle."""
        world = self._world
        return (world.sources if name == world.source.name else world.others).table(name)


@contextmanager
def at_work() -> Iterator[None]:
    """Let the program work with an executor of these worlds, by their clock, and look where looking tells."""
    patch = mock.patch.object

    def token_hex(_bytes: int) -> str:
        return f"task {len(_current[0].flights)}"

    def monotonic() -> float:
        return _current[0].monotonic()

    def drives(**given: Any) -> Driver:
        return Driver(**given, monotonic=_current[0].scheduler.loop.time)

    before = logging.root.manager.disable
    with ExitStack() as stack:
        logging.disable(logging.CRITICAL)  # the runner says in each run that a task was lost
        stack.callback(logging.disable, before)
        for replaced in (
            patch(sweep, "DigestParts", DigestsInMemory),
            patch(workers, "Driver", drives),
            patch(driver, "_POLL_S", POLL_S),
            patch(term, "_POLL_S", ALL_S),
            patch(clients, "_POLL_S", ALL_S),
            patch(driver, "secrets", SimpleNamespace(token_hex=token_hex)),
            patch(control, "secrets", SimpleNamespace(token_hex=token_hex)),
            patch(copying, "monotonic_seconds", monotonic),
            patch(copying, "Fence", partial(Fence, monotonic=monotonic)),
        ):
            stack.enter_context(replaced)
        yield


_current: list[LateWorld] = []
