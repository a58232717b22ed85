"""Batches of inserts: writes are held until a batch of their partition is full, across the windows they were
read in. A batch is within the service's limits: one partition, 100 operations, 4 MiB, each row once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TypeVar

from rekey.copy.map import Write
from rekey.model import PARTITION_KEY, ROW_KEY, utf16_order
from rekey.tables.base import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, Operation, Table

Op = TypeVar("Op", bound=Operation)
# Encoded bytes of one operation in a batch body, including its multipart headers.
SizeOf = Callable[[Operation], int]


def pack(operations: Iterable[Operation], size_of: SizeOf) -> Iterator[list[Operation]]:
    """Yield batches of operations of one table, each within the limits of one transaction."""
    partitions: defaultdict[str, list[Operation]] = defaultdict(list)
    sort_out(operations, partitions)
    for members in partitions.values():
        yield from cut(in_order(members), size_of)


def sort_out(operations: Iterable[Op], into: defaultdict[str, list[Op]]) -> None:
    """Append each operation to the list of its partition."""
    for operation in operations:
        into[operation.row[PARTITION_KEY]].append(operation)


def in_order(members: list[Op]) -> list[Op]:
    """Return operations of one partition in the order of the service: a batch's keys are then close together,
    and a conflict can be looked up with one range query."""
    keys = [member.row[ROW_KEY] for member in members]
    # ASCII sorts as UTF-16 does, and most keys are ASCII.
    order = keys if "".join(keys).isascii() else map(utf16_order, keys)
    return [member for _, member in sorted(zip(order, members, strict=True), key=itemgetter(0))]


def cut(members: list[Op], size_of: SizeOf) -> Iterator[list[Op]]:
    """Yield operations of one partition, in the order given, in batches; the last one may be small."""
    for start in range(0, len(members), MAX_BATCH_OPERATIONS):
        batch = members[start : start + MAX_BATCH_OPERATIONS]
        if sum(map(size_of, batch)) > MAX_BATCH_BYTES:  # the rest one by one
            yield from cut_units(([operation] for operation in members[start:]), size_of)
            return
        yield batch


def cut_units(units: Iterable[list[Op]], size_of: SizeOf) -> Iterator[list[Op]]:
    """Yield operations of one partition in batches; those of a unit, which fits into one, stay together."""
    batch: list[Op] = []
    size = 0
    for unit in units:
        bytes_more = size_of(unit[0]) if len(unit) == 1 else sum(map(size_of, unit))
        full = len(batch) + len(unit) > MAX_BATCH_OPERATIONS or size + bytes_more > MAX_BATCH_BYTES
        if batch and full:
            yield batch
            batch, size = [], 0
        batch += unit
        size += bytes_more
    if batch:
        yield batch


def _by_source(writes: Iterable[Write]) -> list[list[Write]]:
    """Return the writes of each source row, which are consecutive."""
    return [list(unit) for _, unit in groupby(writes, attrgetter("source"))]


Partitions = defaultdict[str, list[Write]]


class BatchBuffer:
    """Writes to one table that are held back until they fill a batch.

    Args:
        windows: for how many windows a write is held at most, so that a rare partition does not block
            checkpoints for ever.
        numbers: the target tables whose rows are written to it. If several, the rows of one source row are
            written in one batch, or none of them is.
    """

    def __init__(self, table: Table, windows: int, numbers: Collection[int] = ()) -> None:
        self.table = table
        self.numbers = numbers
        self.in_units = len(numbers) > 1
        self.unit = attrgetter("source" if self.in_units else "key")
        self._size_of = table.encoded_size
        self._windows = windows
        self._pending: dict[str, list[Write]] = {}

    def add(self, partition: str, members: list[Write]) -> tuple[list[list[Write]], list[Write]]:
        """Add writes of a partition; return the batches full now, and writes whose key is already held: of
        two rows that want one key the later is returned, and propagate decides."""
        writes = self._pending.pop(partition, [])
        twice: list[Write] = []
        if writes:
            known = {write.row[ROW_KEY] for write in writes}
            met = {self.unit(write) for write in members if write.row[ROW_KEY] in known}
            twice = [write for write in members if met and self.unit(write) in met]
            members = [write for write in members if not met or self.unit(write) not in met]
        if self.in_units:
            units = sorted(_by_source(members), key=lambda unit: utf16_order(unit[0].row[ROW_KEY]))
            full = list(cut_units(_by_source(writes) + units, self._size_of))
        else:
            full = list(cut(writes + in_order(members), self._size_of))
        if len(full[-1]) < MAX_BATCH_OPERATIONS:
            self._pending[partition] = full.pop()
        return full, twice

    def release(self, newest: int) -> Iterator[list[Write]]:
        """Remove and yield the batches with a write that was held long enough when window `newest` begins."""
        # Windows may overtake each other, so the first write held need not be the oldest.
        limit = newest - self._windows
        due = [
            name
            for name, writes in self._pending.items()
            if min([write.window.number for write in writes]) <= limit
        ]
        for name in due:
            yield self._pending.pop(name)

    def release_all(self) -> Iterator[list[Write]]:
        pending, self._pending = self._pending, {}
        yield from pending.values()
