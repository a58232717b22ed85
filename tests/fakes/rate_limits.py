"""Services that refuse what goes beyond a rate, as Azure does and Azurite does not."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from benchmarks.stub import Bucket
from rekey.core.clock import TICKS_PER_SECOND, Clock
from rekey.stress.mix import OperationKind
from tests.fakes.fault_proxy import Answered, Asked, FaultProxy, error_answer
from tests.fakes.faults import Call, Fault, FaultKind

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


KIND_OF_CALL = {
    "get": OperationKind.POINT_READ,
    "page": OperationKind.RANGE_QUERY,
    "insert": OperationKind.INSERT,
    "replace": OperationKind.UPDATE,
    "delete": OperationKind.DELETE,
    "transact": OperationKind.BATCH,
}


class PlantedLimits:
    """Limits of kinds of operations (operations a second) and of partitions (entities a second).

    Args:
        now: seconds.
        kinds: limits of kinds.
        partitions: limits of partitions, by PartitionKey.
        every: the limit of each other partition.
    """

    def __init__(
        self,
        now: Callable[[], float],
        kinds: Mapping[OperationKind, float] | None = None,
        partitions: Mapping[str, float] | None = None,
        every: float = math.inf,
    ) -> None:
        self._kinds = {kind: Bucket(rate, now) for kind, rate in (kinds or {}).items()}
        self._partitions = {name: Bucket(rate, now) for name, rate in (partitions or {}).items()}
        self._every, self._now = every, now

    def take(self, kind: OperationKind, partition: str, entities: int) -> bool:
        """Tell whether an operation is within both limits."""
        of_kind = self._kinds.get(kind)
        if of_kind is not None and not of_kind.take(1):
            return False
        if partition not in self._partitions and self._every < math.inf:
            self._partitions[partition] = Bucket(self._every, self._now)
        of_partition = self._partitions.get(partition)
        return of_partition is None or of_partition.take(entities)


class MixLimit:
    """Faults of tables in memory: busy, beyond planted limits. A range query counts as `top` rows."""

    def __init__(self, limits: PlantedLimits, top: int) -> None:
        self._limits, self._top = limits, top

    def decide(self, call: Call) -> Fault | None:
        """Refuse an operation beyond its limits."""
        kind = KIND_OF_CALL.get(call.action)
        if kind is None:
            return None
        partition = call.operations[0].key.partition if call.operations else call.read or ""
        entities = self._top if kind is OperationKind.RANGE_QUERY else len(call.operations) or 1
        return None if self._limits.take(kind, partition, entities) else Fault(FaultKind.BUSY)


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


class MixLimitProxy(FaultProxy):
    """A proxy that answers 503 beyond planted limits, as far as test tables are asked for.

    Transactions of another size than the mix has are let pass: they load the test table.
    """

    def __init__(self, upstream: str, limits: PlantedLimits, batch_rows: int) -> None:
        super().__init__(upstream)
        self._limits, self._batch_rows = limits, batch_rows

    async def _pass_on(self, asked: Asked) -> Answered:
        self.asked.clear()  # a stress test sends more than a test needs to remember
        target = unquote(asked.target)
        found = _operation(asked.method, target, asked.body)
        loads = found is not None and found[0] is OperationKind.BATCH and found[2] != self._batch_rows
        if found is not None and not loads and not self._limits.take(*found):
            return error_answer(503, "ServerBusy", Retry_After="1")
        return await super()._pass_on(asked)


_IN_TARGET = re.compile(r"PartitionKey(?: eq |=)'([^']*)'")
_TOP = re.compile(r"[$]top=(\d+)")


def _operation(method: str, target: str, body: bytes) -> tuple[OperationKind, str, int] | None:
    """Return kind, PartitionKey and entities of a request, None when it is about something else."""
    written = [one.decode() for one in _PARTITION.findall(body)]
    addressed = _IN_TARGET.search(target)
    if target.partition("?")[0].endswith("/$batch"):
        return OperationKind.BATCH, written[0], len(written)
    if method == "POST" and written:
        return OperationKind.INSERT, written[0], 1
    if addressed is None or "/rekeystress" not in target:
        return None
    if method == "GET" and "$filter=" in target:
        top = _TOP.search(target)
        return OperationKind.RANGE_QUERY, addressed[1], int(top[1]) if top else 1000
    kinds = {"GET": OperationKind.POINT_READ, "PUT": OperationKind.UPDATE, "DELETE": OperationKind.DELETE}
    return kinds[method], addressed[1], 1
