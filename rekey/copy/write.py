"""Copying many windows at a time: batches fill across windows, and target rows follow mapping rows."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

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
from rekey.tables.sent import RequestKind

MAPPING_WINDOWS = 2
# For how many windows a write is held until others fill a batch of its partition. Mapping rows spread over 64
# partitions, which one more window fills.
TARGET_WINDOWS = 5

# So many windows must fit in flight: the oldest is written when the last of them begins.
GATHERED_WINDOWS = TARGET_WINDOWS + 1

# Most windows in flight when some are nearly done: one whose writes keep being refused holds up few others.
MOST_WINDOWS = GATHERED_WINDOWS + 4


@dataclass(eq=False)
class Copier:
    """Copies windows of source rows of one migration."""

    propagator: Propagator
    # How many requests may be in flight at once.
    concurrency: int
    # Keeps reads and writes under rates.
    throttle: Throttle = field(default_factory=Throttle)
    # The target tables for batches of inserts-if-absent, as handles that resend a write with an unknown
    # outcome, which is safe since the copy waits at its end until none is in flight. Empty: the propagator's.
    targets: Sequence[Table] = ()
    # The same for mapping rows, which are in the restricted account.
    restricted: Throttle = field(default_factory=Throttle)

    def __post_init__(self) -> None:
        self.targets = tuple(self.targets or self.propagator.targets)
        self.rows: MappingRows = self.propagator.mapping.rows

    async def copy(self, source_rows: Sequence[Row]) -> Copied:
        """Copy rows as they were scanned; return when all their writes are durable.

        Raises:
            RowRefused: the mapping cannot key a row; names it by safe id. Rows of other windows are kept.
            Collision: two source rows map to one target key.
        """
        async with self.writer() as writer:
            writer.drain()
            return await writer.copy(source_rows)

    def writer(self, advance: Callable[[int], None] = lambda _rows: None) -> BatchWriter:
        """Return a writer that fills batches across windows. Use it as a context manager. `advance` is called
        with rows as they are written, in proportion to a window's writes; they may not be durable yet."""
        return BatchWriter(self, advance)

    async def copy_changed(self, source_rows: Sequence[Row]) -> Copied:
        """Copy rows of which many are in the targets already: skip those whose target rows all are equal."""
        # Only where target keys depend on the old key alone can they never change, so that equal target rows
        # leave nothing to do.
        if self.propagator.mapper.content_derived:
            copied = await self.copy(source_rows)
            await self._remove_dropped(source_rows, copied)
            return copied
        copied = await self.copy(await self._not_there(source_rows))
        copied.rows = len(source_rows)
        return copied

    async def _remove_dropped(self, source_rows: Sequence[Row], copied: Copied) -> None:
        """Remove the target rows of source rows that a kind took when they were copied and none takes now."""
        dropped = list(filter(self.propagator.mapper.is_dropped, source_rows))

        async def remove(row: Row) -> None:
            done = await self.propagator.propagate_moved(row)
            copied.changed += done.changed

        await for_each(dropped, remove, limit=self.concurrency)

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
                target_rows = await read_keys(table, list(rows))
                for key, (source_key, row) in rows.items():
                    if key not in target_rows or not same_content(row, target_rows[key]):
                        differing.add(source_key)

            await for_each(wanted.values(), compare, limit=self.concurrency)
        # Two source rows that want one target key are left to propagate, too.
        differing |= window.unsettled
        return [row for row in source_rows if key_of(row) in differing]


