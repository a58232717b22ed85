"""Step 5 of a write, after the answer (ADR 0017): the authority is reread, and unsettled keys are retried.

A key that is not known to be settled keeps its intent in the journal: keys that this process forgets are
settled by `TakeOver`, here or in another client, and by the runner's sweeper.
"""

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
from rekey.client.steps import IntentRef, State
from rekey.errors import RekeyError
from rekey.model import EntityKey
from rekey.phases import ControlPhase
from rekey.protocol.effects import in_turns
from rekey.protocol.operations import may_travel
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import Side, authority
from rekey.tables.allowance import while_allowed

# Most leftovers that a client keeps; further ones are settled by `TakeOver` and by the sweeper.
MAX_KEPT = 1_000
PAUSES = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0)
_LEFTOVERS_AT_ONCE = 16


@dataclass(slots=True, eq=False)
class Leftover:
    """One key that is to be looked at again.

    Attributes:
        intent: its intent.
        permit: the permit that the write ran under.
        authority: the side that was the authority then.
        decided: whether the authority has answered; if not, the key is not tried before `travels_s` is over.
        travels_s: for how many seconds more a request for it may take effect; until then its intent stays.
        attempts: how often it was tried.
        task: tries it repeatedly.
        lingers: whether it is settled, and only its intent is to stay for `travels_s`.
        trying: whether an attempt is running.
        ends: set by `settle`: the task ends after the running attempt, without another pause.
    """

    intent: IntentRef
    permit: Permit
    authority: Side
    decided: bool
    travels_s: float
    lingers: bool = False
    attempts: int = 0
    task: asyncio.Task[None] = field(init=False)
    trying: bool = False
    ends: bool = False

    def is_decided_by(self, now: Permit) -> bool:
        """Tell whether the authority is still the side that it was for the write.

        A freeze does not name the authority. In the epoch right after the leftover's it is still the same
        side, since a client is never two epochs behind the control row.
        """
        if now.epoch not in (self.permit.epoch, self.permit.epoch + 1):
            return False
        if now.phase in (None, ControlPhase.SOURCE):
            return False
        return now.phase is ControlPhase.FREEZE or authority(now.phase) == self.authority


