"""A window: rows that were read together, on their way, and what became of them.

Rules kept here:

* A window is durable when all its writes of a stage are; whoever wrote some of them says so.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rekey.mapping.rows import TargetKey
from rekey.model import EntityKey, Row

TURN_ROWS = 100
"""Rows that are mapped, or packed, at a time."""

_NEARLY = 10
"""A window is nearly done when no more than one in so many of its writes is left."""


@dataclass(slots=True)
class Copied:
    """What copying did: source rows looked at, target rows inserted, rows handed to propagate, and rows
    that propagate changed."""

    rows: int = 0
    inserted: int = 0
    propagated: int = 0
    changed: int = 0
    requests: int = 0

    def add(self, other: Copied) -> None:
        """Add another window's figures to these."""
        self.rows += other.rows
        self.inserted += other.inserted
        self.propagated += other.propagated
        self.changed += other.changed
        self.requests += other.requests


@dataclass(slots=True, eq=False)
class CopyWindow:
    """Rows that were read together, on their way.

    Attributes:
        number: counts the windows of one copying.
        expected: what each source key's rows in the targets should be; empty once they are on their way.
        claimed: which source key wants a target key.
        unsettled: source keys that met something unexpected: propagate(k) settles them.
        copied: what became of it.
        left: writes of the present stage that are not durable yet.
        handed: writes of the present stage.
        durable: done when there are none.
        packed: stages that are handed over: first its mapping rows, then its targets.
    """

    number: int = 0
    expected: dict[EntityKey, dict[TargetKey, Row]] = field(default_factory=dict)
    claimed: dict[TargetKey, EntityKey] = field(default_factory=dict)
    unsettled: set[EntityKey] = field(default_factory=set)
    copied: Copied = field(default_factory=Copied)
    left: int = 0
    handed: int = 0
    durable: asyncio.Future[None] | None = None
    packed: int = 0

    @property
    def nearly_done(self) -> bool:
        """Tell whether hardly any of the present stage's writes are left."""
        return self.left * _NEARLY <= self.handed

    def begin(self) -> asyncio.Future[None]:
        """Begin a stage; return what is done once all of it is handed over and durable."""
        self.durable = asyncio.get_running_loop().create_future()
        self.handed, self.left = 0, 1  # itself, until all of it is handed over
        return self.durable

    def wrote(self, count: int) -> None:
        """Count writes that are durable."""
        self.left -= count
        if not self.left and self.durable is not None and not self.durable.done():
            self.durable.set_result(None)
