"""Rows that no kind takes and that the script drops: in both views, through whole lives, and back again."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rekey import Migration, keys
from rekey.errors import Ambiguous, RowExists, RowMissing, RowRefused, Unavailable, WritesRefused
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View, authority
from rekey.runner.commands import Mode
from rekey.tables.base import Operation, Verb
from tests.asserts.command_line import CommandsOn
from tests.fakes.faults import Call, Fault, FaultKind, NoFaults, Planned, PlannedFaults
from tests.fakes.memory import MemoryTableService
from tests.worlds.company import Client, Company
from tests.worlds.dropping import ID, SCRIPT, STOCK, assert_right, numbers
from tests.worlds.dual_write import delete, insert, memory_world, merge, replace, upsert
from tests.worlds.evidence import prove
from tests.worlds.projects import project_of
from tests.worlds.scripts import under_writes
from tests.worlds.small import DROPPING, DROPPING_BY_KEY, contents, ticket

WITHOUT_INDEX = dataclasses.replace(
    DROPPING,
    target=None,
    indexes=(),
    kinds=[dataclasses.replace(kind, indexes=()) for kind in DROPPING.kinds],
)
"""No target key can be another row's, so that writes are sent as the caller gave them."""


# --- one write ---------------------------------------------------------------------------------------------


async def test_a_row_leaves_its_kind_and_gets_one_again(memory: MemoryTableService) -> None:
    world = await memory_world(DROPPING, memory).prepare([ticket("1"), ticket("2", "draft")])
    old = world.writer(View.OLD)
    await old.write([merge({"PartitionKey": "eu", "RowKey": "1", "Status": "draft"})])
    await old.write([replace(ticket("2", "closed"))])
    await world.assert_quiet()
    assert [row["RowKey"] for row in memory.dump("TicketsV2")] == ["closed:2"]
    assert memory.dump("TicketsByOwner") == []
    await old.write([replace(ticket("1", "open"))])
    await old.write([delete(key_of(ticket("2")))])
    await world.assert_quiet()
    assert [row["RowKey"] for row in memory.dump("TicketsV2")] == ["open:1"]


async def test_after_cutover_the_old_view_writes_such_a_row_in_the_source_alone(
    memory: MemoryTableService,
) -> None:
    world = await memory_world(DROPPING, memory).prepare([ticket("1", "draft"), ticket("2", "draft")])
    world.permits.move(ControlPhase.CUTOVER)
    old = world.writer(View.OLD)
    [etag] = await old.write([merge({"PartitionKey": "eu", "RowKey": "1", "Owner": "bob"})])
    await old.write([replace(ticket("1", "draft", Version=2), etag)])
    await old.write([replace(ticket("1", "draft", Version=3)), delete(key_of(ticket("2")))])
    await world.assert_quiet()
    assert world.rows("Tickets") == contents([ticket("1", "draft", Version=3)])
    assert memory.dump("TicketsV2") == []
    with pytest.raises(RowMissing):
        await old.write([delete(key_of(ticket("2")))])
    await old.write([insert(ticket("2"))])
    await world.assert_quiet()
    assert [row["RowKey"] for row in memory.dump("TicketsV2")] == ["open:2"]


@pytest.mark.parametrize(
    ("view", "operations", "code"),
    [
        (View.OLD, [replace(ticket("1", "open"))], "no-kind"),
        (View.OLD, [replace(ticket("2", "draft"))], "no-kind"),
        (View.OLD, [insert(ticket("3", "draft"))], "no-kind"),
        (View.OLD, [replace(ticket("1", "draft")), replace(ticket("2"))], "no-kind"),
        (View.OLD, [replace({**ticket("1", "draft"), "Due": object()})], "no-kind"),
        (View.NEW, [insert({**ticket("open:1"), "Number": "1"})], "key-taken"),
        (View.NEW, [replace({**ticket("open:2", "draft"), "Number": "2"})], "not-reversible"),
    ],
    ids=[
        "a row of no kind becomes one of a kind",
        "a row of a kind becomes one of none",
        "a new row of no kind",
        "a call that writes both",
        "a value whose stored form is not known",
        "a new row with its old key",
        "a row that no kind would take in the source",
    ],
)
async def test_what_would_lose_a_row_after_cutover_is_refused(
    memory: MemoryTableService, view: View, operations: list[Operation], code: str
) -> None:
    world = await memory_world(DROPPING, memory).prepare([ticket("1"), ticket("2")])
    await world.writer(View.OLD).write([replace(ticket("1", "draft"))])  # its forward row lists keys
    await world.close()
    world.permits.move(ControlPhase.CUTOVER)
    before = world.rows("Tickets"), world.rows("TicketsV2")
    with pytest.raises(RowRefused) as refused:
        await world.writer(view).write(operations)
    assert (refused.value.code, bool(refused.value.cure)) == (code, True)
    await world.assert_quiet()
    assert (world.rows("Tickets"), world.rows("TicketsV2")) == before


