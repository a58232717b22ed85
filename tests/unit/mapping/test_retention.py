"""When cohorts are over, what a tombstone says and proves, and what the audit log says was erased."""

from __future__ import annotations

from typing import Any

import pytest

from rekey.core.clock import TICKS_PER_SECOND, ticks_of
from rekey.errors import Erased, SealedUnreadable
from rekey.mapping.rows import Cohort, Tombstones, cohorts, day_of, is_tombstone, over_at
from rekey.mapping.sealing import DataKey
from rekey.model import EntityKey, Row
from rekey.state.audit import AuditEvent, erasures

DAY = 86_400
ROOT = DataKey("root-3m9k2v7c", "root", bytes(range(32)))
OTHER = DataKey("root-3m9k2v7c", "root", bytes(32))
AT = EntityKey("0001_users.f.3", "3m9k2v7c0q1x3m9k2v7c0q1x3m9k2v7c")
COMPLETED = "2024-03-10T12:00:00.0000000Z"


# --- cohorts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("2024-01", "2024-02-01"),
        ("2024-02", "2024-03-01"),
        ("2024-12", "2025-01-01"),
        ("1999-11", "1999-12-01"),
    ],
)
def test_a_cohort_ends_with_its_month(name: str, end: str) -> None:
    assert over_at(name, "1999-01-01T00:00:00Z", 0) == ticks_of(f"{end}T00:00:00Z")


@pytest.mark.parametrize("name", ["2024-13", "2024-00", "2024-1", "24-01", "root", "all", "2024-01-x", ""])
def test_what_is_no_month_is_no_cohort(name: str) -> None:
    assert cohorts([key_row(name, Name="x")], sealed=True, completed_at=COMPLETED, keep_s=DAY) == ()
    if name != "all":
        with pytest.raises(ValueError, match="a cohort is a month"):
            over_at(name, COMPLETED, DAY)


@pytest.mark.parametrize(
    ("name", "since"),
    [("2024-01", COMPLETED), ("2024-03", "2024-04-01T00:00:00Z"), ("all", COMPLETED)],
    ids=["complete is later", "its end is later", "in the clear"],
)
def test_the_keeping_time_runs_from_the_later_of_both(name: str, since: str) -> None:
    assert over_at(name, COMPLETED, 10 * DAY) == ticks_of(since) + 10 * DAY * TICKS_PER_SECOND


def key_row(name: str, **more: Any) -> Row:
    return {"PartitionKey": "0001_users.k", "RowKey": name, **more}


def test_cohorts_are_told_oldest_first_and_the_root_key_is_none() -> None:
    rows = [
        key_row("2024-01", ErasedOn="2024-06-01"),
        key_row("2024-02", Name="x"),
        key_row("root", Name="y"),
    ]
    found = cohorts(rows, sealed=True, completed_at=COMPLETED, keep_s=DAY)
    assert [(one.name, one.erased_on) for one in found] == [("2024-01", "2024-06-01"), ("2024-02", "")]


@pytest.mark.parametrize(
    ("rows", "on"),
    [
        ([], ""),
        ([key_row("all", ErasedOn="2024-06-01", Done=False)], ""),
        ([key_row("all", ErasedOn="2024-06-01", Done=True)], "2024-06-01"),
    ],
    ids=["as it was", "half gone", "gone"],
)
def test_a_mapping_in_the_clear_is_one_cohort_erased_when_all_of_it_is(rows: list[Row], on: str) -> None:
    [found] = cohorts(rows, sealed=False, completed_at=COMPLETED, keep_s=DAY)
    assert (found.name, found.erased_on) == ("all", on)


def test_what_is_erased_is_not_due() -> None:
    assert Cohort("2024-01", "", 5).is_due(5)
    assert not Cohort("2024-01", "", 5).is_due(4)
    assert not Cohort("2024-01", "2024-06-01", 5).is_due(9)


