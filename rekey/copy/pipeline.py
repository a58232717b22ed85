"""The copy pipeline: streams segments of the source through the copier by windows, and stores checkpoints."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from rekey.copy.map import Copied
from rekey.copy.scan import Reading, ReadOptions, Window, WindowSize
from rekey.copy.write import BatchWriter
from rekey.core.collector import patient_collector
from rekey.core.concurrency import cancel
from rekey.model import Row
from rekey.state.models import Segment
from rekey.tables.base import MAX_PAGE_ROWS, Table

WINDOWS_IN_FLIGHT = 2
# Most windows in flight with a `writer`, counted from the oldest that is not durable: up to so many are
# written again after an interrupted run.
UNRECORDED_WINDOWS = 32


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What a copy calls while it runs."""

    # Stores segments durably; called in order, never ahead of durable rows.
    checkpoint: Callable[[list[Segment]], None] = lambda _segments: None
    # Polled between windows; when true, no further window is begun, and those in flight are finished and
    # checkpointed.
    stop_requested: Callable[[], bool] = lambda: False
    # Called with the number of rows of each durable window; not where the writer reports its rows.
    advance: Callable[[int], None] = lambda _rows: None


_EVERY_ROW = ReadOptions()
_NO_CALLBACKS = Callbacks()


async def copy_segments(
    source: Table,
    segments: Sequence[Segment],
    copy: Callable[[Sequence[Row]], Coroutine[Any, Any, Copied]],
    size: WindowSize,
    *,
    callbacks: Callbacks = _NO_CALLBACKS,
    options: ReadOptions = _EVERY_ROW,
    writer: BatchWriter | None = None,
) -> tuple[Copied, bool]:
    """Copy all rows of the segments into the targets. Memory holds one window being read and a few being
    written.

    Args:
        segments: the key ranges to copy; finished ones are skipped.
        copy: writes the rows of one window; `Copier.copy` or `Copier.copy_changed`.
        size: when a window is full.
        writer: the writer that `copy` uses, if it fills batches across windows: then as many windows are in
            flight as it has room for.

    Returns:
        The figures of what was copied, and whether all rows were (False: stopped on request).
    """
    reading = Reading(source, segments, options, page_rows=min(size.rows, MAX_PAGE_ROWS))
    # Windows being written, oldest first: number of rows, segments to store afterwards, and the task.
    in_flight: deque[tuple[int, list[Segment], asyncio.Task[Copied]]] = deque()
    most = WINDOWS_IN_FLIGHT if writer is None else UNRECORDED_WINDOWS
    total, stopped = Copied(), False

    # Only ever the oldest: a checkpoint must not run ahead of durable rows.
    async def finish_oldest() -> None:
        rows, moved, writing = in_flight[0]
        copied = await writing
        in_flight.popleft()
        callbacks.checkpoint(moved)
        total.add(copied)
        callbacks.advance(rows)

    async def make_room() -> None:
        while in_flight:
            if in_flight[0][2].done() or len(in_flight) >= most:
                await finish_oldest()
            elif writer is not None and not writer.has_room:
                await writer.progress()
            else:
                return

    windows = _ahead(reading.windows(size))
    try:
        with patient_collector():
            async for window in windows:
                if stopped := callbacks.stop_requested():
                    break
                await make_room()
                # From here on only `copy` holds the rows: their memory is freed as they are written.
                rows, moved = len(window.rows), list(window.segments.values())
                in_flight.append((rows, moved, asyncio.create_task(copy(window.rows))))
            if writer is not None:
                writer.drain()  # no further window will fill its batches
            while in_flight:
                await finish_oldest()
    finally:
        await windows.aclose()
        await cancel(writing for _, _, writing in in_flight)
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
