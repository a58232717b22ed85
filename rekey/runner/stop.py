"""How long the application's writers will have to stop in capture "delta": told before, from measurements.

Rules kept here:

* What the last comparison and the last look measured is kept in the state file: how long reading source and
  targets once takes, how long the look for rows written since, how long bringing a row, and how fast rows
  change.
* Under freeze all is read once, what changed since is brought, and strays are looked for. So much is reckoned
  with, for what will have changed by now; what was left open is waited for before.
* A look does not see rows that were deleted: how fast the comparison before it found rows to bring counts, if
  that is more.
* It is an estimate: a freeze that takes longer is not left for it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.runner.run import Run
from rekey.verify.report import FullReport

# Fact: the last `Measured`, as JSON.
MEASURED = "stop_measured"
# Seconds for the second of the service's clock that a freeze begins with, and for moving the control row.
FIXED_S = 2.0
# Seconds for bringing a row where too few were brought to measure it.
ASSUMED_BRING_S = 0.05


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured for the time that writers will have to stop.

    Attributes:
        at: when, UTC.
        read_s: seconds for reading source and targets once.
        look_s: seconds for looking for rows written since a time.
        bring_s: seconds for bringing one row.
        waiting: rows that had changed since the last pass.
        changes_per_s: how many more rows change in a second.
        rows: how many rows were read.
    """

    at: str
    read_s: float
    look_s: float
    bring_s: float
    waiting: int
    changes_per_s: float
    rows: int = 0

    def changed(self, now: int) -> float:
        """Return how many rows will have to be brought at a time, in ticks."""
        return self.waiting + self.changes_per_s * max(0, now - ticks_of(self.at)) / TICKS_PER_SECOND

    def stop_s(self, now: int) -> float:
        """Return for how many seconds writers will have to stop at a time, in ticks."""
        return FIXED_S + self.read_s + self.look_s + self.bring_s * self.changed(now)


def reading_s(report: FullReport) -> float:
    """Return how many seconds the tables take to be read once, by the last sitting of a comparison."""
    last = max((one.sitting for one in report.read), default=0)
    sat = [one for one in report.read if one.sitting == last]
    rows = sum(one.rows for one in sat)
    if not rows:
        return 0.0
    ticks = max(ticks_of(one.ended_at) for one in sat) - min(ticks_of(one.begun_at) for one in sat)
    return ticks / TICKS_PER_SECOND * sum(one.rows for one in report.read) / rows


def keep(run: Run, measured: Measured) -> None:
    """Store what was measured."""
    run.state.set_fact(run.script_id, MEASURED, json.dumps(asdict(measured)))


def measured(run: Run) -> Measured | None:
    """Return what was measured last, None when nothing was."""
    kept = run.state.get_fact(run.script_id, MEASURED)
    return None if kept is None else Measured(**json.loads(kept))


def expected_stop_s(run: Run) -> float | None:
    """Return for how many seconds writers would have to stop now, those of the whole group where it moves at
    once; None: nothing was measured."""
    stops = []
    for one in run.together:
        last = measured(one)
        if last is None:
            return None
        stops.append(last.stop_s(run.clock.ticks()))
    return sum(stops) - FIXED_S * (len(stops) - 1)
