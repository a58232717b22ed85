"""Step 5 of a write, after the answer (ADR 0017): reread the authority, and retry unsettled intents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from rekey.client.flow import Flow
from rekey.client.lease import Permit
from rekey.client.parts import WIDTH, ClientParts
from rekey.client.replicas import follow, propagate, release, unsettled
from rekey.client.steps import State
from rekey.errors import RekeyError
from rekey.model import EntityKey
from rekey.phases import ControlPhase
from rekey.protocol.effects import in_turns
from rekey.protocol.journal import IntentRef
from rekey.protocol.operations import may_take_effect
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import Side, authority
from rekey.tables.allowance import while_allowed

# Most leftovers a client retries itself. `TakeOver` and the runner's sweeper settle further ones from their
# intents in the journal.
MAX_KEPT = 1_000
PAUSES = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0)
_LEFTOVERS_AT_ONCE = 16


@dataclass(slots=True, eq=False)
class Leftover:
    """A key whose intent is unsettled and will be retried."""

    intent: IntentRef
    # The permit the write ran under.
    permit: Permit
    # The side that was the authority then.
    authority: Side
    # Whether the authority has answered; if not, the first attempt waits for `in_flight_s`.
    decided: bool
    # For how many more seconds a request for it may take effect; its intent stays that long.
    in_flight_s: float
    # The key is settled; only its intent is retained for `in_flight_s`.
    only_intent_left: bool = False
    attempts: int = 0
    task: asyncio.Task[None] = field(init=False)
    # Whether an attempt is running.
    trying: bool = False
    # Set by `settle`: end the task after the running attempt, without another pause.
    ends: bool = False

    def is_decided_by(self, now: Permit) -> bool:
        """Tell whether the authority is still the side that it was for the write."""
        # A freeze does not name the authority. In the epoch right after the leftover's it is still the same
        # side, since a client is never two epochs behind the control row.
        if now.epoch not in (self.permit.epoch, self.permit.epoch + 1):
            return False
        if now.phase in (None, ControlPhase.SOURCE):
            return False
        return now.phase is ControlPhase.FREEZE or authority(now.phase) == self.authority


@dataclass(eq=False, repr=False)
class Finisher:
    """Finishes the writes of one client in the background, and retries its leftovers."""

    client: ClientParts
    reverse: ReversePropagator
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    # A dict, not a set: in order of arrival, so that a run can be reproduced.
    _kept: dict[Leftover, None] = field(default_factory=dict, init=False)
    # Intents waiting to be removed, by call; one transaction at a time removes all of them.
    _ended: dict[tuple[IntentRef, ...], None] = field(default_factory=dict, init=False)
    _removing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    @property
    def left(self) -> int:
        """Number of leftovers: keys that this client still has to settle."""
        return len(self._kept)

    # --- after one write --------------------------------------------------------------------------------

    def give_up(self, flow: Flow) -> None:
        """End a call that failed at or before the authority; keep intents only if the outcome is unknown."""
        needless: list[IntentRef] = []
        for request in flow.requests:
            if flow.sent or request.pending.ambiguous:
                self._keep(flow, request.pending.intents, ambiguous=True, decided=False)
            else:
                needless += request.pending.intents
        # From now on these intents announce nothing, even before they are removed.
        refused = next(self.client.in_flight.moments)
        self.client.in_flight.decided.update((intent.id, refused) for intent in needless)

        async def take_back() -> None:
            await release(flow)
            await self._end(flow, needless)

        if needless:
            self._go_on(flow, take_back)

    @property
    def running(self) -> int:
        return len(self._tasks)

    def finish(self, flow: Flow, *, follows: bool = False) -> None:
        """Reread the authority in the background, and remove the intents of settled keys. `follows`: the
        replicas are not written yet."""
        self._go_on(flow, partial(self._finish, flow, follows))

    def keep(
        self, intent: IntentRef, permit: Permit, decides: Side, *, ambiguous: bool, decided: bool
    ) -> None:
        """Record an unsettled key and retry it in the background; beyond `MAX_KEPT` it is only counted.

        Args:
            decides: the authority.
            ambiguous: whether a request for it may yet take effect.
            decided: whether the authority has answered.
        """
        self.client.counters.left += 1
        in_flight_s = self.client.max_in_flight_s if ambiguous else 0.0
        self._add(Leftover(intent, permit, decides, decided, in_flight_s))

    def is_kept(self, intent: EntityKey) -> bool:
        """Tell whether this client retries the intent with this id itself."""
        return any(left.intent.id == intent for left in self._kept)

    async def settle_now(self, intent: IntentRef, permit: Permit, decides: Side) -> None:
        """Settle a key at once and remove its intent; keep it as a leftover if that fails or has to wait.
        `decides`: the authority."""
        ambiguous = False
        try:
            if not self.client.in_flight.is_writing([intent], begun=True):
                with self.client.in_flight.settles([intent]):
                    done = await self.reverse.settle(decides, intent.side, intent.key)
                ambiguous = done.ambiguous
                if not ambiguous:
                    await self.client.journal.end([intent])
                    return
        except (RekeyError, TimeoutError) as error:
            self.client.counters.replica_failures += 1
            ambiguous = may_take_effect(error)
        self.keep(intent, permit, decides, ambiguous=ambiguous, decided=True)

    def _forget(self, left: Leftover) -> None:
        self._kept.pop(left, None)
        self.client.in_flight.decided.pop(left.intent.id, None)

    def _add(self, left: Leftover) -> None:
        if len(self._kept) >= MAX_KEPT:
            self._forget(left)
            return
        self._kept[left] = None
        left.task = asyncio.ensure_future(self._keep_trying(left))

    async def settle(self) -> None:
        """Wait for the background work, and until no request for a leftover is in flight; then try each
        leftover once. What remains of the current epoch is retried later; all others are forgotten."""
        # Only for the work that is running now: under steady load there is always more of the new epoch.
        await self.wait()
        kept = await self._interrupt()
        due = [left for left in kept if not left.only_intent_left]
        if any(left.in_flight_s for left in due):
            await self.client.wait_out()
            for left in due:
                left.in_flight_s = 0.0
        await in_turns([partial(self._try, left) for left in due], _LEFTOVERS_AT_ONCE)
        now = self.client.current()
        for left in kept:
            # In another epoch another side may be the authority.
            if now is None or left.permit.epoch != now.epoch:
                self._forget(left)
            elif left in self._kept:
                left.ends = False
                left.task = asyncio.ensure_future(self._keep_trying(left))

    async def close(self) -> None:
        """Settle, and forget all leftovers: the intents of unsettled ones stay in the journal."""
        await self.wait()
        kept = [left for left in await self._interrupt() if not left.in_flight_s]
        await in_turns([partial(self._try, left) for left in kept], _LEFTOVERS_AT_ONCE)
        self._kept = {}

    async def _interrupt(self) -> list[Leftover]:
        """End the pauses of all leftovers; return them once no attempt is running."""
        kept = list(self._kept)
        for left in kept:
            left.ends = True
            if not left.trying:
                left.task.cancel()
        if kept:
            await asyncio.wait([left.task for left in kept])
        return [left for left in kept if left in self._kept]

    async def wait(self) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _finish(self, flow: Flow, follows: bool) -> None:
        numbers = range(len(flow.decided))
        try:
            if follows:
                await follow(flow)
            await in_turns([partial(_reread, flow, number) for number in numbers], WIDTH)
        except BaseException:
            for number in numbers:
                # In a transaction also keys that are settled: their intents have not been removed yet.
                pending, ambiguous = flow.requests[number].pending, not _is_settled(flow, number)
                self._keep(flow, pending.intents, ambiguous=ambiguous, decided=True)
            raise
        done: list[IntentRef] = []
        retained: list[IntentRef] = []
        for number in numbers:
            pending = flow.requests[number].pending
            if _is_settled(flow, number):
                (retained if pending.keep_intent else done).extend(pending.intents)
            else:
                self._keep(flow, pending.intents, ambiguous=_is_ambiguous(flow, number), decided=True)
        for intent in retained:  # first: the steps below may fail or be cut off
            left = Leftover(
                intent, flow.permit, flow.authority.side,
                decided=False, in_flight_s=self.client.longest_operation_s, only_intent_left=True,
            )  # fmt: skip
            self._add(left)
        await self._end(flow, done)
        for intent in retained:
            # Marked as settled, and removed once no unfinished write can look for it.
            with suppress(RekeyError):  # without the mark it is settled again before it is removed
                await self.client.journal.keep(intent.id, intent.etag)

    async def _end(self, flow: Flow, intents: Sequence[IntentRef]) -> None:
        try:
            if intents:
                await self._remove(tuple(intents))
            for intent in intents:
                self.client.in_flight.decided.pop(intent.id, None)
        except BaseException:
            self._keep(flow, intents, ambiguous=False, decided=True)
            raise

    async def _remove(self, intents: tuple[IntentRef, ...]) -> None:
        """Remove a call's intents, in one transaction with those of all calls that wait for the same. A
        failure is raised to the call that ran the transaction; the others retry theirs."""
        self._ended[intents] = None
        try:
            async with self._removing:
                if intents in self._ended:
                    waiting = tuple(self._ended)
                    await self.client.journal.end([intent for of_call in waiting for intent in of_call])
                    for of_call in waiting:
                        self._ended.pop(of_call, None)
        finally:
            self._ended.pop(intents, None)

    def _keep(self, flow: Flow, intents: Sequence[IntentRef], *, ambiguous: bool, decided: bool) -> None:
        for intent in intents:
            self.keep(intent, flow.permit, flow.authority.side, ambiguous=ambiguous, decided=decided)

    def _go_on(self, flow: Flow, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` in the background, under the operation's permit and until its deadline."""
        stack = ExitStack()
        stack.enter_context(self.client.permits.hold(flow.permit))

        async def bounded() -> None:
            try:
                async with asyncio.timeout_at(flow.deadline):
                    await work()
            except (TimeoutError, RekeyError):
                self.client.counters.replica_failures += 1

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            stack.close()

        task = asyncio.ensure_future(bounded())
        self._tasks.add(task)
        task.add_done_callback(ended)

    # --- leftovers --------------------------------------------------------------------------------------

    async def _keep_trying(self, left: Leftover) -> None:
        if not left.decided:
            await self._pause(left, left.in_flight_s)
        while left in self._kept and not left.ends:
            await self._pause(left, PAUSES[min(left.attempts, len(PAUSES) - 1)])
            await self._try(left)

    async def _pause(self, left: Leftover, seconds: float) -> None:
        await self.client.sleep(seconds)
        left.in_flight_s = max(0.0, left.in_flight_s - seconds)

    async def _try(self, left: Leftover) -> None:
        """Try a leftover once; forget it when it is settled, or when another side may be the authority."""
        now = self.client.current()
        if now is None:
            return
        if left.attempts < len(PAUSES) - 1 and self.client.in_flight.is_writing([left.intent], begun=True):
            left.attempts += 1
            return
        if not left.is_decided_by(now):
            self._forget(left)
            return
        left.trying = True
        left.attempts += 1
        try:
            with (
                self.client.permits.hold(now),
                while_allowed(partial(self.client.permits.check, now)),
                self.client.in_flight.settles([left.intent]),
            ):
                async with asyncio.timeout(self.client.longest_operation_s):
                    # Renew its age: the sweeper takes only intents older than the longest operation, so it
                    # never meets one that is being settled.
                    left.intent = intent = await self.client.journal.touch(left.intent, now.epoch)
                    done = await self.reverse.settle(left.authority, intent.side, intent.key)
                    self.client.counters.propagated += 1
                    if done.ambiguous:
                        left.in_flight_s = self.client.max_in_flight_s
                    if not left.in_flight_s and await self.client.journal.end_if(intent):
                        self._forget(left)
        except (RekeyError, TimeoutError) as error:
            self.client.counters.replica_failures += 1
            if may_take_effect(error):
                left.in_flight_s = self.client.max_in_flight_s
        finally:
            left.trying = False


