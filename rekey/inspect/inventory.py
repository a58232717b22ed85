"""What a source table holds: read whole, or sampled by a bounded number of page reads.

Rules kept here:

* Reading is all that is done; nothing is written anywhere.
* A sample reads the beginning of the table whole (so that batches can be packed as backfill packs them) and
  then single pages elsewhere to estimate the size (`sampling.py`). It always says that it is an estimate.
* The digest of a whole read is the sum modulo 2^128 of BLAKE2b over each row's ETag and Timestamp. Every
  insert, update and delete changes it, and it holds nothing of a key: guesses cannot be tested against it.
* Memory does not grow with the table: rows are handed on page by page.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from rekey.core.limits import entity_bytes
from rekey.inspect.sampling import RowEstimate, Sizer, Stretch, Units, key_from, units_of
from rekey.model import ETAG, EVERYTHING, PARTITION_KEY, TIMESTAMP, EntityKey, KeyRange, Row, key_of
from rekey.tables.base import MAX_PAGE_ROWS, Table

DIGEST_MODULUS = 1 << 128


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How much a sampled inventory reads.

    Attributes:
        head_rows: rows read from the beginning of the table.
        probes: pages read elsewhere. One probe costs the service one request, two when its key is absent.
        requests: at most so many requests in all, head included; None: `probes` alone bounds them.
    """

    head_rows: int = 30_000
    probes: int = 45
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """What is known of a source table.

    Attributes:
        table: its name.
        rows: how many rows, and how sure that is.
        stored_bytes: bytes the service bills; an estimate unless `rows.exact`.
        pages: pages read to find out.
        partitions: partitions met; all there are when `rows.exact`.
        largest_partition: rows of the largest partition; likely rows unless `rows.exact`.
        digest: 32 hexadecimal digits over every row's ETag and Timestamp; None for a sample.
        requests: sent to find out; more than `pages` where an answer held no rows.
    """

    table: str
    rows: RowEstimate
    stored_bytes: int
    pages: int
    partitions: int
    largest_partition: int
    digest: str | None
    requests: int = 0

    @property
    def exact(self) -> bool:
        """Tell whether every row was read."""
        return self.rows.exact

    @property
    def basis(self) -> str:
        """Return in one sentence what the figures rest on."""
        if self.exact:
            return f"every row was read ({self.pages:,} pages)"
        return (
            f"sampled: {self.rows.at_least:,} rows in {self.pages:,} pages were read; "
            "rows, bytes and all that follows from them are estimates"
        )


Take = Callable[[Sequence[Row], bool], None]
"""Takes the rows of one page; the flag tells whether they continue the page before."""

Jump = Callable[[EntityKey], None]
"""Told after which key the next rows begin, when they do not continue the page before."""


class _AlreadyRead:
    """Remembers which stretches were read, so that no row is counted or handed on twice."""

    def __init__(self) -> None:
        self._ends: list[Units] = []
        self._begins: list[Units] = []

    def mark(self, after: Units, upto: Units) -> None:
        """Take note that everything after `after` up to `upto` was read."""
        at = bisect_left(self._ends, upto)
        self._ends.insert(at, upto)
        self._begins.insert(at, after)

    def __contains__(self, key: Units) -> bool:
        # Stretches are few (one a request) and may overlap, so all that end at or after the key count.
        return any(begin < key for begin in self._begins[bisect_left(self._ends, key) :])


class _Totals:
    """Sums over rows in scan order; memory grows with a sample's partitions, not with a whole read's."""

    def __init__(self, *, gaps: bool) -> None:
        """Tell whether stretches may be missing: then a partition may be met again and is remembered."""
        self.rows = 0
        self.stored = 0
        self.pages = 0
        self.requests = 0
        self.partitions = 0
        self.largest = 0
        self.digest = 0
        self.run = 0
        self._partition: str | None = None
        self._met: set[str] | None = set() if gaps else None

    def take(self, rows: Sequence[Row], continues: bool) -> None:
        if not continues:
            self._partition = None
        for row in rows:
            self.stored += entity_bytes(row)
            self.digest += _row_digest(row)
            if row[PARTITION_KEY] != self._partition:
                self._partition = row[PARTITION_KEY]
                self.run = 0
                if self._met is None or self._partition not in self._met:
                    self.partitions += 1
                if self._met is not None:
                    self._met.add(row[PARTITION_KEY])
            self.run += 1
            self.largest = max(self.largest, self.run)
        self.rows += len(rows)

    def inventory(self, table: Table, rows: RowEstimate) -> Inventory:
        """Return what is known of a table; its digest when it was read whole."""
        return Inventory(
            table=table.name,
            rows=rows,
            stored_bytes=self.stored * rows.rows // self.rows if self.rows else 0,
            pages=self.pages,
            partitions=self.partitions,
            largest_partition=self.largest,
            digest=f"{self.digest % DIGEST_MODULUS:032x}" if rows.exact else None,
            requests=self.requests,
        )


