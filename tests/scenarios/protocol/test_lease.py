"""The runner lease: one runner on a migration, also when machines stop and answers get lost."""

from __future__ import annotations

import asyncio
import heapq
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.errors import CredentialRefused, EndpointDown, ExitCode, Locked
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import Row
from rekey.protocol.lease import (
    DURATION_S,
    RENEW_EVERY_S,
    RETRY_S,
    SAFETY_S,
    Holder,
    RunnerLease,
    holder_of,
    is_dead,
)
from rekey.state.filelock import FileLock
from rekey.tables.base import SIGNED_S
from tests.fakes.faults import Call, Fault, FaultKind
from tests.fakes.memory import MemoryTableService

SCRIPT = "0001_users"
HERE = Holder("here", "boot-1", 100, "process-1", "1:10", "pid:[1]")
THERE = Holder("there", "boot-2", 200, "process-2", "2:20", "pid:[2]")


class HandClock:
    """A clock that only a test moves: whoever sleeps on it sleeps until `pass_time` reaches them."""

    def __init__(self) -> None:
        self._now = ticks_of("2024-01-01T00:00:00Z")
        self._sleepers: list[tuple[int, int, asyncio.Event]] = []
        self._count = 0

    def ticks(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return self._now / TICKS_PER_SECOND

    async def sleep(self, seconds: float) -> None:
        self._count += 1
        event = asyncio.Event()
        heapq.heappush(self._sleepers, (self._now + round(seconds * TICKS_PER_SECOND), self._count, event))
        await event.wait()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, waking everybody at their moment, and let them finish what they do then."""
        until = self._now + round(seconds * TICKS_PER_SECOND)
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            self._now, _, event = heapq.heappop(self._sleepers)
            event.set()
            await self._settle()
        self._now = until

    async def _settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


class Planned:
    """Faults on the next writes of the control table, in order; None lets one pass."""

    def __init__(self) -> None:
        self.next: list[Fault | None] = []
        self.down = False

    def decide(self, call: Call) -> Fault | None:
        if self.down:
            return Fault(FaultKind.NOT_SENT)
        return self.next.pop(0) if call.writes and self.next else None


@pytest.fixture
def hand() -> HandClock:
    return HandClock()


@pytest.fixture
def faults() -> Planned:
    return Planned()


@pytest.fixture
def service(hand: HandClock, faults: Planned) -> MemoryTableService:
    return MemoryTableService(clock=hand, faults=faults)


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[FileLock]:
    with FileLock(tmp_path / "state.sqlite") as held:
        yield held


class Runners:
    """Makes leases of several runners on one service."""

    def __init__(self, service: MemoryTableService, lock: FileLock, hand: HandClock) -> None:
        self.service = service
        self.lock = lock
        self.hand = hand
        self.alive: set[int] = {HERE.pid, THERE.pid}

    def lease(self, holder: Holder = HERE) -> RunnerLease:
        return RunnerLease(
            self.service,
            SCRIPT,
            self.lock,
            holder=holder,
            runs=lambda pid, _started: pid in self.alive,
            monotonic=self.hand.monotonic,
            sleep=self.hand.sleep,
        )

    @asynccontextmanager
    async def killed(self, holder: Holder = HERE) -> AsyncIterator[RunnerLease]:
        """A runner that took the lease and was killed: it neither renews nor releases."""
        lease = self.lease(holder)
        await lease.acquire()
        self.alive.discard(holder.pid)
        yield lease

    def rows(self) -> list[Row]:
        return self.service.dump(CONTROL_TABLE)


@pytest.fixture
def runners(service: MemoryTableService, lock: FileLock, hand: HandClock) -> Runners:
    return Runners(service, lock, hand)


async def test_a_runner_is_alone_and_gives_the_lease_back(runners: Runners) -> None:
    async with runners.lease() as lease:
        lease.check()
        assert [row["RowKey"] for row in runners.rows()] == ["runner"]
    assert runners.rows() == []
    async with runners.lease(THERE) as lease:
        lease.check()


async def test_a_second_runner_is_refused_and_told_who_and_until_when(runners: Runners) -> None:
    async with runners.lease():
        with pytest.raises(Locked) as refused:
            await runners.lease(THERE).acquire()
    assert "process 100 on here" in refused.value.what
    assert "2024-01-01T00:01:00" in refused.value.what
    assert f"in {DURATION_S + SAFETY_S} s" in refused.value.hint
    assert refused.value.exit_code == ExitCode.REFUSED


async def test_a_renewed_lease_stays(runners: Runners, hand: HandClock) -> None:
    async with runners.lease() as lease:
        for _ in range(50):
            await hand.pass_time(RENEW_EVERY_S)
            lease.check()
            with pytest.raises(Locked):
                await runners.lease(THERE).acquire()
        assert runners.rows()[0]["Renewals"] == 50


async def test_a_killed_runners_lease_elsewhere_expires(runners: Runners, hand: HandClock) -> None:
    async with runners.killed(THERE):
        await hand.pass_time(DURATION_S + SAFETY_S - 1)
        with pytest.raises(Locked):
            await runners.lease().acquire()
        await hand.pass_time(1)
        async with runners.lease() as lease:
            lease.check()


async def test_the_holder_gives_up_before_another_may_begin(runners: Runners, hand: HandClock) -> None:
    async with runners.killed(THERE) as asleep:
        await hand.pass_time(DURATION_S - 1)
        asleep.check()
        await hand.pass_time(1)
        with pytest.raises(Locked, match="lost its lease"):
            asleep.check()
        with pytest.raises(Locked, match="another runner works"):
            await runners.lease().acquire()


async def test_a_runner_killed_on_this_machine_is_succeeded_at_once(runners: Runners) -> None:
    async with runners.killed(), runners.lease(replace(HERE, pid=101, process="process-3")) as lease:
        lease.check()


@pytest.mark.parametrize(
    "difference",
    [{"host": "other"}, {"boot": "boot-0"}, {"lock": "1:11"}, {"namespace": "pid:[2]"}],
    ids=["another host", "another boot", "another locked file", "another process namespace"],
)
async def test_a_process_id_elsewhere_is_no_proof(runners: Runners, difference: dict[str, str]) -> None:
    async with runners.killed(replace(HERE, **difference)):  # type: ignore[arg-type]
        with pytest.raises(Locked):
            await runners.lease(replace(HERE, pid=101, process="process-3")).acquire()


def test_only_a_process_that_is_gone_is_dead() -> None:
    ours = replace(HERE, pid=101, process="process-3")
    assert is_dead(HERE, ours, lambda _pid, _started: False)
    assert not is_dead(HERE, ours, lambda _pid, _started: True)
    assert is_dead(replace(HERE, pid=101), ours, lambda _pid, _started: True), "an earlier process had our id"
    assert not is_dead(replace(HERE, process="process-3"), ours, lambda _pid, _started: False), (
        "our own other lease"
    )
    for unknown in ({"boot": ""}, {"lock": ""}, {"namespace": ""}):
        theirs, here = replace(HERE, **unknown), replace(ours, **unknown)  # type: ignore[arg-type]
        assert not is_dead(theirs, here, lambda _pid, _started: False), f"unknown: {unknown}"


def test_a_lease_of_a_version_that_did_not_say_where_it_runs_is_waited_for(lock: FileLock) -> None:
    ours = Holder.current(lock.identity)
    row = {"Host": ours.host, "Boot": ours.boot, "Pid": ours.pid, "Process": "p", "State": "0" * 64}
    assert not is_dead(holder_of(row), ours, lambda _pid, _started: False)


def test_the_holder_is_told_by_the_file_that_is_locked_not_by_its_path(tmp_path: Path) -> None:
    """Two containers of one host may have the same name, path and process ids, each with its own file."""
    path = tmp_path / "state.sqlite"
    with FileLock(path) as first:
        one = Holder.current(first.identity)
        first.path.rename(tmp_path / "elsewhere")
        with FileLock(path) as second:
            other = Holder.current(second.identity)
    assert one.lock != other.lock
    assert not is_dead(one, replace(other, process="another"), lambda _pid, _started: False)


async def test_a_lease_taken_over_says_what_may_be_under_way(runners: Runners, hand: HandClock) -> None:
    """Of a dead one what it had sent; of one that may only stand still, what the service still accepts."""
    async with runners.lease() as lease:
        assert lease.late_until is None
    async with runners.killed(), runners.lease(replace(HERE, pid=101, process="process-3")) as lease:
        assert lease.late_until == hand.ticks() + TICKS_PER_SECOND
    async with runners.killed(THERE):
        ended_at = hand.ticks() + DURATION_S * TICKS_PER_SECOND
        await hand.pass_time(DURATION_S + SAFETY_S + 1)
        async with runners.lease() as lease:
            assert lease.late_until is not None
            assert 0 <= lease.late_until - ended_at - round(SIGNED_S * TICKS_PER_SECOND) < 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_is_another_one() -> None:
    """Else what the one has left behind would be taken by the other for its own."""
    program = """\
import os
from pathlib import Path
from rekey.protocol.lease import Holder
print(Holder.current("1:10").process, flush=True)
if not os.fork():
    print(Holder.current("1:10").process, flush=True)
else:
    os.wait()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    parent, child = ended.stdout.split()
    assert parent != child


async def test_a_second_lease_in_one_process_is_refused(runners: Runners) -> None:
    async with runners.lease():
        with pytest.raises(Locked):
            await runners.lease().acquire()


async def test_a_failed_renewal_is_repeated(runners: Runners, hand: HandClock, faults: Planned) -> None:
    async with runners.lease() as lease:
        faults.down = True
        await hand.pass_time(RENEW_EVERY_S + 5 * RETRY_S)
        lease.check()
        faults.down = False
        await hand.pass_time(RETRY_S)
        await hand.pass_time(DURATION_S - 1)
        lease.check()


async def test_failing_renewals_lose_the_lease(runners: Runners, hand: HandClock, faults: Planned) -> None:
    async with runners.lease() as lease:
        faults.down = True
        await hand.pass_time(DURATION_S + RETRY_S)
        assert lease.lost.is_set(), "whoever waits for it is woken"
        with pytest.raises(Locked, match="could not be renewed in time"):
            lease.check()
        faults.down = False


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST, FaultKind.TIMED_OUT])
async def test_a_renewal_whose_answer_is_lost_is_settled_by_reading_back(
    runners: Runners, hand: HandClock, faults: Planned, kind: FaultKind
) -> None:
    async with runners.lease() as lease:
        faults.next = [Fault(kind)]
        await hand.pass_time(RENEW_EVERY_S + RETRY_S)
        assert faults.next == []
        await hand.pass_time(DURATION_S - 1)
        lease.check()


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST, FaultKind.TIMED_OUT])
async def test_taking_the_lease_survives_a_lost_answer(
    runners: Runners, hand: HandClock, faults: Planned, kind: FaultKind
) -> None:
    faults.next = [Fault(kind)]
    async with runners.lease() as lease:
        lease.check()
        await hand.pass_time(10 * DURATION_S)
        lease.check()
    assert runners.rows() == []


