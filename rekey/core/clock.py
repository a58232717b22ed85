"""Time in the service's resolution: integer 100 ns ticks since 1970-01-01T00:00:00Z, and the clocks that give
it. Code that waits uses a clock's `sleep`, so that no test waits on real time."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

TICKS_PER_SECOND = 10_000_000
# The last tick of the year 9999, counted from the year 1; inverted ticks count down to it.
MAX_TICKS = 3_155_378_975_999_999_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def monotonic_seconds() -> float:
    """Return seconds of a monotonic clock that also runs while the machine is suspended, where the system has
    one. Measure with it anything that is trusted for a number of seconds, such as a lease."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Clock(Protocol):
    """Tells the time and waits."""

    def ticks(self) -> int:
        """Return the time in 100 ns ticks since the Unix epoch, UTC. It can be set, so it may jump."""

    def monotonic(self) -> float:
        """Return monotonic seconds since an arbitrary moment; for durations."""

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""


class SystemClock:
    """The machine's clock."""

    def ticks(self) -> int:
        return time.time_ns() // 100

    def monotonic(self) -> float:
        return monotonic_seconds()

    async def sleep(self, seconds: float) -> None:
        import asyncio  # here: declarations import this module and need no event loop

        await asyncio.sleep(seconds)


class ServiceClock:
    """The service's time: the Date of its last response plus the seconds elapsed on this machine since. Times
    that are stored and compared are the service's, because this machine's clock may be set at any moment."""

    def __init__(self, now: str, clock: Clock) -> None:
        """Create the clock from `now`, the UTC time that the service has just returned."""
        self._clock = clock
        self._at_start, self._started = ticks_of(now), clock.monotonic()

    def ticks(self) -> int:
        """Return the service's time in 100 ns ticks since the Unix epoch. It lags by up to a second, because
        the service returns whole seconds, plus the time that its response took."""
        return self._at_start + round((self._clock.monotonic() - self._started) * TICKS_PER_SECOND)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


def format_ticks(ticks: int) -> str:
    """Return ticks as the service writes a Timestamp: `2024-01-31T12:00:00.1234567Z`."""
    seconds, fraction = divmod(ticks, TICKS_PER_SECOND)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment.strftime('%Y-%m-%dT%H:%M:%S')}.{fraction:07d}Z"


# The form of ISO 8601 that the service writes; Python reads more.
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
