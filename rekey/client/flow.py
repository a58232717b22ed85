"""One dual write, from the intent to replicas that are known to be right.

Rules kept here (DESIGN section 5, ADR 0017):

* Three steps one after the other until the caller has its answer: intents, reads and claims; the write of the
  authority; the conditional writes of the replicas. The last look (`finish`) is taken behind the answer.
* Nothing is sent to the authority before the intents and the claims are durable.
* A condition of our own that fails (a merge, a write across views) is no answer to the caller: it is worked
  out anew from what is there now, a bounded number of times.
* Once the authority has answered, nothing that a replica does fails the call: the intent stays instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from rekey.client.authority import ROW_TOO_BUSY, AuthoritySide, old_key
from rekey.client.counters import Counters
from rekey.client.work import IntentRef, State, Work
from rekey.errors import (
    Ambiguous,
    ConditionFailed,
    RekeyError,
    RequestRejected,
    RowExists,
    RowMissing,
    ServiceError,
    Unavailable,
)
from rekey.mapping.rows import TargetKey
from rekey.model import EntityKey
from rekey.protocol.effects import Outcome, apply_for_etag, apply_operations, in_turns, side_by_side
from rekey.protocol.journal import Journal
from rekey.protocol.operations import as_stored, is_lost_race, may_travel
from rekey.protocol.permits import Permit, Permits
from rekey.protocol.replicas import follow
from rekey.protocol.rules import Side
from rekey.tables.base import Operation
from rekey.tables.rules import check_batch

MAX_TRIES = 20
"""How often a write is worked out anew before its row is called too busy."""
_WIDTH = 32
"""Keys of a transaction whose replicas are written at the same time."""
_ANSWERS = (RowExists, RowMissing, ConditionFailed, RequestRejected)
"""Service errors that are an answer to the caller also when they were found out by reading."""


class Flow(ABC):
    """One call: an operation, or a transaction.

    Attributes:
        works: its keys.
        sent: whether a request for the authority may have been applied, or may be yet.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        side: AuthoritySide,
        *,
        client_id: str,
        permit: Permit,
        permits: Permits,
        journal: Journal,
        counters: Counters,
    ) -> None:
        """Take the operations as the caller gave them, and what they work with.

        Raises:
            RequestRejected: what the service would refuse.
        """
        if len(operations) != 1:
            check_batch(operations)
        self.side = side
        self.works = [_work(index, one, len(operations)) for index, one in enumerate(operations)]
        for work in self.works:
            work.word = journal.word()
        self.sent = False
        self._client_id = client_id
        self._permit = permit
        self._permits = permits
        self._journal = journal
        self._counters = counters

    # --- until the authority has answered ---------------------------------------------------------------

    async def decide(self) -> None:
        """Go as far as the authority's answer.

        Raises:
            RekeyError: the caller's answer. Unless `sent` says otherwise, nothing was written.
        """
        for _ in range(MAX_TRIES):
            if await self.prepare() and await self._send():
                return
            for work in self.works:
                work.begin_again()
        raise Unavailable(
            f"the row kept changing in {MAX_TRIES} attempts to write it; nothing was written",
            code=ROW_TOO_BUSY,
            status=503,
            hint="repeat the operation",
        )

    @abstractmethod
    async def prepare(self) -> bool:
        """Do all that comes before the authority's write; False to begin again.

        Raises:
            RekeyError: the caller's answer; nothing was written.
        """

    @abstractmethod
    def raced(self, error: RekeyError, work: Work, sent: Operation) -> bool:
        """Tell whether the authority refused only on a condition of ours."""

    async def begin(self, side: Side, keys: Sequence[tuple[Work, EntityKey]]) -> None:
        """Make intents durable."""
        ids = await self._journal.begin(self._client_id, self._permit.epoch, side, [key for _, key in keys])
        for (work, key), intent_id in zip(keys, ids, strict=True):
            work.intents.append(IntentRef(intent_id, side, key))

    async def for_each_work(self, calls: Sequence[Awaitable[None]]) -> None:
        """Make the calls of a step; what fails before anything is written says so."""
        try:
            await side_by_side(calls)
        except ServiceError as error:
            if isinstance(error, _ANSWERS) or error.code == ROW_TOO_BUSY:
                raise
            raise Unavailable(
                f"nothing was written: what must be known or kept before a write failed"
                f" ({error.code or type(error).__name__})",
                code=error.code,
                status=503,
                hint="repeat the operation; if it stays so, look at the restricted account",
            ) from error

    async def named(self, work: Work, call: Callable[[Work], Awaitable[None]]) -> None:
        """Make a call for one key; an error says which operation of a transaction it is about."""
        try:
            await call(work)
        except RekeyError as error:
            if len(self.works) > 1:
                error.index = work.index
            raise

    @property
    def is_outdated(self) -> bool:
        """Tell whether the mapping moved on while a write was prepared."""
        return any(work.outdated for work in self.works)

    @staticmethod
    def check_one_partition(partitions: set[str]) -> None:
        """Refuse a transaction over several partitions of the authority. Raises RequestRejected."""
        if len(partitions) > 1:
            raise RequestRejected(
                "rows of one transaction lie in several partitions of the table that is written first",
                code="CommandsInBatchActOnDifferentPartitions",
                status=400,
                hint="while the migration runs, write these rows one by one or in the other view",
            )

    async def _send(self) -> bool:
        """Write the authority; False to begin again."""
        sent = [(work, operation) for work in self.works for operation in work.sent]
        self.check_one_partition({operation.key.partition for _, operation in sent})
        self._permits.check(self._permit)
        self.sent = True
        try:
            etags, *_ = await side_by_side(
                [
                    apply_operations(self.side.authority, [operation for _, operation in sent]),
                    *(self.side.beside(work) for work in self.works),
                ]
            )
        except RekeyError as error:
            self.sent = may_travel(error)
            work, operation = sent[error.index or 0]
            if self.raced(error, work, operation):
                return False
            if error.index is not None:
                error.index = work.index if len(self.works) > 1 else None
            raise
        for (work, _), etag in zip(sent, etags, strict=True):
            work.etag, work.state = etag, State.DECIDED
        return True

    # --- until the caller has its answer ----------------------------------------------------------------

    async def follow(self) -> None:
        """Write the replicas. Raises nothing that a replica does."""
        await in_turns([partial(self._follow, work) for work in self.works], _WIDTH)

    def etags(self) -> list[str | None]:
        """Return the caller's ETags, None for deletes."""
        return [work.etag for work in self.works]

    async def _follow(self, work: Work) -> None:
        if work.source_key is None:
            work.state = State.SETTLED
            return
        await side_by_side([self._release(work), self._write_replicas(work)])

    async def release(self) -> None:
        """Give up what was reserved: nothing was written, and nothing will be."""
        await in_turns([partial(self._release, work) for work in self.works], _WIDTH)

    async def _release(self, work: Work) -> None:
        try:
            await self.side.release(work)
        except ServiceError:
            self._counters.replica_failures += 1  # it ends by time

    async def _write_replicas(self, work: Work) -> None:
        try:
            if await self._follow_fast(work):
                self._counters.fast += 1
                work.state = State.FOLLOWED
            else:
                await self._propagate(work)
                await self.after_propagate(work)
        except Exception as error:  # noqa: BLE001 - the write is done: whatever a replica does must not fail it
            self._leave(work, error)

    async def after_propagate(self, work: Work) -> None:  # noqa: B027 - nothing, in the authority's own view
        """Find out what a caller needs besides, when propagate brought the replicas in step."""

    async def _follow_fast(self, work: Work) -> bool:
        """Write the replicas on the conditions of what was read; False when that will not do."""
        if work.slow or work.expected is None:
            return False
        plan = follow(work.expected, work.early, work.late, work.previous, work.ours)
        if plan is None:
            return False
        unread = self.side.followers(work) - work.early.keys() - work.late.keys()
        work.look_again = plan.look_again or bool(unread)
        outcomes = await side_by_side(self._write(work, *write) for write in plan.writes)
        if Outcome.OPEN in outcomes:
            raise Ambiguous("a replica's write may yet happen")
        return all(outcomes)

    async def _write(self, work: Work, place: TargetKey, operation: Operation) -> Outcome:
        try:
            outcome, etag = await apply_for_etag(self.side.forward.table(place.table), operation)
        except ServiceError as error:
            work.open = work.open or may_travel(error)
            raise
        if place == work.place:
            work.view_etag = etag
        return outcome

    # --- behind the answer ------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Look whether nobody came in between, and propagate where somebody did. Raises as `follow`."""
        await in_turns([partial(self._finish, work) for work in self.works], _WIDTH)

    async def _finish(self, work: Work) -> None:
        if work.state is not State.FOLLOWED:
            return
        try:
            if not work.look_again and await self.side.is_settled(work):
                # A request that propagate left open, before the authority was written, may travel still.
                work.state = State.LEFT if work.open else State.SETTLED
            else:
                await self._propagate(work)
        except Exception as error:  # noqa: BLE001 - as above; the caller has its answer
            self._leave(work, error)

    async def _propagate(self, work: Work) -> None:
        done = await self.side.propagate(old_key(work))
        self._counters.propagated += 1
        work.open = work.open or done.open
        work.state = State.LEFT if work.open else State.SETTLED

    def _leave(self, work: Work, error: Exception) -> None:
        self._counters.replica_failures += 1
        work.open = work.open or may_travel(error)
        work.state = State.LEFT


class SameView(Flow):
    """The view's table is the authority."""

    async def prepare(self) -> bool:
        calls: list[Awaitable[None]] = [self.named(work, self.side.prepare) for work in self.works]
        if not self.works[0].intents:
            calls.insert(0, self.begin(self.side.side, [(work, work.key) for work in self.works]))
        await self.for_each_work(calls)
        return not self.is_outdated

    def raced(self, error: RekeyError, work: Work, sent: Operation) -> bool:
        if error.index is None and len(self.works) > 1:
            # The service did not say which operation it was: any of ours may be.
            return any(is_lost_race(error, one.given, one.sent[0]) for one in self.works)
        return is_lost_race(error, work.given, sent)


def _work(index: int, operation: Operation, count: int) -> Work:
    try:
        return Work(index, as_stored(operation), operation.key)
    except RequestRejected as refused:
        refused.index = index if count > 1 else None
        raise
