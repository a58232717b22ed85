"""The clocks that work waits on: the machine's own and the service's, in the service's resolution.

Rules kept here:

* Time is an integer count of 100 ns ticks since 1970-01-01T00:00:00Z, the service's own resolution.
* Code that waits asks its clock to, so that no test waits on real time.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

TICKS_PER_SECOND = 10_000_000
# The last tick of the year 9999, counted from the year 1: inverted ticks are what is left until then.
MAX_TICKS = 3_155_378_975_999_999_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rising_seconds() -> float:
    """Return seconds of a clock that only rises and, where the system has one that does, also runs while the
    machine is suspended.

    Anything that is trusted for a number of seconds is measured by it.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Clock(Protocol):
    """Tells the time and waits."""

    def ticks(self) -> int:
        """Return the time in 100 ns ticks since the Unix epoch, UTC. It may jump: it can be set."""

    def rising(self) -> float:
        """Return seconds since an arbitrary moment; they only rise. Durations are measured by them."""

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""


class SystemClock:
    """The machine's clock."""

    def ticks(self) -> int:
        """Return the machine's time in 100 ns ticks since the Unix epoch."""
        return time.time_ns() // 100

    def rising(self) -> float:
        """Return `rising_seconds`."""
        return rising_seconds()

    async def sleep(self, seconds: float) -> None:
        """Wait on real time."""
        import asyncio  # here, because declarations import this module, and need no event loop

        await asyncio.sleep(seconds)


class ServiceClock:
    """The service's time: its answer when it was last asked, plus the rising seconds of this machine since.

    Times that are stored and compared are the service's: this machine's clock may be set at any moment.
    """

    def __init__(self, told: str, clock: Clock) -> None:
        """Create the clock. `told` is what the service has just answered; `clock` measures from then on."""
        self._told, self._clock, self._since = ticks_of(told), clock, clock.rising()

    def ticks(self) -> int:
        """Return the service's time in 100 ns ticks since the Unix epoch. It is late by up to a second (the
        service told whole seconds) and the time that its answer took to arrive."""
        return self._told + round((self._clock.rising() - self._since) * TICKS_PER_SECOND)

    def rising(self) -> float:
        """Return seconds that only rise."""
        return self._clock.rising()

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        await self._clock.sleep(seconds)


def format_ticks(ticks: int) -> str:
    """Return ticks as the service writes a Timestamp: `2024-01-31T12:00:00.1234567Z`."""
    seconds, fraction = divmod(ticks, TICKS_PER_SECOND)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment.strftime('%Y-%m-%dT%H:%M:%S')}.{fraction:07d}Z"


# Of all forms of ISO 8601 that Python reads, the one that the service writes.
_HEAD = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", re.ASCII)


def ticks_of(text: str) -> int:
    """Return the ticks of a UTC time as the service writes it. Raises ValueError for anything else."""
    if not text.endswith("Z"):
        raise ValueError("a UTC time ends with Z")
    head, _, fraction = text[:-1].partition(".")
    if len(fraction) > 7 or (fraction and not (fraction.isascii() and fraction.isdigit())):
        raise ValueError("a UTC time has at most 7 fractional digits")
    if not _HEAD.fullmatch(head):
        raise ValueError("a UTC time has the form 2024-01-31T12:00:00")
    since = datetime.fromisoformat(head).replace(tzinfo=UTC) - _EPOCH
    return (since.days * 86_400 + since.seconds) * TICKS_PER_SECOND + int(fraction.ljust(7, "0"))


def earlier(text: str, seconds: float) -> str:
    """Return the time `seconds` before a UTC time as the service writes it."""
    return format_ticks(ticks_of(text) - round(seconds * TICKS_PER_SECOND))


def later(text: str, seconds: float) -> str:
    """Return the time `seconds` after a UTC time as the service writes it."""
    return earlier(text, -seconds)
