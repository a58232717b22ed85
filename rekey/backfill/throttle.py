"""Keeping reads and writes under rates, and holding them while the operator says so.

Rules kept here:

* Rates are of entities a second: of the account (source rows read and target rows written), and of each
  partition of the source and of the targets. Mapping rows lie in the other account and are not counted.
* What the operator says (`Steering`) is asked for again and again: it counts for the next batch, not the next
  run. While it says "paused", what was sent is finished and nothing new is sent.
* The service itself has its say (`Pace`): it may be slower than was configured, never faster.
* A partition at its limit holds up its own batches alone. Whoever fetches ahead of it says so.
* A little less than each rate is used: what a service refuses waits longer than that costs.
* Waiting is asked of the clock, so no test waits on real time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from rekey.backfill.pace import Pace
from rekey.tables.clock import TICKS_PER_SECOND, Clock, SystemClock

_BURST_SECONDS = 0.1
"""How much unused allowance is kept: enough to ride out scheduling, too little to overrun a second."""
_SHARE = 0.97
"""Of a rate that is used: what is fetched ahead is counted only when it is taken."""
_LOOK_SECONDS = 0.5
_MOST_LANES = 4096


@dataclass(frozen=True, slots=True)
class Rates:
    """Entities a second at most, None for no limit; `paused`: none at all."""

    account: int | None = None
    partition: int | None = None
    paused: bool = False


@dataclass(slots=True)
class _Lane:
    """A virtual scheduling clock: each entity takes 1/rate seconds of it. One batch waits at a time."""

    next: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Throttle:
    """Lets batches through as fast as is allowed."""

    def __init__(
        self,
        entities_per_second: int | None = None,
        clock: Clock | None = None,
        *,
        partition: int | None = None,
        steering: Callable[[Rates], Rates] | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take the rates and who may change them.

        Args:
            entities_per_second: of the account; None for no limit.
            clock: what to wait on.
            partition: of each partition.
            steering: gives the rates that count now, from those given here; asked twice a second.
            stopping: tells that the work is to stop: a pause holds nothing up then.
        """
        self._given = self.rates = Rates(entities_per_second, partition)
        self._clock = clock or SystemClock()
        self._steering = steering
        self._stopping = stopping
        self._looked: int | None = None
        self._account = _Lane()
        self._partitions: dict[Hashable, _Lane] = {}
        self._pace = Pace(self._clock.ticks() / TICKS_PER_SECOND)

    def heard(self, status: int, seconds: float) -> None:
        """Hear of an answer of the service."""
        self._pace.answered(status, seconds)

    def look(self) -> Rates:
        """Return the rates that count now, as the operator said last."""
        self._look()
        return self.rates

    async def open(self) -> None:
        """Wait while the operator says so."""
        self._look()
        while self.rates.paused and not self._stopping():
            await self._clock.sleep(_LOOK_SECONDS)
            self._look()

    def ahead(self, entities: int, partition: Hashable) -> None:
        """Count what was asked of a partition before it was taken: what is taken next waits for it."""
        if self.rates.partition is not None:
            lane = self._lane(partition)
            rate = self.rates.partition * _SHARE
            lane.next = max(lane.next, self._clock.ticks()) + round(entities * TICKS_PER_SECOND / rate)

    async def take(self, entities: int, partition: Hashable | None = None) -> None:
        """Wait until `entities` more, of one partition, may be read or written."""
        await self.open()
        if partition is not None and self.rates.partition is not None:
            await self._wait(self._lane(partition), self.rates.partition * _SHARE, entities)
        now = self._clock.ticks() / TICKS_PER_SECOND
        self._pace.judge(now, self.rates.account)
        slowed = self._pace.rate
        rate = self.rates.account if slowed is None else min(slowed, self.rates.account or slowed)
        if rate is not None:
            await self._wait(self._account, rate * _SHARE, entities)
        self._pace.sent(entities)

    async def _wait(self, lane: _Lane, rate: float, entities: int) -> None:
        async with lane.turn:
            now = self._clock.ticks()
            start = max(lane.next, now - round(_BURST_SECONDS * TICKS_PER_SECOND))
            lane.next = start + round(entities * TICKS_PER_SECOND / rate)
            if start > now:
                await self._clock.sleep((start - now) / TICKS_PER_SECOND)

    def _lane(self, partition: Hashable) -> _Lane:
        lane = self._partitions.get(partition)
        if lane is None:
            if len(self._partitions) >= _MOST_LANES:
                now = self._clock.ticks()
                busy = {k: one for k, one in self._partitions.items() if one.next > now or one.turn.locked()}
                self._partitions = busy
            lane = self._partitions[partition] = _Lane()
        return lane

    def _look(self) -> None:
        now = self._clock.ticks()
        due = self._looked is None or now - self._looked >= _LOOK_SECONDS * TICKS_PER_SECOND
        if self._steering is not None and due:
            self._looked = now
            self.rates = self._steering(self._given)
