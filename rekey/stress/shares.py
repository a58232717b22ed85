"""Reading how rows are spread over partitions: those of a table, or of the targets that a script plans.

Rules kept here:

* Of a row of the application only its partition is counted; no value leaves this module.
* A planned distribution needs no secret: which rows share a partition does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rekey.core.progress import Progress
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Migration, required_secrets
from rekey.errors import RowRefused
from rekey.inspect.inventory import SampleSize, read_sample, read_whole
from rekey.model import PARTITION_KEY, Row
from rekey.stress.spread import Spread, SpreadCount
from rekey.tables.base import Table

_SECRET = b"made up for counting only"


async def spread_of_table(table: Table, *, exact: bool, progress: Progress) -> tuple[Spread, ...]:
    """Return how a table's rows are spread. Raises TableMissing and service errors."""
    count = SpreadCount(table.name)
    await _read(table, lambda row: count.add(row[PARTITION_KEY]), exact=exact, progress=progress)
    return (count.spread,)


async def spread_of_design(
    source: Table, migration: Migration, *, exact: bool, progress: Progress
) -> tuple[tuple[Spread, ...], int]:
    """Return how a script would spread the rows of its source over its targets, and the rows it refuses.

    Raises:
        TableMissing: there is no source.
        ServiceError: it could not be read.
    """
    mapper = Mapper(migration, dict.fromkeys(required_secrets(migration), _SECRET))
    counts = [SpreadCount(name) for name in migration.tables]
    refused = 0

    def take(row: Row) -> None:
        nonlocal refused
        try:
            for mapped in mapper.map(row):
                counts[mapped.table].add(mapped.row[PARTITION_KEY])
        except RowRefused:
            refused += 1

    await _read(source, take, exact=exact, progress=progress)
    return tuple(count.spread for count in counts), refused


async def _read(table: Table, take: Callable[[Row], None], *, exact: bool, progress: Progress) -> None:
    with progress.task(f"read partitions of {table.name}") as advance:

        def taken(rows: Sequence[Row], _continues: bool) -> None:
            for row in rows:
                take(row)
            advance(len(rows))

        if exact:
            await read_whole(table, taken)
        else:
            await read_sample(table, SampleSize(), taken)
