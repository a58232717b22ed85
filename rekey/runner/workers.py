"""The runner's side of work that workers carry out: slices of the backfill and of a comparison. Only the
runner writes the state file; only it rereads differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from rekey.copy.workers.driver import Driver, Job, Pool
from rekey.copy.workers.opened import travel_key
from rekey.copy.workers.summing import actual_sums, packed_buckets, unsealed
from rekey.copy.workers.tasks import Basis, Ended, Result, Task, TaskKind
from rekey.core.distribution import VERSION
from rekey.core.progress import Advance
from rekey.core.spill import Spill
from rekey.errors import StateUnusable
from rekey.mapping.sealing import SealedKeys
from rekey.model import KeyRange
from rekey.protocol.term import Term
from rekey.runner.refusals import refusal
from rekey.runner.run import Run
from rekey.state.models import Segment
from rekey.tables.split import find_middle
from rekey.verify.bucket_digests import SOURCE, BucketDigests, Part, Partial
from rekey.verify.context import ReconcileContext
from rekey.verify.first_pass import Checkpoint, Due
from rekey.verify.full import Record, worth_reading

S = TypeVar("S")


def reached(keys: SealedKeys, rest: KeyRange, result: Result) -> KeyRange:
    """Return what is left of a range after a result's cursor. Raises ValueError for a cursor that is not of
    this range or run."""
    try:
        cursor = keys.from_text("cursor", result.cursor or None)
    except StateUnusable:
        raise ValueError("not a cursor of this run") from None
    if cursor is None or cursor == rest.after:
        return rest
    if cursor not in rest:
        raise ValueError("not a cursor of this range")
    return rest.behind(cursor)


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of one run's executor; made by `Workers.of`. Implements `rekey.verify.full.Reader`."""

    run: Run
    pool: Pool
    # What tasks are made under: versions, migration, run, epoch and lease.
    basis: Basis
    # Seals keys in tasks and opens those in results.
    keys: SealedKeys

    @classmethod
    async def of(cls, run: Run, pool: Pool, *, writes: bool) -> Workers:
        """Return the workers of a run. `writes`: their tasks write, under the runner's lease. Raises Moved
        when the control row is gone."""
        row = await run.control.read()
        if row is None:
            raise refusal("control-row-gone", script=run.script_id)
        basis = Basis(
            version=VERSION,
            config=str(run.config.path),
            endpoints=run.config.endpoints,
            script_id=run.script_id,
            digest=run.declared.digest,
            run_id=row.run_id,
            epoch=row.epoch,
            lease_id=run.lease_id if writes else "",
            group=run.declared.migration.group,
        )
        return cls(run, pool, basis, SealedKeys(run.script_id, travel_key(run.mapping, row)))

    def driver(self, job: Job[S], term: Term | None) -> Driver[S]:
        """Return the driver that sends the tasks of a job. `term`: None for tasks that only read."""
        run, throttle = self.run, self.run.copier.throttle

        def divides_partition() -> bool:
            # A rate that the operator set holds for all tasks together. The default is not divided: each
            # worker learns from the service's refusals what it can take.
            is_steered = throttle.rates.partition != throttle.configured.partition
            return is_steered or run.config.limits.partition_entities_per_second is not None

        return Driver(
            job=job,
            pool=self.pool,
            tables=run.tables,
            term=term,
            clock=run.clock,
            slice_s=run.config.executor.slice_s,
            rates=throttle.poll,
            divides_partition=divides_partition,
            requests=run.by_workers,
            check=run.still_alone,
            stop_requested=run.stop.requested,
        )

    def task(self, kind: TaskKind, rest: KeyRange, **more: Any) -> Task:
        """Return the task for what is left of a range."""
        after, upto = self.keys.to_text("after", rest.after), self.keys.to_text("upto", rest.upto)
        return Task(kind, self.basis, after=after or "", upto=upto or "", **more)

    # --- comparing --------------------------------------------------------------------------------------

    async def add_digests(self, ctx: ReconcileContext, work: Partial, *, checkpoint: Checkpoint) -> None:
        """Read what is left of `work` and add it to its digests."""
        left = [part for part in work.parts if not part.done]
        if not left:
            return
        due = Due(ctx.clock)

        def taken(result: Result) -> None:
            if due.after(result.rows):
                checkpoint(work)

        job = _Reading(self, ctx, TaskKind.SUM, partial(_add_sums, ctx, work), work.parts.append, taken)
        whole = await self._compare(job, left)
        checkpoint(work)
        if not whole:
            ctx.reads.stop()

    async def spill_rows(
        self,
        ctx: ReconcileContext,
        parts: Sequence[Part],
        differing: Sequence[frozenset[int]],
        spill: Spill[Record],
    ) -> None:
        """Read the parts once more and write the rows of differing buckets to `spill`."""

        def received(_piece: Part, result: Result) -> None:
            for record in unsealed(self.keys, result):
                spill.put(record)
            ctx.reads.advance(result.rows)

        job = _Reading(self, ctx, TaskKind.FIND, received, buckets=packed_buckets(differing))
        again = [Part(part.table, part.within) for part in worth_reading(parts, differing, ctx.mapper)]
        if not await self._compare(job, again):
            ctx.reads.stop()

    async def _compare(self, job: _Reading, parts: list[Part]) -> bool:
        async with self.pool:
            return await self.driver(job, None).carry_out(parts)


