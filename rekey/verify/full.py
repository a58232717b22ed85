"""Full verification: every row and every property, both directions.

Rules kept here:

* First pass: source and targets are read once; each expected and each actual row is hashed and summed into
  its bucket (`digest`, `sums`). Equal sums everywhere: done, nothing else is read.
* Second pass, only where sums differ: the rows of those buckets go to disk and are joined (`find`).
* Every difference is then looked at by point reads until it is gone or stands still (`recheck`).
* The sums are additive: work can stop after any page and go on (`Partial`), and pieces made elsewhere add up.
  The report says what was read when; what changed since was looked at again where it made a difference.
* Nothing is left on disk, however it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Protocol

from rekey.core.collector import patient_collector
from rekey.verify.collect import Collector
from rekey.verify.context import ReconcileContext
from rekey.verify.find import by_content, by_key, candidates, spill_rows
from rekey.verify.recheck import Candidate, settle
from rekey.verify.repair import repair_all
from rekey.verify.report import Findings, FullReport, RepairReport, TableComparison, TableRead
from rekey.verify.spill import Record, Spill, hash_of, private_folder
from rekey.verify.summing import CHECKPOINT_ROWS, sum_up
from rekey.verify.sums import SOURCE, Part, Partial, told_digest

Checkpoint = Callable[[Partial], None]


class Reader(Protocol):
    """Reads tables for a comparison: this process, or workers."""

    async def sum_up(
        self, ctx: ReconcileContext, work: Partial, *, checkpoint: Checkpoint | None, checkpoint_rows: int
    ) -> None:
        """Read what is left of `work` and add it to its sums."""

    async def spill_rows(
        self, ctx: ReconcileContext, parts: Sequence[Part], differing: Sequence[frozenset[int]], spill: Spill
    ) -> None:
        """Read the parts once more and spill the rows of differing buckets."""


class Here:
    """Reads in this process."""

    async def sum_up(
        self, ctx: ReconcileContext, work: Partial, *, checkpoint: Checkpoint | None, checkpoint_rows: int
    ) -> None:
        """As `sum_up`."""
        await sum_up(ctx, work, checkpoint=checkpoint, checkpoint_rows=checkpoint_rows)

    async def spill_rows(
        self, ctx: ReconcileContext, parts: Sequence[Part], differing: Sequence[frozenset[int]], spill: Spill
    ) -> None:
        """As `spill_rows`."""
        await spill_rows(ctx, parts, differing, spill)


async def full(
    ctx: ReconcileContext,
    *,
    partial: Partial | None = None,
    checkpoint: Callable[[Partial], None] | None = None,
    checkpoint_rows: int = CHECKPOINT_ROWS,
    enough: int | None = None,
    repair: bool = False,
    reader: Reader | None = None,
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
        reader: reads the tables; None: this process.

    Raises:
        Interrupted: `ctx.stop` said so. The last checkpoint is what can be gone on from.
        MachineFailed: the disk is full.
        ServiceError: a table could not be read.
    """
    reader = reader or Here()
    work = partial or Partial.fresh(len(ctx.targets))
    work.sit_down(ctx.now())
    with patient_collector():
        await reader.sum_up(ctx, work, checkpoint=checkpoint, checkpoint_rows=checkpoint_rows)
    sides = zip(work.expected, work.actual, strict=True)
    differing = [expected.differing(actual) for expected, actual in sides]
    found, repaired = Findings(), None
    if work.refused or any(differing):
        found, repaired = await _find_and_settle(ctx, work, differing, enough, repair=repair, reader=reader)
    return _report(ctx, work, differing, found, repaired)


def _report(
    ctx: ReconcileContext,
    work: Partial,
    differing: Sequence[frozenset[int]],
    found: Findings,
    repaired: RepairReport | None,
) -> FullReport:
    return FullReport(
        started_at=work.begun_at,
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
            )
            for number, (target, expected, actual, buckets) in enumerate(
                zip(ctx.targets, work.expected, work.actual, differing, strict=True)
            )
        ),
        found=found,
        repair=repaired,
        source_digest=told_digest(work.source),
        read=tuple(
            TableRead(
                ctx.source_name if one.table == SOURCE else ctx.targets[one.table].name,
                one.sitting,
                one.begun_at,
                one.ended_at,
                one.rows,
            )
            for one in work.reads.values()
        ),
    )


async def _find_and_settle(
    ctx: ReconcileContext,
    work: Partial,
    differing: list[frozenset[int]],
    enough: int | None,
    *,
    repair: bool,
    reader: Reader,
) -> tuple[Findings, RepairReport | None]:
    """Find the rows behind differing sums, recheck them and, if asked, mend what stood still."""
    with (
        private_folder(ctx.folder) as folder,
        Spill(folder, by_key) as spilled,
        Spill(folder, by_content) as unmatched,
        Spill(folder, _by_row) as kept,
    ):
        await reader.spill_rows(ctx, work.parts, differing, spilled)
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
