"""A comparison by ranges finds what one of everything finds, loses a range when it is killed, and rereads
little where rows change."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rekey.errors import Interrupted, StateUnusable
from rekey.model import EntityKey, KeyRange, Row, content_of, key_of
from rekey.verify import context as verify_context
from rekey.verify import first_pass, ranges, settle
from rekey.verify import report as report_module
from rekey.verify.bucket_digests import Part, Partial
from rekey.verify.context import RecheckPolicy
from rekey.verify.full import full
from rekey.verify.ranges import Ranges, compare_ranges
from rekey.verify.report import FullReport
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call
from tests.fakes.memory import MemoryTable, MemoryTableService, instant_gate
from tests.worlds.small import LOWERED, USERS, World, user
from tests.worlds.verification import context, filled

PARTITIONS, BIG = 40, "p20"
# Of each partition; of the large one.
FEW, MANY = 6, 90
ALL = (PARTITIONS - 1) * FEW + MANY
# Rows of a partition that is left to the end.
LARGE = ranges.LARGE_ROWS


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a range have about 20 rows, a page 8, a large partition 50."""
    scan = MemoryTable.scan

    def paged(self: MemoryTable, *words: Any, **more: Any) -> Any:
        return scan(self, *words, **{**more, "page_rows": min(8, more.get("page_rows", 8))})

    monkeypatch.setattr(MemoryTable, "scan", paged)
    monkeypatch.setattr(ranges, "RANGE_ROWS", 20)
    monkeypatch.setattr(ranges, "LARGE_ROWS", 50)
    monkeypatch.setattr(ranges, "LEAST_ROWS", 30)
    monkeypatch.setattr(ranges, "CHECKPOINT_S", 0.0)


def rows() -> Iterator[Row]:
    for partition in range(PARTITIONS):
        name = f"p{partition:02}"
        for number in range(MANY if name == BIG else FEW):
            yield user(f"user{number:03}@example.com", name)


@pytest.fixture
async def world(clock: FakeClock) -> World:
    return await filled(World(MemoryTableService(clock=clock), USERS), rows())


async def plant(world: World) -> dict[str, int]:
    """Let rows differ in every way, in ranges and in the large partition; return how many of each kind."""
    target, held = world.targets[0], dict[str, list[Row]]()
    for row in world.service.dump("UsersV2"):
        held.setdefault(row["PartitionKey"], []).append(row)
    await target.delete(key_of(held["p03"][0]))
    await target.replace({**content_of(held["p07"][2]), "Name": "foreign"})
    await target.replace({**content_of(held[BIG][70]), "Name": "foreign"})
    await target.insert({"PartitionKey": "p11x", "RowKey": "of nobody"})
    await target.insert({"PartitionKey": "z", "RowKey": "behind everything"})
    await target.insert({"PartitionKey": "", "RowKey": "before everything"})
    moved = held["p30"][1]
    await target.delete(key_of(moved))
    await target.insert({**content_of(moved), "RowKey": "elsewhere"})
    return {"altered": 2, "extra": 3, "missing": 1, "wrong-key": 1}


def found(report: FullReport) -> Counter[tuple[str, str]]:
    return Counter((each.kind.value, each.row_id) for each in report.differences.listed)


async def by_ranges(world: World, folder: Path, work: Ranges | None = None, **more: Any) -> FullReport:
    repair = more.pop("repair", False)
    return await compare_ranges(context(world, folder, **more), work or Ranges.fresh(1), repair=repair)


# --- the same as everything at once -------------------------------------------------------------------------


async def test_equal_tables_have_the_digests_of_a_comparison_of_everything(
    world: World, tmp_path: Path
) -> None:
    whole, work = await full(context(world, tmp_path)), Ranges.fresh(1)
    report = await by_ranges(world, tmp_path, work)
    assert not report.findings and report.equal
    assert (report.tables, report.source_digest) == (whole.tables, whole.source_digest)
    assert (report.source_rows, report.target_rows) == (ALL, ALL)
    assert sum(read.rows for read in report.read) == 2 * ALL
    assert {part.within.upto.partition for part in work.large.parts if part.within.upto} == {BIG}


