"""References in whose place only the source holds the old key (`keep_old=False`), with capture "delta": a
rollback finds it in the mapping of the other migration, or stays closed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

import pytest

from rekey.core import crockford
from rekey.model import EntityKey, Row
from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.erasure import WHY
from tests.worlds.evidence import prove
from tests.worlds.projects import INVERTED_SCRIPT, USERS_SCRIPT, Project, project_of
from tests.worlds.small import SECRET, user

ORDERS = """\
from rekey import Migration, Target, keys, props

__depends__ = set()
migration = Migration(
    source="Orders",
    target=Target("OrdersV2", partition_key=keys.keep(), row_key=keys.keep(), properties=[
        props.reference("UserEmail", to="UserId", via="0001_users", partition="PartitionKey", keep_old=False),
    ]),
    capture="delta",
)
"""
STOPPED = "--writers-stopped"
GHOST = "ghost@example.com"


def mail(number: int) -> str:
    return f"user{number}@example.com"


def opaque(text: str) -> str:
    digest = hmac.digest(SECRET, b"rekey/v1\0user\0" + text.encode(), hashlib.sha256)
    return crockford.encode(digest[:20])


def order(number: int, of: str | None, **more: object) -> Row:
    named = {} if of is None else {"UserEmail": of}
    return {"PartitionKey": "eu", "RowKey": f"{number:04}", "Total": number, **named, **more}


def independently(row: Row) -> Row:
    """What an order becomes, without the mapper."""
    new = {name: row[name] for name in ("PartitionKey", "RowKey", "Total", "Note") if name in row}
    return new | ({"UserId": opaque(row["UserEmail"])} if "UserEmail" in row else {})


class Shop:
    """A project of users and orders; order 7 is of nobody, order 8 of a user that is not there."""

    def __init__(self, rekey: Commands) -> None:
        self.rekey, self.project = rekey, rekey.project

    def to_cutover(self, *scripts: str) -> None:
        for script in scripts:
            self.rekey("apply", script)
            self.rekey("apply", script, "--to", "cutover", STOPPED)

    def write(self, table: str, *rows: Row) -> None:
        for row in rows:
            asyncio.run(self.project.tables.table(table).upsert(row))

    def delete(self, table: str, row_key: str) -> None:
        asyncio.run(self.project.tables.table(table).delete(EntityKey("eu", row_key)))

    def mails(self) -> dict[str, str | None]:
        return {row["RowKey"]: row.get("UserEmail") for row in self.project.rows("Orders")}

    def compare(self) -> None:
        held = [content(row) for row in self.project.rows("OrdersV2")]
        assert sorted(held, key=str) == sorted(map(independently, self.project.rows("Orders")), key=str)


def content(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "Timestamp" and "odata" not in name}


def shop_of(
    commands_on: CommandsOn, folder: Path, users: str = USERS_SCRIPT, more: Iterable[Row] = ()
) -> Shop:
    project = project_of(folder, users, [user(mail(number)) for number in range(6)])
    project.script(ORDERS, "0002_orders.py")
    orders = [order(number, mail(number)) for number in range(6)]
    asyncio.run(project.fill("Orders", [*orders, order(7, None), order(8, GHOST), *more]))
    return Shop(commands_on(project))


@pytest.fixture
def shop(commands_on: CommandsOn, tmp_path: Path) -> Shop:
    return shop_of(commands_on, tmp_path)


def everything_written(project: Project) -> bytes:
    return b"".join(path.read_bytes() for path in project.folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("via", ["cutover", "complete", "retired"])
def test_new_and_changed_references_come_back_and_others_stay(shop: Shop, via: str) -> None:
    shop.to_cutover("0001_users")
    if via != "cutover":
        shop.rekey("apply", "0001_users", "--to", "complete", STOPPED, "--yes", "0001_users")
    if via == "retired":
        with shop.project.session() as session:
            prove(shop.project.config, shop.project.scripts["0001_users"], session.state)
        shop.rekey("retire", "0001_users", "--table", "Users", "--no-backup", "a test")
    shop.to_cutover("0002_orders")
    assert not [row for row in shop.project.rows("OrdersV2") if "UserEmail" in row]
    # Written by the application, so nothing maps it: its own row says its old key.
    shop.write("UsersV2", {"PartitionKey": "eu", "RowKey": opaque("new@example.com"), "Name": "new",
                           "ContactEmail": "new@example.com"})  # fmt: skip
    shop.write(
        "OrdersV2",
        independently(order(20, mail(3))),
        independently(order(21, "new@example.com")),
        independently(order(0, mail(4))),
        independently(order(1, None)),
        independently(order(8, GHOST, Note="still of nobody that is there")),
    )
    shop.delete("OrdersV2", "0002")
    back = shop.rekey("rollback", "0002_orders", STOPPED)
    shop.compare()
    wanted = {"0000": mail(4), "0001": None, "0008": GHOST, "0020": mail(3), "0021": "new@example.com"}
    mails = shop.mails()
    assert {key: mails[key] for key in wanted} == wanted and "0002" not in mails
    assert "@example.com" not in back.all
    shop.write("Orders", order(9, mail(5)))
    again = shop.rekey("apply", "0002_orders", "--to", "cutover", STOPPED)
    shop.compare()
    shop.rekey("apply", "0002_orders", "--to", "complete", STOPPED, "--yes", "0002_orders")
    assert "@example.com" not in again.all
    # Old references are in no new row; what the runner keeps of orders are keys, and those are no addresses.
    assert "@example.com" not in str(shop.project.rows("OrdersV2"))


def test_a_reference_to_nobody_keeps_the_rollback_closed_until_it_is_corrected(shop: Shop) -> None:
    shop.to_cutover("0001_users", "0002_orders")
    shop.write("OrdersV2", independently(order(20, "stranger@example.com")), independently(order(3, GHOST)))
    before = [content(row) for row in shop.project.rows("Orders")]
    refused = shop.rekey("rollback", "0002_orders", STOPPED, code=3)
    assert (
        "0001_users does not know the row that UserId names" in refused.err and "2 target rows" in refused.err
    )
    assert "@example.com" not in refused.all
    assert [content(row) for row in shop.project.rows("Orders")] == before
    assert shop.rekey("status", "0002_orders", "--json").json["migrations"][0]["phase"]["name"] == "cutover"
    shop.write("OrdersV2", independently(order(20, mail(1))), independently(order(3, None)))
    shop.rekey("rollback", "0002_orders", STOPPED)
    shop.compare()
    assert (shop.mails()["0020"], shop.mails()["0003"]) == (mail(1), None)
    written = everything_written(shop.project)
    assert not any(text in written for text in (b"stranger@example.com", GHOST.encode(), mail(1).encode()))


def test_a_row_that_says_another_old_key_is_not_believed(shop: Shop) -> None:
    shop.to_cutover("0001_users", "0002_orders")
    forged = {"PartitionKey": "eu", "RowKey": opaque("a@example.com"), "ContactEmail": "b@example.com"}
    shop.write("UsersV2", forged)
    shop.write("OrdersV2", independently(order(20, "a@example.com")))
    shop.rekey("rollback", "0002_orders", STOPPED, code=3)
    assert "0020" not in shop.mails()


def test_a_user_that_is_deleted_is_still_known(shop: Shop) -> None:
    shop.to_cutover("0001_users", "0002_orders")
    shop.delete("UsersV2", opaque(mail(2)))
    shop.write("OrdersV2", independently(order(20, mail(2))))
    shop.rekey("rollback", "0002_orders", STOPPED)
    assert shop.mails()["0020"] == mail(2)


def test_cutover_waits_until_the_other_rows_are_copied(shop: Shop) -> None:
    shop.rekey("apply", "0002_orders")
    refused = shop.rekey("apply", "0002_orders", "--to", "cutover", STOPPED, code=3)
    assert "0001_users has not copied the rows of Users" in refused.err
    shop.rekey("apply", "0001_users", "--to", "dual_write")
    shop.rekey("verify", "0001_users", "--mode", "full", code=1)  # finds that nothing is copied
    refused = shop.rekey("apply", "0002_orders", "--to", "cutover", STOPPED, code=3)
    assert "0001_users has not copied the rows of Users" in refused.err
    shop.rekey("apply", "0001_users")
    shop.rekey("apply", "0002_orders", "--to", "cutover", STOPPED)


def test_the_mapping_stays_as_long_as_a_rollback_may_need_it(shop: Shop) -> None:
    shop.to_cutover("0001_users", "0002_orders")
    refused = shop.rekey("rollback", "0001_users", "--to", "source", "--drop-targets", STOPPED, code=3)
    assert "a rollback of 0002_orders looks old keys up in the mapping of 0001_users" in refused.err
    shop.to_cutover("0001_users")
    shop.rekey("apply", "0001_users", "--to", "complete", STOPPED, "--yes", "0001_users")
    assert "0002_orders" in shop.rekey("expire", "0001_users", "--confirm", "0001_users", code=3).err
    shop.write("OrdersV2", independently(order(20, mail(2))))
    shop.rekey("rollback", "0002_orders", STOPPED)
    assert shop.mails()["0020"] == mail(2)
    shop.rekey("expire", "0001_users", "--confirm", "0001_users")


def test_a_reference_to_an_erased_user_is_unknown_and_an_unchanged_one_stays(shop: Shop) -> None:
    shop.to_cutover("0001_users")
    shop.rekey("apply", "0001_users", "--to", "complete", STOPPED, "--yes", "0001_users")
    shop.to_cutover("0002_orders")
    shop.rekey("erase", "0001_users", "--old", "eu", mail(2), *WHY)
    shop.write("OrdersV2", independently(order(20, mail(2))))
    refused = shop.rekey("rollback", "0002_orders", STOPPED, code=3)
    assert "1 target row" in refused.err
    shop.delete("OrdersV2", "0020")
    shop.rekey("rollback", "0002_orders", STOPPED)
    assert shop.mails()["0002"] == mail(2)


def test_a_computed_mapping_knows_every_key(commands_on: CommandsOn, tmp_path: Path) -> None:
    shop = shop_of(commands_on, tmp_path, INVERTED_SCRIPT)
    shop.to_cutover("0001_users", "0002_orders")
    rows = {row["RowKey"]: content(row) for row in shop.project.rows("OrdersV2")}
    assert rows["0008"]["UserId"] == f"U:{GHOST}"
    shop.write("OrdersV2", {**rows["0000"], "RowKey": "0020", "UserId": f"U:{GHOST}"})
    shop.rekey("rollback", "0002_orders", STOPPED)
    assert shop.mails()["0020"] == GHOST


def test_a_plan_says_that_dangling_references_are_in_the_source_alone(shop: Shop) -> None:
    [migration] = shop.rekey("plan", "0002_orders", "--json").json["migrations"]
    [problem] = [each for each in migration["problems"] if "reference" in each["code"]]
    assert (problem["code"], problem["rows"]) == ("dangling-reference-removed", 1)
    assert "@" not in problem["message"]
