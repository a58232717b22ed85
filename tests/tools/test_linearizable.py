"""The linearizability check accepts what one row could have answered, and nothing else."""

from __future__ import annotations

import pytest

from tests.simulation.linearizable import (
    CONDITION,
    DONE,
    EXISTS,
    MISSING,
    OPEN,
    Content,
    History,
    Operation,
    Refuses,
    Undecided,
)


def insert(began: int, ended: int | None, content: str, outcome: str = DONE) -> Operation:
    def act(there: Content) -> Content | Refuses:
        return content if there is None else Refuses(EXISTS)

    return Operation(began, ended, f"insert {content}", outcome, act)


def replace(
    began: int, ended: int | None, content: str, outcome: str = DONE, basis: int | None = None, **more: bool
) -> Operation:
    def act(there: Content) -> Content | Refuses:
        return Refuses(MISSING) if there is None else content

    return Operation(began, ended, f"replace {content}", outcome, act, basis=basis, **more)


def delete(began: int, ended: int | None, outcome: str = DONE) -> Operation:
    def act(there: Content) -> Content | Refuses:
        return Refuses(MISSING) if there is None else None

    return Operation(began, ended, "delete", outcome, act)


def append(began: int, ended: int | None, text: str, outcome: str = DONE) -> Operation:
    def act(there: Content) -> Content | Refuses:
        return Refuses(MISSING) if there is None else f"{there}{text}"

    return Operation(began, ended, f"append {text}", outcome, act)


def read(began: int, ended: int, saw: Content, *, replica: bool = False) -> Operation:
    return Operation(began, ended, f"read {saw}", saw=saw, replica=replica)


@pytest.mark.parametrize(
    ("initial", "operations", "final"),
    [
        (None, [], None),
        (None, [insert(1, 2, "a"), replace(3, 4, "b"), delete(5, 6)], None),
        ("a", [replace(1, 4, "b"), replace(2, 3, "c")], "b"),
        ("a", [replace(1, 4, "b"), replace(2, 3, "c")], "c"),
        ("a", [insert(1, 4, "b", EXISTS), delete(2, 3)], None),
        ("a", [insert(1, 4, "b"), delete(2, 3)], "b"),
        ("a", [replace(1, 4, "b", MISSING), delete(2, 3)], None),
        ("a", [append(1, 9, "b"), append(2, 8, "c"), read(3, 4, "ac"), read(5, 6, "acb")], "acb"),
        ("a", [replace(1, None, "b", OPEN), read(2, 3, "a")], "b"),
        ("a", [replace(1, None, "b", OPEN), read(2, 3, "a")], "a"),
        ("a", [replace(1, None, "b", OPEN), replace(2, 3, "c"), read(4, 5, "c"), read(6, 7, "b")], "b"),
        ("a", [read(1, 2, "a"), replace(3, 6, "b", basis=0), replace(4, 5, "c")], "c"),
        ("a", [read(1, 2, "a"), replace(3, 6, "b", CONDITION, basis=0), replace(4, 5, "c")], "c"),
        ("a", [read(1, 2, "a"), replace(3, 4, "b", CONDITION, basis=0, spurious=True)], "a"),
        ("a", [replace(1, 9, "b"), read(2, 3, "b"), read(4, 5, "a", replica=True)], "b"),
        ("a", [read(1, 2, "a"), replace(3, None, "b", OPEN, basis=0), replace(4, 5, "c")], "c"),
    ],
)
def test_what_one_row_could_have_answered_is_accepted(
    initial: Content, operations: list[Operation], final: Content
) -> None:
    assert History(initial, operations, [final]).is_linearizable()


@pytest.mark.parametrize(
    ("initial", "operations", "final"),
    [
        pytest.param("a", [replace(1, 2, "b")], "a", id="an acknowledged write is lost"),
        pytest.param("a", [delete(1, 2)], "a", id="a deleted row is back"),
        pytest.param(None, [insert(1, 2, "a")], None, id="an acknowledged insert is lost"),
        pytest.param("a", [replace(1, 2, "b"), replace(3, 4, "c")], "b", id="an older write wins"),
        pytest.param("a", [], "b", id="a write out of nowhere"),
        pytest.param(None, [insert(1, 4, "a"), insert(2, 3, "b")], "a", id="two inserts are acknowledged"),
        pytest.param("a", [append(1, 4, "b"), append(2, 3, "c")], "ab", id="a merge overwrites another"),
        pytest.param("a", [replace(1, 4, "b", MISSING)], "a", id="a row was missing that was there"),
        pytest.param("a", [replace(1, 4, "b"), read(2, 3, "b"), read(5, 6, "a")], "b", id="a read goes back"),
        pytest.param(
            "a", [replace(1, 2, "b"), read(3, 4, "a", replica=True)], "b", id="a replica lags"
        ),
        pytest.param(
            "a", [read(1, 2, "a"), replace(3, 4, "c"), replace(5, 6, "b", basis=0)], "b", id="a lost update"
        ),
        pytest.param("a", [read(1, 2, "a"), replace(3, 4, "b", CONDITION, basis=0)], "a", id="refused"),
        pytest.param(
            "a",
            [replace(1, None, "b", OPEN), read(2, 3, "b"), read(4, 5, "a")],
            "b",
            id="an open write takes effect twice",
        ),
    ],
)  # fmt: skip
def test_what_no_row_could_have_answered_is_found(
    initial: Content, operations: list[Operation], final: Content
) -> None:
    history = History(initial, operations, [final])
    assert not history.is_linearizable()
    assert operations == [] or operations[0].text in str(history)


def test_a_history_of_many_operations_at_once_is_searched_quickly() -> None:
    """Ten writes that overlap all, and a read of what nobody wrote: without the memo, 10! orders."""
    writes = [replace(number, 100 + number, f"write {number}") for number in range(10)]
    assert not History("x", [*writes, read(50, 51, "y")], ["write 3"]).is_linearizable()


def test_a_history_that_would_take_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(History, "most_steps", 1_000)
    writes = [replace(number, None, f"write {number}", OPEN) for number in range(40)]
    with pytest.raises(Undecided):
        History("x", [*writes, read(50, 51, "y")], ["write 3"]).is_linearizable()
