"""Settling intents: unfinished writes are finished from what the authority says. Nothing is assumed about
what the write did: propagate rereads both sides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rekey.core.clock import TICKS_PER_SECOND, monotonic_seconds
from rekey.core.concurrency import for_each
from rekey.errors import Findings, ServiceError
from rekey.model import EntityKey
from rekey.protocol.journal import Intent, IntentAge, Journal
from rekey.protocol.registry import SAFETY_S, ClientRow, is_over, refused_at
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import Side
from rekey.tables.sent import Overhead, overhead

# Called with the reason why a key cannot be settled.
Hopeless = Callable[[Findings], Awaitable[None]]
# Seconds after which an intent that is kept is settled again.
AGAIN_S = 10.0


@dataclass(slots=True)
class Swept:
    """The result of one sweep, in numbers of intents."""

    # Intents removed.
    settled: int = 0
    # Intents that remain: too young, changed meanwhile, unknown outcome, or failed.
    left: int = 0
    # The earliest `Intent.at` of those that are left, in ticks by the service's clock.
    oldest_at: int | None = None
    # Those of `left` whose key could not be propagated, or which could not be removed.
    failed: int = 0
    # Further intents, not in `left`, that were settled and stay.
    kept: int = 0

    def leave(self, intents: list[Intent], *, failed: bool = False) -> None:
        self.left += len(intents)
        self.failed += len(intents) if failed else 0
        for intent in intents:
            if self.oldest_at is None or intent.at < self.oldest_at:
                self.oldest_at = intent.at


@dataclass(frozen=True, slots=True)
class Company:
    """The processes whose requests may be in flight, as known before the journal is read."""

    # Ticks of the service's clock.
    now: int
    # The clients that have a row, by id.
    clients: Mapping[str, ClientRow] = field(default_factory=dict)
    # For how many seconds an announced write may be in flight whose intent does not say so.
    usual_s: float = 0.0
    # Whether requests of an earlier runner, or of a worker, may still take effect.
    others_in_flight: bool = False

    @classmethod
    def of(
        cls, rows: Sequence[ClientRow], now: int, *, usual_s: float, others_in_flight: bool = False
    ) -> Company:
        """Return the company of the registered clients. `usual_s`: the longest operation in seconds, where no
        client is registered."""
        longest_s = max((row.longest_s for row in rows), default=usual_s)
        return cls(now, {row.client_id: row for row in rows}, longest_s + SAFETY_S, others_in_flight)

    def is_gone(self, client_id: str) -> bool:
        """Tell whether a client has ended, or counts as ended because it has not beaten for so long."""
        row = self.clients.get(client_id)
        return row is None or is_over(row, self.now)

    def is_young(self, intent: Intent) -> bool:
        """Tell whether the write of an intent may be in flight, if its process was not suspended."""
        return not intent.settled and self.now < self.over_at(intent)

    def over_at(self, intent: Intent | IntentAge) -> int:
        """Return when the write of an intent can no longer be in flight, if its process was not suspended, in
        ticks of the service's clock."""
        open_s = self.usual_s if intent.open_s is None else intent.open_s
        return intent.at + round(open_s * TICKS_PER_SECOND)

    def keeps(self, intent: Intent) -> bool:
        """Tell whether requests of a process that worked on an intent, its client or one that claimed it, may
        still arrive although its time is over."""
        over = self.over_at(intent)
        return self.others_in_flight or any(
            self._may_be_suspended(client_id, over) for client_id in (intent.client_id, *intent.claimed_by)
        )

    def _may_be_suspended(self, client_id: str, over: int) -> bool:
        row = self.clients.get(client_id)
        if row is None:
            return False  # the client ended in order, or long ago
        # A client without a beat since may send when it resumes, until a later beat shows that it went on, or
        # the service refuses what it had signed.
        went_on = row.beat_at >= over + round(row.longest_s * TICKS_PER_SECOND)
        return not (went_on or self.now >= refused_at(row))


class Sweeper:
    """Settles the intents of a migration's journal."""

    def __init__(
        self,
        journal: Journal,
        reverse: ReversePropagator,
        *,
        monotonic: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """Create the sweeper. `reverse` propagates for both authorities; `monotonic` tells seconds."""
        self._journal = journal
        self._reverse = reverse
        self._monotonic = monotonic
        # By the id of an intent that is kept: when it was last settled, by `monotonic`.
        self._kept: dict[EntityKey, float] = {}

    async def sweep(
        self,
        authority: Side,
        company: Company,
        *,
        concurrency: int,
        check: Callable[[], None],
        hopeless: Hopeless | None = None,
    ) -> Swept:
        """Settle the intents of the journal, once. A key that cannot be settled does not hold up others.

        Args:
            authority: which side decides now.
            company: the processes whose requests may be in flight.
            concurrency: how many keys are worked on at a time.
            check: called before each page of the journal; raises to stop.
            hopeless: called for a key that cannot be settled because of Findings; its intents are then
                removed, or kept, as if it was settled. By default they stay, and count as failed.
        """
        swept = Swept()
        kept, self._kept = self._kept, {}

        async def settle(intents: list[Intent]) -> None:
            try:
                propagated = await self._reverse.settle(authority, intents[0].side, intents[0].key)
            except (Findings, ServiceError) as error:
                if hopeless is None or isinstance(error, ServiceError):
                    swept.leave(intents, failed=True)
                    return
                await hopeless(error)
            else:
                if propagated.ambiguous:
                    swept.leave(intents)
                    return
            for intent in intents:
                await (self._keep(intent) if company.keeps(intent) else self._end(intent, swept))

        check()
        async for page in self._journal.scan():
            by_key: defaultdict[tuple[Side, EntityKey], list[Intent]] = defaultdict(list)
            for intent in page:
                last = kept.get(intent.id, float("-inf"))
                if company.is_young(intent):
                    swept.leave([intent])
                elif self._monotonic() < last + AGAIN_S and company.keeps(intent):
                    self._kept[intent.id] = last
                else:
                    by_key[intent.side, intent.key].append(intent)
            with overhead(Overhead.CHANGES):
                await for_each(by_key.values(), settle, limit=concurrency)
            check()
        swept.kept = len(self._kept)
        return swept

    async def _keep(self, intent: Intent) -> None:
        self._kept[intent.id] = self._monotonic()
        if not intent.settled:
            with suppress(ServiceError):  # then a later sweep marks it
                await self._journal.keep(intent.id, intent.etag)

    async def _end(self, intent: Intent, swept: Swept) -> None:
        try:
            ended = await self._journal.end_if(intent)
        except ServiceError:
            swept.leave([intent], failed=True)
            return
        if ended:
            swept.settled += 1
        else:
            swept.leave([intent])
