"""The runner lease: one runner on a migration, on any machine. It is a row in the restricted table
`rekeycontrol`, inserted, renewed, taken over and deleted conditionally on its ETag."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, monotonic_seconds, ticks_of
from rekey.core.concurrency import cancel
from rekey.core.processes import boot_id, is_running, process_namespace, started_at
from rekey.errors import Ambiguous, ConditionFailed, Locked, RowExists, RowMissing, ServiceError, Unavailable
from rekey.mapping.rows import CONTROL_TABLE, LEASE_ROW_KEY
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, Row, etag_of
from rekey.state.filelock import FileLock
from rekey.tables.base import SIGNED_S, TableService

# For how many seconds an unrenewed lease lasts; others wait for `SAFETY_S` more.
DURATION_S = 60
RENEW_EVERY_S = 15.0
RETRY_S = 2.0
SAFETY_S = 5
ATTEMPTS = 5

# Random; distinguishes this process from an earlier one with the same process id (containers start at 1
# again).
_PROCESS = secrets.token_hex(8)


def _new_process_token() -> None:
    global _PROCESS
    _PROCESS = secrets.token_hex(8)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_new_process_token)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lease."""

    # Its name.
    host: str
    # An id of the machine's present boot, "" where there is none.
    boot: str
    pid: int
    # Random, of the process.
    process: str
    # Device and inode of the file that it has locked; "" for a holder of a version that did not record it.
    lock: str
    # The namespace of its process id, "" where there are none.
    namespace: str
    # When its process started (`started_at`); "" where that is not known.
    started: str = ""

    @classmethod
    def current(cls, lock: str) -> Holder:
        """Return this process as a holder; `lock` is the `FileLock.identity` of the file it has locked."""
        pid = os.getpid()
        here = boot_id(), pid, _PROCESS, lock, process_namespace()
        return cls(socket.gethostname(), *here, started_at(pid))


def to_row(script_id: str, lease_id: str, holder: Holder) -> Row:
    """Return the wire row of a lease."""
    return {
        PARTITION_KEY: script_id,
        ROW_KEY: LEASE_ROW_KEY,
        "LeaseId": lease_id,
        "DurationSeconds": DURATION_S,
        "Host": holder.host,
        "Boot": holder.boot,
        "Pid": holder.pid,
        "Process": holder.process,
        "Lock": holder.lock,
        "Namespace": holder.namespace,
        "Started": holder.started,
        "Renewals": 0,
    }


def lease_key(script_id: str) -> EntityKey:
    """Return the key of a migration's runner lease."""
    return EntityKey(script_id, LEASE_ROW_KEY)


def holder_of(row: Row) -> Holder:
    """Return the holder that the row of a lease names."""
    more = row.get("Lock", ""), row.get("Namespace", ""), row.get("Started", "")
    return Holder(row["Host"], row["Boot"], row["Pid"], row["Process"], *more)


def ends_at(row: Row) -> int:
    """Return when the lease of a row ends, in ticks of the service's clock."""
    return ticks_of(row[TIMESTAMP]) + int(row["DurationSeconds"]) * TICKS_PER_SECOND


def is_over(row: Row, server_time: str) -> bool:
    """Tell whether a lease ended at least `SAFETY_S` ago, by the service's clock."""
    return ticks_of(server_time) >= ends_at(row) + SAFETY_S * TICKS_PER_SECOND


def is_dead(holder: Holder, ours: Holder, runs: Callable[[int, str], bool]) -> bool:
    """Tell whether the holder is a dead process of this machine. Call only while holding the file lock of our
    state file: a live holder with the same lock would hold it."""
    # Names prove nothing: two containers of one host can have the same hostname, path of the state file and
    # process id. It takes the very same locked file, boot and process namespace.
    here = (ours.host, ours.boot, ours.lock, ours.namespace)
    if not all(here[1:]) or here != (holder.host, holder.boot, holder.lock, holder.namespace):
        return False  # from here it is unknown whether the process lives
    if holder.process == ours.process:
        return False
    # Its id is gone, or another process has it, ours included.
    return holder.pid == ours.pid or not runs(holder.pid, holder.started)


