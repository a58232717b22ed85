"""An application on tables in memory: clients of a dual-write migration that write while the runner works.

Everything runs in one event loop, which outlives the sessions of the runner; between two commands the
application stands still, as everything does.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from rekey.client.lease import ClientLease
from rekey.client.parts import ClientParts, Counters
from rekey.client.reading import ClientFacts, LeaseSettings
from rekey.client.route import Writer
from rekey.core.clock import TICKS_PER_SECOND
from rekey.core.concurrency import cancel
from rekey.core.limits import TARGET_ACCOUNT_SUFFIX
from rekey.declaration.mapper import Mapper
from rekey.errors import RowRefused, ServiceError, WritesRefused
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.model import EntityKey, Row
from rekey.phases import ControlPhase, Phase
from rekey.project.secrets_source import fingerprint
from rekey.protocol.control import ControlRow
from rekey.protocol.opening import Prepared
from rekey.protocol.propagate import Propagator
from rekey.protocol.registry import Registry
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.commands import Mode
from rekey.runner.handover import hand_over
from rekey.runner.run import Options
from rekey.runner.session import Session
from rekey.runner.status import read_status
from rekey.status.judge import Status
from rekey.tables.base import Operation, TableService, Verb
from rekey.tables.kinds import by_number
from rekey.tables.part import parts_of
from tests.fakes.faults import Call, Fault, FaultKind, SeededFaults
from tests.fakes.memory import open_gate
from tests.worlds.evidence import prove
from tests.worlds.projects import Project, applied
from tests.worlds.scripts import under_writes
from tests.worlds.small import SECRET, Killed, contents, mapped

T = TypeVar("T")

application: contextvars.ContextVar[str] = contextvars.ContextVar("application", default="")
"""The name of the client that calls, "" for the runner: so a gate can tell whose call it is."""


@contextmanager
def as_application(name: str) -> Iterator[None]:
    """Mark what is called, and what tasks are begun, as those of a client."""
    token = application.set(name)
    try:
        yield
    finally:
        application.reset(token)


QUICK = LeaseSettings(poll_s=1.0, lease_s=15.0, longest_operation_s=30.0, freeze_wait_s=60.0)


@dataclass
class Company:
    """A project, its application, and the loop both live in."""

    project: Project
    script_id: str
    loop: asyncio.Runner = field(default_factory=asyncio.Runner)
    clients: list[Client] = field(default_factory=list)
    traffic: list[asyncio.Task[None]] = field(default_factory=list)
    held: list[asyncio.Task[Any]] = field(default_factory=list)
    """Writes that stand still, and end with everything else: nobody else would end them when a test fails."""
    stopping: bool = False
    pause: float = 1.0
    """How much longer than usual traffic waits between two writes."""

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the application, and whatever else is under way, run until some work is done."""
        return self.loop.run(work)

    def live(self, seconds: float) -> None:
        """Let time pass."""
        self.do(self.project.clock.sleep(seconds))

    @contextmanager
    def little_traffic(self) -> Iterator[None]:
        """Let traffic write seldom: where leases, and what may take effect late, are waited for."""
        self.pause = 20.0
        yield
        self.pause = 1.0

    def client(self, view: View = View.OLD, name: str = "", **how: Any) -> Client:
        """Start a client."""
        made = Client(self, view, name or f"app-{len(self.clients)}", **how)
        self.clients.append(made)
        self.do(made.start())
        return made

    def writes(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin traffic that goes on while the runner works."""

        async def begin() -> asyncio.Task[None]:
            with as_application("traffic"):
                return asyncio.ensure_future(work)

        self.traffic.append(self.do(begin()))

    def quiet(self) -> None:
        """Let all traffic end with the write it is at, and show its faults."""

        async def end() -> None:
            self.stopping = True
            await asyncio.gather(*self.traffic)
            self.stopping = False

        self.do(end())
        self.traffic.clear()

    def settle(self) -> None:
        """End traffic and let every client finish what it holds open."""
        self.quiet()
        self.do(self._settle())

    async def _settle(self) -> None:
        for client in self.clients:
            if client.writer is not None and not client.dead:
                await client.writer.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything."""
        self.do(cancel(self.held))
        self.quiet()
        for client in self.clients:
            if not client.dead:
                self.do(client.close())
        self.loop.close()

    # --- commands -----------------------------------------------------------------------------------------

    @contextmanager
    def session(self, options: Options | None = None) -> Iterator[Session]:
        """A session of the runner in the application's loop."""
        with self.project.session(options, loop=self.loop) as session:
            yield session

    def status(self) -> Status:
        """Return what `rekey status` would show."""
        with self.session() as session:
            return self.do(read_status(session.sources, session.scripts[self.script_id]))

    def apply(self, to: Phase | None = None, options: Options | None = None) -> commands.Applied:
        """`rekey apply`."""
        with self.session(options) as session:
            return commands.apply(session, self.script_id, to=to)

    def rollback(self, to: ControlPhase | None = None, *, drop: bool | None = None) -> list[Phase]:
        """`rekey rollback`."""
        with self.session(Options(drop_targets=bool(drop))) as session:
            return commands.rollback(session, self.script_id, to=to, drop=drop)

    def verify(self, mode: Mode = Mode.FULL, *, repair: bool = False) -> Any:
        """`rekey verify`; returns the report."""
        with self.session() as session:
            return commands.verify(session, self.script_id, mode=mode, repair=repair)

    def hand_over(self) -> None:
        """`rekey handover`, after the verification that it asks for."""
        assert not self.verify().findings
        with self.session() as session:
            hand_over(session, self.script_id)

    def retire(self, reason: str = "") -> None:
        """`rekey retire`. `reason`: why the target may hold fewer rows."""
        source = self.project.scripts[self.script_id].migration.source
        with self.session(Options(typed_table=source, no_backup="a test", reason=reason)) as session:
            prove(session.config, session.scripts[self.script_id], session.state)
            commands.retire(session, self.script_id)

    @contextmanager
    def killing_the_runner(self, at: int) -> Iterator[None]:
        """Kill the runner before its effect number `at`, on either account, and before any after that.

        The application lives on, and has its turn at every call of anybody: from then on, too.
        """
        effects = 0

        async def kill(_call: Call) -> None:
            nonlocal effects
            await asyncio.sleep(0)
            if not application.get():
                effects += 1
                if effects >= at:
                    raise Killed

        accounts = self.project.tables, self.project.targets, self.project.restricted
        for account in accounts:
            account.gate = kill
        with suppress(Killed):
            yield
        for account in accounts:
            account.gate = open_gate

    def dies_in_the_middle(self, client: Client, when: Callable[[Call], object], at: int) -> None:
        """Kill a client before its call number `at` of those that `when` is true of; all others live on."""
        calls = 0

        async def kill(call: Call) -> None:
            nonlocal calls
            await asyncio.sleep(0)
            if application.get() == client.name:
                calls += bool(when(call))
                if calls >= at:
                    await asyncio.Event().wait()

        self.project.tables.gate = self.project.restricted.gate = kill
        self.live(5)
        self.do(client.die())
        self.do(cancel(self.traffic))
        self.traffic.clear()
        assert self.intents, "it was in the middle of something"

    # --- looking ------------------------------------------------------------------------------------------

    @property
    def control(self) -> ControlRow | None:
        """The control row."""
        return self.do(self.project.store(self.script_id).read())

    @property
    def phase(self) -> ControlPhase | None:
        """What the control row says."""
        return None if self.control is None else self.control.phase

    @property
    def intents(self) -> list[Row]:
        """What is in the journal."""
        return self.project.restricted.dump(JOURNAL_TABLE)

    @property
    def unsettled(self) -> list[Row]:
        """What is in the journal, without intents that are settled and only kept for a while."""
        return [row for row in self.intents if not row.get("Settled")]

    @property
    def mapper(self) -> Mapper:
        """The mapping."""
        return Mapper(self.project.scripts[self.script_id].migration, {"users": SECRET})

    def expected(self) -> dict[str, dict[EntityKey, Row]]:
        """What every target should hold, from what the source holds."""
        mapper = self.mapper
        return mapped(mapper, self.project.rows(mapper.migration.source))

    def actual(self) -> dict[str, dict[EntityKey, Row]]:
        """What every target holds."""
        return {name: contents(self.project.rows(name)) for name in self.mapper.tables}

    def assert_in_step(self) -> None:
        """Both sides say the same."""
        assert self.actual() == self.expected()


class Client:
    """One client of the application: a lease and, once there is a control row, a writer."""

    def __init__(
        self,
        company: Company,
        view: View,
        name: str,
        *,
        settings: LeaseSettings = QUICK,
        digest: str = "",
    ) -> None:
        project = company.project
        declared = project.scripts[company.script_id]
        clock = project.clock
        self.company, self.view, self.name = company, view, name
        self.dead = False
        self.writer: Writer | None = None
        self.counters = Counters()
        self.lease = ClientLease(
            project.store(company.script_id),
            Registry(project.restricted, company.script_id),
            ClientFacts(
                company.script_id,
                digest or declared.digest,
                {"users": fingerprint(SECRET)} if "users" in declared.path.read_text() else {},
                view,
                name,
                Prepared.of(project.config, declared).target_account,
            ),
            settings=settings,
            settle=self._settle,
            counters=partial(asdict, self.counters),
            left=lambda: self.writer.left if self.writer is not None else 0,
            monotonic=lambda: clock.ticks() / TICKS_PER_SECOND,
            sleep=clock.sleep,
        )

    async def start(self) -> None:
        """Register."""
        with as_application(self.name):
            await self.lease.start()

    async def close(self) -> None:
        """End as a process ends that is stopped."""
        with as_application(self.name):
            await self.lease.close()
            if self.writer is not None:
                await self.writer.close()

    async def die(self) -> None:
        """End as a process ends that is killed: nothing is given back, nothing is said."""
        self.dead = True
        finisher = None if self.writer is None else self.writer.finisher
        behind = [] if finisher is None else [*finisher._tasks, *(left.task for left in finisher._kept)]
        await cancel([*self.lease._tasks.values(), *behind])

    async def write(self, *operations: Operation) -> list[str | None]:
        """Write through the client."""
        with as_application(self.name):
            return await self._write(operations)

    async def _write(self, operations: Sequence[Operation]) -> list[str | None]:
        control = self.lease.control
        if self.writer is None and control is not None:
            self.writer = await self._writer(control)
        if self.writer is not None:
            return await self.writer.write(operations)
        async with self.lease.operation(writes=True):
            [operation] = operations
            table = project_tables(self.company.project).table(self.company.mapper.migration.source)
            return await table.transact([operation])

    async def _writer(self, control: ControlRow) -> Writer:
        project, mapper = self.company.project, self.company.mapper
        mapping = await project.mapping(self.company.script_id)
        opened = parts_of(mapper.migration.key_spaces, project_tables(project).table)
        propagator = Propagator(
            opened(mapper.migration.source),
            by_number(mapper.tables, mapper.migration.beginnings, opened),
            mapper,
            mapping,
            references=project.old_references(self.company.script_id),
        )
        return Writer(
            ClientParts(
                self.view,
                self.lease.client_id,
                propagator=propagator,
                journal=await project.journal(self.company.script_id),
                permits=self.lease,
                run_id=control.run_id,
                counters=self.counters,
                sleep=project.clock.sleep,
            )
        )

    async def _settle(self) -> None:
        if self.writer is not None:
            await self.writer.settle()


Change = Callable[[random.Random, EntityKey], Row]
"""Makes the next content of a row of one client's view."""


@dataclass
class Ledger:
    """What a client was told of its own rows.

    Attributes:
        rows: what is there, None for a row that was deleted.
        doubtful: keys with an answer that left it open; they are not written again.
        longest_wait_s: the longest that a write took, by the clock that everybody waits by.
        writes: how many were acknowledged.
    """

    rows: dict[EntityKey, Row | None] = field(default_factory=dict)
    doubtful: set[EntityKey] = field(default_factory=set)
    longest_wait_s: float = 0.0
    writes: int = 0


async def traffic(client: Client, keys: list[EntityKey], change: Change, ledger: Ledger, seed: int) -> None:
    """Insert, replace, merge and delete rows of a client's own, and note what was acknowledged.

    Args:
        client: through which.
        keys: its own keys, in its view; nobody else writes under them.
        change: makes content; the key is added.
        ledger: takes what was acknowledged.
        seed: of the choices.
    """
    rng = random.Random(seed)
    clock = client.company.project.clock
    while not client.company.stopping:
        key = rng.choice([one for one in keys if one not in ledger.doubtful] or keys)
        if key in ledger.doubtful:
            return
        now = ledger.rows.get(key)
        row = {**change(rng, key), "PartitionKey": key.partition, "RowKey": key.row}
        verb = Verb.INSERT if now is None else rng.choice((Verb.REPLACE, Verb.MERGE, Verb.DELETE))
        if rng.random() < 0.2:
            verb = Verb.INSERT_OR_REPLACE
        operation = Operation(verb, row, None if verb in (Verb.INSERT, Verb.INSERT_OR_REPLACE) else "*")
        began = clock.ticks()
        try:
            await client.write(operation)
        except WritesRefused as refused:
            if not refused.retryable:
                raise
        except RowRefused as refused:
            if refused.code != "key-moves":
                raise
        except ServiceError:
            ledger.doubtful.add(key)
            ledger.rows.pop(key, None)
        else:
            ledger.rows[key] = None if verb is Verb.DELETE else row
            ledger.writes += 1
        ledger.longest_wait_s = max(ledger.longest_wait_s, (clock.ticks() - began) / TICKS_PER_SECOND)
        await clock.sleep(rng.choice((0.0, 0.05, 0.3)) * client.company.pause)


class ApplicationFaults:
    """Faults that meet the application only; the runner's commands would have to be repeated.

    Args:
        seed: of the faults that are drawn.
        rate: the share of the application's calls that fail.
        table: every write of the first row that is written there is lost, until the faults end.

    Attributes:
        unanswered: the key of that row, None as long as there is none.
    """

    def __init__(self, seed: int, *, rate: float, table: str) -> None:
        kinds = (FaultKind.BUSY, FaultKind.TIMED_OUT, FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST)
        self._drawn = SeededFaults(seed, rate=rate, kinds=kinds)
        self._table = table
        self._ended = False
        self.unanswered: EntityKey | None = None

    def end(self) -> None:
        """Let every later call through."""
        self._ended = True

    def decide(self, call: Call) -> Fault | None:
        """Draw for one call."""
        if self._ended or not application.get():
            return None
        if call.writes and call.table == self._table:
            self.unanswered = self.unanswered or call.operations[0].key
            if call.operations[0].key == self.unanswered:
                return Fault(FaultKind.LOST_REQUEST)
        return self._drawn.decide(call)


def project_tables(project: Project) -> TableService:
    """Return the tables of a project, wherever they are."""
    return project.connect(project.config).tables


def company(folder: Path, script: str, rows: list[Row]) -> Company:
    """Return a company with a script and a source that holds rows."""
    project = Project(folder)
    if TARGET_ACCOUNT_SUFFIX in script:
        project.move_elsewhere()
    script_id = project.script(under_writes(script), "0001_subject.py")
    made = Company(project, script_id)
    made.do(project.fill(project.scripts[script_id].migration.source, rows))
    return made


def company_at(folder: Path, script: str, rows: list[Row], to: Phase | None = None) -> Company:
    """Return a company like that of `company`, applied up to a phase without clients; None: up to the gate of
    cutover."""
    return Company(applied(folder, under_writes(script), rows, to, name="0001_subject.py"), "0001_subject")
