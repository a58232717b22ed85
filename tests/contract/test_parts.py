"""Two parts of one table that are migrated at the same time, written and read through one client: in memory
and on Azurite alike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal

import pytest

from rekey import rows
from rekey.client import route as route_module
from rekey.client.lease import ClientLease, Permit
from rekey.client.sdk import core as core_module
from rekey.client.sdk import router as router_module
from rekey.client.sdk.core import ClientCore
from rekey.client.sdk.router import Carrier
from rekey.client.send import send_alone
from rekey.errors import Ambiguous, RowExists, Unavailable, WritesRefused
from rekey.mapping.rows import CONTROL_TABLE, JOURNAL_TABLE
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlRow, ControlStore
from rekey.protocol.effects import side_by_side
from rekey.protocol.registry import Registry
from rekey.tables.base import Operation, Table, TableService
from rekey.tables.sent import RequestKind
from tests.worlds.begun_migrations import Begun, declared_as
from tests.worlds.carriers import closed_after, reads, refused
from tests.worlds.dual_write import delete, insert, merge, replace, upsert
from tests.worlds.parts_of_a_table import FREE, NORTH, QUICK, SOUTH, UNHURRIED, Parts, part, row

SOURCE, DUAL, FREEZE, CUTOVER, COMPLETE, RETIRED = ControlPhase
TO_CUTOVER = (DUAL, FREEZE, CUTOVER)
TO_COMPLETE = (*TO_CUTOVER, COMPLETE)
N, S, F = (EntityKey(tenant, "1") for tenant in (NORTH, SOUTH, FREE))


@pytest.fixture
async def parts(service: TableService, table_name: Callable[[str], str]) -> Parts:
    return await Parts.create(service, table_name)


def following(parts: Parts, *tenants: str) -> AbstractAsyncContextManager[Carrier]:
    return closed_after(parts.carrier(*(tenants or (NORTH, SOUTH))))


@pytest.mark.parametrize("north", [(), (SOURCE,), (DUAL,), TO_CUTOVER], ids=lambda phases: str(len(phases)))
@pytest.mark.parametrize("south", [(DUAL,), TO_CUTOVER], ids=["dual_write", "cutover"])
async def test_each_row_is_written_where_its_migration_has_it(
    parts: Parts, north: tuple[ControlPhase, ...], south: tuple[ControlPhase, ...]
) -> None:
    if north:
        await parts.begin(NORTH, *(phase for phase in north if phase is not SOURCE))
    await parts.begin(SOUTH, *south)
    async with following(parts) as carrier:
        for tenant in (NORTH, SOUTH, FREE):
            await carrier.write([insert(row(tenant))])
            await carrier.write([replace(row(tenant, value=2)), insert(row(tenant, "2"))])
            await carrier.write([merge(row(tenant, "2", 3))])
            assert await reads(carrier, EntityKey(tenant, "1")) == ""
        assert await reads(carrier) == ""
    both = {(tenant, key): value for tenant in (NORTH, SOUTH, FREE) for key, value in (("1", 2), ("2", 3))}
    assert await parts.rows(parts.source) == both
    followed = [SOUTH, *([NORTH] if DUAL in north else [])]
    for tenant in (NORTH, SOUTH):
        mine = {key: value for key, value in both.items() if key[0] == tenant and tenant in followed}
        assert await parts.moved(tenant) == mine


async def test_a_process_is_a_client_of_each_part_and_says_which_it_follows(parts: Parts) -> None:
    await parts.begin(NORTH, DUAL)
    async with following(parts) as carrier:
        await carrier.write([insert(row(SOUTH))])
        scripts = [each.script_id for each in parts.declared(NORTH, SOUTH)]
        for script in scripts:
            [client] = await Registry(parts.service, script).list()
            assert (client.view, sorted(client.parts or ())) == ("old", sorted(scripts))
    for script in scripts:
        assert await Registry(parts.service, script).list() == []


async def test_rows_of_a_part_that_has_moved_on_are_refused_and_all_others_go_on(parts: Parts) -> None:
    async with following(parts) as carrier:
        await carrier.write([insert(row(NORTH))])
    await parts.begin(NORTH, *TO_COMPLETE)
    await parts.begin(SOUTH, DUAL)
    async with following(parts) as carrier:
        for operation in (replace(row(NORTH, value=2)), insert(row(NORTH, "2")), upsert(row(NORTH, "3"))):
            assert await refused(carrier, operation) == "part-moved"
        for tenant in (SOUTH, FREE):
            await carrier.write([insert(row(tenant))])
        assert await parts.rows(parts.source) == {N: 1, S: 1, F: 1}
        assert await parts.moved(SOUTH) == {S: 1}
        assert [await reads(carrier, key) for key in (N, S, F)] == ["part-moved", "", ""]
        assert await reads(carrier) == "part-moved"
        for tenant, code in ((NORTH, "part-moved"), (SOUTH, ""), (FREE, "")):
            assert await reads(carrier, condition=f"PartitionKey eq '{tenant}' and Value gt 0") == code


async def test_a_query_of_the_whole_table_is_answered_again_when_the_part_is_retired(parts: Parts) -> None:
    await parts.begin(NORTH, *TO_COMPLETE, RETIRED)
    await parts.begin(SOUTH, DUAL)
    async with following(parts) as carrier:
        assert await reads(carrier) == ""
        assert await reads(carrier, N) == "part-moved"
        assert await reads(carrier, condition=f"PartitionKey eq '{NORTH}'") == "part-moved"
        assert await refused(carrier, upsert(row(NORTH))) == "part-moved"


@pytest.mark.parametrize("capture", ["dual-write", "delta"])
async def test_a_query_that_could_return_restored_rows_of_a_retired_part_is_refused_again(
    service: TableService, table_name: Callable[[str], str], capture: Literal["dual-write", "delta"]
) -> None:
    """They are as old as the backup."""
    parts = await Parts.create(service, table_name, capture)
    await parts.begin(NORTH, *TO_COMPLETE, RETIRED)
    await parts.begin(SOUTH, DUAL)
    async with following(parts) as carrier:
        assert await reads(carrier) == ""
        await parts.begun[NORTH].store.mark_restored()
        await service.table(parts.source).insert(row(NORTH))
        await asyncio.sleep(2 * QUICK.poll_s)
        assert [await reads(carrier, key) for key in (N, S, F)] == ["part-moved", "", ""]
        assert await reads(carrier) == "part-moved"
        for tenant, code in ((NORTH, "part-moved"), (SOUTH, ""), (FREE, "")):
            assert await reads(carrier, condition=f"PartitionKey eq '{tenant}'") == code
        await carrier.write([insert(row(SOUTH))])


@pytest.mark.parametrize("phases", [(DUAL,), TO_CUTOVER, TO_COMPLETE, (*TO_COMPLETE, RETIRED)], ids=len)
async def test_a_client_that_does_not_know_a_begun_part_writes_its_own_rows_alone(
    parts: Parts, phases: tuple[ControlPhase, ...]
) -> None:
    await parts.begin(SOUTH, DUAL)
    await parts.begin(NORTH, *phases)
    async with following(parts, SOUTH) as carrier:
        await carrier.write([insert(row(SOUTH))])
        for tenant in (NORTH, FREE):
            assert await refused(carrier, insert(row(tenant))) == "unknown-part"
        stale = "unknown-part" if CUTOVER in phases else ""
        assert [await reads(carrier, key) for key in (S, N, F)] == ["", stale, stale]
        assert await reads(carrier) == stale
        assert await reads(carrier, condition=f"(PartitionKey eq '{SOUTH}') and (RowKey ge '1')") == ""
    assert await parts.rows(parts.source) == {S: 1}


async def test_a_process_that_does_not_know_a_begun_part_reads_rows_of_all_that_it_follows(
    parts: Parts,
) -> None:
    for tenant in (NORTH, SOUTH):
        await parts.begin(tenant, DUAL)
    await (await third_part(parts)).move(*TO_COMPLETE)
    async with following(parts) as carrier:
        stale = "unknown-part"
        assert [await reads(carrier, key) for key in (N, S, F)] == ["", "", stale]
        asked = [f"PartitionKey eq '{tenant}'" for tenant in (NORTH, SOUTH, FREE)]
        assert [await reads(carrier, condition=each) for each in asked] == ["", "", stale]
        for tenant in (NORTH, SOUTH):
            await carrier.write([insert(row(tenant))])
        assert await refused(carrier, insert(row(FREE))) == stale


@pytest.mark.parametrize(
    ("before", "meanwhile", "is_written"),
    [
        ((DUAL,), (), True),
        ((DUAL,), (FREEZE,), False),
        ((DUAL,), (FREEZE, CUTOVER), False),
        ((DUAL,), (FREEZE, CUTOVER, FREEZE, DUAL), False),
        ((), (DUAL,), True),
        ((), (DUAL, FREEZE, CUTOVER), False),
    ],
    ids=["nothing", "freeze", "cutover", "cutover and back", "beginning", "all"],
)
async def test_a_row_in_capture_delta_is_reported_as_written_if_no_freeze_began_before_the_answer(
    service: TableService,
    table_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    before: Sequence[ControlPhase],
    meanwhile: Sequence[ControlPhase],
    is_written: bool,
) -> None:
    """Within the lease the client knows of none of these moves."""
    parts = await Parts.create(service, table_name, capture="delta")
    await parts.begin(NORTH, *before)

    async def sent(
        table: Table, operations: Sequence[Operation], wait: Callable[[], Awaitable[object]]
    ) -> list[str | None]:
        await parts.begin(NORTH, *meanwhile)
        return await send_alone(table, operations, wait)

    async with closed_after(parts.carrier(NORTH, SOUTH, settings=UNHURRIED)) as carrier:
        await carrier.write([insert(row(NORTH))])
        monkeypatch.setattr(router_module, "send_alone", sent)
        if is_written:
            await carrier.write([replace(row(NORTH, value=2))])
        else:
            with pytest.raises(Ambiguous):
                await carrier.write([replace(row(NORTH, value=2))])


async def test_a_row_in_capture_delta_is_not_reported_as_written_if_the_control_row_cannot_be_read(
    service: TableService, table_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await Parts.create(service, table_name, capture="delta")
    await parts.begin(NORTH, DUAL)

    async def failing(_store: ControlStore) -> None:
        raise Unavailable("the restricted store does not answer")

    async with closed_after(parts.carrier(NORTH, SOUTH, settings=UNHURRIED)) as carrier:
        await carrier.open()
        monkeypatch.setattr(ControlStore, "read", failing)
        with pytest.raises(Ambiguous):
            await carrier.write([insert(row(NORTH))])


async def test_writes_in_capture_delta_at_the_same_time_share_the_reading_after_them(
    service: TableService, table_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await Parts.create(service, table_name, capture="delta")
    await parts.begin(NORTH, DUAL)
    readings = 0
    read = ControlStore.read

    async def counted(store: ControlStore) -> ControlRow | None:
        nonlocal readings
        readings += 1
        return await read(store)

    async with closed_after(parts.carrier(NORTH, SOUTH, settings=UNHURRIED)) as carrier:
        await carrier.open()
        monkeypatch.setattr(ControlStore, "read", counted)
        await side_by_side(carrier.write([insert(row(NORTH, str(number)))]) for number in range(30))
    assert 1 <= readings < 30


async def test_parts_are_found_among_the_clients_of_all_migrations_by_one_request(
    parts: Parts, service: TableService, table_name: Callable[[str], str]
) -> None:
    """A client asks with each beat."""
    await parts.begin(NORTH, DUAL)
    control, script = service.table(CONTROL_TABLE), table_name("0000other")
    names = [f"client.{number:04}" for number in range(1_100)]
    rows = [{"PartitionKey": script, "RowKey": name, "Epoch": 1} for name in names]
    for begin in range(0, len(rows), 100):
        await control.transact([insert(row) for row in rows[begin : begin + 100]])
    before = service.sent.counts[RequestKind.SCAN]
    found = {part.script_id for part in await parts.begun[SOUTH].store.parts()}
    assert service.sent.counts[RequestKind.SCAN] - before == 1
    for begin in range(0, len(rows), 100):
        await control.transact([delete(key_of(row), "*") for row in rows[begin : begin + 100]])
    assert parts.begun[NORTH].declared.script_id in found


async def third_part(parts: Parts) -> Begun:
    """Return the migration of a third part, in `source`."""
    third = declared_as(f"0009{parts.source}", part(parts.source, FREE, f"{parts.source}West"))
    begun = await Begun(third, parts.service, parts.restricted).create_tables()
    await begun.begin()
    return begun


async def test_a_part_that_has_not_begun_need_not_be_known(parts: Parts) -> None:
    await parts.begin(SOUTH, DUAL)
    await parts.begin(NORTH)
    async with following(parts, SOUTH) as carrier:
        for tenant in (NORTH, SOUTH, FREE):
            await carrier.write([insert(row(tenant))])
    assert await parts.rows(parts.source) == {N: 1, S: 1, F: 1}


async def test_a_client_learns_of_a_part_that_begins_while_it_is_open(parts: Parts) -> None:
    await parts.begin(SOUTH, DUAL)
    async with following(parts, SOUTH) as carrier:
        await carrier.write([insert(row(NORTH))])
        await parts.begin(NORTH, DUAL)
        lease = await carrier.open()
        assert lease is not None
        await lease.poll()
        assert await refused(carrier, replace(row(NORTH, value=2))) == "unknown-part"


@pytest.mark.parametrize("own", [(), (SOURCE,), (DUAL,)], ids=["not begun", "source", "dual_write"])
async def test_rows_of_an_unknown_part_are_not_read_as_rows_of_a_part_that_is_wider_in_the_own_script(
    parts: Parts, own: tuple[ControlPhase, ...]
) -> None:
    if own:
        await parts.begin(SOUTH, *(phase for phase in own if phase is not SOURCE))
    await parts.begin(NORTH, *TO_COMPLETE)
    [declared] = parts.declared(SOUTH)
    both = rows.partition_key(one_of=[NORTH, SOUTH])
    wider = part(parts.source, SOUTH, declared.migration.target.table, both)
    carrier = parts.carrier(SOUTH, **{SOUTH: declared_as(declared.script_id, wider)})
    try:
        assert await reads(carrier, N) == "unknown-part"
        assert await reads(carrier, condition=f"PartitionKey eq '{NORTH}'") == "unknown-part"
    finally:
        await carrier.close()


async def test_a_row_of_a_complete_part_is_not_written_as_a_row_of_no_part_by_another_script(
    parts: Parts,
) -> None:
    await parts.begin(SOUTH, DUAL)
    await parts.begin(NORTH, *TO_COMPLETE)
    [declared] = parts.declared(NORTH)
    other = part(parts.source, FREE, declared.migration.target.table)
    carrier = parts.carrier(NORTH, SOUTH, **{NORTH: declared_as(declared.script_id, other)})
    try:
        assert await refused(carrier, insert(row(NORTH))) == "digest-moved"
        await carrier.write([insert(row(SOUTH))])
    finally:
        await carrier.close()
    assert await parts.rows(parts.source) == {S: 1}


@pytest.mark.parametrize("tenants", [(NORTH, SOUTH), (SOUTH,)], ids=["known", "unknown"])
async def test_rows_in_capture_delta_are_not_read_while_a_rollback_copies_them_back(
    service: TableService, table_name: Callable[[str], str], tenants: tuple[str, ...]
) -> None:
    parts = await Parts.create(service, table_name, capture="delta")
    await parts.begin(SOUTH, DUAL)
    await parts.begin(NORTH, *TO_CUTOVER, FREEZE)
    async with following(parts, *tenants) as carrier:
        code = "part-moved" if NORTH in tenants else "unknown-part"
        assert [await reads(carrier, key) for key in (N, S, None)] == [code, "", code]
    await parts.begin(NORTH, DUAL)
    async with following(parts, *tenants) as carrier:
        assert [await reads(carrier, key) for key in (N, S, None)] == ["", "", ""]


@pytest.mark.parametrize("phases", [(), (*TO_COMPLETE, RETIRED)], ids=["not begun", "retired"])
async def test_a_table_with_rows_of_an_unknown_part_is_not_deleted(
    parts: Parts, phases: tuple[ControlPhase, ...]
) -> None:
    if phases:
        await parts.begin(SOUTH, *phases)
    async with following(parts, SOUTH) as carrier:
        await carrier.deleting_table()
    await parts.begin(NORTH, DUAL)
    async with following(parts, SOUTH) as carrier:
        with pytest.raises(WritesRefused) as caught:
            await carrier.deleting_table()
        assert caught.value.code == "unknown-part"


@pytest.mark.parametrize(
    ("tenants", "phases"),
    [((SOUTH,), ()), ((SOUTH,), (SOURCE,)), ((SOUTH,), (DUAL,)), ((NORTH, SOUTH), (DUAL,))],
    ids=["not begun", "source", "dual_write", "two parts"],
)
@pytest.mark.parametrize("late", [True, False])
async def test_a_late_row_of_a_part_that_began_meanwhile_is_not_reported_as_written(
    parts: Parts,
    monkeypatch: pytest.MonkeyPatch,
    tenants: tuple[str, ...],
    phases: tuple[ControlPhase, ...],
    late: bool,
) -> None:
    """Its runner takes the client for dead by then, and may have read the row's place."""
    if phases:
        await parts.begin(SOUTH, *(phase for phase in phases if phase is not SOURCE))
    free = await third_part(parts)

    async def sent(
        table: Table, operations: Sequence[Operation], wait: Callable[[], Awaitable[object]]
    ) -> list[str | None]:
        await free.move(DUAL)
        return await send_alone(table, operations, wait)

    for module in (core_module, route_module, router_module):
        monkeypatch.setattr(module, "send_alone", sent)
    monkeypatch.setattr(ClientLease, "in_time", lambda *_: not late)
    async with following(parts, *tenants) as carrier:
        if late:
            with pytest.raises(Ambiguous):
                await carrier.write([insert(row(FREE))])
        else:
            await carrier.write([insert(row(FREE))])
    assert await parts.rows(parts.source) == {F: 1}


