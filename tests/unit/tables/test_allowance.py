"""What counts for every attempt: no write after the time is over, and a rate taken anew after a refusal."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rekey.errors import Ambiguous, Unavailable
from rekey.tables.allowance import Taken, at_a_rate, while_allowed
from rekey.tables.answers import Answer
from rekey.tables.requests import Requester, RetryPolicy
from rekey.tables.transport import NoAnswer, NotSent, Request
from tests.fakes.clock import FakeClock


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

    with while_allowed(two_attempts), pytest.raises(Ambiguous) as left_open:
        await requester(transport).call(Request("POST", "$batch", "write"), lambda answer, _: answer)
    assert transport.sent == 2
    assert isinstance(left_open.value.__cause__, Over), "what became of those that were sent nobody knows"


async def test_reads_are_not_asked_about_and_without_a_limit_all_attempts_are_made() -> None:
    def never() -> None:
        raise Over

    transport = Mute()
    with while_allowed(never), pytest.raises(Unavailable):
        await requester(transport).read(Request("GET", "Users()", "read"), lambda answer, _: answer)
    assert transport.sent == 5
    transport = Mute()
    outcome = await requester(transport).call(Request("POST", "$batch", "write"), lambda answer, _: answer)
    assert (transport.sent, outcome.ambiguous) == (5, True)


class Replies:
    """A transport that answers as it was told, one attempt after the other, and then with 204."""

    def __init__(self, said: list[str], *attempts: int | Exception) -> None:
        self._said, self._attempts = said, list(attempts)

    async def send(self, _request: Request) -> Answer:
        self._said.append("sent")
        reply = self._attempts.pop(0) if self._attempts else 204
        if isinstance(reply, Exception):
            raise reply
        return Answer(reply, {}, b"")


def noting(said: list[str]) -> Taken:
    """Take note of what is told and asked."""

    async def again() -> None:
        said.append("again")

    return Taken(lambda: said.append("refused"), again)


def status_of(answer: Answer, _doing: str) -> int:
    if answer.status == 503:
        raise Unavailable("busy", code="ServerBusy", status=503)
    if answer.status == 500:
        raise Unavailable("timed out", code="OperationTimedOut", status=500)
    return answer.status


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("attempts", "told"),
    [
        ([], ["sent"]),
        ([503], ["sent", "refused", "again", "sent"]),
        ([503, 503], ["sent", "refused", "again", "sent", "refused", "again", "sent"]),
        ([NotSent("ConnectionRefused")], ["sent", "refused", "again", "sent"]),
        ([NoAnswer("ServerDisconnected")], ["sent", "sent"]),
        ([500], ["sent", "sent"]),
        ([503] * 5, ["sent", "refused", *["again", "sent", "refused"] * 4]),
    ],
    ids=["answered", "busy", "twice", "not sent", "no answer", "perhaps applied", "given up"],
)
async def test_refusals_reach_the_rate(method: str, attempts: list[int | Exception], told: list[str]) -> None:
    """What may have been applied used what was taken: of that nobody is told."""
    said: list[str] = []
    with at_a_rate(noting(said)):
        await requester(Replies(said, *attempts)).call(Request(method, "$batch", "send"), status_of)
    assert said == told
    await requester(Replies(said, 503)).call(Request(method, "$batch", "send"), status_of)
    assert said == [*told, "sent", "sent"], "what is sent outside is of no rate"
