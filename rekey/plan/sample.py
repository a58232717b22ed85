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

    @property
    def mean_row_bytes(self) -> float:
        """Return the mean bytes of a row as the service bills them; 0.0 without rows."""
        return sum(map(entity_bytes, self.rows)) / len(self.rows) if self.rows else 0.0
