"""Steps of a ramp, judged: where a table saturates, and which rate is tried next. Pure.

Rules kept here:

* A step is saturated when requests were refused, when fewer came through than were offered, or when responses
  took several times as long as at the lowest rate. Each is a reason in the report.
* When this machine did not send in time, or used up its processor, the step did not measure the service.
* A step without refusals may be saturated by a hiccup of this machine: it is made again, and the better one
  counts.
* Kinds of operations are judged each by itself. A step is saturated when one of its kinds is, or when one of
  its partitions refuses clearly more than its part.
* A partition is named only when it refuses clearly more than its part of all refusals of a kind: a limit of a
  kind, or of the account, shows in all partitions alike. Where all partitions are at their limits, that is
  not told apart; the stage with one partition shows it.
* The ramp rises by `RISE` until a step saturates, then halves (by ratio) what lies between the highest clean
  rate and the lowest saturated one, until they are `CLOSE` together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from rekey.core.plain import UNTOLD, told
from rekey.stress.mix import OperationKind
from rekey.stress.steps import Step

RISE = 1.6
CLOSE = 1.08
LEAST_RATE = 5.0
# Times the lowest saturated rate that is offered at last.
OVERLOAD = 1.5
# Share of requests answered with 503, 500 or 429, or not at all, from which a step is saturated.
MOST_REFUSED = 0.01
# Share of what was offered below which a step is saturated.
LEAST_ACHIEVED = 0.95
# p95 above this multiple of that at the lowest rate, and above these seconds, is a knee.
KNEE_FACTOR, KNEE_SECONDS = 5.0, 0.25
LEAST_REFUSED = 3
# Refused requests, plus standard deviations, beyond its part from which a partition is named.
DEVIATIONS = 4.0
LATE_SECONDS = 0.1
# This machine is the limit from these on: requests sent so late (p95), or so much of one core used.
BUSY_PROCESSOR = 0.9


class Limit(StrEnum):
    """Limit that a step reached."""

    NOTHING = "nothing"
    SERVICE = "service"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Judged:
    """A step with the limit that it reached.

    Attributes:
        step: the step.
        limit: the limit that it reached.
        reasons: the figures that show it.
        refused: the service refused requests.
        because_of: names of the saturated kinds, if the mix has several, and of the saturated partitions.
        kinds: the step of each kind, judged; empty in a step of one kind.
    """

    step: Step = field(metadata=told(flat=True))
    limit: Limit
    reasons: tuple[str, ...] = ()
    refused: bool = field(default=False, metadata=UNTOLD)
    because_of: tuple[str, ...] = field(default=(), metadata=UNTOLD)
    kinds: Mapping[OperationKind, Judged] = field(default_factory=dict, metadata=told(if_any=True))


@dataclass(frozen=True, slots=True)
class Saturation:
    """Rate at which a ramp saturated, in rows or operations a second.

    Attributes:
        limit: the limit that the ramp reached; NOTHING: it ended before it reached one.
        rate: the highest rate that was carried; with NOTHING and CLIENT the service carries more.
        clean: the highest rate without a sign of saturation, None when there was none.
        saturated: the lowest rate with one, None when there was none.
    """

    limit: Limit
    rate: float = field(metadata=told(digits=1))
    clean: float | None = field(metadata=told(digits=1))
    saturated: float | None = field(metadata=told(digits=1))


def judge(step: Step, baseline: float | None) -> Judged:
    """Return a step with the limit that it reached.

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
    """Return the steps of a ramp, or of one kind in it, judged in the order in which they were made."""
    judged: list[Judged] = []
    baseline = None
    for step in steps:
        judged.append(judge(step, baseline))
        if baseline is None and judged[-1].limit is Limit.NOTHING:
            baseline = step.p95
    return judged


