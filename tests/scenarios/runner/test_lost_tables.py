"""Tables that somebody deletes, or deletes and makes again: `status` says so, no gate vouches for what is not
there, and nothing deletes the last copy of rows without a reason that is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rekey.core import concurrency
from rekey.errors import GateClosed, Refused
from rekey.mapping.rows import JOURNAL_TABLE, MAPPING_TABLE
from rekey.model import EntityKey, Row, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.runner import commands, remaining
from rekey.runner.commands import Mode
from rekey.runner.phases import backfill
from rekey.runner.run import Options, Run
from rekey.state.store import State
from rekey.tables.base import Operation, Verb
from tests.asserts.command_line import Commands
from tests.worlds.company import Client, Company, company, company_at
from tests.worlds.erasure import PLAIN_USERS, SCRIPT, Lives, begin, complete, rows_of
from tests.worlds.evidence import prove
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT, Project
from tests.worlds.small import post, user

DROP = ("rollback", SCRIPT, "--to", "source", "--drop-targets")
ROWS = 30


@pytest.fixture
def users(lives: Lives) -> Commands:
    """A migration of capture "delta" before the gate of cutover, of more than a few rows."""

    def live(rekey: Commands, script: str) -> None:
        begin(rekey, script)
        more = [user(f"another{number:02}@mail.example", f"part{number % 3}") for number in range(ROWS - 12)]
        asyncio.run(rekey.project.fill("Users", more))
        rekey("apply")

    return lives.lived((__name__, USERS_SCRIPT), live)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Company]:
    """A migration of capture "dual-write" before the gate of cutover, with a client of each view."""
    rows = [user(f"user{number:02}@example.com") for number in range(ROWS)]
    with company_at(tmp_path, USERS_SCRIPT, rows, Phase.BACKFILL) as made:
        made.client(View.OLD)
        made.client(View.NEW)
        made.apply()
        yield made


def delete(project: Project, table: str) -> None:
    assert asyncio.run(project.tables.delete_table(table))


def delete_rows(project: Project, table: str, rows: Iterable[Row]) -> None:
    for row in rows:
        asyncio.run(project.tables.table(table).delete(key_of(row)))


def make_again(project: Project, table: str) -> None:
    delete(project, table)
    project.clock.advance(120)
    asyncio.run(project.tables.create_table(table))


def prove_all(project: Project) -> None:
    with project.session() as session:
        prove(session.config, session.scripts[SCRIPT], session.state)


def events(project: Project, name: str) -> list[dict[str, object]]:
    with State.open(project.config.state, read_only=True) as state:
        return [dict(one.details) for one in state.audit_events(SCRIPT, event=name)]


# --- status and gates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["Users", "UsersV2", MAPPING_TABLE])
def test_status_is_unsafe_when_a_table_is_gone(users: Commands, table: str) -> None:
    assert users("status", "--json").json["migrations"][0]["safe"]
    service = users.project.restricted if table == MAPPING_TABLE else users.project.tables
    asyncio.run(service.delete_table(table))
    told = users("status")
    assert "ATTENTION" in told.out and f"{table} does not exist" in " ".join(told.out.split())
    [document] = users("status", "--json").json["migrations"]
    assert not document["safe"]
    assert document["missing"] == [table]


def test_status_after_cutover_looks_at_both_sides_and_after_complete_at_the_target(users: Commands) -> None:
    users("apply", "--to", "cutover", "--writers-stopped")
    delete(users.project, "Users")
    assert "Users does not exist" in users("status").out
    users.project.clock.advance(120)
    asyncio.run(users.project.fill("Users", rows_of(USERS_SCRIPT)))
    users("apply", "--to", "complete", "--yes", SCRIPT)
    delete(users.project, "Users")
    assert users("status", "--json").json["migrations"][0]["safe"], "it was to be deleted"
    delete(users.project, "UsersV2")
    assert "drop nothing" in " ".join(users("status").out.split())


def test_status_of_a_migration_under_writes_needs_its_index_tables_and_its_journal(tmp_path: Path) -> None:
    with company(tmp_path, POSTS_SCRIPT, [post("a", tags="x,y")]) as made:
        made.apply()
        made.do(made.project.tables.delete_table("PostsByTag"))
        made.do(made.project.restricted.delete_table(JOURNAL_TABLE))
        found = made.status()
        assert found.facts.store.missing == ("PostsByTag", JOURNAL_TABLE)
        assert not found.verdict.safe


@pytest.mark.parametrize("lose", [delete, make_again], ids=["deleted", "made again"])
def test_cutover_refuses_a_lost_or_empty_target(made: Company, lose: Callable[[Project, str], None]) -> None:
    """After a clean verification: nothing is compared in the freeze of capture "dual-write"."""
    lose_with(made, lose, "UsersV2")
    with pytest.raises(GateClosed, match=r"UsersV2 (does not exist|is empty)"):
        made.apply(Phase.CUTOVER)
    assert made.phase is ControlPhase.DUAL_WRITE


@pytest.mark.parametrize("table", ["Posts", "PostsByTag"])
def test_cutover_refuses_when_source_or_index_is_gone(tmp_path: Path, table: str) -> None:
    with company(tmp_path, POSTS_SCRIPT, [post("a", tags="x,y")]) as made:
        made.client(View.OLD)
        made.apply()
        lose_with(made, delete, table)
        with pytest.raises(GateClosed, match=f"the table {table} does not exist"):
            made.apply(Phase.CUTOVER)


def test_cutover_takes_an_empty_target_of_a_few_new_rows(lives: Lives) -> None:
    """They were inserted after the verification, and the freeze brings them."""
    rekey = lives.begun(USERS_SCRIPT)
    rows = rekey.project.rows("Users")
    delete_rows(rekey.project, "Users", rows)
    rekey("apply")
    asyncio.run(rekey.project.tables.table("Users").insert(user("new@mail.example", "part1")))
    rekey("apply", "--to", "cutover", "--writers-stopped")
    assert len(rekey.project.rows("UsersV2")) == 1


@pytest.mark.parametrize("lose", [delete, make_again], ids=["deleted", "made again"])
def test_complete_refuses_a_lost_target(users: Commands, lose: Callable[[Project, str], None]) -> None:
    """From there on the source would be no way back any more."""
    users("apply", "--to", "cutover", "--writers-stopped")
    lose(users.project, "UsersV2")
    refused = users("apply", "--to", "complete", "--yes", SCRIPT, code=3)
    assert "UsersV2 does not exist" in refused.err or "UsersV2 is empty" in refused.err


def lose_with(made: Company, lose: Callable[[Project, str], None], table: str) -> None:
    """Lose a table in the loop of the application."""

    async def losing() -> None:
        await made.project.tables.delete_table(table)
        if lose is make_again:
            made.project.clock.advance(120)
            await made.project.tables.create_table(table)

    made.do(losing())


# --- dropping targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lose", [delete, make_again], ids=["deleted", "made again"])
def test_the_last_copy_is_not_dropped(users: Commands, lose: Callable[[Project, str], None]) -> None:
    before = users.project.rows("UsersV2")
    lose(users.project, "Users")
    refused = users(*DROP, code=3)
    if lose is delete:
        assert f"the source table Users of {SCRIPT} does not exist: dropping UsersV2" in refused.err
    else:
        assert f"{ROWS} rows of UsersV2 have no row in Users (" in refused.err
    assert "lost-table" in refused.err and "--reason" in refused.err
    assert users.project.rows("UsersV2") == before
    assert users("status", "--json").json["migrations"][0]["control"]["phase"] == "dual_write"


def test_targets_survive_a_source_lost_after_proof(users: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for clients and for requests in flight between the proof and the drop."""

    async def proved(run: Run) -> None:
        await remaining.require_droppable(run)
        await run.tables.delete_table("Users")

    before = users.project.rows("UsersV2")
    monkeypatch.setattr(commands, "require_droppable", proved)
    assert "the source table Users" in users(*DROP, code=3).err
    assert users.project.rows("UsersV2") == before


