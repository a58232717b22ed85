"""Full verification: every row and every property, in both directions (passes: README.md of this folder)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeAlias

from rekey.core.collector import patient_collector
from rekey.core.concurrency import for_each
from rekey.core.spill import Spill, hash_of
from rekey.declaration.mapper import Mapper
from rekey.model import EntityKey, KeyRange, Row, key_of
from rekey.tables.sent import Overhead, overhead
from rekey.verify.bucket_digests import SOURCE, Part, Partial, reported_digest
from rekey.verify.context import ReconcileContext
from rekey.verify.digest import Digester, bucket_of, content_digest
from rekey.verify.first_pass import Checkpoint, add_digests, keep_nothing
from rekey.verify.repair import propagate_all, repair_all
from rekey.verify.report import Findings, FullReport, RepairReport, TableComparison, TableRead
from rekey.verify.settle import Candidate, Collector, KeyedDivergence, Point, TrackedPoint, settle
from rekey.verify.trace import MOST, Trace, group_of

# One row of a differing bucket, as JSON values because workers send it; fields from `_SIDE` on.
Record: TypeAlias = list[Any]

# A row in a comparison: `EXPECTED`, `ACTUAL` or `REFUSED`, table number, row, and source key, if known.
Side: TypeAlias = tuple[int, int, Row, EntityKey | None]

# Most source rows of one point, when several map to one target key.
MAX_CLAIMS = 16

EXPECTED, ACTUAL, REFUSED = 0, 1, 2
_SIDE, _TABLE, _PARTITION, _ROW, _CONTENT, _DIGEST, _SOURCE_PARTITION, _SOURCE_ROW = range(8)


class Reader(Protocol):
    """Reads the tables of a comparison outside this process: with workers."""

    async def add_digests(self, ctx: ReconcileContext, work: Partial, *, checkpoint: Checkpoint) -> None:
        """Read the rest of the parts of `work` and add the rows to its digests."""

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
        partial: digests to resume from; None begins anew, with each table in one part.
        checkpoint: called with the digests as they are to be stored.
        repair: repair stable divergences; the report says how each ended, and the caller verifies again.
        reader: reads the tables; None: this process.

    Raises:
        Collision, RowRefused: with `ctx.propagate_first`: of a row that cannot be propagated.
        TooMany: with `ctx.propagate_first`: more rows differ than are worth propagating one by one; nothing
            changed.
        Interrupted: `ctx.reads.stop` raised it. The comparison can be resumed from the last checkpoint.
        MachineFailed: the disk is full.
        ServiceError: a table could not be read.
    """
    work = partial or Partial.fresh(len(ctx.targets), ctx.mapper.read_once)
    work.begin_sitting(ctx.now())
    return report_of(ctx, work, await compare(ctx, work, checkpoint=checkpoint, repair=repair, reader=reader))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What comparing the parts of a `Partial` found; its digests are those of the rows as last observed."""

    findings: Findings
    repaired: RepairReport | None
    # By target, the buckets that differed on the first reading; `differing`: that differ now.
    reread: list[frozenset[int]]
    differing: list[frozenset[int]]
    changed_between: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether every difference is gone, or left to a later pass."""
        return not self.findings.any and (not any(self.differing) or self.findings.pending > 0)


