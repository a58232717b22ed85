"""The scan engine: streams segments of the source through the copier, window by window.

Rules kept here:

* A checkpoint never runs ahead of applied work: a window's cursors are stored after all its rows are durable
  and after those of every window before it.
* Bounded memory: one window being read, a few being written; a window ends at a number of rows or bytes. One
  that cannot be written yet does not hold up the others, nor do those that are written take up memory.
* A stop request (signal) is honoured between windows: what is under way is finished and checkpointed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
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
UNRECORDED_WINDOWS = 32
"""Windows that may be written behind one that is not: so much is written again when the run is cut off."""


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
    """Copy all rows of the segments into the targets.

    Args:
        source: the table to scan.
        segments: what is to be done; finished ones are skipped.
        copy: writes the rows of one window; `Copier.copy` or `Copier.copy_changed`.
        size: when a window is full.
        checkpoint: stores segments durably; called in order, never ahead of applied work.
        stop_requested: asked between windows; then nothing new is begun.
        advance: told the rows of durable windows.
        modified_from: only rows whose Timestamp is at or after this (a delta pass).
        readers: segments read at a time.
        split: stores a split of a segment; None: segments are read as they are.
        writer: what `copy` writes through, if it fills batches across windows: it has room for more of them.
        throttle: what is read is counted with.

    Returns:
        What was copied, and whether all of it was (False: stopped on request).
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
    writing = _Writing(checkpoint, advance, writer)
    stopped = False
    windows = _ahead(reading.windows(size))
    try:
        with patient_collector():
            async for window in windows:
                if stopped := stop_requested():
                    break
                await writing.begin(window, copy)
            await writing.finish_all()
    finally:
        await windows.aclose()
        await writing.cancel()
    return writing.total, not stopped


class _Writing:
    """Windows that are being written, oldest first."""

    def __init__(
        self,
        checkpoint: Callable[[list[Segment]], None],
        advance: Callable[[int], None],
        writer: BatchWriter | None,
    ) -> None:
        self.total = Copied()
        self.windows: deque[tuple[_Written, asyncio.Task[Copied]]] = deque()
        self._checkpoint, self._advance, self._writer = checkpoint, advance, writer
        self._most = WINDOWS_UNDER_WAY if writer is None else UNRECORDED_WINDOWS

    async def begin(
        self, window: Window, copy: Callable[[Sequence[Row]], Coroutine[Any, Any, Copied]]
    ) -> None:
        """Let a window be written beside others, as soon as there is room.

        Its rows belong to `copy` from here on: they go as they are written.
        """
        while self.windows and (self.windows[0][1].done() or not self._has_room):
            if self._writer is None or self.windows[0][1].done() or len(self.windows) >= self._most:
                await self.finish_oldest()
            else:
                await self._writer.progress()
        written = _Written(len(window.rows), list(window.segments.values()))
        self.windows.append((written, asyncio.create_task(copy(window.rows))))

    @property
    def _has_room(self) -> bool:
        gathered = self._writer is None or self._writer.has_room
        return gathered and len(self.windows) < self._most

    async def finish_all(self) -> None:
        """Finish all, oldest first: no window follows any more."""
        if self._writer is not None:
            self._writer.drain()
        while self.windows:
            await self.finish_oldest()

    async def cancel(self) -> None:
        """Give up what is not finished."""
        await cancel(task for _, task in self.windows)

    async def finish_oldest(self) -> None:
        """Wait until the oldest window is durable, and checkpoint it."""
        window, task = self.windows[0]
        copied = await task
        self.windows.popleft()
        self._checkpoint(window.segments)
        self.total.add(copied)
        self._advance(window.rows)


@dataclass(frozen=True, slots=True)
class _Written:
    """What is known of a window that is being written: its number of rows, and its segments afterwards."""

    rows: int
    segments: list[Segment]


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
