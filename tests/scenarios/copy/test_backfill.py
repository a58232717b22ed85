"""Backfill: everything is copied, nothing is overwritten, checkpoints never run ahead."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rekey.copy import write as writing
from rekey.copy.batches import BatchBuffer
from rekey.copy.map import TURN_ROWS
from rekey.copy.pipeline import Callbacks, copy_segments
from rekey.copy.write import GATHERED_WINDOWS
from rekey.errors import Collision, RowRefused, Unavailable
from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import EVERYTHING, EntityKey, KeyRange, Row, content_of, key_of
from rekey.state.models import Segment
from tests.asserts.every import every
from tests.fakes.faults import Call
from tests.fakes.interference import before
from tests.fakes.memory import MemoryTableService
from tests.worlds.small import LOWERED, POSTS, USERS, World, post, user

WHOLE = Segment(id=1, script_id="0001_users", purpose="backfill")


async def backfill(
    world: World, segments: list[Segment] | None = None, checkpoints: list[Segment] | None = None
) -> int:
    """Copy all segments; return the number of rows read."""
    kept: list[Segment] = [] if checkpoints is None else checkpoints
    copied, _ = await copy_segments(
        world.source,
        segments or [WHOLE],
        world.copier.copy,
        world.window,
        callbacks=Callbacks(kept.extend),
    )
    return copied.rows


def users(count: int) -> list[dict[str, object]]:
    return [user(f"user{number:04}@example.com", f"p{number % 7}") for number in range(count)]


@pytest.mark.parametrize("migration", [USERS, POSTS], ids=["keys from keys", "keys from content"])
async def test_every_row_gets_targets_and_mapping(memory: MemoryTableService, migration: object) -> None:
    rows = users(450) if migration is USERS else [post(f"p{n:03}", f"2024-0{n % 9 + 1}") for n in range(350)]
    world = await World(memory, USERS if migration is USERS else POSTS).prepare(rows)
    assert await backfill(world) == len(rows)
    world.assert_in_step()


async def gathered(world: World) -> int:
    """Copy all rows as the runner does; return the number of rows read."""
    async with asyncio.timeout(60), world.copier.writer() as writer:
        copied, _ = await copy_segments(world.source, [WHOLE], writer.copy, world.window, writer=writer)
    return copied.rows


async def test_mapping_yields_the_loop(memory: MemoryTableService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that may go are not held up for as long as a window takes."""
    rows = [user(f"user{number:05}@example.com", f"p{number % 7}") for number in range(6_000)]
    world = await World(memory, USERS).prepare(rows)
    steps = Counter[str]()
    longest = Counter[str]()

    def counted(name: str, of: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any) -> Any:
            steps[name] += 1
            return of(*given)

        return step

    map_all = world.mapper.map_all

    def mapped(some: Sequence[Row], refused: Callable[..., object]) -> Any:
        steps["mapped"] += len(some)
        return map_all(some, refused)

    monkeypatch.setattr(world.mapper, "map_all", mapped)
    monkeypatch.setattr(BatchBuffer, "add", counted("partitions packed", BatchBuffer.add))
    sort_out = writing.sort_out
    monkeypatch.setattr(writing, "sort_out", counted("sorted", sort_out))

    async def others() -> None:
        while True:
            for name, count in steps.items():
                longest[name] = max(longest[name], count)
            steps.clear()
            await asyncio.sleep(0)

    having_turns = asyncio.create_task(others())
    async with world.copier.writer() as writer:
        writer.drain()
        copied = await writer.copy([row async for page in world.source.scan() for row in page.rows])
    having_turns.cancel()
    assert copied.inserted == 6_000
    assert 0 < longest["mapped"] <= TURN_ROWS
    assert longest["sorted"] == 1, "a hundred writes at a time"
    # 12,000 mapping rows lie in 64 partitions, more than a hundred in each.
    assert longest["partitions packed"] == 1


async def test_one_batch_that_is_refused_for_long_holds_up_no_others(memory: MemoryTableService) -> None:
    """Those that it has rows of: all others are written beside it."""
    rows = [
        user(f"user{number:04}@example.com", "a" if number < 5 else f"b{number % 7}")
        for number in range(2_300)
    ]
    world = await World(memory, USERS).prepare(rows)
    stuck, written = asyncio.Event(), 0

    async def hold_one(call: Call) -> None:
        nonlocal written
        if call.action == "transact" and call.table == "UsersV2":
            if not stuck.is_set():
                stuck.set()
                while written < 1_900:
                    await asyncio.sleep(0)
            written += len(call.operations)

    memory.gate = hold_one
    assert await gathered(world) == 2_300
    world.assert_in_step()


async def test_while_nothing_can_be_written_only_a_few_windows_are_read(memory: MemoryTableService) -> None:
    world = await World(memory, USERS).prepare(users(2_300))
    pages, read_when_held = 0, 0

    async def hold_all(call: Call) -> None:
        nonlocal pages, read_when_held
        pages += call.action == "page" and call.table == world.source.name
        if call.action == "transact" and call.table == "UsersV2" and not read_when_held:
            before = -1
            while before < pages:
                before = pages
                for _ in range(3_000):  # others have many turns, those that pack a window above all
                    await asyncio.sleep(0)
            read_when_held = read_when_held or pages

    memory.gate = hold_all
    assert await gathered(world) == 2_300
    # Besides those there is room for: one in hand, one made ahead of it, a page that waits and one asked for.
    assert GATHERED_WINDOWS <= read_when_held <= GATHERED_WINDOWS + 4


async def test_copying_again_changes_nothing(memory: MemoryTableService) -> None:
    world = await World(memory, USERS).prepare(users(250))
    await backfill(world)
    before = memory.dump("UsersV2"), memory.dump(MAPPING_TABLE)
    await backfill(world)
    assert (memory.dump("UsersV2"), memory.dump(MAPPING_TABLE)) == before


