"""The weekly window in which a migration may cut over by itself: `"Sat 02:00-04:00 Europe/Berlin"`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from rekey.core.clock import TICKS_PER_SECOND

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_WINDOW = re.compile(r"(?:([A-Za-z,-]+) )?(\d\d:\d\d)-(\d\d:\d\d)(?: (\S+))?")


@dataclass(frozen=True, slots=True)
class Window:
    """A weekly window. It opens and closes when the zone's wall clock shows the times."""

    # The days on which it begins, 0 for Monday; `Sat 23:00-01:00` ends on Sunday.
    days: frozenset[int]
    # The times; not the same.
    begins: time
    ends: time
    zone: tzinfo

    @classmethod
    def of(cls, text: str) -> Window:
        """Parse `02:00-04:00` (every day), `Sat 02:00-04:00`, `Mon-Fri 22:00-06:00` or `Sat,Sun 01:00-05:00
        Europe/Berlin`; UTC without a zone. Raises ValueError for any other text."""
        match = _WINDOW.fullmatch(" ".join(text.split()))
        try:
            days, *times, zone = match.groups() if match else ()
            begins, ends = map(time.fromisoformat, times)
            on = _days(days)
        except ValueError:
            raise ValueError("is not a window") from None
        if begins == ends:
            raise ValueError("opens and closes at the same time")
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # few configurations have a window

        try:
            return cls(on, begins, ends, UTC if zone in (None, "UTC") else ZoneInfo(zone))
        except (OSError, ValueError, ZoneInfoNotFoundError):
            raise ValueError("names a time zone that this machine does not know") from None

    def next(self, now: int) -> tuple[int, int]:
        """Return when the window that is open at `now`, or the next one, opens and closes; all in ticks."""
        today = datetime.fromtimestamp(now / TICKS_PER_SECOND, self.zone).date()
        for ahead in range(-1, 9):
            day = today + timedelta(days=ahead)
            last = day + timedelta(days=self.ends < self.begins)
            opens, closes = self._ticks(day, self.begins), self._ticks(last, self.ends)
            if day.weekday() in self.days and closes > now:
                return opens, closes
        raise AssertionError("a week has each of its days")

    def _ticks(self, day: date, at: time) -> int:
        return round(datetime.combine(day, at, self.zone).timestamp()) * TICKS_PER_SECOND


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split(","):
        ends = part.partition("-")[0], part.rpartition("-")[2]
        first, last = (DAYS.index(name.capitalize()) for name in ends)
        days |= {(first + number) % 7 for number in range((last - first) % 7 + 1)}
    return frozenset(days)
