"""Keeps reads and writes under rates, in entities (rows) a second, and pauses them for the operator."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial

from rekey.copy.aimd import BUSY, Pace, ServiceRates
from rekey.core.clock import TICKS_PER_SECOND, Clock, SystemClock
from rekey.core.limits import ACCOUNT_TARGET, PARTITION_TARGET, USED_SHARE, is_in_target_account
from rekey.core.progress import Held, Holds
from rekey.project.config import Config
from rekey.tables import allowance
from rekey.tables.allowance import Taken, at_a_rate
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Accounts
from rekey.tables.sent import RequestKind

_LOG = logging.getLogger("rekey.copy")
# Unused allowance that is kept: enough to ride out scheduling, too little to overrun a second.
_BURST_SECONDS = 0.1
_POLL_SECONDS = 0.5
_MOST_LANES = 4096
_RateOf = Callable[[], float | None]
_SINGLE = frozenset({RequestKind.READ, RequestKind.WRITE, RequestKind.DELETE})


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates that apply."""

    # Most entities a second of the account and of each partition, None for no limit.
    account: int | None = None
    partition: int | None = None
    # Nothing new is sent.
    paused: bool = False
    # The account's initial adaptive rate; None: rates do not adapt.
    begins: int | None = None


@dataclass
class _Lane:
    """A virtual scheduling clock: each entity takes 1/rate seconds of it. One batch waits at a time."""

    # When the next entity may be taken, in ticks.
    next: int = 0
    # How many were taken.
    entities: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    # Of a partition: the same for batches that have already waited for the account.
    @cached_property
    def leaving(self) -> _Lane:
        return _Lane()


