"""An even sample of the rows that are read, of bounded size, however many there will be.

Rules kept here:

* Every n-th row is drawn, from the first on. When there are too many, every other one is dropped and n
  doubles: so the sample is spread over all rows read, needs no count beforehand, and is the same next time.
* Memory is bounded by rows and by bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from rekey.copy.scan import row_bytes
from rekey.core.limits import entity_bytes
from rekey.inspect.inventory import Inventory
from rekey.model import Row

MOST_ROWS = 5_000
MOST_BYTES = 8 * 1024 * 1024


class RowSample:
    """Takes the rows of all pages (`take`) and keeps some.

    Attributes:
        rows: those drawn, in the order they came in.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._bytes = 0
        self._seen = 0
        self._every = 1

    def take(self, rows: Sequence[Row]) -> None:
        """Take the rows of one page."""
        drawn = rows[-self._seen % self._every :: self._every]
        self._seen += len(rows)
        self.rows += drawn
        self._bytes += sum(map(row_bytes, drawn))
        while len(self.rows) > MOST_ROWS or (self._bytes > MOST_BYTES and len(self.rows) > 1):
            self.rows = self.rows[::2]
            self._bytes //= 2
            self._every *= 2

    def parts(self, inventory: Inventory) -> tuple[list[Row], list[Row]]:
        """Return the rows drawn of each part of the reading (`rekey.inspect.inventory.PARTS`)."""
        head = -(-inventory.head_rows // self._every)
        return self.rows[:head], self.rows[head:]

    def stored_bytes(self, inventory: Inventory) -> int:
        """Return the bytes that the service bills for all rows of the table."""
        means = [sum(map(entity_bytes, part)) / len(part) if part else 0.0 for part in self.parts(inventory)]
        weights = inventory.weights
        return round(weights.sum(mean * rows for mean, rows in zip(means, weights.read, strict=True)))
