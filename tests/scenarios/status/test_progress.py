"""What an operator sees of a run that is at work: how far it is, when it ends, what holds it back; and the
progress document, which `rekey status --json` prints and whose schema is part of the package.

Soak: a hot partition that is read first.
Reason, and what `make test` covers: seconds; one that is read last.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from rekey.core.clock import TICKS_PER_SECOND, format_ticks
from rekey.core.progress import Advance, Progress, Work
from rekey.errors import Interrupted, Unavailable
from rekey.inspect import inventory
from rekey.phases import Phase
from rekey.protocol.registry import ClientRow, Registry
from rekey.protocol.term import Term
from rekey.runner import commands, steering
from rekey.runner.run import StopFlag
from rekey.runner.session import Caller, Session
from rekey.runner.steering import Steering
from rekey.state.store import State
from rekey.status import pulse
from tests.asserts.command_line import Commands
from tests.asserts.every import every
from tests.fakes.faults import Call
from tests.soaking import others_in_soak
from tests.worlds.projects import USERS_SCRIPT, Project
from tests.worlds.small import Killed, user

SCRIPT = "0001_users"
ROWS, PASSED = 4000, 1200
RATE, PARTITION_RATE = 400, 40
TRIED_S = 0.02


def schema() -> dict[str, Any]:
    """Return the schema of the package, closed: a member that it does not tell of is an error here."""
    found: dict[str, Any] = json.loads(
        resources.files("rekey.status").joinpath("progress.schema.json").read_text("utf-8")
    )

    def close(part: Any) -> None:
        if isinstance(part, dict):
            if "properties" in part:
                part["additionalProperties"] = False
            for one in part.values():
                close(one)
        elif isinstance(part, list):
            for one in part:
                close(one)

    close(found)
    return found


def check(document: dict[str, Any]) -> dict[str, Any]:
    """Require that a document is as the schema says; return it."""
    Draft202012Validator(schema()).validate(document)
    return document


class Watched(Progress):
    """Calls a function whenever rows of the backfill are done."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.look: Any = lambda _work: None

    @contextmanager
    def shown(self, work: Work) -> Iterator[Advance]:
        yield lambda _rows: self.look(work) if work.label == "backfill" else None


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.script(USERS_SCRIPT)
    return made


def fill(project: Project, rows: int = ROWS, hot: float = 0.5, name: str = "p20x") -> None:
    """Fill the source; a part of its rows lies in one partition."""
    partitions = [name if number < rows * hot else f"p{number % 40:02}" for number in range(rows)]
    found = [user(f"user{number:05}@x.com", partition) for number, partition in enumerate(partitions)]
    asyncio.run(project.fill("Users", found))


def limited(project: Project) -> None:
    """Set rates, and let every request take its time."""
    path = project.folder / "rekey.toml"
    limits = f"entities_per_second = {RATE}\npartition_entities_per_second = {PARTITION_RATE}\n"
    path.write_text(
        path.read_text("utf-8").replace("window_rows = 50", f"window_rows = 80\n{limits}"), "utf-8"
    )

    async def gate(_call: Call) -> None:
        await project.clock.sleep(TRIED_S)

    project.tables.gate = project.restricted.gate = gate


def session_of(project: Project, progress: Progress, stop: StopFlag | None = None) -> Session:
    return Session(
        project.config,
        project.scripts,
        progress=progress,
        stop=stop or StopFlag(),
        caller=Caller(project.connect, project.clock),
    )


# --- when it ends -----------------------------------------------------------------------------------------


