"""A comparison range by range, where every target keeps the PartitionKey: partitions lead to the same
partitions of the targets, so that both sides of a range are read within seconds, and what differs is settled
at once (ADR 0061)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from typing import Any

from rekey.core.collector import patient_collector
from rekey.errors import Interrupted
from rekey.model import LAST_ROW, PARTITION_KEY, EntityKey, KeyRange, Row
from rekey.tables.base import Page
from rekey.tables.parallel import ParallelScan, Reader
from rekey.verify import report
from rekey.verify.bucket_digests import SOURCE, Part, Partial, Reads, all_reads, digests_unusable, rows_in
from rekey.verify.context import Keys, ReconcileContext
from rekey.verify.first_pass import LEAST_AT_RATES, LEAST_ROWS, Due, RowAdder
from rekey.verify.full import Comparison, compare, report_of

# A range ends at the next partition after so many source rows or seconds. What is being read when a
# comparison is killed is read twice: of one that is killed once an hour less than a hundredth.
RANGE_ROWS, RANGE_S, CHECKPOINT_S = 100_000, 8.0, 10.0
# Partitions with more rows are compared together, at the end: their ranges would be too long to lose. The
# more there are the larger they must be, which keeps the state file small.
LARGE_ROWS, MANY_PARTS = 3 * RANGE_ROWS, 1000
# With more ranges in which rows differ they are not listed, and cannot be compared again.
MOST_DIFFERING = 1000

# What stands for the table in stored parts: of a range to be compared, of one in which rows differ.
_RANGE, _DIFFERING = -2, -3
_PARTIALS = ("equal", "unequal", "large")
# Counts of equal ranges that are in the report.
_COUNTED = ("transient", "rechecked", "pending")


@dataclass(slots=True)
class Ranges:
    """A comparison by ranges so far, and the ranges still to be compared."""

    # Ranges of partitions; the cursor is behind the last partition that was compared.
    parts: list[Part] = field(repr=False)
    # Of the ranges in which nothing differs.
    equal: Partial = field(repr=False)
    # Of the ranges in which rows differ.
    unequal: Partial = field(repr=False)
    # Of large partitions, which are compared at the end, and what is still to be read of them.
    large: Partial = field(repr=False)
    # Of the ranges in which nothing differs.
    counts: Counter[str] = field(default_factory=Counter)
    # What differs in the others.
    findings: report.Findings = field(default_factory=report.Findings)
    # By target, the buckets that differed when they were first read.
    reread: list[set[int]] = field(default_factory=list, repr=False)
    # The ranges in which rows differ; with one more than `MOST_DIFFERING` not all of them.
    differing: list[KeyRange] = field(default_factory=list, repr=False)

    @classmethod
    def fresh(cls, targets: int) -> Ranges:
        """Return a comparison with so many targets, nothing read."""
        equal, unequal, large = (_nothing(targets) for _ in _PARTIALS)
        parts, reread = [Part(SOURCE, KeyRange())], [set[int]() for _ in range(targets)]
        return cls(parts, equal, unequal, large, reread=reread)

    @property
    def begun_at(self) -> str:
        return self.equal.begun_at

    @property
    def reads(self) -> Reads:
        """When the rows were read that need not be read again."""
        return all_reads(self.equal.reads, all_reads(self.unequal.reads, self.large.reads))

    @property
    def differing_rows(self) -> int:
        """How many rows differ or could not be settled, so far."""
        return self.findings.stable + self.findings.unsettled

    def begin_sitting(self, now: str) -> None:
        """Begin another sitting at the time `now`, UTC."""
        self.equal.begin_sitting(now)
        self.unequal.sitting = self.large.sitting = self.equal.sitting

    def compare_again(self) -> bool:
        """Forget the ranges in which rows differ, so that they are compared again: to repair the rows, or to
        name their keys, which are not stored. Return False where there are too many of them."""
        if len(self.differing) > MOST_DIFFERING:
            return False
        self.parts += [Part(SOURCE, within) for within in self.differing]
        self.unequal, self.findings, self.differing = _nothing(len(self.equal.actual)), report.Findings(), []
        return True

    def as_state(self) -> dict[str, Any]:
        """Return a JSON-able value to resume from. It holds keys: for the state file only."""
        # All keys are in `parts`, which the state file seals. No version that knows no ranges takes the rest
        # for digests of its own.
        open_parts = [replace(part, table=_RANGE) for part in self.parts if not part.done]
        differing = [Part(_DIFFERING, within) for within in self.differing]
        parts = Partial([*open_parts, *differing, *self.large.parts], [], []).as_state()["parts"]
        partials = {name: getattr(self, name).as_state() | {"parts": []} for name in _PARTIALS}
        seen = {"counts": dict(self.counts), "findings": asdict(self.findings)}
        reread = [hex(sum(1 << bucket for bucket in buckets)) for buckets in self.reread]
        return {"parts": parts, **partials, **seen, "reread": reread}

    @classmethod
    def from_state(cls, state: dict[str, Any], *, targets: int) -> Ranges:
        """Return a comparison from what `as_state` gave. Raises StateUnusable for that of another one."""
        try:
            parts = Partial.from_state({**state["equal"], "parts": state["parts"]}, targets=targets).parts
            equal, unequal, large = (Partial.from_state(state[name], targets=targets) for name in _PARTIALS)
            counts = Counter({name: int(state["counts"].get(name, 0)) for name in _COUNTED})
            findings = report.stored_findings(state["findings"])
            reread = [_bits(int(text, 16)) for text in state["reread"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise digests_unusable() from None
        large.parts = [part for part in parts if part.table not in (_RANGE, _DIFFERING)]
        ranges = [replace(part, table=SOURCE) for part in parts if part.table == _RANGE]
        differing = [part.within for part in parts if part.table == _DIFFERING]
        return cls(ranges, equal, unequal, large, counts, findings, reread, differing)


async def compare_ranges(
    ctx: ReconcileContext,
    work: Ranges,
    *,
    checkpoint: Callable[[Ranges], None] = lambda _work: None,
    repair: bool = False,
) -> report.FullReport:
    """Compare every row and every property range by range, as `full` compares everything at once. Arguments
    and errors as those of `full`; `ctx.mapper` keeps partitions, `ctx.propagate_first` is not set. Rows that
    differ by an earlier sitting are not repaired, nor their keys named: `Ranges.compare_again`."""
    work.begin_sitting(ctx.now())
    comparing = _Comparing(ctx, work, checkpoint, repair=repair)
    with patient_collector():
        try:
            await comparing.run(ctx.reads.scans)
        except Interrupted:
            checkpoint(work)
            raise
    checkpoint(work)
    groups = [comparing.compared]
    if work.large.parts:
        groups.append(
            await compare(ctx, work.large, checkpoint=lambda _large: checkpoint(work), repair=repair)
        )
    whole = _nothing(len(ctx.targets))
    whole.begun_at = work.begun_at
    for partial in (work.equal, work.unequal, work.large):
        whole.merge(partial)
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
        report.all_findings([each.findings for each in comparisons]), report.all_repairs(repaired), reread, []
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
        self._repaired: report.RepairReport | None = None

    @property
    def compared(self) -> Comparison:
        """What was found in all ranges."""
        counts: dict[str, Any] = dict(self._work.counts)
        findings = report.all_findings([self._work.findings, report.Findings(**counts)])
        return Comparison(findings, self._repaired, list(map(frozenset, self._work.reread)), [])

    def _store_if_due(self, rows: int) -> None:
        if self._due.after(rows):
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
        self._store_if_due(reading.work.source_rows)

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
        # Of the rows that this range names: those of others do not take their room.
        ctx = replace(self._within, keys=None if self._ctx.keys is None else {})
        compared = await compare(ctx, reading.work, repair=self._repair)
        # No await from here on: what is stored counts each range exactly once.
        if compared.is_clean:
            work.equal.merge(reading.work)
            work.counts.update({name: getattr(compared.findings, name) for name in _COUNTED})
        else:
            self._note(within, reading.work, compared, ctx.keys)
        for known, buckets in zip(work.reread, compared.reread, strict=True):
            known |= buckets
        reader.part.cursor, reader.part.done = upto, is_last
        self._store_if_due(rows_in(reading.work.reads))

    def _note(self, within: KeyRange, digests: Partial, compared: Comparison, keys: Keys | None) -> None:
        """Note a range in which rows differ."""
        work = self._work
        if self._ctx.keys is not None and keys and len(work.findings.listed) < report.LISTED:
            self._ctx.keys.update(keys)
        work.unequal.merge(digests)
        work.findings = report.all_findings([work.findings, compared.findings])
        if len(work.differing) <= MOST_DIFFERING:
            work.differing.append(within)
        repaired = [each for each in (self._repaired, compared.repaired) if each is not None]
        self._repaired = report.all_repairs(repaired)

    def split(self, reader: _PartReader, middle: EntityKey) -> _PartReader:
        """End a part behind a partition, and return its rest."""
        reader.part.within, rest = reader.part.within.split(middle)
        self._work.parts.append(Part(SOURCE, rest))
        return self._reader(self._work.parts[-1])


def _bits(number: int) -> set[int]:
    """Return which bits of a number are set."""
    return {place for place, bit in enumerate(reversed(f"{number:b}")) if bit == "1"}


def _nothing(targets: int) -> Partial:
    return replace(Partial.fresh(targets), parts=[])
