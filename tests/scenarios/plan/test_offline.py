"""`rekey plan --offline`: declarations are judged without an account, and what was not looked at is said."""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rekey import Migration, keys, query
from rekey.core.clock import format_ticks
from rekey.declaration.keys import Expression
from rekey.model import Row
from rekey.plan.plan import make_plan, plan_offline
from rekey.plan.result import NOT_LOOKED_AT
from rekey.plan.subject import PlanOptions, Subject
from tests.asserts.command_line import Commands, CommandsOn
from tests.asserts.every import every
from tests.fakes.clock import FakeClock
from tests.fakes.memory import MemoryTableService
from tests.worlds.advice import migration as declared_with
from tests.worlds.plans import declared, fill, subject
from tests.worlds.projects import USERS_SCRIPT, Project

ASKED = 'query.range("RowKey", within=["PartitionKey"], rows=2_000)'
WITH_QUERIES = USERS_SCRIPT.replace("import Migration", "import query, Migration").replace(
    "capture=", f"queries=[{ASKED}], capture="
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a socket was opened for: nothing may be."""
    found: list[Any] = []

    def refused(_self: socket.socket, address: Any) -> None:
        found.append(address)
        raise OSError("no request may be sent")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *asked, **_: refused(None, asked))  # type: ignore[arg-type]
    return found


def commands(folder: Path, script: str, commands_on: CommandsOn) -> Commands:
    """A project whose accounts are far away, and whose secret is in a vault."""
    project = Project(folder)
    project.script(script)
    config = (folder / "rekey.toml").read_text("utf-8")
    config = config.replace("http://127.0.0.1:10002/devstoreaccount1", "https://a.table.core.windows.net")
    vault = 'key_vault = "https://v.vault.azure.net/secrets/users"'
    (folder / "rekey.toml").write_text(config.replace('file = "users.secret"', vault), "utf-8")

    def never(_config: object) -> Any:
        raise AssertionError("an account was connected")

    project.connect = never  # type: ignore[method-assign]
    return commands_on(project)


def test_nothing_is_requested_offline(tmp_path: Path, asked: list[Any], commands_on: CommandsOn) -> None:
    """Neither to an account nor to the vault of a secret; nothing is said of either."""
    rekey = commands(tmp_path, USERS_SCRIPT, commands_on)
    said = rekey("plan", "--offline", "--html", str(tmp_path / "plan.html")).out
    assert asked == []
    words = " ".join(said.split())
    assert "source Users (not looked at) target UsersV2 (not looked at)" in words
    assert "No problems. Nothing was written; `rekey plan` asks the account." in words
    assert every(one in words for one in NOT_LOOKED_AT)
    page = (tmp_path / "plan.html").read_text("utf-8")
    assert every(one in page for one in NOT_LOOKED_AT)
    assert "The declaration is in order." in page and "Nothing stands in the way" not in page
    document = rekey("plan", "--offline", "--json").json
    assert document["not_looked_at"] == list(NOT_LOOKED_AT)
    [told] = document["migrations"]
    assert set(told) == {"script_id", "title", "problems", "advice", "queries"}
    assert not (tmp_path / "state.sqlite").exists()


def test_an_unserved_query_is_a_finding(tmp_path: Path, asked: list[Any], commands_on: CommandsOn) -> None:
    """Requests are told where they follow from the declaration alone."""
    rekey = commands(tmp_path, WITH_QUERIES, commands_on)
    said = rekey("plan", "0001", "--offline", code=1)
    assert "    today    row range, 2 requests\n    planned  partition range\n" in said.out
    assert "ERROR   random-order: UsersV2 RowKey: range(RowKey" in said.out
    assert "`rekey apply` would refuse or stop: fix it first." in said.out
    document = rekey("plan", "0001", "--offline", "--json", code=1).json
    [told] = document["migrations"]
    assert [one["planned"]["requests"] for one in told["queries"]] == [None]
    rekey.project.script(WITH_QUERIES.replace("capture=", 'waive={"random-order": "a report"}, capture='))
    assert "WAIVED  random-order" in rekey("plan", "--offline").out
    rekey.project.script("nonsense(")
    rekey("plan", "--offline", code=2)
    assert asked == []


def test_the_state_file_reveals_an_edited_script(tmp_path: Path, commands_on: CommandsOn) -> None:
    project = Project(tmp_path)
    project.script(USERS_SCRIPT)
    rekey = commands_on(project)
    asyncio.run(project.fill("Users", [{"PartitionKey": "p", "RowKey": "a@mail.example"}]))
    rekey("apply", "--to", "prepare")
    project.script(USERS_SCRIPT.replace("ContactEmail", "Address"))
    assert "ERROR   declaration-moved" in rekey("plan", "--offline", code=1).out


@pytest.mark.parametrize(
    "words", ["--exact", "--show-keys", "--requests", "--rate=5", "--out=plan.json", "--compare"]
)
def test_options_that_need_rows_are_refused(tmp_path: Path, words: str, commands_on: CommandsOn) -> None:
    rekey = commands(tmp_path, USERS_SCRIPT, commands_on)
    assert "--offline looks at no row" in rekey("plan", "--offline", words, code=2).err


def rows() -> list[Row]:
    """Newest first by their RowKeys, which hold inverted ticks."""
    return [
        {
            "PartitionKey": f"p{n % 3}",
            "RowKey": f"{3155378975999999999 - 638_000_000_000_000_000 - n * 10**9:019}",
            "At": format_ticks(638_000_000_000_000_000 + n * 10**9),
            "At@odata.type": "Edm.DateTime",
            "Status": "open",
        }
        for n in range(60)
    ]


QUERIES = [
    query.latest(20, within=["PartitionKey"]),
    query.latest(20, by="At"),
    query.range("At", within=["PartitionKey"]),
    query.point("PartitionKey", "RowKey"),
    query.point("Status"),
]


@pytest.mark.parametrize(
    "row_key",
    [
        keys.prop("RowKey"),
        keys.opaque("RowKey", domain="d", secret="users"),
        keys.ticks("At"),
        keys.inverted_ticks("At"),
        keys.prop("Status") + keys.literal("_") + keys.prop("RowKey"),
    ],
    ids=["kept", "opaque", "rising", "falling", "status first"],
)
@pytest.mark.parametrize(
    "partition_key",
    [keys.prop("PartitionKey"), keys.date("yyyy-MM", "At"), keys.prop("Status")],
    ids=["kept", "month", "status"],
)
async def test_nothing_is_an_error_offline_that_the_rows_show_to_be_none(
    memory: MemoryTableService, partition_key: Expression, row_key: Expression
) -> None:
    """Advice offline is given with the rows, too, and weighs no more than there."""
    what: Migration = replace(
        declared_with(partition_key, row_key, load={"writes_per_second": 900}), queries=tuple(QUERIES)
    )
    await fill(memory, what.source, rows())
    known = await make_plan([subject(what)], memory, PlanOptions(exact=True), clock=FakeClock())
    guessed = plan_offline([Subject.offline(declared(what), None)], PlanOptions(), FakeClock())
    with_rows, without = (
        {(one.code, one.where, re.split("[:;]", one.evidence)[0]): one.severity.place for one in plan.advice}
        for plan in (*known.migrations, *guessed.migrations)
    )
    assert {one for one in without if without[one] < with_rows.get(one, 9)} == set()
