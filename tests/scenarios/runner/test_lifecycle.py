"""The whole life of a migration, step by step and in the wrong order, on tables in memory.

Soak: 41 of 47 moments of a kill.
Reason, and what `make test` covers: four moments over the whole life, and two without a stored mapping.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from unittest import mock

import pytest

from rekey.core import spill
from rekey.declaration.mapper import Mapper
from rekey.errors import (
    Collision,
    ConfigurationError,
    Findings,
    GateClosed,
    Interrupted,
    Locked,
    MachineFailed,
    Moved,
    Refused,
    SecretMissing,
    StateUnusable,
)
from rekey.mapping.rows import JOURNAL_TABLE, MAPPING_TABLE
from rekey.model import EntityKey, Row, content_of, etag_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.plan import subject
from rekey.protocol import lease
from rekey.protocol.control import ControlStore
from rekey.protocol.lease import RunnerLease
from rekey.runner import commands
from rekey.runner.commands import Mode
from rekey.runner.run import Options, StopFlag
from tests.fakes.faults import Call
from tests.fakes.interference import before
from tests.fakes.memory import MemoryTable
from tests.soaking import others_in_soak
from tests.worlds.erasure import PLAIN_USERS, state_bytes
from tests.worlds.evidence import prove
from tests.worlds.kills import killed
from tests.worlds.projects import (
    FOLDED_SCRIPT,
    INVERTED_SCRIPT,
    POSTS_SCRIPT,
    USERS_SCRIPT,
    Project,
    applied,
    project_of,
)
from tests.worlds.scripts import under_writes
from tests.worlds.small import SECRET, contents, mapped, post, user

STOPPED = Options(writers_stopped=True)
SCRIPT = "0001_users"
ROWS = 120  # of three windows
SCRIPTS = {"stored": USERS_SCRIPT, "none": INVERTED_SCRIPT}
"""By what is stored of the mapping."""


def users(count: int) -> list[Row]:
    return [user(f"user{number:04}@example.com", f"p{number % 5}") for number in range(count)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_of(tmp_path, USERS_SCRIPT, users(ROWS))


@pytest.fixture
def at_gate(tmp_path: Path) -> Project:
    """The project at the gate of cutover."""
    return applied(tmp_path, USERS_SCRIPT, users(ROWS))


@pytest.fixture
def cut_over(tmp_path: Path) -> Project:
    """The project after cutover."""
    return applied(tmp_path, USERS_SCRIPT, users(ROWS), Phase.CUTOVER)


def apply(project: Project, to: Phase | None = None, options: Options | None = None) -> commands.Applied:
    with project.session(options) as session:
        return commands.apply(session, SCRIPT, to=to)


def rollback(
    project: Project, *, options: Options = STOPPED, to: ControlPhase | None = None, drop: bool | None = None
) -> list[Phase]:
    merged = Options(writers_stopped=options.writers_stopped, drop_targets=bool(drop))
    with project.session(merged) as session:
        return commands.rollback(session, SCRIPT, to=to, drop=drop)


def verify(project: Project, mode: Mode = Mode.FULL, *, repair: bool = False) -> bool:
    """Return whether anything was found."""
    with project.session() as session:
        return commands.verify(session, SCRIPT, mode=mode, repair=repair).findings


def control_phase(project: Project) -> ControlPhase | None:
    row = asyncio.run(ControlStore(project.restricted, SCRIPT).read())
    return None if row is None else row.phase


def expected(project: Project, table: int = 0, script_id: str = SCRIPT) -> dict[EntityKey, Row]:
    """What a target should hold, from what the source holds."""
    migration = project.scripts[script_id].migration
    mapper = Mapper(migration, {"users": SECRET})
    return mapped(mapper, project.rows(migration.source))[mapper.tables[table]]


def actual(project: Project, table: str = "UsersV2") -> dict[EntityKey, Row]:
    return contents(project.rows(table))


def test_apply_runs_to_the_gate_before_cutover_and_says_what_the_gate_asks_for(project: Project) -> None:
    done = apply(project)
    assert done.phases == (Phase.PREPARE, Phase.DUAL_WRITE, Phase.BACKFILL, Phase.RECONCILE)
    assert done.next_phase is Phase.CUTOVER
    assert any("--writers-stopped" in ask for ask in done.asks)
    assert actual(project) == expected(project)
    assert control_phase(project) is ControlPhase.DUAL_WRITE


@pytest.mark.parametrize("mapping", SCRIPTS)
def test_the_whole_life_with_a_way_back_in_it(tmp_path: Path, mapping: str) -> None:
    project = applied(tmp_path, SCRIPTS[mapping], users(ROWS))
    apply(project, Phase.CUTOVER, STOPPED)
    assert control_phase(project) is ControlPhase.CUTOVER
    # The application works on the target now: one row changed, one new, one deleted.
    target = project.tables.table("UsersV2")
    changed, deleted = project.rows("UsersV2")[:2]
    mapper = Mapper(project.scripts[SCRIPT].migration, {"users": SECRET})
    old = {key_of(mapper.map(row)[0].row): key_of(row) for row in project.rows("Users")}
    new = user("new@example.com")

    async def work() -> None:
        await target.replace({**content_of(changed), "Name": "changed"}, etag=etag_of(changed))
        await target.delete(key_of(deleted))
        await target.insert(mapper.map(new)[0].row)

    asyncio.run(work())
    assert rollback(project) == [Phase.CUTOVER]
    assert control_phase(project) is ControlPhase.DUAL_WRITE
    rows = contents(project.rows("Users"))
    assert (rows[old[key_of(changed)]]["Nm"], rows[old[key_of(changed)]]["Ssn"]) == ("changed", "x-1")
    assert rows.keys() == {*old.values(), key_of(new)} - {old[key_of(deleted)]}
    assert actual(project) == expected(project)
    # The application is back on the source; then it moves again, for good.
    asyncio.run(project.tables.table("Users").insert(user("later@example.com")))
    apply(project, Phase.CUTOVER, STOPPED)
    done = apply(project, Phase.COMPLETE)
    assert done.phases == (Phase.COMPLETE,)
    assert actual(project) == expected(project)
    with project.session(Options(typed_table="Users", no_backup="a test")) as session:
        prove(session.config, session.scripts[SCRIPT], session.state)
        commands.retire(session, SCRIPT)
    assert control_phase(project) is ControlPhase.RETIRED
    assert asyncio.run(project.tables.table_exists("Users")) is False
    assert len(project.rows("UsersV2")) == ROWS + 1
    if mapping == "none":
        assert {row["PartitionKey"] for row in project.restricted.dump(MAPPING_TABLE)} == {f"{SCRIPT}.t"}


def test_apply_again_at_the_gate_catches_up_with_the_source(at_gate: Project) -> None:
    asyncio.run(at_gate.tables.table("Users").insert(user("later@example.com")))
    asyncio.run(at_gate.tables.table("Users").delete(EntityKey("p0", "user0000@example.com")))
    done = apply(at_gate)
    assert (done.phases, done.caught_up) == ((), 2)
    assert actual(at_gate) == expected(at_gate)


def test_the_audit_log_tells_the_story_and_its_chain_holds(cut_over: Project) -> None:
    with cut_over.session() as session:
        events = [event.event for event in session.state.audit_events(SCRIPT)]
        assert session.state.check_chain() is None
    assert events.count("phase-done") == 5
    assert "verification" in events


# --- gates -------------------------------------------------------------------------------------------


def test_cutover_without_the_operators_word_on_writers_is_refused(at_gate: Project) -> None:
    with pytest.raises(GateClosed, match="writers-stopped"):
        apply(at_gate, Phase.CUTOVER)
    assert control_phase(at_gate) is ControlPhase.DUAL_WRITE


def test_a_failed_verification_closes_the_gate_until_a_newer_one_succeeds(at_gate: Project) -> None:
    stray = {"PartitionKey": "p0", "RowKey": "stray", "Name": "?"}
    asyncio.run(at_gate.tables.table("UsersV2").insert(stray))
    assert verify(at_gate)
    with pytest.raises(GateClosed, match=r"1 rows? that differ"):
        apply(at_gate, Phase.CUTOVER, STOPPED)
    assert verify(at_gate, repair=True)
    with pytest.raises(GateClosed):
        apply(at_gate, Phase.CUTOVER, STOPPED)
    assert not verify(at_gate)
    apply(at_gate, Phase.CUTOVER, STOPPED)


def test_a_verification_that_is_too_old_closes_the_gate(at_gate: Project) -> None:
    at_gate.clock.advance(25 * 3600)
    with pytest.raises(GateClosed, match="too old"):
        apply(at_gate, Phase.CUTOVER, STOPPED)


def test_a_stray_writer_after_the_freeze_is_refused_and_nothing_is_lost(at_gate: Project) -> None:
    wrote, looks = False, 0

    async def write_late(call: Call) -> None:
        nonlocal wrote, looks
        # The verification reads the target after the final pass and the sweep are done. The gate has looked
        # at it before.
        looks += call.action == "page" and call.table == "UsersV2"
        if looks == 2 and not wrote:
            wrote = True
            at_gate.clock.advance(5)
            await at_gate.tables.table("Users").merge(
                {"PartitionKey": "p0", "RowKey": "user0000@example.com", "Other": "late"}
            )

    at_gate.tables.gate = write_late
    with pytest.raises((GateClosed, Findings)):
        apply(at_gate, Phase.CUTOVER, STOPPED)
    assert wrote
    assert control_phase(at_gate) is ControlPhase.DUAL_WRITE
    apply(at_gate)
    assert actual(at_gate) == expected(at_gate)


def test_changes_made_before_writers_stopped_are_in_the_target_after_cutover(at_gate: Project) -> None:
    source = at_gate.tables.table("Users")

    async def work() -> None:
        await source.merge({"PartitionKey": "p0", "RowKey": "user0000@example.com", "Nm": "last"})
        await source.delete(EntityKey("p1", "user0001@example.com"))

    asyncio.run(work())
    apply(at_gate, Phase.CUTOVER, STOPPED)
    assert actual(at_gate) == expected(at_gate)


def test_retire_asks_for_the_name_the_phase_and_the_retention(cut_over: Project) -> None:
    with (
        cut_over.session(Options(typed_table="Users", no_backup="a test")) as session,
        pytest.raises(GateClosed, match="complete"),
    ):
        commands.retire(session, SCRIPT)
    apply(cut_over, Phase.COMPLETE)
    with (
        cut_over.session(Options(typed_table="users", no_backup="a test")) as session,
        pytest.raises(GateClosed, match="typed"),
    ):
        commands.retire(session, SCRIPT)
    toml = cut_over.folder / "rekey.toml"
    toml.write_text(toml.read_text().replace('retention = "0s"', 'retention = "1d"'))
    with (
        cut_over.session(Options(typed_table="Users", no_backup="a test")) as session,
        pytest.raises(GateClosed, match="ends at"),
    ):
        commands.retire(session, SCRIPT)
    cut_over.clock.advance(86_401)
    with cut_over.session(Options(typed_table="Users", no_backup="a test")) as session:
        prove(session.config, session.scripts[SCRIPT], session.state)
        commands.retire(session, SCRIPT)
    assert control_phase(cut_over) is ControlPhase.RETIRED


def test_retire_never_deletes_a_row_that_changed_after_the_freeze(cut_over: Project) -> None:
    apply(cut_over, Phase.COMPLETE)
    cut_over.clock.advance(60)
    source = cut_over.tables.table("Users")
    asyncio.run(source.merge({"PartitionKey": "p0", "RowKey": "user0000@example.com", "Nm": "late"}))
    with (
        cut_over.session(Options(typed_table="Users", no_backup="a test")) as session,
        pytest.raises(Findings) as found,
    ):
        prove(session.config, session.scripts[SCRIPT], session.state)
        commands.retire(session, SCRIPT)
    assert "example" not in str(found.value)
    assert [row["Nm"] for row in cut_over.rows("Users")] == ["late"]
    assert control_phase(cut_over) is ControlPhase.COMPLETE


def test_after_complete_there_is_no_way_back_and_the_reason_is_given(cut_over: Project) -> None:
    apply(cut_over, Phase.COMPLETE)
    with pytest.raises(Refused, match="rollback is not possible"):
        rollback(cut_over, drop=True, to=ControlPhase.SOURCE)


# --- the way back --------------------------------------------------------------------------------------


def test_before_cutover_everything_is_rolled_back_and_an_edited_script_may_begin(at_gate: Project) -> None:
    with pytest.raises(ConfigurationError, match="say what happens"):
        rollback(at_gate)
    undone = rollback(at_gate, drop=True)
    assert undone == [Phase.RECONCILE, Phase.BACKFILL, Phase.DUAL_WRITE, Phase.PREPARE]
    assert control_phase(at_gate) is None
    assert asyncio.run(at_gate.tables.table_exists("UsersV2")) is False
    assert at_gate.restricted.dump("rekeymap") == []
    at_gate.clock.advance(60)
    at_gate.script(USERS_SCRIPT.replace('"Name"', '"FullName"'))
    apply(at_gate)
    assert actual(at_gate) == expected(at_gate)


def test_targets_may_be_kept_and_are_taken_up_again(at_gate: Project) -> None:
    rollback(at_gate, drop=False)
    assert control_phase(at_gate) is ControlPhase.SOURCE
    asyncio.run(at_gate.tables.table("Users").delete(EntityKey("p0", "user0000@example.com")))
    apply(at_gate)
    assert actual(at_gate) == expected(at_gate)


def test_kept_targets_can_be_dropped_later(at_gate: Project) -> None:
    rollback(at_gate, drop=False)
    rollback(at_gate, drop=True)
    assert control_phase(at_gate) is None
    assert asyncio.run(at_gate.tables.table_exists("UsersV2")) is False
    assert at_gate.restricted.dump("rekeymap") == []


@pytest.mark.parametrize("kept", [False, True])
def test_the_way_back_waits_for_what_it_dropped_without_an_answer(at_gate: Project, kept: bool) -> None:
    """The migration may be begun anew right after it, and makes tables of the same names."""
    if kept:
        rollback(at_gate, drop=False)

    async def left_open(call: Call) -> None:
        if call.action == "delete_table":
            at_gate.tables.last_open = at_gate.clock.monotonic()  # an attempt, which was repeated

    at_gate.tables.gate = left_open
    before = at_gate.clock.monotonic()
    rollback(at_gate, drop=True)
    assert at_gate.clock.monotonic() - before >= 60, "the margin of requests that take effect late"


@pytest.mark.parametrize("missing", [MAPPING_TABLE, JOURNAL_TABLE])
@pytest.mark.parametrize("script", [PLAIN_USERS, under_writes(PLAIN_USERS)], ids=["delta", "dual-write"])
def test_killed_before_prepare_it_is_rolled_back(project: Project, script: str, missing: str) -> None:
    """The control row says that it has begun: nothing else can roll it back."""
    project.script(script)

    def creates_it(call: Call) -> bool:
        return call.action == "create_table" and call.table == missing

    with mock.patch.object(lease, "_PROCESS", "killed"), killed(project, when=creates_it):
        apply(project)
    assert control_phase(project) is ControlPhase.SOURCE
    assert not asyncio.run(project.restricted.table_exists(missing))
    rollback(project, to=ControlPhase.SOURCE, drop=True)
    assert control_phase(project) is None
    assert not asyncio.run(project.tables.table_exists("UsersV2"))
    apply(project)
    assert actual(project) == expected(project)


def test_what_cannot_go_back_is_refused_before_anything_is_written(cut_over: Project) -> None:
    stranger = {"PartitionKey": "p0", "RowKey": "0" * 32, "Name": "no old key"}
    asyncio.run(cut_over.tables.table("UsersV2").insert(stranger))
    before = cut_over.rows("Users")
    with pytest.raises(GateClosed, match="1 target row cannot go back"):
        rollback(cut_over)
    assert cut_over.rows("Users") == before
    assert control_phase(cut_over) is ControlPhase.CUTOVER


def test_a_way_back_needs_the_operators_word_on_writers(cut_over: Project) -> None:
    with pytest.raises(GateClosed, match="writers-stopped"):
        rollback(cut_over, options=Options())
    assert control_phase(cut_over) is ControlPhase.CUTOVER


def test_index_tables_that_the_application_kept_itself_follow_the_source_again(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.script(POSTS_SCRIPT)
    asyncio.run(project.fill("Posts", [post(f"p{n:02}") for n in range(30)]))
    apply(project, Phase.CUTOVER, STOPPED)
    own = {"PartitionKey": "own", "RowKey": "p00", "MainPartitionKey": "2024-01", "MainRowKey": "p00"}
    asyncio.run(project.tables.table("PostsByTag").insert(own))
    rollback(project)
    assert actual(project, "PostsByTag") == expected(project, 1)


# --- stops, kills, lost files ------------------------------------------------------------------------


def test_without_the_lease_nothing_is_written(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slept may have been succeeded. Several windows are under way when that is noticed."""
    lost, before, behind = False, 0, 0
    check = RunnerLease.check

    def lose(lease: RunnerLease) -> None:
        if lost:
            raise Locked("this runner lost its lease", kept="everything", hint="run the command again")
        check(lease)

    async def count(call: Call) -> None:
        nonlocal lost, before, behind
        if call.writes and call.table in ("UsersV2", MAPPING_TABLE):
            before, behind = before + (not lost), behind + lost
            lost = lost or before == 20

    monkeypatch.setattr(RunnerLease, "check", lose)
    project.tables.gate = project.restricted.gate = count
    with project.session() as session, pytest.raises(Locked):
        commands.apply(session, SCRIPT)
    assert (before, behind) == (20, 0)
    lost, before = False, -1000
    apply(project)
    assert actual(project) == expected(project)


