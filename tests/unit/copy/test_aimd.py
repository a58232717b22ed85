"""Rates that follow the service: what each window of answers does to them. Time is what a test says it is."""

from __future__ import annotations

import math
from collections.abc import Hashable

import pytest

from rekey.copy.aimd import ServiceRates

PAGES, READS, BATCHES = "scan", "read", "batch"


class Second:
    """Seconds that go by, one after another, each with its requests and answers."""

    def __init__(self, account: float = 20_000, partition: float = 2_000) -> None:
        self.rates = ServiceRates(0.0, account, partition)
        self.now = 0.0

    def ask(
        self, kind: str, answers: int, refused: int = 0, *, entities: float = 100, of: Hashable = None
    ) -> None:
        """Send requests; so many of their answers are refusals, after 30 ms."""
        for number in range(answers):
            self.rates.sent(self.now, kind, round(entities))
            if of is not None:
                self.rates.sent_to(self.now, kind, of, round(entities))
            is_refused = number < refused
            if is_refused:
                self.rates.sent(self.now, kind, -round(entities))
                if of is not None:
                    self.rates.sent_to(self.now, kind, of, -round(entities))
            self.rates.answered(self.now + 0.04, kind, of, 0.03, refused=is_refused)

    def over(self) -> bool:
        """Let a second go by; tell whether a rate was halved."""
        self.now += 1.0
        if halved := self.rates.judge(self.now):
            self.now += 0.6  # until older requests are gone
        return halved

    def used(self, refused_share: float = 0.0) -> bool:
        """Let a second go by in which all of the account's rate was used, by batches of a hundred."""
        count = max(5, round(self.rates.account.rate / 100))
        self.ask(BATCHES, count, round(count * refused_share), entities=self.rates.account.rate / count)
        return self.over()

    @property
    def rate(self) -> float:
        return self.rates.account.rate


def test_it_begins_at_the_target_and_grows_by_equal_steps_while_it_is_used() -> None:
    seconds = Second()
    steps = [20_000.0]
    for _ in range(4):
        seconds.used()
        steps.append(seconds.rate)
    assert steps == [20_000, 21_000, 22_000, 23_000, 24_000]


def test_a_rate_that_is_not_used_does_not_grow() -> None:
    """Nothing says that the service would carry more."""
    seconds = Second()
    for _ in range(4):
        seconds.ask(BATCHES, 100)
        seconds.over()
    assert seconds.rate == 20_000


def test_a_burst_of_refusals_halves_once() -> None:
    """Answers to what was sent before, or had its turn before, do not count again."""
    seconds = Second()
    seconds.ask(BATCHES, 200, 150)
    assert seconds.over()
    assert seconds.rate == 10_000
    for _ in range(50):
        seconds.rates.answered(seconds.now + 0.01, BATCHES, None, 0.7, refused=True)
    seconds.ask(BATCHES, 90)
    assert not seconds.over()
    assert seconds.rate > 10_000


def test_a_service_that_goes_on_refusing_is_followed_down_but_not_to_nothing() -> None:
    seconds = Second()
    rates = []
    for _ in range(12):
        seconds.used(0.9)
        rates.append(seconds.rate)
    assert rates[:3] == [10_000, 5_000, 2_500]
    assert rates[-1] == 50


def test_one_refusal_of_a_hundred_is_none() -> None:
    """The service moves partitions; whoever asks meanwhile is refused."""
    seconds = Second()
    for _ in range(5):
        seconds.ask(BATCHES, 200, 1)
        assert not seconds.over()
    assert seconds.rate > 20_000


def test_after_a_fine_window_it_goes_back_to_just_below_what_was_carried() -> None:
    seconds = Second()
    seconds.ask(BATCHES, 200, 40)  # 16,000 of 20,000 were carried
    seconds.over()
    seconds.used()
    assert seconds.rate == pytest.approx(0.95 * 16_000)
    seconds.used()
    assert seconds.rate == pytest.approx(0.95 * 16_000 + 80), "slowly, up to where it was pushed back"
    while seconds.rate <= 1.05 * 16_000:
        seconds.used()
    before = seconds.rate
    seconds.used()
    assert seconds.rate == pytest.approx(before + 1_000), "and in full steps beyond: the limit was raised"


def test_refusals_of_one_partition_halve_that_partition_alone() -> None:
    seconds = Second()
    for _ in range(3):
        seconds.ask(BATCHES, 20, 8, of="hot")
        for number in range(100):
            seconds.ask(BATCHES, 1, of=number)
        seconds.over()
    assert seconds.rates.partition_rate(BATCHES, "hot") < 2_000
    assert {seconds.rates.partition_rate(BATCHES, number) for number in range(100)} == {2_000}
    assert seconds.rates.partition_rate(PAGES, "hot") == 2_000
    assert seconds.rate >= 20_000


def test_refusals_in_all_partitions_are_the_accounts() -> None:
    seconds = Second()
    for number in range(100):
        seconds.ask(BATCHES, 2, number % 3 == 0, of=number)
    assert seconds.over()
    assert seconds.rate == 10_000
    assert seconds.rates.partition_rate(BATCHES, 0) == 2_000


def test_a_kind_is_halved_alone_where_others_are_shown_to_be_fine() -> None:
    seconds = Second()
    seconds.ask(PAGES, 10, entities=1_000)
    seconds.ask(READS, 50, entities=1)
    seconds.ask(BATCHES, 100, 30)
    assert seconds.over()
    assert seconds.rates.kind_rate(BATCHES) == pytest.approx(3_500)
    assert seconds.rates.kind_rate(PAGES) == seconds.rates.kind_rate(READS) == math.inf
    assert seconds.rate == 20_000
    seconds.ask(READS, 400, 100, entities=1)
    seconds.ask(BATCHES, 30)
    assert seconds.over()
    assert seconds.rates.kind_rate(READS) < 200


def test_where_others_were_asked_too_little_to_tell_the_account_is_halved() -> None:
    seconds = Second()
    seconds.ask(PAGES, 5, entities=1_000)
    seconds.ask(BATCHES, 100, 10)
    assert seconds.over()
    assert seconds.rate == 10_000
    assert seconds.rates.kind_rate(BATCHES) == math.inf


def test_refusals_that_do_not_depend_on_the_rate_do_not_end_at_nothing() -> None:
    """A tenth of all requests is refused, whatever they ask."""
    seconds = Second()
    for _ in range(60):
        seconds.used(0.1)
    assert seconds.rate > 15_000


def test_a_window_with_few_answers_goes_on() -> None:
    seconds = Second()
    seconds.ask(BATCHES, 4, 4)
    assert not seconds.over()
    seconds.ask(BATCHES, 4, 4)
    assert seconds.over()


def test_partitions_that_are_not_asked_any_more_are_forgotten() -> None:
    seconds = Second()
    for number in range(1_000):
        seconds.ask(BATCHES, 1, of=number)
    for _ in range(61):
        seconds.used()
    assert not seconds.rates.partitions
