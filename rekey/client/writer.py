"""The writer of a dual-write client: every write goes through here, whatever phase and view.

Rules kept here (DESIGN section 5, ADR 0017):

* An operation runs under one permit, and ends, work in the background included, within the longest operation.
  Nothing is sent for it after that, however long its process stood still.
* One that was held up beyond that may have been given up: its intents are settled, or gone, and the authority
  may have moved. So its keys are announced again before it is answered, in the epoch that is now; and only if
  that is still its own can it say that the write was done.
* The caller is told what the authority answered. Whatever is not known to be finished then keeps its intent,
  and is looked at again by this client (`leftovers`) or by the runner's sweeper.
* An error, a cancellation or the deadline before anything was sent to the authority: nothing was written, the
  intents are removed. After that, the intents stay: the request may have been applied, or may be yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial

from rekey.client.counters import Counters
from rekey.client.cross_view import NewViewFirst, OldViewAfter
from rekey.client.flow import Flow, SameView
from rekey.client.leftovers import Leftovers
from rekey.client.source_side import SourceSide
from rekey.client.target_side import TargetSide
from rekey.client.work import IntentRef, State, Work
from rekey.errors import RekeyError, ServiceError, Unavailable
from rekey.phases import FOLLOWED
from rekey.protocol.effects import apply_operations
from rekey.protocol.journal import Journal
from rekey.protocol.permits import Permit, Permits
from rekey.protocol.propagate import Propagator
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import SOURCE, Route, View, authority, refusal, refusal_code, route
from rekey.protocol.sweeper import Settler
from rekey.tables.allowance import while_allowed
from rekey.tables.base import Operation, Table

LONGEST_OPERATION_S = 30.0


class Writer:
    """Writes in one view of one migration."""

    def __init__(
        self,
        view: View,
        client_id: str,
        *,
        propagator: Propagator,
        journal: Journal,
        permits: Permits,
        counters: Counters,
        longest_operation_s: float = LONGEST_OPERATION_S,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Take what the writer works with.

        Args:
            view: how the client addresses its rows.
            client_id: names the client's partition of the journal.
            propagator: the tables, the mapping and the mapper.
            journal: the migration's journal.
            permits: the client's lease.
            counters: what is counted.
            longest_operation_s: after how many seconds an operation ends, one way or the other.
            sleep: how leftovers wait.
        """
        reverse = ReversePropagator(propagator)
        self.view = view
        self._client_id = client_id
        self._propagator = propagator
        self._journal = journal
        self._permits = permits
        self._counters = counters
        self._longest = longest_operation_s
        self._source_side = SourceSide(propagator)
        self._target_side = TargetSide(reverse, longest_operation_s)
        self._tasks: set[asyncio.Task[None]] = set()
        self._leftovers = Leftovers(
            Settler(propagator, reverse),
            journal,
            permits,
            counters,
            longest_operation_s=longest_operation_s,
            sleep=sleep,
        )

    @property
    def table(self) -> Table:
        """The table that the view addresses."""
        return self._propagator.source if self.view is View.OLD else self._propagator.targets[0]

    @property
    def left(self) -> int:
        """How many keys this client still has to look at."""
        return len(self._leftovers)

    async def write(self, operations: Sequence[Operation]) -> list[str | None]:
        """Do one operation, or several as a transaction; return the rows' new ETags (None for deletes).

        Args:
            operations: 1 to 100, of one partition of the view, each row once.

        Raises:
            WritesRefused: not in this phase, or not by this client.
            RowRefused: the mapping cannot be applied to a row, or the other view cannot express it.
            Collision: a row maps to a key that belongs to another row.
            ServiceError: as tables do. Of a transaction, with the `index` of the operation.
        """
        async with self._permits.operation(writes=True) as permit:
            mapper = self._propagator.mapper
            taken = route(permit.phase, self.view, copied=permit.copied, reverse=mapper.reversible)
            if taken in (Route.REFUSED, Route.WAIT):
                raise refusal(refusal_code(self.view, taken, copied=permit.copied), self.table.name)
            deadline = asyncio.get_running_loop().time() + self._longest
            with while_allowed(partial(self._permits.check, permit)):
                if taken is Route.PLAIN:
                    etags = await self._plain(operations, deadline)
                else:
                    etags = await self._dual(self._flow(operations, permit, taken), permit, deadline)
            if not self._permits.in_time(permit):
                await self.announce_late(operations, permit)
        self._counters.writes += len(operations)
        return etags

    async def announce_late(self, operations: Sequence[Operation], permit: Permit) -> None:
        """Announce keys again of a write that was answered after the time of its permit.

        Raises:
            ServiceError: the write may not count: the migration has moved on, or nobody can tell.
        """
        try:
            now = await self._permits.look_again()
            if now.phase in FOLLOWED:
                with while_allowed(partial(self._permits.check, now)):
                    await self._announce(operations, now)
        except Exception:  # noqa: BLE001 - whatever it was: nobody can tell
            raise _too_long(self.table.name, sent=True) from None
        if now.epoch != permit.epoch:
            raise _too_long(self.table.name, sent=True)

    async def _announce(self, operations: Sequence[Operation], now: Permit) -> None:
        keys = [one.key for one in operations]
        ids = await self._journal.begin(self._client_id, now.epoch, self.view.side, keys)
        side = authority(now.phase)
        if side is not None:  # else a freeze: the runner settles it, or the next epoch's sweep
            for intent_id, key in zip(ids, keys, strict=True):
                intent = IntentRef(intent_id, self.view.side, key)
                self._leftovers.add(intent, now, side, still_open=True, decided=True)

    async def settle(self) -> None:
        """Wait for the work in the background, then try what is left once more; what is left of older epochs
        then is the sweeper's. Called before an epoch is acknowledged.

        Waits for what is under way now, once: under steady load there is always more of the new epoch.
        """
        await self._wait()
        await self._leftovers.settle()

    async def close(self) -> None:
        """Settle, once no operation is under way any more. What cannot be settled stays in the journal."""
        await self._wait()
        await self._leftovers.close()

    async def _wait(self) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _flow(self, operations: Sequence[Operation], permit: Permit, taken: Route) -> Flow:
        side = self._source_side if authority(permit.phase) == SOURCE else self._target_side
        kind: type[Flow] = SameView
        if taken is Route.CROSS_VIEW:
            kind = NewViewFirst if self.view is View.NEW else OldViewAfter
        return kind(
            operations,
            side,
            client_id=self._client_id,
            permit=permit,
            permits=self._permits,
            journal=self._journal,
            counters=self._counters,
        )

    async def _plain(self, operations: Sequence[Operation], deadline: float) -> list[str | None]:
        try:
            async with asyncio.timeout_at(deadline):
                return await apply_operations(self.table, operations)
        except TimeoutError:
            raise _too_long(self.table.name, sent=True) from None

    async def _dual(self, flow: Flow, permit: Permit, deadline: float) -> list[str | None]:
        try:
            async with asyncio.timeout_at(deadline):
                await flow.decide()
        except TimeoutError:
            self._give_up(flow, permit, deadline)
            raise _too_long(self.table.name, sent=flow.sent) from None
        except BaseException:
            self._give_up(flow, permit, deadline)
            raise
        try:
            async with asyncio.timeout_at(deadline):
                await flow.follow()
        except TimeoutError:
            self._leave_unfinished(flow)
        except BaseException:
            self._leave_unfinished(flow)
            self._go_on(partial(self._finish, flow, permit), permit, deadline)
            raise
        self._go_on(partial(self._finish, flow, permit), permit, deadline)
        return flow.etags()

    # --- behind the answer ------------------------------------------------------------------------------

    def _give_up(self, flow: Flow, permit: Permit, deadline: float) -> None:
        """The authority's answer is an error, or there is none: keep the intents only if they are needed."""
        needless: list[IntentRef] = []
        for work in flow.works:
            if flow.sent or work.open:
                self._leave(flow, work, permit, still_open=True, decided=False)
            else:
                needless += work.intents
        if needless:
            self._go_on(partial(self._take_back, flow, needless, permit), permit, deadline)

    def _leave_unfinished(self, flow: Flow) -> None:
        """The authority is written, but the replicas were cut off in the middle."""
        for work in flow.works:
            if work.state is State.DECIDED:
                work.state, work.open = State.LEFT, True

    async def _finish(self, flow: Flow, permit: Permit) -> None:
        try:
            await flow.finish()
        except BaseException:
            for work in flow.works:
                # Of a transaction, also what was settled before: its intents have not been removed yet.
                self._leave(flow, work, permit, still_open=work.state is not State.SETTLED, decided=True)
            raise
        done: list[IntentRef] = []
        for work in flow.works:
            if work.state is State.SETTLED:
                done += work.intents
            else:
                self._leave(flow, work, permit, still_open=work.open, decided=True)
        await self._end(flow, done, permit)

    async def _take_back(self, flow: Flow, needless: Sequence[IntentRef], permit: Permit) -> None:
        await flow.release()
        await self._end(flow, needless, permit)

    async def _end(self, flow: Flow, intents: Sequence[IntentRef], permit: Permit) -> None:
        try:
            if intents:
                await self._journal.end([intent.id for intent in intents])
        except BaseException:
            self._keep(flow, intents, permit, still_open=False, decided=True)
            raise

    def _leave(self, flow: Flow, work: Work, permit: Permit, *, still_open: bool, decided: bool) -> None:
        self._keep(flow, work.intents, permit, still_open=still_open, decided=decided)

    def _keep(
        self, flow: Flow, intents: Sequence[IntentRef], permit: Permit, *, still_open: bool, decided: bool
    ) -> None:
        for intent in intents:
            self._leftovers.add(intent, permit, flow.side.side, still_open=still_open, decided=decided)

    def _go_on(self, work: Callable[[], Awaitable[None]], permit: Permit, deadline: float) -> None:
        """Go on behind the caller's back: under the operation's permit, until its deadline."""
        stack = ExitStack()
        stack.enter_context(self._permits.hold(permit))

        async def bounded() -> None:
            try:
                async with asyncio.timeout_at(deadline):
                    await work()
            except (TimeoutError, RekeyError):
                self._counters.replica_failures += 1

        task = asyncio.ensure_future(bounded())
        self._tasks.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            stack.close()

        task.add_done_callback(ended)


def _too_long(table: str, *, sent: bool) -> ServiceError:
    if not sent:
        return Unavailable(
            f"the write to {table} took too long before it began; nothing was written",
            code="OperationTimedOut",
            status=500,
            hint="repeat the operation",
        )
    return Unavailable(
        f"the write to {table} took too long; it may have been applied, or may be yet",
        code="OperationTimedOut",
        status=500,
        hint="read the row before you repeat the operation",
    )
