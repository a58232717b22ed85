"""Each kind of advice: one table where it is given, and one like it where it is not."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest

from rekey import Migration, keys, props, query
from rekey.core.clock import TICKS_PER_SECOND, format_ticks, ticks_of
from rekey.core.severity import Severity
from rekey.declaration.keys import Expression
from rekey.declaration.keys.hashes import opaque
from rekey.declaration.requirements import CODES
from rekey.model import Row
from rekey.plan.advice.advise import advise
from rekey.plan.advice.facts import TEXTS
from rekey.plan.advice.structure import counting_scope
from rekey.plan.result import Advice
from rekey.project.prices import Prices
from tests.worlds.advice import facts, index, migration, planned

START = ticks_of("2024-01-01T00:00:00Z")
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"


def rows(count: int = 1_200, partitions: int = 20, **more: Any) -> list[Row]:
    """Rows under GUIDs, evenly spread, with properties to make keys of; `more`: name to function of n."""
    return [
        {**row, **{name: value(n) for name, value in more.items()}}
        for n, row in enumerate(_usual(count, partitions))
    ]


@cache
def _usual(count: int, partitions: int) -> list[Row]:
    lot = random.Random(5)
    made: list[Row] = []
    for n in range(count):
        row = {
            "PartitionKey": f"tenant-{n % partitions:03d}",
            "RowKey": str(uuid.UUID(int=lot.getrandbits(128), version=4)),
            "Timestamp": format_ticks(START + lot.randrange(10**14)),
            "Number": n,
            "Moment": format_ticks(START + n * 3_600 * TICKS_PER_SECOND),
            "Moment@odata.type": "Edm.DateTime",
            "Email": f"person{n}@mail.example",
            "Label": f"Label number {n}",
            "DeviceId": f"device-{n % 40:03d}",
            "Status": ("open", "closed")[n % 2],
        }
        made.append(row)
    return made


def hidden(of: str = "RowKey") -> Expression:
    """A keyed id."""
    return opaque(of, domain="row", secret="users")


def at(moment: Expression, *more: Expression) -> Expression:
    """A moment, then the old RowKey, so that keys differ."""
    return keys.join("_", moment, *more, keys.prop("RowKey"))


@dataclass
class Case:
    """A table where advice is given, and one like it where it is not."""

    fires: Migration
    quiet: Migration
    evidence: str
    severity: Severity = Severity.ERROR
    rows: list[Row] = field(default_factory=rows)
    options: dict[str, Any] = field(default_factory=dict)


WARNING = Severity.WARNING
BUSY = {"load": {"writes_per_second": 3_000}}
BATCHES = {"load": {"rows_per_batch": 20}}
BY_MOMENT = {"queries": [query.range("Moment", within=["PartitionKey"])]}
NEWEST = {"queries": [query.latest(20, by="Moment", within=["PartitionKey"])]}
OLD = {"queries": [query.point("PartitionKey", "RowKey")]}
DAY = keys.date("yyyy-MM-dd", "Moment")

CASES = {
    "one-partition": Case(migration(keys.literal("all")), migration(), "1,200 rows, one partition", WARNING),
    "partition-load": Case(
        migration(DAY, **BUSY),
        migration(keys.join("_", keys.prop("DeviceId"), DAY), **BUSY),
        "100 % of them to one partition: 3,000/s",
    ),
    "partition-share": Case(
        migration(keys.prop("Size")),
        migration(keys.prop("DeviceId")),
        "holds 50 % of the rows",
        WARNING,
        rows=rows(Size=lambda n: f"s{n % 40 if n % 2 else 0:02d}"),
        options={"scale": 10},
    ),
    "partition-per-row": Case(
        migration(keys.prop("RowKey"), **BATCHES), migration(**BATCHES), "batches of 20 declared"
    ),
    "partition-order": Case(
        migration(keys.ticks("Moment")),
        migration(keys.date("yyyy-MM", "Moment")),
        "begins with ticks(Moment)",
        WARNING,
    ),
    "random-order": Case(
        migration(row_key=hidden(), **BY_MOMENT),
        migration(row_key=at(keys.ticks("Moment")), **BY_MOMENT),
        "range(Moment, within PartitionKey): partition range",
        WARNING,
    ),
    "unpadded-numbers": Case(
        migration(row_key=keys.prop("Number")),
        migration(row_key=keys.zero_pad(8, "Number")),
        "numbers of 1 to 4 digits",
        WARNING,
    ),
    "time-not-inverted": Case(
        migration(row_key=at(keys.ticks("Moment")), **NEWEST),
        migration(row_key=at(keys.inverted_ticks("Moment")), **NEWEST),
        "latest(20, by Moment, within PartitionKey)",
        WARNING,
    ),
    "query-not-served": Case(
        migration(row_key=at(keys.ticks("Moment")), queries=[query.range("Moment")]),
        migration(row_key=at(keys.ticks("Moment")), **BY_MOMENT),
        "table scan, 2 requests planned",
        WARNING,
    ),
    "key-not-computable": Case(
        migration(DAY, **OLD), migration(row_key=hidden(), **OLD), "point, 1 request today; table scan"
    ),
    "personal-data": Case(
        migration(row_key=keys.prop("Email")),
        migration(row_key=hidden("Email")),
        "1,200 keys of 1,200 looked at (100 %) have the form of e-mail addresses",
    ),
    "secret-in-key": Case(
        migration(row_key=keys.prop("Token")),
        migration(row_key=hidden("Token")),
        "1 key of 1,200",
        rows=rows(Token=lambda n: JWT if n == 700 else f"token-{n}"),
    ),
    "guessable-hash": Case(
        migration(row_key=keys.hashed("sha256", "Email")),
        migration(row_key=keys.hashed("sha256", "RowKey")),
        "e-mail addresses",
    ),
    "short-id": Case(
        migration(row_key=keys.regex("^.{6}", 0, keys.hashed("sha256", "RowKey"))),
        migration(row_key=keys.regex("^.{20}", 0, keys.hashed("sha256", "RowKey"))),
        "24 bits; at 1,200 rows the chance that two meet is 0.2",
        WARNING,
    ),
    "merged-keys": Case(
        migration(keys.literal("p"), keys.lower("Code")),
        migration(keys.literal("p"), keys.prop("Code")),
        "300 rows looked at share a key",
        rows=rows(300, Code=lambda n: f"{'Cc'[n % 2]}ode-{n // 2:05d}"),
    ),
    "time-duplicates": Case(
        migration(row_key=keys.ticks("Moment")),
        migration(row_key=keys.join("-", keys.ticks("Moment"), keys.zero_pad(6, "Number"))),
        "300 rows looked at share their moment",
        rows=rows(300, partitions=1, Moment=lambda n: format_ticks(START + n // 2)),
    ),
    "mutable-key": Case(
        migration(keys.prop("Status")), migration(keys.prop("DeviceId")), "made of Status", WARNING
    ),
    "unrepeatable-key": Case(
        migration(row_key=keys.custom("tests.worlds.advice:shaky", "RowKey", version=1)),
        migration(row_key=keys.custom("tests.worlds.advice:steady", "RowKey", version=1)),
        "50 of 50 rows got another key the second time",
        rows=rows(50),
    ),
    "escaped-characters": Case(
        migration(row_key=keys.prop("Offer")),
        migration(row_key=keys.slug("Offer")),
        "% in 1,200 of 1,200 keys",
        WARNING,
        rows=rows(Offer=lambda n: f"{n}% off"),
    ),
    "non-ascii": Case(
        migration(row_key=keys.prop("City")),
        migration(row_key=keys.slug("City")),
        "1,200 not in composed form",
        WARNING,
        rows=rows(City=lambda n: f"Zu\u0308rich {n:04d}"),
    ),
    "long-keys": Case(
        migration(row_key=keys.prop("Path")),
        migration(row_key=hidden("Path")),
        "MiB in 1,200 rows",
        WARNING,
        rows=rows(Path=lambda n: f"{'folder.' * 25}{n:05d}"),
    ),
    "row-size": Case(
        migration(),
        migration(properties=[props.keep("Number")], reverse=False),
        "KiB of 1,024",
        WARNING,
        rows=rows(3, **{f"Text{part}": lambda n: "x" * 32_000 for part in range(14)}),
    ),
    "property-count": Case(
        migration(),
        migration(properties=[props.keep("Number")], reverse=False),
        "properties of 252",
        WARNING,
        rows=rows(3, **{f"P{number}": lambda n: n for number in range(200)}),
    ),
    "pointer-dropped": Case(
        migration(properties=[props.keep("Number")], reverse=False),
        migration(),
        "50 rows looked at hold a pointer, 0 after",
        WARNING,
        rows=rows(50, MainPartitionKey=lambda n: "p", MainRowKey=lambda n: f"r{n}"),
    ),
    "fan-out": Case(
        migration(
            indexes=[
                index("ByTag", each=keys.split("Tags", ","), partition_key=keys.item(), row_key=hidden())
            ]
        ),
        migration(
            indexes=[index("ByTag", each=keys.split("Few", ","), partition_key=keys.item(), row_key=hidden())]
        ),
        "2,400 rows for 200 rows: 12.0 each",
        WARNING,
        rows=rows(200, Tags=lambda n: ",".join(f"t{tag}" for tag in range(12)), Few=lambda n: "a,b,c"),
    ),
    "table-name": Case(migration(table="TableNew"), migration(table="TableV2"), "says New", WARNING),
}


@cache
def given(code: str) -> tuple[Advice, ...]:
    """All advice on the table where one kind is due."""
    case = CASES[code]
    return advise(facts(case.rows, case.fires, **case.options))


def test_there_is_a_case_for_every_kind() -> None:
    assert set(CASES) == set(CODES) == set(TEXTS)


@pytest.mark.parametrize("code", CODES)
def test_advice_is_given_where_it_is_due_with_evidence_reason_and_cure(code: str) -> None:
    case = CASES[code]
    [found, *_] = [one for one in given(code) if one.code == code and not one.today]
    assert found.severity is case.severity
    assert case.evidence in found.evidence, found.evidence
    assert any(character.isdigit() for character in found.evidence) or code in (
        "table-name",
        "mutable-key",
        "partition-order",
    )
    assert found.reason and found.cure and found.where
    assert found.blocks == (case.severity is Severity.ERROR)


@pytest.mark.parametrize("code", CODES)
def test_advice_is_not_given_where_it_is_not_due(code: str) -> None:
    case = CASES[code]
    assert code not in planned(facts(case.rows, case.quiet, **case.options))


def test_no_advice_holds_a_key() -> None:
    """Evidence is figures: whatever a table holds, none of it is repeated."""
    for code, case in CASES.items():
        told = " ".join(f"{one.evidence} {one.where}" for one in given(code))
        for row in case.rows[:50]:
            assert row["RowKey"] not in told and row["PartitionKey"] not in told and row["Email"] not in told


# --- what rules look at, further ----------------------------------------------------------------------------


def test_the_same_range_is_served_by_an_index() -> None:
    """`query-not-served` is about the best answer of all tables."""
    by_device = index(
        "ByDevice", partition_key=keys.prop("DeviceId"), row_key=at(keys.inverted_ticks("Moment"))
    )
    asked = [query.latest(20, by="Moment", within=["DeviceId"])]
    assert planned(facts(rows(), migration(queries=asked))) == {"query-not-served"}
    assert planned(facts(rows(), migration(queries=asked, indexes=[by_device]))) == set()


def test_severity_follows_the_load() -> None:
    found = {
        one.code: one for one in advise(facts(rows(), migration(DAY, load={"writes_per_second": 1_500})))
    }
    assert found["partition-load"].severity is Severity.WARNING
    assert "partition-load" not in planned(facts(rows(), migration(DAY, load={"writes_per_second": 900})))
    assert "partition-load" not in planned(facts(rows(), migration(DAY)))


@pytest.mark.parametrize(
    ("partition_key", "answered"),
    [
        (keys.keep(), False),
        (keys.join("_", keys.literal("v2"), keys.prop("PartitionKey")), False),
        (keys.join("_", keys.prop("DeviceId"), keys.prop("PartitionKey")), True),
    ],
)
def test_only_keys_that_spread_fix_partitions_that_rise_with_time(
    partition_key: Expression, answered: bool
) -> None:
    by_hour = [{**row, "PartitionKey": row["Moment"], "Timestamp": row["Moment"]} for row in rows()]
    found = [one for one in advise(facts(by_hour, migration(partition_key))) if one.code == "partition-order"]
    assert [one.answered for one in found if one.today] == [answered]
    assert [one.severity for one in found if not one.today] == ([] if answered else [Severity.NOTE])


def test_ids_are_judged_for_the_rows_that_will_be_there() -> None:
    short = keys.regex("^.{12}", 0, keys.hashed("sha256", "RowKey"))
    assert "short-id" not in planned(facts(rows(), migration(row_key=short)))
    grown = advise(facts(rows(), migration(row_key=short, load={"rows": 50_000_000})))
    assert [one.severity for one in grown if one.code == "short-id"] == [Severity.ERROR]


@pytest.mark.parametrize("name", ["Number", "Phone", "Card"])
def test_hashes_of_whatever_can_be_listed_are_guessable(name: str) -> None:
    table = rows(Phone=lambda n: f"+43 664 {1000000 + n}", Card=lambda n: "4111 1111 1111 1111")
    what = migration(row_key=keys.join("-", keys.hashed("sha256", name), keys.prop("RowKey")))
    assert "guessable-hash" in planned(facts(table, what))


def test_a_key_of_timestamp_and_a_clock_in_a_function_are_unrepeatable() -> None:
    stamped = migration(row_key=at(keys.ticks("Timestamp")), reverse=False)
    assert "unrepeatable-key" in planned(facts(rows(20), stamped))


def test_numbers_that_say_nothing_about_order_are_left_alone() -> None:
    slugs = rows(Slug=lambda n: f"{('green', 'red', 'blue')[n % 3]}-tea-{n}")
    assert planned(facts(slugs, migration(row_key=keys.prop("Slug")))) == set()
    prefixed = rows(Invoice=lambda n: f"INV{n + 1}")
    assert planned(facts(prefixed, migration(row_key=keys.prop("Invoice")))) == {"unpadded-numbers"}
    composed = migration(row_key=keys.join("_", keys.prop("DeviceId"), keys.prop("Number")))
    assert planned(facts(rows(), composed)) == {"unpadded-numbers"}


@pytest.mark.parametrize(("key", "alone"), [("RowKey", True), ("Pair", False)])
def test_single_row_partitions_are_seen_beyond_the_countable_number(key: str, alone: bool) -> None:
    """Two rows for each partition are no partition per row, even when most partitions were not counted."""
    table = rows(2_000, Pair=lambda n: f"pair-{n // 2}")
    counted = facts(table, migration(keys.prop(key), **BATCHES))
    [main] = counted.planned
    lower_bound = replace(counted, planned=(replace(main, partitions=500, partitions_exact=False),))
    assert ("partition-per-row" in planned(lower_bound)) is alone


# --- today's keys, waived advice ----------------------------------------------------------------------------


def test_findings_on_todays_keys_inform_and_say_whether_they_are_answered() -> None:
    table = [{**row, "RowKey": row["Email"]} for row in rows()]
    answered = advise(facts(table, migration(row_key=hidden())))
    assert [(one.code, one.severity, one.answered, one.blocks) for one in answered] == [
        ("personal-data", Severity.NOTE, True, False)
    ]
    kept = advise(facts(table, migration()))
    assert [(one.code, one.today, one.answered, one.blocks) for one in kept] == [
        ("personal-data", False, False, True),
        ("personal-data", True, False, False),
    ]


def test_waived_advice_stays_visible_with_its_reason_and_blocks_nothing() -> None:
    waived = migration(row_key=keys.prop("Email"), waive={"personal-data": "addresses of machines"})
    [found] = [one for one in advise(facts(rows(), waived)) if one.code == "personal-data"]
    assert (found.severity, found.waived, found.blocks) == (Severity.ERROR, "addresses of machines", False)


def test_long_keys_are_told_with_what_they_cost_where_storage_has_a_price() -> None:
    what = facts(CASES["long-keys"].rows, CASES["long-keys"].fires, scale=1_000_000)
    priced = replace(what, prices=Prices(currency="EUR", storage=0.5))
    [free] = [one for one in advise(what) if one.code == "long-keys" and not one.today]
    [told] = [one for one in advise(priced) if one.code == "long-keys" and not one.today]
    assert "a month" not in free.evidence
    assert told.evidence.startswith(free.evidence)
    assert told.evidence.endswith(" EUR a month to store")
    units = sum(column.lengths.mean for _, column in what.planned[0].columns)
    expected = 0.5 * 2 * units * what.planned[0].rows / (1 << 30)
    assert f"{expected:,.2f} EUR" in told.evidence


@pytest.mark.parametrize("buckets", [121, 1_000_000])
def test_a_bucket_of_personal_data_that_few_rows_share_is_guessable(buckets: int) -> None:
    said = facts(rows(), migration(keys.bucket(buckets, "sha256", "Email"), keys.prop("RowKey")))
    [found] = [one for one in advise(said) if one.code == "guessable-hash"]
    assert f"e-mail addresses, {buckets:,} buckets for 1,200 rows" in found.evidence
    assert "keys.bucket around it" in found.cure


@pytest.mark.parametrize(
    "key",
    [
        keys.bucket(120, "sha256", "Email"),
        keys.bucket(1_000_000, "sha256", "DeviceId"),
        keys.bucket(1_000_000, "sha256", hidden("Email")),
    ],
    ids=["ten rows share one", "nothing personal", "of an opaque id"],
)
def test_a_bucket_that_hides_what_is_hashed_is_left_alone(key: Expression) -> None:
    assert "guessable-hash" not in planned(facts(rows(), migration(key, keys.prop("RowKey"))))


def test_a_million_buckets_name_an_address_among_a_hundred_thousand_guesses() -> None:
    """What the advice says of buckets, measured."""
    scope = counting_scope("PartitionKey", migration())
    bucket = keys.bucket(1_000_000, "sha256", "Email").compile(scope)

    def of(address: str) -> str:
        return bucket({"PartitionKey": "p", "RowKey": "r", "Email": address}, None)

    people = [f"person{n}@mail.example" for n in range(18)]
    guesses = [*people, *(f"other{n}@mail.example" for n in range(100_000))]
    found: dict[str, list[str]] = {of(one): [] for one in people}
    for guess in guesses:
        if (name := of(guess)) in found:
            found[name].append(guess)
    assert [person for person in people if person not in found[of(person)]] == []
    assert sum(map(len, found.values())) < 18 + 8, "hardly anybody else has one of these buckets"
