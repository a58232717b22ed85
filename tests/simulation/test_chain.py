"""A chain in every order: a process of the first migration writes the table that the next one moves on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation import chain_small, parts_small
from tests.simulation.chain_small import ChainWorld
from tests.simulation.explore import Budget, Searched, search
from tests.simulation.one_store import assert_harmless
from tests.simulation.parts_small import at_work
from tests.simulation.scheduler import Scheduler


def searched(preemptions: int, **more: Any) -> Searched:
    def make(scheduler: Scheduler) -> ChainWorld:
        return ChainWorld(scheduler, **more)

    with at_work():
        result = search(make, Budget(preemptions=preemptions), most_states=1_000_000)
    print(f"{more}: {result}")
    return result


@pytest.mark.parametrize("more", [{}, {"looks": 1}, {"ends": True}], ids=["lives on", "looks", "ends"])
def test_a_process_of_the_first_migration_loses_no_row_while_the_next_one_moves(more: dict[str, Any]) -> None:
    assert_harmless(searched(2, **more), 500)


@pytest.mark.parametrize(
    "rule",
    [chain_small.the_first_clients_are_not_told, parts_small.gates_ask_no_clients_of_other_parts],
    ids=["clients are told", "gates ask"],
)
def test_each_rule_is_needed(rule: Any) -> None:
    with rule():
        result = searched(2)
    assert result.loss == "a row of the part south is lost", result
    assert result.schedule
