"""What a command must know before it gives something up, in every order: a row that was written outside
propagate does not go live by an earlier verification, and the last copy of a row is not dropped. With one of
the rules for that switched off, the search finds the loss.

Soak: each rule switched off.
Reason, and what `make test` covers: shows the search, not the program; the same searches with all rules.
"""

from __future__ import annotations

import pytest

from tests.simulation import safety_broken
from tests.simulation.explore import Budget, Searched, search
from tests.simulation.freeze_small import FreezeWorld
from tests.simulation.safety_small import GateWorld, VanishingWorld, at_work

CRASH = Budget(crashes=1, late_requests=True)
LOST_ANSWER = Budget(lost_answers=1, late_requests=True)
GHOST = "UsersV2 holds 1 rows that no source row gives"
GONE = "no table holds the row"


def searched(world: type[FreezeWorld], budget: Budget) -> Searched:
    with at_work():
        return search(lambda scheduler: world(scheduler), budget, most_states=200_000)  # type: ignore[call-arg]


def visited(found: Searched, *, at_least: int) -> None:
    print(found)
    assert not found.loss, (found.loss, found.schedule)
    assert found.states >= at_least


def test_a_row_restored_by_a_command_that_may_be_killed_does_not_go_live_unverified() -> None:
    visited(searched(GateWorld, CRASH), at_least=50)


def test_a_row_restored_by_a_request_whose_answer_is_lost_does_not_go_live_unverified() -> None:
    visited(searched(GateWorld, LOST_ANSWER), at_least=50)


def test_targets_are_not_dropped_when_the_source_has_vanished_before_the_last_look() -> None:
    visited(searched(VanishingWorld, Budget()), at_least=10)


@pytest.mark.soak
def test_without_the_mark_a_restored_row_goes_live() -> None:
    with safety_broken.not_marked():
        assert searched(GateWorld, Budget()).loss == GHOST


@pytest.mark.soak
def test_without_waiting_for_what_a_killed_command_sent_a_restored_row_goes_live() -> None:
    """It lands behind the verification that began after it was marked."""
    with safety_broken.not_quiet():
        assert searched(GateWorld, CRASH).loss == GHOST


@pytest.mark.soak
def test_without_proof_the_last_copy_is_dropped() -> None:
    first, second = safety_broken.not_proved()
    with first, second:
        assert searched(VanishingWorld, Budget()).loss == GONE


@pytest.mark.soak
def test_without_another_look_before_the_drop_the_last_copy_is_dropped() -> None:
    with safety_broken.proved_once():
        assert searched(VanishingWorld, Budget()).loss == GONE
