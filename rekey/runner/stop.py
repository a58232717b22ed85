"""Estimates the write downtime of a cutover in capture "delta" from what the last comparison measured: under
freeze all is read once, changes since are repaired, and stray writes are looked for. A freeze that takes
longer is not aborted for that."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.runner.run import Run
from rekey.verify.report import FullReport

# Fact: the last `Measured`, as JSON.
MEASURED = "stop_measured"
# Seconds for the whole second of the service's clock that a freeze begins with, and for moving the control
# row.
FIXED_S = 2.0
# Default seconds per repair when the sample is small.
ASSUMED_BRING_S = 0.05


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured for the estimate."""

    at: str
    # Seconds for reading source and targets once.
    read_s: float
    # Seconds for finding rows written since a time.
    look_s: float
    # Seconds per repaired row.
    bring_s: float
    # Rows that had changed since the last pass.
    waiting: int
    # Includes deleted rows as found by the comparison, which the search for written rows does not see.
    changes_per_s: float
    rows: int = 0

    def changed(self, now: int) -> float:
        """Return how many rows will have to be repaired at a time in ticks."""
        return self.waiting + self.changes_per_s * max(0, now - ticks_of(self.at)) / TICKS_PER_SECOND

    def stop_s(self, now: int) -> float:
        """Return the estimated write downtime in seconds, at a time in ticks."""
        return FIXED_S + self.read_s + self.look_s + self.bring_s * self.changed(now)


def reading_s(report: FullReport) -> float:
    """Return how many seconds reading the tables once takes, by the last sitting of a comparison."""
    last = max((table_read.sitting for table_read in report.read), default=0)
    sat = [table_read for table_read in report.read if table_read.sitting == last]
    rows = sum(table_read.rows for table_read in sat)
    if not rows:
        return 0.0
    ticks = max(ticks_of(table_read.ended_at) for table_read in sat) - min(
        ticks_of(table_read.begun_at) for table_read in sat
    )
    return ticks / TICKS_PER_SECOND * sum(table_read.rows for table_read in report.read) / rows


def keep(run: Run, measured: Measured) -> None:
    """Store what was measured."""
    run.state.set_fact(run.script_id, MEASURED, json.dumps(asdict(measured)))


def measured(run: Run) -> Measured | None:
    """Return what was measured last; None: nothing."""
    kept = run.state.get_fact(run.script_id, MEASURED)
    return None if kept is None else Measured(**json.loads(kept))


def expected_stop_s(run: Run) -> float | None:
    """Return the estimated write downtime in seconds, of the whole group if any; None: not measured."""
    stops = []
    for member in run.run_group:
        last = measured(member)
        if last is None:
            return None
        stops.append(last.stop_s(run.clock.ticks()))
    return sum(stops) - FIXED_S * (len(stops) - 1)
