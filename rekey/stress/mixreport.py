"""What a stress test with a mix found: as values, as JSON-able data, and as text for people. Pure.

Rules kept here:

* No key of an application is in a report: a partition has a number, in the order of PartitionKeys.
* Operations a second are of the mix and of its kinds; entities a second are of partitions and of the account,
  as the service's targets are.
* What is known at least and what was measured are told apart, as in `report`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rekey.core.limits import PARTITION_TARGET
from rekey.present.text import counted, size, table, wrapped
from rekey.stress.mix import Mix, OperationKind
from rekey.stress.mixsteps import MixStep, judge_kinds, partition_name
from rekey.stress.report import step_json
from rekey.stress.spread import Spread
from rekey.stress.steps import Judged, Limit, Saturation, Step, saturation

_MOST_NAMED = 10
KINDS_HEAD = ("operation", "share", "saturates at, /s", "clean at, /s", "p50 ms", "p95 ms", "p99 ms")
STEPS_HEAD = ("offered/s", "achieved/s", "entities/s", "p50 ms", "p95 ms", "p99 ms", "requests", "refused")
HOW_KINDS_ARE_FOUND = (
    "Latencies of a kind are those at the highest rate at which the whole mix held. What a kind carries that"
    " the mix did not saturate is found with the others at half of that rate."
)


@dataclass(frozen=True, slots=True)
class KindFound:
    """What was found of one kind of operations.

    Attributes:
        kind: the kind.
        share: of all operations.
        saturation: in operations a second.
        clean: its part of the highest step at which the whole mix held; None when there was none.
        rising: the steps in which it rose while the others were held; none where the mix says it all.
    """

    kind: OperationKind
    share: float
    saturation: Saturation
    clean: Step | None
    rising: tuple[Judged, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; rates in operations a second, latencies in milliseconds."""
        step = None if self.clean is None else step_json(Judged(self.clean, Limit.NOTHING))
        latency = {name: step[name] if step else None for name in ("p50_ms", "p95_ms", "p99_ms")}
        return {
            "share": round(self.share, 4),
            "saturation": _saturation_json(self.saturation),
            **latency,
            "rising": [step_json(one) for one in self.rising],
        }


