"""Shadow reads: a share of the application's reads is done on the other side too, and compared.

Rules kept here:

* The caller waits for nothing and is told nothing. What is found is counted (matched, mismatched, ignored); a
  mismatch is logged by safe id, once the second look has found it too.
* Compared is what the mapping makes of the source row with the main target row, whichever of the two the
  application read and whichever is the authority. Once the target is the authority, copies of the source's
  Timestamp are left out: writing back gives the source another one.
* A first look that disagrees proves nothing: the row may just be written. So the journal is asked, and *then*
  the replica is read again, and then the authority. With an intent for the key, or an authority that changed
  since the first look, or another phase, nothing can be said: ignored. An intent stays until the replica is
  current: a pair that still disagrees, without intent before and without change of the authority, mismatches.
* The queue is bounded: what does not fit is ignored. Of one page only a few rows are taken.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

from rekey.client.lease import Permit
from rekey.client.work import ClientParts
from rekey.core.concurrency import cancel
from rekey.errors import RekeyError, RowRefused
from rekey.model import ETAG, PARTITION_KEY, ROW_KEY, EntityKey, Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.replicas import same_content
from rekey.protocol.rules import SOURCE, TARGET, Side, View, authority

MAX_QUEUED = 64
MAX_ROWS_OF_A_PAGE = 4
WORKERS = 2

_log = logging.getLogger(__name__)
_FOLLOWED = (ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the application saw under a key of its view: a row, None for none; part of one if not `whole`."""

    key: EntityKey
    row: Row | None
    whole: bool


@dataclass(frozen=True, slots=True)
class _Pair:
    """One row in the source and in the main target. A key is None while it is unknown."""

    source_key: EntityKey | None
    target_key: EntityKey | None
    source: Row | None
    target: Row | None

    def etag(self, side: Side) -> str | None:
        """Return the ETag of one side, None when there is no row."""
        row = self.source if side == SOURCE else self.target
        return None if row is None else row[ETAG]


class Shadow:
    """Compares reads of one client with the other side."""

    def __init__(self, client: ClientParts, share: float, seed: int | None = None) -> None:
        """Take what the client works with, the share of its reads to compare, and the seed of the draw."""
        self.client = client
        self.share = share
        self._main = client.propagator.targets[0]
        self._mapper = client.propagator.mapper
        self._draw = random.Random(seed)  # noqa: S311 - a sample, no secret
        self._queue: asyncio.Queue[_Seen] = asyncio.Queue(MAX_QUEUED)
        self._workers: list[asyncio.Task[None]] = []

    def drawn(self) -> bool:
        """Draw whether a read is also done on the other side."""
        return self._draw.random() < self.share

    def offer(self, key: EntityKey, row: Row | None, *, whole: bool = True) -> None:
        """Compare what was read under a key some time.

        Args:
            key: in the client's view.
            row: as read; None when there was none.
            whole: whether all properties were read; otherwise the row is read once more.
        """
        if self._comparable() is None:
            return
        try:
            self._queue.put_nowait(_Seen(key, row, whole))
        except asyncio.QueueFull:
            self.client.counters.ignored += 1
            return
        if not self._workers:
            self._workers = [asyncio.create_task(self._work(), name="shadow reads") for _ in range(WORKERS)]

    def offer_page(self, rows: Sequence[Row], *, whole: bool = True) -> None:
        """Compare a few rows of a page some time. Rows without their keys or ETags cannot be."""
        named = [row for row in rows if {PARTITION_KEY, ROW_KEY, ETAG} <= row.keys()]
        for row in self._draw.sample(named, min(len(named), MAX_ROWS_OF_A_PAGE)):
            self.offer(key_of(row), row, whole=whole)

    async def idle(self) -> None:
        """Wait until all that was offered is compared."""
        await self._queue.join()

    async def close(self) -> None:
        """Give up what is not compared yet."""
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
                # the other side could not be read, or the mapping refuses the row: nothing is known of it
                _log.debug("shadow read: %s", type(error).__name__)
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
        if await self._is_being_written(first):
            self.client.counters.ignored += 1
            return
        second = await self._again(first, decides)
        changed = second.etag(decides) != first.etag(decides) or self._comparable() != permit
        if changed or self._agrees(second, decides):
            self.client.counters.ignored += 1
            return
        self.client.counters.mismatched += 1
        if first.source_key is not None:
            row_id = self.client.propagator.row_id(first.source_key)
        else:
            ids = self.client.propagator.mapping.rows.ids
            row_id = ids.short(self._main.name, first.target_key or EntityKey("", ""))
        tables = self.client.propagator.source.name, self._main.name
        _log.warning("shadow read: row %s differs between %s and %s", row_id, *tables)

    def _comparable(self) -> Permit | None:
        """Return the permit while one side follows the other completely."""
        permit = self.client.permits.current()
        if permit is None or permit.phase not in _FOLLOWED or not permit.copied:
            return None
        if permit.phase is ControlPhase.CUTOVER and not self._mapper.reversible:
            return None
        return permit

    async def _other_side(self, seen: _Seen) -> _Pair:
        mapping = self.client.propagator.mapping
        if self.client.view is View.OLD:
            target_key = await self._main_key(seen)
            target = None if target_key is None else await self._main.get(target_key)
            return _Pair(seen.key, target_key, seen.row, target)
        owner = await mapping.owner(seen.key)
        if owner is None and seen.row is not None:
            source_key = self._mapper.source_key(seen.row)
        elif owner is None:
            return _Pair(None, seen.key, None, None)
        else:
            source_key = owner.source
        return _Pair(source_key, seen.key, await self.client.propagator.source.get(source_key), seen.row)

    async def _main_key(self, seen: _Seen) -> EntityKey | None:
        """Return the main target key of a source key: its row's, or without one that of a row left over."""
        if seen.row is not None:
            return key_of(self._mapper.map(seen.row)[0].row)
        forward = await self.client.propagator.mapping.forward(seen.key)
        for target in sorted(forward.targets if forward else ()):
            if (
                target.table == 0
                and await self._main.get(target.key) is not None
                and await self.client.propagator.is_owner(seen.key, target.key)
            ):
                return target.key
        return None

    def _agrees(self, pair: _Pair, decides: Side) -> bool:
        """Tell whether source and target say the same of a row."""
        if pair.source is None:
            return pair.target is None
        try:
            mapped = self._mapper.map(pair.source)[0].row
        except RowRefused:
            if self.client.view is View.OLD:
                raise
            return False
        if key_of(mapped) != pair.target_key:
            return pair.target is None
        if pair.target is None:
            return False
        timed = self._mapper.timestamp_copies[0] if decides == TARGET else frozenset[str]()
        return same_content(mapped, pair.target, timed)

    async def _is_being_written(self, pair: _Pair) -> bool:
        """Tell whether the journal has an intent for the row."""
        keys = {(SOURCE, pair.source_key), (TARGET, pair.target_key)}
        async for intents in self.client.journal.scan():
            if any((intent.side, intent.key) in keys for intent in intents):
                return True
        return False

    async def _again(self, pair: _Pair, decides: Side) -> _Pair:
        """Read both once more: the replica first, then the authority."""
        source = target = None
        for side in (TARGET, SOURCE) if decides == SOURCE else (SOURCE, TARGET):
            if side == SOURCE and pair.source_key is not None:
                source = await self.client.propagator.source.get(pair.source_key)
            if side == TARGET and pair.target_key is not None:
                target = await self._main.get(pair.target_key)
        return _Pair(pair.source_key, pair.target_key, source, target)
