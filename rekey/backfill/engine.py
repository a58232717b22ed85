"""The scan engine: streams segments of the source through the copier, window by window.

Rules kept here:

* A checkpoint never runs ahead of applied work: a window's cursors are stored after all its rows are durable
  and after those of every window before it.
* Bounded memory: one window being read, two being written; a window ends at a number of rows or bytes.
* A stop request (signal) is honoured between windows: what is under way is finished and checkpointed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rekey.backfill.copier import Copied
from rekey.collector import patient_collector
from rekey.concurrency import cancel
from rekey.model import Row
from rekey.state.models import Segment
from rekey.tables.base import MAX_PAGE_ROWS, Table

WINDOWS_UNDER_WAY = 2


@dataclass(frozen=True, slots=True)
class WindowSize:
    """When a window is full: at `rows` rows or about `bytes` bytes of wire JSON, whichever comes first."""

    rows: int
    bytes: int


@dataclass(slots=True)
class Window:
    """Rows read and, for every segment they came from, how far it will be done once they are durable."""

    rows: list[Row] = field(default_factory=list)
    bytes: int = 0
    segments: dict[int, Segment] = field(default_factory=dict)


def row_bytes(row: Row) -> int:
    """Return roughly how many bytes a row has on the wire (cheap: names and text lengths)."""
    return sum(len(name) + (len(value) if isinstance(value, str) else 8) + 6 for name, value in row.items())


async def read_windows(
    source: Table, segments: Sequence[Segment], size: WindowSize, *, modified_from: str | None = None
) -> AsyncIterator[Window]:
    """Scan what is left of the segments, in order, and yield full windows; the last one may be small."""
    window = Window()
    for segment in segments:
        now = segment
        pages = source.scan(
            segment.rest, modified_from=modified_from, page_rows=min(size.rows, MAX_PAGE_ROWS)
        )
        async for page in pages:
            page_bytes = page.bytes or sum(map(row_bytes, page.rows))
            now = replace(
                now,
                cursor=page.cursor or now.cursor,
                rows=now.rows + len(page.rows),
                bytes=now.bytes + page_bytes,
            )
            window.rows.extend(page.rows)
            window.bytes += page_bytes
            window.segments[segment.id] = now
            if len(window.rows) >= size.rows or window.bytes >= size.bytes:
                yield window
                window = Window()
        window.segments[segment.id] = replace(now, done=True)
    if window.rows or window.segments:
        yield window


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
) -> tuple[Copied, bool]:
    """Copy all rows of the segments into the targets.

    Args:
        source: the table to scan.
        segments: what is to be done; finished ones are skipped.
        copy: writes the rows of one window; `Copier.copy` or `Copier.copy_changed`.
        size: when a window is full.
        checkpoint: stores segments durably; called in order, never ahead of applied work.
        stop_requested: asked between windows; when true, nothing new is begun.
        advance: told the rows of every window that is durable.
        modified_from: only rows whose Timestamp is at or after this (a delta pass).

    Returns:
        What was copied, and whether all of it was (False: stopped on request).
    """
    total = Copied()
    under_way: deque[tuple[Window, asyncio.Task[Copied]]] = deque()
    open_segments = [segment for segment in segments if not segment.done]

    async def finish_oldest() -> None:
        window, task = under_way[0]
        copied = await task
        under_way.popleft()
        checkpoint(list(window.segments.values()))
        total.add(copied)
        advance(len(window.rows))

    stopped = False
    windows = _ahead(read_windows(source, open_segments, size, modified_from=modified_from))
    try:
        with patient_collector():
            async for window in windows:
                if stopped := stop_requested():
                    break
                if len(under_way) == WINDOWS_UNDER_WAY:
                    await finish_oldest()
                under_way.append((window, asyncio.create_task(copy(window.rows))))
            while under_way:
                await finish_oldest()
    finally:
        await windows.aclose()
        await cancel(task for _, task in under_way)
    return total, not stopped


async def _ahead(windows: AsyncIterator[Window]) -> AsyncGenerator[Window, None]:
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
