"""Settling intents: whatever a write left unfinished is finished from what the authority says.

Rules kept here:

* Nothing is assumed about what the write did or did not do: propagate reads both sides afresh.
* An intent is removed only after its key was propagated without an open outcome, and only if nobody touched
  it since it was read.
* Only intents older than the caller says are taken: what a younger one announces may still be under way.
* A key that cannot be settled keeps its intents and does not keep others from being settled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from rekey.concurrency import for_each
from rekey.dualwrite.journal import Intent, Journal
from rekey.dualwrite.propagate import Propagated, Propagator
from rekey.dualwrite.reverse import ReversePropagator
from rekey.dualwrite.rules import SOURCE, Side
from rekey.errors import Findings, ServiceError
from rekey.model import EntityKey


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did.

    Attributes:
        settled: intents removed.
        left: intents that are still there: too young, touched meanwhile, open, or failed.
        oldest_at: when the oldest of them was made or last touched, in ticks by the service's clock.
        failed: those whose key could not be propagated.
    """

    settled: int
    left: int
    oldest_at: int | None
    failed: int


class Settler:
    """Propagates the key of an intent, from whichever side is the authority."""

    def __init__(self, forward: Propagator, reverse: ReversePropagator) -> None:
        """Take propagate for both authorities."""
        self.forward = forward
        self.reverse = reverse

    async def settle(self, authority: Side, side: Side, key: EntityKey) -> Propagated:
        """Make the replicas of a key equal what the authority says.

        Args:
            authority: which side decides now.
            side: which table `key` is a key of.
            key: a source key or a main target key.

        Raises:
            ServiceError, Findings: it could not be done.
        """
        if side != SOURCE:
            # A main target key that nobody owns was never written under: owners come before rows.
            owner = await self.forward.mapping.owner(key)
            if owner is None:
                return Propagated()
            key = owner.source
        if authority == SOURCE:
            return await self.forward.propagate(key)
        return await self.reverse.propagate(key)


class Sweeper:
    """Settles the intents of a migration's journal."""

    def __init__(self, journal: Journal, forward: Propagator, reverse: ReversePropagator) -> None:
        """Take the journal and propagate for both authorities."""
        self._journal = journal
        self._settler = Settler(forward, reverse)

    async def sweep(
        self, authority: Side, *, older_than: int | None, concurrency: int, check: Callable[[], None]
    ) -> Swept:
        """Settle the intents that are there, once.

        Args:
            authority: which side decides now.
            older_than: take only intents made and touched before this moment, in ticks by the service's
                clock; None takes all.
            concurrency: how many keys are worked on at a time.
            check: called before each page of the journal; raises to stop.
        """
        counts = _Counts()

        async def settle(intents: list[Intent]) -> None:
            side, key = intents[0].side, intents[0].key
            try:
                propagated = await self._settler.settle(authority, side, key)
            except (ServiceError, Findings):
                counts.leave(intents, failed=True)
                return
            if propagated.open:
                counts.leave(intents)
                return
            for intent in intents:
                await self._end(intent, counts)

        check()
        async for page in self._journal.scan():
            old = [one for one in page if older_than is None or one.at < older_than]
            counts.leave([one for one in page if one not in old])
            by_key: defaultdict[tuple[Side, EntityKey], list[Intent]] = defaultdict(list)
            for intent in old:
                by_key[intent.side, intent.key].append(intent)
            await for_each(by_key.values(), settle, limit=concurrency)
            check()
        return Swept(counts.settled, counts.left, counts.oldest_at, counts.failed)

    async def _end(self, intent: Intent, counts: _Counts) -> None:
        try:
            ended = await self._journal.end_if(intent)
        except ServiceError:
            counts.leave([intent], failed=True)
            return
        if ended:
            counts.settled += 1
        else:
            counts.leave([intent])


@dataclass(slots=True)
class _Counts:
    settled: int = 0
    left: int = 0
    failed: int = 0
    oldest_at: int | None = None

    def leave(self, intents: list[Intent], *, failed: bool = False) -> None:
        self.left += len(intents)
        self.failed += len(intents) if failed else 0
        for intent in intents:
            if self.oldest_at is None or intent.at < self.oldest_at:
                self.oldest_at = intent.at
