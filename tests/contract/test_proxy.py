"""What a proxy answers, next to what the account itself answers to the same requests: equal, apart from
times, ETags and ids. For a table that no migration names, for the old view in each phase, and for the new
table under the application's old name. And what it does besides: replicas, a freeze, key ranges.

Soak: keys, pages and refusals where no replica is written, and in another account under an alias.
Reason, and what `make test` covers: the same code answers; each scenario in `dual_write`, after cutover and
under an alias, and single requests and transactions everywhere.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit

import aiohttp
import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import TableSasPermissions, generate_table_sas

from rekey import Index, Migration, Target, keys, props
from rekey.client.lease import Permit
from rekey.client.route import Writer
from rekey.core.edm import canonical
from rekey.core.limits import TARGET_ACCOUNT_SUFFIX, own_name
from rekey.declaration.mapper import Mapper
from rekey.declaration.migration import Declared
from rekey.errors import ConfigurationError
from rekey.phases import ControlPhase
from rekey.project.config import Config
from rekey.protocol.registry import Registry
from rekey.proxy.forward import Upstream
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from rekey.tables.base import Operation, TableService, TwoAccounts
from rekey.tables.credentials import SharedKey
from tests.soaking import others_in_soak
from tests.worlds.begun_migrations import SECRETS, Begun, declared_as
from tests.worlds.dotnet_requests import as_dotnet
from tests.worlds.proxy import (
    QUICK,
    Answered,
    Wired,
    between,
    changeset,
    comparable,
    config_of,
    proxied,
    through,
    wired,
)

pytestmark = [pytest.mark.azurite]
STATES: dict[str, tuple[ControlPhase, ...]] = {
    "plain": (),
    "before": (),
    "source": (ControlPhase.SOURCE,),
    "dual_write": (ControlPhase.DUAL_WRITE,),
    "cutover": (ControlPhase.DUAL_WRITE, ControlPhase.FREEZE, ControlPhase.CUTOVER),
}
COMPLETE = (*STATES["cutover"], ControlPhase.COMPLETE)
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


async def pages(ask: Ask, table: str, _endpoint: str) -> None:
    """A query page by page, by the tokens of its answers; selected, filtered, and its size bounded."""
    for key in "abcde":
        await ask("POST", table, row(key, Number=ord(key)), NO_ECHO)
    for query in (
        "$top=2",
        "$top=2&$select=RowKey",
        "$top=1&$filter=Number%20gt%2097",
        "$top=2&$format=json",
    ):
        path, seen = f"{table}()?{query}", 0
        while path and seen < 9:
            answer: Answered = await ask("GET", path)
            seen += 1
            following = [
                f"{name}={quote(value)}"
                for name in ("NextPartitionKey", "NextRowKey")
                if (value := answer.headers.get(f"x-ms-continuation-{name.lower()}"))
            ]
            path = f"{table}()?{query}&{'&'.join(following)}" if following else ""
    for query in ("$top=0", "$top=1001", "$filter=Number%20eq%20'a'", "$filter=(RowKey%20eq%20'a'"):
        await ask("GET", f"{table}()?{query}")


async def refusals(ask: Ask, table: str, endpoint: str) -> None:
    """What the service refuses: by the form of the request, or by what it holds."""
    await ask("POST", table, row("a"), NO_ECHO)
    await ask("POST", table, {"RowKey": "x"})
    await ask("POST", table, {"PartitionKey": "x"})
    await ask("POST", table, row("k" * 1025))
    await ask("POST", table, row("b", Long="x" * 40_000))
    await ask("PUT", table + place("a"), {"A": 1}, {"If-Match": "nonsense"})
    for timeout in ("abc", "-1", "20", "1.5"):
        await ask("PUT", f"{table}{place('a')}?timeout={timeout}", {"A": 1})
    await ask("MERGE", table + place("a"), {"RowKey": "other", "A": 1}, IF_ANY)
    await ask("POST", "$batch", *changeset(endpoint, [("PUT", table + place("a"), row("a"), {})] * 2))
    many = [("PUT", table + place(str(number)), row(str(number)), {}) for number in range(101)]
    await ask("POST", "$batch", *changeset(endpoint, many))
    apart = [("POST", table, {"PartitionKey": key, "RowKey": "r"}, NO_ECHO) for key in "pq"]
    await ask("POST", "$batch", *changeset(endpoint, apart))
    await ask("GET", f"{table}()", None, {"x-ms-client-request-id": "said-by-the-client"})


SCENARIOS = (singles, with_its_own_etag, odd_keys, transactions, pages, as_dotnet, refusals)


def migration_of(table_name: Callable[[str], str], *, elsewhere: bool = False) -> Declared:
    """Return a migration of these tests' own tables; to another account under the same name, or to one."""
    name = table_name("Users")
    target = f"{name}{TARGET_ACCOUNT_SUFFIX}" if elsewhere else f"{name}V2"
    return declared_as(
        f"s{name}",
        Migration(
            source=name,
            target=Target(
                target,
                partition_key=keys.prop("PartitionKey"),
                row_key=keys.opaque(keys.prop("RowKey"), domain="user", secret="users"),
                properties=[props.copy("RowKey", to="Mail")],
            ),
            capture="dual-write",
        ),
    )


