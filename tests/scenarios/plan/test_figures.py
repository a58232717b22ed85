"""Every figure and plot of a plan and of an inspection is what the rows say, or an estimate that says so."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from unittest import mock

import pytest

from rekey import Migration, RowKind, Target, keys, props, rows
from rekey.core.limits import entity_bytes
from rekey.declaration.mapper import Mapper
from rekey.inspect import inspect
from rekey.inspect.inventory import SampleSize
from rekey.inspect.partitions import CLASS_NAMES, CLASSES
from rekey.model import Row
from rekey.plan import survey
from rekey.plan.page import plan_page
from rekey.plan.plan import make_plan
from rekey.plan.render import plan_text
from rekey.plan.result import MigrationPlan, Plan
from rekey.plan.subject import PlanOptions
from tests.fakes.clock import FakeClock
from tests.fakes.memory import MemoryTableService
from tests.worlds.plans import fill, subject

WEATHER = Migration(
    source="Weather",
    target=Target(
        "WeatherByMonth",
        partition_key=keys.date("yyyy-MM", "At"),
        row_key=keys.join("_", keys.prop("PartitionKey"), keys.prop("RowKey")),
        properties=[props.copy("PartitionKey", to="Station"), props.copy("RowKey", to="Hour")],
    ),
    capture="delta",
)
STATIONS = {"oslo": 3, "bergen-flesland": 2, "tromsø": 1}
"""Stations, and how many readings of a day each has."""


def readings(days: int) -> list[Row]:
    """Readings of some days; the stations differ in how many they have, in keys and in bytes."""
    return [
        {
            "PartitionKey": station,
            "RowKey": f"{day:05}-{hour}",
            "At": f"{2020 + day // 336}-{day // 28 % 12 + 1:02}-{day % 28 + 1:02}T{hour:02}:00:00Z",
            "At@odata.type": "Edm.DateTime",
            "Text": "x" * each * 10,
        }
        for station, each in STATIONS.items()
        for day in range(days)
        for hour in range(each)
    ]


async def planned(service: MemoryTableService, **options: Any) -> tuple[Plan, MigrationPlan]:
    plan = await make_plan([subject(WEATHER)], service, PlanOptions(**options), clock=FakeClock())
    return plan, plan.migrations[0]


def classes(rows: Iterable[int]) -> dict[str, int]:
    """How many partitions are of each class of size."""
    limits = (*CLASSES, 10**12)
    found = Counter(next(place for place, most in enumerate(limits) if count <= most) for count in rows)
    return {CLASS_NAMES[place]: found[place] for place in range(max(found) + 1)}


def lengths(texts: Sequence[str]) -> dict[int, int]:
    found = Counter(len(text) // 8 * 8 for text in texts)
    return {low: found[low] for low in range(0, max(found) + 1, 8)}


def told_lanes(page: str, table: str) -> dict[str, tuple[int, int]]:
    """From the page: rows of each lane of the load of a table, and the most of them at one time."""
    [told] = re.findall(f"<title>Load of {table} over time</title><desc>([^<]*)</desc>", page)
    found = re.findall(r"([^;]+): ([\d,]+) rows, most of them ([\d,]+) at", html.unescape(told))
    return {
        name.strip(): (int(rows.replace(",", "")), int(most.replace(",", ""))) for name, rows, most in found
    }


async def test_exact_plans_are_exact(memory: MemoryTableService, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than are looked at for advice: no figure may rest on these alone, unsaid."""
    monkeypatch.setattr(survey, "MOST_ROWS", 1_000)
    rows = readings(300)
    await fill(memory, "Weather", rows)
    plan, migration = await planned(memory, exact=True)
    assert migration.mapping.sampled_rows < len(rows) == migration.mapping.mapped_rows == 1_800
    mapper = Mapper(WEATHER, {})
    targets = [mapper.map(row)[0].row for row in rows]
    inventory = migration.inventory
    assert inventory is not None and (inventory.rows.rows, inventory.partitions) == (1_800, 3)
    assert inventory.largest_partition == 900
    for portrait, each in zip(migration.figures.portraits, (rows, targets), strict=True):
        partitions = Counter(row["PartitionKey"] for row in each)
        assert portrait.sizes == classes(partitions.values())
        assert [count for _, count in portrait.largest] == sorted(partitions.values(), reverse=True)[:8]
        assert portrait.rows == len(rows)
        for key in ("PartitionKey", "RowKey"):
            assert portrait.lengths[key] == lengths([row[key] for row in each])
        units = sum(len(row["PartitionKey"]) + len(row["RowKey"]) for row in each)
        assert portrait.key_bytes == pytest.approx(2 * units / len(each))
    [target] = migration.mapping.fills
    by_month = Counter(row["PartitionKey"] for row in targets)
    assert (target.rows, target.partitions, target.largest_partition) == (1_800, 11, max(by_month.values()))
    assert sum(rows * number for rows, number in target.fills.items()) == 1_800
    assert sum(target.fills.values()) == target.batches
    for load, each in zip(migration.figures.loads, (rows, targets), strict=True):
        times = [row["At"][:7] for row in rows]
        cells = Counter(zip((row["PartitionKey"] for row in each), times, strict=True))
        columns = Counter(times)
        assert load.times == tuple(sorted(columns)) and load.partitions_exact and not load.others
        lanes = Counter(tuple(count for count in lane) for _, lane in load.lanes)
        names = {name for name, _ in cells}
        assert lanes == Counter(tuple(cells[name, at] for at in load.times) for name in names)
        most = [max(cells[name, at] for name in names) / columns[at] for at in load.times]
        assert load.busiest == pytest.approx(most)
    # The bytes come from a sample that is drawn evenly, and the plan and its page say so.
    assert inventory.stored_bytes == pytest.approx(sum(map(entity_bytes, rows)), rel=0.01)
    assert target.stored_bytes == pytest.approx(sum(map(entity_bytes, targets)), rel=0.01)
    page = plan_page(plan)
    assert sum(rows for rows, _ in told_lanes(page, "Weather").values()) == 1_800
    assert sum(rows for rows, _ in told_lanes(page, "WeatherByMonth").values()) == 1_800
    assert "Bytes are estimates: advice, bytes and examples come from 900 of 1,800 rows" in page
    figures = re.findall(r"<figcaption>([^<]+) <span>([^<]*)</span>", page)
    assert len(figures) == page.count("<figure>") == 9
    assert {title for title, remark in figures if "all 1,800 rows" not in remark} == set()