def followed(project: Project, *, stop_at: float = 2.0) -> list[tuple[float, int, float | None]]:
    """Carry out the backfill; return times, rows and the seconds that the pulse says are left."""
    progress, stop, seen = Watched(project.clock), StopFlag(), list[tuple[float, int, float | None]]()
    with session_of(project, progress, stop) as session:

        def look(work: Work) -> None:
            if seen and project.clock.monotonic() - seen[-1][0] < 0.5:
                return
            session.tick()
            told = pulse.read(project.config.state, project.clock.ticks())
            assert told is not None and told.work is not None
            eta = told.work.eta
            seen.append((project.clock.monotonic(), told.work.rows, None if eta is None else eta.seconds))
            if work.rows >= stop_at * ROWS:
                stop.request()

        progress.look = look
        with suppress(Interrupted):
            commands.apply(session, SCRIPT, to=Phase.BACKFILL)
        seen.append((project.clock.monotonic(), ROWS, 0.0))
    return seen


def require_close(seen: list[tuple[float, int, float | None]], whole_s: float, since_rows: float) -> None:
    """Require that the time left was told within 20 %, or (at the end) within 5 % of the whole."""
    end = seen[-1][0]
    judged = [one for one in seen if one[1] >= since_rows and end - one[0] > 0.01 * whole_s]
    assert len(judged) > 20
    wrong = [
        (round(at), rows, told, round(end - at, 1))
        for at, rows, told in judged
        if told is None or abs(told - (end - at)) > max(0.2 * (end - at), 0.05 * whole_s)
    ]
    assert not wrong


@pytest.mark.parametrize("name", others_in_soak(["a", "z"], kept=["z"]))
def test_the_estimate_is_within_a_fifth_despite_a_hot_partition(project: Project, name: str) -> None:
    """Whether that partition is read first or last."""
    fill(project, name=name)
    limited(project)
    seen = followed(project)
    require_close(seen, seen[-1][0] - seen[0][0], 0.1 * ROWS)


def test_a_run_that_goes_on_knows_how_far_the_large_partition_is(project: Project) -> None:
    fill(project)
    limited(project)
    first = followed(project, stop_at=0.4)
    with State.open(project.config.state, read_only=True) as state:
        copied = sum(one.rows for one in state.segments(SCRIPT, "backfill", keys=False))
        assert 0 < copied < 0.8 * ROWS
        assert "busiest" in state.facts(SCRIPT)
    seen = followed(project)
    whole_s = first[-1][0] - first[0][0] + seen[-1][0] - seen[0][0]
    require_close(seen, whole_s, copied + 0.1 * ROWS)


