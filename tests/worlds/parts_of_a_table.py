"""Two migrations that move parts of one table at the same time, and clients of them in one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from rekey import Migration, Target, keys, props, rows
from rekey.client.lease import LeaseSettings
from rekey.client.sdk.options import ClientOptions
from rekey.client.sdk.router import Carrier, carrier_of
from rekey.declaration.migration import Declared
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.opening import Prepared
from rekey.protocol.rules import View
from rekey.tables.base import Accounts, TableService
from tests.worlds.begun_migrations import Begun, declared_as
from tests.worlds.carriers import LeftOpen, no_wrapping_key

QUICK = LeaseSettings(poll_s=0.2, lease_s=10.0, longest_operation_s=8.0, freeze_wait_s=1.0)
UNHURRIED = replace(QUICK, poll_s=9.0)
"""Of a client that knows of no move, unless it has to."""
NORTH, SOUTH, FREE = "north", "south", "west"
"""PartitionKeys: of the first part, of the second one, and of neither."""


def part(
    source: str, tenant: str, target: str, where: rows.Condition | None = None, **more: Any
) -> Migration:
    """Return the migration of one tenant, whose new keys begin with its name."""
    return Migration(
        source,
        Target(
            target,
            partition_key=keys.join("_", keys.literal("t"), "PartitionKey"),
            row_key=keys.keep(),
            properties=[props.copy("PartitionKey", to="Tenant")],
        ),
        where=where or rows.partition_key(equals=tenant),
        **{"capture": "dual-write", **more},
    )


@dataclass
class Parts:
    """The migrations of two parts of one table."""

    service: TableService
    restricted: TableService
    source: str
    begun: dict[str, Begun]

    @classmethod
    async def create(
        cls,
        service: TableService,
        name: Callable[[str], str],
        capture: Literal["dual-write", "delta"] = "dual-write",
        by_rows: bool = False,
        restricted: TableService | None = None,
        *,
        reverse: bool = True,
    ) -> Parts:
        """Create the tables.

        Args:
            service: the account.
            name: returns the name of a new table.
            capture: of the first part; the second one's is always "dual-write".
            by_rows: whether RowKeys tell the parts apart, in the partition `p`.
            restricted: the restricted account; None: the same one.
            reverse: of both parts.
        """
        restricted = restricted or service
        source, begun = name("Rows"), {}
        for tenant in (NORTH, SOUTH):
            within = rows.all_of(rows.partition_key(equals="p"), rows.row_key(prefix=tenant))
            where = within if by_rows else None
            how = capture if tenant == NORTH else "dual-write"
            migration = part(source, tenant, name(tenant.title()), where, capture=how, reverse=reverse)
            declared = declared_as(name(f"0001{tenant}"), migration)
            begun[tenant] = await Begun(declared, service, restricted).create_tables()
        return cls(service, restricted, source, begun)

    def declared(self, *tenants: str) -> list[Declared]:
        return [self.begun[tenant].declared for tenant in tenants]

    async def begin(self, tenant: str, *phases: ControlPhase) -> None:
        """Make the control row of a part, and move it through phases."""
        begun = self.begun[tenant]
        if await begun.store.read() is None:
            await begun.begin()
        copied = ControlPhase.DUAL_WRITE in phases
        for phase in phases:
            await begun.move(phase, copied=copied and phase is ControlPhase.DUAL_WRITE)

    def carrier(self, *tenants: str, settings: LeaseSettings = QUICK, **more: Declared) -> Carrier:
        """Return what carries the requests of a process that follows parts. `more`: its own scripts."""
        return carrier_of(
            [
                ClientOptions(
                    Prepared(more.get(tenant, self.begun[tenant].declared), {}.__getitem__, no_wrapping_key),
                    self.source,
                    View.OLD,
                    settings=settings,
                    shadow_reads=0.0,
                )
                for tenant in tenants
            ],
            lambda _options: Accounts(LeftOpen(self.service), LeftOpen(self.restricted)),
        )

    async def rows(self, table: str) -> dict[EntityKey, int]:
        """Return the values of a table's rows, by key."""
        held: dict[EntityKey, int] = {}
        async for page in self.service.table(table).scan():
            held |= {key_of(row): row["Value"] for row in page.rows}
        return held

    async def moved(self, tenant: str) -> dict[EntityKey, int]:
        """Return the values of the rows in a part's new table, by their old keys."""
        held: dict[EntityKey, int] = {}
        async for page in self.service.table(self.begun[tenant].declared.migration.target.table).scan():
            held |= {EntityKey(row["Tenant"], row["RowKey"]): row["Value"] for row in page.rows}
        return held


def row(tenant: str, key: str = "1", value: int = 1) -> Row:
    return {"PartitionKey": tenant, "RowKey": key, "Value": value}
