"""The clients' rows: what they say, when a client is over, which epoch it has acknowledged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rekey.core.clock import TICKS_PER_SECOND
from rekey.errors import StateUnusable
from rekey.mapping.rows import CONTROL_TABLE, LEASE_ROW_KEY
from rekey.protocol.registry import (
    FORMAT,
    PURGE_AFTER_S,
    SAFETY_S,
    ClientRow,
    Registry,
    Standing,
    from_row,
    is_current,
    is_over,
    over_at,
    standing,
    to_row,
)
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.memory import MemoryTableService

SCRIPT = "0001_users"
CLIENT = ClientRow(
    "c0ffee", "web", "old", "host-a", 4711, "0.1", 3, 15.0, 30.0, counters={"writes": 7}, run_id="run-1"
)


async def test_a_registry_row_round_trips(memory: MemoryTableService, clock: FakeClock) -> None:
    registry = Registry(memory, SCRIPT)
    assert await registry.list() == [], "no table yet: nobody is there"
    client = replace(CLIENT, in_flight=2, left=1, refuses="digest-moved")
    await registry.beat(client)
    [found] = await registry.list()
    assert replace(found, etag="") == replace(client, beat_at=clock.ticks())
    clock.advance(5)
    await registry.beat(client)
    assert (await registry.list())[0].beat_at == clock.ticks()


async def test_only_the_clients_of_this_migration_are_listed(memory: MemoryTableService) -> None:
    registry = Registry(memory, SCRIPT)
    for client_id in ("0", "ffffffffffffffff"):
        await registry.beat(replace(CLIENT, client_id=client_id))
    await Registry(memory, "0001_users_more").beat(CLIENT)
    control = memory.table(CONTROL_TABLE)
    for other in ("control", LEASE_ROW_KEY):
        await control.insert({"PartitionKey": SCRIPT, "RowKey": other})
    assert [row.client_id for row in await registry.list()] == ["0", "ffffffffffffffff"]


async def test_clients_on_pages_of_their_own_are_all_listed(memory: MemoryTableService) -> None:
    registry = Registry(memory, SCRIPT)
    for number in range(7):
        await registry.beat(replace(CLIENT, client_id=f"{number:x}"))
    short = [Planned(Fault(FaultKind.SHORT_PAGE), action="page", nth=1), Planned(Fault(FaultKind.EMPTY_PAGE))]
    memory.faults = PlannedFaults(*short)
    assert len(await registry.list()) == 7


async def test_leaving_twice_deletes_the_row_once(memory: MemoryTableService) -> None:
    registry = Registry(memory, SCRIPT)
    assert not await registry.delete(CLIENT.client_id, CLIENT.counters)
    await registry.beat(CLIENT)
    assert await registry.delete(CLIENT.client_id, CLIENT.counters)
    assert not await registry.delete(CLIENT.client_id, CLIENT.counters)
    assert await registry.list() == []
    assert await registry.ended() == {"writes": 7}


async def test_counters_outlive_client_rows(memory: MemoryTableService, clock: FakeClock) -> None:
    """Closed in order or cleared away, also while another client ends."""
    registry = Registry(memory, SCRIPT)
    assert await registry.ended() == {}, "no table yet"
    for client_id in ("0", "1", "2"):
        await registry.beat(replace(CLIENT, client_id=client_id))
    interrupted = False

    async def end_another(call: Call) -> None:
        nonlocal interrupted
        if call.action == "transact" and not interrupted:
            interrupted = True
            await registry.delete("1", {"writes": 2, "fast": 1})

    freely, memory.gate = memory.gate, end_another
    assert await registry.delete("0", {"writes": 1})
    memory.gate = freely
    clock.advance(2 * PURGE_AFTER_S + 3600)
    assert await registry.purge(clock.ticks()) == 1
    assert await registry.ended() == {"writes": 1 + 2 + 7, "fast": 1}


def test_a_client_is_over_only_when_its_lease_its_longest_operation_and_a_margin_are_past() -> None:
    beat_at = 1_000_000 * TICKS_PER_SECOND
    row = replace(CLIENT, beat_at=beat_at)
    lease = 15 * TICKS_PER_SECOND
    over = lease + round((30 + SAFETY_S) * TICKS_PER_SECOND)
    assert over_at(row) == beat_at + over
    assert [standing(row, beat_at + age) for age in (0, lease - 1, lease, over - 1, over)] == [
        Standing.LIVE,
        Standing.LIVE,
        Standing.SILENT,
        Standing.SILENT,
        Standing.OVER,
    ]
    assert not is_over(row, beat_at + over - 1)
    assert is_over(row, beat_at + over)


def test_times_on_the_wire_are_never_shorter_than_meant() -> None:
    wire = to_row(SCRIPT, replace(CLIENT, lease_s=1.0001, longest_s=2.00001))
    assert (wire["LeaseMs"], wire["LongestMs"]) == (1001, 2001)


def test_an_epoch_of_another_run_is_not_acknowledged_however_high_it_is() -> None:
    """After a rollback to `source` the next run counts from 1: an old 3 must not pass for its 2."""
    assert is_current(CLIENT, "run-1", 3)
    assert is_current(CLIENT, "run-1", 2)
    assert not is_current(CLIENT, "run-1", 4)
    assert not is_current(CLIENT, "run-2", 2)


@pytest.mark.parametrize(
    "change",
    [{"Format": FORMAT + 1}, {"Epoch": "x"}, {"Counters": "[]"}, {"Counters": "{"}, {"RunId": None}],
    ids=str,
)
def test_a_row_that_cannot_be_read_is_an_error_never_a_client_less(change: dict[str, object]) -> None:
    row = {**to_row(SCRIPT, CLIENT), "Timestamp": "2024-01-01T00:00:00Z", "odata.etag": "e", **change}
    for name in [name for name, value in change.items() if value is None]:
        del row[name]
    with pytest.raises(StateUnusable):
        from_row(row)


async def test_only_long_expired_rows_are_cleared(memory: MemoryTableService, clock: FakeClock) -> None:
    registry = Registry(memory, SCRIPT)
    await registry.beat(CLIENT)
    clock.advance(10)
    await registry.beat(replace(CLIENT, client_id="beef"))
    clock.advance(15 + 30 + SAFETY_S + PURGE_AFTER_S - 10.001)
    assert await registry.purge(clock.ticks()) == 0
    clock.advance(0.001)
    assert await registry.purge(clock.ticks()) == 1
    assert [row.client_id for row in await registry.list()] == ["beef"]


async def test_a_returning_client_keeps_its_row(memory: MemoryTableService, clock: FakeClock) -> None:
    registry = Registry(memory, SCRIPT)
    await registry.beat(CLIENT)
    clock.advance(2 * PURGE_AFTER_S)

    async def beat_before_the_delete(call: object) -> None:
        if getattr(call, "action", "") == "transact":
            memory.gate = passing
            await registry.beat(CLIENT)

    passing, memory.gate = memory.gate, beat_before_the_delete
    assert await registry.purge(clock.ticks()) == 0
    [row] = await registry.list()
    assert row.beat_at == clock.ticks()
