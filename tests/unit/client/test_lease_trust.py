"""What a client may trust and for how long, when stores fail, processes stand still and rows go away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from rekey.client.lease import ClientLease, Permit
from rekey.core.clock import monotonic_seconds
from rekey.errors import Ambiguous, EndpointDown, RowTooBusy, StateUnusable, Unavailable, WritesRefused
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import EntityKey
from rekey.phases import ControlPhase
from rekey.protocol.registry import SAFETY_S, is_current, is_over
from tests.fakes.faults import Call, FaultKind
from tests.worlds.leases import FACTS, LEASE_S, LONGEST_S, SCRIPT, C, D, F, S, World, epoch_of, refused


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    async with made.leases:
        yield made
        made.weather.down = False


# --- what may be trusted ------------------------------------------------------------------------------------


async def test_an_outage_is_borne_until_lease_ends(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.begin(D)
    lease = await world.started()
    world.weather.down = True
    with caplog.at_level(logging.WARNING):
        await world.pass_time(LEASE_S - 0.1)
    assert await epoch_of(lease) == 2
    assert [record.message.count("ConnectError") for record in caplog.records] == [1], "said once"
    assert isinstance(lease.problem, EndpointDown)
    await world.pass_time(0.2)
    error = await refused(lease, "lease-lost")
    assert error.retryable
    assert "ConnectError" in error.what
    await refused(lease, "lease-lost", writes=False)
    assert lease.current() is None
    world.weather.down = False
    assert await epoch_of(lease) == 2, "the next operation looks first"
    assert lease.problem is None


async def test_a_store_that_is_away_at_the_start_is_refused_by_the_first_operation(world: World) -> None:
    world.weather.down = True
    lease = await world.started()
    await refused(lease, "lease-lost")
    world.weather.down = False
    await world.begin(D)
    assert await epoch_of(lease) == 2


async def test_operations_that_find_the_lease_over_share_one_look(world: World) -> None:
    await world.begin(D)
    lease = world.lease()
    looks = 0
    passing = world.service.gate

    async def count(call: Call) -> None:
        nonlocal looks
        looks += call.action == "insert_or_replace"
        await passing(call)

    world.service.gate = count
    world.weather.down = True
    found = await asyncio.gather(*(epoch_of(lease) for _ in range(20)), return_exceptions=True)
    assert {type(one) for one in found} == {WritesRefused}
    assert looks == 1
    world.weather.down = False
    assert await asyncio.gather(*(epoch_of(lease) for _ in range(20))) == [2] * 20
    assert looks == 2


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.TIMED_OUT, FaultKind.LOST_REQUEST])
async def test_a_beat_whose_answer_was_lost_extends_nothing(world: World, kind: FaultKind) -> None:
    await world.begin(D)
    lease = world.lease()
    await lease.poll()
    await world.hand.pass_time(LEASE_S - 1)
    world.weather.next["insert_or_replace"] = kind
    with pytest.raises((Ambiguous, Unavailable)):
        await lease.poll()
    assert lease.trusted
    await world.hand.pass_time(1)
    assert not lease.trusted


async def test_a_beat_that_lands_extends_nothing_if_the_control_row_cannot_be_read(world: World) -> None:
    """The runner may have taken this client for over, and moved on, between the two."""
    await world.begin(D)
    lease = world.lease()
    await lease.poll()
    await world.hand.pass_time(LEASE_S - 1)
    world.weather.next["get"] = FaultKind.BUSY
    with pytest.raises(Unavailable):
        await lease.poll()
    assert (await world.client()).beat_at == world.hand.ticks(), "it landed"
    await world.hand.pass_time(1)
    assert not lease.trusted


async def test_a_client_beats_before_it_reads_the_control_row(world: World) -> None:
    """A runner that moves the row and then lists the clients finds this one, or this one reads the move."""
    await world.begin(D)
    lease = world.lease()
    calls: list[str] = []
    passing = world.service.gate

    async def note(call: Call) -> None:
        calls.append(call.action)
        await passing(call)

    world.service.gate = note
    await lease._read()
    assert calls == ["insert_or_replace", "get", "page"], "the page names other migrations of its rows"


async def test_trust_counts_from_the_beginning_of_a_slow_beat(world: World) -> None:
    await world.begin(D)
    lease = world.lease()
    passing = world.service.gate

    async def slow(call: Call) -> None:
        if call.action == "get":
            await world.hand.sleep(LEASE_S - 5)
        await passing(call)

    world.service.gate = slow
    looking = asyncio.create_task(lease.poll())
    await world.pass_time(LEASE_S - 5)
    assert lease.trusted
    await world.hand.pass_time(5)
    assert not lease.trusted
    await world.pass_time(LEASE_S)
    await looking


async def test_a_client_trusts_nothing_and_has_ended_everything_when_it_is_over(world: World) -> None:
    """By the service's clock the runner knows; this machine's clock may be hours off."""
    await world.begin(D)
    lease = world.lease(monotonic=lambda: world.hand.monotonic() + 7200)
    await lease.poll()
    await world.hand.pass_time(LEASE_S - 0.1)
    async with lease.operation(writes=True) as last:
        lease.check(last)
        await world.hand.pass_time(0.1)
        assert not lease.trusted
        row = await world.client()
        assert not is_over(row, world.hand.ticks() + int((LONGEST_S - 0.1) * 10_000_000))
        await world.hand.pass_time(LONGEST_S - 0.1)
        with pytest.raises(WritesRefused, match="held up"):
            lease.check(last)
        assert not is_over(row, world.hand.ticks()), "the margin is still to come"
        await world.hand.pass_time(SAFETY_S + 0.2)
        assert is_over(row, world.hand.ticks())


async def test_a_process_that_was_suspended_looks_before_it_goes_on(world: World) -> None:
    await world.begin(D)
    lease = world.lease()
    await lease.poll()
    async with lease.operation(writes=True) as permit:
        await world.hand.pass_time(3600)  # nothing of it ran
        for phase in (F, C):
            await world.move(phase)
        with pytest.raises(WritesRefused) as caught:
            lease.check(permit)
        assert caught.value.code == "lease-lost"
        async with lease.operation(writes=True) as newer:
            assert (newer.phase, newer.epoch) == (C, 4)
        await lease.poll()
        assert (await world.client()).epoch == 2, "what was under way must end first"
    await lease.poll()
    assert (await world.client()).epoch == 4


# --- control rows that cannot be gone by --------------------------------------------------------------------


async def test_a_control_row_that_is_gone_is_refused_until_it_is_back(world: World) -> None:
    control = await world.begin(D)
    lease = await world.started()
    stored = await world.service.table(CONTROL_TABLE).get(EntityKey(SCRIPT, "control"))
    assert stored is not None
    await world.store.delete(control)
    await world.pass_time(1)
    await refused(lease, "control-gone")
    await refused(lease, "control-gone", writes=False)
    assert lease.current() is None
    await world.pass_time(1)
    assert (await world.client()).refuses == "control-gone"
    await world.service.table(CONTROL_TABLE).insert(stored)
    await world.pass_time(1)
    assert await epoch_of(lease) == 2


async def test_another_declaration_is_told_in_source_and_refused_from_dual_write_on(world: World) -> None:
    await world.begin()
    lease = await world.started(replace(FACTS, digest="other"))
    assert await epoch_of(lease) == 1
    assert (await world.client()).refuses == "digest-moved", "the runner can refuse to go on"
    await world.move(D)
    await world.pass_time(1)
    await refused(lease, "digest-moved")
    assert await epoch_of(lease, writes=False) == 2
    assert (await world.client()).epoch == 2, "it holds nobody up: nothing of it runs"


async def test_after_a_rollback_the_next_run_is_gone_by_and_acknowledged_anew(world: World) -> None:
    """The old run's epoch 3 must not pass for the next one's 2."""
    first = await world.begin(D, S)
    lease = await world.started()
    assert is_current(await world.client(), first.run_id, 3)
    await world.store.delete(await world.read())
    second = await world.begin(D, run_id="run-2")
    assert not is_current(await world.client(), second.run_id, second.epoch)
    await world.pass_time(1)
    assert is_current(await world.client(), second.run_id, second.epoch)
    assert await epoch_of(lease) == 2


async def test_a_row_of_a_newer_program_is_noted_and_ends_the_trust(world: World) -> None:
    await world.begin(D)
    lease = await world.started()
    table = world.service.table(CONTROL_TABLE)
    await table.merge({"PartitionKey": SCRIPT, "RowKey": "control", "Format": 99})
    await world.pass_time(LEASE_S)
    assert isinstance(lease.problem, StateUnusable)
    assert "StateUnusable" in (await refused(lease, "lease-lost")).what


# --- the end ------------------------------------------------------------------------------------------------


async def test_closing_lets_end_what_is_under_way_settles_and_leaves(world: World) -> None:
    await world.begin(D)
    lease = await world.started()
    ended = asyncio.Event()

    async def long() -> None:
        async with lease.operation(writes=True):
            await ended.wait()

    running = asyncio.create_task(long())
    await world.pass_time(0)
    closing = asyncio.create_task(lease.close())
    await world.pass_time(2)
    assert not closing.done()
    assert len(await world.clients()) == 1
    await refused(lease, "closed")
    ended.set()
    await closing
    await running
    assert world.settled == [2]
    assert await world.clients() == []
    await lease.close()
    await refused(lease, "closed", writes=False)


async def test_an_undeletable_row_is_logged_and_ends(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.begin(D)
    lease = await world.started()
    world.weather.next["transact"] = FaultKind.NOT_SENT
    with caplog.at_level(logging.WARNING):
        await lease.close()
    assert "could not be deleted" in caplog.text
    row = await world.client()
    await world.hand.pass_time(LEASE_S + LONGEST_S + SAFETY_S + 0.001)
    assert is_over(row, world.hand.ticks())


@pytest.mark.parametrize("phases", [(), (D,)], ids=["source", "dual_write"])
async def test_a_row_stays_while_a_write_may_land(world: World, phases: tuple[ControlPhase, ...]) -> None:
    """It tells for how long: without it nobody would know what the longest operation of this client is."""
    await world.begin(*phases)
    lease = await world.started()
    with pytest.raises(Ambiguous):
        async with lease.operation(writes=True):
            raise Ambiguous("broken")
    await lease.close()
    assert len(await world.clients()) == 1


async def test_a_row_goes_where_other_writes_kept_this_one_from_being_sent(world: World) -> None:
    await world.begin(D)
    lease = await world.started()
    with pytest.raises(RowTooBusy):
        async with lease.operation(writes=True):
            raise RowTooBusy("another write makes the row", hint="repeat it")
    await lease.close()
    assert await world.clients() == []


async def test_a_fault_of_ours_in_the_background_does_not_pass_for_a_lost_lease(world: World) -> None:
    await world.begin(D)

    def fault() -> dict[str, int]:
        raise ZeroDivisionError

    reports: list[Callable[[], dict[str, int]]] = [dict]
    lease = ClientLease(
        world.store,
        world.registry,
        FACTS,
        counters=lambda: reports[0](),
        monotonic=world.hand.monotonic,
        sleep=world.hand.sleep,
    )
    await lease.start()
    reports[0] = fault
    await world.pass_time(2)
    with pytest.raises(ZeroDivisionError):
        await epoch_of(lease)
    with pytest.raises(ZeroDivisionError):
        await lease.close()


def test_the_clock_of_a_client_only_rises() -> None:
    assert monotonic_seconds() <= monotonic_seconds()


async def test_a_permit_of_another_lease_is_no_permit(world: World) -> None:
    lease = await world.started()
    with pytest.raises(WritesRefused):
        lease.check(Permit(None, 0, False))
    assert not lease.in_time(Permit(None, 0, False))
