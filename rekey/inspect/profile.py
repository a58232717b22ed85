"""Everything that is told about a table, counted while its rows go by. Pure.

Rules kept here:

* Rows come page by page in key order; `jump` is called where rows were left out.
* A PartitionKey is counted once for each partition, a RowKey once for each row.
* Memory is bounded, whatever the table's size (see the parts); of a sample, the PartitionKeys met are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from rekey.core.limits import entity_bytes
from rekey.inspect.columns import KeyColumn
from rekey.inspect.order import Signs
from rekey.inspect.partitions import PartitionRuns
from rekey.inspect.schemas import Schemas
from rekey.inspect.shapes import Shape
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, Row, utf16_order

_MOST_PAGES = 100
"""Pages whose shapes are kept apart: what a sample reads. Of a whole read only the sums matter."""
_MOST_FIRSTS = 10_000
"""Partitions whose first Timestamps are kept of a sample."""


class TableProfile:
    """Takes the rows of a table (`take`), then `finish`."""

    def __init__(self, *, gaps: bool) -> None:
        """Tell whether rows are left out: then partitions may be met again, and are remembered."""
        self.rows = 0
        self.stored_bytes = 0
        self.largest_row_bytes = 0
        self.partition_keys = KeyColumn()
        self.row_keys = KeyColumn()
        self.partitions = PartitionRuns()
        self.partition_order = Signs()
        self.row_order = Signs()
        self.schemas = Schemas()
        self.pages: list[tuple[int, Counter[Shape]]] = []
        """For each page of a sample: rows, and how many RowKeys have each shape."""
        self._met: set[str] | None = set() if gaps else None
        self._firsts: list[tuple[bytes, str]] = []
        """Of a sample: PartitionKeys in the service's order with a Timestamp, compared when all are there."""
        self._last: Row | None = None
        self._last_first: str | None = None

    def jump(self, behind: EntityKey) -> None:
        """Take note that rows were left out, and behind which key the next ones begin."""
        self.partitions.cut(behind.partition)
        self._last = None

    def take(self, rows: Sequence[Row]) -> None:
        """Count the rows of one page, which follow those before or the last jump."""
        before = Counter(self.row_keys.shapes) if len(self.pages) < _MOST_PAGES else None
        for partition in self.partitions.add([row[PARTITION_KEY] for row in rows]):
            self._add_partition(partition)
        for row in rows:
            self._add(row)
        self.rows += len(rows)
        if before is not None and rows:
            self.pages.append((len(rows), Counter(self.row_keys.shapes) - before))

    def finish(self, *, whole: bool) -> None:
        """Take note that no more rows come; `whole`: the table ends here."""
        if whole:
            self.partitions.finish()
        else:
            self.partitions.cut("")
        self._firsts.sort()
        for (_, before), (_, after) in pairwise(self._firsts):
            self.partition_order.add(before, after)

    def _add_partition(self, partition: str) -> None:
        if self._met is not None:
            if partition in self._met:
                return
            self._met.add(partition)
        self.partition_keys.add(partition)

    def _add(self, row: Row) -> None:
        size = entity_bytes(row)
        self.stored_bytes += size
        self.largest_row_bytes = max(self.largest_row_bytes, size)
        self.row_keys.add(row[ROW_KEY])
        self.schemas.add(row)
        stamp, last = row.get(TIMESTAMP, ""), self._last
        if last is not None and last[PARTITION_KEY] == row[PARTITION_KEY]:
            self.row_order.add(last.get(TIMESTAMP, ""), stamp)
        else:
            self._begin_partition(row[PARTITION_KEY], stamp)
        self._last = row

    def _begin_partition(self, partition: str, stamp: str) -> None:
        if self._met is None:
            if self._last_first is not None:
                self.partition_order.add(self._last_first, stamp)
            self._last_first = stamp
        elif len(self._firsts) < _MOST_FIRSTS:
            self._firsts.append((utf16_order(partition), stamp))
