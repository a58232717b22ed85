"""The ledger follows the control row after a kill between two writes, or when the state file was lost."""

from __future__ import annotations

import pytest

from rekey.phases import LEAVES, ORDER, ControlPhase, Phase
from rekey.state.applied import aligned


@pytest.mark.parametrize("phase", ORDER)
def test_a_phase_that_ended_in_peace_stays_as_it_is(phase: Phase) -> None:
    applied = ORDER[: ORDER.index(phase) + 1]
    assert aligned(LEAVES[phase], applied) == applied


def test_nothing_applied_yet_stays_nothing() -> None:
    assert aligned(ControlPhase.SOURCE, ()) == ()


@pytest.mark.parametrize(
    ("control", "applied", "counts"),
    [
        pytest.param("cutover", "reconcile", "cutover", id="killed after authority moved to the target"),
        pytest.param("dual_write", "cutover", "reconcile", id="killed after the way back moved it again"),
        pytest.param("source", "dual_write", "prepare", id="killed while dual_write was undone"),
        pytest.param("dual_write", "prepare", "dual_write", id="killed after dual_write began"),
        pytest.param("complete", "cutover", "complete", id="killed after complete"),
        pytest.param("retired", "complete", "retire", id="killed after the source was deleted"),
    ],
)
def test_the_control_row_decides_between_two_writes(control: str, applied: str, counts: str) -> None:
    known = ORDER[: ORDER.index(Phase(applied)) + 1]
    assert aligned(ControlPhase(control), known)[-1] is Phase(counts)


@pytest.mark.parametrize(
    ("control", "last"),
    [("source", None), ("dual_write", "dual_write"), ("cutover", "cutover"), ("complete", "complete")],
)
def test_a_lost_state_file_repeats_only_the_copy(control: str, last: str | None) -> None:
    found = aligned(ControlPhase(control), ())
    assert (found[-1] if found else None) == (Phase(last) if last else None)