class _Written:
    """Wakes the task that waits for another batch, and keeps the first error, which ends all windows."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._event = asyncio.Event()

    def tell(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        if self.error is None:
            self._event.clear()
            await self._event.wait()
        if self.error is not None:
            raise self.error


class BatchWriter:
    """Copies windows, as many at a time as it has room for. Use as an asynchronous context manager."""

    def __init__(self, copier: Copier, advance: Callable[[int], None]) -> None:
        self._copier = copier
        self._advance = advance
        propagator = copier.propagator
        self._mapping = BatchBuffer(propagator.mapping.table, MAPPING_WINDOWS)
        co_located = propagator.mapper.co_located
        apart = [{number} for number in range(len(copier.targets)) if number not in co_located]
        self._targets = [
            BatchBuffer(whole(copier.targets[min(numbers)]), TARGET_WINDOWS, numbers)
            for numbers in [*([co_located] if co_located else []), *apart]
        ]
        self._slots = asyncio.Semaphore(copier.concurrency)
        self._begun = 0
        self._newest = 0  # the newest window whose mapping rows were handed over
        self._packing = asyncio.Lock()  # one window at a time: in order, and with full batches
        self._draining = False
        # A dict, not a set: an error ends them in the same order each time.
        self._windows: dict[CopyWindow, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._written = _Written()

    async def __aenter__(self) -> BatchWriter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel(self._tasks)

    def drain(self) -> None:
        """Write held batches, now and from now on: no further window could fill one."""
        self._draining = True
        self._release()

    async def progress(self) -> None:
        """Wait until another batch is written or a window ends. Raises the error that ended all windows."""
        await self._written.wait()

    @property
    def has_room(self) -> bool:
        # Nothing of a window that old is held back any more: the rest of its writes is being sent.
        held_back = self._newest - TARGET_WINDOWS
        waiting = sum(not (window.number <= held_back and window.nearly_done) for window in self._windows)
        return waiting < GATHERED_WINDOWS and len(self._windows) < MOST_WINDOWS

    async def copy(self, source_rows: Sequence[Row]) -> Copied:
        """Copy rows as scanned; return when all their writes are durable. Raises as `Copier.copy`."""
        try:
            return await self._copy(source_rows)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.drain()  # older windows end first; no window follows to fill their batches
            raise

    async def _copy(self, source_rows: Sequence[Row]) -> Copied:
        copier = self._copier
        self._begun += 1
        # Numbered in the order of reading, before any wait: the oldest ends first.
        window = CopyWindow(self._begun)
        window.copied.rows = len(source_rows)
        self._windows[window] = None
        try:
            durable = window.begin()
            async with self._packing:
                await copier.propagator.mapping.fresh()
                await map_window(copier.propagator, source_rows, window)
                del source_rows
                is_stored = copier.propagator.mapping.is_stored
                window.writes = 2 * is_stored * len(window.expected) + sum(map(len, window.expected.values()))
                if is_stored:
                    await self._hand_over(window, self._mapping, mapping_writes(copier.rows, window))
                window.claimed.clear()
                self._newest = window.number
                self._packed(window)
            await self._durable(durable)
            durable = window.begin()
            async with self._packing:
                # Only now: no target row exists before its mapping rows are durable.
                for target in self._targets:
                    await self._hand_over(window, target, target_writes(window, target.numbers))
                window.expected.clear()
                self._packed(window)
            await self._durable(durable)
        finally:
            self._windows.pop(window)
            self._written.tell()
            if (ended := window.durable) is not None and ended.done() and not ended.cancelled():
                ended.exception()  # mark it retrieved: the window ended by its own error, so none awaits it

        async def settle(source_key: EntityKey) -> None:
            outcome = await copier.propagator.propagate(source_key)
            window.copied.changed += outcome.changed

        window.copied.propagated = len(window.unsettled)
        await for_each(sorted(window.unsettled), settle, limit=copier.concurrency)
        self._advance(window.copied.rows - window.reported)
        return window.copied

    def _packed(self, window: CopyWindow) -> None:
        """Count a stage of a window as handed over, and write the batches that need not wait any longer."""
        window.packed += 1
        self._release()
        window.wrote(1)

    async def _durable(self, durable: asyncio.Future[None]) -> None:
        """Wait until a stage is durable. Raises the error that ended all windows."""
        if self._written.error is not None and not durable.done():
            raise self._written.error
        await durable

    async def _hand_over(self, window: CopyWindow, buffer: BatchBuffer, writes: Iterator[Write]) -> None:
        """Pack writes of a window: begin to write full batches, hold the rest back."""
        partitions: Partitions = defaultdict(list)
        while portion := list(islice(writes, TURN_ROWS)):
            sort_out(portion, partitions)
            if len(portion) == TURN_ROWS:
                await asyncio.sleep(0)
        packed = 0
        for partition in list(partitions):
            members = partitions.pop(partition)
            packed += len(members)
            full, twice = buffer.add(partition, members)
            window.unsettled.update(write.source for write in twice)
            window.left += len(members) - len(twice)
            window.handed += len(members) - len(twice)
            for batch in full:
                self._start(buffer, batch)
            if packed >= TURN_ROWS:
                packed = 0
                await asyncio.sleep(0)

    def _release(self) -> None:
        """Write batches held long enough; when draining, all batches that no window can add to."""
        packed = min([window.packed for window in self._windows], default=2)
        for stage, buffer in [(1, self._mapping), *[(2, target) for target in self._targets]]:
            is_whole = self._draining and packed >= stage
            for batch in buffer.release_all() if is_whole else buffer.release(self._newest):
                self._start(buffer, batch)

    def _start(self, buffer: BatchBuffer, batch: list[Write]) -> None:
        task = asyncio.create_task(self._write(buffer, batch))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _write(self, buffer: BatchBuffer, batch: list[Write]) -> None:
        try:
            # A batch that waits for a rate holds no slot: a partition at its limit does not hold up others.
            of_tables = self._copier.throttle.of(buffer.table.name)
            throttle = self._copier.restricted if buffer is self._mapping else of_tables
            partition = (buffer.table.name, batch[0].row[PARTITION_KEY])
            await throttle.take(len(batch), partition, RequestKind.BATCH)
            async with self._slots:
                batch[0].window.copied.requests += 1
                with throttle.taken(len(batch), partition, RequestKind.BATCH):
                    present = await insert_absent(buffer.table, batch, buffer.unit)
            await self._judge(buffer, batch, present)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the waiting windows must end with any error
            # The first error ends all windows in flight, since a batch may hold rows of several: none will
            # become durable.
            if self._written.error is None:
                self._written.error = error
                for window in self._windows:
                    if window.durable is not None and not window.durable.done():
                        window.durable.set_exception(error)
                self._written.tell()
            return
        for window, count in _by_window(batch):
            window.wrote(count)
            self._advance(window.more())
        self._written.tell()

    async def _judge(self, buffer: BatchBuffer, batch: list[Write], present: Mapping[EntityKey, Row]) -> None:
        """Count rows inserted, and mark source keys unsettled whose insert found another row. `present`: by
        key, the rows that were there already."""
        # A row that is there is never overwritten from a scan, because the scanned row may be older.
        rows, is_mapping = self._copier.rows, buffer is self._mapping
        if present and is_mapping:
            await self._copier.propagator.mapping.learn(present.values())
        met = {write.source for write in batch if write.key in present} if buffer.in_units else set()
        for write in batch if present else ():
            if (present_row := present.get(write.key)) is None:
                if write.source in met:
                    write.window.unsettled.add(write.source)  # not inserted either: it goes with that row
                continue
            if is_mapping:
                is_right = rows.read_listing(present_row) == rows.read_listing(write.row)
            else:
                # The pointer is part of an index row's content, so another owner's row differs.
                is_right = same_content(present_row, write.row)
            if not is_right:
                write.window.unsettled.add(write.source)
        if not is_mapping:
            inserted = batch
            if present:
                inserted = [write for write in batch if write.key not in present and write.source not in met]
            for window, count in _by_window(inserted):
                window.copied.inserted += count


def _by_window(writes: Iterable[Write]) -> ItemsView[CopyWindow, int]:
    """Return the windows of writes, and how many writes each has."""
    return Counter([write.window for write in writes]).items()
