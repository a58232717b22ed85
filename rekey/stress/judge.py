"""Measures and judges the steps of a ramp: where a table saturates, and which rate to try next. Rates of a
mix are operations per second; rates of inserts are rows (entities) per second, like the service's targets.
Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median, quantiles
from typing import Any

from rekey.core.plain import exclude, json_field, members
from rekey.stress.mix import OperationKind
from rekey.stress.requests import UNSENT, Offered, Response

# Share of a step, at its beginning, that is not measured: saved-up burst allowances are used there.
UNMEASURED = 0.25
_REFUSED = frozenset({429, 500, 503})
RISE = 1.6
CLOSE = 1.08
LEAST_RATE = 5.0
# Multiple of the lowest saturated rate that is offered last.
OVERLOAD = 1.5
# Share of requests refused (503, 500, 429) or unanswered above which a step is saturated.
MOST_REFUSED = 0.01
# Achieved share of the offered rate below which a step is saturated.
LEAST_ACHIEVED = 0.95
# A p95 above this multiple of that at the lowest rate, and above these seconds, is a knee.
KNEE_FACTOR, KNEE_SECONDS = 5.0, 0.25
LEAST_REFUSED = 3
# Standard deviations above its share of refusals at which a partition is named.
DEVIATIONS = 4.0
LATE_SECONDS = 0.1
# This machine is the limit above these: lateness of requests (p95), or use of one core.
BUSY_PROCESSOR = 0.9


@dataclass(slots=True)
class PartitionStep:
    """Requests of a step to one partition."""

    # Entities per second read or written successfully.
    entities: float = 0.0
    requests: int = 0
    # Of those, refused or unanswered.
    refused: int = 0
    # Its share of all refusals, if every kind were refused in all partitions alike.
    expected: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """The measured requests of a step, by outcome."""

    sent: int = field(metadata=json_field("requests"))
    # Of those, answered with 503, 500 or 429.
    refused: int = 0
    # Of those, unanswered, or answered with another error.
    failed: int = 0
    # Requests that were due while the maximum number was in flight.
    unsent: int = 0

    @property
    def bad_share(self) -> float:
        """The share of requests sent that were refused or failed."""
        return (self.refused + self.failed) / max(1, self.sent)


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of the seconds from when a request was due to its response; None without responses."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        return cls(percentile(seconds, 50), percentile(seconds, 95), percentile(seconds, 99))

    @property
    def milliseconds(self) -> dict[str, float | None]:
        times = {"p50_ms": self.p50, "p95_ms": self.p95, "p99_ms": self.p99}
        return {name: None if time is None else round(time * 1000, 1) for name, time in times.items()}


@dataclass(frozen=True, slots=True)
class MachineUse:
    """How busy this machine was while it sent the requests of a step."""

    # p95 of the seconds by which requests were sent late.
    late: float = 0.0
    # Share of one core that this process used.
    processor: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """The result of offering one rate for some seconds; of all requests, or of those of one kind."""

    # Rows or operations per second that were due.
    offered: float
    # Rows or operations per second that succeeded, by the time of the response.
    achieved: float
    # Measured time, without the beginning.
    seconds: float
    counts: RequestCounts = field(metadata=json_field(flat=True))
    latency: Latency = field(default_factory=Latency, metadata=exclude)
    # Rows or operations per second of one more request: the resolution.
    grain: float = 0.0
    machine: MachineUse = field(default_factory=MachineUse, metadata=json_field(flat=True))
    # Entities per second read or written successfully.
    entities: float = 0.0
    # The requests of each kind; empty in a step of one kind.
    kinds: Mapping[OperationKind, Step] = field(default_factory=dict, metadata=exclude)
    # Partitions by number; empty in a step of one kind, and without refusals.
    partitions: Mapping[int, PartitionStep] = field(default_factory=dict, metadata=exclude)

    def as_json(self) -> dict[str, Any]:
        rounded = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in members(self).items()
        }
        return {**rounded, **self.latency.milliseconds}


def measure(
    offered: Offered, rate: float, seconds: float, about: Collection[OperationKind], *, by_row: bool = False
) -> Step:
    """Return the measured step.

    Args:
        offered: all responses, including those of the unmeasured beginning.
        rate: the requested rows or operations per second.
        seconds: length of the step.
        about: the kinds whose rate the ramp varies.
        by_row: rates count rows; else operations.
    """
    by_kind: defaultdict[OperationKind, list[Response]] = defaultdict(list)
    for response in offered.responses:
        by_kind[response.request.kind].append(response)

    def part(responses: Sequence[Response]) -> Step:
        return _measured(responses, seconds, offered.processor, by_row=by_row)

    kinds = {kind: part(by_kind[kind]) for kind in OperationKind if kind in by_kind}
    whole = part([response for kind in about for response in by_kind[kind]])
    partitions = _partitions(offered.responses, seconds, kinds)
    # The requested rate, not that of whole requests, so that a repeated rate is recognized.
    return replace(whole, offered=rate, kinds=kinds, partitions=partitions)


def _measured(responses: Sequence[Response], seconds: float, processor: float, *, by_row: bool) -> Step:
    begin, measured = UNMEASURED * seconds, (1 - UNMEASURED) * seconds

    def count(counted: Sequence[Response]) -> int:
        return sum(response.entities for response in counted) if by_row else len(counted)

    of_step = [response for response in responses if response.request.due >= begin]
    sent = [response for response in of_step if response.status != UNSENT]
    good = [
        response for response in responses if response.status is None and begin <= response.answered < seconds
    ]
    times = [max(0.0, each.answered - each.request.due) for each in sent if each.status is None]
    refused = sum(each.status in _REFUSED for each in sent)
    failed = sum(each.status is not None for each in sent) - refused
    late = percentile([each.sent - each.request.due for each in sent], 95) or 0.0
    return Step(
        offered=count(responses) / seconds,
        achieved=count(good) / measured,
        seconds=measured,
        counts=RequestCounts(len(sent), refused, failed, unsent=len(of_step) - len(sent)),
        latency=Latency.of(times),
        grain=max((count([response]) for response in responses), default=0) / measured,
        machine=MachineUse(late, processor),
        entities=sum(response.entities for response in good) / measured,
    )


def _partitions(
    responses: Sequence[Response], seconds: float, kinds: Mapping[OperationKind, Step]
) -> dict[int, PartitionStep]:
    begin, measured = UNMEASURED * seconds, (1 - UNMEASURED) * seconds
    shares = {kind: step.counts.bad_share for kind, step in kinds.items()}
    partitions: defaultdict[int, PartitionStep] = defaultdict(PartitionStep)
    if not any(shares.values()):
        return partitions
    for response in responses:
        partition = partitions[response.request.place]
        if response.status is None and begin <= response.answered < seconds:
            partition.entities += response.entities / measured
        if response.request.due >= begin and response.status != UNSENT:
            partition.requests += 1
            partition.refused += response.status is not None
            partition.expected += shares[response.request.kind]
    return partitions


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return a percentile (1 to 99), None without values."""
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=100, method="inclusive")[percent - 1]


