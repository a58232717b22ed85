"""Dual writes against everything that can go wrong: failing replicas, lost answers, cancellations, deadlines,
and many writers of both views at once. No acknowledged write is lost, and in the end all tables agree."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from unittest import mock

import pytest

from rekey.client.abandoned import to_its_end
from rekey.client.parts import MAX_IN_FLIGHT_S
from rekey.client.source_authority import SourceAuthority
from rekey.errors import (
    Ambiguous,
    Collision,
    CredentialRefused,
    EndpointDown,
    RekeyError,
    RowExists,
    RowMissing,
    SealedUnreadable,
    ServiceError,
    Unavailable,
    WritesRefused,
)
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.protocol.rules import View
from rekey.protocol.sweeper import Company
from rekey.tables.base import Operation
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.interference import before
from tests.fakes.memory import MemoryTableService, open_gate
from tests.worlds.dual_write import (
    TAGGED,
    delete,
    insert,
    key_row,
    memory_world,
    merge,
    replace,
    sleep_forever,
    upsert,
)
from tests.worlds.small import POSTS, USERS, post, user

ANN = EntityKey("eu", "ann@example.com")


def failing(
    table: str, kind: FaultKind = FaultKind.BUSY, action: str = "", times: int = 1_000
) -> PlannedFaults:
    """Every call on a table fails."""
    return PlannedFaults(Planned(Fault(kind), action=action, table=table, times=times))


# --- replicas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FaultKind.BUSY, FaultKind.TIMED_OUT, FaultKind.NOT_SENT])
async def test_a_failing_replica_fails_no_caller(memory: MemoryTableService, kind: FaultKind) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer = world.writer()
    memory.faults = failing("UsersV2", kind)
    [etag] = await writer.write([replace(user(ANN.row, Age=2))])
    assert etag == world.etag("Users", ANN)
    await writer.write([delete(ANN)])
    await writer.settle()
    assert world.intents == 2
    assert world.counters.left == 2
    assert world.permits.in_use == 0
    await writer.close()
    memory.faults = PlannedFaults()
    await world.sweep()
    await world.assert_quiet()


@pytest.mark.parametrize("action", ["get", ""], ids=["reads", "all"])
async def test_a_replica_that_refuses_the_credential_is_logged_and_counted(
    memory: MemoryTableService, caplog: pytest.LogCaptureFixture, action: str
) -> None:
    """Nothing mends itself there, and the caller must not be failed: so the operator is told, once."""
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer = world.writer(sleep=sleep_forever)
    said = CredentialRefused("write a row of UsersV2: 403", code="AuthorizationFailure", status=403)

    async def refuse(call: Call) -> None:
        if call.table == "UsersV2" and action in ("", call.action):
            raise said

    freely, memory.gate = memory.gate, refuse
    for age in (2, 3):
        await writer.write([replace(user(ANN.row, Age=age))])
    [record] = [one for one in caplog.records if one.name == "rekey.client.replicas"]
    for word in ("left behind", "tables account", "UsersV2", "every table of the migration"):
        assert word in record.getMessage()
    assert world.counters.refused == 2
    memory.gate = freely
    await world.sweep()
    await world.assert_quiet()


@pytest.mark.parametrize(("table", "which"), [("Users", "tables"), ("rekeyjournal", "restricted")])
async def test_a_refused_credential_names_account(memory: MemoryTableService, table: str, which: str) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])

    async def refuse(call: Call) -> None:
        if call.table == table:
            raise CredentialRefused(f"read a row of {table}: 403", code="AuthenticationFailed", status=403)

    freely, memory.gate = memory.gate, refuse
    with pytest.raises(CredentialRefused, match=f"the {which} account refused .* of {table}") as caught:
        await world.writer(sleep=sleep_forever).write([merge(user(ANN.row, Age=2))])
    assert caught.value.status == 403 and "every table of the migration" in caught.value.hint
    memory.gate = freely
    await world.sweep()
    await world.assert_quiet()


async def test_a_replica_whose_table_is_gone_never_fails_the_caller(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row)])
    await memory.delete_table("UsersV2")
    writer = world.writer()
    await writer.write([replace(user(ANN.row, Age=2))])
    await writer.write([insert(user("bob@example.com"))])
    await writer.close()
    assert world.intents == 2


async def test_a_failed_replica_is_tried_again_in_the_background(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer = world.writer()
    memory.faults = failing("UsersV2", FaultKind.NOT_SENT, times=9)
    await writer.write([replace(user(ANN.row, Age=2))])
    while world.permits.in_use or writer.left:
        await memory.clock.sleep(1.0)
    assert world.counters.replica_failures > 1
    await world.assert_quiet()


async def test_a_write_waits_while_an_intent_of_its_row_is_settled(memory: MemoryTableService) -> None:
    """Settling would take over what the write has just done: then nothing tells whose it was if its answer is
    lost."""
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer = world.writer()
    memory.faults = failing("UsersV2", FaultKind.NOT_SENT, times=2)
    await writer.write([replace(user(ANN.row, Age=2))])
    settles, goes_on = asyncio.Event(), asyncio.Event()

    async def gate(call: Call) -> None:
        if call.table == "UsersV2" and call.writes:
            settles.set()
            await goes_on.wait()

    memory.gate = gate
    while not settles.is_set():
        await memory.clock.sleep(1.0)
    memory.faults = failing("Users", FaultKind.LOST_ANSWER, "delete", times=1)
    writing = asyncio.create_task(writer.write([delete(ANN, etag=world.etag("Users", ANN))]))
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.intents == 1, "the write has begun"
    goes_on.set()
    await writing
    await writer.settle()
    assert not world.rows("UsersV2")


@pytest.mark.parametrize("view", View)
async def test_settling_takes_over_no_write_that_began(memory: MemoryTableService, view: View) -> None:
    """In the new view intents name the old key, and calls the new one."""
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    table = "Users" if view is View.OLD else "UsersV2"
    [(key, row)] = world.rows(table).items()
    writer = world.writer(view)
    memory.faults = failing(world.journal.table.name, FaultKind.NOT_SENT, "delete", times=1)
    await writer.write([replace({**row, "Age": 2})])
    await writer.finisher.wait()
    assert writer.left == 1
    settles, goes_on = asyncio.Event(), asyncio.Event()

    async def gate(call: Call) -> None:
        if call.action == "insert_or_replace" and call.table == world.journal.table.name:
            settles.set()
            await goes_on.wait()
        elif call.action == "get" and call.table == "Users" and not (world.rows("Users") or goes_on.is_set()):
            goes_on.set()
            for _ in range(200):  # what was left is settled before the write looks what came of it
                await asyncio.sleep(0)
        await asyncio.sleep(0)

    memory.gate = gate
    while not settles.is_set():
        await memory.clock.sleep(1.0)
    memory.faults = failing("Users", FaultKind.LOST_ANSWER, "delete", times=1)
    writing = asyncio.create_task(writer.write([delete(key, etag=world.etag(table, key))]))
    for _ in range(1_000):
        await asyncio.sleep(0)
    goes_on.set()
    await writing
    await writer.settle()
    assert not world.rows("UsersV2")


@pytest.mark.parametrize("view", View)
async def test_the_next_write_waits_for_a_takeover(memory: MemoryTableService, view: View) -> None:
    """Whichever key the next call names: in the new view intents name the old one."""
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    [(key, row)] = world.rows("Users" if view is View.OLD else "UsersV2").items()
    writer = world.writer(view)
    await writer.write([replace({**row, "Age": 2})])
    await memory.table("Users").merge({**key_row(ANN), "Age": 3}, etag="*")
    takes_over, goes_on = asyncio.Event(), asyncio.Event()
    deleted_meanwhile: list[bool] = []

    async def gate(call: Call) -> None:
        if call.table == "UsersV2" and call.writes and not takes_over.is_set():
            takes_over.set()
            await goes_on.wait()
        elif call.table == "Users" and call.action == "delete":
            deleted_meanwhile.append(not goes_on.is_set())
        await asyncio.sleep(0)

    memory.gate = gate
    await takes_over.wait()
    deleting = asyncio.create_task(writer.write([delete(key)]))
    for _ in range(1_000):
        await asyncio.sleep(0)
    goes_on.set()
    await deleting
    await writer.settle()
    assert deleted_meanwhile == [False]
    assert not world.rows("UsersV2")


async def test_settling_retries_leftovers_once(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer = world.writer(sleep=sleep_forever)
    memory.faults = failing("UsersV2", FaultKind.NOT_SENT)
    await writer.write([replace(user(ANN.row, Age=2))])
    memory.faults = PlannedFaults()
    await world.assert_quiet()
    assert writer.left == 0


async def test_a_repeated_failure_is_left_to_the_sweeper(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer = world.writer(sleep=sleep_forever)
    memory.faults = failing("UsersV2", FaultKind.NOT_SENT)
    await writer.write([replace(user(ANN.row, Age=2))])
    await writer.settle()
    assert writer.left == world.intents == 1
    world.permits.move(ControlPhase.FREEZE)
    await writer.settle()
    assert (writer.left, world.intents) == (0, 1)
    memory.faults = PlannedFaults()
    await world.sweep()
    await world.assert_quiet()


@pytest.mark.parametrize(
    ("phase", "steps", "tried"),
    [
        (ControlPhase.FREEZE, 1, True),
        (ControlPhase.CUTOVER, 1, False),
        (ControlPhase.FREEZE, 2, False),
        (ControlPhase.SOURCE, 1, False),
    ],
)
async def test_leftovers_are_not_retried_once_another_side_may_decide(
    memory: MemoryTableService, phase: ControlPhase, steps: int, tried: bool
) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer = world.writer(sleep=sleep_forever)
    memory.faults = failing("UsersV2", FaultKind.NOT_SENT)
    await writer.write([replace(user(ANN.row, Age=2))])
    while world.permits.in_use:
        await asyncio.sleep(0)
    memory.faults = PlannedFaults()
    for _ in range(steps):
        world.permits.move(phase)
    await writer.settle()
    assert (memory.dump("UsersV2")[0]["Age"] == 2) is tried
    assert world.intents == (0 if tried else 1)


async def test_an_unknown_outcome_of_a_replica_keeps_the_intent(memory: MemoryTableService) -> None:
    """The insert's answer is lost and the request lands after the row was deleted: the row must not stay."""
    world = await memory_world(USERS, memory).prepare()
    late: list[Row] = []

    async def catch(call: Call) -> None:
        if call.action == "insert" and call.table == "UsersV2" and not late:
            late.append(call.operations[0].row)

    memory.gate = catch
    memory.faults = failing("UsersV2", FaultKind.LOST_REQUEST, "insert", times=1)
    writer = world.writer(sleep=sleep_forever)
    await writer.write([insert(user(ANN.row))])
    await world.writer(client="c2", sleep=sleep_forever).write([delete(ANN)])
    assert world.intents >= 1
    await world.targets[0].insert(late[0])
    await writer.close()
    assert world.intents >= 1
    await world.sweep()
    await world.assert_quiet()
    assert memory.dump("UsersV2") == []


