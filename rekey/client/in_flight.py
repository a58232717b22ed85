"""Which keys a client is writing and which it is settling, so that the two do not interfere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from rekey.model import EntityKey
from rekey.protocol.journal import IntentRef
from rekey.protocol.rules import Side


@dataclass(eq=False, slots=True)
class InFlight:
    """The writes of one client that have begun and not ended."""

    # Intents whose write the authority has answered, with the moment of the answer; at most their replicas
    # are missing.
    decided: dict[EntityKey, int] = field(default_factory=dict)
    # Counts moments.
    moments: Iterator[int] = field(default_factory=count)
    # Keys written by calls, from the call's start to its answer, counted.
    begun: Counter[tuple[Side, EntityKey]] = field(default_factory=Counter)
    # Keys being written, from the durable intent to the answer, counted.
    writing: Counter[tuple[Side, EntityKey]] = field(default_factory=Counter)
    # Keys of earlier writes whose replicas are being settled, by the future that ends with it.
    settling: dict[asyncio.Future[None], set[tuple[Side, EntityKey]]] = field(default_factory=dict)

    def begins(self, side: Side, key: EntityKey) -> None:
        """Record that an intent of a write is durable."""
        self.writing[side, key] += 1

    def ends(self, begun: Iterable[tuple[Side, EntityKey]], intents: Iterable[IntentRef]) -> None:
        """Record that a call is over. `begun`: the keys it was to write; `intents`: all that it wrote."""
        announced = [(intent.side, intent.key) for intent in intents]
        for counted, keys in ((self.begun, begun), (self.writing, announced)):
            for key in keys:
                counted[key] -= 1
                if not counted[key]:
                    del counted[key]

    @contextmanager
    def settles(self, intents: Iterable[IntentRef]) -> Iterator[None]:
        """Record, while the context lasts, that the replicas of an earlier write are being settled."""
        over = asyncio.get_running_loop().create_future()
        self.settling[over] = {(intent.side, intent.key) for intent in intents}
        try:
            yield
        finally:
            del self.settling[over]
            over.set_result(None)

    async def let_settle(self, keys: Collection[tuple[Side, EntityKey]]) -> None:
        """Wait until the replicas of none of the keys are being settled."""
        # A write whose answer is lost judges by its replicas whether it was applied; settling them now would
        # copy what it has just written.
        while running := [over for over, settled in self.settling.items() if not settled.isdisjoint(keys)]:
            await asyncio.wait(running)

    def is_writing(self, intents: Iterable[IntentRef], *, begun: bool = False) -> bool:
        """Tell whether a key of `intents` is written by exactly one call of this client that is in flight.
        The call that wrote the intents is not counted: it has ended. `begun`: count calls also before their
        own intents are durable."""
        # The replicas are left to the call in flight, which judges by them if its answer is lost. Concurrent
        # writes of one key judge nothing by them anyway.
        counted = self.begun if begun else self.writing
        return any(counted[intent.side, intent.key] == 1 for intent in intents)