@dataclass(eq=False, repr=False)
class RunnerLease:
    """The lease on one migration, renewed in the background: `async with RunnerLease(...) as lease`."""

    # Tables of the restricted account; no request is sent before the lease is entered.
    restricted: TableService
    script_id: str
    # The held file lock on the state file.
    lock: FileLock
    _: KW_ONLY
    # This process, the process table and the clock; replaced in tests.
    holder: Holder | None = None
    runs: Callable[[int, str], bool] = is_running
    monotonic: Callable[[], float] = monotonic_seconds
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    def __post_init__(self) -> None:
        self.lock.require(self.lock.state_path)
        self.lost = asyncio.Event()
        # Random; in the row as long as this runner holds the lease.
        self.lease_id = secrets.token_hex(16)
        # Until when an earlier runner may have sent something, in ticks of the service's clock; None if it
        # returned its lease. How long a request can take is added to that (`Term`).
        self.late_until: int | None = None
        self._holder = self.holder or Holder.current(self.lock.identity)
        self._table = self.restricted.table(CONTROL_TABLE)
        self._key = lease_key(self.script_id)
        self._etag = ""
        self._renewals = 0
        self._uncertain = False
        self._trusted_until = 0.0
        self._reason = ""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> RunnerLease:
        await self.acquire()
        self._task = asyncio.create_task(self._keep(), name=f"runner lease {self.script_id}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    def check(self) -> None:
        """Raise Locked when the lease is lost. Sends no request. Called before every write of a phase, as it
        is sent (`rekey.tables.allowance`)."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()  # raise a bug in the renewal as it is, not as a lost lease
        if not self.lost.is_set() and self.monotonic() >= self._trusted_until:
            self._lose("it could not be renewed in time")
        if self.lost.is_set():
            raise Locked(
                f"this runner lost its lease on {self.script_id}: {self._reason}",
                kept="everything up to the last checkpoint",
                hint="make sure that no other runner is running, then run the same command again",
            )

    async def acquire(self) -> None:
        """Take the lease.

        Raises:
            Locked: another runner holds it (names it and says when its lease ends), or others compete for it.
            ServiceError: the restricted store failed.
        """
        await self.restricted.create_table(CONTROL_TABLE)
        problem: ServiceError | None = None
        first_began = self.monotonic()
        for _ in range(ATTEMPTS):
            row = await self._table.get(self._key)
            if row is not None and row["LeaseId"] == self.lease_id:
                # written by an attempt whose answer was lost, it is unknown which: trust it from the first
                # one on
                self._etag = etag_of(row)
                self._trusted_until = first_began + DURATION_S
                return
            if row is not None:
                await self._require_free(row)
            # Trusted from before the request, by this process's monotonic clock, which includes the machine's
            # sleep where possible; others wait by the service's clock. So no two clocks are compared.
            began = self.monotonic()
            wanted = to_row(self.script_id, self.lease_id, self._holder)
            try:
                if row is None:
                    self._etag = await self._table.insert(wanted)
                else:
                    self._etag = await self._table.replace(wanted, etag=etag_of(row))
            except (RowExists, RowMissing, ConditionFailed, Ambiguous, Unavailable) as error:
                problem = error  # another runner was faster, or our answer was lost: reread
            else:
                self._trusted_until = began + DURATION_S
                return
        if isinstance(problem, Ambiguous | Unavailable):
            raise problem
        raise Locked(
            f"other runners compete for {self.script_id}",
            kept="This command did nothing.",
            hint="run the same command again when they are done",
        )

    async def leave(self) -> None:
        """Stop renewing and keep the row, so that the next runner sees that this one did not end in order."""
        task, self._task = self._task, None
        if task is not None:
            await cancel([task])

    async def release(self) -> None:
        """Stop renewing and return the lease. Idempotent; a failure of the service is only logged."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        try:
            row = await self._table.get(self._key)
            if row is not None and row["LeaseId"] == self.lease_id:
                await self._table.delete(self._key, etag=etag_of(row))
        except ServiceError as error:
            # the only consequence: a runner on another machine has to wait
            _log.warning(
                "the runner lease on %s could not be released (%s); it expires in %d s",
                self.script_id,
                error.code or type(error).__name__,
                DURATION_S + SAFETY_S,
                extra={"event": "lease-not-returned"},
            )
        self._trusted_until = 0.0

    async def _require_free(self, row: Row) -> None:
        holder = holder_of(row)
        now = await self.restricted.server_time()
        if is_dead(holder, self._holder, self.runs):
            # It may have sent requests until it was found dead.
            self.late_until = ticks_of(now) + TICKS_PER_SECOND
            return
        if is_over(row, now):
            # It may only be suspended: for as long as the service accepts what it signed before its lease
            # ended.
            self.late_until = ends_at(row) + round(SIGNED_S * TICKS_PER_SECOND)
            return
        left = -(-(ends_at(row) - ticks_of(now)) // TICKS_PER_SECOND) + SAFETY_S
        raise Locked(
            f"another runner works on {self.script_id}: process {holder.pid} on {holder.host};"
            f" its lease ends at {format_ticks(ends_at(row))} unless it renews it",
            kept="This command did nothing.",
            hint=f"wait for it to end; if that process is dead, its lease is free in {left} s",
        )

    def _lose(self, reason: str) -> None:
        self._reason = reason
        self.lost.set()

    async def _keep(self) -> None:
        """Renew until the lease is lost or the task is cancelled."""
        pause = RENEW_EVERY_S
        while not self.lost.is_set():
            await self.sleep(pause)
            pause = RENEW_EVERY_S
            try:
                await self._renew()
            except ServiceError as error:
                # also on a failed condition: the row may hold our own renewal, whose answer was lost
                self._uncertain = True
                pause = RETRY_S
                if self.monotonic() >= self._trusted_until:
                    self._lose(f"it could not be renewed in time ({error.code or type(error).__name__})")

    async def _renew(self) -> None:
        if self._uncertain:
            row = await self._table.get(self._key)
            if row is None or row["LeaseId"] != self.lease_id:
                self._lose("its row was deleted" if row is None else f"{row['Host']} has taken it over")
                return
            self._etag = etag_of(row)
            self._uncertain = False
        began = self.monotonic()
        self._renewals += 1
        change: Row = {PARTITION_KEY: self._key.partition, ROW_KEY: self._key.row, "Renewals": self._renewals}
        self._etag = await self._table.merge(change, etag=self._etag)
        self._trusted_until = began + DURATION_S
