"""Slices copied by workers: as in one process, whatever runs twice, late, elsewhere, or not at all.

Soak: 2 of 5 ways to lose a task.
Reason, and what `make test` covers: three ways.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
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
from rekey.runner import commands, steering
from rekey.runner.run import Options, StopFlag
from tests.fakes.executors import NAME, Inline, Plain, inline
from tests.fakes.faults import Call
from tests.simulation.judging import PairsWatch
from tests.worlds.company import company
from tests.worlds.dual_write import delete
from tests.worlds.projects import POSTS_SCRIPT, SECONDARY_SCRIPT, USERS_SCRIPT, Project
from tests.worlds.small import SECRET, contents, mapped, post, racer, user

ROWS = 400
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


def counters(project: Project, script_id: str) -> dict[str, int]:
    """What the backfill counted."""
    with project.session() as session:
        return dict(
            [one for one in session.state.phase_runs(script_id) if one.phase == "backfill"][-1].counters
        )


def assert_in_step(project: Project, script_id: str) -> None:
    """Targets hold exactly what the source says."""
    migration = project.scripts[script_id].migration
    mapper = Mapper(migration, {"users": SECRET})
    actual = {name: contents(project.rows(name)) for name in mapper.tables}
    assert actual == mapped(mapper, project.rows(migration.source))


def seconds(project: Project) -> float:
    return project.clock.ticks() / TICKS_PER_SECOND


@pytest.fixture
def ready(project: Project) -> Iterator[tuple[Project, str, Inline]]:
    script_id = with_users(project)
    with inline(project) as executor:
        yield project, script_id, executor


Ready = tuple[Project, str, Inline]


# --- the same as in one process -------------------------------------------------------------------------


def test_workers_copy_what_the_runner_would_have_copied(ready: Ready) -> None:
    project, script_id, executor = ready
    apply(project, script_id)
    assert_in_step(project, script_id)
    copied = [one for one in executor.given if one["kind"] == "copy"]
    assert len(copied) >= 3, "the table is split among as many tasks as are done at a time"
    told = counters(project, script_id)
    assert (told["source_rows"], told["target_rows_inserted"], told["tasks_lost"]) == (ROWS, ROWS, 0)
    assert told["tasks"] == len(copied)


def test_a_worker_copies_after_its_machine_slept(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on one of its clocks is ahead of the other: a term is measured by one of them alone."""
    project, script_id, _ = ready
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: time.monotonic() + 86_400)
    apply(project, script_id)
    assert_in_step(project, script_id)


def test_keys_of_content_and_index_tables_are_copied_too(project: Project) -> None:
    script_id = project.script(POSTS_SCRIPT)
    _fill(project, "Posts", [post(f"slug{n:04}", f"2024-{n % 12 + 1:02}") for n in range(ROWS)])
    with inline(project):
        apply(project, script_id)
    assert_in_step(project, script_id)


def test_main_and_secondary_rows_are_copied_together_in_one_table(project: Project) -> None:
    script_id = project.script(SECONDARY_SCRIPT)
    rows = [racer(f"{n:04}", 20 + n % 50, race=f"r{n % 3}", Club="c", Teams="x,y") for n in range(ROWS)]
    _fill(project, "Races", rows)
    pairs = PairsWatch(Mapper(project.scripts[script_id].migration, {}))
    with pairs.watching(), inline(project) as executor:
        apply(project, script_id)
    assert_in_step(project, script_id)
    assert len([one for one in executor.given if one["kind"] == "copy"]) >= 3
    assert pairs.looks > 10
    assert pairs.wrong == []


def test_tasks_and_answers_hold_no_old_key_no_secret_and_nothing_but_plain_data(ready: Ready) -> None:
    project, script_id, executor = ready
    apply(project, script_id)

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(isinstance(name, str) and plain(one) for name, one in value.items())
        if isinstance(value, list):
            return all(plain(one) for one in value)
        return value is None or type(value) in (str, int, float, bool, bytes)

    assert executor.given and executor.answers
    for one in [*executor.given, *executor.answers]:
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
    project, script_id, executor = ready

    def twice(plain: Plain) -> Plain:
        work(plain)
        return work(plain)

    executor.carry = twice
    apply(project, script_id)
    assert_in_step(project, script_id)
    assert counters(project, script_id)["source_rows"] == ROWS