async def test_a_lost_lease_is_noticed_and_not_taken_back(runners: Runners, hand: HandClock) -> None:
    async with runners.lease() as lease:
        table = runners.service.table(CONTROL_TABLE)
        [row] = runners.rows()
        await table.replace({**row, "LeaseId": "x", "Host": "there"}, etag="*")
        await hand.pass_time(RENEW_EVERY_S + RETRY_S)
        with pytest.raises(Locked, match="there has taken it over"):
            lease.check()
    assert [row["LeaseId"] for row in runners.rows()] == ["x"], "release leaves the other's lease alone"


async def test_a_lease_row_that_was_deleted_is_a_lost_lease(runners: Runners, hand: HandClock) -> None:
    async with runners.lease() as lease:
        await runners.service.table(CONTROL_TABLE).delete(lease._key)
        await hand.pass_time(RENEW_EVERY_S + RETRY_S)
        with pytest.raises(Locked, match="deleted"):
            lease.check()


async def test_of_many_runners_that_start_at_once_one_wins(runners: Runners) -> None:
    leases = [runners.lease(replace(THERE, host=f"h{n}", pid=n)) for n in range(8)]
    results = await asyncio.gather(*(lease.acquire() for lease in leases), return_exceptions=True)
    assert results.count(None) == 1
    assert {type(result) for result in results if result is not None} == {Locked}


