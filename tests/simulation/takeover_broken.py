"""The rules of settling for dead clients, switched off one by one, to see that the loss is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from rekey.client import takeover
from rekey.client.takeover import Taken, TakeOver
from rekey.protocol.journal import Intent, Journal
from rekey.protocol.propagate import Propagated
from rekey.protocol.registry import Registry
from rekey.protocol.reverse import ReversePropagator


def nobody_waits_for_the_dead() -> Any:
    """Settle what a client left while its requests may still take effect."""

    def is_due(self: TakeOver, intent: Intent, *_: object) -> bool:
        return not intent.settled and intent.client_id != self.finisher.client.client_id

    return mock.patch.object(TakeOver, "_is_due", is_due)


def claims_do_not_hold() -> Any:
    """Settle what another client has claimed while its requests may still take effect."""

    async def claim(self: Journal, intent: Intent, client_id: str, epoch: int, _open_s: float) -> str | None:
        return await _claim(self, intent, client_id, epoch, 0.0)

    return mock.patch.object(Journal, "claim", claim)


def open_is_settled() -> Any:
    """Mark what was settled although a request for it may still take effect."""

    async def settle(self: ReversePropagator, *given: Any) -> Propagated:
        return replace(await _settle(self, *given), open=False)

    return mock.patch.object(ReversePropagator, "settle", settle)


def only_the_first_comes() -> Any:
    """Leave it to the client whose id comes first."""

    async def look(self: TakeOver, registry: Registry) -> Taken:
        rows = await registry.list()
        first = min(row.client_id for row in rows)
        return await _look(self, registry) if self.finisher.client.client_id == first else Taken()

    return mock.patch.object(TakeOver, "look", look)


def readers_do_not_come() -> Any:
    """Leave it to clients that write."""

    async def look(self: TakeOver, registry: Registry) -> Taken:
        return await _look(self, registry) if self.finisher.client.counters.writes else Taken()

    return mock.patch.object(TakeOver, "look", look)


_claim, _settle, _look = Journal.claim, ReversePropagator.settle, takeover.TakeOver.look