def test_a_task_of_before_writes_nothing_once_its_runner_has_ended(ready: Ready) -> None:
    """A row that was deleted, and swept, does not come back by a task that still runs somewhere."""
    project, script_id, executor = ready
    apply(project, script_id)
    given = list(executor.given)
    gone = key_of(project.rows("Users")[0])
    with project.session() as session:
        session.do(project.tables.table("Users").delete(gone))
    apply(project, script_id)
    before = project.rows("UsersV2")
    answers = [work(one) for one in given if one["kind"] == "copy"]
    assert {one["ended"] for one in answers} == {"superseded"}
    assert project.rows("UsersV2") == before
    assert_in_step(project, script_id)


def test_a_task_whose_term_is_over_does_nothing(ready: Ready) -> None:
    project, script_id, executor = ready
    late: list[Plain] = []

    def later(plain: Plain) -> Plain:
        if not late and plain["kind"] == "copy":
            late.append(plain)
            project.clock.advance(TERM_S)
            rows = len(project.rows("UsersV2"))
            answer = work(plain)
            assert (answer["ended"], len(project.rows("UsersV2"))) == ("late", rows)
            return answer
        return work(plain)

    executor.carry = later
    apply(project, script_id)
    assert late
    assert_in_step(project, script_id)


@pytest.mark.parametrize("changed", [{"Epoch": "9"}, {"Digest": "0" * 64}, {"RunId": "0" * 32}])
def test_a_worker_stops_when_the_control_row_changed(ready: Ready, changed: dict[str, str]) -> None:
    _stops_at_the_next_batch(ready, "control", changed)


def test_a_worker_stops_before_the_next_batch_when_another_runner_has_the_lease(ready: Ready) -> None:
    _stops_at_the_next_batch(ready, "runner", {"LeaseId": "0" * 32})


def _stops_at_the_next_batch(ready: Ready, row: str, changed: dict[str, str]) -> None:
    project, script_id, executor = ready
    begun: list[Call] = []

    async def gate(call: Call) -> None:
        if not (call.writes and call.table == "UsersV2"):
            return
        if not begun:
            control = project.restricted.table("rekeycontrol")
            now = await control.get(EntityKey(script_id, row))
            assert now is not None
            await control.replace({**content_of(now), **changed})
        begun.append(call)

    written = 0

    def once(plain: Plain) -> Plain:
        nonlocal written
        project.tables.gate = gate
        answer = work(plain)
        written = len(begun)
        project.tables.gate = _calm
        assert answer["ended"] == "superseded"
        return answer

    executor.carry = once
    executor.tasks = 1
    with pytest.raises((Moved, Locked, RekeyError)):
        apply(project, script_id)
    # Batches that had passed the fence together with the one that noticed were on their way already.
    assert 0 < written < ROWS / 7


async def _calm(_call: Call) -> None:
    return


# --- what follows the copy waits ------------------------------------------------------------------------


def test_the_sweep_waits_for_the_term_of_tasks_that_may_run_in_two_places(ready: Ready) -> None:
    project, script_id, executor = ready
    executor.runs_once = False
    began = seconds(project)
    apply(project, script_id)
    assert seconds(project) - began >= TERM_S + MARGIN_S
    assert_in_step(project, script_id)


def test_it_does_not_wait_where_every_task_was_answered_and_runs_once(ready: Ready) -> None:
    project, script_id, _ = ready
    began = seconds(project)
    apply(project, script_id)
    assert seconds(project) - began < MARGIN_S


@pytest.mark.parametrize("lose_state", [False, True])
def test_the_next_runner_awaits_tasks_without_its_state_file(ready: Ready, lose_state: bool) -> None:
    project, script_id, executor = ready
    executor.carry = _killed
    with pytest.raises(KeyboardInterrupt):
        apply(project, script_id)
    if lose_state:
        for path in project.folder.glob("state.sqlite*"):
            path.unlink()
    began = seconds(project)
    apply(project, script_id, executor="")
    assert seconds(project) - began >= TERM_S + MARGIN_S - 1
    assert_in_step(project, script_id)


