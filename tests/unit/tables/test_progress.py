"""What is told while a command works: bars on a terminal, lines elsewhere, waits, a service that is silent;
and the estimate of the end."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Sequence
from typing import Any

import pytest

from rekey.cli.progress import LINE_EVERY_S, Bars, Lines
from rekey.core.eta import Lane, estimate
from rekey.core.progress import Progress, Work, ticking
from rekey.errors import EndpointDown
from rekey.tables.answers import Answer
from rekey.tables.base import Silence
from rekey.tables.requests import Requester, RetryPolicy
from rekey.tables.transport import NotSent, Request, Timeouts
from tests.asserts.every import every
from tests.fakes.clock import FakeClock


class Told:
    """What was noted."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.events: list[tuple[str, dict[str, object]]] = []

    def __call__(self, text: str, event: str = "note", **figures: object) -> None:
        self.texts.append(text)
        self.events.append((event, figures))


# --- the estimate -------------------------------------------------------------------------------------------


def steady(rate: int, seconds: int) -> list[tuple[float, int]]:
    return [(float(second), rate * second) for second in range(seconds + 1)]


def test_at_a_steady_rate_the_rest_takes_as_long_as_it_has_rows() -> None:
    eta = estimate(steady(100, 20), 10_000)
    assert eta.seconds == pytest.approx(80)
    assert eta.least_s < 80 < eta.most_s


def test_a_partition_at_its_rate_ends_last_however_fast_the_others_are() -> None:
    eta = estimate(steady(1000, 10), 20_000, [Lane(9_000, 100.0), Lane(10, 100.0)])
    assert eta.seconds == pytest.approx(90)


def test_what_came_long_before_says_little_about_the_end() -> None:
    samples = [*steady(1000, 100), *((100.0 + second, 100_000 + 10 * second) for second in range(1, 60))]
    eta = estimate(samples, 101_000)
    assert eta.seconds == pytest.approx(41, rel=0.1)


