"""Where a table saturates, judged from the steps of a ramp. Pure.

Rules kept here:

* Rates are of rows (entities) a second, as the service's targets are; a request may carry several.
* A step is judged by itself: refusals, throughput that falls behind what was offered, answers that take
  several times as long as at the lowest rate. Each is a reason.
* When this machine did not send in time, or used up its processor, the step says nothing of the service.
* What is not a refusal may be a hiccup of this machine: such a step is made again, and the better one counts.
* The beginning of a step is not measured; what the service saved up for a burst goes there.
* The ramp rises by `RISE` until a step saturates, then halves (by ratio) what lies between the highest rate
  that was clean and the lowest that was not, until they are `CLOSE` together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rekey.stress.requests import UNSENT, Response

RISE = 1.6
CLOSE = 1.08
LEAST_RATE = 5.0
MOST_REFUSED = 0.01
"""Share of requests answered with 503, 500 or 429, or not at all, from which a step is saturated."""
LEAST_ACHIEVED = 0.95
"""Share of what was offered below which a step is saturated."""
KNEE_FACTOR, KNEE_SECONDS = 5.0, 0.25
"""p95 is a knee when it is so many times that of the lowest rate, and at least so long."""
UNMEASURED = 0.25
"""Share of a step, at its beginning, that is not measured."""
_REFUSED = frozenset({429, 500, 503})
LATE_SECONDS = 0.1
BUSY_PROCESSOR = 0.9
"""From these on this machine is the limit: requests sent so late (p95), or so much of one core used."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long, how much, how.

    Attributes:
        seconds: of the whole test.
        rows: sent in the whole test.
        step_seconds: of one step.
        batch: rows in a request.
        most: rows a second to offer at most; None: twice what the targets allow.
    """

    seconds: float = 300.0
    rows: int = 300_000
    step_seconds: float = 5.0
    batch: int = 10
    most: float | None = None


class Limit(StrEnum):
    """What a step ran into."""

    NOTHING = "nothing"
    SERVICE = "service"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Step:
    """What came of offering one rate for some seconds.

    Attributes:
        offered: rows a second that were to be sent.
        achieved: rows a second that were answered well.
        seconds: how long was measured, the beginning left out.
        requests: sent in that time.
        refused: of those, answered with 503, 500 or 429.
        failed: of those, not answered, or answered with another error.
        unsent: requests that were due while as many as allowed were waiting for their answers.
        p50, p95, p99: seconds from when a request was due to its answer; None when there was none.
        grain: rows a second that one request more makes: what can be told apart.
        late: p95 of the seconds by which requests were sent later than they were due.
        processor: share of one core that this process used.
    """

    offered: float
    achieved: float
    seconds: float
    requests: int
    refused: int = 0
    failed: int = 0
    unsent: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    grain: float = 0.0
    late: float = 0.0
    processor: float = 0.0


@dataclass(frozen=True, slots=True)
class Judged:
    """A step, what it ran into, and why that is said. `refused`: the service said so by refusing."""

    step: Step
    limit: Limit
    reasons: tuple[str, ...] = ()
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Saturation:
    """Where a ramp saturated.

    Attributes:
        limit: what the ramp ran into last; NOTHING: it ended before anything did.
        rate: rows a second that were carried at most; with NOTHING and CLIENT the service carries more.
        clean: the highest rate without a sign of saturation, None when there was none.
        saturated: the lowest rate with one, None when there was none.
    """

    limit: Limit
    rate: float
    clean: float | None
    saturated: float | None


def measure(
    responses: Sequence[Response], seconds: float, *, offered: float, processor: float, by_entity: bool = True
) -> Step:
    """Return what came of a step, or of the part of it that some responses are about.

    Args:
        responses: all, also those of what was not measured.
        seconds: how long the step was.
        offered: what was offered a second.
        processor: share of one core that was used.
        by_entity: rates are of entities; else of operations.
    """
    begin, measured = UNMEASURED * seconds, (1 - UNMEASURED) * seconds
    of_step = [one for one in responses if one.request.due >= begin]
    sent = [one for one in of_step if one.status != UNSENT]
    # Throughput goes by when answers came, all else by when requests were due.
    good = [one for one in responses if one.status is None and begin <= one.answered < seconds]
    times = sorted(max(0.0, one.answered - one.request.due) for one in sent if one.status is None)
    refused = sum(one.status in _REFUSED for one in sent)
    return Step(
        offered=offered,
        achieved=sum(one.entities if by_entity else 1 for one in good) / measured,
        seconds=measured,
        requests=len(sent),
        refused=refused,
        failed=sum(one.status is not None for one in sent) - refused,
        unsent=len(of_step) - len(sent),
        p50=percentile(times, 0.50),
        p95=percentile(times, 0.95),
        p99=percentile(times, 0.99),
        grain=max((one.entities if by_entity else 1 for one in responses), default=0) / measured,
        late=percentile(sorted(one.sent - one.request.due for one in sent), 0.95) or 0.0,
        processor=processor,
    )


def judge(step: Step, baseline: float | None) -> Judged:
    """Return what a step ran into.

    Args:
        step: the step.
        baseline: p95 of the first clean step, None before there was one.
    """
    reasons = []
    refused = step.requests > 0 and step.refused + step.failed > MOST_REFUSED * step.requests
    if refused:
        share = (step.refused + step.failed) / step.requests
        reasons.append(f"{share:.1%} of requests refused or not answered")
    if step.achieved + step.grain < LEAST_ACHIEVED * step.offered:
        reasons.append(f"only {step.achieved / step.offered:.0%} of what was offered came through")
    knee = KNEE_SECONDS if baseline is None else max(KNEE_SECONDS, KNEE_FACTOR * baseline)
    if step.p95 is not None and step.p95 > knee:
        usual = "" if baseline is None else f", {baseline * 1000:,.0f} ms at the lowest rate"
        reasons.append(f"p95 of {step.p95 * 1000:,.0f} ms{usual}")
    if not reasons:
        return Judged(step, Limit.NOTHING)
    why = ""
    if step.processor >= BUSY_PROCESSOR:
        why = f"this process used {step.processor:.0%} of a core"
    elif step.late > LATE_SECONDS:
        why = f"requests were sent {step.late * 1000:,.0f} ms late"
    if why and not refused:
        return Judged(step, Limit.CLIENT, (why, *reasons))
    return Judged(step, Limit.SERVICE, tuple(reasons), refused)


def judge_all(steps: Sequence[Step]) -> list[Judged]:
    """Return all steps of a ramp, judged in the order in which they were made."""
    judged: list[Judged] = []
    baseline = None
    for step in steps:
        judged.append(judge(step, baseline))
        if baseline is None and judged[-1].limit is Limit.NOTHING:
            baseline = step.p95
    return judged


def saturation(judged: Sequence[Judged]) -> Saturation:
    """Return where a ramp saturated.

    What came through while more was offered is the limit of a service that refuses the surplus; it is taken
    for the limit as far as it lies between the highest clean rate and the lowest that was not.
    """
    clean_rates = {one.step.offered for one in judged if one.limit is Limit.NOTHING}
    over = [one for one in judged if one.step.offered not in clean_rates]
    lowest = min(over, key=lambda one: one.step.offered, default=None)
    ceiling = math.inf if lowest is None else lowest.step.offered
    clean = max((rate for rate in clean_rates if rate < ceiling), default=None)
    if lowest is None:
        return Saturation(Limit.NOTHING, clean or 0.0, clean, None)
    return Saturation(lowest.limit, max(clean or 0.0, min(lowest.step.achieved, ceiling)), clean, ceiling)


def next_rate(judged: Sequence[Judged], *, first: float, most: float) -> float | None:
    """Return the next rate of the ramp, None when there is nothing more to learn.

    Args:
        judged: the steps made so far.
        first: where to begin.
        most: the highest rate to offer.
    """
    if not judged:
        return min(first, most)
    last = judged[-1]
    same = [one for one in judged if one.step.offered == last.step.offered]
    if last.limit is not Limit.NOTHING and not last.refused and len(same) == 1:
        return last.step.offered
    found = saturation(judged)
    if found.saturated is None:
        highest = judged[-1].step.offered
        return None if highest >= most else min(highest * RISE, most)
    if found.clean is None:
        return found.saturated / 2 if found.saturated / 2 >= LEAST_RATE else None
    if found.limit is Limit.CLIENT or found.saturated / found.clean <= CLOSE:
        # What this machine can send depends on what else it does: finer steps would only measure that.
        return None
    return math.sqrt(found.clean * found.saturated)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the value below which a share of sorted values lies (nearest rank), None when there is none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
