"""What a completed migration knows of a subject is erased on request: recorded before and behind it, in an
order that survives being cut off anywhere, and told as erased from then on.

Soak: 2 of 4 kinds of migrations.
Reason, and what `make test` covers: sealed without an index, in the clear with one.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path

import pytest

from rekey.core.clock import TICKS_PER_SECOND
from rekey.errors import Erased, Refused
from rekey.mapping.rows import MAPPING_TABLE, TargetKey
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.control import ControlStore
from rekey.protocol.rules import View
from rekey.runner import commands
from rekey.runner.run import Run
from rekey.state.store import State
from rekey.tables.base import SIGNED_S, Operation, Verb
from tests.asserts.command_line import Commands
from tests.fakes.faults import Call, Fault, FaultKind, Planned, PlannedFaults
from tests.fakes.interference import before
from tests.fakes.memory import instant_gate
from tests.soaking import others_in_soak
from tests.worlds.company import company
from tests.worlds.erasure import (
    PLAIN_USERS,
    QUICK_SCRIPTS,
    SCRIPT,
    SCRIPTS,
    WHY,
    Lives,
    by_id,
    by_new,
    by_old,
    complete,
    erasures,
    mapping,
    put,
    rows_of,
    state_bytes,
    subject,
    tombstones,
)
from tests.worlds.evidence import prove
from tests.worlds.projects import USERS_SCRIPT
from tests.worlds.small import user


@pytest.fixture(params=others_in_soak(SCRIPTS.values(), kept=QUICK_SCRIPTS), ids=list(SCRIPTS))
def rekey(request: pytest.FixtureRequest, lives: Lives) -> Commands:
    return lives.completed(request.param)


@pytest.fixture
def users(lives: Lives) -> Commands:
    return lives.completed(USERS_SCRIPT)


def erase(rekey: Commands, *named: str, code: int = 0) -> dict[str, object]:
    found: dict[str, object] = json.loads(rekey("erase", *named, *WHY, "--json", code=code).out)
    return found


@pytest.mark.parametrize("way", ["old", "new", "id"])
def test_a_subject_is_erased_whichever_way_it_is_named_and_nobody_else(rekey: Commands, way: str) -> None:
    project, row = rekey.project, subject(rekey)
    source = project.scripts[SCRIPT].migration.source
    before, targets = (
        mapping(project),
        {name: project.rows(name) for name in project.scripts[SCRIPT].migration.tables},
    )
    named = {"old": by_old(row), "new": by_new(rekey, row), "id": by_id(rekey, row)}
    said = erase(rekey, *named[way])
    assert (said["forward_rows"], said["reverse_rows"], said["source_rows"]) == (1, 1, 1)
    left = tombstones(project)
    assert len(left) == 2
    for key, stone in left.items():
        assert set(stone) <= {"PartitionKey", "RowKey", "ErasedOn", "Proof", "Proof@odata.type"}, key
        assert stone["ErasedOn"] == "2024-01-01"
    after = mapping(project)
    assert after.keys() == before.keys()
    others = before.keys() - left.keys()
    assert others and {key: after[key] for key in others} == {key: before[key] for key in others}
    assert key_of(row) not in map(key_of, project.rows(source))
    assert len(project.rows(source)) == 11
    assert {name: project.rows(name) for name in targets} == targets, "target rows are the application's"


def test_afterwards_every_look_up_says_when_it_was_erased(rekey: Commands) -> None:
    row = subject(rekey)
    ways = (by_old(row), by_new(rekey, row), by_id(rekey, row))
    erase(rekey, *ways[0])
    for named in ways:
        said = rekey("lookup", *named, *WHY, code=1)
        assert "was erased on 2024-01-01" in said.err
        assert "Traceback" not in said.all and "cannot be opened" not in said.all
        document = rekey("lookup", *named, *WHY, "--json", code=1).json
        assert document["erased_on"] == "2024-01-01"
        assert document["erased"][0]["returned"] is False


def test_a_look_up_of_many_tells_the_erased_from_the_others(users: Commands) -> None:
    erase(users, *by_old(subject(users)))
    asked = users.project.folder / "asked.csv"
    asked.write_text(
        "old_partition_key,old_row_key\npart0,somebody00@mail.example\npart1,somebody01@mail.example\n"
        "part1,nobody\n",
        "utf-8",
    )
    out = users.project.folder / "answers.jsonl"
    document = users("lookup", "--bulk", str(asked), "--out", str(out), *WHY, "--json", code=1).json
    assert (document["found"], document["unknown"], len(document["erased"])) == (1, 1, 1)
    lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [set(line) for line in lines] == [{"row_id", "old", "new"}, {"row_id", "erased_on", "returned"}]


def test_it_is_on_record_before_anything_is_deleted_and_once_more_after_it(rekey: Commands) -> None:
    project, row = rekey.project, subject(rekey)
    seen: list[int] = []

    async def watch(call: Call) -> None:
        if call.action in ("delete", "replace") and call.table in ("Users", "Posts", MAPPING_TABLE):
            seen.append(len(erasures(project)))

    project.tables.gate = project.restricted.gate = watch
    row_id = by_id(rekey, row)[1]
    assert f"by safe id: {row_id}" in rekey("erase", *by_old(row), *WHY).out
    assert seen == [1, 1, 1], "source row, reverse row, forward row"
    first, second = erasures(project)
    assert (first.event, second.event) == ("erasure-begun", "erasure-ended")
    assert first.details["rows"] == second.details["rows"] == [row_id]
    assert first.details["reason"] == "ticket 4711"
    assert second.details["begun"] == first.seq
    assert (second.details["forward_rows"], second.details["reverse_rows"]) == (1, 1)
    for event in (first, second):
        assert "somebody" not in str(event)


def test_nothing_is_erased_without_a_record(users: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    from rekey.errors import MachineFailed

    before = mapping(users.project), users.project.rows("Users")

    def full(*_: object, **__: object) -> None:
        raise MachineFailed("the disk is full", hint="free space")

    monkeypatch.setattr(State, "audit", full)
    users("erase", *by_old(subject(users)), *WHY, code=4)
    assert (mapping(users.project), users.project.rows("Users")) == before


def test_a_source_row_that_changed_is_left_and_nothing_else_of_it_is_erased(rekey: Commands) -> None:
    """Somebody wrote it after the application was moved: his write is not lost with it."""
    project, row = rekey.project, subject(rekey)
    source = project.scripts[SCRIPT].migration.source
    asyncio.run(project.tables.table(source).merge({**row, "Nm": "later"}))
    before = mapping(project), project.rows(source)
    row_id = by_id(rekey, row)[1]
    said = rekey("erase", *by_old(row), *WHY, code=1)
    assert "were not deleted, and nothing else of them was erased" in said.err
    assert row_id in said.err and "somebody" not in said.all
    assert (mapping(project), project.rows(source)) == before
    assert erasures(project)[-1].details["changed"] == [row_id]
    asyncio.run(project.tables.table(source).delete(key_of(row)))
    assert erase(rekey, *by_old(row))["source_rows_gone"] == 1
    assert len(tombstones(project)) == 2


def test_a_source_row_that_changes_between_look_and_deletion_is_left(users: Commands) -> None:
    project, row = users.project, subject(users)
    source = project.tables.table("Users")
    before(project.tables, "delete", "Users", lambda: source.merge({**row, "Nm": "later"}))
    assert erase(users, *by_old(row), code=1)["changed"] != []
    assert tombstones(project) == {}
    assert any(one["Nm"] == "later" for one in project.rows("Users"))


def test_erasure_works_without_its_state_file(rekey: Commands, request: pytest.FixtureRequest) -> None:
    """The tombstones are the truth; what is lost with the file is what rows put back are held against."""
    project, row = rekey.project, subject(rekey)
    erase(rekey, *by_old(row))
    for path in project.folder.glob("state.sqlite*"):
        path.unlink()
    sealed = "sealed" in request.node.name
    said = rekey("lookup", *by_old(row), *WHY, code=None).err
    assert ("does not know the run" if sealed else "was erased on") in said
    other = rows_of((project.folder / "migrations" / f"{SCRIPT}.py").read_text("utf-8"))[1]
    assert erase(rekey, *by_old(other))["forward_rows"] == 1
    assert len(tombstones(project)) == 4


def test_what_is_erased_twice_stays_as_it_is(rekey: Commands) -> None:
    row = subject(rekey)
    erase(rekey, *by_old(row))
    before = tombstones(rekey.project)
    rekey.project.clock.advance(5 * 86400)
    said = erase(rekey, *by_old(row))
    assert (said["forward_rows"], said["reverse_rows"], said["source_rows"]) == (0, 0, 0)
    assert said["erased_before"] == [{"row_id": by_id_of(said), "erased_on": "2024-01-01"}]
    assert tombstones(rekey.project) == before


def by_id_of(said: dict[str, object]) -> object:
    [row_id] = said["rows"]  # type: ignore[misc]
    return row_id


def test_before_complete_it_is_refused_with_what_to_do_instead(lives: Lives) -> None:
    rekey = lives.begun(USERS_SCRIPT)
    for step in ((), ("--to", "cutover", "--writers-stopped")):
        if step:
            rekey("apply", *step)
        before = mapping(rekey.project)
        said = rekey("erase", *by_old(subject(rekey)), *WHY, code=3)
        assert "is not complete" in said.err and "through the application" in said.err
        assert mapping(rekey.project) == before
    assert erasures(rekey.project) == []


def test_after_the_source_is_retired_its_name_is_nobodys(rekey: Commands) -> None:
    """A table that somebody made under the old name since is not looked at."""
    project, row = rekey.project, subject(rekey)
    source = project.scripts[SCRIPT].migration.source
    with project.session() as session:
        prove(session.config, session.scripts[SCRIPT], session.state)
    rekey("retire", "--table", source, "--no-backup", "a test")
    project.clock.advance(120)
    asyncio.run(project.fill(source, [row]))
    said = erase(rekey, *by_old(row))
    assert (said["forward_rows"], said["source_rows"], said["source_rows_gone"]) == (1, 0, 1)
    assert len(project.rows(source)) == 1


def test_a_reverse_row_that_no_forward_row_lists_is_searched_for(rekey: Commands) -> None:
    """A run that was cut off between the two can leave one behind; it names the subject as well."""
    project, row = rekey.project, subject(rekey)

    async def orphan() -> None:
        store = await project.mapping(SCRIPT)
        await store.take(key_of(row), TargetKey(0, "left", "behind"), None)

    asyncio.run(orphan())
    assert erase(rekey, *by_old(row), "--listed-only")["reverse_rows"] == 1
    assert erase(rekey, *by_old(row))["reverse_rows"] == 1
    assert len(tombstones(project, "r.")) == 2


def test_a_target_key_that_passed_to_somebody_else_stays_his(rekey: Commands) -> None:
    project, row = rekey.project, subject(rekey)
    other = EntityKey("some", "body else")

    async def pass_over() -> EntityKey:
        store = await project.mapping(SCRIPT)
        forward = await store.forward(key_of(row))
        [main] = [one for one in forward.targets if one.table == 0]
        await store.fresh()
        made = store.rows.reverse_row(other, main.key)
        await store.table.upsert(made)
        return key_of(made)

    at = asyncio.run(pass_over())
    assert erase(rekey, *by_old(row))["reverse_rows"] == 0
    assert at not in tombstones(project)


def test_a_mapping_row_that_passes_to_somebody_else_meanwhile_stays_his(users: Commands) -> None:
    """Between the look at it and the tombstone: the tombstone is written on the row that was read, or not."""
    project, row = users.project, subject(users)
    passed: list[EntityKey] = []

    async def pass_over(call: Call) -> None:
        if call.action == "replace" and ".r." in call.operations[0].row["PartitionKey"]:
            project.restricted.gate = instant_gate
            store = await project.mapping(SCRIPT)
            forward = await store.forward(key_of(row))
            [main] = forward.targets
            await store.fresh()
            made = store.rows.reverse_row(EntityKey("some", "body else"), main.key)
            await store.table.upsert(made)
            passed.append(key_of(made))

    project.restricted.gate = pass_over
    said = erase(users, *by_old(row))
    assert (said["forward_rows"], said["reverse_rows"]) == (1, 0)
    assert passed and passed[0] not in tombstones(project)


@pytest.mark.parametrize("kind", [FaultKind.LOST_ANSWER, FaultKind.LOST_REQUEST])
def test_a_tombstone_whose_answer_was_lost_is_looked_for(users: Commands, kind: FaultKind) -> None:
    faults = PlannedFaults(Planned(Fault(kind), action="replace", table=MAPPING_TABLE))
    users.project.restricted.faults = faults
    erase(users, *by_old(subject(users)))
    assert len(tombstones(users.project)) == 2


def test_many_are_erased_from_a_file(users: Commands) -> None:
    asked = users.project.folder / "asked.csv"
    lines = [f"part{number % 3},somebody{number:02}@mail.example" for number in range(5)]
    asked.write_text("\n".join(["old_partition_key,old_row_key", *lines, "part0,nobody"]) + "\n", "utf-8")
    said = erase(users, "--bulk", str(asked), code=1)
    assert (said["forward_rows"], said["reverse_rows"], said["source_rows"]) == (5, 5, 5)
    assert said["unknown"] == 1
    first, second = erasures(users.project)
    assert len(first.details["rows"]) == len(second.details["rows"]) == 5
    assert len(first.details["unknown"]) == 1


def test_who_is_not_known_is_told_and_that_he_was_asked_for_is_on_record(users: Commands) -> None:
    said = users("erase", "--old", "part0", "nobody@mail.example", *WHY, code=1)
    assert "has no such row" in said.err and "nobody@" not in said.all
    assert "Kept: everything as it was" in said.err
    first, second = erasures(users.project)
    assert first.details["rows"] == [] and len(first.details["unknown"]) == 1
    assert second.details["forward_rows"] == 0


def test_a_reason_that_tells_whose_row_it_is_is_refused(users: Commands) -> None:
    of_subject = "somebody00@mail.example asked", "it is part0, RK SOMEBODY00@MAIL.EXAMPLE"
    for reason in (*of_subject, "another@mail.example", " "):
        users("erase", *by_old(subject(users)), "--reason", reason, code=2)
    assert erasures(users.project) == [] and tombstones(users.project) == {}


def test_a_reason_must_not_hold_the_new_key_either(users: Commands) -> None:
    """It is known only once the row is opened; nothing is recorded or deleted before that is looked at."""
    row = subject(users)
    new = by_new(users, row)
    users("erase", *by_old(row), "--reason", f"it is {new[2]}", code=2)
    assert erasures(users.project) == [] and tombstones(users.project) == {}


def test_options_that_do_not_belong_together_are_refused(users: Commands) -> None:
    for words in (
        ("erase",),
        ("erase", "--old", "a", "b"),
        ("erase", "--old", "a", "b", "--id", "c", *WHY),
        ("erase", "--listed-only", *WHY),
        ("expire", "--cohort", "2024-01", "--confirm", "0001_users"),
        ("expire", "--reason", "so"),
        ("expire", "--cohort", "2024-01", "--reason", " "),
        ("retire", "--table", "Users", "--no-backup", "a test", "--reason", "somebody@mail.example"),
        ("retire", "--old", "a", "b"),
    ):
        users(*words, code=2)
    assert tombstones(users.project) == {} and len(users.project.rows("Users")) == 12


def test_old_spellings_do_nothing_and_name_the_new_command(users: Commands) -> None:
    """Without the keys and the reason that were typed, which no message repeats."""
    for words, instead in (
        ("0001 --subject --old part0 so@mail.example --reason so", "erase 0001 --old PK RK --reason TEXT"),
        ("--subject --id 3m9k2v7c --reason=so --json", "erase --id 3m9k2v7c --reason TEXT --json"),
        ("--subject --bulk 'a file.csv' 0001", "erase --bulk 'a file.csv' 0001"),
        ("0001 --expired --confirm 0001_users", "expire 0001 --confirm 0001_users"),
        ("0001 --cohort 2024-01 --reason so", "expire 0001 --cohort 2024-01 --reason TEXT"),
        ("0001 --cohort=2024-01 --json", "expire 0001 --cohort 2024-01 --json"),
    ):
        said = users("retire", *shlex.split(words), code=2)
        assert f"type: rekey {instead}" in (said.json["what"] if said.out else said.err)
        assert "mail.example" not in said.all and " so" not in said.all
    assert tombstones(users.project) == {} and erasures(users.project) == []
    assert len(users.project.rows("Users")) == 12


# --- what was put back, or put in -------------------------------------------------------------------------


def test_an_old_row_put_back_over_a_tombstone_is_told_and_not_shown(rekey: Commands) -> None:
    """The audit log says that it was erased; erased again, it is gone again."""
    project, row = rekey.project, subject(rekey)
    before = mapping(project)
    ways = (by_old(row), by_new(rekey, row), by_id(rekey, row))
    erase(rekey, *ways[0])
    for key in tombstones(project):
        put(project, before[key])
    for named in ways:
        said = rekey("lookup", *named, *WHY, code=1)
        assert "was erased on 2024-01-01, and stands there again" in said.err
        assert said.out == ""
        assert rekey("lookup", *named, *WHY, "--json", code=1).json["erased"][0]["returned"] is True
    assert erase(rekey, *ways[0])["forward_rows"] == 1
    assert "stands there again" not in rekey("lookup", *ways[0], *WHY, code=1).err


def test_a_reverse_row_alone_put_back_leads_to_the_forward_tombstone(rekey: Commands) -> None:
    project, row = rekey.project, subject(rekey)
    before = mapping(project)
    new = by_new(rekey, row)
    erase(rekey, *by_old(row))
    for key in tombstones(project, "r."):
        put(project, before[key])
    said = rekey("lookup", *new, *WHY, code=1)
    assert "was erased on" in said.err and row["RowKey"] not in said.all


@pytest.mark.parametrize("how", ["moved", "redated", "without proof"])
def test_a_forged_tombstone_of_a_sealed_mapping_is_found(users: Commands, how: str) -> None:
    project = users.project
    erase(users, *by_old(subject(users)))
    [(at, stone)] = tombstones(project, "f.").items()
    victim = next(key for key in mapping(project, "f.") if key != at)
    match how:
        case "moved":
            forged = {**stone, "PartitionKey": victim.partition, "RowKey": victim.row}
        case "redated":
            victim, forged = at, {**stone, "ErasedOn": "2023-12-24"}
        case _:
            forged = {"PartitionKey": victim.partition, "RowKey": victim.row, "ErasedOn": "2024-01-01"}
    put(project, forged)
    said = users("lookup", "--id", victim.row[:12], *WHY, code=1)
    assert "it says that it was erased, and that is not by rekey" in said.err


# --- who else reads the mapping ---------------------------------------------------------------------------


def test_a_client_after_complete_writes_the_target_alone_and_a_tombstone_stays(tmp_path: Path) -> None:
    """Who is in the new view inserts the same person anew: a row of the application, without a mapping."""
    with company(tmp_path, USERS_SCRIPT, [user("a@b.example"), user("c@d.example")]) as made:
        client = made.client(View.NEW)
        made.apply()
        made.apply(Phase.CUTOVER)
        made.apply(Phase.COMPLETE)
        made.live(5)
        erase_in(made, user("a@b.example"))
        stones = erased_rows(made)
        assert len(stones) == 2
        [row] = [one for one in made.project.rows("UsersV2") if one["ContactEmail"] == "a@b.example"]
        key = key_of(row)
        made.do(client.write(Operation(Verb.DELETE, {"PartitionKey": key.partition, "RowKey": key.row}, "*")))
        again = {"PartitionKey": key.partition, "RowKey": key.row, "ContactEmail": "a@b.example"}
        made.do(client.write(Operation(Verb.INSERT, again)))
        assert erased_rows(made) == stones
        assert made.intents == []
        assert len(made.project.rows("Users")) == 1, "the source is not written any more"


def erase_in(made: object, row: Row) -> None:
    from rekey.mapping.lookup import Query
    from rekey.runner.erase.erasure import Request
    from rekey.runner.erase.erasure import erase as run_erase

    with made.session() as session:  # type: ignore[attr-defined]
        run_erase(
            session,
            made.script_id,  # type: ignore[attr-defined]
            Request([Query(old=key_of(row))], "old", "ticket"),
            refuse=lambda _keys: None,
        )


def erased_rows(made: object) -> dict[EntityKey, Row]:
    rows = made.project.restricted.dump(MAPPING_TABLE)  # type: ignore[attr-defined]
    return {key_of(row): row for row in rows if "ErasedOn" in row}


def test_a_client_that_has_not_acknowledged_complete_is_waited_for(tmp_path: Path) -> None:
    """A run that was cut off can leave one: until it is over it may write by the rules of before."""
    with company(tmp_path, USERS_SCRIPT, [user("a@b.example")]) as made:
        client = made.client(View.NEW)
        made.apply()
        made.apply(Phase.CUTOVER)
        made.do(client.die())
        made.do(
            ControlStore(made.project.restricted, made.script_id).move(
                ControlPhase.CUTOVER, ControlPhase.COMPLETE
            )
        )
        before = made.project.clock.ticks()
        with pytest.raises(Refused, match="may reach the mapping until"):
            erase_in(made, user("a@b.example"))
        waited = (made.project.clock.ticks() - before) / TICKS_PER_SECOND
        assert waited > client.lease.settings.longest_operation_s
        made.live(SIGNED_S)  # until the service refuses what it had signed
        erase_in(made, user("a@b.example"))
        assert len(erased_rows(made)) == 2


def test_while_the_journal_holds_intents_nothing_is_erased(tmp_path: Path) -> None:
    """Settling one would read the mapping, and write where it leads."""
    with company(tmp_path, USERS_SCRIPT, [user("a@b.example")]) as made:
        made.client(View.NEW)
        made.apply()
        made.apply(Phase.CUTOVER)
        made.apply(Phase.COMPLETE)

        async def left_behind() -> None:
            journal = await made.project.journal(made.script_id)
            await journal.begin("0dead", 2, "source", [EntityKey("eu", "a@b.example")])

        made.do(left_behind())
        with pytest.raises(Exception, match="holds intents"):
            erase_in(made, user("a@b.example"))
        assert erased_rows(made) == {}


@pytest.mark.parametrize("script", [USERS_SCRIPT, PLAIN_USERS], ids=["sealed", "plain"])
def test_nothing_is_claimed_or_written_in_the_place_of_a_tombstone(script: str, lives: Lives) -> None:
    """Nobody goes through the mapping behind `complete`. Who does all the same is refused: an erased row is
    neither taken for one that was never copied, nor brought back."""
    rekey = lives.completed(script)
    project, row = rekey.project, subject(rekey)
    erase(rekey, *by_old(row))
    stones, targets = tombstones(project), project.rows("UsersV2")
    asyncio.run(project.tables.table("Users").insert(row))

    async def each(run: Run) -> None:
        with pytest.raises(Erased):
            await run.propagator.propagate(key_of(row))
        with pytest.raises(Erased):
            await run.reverse.propagate(key_of(row))
        with pytest.raises(Erased):
            await run.mapping.forward(key_of(row))
        assert await run.mapping.extend(key_of(row), None, ()) is None
        [main] = [one for one in targets if one["ContactEmail"] == row["RowKey"]]
        with pytest.raises(Erased):
            await run.mapping.owner(key_of(main))
        assert await run.mapping.take(key_of(row), TargetKey(0, *key_of(main)), None) is None
        assert await run.mapping.owns(0, main), "the row of the target is this migration's, all the same"

    with project.session() as session:
        session.do(each(session.begin(SCRIPT)))
    assert tombstones(project) == stones
    assert project.rows("UsersV2") == targets
    with project.session() as session:
        commands.apply(session, SCRIPT)
    assert tombstones(project) == stones


# --- the state file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [PLAIN_USERS, USERS_SCRIPT], ids=["plain", "sealed"])
def test_from_complete_on_no_key_is_in_the_state_file(script: str, lives: Lives) -> None:
    """Not in a segment, not in a free page, not in the log beside it. Counts stay."""
    rekey = lives.begun(script)
    if script == PLAIN_USERS:
        assert b"@mail.example" in state_bytes(rekey.project), "where a scan resumes"
    complete(rekey)
    assert b"@mail.example" not in state_bytes(rekey.project)
    assert b"sealed:" not in state_bytes(rekey.project)
    with State.open(rekey.project.config.state, read_only=True) as state:
        assert sum(one.rows for one in state.segments(SCRIPT, "backfill")) == 12
