"""Rows at rest in memory: what a table of `MemoryTableService` is made of.

Rules kept here:

* Rows lie in service order; ETags rise with every write of a key, also across delete and insert.
* A row is given out as a copy.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from rekey.core.clock import format_ticks
from rekey.model import ETAG, PARTITION_KEY, ROW_KEY, TIMESTAMP, TYPE_SUFFIX, Row

_formatted = lru_cache(maxsize=65_536)(format_ticks)
"""A row's Timestamp is read far more often than it changes."""

Order: TypeAlias = tuple[bytes, bytes]
"""`EntityKey.order`: where a row stands."""


@dataclass(slots=True)
class StoredRow:
    """One row at rest: content in the service's form and the tick of its last write."""

    content: Row
    ticks: int

    @property
    def timestamp(self) -> str:
        """When it was written last."""
        return _formatted(self.ticks)

    @property
    def etag(self) -> str:
        """Its version."""
        return f"W/\"datetime'{self.timestamp.replace(':', '%3A')}'\""

    def as_read(self, select: Sequence[str] | None) -> Row:
        """Return a copy as the service gives it; of the properties, only the selected ones."""
        row: Row = {ETAG: self.etag, **self.content, TIMESTAMP: self.timestamp}
        if select is None:
            return row
        kept = {ETAG, PARTITION_KEY, ROW_KEY, TIMESTAMP, *select, *(name + TYPE_SUFFIX for name in select)}
        return {name: value for name, value in row.items() if name in kept}


@dataclass(slots=True)
class StoredRows:
    """The rows of one table in service order."""

    rows: dict[Order, StoredRow] = field(default_factory=dict)
    order: list[Order] = field(default_factory=list)
    last_ticks: dict[Order, int] = field(default_factory=dict)
    """Last write of every key ever written, so that a row inserted again gets a new ETag."""

    def put(self, place: Order, content: Row, now: int) -> StoredRow:
        """Write a row at `now` ticks, or a tick after its last write if that is later."""
        ticks = max(now, self.last_ticks.get(place, 0) + 1)
        self.last_ticks[place] = ticks
        stored = StoredRow(content, ticks)
        if place not in self.rows:
            bisect.insort(self.order, place)
        self.rows[place] = stored
        return stored

    def drop(self, place: Order) -> None:
        """Remove a row."""
        del self.rows[place]
        del self.order[bisect.bisect_left(self.order, place)]

    def restore(self, place: Order, before: StoredRow | None) -> None:
        """Put a place back to what it was, None for empty."""
        if before is not None:
            if place not in self.rows:
                bisect.insort(self.order, place)
            self.rows[place] = before
        elif place in self.rows:
            self.drop(place)
