"""A full verification that was cut off goes on from its sums; by workers or not, the digests are the same."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rekey.copy.workers import summing as slices
from rekey.copy.workers.work import work
from rekey.core.clock import TICKS_PER_SECOND
from rekey.errors import Interrupted, RekeyError
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.runner import commands, steering, verification
from rekey.runner.commands import Mode
from rekey.runner.run import Options, StopFlag
from rekey.runner.status import read_status
from rekey.state.models import PLAN_FACT
from rekey.state.store import State
from rekey.status.judge import Status
from rekey.status.tell import status_lines
from rekey.verify import first_pass, ranges
from rekey.verify.render import render
from rekey.verify.report import FullReport
from tests.fakes.executors import NAME, Inline, Plain, inline
from tests.fakes.faults import Call
from tests.fakes.memory import instant_gate
from tests.worlds.projects import SECONDARY_SCRIPT, USERS_SCRIPT, Project, lived
from tests.worlds.small import racer, user

ROWS = 450


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A migration of users that is copied and verified."""

    def live(made: Project) -> None:
        made.script(USERS_SCRIPT)
        with made.session() as session:
            rows = [user(f"user{n:04}@example.com", f"p{n % 7}") for n in range(ROWS)]
            session.do(made.fill("Users", rows))
            commands.apply(session, "0001_users")

    return lived(__name__, tmp_path, live)


def verify(
    project: Project, *, executor: str = "", stop: StopFlag | None = None, repair: bool = False
) -> FullReport:
    """Verify as a command does."""
    with project.session(Options(executor=executor), stop=stop) as session:
        report = commands.verify(session, "0001_users", mode=Mode.FULL, repair=repair)
    assert isinstance(report, FullReport)
    return report


def digests(report: FullReport) -> list[str]:
    """Everything that must not depend on how it was read."""
    told = [(one.expected_digest, one.actual_digest, str(one.expected_rows)) for one in report.tables]
    return [report.source_digest, str(report.source_rows), *(text for one in told for text in one)]


def cut_off(project: Project, monkeypatch: pytest.MonkeyPatch, pages: int = 2, page_s: float = 0.0) -> None:
    """Stop a verification after some pages of a few rows; each takes `page_s`."""
    stop, left = StopFlag(), pages

    async def gate(call: Call) -> None:
        nonlocal left
        if call.action == "page" and call.table in ("Users", "UsersV2"):
            left -= 1
            if page_s:
                await project.clock.sleep(page_s)
            if left < 0:
                stop.request()

    small_pages(monkeypatch)
    project.tables.gate = gate
    with pytest.raises(Interrupted):
        verify(project, stop=stop)
    project.tables.gate = instant_gate


def small_pages(monkeypatch: pytest.MonkeyPatch, rows: int = 40) -> None:
    """Let scans give small pages, so that there are many."""
    from tests.fakes.memory import MemoryTable

    scan = MemoryTable.scan

    def paged(self: MemoryTable, *words: Any, **more: Any) -> Any:
        return scan(self, *words, **{**more, "page_rows": min(rows, more.get("page_rows", rows))})

    monkeypatch.setattr(MemoryTable, "scan", paged)
    monkeypatch.setattr(first_pass, "LEAST_ROWS", 2 * rows)


def stored(project: Project) -> list[tuple[Any, ...]]:
    """What the state file holds of a verification under way."""
    with closing(sqlite3.connect(project.config.state)) as connection:
        return connection.execute("select basis, begun_at, sums from partial_sums").fetchall()


# --- several parts at a time ----------------------------------------------------------------------------