STATION_KINDS = Migration(
    source="Weather",
    kinds=[
        RowKind(
            station[0],
            when=rows.partition_key(equals=station),
            target=Target("WeatherByKind", partition_key=keys.keep(), row_key=keys.keep()),
        )
        for station in STATIONS
    ],
    capture="delta",
)


@pytest.mark.parametrize("exact", [False, True])
async def test_rows_of_kinds_are_those_of_the_table_or_estimates_that_say_so(
    memory: MemoryTableService, exact: bool
) -> None:
    stations = [row for row in readings(1_000) if row["PartitionKey"] == "bergen-flesland"]
    await fill(memory, "Weather", [*stations, *readings(3_000)[:9_000]])
    options = PlanOptions(exact=exact, sample=SampleSize(head_rows=1_000, probes=2))
    plan = await make_plan([subject(STATION_KINDS)], memory, options, clock=FakeClock())
    [migration] = plan.migrations
    oslo, bergen, tromsø = migration.mapping.kinds
    likely = migration.inventory.rows.rows
    assert (bergen.rows, bergen.rows_read, tromsø.rows) == (2_000, 2_000, 0)
    assert oslo.rows == likely - 2_000
    assert (oslo.rows_read == oslo.rows) is exact
    texts = [f"{oslo.rows:,} rows", "2,000 rows", "0 rows"]
    texts = texts if exact else [f"about {texts[0]}", f"about {texts[1]}", "none read"]
    assert [rows for _, rows, _ in migration.kinds] == texts
    for shown in (plan_text(plan), html.unescape(plan_page(plan))):
        assert [text in shown for text in texts] == [True, True, True]


async def test_a_sample_counts_the_rows_of_the_largest_partition_that_it_met(
    memory: MemoryTableService,
) -> None:
    """It read some pages of that partition. What is counted is no part of the sample, and has an end."""
    await fill(memory, "Weather", [row for row in readings(3_000) if row["PartitionKey"] == "oslo"])
    size = SampleSize(head_rows=1_000, probes=2)
    _, sampled = await planned(memory, sample=size)
    with mock.patch("rekey.inspect.inventory.LARGEST_PAGES", 0):
        _, before = await planned(memory, sample=size)
    largest, read, pages, sent = (
        [getattr(plan.inventory, name) for plan in (sampled, before)]
        for name in ("largest_partition", "rows", "pages", "requests")
    )
    assert (largest[0], read[0], pages[0], sent[0]) == (9_000, read[1], pages[1], sent[1] + 9)
    assert largest[1] < 9_000
    with mock.patch("rekey.inspect.inventory.LARGEST_PAGES", 7):
        _, bounded = await planned(memory, sample=size)
    assert bounded.inventory is not None and bounded.inventory.largest_partition == 7_000