@dataclass(eq=False, repr=False)
class Finisher:
    """Finishes the writes of one client.

    Attributes:
        client: the client whose writes they are.
        reverse: settles the key of an intent.
    """

    client: ClientParts
    reverse: ReversePropagator
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    # In order of arrival (a dict, not a set), so that a run can be reproduced.
    _kept: dict[Leftover, None] = field(default_factory=dict, init=False)
    # Intents whose calls have come to remove them, by call; one transaction at a time removes them.
    _ended: dict[tuple[EntityKey, ...], None] = field(default_factory=dict, init=False)
    _removing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    @property
    def left(self) -> int:
        """Number of leftovers: keys that this client still has to settle."""
        return len(self._kept)

    # --- after one write --------------------------------------------------------------------------------

    def give_up(self, flow: Flow) -> None:
        """End a call that failed at or before the authority: keep intents only where the outcome is open."""
        needless: list[IntentRef] = []
        for request in flow.requests:
            if flow.sent or request.held.ambiguous:
                self._keep(flow, request.held.intents, still_open=True, decided=False)
            else:
                needless += request.held.intents
        # They announce nothing any more, also while they wait to be removed.
        refused = next(self.client.in_flight.moments)
        self.client.in_flight.decided.update((intent.id, refused) for intent in needless)

        async def take_back() -> None:
            await release(flow)
            await self._end(flow, needless)

        if needless:
            self._go_on(flow, take_back)

    @property
    def running(self) -> int:
        """Number of calls whose work goes on in the background."""
        return len(self._tasks)

    def finish(self, flow: Flow, *, follows: bool = False) -> None:
        """Look at the authority again, in the background, and end the intents of keys that are settled.
        `follows`: the replicas are not written yet."""
        self._go_on(flow, partial(self._finish, flow, follows))

    def keep(
        self, intent: IntentRef, permit: Permit, decides: Side, *, still_open: bool, decided: bool
    ) -> None:
        """Keep a leftover and try it in the background; beyond `MAX_KEPT` it is only counted.

        Args:
            intent: its intent.
            permit: the permit that the write ran under.
            decides: the authority.
            still_open: whether a request for it may yet take effect.
            decided: whether the authority has answered.
        """
        self.client.counters.left += 1
        self._add(Leftover(intent, permit, decides, decided, self.client.late_s if still_open else 0.0))

    def is_kept(self, intent: EntityKey) -> bool:
        """Tell whether an intent is of a leftover that this client tries by itself. `intent`: its id."""
        return any(left.intent.id == intent for left in self._kept)

    async def settle_now(self, intent: IntentRef, permit: Permit, decides: Side) -> None:
        """Settle a key at once and end its intent; keep it as a leftover where that fails or must wait.

        Args:
            intent: its intent.
            permit: the permit that the write ran under.
            decides: the authority.
        """
        still_open = False
        try:
            if not self.client.in_flight.is_writing([intent], begun=True):
                with self.client.in_flight.settles([intent]):
                    done = await self.reverse.settle(decides, intent.side, intent.key)
                still_open = done.open
                if not still_open:
                    await self.client.journal.end([intent.id])
                    return
        except (RekeyError, TimeoutError) as error:
            self.client.counters.replica_failures += 1
            still_open = may_travel(error)
        self.keep(intent, permit, decides, still_open=still_open, decided=True)

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
        """Wait for the work in the background, and until no request for a leftover can take effect any more;
        then try each leftover once. Those of other epochs than the current one, or all without a current
        permit, are then forgotten: in another epoch another side may be the authority. The others are tried
        again later.

        Waits only for work that is running now: under steady load there is always more of the new epoch.
        """
        await self.wait()
        kept = await self._interrupt()
        due = [left for left in kept if not left.lingers]
        if any(left.travels_s for left in due):
            await self.client.wait_out()
            for left in due:
                left.travels_s = 0.0
        await in_turns([partial(self._try, left) for left in due], _LEFTOVERS_AT_ONCE)
        now = self.client.current()
        for left in kept:
            if now is None or left.permit.epoch != now.epoch:
                self._forget(left)
            elif left in self._kept:
                left.ends = False
                left.task = asyncio.ensure_future(self._keep_trying(left))

    async def close(self) -> None:
        """Settle, and forget all leftovers: what could not be settled stays in the journal."""
        await self.wait()
        kept = [left for left in await self._interrupt() if not left.travels_s]
        await in_turns([partial(self._try, left) for left in kept], _LEFTOVERS_AT_ONCE)
        self._kept = {}

    async def _interrupt(self) -> list[Leftover]:
        """End the pauses of all leftovers; return them when no attempt is running any more."""
        kept = list(self._kept)
        for left in kept:
            left.ends = True
            if not left.trying:
                left.task.cancel()
        if kept:
            await asyncio.wait([left.task for left in kept])
        return [left for left in kept if left in self._kept]

    async def wait(self) -> None:
        """Wait for the work in the background."""
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
                held, still_open = flow.requests[number].held, not _is_settled(flow, number)
                self._keep(flow, held.intents, still_open=still_open, decided=True)
            raise
        done: list[IntentRef] = []
        lingering: list[IntentRef] = []
        for number in numbers:
            held = flow.requests[number].held
            if _is_settled(flow, number):
                (lingering if held.keep_intent else done).extend(held.intents)
            else:
                self._keep(flow, held.intents, still_open=_is_ambiguous(flow, number), decided=True)
        for intent in lingering:  # first of all: what follows may fail or be cut off
            left = Leftover(
                intent, flow.permit, flow.authority.side,
                decided=False, travels_s=self.client.longest_operation_s, lingers=True,
            )  # fmt: skip
            self._add(left)
        await self._end(flow, done)
        for intent in lingering:
            # Marked as settled, and removed when no unfinished write can look for it any more.
            with suppress(RekeyError):  # without the mark it is settled once more before it is removed
                await self.client.journal.keep(intent.id, "*")

    async def _end(self, flow: Flow, intents: Sequence[IntentRef]) -> None:
        try:
            if intents:
                await self._remove(tuple(intent.id for intent in intents))
            for intent in intents:
                self.client.in_flight.decided.pop(intent.id, None)
        except BaseException:
            self._keep(flow, intents, still_open=False, decided=True)
            raise

    async def _remove(self, ids: tuple[EntityKey, ...]) -> None:
        """Remove the intents of a call, and in the same transaction those of all calls that have come to that
        meanwhile. One that fails is its caller's failure; the others are tried again by theirs."""
        self._ended[ids] = None
        try:
            async with self._removing:
                if ids in self._ended:
                    together = tuple(self._ended)
                    await self.client.journal.end([one for some in together for one in some])
                    for some in together:
                        self._ended.pop(some, None)
        finally:
            self._ended.pop(ids, None)

    def _keep(self, flow: Flow, intents: Sequence[IntentRef], *, still_open: bool, decided: bool) -> None:
        for intent in intents:
            self.keep(intent, flow.permit, flow.authority.side, still_open=still_open, decided=decided)

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
            await self._pause(left, left.travels_s)
        while left in self._kept and not left.ends:
            await self._pause(left, PAUSES[min(left.attempts, len(PAUSES) - 1)])
            await self._try(left)

    async def _pause(self, left: Leftover, seconds: float) -> None:
        await self.client.sleep(seconds)
        left.travels_s = max(0.0, left.travels_s - seconds)

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
                    intent = left.intent
                    # Its age begins anew: the sweeper takes intents only that are older than the longest
                    # operation, so it never meets one that is being settled.
                    await self.client.journal.touch(intent.id, now.epoch, intent.side, intent.key)
                    done = await self.reverse.settle(left.authority, intent.side, intent.key)
                    self.client.counters.propagated += 1
                    if done.open:
                        left.travels_s = self.client.late_s
                    if not left.travels_s:
                        await self.client.journal.end([intent.id])
                        self._forget(left)
        except (RekeyError, TimeoutError) as error:
            self.client.counters.replica_failures += 1
            if may_travel(error):
                left.travels_s = self.client.late_s
        finally:
            left.trying = False


