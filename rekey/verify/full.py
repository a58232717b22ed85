"""Full verification: every row and every property, both directions.

Rules kept here:

* First pass: source and targets are read once; each expected and each actual row is hashed and summed into
  its bucket (`digest`, `sums`, `summing`). Equal sums everywhere: done, nothing else is read.
* Second pass, only where sums differ: key, content digest and source key of the rows of those buckets go to
  disk, and nothing else. They are joined on the target key; records without a match are joined on the
  content, so that a row under a wrong key is recognised when exactly one row is missing and exactly one is
  extra with that content.
* Where a comparison brings what is missing (`ctx.brings`), the first pass notes which page each row came in
  (`trace`); of the second only the pages are read that have a row without an equal one. Those rows are taken
  out of the sums, propagated, observed, and put back as they are then: so equal sums prove the tables equal
  after that, too. In a comparison that was cut off and goes on, all is read again, and sums stay as read.
* The joins give candidates, not findings: tables changed while they were read. Each candidate is observed by
  itself until it is gone or stands still (`settle`).
* The sums of the buckets that differed are made anew, of the rows of the second pass that match and of the
  candidates as they were observed last (`Reread`). So counts and digests of a report agree with its findings;
  where they do not, although nothing is pending, the comparison itself cannot be relied on and says so.
* The sums are additive: work can stop after any page and be resumed (`Partial`), and sums of parts made
  elsewhere add up. The report says when which rows were read; rows that changed since were read again where
  that made a difference.
* No file is left on disk, however it ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any, Protocol, TypeAlias

from rekey.core.collector import patient_collector
from rekey.core.concurrency import for_each
from rekey.core.spill import Spill, hash_of
from rekey.declaration.mapper import Mapper
from rekey.model import EntityKey, KeyRange, Row, key_of
from rekey.tables.sent import OnTop, on_top
from rekey.verify.context import ReconcileContext
from rekey.verify.digest import Digester, bucket_of, content_digest
from rekey.verify.repair import bring, repair_all
from rekey.verify.report import Findings, FullReport, TableComparison, TableRead
from rekey.verify.settle import Candidate, Collector, Found, Looked, Point, settle
from rekey.verify.summing import Checkpoint, keep_nothing, sum_up
from rekey.verify.sums import SOURCE, Part, Partial, told_digest
from rekey.verify.trace import MOST, Trace, group_of

# One row of a differing bucket, as JSON values because workers send it; fields from `_SIDE` on.
Record: TypeAlias = list[Any]

# A row in a comparison: `EXPECTED`, `ACTUAL` or `REFUSED`, table number, row, and source key, if known.
Side: TypeAlias = tuple[int, int, Row, EntityKey | None]

# The most source rows of one point when several map to one target key.
MAX_CLAIMS = 16

EXPECTED, ACTUAL, REFUSED = 0, 1, 2
_SIDE, _TABLE, _PARTITION, _ROW, _CONTENT, _DIGEST, _SOURCE_PARTITION, _SOURCE_ROW = range(8)


class Reader(Protocol):
    """Reads the tables of a comparison outside this process: with workers."""

    async def sum_up(self, ctx: ReconcileContext, work: Partial, *, checkpoint: Checkpoint) -> None:
        """Read the rest of the parts of `work` and add the rows to its sums."""

    async def spill_rows(
        self,
        ctx: ReconcileContext,
        parts: Sequence[Part],
        differing: Sequence[frozenset[int]],
        spill: Spill[Record],
    ) -> None:
        """Read the parts once more and spill the rows of differing buckets."""


async def full(
    ctx: ReconcileContext,
    *,
    partial: Partial | None = None,
    checkpoint: Checkpoint = keep_nothing,
    repair: bool = False,
    reader: Reader | None = None,
) -> FullReport:
    """Compare every row and every property of source and targets.

    Args:
        ctx: the tables and the mapping.
        partial: sums to resume from; None begins anew, with each table in one part.
        checkpoint: called with the sums about every `CHECKPOINT_ROWS` rows, and when the first pass is done.
        repair: mend stable divergences; the report says how each ended, and the caller verifies again.
        reader: reads the tables; None: this process.

    Raises:
        Collision, RowRefused: with `ctx.brings`: of a row that cannot be brought.
        TooMany: more rows differ than are worth bringing one by one (`ctx.brings`); nothing was changed.
        Interrupted: `ctx.stop` raised it. The comparison can be resumed from the last checkpoint.
        MachineFailed: the disk is full.
        ServiceError: a table could not be read.
    """
    work = partial or Partial.fresh(len(ctx.targets), ctx.mapper.read_once)
    # Rows that an earlier sitting read are in no trace.
    traces = ctx.brings and reader is None and not work.sitting
    work.sit_down(ctx.now())
    sides = list(zip(work.expected, work.actual, strict=True))
    found, repaired, changed_between = Findings(), None, False
    with ExitStack() as stack:
        trace = stack.enter_context(Trace(ctx.folder)) if traces else None
        with patient_collector():
            if reader is None:
                await sum_up(ctx, work, checkpoint=checkpoint, trace=trace)
            else:
                await reader.sum_up(ctx, work, checkpoint=checkpoint)
        differing = at_first = [expected.differing(actual) for expected, actual in sides]
        if work.refused or any(differing):
            stack.enter_context(on_top(OnTop.CHANGES))
            spilled = stack.enter_context(Spill[Record](ctx.folder, by_key))
            unmatched = stack.enter_context(Spill[Record](ctx.folder, by_content))
            kept = stack.enter_context(Spill[Found](ctx.folder, _by_row))
            again: Again | Reread
            if trace is not None:
                again = await spill_left_over(ctx, trace, differing, spilled)
            else:
                again = Reread(differing)
                read = spill_rows if reader is None else reader.spill_rows
                await read(ctx, work.parts, differing, spilled)
            collector = Collector(ctx, kept if repair else None)
            candidates = _candidates(spilled, unmatched, again)
            while portion := list(islice(candidates, MOST)):
                if ctx.brings:
                    collector.brought = await bring(ctx, portion)
                async for settled in settle(ctx, iter(portion)):
                    collector.take(settled)
                    again.put_back(settled)
            found = collector.findings()
            if repair:
                repaired = await repair_all(ctx, kept)
            again.change(work)
            differing = [expected.differing(actual) for expected, actual in sides]
            changed_between = not again.exact
    return FullReport(
        started_at=work.begun_at,
        finished_at=ctx.now(),
        source=ctx.source.name,
        source_rows=work.source_rows,
        refused_rows=work.refused,
        tables=tuple(
            TableComparison(
                table=target.name,
                expected_rows=expected.rows,
                actual_rows=actual.rows,
                expected_digest=expected.content_digest(),
                actual_digest=actual.content_digest(),
                differing_buckets=len(differing[number]),
                reread_buckets=len(at_first[number]),
                not_compared=tuple(sorted(ctx.not_compared(number))),
                row_keys_begin=ctx.mapper.migration.beginnings.get(number, ("", ""))[1],
                partition_keys_begin=ctx.mapper.migration.beginnings.get(number, ("", ""))[0],
            )
            for number, (target, (expected, actual)) in enumerate(zip(ctx.targets, sides, strict=True))
        ),
        found=found,
        changed_between=changed_between,
        repair=repaired,
        source_digest=told_digest(work.source),
        read=tuple(TableRead(ctx.table(one.table).name, *one[1:]) for one in work.reads.values()),
    )


# --- rows that are left over, read again ------------------------------------------------------------------


class TooMany(Exception):
    """More rows differ than are worth bringing one by one."""


class Changes:
    """Changes of a comparison's sums: rows of settled candidates, as they were observed last."""

    exact = True

    def __init__(self) -> None:
        self._changes: list[tuple[bool, int, EntityKey, bytes, int]] = []

    def put_back(self, settled: Sequence[Looked]) -> None:
        """Put back the rows of a settled candidate."""
        for one in settled:
            if one.point.table != SOURCE and one.before is not None:
                for expected, digests in zip((True, False), one.before.rows, strict=True):
                    for digest in digests:
                        self._changes.append((expected, one.point.table, one.point.key, digest, 1))

    def match(self, expected: Record, actual: Record) -> None:
        """Note two records that agree: no candidate is made of them."""

    def change(self, work: Partial) -> None:
        """Change the sums of a comparison accordingly."""
        for expected, table, key, digest, by in self._changes:
            (work.expected if expected else work.actual)[table].change(key, digest, by)


