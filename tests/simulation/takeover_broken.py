"""The rules of settling for dead clients, switched off one by one, to see that the loss is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from rekey.client import takeover
from rekey.client.takeover import Sweep, TakeOver
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
        return replace(await _settle(self, *given), ambiguous=False)

    return mock.patch.object(ReversePropagator, "settle", settle)


def only_the_first_comes() -> Any:
    """Leave it to the client whose id comes first."""

    async def sweep(self: TakeOver, registry: Registry) -> Sweep:
        rows = await registry.list()
        first = min(row.client_id for row in rows)
        return await _sweep(self, registry) if self.finisher.client.client_id == first else Sweep()

    return mock.patch.object(TakeOver, "sweep", sweep)


def readers_do_not_come() -> Any:
    """Leave it to clients that write."""

    async def sweep(self: TakeOver, registry: Registry) -> Sweep:
        return await _sweep(self, registry) if self.finisher.client.counters.writes else Sweep()

    return mock.patch.object(TakeOver, "sweep", sweep)


_claim, _settle, _sweep = Journal.claim, ReversePropagator.settle, takeover.TakeOver.sweep