async def test_every_difference_is_found(world: World, tmp_path: Path) -> None:
    kinds = await plant(world)
    whole, report = await full(context(world, tmp_path)), await by_ranges(world, tmp_path)
    assert report.differences.counts == whole.differences.counts == kinds
    assert found(report) == found(whole)
    assert [table.differing_buckets for table in report.tables] == [
        table.differing_buckets for table in whole.tables
    ]


async def test_differences_are_repaired(world: World, tmp_path: Path) -> None:
    await plant(world)
    report = await by_ranges(world, tmp_path, repair=True)
    assert report.repair is not None and sum(report.repair.counts.values()) == 7
    assert not (await full(context(world, tmp_path))).findings


async def test_rows_that_collide_in_a_range_are_found(clock: FakeClock, tmp_path: Path) -> None:
    world = await filled(World(MemoryTableService(clock=clock), LOWERED), list(rows()))
    await world.source.insert(user("USER001@example.com", "p09"))
    report = await by_ranges(world, tmp_path)
    assert report.differences.counts == {"collision": 1}


async def test_keys_are_those_of_the_rows_that_are_listed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range with many rows that differ is observed for longer than another one, which is listed first."""
    for module in (report_module, settle):
        monkeypatch.setattr(module, "LISTED", 2)
    monkeypatch.setattr(verify_context, "_MOST_KEYS", 6)
    monkeypatch.setattr(ranges, "LARGE_ROWS", 1000)
    for row in world.service.dump("UsersV2"):
        if row["PartitionKey"] == BIG:
            await world.targets[0].replace({**content_of(row), "Name": "foreign"})
    await world.targets[0].replace({**content_of(row), "Name": "foreign"})
    keys: dict[str, tuple[str, EntityKey]] = {}
    recheck = RecheckPolicy(delay_s=1.0, chunk=4)
    report = await by_ranges(world, tmp_path, keys=keys, scans=2, recheck=recheck)
    listed = [each.row_id for each in report.differences.listed]
    assert report.differences.stable == MANY + 1
    assert [keys[row_id][1].partition for row_id in listed] == [row["PartitionKey"], BIG]


async def test_an_empty_source_is_compared_as_well(clock: FakeClock, tmp_path: Path) -> None:
    world = await filled(World(MemoryTableService(clock=clock), USERS), [])
    assert not (await by_ranges(world, tmp_path)).findings
    await world.targets[0].insert({"PartitionKey": "p11x", "RowKey": "of nobody"})
    assert (await by_ranges(world, tmp_path)).differences.counts == {"extra": 1}


# --- rows that change ---------------------------------------------------------------------------------------


async def test_where_rows_change_only_their_ranges_are_read_again(world: World, tmp_path: Path) -> None:
    """Writes between the two readings of their range: where everything is compared at once, it is reread."""
    read, changed = 0, 0

    async def gate(call: Call) -> None:
        nonlocal changed
        if changed < 3 and (call.action, call.table) == ("page", "UsersV2"):
            changed += 1
            world.service.gate = instant_gate
            row = user(f"user00{changed}@example.com", "p01", Age=read)
            await world.source.replace(row)
            await world.propagator.propagate(key_of(row))
            world.service.gate = gate

    def advance(rows: int) -> None:
        nonlocal read
        read += rows

    world.service.gate = gate
    assert not (await by_ranges(world, tmp_path, scans=1, advance=advance)).findings
    assert changed == 3
    assert 2 * ALL <= read < 2.2 * ALL
    read = changed = 0
    assert not (await full(context(world, tmp_path, scans=1, advance=advance))).findings
    assert read == 4 * ALL


async def test_live_writes_raise_no_alarm_and_hide_nothing(
    world: World, clock: FakeClock, tmp_path: Path
) -> None:
    kinds, stop, open_intents = await plant(world), asyncio.Event(), set[EntityKey]()

    async def gate(_call: Call) -> None:
        await clock.sleep(0.01)

    async def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            row = user(f"user{number % 4 + 2:03}@example.com", f"p{number * 7 % 19 + 12:02}", Age=number)
            open_intents.add(key := key_of(row))
            await world.source.upsert(row)
            await world.propagator.propagate(key)
            open_intents.discard(key)

    async def in_flight(key: EntityKey) -> bool:
        return key in open_intents

    world.service.gate = gate
    writing = asyncio.ensure_future(write())
    report = await by_ranges(world, tmp_path, in_flight=in_flight)
    stop.set()
    await writing
    assert report.differences.counts == kinds
    assert report.differences.unsettled == 0


# --- killed and resumed -------------------------------------------------------------------------------------


def stored(work: Ranges) -> str:
    return json.dumps(work.as_state())


async def killed(world: World, folder: Path, work: Ranges, pages: int, **more: Any) -> tuple[str, bool]:
    """Compare until so many pages were read; return what was stored last, and whether it ended."""
    kept, left = [stored(work)], pages

    async def gate(call: Call) -> None:
        nonlocal left
        left -= call.action == "page"
        if left < 0:
            raise Interrupted("killed")

    def keep(work: Ranges) -> None:
        if left >= 0:
            kept.append(stored(work))

    world.service.gate = gate
    try:
        await compare_ranges(context(world, folder, **more), work, checkpoint=keep)
    except Interrupted:
        return kept[-1], False
    finally:
        world.service.gate = instant_gate
    return kept[-1], True


@pytest.mark.parametrize("pages", [9, 23])
async def test_killed_again_and_again_it_ends_as_if_undisturbed(
    world: World, tmp_path: Path, pages: int
) -> None:
    kinds = await plant(world)
    undisturbed, state, ended, kills = await full(context(world, tmp_path)), stored(Ranges.fresh(1)), False, 0
    while not ended and kills < 40:
        work = Ranges.from_state(json.loads(state), targets=1)
        before = work.reads
        state, ended = await killed(world, tmp_path, work, pages + 4 * kills)
        kills += not ended
        assert before.keys() <= work.reads.keys()
    assert kills > 2
    report = await by_ranges(world, tmp_path, Ranges.from_state(json.loads(state), targets=1))
    assert report.differences.counts == kinds
    assert found(report) == found(undisturbed)
    assert report.tables[0].expected_digest == undisturbed.tables[0].expected_digest
    assert report.source_rows == ALL


@pytest.mark.parametrize("differ", [False, True])
async def test_every_stored_state_goes_on_to_the_same_digests(
    world: World, tmp_path: Path, differ: bool
) -> None:
    """It counts each range exactly once, also the last one, and one that was split off."""
    kinds = await plant(world) if differ else {}
    whole, states = await full(context(world, tmp_path)), dict[str, None]()
    work = Ranges.fresh(1)
    await compare_ranges(
        context(world, tmp_path), work, checkpoint=lambda work: states.setdefault(stored(work))
    )
    assert len(states) > 8
    for state in states:
        report = await by_ranges(world, tmp_path, Ranges.from_state(json.loads(state), targets=1))
        assert (report.tables, report.source_rows) == (whole.tables, ALL)
        assert report.differences.counts == kinds
        assert found(report) == found(whole)


async def test_the_ranges_in_which_rows_differ_are_not_read_again_after_a_kill(
    world: World, tmp_path: Path
) -> None:
    """Rows of nearly all ranges differ, and no sitting is long enough to read them again."""
    altered = [row for row in world.service.dump("UsersV2") if row["PartitionKey"] != BIG]
    for row in altered[::FEW]:
        await world.targets[0].replace({**content_of(row), "Name": "foreign"})
    report = await sittings(world, tmp_path, 40)
    whole = await full(context(world, tmp_path))
    assert report.differences.counts == whole.differences.counts == {"altered": PARTITIONS - 1}
    assert found(report) == found(whole)
    assert report.tables == whole.tables


async def test_large_partitions_are_stored_one_by_one(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that holds nothing else; no sitting is long enough to find all of them."""
    monkeypatch.setattr(first_pass, "CHECKPOINT_ROWS", 8)
    large = [user(f"user{number:03}@example.com", f"p{number % 8}") for number in range(8 * MANY)]
    world = await filled(World(MemoryTableService(clock=clock), USERS), large)
    report = await sittings(world, tmp_path, 30)
    assert not report.findings
    assert report.tables == (await full(context(world, tmp_path))).tables