@pytest.mark.parametrize("phase", [ControlPhase.CUTOVER, ControlPhase.COMPLETE])
async def test_the_cure_for_a_key_that_a_dropped_row_has_can_be_carried_out(
    memory: MemoryTableService, phase: ControlPhase
) -> None:
    """After `complete` the old view is over; clients of the new view go on as before until the handover."""
    world = await memory_world(DROPPING, memory).prepare([ticket("1", "draft")])
    world.permits.move(phase, maintained=phase is ControlPhase.COMPLETE)
    new, row = world.writer(View.NEW), {**ticket("open:1"), "Number": "1"}
    with pytest.raises(RowRefused) as refused:
        await new.write([insert(row)])
    assert refused.value.code == "key-taken"
    if phase is ControlPhase.CUTOVER:
        assert "in the old view" in refused.value.cure
        await world.writer(View.OLD).write([delete(key_of(ticket("1")))])
    else:
        assert "after `complete`, with the SDK's own client" in refused.value.cure
        with pytest.raises(WritesRefused):
            await world.writer(View.OLD).write([delete(key_of(ticket("1")))])
        await world.source.delete(key_of(ticket("1")))
    await new.write([insert(row)])
    await world.assert_quiet()
    assert world.rows("Tickets") == contents([ticket("1")])


async def test_settling_an_intent_after_cutover_leaves_the_row(memory: MemoryTableService) -> None:
    world = await memory_world(DROPPING, memory).prepare([ticket("1")])
    await world.writer(View.OLD).write([replace(ticket("1", "draft"))])
    await world.close()
    world.permits.move(ControlPhase.CUTOVER)
    await world.journal.begin("dead", 1, "source", [key_of(ticket("1"))])
    await world.sweep("target")
    assert world.rows("Tickets") == contents([ticket("1", "draft")])


@pytest.mark.parametrize("status", ["draft", "open"])
async def test_a_write_without_an_answer_is_not_repeated_over_a_newer_one(
    memory: MemoryTableService, status: str
) -> None:
    """The newer one was made on the condition of the lost one, which so was done. No replica shows that."""
    world = await memory_world(WITHOUT_INDEX, memory).prepare([ticket("1", "draft")])
    other, newest = world.writer(View.OLD, client="other"), ticket("1", "draft", Version=3)
    lost = Fault(FaultKind.LOST_ANSWER)
    memory.faults = PlannedFaults(Planned(lost, action="replace", table="Tickets", times=1))
    replaced = 0

    async def replace_after_replace(call: Call) -> None:
        nonlocal replaced
        replaced += call.action == "replace" and call.table == "Tickets"
        if replaced == 1 and call.action == "get" and call.table == "Tickets":
            replaced += 1
            await other.write([replace(newest, world.etag("Tickets", key_of(newest)))])
            await other.settle()

    memory.gate = replace_after_replace
    with suppress(Ambiguous):
        await world.writer(View.OLD).write([replace(ticket("1", status, Version=2))])
    await world.close()
    await world.sweep()
    assert world.rows("Tickets") == contents([newest])
    assert memory.dump("TicketsV2") == []


@pytest.mark.parametrize("verb", [insert, upsert], ids=["insert", "upsert"])
async def test_no_row_is_created_while_the_source_row_cannot_be_read(
    memory: MemoryTableService, verb: Callable[[Row], Operation]
) -> None:
    """A row that no kind takes may be there: the new row would be acknowledged, and never follow."""
    world = await memory_world(DROPPING, memory).prepare([ticket("1", "draft")])
    world.permits.move(ControlPhase.CUTOVER)
    memory.faults = PlannedFaults(Planned(Fault(FaultKind.BUSY), action="get", table="Tickets", times=9))
    with pytest.raises(Unavailable) as refused:
        await world.writer(View.NEW).write([verb({**ticket("open:1"), "Number": "1"})])
    assert refused.value.status == 503
    memory.faults = NoFaults()
    await world.assert_quiet()
    assert memory.dump("TicketsV2") == []
    assert world.rows("Tickets") == contents([ticket("1", "draft")])


