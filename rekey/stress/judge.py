"""Steps of a ramp, judged: where a table saturates, and which rate is tried next. Pure.

Rules kept here:

* Throughput, refusals and latency of a step are each a reason to call it saturated: refused requests,
  throughput that falls behind the offer, responses that take several times as long as at the lowest rate.
* When this machine did not send in time, or used up its processor, the step says nothing of the service.
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
from typing import Any

from rekey.core.plain import plain, told
from rekey.stress.mix import OperationKind
from rekey.stress.steps import Step

RISE = 1.6
CLOSE = 1.08
LEAST_RATE = 5.0
OVERLOAD = 1.5
"""Times the lowest saturated rate that is offered at last."""
MOST_REFUSED = 0.01
"""Share of requests answered with 503, 500 or 429, or not at all, from which a step is saturated."""
LEAST_ACHIEVED = 0.95
"""Share of what was offered below which a step is saturated."""
KNEE_FACTOR, KNEE_SECONDS = 5.0, 0.25
"""p95 is a knee when it is so many times that of the lowest rate, and at least so long."""
LEAST_REFUSED = 3
DEVIATIONS = 4.0
"""A partition is named from so many refused requests, and standard deviations, beyond its part."""
LATE_SECONDS = 0.1
BUSY_PROCESSOR = 0.9
"""This machine is the limit from these on: requests sent so late (p95), or so much of one core used."""


class Limit(StrEnum):
    """What a step ran into."""

    NOTHING = "nothing"
    SERVICE = "service"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Judged:
    """A step, and what it ran into.

    Attributes:
        step: the step.
        limit: what it ran into.
        reasons: the figures that show it.
        refused: the service itself showed it, by refusing.
        because_of: the kinds of operations, of several, and the partitions that are saturated.
        kinds: the same for each kind; empty for one kind.
    """

    step: Step
    limit: Limit
    reasons: tuple[str, ...] = ()
    refused: bool = False
    because_of: tuple[str, ...] = ()
    kinds: Mapping[OperationKind, Judged] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        kinds = {"kinds": plain(self.kinds)} if self.kinds else {}
        return {**plain(self.step), "limit": str(self.limit), "reasons": list(self.reasons), **kinds}


@dataclass(frozen=True, slots=True)
class Saturation:
    """Rate at which a ramp saturated, in rows or operations a second.

    Attributes:
        limit: what the ramp ran into; NOTHING: it ended before anything did.
        rate: the highest rate that was carried; with NOTHING and CLIENT the service carries more.
        clean: the highest rate without a sign of saturation, None when there was none.
        saturated: the lowest rate with one, None when there was none.
    """

    limit: Limit
    rate: float = field(metadata=told(digits=1))
    clean: float | None = field(metadata=told(digits=1))
    saturated: float | None = field(metadata=told(digits=1))


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
    """Return the steps of a ramp, or of one kind in it, judged in the order in which they were made."""
    judged: list[Judged] = []
    baseline = None
    for step in steps:
        judged.append(judge(step, baseline))
        if baseline is None and judged[-1].limit is Limit.NOTHING:
            baseline = step.p95
    return judged


def judge_kinds(steps: Sequence[Step]) -> dict[OperationKind, list[Judged]]:
    """Return the steps of a ramp, judged for each kind by itself."""
    kinds = steps[0].kinds if steps else ()
    return {kind: judge_all([step.kinds[kind] for step in steps]) for kind in kinds}


def judge_ramp(steps: Sequence[Step]) -> list[Judged]:
    """Return the steps of a ramp, judged by all their kinds and partitions."""
    by_kind = judge_kinds(steps)
    return [
        _judged(step, {kind: judged[number] for kind, judged in by_kind.items()})
        for number, step in enumerate(steps)
    ]


def _judged(step: Step, kinds: Mapping[OperationKind, Judged]) -> Judged:
    over = {kind: one for kind, one in kinds.items() if one.limit is not Limit.NOTHING}
    partitions = tuple(partition_name(place) for place in refusing([step]))
    reasons = [reason for one in over.values() for reason in one.reasons]
    if len(kinds) > 1:
        reasons = [f"{kind.label}: {reason}" for kind, one in over.items() for reason in one.reasons]
        if len(over) == len(kinds):  # told once, not for each of them
            reasons = [f"all kinds: {reason}" for reason in judge(step, None).reasons] or reasons
    reasons += [f"{name} refuses more than others" for name in partitions]
    limits = {one.limit for one in over.values()} | ({Limit.SERVICE} if partitions else set())
    # Refusals are the service's, however busy this machine is; else a busy machine explains the rest.
    refused = bool(partitions) or any(one.refused for one in over.values())
    limit = Limit.NOTHING
    if limits:
        limit = Limit.CLIENT if Limit.CLIENT in limits and not refused else Limit.SERVICE
    names = tuple(kind.label for kind in over) if len(kinds) > 1 else ()
    return Judged(step, limit, tuple(reasons), refused, names + partitions, kinds)


def refusing(steps: Sequence[Step]) -> dict[int, float]:
    """Return the partitions that refuse clearly more than their part, and the entities a second they take."""
    met: defaultdict[int, list[float]] = defaultdict(list)
    for step in steps:
        for place, one in step.partitions.items():
            clear = one.expected + DEVIATIONS * math.sqrt(one.expected) + LEAST_REFUSED
            if one.refused >= max(clear, MOST_REFUSED * one.requests):
                met[place].append(one.entities)
    # A hiccup of this machine ends in a burst, of which a partition refuses more than of a steady load.
    return {place: median(rates) for place, rates in sorted(met.items())}


def partition_name(place: int) -> str:
    """Return the name of a partition: its number, from 1, in the order of PartitionKeys. It is no key."""
    return f"partition {place + 1}"


# --- where a ramp goes ------------------------------------------------------------------------------------


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
        # What this machine can send depends on what else it does: finer steps would only measure that.
        more = min(most, OVERLOAD * found.saturated)
        wanted = overload and any(one.refused for one in judged)
        return more if wanted and more > max(one.step.offered for one in judged) else None
    return math.sqrt(found.clean * found.saturated)
