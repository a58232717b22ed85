"""Computing a slice's digests, or finding its rows in differing buckets, on a worker. Writes nothing."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import orjson

from rekey.copy.workers.fence import is_of
from rekey.copy.workers.opened import Opened
from rekey.copy.workers.tasks import Ended, Result, Task
from rekey.core.collector import patient_collector
from rekey.declaration.mapper import Mapper
from rekey.mapping.sealing import SealedKeys
from rekey.model import EntityKey, Row
from rekey.tables.kinds import whole
from rekey.tables.wire import loads
from rekey.verify.bucket_digests import SOURCE, Partial
from rekey.verify.context import partition_of
from rekey.verify.digest import BUCKETS
from rekey.verify.first_pass import RowAdder
from rekey.verify.full import Record, records_of

# With so many records, about 4 MB, an answer ends after the current page.
MOST_RECORDS = 20_000


async def sum_slice(opened: Opened, task: Task) -> Result:
    """Compute the digests of a range from its beginning as far as time allows, but at least one page."""
    work = Partial.fresh(len(opened.mapper.tables))
    adding = RowAdder(opened.table().name, opened.mapper, _not_compared(opened, task), work)

    def take(rows: list[Row]) -> bool:
        adding.add(task.table, rows)
        return True

    result = await _read_pages(opened, task, take)
    if result.ended is Ended.SUPERSEDED:
        return result
    if task.table == SOURCE:
        digests = {"source": work.source}
        digests |= {f"expected{number}": expected for number, expected in enumerate(work.expected)}
    else:
        numbers = actual_sums(opened.mapper, task.table)
        digests = {name: work.actual[number] for name, number in numbers.items()}
    sums = {name: digest.packed() for name, digest in digests.items()}
    counters = {"refused": work.refused, "not_migrated": work.not_migrated}
    return replace(result, counters=counters, sums=sums)


def actual_sums(mapper: Mapper, table: int) -> dict[str, int]:
    """Return the digests that a slice of a target gives: their names, and the number of their table. `table`:
    the first number of rows in the table."""
    names = mapper.tables
    others = [number for number in range(table + 1, len(names)) if names[number] == names[table]]
    return {"actual": table} | {f"actual{number}": number for number in others}


async def find_slice(opened: Opened, task: Task) -> Result:
    """Return the rows of a range that are in the task's buckets, as far as time and one answer allow."""
    differing = unpacked_buckets(task.buckets)
    not_compared = _not_compared(opened, task)
    records: list[Record] = []

    def take(rows: list[Row]) -> bool:
        records.extend(records_of(task.table, rows, opened.mapper, not_compared, differing))
        return len(records) < MOST_RECORDS

    result = await _read_pages(opened, task, take)
    if result.ended is Ended.SUPERSEDED:
        return result
    return replace(result, records=sealed(opened.keys, task.id, records))


async def _read_pages(opened: Opened, task: Task, take: Callable[[list[Row]], bool]) -> Result:
    """Pass pages of a task's range to `take` until this returns False, time is up, or there are no more."""
    stop_at = time.monotonic() + task.seconds
    cursor: EntityKey | None = None
    rows, ended = 0, Ended.DONE
    if not is_of(await opened.control.read(), task.basis):
        return Result(task.id, Ended.SUPERSEDED)
    table = whole(opened.table(task.table))
    with patient_collector():
        async with aclosing(table.scan(opened.within(task), ahead=not opened.throttle.has_rates)) as pages:  # type: ignore[type-var]
            async for page in pages:
                more = take(page.rows)
                rows += len(page.rows)
                cursor = page.cursor or cursor
                if not more or time.monotonic() >= stop_at:
                    ended = Ended.MORE
                    break
                if page.rows:
                    partition = partition_of(table, page.rows)
                    await opened.throttle.arrived_from(table.name, len(page.rows), partition)
    if not is_of(await opened.control.read(), task.basis):
        return Result(task.id, Ended.SUPERSEDED)
    # Checked before the first row and after the last: digests of another run or epoch are not returned.
    return Result(task.id, ended, opened.cursor(cursor), rows)


def _not_compared(opened: Opened, task: Task) -> list[frozenset[str]]:
    return [
        names if task.authority_is_target else frozenset[str]() for names in opened.mapper.timestamp_copies
    ]


def packed_buckets(differing: Sequence[frozenset[int]]) -> tuple[bytes, ...]:
    """Pack sets of buckets for a task: by target, a bit for each bucket."""
    return tuple(
        sum(1 << bucket for bucket in buckets).to_bytes(BUCKETS // 8, "little") for buckets in differing
    )


def unpacked_buckets(packed: Sequence[bytes]) -> list[frozenset[int]]:
    """Return the sets of buckets that `packed_buckets` packed."""
    return [
        frozenset(8 * at + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1)
        for bits in packed
    ]


def sealed(keys: SealedKeys, task_id: str, records: Sequence[Record]) -> bytes:
    """Return records compressed and sealed, bound to the task that asked for them."""
    return keys.seal(_bound(task_id), zlib.compress(b"\n".join(map(_encoded, records))))


def unsealed(keys: SealedKeys, result: Result) -> list[Record]:
    """Return the records of a result. Raises ValueError when they are not of its task."""
    if not result.records:
        return []
    try:
        lines = zlib.decompress(keys.unseal(_bound(result.id), result.records))
    except zlib.error:
        raise ValueError("not records") from None
    return [loads(line) for line in lines.split(b"\n") if line]


def _bound(task_id: str) -> str:
    return f"records of {task_id}"


def _encoded(record: Record) -> bytes:
    try:
        return orjson.dumps(record)
    except TypeError:  # a lone surrogate, which only the standard library writes (escaped)
        return json.dumps(record).encode("ascii")
