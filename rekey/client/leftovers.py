"""Keys whose replicas were not known to be right when the caller had its answer: looked at again.

Rules kept here:

* The intent stays in the journal meanwhile: what this process forgets, the runner's sweeper settles.
* Each attempt runs under a permit that is good now, makes the intent young first, and takes no longer than
  the longest operation: a sweeper that takes old intents only never meets an attempt under way.
* A key is tried again with growing pauses. While a request for it may still travel (an open outcome) its
  intent stays, and where that request is the authority's, there is nothing to see before.
* A leftover never outlives its epoch: `settle` tries each once more before the next epoch is acknowledged,
  and then leaves those of older epochs to the sweeper. In another epoch another side may decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from rekey.client.counters import Counters
from rekey.client.work import IntentRef
from rekey.core.concurrency import cancel
from rekey.errors import RekeyError
from rekey.phases import ControlPhase
from rekey.protocol.effects import in_turns
from rekey.protocol.journal import Journal
from rekey.protocol.operations import may_travel
from rekey.protocol.permits import Permit, Permits
from rekey.protocol.rules import Side, authority
from rekey.protocol.sweeper import Settler
from rekey.tables.allowance import while_allowed

MAX_KEPT = 1_000
"""Leftovers a client keeps for itself; what comes on top is left to the sweeper."""
PAUSES = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0)
_WIDTH = 16
MARGIN_S = 5.0
"""Added to the longest operation before an open outcome is taken for over."""


@dataclass(slots=True, eq=False)
class Leftover:
    """One key that is to be looked at again.

    Attributes:
        intent: its intent.
        permit: what the write ran under.
        authority: which side decided then.
        decided: whether the authority has answered; if not, there is nothing to see before that is over.
        travels_s: for how many seconds more a request for it may travel; until then its intent stays.
        attempts: how often it was tried.
        task: what tries it, again and again.
        trying: it is being tried now.
        ends: whoever settles waits for the attempt under way, not for a pause behind it.
    """

    intent: IntentRef
    permit: Permit
    authority: Side
    decided: bool
    travels_s: float
    attempts: int = 0
    task: asyncio.Task[None] | None = None
    trying: bool = False
    ends: bool = False


def is_same_authority(left: Leftover, now: Permit) -> bool:
    """Tell whether the side that decided for a leftover still does.

    A freeze does not say; it is known for the epoch right after the leftover's, since a client is never two
    epochs behind what decides.
    """
    if now.epoch not in (left.permit.epoch, left.permit.epoch + 1) or now.phase in (
        None,
        ControlPhase.SOURCE,
    ):
        return False
    return now.phase is ControlPhase.FREEZE or authority(now.phase) == left.authority


class Leftovers:
    """The leftovers of one client."""

    def __init__(
        self,
        settler: Settler,
        journal: Journal,
        permits: Permits,
        counters: Counters,
        *,
        longest_operation_s: float,
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        """Take what settles keys, and how long the longest operation takes, in seconds."""
        self._settler = settler
        self._journal = journal
        self._permits = permits
        self._counters = counters
        self._longest = longest_operation_s
        self._travel_s = longest_operation_s + MARGIN_S
        self._sleep = sleep
        # In the order in which they came, so that what happens once can be made to happen again.
        self._kept: dict[Leftover, None] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def add(
        self, intent: IntentRef, permit: Permit, decides: Side, *, still_open: bool, decided: bool
    ) -> None:
        """Take a key; it is looked at in the background.

        Args:
            intent: its intent.
            permit: what the write ran under.
            decides: the authority.
            still_open: whether a request for it may still travel.
            decided: whether the authority has answered.
        """
        self._counters.left += 1
        if len(self._kept) >= MAX_KEPT:
            return
        travels_s = self._travel_s if still_open else 0.0
        left = Leftover(intent, permit, decides, decided, travels_s)
        self._kept[left] = None
        left.task = asyncio.ensure_future(self._keep_trying(left, wait_first=not decided))

    async def settle(self) -> None:
        """Try each leftover once, those with requests that may travel aside. Those of older epochs are then
        forgotten; the others are tried again later."""
        kept = list(self._kept)
        for left in kept:
            left.ends = True
            if left.task is not None and not left.trying:
                left.task.cancel()
        tasks = [left.task for left in kept if left.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        due = [left for left in kept if left in self._kept and not left.travels_s]
        await in_turns([partial(self._try_once, left) for left in due], _WIDTH)
        now = self._permits.current()
        for left in kept:
            if now is None or left.permit.epoch != now.epoch:
                self._kept.pop(left, None)
            elif left in self._kept:
                left.ends = False
                left.task = asyncio.ensure_future(self._keep_trying(left, wait_first=not left.decided))

    async def close(self) -> None:
        """Settle, and forget them all."""
        await self.settle()
        kept, self._kept = list(self._kept), {}
        await cancel(left.task for left in kept if left.task is not None)

    async def _try_once(self, left: Leftover) -> None:
        if await self._try(left):
            self._kept.pop(left, None)

    async def _keep_trying(self, left: Leftover, *, wait_first: bool) -> None:
        if wait_first:
            await self._pause(left, left.travels_s)
        while left in self._kept and not left.ends:
            await self._pause(left, PAUSES[min(left.attempts, len(PAUSES) - 1)])
            if await self._try(left):
                self._kept.pop(left, None)

    async def _pause(self, left: Leftover, seconds: float) -> None:
        await self._sleep(seconds)
        left.travels_s = max(0.0, left.travels_s - seconds)

    async def _try(self, left: Leftover) -> bool:
        """Look at a key once; True when there is nothing left to be done here."""
        now = self._permits.current()
        if now is None:
            return False
        if not is_same_authority(left, now):
            return True
        left.trying = True
        left.attempts += 1
        try:
            with self._permits.hold(now), while_allowed(partial(self._permits.check, now)):
                async with asyncio.timeout(self._longest):
                    return await self._settle(left, now)
        except (RekeyError, TimeoutError) as error:
            self._counters.replica_failures += 1
            if may_travel(error):
                left.travels_s = self._travel_s
            return False
        finally:
            left.trying = False

    async def _settle(self, left: Leftover, now: Permit) -> bool:
        intent = left.intent
        await self._journal.touch(intent.id, now.epoch, intent.side, intent.key)
        done = await self._settler.settle(left.authority, intent.side, intent.key)
        self._counters.propagated += 1
        if done.open:
            left.travels_s = self._travel_s
        if left.travels_s:
            return False
        await self._journal.end([intent.id])
        return True