async def test_an_unknown_outcome_beside_a_write_that_was_not_sent_keeps_the_intent(
    memory: MemoryTableService,
) -> None:
    """A row moves: the insert under its new key may land late, and the delete under the old one finds no
    connection. The retry a second later does not take that error for the whole truth."""
    world = await memory_world(POSTS, memory).prepare([post("hello", "2024-01")])
    late, pauses = list[Row](), iter([1.0])

    async def catch(call: Call) -> None:
        if call.action == "insert" and call.table == "PostsV2" and not late:
            late.append(call.operations[0].row)

    async def retries_once(_seconds: float) -> None:
        if next(pauses, None) is None:
            await sleep_forever(0.0)

    memory.gate = catch
    memory.faults = PlannedFaults(
        Planned(Fault(FaultKind.LOST_REQUEST), action="insert", table="PostsV2"),
        Planned(Fault(FaultKind.NOT_SENT), action="delete", table="PostsV2"),
    )
    writer = world.writer(sleep=retries_once)
    await writer.write([replace(post("hello", "2024-02"))])
    for _ in range(200):
        await asyncio.sleep(0)
    assert world.counters.propagated, "it was retried"
    await world.writer(client="c2", sleep=sleep_forever).write([delete(EntityKey("blog", "hello"))])
    assert "c1" in {row["Client"] for row in memory.dump(world.journal.table.name)}
    await world.targets[0].insert(late[0])
    await world.sweep()
    await world.assert_quiet()
    assert memory.dump("PostsV2") == []