# --- copying -----------------------------------------------------------------------------------------------


async def copy_with_workers(
    run: Run, pool: Pool, segments: list[Segment], advance: Advance
) -> tuple[dict[str, int], bool]:
    """Let workers copy segments; return the counters, and whether all were copied (False: stopped on
    request). Raises WorkersFailed and what `Driver.carry_out` raises."""
    workers = await Workers.of(run, pool, writes=True)
    job = _Copying(workers, advance)
    term = Term(run.restricted, run.script_id)
    async with pool:
        driver = workers.driver(job, term)
        run.state.audit("spread", run.script_id, {"work": "backfill", "tasks_at_a_time": pool.tasks})
        whole = await driver.carry_out(segment for segment in segments if not segment.done)
        runs_once = pool.runs_once
    if runs_once:
        # An executor that runs each task once answered all: no task writes any more, unless a request was
        # left unanswered. Otherwise the term stays until its time is over.
        await (term.cut() if driver.open else term.remove())
    return {**job.counters, "tasks": driver.submitted, "tasks_lost": driver.lost}, whole


class _Copying(Job[Segment]):
    """The backfill as a job of segments."""

    def __init__(self, workers: Workers, advance: Advance) -> None:
        self._workers, self._run, self._advance = workers, workers.run, advance
        self.counters = {"rows": 0, "inserted": 0, "propagated": 0, "not_migrated": 0}

    async def split(self, piece: Segment) -> tuple[Segment, Segment] | None:
        """Split what is left of a segment in the state file; None: it cannot be split."""
        middle = await find_middle(self._run.source, piece.rest)
        if middle is None:
            return None
        self._run.still_alone()
        return replace(piece, upto=middle), self._run.state.split_segment(piece, middle)

    def task(self, piece: Segment) -> Task:
        return self._workers.task(TaskKind.COPY, piece.rest)

    def take(self, piece: Segment, result: Result) -> Segment | None:
        """Checkpoint a segment by a result; return what is left, None when it is done."""
        left = reached(self._workers.keys, piece.rest, result)
        moved = replace(
            piece,
            cursor=left.after if left != piece.rest else piece.cursor,
            rows=piece.rows + result.rows,
            bytes=piece.bytes + result.size,
            done=result.ended is Ended.DONE,
        )
        self._run.state.checkpoint([moved])
        self._run.keep_count()
        self._run.checkpointed()
        for name in self.counters:
            self.counters[name] += result.rows if name == "rows" else result.counters.get(name, 0)
        self._advance(result.rows)
        return None if moved.done else moved


# --- comparing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading(Job[Part]):
    """A comparison as a job of parts."""

    workers: Workers
    ctx: ReconcileContext
    # `SUM` to sum up, `FIND` to return the rows of `buckets`.
    kind: TaskKind
    # Takes over the content of a result, before its cursor; raises ValueError for content not asked for.
    received: Callable[[Part, Result], None]
    added: Callable[[Part], None] = lambda _part: None
    taken: Callable[[Result], None] = lambda _result: None
    # The numbers of the differing buckets, packed, for each target.
    buckets: tuple[bytes, ...] = ()

    async def split(self, piece: Part) -> tuple[Part, Part] | None:
        """Split what is left of a part; None: it cannot be split."""
        middle = await find_middle(self.ctx.table(piece.table), piece.rest)
        if middle is None:
            return None
        piece.within, rest = piece.within.split(middle)
        upper = Part(piece.table, rest)
        self.added(upper)
        return piece, upper

    def task(self, piece: Part) -> Task:
        return self.workers.task(
            self.kind,
            piece.rest,
            table=piece.table,
            authority_is_target=self.ctx.authority_is_target,
            buckets=self.buckets,
        )

    def take(self, piece: Part, result: Result) -> Part | None:
        """Take over content and cursor of a result; return what is left, None when it is done."""
        left = reached(self.workers.keys, piece.rest, result)
        self.received(piece, result)
        # Together with the content, so that stored digests can be continued at any moment.
        if left != piece.rest:
            piece.cursor = left.after
        piece.done = result.ended is Ended.DONE
        self.taken(result)
        return None if piece.done else piece


def _add_sums(ctx: ReconcileContext, work: Partial, piece: Part, result: Result) -> None:
    """Add a slice's digests to those of a comparison. Raises ValueError when they were not asked for."""
    try:
        digests = {name: BucketDigests.from_packed(packed) for name, packed in result.sums.items()}
    except StateUnusable:
        raise ValueError("not sums") from None
    if not digests:
        return
    if piece.table == SOURCE:
        into = {f"expected{number}": expected for number, expected in enumerate(work.expected)}
        into["source"] = work.source
    else:
        into = {name: work.actual[number] for name, number in actual_sums(ctx.mapper, piece.table).items()}
    if digests.keys() != into.keys():
        raise ValueError("other sums")
    for name, known in into.items():
        known.merge(digests[name])
    if piece.table == SOURCE:
        work.source_rows += result.rows
        work.refused += result.counters.get("refused", 0)
        work.not_migrated += result.counters.get("not_migrated", 0)
    work.was_read(piece.table, result.rows, ctx.now())
    ctx.reads.advance(result.rows)