def test_a_rollback_waits_for_the_tasks_of_a_runner_that_was_killed(ready: Ready) -> None:
    project, script_id, executor = ready
    executor.carry = _killed
    with pytest.raises(KeyboardInterrupt):
        apply(project, script_id)
    began = seconds(project)
    with project.session() as session:
        commands.rollback(session, script_id, to=None, drop=True)
    assert seconds(project) - began >= TERM_S + MARGIN_S - 1


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
    project, script_id, executor = ready
    executor.tasks = 1
    failing(executor, 10**6, failure)
    with pytest.raises(WorkersFailed) as told:
        apply(project, script_id)
    assert told.value.exit_code == 4
    assert "@example.com" not in str(told.value)
    failing(executor, 2, failure)
    apply(project, script_id)
    assert counters(project, script_id)["tasks_lost"] == 2
    assert_in_step(project, script_id)


def test_an_unanswered_task_goes_to_another_worker(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    project, script_id, executor = ready
    monkeypatch.setattr(driver, "LOST_AFTER_S", -1000)
    silent = 2

    def carry(plain: Plain) -> Plain | None:
        nonlocal silent
        silent -= 1
        return work(plain) if silent < 0 else None

    executor.carry = carry
    began = seconds(project)
    apply(project, script_id)
    assert counters(project, script_id)["tasks_lost"] == 2
    assert seconds(project) - began >= MARGIN_S, "they may still write"
    assert_in_step(project, script_id)


def _takes(project: Project, needed_s: float) -> Callable[[Plain], Plain]:
    """A worker that does nothing in a shorter term than it needs."""

    def carry(plain: Plain) -> Plain:
        left_s = (ticks_of(plain["until"]) - project.clock.ticks()) / TICKS_PER_SECOND
        return work(plain) if left_s >= needed_s else Result(plain["id"], Ended.LATE).plain()

    return carry


def test_a_worker_that_does_nothing_in_its_term_gets_twice_as_long_for_the_same_range(ready: Ready) -> None:
    """One that only begins, or a machine that is busy, would not manage it the next time either."""
    project, script_id, executor = ready
    executor.carry = _takes(project, 3.5 * TERM_S)
    apply(project, script_id)
    assert_in_step(project, script_id)
    assert Ended.LATE in {one["ended"] for one in executor.answers}


def test_halves_of_a_range_that_came_to_nothing_get_its_longer_term(ready: Ready) -> None:
    """The range is split as soon as the others are done: what it needs longer for has not changed by that."""
    project, script_id, executor = ready
    terms: list[float] = []
    takes = _takes(project, 1.5 * TERM_S)

    def carry(plain: Plain) -> Plain:
        if plain["kind"] != "copy" or plain["upto"]:
            return work(plain)
        terms.append((ticks_of(plain["until"]) - project.clock.ticks()) / TICKS_PER_SECOND)
        return takes(plain)

    executor.carry = carry
    apply(project, script_id)
    assert_in_step(project, script_id)
    copied = [one for one in executor.given if one["kind"] == "copy"]
    assert len(copied) > executor.tasks + 1, "it was split in between, not tried again whole"
    assert terms == [TERM_S, 2 * TERM_S]


def test_a_worker_that_does_nothing_in_four_times_its_term_either_is_given_up(ready: Ready) -> None:
    project, script_id, executor = ready
    executor.carry = _takes(project, 4.5 * TERM_S)
    with pytest.raises(WorkersFailed, match=rf"nothing was done in its {4 * TERM_S} s \(late\)") as told:
        apply(project, script_id)
    assert "slice" in told.value.hint
    assert {one["ended"] for one in executor.answers} == {Ended.LATE}


def test_an_executor_that_broke_is_begun_again(ready: Ready) -> None:
    project, script_id, executor = ready
    failing(executor, 1, _raises(BrokenExecutor()))
    apply(project, script_id)
    assert executor.begun == 3, "for the copy, once more for it, and for the comparison"
    assert_in_step(project, script_id)


LOWERED = """
from rekey import Migration, Target, keys, props

migration = Migration(
    source="Users",
    target=Target(
        "UsersV2",
        partition_key=keys.prop("PartitionKey"),
        row_key=keys.lower("RowKey"),
        properties=[props.copy("RowKey", to="Old")],
    ),
    capture="delta",
    waive={"personal-data": "made up", "merged-keys": "told as collisions here"},
)
"""


def test_rows_that_collide_are_told_with_the_exit_code_of_findings_by_safe_id(project: Project) -> None:
    script_id = project.script(LOWERED)
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


def test_a_worker_with_another_version_or_another_script_refuses(ready: Ready) -> None:
    project, script_id, executor = ready

    def older(plain: Plain) -> Plain:
        return work({**plain, "basis": {**plain["basis"], "version": "0.0.1"}})

    executor.carry = older
    with pytest.raises(ConfigurationError, match="0\\.0\\.1"):
        apply(project, script_id)

    def edited(plain: Plain) -> Plain:
        return work({**plain, "basis": {**plain["basis"], "digest": "0" * 64}})

    executor.carry = edited
    with pytest.raises(Refused, match="other script"):
        apply(project, script_id)

    def elsewhere(plain: Plain) -> Plain:
        return work({**plain, "basis": {**plain["basis"], "config": "/nowhere/rekey.toml"}})

    executor.carry = elsewhere
    with pytest.raises(ConfigurationError, match="no configuration"):
        apply(project, script_id)
    assert not project.rows("UsersV2")


def test_a_stop_is_heeded_between_tasks_and_the_next_run_goes_on(ready: Ready) -> None:
    project, script_id, executor = ready
    stop = StopFlag()

    def then_stop(plain: Plain) -> Plain:
        stop.request()
        return work(plain)

    executor.carry = then_stop
    with pytest.raises(Interrupted):
        apply(project, script_id, stop=stop)
    copied = len(project.rows("UsersV2"))
    assert 0 < copied < ROWS
    executor.carry = work
    apply(project, script_id)
    assert counters(project, script_id)["target_rows_inserted"] == ROWS - copied
    assert_in_step(project, script_id)


# --- rates that follow the service ------------------------------------------------------------------------


def test_tasks_share_the_rate_at_which_rates_begin_that_follow_the_service(ready: Ready) -> None:
    """Each process finds its own limit; how they share one: `tests/scenarios/copy/test_service_rates.py`."""
    project, script_id, executor = ready
    path = project.folder / "rekey.toml"
    text = path.read_text("utf-8").replace("[limits]", '[limits]\nentities_per_second = "auto"')
    path.write_text(text, "utf-8")
    apply(project, script_id)
    given = [(one["entities_per_second"], one["begins"]) for one in executor.given]
    assert set(given) == {(0, 20_000 // 3)}
    assert_in_step(project, script_id)


# --- the operator's word --------------------------------------------------------------------------------


def test_rates_are_shared_by_the_tasks_at_a_time_and_a_pause_holds_tasks_back(ready: Ready) -> None:
    project, script_id, executor = ready
    state = project.config.state
    steering.say(
        state, steering.Steering(entities_per_second=3_000_000, partition_entities_per_second=900_000)
    )
    held: list[float] = []

    def pausing(plain: Plain) -> Plain:
        if not held:
            held.append(seconds(project))
            steering.say(state, steering.Steering(paused=True))
        project.clock.advance(1)
        return work(plain)

    executor.carry = pausing
    looked = project.clock.sleep

    async def sleep(wait: float) -> None:
        if held and seconds(project) - held[0] > 5:
            steering.say(state, steering.Steering())
        await looked(wait)

    project.clock.sleep = sleep  # type: ignore[method-assign]
    apply(project, script_id)
    first = executor.given[0]
    assert first["entities_per_second"] == 1_000_000
    assert first["partition_entities_per_second"] == 300_000
    assert executor.given[-1]["entities_per_second"] == 0
    assert seconds(project) - held[0] > 5
    assert_in_step(project, script_id)
