"""What a proxy answers, next to what the account itself answers to the same requests: equal, apart from times,
ETags and ids. For a table that no migration names, and for the old view in each phase.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekey import Migration, Target, keys, props
from rekey.declaration.migration import Declared
from rekey.phases import ControlPhase
from rekey.project.config import Config
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from tests.begun import Begun, declared_as
from tests.proxying import Answered, Wired, changeset, comparable, config_of, proxied, through, wired

pytestmark = [pytest.mark.azurite]
STATES = {
    "plain": None,
    "before": (),
    "source": (ControlPhase.SOURCE,),
    "dual_write": (ControlPhase.DUAL_WRITE,),
    "cutover": (ControlPhase.DUAL_WRITE, ControlPhase.FREEZE, ControlPhase.CUTOVER),
}
IF_ANY = {"If-Match": "*"}
NO_ECHO = {"Prefer": "return-no-content"}
ECHO = {"Prefer": "return-content"}
EVERY_TYPE = {
    "Text": "käse 'q' ",
    "Named": "x",
    "Named@odata.type": "Edm.String",
    "Small": 7,
    "Big": "9007199254740993",
    "Big@odata.type": "Edm.Int64",
    "Whole": 3.0,
    "Whole@odata.type": "Edm.Double",
    "Half": 2.5,
    "Nan": "NaN",
    "Nan@odata.type": "Edm.Double",
    "Yes": True,
    "Guid": "c9da6455-213d-42c9-9a79-3e9149a57833",
    "Guid@odata.type": "Edm.Guid",
    "Bytes": "AP8=",
    "Bytes@odata.type": "Edm.Binary",
    "At": "2024-02-29T12:00:00.1234567Z",
    "At@odata.type": "Edm.DateTime",
    "Nothing": None,
}


def row(key: str, **more: Any) -> dict[str, Any]:
    """Return an entity as it is sent."""
    return {"PartitionKey": "eu", "RowKey": key, "Nm": "A", **more}


def place(key: str) -> str:
    """Return the address of a row, below its table's name."""
    return f"(PartitionKey='eu',RowKey='{key}')"


Ask = Callable[..., Any]


async def singles(ask: Ask, table: str, _endpoint: str) -> None:
    await ask("POST", table, row("a"))
    await ask("POST", table, row("a"))
    await ask("POST", f"{table}()", row("b"), NO_ECHO)
    await ask("POST", table, row("b"), NO_ECHO)
    for level in ("nometadata", "minimalmetadata", "fullmetadata"):
        accept = {"Accept": f"application/json;odata={level}"}
        await ask("POST", table, row(level, **EVERY_TYPE), {**ECHO, **accept})
        await ask("GET", table + place(level), None, accept)
    await ask("GET", table + place("a") + "?$select=Nm,Other", None)
    await ask("GET", table + place("none"), None)
    await ask("PUT", table + place("a"), {"A": 1}, IF_ANY)
    await ask("GET", table + place("a"))
    for method in ("MERGE", "PATCH"):
        await ask(method, table + place("a"), {"B": method}, IF_ANY)
        await ask(method, table + place(method), {"B": 1})
        await ask(method, table + place("none"), {"B": 1}, IF_ANY)
    await ask("POST", table + place("a"), {"C": 1}, {**IF_ANY, "X-HTTP-Method": "MERGE"})
    await ask("PUT", table + place("new"), {"PartitionKey": "eu", "RowKey": "new", "D": 1})
    await ask("PUT", table + place("new"), {"E": 1})
    await ask("PUT", table + place("new"), {"E": 1}, {"If-Match": "W/\"datetime'2020-01-01T00%3A00%3A00Z'\""})
    await ask("GET", f"{table}()")
    await ask("GET", f"{table}?$top=2")
    await ask("GET", f"{table}()?$filter=RowKey%20ge%20'b'&$select=RowKey&$top=3")
    await ask("GET", f"{table}()?$filter=nonsense")
    await ask("DELETE", table + place("a"), None, IF_ANY)
    await ask("DELETE", table + place("a"), None, IF_ANY)
    await ask("DELETE", table + place("b"), None, {"If-Match": "W/\"datetime'2020-01-01T00%3A00%3A00Z'\""})


async def with_its_own_etag(ask: Ask, table: str, _endpoint: str) -> None:
    made: Answered = await ask("POST", table, row("a"), NO_ECHO)
    moved: Answered = await ask("PUT", table + place("a"), row("a", A=1), {"If-Match": made.headers["etag"]})
    await ask("PUT", table + place("a"), row("a", A=2), {"If-Match": made.headers["etag"]})
    read: Answered = await ask("GET", table + place("a"))
    assert read.headers["etag"] == moved.headers["etag"]
    await ask("DELETE", table + place("a"), None, {"If-Match": read.json["odata.etag"]})


