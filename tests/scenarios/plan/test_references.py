"""References whose old key is in no row of the other table: a plan counts them, and says what it did not look
for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rekey.errors import CredentialRefused
from rekey.model import EntityKey, Row
from rekey.plan import references
from rekey.tables.sent import RequestKind
from tests.asserts.command_line import Commands, CommandsOn
from tests.fakes.memory import MemoryTable
from tests.worlds.projects import USERS_SCRIPT, Project
from tests.worlds.small import user

ORDERS = """\
from rekey import Migration, Target, keys, props

__depends__ = set()
migration = Migration(
    source="Orders",
    target=Target("OrdersV2", partition_key=keys.keep(), row_key=keys.keep(), properties=[
        props.reference("UserEmail", to="UserId", via="0001_users"{more}),
    ]),
    capture="delta",
)
"""
# The users of `user` are in the partition "eu".
BY_KEY = ', partition="PartitionKey"'
USERS, ORDERED, GONE = 10, 24, 4  # two of every twelve orders are of users that are not there


def orders(number: int = ORDERED) -> list[Row]:
    rows: list[Row] = [
        {"PartitionKey": "eu", "RowKey": f"{each:04}", "UserEmail": f"user{each % 12}@example.com"}
        for each in range(number)
    ]
    return [*rows, {"PartitionKey": "eu", "RowKey": "9998"}, {"PartitionKey": "eu", "RowKey": "9999", "N": 1}]


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.script(USERS_SCRIPT)
    project.script(ORDERS.format(more=""), "0002_orders.py")
    asyncio.run(project.fill("Users", [user(f"user{number}@example.com") for number in range(USERS)]))
    asyncio.run(project.fill("Orders", orders()))
    return project


def planned(rekey: Commands, code: int | None = 0) -> dict[str, Any]:
    [migration] = rekey("plan", "0002", "--json", code=code).json["migrations"]
    assert isinstance(migration, dict)
    return migration


def problems(migration: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The problems that are about references, by code."""
    return {each["code"]: each for each in migration["problems"] if "reference" in each["code"]}


@pytest.mark.parametrize("more", ["", BY_KEY])
def test_a_plan_counts_references_to_rows_that_are_not_there(
    shop: Project, commands_on: CommandsOn, more: str
) -> None:
    shop.script(ORDERS.format(more=more), "0002_orders.py")
    rekey = commands_on(shop)
    migration = planned(rekey)
    [problem] = problems(migration).values()
    assert (problem["code"], problem["severity"]) == ("dangling-reference", "warning")
    assert (problem["rows"], len(problem["row_ids"])) == (GONE, GONE)
    assert f"{GONE} of {ORDERED} rows" in problem["message"] and "@" not in problem["message"]
    [counts] = migration["references"]
    assert (counts["rows"], counts["rows_looked_up"], counts["rows_missing"]) == (ORDERED, ORDERED, GONE)
    assert counts["table"] == "Users"
    sent = [each for each in migration["estimate"]["requests"] if "referred" in each["what"]]
    kind, count = (RequestKind.READ, 12) if more else (RequestKind.SCAN, 1)
    assert [(each["kind"], each["count"]) for each in sent] == [(kind, count)]
    out = rekey("plan", "0002").out
    assert "dangling-reference" in out and f"{GONE} of {ORDERED} rows" in out and "@example.com" not in out


def test_all_is_well_where_all_rows_are_there(shop: Project, commands_on: CommandsOn) -> None:
    asyncio.run(shop.tables.table("Users").insert(user("user10@example.com")))
    asyncio.run(shop.tables.table("Users").insert(user("user11@example.com")))
    assert problems(planned(commands_on(shop))) == {}


@pytest.mark.parametrize("more", ["", BY_KEY])
def test_a_script_may_refuse_references_to_rows_that_are_not_there(
    shop: Project, commands_on: CommandsOn, more: str
) -> None:
    shop.script(ORDERS.format(more=more + ', on_missing="refuse"'), "0002_orders.py")
    rekey = commands_on(shop)
    assert set(problems(planned(rekey, code=1))) == {"dangling-reference-refused"}
    refused = rekey("apply", "0002", code=None)
    assert "refer to a row that is not in Users" in refused.err and "Nothing was written" in refused.err
    assert "OrdersV2" not in asyncio.run(shop.tables.table_names())
    for number in (10, 11):
        asyncio.run(shop.tables.table("Users").insert(user(f"user{number}@example.com")))
    rekey("apply", "0002")