class Reread(Changes):
    """The sums of differing buckets, made anew of the rows of the second pass."""

    def __init__(self, differing: Sequence[frozenset[int]]) -> None:
        """Take the differing buckets of each target."""
        super().__init__()
        self._differing = differing

    def match(self, expected: Record, actual: Record) -> None:
        """Keep two records that agree."""
        for record in (expected, actual):
            is_expected = record[_SIDE] == EXPECTED
            digest = bytes.fromhex(record[_DIGEST])
            self._changes.append((is_expected, record[_TABLE], _key(record), digest, 1))

    def change(self, work: Partial) -> None:
        """Put the sums of the second pass in the place of those of the first."""
        for number, buckets in enumerate(self._differing):
            for sums in (work.expected[number], work.actual[number]):
                sums.clear(buckets)
        super().change(work)


class Again(Changes):
    """Rows that are taken out of a comparison's sums because they are compared again, and put back as they
    were seen last.

    Where a row changed between its first and its second reading, what the sums held of it is not known: then
    they are left as they are, and say what was read first.
    """

    def take_out(self, one: Side, digest: bytes) -> None:
        """Take out a row that was read again, by its digest."""
        side, number, row, _ = one
        self._changes.append((side == EXPECTED, number, key_of(row), digest, -1))

    def change(self, work: Partial) -> None:
        """Change the sums of a comparison, unless what they hold of a row is not known."""
        if self.exact:
            super().change(work)