async def begun_in(
    phases: Sequence[ControlPhase],
    declared: Declared,
    tables: TableService,
    restricted: AzureTableService,
    elsewhere: str = "",
) -> Begun:
    """Bring a migration through phases; without any it has no control row."""
    begun = await Begun(declared, tables, restricted, elsewhere).create_tables()
    if phases:
        await begun.begin()
    for phase in phases:
        if phase is not ControlPhase.SOURCE:
            await begun.move(phase, copied=phase is ControlPhase.DUAL_WRITE)
    return begun


async def answers(
    wire: Wired, table: str, scenario: Callable[..., Any], hidden: str = ""
) -> list[tuple[Any, ...]]:
    """Return what can be compared of the answers to a scenario, each with what was asked. `hidden`: the
    endpoint that no answer names."""
    found: list[tuple[Any, ...]] = []

    async def ask(method: str, path: str, body: Any = None, headers: Any = None) -> Answered:
        answer = await wire.ask(method, path, body, headers)
        if hidden:
            host = urlsplit(hidden).netloc
            assert host not in answer.body.decode() + str(answer.headers), (method, path, answer)
        # Of a refusal the words are rekey's own where it refuses first, and some codes the real service's.
        told = (answer.status,) if scenario is refusals else comparable(answer, table)
        found.append((method, path.replace(table, "TABLE"), *told))
        return answer

    await scenario(ask, table, wire.endpoint)
    return found


