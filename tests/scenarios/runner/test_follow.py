"""`apply --follow`: targets are kept up to date before the gate of cutover, until it is called for.

Soak: 2 of 4 hooks that fail.
Reason, and what `make test` covers: one in each capture, one for each event.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.errors import Interrupted, Refused, Unavailable
from rekey.model import key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.control import ControlStore
from rekey.runner import steering
from rekey.runner.run import Options
from rekey.state.store import State
from rekey.status.judge import Status
from rekey.tables.base import Operation, Verb
from tests.asserts.command_line import Commands, CommandsOn
from tests.fakes.faults import Call
from tests.fakes.memory import open_gate
from tests.soaking import others_in_soak
from tests.worlds.company import Company, application, company_at
from tests.worlds.followed import Following, Then, keep_real_time_out, said
from tests.worlds.projects import USERS_SCRIPT, applied
from tests.worlds.small import Killed, user

ROWS = 60
MINUTE = 60.0


def rows() -> list[dict[str, Any]]:
    return [user(f"user{number:03}@example.com", f"p{number % 3}") for number in range(ROWS)]


@pytest.fixture(autouse=True)
def _keep_real_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_real_time_out(monkeypatch)


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[Following]:
    """A migration at the gate of cutover."""
    ours = Company(applied(tmp_path, USERS_SCRIPT, rows()), "0001_users")
    made = Following(ours)
    made.configure('[follow]\nevery = "30s"\ncompare_every = "4m"')
    yield made
    ours.close()


@pytest.fixture
def dual(tmp_path: Path) -> Iterator[Following]:
    """One under writes, whose rows are copied."""
    made = Following(company_at(tmp_path, USERS_SCRIPT, rows(), Phase.BACKFILL))
    made.configure('[follow]\nevery = "30s"\ncompare_every = "4m"')
    yield made
    made.ours.close()


def test_what_changes_is_brought_and_compared_until_it_is_told_to_proceed(delta: Following) -> None:
    tables, ours = delta.ours.project.tables, delta.ours
    lags: list[float | None] = []

    async def change() -> None:
        await tables.table("Users").insert(user("new@example.com", "p1"))
        await tables.table("Users").delete(key_of(rows()[0]))

    async def is_brought() -> None:
        assert "new" in {row["Name"] for row in ours.project.rows("UsersV2")}
        lags.append((await delta.status()).lag_s)

    async def is_compared() -> None:
        ours.assert_in_step()
        status = await delta.status()
        lags.append(status.lag_s)
        following = status.as_json()["following"]
        assert following == {"since": following["since"], "at_work": True, "refused": [], "window": None}
        assert status.verdict.command == "proceed 0001_users --writers-stopped"
        assert "keeps up to date" in status.verdict.sentence and status.verdict.safe
        delta.proceed(writers_stopped=True)

    applied = delta((MINUTE, change), (MINUTE, is_brought), (4 * MINUTE, is_compared))
    assert applied.next_phase is Phase.COMPLETE
    assert ours.phase is ControlPhase.CUTOVER
    ours.assert_in_step()
    assert len(lags) == 2 and all(lag is not None and lag < 40 for lag in lags), "not older than a pass"
    assert len(delta.verified) == 3, "of reconcile, of following, under freeze"
    assert delta.fact is None
    assert len(delta.told.of("proceed-heard")) == 1


def test_intents_of_a_client_that_died_are_settled_while_it_is_followed(dual: Following) -> None:
    ours = dual.ours
    ours.client(name="lives")
    dies = ours.client(name="dies")
    ours.apply()

    async def die() -> None:
        at_replica = asyncio.Event()

        async def gate(call: Call) -> None:
            await asyncio.sleep(0)
            if application.get() == "dies" and (call.table == "UsersV2" or at_replica.is_set()):
                at_replica.set()
                await asyncio.Event().wait()

        ours.project.tables.gate = ours.project.restricted.gate = gate
        row = {"PartitionKey": "p0", "RowKey": "user000@example.com", "Nm": "written"}
        ours.held.append(asyncio.ensure_future(dies.write(Operation(Verb.MERGE, row, "*"))))
        await at_replica.wait()
        await dies.die()
        assert ours.intents

    async def is_settled() -> None:
        assert ours.unsettled == []
        ours.assert_in_step()
        status = await dual.status()
        assert (status.lag_s, status.verdict.command) == (0.0, "proceed 0001_subject")
        dual.proceed()

    dual((MINUTE, die), (5 * MINUTE, is_settled))
    assert ours.phase is ControlPhase.CUTOVER
    ours.settle()
    ours.assert_in_step()


def test_what_changes_next_to_passes_and_comparisons_is_not_lost(delta: Following) -> None:
    """Comparisons take minutes, as slow as their share makes them: passes are made meanwhile, and rows are
    inserted, changed and deleted all the time."""
    path = delta.ours.project.folder / "rekey.toml"
    slow = path.read_text("utf-8").replace("[follow]", "[follow]\nshare = 0.00005").replace('"4m"', '"1m"')
    path.write_text(slow, "utf-8")
    rng, source = random.Random(1), delta.ours.project.tables.table("Users")
    keys = [key_of(row) for row in rows()]

    async def write() -> None:
        for number in range(250):
            key = rng.choice(keys)
            there = {key_of(row) for row in delta.ours.project.rows("Users")}
            if key not in there:
                await source.insert(user(key.row, key.partition, Age=number))
            elif rng.random() < 0.4:
                await source.delete(key)
            else:
                await source.merge({"PartitionKey": key.partition, "RowKey": key.row, "Nm": f"{number}"})
            await delta.ours.project.clock.sleep(rng.choice((0.0, 1.0, 5.0)))
        delta.proceed(writers_stopped=True)

    delta((1, write))
    assert len(delta.verified) > 3
    assert delta.ours.phase is ControlPhase.CUTOVER
    delta.ours.assert_in_step()


@pytest.mark.parametrize("capture", ["delta", "dual"])
def test_a_killed_run_follows_and_waits_again(capture: str, request: pytest.FixtureRequest) -> None:
    follow: Following = request.getfixturevalue(capture)
    ours, stopped = follow.ours, capture == "delta"
    if not stopped:
        ours.client()
    ours.apply()
    before = len(follow.verified)

    async def kill(_call: Call) -> None:
        if not application.get():
            raise Killed

    async def killed() -> None:
        follow.proceed(writers_stopped=stopped)
        ours.project.tables.gate = ours.project.restricted.gate = kill

    with suppress(Killed):
        follow((MINUTE, killed))
    ours.project.tables.gate = ours.project.restricted.gate = open_gate
    ours.live(2 * MINUTE)  # its lease ends
    left = follow.fact
    assert left is not None and ours.phase is ControlPhase.DUAL_WRITE

    seen: list[str] = []

    async def look_again() -> None:
        status = await follow.status()
        seen.append(status.progress.following.since)
        assert str(status.facts.store.control and status.facts.store.control.phase) == "dual_write"
        follow.proceed(writers_stopped=stopped)

    follow((6 * MINUTE, look_again))
    assert seen == [left["since"]]
    assert any("counts no more: say it again" in one for one in follow.told.of("warning"))
    assert len(follow.verified) > before
    assert ours.phase is ControlPhase.CUTOVER
    ours.assert_in_step()


def test_a_divergence_closes_the_gate_and_is_told_and_the_following_goes_on(dual: Following) -> None:
    """Something wrote to the target past the clients: repair mends it, and following goes on after that."""
    ours = dual.ours
    told = dual.hook("exit 0")
    ours.client()
    ours.apply()
    names = [path.name for path in told.iterdir()]
    target = ours.project.rows("UsersV2")[3]

    async def break_it() -> None:
        await ours.project.tables.table("UsersV2").delete(key_of(target))

    async def is_closed() -> None:
        status = await dual.status()
        assert status.as_json()["divergences"] == 1
        assert status.verdict.command == "verify 0001_subject --mode full --repair"
        assert "first end `apply --follow` with Ctrl-C" in status.verdict.remark
        dual.proceed()

    async def is_refused() -> None:
        status = await dual.status()
        following = status.progress.following
        assert following is not None and following.refused[0].startswith(
            "the last full verification found 1 row"
        )
        dual.stop.request()

    with pytest.raises(Interrupted) as stopped:
        dual((MINUTE, break_it), (8 * MINUTE, is_closed), (MINUTE, is_refused))
    assert "rekey apply 0001_subject --follow" in stopped.value.hint
    assert dual.fact is None
    new = [json.loads(path.read_text()) for path in told.iterdir() if path.name not in names]
    events = [one["event"] for one in sorted(new, key=lambda one: one["event"]["at"])]
    assert {one["name"] for one in events} == {"divergence", "gate-refused"}
    assert events[0]["rows"] == 1 and events[-1]["reasons"][0].startswith("the last full verification")
    assert len(dual.told.of("cutover-refused")) == 1
    ours.verify(repair=True)
    ours.verify()
    dual((MINUTE, said(dual.proceed)))
    assert ours.phase is ControlPhase.CUTOVER
    ours.assert_in_step()


def test_a_gate_that_refuses_is_told_and_opens_later(dual: Following) -> None:
    ours = dual.ours
    ours.apply()

    async def is_refused() -> None:
        status = await dual.status()
        assert "Its last cutover was refused: " in status.verdict.sentence
        ours.clients.append(client := dual.client_of("late"))
        await client.start()

    async def is_open() -> None:
        dual.proceed()

    dual((MINUTE, said(dual.proceed)), (MINUTE, is_refused), (6 * MINUTE, is_open))
    [refused] = dual.told.of("cutover-refused")
    assert "no client of the application" in refused and "`rekey proceed 0001_subject`" in refused
    assert ours.phase is ControlPhase.CUTOVER


def test_delta_cutover_needs_confirmed_writers_stopped(delta: Following) -> None:
    confirmed: list[Then] = [said(lambda: delta.proceed(writers_stopped=True))]
    delta((MINUTE, said(delta.proceed)), (MINUTE, *confirmed))
    [refused] = delta.told.of("cutover-refused")
    assert "--writers-stopped" in refused
    assert "`rekey proceed 0001_users --writers-stopped`" in refused
    assert delta.ours.phase is ControlPhase.CUTOVER


def test_a_stop_that_is_too_long_is_refused_also_when_it_is_told_to_proceed(delta: Following) -> None:
    confirmed = said(lambda: delta.proceed(writers_stopped=True))
    options = Options(follow=True, stop_at_most_s=1)
    with pytest.raises(Interrupted):
        delta((MINUTE, confirmed), (MINUTE, said(lambda: delta.stop.request())), options=options)
    [refused] = delta.told.of("cutover-refused")
    assert "exceeds 1.0 s (--stop-at-most)" in refused


@pytest.mark.parametrize(
    ("event", "capture"),
    others_in_soak(
        product(["phase-begun", "freeze"], ["delta", "dual"]),
        kept=[("phase-begun", "dual"), ("freeze", "delta")],
    ),
)
def test_a_failed_hook_refuses_cutover(event: str, capture: str, request: pytest.FixtureRequest) -> None:
    follow: Following = request.getfixturevalue(capture)
    ours, fails = follow.ours, follow.ours.project.folder / "fails"
    told = follow.hook(f'grep -q \'"name":"{event}"\' "$told" && test -e fails && exit 3\nexit 0')
    if capture == "dual":
        ours.client()
    ours.apply()
    fails.touch()

    async def is_refused() -> None:
        while not follow.told.of(
            "cutover-refused"
        ):  # a hook takes real time, of which the clock knows nothing
            await ours.project.clock.sleep(0.5)
        status = await follow.status()
        assert str(status.facts.store.control and status.facts.store.control.phase) == "dual_write"
        fails.unlink()
        follow.proceed(writers_stopped=True)

    follow((MINUTE, said(lambda: follow.proceed(writers_stopped=True))), (MINUTE, is_refused))
    [refused] = follow.told.of("cutover-refused")
    assert f"[hooks] command ended with exit code 3, at `{event}`" in refused
    assert "fix what it runs, or take it out" in refused and "`rekey proceed " in refused
    assert ours.phase is ControlPhase.CUTOVER
    names = [json.loads(path.read_text())["event"]["name"] for path in told.iterdir()]
    assert {"phase-begun", "phase-ended", "freeze", "done"} <= set(names)


def test_in_its_window_it_cuts_over_by_itself(delta: Following) -> None:
    """In capture "delta" --writers-stopped says, for the window, that nothing writes then."""
    delta.configure('window = "Mon 00:05-00:15"')  # the clock begins on a Monday, 2024-01-01
    seen: list[Status] = []

    async def before() -> None:
        seen.append(await delta.status())

    delta((MINUTE, before), options=Options(follow=True, writers_stopped=True))
    window = seen[0].as_json()["following"]["window"]
    assert window["opens_at"] == "2024-01-01T00:05:00.0000000Z"
    row = delta.ours.control
    assert row is not None and row.phase is ControlPhase.CUTOVER
    moved = ticks_of(row.updated_at) - ticks_of("2024-01-01T00:05:00Z")
    assert 0 <= moved <= 120 * TICKS_PER_SECOND
    delta.ours.assert_in_step()


def test_in_a_window_a_refusal_is_told_once_and_the_gate_is_asked_again(dual: Following) -> None:
    dual.configure('window = "Mon 00:05-00:25"')
    told = dual.hook("exit 0")
    dual.ours.apply()
    asked = len(list(told.iterdir()))

    async def a_client_starts() -> None:
        dual.ours.clients.append(client := dual.client_of("late"))
        await client.start()

    dual((8 * MINUTE, a_client_starts))
    nobody, unfollowed = dual.told.of("cutover-refused")
    assert "no client of the application is registered" in nobody
    assert "no client of the application is registered" not in unfollowed
    new = [json.loads(path.read_text())["event"] for path in told.iterdir()]
    assert len([one for one in new if one["name"] == "gate-refused"]) == 2 and len(new) > asked
    row = dual.ours.control
    assert row is not None and "2024-01-01T00:05" < row.updated_at < "2024-01-01T00:26"


def refused_in_the_window(delta: Following) -> str:
    """Follow through a window that opens once; return what its one refusal said."""
    path = delta.ours.project.folder / "rekey.toml"
    path.write_text(path.read_text("utf-8").replace('"4m"', '"12h"'), "utf-8")
    stop = said(lambda: delta.stop.request())
    with pytest.raises(Interrupted):
        delta((20 * MINUTE, stop), options=Options(follow=True, writers_stopped=True))
    [refused] = delta.told.of("cutover-refused")
    return refused


def test_a_freeze_that_failed_is_not_tried_again_in_the_same_window(delta: Following) -> None:
    """Nor is a stop begun that is expected to outlast the window."""
    delta.configure('window = "Mon 00:05-00:15"')
    written = 0

    async def gate(call: Call) -> None:
        nonlocal written
        control = (
            await delta.session.runs[delta.ours.script_id].control.read() if delta.session.runs else None
        )  # type: ignore[union-attr]
        if control is not None and control.phase is ControlPhase.FREEZE and call.table == "UsersV2":
            written += 1
            delta.ours.project.clock.advance(2)
            row = {"PartitionKey": "p0", "RowKey": "user000@example.com", "Nm": f"{written}"}
            delta.ours.project.tables.gate = open_gate
            await delta.ours.project.tables.table("Users").merge(row)
            delta.ours.project.tables.gate = gate

    delta.ours.project.tables.gate = gate
    refused = refused_in_the_window(delta)
    assert "were written after the freeze" in refused, refused
    with State.open(delta.ours.project.config.state, read_only=True) as state:
        runs = [run for run in state.phase_runs(delta.ours.script_id) if run.phase == Phase.CUTOVER]
    assert [run.outcome for run in runs] == ["WriterAtWork"]
    assert "`rekey proceed 0001_users --writers-stopped`" in refused
    assert len(delta.verified) == 3 and not delta.verified[-1].divergences, "compared again at once"


def test_a_freeze_left_by_a_busy_service_is_undone_first(delta: Following) -> None:
    """A stray writer ends the cutover, and the move back is not done: the service is busy."""
    project, happened = delta.ours.project, list[str]()

    async def busy(call: Call) -> None:
        phases = {one.row.get("Phase") for one in call.operations}
        if ControlPhase.FREEZE in phases and not happened:
            happened.append("frozen")
        elif phases == {ControlPhase.DUAL_WRITE} and happened == ["frozen", "written"]:
            happened.append("busy")
            raise Unavailable("the service is busy (ServerBusy)", code="ServerBusy", status=503)
        await asyncio.sleep(0)

    async def stray(call: Call) -> None:
        if happened == ["frozen"] and call.table == "UsersV2":
            happened.append("written")
            project.clock.advance(2)
            row = {"PartitionKey": "p0", "RowKey": "user000@example.com", "Nm": "stray"}
            await project.tables.table("Users").merge(row)
        await asyncio.sleep(0)

    async def look() -> None:
        control = await ControlStore(project.restricted, delta.ours.script_id).read()
        happened.append(str(control and control.phase))
        delta.stop.request()

    project.restricted.gate, project.tables.gate = busy, stray
    with pytest.raises(Interrupted):
        delta((1, said(lambda: delta.proceed(writers_stopped=True))), (MINUTE, look))
    assert happened == ["frozen", "written", "busy", "dual_write"]
    assert [*delta.told.of("freeze-left-behind"), *delta.told.of("freeze-left")], delta.told.notes


def test_a_stop_that_would_outlast_the_window_is_not_begun(delta: Following) -> None:
    delta.configure('window = "Mon 00:05-00:15"')
    with delta.ours.session() as session:
        measured = {"at": format_ticks(delta.ours.project.clock.ticks()), "read_s": 1500.0, "look_s": 1.0}
        more = {"bring_s": 0.05, "waiting": 0, "changes_per_s": 0.0, "rows": 2 * ROWS}
        session.state.set_fact(delta.ours.script_id, "stop_measured", json.dumps({**measured, **more}))
    delta.configure("")
    refused = refused_in_the_window(delta)
    assert "the window closes at 2024-01-01 00:15:00Z" in refused
    assert delta.ours.phase is ControlPhase.DUAL_WRITE


def test_everything_is_compared_within_a_share_of_the_rates(delta: Following) -> None:
    """60 rows on each side at a tenth of 10 rows a second take two minutes; at the full rate 12 seconds."""
    path = delta.ours.project.folder / "rekey.toml"
    path.write_text(
        path.read_text("utf-8").replace("[limits]", "[limits]\nentities_per_second = 10"), "utf-8"
    )
    delta((20 * MINUTE, said(lambda: delta.proceed(writers_stopped=True))))
    full, shared = (
        (ticks_of(one.finished_at) - ticks_of(one.started_at)) / TICKS_PER_SECOND
        for one in delta.verified[:2]
    )
    assert shared > 100 > 5 * full / 2


def test_while_it_is_paused_it_is_not_told_to_proceed(delta: Following) -> None:
    state = delta.ours.project.config.state

    async def pause() -> None:
        steering.say(state, steering.Steering(paused=True))
        delta.proceed(writers_stopped=True)

    async def resume() -> None:
        assert delta.told.of("proceed-heard") == []
        said = steering.read(state)
        steering.say(state, steering.Steering(proceed=said.proceed))

    delta((MINUTE, pause), (5 * MINUTE, resume))
    assert len(delta.told.of("proceed-heard")) == 1
    assert delta.ours.phase is ControlPhase.CUTOVER


def test_what_has_cut_over_cannot_be_followed(delta: Following) -> None:
    delta.ours.apply(Phase.CUTOVER, Options(writers_stopped=True))
    with pytest.raises(Refused, match="has cut over: there is nothing to follow"):
        delta()


# --- the commands -------------------------------------------------------------------------------------------


@pytest.fixture
def rekey(delta: Following, commands_on: CommandsOn) -> Commands:
    return commands_on(delta.ours.project)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "cutover"), "--follow cuts over when it is told to, --to cutover at once"),
        (("--to", "reconcile"), "give one of them"),
        (("--writers-stopped",), "`rekey proceed --writers-stopped` confirms that they are stopped"),
        (("--yes", "0001_users"), "it goes with --to complete"),
    ],
)
def test_conflicting_options_are_refused(rekey: Commands, words: tuple[str, ...], said: str) -> None:
    told = rekey("apply", "0001", "--follow", *words, code=2)
    assert said in " ".join(told.err.split())


def test_one_migration_is_followed_at_a_time(rekey: Commands) -> None:
    rekey.project.script(USERS_SCRIPT.replace("UsersV2", "UsersV3"), "0002_again.py")
    assert "say which script; 0001_users, 0002_again" in rekey("apply", "--follow", code=2).err


def test_nobody_hears_proceed_where_nothing_is_followed(rekey: Commands) -> None:
    told = rekey("proceed", code=3).err
    assert "no running command would act on it" in told and "`rekey apply --follow`" in told
    rekey("apply")
    assert "no running command would act on it" in rekey("proceed", "0001", code=3).err
    assert steering.read(rekey.project.config.state) == steering.Steering()
