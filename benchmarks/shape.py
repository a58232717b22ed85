"""Made-up users as a function of their number: any page of any size of table, without holding the table."""

from __future__ import annotations

import json
from collections.abc import Iterable

from benchmarks.project import PARTITIONS, SECRET, USERS
from rekey.declaration.mapper import Mapper
from rekey.model import PARTITION_KEY, ROW_KEY, Row

_STAMP = "2024-01-01T00:00:00.0000000Z"
_PAGE = 1000


class Shape:
    """A table of `rows` users in key order.

    Without `huge` they lie evenly in `partitions`, 200 if nothing else is said. With it, half of them lie in
    the partition in the middle and the others evenly in the rest.
    """

    def __init__(self, rows: int, *, huge: bool = False, partitions: int = PARTITIONS) -> None:
        self.rows = rows
        self._huge = rows // 2 if huge else 0
        self._others = max(1, -(-(rows - self._huge) // partitions))
        self._before = self._others * (PARTITIONS // 2) if huge else rows

    def key(self, number: int) -> tuple[str, str]:
        """Return PartitionKey and RowKey of a row by its number."""
        if number < self._before:
            partition, row = divmod(number, self._others)
        elif number < self._before + self._huge:
            return "tenant-100-huge", f"first.last-{number - self._before:07}@mail.example"
        else:
            partition, row = divmod(number - self._before - self._huge, self._others)
            partition += PARTITIONS // 2 + 1
        return f"tenant-{partition:03}", f"first.last-{row:07}@mail.example"

    def row(self, number: int) -> Row:
        """Return a whole row of about 300 bytes, as a scan gives it."""
        partition, row = self.key(number)
        return {
            "odata.etag": "W/\"datetime'2024-01-01T00%3A00%3A00.0000000Z'\"",
            PARTITION_KEY: partition,
            ROW_KEY: row,
            "Timestamp": _STAMP,
            "Name": f"First Last {number}",
            "Logins": number,
            "Visits": str(number * 10_000_000_000),
            "Visits@odata.type": "Edm.Int64",
            "Since": "2024-02-29T12:34:56.1234567Z",
            "Since@odata.type": "Edm.DateTime",
        }

    def page(self, first: int, end: int) -> bytes:
        """Return one page of wire JSON."""
        return _as_page(_as_json(self.row(number)) for number in range(first, end))


class Mapped:
    """The table that a whole migration of a shape makes, in key order."""

    def __init__(self, shape: Shape) -> None:
        mapper = Mapper(USERS, {"users": SECRET.encode()})
        made = [mapper.map(shape.row(number))[0].row for number in range(shape.rows)]
        made.sort(key=_key_of)
        self._rows = [_as_json({"odata.etag": 'W/"1"', **row, "Timestamp": _STAMP}) for row in made]
        self.rows = len(self._rows)

    def key(self, number: int) -> tuple[str, str]:
        """Return PartitionKey and RowKey of a row by its number."""
        return _key_of(json.loads(self._rows[number]))

    def page(self, first: int, end: int) -> bytes:
        """Return one page of wire JSON."""
        return _as_page(self._rows[first:end])


def _key_of(row: Row) -> tuple[str, str]:
    return row[PARTITION_KEY], row[ROW_KEY]


def _as_json(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


def _as_page(rows: Iterable[bytes]) -> bytes:
    return b'{"value":[%b]}' % b",".join(rows)
