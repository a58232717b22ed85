"""A proxy's counters, and its metrics. Labels are fixed words or a status: no table, key or client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rekey.serve.sockets import Counts

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Meter(Counts):
    """The counters of one process, and whether it is ending."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self.is_ending = False

    def count(self, kind: str, status: int, seconds: float, *, carried: bool) -> None:
        """Count an answered request. `carried`: whether a dual-write client carried it."""
        how = "carried" if carried else "passed"
        self.requests[kind, how, status] += 1
        self._buckets[how, next((bound for bound in BUCKETS_S if seconds <= bound), float("inf"))] += 1
        self._seconds[how] += seconds  # type: ignore[assignment]

    def families(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        requests = CounterMetricFamily(
            "rekey_proxy_requests", "Requests answered.", labels=["resource", "how", "status"]
        )
        for (kind, how, status), number in sorted(self.requests.items()):
            requests.add_metric([kind, how, str(status)], number)
        yield requests
        took = HistogramMetricFamily("rekey_proxy_request_seconds", "How long they took.", labels=["how"])
        for how in sorted(self._seconds):
            total, buckets = 0, []
            for bound in (*BUCKETS_S, float("inf")):
                total += self._buckets[how, bound]
                buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
            took.add_metric([how], buckets, self._seconds[how])
        yield took
        yield GaugeMetricFamily("rekey_proxy_connections", "Open connections.", value=self.connections)
        yield CounterMetricFamily(
            "rekey_proxy_connections_refused", "Connections beyond the limit.", value=self.turned_away
        )