def test_passes_know_how_many_rows_they_go_over(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row check finds it out by itself; a comparison reads both sides."""
    fill(project, PASSED, hot=0.1)
    monkeypatch.setattr(inventory, "GUESS_ROWS", PASSED // 4)
    totals: dict[str, list[tuple[int, int | None]]] = {}

    class Totals(Progress):
        @contextmanager
        def shown(self, work: Work) -> Iterator[Advance]:
            yield lambda _rows: totals.setdefault(work.label, []).append((work.rows, work.total))

    with session_of(project, Totals(project.clock)) as session:
        commands.apply(session, SCRIPT)
        commands.verify(session, SCRIPT, mode=commands.Mode.FULL)
    check_of_rows = totals[f"{SCRIPT}: read Users"]
    assert check_of_rows[0][1] is None
    assert check_of_rows[-1] == (PASSED, pytest.approx(PASSED, rel=0.2))
    assert totals["backfill"][-1] == (PASSED, PASSED)
    assert totals["compare"][-1] == (2 * PASSED, 2 * PASSED)
    assert totals["verify"][-1] == (2 * PASSED, 2 * PASSED)


# --- what holds it back, and the file that says so ----------------------------------------------------------


def test_the_pulse_says_what_is_under_way_and_goes_with_its_runner(project: Project, rekey: Commands) -> None:
    fill(project, 600)
    limited(project)
    progress, told, documents = Watched(project.clock), list[pulse.Pulse](), list[Any]()
    state = project.config.state
    with session_of(project, progress) as session:

        def look(_work: Work) -> None:
            session.tick()
            found = pulse.read(state, project.clock.ticks())
            assert found is not None
            told.append(found)
            documents.append(pulse.path_of(state).read_text("utf-8"))

        progress.look = look
        commands.apply(session, SCRIPT, to=Phase.BACKFILL)
    assert not pulse.path_of(state).exists()
    assert every({one.script_id for one in told} == {SCRIPT} for _ in "1")
    assert {held.by for one in told for held in one.limits} >= {"partition"}
    assert "@x.com" not in "".join(documents) and "p20x" not in "".join(documents)
    # Of a runner that was killed it is believed for a few seconds.
    pulse.path_of(state).write_text(documents[-1])
    [seen] = check(rekey("status", "--json").json)["migrations"]
    assert seen["work"]["label"] == "backfill"
    assert seen["backfill"]["seconds_left"] == seen["work"]["eta"]["seconds"]
    project.clock.advance(pulse.STALE_S + 1)
    [seen] = check(rekey("status", "--json").json)["migrations"]
    assert seen["work"] is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at": 1}', '{"at": 1, "script_id": "x", "work": 7}'])
def test_a_pulse_that_cannot_be_understood_is_none(tmp_path: Path, text: str) -> None:
    state = tmp_path / "state.sqlite"
    pulse.path_of(state).write_text(text)
    assert pulse.read(state, 1) is None


def test_a_pause_is_what_holds_back_while_it_lasts(project: Project) -> None:
    fill(project, 200)
    progress, held = Progress(project.clock), list[str]()
    state = project.config.state
    steering.say(state, Steering(paused=True))
    asked = 0
    read = steering.read

    with session_of(project, progress) as session, pytest.MonkeyPatch.context() as patch:

        def reading(path: Path) -> Steering | None:
            nonlocal asked
            asked += 1
            session.tick()
            told = pulse.read(state, project.clock.ticks())
            held.extend(str(one.by) for one in (told.limits if told else ()))
            if asked == 10:
                steering.say(path, Steering())
            return read(path)

        patch.setattr(steering, "read", reading)
        commands.apply(session, SCRIPT, to=Phase.BACKFILL)
        session.tick()
        told = pulse.read(state, project.clock.ticks())
    assert "pause" in held
    assert told is not None and told.limits == ()


def test_a_wait_for_requests_that_may_be_late_says_until_when(project: Project, rekey: Commands) -> None:
    fill(project, 60)
    rekey("apply", "--to", "dual_write")
    until = format_ticks(project.clock.ticks() + 30 * TICKS_PER_SECOND)
    asyncio.run(Term(project.restricted, SCRIPT).extend(until))
    said = rekey("apply", "--to", "backfill").err
    assert "waiting for unanswered requests, which may still take effect, since 00:00:" in said
    assert ", until 00:01:" in said, "the term, and the margin"


def test_an_apply_prints_each_phase_when_it_has_ended(
    project: Project, rekey: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(project, 60)
    seen: list[str] = []
    usual = project.tables.gate

    async def gate(call: Call) -> None:
        if call.table == "UsersV2" and call.operations:
            seen.append(capsys.readouterr().out)
        await usual(call)

    project.tables.gate = gate
    rekey("apply")
    assert "prepare" in seen[0] and "following" in seen[0] and "backfill" not in seen[0]


# --- the document -------------------------------------------------------------------------------------------


def test_the_document_is_as_its_schema_says_through_a_whole_life(project: Project, rekey: Commands) -> None:
    fill(project, 120)
    project.script(USERS_SCRIPT.replace('"Users"', '"Users2"').replace("UsersV2", "Users2V2"), "0002_more.py")
    [first, _] = check(rekey("status", "--json").json)["migrations"]
    assert first["phase"] == {"name": None, "state": "not-begun", "since": None}
    rekey("apply", "0001", "--to", "backfill")
    [begun, _] = check(rekey("status", "--json").json)["migrations"]
    assert (begun["phase"]["name"], begun["phase"]["state"]) == ("backfill", "done")
    assert begun["checkpoint"]["age_s"] >= 0
    rekey("apply", "0001")
    [ready, _] = check(rekey("status", "--json").json)["migrations"]
    assert ready["divergences"] == 0
    rekey("pause")
    assert check(rekey("status", "--json").json)["steering"]["paused"]
    rekey("resume")
    rekey("apply", "0001", "--to", "cutover", "--writers-stopped")
    [over, _] = check(rekey("status", "--json").json)["migrations"]
    assert over["phase"]["name"] == "cutover"
    rekey("rollback", "0001", "--writers-stopped")
    [back, _] = check(rekey("status", "--json").json)["migrations"]
    assert (back["phase"]["name"], back["safe"]) == ("reconcile", True)
    rekey("apply", "0001", "--to", "complete", "--writers-stopped", "--yes", "0001_users")
    [done, _] = check(rekey("status", "--json").json)["migrations"]
    assert (done["phase"]["name"], done["next"]["command"][:14]) == ("complete", "rekey evidence")


def test_a_phase_that_was_stopped_is_told_as_that(project: Project, rekey: Commands) -> None:
    fill(project, 200)

    async def fail(call: Call) -> None:
        if call.table == "UsersV2":
            raise RuntimeError

    rekey("apply", "--to", "dual_write")
    usual, project.tables.gate = project.tables.gate, fail
    rekey("apply", code=4)
    project.tables.gate = usual
    [seen] = check(rekey("status", "--json").json)["migrations"]
    assert (seen["phase"]["name"], seen["phase"]["state"]) == ("backfill", "stopped")
    assert seen["work"]["label"] == "backfill"


def test_a_pulse_shows_a_runner_during_an_outage(project: Project, rekey: Commands) -> None:
    fill(project, 200)

    async def fail(call: Call) -> None:
        if call.table == "UsersV2":
            raise Killed

    rekey("apply", "--to", "dual_write")
    usual, project.tables.gate = project.tables.gate, fail
    with pytest.raises(Killed):
        rekey("apply")
    project.tables.gate = usual

    async def down(_call: Call) -> None:
        raise Unavailable("the service is down")

    project.restricted.gate = down
    [seen] = check(rekey("status", "--json", code=4).json)["migrations"]
    assert seen["phase"]["state"] == "cut-off"
    state = project.config.state
    pulse.write(state, pulse.Pulse(project.clock.ticks(), SCRIPT))
    [seen] = check(rekey("status", "--json", code=4).json)["migrations"]
    assert seen["phase"]["state"] == "at-work"
    assert "at work since" in seen["stage"]


def test_clients_and_journal_are_as_the_schema_says(project: Project, rekey: Commands) -> None:
    project.script(USERS_SCRIPT.replace('capture="delta"', 'capture="dual-write"'))
    fill(project, 20)
    rekey("apply", "--to", "dual_write")
    now = project.clock.ticks()
    web = ClientRow(
        "c0ffee", "web", "old", "host-b", 12, "0.1", 3, 15.0, 30.0, now, counters={}, run_id="run"
    )
    asyncio.run(Registry(project.restricted, SCRIPT).beat(web))
    [seen] = check(rekey("status", "--json").json)["migrations"]
    assert seen["capture"] == "dual-write"
    assert len(seen["clients"]) == 1


def test_watching_prints_changes_until_ctrl_c(project: Project, rekey: Commands) -> None:
    fill(project, 120)
    looks = 0

    async def gate(call: Call) -> None:
        nonlocal looks
        looks += call.table == "rekeycontrol" and call.action == "get"
        if looks > 80:
            raise KeyboardInterrupt

    project.restricted.gate = gate
    lines = rekey("status", "--watch").out.splitlines()
    assert every(f"{SCRIPT}: not begun" in line and "safe" in line for line in lines)
    assert 2 <= len(lines) <= 10, "what has not changed is told twice a minute"
    looks = 0
    documents = [json.loads(line) for line in rekey("status", "--watch", "--json").out.splitlines()]
    assert len(documents) >= 2
    for document in documents:
        check(document)
