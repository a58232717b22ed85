"""A table that two migrations fill at the same time, written and read in the new view through one client: in
memory and on Azurite alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from json import dumps
from typing import Literal

import pytest

from rekey.client.lease import ClientLease
from rekey.client.sdk import router as router_module
from rekey.client.sdk.calls import Read
from rekey.client.sdk.router import Carrier, PartRouter
from rekey.client.send import send_alone
from rekey.errors import Ambiguous, RowExists, Unavailable, WritesRefused
from rekey.mapping.rows import JOURNAL_TABLE
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase
from rekey.protocol.control import ControlStore
from rekey.protocol.registry import Registry
from rekey.tables.base import Operation, Table, TableService
from tests.worlds.begun_migrations import Begun, declared_as
from tests.worlds.carriers import closed_after, reads, refused
from tests.worlds.dual_write import delete, insert, merge, replace, upsert
from tests.worlds.merged_tables import ALL, DE, FR, FREE, Merged, merging, order
from tests.worlds.parts_of_a_table import UNHURRIED

SOURCE, DUAL, FREEZE, CUTOVER, COMPLETE, RETIRED = ControlPhase
TO_CUTOVER = (DUAL, FREEZE, CUTOVER)
TO_COMPLETE = (*TO_CUTOVER, COMPLETE)
OF_DE, OF_FR, OF_NONE = (EntityKey(f"{region}_c1", "1") for region in (DE, FR, FREE))
OLD = ("c1", "1")


@pytest.fixture
async def merged(service: TableService, table_name: Callable[[str], str]) -> Merged:
    return await Merged.create(service, table_name)


@pytest.fixture
async def by_rows(service: TableService, table_name: Callable[[str], str]) -> Merged:
    return await Merged.create(service, table_name, by_rows=True)


def following(merged: Merged, *regions: str, table: str = "") -> AbstractAsyncContextManager[Carrier]:
    return closed_after(merged.carrier(*(regions or (DE, FR)), table=table))


async def announced(merged: Merged) -> list[Row]:
    """Return the rows of both migrations in the journal."""
    scripts, rows = {declared.script_id for declared in merged.declared(DE, FR)}, []
    async for page in merged.restricted.table(JOURNAL_TABLE).scan():
        rows += [row for row in page.rows if any(script in str(row) for script in scripts)]
    return rows


@pytest.mark.parametrize("german", [(DUAL,), TO_CUTOVER], ids=["dual_write", "cutover"])
@pytest.mark.parametrize("french", [(DUAL,), TO_CUTOVER], ids=["dual_write", "cutover"])
async def test_each_row_is_written_as_its_migration_says(
    merged: Merged, german: tuple[ControlPhase, ...], french: tuple[ControlPhase, ...]
) -> None:
    await merged.begin(DE, *german)
    await merged.begin(FR, *french)
    async with following(merged) as carrier:
        for region in (DE, FR):
            await carrier.write([insert(merged.new(region))])
            await carrier.write(
                [replace(merged.new(region, value=2)), insert(merged.new(region, number="2"))]
            )
            await carrier.write([merge(merged.new(region, number="2", value=3))])
            await carrier.write([insert(merged.new(region, number="3"))])
            await carrier.write([delete(EntityKey(f"{region}_c1", "3"))])
            with pytest.raises(RowExists):
                await carrier.write([insert(merged.new(region))])
    both = {OLD: 2, ("c1", "2"): 3}
    assert await merged.in_sources() == {DE: both, FR: both}
    assert await merged.values(merged.target) == {
        EntityKey(f"{region}_{customer}", number): value
        for region in (DE, FR)
        for (customer, number), value in both.items()
    }


@pytest.mark.parametrize(
    "phases", [(DUAL,), TO_CUTOVER, TO_COMPLETE], ids=["dual_write", "cutover", "complete"]
)
async def test_the_old_view_of_each_source_is_a_client_of_its_own_migration(
    merged: Merged, phases: tuple[ControlPhase, ...]
) -> None:
    await merged.begin(DE, DUAL)
    await merged.begin(FR, *phases)
    async with (
        following(merged, DE, table=merged.source(DE)) as german,
        following(merged, FR, table=merged.source(FR)) as french,
        following(merged) as carrier,
    ):
        await german.write([insert(order())])
        await carrier.write([replace(merged.new(DE, value=2))])
        if COMPLETE in phases:
            assert await refused(french, insert(order())) == "old-view-over"
        else:
            await french.write([insert(order())])
    assert (await merged.in_sources())[DE] == {OLD: 2}
    followed = {} if COMPLETE in phases else {OF_FR: 1}
    assert await merged.values(merged.target) == {OF_DE: 2, **followed}


@pytest.mark.parametrize("phases", [(), (SOURCE,), (SOURCE, DUAL)], ids=["none", "source", "not copied"])
async def test_rows_of_a_migration_that_is_not_copied_are_refused_and_all_others_go_on(
    merged: Merged, phases: tuple[ControlPhase, ...]
) -> None:
    await merged.begin(DE, *TO_CUTOVER)
    if phases:
        await merged.begin(FR, *phases[1:], copied=False)
    async with following(merged) as carrier:
        await carrier.write([insert(merged.new(DE))])
        assert await refused(carrier, insert(merged.new(FR))) == "new-view-closed"
        assert [await reads(carrier, key) for key in (OF_DE, OF_FR, OF_NONE)] == ["", "new-view-closed", ""]
        for condition, code in (
            ("", "new-view-closed"),
            ("RowKey eq '1'", "new-view-closed"),
            ("PartitionKey eq 'DE_c1' or PartitionKey eq 'DE_c2'", "new-view-closed"),
            ("PartitionKey ge 'DE_' and PartitionKey lt 'FS'", "new-view-closed"),
            ("PartitionKey eq 'FR_c1'", "new-view-closed"),
            ("PartitionKey eq 'DE_c1' and Value gt 0", ""),
            ("(PartitionKey ge 'DE_') and (PartitionKey lt 'DE`')", ""),
            ("PartitionKey eq 'US_c1'", ""),
            ("PartitionKey lt 'DE_'", ""),
        ):
            assert await reads(carrier, condition=condition) == code, condition
        await merged.begin(FR, *([DUAL] if DUAL not in phases else []))
        await merged.begun[FR].store.mark_copied()
    async with following(merged) as carrier:
        assert [await reads(carrier, key) for key in (OF_DE, OF_FR, OF_NONE, None)] == [""] * 4
        await carrier.write([insert(merged.new(FR))])
    assert (await merged.in_sources())[FR] == {OLD: 1}


async def test_a_client_of_one_of_the_migrations_reads_no_row_before_its_own_are_copied(
    merged: Merged,
) -> None:
    await merged.begin(DE, *TO_COMPLETE)
    await merged.begin(FR, DUAL, copied=False)
    async with following(merged, FR) as carrier:
        closed = "new-view-closed"
        assert [await reads(carrier, key) for key in (OF_FR, OF_DE, OF_NONE, None)] == [closed] * 4
        assert await reads(carrier, condition="PartitionKey eq 'DE_c1'") == closed


async def test_a_row_of_none_of_the_migrations_is_refused_in_every_phase(merged: Merged) -> None:
    phases: list[ControlPhase | None] = [None, *(DUAL, FREEZE, CUTOVER, COMPLETE)]
    for phase in phases:
        if phase is not None:
            await merged.begin(DE, phase)
            await merged.begin(FR, phase)
        async with following(merged) as carrier:
            for row in (merged.new(FREE), merged.new("DEX"), {**merged.new(DE), "PartitionKey": "DE"}):
                assert await refused(carrier, upsert(row)) == "others-row"
            mixed = [upsert(merged.new(DE)), upsert(merged.new(FREE))]
            assert await refused(carrier, *mixed) == "others-row"
    assert await merged.values(merged.target) == {}


async def test_rows_of_a_migration_that_the_process_was_not_given_are_refused(merged: Merged) -> None:
    await merged.begin(DE, *TO_COMPLETE)
    await merged.begin(FR, *TO_COMPLETE)
    async with following(merged, DE) as carrier:
        assert await refused(carrier, insert(merged.new(FR))) == "others-row"
    assert await merged.values(merged.target) == {}


async def test_a_freeze_of_one_migration_holds_up_no_row_of_another(merged: Merged) -> None:
    await merged.begin(DE, DUAL, FREEZE)
    await merged.begin(FR, *TO_COMPLETE)
    async with following(merged) as carrier:
        assert await refused(carrier, insert(merged.new(DE))) == "frozen"
        await carrier.write([insert(merged.new(FR))])
        assert [await reads(carrier, key) for key in (OF_DE, OF_FR, None)] == ["", "", ""]
    assert await merged.values(merged.target) == {OF_FR: 1}


@pytest.mark.parametrize("phases", [(DUAL,), TO_CUTOVER], ids=["dual_write", "cutover"])
async def test_a_transaction_across_migrations_is_refused_while_one_is_followed(
    by_rows: Merged, phases: tuple[ControlPhase, ...]
) -> None:
    merged = by_rows
    await merged.begin(DE, *TO_COMPLETE)
    await merged.begin(FR, *phases)
    async with following(merged) as carrier:
        mixed = [upsert(merged.new(region)) for region in (DE, FR)]
        assert await refused(carrier, *mixed) == await refused(carrier, *mixed[::-1]) == "mixed-parts"
        assert await merged.values(merged.target) == {}
        for region in (DE, FR):
            await carrier.write([upsert(merged.new(region)), insert(merged.new(region, number="2"))])
    assert (await merged.in_sources())[FR] == {OLD: 1, ("c1", "2"): 1}


@pytest.mark.parametrize(
    ("phases", "copied", "code"),
    [((), False, "new-view-closed"), ((DUAL,), False, "new-view-closed"), ((DUAL, FREEZE), True, "frozen")],
    ids=["source", "not copied", "freeze"],
)
async def test_a_transaction_with_a_row_that_cannot_be_written_is_refused(
    by_rows: Merged, phases: tuple[ControlPhase, ...], copied: bool, code: str
) -> None:
    merged = by_rows
    await merged.begin(DE, *TO_COMPLETE)
    await merged.begin(FR, *phases, copied=copied)
    async with following(merged) as carrier:
        mixed = [upsert(merged.new(region)) for region in (DE, FR)]
        assert await refused(carrier, *mixed) == code
    assert await merged.values(merged.target) == {}


async def test_a_transaction_across_migrations_is_atomic_when_nothing_follows_any_of_them(
    service: TableService, table_name: Callable[[str], str]
) -> None:
    """One is complete; the other is in cutover, with reverse=False."""
    merged = await Merged.create(service, table_name, by_rows=True, reverse=False)
    await merged.begin(DE, *TO_CUTOVER)
    await merged.begin(FR, *TO_COMPLETE)
    async with following(merged) as carrier:
        mixed = [insert(merged.new(region)) for region in (DE, FR)]
        assert len(await carrier.write(mixed)) == 2
        assert len(await merged.values(merged.target)) == 2
        again = [upsert(merged.new(DE, number="2")), mixed[1]]  # the second row is there
        with pytest.raises(RowExists):
            await carrier.write(again)
        assert await refused(carrier, upsert(merged.new(DE)), upsert(merged.new(FREE))) == "others-row"
    keys = {EntityKey(ALL, f"{region}_c1_1"): 1 for region in (DE, FR)}
    assert await merged.values(merged.target) == keys


async def test_a_script_that_is_not_the_migrations_keeps_the_process_from_plain_writes(
    by_rows: Merged, table_name: Callable[[str], str]
) -> None:
    """A script of its own that is complete is not compared; the scripts of the other migrations are."""
    merged = by_rows
    await merged.begin(DE, *TO_COMPLETE)
    await merged.begin(FR, DUAL)
    [german, french] = merged.declared(DE, FR)
    wrong = {
        region: declared_as(
            declared.script_id, merging(swapped, declared.migration.source, merged.target, by_rows=True)
        )
        for region, declared, swapped in ((DE, german, FR), (FR, french, DE))
    }
    carrier = merged.carrier(DE, FR, **wrong)
    try:
        assert await refused(carrier, upsert(merged.new(FR))) == "digest-moved"
        assert await reads(carrier) == "digest-moved"
    finally:
        await carrier.close()
    assert await merged.values(merged.target) == {}


async def test_rows_of_a_migration_in_capture_delta_are_used_from_its_cutover_on(
    service: TableService, table_name: Callable[[str], str]
) -> None:
    merged = await Merged.create(service, table_name, capture="delta")
    await merged.begin(DE, DUAL)
    closed = "new-view-closed"
    for phases in ((), (DUAL,)):
        await merged.begin(FR, *phases)
        async with following(merged) as carrier:
            await carrier.write([upsert(merged.new(DE))])
            with pytest.raises(
                WritesRefused, match=f"rows of {merged.declared(FR)[0].script_id}"
            ) as refusing:
                await carrier.write([upsert(merged.new(FR))])
            assert (refusing.value.code, refusing.value.hint) == (
                closed,
                "use their old table until its cutover",
            )
            assert [await reads(carrier, key) for key in (OF_DE, OF_FR, OF_NONE, None)] == [
                "",
                closed,
                "",
                closed,
            ]
            assert await reads(carrier, condition="PartitionKey eq 'DE_c1'") == ""
    await merged.begin(FR, FREEZE)
    async with following(merged) as carrier:
        assert await refused(carrier, upsert(merged.new(FR))) == "frozen"
        await carrier.write([upsert(merged.new(DE, value=2))])
    for phase in (CUTOVER, COMPLETE):
        await merged.begin(FR, phase)
        async with following(merged) as carrier:
            await carrier.write([upsert(merged.new(FR, value=5))])
            assert [await reads(carrier, key) for key in (OF_DE, OF_FR, OF_NONE, None)] == [""] * 4
    assert await Registry(service, merged.declared(FR)[0].script_id).list() == []
    assert await merged.values(merged.target) == {OF_DE: 2, OF_FR: 5}
    assert await merged.in_sources() == {DE: {OLD: 2}, FR: {}}


async def test_rows_in_capture_delta_are_read_in_the_freeze_of_a_rollback_and_not_after_it(
    service: TableService, table_name: Callable[[str], str]
) -> None:
    merged = await Merged.create(service, table_name, capture="delta")
    await merged.begin(DE, DUAL)
    await merged.begin(FR, *TO_CUTOVER, FREEZE)
    async with following(merged) as carrier:
        assert await refused(carrier, upsert(merged.new(FR))) == "frozen"
        assert [await reads(carrier, key) for key in (OF_DE, OF_FR, None)] == ["", "", ""]
    closed = "new-view-closed"
    for phase in (DUAL, FREEZE):
        await merged.begin(FR, phase)
        async with following(merged) as carrier:
            assert [await reads(carrier, key) for key in (OF_DE, OF_FR, None)] == ["", closed, closed]


@pytest.mark.parametrize("capture", ["dual-write", "delta"])
async def test_a_query_that_could_miss_rows_of_a_cancelled_migration_is_refused(
    service: TableService, table_name: Callable[[str], str], capture: Literal["dual-write", "delta"]
) -> None:
    merged = await Merged.create(service, table_name, capture=capture)
    await merged.begin(DE, DUAL)
    await merged.begin(FR, *TO_CUTOVER)
    async with following(merged) as carrier:
        assert [await reads(carrier, key) for key in (OF_DE, OF_FR, None)] == ["", "", ""]
    # The target gets no more writes, and `--drop-targets` deletes the migration's rows.
    await merged.begin(FR, FREEZE, DUAL, SOURCE)
    closed = "new-view-closed"
    async with following(merged) as carrier:
        assert [await reads(carrier, key) for key in (OF_DE, OF_FR, OF_NONE, None)] == [
            "",
            closed,
            "",
            closed,
        ]
        for region, code in ((DE, ""), (FR, closed), (FREE, "")):
            assert await reads(carrier, condition=f"PartitionKey eq '{region}_c1'") == code
        assert await reads(carrier, condition="RowKey eq '1'") == closed


@pytest.mark.parametrize(
    ("meanwhile", "is_written"),
    [
        ((), True),
        ((COMPLETE,), True),
        ((FREEZE,), False),
        ((FREEZE, DUAL), False),
        ((FREEZE, DUAL, FREEZE, CUTOVER), False),
    ],
    ids=["nothing", "complete", "freeze", "rollback", "rollback and cutover"],
)
async def test_a_row_in_capture_delta_is_reported_as_written_if_no_rollback_may_have_missed_it(
    service: TableService,
    table_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Sequence[ControlPhase],
    is_written: bool,
) -> None:
    """Within the lease the client knows of none of these moves."""
    merged = await Merged.create(service, table_name, capture="delta")
    await merged.begin(DE, DUAL)
    await merged.begin(FR, *TO_CUTOVER)

    async def sent(
        table: Table, operations: Sequence[Operation], wait: Callable[[], Awaitable[object]]
    ) -> list[str | None]:
        await merged.begin(FR, *meanwhile)
        return await send_alone(table, operations, wait)

    async with closed_after(merged.carrier(DE, FR, settings=UNHURRIED)) as carrier:
        await carrier.write([insert(merged.new(FR))])
        monkeypatch.setattr(router_module, "send_alone", sent)
        if is_written:
            await carrier.write([replace(merged.new(FR, value=2))])
        else:
            with pytest.raises(Ambiguous):
                await carrier.write([replace(merged.new(FR, value=2))])


async def test_a_row_in_capture_delta_is_written_without_another_reading_once_it_is_complete(
    service: TableService, table_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = await Merged.create(service, table_name, capture="delta")
    await merged.begin(DE, DUAL)
    await merged.begin(FR, *TO_COMPLETE)

    async def failing(_store: ControlStore) -> None:
        raise Unavailable("the restricted store does not answer")

    async with closed_after(merged.carrier(DE, FR, settings=UNHURRIED)) as carrier:
        await carrier.open()
        monkeypatch.setattr(ControlStore, "read", failing)
        await carrier.write([insert(merged.new(FR))])


@pytest.mark.parametrize("last", [DE, FR])
async def test_the_table_is_not_deleted_before_all_its_migrations_are_complete(
    service: TableService, table_name: Callable[[str], str], last: str
) -> None:
    merged = await Merged.create(service, table_name, capture="delta")
    for region in (DE, FR):
        await merged.begin(region, *(TO_CUTOVER if region == last else TO_COMPLETE))
    async with following(merged) as carrier:
        with pytest.raises(WritesRefused) as refused:
            await carrier.deleting_table()
        assert refused.value.code == "table-in-use"
    await merged.begin(last, COMPLETE)
    async with following(merged) as carrier:
        await carrier.deleting_table()


async def test_a_shared_index_is_read_when_both_are_copied_and_written_row_by_row_once_they_are_handed_over(
    service: TableService, table_name: Callable[[str], str]
) -> None:
    merged = await Merged.create(service, table_name, has_index=True, reverse=False)
    await merged.begin(DE, *TO_COMPLETE)
    await merged.begin(FR, *TO_CUTOVER)
    rows = {region: {"PartitionKey": f"{region}_1", "RowKey": "c1", "Value": 1} for region in (DE, FR, FREE)}
    async with following(merged, table=merged.index) as carrier:
        await carrier.write([upsert(rows[DE])])
        assert await refused(carrier, upsert(rows[FR])) == "index-table"
        assert await refused(carrier, upsert(rows[FREE])) == "others-row"
        assert await reads(carrier) == ""
    assert await merged.values(merged.index) == {key_of(rows[DE]): 1}


async def test_a_transaction_across_migrations_is_refused_while_clients_maintain_an_index_of_one(
    service: TableService, table_name: Callable[[str], str]
) -> None:
    merged = await Merged.create(service, table_name, by_rows=True, has_index=True)
    await merged.begin(DE, *TO_CUTOVER)
    await merged.begin(FR, *TO_COMPLETE)
    german = merged.begun[DE].store
    main = [upsert(merged.new(region)) for region in (DE, FR)]
    pointing = [upsert({"PartitionKey": ALL, "RowKey": f"{region}_1_c1", "Value": 1}) for region in (DE, FR)]
    async with following(merged, table=merged.index) as carrier:
        assert await refused(carrier, *pointing) == "index-table"
    await german.keep_maintaining()
    await merged.begin(DE, COMPLETE)
    for table, mixed in ((merged.target, main), (merged.index, pointing)):
        async with following(merged, table=table) as carrier:
            assert await refused(carrier, *mixed) == "mixed-parts"
        assert await merged.values(table) == {}
    await german.hand_over()
    for table, mixed in ((merged.target, main), (merged.index, pointing)):
        async with following(merged, table=table) as carrier:
            await carrier.write(mixed)
        assert len(await merged.values(table)) == 2


async def test_a_late_row_of_an_index_is_not_announced_as_a_main_row(
    service: TableService, table_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = await Merged.create(service, table_name, has_index=True)
    await merged.begin(DE, *TO_CUTOVER)
    await merged.begun[DE].store.keep_maintaining()
    await merged.begin(DE, COMPLETE)
    monkeypatch.setattr(ClientLease, "in_time", lambda *_: False)
    async with following(merged, table=merged.index) as carrier:
        row = {"PartitionKey": "DE_1", "RowKey": "c1", "Value": 1}
        await carrier.write([upsert(row)])
        assert await announced(merged) == []
    assert await merged.values(merged.index) == {key_of(row): 1}


async def test_a_process_is_a_client_of_the_new_view_of_each_migration(merged: Merged) -> None:
    await merged.begin(DE, DUAL)
    async with following(merged) as carrier:
        await carrier.write([insert(merged.new(DE))])
        for declared in merged.declared(DE, FR):
            [client] = await Registry(merged.service, declared.script_id).list()
            assert (client.view, client.parts) == ("new", None)
    for declared in merged.declared(DE, FR):
        assert await Registry(merged.service, declared.script_id).list() == []


async def test_nothing_is_left_in_the_journal_of_either_migration(merged: Merged) -> None:
    for region in (DE, FR):
        await merged.begin(region, *TO_CUTOVER)
    async with following(merged) as carrier:
        for region in (DE, FR):
            await carrier.write([insert(merged.new(region))])
    assert await announced(merged) == []


async def test_shadow_reads_compare_each_row_with_the_source_of_its_migration(merged: Merged) -> None:
    for region, value in ((DE, 1), (FR, 2)):  # the source of FR says something else
        await merged.begin(region, DUAL)
        await merged.service.table(merged.source(region)).insert(order())
        await merged.service.table(merged.target).insert(merged.new(region, value=value))
    await merged.service.table(merged.target).insert(merged.new(FREE))
    carrier = merged.carrier(DE, FR, shadow_reads=1.0)
    assert isinstance(carrier, PartRouter)
    try:
        await carrier.open()
        assert carrier.shadows()
        rows = [each async for page in merged.service.table(merged.target).scan() for each in page.rows]
        carrier.shadow(Read(), 200, dumps({"value": rows}).encode())
        seen = []
        for core in carrier._cores:
            assert core._working is not None
            await core._working.shadow.idle()
            seen.append((core.counters.matched, core.counters.mismatched))
        assert seen == [(1, 0), (0, 1)]
    finally:
        await carrier.close()


async def test_a_table_that_one_migration_fills_with_index_rows_is_no_index_of_the_other(
    merged: Merged, table_name: Callable[[str], str]
) -> None:
    migration = merging(FR, merged.source(FR), table_name("AllFR"), index=merged.target)
    declared = declared_as(table_name("0001index"), migration)
    merged.begun[FR] = await Begun(declared, merged.service, merged.service).create_tables()
    for region in (FR, DE):
        await merged.begin(region, *TO_CUTOVER)
    pointing = {"PartitionKey": "FR_1", "RowKey": "c1", "Value": 1}
    await merged.service.table(merged.target).insert(pointing)
    carrier = merged.carrier(FR, DE, shadow_reads=1.0)
    assert isinstance(carrier, PartRouter)
    try:
        await carrier.write([insert(merged.new(DE))])
        assert await refused(carrier, upsert(pointing)) == "index-table"
        assert carrier.shadows()
        rows = [each async for page in merged.service.table(merged.target).scan() for each in page.rows]
        carrier.shadow(Read(), 200, dumps({"value": rows}).encode())
        for core in carrier._cores:
            assert core._working is not None
            await core._working.shadow.idle()
        counted = {core.options.is_index: core.counters for core in carrier._cores}
        assert (counted[False].matched, counted[True].mismatched, counted[True].ignored) == (1, 0, 0)
    finally:
        await carrier.close()
    assert await merged.in_sources() == {DE: {OLD: 1}, FR: {}}
