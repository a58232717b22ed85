"""Secondary rows: next to their main rows, in one transaction, whoever writes; no reader sees half a pair.

Soak: 50,000 rows; 10 of 12 seeds.
Reason, and what `make test` covers: 2,000 rows; two seeds in each phase.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rekey import Index, keys, props
from rekey.copy.pipeline import copy_segments
from rekey.copy.scan import WindowSize
from rekey.copy.sweep import settle_moved
from rekey.declaration.scripts import load_script
from rekey.errors import Collision, RekeyError, RequestRejected, WritesRefused
from rekey.mapping.rows import MAPPING_TABLE, TargetKey
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase
from rekey.project.config import Limits
from rekey.protocol.reverse import ReversePropagator
from rekey.protocol.rules import View
from rekey.state.models import Segment
from rekey.tables.base import Operation, Verb
from rekey.verify.count import count
from rekey.verify.full import full
from tests.asserts.documents import ROOT
from tests.asserts.every import every
from tests.fakes.faults import Call, FaultKind, NoFaults, SeededFaults
from tests.fakes.interference import before, noted
from tests.fakes.memory import MemoryTableService
from tests.soaking import others_in_soak
from tests.worlds.dual_write import DualWorld, delete, insert, merge, replace, upsert
from tests.worlds.example_rows import registrations
from tests.worlds.small import RACES, World, go_on, halves, nothing, racer, swept
from tests.worlds.verification import context, filled, sampled

WHOLE = Segment(id=1, script_id="0001_users", purpose="backfill")
JOHN = EntityKey("nyc", "01234")


def watch(world: World) -> tuple[list[EntityKey], list[Call]]:
    """Look at the shared table before every call takes effect; return the halves that were seen, and the
    writes to it, as they come."""
    seen: list[EntityKey] = []
    writes: list[Call] = []
    service = world.service

    async def look(call: Call) -> None:
        await asyncio.sleep(0)
        seen.extend(halves(world.mapper, service.dump("RacesByKey")))
        if call.writes and call.table == "RacesByKey":
            writes.append(call)

    service.gate = look
    return seen, writes


async def backfill(world: World, size: WindowSize | None = None) -> None:
    async with world.copier.writer() as writer:
        await copy_segments(world.source, [WHOLE], writer.copy, size or world.window, writer=writer)


def racers(count: int) -> list[Row]:
    return [racer(f"{number:05}", 20 + number % 60, race=f"race{number % 3}") for number in range(count)]


# --- the copy -----------------------------------------------------------------------------------------------


async def test_a_backfill_writes_pairs_in_full_batches(memory: MemoryTableService) -> None:
    world = await World(memory, RACES).prepare(racers(1_000))
    seen, writes = watch(world)
    await backfill(world)
    world.assert_in_step()
    assert seen == []
    # 2,000 rows: 334, 333 and 333 pairs in three partitions
    assert [len(call.operations) for call in writes].count(100) == 18
    assert len(writes) == 21


@pytest.mark.soak
async def test_the_backfill_of_pairs_fills_its_transactions(memory: MemoryTableService) -> None:
    migration = load_script(ROOT / "migrations/0004_race_registrations.py").migration
    world = await World(memory, migration).prepare(registrations(50_000))
    sizes = Counter[int]()

    async def note(call: Call) -> None:
        await asyncio.sleep(0)
        if call.writes and call.table == "RegistrationsByKey":
            sizes[len(call.operations)] += 1

    memory.gate = note
    size = WindowSize(rows=Limits().window_rows, bytes=Limits().window_bytes)
    await backfill(world, size)
    world.assert_in_step()
    rows = Counter(row["PartitionKey"] for row in memory.dump("RegistrationsByKey"))
    assert rows.total() == 100_000
    needed = sum(-(-count // 100) for count in rows.values())
    # The table is read at several places at a time: what one leaves over may not wait for long for another.
    assert needed <= sizes.total() <= needed + len(rows)
    assert every(-(-size // 2) * 2 == size for size in sizes), "pairs are never taken apart"


async def test_propagate_decides_where_half_a_pair_exists(memory: MemoryTableService) -> None:
    """A copy from an older scan: the main row stands there with its secondary row under a newer key."""
    world = await World(memory, RACES).prepare([racer("01234", 55), racer("02000", 30)])
    old = memory.dump("Races")
    await world.source.replace(racer("01234", 56))
    await world.propagator.propagate(JOHN)
    seen, _ = watch(world)
    await world.copier.copy(old)
    assert seen == []
    world.assert_in_step()


async def test_two_rows_that_want_one_secondary_key_are_given_back_whole(memory: MemoryTableService) -> None:
    world = await World(memory, RACES).prepare()
    async with world.copier.writer() as writer:
        first = asyncio.create_task(writer.copy([racer("01234", 55)]))
        await asyncio.sleep(0.01)
        await world.source.insert(racer("01234", 55, "Jack"))
        second = asyncio.create_task(writer.copy([racer("01234", 55, "Jack")]))
        await asyncio.sleep(0.01)
        seen, _ = watch(world)
        writer.drain()
        await asyncio.gather(first, second)
    assert seen == []
    world.assert_in_step()


# --- propagate ----------------------------------------------------------------------------------------------


async def test_every_change_of_a_pair_is_one_transaction(memory: MemoryTableService) -> None:
    world = await World(memory, RACES).prepare([racer("01234", 55)])
    await world.propagator.propagate(JOHN)
    seen, writes = watch(world)
    for change in [
        lambda: world.source.replace(racer("01234", 55, Time=3)),  # both rows change
        lambda: world.source.replace(racer("01234", 56, Time=3)),  # the secondary row moves
        lambda: world.source.replace(racer("01234", 56, "Jack")),  # the main row moves
        lambda: world.source.delete(JOHN),
    ]:
        await change()  # type: ignore[no-untyped-call]
        await world.propagator.propagate(JOHN)
        world.assert_in_step()
    assert seen == []
    assert [call.action for call in writes] == ["transact"] * 4


async def test_a_secondary_row_is_mended_on_the_condition_of_its_main_row(memory: MemoryTableService) -> None:
    world = await World(memory, RACES).prepare([racer("01234", 55)])
    await world.propagator.propagate(JOHN)
    await world.propagator.targets[1].delete(EntityKey("nyc", "AGE:055__01234"))
    _, writes = watch(world)
    await world.propagator.propagate(JOHN)
    world.assert_in_step()
    [call] = writes
    assert [(one.verb, one.key.row[:4], bool(one.etag)) for one in call.operations] == [
        ("replace", "BIB:", True),
        ("insert", "AGE:", False),
    ]


async def test_a_pair_that_is_deleted_while_it_is_mended_leaves_no_half(memory: MemoryTableService) -> None:
    """The secondary row would be inserted alone: it was absent when it was looked for, and is again."""
    world = await DualWorld(memory, RACES).prepare([racer("01234", 55)])
    world.permits.move(ControlPhase.CUTOVER)
    reverse = ReversePropagator(world.propagator)
    await world.propagator.targets[1].delete(EntityKey("nyc", "AGE:055__01234"))
    main_row = delete(EntityKey("nyc", "BIB:01234__John"))
    deletion = before(memory, "", "RacesByKey", lambda: world.writer(View.NEW).write([main_row]))
    await reverse.propagate(JOHN)
    assert deletion.happened
    await world.assert_quiet()
    assert memory.dump("RacesByKey") == []


async def test_a_pair_inserted_during_the_read_is_no_leftover(memory: MemoryTableService) -> None:
    """The main row was not there when it was read, its secondary row was: deleted alone, it leaves half."""
    world = await World(memory, RACES).prepare([racer("01234", 55)])
    await world.propagator.propagate(JOHN)
    pair = [content_of(row) for row in memory.dump("RacesByKey")]
    await world.source.delete(JOHN)
    await world.propagator.propagate(JOHN)
    seen, reads = list[EntityKey](), 0

    async def come_between_the_reads(call: Call) -> None:
        nonlocal reads
        seen.extend(halves(world.mapper, memory.dump("RacesByKey")))
        if call.action == "get" and call.table == "RacesByKey":
            reads += 1
            if reads == 2:  # a late copy, sent before the row was deleted
                await memory.table("RacesByKey").transact([Operation(Verb.INSERT, row) for row in pair])

    memory.gate = come_between_the_reads
    await world.propagator.propagate(JOHN)
    assert reads > 2
    assert seen == memory.dump("RacesByKey") == []


# --- secondary keys that pass from one row to another -------------------------------------------------------

LANES = dataclasses.replace(
    RACES,
    indexes=[
        Index(
            "RacesByKey",
            partition_key=keys.prop("PartitionKey"),
            row_key=keys.literal("LANE:") + keys.prop("Lane"),
            properties=[props.keep_all()],
        )
    ],
)
"""The secondary row does not name its main row: another row may have its key later."""


async def test_a_secondary_key_passes_on_with_both_pairs_whole(memory: MemoryTableService) -> None:
    """The former owner's pair still stands as it was when the new owner is propagated."""
    world = await World(memory, LANES).prepare([racer("1", Lane="a"), racer("2", Lane="b")])
    await world.copier.copy(memory.dump("Races"))
    world.assert_in_step()
    seen, _ = watch(world)
    await world.source.replace(racer("1", Lane="c"))
    await world.source.replace(racer("2", Lane="a"))
    await world.propagator.propagate(EntityKey("nyc", "2"))
    assert seen == []
    world.assert_in_step()