async def test_a_release_that_fails_does_not_hide_how_the_work_ended(
    runners: Runners, faults: Planned, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CredentialRefused):
        async with runners.lease():
            faults.down = True
            raise CredentialRefused("no")
    assert "expires in" in caplog.text


async def test_an_outage_is_named_when_the_lease_is_taken(runners: Runners, faults: Planned) -> None:
    faults.down = True
    with pytest.raises(EndpointDown):
        await runners.lease().acquire()


async def test_a_fault_of_the_program_in_the_renewal_is_not_taken_for_a_lost_lease(
    runners: Runners, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: RunnerLease) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RunnerLease, "_renew", broken)
    with pytest.raises(ZeroDivisionError):
        async with runners.lease() as lease:
            await hand.pass_time(RENEW_EVERY_S)
            with pytest.raises(ZeroDivisionError):
                lease.check()


async def test_the_file_lock_comes_first(service: MemoryTableService, lock: FileLock) -> None:
    lock.release()
    with pytest.raises(RuntimeError, match="file lock"):
        RunnerLease(service, SCRIPT, lock)


async def test_a_lease_on_the_real_clock_and_process_can_be_taken(tmp_path: Path) -> None:
    service = MemoryTableService()
    with FileLock(tmp_path / "s") as held:
        async with RunnerLease(service, SCRIPT, held) as lease:
            lease.check()
            with pytest.raises(Locked):
                await RunnerLease(service, SCRIPT, held).acquire()
