"""Divergences: what can be wrong with a row, what was found, what a repair did. Frozen values without keys.

Rules kept here:

* Rows are named by safe id and properties by name; no value here holds a key or a value of a row.
* The words for kinds, changes and outcomes are stable: scripts may match them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

LISTED = 1000
"""A report lists at most this many divergences; all are counted."""


class Kind(StrEnum):
    """What is wrong with a row."""

    MISSING = "missing"
    """A source row's target row is not there."""
    EXTRA = "extra"
    """A target row that no source row gives."""
    ALTERED = "altered"
    """A target row whose content is not what its source row gives."""
    WRONG_KEY = "wrong-key"
    """A source row's target row is not there, but its content is, under another key."""
    COLLISION = "collision"
    """Several source rows give the same target key."""
    REFUSED = "refused"
    """A source row that the mapping cannot key."""


class Change(StrEnum):
    """How one property differs."""

    VALUE = "value"
    TYPE = "type"
    MISSING = "missing"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class PropertyDifference:
    """One property of an altered row: its name and how it differs, never its values."""

    name: str
    change: Change

    def as_json(self) -> dict[str, str]:
        """Return a JSON object."""
        return {"property": self.name, "change": self.change.value}


@dataclass(frozen=True, slots=True)
class Divergence:
    """One row that differs and stood still.

    Attributes:
        kind: what is wrong.
        table: the target table (for `refused` the source table).
        row_id: safe id of the target row ("" for `refused`).
        source_id: safe id of the source row; "" when nothing maps to the row (a foreign row).
        properties: what differs, for `altered`.
        stray_id: for `wrong-key`, the safe id of the row under the wrong key.
        code: for `refused`, the refusal's stable code.
    """

    kind: Kind
    table: str
    row_id: str
    source_id: str
    properties: tuple[PropertyDifference, ...] = ()
    stray_id: str = ""
    code: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object without empty members."""
        members: dict[str, Any] = {
            "kind": self.kind.value,
            "table": self.table,
            "row": self.row_id,
            "source_row": self.source_id,
            "properties": [difference.as_json() for difference in self.properties],
            "stray_row": self.stray_id,
            "code": self.code,
        }
        return {name: value for name, value in members.items() if value}


class Outcome(StrEnum):
    """What a repair did about one divergence."""

    PROPAGATED = "propagated"
    """The rows of its source row were made equal to what the authority says."""
    MOVED = "moved"
    """The row was written under its right key, and the one under the wrong key deleted."""
    DELETED = "deleted"
    """The row, to which nothing maps, was deleted."""
    GONE = "gone"
    """The row was mended, or went away, before the repair came to it."""
    CHANGED = "changed"
    """The row changed under the repair and was left alone: verify again."""
    REFUSED = "refused"
    """The mapping or a collision forbids it, or it is a row of the authority that nobody can take back: mend
    the row, then verify again."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One divergence and what was done about it."""

    divergence: Divergence
    outcome: Outcome

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {**self.divergence.as_json(), "outcome": self.outcome.value}


@dataclass(frozen=True, slots=True)
class RepairReport:
    """All repairs of one run. `repairs` lists at most `LISTED` of them."""

    counts: Mapping[str, int]
    repairs: tuple[Repair, ...]

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"counts": dict(self.counts), "repairs": [repair.as_json() for repair in self.repairs]}


@dataclass(frozen=True, slots=True)
class Findings:
    """Stable divergences by kind, and those that were not stable.

    Attributes:
        counts: stable divergences by kind.
        listed: the first `LISTED` of them.
        transient: differences that were gone on recheck.
        unsettled: rows that neither became equal nor stood still within the time allowed.
        unchecked: differences not looked at because enough had been found already.
        pending: differences that a later pass of capture "delta" is due to mend; not findings.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    listed: tuple[Divergence, ...] = ()
    transient: int = 0
    unsettled: int = 0
    unchecked: int = 0
    pending: int = 0

    @property
    def stable(self) -> int:
        """How many divergences stood still."""
        return sum(self.counts.values())

    @property
    def any(self) -> bool:
        """True when something is wrong or could not be settled."""
        return bool(self.stable or self.unsettled or self.unchecked)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "stable": self.stable,
            "by_kind": dict(self.counts),
            "transient": self.transient,
            "unsettled": self.unsettled,
            "unchecked": self.unchecked,
            "pending": self.pending,
            "divergences": [divergence.as_json() for divergence in self.listed],
            "not_listed": self.stable - len(self.listed),
        }
