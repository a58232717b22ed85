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
from rekey.mapping.rows import WHOLE
from rekey.model import EntityKey, Row
from rekey.state.audit import COHORTS, ERASURE_BEGUN, ERASURE_ENDED
from rekey.state.store import State
from tests.asserts.command_line import Commands, CommandsOn
from tests.worlds.erasure import PLAIN_USERS, WHY, configured
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

    def retire_users(self) -> None:
        with self.project.session() as session:
            prove(self.project.config, self.project.scripts["0001_users"], session.state)
        self.rekey("retire", "0001_users", "--table", "Users", "--no-backup", "a test")

    def write(self, table: str, *rows: Row) -> None:
        for row in rows:
            asyncio.run(self.project.tables.table(table).upsert(row))

    def delete(self, table: str, row_key: str) -> None:
        asyncio.run(self.project.tables.table(table).delete(EntityKey("eu", row_key)))

    def mails(self) -> dict[str, str | None]:
        return {row["RowKey"]: row.get("UserEmail") for row in self.project.rows("Orders")}

    def phase(self, script: str) -> str:
        return str(self.rekey("status", script, "--json").json["migrations"][0]["phase"]["name"])

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
        shop.retire_users()
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
    assert shop.phase("0002_orders") == "cutover"
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
    assert "go back, `rekey rollback 0002_orders --writers-stopped`" in refused.err
    assert shop.phase("0001_users") == "cutover"  # refused before anything was taken back
    shop.rekey("apply", "0001_users", "--to", "complete", STOPPED, "--yes", "0001_users")
    refused = shop.rekey("expire", "0001_users", "--confirm", "0001_users", code=3)
    assert "`rekey apply 0002_orders --to complete --yes 0002_orders`" in refused.err
    assert "`rekey rollback 0002_orders --to source --drop-targets --writers-stopped`" in refused.err
    shop.write("OrdersV2", independently(order(20, mail(2))))
    shop.rekey("rollback", "0002_orders", STOPPED)
    assert shop.mails()["0020"] == mail(2)


def expired_elsewhere(shop: Shop, folder: Path, commands_on: CommandsOn) -> None:
    """Erase the mapping of the users from a clone of the project that lacks the orders' script."""
    clone = Project(folder)
    clone.tables, clone.restricted, clone.clock = (
        shop.project.tables,
        shop.project.restricted,
        shop.project.clock,
    )
    clone.script((shop.project.folder / "migrations" / "0001_users.py").read_text("utf-8"))
    configured(clone, mapping_retention="1d")
    rekey = commands_on(clone)
    rekey("apply", "0001_users", "--accept-data-keys")
    all_of_it = "--confirm", "0001_users"
    [kept] = rekey("expire", "0001_users", *all_of_it, "--json").json["left"]
    clone.clock.advance(2 * 86_400)
    in_clear = kept["cohort"] == WHOLE
    rekey(
        "expire",
        "0001_users",
        *(all_of_it if in_clear else ("--cohort", kept["cohort"], "--reason", "a test")),
    )
    shop.rekey = commands_on(shop.project)


def test_the_mapping_is_not_expired_while_old_keys_may_be_looked_up_in_it(shop: Shop) -> None:
    shop.to_cutover("0001_users")
    shop.rekey("apply", "0001_users", "--to", "complete", STOPPED, "--yes", "0001_users")
    shop.rekey("apply", "0002_orders")
    refused = shop.rekey("expire", "0001_users", "--confirm", "0001_users", code=3)
    assert "a rollback of 0002_orders looks old keys up in the mapping of 0001_users" in refused.err
    assert "roll it back, `rekey rollback 0002_orders --to source --drop-targets`" in refused.err
    shop.rekey("rollback", "0002_orders", "--to", "source", "--drop-targets")
    shop.rekey("expire", "0001_users", "--confirm", "0001_users")


def test_the_mapping_is_needed_until_index_tables_are_handed_over(shop: Shop) -> None:
    index = 'indexes=[Index("OrdersByKey", partition_key=keys.literal("all"), row_key=keys.keep())],'
    orders = ORDERS.replace("import Migration", "import Index, Migration")
    shop.project.script(orders.replace('capture="delta"', f'{index} capture="dual-write"'), "0002_orders.py")
    shop.to_cutover("0001_users", "0002_orders")
    shop.rekey("apply", "0002_orders", "--to", "complete", STOPPED, "--yes", "0002_orders")
    refused = shop.rekey("rollback", "0001_users", "--to", "source", "--drop-targets", STOPPED, code=3)
    assert "clients that maintain index tables of 0002_orders look old keys up" in refused.err
    assert "`rekey handover 0002_orders --yes 0002_orders`" in refused.err
    shop.rekey("verify", "0002_orders")
    shop.rekey("handover", "0002_orders", "--yes", "0002_orders")
    shop.rekey("rollback", "0001_users", "--to", "source", "--drop-targets", STOPPED)


