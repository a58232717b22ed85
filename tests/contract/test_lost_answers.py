"""Lost answers, throttling and broken connections on a real wire: what is retried and how it is settled.

The proxy in front of Azurite makes what Azurite itself never does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from rekey.core.clock import SystemClock
from rekey.errors import (
    Ambiguous,
    ConditionFailed,
    EndpointDown,
    RowExists,
    TableBeingDeleted,
    Unavailable,
)
from rekey.model import EntityKey, KeyRange, Row, content_of, etag_of, key_of
from rekey.rehearse.azurite import Azurite
from rekey.tables.allowance import while_allowed
from rekey.tables.azure import AzureTable, AzureTableService
from rekey.tables.base import MULTI_WRITER_SERVICE_S, Operation, Verb
from rekey.tables.credentials import SharedKey
from rekey.tables.requests import RetryPolicy
from rekey.tables.transport import Network, Timeouts
from tests.asserts.every import every
from tests.fakes.fault_proxy import Answered, Fault, FaultProxy, batch_error_answer, error_answer

pytestmark = pytest.mark.azurite

KEY = EntityKey("p", "r")
ATTEMPTS = 4


@dataclass
class Waits(SystemClock):
    """Writes down how long it was asked to wait, and does not."""

    seconds: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


@dataclass
class World:
    """A table behind the proxy, and the same table without it."""

    proxy: FaultProxy
    service: AzureTableService
    table: AzureTable
    direct: AzureTable
    waits: Waits


@pytest.fixture
async def world(
    azurite: Azurite, tables_service: AzureTableService, table_name: Callable[[str], str]
) -> AsyncIterator[World]:
    name = table_name("Lossy")
    await tables_service.create_table(name)
    account = azurite.tables
    waits = Waits()
    async with FaultProxy(f"http://127.0.0.1:{azurite.port}") as proxy:
        service = AzureTableService.open(
            f"{proxy.address}/{account.name}",
            SharedKey.of(account.name, account.key),
            retry=RetryPolicy(attempts=ATTEMPTS, connect_attempts=2),
            network=Network(Timeouts(connect=2.0, read=0.5)),
            clock=waits,
        )
        async with service:
            yield World(proxy, service, service.table(name), tables_service.table(name), waits)


def row(row_key: str = "r", **properties: object) -> Row:
    return {"PartitionKey": "p", "RowKey": row_key, **properties}


async def stored(table: AzureTable, row_key: str = "r") -> Row:
    found = await table.get(EntityKey("p", row_key))
    assert found is not None
    return found


LOSSES = {
    "answer lost": lambda **more: Fault(applied=True, **more),
    "answer cut off": lambda **more: Fault(applied=True, truncated=True, **more),
    "answer never comes": lambda **more: Fault(applied=True, stalls=True, **more),
    "timed out but applied": lambda **more: Fault(
        applied=True, answer=error_answer(500, "OperationTimedOut"), **more
    ),
    "gateway failed": lambda **more: Fault(applied=True, answer=error_answer(502), **more),
    "request lost": lambda **more: Fault(**more),
    "busy": lambda **more: Fault(answer=error_answer(503, "ServerBusy"), **more),
    "timed out": lambda **more: Fault(answer=error_answer(500, "OperationTimedOut"), **more),
}


@pytest.fixture(params=LOSSES)
def loss(request: pytest.FixtureRequest) -> Callable[..., Fault]:
    """One way in which a request goes wrong once."""
    made: Callable[..., Fault] = LOSSES[request.param]
    return made


# --- single writes -----------------------------------------------------------------------------------


async def test_an_insert_succeeds_once_whatever_is_lost(world: World, loss: Callable[..., Fault]) -> None:
    """Repeated after a lost answer, an insert meets its own row: that is success, not RowExists."""
    world.proxy.faults = [loss(method="POST")]
    etag = await world.table.insert(row(A=1, B=2.0))
    assert etag_of(await stored(world.direct)) == etag


async def test_a_write_that_was_left_without_an_answer_is_remembered(world: World) -> None:
    """Also when its repetition had one: the first may still be under way."""
    await world.table.insert(row("calm"))
    world.proxy.faults = [Fault(answer=error_answer(503, "ServerBusy"), method="POST")]
    await world.table.insert(row("busy"))
    assert world.service.last_open is None
    before = world.waits.monotonic()
    world.proxy.faults = [Fault(applied=True, method="POST")]
    await world.table.insert(row("lost"))
    assert world.service.last_open is not None
    assert world.service.last_open >= before


@pytest.mark.parametrize("verb", ["replace", "merge"])
async def test_a_conditional_update_succeeds_whatever_is_lost(
    world: World, loss: Callable[..., Fault], verb: str
) -> None:
    """Repeated after a lost answer, it meets the ETag of its own effect: 412 from itself."""
    before = await world.direct.insert(row(A=1, B=1))
    world.proxy.faults = [loss(target="(")]
    etag = await getattr(world.table, verb)(row(A=2), etag=before)
    found = await stored(world.direct)
    assert content_of(found) == (row(A=2) if verb == "replace" else row(A=2, B=1))
    assert etag_of(found) == etag


@pytest.mark.parametrize("conditional", [True, False])
async def test_a_delete_succeeds_whatever_is_lost(
    world: World, loss: Callable[..., Fault], conditional: bool
) -> None:
    etag = await world.direct.insert(row(A=1))
    world.proxy.faults = [loss(method="DELETE")]
    await world.table.delete(KEY, etag=etag if conditional else "*")
    assert await world.direct.get(KEY) is None


async def test_an_upsert_is_simply_repeated(world: World, loss: Callable[..., Fault]) -> None:
    world.proxy.faults = [loss(method="PUT")]
    etag = await world.table.upsert(row(A=1))
    assert etag_of(await stored(world.direct)) == etag


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize("busy", [True, False])
async def test_nothing_is_sent_twice_by_the_http_client_itself(world: World, method: str, busy: bool) -> None:
    """aiohttp repeats PUT and DELETE on its own when a kept connection was closed. The answer to that
    repetition ("412", or "busy, nothing was done") would be taken for the answer to the first sending."""
    await world.direct.insert(row(A=1))
    table = world.service.multi_writer_table(world.table.name)
    await table.get(KEY)  # a connection to keep
    world.proxy.faults = [Fault(method=method, applied=True, only_reused=True)]
    if busy:
        world.proxy.faults.append(Fault(answer=error_answer(503, "ServerBusy"), method=method))
    with pytest.raises(Ambiguous):
        await (table.upsert(row(A=2)) if method == "PUT" else table.delete(KEY))
    assert world.proxy.count(method) == 1


async def test_a_write_that_was_turned_away_after_one_was_left_open_is_open(world: World) -> None:
    """Not "the service is busy, nothing was done": the first attempt may have been applied."""
    etag = await world.direct.insert(row(A=1))
    world.proxy.faults = [
        Fault(method="PUT"), *(Fault(answer=error_answer(503, "ServerBusy"), method="PUT") for _ in range(9))
    ]  # fmt: skip
    with pytest.raises(Ambiguous):
        await world.service.multi_writer_table(world.table.name).replace(row(A=2), etag=etag)


@pytest.mark.parametrize("reading_back", [False, True])
async def test_a_credential_that_is_refused_after_a_lost_answer_leaves_the_write_open(
    world: World, reading_back: bool
) -> None:
    """The first attempt may have been applied, or may be yet: the refusal is about the second one alone."""
    etag = await world.direct.insert(row(A=1))
    refused = error_answer(403, "AuthenticationFailed")
    later = [Fault(answer=refused, method="PUT")]
    if reading_back:
        later = [Fault(answer=error_answer(412, "UpdateConditionNotSatisfied"), method="PUT")]
        later += [Fault(answer=refused, method="GET", times=9)]
    world.proxy.faults = [Fault(method="PUT"), *later]
    with pytest.raises(Ambiguous, match="AuthenticationFailed"):
        await world.table.replace(row(A=2), etag=etag)
    assert (world.service.last_open is None) is reading_back


async def test_a_write_on_a_version_is_sent_again_also_where_others_write(world: World) -> None:
    """What it depends on is gone once a later attempt is answered: no earlier one can take effect any more,
    so nothing of it is remembered as open."""
    etag = await world.direct.insert(row(A=1))
    world.proxy.faults = [Fault(method="PUT")]
    await world.service.multi_writer_table(world.table.name).replace(row(A=2), etag=etag)
    assert world.proxy.count("PUT") == 2
    assert world.service.last_open is None


async def test_a_row_that_others_write_too_says_nothing_about_who_wrote_it(world: World) -> None:
    world.proxy.faults = [
        Fault(method="POST", meanwhile=lambda: world.direct.insert(row(A=1)))  # the very same row
    ]
    with pytest.raises(Ambiguous):
        await world.service.multi_writer_table(world.table.name).insert(row(A=1))
    assert world.proxy.count("POST") == 1


async def test_whether_a_write_may_be_sent_is_asked_when_its_first_bytes_go_out(world: World) -> None:
    """Not only when it was decided: its process may stand still in between."""
    asked = 0

    def may_write() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise RuntimeError("too late")

    with while_allowed(may_write), pytest.raises(RuntimeError, match="too late"):
        await world.table.insert(row(A=1))
    assert world.proxy.count("POST") == 0
    assert await world.direct.get(KEY) is None


async def test_where_no_further_attempt_is_allowed_the_first_one_stays_open(world: World) -> None:
    asked = 0

    def may_write() -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise RuntimeError("too late")

    world.proxy.faults = [Fault(method="POST", applied=True)]
    with while_allowed(may_write), pytest.raises(Ambiguous):
        await world.table.insert(row(A=1))
    assert world.service.last_open is not None


async def test_a_write_that_was_given_up_on_the_way_is_remembered_as_open(world: World) -> None:
    world.proxy.faults = [Fault(method="POST", applied=True)]
    writing = asyncio.ensure_future(world.table.insert(row(A=1)))
    while not world.proxy.asked:
        await asyncio.sleep(0.001)
    writing.cancel()
    await asyncio.wait([writing])
    assert world.service.last_open is not None


async def test_the_service_is_told_to_work_on_shared_rows_for_a_short_time_only(world: World) -> None:
    """What was sent is over sooner, and so is the wait for it."""
    table = world.service.multi_writer_table(world.table.name)
    await table.upsert(row(A=1))
    await table.transact([Operation(Verb.INSERT_OR_REPLACE, row(A=2))])
    assert every(f"timeout={MULTI_WRITER_SERVICE_S}" in asked.target for asked in world.proxy.asked)


async def test_a_row_of_another_writer_after_a_lost_answer_is_ambiguous(world: World) -> None:
    """Applied and overwritten, or never applied: what is there does not tell, so neither do we."""
    world.proxy.faults = [
        Fault(method="POST", applied=True, meanwhile=lambda: world.direct.replace(row(A="other")))
    ]
    with pytest.raises(Ambiguous):
        await world.table.insert(row(A=1))


async def test_a_change_by_another_writer_before_a_lost_conditional_update_is_ambiguous(world: World) -> None:
    before = await world.direct.insert(row(A=1))
    world.proxy.faults = [Fault(method="PATCH", meanwhile=lambda: world.direct.merge(row(A="other")))]
    with pytest.raises(Ambiguous):
        await world.table.merge(row(A=2), etag=before)
    assert (await stored(world.direct))["A"] == "other"


async def test_being_turned_away_as_busy_leaves_nothing_ambiguous(world: World) -> None:
    """ServerBusy says that nothing was done: the row that the repetition meets is another writer's, also
    when its content is the same."""
    await world.direct.insert(row(A=1))
    world.proxy.faults = [Fault(method="POST", answer=error_answer(503, "ServerBusy"))]
    with pytest.raises(RowExists):
        await world.table.insert(row(A=1))


async def test_a_stale_condition_without_any_loss_is_not_settled(world: World) -> None:
    stale = await world.direct.insert(row(A=1))
    await world.direct.merge(row(A=2))
    with pytest.raises(ConditionFailed):
        await world.table.merge(row(A=2), etag=stale)


async def test_a_condition_that_still_holds_proves_that_nothing_landed(world: World) -> None:
    """Retries are used up, the row still has the ETag: open all the same, as the last request may be late."""
    before = await world.direct.insert(row(A=1))
    world.proxy.faults = [Fault(method="PATCH", times=ATTEMPTS)]
    with pytest.raises(Ambiguous):
        await world.table.merge(row(A=2), etag=before)
    assert world.proxy.count("PATCH") == ATTEMPTS


async def test_a_write_that_landed_with_the_last_attempt_is_a_success(world: World) -> None:
    world.proxy.faults = [Fault(method="POST", times=ATTEMPTS - 1), Fault(method="POST", applied=True)]
    assert await world.table.insert(row(A=1)) == etag_of(await stored(world.direct))


async def test_ambiguity_stays_when_reading_back_fails_too(world: World) -> None:
    world.proxy.faults = [Fault(method="POST", applied=True), Fault(method="GET", times=99)]
    with pytest.raises(Ambiguous):
        await world.table.insert(row(A=1))


# --- transactions ------------------------------------------------------------------------------------


async def test_a_transaction_succeeds_once_whatever_is_lost(world: World, loss: Callable[..., Fault]) -> None:
    kept = await world.direct.insert(row("merged", A=1))
    await world.direct.insert(row("gone", A=1))
    world.proxy.faults = [loss(target="$batch")]
    etags = await world.table.transact(
        [
            Operation(Verb.INSERT, row("new", A=2)),
            Operation(Verb.MERGE, row("merged", A=2), kept),
            Operation(Verb.DELETE, row("gone")),
            Operation(Verb.INSERT_OR_REPLACE, row("upserted", A=2)),
        ]
    )
    found = [await stored(world.direct, name) for name in ("new", "merged", "upserted")]
    assert [one["A"] for one in found] == [2, 2, 2]
    assert etags == [etag_of(found[0]), etag_of(found[1]), None, etag_of(found[2])]
    assert await world.direct.get(EntityKey("p", "gone")) is None


@pytest.mark.parametrize("code", ["ServerBusy", "OperationTimedOut"])
async def test_an_error_inside_the_answer_to_a_batch_is_retried(world: World, code: str) -> None:
    """The SDK retries on the outer status only, which is 202 here."""
    world.proxy.faults = [Fault(target="$batch", answer=batch_error_answer(503, code, 1), times=2)]
    await world.table.transact([Operation(Verb.INSERT, row("a")), Operation(Verb.INSERT, row("b"))])
    assert world.proxy.count("POST", "$batch") == 3
    assert await world.direct.get(EntityKey("p", "b")) is not None


async def test_an_error_inside_a_batch_that_lasts_names_its_operation(world: World) -> None:
    world.proxy.faults = [Fault(target="$batch", answer=batch_error_answer(503, "ServerBusy", 1), times=9)]
    with pytest.raises(Unavailable) as raised:
        await world.table.transact([Operation(Verb.INSERT, row("a")), Operation(Verb.INSERT, row("b"))])
    assert raised.value.index == 1
    assert "example" not in str(raised.value)


async def test_a_conflict_after_a_lost_transaction_is_a_conflict_when_nothing_landed(world: World) -> None:
    """Rows of the batch that are absent prove that it was not applied: the conflict is told as it is."""
    await world.direct.insert(row("b", A="other"))
    world.proxy.faults = [Fault(target="$batch")]
    with pytest.raises(RowExists) as raised:
        await world.table.transact(
            [Operation(Verb.INSERT, row("a", A=1)), Operation(Verb.INSERT, row("b", A=1))]
        )
    assert raised.value.index == 1


async def test_a_transaction_that_landed_and_was_changed_since_is_ambiguous(world: World) -> None:
    world.proxy.faults = [
        Fault(target="$batch", applied=True, meanwhile=lambda: world.direct.merge(row("b", A="other")))
    ]
    with pytest.raises(Ambiguous):
        await world.table.transact(
            [Operation(Verb.INSERT, row("a", A=1)), Operation(Verb.INSERT, row("b", A=1))]
        )


async def test_a_malformed_answer_to_a_batch_is_no_answer(world: World) -> None:
    world.proxy.faults = [Fault(target="$batch", applied=True, answer=Answered(202, {}, b"--batchresponse"))]
    etags = await world.table.transact([Operation(Verb.INSERT, row("a")), Operation(Verb.INSERT, row("b"))])
    assert etags[0] == etag_of(await stored(world.direct, "a"))


# --- reading -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("truncated", [True, False])
async def test_a_read_is_repeated_and_in_the_end_unavailable_never_ambiguous(
    world: World, truncated: bool
) -> None:
    await world.direct.insert(row(A=1))
    world.proxy.faults = [Fault(method="GET", applied=truncated, truncated=truncated, times=2)]
    assert (await stored(world.table))["A"] == 1
    world.proxy.faults = [Fault(method="GET", times=99)]
    with pytest.raises(Unavailable):
        await world.table.get(KEY)


async def test_a_scan_survives_failing_empty_and_malformed_pages(world: World) -> None:
    """An empty page with a token, which lacks its row key; the same filter and selection are sent again."""
    await world.direct.transact([Operation(Verb.INSERT, row(f"{number}", A=1)) for number in range(7)])
    world.proxy.faults = [
        Fault(
            method="GET",
            answer=Answered(200, {"x-ms-continuation-NextPartitionKey": "1!4!cA--"}, b'{"value":[]}'),
        ),
        Fault(method="GET", answer=error_answer(503, "ServerBusy")),
        Fault(method="GET", answer=Answered(200, {}, b'{"value":')),
        Fault(method="GET", answer=Answered(200, {}, b'{"value":[]}')),
    ]
    within = KeyRange(EntityKey("p", "2"), EntityKey("p", "5"))
    pages = [page async for page in world.table.scan(within, select=["A"], page_rows=2)]
    first, *others = [asked.target for asked in world.proxy.asked]
    assert "%24filter" in first.replace("$", "%24")
    assert others
    assert every(one == f"{first}&NextPartitionKey=1%214%21cA--" for one in others)
    assert pages[0].rows == []
    assert pages[0].cursor == EntityKey("p", "2")


async def test_a_scan_loses_and_repeats_nothing_when_every_other_request_fails(world: World) -> None:
    keys = [EntityKey("p", f"{number:02}") for number in range(23)]
    await world.direct.transact([Operation(Verb.INSERT, row(key.row)) for key in keys])
    world.proxy.faults = [Fault(method="GET", skip=skip) for skip in range(6)]
    found = [key_of(one) async for page in world.table.scan(page_rows=4) for one in page.rows]
    assert found == keys


async def test_a_scan_that_is_given_up_leaves_no_task_behind(world: World) -> None:
    await world.direct.transact([Operation(Verb.INSERT, row(f"{number}")) for number in range(9)])
    world.proxy.faults = [Fault(method="GET", stalls=True, skip=1, times=9)]
    before = asyncio.all_tasks()
    pages = world.table.scan(page_rows=2)
    await anext(pages)
    await pages.aclose()  # type: ignore[attr-defined]
    assert {task for task in asyncio.all_tasks() - before if "_serve" not in repr(task)} == set()


# --- refusals, limits of patience ----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["insert", "create_table", "scan"])
async def test_a_table_that_is_being_deleted_is_not_one_that_exists(world: World, call: str) -> None:
    """The SDK takes this 409 for "exists"; a copy that did would take it for "already copied"."""
    world.proxy.faults = [Fault(answer=error_answer(409, "TableBeingDeleted"))]
    calls = {
        "insert": lambda: world.table.insert(row()),
        "create_table": lambda: world.service.create_table("Another"),
        "scan": lambda: anext(world.table.scan()),
    }
    with pytest.raises(TableBeingDeleted):
        await calls[call]()


async def test_waits_grow_and_retry_after_is_honoured(world: World) -> None:
    world.proxy.faults = [
        Fault(answer=error_answer(503, "ServerBusy", Retry_After="7")),
        Fault(answer=error_answer(503, "ServerBusy", x_ms_retry_after_ms="9000")),
        Fault(answer=error_answer(503, "ServerBusy")),
    ]
    await world.table.insert(row())
    assert world.waits.seconds[:2] == [7.0, 9.0]
    assert 0.8 * 0.8 <= world.waits.seconds[2] <= 0.8 * 1.2


async def test_patience_ends(world: World) -> None:
    world.proxy.faults = [Fault(answer=error_answer(503, "ServerBusy"), times=99)]
    with pytest.raises(Unavailable) as raised:
        await world.table.insert(row())
    assert world.proxy.count("POST") == ATTEMPTS
    assert (raised.value.code, raised.value.status) == ("ServerBusy", 503)


async def test_an_endpoint_that_never_answered_is_given_up_soon(azurite: Azurite) -> None:
    """Nothing listens on port 1. Two attempts here, then EndpointDown: it is mostly a typing error."""
    account = azurite.tables
    waits = Waits()
    for endpoint in ("http://127.0.0.1:1/tables", "http://no-such-host.invalid/tables"):
        async with AzureTableService.open(
            endpoint,
            SharedKey.of(account.name, account.key),
            retry=RetryPolicy(connect_attempts=2),
            clock=waits,
        ) as service:
            with pytest.raises(EndpointDown) as raised:
                await service.table("Users").insert(row())
            assert raised.value.hint
    assert len(waits.seconds) == 2


async def test_an_endpoint_that_did_answer_is_waited_for(world: World) -> None:
    world.proxy.faults = [Fault(answer=Answered(204, {"ETag": "x", "Connection": "close"}))]
    await world.table.insert(row("first"))
    await world.proxy.stop_listening()
    with pytest.raises(EndpointDown):
        await world.table.insert(row("second"))
    assert len(world.waits.seconds) == ATTEMPTS - 1


async def test_a_lost_answer_and_then_no_connection_is_ambiguous(world: World) -> None:
    world.proxy.faults = [Fault(method="POST", applied=True, meanwhile=world.proxy.stop_listening)]
    with pytest.raises(Ambiguous):
        await world.table.insert(row())


# --- what goes over the wire, and what is told of it ----------------------------------------------------


async def test_addresses_go_out_exactly_as_they_were_made(world: World) -> None:
    """An HTTP client that decodes `%2B` or `%27` on the way breaks the signature or, worse, the key."""
    key = EntityKey("a+b", "it's 100%25")
    await world.table.get(key)
    target = world.proxy.asked[-1].target
    path, _, query = target.partition("?")
    assert path == f"/tables/{world.table.name}()", "by a query: a server on the way may decode a path twice"
    where = "$filter=PartitionKey%20eq%20%27a%2Bb%27%20and%20RowKey%20eq%20%27it%27%27s%20100%2525%27"
    assert query.startswith(where), target


async def test_an_update_without_a_condition_is_never_an_upsert_on_the_wire(world: World) -> None:
    await world.direct.insert(row())
    await world.table.replace(row(A=1))
    await world.table.transact([Operation(Verb.MERGE, row(A=2)), Operation(Verb.DELETE, row("x"))][:1])
    assert world.proxy.asked[0].headers["If-Match"] == "*"
    assert b"If-Match: *\r\n" in world.proxy.asked[1].body


async def test_nothing_logged_holds_a_key_a_value_or_a_credential(
    world: World, azurite: Azurite, caplog: pytest.LogCaptureFixture
) -> None:
    """At the finest level of all loggers, with failures, retries and a scan."""
    caplog.set_level(logging.DEBUG)
    secret = {"PartitionKey": "lovelace", "RowKey": "ada@example.org", "Phone": "555-0100"}
    key = key_of(secret)
    world.proxy.faults = [Fault(), Fault(answer=error_answer(503, "ServerBusy", Retry_After="1"))]
    await world.table.insert(secret)
    with pytest.raises(RowExists):
        await world.table.transact([Operation(Verb.INSERT, secret)])
    await world.table.get(key)
    async for _ in world.table.scan(KeyRange(EntityKey("lovelace", ""), key)):
        pass
    await world.table.delete(key)
    assert "rekey.tables" in caplog.text
    for word in ("lovelace", "example", "555", "SharedKey", azurite.tables.key, "PartitionKey"):
        assert word not in caplog.text


# --- clients that share rows with other writers ------------------------------------------------------


@pytest.fixture
async def cautious(world: World, azurite: Azurite) -> AsyncIterator[AzureTable]:
    """The same table for whoever must not send an open write twice."""
    account = azurite.tables
    async with AzureTableService.open(
        f"{world.proxy.address}/{account.name}",
        SharedKey.of(account.name, account.key),
        retry=RetryPolicy(attempts=ATTEMPTS, repeats_open_writes=False),
        network=Network(Timeouts(connect=2.0, read=0.5)),
        clock=world.waits,
    ) as service:
        yield service.table(world.table.name)


@pytest.mark.parametrize("lost", ["answer lost", "timed out but applied", "gateway failed", "request lost"])
async def test_a_write_that_may_have_been_applied_is_sent_once_and_settled_by_reading(
    world: World, cautious: AzureTable, lost: str
) -> None:
    """Sent twice, the first sending could take effect after the second and after other writers' writes."""
    world.proxy.faults.append(LOSSES[lost](method="POST"))
    if lost == "request lost":
        with pytest.raises(Ambiguous):
            await cautious.insert(row(Name="Ann"))
    else:
        await cautious.insert(row(Name="Ann"))
        assert (await stored(world.direct))["Name"] == "Ann"
    assert world.proxy.count("POST") == 1


