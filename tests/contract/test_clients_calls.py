"""Every call through our clients gives what the same call gives through the SDK's own TableClient: values,
metadata, exceptions and their codes. Before a migration has begun, and while the replicas follow.

Each scenario is run with the SDK's client and with ours, on tables of their own, on Azurite.

Soak: before a migration has begun with the asynchronous client, and in `dual_write` with the synchronous one.
Reason, and what `make test` covers: each scenario with both clients, and in each phase with one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError
from azure.data.tables import EdmType, EntityProperty, RequestTooLargeError, TableTransactionError, UpdateMode

from rekey import Migration, Target, keys, props
from rekey.phases import ControlPhase
from rekey.rehearse.azurite import Azurite
from rekey.tables.azure import AzureTableService
from tests.asserts.client_pairs import Driver, ours, plain
from tests.soaking import others_in_soak
from tests.worlds.begun_migrations import SECRETS, Begun, declared_as

pytestmark = [pytest.mark.azurite]

KEY = {"PartitionKey": "eu", "RowKey": "a@b.c"}
IF_UNCHANGED = MatchConditions.IfNotModified

EVERY_TYPE = {
    "Text": "käse 'q' \u2028",
    "Empty": "",
    "Small": 7,
    "Big": EntityProperty(9_007_199_254_740_993, EdmType.INT64),
    "Whole": 3.0,
    "Half": 2.5,
    "Infinite": float("inf"),
    "Double": EntityProperty("NaN", EdmType.DOUBLE),
    "Yes": True,
    "No": EntityProperty(False, EdmType.BOOLEAN),
    "Guid": UUID("C9DA6455-213D-42C9-9A79-3E9149A57833"),
    "Bytes": b"\x00\xff",
    "At": datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC),
    "Exact": EntityProperty("2024-02-29T12:00:00.1234567Z", EdmType.DATETIME),
    "Nothing": None,
    "Neither": EntityProperty(None, EdmType.INT64),
    "Thirty": EntityProperty(30, EdmType.INT32),
}


def entity(row: str = "a@b.c", partition: str = "eu", **more: Any) -> dict[str, Any]:
    """Return an entity."""
    return {"PartitionKey": partition, "RowKey": row, "Nm": "A", **more}


# --- the scenarios ----------------------------------------------------------------------------------------


async def create(c: Driver) -> None:
    await c.create_entity(entity())
    await c.create_entity(entity())
    await c.get_entity("eu", "a@b.c")
    await c.create_entity(entity("prefers"), response_preference="return-no-content")


async def every_type(c: Driver) -> None:
    await c.create_entity(entity(**EVERY_TYPE))
    read = await c.get_entity("eu", "a@b.c")
    await c.update_entity(read, mode=UpdateMode.REPLACE)
    await c.upsert_entity(read, mode=UpdateMode.REPLACE)
    await c.update_entity(read)
    await c.get_entity("eu", "a@b.c")


async def update(c: Driver) -> None:
    for mode in (UpdateMode.MERGE, UpdateMode.REPLACE, "merge", "replace", "neither"):
        await c.update_entity(entity(A=1), mode=mode)
    await c.create_entity(entity(A=1, B="b"))
    await c.update_entity(entity(A=2), mode=UpdateMode.MERGE)
    await c.get_entity("eu", "a@b.c")
    await c.update_entity({**KEY, "Nm": "N", "B": None}, mode=UpdateMode.MERGE)
    await c.get_entity("eu", "a@b.c")
    await c.update_entity({**KEY, "C": 1}, mode=UpdateMode.REPLACE)
    await c.get_entity("eu", "a@b.c")


async def update_on_condition(c: Driver) -> None:
    made = await c.create_entity(entity())
    moved = await c.update_entity(entity(A=1), etag=made["etag"], match_condition=IF_UNCHANGED)
    await c.update_entity(entity(A=2), etag=made["etag"], match_condition=IF_UNCHANGED)
    await c.update_entity(entity(A=2), mode="replace", etag=made["etag"], match_condition=IF_UNCHANGED)
    await c.update_entity(entity(A=3), mode="replace", etag=moved["etag"], match_condition=IF_UNCHANGED)
    read = await c.get_entity("eu", "a@b.c")
    read["A"] = 4
    await c.update_entity(read, match_condition=IF_UNCHANGED)
    await c.update_entity(read, match_condition=IF_UNCHANGED)
    await c.update_entity(entity(), match_condition=IF_UNCHANGED)
    await c.update_entity(entity(), etag=made["etag"])
    await c.update_entity(entity(), match_condition=MatchConditions.IfPresent)
    await c.update_entity(entity("none"), etag=made["etag"], match_condition=IF_UNCHANGED)


async def upsert(c: Driver) -> None:
    await c.upsert_entity(entity(A=1))
    await c.upsert_entity({**KEY, "B": 2})
    await c.get_entity("eu", "a@b.c")
    await c.upsert_entity({**KEY, "C": 3}, mode=UpdateMode.REPLACE)
    await c.get_entity("eu", "a@b.c")
    await c.upsert_entity(entity("new"), mode="replace")
    await c.upsert_entity(entity("newer"), mode="neither")


async def delete(c: Driver) -> None:
    await c.delete_entity("eu", "a@b.c")
    await c.create_entity(entity())
    await c.delete_entity("eu", "a@b.c")
    await c.get_entity("eu", "a@b.c")
    made = await c.create_entity(entity())
    await c.delete_entity(entity())
    again = await c.create_entity(entity())
    await c.delete_entity(entity(), etag=made["etag"], match_condition=IF_UNCHANGED)
    await c.delete_entity(entity=entity(), etag=again["etag"], match_condition=IF_UNCHANGED)
    await c.delete_entity(partition_key="eu", row_key="a@b.c")
    await c.create_entity(entity())
    read = await c.get_entity("eu", "a@b.c")
    await c.update_entity(entity(A=1))
    await c.delete_entity(read, match_condition=IF_UNCHANGED)
    await c.delete_entity("eu")
    await c.delete_entity("eu", 5)


async def odd_keys(c: Driver) -> None:
    for key in ("o'brien", "a b+c%25", "ünïcode \U0001f600", "", "trailing. ", "()='&,"):
        await c.create_entity(entity(key, partition=key))
        await c.update_entity(entity(key, partition=key, A=1))
        await c.get_entity(key, key)
        await c.upsert_entity(entity(key, partition=key, B=1), mode="replace")
    await c.submit_transaction([("upsert", entity("o'brien", partition="o'brien", D=1))])
    await c.list_entities()
    for key in ("o'brien", "a b+c%25", "ünïcode \U0001f600", "", "trailing. ", "()='&,"):
        await c.delete_entity(key, key)
    await c.list_entities()


async def bad_arguments(c: Driver) -> None:
    await c.create_entity({"PartitionKey": "eu", "Nm": "A"})
    await c.create_entity({"RowKey": "eu", "Nm": "A"})
    await c.create_entity({"PartitionKey": "eu", "RowKey": None, "Nm": "A"})
    await c.create_entity(entity(A=[1]))
    await c.create_entity(entity(A=2**31))
    await c.create_entity(entity("slash/"))
    await c.create_entity(entity("question?"))
    await c.upsert_entity({"PartitionKey": "eu"})
    await c.update_entity({"RowKey": "eu"})
    await c.update_entity({"PartitionKey": 5, "RowKey": "eu"})
    await c.create_entity(entity(Long="x" * 33_000))
    await c.list_entities()


async def read_parts(c: Driver) -> None:
    for number in range(5):
        await c.create_entity(entity(f"r{number}", A=number, B=str(number)))
    await c.get_entity("eu", "r1", select="A")
    await c.get_entity("eu", "r1", select=["A", "B", "Absent"])
    await c.list_entities(results_per_page=2)
    await c.list_entities(select=["A"], results_per_page=3)
    await c.query_entities("A ge 2 and A lt 4")
    await c.query_entities("A eq @a and B eq @b", parameters={"a": 2, "b": "2"}, select="B,RowKey")
    await c.query_entities("A eq eq 2")
    await c.query_entities("PartitionKey eq 'none'")


async def transaction(c: Driver) -> None:
    await c.submit_transaction([("create", entity("a")), ("upsert", entity("b", A=1))])
    await c.submit_transaction(
        [
            ("update", entity("a", A=2)),
            ("update", {**entity("b"), "B": 1}, {"mode": "replace"}),
            ("upsert", entity("c"), {"mode": "replace"}),
            ("create", entity("d")),
        ]
    )
    await c.list_entities()
    read = await c.get_entity("eu", "a")
    await c.submit_transaction([("delete", read, {"match_condition": IF_UNCHANGED}), ("delete", entity("b"))])
    await c.submit_transaction([("update", read, {"match_condition": IF_UNCHANGED})])
    await c.list_entities()


async def transaction_conflicts(c: Driver) -> None:
    made = await c.create_entity(entity("there"))
    await c.submit_transaction([("create", entity("x")), ("create", entity("there"))])
    await c.submit_transaction([("create", entity("there"))])
    await c.submit_transaction([("upsert", entity("x")), ("update", entity("none")), ("create", entity("y"))])
    await c.submit_transaction([("upsert", entity("x")), ("delete", entity("none"))])
    await c.update_entity(entity("there", A=1))
    await c.submit_transaction(
        [
            ("create", entity("x")),
            ("update", entity("there"), {"etag": made["etag"], "match_condition": IF_UNCHANGED}),
        ]
    )
    await c.list_entities()


async def transactions_refused(c: Driver) -> None:
    await c.submit_transaction([("create", entity("a")), ("create", entity("b", partition="us"))])
    await c.submit_transaction([("frobnicate", entity("a"))])
    await c.submit_transaction([("create", {"PartitionKey": "eu"})])
    await c.submit_transaction(None)
    await c.submit_transaction([("upsert", entity("a"), {"mode": "neither"})])
    await c.list_entities()


async def missing_table(c: Driver) -> None:
    await c.delete_table()
    await c.delete_table()
    await c.create_entity(entity())
    await c.get_entity("eu", "a@b.c")
    await c.update_entity(entity())
    await c.upsert_entity(entity())
    await c.delete_entity(entity())
    await c.submit_transaction([("create", entity())])
    await c.list_entities()
    await c.create_table()
    await c.create_table()
    await c.get_table_access_policy()
    await c.set_table_access_policy({})


SCENARIOS = [
    create,
    every_type,
    update,
    update_on_condition,
    upsert,
    delete,
    odd_keys,
    bad_arguments,
    read_parts,
    transaction,
    transaction_conflicts,
    transactions_refused,
]
Scenario = Callable[[Driver], Awaitable[None]]


def migration_of(source: str, target: str) -> Migration:
    """Return a migration whose keys come from keys alone."""
    return Migration(
        source,
        Target(
            target,
            partition_key=keys.prop("PartitionKey"),
            row_key=keys.opaque(keys.prop("RowKey"), domain="user", secret="users"),
            properties=[props.copy("RowKey", to="ContactEmail")],
            allow_empty=True,
        ),
        capture="dual-write",
    )


async def compared(azurite: Azurite, begun: Begun, scenario: Scenario, *, sync: bool) -> Driver:
    """Run a scenario with the SDK's client and with ours; assert that it gave the same. Returns ours."""
    table = begun.declared.migration.source
    witness = f"{table}W"
    await begun.tables.create_table(witness)
    async with plain(azurite, witness, sync=sync) as theirs:
        await scenario(theirs)
    async with ours(azurite, table, begun.declared, SECRETS, sync=sync) as mine:
        await scenario(mine)
    for number, (expected, found) in enumerate(zip(theirs.log, mine.log, strict=True)):
        assert found == expected, f"call {number} of {scenario.__name__}"
    assert any(one.error is None for one in mine.log)
    return mine


