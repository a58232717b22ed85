"""Slowing down when the service asks for it, as a pure rule over what was heard.

Rules kept here:

* Heard of every answer: its status and how long it took. Once a second the last second is judged.
* More than `PUSHED_BACK` of the answers said "busy" (503), "timed out" (500) or "too many" (429) for two
  seconds running, or answers take several times as long as usual: go on at nine tenths of what was done in
  that second, but never at less than half of the rate before: in a bad second little is done, whether
  or not the service could do more.
* One second of refusals alone slows nothing: a moment in which this machine stood still ends in a crowd of
  requests, and giving way to that costs ten seconds. What is refused waits by itself.
* For slow answers alone never below half of the best second: this machine may be what is slow.
* Hardly any did: a tenth more every second, until the limit that is configured is what counts again.
* A tenth of refusals is usual at a limit: so many that chance explains them slow nothing. A client that gave
  way for each of them, or for each unlucky second, would end at nothing.
* In between it grows slowly, so that a second that was taken wrongly is made good. Growth is by the clock: at
  a low rate there is seldom anything to judge.
"""

from __future__ import annotations

import math

PUSHED_BACK = 0.15
_HARDLY_ANY = 0.02
_LEAST_ANSWERS = 10
_LEAST_RATE = 50.0
_DOWN, _UP, _CREEP = 0.9, 1.1, 1.05
_LONGEST_SECONDS = 10.0
_USUAL_SHARE, _DEVIATIONS = 0.1, 2.0
_SLOW_FACTOR, _SLOW_SECONDS = 4.0, 0.25
_BUSY = frozenset({429, 500, 503})


class Pace:
    """How fast the service lets us be. Seconds are those of any clock."""

    def __init__(self, now: float) -> None:
        self.rate: float | None = None
        """Entities a second; None: as fast as is configured."""
        self.since = now
        self._usual: float | None = None
        self._best = 0.0
        self._was_pushed = False
        self._clear()

    def answered(self, status: int, seconds: float) -> None:
        """Hear of an answer."""
        self._answers += 1
        if status in _BUSY:
            self._busy += 1
        else:
            self._seconds += seconds

    def sent(self, entities: int) -> None:
        """Hear of entities that were let through."""
        self._entities += entities

    @property
    def is_crowded(self) -> bool:
        """Whether more is refused than chance explains, in this second or the one before."""
        return self._was_pushed or (self._answers >= _LEAST_ANSWERS and self._many_refused)

    @property
    def _many_refused(self) -> bool:
        usual = _USUAL_SHARE + _DEVIATIONS * math.sqrt(_USUAL_SHARE * (1 - _USUAL_SHARE) / self._answers)
        return self._busy / self._answers > max(PUSHED_BACK, usual)

    def judge(self, now: float, configured: float | None) -> None:
        """Set the rate anew when a second is over."""
        elapsed = now - self.since
        if elapsed < 1.0 or self._answers < _LEAST_ANSWERS:
            return
        share, done = self._busy / self._answers, self._entities / elapsed
        self._best = max(self._best, done)
        is_slow = self._is_slow()
        many = self._many_refused
        is_pushed, self._was_pushed = many and self._was_pushed, many
        if is_pushed or is_slow:
            least = _LEAST_RATE if is_pushed else self._best / 2
            before = self.rate or configured or self._best
            self.rate = max(least, before / 2, _DOWN * min(done, before))
        elif self.rate is not None and not many:
            growth = _UP if share < _HARDLY_ANY else _CREEP
            faster = self.rate * growth ** min(elapsed, _LONGEST_SECONDS)
            is_free = faster >= configured if configured is not None else done < self.rate / 2
            self.rate = None if is_free else faster
        self.since = now
        self._clear()

    def _is_slow(self) -> bool:
        """Compare the mean time of answers with the best there was; that is slowly forgotten."""
        if self._answers == self._busy:
            return False
        mean = self._seconds / (self._answers - self._busy)
        usual = self._usual
        self._usual = mean if usual is None else min(mean, usual * 1.02)
        return usual is not None and mean > max(_SLOW_SECONDS, _SLOW_FACTOR * usual)

    def _clear(self) -> None:
        self._answers = self._busy = self._entities = 0
        self._seconds = 0.0