async def spill_left_over(
    ctx: ReconcileContext, trace: Trace, differing: Sequence[frozenset[int]], spill: Spill[Record]
) -> Again:
    """Read the pages again that have rows without an equal one on the other side, and write these rows to
    `spill`.

    Args:
        ctx: the tables and the mapping.
        trace: where all rows came from.
        differing: per target table, the buckets whose sums differ.
        spill: takes the records, by key.

    Returns:
        The rows, taken out of the sums.

    Raises:
        TooMany: there are more than are worth bringing one by one.
    """
    left_over = trace.left_over(frozenset().union(*differing))
    if left_over is None:
        raise TooMany
    places: dict[tuple[int, KeyRange], dict[bytes, int]] = {}
    for number, odd in sorted(left_over.items()):
        places.setdefault(trace.page(number), {}).update(odd)
    again = Again()
    not_compared = [ctx.not_compared(number) for number in range(len(ctx.targets))]
    digesters = list(map(Digester, ctx.mapper.tables, not_compared))

    async def read(place: tuple[int, KeyRange]) -> None:
        wanted = places[place]
        missed = set(wanted)
        held: list[tuple[Side, bytes]] = []
        async for one, digest in _read_sides(ctx, place, digesters):
            if digest in wanted:
                again.take_out(one, digest)
                missed.discard(digest)
            if not digest or digest in wanted:
                spill.put(_record(one, not_compared, digest))
            else:
                held.append((one, digest))
        # Of a row that is not there as it was read first, all that may be it now are looked at.
        groups = {wanted[digest] for digest in missed}
        if groups:
            again.exact = False
            for one, digest in held:
                if group_of(bucket_of(*key_of(one[2]))) in groups:
                    spill.put(_record(one, not_compared, digest))

    await for_each(places, read, limit=ctx.scans)
    return again


