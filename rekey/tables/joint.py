"""A joint table: several tables as one (`rekey.core.joint`). A partition is in one of them, so transactions
are too. For its users there is no other table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from rekey.core.joint import is_joint, joint_key, joint_name, joint_row, names_in, own_key, own_row, prefix_of
from rekey.model import EVERYTHING, PARTITION_KEY, EntityKey, KeyRange, Row, utf16_order
from rekey.tables.base import Operation, Page, Table, TableService
from rekey.tables.rules import check_batch, check_key_part


class JointTable(Table):
    """Several tables as one."""

    def __init__(self, tables: Mapping[str, Table], name: str = "") -> None:
        """Create it. `tables`: by their names; `name`: its own, by default made of theirs."""
        # In the order of their rows' keys.
        self._tables = dict(sorted(tables.items(), key=lambda each: utf16_order(prefix_of(each[0]))))
        self._name = name or joint_name(tuple(tables))

    @property
    def name(self) -> str:
        return self._name

    def apart(self) -> list[JointTable]:
        """Return its tables, each alone under the keys of this one."""
        return [JointTable({name: table}) for name, table in self._tables.items()]

    def within(self, names: Container[str]) -> JointTable:
        """Return the part of it that is in some of its tables, under its own name."""
        left = {name: table for name, table in self._tables.items() if name in names}
        return JointTable(left, self._name)

    async def get(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        # What an address can carry, and which row was returned, is judged by the key in the table itself.
        name, own = own_key(key)
        table = self._tables.get(name)
        row = None if table is None else await table.get(own, select=select)
        return None if row is None else joint_row(prefix_of(name), row)

    async def find(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        name, own = own_key(key)
        table = self._tables.get(name)
        row = None if table is None else await table.find(own, select=select)
        return None if row is None else joint_row(prefix_of(name), row)

    async def at_address(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        return await self.get(key, select=select)

    async def by_query(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        return await self.find(key, select=select)

    async def write(self, operation: Operation) -> str:
        table, own = self._own(operation)
        return await table.write(own)

    async def write_at_address(self, operation: Operation) -> str:
        return await self.write(operation)

    def encoded_size(self, operation: Operation) -> int:
        table, own = self._own(operation)
        size = table.encoded_size(own)
        operation.encoded = own.encoded
        return size

    async def transact(self, operations: Sequence[Operation]) -> list[str | None]:
        check_batch(operations)  # all of one partition, so of one table
        places = [self._own(operation) for operation in operations]
        return await places[0][0].transact([own for _, own in places])

    async def scan(self, within: KeyRange = EVERYTHING, **options: Any) -> AsyncIterator[Page]:
        """Iterate over the rows of all tables, one table after the other; `options` as of `Table.scan`."""
        cursor: EntityKey | None = None
        for name, table in self._tables.items():
            if (own_range := _own_range(name, within)) is None:
                continue
            async with aclosing(table.scan(own_range, **options)) as pages:  # type: ignore[type-var]
                async for page in pages:
                    if page.cursor is not None:
                        cursor = joint_key(prefix_of(name), page.cursor)
                    # Without a cursor of its own, what is read is what was read of the tables before.
                    yield replace(
                        page, rows=[joint_row(prefix_of(name), row) for row in page.rows], cursor=cursor
                    )

    def _own(self, operation: Operation) -> tuple[Table, Operation]:
        partition = operation.row.get(PARTITION_KEY)
        if not isinstance(partition, str):
            check_key_part(partition)  # raises: the service would refuse the row
        name, _ = own_key(operation.key)
        if name not in self._tables:
            raise AssertionError(f"a row outside the tables of {self.name} would be written")
        own = Operation(operation.verb, own_row(operation.row), operation.etag)
        own.encoded = operation.encoded  # a cache, valid for the encoder of that table alone
        return self._tables[name], own


def _own_range(name: str, within: KeyRange) -> KeyRange | None:
    """Return the keys of a table that are in a range of the joint table; None if there are none."""
    prefix, (after, upto) = prefix_of(name), (within.after, within.upto)
    if after is not None and not after.partition.startswith(prefix):
        if utf16_order(after.partition) > utf16_order(prefix):
            return None
        after = None
    if upto is not None and not upto.partition.startswith(prefix):
        if utf16_order(upto.partition) < utf16_order(prefix):
            return None
        upto = None
    return KeyRange(after and own_key(after)[1], upto and own_key(upto)[1])


def opened(name: str, table: Callable[[str], Table]) -> Table:
    """Open a table, which may be joint. `table`: opens a table by its name."""
    return JointTable({each: table(each) for each in names_in(name)}) if is_joint(name) else table(name)


def apart(table: Table) -> list[Table]:
    """Return the tables of a joint table, each alone and under the keys of that one; of any other itself."""
    return list(table.apart()) if isinstance(table, JointTable) else [table]


async def existing(service: TableService, table: Table) -> Table | None:
    """Return a table if it exists; of a joint table what is in those of its tables that exist, if any."""
    there = [name for name in names_in(table.name) if await service.table_exists(name)]
    if not there:
        return None
    return table.within(there) if isinstance(table, JointTable) else table
