"""Many rows at once: bulk inserts that never overwrite, and bulk reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from operator import attrgetter
from typing import TypeVar

from rekey.core.concurrency import for_each
from rekey.errors import Ambiguous, RowExists
from rekey.model import EntityKey, KeyRange, Row, key_of
from rekey.tables.base import Operation, Table
from rekey.tables.sent import Overhead, overhead

Op = TypeVar("Op", bound=Operation)

_POINT_READS_AT_ONCE = 8
# Share of wanted rows in a page of a range query below which point reads are cheaper.
_LEAST_USEFUL_SHARE = 0.05


async def insert_absent(
    table: Table, batch: Sequence[Op], unit: Callable[[Op], object] = attrgetter("key")
) -> dict[EntityKey, Row]:
    """Insert the absent rows of one partition; return those that were there already. After an ambiguous
    attempt, the rows that it inserted may be among those returned. Raises what the table raises, except
    RowExists.

    Args:
        batch: INSERT operations of one partition, each key once, within the limits of one transaction.
        unit: groups rows that are inserted together or not at all: where one of them is there, the others are
            left out, too.
    """
    present: dict[EntityKey, Row] = {}
    remaining = list(batch)
    with ExitStack() as rows_were_there:
        while remaining:
            try:
                if len(remaining) == 1:
                    await table.insert(remaining[0].row)
                else:
                    await table.transact(remaining)
                break
            except (RowExists, Ambiguous):
                rows_were_there.enter_context(overhead(Overhead.CHANGES))
                # Ambiguous: reading shows which rows of the batch exist now; the others are inserted again.
                present_now = await read_keys(table, [operation.key for operation in remaining])
                # A row may be deleted between the conflict and the read: then nothing is found, and the batch
                # is retried.
                present.update(present_now)
                met = {unit(operation) for operation in remaining if operation.key in present_now}
                remaining = [operation for operation in remaining if unit(operation) not in met]
    return present


async def read_keys(table: Table, keys: Sequence[EntityKey]) -> dict[EntityKey, Row]:
    """Return those of the given rows (all of one partition) that exist: by a range query, as long as enough
    of its rows are wanted, otherwise one by one."""
    ordered = sorted(keys, key=lambda key: key.order)
    existing: dict[EntityKey, Row] = {}
    if len(ordered) < 4:
        await _read_one_by_one(table, ordered, existing)
        return existing
    wanted = set(ordered)
    first, last = ordered[0], ordered[-1]
    # Ranges are open below, so the first key is read by itself.
    await _read_one_by_one(table, [first], existing)
    cursor = first
    async for page in table.scan(KeyRange(first, last)):
        useful = {key: row for row in page.rows if (key := key_of(row)) in wanted}
        existing |= useful
        cursor = page.cursor or cursor
        if page.rows and len(useful) < len(page.rows) * _LEAST_USEFUL_SHARE:
            await _read_one_by_one(table, [key for key in ordered if key.order > cursor.order], existing)
            break
    return existing


async def _read_one_by_one(table: Table, keys: Iterable[EntityKey], into: dict[EntityKey, Row]) -> None:
    async def read(key: EntityKey) -> None:
        if (row := await table.get(key)) is not None:
            into[key] = row

    await for_each(keys, read, limit=_POINT_READS_AT_ONCE)
