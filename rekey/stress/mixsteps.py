"""Where a mix of operations saturates: steps judged for each kind of operation and each partition. Pure.

Rules kept here:

* A mix no longer holds when one of its kinds does not, or one of its partitions.
* A kind is judged as a ramp is (`steps`), by its own refusals, throughput and latency.
* A partition is named only when it refuses clearly more than its kinds of operations are refused elsewhere:
  a limit of a kind, or of the account, shows in all partitions alike. Where all partitions are at their
  limit at once, that is not told apart; the stage with one partition shows it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rekey.stress.mix import Mix, OperationKind
from rekey.stress.requests import UNSENT, Offered, Response
from rekey.stress.spread import place_of
from rekey.stress.steps import MOST_REFUSED, UNMEASURED, Judged, Limit, Saturation, Step, judge_all, measure
from rekey.stress.steps import saturation as ramp_saturation

_LEAST_REFUSED = 3
_DEVIATIONS = 4.0
"""A partition is named from so many refused requests on, and so many standard deviations, beyond what is its
part of all refusals."""


@dataclass(frozen=True, slots=True)
class MixStep:
    """What came of offering a mix for some seconds.

    Attributes:
        rate: what the ramp varies: operations a second, of all kinds or of one.
        total: in operations.
        entities: the same in entities.
        kinds: operations of each kind.
        partitions: in entities; only those that refuse more than others do, by their number.
    """

    rate: float
    total: Step
    entities: Step
    kinds: Mapping[OperationKind, Step]
    partitions: Mapping[int, Step]


def mix_step(offered: Offered, rate: float, seconds: float) -> MixStep:
    """Measure a step.

    Args:
        offered: what came of its requests.
        rate: what the ramp varies, in operations a second.
        seconds: how long it was.
    """
    by_kind: defaultdict[OperationKind, list[Response]] = defaultdict(list)
    by_partition: defaultdict[int, list[Response]] = defaultdict(list)
    for one in offered.responses:
        by_kind[one.request.kind].append(one)
        by_partition[place_of(one.request.partition)].append(one)

    def measured(responses: Sequence[Response], *, by_entity: bool = False) -> Step:
        due = sum(one.entities if by_entity else 1 for one in responses) / seconds
        return measure(responses, seconds, offered=due, processor=offered.processor, by_entity=by_entity)

    return MixStep(
        rate=rate,
        total=measured(offered.responses),
        entities=measured(offered.responses, by_entity=True),
        kinds={kind: measured(by_kind[kind]) for kind in OperationKind if kind in by_kind},
        partitions={
            place: measured(by_partition[place], by_entity=True)
            for place in _refusing(offered.responses, UNMEASURED * seconds)
        },
    )


def _refusing(responses: Sequence[Response], begin: float) -> list[int]:
    """Return the partitions that refuse clearly more than their part of all refusals."""
    sent: Counter[tuple[int, OperationKind]] = Counter()
    refused: Counter[tuple[int, OperationKind]] = Counter()
    for one in responses:
        if one.request.due >= begin and one.status != UNSENT:
            where = place_of(one.request.partition), one.request.kind
            sent[where] += 1
            refused[where] += one.status is not None
    sent_of, refused_of, places = Counter[OperationKind](), Counter[OperationKind](), Counter[int]()
    for (place, kind), number in refused.items():
        sent_of[kind] += sent[place, kind]
        refused_of[kind] += number
        places[place] += number
    found = []
    for place, number in places.items():
        requests = sum(sent[place, kind] for kind in sent_of)
        # If a limit were of kinds, or of the account, refusals would be spread as requests are.
        part = sum(refused_of[kind] * sent[place, kind] / sent_of[kind] for kind in sent_of)
        unlikely = part + _DEVIATIONS * math.sqrt(part) + _LEAST_REFUSED
        if number > MOST_REFUSED * requests and number >= unlikely:
            found.append(place)
    return sorted(found)


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
        reasons += [f"{partition_name(place)} refuses more than others" for place in step.partitions]
        limits = {one.limit for one in over.values()} | ({Limit.SERVICE} if step.partitions else set())
        # Refusals are the service's, however busy this machine is; else a busy machine explains the rest.
        refused = bool(step.partitions) or any(one.refused for one in over.values())
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


def mix_saturation(
    judged: Sequence[Judged], kinds: Mapping[OperationKind, Sequence[Judged]], mix: Mix
) -> Saturation:
    """Return where a mix saturated, in operations a second.

    The kind that saturates first says it most exactly: where its own rate is known, so is that of the mix.
    """
    found = ramp_saturation(judged)
    if found.saturated is None or found.limit is not Limit.SERVICE:
        return found
    limiting = [
        one.rate / mix.shares[kind]
        for kind, steps in kinds.items()
        if (one := ramp_saturation(steps)).limit is Limit.SERVICE and one.saturated is not None
    ]
    rate = min([found.saturated, *limiting])
    return replace(found, rate=max(found.clean or 0.0, rate))


def partition_saturation(steps: Sequence[MixStep]) -> dict[int, float]:
    """Return the entities a second that partitions took which refused more than others, by their number."""
    met: defaultdict[int, list[Judged]] = defaultdict(list)
    for step in steps:
        for place, one in step.partitions.items():
            met[place].append(Judged(one, Limit.SERVICE))
    return {place: ramp_saturation(judged).rate for place, judged in sorted(met.items())}
