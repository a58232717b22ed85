"""Verification while rows are written: no false alarms, no divergence overlooked, nothing left behind.

Soak: 3 of 4 seeds, 4 of 6 and 3 of 4 moments of a stop.
Reason, and what `make test` covers: the others.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rekey import keys
from rekey.core import spill
from rekey.declaration.migration import Migration
from rekey.declaration.targets import Index, Target
from rekey.errors import Interrupted, MachineFailed
from rekey.model import EVERYTHING, EntityKey, KeyRange, Row, content_of, key_of
from rekey.verify.bucket_digests import SOURCE, Part, Partial
from rekey.verify.context import RecheckPolicy, ReconcileContext
from rekey.verify.first_pass import Checkpoint, add_digests
from rekey.verify.full import RereadBuckets, full, spill_rows
from rekey.verify.render import render
from rekey.verify.report import DifferenceKind
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call, Fault, FaultKind
from tests.fakes.memory import MemoryTableService, Mood
from tests.soaking import others_in_soak
from tests.worlds.small import LOWERED, POSTS, USERS, World, post, user
from tests.worlds.verification import context, filled, rows_of, source_id

HOT = EntityKey("eu", "u001@example.com")
COUNT = 1100


class Slow:
    """Every call takes some milliseconds of the clock, so that writes and reads overlap."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def decide(self, _call: Call) -> Fault:
        return Fault(FaultKind.SLOW, self._random.uniform(0.005, 0.1))


class Journal:
    """Announces writes as the journal does: before the authority is written, until replicas follow."""

    def __init__(self) -> None:
        self.open: set[EntityKey] = set()

    async def in_flight(self, source_key: EntityKey) -> bool:
        return source_key in self.open


async def write_on(world: World, journal: Journal, seed: int, stop: asyncio.Event) -> int:
    """Write, delete and insert posts all the time, each followed by propagation, as a client does."""
    chosen = random.Random(seed)
    writes = 0
    while not stop.is_set():
        key = EntityKey("blog", f"post-{chosen.randrange(40) * 8 + seed:03}")
        journal.open.add(key)
        if chosen.random() < 0.3:
            if await world.source.get(key) is not None:
                await world.source.delete(key)
        else:
            tags = ",".join(chosen.sample(["a", "b", "c", "d"], 2))
            await world.source.upsert(
                post(key.row, f"2024-{chosen.randrange(1, 13):02}", tags, Note=str(writes))
            )
        await world.propagator.propagate(key)
        journal.open.discard(key)
        writes += 1
    return writes


@pytest.fixture
def memory(clock: FakeClock) -> MemoryTableService:
    """Tables in memory."""
    return MemoryTableService(clock=clock)


@pytest.mark.parametrize("seed", others_in_soak(range(4), kept=[0]))
async def test_live_writes_raise_no_alarm(memory: MemoryTableService, tmp_path: Path, seed: int) -> None:
    """Four writers move rows about; one planted divergence among them is the only finding."""
    rows = [post(f"post-{number:03}", "2024-01", "a,b") for number in range(400)]
    world = await filled(World(memory, POSTS), [*rows, post("quiet", "2023-01", "q")])
    planted = next(row for row in memory.dump("PostsByTag") if row["PartitionKey"] == "q")
    await world.targets[1].replace({**content_of(planted), "Title": "quieT"})
    memory.faults = Slow(seed)
    journal, stop = Journal(), asyncio.Event()
    ctx = context(world, tmp_path, in_flight=journal.in_flight)
    writers = [asyncio.ensure_future(write_on(world, journal, seed * 4 + each, stop)) for each in range(4)]
    report = await full(ctx)
    stop.set()
    writes = sum(await asyncio.gather(*writers))
    [found] = report.differences.listed
    assert (found.kind, found.table, found.source_id) == (
        DifferenceKind.ALTERED,
        "PostsByTag",
        source_id(world, EntityKey("blog", "quiet")),
    )
    assert report.differences.unsettled == 0
    assert report.differences.transient > 0, f"{writes} writes did not overlap: the test shows nothing"


async def test_without_a_journal_only_stable_rows_count(memory: MemoryTableService, tmp_path: Path) -> None:
    """Writers whose requests end within the delay raise no alarm either."""
    world = await filled(World(memory, POSTS), [post(f"post-{n:03}", "2024-01", "a,b") for n in range(400)])
    memory.faults = Slow(5)
    stop = asyncio.Event()
    writers = [asyncio.ensure_future(write_on(world, Journal(), each, stop)) for each in range(2)]
    report = await full(context(world, tmp_path, recheck=RecheckPolicy(delay_s=5.0)))
    stop.set()
    await asyncio.gather(*writers)
    assert not report.findings
    assert report.differences.transient > 0
    assert report.equal, "counts and digests are those of the rows as they were read last"


