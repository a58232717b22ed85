"""Copying a window of source rows: map, claim in the mapping table, write the targets.

Rules kept here:

* scan → map → pack → write: all mapping rows of a window are durable before its first target row, so
  nothing exists in a target that the mapping does not account for.
* Only inserts-if-absent: a row that is there already is never overwritten from a scan, because what was
  scanned may be older than what stands there.
* What the inserts meet decides: the same content under the same owner is done already; anything else is
  handed to propagate(k), which reads both sides afresh and names collisions.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rekey.backfill.gather import Held, Write
from rekey.backfill.throttle import Throttle
from rekey.concurrency import cancel, for_each
from rekey.dualwrite.propagate import Propagator
from rekey.dualwrite.replicas import same_content
from rekey.errors import RowRefused
from rekey.mapping.rows import MappingRows, TargetKey, target_key
from rekey.model import PARTITION_KEY, EntityKey, Row, key_of
from rekey.tables.base import Table, Verb
from rekey.tables.bulk import insert_absent, read_keys

MAPPING_WINDOWS = 2
TARGET_WINDOWS = 5
"""For how many windows rows may wait for others of their partition. Mapping rows spread over 64 partitions,
which one more window fills."""

GATHERED_WINDOWS = TARGET_WINDOWS + 1
"""Windows that must be able to be under way: the oldest is written when the last of them begins."""

MOST_WINDOWS = GATHERED_WINDOWS + 4
"""Windows under way when some are nearly done: what is refused again and again holds up few others."""

_NEARLY = 10
"""A window is nearly done when no more than one in so many of its writes is left."""


@dataclass(slots=True)
class Copied:
    """What copying did: source rows looked at, target rows inserted, rows handed to propagate, and rows
    that propagate changed."""

    rows: int = 0
    inserted: int = 0
    propagated: int = 0
    changed: int = 0
    requests: int = 0

    def add(self, other: Copied) -> None:
        """Add another window's figures to these."""
        self.rows += other.rows
        self.inserted += other.inserted
        self.propagated += other.propagated
        self.changed += other.changed
        self.requests += other.requests


@dataclass(slots=True, eq=False)
class CopyWindow:
    """Rows that were read together, on their way.

    Attributes:
        number: counts the windows of one copying.
        expected: what each source key's rows in the targets should be; empty once they are on their way.
        claimed: which source key wants a target key.
        unsettled: source keys that met something unexpected: propagate(k) settles them.
        copied: what became of it.
        left: writes of the present stage that are not durable yet.
        handed: writes of the present stage.
        durable: done when there are none.
    """

    number: int = 0
    expected: dict[EntityKey, dict[TargetKey, Row]] = field(default_factory=dict)
    claimed: dict[TargetKey, EntityKey] = field(default_factory=dict)
    unsettled: set[EntityKey] = field(default_factory=set)
    copied: Copied = field(default_factory=Copied)
    left: int = 0
    handed: int = 0
    durable: asyncio.Future[None] | None = None

    @property
    def nearly_done(self) -> bool:
        """Tell whether hardly any of the present stage's writes are left."""
        return self.left * _NEARLY <= self.handed

    def wrote(self, count: int) -> None:
        """Count writes that are durable."""
        self.left -= count
        if not self.left and self.durable is not None and not self.durable.done():
            self.durable.set_result(None)


class Copier:
    """Copies windows of source rows of one migration."""

    def __init__(self, propagator: Propagator, concurrency: int, throttle: Throttle | None = None) -> None:
        """Take the propagator (it knows the tables and the mapping), how many requests may be under way at
        once, and what keeps reads and writes under rates."""
        self.propagator = propagator
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
        window = self.map_window(source_rows)
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

    def map_window(self, source_rows: Iterable[Row]) -> CopyWindow:
        window = CopyWindow()
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
        return window

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


