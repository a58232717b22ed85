"""How often and how long: waits, limits, Retry-After."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekey.tables.retry import Backoff, RetryPolicy, retry_after_of

NOW = datetime(2024, 1, 31, 12, 0, 0, tzinfo=UTC)


def jitter(seed: int) -> random.Random:
    return random.Random(seed)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_within_20_percent_of_a_doubling_that_ends_at_the_maximum(
    failures: int, draw: float
) -> None:
    policy = RetryPolicy(min_wait=0.5, max_wait=8.0)
    middle = min(8.0, 0.5 * 2.0 ** min(failures - 1, 10))
    assert middle * 0.8 <= policy.wait(failures, None, draw) <= middle * 1.2


def test_clients_that_failed_together_do_not_come_back_together() -> None:
    waits = {Backoff(RetryPolicy(), jitter(seed)).next_wait() for seed in range(20)}
    assert len(waits) == 20


def test_a_longer_retry_after_wins_within_reason() -> None:
    policy = RetryPolicy(min_wait=1.0, max_wait=8.0, max_retry_after=60.0)
    assert policy.wait(1, 30.0, 0.5) == 30.0
    assert policy.wait(4, 2.0, 0.5) == 8.0
    assert policy.wait(1, 86_400.0, 0.5) == 60.0


def test_attempts_are_counted_and_fewer_for_an_endpoint_that_never_answered() -> None:
    backoff = Backoff(RetryPolicy(attempts=3), jitter(1))
    assert [backoff.next_wait() is None for _ in range(3)] == [False, False, True]
    backoff = Backoff(RetryPolicy(attempts=9, connect_attempts=2), jitter(1))
    assert [backoff.next_wait(only_connect=True) is None for _ in range(2)] == [False, True]


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
