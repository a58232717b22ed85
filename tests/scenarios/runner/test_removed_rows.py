"""What `rekey verify --repair` removes is identified before, kept sealed, and brought back by `rekey
restore-row`: once, under its own key, within its time, and on record.

Soak: most of it in the clear; a kill at every third effect.
Reason, and what `make test` covers: sealed; what is kept, in both; every ninth effect.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rekey.errors import Refused
from rekey.mapping.removed import RemovedRows
from rekey.mapping.rows import MAPPING_TABLE
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import Phase
from rekey.protocol.rules import View
from rekey.runner.commands import Mode
from rekey.runner.handover import hand_over
from rekey.runner.restore import restore
from rekey.state.audit import AuditEvent
from rekey.state.store import State
from rekey.tables.base import Operation, Verb
from tests.asserts.command_line import Commands, Said
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.interference import before
from tests.soaking import others_in_soak
from tests.worlds.company import company
from tests.worlds.erasure import (
    PLAIN_USERS,
    SCRIPT,
    WHY,
    Lives,
    by_old,
    complete,
    mapping,
    subject,
)
from tests.worlds.evidence import prove
from tests.worlds.kills import killed
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT, Project
from tests.worlds.small import post

STRAY: Row = {
    "PartitionKey": "eu",
    "RowKey": "legacy@mail.example",
    "Name": "who-knows",
    "Count": "9007199254740993",
    "Count@odata.type": "Edm.Int64",
    "Ratio": -0.0,
    "When": "2024-01-31T12:00:00.1234567Z",
    "When@odata.type": "Edm.DateTime",
    "Text": "ünïcode \U0001f600 \x01",
}
DAY_S = 86400


BOTH = [USERS_SCRIPT, PLAIN_USERS]


@pytest.fixture(params=others_in_soak(BOTH, kept=[USERS_SCRIPT]), ids=["sealed", "plain"])
def users(request: pytest.FixtureRequest, lives: Lives) -> Commands:
    return lasting(lives.begun(request.param))


@pytest.fixture
def sealed(lives: Lives) -> Commands:
    return lasting(lives.begun(USERS_SCRIPT))


def lasting(rekey: Commands) -> Commands:
    """Return the commands of a project that keeps removed rows for three days."""
    keep_for_days(rekey.project)
    return rekey


def keep_for_days(project: Project) -> None:
    path = project.folder / "rekey.toml"
    more = 'retention = "3d"\nverification_max_age = "900d"'
    path.write_text(path.read_text("utf-8").replace('retention = "0s"', more), "utf-8")


def put(rekey: Commands, row: Row = STRAY, table: str = "UsersV2") -> None:
    asyncio.run(rekey.project.tables.table(table).upsert(row))


def stray(rekey: Commands, table: str = "UsersV2", row: Row = STRAY) -> Row | None:
    """Return the stray row as it stands, without what the service adds."""
    found = asyncio.run(rekey.project.tables.table(table).get(key_of(row)))
    return None if found is None else content_of(found)


def removed(rekey: Commands, row: Row = STRAY, table: str = "UsersV2") -> str:
    """Put a stray row into a target and let it be removed; return its safe id."""
    put(rekey, row, table)
    report = rekey("verify", "--repair", "--json", code=1).json
    assert stray(rekey, table, row) is None
    [one] = [each for each in report["repair"]["repairs"] if each["kind"] == "extra"]
    row_id: str = one["row"]
    return row_id


def kept(project: Project) -> dict[EntityKey, Row]:
    return mapping(project, "x")


def events(rekey: Commands, name: str) -> list[AuditEvent]:
    with State.open(rekey.project.config.state, read_only=True) as state:
        return [one for one in state.audit_events(SCRIPT) if one.event == name]


# --- who it was --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "sample"])
def test_keys_of_rows_that_differ_are_shown_on_record_and_only_when_asked(users: Commands, mode: str) -> None:
    put(users)
    plain = users("verify", "--mode", mode, code=1)
    assert "legacy@mail.example" not in plain.all and events(users, "lookup") == []
    said = users("verify", "--mode", mode, "--show-keys", *WHY, code=1)
    assert "RowKey        'legacy@mail.example'" in said.out
    assert "differences: 1" in said.out and "legacy" not in said.err
    document = users("verify", "--mode", mode, "--show-keys", *WHY, "--json", code=1).json
    [shown] = document["keys"]
    assert (shown["table"], shown["partition_key"], shown["row_key"]) == (
        "UsersV2",
        "eu",
        "legacy@mail.example",
    )
    assert shown["row"] == document["divergences"][0]["row"]
    for event in events(users, "lookup"):
        assert event.details == {"by": "verify", "rows": [shown["row"]], "found": True, "reason": WHY[1]}
        assert "--show-keys" in str(event.command)
    for event in events(users, "verification"):
        assert "legacy" not in str(event), "the report that is kept has no keys"


def test_both_keys_of_a_row_that_was_changed_are_shown(sealed: Commands) -> None:
    target = sealed.project.rows("UsersV2")[0]
    put(sealed, content_of(target) | {"Name": "changed"})
    shown = sealed("verify", "--show-keys", *WHY, "--json", code=1).json["keys"]
    assert {one["table"] for one in shown} == {"Users", "UsersV2"}
    assert target["ContactEmail"] in {one["row_key"] for one in shown}


def test_where_nothing_differs_no_key_is_shown_and_nothing_recorded(sealed: Commands) -> None:
    assert "keys" not in sealed("verify", "--show-keys", *WHY, "--json").json
    assert events(sealed, "lookup") == []


@pytest.mark.parametrize(
    "words",
    [
        ("--show-keys",),
        WHY,
        ("--show-keys", "--mode", "count", *WHY),
        ("--show-keys", "--reason", "it is somebody00@mail.example"),
    ],
)
def test_keys_are_not_shown_without_a_reason_or_of_a_count(sealed: Commands, words: tuple[str, ...]) -> None:
    put(sealed)
    assert "legacy" not in sealed("verify", *words, code=2).all


def test_a_reason_that_holds_a_key_that_would_be_shown_is_refused(sealed: Commands) -> None:
    put(sealed, STRAY | {"RowKey": "legacy-000123"})
    said = sealed("verify", "--show-keys", "--reason", "who is legacy-000123", code=2)
    assert "RowKey  " not in said.out and events(sealed, "lookup") == []


def test_after_too_many_look_ups_the_report_is_given_without_keys(sealed: Commands) -> None:
    put(sealed)
    with (sealed.project.folder / "rekey.toml").open("a", encoding="utf-8") as file:
        file.write("[lookup]\nper_minute = 1\n")
    sealed("verify", "--show-keys", *WHY, code=1)
    said = sealed("verify", "--show-keys", *WHY, code=3)
    assert "differences: 1" in said.out and "legacy" not in said.all
    assert len(events(sealed, "lookup")) == 1


# --- back again --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("users", BOTH, ids=["sealed", "plain"], indirect=True)
def test_a_removed_row_comes_back_as_it_was_and_is_kept_no_more(users: Commands) -> None:
    row_id = removed(users)
    assert len(kept(users.project)) == 1
    said = users("restore-row", row_id, *WHY)
    assert row_id in said.out and "UsersV2 is restored" in said.out and "legacy" not in said.all
    assert stray(users) == STRAY
    assert kept(users.project) == {}
    [event] = events(users, "row-restored")
    assert event.details["reason"] == WHY[1] and event.details["row"].startswith(row_id)
    assert "legacy" not in str(event)
    again = users("restore-row", row_id, code=3)
    assert "no removed row" in again.err and "none is kept" in again.err


def test_of_a_sealed_mapping_nothing_of_it_stands_in_the_clear(sealed: Commands) -> None:
    removed(sealed)
    [row] = kept(sealed.project).values()
    assert "Sealed0" in row and "Content0" not in row
    assert "legacy" not in str(row) and "who-knows" not in str(row)


def test_it_is_kept_before_it_is_deleted(users: Commands) -> None:
    put(users)
    seen: list[int] = []

    async def watch(call: Call) -> None:
        if call.action == "delete" and call.table == "UsersV2":
            seen.append(len(kept(users.project)))

    users.project.tables.gate = watch
    users("verify", "--repair", code=1)
    assert seen == [1]


def test_where_it_cannot_be_kept_it_is_not_removed(users: Commands) -> None:
    put(users)
    users.project.restricted.faults = PlannedFaults(
        Planned(Fault(FaultKind.BUSY), action="insert_or_replace", table=MAPPING_TABLE)
    )
    users("verify", "--repair", code=4)
    assert stray(users) == STRAY


@pytest.mark.parametrize("every", others_in_soak([3, 9], kept=[9]))
def test_killed_anywhere_in_a_repair_the_row_stands_or_can_be_restored(
    tmp_path: Path, lives: Lives, every: int
) -> None:
    at, effects = 1, 0
    while effects >= at - every:
        rekey = lasting(lives.begun(USERS_SCRIPT, tmp_path / str(at)))
        put(rekey)
        with killed(rekey.project, at) as kill:
            rekey("verify", "--repair", code=None)
        effects = kill.calls
        if stray(rekey) is None:
            [name] = {key.row[:12] for key in kept(rekey.project)}
            rekey("restore-row", name)
        assert stray(rekey) == STRAY
        at += every
    assert at > 20


@pytest.mark.parametrize("users", BOTH, ids=["sealed", "plain"], indirect=True)
def test_a_row_larger_than_one_mapping_row_is_kept_in_parts(users: Commands) -> None:
    large = STRAY | {f"P{n:02}": "\x01é" * 16_000 for n in range(15)}
    row_id = removed(users, large)
    assert len(kept(users.project)) > 2
    users("restore-row", row_id)
    assert stray(users) == large and kept(users.project) == {}


def test_a_row_that_stands_there_by_now_is_never_overwritten(users: Commands) -> None:
    row_id = removed(users)
    newer = STRAY | {"Name": "newer"}
    put(users, newer)
    said = users("restore-row", row_id, code=3)
    assert "another row stands at the key" in said.err and "Kept: both" in said.err
    assert stray(users) == newer and len(kept(users.project)) == 1
    assert events(users, "row-restored") == []


def test_a_row_that_comes_between_look_and_insert_stays(users: Commands) -> None:
    row_id, newer = removed(users), STRAY | {"Name": "newer"}
    table = users.project.tables.table("UsersV2")
    before(users.project.tables, "insert", "UsersV2", lambda: table.insert(newer))
    users("restore-row", row_id, code=3)
    assert stray(users) == newer and len(kept(users.project)) == 1


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST])
def test_an_insert_whose_answer_was_lost_is_settled_by_looking(users: Commands, kind: FaultKind) -> None:
    row_id = removed(users)
    users.project.tables.faults = PlannedFaults(Planned(Fault(kind), action="insert", table="UsersV2"))
    users("restore-row", row_id)
    assert stray(users) == STRAY and kept(users.project) == {}


@pytest.mark.parametrize(
    "before", [("insert", "UsersV2"), ("delete", MAPPING_TABLE)], ids=["insert", "delete"]
)
def test_a_restore_that_is_cut_off_is_ended_by_the_next(sealed: Commands, before: tuple[str, str]) -> None:
    """The row that the first inserted is not taken for another one; it is recorded, and kept no more."""
    row_id = removed(sealed)
    with killed(sealed.project, when=lambda call: (call.action, call.table) == before):
        sealed("restore-row", row_id)
    assert len(kept(sealed.project)) == 1
    assert (stray(sealed) is None) == (before[0] == "insert")
    sealed("restore-row", row_id)
    assert stray(sealed) == STRAY and kept(sealed.project) == {}
    assert events(sealed, "row-restored")


def test_an_id_that_is_not_known_is_refused_with_those_that_are(users: Commands) -> None:
    row_id = removed(users)
    for unknown in ("000000000000", "3m9", "legacy@mail.example", "", "-"):
        said = users("restore-row", "--", unknown, code=3)
        assert "no removed row" in said.err and row_id in said.err, unknown
        assert "legacy" not in said.all
    assert stray(users) is None


def test_a_row_that_was_removed_twice_is_named_by_its_version(users: Commands) -> None:
    row_id = removed(users)
    removed(users, STRAY | {"Name": "second"})
    said = users("restore-row", row_id, code=3)
    assert "was removed 2 times" in said.err
    names = sorted({one.split("-")[0][:12] + "-" + one.split("-")[1] for _, one in kept(users.project)})
    assert [name in said.err for name in names] == [True, True]
    back = set()
    for name in names:
        users("restore-row", name)
        found = stray(users)
        back.add(found["Name"])
        asyncio.run(users.project.tables.table("UsersV2").delete(key_of(STRAY)))
    assert back == {"who-knows", "second"} and kept(users.project) == {}


# --- for how long ------------------------------------------------------------------------------------------


def test_after_its_time_it_is_refused_and_expire_deletes_it(users: Commands) -> None:
    row_id = removed(users)
    users("verify")
    users.project.clock.advance(3 * DAY_S + 60)
    said = users("restore-row", row_id, code=3)
    assert "was kept until 2024-01-0" in said.err and "that is over" in said.err
    assert stray(users) is None
    young = removed(users, STRAY | {"RowKey": "younger"})
    users("verify")
    complete(users)
    said = users("expire", "--confirm", SCRIPT)
    assert "1 row that a repair had removed cannot be restored any more" in said.out
    assert {key.row[:12] for key in kept(users.project)} == {young}
    assert [one.details for one in events(users, "removed-rows-expired")] == [{"rows": 1}]
    assert "none is kept" not in users("restore-row", row_id, code=3).err
    users("restore-row", young)
    assert "there was nothing to erase" in users("expire", "--confirm", SCRIPT).out


def test_without_a_retention_no_restore_is_promised(lives: Lives) -> None:
    rekey = lives.begun(USERS_SCRIPT)
    put(rekey)
    said = rekey("verify", "--repair", code=1).out
    assert "[gates] retention is 0" in said and "restore-row" not in said
    row_id, *_ = {key.row[:12] for key in kept(rekey.project)}
    rekey("restore-row", row_id, code=3)
    lasting(rekey)
    rekey("restore-row", row_id)
    assert stray(rekey) == STRAY
    put(rekey, STRAY | {"RowKey": "another"})
    assert "`rekey restore-row ID`" in rekey("verify", "--repair", code=1).out


def test_retire_deletes_what_is_over_too(users: Commands) -> None:
    removed(users)
    users("verify")
    complete(users)
    users.project.clock.advance(3 * DAY_S + 60)
    with users.project.session() as session:
        prove(session.config, session.scripts[SCRIPT], session.state)
    users("retire", "--table", "Users", "--no-backup", "a test")
    assert kept(users.project) == {}


def test_with_the_month_that_is_shredded_they_go_too(sealed: Commands) -> None:
    row_id = removed(sealed)
    sealed("verify")
    complete(sealed)
    sealed("expire", "--cohort", "2024-01", "--reason", "the project has ended")
    assert kept(sealed.project) == {}
    assert "no removed row" in sealed("restore-row", row_id, code=3).err


@pytest.mark.parametrize("users", BOTH, ids=["sealed", "plain"], indirect=True)
def test_rolled_back_without_targets_nothing_is_kept(users: Commands) -> None:
    removed(users)
    users("rollback", "--drop-targets")
    assert mapping(users.project) == {}


# --- in which phases, and whose ----------------------------------------------------------------------------


def test_in_cutover_it_waits_for_complete(users: Commands) -> None:
    row_id = removed(users)
    users("verify")
    users("apply", "--to", "cutover", "--writers-stopped")
    said = users("restore-row", row_id, code=3)
    assert "is in `cutover`" in said.err and "after `complete`" in said.err
    users("apply", "--to", "complete", "--yes", SCRIPT)
    users("restore-row", row_id)
    assert stray(users) == STRAY


def test_while_another_migration_follows_the_table_it_is_refused(users: Commands) -> None:
    row_id = removed(users)
    users("verify")
    complete(users)
    second = USERS_SCRIPT.replace('"UsersV2"', '"UsersV3"').replace('"Users"', '"UsersV2"')
    second = second.replace('to="ContactEmail"), props.rename("Nm", "Name")', 'to="FormerKey")')
    second = second.replace("migration = ", f'__depends__ = {{"{SCRIPT}"}}\nmigration = ')
    users.project.script(second, "0002_again.py")
    users("apply", "0002")
    said = users("restore-row", row_id, "0001", code=3)
    assert "UsersV2 is the source of 0002_again" in said.err
    assert stray(users) is None and len(kept(users.project)) == 1


@pytest.mark.parametrize("listed", [(), ("--listed-only",)], ids=["searched", "listed only"])
def test_erasing_a_person_takes_the_removed_rows_of_theirs(lives: Lives, listed: tuple[str, ...]) -> None:
    """Those under keys of theirs, and index rows that point to them; what nobody can identify stays."""
    posts = lasting(lives.begun(POSTS_SCRIPT))
    main = next(row for row in posts.project.rows("PostsV2") if row["RowKey"] == "somebody-00")
    pointer = {"MainPartitionKey": main["PartitionKey"], "MainRowKey": main["RowKey"]}
    theirs = {"PartitionKey": "stray", "RowKey": "theirs", **pointer}
    removed(posts, theirs, "PostsByTag")
    removed(posts, STRAY, "PostsByTag")
    posts("verify")
    complete(posts)
    assert len(kept(posts.project)) == 2
    said = posts("erase", *by_old(subject(posts)), *WHY, *listed, "--json").json
    assert said["removed_rows"] == 1
    assert len(kept(posts.project)) == 1

    async def opened() -> Row:
        rows = RemovedRows(await posts.project.mapping(SCRIPT))
        [one] = await rows.all()
        return (await rows.open(one)).row

    assert asyncio.run(opened()) == STRAY


def test_a_removed_index_row_is_restored_after_the_handover(tmp_path: Path) -> None:
    """In capture "dual-write"; of the main target, which is the authority then, nothing is removed."""
    with company(tmp_path, POSTS_SCRIPT, [post("a", tags="x,y")]) as made:
        keep_for_days(made.project)
        client = made.client(View.NEW)
        made.apply()
        made.apply(Phase.CUTOVER)
        foreign = {"PartitionKey": "z", "RowKey": "of nobody", "MainPartitionKey": "no", "MainRowKey": "one"}
        made.do(made.project.tables.table("PostsByTag").insert(foreign))
        report = made.verify(Mode.FULL, repair=True)
        assert dict(report.repair.counts) == {"deleted": 1}
        assert made.verify().differences.stable == 0
        made.apply(Phase.COMPLETE)
        [key] = mapping(made.project, "x")
        with made.session() as session, pytest.raises(Refused, match="handover"):
            restore(session, made.script_id, key.row[:12])
        made.verify()
        with made.session() as session:
            hand_over(session, made.script_id)
        with made.session() as session:
            assert restore(session, made.script_id, key.row[:12]).table == "PostsByTag"
        assert key_of(foreign) in {key_of(row) for row in made.project.rows("PostsByTag")}
        [main] = made.project.rows("PostsV2")
        made.do(client.write(Operation(Verb.MERGE, {**_key(main), "Title": "on"}, "*")))


def _key(row: Row) -> Row:
    return {"PartitionKey": row["PartitionKey"], "RowKey": row["RowKey"]}


def test_what_a_repair_moves_or_takes_back_by_its_source_is_kept_too(sealed: Commands) -> None:
    """A row under a wrong key, and one whose source row was deleted past rekey's sweep."""
    project = sealed.project
    target = project.rows("UsersV2")[0]
    moved = content_of(target) | {"RowKey": "wrong"}
    table = project.tables.table("UsersV2")
    asyncio.run(table.delete(key_of(target)))
    asyncio.run(table.insert(moved))
    said: Said = sealed("verify", "--repair", code=1)
    assert "moved 1" in said.out and "rekey restore-row ID" in said.out
    document: dict[str, Any] = sealed("verify", "--json").json
    assert document["stable"] == 0
    [at] = kept(project)
    sealed("restore-row", at.row[:12])
    assert EntityKey(moved["PartitionKey"], "wrong") in {key_of(row) for row in project.rows("UsersV2")}
