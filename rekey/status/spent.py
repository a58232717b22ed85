"""The estimated requests of a migration compared with those sent. Pure.

Rules kept here:

* The estimate is the one of the plan that the migration began with, as it was kept then.
* Every run of a phase counts, also one that was cut off: its requests were sent. Not known, and not counted,
  are the requests that a killed run sent after its last checkpoint, and those of a lost task.
* The sums that compare estimated and sent requests are over the phases that are done.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.core.plain import told
from rekey.phases import ORDER
from rekey.state.models import PhaseRun
from rekey.tables.sent import OPERATIONS, requests_in


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Requests and duration of one phase. As JSON its members have the order of the fields.

    Attributes:
        phase: its name.
        done: a run of it was done.
        estimated, sent: requests.
        estimated_by_kind, sent_by_kind: requests by kind, and the operations of batches.
        expected_s: seconds that it was expected to take, None where the plan does not say.
        took_s: seconds of all its runs that have ended.
    """

    phase: str
    done: bool
    estimated: int
    sent: int
    estimated_by_kind: Mapping[str, int]
    sent_by_kind: Mapping[str, int]
    expected_s: float | None
    took_s: float = field(metadata=told(digits=3))


@dataclass(frozen=True, slots=True)
class Spent:
    """Requests of the phases that are done, the estimate of the whole, and all phases that were begun, in
    order. As JSON its members have the order of the fields."""

    estimated_of_phases_done: int
    sent_in_phases_done: int
    estimated_whole: int
    phases: tuple[PhaseCost, ...]


def spent(plan: str | None, runs: Iterable[PhaseRun]) -> Spent | None:
    """Return the comparison, None when there is no plan, or it was made by a version that counted otherwise.

    Args:
        plan: the plan as it was kept (`rekey.state.models.PLAN_FACT`).
        runs: all runs of phases of the migration.
    """
    try:
        estimate: dict[str, Any] = json.loads(plan or "")["plan"]["migrations"][0]["estimate"]
        known = all("what" in one for one in estimate["requests"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    if not known:
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
    phases = []
    for phase in (one for one in ORDER if one in entered):
        planned, sent, took = +estimated.get(phase, Counter()), Counter[str](), 0
        for run in entered[phase]:
            sent.update(run.requests)
            if run.finished_at is not None:
                took += ticks_of(run.finished_at) - ticks_of(run.started_at)
        phases.append(
            PhaseCost(
                phase=str(phase),
                done=any(run.outcome == "done" for run in entered[phase]),
                estimated=requests_in(planned),
                sent=requests_in(sent),
                estimated_by_kind=planned,
                sent_by_kind=sent,
                expected_s=expected.get(phase),
                took_s=took / TICKS_PER_SECOND,
            )
        )
    done = [one for one in phases if one.done]
    return Spent(
        estimated_of_phases_done=sum(one.estimated for one in done),
        sent_in_phases_done=sum(one.sent for one in done),
        estimated_whole=sum(requests_in(kinds) for kinds in estimated.values()),
        phases=tuple(phases),
    )
