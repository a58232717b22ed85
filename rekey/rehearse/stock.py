"""The rows of a rehearsal: from a file or generated; which are loaded, and which are kept back for the
application to insert, so that inserted rows are as real as loaded ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

from rekey.copy.batches import pack
from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.core.concurrency import for_each
from rekey.core.edm import BINARY, BOOLEAN, DATETIME, DOUBLE, GUID, INT32, INT64, STRING, canonical
from rekey.core.limits import own_name
from rekey.declaration.casts import ANNOTATED, wire_value
from rekey.declaration.keys.base import WHOLE_ROW, Prop
from rekey.declaration.keys.moments import Date, InvertedSeconds, InvertedTicks, Ticks
from rekey.declaration.keys.pieces import Part
from rekey.declaration.keys.text import ZeroPad
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Migration
from rekey.declaration.props import Cast, Compute, Copy, Keep, Rename
from rekey.declaration.rows import AllOf, AnyOf, Condition, KeyIs, NoneOf, PropIs, Value
from rekey.model import PARTITION_KEY, ROW_KEY, TIMESTAMP, TYPE_SUFFIX, Row, key_of, property_names
from rekey.rehearse.application import Application, places_of
from rekey.rehearse.azurite import AzuriteAccount
from rekey.rehearse.refusals import refusal
from rekey.rehearse.witness import Place
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Operation, Table, Verb
from rekey.tables.credentials import SharedKey

FEWEST_ROWS = 20
_KEPT_BACK_EVERY = 20
_KEPT_BACK_AT_MOST = 300
_ROWS_AT_ONCE = 5000
_BATCHES_AT_ONCE = 8


class Data(Protocol):
    """Rows that were given."""

    @property
    def described(self) -> str:
        """Where they are from."""

    @property
    def assumptions(self) -> Sequence[str]:
        """What was assumed about the rows read so far, one sentence each."""

    def rows(self) -> Iterator[Row]:
        """Yield the rows as the service has them. Raises ConfigurationError, Refused."""


@dataclass
class Stock:
    """The rows of a rehearsal, not held in memory: each iteration reads or makes them again."""

    count: int
    _make: Callable[[], Iterator[Row]]
    source: str
    assumptions: tuple[str, ...] = ()
    loaded: int = 0
    kept_back: int = 0

    @classmethod
    def of(cls, mapper: Mapper, rows: int, data: Data | None, seed: int) -> Stock:
        """Return rows that were given, which are first read completely, or rows generated for a declaration.
        Raises ConfigurationError, and what `data.rows` raises."""
        if data is None:
            stock = cls(0, lambda: rows_for(mapper, rows, seed), f"made up from seed {seed}")
        else:
            stock = cls(0, data.rows, data.described)
        stock.count = sum(1 for _ in stock.rows())
        stock.assumptions = () if data is None else tuple(data.assumptions)
        if stock.count < FEWEST_ROWS:
            raise refusal("too-few-rows", count=stock.count, least=FEWEST_ROWS)
        return stock

    @property
    def described(self) -> str:
        kept = f" ({self.kept_back:,} more kept back for the application)" if self.kept_back else ""
        return self.source + kept

    def rows(self) -> Iterator[Row]:
        for row in self._make():
            # Azurite does not preserve -0.0.
            minus_zero = [name for name in property_names(row) if canonical(row, name) == (DOUBLE, "-0.0")]
            yield {**row, **dict.fromkeys(minus_zero, 0.0)} if minus_zero else row

    def is_kept_back(self, number: int) -> bool:
        return number % _KEPT_BACK_EVERY == 1 and number < _KEPT_BACK_EVERY * _KEPT_BACK_AT_MOST


async def load(account: AzuriteAccount, stock: Stock, application: Application) -> None:
    """Create the source and load the rows; give the application the loaded rows and those kept back. Raises
    ConfigurationError when two rows have the same key."""
    kept_back: list[Row] = []
    waiting: list[Row] = []
    async with AzureTableService.open(account.endpoint, SharedKey.of(account.name, account.key)) as service:
        source = own_name(application.source_name)
        await service.create_table(source)
        table = service.table(source)

        for number, row in enumerate(stock.rows()):
            if stock.is_kept_back(number):
                kept_back.append(row)
                continue
            if key_of(row) in application.must_hold:
                raise refusal("key-twice", row=number + 1)
            application.loaded(row)
            waiting.append(row)
            stock.loaded += 1
            if len(waiting) == _ROWS_AT_ONCE:
                await insert(table, waiting)
                waiting.clear()
        await insert(table, waiting)
    stock.kept_back = len(kept_back)
    application.kept_back = kept_back


async def insert(table: Table, rows: Iterable[Row]) -> None:
    """Insert rows that are not there, in batches."""
    operations = (Operation(Verb.INSERT, row) for row in rows)
    await for_each(pack(operations, table.encoded_size), table.transact, limit=_BATCHES_AT_ONCE)


# --- generated ---------------------------------------------------------------------------------------------

_TRIED = 50
_PARTITIONS = 40
_DROPPED_EVERY = 10
# Of a part of a table, one row of so many is made up without a look at `where`.
_BESIDE_EVERY = 5
_START = ticks_of("2021-01-01T00:00:00Z")
_YEARS = 3 * 365 * 86_400 * TICKS_PER_SECOND
SYLLABLES = (
    *("an", "bo", "ce", "da", "el", "fa", "go", "hi", "jo"),
    *("ka", "li", "mo", "ne", "or", "pi", "ru", "sa", "to"),
)
_DOMAINS = ("mail.example", "post.example", "work.example", "club.example")
TAGS = ("azure", "cloud", "data", "keys", "news", "ops", "tables", "travel", "web", "C#", "a/b testing")
_COUNTING_WIDTH = 7
# Text of a value of each EDM type.
_TEXTS = {
    STRING: "text",
    **dict.fromkeys((INT32, INT64, DOUBLE), "1"),
    BOOLEAN: "true",
    DATETIME: "2021-01-01T00:00:00.0000000Z",
    GUID: "00000000-0000-0000-0000-000000000001",
    BINARY: "AA==",
}


def rows_for(mapper: Mapper, count: int, seed: int) -> Iterator[Row]:
    """Yield `count` rows that the migration accepts and that do not collide in any target. A property's type
    follows from the expression that reads it (a DateTime under `keys.date`, a number under `keys.zero_pad`);
    the mapper decides whether rows are suitable.

    Raises:
        ConfigurationError: most are not (`keys.regex`, a custom function): use `--data`.
    """
    migration = mapper.migration
    attempts = count * 2 + _TRIED
    generators = [users(attempts, seed=seed)] if migration.source == "Users" else []
    generators.append(_from_declaration(migration, attempts, seed))
    for rows in generators:
        first = list(islice(rows, _TRIED))
        if sum(bool(places_of(mapper, row)) for row in first) * 2 > len(first):
            return islice(_apart(mapper, chain(first, rows)), count)
    raise refusal("no-rows-for", source=migration.source)


def users(count: int, *, seed: int = 0, partitions: int = 20) -> Iterator[Row]:
    """Yield rows of the table `Users` of demo and tutorial, with an e-mail address as RowKey. Row n depends
    only on seed and n. No real person's data: names are made from syllables, addresses end in `.example`,
    which is reserved (RFC 2606)."""
    for number in range(count):
        lot = random.Random(f"{seed}/{number}")  # noqa: S311 - repeatable test data
        first, last = ("".join(lot.choices(SYLLABLES, k=lot.randrange(2, 4))) for _ in range(2))
        yield {
            PARTITION_KEY: f"tenant-{lot.randrange(partitions):03d}",
            ROW_KEY: f"{first}.{last}{number}@{lot.choice(_DOMAINS)}",
            "Name": f"{first.capitalize()} {last.capitalize()}",
            "Joined": format_ticks(_START + lot.randrange(_YEARS)),
            "Joined" + TYPE_SUFFIX: DATETIME,
            "Logins": lot.randrange(5_000),
            "Active": lot.random() < 0.8,
            "Tags": ",".join(sorted(lot.sample(TAGS, lot.randrange(4)))),
        }


def _apart(mapper: Mapper, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows that can be mapped and share no target key with an earlier one, and those that are not
    migrated."""
    taken: set[Place] = set()
    for row in rows:
        places, stays = places_of(mapper, row), not mapper.migration.has(key_of(row))
        if stays or mapper.is_dropped(row) or (places and taken.isdisjoint(places)):
            taken.update(places)
            yield row


