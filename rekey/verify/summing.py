"""Summing up: the first pass of a full verification, reading several parts of the tables at a time.

Rules kept here:

* Cursor and sums move together, between two awaits: the state stored at any moment is one from which summing
  is resumed without counting a row twice or leaving one out.
* Idle readers split the rest of another reader's part, as those of the backfill do; the sums do not depend on
  where a table was split.
* When the work is interrupted, the sums are stored first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from rekey.declaration.mapper import Mapper
from rekey.errors import Interrupted, RowRefused
from rekey.model import EntityKey, KeyRange, Row, key_of
from rekey.tables.base import MAX_PAGE_ROWS, Page
from rekey.tables.parallel import ParallelScan, Reader
from rekey.verify.context import ReconcileContext
from rekey.verify.digest import Digester
from rekey.verify.sums import SOURCE, Part, Partial
from rekey.verify.trace import Trace

# Called with the sums, to store them.
Checkpoint = Callable[[Partial], None]


def keep_nothing(_work: Partial) -> None:
    """Store no sums: the default."""


# Rows between two checkpoints: some seconds of work, for storing about 0.5 MB per table.
CHECKPOINT_ROWS = 200_000
# Rows a part must have given since it was last split before it is split again: finding a middle takes about
# fifteen requests. A part that gave fifty pages is likely to have as many left, which is worth so many. Where
# rates hold (no `ctx.ahead`), a reader has the rate of one partition: then twenty pages take it ten seconds.
LEAST_ROWS, LEAST_AT_RATES = 50 * MAX_PAGE_ROWS, 20 * MAX_PAGE_ROWS


async def sum_up(
    ctx: ReconcileContext,
    work: Partial,
    *,
    checkpoint: Checkpoint = keep_nothing,
    trace: Trace | None = None,
) -> None:
    """Read the rest of the parts of `work` and add the rows to its sums, page by page.

    Args:
        ctx: the tables and the mapping.
        work: the sums; its parts may be split.
        checkpoint: called with the sums about every `CHECKPOINT_ROWS` rows, when interrupted, and at the end.
        trace: notes from which page each row came.

    Raises:
        Interrupted: `ctx.stop` raised it.
    """
    if all(part.done for part in work.parts):
        return
    try:
        await _Summing(ctx, work, checkpoint, trace).run(ctx.scans)
    except Interrupted:
        checkpoint(work)
        raise
    checkpoint(work)


@dataclass(eq=False)
class _PartReader(Reader):
    """A part that is read."""

    part: Part = field(kw_only=True)


class _Summing(ParallelScan[_PartReader]):
    """All readers of one comparison."""

    def __init__(
        self, ctx: ReconcileContext, work: Partial, checkpoint: Checkpoint, trace: Trace | None
    ) -> None:
        self._ctx, self._work, self._checkpoint, self._trace = ctx, work, checkpoint, trace
        super().__init__(self._reader(part) for part in work.parts if not part.done)
        self.least = LEAST_ROWS if ctx.ahead else LEAST_AT_RATES
        self._since = 0
        not_compared = [ctx.not_compared(number) for number in range(len(ctx.targets))]
        self._adding = Adding(ctx.source.name, ctx.mapper, not_compared, work, trace)

    def _reader(self, part: Part) -> _PartReader:
        return _PartReader(self._ctx.whole(part.table), part.rest, part=part)

    def pages(self, reader: _PartReader) -> AsyncIterator[Page]:
        """Begin to scan the rest of a part."""
        return reader.table.scan(reader.rest, ahead=self._ctx.ahead)

    async def take(self, reader: _PartReader, page: Page, rows: list[Row], cursor: EntityKey | None) -> None:
        """Add the rows of a page to the sums, and wait until the rates allow for the next one."""
        ctx, part = self._ctx, reader.part
        ctx.stop()
        if rows and self._trace is not None:
            self._trace.begin_page(part.table, KeyRange(part.rest.after, key_of(rows[-1])), len(rows))
        part.cursor = cursor or part.cursor
        self._adding.add(part.table, rows)
        self._work.was_read(part.table, len(rows), ctx.now())
        ctx.advance(len(rows))
        self._since += len(rows)
        if self._since >= CHECKPOINT_ROWS:
            self._since = 0
            self._checkpoint(self._work)
        await ctx.taken(reader.table, page)

    async def finish(self, reader: _PartReader) -> None:
        """Note that a part was read to its end."""
        reader.part.done = True

    def split(self, reader: _PartReader, middle: EntityKey) -> _PartReader:
        """End a part at a key, and return its rest."""
        reader.part.within, rest = reader.part.within.split(middle)
        self._work.parts.append(Part(reader.part.table, rest))
        return self._reader(self._work.parts[-1])


class Adding:
    """Adds rows to the sums of a comparison."""

    def __init__(
        self,
        source: str,
        mapper: Mapper,
        not_compared: Sequence[frozenset[str]],
        work: Partial,
        trace: Trace | None = None,
    ) -> None:
        """Create it.

        Args:
            source: name of the source table.
            mapper: maps source rows.
            not_compared: by target, the properties that are not compared.
            work: the sums to add to.
            trace: notes the rows of targets, as they are and as source rows map to them.
        """
        self._mapper, self._work, self._trace = mapper, work, trace
        self._add_source = work.source.adder(Digester(source))
        digesters = list(map(Digester, mapper.tables, not_compared))
        note = None if trace is None else trace.note
        self._add_expected = [
            sums.adder(one, note) for sums, one in zip(work.expected, digesters, strict=True)
        ]
        self._add_actual = [sums.adder(one, note) for sums, one in zip(work.actual, digesters, strict=True)]

    def add(self, table: int, rows: list[Row]) -> None:
        """Add rows of a target or, for `SOURCE`, source rows and the rows that they map to."""
        if table == SOURCE:
            self._add_source(rows)
            add_mapped(self._mapper, rows, self._refuse, self._add_expected)
            self._work.source_rows += len(rows)
        elif self._mapper.is_shared(table):
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
    """Add the rows that source rows map to by the adder of their table's number: about a page of them at a
    time, because a source row may map to many. `refused` is called for each row that the mapping refuses."""
    for made in mapper.map_tables(rows, refused, MAX_PAGE_ROWS):
        for add, one in zip(adders, made, strict=True):
            add(one.rows)
