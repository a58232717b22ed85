"""Copies a table to another one under unchanged keys: several ranges at a time, each in service order. A
journal lists the key ranges whose rows are written, so that a copy that was cut off continues."""

from __future__ import annotations

import json
from asyncio import Semaphore
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rekey.backup.manifest import left_open
from rekey.backup.refusals import refusal
from rekey.backup.restore import Imported, Writer
from rekey.core.collector import patient_collector
from rekey.core.concurrency import for_each
from rekey.core.spill import hash_of
from rekey.model import EVERYTHING, TIMESTAMP, EntityKey, KeyRange, Row, content_of, key_of
from rekey.project.privatefiles import write_whole
from rekey.tables.base import MAX_BATCH_OPERATIONS, Operation, Page, Table, TableWrapper
from rekey.tables.parallel import ParallelScan, Reader
from rekey.verify.context import RowReads, partition_of
from rekey.verify.first_pass import LEAST_AT_RATES, LEAST_ROWS

# Characters of a Timestamp up to whole seconds, which is what the service's clock tells.
_SECONDS = len("2024-01-31T12:00:00")


class Journal:
    """What was copied of one table, in a file that only its owner may read: it holds keys.

    It is not synced to disk: a line that is lost costs the reading of its rows, which are found to be there.
    """

    def __init__(self, path: Path, began_at: str) -> None:
        """Open the journal at `path`, or begin it. `began_at`: the service's time now."""
        self._path = path
        self.covered: list[KeyRange] = []
        self.done = Imported()
        # Whether an earlier command has begun it.
        self.is_continued = path.exists()
        if not self.is_continued:
            # As a whole: a full disk leaves no journal that cannot be read.
            write_whole(path, _line({"began_at": began_at}), durable=False)
        text = path.read_bytes()
        # A line that was cut off must not take the next one along.
        self._opening = b"" if text.endswith(b"\n") else b"\n"
        first, *lines = text.splitlines() or [b""]
        try:
            # The service's time before the first row was read.
            self.began_at = str(json.loads(first)["began_at"])
        except (ValueError, KeyError, TypeError):
            raise refusal("copy-journal-unreadable", path=path) from None
        for line in lines:
            # A killed process, or a full disk, may have cut one off.
            with suppress(ValueError, KeyError, TypeError):
                self._take(json.loads(line))

    def _take(self, entry: Any) -> None:
        after, upto = (None if key is None else EntityKey(*key) for key in entry["range"])
        done = Imported(**entry["done"])
        self.covered.append(KeyRange(after, upto))
        self.done.add(done)

    def keep(self, within: KeyRange, done: Imported) -> None:
        """Record that the rows of a range are written, and what became of them."""
        with self._path.open("ab") as file:
            file.write(self._opening + _line({"range": [within.after, within.upto], "done": done.as_json()}))
        self._opening = b""
        self.done.add(done)

    @property
    def rest(self) -> list[KeyRange]:
        """The ranges of keys that are to be copied."""
        try:
            return left_open(self.covered, is_ordered=False)
        except ValueError:
            raise refusal("copy-journal-unreadable", path=self._path) from None


def _line(entry: object) -> bytes:
    return json.dumps(entry).encode("ascii") + b"\n"


async def copy_rows(source: Table, writer: Writer, journal: Journal, *, reads: RowReads) -> None:
    """Write the rows of a table that no line of the journal covers.

    Args:
        source: the table.
        writer: writes to the other one.
        journal: takes what is written.
        reads: how the source is read; at most `reads.concurrency` batches are in flight.

    Raises:
        ServiceError: rows could not be read or written.
        Interrupted: `reads.stop` raised it.
    """
    with patient_collector():
        await _Copy(source, writer, journal, reads).run(reads.scans)


@dataclass(eq=False)
class _RangeReader(Reader):
    # Everything of the range up to this key is written, and in the journal.
    written: EntityKey | None = field(kw_only=True)
    # Rows behind it that wait for others of their partition.
    pending: list[Operation] = field(default_factory=list, kw_only=True)


class _Copy(ParallelScan[_RangeReader]):
    """The scans of a copy. Memory holds about two pages for each."""

    def __init__(self, source: Table, writer: Writer, journal: Journal, reads: RowReads) -> None:
        self._source, self._writer, self._journal, self._reads = source, writer, journal, reads
        self._free = Semaphore(reads.concurrency)
        self.least = LEAST_ROWS if reads.prefetch else LEAST_AT_RATES
        super().__init__(map(self._reader, journal.rest))

    def _reader(self, rest: KeyRange) -> _RangeReader:
        return _RangeReader(self._source, rest, written=rest.after)

    def pages(self, reader: _RangeReader) -> AsyncIterator[Page]:
        return reader.table.scan(reader.rest, ahead=self._reads.prefetch)

    async def take(self, reader: _RangeReader, page: Page, rows: list[Row], cursor: EntityKey | None) -> None:  # noqa: ARG002
        """Write the full batches of a page, and record them; the last rows wait for the next page."""
        self._reads.stop()
        operations = [*reader.pending, *self._writer.operations(map(content_of, rows))]
        batches = list(self._writer.batches(operations))
        reader.pending = batches.pop() if batches and len(batches[-1]) < MAX_BATCH_OPERATIONS else []
        if batches:
            await self._write(reader, batches, batches[-1][-1].key)
        if rows:
            await self._reads.wait(reader.table.name, len(rows), partition_of(reader.table, rows))

    async def finish(self, reader: _RangeReader) -> None:
        # The end of a range, where the next one begins, so that the journal leaves no key out.
        if reader.written is None or reader.written != reader.rest.upto:
            await self._write(reader, [reader.pending] if reader.pending else [], reader.rest.upto)

    async def _write(
        self, reader: _RangeReader, batches: Sequence[Sequence[Operation]], upto: EntityKey | None
    ) -> None:
        done = Imported()

        async def write(batch: Sequence[Operation]) -> None:
            async with self._free:
                done.add(await self._writer.write(batch))

        await for_each(batches, write, limit=self._reads.concurrency)
        within, reader.written = KeyRange(reader.written, upto), upto
        self._journal.keep(within, done)

    def split(self, reader: _RangeReader, middle: EntityKey) -> _RangeReader:
        """Return a range for what follows the key."""
        return self._reader(reader.rest.split(middle)[1])


class Watched(TableWrapper):
    """A table that is read, and the rows read that were written since a moment."""

    def __init__(self, inner: Table, moment: str) -> None:
        super().__init__(inner)
        self._moment = moment[:_SECONDS]
        # Hashes of their keys: a row may be read more than once.
        self.changed = set[int]()

    async def scan(self, within: KeyRange = EVERYTHING, **options: Any) -> AsyncIterator[Page]:
        """Iterate over the rows; `options` as of `Table.scan`."""
        async with aclosing(self.inner.scan(within, **options)) as pages:  # type: ignore[type-var]
            async for page in pages:
                written = (row for row in page.rows if row.get(TIMESTAMP, "")[:_SECONDS] >= self._moment)
                self.changed.update(hash_of(json.dumps(key_of(row))) for row in written)
                yield page
