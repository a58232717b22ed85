"""The core of a client: lease, writer and shadow reads of one table, on one loop. The first use connects,
registers the client and reads the control row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from http import HTTPStatus

from rekey.client.lease import ClientLease, Permit
from rekey.client.parts import ClientParts, Counters, refused_by
from rekey.client.reading import closed
from rekey.client.route import OtherRun, Writer, took_too_long
from rekey.client.sdk.calls import Read
from rekey.client.sdk.leased import Leased
from rekey.client.sdk.options import ClientOptions
from rekey.client.send import send_alone
from rekey.client.shadow import Shadow
from rekey.client.takeover import TakeOver, pause_s
from rekey.core.concurrency import cancel
from rekey.core.joint import joint_key, joint_row
from rekey.errors import (
    CredentialRefused,
    EndpointDown,
    Moved,
    RekeyError,
    ServiceError,
    Unavailable,
    WritesRefused,
)
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.model import Row
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow
from rekey.protocol.effects import side_by_side
from rekey.protocol.journal import Journal
from rekey.protocol.opening import OpenMigration, open_migration
from rekey.protocol.registry import SAFETY_S, Registry
from rekey.protocol.rules import (
    MIXED_PARTS,
    NEW_VIEW_CLOSED,
    OTHERS_ROW,
    Route,
    View,
    index_write_refused,
    reads_refused,
    refusal,
    refusal_code,
    route,
)
from rekey.tables.allowance import while_allowed
from rekey.tables.base import Accounts, Operation, Table, TableService
from rekey.tables.wire import decode_row, decode_rows

WRAPPING_KEY_MOVED = "wrapping-key-moved"
# Most replica rows of one key that are read or written at the same time.
_REPLICAS_AT_ONCE = 8
# Seconds that a write waits for another one that is creating a row with the same target key.
_CREATED_S = 1.0


@dataclass(frozen=True, slots=True)
class _Working:
    """What works for one run of the migration: writer, shadow reads, settling for dead clients."""

    run_id: str
    writer: Writer
    shadow: Shadow
    takes_over: TakeOver


def rows_in(read: Read, status: int, body: bytes) -> list[Row]:
    """Return the rows that the answer to a read shows. Raises ValueError: it was requested in another format,
    without ETags."""
    if status != HTTPStatus.OK:
        return []
    return decode_rows(body) if read.key is None else [decode_row(body)]


class ClientCore(Leased):
    """Writes, permits and shadow reads of one client."""

    def __init__(self, options: ClientOptions, connect: Callable[[], Accounts]) -> None:
        """Create the core. `connect` makes the connections when they are first needed."""
        super().__init__(options, connect)
        self.counters = Counters()
        # Returns a context in which a write that nothing follows is sent; it refuses one that may be of a row
        # of another part of the table (`rekey.client.sdk.router`).
        self.beside: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
        self._making = asyncio.Lock()
        self._migration: OpenMigration | None = None
        self._working: _Working | None = None
        self._takes_over: asyncio.Task[None] | None = None

    @property
    def is_working(self) -> bool:
        """Whether its migration has a control row, as far as it knows."""
        return self._working is not None

    def _leased(self, accounts: Accounts) -> ClientLease:
        self._migration = migration = open_migration(self.options.prepared, accounts)
        return ClientLease(
            migration.control,
            Registry(accounts.restricted, self.options.declared.script_id),
            self.options.facts,
            settings=self.options.settings,
            settle=self._settle,
            counters=partial(asdict, self.counters),
            left=lambda: 0 if self._working is None else self._working.writer.left,
            signature_valid_s=lambda: max(
                accounts.tables.signature_valid_s, accounts.restricted.signature_valid_s
            ),
        )

    async def _begin(self, accounts: Accounts, lease: ClientLease) -> None:
        # Also before the migration begins: later, such a credential would leave replicas behind.
        await self._check_credential(accounts.tables, lease.control)
        await self._first_worker(lease)
        self._takes_over = asyncio.create_task(self._take_over(lease))

    async def _check_credential(self, tables: TableService, control: ControlRow | None) -> None:
        """Raise CredentialRefused when the client's credential does not reach a table that it may write."""
        migration, over = self.options.declared.migration, (ControlPhase.COMPLETE, ControlPhase.RETIRED)
        is_over = control is not None and control.phase in over and not control.maintained
        if self.options.is_index or is_over:
            return

        async def check(name: str) -> None:
            try:
                await tables.table_exists(name)
            except CredentialRefused as refused:
                raise refused_by(refused) from None
            except ServiceError:
                pass  # an account that fails now is reported by the operations

        await side_by_side([check(name) for name in (migration.source, *migration.table_names)])

    async def _first_worker(self, lease: ClientLease) -> None:
        """Make the writer, if there is a control row; retry while the restricted store is busy."""
        until = asyncio.get_running_loop().time() + self.options.settings.freeze_wait_s
        while lease.control is not None and self._working is None:
            try:
                await self._worker(lease, lease.control)
            except (Unavailable, EndpointDown):
                if asyncio.get_running_loop().time() >= until:
                    raise
                await asyncio.sleep(self.options.settings.poll_s)

    async def _stop(self) -> None:
        if self._takes_over is not None:
            await cancel([self._takes_over])
        if self._working is not None:
            await self._working.shadow.close()

    async def _finish(self) -> None:
        if self._working is not None:
            await self._working.shadow.close()
            await self._working.writer.close()

    # --- writes -------------------------------------------------------------------------------------------

    async def write(self, operations: Sequence[Operation]) -> list[str | None]:
        """Do one write, or a transaction; return the new ETags. Raises RekeyError, TimeoutError."""
        lease = await self.open()
        prefix = self.options.prefix
        if prefix:  # the writer has the joint table
            operations = [
                replace(operation, row=joint_row(prefix, operation.row)) for operation in operations
            ]
        while True:
            if self.options.is_index or lease.control is None:
                if (etags := await self._write_alone(lease, operations)) is not None:
                    return etags
            else:
                working = await self._worker(lease, lease.control)
                with suppress(OtherRun):  # the control row is now of another run: try again
                    return await working.writer.write(operations)

    async def _write_alone(
        self, lease: ClientLease, operations: Sequence[Operation]
    ) -> list[str | None] | None:
        """Write to the client's table alone: an index table, or the source while there is no control row.
        Return None, with nothing written, when there is a control row by now."""
        async with lease.operation(writes=True) as permit:
            if self.options.is_index:
                # Index tables are read in the new view, and written only once the migration is complete.
                code = index_write_refused(permit.phase)
                if any(not self.covers(operation.key) for operation in operations):
                    code = OTHERS_ROW
            elif permit.phase is not None:
                return None
            else:
                code = NEW_VIEW_CLOSED if self.options.view is View.NEW else ""
            if code:
                raise refusal(code, self.table)
            table, settings = self._opened().accounts.tables.table(self.table), self.options.settings
            writer = None
            if permit.maintained and lease.control is not None:
                writer = (await self._worker(lease, lease.control)).writer
            with while_allowed(partial(lease.check, permit)):
                async with asyncio.timeout(settings.sending_s), self.beside():
                    lease.require_known_parts()
                    if writer is not None:
                        etags = await writer.write_index(table, operations, permit)
                    else:
                        wait = partial(asyncio.sleep, settings.max_in_flight_s)
                        etags = await send_alone(table, operations, wait)
            self.counters.writes += len(operations)
            await self.before_answer(operations, permit)
            return etags

    async def before_answer(self, operations: Sequence[Operation], permit: Permit) -> None:
        # Answered after its permit had expired, the write is announced, if it is followed by now.
        lease = await self.open()
        if self.options.is_index or lease.in_time(permit):
            return
        try:
            await lease.reread()
            lease.require_known_parts()
            working = None if lease.control is None else await self._worker(lease, lease.control)
        except RekeyError:  # a refusal would say that nothing was written, but this was
            raise took_too_long(self.table, sent=True) from None
        if working is not None:
            await working.writer.announce_again(operations, permit)

    # --- parts of a table -----------------------------------------------------------------------------------

    def unfollowed_refused(self, permit: Permit) -> str:
        view, reverse = self.options.view, self.options.declared.migration.reverse
        if self.options.is_index and (code := index_write_refused(permit.phase)):
            return code
        taken = route(permit.phase, view, copied=permit.copied, reverse=reverse, maintained=permit.maintained)
        if taken is Route.REFUSED or (taken is Route.WAIT and view is View.NEW):
            return refusal_code(view, taken, copied=permit.copied, is_part=True)
        return "" if taken is Route.PLAIN else MIXED_PARTS

    def whole_table(self) -> Table:
        """Return the client's table, without the bounds of the part."""
        return self._opened().accounts.tables.table(self.table)

    # --- reads --------------------------------------------------------------------------------------------

    def _reads_refused(self, permit: Permit) -> str:
        reverse = self.options.declared.migration.reverse
        return reads_refused(permit.phase, self.options.view, copied=permit.copied, reverse=reverse)

    def shadows(self) -> bool:
        """Draw whether a read is repeated on the other side."""
        return self._working is not None and not self.options.is_index and self._working.shadow.drawn()

    def shadow(self, read: Read, status: int, body: bytes) -> None:
        """Queue a comparison of an answered read with the other side."""
        try:
            self.compare(read, rows_in(read, status, body))
        except ValueError:
            self.counters.ignored += 1

    def compare(self, read: Read, rows: Sequence[Row]) -> None:
        """Queue a comparison of the rows that a read has shown with the other side."""
        if self._working is None or self._closed:
            return
        shadow, prefix = self._working.shadow, self.options.prefix
        rows = [joint_row(prefix, row) for row in rows]
        if read.key is None:
            shadow.offer_page(rows, whole=not read.partial)
        else:
            row = rows[0] if rows else None
            shadow.offer(joint_key(prefix, read.key), row, whole=row is None or not read.partial)

    # --- parts --------------------------------------------------------------------------------------------

    async def _worker(self, lease: ClientLease, control: ControlRow) -> _Working:
        """Return the writer and shadow reads for the run of a control row; make new ones for another run."""
        if self._working is not None and self._working.run_id == control.run_id:
            return self._working
        async with self._making:
            before = self._working
            if before is not None and before.run_id == control.run_id:
                return before
            # Only now: the ids of the mapping are in the control row.
            migration, options = self._opened(), self.options
            accounts = migration.accounts
            try:
                mapping = await migration.mapping(control)
                mapping.patience_s = _CREATED_S
            except Moved as error:
                raise WritesRefused(WRAPPING_KEY_MOVED, error.what, hint=error.hint) from None
            client = ClientParts(
                options.view,
                lease.client_id,
                propagator=migration.propagator(mapping, accounts.tables.table, width=_REPLICAS_AT_ONCE),
                journal=Journal(
                    accounts.restricted.table(JOURNAL_TABLE),
                    options.declared.script_id,
                    mapping.keyring,
                    open_s=options.settings.longest_operation_s + SAFETY_S,
                ),
                permits=lease,
                run_id=control.run_id,
                counters=self.counters,
                acknowledge=options.acknowledge,
                longest_operation_s=options.settings.sending_s,
                max_in_flight_s=options.settings.max_in_flight_s,
            )
            shadow = Shadow(client, options.shadow_reads, options.shadow_seed)
            writer = Writer(client, self._beside)
            takes_over = TakeOver(writer.finisher)
            self._working = working = _Working(control.run_id, writer, shadow, takes_over)
            if before is not None:
                await before.shadow.close()
                await before.writer.close()
            return working

    async def _take_over(self, lease: ClientLease) -> None:
        """Settle dead clients' intents periodically, even if this client never writes."""
        more = False
        while True:
            await asyncio.sleep(pause_s(lease.jitter()) if not more else 0)
            more = False
            control = lease.control
            if control is None or lease.current() is None:
                continue
            with suppress(RekeyError):  # the next sweep tries again
                working = await self._worker(lease, control)
                more = (await working.takes_over.sweep(lease.registry)).more

    def _beside(self) -> AbstractAsyncContextManager[object]:
        return self.beside()

    def _opened(self) -> OpenMigration:
        if self._migration is None:
            raise closed(self.options.declared.script_id).error()
        return self._migration

    async def _settle(self) -> None:
        if self._working is not None:
            await self._working.writer.settle()
