"""What the in-memory tables do beyond the contract: the service's rules that Azurite does not check, faults,
the gate, the clock."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from rekey.errors import (
    Ambiguous,
    EndpointDown,
    RequestRejected,
    RowExists,
    TableBeingDeleted,
    TableMissing,
    Unavailable,
)
from rekey.model import EntityKey, Row, etag_of, key_of
from rekey.tables.base import Operation, Page, Verb
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call, Fault, FaultKind, Faults, Planned, PlannedFaults, SeededFaults
from tests.fakes.memory import MemoryTable, MemoryTableService

KEY = EntityKey("p", "r")


def row(row_key: str = "r", **properties: Any) -> Row:
    return {"PartitionKey": "p", "RowKey": row_key, **properties}


async def table_with(faults: Faults | None = None, clock: FakeClock | None = None) -> MemoryTable:
    service = MemoryTableService(clock=clock or FakeClock(), faults=faults)
    await service.create_table("Users")
    return service.table("Users")


# --- the service's rules -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (row(**{f"P{number}": 1 for number in range(253)}), "TooManyProperties"),
        (row(A="x" * 32_769), "PropertyValueTooLarge"),
        (row(A="A" * 87_384, **{"A@odata.type": "Edm.Binary"}), "PropertyValueTooLarge"),
        (row(**{f"P{number}": "x" * 32_000 for number in range(17)}), "EntityTooLarge"),
        (row(**{"a-b": 1}), "PropertyNameInvalid"),
        (row(**{"1a": 1}), "PropertyNameInvalid"),
        (row(**{"a" * 256: 1}), "PropertyNameTooLong"),
        (row("x" * 1025), "KeyValueTooLarge"),
        (row("😀" * 513), "KeyValueTooLarge"),
        (row("a\x80"), "OutOfRangeInput"),
        (row(A="x", **{"A@odata.type": "Edm.Int64"}), "InvalidInput"),
        (row(A="9223372036854775808", **{"A@odata.type": "Edm.Int64"}), "InvalidInput"),
        (row(A="2147483648", **{"A@odata.type": "Edm.Int32"}), "InvalidInput"),
        (row(A="x", **{"A@odata.type": "Edm.Guid"}), "InvalidInput"),
        (row(A="1600-12-31T23:59:59Z", **{"A@odata.type": "Edm.DateTime"}), "InvalidInput"),
        (row(A="yesterday", **{"A@odata.type": "Edm.DateTime"}), "InvalidInput"),
        (row(A="???", **{"A@odata.type": "Edm.Binary"}), "InvalidInput"),
        (row(A="many", **{"A@odata.type": "Edm.Double"}), "InvalidInput"),
        (row(A="maybe", **{"A@odata.type": "Edm.Boolean"}), "InvalidInput"),
        (row(A=True, **{"A@odata.type": "Edm.Int32"}), "InvalidInput"),
        (row(A="x", **{"A@odata.type": "Edm.Unknown"}), "InvalidInput"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_the_service_refuses_is_refused_with_its_code(bad: Row, code: str) -> None:
    """Azurite lets many of these pass (Azure documentation, "Understanding the Table service data model")."""
    table = await table_with()
    with pytest.raises(RequestRejected) as raised:
        await table.insert(bad)
    assert raised.value.code == code
    with pytest.raises(RequestRejected) as raised:
        await table.transact([Operation(Verb.INSERT, row("fine")), Operation(Verb.INSERT, bad)])
    assert raised.value.code == code
    assert [page async for page in table.scan()] == []


GUID = "c9da6455-213d-42c9-9a79-3e9149a57833"


def typed(value: str, kind: str) -> Row:
    """Return a row with an annotated value."""
    return row(A=value, **{"A@odata.type": f"Edm.{kind}"})


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (row(A="5", **{"A@odata.type": "Edm.Int32"}), row(A=5)),
        (row(A="true", **{"A@odata.type": "Edm.Boolean"}), row(A=True)),
        (row(A=3, **{"A@odata.type": "Edm.Double"}), row(A=3.0)),
        (row(A="1.5", **{"A@odata.type": "Edm.Double"}), row(A=1.5)),
        (row(A="x", **{"A@odata.type": "Edm.String"}), row(A="x")),
        (typed("2008-07-10T00:00:00", "DateTime"), typed("2008-07-10T00:00:00Z", "DateTime")),
        (typed(GUID.upper(), "Guid"), typed(GUID, "Guid")),
        (typed(f"{{{GUID}}}", "Guid"), typed(GUID, "Guid")),
        (typed(GUID.replace("-", ""), "Guid"), typed(GUID, "Guid")),
        (typed("+007", "Int64"), typed("7", "Int64")),
        (row(A=2**31), row(A=float(2**31))),
        (row(A="x" * 32_768), row(A="x" * 32_768)),
        (typed("AAAA" * 21_845 + "AA==", "Binary"), typed("AAAA" * 21_845 + "AA==", "Binary")),
        ({**row(A=1), "\u0928\u093e\u092e": 1}, {**row(A=1), "\u0928\u093e\u092e": 1}),
    ],
)
async def test_values_come_back_in_the_form_in_which_the_service_gives_them(sent: Row, kept: Row) -> None:
    table = await table_with()
    await table.insert(sent)
    found = await table.get(KEY)
    assert found is not None
    del found["odata.etag"], found["Timestamp"]
    assert found == kept
    assert type(found["A"]) is type(kept["A"])


async def test_minus_zero_keeps_its_sign() -> None:
    """Azurite loses it."""
    table = await table_with()
    await table.insert(row(A=-0.0))
    found = await table.get(KEY)
    assert found is not None
    assert math.copysign(1.0, found["A"]) == -1.0


async def test_a_merge_that_would_make_a_row_too_large_changes_nothing() -> None:
    table = await table_with()
    await table.insert(row(**{f"A{number}": 1 for number in range(200)}))
    with pytest.raises(RequestRejected):
        await table.merge(row(**{f"B{number}": 1 for number in range(53)}))
    assert len(await table.get(KEY) or {}) == 204


async def test_a_deleted_tables_name_stays_taken_for_40_seconds() -> None:
    """Documented for Delete Table; Azurite forgets a table at once."""
    clock = FakeClock()
    service = MemoryTableService(clock=clock)
    await service.create_table("Users")
    table = service.table("Users")
    await service.delete_table("users")
    clock.advance(39.9)
    assert not await service.table_exists("Users")
    assert not await service.delete_table("Users")
    with pytest.raises(TableBeingDeleted):
        await service.create_table("USERS")
    with pytest.raises(TableBeingDeleted):
        await table.insert(row())
    clock.advance(0.2)
    with pytest.raises(TableMissing):
        await table.insert(row())
    assert await service.create_table("Users")
    assert [page async for page in table.scan()] == []


async def test_table_names_do_not_differ_by_case() -> None:
    table = await table_with()
    await table.insert(row())
    other = MemoryTable(table._service, "uSeRs")
    assert await other.get(KEY) is not None


async def test_rows_written_in_one_moment_share_a_timestamp_and_those_written_again_do_not() -> None:
    """A delta scan that asked for "after" instead of "at or after" would lose rows."""
    table = await table_with()
    await table.insert(row("a"))
    await table.insert(row("b"))
    await table.merge(row("b", A=1))
    first, second = [one["Timestamp"] async for page in table.scan() for one in page.rows]
    assert (first, second) == ("2024-01-01T00:00:00.0000000Z", "2024-01-01T00:00:00.0000001Z")
    found = [key_of(one).row async for page in table.scan(modified_from=second) for one in page.rows]
    assert found == ["b"]
    found = [key_of(one).row async for page in table.scan(modified_from=first) for one in page.rows]
    assert found == ["a", "b"]


async def test_an_etag_never_returns_not_even_after_a_delete_in_the_same_moment() -> None:
    table = await table_with()
    before = await table.insert(row(A=1))
    await table.delete(KEY)
    assert await table.insert(row(A=1)) != before


# --- faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error", "applied"),
    [
        (FaultKind.NOT_SENT, EndpointDown, False),
        (FaultKind.BUSY, Unavailable, False),
        (FaultKind.TIMED_OUT, Unavailable, True),
        (FaultKind.LOST_ANSWER, Ambiguous, True),
        (FaultKind.LOST_REQUEST, Ambiguous, False),
    ],
)
async def test_a_fault_is_told_and_the_write_applied_or_not(
    kind: FaultKind, error: type[Exception], applied: bool
) -> None:
    plan = PlannedFaults(Planned(Fault(kind), action="insert", table="Users"))
    table = await table_with(plan)
    with pytest.raises(error):
        await table.insert(row())
    assert (await table.get(KEY) is not None) is applied


async def test_a_fault_inside_a_transaction_names_its_operation_and_applies_nothing() -> None:
    table = await table_with(
        PlannedFaults(Planned(Fault(FaultKind.INSIDE_BATCH, index=1), action="transact"))
    )
    with pytest.raises(Unavailable) as raised:
        await table.transact([Operation(Verb.INSERT, row("a")), Operation(Verb.INSERT, row("b"))])
    assert raised.value.index == 1
    assert [page async for page in table.scan()] == []


async def test_a_plan_hits_the_nth_call_of_a_kind_on_a_table() -> None:
    plan = PlannedFaults(
        Planned(Fault(FaultKind.LOST_ANSWER), action="insert", table="users", nth=3, times=2)
    )
    table = await table_with(plan)
    outcomes = []
    for number in range(6):
        try:
            await table.insert(row(f"{number}"))
            outcomes.append("ok")
        except Ambiguous:
            outcomes.append("lost")
    assert outcomes == ["ok", "ok", "lost", "lost", "ok", "ok"]
    assert len([one async for page in table.scan() for one in page.rows]) == 6


async def pages_of(table: MemoryTable) -> list[Page]:
    return [page async for page in table.scan()]


async def test_pages_can_be_empty_or_short_and_nothing_is_lost() -> None:
    """The service ends a page after 5 seconds, with nothing on it if need be; Azurite never does."""
    plan = PlannedFaults(
        Planned(Fault(FaultKind.EMPTY_PAGE), action="page", nth=1),
        Planned(Fault(FaultKind.SHORT_PAGE), action="page", nth=2),
        Planned(Fault(FaultKind.EMPTY_PAGE), action="page", nth=3),
    )
    table = await table_with(plan)
    names = [f"{number:04}" for number in range(500)]
    for start in range(0, 500, 100):
        await table.transact([Operation(Verb.INSERT, row(name)) for name in names[start : start + 100]])
    pages = await pages_of(table)
    assert [len(page.rows) for page in pages] == [0, 333, 0, 167]
    assert [page.cursor for page in pages] == [
        None,
        EntityKey("p", "0332"),
        EntityKey("p", "0332"),
        EntityKey("p", "0499"),
    ]
    assert [key_of(one).row for page in pages for one in page.rows] == names


async def test_a_seed_repeats_its_faults_exactly() -> None:
    def made() -> Faults:
        return SeededFaults(7, rate=0.4, slow_rate=0.2)

    async def run(faults: Faults) -> list[str]:
        service = MemoryTableService(clock=FakeClock(), faults=faults)
        outcomes = []
        for number in range(80):
            try:
                await service.create_table("Users")
                await service.table("Users").insert(row(f"{number}"))
                outcomes.append("ok")
            except (Ambiguous, Unavailable, EndpointDown) as error:
                outcomes.append(error.code)
            except TableMissing:
                outcomes.append("missing")
        return [*outcomes, await _time(service)]

    first, second = await run(made()), await run(made())
    assert first == second
    assert {"ok", "ConnectError", "ServerBusy", "OperationTimedOut", "ConnectionLost"} <= set(first)
    assert first != await run(SeededFaults(8, rate=0.4, slow_rate=0.2))


async def _time(service: MemoryTableService) -> str:
    service.faults = PlannedFaults()
    return await service.server_time()


async def test_slowness_passes_on_the_clock_alone() -> None:
    clock = FakeClock()
    table = await table_with(PlannedFaults(Planned(Fault(FaultKind.SLOW, seconds=25.0), action="get")), clock)
    before = clock.ticks()
    assert await table.get(KEY) is None
    assert clock.ticks() - before == 250_000_000


async def test_seeded_kinds_can_be_chosen() -> None:
    faults = SeededFaults(1, rate=1.0, kinds=[FaultKind.BUSY])
    kinds = {faults.decide(Call(action, "T", (), number)) for number, action in enumerate(["get", "page"])}
    assert kinds == {Fault(FaultKind.BUSY)}


# --- the gate ----------------------------------------------------------------------------------------


async def test_every_call_passes_the_gate_once_before_its_effect() -> None:
    passed: list[str] = []

    async def gate(call: Call) -> None:
        passed.append(f"{call.action} {call.table} {len(call.operations)}")

    service = MemoryTableService(clock=FakeClock(), gate=gate)
    await service.create_table("Users")
    table = service.table("Users")
    await table.insert(row())
    await table.replace(row())
    await table.merge(row())
    await table.upsert(row())
    await table.get(KEY)
    await table.transact([Operation(Verb.INSERT, row("a")), Operation(Verb.INSERT, row("b"))])
    await table.delete(KEY)
    await pages_of(table)
    await service.table_exists("Users")
    await service.server_time()
    await service.delete_table("Users")
    assert passed == [
        "create_table Users 0",
        *("insert Users 1", "replace Users 1", "merge Users 1", "insert_or_replace Users 1"),
        *("get Users 0", "transact Users 2", "delete Users 1", "page Users 0", "table_exists Users 0"),
        "server_time  0",
        "delete_table Users 0",
    ]


async def test_who_owns_the_gate_decides_the_order_of_effects() -> None:
    """And a caller that is cancelled there has had no effect: a crash before it."""
    waiting: dict[str, asyncio.Event] = {}

    async def gate(call: Call) -> None:
        if call.operations:
            event = waiting.setdefault(str(call.operations[0].row["A"]), asyncio.Event())
            await event.wait()

    service = MemoryTableService(clock=FakeClock(), gate=gate)
    await service.create_table("Users")
    table = service.table("Users")
    first, second, third = [asyncio.ensure_future(table.insert(row(A=name))) for name in ("1", "2", "3")]
    await asyncio.sleep(0)
    first.cancel()
    waiting["3"].set()
    assert await third
    waiting["2"].set()
    with pytest.raises(RowExists):
        await second
    found = await table.get(KEY)
    assert found is not None
    assert (found["A"], etag_of(found)) == ("3", third.result())
