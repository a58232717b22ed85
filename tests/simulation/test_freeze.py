"""The freeze of capture "delta" in every order: what one comparison brings and proves is what the application
finds behind the cutover. Without one of the rules that see to that, the search finds what is lost or comes
back.

The runner may be killed anywhere, with what it had sent under way; an answer may be lost; a writer may write
on although it was said to have stopped. Nothing is bounded.

Soak: a killed runner, a lost answer or `reconcile` while other rows are written; a killed `reconcile`; each
rule switched off.
Reason, and what `make test` covers: up to some minutes each; a killed runner beside an insert, a lost answer
beside a delete, `reconcile` beside a replacement.
"""

from __future__ import annotations

from typing import Any

import pytest

from rekey.declaration.migration import Migration
from rekey.model import Row
from tests.simulation import freeze_broken
from tests.simulation.explore import Budget, Searched, search
from tests.simulation.freeze_small import FreezeWorld, at_work
from tests.simulation.scheduler import Scheduler
from tests.simulation.small import Do
from tests.soaking import others_in_soak
from tests.worlds.small import INVERTED, LOWERED, POSTS, USERS, post, user

ANN, ANN_2 = (user("ann@example.com", Age=age) for age in (1, 2))
UPPER_ANN = user("ANN@example.com")
HELLO, MOVED = (post("hello", month, "a") for month in ("2024-01", "2024-02"))

FOREIGN = {"PartitionKey": "z", "RowKey": "stray", "Title": "?"}

World = tuple[Migration, list[Row], list[Do]]

WORLDS: dict[str, World] = {
    "insert": (USERS, [], [Do("insert", ANN)]),
    "delete": (USERS, [ANN], [Do("delete", ANN)]),
    "replace": (USERS, [ANN], [Do("replace", ANN_2)]),
    "move": (POSTS, [HELLO], [Do("replace", MOVED)]),
    "key passes": (LOWERED, [ANN], [Do("delete", ANN), Do("insert", UPPER_ANN)]),
    "collide": (LOWERED, [UPPER_ANN], [Do("insert", ANN)]),
    "insert, inverted": (INVERTED, [], [Do("insert", ANN)]),
    "delete, inverted": (INVERTED, [ANN], [Do("delete", ANN)]),
    "replace, inverted": (INVERTED, [ANN], [Do("replace", ANN_2)]),
}
INVERSE = [name for name in WORLDS if WORLDS[name][0] is INVERTED]
CRASH = Budget(crashes=1, late_requests=True)
LOST_ANSWER = Budget(lost_answers=1, late_requests=True)
EXTRA = "UsersV2 holds 1 rows that no source row gives"
MISSING = "UsersV2 lacks 1 rows"
OLDER = "UsersV2 holds an older row"


def freeze(name: str, budget: Budget, **more: Any) -> Searched:
    """Search one world. `more` as `FreezeWorld` takes it."""
    migration, before, operations = WORLDS[name]

    def make(scheduler: Scheduler) -> FreezeWorld:
        return FreezeWorld(scheduler, migration, before, operations, **more)

    with at_work():
        return search(make, budget, most_states=1_000_000)


def visited(name: str, found: Searched, *, at_least: int) -> None:
    """Say how much was visited; nothing may be lost, and a search that shrank is no search."""
    print(f"{name}: {found}")
    assert not found.loss, (found.loss, found.schedule)
    assert found.states >= at_least


def lost(found: Searched, what: str) -> None:
    print(f"{what}: found in schedule {found.schedules}, after {found.states:,} states")
    assert found.loss == what, found
    assert found.schedule


# --- nothing is lost ------------------------------------------------------------------------------------


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "name",
    others_in_soak(
        ["insert", "delete", "replace", "key passes", "move", *INVERSE], kept=["insert", "insert, inverted"]
    ),
)
def test_a_killed_runner_and_what_it_had_sent_lose_nothing(name: str) -> None:
    visited(name, freeze(name, CRASH), at_least=500)


@pytest.mark.parametrize(
    "name",
    others_in_soak(
        ["insert", "delete", "replace", "key passes", "move", *INVERSE], kept=["delete", "delete, inverted"]
    ),
)
def test_an_answer_that_is_lost_anywhere_loses_nothing(name: str) -> None:
    visited(name, freeze(name, LOST_ANSWER), at_least=400)


@pytest.mark.parametrize("name", ["insert", "insert, inverted"])
def test_what_the_application_deletes_behind_the_cutover_stays_deleted(name: str) -> None:
    visited("deleted behind it", freeze(name, LOST_ANSWER, deleted=[ANN]), at_least=400)


@pytest.mark.parametrize("name", ["insert", "replace", "move", "replace, inverted"])
def test_what_a_writer_writes_that_had_not_stopped_is_seen_until_all_is_compared(name: str) -> None:
    visited(name, freeze(name, Budget(), stray=True), at_least=80)


def test_rows_that_collide_and_rows_of_nobody_keep_the_authority_where_it_is() -> None:
    visited("collide", freeze("collide", Budget()), at_least=50)
    visited("foreign", freeze("move", Budget(), foreign=[FOREIGN]), at_least=50)


@pytest.mark.parametrize("name", others_in_soak(["delete", "replace", "move", *INVERSE], kept=["replace"]))
def test_the_comparison_of_reconcile_while_the_application_writes_loses_nothing(name: str) -> None:
    visited(name, freeze(name, Budget(), reconciles=True), at_least=300)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", ["delete", "replace", "move"])
def test_the_comparison_of_reconcile_and_a_killed_runner_lose_nothing(name: str) -> None:
    visited(name, freeze(name, CRASH, reconciles=True), at_least=9_000)


# --- each rule, switched off ----------------------------------------------------------------------------


@pytest.mark.soak
def test_nothing_is_under_way_when_the_comparison_begins() -> None:
    """A copy of a killed runner lands in a place that was read already, and brings a deleted row back."""
    with freeze_broken.not_quiet_before():
        lost(freeze("delete", CRASH), EXTRA)


@pytest.mark.soak
def test_nothing_that_the_comparison_sent_is_under_way_when_the_authority_moves() -> None:
    """Its first attempt to insert a row lands when the application has deleted the row from the target."""
    with freeze_broken.open_writes_forgotten():
        lost(freeze("insert", LOST_ANSWER, deleted=[ANN]), EXTRA)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "what"), [("insert", MISSING), ("replace", OLDER)])
def test_what_was_written_since_the_freeze_is_looked_for_when_all_is_compared(name: str, what: str) -> None:
    """The page that it belongs to was read before."""
    with freeze_broken.no_look():
        lost(freeze(name, Budget(), stray=True), what)


@pytest.mark.soak
def test_what_differed_is_compared_again_when_all_is_brought() -> None:
    """A row of which no source key is known cannot be brought."""
    with freeze_broken.not_compared_again():
        lost(freeze("move", Budget(), foreign=[FOREIGN]), "PostsByTag holds 1 rows that no source row gives")


@pytest.mark.soak
def test_rows_of_both_sides_are_read_again_which_the_sums_would_make_up_for() -> None:
    """Where only source rows are read again, a row stays whose source row is gone. The sums tell: then all is
    compared once more, and the row keeps the gate closed. With both rules off it stays behind the cutover."""
    with freeze_broken.one_side_read_again():
        assert not freeze("delete", Budget()).loss
        with freeze_broken.sums_not_asked():
            lost(freeze("delete", Budget()), EXTRA)
