"""What a migration was estimated to cost, against what it has cost. Pure.

Rules kept here:

* The estimate is the one of the plan that the migration began with, as it was kept then.
* Every run of a phase counts, also one that was cut off: its requests were sent. Of a run that was killed,
  what was sent after its last checkpoint is not known; of a task that was lost, what it sent.
* Estimate and actual are set side by side for phases that are done; the sum is over those.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.phases import ORDER
from rekey.state.models import PhaseRun
from rekey.tables.sent import OPERATIONS, requests_in


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """One phase.

    Attributes:
        phase: its name.
        done: a run of it has ended well.
        estimated, sent: requests by kind.
        expected_s: how long it was expected to take, None where the plan does not say.
        took_s: seconds of all its runs that have an end.
    """

    phase: str
    done: bool
    estimated: Mapping[str, int]
    sent: Mapping[str, int]
    expected_s: float | None
    took_s: float

    @property
    def requests(self) -> tuple[int, int]:
        """Return the requests estimated and sent."""
        return requests_in(self.estimated), requests_in(self.sent)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        estimated, sent = self.requests
        return {
            "phase": self.phase,
            "done": self.done,
            "estimated": estimated,
            "sent": sent,
            "estimated_by_kind": dict(self.estimated),
            "sent_by_kind": dict(self.sent),
            "expected_s": self.expected_s,
            "took_s": round(self.took_s, 3),
        }


@dataclass(frozen=True, slots=True)
class Spent:
    """All phases that were entered, in order, and the estimate of the whole."""

    phases: tuple[PhaseCost, ...]
    estimated_whole: int

    @property
    def requests(self) -> tuple[int, int]:
        """Return the requests estimated and sent, of the phases that are done."""
        done = [one.requests for one in self.phases if one.done]
        return sum(one for one, _ in done), sum(one for _, one in done)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        estimated, sent = self.requests
        return {
            "estimated_of_phases_done": estimated,
            "sent_in_phases_done": sent,
            "estimated_whole": self.estimated_whole,
            "phases": [one.as_json() for one in self.phases],
        }


def spent(plan: str | None, runs: Iterable[PhaseRun]) -> Spent | None:
    """Return the comparison, None when there is no plan, or one of a version that did not count so.

    Args:
        plan: the plan as it was kept (`rekey.state.models.PLAN_FACT`).
        runs: all runs of phases of the migration.
    """
    estimate = _estimate_in(plan)
    if estimate is None:
        return None
    estimated: dict[str, Counter[str]] = {}
    for one in estimate["requests"]:
        kinds = estimated.setdefault(one["phase"], Counter())
        kinds[one["kind"]] += one["count"]
        kinds[OPERATIONS] += one.get("operations", 0)
    expected = {one["phase"]: float(one["at_limits_s"]) for one in estimate["durations"]}
    entered: dict[str, list[PhaseRun]] = {}
    for run in runs:
        entered.setdefault(run.phase, []).append(run)
    return Spent(
        tuple(
            _phase(phase, entered[phase], +estimated.get(phase, Counter()), expected.get(phase))
            for phase in ORDER
            if phase in entered
        ),
        sum(requests_in(kinds) for kinds in estimated.values()),
    )


def _phase(
    phase: str, runs: Iterable[PhaseRun], estimated: Mapping[str, int], expected: float | None
) -> PhaseCost:
    sent: Counter[str] = Counter()
    took, done = 0, False
    for run in runs:
        sent.update(run.requests)
        done = done or run.outcome == "done"
        if run.finished_at is not None:
            took += ticks_of(run.finished_at) - ticks_of(run.started_at)
    return PhaseCost(str(phase), done, dict(estimated), dict(sent), expected, took / TICKS_PER_SECOND)


def _estimate_in(plan: str | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    try:
        estimate: dict[str, Any] | None = json.loads(plan)["plan"]["migrations"][0]["estimate"]
        known = estimate is not None and all("what" in one for one in estimate["requests"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    return estimate if known else None
