"""The throttle keeps a rate on its clock, and lets an unlimited run pass."""

from __future__ import annotations

import pytest

from rekey.backfill.throttle import Throttle
from rekey.tables.clock import TICKS_PER_SECOND, FakeClock


async def test_a_thousand_entities_at_a_hundred_a_second_take_ten_seconds() -> None:
    clock = FakeClock()
    throttle = Throttle(100, clock)
    begin = clock.ticks()
    for _ in range(100):
        await throttle.take(10)
    assert (clock.ticks() - begin) / TICKS_PER_SECOND == pytest.approx(10, abs=0.3)


async def test_unused_allowance_is_not_saved_up() -> None:
    clock = FakeClock()
    throttle = Throttle(100, clock)
    await throttle.take(10)
    clock.advance(3600)
    begin = clock.ticks()
    for _ in range(20):
        await throttle.take(10)
    assert (clock.ticks() - begin) / TICKS_PER_SECOND > 1.5


async def test_without_a_rate_nobody_waits() -> None:
    clock = FakeClock()
    begin = clock.ticks()
    await Throttle(None, clock).take(1_000_000)
    assert clock.ticks() == begin
