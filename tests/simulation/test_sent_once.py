"""A sweeper of the journal whose requests stay unanswered, beside a client that deletes the row: what lands
late brings nothing back, in any order. If the sweeper sends again what was not answered, the search finds the
loss.

Searched is the program's sweeper; the intent that it settles is one that a killed client left behind.

Soak: preemptions; two sweeps; no stored mapping; each rule switched off.
Reason, and what `make test` covers: minutes; one sweep without preemptions, and two of them in
`test_late_rules.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rekey.model import key_of
from tests.simulation import late_rules_broken
from tests.simulation.dual_cases import ann, dual
from tests.simulation.dual_small import DualParts
from tests.simulation.explore import Budget, Searched
from tests.soaking import others_in_soak

OPEN = Budget(lost_answers=1, late_requests=True)
BACK = "UsersV2 holds 1 rows that no source row gives"


KEYS = pytest.mark.parametrize("keys", others_in_soak(["users", "inverted"], kept=["users"]))
UNANNOUNCED = DualParts(journal=late_rules_broken.Unannounced)


def swept(
    preemptions: int | None,
    does: str = "delete",
    parts: DualParts | None = None,
    *,
    keys: str = "users",
    **more: Any,
) -> Searched:
    """Search a world in which a sweeper inserts the row that a client writes."""
    budget = replace(OPEN, preemptions=preemptions)
    return dual(
        f"{keys}, dual_write: old {does}", budget, parts, copied=False, abandoned=[key_of(ann(1))],
        open_sweeps=True, **{"sweeps": 1, **more},
    )  # fmt: skip


def visited(name: str, found: Searched, *, at_least: int) -> None:
    """Say how much was visited; nothing may be lost, and a search that shrank is no search."""
    print(f"{name}: {found}")
    assert not found.loss, (found.loss, found.schedule)
    assert found.states >= at_least


def lost(found: Searched) -> None:
    print(f"found in schedule {found.schedules}, after {found.states:,} states")
    assert found.loss == BACK, found
    assert found.schedule


@KEYS
def test_what_a_sweep_left_open_brings_nothing_back(keys: str) -> None:
    visited(f"{keys}, one sweep", swept(0, keys=keys), at_least=300)


@pytest.mark.soak
@KEYS
def test_the_next_sweep_leaves_alone_what_the_last_one_left_open(keys: str) -> None:
    """For as long as a request can take."""
    visited(f"{keys}, two sweeps", swept(0, keys=keys, sweeps=2), at_least=300)


@pytest.mark.soak
@KEYS
def test_a_sweep_that_repeats_what_was_not_answered_brings_a_deleted_row_back(keys: str) -> None:
    lost(swept(0, keys=keys, repeats=True))


@pytest.mark.soak
@KEYS
def test_where_the_next_sweep_takes_it_again_a_deleted_row_comes_back(keys: str) -> None:
    lost(swept(0, parts=UNANNOUNCED, keys=keys, sweeps=2))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("does", ["delete", "replace"])
@pytest.mark.parametrize(("sweeps", "preemptions"), [(1, 2), (2, 1)])
@KEYS
def test_no_order_of_sweeps_left_open_brings_anything_back(
    sweeps: int, preemptions: int, does: str, keys: str
) -> None:
    found = swept(preemptions, does, keys=keys, sweeps=sweeps)
    visited(f"{keys}, {does}, {sweeps} sweeps", found, at_least=500)
