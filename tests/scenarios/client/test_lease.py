"""The epochs of a client: beats, readings, what is acknowledged when, and waiting in a freeze."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from rekey.client.reading import LeaseSettings
from rekey.client.route import OtherRun, Writer
from rekey.errors import Ambiguous, EndpointDown, RowExists, RowTooBusy, Unavailable, WritesRefused
from rekey.protocol.registry import is_current
from rekey.tables.base import Operation, Verb
from tests.fakes.faults import Call
from tests.fakes.memory import MemoryTableService
from tests.worlds.dual_write import TAGGED, DualWorld
from tests.worlds.leases import LEASE_S, LONGEST_S, C, D, F, World, epoch_of, refused


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    async with made.leases:
        yield made
        made.weather.down = False


# --- beats, readings, acknowledging ---------------------------------------------------------------------


async def test_before_a_migration_begins_a_client_registers_and_writes_as_always(world: World) -> None:
    lease = await world.started()
    async with lease.operation(writes=True) as permit:
        assert (permit.phase, permit.epoch, permit.copied) == (None, 0, False)
    row = await world.client()
    assert (row.name, row.view, row.epoch, row.run_id) == ("web", "old", 0, "")
    assert lease.current() is not None


async def test_a_client_beats_before_it_reads(world: World) -> None:
    """Whoever moved the row and does not see the client knows: the client sees the move."""
    await world.begin(D)
    calls: list[str] = []
    passing = world.service.gate

    async def note(call: Call) -> None:
        calls.append(call.action)
        await passing(call)

    world.service.gate = note
    lease = world.lease()
    await lease.poll()
    # The second time it tells what it goes by. The page names other migrations of its rows.
    assert calls == ["insert_or_replace", "get", "page", "insert_or_replace", "get"]
    await lease.poll()
    assert calls[5:] == ["insert_or_replace", "get"]


async def test_a_move_is_noticed_and_acknowledged_within_a_poll(world: World) -> None:
    control = await world.begin()
    lease = await world.started()
    assert is_current(await world.client(), control.run_id, 1)
    await world.move(D)
    assert await epoch_of(lease) == 1, "what was read is good until the lease is over"
    await world.pass_time(1.0)
    assert is_current(await world.client(), control.run_id, 2)
    async with lease.operation(writes=True) as permit:
        assert (permit.phase, permit.epoch) == (D, 2)


async def test_copied_is_taken_over_without_a_new_epoch(world: World) -> None:
    await world.begin(D)
    lease = await world.started()
    await world.store.mark_copied()
    await lease.poll()
    async with lease.operation(writes=False) as permit:
        assert (permit.epoch, permit.copied) == (2, True)


async def test_an_epoch_is_acknowledged_when_nothing_older_is_under_way(world: World) -> None:
    control = await world.begin(D)
    lease = await world.started()
    async with lease.operation(writes=True) as old:
        await world.move(F)
        await world.pass_time(5)
        assert lease.control.epoch == 3, "it goes by the new epoch at once"
        row = await world.client()
        assert (row.epoch, row.in_flight) == (2, 1)
        background = AsyncExitStack()
        background.enter_context(lease.hold(old))
    await world.pass_time(5)
    assert not is_current(await world.client(), control.run_id, 3)
    await background.aclose()
    await world.pass_time(0)
    row = await world.client()
    assert (row.epoch, row.in_flight) == (3, 0), "at once, not at the next poll"
    assert world.settled == [2], "settled before it was told"
    with pytest.raises(WritesRefused), lease.hold(old):
        pass


async def test_an_operation_of_the_new_epoch_does_not_keep_it_from_being_acknowledged(world: World) -> None:
    await world.begin()
    lease = await world.started()
    async with lease.operation(writes=True):
        await world.move(D)
        await world.pass_time(1)
        async with lease.operation(writes=True) as permit:
            assert permit.epoch == 2
            newer = AsyncExitStack()
            newer.enter_context(lease.hold(permit))
    await world.pass_time(0)
    assert (await world.client()).epoch == 2
    await newer.aclose()


async def test_beats_go_on_while_older_work_is_settled(world: World) -> None:
    await world.begin(D)
    settled = asyncio.Event()
    lease = await world.started(settle=lambda: until(settled))
    await epoch_of(lease)
    await world.move(F)
    await world.pass_time(3 * LEASE_S)
    assert lease.trusted
    row = await world.client()
    assert row.epoch == 2
    assert row.beat_at > world.hand.ticks() - 20_000_000
    settled.set()
    await world.pass_time(0)
    assert (await world.client()).epoch == 3


async def until(event: asyncio.Event) -> None:
    await event.wait()


async def test_failed_settling_blocks_ack(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.begin(D)
    failing = [Unavailable("busy", code="ServerBusy")] * 2

    async def settle() -> None:
        if failing:
            raise failing.pop()

    lease = await world.started(settle=settle)
    await epoch_of(lease)
    await world.move(F)
    with caplog.at_level(logging.WARNING):
        await world.pass_time(1)
    assert lease.problem is not None
    assert "ServerBusy" in caplog.text
    assert (await world.client()).epoch == 2
    await world.pass_time(2)
    assert lease.problem is None
    assert (await world.client()).epoch == 3


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (Ambiguous("broken"), True),
        (Unavailable("timed out"), True),
        (TimeoutError(), True),
        (asyncio.CancelledError(), True),
        (RowExists("there"), False),
        (EndpointDown("not sent"), False),
        (RowTooBusy("another write makes it", hint="repeat it"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_an_unjournaled_write_is_awaited(world: World, error: BaseException, waits: bool) -> None:
    """In `source` there is no intent: landing after the acknowledged move it would be seen by nobody."""
    await world.begin()
    lease = await world.started()
    with pytest.raises(type(error)):
        async with lease.operation(writes=True):
            raise error
    await world.move(D)
    await world.pass_time(LONGEST_S - 1)
    assert (await world.client()).epoch == (1 if waits else 2)
    await world.pass_time(2)
    assert (await world.client()).epoch == 2


async def test_a_writer_of_another_run_has_written_nothing_that_is_waited_for(world: World) -> None:
    """The permit goes back before the writer is told to be made anew: its lease sees no write that failed."""
    await world.begin()
    lease = await world.started()
    dual = DualWorld(MemoryTableService(), TAGGED)
    writer = Writer(replace(dual.writer().client, permits=lease, run_id="an earlier run"))
    with pytest.raises(OtherRun):
        await writer.write([Operation(Verb.DELETE, {"PartitionKey": "p", "RowKey": "r"}, "*")])
    await world.move(D)
    await world.pass_time(1)
    assert (await world.client()).epoch == 2


async def test_with_a_journal_the_intent_waits_instead(world: World) -> None:
    await world.begin(D)
    lease = await world.started()
    with pytest.raises(Ambiguous):
        async with lease.operation(writes=True):
            raise Ambiguous("broken")
    await world.move(F)
    await world.pass_time(1)
    assert (await world.client()).epoch == 3


# --- freeze -----------------------------------------------------------------------------------------------


async def test_writes_wait_in_a_freeze_reads_go_on_and_waiting_is_not_under_way(world: World) -> None:
    await world.begin(D, F)
    lease = await world.started()
    waiting = asyncio.create_task(epoch_of(lease))
    await world.pass_time(2)
    assert not waiting.done()
    assert await epoch_of(lease, writes=False) == 3
    row = await world.client()
    assert (row.epoch, row.in_flight) == (3, 0)
    await world.move(C)
    await world.pass_time(0.3)
    assert waiting.done(), "a freeze is looked at more often"
    assert await waiting == 4


async def test_a_write_that_has_waited_long_enough_is_refused_and_may_be_repeated(world: World) -> None:
    await world.begin(D, F)
    lease = await world.started()
    waiting = asyncio.create_task(refused(lease, "frozen"))
    await world.pass_time(9.9)
    assert not waiting.done()
    await world.pass_time(0.2)
    assert (await waiting).retryable
    await world.move(D)
    await world.pass_time(0.3)
    assert await epoch_of(lease) == 4


async def test_a_freeze_that_ends_in_the_next_one_goes_on_waiting_no_longer_than_said(world: World) -> None:
    await world.begin(D, F)
    lease = await world.started()
    waiting = asyncio.create_task(refused(lease, "frozen"))
    for phase in (D, F):
        await world.move(phase)
    await world.pass_time(9)
    assert not waiting.done()
    await world.pass_time(1.1)
    await waiting


async def test_a_restricted_store_that_is_away_during_a_freeze_ends_no_waiting_early(world: World) -> None:
    await world.begin(D, F)
    lease = await world.started(settings=LeaseSettings(freeze_wait_s=40))
    waiting = asyncio.create_task(epoch_of(lease))
    world.weather.down = True
    await world.pass_time(LEASE_S + 5)
    assert not waiting.done()
    world.weather.down = False
    await world.move(C)
    await world.pass_time(1)
    assert await waiting == 4


async def test_a_client_that_starts_in_a_freeze_waits_like_the_others(world: World) -> None:
    control = await world.begin(D, F)
    lease = await world.started()
    assert is_current(await world.client(), control.run_id, 3)
    waiting = asyncio.create_task(epoch_of(lease))
    await world.move(C)
    await world.pass_time(0.3)
    assert await waiting == 4


async def test_closing_ends_the_waiting(world: World) -> None:
    await world.begin(D, F)
    lease = await world.started()
    waiting = asyncio.create_task(refused(lease, "closed"))
    await world.pass_time(1)
    await lease.close()
    await waiting
