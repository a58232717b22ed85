"""A small world for scenarios: a declaration at work on tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from rekey import Index, Migration, RowKind, Target, keys, props, rows
from rekey.copy.scan import WindowSize
from rekey.copy.sweep import sweep
from rekey.copy.write import Copier
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.mapping.computed import ComputedMapping
from rekey.mapping.rows import MAPPING_TABLE, MappingRows
from rekey.mapping.store import MappingStore
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.protocol.propagate import Propagator
from rekey.tables.base import Table
from rekey.tables.kinds import by_number
from rekey.tables.part import parts_of
from tests.fakes.memory import MemoryTable, MemoryTableService

SCRIPT = "0001_users"
SECRET = b"0123456789abcdef0123456789abcdef"

USERS = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.opaque(keys.prop("RowKey"), domain="user", secret="users"),
        properties=[props.copy("RowKey", to="ContactEmail"), props.rename("Nm", "Name"), props.drop("Ssn")],
    ),
    capture="delta",
)
"""Keys derived from keys alone."""

POSTS = Migration(
    source="Posts",
    target=Target(
        "PostsV2",
        partition_key=keys.prop("Month"),
        row_key=keys.prop("RowKey"),
        properties=[props.copy("PartitionKey", to="Blog")],
    ),
    indexes=[
        Index(
            "PostsByTag",
            each=keys.split("Tags", ","),
            partition_key=keys.item(),
            row_key=keys.prop("RowKey"),
            properties=[props.keep("Title")],
        )
    ],
    capture="delta",
)
"""Keys derived from content, with a fan-out."""

LOWERED = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.lower(keys.prop("RowKey")),
        properties=[props.copy("RowKey", to="OldRowKey")],
    ),
    capture="delta",
    waive={"personal-data": "made-up addresses, folded on purpose", "merged-keys": "told as collisions here"},
)
"""Two source keys may map to one target key."""


INVERTED = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.bucket(4, "sha256", "RowKey", prefix="b") + keys.prop("PartitionKey"),
        row_key=keys.literal("U:") + keys.prop("RowKey"),
        properties=[props.rename("Nm", "Name"), props.drop("Ssn")],
    ),
    capture="delta",
    mapping="none",
    waive={"personal-data": "made-up addresses, kept on purpose"},
)
"""Keys that say what they were: no mapping is stored."""

RACES = Migration(
    source="Races",
    target=Target(
        "RacesByKey",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.join("__", keys.literal("BIB:") + keys.prop("RowKey"), keys.prop("Name")),
        properties=[props.copy("RowKey", to="Bib")],
    ),
    indexes=[
        Index(
            "RacesByKey",
            partition_key=keys.prop("PartitionKey"),
            row_key=keys.join("__", keys.literal("AGE:") + keys.zero_pad(3, "Age"), keys.prop("RowKey")),
            properties=[props.keep_all()],
        )
    ],
    capture="delta",
)
"""A secondary row next to each main row; keys derived from content."""

SEATS = Migration(
    source="Guests",
    target=Target(
        "GuestsV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.literal("U:") + keys.prop("RowKey"),
        properties=[props.copy("RowKey", to="OldRowKey")],
    ),
    indexes=[
        Index(
            "GuestsBySeat",
            partition_key=keys.prop("PartitionKey"),
            row_key=keys.literal("S:") + keys.prop("Seat"),
        )
    ],
    capture="delta",
)
"""Two source rows may want one index key."""

HANDLES = replace(SEATS, target=replace(SEATS.target, row_key=keys.literal("U:") + keys.prop("Handle")))
"""Two source rows may want one main key, with index keys of their own, and one index key."""

BENCHES = replace(HANDLES, indexes=[replace(SEATS.indexes[0], table="GuestsV2")])
"""The index rows of HANDLES as secondary rows."""

TICKETS = Migration(
    source="Tickets",
    kinds=[
        RowKind(
            "closed",
            when=rows.prop("Status", equals="closed"),
            target=Target(
                "TicketsV2",
                partition_key=keys.keep(),
                row_key=keys.literal("closed:") + keys.prop("RowKey"),
                properties=[props.copy("RowKey", to="Number")],
            ),
        ),
        RowKind(
            "open",
            when=rows.every(),
            target=Target(
                "TicketsV2",
                partition_key=keys.keep(),
                row_key=keys.literal("open:") + keys.prop("RowKey"),
                properties=[props.copy("RowKey", to="Number")],
            ),
            indexes=[Index("TicketsByOwner", partition_key=keys.prop("Owner"), row_key=keys.prop("RowKey"))],
        ),
    ],
    capture="dual-write",
)
"""Two kinds of rows, told apart by a property: a row that is closed has another key and no index row."""

TICKETS_APART = Migration(
    source="Tickets",
    kinds=[
        RowKind(
            "closed",
            when=rows.prop("Status", equals="closed"),
            target=Target("TicketsClosed", partition_key=keys.keep(), row_key=keys.keep()),
        ),
        RowKind(
            "open",
            when=rows.every(),
            target=Target("TicketsOpen", partition_key=keys.keep(), row_key=keys.keep()),
        ),
    ],
    capture="dual-write",
)
"""Two kinds of rows with a table each, told apart by a property: a row that is closed is in the other table,
under the same key."""


def _by_owner(begins: str) -> Index:
    row_key = keys.literal(begins) + keys.prop("RowKey")
    return Index(
        "TicketsByOwner",
        partition_key=keys.prop("Owner"),
        row_key=row_key,
        properties=[props.keep("Version")],
    )


TICKETS_BY_OWNER = replace(
    TICKETS_APART,
    target=None,
    indexes=(),
    kinds=[
        replace(kind, indexes=[_by_owner(begins)])
        for kind, begins in zip(TICKETS_APART.kinds, ("closed:", "open:"), strict=True)
    ],
)
"""TICKETS_APART with an index of each kind, in one table: a row that is closed has another index row."""

DROPPING = replace(
    TICKETS,
    target=None,
    indexes=(),
    kinds=[TICKETS.kinds[0], replace(TICKETS.kinds[1], when=rows.prop("Status", equals="open"))],
    otherwise=rows.drop(reason="drafts that nobody filed"),
)
"""TICKETS, and rows that are neither open nor closed, which are not migrated."""

DROPPING_BY_KEY = Migration(
    source="Tickets",
    kinds=[
        RowKind(
            "filed",
            when=rows.row_key(prefix="F"),
            target=Target(
                "TicketsV2",
                partition_key=keys.keep(),
                row_key=keys.keep(),
                properties=[props.copy("RowKey", to="Number")],
            ),
        )
    ],
    otherwise=rows.drop(reason="drafts that nobody filed"),
    capture="dual-write",
)
"""Rows whose keys alone say that no kind takes them."""


def racer(bib: str, age: int = 55, name: str = "John", race: str = "nyc", **more: object) -> Row:
    """A source row of RACES."""
    return {"PartitionKey": race, "RowKey": bib, "Name": name, "Age": age, **more}


def halves(mapper: Mapper, rows: Iterable[Row]) -> list[EntityKey]:
    """Return the rows that stand without the row that they go with: a secondary row without its main row, or
    a main row without a secondary row of each kind."""
    found = list(rows)
    main = {key_of(row) for row in found if mapper.number_by_row_key(row["RowKey"]) == 0}
    pointed: dict[int, set[EntityKey]] = {number: set() for number in mapper.co_located - {0}}
    alone = []
    for row in found:
        if number := mapper.number_by_row_key(row["RowKey"]):
            pointer = EntityKey(row["MainPartitionKey"], row["MainRowKey"])
            pointed[number].add(pointer)
            alone += [key_of(row)] if pointer not in main else []
    return alone + [key for keys_of_kind in pointed.values() for key in sorted(main - keys_of_kind)]


def user(email: str, partition: str = "eu", **more: object) -> Row:
    """A source row of USERS."""
    return {"PartitionKey": partition, "RowKey": email, "Nm": email.split("@")[0], "Ssn": "x-1", **more}


def post(slug: str, month: str = "2024-01", tags: str = "a,b", **more: object) -> Row:
    """A source row of POSTS."""
    return {"PartitionKey": "blog", "RowKey": slug, "Month": month, "Tags": tags, "Title": slug, **more}


def ticket(number: str, status: str = "open", **more: object) -> Row:
    """A source row of TICKETS."""
    return {"PartitionKey": "eu", "RowKey": number, "Status": status, "Owner": "ann", **more}


def contents(rows: Iterable[Row]) -> dict[EntityKey, Row]:
    """Return rows by key, without ETag and Timestamp."""
    return {key_of(row): content_of(row) for row in rows}


def mapped(mapper: Mapper, source: Iterable[Row]) -> dict[str, dict[EntityKey, Row]]:
    """Return what every target should hold, from what the source holds."""
    tables: dict[str, dict[EntityKey, Row]] = {name: {} for name in mapper.tables}
    for row in source:
        for number, made in mapper.map(row):
            tables[mapper.tables[number]][key_of(made)] = made
    return tables


class Killed(BaseException):
    """Stands for SIGKILL: no handler runs, nothing is given back."""


def mapping_of(mapper: Mapper, table: Table, patience_s: float = 0.0) -> MappingStore:
    """Return the mapping of a migration of a small world, stored in a table or computed."""
    rows = MappingRows(SCRIPT, mapper.migration.source, mapper.tables, SafeIds(bytes(32)))
    if mapper.migration.inverse is not None:
        return ComputedMapping(table, rows, patience_s=patience_s, mapper=mapper)
    return MappingStore(table, rows, patience_s=patience_s)


@dataclass
class World:
    """One migration on tables in memory, with everything the engines need."""

    service: MemoryTableService
    migration: Migration
    mapper: Mapper = field(init=False)
    source: MemoryTable = field(init=False)
    targets: list[MemoryTable] = field(init=False)
    mapping: MappingStore = field(init=False)
    propagator: Propagator = field(init=False)
    copier: Copier = field(init=False)

    def __post_init__(self) -> None:
        self.mapper = Mapper(self.migration, {"users": SECRET})
        self.source = self.service.table(self.migration.source)
        self.targets = [self.service.table(name) for name in self.mapper.tables]
        self.mapping = mapping_of(self.mapper, self.service.table(MAPPING_TABLE))
        opened = parts_of(self.migration.key_spaces, self.service.table)
        by_kind = by_number(self.mapper.tables, self.migration.beginnings, opened)
        self.propagator = Propagator(opened(self.migration.source), by_kind, self.mapper, self.mapping)
        self.copier = Copier(self.propagator, concurrency=4)

    async def prepare(self, rows: Iterable[Row] = ()) -> World:
        """Create all tables and fill the source."""
        for name in (self.migration.source, *self.migration.table_names, MAPPING_TABLE):
            await self.service.create_table(name)
        for row in rows:
            await self.source.insert(row)
        return self

    @property
    def window(self) -> WindowSize:
        """Small windows, so that a few hundred rows make several."""
        return WindowSize(rows=100, bytes=1_000_000)

    def expected(self) -> dict[str, dict[EntityKey, Row]]:
        """What the targets should hold, from what the source holds."""
        rows = self.service.dump(self.source.name)
        return mapped(self.mapper, [row for row in rows if self.migration.has(key_of(row))])

    def actual(self) -> dict[str, dict[EntityKey, Row]]:
        """What the targets hold."""
        return {name: contents(self.service.dump(name)) for name in self.mapper.tables}

    def unaccounted(self) -> list[EntityKey]:
        """Main target rows without a reverse mapping row."""
        known = {key_of(row) for row in self.service.dump(MAPPING_TABLE)}
        rows, number_of = self.mapping.rows, self.mapper.number_by_row_key
        main = [key for key in self.actual()[self.mapper.tables[0]] if number_of(key.row) == 0]
        return [key for key in main if rows.reverse_key(key) not in known]

    def assert_in_step(self) -> None:
        """Targets hold exactly what the source says, and the mapping accounts for every row."""
        assert self.actual() == self.expected()
        assert self.unaccounted() == []


def nothing(_rows: int) -> None:
    """An advance that nobody watches."""


def never() -> bool:
    """A stop that is never requested."""
    return False


def go_on() -> None:
    """A check that never stops."""


async def swept(world: World) -> int:
    """Sweep; return for how many keys that changed something."""
    to = world.propagator
    return await sweep(to, concurrency=4, advance=nothing, check=go_on)


Make = Callable[[], Row]