@pytest.fixture
async def begun(
    tables_service: AzureTableService, restricted_service: AzureTableService, table_name: Callable[[str], str]
) -> Begun:
    """A migration that has tables and no control row."""
    migration = migration_of(table_name("Users"), table_name("UsersV2"))
    return await Begun(
        declared_as(table_name("s"), migration), tables_service, restricted_service
    ).create_tables()


def scenarios_with_both(scenarios: list[Scenario], *, sync: bool) -> pytest.MarkDecorator:
    """Return scenarios for `parametrize`; those with the other client are for the soak."""
    pairs = [(scenario, kind) for scenario in scenarios for kind in (False, True)]
    cases = others_in_soak(pairs, kept=[(scenario, kind) for scenario, kind in pairs if kind is sync])
    ids = [f"{scenario.__name__}-{'sync' if kind else 'async'}" for scenario, kind in pairs]
    return pytest.mark.parametrize(("scenario", "sync"), cases, ids=ids)


@scenarios_with_both([*SCENARIOS, missing_table], sync=True)
async def test_before_a_migration_has_begun(
    azurite: Azurite, begun: Begun, scenario: Scenario, sync: bool
) -> None:
    await compared(azurite, begun, scenario, sync=sync)


@scenarios_with_both(SCENARIOS, sync=False)
async def test_while_the_replicas_follow(
    azurite: Azurite, begun: Begun, scenario: Scenario, sync: bool
) -> None:
    await begun.begin()
    await begun.move(ControlPhase.DUAL_WRITE)
    await compared(azurite, begun, scenario, sync=sync)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
