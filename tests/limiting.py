"""Services that refuse what goes beyond a rate, as Azure does and Azurite does not."""

from __future__ import annotations

import re
from collections import defaultdict

from benchmarks.stub import Bucket
from rekey.core.clock import TICKS_PER_SECOND, Clock
from tests.faultproxy import Answered, Asked, FaultProxy, error_answer
from tests.faults import Call, Fault, FaultKind

_PARTITION = re.compile(rb'"PartitionKey": ?"([^"]*)"')


class PartitionLimit:
    """Faults of tables in memory: busy, beyond so many rows a second of one partition."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self._buckets: defaultdict[str, Bucket] = defaultdict(
            lambda: Bucket(rate, lambda: clock.ticks() / TICKS_PER_SECOND)
        )

    def decide(self, call: Call) -> Fault | None:
        """Refuse a write whose partition has no allowance left."""
        if not call.operations:
            return None
        partition = call.operations[0].key.partition
        return None if self._buckets[partition].take(len(call.operations)) else Fault(FaultKind.BUSY)


class LimitProxy(FaultProxy):
    """A proxy that answers 503 beyond so many rows a second of one partition."""

    def __init__(self, upstream: str, rate: float) -> None:
        super().__init__(upstream)
        self._buckets: defaultdict[bytes, Bucket] = defaultdict(lambda: Bucket(rate))
        self.refused = 0

    async def _pass_on(self, asked: Asked) -> Answered:
        self.asked.clear()  # a stress test sends more than a test needs to remember
        partitions = _PARTITION.findall(asked.body)
        if partitions and not self._buckets[partitions[0]].take(len(partitions)):
            self.refused += 1
            return error_answer(503, "ServerBusy", Retry_After="1")
        return await super()._pass_on(asked)
