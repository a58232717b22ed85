"""A stress test with a mix as one page for people: figures and plots. Pure.

Rules kept here:

* It says nothing that the report does not say, and holds no key.
"""

from __future__ import annotations

from rekey.core.limits import PARTITION_TARGET
from rekey.present.page import page
from rekey.present.plots import AFTER, BEFORE, DARK, LIGHT, Series, columns
from rekey.stress.mixreport import HOW_KINDS_ARE_FOUND, KINDS_HEAD, STEPS_HEAD, MixReport, MixStage


def mix_page(report: MixReport) -> str:
    """Return the page of a report."""
    return page(
        "stress.html",
        report=report,
        plots={"ramp": _ramp, "rates": _rates, "latencies": _latencies},
        kinds_head=KINDS_HEAD,
        steps_head=STEPS_HEAD,
        how=HOW_KINDS_ARE_FOUND,
        target=PARTITION_TARGET,
    )


def _ramp(stage: MixStage) -> str:
    """Return what came through of what was offered, by rate."""
    steps = sorted(stage.steps, key=lambda step: step.rate)
    series = [
        Series("offered", [round(step.rate) for step in steps], BEFORE),
        Series("answered well", [round(step.total.achieved) for step in steps], AFTER),
    ]
    labels = [f"{step.rate:,.0f}" for step in steps]
    return columns(labels, series, f"Throughput of {stage.spread.name}", "operations a second offered")


def _rates(stage: MixStage) -> str:
    """Return the rate that each kind carries."""
    kinds = [one.kind.replace("_", " ") for one in stage.kinds]
    values = [round(one.saturation.rate) for one in stage.kinds]
    series = [Series("operations a second", values, AFTER)]
    return columns(kinds, series, "What each kind of operation carries", "kind of operation", values=True)


def _latencies(stage: MixStage) -> str:
    """Return the percentiles of each kind's latency at the highest rate at which the mix held."""
    found = [(one.kind.replace("_", " "), one.clean) for one in stage.kinds if one.clean is not None]
    series = [
        Series(name, [round(1000 * (getattr(step, name) or 0.0), 1) for _, step in found], colour)
        for name, colour in (("p50", LIGHT), ("p95", AFTER), ("p99", DARK))
    ]
    title = "Latency of each kind of operation, in milliseconds"
    return columns([kind for kind, _ in found], series, title, "kind of operation", values=True)
