"""Full verification: every row and every property, both directions.

Rules kept here:

* First pass: source and targets are read once; each expected and each actual row is hashed and summed into
  its bucket (`digest`, `sums`). Equal sums everywhere: done, nothing else is read.
* Second pass, only where sums differ: the rows of those buckets go to disk and are joined (`find`).
* Every difference is then looked at by point reads until it is gone or stands still (`recheck`).
* The sums are additive: work can stop after any page and go on (`Partial`), and pieces made elsewhere add up.
* Nothing is left on disk, however it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import aclosing

from rekey.collector import patient_collector
from rekey.concurrency import for_each
from rekey.errors import RowRefused
from rekey.model import PARTITION_KEY, ROW_KEY
from rekey.reconcile.collect import Collector
from rekey.reconcile.context import ReconcileContext
from rekey.reconcile.digest import bucket_of, digester
from rekey.reconcile.divergence import Findings, RepairReport
from rekey.reconcile.find import by_content, by_key, candidates, spill_rows
from rekey.reconcile.recheck import Candidate, settle
from rekey.reconcile.repair import repair_all
from rekey.reconcile.report import FullReport, TableComparison
from rekey.reconcile.spill import Record, Spill, hash_of, private_folder
from rekey.reconcile.sums import SOURCE, Part, Partial, told_digest
from rekey.tables.base import Page

CHECKPOINT_ROWS = 200_000
"""Rows between two checkpoints: some seconds of work, against a state of about 0.5 MB per table."""


async def full(
    ctx: ReconcileContext,
    *,
    partial: Partial | None = None,
    checkpoint: Callable[[Partial], None] | None = None,
    checkpoint_rows: int = CHECKPOINT_ROWS,
    enough: int | None = None,
    repair: bool = False,
) -> FullReport:
    """Compare everything.

    Args:
        ctx: the tables and the mapping.
        partial: sums to go on from; None begins anew, with each table in one piece.
        checkpoint: told the sums about every `checkpoint_rows` rows, and when the first pass is done.
        checkpoint_rows: rows between two checkpoints.
        enough: stop looking at differences after this many stable divergences; the rest is counted as
            unchecked. None looks at all.
        repair: mend what was found; the report says what was done, and the caller verifies again.

    Raises:
        Interrupted: `ctx.stop` said so. The last checkpoint is what can be gone on from.
        MachineFailed: the disk is full.
        ServiceError: a table could not be read.
    """
    started_at = ctx.now()
    work = partial or Partial.fresh(len(ctx.targets))
    with patient_collector():
        await sum_up(ctx, work, checkpoint=checkpoint, checkpoint_rows=checkpoint_rows)
    sides = zip(work.expected, work.actual, strict=True)
    differing = [expected.differing(actual) for expected, actual in sides]
    found, repaired = Findings(), None
    if work.refused or any(differing):
        found, repaired = await _find_and_settle(ctx, work, differing, enough, repair=repair)
    return FullReport(
        started_at=started_at,
        finished_at=ctx.now(),
        source=ctx.source_name,
        source_rows=work.source_rows,
        refused_rows=work.refused,
        tables=tuple(
            TableComparison(
                table=target.name,
                expected_rows=expected.rows,
                actual_rows=actual.rows,
                expected_digest=expected.content_digest(),
                actual_digest=actual.content_digest(),
                differing_buckets=len(buckets),
                not_compared=tuple(sorted(ctx.not_compared(number))),
                expected_sums=expected.as_json(),
                actual_sums=actual.as_json(),
            )
            for number, (target, expected, actual, buckets) in enumerate(
                zip(ctx.targets, work.expected, work.actual, differing, strict=True)
            )
        ),
        found=found,
        repair=repaired,
        source_digest=told_digest(work.source),
    )


async def sum_up(
    ctx: ReconcileContext,
    work: Partial,
    *,
    checkpoint: Callable[[Partial], None] | None = None,
    checkpoint_rows: int = CHECKPOINT_ROWS,
) -> None:
    """Read what is left of `work` and add it to its sums, page by page.

    Cursor and sums move together, between two awaits: whoever stores `work` at any moment stores a state from
    which adding goes on without counting a row twice or leaving one out.
    """
    since = 0
    adding = _Adding(ctx, work)

    async def read(part: Part) -> None:
        nonlocal since
        table = ctx.source if part.table == SOURCE else ctx.targets[part.table]
        async for page in table.scan(part.rest):
            ctx.stop()
            if part.table == SOURCE:
                adding.source(page)
            else:
                adding.target(part.table, page)
            part.cursor = page.cursor or part.cursor
            ctx.progress.advance(len(page.rows), "comparing")
            since += len(page.rows)
            if checkpoint is not None and since >= checkpoint_rows:
                since = 0
                checkpoint(work)
        part.done = True

    left = [part for part in work.parts if not part.done]
    await for_each(left, read, limit=ctx.concurrency)
    if left and checkpoint is not None:
        checkpoint(work)


class _Adding:
    """Adds rows to sums: what `BucketSums.add` does, without a call for every row."""

    def __init__(self, ctx: ReconcileContext, work: Partial) -> None:
        self._map, self._work = ctx.mapper.map, work
        self._source_digest = digester(ctx.source_name)
        self._digests = [
            digester(target.name, ctx.not_compared(number)) for number, target in enumerate(ctx.targets)
        ]

    def source(self, page: Page) -> None:
        """Add the source's rows, and the rows they give."""
        work, from_bytes, source_digest = self._work, int.from_bytes, self._source_digest
        expected = [
            (digest, sums.sums, sums.counts)
            for digest, sums in zip(self._digests, work.expected, strict=True)
        ]
        own_totals, own_counts = work.source.sums, work.source.counts
        for row in page.rows:
            bucket = bucket_of(row[PARTITION_KEY], row[ROW_KEY])
            own_totals[bucket] += from_bytes(source_digest(row))
            own_counts[bucket] += 1
            try:
                mapped = self._map(row)
            except RowRefused:
                work.refused += 1
                continue
            for number, target in mapped:
                digest, totals, counts = expected[number]
                bucket = bucket_of(target[PARTITION_KEY], target[ROW_KEY])
                totals[bucket] += from_bytes(digest(target))
                counts[bucket] += 1
        work.source_rows += len(page.rows)

    def target(self, number: int, page: Page) -> None:
        """Add rows of a target."""
        digest, sums, from_bytes = self._digests[number], self._work.actual[number], int.from_bytes
        totals, counts = sums.sums, sums.counts
        for row in page.rows:
            bucket = bucket_of(row[PARTITION_KEY], row[ROW_KEY])
            totals[bucket] += from_bytes(digest(row))
            counts[bucket] += 1