@dataclass(eq=False)
class Throttle:
    """Lets batches through as fast as the rates allow: of the account (source rows read and target rows
    written) and of each partition. Mapping rows are in the restricted account and not counted here."""

    # The rate of the account; None for no limit.
    entities_per_second: int | None = None
    clock: Clock = field(default_factory=SystemClock)
    # The rate of each partition; None for no limit.
    partition: int | None = None
    # Returns the operator's rates, from those given here; polled at most twice a second, so that changes
    # apply to the next batch.
    steering: Callable[[Rates], Rates] | None = None
    # Tells that the work is to stop; then a pause holds nothing up.
    stopping: Callable[[], bool] = lambda: False
    # As in `Rates`.
    begins: int | None = None
    # The throttle of the target account, with rates by that account's own answers; None if there is none.
    target_account: Throttle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.configured = self.rates = Rates(self.entities_per_second, self.partition, begins=self.begins)
        self._polled_at: int | None = None
        self._paused_s = 0.0
        self._account = _Lane()
        self._kinds: defaultdict[RequestKind, _Lane] = defaultdict(_Lane)
        self._partitions: dict[Hashable, _Lane] = {}
        self._pace = Pace(self._now)
        self._service: ServiceRates | None = None

    def begin_target_account(self) -> None:
        """Create the throttle of the target account."""
        rates = self.configured
        self.target_account = Throttle(
            rates.account,
            self.clock,
            rates.partition,
            lambda _configured: self.poll(),
            self.stopping,
            rates.begins,
        )

    def of(self, table: str) -> Throttle:
        """Return the throttle of the account that holds a table."""
        return (
            self.target_account if self.target_account is not None and is_in_target_account(table) else self
        )

    @property
    def service(self) -> ServiceRates | None:
        """The adaptive rates, up to what the operator allows; None where rates do not adapt."""
        if self.rates.begins is None:
            return None
        if self._service is None:
            self._service = ServiceRates(self._now, self.rates.begins, PARTITION_TARGET)
        return self._service

    @property
    def has_rates(self) -> bool:
        """Whether any rate applies: then no page is fetched ahead, since it might exceed the rate."""
        return self.rates != Rates()

    @property
    def limits_partitions(self) -> bool:
        return self.rates.partition is not None or self.rates.begins is not None

    def heard(self, kind: RequestKind, status: int, seconds: float) -> None:
        """Record an answer of the service.

        Args:
            kind: of the request.
            status: of HTTP; 0 where no answer came in time.
            seconds: how long it took.
        """
        if (service := self.service) is None:
            if status:
                self._pace.answered(status, seconds)
            return
        now, taken, is_refused = self._now, allowance.taken(), status == 0 or status in BUSY
        partition = None if taken is None else taken.partition
        service.answered(now, kind, partition, seconds, refused=is_refused)
        if is_refused and taken is None and kind in _SINGLE:
            service.sent(now, kind, -1)

    def poll(self) -> Rates:
        """Return the rates that apply now; polls `steering` if that was not done for half a second."""
        now = self._ticks
        due = self._polled_at is None or now - self._polled_at >= _POLL_SECONDS * TICKS_PER_SECOND
        if self.steering is not None and due:
            if self.rates.paused and self._polled_at is not None:
                self._paused_s += (now - self._polled_at) / TICKS_PER_SECOND
            self._polled_at = now
            self.rates = self.steering(self.configured)
        return self.rates

    def paused_s(self) -> float:
        """Return for how many seconds the work has been paused so far."""
        self.poll()
        return self._paused_s

    async def open(self) -> None:
        """Wait while the operator has paused the work, unless it is to stop. Sent requests are finished."""
        while self.poll().paused and not self.stopping():
            await self.clock.sleep(_POLL_SECONDS)

    def count(self, entities: int, partition: Hashable) -> None:
        """Count rows that were read of a partition: how many a page has is known when it has arrived."""
        if (rate := self._partition_rate(RequestKind.SCAN, partition)) is not None:
            self._book(self._lane(partition), rate, entities)
            if (service := self.service) is not None:
                service.sent_to(self._now, RequestKind.SCAN, partition, entities)

    async def made_up(self, partition: Hashable) -> None:
        """Wait until the partition's rate has caught up with the rows that were counted."""
        if self.limits_partitions:
            wait = self._lane(partition).next - self._ticks
            if wait > 0:
                await self.clock.sleep(wait / TICKS_PER_SECOND)

    async def arrived(self, entities: int, partition: Hashable | None) -> None:
        """Count a page that has arrived (`partition`: None for several); wait until the next may be
        requested."""
        if partition is not None:
            self.count(entities, partition)
        await self.take(entities)
        if partition is not None:
            await self.made_up(partition)

    async def arrived_from(self, table: str, entities: int, partition: Hashable | None) -> None:
        """Count a page of a table at the rates of its account, as `arrived`."""
        await self.of(table).arrived(entities, partition)

    async def take(
        self,
        entities: int,
        partition: Hashable | None = None,
        kind: RequestKind = RequestKind.SCAN,
        *,
        first: bool = False,
    ) -> None:
        """Wait until more may be read or written. `partition`: of the entities, None for several; `first`:
        skip the queue."""
        await self.open()
        of_partition = partial(self._partition_rate, kind, partition)
        own = None if partition is None or not self.limits_partitions else self._lane(partition)
        if own is not None:
            await self._wait(own, of_partition, entities, first=first)
        self._judge()
        for lane, rate_of in self._lanes(kind):
            first = await self._wait(lane, rate_of, entities, first=first) or first
        if own is not None:
            # What a partition let through one by one may leave the account's queue all at once.
            await self._wait(own.leaving, of_partition, entities)
        self._sent(entities, kind)
        if partition is not None and (service := self.service) is not None:
            service.sent_to(self._now, kind, partition, entities)

    async def admit(self, kind: RequestKind) -> None:
        """Wait until a request for a single row may be sent for which nothing was taken."""
        if self.service is None or kind not in _SINGLE or allowance.taken() is not None:
            return
        self._judge()
        (own, own_rate), (account, account_rate) = self._lanes(kind)

        def rate_of() -> float:
            return min(own_rate() or math.inf, account_rate() or math.inf)

        # A single row, which finishes work already begun, does not wait for pages of a thousand; they wait
        # for it.
        await self._wait(own, rate_of, 1, first=True)
        self._book(account, account_rate() or math.inf, 1)
        self._sent(1, kind)

    def _judge(self) -> None:
        if (service := self.service) is None:
            self._pace.judge(self._now, self.rates.account)
        elif service.judge(self._now):
            _LOG.info("the service pushed back; %s", self.describe(), extra={"event": "pushed-back"})

    def give_back(self, entities: int, kind: RequestKind = RequestKind.SCAN) -> None:
        """Return unused entities to the account's rate: a page may have fewer rows than it could hold."""
        for lane, rate_of in self._lanes(kind):
            if (rate := rate_of()) is not None:
                self._return(lane, rate, entities)
        self._sent(-entities, kind)

    def refused(self, entities: int, partition: Hashable | None, kind: RequestKind, at: float) -> None:
        """Return the entities of a refused request sent `at`."""
        if (service := self.service) is not None:
            service.sent(at, kind, -entities)
            if partition is not None:
                service.sent_to(at, kind, partition, -entities)
            return
        # Where many are refused, more is sent than the service can take: nothing is returned.
        if self._pace.is_crowded:
            self._pace.sent(-entities)
            return
        if partition is not None and (rate := self._partition_rate(kind, partition)) is not None:
            self._return(self._lane(partition), rate, entities)
        self.give_back(entities, kind)

    def count_anew(self) -> None:
        """Reset the counts of entities taken."""
        if self.target_account is not None:
            self.target_account.count_anew()
        for lane in self._partitions.values():
            lane.entities = 0

    def busiest(self) -> dict[str, tuple[int, float]]:
        """Return, by table, the entities that its busiest partition took since `count_anew`, and how many it
        may take a second; nothing where partitions have no rate."""
        busiest = {} if self.target_account is None else self.target_account.busiest()
        for partition, lane in self._partitions.items():
            table = str(partition[0]) if isinstance(partition, tuple) else ""
            if self.rates.partition is not None and lane.entities > busiest.get(table, (-1, 0.0))[0]:
                busiest[table] = (lane.entities, self.rates.partition * USED_SHARE)
        return busiest

    def current_holds(self) -> list[Held]:
        """Return what holds requests back now; nothing while all that is ready is sent."""
        rates, now = self.rates, self._ticks
        if rates.paused:
            return [Held(Holds.PAUSE)]
        holds = [] if self.target_account is None else self.target_account.current_holds()
        if self._pace.rate is not None:
            holds.append(Held(Holds.REFUSALS, round(self._pace.rate)))
        elif rates.account is not None and self._account.next > now:
            holds.append(Held(Holds.ACCOUNT, rates.account))
        waiting = sum(lane.next > now for lane in self._partitions.values())
        if rates.partition is not None and waiting:
            holds.append(Held(Holds.PARTITION, rates.partition, waiting))
        return holds

    def taken(
        self, entities: int, partition: Hashable | None = None, kind: RequestKind = RequestKind.SCAN
    ) -> AbstractContextManager[None]:
        """Return a context for sending: a refusal returns entities, the next attempt takes them again."""
        counted = (
            None if kind is RequestKind.SCAN else partition
        )  # rows of a page count when they have arrived
        at = self._now

        def refused() -> None:
            self.refused(entities, counted, kind, at)

        async def again() -> None:
            nonlocal at
            await self.take(entities, counted, kind, first=True)
            at = self._now

        return at_a_rate(Taken(refused, again, partition))

    def describe(self) -> str:
        """Return the rates of the account that apply now in words; "" for no limit."""
        kinds = [] if self.service is None else sorted(map(RequestKind, self.service.kinds))
        rates = [("", self._account_rate()), *((f" by {kind}", self._kind_rate(kind)) for kind in kinds)]
        own = ", ".join(f"{rate:,.0f} entities/s{of}" for of, rate in rates if rate is not None)
        return own if self.target_account is None else f"{own}; in [targets] {self.target_account.describe()}"

    def _partition_rate(self, kind: RequestKind, partition: Hashable) -> float | None:
        """Entities a second of a partition, times `USED_SHARE`; None for no limit."""
        rate: float | None = self.rates.partition
        if (service := self.service) is not None:
            rate = min(service.partition_rate(kind, partition), rate or math.inf)
        return None if rate is None else rate * USED_SHARE

    def _account_rate(self) -> float | None:
        """Entities a second, times `USED_SHARE`: as allowed, or less after push-back; None for no limit."""
        allowed = self.rates.account
        slowed = self._pace.rate if self.service is None else self.service.account.rate
        rate = allowed if slowed is None else min(slowed, allowed or slowed)
        return None if rate is None else rate * USED_SHARE

    def _kind_rate(self, kind: RequestKind) -> float | None:
        """Entities a second of a kind of request by itself, times `USED_SHARE`; None for no limit."""
        rate = math.inf if self.service is None else self.service.kind_rate(kind)
        return rate * USED_SHARE if rate < math.inf else None

    def _lanes(self, kind: RequestKind) -> tuple[tuple[_Lane, _RateOf], tuple[_Lane, _RateOf]]:
        return (self._kinds[kind], partial(self._kind_rate, kind)), (self._account, self._account_rate)

    def _sent(self, entities: int, kind: RequestKind) -> None:
        if (service := self.service) is None:
            self._pace.sent(entities)
        else:
            service.sent(self._now, kind, entities)

    @property
    def _now(self) -> float:
        return self.clock.monotonic()

    @property
    def _ticks(self) -> int:
        # Of the monotonic clock: after the wall clock was set back, everything would wait for that long.
        return round(self._now * TICKS_PER_SECOND)

    async def _wait(self, lane: _Lane, rate_of: _RateOf, entities: int, *, first: bool = False) -> bool:
        if rate_of() is None:
            return False
        async with nullcontext() if first else lane.turn:
            # The rate may have changed while others had their turn.
            wait = 0 if (rate := rate_of()) is None else self._book(lane, rate, entities)
            if wait > 0:
                await self.clock.sleep(wait / TICKS_PER_SECOND)
            return wait > 0

    def _book(self, lane: _Lane, rate: float, entities: int) -> int:
        """Queue entities after those of the lane; return their wait in ticks, 0 or less for none."""
        lane.entities += entities
        now = self._ticks
        start = max(lane.next, now - round(_BURST_SECONDS * TICKS_PER_SECOND))
        lane.next = start + round(entities * TICKS_PER_SECOND / rate)
        return start - now

    @staticmethod
    def _return(lane: _Lane, rate: float, entities: int) -> None:
        lane.entities -= entities
        lane.next -= round(entities * TICKS_PER_SECOND / rate)

    def _lane(self, partition: Hashable) -> _Lane:
        lane = self._partitions.get(partition)
        if lane is None:
            if len(self._partitions) >= _MOST_LANES:
                now = self._ticks
                busy = {
                    k: other
                    for k, other in self._partitions.items()
                    if other.next > now or other.turn.locked()
                }
                self._partitions = busy
            lane = self._partitions[partition] = _Lane()
        return lane


