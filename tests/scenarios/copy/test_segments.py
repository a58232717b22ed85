"""Segments: any table is split by probing and read by several readers; no row is lost, none read twice.

Soak: 8 of 13 moments of a kill.
Reason, and what `make test` covers: five moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekey.copy.pipeline import Callbacks, copy_segments
from rekey.copy.scan import Reading, ReadOptions, WindowSize
from rekey.copy.throttle import Throttle
from rekey.core.clock import TICKS_PER_SECOND
from rekey.core.key_order import character_of, rank_of
from rekey.errors import StateUnusable
from rekey.model import EVERYTHING, LAST_ROW, EntityKey, KeyRange, Row, key_of
from rekey.state.models import Segment
from rekey.state.store import State
from rekey.tables.base import Page
from rekey.tables.split import find_middle
from tests.asserts.every import every
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call
from tests.fakes.interference import noted
from tests.fakes.memory import MemoryTable, MemoryTableService, instant_gate
from tests.soaking import others_in_soak
from tests.worlds.small import USERS, Killed, World, user

SCRIPT, PURPOSE = "0001_users", "backfill"
SHAPES: dict[str, list[tuple[str, str]]] = {
    "guids": [(f"{n * 2654435761 % 2**32:08x}-4a1c", f"{n:04}") for n in range(400)],
    "dates": [(f"2024-{n % 12 + 1:02}-{n % 28 + 1:02}", f"{n:04}") for n in range(400)],
    "one long common prefix": [
        ("tenant", "invoice/of/the/year/".replace("/", "-") + f"{n:05}") for n in range(400)
    ],
    "emoji and astral characters": [("\U0001f600" * (n % 3), chr(0x1F300 + n)) for n in range(400)],
    "around the surrogates": [
        ("p", c + f"{n:02}") for n in range(100) for c in ("\ud7ff", "\U00010000", "\ue000")
    ],
    "one partition for everything": [("", f"{n * 7919 % 1000:04}") for n in range(400)],
    "half in one partition": [("huge", f"{n:04}") for n in range(200)]
    + [(f"p{n:03}", "r") for n in range(200)],
    "empty keys": [("", ""), ("", "a"), ("a", ""), ("a", "a")] * 1,
    "each row the beginning of the next": [("p", "x" * n) for n in range(1, 200)],
    "one row": [("p", "r")],
    "no rows": [],
}


@dataclass
class Splits:
    """Stores splits as the state file does, in memory."""

    segments: dict[int, Segment] = field(default_factory=lambda: {1: Segment(1, SCRIPT, PURPOSE)})

    def split(self, segment: Segment, middle: EntityKey) -> Segment:
        known = self.segments[segment.id]
        new = Segment(len(self.segments) + 1, SCRIPT, PURPOSE, after=middle, upto=known.upto)
        self.segments[segment.id] = replace(known, upto=middle)
        self.segments[new.id] = new
        return new


async def table_of(keys: list[tuple[str, str]], service: MemoryTableService | None = None) -> MemoryTable:
    service = service or MemoryTableService(clock=FakeClock())
    await service.create_table("Users")
    table = service.table("Users")
    for partition, row in keys:
        await table.insert({"PartitionKey": partition, "RowKey": row})
    return table


async def read_all(
    table: MemoryTable, splits: Splits, *, readers: int = 4, throttle: Throttle | None = None
) -> list[EntityKey]:
    options = ReadOptions(readers, splits.split, throttle=throttle)
    reading = Reading(table, list(splits.segments.values()), options, page_rows=5)
    found: list[EntityKey] = []
    async with aclosing(reading.windows(WindowSize(20, 10**6))) as windows:
        async for window in windows:
            found += map(key_of, window.rows)
    return found


@pytest.mark.parametrize("shape", SHAPES)
async def test_keys_of_any_shape_are_all_read_once_by_several_readers(shape: str) -> None:
    keys = SHAPES[shape]
    splits = Splits()
    found = await read_all(await table_of(keys), splits)
    assert sorted(found) == sorted(EntityKey(*key) for key in keys)
    if len(keys) > 200:
        assert len(splits.segments) > 1


@pytest.mark.parametrize(("rate", "split"), [(None, True), (1_000_000, False)])
async def test_a_partition_that_has_a_rate_is_not_split(rate: int | None, split: bool) -> None:
    """More readers would get no more out of it. Partitions beside it are split off all the same."""
    for shape, beside in (("one partition for everything", False), ("half in one partition", True)):
        splits = Splits()
        throttle = Throttle(None, FakeClock(), partition=rate)
        found = await read_all(await table_of(SHAPES[shape]), splits, throttle=throttle)
        assert sorted(found) == sorted(EntityKey(*key) for key in SHAPES[shape])
        huge = "huge" if beside else ""
        ends = [one.upto for one in splits.segments.values() if one.upto is not None]
        within = any(end.partition == huge and end.row != LAST_ROW for end in ends)
        assert within is split or (split and beside)
        assert not beside or any(end.partition != huge for end in ends)


async def test_a_partition_that_has_a_rate_is_asked_nothing_to_split_it(memory: MemoryTableService) -> None:
    """Its reader takes all that the rate allows for."""
    table = await table_of(SHAPES["one partition for everything"], memory)
    asked: list[EntityKey | None] = []
    plain = table.scan

    def scan(within: KeyRange, **options: Any) -> Any:
        if options.get("page_rows") == 1:
            asked.append(within.after)
        return plain(within, **options)

    table.scan = scan  # type: ignore[method-assign, assignment]
    await read_all(table, Splits(), throttle=Throttle(None, FakeClock(), partition=1_000_000))
    assert asked
    assert every(after is not None and after.row == LAST_ROW for after in asked)


async def test_no_page_is_read_beyond_a_moved_end(memory: MemoryTableService) -> None:
    """There another reader is at work, and takes all that the rate of the partition allows for."""
    table = await table_of([(f"p{n // 50:03}", f"{n:04}") for n in range(400)], memory)
    fetched = 0
    plain = table.scan

    async def scan(within: KeyRange, **options: Any) -> AsyncIterator[Page]:
        nonlocal fetched
        async with aclosing(plain(within, **options)) as pages:
            async for page in pages:
                fetched += len(page.rows) if options["page_rows"] > 1 else 0
                yield page

    table.scan = scan  # type: ignore[method-assign, assignment]
    splits = Splits()
    await read_all(table, splits, throttle=Throttle(None, FakeClock(), partition=100))
    assert len(splits.segments) > 3
    assert fetched == 400


async def test_a_segment_that_its_rate_holds_up_is_split_at_once() -> None:
    """Idle readers do not wait until it has given many rows: at a rate of its partition that takes long."""
    clock = FakeClock()
    begin = clock.ticks()
    split_at: list[float] = []

    class Timed(Splits):
        def split(self, segment: Segment, middle: EntityKey) -> Segment:
            split_at.append((clock.ticks() - begin) / TICKS_PER_SECOND)
            return super().split(segment, middle)

    throttle = Throttle(None, clock, partition=10)
    table = await table_of([(f"p{n // 50:03}", f"{n:04}") for n in range(400)])
    assert len(await read_all(table, Timed(), throttle=throttle)) == 400
    # A page of five rows is half a second's. Each of four readers has a segment after the third split.
    assert split_at[0] < 0.5
    assert split_at[2] < 1.5


async def test_the_next_page_is_requested_when_the_rate_allows(memory: MemoryTableService) -> None:
    """A page that is refused comes later than one that was asked for in time."""
    clock = FakeClock()
    table = await table_of([("hot", f"{n:04}") for n in range(60)], memory)
    asked: list[float] = []

    async def note(call: Call) -> None:
        if call.action == "page":
            asked.append(clock.ticks() / TICKS_PER_SECOND)

    memory.gate = note
    await read_all(table, Splits(), readers=1, throttle=Throttle(None, clock, partition=10))
    gaps = [late - early for early, late in pairwise(asked)]
    assert len(gaps) >= 10
    assert min(gaps[1:]) > 0.5  # five rows a page


@pytest.mark.parametrize(("most", "read"), [(10**6, 9), (5_000, 6)])
async def test_readers_wait_at_a_full_window(memory: MemoryTableService, most: int, read: int) -> None:
    """Four readers: one page was taken, each holds one, and four wait, or 5,000 bytes of them."""
    await memory.create_table("Users")
    table = memory.table("Users")
    for n in range(400):
        await table.insert({"PartitionKey": f"{n // 100}", "RowKey": f"{n:03}", "Text": "x" * 1_000})
    ends = [None, *[EntityKey(f"{n}", LAST_ROW) for n in range(3)], None]
    segments = [Segment(n, SCRIPT, PURPOSE, after=ends[n], upto=ends[n + 1]) for n in range(4)]
    pages = 0

    async def count(call: Call) -> None:
        nonlocal pages
        pages += call.action == "page"
        await asyncio.sleep(0)

    memory.gate = count
    reading = Reading(table, segments, ReadOptions(4), page_rows=5)
    async with aclosing(reading.windows(WindowSize(5, most))) as windows:
        assert len((await anext(windows)).rows) == 5
        for _ in range(100):
            await asyncio.sleep(0)
    assert pages == read


async def test_a_middle_is_looked_for_far_from_where_somebody_reads(memory: MemoryTableService) -> None:
    """That partition may be at its limit: questions about it would be refused, or its reader."""
    table = await table_of([(f"tenant-{n // 4:03}", f"{n:04}") for n in range(400)], memory)
    asked: list[str | None] = []
    plain = table.scan

    def scan(within: KeyRange, **options: Any) -> Any:
        asked.append(within.after and within.after.partition)
        return plain(within, **options)

    table.scan = scan  # type: ignore[method-assign, assignment]
    cursor = EntityKey("tenant-013", "0053")
    middle = await find_middle(table, EVERYTHING.behind(cursor), cursor)
    assert middle is not None
    assert "tenant-013" not in asked


@pytest.mark.parametrize("shape", [name for name, keys in SHAPES.items() if len(keys) > 150])
async def test_a_middle_has_a_fair_share_of_the_rows_on_both_sides(shape: str) -> None:
    keys = sorted((EntityKey(*key) for key in SHAPES[shape]), key=lambda key: key.order)
    middle = await find_middle(await table_of(SHAPES[shape]), EVERYTHING)
    below = sum(key.order <= middle.order for key in keys)
    least = 1 if shape in ("half in one partition", "each row the beginning of the next") else len(keys) // 10
    assert least <= below <= len(keys) - least


async def test_a_long_common_prefix_costs_few_questions(memory: MemoryTableService) -> None:
    table = await table_of([("p" * 200, "r" * 200 + f"{n:03}") for n in range(100)], memory)
    calls = noted(memory)
    assert await find_middle(table, EVERYTHING) is not None
    assert len(calls) <= 60


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\#?"), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(texts, texts), max_size=30, unique=True))
def test_a_middle_always_has_rows_on_both_sides(keys: list[tuple[str, str]]) -> None:
    async def look() -> None:
        middle = await find_middle(await table_of(keys), EVERYTHING)
        if middle is not None:
            below = [key for key in keys if EntityKey(*key).order <= middle.order]
            assert 0 < len(below) < len(keys)

    asyncio.run(look())


def test_characters_are_counted_in_the_order_of_the_service() -> None:
    characters = ["a", "\ud7ff", "\U00010000", "\U0001f600", "\U0010ffff", "\ue000", "\ufffd"]
    ranks = [rank_of(character) for character in characters]
    assert ranks == sorted(ranks)
    assert [character_of(rank) for rank in ranks] == characters


async def test_rows_beyond_a_split_that_the_first_reader_still_fetches_are_left_to_the_second() -> None:
    keys = [("p", f"{n:04}") for n in range(300)]
    splits = Splits()
    found = await read_all(await table_of(keys), splits, readers=8)
    assert len(found) == len(set(found)) == 300
    assert len(splits.segments) > 2


async def test_one_reader_splits_nothing() -> None:
    splits = Splits()
    await read_all(await table_of([("p", f"{n:04}") for n in range(300)]), splits, readers=1)
    assert len(splits.segments) == 1


async def test_the_error_of_one_reader_ends_all_and_comes_through(memory: MemoryTableService) -> None:
    table = await table_of([("p", f"{n:04}") for n in range(300)], memory)
    calls = 0

    class Broken(Exception):
        pass

    async def fail(_call: Call) -> None:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise Broken

    memory.gate = fail
    with pytest.raises(Broken):
        await read_all(table, Splits())


# --- splits in the state file ---------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State.open(tmp_path / "state.sqlite")
    state.register(SCRIPT, "digest", "Users", "run", {}, "account")
    return state


def test_a_split_leaves_every_key_in_exactly_one_segment(state: State) -> None:
    with state:
        [whole] = state.add_segments(SCRIPT, PURPOSE, [EVERYTHING])
        new = state.split_segment(whole, EntityKey("m", ""))
        # A checkpoint that was on its way during the split does not undo it.
        state.checkpoint([replace(whole, cursor=EntityKey("c", ""), rows=3)])
        low, high = state.segments(SCRIPT, PURPOSE)
    assert (low.after, low.upto, low.cursor) == (None, EntityKey("m", ""), EntityKey("c", ""))
    assert (high.id, high.rest) == (new.id, KeyRange(EntityKey("m", ""), None))


def test_a_split_behind_the_cursor_or_of_a_segment_that_is_done_is_refused(state: State) -> None:
    with state:
        [whole] = state.add_segments(SCRIPT, PURPOSE, [EVERYTHING])
        state.checkpoint([replace(whole, cursor=EntityKey("t", ""))])
        with pytest.raises(StateUnusable):
            state.split_segment(whole, EntityKey("m", ""))
        state.checkpoint([replace(whole, done=True)])
        with pytest.raises(StateUnusable):
            state.split_segment(whole, EntityKey("z", ""))
        assert len(state.segments(SCRIPT, PURPOSE)) == 1


@pytest.mark.parametrize("at", others_in_soak(range(1, 160, 13), kept=range(1, 160, 39)))
async def test_cut_off_anywhere_little_is_reread(state: State, memory: MemoryTableService, at: int) -> None:
    rows: list[Row] = [user(f"user{n:04}@example.com", f"p{n % 3}") for n in range(600)]
    world = await World(memory, USERS).prepare(rows)
    calls = 0

    async def kill(_call: Call) -> None:
        nonlocal calls
        calls += 1
        if calls >= at:
            raise Killed

    async def copy() -> int:
        segments = state.segments(SCRIPT, PURPOSE) or state.add_segments(SCRIPT, PURPOSE, [EVERYTHING])
        async with world.copier.writer() as writer:
            copied, _ = await copy_segments(
                world.source,
                segments,
                writer.copy,
                WindowSize(20, 10**6),
                callbacks=Callbacks(state.checkpoint),
                options=ReadOptions(4, state.split_segment),
                writer=writer,
            )
        return copied.rows

    with state:
        memory.gate = kill
        with suppress(Killed):
            await copy()
        memory.gate = instant_gate
        before = sum(segment.rows for segment in state.segments(SCRIPT, PURPOSE))
        assert await copy() == 600 - before
        segments = state.segments(SCRIPT, PURPOSE)
        assert sum(segment.rows for segment in segments) == 600
        assert every(segment.done for segment in segments)
    world.assert_in_step()
