"""Runs of phases in the state file: begun, counted while they go on, ended.

Rules kept here:

* A run that was killed keeps what it had counted until its last checkpoint, and neither end nor outcome.
* Requests stand among the counters under names of their own, so that a file of an older version is read
  alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, insert, select, update

from rekey.state import rows
from rekey.state.models import PHASE_RUN, PhaseRun


def start(connection: Connection, script_id: str, phase: str, now: str) -> int:
    """Record that a phase is entered and return the number of this run."""
    begun = {"script_id": script_id, "phase": phase, "started_at": now, "counters": "{}"}
    return connection.execute(insert(PHASE_RUN).values(begun)).lastrowid


def count(connection: Connection, run: int, requests: Mapping[str, int]) -> None:
    """Record what a run that goes on has sent until now."""
    counters = rows.of_counters({}, requests)
    connection.execute(update(PHASE_RUN).where(PHASE_RUN.c.id == run).values(counters=counters))


def finish(
    connection: Connection,
    run: int,
    outcome: str,
    counters: Mapping[str, int],
    requests: Mapping[str, int],
    now: str,
) -> None:
    """Record how a run ended."""
    ended = {"finished_at": now, "outcome": outcome, "counters": rows.of_counters(counters, requests)}
    connection.execute(update(PHASE_RUN).where(PHASE_RUN.c.id == run).values(ended))


def listed(connection: Connection, script_id: str) -> list[PhaseRun]:
    """Return all runs of all phases of a migration, oldest first."""
    query = select(PHASE_RUN).where(PHASE_RUN.c.script_id == script_id).order_by(PHASE_RUN.c.id)
    return [rows.phase_run(row) for row in connection.execute(query)]
