"""Two migrations that fill one table at the same time, and clients of them in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rekey import Index, Migration, Target, keys, props
from rekey.client.lease import LeaseSettings
from rekey.client.sdk.options import ClientOptions
from rekey.client.sdk.router import Carrier, carrier_of
from rekey.declaration.migration import Declared
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.opening import Prepared
from rekey.tables.base import Accounts, TableService
from tests.worlds.begun_migrations import Begun, declared_as
from tests.worlds.carriers import LeftOpen, no_wrapping_key
from tests.worlds.parts_of_a_table import QUICK

DE, FR, FREE = "DE", "FR", "US"
"""How new PartitionKeys begin: of the first migration's rows, of the second one's, and of neither's."""
ALL = "all"
"""The PartitionKey of all new rows, where RowKeys tell them apart."""


def merging(
    region: str, source: str, target: str, *, by_rows: bool = False, index: str = "", **more: object
) -> Migration:
    """Return the migration of one region's orders into a table of all. `by_rows`: into one partition of it;
    `index`: a table of all as well; `more`: further arguments."""
    begins = keys.literal(region)
    return Migration(
        source,
        Target(
            target,
            partition_key=keys.literal(ALL) if by_rows else keys.join("_", begins, "PartitionKey"),
            row_key=keys.join("_", begins, "PartitionKey", "RowKey") if by_rows else keys.keep(),
            properties=[
                props.copy("PartitionKey", to="Customer"),
                *([props.copy("RowKey", to="Number")] if by_rows else []),
            ],
            shared=True,
        ),
        [
            Index(
                index,
                partition_key=keys.literal(ALL) if by_rows else keys.join("_", begins, "RowKey"),
                row_key=keys.join("_", begins, "RowKey", "PartitionKey")
                if by_rows
                else keys.prop("PartitionKey"),
                shared=True,
            )
        ]
        if index
        else [],
        **{"capture": "dual-write", **more},  # type: ignore[arg-type]
    )


@dataclass
class Merged:
    """The migrations of two tables into one."""

    service: TableService
    restricted: TableService
    target: str
    index: str
    by_rows: bool
    begun: dict[str, Begun]

    @classmethod
    async def create(
        cls,
        service: TableService,
        name: Callable[[str], str],
        capture: Literal["dual-write", "delta"] = "dual-write",
        *,
        by_rows: bool = False,
        has_index: bool = False,
        reverse: bool = True,
        restricted: TableService | None = None,
    ) -> Merged:
        """Create the tables.

        Args:
            service: the account.
            name: returns the name of a new table.
            capture: of the second migration; the first one's is always "dual-write".
            by_rows: whether RowKeys tell the new rows apart, in the partition `ALL`.
            has_index: whether both fill one index table as well.
            reverse: of the first migration.
            restricted: the restricted account; None: the same one.
        """
        restricted = restricted or service
        target, index, begun = name("All"), name("ByNumber") if has_index else "", {}
        for region in (DE, FR):
            how = {"capture": capture} if region == FR else {"reverse": reverse}
            migration = merging(region, name(f"Orders{region}"), target, by_rows=by_rows, index=index, **how)
            declared = declared_as(name(f"0001{region}"), migration)
            begun[region] = await Begun(declared, service, restricted).create_tables()
        return cls(service, restricted, target, index, by_rows, begun)

    def declared(self, *regions: str) -> list[Declared]:
        return [self.begun[region].declared for region in regions]

    def source(self, region: str) -> str:
        return self.begun[region].declared.migration.source

    async def begin(self, region: str, *phases: ControlPhase, copied: bool = True) -> None:
        """Make the control row of a migration, and move it through phases. `copied`: say in `dual_write` that
        the backfill is done."""
        begun = self.begun[region]
        if await begun.store.read() is None:
            await begun.begin()
        for phase in phases:
            await begun.move(phase, copied=copied and phase is ControlPhase.DUAL_WRITE)

    def carrier(
        self,
        *regions: str,
        table: str = "",
        settings: LeaseSettings = QUICK,
        shadow_reads: float = 0.0,
        **more: Declared,
    ) -> Carrier:
        """Return what carries the requests of a process that follows migrations. `table`: by default the one
        that they fill; `more`: its own scripts."""
        return carrier_of(
            [
                ClientOptions(
                    Prepared(more.get(region, self.begun[region].declared), {}.__getitem__, no_wrapping_key),
                    table or self.target,
                    settings=settings,
                    shadow_reads=shadow_reads,
                )
                for region in regions
            ],
            lambda _options: Accounts(LeftOpen(self.service), LeftOpen(self.restricted)),
        )

    def new(self, region: str, customer: str = "c1", number: str = "1", value: int = 1) -> Row:
        """Return an order in the new view."""
        if self.by_rows:
            key = {"PartitionKey": ALL, "RowKey": f"{region}_{customer}_{number}", "Number": number}
        else:
            key = {"PartitionKey": f"{region}_{customer}", "RowKey": number}
        return {**key, "Customer": customer, "Value": value}

    async def values(self, table: str) -> dict[EntityKey, int]:
        """Return the values of a table's rows, by key."""
        held: dict[EntityKey, int] = {}
        async for page in self.service.table(table).scan():
            held |= {key_of(row): row["Value"] for row in page.rows}
        return held

    async def in_sources(self) -> dict[str, dict[tuple[str, str], int]]:
        """Return the values of the rows in each source, by old key."""
        return {
            region: {(key.partition, key.row): value for key, value in (await self.values(source)).items()}
            for region in self.begun
            for source in [self.source(region)]
        }


def order(customer: str = "c1", number: str = "1", value: int = 1) -> Row:
    """Return an order in the old view."""
    return {"PartitionKey": customer, "RowKey": number, "Value": value}