async def compare(
    ctx: ReconcileContext,
    work: Partial,
    *,
    checkpoint: Checkpoint = keep_nothing,
    repair: bool = False,
    reader: Reader | None = None,
) -> Comparison:
    """Read what is left of the parts of `work`, find the rows that differ and settle them. Arguments and
    errors as those of `full`; the sitting has begun."""
    # A trace does not cover rows read in an earlier sitting.
    traces = ctx.propagate_first and reader is None and work.sitting == 1
    sides = list(zip(work.expected, work.actual, strict=True))
    findings, repaired, changed_between = Findings(), None, False
    with ExitStack() as stack:
        trace = stack.enter_context(Trace(ctx.folder)) if traces else None
        with patient_collector():
            if reader is None:
                await add_digests(ctx, work, checkpoint=checkpoint, trace=trace)
            else:
                await reader.add_digests(ctx, work, checkpoint=checkpoint)
        differing = at_first = [expected.differing(actual) for expected, actual in sides]
        if work.refused or any(differing):
            stack.enter_context(overhead(Overhead.CHANGES))
            spilled = stack.enter_context(Spill[Record](ctx.folder, by_key))
            unmatched = stack.enter_context(Spill[Record](ctx.folder, by_content))
            kept = stack.enter_context(Spill[KeyedDivergence](ctx.folder, _by_row))
            changes: RereadRows | RereadBuckets
            if trace is not None:
                changes = await spill_left_over(ctx, trace, differing, spilled)
            else:
                changes = RereadBuckets(differing)
                read = spill_rows if reader is None else reader.spill_rows
                await read(ctx, work.parts, differing, spilled)
            collector = Collector(ctx, kept if repair else None)
            candidates = _candidates(spilled, unmatched, changes)
            while portion := list(islice(candidates, MOST)):
                if ctx.propagate_first:
                    collector.propagated = await propagate_all(ctx, portion)
                async for settled in settle(ctx, iter(portion)):
                    collector.take(settled)
                    changes.put_back(settled)
            findings = collector.findings()
            if repair:
                repaired = await repair_all(ctx, kept)
            changes.change(work)
            differing = [expected.differing(actual) for expected, actual in sides]
            changed_between = not changes.exact
    return Comparison(findings, repaired, at_first, differing, changed_between)


def report_of(ctx: ReconcileContext, work: Partial, compared: Comparison) -> FullReport:
    """Return the report of a comparison that is done."""
    sides = zip(work.expected, work.actual, strict=True)
    shared = ctx.mapper.migration.filled_keys
    return FullReport(
        started_at=work.begun_at,
        finished_at=ctx.now(),
        source=ctx.source.name,
        source_rows=work.source_rows,
        refused_rows=work.refused,
        not_migrated_rows=work.not_migrated,
        tables=tuple(
            TableComparison(
                table=target.name,
                expected_rows=expected.rows,
                actual_rows=actual.rows,
                expected_digest=expected.content_digest(),
                actual_digest=actual.content_digest(),
                differing_buckets=len(compared.differing[number]),
                reread_buckets=len(compared.reread[number]),
                not_compared=tuple(sorted(ctx.not_compared(number))),
                row_keys_begin=ctx.mapper.migration.beginnings.get(number, ("", ""))[1],
                keys=None if (keys := shared.get(target.name)) is None else keys.as_json(),
                partition_keys_begin=ctx.mapper.migration.beginnings.get(number, ("", ""))[0],
            )
            for number, (target, (expected, actual)) in enumerate(zip(ctx.targets, sides, strict=True))
        ),
        differences=compared.findings,
        changed_between=compared.changed_between,
        authority_is_target=ctx.authority_is_target,
        repair=compared.repaired,
        source_digest=reported_digest(work.source),
        read=tuple(TableRead(ctx.table(read.table).name, *read[1:]) for read in work.reads.values()),
    )


# --- rows that are left over, read again ------------------------------------------------------------------


class TooMany(Exception):
    """More rows differ than are worth propagating one by one."""


class DigestChanges:
    """Changes of a comparison's digests: rows of settled candidates, as last observed."""

    exact = True

    def __init__(self) -> None:
        self._changes: list[tuple[bool, int, EntityKey, bytes, int]] = []

    def put_back(self, settled: Sequence[TrackedPoint]) -> None:
        """Add the rows of a settled candidate again."""
        for check in settled:
            if check.point.table != SOURCE and check.before is not None:
                for expected, digests in zip((True, False), check.before.rows, strict=True):
                    for digest in digests:
                        self._changes.append((expected, check.point.table, check.point.key, digest, 1))

    def match(self, expected: Record, actual: Record) -> None:
        """Note two records that agree: no candidate is made of them."""

    def change(self, work: Partial) -> None:
        """Apply the changes to the digests of a comparison."""
        for expected, table, key, digest, by in self._changes:
            (work.expected if expected else work.actual)[table].change(key, digest, by)