def test_status_says_to_expire_a_mapping_only_when_no_rollback_needs_it(
    commands_on: CommandsOn, tmp_path: Path
) -> None:
    shop = shop_of(commands_on, tmp_path, PLAIN_USERS)
    configured(shop.project, mapping_retention="1d")
    shop.to_cutover("0001_users")
    shop.rekey("apply", "0001_users", "--to", "complete", STOPPED, "--yes", "0001_users")
    shop.retire_users()
    shop.to_cutover("0002_orders")
    shop.project.clock.advance(2 * 86_400)
    said = shop.rekey("status", "0001_users").out
    assert "over; it stays for a rollback of 0002_orders" in said and "rekey expire" not in said
    shop.rekey("rollback", "0002_orders", STOPPED)
    shop.rekey("rollback", "0002_orders", "--to", "source", "--keep-targets")
    assert "next          rekey expire 0001_users --confirm" in shop.rekey("status", "0001_users").out
    shop.rekey("expire", "0001_users", "--confirm", "0001_users")


def test_an_erasure_of_the_mapping_that_was_cut_off_closes_cutover(shop: Shop) -> None:
    shop.to_cutover("0001_users")
    shop.rekey("apply", "0001_users", "--to", "complete", STOPPED, "--yes", "0001_users")
    shop.rekey("apply", "0002_orders")
    with State.open(shop.project.config.state) as state:
        details = {"kind": COHORTS, "cohorts": ["2024-01"], "reason": "a test"}
        state.audit(ERASURE_BEGUN, "0001_users", details)
    refused = shop.rekey("apply", "0002_orders", "--to", "cutover", STOPPED, code=3)
    assert "old keys in the mapping of 0001_users were erased by `rekey expire` on" in refused.err


@pytest.mark.parametrize("users", [USERS_SCRIPT, PLAIN_USERS], ids=["sealed", "in the clear"])
def test_cutover_is_refused_when_the_mapping_was_expired(
    tmp_path: Path, commands_on: CommandsOn, users: str
) -> None:
    shop = shop_of(commands_on, tmp_path, users)
    shop.to_cutover("0001_users")
    shop.rekey("apply", "0001_users", "--to", "complete", STOPPED, "--yes", "0001_users")
    shop.rekey("apply", "0002_orders")
    expired_elsewhere(shop, tmp_path / "clone", commands_on)
    shop.rekey("verify", "0002_orders")
    refused = shop.rekey("apply", "0002_orders", "--to", "cutover", STOPPED, code=3)
    assert "old keys in the mapping of 0001_users were erased by `rekey expire` on 2024-01-03" in refused.err
    assert "`rekey rollback 0002_orders --to source --drop-targets`" in refused.err
    assert shop.phase("0002_orders") == "reconcile"


def test_a_plan_refuses_references_into_a_mapping_that_was_expired(
    shop: Shop, tmp_path: Path, commands_on: CommandsOn
) -> None:
    shop.to_cutover("0001_users")
    shop.rekey("apply", "0001_users", "--to", "complete", STOPPED, "--yes", "0001_users")
    expired_elsewhere(shop, tmp_path / "clone", commands_on)
    [migration] = shop.rekey("plan", "0002_orders", "--json", code=1).json["migrations"]
    assert "referred-expired" in [problem["code"] for problem in migration["problems"]]
    refused = shop.rekey("apply", "0002_orders", code=3)
    assert "old keys in the mapping of 0001_users were erased by" in refused.err
    assert not asyncio.run(shop.project.tables.table_exists("OrdersV2"))


def test_a_shredded_data_key_that_was_put_back_gives_no_old_reference(shop: Shop) -> None:
    shop.to_cutover("0001_users")
    shop.rekey("apply", "0001_users", "--to", "complete", STOPPED, "--yes", "0001_users")
    [kept] = shop.rekey("expire", "0001_users", "--confirm", "0001_users", "--json").json["left"]
    shop.to_cutover("0002_orders")
    # As an earlier version left it, whose `expire` waited for no rollback; the data key stands there again.
    with State.open(shop.project.config.state) as state:
        cohort = {"kind": COHORTS, "cohorts": [kept["cohort"]]}
        begun = state.audit(ERASURE_BEGUN, "0001_users", {**cohort, "reason": "a test"})
        state.audit(ERASURE_ENDED, "0001_users", {**cohort, "begun": begun.seq, "on": "2024-01-01"})
    shop.write("OrdersV2", independently(order(20, mail(2))))
    refused = shop.rekey("rollback", "0002_orders", STOPPED, code=1)
    assert "was shredded on 2024-01-01, and it was put back" in refused.err
    assert "0020" not in shop.mails() and shop.phase("0002_orders") == "cutover"


def test_a_group_that_refers_to_itself_is_dropped_as_a_whole(commands_on: CommandsOn, tmp_path: Path) -> None:
    in_group = 'capture="delta",\n    group="shop",\n'
    shop = shop_of(commands_on, tmp_path, USERS_SCRIPT.replace('capture="delta",\n', in_group))
    shop.project.script(ORDERS.replace('capture="delta",\n', in_group), "0002_orders.py")
    shop.rekey("apply", "--group", "shop")
    shop.rekey("apply", "--group", "shop", "--to", "cutover", STOPPED)
    shop.write("OrdersV2", independently(order(20, mail(2))))
    shop.rekey("rollback", "--group", "shop", "--to", "source", "--drop-targets", STOPPED)
    assert shop.mails()["0020"] == mail(2)
    assert not asyncio.run(shop.project.tables.table_exists("UsersV2"))


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
