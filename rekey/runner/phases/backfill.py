"""backfill: copies the source rows from the segments and cursors in the state file; in capture "dual-write"
it then sweeps the target rows whose source row was deleted meanwhile."""

from __future__ import annotations

import json

from rekey.copy.pipeline import Callbacks, copy_segments
from rekey.copy.scan import ReadOptions
from rekey.copy.sweep import settle_moved, sweep
from rekey.core.clock import earlier, format_ticks, ticks_of
from rekey.core.eta import Lane
from rekey.model import EVERYTHING, EntityKey
from rekey.protocol.rules import SOURCE
from rekey.runner.clients import (
    closed_by_others,
    settle_again,
    unannounced_until,
    until_quiet,
    while_sweeping,
)
from rekey.runner.remaining import require_rows
from rekey.runner.run import Counters, Run
from rekey.runner.workers import copy_with_workers
from rekey.state.models import BACKFILL as PURPOSE
from rekey.state.models import PLAN_FACT, Segment
from rekey.status.facts import ESTIMATED_ROWS, LATE_UNTIL

# Fact: the service's time before the first row was read for the copy.
COPYING_SINCE = "copying_since"
# Fact: by table, the rows that its busiest partition has taken of the copy so far, as JSON; for estimates.
BUSIEST = "busiest"


async def gate(run: Run) -> list[str]:
    """Return as reasons the clients that write the source and do not follow this migration; none in capture
    "delta"."""
    # One that registered between the gate of `dual_write` and the move may not know of the part while it
    # trusts its lease. What it wrote before it ended is copied; one that registers later knows.
    return [] if run.is_delta else await closed_by_others(run)


async def run(run: Run) -> Counters:
    """Copy every segment that is not done and sweep; in capture "dual-write" mark the control row, which
    opens the new view."""
    now = None if run.is_delta else await run.control.read()
    if now is not None and now.copied:
        # It was done before, perhaps with another state file, which holds a verification. If this run is cut
        # off, rows that were deleted during the copy stay, and that verification must not count.
        await run.control.mark_changed()
    if not run.is_delta:
        await _record_given_up(run)
    counters = await while_sweeping(run, SOURCE, _copy_and_sweep(run))
    if not run.is_delta:
        await run.control.mark_copied()
    return counters


async def _record_given_up(run: Run) -> None:
    """Let no verification count that begins before the writes of clients have arrived which were given up
    since `dual_write`."""
    known = run.state.get_fact(run.script_id, LATE_UNTIL)
    until = await unannounced_until(run, await run.control.read())
    if until is not None and (known is None or ticks_of(known) < until):
        run.state.set_fact(run.script_id, LATE_UNTIL, format_ticks(until))


async def _copy_and_sweep(run: Run) -> Counters:
    counters = await copy_rows(run)
    # A write of the copy that was not answered may take effect late: before the sweep, or the comparison,
    # relies on the tables. Batches of inserts-if-absent and workers announce nothing in the journal.
    await until_quiet(run)
    if run.is_delta:
        return counters
    since = run.state.get_fact(run.script_id, COPYING_SINCE)
    if since is None:
        raise AssertionError("rows were copied, but not since when")
    counters["rows_moved"] = 0
    with run.progress.task("rows written meanwhile") as advance:
        if run.mapper.content_derived:
            counters["rows_moved"] = await settle_moved(
                run.source,
                run.propagator.propagate_moved,
                since=earlier(since, run.config.gates.margin_s),
                concurrency=run.config.limits.concurrency,
                advance=advance,
                check=run.check,
            )
    # Closes the race "deleted while being copied" before the new view opens.
    return {**counters, "rows_swept": await swept_rows(run)}