# --- the authority ------------------------------------------------------------------------------------------


KINDS = [FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST, FaultKind.TIMED_OUT]
WRITES = {
    "insert": insert(user("bob@example.com")),
    "replace": replace(user(ANN.row, Age=2)),
    "merge": merge({**key_row(ANN), "Age": 2}),
    "upsert": upsert(user(ANN.row, Age=2)),
    "delete": delete(ANN),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", WRITES)
async def test_a_lost_answer_is_settled(memory: MemoryTableService, kind: FaultKind, what: str) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer = world.writer(sleep=sleep_forever)
    memory.faults = PlannedFaults(Planned(Fault(kind), action=_action(what), table="Users", times=1))
    [etag] = await writer.write([WRITES[what]])
    assert etag == (None if what == "delete" else world.etag("Users", WRITES[what].key))
    await writer.settle()
    await world.assert_quiet()


@pytest.mark.parametrize("kind", [FaultKind.LOST_REQUEST, FaultKind.LOST_ANSWER])
@pytest.mark.parametrize("what", ["replace", "merge", "upsert", "delete"])
async def test_without_replicas_lost_reread(memory: MemoryTableService, kind: FaultKind, what: str) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    world.permits.move(ControlPhase.SOURCE)
    memory.faults = PlannedFaults(Planned(Fault(kind), action=_action(what), table="Users", times=1))
    await world.writer().write([WRITES[what]])
    assert [row["Age"] for row in memory.dump("Users")] == ([] if what == "delete" else [2])
    assert world.intents == 0


async def test_without_replicas_an_applied_insert_is_ambiguous(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare()
    world.permits.move(ControlPhase.SOURCE)
    memory.faults = failing("Users", FaultKind.LOST_REQUEST, "insert", times=1)
    await world.writer().write([insert(user(ANN.row))])
    memory.faults = failing("Users", FaultKind.LOST_ANSWER, "insert", times=1)
    with pytest.raises(Ambiguous, match="the outcome is unknown"):
        await world.writer().write([insert(user("bob@example.com"))])


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.TIMED_OUT])
async def test_without_replicas_newer_rows_stay(memory: MemoryTableService, kind: FaultKind) -> None:
    """The row showed the write whose answer was lost, and was changed before it was looked at again: sent
    again, the write would take effect twice, the second time over one that was acknowledged."""
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    world.permits.move(ControlPhase.SOURCE)
    theirs = user(ANN.row, Age=3)

    async def is_written(_seconds: float) -> None:
        await world.source.upsert(theirs)

    writer = world.writer()
    writer.client.sleep = is_written
    for action, operation in (("insert_or_replace", upsert(user(ANN.row, Age=2))), ("delete", delete(ANN))):
        memory.faults = PlannedFaults(Planned(Fault(kind), action=action, table="Users", times=1))
        await writer.write([operation])
        assert [row["Age"] for row in memory.dump("Users")] == [3]


