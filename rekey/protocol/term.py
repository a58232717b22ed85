"""The term: until when workers and earlier runners of a migration may write. It is stored in the restricted
table `rekeycontrol`, so that a succeeding runner knows it on another machine and without the state file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from rekey.core import edm
from rekey.core.clock import TICKS_PER_SECOND, Clock, format_ticks, ticks_of
from rekey.errors import ConditionFailed, RowExists, RowMissing, TableMissing, Unavailable
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import PARTITION_KEY, ROW_KEY, TYPE_SUFFIX, EntityKey, Row, etag_of
from rekey.tables.base import TableService

TERM_ROW_KEY = "tasks"
_UNTIL = "Until"
_ATTEMPTS = 10
_POLL_S = 1.0
_LEAST_PAUSE_S = 0.1


class Term:
    """The term of one migration's tasks, in the service's time. Stored before the first task is submitted
    that needs it; also extended by a runner that ends with an unknown outcome, or succeeds one that did not
    end in order."""

    def __init__(self, restricted: TableService, script_id: str) -> None:
        self._table = restricted.table(CONTROL_TABLE)
        self._service = restricted
        self._key = EntityKey(script_id, TERM_ROW_KEY)
        self._known = 0

    async def extend(self, until: str) -> None:
        """Make the term last at least until a moment of the service's time. Raises ServiceError: it could not
        be stored; no task may be submitted."""
        wanted = ticks_of(until)
        if wanted <= self._known:
            return
        row = self._as_row(wanted)
        for _ in range(_ATTEMPTS):
            there = await self._table.get(self._key)
            if there is not None and ticks_of(there[_UNTIL]) >= wanted:
                self._known = ticks_of(there[_UNTIL])
                return
            try:
                if there is None:
                    await self._table.insert(row)
                else:
                    await self._table.replace(row, etag=etag_of(there))
            except (RowExists, RowMissing, ConditionFailed):
                continue
            self._known = wanted
            return
        raise Unavailable(
            "the term of the tasks kept changing while it was extended",
            hint="make sure that no other runner is running, then run the same command again",
        )

    async def left(self, margin_s: float) -> float:
        """Return the seconds until no request sent within the term can arrive any more; 0: none can now."""
        row = await self._row()
        if row is None:
            return 0.0
        now = ticks_of(await self._service.server_time())
        return max(0.0, (ticks_of(row[_UNTIL]) - now) / TICKS_PER_SECOND + margin_s)

    async def wait(self, margin_s: float, clock: Clock, check: Callable[[], None]) -> None:
        """Wait until no request that was sent within the term can arrive any more, then remove the term.

        Args:
            margin_s: for how many seconds a request may be in flight.
            check: called before every pause, of a second at most; raises to stop.
        """
        while (left := await self.left(margin_s)) > 0:
            check()
            # The service tells whole seconds: the rest of one is not asked for in ever smaller steps.
            await clock.sleep(min(_POLL_S, max(_LEAST_PAUSE_S, left)))
        await self.remove()

    async def cut(self) -> None:
        """End the term now: all processes within it have ended; their requests may still be in flight."""
        row = await self._row()
        now = await self._service.server_time()
        if row is None or ticks_of(row[_UNTIL]) <= ticks_of(now):
            return
        self._known = 0
        with suppress(RowMissing, ConditionFailed):  # extended or removed meanwhile: another runner's now
            await self._table.replace(self._as_row(ticks_of(now)), etag=etag_of(row))

    async def remove(self) -> None:
        """Remove the term: every task has ended, and none has a request in flight."""
        self._known = 0
        row = await self._row()
        if row is not None:
            with suppress(RowMissing, ConditionFailed):  # extended or removed meanwhile: another runner's now
                await self._table.delete(self._key, etag=etag_of(row))

    def _as_row(self, until: int) -> Row:
        return {
            PARTITION_KEY: self._key.partition,
            ROW_KEY: self._key.row,
            _UNTIL: format_ticks(until),
            _UNTIL + TYPE_SUFFIX: edm.DATETIME,
        }

    async def _row(self) -> Row | None:
        try:
            return await self._table.get(self._key)
        except TableMissing:
            return None
