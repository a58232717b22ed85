"""One ramp: rates offered one after the other, until it is known where the service saturates.

Rules kept here:

* Time and rows are bounded for the whole test; stages that are still to come get their part.
* What connecting and making partitions takes is not measured.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from rekey.core.progress import Progress
from rekey.stress.load import Load
from rekey.stress.steps import Judged, Limit, next_rate

T = TypeVar("T")
FIRST = 8.0
"""A ramp begins at this part of what the targets allow."""
MOST = 2.0
"""And ends at so many times as much, if nothing ends it before."""
_LOAD_SECONDS, _LOAD_SHARE = 2.0, 0.05
"""What is not measured at the beginning of a ramp, at most: seconds, and a share of its time and rows."""
_LEAST_STEP_SECONDS = 1.0
REST_SECONDS = 1.0
"""What a service that refused is given to recover."""


class Ramped(NamedTuple, Generic[T]):
    """The steps of a ramp, what they say, and what ended it early: `rows`, `seconds` or ""."""

    steps: list[T]
    judged: list[Judged]
    bounded: str


async def ramp(
    load: Load,
    offer: Callable[[float, float], Awaitable[T]],
    judge: Callable[[Sequence[T]], list[Judged]],
    *,
    first: float,
    most: float,
    share: int,
    told: str,
    progress: Progress,
    entities: float = 1.0,
    beside: float = 0.0,
) -> Ramped[T]:
    """Offer rates one after the other until it saturates, or `1/share` of what is left is used up.

    Args:
        load: what is left of time and rows.
        offer: offers a rate for some seconds.
        judge: judges all steps so far.
        first: where to begin, as rates are counted.
        most: the highest rate to offer.
        share: of what is left, the part that this ramp may use.
        told: what progress calls it.
        progress: told of every step.
        entities: entities a second that a rate of 1 means.
        beside: entities a second that are offered besides, at any rate.

    Raises:
        ServiceError: something other than load is wrong.
        WorkersFailed: a process that generates load ended.
    """
    until, upto = load.share(share)
    steps: list[T] = []
    judged: list[Judged] = []
    with progress.task(f"stress {told}") as advance:
        rate = min(first, most)
        shares = (
            _LOAD_SHARE * (until - load.spent),
            _LOAD_SHARE * (upto - load.sent) / (rate * entities + beside),
        )
        await offer(rate, min(_LOAD_SECONDS, *shares))
        while (next_one := next_rate(judged, first=first, most=most)) is not None:
            left_s, rows_s = until - load.spent, (upto - load.sent) / (next_one * entities + beside)
            seconds = min(load.bounds.step_seconds, left_s, rows_s)
            if seconds < min(_LEAST_STEP_SECONDS, load.bounds.step_seconds):
                return Ramped(steps, judged, "rows" if rows_s <= left_s else "seconds")
            before = load.sent
            steps.append(await offer(next_one, seconds))
            advance(load.sent - before)
            judged = judge(steps)
            if judged[-1].limit is not Limit.NOTHING:
                await load.clock.sleep(REST_SECONDS)
    return Ramped(steps, judged, "")