def judge_ramp(steps: Sequence[Step]) -> list[Judged]:
    """Return the steps of a ramp, judged by all their kinds and partitions."""
    kinds = steps[0].kinds if steps else ()
    by_kind = {kind: judge_all([step.kinds[kind] for step in steps]) for kind in kinds}
    return [_judged(step, {kind: by_kind[kind][at] for kind in kinds}) for at, step in enumerate(steps)]


def _judged(step: Step, kinds: Mapping[OperationKind, Judged]) -> Judged:
    over = {kind: one for kind, one in kinds.items() if one.limit is not Limit.NOTHING}
    partitions = tuple(partition_name(place) for place in refusing([step]))
    several = len(kinds) > 1
    reasons = [
        f"{kind.label}: {reason}" if several else reason
        for kind, one in over.items()
        for reason in one.reasons
    ]
    if several and len(over) == len(kinds):  # told once, not for each of them
        reasons = [f"all kinds: {reason}" for reason in judge(step, None).reasons] or reasons
    reasons += [f"{name} refuses more than others" for name in partitions]
    # Refusals are the service's, however busy this machine is; else a busy machine explains the rest.
    refused = bool(partitions) or any(one.refused for one in over.values())
    limit = Limit.SERVICE if over or refused else Limit.NOTHING
    if not refused and any(one.limit is Limit.CLIENT for one in over.values()):
        limit = Limit.CLIENT
    because_of = (*(kind.label for kind in over if several), *partitions)
    return Judged(step, limit, tuple(reasons), refused, because_of, kinds)


def refusing(steps: Sequence[Step]) -> dict[int, float]:
    """Return the partitions that refuse clearly more than their part, and the entities a second they take."""
    met: defaultdict[int, list[float]] = defaultdict(list)
    # Requests that were sent late came in bursts, of which a partition refuses more than of a steady load.
    for step in (one for one in steps if one.late <= LATE_SECONDS):
        for place, one in step.partitions.items():
            clear = one.expected + DEVIATIONS * math.sqrt(one.expected) + LEAST_REFUSED
            if one.refused >= max(clear, MOST_REFUSED * one.requests):
                met[place].append(one.entities)
    return {place: median(rates) for place, rates in sorted(met.items())}


def partition_name(place: int) -> str:
    """Return the name of a partition: its number, from 1, in the order of PartitionKeys. It is no key."""
    return f"partition {place + 1}"


# --- the ramp ---------------------------------------------------------------------------------------------


def saturation(judged: Sequence[Judged]) -> Saturation:
    """Return where a ramp saturated.

    The rate that was achieved while more was offered is the limit of a service that refuses the surplus. It
    is taken for the limit within the highest clean rate and the lowest saturated one.
    """
    clean_rates = {one.step.offered for one in judged if one.limit is Limit.NOTHING}
    over = [one for one in judged if one.step.offered not in clean_rates]
    lowest = min(over, key=lambda one: one.step.offered, default=None)
    ceiling = math.inf if lowest is None else lowest.step.offered
    clean = max((rate for rate in clean_rates if rate < ceiling), default=None)
    if lowest is None:
        return Saturation(Limit.NOTHING, clean or 0.0, clean, None)
    return Saturation(lowest.limit, max(clean or 0.0, min(lowest.step.achieved, ceiling)), clean, ceiling)


def next_rate(judged: Sequence[Judged], *, first: float, most: float, overload: bool = False) -> float | None:
    """Return the next rate of the ramp, None when there is nothing more to learn.

    Args:
        judged: the steps made so far.
        first: where to begin.
        most: the highest rate to offer.
        overload: where the service refuses, end with a rate that shows which partitions refuse: a step just
            beyond the limit has too few refused requests to tell.
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
        # The rate of this machine depends on its other work: finer steps would only measure that.
        more = min(most, OVERLOAD * found.saturated)
        wanted = overload and any(one.refused for one in judged)
        return more if wanted and more > max(one.step.offered for one in judged) else None
    return math.sqrt(found.clean * found.saturated)
