"""Exports a table: several ranges at a time, each in parts that follow from its rows alone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from rekey.backup.folder import Export, unfinished
from rekey.backup.manifest import Header
from rekey.backup.parts import MOST_BYTES, ends_part, lines_of
from rekey.core.collector import patient_collector
from rekey.core.crockford import encode
from rekey.core.distribution import VERSION
from rekey.mapping.sealing import WrappingKey
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, EntityKey, KeyRange, Row, key_of
from rekey.tables.base import Page, Table
from rekey.tables.parallel import ParallelScan, Reader
from rekey.verify.bucket_digests import BucketDigests
from rekey.verify.context import RowReads, partition_of
from rekey.verify.digest import Digester
from rekey.verify.first_pass import LEAST_AT_RATES, LEAST_ROWS

_ID_BYTES = 10
# Characters of a Timestamp up to whole seconds, which is what the service's clock tells.
_SECONDS = len("2024-01-31T12:00:00")

# Stores a part: its range, lines and number of rows, and how many of them changed since the export began.
Keep: TypeAlias = Callable[[KeyRange, bytes, int, int], None]


async def export_table(
    table: Table,
    account: str,
    folder: Path,
    *,
    wrapping: WrappingKey | None,
    now: Callable[[], Awaitable[str]],
    reads: RowReads,
) -> Export:
    """Export a table, or continue an export that was cut off: parts that are complete are kept.

    Args:
        table: what to export.
        account: the endpoint of its account.
        folder: where to; a new or empty folder, or that of the export that was cut off.
        wrapping: the wrapping key; None: in the clear.
        now: returns the time of the table's account.
        reads: how the table is read.

    Raises:
        Refused: the folder holds something else.
        Locked: another command writes this export.
        ServiceError: the table could not be read.
        Interrupted: `reads.stop` raised it.
    """
    export_id = f"export/{table.name}/{encode(secrets.token_bytes(_ID_BYTES))}"
    header = Header(export_id, table.name, account, await now(), VERSION)
    async with aclosing(table.scan(page_rows=1)) as pages:  # type: ignore[type-var]
        await anext(pages, None)  # a table that does not exist leaves no folder behind
    with unfinished(folder, header, wrapping) as export, patient_collector():
        digests = BucketDigests()
        add = digests.adder(Digester(table.name))
        for rows in export.verified_rows():
            reads.stop()
            add(rows)
            reads.advance(len(rows))
            await asyncio.sleep(0)
        scan = _Export(table, export.rest, export.header.began_at, add, export.keep, reads)
        await scan.run(reads.scans)
        return export.finish(await now(), digests.content_digest())


@dataclass(slots=True)
class _Growing:
    """A part that is not complete: its rows up to the last page read."""

    after: EntityKey | None = field(repr=False)
    lines: list[bytes] = field(default_factory=list, repr=False)
    bytes: int = 0
    changed: int = 0


@dataclass(eq=False)
class _RangeReader(Reader):
    part: _Growing = field(kw_only=True)


class _Export(ParallelScan[_RangeReader]):
    """The scans of an export. Memory holds the lines of a part and about two pages for each."""

    def __init__(
        self,
        table: Table,
        rest: Iterable[KeyRange],
        began_at: str,
        add: Callable[[list[Row]], None],
        keep: Keep,
        reads: RowReads,
    ) -> None:
        self._table, self._add, self._keep, self._reads = table, add, keep, reads
        self._began = began_at[:_SECONDS]
        self.least = LEAST_ROWS if reads.prefetch else LEAST_AT_RATES
        super().__init__(map(self._reader, rest))

    def _reader(self, rest: KeyRange) -> _RangeReader:
        return _RangeReader(self._table, rest, part=_Growing(rest.after))

    def pages(self, reader: _RangeReader) -> AsyncIterator[Page]:
        return reader.table.scan(reader.rest, ahead=self._reads.prefetch)

    async def take(self, reader: _RangeReader, page: Page, rows: list[Row], cursor: EntityKey | None) -> None:  # noqa: ARG002
        """Add the rows of a page to digest and parts, and wait until the rates allow for the next one."""
        self._reads.stop()
        self._add(rows)
        changed = [row[TIMESTAMP][:_SECONDS] >= self._began for row in rows]
        steps = zip(rows, ends_part(rows), changed, lines_of(rows), strict=True)
        for row, ends, is_changed, line in steps:
            part = reader.part
            part.lines.append(line)
            part.bytes += len(line)
            part.changed += is_changed
            if ends or part.bytes >= MOST_BYTES:
                await self._complete(reader, key_of(row))
        self._reads.advance(len(rows))
        if rows:
            await self._reads.wait(reader.table.name, len(rows), partition_of(reader.table, rows))

    async def finish(self, reader: _RangeReader) -> None:
        # The end of a range is that of its last part, so that the parts leave no key out.
        if reader.part.after is None or reader.part.after != reader.rest.upto:
            await self._complete(reader, reader.rest.upto)

    async def _complete(self, reader: _RangeReader, upto: EntityKey | None) -> None:
        part, reader.part = reader.part, _Growing(upto)
        lines, rows = b"".join(part.lines), len(part.lines)
        part.lines.clear()
        # Compressing, sealing and writing run beside the event loop, and other scans go on.
        within = KeyRange(part.after, upto)
        writing = asyncio.ensure_future(asyncio.to_thread(self._keep, within, lines, rows, part.changed))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing  # no thread may write once the lock is released
            raise

    async def middle(self, reader: _RangeReader) -> EntityKey | None:
        """Return a key in the middle of a range after which a part ends, wherever the range is split."""
        middle = await super().middle(reader)
        if middle is None:
            return None
        within, table = replace(reader.rest, after=middle), reader.table
        async with aclosing(table.scan(within, select=[PARTITION_KEY, ROW_KEY], ahead=False)) as pages:  # type: ignore[type-var]
            async for page in pages:
                self._reads.stop()
                for row, ends in zip(page.rows, ends_part(page.rows), strict=True):
                    if ends:
                        return key_of(row)
                if page.rows:
                    await self._reads.wait(table.name, len(page.rows), partition_of(table, page.rows))
        return None

    def split(self, reader: _RangeReader, middle: EntityKey) -> _RangeReader:
        """Return a range for what follows the key, at which a part ends."""
        return self._reader(reader.rest.split(middle)[1])
