"""The fence: what a worker asks before each batch that it writes.

Rules kept here:

* Nothing is written after the term of the task. It is the service's time, measured from an answer of the
  service on with this process's monotonic clock, so no two machines' clocks are compared; every attempt asks,
  also one that is sent again after a wait (`rekey.tables.allowance`).
* Before each batch the control row and the runner lease are read: another run, epoch, phase or runner than
  the task was made under ends it. Batches that become ready together share one reading, which began after
  they did.
* The last that is heard before a batch is the service's time: a monotonic clock stands still while a machine
  sleeps, or a virtual one is paused.
* A fence that is down stays down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from rekey.copy.workers.tasks import Task
from rekey.core.clock import TICKS_PER_SECOND, rising_seconds, ticks_of
from rekey.errors import TableMissing
from rekey.mapping.rows import CONTROL_TABLE, LEASE_ROW_KEY
from rekey.model import EVERYTHING, EntityKey, KeyRange, Row
from rekey.phases import ControlPhase
from rekey.protocol.control import CONTROL_ROW_KEY, from_row
from rekey.tables.base import MAX_PAGE_ROWS, Accounts, Operation, Page, Table, TableService

SAFETY_S = 2.0
"""Less than the term: the service may tell whole seconds only, and what is allowed is sent a moment later."""


class TermOver(Exception):
    """The task's term is over."""


class Superseded(Exception):
    """The control row or the runner lease is no longer what the task was made under."""


async def seconds_left(service: TableService, until: str) -> float:
    """Return how long may be written, counted from before the question to the service; negative: no more."""
    now = ticks_of(await service.server_time())
    return (ticks_of(until) - now) / TICKS_PER_SECOND - SAFETY_S


class Fence:
    """Stands before the writes of one task."""

    def __init__(
        self,
        accounts: Accounts,
        task: Task,
        ends: float,
        *,
        monotonic: Callable[[], float] = rising_seconds,
    ) -> None:
        """Take the task, and when it ends by the monotonic clock."""
        self._control = accounts.restricted.table(CONTROL_TABLE)
        self._service = accounts.tables
        self._task = task
        self._ends = ends
        self._monotonic = monotonic
        self._next: asyncio.Task[None] | None = None
        self._down: Exception | None = None

    def in_time(self) -> None:
        """Raise TermOver when the term is over, and whatever the fence is down for."""
        if self._down is None and self._monotonic() >= self._ends:
            self._down = TermOver()
        if self._down is not None:
            raise self._down

    async def passed(self) -> None:
        """Return when a batch may be sent. Raises TermOver, Superseded."""
        self.in_time()
        if self._next is None:
            self._next = asyncio.ensure_future(self._read())
            self._next.add_done_callback(_heard)
        await asyncio.shield(self._next)
        self.in_time()

    async def _read(self) -> None:
        await asyncio.sleep(0)  # whoever asks in the same turn shares the reading
        self._next = None
        script_id = self._task.basis.script_id
        try:
            control, lease = await asyncio.gather(
                self._control.get(EntityKey(script_id, CONTROL_ROW_KEY)),
                self._control.get(EntityKey(script_id, LEASE_ROW_KEY)),
            )
        except TableMissing:
            control = lease = None
        if not self._holds(control, lease):
            self._down = Superseded()
        elif await seconds_left(self._service, self._task.until) <= 0:
            self._down = TermOver()

    def _holds(self, control: Row | None, lease: Row | None) -> bool:
        if control is None or lease is None:
            return False
        now, basis = from_row(control), self._task.basis
        as_made = (now.run_id, now.epoch, now.digest) == (basis.run_id, basis.epoch, basis.digest)
        return as_made and now.phase is ControlPhase.DUAL_WRITE and lease.get("LeaseId") == basis.lease_id


def _heard(reading: asyncio.Task[None]) -> None:
    """Take note of an error, which whoever waited was told of, even if nobody waits any more."""
    if not reading.cancelled():
        reading.exception()


class FencedTable:
    """A table of which every write waits for the fence."""

    def __init__(self, table: Table, fence: Fence) -> None:
        """Take the table and what stands before it."""
        self._table = table
        self._fence = fence

    @property
    def name(self) -> str:
        """The table's name as declared."""
        return self._table.name

    async def get(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        """Return the row, or None when there is none."""
        return await self._table.get(key, select=select)

    async def insert(self, row: Row) -> str:
        """Insert if absent."""
        await self._fence.passed()
        return await self._table.insert(row)

    async def replace(self, row: Row, *, etag: str = "*") -> str:
        """Replace the whole row if its ETag matches."""
        await self._fence.passed()
        return await self._table.replace(row, etag=etag)

    async def merge(self, row: Row, *, etag: str = "*") -> str:
        """Set the given properties if the ETag matches."""
        await self._fence.passed()
        return await self._table.merge(row, etag=etag)

    async def upsert(self, row: Row, *, merge: bool = False) -> str:
        """Insert, or replace (merge) whatever is there."""
        await self._fence.passed()
        return await self._table.upsert(row, merge=merge)

    async def delete(self, key: EntityKey, *, etag: str = "*") -> None:
        """Delete the row if its ETag matches."""
        await self._fence.passed()
        await self._table.delete(key, etag=etag)

    def encoded_size(self, operation: Operation) -> int:
        """Return how many bytes an operation takes of a transaction."""
        return self._table.encoded_size(operation)

    async def transact(self, operations: Sequence[Operation]) -> list[str | None]:
        """Apply all operations or none."""
        await self._fence.passed()
        return await self._table.transact(operations)

    def scan(
        self,
        within: KeyRange = EVERYTHING,
        *,
        select: Sequence[str] | None = None,
        modified_from: str | None = None,
        page_rows: int = MAX_PAGE_ROWS,
        ahead: bool = True,
    ) -> AsyncIterator[Page]:
        """Iterate over the rows of a key range."""
        return self._table.scan(
            within, select=select, modified_from=modified_from, page_rows=page_rows, ahead=ahead
        )
