"""The cutover and the way back of a group in every order: its control rows say the same at every moment.

The runner may be killed anywhere, with what it had sent under way; an answer may be lost; a command on
another member may leave the freeze meanwhile; a member may refuse. Nothing is bounded, but preemptions where
`make test` kills a runner.

Soak: a killed runner with preemptions, on the way back, or where a member refuses; rules switched off.
Reason, and what `make test` covers: up to a quarter of a minute each; a killed runner in a cutover without
preemptions, a lost answer in all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulation import group_small
from tests.simulation.explore import Budget, Searched, search
from tests.simulation.group_small import MEMBERS, GroupWorld, at_work
from tests.simulation.one_store import assert_harmless
from tests.simulation.scheduler import Scheduler
from tests.soaking import others_in_soak

CRASH = Budget(crashes=1, late_requests=True)
WORLDS: dict[str, dict[str, Any]] = {
    "cutover": {},
    "way back": {"back": True},
    "a member refuses": {"refuses": MEMBERS[1]},
    "a member refuses the way back": {"back": True, "refuses": MEMBERS[1]},
}
LOST_ANSWER = Budget(lost_answers=1, late_requests=True)


def group(budget: Budget, **more: Any) -> Searched:
    """Search one world. `more` as `GroupWorld` takes it."""

    def make(scheduler: Scheduler) -> GroupWorld:
        return GroupWorld(scheduler, **more)

    with at_work():
        found = search(make, budget, most_states=1_000_000)
    print(f"{more}: {found}")
    return found


def harmless(world: str, budget: Budget) -> None:
    assert_harmless(group(budget, **WORLDS[world]), 500)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("world", "preemptions"),
    others_in_soak(
        [("cutover", 0), ("cutover", 1), *((world, None) for world in WORLDS)], kept=[("cutover", 0)]
    ),
)
def test_a_killed_runner_leaves_no_mixed_group_and_moves_nothing_behind_a_write(
    world: str, preemptions: int | None
) -> None:
    harmless(world, replace(CRASH, preemptions=preemptions))


@pytest.mark.parametrize("world", WORLDS)
def test_a_lost_answer_leaves_no_mixed_group_and_moves_nothing_behind_a_write(world: str) -> None:
    harmless(world, LOST_ANSWER)


@pytest.mark.soak
@pytest.mark.parametrize("back", [False, True])
def test_rows_that_are_moved_one_by_one_leave_a_mixed_group(back: bool) -> None:
    with group_small.one_by_one():
        found = group(CRASH, back=back)
    assert found.loss.startswith("a mixed group"), found
    assert found.schedule


@pytest.mark.soak
def test_a_move_that_is_not_conditional_comes_behind_a_write() -> None:
    """Its answer was lost, the group was taken back, the application writes: and then it lands."""
    with group_small.unconditional():
        found = group(LOST_ANSWER)
    assert found.loss == "moved behind a write that nothing compared", found
