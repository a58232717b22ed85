"""The public names, used as a migration script uses them. mypy checks this file; nothing runs it."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from rekey import Index, Migration, Target, keys, props

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
)

digest: str = migration.digest()
tables: tuple[str, ...] = migration.tables

# What must not type-check: each line needs its `type: ignore`, or mypy reports it as unused.
Migration("Old", migration.target)  # type: ignore[call-arg]
Migration("Old", migration.target, capture="snapshot")  # type: ignore[arg-type]
Target("New", keys.prop("A"), keys.prop("B"))  # type: ignore[call-arg]
keys.join("_", "A")  # type: ignore[arg-type]
keys.prop("A") + "B"  # type: ignore[operator]
keys.opaque("A", domain="d")  # type: ignore[call-arg]
keys.custom("m:f")  # type: ignore[call-arg]
props.copy("A", "B")  # type: ignore[call-arg]