def _is_settled(flow: Flow, number: int) -> bool:
    followed = flow.followed.get(number)
    return followed is not None and followed.state is State.SETTLED


def _is_ambiguous(flow: Flow, number: int) -> bool:
    """Tell whether a request for a key may yet take effect, which includes one cut off among its replicas."""
    return flow.requests[number].pending.ambiguous or number not in flow.followed


async def _reread(flow: Flow, number: int) -> None:
    """Check whether another writer came in between; propagate if so. An error only leaves the key
    unsettled."""
    followed = flow.followed.get(number)
    if followed is None or followed.state is not State.WRITTEN:
        return
    decided = followed.decided
    pending, in_flight = decided.pending, flow.client.in_flight
    try:
        if not followed.reread and await flow.authority.is_settled(decided):
            # A request of a propagate before the write has an unknown outcome and may yet take effect.
            state = State.UNSETTLED if pending.ambiguous else State.SETTLED
            flow.followed[number] = replace(followed, state=state)
        elif in_flight.is_writing(pending.intents):
            flow.followed[number] = replace(followed, state=State.UNSETTLED)
        else:
            with in_flight.settles(pending.intents):
                flow.followed[number] = await propagate(flow, decided)
    except Exception as error:  # noqa: BLE001 - the caller has its answer
        flow.followed[number] = unsettled(flow, decided, error)
