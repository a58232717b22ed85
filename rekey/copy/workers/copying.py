"""Copying one slice, on a worker, with the pipeline of the backfill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from math import inf

from rekey.copy.map import Copied
from rekey.copy.pipeline import Callbacks, copy_segments
from rekey.copy.scan import ReadOptions, WindowSize, window_of
from rekey.copy.workers.fence import Fence, FencedTable, Superseded, TermOver, seconds_left
from rekey.copy.workers.opened import Opened
from rekey.copy.workers.tasks import Ended, Result, Task
from rekey.copy.write import Copier
from rekey.core.clock import monotonic_seconds
from rekey.model import Row
from rekey.project.config import Limits
from rekey.protocol.propagate import Propagator
from rekey.state.models import Segment
from rekey.tables.allowance import while_allowed
from rekey.tables.base import Table
from rekey.tables.kinds import by_number
from rekey.tables.part import parts_of

_LEAST_WINDOW_ROWS = 100
# At a low rate windows are so small that a slice has at least so many.
_WINDOWS_OF_A_SLICE = 8


async def copy_slice(opened: Opened, task: Task) -> Result:
    """Copy a range from its beginning as far as time allows: at least one window, unless the term ends first.
    Raises RowRefused, Collision, ServiceError, as the pipeline does."""
    began = monotonic_seconds()
    accounts, limits = opened.accounts, opened.config.limits
    left = await seconds_left(accounts.tables, task.until)
    if left <= 0:
        return Result(task.id, Ended.LATE)
    stop_at = began + min(task.seconds, left)
    fence = Fence(accounts, task, began + left)
    within = opened.within(task)
    reached = Segment(1, task.basis.script_id, "slice", after=within.after, upto=within.upto)
    copied, begun = Copied(), False
    store, source, filled = opened.mapping, opened.table(), opened.mapper.migration
    mapping = replace(store, table=FencedTable(store.table, fence), patience_s=inf)

    def targets_of(table: Callable[[str], Table]) -> list[Table]:
        opened = parts_of(filled.key_spaces, table)
        return by_number(filled.tables, filled.beginnings, lambda name: FencedTable(opened(name), fence))

    propagated = targets_of(accounts.tables.multi_writer_table)
    targets = targets_of(accounts.tables.table)
    propagator = Propagator(source, propagated, opened.mapper, mapping)
    copier = Copier(propagator, limits.concurrency, opened.throttle, targets, opened.restricted)

    def last_open() -> tuple[float | None, float | None]:
        return accounts.tables.last_open, accounts.restricted.last_open

    def checkpoint(moved: list[Segment]) -> None:
        nonlocal reached
        # Only rows that this run of the task made durable: so the result is true even for a task that runs
        # twice.
        reached = moved[-1]

    opened_before, still_open = last_open(), True
    try:
        with while_allowed(fence.in_time):
            async with asyncio.timeout(began + left - monotonic_seconds()), copier.writer() as writer:

                async def copy(rows: Sequence[Row]) -> Copied:
                    nonlocal begun
                    begun = True
                    window = await writer.copy(rows)
                    copied.add(window)
                    return window

                _, whole = await copy_segments(
                    source,
                    [reached],
                    copy,
                    window_of_task(limits, task),
                    callbacks=Callbacks(checkpoint, lambda: begun and monotonic_seconds() >= stop_at),
                    options=ReadOptions(throttle=opened.throttle),
                    writer=writer,
                )
        ended = Ended.DONE if whole else Ended.MORE
        still_open = last_open() != opened_before
    # Unfinished windows are given up: `still_open` says that a write may be in flight.
    except (TermOver, TimeoutError):
        ended = Ended.MORE
    except Superseded:
        ended = Ended.SUPERSEDED
    return Result(
        task.id,
        Ended.DONE if reached.done else ended,
        cursor=opened.cursor(reached.cursor),
        rows=reached.rows,
        size=reached.bytes,
        counters=asdict(copied),
        open=still_open,
    )


def window_of_task(limits: Limits, task: Task) -> WindowSize:
    """Return the size of a task's windows: small at a low rate, so that the windows in flight when time is up
    are finished within the term."""
    size, rate = window_of(limits), task.entities_per_second or task.begins
    if not rate:
        return size
    in_time = int(rate * task.seconds) // _WINDOWS_OF_A_SLICE
    return replace(size, rows=min(size.rows, max(_LEAST_WINDOW_ROWS, in_time)))
