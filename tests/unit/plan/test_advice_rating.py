"""Declared queries are rated by what the keys are made of: the access and the requests, today and planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rekey import Migration, keys, query
from rekey.declaration.query import Query
from rekey.declaration.scripts import load_script
from rekey.plan.advice.access import rated
from tests.asserts.documents import ROOT
from tests.unit.plan.test_advice import at, hidden, rows
from tests.worlds.advice import facts, migration
from tests.worlds.example_rows import posts, registrations, telemetry

POSTS = load_script(ROOT / "migrations/0002_posts_by_month.py").migration
TELEMETRY = load_script(ROOT / "migrations/0003_telemetry_by_device_day.py").migration
REGISTRATIONS = load_script(ROOT / "migrations/0004_race_registrations.py").migration
OLD_PARTITION = ["PartitionKey"]
DEVICE_FIRST = keys.join("_", keys.prop("DeviceId"), keys.ticks("Moment"), keys.prop("RowKey"))


def answers(table: list[dict[str, object]], what: Migration, *asked: Query, scale: int = 1) -> Any:
    """Return how each query is answered today and by the planned keys, as text; a pair if it is one."""
    rows = rated(facts(table, replace(what, queries=asked), scale=scale))
    found = [(row.today.describe(), row.planned.describe()) for row in rows]
    return found[0] if len(asked) == 1 else found


def test_the_posts_of_the_worked_example() -> None:
    expected = {
        query.point("PartitionKey", "RowKey"): ("point, 1 request", "table scan, 2 requests"),
        query.point("PartitionKey"): ("partition range, 2 requests", "table scan, 2 requests"),
        query.point("Published", "RowKey"): ("table scan, 2 requests", "point, 1 request"),
        query.latest(20, by="Published", within=["Author"]): (
            "table scan, 2 requests",
            "row range, 21 requests by PostsByAuthor",
        ),
        query.latest(20, by="Published", within=["Tags"]): (
            "table scan, 2 requests",
            "row range, 21 requests by PostsByTag",
        ),
    }
    # Two months and more: fifty posts of a blog of forty a month.
    months = query.range("Published", rows=50)
    *found, (today, planned) = answers(list(posts(1_500)), POSTS, *expected, months)
    assert found == list(expected.values())
    assert today == "table scan, 2 requests"
    assert planned.startswith("row range")


def test_the_readings_of_the_worked_example() -> None:
    asked = query.range("RecordedAt", within=["DeviceId"], rows=20)
    today, planned = answers(list(telemetry(3_000)), TELEMETRY, asked)
    assert today == "table scan, 3 requests"
    assert planned.startswith("row range, ")


def test_the_registrations_of_the_worked_example_are_found_by_bib_and_by_age() -> None:
    """Each by a stretch of one partition; the secondary row carries the whole row, so no main row is read."""
    found = rated(facts(list(registrations(3_000)), REGISTRATIONS))
    assert [(one.query.known, one.query.by, one.planned.describe()) for one in found] == [
        (("Bib", "Distance", "PartitionKey"), None, "row range, 1 request"),
        (("Distance", "PartitionKey"), "Age", "row range, 1 request"),
    ]


@pytest.mark.parametrize(
    ("row_key", "asked", "planned"),
    [
        (hidden(), query.point("PartitionKey", "RowKey"), "point, 1 request"),
        (hidden("Email"), query.point("PartitionKey", "RowKey"), "partition range, 1 request"),
        (DEVICE_FIRST, query.point("PartitionKey", "DeviceId"), "row range, 1 request"),
        (
            at(keys.ticks("Moment")),
            query.range("Moment", within=OLD_PARTITION, rows=2500),
            "row range, 3 requests",
        ),
        (keys.zero_pad(9, "Number"), query.range("Number", within=OLD_PARTITION), "row range, 1 request"),
        (
            keys.hashed("md5", "Number"),
            query.range("Number", within=OLD_PARTITION),
            "partition range, 1 request",
        ),
        (at(keys.inverted_ticks("Moment")), query.latest(10, within=OLD_PARTITION), "row range, 1 request"),
        (at(keys.ticks("Moment")), query.latest(10, within=OLD_PARTITION), "partition range, 1 request"),
        (at(keys.inverted_ticks("Moment")), query.latest(10), "table scan, 2 requests"),
        (DEVICE_FIRST, query.range("Moment", within=["PartitionKey", "DeviceId"]), "row range, 1 request"),
    ],
)
def test_what_a_row_key_answers(row_key: keys.Expression, asked: Query, planned: str) -> None:
    assert answers(rows(300), migration(row_key=row_key), asked, scale=4)[1] == planned


def test_inverted_ticks_of_today_answer_the_newest_rows_today() -> None:
    table = [{**row, "RowKey": f"{2516 * 10**15 + row['Number'] * 10**9:019d}"} for row in rows()]
    today, _ = answers(table, migration(), query.latest(20, within=OLD_PARTITION))
    assert today == "row range, 1 request"


def test_a_custom_function_of_the_whole_row_cannot_be_computed_by_a_reader() -> None:
    custom = keys.custom("tests.worlds.advice:steady", "Email", version=1)
    assert (
        answers(rows(), migration(row_key=custom), query.point("PartitionKey", "Email"))[1]
        == "point, 1 request"
    )
    assert (
        answers(rows(), migration(row_key=custom), query.point("PartitionKey"))[1]
        == "partition range, 1 request"
    )