async def sittings(world: World, folder: Path, pages: int) -> FullReport:
    """Compare with a single scan, killed each time that so many pages were read."""
    state, ended, kills = stored(Ranges.fresh(1)), False, 0
    while not ended:
        work = Ranges.from_state(json.loads(state), targets=1)
        state, ended = await killed(world, folder, work, pages, scans=1)
        kills += not ended
        assert kills < 20, "it never ends"
    assert kills > 2
    return await by_ranges(world, folder, Ranges.from_state(json.loads(state), targets=1))


@pytest.mark.parametrize("scans", [1, 2])
async def test_after_a_kill_the_rows_that_differ_are_repaired_or_named_on_request(
    world: World, tmp_path: Path, scans: int
) -> None:
    kinds = await plant(world)
    state, ended = await killed(world, tmp_path, Ranges.fresh(1), 60 * scans, scans=scans)
    work = Ranges.from_state(json.loads(state), targets=1)
    assert not ended and 0 < work.differing_rows < sum(kinds.values())
    keys: dict[str, tuple[str, EntityKey]] = {}
    assert work.compare_again() and not work.differing_rows
    report = await by_ranges(world, tmp_path, work, keys=keys)
    assert report.differences.counts == kinds
    assert {each.row_id for each in report.differences.listed} <= keys.keys()
    work = Ranges.from_state(json.loads(state), targets=1)
    assert work.compare_again()
    report = await by_ranges(world, tmp_path, work, repair=True)
    assert report.repair is not None and sum(report.repair.counts.values()) == sum(kinds.values())
    assert not (await full(context(world, tmp_path))).findings


