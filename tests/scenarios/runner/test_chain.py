"""A chain: the target of one migration is the source of the next. They are retired in any order, and each
asks for the tables that hold its rows by now."""

from __future__ import annotations

import asyncio

import pytest

from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import key_of
from rekey.runner.remaining import MANY
from rekey.state.store import State
from tests.asserts.command_line import Commands
from tests.fakes.faults import Call
from tests.worlds.erasure import PLAIN_USERS, SCRIPT, WHY, Lives, by_old, rows_of
from tests.worlds.evidence import prove
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT

SECOND, THIRD = "0002_again", "0003_once_more"
RETIRED = ("--no-backup", "a test")
ROWS = len(rows_of(PLAIN_USERS))


def next_of(number: int) -> str:
    """Return the script that brings UsersV2 to UsersV3, for 2, and so on."""
    script = PLAIN_USERS.replace('"UsersV2"', '"TARGET"').replace('"Users"', f'"UsersV{number}"')
    return script.replace('"TARGET"', f'"UsersV{number + 1}"').replace("ContactEmail", f"Key{number}")


def go_on(rekey: Commands, script_id: str, script: str) -> None:
    """Complete a later migration."""
    rekey.project.script(script, f"{script_id}.py")
    rekey("apply", script_id, "--to", "complete", "--writers-stopped", "--yes", script_id)


def prove_and_retire(rekey: Commands, script_id: str, *more: str, code: int = 0) -> str:
    rekey.project.clock.advance(60)
    with rekey.project.session() as session:
        prove(session.config, session.scripts[script_id], session.state)
        source = session.scripts[script_id].migration.source
    said = rekey("retire", script_id, "--table", source, *RETIRED, *more, code=code).all
    return " ".join(said.split())


@pytest.fixture
def chain(lives: Lives) -> Commands:
    """Users → UsersV2 → UsersV3 → UsersV4, all complete."""
    rekey = lives.completed(PLAIN_USERS)
    go_on(rekey, SECOND, next_of(2))
    go_on(rekey, THIRD, next_of(3))
    return rekey


def exist(rekey: Commands, *names: str) -> list[bool]:
    return [asyncio.run(rekey.project.tables.table_exists(name)) for name in names]


@pytest.mark.parametrize(
    "order",
    [(SCRIPT, SECOND, THIRD), (THIRD, SECOND, SCRIPT), (SECOND, SCRIPT, THIRD)],
    ids=["1-2-3", "3-2-1", "2-1-3"],
)
def test_the_migrations_of_a_chain_are_retired_in_any_order(chain: Commands, order: tuple[str, ...]) -> None:
    for script_id in order:
        prove_and_retire(chain, script_id)
    assert exist(chain, "Users", "UsersV2", "UsersV3", "UsersV4") == [False, False, False, True]
    with State.open(chain.project.config.state, read_only=True) as state:
        counts = [dict(event.details) for event in state.audit_events(SCRIPT, event="retire-counted")]
    assert counts == [{"source_rows": ROWS, "target_rows": ROWS, "reason": ""}]


def test_rows_whose_last_table_is_gone_are_kept_where_the_chain_begins(chain: Commands) -> None:
    prove_and_retire(chain, THIRD)
    prove_and_retire(chain, SECOND)
    asyncio.run(chain.project.tables.delete_table("UsersV4"))
    assert "UsersV4 does not exist" in prove_and_retire(chain, SCRIPT, code=3)
    assert len(chain.project.rows("Users")) == ROWS


def test_rows_that_the_last_table_of_a_chain_lacks_ask_for_a_reason(chain: Commands) -> None:
    prove_and_retire(chain, SECOND)
    for row in chain.project.rows("UsersV3")[:2]:
        asyncio.run(chain.project.tables.table("UsersV3").delete(key_of(row)))
    assert f"UsersV3 holds {ROWS - 2} rows, Users {ROWS}" in prove_and_retire(chain, SCRIPT, code=3)
    prove_and_retire(chain, SCRIPT, "--reason", "closed accounts")
    assert exist(chain, "Users", "UsersV3") == [False, True]


def test_retire_asks_once_what_became_of_its_tables(chain: Commands) -> None:
    prove_and_retire(chain, THIRD)
    prove_and_retire(chain, SECOND)
    restricted, reads = chain.project.restricted, list[str | None]()
    before = restricted.gate

    async def gate(call: Call) -> None:
        if call.table == CONTROL_TABLE and call.action == "get":
            reads.append(call.read)
        await before(call)

    restricted.gate = gate
    prove_and_retire(chain, SCRIPT)
    # As a later one of the first table, and as the one whose own table was retired.
    assert (reads.count(SECOND), reads.count(THIRD)) == (2, 1)


def lose_state_file(rekey: Commands) -> None:
    for file in rekey.project.folder.glob("state.sqlite*"):
        file.unlink()


