"""The weekly window of `[follow]`: when it opens and closes, and what is no window."""

from __future__ import annotations

import pytest

from rekey.core.clock import ticks_of
from rekey.project.window import Window


def at(text: str) -> int:
    return ticks_of(f"{text}:00Z")


@pytest.mark.parametrize(
    ("text", "now", "opens", "closes"),
    [
        ("02:00-04:00", "2024-01-01T01:59", "2024-01-01T02:00", "2024-01-01T04:00"),
        ("02:00-04:00", "2024-01-01T03:59", "2024-01-01T02:00", "2024-01-01T04:00"),
        ("02:00-04:00", "2024-01-01T04:00", "2024-01-02T02:00", "2024-01-02T04:00"),
        ("Sat 02:00-04:00", "2024-01-01T03:00", "2024-01-06T02:00", "2024-01-06T04:00"),
        ("Mon 02:00-04:00", "2024-01-01T05:00", "2024-01-08T02:00", "2024-01-08T04:00"),
        ("sun 23:00-01:00", "2024-01-01T00:30", "2023-12-31T23:00", "2024-01-01T01:00"),
        ("Fri-Mon 22:00-23:00", "2024-01-02T00:00", "2024-01-05T22:00", "2024-01-05T23:00"),
        ("Sat,Wed  01:00-05:00", "2024-01-01T00:00", "2024-01-03T01:00", "2024-01-03T05:00"),
        ("Sat 02:00-04:00 Europe/Berlin", "2024-01-01T00:00", "2024-01-06T01:00", "2024-01-06T03:00"),
        ("Sat 02:00-04:00 Europe/Berlin", "2024-07-01T00:00", "2024-07-06T00:00", "2024-07-06T02:00"),
    ],
)
def test_a_window_opens_and_closes_by_the_wall_clock(text: str, now: str, opens: str, closes: str) -> None:
    assert Window.of(text).next(at(now)) == (at(opens), at(closes))


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "25:00-26:00", "Sat 02:00", "Foo 01:00-02:00", "Sat- 01:00-02:00", "2:00-3:00"),
        *("01:00-01:00", "01:00-02:00 Nowhere/X", "01:00-02:00 ../etc", "01:00-02:00 UTC UTC"),
    ],
)
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(is not a window|opens and closes|names a time zone)"):
        Window.of(text)
