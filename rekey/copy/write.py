"""Copying many windows at a time: their batches fill across windows, and targets follow mapping rows.

Rules kept here:

* All mapping rows of a window are durable before the first of its target rows is sent, so nothing exists in a
  target that the mapping does not account for.
* A pass over rows of which many are there already writes what is absent or differs, and only that.
* Only inserts-if-absent: a row that is there already is never overwritten from a scan, because what was
  scanned may be older than what stands there.
* Main and secondary rows of one source row are inserted together, or left to propagate(k) together.
* What the inserts meet decides: the same content under the same owner is done already; anything else is
  handed to propagate(k).
* What fills no batch waits for the next windows, a few of them (`rekey.copy.batches`).
* Bounded memory: a few windows are under way; one that is refused again and again holds up few others.
* What waits for a rate holds no slot, so a partition at its limit does not hold up the others. What the
  service refuses gives back what it took of the rate, and takes it again before the next attempt.
* Packing a window gives others their turn after every `TURN_ROWS` rows, as mapping it does.
* A batch may serve several windows; the first that fails ends all.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from rekey.copy.batches import BatchBuffer, Partitions, sort_out
from rekey.copy.map import TURN_ROWS, Copied, CopyWindow, Write, map_window, mapping_writes, target_writes
from rekey.copy.throttle import Throttle
from rekey.core.concurrency import cancel, for_each
from rekey.mapping.rows import MappingRows
from rekey.model import PARTITION_KEY, EntityKey, Row, key_of
from rekey.protocol.propagate import Propagator
from rekey.protocol.replicas import same_content
from rekey.tables.base import Table
from rekey.tables.bulk import insert_absent, read_keys
from rekey.tables.kinds import whole

MAPPING_WINDOWS = 2
TARGET_WINDOWS = 5
"""For how many windows rows may wait for others of their partition. Mapping rows spread over 64 partitions,
which one more window fills."""

GATHERED_WINDOWS = TARGET_WINDOWS + 1
"""Windows that must be able to be under way: the oldest is written when the last of them begins."""

MOST_WINDOWS = GATHERED_WINDOWS + 4
"""Windows under way when some are nearly done: what is refused again and again holds up few others."""


@dataclass(eq=False)
class Copier:
    """Copies windows of source rows of one migration.

    Attributes:
        propagator: knows the tables and the mapping.
        concurrency: how many requests may be under way at once.
        throttle: keeps reads and writes under rates.
        targets: the target tables by handles that repeat an open write, for batches of inserts-if-absent: the
            copying waits in the end until none of those can take effect any more. Else the propagator's.
    """

    propagator: Propagator
    concurrency: int
    throttle: Throttle = field(default_factory=Throttle)
    targets: Sequence[Table] = ()

    def __post_init__(self) -> None:
        self.targets = tuple(self.targets or self.propagator.targets)
        self.rows: MappingRows = self.propagator.mapping.rows

    async def copy(self, source_rows: Sequence[Row]) -> Copied:
        """Copy rows as they were scanned; returns when all of it is durable.

        Raises:
            RowRefused: the mapping cannot key a row; names it by safe id. Rows of other windows are kept.
            Collision: two source rows map to one target key.
        """
        async with self.writer() as writer:
            writer.drain()
            return await writer.copy(source_rows)

    def writer(self) -> BatchWriter:
        """Return what copies many windows, filling batches across them. Use it as a context manager."""
        return BatchWriter(self)

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
        await map_window(self.propagator, source_rows, window)
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


class BatchWriter:
    """Copies windows of one copying, as many at a time as there is room for."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        propagator = copier.propagator
        self._mapping = BatchBuffer(propagator.mapping.table, MAPPING_WINDOWS)
        together = propagator.mapper.together
        apart = [{number} for number in range(len(copier.targets)) if number not in together]
        self._targets = [
            BatchBuffer(whole(copier.targets[min(numbers)]), TARGET_WINDOWS, numbers)
            for numbers in [*([together] if together else []), *apart]
        ]
        self._slots = asyncio.Semaphore(copier.concurrency)
        self._begun = 0
        self._newest = 0  # of those whose mapping rows were handed over
        self._packing = asyncio.Lock()  # one after the other: so they come in order, and batches are full
        self._draining = False
        # In the order in which they began, so that what is ended together ends in the same order each time.
        self._windows: dict[CopyWindow, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._failed: BaseException | None = None
        self._wrote = asyncio.Event()

    async def __aenter__(self) -> BatchWriter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel(self._tasks)

    def drain(self) -> None:
        """Write what is held back, now and from now on: no window begins that could fill a batch."""
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
        self._begun += 1
        # Numbered in the order of reading, before anything is waited for: the oldest ends first.
        window = CopyWindow(self._begun)
        window.copied.rows = len(source_rows)
        self._windows[window] = None
        try:
            durable = window.begin()
            async with self._packing:
                await copier.propagator.mapping.fresh()
                await map_window(copier.propagator, source_rows, window)
                del source_rows
                await self._hand_over(window, self._mapping, mapping_writes(copier.rows, window))
                window.claimed.clear()
                self._newest = window.number
                self._packed(window)
            await self._durable(durable)
            durable = window.begin()
            async with self._packing:
                for held in self._targets:
                    await self._hand_over(window, held, target_writes(window, held.numbers))
                window.expected.clear()
                self._packed(window)
            await self._durable(durable)
        finally:
            self._windows.pop(window)
            self._wrote.set()
            if (ended := window.durable) is not None and ended.done() and not ended.cancelled():
                ended.exception()  # heard, although it is not waited for: the window ended by one of its own

        async def settle(source_key: EntityKey) -> None:
            outcome = await copier.propagator.propagate(source_key)
            window.copied.changed += outcome.changed

        window.copied.propagated = len(window.unsettled)
        await for_each(sorted(window.unsettled), settle, limit=copier.concurrency)
        return window.copied

    def _packed(self, window: CopyWindow) -> None:
        """Count a stage that is handed over as a whole."""
        window.packed += 1
        self._release()
        window.wrote(1)

    async def _durable(self, durable: asyncio.Future[None]) -> None:
        """Wait until a stage is durable. Raises what ended all."""
        if self._failed is not None and not durable.done():
            raise self._failed
        await durable

    async def _hand_over(self, window: CopyWindow, held: BatchBuffer, writes: Iterator[Write]) -> None:
        """Pack writes of a window: what fills a batch is on its way, the rest is held back."""
        partitions: Partitions = defaultdict(list)
        while some := list(islice(writes, TURN_ROWS)):
            sort_out(some, partitions)
            if len(some) == TURN_ROWS:
                await asyncio.sleep(0)
        packed = 0
        for partition in list(partitions):
            members = partitions.pop(partition)
            packed += len(members)
            full, twice = held.add(partition, members)
            window.unsettled.update(write.source for write in twice)
            window.left += len(members) - len(twice)
            window.handed += len(members) - len(twice)
            for batch in full:
                self._start(held, batch)
            if packed >= TURN_ROWS:
                packed = 0
                await asyncio.sleep(0)

    def _release(self) -> None:
        """Write what has been held back for long enough; at the end, all that no window can add to."""
        packed = min([window.packed for window in self._windows], default=2)
        for stage, held in [(1, self._mapping), *[(2, held) for held in self._targets]]:
            is_whole = self._draining and packed >= stage
            for batch in held.release_all() if is_whole else held.release(self._newest):
                self._start(held, batch)

    def _start(self, held: BatchBuffer, batch: list[Write]) -> None:
        task = asyncio.create_task(self._write(held, batch))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _write(self, held: BatchBuffer, batch: list[Write]) -> None:
        try:
            # What waits for a rate holds no slot: a partition at its limit does not hold up the others.
            throttle = self._copier.throttle
            taken: AbstractContextManager[None] = nullcontext()
            if held is self._mapping:
                await throttle.open()
            else:
                partition = (held.table.name, batch[0].row[PARTITION_KEY])
                await throttle.take(len(batch), partition)
                taken = throttle.taken(len(batch), partition)
            async with self._slots:
                batch[0].window.copied.requests += 1
                with taken:
                    unit = attrgetter("source" if held.together else "key")
                    present = await insert_absent(held.table, batch, unit)
            await self._judge(held, batch, present)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - of any error those who wait must hear
            self._fail(error)
            return
        for window, count in _by_window(batch):
            window.wrote(count)
        self._wrote.set()

    async def _judge(self, held: BatchBuffer, batch: list[Write], present: Mapping[EntityKey, Row]) -> None:
        """Note which rows were inserted, and which met another row in their place."""
        rows, is_mapping = self._copier.rows, held is self._mapping
        if present and is_mapping:
            await self._copier.propagator.mapping.learn(present.values())
        met = {write.source for write in batch if write.key in present} if held.together else set()
        for write in batch if present else ():
            if (found := present.get(write.key)) is None:
                if write.source in met:
                    write.window.unsettled.add(write.source)  # not inserted, because of the row it goes with
                continue
            if is_mapping:
                is_right = rows.read_listing(found) == rows.read_listing(write.row)
            else:
                # The pointer is part of an index row's content, so another owner's row differs.
                is_right = same_content(found, write.row)
            if not is_right:
                write.window.unsettled.add(write.source)
        if not is_mapping:
            inserted = batch
            if present:
                inserted = [one for one in batch if one.key not in present and one.source not in met]
            for window, count in _by_window(inserted):
                window.copied.inserted += count

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