async def test_two_rows_that_exchange_their_secondary_keys_get_there(memory: MemoryTableService) -> None:
    """No order of two transactions keeps both pairs whole; it does not go on for ever."""
    world = await World(memory, LANES).prepare([racer("1", Lane="a"), racer("2", Lane="b")])
    await world.copier.copy(memory.dump("Races"))
    await world.source.replace(racer("1", Lane="b"))
    await world.source.replace(racer("2", Lane="a"))
    for bib in "121":
        await world.propagator.propagate(EntityKey("nyc", bib))
    world.assert_in_step()


@pytest.mark.parametrize("verb", [insert, upsert], ids=lambda verb: verb.__name__)
async def test_a_taken_key_is_refused(memory: MemoryTableService, verb: Callable[[Row], Operation]) -> None:
    world = await DualWorld(memory, LANES).prepare([racer("1", Lane="a")])
    world.permits.move(ControlPhase.CUTOVER)
    seen, writes = watch(world)
    with pytest.raises(Collision):
        await world.writer(View.NEW).write([verb(new_row(world, racer("2", Lane="a")))])
    assert seen == writes == []
    await world.assert_quiet()


# --- clients ------------------------------------------------------------------------------------------------


def new_row(world: World, source_row: Row) -> Row:
    """The main target row of a source row."""
    return content_of(world.mapper.map(source_row)[0].row)


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_every_verb_in_old_view_writes_pairs(memory: MemoryTableService, phase: ControlPhase) -> None:
    world = await DualWorld(memory, RACES).prepare([racer("02000", 30)])
    world.permits.move(phase)
    writer = world.writer()
    seen, _ = watch(world)
    [etag] = await writer.write([insert(racer("01234", 55))])
    assert etag == world.etag("Races", JOHN)
    await world.assert_quiet()
    await writer.write([replace(racer("01234", 56), etag)])
    await world.assert_quiet()
    await writer.write([merge({"PartitionKey": "nyc", "RowKey": "01234", "Age": 57})])
    await world.assert_quiet()
    await writer.write([upsert(racer("01234", 58, Time=9))])
    await writer.write([upsert(racer("03000", 18))])
    await world.assert_quiet()
    await writer.write([insert(racer("04000", 21)), delete(EntityKey("nyc", "02000"))])
    await world.assert_quiet()
    await writer.write([delete(JOHN)])
    await world.assert_quiet()
    assert seen == []
    assert len(memory.dump("RacesByKey")) == 4
    assert world.counters.fast == world.counters.writes
    assert world.counters.left == world.counters.replica_failures == 0


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_every_verb_in_new_view_writes_pairs(memory: MemoryTableService, phase: ControlPhase) -> None:
    world = await DualWorld(memory, RACES).prepare([racer("02000", 30)])
    world.permits.move(phase)
    writer = world.writer(View.NEW)
    seen, _ = watch(world)
    row = new_row(world, racer("01234", 55))
    key = key_of(row)
    [etag] = await writer.write([insert(row)])
    assert etag == world.etag("RacesByKey", key)
    await world.assert_quiet()
    [etag] = await writer.write([replace({**row, "Age": 56}, etag)])
    assert etag == world.etag("RacesByKey", key)
    await world.assert_quiet()
    await writer.write([merge({"PartitionKey": "nyc", "RowKey": key.row, "Age": 57})])
    await world.assert_quiet()
    await writer.write([upsert({**row, "Age": 58})])
    await writer.write([replace({**row, "Age": 59})])
    await writer.write([upsert(new_row(world, racer("03000", 18)))])
    await world.assert_quiet()
    await writer.write(
        [insert(new_row(world, racer("04000", 21))), delete(key_of(new_row(world, racer("02000", 30))))]
    )
    await world.assert_quiet()
    [john] = [row for row in memory.dump("Races") if row["RowKey"] == "01234"]
    assert john["Age"] == 59
    await writer.write([delete(key)])
    await world.assert_quiet()
    assert seen == []
    assert world.counters.fast == world.counters.writes
    assert world.counters.left == world.counters.replica_failures == 0