async def test_where_too_many_ranges_differ_they_are_not_compared_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds, work = await plant(world), Ranges.fresh(1)
    monkeypatch.setattr(ranges, "MOST_DIFFERING", 2)
    await by_ranges(world, tmp_path, work)
    work = Ranges.from_state(json.loads(stored(work)), targets=1)
    assert not work.compare_again()
    report = await by_ranges(world, tmp_path, work)
    assert report.differences.counts == kinds


@pytest.mark.parametrize(
    "damage", [{"large": {}}, {"counts": 1}, {"parts": [[-2, 1]]}, {"findings": {}}, {"unequal": None}]
)
def test_other_states_are_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(StateUnusable):
        Ranges.from_state({**Ranges.fresh(1).as_state(), **damage}, targets=1)


def test_a_version_without_ranges_begins_anew() -> None:
    """It would take a part for one of the tables' own."""
    with pytest.raises(StateUnusable):
        Partial.from_state(Ranges.fresh(2).as_state(), targets=2)


def test_the_state_of_many_large_partitions_stays_small() -> None:
    """As many as ten billion rows have, none of which fits into a range: each more must be larger."""
    rows, parts = 0, 0
    while rows < 10**10:
        rows += LARGE * (1 + parts // ranges.MANY_PARTS)
        parts += 2
    work = Ranges.fresh(1)
    key = EntityKey("partition-0000000", "x" * 40)
    work.large.parts = [Part(0, KeyRange(key, key), key)] * parts
    assert len(json.dumps(work.as_state())) < 10 * 2**20
