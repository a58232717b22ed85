"""Reports: what fits a terminal, what counts as a finding, what JSON says."""

import json

import pytest

from rekey.errors import ExitCode
from rekey.present.text import WIDTH
from rekey.verify.render import SHOWN, render
from rekey.verify.report import (
    Change,
    DifferenceKind,
    Divergence,
    Findings,
    FullReport,
    Outcome,
    PropertyDifference,
    Repair,
    RepairReport,
    TableComparison,
    exit_code,
)

LONG_TABLE = "T" * 63
LONG_NAME = "P" * 255


def report(found: Findings, repair: RepairReport | None = None, *, differing: int = 16384) -> FullReport:
    table = TableComparison(LONG_TABLE, 10**9, 10**9, "a" * 64, "b" * 64, differing, ())
    return FullReport(
        started_at="start",
        finished_at="end",
        source="S" * 63,
        source_rows=10**9,
        refused_rows=0,
        tables=(table,),
        differences=found,
        repair=repair,
    )


def divergence(kind: DifferenceKind) -> Divergence:
    differences = tuple(PropertyDifference(LONG_NAME, Change.VALUE) for _ in range(5))
    altered = kind is DifferenceKind.ALTERED
    stray = "strayidstray" if kind is DifferenceKind.WRONG_KEY else ""
    return Divergence(kind, LONG_TABLE, "rowidrowidro", "sourceidsour", differences if altered else (), stray)


def test_lines_fit_the_terminal_whatever_names_are_like() -> None:
    """The longest table and property names go on in the next line; safe ids never do."""
    found = Findings({"altered": 6}, tuple(divergence(kind) for kind in DifferenceKind))
    lines = render(report(found), "0001_users").splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert sum("rowidrowidro  sourceidsour" in line for line in lines) == len(DifferenceKind)


def test_twenty_divergences_are_shown_and_the_rest_counted() -> None:
    found = Findings({"missing": 5000}, tuple(divergence(DifferenceKind.MISSING) for _ in range(1000)))
    text = render(report(found), "0001_users")
    assert text.count("rowidrowidro") == SHOWN
    assert "... and 4,980 more" in text
    assert report(found).as_json()["not_listed"] == 4000


@pytest.mark.parametrize(
    ("found", "differing", "code"),
    [
        (Findings(), 0, ExitCode.DONE),
        (Findings(transient=9), 0, ExitCode.DONE),
        (Findings(transient=9, pending=3), 3, ExitCode.DONE),
        (Findings({"extra": 1}, (divergence(DifferenceKind.EXTRA),)), 1, ExitCode.FINDINGS),
        (Findings(unsettled=1), 0, ExitCode.FINDINGS),
        (Findings(transient=9), 1, ExitCode.FINDINGS),
    ],
)
def test_only_what_is_wrong_or_unproved_is_a_finding(found: Findings, differing: int, code: ExitCode) -> None:
    assert exit_code(report(found, differing=differing)) == code


def test_json_is_plain_data_with_repairs() -> None:
    """Every report can be stored and printed as JSON; empty members are left out of divergences."""
    one = divergence(DifferenceKind.MISSING)
    repair = RepairReport({"propagated": 1}, (Repair(one, Outcome.PROPAGATED),))
    data = json.loads(json.dumps(report(Findings({"missing": 1}, (one,)), repair).as_json()))
    assert data["divergences"] == [
        {"kind": "missing", "table": LONG_TABLE, "row": "rowidrowidro", "source_row": "sourceidsour"}
    ]
    assert data["repair"]["repairs"][0]["outcome"] == "propagated"
    assert "repair: propagated 1" in render(report(Findings({"missing": 1}, (one,)), repair), "0001_users")
