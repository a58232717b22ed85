"""A part of a table: the rows whose keys are in a key space. For its users the other rows do not exist."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from rekey.core.key_space import KeySpace
from rekey.model import EVERYTHING, EntityKey, KeyRange, Row
from rekey.tables.base import Operation, Page, Table, TableWrapper


class PartOfTable(TableWrapper):
    """The rows of a table (`inner`) that are in a key space; only their key ranges are scanned."""

    def __init__(self, inner: Table, key_space: KeySpace) -> None:
        super().__init__(inner)
        self.key_space = key_space

    async def at_address(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        return await self.inner.at_address(key, select=select) if key in self.key_space else None

    async def by_query(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        return await self.inner.by_query(key, select=select) if key in self.key_space else None

    async def scan(self, within: KeyRange = EVERYTHING, **options: Any) -> AsyncIterator[Page]:
        """Iterate over the rows of the part; `options` as of `Table.scan`. Pages may be empty."""
        has = self.key_space.has
        for each in self.key_space.within(within):
            # The cursors hold for the part too: before a range, and between two, it has no rows.
            async with aclosing(self.inner.scan(each, **options)) as pages:  # type: ignore[type-var]
                async for page in pages:
                    yield replace(page, rows=[row for row in page.rows if has(row)])

    async def write_at_address(self, operation: Operation) -> str:
        self._require_within([operation])
        return await self.inner.write_at_address(operation)

    async def transact(self, operations: Sequence[Operation]) -> list[str | None]:
        self._require_within(operations)
        return await self.inner.transact(operations)

    def _require_within(self, operations: Sequence[Operation]) -> None:
        if any(operation.key not in self.key_space for operation in operations):
            raise AssertionError(f"a row outside the part of {self.name} would be written")


def part_of(table: Table, key_space: KeySpace | None) -> Table:
    """Return the part of a table; the table itself where there is no key space."""
    return table if key_space is None else PartOfTable(table, key_space)


def parts_of(key_spaces: Mapping[str, KeySpace], table: Callable[[str], Table]) -> Callable[[str], Table]:
    """Return the function that opens the part of a table that is in its key space, or all of it, by its name.
    `table` opens the whole table."""
    return lambda name: part_of(table(name), key_spaces.get(name))


def with_others(table: Table) -> Table:
    """Return the rows in the key ranges of a part, with those that are not in the part; a table that is no
    part itself. So no page is empty because of them."""
    if not isinstance(table, PartOfTable):
        return table
    return PartOfTable(table.inner, replace(table.key_space, has=lambda _row: True))


def whole_of(table: Table) -> Table:
    """Return the table that a part is of."""
    return table.inner if isinstance(table, PartOfTable) else table