async def test_two_that_raise_a_counter_from_one_number_are_never_both_told_that_they_did(
    world: World, azurite: Azurite
) -> None:
    """The other one wrote the very same content while this one's answer was lost."""
    account = azurite.tables
    etag = await world.direct.insert(row(Counter=1))

    async def raised_by_the_other() -> None:
        await world.direct.merge(row(Counter=2), etag=etag)

    world.proxy.faults.append(Fault("PATCH", meanwhile=raised_by_the_other))
    async with AzureTableService.open(
        f"{world.proxy.address}/{account.name}",
        SharedKey.of(account.name, account.key),
        retry=RetryPolicy(attempts=ATTEMPTS, repeats_open_writes=False, content_settles=False),
        clock=world.waits,
    ) as service:
        with pytest.raises(Ambiguous):
            await service.table(world.table.name).merge(row(Counter=2), etag=etag)


async def test_a_write_that_was_turned_away_is_sent_again(world: World, cautious: AzureTable) -> None:
    world.proxy.faults.append(LOSSES["busy"](method="POST"))
    await cautious.insert(row(Name="Ann"))
    assert world.proxy.count("POST") == 2


async def test_a_read_is_sent_again_whoever_asks(world: World, cautious: AzureTable) -> None:
    await world.direct.insert(row())
    world.proxy.faults.append(LOSSES["answer lost"](method="GET"))
    assert await cautious.get(EntityKey("p", "r")) is not None
