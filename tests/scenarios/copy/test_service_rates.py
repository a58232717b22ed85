"""Rates that follow the service: writers under a throttle, against limits that they are not told.

Throttle, requests and their repetitions are the program's own; the service is the stub's allowance, and time
is simulated, so the machine does not count. `make bench` (part `rates`) shows the same with whole copies.

Soak: limits at and beyond the target; a comparison of twice the rows.
Reason, and what `make test` covers: seconds; a limit below the target, and one that moves beyond it.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from benchmarks import freezes, virtual
from benchmarks.stub import Bucket, rates
from rekey.copy.throttle import Rates, Throttle
from rekey.errors import Unavailable
from rekey.tables.answers import Answer
from rekey.tables.requests import Requester, RetryPolicy
from rekey.tables.sent import RequestKind
from rekey.tables.transport import NoAnswer, Request
from tests.soaking import others_in_soak

LATENCY = 0.03
ROWS, PAGE = 100, 1_000


def _read(answer: Answer, _doing: str) -> int:
    if answer.status != 202:
        raise Unavailable("busy", code="ServerBusy", status=answer.status)
    return answer.status


@dataclass
class Service:
    """A service with limits of its account and of each partition, and what it carried and refused.

    `account`: as the stub takes it, "20000,30:60000". `kinds`: limits of a kind of request alone.
    """

    account: str
    partitions: dict[int, int] = field(default_factory=dict)
    kinds: dict[RequestKind, int] = field(default_factory=dict)
    busy: int = 503

    def __post_init__(self) -> None:
        self.clock = virtual.VirtualClock()
        self.steps = rates(self.account)
        self.carried: Counter[int] = Counter()
        self.by: Counter[object] = Counter()
        self.refused: Counter[int] = Counter()
        self.buckets: dict[object, Bucket] = {}

    def _bucket(self, name: object, rate: float) -> Bucket:
        if name not in self.buckets:
            self.buckets[name] = Bucket(rate, self.clock.monotonic)
        return self.buckets[name]

    def ask(self, kind: RequestKind, partition: int, entities: int) -> bool:
        """Tell whether a request is let through."""
        now = self.clock.monotonic()
        rate = [rate for begins, rate in self.steps if begins <= now][-1]
        asked = [self._bucket("account", rate)]
        asked[0].rate = rate
        if partition in self.partitions:
            asked.append(self._bucket(partition, self.partitions[partition]))
        if kind in self.kinds:
            asked.append(self._bucket(kind, self.kinds[kind]))
        if not all(one.gives for one in asked):
            self.refused[int(now)] += 1
            return False
        for one in asked:
            one.take(entities)
        self.carried[int(now)] += entities
        self.by[kind, int(now)] += entities
        self.by[partition, int(now)] += entities
        return True

    def share(self, since: int, until: int, rate: float) -> float:
        """Return what was carried in some seconds, over what a rate allows."""
        return sum(self.carried[second] for second in range(since, until)) / rate / (until - since)

    def carried_by(self, name: object, since: int, until: int) -> float:
        """Return the entities a second of a kind or a partition."""
        return sum(self.by[name, second] for second in range(since, until)) / (until - since)


@dataclass
class Process:
    """One process that writes batches and reads pages, each as fast as its throttle lets it."""

    service: Service
    throttle: Throttle
    partitions: Callable[[random.Random], int] = lambda source: source.randrange(200)
    pages: bool = True
    seed: int = 1

    async def work(self, seconds: float) -> None:
        """Work for so long."""
        clock, source = self.service.clock, random.Random(self.seed)
        slots = asyncio.Semaphore(64)

        async def ask(kind: RequestKind, entities: int) -> None:
            partition = self.partitions(source)
            booked = partition if kind is RequestKind.BATCH else None
            await self.throttle.take(entities, booked, kind)

            class Line:
                async def send(_self, _request: Request) -> Answer:
                    began = clock.monotonic()
                    await clock.sleep(LATENCY)
                    status = 202 if self.service.ask(kind, partition, entities) else self.service.busy
                    self.throttle.heard(kind, status, clock.monotonic() - began)
                    if status == 0:
                        raise NoAnswer("TimeoutError")
                    return Answer(status, {}, b"")

            requester = Requester(Line(), RetryPolicy(), clock, source)  # type: ignore[arg-type]
            async with slots:
                with self.throttle.taken(entities, partition, kind):
                    await requester.call(Request("POST", "$batch", "ask"), _read)

        async def go_on(kind: RequestKind, entities: int) -> None:
            while True:
                await ask(kind, entities)

        tasks = [asyncio.create_task(go_on(RequestKind.BATCH, ROWS)) for _ in range(80)]
        tasks += [asyncio.create_task(go_on(RequestKind.SCAN, PAGE)) for _ in range(8 * self.pages)]
        await clock.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def following(service: Service, **more: object) -> Throttle:
    given = {"begins": 20_000, **more}
    return Throttle(clock=service.clock, **given)  # type: ignore[arg-type]


def let_work(seconds: float, *processes: Process) -> None:
    """Let processes work at the same time."""

    async def work() -> None:
        await asyncio.gather(*(one.work(seconds) for one in processes))

    virtual.run(work())


def of(service: Service, **more: object) -> Process:
    return Process(service, following(service), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limit", "found"),
    others_in_soak([(10_000, 10), (20_000, 10), (60_000, 50)], kept=[(10_000, 10)]),
)
def test_a_limit_is_found_and_kept_to_whether_below_or_beyond_the_target(limit: int, found: int) -> None:
    service = Service(str(limit))
    let_work(found + 20, of(service))
    assert service.share(found, found + 20, limit) > 0.9
    refused = sum(service.refused[second] for second in range(found, found + 20))
    assert refused < 0.03 * 20 * limit / 150, "hardly any request is refused"
    assert min(service.carried[second] for second in range(found, found + 20)) > 0.4 * limit


def test_limits_that_change_under_way_are_followed_up_and_down() -> None:
    service = Service("20000,15:40000,60:10000")
    let_work(85, of(service))
    assert service.share(8, 15, 20_000) > 0.85
    assert service.share(50, 60, 40_000) > 0.85
    assert service.share(70, 85, 10_000) > 0.85
    assert sum(service.refused[second] for second in range(66, 85)) < 60


@pytest.mark.parametrize("status", [503, 500, 429, 0])
def test_every_way_to_push_back_is_heard(status: int) -> None:
    """0: no answer in time. Such a request may have taken effect, and is not sent again at once."""
    service = Service("10000", busy=status)
    process = of(service, pages=False)
    let_work(20, process)
    rated = process.throttle.service
    assert rated.account.ceiling is not None
    assert rated.account.rate < 13_000


@pytest.mark.parametrize("limit", [1_000, 4_000])
def test_a_partition_at_its_limit_holds_up_itself_alone_below_and_beyond_the_target(limit: int) -> None:
    service = Service("100000", partitions={7: limit})
    hot = Process(service, following(service, entities_per_second=12_000), lambda _: 7, pages=False)
    cold = Process(service, hot.throttle, lambda source: source.randrange(1_000, 1_200), pages=False)
    let_work(45, hot, cold)
    assert 0.85 * limit < service.carried_by(7, 30, 45) <= 1.01 * limit
    assert service.share(30, 45, 12_000) > 0.9


def test_a_kind_at_its_limit_leaves_the_other_kinds_alone() -> None:
    service = Service("1000000", kinds={RequestKind.BATCH: 3_000})
    let_work(40, of(service))
    assert service.carried_by(RequestKind.BATCH, 15, 40) > 0.85 * 3_000
    assert service.carried_by(RequestKind.SCAN, 30, 40) > 12_000


def test_two_processes_find_one_limit_together() -> None:
    service = Service("15000")
    both = [Process(service, following(service, begins=10_000), seed=seed) for seed in (1, 2)]
    let_work(60, *both)
    assert service.share(30, 60, 15_000) > 0.8
    each = [one.throttle.service.account.rate for one in both if one.throttle.service]
    assert max(each) < 4 * min(each)


def test_refusals_that_come_whatever_is_asked_do_not_stop_the_work() -> None:
    service = Service("20000")
    weather, asked = random.Random(5), service.ask

    def ask(kind: RequestKind, partition: int, entities: int) -> bool:
        return weather.random() >= 0.1 and asked(kind, partition, entities)

    service.ask = ask  # type: ignore[method-assign]
    let_work(50, of(service))
    assert service.share(25, 50, 20_000) > 0.7


def test_the_operators_rate_is_the_most_and_a_pause_holds() -> None:
    service = Service("60000")

    def steering(given: Rates) -> Rates:
        now = service.clock.monotonic()
        return Rates(5_000 if now < 20 else None, given.partition, 30 < now < 35, given.begins)

    process = Process(service, following(service, steering=steering))
    let_work(40, process)
    assert service.share(5, 20, 5_000) <= 1.0
    assert service.share(32, 35, 5_000) == 0
    assert service.share(23, 30, 20_000) > 0.9


def test_single_rows_are_limited_apart() -> None:
    service = Service("1000000", kinds={RequestKind.READ: 500})
    throttle = following(service, entities_per_second=10_000)

    async def read() -> None:
        while True:
            await throttle.admit(RequestKind.READ)
            await service.clock.sleep(LATENCY)
            done = service.ask(RequestKind.READ, 0, 1)
            throttle.heard(RequestKind.READ, 200 if done else 503, LATENCY)

    async def work() -> None:
        readers = [asyncio.create_task(read()) for _ in range(30)]
        await Process(service, throttle).work(40)
        for one in readers:
            one.cancel()

    virtual.run(work())
    assert 400 < service.carried_by(RequestKind.READ, 20, 40) < 520
    assert service.share(20, 40, 10_000) > 0.9


def test_without_following_single_rows_wait_for_nothing() -> None:
    async def read() -> float:
        throttle = Throttle(1, virtual.VirtualClock())
        for _ in range(100):
            await throttle.admit(RequestKind.READ)
        return asyncio.get_running_loop().time()

    assert virtual.run(read()) == 0


def test_the_rates_are_told_with_those_of_kinds() -> None:
    service = Service("1000000", kinds={RequestKind.BATCH: 3_000})
    process = of(service)
    let_work(10, process)
    assert re.fullmatch(r"[\d,]+ entities/s, [\d,]+ entities/s by batch", process.throttle.describe())


@pytest.mark.parametrize("rows", others_in_soak([30_000, 60_000], kept=[30_000]))
def test_a_comparison_reads_as_fast_as_the_rates_allow_and_asks_for_no_more(rows: int) -> None:
    """A reader has the rate of a partition: idle ones divide its range before they wait for long."""
    found = freezes.measure(rows, lambda _said: None)
    assert found["met"], found
    assert found["refused"] == 0
