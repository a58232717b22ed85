"""Results of a stress test: as values, JSON, text and a page. No key of an application is in them: a
partition has a number. The first line of a stage is its result; the steps after it show why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rekey.core.limits import PARTITION_TARGET
from rekey.core.plain import json_field, members, plain
from rekey.present.page import page
from rekey.present.plots import AFTER, BEFORE, DARK, LIGHT, Series, columns
from rekey.present.text import counted, table, wrapped
from rekey.stress.judge import Judged, Limit, Saturation, Step, partition_name, refusing, saturation
from rekey.stress.mix import Mix, OperationKind
from rekey.stress.spread import Spread

_MOST_NAMED = 10
KINDS_HEAD = ("operation", "share", "saturates at, /s", "clean at, /s", "p50 ms", "p95 ms", "p99 ms")
STEPS_HEAD = ("offered/s", "achieved/s", "p50 ms", "p95 ms", "p99 ms", "requests", "refused")
HOW_KINDS_ARE_FOUND = (
    "Latencies of a kind are those at the highest rate at which the whole mix held. What a kind carries that"
    " the mix did not saturate is found with the others at half of that rate."
)


@dataclass(frozen=True, slots=True)
class Stage:
    """The result for one distribution."""

    mix: Mix
    # How rows were spread.
    spread: Spread
    # Rows loaded before.
    loaded: int
    # Of the whole mix, judged, in order.
    steps: tuple[Judged, ...]
    # Where each kind saturated.
    kinds: Mapping[OperationKind, Saturation]
    # The steps in which one kind rose while the others were held; empty if the mix shows it.
    rising: Mapping[OperationKind, Sequence[Judged]]
    # What ended it early, `rows` or `seconds`; "" if nothing.
    bounded: str = ""

    @property
    def saturation(self) -> Saturation:
        """Where the mix saturated."""
        return saturation(self.steps)

    @property
    def entities(self) -> float:
        """The maximum entities per second carried."""
        achieved = sum(step.step.achieved for step in self.steps)
        return (
            self.saturation.rate * sum(step.step.entities for step in self.steps) / achieved
            if achieved
            else 0.0
        )

    @property
    def because_of(self) -> tuple[str, ...]:
        """The kinds, of several, and the partitions that saturated the mix."""
        at = self.saturation.saturated
        names = (name for step in self.steps if step.step.offered == at for name in step.because_of)
        return tuple(dict.fromkeys(names))

    @property
    def clean(self) -> Step | None:
        """The step of the highest rate without saturation of the whole mix."""
        return next(
            (step.step for step in reversed(self.steps) if step.step.offered == self.saturation.clean), None
        )

    @property
    def below_target(self) -> dict[str, float]:
        """The entities per second of partitions that take less than the target, lowest first."""
        steps = [judgment.step for judgments in (self.steps, *self.rising.values()) for judgment in judgments]
        rates = {partition_name(place): rate for place, rate in refusing(steps).items()}
        # A limit of the partition affects every kind; a limit of a kind affects only that kind.
        if self.spread.partitions == 1 and {kind.limit for kind in self.kinds.values()} == {Limit.SERVICE}:
            rates = {"one partition": self.entities}
        lowest_first = sorted(rates.items(), key=lambda entry: entry[1])
        return {name: rate for name, rate in lowest_first if rate < PARTITION_TARGET}

    def as_json(self) -> dict[str, Any]:
        spread = self.spread
        kinds = {
            kind: {
                "share": round(self.mix.shares[kind], 4),
                "saturation": members(reached),
                **self._latencies(kind),
                "rising": plain(self.rising.get(kind, [])),
            }
            for kind, reached in self.kinds.items()
        }
        return {
            "stage": spread.name,
            "partitions": spread.partitions,
            "rows_looked_at": spread.rows,
            "rows_loaded": self.loaded,
            "largest_share": round(spread.largest_share, 4),
            "target": round(spread.expected),
            "saturation": {
                **members(self.saturation),
                "entities": round(self.entities, 1),
                "of_target": round(self.entities / spread.expected, 3),
                "because_of": self.because_of,
            },
            "bounded": self.bounded,
            "partitions_below_target": {name: round(rate, 1) for name, rate in self.below_target.items()},
            "kinds": kinds,
            "steps": plain(self.steps),
        }

    def lines(self) -> list[str]:
        spread = self.spread
        about = spread.name
        if spread.table:
            about = (
                f"spread as in {spread.table}: {counted(spread.partitions, 'partition')} among"
                f" {counted(spread.rows, 'row')}, the largest with {spread.largest_share:.1%}"
            )
        lines = [*wrapped(about, rest="  "), *wrapped(self.summary(), first="  ", rest="    ")]
        for name, rate in [*self.below_target.items()][:_MOST_NAMED]:
            text = f"{name} takes {rate:,.0f} entities/s, less than the target of {PARTITION_TARGET:,}"
            lines += wrapped(text, first="  ", rest="    ")
        if (more := len(self.below_target) - _MOST_NAMED) > 0:
            lines.append(f"  and {more:,} partitions more")
        if len(self.kinds) > 1:
            lines += ["", *table(KINDS_HEAD, self.kind_rows(), right=range(1, 7), indent="  "), ""]
        head, *rows = table(STEPS_HEAD, self.step_rows(), right=range(len(STEPS_HEAD)), indent="    ")
        lines.append(head)
        for line, judged in zip(rows, self.steps, strict=True):
            lines.append(line)
            for reason in judged.reasons:
                lines += wrapped(reason, first=" " * 15 + "- ", rest=" " * 19)
        return lines

    def summary(self) -> str:
        """Return the result in a sentence."""
        reached, allowed = self.saturation, self.spread.expected
        carried = f"{reached.rate:,.0f} rows/s"
        more = "More rows in a request (--batch)"
        if not self.mix.by_row:
            carried = f"{reached.rate:,.0f} operations/s, {self.entities:,.0f} entities/s"
            more = "More processes ([load] processes)"
        target = f"the service's targets allow {allowed:,.0f}{'' if self.mix.by_row else ' entities'}/s"
        if reached.limit is Limit.SERVICE:
            between = f"clean at {reached.clean:,.0f}/s, " if reached.clean is not None else ""
            refused = sum(step.step.counts.refused for step in self.steps)
            text = f", {counted(refused, 'request')} refused with 503" if refused else ""
            text += f", because of {', '.join(self.because_of)}" if self.because_of else ""
            return (
                f"saturates at {carried} ({between}no longer at {reached.saturated:,.0f}/s{text}); {target}:"
                f" {self.entities / allowed:.0%} of that"
            )
        if reached.limit is Limit.CLIENT:
            return (
                f"this machine was the limit, not the service: it carries {carried} or more; {target}."
                f" {more}, or another machine, offers more"
            )
        why = f"; the test ended with its {self.bounded}" if self.bounded else ""
        return f"carries {carried} or more{why}; {target}"

    def kind_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the texts of each kind, under `KINDS_HEAD`."""
        for kind, reached in self.kinds.items():
            rate = f"{'' if reached.limit is Limit.SERVICE else 'at least '}{reached.rate:,.0f}"
            clean = "-" if reached.clean is None else f"{reached.clean:,.0f}"
            share = f"{self.mix.shares[kind]:.1%}"
            yield kind.label, share, rate, clean, *_texts(self._latencies(kind).values())

    def step_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the texts of each step, under `STEPS_HEAD`."""
        for step in (step.step for step in self.steps):
            figures = (
                *_texts(step.latency.milliseconds.values()),
                f"{step.counts.sent:,}",
                f"{step.counts.refused:,}",
            )
            yield f"{step.offered:,.0f}", f"{step.achieved:,.0f}", *figures

    def _latencies(self, kind: OperationKind) -> dict[str, float | None]:
        names = ("p50_ms", "p95_ms", "p99_ms")
        return self.clean.kinds[kind].latency.milliseconds if self.clean is not None else dict.fromkeys(names)


def _texts(milliseconds: Iterable[float | None]) -> Iterator[str]:
    return ("-" if millisecond is None else f"{millisecond:,.1f}" for millisecond in milliseconds)


@dataclass(frozen=True, slots=True)
class StressReport:
    """One stress test."""

    # The test table, which is deleted.
    table: str
    # Tables left by an earlier stress test and deleted now.
    removed: tuple[str, ...] = field(metadata=json_field("removed_leftovers"))
    mix: Mix
    # Entities sent or asked for, without rows loaded before.
    sent: int = field(metadata=json_field("rows_sent"))
    # How long it took.
    seconds: float = field(metadata=json_field(digits=1))
    # The single partition first.
    stages: tuple[Stage, ...]
    # Rows of the sample that the script cannot map.
    refused_rows: int = field(default=0, metadata=json_field("rows_refused"))
    # Rows per second that the application writes, as `load` of the script declares, or None.
    declared: float | None = field(default=None, metadata=json_field("declared_writes_per_second"))

    @property
    def too_little(self) -> tuple[Stage, ...]:
        """The distributions that carry less than `declared`, where the service is the limit."""
        if self.declared is None:
            return ()
        return tuple(
            stage
            for stage in self.stages[1:]
            if stage.saturation.limit is Limit.SERVICE and stage.saturation.rate < self.declared
        )

    def as_json(self) -> dict[str, Any]:
        return {
            **members(self),
            "rows_per_request": self.mix.entities(self.mix.shares),
            "partition_target": PARTITION_TARGET,
            "declared_is_carried": None if self.declared is None else not self.too_little,
        }

    def as_text(self) -> str:
        lines: list[str] = []
        if self.removed:
            removed = ", ".join(self.removed)
            lines += wrapped(f"Left by an earlier stress test, removed now: {removed}", rest="  ")
        for stage in self.stages:
            lines += [*stage.lines(), ""]
        for text in self._against_declared():
            lines += wrapped(text, rest="  ")
        if len(self.mix.shares) > 1:
            lines += wrapped(HOW_KINDS_ARE_FOUND, rest="  ")
        if self.refused_rows:
            lines.append(f"{self.refused_rows:,} rows of the sample cannot be mapped and were left out.")
        lines += wrapped(self.method(), rest="  ")
        return "\n".join(lines) + "\n"

    def method(self) -> str:
        """Return how the test was made, in a sentence."""
        mix = self.mix
        how = f"rows of 1 KiB, {mix.batch_rows} in a request,"
        if not mix.by_row:
            by = "one process" if mix.processes == 1 else f"{mix.processes} processes"
            how = f"entities of 1 KiB sent or asked for, by {by},"
        where = f"to the table {self.table}, which is removed"
        return f"{self.sent:,} made-up {how} in {self.seconds:.0f} s, {where}."

    def _against_declared(self) -> Iterator[str]:
        if self.declared is None:
            return
        writes = f"the declared {self.declared:,.0f} writes/s"
        for stage in self.stages[1:]:
            name, rate = stage.spread.name, stage.saturation.rate
            if stage in self.too_little:
                yield f"{name} does not carry {writes}: it saturates at {rate:,.0f}/s."
            elif rate >= self.declared * 0.95:
                yield f"{name} carries {writes}."
            else:
                yield f"{name} was not tried with {writes}, only with {rate:,.0f}/s."


# --- as a page ---------------------------------------------------------------------------------------


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
    """Return the plot of achieved by offered rate."""
    steps = sorted((step.step for step in stage.steps), key=lambda step: step.offered)
    series = [
        Series("offered", [round(step.offered) for step in steps], BEFORE),
        Series("answered with success", [round(step.achieved) for step in steps], AFTER),
    ]
    labels = [f"{step.offered:,.0f}" for step in steps]
    return columns(labels, series, f"Throughput of {stage.spread.name}", "offered a second")


def _latencies(stage: Stage) -> str:
    """Return the plot of each kind's latency percentiles at the highest rate without saturation."""
    kinds = stage.clean.kinds if stage.clean is not None else {}
    series = [
        Series(
            name, [round(1000 * (getattr(step.latency, name) or 0.0), 1) for step in kinds.values()], color
        )
        for name, color in (("p50", LIGHT), ("p95", AFTER), ("p99", DARK))
    ]
    title = "Latency of each kind of operation, in milliseconds"
    return columns([kind.label for kind in kinds], series, title, "kind of operation", values=True)
