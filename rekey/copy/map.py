"""Copying source rows: what they map to, and which writes that asks for.

Rules kept here (scan → map → pack → write; packing and writing are `rekey.copy.write`'s):

* Two rows that want one target key are written by neither: propagate(k) reads both sides afresh and names
  collisions.
* A pass over rows of which many are there already writes what is absent or differs, and only that.
* While a window is mapped others have their turn after every `TURN_ROWS` rows: a batch that may go must not
  wait for it, because an allowance that is not used in time is lost.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rekey.copy.batch_buffer import Write
from rekey.copy.throttle import Throttle
from rekey.copy.window import TURN_ROWS, Copied, CopyWindow
from rekey.copy.write import Gathering
from rekey.core.concurrency import for_each
from rekey.errors import RowRefused
from rekey.mapping.rows import MappingRows, target_key
from rekey.model import EntityKey, Row, key_of
from rekey.protocol.propagate import Propagator
from rekey.protocol.replicas import same_content
from rekey.tables.base import Table, Verb
from rekey.tables.bulk import read_keys


class Copier:
    """Copies windows of source rows of one migration."""

    def __init__(
        self,
        propagator: Propagator,
        concurrency: int,
        throttle: Throttle | None = None,
        *,
        targets: Sequence[Table] | None = None,
    ) -> None:
        """Take what the copier works with.

        Args:
            propagator: knows the tables and the mapping.
            concurrency: how many requests may be under way at once.
            throttle: keeps reads and writes under rates.
            targets: the target tables by handles that repeat an open write, for batches of inserts-if-absent:
                whoever copies waits until none of those can take effect any more. Else the propagator's.
        """
        self.propagator = propagator
        self.targets = tuple(targets or propagator.targets)
        self.rows: MappingRows = propagator.mapping.rows
        self.concurrency = concurrency
        self.throttle = throttle or Throttle(None)

    async def copy(self, source_rows: Sequence[Row]) -> Copied:
        """Copy rows as they were scanned; returns when all of it is durable.

        Raises:
            RowRefused: the mapping cannot key a row; names it by safe id. Rows of other windows are kept.
            Collision: two source rows map to one target key.
        """
        async with self.gathering() as gathering:
            gathering.drain()
            return await gathering.copy(source_rows)

    def gathering(self) -> Gathering:
        """Return what copies many windows, filling batches across them. Use it as a context manager."""
        return Gathering(self)

    async def copy_changed(self, source_rows: Sequence[Row]) -> Copied:
        """Copy rows of which many are there already: what stands in the targets as it should is passed over.

        Only where keys depend on nothing but the old keys: there a row's target keys never change, so a
        target row that is equal leaves nothing else to look at.
        """
        if self.propagator.mapper.content_derived:
            return await self.copy(source_rows)
        rest = await self._not_there(source_rows)
        copied = await self.copy(rest)
        copied.rows = len(source_rows)
        return copied

    async def _not_there(self, source_rows: Sequence[Row]) -> list[Row]:
        """Return the source rows of which some target row is absent or differs."""
        window = CopyWindow()
        await self.map_window(source_rows, window)
        differing: set[EntityKey] = set()
        for number, table in enumerate(self.propagator.targets):
            wanted: defaultdict[str, dict[EntityKey, tuple[EntityKey, Row]]] = defaultdict(dict)
            for source_key, targets in window.expected.items():
                for target, row in targets.items():
                    if target.table == number:
                        wanted[target.partition][target.key] = (source_key, row)

            async def compare(rows: dict[EntityKey, tuple[EntityKey, Row]], table: Table = table) -> None:
                found = await read_keys(table, list(rows))
                for key, (source_key, row) in rows.items():
                    if key not in found or not same_content(row, found[key]):
                        differing.add(source_key)

            await for_each(wanted.values(), compare, limit=self.concurrency)
        # Two source rows that want one target key: not to be judged here.
        differing |= window.unsettled
        return [row for row in source_rows if key_of(row) in differing]

    async def map_window(self, source_rows: Sequence[Row], window: CopyWindow) -> None:
        """Add what rows map to to a window. Raises RowRefused, which names a row by its safe id."""
        for first in range(0, len(source_rows), TURN_ROWS):
            if first:
                await asyncio.sleep(0)
            self._map(source_rows[first : first + TURN_ROWS], window)

    def _map(self, source_rows: Iterable[Row], window: CopyWindow) -> None:
        map_row, expected, claim = self.propagator.mapper.map, window.expected, window.claimed.setdefault
        for source_row in source_rows:
            source_key = key_of(source_row)
            try:
                mapped = map_row(source_row)
            except RowRefused as refused:
                raise refused.for_row(self.propagator.row_id(source_key)) from None
            expected[source_key] = targets = {}
            for table, row in mapped:
                target = target_key(table, row)
                targets[target] = row
                claimant = claim(target, source_key)
                if claimant != source_key:
                    # Two rows of one window want one key. One may be gone by now: propagate looks.
                    window.unsettled.update((source_key, claimant))

    def mapping_writes(self, window: CopyWindow) -> Iterator[Write]:
        """Yield the mapping rows of a window."""
        for source_key, targets in window.expected.items():
            if source_key in window.unsettled:
                continue
            yield Write(
                Verb.INSERT, self.rows.forward_row(source_key, targets), source=source_key, window=window
            )
            for target in targets:
                if target.table == 0:
                    row = self.rows.reverse_row(source_key, target.key)
                    yield Write(Verb.INSERT, row, source=source_key, window=window)

    def target_writes(self, window: CopyWindow, table: int) -> Iterator[Write]:
        """Yield the rows of a window for one target table."""
        insert, unsettled = Verb.INSERT, window.unsettled
        for source_key, targets in window.expected.items():
            if unsettled and source_key in unsettled:
                continue
            for target, row in targets.items():
                if target.table == table:
                    yield Write(insert, row, source=source_key, window=window)