CHANGED = ticket("1", "draft", Version=2)
ANSWERS: dict[str, tuple[str, Callable[[str], Operation], FaultKind, bool]] = {
    "a replace, applied": ("replace", lambda _etag: replace(CHANGED), FaultKind.LOST_ANSWER, True),
    "a replace, not applied": ("replace", lambda _etag: replace(CHANGED), FaultKind.LOST_REQUEST, True),
    "a merge, applied": ("merge", lambda _etag: merge(CHANGED), FaultKind.LOST_ANSWER, True),
    "a delete, applied": ("delete", lambda _etag: delete(key_of(CHANGED)), FaultKind.LOST_ANSWER, True),
    "a delete, not applied": ("delete", lambda _etag: delete(key_of(CHANGED)), FaultKind.LOST_REQUEST, True),
    "a conditional replace, applied": (
        "replace",
        lambda etag: replace(CHANGED, etag),
        FaultKind.LOST_ANSWER,
        False,
    ),
    "a conditional replace, not applied": (
        "replace",
        lambda etag: replace(CHANGED, etag),
        FaultKind.LOST_REQUEST,
        True,
    ),
    "a conditional delete, applied": (
        "delete",
        lambda etag: delete(key_of(CHANGED), etag),
        FaultKind.LOST_ANSWER,
        False,
    ),
}


@pytest.mark.parametrize(("action", "write", "fault", "is_settled"), ANSWERS.values(), ids=ANSWERS)
async def test_a_write_without_an_answer_after_cutover_is_settled_or_ambiguous(
    memory: MemoryTableService,
    action: str,
    write: Callable[[str], Operation],
    fault: FaultKind,
    is_settled: bool,
) -> None:
    world = await memory_world(DROPPING, memory).prepare([ticket("1", "draft")])
    world.permits.move(ControlPhase.CUTOVER)
    operation = write(world.etag("Tickets", key_of(CHANGED)))
    memory.faults = PlannedFaults(Planned(Fault(fault), action=action, table="Tickets", times=1))
    writing = world.writer(View.OLD).write([operation])
    if is_settled:
        [etag] = await writing
        assert etag == (None if action == "delete" else world.etag("Tickets", key_of(CHANGED)))
    else:
        with pytest.raises(Ambiguous):
            await writing
    assert world.rows("Tickets") == contents([] if action == "delete" else [CHANGED])
    await world.assert_quiet()


BEFORE, AFTER = ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER
LATER: dict[str, tuple[Migration, ControlPhase, Row, bool]] = {
    "of no kind, before cutover": (DROPPING, BEFORE, ticket("1", "draft", Version=2), False),
    "of no kind by its key, before cutover": (
        DROPPING_BY_KEY,
        BEFORE,
        ticket("1", "draft", Version=2),
        False,
    ),
    "of a kind, after cutover": (DROPPING, AFTER, ticket("1", Version=2), False),
    "of a kind, after cutover, and a condition": (DROPPING, AFTER, ticket("1", Version=2), True),
}


@pytest.mark.parametrize(("migration", "phase", "later", "conditional"), LATER.values(), ids=LATER)
async def test_a_delete_without_an_answer_takes_no_row_that_another_client_created_behind_it(
    memory: MemoryTableService, migration: Migration, phase: ControlPhase, later: Row, conditional: bool
) -> None:
    """The deleted row had no replica, so nothing shows whose delete came first: it is not sent again."""
    world = await memory_world(migration, memory).prepare([ticket("1", "draft")])
    world.permits.move(phase)
    other = world.writer(View.OLD, client="other")
    etag = world.etag("Tickets", key_of(later)) if conditional else None
    lost = Fault(FaultKind.LOST_ANSWER)
    memory.faults = PlannedFaults(Planned(lost, action="delete", table="Tickets", times=1))
    deleted = 0

    async def insert_after_delete(call: Call) -> None:
        nonlocal deleted
        deleted += call.action == "delete" and call.table == "Tickets"
        if deleted == 1 and call.action == "get" and call.table == "Tickets":
            deleted += 1
            await other.write([insert(later)])
            await other.settle()

    memory.gate = insert_after_delete
    with pytest.raises(Ambiguous):
        await world.writer(View.OLD).write([delete(key_of(later), etag)])
    await world.close()
    await world.sweep(authority(phase) or "source")
    assert world.rows("Tickets") == contents([later])
    assert len(memory.dump("TicketsV2")) == (later["Status"] == "open")