class RereadBuckets(DigestChanges):
    """The digests of differing buckets, recomputed from the rows of the second pass and the candidates as
    last observed: so counts and digests of a report agree with its findings."""

    def __init__(self, differing: Sequence[frozenset[int]]) -> None:
        super().__init__()
        self._differing = differing

    def match(self, expected: Record, actual: Record) -> None:
        """Keep two records that agree."""
        for record in (expected, actual):
            is_expected = record[_SIDE] == EXPECTED
            digest = bytes.fromhex(record[_DIGEST])
            self._changes.append((is_expected, record[_TABLE], _key(record), digest, 1))

    def change(self, work: Partial) -> None:
        """Replace the digests of the first pass by those of the second."""
        for number, buckets in enumerate(self._differing):
            for digests in (work.expected[number], work.actual[number]):
                digests.clear(buckets)
        super().change(work)


class RereadRows(DigestChanges):
    """Rows taken out of a comparison's digests to be compared again, and put back as last observed: equal
    digests then still prove the tables equal."""

    def take_out(self, side: Side, digest: bytes) -> None:
        role, number, row, _ = side
        self._changes.append((role == EXPECTED, number, key_of(row), digest, -1))

    def change(self, work: Partial) -> None:
        """Apply the changes, unless a row changed between its readings: its share of the digests is unknown
        then, and they stay as first read."""
        if self.exact:
            super().change(work)


async def spill_left_over(
    ctx: ReconcileContext, trace: Trace, differing: Sequence[frozenset[int]], spill: Spill[Record]
) -> RereadRows:
    """Reread the pages with rows that have no equal on the other side, write these rows to `spill`, and
    return them, taken out of the digests.

    Args:
        ctx: the tables and the mapping.
        trace: where all rows came from.
        differing: per target table, the buckets whose digests differ.
        spill: takes the records, by key.

    Raises:
        TooMany: there are more than are worth propagating one by one.
    """
    left_over = trace.left_over(frozenset().union(*differing))
    if left_over is None:
        raise TooMany
    places: dict[tuple[int, KeyRange], dict[bytes, int]] = {}
    for number, odd in sorted(left_over.items()):
        places.setdefault(trace.page(number), {}).update(odd)
    changes = RereadRows()
    not_compared = [ctx.not_compared(number) for number in range(len(ctx.targets))]
    digesters = list(map(Digester, ctx.mapper.tables, not_compared))

    async def read(place: tuple[int, KeyRange]) -> None:
        wanted = places[place]
        missed = set(wanted)
        others: list[tuple[Side, bytes]] = []
        async for side, digest in _read_sides(ctx, place, digesters):
            if digest in wanted:
                changes.take_out(side, digest)
                missed.discard(digest)
            if not digest or digest in wanted:
                spill.put(_record(side, not_compared, digest))
            else:
                others.append((side, digest))
        # A row that has changed since the first reading: compare every row of its bucket group.
        groups = {wanted[digest] for digest in missed}
        if groups:
            changes.exact = False
            for side, digest in others:
                if group_of(bucket_of(*key_of(side[2]))) in groups:
                    spill.put(_record(side, not_compared, digest))

    await for_each(places, read, limit=ctx.reads.scans)
    return changes


async def _read_sides(
    ctx: ReconcileContext, place: tuple[int, KeyRange], digesters: Sequence[Digester]
) -> AsyncIterator[tuple[Side, bytes]]:
    """Yield the sides that rows of a range of a table give, each with its digest (b"": refused)."""
    table = ctx.whole(place[0])
    async for page in table.scan(place[1]):
        ctx.reads.stop()
        by_table: defaultdict[int, list[Side]] = defaultdict(list)
        for side in _sides_of(place[0], page.rows, ctx.mapper):
            by_table[side[1]].append(side)
        for side in by_table.pop(SOURCE, ()):  # refused
            yield side, b""
        for number, sides in by_table.items():
            for side, digest in zip(
                sides, digesters[number].digests([side[2] for side in sides]), strict=True
            ):
                yield side, digest
        await ctx.count_page(table, page)


# --- the second pass: rows of differing buckets ----------------------------------------------------------