@dataclass(frozen=True, slots=True)
class MixStage:
    """One distribution.

    Attributes:
        spread: how rows are spread.
        partitions: partitions of the test table.
        rows: rows that were loaded before.
        found: where the mix saturated, in operations a second.
        limiting: the kinds and partitions that no longer held there.
        kinds: what was found of each kind.
        refusing: entities a second that partitions took which refused more than others, by their number.
        steps: of the mix, in the order in which they were made.
        judged: the same, judged.
        bounded: what ended it early: `rows`, `seconds` or "".
    """

    spread: Spread
    partitions: int
    rows: int
    found: Saturation
    limiting: tuple[str, ...]
    kinds: tuple[KindFound, ...]
    refusing: Mapping[int, float]
    steps: tuple[MixStep, ...]
    judged: tuple[Judged, ...]
    bounded: str = ""

    @property
    def entities(self) -> float:
        """Return the entities a second that were carried at most."""
        judged = [
            # By the rate that was offered: what range queries return differs from step to step.
            replace(one, step=replace(step.entities, offered=one.step.offered * self._entities))
            for step, one in zip(self.steps, self.judged, strict=True)
        ]
        return saturation(judged).rate

    @property
    def _entities(self) -> float:
        operations = sum(step.total.offered for step in self.steps)
        return sum(step.entities.offered for step in self.steps) / operations if operations else 1.0

    @property
    def below_target(self) -> dict[str, float]:
        """Return partitions that take less than the service's target, and the entities a second they take."""
        if self.partitions == 1:
            # A limit of the partition meets every kind; a limit of a kind leaves the others alone.
            is_limited = all(one.saturation.limit is Limit.SERVICE for one in self.kinds)
            found = {"one partition": self.entities} if is_limited else {}
        else:
            found = {partition_name(place): rate for place, rate in self.refusing.items()}
        return {name: rate for name, rate in found.items() if rate < PARTITION_TARGET}

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; rates in operations a second unless they are said to be of entities."""
        by_kind = judge_kinds(self.steps)
        return {
            "stage": self.spread.name,
            "partitions": self.partitions,
            "rows_loaded": self.rows,
            "largest_share": round(self.spread.largest_share, 4),
            "target_entities": round(self.spread.expected),
            "saturation": {
                **_saturation_json(self.found),
                "entities": round(self.entities, 1),
                "because_of": list(self.limiting),
            },
            "bounded": self.bounded,
            "kinds": {str(one.kind): one.as_json() for one in self.kinds},
            "partitions_below_target": {name: round(rate, 1) for name, rate in self.below_target.items()},
            "steps": [
                {
                    **step_json(one),
                    "entities": round(step.entities.achieved, 1),
                    "kinds": {str(kind): step_json(steps[number]) for kind, steps in by_kind.items()},
                }
                for number, (step, one) in enumerate(zip(self.steps, self.judged, strict=True))
            ],
        }

    def lines(self) -> list[str]:
        """Return the lines about it for people."""
        about = self.spread.name
        if self.spread.table:
            about = f"spread over {counted(self.partitions, 'partition')}, as in {self.spread.table}"
            about += f", the largest with {self.spread.largest_share:.1%} of the rows"
        lines = [*wrapped(about, rest="  "), *wrapped(self.said(), first="  ", rest="    ")]
        for name, rate in self.named():
            said = f"{name} takes {rate:,.0f} entities/s, less than the target of {PARTITION_TARGET:,}"
            lines += wrapped(said, first="  ", rest="    ")
        if more := len(self.below_target) - _MOST_NAMED:
            lines += [f"  and {more:,} partitions more"] if more > 0 else []
        lines += ["", *table(KINDS_HEAD, self.kind_rows(), right=range(1, len(KINDS_HEAD)), indent="  ")]
        lines += ["", *table(STEPS_HEAD, self.step_rows(), right=range(len(STEPS_HEAD)), indent="  ")]
        for judged in self.judged:
            for reason in judged.reasons:
                lines += wrapped(f"{judged.step.offered:,.0f}/s: {reason}", first="  ", rest="    ")
        return lines

    def said(self) -> str:
        """Return what was found, in a sentence."""
        found, expected = self.found, self.spread.expected
        carried = f"{found.rate:,.0f} operations/s, {self.entities:,.0f} entities/s"
        target = f"the service's targets allow {expected:,.0f} entities/s"
        if found.limit is Limit.SERVICE:
            clean = f"clean at {found.clean:,.0f}/s, " if found.clean is not None else ""
            limiting = ", ".join(self.limiting)
            return (
                f"the mix saturates at {carried} ({clean}no longer at {found.saturated:,.0f}/s, because of"
                f" {limiting}); {target}"
            )
        why = f"; the test ended with its {self.bounded}" if self.bounded else ""
        if found.limit is Limit.CLIENT:
            return (
                f"this machine was the limit, not the service: it carries {carried} or more{why}; {target}."
                " More processes ([load] processes), or another machine, offer more"
            )
        return f"carries {carried} or more{why}; {target}"

    def named(self) -> Iterator[tuple[str, float]]:
        """Yield the partitions that take least, and the entities a second they take."""
        yield from sorted(self.below_target.items(), key=lambda one: one[1])[:_MOST_NAMED]

    def kind_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a row of texts for each kind, under `KINDS_HEAD`."""
        for one in self.kinds:
            found = one.saturation
            at_least = "" if found.limit is Limit.SERVICE else "at least "
            clean = "-" if found.clean is None else f"{found.clean:,.0f}"
            times = (None, None, None) if one.clean is None else (one.clean.p50, one.clean.p95, one.clean.p99)
            yield (
                one.kind.replace("_", " "),
                f"{one.share:.1%}",
                f"{at_least}{found.rate:,.0f}",
                clean,
                *map(_milliseconds, times),
            )

    def step_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a row of texts for each step of the mix, under `STEPS_HEAD`."""
        for step in self.steps:
            total = step.total
            yield (
                f"{step.rate:,.0f}",
                f"{total.achieved:,.0f}",
                f"{step.entities.achieved:,.0f}",
                *map(_milliseconds, (total.p50, total.p95, total.p99)),
                f"{total.requests:,}",
                f"{total.refused:,}",
            )


@dataclass(frozen=True, slots=True)
class MixReport:
    """One stress test with a mix.

    Attributes:
        table: the test table, which is gone.
        removed: tables that an earlier stress test had left, and which are gone now.
        mix: what was sent.
        sent: entities that were sent or asked for, without the rows loaded before.
        seconds: how long it took.
        stages: the single partition first.
        refused_rows: rows of the sample that the script cannot map.
    """

    table: str
    removed: tuple[str, ...]
    mix: Mix
    sent: int
    seconds: float
    stages: tuple[MixStage, ...]
    refused_rows: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "table": self.table,
            "removed_leftovers": list(self.removed),
            "mix": {str(kind): round(share, 4) for kind, share in self.mix.shares.items()},
            "entities_per_operation": round(self.mix.entities, 2),
            "processes": self.mix.processes,
            "row_bytes": self.mix.row_bytes,
            "entities_sent": self.sent,
            "seconds": round(self.seconds, 1),
            "stages": [stage.as_json() for stage in self.stages],
            "rows_refused": self.refused_rows,
            "partition_target": PARTITION_TARGET,
        }

    def as_text(self) -> str:
        """Return the report for people."""
        lines: list[str] = []
        if self.removed:
            removed = ", ".join(self.removed)
            lines += wrapped(f"Left by an earlier stress test, removed now: {removed}", rest="  ")
        for stage in self.stages:
            lines += [*stage.lines(), ""]
        lines += wrapped(HOW_KINDS_ARE_FOUND, rest="  ")
        if self.refused_rows:
            lines.append(f"{self.refused_rows:,} rows of the sample cannot be mapped and were left out.")
        lines += wrapped(self.told(), rest="  ")
        return "\n".join(lines) + "\n"

    def told(self) -> str:
        """Return what was done, in a sentence."""
        return (
            f"{self.sent:,} made-up entities of {size(self.mix.row_bytes)} sent or asked for, by"
            f" {'one process' if self.mix.processes == 1 else f'{self.mix.processes} processes'}, in"
            f" {self.seconds:.0f} s, on the table {self.table}, which is removed."
        )


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.1f}"


def _saturation_json(found: Saturation) -> dict[str, Any]:
    rates = {"rate": found.rate, "clean": found.clean, "saturated": found.saturated}
    rounded = {name: None if rate is None else round(rate, 1) for name, rate in rates.items()}
    return {"limit": str(found.limit), **rounded}
