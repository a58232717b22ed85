"""Which of the two mapping rows a dual write could do without (ADR 0065), by search.

Soak: the larger of the worlds without forward rows.
Reason, and what `make test` covers: a minute and more each; those of one client.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulation import one_mapping_row
from tests.simulation.dual_cases import dual
from tests.simulation.explore import Budget
from tests.soaking import others_in_soak

CRASH = Budget(crashes=1, late_requests=True, preemptions=1)
OPEN = Budget(lost_answers=1, late_requests=True, preemptions=1)
CALM = Budget(preemptions=1)
BACKFILL: dict[str, Any] = {"backfill": True, "copied": False}


def test_without_its_reverse_row_a_deleted_row_has_nobody_that_it_was_of() -> None:
    """A client is killed when its delete in the new table is done: the intent names the new key, whose row is
    gone, and nothing says which source row must go, too."""
    with one_mapping_row.forward_only():
        found = dual("users, cutover: new delete", CRASH)
    assert found.loss, found
    assert any("is killed" in str(step) for step in found.schedule)
    assert not dual("users, cutover: new delete", CRASH).loss


ALONE = [
    ("users, dual_write: old replace", CRASH, {}),
    ("users, dual_write, absent: old insert", CRASH, {}),
    ("users, dual_write: new merge", CRASH, {}),
    ("users, cutover: new delete", CRASH, {}),
    ("users, cutover: new delete", OPEN, {}),
    ("users, cutover: old upsert", CRASH, {}),
]
LARGER = [
    ("users, cutover, absent: new insert", CRASH, {}),
    ("users, dual_write: old merge | new replace-if", CALM, {}),
    ("users, dual_write, absent: old insert | old delete", CALM, {}),
    ("users, cutover, absent: new insert | new delete", CALM, {}),
    ("users, dual_write: old delete", replace(CRASH, preemptions=0), BACKFILL),
    ("users, dual_write: old replace", CALM, BACKFILL),
]


@pytest.mark.parametrize(("name", "budget", "more"), others_in_soak([*ALONE, *LARGER], kept=ALONE))
def test_without_forward_rows_nothing_is_lost_where_keys_alone_say_them(
    name: str, budget: Budget, more: dict[str, Any]
) -> None:
    with one_mapping_row.reverse_only():
        found = dual(name, budget, **more)
    assert not found.loss, (found.loss, found.schedule)
    assert found.states > 15


def test_a_version_that_knows_both_rows_loses_writes_beside_one_that_writes_claims_alone() -> None:
    """Up to 0.2 it takes a key without a forward row for one that was never copied, and leaves its source row
    as it is: so which rows are written would have to be recorded where older versions refuse it."""
    name = "users, cutover: new replace"
    with one_mapping_row.reverse_only():
        assert not dual(name, CRASH).loss
        with one_mapping_row.older_sweeper():
            found = dual(name, CRASH)
    assert found.loss, found
