"""Whoever works for a limited time sends no attempt after it, also not of a write that was begun before."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rekey.errors import Unavailable
from rekey.tables.allowance import while_allowed
from rekey.tables.clock import FakeClock
from rekey.tables.requests import Requester
from rekey.tables.retry import RetryPolicy
from rekey.tables.transport import NoAnswer, Request


class Over(Exception):
    """The time is over."""


class Mute:
    """A transport whose requests are never answered."""

    def __init__(self) -> None:
        self.sent = 0

    async def send(self, _request: Request) -> Any:
        self.sent += 1
        raise NoAnswer("ServerDisconnectedError")


def requester(transport: Any) -> Requester:
    return Requester(transport, RetryPolicy(attempts=5), FakeClock(), random.Random(1))


async def test_a_write_that_waits_for_another_attempt_is_not_sent_again_when_the_time_is_over() -> None:
    transport = Mute()

    def two_attempts() -> None:
        if transport.sent == 2:
            raise Over

    with while_allowed(two_attempts), pytest.raises(Over):
        await requester(transport).call(Request("POST", "$batch", "write"), lambda answer: answer)
    assert transport.sent == 2


async def test_reads_are_not_asked_about_and_without_a_limit_all_attempts_are_made() -> None:
    def never() -> None:
        raise Over

    transport = Mute()
    with while_allowed(never), pytest.raises(Unavailable):
        await requester(transport).read(Request("GET", "Users()", "read"), lambda answer: answer)
    assert transport.sent == 5
    transport = Mute()
    outcome = await requester(transport).call(Request("POST", "$batch", "write"), lambda answer: answer)
    assert (transport.sent, outcome.ambiguous) == (5, True)
