"""What a stress test found: as values, as JSON-able data, and as text for people. Pure.

Rules kept here:

* No key of an application is in a report: partitions are counted, never named.
* What a service carries at least and what it carries at most are told apart. It is said plainly when this
  machine was the limit: then the service was not measured.
* The first line of a stage says what was found; the steps after it show why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rekey.core.limits import PARTITION_TARGET
from rekey.core.plain import members, told
from rekey.present.text import counted, wrapped
from rekey.stress.spread import Spread
from rekey.stress.steps import Judged, Limit, Saturation, saturation

_HEAD = "    offered/s  achieved/s     p50 ms     p95 ms     p99 ms   requests    refused"


@dataclass(frozen=True, slots=True)
class Stage:
    """One ramp.

    Attributes:
        spread: how rows were spread.
        steps: judged, in the order in which they were made.
        bounded: what ended it early, "" when nothing did: `rows`, `seconds`.
    """

    spread: Spread
    steps: tuple[Judged, ...]
    bounded: str = ""

    @property
    def found(self) -> Saturation:
        """Return where it saturated."""
        return saturation(self.steps)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; rates in rows a second, latencies in milliseconds."""
        found = self.found
        rates = {"rate": found.rate, "clean": found.clean, "saturated": found.saturated}
        rounded = {name: None if rate is None else round(rate, 1) for name, rate in rates.items()}
        return {
            "stage": self.spread.name,
            "partitions": self.spread.partitions,
            "rows_looked_at": self.spread.rows,
            "largest_share": round(self.spread.largest_share, 4),
            "target": round(self.spread.expected),
            "saturation": {
                "limit": str(found.limit),
                "rate": rounded["rate"],
                "of_target": round(found.rate / self.spread.expected, 3),
                "clean": rounded["clean"],
                "saturated": rounded["saturated"],
            },
            "bounded": self.bounded,
            "steps": [step_json(one) for one in self.steps],
        }

    def lines(self) -> list[str]:
        """Return the lines about it for people."""
        spread = self.spread
        about = spread.name
        if spread.table:
            about = (
                f"spread as in {spread.table}: {counted(spread.partitions, 'partition')} among"
                f" {counted(spread.rows, 'row')}, the largest with {spread.largest_share:.1%}"
            )
        lines = [*wrapped(about, rest="  "), *wrapped(self._said(), first="  ", rest="    "), _HEAD]
        for judged in self.steps:
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

    def _said(self) -> str:
        """Return what was found, in a sentence."""
        found, allowed = self.found, self.spread.expected
        target = f"the service's targets allow {allowed:,.0f}/s"
        if found.limit is Limit.SERVICE:
            between = f"clean at {found.clean:,.0f}/s, " if found.clean is not None else ""
            refused = sum(one.step.refused for one in self.steps)
            said = f", {counted(refused, 'request')} refused with 503" if refused else ""
            return (
                f"saturates at {found.rate:,.0f} rows/s ({between}no longer at"
                f" {found.saturated:,.0f}/s{said}); {target}: {found.rate / allowed:.0%} of that"
            )
        if found.limit is Limit.CLIENT:
            return (
                f"this machine was the limit, not the service: it carries {found.rate:,.0f} rows/s or more;"
                f" {target}. More rows in a request (--batch), or another machine, offers more"
            )
        why = f"; the test ended with its {self.bounded}" if self.bounded else ""
        return f"carries {found.rate:,.0f} rows/s or more{why}; {target}"


def step_json(one: Judged) -> dict[str, Any]:
    """Return a step as a JSON object; latencies in milliseconds."""
    step = asdict(one.step)
    for name in ("p50", "p95", "p99"):
        seconds = step.pop(name)
        step[f"{name}_ms"] = None if seconds is None else round(seconds * 1000, 1)
    return {
        **{name: round(value, 3) if isinstance(value, float) else value for name, value in step.items()},
        "late": round(one.step.late, 4),
        "limit": str(one.limit),
        "reasons": list(one.reasons),
    }


@dataclass(frozen=True, slots=True)
class StressReport:
    """One stress test.

    Attributes:
        table: the test table, which is gone.
        removed: tables that an earlier stress test had left, and which are gone now.
        sent: rows sent.
        batch: rows in a request.
        seconds: how long it took.
        stages: the single partition first.
        refused_rows: rows of the sample that the script cannot map.
        declared: rows a second that the script says will be written (`load`), None when it says nothing.
    """

    table: str
    removed: tuple[str, ...] = field(metadata=told("removed_leftovers"))
    sent: int = field(metadata=told("rows_sent"))
    batch: int = field(metadata=told("rows_per_request"))
    seconds: float = field(metadata=told(digits=1))
    stages: tuple[Stage, ...]
    refused_rows: int = field(default=0, metadata=told("rows_refused"))
    declared: float | None = field(default=None, metadata=told("declared_writes_per_second"))

    @property
    def too_little(self) -> tuple[Stage, ...]:
        """Return the distributions that carry less than what is declared, where the service is the limit."""
        if self.declared is None:
            return ()
        return tuple(
            stage
            for stage in self.stages[1:]
            if stage.found.limit is Limit.SERVICE and stage.found.rate < self.declared
        )

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        carried = None if self.declared is None else not self.too_little
        return {**members(self), "partition_target": PARTITION_TARGET, "declared_is_carried": carried}

    def as_text(self) -> str:
        """Return the report for people."""
        lines: list[str] = []
        if self.removed:
            removed = ", ".join(self.removed)
            lines += wrapped(f"Left by an earlier stress test, removed now: {removed}", rest="  ")
        for stage in self.stages:
            lines += [*stage.lines(), ""]
        for said in self._against_declared():
            lines += wrapped(said, rest="  ")
        if self.refused_rows:
            lines.append(f"{self.refused_rows:,} rows of the sample cannot be mapped and were left out.")
        lines += wrapped(
            f"{self.sent:,} made-up rows of 1 KiB, {self.batch} in a request, in {self.seconds:.0f} s,"
            f" to the table {self.table}, which is removed.",
            rest="  ",
        )
        return "\n".join(lines) + "\n"

    def _against_declared(self) -> Iterator[str]:
        if self.declared is None:
            return
        writes = f"the declared {self.declared:,.0f} writes/s"
        for stage in self.stages[1:]:
            name, rate = stage.spread.name, stage.found.rate
            if stage in self.too_little:
                yield f"{name} does not carry {writes}: it saturates at {rate:,.0f}/s."
            elif rate >= self.declared * 0.95:
                yield f"{name} carries {writes}."
            else:
                yield f"{name} was not tried with {writes}, only with {rate:,.0f}/s."
