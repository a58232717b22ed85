"""Runs that were cut off after the move to `complete`, and lost state files after it: nothing is given up
that retire would keep, and nothing is left that no command ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rekey.errors import Findings
from rekey.mapping.rows import CONTROL_TABLE
from rekey.model import Row, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import TARGET, View
from rekey.runner.handover import hand_over
from tests.fakes.faults import Call
from tests.fakes.memory import open_gate
from tests.worlds.company import Company, application, company_at
from tests.worlds.erasure import PLAIN_USERS
from tests.worlds.projects import POSTS_SCRIPT
from tests.worlds.small import Killed, post, user


@pytest.fixture
def posts(tmp_path: Path) -> Iterator[Company]:
    """A migration with an index table, which has cut over."""
    rows = [post(f"post-{number}", tags="x,y") for number in range(4)]
    with company_at(tmp_path, POSTS_SCRIPT, rows, Phase.CUTOVER) as made:
        yield made


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Company]:
    """A migration without one, which has cut over."""
    rows = [user(f"user{number}@example.com") for number in range(4)]
    with company_at(tmp_path, PLAIN_USERS, rows, Phase.CUTOVER) as made:
        yield made


@pytest.mark.parametrize("lost", [False, True], ids=["state file there", "state file lost"])
@pytest.mark.parametrize("command", ["apply", "handover"])
def test_retire_keeps_a_row_that_was_written_after_the_handover(
    posts: Company, command: str, lost: bool
) -> None:
    posts.client(View.NEW)
    posts.live(3)
    posts.apply(Phase.COMPLETE)
    posts.hand_over()
    posts.live(100)
    row_key = posts.project.rows("Posts")[0]["RowKey"]
    stray = post(row_key, tags="by a stray writer")
    posts.do(posts.project.tables.table("Posts").upsert(stray))
    posts.live(100)
    if lost:
        posts.project.config.state.unlink()
    if command == "apply":
        posts.apply()
    else:
        with posts.session() as session:
            hand_over(session, posts.script_id)
    with pytest.raises(Findings, match="1 source rows changed after `complete`"):
        posts.retire()
    assert [row["Tags"] for row in posts.project.rows("Posts")] == ["by a stray writer"]


def test_an_intent_that_cannot_be_settled_any_more_is_given_up_after_a_kill(users: Company) -> None:
    """Kept, it would keep `retire` and `erase` closed, and the command that they name could not end it."""
    client = users.client(View.NEW)
    users.live(3)
    cut_off_after_the_move(users)
    row = users.project.rows("UsersV2")[0]
    journal = users.do(users.project.journal(users.script_id))
    users.do(journal.begin("0123456789abcdef", users.control.epoch - 1, TARGET, [key_of(row)]))
    # Since `complete` it is written as the application likes: the source cannot express this one.
    users.do(users.project.tables.table("UsersV2").replace(without_old_key(row), etag="*"))
    users.do(client.close())
    client.dead = True
    users.live(2_000)
    users.apply()
    assert users.intents == []
    users.retire()
    assert users.phase is ControlPhase.RETIRED


def cut_off_after_the_move(ours: Company) -> None:
    """Complete a migration with a runner that is killed right after the control row was moved."""

    async def kill(_call: Call) -> None:
        if not application.get() and ours_is_complete(ours):
            raise Killed

    accounts = ours.project.tables, ours.project.restricted
    for account in accounts:
        account.gate = kill
    with suppress(Killed):
        ours.apply(Phase.COMPLETE)
    for account in accounts:
        account.gate = open_gate
    assert ours.phase is ControlPhase.COMPLETE
    with ours.project.session() as session:
        assert session.state.get_fact(ours.script_id, "quiet_at") is None
    ours.live(130)


def ours_is_complete(ours: Company) -> bool:
    rows = ours.project.restricted.dump(CONTROL_TABLE)
    return any(row["RowKey"] == "control" and row["Phase"] == "complete" for row in rows)


def without_old_key(row: Row) -> Row:
    return {"PartitionKey": row["PartitionKey"], "RowKey": row["RowKey"], "Name": "renamed"}