def test_a_stop_request_checkpoints_and_the_next_run_goes_on(project: Project) -> None:
    asyncio.run(project.fill("Users", users(400)[ROWS:]))
    stop = StopFlag()
    copied = 0

    async def stop_in_the_middle(call: Call) -> None:
        nonlocal copied
        copied += call.table == "UsersV2" and call.action in ("transact", "insert")
        if copied == 3:
            stop.request()

    project.tables.gate = stop_in_the_middle
    with project.session(stop=stop) as session, pytest.raises(Interrupted):
        commands.apply(session, SCRIPT)
    with project.session() as session:
        segments = session.state.segments(SCRIPT, "backfill", keys=False)
        assert 0 < sum(segment.rows for segment in segments) < 400
        assert session.ledger.applied(SCRIPT) == [Phase.PREPARE, Phase.DUAL_WRITE]
    apply(project)
    assert actual(project) == expected(project)


KILLS = [*itertools.product(["stored"], range(3, 195, 6)), *itertools.product(["none"], range(3, 90, 6))]


@pytest.mark.parametrize(("mapping", "at"), others_in_soak(KILLS, kept=KILLS[:32:8] + KILLS[32::8]))
def test_cut_off_before_any_effect_the_next_run_ends_in_the_same_state(
    tmp_path: Path, mapping: str, at: int
) -> None:
    """Every sixth effect of a life until cutover, on either account, is the last of its process."""
    project = project_of(tmp_path, SCRIPTS[mapping], users(ROWS))
    with killed(project, at) as kill:
        apply(project, Phase.CUTOVER, STOPPED)
    assert kill.happened
    apply(project)
    apply(project, Phase.CUTOVER, STOPPED)
    assert control_phase(project) is ControlPhase.CUTOVER
    assert actual(project) == expected(project)


