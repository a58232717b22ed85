"""Imports an export: checks all of it, then writes the rows that are absent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from rekey.backup.folder import Export
from rekey.backup.refusals import refusal
from rekey.copy.batches import pack
from rekey.copy.throttle import Throttle
from rekey.core.collector import patient_collector
from rekey.core.concurrency import for_each
from rekey.core.plain import members
from rekey.core.progress import Advance
from rekey.errors import Refused
from rekey.model import PARTITION_KEY, Row
from rekey.tables.base import Operation, Table, Verb
from rekey.tables.bulk import insert_absent
from rekey.tables.sent import RequestKind
from rekey.verify.bucket_digests import BucketDigests
from rekey.verify.digest import Digester
from rekey.verify.settle import compare

T = TypeVar("T")

# Parts whose rows are in memory: one is read while another is written.
_PARTS_AT_ONCE = 2


@dataclass(slots=True)
class Imported:
    """What an import did to the rows of an export."""

    # They were absent.
    inserted: int = 0
    # They were there already.
    unchanged: int = 0
    # Other content was there, and was overwritten.
    replaced: int = 0
    # Other content is there, and was left.
    differing: int = 0

    @property
    def rows(self) -> int:
        return self.inserted + self.unchanged + self.replaced + self.differing

    def add(self, other: Imported) -> None:
        """Add what became of other rows."""
        for name, rows in other.as_json().items():
            setattr(self, name, getattr(self, name) + rows)

    def as_json(self) -> dict[str, int]:
        return members(self)


async def always() -> None:
    """Let every batch be written: the runner of no migration of the table works meanwhile."""


@dataclass(frozen=True, slots=True)
class Writes:
    """How rows are written."""

    # Overwrite rows with other content.
    replace: bool
    # Batches in flight.
    concurrency: int
    throttle: Throttle
    # Called with the number of rows that are written.
    advance: Advance
    # Raises Interrupted when the work must end; called between batches.
    stop: Callable[[], None]
    # Raises Refused when rows of the table may not be written any more; called before each batch.
    guard: Callable[[], Awaitable[None]] = always


async def check_export(export: Export, advance: Advance, stop: Callable[[], None]) -> None:
    """Read all parts of an export. Raises Refused when one is not what was exported, or when the rows do not
    give the manifest's digest."""
    digests = BucketDigests()
    add = digests.adder(Digester(export.manifest.header.table))
    with patient_collector():
        for number in range(len(export.parts)):
            stop()
            rows = await asyncio.to_thread(export.rows, export.parts, number)
            add(rows)
            advance(len(rows))
    if digests.content_digest() != export.manifest.digest:
        raise refusal("digest-differs", folder=export.folder)


class Writer:
    """Writes rows to a table: what is absent is inserted; what differs is left, or overwritten."""

    def __init__(self, table: Table, writes: Writes) -> None:
        self._table, self._writes = table, writes
        self._throttle = writes.throttle.of(table.name)

    def operations(self, rows: Iterable[Row]) -> list[Operation]:
        """Return what `write` takes, for rows in service order."""
        return [Operation(Verb.INSERT, row) for row in rows]

    def batches(self, operations: Iterable[Operation]) -> Iterator[list[Operation]]:
        return pack(operations, self._table.encoded_size)

    async def write(self, batch: Sequence[Operation]) -> Imported:
        """Write a batch of `batches`; return what became of it. Raises what `writes.stop` raises, and
        ServiceError."""
        self._writes.stop()
        await self._writes.guard()
        present = await self._sent(batch, partial(insert_absent, self._table, batch))
        differing = [
            operation
            for operation in batch
            if operation.key in present and compare(operation.row, present[operation.key])
        ]
        done = Imported(len(batch) - len(present), len(present) - len(differing))
        if self._writes.replace:
            await self._overwrite(differing)
            done.replaced = len(differing)
        else:
            done.differing = len(differing)
        self._writes.advance(len(batch))
        return done

    async def _overwrite(self, differing: Iterable[Operation]) -> None:
        for batch in self.batches([Operation(Verb.INSERT_OR_REPLACE, each.row) for each in differing]):
            if len(batch) == 1:
                await self._sent(batch, partial(self._table.upsert, batch[0].row))
            else:
                await self._sent(batch, partial(self._table.transact, batch))

    async def _sent(self, batch: Sequence[Operation], send: Callable[[], Awaitable[T]]) -> T:
        partition = (self._table.name, batch[0].row[PARTITION_KEY])
        await self._throttle.take(len(batch), partition, RequestKind.BATCH)
        with self._throttle.taken(len(batch), partition, RequestKind.BATCH):
            return await send()


async def import_rows(
    export: Export, table: Table, writes: Writes, *, takes: Callable[[Row], bool] | None = None
) -> Imported:
    """Write the rows of an export that was checked to a table. The same call again writes what is left.

    Args:
        export: the export.
        table: the table.
        writes: how rows are written.
        takes: tells which rows are written; None: all.

    Raises:
        Refused: a part has changed since it was checked.
        ServiceError: rows could not be written.
        Interrupted: `writes.stop` raised it.
    """
    writer, done = Writer(table, writes), Imported()

    async def write(batch: Sequence[Operation]) -> None:
        done.add(await writer.write(batch))

    async def write_part(number: int) -> None:
        # Read again, not kept: its SHA-256 is compared once more.
        try:
            rows: list[Row] = await asyncio.to_thread(export.rows, export.parts, number)
        except Refused as error:
            error.kept = "the rows of other parts that were written; it changed after it was checked"
            raise
        operations = writer.operations(rows if takes is None else filter(takes, rows))
        await for_each(writer.batches(operations), write, limit=limit)

    limit = max(1, writes.concurrency // _PARTS_AT_ONCE)
    with patient_collector():
        await for_each(range(len(export.parts)), write_part, limit=_PARTS_AT_ONCE)
    return done
