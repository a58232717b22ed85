"""The rows of a rehearsal: where they come from, which are loaded, which are kept back.

Rules kept here:

* Rows come from a file, or are made up for the declaration. A file is read once before anything is started:
  one that cannot be loaded is refused then.
* Some rows are kept back, spread over the whole: the application inserts them later, so that what is inserted
  is as real as what was there.
* Two rows of one key are refused; neither wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rekey.core.concurrency import for_each
from rekey.core.edm import DOUBLE, canonical
from rekey.declaration.mapper import Mapper
from rekey.errors import ConfigurationError
from rekey.model import Row, key_of, property_names
from rekey.rehearse.application import Application
from rekey.rehearse.azurite import AzuriteAccount
from rekey.rehearse.data import DataFile, open_data
from rekey.rehearse.madeup import rows_for
from rekey.tables.azure import AzureTableService
from rekey.tables.base import MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, Operation, Table, Verb
from rekey.tables.credentials import SharedKey

FEWEST_ROWS = 20
_KEPT_BACK_EVERY = 20
_KEPT_BACK_AT_MOST = 300
_ROWS_AT_ONCE = 5000
_BATCHES_AT_ONCE = 8


@dataclass
class Stock:
    """The rows, before they are loaded.

    Attributes:
        count: how many rows there are.
        loaded, kept_back: how many have been loaded into the source, and how many the application got.
    """

    count: int
    _make: Callable[[], Iterator[Row]]
    _file: DataFile | None
    _seed: int
    loaded: int = 0
    kept_back: int = 0

    @classmethod
    def of(cls, mapper: Mapper, rows: int, data: Path | None, seed: int) -> Stock:
        """Return the rows of a file, or rows made up for a declaration.

        Raises:
            ConfigurationError: fewer than `FEWEST_ROWS`, a bad file, or no rows can be made up.
        """
        if data is not None:
            file = open_data(data)
            count = sum(1 for _ in file.rows())
            stock = cls(count, file.rows, file, seed)
        else:
            stock = cls(rows, lambda: rows_for(mapper, rows, seed), None, seed)
            count = rows if rows < FEWEST_ROWS else sum(1 for _ in stock.rows())
            stock.count = count
        if count < FEWEST_ROWS:
            raise ConfigurationError(
                f"{count} rows are too few to kill a migration in its middle",
                hint=f"rehearse with {FEWEST_ROWS} rows or more",
            )
        return stock

    @property
    def described(self) -> str:
        """Where the rows come from."""
        kept = f" ({self.kept_back:,} more kept back for the application)" if self.kept_back else ""
        if self._file is not None:
            return f"from {self._file.path.name}, read as {self._file.format}{kept}"
        return f"made up from seed {self._seed}{kept}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was assumed about the file."""
        return () if self._file is None else tuple(self._file.assumptions)

    def rows(self) -> Iterator[Row]:
        """Yield the rows as Azurite keeps them."""
        for row in self._make():
            yield _as_azurite_keeps(row)

    def is_kept_back(self, number: int) -> bool:
        """Tell whether row number n is kept back for the application."""
        return number % _KEPT_BACK_EVERY == 1 and number < _KEPT_BACK_EVERY * _KEPT_BACK_AT_MOST


def _as_azurite_keeps(row: Row) -> Row:
    """Return a row with 0.0 for -0.0, which Azurite does not keep."""
    minus_zero = [name for name in property_names(row) if canonical(row, name) == (DOUBLE, "-0.0")]
    return {**row, **dict.fromkeys(minus_zero, 0.0)} if minus_zero else row


async def load(account: AzuriteAccount, stock: Stock, application: Application) -> None:
    """Create the source and load the rows; tell the application which are there and which it keeps back.

    Raises:
        ConfigurationError: two rows have one key.
    """
    kept_back: list[Row] = []
    async with AzureTableService.open(account.endpoint, SharedKey.of(account.name, account.key)) as service:
        await service.create_table(application.source_name)
        table = service.table(application.source_name)
        waiting: list[Row] = []
        for number, row in enumerate(stock.rows()):
            if stock.is_kept_back(number):
                kept_back.append(row)
                continue
            if key_of(row) in application.must_hold:
                raise _double(number)
            application.loaded(row)
            waiting.append(row)
            stock.loaded += 1
            if len(waiting) == _ROWS_AT_ONCE:
                await _insert(table, waiting)
                waiting = []
        await _insert(table, waiting)
    stock.kept_back = len(kept_back)
    application.keep_back(kept_back)


def _double(number: int) -> ConfigurationError:
    return ConfigurationError(
        f"row {number + 1} has the key of an earlier row", hint="give every row a key of its own"
    )


async def _insert(table: Table, rows: list[Row]) -> None:
    async def transact(batch: list[Operation]) -> None:
        await table.transact(batch)

    await for_each(list(_batches(table, rows)), transact, limit=_BATCHES_AT_ONCE)


def _batches(table: Table, rows: list[Row]) -> Iterator[list[Operation]]:
    """Yield batches of one partition, within the service's limits."""
    partitions: dict[str, list[Row]] = {}
    for row in rows:
        partitions.setdefault(row["PartitionKey"], []).append(row)
    for together in partitions.values():
        batch: list[Operation] = []
        size = 0
        for row in together:
            operation = Operation(Verb.INSERT, row)
            weight = table.encoded_size(operation)
            if batch and (len(batch) == MAX_BATCH_OPERATIONS or size + weight > MAX_BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(operation)
            size += weight
        if batch:
            yield batch