class Gathering:
    """Copies windows, and lets their batches fill across windows.

    A window's targets follow when all its mapping rows are durable. A batch may serve several windows; the
    first that fails ends all.
    """

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        propagator = copier.propagator
        self._mapping = Held(propagator.mapping.table, MAPPING_WINDOWS)
        self._targets = [Held(table, TARGET_WINDOWS) for table in propagator.targets]
        self._slots = asyncio.Semaphore(copier.concurrency)
        self._newest = 0
        self._draining = False
        # In the order in which they began, so that what is ended together ends in the same order each time.
        self._windows: dict[CopyWindow, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._failed: BaseException | None = None
        self._wrote = asyncio.Event()

    async def __aenter__(self) -> Gathering:
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel(self._tasks)

    def drain(self) -> None:
        """Write what is held back, now and from now on: no window follows that could fill a batch."""
        self._draining = True
        self._release()

    async def progress(self) -> None:
        """Wait until something more is written. Raises what ended all."""
        if self._failed is None:
            self._wrote.clear()
            await self._wrote.wait()
        if self._failed is not None:
            raise self._failed

    @property
    def has_room(self) -> bool:
        """Tell whether another window may begin."""
        # Of windows as old as that nothing is held back any more: what is left of them is on its way.
        held_back = self._newest - TARGET_WINDOWS
        waiting = sum(not (one.number <= held_back and one.nearly_done) for one in self._windows)
        return waiting < GATHERED_WINDOWS and len(self._windows) < MOST_WINDOWS

    async def copy(self, source_rows: Sequence[Row]) -> Copied:
        """Copy rows as they were scanned; returns when all of it is durable. Raises as `Copier.copy`."""
        try:
            return await self._copy(source_rows)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.drain()  # older windows hold rows back for those that would follow, and are waited for first
            raise

    async def _copy(self, source_rows: Sequence[Row]) -> Copied:
        copier = self._copier
        self._newest += 1
        number = self._newest  # in the order of reading, before anything is waited for: the oldest ends first
        await copier.propagator.mapping.fresh()
        window = copier.map_window(source_rows)
        window.number = number
        window.copied.rows = len(source_rows)
        del source_rows
        self._windows[window] = None
        try:
            await self._stage(window, [(self._mapping, copier.mapping_writes(window))])
            window.claimed.clear()
            await self._stage(
                window,
                [(held, copier.target_writes(window, number)) for number, held in enumerate(self._targets)],
                last=True,
            )
        finally:
            self._windows.pop(window)
            self._wrote.set()

        async def settle(source_key: EntityKey) -> None:
            outcome = await copier.propagator.propagate(source_key)
            window.copied.changed += outcome.changed

        window.copied.propagated = len(window.unsettled)
        await for_each(sorted(window.unsettled), settle, limit=copier.concurrency)
        return window.copied

    async def _stage(
        self, window: CopyWindow, writes: Iterable[tuple[Held, Iterator[Write]]], *, last: bool = False
    ) -> None:
        """Hand a window's writes over and wait until they are durable."""
        window.durable = asyncio.get_running_loop().create_future()
        window.left = 1  # itself, until all of it is handed over
        for held, some in writes:
            members = list(some)
            window.left += len(members)
            full, twice = held.add(members)
            for batch in full:
                self._start(held, batch)
            window.unsettled.update(write.source for write in twice)
            window.left -= len(twice)
            del members, full
        if last:
            window.expected.clear()
        window.handed = window.left
        self._release()
        window.wrote(1)
        if self._failed is not None:
            raise self._failed
        await window.durable

    def _release(self) -> None:
        for held in (self._mapping, *self._targets):
            due = held.release_all() if self._draining else held.release(self._newest)
            for batch in due:
                self._start(held, batch)

    def _start(self, held: Held, batch: list[Write]) -> None:
        task = asyncio.create_task(self._write(held, batch))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _write(self, held: Held, batch: list[Write]) -> None:
        try:
            # Whoever waits for a rate holds no slot: a partition at its limit does not hold up the others.
            if held is self._mapping:
                await self._copier.throttle.open()
            else:
                partition = (held.table.name, batch[0].row[PARTITION_KEY])
                await self._copier.throttle.take(len(batch), partition)
            async with self._slots:
                batch[0].window.copied.requests += 1
                present = await insert_absent(held.table, batch)
            await self._judge(held, batch, present)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it was: those who wait must hear of it
            self._fail(error)
            return
        for window, count in _by_window(batch):
            window.wrote(count)
        self._wrote.set()

    async def _judge(self, held: Held, batch: list[Write], present: Mapping[EntityKey, Row]) -> None:
        """Note which rows were inserted, and which met another row in their place."""
        mapping = held is self._mapping
        inserted = batch
        if present:
            if mapping:
                await self._copier.propagator.mapping.learn(present.values())
            inserted = [write for write in batch if write.key not in present]
            is_right = self._says_the_same if mapping else _holds_the_same
            for write in batch:
                found = present.get(write.key)
                if found is not None and not is_right(found, write):
                    write.window.unsettled.add(write.source)
        if not mapping:
            for window, count in _by_window(inserted):
                window.copied.inserted += count

    def _says_the_same(self, found: Row, write: Write) -> bool:
        """Tell whether a mapping row that was there already says what was to be written."""
        rows = self._copier.rows
        return rows.read_listing(found) == rows.read_listing(write.row)

    def _fail(self, error: BaseException) -> None:
        """End all windows: none of those that are under way will become whole."""
        if self._failed is None:
            self._failed = error
            for window in self._windows:
                if window.durable is not None and not window.durable.done():
                    window.durable.set_exception(error)
            self._wrote.set()


def _by_window(writes: Iterable[Write]) -> ItemsView[CopyWindow, int]:
    """Return the windows that writes are of, and how many are of each."""
    return Counter([write.window for write in writes]).items()


def _holds_the_same(found: Row, write: Write) -> bool:
    """Tell whether a target row that was there already is the one that was to be written.

    The pointer is part of an index row's content, so another owner's row differs.
    """
    return same_content(found, write.row)
