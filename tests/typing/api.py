"""The public names, used as a migration script uses them. mypy checks this file; nothing runs it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from azure.core.credentials import AzureNamedKeyCredential, TokenCredential
from azure.data.tables import TableClient, TableEntity, UpdateMode

from rekey import (
    DualWriteRefused,
    DualWriteTableClient,
    Index,
    LeaseSettings,
    Migration,
    Target,
    aio,
    keys,
    props,
    query,
)

__depends__: set[str] = {"0000_before"}

BY_MAIL: keys.Expression = keys.opaque(
    keys.normalize("email", keys.prop("RowKey")), "Tenant", domain="user", secret="users"
)

EVERYTHING: list[keys.Expression] = [
    keys.prop("A", default="-") + keys.literal("_") + keys.item(),
    keys.join("_", keys.lower("A"), keys.upper("A"), keys.strip(keys.prop("A"))),
    keys.slug("Title"),
    keys.zero_pad(8, "Number"),
    keys.part("-", -1, "RowKey"),
    keys.regex(r"(?P<year>\d{4})", "year", "RowKey"),
    keys.date("yyyy-MM-dd-HH", "At"),
    keys.ticks("At"),
    keys.inverted_ticks(keys.prop("At")),
    keys.inverted_seconds(9_999_999_999, "At"),
    keys.bucket(16, "sha256", "RowKey", prefix="p"),
    keys.hashed("blake2b-160", "RowKey", encoding="crockford"),
    keys.custom("package.module:function", "A", keys.prop("B"), version=1),
]

migration = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=BY_MAIL,
        properties=[
            props.copy("RowKey", to="ContactEmail"),
            props.rename("Nm", "Name"),
            props.drop("Ssn", "Iban"),
            props.set("Version", 2),
            props.set("Since", datetime(2024, 1, 1, tzinfo=UTC)),
            props.set("Tenant", UUID(int=0)),
            props.set("Big", "9007199254740993", type="int64"),
            props.cast("Age", "int64", was="int32"),
        ],
        allow_empty=True,
    ),
    indexes=[
        Index(
            "UsersByTag",
            each=keys.split("Tags", ",", default=""),
            partition_key=keys.item(),
            row_key=BY_MAIL,
            properties=(props.keep("Name"),),
        ),
    ],
    capture="dual-write",
    reverse=False,
    queries=[query.point("RowKey"), query.range("At", within=["A"], rows=5), query.latest(20, by="At")],
    load={"writes_per_second": 500, "rows": 1e9},
    waive={"mutable-key": "tenants never change"},
)

digest: str = migration.digest()
tables: tuple[str, ...] = migration.tables

# What must not type-check: each line needs its `type: ignore`, or mypy reports it as unused.
Migration("Old", migration.target)  # type: ignore[call-arg]
Migration("Old", migration.target, capture="snapshot")  # type: ignore[arg-type]
Target("New", keys.prop("A"), keys.prop("B"))  # type: ignore[call-arg]
keys.prop("A") + "B"  # type: ignore[operator]
keys.opaque("A", domain="d")  # type: ignore[call-arg]
keys.custom("m:f")  # type: ignore[call-arg]
props.copy("A", "B")  # type: ignore[call-arg]

# --- clients of applications: the SDK's methods, with the SDK's types -------------------------------------


def write(key: AzureNamedKeyCredential, token: TokenCredential) -> None:
    """The synchronous client."""
    with DualWriteTableClient(
        "https://a.table.core.windows.net",
        "Users",
        credential=key,
        migration=Path("migrations/0001_users.py"),
        restricted_endpoint="https://r.table.core.windows.net",
        restricted_credential=token,
        secrets={"users": b"secret"},
        view="old",
        name="billing-api",
        shadow_reads=0.5,
        settings=LeaseSettings(lease_s=10),
        retry_total=3,
    ) as client:
        plain: TableClient = client
        made: Mapping[str, Any] = client.create_entity({"PartitionKey": "p", "RowKey": "r"})
        client.update_entity({}, mode=UpdateMode.REPLACE, etag=made["etag"])
        found: TableEntity = plain.get_entity("p", "r", select=["A"])
        for one in client.query_entities("A eq 1", results_per_page=5):
            found = one
        client.delete_entity(found)
        try:
            client.submit_transaction([("upsert", found)])
        except DualWriteRefused as refused:
            code: str = refused.code
            again: bool = refused.retryable
            status: int | None = refused.status_code
            raise ValueError(code, again, status) from refused


async def write_async(config: Path) -> None:
    """The asynchronous client."""
    made = aio.DualWriteTableClient.from_config(config, "0001_users", view="new", shadow_reads=0.0)
    async with made as client:
        found: TableEntity = await client.get_entity("p", "r")
        async for one in client.list_entities():
            found = one
        await client.upsert_entity(found)


DualWriteTableClient("https://a", "Users")  # type: ignore[call-arg]
aio.DualWriteTableClient("https://a", "Users", credential=5)  # type: ignore[call-arg, arg-type]
