"""Keeping writes under a rate.

Rules kept here:

* The rate is of entities a second over the whole run of one process, mapping rows not counted: it is what
  `[limits] entities_per_second` says of the targets.
* Waiting is asked of the clock, so no test waits on real time.
"""

from __future__ import annotations

from rekey.tables.clock import TICKS_PER_SECOND, Clock, SystemClock

_BURST_SECONDS = 0.1
"""How much unused allowance is kept: enough to ride out scheduling, too little to overrun a second."""


class Throttle:
    """A virtual scheduling clock: each entity takes 1/rate seconds of it."""

    def __init__(self, entities_per_second: int | None, clock: Clock | None = None) -> None:
        """Take the rate, None for no limit."""
        self._rate = entities_per_second
        self._clock = clock or SystemClock()
        self._next = 0

    async def take(self, entities: int) -> None:
        """Wait until `entities` more may be written."""
        if self._rate is None:
            return
        now = self._clock.ticks()
        start = max(self._next, now - round(_BURST_SECONDS * TICKS_PER_SECOND))
        self._next = start + entities * TICKS_PER_SECOND // self._rate
        if start > now:
            await self._clock.sleep((start - now) / TICKS_PER_SECOND)
