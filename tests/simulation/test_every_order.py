"""Every order in which effects can happen on one key, with a crash, a late request or a lost answer anywhere:
in the end the targets are what the source says, and at no moment does a target row lack its mapping row.

Soak: to the end; some worlds without a stored mapping; a lost answer beside a key that passes.
Reason, and what `make test` covers: minutes; each world with a crash and at most one preemption, some with a
lost answer or without a stored mapping, one to the end.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from rekey.copy import sweep
from rekey.declaration.migration import Migration
from rekey.model import Row
from tests.fakes.memory import Mood
from tests.simulation.explore import Budget, Searched, search
from tests.simulation.scheduler import Scheduler
from tests.simulation.small import DeltaWorld, DigestsInMemory, Do, FollowingWorld, Parts
from tests.soaking import others_in_soak
from tests.worlds.small import INVERTED, LOWERED, POSTS, USERS, post, user

ANN, ANN_2, ANN_3 = (user("ann@example.com", Age=age) for age in (1, 2, 3))
UPPER_ANN = user("ANN@example.com")
HELLO, MOVED = post("hello"), post("hello", "2024-02", "b,c")

World = tuple[Migration, list[Row], list[Do]]

DELTA: dict[str, World] = {
    "replace, replace": (USERS, [ANN], [Do("replace", ANN_2), Do("replace", ANN_3)]),
    "replace, delete": (USERS, [ANN], [Do("replace", ANN_2), Do("delete", ANN)]),
    "delete, insert": (USERS, [ANN], [Do("delete", ANN), Do("insert", ANN_2)]),
    "insert, replace": (USERS, [], [Do("insert", ANN), Do("replace", ANN_2)]),
    "insert, delete": (USERS, [], [Do("insert", ANN), Do("delete", ANN)]),
}
COMPUTED: dict[str, World] = {name: (INVERTED, *world[1:]) for name, world in DELTA.items()}
KEYS_MOVE: dict[str, World] = {
    "move, move back": (POSTS, [HELLO], [Do("replace", MOVED), Do("replace", HELLO)]),
    "move, delete": (POSTS, [HELLO], [Do("replace", MOVED), Do("delete", HELLO)]),
}
KEY_PASSES: World = (LOWERED, [ANN], [Do("delete", ANN), Do("insert", UPPER_ANN)])
FOLLOWING: dict[str, tuple[World, bool, bool]] = {
    "replace, backfill": ((USERS, [ANN], [Do("replace", ANN_2)]), False, True),
    "delete, backfill": ((USERS, [ANN], [Do("delete", ANN)]), False, True),
    "delete, backfill again": ((USERS, [ANN], [Do("delete", ANN)]), True, True),
    "replace | replace": ((USERS, [ANN], [Do("replace", ANN_2), Do("replace", ANN_3)]), True, False),
    "replace | replace back": ((USERS, [ANN], [Do("replace", ANN_2), Do("replace", ANN)]), True, False),
    "replace | delete": ((USERS, [ANN], [Do("replace", ANN_2), Do("delete", ANN)]), True, False),
    "insert | delete": ((USERS, [], [Do("insert", ANN), Do("delete", ANN)]), False, False),
}
# A key that is another row's, or nobody's, once its address is decoded again.
ODD, ODD_2, ODD_3 = (user("ann%40example.com", Age=age) for age in (1, 2, 3))
MISREAD: dict[str, World] = {
    "replace, replace": (USERS, [ODD], [Do("replace", ODD_2), Do("replace", ODD_3)]),
    "replace, delete": (USERS, [ODD], [Do("replace", ODD_2), Do("delete", ODD)]),
    "beside its look-alike": (USERS, [ODD, ANN], [Do("replace", ODD_2), Do("delete", ANN)]),
}
FOLLOWING["misread: replace | replace"] = (
    (USERS, [ODD], [Do("replace", ODD_2), Do("replace", ODD_3)]), True, False
)  # fmt: skip
CRASH = Budget(crashes=1)
BOUNDED_CRASH = replace(CRASH, preemptions=1)
CRASH_WITH_LATE_REQUESTS = Budget(crashes=1, late_requests=True)


def delta(world: World, budget: Budget, parts: Parts | None = None, *, verifies: bool = False) -> Searched:
    """Search capture "delta": one writer, one runner."""
    migration, before, operations = world

    def make(scheduler: Scheduler) -> DeltaWorld:
        return DeltaWorld(scheduler, migration, before, operations, parts or Parts(), verifies=verifies)

    with mock.patch.object(sweep, "DigestParts", DigestsInMemory):
        return search(make, budget)


def following(name: str, parts: Parts | None = None) -> Searched:
    """Search writers that propagate, and a backfill."""
    (migration, before, operations), copied, backfill = FOLLOWING[name]
    parts = parts or (Parts(mood=Mood.DECODES_TWICE) if name.startswith("misread") else Parts())

    def make(scheduler: Scheduler) -> FollowingWorld:
        return FollowingWorld(
            scheduler, migration, before, operations, parts, copied=copied, backfill=backfill
        )

    with mock.patch.object(sweep, "DigestParts", DigestsInMemory):
        return search(make)


def visited(name: str, found: Searched, *, at_least: int) -> None:
    """Say how much was visited; nothing may be lost, and a search that shrank is no search."""
    print(f"{name}: {found}")
    assert not found.loss, (found.loss, found.schedule)
    assert found.states >= at_least


@pytest.mark.parametrize("name", DELTA)
def test_no_order_of_writes_passes_and_a_crash_loses_anything(name: str) -> None:
    """Backfill, sweep, pass and sweep against two writes on the key; the runner is killed anywhere, once.
    Bounded; `make soak` searches each to the end, with late requests and a lost answer as well."""
    visited(name, delta(DELTA[name], BOUNDED_CRASH), at_least=190)


@pytest.mark.parametrize("name", others_in_soak(COMPUTED, kept=["insert, replace", "insert, delete"]))
def test_no_order_loses_anything_without_a_stored_mapping(name: str) -> None:
    """Fewer requests are made, so fewer states are visited; with late requests and a lost answer as well."""
    visited(name, delta(COMPUTED[name], replace(CRASH_WITH_LATE_REQUESTS, preemptions=1)), at_least=110)
    visited(name, delta(COMPUTED[name], Budget(lost_answers=1, preemptions=1)), at_least=110)


def test_a_crash_in_any_order_to_the_end_loses_nothing() -> None:
    """The same without a bound, in the smallest of these worlds."""
    visited("insert, delete", delta(DELTA["insert, delete"], CRASH), at_least=900)


def test_no_order_loses_anything_when_both_mapping_rows_are_written_at_once() -> None:
    visited("two at a time", delta(DELTA["delete, insert"], Budget(), Parts(concurrency=2)), at_least=400)


@pytest.mark.parametrize(
    "name", others_in_soak(["insert, delete", "delete, insert"], kept=["insert, delete"])
)
def test_orders_that_are_taken_for_equal_end_alike(name: str) -> None:
    """With states kept apart by the order of answers within a process, and calls that commute in both orders:
    more states, and the same ends."""
    parts = Parts(concurrency=2)
    few, all_orders = (delta(DELTA[name], Budget(all_orders=every), parts) for every in (False, True))
    print(f"{few}; all orders: {all_orders}")
    assert few.states < all_orders.states
    assert few.ends == all_orders.ends


def test_a_key_that_passes_to_another_row_takes_nothing_along() -> None:
    """Lower-casing: one row goes, another comes whose target key is the same. Bounded, as above."""
    visited("a key that passes", delta(KEY_PASSES, BOUNDED_CRASH), at_least=2_000)


@pytest.mark.parametrize("name", MISREAD)
def test_a_service_that_misreads_odd_addresses_loses_nothing(name: str) -> None:
    """Addresses are decoded twice there. Bounded, as above."""
    found = delta(MISREAD[name], Budget(preemptions=1), Parts(mood=Mood.DECODES_TWICE), verifies=True)
    visited(f"misread: {name}", found, at_least=100)


@pytest.mark.parametrize("name", KEYS_MOVE)
def test_rows_that_move_leave_nothing_behind(name: str) -> None:
    visited(name, delta(KEYS_MOVE[name], Budget()), at_least=700)


@pytest.mark.parametrize(
    "name",
    others_in_soak(
        ["insert, replace", "replace, delete", "a key that passes"],
        kept=["insert, replace", "replace, delete"],
    ),
)
def test_an_answer_that_is_lost_anywhere_changes_nothing(name: str) -> None:
    """Bounded, as above."""
    world = {**DELTA, "a key that passes": KEY_PASSES}[name]
    visited(name, delta(world, Budget(lost_answers=1, preemptions=1)), at_least=600)


def test_requests_of_a_killed_runner_that_land_later_change_nothing() -> None:
    """They land at any moment of the next runner's work; the last pass and sweep come after them. Bounded;
    `make soak` searches it to the end."""
    budget = replace(CRASH_WITH_LATE_REQUESTS, preemptions=1)
    visited("late requests", delta(DELTA["insert, delete"], budget), at_least=350)


@pytest.mark.parametrize("name", FOLLOWING)
def test_no_order_of_writers_that_propagate_and_a_backfill_loses_anything(name: str) -> None:
    """Each writer does one operation and propagates the key. Nothing is repaired afterwards: when all have
    come to an end, the target is right."""
    visited(name, following(name), at_least=100)


@pytest.mark.soak
def test_a_late_request_under_a_key_that_moved_on_is_left_to_the_full_verification() -> None:
    """Keys from content: a killed runner's insert of an index row lands after the next runner has seen the
    source row move on. The row is one that its source row once had, so the mapping accounts for it; a pass
    does not look again at a row that has not changed, and a sweep looks for rows that are gone. What finds it
    is the full verification under freeze: the gate stays closed until it is repaired."""
    world = KEYS_MOVE["move, move back"]
    found = delta(world, replace(CRASH_WITH_LATE_REQUESTS, preemptions=1))
    print(f"found after {found.states:,} states: {found.loss}")
    assert found.loss == "PostsByTag holds 1 rows that no source row gives"
    assert any("(late)" in step for step in found.schedule)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", KEYS_MOVE)
def test_what_a_late_request_leaves_behind_never_passes_the_gate(name: str) -> None:
    """The same search with the full verification and its repair at the end of every run."""
    found = delta(KEYS_MOVE[name], CRASH_WITH_LATE_REQUESTS, verifies=True)
    visited(f"{name}, late requests, verified", found, at_least=2_000)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", [*DELTA, "a key that passes"])
def test_no_order_with_late_requests_and_a_lost_answer_loses_anything(name: str) -> None:
    """The larger searches: some minutes."""
    world = {**DELTA, "a key that passes": KEY_PASSES}[name]
    visited(f"{name}, late requests", delta(world, CRASH_WITH_LATE_REQUESTS), at_least=2_000)
    visited(f"{name}, crash and lost answer", delta(world, Budget(crashes=1, lost_answers=1)), at_least=2_000)
