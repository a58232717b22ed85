"""The steps of a ramp: requests of some seconds, measured as a whole, by kind and by partition. Pure.

Rules kept here:

* Throughput counts responses by when they came; refusals and latency count requests by when they were due.
* The beginning of a step is not measured; allowances that the service saved up for a burst go there.
* Rates of a mix are operations a second; of inserts they are rows (entities) a second, as the service's
  targets are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import quantiles
from typing import Any

from rekey.core.plain import UNTOLD, members
from rekey.stress.mix import OperationKind
from rekey.stress.requests import UNSENT, Offered, Response

# Share of a step, at its beginning, that is not measured.
UNMEASURED = 0.25
_REFUSED = frozenset({429, 500, 503})


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