class Mending:
    """A reader between whose two readings a row is brought up to date."""

    def __init__(self, mend: Callable[[], Awaitable[object]]) -> None:
        self._mend = mend

    async def add_digests(self, ctx: ReconcileContext, work: Partial, *, checkpoint: Checkpoint) -> None:
        await add_digests(ctx, work, checkpoint=checkpoint)
        await self._mend()

    async def spill_rows(self, *given: Any) -> None:
        await spill_rows(*given)


async def test_figures_match_the_second_reading(memory: MemoryTableService, tmp_path: Path) -> None:
    """A row that differs on the first reading and not on the second is no candidate; what is said of it, and
    the sums, are of the second."""
    world = await filled(World(memory, USERS), [user(HOT.row), user("b@example.com")])
    await world.source.insert(user("new@example.com"))
    reader = Mending(lambda: world.propagator.propagate(key_of(user("new@example.com"))))
    report = await full(context(world, tmp_path), reader=reader)
    [table] = report.tables
    assert (report.findings, report.differences.transient, report.differences.rechecked) == (False, 0, 0)
    assert (table.expected_rows, table.actual_rows, table.differing_buckets, table.reread_buckets) == (
        3,
        3,
        0,
        1,
    )
    text = " ".join(render(report, "0001_users").split())
    assert "1 bucket differed and was read again, 0 rows one by one: no bucket differs now." in text
    assert "differences: 0 (0 resolved on recheck)" in text
    assert "Every row and every property of 1 table is as the source says." in text


