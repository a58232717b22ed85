"""Slowing down when the service asks for it: a pure rule over the answers of the service.

Rules kept here:

* The input is the status and the duration of every answer. Once a second the last second is judged.
* More than `PUSHED_BACK` of the answers said "busy" (503), "timed out" (500) or "too many" (429) for two
  seconds running, or answers take several times as long as usual: the new rate is nine tenths of what was
  done in that second (of the rate before, if that was less), but at least half of the rate before: in a bad
  second little is done, whether or not the service could do more. For refusals it never falls below 50
  entities a second.
* One second of refusals alone slows nothing: after this machine stood still for a moment it sends a crowd of
  requests, and slowing down for their refusals costs ten seconds. A refused request waits by itself before it
  is sent again.
* For slow answers alone the rate never falls below half of the best second: this machine may be what is slow.
* Hardly any answers said so: the rate grows by a tenth a second, until the configured limit applies again.
* A tenth of refusals is usual at a limit: a share that chance explains slows nothing. A client that slowed
  down for each refusal, or for each unlucky second, would end at a rate near zero.
* In between the rate grows slowly, so that a wrong slowdown is made good. Growth is by the clock: at a low
  rate there is seldom anything to judge.
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
# Statuses by which the service says that it was asked too much.
BUSY = frozenset({429, 500, 503})


class Pace:
    """The rate that the service allows, by its answers. Seconds are those of any clock."""

    def __init__(self, now: float) -> None:
        # Entities a second; None: the configured rate applies.
        self.rate: float | None = None
        self.since = now
        self._usual: float | None = None
        self._best = 0.0
        self._was_pushed = False
        self._clear()

    def answered(self, status: int, seconds: float) -> None:
        """Count an answer: its HTTP status and how long it took."""
        self._answers += 1
        if status in BUSY:
            self._busy += 1
        else:
            self._seconds += seconds

    def sent(self, entities: int) -> None:
        """Count entities that were let through."""
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
        """Set the rate anew when a second is over and had enough answers; `configured`: None for no limit."""
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
        """Tell whether answers are slow: compare their mean time with the best mean, slowly forgotten."""
        if self._answers == self._busy:
            return False
        mean = self._seconds / (self._answers - self._busy)
        usual = self._usual
        self._usual = mean if usual is None else min(mean, usual * 1.02)
        return usual is not None and mean > max(_SLOW_SECONDS, _SLOW_FACTOR * usual)

    def _clear(self) -> None:
        self._answers = self._busy = self._entities = 0
        self._seconds = 0.0
