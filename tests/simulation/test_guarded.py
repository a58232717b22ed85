"""A migration with capture "delta" in every order, under a process that follows it by its guard.

Soak: more preemptions, and the authority moves to and fro.
Reason, and what `make test` covers: minutes; one move, with fewer preemptions, and the rule switched off.
`tests/contract/test_parts.py` and `test_merged.py` have a write in flight while the authority moves twice.
"""

from __future__ import annotations

from typing import Any

import pytest

from rekey.protocol.rules import View
from tests.simulation import guarded_small
from tests.simulation.explore import Budget, Searched, search
from tests.simulation.guarded_small import GuardedWorld, at_work
from tests.simulation.one_store import assert_harmless
from tests.simulation.scheduler import Scheduler

# The phase that the runner ends in.
DECIDES = {View.OLD: "cutover", View.NEW: "dual_write"}


def searched(view: View, budget: Budget, **more: Any) -> Searched:
    def make(scheduler: Scheduler) -> GuardedWorld:
        return GuardedWorld(scheduler, view, **more)

    with at_work():
        result = search(make, budget, most_states=1_000_000)
    print(f"{view}, {more}: {result}")
    return result


@pytest.mark.parametrize("view", View)
def test_a_write_that_is_acknowledged_is_not_lost_when_the_authority_moves(view: View) -> None:
    assert_harmless(searched(view, Budget(preemptions=1)), 300)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("view", "more"),
    [
        (View.OLD, {"looks": 1}),
        (View.OLD, {"begins": True}),
        (View.OLD, {"moves": 4}),
        (View.NEW, {"looks": 1}),
        (View.NEW, {"moves": 4}),
    ],
    ids=["cutover", "from the beginning", "cutover and back", "rollback", "rollback and cutover"],
)
def test_a_write_that_is_acknowledged_is_not_lost_by_several_moves(view: View, more: dict[str, Any]) -> None:
    assert_harmless(searched(view, Budget(preemptions=2), **more), 1_000)


@pytest.mark.parametrize("view", View)
def test_a_write_is_answered_once_the_control_row_read_after_it_shows_no_freeze(view: View) -> None:
    with guarded_small.writes_are_answered_without_another_look():
        result = searched(view, Budget(preemptions=1))
    assert result.loss == f"an acknowledged write is lost in {DECIDES[view]}", result
    assert result.schedule


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_write_is_not_answered_if_a_freeze_has_come_and_gone() -> None:
    """Under way meanwhile, it may have landed where it was overwritten."""
    with guarded_small.a_freeze_between_may_be_over():
        result = searched(View.NEW, Budget(preemptions=3), moves=4)
    assert result.loss == "an acknowledged write is lost in cutover", result
    assert result.schedule
