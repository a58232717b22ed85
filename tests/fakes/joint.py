"""Tables in memory, each of which is read and written through a joint table, beside two others with rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from rekey.core.joint import joint_key, joint_row, own_key, own_row, prefix_of
from rekey.model import EVERYTHING, LAST_ROW, EntityKey, KeyRange, Row
from rekey.tables.base import Operation, Page, Table
from rekey.tables.joint import JointTable
from tests.fakes.memory import MemoryTableService

BEFORE, BEHIND = "Aaa", "Zzz"


class JointTableService(MemoryTableService):
    """Tables in memory, each seen through a joint table."""

    async def fill(self) -> JointTableService:
        """Fill the tables beside; return itself."""
        for name in (BEFORE, BEHIND):
            await self.create_table(name)
            for partition in ("", "a", "p", "zz"):
                await super().table(name).insert({"PartitionKey": partition, "RowKey": "r", "Name": name})
        return self

    def table(self, name: str) -> Table:  # type: ignore[override]
        tables = {each: super(JointTableService, self).table(each) for each in (BEHIND, name, BEFORE)}
        return OneOfJoint(name, JointTable(tables))


class OneOfJoint(Table):
    """A table of a joint table, under its own keys."""

    def __init__(self, name: str, joint: JointTable) -> None:
        self._name, self._joint, self._prefix = name, joint, prefix_of(name)

    @property
    def name(self) -> str:
        return self._name

    async def get(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        row = await self._joint.get(joint_key(self._prefix, key), select=select)
        return None if row is None else own_row(row)

    async def find(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        row = await self._joint.find(joint_key(self._prefix, key), select=select)
        return None if row is None else own_row(row)

    async def at_address(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        row = await self._joint.at_address(joint_key(self._prefix, key), select=select)
        return None if row is None else own_row(row)

    async def by_query(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        row = await self._joint.by_query(joint_key(self._prefix, key), select=select)
        return None if row is None else own_row(row)

    async def write(self, operation: Operation) -> str:
        return await self._joint.write(self._as_joint(operation))

    async def write_at_address(self, operation: Operation) -> str:
        return await self._joint.write_at_address(self._as_joint(operation))

    def encoded_size(self, operation: Operation) -> int:
        return self._joint.encoded_size(self._as_joint(operation))

    async def transact(self, operations: Sequence[Operation]) -> list[str | None]:
        return await self._joint.transact([self._as_joint(operation) for operation in operations])

    async def scan(self, within: KeyRange = EVERYTHING, **options: Any) -> AsyncIterator[Page]:
        # Ends that no row has: before and behind all rows of the table, and between the tables.
        after, upto = EntityKey(self._name, LAST_ROW), EntityKey(f"{self._name};", "")
        if within.after is not None:
            after = joint_key(self._prefix, within.after)
        if within.upto is not None:
            upto = joint_key(self._prefix, within.upto)
        async with aclosing(self._joint.scan(KeyRange(after, upto), **options)) as pages:
            async for page in pages:
                cursor = None if page.cursor is None else own_key(page.cursor)[1]
                yield replace(page, rows=[own_row(row) for row in page.rows], cursor=cursor)

    def _as_joint(self, operation: Operation) -> Operation:
        is_named = isinstance(operation.row.get("PartitionKey"), str)
        row = joint_row(self._prefix, operation.row) if is_named else operation.row
        return Operation(operation.verb, row, operation.etag)
