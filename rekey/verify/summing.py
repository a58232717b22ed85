"""Summing up: the first pass of a full verification, reading several parts of the tables at a time.

Rules kept here:

* Cursor and sums move together, between two awaits: the state stored at any moment is one from which summing
  is resumed without counting a row twice or leaving one out.
* Idle readers split the rest of another reader's part, as those of the backfill do; the sums do not depend on
  where a table was split.
* When the work is interrupted, the sums are stored first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from rekey.core.concurrency import together
from rekey.declaration.mapper import Mapper
from rekey.errors import Interrupted, RowRefused
from rekey.model import KeyRange, Row, key_of
from rekey.tables.base import MAX_PAGE_ROWS, Page
from rekey.tables.split import find_middle
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
    summing = _Summing(ctx, work, checkpoint, trace)
    try:
        await together(summing.reader() for _ in range(max(1, ctx.scans)))
    except Interrupted:
        checkpoint(work)
        raise
    checkpoint(work)


@dataclass(slots=True, eq=False)
class _Active:
    """A part that is being read.

    Attributes:
        part: the part, its cursor as of the last page read.
        fresh: rows it gave since it was begun or split.
        shrunk: its end was moved after its scan began.
        probed: another reader is looking for a key to split it at.
    """

    part: Part
    fresh: int = 0
    shrunk: bool = False
    probed: bool = False

    def take(self, page: Page) -> tuple[list[Row], bool]:
        """Move the cursor past a page; return its rows within the part, and whether the part ends there."""
        rows, cursor, ended = page.cut(self.part.within.upto if self.shrunk else None)
        self.part.cursor = cursor or self.part.cursor
        self.fresh += len(rows)
        return rows, ended


class _Summing:
    """All readers of one comparison."""

    def __init__(
        self, ctx: ReconcileContext, work: Partial, checkpoint: Checkpoint, trace: Trace | None
    ) -> None:
        self._ctx, self._work, self._checkpoint, self._trace = ctx, work, checkpoint, trace
        self._open = deque(part for part in work.parts if not part.done)
        self._active: list[_Active] = []
        self._least = LEAST_ROWS if ctx.ahead else LEAST_AT_RATES
        self._since = 0
        self._changed = asyncio.Event()
        not_compared = [ctx.not_compared(number) for number in range(len(ctx.targets))]
        self._adding = Adding(ctx.source.name, ctx.mapper, not_compared, work, trace)

    async def reader(self) -> None:
        """Read parts, also ones split off others, until there is none left to begin."""
        while (active := await self._take()) is not None:
            try:
                await self._read(active)
            finally:
                self._active.remove(active)
                self._tell()

    async def _take(self) -> _Active | None:
        while True:
            if self._open:
                self._active.append(_Active(self._open.popleft()))
                return self._active[-1]
            if not self._active:
                return None
            worth = [one for one in self._active if one.fresh >= self._least and not one.probed]
            if worth:
                await self._divide(max(worth, key=lambda one: one.fresh))
            else:
                await self._changed.wait()

    async def _divide(self, active: _Active) -> None:
        """Look for a key in the middle of the rest of a part, and split it there."""
        part = active.part
        active.probed = True
        try:
            middle = await find_middle(self._ctx.table(part.table), part.rest, part.cursor)
        finally:
            active.probed = False
        active.fresh = 0
        # Meanwhile its reader may have passed that key, or reached the end. From here on nothing is awaited,
        # so the cursor stands still.
        if middle is None or active not in self._active or middle not in part.rest:
            return
        part.within, rest = part.within.split(middle)
        upper = Part(part.table, rest)
        active.shrunk = True
        self._work.parts.append(upper)
        self._open.append(upper)
        self._tell()

    async def _read(self, active: _Active) -> None:
        ctx, part = self._ctx, active.part
        table = ctx.whole(part.table)
        async with aclosing(table.scan(part.rest, ahead=ctx.ahead)) as pages:  # type: ignore[type-var]  # all scans are generators
            async for page in pages:
                ctx.stop()
                after = part.rest.after
                rows, ended = active.take(page)
                if rows and self._trace is not None:
                    self._trace.begin_page(part.table, KeyRange(after, key_of(rows[-1])), len(rows))
                self._adding.add(part.table, rows)
                self._work.was_read(part.table, len(rows), ctx.now())
                ctx.advance(len(rows))
                self._since += len(rows)
                if active.fresh >= self._least:
                    self._tell()
                if self._since >= CHECKPOINT_ROWS:
                    self._since = 0
                    self._checkpoint(self._work)
                if ended:
                    break
                await ctx.taken(table, page)
                del page, rows  # free their memory before the next page comes
        part.done = True

    def _tell(self) -> None:
        """Wake all readers that wait; each checks whether its own condition holds now."""
        self._changed.set()
        self._changed = asyncio.Event()


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