def test_the_last_copy_is_dropped_for_a_recorded_reason(users: Commands) -> None:
    delete(users.project, "Users")
    users(*DROP, "--reason", "ticket 4711")
    assert not asyncio.run(users.project.tables.table_exists("UsersV2"))
    [event] = events(users.project, "drop-proved")
    assert event["reason"] == "ticket 4711"
    assert event["source"] == "does not exist"


def test_rows_only_in_the_target_are_counted(users: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = users.project.rows("Users")[:2]
    delete_rows(users.project, "Users", (first, second))
    refused = users(*DROP, code=3)
    assert "2 rows of UsersV2 have no row in Users" in refused.err
    monkeypatch.setattr(remaining, "LISTED", 1)
    assert "1 rows or more of UsersV2 have no row" in users(*DROP, code=3).err
    users("apply")  # takes out what the application deleted
    users(*DROP)
    assert events(users.project, "drop-proved")[-1]["only_in_target"] == 0


def test_rows_only_in_the_target_are_dropped_for_a_recorded_reason(users: Commands) -> None:
    asyncio.run(users.project.tables.table("Users").delete(key_of(users.project.rows("Users")[0])))
    users(*DROP, "--reason", "ticket 4711")
    [event] = events(users.project, "drop-proved")
    assert (event["reason"], event["only_in_target"]) == ("ticket 4711", 1)


def test_an_index_that_holds_the_last_copy_is_not_dropped(lives: Lives) -> None:
    rekey = lives.begun(POSTS_SCRIPT)
    rekey("apply")
    for table in ("Posts", "PostsV2"):
        delete(rekey.project, table)
    before = rekey.project.rows("PostsByTag")
    assert "the source table Posts" in rekey(*DROP, code=3).err
    assert rekey.project.rows("PostsByTag") == before


def test_targets_without_a_row_are_dropped_whatever_became_of_the_source(users: Commands) -> None:
    make_again(users.project, "UsersV2")
    delete(users.project, "Users")
    users(*DROP)


def test_a_row_that_has_no_target_row_is_no_obstacle(lives: Lives) -> None:
    rekey = lives.begun(POSTS_SCRIPT)
    rekey("apply")
    monthless = {name: value for name, value in post("new").items() if name != "Month"}
    asyncio.run(rekey.project.tables.table("Posts").insert(monthless))
    rekey(*DROP)
    assert events(rekey.project, "drop-proved")[-1]["only_in_target"] == 0


def test_a_row_being_deleted_is_no_lost_row(made: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone from the source, and from the target a second later: it is read again before it counts."""
    [gone, *_] = made.project.rows("Users")
    target = made.mapper.map(gone)[0].row
    calls = list[int]()

    async def for_each(rows: Sequence[EntityKey], work: Any, *, limit: int) -> None:
        await concurrency.for_each(rows, work, limit=limit)
        calls.append(len(rows))
        if len(calls) == 1:
            await made.project.tables.table("UsersV2").delete(key_of(target))

    made.do(made.project.tables.table("Users").delete(key_of(gone)))
    monkeypatch.setattr(remaining, "for_each", for_each)
    assert made.rollback(ControlPhase.SOURCE, drop=True)
    assert calls[:2] == [1, 1]


def test_targets_that_are_gone_are_no_obstacle(users: Commands) -> None:
    """The way out when a target was deleted: back to the beginning, and copy again."""
    delete(users.project, "UsersV2")
    users(*DROP)
    users.project.clock.advance(120)
    users("apply")
    assert len(users.project.rows("UsersV2")) == ROWS


def test_a_copy_that_was_cut_off_can_be_dropped(lives: Lives) -> None:
    """Rows that are not copied yet are no rows that would be lost."""
    rekey = lives.begun(USERS_SCRIPT)
    delete_rows(rekey.project, "UsersV2", rekey.project.rows("UsersV2")[:5])
    rekey(*DROP)


def test_a_write_in_flight_is_no_lost_row(made: Company) -> None:
    """A client has deleted a row in the source, and its replica a moment later."""
    client = made.clients[0]
    [row, *_] = made.project.rows("Users")
    made.do(
        client.write(Operation(Verb.DELETE, {name: row[name] for name in ("PartitionKey", "RowKey")}, "*"))
    )
    assert made.rollback(ControlPhase.SOURCE, drop=True)


def test_from_cutover_it_is_proved_of_what_was_copied_back(users: Commands) -> None:
    """One command goes all the way: first rows come back, then the proof, then the targets go."""
    users("apply", "--to", "cutover", "--writers-stopped")
    new = {**users.project.rows("UsersV2")[0], "Name": "changed after cutover"}
    content = {name: value for name, value in new.items() if not name.startswith("odata.")}
    asyncio.run(users.project.tables.table("UsersV2").replace(content))
    users(*DROP, "--writers-stopped")
    assert len(users.project.rows("Users")) == ROWS
    assert "changed after cutover" in {row.get("Name", row.get("Nm")) for row in users.project.rows("Users")}
    assert events(users.project, "drop-proved")[-1]["only_in_target"] == 0


def test_rows_are_compared_without_the_mapping(lives: Lives) -> None:
    """Which says of what row each target row is; here it is gone."""
    rekey = lives.begun(PLAIN_USERS)
    rekey("apply")
    asyncio.run(rekey.project.tables.table("Users").delete(key_of(rekey.project.rows("Users")[0])))
    asyncio.run(rekey.project.restricted.delete_table(MAPPING_TABLE))
    assert "1 row of UsersV2" in rekey(*DROP, code=3).err


# --- authority that moves back -----------------------------------------------------------------------------


@pytest.mark.parametrize("lose", [delete, make_again], ids=["deleted", "made again"])
def test_authority_stays_if_the_source_is_lost(made: Company, lose: Callable[[Project, str], None]) -> None:
    made.apply(Phase.CUTOVER)
    before = made.project.rows("UsersV2")
    lose_with(made, lose, "Users")
    with pytest.raises(GateClosed, match=r"Users does not exist|have no row in Users"):
        made.rollback(ControlPhase.SOURCE, drop=True)
    assert made.phase is ControlPhase.CUTOVER
    assert made.project.rows("UsersV2") == before
    if lose is make_again:  # as the answer says: repair fills it from the target
        made.verify(repair=True)
        assert made.verify().differences.stable == 0
        made.rollback()
        made.assert_in_step()


def test_authority_moves_back_from_a_target_that_is_gone(made: Company) -> None:
    """The source is current: that is the way out."""
    made.apply(Phase.CUTOVER)
    before = made.project.rows("Users")
    lose_with(made, delete, "UsersV2")
    made.rollback(ControlPhase.SOURCE, drop=True)
    assert made.project.rows("Users") == before


@pytest.mark.parametrize("lose", [delete, make_again], ids=["deleted", "made again"])
def test_copying_back_from_nothing_is_safe(users: Commands, lose: Callable[[Project, str], None]) -> None:
    users("apply", "--to", "cutover", "--writers-stopped")
    before = users.project.rows("Users")
    lose(users.project, "UsersV2")
    users("rollback", "--writers-stopped", code=None)
    assert users.project.rows("Users") == before
    assert users("status", "--json").json["migrations"][0]["control"]["phase"] == "cutover"


def test_copying_back_needs_a_reason_to_delete_most_rows(users: Commands) -> None:
    users("apply", "--to", "cutover", "--writers-stopped")
    delete_rows(users.project, "UsersV2", users.project.rows("UsersV2")[:-3])
    refused = users("rollback", "--writers-stopped", code=3)
    assert f"{ROWS - 3} rows of Users are not in it" in refused.err
    users("rollback", "--writers-stopped", "--reason", "cleaned up")
    assert len(users.project.rows("Users")) == 3
    [event] = events(users.project, "deletes-most")
    assert event == {"gone": ROWS - 3, "left": 3, "reason": "cleaned up"}


@pytest.mark.parametrize(("kept", "many"), [(ROWS - remaining.MANY + 1, remaining.MANY), (ROWS // 2, 5)])
def test_copying_back_needs_no_reason_to_delete_fewer_rows(
    users: Commands, kept: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer than many; or many, and not more than there are left."""
    monkeypatch.setattr(remaining, "MANY", many)
    users("apply", "--to", "cutover", "--writers-stopped")
    delete_rows(users.project, "UsersV2", users.project.rows("UsersV2")[kept:])
    users("rollback", "--writers-stopped")
    assert len(users.project.rows("Users")) == kept


def test_rows_that_are_gone_on_both_sides_do_not_count_as_deleted(users: Commands) -> None:
    users("apply", "--to", "cutover", "--writers-stopped")
    delete_rows(users.project, "UsersV2", users.project.rows("UsersV2")[3:])
    delete_rows(users.project, "Users", users.project.rows("Users")[3:])
    users("rollback", "--writers-stopped")


# --- an empty authority ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("apply",), ("verify", "--repair")], ids=["apply", "repair"])
def test_a_recreated_source_keeps_the_target(users: Commands, words: tuple[str, ...]) -> None:
    before = users.project.rows("UsersV2")
    make_again(users.project, "Users")
    refused = users(*words, code=3)
    assert "Users is empty, and UsersV2 is not" in refused.err
    assert "rollback 0001_subject --to source --drop-targets --reason" in " ".join(refused.err.split())
    assert users.project.rows("UsersV2") == before


def test_a_source_recreated_in_backfill_keeps_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep at its end compares the keys of both sides."""
    rows = [user(f"user{number:02}@example.com") for number in range(ROWS)]
    made = company(tmp_path, USERS_SCRIPT, rows)
    swept = backfill.swept_rows

    async def losing(run: Run) -> int:
        await run.tables.delete_table("Users")
        made.project.clock.advance(120)
        await run.tables.create_table("Users")
        return await swept(run)

    monkeypatch.setattr(backfill, "swept_rows", losing)
    with made:
        with pytest.raises(Refused, match="Users is empty, and UsersV2 is not"):
            made.apply()
        assert len(made.project.rows("UsersV2")) == ROWS


def test_an_emptied_source_empties_the_target_for_a_recorded_reason(made: Company) -> None:
    lose_with(made, make_again, "Users")
    with pytest.raises(Refused, match="Users is empty"):
        made.verify(repair=True)
    assert len(made.project.rows("UsersV2")) == ROWS
    with made.session(Options(reason="all were closed")) as session:
        commands.verify(session, made.script_id, mode=Mode.FULL, repair=True)
    assert made.project.rows("UsersV2") == []
    with State.open(made.project.config.state, read_only=True) as state:
        [event] = state.audit_events(made.script_id, event="deletes-all")
    assert dict(event.details) == {"empty": "Users", "rows_of": "UsersV2", "reason": "all were closed"}


# --- retire ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lose", [delete, make_again], ids=["deleted", "made again"])
def test_a_smaller_target_blocks_retire(users: Commands, lose: Callable[[Project, str], None]) -> None:
    complete(users)
    project = users.project
    prove_all(project)
    lose(project, "UsersV2")
    refused = users("retire", "--table", "Users", "--no-backup", "a test", code=3)
    assert "UsersV2 does not exist" in refused.err or f"UsersV2 holds 0 rows, Users {ROWS}" in refused.err
    assert len(project.rows("Users")) == ROWS


def test_a_deleted_source_is_retired(users: Commands) -> None:
    complete(users)
    project = users.project
    prove_all(project)
    delete(project, "Users")
    users("retire", "--table", "Users")
    assert users("status", "--json").json["migrations"][0]["control"]["phase"] == "retired"


def test_the_source_is_retired_for_a_recorded_reason(users: Commands) -> None:
    complete(users)
    project = users.project
    with project.session(Options(typed_table="Users", no_backup="a test")) as session:
        prove(session.config, session.scripts[SCRIPT], session.state)
        with pytest.raises(Refused, match="reason"):
            asyncio.run(project.tables.table("UsersV2").delete(key_of(project.rows("UsersV2")[0])))
            commands.retire(session, SCRIPT)
    assert events(project, "retire-counted")[-1]["reason"] == ""
    users("retire", "--table", "Users", "--no-backup", "a test", "--reason", "closed accounts")
    assert events(project, "retire-counted")[-1] == {
        "source_rows": ROWS,
        "target_rows": ROWS - 1,
        "reason": "closed accounts",
    }


# --- what a client left that was killed ---------------------------------------------------------------------


def killed_before(made: Company, client: Client, table: str, operation: Operation) -> None:
    """Let a client write, and kill it before its first write of a table."""

    async def write() -> None:
        await client.write(operation)

    made.writes(write())
    made.dies_in_the_middle(client, lambda call: call.table == table and call.writes, at=1)


def test_authority_moves_back_with_a_row_that_a_killed_client_left_out_of_the_source(made: Company) -> None:
    """The row counts as missing in the source until its intent is settled, which a rollback waits for."""
    made.apply(Phase.CUTOVER)
    [(_, new)] = made.mapper.map(user("new@example.com"))
    killed_before(made, made.clients[1], "Users", Operation(Verb.INSERT, new))
    assert len(made.project.rows("Users")) == ROWS < len(made.project.rows("UsersV2"))
    made.rollback()
    assert made.phase is ControlPhase.DUAL_WRITE
    assert "new@example.com" in {row["RowKey"] for row in made.project.rows("Users")}
    made.assert_in_step()


def test_targets_are_not_dropped_while_a_killed_clients_write_is_unsettled(made: Company) -> None:
    key = key_of(made.project.rows("Users")[0])
    delete = Operation(Verb.DELETE, {"PartitionKey": key.partition, "RowKey": key.row}, "*")
    killed_before(made, made.clients[0], "UsersV2", delete)
    assert len(made.project.rows("Users")) < ROWS == len(made.project.rows("UsersV2"))
    with pytest.raises(Refused) as refused:
        made.rollback(ControlPhase.SOURCE, drop=True)
    assert "writes of 1 row of UsersV2 are not settled yet" in refused.value.what
    assert f"`rekey apply {made.script_id}` settles" in refused.value.hint
    made.live(60)
    made.apply()
    made.rollback(ControlPhase.SOURCE, drop=True)
    assert made.phase is None
