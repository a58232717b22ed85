"""Summing up one slice, or finding its rows of differing buckets, on a worker.

Rules kept here:

* Nothing is written. A slice ends at a page: when time is up, or when it holds as many rows as one answer
  may.
* The control row is looked at before the first row and behind the last: sums of another run or epoch than the
  task's are not returned.
* Rows travel back sealed, bound to the task that asked for them.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import aclosing

import orjson

from rekey.copy.workers.opened import Opened
from rekey.copy.workers.tasks import Ended, Result, Task
from rekey.core.collector import patient_collector
from rekey.mapping.sealing import SealedKeys
from rekey.model import EntityKey, Row
from rekey.verify.context import partition_of
from rekey.verify.digest import BUCKETS
from rekey.verify.full import Record, records_of
from rekey.verify.summing import Adding
from rekey.verify.sums import SOURCE, Partial

MOST_RECORDS = 20_000
"""Records of one answer; about 4 MB."""


async def sum_slice(opened: Opened, task: Task) -> Result:
    """Sum up a range from its beginning, as far as time allows."""
    work = Partial.fresh(len(opened.targets))
    adding = Adding(opened.source.name, opened.mapper, _not_compared(opened, task), work)

    def take(rows: list[Row]) -> bool:
        adding.add(task.table, rows)
        return True

    result = await _Pages(opened, task).all(take)
    if result.ended is Ended.SUPERSEDED:
        return result
    if task.table == SOURCE:
        sums = {"source": work.source.packed()}
        sums |= {f"expected{number}": one.packed() for number, one in enumerate(work.expected)}
    else:
        sums = {"actual": work.actual[task.table].packed()}
    return Result(
        task.id, result.ended, result.cursor, result.rows, counters={"refused": work.refused}, sums=sums
    )


async def find_slice(opened: Opened, task: Task) -> Result:
    """Return the rows of a range that lie in the task's buckets, as far as time and one answer allow."""
    differing = unpacked_buckets(task.buckets)
    not_compared = _not_compared(opened, task)
    found: list[Record] = []

    def take(rows: list[Row]) -> bool:
        found.extend(records_of(task.table, rows, opened.mapper, not_compared, differing))
        return len(found) < MOST_RECORDS

    result = await _Pages(opened, task).all(take)
    if result.ended is Ended.SUPERSEDED:
        return result
    records = sealed(opened.keys, task.id, found)
    return Result(task.id, result.ended, result.cursor, result.rows, records=records)


class _Pages:
    """The pages of a task's range."""

    def __init__(self, opened: Opened, task: Task) -> None:
        self._opened, self._task = opened, task

    async def all(self, take: Callable[[list[Row]], bool]) -> Result:
        """Hand pages to `take` until it says that it has enough, time is up, or there are no more."""
        opened, task = self._opened, self._task
        stop_at = time.monotonic() + task.seconds
        cursor: EntityKey | None = None
        rows, ended = 0, Ended.DONE
        if not await self._as_made():
            return Result(task.id, Ended.SUPERSEDED)
        table = opened.table(task.table)
        with patient_collector():
            async with aclosing(table.scan(opened.within(task))) as pages:  # type: ignore[type-var]
                async for page in pages:
                    more = take(page.rows)
                    rows += len(page.rows)
                    cursor = page.cursor or cursor
                    if not more or time.monotonic() >= stop_at:
                        ended = Ended.MORE
                        break
                    if page.rows:
                        await opened.throttle.take(len(page.rows), partition_of(table, page.rows))
        if not await self._as_made():
            return Result(task.id, Ended.SUPERSEDED)
        return Result(task.id, ended, opened.cursor(cursor), rows)

    async def _as_made(self) -> bool:
        now, basis = await self._opened.control.read(), self._task.basis
        return now is not None and (now.run_id, now.epoch, now.digest) == (
            basis.run_id,
            basis.epoch,
            basis.digest,
        )


def _not_compared(opened: Opened, task: Task) -> list[frozenset[str]]:
    copies = opened.mapper.timestamp_copies
    return [one if task.authority_is_target else frozenset[str]() for one in copies]


def packed_buckets(differing: Sequence[frozenset[int]]) -> tuple[bytes, ...]:
    """Return sets of buckets as they travel: a bit for each bucket."""
    return tuple(sum(1 << one for one in buckets).to_bytes(BUCKETS // 8, "little") for buckets in differing)


def unpacked_buckets(packed: Sequence[bytes]) -> list[frozenset[int]]:
    """Return the sets of buckets that travelled."""
    return [
        frozenset(8 * at + bit for at, byte in enumerate(one) if byte for bit in range(8) if byte >> bit & 1)
        for one in packed
    ]


def sealed(keys: SealedKeys, task_id: str, records: Sequence[Record]) -> bytes:
    """Return records as they travel, bound to the task that asked for them."""
    return keys.seal(_bound(task_id), zlib.compress(b"\n".join(map(_encoded, records))))


def unsealed(keys: SealedKeys, result: Result) -> list[Record]:
    """Return the records of a result. Raises ValueError when they are not of its task."""
    if not result.records:
        return []
    try:
        lines = zlib.decompress(keys.unseal(_bound(result.id), result.records))
    except zlib.error:
        raise ValueError("not records") from None
    return [_decoded(line) for line in lines.split(b"\n") if line]


def _bound(task_id: str) -> str:
    return f"records of {task_id}"


def _encoded(record: Record) -> bytes:
    """Return a record as one line, without its end."""
    try:
        return orjson.dumps(record)
    except TypeError:  # a lone surrogate, which only the standard library writes (escaped)
        return json.dumps(record).encode("ascii")


def _decoded(line: bytes) -> Record:
    """Return the record of a line."""
    try:
        record: Record = orjson.loads(line)
    except orjson.JSONDecodeError:
        record = json.loads(line)
    return record