@pytest.mark.parametrize("verb", ["insert_or_replace", "delete"])
async def test_without_replicas_a_racing_write_is_ambiguous(memory: MemoryTableService, verb: str) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    world.permits.move(ControlPhase.SOURCE)
    memory.faults = failing("Users", FaultKind.LOST_REQUEST, verb, times=1)

    async def lands_and_is_written_over(_seconds: float) -> None:
        if verb == "delete":
            await world.source.delete(ANN)
        else:
            await world.source.replace(user(ANN.row, Age=2))
        await world.source.upsert(user(ANN.row, Age=3))

    writer = world.writer()
    writer.client.sleep = lands_and_is_written_over
    with pytest.raises(Ambiguous, match="the outcome is unknown"):
        await writer.write([delete(ANN) if verb == "delete" else upsert(user(ANN.row, Age=2))])
    assert [row["Age"] for row in memory.dump("Users")] == [3]


@pytest.mark.parametrize(
    "error",
    [
        SealedUnreadable("rekeymap", "a row", "it was altered"),
        WritesRefused("lease-over", "the lease is over", hint="repeat the operation"),
        Collision("UsersV2", "one row", "another row"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_after_sending_never_says_nothing_written(
    memory: MemoryTableService, error: RekeyError
) -> None:
    """What fails beside the authority's request says nothing of that request."""
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer = world.writer(sleep=sleep_forever)
    fails = mock.AsyncMock(side_effect=error)
    with mock.patch.object(SourceAuthority, "read_during", fails):
        [etag] = await writer.write([replace(user(ANN.row, Age=2))])
    assert etag == world.etag("Users", ANN)
    await writer.settle()
    await world.assert_quiet()


async def test_an_owner_that_cannot_be_unsealed_fails_no_write_that_is_done(
    memory: MemoryTableService,
) -> None:
    world = await memory_world(USERS, memory).prepare()
    world.permits.move(ControlPhase.CUTOVER)
    await world.targets[0].insert(user("unowned"))
    writer = world.writer(View.NEW, sleep=sleep_forever)
    unreadable = mock.AsyncMock(side_effect=SealedUnreadable("rekeymap", "a row", "it was altered"))
    with mock.patch("rekey.client.replicas._owner_now", unreadable):
        await writer.write([delete(EntityKey("eu", "unowned"))])
    assert memory.dump("UsersV2") == []
    assert unreadable.await_count
    assert world.intents == 1, "somebody else settles it"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["replace", "merge", "delete"])
async def test_lost_conditional_write_settled(memory: MemoryTableService, kind: FaultKind, what: str) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer = world.writer(sleep=sleep_forever)
    memory.faults = PlannedFaults(Planned(Fault(kind), action=what, table="Users", times=1))
    await writer.write([dataclasses.replace(WRITES[what], etag=world.etag("Users", ANN))])
    await writer.settle()
    await world.assert_quiet()
    assert [row["Age"] for row in memory.dump("Users")] == ([] if what == "delete" else [2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["replace", "delete"])
async def test_lost_after_cutover_settled(memory: MemoryTableService, kind: FaultKind, what: str) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    world.permits.move(ControlPhase.CUTOVER)
    [row] = memory.dump("UsersV2")
    operation = replace({**content_of(row), "Age": 2}) if what == "replace" else delete(key_of(row))
    memory.faults = PlannedFaults(Planned(Fault(kind), action=what, table="UsersV2", times=1))
    writer = world.writer(View.NEW)
    await writer.write([dataclasses.replace(operation, etag=world.etag("UsersV2", key_of(row)))])
    await writer.settle()
    await world.assert_quiet()
    assert [row["Age"] for row in memory.dump("Users")] == ([] if what == "delete" else [2])


async def test_a_delayed_request_is_awaited_before_a_resend(memory: MemoryTableService) -> None:
    """Sent again at once, it could be followed by another client's write, which the late one overwrites."""
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    memory.faults = failing("Users", FaultKind.LOST_REQUEST, "replace", times=1)
    waited: list[float] = []

    async def lands_meanwhile(seconds: float) -> None:
        waited.append(seconds)
        await world.source.replace(user(ANN.row, Age=2))

    writer = world.writer()
    writer.client.sleep = lands_meanwhile
    await writer.write([replace(user(ANN.row, Age=2))])
    assert waited == [MAX_IN_FLIGHT_S]
    await writer.settle()
    await world.assert_quiet()


async def test_another_clients_equal_write_is_not_ones_own(memory: MemoryTableService) -> None:
    """Two clients that insert the same row, to find out who is first, must not both be first."""
    world = await memory_world(USERS, memory).prepare()
    first, second = world.writer(client="c1"), world.writer(client="c2")
    memory.faults = failing("Users", FaultKind.LOST_REQUEST, "insert", times=1)
    before(memory, "get", "Users", lambda: second.write([insert(user(ANN.row))]))
    with pytest.raises(Ambiguous, match="the outcome is unknown"):
        await first.write([insert(user(ANN.row))])
    memory.gate = open_gate
    await first.settle()
    await second.settle()
    await world.assert_quiet()


@pytest.mark.parametrize(
    ("phase", "conditional"),
    [(ControlPhase.DUAL_WRITE, False), (ControlPhase.DUAL_WRITE, True), (ControlPhase.SOURCE, True)],
)
async def test_a_deleted_row_that_was_created_again_is_left_alone(
    memory: MemoryTableService, phase: ControlPhase, conditional: bool
) -> None:
    """Before its row is copied nothing tells who created it, so the outcome is unknown: the delete is neither
    done twice nor reported as refused."""
    world = await memory_world(USERS, memory).prepare()
    world.permits.copied = False
    world.permits.move(phase)
    await world.source.insert(user(ANN.row, Age=1))
    first, second = world.writer(client="c1"), world.writer(client="c2")
    memory.faults = failing("Users", FaultKind.LOST_ANSWER, "delete", times=1)

    async def gate(call: Call) -> None:
        if call.action == "get" and call.table == "Users" and not world.rows("Users"):
            memory.gate = open_gate
            await second.write([insert(user(ANN.row, Age=2))])

    memory.gate = gate
    with pytest.raises(Ambiguous, match="the outcome is unknown"):
        await first.write([delete(ANN, etag=world.etag("Users", ANN) if conditional else None)])
    assert memory.gate is open_gate
    assert world.rows("Users")[ANN]["Age"] == 2
    await first.settle()
    await second.settle()
    if phase is ControlPhase.DUAL_WRITE:
        await world.assert_quiet()


@pytest.mark.parametrize("conditional", [False, True])
async def test_a_lost_delete_of_a_row_that_is_not_copied_is_sent_again(
    memory: MemoryTableService, conditional: bool
) -> None:
    world = await memory_world(USERS, memory).prepare()
    world.permits.copied = False
    await world.source.insert(user(ANN.row))
    memory.faults = failing("Users", FaultKind.LOST_REQUEST, "delete", times=1)
    etag = world.etag("Users", ANN) if conditional else None
    await world.writer().write([delete(ANN, etag=etag)])
    assert not world.rows("Users")
    await world.assert_quiet()


@pytest.mark.parametrize(
    ("operation", "error"),
    [(insert(user(ANN.row, Age=1)), RowExists), (replace(user("bob@example.com")), RowMissing)],
    ids=["insert", "replace"],
)
async def test_a_lost_refusal_is_returned_by_the_resend(
    memory: MemoryTableService, operation: Operation, error: type[Exception]
) -> None:
    """The row was there already, with the same content at that, or was not there: that is the answer."""
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    memory.faults = failing("Users", FaultKind.LOST_REQUEST, times=1)
    memory.faults = PlannedFaults(
        Planned(Fault(FaultKind.LOST_REQUEST), action=str(operation.verb), table="Users", times=1)
    )
    with pytest.raises(error):
        await world.writer().write([operation])
    await world.assert_quiet()


async def test_an_outcome_that_cannot_be_reread_is_ambiguous_and_keeps_the_intent(
    memory: MemoryTableService,
) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer = world.writer(sleep=sleep_forever)
    memory.faults = PlannedFaults(
        Planned(Fault(FaultKind.LOST_ANSWER), action="replace", table="Users", times=1),
        Planned(Fault(FaultKind.BUSY), action="get", table="Users", times=1),
    )
    with pytest.raises(Ambiguous, match="the outcome is unknown"):
        await writer.write([replace(user(ANN.row, Age=2))])
    assert world.intents == 1
    await writer.settle()
    await world.assert_quiet()


async def test_a_request_that_never_left_leaves_no_intent(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row)])
    memory.faults = failing("Users", FaultKind.NOT_SENT, "replace")
    with pytest.raises(EndpointDown):
        await world.writer().write([replace(user(ANN.row, Age=2))])
    await world.assert_quiet()


@pytest.mark.parametrize("table", ["rekeyjournal", "rekeymap"])
async def test_without_the_restricted_store_nothing_is_sent(memory: MemoryTableService, table: str) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row)])
    before = world.rows("Users")
    memory.faults = failing(table)
    for operation in (replace(user(ANN.row, Age=2)), insert(user("bob@example.com")), delete(ANN)):
        with pytest.raises(Unavailable, match="nothing was written"):
            await world.writer(sleep=sleep_forever).write([operation])
    memory.faults = PlannedFaults()
    assert world.rows("Users") == before
    await world.sweep()
    await world.assert_quiet()


