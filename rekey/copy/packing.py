"""Packing operations into entity group transactions, as a pure function.

Rules kept here:

* A batch holds one partition of one table, at most 100 operations, at most 4 MiB of encoded body, and each
  row once (the service's limits).
* Within a partition operations are ordered by row key, so that a batch's keys lie close together and a
  conflict can be looked up with one range query.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rekey.model import PARTITION_KEY, ROW_KEY, utf16_order
from rekey.tables.base import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, Operation

Op = TypeVar("Op", bound=Operation)
SizeOf = Callable[[Operation], int]
"""Encoded bytes of one operation in a batch body, its multipart headers included."""


def pack(operations: Iterable[Operation], size_of: SizeOf) -> Iterator[list[Operation]]:
    """Yield batches of operations of one table, each within the limits of one transaction."""
    partitions: defaultdict[str, list[Operation]] = defaultdict(list)
    sort_out(operations, partitions)
    for members in partitions.values():
        yield from cut(in_order(members), size_of)


def sort_out(operations: Iterable[Op], into: defaultdict[str, list[Op]]) -> None:
    """Put operations to those of their partition."""
    for operation in operations:
        into[operation.row[PARTITION_KEY]].append(operation)


def in_order(members: list[Op]) -> list[Op]:
    """Sort operations of one partition as the service does, in place, and return them."""
    if len(members) > 1:
        # ASCII sorts as UTF-16 does, and most keys are ASCII.
        is_ascii = all(member.row[ROW_KEY].isascii() for member in members)
        members.sort(key=_row_key if is_ascii else _row_order)
    return members


def _row_key(operation: Operation) -> str:
    key: str = operation.row[ROW_KEY]
    return key


def _row_order(operation: Operation) -> bytes:
    return utf16_order(operation.row[ROW_KEY])


def cut(members: Iterable[Op], size_of: SizeOf) -> Iterator[list[Op]]:
    """Yield operations of one partition, as they come, in batches; the last one may be small."""
    batch: list[Op] = []
    size = 0
    for operation in members:
        bytes_more = size_of(operation)
        if batch and (len(batch) == MAX_BATCH_OPERATIONS or size + bytes_more > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(operation)
        size += bytes_more
    if batch:
        yield batch
