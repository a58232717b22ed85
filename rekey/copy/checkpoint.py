"""The copy pipeline: streams segments of the source through the copier by windows, and stores checkpoints."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from rekey.copy.map import Copied
from rekey.copy.scan import Reading, Split, Window, WindowSize
from rekey.copy.throttle import Throttle
from rekey.copy.write import BatchWriter
from rekey.core.collector import patient_collector
from rekey.core.concurrency import cancel
from rekey.model import Row
from rekey.state.models import Segment
from rekey.tables.base import MAX_PAGE_ROWS, Table

WINDOWS_UNDER_WAY = 2
# Most windows in flight with a `writer`, counted from the oldest that is not durable: up to so many are
# written again after an interrupted run.
UNRECORDED_WINDOWS = 32


async def copy_segments(
    source: Table,
    segments: Sequence[Segment],
    copy: Callable[[Sequence[Row]], Coroutine[Any, Any, Copied]],
    *,
    size: WindowSize,
    checkpoint: Callable[[list[Segment]], None],
    stop_requested: Callable[[], bool],
    advance: Callable[[int], None],
    modified_from: str | None = None,
    readers: int = 1,
    split: Split | None = None,
    writer: BatchWriter | None = None,
    throttle: Throttle | None = None,
) -> tuple[Copied, bool]:
    """Copy all rows of the segments into the targets. Memory holds one window being read and a few being
    written.

    Args:
        segments: the key ranges to copy; finished ones are skipped.
        copy: writes the rows of one window; `Copier.copy` or `Copier.copy_changed`.
        size: when a window is full.
        checkpoint: stores segments durably; called in order, never ahead of durable rows.
        stop_requested: polled between windows; when true, no further window is begun, and those in flight are
            finished and checkpointed.
        advance: called with the number of rows of each durable window; not where `writer` reports its rows.
        modified_from: only rows whose Timestamp is at or after this (a delta pass).
        readers: segments read at a time.
        split: stores a split of a segment; None: segments are read as they are.
        writer: the writer that `copy` uses, if it fills batches across windows: then as many windows are in
            flight as it has room for.
        throttle: limits the rate of reading.

    Returns:
        The figures of what was copied, and whether all rows were (False: stopped on request).
    """
    reading = Reading(
        source,
        segments,
        readers=readers,
        split=split,
        page_rows=min(size.rows, MAX_PAGE_ROWS),
        modified_from=modified_from,
        throttle=throttle,
    )
    # Windows being written, oldest first: number of rows, segments to store afterwards, and the task.
    under_way: deque[tuple[int, list[Segment], asyncio.Task[Copied]]] = deque()
    most = WINDOWS_UNDER_WAY if writer is None else UNRECORDED_WINDOWS
    total, stopped = Copied(), False

    # Only ever the oldest: a checkpoint must not run ahead of durable rows.
    async def finish_oldest() -> None:
        rows, moved, writing = under_way[0]
        copied = await writing
        under_way.popleft()
        checkpoint(moved)
        total.add(copied)
        advance(rows)

    async def make_room() -> None:
        while under_way:
            if under_way[0][2].done() or len(under_way) >= most:
                await finish_oldest()
            elif writer is not None and not writer.has_room:
                await writer.progress()
            else:
                return

    windows = _ahead(reading.windows(size))
    try:
        with patient_collector():
            async for window in windows:
                if stopped := stop_requested():
                    break
                await make_room()
                # From here on only `copy` holds the rows: their memory is freed as they are written.
                rows, moved = len(window.rows), list(window.segments.values())
                under_way.append((rows, moved, asyncio.create_task(copy(window.rows))))
            if writer is not None:
                writer.drain()  # no further window will fill its batches
            while under_way:
                await finish_oldest()
    finally:
        await windows.aclose()
        await cancel(writing for _, _, writing in under_way)
    return total, not stopped


async def _ahead(windows: AsyncGenerator[Window, None]) -> AsyncGenerator[Window, None]:
    """Read one window ahead of the consumer, so that reading and writing overlap."""

    async def read() -> Window | None:
        return await anext(windows, None)

    upcoming = asyncio.create_task(read())
    try:
        while (window := await upcoming) is not None:
            upcoming = asyncio.create_task(read())
            yield window
    finally:
        await cancel([upcoming])
        await windows.aclose()