async def test_in_cutover_a_pair_is_one_transaction(memory: MemoryTableService) -> None:
    world = await DualWorld(memory, RACES).prepare([racer("01234", 55)])
    world.permits.move(ControlPhase.CUTOVER)
    _, writes = watch(world)
    await world.writer(View.NEW).write([replace(new_row(world, racer("01234", 56)))])
    [call] = writes
    assert [(one.verb, one.key.row[:8]) for one in call.operations] == [
        ("replace", "BIB:0123"),
        ("delete", "AGE:055_"),
        ("insert", "AGE:056_"),
    ]
    assert every(one.etag for one in call.operations[:2])
    forward = await world.mapping.forward(JOHN)
    assert TargetKey(1, "nyc", "AGE:056__01234") in forward.targets


@pytest.mark.parametrize("verb", [insert, replace, upsert], ids=lambda verb: verb.__name__)
async def test_pairs_are_listed_first(memory: MemoryTableService, verb: Callable[[Row], Operation]) -> None:
    world = await DualWorld(memory, RACES).prepare([] if verb is insert else [racer("01234", 55)])
    world.permits.move(ControlPhase.CUTOVER)
    forward_key, listed = world.mapping.rows.forward_key(JOHN), list[frozenset[TargetKey]]()

    async def look(call: Call) -> None:
        await asyncio.sleep(0)
        if call.action == "transact" and call.table == "RacesByKey":
            [row] = [row for row in memory.dump(MAPPING_TABLE) if key_of(row) == forward_key]
            listed.append(world.mapping.rows.read_listing(row)[1])

    memory.gate = look
    await world.writer(View.NEW).write([verb(new_row(world, racer("01234", 56)))])
    [at_the_write] = listed
    assert {TargetKey(0, "nyc", "BIB:01234__John"), TargetKey(1, "nyc", "AGE:056__01234")} <= at_the_write
    await world.assert_quiet()