async def test_in_the_old_view_when_the_target_decides(
    azurite: Azurite, begun: Begun, scenario: Scenario
) -> None:
    await begun.begin()
    await begun.move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE, ControlPhase.CUTOVER)
    await compared(azurite, begun, scenario, sync=False)


# --- where Azurite is no witness ----------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [None, ControlPhase.DUAL_WRITE], ids=["plain", "dual_write"])
async def test_what_azurite_lets_pass_is_refused_as_the_service_documents_it(
    azurite: Azurite, begun: Begun, phase: ControlPhase | None
) -> None:
    """Azurite answers a transaction of 101 operations malformed, one without operations with 500, and does
    not look at rows that come twice, If-Match or Guids. The service refuses all of them with 400, and what
    has more than 4 MiB with 413 before it looks at it; its index for 101 operations is 99 (recordings of
    azure-data-tables, `test_batch_too_many_ops`)."""
    if phase is not None:
        await begun.begin()
        await begun.move(phase)
    async with ours(azurite, begun.declared.migration.source, begun.declared, SECRETS, sync=False) as c:
        assert await c.raw("submit_transaction", []) == []
        for operations, code, index in (
            ([("upsert", entity(f"r{number}")) for number in range(101)], "InvalidInput", 99),
            (
                [("upsert", entity("a")), ("upsert", entity("b")), ("delete", entity("a"))],
                "InvalidDuplicateRow",
                2,
            ),
        ):
            with pytest.raises(TableTransactionError) as caught:
                await c.raw("submit_transaction", operations)
            assert (caught.value.status_code, caught.value.error_code, caught.value.index) == (
                400,
                code,
                index,
            )
        wide = entity(**{f"P{number}": "x" * 66_000 for number in range(70)})
        with pytest.raises(RequestTooLargeError) as too_large:
            await c.raw("submit_transaction", [("upsert", wide)])
        assert (too_large.value.status_code, too_large.value.error_code) == (413, "RequestBodyTooLarge")
        with pytest.raises(HttpResponseError) as large:
            await c.raw("create_entity", wide)
        assert large.value.status_code == 413
        no_etag = {"etag": "GolangRocksOnAzure", "match_condition": IF_UNCHANGED}
        with pytest.raises(HttpResponseError) as invalid:
            await c.raw("update_entity", entity(A=1), **no_etag)
        assert (invalid.value.status_code, invalid.value.error_code) == (400, "InvalidInput")
        with pytest.raises(TableTransactionError) as in_it:
            await c.raw("submit_transaction", [("upsert", entity("a")), ("delete", entity("b"), no_etag)])
        assert (in_it.value.status_code, in_it.value.index) == (400, 1)
        given = {
            "At": EntityProperty("2008-07-10T00:00:00", EdmType.DATETIME),
            "Guid": EntityProperty("{C9DA6455-213D-42C9-9A79-3E9149A57833}", EdmType.GUID),
            "\u0928\u093e\u092e": 1,
        }
        await c.raw("create_entity", entity("spelled", **given))
        spelled = await c.raw("get_entity", "eu", "spelled")
        assert spelled["At"] == datetime(2008, 7, 10, tzinfo=UTC) and spelled["\u0928\u093e\u092e"] == 1
        if phase is not None:  # before a migration Azurite gets it as it was given, and looks at no Guid
            assert spelled["Guid"] == UUID("c9da6455-213d-42c9-9a79-3e9149a57833")
        await c.raw("delete_entity", "eu", "spelled")
        made = await c.raw("create_entity", entity(A=1), response_preference="return-content")
        assert made["preference_applied"] == "return-content"
        assert made["content"] == {**entity(A=1), "odata.etag": made["etag"]}
        assert await c.raw("list_entities") == [[await c.raw("get_entity", "eu", "a@b.c")]]
