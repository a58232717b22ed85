"""The next steps that errors, reports and `rekey status` tell: each is carried out, and ends its situation.

`SITUATIONS` has one entry for each step of `rekey/next_steps.toml`, and a test says that none is missing.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rekey.errors import GateClosed, Interrupted
from rekey.model import Row, key_of
from rekey.next_steps import TEXTS, next_step
from rekey.phases import ControlPhase, Phase
from rekey.protocol.registry import ClientRow, Registry
from rekey.runner.status import read_status
from rekey.state.store import State
from rekey.status.facts import Sources
from rekey.verify.full import RereadBuckets
from tests.asserts.command_line import Commands, Said
from tests.fakes.faults import Call
from tests.worlds.company import Company, company
from tests.worlds.evidence import exported, with_key
from tests.worlds.followed import Following, keep_real_time_out, said
from tests.worlds.projects import USERS_SCRIPT, Project
from tests.worlds.scripts import under_writes
from tests.worlds.small import Killed, user

SCRIPT = "0001_users"
NAMED = {"script": SCRIPT, "source": "Users", "target": "UsersV2"}
STOPPED = "--writers-stopped"
LOWERED = USERS_SCRIPT.replace(
    'keys.opaque(keys.prop("RowKey"), domain="user", secret="users")',
    'keys.lower(keys.prop("RowKey")) + keys.zero_pad(3, "Rank")',
).replace(
    'capture="delta",', 'capture="delta", waive={"personal-data": "made up", "merged-keys": "on purpose"},'
)
"""Keys that may be shared, and rows that may lack what their key is made of."""
Situation = Callable[["Steps"], None]
SITUATIONS: dict[str, Situation] = {}


def ranked(number: int, **more: Any) -> Row:
    return {**user(f"user{number}@example.com"), "Rank": 7, **more}


class Steps(Commands):
    """The commands of a project, and what its situations need."""

    def begin(self, script: str = USERS_SCRIPT, *words: str) -> None:
        """Begin a migration of a few users; up to the gate before cutover by default."""
        self.project.script(script)
        self.does(self.project.fill("Users", [ranked(number) for number in range(8)]))
        self("apply", *words)

    def does(self, work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run(work)

    @property
    def users(self) -> Any:
        return self.project.tables.table("Users")

    @property
    def new_users(self) -> Any:
        return self.project.tables.table("UsersV2")

    def told(self, said: Said, code: str) -> tuple[str, ...]:
        """Require that a step was told, whole; return its words."""
        step = next_step(code, **NAMED)
        assert f"rekey {step.command}" in said.all, said.all
        assert " ".join(step.remark.split()) in " ".join(said.all.split()), said.all
        return tuple(shlex.split(step.command))

    def gate(self, when: Callable[[Call], bool], work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Do something before each call that fits; what it calls itself passes."""
        inside = False

        async def gate(call: Call) -> None:
            nonlocal inside
            if not inside and when(call):
                inside = True
                await work()
                inside = False

        self.project.tables.gate = gate

    def no_gate(self) -> None:
        async def gate(_call: Call) -> None:
            return

        self.project.tables.gate = gate


def situation(code: str) -> Callable[[Situation], Situation]:
    """Enter a situation into `SITUATIONS`."""

    def enter(function: Situation) -> Situation:
        SITUATIONS[code] = function
        return function

    return enter


