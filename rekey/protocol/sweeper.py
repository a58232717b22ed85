"""Settling intents: what a write left unfinished is finished from what the authority says.

Rules kept here:

* Nothing is assumed about what the write did or did not do: propagate reads both sides afresh.
* An intent is removed only after its key was propagated without an open outcome, and only if it was not
  touched since it was read.
* Only intents whose time is over are taken: what a younger one announces may still be under way.
* An intent of a client that has given no sign since is settled, and kept: its process may only stand still,
  and send when it goes on. It is settled again from time to time until the client was heard of, or the
  service refuses what it had signed. The same holds for all intents while an earlier runner may be heard of.
* A key that cannot be settled keeps its intents and does not keep others from being settled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from rekey.core.clock import TICKS_PER_SECOND, rising_seconds
from rekey.core.concurrency import for_each
from rekey.errors import Findings, ServiceError
from rekey.model import EntityKey
from rekey.protocol.journal import Intent, Journal
from rekey.protocol.registry import ClientRow, refused_at
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import Side

Hopeless = Callable[[Findings], Awaitable[None]]
"""Told why a key cannot be settled."""
AGAIN_S = 10.0
"""After so long an intent that is kept is settled again."""


@dataclass(slots=True)
class Swept:
    """What one sweep did.

    Attributes:
        settled: intents removed.
        left: intents that are still there: too young, touched meanwhile, open, or failed.
        oldest_at: when the oldest of them was made or last touched, in ticks by the service's clock.
        failed: those whose key could not be propagated.
        kept: further intents that were settled, and stay.
    """

    settled: int = 0
    left: int = 0
    oldest_at: int | None = None
    failed: int = 0
    kept: int = 0

    def leave(self, intents: list[Intent], *, failed: bool = False) -> None:
        """Count intents that are still there."""
        self.left += len(intents)
        self.failed += len(intents) if failed else 0
        for intent in intents:
            if self.oldest_at is None or intent.at < self.oldest_at:
                self.oldest_at = intent.at


@dataclass(frozen=True, slots=True)
class Company:
    """Who may have something under way, as known before the journal is read.

    Attributes:
        now: ticks of the service's clock.
        clients: the clients that have a row, by id.
        usual_s: for how long what an intent announces that does not say so may be under way.
        unquiet: something of an earlier runner, or of a worker, may still take effect.
    """

    now: int
    clients: Mapping[str, ClientRow] = field(default_factory=dict)
    usual_s: float = 0.0
    unquiet: bool = False

    def is_young(self, intent: Intent) -> bool:
        """Tell whether what an intent announces may be under way, by a process that goes on."""
        return not intent.settled and self.now < self.over_at(intent)

    def over_at(self, intent: Intent) -> int:
        """Return when nothing can be under way any more of a process that went on, in ticks."""
        open_s = self.usual_s if intent.open_s is None else intent.open_s
        return intent.at + round(open_s * TICKS_PER_SECOND)

    def keeps(self, intent: Intent) -> bool:
        """Tell whether the process that made an intent may still be heard of, although its time is over."""
        row = self.clients.get(intent.client_id)
        if row is None:
            return self.unquiet  # it ended in order, or long ago
        went_on = row.beat_at >= self.over_at(intent) + round(row.longest_s * TICKS_PER_SECOND)
        return self.unquiet or not (went_on or self.now >= refused_at(row))


class Sweeper:
    """Settles the intents of a migration's journal."""

    def __init__(
        self,
        journal: Journal,
        reverse: ReversePropagator,
        *,
        monotonic: Callable[[], float] = rising_seconds,
    ) -> None:
        """Take the journal, propagate for both authorities, and what time is measured by."""
        self._journal = journal
        self._reverse = reverse
        self._monotonic = monotonic
        self._kept: dict[EntityKey, float] = {}
        """When intents that are kept were last settled."""

    async def sweep(
        self,
        authority: Side,
        company: Company,
        *,
        concurrency: int,
        check: Callable[[], None],
        hopeless: Hopeless | None = None,
    ) -> Swept:
        """Settle the intents that are there, once.

        Args:
            authority: which side decides now.
            company: who may have something under way.
            concurrency: how many keys are worked on at a time.
            check: called before each page of the journal; raises to stop.
            hopeless: told of a key that cannot be settled, whose intents are then removed; by default they
                stay.
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
                if propagated.open:
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
            await for_each(by_key.values(), settle, limit=concurrency)
            check()
        swept.kept = len(self._kept)
        return swept

    async def _keep(self, intent: Intent) -> None:
        self._kept[intent.id] = self._monotonic()
        if not intent.settled:
            with suppress(ServiceError):  # then the next sweep says so
                await self._journal.keep(intent)

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
