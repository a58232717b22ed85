"""Work of the runner that others carry out: slices of the backfill, sent to an executor.

Rules kept here:

* Only the runner writes the state file. A cursor moves over what a worker returned, behind the runner's own
  check that its lease holds, and only within the range that was asked for.
* The runner goes on after the copy only when no task can write any more: every task was answered by an
  executor that runs each once, and nothing was left open; or the term of all tasks and the margin are over
  (`rekey.runner.quiet`).
* Rates, and a pause, are the operator's for all tasks together: each is submitted with its share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from rekey.copy.workers.driver import Driver, Job, Pool
from rekey.copy.workers.opened import travel_key
from rekey.copy.workers.tasks import Basis, Ended, Kind, Result, Task
from rekey.core.distribution import installed_version
from rekey.core.progress import Advance
from rekey.errors import Moved, StateUnusable
from rekey.mapping.sealing import SealedKeys
from rekey.model import KeyRange
from rekey.protocol.term import Term
from rekey.runner.run import Run
from rekey.state.models import Segment
from rekey.tables.split import find_middle

S = TypeVar("S")


async def spread_copy(run: Run, segments: list[Segment], advance: Advance) -> tuple[dict[str, int], bool]:
    """Have segments copied by workers.

    Returns:
        Further counters, and whether all of it was copied (False: stopped on request).

    Raises:
        WorkersFailed, RekeyError: see `Driver.carry_out`.
    """
    basis, keys = await made_under(run, writes=True)
    job = _Copying(run, basis, keys, advance)
    term = Term(run.restricted, run.script_id)
    async with Pool(run.factory_or_fail, run.config.executor.tasks) as pool:
        driver = driver_of(run, job, pool, term)
        run.state.audit("spread", run.script_id, {"work": "backfill", "tasks_at_a_time": pool.tasks})
        whole = await driver.carry_out(one for one in segments if not one.done)
        runs_once = pool.runs_once
    if runs_once:
        await (term.cut() if driver.open else term.remove())
    counters = {**job.counters, "tasks": driver.submitted, "tasks_lost": driver.lost}
    return counters, whole


def driver_of(run: Run, job: Job[S], pool: Pool, term: Term | None) -> Driver[S]:
    """Return what sends the tasks of a job for a run."""
    throttle = run.copier.throttle
    limits = run.config.limits

    def divides_partition() -> bool:
        # What the service bears its own refusals tell; what the operator said holds for all together.
        said = throttle.rates.partition != run.config.rates.partition_entities_per_second
        return said or limits.partition_entities_per_second is not None

    return Driver(
        job=job,
        pool=pool,
        tables=run.tables,
        term=term,
        clock=run.clock,
        slice_s=run.config.executor.slice_s,
        rates=throttle.look,
        divides_partition=divides_partition,
        requests=run.by_workers,
        check=run.still_alone,
        stop_requested=run.stop.requested,
    )


async def made_under(run: Run, *, writes: bool) -> tuple[Basis, SealedKeys]:
    """Return what tasks are made under now, and what keys in them are sealed with.

    Raises:
        Moved: the control row is gone.
    """
    row = await run.control.read()
    if row is None:
        raise Moved(
            f"the control row of {run.script_id} is gone from the restricted store",
            kept="all tables of the migration",
            hint="find out who deleted it",
        )
    basis = Basis(
        version=installed_version(),
        config=str(run.config.path),
        endpoints=run.config.endpoints,
        script_id=run.script_id,
        digest=run.declared.digest,
        run_id=row.run_id,
        epoch=row.epoch,
        lease_id=run.lease_id if writes else "",
    )
    return basis, SealedKeys(run.script_id, travel_key(run.mapping, row))


def reached(keys: SealedKeys, rest: KeyRange, result: Result) -> KeyRange:
    """Return what is left of a range behind a result's cursor.

    Raises:
        ValueError: the cursor is not of that range.
    """
    try:
        cursor = keys.from_text("cursor", result.cursor or None)
    except StateUnusable:
        raise ValueError("not a cursor of this run") from None
    if cursor is None or cursor == rest.after:
        return rest
    if cursor not in rest:
        raise ValueError("not a cursor of this range")
    return rest.behind(cursor)


class _Copying:
    """The backfill as a job of segments."""

    def __init__(self, run: Run, basis: Basis, keys: SealedKeys, advance: Callable[[int], None]) -> None:
        self._run, self._basis, self._keys, self._advance = run, basis, keys, advance
        self.counters = {"rows": 0, "inserted": 0, "propagated": 0}

    async def split(self, piece: Segment) -> tuple[Segment, Segment] | None:
        """Split a segment, in the state file."""
        middle = await find_middle(self._run.source, piece.rest)
        if middle is None:
            return None
        self._run.still_alone()
        return replace(piece, upto=middle), self._run.state.split_segment(piece, middle)

    def task(self, piece: Segment) -> Task:
        """Return the task to copy what is left of a segment."""
        return Task(
            Kind.COPY,
            self._basis,
            after=self._keys.to_text("after", piece.rest.after) or "",
            upto=self._keys.to_text("upto", piece.rest.upto) or "",
        )

    def take(self, piece: Segment, result: Result) -> Segment | None:
        """Checkpoint a segment."""
        left = reached(self._keys, piece.rest, result)
        moved = replace(
            piece,
            cursor=left.after if left != piece.rest else piece.cursor,
            rows=piece.rows + result.rows,
            bytes=piece.bytes + result.size,
            done=result.ended is Ended.DONE,
        )
        self._run.state.checkpoint([moved])
        self._run.keep_count()
        for name in self.counters:
            self.counters[name] += result.rows if name == "rows" else result.counters.get(name, 0)
        self._advance(result.rows)
        return None if moved.done else moved
