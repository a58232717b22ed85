"""Erasing in the mapping table: rows become tombstones, and a mapping in the clear is emptied.

Rules kept here:

* Every write is conditional on the row that was read. A row that changed is read again, and put away only if
  it still names the same source key.
* What is done twice ends the same: a tombstone stays as it is.
* A page at a time: memory does not grow with the mapping.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from rekey.core.clock import ticks_of
from rekey.core.concurrency import for_each
from rekey.errors import (
    Ambiguous,
    ConditionFailed,
    Erased,
    RowExists,
    RowMissing,
    SealedUnreadable,
    Unavailable,
)
from rekey.mapping.retention import DONE, ERASED_ON, WHOLE, is_tombstone
from rekey.mapping.sealing import key_partition, within
from rekey.mapping.store import MappingStore
from rekey.model import TIMESTAMP, EntityKey, Row, etag_of, key_of

_MAX_ROUNDS = 20

Advance = Callable[[int], None]


@dataclass(slots=True)
class Search:
    """What a search through all reverse rows found.

    Attributes:
        rows: by source key, where reverse rows stand that name it.
        unreadable: how many rows could not be opened, so that it is not known whom they name.
    """

    rows: dict[EntityKey, list[EntityKey]] = field(default_factory=dict, repr=False)
    unreadable: int = 0


async def search(
    store: MappingStore,
    wanted: Collection[EntityKey],
    *,
    scans: int,
    advance: Advance,
    check: Callable[[], None],
) -> Search:
    """Find all reverse rows that name one of some source keys, by opening every one.

    A run that was cut off can leave a reverse row that no forward row lists.

    Args:
        store: the mapping.
        wanted: the source keys.
        scans: partitions that are read concurrently.
        advance: told of rows as they are read.
        check: raises when the work must stop.
    """
    found = Search()

    async def look(partition: str) -> None:
        async for page in store.table.scan(within(partition)):
            check()
            await store.learn(page.rows)
            for row in page.rows:
                try:
                    source = store.rows.read_source(row)
                except Erased:
                    continue
                except SealedUnreadable:
                    found.unreadable += 1
                    continue
                if source in wanted:
                    found.rows.setdefault(source, []).append(key_of(row))
            advance(len(page.rows))
            await asyncio.sleep(0)  # a page is opened in one go; other tasks get their turn

    await for_each(store.rows.partitions("r"), look, limit=scans)
    return found


async def bury(store: MappingStore, at: EntityKey, source: EntityKey, on: str) -> bool:
    """Put a tombstone in the place of a mapping row; False when there is nothing of that subject.

    Args:
        store: the mapping.
        at: where the row stands.
        source: whom it must name; a row that passed to another source key stays.
        on: the day.

    Raises:
        SealedUnreadable: the row cannot be opened, so it is not known whom it names.
    """
    for _ in range(_MAX_ROUNDS):
        row = await store.table.get(at)
        if row is None:
            return False
        await store.learn((row,))
        try:
            if store.rows.read_source(row) != source:
                return False
        except Erased:
            return False
        try:
            await store.table.replace(store.rows.tombstones.make(at, on), etag=etag_of(row))
        except (ConditionFailed, RowMissing, Ambiguous):
            continue
        return True
    raise Unavailable("a mapping row kept changing while it was erased", hint="run the same command again")


# --- a mapping in the clear, as a whole --------------------------------------------------------------------


@dataclass(slots=True)
class Emptied:
    """What emptying a mapping in the clear did: rows deleted, and rows that are younger or changed."""

    deleted: int = 0
    kept: int = 0


async def empty(
    store: MappingStore,
    on: str,
    is_over: Callable[[int], bool],
    *,
    concurrency: int,
    advance: Advance,
    check: Callable[[], None],
) -> Emptied:
    """Delete the rows of a mapping in the clear that are over, reverse rows first; a tombstone says so.

    The tombstone of the whole stands before the first row goes, so that a look-up never takes what was erased
    for unknown; it is marked as done when nothing is left.

    Args:
        store: the mapping.
        on: the day.
        is_over: tells of the moment of a row's last write, in ticks, whether the row is over.
        concurrency: rows that are deleted concurrently.
        advance: told of rows as they are read.
        check: raises when the work must stop.
    """
    done = Emptied()
    on = await _mark(store, on, done=False)

    async def remove(row: Row) -> None:
        if not is_tombstone(row) and not is_over(ticks_of(row[TIMESTAMP])):
            done.kept += 1
            return
        try:
            await store.table.delete(key_of(row), etag=etag_of(row))
        except RowMissing:
            return
        except ConditionFailed:
            done.kept += 1
        else:
            done.deleted += 1

    for direction in ("r", "f"):
        for partition in store.rows.partitions(direction):
            async for page in store.table.scan(within(partition), select=[ERASED_ON]):
                check()
                await for_each(page.rows, remove, limit=concurrency)
                advance(len(page.rows))
    if not done.kept:
        await _mark(store, on, done=True)
    return done


async def _mark(store: MappingStore, on: str, *, done: bool) -> str:
    """Write the tombstone of the whole mapping; return the day that it says."""
    at = EntityKey(key_partition(store.rows.script_id), WHOLE)
    for _ in range(_MAX_ROUNDS):
        row = await store.table.get(at)
        said = on if row is None else store.rows.tombstones.read(row)
        if row is not None and (row.get(DONE, False) or not done):
            return said
        made = store.rows.tombstones.make(at, said) | {DONE: done}
        try:
            if row is None:
                await store.table.insert(made)
            else:
                await store.table.replace(made, etag=etag_of(row))
        except (RowExists, RowMissing, ConditionFailed, Ambiguous):
            continue
        return said
    raise Unavailable("the row that marks the mapping kept changing", hint="run the same command again")