async def test_the_new_key_of_a_deleted_row_does_not_say_that_no_kind_takes_it(
    memory: MemoryTableService,
) -> None:
    """Its replicas show that a delete without an answer was done."""
    [filed] = DROPPING_BY_KEY.kinds
    target = dataclasses.replace(filed.target, row_key=keys.literal("x:") + keys.prop("RowKey"))
    migration = dataclasses.replace(
        DROPPING_BY_KEY, target=None, indexes=(), kinds=[dataclasses.replace(filed, target=target)]
    )
    world = await memory_world(migration, memory).prepare([ticket("F1")])
    new_key = EntityKey("eu", "x:F1")
    lost = Fault(FaultKind.LOST_ANSWER)
    memory.faults = PlannedFaults(Planned(lost, action="delete", table="Tickets", times=1))
    await world.writer(View.NEW).write([delete(new_key, world.etag("TicketsV2", new_key))])
    await world.assert_quiet()
    assert memory.dump("Tickets") == memory.dump("TicketsV2") == []


# --- whole lives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["draft", "closed"])
def test_a_row_that_changed_its_kind_after_a_rollback_leaves_nothing_in_kept_targets(
    commands_on: CommandsOn, tmp_path: Path, status: str
) -> None:
    """Also where no kind takes it any more, so that the next copy writes nothing for it."""
    project = project_of(tmp_path, under_writes(SCRIPT), STOCK, name=f"{ID}.py")
    rekey = commands_on(project)
    rekey("apply")
    rekey("rollback", "--to", "source", "--keep-targets")
    asyncio.run(project.tables.table("Tickets").upsert(ticket("0", status)))
    project.clock.advance(3600)  # the next copy counts it as no change during the copy
    rekey("apply")
    assert_right(project)


def test_the_life_in_capture_delta(commands_on: CommandsOn, tmp_path: Path) -> None:
    project = project_of(tmp_path, SCRIPT, STOCK, name=f"{ID}.py")
    rekey = commands_on(project)

    def write(table: str, row: Row) -> None:
        asyncio.run(project.tables.table(table).upsert(row))

    planned = rekey("plan", "--json", "--exact")
    [script] = planned.json["migrations"]
    left = script["not_migrated"]
    assert (left["rows"], left["reason"], len(left["row_ids"])) == (10, "drafts that nobody filed", 10)
    assert [problem["code"] for problem in script["problems"]].count("rows-not-migrated") == 1
    assert "of no kind: 10 rows, not migrated: drafts that nobody filed" in rekey("plan", "--exact").out
    rekey("apply")
    assert_right(project)
    write("Tickets", ticket("0", "draft"))  # a delta pass finds that no kind takes it any more
    write("Tickets", ticket("2", "open"))
    rekey("apply")
    assert_right(project)
    assert "10 of them of no kind" in rekey("verify", "--mode", "full").out
    assert rekey("verify", "--mode", "count", "--json").json["not_migrated_rows"] == 10
    rekey("verify", "--mode", "sample")
    rekey("apply", "--to", "cutover", "--writers-stopped")
    write("TicketsV2", {**ticket("open:99"), "Number": "99"})
    drafts = {number for number, status in numbers(project).items() if status == "draft"}
    rekey("rollback", "--writers-stopped")
    assert_right(project)
    assert numbers(project)["99"] == "open"
    assert {number for number, status in numbers(project).items() if status == "draft"} == drafts
    write("Tickets", ticket("99", "draft"))
    rekey("apply", "--to", "cutover", "--writers-stopped")
    rekey("apply", "--to", "complete", "--writers-stopped", "--yes", ID)
    assert_right(project)
    assert numbers(project)["99"] == "draft"
    project.clock.advance(60)
    with project.session() as session:
        prove(session.config, session.scripts[ID], session.state)
    new = project.rows("TicketsV2")
    assert (
        "11 rows of Tickets that no kind takes go with it"
        in rekey("retire", "--table", "Tickets", "--no-backup", "a test").err
    )
    assert project.rows("TicketsV2") == new
    assert not asyncio.run(project.tables.table_exists("Tickets"))