async def test_nothing_reaches_the_authority_before_the_intent_is_durable(memory: MemoryTableService) -> None:
    world = await memory_world(TAGGED, memory).prepare([user(ANN.row)])

    async def look(call: Call) -> None:
        if call.table in ("Users", "UsersV2", "UsersByMail") and call.writes:
            assert world.intents == 1

    memory.gate = look
    writer = world.writer()
    for operation in (insert(user("b@x.org")), replace(user(ANN.row, Age=1)), delete(ANN)):
        await writer.write([operation])
        await writer.settle()
    await world.assert_quiet()


@pytest.mark.parametrize("at", range(1, 8))
async def test_cancellation_leaves_an_intent_or_nothing(memory: MemoryTableService, at: int) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    calls = 0

    async def cancel(call: Call) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            writing.cancel()
        await asyncio.sleep(0)

    memory.gate = cancel
    writer = world.writer(sleep=sleep_forever)
    writing = asyncio.ensure_future(writer.write([replace(user(ANN.row, Age=2))]))
    with suppress(asyncio.CancelledError):
        await writing
    memory.gate = open_gate
    await writer.settle()
    assert world.intents or world.actual() == world.expected()
    await world.sweep()
    await world.assert_quiet()


@pytest.mark.parametrize("at", range(1, 10))
async def test_a_call_whose_caller_is_canceled_leaves_nothing_open(
    memory: MemoryTableService, at: int
) -> None:
    """Neither an intent nor an unknown outcome: a freeze would wait for both. Before its write is sent it is
    not sent any more, afterwards the call goes on to its end."""
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    calls, sent = 0, False

    async def cancel(call: Call) -> None:
        nonlocal calls, sent
        calls += 1
        sent = sent or (call.table == "Users" and call.writes)
        if calls == at:
            calling.cancel()
            outcome.append(sent)
        await asyncio.sleep(0)

    outcome: list[bool] = []
    memory.gate = cancel
    writer = world.writer(sleep=sleep_forever)
    calling = asyncio.ensure_future(to_its_end(writer.write([replace(user(ANN.row, Age=2))])))
    with suppress(asyncio.CancelledError):
        await calling
    for _ in range(200):
        await asyncio.sleep(0)
    memory.gate = open_gate
    assert (world.intents, writer.left, world.permits.in_use) == (0, 0, 0)
    if outcome:
        assert world.rows("Users")[ANN]["Age"] == (2 if outcome[0] else 1)
    await world.assert_quiet()


