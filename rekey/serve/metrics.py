"""The progress document as metrics for Prometheus (https://prometheus.io/docs/practices/naming/). Labels are
a migration, a phase or fixed words: no key, safe id or client. An unknown value is an absent series, never a
zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rekey.errors import ConfigurationError
from rekey.serve.watch import Watch

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# The clients' counters that are exported as sums.
COUNTED = ("writes", "replica_failures", "matched", "mismatched", "ignored")
HELD_BACK = ("pause", "account", "partition", "refusals", "lease", "wait")
STANDINGS = ("live", "silent", "over")


def exposed(families: Callable[[], Iterator[Metric]], accept: str) -> tuple[bytes, str]:
    """Return metrics as text, and their content type. `accept`: the request's Accept header.

    Raises:
        ConfigurationError: the extra `metrics` is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder
        from prometheus_client.registry import Collector
    except ImportError:
        hint = "install rekey with its extra: pip install 'rekey-tables[metrics]'"
        raise ConfigurationError("metrics need the package prometheus-client", hint=hint) from None

    class Seen(Collector):
        def collect(self) -> Iterator[Metric]:
            return families()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Seen())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def families(watch: Watch) -> Iterator[Metric]:
    """Yield the metrics of the latest document."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    failures = CounterMetricFamily("rekey_looks_failed", "Failed reads of the migrations.")
    failures.add_metric([], watch.failures)
    yield failures
    if watch.document is None or watch.age_s is None:
        return
    age = GaugeMetricFamily("rekey_look_age_seconds", "Age of the status that these figures are from.")
    age.add_metric([], watch.age_s)
    yield age
    gauges: dict[str, GaugeMetricFamily] = {}
    counters: dict[str, CounterMetricFamily] = {}
    for migration in watch.document["migrations"]:
        script = migration["script_id"]
        for name, help_text, labels, value in _gauges(migration, watch.document["as_of"]):
            if value is not None:
                names = ["migration", *labels]
                family = gauges.setdefault(name, GaugeMetricFamily(f"rekey_{name}", help_text, labels=names))
                family.add_metric([script, *labels.values()], float(value))
        for name in COUNTED:
            if name in migration["counted"]:
                text = f"Clients of the application: {name.replace('_', ' ')}."
                counter = CounterMetricFamily(f"rekey_clients_{name}", text, labels=["migration"])
                counters.setdefault(name, counter).add_metric([script], migration["counted"][name])
    yield from gauges.values()
    yield from counters.values()


def _gauges(migration: dict[str, Any], as_of: str) -> Iterator[tuple[str, str, dict[str, str], float | None]]:
    """Yield name without prefix, help, further labels and value of a migration's gauges."""
    phase, work = migration["phase"], migration["work"] or {}
    labels = {"phase": phase["name"] or "none", "state": phase["state"]}
    yield "phase", "1 for the phase that the migration is in, and its state.", labels, 1
    yield "safe", "1 when nothing is at risk and no action is needed now.", {}, migration["safe"]
    yield "pass_rows", "Rows that the pass at work has done.", {}, work.get("rows")
    yield "pass_rows_estimated", "Rows of the pass at work in all.", {}, work.get("estimated_rows")
    yield "pass_rows_per_second", "Rate of the pass at work.", {}, work.get("rows_per_second")
    left = (work.get("eta") or {}).get("seconds")
    yield "pass_remaining_seconds", "How long the pass at work takes yet, estimated.", {}, left
    yield "lag_seconds", "By how much replicas are behind at most.", {}, migration["lag_s"]
    followed = migration["following"] is not None and migration["following"]["at_work"]
    yield "following", "1 while it is kept up to date before the cutover.", {}, followed
    age = None if migration["checkpoint"] is None else migration["checkpoint"]["age_s"]
    yield "checkpoint_age_seconds", "Age of the last checkpoint.", {}, age
    yield "divergent_rows", "Rows that differed in the last full verification.", {}, migration["divergences"]
    journal = migration["journal"] or {}
    yield "journal_intents", "Intents that are not settled.", {}, journal.get("depth")
    abandoned = (journal.get("abandoned") or {"intents": 0})["intents"] if journal else None
    yield "journal_abandoned_intents", "Unsettled intents of clients that are gone.", {}, abandoned
    if oldest := journal.get("oldest_at"):
        since = datetime.fromisoformat(as_of) - datetime.fromisoformat(oldest)
        yield "journal_oldest_age_seconds", "Age of the oldest intent.", {}, since.total_seconds()
    standing = Counter(client["standing"] for client in migration["clients"])
    for word in STANDINGS:
        yield "clients", "Clients of the application.", {"standing": word}, standing[word]
    behind = sum(not client["current"] for client in migration["clients"] if client["standing"] != "over")
    yield "clients_behind", "Clients that have not acknowledged the present epoch.", {}, behind
    limits = {status["by"] for status in migration["held_back"]}
    for word in HELD_BACK:
        yield "held_back", "1 for what holds the migration back now.", {"by": word}, word in limits
