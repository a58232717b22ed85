"""A migration with capture "delta", for a process that follows other migrations of the same table. In the old
view the rows of its part are written as if there were no migration, until they move on; in the new view, from
then on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from rekey.client.lease import ClientLease, Permit
from rekey.client.sdk.core import merged_reads_refused, part_reads_refused, passed_by, table_in_use
from rekey.client.sdk.options import ClientOptions
from rekey.core.key_space import KeySpace
from rekey.model import EntityKey
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlStore
from rekey.protocol.registry import ClientRow, Registry
from rekey.protocol.rules import FROZEN, NEW_VIEW_CLOSED, PART_MOVED, View, reads_refused, refusal
from rekey.tables.base import Accounts


class _NoRegistry(Registry):
    """The registry of a migration whose runner asks for no clients: its operator stops the writers."""

    async def beat(self, client: ClientRow) -> None:
        """Do nothing."""

    async def delete(self, client_id: str, counters: Mapping[str, int], etag: str = "*") -> bool:  # noqa: ARG002
        """Do nothing."""
        return False


class PartGuard:
    """The lease of a migration with capture "delta", and what follows from its phase for rows of its part."""

    def __init__(self, options: ClientOptions, connect: Callable[[], Accounts]) -> None:
        self.options = options
        self._connect = connect
        self._opening = asyncio.Lock()
        self._accounts: Accounts | None = None
        self._lease: ClientLease | None = None

    def covers(self, key: EntityKey) -> bool:
        return self.options.key_space is None or key in self.options.key_space

    async def open(self) -> ClientLease:
        """Read the control row for the first time; later calls only return the lease."""
        async with self._opening:
            if self._lease is None:
                declared = self.options.declared
                self._accounts = accounts = self._connect()
                restricted, script_id = accounts.restricted, declared.script_id
                control = ControlStore(restricted, script_id, declared.migration.group)
                registry = _NoRegistry(restricted, script_id)
                lease = ClientLease(control, registry, self.options.facts, settings=self.options.settings)
                try:
                    await lease.start()
                except BaseException:
                    self._accounts = None
                    await accounts.close()
                    raise
                self._lease = lease
            return self._lease

    async def close(self) -> None:
        """Close. Idempotent."""
        async with self._opening:
            lease, accounts, self._accounts = self._lease, self._accounts, None
        try:
            if lease is not None:
                await lease.close()
        finally:
            if accounts is not None:
                await accounts.close()

    @asynccontextmanager
    async def passing(self, *, waits: bool = False) -> AsyncIterator[Permit]:
        """As `ClientCore.passing`."""
        async with passed_by(await self.open(), waits=waits) as permit:
            yield permit

    @asynccontextmanager
    async def reading(
        self, key: EntityKey | None = None, asked: KeySpace | None = None
    ) -> AsyncIterator[Permit]:
        """As `ClientCore.reading`."""
        lease, migration = await self.open(), self.options.declared.migration
        async with lease.operation(writes=False) as permit:
            view = self.options.view
            # What the new table gets after cutover is not written to the source, and before it the new table
            # lacks what has changed since the last pass.
            copied = permit.copied and view is View.OLD
            code = reads_refused(permit.phase, view, copied=copied, reverse=False)
            if view is View.NEW:
                if (refused := merged_reads_refused(self.options, code, key, asked)) is not None:
                    raise refused
                code = ""
            elif migration.key_space is not None:
                code = part_reads_refused(lease, permit.phase, migration.key_space, code, key, asked)
            if code:
                raise refusal(code, self.options.table)
            yield permit

    def unfollowed_refused(self, permit: Permit) -> str:
        """Return "" when the migration's rows may be written to the table; otherwise the refusal's code."""
        is_old = self.options.view is View.OLD
        match permit.phase:
            case None | ControlPhase.SOURCE | ControlPhase.DUAL_WRITE:
                return "" if is_old else NEW_VIEW_CLOSED
            case ControlPhase.FREEZE:
                return FROZEN
        return PART_MOVED if is_old else ""

    async def deleting_table(self) -> None:
        """Raise WritesRefused while the migration works with the table."""
        lease = await self.open()
        async with lease.operation(writes=False) as permit:
            over = {None, ControlPhase.RETIRED}
            if self.options.view is View.NEW:
                over.add(ControlPhase.COMPLETE)
            if permit.phase not in over:
                raise table_in_use(self.options.table, self.options.declared.script_id)
