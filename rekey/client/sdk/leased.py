"""A client of a migration from its first use to its end: its connections, its lease, and the permits of reads
and of writes that it does not follow."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from rekey.client.lease import ClientLease, Permit
from rekey.client.reading import closed
from rekey.client.route import confirm_unfollowed
from rekey.client.sdk.options import ClientOptions
from rekey.core.key_space import KeySpace
from rekey.errors import WritesRefused
from rekey.model import EntityKey
from rekey.phases import ControlPhase
from rekey.protocol.rules import NEW_VIEW_CLOSED, PART_MOVED, View, refusal
from rekey.tables.allowance import while_also
from rekey.tables.base import Accounts, Operation

TABLE_IN_USE = "table-in-use"


class Leased(ABC):
    """A client of one table of a migration. The first use connects and begins the lease."""

    def __init__(self, options: ClientOptions, connect: Callable[[], Accounts]) -> None:
        """Create the client. `connect` makes the connections when they are first needed."""
        self.options, self.table = options, options.table
        self._connect = connect
        self._opening = asyncio.Lock()
        self._accounts: Accounts | None = None
        self._lease: ClientLease | None = None
        self._closed = False

    # --- what kinds of clients do differently -------------------------------------------------------------

    @abstractmethod
    def _leased(self, accounts: Accounts) -> ClientLease:
        """Return the lease, before its first request."""

    @abstractmethod
    def _reads_refused(self, permit: Permit) -> str:
        """Return "" when the table may be read as far as the own migration is concerned, otherwise the code
        for `refusal`."""

    @abstractmethod
    def unfollowed_refused(self, permit: Permit) -> str:
        """Return "" when the migration's rows may be written to the table without being followed, otherwise
        the code for `refusal`."""

    @abstractmethod
    async def before_answer(self, operations: Sequence[Operation], permit: Permit) -> None:
        """Do what comes before the answer to a write of the migration's rows that was not followed. Raises
        ServiceError: unknown outcome, they may have come too late to be copied."""

    async def _begin(self, accounts: Accounts, lease: ClientLease) -> None:  # noqa: ARG002
        """Do what is left before the first operation, once the lease has begun."""
        return

    async def _stop(self) -> None:
        """End the background work that begins requests, before the lease ends."""
        return

    async def _finish(self) -> None:
        """End all other work, after the last operation."""
        return

    # --- open and close -----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._lease is not None

    async def open(self) -> ClientLease:
        """Register and read the control row for the first time; later calls only return the lease.

        Raises:
            ServiceError: the mapping could not be opened in `freeze_wait_s`, or the credential does not reach
                a table of the migration.
            WritesRefused: the client is closed, or the wrapping key is another one.
        """
        async with self._opening:
            if self._lease is not None:
                return self._lease
            if self._closed:
                raise closed(self.options.declared.script_id).error()
            self._accounts = accounts = self._connect()
            lease: ClientLease | None = None
            try:
                lease = self._leased(accounts)
                await lease.start()
                await self._begin(accounts, lease)
            except BaseException:
                self._accounts = None
                try:
                    if lease is not None:
                        await lease.close()  # otherwise its beats would go on
                finally:
                    await accounts.close()
                raise
            self._lease = lease
            return lease

    async def close(self) -> None:
        """Settle and close. Idempotent; a closed client refuses operations."""
        self._closed = True
        async with self._opening:  # otherwise a client that is registering now would beat for ever
            lease, accounts, self._accounts = self._lease, self._accounts, None
        try:
            await self._stop()
            if lease is not None:
                await lease.close()
            await self._finish()
        finally:
            if accounts is not None:
                await accounts.close()

    # --- permits ------------------------------------------------------------------------------------------

    def covers(self, key: EntityKey) -> bool:
        """Tell whether a row of the client's table with this key is the migration's."""
        return self.options.key_space is None or key in self.options.key_space

    @asynccontextmanager
    async def passing(self, *, waits: bool = False) -> AsyncIterator[Permit]:
        """Hold a permit while rows are written to the table that this client does not follow. `waits`: as of
        `ClientLease.operation`.

        Raises:
            WritesRefused: it is not known that none of them has to be followed.
            Ambiguous: they were written, and that took so long that this is not known any more.
        """
        lease = await self.open()
        async with lease.operation(writes=True, waits=waits) as permit:
            lease.require_known_parts()
            lease.require_same_part()
            with while_also(partial(lease.check, permit)):
                yield permit
            await confirm_unfollowed(lease, permit, self.table)

    def holds(self, key: EntityKey | None, asked: KeySpace | None) -> bool:
        """Tell whether a read, with the arguments of `reading`, is provably of the migration's rows alone."""
        # By another declaration than the migration's, which may be wider, nothing is.
        lease, own = self._lease, self.options.key_space
        if own is None or lease is None or not lease.has_same_declaration:
            return False
        return key in own if key is not None else asked is not None and asked.is_within(own)

    @asynccontextmanager
    async def reading(
        self, key: EntityKey | None = None, asked: KeySpace | None = None, *, is_held: bool = False
    ) -> AsyncIterator[Permit]:
        """Hold the permit of one read of the client's table.

        Args:
            key: of the row that is read; None for a query.
            asked: the keys that the query can return, None for any.
            is_held: whether another migration that the process follows `holds` the read.

        Raises:
            WritesRefused: the table does not show these rows as they are.
        """
        lease, own = await self.open(), self.options.key_space
        async with lease.operation(writes=False) as permit:
            code = self._reads_refused(permit)
            # In a table that others fill too, a client on its own shows all rows, or none.
            if own is not None and (self.options.view is View.OLD or self.options.is_routed):
                if not (is_held or self.holds(key, asked)):
                    lease.require_known_parts(reads=True)
                if code and _passes(own, permit, key, asked):
                    lease.require_same_part()
                    code = ""
            if code:
                raise self._read_refusal(code)
            yield permit

    def _read_refusal(self, code: str) -> WritesRefused:
        """Return the error for a read that may show the migration's rows. `code`: of `_reads_refused`."""
        options = self.options
        if options.view is View.OLD:
            return refusal(code if options.key_space is None else PART_MOVED, self.table)
        if not options.is_routed:
            return refusal(code, self.table)
        return self._closed_refusal("read", "; a query of other rows compares PartitionKey with theirs")

    def write_refusal(self, code: str) -> WritesRefused:
        """Return the error for a write of the migration's rows. `code`: of `unfollowed_refused`."""
        is_closed = code == NEW_VIEW_CLOSED and self.options.is_routed
        return self._closed_refusal("written") if is_closed else refusal(code, self.table)

    def _closed_refusal(self, done: str, besides: str = "") -> WritesRefused:
        """Return the error for rows of one migration among several that fill the table."""
        script_id = self.options.declared.script_id
        until = "`rekey status` says that the backfill is done" if self.options.is_followed else "its cutover"
        return WritesRefused(
            NEW_VIEW_CLOSED,
            f"{self.table} does not have all rows of {script_id} yet, so none of them is {done} there",
            hint=f"use their old table until {until}{besides}",
        )

    async def deleting_table(self) -> None:
        """Raise WritesRefused while the migration, or one of an unknown part, works with the client's
        table."""
        lease = await self.open()
        async with lease.operation(writes=False) as permit:
            done = permit.phase in (None, ControlPhase.RETIRED)
            is_complete = permit.phase is ControlPhase.COMPLETE and not permit.maintained
            if done or (is_complete and self.options.view is View.NEW):
                lease.require_known_parts()
                return
        raise WritesRefused(
            TABLE_IN_USE,
            f"{self.table} is not deleted: the migration {self.options.declared.script_id} works with it",
            hint="roll the migration back with `rekey rollback`, or complete it; `rekey retire` deletes"
            " the old table",
            kept="the table",
        )


def _passes(own: KeySpace, permit: Permit, key: EntityKey | None, asked: KeySpace | None) -> bool:
    """Tell whether a read, with the arguments of `Leased.reading`, shows none of a migration's `own` rows."""
    if key is not None:
        return key not in own
    if asked is not None and asked.is_apart_from(own):
        return True
    # `retire` has deleted its rows from the source: a query shows those of others alone, unless a backup was
    # restored.
    is_empty = permit.phase is ControlPhase.RETIRED and not permit.restored
    return is_empty and not (asked is not None and asked.is_within(own))
