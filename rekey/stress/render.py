"""A stress test as text for people. Pure.

Rules kept here:

* The first line of a stage says what was found; the steps after it show why.
* It says plainly when this machine was the limit: then the service was not measured.
"""

from __future__ import annotations

from collections.abc import Iterable

from rekey.present.text import counted, wrapped
from rekey.stress.report import Stage, StressReport, total_refused
from rekey.stress.steps import Limit

_HEAD = "    offered/s  achieved/s     p50 ms     p95 ms     p99 ms   requests    refused"


def stress_text(report: StressReport) -> str:
    """Return the whole report."""
    lines: list[str] = []
    if report.removed:
        removed = ", ".join(report.removed)
        lines += wrapped(f"Left by an earlier stress test, removed now: {removed}", rest="  ")
    for stage in report.stages:
        lines += [*_stage(stage), ""]
    lines += _declared(report)
    if report.refused_rows:
        lines.append(f"{report.refused_rows:,} rows of the sample cannot be mapped and were left out.")
    lines += wrapped(
        f"{report.sent:,} made-up rows of 1 KiB, {report.batch} in a request, in {report.seconds:.0f} s,"
        f" to the table {report.table}, which is removed.",
        rest="  ",
    )
    return "\n".join(lines) + "\n"


def _stage(stage: Stage) -> list[str]:
    spread = stage.spread
    about = (
        "one partition"
        if not spread.table
        else f"spread as in {spread.table}: {counted(spread.partitions, 'partition')} among"
        f" {counted(spread.rows, 'row')}, the largest with {spread.largest_share:.1%}"
    )
    lines = [*wrapped(about, rest="  "), *wrapped(_found(stage), first="  ", rest="    "), _HEAD]
    for judged in stage.steps:
        step = judged.step
        times = (
            f"{'-' if seconds is None else f'{seconds * 1000:,.1f}':>11}"
            for seconds in (step.p50, step.p95, step.p99)
        )
        figures = f"    {step.offered:>9,.0f}{step.achieved:>12,.0f}{''.join(times)}"
        lines.append(f"{figures}{step.requests:>11,}{step.refused:>11,}")
        for reason in judged.reasons:
            lines += wrapped(reason, first=" " * 15 + "- ", rest=" " * 19)
    return lines


def _found(stage: Stage) -> str:
    found = stage.found
    target = f"the service's targets allow {stage.target:,.0f}/s"
    refused = total_refused(stage.steps)
    said = f", {counted(refused, 'request')} refused with 503" if refused else ""
    match found.limit:
        case Limit.SERVICE:
            between = f"clean at {found.clean:,.0f}/s, " if found.clean is not None else ""
            return (
                f"saturates at {found.rate:,.0f} rows/s ({between}no longer at"
                f" {found.saturated:,.0f}/s{said}); {target}: {found.rate / stage.target:.0%} of that"
            )
        case Limit.CLIENT:
            return (
                f"this machine was the limit, not the service: it carries {found.rate:,.0f} rows/s or more;"
                f" {target}. More rows in a request (--batch), or another machine, offers more"
            )
    why = f"; the test ended with its {stage.bounded}" if stage.bounded else ""
    return f"carries {found.rate:,.0f} rows/s or more{why}; {target}"


def _declared(report: StressReport) -> Iterable[str]:
    if report.declared is None:
        return
    for stage in report.stages[1:]:
        rate = stage.found.rate
        if stage in report.too_little:
            said = (
                f"does not carry the declared {report.declared:,.0f} writes/s: it saturates at {rate:,.0f}/s"
            )
        elif rate >= report.declared * 0.95:
            said = f"carries the declared {report.declared:,.0f} writes/s"
        else:
            said = f"was not tried with the declared {report.declared:,.0f} writes/s, only with {rate:,.0f}/s"
        yield from wrapped(f"{stage.name} {said}.", rest="  ")
