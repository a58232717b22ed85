"""Clocks: the service's format, and time that passes only when somebody waits."""

from __future__ import annotations

import asyncio

import pytest

from rekey.core.clock import SystemClock, format_ticks, ticks_of
from tests.fakes.clock import FakeClock


@pytest.mark.parametrize(
    "text",
    [
        "1601-01-01T00:00:00.0000000Z",
        "1970-01-01T00:00:00.0000001Z",
        "2024-02-29T23:59:59.1234567Z",
        "9999-12-31T23:59:59.9999999Z",
    ],
)
def test_a_time_survives_to_its_last_100_ns(text: str) -> None:
    assert format_ticks(ticks_of(text)) == text


def test_missing_digits_are_zeros() -> None:
    assert ticks_of("2024-01-01T00:00:00Z") == ticks_of("2024-01-01T00:00:00.0000000Z")
    assert ticks_of("2024-01-01T00:00:00.5Z") - ticks_of("2024-01-01T00:00:00Z") == 5_000_000


@pytest.mark.parametrize(
    "text", ["2024-01-01T00:00:00", "2024-01-01T00:00:00.12345678Z", "yesterday", "2024-01-01T00:00:00.x1Z"]
)
def test_anything_else_is_no_time(text: str) -> None:
    with pytest.raises(ValueError):
        ticks_of(text)


async def test_the_fake_clock_moves_to_the_earliest_moment_waited_for() -> None:
    clock = FakeClock()
    start = clock.ticks()
    order: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        order.append((name, (clock.ticks() - start) / 10_000_000))

    await asyncio.gather(wait("long", 30), wait("short", 1), wait("middle", 5))
    assert order == [("short", 1.0), ("middle", 5.0), ("long", 30.0)]


async def test_a_cancelled_wait_does_not_hold_the_fake_clock() -> None:
    clock = FakeClock()
    start = clock.ticks()
    waiting = asyncio.ensure_future(clock.sleep(1))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await clock.sleep(60)
    assert clock.ticks() - start == 600_000_000


async def test_the_system_clock_counts_in_100_ns_since_1970() -> None:
    clock = SystemClock()
    before = clock.ticks()
    await clock.sleep(0)
    assert ticks_of("2024-01-01T00:00:00Z") < before <= clock.ticks()