async def odd_keys(ask: Ask, table: str, _endpoint: str) -> None:
    for key, spelled in (
        ("o'brien", "o''brien"),
        ("o'brien 2", "o%27%27brien%202"),
        ("a b+c", "a%20b+c"),
        ("\u00fcni \U0001f600", "%C3%BCni%20%F0%9F%98%80"),
        ("()=&,", "()=&,"),
    ):
        await ask("POST", table, row(key), ECHO)
        await ask("MERGE", table + place(spelled), {"A": 1}, IF_ANY)
        await ask("GET", table + place(spelled))
        await ask("DELETE", table + place(spelled), None, IF_ANY)


async def transactions(ask: Ask, table: str, endpoint: str) -> None:
    for end in ("\r\n", "\n"):
        mark = str(len(end))
        await ask(
            *("POST", "$batch"),
            *changeset(
                endpoint,
                [
                    ("POST", table, row("a" + mark), NO_ECHO),
                    ("PUT", table + place("b" + mark), row("b" + mark), {}),
                    ("MERGE", table + place("c" + mark), row("c" + mark), {}),
                ],
                end,
            ),
        )
    await ask(
        *("POST", "$batch"),
        *changeset(
            endpoint,
            [
                ("DELETE", table + place("a2"), None, IF_ANY),
                ("PATCH", table + place("b2"), {"N": 1}, IF_ANY),
                ("POST", table, row("d"), NO_ECHO),
            ],
        ),
    )
    await ask("GET", f"{table}()")
    for failing in (
        [("POST", table, row("new"), NO_ECHO), ("POST", table, row("d"), NO_ECHO)],
        [("PUT", table + place("c2"), row("c2"), {}), ("DELETE", table + place("none"), None, IF_ANY)],
    ):
        await ask("POST", "$batch", *changeset(endpoint, failing))
    await ask("GET", f"{table}()")


SCENARIOS = (singles, with_its_own_etag, odd_keys, transactions)


def migration_of(table_name: Callable[[str], str]) -> Declared:
    """Return a migration of these tests' own tables."""
    name = table_name("Users")
    return declared_as(
        f"s{name}",
        Migration(
            source=name,
            target=Target(
                f"{name}V2",
                partition_key=keys.prop("PartitionKey"),
                row_key=keys.opaque(keys.prop("RowKey"), domain="user", secret="users"),
                properties=[props.copy("RowKey", to="Mail")],
            ),
            capture="dual-write",
        ),
    )


async def begun_in(
    state: str, declared: Declared, tables: AzureTableService, restricted: AzureTableService
) -> None:
    """Bring a migration into a state; "plain" and "before" leave it without a control row."""
    begun = await Begun(declared, tables, restricted).create_tables()
    if STATES[state]:
        await begun.begin()
        for phase in STATES[state] or ():
            if phase is not ControlPhase.SOURCE:
                await begun.move(phase, copied=phase is ControlPhase.DUAL_WRITE)


async def answers(wire: Wired, table: str, scenario: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """Return what can be compared of the answers to a scenario, each with what was asked."""
    found: list[tuple[Any, ...]] = []

    async def ask(method: str, path: str, body: Any = None, headers: Any = None) -> Answered:
        answer = await wire.ask(method, path, body, headers)
        found.append((method, path.replace(table, "TABLE"), *comparable(answer, table)))
        return answer

    await scenario(ask, table, wire.endpoint)
    return found


@pytest.fixture
def config(tmp_path: Path, azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The configuration of a proxy in front of this Azurite."""
    return config_of(tmp_path, azurite, monkeypatch)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("state", STATES)
async def test_a_proxy_answers_as_the_account_does(
    state: str,
    scenario: Callable[..., Any],
    config: Config,
    azurite: Azurite,
    table_name: Callable[[str], str],
    tables_service: AzureTableService,
    restricted_service: AzureTableService,
) -> None:
    declared, plain = migration_of(table_name), table_name("Plain")
    await begun_in(state, declared, tables_service, restricted_service)
    table = table_name("Alone") if state == "plain" else declared.migration.source
    await tables_service.create_table(table)
    await tables_service.create_table(plain)
    async with (
        proxied(config, declared) as proxy,
        wired(azurite.tables.endpoint, azurite.tables) as direct,
        wired(through(proxy, azurite), azurite.tables) as behind,
    ):
        expected = await answers(direct, plain, scenario)
        found = await answers(behind, table, scenario)
    for one, other in zip(found, expected, strict=True):
        assert one == other