def by_key(record: Record) -> int:
    """Return the hash that places records of one target key in one group."""
    return hash_of(f"{record[_TABLE]}\0{record[_PARTITION]}\0{record[_ROW]}")


def _by_row(keyed: KeyedDivergence) -> int:
    divergence = keyed.divergence
    return hash_of(f"{divergence.kind}{divergence.row_id}{divergence.source_id}")


def by_content(record: Record) -> int:
    """Return the hash that places records of one table and content in one group."""
    return hash_of(f"{record[_TABLE]}\0{record[_CONTENT]}")


def worth_reading(parts: Sequence[Part], differing: Sequence[frozenset[int]], mapper: Mapper) -> list[Part]:
    """Return the parts to reread: those of the source, and of targets with differing buckets."""
    # A table that rows of several numbers share is read as that of the first of them.
    names = mapper.tables
    wanted = {SOURCE, *(names.index(names[number]) for number, buckets in enumerate(differing) if buckets)}
    return [part for part in parts if part.table in wanted]


async def spill_rows(
    ctx: ReconcileContext, parts: Sequence[Part], differing: Sequence[frozenset[int]], spill: Spill[Record]
) -> None:
    """Reread the parts and write the rows of differing buckets (`differing`, by target), and refused source
    rows, to `spill`, by key."""
    not_compared = [ctx.not_compared(number) for number in range(len(ctx.targets))]

    async def read(part: Part) -> None:
        table = ctx.whole(part.table)
        async for page in table.scan(part.within):
            ctx.reads.stop()
            for record in records_of(part.table, page.rows, ctx.mapper, not_compared, differing):
                spill.put(record)
            ctx.reads.advance(len(page.rows))
            await ctx.count_page(table, page)

    await for_each(worth_reading(parts, differing, ctx.mapper), read, limit=ctx.reads.concurrency)


def records_of(
    table: int,
    rows: Sequence[Row],
    mapper: Mapper,
    not_compared: Sequence[frozenset[str]],
    differing: Sequence[frozenset[int]],
) -> Iterator[Record]:
    """Yield records of rows in differing buckets, and of source rows that the mapping refuses.

    Args:
        table: `SOURCE`, or the number of the target that `rows` are of.
        rows: rows as read.
        mapper: maps source rows.
        not_compared: by target, the properties that are not compared.
        differing: by target, the buckets whose digests differ.
    """
    digesters = list(map(Digester, mapper.tables, not_compared))
    for entry in _sides_of(table, rows, mapper):
        side, number, row, _ = entry
        if side == REFUSED:
            yield _record(entry, not_compared, b"")
        elif bucket_of(*key_of(row)) in differing[number]:
            yield _record(entry, not_compared, *digesters[number].digests([row]))


def _sides_of(table: int, rows: Sequence[Row], mapper: Mapper) -> Iterator[Side]:
    """Yield the sides that rows of the source (`SOURCE`) or of a target give."""
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


def _record(entry: Side, not_compared: Sequence[frozenset[str]], digest: bytes) -> Record:
    side, number, row, source = entry
    content = "" if side == REFUSED else content_digest(row, not_compared[number]).hex()
    return [side, number, *key_of(row), content, digest.hex(), *(source or ())]


def _candidates(
    spilled: Spill[Record], unmatched: Spill[Record], changes: DigestChanges
) -> Iterator[Candidate]:
    """Yield the candidates to observe: join `spilled` by key, and records without a match by content, in
    `unmatched`. `changes` receives the records that agree."""
    for group in spilled.groups():
        yield from _join_keys(group, unmatched, changes)
    for group in unmatched.groups():
        yield from _join_contents(group)


def _join_keys(group: list[Record], unmatched: Spill[Record], changes: DigestChanges) -> Iterator[Candidate]:
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
        # Exactly one row missing and one extra with that content: a row under a wrong key.
        if len(records) == 2 and {record[_SIDE] for record in records} == {EXPECTED, ACTUAL}:
            missing, stray = sorted(records, key=lambda record: int(record[_SIDE]))
            # The source row of the missing row may map to the stray one by now.
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
