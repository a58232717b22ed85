"""Capture "delta": passes bring changes, the sweep brings deletes, the way back loses nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rekey import Migration, Target, keys, props
from rekey.copy.back import BackPropagator
from rekey.copy.delta import PassResult, delta_pass, fresh_second
from rekey.copy.pipeline import Callbacks
from rekey.copy.sweep import DigestParts
from rekey.core.clock import earlier, later
from rekey.errors import RowRefused
from rekey.model import EntityKey, Row, content_of, etag_of, key_of
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Call
from tests.fakes.interference import before, noted
from tests.fakes.memory import MemoryTableService
from tests.worlds.small import DROPPING, POSTS, USERS, World, post, swept, ticket, user

MARGIN = 300.0


async def one_pass(world: World, watermark: str) -> PassResult:
    return await delta_pass(
        world.source,
        world.copier,
        server_time=world.service.server_time,
        clock=world.service.clock,
        since=earlier(watermark, MARGIN),
        size=world.window,
        callbacks=Callbacks(),
    )


@pytest.mark.parametrize("told", [["12:00:07", "12:00:07", "12:00:08"], ["12:00:07", "12:00:31"]])
async def test_the_next_second_follows_the_question_not_the_answer(told: list[str]) -> None:
    """What is written in a later one is not taken for older."""
    answers = [f"2024-01-31T{time}Z" for time in told]

    async def server_time() -> str:
        return answers.pop(0)

    assert await fresh_second(server_time, FakeClock()) == "2024-01-31T12:00:08.0000000Z"
    assert not answers


async def test_a_pass_brings_new_changed_and_moved_rows(memory: MemoryTableService, clock: FakeClock) -> None:
    world = await World(memory, POSTS).prepare([post(f"p{n:03}") for n in range(120)])
    watermark = await memory.server_time()
    await one_pass(world, watermark)
    clock.advance(3600)
    await world.source.insert(post("new"))
    await world.source.replace(post("p005", "2024-07", "z"))
    await world.source.merge({"PartitionKey": "blog", "RowKey": "p006", "Title": "changed"})
    result = await one_pass(world, earlier(await memory.server_time(), 60))
    assert result.whole
    assert result.copied.rows == 3
    world.assert_in_step()


async def test_the_next_pass_sees_writes_during_a_pass(memory: MemoryTableService, clock: FakeClock) -> None:
    world = await World(memory, USERS).prepare([user(f"u{n:03}@example.com") for n in range(300)])
    wrote = False

    async def write_behind_the_scan(call: Call) -> None:
        nonlocal wrote
        clock.advance(1)
        if call.action == "transact" and call.table == "UsersV2" and not wrote:
            wrote = True
            await world.source.insert(user("a-first@example.com"))

    memory.gate = write_behind_the_scan
    first = await one_pass(world, await memory.server_time())
    assert wrote
    assert world.actual() != world.expected()
    second = await one_pass(world, first.started_at)
    assert second.copied.rows < 302
    world.assert_in_step()


async def test_in_flight_requests_are_within_the_margin(memory: MemoryTableService, clock: FakeClock) -> None:
    world = await World(memory, USERS).prepare()
    clock.advance(3600)
    await world.source.insert(user("late@example.com"))
    clock.advance(MARGIN - 1)
    await one_pass(world, await memory.server_time())
    world.assert_in_step()


async def test_a_pass_never_shows_deletes_and_the_sweep_does(memory: MemoryTableService) -> None:
    world = await World(memory, POSTS).prepare([post(f"p{n:03}") for n in range(200)])
    watermark = await memory.server_time()
    await one_pass(world, watermark)
    for number in range(0, 200, 3):
        await world.source.delete(EntityKey("blog", f"p{number:03}"))
    await one_pass(world, watermark)
    assert world.actual() != world.expected()
    assert await swept(world) == 67
    world.assert_in_step()
    assert await swept(world) == 0


async def test_a_row_deleted_and_written_again_while_the_sweep_runs_stays(memory: MemoryTableService) -> None:
    world = await World(memory, USERS).prepare([user("ann@example.com"), user("bob@example.com")])
    await one_pass(world, await memory.server_time())
    key = EntityKey("eu", "ann@example.com")
    await world.source.delete(key)
    again = before(memory, "get", "Users", lambda: world.source.insert(user("ann@example.com")))
    await swept(world)
    assert again.happened
    world.assert_in_step()


def test_digest_parts_round_trip_and_clean_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory, what is on disk, and what is in both; a small table needs no file."""
    digests = [f"{n % 3:02}{n:030}" for n in range(5000)]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for buffered, files in ((5001, 0), (5000, 3), (1900, 3)):
        monkeypatch.setattr("rekey.copy.sweep._BUFFERED", buffered)
        with DigestParts() as parts:
            for digest in digests:
                parts.add(digest)
            assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == files
            for prefix in ("00", "01", "02", "zz"):
                assert parts.read(prefix) == {digest for digest in digests if digest.startswith(prefix)}
        assert list(tmp_path.iterdir()) == []


