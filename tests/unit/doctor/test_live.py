"""What `rekey doctor --live` judges and tells, from what was seen alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rekey.core.clock import later
from rekey.core.severity import Severity
from rekey.doctor.live.checks import ALIKE, CHECKS, ERROR, PROMISES, WIRE, deviations
from rekey.doctor.live.run import tell
from rekey.doctor.live.stage import PREFIX, STALE_S, is_stale, new_prefix
from rekey.doctor.report import Fact, Finding, finding
from tests.asserts.documents import ROOT
from tests.asserts.every import every

NOW = "2026-01-31T12:00:00.0000000Z"
ONCE = {"again": "409 EntityAlreadyExists", "kept": "1"}


def test_what_must_be_seen_is_no_deviation() -> None:
    assert deviations("insert-once", ONCE, azurite=False) == []
    seen = dict.fromkeys(("replace", "merge", "delete"), "412 ConditionNotMet")
    assert deviations("conditions", {**seen, "kept": "2", "current": "done"}, azurite=False) == []


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        ({**ONCE, "again": "done"}, "again"),
        ({"again": ONCE["again"]}, "kept"),
        ({**ONCE, "more": "of it"}, "more"),
        ({ERROR: "KeyError"}, ERROR),
    ],
    ids=["another word", "a word is missing", "an unknown word", "it failed"],
)
def test_anything_else_is_one(seen: dict[str, str], word: str) -> None:
    for azurite in (False, True):
        [one] = deviations("insert-once", seen, azurite=azurite)
        assert (one["word"], one["known"]) == (word, False)
        assert one["promise"] == PROMISES["older"]


def test_what_azurite_is_known_for_is_excused_on_azurite_alone() -> None:
    words = ("units_1024", "units_1025", "slash", "backslash", "hash", "question", "control")
    seen = {"units_512": "done", **dict.fromkeys(words, "400 KeyValueTooLarge")}
    assert [one["known"] for one in deviations("key-limits", seen, azurite=True)] == [True]
    assert [one["known"] for one in deviations("key-limits", seen, azurite=False)] == [False]
    other = {**seen, "units_1024": "500 InternalError"}
    assert [one["known"] for one in deviations("key-limits", other, azurite=True)] == [False]


def test_every_check_stands_in_the_catalogue_and_on_the_page_of_assumptions() -> None:
    lives = {"migration-delta", "migration-dual-write"}
    assert set(CHECKS) == {*ALIKE, *WIRE, *lives}
    page = (ROOT / "docs/reference/assumptions.md").read_text("utf-8")
    assert set(re.findall(r"`live:([a-z-]+)`", page)) == set(CHECKS)


def test_every_promise_that_a_finding_names_is_one() -> None:
    page = (ROOT / "docs/reference/promises.md").read_text("utf-8")
    assert every(f"| {promise} " in page for promise in PROMISES.values())
    assert {one["promise"] for one in CHECKS.values()} == set(PROMISES)


def report(
    *deviating: dict[str, Any], removed: list[str] | None = None, left: list[str] | None = None
) -> Any:
    """Return a report of one check."""
    checks = [{"check": "clock", "account": "tables", "what": "time goes on", "deviations": list(deviating)}]
    return {
        "checks": checks,
        "accounts": [{"section": "tables", "removed": removed or [], "left": left or []}],
    }


def deviation(*, known: bool) -> dict[str, Any]:
    """Return a deviation as a report has it."""
    said = {"check": "clock", "word": "date", "wanted": "does not fall", "seen": "falls"}
    return {**said, "known": known, "promise": PROMISES["runner"]}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (report(deviation(known=False)), ("live-deviates", Severity.ERROR)),
        (report(deviation(known=True)), ("live-known", Severity.NOTE)),
        (report(left=["rekeylive1"]), ("live-left", Severity.WARNING)),
    ],
)
def test_a_finding_is_made_where_it_is_due(told: Any, expected: tuple[str, Severity]) -> None:
    [one] = [each for each in tell(told) if isinstance(each, Finding)]
    assert (one.code, one.severity) == expected
    assert one.seen and one.why and one.remedy


def test_a_finding_says_what_was_expected_and_seen_and_which_promise_rests_on_it() -> None:
    [one] = [each for each in tell(report(deviation(known=False))) if isinstance(each, Finding)]
    assert one.about == "tables, clock"
    assert "time goes on" in one.seen and "does not fall" in one.seen and "falls" in one.seen
    assert PROMISES["runner"] in one.why


def test_a_check_that_failed_is_to_be_made_again() -> None:
    """The account may have been busy: it was not shown that something does not hold."""
    failed = {**deviation(known=False), "word": ERROR, "seen": "Unavailable ServerBusy"}
    [one] = [each for each in tell(report(failed)) if isinstance(each, Finding)]
    assert one.severity is Severity.ERROR
    assert "failed: Unavailable ServerBusy" in one.seen
    assert one.remedy.startswith("run it again")


def test_without_deviations_there_are_facts_alone() -> None:
    told = list(tell(report(removed=["rekeylive1"])))
    assert [type(one) for one in told] == [Fact, Fact]
    assert "1 of 1" in told[0].seen


def test_accounts_that_cannot_be_used_are_told() -> None:
    assert finding("live-not-tried", "accounts").severity is Severity.ERROR


def test_only_tables_of_a_run_that_is_surely_over_are_stale() -> None:
    name = f"{new_prefix(NOW)}source"
    assert re.fullmatch(PREFIX + "[0-9]{10}[0-9a-f]{6}source", name)
    assert is_stale(name, later(NOW, STALE_S + 1))
    assert not is_stale(name, later(NOW, STALE_S - 1))
    for other in (
        "rekeylive",
        "rekeylivery",
        f"x{name}",
        f"{PREFIX}123source",
        "rekeystress0123456789abcdef",
    ):
        assert not is_stale(other, "2999-01-01T00:00:00.0000000Z")