@pytest.mark.parametrize("more", ["", BY_KEY])
def test_after_the_cutover_of_the_other_table_its_new_rows_are_looked_for(
    shop: Project, commands_on: CommandsOn, more: str
) -> None:
    shop.script(ORDERS.format(more=more), "0002_orders.py")
    rekey = commands_on(shop)
    rekey("apply", "0001")
    assert planned(rekey)["references"][0]["table"] == "Users"
    rekey("apply", "0001", "--to", "cutover", "--writers-stopped")
    # The old table no longer says which rows there are.
    asyncio.run(shop.tables.table("Users").delete(EntityKey("eu", "user3@example.com")))
    [counts] = planned(rekey)["references"]
    assert (counts["table"], counts["rows_missing"]) == ("UsersV2", GONE)
    rekey("rollback", "0001", "--writers-stopped")
    assert planned(rekey)["references"][0]["table"] == "Users"


def test_where_the_other_table_cannot_be_read_nothing_is_counted(
    shop: Project, commands_on: CommandsOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    rekey = commands_on(shop)
    scan = MemoryTable.scan

    def refused(self: MemoryTable, *args: Any, **options: Any) -> Any:
        if self.name == "Users":
            return _no_right()
        return scan(self, *args, **options)

    monkeypatch.setattr(MemoryTable, "scan", refused)
    [problem] = problems(planned(rekey)).values()
    assert (problem["code"], problem["severity"]) == ("references-not-looked-up", "note")
    assert "no right to read Users" in problem["message"]
    shop.script(ORDERS.format(more=', on_missing="refuse"'), "0002_orders.py")
    assert set(problems(planned(rekey, code=1))) == {"references-not-proved"}


async def _no_right() -> Any:
    _raise()
    yield


def _raise() -> NoReturn:
    raise CredentialRefused("403")


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_table_that_is_not_there_is_said(shop: Project, commands_on: CommandsOn, seconds: int) -> None:
    asyncio.run(shop.tables.delete_table("Users"))
    shop.clock.advance(seconds)
    [problem] = problems(planned(commands_on(shop))).values()
    assert "there is no table Users" in problem["message"]


def test_reads_are_bounded(shop: Project, commands_on: CommandsOn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "MOST_KEYS", 5)
    monkeypatch.setattr(references, "MOST_PAGES", 0)
    rekey = commands_on(shop)
    migration = planned(rekey)
    assert set(problems(migration)) == {"references-not-looked-up"}
    assert "partition= is not said" in problems(migration)["references-not-looked-up"]["message"]
    shop.script(ORDERS.format(more=BY_KEY), "0002_orders.py")
    migration = planned(rekey)
    [counts] = migration["references"]
    assert counts["rows_looked_up"] == 2 * 4  # every third of the twelve users, each of two orders
    sent = [each for each in migration["estimate"]["requests"] if "referred" in each["what"]]
    assert [each["count"] for each in sent] == [4]
    assert "references-not-looked-up" in problems(migration)


def test_rows_of_another_kind_and_keys_that_cannot_be_are_told_apart(
    shop: Project, commands_on: CommandsOn
) -> None:
    kinds = ORDERS.replace("import Migration, Target", "import Migration, RowKind, Target").replace(
        "keys, props", "keys, props, rows"
    )
    begin, end = kinds.split("    target=")
    target = end.rpartition("    capture")[0].strip().rstrip(",")
    kinds = begin + (
        f'    kinds=[RowKind("order", when=rows.row_key(prefix="0"), target={target}),\n'
        '        RowKind("other", when=rows.every(), target=Target("OrdersV2", partition_key=keys.keep(),\n'
        '            row_key=keys.keep()))],\n    capture="delta",\n    reverse=False,\n)\n'
    )
    shop.script(kinds.format(more=BY_KEY), "0002_orders.py")
    odd: list[Row] = [
        {"PartitionKey": "eu", "RowKey": "5000", "UserEmail": "nobody@example.com"},
        {"PartitionKey": "eu", "RowKey": "0777", "UserEmail": "a/b?c"},
        {"PartitionKey": "eu", "RowKey": "0778", "UserEmail": None},
    ]
    for row in odd:
        asyncio.run(shop.tables.table("Orders").insert({k: v for k, v in row.items() if v is not None}))
    [counts] = planned(commands_on(shop), code=None)["references"]
    assert (counts["rows"], counts["rows_missing"]) == (ORDERED + 1, GONE + 1)
