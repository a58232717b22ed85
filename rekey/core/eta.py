"""How long a pass over rows will take yet: from how far it came when, and from the partitions that are slower
than the rest. Pure; arithmetic only.

Rules kept here:

* The rate is that of the last fifth of the pass, and of ten seconds at least: what came long before says
  little, and what came in one second says nothing.
* A partition that takes a fixed rate is done no sooner than its own rows at that rate, however fast the
  others are. While others are read as well, the rate of all says nothing about it: the later of the two ends
  counts.
* The spread is that of the rates within that time.
* Without a rate, or without a total, nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rekey.core.plain import told

RECENT_SHARE, RECENT_S = 0.2, 10.0
_PARTS = 4
_LEAST_SPREAD = 0.05

# Seconds of a clock that only rises, and the rows done by then; the last one is now.
Samples: TypeAlias = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Lane:
    """A partition that takes so many entities a second at most.

    Attributes:
        left: its rows that are still to be read or written.
        rate: entities a second.
    """

    left: float
    rate: float


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds that are left: the estimate, and its spread."""

    seconds: float = field(metadata=told(digits=1))
    least_s: float = field(metadata=told(digits=1))
    most_s: float = field(metadata=told(digits=1))


def recent(samples: Samples) -> Samples:
    """Return the samples of the time that the rate is taken from."""
    if len(samples) < 2:
        return ()
    now, began = samples[-1][0], samples[0][0]
    since = now - max(RECENT_S, RECENT_SHARE * (now - began))
    first = max((at for at, (when, _) in enumerate(samples) if when <= since), default=0)
    return samples[first:]


def rate_of(samples: Samples) -> float | None:
    """Return the rows a second of these samples; None when they span no time."""
    if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
        return None
    return (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0])


def estimate(samples: Samples, total: int | None, lanes: Sequence[Lane] = ()) -> Eta | None:
    """Return how long the pass takes yet; None when that cannot be said.

    Args:
        samples: how far it came when; the first one is its beginning.
        total: rows in all, None where not known.
        lanes: the largest partition of each table, where partitions have a rate.
    """
    latest = recent(samples)
    rate = rate_of(latest)
    if total is None or not rate:
        return None
    left = max(0, total - samples[-1][1])
    cuts = [len(latest) * part // _PARTS for part in range(_PARTS)]
    rates = [one for cut in cuts if (one := rate_of(latest[cut : cut + len(latest) // _PARTS + 1]))]
    spread = max(_LEAST_SPREAD, min(0.9, (max(rates, default=rate) - min(rates, default=rate)) / 2 / rate))
    of_all = left / rate
    of_lane = max((lane.left / lane.rate for lane in lanes), default=0.0)
    return Eta(
        max(of_all, of_lane),
        max(of_all * (1 - spread), of_lane * (1 - _LEAST_SPREAD)),
        max(of_all * (1 + spread), of_lane * (1 + _LEAST_SPREAD)),
    )
