"""A clock that a test moves, or that jumps by itself: what tests give to code that waits.

While every task of a test waits, the clock jumps to the earliest moment that one of them waits for.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rekey.core.clock import TICKS_PER_SECOND, ticks_of

_TURNS = 8
"""Turns of the event loop in which no task asked for an earlier moment, before the clock jumps."""


_held: Final = [0]


@contextmanager
def time_stands_still() -> Iterator[None]:
    """Hold all clocks: what is waited for takes its own time, as a process does, or they would run on."""
    _held[0] += 1
    try:
        yield
    finally:
        _held[0] -= 1


class FakeClock:
    """A clock that stands still until a task waits or a test moves it.

    Args:
        start: the first moment, `2024-01-01T00:00:00Z` by default.
    """

    def __init__(self, start: str = "2024-01-01T00:00:00Z") -> None:
        self._now = ticks_of(start)
        self._waiting: list[tuple[int, int]] = []
        self._serial = 0

    def ticks(self) -> int:
        """Return the clock's time in 100 ns ticks since the Unix epoch."""
        return self._now

    def monotonic(self) -> float:
        """Return the clock's time in seconds: it is never set back."""
        return self.ticks() / TICKS_PER_SECOND

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += round(seconds * TICKS_PER_SECOND)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock stands `seconds` later; moves it when nothing earlier is waited for."""
        self._serial += 1
        entry = (self._now + round(seconds * TICKS_PER_SECOND), self._serial)
        heapq.heappush(self._waiting, entry)
        try:
            quiet = 0
            await asyncio.sleep(0)
            while self._now < entry[0]:
                await asyncio.sleep(0.001 if _held[0] else 0)
                quiet = quiet + 1 if self._waiting[0] == entry and not _held[0] else 0
                # Tasks that wait for nothing but their turn go first: they may ask for an earlier moment.
                if quiet > _TURNS:
                    self._now = max(self._now, entry[0])
        finally:
            self._waiting.remove(entry)
            heapq.heapify(self._waiting)


class Skewed:
    """The clock of another service, which is some seconds off another clock."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        """Take the clock that it goes by, and how far ahead of it this one is."""
        self._clock, self._off = clock, round(seconds * TICKS_PER_SECOND)

    def ticks(self) -> int:
        """Return this clock's time in ticks."""
        return self._clock.ticks() + self._off

    def monotonic(self) -> float:
        """Return this clock's time in seconds."""
        return self.ticks() / TICKS_PER_SECOND

    async def sleep(self, seconds: float) -> None:
        """Wait, by either clock."""
        await self._clock.sleep(seconds)
