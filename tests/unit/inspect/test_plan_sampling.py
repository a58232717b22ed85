"""Estimating a table's size: honest always, close for keys of even form, bounded in requests.

Soak: numbers in one partition, padded or not.
Reason, and what `make test` covers: 100,000 keys each; 20,000 of the same forms in
test_inspection_confidence.py.
"""

from __future__ import annotations

import random
import uuid
from bisect import bisect_right
from collections.abc import Callable

import pytest

from rekey.inspect.sampling import Sizer, Stretch, Units, key_from, units_of
from rekey.model import EntityKey

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LOT = random.Random(4)
HEAD = 5_000
REQUESTS = 45


class Keys:
    """A table's keys, read a page at a time."""

    def __init__(self, keys: list[tuple[str, str]]) -> None:
        self.units = sorted({units_of(EntityKey(*key)) for key in keys})
        self.requests = 0

    async def read(self, after: Units) -> Stretch:
        self.requests += 1
        at = bisect_right(self.units, units_of(key_from(after)))
        return Stretch(self.units[at : at + 1000], ended=at + 1000 >= len(self.units))

    async def estimate(self) -> tuple[float, bool]:
        sizer = Sizer(self.read, REQUESTS)
        behind = await sizer.rows_after(self.units[HEAD - 1000 : HEAD])
        return HEAD + behind, sizer.settled


def uuids(count: int) -> list[tuple[str, str]]:
    lot = random.Random(count)
    return [(str(uuid.UUID(int=lot.getrandbits(128))), "") for _ in range(count)]


@pytest.mark.parametrize(
    ("keys", "within"),
    [
        pytest.param(lambda: [("all", f"{n:010d}") for n in range(100_000)], 0.01, marks=pytest.mark.soak),
        (lambda: [(f"p-{n % 200:03d}", f"r{n:08d}") for n in range(100_000)], 0.05),
        (lambda: uuids(100_000), 0.15),
        pytest.param(lambda: [("all", str(n)) for n in range(100_000)], 0.25, marks=pytest.mark.soak),
        (lambda: [(f"🚲{n // 1000:03d}", f"{n:06d}") for n in range(60_000)], 0.05),
    ],
    ids=["padded numbers", "200 partitions", "guids", "numbers of any length", "beyond the basic plane"],
)
async def test_even_keys_need_few_requests(keys: Callable[[], list[tuple[str, str]]], within: float) -> None:
    table = Keys(keys())
    estimate, _ = await table.estimate()
    assert table.requests <= REQUESTS
    assert abs(estimate - len(table.units)) / len(table.units) <= within


async def test_the_same_table_gives_the_same_estimate() -> None:
    assert await Keys(uuids(30_000)).estimate() == await Keys(uuids(30_000)).estimate()


async def test_running_out_of_requests_is_said() -> None:
    """Ten requests cannot settle 100 partitions of 1,000 rows; the result must not claim that they did."""
    table = Keys([(f"p-{n // 1000:03d}", f"{n:06d}") for n in range(100_000)])
    sizer = Sizer(table.read, 10)
    behind = await sizer.rows_after(table.units[HEAD - 1000 : HEAD])
    assert table.requests <= 10
    assert not sizer.settled
    assert 0 < behind < 100_000


async def test_a_level_with_very_many_branches_is_drawn_from() -> None:
    """62 first characters of very different weight: the drawn ones stand for the others."""
    keys = [("p", f"{LETTERS[int(LOT.expovariate(0.1)) % 62]}{n:06d}") for n in range(60_000)]
    table = Keys(keys)
    estimate, _ = await table.estimate()
    assert table.requests <= REQUESTS
    assert 0.5 < estimate / len(table.units) < 2


@pytest.mark.parametrize("key", [("", ""), ("p", ""), ("é日", "🦊x"), ("a'b", "x" * 512)])
def test_keys_survive_as_code_units_in_the_services_order(key: tuple[str, str]) -> None:
    assert key_from(units_of(EntityKey(*key))) == EntityKey(*key)


def test_a_cut_surrogate_pair_becomes_a_key_that_can_be_sent_and_sorts_below() -> None:
    whole = units_of(EntityKey("p", "🦊"))
    cut = key_from(whole[:-1])
    cut.row.encode("utf-8")
    assert units_of(cut) < whole


async def test_very_uneven_partitions_take_more_requests_and_the_estimate_says_how_far_off_it_may_be() -> (
    None
):
    """The largest of 150 partitions in each of five groups has a sixth of the group's rows."""
    sizes = [round(10_000 / rank) for rank in range(1, 151)]
    random.Random(1).shuffle(sizes)
    keys = [
        (f"g{group}-p{number:03d}", f"{row:09d}")
        for group in range(5)
        for number, size in enumerate(sizes)
        for row in range(size)
    ]
    table, asked = Keys(keys), []

    def more(rows: float) -> int:
        asked.append(rows)
        return 400

    sizer = Sizer(table.read, REQUESTS, more)
    estimate = HEAD + await sizer.rows_after(table.units[HEAD - 1000 : HEAD], HEAD)
    assert len(asked) == 1, "more requests are asked for once"
    assert REQUESTS < table.requests <= REQUESTS + 400
    assert sizer.settled
    assert 0.05 < sizer.error < 0.5
    assert 0.7 < estimate / len(table.units) < 1.3


async def test_one_run_tells_no_error() -> None:
    table = Keys(uuids(30_000))
    sizer = Sizer(table.read, 20)
    await sizer.rows_after(table.units[HEAD - 1000 : HEAD])
    assert sizer.error == 0.0
