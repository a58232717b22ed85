"""Delta passes: bring the targets up to date with what changed in the source since the last pass. A scan by
Timestamp never shows deletes; the sweep does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from rekey.copy.map import Copied
from rekey.copy.pipeline import Callbacks, copy_segments
from rekey.copy.scan import ReadOptions, WindowSize
from rekey.copy.write import Copier
from rekey.core.clock import Clock, later, ticks_of
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, Row
from rekey.state.models import Segment
from rekey.tables.base import Table

# At most four requests for the time a second: they count like any other request.
_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class PassResult:
    """One delta pass: when it began (the next watermark), what it copied, whether it was complete."""

    started_at: str
    copied: Copied
    whole: bool


async def fresh_second(server_time: Callable[[], Awaitable[str]], clock: Clock) -> str:
    """Wait for the next second of the service's clock, which tells whole seconds only; return when it began.

    A row written before the call is older than the time returned, and one written after the return is not.
    The time returned is one second after the first time read, however late the service answers after that.
    """
    now = await server_time()
    next_one = later(now, 1.0)
    while ticks_of(now) < ticks_of(next_one):
        await clock.sleep(_POLL_SECONDS)
        now = await server_time()
    return next_one


async def written_since(table: Table, moment: str) -> AsyncIterator[Row]:
    """Iterate over the rows (key, ETag and Timestamp) written at or after `moment`, exact to 100 ns."""
    async for page in table.scan(modified_from=moment, select=[PARTITION_KEY, ROW_KEY]):
        for row in page.rows:
            # A service may filter more coarsely (Azurite: by the millisecond) and return rows that are a
            # little older.
            if ticks_of(row[TIMESTAMP]) >= ticks_of(moment):
                yield row


async def delta_pass(
    source: Table,
    copier: Copier,
    *,
    server_time: Callable[[], Awaitable[str]],
    clock: Clock,
    since: str,
    size: WindowSize,
    callbacks: Callbacks,
) -> PassResult:
    """Copy rows changed since a time of the service; the caller stores `started_at` if the pass was complete.

    Args:
        since: the watermark, less a margin: a request in flight when the clock was read may carry a slightly
            older Timestamp. A row that is seen twice costs one comparison.
    """
    # Before the first row is read: the next pass must see what is written during this one.
    started_at = await fresh_second(server_time, clock)
    copied, whole = await copy_segments(
        source,
        [Segment(0, "", "delta")],
        copier.copy_changed,
        size,
        callbacks=callbacks,
        options=ReadOptions(modified_from=since),
    )
    return PassResult(started_at, copied, whole)
