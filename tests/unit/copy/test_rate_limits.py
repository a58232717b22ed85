"""The throttle keeps a rate on its clock, and lets an unlimited run pass."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.stub import Bucket
from rekey.copy.aimd import Pace
from rekey.copy.throttle import Rates, Throttle, listen, restricted_throttle
from rekey.core.clock import TICKS_PER_SECOND
from rekey.errors import Unavailable
from rekey.project.config import Account, Config, Limits
from rekey.tables.answers import Answer
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Accounts, TwoAccounts
from rekey.tables.credentials import SharedKey
from rekey.tables.requests import Requester, RetryPolicy
from rekey.tables.sent import RequestKind
from rekey.tables.transport import Request
from tests.fakes.clock import FakeClock


async def test_a_thousand_entities_at_a_hundred_a_second_take_ten_seconds_and_no_less() -> None:
    """A little more: what is refused costs more than what is left over."""
    clock = FakeClock()
    throttle = Throttle(100, clock)
    begin = clock.ticks()
    for _ in range(100):
        await throttle.take(10)
    assert 10 < (clock.ticks() - begin) / TICKS_PER_SECOND < 10.4


async def test_unused_allowance_is_not_saved_up() -> None:
    clock = FakeClock()
    throttle = Throttle(100, clock)
    await throttle.take(10)
    clock.advance(3600)
    begin = clock.ticks()
    for _ in range(20):
        await throttle.take(10)
    assert (clock.ticks() - begin) / TICKS_PER_SECOND > 1.5


async def test_a_wall_clock_that_is_set_back_holds_nothing_up() -> None:
    """By NTP, say, or in a machine that was restored: a copy stood still until that clock was there again."""

    class SetBack(FakeClock):
        off_s = 0.0

        def ticks(self) -> int:
            return super().ticks() + round(self.off_s * TICKS_PER_SECOND)

        def monotonic(self) -> float:
            return super().ticks() / TICKS_PER_SECOND

    clock = SetBack()
    throttle = Throttle(100, clock, partition=100)
    begin = clock.monotonic()
    for number in range(20):
        if number == 10:
            clock.off_s = -86_400.0
        await throttle.take(10, "hot")
        throttle.count(0, "hot")
        await throttle.made_up("hot")
    assert clock.monotonic() - begin == pytest.approx(2, abs=0.3)


async def test_without_a_rate_nobody_waits() -> None:
    clock = FakeClock()
    begin = clock.ticks()
    await Throttle(None, clock).take(1_000_000)
    assert clock.ticks() == begin


async def test_a_partition_at_its_limit_holds_up_its_own_batches_alone() -> None:
    clock = FakeClock()
    throttle = Throttle(None, clock, partition=100)
    begin = clock.ticks()
    for number in range(20):
        await throttle.take(10, number)
    assert clock.ticks() == begin
    for _ in range(20):
        await throttle.take(10, "hot")
    assert (clock.ticks() - begin) / TICKS_PER_SECOND == pytest.approx(2, abs=0.3)


async def test_a_rate_that_is_changed_counts_for_the_next_batch() -> None:
    clock = FakeClock()
    said = [Rates(10)]
    throttle = Throttle(10, clock, steering=lambda _: said[0])
    await throttle.take(10)
    await throttle.take(10)
    said[0] = Rates(1000)
    begin = clock.ticks()
    for _ in range(30):
        await throttle.take(10)
    assert (clock.ticks() - begin) / TICKS_PER_SECOND < 3


async def test_while_paused_nothing_is_let_through_until_it_is_resumed() -> None:
    clock = FakeClock()
    looked = 0

    def steering(given: Rates) -> Rates:
        nonlocal looked
        looked += 1
        return Rates(given.account, given.partition, paused=looked < 10)

    begin, throttle = clock.ticks(), Throttle(None, clock, steering=steering)
    await throttle.take(1)
    waited_s = (clock.ticks() - begin) / TICKS_PER_SECOND
    assert waited_s == pytest.approx(4.5, abs=0.6)
    clock.advance(60)
    assert throttle.paused_s() == pytest.approx(waited_s), "what follows is no pause"


async def test_a_stop_request_ends_a_pause() -> None:
    clock = FakeClock()
    stops = iter([False, False, True])
    await Throttle(None, clock, steering=lambda _: Rates(paused=True), stopping=lambda: next(stops)).take(1)


async def test_what_the_service_pushes_back_slows_the_account_down() -> None:
    clock = FakeClock()
    throttle = Throttle(None, clock)

    async def second(status: int) -> float:
        begin = clock.ticks()
        for _ in range(100):
            await throttle.take(10)
            throttle.heard(RequestKind.BATCH, status, 0.01)
            await clock.sleep(0.01)
        return (clock.ticks() - begin) / TICKS_PER_SECOND

    usual = await second(204)
    for _ in range(6):
        slowed = await second(503)
    assert slowed > usual * 1.3
    for _ in range(30):
        again = await second(204)
    assert again == pytest.approx(usual, rel=0.1)


async def test_what_was_read_of_a_partition_is_made_up_for_before_its_next_page() -> None:
    clock = FakeClock()
    throttle = Throttle(None, clock, partition=100)
    clock.advance(10)
    begin = clock.ticks()
    throttle.count(100, "hot")
    await throttle.take(5, "cold")
    await throttle.made_up("cold")
    assert clock.ticks() == begin
    await throttle.made_up("hot")
    assert (clock.ticks() - begin) / TICKS_PER_SECOND == pytest.approx(0.915, abs=0.01)
    unlimited = Throttle(None, clock)
    unlimited.count(100, "hot")
    await unlimited.made_up("hot")
    assert (clock.ticks() - begin) / TICKS_PER_SECOND == pytest.approx(0.915, abs=0.01)


async def test_what_was_taken_of_an_account_and_not_used_is_there_for_the_next() -> None:
    clock = FakeClock()
    throttle = Throttle(100, clock)
    begin = clock.ticks()
    for _ in range(10):
        await throttle.take(100)
        throttle.give_back(90)
    assert (clock.ticks() - begin) / TICKS_PER_SECOND < 1.1


@pytest.mark.parametrize("partition", [None, "hot"])
async def test_simultaneous_refusals_do_not_add_to_the_planned_load(partition: str | None) -> None:
    """A service stands still for a second, then has a crowd before it, and carries little beyond its rate."""
    clock = FakeClock()
    begin = clock.ticks()
    throttle = Throttle(1000, clock) if partition is None else Throttle(None, clock, partition=1000)
    stands_still_until = clock.ticks() / TICKS_PER_SECOND + 2
    bucket = Bucket(1000, lambda: clock.ticks() / TICKS_PER_SECOND)
    refused_at: list[float] = []

    class Service:
        async def send(self, _request: Request) -> Answer:
            await clock.sleep(0.03)
            left = stands_still_until - clock.ticks() / TICKS_PER_SECOND
            if 0 < left < 1:
                await clock.sleep(left)
            status = 204 if bucket.take(10) else 503
            throttle.heard(RequestKind.BATCH, status, 0.03)
            if status == 503:
                refused_at.append(-left)
            return Answer(status, {}, b"")

    def read(answer: Answer, _doing: str) -> int:
        if answer.status == 503:
            raise Unavailable("busy", code="ServerBusy", status=503)
        return answer.status

    requester = Requester(Service(), RetryPolicy(), clock, random.Random(1))  # type: ignore[arg-type]
    slots = asyncio.Semaphore(100)

    async def write() -> None:
        await throttle.take(10, partition, RequestKind.BATCH)
        async with slots:
            with throttle.taken(10, partition, RequestKind.BATCH):
                await requester.call(Request("POST", "$batch", "write"), read)

    await asyncio.gather(*(write() for _ in range(1500)))
    assert 50 < len(refused_at) < 200
    assert max(refused_at) < 2
    assert (clock.ticks() - begin) / TICKS_PER_SECOND < 17, "of at least fifteen"


async def test_who_goes_first_waits_for_none_of_those_who_wait_already() -> None:
    clock = FakeClock()
    throttle = Throttle(100, clock)
    order: list[str] = []

    async def take(name: str, *, first: bool) -> None:
        await throttle.take(100, first=first)
        order.append(name)

    plain = [asyncio.create_task(take(f"plain {n}", first=False)) for n in range(4)]
    await asyncio.sleep(0)
    await asyncio.gather(*plain, take("first", first=True))
    assert order.index("first") <= 2  # the first of all waits for nothing, the second has its place already
    assert [name for name in order if name != "first"] == [f"plain {n}" for n in range(4)]


@pytest.mark.parametrize("every_s", [0, 0.11])
async def test_batches_released_by_the_account_still_wait_for_their_partition(every_s: float) -> None:
    """They would come out of that queue in a crowd, more at a time than the partition takes."""
    clock = FakeClock()
    throttle = Throttle(1000, clock, partition=100)
    came: list[float] = []

    async def hot(number: int) -> None:
        await clock.sleep(every_s * number)
        await throttle.take(10, "hot")
        came.append(clock.ticks() / TICKS_PER_SECOND)

    async def cold(number: int) -> None:
        await throttle.take(10, number)

    await asyncio.gather(*(cold(n) for n in range(150)), *(hot(n) for n in range(10)))
    gaps = [late - early for early, late in pairwise(came)]
    assert len(gaps) == 9
    assert min(gaps[1:]) > 0.08


async def test_pages_that_come_a_little_late_lose_nothing_of_a_rate() -> None:
    """A page is asked for when the one before is made up for, and takes its time to come."""
    clock = FakeClock()
    throttle = Throttle(None, clock, partition=1000)
    begin = clock.ticks()
    for _ in range(20):
        await clock.sleep(0.05)
        throttle.count(1000, "hot")
        await throttle.made_up("hot")
    rate = 20_000 / ((clock.ticks() - begin) / TICKS_PER_SECOND)
    assert 960 < rate < 990


async def test_a_little_less_than_the_rate_of_a_partition_is_used() -> None:
    """What was asked too early is made good by and by, so that a steady copy is not refused."""
    clock = FakeClock()
    throttle = Throttle(None, clock, partition=100)
    begin = clock.ticks()
    for _ in range(1000):
        await throttle.take(10, "hot")
    rate = 10_000 / ((clock.ticks() - begin) / TICKS_PER_SECOND)
    assert 95 < rate < 98.5


def judged(pace: Pace, statuses: list[int], seconds: float = 0.01, configured: float | None = None) -> None:
    """Let one second go by in which these answers came and 1,000 entities were sent."""
    for status in statuses:
        pace.answered(status, seconds)
    pace.sent(1000)
    pace.judge(pace.since + 1.0, configured)


def test_a_tenth_of_refusals_is_what_an_account_at_its_limit_gives_and_slows_nothing() -> None:
    pace = Pace(0.0)
    for _ in range(20):
        judged(pace, [503] + [204] * 9 + [503] + [204] * 9)
    assert pace.rate is None


@pytest.mark.parametrize(("answers", "refused"), [(20, 4), (50, 9), (200, 28)])
def test_an_unlucky_second_with_a_tenth_of_refusals_slows_nothing(answers: int, refused: int) -> None:
    """As many as one second in forty has by chance."""
    pace = Pace(0.0)
    judged(pace, [503] * refused + [204] * (answers - refused))
    assert pace.rate is None


def test_what_was_slowed_grows_slowly_while_a_tenth_is_refused() -> None:
    pace = Pace(0.0)
    for _ in range(2):
        judged(pace, [503] * 10 + [204] * 10, configured=5000)
    slowed = pace.rate
    assert slowed is not None
    for _ in range(5):
        judged(pace, [503] * 2 + [204] * 18, configured=5000)
    assert pace.rate == pytest.approx(slowed * 1.05**5)


@pytest.mark.parametrize("slowed", [False, True])
def test_one_second_of_refusals_alone_slows_nothing(slowed: bool) -> None:
    """Nor does it let a rate grow that was slowed before."""
    pace = Pace(0.0)
    for _ in range(2 * slowed):
        judged(pace, [503] * 20, configured=5000)
    if slowed:
        judged(pace, [204] * 20, configured=5000)
    before = pace.rate
    assert (before is not None) is slowed
    judged(pace, [503] * 20, configured=5000)
    assert pace.rate == before


def test_a_bad_second_in_which_little_was_done_takes_half_of_the_rate_at_most() -> None:
    pace = Pace(0.0)
    for second in (1, 2):
        for _ in range(20):
            pace.answered(503, 0.01)
        pace.sent(100)
        pace.judge(second, 20_000)
    assert pace.rate == 10_000
    for second in range(3, 11):
        for _ in range(20):
            pace.answered(503, 0.01)
        pace.sent(100)
        pace.judge(second, 20_000)
    assert pace.rate == 81.0, "a service that goes on refusing is followed down all the same"


def test_it_grows_by_the_clock_however_seldom_it_is_judged() -> None:
    rates = []
    for seconds in (1.0, 4.0):
        pace = Pace(0.0)
        for _ in range(2):
            judged(pace, [503] * 20, configured=50_000)
        for _ in range(round(8 / seconds)):
            for _ in range(20):
                pace.answered(204, 0.01)
            pace.judge(pace.since + seconds, 50_000)
        rates.append(pace.rate)
    assert rates[0] == pytest.approx(rates[1])


def test_many_refusals_or_timeouts_slow_down_to_nine_tenths_of_what_was_done() -> None:
    for status in (503, 500, 429):
        pace = Pace(0.0)
        for _ in range(2):
            judged(pace, [status] * 5 + [204] * 15)
        assert pace.rate == pytest.approx(900)


def test_answers_that_take_several_times_as_long_as_usual_slow_down_too() -> None:
    pace = Pace(0.0)
    judged(pace, [204] * 20, 0.1)
    assert pace.rate is None
    judged(pace, [204] * 20, 0.9)
    assert pace.rate == pytest.approx(900)


def test_slow_answers_alone_never_take_more_than_half_of_the_speed() -> None:
    """This machine may be what is slow; giving way again and again would end at nothing."""
    pace = Pace(0.0)
    judged(pace, [204] * 20, 0.1)
    for _ in range(30):
        for _ in range(20):
            pace.answered(204, 5.0)
        pace.sent(10)
        pace.judge(pace.since + 1.0, None)
    assert pace.rate == pytest.approx(500)


def test_when_refusals_end_it_grows_until_the_configured_limit_counts_again() -> None:
    pace = Pace(0.0)
    for _ in range(2):
        judged(pace, [503] * 20, configured=1200)
    rates = []
    for _ in range(4):
        judged(pace, [204] * 20, configured=1200)
        rates.append(pace.rate)
    assert rates[0] == pytest.approx(990)
    assert rates[-1] is None


def test_a_few_answers_say_nothing() -> None:
    pace = Pace(0.0)
    for _ in range(2):
        judged(pace, [503] * 3)
    assert pace.rate is None


def config_of(restricted: str, rate: int | str | None) -> Config:
    endpoint = "https://{}.table.core.windows.net"
    tables, other = Account(endpoint.format("tables")), Account(endpoint.format(restricted))
    limits = Limits(entities_per_second=rate)  # type: ignore[arg-type]
    return Config(Path(), tables, other, Path(), Path(), limits=limits)


def test_mapping_rows_are_under_no_rate_unless_rates_follow_the_service() -> None:
    fixed = Throttle(1000, FakeClock())
    for restricted in ("tables", "restricted"):
        mapped = restricted_throttle(fixed, config_of(restricted, 1000))
        assert mapped is not fixed
        assert mapped.poll() == Rates()
    following = Throttle(None, FakeClock(), begins=20_000)
    assert restricted_throttle(following, config_of("tables", "auto")) is following, "one account, one limit"
    mapped = restricted_throttle(following, config_of("restricted", "auto"))
    assert mapped.poll() == Rates(begins=20_000)


def test_a_pause_holds_mapping_rows_too_but_the_operators_rates_are_the_tables() -> None:
    said = Rates(5, 3, paused=True)
    throttle = Throttle(None, FakeClock(), steering=lambda _: said)
    assert restricted_throttle(throttle, config_of("restricted", None)).poll() == Rates(paused=True)


async def test_answers_of_the_restricted_account_count_only_where_rates_follow_the_service() -> None:
    for begins in (None, 20_000):
        throttle = Throttle(None, FakeClock(), begins=begins)
        mapped = Throttle(None, FakeClock(), begins=begins)
        services = [
            AzureTableService.open(f"https://{name}.table.core.windows.net", SharedKey(name, b"k"))
            for name in ("tables", "restricted")
        ]
        listen(Accounts(*services), throttle, mapped)
        heard = services[1]._transport.listener
        assert heard is not None
        for _ in range(50):
            heard(RequestKind.BATCH, 503, 0.0)
        assert services[1]._transport.admit is None, "leases wait for no rate"
        assert services[0]._transport.admit is not None
        if mapped.service is None:
            assert not mapped._pace.is_crowded
        else:
            assert mapped.service.account.window.refused == 50


async def test_each_account_has_the_rates_by_itself_and_a_refusal_slows_down_its_own() -> None:
    clock = FakeClock()
    throttle = Throttle(100, clock, partition=50)
    throttle.begin_target_account()
    there = throttle.of("Users@targets")
    assert throttle.of("Users") is throttle is not there
    assert (there.poll(), there.limits_partitions) == (throttle.poll(), True)
    began = clock.ticks()
    await throttle.take(100)
    await there.take(100)
    assert clock.ticks() == began, "the rows read here take nothing of the rate there"
    tables, targets, restricted = (
        AzureTableService.open(
            f"https://{name}.table.core.windows.net",
            SharedKey(name, b"k"),
            is_target_account=name == "targets",
        )
        for name in ("tables", "targets", "restricted")
    )
    listen(Accounts(TwoAccounts(tables, targets), restricted), throttle, Throttle(None, clock))
    for service, own in ((tables, throttle), (targets, there)):
        assert service._transport.listener == own.heard
