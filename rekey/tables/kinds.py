"""A table that holds rows of several kinds, told apart by how their keys begin. Only scans have to tell them
apart: all other calls name their rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from rekey.model import EVERYTHING, KeyRange, Row, key_of
from rekey.tables.base import Page, Table, TableWrapper
from rekey.tables.joint import opened


class TableOfKind(TableWrapper):
    """The rows of one kind in a table that several kinds share (`inner`)."""

    def __init__(self, inner: Table, is_of_kind: Callable[[Row], bool]) -> None:
        super().__init__(inner)
        self._is_of_kind = is_of_kind

    async def scan(self, within: KeyRange = EVERYTHING, **options: Any) -> AsyncIterator[Page]:
        """Iterate over the rows of the kind; `options` as of `Table.scan`. Pages may be empty."""
        async with aclosing(self.inner.scan(within, **options)) as pages:  # type: ignore[type-var]
            async for page in pages:
                yield replace(page, rows=[row for row in page.rows if self._is_of_kind(row)])


def by_number(
    names: Sequence[str], beginnings: Mapping[int, tuple[str, str]], table: Callable[[str], Table]
) -> list[Table]:
    """Return the tables that a migration fills, by number.

    Args:
        names: their names, the main target's first.
        beginnings: how PartitionKeys and RowKeys of a kind begin, by its number, where the table is shared.
            Not needed for the first kind in a table, which has all rows that no other kind claims.
        table: opens a table by its name; the main target may be joint.
    """
    by_name = {name: opened(name, table) for name in dict.fromkeys(names)}
    tables: list[Table] = []
    for number, name in enumerate(names):
        others = [beginnings[later] for later in range(number + 1, len(names)) if names[later] == name]
        if name in names[:number]:
            tables.append(TableOfKind(by_name[name], partial(_begins, beginnings[number])))
        elif others:
            tables.append(TableOfKind(by_name[name], partial(_begins_otherwise, others)))
        else:
            tables.append(by_name[name])
    return tables


def _begins(beginning: tuple[str, str], row: Row) -> bool:
    key = key_of(row)
    return key.partition.startswith(beginning[0]) and key.row.startswith(beginning[1])


def _begins_otherwise(others: Sequence[tuple[str, str]], row: Row) -> bool:
    return not any(_begins(other, row) for other in others)


def whole(table: Table) -> Table:
    """Return a table with the rows of all its kinds."""
    return table.inner if isinstance(table, TableOfKind) else table