async def test_a_transaction_of_several_parts_is_atomic_while_nothing_follows_them(
    service: TableService, table_name: Callable[[str], str]
) -> None:
    parts = await Parts.create(service, table_name, by_rows=True)
    await parts.begin(NORTH)
    mixed = [insert(row("p", f"{name}1")) for name in (NORTH, SOUTH, FREE)]
    async with following(parts) as carrier:
        await carrier.write(mixed)
        assert len(await parts.rows(parts.source)) == 3
        again = [upsert(row("p", f"{NORTH}2")), *mixed[1:]]  # the second row is there
        with pytest.raises(RowExists):
            await carrier.write(again)
        assert len(await parts.rows(parts.source)) == 3


async def test_an_error_about_a_late_row_of_one_part_keeps_no_other_from_being_announced(
    service: TableService, table_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = await Parts.create(service, table_name, by_rows=True)
    await parts.begin(NORTH)
    announced: list[EntityKey] = []

    async def late(_core: ClientCore, operations: Sequence[Operation], _permit: Permit) -> None:
        announced.extend(operation.key for operation in operations)
        raise Unavailable("the restricted store does not answer")

    monkeypatch.setattr(ClientCore, "before_answer", late)
    async with following(parts) as carrier:
        with pytest.raises(Unavailable):
            await carrier.write([insert(row("p", f"{name}1")) for name in (NORTH, SOUTH, FREE)])
    assert sorted(announced) == [EntityKey("p", f"{NORTH}1"), EntityKey("p", f"{SOUTH}1")]


@pytest.mark.parametrize("phases", [(DUAL,), TO_CUTOVER], ids=["dual_write", "cutover"])
async def test_a_transaction_of_several_parts_is_refused_while_one_is_followed(
    service: TableService, table_name: Callable[[str], str], phases: tuple[ControlPhase, ...]
) -> None:
    parts = await Parts.create(service, table_name, by_rows=True)
    await parts.begin(NORTH, *phases)
    async with following(parts) as carrier:
        rows = {name: upsert(row("p", f"{name}1")) for name in (NORTH, SOUTH, FREE)}
        for others in ([SOUTH], [FREE], [SOUTH, FREE]):
            code = await refused(carrier, rows[NORTH], *(rows[name] for name in others))
            assert code == "mixed-parts"
        assert await parts.rows(parts.source) == {}
        await carrier.write([rows[SOUTH], rows[FREE]])
        await carrier.write([rows[NORTH]])
    assert await parts.moved(NORTH) == {("p", f"{NORTH}1"): 1}


@pytest.mark.parametrize(
    ("phases", "reverse"), [(TO_COMPLETE, True), (TO_CUTOVER, False)], ids=["complete", "no reverse"]
)
async def test_a_transaction_with_a_row_that_has_moved_on_is_refused(
    service: TableService,
    table_name: Callable[[str], str],
    phases: tuple[ControlPhase, ...],
    reverse: bool,
) -> None:
    parts = await Parts.create(service, table_name, by_rows=True, reverse=reverse)
    await parts.begin(NORTH, *phases)
    async with following(parts) as carrier:
        mixed = [upsert(row("p", f"{name}1")) for name in (NORTH, SOUTH)]
        assert await refused(carrier, *mixed) == await refused(carrier, *mixed[::-1]) == "part-moved"
    assert await parts.rows(parts.source) == {}


async def test_a_part_in_capture_delta_is_written_plainly_until_its_cutover(
    service: TableService, table_name: Callable[[str], str]
) -> None:
    parts = await Parts.create(service, table_name, capture="delta")
    await parts.begin(NORTH, DUAL)
    await parts.begin(SOUTH, DUAL)
    async with following(parts) as carrier:
        for tenant in (NORTH, SOUTH, FREE):
            await carrier.write([insert(row(tenant))])
        assert (await parts.moved(NORTH), await parts.moved(SOUTH)) == ({}, {S: 1})
        assert await reads(carrier) == ""
    assert await Registry(service, parts.declared(NORTH)[0].script_id).list() == []
    await parts.begin(NORTH, FREEZE)
    async with following(parts) as carrier:
        assert await refused(carrier, replace(row(NORTH, value=2))) == "frozen"
        await carrier.write([replace(row(SOUTH, value=2))])
    await parts.begin(NORTH, CUTOVER)
    async with following(parts) as carrier:
        assert await refused(carrier, replace(row(NORTH, value=2))) == "part-moved"
        assert [await reads(carrier, key) for key in (N, S, None)] == ["part-moved", "", "part-moved"]
        await carrier.write([replace(row(FREE, value=2))])
    assert await parts.rows(parts.source) == {N: 1, S: 2, F: 2}


async def test_nothing_is_left_in_the_journal_of_either_part(parts: Parts) -> None:
    for tenant in (NORTH, SOUTH):
        await parts.begin(tenant, DUAL)
    async with following(parts) as carrier:
        for tenant in (NORTH, SOUTH, FREE):
            await carrier.write([insert(row(tenant))])
    left: list[Row] = []
    async for page in parts.service.table(JOURNAL_TABLE).scan():
        left += [each for each in page.rows if each["PartitionKey"] in str(parts.begun)]
    assert left == []
