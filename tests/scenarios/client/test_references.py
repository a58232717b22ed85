"""Users and their orders in one group: every order leads to its user, in every phase, and comes back."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from pathlib import Path

from rekey.core import crockford
from rekey.model import Row
from tests.asserts.command_line import CommandsOn
from tests.worlds.projects import USERS_SCRIPT, Project, project_of
from tests.worlds.small import SECRET, user

ROOT = Path(__file__).parents[3]
ORDERS = (
    (ROOT / "migrations/0006_orders_of_users.py")
    .read_text()
    .replace("0001_users_opaque_ids", "0001_users")
    .replace('    capture="delta"', '    group="shop",\n    capture="delta"')
)
USERS = USERS_SCRIPT.replace('    capture="delta"', '    group="shop",\n    capture="delta"')


def order(number: int, mail: str | None) -> Row:
    named = {} if mail is None else {"UserEmail": mail}
    return {"PartitionKey": "eu", "RowKey": f"{number:04}", "Total": number, **named}


def independently(row: Row) -> Row:
    """What an order becomes, without the mapper."""
    new = {name: row[name] for name in ("PartitionKey", "RowKey", "Total", "UserEmail") if name in row}
    if "UserEmail" in row:
        digest = hmac.digest(SECRET, b"rekey/v1\0user\0" + row["UserEmail"].encode(), hashlib.sha256)
        new["UserId"] = crockford.encode(digest[:20])
    return new


def shop(folder: Path) -> Project:
    project = project_of(folder, USERS, [user(f"User{number}@example.com") for number in range(10)])
    project.script(ORDERS, "0002_orders.py")
    orders = [order(number, f"User{number % 12}@example.com") for number in range(40)]
    asyncio.run(project.fill("Orders", [*orders, order(90, None)]))
    return project


def test_orders_lead_to_their_users_through_a_whole_life_of_both(
    commands_on: CommandsOn, tmp_path: Path
) -> None:
    project = shop(tmp_path)
    rekey = commands_on(project)
    stopped = ("--group", "shop", "--writers-stopped")

    def compare() -> set[str]:
        found = [
            {name: value for name, value in row.items() if name != "Timestamp" and "odata" not in name}
            for row in project.rows("OrdersV2")
        ]
        assert sorted(found, key=str) == sorted(map(independently, project.rows("Orders")), key=str)
        users = {row["RowKey"] for row in project.rows("UsersV2")}
        assert {row["UserId"] for row in found if row.get("UserEmail", "") in mails} <= users
        return {row["RowKey"] for row in found if "UserId" not in row}

    def write(table: str, row: Row) -> None:
        asyncio.run(project.tables.table(table).upsert(row))

    mails = {f"User{number}@example.com" for number in range(10)}
    rekey("apply", "--group", "shop")
    assert compare() == {"0090"}
    rekey("apply", "--to", "cutover", *stopped)
    write("OrdersV2", independently(order(91, "User3@example.com")))
    write("OrdersV2", independently(order(1, None)))
    rekey("rollback", *stopped)
    assert compare() == {"0090", "0001"}
    assert [row.get("UserEmail") for row in project.rows("Orders") if row["RowKey"] in ("0091", "0001")] == [
        None,
        "User3@example.com",
    ]
    write("Orders", order(1, "User5@example.com"))
    rekey("apply", "--to", "cutover", *stopped)
    assert compare() == {"0090"}
    rekey("apply", "--to", "complete", *stopped, "--yes", "shop")
    assert compare() == {"0090"}


def test_a_script_whose_reference_was_edited_elsewhere_is_refused(
    commands_on: CommandsOn, tmp_path: Path
) -> None:
    project = shop(tmp_path)
    rekey = commands_on(project)
    rekey("apply", "--group", "shop")
    project.script(USERS.replace('domain="user"', 'domain="member"'))
    for script in ("0001_users", "0002_orders"):
        refused = rekey("apply", script, code=3)
        assert "edited" in refused.err