def test_a_row_of_the_new_table_with_the_old_key_of_such_a_row_keeps_rollback_closed(
    commands_on: CommandsOn, tmp_path: Path
) -> None:
    project = project_of(tmp_path, SCRIPT, STOCK, name=f"{ID}.py")
    rekey = commands_on(project)
    rekey("apply", "--to", "cutover", "--writers-stopped")
    asyncio.run(project.tables.table("TicketsV2").upsert({**ticket("open:2"), "Number": "2"}))
    assert "that no kind takes" in rekey("rollback", "--writers-stopped", code=3).err
    assert numbers(project)["2"] == "draft"


Told = dict[str, Row | None]
"""What a client was told of rows of its own, by number; None: there is none."""


async def traffic(company: Company, client: Client, seed: int, told: Told | None = None) -> None:
    """Write at random through a client of either view until told to stop, to rows that several clients write
    or, with `told`, to the client's own in the old view; what is refused changes nothing."""
    draw = random.Random(seed)
    numbers = [str(number) for number in range(8)] if told is None else sorted(told)
    while not company.stopping:
        number, status = draw.choice(numbers), draw.choice(("open", "closed", "draft"))
        row = ticket(number, status, Version=draw.randrange(100))
        if client.view is View.NEW:
            row = {**row, "RowKey": f"{status}:{number}", "Number": number}
        verb = draw.choice([Verb.INSERT_OR_REPLACE, Verb.REPLACE, Verb.MERGE, Verb.DELETE, Verb.INSERT])
        with suppress(RowRefused, RowExists, RowMissing, WritesRefused, Unavailable):  # nothing was written
            await client.write(Operation(verb, row))
            if told is not None:
                told[number] = None if verb is Verb.DELETE else row
        await company.project.clock.sleep(draw.random())


def test_the_life_in_capture_dual_write_under_writes_in_both_views(tmp_path: Path) -> None:
    """What one client alone writes is afterwards as it was told; no row that no kind takes is lost."""
    script = SCRIPT.replace('"delta"', '"dual-write"')
    project = project_of(tmp_path, script, STOCK[:12], name=f"{ID}.py")
    told: list[Told] = [{f"{letter}{number}": None for number in range(6)} for letter in "ab"]

    def everybody_writes(company: Company, seed: int) -> None:
        for number, client in enumerate(company.clients):
            company.writes(traffic(company, client, seed + number))
        for number, own in enumerate(told):
            company.writes(traffic(company, company.clients[number], seed + 50 + number, own))

    def all_is_as_it_was_told(company: Company) -> None:
        company.settle()
        assert_right(project)
        source = contents(project.rows("Tickets"))
        for number, row in ((number, row) for own in told for number, row in own.items()):
            assert source.get(EntityKey("eu", number)) == row, number
        assert [source[key_of(row)] for row in (STOCK[8], STOCK[11])] == [STOCK[8], STOCK[11]]

    with Company(project, ID) as company:
        company.client(View.OLD)
        company.client(View.OLD)
        everybody_writes(company, 0)
        company.apply()
        all_is_as_it_was_told(company)
        company.client(View.NEW)
        everybody_writes(company, 10)
        company.live(10)
        company.apply(Phase.CUTOVER)
        company.live(10)
        company.rollback()
        company.live(10)
        assert not company.verify(Mode.FULL).findings
        company.apply(Phase.CUTOVER)
        company.live(10)
        all_is_as_it_was_told(company)
        assert not company.verify(Mode.FULL).findings
        company.live(60)  # the row of a client stays for as long as an outcome of its writes is unknown
        for client in company.clients[:2]:
            company.do(client.close())
            client.dead = True
        company.apply(Phase.COMPLETE)
        company.hand_over()
        new = [contents(project.rows(name)) for name in ("TicketsV2", "ByOwner")]
        company.live(60)
        company.retire()
        assert [contents(project.rows(name)) for name in ("TicketsV2", "ByOwner")] == new
        assert not company.do(project.tables.table_exists("Tickets"))