async def _find_and_settle(
    ctx: ReconcileContext,
    work: Partial,
    differing: list[frozenset[int]],
    enough: int | None,
    *,
    repair: bool,
) -> tuple[Findings, RepairReport | None]:
    """Find the rows behind differing sums, recheck them and, if asked, mend what stood still."""
    with (
        private_folder(ctx.folder) as folder,
        Spill(folder, by_key) as spilled,
        Spill(folder, by_content) as unmatched,
        Spill(folder, _by_row) as kept,
    ):
        await spill_rows(ctx, work.parts, differing, spilled)
        collector = Collector(ctx, kept if repair else None)
        waiting = _Counted(candidates(spilled, unmatched))
        async with aclosing(settle(ctx, waiting)) as settling:
            async for settled in settling:
                collector.take(settled)
                waiting.left -= 1
                if enough is not None and collector.stable >= enough:
                    waiting.drain()
                    break
        found = collector.findings(unchecked=waiting.left)
        return found, await repair_all(ctx, kept) if repair else None


class _Counted:
    """An iterator that knows how many of its candidates were given out and not settled yet."""

    def __init__(self, candidates: Iterator[Candidate]) -> None:
        self._candidates = candidates
        self.left = 0

    def __iter__(self) -> Iterator[Candidate]:
        return self

    def __next__(self) -> Candidate:
        candidate = next(self._candidates)
        self.left += 1
        return candidate

    def drain(self) -> None:
        """Count all that is still to come without looking at it."""
        self.left += sum(1 for _ in self._candidates)


def _by_row(record: Record) -> int:
    return hash_of(f"{record[0]}{record[2]}{record[3]}")
