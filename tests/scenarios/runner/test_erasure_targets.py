"""A person's rows of the targets are told before anything is erased, and erased with `--with-targets`: index
rows included, in both captures, each as it was found, cut off anywhere; nothing brings them back.

Soak: 2 of 4 kinds of migrations; half of the lost deletions; a kill at every fourth effect.
Reason, and what `make test` covers: sealed without an index, in the clear with one; each table, each fault;
every twelfth effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path

import click
import pytest

from rekey.mapping.lookup import Query
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.control import ControlStore
from rekey.protocol.rules import View
from rekey.runner.erase.erasure import Done, Request, Scope, erase
from rekey.tables.base import Operation, Verb
from tests.asserts.command_line import Commands
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.interference import before
from tests.soaking import others_in_soak
from tests.worlds.company import Company, company
from tests.worlds.erasure import (
    QUICK_SCRIPTS,
    SCRIPT,
    SCRIPTS,
    WHY,
    Lives,
    by_id,
    by_new,
    by_old,
    erasures,
    mapping,
    subject,
    tombstones,
)
from tests.worlds.evidence import prove
from tests.worlds.kills import killed
from tests.worlds.projects import POSTS_SCRIPT, SECONDARY_SCRIPT, USERS_SCRIPT
from tests.worlds.scripts import RACES, named
from tests.worlds.small import mapped, post, racer, user

WITH = "--with-targets"


@pytest.fixture(params=others_in_soak(SCRIPTS.values(), kept=QUICK_SCRIPTS), ids=list(SCRIPTS))
def rekey(request: pytest.FixtureRequest, lives: Lives) -> Commands:
    return lives.completed(request.param)


@pytest.fixture
def posts(lives: Lives) -> Commands:
    return lives.completed(POSTS_SCRIPT)


def theirs(rekey: Commands) -> dict[str, set[EntityKey]]:
    """Return the keys under which the subject stands in each target."""
    [found] = rekey("lookup", *by_old(subject(rekey)), *WHY, "--json").json["rows"]
    keys: dict[str, set[EntityKey]] = {}
    for one in found["new"]:
        keys.setdefault(one["table"], set()).add(EntityKey(one["partition_key"], one["row_key"]))
    return keys


def targets(rekey: Commands) -> dict[str, set[EntityKey]]:
    """Return the keys of all rows of the targets."""
    tables = rekey.project.scripts[SCRIPT].migration.tables
    return {name: keys_in(rekey.project.rows(name)) for name in tables}


def keys_in(rows: Iterable[Row]) -> set[EntityKey]:
    return set(map(key_of, rows))


@pytest.mark.parametrize("way", ["old", "new", "id"])
def test_all_rows_of_a_person_go_and_no_other(rekey: Commands, way: str) -> None:
    row, before, keys = subject(rekey), targets(rekey), theirs(rekey)
    counts = {table: len(found) for table, found in keys.items()}
    assert sum(counts.values()) in (1, 3)
    named_by = {"old": by_old(row), "new": by_new(rekey, row), "id": by_id(rekey, row)}[way]
    said = rekey("erase", *named_by, *WHY, WITH, "--json").json
    assert said["target_rows"] == said["targets"] == counts
    assert targets(rekey) == {table: before[table] - keys[table] for table in before}
    assert len(tombstones(rekey.project)) == 2
    first, second = erasures(rekey.project)
    assert first.details["with_targets"] is True and first.details["targets"] == counts
    assert second.details["target_rows"] == counts


def test_what_stands_is_told_and_recorded_before_anything_is_erased(rekey: Commands) -> None:
    before, counts = targets(rekey), {table: len(keys) for table, keys in theirs(rekey).items()}
    said = rekey("erase", *by_old(subject(rekey)), *WHY)
    for table, number in counts.items():
        assert f"{number} row{'' if number == 1 else 's'} of {table}" in said.err
    assert "no one can look up whose they are" in said.err and WITH in said.err
    assert "somebody" not in said.all
    assert targets(rekey) == before
    first, second = erasures(rekey.project)
    assert first.details["targets"] == counts and first.details["with_targets"] is False
    assert second.details["target_rows"] == {}
    again = rekey("erase", *by_old(subject(rekey)), *WHY, WITH)
    assert "what it has in the targets cannot be found any more" in again.out


def test_a_user_at_a_terminal_may_still_say_no(posts: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    posts._surroundings = replace(posts._surroundings, is_terminal=True)
    before, questions = mapping(posts.project), list[str]()

    def no(question: str, **_: object) -> bool:
        questions.append(question)
        return False

    monkeypatch.setattr(click, "confirm", no)
    said = posts("erase", *by_old(subject(posts)), *WHY, code=3)
    assert "Nothing was erased or recorded." in said.err and len(questions) == 1
    assert mapping(posts.project) == before and erasures(posts.project) == []
    posts("erase", *by_old(subject(posts)), *WHY, WITH)
    assert len(questions) == 1, "with --with-targets nothing of the person stays, and nothing is asked"


def test_an_index_row_that_the_application_wrote_since_is_searched_for(posts: Commands) -> None:
    """No forward row lists it: after `complete` the application writes its index tables itself."""
    keys = theirs(posts)
    [main] = keys["PostsV2"]
    index = posts.project.tables.table("PostsByTag")
    pointer = {"MainPartitionKey": main.partition, "MainRowKey": main.row}
    new = {"PartitionKey": "new", "RowKey": main.row}
    others = {"PartitionKey": "new", "RowKey": "of the application"}
    for row in (new | pointer, others, others | {"RowKey": "x", "MainPartitionKey": "x", "MainRowKey": "y"}):
        asyncio.run(index.insert(row))
    posts("erase", *by_old(subject(posts)), *WHY, WITH)
    left = keys_in(posts.project.rows("PostsByTag"))
    assert key_of(new) not in left
    assert {EntityKey("new", "of the application"), EntityKey("new", "x")} <= left


def test_without_the_search_only_listed_rows_go(posts: Commands) -> None:
    [main] = theirs(posts)["PostsV2"]
    pointer = {"MainPartitionKey": main.partition, "MainRowKey": main.row}
    new = {"PartitionKey": "new", "RowKey": "listed nowhere"} | pointer
    asyncio.run(posts.project.tables.table("PostsByTag").insert(new))
    said = posts("erase", *by_old(subject(posts)), *WHY, WITH, "--listed-only", "--json").json
    assert said["target_rows"] == {"PostsByTag": 2, "PostsV2": 1}
    assert key_of(new) in keys_in(posts.project.rows("PostsByTag"))


def test_a_key_that_holds_somebody_elses_row_by_now_is_not_touched(posts: Commands) -> None:
    keys = theirs(posts)
    passed = min(keys["PostsByTag"])
    theirs_now = {"PartitionKey": passed.partition, "RowKey": passed.row}
    theirs_now |= {"MainPartitionKey": "2024-01", "MainRowKey": "somebody-05"}
    asyncio.run(posts.project.tables.table("PostsByTag").replace(theirs_now))
    assert posts("erase", *by_old(subject(posts)), *WHY, WITH, "--json").json["target_rows"] == {
        "PostsByTag": 1,
        "PostsV2": 1,
    }
    assert passed in keys_in(posts.project.rows("PostsByTag"))


@pytest.mark.parametrize("which", ["PostsV2", "PostsByTag"])
def test_a_row_that_changes_meanwhile_is_told_and_a_second_run_ends_it(posts: Commands, which: str) -> None:
    """The mapping rows stay: by them the second run finds what the first has left."""
    project, keys = posts.project, theirs(posts)
    table = project.tables.table(which)
    changed = max(keys[which])
    later = {"PartitionKey": changed.partition, "RowKey": changed.row, "Title": "later"}
    before(project.tables, "delete", which, lambda: table.merge(later))
    named_by = by_new(posts, subject(posts))
    row_id = by_id(posts, subject(posts))[1]
    said = posts("erase", *named_by, *WHY, WITH, code=1)
    assert "changed after they were found" in said.err and row_id in said.err
    assert "run the same command again" in said.err and "somebody" not in said.all
    assert changed in keys_in(project.rows(which)), "not deleted blindly"
    assert tombstones(project) == {}
    assert erasures(project)[-1].details["targets_changed"] == [row_id]
    posts("erase", *named_by, *WHY, WITH)
    assert not any(keys[name] & keys_in(project.rows(name)) for name in keys)
    assert len(tombstones(project)) == 2


@pytest.mark.parametrize(
    ("which", "kind"),
    others_in_soak(
        product(
            ["PostsV2", "PostsByTag"], [FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST, FaultKind.TIMED_OUT]
        ),
        kept=[
            ("PostsV2", FaultKind.LOST_ANSWER),
            ("PostsByTag", FaultKind.LOST_REQUEST),
            ("PostsV2", FaultKind.TIMED_OUT),
        ],
    ),
)
def test_a_lost_delete_is_settled(posts: Commands, kind: FaultKind, which: str) -> None:
    keys = theirs(posts)
    posts.project.tables.faults = PlannedFaults(Planned(Fault(kind), action="delete", table=which))
    said = posts("erase", *by_old(subject(posts)), *WHY, WITH, "--json").json
    assert said["target_rows"] == {"PostsByTag": 2, "PostsV2": 1}
    assert not any(keys[name] & keys_in(posts.project.rows(name)) for name in keys)


@pytest.mark.parametrize("every", others_in_soak([4, 12], kept=[12]))
def test_cut_off_anywhere_the_next_erasure_ends_it_with_the_targets(
    tmp_path: Path, lives: Lives, every: int
) -> None:
    """Also when the next one is for another person, and says nothing of targets: the record does."""
    at, effects = 1, 0
    while effects >= at - every:
        rekey = lives.completed(POSTS_SCRIPT, tmp_path / str(at))
        keys = theirs(rekey)
        with killed(rekey.project, at) as kill:
            rekey("erase", *by_old(subject(rekey)), *WHY, WITH)
        effects = kill.calls
        other = post("somebody-01", tags="a,b1")
        rekey("erase", *(by_old(other) if erasures(rekey.project) else (*by_old(subject(rekey)), WITH)), *WHY)
        assert not any(keys[name] & keys_in(rekey.project.rows(name)) for name in keys)
        assert "was erased on" in rekey("lookup", *by_old(subject(rekey)), *WHY, code=1).err
        at += every
    assert at > 40


@pytest.mark.parametrize("phase", [ControlPhase.DUAL_WRITE, ControlPhase.CUTOVER])
def test_a_target_that_another_migration_follows_is_kept(posts: Commands, phase: ControlPhase) -> None:
    """From there the rows would come back, or stay in its targets."""
    project, before = posts.project, targets(posts)
    second = named(USERS_SCRIPT.replace("Users", "PostsV2").replace("PostsV2V2", "PostsV3"), "", "")
    project.script(
        second.replace("migration = ", f'__depends__ = {{"{SCRIPT}"}}\nmigration = '), "0002_again.py"
    )
    posts("apply", "0002")
    control = ControlStore(project.restricted, "0002_again")
    if phase is ControlPhase.CUTOVER:
        posts("apply", "0002", "--to", "cutover", "--writers-stopped")
    assert asyncio.run(control.read()).phase is phase  # type: ignore[union-attr]
    said = posts("erase", "0001", *by_old(subject(posts)), *WHY, WITH, code=3)
    assert "PostsV2 is the source of 0002_again" in said.err and "through the application" in said.err
    assert targets(posts) == before and tombstones(project) == {} and erasures(project) == []
    posts("apply", "0002", "--to", "complete", "--writers-stopped", "--yes", "0002_again")
    said = posts("erase", "0001", *by_old(subject(posts)), *WHY, WITH, "--json")
    assert said.json["target_rows"] == {"PostsByTag": 2, "PostsV2": 1}


def test_a_target_that_another_migration_has_retired_is_nobodys(posts: Commands) -> None:
    """A table that somebody made under its name since is neither counted nor touched."""
    project, keys = posts.project, theirs(posts)
    second = named(USERS_SCRIPT.replace("Users", "PostsV2").replace("PostsV2V2", "PostsV3"), "", "")
    second = second.replace("migration = ", f'__depends__ = {{"{SCRIPT}"}}\nmigration = ')
    project.script(second, "0002_again.py")
    posts("apply", "0002", "--to", "complete", "--writers-stopped", "--yes", "0002_again")
    project.clock.advance(60)
    with project.session() as session:
        prove(session.config, session.scripts["0002_again"], session.state)
    posts("retire", "0002", "--table", "PostsV2", "--no-backup", "a test")
    project.clock.advance(120)
    [main] = keys["PostsV2"]
    strangers = {"PartitionKey": main.partition, "RowKey": main.row}
    asyncio.run(project.fill("PostsV2", [strangers]))
    said = posts("erase", "0001", *by_old(subject(posts)), *WHY, WITH, "--json").json
    assert said["targets"] == said["target_rows"] == {"PostsByTag": 2}
    assert keys_in(project.rows("PostsV2")) == {main}


def test_what_another_migration_has_retired_a_part_of_is_still_there(posts: Commands) -> None:
    project, keys = posts.project, theirs(posts)
    [main] = keys["PostsV2"]
    second = named(USERS_SCRIPT.replace("Users", "PostsV2").replace("PostsV2V2", "PostsV3"), "", "")
    second = second.replace("migration = ", f'__depends__ = {{"{SCRIPT}"}}\nmigration = ')
    where = f"where=rows.none_of(rows.partition_key(equals={main.partition!r})), capture="
    project.script(second.replace("capture=", where).replace("props", "props, rows", 1), "0002_again.py")
    posts("apply", "0002", "--to", "complete", "--writers-stopped", "--yes", "0002_again")
    project.clock.advance(60)
    with project.session() as session:
        prove(session.config, session.scripts["0002_again"], session.state)
    posts("retire", "0002", "--table", "PostsV2", "--no-backup", "a test")
    said = posts("erase", "0001", *by_old(subject(posts)), *WHY, WITH, "--json").json
    assert said["targets"] == said["target_rows"] == {"PostsByTag": 2, "PostsV2": 1}
    assert main not in keys_in(project.rows("PostsV2"))


# --- the other capture ------------------------------------------------------------------------------------


def erase_with_targets(made: Company, row: Row) -> Done:
    with made.session() as session:
        request = Request([Query(old=key_of(row))], "old", "ticket", Scope(with_targets=True))
        return erase(session, made.script_id, request, refuse=lambda _keys: None)[1]


def test_with_clients_alive_what_was_erased_stays_erased(tmp_path: Path) -> None:
    """In capture "dual-write", after the handover: a client of the new view goes on, and the source follows
    nothing any more."""
    rows = [post("a", tags="x,y"), post("b", tags="x")]
    with company(tmp_path, POSTS_SCRIPT, rows) as made:
        client = made.client(View.NEW)
        made.apply()
        made.apply(Phase.CUTOVER)
        [main] = [row for row in made.project.rows("PostsV2") if row["RowKey"] == "a"]
        # A write after cutover: its index rows follow, under keys that the source never had.
        made.do(client.write(Operation(Verb.MERGE, {**_key(main), "Tags": "y,z"}, "*")))
        made.apply(Phase.COMPLETE)
        made.hand_over()
        done = erase_with_targets(made, rows[0])
        assert dict(done.target_rows) == {"PostsV2": 1, "PostsByTag": 2}
        made.do(client.write(Operation(Verb.MERGE, {**_key(main), "RowKey": "b", "Title": "on"}, "*")))
        made.live(60)
        made.apply()
        left = {
            name: {row["RowKey"] for row in made.project.rows(name)}
            for name in ("Posts", *made.mapper.tables)
        }
        assert left == {"Posts": {"b"}, "PostsV2": {"b"}, "PostsByTag": {"b"}}
        titles = {name: [row["Title"] for row in made.project.rows(name)] for name in ("Posts", "PostsV2")}
        assert titles["PostsV2"] == ["on"] != titles["Posts"]


def _key(row: Row) -> Row:
    return {"PartitionKey": row["PartitionKey"], "RowKey": row["RowKey"]}


@pytest.mark.parametrize(("script", "rows_of_one"), [(RACES, 2), (SECONDARY_SCRIPT, 4)], ids=["one", "three"])
def test_main_and_secondary_rows_go_in_one_transaction(tmp_path: Path, script: str, rows_of_one: int) -> None:
    """No look at any state of the table shows one of them without the others of its partition."""
    rows = [racer(f"{n:04}", 20 + n, Club="nyrr", Teams="red,blue") for n in range(5)]
    made = company(tmp_path, named(script, "Races", "RacesV2"), rows)
    project, seen = made.project, set[int]()

    async def look(_call: Call) -> None:
        at = [row for row in project.rows("RacesV2") if row["PartitionKey"] != "all"]
        seen.add(sum("0000" in row["RowKey"] for row in at))

    with made:
        made.client(View.NEW)
        for phase in (None, Phase.CUTOVER, Phase.COMPLETE):
            made.apply(phase)
        made.hand_over()
        project.tables.gate = project.restricted.gate = look
        erase_with_targets(made, rows[0])
        assert seen == {rows_of_one, 0}
        assert made.actual() == mapped(made.mapper, rows[1:])


def test_a_person_who_was_made_anew_is_left_alone(tmp_path: Path) -> None:
    """After an erasure the application writes the same key again: a row of its own, without a mapping."""
    with company(tmp_path, USERS_SCRIPT, [user("a@b.example")]) as made:
        client = made.client(View.NEW)
        for phase in (None, Phase.CUTOVER, Phase.COMPLETE):
            made.apply(phase)
        [row] = made.project.rows("UsersV2")
        assert dict(erase_with_targets(made, user("a@b.example")).target_rows) == {"UsersV2": 1}
        made.do(client.write(Operation(Verb.INSERT, {**_key(row), "Name": "anew"})))
        assert dict(erase_with_targets(made, user("a@b.example")).target_rows) == {}
        assert [one["Name"] for one in made.project.rows("UsersV2")] == ["anew"]
