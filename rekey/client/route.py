"""Step 1 of a write: its route (ADR 0017). Then the steps in order: intent, authority, replicas, finish."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from rekey.client.dropped import write_dropped
from rekey.client.finish import Finisher
from rekey.client.flow import Flow
from rekey.client.intent import NewViewFirst, OldViewAfter, SameView, prepare, requests_of
from rekey.client.lease import ClientLease, Permit
from rekey.client.parts import WIDTH, Acknowledge, ClientParts, announce
from rekey.client.replicas import follow
from rekey.client.secondary import WithSecondary, confirmed
from rekey.client.send import outcome_unknown, send, send_alone
from rekey.client.source_authority import SourceAuthority
from rekey.client.target_authority import TargetAuthority
from rekey.core.joint import spoken
from rekey.declaration.targets import named_main
from rekey.errors import Ambiguous, RekeyError, RowTooBusy, ServiceError, Unavailable
from rekey.protocol.effects import in_turns, side_by_side
from rekey.protocol.operations import may_take_effect
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import (
    MIXED_PARTS,
    OTHERS_ROW,
    SECONDARY_ROW,
    SOURCE,
    TARGET,
    Route,
    View,
    authority,
    refusal,
    refusal_code,
    route,
)
from rekey.tables.allowance import while_allowed
from rekey.tables.base import Operation, Table
from rekey.tables.part import whole_of
from rekey.tables.rules import check_batch

T = TypeVar("T")

# Most writes whose replicas may follow after the answer; beyond that a caller waits for its own.
MAX_BEHIND = 256
# Attempts to prepare a write before its row counts as too busy.
MAX_TRIES = 20


class OtherRun(Exception):
    """The permit is of another run than the writer: the caller makes another writer."""


class Writer:
    """The writer of one client: does the writes of its view while there is a control row, in every phase."""

    def __init__(
        self,
        client: ClientParts,
        beside: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        """Create the writer. `beside`: returns a context in which a write that nothing follows is sent; it
        refuses one that may be of a row of another part."""
        self._beside = beside
        propagator = replace(client.propagator, announce_others=partial(announce, client))
        reverse = ReversePropagator(propagator)
        self.client = client
        self.finisher = Finisher(client, reverse)
        takes_effect_s = client.longest_operation_s + client.max_in_flight_s
        self._source = SourceAuthority(propagator, takes_effect_s)
        self._target = TargetAuthority(reverse, takes_effect_s)

    @property
    def left(self) -> int:
        return self.finisher.left

    async def write(self, operations: Sequence[Operation]) -> list[str | None]:
        """Do one operation, or several as a transaction; return the rows' new ETags (None for deletes).

        Args:
            operations: 1 to 100, of one partition of the view, each row once.

        Raises:
            OtherRun: the permit is of another run than this writer.
            WritesRefused: not in this phase, or not by this client.
            RowRefused: the mapping cannot be applied to a row, or the other view cannot express it.
            Collision: a row maps to a key that belongs to another row.
            ServiceError: as tables do. Of a transaction, with the `index` of the operation.
        """
        outside = [self.client.is_outside(operation.key) for operation in operations]
        if any(outside) and self.client.view is View.NEW:
            raise refusal(OTHERS_ROW, self.client.table.name)
        if outside and all(outside):
            return await self._write_outside(operations)
        async with self.client.permits.operation(writes=True) as permit:
            if permit.run_id == self.client.run_id:
                return await self._write(operations, permit)
        raise OtherRun

    async def _write(self, operations: Sequence[Operation], permit: Permit) -> list[str | None]:
        client, mapper = self.client, self.client.propagator.mapper
        taken = route(
            permit.phase,
            client.view,
            copied=permit.copied,
            reverse=mapper.reversible,
            maintained=permit.maintained,
        )
        if taken in (Route.REFUSED, Route.WAIT):
            is_part = mapper.migration.where is not None
            code = refusal_code(client.view, taken, copied=permit.copied, is_part=is_part)
            raise refusal(code, client.table.name)
        if taken is not Route.PLAIN and any(client.is_outside(operation.key) for operation in operations):
            raise refusal(MIXED_PARTS, client.table.name)
        secondary = (
            taken is not Route.PLAIN
            and client.view is View.NEW
            and any(mapper.number_by_row_key(operation.key.row) for operation in operations)
        )
        if secondary and not permit.maintained:
            raise refusal(SECONDARY_ROW, client.table.name)
        deadline = asyncio.get_running_loop().time() + client.longest_operation_s
        with while_allowed(partial(client.permits.check, permit)):
            if taken is Route.PLAIN:
                etags = await self._plain(operations, deadline)
            elif secondary:
                etags = await self._with_secondary(operations, permit, deadline)
            elif (written := await self._dropped(operations, taken, deadline)) is not None:
                etags = written
            else:
                kind: type[Flow] = SameView
                if taken is Route.CROSS_VIEW:
                    kind = NewViewFirst if client.view is View.NEW else OldViewAfter
                side = self._source if authority(permit.phase) == SOURCE else self._target
                requests = requests_of(operations, client.journal, copied=permit.copied)
                etags = await self._dual(kind(requests, client, side, permit, deadline))
        if not client.permits.in_time(permit):
            await self.announce_again(operations, permit)
        client.counters.writes += len(operations)
        return etags

    async def _write_outside(self, operations: Sequence[Operation]) -> list[str | None]:
        """Write rows of the old table that are not migrated: in any phase, and nothing follows them."""
        client = self.client
        deadline = asyncio.get_running_loop().time() + client.longest_operation_s
        async with client.permits.operation(writes=True, waits=False) as permit:
            if permit.run_id != client.run_id:
                raise OtherRun
            client.permits.require_same_part()
            with while_allowed(partial(client.permits.check, permit)):
                etags = await self._plain(operations, deadline)
            await confirm_unfollowed(client.permits, permit, client.table.name)
        client.counters.writes += len(operations)
        return etags

    async def announce_again(self, operations: Sequence[Operation], permit: Permit) -> None:
        """Write intents again for a write that was answered after its permit had expired.

        Raises:
            ServiceError: unknown outcome: the migration has moved on, or it is unknown whether it has.
        """
        # Other processes may have settled and removed the intents of a write that took so long, and the
        # authority may have moved. So its keys are announced again, in the current epoch; the write is
        # reported as done only if that is still its own epoch.
        client = self.client
        try:
            now = await client.permits.reread()
            if now.run_id != client.run_id:
                raise OtherRun
            if not permit.is_followed:
                client.permits.require_known_parts()
            if now.is_followed:
                keys, side = [operation.key for operation in operations], client.view.side
                with while_allowed(partial(client.permits.check, now)):
                    intents = await client.journal.begin(client.client_id, now.epoch, side, keys)
                    decides = authority(now.phase)
                    if decides is not None:  # in a freeze the runner or the next epoch's sweep settles them
                        for intent in intents:
                            self.finisher.keep(intent, now, decides, ambiguous=True, decided=True)
        except Exception:  # noqa: BLE001 - after any error the outcome is unknown
            raise took_too_long(self.client.table.name, sent=True) from None
        if now.epoch != permit.epoch:
            raise took_too_long(self.client.table.name, sent=True)

    async def write_index(
        self, table: Table, operations: Sequence[Operation], permit: Permit
    ) -> list[str | None]:
        """Write index rows as the application asks, then make them equal what their main rows say. Used while
        clients still maintain them. Returns the ETags of the application's own write.

        Raises:
            ServiceError: as `send_alone`; or the intents could not be written, and nothing was written.
        """
        client = self.client
        rows = await side_by_side(table.get(operation.key) for operation in operations)
        written = (operation.row for operation in operations)
        pointers = (named_main(row) for row in (*rows, *written) if row)
        mains = sorted({main for main in pointers if main is not None})
        # The application's index rows can be delayed, or be of an older main row: so the main rows are
        # announced before the write, and settled after it.
        begin = client.journal.begin
        intents = await begin(client.client_id, permit.epoch, TARGET, mains) if mains else []
        try:
            etags = await send_alone(table, operations, client.wait_out)
        except BaseException as error:
            for intent in intents:
                ambiguous = may_take_effect(error)
                self.finisher.keep(intent, permit, TARGET, ambiguous=ambiguous, decided=not ambiguous)
            raise
        await in_turns(
            [partial(self.finisher.settle_now, intent, permit, TARGET) for intent in intents], WIDTH
        )
        return etags

    async def settle(self) -> None:
        """Wait for the work in the background, then retry each leftover once; those of older epochs are then
        left to the sweeper. Called before an epoch is acknowledged."""
        await self.finisher.settle()

    async def close(self) -> None:
        """Settle, after the last operation has ended. Intents that cannot be settled stay in the journal."""
        await self.finisher.close()

    async def _plain(self, operations: Sequence[Operation], deadline: float) -> list[str | None]:
        client = self.client
        if client.view is View.OLD and client.propagator.mapper.migration.where is not None:
            client.permits.require_known_parts()
        async with self._beside():
            sending = send_alone(whole_of(client.table), operations, client.wait_out)
            return await self._in_time(sending, deadline)

    async def _in_time(self, work: Awaitable[T], deadline: float) -> T:
        """Await a write that no replica follows. Raises Ambiguous at the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                return await work
        except TimeoutError:
            raise took_too_long(self.client.table.name, sent=True) from None

    async def _dropped(
        self, operations: Sequence[Operation], taken: Route, deadline: float
    ) -> list[str | None] | None:
        """Write rows that no kind takes, where the source alone has them; None: there are none."""
        client = self.client
        is_apart = taken is Route.CROSS_VIEW and client.view is View.OLD
        if not (is_apart and client.propagator.mapper.drops):
            return None
        return await self._in_time(write_dropped(client, operations), deadline)

    async def _with_secondary(
        self, operations: Sequence[Operation], permit: Permit, deadline: float
    ) -> list[str | None]:
        """Do a call that writes secondary rows itself, before the handover: write its main rows with the
        secondary rows that follow from them, which must be those that the caller asked for."""
        client = self.client
        number_of = client.propagator.mapper.number_by_row_key
        if len(operations) > 1:
            check_batch(operations)
        places = [index for index, operation in enumerate(operations) if not number_of(operation.key.row)]
        asked = [operation for operation in operations if number_of(operation.key.row)]
        if not places:
            return [await confirmed(client, operation) for operation in asked]
        mains = [operations[index] for index in places]
        requests = [
            replace(request, index=index)  # in the call, as errors name it
            for request, index in zip(
                requests_of(mains, client.journal, copied=permit.copied), places, strict=True
            )
        ]
        flow = WithSecondary(requests, client, self._target, permit, deadline, asked=asked)
        main_etags = iter(await self._dual(flow))
        return [
            flow.written.get(operation.key) if number_of(operation.key.row) else next(main_etags)
            for operation in operations
        ]

    async def _dual(self, flow: Flow) -> list[str | None]:
        client = self.client
        try:
            async with asyncio.timeout_at(flow.deadline):
                for _ in range(MAX_TRIES):
                    writes = await prepare(flow)
                    if writes is not None and await send(flow, writes):
                        break
                else:
                    raise RowTooBusy(
                        f"the row kept changing in {MAX_TRIES} attempts to write it",
                        hint="repeat the operation",
                    )
        except BaseException as error:
            flow.end()
            self.finisher.give_up(flow)
            if isinstance(error, TimeoutError):
                raise took_too_long(client.table.name, sent=flow.sent) from None
            if flow.sent and isinstance(error, RekeyError) and not isinstance(error, Ambiguous):
                raise outcome_unknown(f"it could not be settled ({type(error).__name__})") from error
            raise
        if (
            client.acknowledge is Acknowledge.AUTHORITY
            and isinstance(flow, SameView)
            and self.finisher.running < MAX_BEHIND
        ):
            flow.end()
            self.finisher.finish(flow, follows=True)
            return flow.etags()
        try:
            with suppress(TimeoutError):  # the authority is written; unfinished replicas keep their intents
                async with asyncio.timeout_at(flow.deadline):
                    await follow(flow)
        finally:
            flow.end()
            self.finisher.finish(flow)
        return flow.etags()


async def confirm_unfollowed(lease: ClientLease, permit: Permit, table: str) -> None:
    """Return when rows written under a permit, which the migration of the lease does not follow, may be
    reported as written. Raises Ambiguous: that took longer than the permit allows, and they may be of a part
    that has begun meanwhile."""
    if lease.in_time(permit):
        return
    try:
        await lease.reread()
        lease.require_known_parts()
        lease.require_same_part()
    except RekeyError:
        raise took_too_long(table, sent=True) from None


def took_too_long(table: str, *, sent: bool) -> ServiceError:
    """Return the error of a write that was not sent in time, or answered too late to be relied on."""
    what = f"the write to {spoken(table)} took too long"
    if sent:
        return outcome_unknown(f"{what}: it may have been applied, or may be yet")
    return Unavailable(f"nothing was written: {what} before it began", hint="repeat the operation")
