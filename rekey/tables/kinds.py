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
from operator import methodcaller
from typing import Any

from rekey.model import EVERYTHING, ROW_KEY, KeyRange
from rekey.tables.base import Page, Table, TableWrapper


class TableOfKind(TableWrapper):
    """The rows of one kind in a table that several kinds share (`whole`)."""

    def __init__(self, whole: Table, is_of_kind: Callable[[str], bool]) -> None:
        """Take the table, and what tells by a RowKey whether a row is of the kind."""
        super().__init__(whole)
        self._is_of_kind = is_of_kind

    async def scan(self, within: KeyRange = EVERYTHING, **options: Any) -> AsyncIterator[Page]:
        """Iterate over the rows of the kind; `options` as of `Table.scan`. Pages may be empty."""
        async with aclosing(self.whole.scan(within, **options)) as pages:  # type: ignore[type-var]
            async for page in pages:
                yield replace(page, rows=[row for row in page.rows if self._is_of_kind(row[ROW_KEY])])


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
    rest = [
        TableOfKind(main, methodcaller("startswith", secondary[number]))
        if number in secondary
        else table(name)
        for number, name in enumerate(names[1:], start=1)
    ]
    return [TableOfKind(main, lambda key: not key.startswith(beginnings)), *rest]


def whole(table: Table) -> Table:
    """Return a table with the rows of all kinds that stand in it."""
    return table.whole if isinstance(table, TableOfKind) else table