def test_moments_are_moved_to_the_100_ns() -> None:
    moment = "2024-01-31T23:59:59.9999999Z"
    assert later(moment, 1) == "2024-02-01T00:00:00.9999999Z"
    assert earlier(later(moment, 90.5), 90.5) == moment


# --- the way back ------------------------------------------------------------------------------------


async def cut_over(memory: MemoryTableService, rows: list[Row], migration: Migration = USERS) -> World:
    world = await World(memory, migration).prepare(rows)
    await one_pass(world, await memory.server_time())
    world.assert_in_step()
    return world


def target_of(world: World, row: Row) -> Row:
    """What a source row is in the main target."""
    return world.mapper.map(row)[0].row


async def test_a_changed_target_row_updates_its_source_row(memory: MemoryTableService) -> None:
    world = await cut_over(memory, [user("ann@example.com"), user("bob@example.com")])
    back = BackPropagator(world.propagator)
    target = target_of(world, user("ann@example.com"))
    await world.targets[0].merge({**{k: target[k] for k in ("PartitionKey", "RowKey")}, "Name": "Ann"})
    assert await back.propagate(EntityKey("eu", "ann@example.com"))
    source = await world.source.get(EntityKey("eu", "ann@example.com"))
    assert (source["Nm"], source["Ssn"]) == ("Ann", "x-1")
    world.assert_in_step()
    assert not await back.propagate(EntityKey("eu", "bob@example.com"))


async def test_a_new_target_row_names_its_old_key(memory: MemoryTableService) -> None:
    world = await cut_over(memory, [user("ann@example.com")])
    back = BackPropagator(world.propagator)
    new = target_of(world, user("new@example.com"))
    await world.targets[0].insert(new)
    source_key = await back.claim_new(new)
    assert source_key == EntityKey("eu", "new@example.com")
    assert await back.propagate(source_key)
    world.assert_in_step()


async def test_a_row_deleted_in_the_target_is_deleted_in_the_source(memory: MemoryTableService) -> None:
    world = await cut_over(memory, [user("ann@example.com"), user("bob@example.com")])
    back = BackPropagator(world.propagator)
    target = target_of(world, user("ann@example.com"))
    await world.targets[0].delete(EntityKey(target["PartitionKey"], target["RowKey"]))
    assert await back.propagate(EntityKey("eu", "ann@example.com"))
    assert [row["RowKey"] for row in memory.dump("Users")] == ["bob@example.com"]


async def test_a_row_without_an_old_key_is_refused(memory: MemoryTableService) -> None:
    world = await cut_over(memory, [user("ann@example.com")])
    stranger: Row = {"PartitionKey": "eu", "RowKey": "0" * 32, "Name": "nobody"}
    await world.targets[0].insert(stranger)
    before = memory.dump("Users"), memory.dump("rekeymap")
    with pytest.raises(RowRefused) as refused:
        await BackPropagator(world.propagator).check(stranger)
    assert refused.value.code == "no-old-key"
    assert refused.value.row_id == world.mapping.rows.ids.short("UsersV2", EntityKey("eu", "0" * 32))
    assert (memory.dump("Users"), memory.dump("rekeymap")) == before


@pytest.mark.parametrize(
    ("change", "names"),
    [({"ContactEmail": "other@example.com"}, "ContactEmail"), ({"Ssn": "y-2"}, "Ssn")],
    ids=["the carrier of the old key", "a property that the mapping drops"],
)
async def test_lossy_reversal_refused(memory: MemoryTableService, change: dict[str, str], names: str) -> None:
    world = await cut_over(memory, [user("ann@example.com")])
    [target] = memory.dump("UsersV2")
    await world.targets[0].replace({**content_of(target), **change}, etag=etag_of(target))
    [changed] = memory.dump("UsersV2")
    with pytest.raises(RowRefused, match=names) as refused:
        await BackPropagator(world.propagator).check(changed)
    assert refused.value.code == "not-reversible"
    assert "example" not in str(refused.value)


