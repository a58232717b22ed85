"""Does the order of keys follow the order of writing? Pure.

Rules kept here:

* Neighbours are compared: the service's Timestamp of a row with that of the row before it in key order.
  Nine of ten rising: rows are appended behind the last one. Nine of ten falling: put before the first.
* Rows written in one batch may share their Timestamp; they say nothing. Below 20 pairs nothing is said.
* A Timestamp is that of the last write. Updates and imports move it, and a report says so.
"""

from __future__ import annotations

from enum import StrEnum

LEAST_PAIRS = 20
CLEAR = 0.9


class Order(StrEnum):
    """Where new keys go."""

    APPEND = "append-only"
    PREPEND = "prepend-only"
    SCATTERED = "scattered"
    UNKNOWN = "not to be told"


class Signs:
    """Counts pairs of neighbours whose Timestamps rise or fall."""

    def __init__(self) -> None:
        self.rising = 0
        self.falling = 0

    def add(self, before: str, after: str) -> None:
        """Compare two Timestamps as the service writes them."""
        # without the Z: a fraction may be missing, and `.` would sort before it
        one, other = before.rstrip("Z"), after.rstrip("Z")
        self.rising += one < other
        self.falling += one > other

    @property
    def pairs(self) -> int:
        """Return how many pairs say something."""
        return self.rising + self.falling

    @property
    def order(self) -> Order:
        """Return what the pairs say."""
        if self.pairs < LEAST_PAIRS:
            return Order.UNKNOWN
        if self.rising >= CLEAR * self.pairs:
            return Order.APPEND
        return Order.PREPEND if self.falling >= CLEAR * self.pairs else Order.SCATTERED