def _is_settled(flow: Flow, number: int) -> bool:
    followed = flow.followed.get(number)
    return followed is not None and followed.state is State.SETTLED


def _is_ambiguous(flow: Flow, number: int) -> bool:
    """Tell whether a request for a key may yet take effect; also one that was cut off among its replicas."""
    return flow.requests[number].held.ambiguous or number not in flow.followed


async def _reread(flow: Flow, number: int) -> None:
    """Check whether another writer came in between; propagate if one did. An error leaves the key unsettled
    and is not raised."""
    followed = flow.followed.get(number)
    if followed is None or followed.state is not State.WRITTEN:
        return
    decided = followed.decided
    held, in_flight = decided.held, flow.client.in_flight
    try:
        if not followed.reread and await flow.authority.is_settled(decided):
            # A request that propagate left open before the authority was written may yet take effect.
            state = State.UNSETTLED if held.ambiguous else State.SETTLED
            flow.followed[number] = replace(followed, state=state)
        elif in_flight.is_writing(held.intents):
            flow.followed[number] = replace(followed, state=State.UNSETTLED)
        else:
            with in_flight.settles(held.intents):
                flow.followed[number] = await propagate(flow, decided)
    except Exception as error:  # noqa: BLE001 - the caller has its answer
        flow.followed[number] = unsettled(flow, decided, error)
