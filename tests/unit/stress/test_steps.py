"""Where a ramp saturates is told from its steps: refusals, throughput, latency, and whose limit it was."""

from __future__ import annotations

import pytest

from rekey.stress.judge import (
    Judged,
    Latency,
    Limit,
    MachineUse,
    RequestCounts,
    Step,
    judge,
    judge_all,
    next_rate,
    percentile,
    saturation,
)


def step(
    offered: float,
    *,
    carried: float | None = None,
    refused: float = 0.0,
    p95: float = 0.01,
    late: float = 0.001,
    processor: float = 0.2,
) -> Step:
    return Step(
        offered=offered,
        achieved=offered if carried is None else carried,
        seconds=4.0,
        counts=RequestCounts(1000, refused=round(1000 * refused)),
        latency=Latency(p95 / 2, p95, p95 * 2),
        machine=MachineUse(late, processor),
    )


def limited(offered: float, limit: float) -> Step:
    """What a service makes of an offer that refuses everything beyond a limit."""
    return step(offered, carried=min(offered, limit), refused=max(0.0, 1 - limit / offered))


def ramp(limit: float, *, first: float = 250.0, most: float = 10_000.0) -> list[Judged]:
    steps: list[Step] = []
    while (rate := next_rate(judge_all(steps), first=first, most=most)) is not None:
        steps.append(limited(rate, limit))
        assert len(steps) < 40
    return judge_all(steps)


# --- one step ---------------------------------------------------------------------------------------------


def test_a_step_that_came_through_ran_into_nothing() -> None:
    assert judge(step(500), 0.01) == Judged(step(500), Limit.NOTHING)


@pytest.mark.parametrize(
    ("sign", "words"),
    [
        (step(500, refused=0.02), "2.0% of requests refused"),
        (step(500, carried=460), "only 92% of what was offered"),
        (step(500, p95=0.3), "p95 of 300 ms, 10 ms at the lowest rate"),
    ],
)
def test_each_sign_of_saturation_is_enough_and_is_said(sign: Step, words: str) -> None:
    judged = judge(sign, 0.01)
    assert judged.limit is Limit.SERVICE
    assert len(judged.reasons) == 1 and words in judged.reasons[0]


def test_requests_without_an_answer_count_like_refused_ones() -> None:
    silent = Step(offered=500, achieved=499, seconds=4.0, counts=RequestCounts(1000, failed=20))
    assert judge(silent, None).limit is Limit.SERVICE


@pytest.mark.parametrize("little", [step(500, refused=0.01), step(500, carried=480), step(500, p95=0.24)])
def test_what_any_service_does_now_and_then_is_no_saturation(little: Step) -> None:
    assert judge(little, 0.01).limit is Limit.NOTHING


def test_slow_answers_are_a_knee_only_against_what_is_usual_there() -> None:
    """A far account answers in 150 ms at any rate: 600 ms is four times as much, 800 ms more than five."""
    assert judge(step(500, p95=0.6), 0.15).limit is Limit.NOTHING
    assert judge(step(500, p95=0.8), 0.15).limit is Limit.SERVICE


@pytest.mark.parametrize("busy", [{"processor": 0.95}, {"late": 0.2}])
def test_a_machine_that_cannot_send_more_is_not_taken_for_the_service(busy: dict[str, float]) -> None:
    judged = judge(step(500, carried=400, **busy), 0.01)
    assert judged.limit is Limit.CLIENT
    assert len(judged.reasons) == 2


def test_refusals_are_the_service_s_however_busy_this_machine_is() -> None:
    assert judge(step(500, refused=0.2, processor=1.0), 0.01).limit is Limit.SERVICE


def test_a_busy_machine_says_nothing_while_all_comes_through() -> None:
    assert judge(step(500, processor=0.99), 0.01).limit is Limit.NOTHING


def test_the_first_clean_step_says_what_is_usual() -> None:
    steps = [step(100, p95=0.1), step(200, p95=0.45), step(400, p95=0.55)]
    assert [one.limit for one in judge_all(steps)] == [Limit.NOTHING, Limit.NOTHING, Limit.SERVICE]


def test_one_request_more_or_less_is_no_difference() -> None:
    """250 rows/s in requests of 100 are nine or ten requests in four seconds."""
    few = {"offered": 250, "achieved": 225, "seconds": 4.0, "counts": RequestCounts(9)}
    assert judge(Step(**few, grain=25), None).limit is Limit.NOTHING  # type: ignore[arg-type]
    assert judge(Step(**few, grain=5), None).limit is Limit.SERVICE  # type: ignore[arg-type]


# --- a ramp -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [30, 90, 251, 400, 777, 1000, 2000, 2600, 9000])
def test_a_ramp_finds_a_limit_within_ten_percent(limit: float) -> None:
    judged = ramp(limit)
    found = saturation(judged)
    assert found.limit is Limit.SERVICE
    assert abs(found.rate - limit) <= 0.1 * limit
    assert found.clean is not None and found.saturated is not None
    assert found.clean <= limit * 1.01 and found.saturated >= limit
    assert len(judged) <= 14


def test_a_ramp_that_meets_nothing_ends_at_the_highest_rate_and_says_at_least() -> None:
    judged = ramp(1e9, most=4000)
    found = saturation(judged)
    assert (found.limit, found.clean, found.saturated) == (Limit.NOTHING, 4000, None)
    assert found.rate == 4000


def test_a_service_that_collapses_is_bracketed_not_believed() -> None:
    """What comes through of twice the limit is less than the limit: the clean rate counts."""
    steps = [step(1000), step(1600), step(2560, carried=300, refused=0.8)]
    found = saturation(judge_all(steps))
    assert (found.rate, found.clean, found.saturated) == (1600, 1600, 2560)
    assert next_rate(judge_all(steps), first=250, most=9999) == pytest.approx(2024, abs=1)


def test_a_step_that_may_be_a_hiccup_is_made_again_and_the_better_one_counts() -> None:
    hiccup = [step(1000), step(1600, p95=0.9)]
    assert next_rate(judge_all(hiccup), first=250, most=9999) == 1600
    again = [*hiccup, step(1600)]
    assert next_rate(judge_all(again), first=250, most=9999) == pytest.approx(2560)
    assert saturation(judge_all(again)).clean == 1600
    twice = [*hiccup, step(1600, p95=0.9)]
    assert next_rate(judge_all(twice), first=250, most=9999) == pytest.approx(1265, abs=1)


def test_refusals_are_no_hiccup() -> None:
    assert next_rate(judge_all([step(1000), step(1600, refused=0.3)]), first=250, most=9999) == pytest.approx(
        1265, abs=1
    )


def test_when_this_machine_is_the_limit_no_finer_steps_are_made() -> None:
    steps = [step(1000), *[step(1600, carried=1300, processor=1.0)] * 2]
    assert next_rate(judge_all(steps), first=250, most=9999) is None
    found = saturation(judge_all(steps))
    assert (found.limit, found.rate) == (Limit.CLIENT, 1300)


def test_below_the_least_rate_nothing_is_looked_for() -> None:
    assert len(ramp(0.5)) < 12


def test_percentiles_lie_between_neighbours_and_need_no_order() -> None:
    values = [float(number) for number in range(101)]
    assert [percentile(values[::-1], percent) for percent in (50, 95, 99)] == [50, 95, 99]
    assert percentile([1.0, 2.0], 50) == 1.5
    assert percentile([], 50) is None
    assert percentile([7.0], 1) == 7.0