def throttle_of(
    config: Config,
    clock: Clock,
    *,
    steering: Callable[[Rates], Rates] | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> Throttle:
    """Return a throttle at the configured rates, with that of the target account if there is one. Other
    arguments as of `Throttle`."""
    limits = config.limits if config.limits.follows else config.rates
    throttle = Throttle(
        limits.account_rate,
        clock,
        partition=limits.partition_entities_per_second,
        steering=steering,
        stopping=stopping,
        begins=ACCOUNT_TARGET if limits.follows else None,
    )
    if config.targets is not None:
        throttle.begin_target_account()
    return throttle


def restricted_throttle(throttle: Throttle, config: Config) -> Throttle:
    """Return the throttle of mapping rows: without a rate, unless rates are adaptive. If the restricted
    account is also that of other tables, their throttle is returned."""
    if config.limits.follows and config.restricted.is_same_as(config.tables):
        return throttle
    same = config.targets is not None and config.restricted.is_same_as(config.targets)
    if config.limits.follows and same and throttle.target_account is not None:
        return throttle.target_account

    def rates(_configured: Rates) -> Rates:
        now = throttle.poll()
        return Rates(paused=now.paused, begins=now.begins)

    return Throttle(clock=throttle.clock, steering=rates, stopping=throttle.stopping)


def listen(accounts: Accounts, throttle: Throttle, restricted: Throttle) -> None:
    """Feed each account's answers to its throttle."""

    def heard(kind: RequestKind, status: int, seconds: float) -> None:
        if restricted.service is not None:
            restricted.heard(kind, status, seconds)

    *of_tables, restricted_account = accounts.services
    for account, own in zip(of_tables, (throttle, throttle.target_account), strict=False):
        if isinstance(account, AzureTableService) and own is not None:
            account.listen(own.heard, own.admit)
    if isinstance(restricted_account, AzureTableService) and restricted_account not in of_tables:
        # Without `admit`: single rows of the restricted account, leases among them, wait for no rate.
        restricted_account.listen(heard)
