"""Estimates the time remaining of a pass over rows, from its recent rate and its slowest partitions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rekey.core.plain import json_field

# The rate is that of the last fifth of the pass, at least ten seconds: older rates no longer apply, and a
# single second is noise.
RECENT_SHARE, RECENT_S = 0.2, 10.0
_PARTS = 4
_LEAST_SPREAD = 0.05

# Monotonic seconds, and the rows done by then; the last sample is now.
Samples: TypeAlias = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Lane:
    """A partition with a rate limit."""

    left: float  # rows still to be read or written
    rate: float  # entities per second


@dataclass(frozen=True, slots=True)
class Eta:
    """Estimated seconds remaining, with a lower and an upper bound."""

    seconds: float = field(metadata=json_field(digits=1))
    least_s: float = field(metadata=json_field(digits=1))
    most_s: float = field(metadata=json_field(digits=1))


def recent(samples: Samples) -> Samples:
    """Return the samples that the rate is computed from."""
    if len(samples) < 2:
        return ()
    now, began = samples[-1][0], samples[0][0]
    since = now - max(RECENT_S, RECENT_SHARE * (now - began))
    first = max((at for at, (when, _) in enumerate(samples) if when <= since), default=0)
    return samples[first:]


def rate_of(samples: Samples) -> float | None:
    """Return the rows per second of these samples; None when they span no time."""
    if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
        return None
    return (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])


def estimate(samples: Samples, total: int | None, lanes: Sequence[Lane] = ()) -> Eta | None:
    """Return the estimated time remaining; None without a rate or a total.

    Args:
        samples: rows done over time; the first sample is the beginning.
        total: rows in all, None if unknown.
        lanes: the largest partition of each table, where partitions have a rate limit.
    """
    latest = recent(samples)
    rate = rate_of(latest)
    if total is None or not rate:
        return None
    left = max(0, total - samples[-1][1])
    cuts = [len(latest) * part // _PARTS for part in range(_PARTS)]
    part_rates = (rate_of(latest[cut : cut + len(latest) // _PARTS + 1]) for cut in cuts)
    rates = [part_rate for part_rate in part_rates if part_rate]
    spread = max(_LEAST_SPREAD, min(0.9, (max(rates, default=rate) - min(rates, default=rate)) / 2 / rate))
    of_all = left / rate
    # A partition at its limit takes its own rows at that rate, however fast the others are; while others are
    # read too, the overall rate says nothing about it. The later of the two ends counts.
    of_lane = max((lane.left / lane.rate for lane in lanes), default=0.0)
    return Eta(
        max(of_all, of_lane),
        max(of_all * (1 - spread), of_lane * (1 - _LEAST_SPREAD)),
        max(of_all * (1 + spread), of_lane * (1 + _LEAST_SPREAD)),
    )