def _from_declaration(migration: Migration, count: int, seed: int) -> Iterator[Row]:
    """Yield rows with the properties that the declaration reads, of each kind in turn; with some that no kind
    need take where the script drops those."""
    kinds, separators, widths = _read_by(migration)
    for number in range(count):
        lot = random.Random(f"{seed}/{number}")  # noqa: S311 - repeatable test data
        row: Row = {}
        for name, edm in kinds.items():
            n = number % _PARTITIONS if name == PARTITION_KEY else number
            separator = separators.get(name, "")
            if name in (PARTITION_KEY, ROW_KEY):
                text = (separator or "-").join(("made", "up", "part", str(n).zfill(_COUNTING_WIDTH)))
            elif separator:
                text = separator.join(f"item{item}" for item in lot.sample(range(20), 4))
            else:
                text = f"text {lot.randrange(10_000)}"
            row[name] = {
                DATETIME: format_ticks(_START + n * 977 * TICKS_PER_SECOND + n % TICKS_PER_SECOND),
                INT64: str(n % 10 ** widths.get(name, _COUNTING_WIDTH)),
                INT32: n,
                BOOLEAN: lot.random() < 0.5,
                DOUBLE: n + 0.5,
            }.get(edm, text)
            if edm != STRING and name not in (PARTITION_KEY, ROW_KEY):
                row[name + TYPE_SUFFIX] = edm
        dropped = number // _DROPPED_EVERY if migration.dropped else 0
        if migration.kinds and (not migration.dropped or (number + 1) % _DROPPED_EVERY):
            meet(migration.kinds[(number - dropped) % len(migration.kinds)].when, row)
        if migration.where is not None and number % _BESIDE_EVERY:
            meet(migration.where, row)
        yield row