async def copy_rows(run: Run) -> Counters:
    """Copy every segment that is not done; without a state file the whole table, by inserts-if-absent."""
    segments = run.state.segments(run.script_id, PURPOSE)
    if not segments:
        run.state.set_fact(run.script_id, COPYING_SINCE, await run.source_time())
        segments = run.state.add_segments(run.script_id, PURPOSE, [EVERYTHING])
    done = sum(segment.rows for segment in segments)

    def checkpoint(moved: list[Segment]) -> None:
        run.still_alone()
        run.state.checkpoint(moved)
        run.keep_count()
        run.checkpointed(**{BUSIEST: json.dumps(busiest())})

    def split(segment: Segment, middle: EntityKey) -> Segment:
        run.still_alone()
        return run.state.split_segment(segment, middle)

    throttle, before = run.copier.throttle, run.state.get_fact(run.script_id, BUSIEST)
    throttle.count_anew()
    taken: dict[str, int] = {} if before is None else json.loads(before)
    largest = largest_partitions(run.state.get_fact(run.script_id, PLAN_FACT))

    def busiest() -> dict[str, int]:
        return taken | {table: taken.get(table, 0) + rows for table, (rows, _) in throttle.busiest().items()}

    def lanes() -> list[Lane]:
        """Return the rows left of the largest partitions, where partitions have a rate."""
        rates, known = throttle.busiest(), busiest()
        return [
            Lane(max(0, largest[table] - known[table]), rate)
            for table, (_, rate) in rates.items()
            if table in largest
        ]

    with run.progress.task("backfill", total=estimated_rows(run), done=done, lanes=lanes) as advance:
        if run.pool is not None:
            figures, whole = await copy_with_workers(run, run.pool, segments, advance)
        else:
            async with run.copier.writer(advance) as writer:
                copied, whole = await copy_segments(
                    run.source,
                    segments,
                    writer.copy,
                    run.window,
                    callbacks=Callbacks(checkpoint, run.stop.requested),
                    options=ReadOptions(run.config.limits.scans, split, throttle=throttle),
                    writer=writer,
                )
            figures = {"rows": copied.rows, "inserted": copied.inserted, "propagated": copied.propagated}
            figures["not_migrated"] = copied.not_migrated
    if not whole:
        run.stop.check()
    rows, inserted, propagated = (figures.pop(name) for name in ("rows", "inserted", "propagated"))
    named = {"source_rows": done + rows, "target_rows_inserted": inserted, "rows_propagated": propagated}
    if not_migrated := figures.pop("not_migrated", 0):
        named["rows_not_migrated"] = not_migrated
    return named | figures


def largest_partitions(plan: str | None) -> dict[str, int]:
    """Return, by table, the rows of the largest partition according to the stored plan (`PLAN_FACT`); tables
    that it does not mention are left out."""
    try:
        [planned] = json.loads(plan or "")["plan"]["migrations"]
        return {
            table["table"]: table["largest_partition"]
            for table in (planned["inventory"], *planned["targets"])
        }
    except (ValueError, KeyError, TypeError):
        return {}


async def swept_rows(run: Run) -> int:
    """Sweep; return for how many keys that changed something. Raises Refused where the source is empty and
    that would delete everything."""
    await require_rows(run, run.source, run.targets[0])
    with run.progress.task("sweep", total=estimated_rows(run)) as advance:
        return await sweep(
            run.propagator, concurrency=run.config.limits.concurrency, advance=advance, check=run.check
        )


def estimated_rows(run: Run) -> int | None:
    """Return the number of source rows as last counted or estimated; None: neither."""
    fact = run.state.get_fact(run.script_id, ESTIMATED_ROWS)
    return int(fact) if fact else None


async def undo(run: Run) -> None:
    """Remove the checkpoints. Target rows stay: the undo of `prepare` removes them."""
    run.state.clear_segments(run.script_id, PURPOSE)
    run.state.set_fact(run.script_id, COPYING_SINCE, None)
    run.state.set_fact(run.script_id, BUSIEST, None)


async def again(run: Run) -> int:
    """Settle the intents whose time is over; return how many."""
    return await settle_again(run, side=SOURCE)