async def read_whole(table: Table, take: Take) -> Inventory:
    """Read every row of a table, handing pages to `take`. Raises TableMissing and service errors."""
    totals = _Totals(gaps=False)
    async with aclosing(_scan(table, EVERYTHING)) as pages:
        async for rows in pages:
            totals.pages += 1
            totals.take(rows, True)
            take(rows, True)
    totals.requests = totals.pages
    return totals.inventory(table, RowEstimate(totals.rows, totals.rows, exact=True, settled=True))


async def read_sample(table: Table, size: SampleSize, take: Take, jump: Jump | None = None) -> Inventory:
    """Read a bounded part of a table, handing pages to `take`. Raises TableMissing and service errors.

    A table that is no longer than the head is read whole; then the inventory says so and has its digest.
    """
    totals = _Totals(gaps=True)
    known = _AlreadyRead()
    page, whole = await _read_head(table, size.head_rows, totals, known, take)
    likely, settled = totals.rows, True
    if not whole:

        async def read(after: Units) -> Stretch:
            if jump is not None:
                jump(key_from(after))
            most = None if size.requests is None else size.requests - 1 - totals.requests
            return await _read_stretch(table, after, totals, known, take, most)

        probes = size.probes
        if size.requests is not None:
            # One is kept back: after the last page of a table an empty answer may follow.
            probes = min(probes, size.requests - 1 - totals.requests)
        sizer = Sizer(read, probes)
        likely += round(await sizer.rows_behind(page, totals.rows))
        settled = sizer.settled
    likely = max(likely, totals.rows)
    return totals.inventory(table, RowEstimate(likely, totals.rows, exact=whole, settled=settled))


async def _read_head(
    table: Table, head_rows: int, totals: _Totals, known: _AlreadyRead, take: Take
) -> tuple[list[Units], bool]:
    """Read the beginning of the table; return the last page's keys, and whether that was all of it."""
    last: list[Units] = []
    async with aclosing(_scan(table, EVERYTHING)) as pages:
        async for rows in pages:
            totals.pages += 1
            totals.requests += 1
            if not rows:
                continue
            # The page after the head shows whether the table goes on; being read, it is used.
            beyond = totals.rows >= head_rows
            totals.take(rows, True)
            take(rows, True)
            last = [units_of(key_of(row)) for row in rows]
            if beyond:
                known.mark((), last[-1])
                return last, False
    totals.requests += 1
    return last, True


async def _read_stretch(
    table: Table, after: Units, totals: _Totals, known: _AlreadyRead, take: Take, most: int | None
) -> Stretch:
    """Read one page's worth of rows after a key; only rows that are new are handed on.

    `most`: how many answers to read at most; None reads on until there are rows, and costs one of the budget.
    """
    keys: list[Units] = []
    ended = True
    sent = 0
    start = key_from(after)  # not quite there, where a service would not answer that key
    async with aclosing(_scan(table, KeyRange(after=start))) as pages:
        async for rows in pages:
            totals.pages += 1
            sent += 1
            found = [units_of(key_of(row)) for row in rows]
            fresh = [row for row, key in zip(rows, found, strict=True) if key not in known]
            totals.take(fresh, bool(keys))
            take(fresh, bool(keys))
            keys += found
            if len(keys) >= MAX_PAGE_ROWS or sent == most:
                ended = False
                break
    if keys:
        known.mark(min(after, units_of(start)), keys[-1])
    sent += ended
    totals.requests += sent
    return Stretch(keys, ended, 1 if most is None else sent)


async def _scan(table: Table, within: KeyRange) -> AsyncGenerator[list[Row], None]:
    pages = table.scan(within, page_rows=MAX_PAGE_ROWS)
    try:
        async for page in pages:
            yield page.rows
    finally:
        # A scan that is left early must not keep its connection until the garbage collector comes.
        if isinstance(pages, AsyncGenerator):
            await pages.aclose()


def _row_digest(row: Row) -> int:
    stamp = f"{row.get(ETAG, '')}\0{row.get(TIMESTAMP, '')}".encode()
    return int.from_bytes(hashlib.blake2b(stamp, digest_size=16).digest())
