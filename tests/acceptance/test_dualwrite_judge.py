"""The judge of the dual-write tests finds losses, resurrections, and answers that could not be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.dualwriting_ledger import (
    LATE_S,
    Entry,
    Ledger,
    Outcome,
    State,
    Verb,
    entries_of,
    judge,
    lines_of,
)

Said = tuple[Verb, dict[str, Any], Outcome]


def history(*said: Said, row: str = "r", expected: dict[str, Any] | None = None) -> list[Entry]:
    """Return writes one after the other; `expected` is the condition of the last one."""
    return [
        Entry(
            "w",
            row,
            verb,
            content,
            expected if number == len(said) - 1 else None,
            began=10 * number,
            ended=None if outcome == "open" else 10 * number + 5,
            outcome=outcome,
        )
        for number, (verb, content, outcome) in enumerate(said)
    ]


def found_wrong(entries: list[Entry], now: State, before: State = None, row: str = "r") -> str:
    """Return what the judge says of one row, "" when nothing."""
    wrong = judge({row: before}, entries, {row: now}).wrong
    return wrong[0] if wrong else ""


A: dict[str, Any] = {"v": 1}
B: dict[str, Any] = {"v": 2}


def test_a_lost_acknowledged_write_is_found() -> None:
    written = history(("create", A, "acknowledged"), ("replace", B, "acknowledged"))
    assert found_wrong(written, B) == ""
    assert "must hold {'v': 2}" in found_wrong(written, A)
    assert "is lost" in found_wrong(written, None)
    assert "is lost" in found_wrong([], None, before=A), "a row that nobody touched counts, too"


def test_a_deleted_row_that_is_back_is_found() -> None:
    deleted = history(("create", A, "acknowledged"), ("delete", {}, "acknowledged"))
    assert found_wrong(deleted, None) == ""
    assert "is back" in found_wrong(deleted, A)
    assert "is back" in found_wrong([], A), "a row that nobody ever wrote, too"


def test_an_open_write_may_have_happened_or_not_and_nothing_else() -> None:
    written = history(("create", A, "acknowledged"), ("replace", B, "open"))
    assert found_wrong(written, A) == ""
    assert found_wrong(written, B) == ""
    assert found_wrong(written, {"v": 3})
    gone = history(("create", A, "acknowledged"), ("delete", {}, "open"))
    assert not found_wrong(gone, None)
    assert not found_wrong(gone, A)
    settled = history(("create", A, "open"), ("put", B, "acknowledged"))
    assert found_wrong(settled, A), "what came after it and was acknowledged ends the doubt"


@pytest.mark.parametrize(("seconds", "allowed"), [(LATE_S - 0.5, True), (LATE_S + 0.5, False)])
def test_a_write_that_was_given_up_may_take_effect_after_the_next_one_for_a_while(
    seconds: float, allowed: bool
) -> None:
    ends = 1_000_000_000
    begins = ends + round(seconds * 1e9)
    given_up = Entry("w", "r", "put", A, None, began=0, ended=ends, outcome="open")
    next_one = Entry("w", "r", "put", B, None, began=begins, ended=begins + 5, outcome="acknowledged")
    assert (found_wrong([given_up, next_one], A) == "") is allowed
    assert found_wrong([given_up, next_one], B) == ""
    conditional = replace(given_up, expected=A)
    assert found_wrong([conditional, next_one], A, before=A), "what is conditional finds another row"


def test_a_failed_write_must_not_have_happened() -> None:
    written = history(("create", A, "acknowledged"), ("replace", B, "failed"))
    assert found_wrong(written, A) == ""
    assert found_wrong(written, B)


def test_an_acknowledged_merge_is_lost_when_one_property_of_it_is() -> None:
    merged = history(("create", {"a": 1, "b": 1}, "acknowledged"), ("merge", {"b": 2}, "acknowledged"))
    assert found_wrong(merged, {"a": 1, "b": 2}) == ""
    assert found_wrong(merged, {"a": 1, "b": 1})
    assert found_wrong(merged, {"b": 2}), "and when it took others with it"
    onto_nothing = history(("put-merge", {"b": 2}, "acknowledged"))
    assert found_wrong(onto_nothing, {"b": 2}) == ""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ((("create", A, "acknowledged"), ("create", B, "acknowledged")), None),
        ((("delete", {}, "acknowledged"), ("replace", B, "acknowledged")), None),
        ((("delete", {}, "acknowledged"), ("merge", B, "acknowledged")), None),
        ((("create", A, "acknowledged"), ("replace", B, "acknowledged")), {"v": 7}),
        ((("create", A, "acknowledged"), ("delete", {}, "acknowledged")), {"v": 7}),
    ],
    ids=["created twice", "replaced nothing", "merged onto nothing", "condition", "condition of a delete"],
)
def test_an_acknowledgement_that_could_not_be_is_found(
    said: tuple[Said, ...], expected: dict[str, Any] | None
) -> None:
    entries = history(*said, expected=expected)
    assert "was acknowledged on" in found_wrong(entries, B)


def test_two_writers_of_one_row_at_once_are_a_mistake_of_the_test() -> None:
    one, other = history(("create", A, "acknowledged"), ("replace", B, "acknowledged"))
    at_once = [one, Entry(**{**other.__dict__, "began": one.began + 1})]
    assert "the test is wrong" in found_wrong(at_once, B)


def test_a_counter_that_forgets_or_counts_twice_is_found() -> None:
    def raises(*numbers: int, maybe: int = 0) -> list[Entry]:
        said: list[Said] = [("merge", {"counter": number}, "acknowledged") for number in numbers]
        said += [("merge", {"counter": 99}, "open")] * maybe
        return history(*said, row="s#counter")

    def wrong(entries: list[Entry], now: int) -> str:
        return found_wrong(entries, {"counter": now}, {"counter": 0}, row="s#counter")

    assert wrong(raises(1, 2, 3), 3) == ""
    assert "counts 2; 3 raises" in wrong(raises(1, 2, 3), 2)
    assert "counts 4; 3 raises" in wrong(raises(1, 2, 3), 4)
    assert wrong(raises(1, 2, 3, maybe=1), 4) == ""
    assert "same number 2" in wrong(raises(1, 2, 2), 3)
    assert "is lost" in found_wrong(raises(1), None, row="s#counter")


def test_what_a_killed_process_had_tried_is_open(tmp_path: Path) -> None:
    """The last line may be cut; what has no answer may have happened."""
    path = tmp_path / "w.jsonl"
    with Ledger(path, "w") as ledger:
        ledger.note("began")
        ledger.ended(ledger.tried("create", "r", A), "acknowledged")
        ledger.ended(ledger.tried("replace", "r", B), "failed", "412")
        ledger.tried("delete", "r", {}, expected=A)
    path.write_bytes(path.read_bytes() + json.dumps({"what": "tried"}).encode()[:7])
    entries = entries_of([path, tmp_path / "there-is-none.jsonl"])
    assert [entry.outcome for entry in entries] == ["acknowledged", "failed", "open"]
    assert [entry.why for entry in entries] == ["", "412", "killed"]
    assert entries[2].expected == A
    assert len(lines_of(path)) == 6
    assert judge({}, entries, {"r": A}).wrong == []
    assert judge({}, entries, {"r": None}).wrong == []
    assert "2 acknowledged" not in str(judge({}, entries, {"r": B}))
