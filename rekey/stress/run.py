"""One stress test: a table of its own, a ramp on one partition, then one for each distribution.

The published procedure ("Designing a scalable partitioning strategy for Azure Table storage"): make a test
table, load it, aim peak load at a single partition, and look at the throughput against the partition's
target; then do it with the distribution that is planned.

Rules kept here:

* Nothing is written but the test table, and it is removed however the test ends. It is noted, durably, before
  it is made, and the note goes after the table: what a killed stress test left is found by the next one. Only
  what is noted is ever removed. A note names the endpoint, too: a table of another account is left alone. The
  caller holds the lock of the notes, so that what is noted is of no test that still runs.
* Of a row of the application only its partition is counted; no value leaves this module. A planned
  distribution needs no secret: which rows share a partition does not depend on it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

from rekey.core.clock import Clock
from rekey.core.progress import Progress
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Migration, required_secrets
from rekey.errors import MachineFailed, RekeyError, RowRefused, ServiceError
from rekey.inspect.inventory import SampleSize, read_sample, read_whole
from rekey.model import PARTITION_KEY, Row
from rekey.project.privatefiles import write_whole
from rekey.stress.load import InProcess, Load
from rekey.stress.ramp import FIRST, MOST, ramp
from rekey.stress.report import Stage, StressReport
from rekey.stress.spread import ONE_PARTITION, ROW_BYTES, MadeUp, Spread, SpreadCount
from rekey.stress.steps import Bounds, judge_all
from rekey.tables.base import Table, TableService


async def stress(
    service: TableService,
    loaded: TableService,
    spreads: Sequence[Spread],
    bounds: Bounds,
    *,
    notes: Notes,
    endpoint: str,
    clock: Clock,
    progress: Progress,
    processor: Callable[[], float] = time.process_time,
) -> StressReport:
    """Run one stress test. The caller holds the lock of the notes.

    Args:
        service: the account: makes and removes the test table.
        loaded: the same account, by a connection that tries nothing again.
        spreads: distributions to try after the single partition.
        bounds: of time, rows and load.
        notes: where test tables are noted.
        endpoint: the account's, for the notes.
        clock: tells when requests are due.
        progress: told of every step.
        processor: seconds of processor that this process has used.

    Raises:
        ServiceError: the account cannot be used; the test table is removed all the same.
        MachineFailed: the notes cannot be written.
    """
    stages: list[Stage] = []
    async with test_table(service, notes, endpoint) as (name, removed):
        generator = InProcess(loaded.table(name), clock, row_bytes=ROW_BYTES, processor=processor)
        load = Load(generator, bounds, clock)
        for number, spread in enumerate([ONE_PARTITION, *spreads]):
            ramped = await ramp(
                load,
                partial(load.offer, MadeUp(spread, number)),
                judge_all,
                first=spread.expected / FIRST,
                most=bounds.most or spread.expected * MOST,
                share=len(spreads) + 1 - number,
                told=spread.name,
                progress=progress,
            )
            stages.append(Stage(spread, tuple(ramped.judged), ramped.bounded))
    return StressReport(name, removed, load.sent, bounds.batch, load.spent, tuple(stages))


@contextlib.asynccontextmanager
async def test_table(
    service: TableService, notes: Notes, endpoint: str
) -> AsyncIterator[tuple[str, tuple[str, ...]]]:
    """Make a test table, and remove it at the end; yield its name, and the tables that an earlier test left
    and that are removed now. The caller holds the lock of the notes.

    Raises:
        ServiceError: the account cannot be used.
        MachineFailed: the notes cannot be written.
        RekeyError: the table could not be removed at the end.
    """
    removed = []
    for left in notes.tables(endpoint):
        if await service.delete_table(left):
            removed.append(left)
        notes.drop(left)
    name = new_name()
    notes.add(name, endpoint)
    try:
        await service.create_table(name)
        yield name, tuple(removed)
    finally:
        try:
            await service.delete_table(name)
        except ServiceError as error:
            raise RekeyError(
                f"the test table could not be removed ({error.code or error.status})",
                kept=f"the test table {name}, which holds made-up rows only",
                hint="repeat the command, which removes it first; or delete it by hand",
            ) from error
        notes.drop(name)


# --- distributions to try --------------------------------------------------------------------------------

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


# --- test tables that are not removed yet -----------------------------------------------------------------

PREFIX = "rekeystress"
_SUFFIX = ".stress"
_NOTE = re.compile(rf"({PREFIX}[0-9a-f]{{16}}) (\S+)")


def new_name() -> str:
    """Return a name for a test table, that no other test has."""
    return PREFIX + secrets.token_hex(8)


class Notes:
    """The notes of one project."""

    def __init__(self, state: Path) -> None:
        """Take the path of the state file."""
        self.path = state.with_name(state.name + _SUFFIX)

    def tables(self, endpoint: str) -> list[str]:
        """Return the noted tables of an account. Raises MachineFailed."""
        return [name for name, where in self._read() if where == endpoint]

    def add(self, name: str, endpoint: str) -> None:
        """Note a table that is about to be made. Raises MachineFailed."""
        self._write([*self._read(), (name, endpoint)])

    def drop(self, name: str) -> None:
        """Forget a table that is gone. Raises MachineFailed."""
        left = [one for one in self._read() if one[0] != name]
        if left:
            self._write(left)
        else:
            self.path.unlink(missing_ok=True)

    def _read(self) -> list[tuple[str, str]]:
        try:
            text = self.path.read_text("utf-8")
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise self._failed("read", error) from None
        # A line that was cut off stands for a table that was not made.
        found = [_NOTE.fullmatch(line) for line in text.split("\n")[:-1]]
        return [(one[1], one[2]) for one in found if one]

    def _write(self, notes: list[tuple[str, str]]) -> None:
        text = "".join(f"{name} {endpoint}\n" for name, endpoint in notes)
        try:
            write_whole(self.path, text.encode("utf-8"))
        except OSError as error:
            raise self._failed("written", error) from None

    def _failed(self, what: str, error: Exception) -> MachineFailed:
        return MachineFailed(
            f"{self.path} cannot be {what} ({type(error).__name__})",
            kept="everything; no test table was made",
            hint="make the state file's folder writable: test tables are noted there before they are made",
        )