# --- judged ------------------------------------------------------------------------------------------


class Limit(StrEnum):
    """The limit that a step reached."""

    NOTHING = "nothing"
    SERVICE = "service"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Judged:
    """A step with the limit that it reached."""

    step: Step = field(metadata=json_field(flat=True))
    limit: Limit
    # The figures that show it.
    reasons: tuple[str, ...] = ()
    # Whether the service refused requests.
    refused: bool = field(default=False, metadata=exclude)
    # Names of the saturated kinds, if the mix has several, and of the saturated partitions.
    because_of: tuple[str, ...] = field(default=(), metadata=exclude)
    # The step of each kind, judged; empty in a step of one kind.
    kinds: Mapping[OperationKind, Judged] = field(
        default_factory=dict, metadata=json_field(omit_default=True)
    )


@dataclass(frozen=True, slots=True)
class Saturation:
    """The rate at which a ramp saturated, in rows or operations per second."""

    # What the ramp reached; NOTHING if it ended before.
    limit: Limit
    # The highest achieved rate; with NOTHING and CLIENT the service carries more.
    rate: float = field(metadata=json_field(digits=1))
    # The highest rate without a sign of saturation, or None.
    clean: float | None = field(metadata=json_field(digits=1))
    # The lowest rate with one, or None.
    saturated: float | None = field(metadata=json_field(digits=1))


def judge(step: Step, baseline: float | None) -> Judged:
    """Return a step with the limit that it reached. `baseline`: p95 of the first clean step, None before."""
    reasons = []
    refused = step.counts.bad_share > MOST_REFUSED
    if refused:
        reasons.append(f"{step.counts.bad_share:.1%} of requests refused or not answered")
    if step.achieved + step.grain < LEAST_ACHIEVED * step.offered:
        reasons.append(f"only {step.achieved / step.offered:.0%} of what was offered came through")
    knee = KNEE_SECONDS if baseline is None else max(KNEE_SECONDS, KNEE_FACTOR * baseline)
    p95, machine = step.latency.p95, step.machine
    if p95 is not None and p95 > knee:
        usual = "" if baseline is None else f", {baseline * 1000:,.0f} ms at the lowest rate"
        reasons.append(f"p95 of {p95 * 1000:,.0f} ms{usual}")
    if not reasons:
        return Judged(step, Limit.NOTHING)
    why = ""
    if machine.processor >= BUSY_PROCESSOR:
        why = f"this process used {machine.processor:.0%} of a core"
    elif machine.late > LATE_SECONDS:
        why = f"requests were sent {machine.late * 1000:,.0f} ms late"
    # Then the step did not measure the service.
    if why and not refused:
        return Judged(step, Limit.CLIENT, (why, *reasons))
    return Judged(step, Limit.SERVICE, tuple(reasons), refused)


def judge_all(steps: Sequence[Step]) -> list[Judged]:
    """Return the steps of a ramp, or of one kind in it, judged in order."""
    judged: list[Judged] = []
    baseline = None
    for step in steps:
        judged.append(judge(step, baseline))
        if baseline is None and judged[-1].limit is Limit.NOTHING:
            baseline = step.latency.p95
    return judged


