"""For how long the mapping of a completed migration is kept: cohorts, and when they are over. Pure.

Rules kept here:

* The keeping time runs from the later of two moments: the end of the cohort (its month), and `complete`.
  Before `complete` nothing is over: the protocol needs the mapping.
* A mapping in the clear has no data keys that could be shredded. It is one cohort as a whole: nothing is
  written to it behind `complete`, so all of it is over at one moment.
* A cohort that was shredded, and a mapping that expired, leave a tombstone; a mapping in the clear whose
  content is not all gone yet is not erased yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.mapping.sealing import ROOT
from rekey.mapping.tombstones import ERASED_ON
from rekey.model import ROW_KEY, Row

WHOLE = "all"
"""The cohort that a mapping in the clear is; its tombstone stands among the data keys of others."""
DONE = "Done"
"""Of that tombstone: nothing of the content is left."""
_COHORT = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")
_MONTHS = 12


@dataclass(frozen=True, slots=True)
class Cohort:
    """A cohort of a completed migration.

    Attributes:
        name: its month, `2024-05`; `all` for a mapping in the clear.
        erased_on: the day on which it was shredded, "" when it was not.
        over_at: from when on it may be, ticks of the service's clock.
    """

    name: str
    erased_on: str
    over_at: int

    def is_due(self, now: int) -> bool:
        """Tell whether its keeping time is over and it is not shredded yet."""
        return not self.erased_on and now >= self.over_at


def is_cohort(name: str) -> bool:
    """Tell whether a text is the name of a month."""
    return _COHORT.fullmatch(name) is not None


def end_of(name: str) -> int:
    """Return the end of a month, in ticks. Raises ValueError for another text."""
    found = _COHORT.fullmatch(name)
    if found is None:
        raise ValueError("a cohort is a month: 2024-05")
    months = int(found[1]) * _MONTHS + int(found[2])
    return ticks_of(f"{months // _MONTHS:04}-{months % _MONTHS + 1:02}-01T00:00:00Z")


def over_at(name: str, completed_at: str, keep_s: float) -> int:
    """Return from when on a cohort may be shredded, in ticks.

    Args:
        name: the cohort.
        completed_at: when the migration was completed, the service's time.
        keep_s: the keeping time in seconds.
    """
    since = ticks_of(completed_at)
    if name != WHOLE:
        since = max(since, end_of(name))
    return since + round(keep_s * TICKS_PER_SECOND)


def cohorts(rows: Iterable[Row], *, sealed: bool, completed_at: str, keep_s: float) -> tuple[Cohort, ...]:
    """Return the cohorts of a completed migration, oldest first.

    Args:
        rows: what stands in the partition of its data keys; none of it is opened.
        sealed: whether its mapping is.
        completed_at, keep_s: as in `over_at`.
    """
    found: dict[str, str] = {} if sealed else {WHOLE: ""}
    for row in rows:
        name, on = str(row[ROW_KEY]), str(row.get(ERASED_ON, ""))
        if name == ROOT or (name in found and not row.get(DONE, False)):
            continue
        if is_cohort(name) if sealed else name == WHOLE:
            found[name] = on
    return tuple(Cohort(name, on, over_at(name, completed_at, keep_s)) for name, on in sorted(found.items()))
