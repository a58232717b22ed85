"""Two parts of one table in every order: under a process that follows both, and beside one that follows one.

Soak: both parts move; the process that follows one of them ends.
Reason, and what `make test` covers: minutes; one part moves, under each process, and each rule switched off.
`tests/scenarios/runner/test_parts_at_once.py` has a process that ends.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation import parts_small
from tests.simulation.explore import Budget, Searched, search
from tests.simulation.one_store import assert_harmless
from tests.simulation.parts_small import DECLARED, PartsWorld, at_work
from tests.simulation.scheduler import Scheduler
from tests.worlds.parts_of_a_table import NORTH, SOUTH

BOTH, ALONE = tuple(DECLARED.values()), (DECLARED[NORTH],)


def searched(budget: Budget, *given: Any, **more: Any) -> Searched:
    def make(scheduler: Scheduler) -> PartsWorld:
        return PartsWorld(scheduler, *given, **more)

    with at_work():
        result = search(make, budget, most_states=1_000_000)
    print(f"{more}: {result}")
    return result


def lost(rule: Any, budget: Budget, follows: Any, **more: Any) -> None:
    """Assert that the search finds the loss with a rule switched off."""
    with rule:
        result = searched(budget, follows, (SOUTH,), **more)
    assert result.loss == "a row of the part south is lost", result
    assert result.schedule


@pytest.mark.parametrize(
    ("preemptions", "states"),
    [(0, 250), pytest.param(1, 10_000, marks=[pytest.mark.soak, pytest.mark.timeout(0)])],
)
def test_a_process_that_follows_both_parts_loses_no_row_while_one_moves(
    preemptions: int, states: int
) -> None:
    assert_harmless(searched(Budget(preemptions=preemptions), BOTH, (SOUTH,)), states)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_process_that_follows_both_parts_loses_no_row_while_both_move() -> None:
    assert_harmless(searched(Budget(preemptions=0), BOTH, (NORTH, SOUTH), (NORTH, SOUTH)), 1_000)


@pytest.mark.parametrize(("absent", "preemptions"), [((), 1), ((NORTH,), 2)], ids=["begun", "not begun"])
def test_a_process_that_follows_one_part_loses_no_row_of_the_other(
    absent: tuple[str, ...], preemptions: int
) -> None:
    assert_harmless(searched(Budget(preemptions=preemptions), ALONE, (SOUTH,), absent=absent), 500)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_process_that_follows_one_part_and_ends_loses_no_row_of_the_other() -> None:
    assert_harmless(searched(Budget(preemptions=3), ALONE, (SOUTH,), ends=True), 2_000)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_nothing_is_copied_while_a_process_may_not_know_of_the_part() -> None:
    """It registered between the gate and the move, and has ended when the next gate asks."""
    lost(parts_small.the_copy_asks_no_clients_of_other_parts(), Budget(preemptions=3), ALONE, ends=True)


def test_each_row_is_written_by_the_client_of_its_part() -> None:
    """To another client it is a row of no part, which nothing follows."""
    lost(parts_small.every_row_is_the_first_clients(), Budget(preemptions=0), BOTH)


def test_rows_outside_the_own_part_are_written_only_if_all_begun_parts_are_known() -> None:
    lost(parts_small.unknown_parts_are_not_asked_for(), Budget(preemptions=0), ALONE)


def test_gates_ask_for_clients_that_do_not_follow_the_part() -> None:
    """A client that registered before the part began has not met it."""
    lost(parts_small.gates_ask_no_clients_of_other_parts(), Budget(preemptions=1), ALONE)


def test_a_client_registers_before_it_looks_which_parts_have_begun() -> None:
    """Otherwise a part begins between the two, and neither sees the other."""
    lost(parts_small.clients_look_before_they_register(), Budget(preemptions=1), ALONE, absent=(NORTH,))
