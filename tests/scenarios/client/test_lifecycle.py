"""Whole migrations of capture "dual-write" under writes of the application: nothing is lost.

Soak: 4 of 5 moments of a kill.
Reason, and what `make test` covers: one moment; 2 more in `tests/scenarios/client/test_moves.py`, drawn
ones in `tests/simulation/test_dual_lives.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rekey.errors import GateClosed, WritesRefused
from rekey.model import EntityKey, Row, content_of, key_of
from rekey.phases import ControlPhase, Phase
from rekey.protocol.rules import View
from rekey.tables.base import Operation, Verb
from tests.fakes.faults import Call
from tests.soaking import others_in_soak
from tests.worlds.company import ApplicationFaults, Company, Ledger, application, company, traffic
from tests.worlds.projects import POSTS_SCRIPT, USERS_SCRIPT
from tests.worlds.small import post, user


@pytest.fixture
def users(tmp_path: Path) -> Iterator[Company]:
    rows = [user(f"user{number:03}@example.com", f"p{number % 3}") for number in range(60)]
    with company(tmp_path, USERS_SCRIPT, rows) as made:
        yield made


@pytest.fixture
def posts(tmp_path: Path) -> Iterator[Company]:
    with company(tmp_path, POSTS_SCRIPT, [post(f"post-{number:03}") for number in range(40)]) as made:
        yield made


def old_user(rng: random.Random, _key: EntityKey) -> Row:
    return {"Nm": f"name-{rng.random()}"}


def old_post(rng: random.Random, _key: EntityKey) -> Row:
    tags = ",".join(rng.sample(["a", "b", "c", "d"], rng.randint(0, 3)))
    return {"Month": f"2024-0{rng.randint(1, 3)}", "Tags": tags, "Title": f"title-{rng.random()}"}


def new_post(rng: random.Random, key: EntityKey) -> Row:
    return {**old_post(rng, key), "Month": key.partition, "Blog": "blog"}


def new_users(ours: Company, emails: list[EntityKey]) -> tuple[list[EntityKey], Callable[..., Row]]:
    """Return the new keys of users, and what makes their content in the new view."""
    mapper = ours.mapper
    old = {key_of(mapper.map(user(key.row, key.partition))[0].row): key.row for key in emails}

    def change(rng: random.Random, key: EntityKey) -> Row:
        return {"Name": f"name-{rng.random()}", "ContactEmail": old[key]}

    return list(old), change


def own_keys(name: str, partition: str, count: int = 8) -> list[EntityKey]:
    return [EntityKey(partition, f"{name}-{number}") for number in range(count)]


def assert_kept(ours: Company, ledger: Ledger, table: str, carried: str) -> None:
    """Every acknowledged write is in a table, under the key it was written under."""
    there = {key_of(row): content_of(row) for row in ours.project.rows(table)}
    told = {key: None if row is None else row[carried] for key, row in ledger.rows.items()}
    assert told == {key: there[key][carried] if key in there else None for key in told}
    assert ledger.writes > 20


# --- the whole life -----------------------------------------------------------------------------------------


def test_a_whole_migration_and_its_way_back_under_writes_of_two_clients(users: Company) -> None:
    ledger = Ledger()
    for number in range(2):
        keys = own_keys(f"u{number}", f"p{number}")
        users.writes(traffic(users.client(), keys, old_user, ledger, seed=number))
    users.live(5)
    done = users.apply()
    assert done.phases == (Phase.PREPARE, Phase.DUAL_WRITE, Phase.BACKFILL, Phase.RECONCILE)
    assert done.asks == ()
    assert users.control.copied
    users.live(20)
    report = users.verify()
    assert (report.findings, report.differences.unsettled) == (False, 0), "no false alarm while clients write"
    users.apply(Phase.CUTOVER)
    assert users.phase is ControlPhase.CUTOVER
    users.live(20)
    assert not users.verify().findings, "the source follows the target now"
    assert users.rollback() == [Phase.CUTOVER]
    assert users.phase is ControlPhase.DUAL_WRITE
    users.live(20)
    with pytest.raises(GateClosed, match="since the way back"):
        users.apply(Phase.CUTOVER)
    assert not users.verify().findings
    users.apply(Phase.CUTOVER)
    users.live(5)
    users.settle()
    assert users.intents == []
    assert_kept(users, ledger, "Users", "Nm")
    users.assert_in_step()


def test_keys_that_move_and_index_tables_are_followed_in_both_directions(posts: Company) -> None:
    ledger = Ledger()
    keys = own_keys("w", "blog")
    posts.writes(traffic(posts.client(), keys, old_post, ledger, seed=3))
    posts.live(5)
    posts.apply()
    posts.live(20)
    assert not posts.verify().findings
    posts.apply(Phase.CUTOVER)
    posts.settle()
    posts.assert_in_step()
    assert_kept(posts, ledger, "Posts", "Title")
    new = own_keys("n", "2024-02")
    after = Ledger()
    posts.writes(traffic(posts.client(View.NEW), new, new_post, after, seed=5))
    posts.live(15)
    assert not posts.verify().findings
    assert posts.rollback() == [Phase.CUTOVER]
    posts.live(10)
    posts.settle()
    posts.assert_in_step()
    assert_kept(posts, ledger, "Posts", "Title")
    assert_kept(posts, after, "PostsV2", "Title")


def test_old_and_new_versions_of_the_application_run_at_once(users: Company) -> None:
    old, new = Ledger(), Ledger()
    first = users.client(name="version-1")
    users.writes(traffic(first, own_keys("old", "p0"), old_user, old, seed=1))
    users.live(2)
    users.apply()
    second = users.client(View.NEW, "version-2")
    keys, change = new_users(users, own_keys("new", "p1"))
    users.writes(traffic(second, keys, change, new, seed=2))
    users.live(10)
    users.apply(Phase.CUTOVER)
    users.live(10)
    users.rollback()
    users.live(10)
    assert not users.verify().findings
    users.apply(Phase.CUTOVER)
    users.live(10)
    users.settle()
    users.assert_in_step()
    assert_kept(users, old, "Users", "Nm")
    users.writes(traffic(second, keys, change, new, seed=3))
    with pytest.raises(GateClosed, match="version-1"):
        users.apply(Phase.COMPLETE)
    users.do(first.close())
    users.apply(Phase.COMPLETE)
    users.live(10)
    users.quiet()
    assert_kept(users, new, "UsersV2", "Name")
    names = {row["ContactEmail"]: row["Name"] for row in users.project.rows("UsersV2")}
    assert {key.row: row and row["Nm"] for key, row in old.rows.items()} == {
        key.row: names.get(key.row) for key in old.rows
    }
    users.retire("the application has deleted rows since `complete`")
    assert users.phase is ControlPhase.RETIRED


def test_the_new_view_opens_when_all_is_copied_and_the_old_one_closes_with_complete(users: Company) -> None:
    email = EntityKey("p0", "user000@example.com")
    [key], change = new_users(users, [email])
    row = {**change(random.Random(1), key), "PartitionKey": key.partition, "RowKey": key.row}
    old, new = users.client(), users.client(View.NEW)
    write = Operation(Verb.REPLACE, row, "*")
    refused: list[str] = []

    async def look(call: Call) -> None:
        await asyncio.sleep(0)
        if call.table == "UsersV2" and call.action == "transact" and not refused and not application.get():
            refused.append("asked")
            with pytest.raises(WritesRefused, match="not all rows are copied") as error:
                await new.write(write)
            refused.append(error.value.code)

    users.project.tables.gate = look
    users.apply()
    assert refused == ["asked", "new-view-closed"]
    users.live(3)
    users.do(new.write(write))
    assert {row["RowKey"]: row["Nm"] for row in users.project.rows("Users")}[email.row] == row["Name"]
    users.do(old.close())
    users.apply(Phase.COMPLETE)
    late = users.client()
    with pytest.raises(WritesRefused, match="old keys"):
        users.do(late.write(Operation(Verb.INSERT, user("late@example.com"))))


def test_writes_of_ten_clients_wait_less_than_five_seconds_for_a_cutover(users: Company) -> None:
    ledgers = [Ledger() for _ in range(10)]
    for number, ledger in enumerate(ledgers):
        keys = own_keys(f"u{number}", f"p{number}", 4)
        users.writes(traffic(users.client(), keys, old_user, ledger, seed=number))
    users.live(2)
    users.apply()
    for ledger in ledgers:
        ledger.longest_wait_s = 0.0
    users.apply(Phase.CUTOVER)
    users.live(5)
    users.settle()
    assert 0.1 < max(ledger.longest_wait_s for ledger in ledgers) < 5.0
    users.assert_in_step()
    for ledger in ledgers:
        assert_kept(users, ledger, "Users", "Nm")


# --- failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1])
def test_what_clients_left_open_is_finished_before_the_authority_moves(posts: Company, seed: int) -> None:
    ledgers = [Ledger(), Ledger()]
    for number, ledger in enumerate(ledgers):
        keys = own_keys(f"w{number}", "blog", 30)
        posts.writes(traffic(posts.client(), keys, old_post, ledger, seed=seed + number))
    faults = ApplicationFaults(seed, rate=0.03, table="Posts")
    posts.project.tables.faults = faults
    posts.live(3)
    posts.apply()
    posts.live(20)
    posts.apply(Phase.CUTOVER)
    posts.live(20)
    posts.rollback()
    faults.end()
    posts.live(60)
    posts.settle()
    posts.apply()
    posts.assert_in_step()
    assert faults.unanswered is not None
    for ledger in ledgers:
        assert_kept(posts, ledger, "Posts", "Title")


def test_a_client_that_is_killed_in_the_middle_of_its_writes_loses_nothing(posts: Company) -> None:
    ledger = Ledger()
    posts.apply()
    dying = posts.client(name="dying")
    posts.client()
    posts.writes(traffic(dying, own_keys("w", "blog"), old_post, ledger, seed=7))
    posts.live(5)
    posts.verify()
    posts.dies_in_the_middle(dying, lambda call: call.table == "PostsV2", at=5)
    posts.apply(Phase.CUTOVER)
    assert posts.unsettled == []
    posts.assert_in_step()
    assert_kept_or_under_way(posts, ledger)


def assert_kept_or_under_way(ours: Company, ledger: Ledger) -> None:
    """All that was acknowledged is there, but for the one write that was under way."""
    there = {key_of(row): row["Title"] for row in ours.project.rows("Posts")}
    told = {key: None if row is None else row["Title"] for key, row in ledger.rows.items()}
    assert len([key for key in told if told[key] != there.get(key)]) <= 1


@pytest.mark.parametrize("at", others_in_soak([60, 130, 180, 220, 255], kept=[130]))
def test_a_killed_runner_resumes_while_clients_write(posts: Company, at: int) -> None:
    ledger = Ledger()
    posts.writes(traffic(posts.client(), own_keys("w", "blog"), old_post, ledger, seed=at))
    posts.live(2)
    with posts.killing_the_runner(at):
        posts.apply(Phase.CUTOVER)
        posts.rollback()
        posts.verify()
    posts.live(70)
    posts.apply()
    if posts.phase is ControlPhase.DUAL_WRITE:
        assert not posts.verify().findings
        posts.apply(Phase.CUTOVER)
    assert not posts.verify().findings
    posts.settle()
    posts.assert_in_step()
    assert_kept(posts, ledger, "Posts", "Title")
