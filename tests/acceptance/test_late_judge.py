"""The judge of late lives finds every planted loss, and finds nothing where clients were told the truth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.worlds.late_ledger import READ, Did, Look, State, Verdict, judge, steady

A: dict[str, Any] = {"name": "a"}
B: dict[str, Any] = {"name": "b"}
C: dict[str, Any] = {"name": "c"}


def one(
    began: int,
    verb: str,
    content: dict[str, Any] | None = None,
    *,
    ended: int | None = None,
    outcome: str = "acknowledged",
    row: str = "r1",
    **more: Any,
) -> Did:
    """Return an operation that takes from `began` to `ended`, five moments when that is not said."""
    end = None if outcome == "open" else began + 5 if ended is None else ended
    number = more.pop("number", began)
    return Did(
        "w",
        number,
        row,
        more.pop("view", "old"),
        verb,
        content or {},
        began=began,
        ended=end,
        outcome=outcome,
        **more,
    )


def read(began: int, saw: State, **more: Any) -> Did:
    """Return a read."""
    return one(began, READ, saw=saw, **more)


def judged(done: list[Did], found: dict[str, State], initial: dict[str, State] | None = None) -> Verdict:
    """Return the verdict on rows that are not there at the beginning, unless it is said."""
    return judge(initial or {}, done, found)


TOLD_THE_TRUTH = [
    one(10, "create", A),
    one(20, "merge", {"extra": "x"}, ended=60),
    one(30, "replace", B, ended=50),
    read(70, {**B, "extra": "x"}),
    one(80, "put", C, outcome="open"),
    one(90, "delete"),
    read(100, None),
    one(110, "create", A),
    read(120, A),
    read(130, C),
    one(140, "replace", B, expected=C),
    one(150, "replace", A, expected=A, outcome="failed", why="UpdateConditionNotSatisfied"),
    one(160, "create", C, outcome="failed", why="EntityAlreadyExists"),
]
"""An open write that takes effect late, behind others; a merge and a replace at once."""


def test_clean_ledgers_pass() -> None:
    verdict = judged(TOLD_THE_TRUTH, {"r1": B})
    assert not verdict.wrong, str(verdict)
    assert verdict.writes == {"acknowledged": 6, "failed": 2, "open": 1}
    assert verdict.reads == 4


@pytest.mark.parametrize("found", [A, C, None, {**B, "extra": "x"}])
def test_anything_else_at_the_end_is_found(found: State) -> None:
    """The open write took effect before and was replaced: it cannot do so again."""
    assert judged(TOLD_THE_TRUTH, {"r1": found}).wrong


def test_a_lost_acknowledged_write_is_found() -> None:
    created = [one(10, "create", A), one(20, "delete"), one(30, "create", B)]
    assert not judged(created, {"r1": B}).wrong
    assert "it is lost" in judged(created, {}).wrong[0]
    assert judged([], {}, {"r1": A}).wrong, "a row that nobody touched counts, too"
    updated = [one(10, "create", A), one(20, "merge", {"extra": "x"})]
    assert "not what was written last" in judged(updated, {"r1": A}).wrong[0]


def test_a_revived_row_is_found() -> None:
    deleted = [one(10, "create", A), one(20, "delete")]
    assert not judged(deleted, {}).wrong
    assert "it is back" in judged(deleted, {"r1": A}).wrong[0]
    assert "nobody wrote" in judged([], {"r1": A}).wrong[0]


def test_a_row_that_was_back_for_a_moment_is_found_by_whoever_saw_it() -> None:
    done = [one(10, "create", A), one(20, "delete"), read(30, A), one(40, "put", B)]
    assert "no order explains what w saw with 30" in judged(done, {"r1": B}).wrong[0]


def test_an_older_version_is_found() -> None:
    done = [one(10, "put", A), one(20, "put", B, ended=40), one(30, "put", C, ended=50)]
    assert not judged(done, {"r1": B}).wrong, "two that were written at once: either may be the last"
    assert not judged(done, {"r1": C}).wrong
    assert judged(done, {"r1": A}).wrong


def test_a_write_that_was_said_to_have_failed_and_took_effect_is_found() -> None:
    done = [one(10, "create", A), one(20, "replace", B, outcome="failed", why="ResourceNotFound")]
    assert judged(done, {"r1": A}).wrong, "the row was there"
    refused = [done[0], replace(done[1], why="frozen")]
    assert not judged(refused, {"r1": A}).wrong
    assert judged(refused, {"r1": B}).wrong


def test_an_open_write_that_took_effect_twice_is_found() -> None:
    done = [one(10, "put", A, outcome="open"), read(20, A), one(30, "put", B), read(40, A)]
    assert judged(done, {"r1": A}).wrong
    assert not judged(done[:3], {"r1": B}).wrong


def test_a_doubled_row_is_found() -> None:
    """Two creations of one row are both acknowledged; and one month's row does not hide the other's."""
    assert judged([one(10, "create", A, ended=30), one(20, "create", B, ended=40)], {"r1": B}).wrong
    may = {"title": "t", "month": "2024-05"}
    june = {"title": "u", "month": "2024-06"}
    done = [
        one(10, "create", may, view="new", month="2024-05"),
        one(20, "create", june, view="new", month="2024-06"),
    ]
    assert judged(done, {"r1": june}).wrong
    refused = replace(done[1], outcome="failed", why="key-taken")
    assert not judged([done[0], refused], {"r1": may}).wrong
    there = read(30, may, view="new", month="2024-05")
    assert not judged([done[0], read(20, None, view="new", month="2024-06"), there], {"r1": may}).wrong
    assert judged([done[0], replace(there, saw=None)], {"r1": may}).wrong


def test_a_lost_member_of_a_transaction_is_found() -> None:
    done = [
        one(10, "put", A, batch="w.1"),
        one(10, "put", B, batch="w.1", row="r2", number=11),
        one(10, "put", C, batch="w.1", row="r3", number=12),
    ]
    assert not judged(done, {"r1": A, "r2": B, "r3": C}).wrong
    assert "row r2" in judged(done, {"r1": A, "r3": C}).wrong[0]


def test_an_open_transaction_that_took_effect_in_part_is_found() -> None:
    done = [
        one(10, "put", A, batch="w.1", outcome="open"),
        one(10, "put", B, batch="w.1", row="r2", number=11, outcome="open"),
    ]
    assert not judged(done, {"r1": A, "r2": B}).wrong
    assert not judged(done, {}).wrong
    assert "in part: r1 and not r2" in judged(done, {"r1": A}).wrong[0]
    later = [*done, one(20, "put", C, row="r2")]
    assert not judged(later, {"r1": A, "r2": C}).wrong, "it may have, before it was overwritten"


def test_what_is_read_of_a_table_that_follows_is_no_evidence() -> None:
    """Reads count while the control row said all the time that the view's table is the authority."""
    looks = [
        Look(0, "old", "1"),
        Look(15, "old", "1"),
        Look(30, None, "2"),
        Look(45, "new", "3"),
        Look(90, "new", "3"),
    ]
    done = [one(2, "put", A), read(8, B), one(62, "put", C), read(70, A)]
    saw = {"r1": C}
    assert not judge({}, done, saw, steady([])).wrong, "nothing is known of the control row"
    assert "saw with 8" in judge({}, done, saw, steady(looks)).wrong[0]
    assert not judge({}, [done[0], done[2], done[3]], saw, steady(looks)).wrong, (
        "the old view follows by then"
    )
    new = replace(done[3], view="new")
    assert judge({}, [done[0], done[2], new], saw, steady(looks)).wrong
    moving = replace(new, began=20, ended=50, saw=None)
    assert not judge({}, [done[0], done[2], moving], saw, steady(looks)).wrong


def test_a_delete_of_what_is_not_there_does_not_hide_the_order_in_which_it_was() -> None:
    """A creation that overlaps two deletes may have come between them."""
    done = [
        one(10, "delete", ended=30),
        one(20, "create", B, ended=60),
        one(40, "delete", ended=50),
        read(70, None),
        one(80, "put-merge", C),
    ]
    assert not judged(done, {"r1": C}, {"r1": A}).wrong
    assert not judged([*done[:3], read(70, B)], {"r1": B}, {"r1": A}).wrong
    assert judged([*done[:3], read(70, A)], {"r1": B}, {"r1": A}).wrong


def test_many_writes_of_one_row_are_judged_quickly() -> None:
    """Four clients at once and four writes that stay open, a hundred operations in all."""
    done: list[Did] = []
    for number in range(0, 800, 8):
        value = {"name": f"v{number}"}
        open_now = number % 200 == 0
        done.append(
            one(number, "put", value, ended=number + 24, outcome="open" if open_now else "acknowledged")
        )
    assert not judged(done, {"r1": {"name": "v792"}}).wrong
    assert judged(done, {"r1": {"name": "v408"}}).wrong
