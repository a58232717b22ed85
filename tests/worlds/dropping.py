"""Projects with rows that no kind takes, and what their tables must hold by a second implementation."""

from __future__ import annotations

from collections.abc import Sequence

from rekey.model import Row, content_of, key_of
from tests.worlds.projects import Project
from tests.worlds.small import contents, ticket

ID = "0001_tickets"
SCRIPT = '''"""Tickets by status; drafts stay behind."""

from rekey import Index, Migration, RowKind, Target, keys, props, rows


def kind(status, **more):
    target = Target(
        "TicketsV2",
        partition_key=keys.keep(),
        row_key=keys.literal(status + ":") + keys.prop("RowKey"),
        properties=[props.copy("RowKey", to="Number")],
    )
    return RowKind(status, when=rows.prop("Status", equals=status), target=target, **more)


migration = Migration(
    source="Tickets",
    kinds=[
        kind("closed"),
        kind(
            "open",
            indexes=[Index("ByOwner", partition_key=keys.prop("Owner"), row_key=keys.prop("RowKey"))],
        ),
    ],
    otherwise=rows.drop(reason="drafts that nobody filed"),
    capture="delta",
)
'''
STOCK = [ticket(str(number), ("open", "closed", "draft")[number % 3]) for number in range(30)]


def independently(source: Sequence[Row]) -> tuple[dict[tuple[str, str], Row], set[tuple[str, str]]]:
    """Return what the new table and the keys that the index table must hold, without the mapper."""
    filed = [content_of(row) for row in source if row["Status"] != "draft"]
    main = {
        (row["PartitionKey"], f"{row['Status']}:{row['RowKey']}"): {
            **row,
            "RowKey": f"{row['Status']}:{row['RowKey']}",
            "Number": row["RowKey"],
        }
        for row in filed
    }
    return main, {(row["Owner"], row["RowKey"]) for row in filed if row["Status"] == "open"}


def assert_right(project: Project) -> None:
    """The new tables hold what the source gives."""
    main, index = independently(project.rows("Tickets"))
    assert contents(project.rows("TicketsV2")) == main
    assert {tuple(key_of(row)) for row in project.rows("ByOwner")} == index


def numbers(project: Project) -> dict[str, str]:
    """Return the status of each row of the source."""
    return {row["RowKey"]: row["Status"] for row in project.rows("Tickets")}