def meet(condition: Condition, row: Row) -> None:
    """Change a row so that it meets a condition, as far as that is easy: a pattern of keys is not tried."""
    match condition:
        case KeyIs(name=name, prefix=prefix, bounds=bounds):
            whole = next((value.text for value in bounds.one_of), None)
            least = "" if bounds.at_least is None else bounds.at_least.text
            row[name] = f"{prefix or least}{row[name]}" if whole is None else whole
        case PropIs(name=name, edm=edm, bounds=bounds):
            value = next(iter(bounds.one_of), bounds.at_least or Value(edm or STRING, _TEXTS[edm or STRING]))
            row.pop(name + TYPE_SUFFIX, None)
            if value.edm in ANNOTATED:
                row[name + TYPE_SUFFIX] = value.edm
            row[name] = wire_value(value.edm, value.text)
        case AllOf(of=conditions):
            for each in conditions:
                meet(each, row)
        case AnyOf(of=conditions):
            meet(conditions[0], row)
        case NoneOf(of=conditions):
            named = frozenset[str]().union(*(each.inputs() for each in conditions))
            for name in named - {PARTITION_KEY, ROW_KEY}:
                row.pop(name, None)
                row.pop(name + TYPE_SUFFIX, None)


def _read_by(migration: Migration) -> tuple[dict[str, str], dict[str, str], dict[str, int]]:
    """Return what the declaration reads, by property: EDM types of keys and properties; separators of
    properties that are split; digits of properties that are zero-padded."""
    kinds, separators, widths = _kinds(migration), dict[str, str](), dict[str, int]()
    for index in migration.indexes:
        if index.each is not None:
            separators |= dict.fromkeys(index.each.of.inputs(), index.each.separator)
    for _, expression in migration.expressions():
        kinds |= dict.fromkeys(expression.inputs() - kinds.keys(), STRING)
        for node in expression.walk():
            operands = [operand.name for operand in node.operands() if isinstance(operand, Prop)]
            match node:
                case Date() | Ticks() | InvertedTicks() | InvertedSeconds():
                    kinds |= dict.fromkeys(operands, DATETIME)
                case ZeroPad(width=width):
                    kinds |= dict.fromkeys(operands, INT64)
                    widths |= {name: min(width, widths.get(name, width)) for name in node.inputs()}
                case Part(separator=separator):
                    separators |= dict.fromkeys(node.inputs(), separator)
    for name in (PARTITION_KEY, ROW_KEY, "Note"):
        kinds.setdefault(name, STRING)
    kinds = {name: edm for name, edm in kinds.items() if name not in (TIMESTAMP, WHOLE_ROW)}
    return kinds, separators, widths


def _kinds(migration: Migration) -> dict[str, str]:
    """Return the EDM types of the properties that property operations name."""
    kinds: dict[str, str] = {}
    operations = [prop for _, table in migration.declared_tables for prop in table.properties]
    old_names = {operation.new: operation.old for operation in operations if isinstance(operation, Rename)}
    for operation in operations:
        match operation:
            case Keep(names):
                kinds |= dict.fromkeys(names, STRING)
            case Rename(old=name) | Copy(source=name):
                kinds.setdefault(name, STRING)
            case Compute(needed=names):
                for name in names:
                    kinds.setdefault(name, STRING)
            case Cast(name, to, was):
                kinds[old_names.get(name, name)] = was or (INT32 if to in (INT32, INT64) else STRING)
    return kinds
