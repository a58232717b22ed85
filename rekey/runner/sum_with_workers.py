"""Comparing by workers: the sums, and the rows behind sums that differ.

Rules kept here:

* A slice's sums and its cursor are taken together, so that what is stored at any moment can be gone on from.
* Workers return what lies in differing buckets sealed and in bounded portions; it is joined here, in bounded
  memory, as if it had been read here. Looking at differences again stays with the runner.
* Slices of another epoch than the comparison's are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rekey.copy.workers.driver import Pool
from rekey.copy.workers.summing import packed_buckets, unsealed
from rekey.copy.workers.tasks import Basis, Ended, Kind, Result, Task
from rekey.core.spill import Spill
from rekey.errors import Interrupted, StateUnusable
from rekey.mapping.sealing import SealedKeys
from rekey.model import KeyRange
from rekey.runner.copy_with_workers import driver_of, made_under, reached
from rekey.runner.run import Run
from rekey.tables.split import find_middle
from rekey.verify.context import ReconcileContext
from rekey.verify.full import Reader, Record, worth_reading
from rekey.verify.summing import CHECKPOINT_ROWS, Checkpoint
from rekey.verify.sums import SOURCE, BucketSums, Part, Partial


async def reader_of(run: Run) -> Reader | None:
    """Return what reads the tables for a comparison: workers; None: this process."""
    if run.factory is None:
        return None
    basis, keys = await made_under(run, writes=False)
    return _Workers(run, basis, keys)


class _Workers:
    """Reads tables by workers."""

    def __init__(self, run: Run, basis: Basis, keys: SealedKeys) -> None:
        self._run, self._basis, self._keys = run, basis, keys

    async def sum_up(self, ctx: ReconcileContext, work: Partial, *, checkpoint: Checkpoint) -> None:
        """Read what is left of `work` and add it to its sums."""
        left = [part for part in work.parts if not part.done]
        if not left:
            return
        job = _Sums(self._run, self._basis, self._keys, ctx, work, checkpoint)
        try:
            await self._carry_out(ctx, job, left)
        except Interrupted:
            checkpoint(work)
            raise
        checkpoint(work)

    async def spill_rows(
        self,
        ctx: ReconcileContext,
        parts: Sequence[Part],
        differing: Sequence[frozenset[int]],
        spill: Spill[Record],
    ) -> None:
        """Read the parts once more and spill the rows of differing buckets."""
        job = _Rows(self._run, self._basis, self._keys, ctx, differing, spill)
        again = [Part(part.table, part.within) for part in worth_reading(parts, differing)]
        await self._carry_out(ctx, job, again)

    async def _carry_out(self, ctx: ReconcileContext, job: _Reading, parts: list[Part]) -> None:
        async with Pool(self._run.factory_or_fail, self._run.config.executor.tasks) as pool:
            if not await driver_of(self._run, job, pool, None).carry_out(parts):
                ctx.stop()


class _Reading:
    """A comparison as a job of parts."""

    kind: Kind

    def __init__(self, run: Run, basis: Basis, keys: SealedKeys, ctx: ReconcileContext) -> None:
        self._run, self._basis, self._keys, self._ctx = run, basis, keys, ctx

    async def split(self, piece: Part) -> tuple[Part, Part] | None:
        """Split what is left of a part."""
        middle = await find_middle(self._ctx.table(piece.table), piece.rest)
        if middle is None:
            return None
        upper = Part(piece.table, KeyRange(middle, piece.within.upto))
        piece.within = replace(piece.within, upto=middle)
        self.added(upper)
        return piece, upper

    def added(self, part: Part) -> None:
        """Hear of a part that was split off."""

    def task(self, piece: Part) -> Task:
        """Return the task to read what is left of a part."""
        return Task(
            self.kind,
            self._basis,
            table=piece.table,
            after=self._keys.to_text("after", piece.rest.after) or "",
            upto=self._keys.to_text("upto", piece.rest.upto) or "",
            authority_is_target=self._ctx.authority_is_target,
        )

    def take(self, piece: Part, result: Result) -> Part | None:
        """Take what a result brings, and move on."""
        left = reached(self._keys, piece.rest, result)
        self.received(piece, result)
        if left != piece.rest:
            piece.cursor = left.after
        piece.done = result.ended is Ended.DONE
        return None if piece.done else piece

    def received(self, piece: Part, result: Result) -> None:
        """Take what a result brings besides its cursor. Raises ValueError when it was not asked for."""
        raise NotImplementedError


class _Sums(_Reading):
    kind = Kind.SUM

    def __init__(
        self,
        run: Run,
        basis: Basis,
        keys: SealedKeys,
        ctx: ReconcileContext,
        work: Partial,
        checkpoint: Checkpoint,
    ) -> None:
        super().__init__(run, basis, keys, ctx)
        self._work, self._checkpoint = work, checkpoint
        self._since = 0

    def added(self, part: Part) -> None:
        """Hear of a part that was split off."""
        self._work.parts.append(part)

    def received(self, piece: Part, result: Result) -> None:
        """Add a slice's sums."""
        try:
            sums = {name: BucketSums.from_packed(packed) for name, packed in result.sums.items()}
        except StateUnusable:
            raise ValueError("not sums") from None
        if not sums:
            return
        targets = range(len(self._work.expected))
        wanted = {"source", *(f"expected{number}" for number in targets)}
        if set(sums) != (wanted if piece.table == SOURCE else {"actual"}):
            raise ValueError("other sums")
        if piece.table == SOURCE:
            self._work.source.merge(sums["source"])
            for number, expected in enumerate(self._work.expected):
                expected.merge(sums[f"expected{number}"])
            self._work.source_rows += result.rows
            self._work.refused += result.counters.get("refused", 0)
        else:
            self._work.actual[piece.table].merge(sums["actual"])
        self._work.was_read(piece.table, result.rows, self._ctx.now())
        self._ctx.advance(result.rows)

    def take(self, piece: Part, result: Result) -> Part | None:
        """Take a slice, and store the sums from time to time."""
        left = super().take(piece, result)
        self._since += result.rows
        if self._since >= CHECKPOINT_ROWS:
            self._since = 0
            self._checkpoint(self._work)
        return left


class _Rows(_Reading):
    kind = Kind.FIND

    def __init__(
        self,
        run: Run,
        basis: Basis,
        keys: SealedKeys,
        ctx: ReconcileContext,
        differing: Sequence[frozenset[int]],
        spill: Spill[Record],
    ) -> None:
        super().__init__(run, basis, keys, ctx)
        self._buckets = packed_buckets(differing)
        self._spill = spill

    def task(self, piece: Part) -> Task:
        """Return the task to find the rows of differing buckets in what is left of a part."""
        return replace(super().task(piece), buckets=self._buckets)

    def received(self, piece: Part, result: Result) -> None:  # noqa: ARG002 - of every reading
        """Spill a slice's rows."""
        for record in unsealed(self._keys, result):
            self._spill.put(record)
        self._ctx.advance(result.rows)