async def test_a_moved_target_row_returns_to_its_old_key(memory: MemoryTableService) -> None:
    world = await cut_over(memory, [post("hello", "2024-01")], POSTS)
    back = BackPropagator(world.propagator)
    moved = target_of(world, post("hello", "2024-05"))
    await world.targets[0].insert(moved)
    await world.targets[0].delete(EntityKey("2024-01", "hello"))
    source_key = await back.claim_new(moved)
    assert await back.propagate(source_key)
    await world.propagator.propagate(source_key)
    world.assert_in_step()
    [source] = memory.dump("Posts")
    assert source["Month"] == "2024-05"


async def test_two_target_rows_of_one_old_key_are_refused(memory: MemoryTableService) -> None:
    world = await cut_over(memory, [post("hello", "2024-01")], POSTS)
    back = BackPropagator(world.propagator)
    twin = target_of(world, post("hello", "2024-05"))
    await world.targets[0].insert(twin)
    source_key = await back.claim_new(twin)
    with pytest.raises(RowRefused, match="claim the same old key"):
        await back.propagate(source_key)


async def test_a_copied_timestamp_is_reversible(memory: MemoryTableService, clock: FakeClock) -> None:
    stamped = Migration(
        source="Users",
        target=Target(
            "UsersV2",
            partition_key=keys.prop("PartitionKey"),
            row_key=keys.prop("RowKey") + keys.literal("-v2"),
            properties=[props.copy("RowKey", to="Email"), props.copy("Timestamp", to="SeenAt")],
        ),
        capture="delta",
    )
    world = await cut_over(memory, [user("ann@example.com")], stamped)
    clock.advance(60)
    [target] = memory.dump("UsersV2")
    await world.targets[0].replace({**content_of(target), "Nm": "Ann"}, etag=etag_of(target))
    key = EntityKey("eu", "ann@example.com")
    assert await BackPropagator(world.propagator).propagate(key)
    [source] = memory.dump("Users")
    assert source["Nm"] == "Ann"
    assert "SeenAt" not in source


def test_a_declaration_of_the_scenarios_can_go_back() -> None:
    assert USERS.reverse
    assert replace(USERS, reverse=False).digest() != USERS.digest()


async def test_a_delta_pass_removes_the_rows_of_a_row_that_no_kind_takes_any_more(
    memory: MemoryTableService,
) -> None:
    world = await World(memory, DROPPING).prepare([ticket("1"), ticket("2"), ticket("3", "draft")])
    await world.copier.copy(memory.dump("Tickets"))
    await world.source.replace(ticket("1", "draft"))
    await world.source.replace(ticket("3"))
    copied = await world.copier.copy_changed(memory.dump("Tickets"))
    assert (copied.rows, copied.not_migrated) == (3, 1)
    world.assert_in_step()
    assert [row["RowKey"] for row in memory.dump("TicketsV2")] == ["open:2", "open:3"]


async def test_rows_in_step_need_no_write_or_mapping(memory: MemoryTableService) -> None:
    rows = [user(f"u{number:03}@example.com", f"p{number % 3}") for number in range(150)]
    world = await cut_over(memory, rows)
    await world.source.merge({"PartitionKey": "p0", "RowKey": "u003@example.com", "Nm": "changed"})
    await world.targets[0].delete(EntityKey(*list(world.expected()["UsersV2"])[7]))
    calls = noted(memory, lambda call: call.table == "rekeymap")
    copied = await world.copier.copy_changed(memory.dump("Users"))
    assert (copied.rows, copied.inserted + copied.changed) == (150, 2)
    assert len(calls) < 20
    world.assert_in_step()


async def test_a_rollback_rereads_only_differing_rows(memory: MemoryTableService) -> None:
    rows = [user(f"u{number:03}@example.com", f"p{number % 3}") for number in range(90)]
    world = await cut_over(memory, rows)
    back = BackPropagator(world.propagator)
    assert await back.differing(memory.dump("UsersV2"), limit=4) == []
    changed, gone = memory.dump("UsersV2")[:2]
    await world.targets[0].replace({**content_of(changed), "Name": "changed"}, etag=etag_of(changed))
    await world.source.delete(EntityKey(gone["PartitionKey"], gone["ContactEmail"]))
    stranger: Row = {"PartitionKey": "p0", "RowKey": "0" * 32, "Name": "nobody"}
    await world.targets[0].insert(stranger)
    found = await back.differing(memory.dump("UsersV2"), limit=4)
    assert {key_of(row) for row in found} == {key_of(changed), key_of(gone), key_of(stranger)}
