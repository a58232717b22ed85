"""The fence: the checks that a worker makes before each batch that it writes.

Rules kept here:

* Nothing is written after the term of the task. The term is in the service's time, and is measured from an
  answer of the service on with this process's monotonic clock, so no two machines' clocks are compared; it is
  checked before every attempt, also of a request that is sent again after a wait (`rekey.tables.allowance`).
* Before each batch the control row and the runner lease are read: another run, epoch, phase or runner than
  the task was made under ends it. Batches that become ready together share one reading, which begins after
  they are ready.
* The service's time is read last before a batch: a monotonic clock stands still while a machine sleeps, or a
  virtual machine is paused.
* A fence that is down stays down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rekey.copy.workers.tasks import Basis, Task
from rekey.core.clock import TICKS_PER_SECOND, rising_seconds, ticks_of
from rekey.errors import TableMissing
from rekey.mapping.rows import CONTROL_TABLE, LEASE_ROW_KEY
from rekey.model import EntityKey
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, control_key, from_row
from rekey.tables.base import Accounts, Operation, Table, TableService, TableWrapper

# Seconds that writes end before the term: the service may tell whole seconds only, and a write that is
# allowed is sent a moment later.
SAFETY_S = 2.0


class TermOver(Exception):
    """The task's term is over."""


class Superseded(Exception):
    """The control row or the runner lease is no longer the one that the task was made under."""


async def seconds_left(service: TableService, until: str) -> float:
    """Return for how many seconds more writes are allowed, 0 or less for none.

    A caller that counts them down begins at a moment before this call: the answer takes time.
    """
    now = ticks_of(await service.server_time())
    return (ticks_of(until) - now) / TICKS_PER_SECOND - SAFETY_S


def is_of(now: ControlRow | None, basis: Basis) -> bool:
    """Tell whether a control row has the run, epoch and declaration that a task was made under."""
    made_under = (basis.run_id, basis.epoch, basis.digest)
    return now is not None and (now.run_id, now.epoch, now.digest) == made_under


@dataclass(eq=False)
class Fence:
    """The checks before the writes of one task.

    Attributes:
        accounts: the accounts that it reads.
        task: the task under way.
        ends: when the term ends, by the monotonic clock, in seconds.
        monotonic: that clock.
    """

    accounts: Accounts
    task: Task
    ends: float
    monotonic: Callable[[], float] = rising_seconds

    def __post_init__(self) -> None:
        self._rows = self.accounts.restricted.table(CONTROL_TABLE)
        self._next: asyncio.Task[None] | None = None
        self._down: Exception | None = None

    def in_time(self) -> None:
        """Raise the exception that brought the fence down, if any; TermOver when the term is over now."""
        if self._down is None and self.monotonic() >= self.ends:
            self._down = TermOver()
        if self._down is not None:
            raise self._down

    async def passed(self) -> None:
        """Return when a batch may be sent. Raises TermOver, Superseded."""
        self.in_time()
        if self._next is None:
            self._next = asyncio.ensure_future(self._read())
            # The batches that wait get the error; mark it retrieved in case none waits any more.
            self._next.add_done_callback(lambda read: read.cancelled() or read.exception())
        await asyncio.shield(self._next)
        self.in_time()

    async def _read(self) -> None:
        await asyncio.sleep(0)  # all batches that ask in the same turn of the loop share the reading
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
        elif await seconds_left(self.accounts.tables, self.task.until) <= 0:
            self._down = TermOver()


class FencedTable(TableWrapper):
    """A table whose every write passes the fence first."""

    def __init__(self, table: Table, fence: Fence) -> None:
        """Create the handle: `table` takes the operations, `fence` is passed before each write."""
        super().__init__(table)
        self._fence = fence

    async def write_at_address(self, operation: Operation) -> str:
        """Send one operation to the address of its row."""
        await self._fence.passed()
        return await super().write_at_address(operation)

    async def transact(self, operations: Sequence[Operation]) -> list[str | None]:
        """Apply all operations or none."""
        await self._fence.passed()
        return await super().transact(operations)
