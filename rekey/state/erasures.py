"""What the audit log says was erased, and which erasures were begun and never ended.

Rules kept here:

* An erasure is two events: one before anything is deleted, with what is meant and why, and one behind it,
  with what was deleted. The second names the first; one without is not ended, and the next command ends it.
* What the log says was erased is held against what stands in the mapping: a row or a data key that is there
  again was put back by somebody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rekey.state.audit import ERASURE_BEGUN, ERASURE_ENDED, AuditEvent

SUBJECTS, COHORTS, MAPPING = "subjects", "cohorts", "mapping"
"""Kinds of erasures: of persons or things by their rows, of months by their data keys, of a mapping in the
clear as a whole."""


@dataclass(frozen=True, slots=True)
class Erasures:
    """What the audit log says of one migration.

    Attributes:
        rows: safe ids of source rows whose mapping was erased, and on which day.
        cohorts: months whose data key was shredded, and on which day.
        whole: the day on which a mapping in the clear was gone, "" before.
        open: events of erasures that were begun and not ended.
    """

    rows: dict[str, str] = field(default_factory=dict)
    cohorts: dict[str, str] = field(default_factory=dict)
    whole: str = ""
    open: tuple[AuditEvent, ...] = ()


def erasures(events: Iterable[AuditEvent]) -> Erasures:
    """Return what the events of one migration say.

    Args:
        events: in order.
    """
    rows: dict[str, str] = {}
    cohorts: dict[str, str] = {}
    whole, begun = "", dict[int, AuditEvent]()
    for event in events:
        if event.event == ERASURE_BEGUN:
            begun[event.seq] = event
        if event.event != ERASURE_ENDED:
            continue
        said = event.details
        begun.pop(said["begun"], None)
        rows.update(dict.fromkeys(said.get("rows", ()), said["on"]))
        cohorts.update(dict.fromkeys(said.get("cohorts", ()), said["on"]))
        if said["kind"] == MAPPING and not said["kept_rows"]:
            whole = said["on"]
    return Erasures(rows, cohorts, whole, tuple(begun.values()))