async def _read_sides(
    ctx: ReconcileContext, place: tuple[int, KeyRange], digesters: Sequence[Digester]
) -> AsyncIterator[tuple[Side, bytes]]:
    """Iterate over what rows of a range of a table stand for, each with its digest (b"" of a refused one)."""
    table = ctx.whole(place[0])
    async for page in table.scan(place[1]):
        ctx.stop()
        by_table: defaultdict[int, list[Side]] = defaultdict(list)
        for one in _sides_of(place[0], page.rows, ctx.mapper):
            by_table[one[1]].append(one)
        for one in by_table.pop(SOURCE, ()):  # refused
            yield one, b""
        for number, sides in by_table.items():
            for one, digest in zip(sides, digesters[number].digests([one[2] for one in sides]), strict=True):
                yield one, digest
        await ctx.taken(table, page)


# --- the second pass: rows of differing buckets ----------------------------------------------------------


def by_key(record: Record) -> int:
    """Return the hash that places records of one target key in one group."""
    return hash_of(f"{record[_TABLE]}\0{record[_PARTITION]}\0{record[_ROW]}")


def _by_row(found: Found) -> int:
    one = found.divergence
    return hash_of(f"{one.kind}{one.row_id}{one.source_id}")


def by_content(record: Record) -> int:
    """Return the hash that places records of one table and content in one group."""
    return hash_of(f"{record[_TABLE]}\0{record[_CONTENT]}")


def worth_reading(parts: Sequence[Part], differing: Sequence[frozenset[int]], mapper: Mapper) -> list[Part]:
    """Return the parts to read again: those of the source, and of targets with differing buckets."""
    wanted = {SOURCE, *(number for number, buckets in enumerate(differing) if buckets)}
    if wanted & mapper.together:
        wanted.add(0)
    return [part for part in parts if part.table in wanted]


async def spill_rows(
    ctx: ReconcileContext, parts: Sequence[Part], differing: Sequence[frozenset[int]], spill: Spill[Record]
) -> None:
    """Read the parts once more and write the rows of differing buckets, and refused source rows, to `spill`.

    Args:
        ctx: the tables and the mapping.
        parts: the key ranges that were compared.
        differing: per target table, the buckets whose sums differ.
        spill: takes the records, by key.
    """
    not_compared = [ctx.not_compared(number) for number in range(len(ctx.targets))]

    async def read(part: Part) -> None:
        table = ctx.whole(part.table)
        async for page in table.scan(part.within):
            ctx.stop()
            for record in records_of(part.table, page.rows, ctx.mapper, not_compared, differing):
                spill.put(record)
            ctx.advance(len(page.rows))
            await ctx.taken(table, page)

    await for_each(worth_reading(parts, differing, ctx.mapper), read, limit=ctx.concurrency)


def records_of(
    table: int,
    rows: Sequence[Row],
    mapper: Mapper,
    not_compared: Sequence[frozenset[str]],
    differing: Sequence[frozenset[int]],
) -> Iterator[Record]:
    """Yield records of rows that lie in differing buckets, and of source rows that the mapping refuses.

    Args:
        table: `SOURCE`, or the number of the target that `rows` are of.
        rows: rows as read.
        mapper: maps source rows.
        not_compared: by target, the properties that are not compared.
        differing: by target, the buckets whose sums differ.
    """
    digesters = list(map(Digester, mapper.tables, not_compared))
    for one in _sides_of(table, rows, mapper):
        side, number, row, _ = one
        if side == REFUSED:
            yield _record(one, not_compared, b"")
        elif bucket_of(*key_of(row)) in differing[number]:
            yield _record(one, not_compared, *digesters[number].digests([row]))