def test_keys_of_checkpoints_go_although_complete_was_cut_off_behind_its_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or a kill: `complete` is not run again, because the control row says that it is done."""
    project = project_of(tmp_path, PLAIN_USERS, users(ROWS))
    apply(project)
    apply(project, Phase.CUTOVER, STOPPED)
    with monkeypatch.context() as patched:
        full = MachineFailed("no space is left", hint="free space")
        patched.setattr("rekey.state.store.State.forget_keys", mock.Mock(side_effect=full))
        with pytest.raises(MachineFailed):
            apply(project, Phase.COMPLETE)
        with pytest.raises(MachineFailed):
            apply(project)  # still full
    assert b"@example.com" in state_bytes(project)
    apply(project)
    assert b"@example.com" not in state_bytes(project)
    assert control_phase(project) is ControlPhase.COMPLETE


def test_a_canceled_rollback_resumes_and_goes_no_further(cut_over: Project) -> None:
    """The control row had moved, the ledger had not: the second call must not begin the way to `source`."""
    control = ControlStore(cut_over.restricted, SCRIPT)
    asyncio.run(control.move(ControlPhase.CUTOVER, ControlPhase.FREEZE))
    asyncio.run(control.move(ControlPhase.FREEZE, ControlPhase.DUAL_WRITE))
    rollback(cut_over)
    assert control_phase(cut_over) is ControlPhase.DUAL_WRITE
    assert actual(cut_over) == expected(cut_over)
    apply(cut_over, Phase.CUTOVER, STOPPED)


def test_without_its_state_file_a_migration_copies_again_and_ends_the_same(at_gate: Project) -> None:
    before = actual(at_gate)
    for file in at_gate.folder.glob("state.sqlite*"):
        file.unlink()
    asyncio.run(at_gate.tables.table("Users").delete(EntityKey("p0", "user0000@example.com")))
    done = apply(at_gate)
    assert done.phases == (Phase.BACKFILL, Phase.RECONCILE)
    assert actual(at_gate) == expected(at_gate) != before


def test_without_its_state_file_a_migration_that_is_cut_over_stays_cut_over(cut_over: Project) -> None:
    for file in cut_over.folder.glob("state.sqlite*"):
        file.unlink()
    done = apply(cut_over)
    assert (done.phases, done.next_phase) == ((), Phase.COMPLETE)
    assert control_phase(cut_over) is ControlPhase.CUTOVER


def test_a_state_file_of_another_migration_is_refused(at_gate: Project) -> None:

    async def replace_the_store() -> None:
        store = ControlStore(at_gate.restricted, SCRIPT)
        row = await store.read()
        assert row is not None
        await store.delete(row)

    asyncio.run(replace_the_store())
    with pytest.raises(StateUnusable):
        apply(at_gate)


# --- refused before anything is written ---------------------------------------------------------------


def untouched(project: Project) -> bool:
    return asyncio.run(project.tables.table_exists("UsersV2")) is False and control_phase(project) is None


def test_an_unknown_source_table_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.script(USERS_SCRIPT)
    with pytest.raises(ConfigurationError, match="Users does not exist"):
        apply(project)
    assert untouched(project)


def test_a_target_with_rows_of_somebody_else_is_refused(project: Project) -> None:
    asyncio.run(project.fill("UsersV2", [{"PartitionKey": "x", "RowKey": "y"}]))
    with pytest.raises(Refused, match="did not write"):
        apply(project)
    assert len(project.rows("UsersV2")) == 1
    assert control_phase(project) is None


def test_rows_that_collide_are_refused_before_the_first_write(project: Project) -> None:
    project.script(FOLDED_SCRIPT)
    asyncio.run(project.tables.table("Users").insert(user("USER0000@example.com", "p0")))
    with pytest.raises(Findings, match="share 1 target key"):
        apply(project)
    assert untouched(project)


def test_a_collision_that_comes_up_later_stops_the_backfill_and_overwrites_nothing(project: Project) -> None:
    project.script(FOLDED_SCRIPT)
    twin = user("USER0000@example.com", "p0")
    before(project.tables, "create_table", "", lambda: project.tables.table("Users").upsert(twin))
    with pytest.raises(Collision):
        apply(project)
    taken = [row for row in project.rows("UsersV2") if row["RowKey"] == "user0000@example.com"]
    assert len(taken) <= 1


@pytest.mark.parametrize("setting", ['row_check = "sample"', 'row_check_disk = "1KiB"'])
def test_a_collision_that_a_sample_missed_is_found_by_its_claim(
    project: Project, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """Nothing is overwritten, the operator is told what was copied, and `apply` goes on after the cure."""
    scan = MemoryTable.scan
    monkeypatch.setattr(
        MemoryTable, "scan", lambda self, *words, **more: scan(self, *words, **{"page_rows": 20, **more})
    )
    monkeypatch.setattr(subject.SampleSize.__init__, "__defaults__", (40, 0, 0, None))
    monkeypatch.setattr(spill, "BUFFERED_RECORDS", 16)
    path = project.folder / "rekey.toml"
    path.write_text(f"{path.read_text('utf-8')}\n[plan]\n{setting}\n", "utf-8")
    project.script(FOLDED_SCRIPT)
    for number in range(300):
        asyncio.run(project.tables.table("Users").insert(user(f"more{number}@example.com", f"q{number % 5}")))
    twin = user("MORE299@example.com", "q4")
    asyncio.run(project.tables.table("Users").insert(twin))
    with pytest.raises(Collision) as refused:
        apply(project)
    assert re.search(r"nothing was overwritten; \d+ source rows copied so far", refused.value.kept)
    assert "--exact --show-keys" in refused.value.hint
    copied = [row["OldRowKey"] for row in project.rows("UsersV2") if row["RowKey"] == "more299@example.com"]
    with project.session() as session:
        [planned] = [event for event in session.state.audit_events(SCRIPT) if event.event == "planned"]
    assert planned.details["row_check"].startswith("a sample of the source rows")
    # Whichever of the two was first stays as it was, and the other one is nowhere.
    other = "more299@example.com" if copied == [twin["RowKey"]] else twin["RowKey"]
    asyncio.run(project.tables.table("Users").delete(EntityKey("q4", other)))
    apply(project)
    assert {row["OldRowKey"] for row in project.rows("UsersV2")} == {
        row["RowKey"] for row in project.rows("Users")
    }


def test_a_full_row_check_without_room_on_the_disk_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project.folder / "rekey.toml"
    path.write_text(f'{path.read_text("utf-8")}\n[plan]\nrow_check = "full"\n', "utf-8")
    monkeypatch.setattr(spill, "BUFFERED_RECORDS", 16)
    monkeypatch.setattr(commands, "free_bytes", lambda: 1000)
    with pytest.raises(MachineFailed, match="free where they go"):
        apply(project)
    assert untouched(project)
    monkeypatch.setattr(commands, "free_bytes", lambda: 10**9)
    apply(project)


def test_a_row_the_mapping_refuses_is_refused_before_the_first_write(project: Project) -> None:
    project.script(USERS_SCRIPT.replace('keys.prop("PartitionKey")', 'keys.prop("Country")'))
    project.script(
        USERS_SCRIPT.replace(
            'partition_key=keys.prop("PartitionKey")', 'partition_key=keys.prop("Country")'
        ).replace('props.drop("Ssn")', 'props.drop("Ssn"), props.copy("PartitionKey", to="Region")')
    )
    with pytest.raises(Findings, match="missing-property"):
        apply(project)
    assert untouched(project)


def test_an_edited_script_is_refused_after_the_first_phase(at_gate: Project) -> None:
    at_gate.script(USERS_SCRIPT.replace('"Name"', '"FullName"'))
    with pytest.raises(Moved, match="edited"):
        apply(at_gate, Phase.CUTOVER, STOPPED)
    with pytest.raises(Moved, match="edited"):
        verify(at_gate)
    with pytest.raises(Moved, match="edited"):
        rollback(at_gate, drop=True)


def test_an_edited_script_is_refused_even_when_only_the_control_row_knows(at_gate: Project) -> None:
    for file in at_gate.folder.glob("state.sqlite*"):
        file.unlink()
    at_gate.script(USERS_SCRIPT.replace('"Name"', '"FullName"'))
    with pytest.raises(Moved, match="edited"):
        apply(at_gate)


def test_another_secret_is_refused_after_the_first_phase(at_gate: Project) -> None:
    (at_gate.folder / "users.secret").write_text("another secret, long enough to be one\n")
    with pytest.raises(Moved, match="secret"):
        apply(at_gate)


def test_a_missing_secret_is_refused(project: Project) -> None:
    (project.folder / "users.secret").unlink()
    with pytest.raises(SecretMissing):
        apply(project)
    assert untouched(project)


def test_verification_says_nothing_where_nothing_is_meant_to_be_equal(project: Project) -> None:
    with pytest.raises(Refused, match="copied nothing"):
        verify(project)
    apply(project, Phase.CUTOVER, STOPPED)
    with pytest.raises(Refused, match="cutover"):
        verify(project)


@pytest.mark.parametrize("mode", [Mode.COUNT, Mode.SAMPLE])
def test_counts_and_samples_find_a_row_that_is_missing(at_gate: Project, mode: Mode) -> None:
    assert not verify(at_gate, mode)
    asyncio.run(at_gate.tables.table("UsersV2").delete(key_of(at_gate.rows("UsersV2")[0])))
    assert verify(at_gate, mode)