def test_split_parts_have_the_same_digests(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = verify(project)
    assert len(alone.read) == 2
    small_pages(monkeypatch, 5)
    seen: list[int] = []
    monkeypatch.setattr(
        verification, "keep", lambda _run, _under, _worked_s, sums: seen.append(len(sums.parts))
    )
    assert digests(verify(project)) == digests(alone)
    assert seen[-1] > 3, "the tables are read in more than one part each"


def test_the_operators_rates_hold(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pages(monkeypatch)
    state = project.config.state
    steering.say(state, steering.Steering(entities_per_second=100))
    began = project.clock.ticks()
    verify(project)
    assert project.clock.ticks() - began >= 0.8 * 2 * ROWS / 100 * TICKS_PER_SECOND
    steering.say(state, steering.Steering(entities_per_second=300_000))
    with inline(project) as executor:
        verify(project, executor=NAME)
        assert {one["entities_per_second"] for one in executor.given} == {100_000}


def test_workers_tell_the_kinds_of_rows_in_one_table_apart(tmp_path: Path) -> None:
    """The table is read once; a difference of either kind is found by its own sums, and mended."""
    project = Project(tmp_path)
    script_id = project.script(SECONDARY_SCRIPT)

    def verified(executor: str, *, repair: bool = False) -> FullReport:
        with project.session(Options(executor=executor)) as session:
            report = commands.verify(session, script_id, mode=Mode.FULL, repair=repair)
        assert isinstance(report, FullReport)
        return report

    with project.session() as session:
        rows = [racer(f"{n:04}", 20 + n % 50, Club="c", Teams="x,y") for n in range(60)]
        session.do(project.fill("Races", rows))
        commands.apply(session, script_id)
    with inline(project) as executor:
        alone, spread = verified(""), verified(NAME)
        assert digests(spread) == digests(alone)
        assert [one.actual_rows for one in spread.tables] == [60, 60, 120, 60]
        assert {one["table"] for one in executor.given if one["kind"] == "sum"} == {-1, 0}
        table = project.tables.table("RacesV2")
        with project.session() as session:
            session.do(table.delete(EntityKey("nyc__c", "TEAM:x__0007")))
            session.do(table.merge({"PartitionKey": "nyc__c", "RowKey": "BIB:0009__John", "Age": 99}))
        found = verified(NAME, repair=True).differences.listed
        assert {(one.table, one.kind) for one in found} == {
            ("RacesV2", "altered"),
            ("RacesV2 TEAM:", "missing"),
        }
        assert not verified(NAME).findings


# --- going on ---------------------------------------------------------------------------------------------


def test_it_resumes_behind_what_was_read(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = verify(project)
    cut_off(project, monkeypatch, pages=6)
    assert stored(project)
    project.clock.advance(3600)
    report = verify(project)
    assert digests(report) == digests(whole)
    sittings = {one.sitting: one for one in report.read if one.table == "Users"}
    assert set(sittings) == {1, 2}
    assert 0 < sittings[1].rows < ROWS and sittings[1].rows + sittings[2].rows == ROWS
    assert sittings[1].ended_at < sittings[2].begun_at
    assert report.started_at <= sittings[1].begun_at
    assert not stored(project), "it is done"
    said = render(report, "0001_users")
    assert "sitting  table" in said and "sitting" not in render(whole, "0001_users")
    assert not report.findings


@pytest.mark.parametrize(
    ("page_s", "pause_h", "resumes"),
    [(0, 23, True), (0, 25, False), (72_000, 25, True), (72_000, 1000, False)],
)
def test_a_verification_may_pause_for_a_day_or_for_as_long_as_it_worked(
    project: Project, monkeypatch: pytest.MonkeyPatch, page_s: float, pause_h: float, resumes: bool
) -> None:
    cut_off(project, monkeypatch, pages=12, page_s=page_s)
    project.clock.advance(pause_h * 3600)
    assert len({read.sitting for read in verify(project).read}) == (2 if resumes else 1)


def test_a_first_verification_may_pause_for_as_long_as_the_plan_expects_it_to_work(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with project.session() as session:
        plan = json.loads(session.state.get_fact("0001_users", PLAN_FACT) or "")
        for phase in plan["plan"]["migrations"][0]["estimate"]["durations"]:
            phase["at_limits_s"] = 100 * 3600
        session.state.set_fact("0001_users", PLAN_FACT, json.dumps(plan))
    monkeypatch.setattr(State, "latest_verification", lambda *_: None)
    cut_off(project, monkeypatch, pages=6)
    project.clock.advance(150 * 3600)
    assert len({read.sitting for read in verify(project).read}) == 2


def test_changing_rows_are_no_findings(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(project, monkeypatch, pages=6)
    first, *_, last = project.rows("Users")
    with project.session() as session:
        for row in (first, last):
            session.do(project.tables.table("Users").replace({**content_of(row), "Nm": "changed"}))
        commands.apply(session, "0001_users")
    whole = verify(project)
    assert not whole.findings
    cut_off(project, monkeypatch, pages=6)
    [broken] = [row for row in project.rows("UsersV2") if row["ContactEmail"] == first["RowKey"]]
    with project.session() as session:
        session.do(project.tables.table("UsersV2").replace({**content_of(broken), "Name": "wrong"}))
        # seen by nobody as a change of the source: only the comparison finds it
    assert verify(project).differences.counts == {"altered": 1}


def test_the_stored_state_holds_no_sealed_key(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(project, monkeypatch, pages=6)
    assert "sealed:" in repr(stored(project))
    assert "example.com" not in repr(stored(project))


def _moved(project: Project) -> None:
    with project.session(Options(writers_stopped=True)) as session:
        run = session.begin("0001_users")
        control = session.do(run.control.read())
        assert control is not None
        from rekey.phases import ControlPhase

        session.do(run.control.move(ControlPhase.DUAL_WRITE, ControlPhase.FREEZE))
        session.do(run.control.move(ControlPhase.FREEZE, ControlPhase.DUAL_WRITE))


def _aged(project: Project) -> None:
    project.clock.advance(24 * 3600)


def _damaged(project: Project) -> None:
    with closing(sqlite3.connect(project.config.state)) as connection:
        connection.execute("update partial_sums set sums = '{\"parts\": []}'")
        connection.commit()


@pytest.mark.parametrize("change", [_moved, _aged, _damaged])
def test_it_begins_anew_where_the_sums_would_not_mean_the_same(
    project: Project, monkeypatch: pytest.MonkeyPatch, change: Callable[[Project], None]
) -> None:
    cut_off(project, monkeypatch, pages=6)
    change(project)
    report = verify(project)
    assert {one.sitting for one in report.read} == {1}
    assert not report.findings


# --- by ranges --------------------------------------------------------------------------------------------


@pytest.fixture
def by_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare by ranges, of a partition or two."""
    monkeypatch.setattr(verification, "RANGED_ROWS", 1)
    monkeypatch.setattr(ranges, "RANGE_ROWS", 40)
    monkeypatch.setattr(ranges, "CHECKPOINT_S", 0.0)


def status_of(project: Project) -> tuple[Status, str]:
    """Return what `rekey status` would show."""
    with project.session() as session:
        status = session.do(read_status(session.sources, session.scripts["0001_users"]))
    return status, "\n".join(status_lines(status, str))


@pytest.mark.usefixtures("by_ranges")
def test_it_tells_how_many_rows_differ_so_far(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = planted(project)
    cut_off(project, monkeypatch, pages=26)
    status, text = status_of(project)
    assert 0 < status.as_json()["divergences_so_far"] <= sum(kinds.values())
    assert f"{status.differing_so_far} rows differ so far" in text
    report = verify(project)
    assert report.differences.counts == kinds
    assert {one.sitting for one in report.read} == {1, 2}
    status, text = status_of(project)
    assert status.differing_so_far == 0 and "so far" not in text


@pytest.mark.usefixtures("by_ranges")
def test_a_repair_after_a_kill_repairs_also_what_was_seen_before(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = planted(project)
    cut_off(project, monkeypatch, pages=26)
    report = verify(project, repair=True)
    assert report.repair is not None and sum(report.repair.counts.values()) == sum(kinds.values())
    assert {one.sitting for one in report.read} == {1, 2}
    assert not verify(project).findings


# --- by workers -------------------------------------------------------------------------------------------


def test_workers_compute_the_same_digests_also_when_cut_off_in_the_middle(project: Project) -> None:
    whole = verify(project)
    with inline(project) as executor:
        assert digests(verify(project, executor=NAME)) == digests(whole)
        assert {one["kind"] for one in executor.given} == {"sum"}
        assert len(executor.given) >= 3, "split among the tasks at a time"
        stop = StopFlag()

        def then_stop(plain: Plain) -> Plain:
            stop.request()
            return work(plain)

        executor.carry = then_stop
        with pytest.raises(Interrupted):
            verify(project, executor=NAME, stop=stop)
        executor.carry = work
        report = verify(project)
    assert digests(report) == digests(whole)
    assert {one.sitting for one in report.read} == {1, 2}


def planted(project: Project) -> dict[str, int]:
    """Make rows differ in every way; return how many of each kind."""

    async def plant() -> None:
        target = project.tables.table("UsersV2")
        missing, altered, moved, *_ = project.rows("UsersV2")
        await target.delete(key_of(missing))
        await target.replace({**content_of(altered), "Name": "wrong"})
        await target.delete(key_of(moved))
        await target.insert({**content_of(moved), "RowKey": "elsewhere"})
        await target.insert(extra())

    with project.session() as session:
        session.do(plant())
    return {"altered": 1, "extra": 1, "missing": 1, "wrong-key": 1}


def extra() -> Row:
    return {"PartitionKey": "p1", "RowKey": "extra", "Name": "nobody"}


def test_workers_find_the_same_without_keys(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = planted(project)
    monkeypatch.setattr(slices, "MOST_RECORDS", 1)
    alone = verify(project)
    assert alone.differences.counts == kinds
    with inline(project) as executor:
        report = verify(project, executor=NAME)
        assert {one["kind"] for one in executor.given} == {"sum", "find"}
        assert "example.com" not in repr([*executor.given, *executor.answers])
    assert report.differences == alone.differences
    assert digests(report) == digests(alone)


def test_answers_that_are_no_sums_or_no_rows_of_the_task_are_not_counted(project: Project) -> None:
    planted(project)

    def spoiled(plain: Plain) -> Plain:
        answer = work(plain)
        return {**answer, "sums": {"other": b""}} if answer["sums"] else {**answer, "records": b"x" * 60}

    with inline(project) as executor:
        _once(executor, spoiled)
        assert verify(project, executor=NAME).differences.stable == 4
        executor.carry = spoiled
        with pytest.raises(RekeyError) as told:
            verify(project, executor=NAME)
    assert told.value.exit_code == 4


def _once(executor: Inline, wrong: Callable[[Plain], Plain]) -> None:
    """Let the first task of each kind go wrong."""
    seen: set[str] = set()

    def carry(plain: Plain) -> Plain:
        if plain["kind"] in seen:
            return work(plain)
        seen.add(plain["kind"])
        return wrong(plain)

    executor.carry = carry


def test_sums_of_another_epoch_are_not_counted(project: Project) -> None:
    with inline(project) as executor:

        def stale(plain: Plain) -> Plain:
            return work({**plain, "basis": {**plain["basis"], "epoch": 1}})

        executor.carry = stale
        with pytest.raises(RekeyError, match="control row"):
            verify(project, executor=NAME)
