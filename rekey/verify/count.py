"""Counts rows of both sides, in total and per target partition. It is a hint: inserts and deletes can by
chance hold a difference for two passes, and only `full` is proof."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rekey.core.concurrency import for_each
from rekey.core.spill import Spill, hash_of
from rekey.errors import RowRefused
from rekey.model import PARTITION_KEY, EntityKey
from rekey.verify.bucket_digests import SOURCE
from rekey.verify.context import ReconcileContext
from rekey.verify.report import LISTED, CountReport, PartitionDifference, PartitionSize, TableCount

# How many source partitions a report names, the largest.
LARGEST = 20

# Partitions counted in memory at a time: about 15 MB. Others go to disk and are added up in groups.
TALLIES = 65_536

# Table number, partition, expected rows, actual rows.
_Tallied = tuple[int, str, int, int]


def by_partition(record: _Tallied) -> int:
    """Return the hash that places records of one partition of one table in one group."""
    return hash_of(f"{record[0]}\0{record[1]}")


class Tally(Spill[_Tallied]):
    """Expected and actual rows per partition; goes to disk when it does not fit. A context manager."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, by_partition)
        self._tallied: defaultdict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])

    def add(self, table: int, partition: str, *, expected: int = 0, actual: int = 0) -> None:
        if len(self._tallied) >= TALLIES and (table, partition) not in self._tallied:
            self._move()
        counts = self._tallied[table, partition]
        counts[0] += expected
        counts[1] += actual

    def totals(self) -> Iterator[_Tallied]:
        """Yield every partition once, with its rows on both sides."""
        self._move()
        for group in self.groups():
            totals: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
            for table, partition, expected, actual in group:
                counts = totals[table, partition]
                counts[0] += expected
                counts[1] += actual
            for (table, partition), (expected, actual) in totals.items():
                yield table, partition, expected, actual

    def _move(self) -> None:
        for (table, partition), (expected, actual) in self._tallied.items():
            self.put((table, partition, expected, actual))
        self._tallied.clear()


@dataclass(slots=True)
class _Pass:
    """The counts of one pass, by target table."""

    expected: Counter[int] = field(default_factory=Counter)
    actual: Counter[int] = field(default_factory=Counter)
    partitions: Counter[int] = field(default_factory=Counter)
    differing: Counter[int] = field(default_factory=Counter)
    source_rows: int = 0
    source_partitions: int = 0
    refused: int = 0
    not_migrated: int = 0
    # A heap of (rows, partition), at most `LARGEST`: the smallest is removed.
    largest: list[tuple[int, str]] = field(default_factory=list, repr=False)

    def partition_ends(self, partition: str, rows: int) -> None:
        self.source_partitions += 1
        heapq.heappush(self.largest, (rows, partition))
        if len(self.largest) > LARGEST:
            heapq.heappop(self.largest)


async def count(ctx: ReconcileContext) -> CountReport:
    """Count both sides, twice when they differ: only partitions that show the same numbers in both passes are
    findings.

    Raises:
        Interrupted: `ctx.reads.stop` raised it.
        ServiceError: a table could not be read. A count changes nothing.
        MachineFailed: the disk is full.
    """
    started_at = ctx.now()
    with Spill(ctx.folder, by_partition) as differences:
        last, passes = await _count_once(ctx, differences), 1
        if last.differing:
            await ctx.clock.sleep(ctx.recheck.delay_s)  # time for writes in flight to arrive
            last, passes = await _count_once(ctx, differences), 2
        tables = _compare(ctx, last, differences)
    return CountReport(
        started_at=started_at,
        finished_at=ctx.now(),
        source=ctx.source.name,
        source_rows=last.source_rows,
        source_partitions=last.source_partitions,
        refused_rows=last.refused,
        not_migrated_rows=last.not_migrated,
        largest=tuple(
            PartitionSize(_partition_id(ctx, ctx.source.name, partition), rows)
            for rows, partition in sorted(last.largest, key=lambda each: -each[0])
        ),
        tables=tables,
        passes=passes,
    )


async def _count_once(ctx: ReconcileContext, differences: Spill[_Tallied]) -> _Pass:
    """Count everything once; put partitions whose counts differ into `differences`."""
    counted = _Pass()

    async def read(table: int) -> None:
        if table == SOURCE:
            await _count_source(ctx, counted, tally)
            return
        async for page in ctx.whole(table).scan(select=(PARTITION_KEY,)):
            ctx.reads.stop()
            for row in page.rows:
                tally.add(ctx.mapper.number_of(table, row), row[PARTITION_KEY], actual=1)
            ctx.reads.advance(len(page.rows))

    with Tally(ctx.folder) as tally:
        await for_each((SOURCE, *ctx.mapper.read_once), read, limit=ctx.reads.concurrency)
        for table, partition, expected, actual in tally.totals():
            counted.expected[table] += expected
            counted.actual[table] += actual
            counted.partitions[table] += 1
            if expected != actual:
                counted.differing[table] += 1
                differences.put((table, partition, expected, actual))
    return counted


async def _count_source(ctx: ReconcileContext, counted: _Pass, tally: Tally) -> None:
    partition, rows = None, 0
    # Whole rows: the number of index rows depends on their content.
    async for page in ctx.source.scan():
        ctx.reads.stop()
        for row in page.rows:
            if row[PARTITION_KEY] != partition:
                if partition is not None:
                    counted.partition_ends(partition, rows)
                partition, rows = row[PARTITION_KEY], 0
            rows += 1
            try:
                mapped = ctx.mapper.map(row)
            except RowRefused:
                counted.refused += 1
                continue
            counted.not_migrated += not mapped
            for table, target in mapped:
                tally.add(table, target[PARTITION_KEY], expected=1)
        counted.source_rows += len(page.rows)
        ctx.reads.advance(len(page.rows))
    if partition is not None:
        counted.partition_ends(partition, rows)


def _compare(ctx: ReconcileContext, last: _Pass, differences: Spill[_Tallied]) -> tuple[TableCount, ...]:
    """Return each target's counts: of partitions that differed alike in both passes, and of moving ones."""
    stable, moving = Counter[int](), Counter[int]()
    worst: list[list[tuple[int, str, int, int]]] = [[] for _ in ctx.targets]
    for group in differences.groups():
        seen: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        for table, partition, expected, actual in group:
            seen[table, partition].append((expected, actual))
        for (table, partition), counts in seen.items():
            if len(counts) != 2 or counts[0] != counts[1]:
                moving[table] += 1
                continue
            stable[table] += 1
            expected, actual = counts[0]
            heapq.heappush(worst[table], (abs(expected - actual), partition, expected, actual))
            if len(worst[table]) > LISTED:
                heapq.heappop(worst[table])
    return tuple(
        TableCount(
            table=ctx.label(number),
            expected=last.expected[number],
            actual=last.actual[number],
            partitions=last.partitions[number],
            differing=stable[number],
            moving=moving[number],
            listed=tuple(
                PartitionDifference(_partition_id(ctx, target.name, partition), expected, actual)
                for _, partition, expected, actual in sorted(worst[number], reverse=True)
            ),
        )
        for number, target in enumerate(ctx.targets)
    )


def _partition_id(ctx: ReconcileContext, table: str, partition: str) -> str:
    # Not the table's own name: the id must not be taken for that of a row.
    return ctx.ids.short(f"{table}/partition", EntityKey(partition, ""))