async def test_a_transaction_counts_the_secondary_rows_of_its_rows(memory: MemoryTableService) -> None:
    world = await DualWorld(memory, RACES).prepare()
    world.permits.move(ControlPhase.CUTOVER)
    writer = world.writer(View.NEW)
    rows = [new_row(world, racer(f"{number:05}", 20)) for number in range(51)]
    await writer.write([insert(row) for row in rows[:50]])
    with pytest.raises(RequestRejected, match="secondary rows"):
        await writer.write([upsert(row) for row in rows])
    await world.assert_quiet()
    assert len(memory.dump("RacesByKey")) == 100


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
async def test_a_lone_secondary_row_is_refused(memory: MemoryTableService, phase: ControlPhase) -> None:
    world = await DualWorld(memory, RACES).prepare([racer("01234", 55)])
    world.permits.move(phase)
    secondary = next(row for row in memory.dump("RacesByKey") if row["RowKey"].startswith("AGE:"))
    before = memory.dump("RacesByKey")
    for operation in (delete(key_of(secondary)), upsert(content_of(secondary))):
        with pytest.raises(WritesRefused) as refused:
            await world.writer(View.NEW).write([operation])
        assert refused.value.code == "secondary-row"
    assert memory.dump("RacesByKey") == before
    world.permits.move(ControlPhase.COMPLETE)
    await world.writer(View.NEW).write([delete(key_of(secondary)), delete(key_of(before[-1]))])
    assert memory.dump("RacesByKey") == []


# --- all at once --------------------------------------------------------------------------------------------


