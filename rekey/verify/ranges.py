"""A comparison range by range, where every target keeps the PartitionKey: partitions lead to the same
partitions of the targets, so that both sides of a range are read within seconds, and what differs is settled
at once (ADR 0061)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from rekey.core.collector import patient_collector
from rekey.errors import Interrupted, StateUnusable
from rekey.model import LAST_ROW, PARTITION_KEY, EntityKey, KeyRange, Row
from rekey.tables.base import Page
from rekey.tables.parallel import ParallelScan, Reader
from rekey.verify.bucket_digests import SOURCE, Part, Partial, Reads, all_reads
from rekey.verify.context import ReconcileContext
from rekey.verify.first_pass import LEAST_AT_RATES, LEAST_ROWS, Due, RowAdder
from rekey.verify.full import Comparison, compare, report_of
from rekey.verify.report import Findings, FullReport, all_findings, all_repairs

# A range ends at the next partition after so many source rows or seconds. What is being read when a
# comparison is killed is read twice: of one that is killed once an hour less than a hundredth.
RANGE_ROWS, RANGE_S, CHECKPOINT_S = 100_000, 8.0, 10.0
# Partitions with more rows are compared together, at the end: their ranges would be too long to lose. The
# more there are the larger they must be, which keeps the state file small.
LARGE_ROWS, MANY_PARTS = 3 * RANGE_ROWS, 1000
# With more ranges in which rows differ nothing more is stored.
_MOST_DIFFERING = 1000

# The number that stands for all tables in stored parts.
_ALL = -2
# Counts of equal ranges that are in the report.
_COUNTED = ("transient", "rechecked", "pending")


@dataclass(slots=True)
class Ranges:
    """A comparison by ranges so far, and the ranges still to be compared."""

    # Ranges of partitions; the cursor is behind the last partition that was compared.
    parts: list[Part] = field(repr=False)
    # Of the ranges in which nothing differs.
    equal: Partial = field(repr=False)
    # Of large partitions, which are compared at the end, and what is still to be read of them.
    large: Partial = field(repr=False)
    # Of the ranges in which nothing differs.
    counts: Counter[str] = field(default_factory=Counter)
    # Ranges in which rows differ: compared again when the comparison is resumed.
    differing: list[KeyRange] = field(default_factory=list, repr=False)

    @classmethod
    def fresh(cls, targets: int) -> Ranges:
        """Return a comparison with so many targets, nothing read."""
        return cls([Part(SOURCE, KeyRange())], _nothing(targets), _nothing(targets))

    @property
    def begun_at(self) -> str:
        return self.equal.begun_at

    @property
    def reads(self) -> Reads:
        """When the rows were read that need not be read again."""
        return all_reads(self.equal.reads, self.large.reads)

    def as_state(self) -> dict[str, Any]:
        """Return a JSON-able value to resume from. It holds keys: for the state file only."""
        parts = [*self.parts, *(Part(_ALL, within) for within in self.differing)]
        ranges = Partial([replace(part, table=_ALL) for part in parts if not part.done], [], [])
        equal, large = self.equal.as_state(), self.large.as_state()
        stored = {**equal, "parts": ranges.as_state()["parts"] + large.pop("parts")}
        return {**stored, "large": large, "counts": dict(self.counts)}

    @classmethod
    def from_state(cls, state: dict[str, Any], *, targets: int) -> Ranges:
        """Return a comparison from what `as_state` gave. Raises StateUnusable for that of another one."""
        equal = Partial.from_state(state, targets=targets)
        try:
            large = Partial.from_state({**state["large"], "parts": []}, targets=targets)
            counts = Counter({name: int(state["counts"].get(name, 0)) for name in _COUNTED})
        except (KeyError, TypeError, ValueError, AttributeError):
            raise StateUnusable(
                "the stored digests of an earlier verification cannot be read",
                kept="all tables; a verification changes none",
                hint="run `rekey verify --mode full` again: it begins anew",
            ) from None
        ranges = [replace(part, table=SOURCE) for part in equal.parts if part.table == _ALL]
        large.parts = [part for part in equal.parts if part.table != _ALL]
        equal.parts = []
        return cls(ranges, equal, large, counts)


async def compare_ranges(
    ctx: ReconcileContext,
    work: Ranges,
    *,
    checkpoint: Callable[[Ranges], None] = lambda _work: None,
    repair: bool = False,
) -> FullReport:
    """Compare every row and every property range by range, as `full` compares everything at once. Arguments
    and errors as those of `full`; `ctx.mapper` keeps partitions, `ctx.propagate_first` is not set."""
    work.equal.begin_sitting(ctx.now())
    work.large.sitting = work.equal.sitting
    comparing = _Comparing(ctx, work, checkpoint, repair=repair)
    with patient_collector():
        try:
            await comparing.run(ctx.reads.scans)
        except Interrupted:
            comparing.store()
            raise
    comparing.store()
    groups = [comparing.of_equal, comparing.of_differing]
    if work.large.parts:
        groups.append(
            await compare(ctx, work.large, checkpoint=lambda _large: comparing.store(), repair=repair)
        )
    whole = comparing.aside
    whole.begun_at = work.begun_at
    whole.merge(work.equal)
    whole.merge(work.large)
    differing = [
        expected.differing(actual) for expected, actual in zip(whole.expected, whole.actual, strict=True)
    ]
    return report_of(ctx, whole, replace(_merged(groups), differing=differing))


def _merged(comparisons: Sequence[Comparison]) -> Comparison:
    """Return what was found in several groups of ranges; which buckets differ is left open."""
    repaired = [each.repaired for each in comparisons if each.repaired is not None]
    reread = [
        frozenset[int]().union(*buckets)
        for buckets in zip(*(each.reread for each in comparisons), strict=True)
    ]
    return Comparison(
        all_findings([each.findings for each in comparisons]), all_repairs(repaired), reread, []
    )


@dataclass(eq=False)
class _Range:
    """A range that is being read."""

    after: EntityKey | None
    # Of its rows so far.
    work: Partial
    adding: RowAdder
    since: float
    # The last partition that was read.
    partition: str = ""


@dataclass(eq=False)
class _PartReader(Reader):
    part: Part = field(kw_only=True)
    range: _Range | None = None


class _Comparing(ParallelScan[_PartReader]):
    """Reads the source; at the end of each range reads the same partitions of the targets and settles what
    differs."""

    partitions_apart = begins_anew = True

    def __init__(
        self, ctx: ReconcileContext, work: Ranges, checkpoint: Callable[[Ranges], None], *, repair: bool
    ) -> None:
        self._work, self._checkpoint, self._repair = work, checkpoint, repair
        self._ctx, reads = ctx, ctx.reads
        # Ranges are compared several at a time already.
        share = max(2, reads.concurrency // max(1, reads.scans))
        self._within = replace(ctx, reads=replace(reads, scans=1, concurrency=share))
        super().__init__(self._reader(part) for part in work.parts if not part.done)
        # Of the source: a reader reads as many rows of the targets.
        self.least = (LEAST_ROWS if reads.prefetch else LEAST_AT_RATES) // 2
        self._due = Due(ctx.clock, CHECKPOINT_S)
        self._not_compared = [ctx.not_compared(number) for number in range(len(ctx.targets))]
        # What the ranges hold in which rows differ, and what was found there.
        self.aside = _nothing(len(ctx.targets))
        self.of_differing = Comparison(Findings(), None, [frozenset()] * len(ctx.targets), [])
        self._reread: list[set[int]] = [set() for _ in ctx.targets]

    @property
    def of_equal(self) -> Comparison:
        """What was found in the ranges that are equal."""
        counts: dict[str, Any] = dict(self._work.counts)
        return Comparison(Findings(**counts), None, list(map(frozenset, self._reread)), [])

    def store(self) -> None:
        """Store what is done, unless too many ranges would have to be compared again."""
        if len(self._work.differing) <= _MOST_DIFFERING:
            self._checkpoint(self._work)

    def _reader(self, part: Part) -> _PartReader:
        return _PartReader(self._ctx.whole(SOURCE), part.rest, part=part)

    def _begin(self, reader: _PartReader) -> _Range:
        ctx, part = self._ctx, reader.part
        work = _nothing(len(ctx.targets))
        work.begin_sitting(ctx.now())
        work.sitting = self._work.equal.sitting
        adding = RowAdder(ctx.source.name, ctx.mapper, self._not_compared, work)
        after = part.within.after if part.cursor is None else part.cursor
        reader.range = _Range(after, work, adding, ctx.clock.monotonic())
        return reader.range

    def pages(self, reader: _PartReader) -> AsyncIterator[Page]:
        return reader.table.scan(reader.rest, ahead=self._ctx.reads.prefetch)

    async def take(self, reader: _PartReader, page: Page, rows: list[Row], cursor: EntityKey | None) -> None:
        ctx = self._ctx
        ctx.reads.stop()
        await ctx.count_page(reader.table, page)
        if not rows:
            return
        reading, last = reader.range or self._begin(reader), rows[-1][PARTITION_KEY]
        before = list(takewhile(lambda row: row[PARTITION_KEY] != last, rows))
        is_between = bool(before) or (reading.work.source_rows > 0 and reading.partition != last)
        count = reading.work.source_rows + len(before)
        if is_between and self._is_due(reading, count):
            self._add(reading, before)
            await self._compare(reader, EntityKey(reading.partition, LAST_ROW))
            reading, rows = self._begin(reader), rows[len(before) :]
        self._add(reading, rows)
        most = LARGE_ROWS * (1 + len(self._work.large.parts) // MANY_PARTS)
        if not is_between and reading.work.source_rows >= most and cursor is not None:
            self._set_aside(reader, reading, cursor)

    def _is_due(self, reading: _Range, rows: int) -> bool:
        return rows >= RANGE_ROWS or self._ctx.clock.monotonic() - reading.since >= RANGE_S

    def _add(self, reading: _Range, rows: list[Row]) -> None:
        if rows:
            reading.adding.add(SOURCE, rows)
            reading.work.was_read(SOURCE, len(rows), self._ctx.now())
            reading.partition = rows[-1][PARTITION_KEY]
            self._ctx.reads.advance(len(rows))

    def _set_aside(self, reader: _PartReader, reading: _Range, cursor: EntityKey) -> None:
        """Leave a large partition, and what was read before it, to the end."""
        end, large = EntityKey(reading.partition, LAST_ROW), self._work.large
        within = KeyRange(reading.after, end)
        large.merge(reading.work)
        large.parts += [Part(SOURCE, within, cursor), *self._of_targets(within)]
        reader.range, reader.part.cursor = None, end
        # The scan restarts behind it.
        reader.rest, reader.shrunk = reader.rest.behind(end), True

    def _of_targets(self, within: KeyRange) -> list[Part]:
        return [Part(number, within) for number in self._ctx.mapper.read_once]

    async def finish(self, reader: _PartReader) -> None:
        part = reader.part
        if part.cursor is None or part.cursor != part.within.upto:
            await self._compare(reader, part.within.upto, is_last=True)
        part.done = True

    async def _compare(self, reader: _PartReader, upto: EntityKey | None, *, is_last: bool = False) -> None:
        """Compare the range up to a key with that of the targets."""
        reading, work = reader.range or self._begin(reader), self._work
        reader.range, within = None, KeyRange(reading.after, upto)
        reading.work.parts = [Part(SOURCE, within, done=True), *self._of_targets(within)]
        compared = await compare(self._within, reading.work, repair=self._repair)
        # No await from here on: what is stored counts each range exactly once.
        if compared.is_clean:
            work.equal.merge(reading.work)
            work.counts.update({name: getattr(compared.findings, name) for name in _COUNTED})
            for known, buckets in zip(self._reread, compared.reread, strict=True):
                known |= buckets
        else:
            self.aside.merge(reading.work)
            self.of_differing = _merged([self.of_differing, compared])
            work.differing.append(within)
        reader.part.cursor, reader.part.done = upto, is_last
        rows = sum(read.rows for read in reading.work.reads.values())
        if self._due.after(rows):
            self.store()

    def split(self, reader: _PartReader, middle: EntityKey) -> _PartReader:
        """End a part behind a partition, and return its rest."""
        reader.part.within, rest = reader.part.within.split(middle)
        self._work.parts.append(Part(SOURCE, rest))
        return self._reader(self._work.parts[-1])


def _nothing(targets: int) -> Partial:
    return replace(Partial.fresh(targets), parts=[])