async def test_a_call_whose_caller_is_canceled_does_not_overwrite_what_the_caller_wrote_then(
    memory: MemoryTableService,
) -> None:
    """Its write loses a race against the caller's next one, and is not tried again."""
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer, canceled = world.writer(), asyncio.Event()

    async def write_then(call: Call) -> None:
        if call.table == "Users" and call.writes and not canceled.is_set():
            canceled.set()
            calling.cancel()
            await asyncio.create_task(newer(), context=Context())
        await asyncio.sleep(0)

    async def newer() -> None:
        await writer.write([replace(user(ANN.row, Age=3))])

    memory.gate = write_then
    calling = asyncio.ensure_future(to_its_end(writer.write([merge(user(ANN.row, Age=2))])))
    with pytest.raises(asyncio.CancelledError):
        await calling
    for _ in range(200):
        await asyncio.sleep(0)
    memory.gate = open_gate
    await writer.settle()
    assert world.rows("Users")[ANN]["Age"] == 3
    await world.assert_quiet()


@pytest.mark.parametrize(
    ("table", "says"), [("rekeyjournal", "nothing was written"), ("Users", "may have been")]
)
async def test_an_operation_ends_at_its_deadline(memory: MemoryTableService, table: str, says: str) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])

    async def hang(call: Call) -> None:
        if call.table == table:
            await asyncio.Event().wait()

    memory.gate = hang
    writer = world.writer(sleep=sleep_forever, longest=0.05)
    with pytest.raises(ServiceError, match=says):
        await writer.write([replace(user(ANN.row, Age=2))])
    memory.gate = open_gate
    await writer.settle()
    await world.sweep()
    await world.assert_quiet()


