"""Where a mix of operations saturates: steps judged for each kind of operation and each partition. Pure.

Rules kept here:

* A mix no longer holds when one of its kinds does not, or one of its partitions.
* A kind is judged as a ramp is (`steps`), by its own refusals, throughput and latency.
* A partition is named only when it refuses clearly more than its part of all refusals of a kind: a limit of a
  kind, or of the account, shows in all partitions alike. Where all partitions are at their limits, that
  is not told apart; the stage with one partition shows it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rekey.stress.mix import Mix, OperationKind
from rekey.stress.requests import UNSENT, Offered, Response
from rekey.stress.spread import place_of
from rekey.stress.steps import (
    MOST_REFUSED,
    UNMEASURED,
    Judged,
    Limit,
    Saturation,
    Step,
    judge,
    judge_all,
    measure,
    saturation,
)

_LEAST_REFUSED = 3
_DEVIATIONS = 4.0
"""A partition is named from so many refused requests on, and so many standard deviations, beyond what is its
part of all refusals."""


class PartitionStep(NamedTuple):
    """What came of the requests to one partition.

    Attributes:
        offered, achieved: entities a second.
        requests: sent.
        refused: of those, refused or not answered.
        expected: its part of all refusals, if kinds of operations were refused in all partitions alike.
    """

    offered: float
    achieved: float
    requests: int
    refused: int
    expected: float


@dataclass(frozen=True, slots=True)
class MixStep:
    """What came of offering a mix for some seconds.

    Attributes:
        rate: what the ramp varies: operations a second, of all kinds or of one.
        total: in operations.
        entities: the same in entities.
        kinds: operations of each kind.
        partitions: what partitions took, by their number; none where nothing was refused.
    """

    rate: float
    total: Step
    entities: Step
    kinds: Mapping[OperationKind, Step]
    partitions: Mapping[int, PartitionStep]


def mix_step(offered: Offered, rate: float, seconds: float) -> MixStep:
    """Measure a step.

    Args:
        offered: what came of its requests.
        rate: what the ramp varies, in operations a second.
        seconds: how long it was.
    """
    by_kind: defaultdict[OperationKind, list[Response]] = defaultdict(list)
    for one in offered.responses:
        by_kind[one.request.kind].append(one)

    def measured(responses: Sequence[Response], *, by_entity: bool = False) -> Step:
        due = sum(one.entities if by_entity else 1 for one in responses) / seconds
        return measure(responses, seconds, offered=due, processor=offered.processor, by_entity=by_entity)

    return MixStep(
        rate=rate,
        total=measured(offered.responses),
        entities=measured(offered.responses, by_entity=True),
        kinds={kind: measured(by_kind[kind]) for kind in OperationKind if kind in by_kind},
        partitions=_partitions(offered.responses, seconds),
    )


def _partitions(responses: Sequence[Response], seconds: float) -> dict[int, PartitionStep]:
    begin, measured = UNMEASURED * seconds, (1 - UNMEASURED) * seconds
    sent: Counter[tuple[int, OperationKind]] = Counter()
    refused: Counter[tuple[int, OperationKind]] = Counter()
    offered, achieved = Counter[int](), Counter[int]()
    for one in responses:
        place, kind = place_of(one.request.partition), one.request.kind
        if one.status is None and begin <= one.answered < seconds:
            achieved[place] += one.entities
        if one.request.due >= begin:
            offered[place] += one.entities
            if one.status != UNSENT:
                sent[place, kind] += 1
                refused[place, kind] += one.status is not None
    if not refused.total():
        return {}
    shares = {
        kind: sum(refused[place, kind] for place in offered)
        / max(1, sum(sent[place, kind] for place in offered))
        for kind in OperationKind
    }
    return {
        place: PartitionStep(
            offered[place] / measured,
            achieved[place] / measured,
            requests=sum(sent[place, kind] for kind in shares),
            refused=sum(refused[place, kind] for kind in shares),
            expected=sum(sent[place, kind] * share for kind, share in shares.items()),
        )
        for place in offered
    }


def refusing(steps: Sequence[MixStep]) -> dict[int, float]:
    """Return the partitions that refuse clearly more than their part, and the entities a second they take.

    Args:
        steps: of one ramp: in another one, kinds are refused at other rates.
    """
    met: defaultdict[int, list[PartitionStep]] = defaultdict(list)
    for step in steps:
        for place, one in step.partitions.items():
            met[place].append(one)
    found = {}
    for place, parts in sorted(met.items()):
        if _is_clear(parts):
            clear = [one for one in parts if _is_clear([one])]
            # What comes through at the lowest rate that is too much is the limit, as in any ramp.
            at = min(clear) if clear else max(parts, key=lambda one: one.refused - one.expected)
            found[place] = min(at.achieved, at.offered)
    return found


def _is_clear(parts: Sequence[PartitionStep]) -> bool:
    refused, expected = sum(one.refused for one in parts), sum(one.expected for one in parts)
    return (
        refused > MOST_REFUSED * sum(one.requests for one in parts)
        and refused >= expected + _DEVIATIONS * math.sqrt(expected) + _LEAST_REFUSED
    )


def judge_kinds(steps: Sequence[MixStep]) -> dict[OperationKind, list[Judged]]:
    """Return the steps of one ramp, judged for each kind by itself."""
    kinds = steps[0].kinds if steps else ()
    return {kind: judge_all([step.kinds[kind] for step in steps]) for kind in kinds}


def judge_mix(steps: Sequence[MixStep], varied: OperationKind | None = None) -> list[Judged]:
    """Return the steps of one ramp, judged as a whole.

    Args:
        steps: in the order in which they were made.
        varied: the kind whose rate the ramp varies; None: the rate of the whole mix.
    """
    by_kind = judge_kinds(steps)
    judged = []
    for number, step in enumerate(steps):
        over = {kind: found[number] for kind, found in by_kind.items()}
        over = {kind: one for kind, one in over.items() if one.limit is not Limit.NOTHING}
        reasons = [f"{kind}: {reason}" for kind, one in over.items() for reason in one.reasons]
        if len(over) == len(by_kind) > 1:
            # What meets all of them is told once.
            reasons = [f"all kinds: {reason}" for reason in judge(step.total, None).reasons] or reasons
        partitions = refusing([step])
        reasons += [f"{partition_name(place)} refuses more than others" for place in partitions]
        limits = {one.limit for one in over.values()} | ({Limit.SERVICE} if partitions else set())
        # Refusals are the service's, however busy this machine is; else a busy machine explains the rest.
        refused = bool(partitions) or any(one.refused for one in over.values())
        limit = Limit.NOTHING
        if limits:
            limit = Limit.CLIENT if Limit.CLIENT in limits and not refused else Limit.SERVICE
        whole = step.total if varied is None else step.kinds[varied]
        # The rate that was asked for, not that of whole requests: a rate that is tried again is recognised.
        judged.append(Judged(replace(whole, offered=step.rate), limit, tuple(reasons), refused))
    return judged


def partition_name(place: int) -> str:
    """Return what a partition is called: its number, from 1, in the order of PartitionKeys. No key."""
    return f"partition {place + 1}"


def mix_saturation(steps: Sequence[MixStep], judged: Sequence[Judged], mix: Mix) -> Saturation:
    """Return where a mix saturated, in operations a second.

    Args:
        steps: of the ramp.
        judged: the same, judged as a whole.
        mix: their shares.
    """
    found = saturation(judged)
    if found.saturated is None or found.limit is not Limit.SERVICE:
        return found
    # The kind that saturates first says it most exactly: where its own rate is known, so is that of the mix.
    of_kinds = [
        saturation([one for step, one in zip(steps, part, strict=True) if within(step, found)])
        for part in judge_kinds(steps).values()
    ]
    rates = [
        one.rate / share
        for one, share in zip(of_kinds, mix.shares.values(), strict=True)
        if one.limit is Limit.SERVICE
    ]
    return replace(found, rate=max(found.clean or 0.0, min([found.saturated, *rates])))


def within(step: MixStep, found: Saturation) -> bool:
    """Tell whether a step is no higher than the lowest one at which the mix was saturated."""
    return found.saturated is None or step.rate <= found.saturated


def limiting(steps: Sequence[MixStep], found: Saturation) -> tuple[str, ...]:
    """Return the kinds and partitions that no longer held where the mix saturated."""
    names: dict[str, None] = {}
    for kind, judged in judge_kinds(steps).items():
        for step, one in zip(steps, judged, strict=True):
            if step.rate == found.saturated and one.limit is not Limit.NOTHING:
                names[kind.replace("_", " ")] = None
    for step in steps:
        if step.rate == found.saturated:
            names |= {partition_name(place): None for place in refusing([step])}
    return tuple(names)