def test_the_spread_is_as_wide_as_the_rates_differ() -> None:
    even, uneven = steady(100, 20), [(float(at), 100 * at + 400 * (at // 8)) for at in range(21)]
    one, other = estimate(even, 10_000), estimate(uneven, 10_000)
    assert one is not None and other is not None
    assert one.most_s / one.seconds < other.most_s / other.seconds


@pytest.mark.parametrize(("samples", "total"), [([(0.0, 0)], 10), (steady(0, 5), 10), (steady(5, 5), None)])
def test_no_estimate_without_rate_or_total(samples: list[tuple[float, int]], total: int | None) -> None:
    assert estimate(samples, total) is None


def test_a_day_of_samples_is_kept_in_a_few_hundred() -> None:
    clock = FakeClock()
    work = Work("backfill", 1_000_000, clock)
    for _ in range(20_000):
        clock.advance(4.0)
        work.advance(10)
    assert len(work.samples) < 500
    assert work.rate == pytest.approx(2.5)


# --- lines and bars ----------------------------------------------------------------------------------------


def test_without_a_terminal_a_pass_is_told_every_so_often() -> None:
    told, clock = Told(), FakeClock()
    lines = Lines(told, clock)
    with lines.task("backfill", total=1000) as advance:
        for _ in range(40):
            clock.advance(1.0)
            advance(10)
            lines.tick()
    assert len(told.texts) == 40 // LINE_EVERY_S
    assert told.texts[0].startswith("backfill: 150 of about 1,000 rows (15%), 10 rows/s, about 85 s left")
    event, figures = told.events[0]
    assert (event, figures["rows"], figures["rows_per_second"], figures["seconds_left"]) == (
        "pass",
        150,
        10,
        85,
    )


def test_a_pass_that_stands_still_is_told_as_well() -> None:
    told, clock = Told(), FakeClock()
    lines = Lines(told, clock)
    with lines.task("backfill", total=1000):
        clock.advance(LINE_EVERY_S)
        lines.tick()
    assert told.texts == ["backfill: 0 of about 1,000 rows (0%), 0 rows/s"]


def test_progress_that_is_not_wanted_leaves_the_waits() -> None:
    told, clock = Told(), FakeClock()
    lines = Lines(told, clock, of_passes=False)
    with lines.task("backfill", total=1000), lines.waiting("clients", 10):
        clock.advance(LINE_EVERY_S)
        lines.tick()
    assert len(told.texts) == 1 and "clients" in told.texts[0]


def test_a_bar_shows_the_end_that_is_estimated_with_partitions_in_mind() -> None:
    screen, clock = io.StringIO(), FakeClock()
    bars = Bars(screen, clock)
    with bars.task("backfill", total=20_000, lanes=lambda: [Lane(9_000, 100.0)]) as advance:
        for _ in range(10):
            clock.advance(1.0)
            advance(1000)
        bars.tick()
    shown = screen.getvalue()
    assert "10.0k/20.0k rows" in shown
    assert "1,000 rows/s, about 90 s left" in shown
    assert "?" not in shown


def test_a_pass_that_goes_on_begins_where_it_stopped_and_its_rate_is_of_this_run() -> None:
    clock = FakeClock()
    work = Progress(clock)
    with work.task("backfill", total=1000, done=600) as advance:
        clock.advance(10)
        advance(20)
        assert (work.work.rows, work.work.rate) == (620, 2.0)


async def test_ticks_come_while_work_goes_on_and_end_with_it() -> None:
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1

    assert await ticking(asyncio.sleep(0.1, "done"), tick, 0.01) == "done"
    assert ticks > 2
    assert len(asyncio.all_tasks()) == 1


# --- waits -------------------------------------------------------------------------------------------------


def test_a_wait_of_more_than_two_seconds_says_what_for_since_when_and_until_when() -> None:
    told, clock = Told(), FakeClock("2024-01-01T12:00:00Z")
    lines = Lines(told, clock)
    with lines.waiting("clients", 120) as wait:
        clock.advance(1.9)
        wait.update("web (old view)")
        assert told.texts == []
        clock.advance(0.1)
        wait.update("web (old view)")
        wait.update("web (old view)")
        assert [one.what for one in lines.waits] == ["web (old view)"]
    assert told.texts == ["waiting for web (old view), since 12:00:00Z, until 12:02:00Z at most"]
    assert told.events[0][0] == "wait"
    assert lines.waits == []


def test_a_wait_is_told_by_a_tick_where_nothing_else_looks() -> None:
    told, clock = Told(), FakeClock("2024-01-01T12:00:00Z")
    lines = Lines(told, clock)
    with lines.waiting("something"):
        clock.advance(2)
        lines.tick()
    assert told.texts == ["waiting for something, since 12:00:00Z"]


def test_a_service_that_is_silent_is_told_once_and_so_is_its_answer() -> None:
    told, clock = Told(), FakeClock("2024-01-01T12:00:02Z")
    silent: Sequence[Silence] = [Silence("127.0.0.1:10002", 2.0, 63.0)]
    lines = Lines(told, clock, lambda: silent)
    lines.tick()
    clock.advance(10)
    silent = [Silence("127.0.0.1:10002", 12.0, 53.0)]
    lines.tick()
    assert len(lines.waits) == 1
    silent = []
    lines.tick()
    assert told.texts == [
        "waiting for 127.0.0.1:10002, where nothing answers, since 12:00:00Z, until 12:01:05Z at most",
        "127.0.0.1:10002 answers again, after 12 s",
    ]
    assert lines.waits == []


class Network:
    """A transport whose endpoint answers, refuses connections, or takes requests and says nothing."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.timeouts = Timeouts()
        self.any_sent = False
        self.does = "answers"
        self.seen: list[Any] = []

    async def send(self, _request: Request) -> Answer:
        for _ in range(40 if self.does == "hangs" else 1):
            self.seen.append(self.requester.silence())
            if self.does == "hangs":
                self.any_sent = True
                await self.clock.sleep(1.0)
        self.any_sent = False
        if self.does == "answers":
            return Answer(200, {}, b"")
        raise NotSent("ClientConnectorError")


def requester_on(network: Network) -> Requester:
    made = Requester(network, RetryPolicy(), network.clock, random.Random(1))  # type: ignore[arg-type]
    network.requester = made  # type: ignore[attr-defined]
    return made


async def test_a_server_that_is_gone_is_silent_after_two_seconds_and_says_until_when_it_is_tried() -> None:
    network = Network(FakeClock())
    requester, request = requester_on(network), Request("GET", "Users()", "scan of Users")
    await requester.call(request, lambda _answer, _doing: True)
    assert requester.silence() is None
    network.does, network.seen, began = "refuses", [], network.clock.monotonic()
    outcome = await requester.call(request, lambda _answer, _doing: True)
    assert isinstance(outcome.error, EndpointDown)
    took_s = network.clock.monotonic() - began
    assert took_s > 50, "it waits for a server that has answered before"
    assert network.seen[:4] == [None] * 4
    silences = [one for one in network.seen if one is not None]
    assert silences[0][0] >= 2
    assert every(abs(silent_s + tried_s - took_s) < 0.25 * took_s for silent_s, tried_s in silences)
    assert requester.silence() is not None, "that it is tried no more is no answer"
    network.does = "answers"
    await requester.call(request, lambda _answer, _doing: True)
    assert requester.silence() is None


async def test_an_answer_that_is_only_slow_is_no_silence_for_ten_seconds() -> None:
    network = Network(FakeClock())
    requester, request = requester_on(network), Request("GET", "Users()", "scan of Users")
    await requester.call(request, lambda _answer, _doing: True)
    network.does, network.seen = "hangs", []
    hanging = asyncio.ensure_future(requester.call(request, lambda _answer, _doing: True))
    while len(network.seen) < 15:
        await asyncio.sleep(0)
    hanging.cancel()
    assert network.seen[:10] == [None] * 10
    assert network.seen[11] is not None
