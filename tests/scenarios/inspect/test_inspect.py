"""Inspecting tables: what is told of them is so, within 60 requests or exactly, and without keys.

Soak: a million rows exactly; partitions of other sizes.
Reason, and what `make test` covers: minutes of reading; memory up to 20,000 rows, a sample of a million,
partitions of three rows.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from rekey.inspect.inspect import SAMPLE_REQUESTS, inspect_table
from rekey.inspect.profile import Order
from rekey.inspect.render import inspection_text
from rekey.inspect.report import Inspection
from rekey.inspect.shapes import Shape
from rekey.model import EntityKey, Row
from rekey.present.text import WIDTH
from rekey.tables.azure import AzureTableService
from rekey.tables.sent import RequestKind
from tests.fakes.big_table import MadeUpTable
from tests.fakes.clock import FakeClock
from tests.fakes.memory import MemoryTableService
from tests.worlds.example_rows import posts, telemetry, users
from tests.worlds.plans import fill

MEBIBYTE = 1024 * 1024


async def inspected(memory: MemoryTableService, rows: Iterable[Row], **options: bool) -> Inspection:
    """Fill a table and inspect it."""
    await fill(memory, "Table", rows)
    return (await inspect_table(memory.table("Table"), **options))[0]


def shapes(found: Inspection) -> dict[str, int]:
    """The shapes of the RowKeys, with counts."""
    return {str(use.shape): use.keys for use in found.row_key.shapes}


async def test_a_whole_read_counts_what_is_there(memory: MemoryTableService) -> None:
    rows = list(users(3_000))
    found = await inspected(memory, rows, exact=True)
    partitions = [row["PartitionKey"] for row in rows]
    assert found.inventory.rows.rows == found.rows_read == 3_000
    assert found.partitions.count == found.partitions.met == len(set(partitions)) == 20
    assert found.partitions.sizes == {"100 to 999": 20}
    assert found.partitions.largest[0].rows == max(map(partitions.count, set(partitions)))
    assert shapes(found) == {"email": 3_000}
    assert found.row_key.shapes[0].share is not None and found.row_key.shapes[0].share.low == 1.0
    assert found.row_key.lengths.most == max(len(row["RowKey"]) for row in rows)
    assert found.row_key.specials == {"@": 3_000}
    assert {use.name for use in found.properties} == {"Name", "Joined", "Logins", "Active", "Tags"}
    assert found.schemas == (3_000,) and not found.varying


async def test_a_table_within_the_first_pages_is_told_exactly(memory: MemoryTableService) -> None:
    found = await inspected(memory, telemetry(1_500))
    assert found.exact and shapes(found) == {"guid": 1_500}


async def test_properties_that_vary_in_type_are_named(memory: MemoryTableService) -> None:
    rows = [
        {
            "PartitionKey": "p",
            "RowKey": f"{n:04}",
            "Age": n if n % 3 else str(n),
            **({"Extra": 1} if n % 5 == 0 else {}),
        }
        for n in range(300)
    ]
    found = await inspected(memory, rows)
    assert found.varying == ("Age",)
    [age] = [use for use in found.properties if use.name == "Age"]
    assert age.types == {"Edm.String": 100, "Edm.Int32": 200}
    assert sorted(found.schemas, reverse=True) == list(found.schemas) and len(found.schemas) == 4
    assert "VARIES" in inspection_text(found)


@pytest.mark.parametrize(
    ("numbers", "order"),
    [
        (list(range(300)), Order.APPEND),
        (list(range(300))[::-1], Order.PREPEND),
        (random.Random(3).sample(range(300), 300), Order.SCATTERED),
    ],
    ids=["rising", "falling", "shuffled"],
)
@pytest.mark.parametrize("side", ["partition_key", "row_key"])
async def test_where_new_keys_go_is_seen_from_timestamps(numbers: list[int], order: Order, side: str) -> None:
    clock = FakeClock()
    memory = MemoryTableService(clock=clock)
    await memory.create_table("Table")
    for number in numbers:
        key = f"{number:05}"
        pair = (key, "r") if side == "partition_key" else ("p", key)
        await memory.table("Table").insert({"PartitionKey": pair[0], "RowKey": pair[1]})
        clock.advance(1)
    found, _ = await inspect_table(memory.table("Table"))
    assert getattr(found, side).order is order
    other = "row_key" if side == "partition_key" else "partition_key"
    assert getattr(found, other).order is Order.UNKNOWN


async def test_no_key_is_told_unless_asked_for(memory: MemoryTableService) -> None:
    rows = [
        {"PartitionKey": f"patient-{n % 7}-secret", "RowKey": f"anna{n}@mail.example", "N": 1}
        for n in range(700)
    ]
    await fill(memory, "Table", rows)
    hidden, _ = await inspect_table(memory.table("Table"))
    shown, _ = await inspect_table(memory.table("Table"), show_keys=True)
    for text in (inspection_text(hidden), json.dumps(hidden.as_json())):
        assert "secret" not in text and "anna" not in text and "example" not in text
    assert "patient-0-secret" in inspection_text(shown)
    assert "operator's eyes only" in inspection_text(shown)
    assert "patient-0-secret" in json.dumps(shown.as_json())


@pytest.mark.parametrize("make", [users, posts, telemetry])
async def test_the_text_stays_within_its_width(
    memory: MemoryTableService, make: Callable[[int], Iterable[Row]]
) -> None:
    text = inspection_text(await inspected(memory, make(400), show_keys=True))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


async def test_an_empty_table_is_told_to_be_empty(memory: MemoryTableService) -> None:
    found = await inspected(memory, [])
    assert found.inventory.rows.rows == 0 and found.rows_read == 0
    assert "rows            0" in inspection_text(found)


# --- a sample ---------------------------------------------------------------------------------------------


async def test_a_million_rows_are_sampled_within_sixty_requests_and_estimated() -> None:
    table = MadeUpTable(1_000_000)
    found, _ = await inspect_table(table)  # type: ignore[arg-type]
    assert table.requests <= found.inventory.requests <= SAMPLE_REQUESTS
    assert not found.exact
    low, high = found.rows_interval
    assert low <= 1_000_000 <= high
    low, high = found.partitions.between
    assert low <= 1_000 <= high
    assert found.partition_key.order is found.row_key.order is Order.APPEND
    assert found.partitions.cut + sum(found.partitions.sizes.values()) == found.partitions.met
    assert "about" in inspection_text(found)


def scattered(number: int) -> EntityKey:
    """Every page behind a made-up key costs two requests: partitions of three rows."""
    return EntityKey(f"{number // 3:09d}", f"{number % 3}")


def hundreds(number: int) -> EntityKey:
    """Partitions of four hundred rows."""
    return EntityKey(f"c{number // 400:05d}", f"{number:09d}")


def alone(number: int) -> EntityKey:
    """One partition."""
    return EntityKey("all", f"{number:09d}")


@pytest.mark.parametrize(
    ("key", "partitions"),
    [
        pytest.param(scattered, 200_000, id="three rows each"),
        pytest.param(hundreds, 1_500, id="four hundred rows each", marks=pytest.mark.soak),
        pytest.param(alone, 1, id="one for all", marks=pytest.mark.soak),
    ],
)
async def test_a_sample_bounds_its_requests(key: Callable[[int], EntityKey], partitions: int) -> None:
    table = MadeUpTable(600_000, key)
    found, _ = await inspect_table(table)  # type: ignore[arg-type]
    assert table.requests <= SAMPLE_REQUESTS
    assert partitions / 2 <= found.partitions.count <= partitions * 2


async def test_a_sample_says_how_sure_its_shares_are() -> None:
    """Half of the keys are e-mail addresses, in stretches: the interval holds the truth, and is no point."""

    def key(number: int) -> EntityKey:
        mail = (number // 1500) % 2 == 0
        return EntityKey("p", f"{number:08d}" + ("@mail.example" if mail else ""))

    found, _ = await inspect_table(MadeUpTable(400_000, key))  # type: ignore[arg-type]
    [share] = [use.share for use in found.row_key.shapes if use.shape is Shape.EMAIL]
    assert share.low < 0.5 < share.high and share.high - share.low > 0.05


# --- memory -----------------------------------------------------------------------------------------------

_MEASURE = """
import asyncio, pathlib, re, resource
from rekey.inspect.inspect import inspect_table
from tests.fakes.big_table import MadeUpTable
found, _ = asyncio.run(inspect_table(MadeUpTable({rows}), exact=True))
status = pathlib.Path("/proc/self/status")
if status.exists():  # what the system calls the maximum counts the parent's memory before the program began
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1])
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(found.inventory.rows.rows, peak)
"""


def peak_of(rows: int) -> int:
    """Return the peak resident bytes of a process that inspects so many rows exactly."""
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, "-c", _MEASURE.format(rows=rows)],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    counted, peak = map(int, ended.stdout.split())
    assert counted == rows
    return peak * (1 if sys.platform == "darwin" else 1024)


def test_an_exact_inspection_takes_no_more_memory_for_more_rows() -> None:
    assert resource.RUSAGE_SELF == 0
    few, many = peak_of(4_000), peak_of(20_000)
    assert many <= 250 * MEBIBYTE
    assert many - few <= 8 * MEBIBYTE


@pytest.mark.soak
def test_a_million_rows_are_inspected_exactly_within_250_mib() -> None:
    peak = peak_of(1_000_000)
    print(f"\n1,000,000 rows inspected exactly: {peak / MEBIBYTE:.0f} MiB at most")
    assert peak <= 250 * MEBIBYTE


# --- on Azurite ---------------------------------------------------------------------------------------------


@pytest.mark.azurite
async def test_a_real_service_is_asked_no_more_often_than_said(
    tables_service: AzureTableService, table_name: Callable[[str], str]
) -> None:
    """Every GET is counted where it leaves, prefetching included."""
    name = table_name("Inspect")
    await fill(tables_service, name, users(5_000, partitions=30))
    before = tables_service.sent.counts[RequestKind.SCAN]
    try:
        found, _ = await inspect_table(tables_service.table(name))
    finally:
        await tables_service.delete_table(name)
    sent = tables_service.sent.counts[RequestKind.SCAN] - before
    assert 5 < sent <= found.inventory.requests <= SAMPLE_REQUESTS
    assert shapes(found) == {"email": found.rows_read}