async def test_a_replica_that_hangs_is_left_at_the_deadline(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])

    async def hang(call: Call) -> None:
        if call.table == "UsersV2" and call.writes:
            await asyncio.Event().wait()

    memory.gate = hang
    writer = world.writer(sleep=sleep_forever, longest=0.5)
    [etag] = await writer.write([replace(user(ANN.row, Age=2))])
    assert etag == world.etag("Users", ANN)
    memory.gate = open_gate
    await writer.settle()
    await world.assert_quiet()


async def test_work_behind_the_answer_holds_the_permit(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row, Age=1)])
    writer = world.writer()
    await writer.write([replace(user(ANN.row, Age=2))])
    assert world.permits.in_use == 1
    assert world.intents == 1
    await world.assert_quiet()


# --- the sweeper --------------------------------------------------------------------------------------------


async def test_an_intent_touched_while_it_is_swept_stays(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row)])
    [intent] = await world.journal.begin("c1", 1, "source", [ANN])

    before(memory, "delete", "", lambda: world.journal.touch(intent, 1))
    swept = await world.sweep()
    assert (swept.settled, swept.left, swept.failed) == (0, 1, 0)
    assert (await world.sweep()).settled == 1


async def test_young_intents_are_left_and_their_age_returned(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare([user(ANN.row)])
    await world.journal.begin("c1", 1, "source", [ANN])
    at = memory.clock.ticks()
    swept = await world.sweeper.sweep("source", Company(at - 1), concurrency=4, check=lambda: None)
    assert (swept.settled, swept.left, swept.oldest_at) == (0, 1, at)
    swept = await world.sweeper.sweep("source", Company(at), concurrency=4, check=lambda: None)
    assert (swept.settled, swept.left, swept.oldest_at) == (1, 0, None)


async def test_a_key_that_cannot_be_settled_does_not_block_others(memory: MemoryTableService) -> None:
    broken = post("broken")
    del broken["Month"]
    world = await memory_world(POSTS, memory).prepare([post("hello")])
    await world.source.insert(broken)
    await world.source.delete(EntityKey("blog", "hello"))
    for key in (key_of(broken), EntityKey("blog", "hello")):
        await world.journal.begin("c1", 1, "source", [key])
    swept = await world.sweep()
    assert (swept.settled, swept.left, swept.failed) == (1, 1, 1)
    assert memory.dump("PostsV2") == []


async def test_the_journal_separates_clients_and_can_be_cleared(memory: MemoryTableService) -> None:
    world = await memory_world(USERS, memory).prepare()
    keys = [EntityKey("eu", f"{number}@x.org") for number in range(5)]
    await world.journal.begin("c1", 3, "source", keys)
    await world.journal.begin("c10", 4, "target", keys[:1])
    *mine, other = [intent async for page in world.journal.scan() for intent in page]
    assert [intent.key for intent in mine] == keys
    assert {(intent.client_id, intent.epoch, intent.side) for intent in mine} == {("c1", 3, "source")}
    assert (other.client_id, other.side) == ("c10", "target")
    await world.journal.end([mine[0]])
    await world.journal.end(mine)
    assert world.intents == 1
    await world.journal.begin("c1", 3, "source", keys)
    await world.journal.clear()
    assert world.intents == 0


def _action(what: str) -> str:
    return {"upsert": "insert_or_replace"}.get(what, what)


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST, FaultKind.TIMED_OUT])
@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
@pytest.mark.parametrize("verb", [insert, upsert, replace, merge])
async def test_a_lost_answer_to_an_undocumented_value_is_never_misreported(
    memory: MemoryTableService, verb: Callable[[Row], Operation], phase: ControlPhase, kind: FaultKind
) -> None:
    """The row that the service stored does not look like what was sent: it proves nothing."""
    creates = verb is insert
    world = await memory_world(USERS, memory).prepare([user("bob@example.com"), user(ANN.row)][: 2 - creates])
    world.permits.move(phase)
    view, table = (View.OLD, "Users") if phase is ControlPhase.DUAL_WRITE else (View.NEW, "UsersV2")
    row = user(ANN.row, Age=3_000_000_000)
    if view is View.NEW:
        row = content_of(world.mapper.map(row)[0].row)
    planned = Planned(Fault(kind), action=str(verb(row).verb), table=table)
    memory.faults = PlannedFaults(planned)
    is_told = True
    try:
        await world.writer(view).write([verb(row)])
    except Ambiguous:
        is_told = False
    assert planned.seen, "the fault happened"
    memory.faults = PlannedFaults()
    await world.close()
    await world.sweep("source" if view is View.OLD else "target")
    world.assert_in_step()
    ages = [one.get("Age") for one in memory.dump(table) if key_of(one) == key_of(row)]
    assert len(ages) <= 1
    if is_told:
        assert ages == [3e9]
    elif kind is not FaultKind.LOST_REQUEST:
        assert ages == [3e9], "it was applied"
