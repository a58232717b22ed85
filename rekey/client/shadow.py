"""Shadow reads: a share of the application's reads is repeated on the other side and compared. The caller
never waits for a comparison; results are counted, and confirmed mismatches logged by safe id."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rekey.client.lease import Permit
from rekey.client.parts import ClientParts
from rekey.core.concurrency import cancel
from rekey.core.joint import spoken
from rekey.errors import RekeyError, RowRefused
from rekey.mapping.rows import targets_of
from rekey.model import ETAG, PARTITION_KEY, ROW_KEY, EntityKey, Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.propagate import version_of
from rekey.protocol.replicas import same_content
from rekey.protocol.rules import SOURCE, TARGET, Side, View, authority

MAX_QUEUED = 64
MAX_ROWS_OF_A_PAGE = 4
WORKERS = 2

_log = logging.getLogger(__name__)
_FOLLOWED = (ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the application read under a key of its view: a row, or None; some properties if not `whole`."""

    key: EntityKey
    row: Row | None
    whole: bool


@dataclass(frozen=True, slots=True)
class _Pair:
    """One row in the source and in the main target. A key is None while it is unknown."""

    keys: Mapping[Side, EntityKey | None]
    rows: Mapping[Side, Row | None]


class Shadow:
    """The shadow reads of one client."""

    def __init__(self, client: ClientParts, share: float, seed: int | None = None) -> None:
        """Create the shadow reads. `share`: of the client's reads, 0 to 1; `seed`: of the sampling."""
        self.client = client
        self.share = share
        self._tables = {SOURCE: client.propagator.source, TARGET: client.propagator.targets[0]}
        self._mapper = client.propagator.mapper
        self._draw = random.Random(seed)  # noqa: S311 - a sample, no secret
        self._queue: asyncio.Queue[_Seen] = asyncio.Queue(MAX_QUEUED)
        self._workers: list[asyncio.Task[None]] = []

    def drawn(self) -> bool:
        return self._draw.random() < self.share

    def offer(self, key: EntityKey, row: Row | None, *, whole: bool = True) -> None:
        """Queue a comparison of the row (None for none) that was read under a key of the client's view.
        Unless all properties were read (`whole`), it is read again. Ignored when the queue is full."""
        is_secondary = self.client.view is View.NEW and self._mapper.number_by_row_key(key.row) > 0
        if is_secondary or self.client.is_outside(key) or self._comparable() is None:
            return
        try:
            self._queue.put_nowait(_Seen(key, row, whole))
        except asyncio.QueueFull:
            self.client.counters.ignored += 1
            return
        if not self._workers:
            self._workers = [asyncio.create_task(self._work(), name="shadow reads") for _ in range(WORKERS)]

    def offer_page(self, rows: Sequence[Row], *, whole: bool = True) -> None:
        """Queue comparisons of a few rows of a page. Rows without their keys or ETags are left out."""
        named = [row for row in rows if {PARTITION_KEY, ROW_KEY, ETAG} <= row.keys()]
        for row in self._draw.sample(named, min(len(named), MAX_ROWS_OF_A_PAGE)):
            self.offer(key_of(row), row, whole=whole)

    async def idle(self) -> None:
        await self._queue.join()

    async def close(self) -> None:
        """End the comparisons; those still queued count as ignored."""
        await cancel(self._workers)
        self._workers = []
        while not self._queue.empty():
            self._queue.get_nowait()
            self._queue.task_done()
            self.client.counters.ignored += 1

    # --- comparing ----------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            seen = await self._queue.get()
            try:
                await self._compare(seen)
            except RekeyError as error:
                # the other side could not be read, or the mapping refuses the row: no comparison
                _log.debug("shadow read: %s", type(error).__name__, extra={"event": "shadow-read-failed"})
                self.client.counters.ignored += 1
            finally:
                self._queue.task_done()

    async def _compare(self, seen: _Seen) -> None:
        permit = self._comparable()
        decides = None if permit is None else authority(permit.phase)
        if permit is None or decides is None:
            self.client.counters.ignored += 1
            return
        if not seen.whole:
            seen = _Seen(seen.key, await self.client.table.get(seen.key), whole=True)
        first = await self._other_side(seen)
        if self._agrees(first, decides):
            self.client.counters.matched += 1
            return
        # A first difference proves nothing: a write of the row may be in flight. An intent stays until the
        # replica is current. So the journal is read first, then the replica again, then the authority: a pair
        # that still differs, without an intent and with an unchanged authority, is a mismatch.
        if await self._is_being_written(first):
            self.client.counters.ignored += 1
            return
        second = await self._again(first, decides)
        versions = {version_of(pair.rows[decides]) for pair in (first, second)}
        if len(versions) > 1 or self._comparable() != permit or self._agrees(second, decides):
            self.client.counters.ignored += 1
            return
        self.client.counters.mismatched += 1
        propagator, source_key = self.client.propagator, first.keys[SOURCE]
        if source_key is not None:
            row_id = propagator.row_id(source_key)
        else:
            row_id = propagator.target_id(first.keys[TARGET] or EntityKey("", ""))
        _log.warning(
            "shadow read: row %s differs between %s and %s",
            row_id,
            *(spoken(table.name) for table in self._tables.values()),
            extra={"event": "shadow-read-differs"},
        )

    def _comparable(self) -> Permit | None:
        """Return the permit while one side follows the other completely, otherwise None."""
        permit = self.client.current()
        if permit is None or not permit.copied:
            return None
        if permit.phase not in _FOLLOWED and not permit.maintained:
            return None
        if permit.phase is ControlPhase.CUTOVER and not self._mapper.reversible:
            return None
        return permit

    async def _other_side(self, seen: _Seen) -> _Pair:
        side = self.client.view.side
        if side == SOURCE:
            other, key = TARGET, await self._main_key(seen)
        else:
            other, key = SOURCE, await self.client.propagator.owner_of(seen.key)
            if key is None and seen.row is not None:
                key = self._mapper.source_key(seen.row)
        row = None if key is None else await self._tables[other].get(key)
        return _Pair({side: seen.key, other: key}, {side: seen.row, other: row})

    async def _main_key(self, seen: _Seen) -> EntityKey | None:
        """Return the main target key of a source row; without that row, the key of a target row left over."""
        if seen.row is not None and not self._mapper.is_dropped(seen.row):
            return key_of(self._mapper.map(seen.row)[0].row)
        forward = await self.client.propagator.mapping.forward(seen.key)
        for target in sorted(targets_of(forward)):
            if (
                target.table == 0
                and await self._tables[TARGET].get(target.key) is not None
                and await self.client.propagator.is_owner(seen.key, target.key)
            ):
                return target.key
        return None

    def _agrees(self, pair: _Pair, decides: Side) -> bool:
        """Tell whether the source row, mapped, is the target row. Raises RowRefused in the old view."""
        source, target = pair.rows[SOURCE], pair.rows[TARGET]
        if source is None or self._mapper.is_dropped(source):
            return target is None
        try:
            mapped = self._mapper.map(source)[0].row
        except RowRefused:
            if self.client.view is View.OLD:
                raise
            return False
        if key_of(mapped) != pair.keys[TARGET]:
            return target is None
        if target is None:
            return False
        # With the target as authority, writing back gives the source row another Timestamp.
        timed = self._mapper.timestamp_copies[0] if decides == TARGET else frozenset[str]()
        return same_content(mapped, target, timed)

    async def _is_being_written(self, pair: _Pair) -> bool:
        async for intents in self.client.journal.scan():
            if any(pair.keys[intent.side] == intent.key for intent in intents):
                return True
        return False

    async def _again(self, pair: _Pair, decides: Side) -> _Pair:
        """Read both rows once more: the replica first, then the authority."""
        rows: dict[Side, Row | None] = {}
        for side in (TARGET, SOURCE) if decides == SOURCE else (SOURCE, TARGET):
            key = pair.keys[side]
            rows[side] = None if key is None else await self._tables[side].get(key)
        return _Pair(pair.keys, rows)
