"""Compares two tables under unchanged keys with the engine of verification; an export counts as a table."""

from __future__ import annotations

import asyncio
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from pathlib import Path

from rekey.backup.folder import Export
from rekey.core.clock import Clock
from rekey.core.safe_ids import SafeIds, new_key
from rekey.declaration.keys import keep
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Migration
from rekey.declaration.targets import Target
from rekey.model import ETAG, EVERYTHING, EntityKey, KeyRange, Row, key_of
from rekey.tables.base import MAX_PAGE_ROWS, Operation, Page, Table, rejected
from rekey.tables.wire import projected
from rekey.verify.bucket_digests import Partial
from rekey.verify.context import Keys, MappedRows, ReconcileContext, RowReads
from rekey.verify.first_pass import Checkpoint, keep_nothing
from rekey.verify.full import full
from rekey.verify.report import FullReport

# Parts whose rows are in memory.
_PARTS_KEPT = 4
# Rows of an export never change.
_ETAG = "export"


async def compare(
    first: Table,
    second: Table,
    *,
    reads: RowReads,
    clock: Clock,
    keys: Keys | None,
    partial: Partial | None = None,
    checkpoint: Checkpoint = keep_nothing,
) -> FullReport:
    """Compare every row and every property of two tables of different names; writes nothing.

    Args:
        first: what the rows of `second` are expected to be.
        second: the other table.
        reads: how tables are read.
        clock: tells how long a difference is observed.
        keys: takes the keys of rows that the report names; its safe ids are of this report alone.
        partial, checkpoint: as of `full`.

    Raises:
        ServiceError: a table could not be read.
        Refused: a part of an export is not what was exported.
        Interrupted: `reads.stop` raised it.
    """

    target = Target(second.name, partition_key=keep(), row_key=keep(), allow_empty=True)

    async def unknown(_key: EntityKey) -> None:
        """Return no owner: there is no mapping table."""

    context = ReconcileContext(
        source=first,
        targets=[second],
        mapper=Mapper(Migration(first.name, target, capture="delta"), {}),
        ids=SafeIds(new_key()),
        rows=MappedRows(owner=unknown, propagate=unknown),
        folder=Path(tempfile.gettempdir()),
        reads=reads,
        clock=clock,
        keys=keys,
    )
    return await full(context, partial=partial, checkpoint=checkpoint)


class ExportTable(Table):
    """The rows of an export as a table that can be read."""

    def __init__(self, export: Export, name: str) -> None:
        self._export, self._name = export, name
        # Where all parts but the first begin, in order.
        self._begin = [part.within.after.order for part in export.parts if part.within.after is not None]
        self._rows = lru_cache(_PARTS_KEPT)(lambda number: export.rows(export.parts, number))

    @property
    def name(self) -> str:
        return self._name

    async def by_query(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        rows = await asyncio.to_thread(self._rows, bisect_left(self._begin, key.order))
        place = bisect_left(rows, key.order, key=_order)
        if place == len(rows) or key_of(rows[place]) != key:
            return None
        return _as_read(rows[place], select)

    async def at_address(self, key: EntityKey, *, select: Sequence[str] | None = None) -> Row | None:
        return await self.by_query(key, select=select)

    async def scan(
        self,
        within: KeyRange = EVERYTHING,
        *,
        select: Sequence[str] | None = None,
        modified_from: str | None = None,
        with_text_in: str | None = None,
        page_rows: int = MAX_PAGE_ROWS,
        ahead: bool = True,  # noqa: ARG002 - as `Table.scan`
    ) -> AsyncIterator[Page]:
        if modified_from is not None or with_text_in is not None:
            raise rejected("NotImplemented", "an export is read by keys alone", status=501)
        first = 0 if within.after is None else bisect_right(self._begin, within.after.order)
        last = len(self._begin) if within.upto is None else bisect_left(self._begin, within.upto.order)
        for number in range(first, last + 1):
            rows = await asyncio.to_thread(self._rows, number)
            begin = 0 if within.after is None else bisect_right(rows, within.after.order, key=_order)
            end = len(rows) if within.upto is None else bisect_right(rows, within.upto.order, key=_order)
            for start in range(begin, end, page_rows):
                page = [_as_read(row, select) for row in rows[start : min(end, start + page_rows)]]
                yield Page(page, key_of(page[-1]), full=len(page) == page_rows)

    async def write_at_address(self, operation: Operation) -> str:  # noqa: ARG002
        raise _read_only()

    async def transact(self, operations: Sequence[Operation]) -> list[str | None]:  # noqa: ARG002
        raise _read_only()

    def encoded_size(self, operation: Operation) -> int:  # noqa: ARG002
        raise _read_only()


def _order(row: Row) -> tuple[bytes, bytes]:
    return key_of(row).order


def _as_read(row: Row, select: Sequence[str] | None) -> Row:
    read = {ETAG: _ETAG, **row}
    return read if select is None else projected(read, select)


def _read_only() -> Exception:
    return rejected("ReadOnly", "an export cannot be written", status=405)
