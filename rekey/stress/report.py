"""What a stress test found, as values and as JSON-able data. Pure.

Rules kept here:

* No key of an application is in a report: partitions are counted, never named.
* What a service carries at least and what it carries at most are told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rekey.core.limits import PARTITION_TARGET
from rekey.stress.spread import Spread
from rekey.stress.steps import Judged, Limit, Saturation, saturation


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long, how much, how.

    Attributes:
        seconds: of the whole test.
        rows: sent in the whole test.
        step_seconds: of one step.
        batch: rows in a request.
        most: rows a second to offer at most; None: twice what the targets allow.
    """

    seconds: float = 300.0
    rows: int = 300_000
    step_seconds: float = 5.0
    batch: int = 10
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One ramp.

    Attributes:
        name: `one partition`, or the table whose distribution it has.
        spread: how rows were spread.
        target: rows a second that the service's published targets allow.
        steps: judged, in the order in which they were made.
        bounded: what ended it early, "" when nothing did: `rows`, `seconds`.
    """

    name: str
    spread: Spread
    target: float
    steps: tuple[Judged, ...]
    bounded: str = ""

    @property
    def found(self) -> Saturation:
        """Return where it saturated."""
        return saturation(self.steps)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; rates in rows a second, latencies in milliseconds."""
        found = self.found
        return {
            "stage": self.name,
            "partitions": self.spread.partitions,
            "rows_looked_at": self.spread.rows,
            "largest_share": round(self.spread.largest_share, 4),
            "target": round(self.target),
            "saturation": {
                "limit": str(found.limit),
                "rate": round(found.rate, 1),
                "of_target": round(found.rate / self.target, 3),
                "clean": _rounded(found.clean),
                "saturated": _rounded(found.saturated),
            },
            "bounded": self.bounded,
            "steps": [_step_json(one) for one in self.steps],
        }


@dataclass(frozen=True, slots=True)
class StressReport:
    """One stress test.

    Attributes:
        stages: the single partition first.
        table: the test table, which is gone.
        removed: tables that an earlier stress test had left, and which are gone now.
        sent: rows sent.
        seconds: how long it took.
        batch: rows in a request.
        refused_rows: rows of the sample that the script cannot map.
        declared: rows a second that the script says will be written (`load`), None when it says nothing.
    """

    stages: tuple[Stage, ...]
    table: str
    removed: tuple[str, ...]
    sent: int
    seconds: float
    batch: int
    refused_rows: int = 0
    declared: float | None = None

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
        return {
            "table": self.table,
            "removed_leftovers": list(self.removed),
            "rows_sent": self.sent,
            "rows_per_request": self.batch,
            "seconds": round(self.seconds, 1),
            "partition_target": PARTITION_TARGET,
            "rows_refused": self.refused_rows,
            "declared_writes_per_second": self.declared,
            "declared_is_carried": None if self.declared is None else not self.too_little,
            "stages": [stage.as_json() for stage in self.stages],
        }


def _step_json(one: Judged) -> dict[str, Any]:
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


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def total_refused(steps: Sequence[Judged]) -> int:
    """Return how many requests of measured time were refused."""
    return sum(one.step.refused for one in steps)