def judge_ramp(steps: Sequence[Step]) -> list[Judged]:
    """Return the steps of a ramp, judged by all their kinds and partitions."""
    kinds = steps[0].kinds if steps else ()
    by_kind = {kind: judge_all([step.kinds[kind] for step in steps]) for kind in kinds}
    return [_judged(step, {kind: by_kind[kind][at] for kind in kinds}) for at, step in enumerate(steps)]


def _judged(step: Step, kinds: Mapping[OperationKind, Judged]) -> Judged:
    over = {kind: judgment for kind, judgment in kinds.items() if judgment.limit is not Limit.NOTHING}
    partitions = tuple(partition_name(place) for place in refusing([step]))
    several = len(kinds) > 1
    reasons = [
        f"{kind.label}: {reason}" if several else reason
        for kind, judgment in over.items()
        for reason in judgment.reasons
    ]
    if several and len(over) == len(kinds):  # once, not for each of them
        reasons = [f"all kinds: {reason}" for reason in judge(step, None).reasons] or reasons
    reasons += [f"{name} refuses more than others" for name in partitions]
    # Refusals come from the service, however busy this machine is; a busy machine explains the rest.
    refused = bool(partitions) or any(judgment.refused for judgment in over.values())
    limit = Limit.SERVICE if over or refused else Limit.NOTHING
    if not refused and any(judgment.limit is Limit.CLIENT for judgment in over.values()):
        limit = Limit.CLIENT
    because_of = (*(kind.label for kind in over if several), *partitions)
    return Judged(step, limit, tuple(reasons), refused, because_of, kinds)


def refusing(steps: Sequence[Step]) -> dict[int, float]:
    """Return the partitions that refuse clearly more than their share, with the entities per second they
    take. Limits of a kind or of the account affect all partitions alike, and name none."""
    met: defaultdict[int, list[float]] = defaultdict(list)
    # Late requests came in bursts, of which a partition refuses more than of a steady load.
    for step in (step for step in steps if step.machine.late <= LATE_SECONDS):
        for place, partition_step in step.partitions.items():
            clear = partition_step.expected + DEVIATIONS * math.sqrt(partition_step.expected) + LEAST_REFUSED
            if partition_step.refused >= max(clear, MOST_REFUSED * partition_step.requests):
                met[place].append(partition_step.entities)
    return {place: median(rates) for place, rates in sorted(met.items())}


def partition_name(place: int) -> str:
    """Return the name of a partition: its number, from 1, in the order of PartitionKeys. It is no key."""
    return f"partition {place + 1}"


# --- the ramp ---------------------------------------------------------------------------------------------


def saturation(judged: Sequence[Judged]) -> Saturation:
    """Return where a ramp saturated. A service that refuses the surplus is taken to carry what it achieved,
    within the highest clean and the lowest saturated rate."""
    clean_rates = {judgment.step.offered for judgment in judged if judgment.limit is Limit.NOTHING}
    over = [judgment for judgment in judged if judgment.step.offered not in clean_rates]
    lowest = min(over, key=lambda judgment: judgment.step.offered, default=None)
    ceiling = math.inf if lowest is None else lowest.step.offered
    clean = max((rate for rate in clean_rates if rate < ceiling), default=None)
    if lowest is None:
        return Saturation(Limit.NOTHING, clean or 0.0, clean, None)
    return Saturation(lowest.limit, max(clean or 0.0, min(lowest.step.achieved, ceiling)), clean, ceiling)


def next_rate(judged: Sequence[Judged], *, first: float, most: float, overload: bool = False) -> float | None:
    """Return the next rate of the ramp: up by `RISE` until a step saturates, then bisecting (by ratio) until
    clean and saturated rate are `CLOSE`. None when nothing is left to learn.

    Args:
        judged: the steps so far.
        first: where to begin.
        most: the highest rate to offer.
        overload: where the service refuses, end with a rate that shows which partitions refuse; just above
            the limit too few requests are refused.
    """
    if not judged:
        return min(first, most)
    last = judged[-1]
    same = [judgment for judgment in judged if judgment.step.offered == last.step.offered]
    # Without refusals it may be a hiccup of this machine: repeat the step, and the better one counts.
    if last.limit is not Limit.NOTHING and not last.refused and len(same) == 1:
        return last.step.offered
    reached = saturation(judged)
    if reached.saturated is None:
        return None if last.step.offered >= most else min(last.step.offered * RISE, most)
    if reached.clean is None:
        return reached.saturated / 2 if reached.saturated / 2 >= LEAST_RATE else None
    if reached.limit is Limit.CLIENT or reached.saturated / reached.clean <= CLOSE:
        # This machine's rate depends on its other work: finer steps would only measure that.
        more = min(most, OVERLOAD * reached.saturated)
        wanted = overload and any(judgment.refused for judgment in judged)
        return more if wanted and more > max(judgment.step.offered for judgment in judged) else None
    return math.sqrt(reached.clean * reached.saturated)