def _sides_of(table: int, rows: Sequence[Row], mapper: Mapper) -> Iterator[Side]:
    """Yield what rows of the source (`SOURCE`) or of a target stand for in a comparison."""
    if table != SOURCE:
        for row in rows:
            yield ACTUAL, mapper.number_of(table, row), row, None
        return
    refused: list[Row] = []
    for row, mapped in mapper.map_all(rows, lambda row, _: refused.append(row)):
        source = key_of(row)
        for number, target in mapped:
            yield EXPECTED, number, target, source
    for row in refused:
        yield REFUSED, SOURCE, row, key_of(row)


def _record(one: Side, not_compared: Sequence[frozenset[str]], digest: bytes) -> Record:
    side, number, row, source = one
    content = "" if side == REFUSED else content_digest(row, not_compared[number]).hex()
    return [side, number, *key_of(row), content, digest.hex(), *(source or ())]


def _candidates(spilled: Spill[Record], unmatched: Spill[Record], changes: Changes) -> Iterator[Candidate]:
    """Join the spilled records and yield the candidates to observe.

    Args:
        spilled: records placed `by_key`.
        unmatched: an empty spill placed `by_content`; takes records without one of the other side.
        changes: is told of the records that agree.
    """
    for group in spilled.groups():
        yield from _join_keys(group, unmatched, changes)
    for group in unmatched.groups():
        yield from _join_contents(group)


def _join_keys(group: list[Record], unmatched: Spill[Record], changes: Changes) -> Iterator[Candidate]:
    expected: dict[tuple[int, str, str], list[Record]] = defaultdict(list)
    actual: dict[tuple[int, str, str], Record] = {}
    for record in group:
        place = (record[_TABLE], record[_PARTITION], record[_ROW])
        if record[_SIDE] == EXPECTED:
            expected[place].append(record)
        elif record[_SIDE] == ACTUAL:
            actual[place] = record
        else:
            yield (Point(SOURCE, _key(record)),)
    for place, records in expected.items():
        present = actual.pop(place, None)
        if len(records) > 1:
            yield from _collisions(records)
        elif present is None:
            unmatched.put(records[0])
        elif present[_CONTENT] != records[0][_CONTENT]:
            yield (_point(records[0]),)
        else:
            changes.match(records[0], present)
    for record in actual.values():
        unmatched.put(record)


def _collisions(records: list[Record]) -> Iterator[Candidate]:
    """Yield candidates for several source rows with one target key; each claims the first of them, too."""
    first, *others = dict.fromkeys(_source(record) for record in records)
    point = _point(records[0])
    step = MAX_CLAIMS - 1
    for begin in range(0, max(len(others), 1), step):
        claims = (first, *others[begin : begin + step])
        yield (Point(point.table, point.key, claims, (first,) if begin else ()),)


def _join_contents(group: list[Record]) -> Iterator[Candidate]:
    alike: dict[tuple[int, str], list[Record]] = defaultdict(list)
    for record in group:
        alike[record[_TABLE], record[_CONTENT]].append(record)
    for records in alike.values():
        if len(records) == 2 and {record[_SIDE] for record in records} == {EXPECTED, ACTUAL}:
            missing, stray = sorted(records, key=lambda record: int(record[_SIDE]))
            # The source row of the missing row is a claim of the stray one, too: it may map there by now.
            yield _point(missing), Point(stray[_TABLE], _key(stray), (_source(missing),))
        else:
            for record in records:
                yield (_point(record),)


def _point(record: Record) -> Point:
    claims = (_source(record),) if record[_SIDE] == EXPECTED else ()
    return Point(record[_TABLE], _key(record), claims)


def _key(record: Record) -> EntityKey:
    return EntityKey(record[_PARTITION], record[_ROW])


def _source(record: Record) -> EntityKey:
    return EntityKey(record[_SOURCE_PARTITION], record[_SOURCE_ROW])
