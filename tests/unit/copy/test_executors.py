"""What travels between runner and workers, the fence before writes, and the term of tasks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rekey.copy.throttle import Rates
from rekey.copy.workers.copying import window_of_task
from rekey.copy.workers.driver import Driver, Job, Pool, load_factory
from rekey.copy.workers.fence import Fence, TermOver, seconds_left
from rekey.copy.workers.opened import config_path
from rekey.copy.workers.summing import packed_buckets, sealed, unpacked_buckets, unsealed
from rekey.copy.workers.tasks import Basis, Ended, Failure, Result, Task, TaskKind, read_result, read_task
from rekey.errors import (
    Collision,
    ConfigurationError,
    ExitCode,
    Findings,
    Moved,
    Refused,
    RekeyError,
    RowRefused,
    SecretMissing,
    Unavailable,
)
from rekey.executors import Processes, require_encrypted
from rekey.mapping.rows import CONTROL_TABLE
from rekey.mapping.sealing import SealedKeys
from rekey.model import EntityKey, KeyRange
from rekey.phases import ControlPhase
from rekey.project.config import Limits, is_factory, read_executor
from rekey.project.sections import Section
from rekey.protocol.control import ControlRow, to_row
from rekey.protocol.term import Term
from rekey.runner.workers import reached
from rekey.tables import allowance
from rekey.tables.base import Accounts
from tests.asserts.documents import ROOT
from tests.fakes.clock import FakeClock
from tests.fakes.memory import MemoryTableService

BASIS = Basis("1.0", "/p/rekey.toml", "a b", "0001_users", "d" * 64, "r" * 32, 2, "l" * 32)
TASK = Task(TaskKind.COPY, BASIS, "t1", 15.0, "2024-01-01T00:01:00.0000000Z", buckets=(b"\x01",))
KEYS = SealedKeys("0001_users", bytes(32))


# --- tasks and results ----------------------------------------------------------------------------------


def test_a_task_survives_its_travel() -> None:
    assert read_task(TASK.plain(), version="1.0") == TASK


@pytest.mark.parametrize("other", [{"form": 1}, {"basis": {}}, {"basis": None}, {"form": None}])
def test_a_task_of_another_version_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="a worker runs rekey 1\\.0"):
        read_task({**TASK.plain(), **other}, version="1.0")
    with pytest.raises(ConfigurationError, match="the runner rekey 1\\.0"):
        read_task(TASK.plain(), version="2.0")


def test_a_result_survives_its_travel_and_answers_its_task_alone() -> None:
    failure = Failure.of(Findings("what", kept="kept", hint="hint"))
    result = Result("t1", Ended.FAILED, "c", 3, 4, {"a": 1}, True, {"read": 2}, {"s": b"x"}, b"r", failure)
    assert read_result(result.plain(), TASK) == result
    assert read_result(replace(result, id="t2").plain(), TASK) is None


@pytest.mark.parametrize(
    "other",
    [
        {"form": 9},
        {"ended": "never"},
        {"more": 1},
        {"failure": {"a": 1}},
        {"failure": 3},
        {"sent": {"read": -1}},
        {"sent": {"user@example.com": 1}},
        {"sent": {"read": "3"}},
        {"sent": 3},
    ],
)
def test_what_is_no_result_is_not_taken_for_one(other: dict[str, Any]) -> None:
    assert read_result({**Result("t1", Ended.DONE).plain(), **other}, TASK) is None
    assert read_result("done", TASK) is None


@pytest.mark.parametrize(
    ("met", "kind"),
    [
        (Collision("T", "a", "b"), Findings),
        (RowRefused("empty-key", "f", "p", cure="c"), Findings),
        (SecretMissing("s"), ConfigurationError),
        (Moved("m", kept="k"), Refused),
        (Unavailable("u", hint="h"), RekeyError),
    ],
)
def test_a_failure_keeps_words_and_exit_code(met: RekeyError, kind: type[RekeyError]) -> None:
    told = Failure.of(met).raised()
    assert isinstance(told, kind)
    assert (told.what, told.kept, told.hint, told.exit_code) == (met.what, met.kept, met.hint, met.exit_code)
    assert Failure.of(met).may_pass is (met.exit_code == ExitCode.SERVICE)


def test_a_cursor_is_taken_only_within_its_range_and_of_this_run() -> None:
    rest = KeyRange(EntityKey("b", ""), EntityKey("d", ""))

    def at(key: EntityKey | None, keys: SealedKeys = KEYS) -> KeyRange:
        return reached(keys, rest, Result("t1", Ended.MORE, KEYS.to_text("cursor", key) or ""))

    assert at(EntityKey("c", "x")) == KeyRange(EntityKey("c", "x"), rest.upto)
    assert at(None) == at(EntityKey("b", "")) == rest
    for wrong in (EntityKey("a", ""), EntityKey("e", "")):
        with pytest.raises(ValueError, match="range"):
            at(wrong)
    with pytest.raises(ValueError, match="run"):
        at(EntityKey("c", ""), SealedKeys("0001_users", b"x" * 32))


def test_records_and_buckets_survive_their_travel_and_records_are_bound_to_their_task() -> None:
    differing = [frozenset({0, 7, 8, 16383}), frozenset[int]()]
    assert unpacked_buckets(packed_buckets(differing)) == differing
    records = [[0, 1, "p", "r\n", "d", "x", "y"], [1, 0, "p", "q", ""]]
    packed = sealed(KEYS, "t1", records)
    assert unsealed(KEYS, Result("t1", Ended.DONE, records=packed)) == records
    with pytest.raises(ValueError, match="sealed"):
        unsealed(KEYS, Result("t2", Ended.DONE, records=packed))


def test_a_task_at_a_low_rate_has_small_windows() -> None:
    limits = Limits(window_rows=8192)
    assert window_of_task(limits, TASK).rows == 4096
    assert window_of_task(limits, replace(TASK, entities_per_second=1600)).rows == 3000
    assert window_of_task(limits, replace(TASK, entities_per_second=1)).rows == 100
    assert window_of_task(Limits(window_rows=50), replace(TASK, entities_per_second=1)).rows == 25


@pytest.mark.parametrize(("divides", "partition"), [(False, 50), (True, 12)])
def test_tasks_share_the_rate_of_the_account_and_if_the_operator_set_it_that_of_a_partition(
    divides: bool, partition: int, memory: MemoryTableService, clock: FakeClock
) -> None:
    def no_executor() -> Any:
        raise AssertionError

    driver = Driver(
        cast(Job[None], SimpleNamespace(task=lambda _work: TASK)),
        Pool(no_executor),
        memory,
        None,
        clock,
        15.0,
        lambda: Rates(100, 50, begins=20_000),
        divides_partition=lambda: divides,
    )
    task = driver.task(None, "2024-01-01T00:00:00Z", 4)
    assert (task.entities_per_second, task.partition_entities_per_second) == (25, partition)
    assert task.begins == 5_000
    assert (task.seconds, task.until) == (15.0, "2024-01-01T00:00:45.0000000Z")
    again = driver.task(None, "2024-01-01T00:00:00Z", 4, failed=2)
    assert (again.seconds, again.until) == (15.0, "2024-01-01T00:03:00.0000000Z")


def test_a_worker_finds_its_configuration_where_it_is_told_or_where_the_runner_has_it() -> None:
    assert config_path(BASIS, {}) == Path("/p/rekey.toml")
    assert config_path(BASIS, {"REKEY_WORKER_CONFIG": "/here/rekey.toml"}) == Path("/here/rekey.toml")


# --- the fence ------------------------------------------------------------------------------------------


async def test_the_fence_goes_down_when_the_term_is_over_and_stays_down() -> None:
    now = 0.0
    fence = Fence(Accounts(MemoryTableService(), MemoryTableService()), TASK, 10.0, monotonic=lambda: now)
    fence.in_time()
    now = 10.0
    with pytest.raises(TermOver):
        fence.in_time()
    now = 0.0
    with pytest.raises(TermOver):
        await fence.passed()


async def test_the_fence_follows_the_services_time(memory: MemoryTableService, clock: FakeClock) -> None:
    """As the clock of a machine does that sleeps."""
    await memory.create_table(CONTROL_TABLE)
    control = ControlRow(
        BASIS.script_id, ControlPhase.DUAL_WRITE, BASIS.epoch, BASIS.run_id, BASIS.digest, "Users", ("V2",),
        {}, id_key=bytes(32),
    )  # fmt: skip
    table = memory.table(CONTROL_TABLE)
    await table.insert(to_row(control))
    await table.insert({"PartitionKey": BASIS.script_id, "RowKey": "runner", "LeaseId": BASIS.lease_id})
    fence = Fence(Accounts(memory, memory), TASK, 10.0, monotonic=lambda: 0.0)
    await fence.passed()
    clock.advance(57)
    await fence.passed()
    clock.advance(1)
    with pytest.raises(TermOver):
        await fence.passed()


async def test_the_remaining_term_has_a_safety_margin(memory: MemoryTableService, clock: FakeClock) -> None:
    until = "2024-01-01T00:01:00.0000000Z"
    assert await seconds_left(memory, until) == 58
    clock.advance(59)
    assert await seconds_left(memory, until) < 0


def test_an_allowance_is_asked_within_and_not_outside() -> None:
    def never() -> None:
        raise TermOver

    allowance.check()
    with allowance.while_allowed(never), pytest.raises(TermOver):
        allowance.check()
    allowance.check()


# --- the term -------------------------------------------------------------------------------------------


async def test_the_term_grows_and_is_awaited(memory: MemoryTableService, clock: FakeClock) -> None:
    await memory.create_table(CONTROL_TABLE)
    term = Term(memory, "0001_users")
    assert await term.left(60) == 0
    await term.extend("2024-01-01T00:00:20.0000000Z")
    await term.extend("2024-01-01T00:00:10.0000000Z")
    assert await Term(memory, "0001_users").left(60) == 80
    await Term(memory, "0001_users").extend("2024-01-01T00:00:15.0000000Z")
    began = clock.ticks()
    await term.wait(60, clock, lambda: None)
    assert clock.ticks() - began == 80 * 10_000_000
    assert memory.dump(CONTROL_TABLE) == []


async def test_a_term_that_is_cut_leaves_the_margin(memory: MemoryTableService) -> None:
    await memory.create_table(CONTROL_TABLE)
    term = Term(memory, "0001_users")
    await term.extend("2024-01-01T00:00:20.0000000Z")
    await term.cut()
    assert await term.left(60) == 60
    await term.extend("2024-01-01T00:00:20.0000000Z")
    assert await term.left(60) == 80


async def test_two_runners_that_extend_a_term_never_shorten_it(memory: MemoryTableService) -> None:
    await memory.create_table(CONTROL_TABLE)
    ends = [f"2024-01-01T00:00:{second:02}.0000000Z" for second in (10, 40, 20, 30)]
    await asyncio.gather(*(Term(memory, "0001_users").extend(end) for end in ends))
    assert await Term(memory, "0001_users").left(0) == 40


# --- configuration and executors ------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a:b", "a.b:c", "rekey.executors:processes"])
def test_a_factory_is_a_module_and_a_callable(text: str) -> None:
    assert is_factory(text)


@pytest.mark.parametrize("text", ["a", "a:", ":b", "a:b.c", "a b:c", "/x/y:z", "a-b:c"])
def test_nothing_else_is_a_factory(text: str) -> None:
    assert not is_factory(text)


def test_the_section_is_read_and_refuses_what_makes_no_sense(tmp_path: Any) -> None:
    said = read_executor(Section(tmp_path, "executor", {"factory": "a:b", "tasks": 3, "slice": "30s"}))
    assert (said.factory, said.tasks, said.slice_s) == ("a:b", 3, 30)
    assert read_executor(Section(tmp_path, "executor", {})).slice_s == 15
    for wrong in ({"factory": "ab"}, {"slice": "0s"}, {"tasks": 0}, {"address": "x"}):
        with pytest.raises(ConfigurationError):
            read_executor(Section(tmp_path, "executor", wrong))


def test_a_factory_beside_the_configuration_is_found(tmp_path: Any) -> None:
    (tmp_path / "own_executor_of_a_test.py").write_text("def begin():\n    return 7\nnothing = 3\n", "utf-8")
    found: Callable[[], Any] = load_factory("own_executor_of_a_test:begin", tmp_path)
    assert found() == 7
    for wrong in ("own_executor_of_a_test:nothing", "own_executor_of_a_test:absent", "not a factory"):
        with pytest.raises(ConfigurationError):
            load_factory(wrong, tmp_path)


@pytest.mark.parametrize("address", ["tls://host:8786", "tcp://127.0.0.1:8786", "tcp://[::1]:1"])
def test_an_encrypted_or_local_cluster_is_accepted(address: str) -> None:
    require_encrypted(address)


@pytest.mark.parametrize(
    "address", ["tcp://host:8786", "ws://127.0.0.1:1", "host:8786", "tcp://127.0.0.1.x:1"]
)
def test_any_other_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="encrypted"):
        require_encrypted(address)


def test_processes_say_how_many_they_are_and_that_a_task_runs_in_one_place() -> None:
    with Processes(2) as executor:
        assert (executor.tasks, executor.runs_once) == (2, True)


BROKEN = """
import sys

if __name__ == "__mp_main__":
    sys.modules["rekey.copy.workers.work"] = None

from rekey.executors import Processes

if __name__ == "__main__":
    with Processes(1) as executor:
        print(type(executor.submit(abs, -1).exception()).__name__)
"""


def test_a_process_that_cannot_import_rekey_reports_one_line_and_breaks(tmp_path: Any) -> None:
    (tmp_path / "broken.py").write_text(BROKEN, "utf-8")
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "broken.py")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert ran.stdout.strip() == "BrokenProcessPool"
    assert ran.stderr.strip() == "ERROR rekey.executors: a worker cannot import rekey (ModuleNotFoundError)"
