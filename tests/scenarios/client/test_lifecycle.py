"""Whole migrations of capture "dual-write" under writes of the application: nothing is lost.

Soak: 10 of 12 moments of a kill.
Reason, and what `make test` covers: one moment with and one without a stored mapping; 2 more in
`tests/scenarios/client/test_moves.py`, drawn ones in `tests/simulation/test_dual_lives.py`, every order in
`tests/simulation/test_dual_every_order.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekey.errors import GateClosed, WritesRefused
from rekey.model import EntityKey, Row
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.tables.base import Operation, Verb
from tests.fakes.faults import Call
from tests.soaking import others_in_soak
from tests.worlds.application_rows import (
    assert_kept,
    lost,
    new_post,
    new_users,
    old_post,
    old_user,
    own_keys,
)
from tests.worlds.company import (
    ApplicationFaults,
    Change,
    Client,
    Company,
    Ledger,
    application,
    company,
    traffic,
)
from tests.worlds.projects import INVERTED_SCRIPT, POSTS_SCRIPT, USERS_SCRIPT
from tests.worlds.small import post, user

USER_ROWS = [user(f"user{number:03}@example.com", f"p{number % 3}") for number in range(60)]
WORLDS = {
    "users": (USERS_SCRIPT, USER_ROWS),
    "inverted": (INVERTED_SCRIPT, USER_ROWS),
    "posts": (POSTS_SCRIPT, [post(f"post-{number:03}") for number in range(40)]),
}
"""New keys from old ones, new keys that give the old ones back (no mapping is stored), keys from content."""


@pytest.fixture(params=["users"])
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Company]:
    with company(tmp_path, *WORLDS[request.param]) as made:
        yield made


@pytest.fixture
def posts(tmp_path: Path) -> Iterator[Company]:
    with company(tmp_path, *WORLDS["posts"]) as made:
        yield made


def in_old_view(ours: Company, number: int = 0, count: int = 8) -> tuple[str, list[EntityKey], Change]:
    """Return a table, keys that nobody else writes under, and what makes content."""
    if ours.mapper.migration.source == "Posts":
        return "Posts", own_keys(f"w{number}", "blog", count), old_post
    return "Users", own_keys(f"w{number}", f"p{number}", count), old_user


def in_new_view(ours: Company) -> tuple[str, list[EntityKey], Change]:
    """Return the same for users in the new view."""
    return "UsersV2", *new_users(ours, own_keys("new", "p1"))


def writes(ours: Company, client: Client, what: tuple[str, list[EntityKey], Change], seed: int) -> Ledger:
    """Begin traffic of a client; return the ledger of what it was told."""
    _, keys, change = what
    ledger = Ledger()
    ours.writes(traffic(client, keys, change, ledger, seed))
    return ledger


# --- the whole life -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours", ["users", "inverted"], indirect=True)
def test_old_and_new_versions_of_the_application_write_through_a_migration_and_back(ours: Company) -> None:
    first = ours.client(name="version-1")
    old = writes(ours, first, in_old_view(ours), seed=1)
    ours.live(2)
    done = ours.apply()
    assert done.phases == (Phase.PREPARE, Phase.DUAL_WRITE, Phase.BACKFILL, Phase.RECONCILE)
    assert done.asks == ()
    assert ours.control.copied
    second, rows = ours.client(View.NEW, "version-2"), in_new_view(ours)

    def of_others() -> dict[EntityKey, Row]:
        return {key: row for key, row in ours.actual()["UsersV2"].items() if key not in rows[1]}

    new = writes(ours, second, rows, seed=2)
    ours.live(10)
    report = ours.verify()
    assert (report.findings, report.differences.unsettled) == (False, 0), "no false alarm while clients write"
    ours.apply(Phase.CUTOVER)
    assert ours.phase is ControlPhase.CUTOVER
    ours.live(10)
    assert not ours.verify().findings, "the source follows the target now"
    assert ours.rollback() == [Phase.CUTOVER]
    assert ours.phase is ControlPhase.DUAL_WRITE
    ours.live(10)
    with pytest.raises(GateClosed, match="since the rollback"):
        ours.apply(Phase.CUTOVER)
    assert not ours.verify().findings
    ours.apply(Phase.CUTOVER)
    ours.live(10)
    ours.settle()
    assert ours.intents == []
    ours.assert_in_step()
    assert_kept(ours, old, "Users")
    assert_kept(ours, new, "UsersV2")
    before = of_others()
    after = writes(ours, second, rows, seed=3)
    with pytest.raises(GateClosed, match="version-1"):
        ours.apply(Phase.COMPLETE)
    ours.do(first.close())
    ours.apply(Phase.COMPLETE)
    ours.live(10)
    ours.quiet()
    new.rows |= after.rows
    assert_kept(ours, new, "UsersV2")
    assert of_others() == before
    ours.retire("the application has deleted rows since `complete`")
    assert ours.phase is ControlPhase.RETIRED


def test_keys_that_move_and_index_tables_are_followed_in_both_directions(posts: Company) -> None:
    ledger = writes(posts, posts.client(), in_old_view(posts), seed=3)
    posts.live(5)
    posts.apply()
    posts.live(20)
    assert not posts.verify().findings
    posts.apply(Phase.CUTOVER)
    posts.settle()
    posts.assert_in_step()
    assert_kept(posts, ledger, "Posts")
    after = writes(posts, posts.client(View.NEW), ("PostsV2", own_keys("n", "2024-02"), new_post), seed=5)
    posts.live(15)
    assert not posts.verify().findings
    assert posts.rollback() == [Phase.CUTOVER]
    posts.live(10)
    posts.settle()
    posts.assert_in_step()
    assert_kept(posts, ledger, "Posts")
    assert_kept(posts, after, "PostsV2")


def test_the_new_view_opens_when_all_is_copied_and_the_old_one_closes_with_complete(ours: Company) -> None:
    email = EntityKey("p0", "user000@example.com")
    [key], change = new_users(ours, [email])
    row = {**change(random.Random(1), key), "PartitionKey": key.partition, "RowKey": key.row}
    old, new = ours.client(), ours.client(View.NEW)
    write = Operation(Verb.REPLACE, row, "*")
    refused: list[str] = []

    async def look(call: Call) -> None:
        await asyncio.sleep(0)
        if call.table == "UsersV2" and call.action == "transact" and not refused and not application.get():
            refused.append("asked")
            with pytest.raises(WritesRefused, match="not all rows are copied") as error:
                await new.write(write)
            refused.append(error.value.code)

    ours.project.tables.gate = look
    ours.apply()
    assert refused == ["asked", "new-view-closed"]
    ours.live(3)
    ours.do(new.write(write))
    assert {row["RowKey"]: row["Nm"] for row in ours.project.rows("Users")}[email.row] == row["Name"]
    ours.do(old.close())
    ours.apply(Phase.COMPLETE)
    late = ours.client()
    with pytest.raises(WritesRefused, match="old keys"):
        ours.do(late.write(Operation(Verb.INSERT, user("late@example.com"))))


def test_writes_of_ten_clients_wait_less_than_five_seconds_for_a_cutover(ours: Company) -> None:
    ledgers = [writes(ours, ours.client(), in_old_view(ours, number, 4), seed=number) for number in range(10)]
    ours.live(2)
    ours.apply()
    for ledger in ledgers:
        ledger.longest_wait_s = 0.0
    ours.apply(Phase.CUTOVER)
    ours.live(5)
    ours.settle()
    assert 0.1 < max(ledger.longest_wait_s for ledger in ledgers) < 5.0
    ours.assert_in_step()
    for ledger in ledgers:
        assert_kept(ours, ledger, "Users")


# --- failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours", ["posts", "inverted"], indirect=True)
def test_what_clients_left_open_is_finished_before_the_authority_moves(ours: Company) -> None:
    table = ours.mapper.migration.source
    ledgers = [writes(ours, ours.client(), in_old_view(ours, number, 30), 1 + number) for number in range(2)]
    faults = ApplicationFaults(1, rate=0.03, table=table)
    ours.project.tables.faults = faults
    ours.live(3)
    ours.apply()
    ours.live(20)
    ours.apply(Phase.CUTOVER)
    ours.live(20)
    ours.rollback()
    faults.end()
    with ours.little_traffic():
        ours.live(60)
    ours.settle()
    ours.apply()
    ours.assert_in_step()
    assert faults.unanswered is not None
    for ledger in ledgers:
        assert_kept(ours, ledger, table)


@pytest.mark.parametrize(
    ("ours", "view", "is_cut_over"),
    [("posts", View.OLD, False), *itertools.product(["inverted"], View, [False, True])],
    indirect=["ours"],
)
def test_a_client_that_is_killed_in_the_middle_of_its_writes_loses_nothing(
    ours: Company, view: View, is_cut_over: bool
) -> None:
    """But for the write that was in flight."""
    ours.client()
    ours.apply()
    ours.verify()
    if is_cut_over:
        ours.apply(Phase.CUTOVER)
    dying = ours.client(view, name="dying")
    table, *rest = in_old_view(ours) if view is View.OLD else in_new_view(ours)
    ledger = writes(ours, dying, (table, *rest), seed=7)
    ours.live(5)
    follows = ours.mapper.migration.source if is_cut_over else ours.mapper.tables[0]
    ours.dies_in_the_middle(dying, lambda call: call.table == follows and call.writes, at=2)
    ours.rollback() if is_cut_over else ours.apply(Phase.CUTOVER)
    assert ours.unsettled == []
    ours.assert_in_step()
    assert ledger.writes
    assert len(lost(ours, ledger, table)) <= 1


KILLS = [
    *(("posts", at) for at in (60, 130, 180, 220, 255)),
    *(("inverted", at) for at in (25, 45, 60, 75, 90, 105, 120)),
]


@pytest.mark.parametrize(
    ("ours", "at"), others_in_soak(KILLS, kept=[("posts", 130), ("inverted", 90)]), indirect=["ours"]
)
def test_a_killed_runner_resumes_while_clients_write(ours: Company, at: int) -> None:
    ledger = writes(ours, ours.client(), in_old_view(ours), seed=at)
    ours.live(2)
    with ours.killing_the_runner(at):
        ours.apply(Phase.CUTOVER)
        ours.rollback()
        ours.verify()
    with ours.little_traffic():
        ours.live(70)  # until its lease is over
    ours.apply()
    if ours.phase is ControlPhase.DUAL_WRITE:
        assert not ours.verify().findings
        ours.apply(Phase.CUTOVER)
    assert not ours.verify().findings
    ours.settle()
    ours.assert_in_step()
    assert_kept(ours, ledger, ours.mapper.migration.source)