@dataclass
class World:
    """An Azurite, and the configuration of proxies in front of it."""

    azurite: Azurite
    tables: AzureTableService
    restricted: AzureTableService
    table_name: Callable[[str], str]
    config_with: Callable[[str], Config]

    def __post_init__(self) -> None:
        self.configure("")

    def configure(self, more: str) -> None:
        """Configure proxies anew."""
        self.config = self.config_with(more)

    async def begun(
        self, phases: Sequence[ControlPhase], declared: Declared, *, elsewhere: bool = False
    ) -> Begun:
        """Bring a migration through phases; its target is in the account of targets if `elsewhere`."""
        if not elsewhere:
            return await begun_in(phases, declared, self.tables, self.restricted)
        account = self.azurite.targets
        credential = SharedKey.of(account.name, account.key)
        async with AzureTableService.open(account.endpoint, credential, is_target_account=True) as targets:
            both = TwoAccounts(self.tables, targets)
            return await begun_in(phases, declared, both, self.restricted, account.endpoint)

    def targets(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """Return what a configuration says of the account of targets."""
        monkeypatch.setenv("PROXY_TARGETS_KEY", self.azurite.targets.key)
        return f'\n[targets]\nendpoint = "{self.azurite.targets.endpoint}"\nkey_env = "PROXY_TARGETS_KEY"'

    def between(self, *declared: Declared) -> AbstractAsyncContextManager[tuple[Wired, Wired]]:
        """Give a wire to the account, and one to a proxy in front of it."""
        return between(self.config, self.azurite, *declared)

    def wired(self, proxy: Any) -> AbstractAsyncContextManager[Wired]:
        """Give a wire to a proxy that runs."""
        return wired(through(proxy, self.azurite), self.azurite.tables)


@pytest.fixture
def world(
    azurite: Azurite,
    tables_service: AzureTableService,
    restricted_service: AzureTableService,
    table_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    def config_with(more: str) -> Config:
        return config_of(tmp_path, azurite, monkeypatch, more)

    return World(azurite, tables_service, restricted_service, table_name, config_with)


@pytest.mark.parametrize(
    ("state", "scenario"),
    others_in_soak(
        list(product(STATES, SCENARIOS)),
        kept=[
            *product(("dual_write", "cutover"), SCENARIOS),
            *product(("plain", "before", "source"), (singles, transactions)),
        ],
    ),
)
async def test_a_proxy_answers_as_the_account_does(
    world: World, state: str, scenario: Callable[..., Any]
) -> None:
    declared, plain = migration_of(world.table_name), world.table_name("Plain")
    await world.begun(STATES[state], declared)
    table = world.table_name("Alone") if state == "plain" else declared.migration.source
    await world.tables.create_table(table)
    await world.tables.create_table(plain)
    async with world.between(declared) as (direct, behind):
        expected = await answers(direct, plain, scenario)
        found = await answers(behind, table, scenario, direct.endpoint)
    for one, other in zip(found, expected, strict=True):
        assert one == other


@pytest.mark.parametrize("is_signed", [False, True], ids=["key", "signature of a key range"])
async def test_a_plus_in_a_query_is_a_space_as_the_account_reads_it(world: World, is_signed: bool) -> None:
    """As the service does: recorded of Go's SDK and of Python's former one, which write spaces so
    (`%24filter=PartitionKey+eq+%27pk001%27`, `TestAddBasicEntity_storage.json`)."""
    declared, plain = migration_of(world.table_name), world.table_name("Plain")
    await world.begun(STATES["dual_write"], declared)
    await world.tables.create_table(plain)
    ends = datetime(2200, 1, 1, tzinfo=UTC)
    async with world.between(declared) as (direct, behind):
        for wire, table in ((direct, plain), (behind, declared.migration.source)):
            for key in ("a b", "a+b"):
                assert (await wire.ask("POST", table, row(key), NO_ECHO)).status == 204
            signed = ""
            if is_signed and wire is behind:
                signed = "&" + generate_table_sas(
                    AzureNamedKeyCredential(world.azurite.tables.name, world.azurite.tables.key), table,
                    permission=TableSasPermissions(read=True), expiry=ends, start_pk="eu", end_pk="eu",
                )  # fmt: skip
            for spelled, key in (("a+b", "a b"), ("a%20b", "a b"), ("a%2Bb", "a+b")):
                for query in (
                    f"%24filter=PartitionKey+eq+%27eu%27+and+RowKey+eq+%27{spelled}%27",
                    f"$filter=PartitionKey%20eq%20'eu'%20and%20RowKey%20eq%20'{spelled}'&$select=RowKey",
                ):
                    answer = await wire.ask("GET", f"{table}()?{query}{signed}", signs=not signed)
                    assert [each["RowKey"] for each in answer.json["value"]] == [key], (table, query)


@pytest.mark.parametrize(
    ("elsewhere", "scenario"),
    others_in_soak(
        list(product((False, True), SCENARIOS)),
        kept=[*product((False,), SCENARIOS), (True, singles), (True, transactions)],
    ),
)
async def test_under_an_alias_the_new_table_answers_by_the_old_name(
    world: World, scenario: Callable[..., Any], elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's own name is in no answer, whatever metadata is asked for; also of another account's."""
    declared, plain = migration_of(world.table_name, elsewhere=elsewhere), world.table_name("Plain")
    source, target = declared.migration.source, declared.migration.target.table
    there = world.azurite.targets if elsewhere else world.azurite.tables
    more = f'[proxy.views]\n{source} = "{target}"'
    if elsewhere:
        more += world.targets(monkeypatch)
    await world.begun(COMPLETE, declared, elsewhere=elsewhere)
    await world.tables.create_table(plain)
    world.configure(more)
    async with world.between(declared) as (direct, behind), wired(there.endpoint, there) as beyond:
        expected = await answers(direct, plain, scenario)
        found = await answers(behind, source, scenario, there.endpoint)
        assert found == expected
        for told in (
            await behind.ask("GET", f"Tables('{source}')"),
            await behind.ask("POST", source, row("k" * 1025)),
        ):
            assert target.encode() not in told.body
        again = await behind.ask("POST", "Tables", {"TableName": source})
        assert (again.status, again.code) == (409, "TableAlreadyExists"), again
        kept = (await beyond.ask("GET", f"{own_name(target)}()")).json["value"]
        assert kept == (await behind.ask("GET", f"{source}()")).json["value"]
        assert (await direct.ask("GET", f"{source}()")).json["value"] == []


async def test_rows_are_read_under_the_name_of_the_secondary_as_well(world: World) -> None:
    """An SDK reads there when the account's own address fails it; nothing is written there."""
    declared = migration_of(world.table_name)
    source = declared.migration.source
    await world.begun(STATES["dual_write"], declared)
    await world.tables.create_table(plain := world.table_name("Plain"))
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxied(world.config, declared))
        wire = await stack.enter_async_context(world.wired(proxy))
        second = await stack.enter_async_context(
            wired(f"{through(proxy, world.azurite)}-secondary", world.azurite.tables)
        )
        for table in (source, plain):
            await wire.ask("POST", table, row("a"), NO_ECHO)
            for path in (f"{table}()", table + place("a")):
                one, other = await wire.ask("GET", path), await second.ask("GET", path)
                assert other.body == one.body.replace(wire.endpoint.encode(), second.endpoint.encode())
                assert (one.status, other.status) == (200, 200)
            refused = await second.ask("POST", table, row("b"), NO_ECHO)
            assert (refused.status, refused.code) == (403, "InsufficientAccountPermissions")


async def test_an_alias_of_a_migration_that_is_not_followed_is_refused_and_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rekey proxy 0001` in a project whose `[proxy.views]` names tables of 0002 as well."""
    declared = migration_of(world.table_name)
    other = declared_as("other", replace(declared.migration, source=world.table_name("Other")))
    source, target = other.migration.source, f"{other.migration.source}V2"
    other = declared_as(
        "other", replace(other.migration, target=replace(other.migration.target, table=target))
    )
    await world.begun(STATES["dual_write"], declared)
    await world.tables.create_table(source)
    world.configure(f'[proxy.views]\n{source} = "{target}"')
    with pytest.raises(ConfigurationError, match="is no table of a migration"):
        async with proxied(world.config, declared):
            pass
    async with proxied(world.config, declared, not_followed=[other]) as proxy, world.wired(proxy) as behind:
        for refused in (
            await behind.ask("GET", f"{source}()"),
            await behind.ask("POST", source, row("a"), NO_ECHO),
            await behind.ask("DELETE", f"Tables('{source}')"),
            await behind.ask("POST", "$batch", *changeset(behind.endpoint, [("POST", source, row("a"), {})])),
        ):
            assert (refused.status, refused.code) == (403, "alias-not-followed")
        assert (await behind.ask("POST", declared.migration.source, row("a"), NO_ECHO)).status == 204


async def test_each_caller_is_given_the_table_that_its_own_alias_means(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old and new versions under one name, through one proxy, told apart by their keys; one with aliases of
    its own is given none of the others'."""
    declared = migration_of(world.table_name)
    source, target = declared.migration.source, declared.migration.target.table
    await world.begun(STATES["dual_write"], declared)
    views = f'[proxy.views.moved]\n{source} = "{target}"\n[proxy.views.unmoved]\n'
    keys = "".join(f'[proxy.access.keys.{name}]\nenv = "X"\n' for name in ("moved", "unmoved"))
    world.configure(f'[proxy.views]\nPeople = "{target}"\n{views}{keys}')
    others = {"moved": b"the key of the new version, 32 B", "unmoved": b"the key of the old version, 32 B"}
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxied(world.config, declared, others=others))
        rest = await stack.enter_async_context(world.wired(proxy))
        moved, unmoved = [
            await stack.enter_async_context(
                wired(
                    through(proxy, world.azurite), replace(world.azurite.tables, key=b64encode(key).decode())
                )
            )
            for key in others.values()
        ]
        assert (await unmoved.ask("POST", source, row("a"), NO_ECHO)).status == 204
        [old] = (await unmoved.ask("GET", f"{source}()")).json["value"]
        [new] = (await moved.ask("GET", f"{source}()")).json["value"]
        assert (old["RowKey"], new["Mail"]) == ("a", "a")
        assert (await moved.ask("MERGE", source + place(new["RowKey"]), {"A": 1}, IF_ANY)).status == 204
        assert (await unmoved.ask("GET", source + place("a"))).json["A"] == 1
        assert (await rest.ask("GET", source + place("a"))).json["A"] == 1
        assert (await rest.ask("GET", "People" + place(new["RowKey"]))).json["A"] == 1
        for other in (moved, unmoved):
            assert (await other.ask("GET", "People()")).status == 404


async def test_what_is_written_through_a_proxy_is_in_the_new_table_too(world: World) -> None:
    """Old view and new view at once, before and after cutover."""
    declared = migration_of(world.table_name)
    source, target = declared.migration.source, declared.migration.target.table
    begun = await world.begun(STATES["dual_write"], declared)
    async with world.between(declared) as (direct, behind):

        async def both() -> tuple[list[Any], list[Any]]:
            found = [(await direct.ask("GET", f"{table}()")).json["value"] for table in (source, target)]
            return sorted((one["RowKey"], one["A"]) for one in found[0]), sorted(
                (one["Mail"], one["A"]) for one in found[1]
            )

        assert (await behind.ask("POST", source, row("a", A=1), NO_ECHO)).status == 204
        assert (await behind.ask("POST", source, row("b", A=1), NO_ECHO)).status == 204
        [moved] = [
            one["RowKey"]
            for one in (await behind.ask("GET", f"{target}()")).json["value"]
            if one["Mail"] == "a"
        ]
        assert (await behind.ask("MERGE", target + place(moved), {"A": 2}, IF_ANY)).status == 204
        assert await both() == ([("a", 2), ("b", 1)],) * 2
        await begun.move(ControlPhase.FREEZE)
        await followed(begun)
        frozen = await behind.ask("POST", source, row("c", A=1), NO_ECHO)
        assert (frozen.status, frozen.code) == (503, "ServerBusy")
        assert frozen.headers["retry-after"] == "1"
        assert (await behind.ask("GET", source + place("a"))).json["A"] == 2
        await begun.move(ControlPhase.CUTOVER)
        await followed(begun)
        assert (await behind.ask("DELETE", source + place("b"), None, IF_ANY)).status == 204
        assert (await behind.ask("MERGE", target + place(moved), {"A": 3}, IF_ANY)).status == 204
        assert await both() == ([("a", 3)],) * 2
        for table in (source, target):
            kept = await behind.ask("DELETE", f"Tables('{table}')")
            assert (kept.status, kept.code) == (403, "table-in-use")
        assert {client.name for client in await clients_of(begun)} == {"proxy"}
        assert {client.view for client in await clients_of(begun)} == {"old", "new"}
    assert not await clients_of(begun), "leases are returned at the end"


async def test_a_proxy_maintains_index_rows_after_complete_until_the_handover(world: World) -> None:
    """Behind it an application does not even know of the index."""
    plain = migration_of(world.table_name)
    by_name = world.table_name("ByName")
    index = Index(by_name, partition_key=keys.literal("all"), row_key=keys.prop("Nm"))
    declared = declared_as(plain.script_id, replace(plain.migration, indexes=[index]))
    target = declared.migration.target.table
    begun = await world.begun(STATES["cutover"], declared)
    await begun.store.keep_maintaining()
    await begun.move(ControlPhase.COMPLETE)
    async with world.between(declared) as (direct, behind):

        async def names() -> list[tuple[str, str]]:
            found = (await direct.ask("GET", f"{by_name}()")).json["value"]
            return sorted((one["RowKey"], one["MainRowKey"]) for one in found)

        mapper = Mapper(declared.migration, SECRETS)
        a, b = (dict(mapper.map(row(key, Nm=key))[0].row) for key in "ab")
        for one in (a, b):
            assert (await behind.ask("POST", target, one, NO_ECHO)).status == 204
        assert await names() == [("a", a["RowKey"]), ("b", b["RowKey"])]
        assert (await behind.ask("MERGE", target + place(a["RowKey"]), {"Nm": "c"}, IF_ANY)).status == 204
        assert (await behind.ask("DELETE", target + place(b["RowKey"]), None, IF_ANY)).status == 204
        assert await names() == [("c", a["RowKey"])]
        kept = await behind.ask("DELETE", f"Tables('{target}')")
        assert (kept.status, kept.code) == (403, "table-in-use")
        await begun.store.hand_over()
        await followed(begun)
        assert (await behind.ask("DELETE", target + place(a["RowKey"]), None, IF_ANY)).status == 204
        assert await names() == [("c", a["RowKey"])], "the application's own"


ODD_VALUES: dict[str, tuple[Any, str | None]] = {
    "Offset": ("2020-11-16T04:25:03-05:00", "Edm.DateTime"),
    "Minutes": ("2020-11-16T04:25Z", "Edm.DateTime"),
    "Date": ("2020-11-16", "Edm.DateTime"),
    "Early": ("1500-01-01T00:00:00Z", "Edm.DateTime"),
    "NoMoment": ("yesterday", "Edm.DateTime"),
    "Large": (3_000_000_000, None),
    "Exponent": ("1e3", "Edm.Int64"),
    "Text64KiB": ("x" * 32_768, None),
    "Bytes64KiB": ("AAAA" * 21_845 + "AA==", "Edm.Binary"),
    "with-dash": (1, None),
    "1a": (1, None),
}


@pytest.mark.parametrize("state", ["source", "dual_write", "cutover"])
async def test_what_the_account_takes_is_taken_in_every_phase_and_all_tables_hold_the_same(
    world: World, state: str
) -> None:
    """The account judges values, names and sizes, so that what a client may write does not change when the
    replicas begin to follow. Azurite takes all of these."""
    declared = migration_of(world.table_name)
    source, target = declared.migration.source, declared.migration.target.table
    await world.begun(STATES[state], declared)
    async with world.between(declared) as (direct, behind):
        for name, (value, kind) in ODD_VALUES.items():
            typed = {name: value} if kind is None else {name: value, f"{name}@odata.type": kind}
            for answer in (
                await behind.ask("POST", source, row(name, **typed), ECHO),
                await behind.ask("PUT", source + place("put-" + name), typed),
                await behind.ask("MERGE", source + place(name), typed, IF_ANY),
            ):
                assert answer.status in (201, 204), (name, answer)
        if state == "source":
            return
        old = (await direct.ask("GET", f"{source}()")).json["value"]
        new = (await direct.ask("GET", f"{target}()")).json["value"]
        assert len(old) == 2 * len(ODD_VALUES)
        by_key = {one["Mail"]: one for one in new}
        for one in old:
            name = one["RowKey"].removeprefix("put-")
            assert canonical(one, name) == canonical(by_key[one["RowKey"]], name)


async def test_a_write_whose_caller_is_gone_is_done_whole_also_when_the_proxy_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not cancelled, and the lease is returned after it."""
    declared = migration_of(world.table_name)
    begun = await world.begun(STATES["dual_write"], declared)
    under_way, whole = asyncio.Event(), Writer._write

    async def slow(self: Writer, operations: Sequence[Operation], permit: Permit) -> list[str | None]:
        under_way.set()
        await asyncio.sleep(0.3)
        return await whole(self, operations, permit)

    monkeypatch.setattr(Writer, "_write", slow)
    async with wired(world.azurite.tables.endpoint, world.azurite.tables) as direct:
        async with proxied(world.config, declared) as proxy, world.wired(proxy) as wire:
            asking = asyncio.create_task(wire.ask("POST", declared.migration.source, row("a")))
            await under_way.wait()
            asking.cancel()
        for table in (declared.migration.source, declared.migration.target.table):
            assert len((await direct.ask("GET", f"{table}()")).json["value"]) == 1
    assert not await clients_of(begun)


async def test_a_read_holds_its_permit_no_longer_than_the_longest_operation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A freeze would wait for it, while the account does not answer."""
    declared = migration_of(world.table_name)
    await world.begun(STATES["dual_write"], declared)

    @asynccontextmanager
    async def hanging(*_: Any, **__: Any) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(Upstream, "send", hanging)
    monkeypatch.setattr("tests.worlds.proxy.QUICK", replace(QUICK, longest_operation_s=2.0))
    async with proxied(world.config, declared) as proxy, world.wired(proxy) as wire:
        async with asyncio.timeout(20):
            answer = await wire.ask("GET", f"{declared.migration.source}()")
    assert (answer.status, answer.code) == (503, "ServerBusy")


async def followed(begun: Begun) -> None:
    """Wait until all clients have acknowledged the epoch of the control row, as the runner does."""
    now = await begun.store.read()
    async with asyncio.timeout(20):
        while now is None or any(client.epoch != now.epoch for client in await clients_of(begun)):
            await asyncio.sleep(0.02)


async def clients_of(begun: Begun) -> list[Any]:
    """Return the clients of a migration that are registered."""
    return list(await Registry(begun.restricted, begun.declared.script_id).list())


async def test_a_signature_of_a_key_range_reads_and_writes_nothing_beyond_it(world: World) -> None:
    """Which Azurite ignores. In both a migrated table and one that passes."""
    declared, plain = migration_of(world.table_name), world.table_name("Plain")
    await world.begun(STATES["dual_write"], declared)
    await world.tables.create_table(plain)
    key = AzureNamedKeyCredential(world.azurite.tables.name, world.azurite.tables.key)
    may = TableSasPermissions(read=True, add=True, update=True, delete=True)
    ends = datetime(2200, 1, 1, tzinfo=UTC)
    async with proxied(world.config, declared) as proxy, world.wired(proxy) as owner:
        for table in (plain, declared.migration.source):
            for name in "abc":
                assert (await owner.ask("POST", table, row(name), NO_ECHO)).status == 204
            signed = generate_table_sas(
                key, table, permission=may, expiry=ends, start_pk="eu", start_rk="a", end_pk="eu", end_rk="b"
            )

            async def ask(method: str, path: str, *more: Any, signed: str = signed) -> tuple[int, Any]:
                mark = "&" if "?" in path else "?"
                answer = await owner.ask(method, f"{path}{mark}{signed}", *more, signs=False)
                return answer.status, answer

            status, found = await ask("GET", f"{table}()?$filter=PartitionKey%20eq%20'eu'%20or%20true")
            assert (status, [one["RowKey"] for one in found.json["value"]]) == (200, ["a", "b"])
            for method, path, body, headers, expected in (
                ("GET", table + place("a"), None, {}, 200),
                ("GET", table + place("c"), None, {}, 403),
                ("PUT", table + place("b"), {"A": 1}, {}, 204),
                ("PUT", table + place("d"), {"A": 1}, {}, 403),
                ("POST", table, row("aa"), NO_ECHO, 204),
                ("POST", table, row("d"), NO_ECHO, 403),
                ("DELETE", table + place("c"), None, IF_ANY, 403),
                ("DELETE", table + place("aa"), None, IF_ANY, 204),
                ("GET", "Tables", None, {}, 403),
                ("GET", f"{table}?comp=acl", None, {}, 403),
            ):
                assert (await ask(method, path, body, headers))[0] == expected, (method, path)
            inside = changeset(owner.endpoint, [("MERGE", table + place("a"), {"B": 1}, {})])
            assert (await ask("POST", "$batch", *inside))[0] == 202
            beyond: list[Any] = [
                ("MERGE", table + place("a"), {"B": 2}, {}),
                ("MERGE", table + place("c"), {"B": 2}, {}),
            ]
            assert (await ask("POST", "$batch", *changeset(owner.endpoint, beyond)))[0] == 403
            rows = (await owner.ask("GET", f"{table}()")).json["value"]
            assert [(one["RowKey"], one.get("B")) for one in rows] == [("a", 1), ("b", None), ("c", None)]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_a_signature_of_a_key_range_is_refused_under_an_alias_and_good_under_the_own_names(
    world: World, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with new keys, `epk=tenant-a` held for the rows of all three tenants."""
    name = world.table_name("Users")
    target = f"{name}{TARGET_ACCOUNT_SUFFIX}" if elsewhere else f"{name}V2"
    tenant = keys.opaque(keys.prop("PartitionKey"), domain="tenant", secret="users")
    filled = Target(
        target,
        partition_key=tenant,
        row_key=keys.prop("RowKey"),
        properties=[props.copy("PartitionKey", to="Tenant")],
    )
    declared = declared_as(f"s{name}", Migration(source=name, target=filled, capture="dual-write"))
    more = f'[proxy.views.moved]\n{name} = "{target}"\n[proxy.access.keys.moved]\nenv = "X"'
    if elsewhere:
        more += world.targets(monkeypatch)
    await world.begun(STATES["dual_write"], declared, elsewhere=elsewhere)
    world.configure(more)
    moved = b"the key of the new version, 32 B"
    async with (
        proxied(world.config, declared, others={"moved": moved}) as proxy,
        world.wired(proxy) as old,
        wired(
            through(proxy, world.azurite), replace(world.azurite.tables, key=b64encode(moved).decode())
        ) as new,
    ):
        for letter, number in product("abc", range(6)):
            entity = {"PartitionKey": f"tenant-{letter}", "RowKey": str(number)}
            assert (await old.ask("POST", name, entity, NO_ECHO)).status == 204

        async def ask(
            wire: Wired, method: str, path: str, body: Any = None, headers: Any = None, **bounds: str
        ) -> Answered:
            signed = generate_table_sas(
                AzureNamedKeyCredential(world.azurite.tables.name, wire.account.key),
                path.partition("(")[0] if path.startswith(name) else name,
                permission=TableSasPermissions(read=True, add=True, update=True, delete=True),
                expiry=datetime(2200, 1, 1, tzinfo=UTC),
                **cast(Any, bounds),
            )
            return await wire.ask(method, f"{path}?{signed}", body, headers, signs=False)

        rows = (await ask(new, "GET", f"{name}()")).json["value"]
        assert len(rows) == 18, "a signature without a range is good"
        other = next(one for one in rows if one["RowKey"] == "5")
        there = f"{name}(PartitionKey='{other['PartitionKey']}',RowKey='5')"
        merge = ("MERGE", there, {"Taken": True}, {})
        line = f"GET {new.endpoint}/{there} HTTP/1.1"
        read = f"--b\r\nContent-Type: application/http\r\n\r\n{line}\r\n\r\n--b--\r\n"
        requests: list[tuple[Any, ...]] = [
            ("GET", f"{name}()"),
            ("GET", there),
            merge,
            (*merge[:3], IF_ANY),
            ("PUT", there, {"Taken": True}, IF_ANY),
            ("DELETE", there, None, IF_ANY),
            ("POST", name, {"PartitionKey": "tenant-a", "RowKey": "new"}, NO_ECHO),
            ("POST", "$batch", *changeset(new.endpoint, [merge])),
            ("POST", "$batch", read.encode(), {"Content-Type": "multipart/mixed; boundary=b"}),
        ]
        for bounds in (
            {"end_pk": "tenant-a"},
            {"start_pk": "0"},
            {"start_pk": "0", "end_pk": "z", "end_rk": "z"},
        ):
            for request in requests:
                refused = await ask(new, *request, **bounds)
                assert refused.status == 403, (request, refused.body)
                assert refused.code == "AuthorizationFailure"
                assert b"a signature for a key range" in refused.body, (request, refused.body)
        assert (await ask(new, "GET", f"{name}()")).json["value"] == rows

        found = (await ask(old, "GET", f"{name}()", end_pk="tenant-a", end_rk="z")).json["value"]
        assert [one["PartitionKey"] for one in found] == ["tenant-a"] * 6
        if not elsewhere:  # for the table's own name a range is of the keys that it has
            first = min(one["PartitionKey"] for one in rows)
            bounds = {"start_pk": first, "end_pk": first}
            found = (await ask(old, "GET", f"{target}()", **bounds)).json["value"]
            assert [one["PartitionKey"] for one in found] == [first] * 6


async def test_a_signature_is_good_for_what_its_stored_access_policy_says_now(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a migrated table and in one that passes; a policy that is taken away revokes it."""
    monkeypatch.setattr("rekey.proxy.handler._POLICIES_S", 0.0)
    declared, plain = migration_of(world.table_name), world.table_name("Plain")
    await world.begun(STATES["dual_write"], declared)
    await world.tables.create_table(plain)
    key = AzureNamedKeyCredential(world.azurite.tables.name, world.azurite.tables.key)
    xml = {"Content-Type": "application/xml", "Accept": "application/xml"}
    async with proxied(world.config, declared) as proxy, world.wired(proxy) as owner:
        for table in (plain, declared.migration.source):
            signed = generate_table_sas(key, table, policy_id="readers")

            async def ask(method: str, path: str, *more: Any, signed: str = signed) -> int:
                answer = await owner.ask(method, f"{path}?{signed}", *more, signs=False)
                return answer.status

            assert await ask("GET", f"{table}()") == 403
            policy = (
                b'<?xml version="1.0"?><SignedIdentifiers><SignedIdentifier><Id>readers</Id><AccessPolicy>'
                b"<Start>2024-01-01T00:00:00Z</Start><Expiry>2200-01-01T00:00:00Z</Expiry>"
                b"<Permission>ra</Permission>"
                b"</AccessPolicy></SignedIdentifier></SignedIdentifiers>"
            )
            assert (await owner.ask("PUT", f"{table}?comp=acl", policy, xml)).status == 204
            assert await ask("POST", table, row("a"), NO_ECHO) == 204
            assert await ask("GET", f"{table}()") == 200
            assert await ask("DELETE", table + place("a"), None, IF_ANY) == 403
            none = b'<?xml version="1.0"?><SignedIdentifiers />'
            assert (await owner.ask("PUT", f"{table}?comp=acl", none, xml)).status == 204
            assert await ask("GET", f"{table}()") == 403


async def test_what_is_not_about_rows_passes(world: World) -> None:
    """Service properties, the list of tables, stored access policies, and a large body."""
    table = world.table_name("Plain")
    async with world.between() as (direct, behind):
        assert (await behind.ask("POST", "Tables", {"TableName": table})).status == 201
        large = {"PartitionKey": "p", "RowKey": "r", **{f"P{number}": "x" * 30_000 for number in range(20)}}
        assert (await behind.ask("POST", table, large, NO_ECHO)).status == 204
        policy = (
            b'<?xml version="1.0"?><SignedIdentifiers><SignedIdentifier><Id>one</Id><AccessPolicy>'
            b"<Start>2024-01-01T00:00:00Z</Start><Expiry>2200-01-01T00:00:00Z</Expiry><Permission>r</Permission>"
            b"</AccessPolicy></SignedIdentifier></SignedIdentifiers>"
        )
        xml = {"Content-Type": "application/xml", "Accept": "application/xml"}
        assert (await behind.ask("PUT", f"{table}?comp=acl", policy, xml)).status == 204
        for path in (
            "?restype=service&comp=properties",
            f"{table}?comp=acl",
            f"{table}(PartitionKey='p',RowKey='r')",
            f"Tables?$filter=TableName%20eq%20'{table}'",
        ):
            headers = xml if "comp" in path else {}
            one, other = (
                await direct.ask("GET", path, None, headers),
                await behind.ask("GET", path, None, headers),
            )
            expected = one.body.replace(direct.endpoint.encode(), behind.endpoint.encode())
            assert (one.status, expected) == (other.status, other.body), path
            assert one.status == 200, path
        assert (await behind.ask("DELETE", f"Tables('{table}')")).status == 204


async def test_new_keys_that_are_made_of_content_are_those_of_the_row_that_is_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a row that is there, made of its content, and for the token alone."""
    token = "a token for new keys"
    monkeypatch.setenv("PROXY_TOKEN", token)
    world.configure("[proxy.access.token]\nenv = 'PROXY_TOKEN'")
    source, target = world.table_name("Src"), world.table_name("Dst")
    declared = declared_as(
        f"s{source}",
        Migration(
            source=source,
            target=Target(target, partition_key=keys.prop("Team"), row_key=keys.lower("RowKey")),
            capture="dual-write",
            reverse=False,
        ),
    )
    await world.tables.create_table(source)
    async with (
        proxied(world.config, declared) as proxy,
        aiohttp.ClientSession() as session,
        wired(world.azurite.tables.endpoint, world.azurite.tables) as direct,
    ):
        there = {"PartitionKey": "eu", "RowKey": "A'b", "Team": "red"}
        assert (await direct.ask("POST", source, there, NO_ECHO)).status == 204
        for name, said, status in (("A'b", token, 200), ("none", token, 404), ("A'b", "other", 401)):
            answer = await session.get(
                f"{proxy.admin}_rekey/keys",
                params={"table": source, "pk": "eu", "rk": name},
                headers={"Authorization": f"Bearer {said}"},
            )
            assert answer.status == status
            if status == 200:
                assert await answer.json() == {
                    "keys": [{"table": target, "partition_key": "red", "row_key": "a'b"}]
                }