async def test_an_older_scan_does_not_overwrite_a_writers_row(memory: MemoryTableService) -> None:
    """The row changes and is propagated after the page was read and before it is written."""
    world = await World(memory, USERS).prepare(users(30))
    key = EntityKey("p3", "user0003@example.com")

    async def write() -> None:
        await world.source.merge({"PartitionKey": key.partition, "RowKey": key.row, "Nm": "newer"})
        await world.propagator.propagate(key)

    change = before(memory, "transact", MAPPING_TABLE, write)
    await backfill(world)
    assert change.happened
    world.assert_in_step()


async def test_mapping_rows_are_durable_before_the_first_target_row(memory: MemoryTableService) -> None:
    world = await World(memory, POSTS).prepare([post(f"p{n:03}", f"2024-0{n % 9 + 1}") for n in range(150)])

    async def look(_call: Call) -> None:
        assert world.unaccounted() == []

    memory.gate = look
    await backfill(world)
    world.assert_in_step()


async def test_a_checkpoint_stands_only_over_rows_that_are_written(memory: MemoryTableService) -> None:
    world = await World(memory, USERS).prepare(users(700))
    claims: list[tuple[Segment, bool]] = []

    def check(segments: list[Segment]) -> None:
        done = world.actual()["UsersV2"].keys()
        for segment in segments:
            covered = KeyRange(None, segment.cursor)
            rows = [row for row in memory.dump("Users") if key_of(row) in covered]
            wanted = {key_of(mapped.row) for row in rows for mapped in world.mapper.map(row)}
            claims.append((segment, wanted <= done and len(rows) == segment.rows))

    await copy_segments(world.source, [WHOLE], world.copier.copy, world.window, callbacks=Callbacks(check))
    assert len(claims) >= 3
    assert every(held for _, held in claims)
    assert claims[-1][0].done


async def test_work_goes_on_behind_the_cursor_and_nothing_is_read_twice(memory: MemoryTableService) -> None:
    world = await World(memory, USERS).prepare(users(500))
    kept: list[Segment] = []

    class Stop(Exception):
        pass

    def checkpoint(segments: list[Segment]) -> None:
        kept.extend(segments)
        if len(kept) == 1:
            raise Stop

    with pytest.raises(Stop):
        await copy_segments(
            world.source,
            [WHOLE],
            world.copier.copy,
            replace(world.window, rows=200),
            callbacks=Callbacks(checkpoint),
        )
    first = kept[0]
    assert 0 < first.rows < 500
    assert await backfill(world, [first]) == 500 - first.rows
    world.assert_in_step()


async def test_a_stop_ends_after_a_window_with_its_checkpoint(memory: MemoryTableService) -> None:
    world = await World(memory, USERS).prepare(users(3000))
    kept: list[Segment] = []
    copied, whole = await copy_segments(
        world.source,
        [WHOLE],
        world.copier.copy,
        world.window,
        callbacks=Callbacks(kept.extend, lambda: bool(kept)),
    )
    assert not whole
    assert copied.rows == kept[-1].rows < 3000
    assert await backfill(world, [kept[-1]]) == 3000 - copied.rows
    world.assert_in_step()


async def test_a_target_key_collision_stops_the_backfill(memory: MemoryTableService) -> None:
    rows = [*users(50), user("ann@example.com"), user("Ann@example.com")]
    world = await World(memory, LOWERED).prepare(rows)
    with pytest.raises(Collision) as collision:
        await backfill(world)
    ids = world.mapping.rows.ids
    named = {ids.short("Users", EntityKey("eu", name)) for name in ("ann@example.com", "Ann@example.com")}
    assert named == {collision.value.first_id, collision.value.second_id}


async def test_a_row_that_cannot_be_keyed_stops_the_backfill_by_safe_id(memory: MemoryTableService) -> None:
    world = await World(memory, POSTS).prepare([post("fine"), {"PartitionKey": "blog", "RowKey": "broken"}])
    with pytest.raises(RowRefused) as refused:
        await backfill(world)
    assert refused.value.row_id == world.mapping.rows.ids.short("Posts", EntityKey("blog", "broken"))
    assert memory.dump("PostsV2") == []


async def test_segments_are_done_one_after_another_each_within_its_bounds(memory: MemoryTableService) -> None:
    world = await World(memory, USERS).prepare(users(300))
    low, high = EVERYTHING.split(EntityKey("p3", "user0150@example.com"))
    segments = [
        Segment(id=number, script_id="0001_users", purpose="backfill", after=part.after, upto=part.upto)
        for number, part in enumerate((low, high), start=1)
    ]
    kept: list[Segment] = []
    assert await backfill(world, segments, kept) == 300
    final = {segment.id: segment for segment in kept}
    assert every(segment.done for segment in final.values())
    assert sum(segment.rows for segment in final.values()) == 300
    world.assert_in_step()


async def test_a_failed_write_raises_and_stores_no_checkpoint(memory: MemoryTableService) -> None:
    world = await World(memory, USERS).prepare(users(120))
    kept: list[Segment] = []

    async def fail(call: Call) -> None:
        if call.table == "UsersV2" and call.action in ("transact", "insert"):
            raise Unavailable("the service is busy", code="ServerBusy", status=503)

    memory.gate = fail
    with pytest.raises(Unavailable):
        await backfill(world, checkpoints=kept)
    assert kept == []


def test_a_read_row_is_written_without_what_the_server_owns() -> None:
    read = {"PartitionKey": "p", "RowKey": "r", "A": 1, "Timestamp": "t", "odata.etag": "e"}
    assert content_of(read) == {"PartitionKey": "p", "RowKey": "r", "A": 1}
