"""The fence: the checks that a worker makes before each batch that it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rekey.copy.workers.tasks import Basis, Task
from rekey.core.clock import TICKS_PER_SECOND, monotonic_seconds, ticks_of
from rekey.errors import TableMissing
from rekey.mapping.rows import CONTROL_TABLE, LEASE_ROW_KEY
from rekey.model import EntityKey
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, control_key, from_row
from rekey.tables.base import Accounts, Operation, Table, TableService, TableWrapper

# Seconds that writes end before the term: the service's time may be in whole seconds, and a write that is
# allowed is sent a moment later.
SAFETY_S = 2.0


class TermOver(Exception):
    """The task's term is over."""


class Superseded(Exception):
    """The control row or the runner lease is no longer the one that the task was made under."""


async def seconds_left(service: TableService, until: str) -> float:
    """Return for how many seconds more writes are allowed, 0 or less for none. Count them down from a moment
    before this call."""
    now = ticks_of(await service.server_time())
    return (ticks_of(until) - now) / TICKS_PER_SECOND - SAFETY_S


def is_of(now: ControlRow | None, basis: Basis) -> bool:
    """Tell whether a control row has the run, epoch and declaration that a task was made under."""
    made_under = (basis.run_id, basis.epoch, basis.digest)
    return now is not None and (now.run_id, now.epoch, now.digest) == made_under


@dataclass(eq=False)
class Fence:
    """The checks before the writes of one task."""

    accounts: Accounts
    task: Task
    # When the term ends, by the monotonic clock, in seconds. The term is in the service's time, and is
    # measured from an answer of the service on, so no two machines' clocks are compared.
    ends: float
    monotonic: Callable[[], float] = monotonic_seconds

    def __post_init__(self) -> None:
        self._rows = self.accounts.restricted.table(CONTROL_TABLE)
        self._next: asyncio.Task[None] | None = None
        self._down: Exception | None = None

    def in_time(self) -> None:
        """Raise the fence's first exception again, if any; TermOver when the term is over now. Called before
        every attempt of a request (`rekey.tables.allowance`)."""
        if self._down is None and self.monotonic() >= self.ends:
            self._down = TermOver()
        if self._down is not None:
            raise self._down

    async def passed(self) -> None:
        """Return when a batch may be sent. Raises TermOver, Superseded."""
        self.in_time()
        if self._next is None:
            self._next = asyncio.ensure_future(self._read())
            # The waiting batches get the error; mark it retrieved in case none is left.
            self._next.add_done_callback(lambda read: read.cancelled() or read.exception())
        await asyncio.shield(self._next)
        self.in_time()

    async def _read(self) -> None:
        await asyncio.sleep(0)  # batches of one turn of the loop share a reading, made after they are ready
        self._next = None
        basis = self.task.basis
        try:
            control, lease = await asyncio.gather(
                self._rows.get(control_key(basis.script_id, basis.group)),
                self._rows.get(EntityKey(basis.script_id, LEASE_ROW_KEY)),
            )
        except TableMissing:
            control = lease = None
        now = None if control is None else from_row(control)
        holds = is_of(now, basis) and lease is not None and lease.get("LeaseId") == basis.lease_id
        if now is None or not holds or now.phase is not ControlPhase.DUAL_WRITE:
            self._down = Superseded()
        # Read last: a monotonic clock stops while a machine sleeps, or a virtual machine is paused.
        elif await seconds_left(self.accounts.tables, self.task.until) <= 0:
            self._down = TermOver()


class FencedTable(TableWrapper):
    """A table whose every write passes the fence first."""

    def __init__(self, table: Table, fence: Fence) -> None:
        super().__init__(table)
        self._fence = fence

    async def write_at_address(self, operation: Operation) -> str:
        await self._fence.passed()
        return await super().write_at_address(operation)

    async def transact(self, operations: Sequence[Operation]) -> list[str | None]:
        await self._fence.passed()
        return await super().transact(operations)
