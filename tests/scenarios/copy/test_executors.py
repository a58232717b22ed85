"""Slices copied by workers: as in one process, whatever runs twice, late, elsewhere, or not at all.

Soak: 2 of 5 ways to lose a task.
Reason, and what `make test` covers: three ways.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rekey.copy.workers import driver
from rekey.copy.workers.tasks import Ended, Result
from rekey.copy.workers.work import host, work
from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.declaration.mapper import Mapper
from rekey.errors import (
    ConfigurationError,
    Findings,
    Interrupted,
    Locked,
    Moved,
    Refused,
    RekeyError,
    WorkersFailed,
)
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import Phase
from rekey.project.config import Config
from rekey.runner import commands, steering
from rekey.runner.run import Options, StopFlag
from rekey.tables.base import Accounts
from tests.fakes.executors import NAME, Inline, Plain, inline
from tests.fakes.faults import Call
from tests.fakes.memory import instant_gate
from tests.simulation.judging import PairsWatch
from tests.worlds.company import company
from tests.worlds.dual_write import delete
from tests.worlds.example_rows import shipments
from tests.worlds.projects import FOLDED_SCRIPT, POSTS_SCRIPT, SECONDARY_SCRIPT, USERS_SCRIPT, Project
from tests.worlds.shipments import SHIPMENTS_BY_CUSTOMER
from tests.worlds.small import SECRET, contents, mapped, post, racer, user

ROWS = 140
EXECUTOR = '\n[executor]\nslice = "2s"\n'
TERM_S, MARGIN_S = 2 + 5, 60


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    path = tmp_path / "rekey.toml"
    path.write_text(path.read_text("utf-8") + EXECUTOR, "utf-8")
    return made


def with_users(project: Project, rows: int = ROWS) -> str:
    """Begin a project about users; return the script's id."""
    script_id = project.script(USERS_SCRIPT)
    _fill(project, "Users", [user(f"user{n:04}@example.com", f"p{n % 7}") for n in range(rows)])
    return script_id


def _fill(project: Project, table: str, rows: list[Row]) -> None:
    with project.session() as session:
        session.do(project.fill(table, rows))


def apply(project: Project, script_id: str, *, executor: str = NAME, stop: StopFlag | None = None) -> None:
    """Apply up to the gate, as a command does."""
    with project.session(Options(executor=executor), stop=stop) as session:
        commands.apply(session, script_id)


def assert_in_step(project: Project, script_id: str) -> None:
    """Targets hold exactly what the source says."""
    migration = project.scripts[script_id].migration
    mapper = Mapper(migration, {"users": SECRET})
    actual = {name: contents(project.rows(name)) for name in mapper.tables}
    assert actual == mapped(mapper, project.rows(migration.source))


@dataclass
class Ready:
    """A project whose users are to be copied by workers."""

    project: Project
    script_id: str
    executor: Inline

    def apply(self, *, executor: str = NAME, stop: StopFlag | None = None) -> None:
        apply(self.project, self.script_id, executor=executor, stop=stop)

    def apply_in_step(self, *, executor: str = NAME) -> None:
        """Apply; afterwards targets hold exactly what the source says."""
        self.apply(executor=executor)
        assert_in_step(self.project, self.script_id)

    def counters(self) -> dict[str, int]:
        """What the backfill counted."""
        with self.project.session() as session:
            runs = session.state.phase_runs(self.script_id)
            return dict([run for run in runs if run.phase == "backfill"][-1].counters)

    def seconds(self) -> float:
        return self.project.clock.ticks() / TICKS_PER_SECOND


@pytest.fixture
def ready(project: Project) -> Iterator[Ready]:
    script_id = with_users(project)
    with inline(project) as executor:
        yield Ready(project, script_id, executor)


# --- the same as in one process -------------------------------------------------------------------------


