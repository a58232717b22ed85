"""Reads how rows are spread over partitions: those of a table, or of the targets that a script plans. Only
the partition of an application's row is counted."""

from __future__ import annotations

from collections.abc import Sequence

from rekey.core.joint import spoken
from rekey.core.progress import Progress
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Migration, required_secrets
from rekey.declaration.row_makers import TargetRow
from rekey.errors import RowRefused
from rekey.inspect.inventory import SampleSize, read_sample, read_whole
from rekey.model import PARTITION_KEY, Row
from rekey.stress.spread import Spread, SpreadCount
from rekey.tables.base import Table
from rekey.tables.part import part_of


async def spread_of_rows(
    table: Table, migration: Migration | None, *, exact: bool, progress: Progress
) -> tuple[tuple[Spread, ...], int]:
    """Return how a table's rows are spread, or would be by a script, and how many rows it refuses.

    Raises:
        TableMissing: there is no such table.
        ServiceError: it could not be read.
    """
    names: tuple[str, ...] = (table.name,)
    map_row = _as_it_is
    if migration is not None:
        # Which rows share a partition does not depend on the secret.
        secrets = dict.fromkeys(required_secrets(migration), b"made up for counting only")
        names, map_row = tuple(map(spoken, migration.tables)), Mapper(migration, secrets).map
        table = part_of(table, migration.key_space)
    counts, refused = [SpreadCount(name) for name in names], 0

    def taken(rows: Sequence[Row], _part: int) -> None:
        nonlocal refused
        for row in rows:
            try:
                for number, mapped in map_row(row):
                    counts[number].add(mapped[PARTITION_KEY])
            except RowRefused:
                refused += 1
        advance(len(rows))

    with progress.task(f"read partitions of {table.name}") as advance:
        if exact:
            await read_whole(table, taken)
        else:
            await read_sample(table, SampleSize(), taken)
    return tuple(count.spread for count in counts), refused


def _as_it_is(row: Row) -> list[TargetRow]:
    return [TargetRow(0, row)]