def test_a_chain_goes_on_after_the_state_file_was_lost_and_the_first_table_retired(lives: Lives) -> None:
    rekey = lives.completed(PLAIN_USERS)
    prove_and_retire(rekey, SCRIPT)
    lose_state_file(rekey)
    rekey.project.script(next_of(2), f"{SECOND}.py")
    assert "all phases are done" in rekey("apply", SCRIPT).out
    rekey("apply", SECOND, "--to", "cutover", "--writers-stopped")
    assert len(rekey.project.rows("UsersV3")) == ROWS


@pytest.mark.parametrize("begun", [False, True], ids=["not begun", "begun"])
def test_a_later_migration_does_not_wait_for_one_that_a_lost_state_file_knew(
    lives: Lives, begun: bool
) -> None:
    rekey = lives.completed(PLAIN_USERS)
    rekey.project.script(next_of(2), f"{SECOND}.py")
    if begun:
        rekey("apply", SECOND)
    lose_state_file(rekey)
    rekey("apply", SECOND)
    rekey("apply", SECOND, "--to", "cutover", "--writers-stopped")
    assert len(rekey.project.rows("UsersV3")) == ROWS


def test_evidence_is_exported_after_a_command_that_only_found_the_state_file_lost(lives: Lives) -> None:
    rekey = lives.completed(PLAIN_USERS)
    lose_state_file(rekey)
    rekey("verify", SCRIPT, code=3)
    rekey("apply", SCRIPT)
    prove_and_retire(rekey, SCRIPT)
    assert exist(rekey, "Users", "UsersV2") == [False, True]


@pytest.mark.parametrize("again", [False, True], ids=["gone", "another table"])
def test_index_rows_are_not_compared_with_what_stands_in_place_of_a_retired_table(
    lives: Lives, again: bool
) -> None:
    rekey = lives.completed(POSTS_SCRIPT)
    second = USERS_SCRIPT.replace("UsersV2", "PostsV3").replace('"Users"', '"PostsV2"')
    go_on(rekey, SECOND, second)
    prove_and_retire(rekey, SECOND)
    rekey.project.clock.advance(120)
    if again:
        asyncio.run(rekey.project.fill("PostsV2", []))
    index_rows = rekey.project.rows("PostsByTag")
    assert index_rows
    for repair in ((), ("--repair",)):
        said = rekey("verify", SCRIPT, "--mode", "full", *repair, code=3)
        assert f"{SECOND} has moved the rows of PostsV2 on" in " ".join(said.err.split())
    assert rekey.project.rows("PostsByTag") == index_rows


def test_a_repair_keeps_index_rows_when_the_main_table_was_emptied(lives: Lives) -> None:
    """Somebody deleted it, and made it again: it looks as if the application had deleted every row."""
    rekey = lives.completed(POSTS_SCRIPT)
    tables, index_rows = rekey.project.tables, rekey.project.rows("PostsByTag")
    assert len(index_rows) >= MANY
    asyncio.run(tables.delete_table("PostsV2"))
    rekey.project.clock.advance(120)
    asyncio.run(tables.create_table("PostsV2"))
    said = rekey("verify", "--mode", "full", "--repair", code=3)
    assert "PostsV2 is empty, and PostsByTag is not" in " ".join(said.err.split())
    assert rekey.project.rows("PostsByTag") == index_rows
    rekey("verify", "--mode", "full", "--repair", "--reason", "all posts were deleted", code=1)
    assert rekey.project.rows("PostsByTag") == []


def test_a_table_that_was_retired_before_it_was_filled_is_the_one_that_holds_the_rows(lives: Lives) -> None:
    """A migration of an earlier table of the same name holds nothing of the later one's rows: they are looked
    for, and erased, in that."""
    rekey = lives.begun(PLAIN_USERS)
    rekey("rollback", SCRIPT, "--to", "source", "--drop-targets")
    project = rekey.project
    (project.folder / "migrations" / f"{SCRIPT}.py").unlink()
    project.clock.advance(120)
    asyncio.run(project.fill("UsersV2", rows_of(PLAIN_USERS)))
    go_on(rekey, SECOND, next_of(2))
    prove_and_retire(rekey, SECOND)
    project.clock.advance(120)
    project.script(PLAIN_USERS, f"{SCRIPT}.py")
    rekey("apply", SCRIPT, "--to", "complete", "--writers-stopped", "--yes", SCRIPT)
    said = rekey("erase", SCRIPT, *by_old(rows_of(PLAIN_USERS)[0]), *WHY, "--with-targets", "--json").json
    assert said["target_rows"] == {"UsersV2": 1}
    asyncio.run(project.tables.delete_table("UsersV2"))
    assert "UsersV2 does not exist" in prove_and_retire(rekey, SCRIPT, code=3)
    assert len(project.rows("Users")) == ROWS - 1
