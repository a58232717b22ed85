"""Small worlds in which the authority moves: a runner takes it across a freeze while clients write and look.

Rules kept here:

* Clients have the program's lease, the runner its moves (`cutover.switch_over`). Of a migration opened
  for work only what these ask for is there.
* When a client looks at the control row, and when it begins an operation, is a choice of the search: a step
  of its own at the gate, which is no call on a table. A client looks a few times and then no more: what the
  runner waits for then is that its time is over.
* Time passes where everybody waits for it, and as a choice as often as the world says: then leases end and
  operations are cut off, and what they sent is late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

from rekey.client.lease import ClientFacts, ClientLease, LeaseSettings
from rekey.client.parts import ClientParts, Counters
from rekey.core.progress import Progress
from rekey.declaration.migration import Migration
from rekey.errors import RekeyError
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import Row
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, ControlStore, from_row
from rekey.protocol.registry import Registry
from rekey.protocol.rules import SOURCE, TARGET, Side
from rekey.runner import clients
from rekey.runner.phases import cutover
from rekey.runner.run import Options, tell_nobody
from tests.fakes.faults import Call
from tests.simulation.dual_small import DualParts, DualWorld, Works
from tests.simulation.one_store import number_moves_from, numbered_moves
from tests.simulation.scheduler import Scheduler, Waits
from tests.simulation.witness import Client
from tests.worlds.small import SCRIPT, go_on

DIGEST = "digest"
TIMES = LeaseSettings(poll_s=1.0, lease_s=4.0, longest_operation_s=6.0, freeze_wait_s=8.0)
POLL_S = 5.0
OVER_S = 20.0
"""After this nothing of a silent client is left, margins included."""


@contextmanager
def repeatable() -> Iterator[None]:
    """Number the moves of each run instead of drawing words, let the runner look less often, and leave the
    comparison out that is made when there are no clients: these worlds are about what comes without it.

    A freeze begins with clients that gave a sign in this very second, too: time stands still here while
    anybody can go on, and nothing may be lost however early it begins.
    """

    async def verified(_run: object) -> SimpleNamespace:
        return SimpleNamespace(findings=False)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(cutover, verify_full=verified, unfollowed=lambda _run: False))
        stack.enter_context(numbered_moves())
        stack.enter_context(mock.patch.object(clients, "CLOCK_RESOLUTION", 0))
        stack.enter_context(mock.patch.object(clients, "POLL_S", POLL_S))
        yield


class MovingWorld(DualWorld):
    """Clients that write while a runner moves the authority from one side to the other."""

    longest = TIMES.longest_operation_s
    passage_s = 5.0

    def __init__(
        self,
        scheduler: Scheduler,
        migration: Migration,
        before: Sequence[Row],
        clients: Sequence[Works],
        parts: DualParts,
        *,
        start: ControlPhase = ControlPhase.DUAL_WRITE,
        looks: int = 2,
        passages: int = 0,
    ) -> None:
        """Take the world as `DualWorld` does.

        Args:
            scheduler, migration, before, clients, parts: as there.
            start: `dual_write` or `cutover`, and the runner goes to the other one; or `source`, and it begins
                to follow writes and copies.
            looks: how often each client looks at the control row after its first look.
            passages: how often time may pass although somebody could go on.
        """
        copied = start is not ControlPhase.SOURCE
        super().__init__(scheduler, migration, before, clients, parts, phase=start, copied=copied)
        self.others.clock = scheduler.clock
        self.start, self.looks = start, looks
        self.end = ControlPhase.CUTOVER if start is ControlPhase.DUAL_WRITE else ControlPhase.DUAL_WRITE
        self.passages = passages
        self.crashing = self.mortal
        self.store = ControlStore(self.others, SCRIPT)
        number_moves_from(0)

    @property
    def control(self) -> ControlRow:
        """The control row as it stands."""
        rows = [row for row in self.others.dump(CONTROL_TABLE) if row["RowKey"] == "control"]
        return from_row(rows[0])

    @property
    def authority(self) -> Side:
        phase = self.control.phase
        if phase is ControlPhase.FREEZE:
            phase = self.control.came_from or phase
        return TARGET if phase is ControlPhase.CUTOVER else SOURCE

    async def prepare(self) -> None:
        await super().prepare()
        control = ControlRow(
            SCRIPT, ControlPhase.SOURCE, 1, "run", DIGEST, self.source.name, self.mapper.tables, {},
            id_key=bytes(32), copied=self.copied,
        )  # fmt: skip
        await self.store.create(control)
        if self.start is ControlPhase.SOURCE:
            return
        await self.store.move(ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)
        if self.start is ControlPhase.CUTOVER:
            await self.store.move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE)
            await self.store.move(ControlPhase.FREEZE, ControlPhase.CUTOVER)

    def actors(self) -> dict[str, Callable[[], object]]:
        return {**super().actors(), "runner": self._move}

    def is_marking(self, one: Any) -> bool:
        return super().is_marking(one) or one.call.action in ("begins", "looks")

    async def _work(self, name: str) -> None:
        works = self.clients[name]
        lease = self.lease(name, str(works.view))
        writer = self.writer(name, works.view, lease)
        lease.settle = writer.settle

        async def read(*given: Any) -> Row | None:
            async with lease.operation(writes=False):
                return await table.get(*given)

        table = self.source if works.view.side == SOURCE else self.targets[0]
        client = Client(
            name, works.view, self.witness, table=SimpleNamespace(get=read),  # type: ignore[arg-type]
            write=writer.write, is_replica=lambda: True,
        )  # fmt: skip
        with suppress(RekeyError):  # whoever needs it looks again
            await lease.poll()
        looking = asyncio.ensure_future(self._look(lease))
        for step in works.steps:
            await self._gate("begins")
            await client.do(step)
        await writer.settle()
        await looking

    def lease(self, name: str, view: str) -> ClientLease:
        """Return a client's lease, on the loop's time."""
        return ClientLease(
            self.store,
            Registry(self.others, SCRIPT),
            ClientFacts(SCRIPT, DIGEST, {}, view, name),
            settings=TIMES,
            client_id=name.replace(" ", ""),
            monotonic=self.scheduler.loop.time,
            jitter=lambda: 0.5,
        )

    def writer(self, name: str, view: Any, permits: Any = None) -> Any:
        return self.dual.writer(
            ClientParts(
                view,
                name.replace(" ", ""),
                propagator=self.propagator(),
                journal=self.journal(name),
                permits=permits,
                run_id="run",
                counters=Counters(),
            )
        )

    async def _look(self, lease: ClientLease) -> None:
        for _ in range(self.looks):
            await self._gate("looks")
            with suppress(RekeyError):
                await lease.poll()

    async def _move(self) -> None:
        run = self.run()
        try:
            if self.start is ControlPhase.SOURCE:
                await clients.move(run, ControlPhase.SOURCE, ControlPhase.DUAL_WRITE)
                await self._backfill()
            else:
                await cutover.switch_over(run, self.start, self.end)
        except RekeyError:
            return  # given up: back where it came from

    def run(self) -> Any:
        """Return of an open migration what moving the authority asks for."""
        propagator = self.propagator()
        journal = self.journal("runner")
        propagator.announce = clients.announcing(journal, Waits(self.scheduler))
        gates = SimpleNamespace(clients_timeout_s=2 * OVER_S, freeze_timeout_s=2 * OVER_S, margin_s=OVER_S)
        run = SimpleNamespace(
            script_id=SCRIPT,
            declared=SimpleNamespace(cli_selector=SCRIPT),
            group=(),
            is_delta=False,
            control=self.store,
            registry=Registry(self.others, SCRIPT),
            restricted=self.others,
            journal=journal,
            mapping=self.mapping,
            sweeper=self.dual.sweeper(journal, self.dual.reverse(propagator)),
            config=SimpleNamespace(gates=gates, limits=SimpleNamespace(concurrency=1)),
            clock=Waits(self.scheduler),
            check=go_on,
            still_alone=go_on,
            checkpointed=lambda **_: None,
            progress=Progress(),
            state=SimpleNamespace(audit=lambda *_: None, latest_verification=lambda _script_id: None),
            propagator=propagator,
            options=Options(),
            tell=tell_nobody,
        )
        run.run_group = (run,)
        return run

    async def _gate(self, action: str) -> None:
        """Wait until the search lets this actor go on."""
        await self.scheduler.hold(Call(action, "", (), 0))
