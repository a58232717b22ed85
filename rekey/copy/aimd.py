"""Rates set by the service's answers: adaptive ones (`ServiceRates`), and a configured one that push-back
slows down (`Pace`). Pure rules over time and answers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

_WINDOW_S, _LEAST_ANSWERS, _LONGEST_S = 1.0, 5, 10.0
# After halving: time until requests admitted at the old rate are sent.
_DRAIN_S = 0.5
_LEAST_REFUSED, _DEVIATIONS = 2, 3.0
_RARE, _USUAL = 0.01, 0.1
_USED = 0.8
# Growth in a second: this part of the initial rate; near the ceiling this part of the ceiling; and how near
# that is.
_STEP, _PROBE, _NEAR = 0.05, 0.005, 0.05
_LEAST_PART = 1 / 400
# Minimum expected refusals before zero refusals is significant: to conclude that a tenth is no longer usual,
# and that a kind of request is fine where others are refused.
_TO_FORGET, _TO_CLEAR = 5.0, 4.0
_IDLE_S = 60.0

# Of a configured rate (`Pace`).
_PACED_DOWN, _RARELY, _LEAST_PACED, _PACED_DEVIATIONS = 0.15, 0.02, 10, 2.0
_LEAST_RATE = 50.0
_DOWN, _UP, _CREEP = 0.9, 1.1, 1.05
_SLOW_FACTOR, _SLOW_SECONDS = 4.0, 0.25
# Push-back, as documented in "Scalability and performance targets for Table storage": 503 (ServerBusy), 500
# (OperationTimedOut), 429; and no answer in time.
BUSY = frozenset({429, 500, 503})

# A kind of request and a partition; None for an unknown partition.
Place = tuple[str, Hashable]


@dataclass(slots=True, eq=False)
class RateWindow:
    """The answers and entities that a limit is judged by."""

    # When it began, in seconds of any clock.
    since: float
    answers: int = 0
    refused: int = 0
    entities: float = 0.0

    def is_due(self, now: float) -> bool:
        """Tell whether it is over."""
        return now - self.since >= _WINDOW_S and self.answers >= _LEAST_ANSWERS

    def carried(self, now: float) -> float:
        """Return the entities a second that were carried in it."""
        return self.entities / max(_WINDOW_S, now - self.since)


@dataclass(slots=True, eq=False)
class Limit:
    """The rate of one account, kind of request or partition. Rates are in entities a second."""

    # The initial rate; growth and the least rate are measured by it.
    begins: float
    rate: float
    window: RateWindow
    # What the service carried when it last pushed back; None: it never did.
    ceiling: float | None = None
    # Answers to requests that were sent before this do not count.
    cut: float = -math.inf
    # A window was judged since it was halved.
    is_settled: bool = True
    # The share of refusals that this rate does not cause.
    usual: float = _RARE
    # When anything was sent last.
    used: float = field(init=False)
    # Rate of the window before; None at first.
    carried: float | None = None
    # Answers in windows since the last with refusals.
    clean: int = 0

    def __post_init__(self) -> None:
        self.used = self.window.since

    def answered(self, now: float, seconds: float, *, refused: bool) -> bool:
        """Count an answer, unless its request was sent before the rate was halved; tell whether it counts."""
        # As in RFC 6582, whose recovery point does this for a window of TCP.
        if now - seconds < self.cut:
            return False
        self.window.answers += 1
        self.window.refused += refused
        return True

    def is_pushed_back(self, answers: int, refused: int, outside: float = 0.0) -> bool:
        """Tell whether more answers are refusals than is usual and than chance explains. `outside`: the share
        of refusals among other answers."""
        if refused < _LEAST_REFUSED:
            return False
        usual = max(self.usual if self.is_settled else _USUAL, outside)
        by_chance = _DEVIATIONS * math.sqrt(usual * (1 - usual) / answers)
        return refused / answers > usual + by_chance

    def halve(self, now: float) -> None:
        """Halve the rate, and remember what was carried in the window."""
        carried = self.window.carried(now)
        if self.carried is not None:
            # At a low rate one page is a large part of a second; and under repeated halving, while most
            # requests wait for their retry, less is sent than the service would carry.
            carried = (carried + self.carried) / 2 if self.is_settled else max(carried, self.carried)
        before = self.rate if math.isfinite(self.rate) else carried
        self.ceiling = max(carried, before / 2)
        self.rate = max(before / 2, self.begins * _LEAST_PART)
        self.is_settled = False
        self.drain(now)

    def drain(self, now: float) -> None:
        """Begin a window with what is sent after older requests are gone."""
        self.restart(now)
        self.cut = self.window.since = now + _DRAIN_S

    def sent(self, now: float, entities: int) -> None:
        """Count entities sent at a time; a negative number takes back those of a refused request."""
        self.used = max(self.used, now)
        if now >= self.window.since:
            self.window.entities += entities

    def grow(self, now: float) -> None:
        """Raise the rate after a window without push-back."""
        window = self.window
        self.clean = self.clean + window.answers if window.refused < _LEAST_REFUSED else 0
        if not self.is_settled and window.refused >= _LEAST_REFUSED:
            self.usual = _USUAL
        elif _USUAL * self.clean >= _TO_FORGET:
            self.usual = _RARE
        self.is_settled = True
        seconds = now - window.since
        # As CUBIC (RFC 9438): back to just below what the service carried, slowly up to it, in full steps
        # beyond. Halving and growing in equal steps alone would give away a quarter of what the service can
        # take.
        if self.ceiling is not None and self.rate < (1 - _NEAR) * self.ceiling:
            self.rate = (1 - _NEAR) * self.ceiling
        # Only a rate that is used shows anything (RFC 7661). Growth is additive (Chiu and Jain 1989).
        elif window.entities >= _USED * self.rate * seconds:
            # Where refusals are usual, the ceiling may not have been real.
            if self.usual > _RARE or self.ceiling is None or self.rate > (1 + _NEAR) * self.ceiling:
                self.rate += _STEP * self.begins * min(seconds, _LONGEST_S)
            elif window.refused < _LEAST_REFUSED:
                self.rate += _PROBE * self.ceiling * min(seconds, _LONGEST_S)
        self.restart(now)

    def restart(self, now: float) -> None:
        self.carried, self.window = self.window.carried(now), RateWindow(now)


class ServiceRates:
    """The rates that one account of the service allows, by its answers: limits in entities a second for the
    account, for each kind of request, and for each kind in a partition.

    Args:
        now: seconds of any clock; so are all times here.
        account, partition: the initial rates, the service's published targets. A kind has no limit until it
            is pushed back while other kinds are not.
    """

    def __init__(self, now: float, account: float, partition: float) -> None:
        self.account = Limit(account, account, RateWindow(now))
        self.kinds: dict[str, Limit] = {}
        self.partitions: dict[Place, Limit] = {}
        self._begins = partition
        # Refusals that a kind would have had since its last one, had the others' been due to the account.
        self._cleared: defaultdict[str, float] = defaultdict(float)
        self._answers: Counter[Place] = Counter()
        self._refused: Counter[Place] = Counter()

    def partition_rate(self, kind: str, partition: Hashable) -> float:
        """Return how many entities a second a kind of request may ask of a partition."""
        known = self.partitions.get((kind, partition))
        return self._begins if known is None else known.rate

    def kind_rate(self, kind: str) -> float:
        """Return the limit of a kind of request by itself; infinite where it has none."""
        known = self.kinds.get(kind)
        return math.inf if known is None else known.rate

    def sent(self, now: float, kind: str, entities: int) -> None:
        """Count entities that are sent. Those of a refused request are negative, at the time it was sent."""
        self.account.sent(now, entities)
        self._kind(now, kind).sent(now, entities)

    def sent_to(self, now: float, kind: str, partition: Hashable, entities: int) -> None:
        """Count the same entities for their partition, which for a page is known only later."""
        place = (kind, partition)
        if (limit := self.partitions.get(place)) is None:
            limit = self.partitions[place] = Limit(self._begins, self._begins, RateWindow(now))
        limit.sent(now, entities)

    def _kind(self, now: float, kind: str) -> Limit:
        if (limit := self.kinds.get(kind)) is None:
            limit = self.kinds[kind] = Limit(self.account.begins, math.inf, RateWindow(now))
        return limit

    def answered(self, now: float, kind: str, partition: Hashable, seconds: float, *, refused: bool) -> None:
        """Count an answer, `seconds` after its request was sent. `refused`: pushed back, or not in time."""
        place = (kind, partition)
        self._kind(now, kind)
        if (known := self.partitions.get(place)) is not None:
            known.answered(now, seconds, refused=refused)
        if self.account.answered(now, seconds, refused=refused):
            self._answers[place] += 1
            self._refused[place] += refused

    def judge(self, now: float) -> bool:
        """Update all rates when a window is over; tell whether one was halved."""
        if not self.account.window.is_due(now):
            return False
        due = {place: limit for place, limit in self.partitions.items() if limit.window.is_due(now)}
        hot = {
            place
            for place, limit in due.items()
            if limit.is_pushed_back(limit.window.answers, limit.window.refused, self._share_outside(place))
        }
        guilty = self._guilty(
            hot | {place for place, limit in self.partitions.items() if not limit.is_settled}
        )
        for limit in (self.account, *self.kinds.values(), *self.partitions.values()) if guilty else ():
            limit.halve(now) if limit in guilty else limit.drain(now)
        if not guilty:
            for limit in (self.account, *self.kinds.values()):
                limit.grow(now)
            for place, limit in due.items():
                limit.halve(now) if place in hot else limit.grow(now)
        self._answers.clear()
        self._refused.clear()
        self.partitions = {
            place: limit for place, limit in self.partitions.items() if now - limit.used < _IDLE_S
        }
        return bool(guilty or hot)

    def _share_outside(self, place: Place) -> float:
        """Return the share of refusals outside a partition; 0 where hardly anything else was asked."""
        answers = self._answers.total() - self._answers[place]
        refused = self._refused.total() - self._refused[place]
        return refused / answers if answers >= _LEAST_ANSWERS else 0.0

    def _guilty(self, apart: set[Place]) -> list[Limit]:
        """Return the limits of account or kinds that explain the refusals outside the partitions `apart`."""
        # The narrowest limit that explains the refusals is halved: a partition if the rest was fine, a kind
        # if others are shown to be, else the account. Too wide costs a second, too narrow another window.
        answers, refused, places = Counter[str](), Counter[str](), Counter[str]()
        for place, count in self._answers.items():
            if place not in apart:
                answers[place[0]] += count
                refused[place[0]] += self._refused[place]
                # Refusals in a single partition are no evidence about its account.
                places[place[0]] += 2 if place[1] is None else self._refused[place] > 0
        pushed = [
            kind
            for kind, count in answers.items()
            if places[kind] > 1 and self.account.is_pushed_back(count, refused[kind])
        ]
        for kind in +refused:
            self._cleared[kind] = 0
        if not pushed:
            return []
        share = sum(refused[kind] for kind in pushed) / sum(answers[kind] for kind in pushed)
        others = [kind for kind in answers if kind not in pushed]
        for kind in others:
            self._cleared[kind] += share * answers[kind] * (not refused[kind])
        is_known = all(self.kinds[kind].ceiling is not None for kind in pushed)
        are_fine = (
            bool(others)
            and not any(refused[kind] for kind in others)
            and (is_known or sum(self._cleared[kind] for kind in others) >= _TO_CLEAR)
        )
        return [self.kinds[kind] for kind in pushed] if are_fine else [self.account]


class Pace:
    """How far push-back slows a configured rate down, judged once a second (of any clock)."""

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
        self._entities += entities

    @property
    def is_crowded(self) -> bool:
        """Whether more is refused than chance explains, in this second or the one before."""
        return self._was_pushed or (self._answers >= _LEAST_PACED and self._many_refused)

    @property
    def _many_refused(self) -> bool:
        # At a limit a tenth is usual, and so is what chance adds: a client that slowed down for each refusal,
        # or each unlucky second, would end at a rate near zero.
        usual = _USUAL + _PACED_DEVIATIONS * math.sqrt(_USUAL * (1 - _USUAL) / self._answers)
        return self._busy / self._answers > max(_PACED_DOWN, usual)

    def judge(self, now: float, configured: float | None) -> None:
        """Update the rate when a second is over and had enough answers; `configured`: None for no limit."""
        elapsed = now - self.since
        if elapsed < 1.0 or self._answers < _LEAST_PACED:
            return
        share, done = self._busy / self._answers, self._entities / elapsed
        self._best = max(self._best, done)
        is_slow = self._is_slow()
        many = self._many_refused
        # A single second of refusals slows nothing: after a pause this machine sends a burst, and slowing
        # down for its refusals costs ten seconds.
        is_pushed, self._was_pushed = many and self._was_pushed, many
        if is_pushed or is_slow:
            # Where answers are slow, this machine may be the slow one.
            least = _LEAST_RATE if is_pushed else self._best / 2
            before = self.rate or configured or self._best
            # In a bad second little is done, whether or not the service could do more: keep at least half.
            self.rate = max(least, before / 2, _DOWN * min(done, before))
        elif self.rate is not None and not many:
            # With some refusals the rate creeps up, to undo a wrong slowdown. Growth is by the clock: at a
            # low rate there is seldom anything to judge.
            growth = _UP if share < _RARELY else _CREEP
            faster = self.rate * growth ** min(elapsed, _LONGEST_S)
            is_free = faster >= configured if configured is not None else done < self.rate / 2
            self.rate = None if is_free else faster
        self.since = now
        self._clear()

    def _is_slow(self) -> bool:
        """Compare the mean time of answers with the best mean, which is slowly forgotten."""
        if self._answers == self._busy:
            return False
        mean = self._seconds / (self._answers - self._busy)
        usual = self._usual
        self._usual = mean if usual is None else min(mean, usual * 1.02)
        return usual is not None and mean > max(_SLOW_SECONDS, _SLOW_FACTOR * usual)

    def _clear(self) -> None:
        self._answers = self._busy = self._entities = 0
        self._seconds = 0.0
