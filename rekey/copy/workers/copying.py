"""Copying one slice, on a worker, with the engine of the backfill.

Rules kept here:

* Inserts-if-absent only, mapping rows before target rows, as in one process: it is the same code.
* The cursor of the result is behind rows that are durable in this very run of the task. So a task that runs
  twice, or after somebody gave it up, says nothing that is not so.
* When time is up nothing new is read; what is under way is finished. At the end of the term whatever is not
  finished is given up, and the result says that a write may still be under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rekey.copy.checkpoint import copy_segments
from rekey.copy.map import Copied
from rekey.copy.scan import WindowSize
from rekey.copy.workers.fence import Fence, FencedTable, Superseded, TermOver, seconds_left
from rekey.copy.workers.opened import Opened
from rekey.copy.workers.tasks import Ended, Result, Task
from rekey.copy.write import Copier
from rekey.core.clock import rising_seconds
from rekey.mapping.store import MappingStore
from rekey.model import Row
from rekey.project.bounds import Limits
from rekey.protocol.propagate import Propagator
from rekey.state.models import Segment
from rekey.tables.allowance import while_allowed

_LEAST_WINDOW_ROWS = 100
_WINDOWS_OF_A_SLICE = 8
"""At least, at a low rate."""


async def copy_slice(opened: Opened, task: Task) -> Result:
    """Copy a range from its beginning, as far as time allows.

    Raises:
        RowRefused, Collision, ServiceError: as the engine does.
    """
    began = rising_seconds()
    left = await seconds_left(opened.accounts.tables, task.until)
    if left <= 0:
        return Result(task.id, Ended.LATE)
    fence = Fence(opened.accounts, task, began + left)
    slice_ = _Slice(opened, task, fence, began + min(task.seconds, left))
    last_open = _last_open(opened)
    try:
        with while_allowed(fence.in_time):
            async with asyncio.timeout(began + left - rising_seconds()):
                whole = await slice_.copy()
    except (TermOver, TimeoutError):
        return slice_.result(Ended.MORE, still_open=True)
    except Superseded:
        return slice_.result(Ended.SUPERSEDED, still_open=True)
    still_open = _last_open(opened) != last_open
    return slice_.result(Ended.DONE if whole else Ended.MORE, still_open=still_open)


def _last_open(opened: Opened) -> tuple[float | None, float | None]:
    return opened.accounts.tables.last_open, opened.accounts.restricted.last_open


class _Slice:
    """One run of a task."""

    def __init__(self, opened: Opened, task: Task, fence: Fence, stop_at: float) -> None:
        within = opened.within(task)
        self._opened, self._task, self._stop_at = opened, task, stop_at
        self._reached = Segment(1, task.basis.script_id, "slice", after=within.after, upto=within.upto)
        self._copied = Copied()
        store = opened.mapping
        mapping = MappingStore(FencedTable(store.table, fence), store.rows, store.keyring)
        tables, names = opened.accounts.tables, opened.mapper.tables
        shared = [FencedTable(tables.shared(name), fence) for name in names]
        propagator = Propagator(opened.source, shared, opened.mapper, mapping)
        targets = [FencedTable(tables.table(name), fence) for name in names]
        limit = opened.config.limits.concurrency
        self._copier = Copier(propagator, limit, opened.throttle, targets=targets)

    async def copy(self) -> bool:
        """Copy one window at least, and more while there is time; return whether the range is done."""
        opened = self._opened

        def checkpoint(moved: list[Segment]) -> None:
            self._reached = moved[-1]

        async with self._copier.writer() as writer:
            begun = False

            async def copy(rows: Sequence[Row]) -> Copied:
                nonlocal begun
                begun = True
                copied = await writer.copy(rows)
                self._copied.add(copied)
                return copied

            _, whole = await copy_segments(
                opened.source,
                [self._reached],
                copy,
                size=window_of(opened.config.limits, self._task),
                checkpoint=checkpoint,
                stop_requested=lambda: begun and rising_seconds() >= self._stop_at,
                advance=lambda _rows: None,
                writer=writer,
                throttle=opened.throttle,
            )
        return whole

    def result(self, ended: Ended, *, still_open: bool) -> Result:
        """Return what was done."""
        copied = self._copied
        return Result(
            self._task.id,
            Ended.DONE if self._reached.done else ended,
            cursor=self._opened.cursor(self._reached.cursor),
            rows=self._reached.rows,
            size=self._reached.bytes,
            counters={
                "inserted": copied.inserted,
                "propagated": copied.propagated,
                "changed": copied.changed,
                "requests": copied.requests,
            },
            open=still_open,
        )


def window_of(limits: Limits, task: Task) -> WindowSize:
    """Return when a window of a task is full: a task at a low rate has small ones, so that what is under way
    when its time is up is finished within its term."""
    rows, rate = max(1, limits.window_rows // 2), task.entities_per_second
    if rate:
        rows = min(rows, max(_LEAST_WINDOW_ROWS, int(rate * task.seconds) // _WINDOWS_OF_A_SLICE))
    return WindowSize(rows, max(1, limits.window_bytes // 2))