def test_workers_copy_what_the_runner_would_have_copied(ready: Ready) -> None:
    ready.apply_in_step()
    copied = [one for one in ready.executor.given if one["kind"] == "copy"]
    assert len(copied) >= 3, "the table is split among as many tasks as are done at a time"
    told = ready.counters()
    assert (told["source_rows"], told["target_rows_inserted"], told["tasks_lost"]) == (ROWS, ROWS, 0)
    assert told["tasks"] == len(copied)


def test_a_worker_copies_after_its_machine_slept(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on one of its clocks is ahead of the other: a term is measured by one of them alone."""
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: time.monotonic() + 86_400)
    ready.apply_in_step()


def test_content_keys_and_index_tables_are_copied(project: Project) -> None:
    script_id = project.script(POSTS_SCRIPT)
    _fill(project, "Posts", [post(f"slug{n:04}", f"2024-{n % 12 + 1:02}") for n in range(ROWS)])
    with inline(project):
        apply(project, script_id)
    assert_in_step(project, script_id)


def test_main_and_secondary_rows_are_copied_together(project: Project) -> None:
    script_id = project.script(SECONDARY_SCRIPT)
    rows = [racer(f"{n:04}", 20 + n % 50, race=f"r{n % 3}", Club="c", Teams="x,y") for n in range(200)]
    _fill(project, "Races", rows)
    pairs = PairsWatch(Mapper(project.scripts[script_id].migration, {}))
    with pairs.watching(), inline(project) as executor:
        apply(project, script_id)
    assert_in_step(project, script_id)
    assert len([one for one in executor.given if one["kind"] == "copy"]) >= 3
    assert pairs.looks > 10
    assert pairs.wrong == []


def test_workers_leave_rows_of_others_in_a_shared_table(project: Project) -> None:
    """They copy, compare and sweep what is the migration's: another row there is not one too many."""
    shared = USERS_SCRIPT.replace('"UsersV2",', '"UsersV2", shared=True,')
    shared = shared.replace("partition_key=keys.", 'partition_key=keys.literal("new_") + keys.', 1)
    shared = shared.replace("properties=[", 'properties=[props.copy("PartitionKey", to="Region"), ', 1)
    script_id = project.script(shared)
    _fill(project, "Users", [user(f"user{n:04}@example.com", f"p{n % 7}") for n in range(ROWS)])
    _fill(project, "UsersV2", [user(f"other{n}", "other") for n in range(9)])
    others = project.rows("UsersV2")
    with inline(project):
        apply(project, script_id)
    after = project.rows("UsersV2")
    assert [row for row in after if row["PartitionKey"] == "other"] == others
    assert len(after) == ROWS + len(others)
    with inline(project), project.session(Options(executor=NAME)) as session:
        [table] = commands.verify(session, script_id, mode=commands.Mode.FULL).tables
    assert (table.actual_rows, table.reread_buckets) == (ROWS, 0)


def test_workers_fill_and_compare_a_table_for_each_kind_of_rows(project: Project) -> None:
    example = Path(__file__).parents[3] / "migrations" / "0010_shipments_by_state.py"
    text = example.read_text("utf-8").replace('"dual-write"', '"delta"')
    script_id = project.script(text, example.name)
    stock = list(shipments(ROWS))
    _fill(project, "Shipments", stock)
    with inline(project):
        apply(project, script_id)
    held = {name: project.rows(name) for name in project.scripts[script_id].migration.table_names}
    assert sum(map(len, held.values())) == ROWS
    is_open = ["State" not in row for row in stock]
    assert len(held["ShipmentsOpen"]) == sum(is_open)
    with inline(project), project.session(Options(executor=NAME)) as session:
        [table] = commands.verify(session, script_id, mode=commands.Mode.FULL).tables
    assert (table.actual_rows, table.differing_buckets, table.reread_buckets) == (ROWS, 0, 0)


def test_workers_compare_the_rows_of_each_index_in_a_table_that_several_share(project: Project) -> None:
    script_id = project.script(SHIPMENTS_BY_CUSTOMER.replace('"dual-write"', '"delta"'), "0010_shipments.py")
    stock = list(shipments(ROWS))
    _fill(project, "Shipments", stock)
    with inline(project):
        apply(project, script_id)
    assert_in_step(project, script_id)
    with inline(project), project.session(Options(executor=NAME)) as session:
        report = commands.verify(session, script_id, mode=commands.Mode.FULL)
    assert [table.reread_buckets for table in report.tables] == [0] * 5
    assert sum(table.actual_rows for table in report.tables) == 2 * ROWS
    index = project.tables.table("ShipmentsByCustomer")
    missing = next(row for row in project.rows(index.name) if row["RowKey"].startswith("2024:"))
    with inline(project), project.session(Options(executor=NAME)) as session:
        session.do(index.insert({"PartitionKey": "c1", "RowKey": "open:stray"}))
        session.do(index.delete(key_of(missing)))
        report = commands.verify(session, script_id, mode=commands.Mode.FULL)
    assert report.differences.counts == {"extra": 1, "missing": 1}


def test_workers_copy_and_compare_the_part_that_is_migrated_alone(project: Project) -> None:
    where = 'where=rows.partition_key(one_of=["p1", "p4"]), capture='
    script = USERS_SCRIPT.replace("props\n", "props, rows\n", 1).replace("capture=", where, 1)
    script_id = project.script(script)
    stock = [user(f"user{n:04}@example.com", f"p{n % 7}") for n in range(ROWS)]
    _fill(project, "Users", stock)
    part = [row for row in stock if row["PartitionKey"] in ("p1", "p4")]
    with inline(project):
        apply(project, script_id)
    assert len(project.rows("UsersV2")) == len(part)
    with inline(project), project.session(Options(executor=NAME)) as session:
        report = commands.verify(session, script_id, mode=commands.Mode.FULL)
    assert report.source_rows == len(part)
    assert not report.findings


def test_tasks_and_answers_hold_plain_data_and_no_key_or_secret(ready: Ready) -> None:
    ready.apply()

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(isinstance(name, str) and plain(one) for name, one in value.items())
        if isinstance(value, list):
            return all(plain(one) for one in value)
        return value is None or type(value) in (str, int, float, bool, bytes)

    assert ready.executor.given and ready.executor.answers
    for one in [*ready.executor.given, *ready.executor.answers]:
        assert plain(one)
        text = repr(one)
        assert "@example.com" not in text and "'p3'" not in text
        assert SECRET.decode() not in text and "9f86d081884c7d65" not in text


def test_a_mapping_in_the_clear_shows_no_key_in_tasks_either(project: Project) -> None:
    script_id = project.script(USERS_SCRIPT.replace("capture=", 'mapping="plain",\n    capture='))
    _fill(project, "Users", [user(f"user{n:04}@example.com", f"p{n % 7}") for n in range(ROWS)])
    with inline(project) as executor:
        apply(project, script_id)
        assert "@example.com" not in repr([*executor.given, *executor.answers])
    assert_in_step(project, script_id)


def test_an_application_that_writes_through_clients_is_copied_by_workers_too(tmp_path: Path) -> None:
    with company(
        tmp_path, USERS_SCRIPT, [user(f"user{n:04}@example.com", f"p{n % 7}") for n in range(ROWS)]
    ) as ours:
        with inline(ours.project, runs_once=False):
            ours.apply(Phase.DUAL_WRITE)
            client = ours.client()
            gone = EntityKey("p3", "user0003@example.com")
            ours.do(client.write(delete(gone)))
            ours.apply(options=Options(executor=NAME))
            ours.settle()
        ours.assert_in_step()
        assert len(ours.project.rows("UsersV2")) == ROWS - 1


# --- twice, late, after the end -------------------------------------------------------------------------


def test_a_task_that_runs_twice_does_no_harm(ready: Ready) -> None:

    def twice(plain: Plain) -> Plain:
        work(plain)
        return work(plain)

    ready.executor.carry = twice
    ready.apply_in_step()
    assert ready.counters()["source_rows"] == ROWS


def test_a_task_of_an_ended_runner_writes_nothing(ready: Ready) -> None:
    """A row that was deleted, and swept, does not come back by a task that still runs somewhere."""
    ready.apply()
    given = list(ready.executor.given)
    gone = key_of(ready.project.rows("Users")[0])
    with ready.project.session() as session:
        session.do(ready.project.tables.table("Users").delete(gone))
    ready.apply()
    before = ready.project.rows("UsersV2")
    answers = [work(one) for one in given if one["kind"] == "copy"]
    assert {one["ended"] for one in answers} == {"superseded"}
    assert ready.project.rows("UsersV2") == before
    assert_in_step(ready.project, ready.script_id)


def test_a_task_past_its_term_does_nothing(ready: Ready) -> None:
    late: list[Plain] = []

    def later(plain: Plain) -> Plain:
        if not late and plain["kind"] == "copy":
            late.append(plain)
            ready.project.clock.advance(TERM_S)
            rows = len(ready.project.rows("UsersV2"))
            answer = work(plain)
            assert (answer["ended"], len(ready.project.rows("UsersV2"))) == ("late", rows)
            return answer
        return work(plain)

    ready.executor.carry = later
    ready.apply()
    assert late
    assert_in_step(ready.project, ready.script_id)


@pytest.mark.parametrize("changed", [{"Epoch": "9"}, {"Digest": "0" * 64}, {"RunId": "0" * 32}])
def test_a_worker_stops_when_the_control_row_changed(ready: Ready, changed: dict[str, str]) -> None:
    _stops_at_the_next_batch(ready, "control", changed)


def test_a_worker_stops_when_another_runner_has_the_lease(ready: Ready) -> None:
    _stops_at_the_next_batch(ready, "runner", {"LeaseId": "0" * 32})


def _stops_at_the_next_batch(ready: Ready, row: str, changed: dict[str, str]) -> None:
    begun: list[Call] = []

    async def gate(call: Call) -> None:
        if not (call.writes and call.table == "UsersV2"):
            return
        if not begun:
            control = ready.project.restricted.table("rekeycontrol")
            now = await control.get(EntityKey(ready.script_id, row))
            assert now is not None
            await control.replace({**content_of(now), **changed})
        begun.append(call)

    written = 0

    def once(plain: Plain) -> Plain:
        nonlocal written
        ready.project.tables.gate = gate
        answer = work(plain)
        written = len(begun)
        ready.project.tables.gate = instant_gate
        assert answer["ended"] == "superseded"
        return answer

    ready.executor.carry = once
    ready.executor.tasks = 1
    with pytest.raises((Moved, Locked, RekeyError)):
        ready.apply()
    # Batches that had passed the fence together with the one that noticed were on their way already.
    assert 0 < written < ROWS / 7


# --- what follows the copy waits ------------------------------------------------------------------------


def test_the_sweep_waits_for_the_term_of_tasks_that_may_run_in_two_places(ready: Ready) -> None:
    ready.executor.runs_once = False
    began = ready.seconds()
    ready.apply()
    assert ready.seconds() - began >= TERM_S + MARGIN_S
    assert_in_step(ready.project, ready.script_id)


def test_the_sweep_does_not_wait_for_answered_tasks(ready: Ready) -> None:
    began = ready.seconds()
    ready.apply()
    assert ready.seconds() - began < MARGIN_S


@pytest.mark.parametrize("lose_state", [False, True])
def test_the_next_runner_awaits_tasks_without_its_state_file(ready: Ready, lose_state: bool) -> None:
    ready.executor.carry = _killed
    with pytest.raises(KeyboardInterrupt):
        ready.apply()
    if lose_state:
        for path in ready.project.folder.glob("state.sqlite*"):
            path.unlink()
    began = ready.seconds()
    ready.apply(executor="")
    assert ready.seconds() - began >= TERM_S + MARGIN_S - 1
    assert_in_step(ready.project, ready.script_id)


def test_a_rollback_waits_for_the_tasks_of_a_runner_that_was_killed(ready: Ready) -> None:
    ready.executor.carry = _killed
    with pytest.raises(KeyboardInterrupt):
        ready.apply()
    began = ready.seconds()
    with ready.project.session() as session:
        commands.rollback(session, ready.script_id, to=None, drop=True)
    assert ready.seconds() - began >= TERM_S + MARGIN_S - 1


def _killed(plain: Plain) -> Plain:
    raise KeyboardInterrupt


# --- what goes wrong ------------------------------------------------------------------------------------


def failing(executor: Inline, times: int, failure: Callable[[Plain], Plain]) -> None:
    """Let the first tasks go wrong."""
    left = times

    def carry(plain: Plain) -> Plain:
        nonlocal left
        if left:
            left -= 1
            return failure(plain)
        return work(plain)

    executor.carry = carry


def _raises(error: Exception) -> Callable[[Plain], Plain]:
    def fail(_plain: Plain) -> Plain:
        raise error

    return fail


def _of_another(plain: Plain) -> Plain:
    return {**work(plain), "id": "0" * 32}


def _far_ahead(plain: Plain) -> Plain:
    """An answer with the cursor of another range."""
    answer = work(plain)
    return {**answer, "cursor": answer["cursor"][:-8] + "AAAAAAA="}


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(_raises(ValueError("user0001@example.com")), id="raises", marks=pytest.mark.soak),
        pytest.param(_raises(BrokenExecutor()), id="breaks"),
        pytest.param(_of_another, id="answers another task", marks=pytest.mark.soak),
        pytest.param(_far_ahead, id="answers with another cursor"),
        pytest.param(lambda _plain: {"form": 99}, id="answers in another form"),
    ],
)
def test_a_lost_task_is_repeated_and_then_fails(ready: Ready, failure: Callable[[Plain], Plain]) -> None:
    ready.executor.tasks = 1
    failing(ready.executor, 10**6, failure)
    with pytest.raises(WorkersFailed) as told:
        ready.apply()
    assert told.value.exit_code == 4
    assert "@example.com" not in str(told.value)
    failing(ready.executor, 2, failure)
    ready.apply()
    assert ready.counters()["tasks_lost"] == 2
    assert_in_step(ready.project, ready.script_id)