@pytest.fixture
def rekey(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Steps:
    keep_real_time_out(monkeypatch)
    return Steps(Project(tmp_path), capsys, monkeypatch)


@situation("mend")
def _rows_differ(rekey: Steps) -> None:
    rekey.begin()
    rekey.does(rekey.new_users.delete(key_of(rekey.project.rows("UsersV2")[3])))
    words = rekey.told(rekey("verify", code=1), "mend")
    assert rekey.told(rekey("status"), "mend") == words
    closed = rekey("apply", "--to", "cutover", STOPPED, code=3)
    assert f"run `rekey {shlex.join(words)}`" in closed.err, "the quotes hold the whole command"
    rekey(*words, code=1)
    rekey("verify")


@situation("prove")
def _rows_were_mended(rekey: Steps) -> None:
    rekey.begin()
    rekey.does(rekey.new_users.delete(key_of(rekey.project.rows("UsersV2")[3])))
    words = rekey.told(rekey("verify", "--repair", code=1), "prove")
    assert rekey.told(rekey("status"), "prove") == words
    rekey("apply", "--to", "cutover", STOPPED, code=3)
    rekey(*words)
    rekey("apply", "--to", "cutover", STOPPED)


@situation("settle")
def _a_target_row_is_written_all_the_time(rekey: Steps) -> None:
    rekey.begin()
    row = rekey.project.rows("UsersV2")[0]
    written = 0

    async def write() -> None:
        nonlocal written
        written += 1
        await rekey.new_users.merge(
            {**{name: row[name] for name in ("PartitionKey", "RowKey")}, "Name": f"{written}"}
        )

    rekey.gate(lambda call: call.table == "UsersV2" and call.action in ("get", "page"), write)
    words = rekey.told(rekey("verify", code=1), "settle")
    rekey.no_gate()
    rekey.does(rekey.new_users.merge({name: row[name] for name in ("PartitionKey", "RowKey", "Name")}))
    rekey(*words)


@situation("compare-again")
def _sums_differ_and_no_row_is_found_that_does(rekey: Steps) -> None:
    rekey.begin()
    rekey.does(rekey.new_users.delete(key_of(rekey.project.rows("UsersV2")[3])))
    with (
        mock.patch("rekey.verify.full._join_keys", lambda *_: iter(())),
        mock.patch.object(RereadBuckets, "change", lambda *_: None),
    ):
        words = rekey.told(rekey("verify", code=1), "compare-again")
    assert "missing  UsersV2" in rekey(*words, code=1).out


@situation("name-rows")
def _counts_differ(rekey: Steps) -> None:
    rekey.begin()
    rekey.does(rekey.new_users.delete(key_of(rekey.project.rows("UsersV2")[3])))
    for mode in (["count"], ["sample", "--seed", "7"]):
        words = rekey.told(rekey("verify", "--mode", *mode, code=1), "name-rows")
    assert "missing  UsersV2" in rekey(*words, code=1).out


@situation("collision")
def _two_rows_share_a_key(rekey: Steps) -> None:
    rekey.begin(LOWERED, "--to", "backfill")
    upper = {**ranked(3), "RowKey": "USER3@example.com"}
    rekey.does(rekey.users.insert(upper))
    words = rekey.told(rekey("apply", code=1), "collision")
    assert rekey.told(rekey("status"), "collision") == words
    assert rekey.told(rekey("verify", code=1), "collision") == words
    assert rekey.told(rekey("verify", "--repair", code=1), "collision") == words, "no repair mends it"
    assert rekey.told(rekey("status"), "collision") == words
    assert "'USER3@example.com'" in rekey(*words, code=1).out
    rekey.does(rekey.users.delete(key_of(upper)))
    rekey("apply")


@situation("fix-new-rows")
def _a_row_of_the_new_table_comes_from_no_client(rekey: Steps) -> None:
    rekey.begin(USERS_SCRIPT.replace('"delta"', '"dual-write"'), "--to", "cutover", STOPPED)
    foreign = {"PartitionKey": "eu", "RowKey": "foreign"}
    rekey.does(rekey.new_users.insert(foreign))
    words = rekey.told(rekey("verify", code=1), "fix-new-rows")
    assert rekey.told(rekey("verify", "--repair", code=1), "fix-new-rows") == words, "no repair mends it"
    assert "'foreign'" in rekey(*words, code=1).out
    rekey.does(rekey.new_users.delete(key_of(foreign)))
    rekey("verify")


def test_a_row_that_cannot_be_mapped_is_shown_with_its_key_and_mended(rekey: Steps) -> None:
    """It is in no mapping: `lookup` cannot know it."""
    rekey.begin(LOWERED)
    row = ranked(9)
    del row["Rank"]
    rekey.does(rekey.users.insert(row))
    said = rekey("apply", code=1)
    words = rekey.told(said, "collision")
    assert "Kept: " in said.err
    assert rekey.told(rekey("verify", code=1), "collision") == words
    assert "'user9@example.com'" in rekey(*words, code=1).out
    rekey.does(rekey.users.merge({**row, "Rank": 1}))
    rekey("apply")


def test_the_script_can_be_changed_instead_as_that_step_says(rekey: Steps) -> None:
    rekey.begin(LOWERED, "--to", "backfill")
    rekey.does(rekey.users.insert({**ranked(3), "RowKey": "USER3@example.com"}))
    said = " ".join(rekey("apply", code=1).all.split())
    assert f"`rekey rollback {SCRIPT} --to source --drop-targets`" in said
    rekey("rollback", SCRIPT, "--to", "source", "--drop-targets")
    rekey.project.clock.advance(60)  # a deleted table's name is taken for so long
    rekey.project.script(LOWERED.replace('keys.lower(keys.prop("RowKey"))', 'keys.prop("RowKey")'))
    rekey("apply")


@situation("begin-anew")
def _script_or_secret_changed_meanwhile(rekey: Steps) -> None:
    rekey.begin()
    secret, other = rekey.project.folder / "users.secret", "another secret of enough bytes"
    first = secret.read_text("utf-8")
    edited = USERS_SCRIPT.replace('props.drop("Ssn")', 'props.keep("Ssn")')
    rekey.project.script(edited)
    words = rekey.told(rekey("apply", code=3), "begin-anew")
    rekey.project.script(USERS_SCRIPT)
    secret.write_text(other, "utf-8")
    assert rekey.told(rekey("verify", code=3), "begin-anew") == words
    secret.write_text(first, "utf-8")
    rekey(*words)
    rekey.project.clock.advance(60)  # a deleted table's name is taken for so long
    rekey.project.script(edited)
    secret.write_text(other, "utf-8")
    rekey("apply")


@situation("still-writing")
def _a_writer_is_at_work_at_cutover(rekey: Steps) -> None:
    rekey.begin()
    number = 0

    async def write() -> None:
        nonlocal number
        number += 1
        rekey.project.clock.advance(2)
        await rekey.users.merge({"PartitionKey": "eu", "RowKey": "user0@example.com", "Nm": f"{number}"})

    rekey.gate(lambda call: call.table == "UsersV2" and call.action == "page", write)
    words = rekey.told(rekey("apply", "--to", "cutover", STOPPED, code=3), "still-writing")
    rekey.no_gate()
    rekey(*words)
    rekey("apply", "--to", "cutover", STOPPED)


@situation("cut-over")
def _clients_are_behind(rekey: Steps) -> None:
    with company(
        rekey.project.folder / "dual", USERS_SCRIPT, [user(f"user{n}@example.com") for n in range(8)]
    ) as ours:
        ours.apply(Phase.RECONCILE)
        ours.client()
        with pytest.raises(GateClosed) as closed:
            ours.apply(Phase.CUTOVER)
        step = str(next_step("cut-over", script=ours.script_id))
        assert closed.value.hint == f"Once fixed, run: {step}"
        assert not ours.verify().findings
        ours.apply(Phase.CUTOVER)
        assert ours.phase is ControlPhase.CUTOVER


@situation("cut-over-stopped")
def _the_gate_asks_for_writers_to_be_stopped(rekey: Steps) -> None:
    rekey.begin()
    words = rekey.told(rekey("apply"), "cut-over-stopped")
    assert rekey.told(rekey("status"), "cut-over-stopped") == words
    assert rekey.told(rekey("apply", "--to", "cutover", code=3), "cut-over-stopped") == words
    rekey(*words)


@situation("complete")
def _a_client_still_uses_the_old_view(rekey: Steps) -> None:
    rekey.begin(under_writes(USERS_SCRIPT))
    rekey("apply", "--to", "cutover", STOPPED)
    now = rekey.project.clock.ticks()
    row = ClientRow("c0ffee", "web", "old", "host", 12, "0.2", 9, 15.0, 30.0, now, counters={}, run_id="run")
    rekey.does(Registry(rekey.project.restricted, SCRIPT).beat(row))
    first = "first let web (process 12 on host) use the new view"
    assert first in " ".join(rekey("status").out.split())
    closed = rekey("apply", "--to", "complete", "--yes", SCRIPT, code=3)
    words = rekey.told(closed, "complete")
    rekey.project.clock.advance(3600)
    assert first not in " ".join(rekey("status").out.split())
    rekey(*words)


@situation("hand-over")
def _clients_maintain_index_tables_after_complete(rekey: Steps) -> None:
    index = """indexes=[Index("UsersByMail", partition_key=keys.literal("all"), row_key=keys.prop("RowKey"))],
    waive={"personal-data": "made up"},"""
    script = under_writes(USERS_SCRIPT).replace("capture=", f"{index}\n    capture=")
    script = script.replace("import Migration", "import Index, Migration")
    rekey.begin(script)
    rekey("apply", "--to", "cutover", STOPPED)
    rekey("apply", "--to", "complete", "--yes", SCRIPT)
    words = rekey.told(rekey("retire", "--table", "Users", code=3), "hand-over")
    assert rekey.told(rekey("expire", "--confirm", SCRIPT, code=3), "hand-over") == words
    assert rekey.told(rekey(*words, code=3), "hand-over") == words
    status = rekey("status")
    [verify] = re.findall("next +rekey (.+)", status.out)
    assert "nothing has been verified in full since `complete`" in " ".join(status.out.split())
    rekey(*shlex.split(verify))
    assert rekey.told(rekey("status"), "hand-over") == words
    rekey(*words)
    assert "handover" not in rekey("status").all


@situation("no-way-back")
def _the_declaration_has_no_way_back(rekey: Steps) -> None:
    rekey.begin(USERS_SCRIPT.replace('capture="delta"', 'capture="delta", reverse=False'))
    rekey("apply", "--to", "cutover", STOPPED)
    words = rekey.told(rekey("rollback", STOPPED, code=3), "no-way-back")
    assert rekey.told(rekey("status"), "no-way-back") == words
    assert rekey.told(rekey("verify", code=3), "no-way-back") == words
    rekey(*words)


@situation("way-back")
def _cut_over_with_clients(rekey: Steps) -> None:
    rekey.begin(under_writes(USERS_SCRIPT))
    rekey("apply", "--to", "cutover", STOPPED)
    words = rekey.told(rekey("status"), "way-back")
    rekey("rollback", SCRIPT)
    rekey("verify")
    rekey("apply", "--to", "cutover", STOPPED)
    rekey(*words)


def test_status_asks_for_a_repair_where_rows_differ_after_cutover(rekey: Steps) -> None:
    """Rollback and `complete` are refused then, so neither is the next step."""
    rekey.begin(under_writes(USERS_SCRIPT))
    rekey("apply", "--to", "cutover", STOPPED)
    rekey.does(rekey.users.merge(ranked(0, Nm="by hand")))
    rekey("verify", code=1)
    status = rekey("status")
    words = rekey.told(status, "mend")
    assert "ATTENTION" in status.out
    rekey("rollback", SCRIPT, code=3)
    rekey("apply", "--to", "complete", "--yes", SCRIPT, code=3)
    rekey(*words, code=1)
    rekey("verify")
    assert rekey.told(rekey("status"), "way-back")


@situation("way-back-by-copying")
def _verify_after_cutover(rekey: Steps) -> None:
    rekey.begin()
    rekey("apply", "--to", "cutover", STOPPED)
    words = rekey.told(rekey("verify", code=3), "way-back-by-copying")
    assert rekey.told(rekey("status"), "way-back-by-copying") == words
    rekey("rollback", SCRIPT, STOPPED)
    rekey("apply", "--to", "cutover", STOPPED)
    rekey(*words)


@situation("go-back")
def _a_way_back_that_is_not_confirmed(rekey: Steps) -> None:
    rekey.begin()
    rekey("apply", "--to", "cutover", STOPPED)
    words = rekey.told(rekey("rollback", code=3), "go-back")
    assert "rolled back: cutover" in rekey(*words).out


@situation("go-back-again")
def _a_writer_is_at_work_on_the_way_back(rekey: Steps) -> None:
    rekey.begin()
    rekey("apply", "--to", "cutover", STOPPED)
    row = rekey.project.rows("UsersV2")[0]
    number = 0

    async def write() -> None:
        nonlocal number
        number += 1
        await rekey.new_users.merge(
            {**{name: row[name] for name in ("PartitionKey", "RowKey")}, "Name": f"{number}"}
        )

    rekey.gate(lambda call: call.table == "Users" and call.action == "page", write)
    words = rekey.told(rekey("rollback", STOPPED, code=1), "go-back-again")
    rekey.no_gate()
    assert "rolled back: cutover" in rekey(*words).out
    rekey("verify")


@situation("paused")
def _copying_is_paused(rekey: Steps) -> None:
    rekey.begin(USERS_SCRIPT, "--to", "dual_write")
    rekey("pause")
    words = rekey.told(rekey("status"), "paused")
    rekey(*words)
    assert f"rekey apply {SCRIPT}" in rekey("status").out
    rekey("apply")


def test_a_configured_project_is_in_the_step(rekey: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    rekey.begin()
    monkeypatch.delenv("REKEY_CONFIG")
    config = ("--config", str(rekey.project.folder / "rekey.toml"))
    row = rekey.project.rows("UsersV2")[3]
    rekey.does(rekey.new_users.delete(key_of(row)))
    found = rekey("verify", *config, code=1)
    [step] = re.findall("Next: `rekey (.+)`", found.out)
    rekey(*shlex.split(step), code=1)
    rekey("verify", *config)
    [step] = re.findall("`rekey (.+?)`", rekey("apply", "--to", "cutover", *config, code=3).err)
    rekey(*shlex.split(step))


@contextmanager
def followed(rekey: Steps, *, dual: bool) -> Iterator[Following]:
    """A migration of a few users that is to be followed: capture "dual-write" with a client, or "delta"."""
    project = Project(rekey.project.folder / "dual", rekey.project.clock) if dual else rekey.project
    ours = Company(project, project.script(under_writes(USERS_SCRIPT) if dual else USERS_SCRIPT))
    ours.do(project.fill("Users", [user(f"user{number}@example.com") for number in range(8)]))
    try:
        if dual:
            ours.client()
        ours.apply()
        yield Following(ours)
    finally:
        ours.close()


async def next_of(follow: Following, code: str) -> list[str]:
    """Require that status tells a step, whole, and is safe; return its words."""
    status = await follow.status()
    step = next_step(code, script=follow.ours.script_id)
    verdict = status.verdict
    assert (verdict.command, verdict.remark, verdict.safe) == (step.command, step.remark, True)
    return shlex.split(step.command)


@situation("proceed-stopped")
def _it_is_followed_until_writers_stop(rekey: Steps) -> None:
    with followed(rekey, dual=False) as follow:

        async def proceed() -> None:
            rekey(*await next_of(follow, "proceed-stopped"))

        follow((60, proceed))
        assert follow.ours.phase is ControlPhase.CUTOVER


@situation("proceed")
def _it_is_followed_next_to_clients(rekey: Steps) -> None:
    with followed(rekey, dual=True) as follow:

        async def proceed() -> None:
            words = await next_of(follow, "proceed")
            rekey(*words, "--config", str(follow.ours.project.folder / "rekey.toml"))

        follow((60, proceed))
        assert follow.ours.phase is ControlPhase.CUTOVER


@situation("followed")
def _the_last_comparison_is_too_old(rekey: Steps) -> None:
    with followed(rekey, dual=True) as follow:
        follow.configure("[follow]\nshare = 0.0001")  # it takes its time
        path = follow.ours.project.folder / "rekey.toml"
        path.write_text(path.read_text("utf-8").replace("[gates]", '[gates]\nverification_max_age = "5m"'))
        follow.ours.live(600)

        async def look_again() -> None:
            await next_of(follow, "followed")
            while (await follow.status()).verification_closes:
                await follow.ours.project.clock.sleep(5)
            await next_of(follow, "proceed")
            follow.proceed()

        follow((1, look_again))
        assert follow.ours.phase is ControlPhase.CUTOVER


@situation("mend-followed")
def _rows_differ_while_it_is_followed(rekey: Steps) -> None:
    with followed(rekey, dual=True) as follow:
        follow.configure('[follow]\ncompare_every = "5m"')
        ours = follow.ours
        tables = ours.project.tables

        async def differs() -> None:
            await tables.table("UsersV2").delete(key_of(ours.project.rows("UsersV2")[3]))

        async def ends() -> None:
            words = await next_of(follow, "mend-followed")
            assert words == ["verify", ours.script_id, "--mode", "full", "--repair"]
            follow.stop.request()

        with pytest.raises(Interrupted):
            follow((60, differs), (600, ends))
        ours.verify(repair=True)
        assert not ours.verify().findings
        follow((60, said(follow.proceed)))
        assert ours.phase is ControlPhase.CUTOVER


@situation("follow")
def _it_was_killed_while_it_followed(rekey: Steps) -> None:
    with followed(rekey, dual=False) as follow:
        project = follow.ours.project

        async def dies(_call: Call) -> None:
            raise Killed

        async def kill() -> None:
            project.tables.gate = project.restricted.gate = dies

        with suppress(Killed):
            follow((60, kill))
        rekey.no_gate()
        project.restricted.gate = project.tables.gate
        follow.ours.live(120)  # its lease ends
        with State.open(project.config.state, read_only=True) as state:
            accounts, declared = project.connect(project.config), project.scripts[SCRIPT]
            sources = Sources(project.config, project.scripts, state, accounts, project.clock)
            status = follow.ours.do(read_status(sources, declared, at_end=True))
        assert (
            status.verdict.command == next_step("follow", script=SCRIPT).command == f"apply {SCRIPT} --follow"
        )
        follow((60, said(lambda: follow.proceed(writers_stopped=True))))
        assert follow.ours.phase is ControlPhase.CUTOVER


@pytest.mark.parametrize("code", TEXTS)
def test_every_step_is_told_in_its_situation_and_helps(rekey: Steps, code: str) -> None:
    SITUATIONS[code](rekey)


def test_a_migration_is_ended_by_doing_what_status_says(
    rekey: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the beginning to the end of the source; what a remark says is done, too."""
    monkeypatch.chdir(rekey.project.folder)
    rekey.project.script(USERS_SCRIPT)
    rekey.does(rekey.project.fill("Users", [ranked(number) for number in range(8)]))
    with_key(rekey.project.folder)
    done: list[str] = []
    while True:
        [status] = rekey("status", "--json").json["migrations"]
        if not status["next"]["command"]:
            break
        assert len(done) < 6, done
        done.append(status["next"]["command"])
        if "evidence export" in done[-1]:
            rekey("evidence", "verify", str(exported(rekey)))
            assert "verify it" in status["next"]["remark"]
            continue
        if first := re.search("first `rekey ([^`]+)`", status["next"]["remark"]):
            rekey(*first[1].split())
        rekey(*shlex.split(done[-1])[1:])
    assert status["stage"] == "retire done"
    assert len(done) == 5
