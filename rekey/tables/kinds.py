"""A table in which rows of several kinds stand, told apart by what their RowKeys begin with.

Rules kept here:

* A row is of the kind whose beginning its RowKey has; all that have none are main rows, as rows of strangers
  are in a table of one kind.
* Only a scan has to tell kinds apart: all other calls name their rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from rekey.model import EVERYTHING, ROW_KEY, EntityKey, KeyRange, Row
from rekey.tables.base import Operation, Page, Table


class TableOfKind(Table):
    """The rows of one kind in a table that several kinds share.

    Attributes:
        whole: the table with the rows of all kinds.
    """

    def __init__(self, whole: Table, is_of_kind: Callable[[str], bool]) -> None:
        """Take the table, and what tells by a RowKey whether a row is of the kind."""
        self.whole = whole
        self._is_of_kind = is_of_kind

    @property
    def name(self) -> str:
        """The table's name as declared."""
        return self.whole.name

    async def get(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        """Return the row, or None when there is none."""
        return await self.whole.get(key, select=select)

    def encoded_size(self, operation: Operation) -> int:
        """Return how many bytes an operation takes of a transaction."""
        return self.whole.encoded_size(operation)

    async def scan(self, within: KeyRange = EVERYTHING, **options: Any) -> AsyncIterator[Page]:
        """Iterate over the rows of the kind; `options` as of `Table.scan`. Pages may be empty."""
        async with aclosing(self.whole.scan(within, **options)) as pages:  # type: ignore[type-var]
            async for page in pages:
                yield replace(page, rows=[row for row in page.rows if self._is_of_kind(row[ROW_KEY])])

    async def write(self, operation: Operation) -> str:
        """Carry out one operation."""
        return await self.whole.write(operation)

    async def transact(self, operations: Sequence[Operation]) -> list[str | None]:
        """Apply all operations or none; they may be of rows of several kinds."""
        return await self.whole.transact(operations)


def by_number(
    names: Sequence[str], secondary: Mapping[int, str], table: Callable[[str], Table]
) -> list[Table]:
    """Return the tables that a migration fills, by number.

    Args:
        names: their names, that of the main target first.
        secondary: what the RowKeys of each kind of secondary rows begin with, by its number.
        table: opens a table by its name.
    """
    if not secondary:
        return [table(name) for name in names]
    beginnings, main = tuple(secondary.values()), table(names[0])
    opened: list[Table] = [TableOfKind(main, lambda key: not key.startswith(beginnings))]
    for number, name in enumerate(names[1:], start=1):
        begins = secondary.get(number)
        opened.append(table(name) if begins is None else _of_kind(main, begins))
    return opened


def whole(table: Table) -> Table:
    """Return a table with the rows of all kinds that stand in it."""
    return table.whole if isinstance(table, TableOfKind) else table


def _of_kind(table: Table, begins: str) -> TableOfKind:
    return TableOfKind(table, lambda key: key.startswith(begins))
