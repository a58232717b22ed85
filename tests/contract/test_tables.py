"""What every implementation of the table interface does: rows, conditions, transactions, tables."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from rekey.core.clock import ticks_of
from rekey.core.edm import canonical_content
from rekey.errors import ConditionFailed, RequestRejected, RowExists, RowMissing, ServiceError, TableMissing
from rekey.model import EntityKey, Row, content_of, etag_of, key_of
from rekey.tables.base import MAX_BATCH_BYTES, Operation, Table, TableService, Verb
from rekey.tables.sent import OPERATIONS, RequestKind, requests_in, since

KEY = EntityKey("p", "r")


def row(row_key: str = "r", partition: str = "p", **properties: Any) -> Row:
    return {"PartitionKey": partition, "RowKey": row_key, **properties}


async def read(table: Table, row_key: str = "r", partition: str = "p") -> Row:
    found = await table.get(EntityKey(partition, row_key))
    assert found is not None
    return found


async def all_keys(table: Table) -> list[EntityKey]:
    return [key_of(one) async for page in table.scan() for one in page.rows]


# --- inserting, reading ----------------------------------------------------------------------------------


async def test_an_inserted_row_is_read_back_with_etag_and_timestamp(table: Table) -> None:
    etag = await table.insert(row(Name="Ada"))
    found = await read(table)
    assert found["Name"] == "Ada"
    assert etag_of(found) == etag
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,7})?Z", found["Timestamp"])


async def test_a_read_row_holds_nothing_but_content_etag_and_timestamp(table: Table) -> None:
    await table.insert(row(Big="5", **{"Big@odata.type": "Edm.Int64"}))
    expected = {"PartitionKey", "RowKey", "Timestamp", "odata.etag", "Big", "Big@odata.type"}
    assert set(await read(table)) == expected
    [page] = [page async for page in table.scan()]
    assert set(page.rows[0]) == expected


async def test_an_absent_row_reads_as_none(table: Table) -> None:
    assert await table.get(EntityKey("no", "row")) is None


async def test_insert_does_not_overwrite(table: Table) -> None:
    await table.insert(row(Name="first"))
    with pytest.raises(RowExists):
        await table.insert(row(Name="second"))
    assert (await read(table))["Name"] == "first"


async def test_null_is_not_kept(table: Table) -> None:
    await table.insert(row(Name=None, Other=1))
    assert "Name" not in await read(table)


async def test_a_read_row_can_be_written_elsewhere_as_it_is(table: Table) -> None:
    """What the server owns (ETag, Timestamp) is left out by the writer, not refused and not stored."""
    await table.insert(row(Name="Ada", Born="1815-12-10T00:00:00Z", **{"Born@odata.type": "Edm.DateTime"}))
    found = await read(table)
    await table.insert({**found, "RowKey": "copy"})
    copy = await read(table, "copy")
    assert canonical_content(copy) == canonical_content(found)
    assert "Timestamp@odata.type" not in copy


async def test_select_returns_the_named_properties_and_what_always_comes(table: Table) -> None:
    await table.insert(row(Big="5", Small=1, **{"Big@odata.type": "Edm.Int64"}))
    expected = {"PartitionKey", "RowKey", "Timestamp", "odata.etag", "Big", "Big@odata.type"}
    found = await table.get(KEY, select=["Big", "Absent"])
    assert found is not None
    assert set(found) == expected
    [page] = [page async for page in table.scan(select=["Big", "Absent"])]
    assert set(page.rows[0]) == expected


async def test_changing_a_read_row_changes_nothing_in_the_table(table: Table) -> None:
    await table.insert(row(Name="Ada"))
    (await read(table))["Name"] = "Eve"
    assert (await read(table))["Name"] == "Ada"


# --- updating, deleting ------------------------------------------------------------------------------


async def test_replace_drops_what_it_does_not_name_and_merge_keeps_it(table: Table) -> None:
    await table.insert(row(A=1, B=2))
    await table.merge(row(A=3))
    assert content_of(await read(table)) == row(A=3, B=2)
    await table.replace(row(C=4))
    assert content_of(await read(table)) == row(C=4)


async def test_merge_can_change_the_type_of_a_property(table: Table) -> None:
    await table.insert(row(A="5", **{"A@odata.type": "Edm.Int64"}))
    await table.merge(row(A="five"))
    assert content_of(await read(table)) == row(A="five")


@pytest.mark.parametrize("verb", ["replace", "merge"])
async def test_an_update_of_an_absent_row_fails_and_writes_nothing(table: Table, verb: str) -> None:
    """Without a condition it would be an upsert on the wire: it has to be sent with `If-Match: *`."""
    with pytest.raises(RowMissing):
        await getattr(table, verb)(row(A=1))
    assert await table.get(KEY) is None


@pytest.mark.parametrize("verb", ["replace", "merge"])
async def test_a_conditional_update_holds_only_for_the_row_as_read(table: Table, verb: str) -> None:
    stale = await table.insert(row(A=1))
    fresh = await getattr(table, verb)(row(A=2), etag=stale)
    with pytest.raises(ConditionFailed):
        await getattr(table, verb)(row(A=3), etag=stale)
    found = await read(table)
    assert (found["A"], etag_of(found)) == (2, fresh)


@pytest.mark.parametrize("merge", [False, True])
async def test_upsert_writes_whether_there_is_a_row_or_not(table: Table, merge: bool) -> None:
    await table.upsert(row(A=1), merge=merge)
    etag = await table.upsert(row(B=2), merge=merge)
    found = await read(table)
    assert content_of(found) == (row(A=1, B=2) if merge else row(B=2))
    assert etag_of(found) == etag


async def test_delete_holds_for_any_etag_or_the_one_given(table: Table) -> None:
    stale = await table.insert(row(A=1))
    fresh = await table.merge(row(A=2))
    with pytest.raises(ConditionFailed):
        await table.delete(KEY, etag=stale)
    await table.delete(KEY, etag=fresh)
    assert await table.get(KEY) is None
    with pytest.raises(RowMissing):
        await table.delete(KEY)
    await table.insert(row())
    await table.delete(KEY)
    assert await table.get(KEY) is None


async def test_every_write_gives_a_new_etag_also_of_the_same_content(table: Table) -> None:
    etags = [await table.insert(row(A=1))]
    etags += [await table.replace(row(A=1)) for _ in range(3)]
    await table.delete(KEY)
    etags.append(await table.insert(row(A=1)))
    assert len(set(etags)) == 5


async def test_the_timestamp_of_a_row_rises_with_every_write(table: Table) -> None:
    stamps = []
    await table.insert(row(A=0))
    for number in range(4):
        await table.merge(row(A=number))
        stamps.append(ticks_of((await read(table))["Timestamp"]))
    assert stamps == sorted(set(stamps))


async def test_of_many_writers_with_one_etag_one_wins(table: Table) -> None:
    etag = await table.insert(row(A=0))
    results = await asyncio.gather(
        *(table.merge(row(A=number), etag=etag) for number in range(1, 13)), return_exceptions=True
    )
    winners = [number for number, result in enumerate(results, 1) if isinstance(result, str)]
    assert len(winners) == 1
    assert sum(isinstance(result, ConditionFailed) for result in results) == 11
    assert (await read(table))["A"] == winners[0]


# --- transactions ------------------------------------------------------------------------------------


async def test_a_transaction_applies_every_verb_and_returns_etags_in_order(table: Table) -> None:
    kept = await table.insert(row("merged", A=1, B=1))
    await table.insert(row("replaced", A=1, B=1))
    await table.insert(row("gone", A=1))
    etags = await table.transact(
        [
            Operation(Verb.INSERT, row("new", A=2)),
            Operation(Verb.MERGE, row("merged", A=2), kept),
            Operation(Verb.REPLACE, row("replaced", A=2)),
            Operation(Verb.DELETE, row("gone")),
            Operation(Verb.INSERT_OR_REPLACE, row("upserted", A=2)),
            Operation(Verb.INSERT_OR_MERGE, row("upmerged", A=2)),
        ]
    )
    assert etags[3] is None
    assert await table.get(EntityKey("p", "gone")) is None
    for etag, name, content in [
        (etags[0], "new", row("new", A=2)),
        (etags[1], "merged", row("merged", A=2, B=1)),
        (etags[2], "replaced", row("replaced", A=2)),
        (etags[4], "upserted", row("upserted", A=2)),
        (etags[5], "upmerged", row("upmerged", A=2)),
    ]:
        found = await read(table, name)
        assert content_of(found) == content
        assert etag_of(found) == etag


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (Operation(Verb.INSERT, row("there", A=9)), RowExists),
        (Operation(Verb.MERGE, row("absent", A=9)), RowMissing),
        (Operation(Verb.REPLACE, row("absent", A=9)), RowMissing),
        (Operation(Verb.DELETE, row("absent")), RowMissing),
        (
            Operation(Verb.REPLACE, row("there", A=9), "W/\"datetime'2001-01-01T00%3A00%3A00.0000000Z'\""),
            ConditionFailed,
        ),
        (
            Operation(Verb.DELETE, row("there"), "W/\"datetime'2001-01-01T00%3A00%3A00.0000000Z'\""),
            ConditionFailed,
        ),
    ],
    ids=lambda value: value.verb.value if isinstance(value, Operation) else None,
)
async def test_a_failing_operation_is_named_and_undoes_all_others(
    table: Table, failing: Operation, error: type[ServiceError]
) -> None:
    before = await table.insert(row("there", A=1))
    with pytest.raises(error) as raised:
        await table.transact(
            [
                Operation(Verb.INSERT, row("a", A=2)),
                Operation(Verb.INSERT_OR_MERGE, row("b", A=2)),
                failing,
                Operation(Verb.INSERT, row("c", A=2)),
            ]
        )
    assert raised.value.index == 2
    assert await all_keys(table) == [EntityKey("p", "there")]
    assert etag_of(await read(table, "there")) == before


async def test_a_failing_transaction_restores_what_it_deleted_and_changed(table: Table) -> None:
    for name in ("a", "b", "c", "there"):
        await table.insert(row(name, A=1))
    with pytest.raises(RowExists):
        await table.transact(
            [
                Operation(Verb.DELETE, row("a")),
                Operation(Verb.REPLACE, row("b", B=2)),
                Operation(Verb.MERGE, row("c", A=2)),
                Operation(Verb.INSERT, row("there", A=2)),
            ]
        )
    for name in ("a", "b", "c", "there"):
        assert content_of(await read(table, name)) == row(name, A=1)


async def test_a_transaction_takes_100_operations(table: Table) -> None:
    await table.transact([Operation(Verb.INSERT, row(f"{number:03}")) for number in range(100)])
    assert len(await all_keys(table)) == 100


@pytest.mark.parametrize(
    "operations",
    [
        [],
        [Operation(Verb.INSERT, row(f"{number:03}")) for number in range(101)],
        [Operation(Verb.INSERT, row("a", "p")), Operation(Verb.INSERT, row("a", "q"))],
        [Operation(Verb.INSERT, row("a")), Operation(Verb.DELETE, row("a"))],
        [Operation(Verb.INSERT, row(f"{number:03}", A="é" * 30_000)) for number in range(75)],
    ],
    ids=["empty", "101 operations", "two partitions", "one row twice", "over 4 MiB"],
)
async def test_a_transaction_outside_the_limits_is_refused_whole(
    table: Table, operations: list[Operation]
) -> None:
    """Azurite answers 101 operations with a malformed reply: the refusal has to come before sending."""
    with pytest.raises(RequestRejected):
        await table.transact(operations)
    assert await all_keys(table) == []


async def test_encoded_sizes_tell_what_fits_into_a_transaction(table: Table) -> None:
    """As many bytes as the service takes, and no row more. CJK costs 3 bytes a character on the wire, an
    emoji 4: what counts is the encoding, not the length."""
    plain = table.encoded_size(Operation(Verb.INSERT, row(A="")))
    assert table.encoded_size(Operation(Verb.INSERT, row(A="漢😀a"))) == plain + 3 + 4 + 1
    operations = [Operation(Verb.INSERT, row(f"{number:02}", A="漢" * 20_000)) for number in range(70)]
    fit = MAX_BATCH_BYTES // max(map(table.encoded_size, operations))
    assert fit == 69
    with pytest.raises(RequestRejected):
        await table.transact(operations[: fit + 1])
    await table.transact(operations[:fit])
    assert len(await all_keys(table)) == fit


# --- tables ------------------------------------------------------------------------------------------


async def test_a_table_is_made_once_whatever_the_case(service: TableService, table: Table) -> None:
    assert await service.table_exists(table.name)
    assert not await service.create_table(table.name)
    assert not await service.create_table(table.name.upper())


async def test_a_deleted_table_is_gone_and_a_second_delete_says_so(
    service: TableService, table: Table
) -> None:
    await table.insert(row())
    assert table.name in await service.table_names()
    assert await service.delete_table(table.name)
    assert not await service.table_exists(table.name)
    assert table.name not in await service.table_names()
    assert not await service.delete_table(table.name)


@pytest.mark.parametrize("name", ["ab", "1abc", "a-b", "a" * 64, "a/b", "tables", ""])
async def test_an_impossible_table_name_is_refused(service: TableService, name: str) -> None:
    with pytest.raises(RequestRejected):
        await service.create_table(name)


async def test_every_call_on_an_absent_table_says_so(service: TableService) -> None:
    absent = service.table("NoSuchTable")
    batch = [Operation(Verb.INSERT, row("a")), Operation(Verb.INSERT, row("b"))]
    with pytest.raises(TableMissing):
        await absent.get(KEY)
    for call in (
        absent.insert(row()),
        absent.replace(row()),
        absent.merge(row()),
        absent.upsert(row()),
        absent.delete(KEY),
        absent.transact(batch),
        anext(absent.scan()),
    ):
        with pytest.raises(TableMissing):
            await call
    assert not await service.table_exists("NoSuchTable")


async def test_errors_name_the_code_and_never_a_key(table: Table) -> None:
    secret = row("ada@example.org", "lovelace", Name="Countess")
    await table.insert(secret)
    messages = []
    for call in (
        table.insert(secret),
        table.transact([Operation(Verb.INSERT, secret)]),
        table.merge(secret, etag="W/\"datetime'2001-01-01T00%3A00%3A00.0000000Z'\""),
        table.delete(EntityKey("lovelace", "byron@example.org")),
        table.transact([Operation(Verb.INSERT, secret), Operation(Verb.INSERT, secret)]),
        table.insert({**secret, "RowKey": "a/ada@example.org"}),
    ):
        with pytest.raises(ServiceError) as raised:
            await call
        assert raised.value.code
        messages.append(f"{raised.value} {raised.value!r} {raised.value.as_json()}")
    assert not [text for text in messages if "example" in text or "lovelace" in text or "Countess" in text]


async def test_the_services_clock_is_that_of_its_timestamps(service: TableService, table: Table) -> None:
    before = await service.server_time()
    await table.insert(row())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z", before)
    assert before[:19] <= (await read(table))["Timestamp"][:19] <= (await service.server_time())[:19]


async def test_closing_twice_is_allowed(service: TableService) -> None:
    await service.close()
    await service.close()


async def test_requests_are_counted_by_kind_alike(service: TableService, table: Table) -> None:
    before = dict(service.sent.counts)
    await table.insert(row("a"))
    await table.replace(row("a", N=1))
    await table.transact([Operation(Verb.INSERT, row(f"b{n}")) for n in range(7)])
    await read(table, "a")
    await all_keys(table)
    await table.delete(EntityKey("p", "a"))
    await service.table_exists(table.name)
    await service.server_time()
    counted = since(service.sent.counts, before)
    assert counted == {
        RequestKind.WRITE: 2,
        RequestKind.BATCH: 1,
        OPERATIONS: 7,
        RequestKind.READ: 1,
        RequestKind.SCAN: 2,
        RequestKind.DELETE: 1,
        RequestKind.TABLE: 1,
    }
    assert requests_in(since(service.sent.counts, before)) == 8
