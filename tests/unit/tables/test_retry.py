"""How often and how long: waits, limits, Retry-After."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekey.tables.answers import Answer
from rekey.tables.requests import Requester, RetryPolicy, retry_after_of
from rekey.tables.sent import RequestKind, Sent, apart
from rekey.tables.transport import NotSent, Request
from tests.fakes.clock import FakeClock

NOW = datetime(2024, 1, 31, 12, 0, 0, tzinfo=UTC)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_wait_doubles_within_20_percent_up_to_the_maximum(failures: int, draw: float) -> None:
    policy = RetryPolicy(min_wait=0.5, max_wait=8.0)
    middle = min(8.0, 0.5 * 2.0 ** min(failures - 1, 10))
    assert middle * 0.8 <= policy.wait(failures, None, draw) <= middle * 1.2


class Unreachable:
    """Stands for the transport of an endpoint that answers a number of times, and then never again."""

    def __init__(self, answers: int = 0) -> None:
        self.answers, self.attempts = answers, 0

    async def send(self, _request: Request) -> Answer:
        self.attempts += 1
        if self.attempts > self.answers:
            raise NotSent("ConnectionRefused")
        return Answer(200, {}, b"")


async def attempt(transport: Unreachable, policy: RetryPolicy, seed: int = 1) -> float:
    """Send one request until it is given up; return how many seconds that took."""
    clock = FakeClock()
    begun = clock.monotonic()
    requester = Requester(transport, policy, clock, random.Random(seed))  # type: ignore[arg-type]
    for _ in range(transport.answers + 1):
        await requester.call(Request("GET", "Users()", "read"), lambda answer, _: answer)
    return clock.monotonic() - begun


async def test_clients_that_failed_together_do_not_come_back_together() -> None:
    waits = {await attempt(Unreachable(), RetryPolicy(connect_attempts=2), seed) for seed in range(20)}
    assert len(waits) == 20


def test_a_longer_retry_after_wins_within_reason() -> None:
    policy = RetryPolicy(min_wait=1.0, max_wait=8.0, max_retry_after=60.0)
    assert policy.wait(1, 30.0, 0.5) == 30.0
    assert policy.wait(4, 2.0, 0.5) == 8.0
    assert policy.wait(1, 86_400.0, 0.5) == 60.0


async def test_attempts_are_counted_and_fewer_for_an_endpoint_that_never_answered() -> None:
    policy = RetryPolicy(attempts=9, connect_attempts=2)
    await attempt(never := Unreachable(), policy)
    assert never.attempts == 2
    await attempt(before := Unreachable(answers=1), policy)
    assert before.attempts == 1 + 9


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "Wed, 31 Jan 2024 12:00:30 GMT"}, 30.0),
        ({"Retry-After": "Wed, 31 Jan 2024 11:00:00 GMT"}, 0.0),
        ({"Retry-After": "Wed, 31 Jan 2024 12:00:30 -0000"}, 30.0),
        ({"x-ms-retry-after-ms": "1500"}, 1.5),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "²"}, None),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_of(headers, NOW) == seconds


async def test_attempts_after_the_first_are_counted_apart() -> None:
    """They were sent, and no estimate knows of them."""
    sent = Sent()

    class Counting(Unreachable):
        async def send(self, request: Request) -> Answer:
            sent.add(RequestKind.READ)
            return await super().send(request)

    await attempt(Counting(answers=2), RetryPolicy(attempts=4))
    assert sent.counts == {"read": 3, "retries.read": 3}
    assert apart(sent.counts) == ({"read": 3}, {"retries": 3})
