"""A stress test as one page for people: figures and plots. Pure.

Rules kept here:

* It shows nothing but the report, and holds no key.
"""

from __future__ import annotations

from rekey.core.limits import PARTITION_TARGET
from rekey.present.page import page
from rekey.present.plots import AFTER, BEFORE, DARK, LIGHT, Series, columns
from rekey.stress.report import HOW_KINDS_ARE_FOUND, KINDS_HEAD, STEPS_HEAD, Stage, StressReport


def stress_page(report: StressReport) -> str:
    """Return the page of a report."""
    return page(
        "stress.html",
        report=report,
        plots={"ramp": _ramp, "latencies": _latencies},
        kinds_head=KINDS_HEAD,
        steps_head=STEPS_HEAD,
        how=HOW_KINDS_ARE_FOUND,
        target=PARTITION_TARGET,
    )


def _ramp(stage: Stage) -> str:
    """Return the plot of the rate that was carried, by the rate that was offered."""
    steps = sorted((one.step for one in stage.steps), key=lambda step: step.offered)
    series = [
        Series("offered", [round(step.offered) for step in steps], BEFORE),
        Series("answered with success", [round(step.achieved) for step in steps], AFTER),
    ]
    labels = [f"{step.offered:,.0f}" for step in steps]
    return columns(labels, series, f"Throughput of {stage.spread.name}", "offered a second")


def _latencies(stage: Stage) -> str:
    """Return the plot of each kind's percentiles of latency at the highest rate at which the mix held."""
    kinds = stage.clean.kinds if stage.clean is not None else {}
    series = [
        Series(name, [round(1000 * (getattr(step, name) or 0.0), 1) for step in kinds.values()], colour)
        for name, colour in (("p50", LIGHT), ("p95", AFTER), ("p99", DARK))
    ]
    title = "Latency of each kind of operation, in milliseconds"
    return columns([kind.label for kind in kinds], series, title, "kind of operation", values=True)
