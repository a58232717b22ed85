"""Keeping reads and writes under rates, and holding them while the operator has paused them.

Rules kept here:

* Rates are of entities a second: of the account (source rows read and target rows written), and of each
  partition of the source and of the targets. Mapping rows lie in the other account and are not counted.
* The operator's rates (`steering`) are read again and again: they apply to the next batch, not the next run.
  While they say "paused", requests already sent are finished and nothing new is sent.
* The service's answers lower the rate too (`Pace`): it may be slower than was configured, never faster.
* A partition at its limit holds up its own batches alone. The rows of a page are counted when they have
  arrived, and the partition's next page waits until they are made up for.
* A request that is sent again takes of the rates again. One that the service refuses now and then used
  nothing of them, and its entities are given back; where much is refused, more is sent than the service can
  take, and nothing is given back.
* A little less than each rate is used: a refused request waits longer than that costs.
* Waiting is done by the clock object, so no test waits on real time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from rekey.copy.pace import Pace
from rekey.core.clock import TICKS_PER_SECOND, Clock, SystemClock
from rekey.core.progress import Held, Holds
from rekey.tables.allowance import Taken, at_a_rate

_BURST_SECONDS = 0.1
"""Unused allowance that is kept: enough to ride out scheduling, too little to overrun a second."""
_SHARE = 0.98
"""The part of a rate that is used, because rows that are read are counted only when they have arrived."""
_LOOK_SECONDS = 0.5
_MOST_LANES = 4096


@dataclass(frozen=True, slots=True)
class Rates:
    """At most so many entities a second, None for no limit; `paused`: none at all."""

    account: int | None = None
    partition: int | None = None
    paused: bool = False


NO_RATES = Rates()


@dataclass(slots=True)
class _Lane:
    """A virtual scheduling clock: each entity takes 1/rate seconds of it. One batch waits at a time.

    `next` is in ticks; `entities` counts what was taken.
    """

    next: int = 0
    entities: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(eq=False)
class Throttle:
    """Lets batches through as fast as the rates allow.

    Attributes:
        entities_per_second: the rate of the account; None for no limit.
        clock: measures time and waits.
        partition: the rate of each partition, in entities a second; None for no limit.
        steering: returns the rates that apply now, from those given here; asked at most twice a second.
        stopping: tells that the work is to stop; then a pause holds nothing up.
    """

    entities_per_second: int | None = None
    clock: Clock = field(default_factory=SystemClock)
    partition: int | None = None
    steering: Callable[[Rates], Rates] | None = None
    stopping: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._given = self.rates = Rates(self.entities_per_second, self.partition)
        self._looked: int | None = None
        self._account = _Lane()
        self._partitions: dict[Hashable, _Lane] = {}
        self._pace = Pace(self.clock.ticks() / TICKS_PER_SECOND)

    def heard(self, status: int, seconds: float) -> None:
        """Pass an answer of the service on to the pace: its HTTP status and how long it took."""
        self._pace.answered(status, seconds)

    def look(self) -> Rates:
        """Return the rates that apply now; ask `steering` when it was not asked for half a second."""
        now = self.clock.ticks()
        due = self._looked is None or now - self._looked >= _LOOK_SECONDS * TICKS_PER_SECOND
        if self.steering is not None and due:
            self._looked = now
            self.rates = self.steering(self._given)
        return self.rates

    async def open(self) -> None:
        """Wait while the operator has paused the work, unless it is to stop."""
        while self.look().paused and not self.stopping():
            await self.clock.sleep(_LOOK_SECONDS)

    def count(self, entities: int, partition: Hashable) -> None:
        """Count rows that were read of a partition: how many a page has is known when it has arrived."""
        if self.rates.partition is not None:
            self._book(self._lane(partition), self.rates.partition * _SHARE, entities)

    async def made_up(self, partition: Hashable) -> None:
        """Wait until the partition's rate has made up for the rows that were counted."""
        if self.rates.partition is not None:
            wait = self._lane(partition).next - self.clock.ticks()
            if wait > 0:
                await self.clock.sleep(wait / TICKS_PER_SECOND)

    async def take(self, entities: int, partition: Hashable | None = None, *, first: bool = False) -> None:
        """Wait until `entities` more, of one partition, may be read or written; `first`: before the queue."""
        await self.open()
        if partition is not None and self.rates.partition is not None:
            rate = self.rates.partition * _SHARE
            waited = await self._wait(self._lane(partition), rate, entities, first=first)
            # Batches that a partition lets through one by one would leave in a crowd if they queued again.
            first = first or waited
        self._pace.judge(self.clock.ticks() / TICKS_PER_SECOND, self.rates.account)
        if (rate_of_all := self._account_rate) is not None:
            await self._wait(self._account, rate_of_all, entities, first=first)
        self._pace.sent(entities)

    def give_back(self, entities: int) -> None:
        """Give unused entities back to the account's rate: a page may have fewer rows than it could hold."""
        if (rate := self._account_rate) is not None:
            self._return(self._account, rate, entities)
        self._pace.sent(-entities)

    def refused(self, entities: int, partition: Hashable | None) -> None:
        """Give entities of a refused request back, unless many are refused: then less must be sent."""
        if self._pace.is_crowded:
            self._pace.sent(-entities)
            return
        if partition is not None and self.rates.partition is not None:
            self._return(self._lane(partition), self.rates.partition * _SHARE, entities)
        self.give_back(entities)

    def count_anew(self) -> None:
        """Forget how many entities were taken so far."""
        for lane in self._partitions.values():
            lane.entities = 0

    def busiest(self) -> dict[str, tuple[int, float]]:
        """Return, by table, the entities that its busiest partition took since `count_anew`, and how many it
        may take a second; nothing where partitions have no rate."""
        found: dict[str, tuple[int, float]] = {}
        for partition, lane in self._partitions.items():
            table = str(partition[0]) if isinstance(partition, tuple) else ""
            if self.rates.partition is not None and lane.entities > found.get(table, (-1, 0.0))[0]:
                found[table] = (lane.entities, self.rates.partition * _SHARE)
        return found

    def held(self) -> list[Held]:
        """Return what holds requests back now; nothing while all that is ready is sent."""
        rates, now = self.rates, self.clock.ticks()
        if rates.paused:
            return [Held(Holds.PAUSE)]
        found = []
        if self._pace.rate is not None:
            found.append(Held(Holds.REFUSALS, round(self._pace.rate)))
        elif rates.account is not None and self._account.next > now:
            found.append(Held(Holds.ACCOUNT, rates.account))
        waiting = sum(lane.next > now for lane in self._partitions.values())
        if rates.partition is not None and waiting:
            found.append(Held(Holds.PARTITION, rates.partition, waiting))
        return found

    def taken(self, entities: int, partition: Hashable | None = None) -> AbstractContextManager[None]:
        """Return a context for sending: a refusal gives entities back, the next attempt takes them again."""
        again = partial(self.take, entities, partition, first=True)
        return at_a_rate(Taken(partial(self.refused, entities, partition), again))

    @property
    def _account_rate(self) -> float | None:
        """Entities a second: the lower of account's and pace's rate, times `_SHARE`; None for no limit."""
        allowed, slowed = self.rates.account, self._pace.rate
        rate = allowed if slowed is None else min(slowed, allowed or slowed)
        return None if rate is None else rate * _SHARE

    async def _wait(self, lane: _Lane, rate: float, entities: int, *, first: bool = False) -> bool:
        async with nullcontext() if first else lane.turn:
            wait = self._book(lane, rate, entities)
            if wait > 0:
                await self.clock.sleep(wait / TICKS_PER_SECOND)
            return wait > 0

    def _book(self, lane: _Lane, rate: float, entities: int) -> int:
        """Queue entities after those of the lane; return their wait in ticks, 0 or less for none."""
        lane.entities += entities
        now = self.clock.ticks()
        start = max(lane.next, now - round(_BURST_SECONDS * TICKS_PER_SECOND))
        lane.next = start + round(entities * TICKS_PER_SECOND / rate)
        return start - now

    @staticmethod
    def _return(lane: _Lane, rate: float, entities: int) -> None:
        lane.entities -= entities
        lane.next -= round(entities * TICKS_PER_SECOND / rate)

    def _lane(self, partition: Hashable) -> _Lane:
        lane = self._partitions.get(partition)
        if lane is None:
            if len(self._partitions) >= _MOST_LANES:
                now = self.clock.ticks()
                busy = {k: one for k, one in self._partitions.items() if one.next > now or one.turn.locked()}
                self._partitions = busy
            lane = self._partitions[partition] = _Lane()
        return lane
