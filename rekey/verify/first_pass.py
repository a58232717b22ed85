"""The first pass of a full verification: reads several parts of the tables at a time and adds up the digests
of their rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from rekey.core.clock import Clock
from rekey.declaration.mapper import Mapper
from rekey.errors import Interrupted, RowRefused
from rekey.model import EntityKey, KeyRange, Row, key_of
from rekey.tables.base import MAX_PAGE_ROWS, Page
from rekey.tables.parallel import ParallelScan, Reader
from rekey.verify.bucket_digests import SOURCE, Part, Partial
from rekey.verify.context import ReconcileContext
from rekey.verify.digest import Digester
from rekey.verify.trace import Trace

# Called with the digests, to store them.
Checkpoint = Callable[[Partial], None]


def keep_nothing(_work: Partial) -> None:
    """Store nothing: the default."""


# Rows between two checkpoints: some seconds of work, for storing about 0.5 MB per table; and seconds, where
# rates are low. One that is killed once an hour reads less than a hundredth twice.
CHECKPOINT_ROWS, CHECKPOINT_S = 200_000, 30.0
# Rows a part must have given since its last split before it is split again: finding a middle takes about
# fifteen requests, and a part that gave fifty pages likely has as many left. Under rate limits (no prefetch)
# a reader has the rate of one partition: twenty pages take it ten seconds.
LEAST_ROWS, LEAST_AT_RATES = 50 * MAX_PAGE_ROWS, 20 * MAX_PAGE_ROWS


class Due:
    """Tells when the next checkpoint is due: after `CHECKPOINT_ROWS` rows, or so many seconds."""

    def __init__(self, clock: Clock, seconds: float = CHECKPOINT_S) -> None:
        self._clock, self._seconds = clock, seconds
        self._rows, self._since = 0, clock.monotonic()

    def after(self, rows: int) -> bool:
        """Count rows that were read; tell whether a checkpoint is due, which begins the count anew."""
        self._rows, now = self._rows + rows, self._clock.monotonic()
        if self._rows < CHECKPOINT_ROWS and now - self._since < self._seconds:
            return False
        self._rows, self._since = 0, now
        return True


async def add_digests(
    ctx: ReconcileContext, work: Partial, *, checkpoint: Checkpoint = keep_nothing, trace: Trace | None = None
) -> None:
    """Read the rest of the parts of `work` and add the rows to its digests, page by page.

    Args:
        ctx: the tables and the mapping.
        work: the digests; its parts may be split.
        checkpoint: called with the digests about every `CHECKPOINT_ROWS` rows or `CHECKPOINT_S` seconds, when
            interrupted, and at the end.
        trace: notes from which page each row came.

    Raises:
        Interrupted: `ctx.reads.stop` raised it.
    """
    if all(part.done for part in work.parts):
        return
    try:
        await _FirstPass(ctx, work, checkpoint, trace).run(ctx.reads.scans)
    except Interrupted:
        checkpoint(work)
        raise
    checkpoint(work)


@dataclass(eq=False)
class _PartReader(Reader):
    part: Part = field(kw_only=True)


class _FirstPass(ParallelScan[_PartReader]):
    def __init__(
        self, ctx: ReconcileContext, work: Partial, checkpoint: Checkpoint, trace: Trace | None
    ) -> None:
        self._ctx, self._work, self._checkpoint, self._trace = ctx, work, checkpoint, trace
        super().__init__(self._reader(part) for part in work.parts if not part.done)
        self.least = LEAST_ROWS if ctx.reads.prefetch else LEAST_AT_RATES
        self._due = Due(ctx.clock)
        not_compared = [ctx.not_compared(number) for number in range(len(ctx.targets))]
        self._adding = RowAdder(ctx.source.name, ctx.mapper, not_compared, work, trace)

    def _reader(self, part: Part) -> _PartReader:
        return _PartReader(self._ctx.whole(part.table), part.rest, part=part)

    def pages(self, reader: _PartReader) -> AsyncIterator[Page]:
        return reader.table.scan(reader.rest, ahead=self._ctx.reads.prefetch)

    async def take(self, reader: _PartReader, page: Page, rows: list[Row], cursor: EntityKey | None) -> None:
        """Add the rows of a page to the digests, and wait until the rates allow for the next one."""
        ctx, part = self._ctx, reader.part
        ctx.reads.stop()
        if rows and self._trace is not None:
            self._trace.begin_page(part.table, KeyRange(part.rest.after, key_of(rows[-1])), len(rows))
        # No await between cursor and digests: what is stored counts each row exactly once when resumed.
        part.cursor = cursor or part.cursor
        self._adding.add(part.table, rows)
        self._work.was_read(part.table, len(rows), ctx.now())
        ctx.reads.advance(len(rows))
        if self._due.after(len(rows)):
            self._checkpoint(self._work)
        await ctx.count_page(reader.table, page)

    async def finish(self, reader: _PartReader) -> None:
        reader.part.done = True

    def split(self, reader: _PartReader, middle: EntityKey) -> _PartReader:
        """End a part at a key, and return its rest."""
        reader.part.within, rest = reader.part.within.split(middle)
        self._work.parts.append(Part(reader.part.table, rest))
        return self._reader(self._work.parts[-1])


class RowAdder:
    """Adds rows to the digests of a comparison. `not_compared`: by target, the properties left out; `trace`:
    notes the rows of targets, as they are and as source rows map to them."""

    def __init__(
        self,
        source: str,
        mapper: Mapper,
        not_compared: Sequence[frozenset[str]],
        work: Partial,
        trace: Trace | None = None,
    ) -> None:
        self._mapper, self._work, self._trace = mapper, work, trace
        self._add_source = work.source.adder(Digester(source))
        digesters = list(map(Digester, mapper.tables, not_compared))
        note = None if trace is None else trace.note
        self._add_expected = [
            digests.adder(digester, note) for digests, digester in zip(work.expected, digesters, strict=True)
        ]
        self._add_actual = [
            digests.adder(digester, note) for digests, digester in zip(work.actual, digesters, strict=True)
        ]

    def add(self, table: int, rows: list[Row]) -> None:
        """Add rows of a target or, for `SOURCE`, source rows and the rows that they map to."""
        if table == SOURCE:
            self._add_source(rows)
            add_mapped(self._mapper, rows, self._refuse, self._add_expected)
            self._work.source_rows += len(rows)
            if self._mapper.drops:
                self._work.not_migrated += sum(map(self._mapper.is_dropped, rows))
        elif table in self._mapper.migration.sharing:
            kinds: defaultdict[int, list[Row]] = defaultdict(list)
            for row in rows:
                kinds[self._mapper.number_of(table, row)].append(row)
            for number, alike in kinds.items():
                self._add_actual[number](alike)
        else:
            self._add_actual[table](rows)

    def _refuse(self, *_: object) -> None:
        self._work.refused += 1
        if self._trace is not None:
            self._trace.note_refused()


def add_mapped(
    mapper: Mapper,
    rows: Sequence[Row],
    refused: Callable[[Row, RowRefused], object],
    adders: Sequence[Callable[[Sequence[Row]], None]],
) -> None:
    """Add the rows that source rows map to by the adder of their table's number; call `refused` for each row
    that the mapping refuses."""
    # About a page at a time: a source row may map to many.
    for mapped in mapper.map_tables(rows, refused, MAX_PAGE_ROWS):
        for add, target in zip(adders, mapped, strict=True):
            add(target.rows)