async def application(world: DualWorld, draw: random.Random, view: View, client: str) -> None:
    """Write at random through one client; what is refused, or fails, is left."""
    writer = world.writer(view, client, longest=600.0)
    for _ in range(25):
        row = racer(f"{draw.randrange(4):05}", draw.randrange(20, 23), draw.choice(("John", "Jack")))
        row = new_row(world, row) if view is View.NEW else row
        key = key_of(row)
        operation = draw.choice([insert(row), upsert(row), replace(row), delete(key), merge(row)])
        with suppress(RekeyError):
            await writer.write([operation])


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
@pytest.mark.parametrize("seed", others_in_soak(range(12), kept=range(2)))
async def test_no_reader_sees_half_a_pair(memory: MemoryTableService, seed: int, phase: ControlPhase) -> None:
    """Writers in both views, the copy, sweeps and propagators at the same time, answers that are lost."""
    draw = random.Random(seed)
    world = await DualWorld(memory, RACES).prepare([racer(f"{n:05}", 20 + n) for n in range(4)])
    world.permits.move(phase)
    seen: list[EntityKey] = []

    async def look(_: Call) -> None:
        for _ in range(draw.randrange(5)):
            await asyncio.sleep(0)
        seen.extend(halves(world.mapper, memory.dump("RacesByKey")))

    memory.gate = look
    memory.faults = SeededFaults(
        seed, rate=0.03, kinds=[FaultKind.BUSY, FaultKind.TIMED_OUT, FaultKind.LOST_ANSWER]
    )
    reverse = ReversePropagator(world.propagator)
    settling = world.propagator if phase is ControlPhase.DUAL_WRITE else reverse

    async def settle() -> None:
        for _ in range(40):
            try:
                await settling.propagate(EntityKey("nyc", f"{draw.randrange(4):05}"))
            except RekeyError:
                continue

    async def copy() -> None:
        if phase is not ControlPhase.DUAL_WRITE:
            return
        for _ in range(4):
            try:
                await backfill(world)
                await swept(world)
            except RekeyError:
                continue

    clients = enumerate([View.OLD, View.NEW, View.OLD, View.NEW])
    writing = [application(world, draw, view, f"c{number}") for number, view in clients]
    await asyncio.gather(*writing, settle(), copy())
    memory.faults = NoFaults()
    await world.close()
    assert seen == []
    await world.sweep("source" if phase is ControlPhase.DUAL_WRITE else "target")
    if phase is ControlPhase.DUAL_WRITE:
        await swept(world)
        moved, since = world.propagator.propagate_moved, "2000-01-01T00:00:00Z"
        await settle_moved(world.source, moved, since=since, concurrency=4, advance=nothing, check=go_on)
    assert seen == []
    world.assert_in_step()


# --- verification -------------------------------------------------------------------------------------------


async def test_one_read_verifies_both_row_kinds(memory: MemoryTableService, tmp_path: Path) -> None:
    world = await filled(World(memory, RACES), racers(30))
    pages = noted(memory, lambda call: call.action == "page")
    ctx = context(world, tmp_path)
    report = await full(ctx)
    assert not report.findings
    assert [(one.label, one.expected_rows, one.actual_rows) for one in report.tables] == [
        ("RacesByKey", 30, 30),
        ("RacesByKey AGE:", 30, 30),
    ]
    assert report.as_json()["tables"][1]["row_keys_begin"] == "AGE:"
    assert [call.table for call in pages].count("RacesByKey") == 1
    counted = await count(ctx)
    assert [(one.table, one.expected, one.actual) for one in counted.tables] == [
        ("RacesByKey", 30, 30),
        ("RacesByKey AGE:", 30, 30),
    ]
    drawn = await sampled(ctx, 10, seed=1)
    assert [(one.table, one.population) for one in drawn.directions] == [
        ("Races", 30),
        ("RacesByKey", 30),
        ("RacesByKey AGE:", 30),
    ]


async def test_differences_of_both_kinds_are_repaired(memory: MemoryTableService, tmp_path: Path) -> None:
    world = await filled(World(memory, RACES), racers(20))
    table = memory.table("RacesByKey")
    rows = {key_of(row): content_of(row) for row in memory.dump("RacesByKey")}
    first, second, third = [key for key in rows if key.row.startswith("AGE:") and key.partition == "race0"][
        :3
    ]
    await table.delete(first)
    await table.replace({**rows[second], "Age": 99})
    await table.insert({**rows[third], "RowKey": "AGE:999__foreign", "MainRowKey": "BIB:nowhere"})
    await table.insert({"PartitionKey": "race0", "RowKey": "neither", "Name": "stray"})
    main = next(key for key in rows if key.row.startswith("BIB:") and key.partition == "race1")
    await table.delete(main)
    report = await full(context(world, tmp_path), repair=True)
    assert report.differences.counts == {"altered": 1, "extra": 2, "missing": 2}
    assert sorted({one.table for one in report.differences.listed}) == ["RacesByKey", "RacesByKey AGE:"]
    assert not (await full(context(world, tmp_path))).findings
    world.assert_in_step()