async def test_sums_that_differ_without_a_row_that_does_are_a_finding(
    memory: MemoryTableService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the recheck says: what the tables' rows add up to is evidence, too."""
    world = await filled(World(memory, USERS), [user(HOT.row), user("b@example.com")])
    await world.source.merge({"PartitionKey": HOT.partition, "RowKey": HOT.row, "Nm": "new"})
    monkeypatch.setattr("rekey.verify.full._join_keys", lambda *_: iter(()))
    monkeypatch.setattr(RereadBuckets, "change", lambda *_: None)
    report = await full(context(world, tmp_path))
    assert (report.differences.any, report.unexplained, report.findings) == (False, 1, True)
    text = " ".join(render(report, "0001_users").split())
    assert "Counts or digests of 1 bucket differ, but no differing row was found." in text
    assert "is as the source says" not in text
    assert "Next: `rekey verify 0001_users --mode full`" in text


async def test_a_row_that_addresses_misread_is_no_equal_row(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every key taken for a plain one, what scans saw is still found: a query is asked for absence."""
    memory = MemoryTableService(clock=clock, mood=Mood.DECODES_TWICE)
    odd = user("ann%40example.com")
    world = await filled(World(memory, USERS), [odd, user("b@example.com")])
    [target] = rows_of(world, 0, key_of(odd))
    await world.targets[0].delete(key_of(target))
    monkeypatch.setattr("rekey.tables.base.is_addressable", lambda _key: True)
    monkeypatch.setattr("rekey.verify.settle.is_addressable", lambda _key: True)
    assert await world.source.get(key_of(odd)) is None
    report = await full(context(world, tmp_path))
    assert report.differences.counts == {"missing": 1}


async def _always(_source_key: EntityKey) -> bool:
    return True


@pytest.mark.parametrize("target_decides", [False, True])
async def test_a_collision_is_named_at_once_although_its_intents_stay(
    memory: MemoryTableService, clock: FakeClock, tmp_path: Path, target_decides: bool
) -> None:
    """They cannot be settled while both rows stand. Of replicas one may be left over from a write that is in
    flight: these are watched for longer than a write takes."""
    one, other = user("KEY1@example.com"), user("key1@example.com")
    world = await filled(World(memory, LOWERED), [one, user("b@example.com")])
    await world.source.insert(other)
    begun = clock.ticks()
    report = await full(context(world, tmp_path, in_flight=_always, authority_is_target=target_decides))
    assert (report.differences.counts, report.differences.unsettled) == ({"collision": 1}, 0)
    [found] = report.differences.listed
    assert {found.source_id, found.other_id} == {source_id(world, key_of(row)) for row in (one, other)}
    assert f"source row {found.other_id} has the same target key" in render(report, "0001_users")
    assert (clock.ticks() - begun) / 1e7 < (35 if target_decides else 3)


async def test_collisions_do_not_wait(memory: MemoryTableService, clock: FakeClock, tmp_path: Path) -> None:
    """Two rows have one key in an index table; the write of the second stopped there."""
    seats = Migration(
        source="Users",
        target=Target("UsersV2", partition_key=keys.keep(), row_key=keys.prop("RowKey")),
        indexes=[Index("Seats", partition_key=keys.keep(), row_key=keys.prop("Seat"))],
        capture="dual-write",
        reverse=False,
    )
    world = await filled(World(memory, seats), [user("a", Seat="1"), user("b", Seat="2")])
    await world.source.merge({**{name: user("b")[name] for name in ("PartitionKey", "RowKey")}, "Seat": "1"})
    begun = clock.ticks()
    report = await full(context(world, tmp_path, in_flight=_always))
    assert report.differences.unsettled == 0
    assert report.differences.counts["collision"] == 1
    assert (clock.ticks() - begun) / 1e7 < 5


async def test_an_announced_write_is_waited_for(memory: MemoryTableService, tmp_path: Path) -> None:
    """A source row ahead of its target is no divergence while its intent is open, however long that takes."""
    world = await filled(World(memory, USERS), [user(HOT.row), user("b@example.com")])
    await world.source.merge({"PartitionKey": HOT.partition, "RowKey": HOT.row, "Nm": "new"})
    asked = 0

    async def in_flight(source_key: EntityKey) -> bool:
        nonlocal asked
        assert source_key == HOT
        asked += 1
        if asked == 20:
            await world.propagator.propagate(HOT)
        return asked < 20

    report = await full(context(world, tmp_path, in_flight=in_flight))
    assert not report.findings
    assert report.differences.transient == 1
    assert '"transient":1' in json.dumps(report.as_json(), separators=(",", ":"))
    assert asked == 20


async def test_an_ended_intent_hides_no_divergence(memory: MemoryTableService, tmp_path: Path) -> None:
    world = await filled(World(memory, USERS), [user(HOT.row)])
    await world.source.merge({"PartitionKey": HOT.partition, "RowKey": HOT.row, "Nm": "new"})
    answers = iter([True] * 5)

    async def in_flight(_source_key: EntityKey) -> bool:
        return next(answers, False)

    report = await full(context(world, tmp_path, in_flight=in_flight))
    assert report.differences.counts == {"altered": 1}


async def test_moving_row_is_unsettled(memory: MemoryTableService, clock: FakeClock, tmp_path: Path) -> None:
    """It is called neither right nor wrong, and the gate must not open on it."""
    world = await filled(World(memory, USERS), [user(HOT.row)])
    number = 0

    async def never_ending(source_key: EntityKey) -> bool:
        nonlocal number
        number += 1
        await world.source.merge(
            {"PartitionKey": source_key.partition, "RowKey": source_key.row, "N": number}
        )
        return False

    await world.source.merge({"PartitionKey": HOT.partition, "RowKey": HOT.row, "N": 0})
    begun = clock.ticks()
    report = await full(context(world, tmp_path, in_flight=never_ending))
    assert (report.differences.stable, report.differences.unsettled, report.findings) == (0, 1, True)
    assert "unsettled" in render(report, "0001_users")
    assert (clock.ticks() - begun) / 1e7 == pytest.approx(61, abs=2)


async def test_differences_of_the_next_delta_are_pending(memory: MemoryTableService, tmp_path: Path) -> None:
    """Pending differences are counted apart; a foreign row is nobody's and stays a finding."""
    world = await filled(World(memory, USERS), [user(HOT.row), user("b@example.com")])
    await world.source.merge({"PartitionKey": HOT.partition, "RowKey": HOT.row, "Nm": "new"})
    await world.source.insert(user("new@example.com"))

    async def pending(*_asked: object) -> bool:
        return True

    report = await full(context(world, tmp_path, pending=pending))
    assert (report.differences.pending, report.findings) == (2, False)
    assert "pending" in render(report, "0001_users")
    await world.targets[0].insert({"PartitionKey": "eu", "RowKey": "foreign"})
    report = await full(context(world, tmp_path, pending=pending))
    assert report.differences.counts == {"extra": 1}


async def test_a_refused_row_is_never_pending(memory: MemoryTableService, tmp_path: Path) -> None:
    """No pass can bring a row that the mapping cannot key."""
    world = await World(memory, POSTS).prepare()
    keyless = post("keyless")
    del keyless["Month"]
    await world.source.insert(keyless)

    async def pending(*_asked: object) -> bool:
        return True

    report = await full(context(world, tmp_path, pending=pending))
    assert report.differences.counts == {"refused": 1}


async def test_a_foreign_row_with_a_new_owner_stays(memory: MemoryTableService, tmp_path: Path) -> None:
    """Between finding and deleting, a writer may take the row for its own: it must survive."""
    world = await filled(World(memory, USERS), [user(HOT.row)])
    late = user("late@example.com")
    [(_, mapped)] = world.mapper.map(late)
    await world.targets[0].insert(mapped)

    looks = 0
    target = world.targets[0]

    class Watched:
        """The target table: a client's write comes before the third look, the one before the delete."""

        name = target.name
        scan = staticmethod(target.scan)
        delete = staticmethod(target.delete)

        async def get(self, key: EntityKey) -> Row | None:
            nonlocal looks
            looks += key == key_of(mapped)
            if looks == 3:
                await world.source.upsert(late)
                await world.propagator.propagate(key_of(late))
            return await target.get(key)

    report = await full(context(world, tmp_path, targets=[Watched()]), repair=True)
    assert report.differences.counts == {"extra": 1}
    assert report.repair.counts in ({"gone": 1}, {"changed": 1})
    world.assert_in_step()


async def test_a_row_claimed_during_its_delete_returns(memory: MemoryTableService, tmp_path: Path) -> None:
    """The writer finds its row there already and writes nothing, so the delete's ETag still holds."""
    world = await filled(World(memory, USERS), [user(HOT.row)])
    late = user("late@example.com")
    [(_, mapped)] = world.mapper.map(late)
    await world.targets[0].insert(mapped)
    target = world.targets[0]

    class Claimed:
        """The target table; a client's whole write comes between the last look and the delete."""

        name = target.name
        scan = staticmethod(target.scan)
        get = staticmethod(target.get)

        async def delete(self, key: EntityKey, *, etag: str) -> None:
            await world.source.insert(late)
            done = await world.propagator.propagate(key_of(late))
            assert not done.changed
            await target.delete(key, etag=etag)

    report = await full(context(world, tmp_path, targets=[Claimed()]), repair=True)
    assert report.repair.counts == {"deleted": 1}
    world.assert_in_step()


def stopping_after(calls: int) -> tuple[list[int], object]:
    """Return a counter and a stop check that raises at its `calls`-th call."""
    count = [0]

    def stop() -> None:
        count[0] += 1
        if count[0] == calls:
            raise Interrupted("stopped on request")

    return count, stop


@pytest.mark.parametrize("calls", others_in_soak([1, 3, 6, 9, 10, 13], kept=[3, 10]))
async def test_a_stop_leaves_no_file(memory: MemoryTableService, tmp_path: Path, calls: int) -> None:
    """First pass, second pass, recheck, repair: wherever it stops, no key stays on disk, no task runs on."""
    world = await filled(World(memory, USERS), [user(f"u{n:04}@example.com") for n in range(COUNT)])
    for row in memory.dump("UsersV2")[:20]:
        await world.targets[0].delete(key_of(row))
    counted, stop = stopping_after(10**9)
    await full(context(world, tmp_path, stop=stop))
    assert counted[0] >= 10, "the stop must fall into the run"
    before = asyncio.all_tasks()
    _, stop = stopping_after(calls)
    with pytest.raises(Interrupted):
        await full(context(world, tmp_path, stop=stop), repair=True)
    assert list(tmp_path.iterdir()) == []
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("calls", others_in_soak([1, 2, 3, 4], kept=[3]))
async def test_stopped_and_gone_on_from_a_checkpoint_it_gives_the_same_digests(
    memory: MemoryTableService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """What is stored at any moment counts no row twice and leaves none out: a target whose rows come in no
    order is read from its beginning again. (A source is never in such a service.)"""
    monkeypatch.setattr("rekey.verify.first_pass.CHECKPOINT_ROWS", 1)
    world = await filled(World(memory, USERS), [user(f"u{n:04}@example.com") for n in range(COUNT)])
    ordered = MemoryTableService(clock=memory.clock)
    ordered._tables = {name.lower(): rows for name, rows in memory._tables.items()}
    source = ordered.table("Users")
    undisturbed = await full(context(world, tmp_path, source=source))
    stored = [json.dumps(Partial.fresh(1).as_state())]
    _, stop = stopping_after(calls)
    with pytest.raises(Interrupted):
        await full(
            context(world, tmp_path, source=source, stop=stop),
            checkpoint=lambda work: stored.append(json.dumps(work.as_state())),
        )
    partial = Partial.from_state(json.loads(stored[-1]), targets=1)
    again = await full(context(world, tmp_path, source=source), partial=partial)
    assert again.as_json()["tables"] == undisturbed.as_json()["tables"]
    assert again.source_rows == undisturbed.source_rows == COUNT
    assert not again.findings


async def test_an_empty_first_page_does_not_make_a_resumed_part_begin_again(
    memory: MemoryTableService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty page without a cursor says nothing new about how far the part was read."""
    world = await filled(World(memory, USERS), [user(f"u{n:04}@example.com") for n in range(5)])
    work = Partial.fresh(1)
    await add_digests(context(world, tmp_path), work)
    cursors = [part.cursor for part in work.parts]
    for part in work.parts:
        part.done = False

    class EmptyFirst:
        def decide(self, call: Call) -> Fault | None:
            return Fault(FaultKind.EMPTY_PAGE) if call.number == first else None

    await world.source.insert(user("zoe@example.com"))
    first = world.service._calls + 1
    memory.faults = EmptyFirst()
    seen = []
    monkeypatch.setattr("rekey.verify.first_pass.CHECKPOINT_ROWS", 0)
    _, stop = stopping_after(2)
    with pytest.raises(Interrupted):
        await add_digests(
            context(world, tmp_path, scans=1, stop=stop),
            work,
            checkpoint=lambda partial: seen.append([part.cursor for part in partial.parts]),
        )
    assert seen[0] == cursors


async def test_ranges_of_workers_add_up(memory: MemoryTableService, tmp_path: Path) -> None:
    """Each worker sums its own ranges; the merged sums find the same divergence as one reader."""
    world = await filled(World(memory, USERS), [user(f"u{n:04}@example.com") for n in range(COUNT)])
    row = content_of(memory.dump("UsersV2")[7])
    await world.targets[0].replace({**row, "Name": "changed"})
    middle = EntityKey("eu", "u1000@example.com")
    lower, upper = Partial.fresh(1), Partial.fresh(1)
    lower.parts = [Part(SOURCE, KeyRange(None, middle))]
    upper.parts = [Part(SOURCE, KeyRange(middle, None)), Part(0, EVERYTHING)]
    for work in (lower, upper):
        await add_digests(context(world, tmp_path), work)
        assert {part.done for part in work.parts} == {True}
    assert (lower.source_rows, upper.source_rows) == (1001, COUNT - 1001)
    merged = Partial.from_state(json.loads(json.dumps(lower.as_state())), targets=1)
    other = Partial.from_state(json.loads(json.dumps(upper.as_state())), targets=1)
    merged.parts += other.parts
    merged.source_rows += other.source_rows
    merged.source.merge(other.source)
    merged.expected[0].merge(other.expected[0])
    merged.actual[0].merge(other.actual[0])
    report = await full(context(world, tmp_path), partial=merged)
    whole = await full(context(world, tmp_path))
    assert report.tables == whole.tables
    assert report.differences == whole.differences
    assert report.differences.counts == {"altered": 1}


async def test_empty_and_short_pages_lose_no_row(memory: MemoryTableService, tmp_path: Path) -> None:
    """A page may be empty or end early although rows follow."""

    class Pages:
        def decide(self, call: Call) -> Fault | None:
            if call.action != "page":
                return None
            kinds = (None, FaultKind.EMPTY_PAGE, FaultKind.SHORT_PAGE)
            kind = kinds[call.number % 3]
            return None if kind is None else Fault(kind)

    world = await filled(World(memory, USERS), [user(f"u{n:04}@example.com") for n in range(COUNT)])
    memory.faults = Pages()
    report = await full(context(world, tmp_path))
    assert (report.source_rows, report.target_rows, report.findings) == (COUNT, COUNT, False)


async def test_a_full_disk_ends_it_with_a_clear_error(
    memory: MemoryTableService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await filled(World(memory, USERS), [user(HOT.row)])
    await world.source.insert(user("b@example.com"))

    def no_space(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", no_space)
    monkeypatch.setattr(spill, "BUFFERED_RECORDS", 1)
    with pytest.raises(MachineFailed, match="No space left"):
        await full(context(world, tmp_path))
    assert list(tmp_path.iterdir()) == []
