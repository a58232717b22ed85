"""Steps of a ramp, measured and judged: where a table saturates, and which rate is tried next. Pure.

Rules kept here:

* A step is measured as a whole, by kind and by partition. Throughput counts responses by when they came;
  refusals and latency count requests by when they were due.
* The beginning of a step is not measured; allowances that the service saved up for a burst go there.
* Rates of a mix are operations a second; of inserts they are rows (entities) a second, as the service's
  targets are.
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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median, quantiles
from typing import Any

from rekey.core.plain import UNTOLD, members, told
from rekey.stress.mix import OperationKind
from rekey.stress.requests import UNSENT, Offered, Response

# Share of a step, at its beginning, that is not measured.
UNMEASURED = 0.25
_REFUSED = frozenset({429, 500, 503})
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


@dataclass(slots=True)
class PartitionStep:
    """Requests of a step to one partition.

    Attributes:
        entities: entities a second that were read or written with success.
        requests: sent.
        refused: of those, refused or not answered.
        expected: its part of all refusals, if every kind were refused in all partitions alike.
    """

    entities: float = 0.0
    requests: int = 0
    refused: int = 0
    expected: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """Result of offering one rate for some seconds; of all requests, or of those of one kind.

    Attributes:
        offered: rows or operations a second that were due to be sent.
        achieved: rows or operations a second that were answered with success.
        seconds: how long was measured, the beginning left out.
        requests: sent in that time.
        refused: of those, answered with 503, 500 or 429.
        failed: of those, not answered, or answered with another error.
        unsent: requests that were due while as many as allowed were waiting for their responses.
        p50, p95, p99: seconds from when a request was due to its response; None without responses.
        grain: rows or operations a second that one request more makes: what can be told apart.
        late: p95 of the seconds by which requests were sent later than they were due.
        processor: share of one core that this process used.
        entities: entities a second that were read or written with success.
        kinds: the requests of each kind; empty in a step of one kind.
        partitions: partitions by their number; empty in a step of one kind, and where nothing was refused.
    """

    offered: float
    achieved: float
    seconds: float
    requests: int
    refused: int = 0
    failed: int = 0
    unsent: int = 0
    p50: float | None = field(default=None, metadata=UNTOLD)
    p95: float | None = field(default=None, metadata=UNTOLD)
    p99: float | None = field(default=None, metadata=UNTOLD)
    grain: float = 0.0
    late: float = 0.0
    processor: float = 0.0
    entities: float = 0.0
    kinds: Mapping[OperationKind, Step] = field(default_factory=dict, metadata=UNTOLD)
    partitions: Mapping[int, PartitionStep] = field(default_factory=dict, metadata=UNTOLD)

    @property
    def milliseconds(self) -> dict[str, float | None]:
        """Return p50, p95 and p99 in milliseconds."""
        times = {"p50_ms": self.p50, "p95_ms": self.p95, "p99_ms": self.p99}
        return {name: None if one is None else round(one * 1000, 1) for name, one in times.items()}

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        found = members(self).items()
        rounded = {name: round(one, 4) if isinstance(one, float) else one for name, one in found}
        return {**rounded, **self.milliseconds}


def measure(
    offered: Offered, rate: float, seconds: float, about: Collection[OperationKind], *, by_row: bool = False
) -> Step:
    """Return the step that consists of some requests.

    Args:
        offered: all responses, also those of the beginning that is not measured.
        rate: rows or operations a second that were asked for.
        seconds: how long the step was.
        about: the kinds whose rate the ramp varies.
        by_row: rates count rows; else operations.
    """
    by_kind: defaultdict[OperationKind, list[Response]] = defaultdict(list)
    for one in offered.responses:
        by_kind[one.request.kind].append(one)

    def part(responses: Sequence[Response]) -> Step:
        return _measured(responses, seconds, offered.processor, by_row=by_row)

    kinds = {kind: part(by_kind[kind]) for kind in OperationKind if kind in by_kind}
    whole = part([one for kind in about for one in by_kind[kind]])
    partitions = _partitions(offered.responses, seconds, kinds)
    # The rate that was asked for, not that of whole requests: a rate that is tried again is recognised.
    return replace(whole, offered=rate, kinds=kinds, partitions=partitions)


def _measured(responses: Sequence[Response], seconds: float, processor: float, *, by_row: bool) -> Step:
    begin, measured = UNMEASURED * seconds, (1 - UNMEASURED) * seconds

    def count(some: Sequence[Response]) -> int:
        return sum(one.entities for one in some) if by_row else len(some)

    of_step = [one for one in responses if one.request.due >= begin]
    sent = [one for one in of_step if one.status != UNSENT]
    good = [one for one in responses if one.status is None and begin <= one.answered < seconds]
    times = [max(0.0, one.answered - one.request.due) for one in sent if one.status is None]
    refused = sum(one.status in _REFUSED for one in sent)
    return Step(
        offered=count(responses) / seconds,
        achieved=count(good) / measured,
        seconds=measured,
        requests=len(sent),
        refused=refused,
        failed=sum(one.status is not None for one in sent) - refused,
        unsent=len(of_step) - len(sent),
        p50=percentile(times, 50),
        p95=percentile(times, 95),
        p99=percentile(times, 99),
        grain=max((count([one]) for one in responses), default=0) / measured,
        late=percentile([one.sent - one.request.due for one in sent], 95) or 0.0,
        processor=processor,
        entities=sum(one.entities for one in good) / measured,
    )


def _partitions(
    responses: Sequence[Response], seconds: float, kinds: Mapping[OperationKind, Step]
) -> dict[int, PartitionStep]:
    begin, measured = UNMEASURED * seconds, (1 - UNMEASURED) * seconds
    shares = {kind: (one.refused + one.failed) / max(1, one.requests) for kind, one in kinds.items()}
    found: defaultdict[int, PartitionStep] = defaultdict(PartitionStep)
    if not any(shares.values()):
        return found
    for one in responses:
        partition = found[one.request.place]
        if one.status is None and begin <= one.answered < seconds:
            partition.entities += one.entities / measured
        if one.request.due >= begin and one.status != UNSENT:
            partition.requests += 1
            partition.refused += one.status is not None
            partition.expected += shares[one.request.kind]
    return found


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return the value below which `percent` (1 to 99) per cent of values lie, None without values."""
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=100, method="inclusive")[percent - 1]


# --- judged ------------------------------------------------------------------------------------------


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
        return None if last.step.offered >= most else min(last.step.offered * RISE, most)
    if found.clean is None:
        return found.saturated / 2 if found.saturated / 2 >= LEAST_RATE else None
    if found.limit is Limit.CLIENT or found.saturated / found.clean <= CLOSE:
        # The rate of this machine depends on its other work: finer steps would only measure that.
        more = min(most, OVERLOAD * found.saturated)
        wanted = overload and any(one.refused for one in judged)
        return more if wanted and more > max(one.step.offered for one in judged) else None
    return math.sqrt(found.clean * found.saturated)