def test_an_unanswered_task_goes_to_another_worker(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LOST_AFTER_S", -1000)
    silent = 2

    def carry(plain: Plain) -> Plain | None:
        nonlocal silent
        silent -= 1
        return work(plain) if silent < 0 else None

    ready.executor.carry = carry
    began = ready.seconds()
    ready.apply()
    assert ready.counters()["tasks_lost"] == 2
    assert ready.seconds() - began >= MARGIN_S, "they may still write"
    assert_in_step(ready.project, ready.script_id)


def _takes(project: Project, needed_s: float) -> Callable[[Plain], Plain]:
    """A worker that does nothing in a shorter term than it needs."""

    def carry(plain: Plain) -> Plain:
        left_s = (ticks_of(plain["until"]) - project.clock.ticks()) / TICKS_PER_SECOND
        return work(plain) if left_s >= needed_s else Result(plain["id"], Ended.LATE).plain()

    return carry


def test_an_idle_worker_gets_twice_the_term_for_its_range(ready: Ready) -> None:
    """One that only begins, or a machine that is busy, would not manage it the next time either."""
    ready.executor.carry = _takes(ready.project, 3.5 * TERM_S)
    ready.apply_in_step()
    assert Ended.LATE in {one["ended"] for one in ready.executor.answers}


def test_halves_of_an_unfinished_range_keep_its_longer_term(ready: Ready) -> None:
    """The range is split as soon as the others are done: what it needs longer for has not changed by that."""
    terms: list[float] = []
    takes = _takes(ready.project, 1.5 * TERM_S)

    def carry(plain: Plain) -> Plain:
        if plain["kind"] != "copy" or plain["upto"]:
            return work(plain)
        terms.append((ticks_of(plain["until"]) - ready.project.clock.ticks()) / TICKS_PER_SECOND)
        return takes(plain)

    ready.executor.carry = carry
    ready.apply_in_step()
    copied = [one for one in ready.executor.given if one["kind"] == "copy"]
    assert len(copied) > ready.executor.tasks + 1, "it was split in between, not tried again whole"
    assert terms == [TERM_S, 2 * TERM_S]


def test_a_worker_idle_for_four_terms_fails(ready: Ready) -> None:
    ready.executor.carry = _takes(ready.project, 4.5 * TERM_S)
    with pytest.raises(WorkersFailed, match=rf"nothing was done in its {4 * TERM_S} s \(late\)") as told:
        ready.apply()
    assert "slice" in told.value.hint
    assert {one["ended"] for one in ready.executor.answers} == {Ended.LATE}


def test_an_executor_that_broke_is_begun_again(ready: Ready) -> None:
    failing(ready.executor, 1, _raises(BrokenExecutor()))
    ready.apply()
    assert ready.executor.begun == 3, "for the copy, once more for it, and for the comparison"
    assert_in_step(ready.project, ready.script_id)


def test_colliding_rows_end_with_findings_by_safe_id(project: Project) -> None:
    script_id = project.script(FOLDED_SCRIPT)
    _fill(project, "Users", [user(f"user{n:04}@example.com", f"p{n % 7}") for n in range(ROWS)])
    with inline(project) as executor:

        def collide(plain: Plain) -> Plain:
            if len(executor.given) == 1:  # behind the check of all rows, before the first is copied
                host().run(project.tables.table("Users").insert(user("USER0003@example.com", "p3")))
            return work(plain)

        executor.carry = collide
        with pytest.raises(Findings) as told:
            apply(project, script_id)
    assert "collision in UsersV2" in str(told.value)
    assert "example.com" not in str(told.value)


@pytest.mark.parametrize(
    ("basis", "error", "words"),
    [
        ({"version": "0.0.1"}, ConfigurationError, r"0\.0\.1"),
        ({"digest": "0" * 64}, Refused, "other script"),
        ({"config": "/nowhere/rekey.toml"}, ConfigurationError, "no configuration"),
    ],
    ids=["version", "script", "configuration"],
)
def test_a_worker_of_another_basis_refuses(
    ready: Ready, basis: dict[str, str], error: type[Exception], words: str
) -> None:
    ready.executor.carry = lambda plain: work({**plain, "basis": {**plain["basis"], **basis}})
    with pytest.raises(error, match=words):
        ready.apply()
    assert not ready.project.rows("UsersV2")


def test_a_stop_takes_effect_between_tasks(ready: Ready) -> None:
    stop = StopFlag()

    def then_stop(plain: Plain) -> Plain:
        stop.request()
        return work(plain)

    ready.executor.carry = then_stop
    with pytest.raises(Interrupted):
        ready.apply(stop=stop)
    copied = len(ready.project.rows("UsersV2"))
    assert 0 < copied < ROWS
    ready.executor.carry = work
    ready.apply()
    assert ready.counters()["target_rows_inserted"] == ROWS - copied
    assert_in_step(ready.project, ready.script_id)


# --- rates that follow the service ------------------------------------------------------------------------


def test_tasks_share_the_rate_at_which_rates_begin_that_follow_the_service(ready: Ready) -> None:
    """Each process finds its own limit; how they share one: `tests/scenarios/copy/test_service_rates.py`."""
    path = ready.project.folder / "rekey.toml"
    text = path.read_text("utf-8").replace("[limits]", '[limits]\nentities_per_second = "auto"')
    path.write_text(text, "utf-8")
    ready.apply()
    given = [(one["entities_per_second"], one["begins"]) for one in ready.executor.given]
    assert set(given) == {(0, 20_000 // 3)}
    assert_in_step(ready.project, ready.script_id)


# --- the operator's word --------------------------------------------------------------------------------


def test_rates_are_shared_by_the_tasks_at_a_time_and_a_pause_holds_tasks_back(ready: Ready) -> None:
    state = ready.project.config.state
    steering.say(
        state, steering.Steering(entities_per_second=3_000_000, partition_entities_per_second=900_000)
    )
    held: list[float] = []

    def pausing(plain: Plain) -> Plain:
        if not held:
            held.append(ready.seconds())
            steering.say(state, steering.Steering(paused=True))
        ready.project.clock.advance(1)
        return work(plain)

    ready.executor.carry = pausing
    looked = ready.project.clock.sleep

    async def sleep(wait: float) -> None:
        if held and ready.seconds() - held[0] > 5:
            steering.say(state, steering.Steering())
        await looked(wait)

    ready.project.clock.sleep = sleep  # type: ignore[method-assign]
    ready.apply()
    first = ready.executor.given[0]
    assert first["entities_per_second"] == 1_000_000
    assert first["partition_entities_per_second"] == 300_000
    assert ready.executor.given[-1]["entities_per_second"] == 0
    assert ready.seconds() - held[0] > 5
    assert_in_step(ready.project, ready.script_id)


# --- requests of workers are counted ------------------------------------------------------------------------


def requests(project: Project, script_id: str) -> Counter[str]:
    """Requests that were kept with all runs of the phase that copies, by kind."""
    with project.session() as session:
        runs = [one for one in session.state.phase_runs(script_id) if one.phase == Phase.BACKFILL]
        return sum((Counter(one.requests) for one in runs), Counter())


def told_by(executor: Inline) -> Counter[str]:
    """Requests that workers told of, by kind."""
    return sum((Counter(one["sent"]) for one in executor.answers), Counter())


def test_workers_requests_are_counted_with_the_runners(tmp_path: Path) -> None:
    """While rows are copied, by kind as without workers, but for what a round of batches asks: control row,
    lease, and the time. (`reconcile` reads otherwise with workers, ADR 0036.)"""
    counted = []
    for name, executor in (("alone", ""), ("with workers", NAME)):
        project = Project(tmp_path / name)
        script_id = with_users(project, 800)
        with inline(project) as workers:
            apply(project, script_id, executor=executor)
        counted.append(requests(project, script_id))
    alone, spread = counted
    told = told_by(workers)
    rounds = spread["table"] - alone["table"]
    assert 0 < rounds <= told["batch"] + told["write"]
    assert abs(spread["read"] - 2 * rounds - alone["read"]) <= 12
    # A slice begins with a page of its own and ends with batches that nothing fills; where a range can
    # be split is asked for in pages.
    for kind, most in (("batch", 48), ("scan", 48)):
        assert abs(spread[kind] - alone[kind]) <= most, kind
    assert abs(spread["write"] + spread["operations"] - alone["write"] - alone["operations"]) <= 12
    assert told["operations"] >= 0.8 * alone["operations"]


def test_only_a_lost_tasks_own_requests_are_unknown(ready: Ready) -> None:
    accounts: list[Accounts] = []

    def connect(config: Config) -> Accounts:
        accounts.append(Project.connect(ready.project, config))
        return accounts[-1]

    ready.project.connect = connect  # type: ignore[method-assign]
    failing(ready.executor, 1, _done_and_not_answered)
    ready.apply()
    assert ready.counters()["tasks_lost"] == 1
    assert accounts[0].by_workers == told_by(ready.executor)


def _done_and_not_answered(plain: Plain) -> Plain:
    work(plain)
    raise ValueError


def test_workers_requests_are_kept_with_each_checkpoint(ready: Ready) -> None:
    ready.executor.tasks = 1

    def carry(plain: Plain) -> Plain:
        if ready.executor.answers:
            raise KeyboardInterrupt
        return work({**plain, "seconds": 0.0})

    ready.executor.carry = carry
    with pytest.raises(KeyboardInterrupt):
        ready.apply()
    with ready.project.session() as session:
        [killed] = [one for one in session.state.phase_runs(ready.script_id) if one.phase == "backfill"]
    assert Counter(killed.requests) >= told_by(ready.executor) > Counter()