async def test_a_sampled_plan_weights_what_it_read_and_says_so(memory: MemoryTableService) -> None:
    """The first station is read whole, and some pages of the second: unweighted the first would have half."""
    bergen = [row for row in readings(1_000) if row["PartitionKey"] == "bergen-flesland"]
    rows = bergen + [row for row in readings(3_000) if row["PartitionKey"] == "oslo"]
    in_first = len(bergen)
    assert (in_first, len(rows)) == (2_000, 11_000)
    await fill(memory, "Weather", rows)
    plan, migration = await planned(memory, sample=SampleSize(head_rows=1_000, probes=2))
    inventory = migration.inventory
    assert inventory is not None and not inventory.exact and inventory.head_rows == 2_000
    read, likely = inventory.rows.at_least, inventory.rows.rows
    assert in_first / read > 0.3
    truth = pytest.approx(in_first / likely, abs=0.01)
    for load in migration.figures.loads:
        in_lanes = sum(sum(lane) for _, lane in load.lanes)
        assert in_lanes + sum(load.others_rows) == pytest.approx(likely, rel=0.01), "not of the rows read"
    source, target = migration.figures.portraits
    assert min(sum(lane) for _, lane in migration.figures.loads[0].lanes) / likely == truth
    assert source.lengths["PartitionKey"][8] / likely == truth
    for portrait in (source, target):
        assert [round(sum(one.values()) / likely, 2) for one in portrait.lengths.values()] == [1, 1]
    mean = {row["PartitionKey"]: entity_bytes(row) for row in rows}
    stored = in_first * mean["bergen-flesland"] + (likely - in_first) * mean["oslo"]
    assert inventory.stored_bytes == pytest.approx(stored, rel=0.01)
    page = plan_page(plan)
    weighted = (
        f"estimated: about {likely:,} rows, by the {read:,} rows read, each weighted by the rows it stands"
    )
    remarks = dict(re.findall(r"<figcaption>([^<]+) <span>([^<]*)</span>", page))
    for name in ("Weather", "WeatherByMonth", "Length of the RowKey"):
        assert weighted in remarks[name]
    assert f"the {read:,} rows read" in remarks["How many partitions have how many rows"]
    assert "by the first 2,000 rows of the table" in remarks["Batches to WeatherByMonth"]


async def test_an_exact_inspection_says_what_the_rows_say(memory: MemoryTableService) -> None:
    rows = readings(400)
    await fill(memory, "Weather", rows)
    found, _ = await inspect.inspect_table(memory.table("Weather"), exact=True)
    assert found.exact and found.rows_interval == (2_400, 2_400)
    assert found.inventory.stored_bytes == sum(map(entity_bytes, rows))
    assert found.largest_row_bytes == max(map(entity_bytes, rows))
    partitions = Counter(row["PartitionKey"] for row in rows)
    assert found.partitions.sizes == {name: n for name, n in classes(partitions.values()).items() if n}
    assert [one.rows for one in found.partitions.largest] == sorted(partitions.values(), reverse=True)
    for key, texts in (
        (found.row_key, [row["RowKey"] for row in rows]),
        (found.partition_key, sorted(partitions)),
    ):
        sizes = [len(text) for text in texts]
        assert (key.keys, key.lengths.least, key.lengths.most) == (len(texts), min(sizes), max(sizes))
        assert key.lengths.mean == pytest.approx(sum(sizes) / len(sizes))
        assert key.marks["digits" if key is found.row_key else "lower-case"] == len(texts)
    assert {use.name: use.rows for use in found.properties} == {"At": 2_400, "Text": 2_400}
    assert found.schemas == (2_400,)


async def test_bytes_are_weighted(memory: MemoryTableService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows in key order are small, and read whole; the many that follow are large."""
    monkeypatch.setattr(inspect, "HEAD_ROWS", 2_000)
    monkeypatch.setattr(inspect, "SAMPLE_REQUESTS", 8)
    small: list[Row] = [{"PartitionKey": "a", "RowKey": f"{n:06}", "Text": ""} for n in range(3_000)]
    large: list[Row] = [{"PartitionKey": "b", "RowKey": f"{n:06}", "Text": "x" * 400} for n in range(12_000)]
    await fill(memory, "Rows", [*small, *large])
    found, _ = await inspect.inspect_table(memory.table("Rows"))
    rows = found.inventory.rows.rows
    mean = (3_000 * entity_bytes(small[0]) + (rows - 3_000) * entity_bytes(large[0])) / rows
    assert not found.exact and found.inventory.stored_bytes / rows == pytest.approx(mean, rel=0.01)