# --- tombstones ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", [None, ROOT], ids=["plain", "sealed"])
def test_a_tombstone_says_the_day_and_nothing_of_what_stood_there(root: DataKey | None) -> None:
    stones = Tombstones("rekeymap", root)
    made = stones.make(AT, "2024-06-01")
    assert is_tombstone(made) and stones.read(made) == "2024-06-01"
    assert set(made) <= {"PartitionKey", "RowKey", "ErasedOn", "Proof", "Proof@odata.type"}
    with pytest.raises(Erased, match="row 3m9k2v7c0q1x was erased on 2024-06-01"):
        stones.refuse(made)
    stones.refuse({"PartitionKey": "p", "RowKey": "r"})


@pytest.mark.parametrize(
    "change",
    [
        {"ErasedOn": "2024-06-02"},
        {"RowKey": "4m9k2v7c0q1x3m9k2v7c0q1x3m9k2v7c"},
        {"PartitionKey": "0002_users.f.3"},
        {"Proof": ""},
        {"Proof": "not base64"},
        {"Proof": "AAAA"},
    ],
    ids=["redated", "moved", "of another migration", "without proof", "no base64", "too short"],
)
def test_a_tombstone_of_a_sealed_mapping_is_bound_to_its_place_and_day(change: Row) -> None:
    stones = Tombstones("rekeymap", ROOT)
    with pytest.raises(SealedUnreadable, match="that is not by rekey"):
        stones.read(stones.make(AT, "2024-06-01") | change)


def test_a_tombstone_is_bound_to_the_migrations_root_key_and_to_its_table() -> None:
    made = Tombstones("rekeymap", OTHER).make(AT, "2024-06-01")
    for stones in (Tombstones("rekeymap", ROOT), Tombstones("rekeymaps", OTHER)):
        with pytest.raises(SealedUnreadable):
            stones.read(made)


@pytest.mark.parametrize("on", ["", "soon", "2024-06-01T00:00:00Z", "anna@mail.example"])
def test_what_is_no_day_is_not_repeated_as_one(on: str) -> None:
    """Also in the clear, where nothing proves who wrote it: it would stand in a message."""
    with pytest.raises(SealedUnreadable) as caught:
        Tombstones("rekeymap").read({"PartitionKey": "p", "RowKey": "r" * 32, "ErasedOn": on})
    assert not on or on not in str(caught.value)


def test_the_day_is_the_services() -> None:
    assert day_of("2024-06-01T23:59:59.9999999Z") == "2024-06-01"


# --- what the audit log says --------------------------------------------------------------------------------


def event(seq: int, name: str, **details: Any) -> AuditEvent:
    return AuditEvent(seq, "2024-06-01T00:00:00Z", "anna", f"erasure-{name}", "0001_users", details, "", "")


def test_an_erasure_without_its_end_is_open_and_says_nothing_is_gone() -> None:
    begun = event(1, "begun", kind="subjects", rows=["aaaa"])
    assert erasures([begun]).open == (begun,)
    assert erasures([begun]).rows == {}


def test_the_end_names_its_beginning_and_what_is_gone_since_when() -> None:
    events = [
        event(1, "begun", kind="subjects", rows=["aaaa", "bbbb"]),
        event(2, "begun", kind="cohorts", cohorts=["2024-01"]),
        event(3, "ended", kind="subjects", begun=1, on="2024-06-01", rows=["aaaa"], changed=["bbbb"]),
        event(4, "begun", kind="mapping", cohorts=["all"]),
        event(5, "ended", kind="mapping", begun=4, on="2024-06-02", cohorts=["all"], kept_rows=3),
    ]
    found = erasures(events)
    assert [one.seq for one in found.open] == [2]
    assert (found.rows, found.cohorts, found.whole) == ({"aaaa": "2024-06-01"}, {"all": "2024-06-02"}, "")
    rest = [
        event(6, "ended", kind="cohorts", begun=2, on="2024-06-03", cohorts=["2024-01"]),
        event(7, "ended", kind="mapping", begun=9, on="2024-06-04", cohorts=["all"], kept_rows=0),
        event(8, "ended", kind="subjects", begun=8, on="2024-06-05", rows=["aaaa"], changed=[]),
    ]
    found = erasures(events + rest)
    assert found.open == ()
    assert (found.rows["aaaa"], found.cohorts["2024-01"], found.whole) == (
        "2024-06-05",
        "2024-06-03",
        "2024-06-04",
    )
